package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

/** One pass of Kafka's cleaner over a log, with the range that its manager would choose. */
final class CleanOp {
    private static final long THROTTLE_CHECK_MS = 300;

    private final Session session;

    CleanOp(Session session) {
        this.session = session;
    }

    void run(Op op, ObjectNode result) throws Exception {
        OpenLog open = session.handle(op);
        UnifiedLog log = open.log();
        if (op.node().has("last_clean_offset")) {
            open.setLastCleanOffset(op.maybeNumber("last_clean_offset"));
        }
        Range chosen = range(log, open.lastCleanOffset());
        LogToClean range = chosen.toClean();
        SkimpyOffsetMap map = new SkimpyOffsetMap(op.integer("buffer_bytes", 1 << 20));
        int ioBuffer = op.integer("io_buffer", 1 << 16);
        Throttler throttler = new Throttler(
            Double.MAX_VALUE, THROTTLE_CHECK_MS, "conformance", "bytes", session.time());
        Cleaner cleaner = new Cleaner(0, map, ioBuffer, op.integer("max_io_buffer", 4 * ioBuffer),
            op.real("load_factor", 0.9), throttler, session.time(), topicPartition -> { });
        Map.Entry<Long, CleanerStats> pass = cleaner.clean(range);
        if (pass.getKey() > range.firstDirtyOffset()) {
            open.setLastCleanOffset(Optional.of(pass.getKey()));
        }
        put(chosen, pass.getKey(), pass.getValue(), map, result.putObject("clean"));
    }

    /** What would be cleaned; the manager's upper bound is shown as it was before it is rounded down to a segment. */
    private record Range(LogToClean toClean, long firstUncleanable) {
    }

    /** The range and whether the clean is overdue: package-private in Kafka's manager. */
    private Range range(UnifiedLog log, Optional<Long> lastCleanOffset) throws ReflectiveOperationException {
        long now = session.time().milliseconds();
        Method offsets = LogCleanerManager.class.getDeclaredMethod(
            "cleanableOffsets", UnifiedLog.class, Optional.class, long.class);
        offsets.setAccessible(true);
        Object found = offsets.invoke(null, log, lastCleanOffset, now);
        long firstDirty = number(found, "firstDirtyOffset");
        long firstUncleanable = number(found, "firstUncleanableDirtyOffset");
        Method delay = LogCleanerManager.class.getDeclaredMethod(
            "maxCompactionDelay", UnifiedLog.class, long.class, long.class);
        delay.setAccessible(true);
        boolean overdue = (long) delay.invoke(null, log, firstDirty, now) > 0;
        return new Range(new LogToClean(log, firstDirty, firstUncleanable, overdue), firstUncleanable);
    }

    private static long number(Object record, String component) throws ReflectiveOperationException {
        Method accessor = record.getClass().getDeclaredMethod(component);
        accessor.setAccessible(true);
        return (long) accessor.invoke(record);
    }

    private static boolean wouldBePicked(LogToClean range) throws ReflectiveOperationException {
        Method overdue = LogToClean.class.getDeclaredMethod("needCompactionNow");
        overdue.setAccessible(true);
        if (range.totalBytes() == 0) {
            return false;
        }
        return (boolean) overdue.invoke(range) && range.cleanableBytes() > 0
            || range.cleanableRatio() > range.log().config().minCleanableRatio;
    }

    private static void put(Range chosen, long end, CleanerStats stats, SkimpyOffsetMap map, ObjectNode node)
        throws ReflectiveOperationException {
        LogToClean range = chosen.toClean();
        node.put("first_dirty", range.firstDirtyOffset());
        node.put("first_uncleanable", chosen.firstUncleanable());
        node.put("clean_bytes", range.cleanBytes());
        node.put("cleanable_bytes", range.cleanableBytes());
        node.put("total_bytes", range.totalBytes());
        node.put("cleanable_ratio", range.cleanableRatio());
        node.put("would_be_picked", wouldBePicked(range));
        node.put("end_offset", end);
        node.put("map_slots", map.slots());
        node.put("map_size", map.size());
        put(stats, node);
    }

    /** What a pass counted. */
    static void put(CleanerStats stats, ObjectNode node) {
        node.put("map_messages_read", stats.mapMessagesRead());
        node.put("bytes_read", stats.bytesRead());
        node.put("bytes_written", stats.bytesWritten());
        node.put("messages_read", stats.messagesRead());
        node.put("messages_written", stats.messagesWritten());
        node.put("invalid_messages_read", stats.invalidMessagesRead());
    }
}
