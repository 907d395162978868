package org.apache.kafka.coordinator.group;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.kafkalog.conformance.ScriptClient;
import io.kafkalog.conformance.ScriptTime;
import io.kafkalog.conformance.ScriptTimer;
import io.kafkalog.conformance.ScriptTopics;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.AlterShareGroupOffsetsRequestData;
import org.apache.kafka.common.message.DeleteShareGroupOffsetsRequestData;
import org.apache.kafka.common.message.ShareGroupHeartbeatRequestData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorExecutor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.SubscribedTopicDescriberImpl;
import org.apache.kafka.coordinator.group.modern.TopicIds;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.server.share.persister.DeleteShareGroupStateParameters;
import org.apache.kafka.server.share.persister.InitializeShareGroupStateParameters;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Kafka's share groups, by lines of JSON: {@code assign} runs SimpleAssignor; {@code groups} begins a
 * GroupMetadataManager, to which requests, topics and time come. Answers have the records in hexadecimal.
 */
public final class OpenShareGroups {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private final GroupCoordinatorRecordSerde serde = new GroupCoordinatorRecordSerde();
    private final ScriptTime clock = new ScriptTime();
    private ScriptTimer timer;
    private ScriptTopics topics = ScriptTopics.NONE;
    private GroupMetadataManager manager;
    private GroupCoordinatorShard shard;
    private ArrayNode records;

    private OpenShareGroups() {
    }

