package io.kafkalog.conformance;

import org.apache.kafka.common.utils.Time;

/** A clock that only the script moves. */
public final class ScriptTime implements Time {
    private volatile long nowMs;

    public void set(long ms) {
        nowMs = ms;
    }

    public void advance(long ms) {
        nowMs += ms;
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000L;
    }

    @Override
    public void sleep(long ms) {
        throw new UnsupportedOperationException("nothing in a script may sleep");
    }
}
