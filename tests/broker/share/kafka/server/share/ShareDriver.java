package kafka.server.share;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.internals.ShareAcquireMode;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.ShareGroupAutoOffsetResetStrategy;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfigProvider;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.partition.PartitionListener;
import org.apache.kafka.server.share.PartitionMetadataProvider;
import org.apache.kafka.server.share.acknowledge.ShareAcknowledgementBatch;
import org.apache.kafka.server.share.dlq.ShareGroupDLQManager;
import org.apache.kafka.server.share.dlq.ShareGroupDLQRecordParameter;
import org.apache.kafka.server.share.fetch.InFlightBatch;
import org.apache.kafka.server.share.fetch.InFlightState;
import org.apache.kafka.server.share.persister.*;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.storage.log.FetchPartitionData;
import org.apache.kafka.server.util.timer.Timer;
import org.apache.kafka.server.util.timer.TimerTask;
import org.apache.kafka.server.util.timer.TimerTaskEntry;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;

/** Runs scripts on Kafka's SharePartition: one JSON array of steps a line in, one JSON array of results a line out. */
public final class ShareDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String GROUP = "mail";
    private static final Uuid TOPIC_ID = new Uuid(0, 1);
    private static final TopicIdPartition PARTITION = new TopicIdPartition(TOPIC_ID, 0, "outbox");

    private static final class Batch {
        long first;
        long last;
        long producer;
        String marker;
    }

    private static final class Clock implements Time {
        long now = 1_000_000;

        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return now * 1_000_000;
        }

        public void sleep(long ms) {
            now += ms;
        }
    }

    private final class Timers implements Timer {
        final List<TimerTaskEntry> entries = new ArrayList<>();

        public void add(TimerTask task) {
            if (task.delayMs <= 0) {
                task.run();
            } else {
                entries.add(new TimerTaskEntry(task, task.delayMs + clock.now));
            }
        }

        public boolean advanceClock(long ms) {
            clock.now += ms;
            while (true) {
                TimerTaskEntry first = null;
                for (TimerTaskEntry each : entries) {
                    if (each.expirationMs <= clock.now && (first == null || each.expirationMs < first.expirationMs)) {
                        first = each;
                    }
                }
                if (first == null) {
                    return true;
                }
                entries.remove(first);
                if (!first.cancelled()) {
                    first.timerTask.run();
                }
            }
        }

        public int size() {
            return entries.size();
        }

        public void close() {
        }
    }

    private final class Kept implements Persister {
        long startOffset = -1;
        int count = 0;
        List<PersisterStateBatch> batches = List.of();
        short failing = 0;
        List<PersisterStateBatch> written = new ArrayList<>();

        public CompletableFuture<ReadShareGroupStateResult> readState(ReadShareGroupStateParameters given) {
            return CompletableFuture.completedFuture(ReadShareGroupStateResult.from(
                org.apache.kafka.common.requests.ReadShareGroupStateResponse.toResponseData(
                    TOPIC_ID, 0, startOffset, 0, batches.stream().map(each ->
                        new org.apache.kafka.common.message.ReadShareGroupStateResponseData.StateBatch()
                            .setFirstOffset(each.firstOffset()).setLastOffset(each.lastOffset())
                            .setDeliveryState(each.deliveryState()).setDeliveryCount(each.deliveryCount())).toList())));
        }

        public CompletableFuture<WriteShareGroupStateResult> writeState(WriteShareGroupStateParameters given) {
            short error = failing;
            if (error == 0) {
                PartitionStateBatchData data = given.groupTopicPartitionData().topicsData().get(0).partitions().get(0);
                startOffset = Math.max(startOffset, data.startOffset());
                count = data.deliveryCompleteCount();
                batches = new PersisterStateBatchCombiner(batches, data.stateBatches(), startOffset)
                    .combineStateBatches();
                written.addAll(data.stateBatches());
            }
            return CompletableFuture.completedFuture(WriteShareGroupStateResult.from(
                new org.apache.kafka.common.message.WriteShareGroupStateResponseData().setResults(List.of(
                    new org.apache.kafka.common.message.WriteShareGroupStateResponseData.WriteStateResult()
                        .setTopicId(TOPIC_ID).setPartitions(List.of(
                            new org.apache.kafka.common.message.WriteShareGroupStateResponseData.PartitionResult()
                                .setPartition(0).setErrorCode(error).setErrorMessage(error == 0 ? null : "it fails")))))));
        }

        public CompletableFuture<InitializeShareGroupStateResult> initializeState(
            InitializeShareGroupStateParameters given) {
            throw new UnsupportedOperationException();
        }

        public CompletableFuture<DeleteShareGroupStateResult> deleteState(DeleteShareGroupStateParameters given) {
            throw new UnsupportedOperationException();
        }

        public CompletableFuture<ReadShareGroupStateSummaryResult> readSummary(
            ReadShareGroupStateSummaryParameters given) {
            throw new UnsupportedOperationException();
        }

        public void stop() {
        }
    }

    private final class Metadata implements PartitionMetadataProvider {
        public long offsetForEarliestTimestamp(TopicIdPartition partition, int epoch) {
            return logStart;
        }

        public long offsetForLatestTimestamp(TopicIdPartition partition, int epoch) {
            return logEnd;
        }

        public long offsetForTimestamp(TopicIdPartition partition, long timestamp, int epoch) {
            return timestamp;
        }

        public LogOffsetMetadata endOffsetMetadata(TopicIdPartition partition, FetchIsolation isolation) {
            return new LogOffsetMetadata(logEnd);
        }

        public int leaderEpoch(TopicIdPartition partition) {
            return 0;
        }

        public boolean addPartitionListener(TopicIdPartition partition, PartitionListener listener) {
            return true;
        }

        public void removePartitionListener(TopicIdPartition partition, PartitionListener listener) {
        }
    }

    private final class Settings extends ShareGroupConfigProvider {
        Settings() {
            super(null);
        }

        @Override
        public int recordLockDurationMsOrDefault(String group, int fallback) {
            return lockMs;
        }

        @Override
        public int deliveryCountLimitOrDefault(String group, int fallback) {
            return maxDeliveries;
        }

        @Override
        public int partitionMaxRecordLocksOrDefault(String group, int fallback) {
            return maxLocks;
        }

        @Override
        public boolean isRenewAcknowledgeEnabled(String group) {
            return true;
        }

        @Override
        public ShareGroupAutoOffsetResetStrategy autoOffsetReset(String group) {
            return ShareGroupAutoOffsetResetStrategy.EARLIEST;
        }

        @Override
        public Optional<String> errorsDLQTopicName(String group) {
            return letters ? Optional.of("dead") : Optional.empty();
        }
    }

    private final class Letters implements ShareGroupDLQManager {
        public CompletableFuture<Void> enqueue(ShareGroupDLQRecordParameter letter) {
            for (long offset = letter.firstOffset(); offset <= letter.lastOffset(); offset++) {
                sent.add(JSON.createArrayNode().add(offset).add((int) letter.deliveryCount().get())
                    .add(letter.cause().get().getMessage()));
            }
            return CompletableFuture.completedFuture(null);
        }

        public void stop() {
        }
    }

    private final Clock clock = new Clock();
    private final Timers timers = new Timers();
    private final Kept kept = new Kept();
    private final List<Batch> log = new ArrayList<>();
    private final List<AbortedTransaction> aborted = new ArrayList<>();
    private ArrayNode sent = JSON.createArrayNode();
    private long logStart = 0;
    private long logEnd = 0;
    private int lockMs = 30000;
    private int maxDeliveries = 5;
    private int maxLocks = 2000;
    private boolean letters = false;
    private SharePartition partition;

    private void start() throws Exception {
        partition = new SharePartition(GROUP, PARTITION, 0, maxLocks, maxDeliveries, lockMs, timers, clock, kept,
            new Metadata(), key -> { }, new Settings(), null, () -> letters, new Letters());
        get(partition.maybeInitialize());
    }

    private static void get(CompletableFuture<Void> future) throws Exception {
        try {
            future.get();
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        }
    }

    private MemoryRecords read(long offset, int most) {
        ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
        int found = 0;
        for (Batch each : log) {
            if (each.last < offset || found >= most) {
                continue;
            }
            found++;
            if (each.marker != null) {
                MemoryRecords.writeEndTransactionalMarker(buffer, each.first, 1, 0, each.producer, (short) 0,
                    new EndTransactionMarker(ControlRecordType.valueOf(each.marker), 0));
                continue;
            }
            MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, (byte) 2, Compression.NONE,
                TimestampType.CREATE_TIME, each.first, 1, each.producer, each.producer < 0 ? (short) -1 : (short) 0,
                each.producer < 0 ? -1 : 0, each.producer >= 0, 0);
            for (long at = each.first; at <= each.last; at++) {
                builder.appendWithOffset(at, 1, null, new byte[0]);
            }
            builder.close();
        }
        buffer.flip();
        return MemoryRecords.readableRecords(buffer);
    }

    private JsonNode run(JsonNode step) throws Exception {
        switch (step.get("op").asText()) {
            case "start":
                lockMs = step.path("lock_ms").asInt(30000);
                maxDeliveries = step.path("max_deliveries").asInt(5);
                maxLocks = step.path("max_locks").asInt(2000);
                letters = step.path("letters").asBoolean(false);
                start();
                return null;
            case "restart":
                timers.entries.clear();
                start();
                return null;
            case "append": {
                Batch made = new Batch();
                made.first = logEnd;
                made.last = logEnd + step.get("count").asInt() - 1;
                made.producer = step.path("producer").asInt(-1);
                made.marker = step.path("marker").asText(null);
                if ("ABORT".equals(made.marker)) {
                    for (Batch each : log) {
                        if (each.producer == made.producer && each.marker == null) {
                            aborted.add(new AbortedTransaction().setProducerId(made.producer)
                                .setFirstOffset(step.get("first").asLong()));
                            break;
                        }
                    }
                }
                log.add(made);
                logEnd = made.last + 1;
                return null;
            }
            case "take": {
                ArrayNode result = JSON.createArrayNode();
                if (!partition.canAcquireRecords()) {
                    return result;
                }
                long offset = partition.nextFetchOffset();
                if (offset < logStart || offset > logEnd) {
                    partition.updateCacheAndOffsets(logStart);
                    return result;
                }
                boolean committed = step.path("committed").asBoolean(false);
                FetchPartitionData data = new FetchPartitionData(Errors.NONE, logEnd, logStart,
                    read(offset, step.path("batches").asInt(1000)), Optional.empty(), OptionalLong.empty(),
                    committed ? Optional.of(aborted) : Optional.empty(), OptionalInt.empty(), false);
                partition.acquire(step.get("member").asText(),
                    ShareAcquireMode.forId((byte) step.path("mode").asInt(0)), step.path("batch_size").asInt(500),
                    step.path("count").asInt(500), offset, data,
                    committed ? FetchIsolation.TXN_COMMITTED : FetchIsolation.HIGH_WATERMARK).acquiredRecords()
                    .forEach(each -> result.add(JSON.createArrayNode().add(each.firstOffset()).add(each.lastOffset())
                        .add((int) each.deliveryCount())));
                return result;
            }
            case "ack": {
                List<ShareAcknowledgementBatch> batches = new ArrayList<>();
                for (JsonNode each : step.get("batches")) {
                    List<Byte> types = new ArrayList<>();
                    each.get(2).forEach(type -> types.add((byte) type.asInt()));
                    batches.add(new ShareAcknowledgementBatch(each.get(0).asLong(), each.get(1).asLong(), types));
                }
                get(partition.acknowledge(step.get("member").asText(), batches));
                return null;
            }
            case "release":
                get(partition.releaseAcquiredRecords(step.get("member").asText()));
                return null;
            case "advance":
                timers.advanceClock(step.get("ms").asLong());
                return null;
            case "trim":
                logStart = Math.min(step.get("offset").asLong(), logEnd);
                log.removeIf(each -> each.last < logStart);
                return null;
            case "compact":
                log.removeIf(each -> each.first == step.get("first").asLong());
                return null;
            case "lso":
                partition.updateCacheAndOffsets(logStart);
                return null;
            case "fail":
                kept.failing = (short) step.get("code").asInt();
                return null;
            default:
                throw new IllegalArgumentException(step.toString());
        }
    }

    private static void add(ArrayNode states, long first, long last, InFlightState state) {
        JsonNode tail = states.isEmpty() ? null : states.get(states.size() - 1);
        if (tail != null && tail.get(1).asLong() + 1 == first && tail.get(2).asInt() == state.state().id
            && tail.get(3).asInt() == state.deliveryCount() && tail.get(4).asText().equals(state.memberId())) {
            ((ArrayNode) tail).set(1, JSON.getNodeFactory().numberNode(last));
        } else {
            states.add(JSON.createArrayNode().add(first).add(last).add((int) state.state().id)
                .add(state.deliveryCount()).add(state.memberId()));
        }
    }

    private static ArrayNode batches(List<PersisterStateBatch> batches) {
        ArrayNode result = JSON.createArrayNode();
        batches.forEach(each -> result.add(JSON.createArrayNode().add(each.firstOffset()).add(each.lastOffset())
            .add((int) each.deliveryState()).add((int) each.deliveryCount())));
        return result;
    }

    private ObjectNode state() {
        ObjectNode result = JSON.createObjectNode();
        result.put("start", partition.startOffset());
        result.put("end", partition.endOffset());
        result.put("complete", partition.deliveryCompleteCount());
        result.put("next", partition.nextFetchOffset());
        result.put("can", partition.canAcquireRecords());
        ArrayNode states = result.putArray("states");
        for (Map.Entry<Long, InFlightBatch> entry : partition.cachedState().entrySet()) {
            InFlightBatch batch = entry.getValue();
            if (batch.offsetState() == null) {
                add(states, batch.firstOffset(), batch.lastOffset(),
                    new InFlightState(batch.batchState(), batch.batchDeliveryCount(), batch.batchMemberId()));
            } else {
                batch.offsetState().forEach((offset, each) -> add(states, offset, offset, each));
            }
        }
        result.put("kept_start", kept.startOffset);
        result.put("kept_complete", kept.count);
        result.set("kept", batches(kept.batches));
        result.set("written", batches(new PersisterStateBatchCombiner(List.of(), kept.written, -1)
            .combineStateBatches()));
        result.set("letters", sent);
        kept.written = new ArrayList<>();
        sent = JSON.createArrayNode();
        return result;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null) {
            ShareDriver driver = new ShareDriver();
            ArrayNode results = JSON.createArrayNode();
            for (JsonNode step : JSON.readTree(line)) {
                ObjectNode result = JSON.createObjectNode();
                try {
                    JsonNode found = driver.run(step);
                    if (found != null) {
                        result.set("result", found);
                    }
                } catch (Exception error) {
                    result.put("error", error.getClass().getSimpleName());
                    result.put("message", error.getMessage());
                }
                if (driver.partition != null) {
                    result.set("state", driver.state());
                }
                results.add(result);
            }
            out.println(JSON.writeValueAsString(results));
            out.flush();
        }
    }
}
