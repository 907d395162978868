package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.OpenRemoteLogMetadataCache;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/**
 * Kafka's metadata of remote segments: scripts as JSON lines in, their answers as JSON lines out.
 *
 * <p>A script is {@code {"ops": [...]}} and begins with an empty cache; its answer is {@code {"answers": [...]}}, one to
 * each op. An op that throws is answered by {@code {"error" (simple name), "message"}}, and the script goes on.
 *
 * <pre>
 *   {"op": "add" | "update" | "take", "metadata"}     {}
 *   {"op": "initialized"}                             {}
 *   {"op": "find" | "next_txn", "epoch", "offset"}    {"segments": none or one}
 *   {"op": "highest", "epoch"}                        {"offset" (or null)}
 *   {"op": "list", "epoch"}, {"op": "list_all"}       {"segments": [{"id", "startOffset", "text"}, ...]}
 *   {"op": "serialize", "metadata"}                   {"bytes" (hex), "text"}
 *   {"op": "deserialize", "bytes" (hex)}              {"text", "bytes" (hex, serialized again)}
 *   {"op": "partition", "topicId", "topic", "partition", "count"}    {"partition"}
 * </pre>
 *
 * Metadata has a "kind" ("segment", "update", "partition_delete" or "snapshot") and fields that have Kafka's names.
 */
public final class RemoteCacheMain {
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();

    private final OpenRemoteLogMetadataCache cache = new OpenRemoteLogMetadataCache();

    private RemoteCacheMain() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            RemoteCacheMain script = new RemoteCacheMain();
            ArrayNode answers = Json.array();
            for (JsonNode op : Json.MAPPER.readTree(line).get("ops")) {
                answers.add(script.answer(op));
            }
            out.println(Json.object().set("answers", answers));
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
        System.exit(0);
    }

    private ObjectNode answer(JsonNode op) {
        try {
            return run(op);
        } catch (Exception e) {  // a ScriptError is none, and ends the run
            return Json.object().put("error", e.getClass().getSimpleName()).put("message", e.getMessage());
        }
    }

    private ObjectNode run(JsonNode op) throws Exception {
        ObjectNode answer = Json.object();
        switch (op.get("op").asText()) {
            case "add" -> cache.addCopyInProgressSegment((RemoteLogSegmentMetadata) metadata(op.get("metadata")));
            case "update" ->
                cache.updateRemoteLogSegmentMetadata((RemoteLogSegmentMetadataUpdate) metadata(op.get("metadata")));
            case "take" -> cache.take((RemoteLogSegmentMetadata) metadata(op.get("metadata")));
            case "initialized" -> cache.markInitialized();
            case "find" -> answer.set("segments", shown(cache.remoteLogSegmentMetadata(epoch(op), offset(op))));
            case "next_txn" -> answer.set("segments", shown(cache.nextSegmentWithTxnIndex(epoch(op), offset(op))));
            case "highest" -> Json.put(answer, "offset", cache.highestOffsetForEpoch(epoch(op)));
            case "list" -> answer.set("segments", shown(cache.listRemoteLogSegments(epoch(op))));
            case "list_all" -> answer.set("segments", shown(cache.listAllRemoteLogSegments()));
            case "serialize" -> {
                RemoteLogMetadata metadata = metadata(op.get("metadata"));
                answer.put("bytes", Json.hex(SERDE.serialize(metadata))).put("text", metadata.toString());
            }
            case "deserialize" -> {
                RemoteLogMetadata metadata = SERDE.deserialize(Json.unhex(op.get("bytes").asText()));
                answer.put("text", metadata.toString()).put("bytes", Json.hex(SERDE.serialize(metadata)));
            }
            case "partition" -> answer.put("partition",
                new RemoteLogMetadataTopicPartitioner(op.get("count").asInt()).metadataPartition(partition(op)));
            default -> throw new ScriptError("no such op: " + op);
        }
        return answer;
    }

    private static int epoch(JsonNode op) {
        return op.get("epoch").asInt();
    }

    private static long offset(JsonNode op) {
        return op.get("offset").asLong();
    }

    private static ArrayNode shown(Optional<RemoteLogSegmentMetadata> found) {
        return shown(found.stream().iterator());
    }

    private static ArrayNode shown(Iterator<RemoteLogSegmentMetadata> found) {
        ArrayNode segments = Json.array();
        found.forEachRemaining(metadata -> segments.add(Json.object()
            .put("id", metadata.remoteLogSegmentId().id().toString())
            .put("startOffset", metadata.startOffset())
            .put("text", metadata.toString())));
        return segments;
    }

    // --- values of JSON ---------------------------------------------------------------------------------

    private static RemoteLogMetadata metadata(JsonNode of) {
        return switch (of.get("kind").asText()) {
            case "segment" -> new RemoteLogSegmentMetadata(segmentId(of), of.get("startOffset").asLong(),
                of.get("endOffset").asLong(), of.get("maxTimestampMs").asLong(), of.get("brokerId").asInt(),
                of.get("eventTimestampMs").asLong(), of.get("segmentSizeInBytes").asInt(), custom(of),
                RemoteLogSegmentState.valueOf(of.get("state").asText()), epochs(of),
                of.get("txnIdxEmpty").asBoolean());
            case "update" -> new RemoteLogSegmentMetadataUpdate(segmentId(of), of.get("eventTimestampMs").asLong(),
                custom(of), RemoteLogSegmentState.valueOf(of.get("state").asText()), of.get("brokerId").asInt());
            case "partition_delete" -> new RemotePartitionDeleteMetadata(partition(of),
                RemotePartitionDeleteState.valueOf(of.get("state").asText()), of.get("eventTimestampMs").asLong(),
                of.get("brokerId").asInt());
            case "snapshot" -> new RemoteLogSegmentMetadataSnapshot(Uuid.fromString(of.get("id").asText()),
                of.get("startOffset").asLong(), of.get("endOffset").asLong(), of.get("maxTimestampMs").asLong(),
                of.get("brokerId").asInt(), of.get("eventTimestampMs").asLong(), of.get("segmentSizeInBytes").asInt(),
                custom(of), RemoteLogSegmentState.valueOf(of.get("state").asText()), epochs(of),
                of.get("txnIdxEmpty").asBoolean());
            default -> throw new ScriptError("no such metadata: " + of);
        };
    }

    private static RemoteLogSegmentId segmentId(JsonNode of) {
        return new RemoteLogSegmentId(partition(of), Uuid.fromString(of.get("id").asText()));
    }

    private static TopicIdPartition partition(JsonNode of) {
        return new TopicIdPartition(Uuid.fromString(of.get("topicId").asText()),
            new TopicPartition(of.get("topic").asText(), of.get("partition").asInt()));
    }

    private static Optional<CustomMetadata> custom(JsonNode of) {
        JsonNode bytes = of.get("customMetadata");
        return bytes.isNull() ? Optional.empty() : Optional.of(new CustomMetadata(Json.unhex(bytes.asText())));
    }

    private static Map<Integer, Long> epochs(JsonNode of) {
        Map<Integer, Long> epochs = new HashMap<>();
        of.get("segmentLeaderEpochs").forEach(entry -> epochs.put(entry.get(0).asInt(), entry.get(1).asLong()));
        return epochs;
    }
}
