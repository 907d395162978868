package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Records;
import org.apache.kafka.metadata.ConfigRepository;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogManager;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** The operations on a log manager: many partitions in several directories. */
final class ManagerOps {
    private static final String RANDOM_PART = "\\.[0-9a-f]{32}-";

    private final Session session;
    private LogManager manager;

    ManagerOps(Session session) {
        this.session = session;
    }

    void run(Op op, ObjectNode result) throws Exception {
        if (op.name().equals("lm_open")) {
            open(op, result);
            return;
        }
        if (manager == null) {
            throw new IllegalStateException("no open log manager");
        }
        switch (op.name()) {
            case "lm_get" -> get(op);
            case "lm_checkpoint" -> {
                manager.checkpointLogRecoveryOffsets();
                manager.checkpointLogStartOffsets();
            }
            case "lm_delete" -> delete(op, result);
            case "lm_truncate" ->
                manager.truncateTo(Map.of(topicPartition(op), op.number("offset")), op.flag("future", false));
            case "lm_future" -> session.put(op.handle(), future(op));
            case "lm_move" -> move(op, result);
            case "lm_clean" -> clean(op, result);
            case "lm_shutdown" -> shutdown(op);
            case "lm_crash" -> abandon();
            default -> throw new ScriptError("unknown operation " + op.name());
        }
    }

    private void open(Op op, ObjectNode result) throws Exception {
        if (manager != null) {
            throw new IllegalStateException("log manager is open already");
        }
        if (op.has("now_ms")) {
            session.time().set(op.number("now_ms"));
        }
        List<File> dirs = new ArrayList<>();
        op.node().get("dirs").forEach(dir -> dirs.add(session.path(dir.asText()).toFile()));
        TopicConfigs configs = new TopicConfigs(op.node().get("topic_configs"));
        Set<String> topics = new HashSet<>(configs.overrides.keySet());
        if (op.has("topics")) {
            op.node().get("topics").forEach(topic -> topics.add(topic.asText()));
        }
        session.scheduler().setDirectories(dirs.stream().map(File::getAbsolutePath).toList());
        manager = made(op, dirs, configs);
        try {
            manager.startup(topics);
        } catch (Exception e) {
            LoadingTurns.awaitAll();
            abandon();
            throw e;
        }
        Map<String, UnifiedLog> loaded = new TreeMap<>();
        manager.allLogs().forEach(log -> loaded.put(log.dir().getName(), log));
        ObjectNode states = result.putObject("loaded");
        loaded.forEach((name, log) -> states.set(name, Rendering.state(log)));
    }

    private LogManager made(Op op, List<File> dirs, TopicConfigs configs) throws IOException {
        try {
            return new LogManager(
                dirs,
                List.of(),
                configs,
                new LogConfig(Op.config(op.node().get("config"))),
                CleanerTurns.config(op.node().get("cleaner")),
                1,
                Long.MAX_VALUE,
                op.number("flush_recovery_checkpoint_ms", 60_000),
                op.number("flush_start_checkpoint_ms", 60_000),
                op.number("retention_check_ms", 300_000),
                900_000,
                new ProducerStateManagerConfig(86_400_000, false),
                600_000,
                session.scheduler(),
                session.stats(),
                new LogDirFailureChannel(dirs.size()),
                session.time(),
                false,
                op.number("initial_task_delay_ms", 30_000),
                CleanerTurns::new);
        } catch (Exception e) {
            // Nobody has the half-made manager, but its locks are held until it is collected.
            System.gc();
            throw e;
        }
    }

    private void get(Op op) throws IOException {
        Optional<Uuid> topicId = op.has("topic_id") ? Optional.of(Uuid.fromString(op.text("topic_id"))) : Optional.empty();
        UnifiedLog log = manager.getOrCreateLog(topicPartition(op), op.flag("is_new", false), false, topicId);
        session.put(op.handle(), log);
    }

    private void delete(Op op, ObjectNode result) {
        Optional<UnifiedLog> removed = manager.asyncDelete(topicPartition(op), op.flag("future", false), true, false);
        if (removed.isEmpty()) {
            result.putNull("renamed_to");
            return;
        }
        session.forget(removed.get());
        result.put("renamed_to", removed.get().dir().getName().replaceFirst(RANDOM_PART, ".<uuid>-"));
    }

