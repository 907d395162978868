package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.message.ConsumerGroupDescribeResponseData;
import org.apache.kafka.common.message.ConsumerGroupDescribeResponseDataJsonConverter;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatRequestDataJsonConverter;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatResponseDataJsonConverter;
import org.apache.kafka.common.message.DeleteGroupsRequestDataJsonConverter;
import org.apache.kafka.common.message.DeleteGroupsResponseData;
import org.apache.kafka.common.message.DeleteGroupsResponseDataJsonConverter;
import org.apache.kafka.common.message.DescribeGroupsRequestDataJsonConverter;
import org.apache.kafka.common.message.DescribeGroupsResponseData;
import org.apache.kafka.common.message.DescribeGroupsResponseDataJsonConverter;
import org.apache.kafka.common.message.HeartbeatRequestDataJsonConverter;
import org.apache.kafka.common.message.HeartbeatResponseDataJsonConverter;
import org.apache.kafka.common.message.JoinGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.JoinGroupResponseData;
import org.apache.kafka.common.message.JoinGroupResponseDataJsonConverter;
import org.apache.kafka.common.message.LeaveGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.LeaveGroupResponseDataJsonConverter;
import org.apache.kafka.common.message.ListGroupsRequestData;
import org.apache.kafka.common.message.ListGroupsRequestDataJsonConverter;
import org.apache.kafka.common.message.ListGroupsResponseData;
import org.apache.kafka.common.message.ListGroupsResponseDataJsonConverter;
import org.apache.kafka.common.message.OffsetCommitRequestDataJsonConverter;
import org.apache.kafka.common.message.OffsetCommitResponseDataJsonConverter;
import org.apache.kafka.common.message.OffsetDeleteRequestDataJsonConverter;
import org.apache.kafka.common.message.OffsetDeleteResponseDataJsonConverter;
import org.apache.kafka.common.message.OffsetFetchRequestData;
import org.apache.kafka.common.message.OffsetFetchRequestDataJsonConverter;
import org.apache.kafka.common.message.OffsetFetchResponseData;
import org.apache.kafka.common.message.OffsetFetchResponseDataJsonConverter;
import org.apache.kafka.common.message.SyncGroupRequestDataJsonConverter;
import org.apache.kafka.common.message.SyncGroupResponseData;
import org.apache.kafka.common.message.SyncGroupResponseDataJsonConverter;
import org.apache.kafka.common.message.TxnOffsetCommitRequestData;
import org.apache.kafka.common.message.TxnOffsetCommitRequestDataJsonConverter;
import org.apache.kafka.common.message.TxnOffsetCommitResponseDataJsonConverter;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.coordinator.common.runtime.CoordinatorExecutor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.group.GroupCoordinatorConfig;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.GroupCoordinatorShard;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.SubscribedTopicDescriberImpl;
import org.apache.kafka.coordinator.group.modern.TopicIds;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * One partition of Kafka's group coordinator without a broker: JSON lines in, JSON lines out.
 *
 * <pre>
 *   {"op": "new", "config": {...}}                  a coordinator without groups; the clock stays
 *   {"op": "topics", "topics": {name: [id, count]}, "version"}   the topics from now on
 *   {"op": "advance", "ms"}                         background work, then what is due
 *   {"op": "request", "api", "version", "client", "body", "id"}  a request of these JSON values
 *   {"op": "describe", "group"}                     ConsumerGroupDescribe
 *   {"op": "fail", "error"}                         the next records cannot be appended
 *   {"op": "restart"}                               another coordinator reads the records
 *   {"op": "end", "producer", "commit"}             the end of a transaction
 *   {"op": "assign", ...}, {"op": "hash", ...}, {"op": "regex", "pattern", "names"}   one class alone
 * </pre>
 *
 * An answer has "records" (pairs of hexadecimal key and value), "completed" (answers of JoinGroup and SyncGroup by id)
 * and "response" or "error".
 */
public final class GroupScripts {
    private static final HexFormat HEX = HexFormat.of();
    private final ScriptTime time = new ScriptTime();
    private final GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
    private ScriptTopics image = ScriptTopics.NONE;
    private ScriptTimer timers;
    private Executor executor;
    private GroupCoordinatorShard shard;
    private long offset;
    private long epoch; // of the snapshot that a failure goes back to
    private ArrayNode records;
    private ArrayNode completed;
    private Errors failure;
    private SnapshotRegistry registry;
    private JsonNode config;
    private final List<Logged> log = new ArrayList<>();

