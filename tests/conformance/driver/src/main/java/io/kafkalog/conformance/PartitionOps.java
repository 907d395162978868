package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;

/** The operations on one partition's log. */
final class PartitionOps {
    private static final int FAILURE_CHANNEL_DIRS = 10;

    private final Session session;

    PartitionOps(Session session) {
        this.session = session;
    }

    void run(Op op, ObjectNode result) throws Exception {
        if (op.name().equals("open")) {
            open(op);
            return;
        }
        UnifiedLog log = session.handle(op).log();
        switch (op.name()) {
            case "append_leader" -> appendLeader(op, log, result);
            case "append_follower" -> appendFollower(op, log, result);
            case "append_end_txn_marker" -> appendMarker(op, log, result);
            case "read" -> read(op, log, result);
            case "update_high_watermark" -> result.put("result", log.updateHighWatermark(op.number("hw")));
            case "maybe_increment_high_watermark" -> Json.put(result, "result",
                log.maybeIncrementHighWatermark(new LogOffsetMetadata(op.number("hw"))).map(old -> old.messageOffset));
            case "roll" -> result.put("result", log.roll(op.maybeNumber("expected_next_offset")).baseOffset());
            case "flush" -> log.flush(op.flag("force_active", false));
            case "truncate_to" -> result.put("result", log.truncateTo(op.number("offset")));
            case "truncate_fully_and_start_at" ->
                log.truncateFullyAndStartAt(op.number("offset"), op.maybeNumber("log_start_offset"));
            case "increment_log_start_offset" -> result.put("result", log.maybeIncrementLogStartOffset(
                op.number("offset"), LogStartOffsetIncrementReason.ClientRecordDeletion));
            case "delete_old_segments" -> result.put("result", log.deleteOldSegments());
            case "offset_for_timestamp" -> offsetForTimestamp(op, log, result);
            case "end_offset_for_epoch" -> endOffsetForEpoch(op, log, result);
            case "epoch_cache" -> epochCache(log, result);
            case "assign_epoch" -> log.assignEpochStartOffset(op.integer("epoch", 0), op.number("offset"));
            case "assign_topic_id" -> log.assignTopicId(Uuid.fromString(op.text("topic_id")));
            case "update_config" -> log.updateConfig(new LogConfig(Op.config(op.node().get("config"))));
            case "segments" -> result.set("result", Rendering.segments(log));
            case "producers" -> result.set("result", Rendering.producers(log));
            case "take_producer_snapshot" -> log.takeProducerSnapshot();
            case "remove_expired_producers" -> log.removeExpiredProducers(session.time().milliseconds());
            case "close" -> close(op, log, result);
            case "crash" -> crash(op, log, result);
            case "delete_log" -> {
                log.delete();
                session.forget(op.handle());
            }
            case "rename_dir" -> log.renameDir(op.text("name"), op.flag("reinitialize", true));
            default -> throw new ScriptError("unknown operation " + op.name());
        }
    }

    private void open(Op op) throws IOException {
        if (op.has("now_ms")) {
            session.time().set(op.number("now_ms"));
        }
        if (session.find(op.handle()) != null) {
            throw new IllegalStateException("log is open already");
        }
        session.setManualScheduler(op.text("scheduler", "auto").equals("manual"));
        Map<String, String> config = Op.config(op.node().get("config"));
        if (op.flag("validate", false)) {
            LogConfig.validate(config);
        }
        Optional<Uuid> topicId = op.has("topic_id") ? Optional.of(Uuid.fromString(op.text("topic_id"))) : Optional.empty();
        boolean idAtCreate = op.flag("topic_id_at_create", true);
        File dir = session.path(op.text("dir")).resolve(op.text("topic_partition")).toFile();
        UnifiedLog log = UnifiedLog.create(
            dir,
            new LogConfig(config),
            op.number("log_start_offset", 0),
            op.number("recovery_point", 0),
            session.scheduler(),
            session.stats(),
            session.time(),
            op.integer("max_transaction_timeout_ms", 900_000),
            new ProducerStateManagerConfig(
                op.integer("producer_id_expiration_ms", 86_400_000), op.flag("transaction_verification", false)),
            op.integer("producer_id_expiration_check_interval_ms", 600_000),
            new LogDirFailureChannel(FAILURE_CHANNEL_DIRS),
            op.flag("clean_shutdown", true),
            idAtCreate ? topicId : Optional.empty());
        session.put(op.handle(), log);
        if (!idAtCreate) {
            topicId.ifPresent(log::assignTopicId);
        }
    }

    private void appendLeader(Op op, UnifiedLog log, ObjectNode result) throws IOException {
        MemoryRecords records = input(op, result);
        AppendOrigin origin = AppendOrigin.valueOf(op.text("origin", "client").toUpperCase(Locale.ROOT));
        VerificationGuard guard = VerificationGuard.SENTINEL;
        if (op.text("verification", "").equals("guard")) {
            guard = startVerification(log, records, op.flag("supports_epoch_bump", true));
        }
        Mark mark = Mark.of(log);
        LogAppendInfo info = log.appendAsLeader(records, op.integer("leader_epoch", 0), origin, RequestLocal.noCaching(),
            guard, (short) op.number("transaction_version", -1));
        putAppend(info, log, mark, result);
    }

