package io.kafkalog.bench;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Runs passes of Kafka's Cleaner, and its offset map, controlled through standard input by bench/cleaner.py:
 * `clean MAP_BYTES IO_BYTES PARTITION_FOLDER` cleans all but the active segment, `map KEYS` puts and gets that many
 * 16-byte keys at a load of 0.9.  Prints one line of JSON for each command.
 */
public final class CleanerBench {
    private static final Time TIME = Time.SYSTEM;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private CleanerBench() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("clean")
                ? clean(Integer.parseInt(words[1]), Integer.parseInt(words[2]), new File(words[3]))
                : map(Integer.parseInt(words[1])));
            System.out.flush();
        }
    }

    private static String clean(int mapBytes, int ioBytes, File folder) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BrokerTopicStats stats = new BrokerTopicStats();
        Properties properties = new Properties();
        properties.setProperty("cleanup.policy", "compact");
        properties.setProperty("segment.bytes", String.valueOf(64 << 20));
        UnifiedLog log = UnifiedLog.create(folder, new LogConfig(properties), 0, 0, scheduler, stats, TIME, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1), true,
            Optional.empty(), new java.util.concurrent.ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
        log.updateHighWatermark(log.logEndOffset());
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "bench", "bytes", TIME);
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(mapBytes), ioBytes, 1 << 20, 0.9, throttler, TIME, partition -> { });
        long began = System.nanoTime();
        long cpuBegan = THREADS.getCurrentThreadCpuTime();
        Map.Entry<Long, CleanerStats> pass = cleaner.clean(new LogToClean(log, 0, log.activeSegment().baseOffset(), false));
        long ended = System.nanoTime();
        long cpuEnded = THREADS.getCurrentThreadCpuTime();
        CleanerStats done = pass.getValue();
        String answer = "{\"seconds\":" + (ended - began) / 1e9
            + ",\"cpu\":" + (cpuEnded - cpuBegan) / 1e9 + ",\"end\":" + pass.getKey() + ",\"read\":" + done.bytesRead()
            + ",\"written\":" + done.bytesWritten() + ",\"kept\":" + done.messagesWritten() + "}";
        log.close();
        scheduler.shutdown();
        stats.close();
        return answer;
    }

    private static String map(int count) throws Exception {
        byte[] keys = new byte[16 * count];
        new Random(1).nextBytes(keys);
        SkimpyOffsetMap map = new SkimpyOffsetMap((int) Math.min(Integer.MAX_VALUE, (long) (count / 0.9 + 1) * 24));
        ByteBuffer all = ByteBuffer.wrap(keys);
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            all.limit(16 * i + 16).position(16 * i);
            map.put(all, i);
        }
        long put = System.nanoTime();
        long seen = 0;
        for (int i = 0; i < count; i++) {
            all.limit(16 * i + 16).position(16 * i);
            seen += map.get(all);
        }
        long ended = System.nanoTime();
        return "{\"put\":" + (put - began) / 1e9 + ",\"get\":" + (ended - put) / 1e9 + ",\"seen\":" + seen + "}";
    }
}
