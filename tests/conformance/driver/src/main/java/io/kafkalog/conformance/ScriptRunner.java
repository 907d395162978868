package io.kafkalog.conformance;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;
import org.apache.kafka.common.utils.internals.Exit;

/** Runs one script in one work folder, with a clock, a scheduler and handles of its own. */
final class ScriptRunner implements AutoCloseable {
    /** Operations after which the state of the log is not shown. */
    private static final Set<String> WITHOUT_STATE = Set.of("read", "dump");

    private final Session session;
    private final PartitionOps partition;
    private final CleanOp clean;
    private final ManagerOps manager;
    private final FileOps files;
    private final MetricsOp metrics;

    ScriptRunner(Path workDir) {
        // A manager with no live directory left would end the whole JVM.
        Exit.setHaltProcedure((status, message) -> {
            throw new IllegalStateException("halt: " + message);
        });
        session = new Session(workDir);
        partition = new PartitionOps(session);
        clean = new CleanOp(session);
        manager = new ManagerOps(session);
        files = new FileOps(session);
        metrics = new MetricsOp();
    }

    /** True when the script ran to its end; false when the script itself was wrong. */
    boolean run(List<String> lines, Consumer<String> out) {
        for (int i = 0; i < lines.size(); i++) {
            String line = lines.get(i).strip();
            if (line.isEmpty() || line.startsWith("#")) {
                continue;
            }
            ObjectNode result = Json.object();
            result.put("line", i + 1);
            boolean good = runLine(line, result);
            out.accept(result.toString());
            if (!good) {
                return false;
            }
        }
        return true;
    }

    private boolean runLine(String line, ObjectNode result) {
        Op op;
        try {
            JsonNode node = Json.MAPPER.readTree(line);
            op = new Op(node.get("op").asText(), node);
        } catch (JsonProcessingException e) {
            result.put("error", "ScriptError").put("message", e.getMessage());
            return false;
        }
        result.put("op", op.name());
        if (op.has("note")) {
            result.put("note", op.text("note"));
        }
        try {
            perform(op, result);
        } catch (ScriptError e) {
            putError(result, e);
            return false;
        } catch (Throwable e) {
            putError(result, unwrap(e));
        }
        if (!session.manualScheduler()) {
            session.runDueTasks(result);
        }
        putState(op, result);
        return true;
    }

    private void perform(Op op, ObjectNode result) throws Exception {
        switch (op.name()) {
            case "advance_clock" -> advanceClock(op, result);
            case "tick" -> session.runDueTasks(result);
            case "clean" -> clean.run(op, result);
            case "metrics" -> metrics.run(op, result);
            case "yammer" -> YammerOp.run(op, result);
            default -> {
                if (op.name().startsWith("fs_") || op.name().equals("dump")) {
                    files.run(op, result);
                } else if (op.name().startsWith("lm_")) {
                    manager.run(op, result);
                } else {
                    partition.run(op, result);
                }
            }
        }
    }

    private void advanceClock(Op op, ObjectNode result) {
        long now = op.has("to_ms") ? op.number("to_ms") : session.time().milliseconds() + op.number("by_ms");
        session.time().set(now);
        result.put("now_ms", now);
    }

    private void putState(Op op, ObjectNode result) {
        if (WITHOUT_STATE.contains(op.name()) || op.name().startsWith("fs_")) {
            return;
        }
        OpenLog open = session.find(op.handle());
        if (open == null) {
            return;
        }
        try {
            result.set("state", Rendering.state(open.log()));
        } catch (Exception e) {
            result.put("state_error", e.getClass().getSimpleName());
        }
    }

    private static void putError(ObjectNode result, Throwable error) {
        result.put("error", error.getClass().getSimpleName());
        result.put("message", String.valueOf(error.getMessage()));
        if (error.getCause() != null) {
            result.put("cause", error.getCause().toString());
        }
    }

    private static Throwable unwrap(Throwable error) {
        boolean wrapper = error instanceof InvocationTargetException || error instanceof ExecutionException;
        return wrapper && error.getCause() != null ? error.getCause() : error;
    }

    @Override
    public void close() {
        manager.abandon();
        session.dropHandles();
    }
}
