package io.kafkalog.conformance;

/** The script itself is wrong, or its batches are not what it says: the run stops here. */
final class ScriptError extends Error {
    private static final long serialVersionUID = 1L;

    ScriptError(String message) {
        super(message);
    }
}
