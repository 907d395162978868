package io.kafkalog.conformance;

import java.util.Optional;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** A handle of a script: an open log, and where the previous cleaner pass over it ended. */
final class OpenLog {
    private final UnifiedLog log;
    private Optional<Long> lastCleanOffset = Optional.empty();

    OpenLog(UnifiedLog log) {
        this.log = log;
    }

    UnifiedLog log() {
        return log;
    }

    Optional<Long> lastCleanOffset() {
        return lastCleanOffset;
    }

    void setLastCleanOffset(Optional<Long> offset) {
        lastCleanOffset = offset;
    }
}
