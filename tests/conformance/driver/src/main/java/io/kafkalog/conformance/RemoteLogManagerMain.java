package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.server.common.StopPartition;
import org.apache.kafka.server.log.remote.metadata.storage.StoreOfRemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.OpenRemoteLogManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogOffsetReader;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AsyncOffsetReadFutureHolder;
import org.apache.kafka.storage.internals.log.AsyncOffsetReader;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.OffsetResultHolder;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.RemoteStorageFetchInfo;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicMetrics;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's RemoteLogManager over a real log, a storage in memory and Kafka's own store of metadata: scripts as JSON lines
 * in, their answers as JSON lines out.
 *
 * <p>A script is {@code {"dir", "settings" (of the manager), "ops": [...]}}; its answer is {@code {"answers": [...]}}, one
 * to each op, with "state" (but for questions); an op that throws has "error" (the simple name). Operations of a log are those of
 * the script format; the others are:
 *
 * <pre>
 *   open {"config", "clean"}     the log "t-0", anew or again; its start is the one before, as a checkpoint's
 *   lead, follow                 the partition's leader is here; or elsewhere, and the follower's task runs
 *   begin_epoch {"epoch"}        a leader's, at the log's end
 *   copy, expire                 one run of the leader's task, where there is one
 *   set_config {"config"}        as a broker that hears of a topic's settings
 *   offset {"ts"}                ListOffsets: {"found": null or [timestamp, offset, epoch]}
 *   aborted {"first", "last"}    {"aborted": [[producer id, first offset], ...]}, or {"none": true}
 *   fetch {"offset"}             {"read": [first offset, bytes, digest]} of its batch in the tier; {"empty": true} where
 *                                it is in none, {"none": true} where it is not in the tier
 *   storage {"copies", "deletions" (how the next ones fail), "custom_bytes"}
 *   stop {"delete"}              the partition goes
 *   advance_clock {"by_ms"}
 * </pre>
 */
public final class RemoteLogManagerMain {
    private static final Uuid TOPIC_ID = Uuid.fromString("AAECAwQFBgcICQoLDA0ODw");
    private static final TopicPartition PARTITION = new TopicPartition("t", 0);
    private static final TopicIdPartition ID_PARTITION = new TopicIdPartition(TOPIC_ID, PARTITION);
    private static final int FETCH_BYTES_MAX = 1 << 20;

    private static final Set<String> QUESTIONS = Set.of("offset", "aborted", "fetch");

    private final Session session;
    private final PartitionOps partition;
    private final BrokerTopicStats stats = new BrokerTopicStats(true);
    private final MemoryStorage storage = new MemoryStorage();
    private final StoreOfRemoteLogMetadata metadata = new StoreOfRemoteLogMetadata();
    private final OpenRemoteLogManager manager;
    private long startBefore = 0;
    private long recoveryPointBefore = 0;