    /** As a broker does before it appends transactional records: for the producer of the first batch. */
    private static VerificationGuard startVerification(UnifiedLog log, MemoryRecords records, boolean supportsEpochBump) {
        Iterator<MutableRecordBatch> batches = records.batches().iterator();
        if (!batches.hasNext()) {
            return VerificationGuard.SENTINEL;
        }
        MutableRecordBatch first = batches.next();
        return log.maybeStartTransactionVerification(
            first.producerId(), first.baseSequence(), first.producerEpoch(), supportsEpochBump);
    }

    private void appendFollower(Op op, UnifiedLog log, ObjectNode result) throws IOException {
        MemoryRecords records = input(op, result);
        Mark mark = Mark.of(log);
        putAppend(log.appendAsFollower(records, op.integer("leader_epoch", 0)), log, mark, result);
    }

    private void appendMarker(Op op, UnifiedLog log, ObjectNode result) throws IOException {
        ControlRecordType type = switch (op.text("type")) {
            case "commit" -> ControlRecordType.COMMIT;
            case "abort" -> ControlRecordType.ABORT;
            default -> throw new ScriptError("unknown marker type " + op.text("type"));
        };
        MemoryRecords records = MemoryRecords.withEndTransactionMarker(
            op.number("ts", session.time().milliseconds()),
            op.number("producer_id"),
            (short) op.number("epoch"),
            new EndTransactionMarker(type, op.integer("coordinator_epoch", 0)));
        Mark mark = Mark.of(log);
        LogAppendInfo info = log.appendAsLeader(records, op.integer("leader_epoch", 0), AppendOrigin.COORDINATOR,
            RequestLocal.noCaching(), VerificationGuard.SENTINEL, (short) op.number("transaction_version", 0));
        putAppend(info, log, mark, result);
    }

    private static MemoryRecords input(Op op, ObjectNode result) {
        Batches.Input input = Batches.of(op);
        if (input.built()) {
            result.put("input_hex", Json.hex(input.bytes()));
        }
        return input.records();
    }

    /** Where the log ended before an append, to find what the append wrote. */
    private record Mark(long activeBase, int activeSize) {
        static Mark of(UnifiedLog log) {
            LogSegment active = log.activeSegment();
            return new Mark(active.baseOffset(), active.size());
        }
    }

    private static void putAppend(LogAppendInfo info, UnifiedLog log, Mark mark, ObjectNode result) throws IOException {
        result.set("append", Rendering.append(info));
        LogSegment active = log.activeSegment();
        boolean rolled = active.baseOffset() != mark.activeBase();
        int position = rolled ? 0 : mark.activeSize();
        FileRecords file = active.log();
        ByteBuffer bytes = ByteBuffer.allocate(file.sizeInBytes() - position);
        file.readInto(bytes, position);
        ObjectNode written = result.putObject("written");
        written.put("rolled", rolled);
        written.put("segment", active.baseOffset());
        written.put("pos", position);
        written.put("bytes", bytes.remaining());
        written.put("sha256", Json.sha256(bytes));
    }

    private static void read(Op op, UnifiedLog log, ObjectNode result) throws IOException {
        FetchIsolation isolation = FetchIsolation.valueOf(op.text("isolation", "log_end").toUpperCase(Locale.ROOT));
        result.set("read", Rendering.read(log.read(op.number("offset"), op.integer("max_bytes", 1 << 20), isolation,
            op.flag("min_one_message", true))));
    }

    private static void offsetForTimestamp(Op op, UnifiedLog log, ObjectNode result) {
        Optional<FileRecords.TimestampAndOffset> found =
            log.fetchOffsetByTimestamp(op.number("ts"), Optional.empty()).timestampAndOffsetOpt();
        if (found.isEmpty()) {
            result.putNull("result");
            return;
        }
        ObjectNode node = result.putObject("result");
        node.put("timestamp", found.get().timestamp);
        node.put("offset", found.get().offset);
        Json.put(node, "leader_epoch", found.get().leaderEpoch);
    }

    private static void endOffsetForEpoch(Op op, UnifiedLog log, ObjectNode result) {
        Optional<OffsetAndEpoch> found = log.endOffsetForEpoch((int) op.number("epoch"));
        if (found.isEmpty()) {
            result.putNull("result");
            return;
        }
        result.putObject("result").put("epoch", found.get().epoch()).put("offset", found.get().offset());
    }

    private static void epochCache(UnifiedLog log, ObjectNode result) {
        ArrayNode entries = result.putArray("result");
        for (EpochEntry entry : log.leaderEpochCache().epochEntries()) {
            entries.add(Json.numbers(entry.epoch(), entry.startOffset()));
        }
    }

    private void close(Op op, UnifiedLog log, ObjectNode result) {
        if (op.flag("broker_style", true)) {
            log.prepareActiveSegmentForClose();
            log.flush(true);
        }
        log.close();
        session.forget(op.handle());
        result.put("recovery_point_at_close", log.recoveryPoint());
        result.put("log_start_at_close", log.logStartOffset());
    }

    private void crash(Op op, UnifiedLog log, ObjectNode result) {
        session.forget(op.handle());
        session.scheduler().dropAll();
        log.closeQuietly();
        result.put("recovery_point_at_crash", log.recoveryPoint());
    }
}
