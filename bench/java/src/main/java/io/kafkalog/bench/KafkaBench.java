package io.kafkalog.bench;

import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.CloseableIterator;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Times Apache Kafka's classes on the files that bench/ wrote; prints one JSON line for each measurement.
 * Usage: KafkaBench DATADIR WARMUP_SECONDS MEASURE_SECONDS clock|cpu NAME...
 * Each measured loop is warmed up first, because a short warm-up underestimates the JIT several times.
 * `cpu` counts the measuring thread's CPU time instead of elapsed time, except for opens that wait for the disk.
 */
public final class KafkaBench {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final int WINDOWS = 5; // as on kafkalog's side; their median counts
    private final Path data;
    private final double warmupSeconds;
    private final double measureSeconds;
    private final boolean cpu;
    private long sink;

    private KafkaBench(Path data, double warmupSeconds, double measureSeconds, boolean cpu) {
        this.data = data;
        this.warmupSeconds = warmupSeconds;
        this.measureSeconds = measureSeconds;
        this.cpu = cpu;
    }

    /** One round of work; returns how many units (bytes, records, calls) it did. */
    private interface Round {
        long run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        KafkaBench bench = new KafkaBench(Path.of(args[0]), Double.parseDouble(args[1]), Double.parseDouble(args[2]),
            args[3].equals("cpu"));
        for (int i = 4; i < args.length; i++) {
            bench.measure(args[i]);
        }
    }

    private void measure(String name) throws Exception {
        String[] parts = name.split(":");
        switch (parts[0]) {
            case "scan" -> report(name, scan(parts[1]));
            case "recover" -> report(name, recover(parts[1]));
            case "decode" -> report(name, decode(parts[1]));
            case "encode" -> report(name, encode());
            case "append" -> append(name, parts[1], parts.length > 2 ? parts[2] : "producer");
            case "read" -> reads(name, parts[1]);
            case "threads" -> threads(name, Integer.parseInt(parts[1]), parts[2], parts[3]);
            case "lookup" -> report(name, lookup());
            case "open" -> report(name, opens(parts[1].equals("clean")));
            default -> throw new IllegalArgumentException(name);
        }
    }

    private void report(String name, Round round) throws Exception {
        boolean byCpu = cpu && !name.equals("open:unclean");
        loop(round, warmupSeconds, false);
        double[] windows = new double[WINDOWS];
        for (int i = 0; i < WINDOWS; i++) {
            windows[i] = loop(round, measureSeconds / WINDOWS, byCpu);
        }
        System.out.println("{\"name\":\"" + name + "\",\"per_second\":" + Arrays.toString(windows) + "}");
        System.out.flush();
    }

    private static double loop(Round round, double seconds, boolean byCpu) throws Exception {
        long units = 0;
        long start = System.nanoTime();
        long startOfCpu = THREADS.getCurrentThreadCpuTime();
        long end = start + (long) (seconds * 1e9);
        long now;
        do {
            units += round.run();
            now = System.nanoTime();
        } while (now < end);
        return units / ((byCpu ? THREADS.getCurrentThreadCpuTime() - startOfCpu : now - start) / 1e9);
    }

    private File segment(String kind) {
        return data.resolve(kind + "-0").resolve("00000000000000000000.log").toFile();
    }

    private Round scan(String kind) throws IOException {
        FileRecords records = FileRecords.open(segment(kind), false);
        return () -> {
            long offsets = 0; // the field is shared by the threads of a curve
            for (FileLogInputStream.FileChannelRecordBatch batch : records.batches()) {
                batch.ensureValid();
                offsets += batch.lastOffset();
            }
            sink += offsets;
            return records.sizeInBytes();
        };
    }

    private Round recover(String kind) throws IOException {
        Path dir = scratch("recover-" + kind + "-0");
        Files.copy(segment(kind).toPath(), dir.resolve("00000000000000000000.log"));
        TopicPartition partition = new TopicPartition("recover-" + kind, 0);
        return () -> {
            try (LogSegment segment = LogSegment.open(dir.toFile(), 0L, config("1073741824"), Time.SYSTEM, true, 0, false, "")) {
                ProducerStateManager producers = new ProducerStateManager(partition, dir.toFile(), 900000,
                    new ProducerStateManagerConfig(86400000, false), Time.SYSTEM);
                LeaderEpochFileCache epochs = new LeaderEpochFileCache(partition,
                    new LeaderEpochCheckpointFile(
                        LeaderEpochCheckpointFile.newFile(dir.toFile()), new LogDirFailureChannel(1)), new NoScheduler());
                if (segment.recover(producers, epochs) != 0) {
                    throw new IllegalStateException("a whole segment was cut");
                }
                return segment.size();
            }
        };
    }

