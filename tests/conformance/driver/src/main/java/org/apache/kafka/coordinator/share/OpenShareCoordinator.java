package org.apache.kafka.coordinator.share;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.kafkalog.conformance.ScriptTime;
import io.kafkalog.conformance.ScriptTopics;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.DeleteShareGroupStateRequestData;
import org.apache.kafka.common.message.InitializeShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateRequestData;
import org.apache.kafka.common.message.ReadShareGroupStateSummaryRequestData;
import org.apache.kafka.common.message.WriteShareGroupStateRequestData;
import org.apache.kafka.common.utils.internals.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorResult;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.server.share.persister.PersisterStateBatch;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Kafka's ShareCoordinatorShard, by lines of JSON: {@code shard} begins one with a topic of four partitions, the other
 * operations are its methods. Answers have the records in hexadecimal; each record is replayed. {@code combine} runs
 * PersisterStateBatchCombiner.
 */
public final class OpenShareCoordinator {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    private final ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
    private final ScriptTime clock = new ScriptTime();
    private ShareCoordinatorShard shard;
    private long offset;

    private OpenShareCoordinator() {
    }

    public static void main(String[] args) throws IOException {
        OpenShareCoordinator coordinator = new OpenShareCoordinator();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(coordinator.run(MAPPER.readTree(line)));
        }
    }

    private ObjectNode run(JsonNode op) {
        ObjectNode out = MAPPER.createObjectNode();
        switch (op.get("op").asText()) {
            case "shard" -> begin(op);
            case "time" -> clock.advance(op.get("ms").asLong());
            case "initialize_state" -> apply(shard.initializeState(new InitializeShareGroupStateRequestData()
                .setGroupId(group(op)).setTopics(List.of(new InitializeShareGroupStateRequestData.InitializeStateData()
                    .setTopicId(topic(op)).setPartitions(List.of(
                        new InitializeShareGroupStateRequestData.PartitionData().setPartition(partition(op))
                            .setStateEpoch(number(op, "stateEpoch")).setStartOffset(op.get("startOffset").asLong())
                    ))))), out);
            case "write_state" -> apply(shard.writeState(new WriteShareGroupStateRequestData()
                .setGroupId(group(op)).setTopics(List.of(new WriteShareGroupStateRequestData.WriteStateData()
                    .setTopicId(topic(op)).setPartitions(List.of(
                        new WriteShareGroupStateRequestData.PartitionData().setPartition(partition(op))
                            .setStateEpoch(number(op, "stateEpoch")).setLeaderEpoch(number(op, "leaderEpoch"))
                            .setStartOffset(op.get("startOffset").asLong())
                            .setDeliveryCompleteCount(number(op, "deliveryCompleteCount"))
                            .setStateBatches(batches(op))))))), out);
            case "read_state" -> apply(shard.readStateAndMaybeUpdateLeaderEpoch(new ReadShareGroupStateRequestData()
                .setGroupId(group(op)).setTopics(List.of(new ReadShareGroupStateRequestData.ReadStateData()
                    .setTopicId(topic(op)).setPartitions(List.of(
                        new ReadShareGroupStateRequestData.PartitionData().setPartition(partition(op))
                            .setLeaderEpoch(number(op, "leaderEpoch"))))))), out);
            case "read_state_summary" -> apply(shard.readStateSummary(new ReadShareGroupStateSummaryRequestData()
                .setGroupId(group(op)).setTopics(List.of(new ReadShareGroupStateSummaryRequestData.ReadStateSummaryData()
                    .setTopicId(topic(op)).setPartitions(List.of(
                        new ReadShareGroupStateSummaryRequestData.PartitionData().setPartition(partition(op))
                            .setLeaderEpoch(number(op, "leaderEpoch"))))))), out);
            case "delete_state" -> apply(shard.deleteState(new DeleteShareGroupStateRequestData()
                .setGroupId(group(op)).setTopics(List.of(new DeleteShareGroupStateRequestData.DeleteStateData()
                    .setTopicId(topic(op)).setPartitions(List.of(
                        new DeleteShareGroupStateRequestData.PartitionData().setPartition(partition(op))))))), out);
            case "snapshot" -> apply(shard.snapshotColdPartitions(), out);
            case "topics deleted" -> apply(shard.maybeCleanupShareState(Set.of(topic(op))), out);
            case "redundant" -> out.put("answer", shard.lastRedundantOffset().response().orElse(-1L));
            case "combine" -> combine(op, out);
            default -> throw new IllegalArgumentException(op.toString());
        }
        return out;
    }

    private static String group(JsonNode op) {
        return op.get("group").asText();
    }

    private static Uuid topic(JsonNode op) {
        return Uuid.fromString(op.get("topicId").asText());
    }

    private static int partition(JsonNode op) {
        return number(op, "partition");
    }

    private static int number(JsonNode op, String name) {
        return op.get(name).asInt();
    }

    private static List<WriteShareGroupStateRequestData.StateBatch> batches(JsonNode op) {
        List<WriteShareGroupStateRequestData.StateBatch> found = new ArrayList<>();
        for (JsonNode each : op.get("batches")) {
            found.add(new WriteShareGroupStateRequestData.StateBatch()
                .setFirstOffset(each.get(0).asLong()).setLastOffset(each.get(1).asLong())
                .setDeliveryState((byte) each.get(2).asInt()).setDeliveryCount((short) each.get(3).asInt()));
        }
        return found;
    }

    private static void combine(JsonNode op, ObjectNode out) {
        ArrayNode list = out.putArray("answer");
        new PersisterStateBatchCombiner(states(op.get("soFar")), states(op.get("new")), op.get("start").asLong())
            .combineStateBatches().forEach(each -> list.addArray().add(each.firstOffset()).add(each.lastOffset())
                .add(each.deliveryState()).add(each.deliveryCount()));
    }

    private static List<PersisterStateBatch> states(JsonNode node) {
        List<PersisterStateBatch> found = new ArrayList<>();
        for (JsonNode each : node) {
            found.add(new PersisterStateBatch(each.get(0).asLong(), each.get(1).asLong(),
                (byte) each.get(2).asInt(), (short) each.get(3).asInt()));
        }
        return found;
    }

    private void begin(JsonNode op) {
        LogContext context = new LogContext();
        SnapshotRegistry registry = new SnapshotRegistry(context);
        Map<String, String> props = new HashMap<>();
        props.put("share.coordinator.snapshot.update.records.per.snapshot", op.get("updates").asText());
        clock.set(op.get("ms").asLong());
        shard = new ShareCoordinatorShard.Builder(
                new ShareCoordinatorConfig(new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, props, false)))
            .withLogContext(context).withSnapshotRegistry(registry).withTime(clock)
            .withCoordinatorMetrics(new ShareCoordinatorMetrics())
            .withTopicPartition(new TopicPartition("__share_group_state", 0)).build();
        shard.onLoaded(image(topic(op)));
        offset = 0;
    }

    private static CoordinatorMetadataImage image(Uuid id) {
        return new ScriptTopics(Map.of("outbox", new ScriptTopics.Topic("outbox", id, 4)), 1);
    }

    private <T> void apply(CoordinatorResult<T, CoordinatorRecord> result, ObjectNode out) {
        ArrayNode records = out.putArray("records");
        for (CoordinatorRecord record : result.records()) {
            shard.replay(offset++, -1L, (short) -1, record);
            byte[] value = serde.serializeValue(record);
            records.addArray().add(HEX.formatHex(serde.serializeKey(record)))
                .add(value == null ? null : HEX.formatHex(value));
        }
        out.put("answer", String.valueOf(result.response()));
    }
}