    /** Makes the partition's future log in a directory, and copies to it what it has not got. */
    private UnifiedLog future(Op op) throws IOException {
        TopicPartition partition = topicPartition(op);
        UnifiedLog current = manager.getLog(partition)
            .orElseThrow(() -> new KafkaStorageException("no log of " + partition));
        manager.maybeUpdatePreferredLogDir(partition, session.path(op.text("dir")).toString());
        UnifiedLog future = manager.getOrCreateLog(partition, false, true, current.topicId());
        if (future.logEndOffset() < current.logStartOffset()) {
            manager.truncateFullyAndStartAt(partition, current.logStartOffset(), true, Optional.empty());
        } else if (future.logEndOffset() > current.logEndOffset()) {
            manager.truncateTo(Map.of(partition, current.logEndOffset()), true);
        }
        int budget = op.integer("max_batches", Integer.MAX_VALUE);
        while (budget-- > 0 && future.logEndOffset() < current.logEndOffset()) {
            long end = future.logEndOffset();
            Records found = current.read(end, 1, FetchIsolation.LOG_END, true).records;
            ByteBuffer bytes = ByteBuffer.allocate(found.sizeInBytes());
            if (found instanceof FileRecords file) {
                file.readInto(bytes, 0);
            } else {
                bytes.put(((MemoryRecords) found).buffer());
                bytes.flip();
            }
            future.appendAsFollower(MemoryRecords.readableRecords(bytes), Integer.MAX_VALUE);
            if (future.logEndOffset() == end) {
                throw new IllegalStateException("nothing was copied at " + end);
            }
        }
        future.updateHighWatermark(current.highWatermark());
        future.maybeIncrementLogStartOffset(
            current.logStartOffset(), LogStartOffsetIncrementReason.LeaderOffsetIncremented);
        return future;
    }

    /** The future log, filled, takes the partition's place. */
    private void move(Op op, ObjectNode result) throws IOException {
        UnifiedLog future = future(op);
        session.runDueTasks(result);
        UnifiedLog source = manager.getLog(topicPartition(op)).orElseThrow();
        replace(topicPartition(op));
        session.forget(source);
        session.put(op.handle(), future);
    }

    /** Paused as ReplicaManager does it: a switch that comes to its end lets the cleaner go on. */
    private void replace(TopicPartition partition) throws IOException {
        manager.abortAndPauseCleaning(partition);
        try {
            manager.replaceCurrentWithFutureLog(partition);
        } catch (Exception e) {
            try {
                manager.resumeCleaning(partition);
            } catch (IllegalStateException notPaused) {
                // It had come that far.
            }
            throw e;
        }
    }

    private void clean(Op op, ObjectNode result) throws Exception {
        if (manager.cleaner() == null) {
            throw new IllegalStateException("this manager has no log cleaner");
        }
        ((CleanerTurns) manager.cleaner()).take(op.integer("turns", 1), result);
    }

    private void shutdown(Op op) throws IOException {
        List<UnifiedLog> logs = new ArrayList<>(manager.allLogs());
        manager.shutdown(op.number("broker_epoch", -1));
        manager = null;
        logs.forEach(log -> {
            session.forget(log);
            log.removeLogMetrics();
        });
    }

    /** As a crash: locks and files are let go, nothing is written; pending tasks are gone. */
    void abandon() {
        if (manager == null) {
            return;
        }
        session.scheduler().dropAll();
        for (UnifiedLog log : manager.allLogs()) {
            session.forget(log);
            log.closeQuietly();
            log.removeLogMetrics();
        }
        if (manager.cleaner() != null) {
            manager.cleaner().shutdown();
        }
        for (FileLock lock : manager.dirLocks()) {
            try {
                lock.unlockAndClose();
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        }
        manager = null;
    }

    private static TopicPartition topicPartition(Op op) {
        return UnifiedLog.parseTopicPartitionName(new File(op.text("topic_partition")));
    }

    /** Overrides of topics, from the script. */
    private static final class TopicConfigs implements ConfigRepository {
        private final Map<String, Properties> overrides = new HashMap<>();

        TopicConfigs(JsonNode topics) {
            if (topics != null) {
                for (Map.Entry<String, JsonNode> topic : topics.properties()) {
                    Properties properties = new Properties();
                    properties.putAll(Op.config(topic.getValue()));
                    overrides.put(topic.getKey(), properties);
                }
            }
        }

        @Override
        public Properties config(ConfigResource resource) {
            Properties found = resource.type() == ConfigResource.Type.TOPIC ? overrides.get(resource.name()) : null;
            return found == null ? new Properties() : found;
        }
    }
}