    private Round decode(String kind) throws IOException {
        FileRecords records = FileRecords.open(segment(kind), false);
        BufferSupplier buffers = BufferSupplier.create();
        return () -> {
            long count = 0;
            for (RecordBatch batch : records.batches()) {
                try (CloseableIterator<Record> iterator = batch.streamingIterator(buffers)) {
                    while (iterator.hasNext()) {
                        Record record = iterator.next();
                        sink += record.offset() + record.timestamp() + record.keySize() + record.valueSize();
                        count++;
                    }
                }
            }
            return count;
        };
    }

    private Round encode() {
        int count = 10000;
        Random random = new Random(1);
        SimpleRecord[] input = new SimpleRecord[count];
        for (int i = 0; i < count; i++) {
            byte[] key = String.format("key-%08d", random.nextInt(100_000_000)).getBytes();
            byte[] value = new byte[80];
            random.nextBytes(value);
            input[i] = new SimpleRecord(1_700_000_000_000L + i, key, value);
        }
        ByteBuffer buffer = ByteBuffer.allocate(4 << 20);
        return () -> {
            buffer.clear();
            MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE, Compression.NONE,
                TimestampType.CREATE_TIME, 0L);
            for (SimpleRecord record : input) {
                builder.append(record);
            }
            sink += builder.build().sizeInBytes();
            return count;
        };
    }

    /** Leader appends of prepared batches (one file of equal batches for each kind, written by bench/). */
    private void append(String name, String kind, String compression) throws Exception {
        byte[] bytes = Files.readAllBytes(data.resolve("batch-" + kind + ".bin"));
        Path dir = scratch("append-" + kind + "-" + compression + "-0");
        try (Closing log = new Closing(open(dir, compression))) {
            report(name, appends(log.log, bytes, kind.startsWith("idempotent") || kind.startsWith("txn")));
        }
        delete(dir);
    }

    private static Round appends(UnifiedLog log, byte[] bytes, boolean idempotent) {
        ByteBuffer buffer = ByteBuffer.wrap(bytes.clone());
        long[] appended = {0};
        int[] sequence = {0};
        return () -> {
            // The leader writes offsets into the caller's buffer: pass a new copy, as from a network buffer.
            buffer.clear();
            buffer.put(0, bytes);
            if (idempotent) {
                sequence[0] = stampSequence(buffer, sequence[0]);
            }
            MemoryRecords records = MemoryRecords.readableRecords(buffer);
            log.appendAsLeader(records, 0, AppendOrigin.CLIENT);
            appended[0] += bytes.length;
            if (appended[0] > (256L << 20)) {
                // In place, as on the other side: new memory would cost more than the append.
                log.truncateTo(0L);
                appended[0] = 0;
                sequence[0] = 0;
            }
            return 1;
        };
    }

    /** Scans or appends of several threads, each on its own partition; a window's rate is the sum of all threads. */
    private void threads(String name, int count, String what, String kind) throws Exception {
        byte[] bytes = Files.readAllBytes(data.resolve("batch-" + kind + ".bin"));
        List<Closing> logs = new ArrayList<>();
        List<Round> rounds = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            if (what.equals("scan")) {
                rounds.add(scan(kind));
            } else {
                Closing log = new Closing(open(scratch("threads-" + i + "-0"), "producer"));
                logs.add(log);
                rounds.add(appends(log.log, bytes, false));
            }
        }
        ExecutorService pool = Executors.newFixedThreadPool(count);
        double[] windows = new double[WINDOWS];
        for (int i = -1; i < WINDOWS; i++) {
            double seconds = i < 0 ? warmupSeconds : measureSeconds / WINDOWS;
            double sum = 0;
            List<Callable<Double>> loops = new ArrayList<>();
            rounds.forEach(round -> loops.add(() -> loop(round, seconds, false)));
            for (Future<Double> rate : pool.invokeAll(loops)) {
                sum += rate.get();
            }
            if (i >= 0) {
                windows[i] = sum;
            }
        }
        pool.shutdown();
        for (Closing log : logs) {
            log.close();
        }
        System.out.println("{\"name\":\"" + name + "\",\"per_second\":" + Arrays.toString(windows) + "}");
        System.out.flush();
    }

    private static int stampSequence(ByteBuffer buffer, int sequence) {
        int count = buffer.getInt(57);
        buffer.putInt(53, sequence);
        ByteBuffer crcPart = buffer.duplicate();
        crcPart.position(21);
        java.util.zip.CRC32C crc = new java.util.zip.CRC32C();
        crc.update(crcPart);
        buffer.putInt(17, (int) crc.getValue());
        return sequence + count;
    }

    private void reads(String name, String how) throws Exception {
        Path dir = scratch("read-" + how + "-0");
        Path source = segment("k16").toPath();
        Files.copy(source, dir.resolve("00000000000000000000.log"));
        Random random = new Random(7);
        try (Closing closing = new Closing(openUnclean(dir))) {
            UnifiedLog log = closing.log();
            log.updateHighWatermark(log.logEndOffset());
            long end = log.logEndOffset();
            if (how.equals("point")) {
                report(name, () -> {
                    long offset = (long) (random.nextDouble() * end);
                    FetchDataInfo info = log.read(offset, 1, FetchIsolation.HIGH_WATERMARK, true);
                    ByteBuffer target = ByteBuffer.allocate(info.records.sizeInBytes());
                    ((FileRecords) info.records).readInto(target, 0);
                    sink += target.limit();
                    return 1;
                });
            } else {
                ByteBuffer target = ByteBuffer.allocate(2 << 20);
                report(name, () -> {
                    long offset = 0;
                    long bytes = 0;
                    while (offset < end) {
                        FetchDataInfo info = log.read(offset, 1 << 20, FetchIsolation.HIGH_WATERMARK, true);
                        target.clear();
                        ((FileRecords) info.records).readInto(target, 0);
                        bytes += target.limit();
                        long last = -1;
                        for (RecordBatch batch : MemoryRecords.readableRecords(target).batches()) {
                            last = batch.lastOffset();
                        }
                        offset = last + 1;
                    }
                    return bytes;
                });
            }
        }
        delete(dir);
    }

    private Round lookup() throws IOException {
        OffsetIndex index = new OffsetIndex(data.resolve("lookup.index").toFile(), 0L, 10485760, false);
        long last = index.lastOffset();
        Random random = new Random(3);
        long[] targets = new long[4096];
        for (int i = 0; i < targets.length; i++) {
            targets[i] = (long) (random.nextDouble() * last);
        }
        return () -> {
            for (long target : targets) {
                sink += index.lookup(target).position();
            }
            return targets.length;
        };
    }

    /** Opens and closes a partition of many small segments, after a clean shutdown or after a crash. */
    private Round opens(boolean clean) throws IOException {
        Path dir = scratch(clean ? "many-0" : "many-1");
        try (Stream<Path> files = Files.list(data.resolve("many-0"))) {
            for (Path file : (Iterable<Path>) files::iterator) {
                Files.copy(file, dir.resolve(file.getFileName()));
            }
        }
        return () -> {
            try (Closing closing = new Closing(create(dir, config("1073741824"), clean))) {
                closing.log().prepareActiveSegmentForClose();
                return closing.log().numberOfSegments();
            }
        };
    }

    private Path scratch(String name) throws IOException {
        Path dir = data.resolve("java").resolve(name);
        delete(dir);
        Files.createDirectories(dir);
        return dir;
    }

    private static void delete(Path dir) throws IOException {
        if (!Files.exists(dir)) {
            return;
        }
        try (Stream<Path> paths = Files.walk(dir)) {
            List<Path> all = new ArrayList<>(paths.sorted(Comparator.reverseOrder()).toList());
            for (Path path : all) {
                Files.delete(path);
            }
        }
    }

    private static LogConfig config(String segmentBytes) {
        Properties properties = new Properties();
        properties.put("segment.bytes", segmentBytes);
        properties.put("max.message.bytes", "10485760");
        return new LogConfig(properties);
    }

    private static UnifiedLog open(Path dir, String compression) throws IOException {
        Properties properties = new Properties();
        properties.put("segment.bytes", "1073741824");
        properties.put("max.message.bytes", "10485760");
        properties.put("compression.type", compression);
        return create(dir, new LogConfig(properties), true);
    }

    private static UnifiedLog openUnclean(Path dir) throws IOException {
        return create(dir, config("1073741824"), false);
    }

    private static UnifiedLog create(Path dir, LogConfig config, boolean clean) throws IOException {
        return UnifiedLog.create(dir.toFile(), config, 0L, 0L, new NoScheduler(), new BrokerTopicStats(), Time.SYSTEM, 900000,
            new ProducerStateManagerConfig(86400000, false), 600000, new LogDirFailureChannel(1), clean, Optional.empty());
    }

    /** Closes a log at the end of a try block. */
    private record Closing(UnifiedLog log) implements AutoCloseable {
        @Override
        public void close() {
            log.close();
        }
    }

    /** Runs no background work, which is not measured: flushes of rolled segments would measure the disk. */
    private static final class NoScheduler implements Scheduler {
        private static final ScheduledFuture<?> NEVER;

        static {
            ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(1, task -> {
                Thread thread = new Thread(task);
                thread.setDaemon(true);
                return thread;
            });
            NEVER = pool.schedule(() -> { }, 1, TimeUnit.DAYS);
        }

        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return NEVER;
        }

        @Override
        public void resizeThreadPool(int newSize) {
        }
    }
}
