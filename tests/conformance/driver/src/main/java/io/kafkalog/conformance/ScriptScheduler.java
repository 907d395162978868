package io.kafkalog.conformance;

import java.util.ArrayList;
import java.util.List;
import java.util.PriorityQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;

/**
 * Holds tasks until the script lets what is due run, in the order of due time, then of first scheduling.
 * A periodic task keeps its place among tasks of equal due time.
 */
final class ScriptScheduler implements Scheduler {
    private final Time time;
    private final PriorityQueue<Task> tasks = new PriorityQueue<>();
    private long nextId = 0;
    private volatile List<String> directories = List.of();

    ScriptScheduler(Time time) {
        this.time = time;
    }

    /** What one round of due tasks did. */
    record Round(List<String> ran, List<String> errors) {
    }

    /** Runs what is due at the present clock, also what those tasks schedule for now. */
    Round runDue() {
        List<String> ran = new ArrayList<>();
        List<String> errors = new ArrayList<>();
        for (Task task = takeDue(); task != null; task = takeDue()) {
            ran.add(task.name);
            try {
                task.body.run();
            } catch (Throwable e) {
                errors.add(task.name + ": " + e);
            }
            task.rescheduleOrFinish();
        }
        return new Round(ran, errors);
    }

    synchronized void dropAll() {
        tasks.clear();
    }

    private synchronized Task takeDue() {
        Task first = tasks.peek();
        return first != null && first.dueMs <= time.milliseconds() ? tasks.poll() : null;
    }

    /** The log directories in the order in which they load. */
    void setDirectories(List<String> directories) {
        this.directories = directories;
    }

    @Override
    public ScheduledFuture<?> schedule(String name, Runnable body, long delayMs, long periodMs) {
        LoadingTurns.await(directories);
        return add(name, body, delayMs, periodMs);
    }

    private synchronized Task add(String name, Runnable body, long delayMs, long periodMs) {
        Task task = new Task(nextId++, name, body, saturatedAdd(time.milliseconds(), Math.max(delayMs, 0)), periodMs);
        tasks.add(task);
        return task;
    }

    @Override
    public void startup() {
    }

    @Override
    public void shutdown() {
    }

    @Override
    public void resizeThreadPool(int size) {
    }

    private static long saturatedAdd(long a, long b) {
        return a > Long.MAX_VALUE - b ? Long.MAX_VALUE : a + b;
    }

    private final class Task implements ScheduledFuture<Object> {
        private final long id;
        private final String name;
        private final Runnable body;
        private final long periodMs;
        private long dueMs;
        private boolean cancelled = false;
        private boolean done = false;

        Task(long id, String name, Runnable body, long dueMs, long periodMs) {
            this.id = id;
            this.name = name;
            this.body = body;
            this.dueMs = dueMs;
            this.periodMs = periodMs;
        }

        void rescheduleOrFinish() {
            synchronized (ScriptScheduler.this) {
                if (periodMs < 0 || cancelled) {
                    done = true;
                    return;
                }
                dueMs = saturatedAdd(dueMs, Math.max(periodMs, 1));
                tasks.add(this);
            }
        }

        @Override
        public boolean cancel(boolean mayInterruptIfRunning) {
            synchronized (ScriptScheduler.this) {
                cancelled = true;
                return tasks.remove(this);
            }
        }

        @Override
        public int compareTo(Delayed other) {
            Task that = (Task) other;
            int byTime = Long.compare(dueMs, that.dueMs);
            return byTime != 0 ? byTime : Long.compare(id, that.id);
        }

        @Override
        public boolean equals(Object other) {
            return this == other;
        }

        @Override
        public int hashCode() {
            return Long.hashCode(id);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(dueMs - time.milliseconds(), TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean isCancelled() {
            return cancelled;
        }

        @Override
        public boolean isDone() {
            return done || cancelled;
        }

        @Override
        public Object get() {
            return null;
        }

        @Override
        public Object get(long timeout, TimeUnit unit) {
            return null;
        }
    }
}
