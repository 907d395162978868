package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** What the operations of one script share: the work folder, the clock, the scheduler and the open logs. */
final class Session {
    private final Path workDir;
    private final ScriptTime time = new ScriptTime();
    private final ScriptScheduler scheduler = new ScriptScheduler(time);
    private final BrokerTopicStats stats = new BrokerTopicStats();
    private final Map<String, OpenLog> logs = new HashMap<>();
    private boolean manualScheduler = false;

    Session(Path workDir) {
        this.workDir = workDir.toAbsolutePath().normalize();
    }

    Path path(String relative) {
        return workDir.resolve(relative).normalize();
    }

    ScriptTime time() {
        return time;
    }

    ScriptScheduler scheduler() {
        return scheduler;
    }

    BrokerTopicStats stats() {
        return stats;
    }

    boolean manualScheduler() {
        return manualScheduler;
    }

    void setManualScheduler(boolean manual) {
        manualScheduler = manual;
    }

    void runDueTasks(ObjectNode result) {
        ScriptScheduler.Round round = scheduler.runDue();
        round.ran().forEach(name -> result.withArray("tasks_run").add(name));
        round.errors().forEach(error -> result.withArray("task_errors").add(error));
    }

    /** The handle, or null when it is not open. */
    OpenLog find(String handle) {
        return logs.get(handle);
    }

    OpenLog handle(Op op) {
        OpenLog open = logs.get(op.handle());
        if (open == null) {
            throw new IllegalStateException("no open log");
        }
        return open;
    }

    void put(String handle, UnifiedLog log) {
        OpenLog before = logs.get(handle);
        if (before == null || before.log() != log) {
            logs.put(handle, new OpenLog(log));
        }
    }

    /** Forgets the handle; the log is closed already, or does not matter any more. */
    UnifiedLog forget(String handle) {
        UnifiedLog log = logs.remove(handle).log();
        log.removeLogMetrics();
        return log;
    }

    void forget(UnifiedLog log) {
        logs.values().removeIf(open -> open.log() == log);
    }

    /** As a crash: files are let go, nothing is flushed or trimmed. */
    void dropHandles() {
        scheduler.dropAll();
        for (OpenLog open : logs.values()) {
            open.log().closeQuietly();
            open.log().removeLogMetrics();
        }
        logs.clear();
    }
}