    private GroupScripts() {
        time.set(1_700_000_000_000L);
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        GroupScripts scripts = new GroupScripts();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(scripts.answer(Json.MAPPER.readTree(line)));
            out.flush();
        }
        System.exit(0);
    }

    private ObjectNode answer(JsonNode asked) throws Exception {
        ObjectNode found = Json.MAPPER.createObjectNode();
        records = found.putArray("records");
        completed = found.putArray("completed");
        switch (asked.get("op").asText()) {
            case "new" -> begin(asked.get("config"));
            case "topics" -> topics(asked);
            case "ids" -> {
                ObjectNode ids = found.putObject("ids");
                shard.describeGroups(new ScriptClient("", 5), List.of(asked.get("group").asText()), Long.MAX_VALUE)
                    .forEach(group -> group.members().stream().filter(member -> member.groupInstanceId() != null)
                        .forEach(member -> ids.put(member.groupInstanceId(), member.memberId())));
            }
            case "joining" -> {
                ArrayNode ids = found.putArray("ids");
                shard.describeGroups(new ScriptClient("", 5), List.of(asked.get("group").asText()), Long.MAX_VALUE)
                    .forEach(group -> group.members().forEach(member -> ids.add(member.memberId())));
            }
            case "now" -> found.put("now", time.milliseconds());
            case "advance" -> advance(asked.get("ms").asLong());
            case "request" -> request(asked, found);
            case "describe" -> found.set("response", ConsumerGroupDescribeResponseDataJsonConverter.write(
                new ConsumerGroupDescribeResponseData().setGroups(
                    shard.consumerGroupDescribe(List.of(asked.get("group").asText()), Long.MAX_VALUE)), (short) 1));
            case "fail" -> failure = Errors.valueOf(asked.get("error").asText());
            case "restart" -> restart();
            case "end" -> end(asked);
            case "assign" -> assign(asked, found);
            case "hash" -> hash(found);
            case "regex" -> regex(asked, found);
            default -> throw new IllegalArgumentException(asked.toString());
        }
        return found;
    }

    private void begin(JsonNode given) {
        config = given;
        log.clear();
        failure = null;
        make();
        shard.onLoaded(image);
    }

    private void restart() {
        make();
        for (Logged each : log) {
            if (each.record == null) {
                shard.replayEndTransactionMarker(each.producer, (short) 0, each.result);
            } else {
                shard.replay(each.offset, each.producer, (short) 0, each.record);
            }
            offset++;
        }
        shard.onLoaded(image);
    }

    private void make() {
        Map<String, Object> props = new HashMap<>();
        config.fieldNames().forEachRemaining(name -> props.put(name, config.get(name).asText()));
        GroupCoordinatorConfig groupConfig = new GroupCoordinatorConfig(new AbstractConfig(GroupCoordinatorConfig.CONFIG_DEF, props, false));
        ConfigDef both = new ConfigDef(GroupCoordinatorConfig.CONFIG_DEF);
        ShareGroupConfig.CONFIG_DEF.configKeys().forEach((name, key) -> {
            if (!both.configKeys().containsKey(name)) {
                both.define(key);
            }
        });
        ShareGroupConfig share = new ShareGroupConfig(new AbstractConfig(both, Map.of(), false));
        registry = new SnapshotRegistry(new org.apache.kafka.common.utils.internals.LogContext());
        timers = new ScriptTimer(time);
        executor = new Executor();
        offset = 0;
        shard = new GroupCoordinatorShard.Builder(groupConfig, new GroupConfigManager(groupConfig, share))
            .withAuthorizerPlugin(Optional.empty())
            .withSnapshotRegistry(registry)
            .withTime(time)
            .withTimer(timers)
            .withExecutor(executor)
            .withCoordinatorMetrics(new GroupCoordinatorMetrics(new com.yammer.metrics.core.MetricsRegistry(), new Metrics()))
            .withTopicPartition(new TopicPartition("__consumer_offsets", 0))
            .build();
    }

    private void topics(JsonNode asked) {
        ScriptTopics old = image;
        image = ScriptTopics.of(asked.get("topics"), asked.get("version").asLong());
        if (shard != null) {
            shard.onMetadataUpdate(image.since(old), image);
        }
    }

    private void advance(long ms) {
        time.advance(ms);
        executor.run();
        for (var due = timers.next(); due.isPresent(); due = timers.next()) {
            snapshot();
            try {
                run(due.get().generateRecords());
            } catch (RuntimeException error) {
                if (failure != null) {
                    throw error; // not the one that was asked for
                }
            }
        }
    }

    private <T> T run(CoordinatorResult<T, CoordinatorRecord> result) {
        return run(result, -1L);
    }

    private <T> T run(CoordinatorResult<T, CoordinatorRecord> result, long producer) {
        if (failure != null && !result.records().isEmpty()) {
            Errors error = failure;
            failure = null;
            registry.revertToSnapshot(epoch); // as the runtime does
            if (result.appendFuture() != null) {
                result.appendFuture().completeExceptionally(error.exception());
            }
            throw error.exception();
        }
        for (CoordinatorRecord record : result.records()) {
            ArrayNode pair = records.addArray();
            byte[] value = serde.serializeValue(record);
            pair.add(HEX.formatHex(serde.serializeKey(record)));
            pair.add(value == null ? null : HEX.formatHex(value));
            if (result.replayRecords()) {
                shard.replay(offset, producer, (short) (producer < 0 ? -1 : 0), record);
            }
            log.add(new Logged(offset, producer, record, null));
            offset++;
        }
        if (result.appendFuture() != null) {
            result.appendFuture().complete(null);
        }
        return result.response();
    }

    private void snapshot() {
        epoch++;
        registry.deleteSnapshotsUpTo(epoch);
        registry.idempotentCreateSnapshot(epoch);
    }

    private void end(JsonNode asked) {
        TransactionResult result = asked.get("commit").asBoolean() ? TransactionResult.COMMIT : TransactionResult.ABORT;
        long producer = asked.get("producer").asLong();
        shard.replayEndTransactionMarker(producer, (short) 0, result);
        log.add(new Logged(offset, producer, null, result));
        offset++;
    }

    private record Logged(long offset, long producer, CoordinatorRecord record, TransactionResult result) {
    }

    private void request(JsonNode asked, ObjectNode found) throws Exception {
        short version = (short) asked.get("version").asInt();
        JsonNode body = asked.get("body");
        ScriptClient context = new ScriptClient(asked.get("client").asText(), version);
        int id = asked.get("id").asInt();
        snapshot();
        try {
            JsonNode response = switch (asked.get("api").asText()) {
                case "ConsumerGroupHeartbeat" -> ConsumerGroupHeartbeatResponseDataJsonConverter.write(run(
                    shard.consumerGroupHeartbeat(context, ConsumerGroupHeartbeatRequestDataJsonConverter.read(body, version))), version);
                case "Heartbeat" -> HeartbeatResponseDataJsonConverter.write(run(
                    shard.classicGroupHeartbeat(context, HeartbeatRequestDataJsonConverter.read(body, version))), version);
                case "LeaveGroup" -> LeaveGroupResponseDataJsonConverter.write(run(
                    shard.classicGroupLeave(context, LeaveGroupRequestDataJsonConverter.read(body, version))), version);
                case "OffsetCommit" -> OffsetCommitResponseDataJsonConverter.write(run(
                    shard.commitOffset(context, OffsetCommitRequestDataJsonConverter.read(body, version))), version);
                case "TxnOffsetCommit" -> {
                    TxnOffsetCommitRequestData data = TxnOffsetCommitRequestDataJsonConverter.read(body, version);
                    yield TxnOffsetCommitResponseDataJsonConverter.write(
                        run(shard.commitTransactionalOffset(context, data), data.producerId()), version);
                }
                case "OffsetDelete" -> OffsetDeleteResponseDataJsonConverter.write(run(
                    shard.deleteOffsets(context, OffsetDeleteRequestDataJsonConverter.read(body, version))), version);
                case "OffsetFetch" -> {
                    OffsetFetchRequestData data = OffsetFetchRequestDataJsonConverter.read(body, version);
                    OffsetFetchResponseData answer = new OffsetFetchResponseData();
                    for (OffsetFetchRequestData.OffsetFetchRequestGroup group : data.groups()) {
                        answer.groups().add(shard.fetchOffsets(group, data.requireStable() ? Long.MAX_VALUE : epoch));
                    }
                    yield OffsetFetchResponseDataJsonConverter.write(answer, version);
                }
                case "DeleteGroups" -> DeleteGroupsResponseDataJsonConverter.write(new DeleteGroupsResponseData().setResults(run(
                    shard.deleteGroups(context, DeleteGroupsRequestDataJsonConverter.read(body, version).groupsNames()))), version);
                case "DescribeGroups" -> DescribeGroupsResponseDataJsonConverter.write(new DescribeGroupsResponseData().setGroups(
                    shard.describeGroups(context, DescribeGroupsRequestDataJsonConverter.read(body, version).groups(), Long.MAX_VALUE)), version);
                case "ListGroups" -> {
                    ListGroupsRequestData data = ListGroupsRequestDataJsonConverter.read(body, version);
                    yield ListGroupsResponseDataJsonConverter.write(new ListGroupsResponseData().setGroups(
                        shard.listGroups(data.statesFilter(), data.typesFilter(), Long.MAX_VALUE)), version);
                }
                case "JoinGroup" -> {
                    CompletableFuture<JoinGroupResponseData> future = new CompletableFuture<>();
                    future.thenAccept(done -> complete(id, JoinGroupResponseDataJsonConverter.write(done, version)));
                    run(shard.classicGroupJoin(context, JoinGroupRequestDataJsonConverter.read(body, version), future, true));
                    yield null;
                }
                case "SyncGroup" -> {
                    CompletableFuture<SyncGroupResponseData> future = new CompletableFuture<>();
                    future.thenAccept(done -> complete(id, SyncGroupResponseDataJsonConverter.write(done, version)));
                    run(shard.classicGroupSync(context, SyncGroupRequestDataJsonConverter.read(body, version), future));
                    yield null;
                }
                default -> throw new IllegalArgumentException(asked.toString());
            };
            found.set("response", response);
        } catch (RuntimeException error) {
            found.put("error", Errors.forException(error).name());
            found.put("message", error.getMessage());
        }
    }

    private void complete(int id, JsonNode response) {
        ObjectNode done = completed.addObject();
        done.put("id", id);
        done.set("response", response);
    }

    // --- single classes ------------------------------------------------------------------------------------------

    private void assign(JsonNode asked, ObjectNode found) {
        ConsumerGroupPartitionAssignor assignor =
            asked.get("assignor").asText().equals("range") ? new RangeAssignor() : new UniformAssignor();
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (JsonNode member : asked.get("members")) {
            Set<String> names = new HashSet<>(strings(member.get("topics")));
            Map<Uuid, Set<Integer>> target = new HashMap<>();
            for (JsonNode topic : member.get("target")) {
                Uuid id = Uuid.fromString(topic.get(0).asText());
                target.put(id, new HashSet<>(numbers(topic.get(1))));
                for (int each : target.get(id)) {
                    owners.computeIfAbsent(id, key -> new HashMap<>()).put(each, member.get("id").asText());
                }
            }
            members.put(member.get("id").asText(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.ofNullable(member.get("instance").textValue()),
                new TopicIds(names, image), new Assignment(target)));
        }
        Map<String, ? extends org.apache.kafka.coordinator.group.api.assignor.MemberAssignment> result = assignor.assign(
            new GroupSpecImpl(members, SubscriptionType.valueOf(asked.get("type").asText()), owners),
            new SubscribedTopicDescriberImpl(image)).members();
        ArrayNode rows = found.putArray("response");
        for (String member : members.keySet()) {
            ArrayNode row = rows.addArray().add(member);
            ArrayNode topics = row.addArray();
            if (result.get(member) != null) {
                result.get(member).partitions().forEach((id, partitions) -> {
                    ArrayNode topic = topics.addArray().add(id.toString());
                    ArrayNode list = topic.addArray();
                    partitions.forEach(list::add);
                });
            }
        }
    }

    private void hash(ObjectNode found) {
        ObjectNode hashes = found.putObject("response");
        Map<String, Long> all = new HashMap<>();
        for (String name : image.topicNames()) {
            all.put(name, Utils.computeTopicHash(name, image));
            hashes.put(name, all.get(name));
        }
        found.put("group", Utils.computeGroupHash(all));
    }

    private static void regex(JsonNode asked, ObjectNode found) {
        try {
            Pattern pattern = Pattern.compile(asked.get("pattern").asText());
            ArrayNode matches = found.putArray("response");
            for (String name : strings(asked.get("names"))) {
                matches.add(pattern.matcher(name).matches());
            }
        } catch (PatternSyntaxException error) {
            found.put("error", error.getDescription());
        }
    }

    private static List<String> strings(JsonNode given) {
        List<String> found = new ArrayList<>();
        given.forEach(each -> found.add(each.asText()));
        return found;
    }

    private static List<Integer> numbers(JsonNode given) {
        List<Integer> found = new ArrayList<>();
        given.forEach(each -> found.add(each.asInt()));
        return found;
    }

    // --- what surrounds a coordinator ----------------------------------------------------------------------------

    private final class Executor implements CoordinatorExecutor<CoordinatorRecord> {
        private final Deque<Runnable> tasks = new ArrayDeque<>();
        private final Set<String> keys = new HashSet<>();

        @Override
        public <R> boolean schedule(String key, TaskRunnable<R> task, TaskOperation<CoordinatorRecord, R> operation) {
            if (!keys.add(key)) {
                return false;
            }
            tasks.add(() -> {
                keys.remove(key);
                R result = null;
                Throwable error = null;
                try {
                    result = task.run();
                } catch (Throwable thrown) {
                    error = thrown;
                }
                GroupScripts.this.run(operation.onComplete(result, error));
            });
            return true;
        }

        @Override
        public boolean isScheduled(String key) {
            return keys.contains(key);
        }

        @Override
        public void cancel(String key) {
            keys.remove(key);
        }

        void run() {
            while (!tasks.isEmpty()) {
                tasks.poll().run();
            }
        }
    }
}
