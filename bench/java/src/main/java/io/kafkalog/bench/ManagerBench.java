package io.kafkalog.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Set;

import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.ConfigRepository;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Runs Kafka's LogManager on one directory, controlled through standard input by bench/manager.py.  The line
 * `life THREADS DIRECTORY [BATCH]` starts it, appends the batch in that file to each partition, and shuts it down;
 * `crash THREADS DIRECTORY` starts it and drops everything without a marker.  Prints one line of JSON for each command.
 */
public final class ManagerBench {
    private static final Time TIME = Time.SYSTEM;

    private ManagerBench() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            byte[] batch = words.length > 3 ? Files.readAllBytes(Path.of(words[3])) : null;
            System.out.println(live(words[0], Integer.parseInt(words[1]), new File(words[2]), batch));
            System.out.flush();
        }
    }

    private static String live(String how, int threads, File directory, byte[] batch) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(10);
        scheduler.startup();
        BrokerTopicStats stats = new BrokerTopicStats();
        long began = System.nanoTime();
        LogManager manager = new LogManager(
            List.of(directory), List.of(), new NoOverrides(), new LogConfig(new Properties()), new CleanerConfig(false),
            threads, Long.MAX_VALUE, 60_000, 60_000, 300_000, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, scheduler, stats, new LogDirFailureChannel(1), TIME,
            false, 30_000, LogCleaner::new);
        manager.startup(Set.of());
        long started = System.nanoTime();
        String resources = resources();
        List<UnifiedLog> logs = new ArrayList<>(manager.allLogs());
        if (batch != null) {
            for (UnifiedLog log : logs) {
                log.appendAsLeader(MemoryRecords.readableRecords(ByteBuffer.wrap(batch.clone())), 0, AppendOrigin.CLIENT);
            }
        }
        long stopping = System.nanoTime();
        if (how.equals("life")) {
            manager.shutdown();
        } else {
            for (UnifiedLog log : logs) {
                log.closeQuietly();
            }
            for (FileLock lock : manager.dirLocks()) {
                lock.unlockAndClose();
            }
        }
        long stopped = System.nanoTime();
        scheduler.shutdown();
        stats.close();
        return "{\"logs\":" + logs.size() + ",\"start\":" + (started - began) / 1e9 + ",\"stop\":" + (stopped - stopping) / 1e9
            + resources + "}";
    }

    /** The process's resident bytes and open descriptors, from Linux's /proc. */
    private static String resources() throws IOException {
        Path status = Path.of("/proc/self/status");
        if (!Files.exists(status)) {
            return "";
        }
        String resident = Files.readAllLines(status).stream().filter(line -> line.startsWith("VmRSS")).findFirst().orElseThrow();
        String[] descriptors = new File("/proc/self/fd").list();
        return ",\"resident\":" + Long.parseLong(resident.replaceAll("\\D", "")) * 1024 + ",\"descriptors\":" + descriptors.length;
    }

    /** No topic overrides settings. */
    private static final class NoOverrides implements ConfigRepository {
        @Override
        public Properties config(ConfigResource resource) {
            return new Properties();
        }
    }
}
