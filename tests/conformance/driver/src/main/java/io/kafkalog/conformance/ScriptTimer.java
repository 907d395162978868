package io.kafkalog.conformance;

import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorTimer;

/** A coordinator's timer whose operations the script runs, in the order of their times and then of their making. */
public final class ScriptTimer implements CoordinatorTimer<CoordinatorRecord> {
    private final ScriptTime time;
    private final Map<String, Due> byKey = new LinkedHashMap<>();

    public ScriptTimer(ScriptTime time) {
        this.time = time;
    }

    private record Due(String key, long ms, TimeoutOperation<CoordinatorRecord> operation) {
    }

    /** Takes the next operation whose time has come. */
    public Optional<TimeoutOperation<CoordinatorRecord>> next() {
        Optional<Due> first = byKey.values().stream().filter(each -> each.ms <= time.milliseconds())
            .min(Comparator.comparingLong(Due::ms));
        first.ifPresent(each -> byKey.remove(each.key));
        return first.map(Due::operation);
    }

    @Override
    public void schedule(String key, long delay, TimeUnit unit, boolean retry,
                         TimeoutOperation<CoordinatorRecord> operation) {
        byKey.remove(key);
        byKey.put(key, new Due(key, time.milliseconds() + unit.toMillis(delay), operation));
    }

    @Override
    public void schedule(String key, long delay, TimeUnit unit, boolean retry, long retryBackoff,
                         TimeoutOperation<CoordinatorRecord> operation) {
        schedule(key, delay, unit, retry, operation);
    }

    @Override
    public void scheduleIfAbsent(String key, long delay, TimeUnit unit, boolean retry,
                                 TimeoutOperation<CoordinatorRecord> operation) {
        if (!isScheduled(key)) {
            schedule(key, delay, unit, retry, operation);
        }
    }

    @Override
    public void cancel(String key) {
        byKey.remove(key);
    }

    @Override
    public boolean isScheduled(String key) {
        return byKey.containsKey(key);
    }
}
