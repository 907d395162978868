package io.kafkalog.conformance;

import java.util.Arrays;
import java.util.List;

/**
 * The logs of several directories load side by side, and the order of Kafka's maps depends on who comes first.  Here a
 * directory's loading threads wait, before a log of theirs is in a map, until those of the directories before it are done.
 */
final class LoadingTurns {
    private static final String PREFIX = "log-recovery-";
    private static final int LOOKS = 3;

    private LoadingTurns() {
    }

    /** Called by whoever schedules a task, as each log that is loaded does. */
    static void await(List<String> directories) {
        String name = Thread.currentThread().getName();
        for (String directory : directories) {
            if (name.startsWith(PREFIX + directory + "-")) {
                return;
            }
            if (name.startsWith(PREFIX)) {
                awaitIdle(PREFIX + directory + "-");
            }
        }
    }

    /** A start that failed leaves the rest of its jobs running: what they do to files is done before we go on. */
    static void awaitAll() {
        awaitIdle(PREFIX);
    }

    private static void awaitIdle(String prefix) {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith(prefix)) {
                // A thread that was just given a job may look idle for a moment.
                for (int looks = 0; looks < LOOKS && thread.isAlive(); looks = waitsForJobs(thread) ? looks + 1 : 0) {
                    try {
                        thread.join(1);
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                }
            }
        }
    }

    /** A pool that nobody shuts down keeps its threads. */
    private static boolean waitsForJobs(Thread thread) {
        return thread.getState() == Thread.State.WAITING
            && Arrays.stream(thread.getStackTrace()).anyMatch(frame -> frame.getMethodName().equals("getTask"));
    }
}
