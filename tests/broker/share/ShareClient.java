import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A share consumer that accepts, releases and rejects by a rule, and prints what it was given, in the order of offsets.
 *
 * Arguments: bootstrap servers, group, topic, number of records, "batch_optimized" or "record_limit", most records a
 * poll, milliseconds. The record at an offset is accepted at delivery 1 + offset % 3, and rejected instead if offset
 * % 5 == 4; before that it is released. */
public final class ShareClient {
    public static void main(String[] args) throws Exception {
        String servers = args[0], group = args[1], topic = args[2];
        int count = Integer.parseInt(args[3]);
        long until = System.currentTimeMillis() + Long.parseLong(args[6]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET))))
                .all().get();
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", args[4]);
        settings.put("max.poll.records", args[5]);
        Map<String, List<String>> seen = new TreeMap<>();
        int ended = 0;
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (ended < count && System.currentTimeMillis() < until) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    int times = record.deliveryCount().get();
                    AcknowledgeType type = AcknowledgeType.RELEASE;
                    if (times > record.offset() % 3) {
                        type = record.offset() % 5 == 4 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
                        ended++;
                    }
                    consumer.acknowledge(record, type);
                    seen.computeIfAbsent(String.format("%d-%06d %s", record.partition(), record.offset(),
                        new String(record.value())), key -> new ArrayList<>()).add(times + type.toString());
                }
                for (Map.Entry<TopicIdPartition, ?> each : consumer.commitSync().entrySet()) {
                    Object error = ((java.util.Optional<?>) each.getValue()).orElse(null);
                    if (error != null) {
                        System.out.println("failed " + each.getKey() + " " + error);
                    }
                }
            }
        }
        seen.forEach((key, value) -> System.out.println(key + " " + String.join(" ", value)));
        System.out.println("ended " + ended);
    }
}
