package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.lang.reflect.Method;
import java.util.List;
import java.util.concurrent.ConcurrentMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** A manager's cleaner whose thread is never started: a script takes its turns, one after the other. */
final class CleanerTurns extends LogCleaner {
    private final List<File> dirs;
    private final LogDirFailureChannel channel;
    private CleanerThread thread;

    CleanerTurns(CleanerConfig config, List<File> dirs, ConcurrentMap<TopicPartition, UnifiedLog> logs,
                 LogDirFailureChannel channel, Time time) {
        super(config, dirs, logs, channel, time);
        this.dirs = dirs;
        this.channel = channel;
    }

    /** From a script's field {@code cleaner}; without one there is no cleaner. */
    static CleanerConfig config(JsonNode node) {
        if (node == null || node.isNull()) {
            return new CleanerConfig(false);
        }
        return new CleanerConfig(1, node.path("dedupe_buffer").asLong(2 << 20), node.path("load_factor").asDouble(0.9),
            node.path("io_buffer").asInt(1 << 17), node.path("max_message").asInt(1 << 20), Double.MAX_VALUE, 15_000,
            true);
    }

    @Override
    public void startup() {
    }

    /** As the loop of the thread does it, but for the rest in between; a broker takes away what is offline first. */
    void take(int turns, ObjectNode result) throws Exception {
        for (File dir : dirs) {
            if (channel.hasOfflineLogDir(dir.getAbsolutePath())) {
                throw new KafkaStorageException(dir + " is offline");
            }
        }
        if (thread == null) {
            thread = new CleanerThread(0);
        }
        Method turn = CleanerThread.class.getDeclaredMethod("tryCleanFilthiestLog");
        turn.setAccessible(true);
        for (int number = 0; number < turns; number++) {
            thread.setLastStats(null);
            turn.invoke(thread);
            ObjectNode pass = result.withArray("passes").addObject();
            if (thread.lastStats() != null) {
                CleanOp.put(thread.lastStats(), pass);
            }
            cleanerManager().maintainUncleanablePartitions();
        }
        ObjectNode marked = result.putObject("uncleanable");
        for (File dir : dirs) {
            List<String> names = cleanerManager().uncleanablePartitions(dir.getAbsolutePath()).stream()
                .map(TopicPartition::toString).sorted().toList();
            if (!names.isEmpty()) {
                names.forEach(marked.putArray(dir.getName())::add);
            }
        }
    }
}
