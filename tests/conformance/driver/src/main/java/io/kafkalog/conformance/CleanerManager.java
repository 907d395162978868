package io.kafkalog.conformance;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * The real LogCleanerManager over real logs, after calls from standard input, one a line; the first argument is the
 * folder of its directories {@code d1} and {@code d2}. Each line is answered by one, of a call that fails by the
 * exception's name and message. Answers of many are in the order in which Kafka has them.
 */
public final class CleanerManager {
    private static final int DIRS = 2;

    private final Session session;
    private final Path root;
    private final ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
    private final LogDirFailureChannel channel = new LogDirFailureChannel(DIRS);
    private final LogCleanerManager manager;

    private CleanerManager(Path root) {
        this.root = root;
        this.session = new Session(root);
        manager = new LogCleanerManager(List.of(dir("d1"), dir("d2")), logs, channel);
    }

    public static void main(String[] args) throws Exception {
        CleanerManager own = new CleanerManager(Path.of(args[0]).toAbsolutePath());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(own.answer(line.split(" ")));
        }
    }

    private String answer(String[] words) throws Exception {
        try {
            return run(words);
        } catch (IllegalStateException e) {
            return e.getClass().getSimpleName() + ": " + e.getMessage();
        }
    }

    private String run(String[] words) throws Exception {
        switch (words[0]) {
            case "log" -> logs.put(partition(words[1]), log(words[1], words[2], words[3]));
            case "fill" -> fill(logs.get(partition(words[1])), Integer.parseInt(words[2]));
            case "gone" -> logs.remove(partition(words[1]));
            case "add" -> manager.updateCheckpoints(
                dir(words[1]), Optional.of(Map.entry(partition(words[2]), Long.parseLong(words[3]))), Optional.empty());
            case "remove" ->
                manager.updateCheckpoints(dir(words[1]), Optional.empty(), Optional.of(partition(words[2])));
            case "tidy" -> manager.updateCheckpoints(dir(words[1]), Optional.empty(), Optional.empty());
            case "truncate" ->
                manager.maybeTruncateCheckpoint(dir(words[1]), partition(words[2]), Long.parseLong(words[3]));
            case "alter" -> manager.alterCheckpointDir(partition(words[1]), dir(words[2]), dir(words[3]));
            case "pause" -> manager.abortAndPauseCleaning(partition(words[1]));
            case "resume" -> manager.resumeCleaning(Set.of(partition(words[1])));
            case "abort" -> manager.abortCleaning(partition(words[1]));
            case "done" -> manager.doneCleaning(partition(words[1]), dir(words[2]), Long.parseLong(words[3]));
            case "deleted" -> manager.doneDeleting(List.of(partition(words[1])));
            case "fail" -> manager.handleLogDirFailure(dir(words[1]).getPath());
            case "mark" -> manager.markPartitionUncleanable(dir(words[1]).getPath(), partition(words[2]));
            case "maintain" -> manager.maintainUncleanablePartitions();
            case "retention" -> {
                return names(new ArrayList<>(manager.pauseCleaningForNonCompactedPartitions().stream()
                    .map(Map.Entry::getKey).toList()));
            }
            case "deletable" -> {
                return names(new ArrayList<>(manager.deletableLogs().keySet()));
            }
            case "uncleanable" -> {
                return names(manager.uncleanablePartitions(dir(words[1]).getPath()).stream().sorted(
                    (a, b) -> a.toString().compareTo(b.toString())).toList());
            }
            case "grab" -> {
                return grab();
            }
            case "show" -> {
                return Files.readString(dir(words[1]).toPath().resolve("cleaner-offset-checkpoint")).replace("\n", "|");
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "ok";
    }

    private String grab() {
        PreCleanStats stats = new PreCleanStats();
        Optional<LogToClean> found = manager.grabFilthiestCompactedLog(session.time(), stats);
        return found.map(log -> log.topicPartition() + " " + log.firstDirtyOffset() + " " + log.firstUncleanableOffset()
            + " " + log.cleanableBytes() + " " + log.totalBytes()).orElse("none") + " of " + stats.cleanablePartitions();
    }

    private UnifiedLog log(String name, String dir, String policy) throws Exception {
        Map<String, String> config = Map.of("cleanup.policy", policy, "internal.segment.bytes", "300",
            "min.cleanable.dirty.ratio", "0.3", "segment.jitter.ms", "0");
        return UnifiedLog.create(dir(dir).toPath().resolve(name).toFile(), new LogConfig(config), 0, 0,
            session.scheduler(), session.stats(), session.time(), 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, channel, true, Optional.empty());
    }

    private void fill(UnifiedLog log, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            SimpleRecord record = new SimpleRecord(session.time().milliseconds(), ("k" + number % 3).getBytes(
                StandardCharsets.UTF_8), new byte[30]);
            log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, record), 0);
            log.updateHighWatermark(log.logEndOffset());
        }
        log.roll();
    }

    private File dir(String name) {
        File found = root.resolve(name).toFile();
        found.mkdirs();
        return found;
    }

    private static TopicPartition partition(String name) {
        int dash = name.lastIndexOf('-');
        return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
    }

    private static String names(List<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).collect(Collectors.joining(" "));
    }
}