    private RemoteLogManagerMain(JsonNode script) throws Exception {
        session = new Session(Path.of(script.get("dir").asText()));
        partition = new PartitionOps(session);
        Map<String, String> settings = Op.config(script.get("settings"));
        manager = OpenRemoteLogManager.over(storage, metadata, settings, session.path(".").toString(), session.time(),
            this::log, stats);
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = Json.MAPPER.readTree(line);
            RemoteLogManagerMain script = new RemoteLogManagerMain(asked);
            ArrayNode answers = Json.array();
            for (JsonNode op : asked.get("ops")) {
                answers.add(script.answer(new Op(op.get("op").asText(), op)));
            }
            script.close();
            out.println(Json.object().set("answers", answers));
            out.flush();
        }
        System.exit(0);
    }

    private UnifiedLog log() {
        OpenLog open = session.find("main");
        return open == null ? null : open.log();
    }

    private void close() throws Exception {
        session.dropHandles();
        manager.close();
        stats.removeMetrics(PARTITION.topic());  // else the next script counts on
    }

    private ObjectNode answer(Op op) throws Exception {
        ObjectNode answer = Json.object();
        try {
            run(op, answer);
        } catch (ScriptError e) {
            throw e;
        } catch (Throwable e) {
            answer.put("error", e.getClass().getSimpleName());
        }
        session.runDueTasks(Json.object());
        if (log() != null && !QUESTIONS.contains(op.name())) {
            ObjectNode state = Rendering.state(log());
            state.put("highest_remote", log().highestOffsetInRemoteStorage());
            state.set("remote", remote());
            state.set("stored", storage.shown());
            state.set("metrics", metrics());
            answer.set("state", state);
        }
        return answer;
    }

    private void run(Op op, ObjectNode answer) throws Throwable {
        switch (op.name()) {
            case "open" -> open(op);
            case "lead" -> manager.lead(log(), TOPIC_ID, true);
            case "follow" -> {
                manager.lead(log(), TOPIC_ID, false);
                manager.runFollowerTask();
            }
            case "begin_epoch" -> log().assignEpochStartOffset(op.integer("epoch", 0), log().logEndOffset());
            case "copy" -> manager.runCopyTask();
            case "expire" -> manager.runExpirationTask();
            case "set_config" -> setConfig(op);
            case "offset" -> offset(op, answer);
            case "aborted" -> aborted(op, answer);
            case "fetch" -> fetch(op, answer);
            case "storage" -> {
                op.node().path("copies").forEach(word -> storage.copies.add(word.asText()));
                op.node().path("deletions").forEach(word -> storage.deletions.add(word.asText()));
                storage.customBytes = op.integer("custom_bytes", storage.customBytes);
            }
            case "stop" -> stop(op.flag("delete", false));
            case "advance_clock" -> session.time().set(session.time().milliseconds() + op.number("by_ms"));
            default -> {
                ObjectNode result = Json.object();
                partition.run(op, result);
                if (result.has("result")) {
                    answer.set("result", result.get("result"));
                }
            }
        }
    }

    private void open(Op op) throws Exception {
        UnifiedLog before = log();
        if (before != null) {
            startBefore = before.logStartOffset();
            if (op.flag("clean", true)) {
                before.prepareActiveSegmentForClose();
                before.flush(true);
            }
            recoveryPointBefore = before.recoveryPoint();
            stop(false);
            session.dropHandles();
        }
        File dir = session.path("logs").resolve("t-0").toFile();
        UnifiedLog log = UnifiedLog.create(dir, new LogConfig(Op.config(op.node().get("config"))), startBefore,
            recoveryPointBefore, session.scheduler(), stats, session.time(), 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(10),
            op.flag("clean", true), Optional.of(TOPIC_ID), new ConcurrentHashMap<>(), true,
            LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        session.put("main", log);
    }

    /** TopicConfigHandler, which is no public class. */
    private void setConfig(Op op) throws Exception {
        UnifiedLog log = log();
        boolean wasEnabled = log.remoteLogEnabled();
        boolean wasCopyDisabled = log.config().remoteLogCopyDisable();
        log.updateConfig(new LogConfig(Op.config(op.node().get("config"))));
        boolean isEnabled = log.remoteLogEnabled();
        boolean isCopyDisabled = log.config().remoteLogCopyDisable();
        if (isEnabled && (!wasEnabled || (wasCopyDisabled && !isCopyDisabled))) {
            manager.lead(log, TOPIC_ID, true);
        }
        if (isEnabled && !wasCopyDisabled && isCopyDisabled) {
            manager.stopCopying();
        }
        if (wasEnabled && !isEnabled && log.config().remoteLogDeleteOnDisable()) {
            log.maybeIncrementLogStartOffset(log.localLogStartOffset(), LogStartOffsetIncrementReason.SegmentDeletion);
            stop(true);
        }
    }

    private void stop(boolean delete) {
        manager.stopAll();
        List<Throwable> errors = new ArrayList<>();
        manager.stopPartitions(
            Set.of(new StopPartition(PARTITION, false, delete, true)), (where, error) -> errors.add(error));
        if (delete && errors.isEmpty()) {
            // Nobody tells Kafka's store of it, which so remembers up to where the partition was copied once.
            metadata.putRemotePartitionDeleteMetadata(new RemotePartitionDeleteMetadata(
                ID_PARTITION, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, session.time().milliseconds(), 0));
        }
    }

    private void offset(Op op, ObjectNode answer) throws Exception {
        AsyncOffsetReader reader = (where, timestamp, start, epochs, local) -> {
            CompletableFuture<OffsetResultHolder.FileRecordsOrError> found = new CompletableFuture<>();
            FutureTask<Void> job = new FutureTask<>(new RemoteLogOffsetReader(
                manager, where, timestamp, start, epochs, local, found::complete));
            job.run();
            return new AsyncOffsetReadFutureHolder<>(job, found);
        };
        OffsetResultHolder holder = log().fetchOffsetByTimestamp(op.number("ts"), Optional.of(reader));
        Optional<FileRecords.TimestampAndOffset> found = holder.timestampAndOffsetOpt();
        if (holder.futureHolderOpt().isPresent()) {
            OffsetResultHolder.FileRecordsOrError read = holder.futureHolderOpt().get().taskFuture().get();
            if (read.hasException()) {
                throw read.exception().get();
            }
            found = read.timestampAndOffset();
        }
        if (found.isEmpty()) {
            answer.putNull("found");
        } else {
            answer.putArray("found").add(found.get().timestamp).add(found.get().offset)
                .add(found.get().leaderEpoch.orElse(null));
        }
    }

    private void aborted(Op op, ObjectNode answer) throws Throwable {
        long first = op.number("first");
        Optional<RemoteLogSegmentMetadata> segment = Optional.empty();
        if (isInTier(first) && log().leaderEpochCache().epochForOffset(first).isPresent()) {
            segment = manager.fetchRemoteLogSegmentMetadata(
                PARTITION, log().leaderEpochCache().epochForOffset(first).getAsInt(), first);
        }
        if (segment.isEmpty()) {
            answer.put("none", true);
            return;
        }
        TreeSet<List<Long>> rows = new TreeSet<>(
            Comparator.<List<Long>>comparingLong(row -> row.get(0)).thenComparingLong(row -> row.get(1)));
        manager.abortedIn(first, op.number("last") + 1, segment.get(),
            found -> found.forEach(each -> rows.add(List.of(each.producerId(), each.firstOffset()))), log());
        ArrayNode shown = answer.putArray("aborted");
        rows.forEach(row -> shown.add(Json.numbers(row.get(0), row.get(1))));
    }

    /** Where a broker asks the tier. */
    private boolean isInTier(long offset) {
        return log().remoteLogEnabled() && log().logStartOffset() <= offset && offset < log().localLogStartOffset();
    }

    private void fetch(Op op, ObjectNode answer) throws Exception {
        if (!isInTier(op.number("offset"))) {
            answer.put("none", true);
            return;
        }
        FetchRequest.PartitionData asked = new FetchRequest.PartitionData(
            TOPIC_ID, op.number("offset"), log().logStartOffset(), FETCH_BYTES_MAX, Optional.empty());
        FetchDataInfo info = manager.read(
            new RemoteStorageFetchInfo(FETCH_BYTES_MAX, true, ID_PARTITION, asked, FetchIsolation.HIGH_WATERMARK));
        if (info.records.sizeInBytes() == 0) {
            answer.put("empty", true);
            return;
        }
        RecordBatch batch = info.records.batches().iterator().next();
        ByteBuffer bytes = ByteBuffer.allocate(batch.sizeInBytes());
        batch.writeTo(bytes);
        answer.putArray("read").add(batch.baseOffset()).add(bytes.flip().remaining()).add(Json.sha256(bytes));
    }

    /** Of each segment what is known, without its random id, in any order. */
    private ArrayNode remote() throws Exception {
        List<ArrayNode> rows = new ArrayList<>();
        if (metadata.isReady(ID_PARTITION)) {
            metadata.listRemoteLogSegments(ID_PARTITION).forEachRemaining(segment -> rows.add(row(segment)));
        }
        ArrayNode all = Json.array();
        rows.forEach(all::add);
        return all;
    }

    private static ArrayNode row(RemoteLogSegmentMetadata segment) {
        ArrayNode epochs = Json.array();
        new TreeMap<>(segment.segmentLeaderEpochs()).forEach((epoch, start) -> epochs.add(Json.numbers(epoch, start)));
        return Json.array().add(segment.startOffset()).add(segment.endOffset()).add(segment.state().name()).add(epochs)
            .add(segment.segmentSizeInBytes()).add(segment.maxTimestampMs()).add(segment.eventTimestampMs())
            .add(segment.customMetadata().map(custom -> custom.value().length).orElse(-1))
            .add(segment.isTxnIdxEmpty());
    }

    private ObjectNode metrics() {
        BrokerTopicMetrics of = stats.topicStats(PARTITION.topic());
        return Json.object()
            .put("copy_bytes", of.remoteCopyBytesRate().count())
            .put("copy_requests", of.remoteCopyRequestRate().count())
            .put("failed_copy_requests", of.failedRemoteCopyRequestRate().count())
            .put("delete_requests", of.remoteDeleteRequestRate().count())
            .put("failed_delete_requests", of.failedRemoteDeleteRequestRate().count())
            .put("copy_lag_bytes", of.remoteCopyLagBytes())
            .put("copy_lag_segments", of.remoteCopyLagSegments())
            .put("delete_lag_bytes", of.remoteDeleteLagBytes())
            .put("delete_lag_segments", of.remoteDeleteLagSegments())
            .put("metadata_count", of.remoteLogMetadataCount())
            .put("size_bytes", of.remoteLogSizeBytes());
    }
}
