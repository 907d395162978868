package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ObjectNode;
import com.yammer.metrics.core.Gauge;
import com.yammer.metrics.core.Metered;
import com.yammer.metrics.core.Metric;
import com.yammer.metrics.core.MetricName;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.server.metrics.KafkaYammerMetrics;

/**
 * What Kafka's registry shows of one topic's logs and of what all logs share, by JMX object: gauges by their value,
 * meters and timers by what this script counted.  The registry is the whole JVM's: whatever counted nothing is left
 * out, unless all names are asked for.
 */
final class MetricsOp {
    private final Map<MetricName, Long> before = new HashMap<>();

    MetricsOp() {
        KafkaYammerMetrics.defaultRegistry().allMetrics().forEach((name, metric) -> {
            if (metric instanceof Metered metered) {
                before.put(name, metered.count());
            }
        });
    }

    void run(Op op, ObjectNode result) {
        boolean all = op.flag("all", false);
        String topic = op.text("topic", "");
        List<String> types = List.of(op.text("types", "Log LogFlushStats BrokerTopicMetrics").split(" "));
        Map<String, Object> found = new TreeMap<>();
        KafkaYammerMetrics.defaultRegistry().allMetrics().forEach((name, metric) -> {
            if (types.contains(name.getType()) && isShown(name, topic)) {
                put(found, name, metric, all);
            }
        });
        result.set("result", Json.MAPPER.valueToTree(found));
    }

    private static boolean isShown(MetricName name, String topic) {
        String object = name.getMBeanName() + ",";
        return object.contains(",topic=" + topic + ",") || !object.contains(",topic=");
    }

    private void put(Map<String, Object> found, MetricName name, Metric metric, boolean all) {
        if (metric instanceof Gauge<?> gauge) {
            found.put(name.getMBeanName(), gauge.value());
        } else if (metric instanceof Metered metered) {
            long counted = metered.count() - before.getOrDefault(name, 0L);
            if (all || counted != 0) {
                found.put(name.getMBeanName(), counted);
            }
        }
    }
}
