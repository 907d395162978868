import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group. {@code take BOOTSTRAP GROUP TOPIC PLAN} acknowledges records in the order in which they
 * come, by a letter of the plan each: a accepts, r releases, x rejects; later records are released. It prints a line
 * for each record of the plan: partition, offset, delivery count. {@code offsets BOOTSTRAP GROUP} prints what the
 * group's coordinator says: partition, start offset, lag.
 */
public final class ShareClient {
    private ShareClient() {
    }

    public static void main(String[] args) throws Exception {
        Properties props = new Properties();
        props.put("bootstrap.servers", args[1]);
        try (Admin admin = Admin.create(props)) {
            if (args[0].equals("offsets")) {
                offsets(admin, args[2]);
            } else {
                ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, args[2]);
                admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(
                    new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
                take(props, args[2], args[3], args[4]);
            }
        }
    }

    private static void offsets(Admin admin, String group) throws Exception {
        Map<String, String> lines = new TreeMap<>();
        admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get()
            .forEach((partition, info) -> lines.put(partition.toString(), partition + " " + info.startOffset() + " "
                + info.lag().map(String::valueOf).orElse("-")));
        lines.values().forEach(System.out::println);
    }

    private static void take(Properties props, String group, String topic, String plan) throws Exception {
        props.put("group.id", group);
        props.put("share.acknowledgement.mode", "explicit");
        List<String> lines = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer =
                 new KafkaShareConsumer<>(props, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Set.of(topic));
            long until = System.currentTimeMillis() + 60_000;
            while (lines.size() < plan.length() && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    char step = lines.size() < plan.length() ? plan.charAt(lines.size()) : '-';
                    consumer.acknowledge(record, step == 'a' ? AcknowledgeType.ACCEPT
                        : step == 'x' ? AcknowledgeType.REJECT : AcknowledgeType.RELEASE);
                    if (step != '-') {
                        lines.add(record.partition() + " " + record.offset() + " " + record.deliveryCount().orElse((short) 0));
                    }
                }
                consumer.commitSync();
            }
        }
        lines.forEach(System.out::println);
    }
}