    public static void main(String[] args) throws IOException {
        OpenShareGroups groups = new OpenShareGroups();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(groups.run(MAPPER.readTree(line)));
        }
    }

    private ObjectNode run(JsonNode op) {
        ObjectNode out = MAPPER.createObjectNode();
        records = out.putArray("records");
        try {
            switch (op.get("op").asText()) {
                case "topics" -> setTopics(op.get("topics"));
                case "assign" -> out.set("assignment", assign(op));
                case "groups" -> begin(op);
                case "time" -> advance(op.get("ms").asLong());
                case "heartbeat" -> heartbeat(op, out);
                case "initialized" -> replay(manager.initializeShareGroupState(
                    group(op), assignment(op.get("partitions"))).records());
                case "uninitialized" -> replay(manager.uninitializeShareGroupState(
                    group(op), assignment(op.get("partitions"))).records());
                case "alter" -> alter(op, out);
                case "delete offsets" -> deleteOffsets(op, out);
                case "delete group" -> deleteGroup(op, out);
                case "topics deleted" -> replay(manager.maybeCleanupShareGroupState(uuids(op.get("ids"))).records());
                case "describe" -> out.put("answer",
                    manager.shareGroupDescribe(List.of(group(op)), Long.MAX_VALUE).get(0).toString());
                default -> throw new IllegalArgumentException(op.toString());
            }
        } catch (RuntimeException error) {
            out.put("error", Errors.forException(error).name());
            out.put("message", error.getMessage());
            if (Errors.forException(error) == Errors.UNKNOWN_SERVER_ERROR) {
                error.printStackTrace();
            }
        }
        return out;
    }

    // --- the assignor

    private ObjectNode assign(JsonNode op) {
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        op.get("members").fields().forEachRemaining(entry -> members.put(entry.getKey(), member(entry.getValue())));
        Map<Uuid, Set<Integer>> assignable = assignment(op.get("assignable"));
        SubscriptionType type = SubscriptionType.valueOf(op.get("type").asText());
        ObjectNode node = MAPPER.createObjectNode();
        new SimpleAssignor().assign(
            new GroupSpecImpl(members, type, Map.of(), Optional.of(assignable)),
            new SubscribedTopicDescriberImpl(topics)
        ).members().forEach((name, each) -> {
            ArrayNode list = node.putArray(name);
            each.partitions().forEach((id, partitions) -> {
                ArrayNode pair = list.addArray().add(id.toString());
                ArrayNode numbers = pair.addArray();
                partitions.forEach(numbers::add);
            });
        });
        return node;
    }

    private MemberSubscriptionAndAssignmentImpl member(JsonNode node) {
        return new MemberSubscriptionAndAssignmentImpl(Optional.empty(), Optional.empty(),
            new TopicIds(new HashSet<>(names(node.get("topics"))), topics),
            new Assignment(assignment(node.get("old"))));
    }

    private static List<String> names(JsonNode node) {
        List<String> names = new ArrayList<>();
        node.forEach(each -> names.add(each.asText()));
        return names;
    }

    private static Map<Uuid, Set<Integer>> assignment(JsonNode pairs) {
        Map<Uuid, Set<Integer>> found = new HashMap<>();
        for (JsonNode pair : pairs) {
            List<Integer> numbers = new ArrayList<>();
            pair.get(1).forEach(each -> numbers.add(each.asInt()));
            found.put(Uuid.fromString(pair.get(0).asText()), new HashSet<>(numbers));
        }
        return found;
    }

    // --- groups

    private void begin(JsonNode op) {
        LogContext context = new LogContext();
        SnapshotRegistry registry = new SnapshotRegistry(context);
        Map<String, Object> props = new HashMap<>();
        op.get("settings").fields().forEachRemaining(entry -> props.put(entry.getKey(), entry.getValue().asText()));
        GroupCoordinatorConfig config = GroupCoordinatorConfig.fromProps(props);
        GroupCoordinatorMetrics metrics = new GroupCoordinatorMetrics(
            new com.yammer.metrics.core.MetricsRegistry(), new Metrics());
        var metricsShard = metrics.newMetricsShard(registry, new TopicPartition("__consumer_offsets", 0));
        clock.set(op.get("ms").asLong());
        timer = new ScriptTimer(clock);
        topics = ScriptTopics.NONE;
        manager = new GroupMetadataManager.Builder()
            .withLogContext(context).withSnapshotRegistry(registry).withTime(clock).withTimer(timer)
            .withExecutor(proxy(CoordinatorExecutor.class, Map.of())).withConfig(config)
            .withGroupConfigManager(new GroupConfigManager(config, ShareGroupConfig.fromProps(props)))
            .withMetadataImage(topics).withGroupCoordinatorMetricsShard(metricsShard)
            .withShareGroupAssignor(new SimpleAssignor()).build();
        shard = new GroupCoordinatorShard(context, manager, null, clock, timer, config, metrics, metricsShard);
    }

    private void advance(long ms) {
        clock.advance(ms);
        for (var due = timer.next(); due.isPresent(); due = timer.next()) {
            replay(due.get().generateRecords().records());
        }
    }

    private static String group(JsonNode op) {
        return op.get("group").asText();
    }

    private static Set<Uuid> uuids(JsonNode node) {
        Set<Uuid> found = new HashSet<>();
        node.forEach(each -> found.add(Uuid.fromString(each.asText())));
        return found;
    }

    private void heartbeat(JsonNode op, ObjectNode out) {
        ShareGroupHeartbeatRequestData request = new ShareGroupHeartbeatRequestData()
            .setGroupId(group(op)).setMemberId(op.get("member").asText()).setMemberEpoch(op.get("epoch").asInt())
            .setRackId(op.get("rack").isNull() ? null : op.get("rack").asText())
            .setSubscribedTopicNames(op.get("topics").isNull() ? null : names(op.get("topics")));
        ScriptClient client = new ScriptClient("client", 1);
        var result = manager.shareGroupHeartbeat(client, request);
        replay(result.records());
        out.put("answer", result.response().getKey().toString());
        result.response().getValue().ifPresent(each -> out.set("initialize", initialize(each)));
    }

    private static ArrayNode initialize(InitializeShareGroupStateParameters parameters) {
        ArrayNode found = MAPPER.createArrayNode();
        parameters.groupTopicPartitionData().topicsData().forEach(topic -> topic.partitions().forEach(each ->
            found.addArray().add(topic.topicId().toString()).add(each.partition()).add(each.stateEpoch())
                .add(each.startOffset())));
        return found;
    }

    private static ArrayNode deletions(DeleteShareGroupStateParameters parameters) {
        ArrayNode found = MAPPER.createArrayNode();
        parameters.groupTopicPartitionData().topicsData().forEach(topic -> topic.partitions().forEach(each ->
            found.addArray().add(topic.topicId().toString()).add(each.partition())));
        return found;
    }

    private void alter(JsonNode op, ObjectNode out) {
        AlterShareGroupOffsetsRequestData request = new AlterShareGroupOffsetsRequestData().setGroupId(group(op));
        op.get("topics").fields().forEachRemaining(entry -> {
            var topic = new AlterShareGroupOffsetsRequestData.AlterShareGroupOffsetsRequestTopic()
                .setTopicName(entry.getKey());
            for (JsonNode pair : entry.getValue()) {
                topic.partitions().add(new AlterShareGroupOffsetsRequestData.AlterShareGroupOffsetsRequestPartition()
                    .setPartitionIndex(pair.get(0).asInt()).setStartOffset(pair.get(1).asLong()));
            }
            request.topics().add(topic);
        });
        var result = shard.alterShareGroupOffsets(group(op), request);
        replay(result.records());
        out.put("answer", result.response().getKey().toString());
        out.set("initialize", initialize(result.response().getValue()));
    }

    private void deleteOffsets(JsonNode op, ObjectNode out) {
        DeleteShareGroupOffsetsRequestData request = new DeleteShareGroupOffsetsRequestData().setGroupId(group(op));
        op.get("topics").forEach(each -> request.topics().add(
            new DeleteShareGroupOffsetsRequestData.DeleteShareGroupOffsetsRequestTopic().setTopicName(each.asText())));
        var result = shard.initiateDeleteShareGroupOffsets(group(op), request);
        replay(result.records());
        var holder = result.response();
        out.put("code", holder.topLevelErrorCode());
        if (holder.topLevelErrorCode() != 0 || holder.deleteStateRequestParameters() == null) {
            out.put("answer", String.valueOf(holder.errorTopicResponseList()));
            return;
        }
        out.set("delete", deletions(holder.deleteStateRequestParameters()));
        Map<Uuid, String> done = new HashMap<>();
        holder.deleteStateRequestParameters().groupTopicPartitionData().topicsData().forEach(topic -> done.put(
            topic.topicId(), topics.topicMetadata(topic.topicId()).map(each -> each.name()).orElse(null)));
        var completed = shard.completeDeleteShareGroupOffsets(group(op), done, holder.errorTopicResponseList());
        replay(completed.records());
        out.put("answer", completed.response().responses().toString());
    }

    private void deleteGroup(JsonNode op, ObjectNode out) {
        var result = shard.sharePartitionDeleteRequests(List.of(group(op)));
        replay(result.records());
        boolean isRefused = false;
        for (var pair : result.response().values()) {
            isRefused = pair.getValue() != Errors.NONE;
            out.put("code", pair.getValue().name());
            if (!isRefused) {
                out.set("delete", deletions(pair.getKey()));
            }
        }
        if (!isRefused) {
            manager.validateDeleteGroup(group(op));
            List<CoordinatorRecord> tombstones = new ArrayList<>();
            manager.maybeDeleteGroup(group(op), tombstones);
            replay(tombstones);
        }
    }

    private void replay(List<CoordinatorRecord> each) {
        for (CoordinatorRecord record : each) {
            shard.replay(0, -1L, (short) -1, record);
            byte[] value = serde.serializeValue(record);
            records.addArray().add(HEX.formatHex(serde.serializeKey(record)))
                .add(value == null ? null : HEX.formatHex(value));
        }
    }

    private void setTopics(JsonNode node) {
        ScriptTopics before = topics;
        topics = ScriptTopics.of(node, before.version() + 1);
        if (manager != null) {
            manager.onMetadataUpdate(topics.since(before), topics);
        }
    }

    // --- what Kafka gives them

    /** An object of an interface whose methods return these values. */
    private static <T> T proxy(Class<T> type, Map<String, Object> values) {
        return type.cast(Proxy.newProxyInstance(OpenShareGroups.class.getClassLoader(), new Class<?>[] {type},
            (self, method, arguments) -> values.get(method.getName())));
    }
}
