package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.yammer.metrics.core.MetricName;
import com.yammer.metrics.core.MetricsRegistry;
import com.yammer.metrics.core.Timer;
import com.yammer.metrics.stats.EWMA;
import com.yammer.metrics.stats.Snapshot;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** The arithmetic of the library that Kafka counts and times with: `durations_ns` of a timer, `marks` of each tick. */
final class YammerOp {
    private static final double[] QUANTILES = {0.5, 0.75, 0.95, 0.98, 0.99, 0.999};

    private YammerOp() {
    }

    static void run(Op op, ObjectNode result) {
        ObjectNode found = result.putObject("result");
        MetricsRegistry registry = new MetricsRegistry();
        try {
            timer(registry, op.node().get("durations_ns"), found.putObject("timer"));
        } finally {
            registry.shutdown();
        }
        rates(op.node().get("marks"), found.putArray("rates"));
    }

    private static void timer(MetricsRegistry registry, JsonNode durations, ObjectNode found) {
        MetricName name = new MetricName("a", "b", "c");
        Timer timer = registry.newTimer(name, TimeUnit.MILLISECONDS, TimeUnit.SECONDS);
        durations.forEach(ns -> timer.update(ns.asLong(), TimeUnit.NANOSECONDS));
        found.put("count", timer.count());
        found.put("min", timer.min());
        found.put("max", timer.max());
        found.put("mean", timer.mean());
        found.put("std_dev", timer.stdDev());
        found.put("sum", timer.sum());
        Snapshot snapshot = timer.getSnapshot();
        ArrayNode percentiles = found.putArray("percentiles");
        for (double quantile : QUANTILES) {
            percentiles.add(snapshot.getValue(quantile));
        }
    }

    private static void rates(JsonNode marks, ArrayNode found) {
        List<EWMA> rates = List.of(EWMA.oneMinuteEWMA(), EWMA.fiveMinuteEWMA(), EWMA.fifteenMinuteEWMA());
        for (JsonNode mark : marks) {
            ArrayNode at = found.addArray();
            for (EWMA rate : rates) {
                rate.update(mark.asLong());
                rate.tick();
                at.add(rate.rate(TimeUnit.SECONDS));
            }
        }
    }
}
