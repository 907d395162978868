import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * What Java's clients see of a server, as lines of text without times and ids: `Story BOOTSTRAP PROGRAM [ARGUMENT]`.
 * The same program on two servers must print the same lines.
 */
public class Story {
    static final Duration WAIT = Duration.ofMillis(200);
    static String bootstrap;
    static String argument;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        argument = args.length > 2 ? args[2] : "";
        Map<String, Callable<Void>> programs = Map.of(
            "records", Story::records, "transactions", Story::transactions, "group", Story::group,
            "share", Story::share, "admin", Story::admin, "streams", Story::streams, "errors", Story::errors);
        programs.get(args[1]).call();
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void say(String line) {
        System.out.println(line);
    }

    static Map<String, Object> settings(Object... pairs) {
        Map<String, Object> found = new HashMap<>();
        found.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            found.put((String) pairs[i], pairs[i + 1]);
        }
        return found;
    }

    static KafkaProducer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(settings(pairs), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Object... pairs) {
        Map<String, Object> given = settings(pairs);
        given.putIfAbsent("auto.offset.reset", "earliest");
        given.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer());
    }

    static Admin client() {
        return Admin.create(settings());
    }

    static void topic(String name, int partitions) throws Exception {
        try (Admin admin = client()) {
            admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        }
    }

    static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long end = System.currentTimeMillis() + 30_000;
        while (found.size() < count && System.currentTimeMillis() < end) {
            consumer.poll(WAIT).forEach(found::add);
        }
        found.sort(Comparator.comparing((ConsumerRecord<String, String> r) -> r.topic())
            .thenComparing(ConsumerRecord::partition).thenComparing(ConsumerRecord::offset));
        return found;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(i -> new TopicPartition(topic, i)).toList();
    }

    static void show(List<ConsumerRecord<String, String>> records) {
        for (ConsumerRecord<String, String> r : records) {
            String headers = Arrays.stream(r.headers().toArray()).map(h -> h.key() + "=" + Arrays.toString(h.value()))
                .collect(Collectors.joining(","));
            say(r.partition() + " " + r.offset() + " " + r.key() + " " + r.value() + " " + headers + " "
                + r.timestampType() + " " + r.leaderEpoch().orElse(-1));
        }
    }

    // --- records: every codec, keys, nulls, headers ------------------------------------------------

    static Void records() throws Exception {
        topic("records", 3);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = producer("compression.type", codec, "linger.ms", 5)) {
                for (int i = 0; i < 100; i++) {
                    String value = i % 17 == 0 ? null : codec + "-" + i + "x".repeat(i);
                    ProducerRecord<String, String> record = new ProducerRecord<>("records", i % 3, "key-" + i, value);
                    if (i % 5 == 0) {
                        record.headers().add("h" + i, new byte[] {(byte) i}).add("empty", null);
                    }
                    producer.send(record);
                }
                producer.flush();
            }
        }
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(partitions("records", 3));
            consumer.seekToBeginning(List.of());
            show(read(consumer, 500));
            say("ends " + new TreeMap<>(consumer.endOffsets(partitions("records", 3)).entrySet().stream()
                .collect(Collectors.toMap(e -> e.getKey().toString(), Map.Entry::getValue))));
            say("lag " + consumer.currentLag(new TopicPartition("records", 0)).isPresent());
            say("partitions " + consumer.partitionsFor("records").size());
        }
        return null;
    }

    // --- transactions ------------------------------------------------------------------------------

    static Void transactions() throws Exception {
        topic("ledger", 2);
        topic("source", 1);
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 20; i++) {
                producer.send(new ProducerRecord<>("source", "k", "s" + i));
            }
        }
        try (KafkaProducer<String, String> producer = producer("transactional.id", "books")) {
            producer.initTransactions();
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                for (int i = 0; i < 5; i++) {
                    producer.send(new ProducerRecord<>("ledger", i % 2, "k" + i, "round-" + round + "-" + i));
                }
                if (round % 2 == 0) {
                    producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition("source", 0), new OffsetAndMetadata(round + 1L, "m" + round)),
                        new ConsumerGroupMetadata("mover"));
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
        // A second producer of the id fences the first.
        try (KafkaProducer<String, String> first = producer("transactional.id", "fence");
             KafkaProducer<String, String> second = producer("transactional.id", "fence")) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>("ledger", 0, "f", "of the first")).get();
            second.initTransactions();
            try {
                first.send(new ProducerRecord<>("ledger", 0, "f", "too late"));
                first.commitTransaction();
                say("not fenced");
            } catch (KafkaException error) {
                say("fenced");
            }
            second.beginTransaction();
            second.send(new ProducerRecord<>("ledger", 0, "f", "of the second"));
            second.commitTransaction();
        }
        for (String level : List.of("read_committed", "read_uncommitted")) {
            try (KafkaConsumer<String, String> consumer = consumer("isolation.level", level)) {
                consumer.assign(partitions("ledger", 2));
                consumer.seekToBeginning(List.of());
                List<ConsumerRecord<String, String>> found = read(consumer, level.equals("read_committed") ? 16 : 32);
                say(level + " " + found.size());
                found.forEach(r -> say(r.partition() + " " + r.value()));
            }
        }
        try (Admin admin = client()) {
            var offsets = admin.listConsumerGroupOffsets("mover").partitionsToOffsetAndMetadata().get();
            offsets.forEach((tp, om) -> say(tp + " " + om.offset() + " " + om.metadata()));
            for (var listing : new TreeSet<>(admin.listTransactions().all().get().stream()
                .map(t -> t.transactionalId() + " " + t.state()).toList())) {
                say(listing);
            }
            var described = admin.describeTransactions(List.of("books")).description("books").get();
            say(described.state() + " " + described.topicPartitions() + " " + described.transactionTimeoutMs());
            var states = admin.describeProducers(partitions("ledger", 2)).all().get();
            say("producers " + states.values().stream().map(s -> s.activeProducers().size()).sorted().toList());
        }
        return null;
    }

    // --- groups: the argument is "classic" or "consumer" -------------------------------------------

    static Void group() throws Exception {
        String name = "group-" + argument;
        topic(name, 4);
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 40; i++) {
                producer.send(new ProducerRecord<>(name, i % 4, "k" + i, "v" + i));
            }
        }
        Object[] given = argument.equals("classic")
            ? new Object[] {"group.id", name, "group.protocol", "classic", "session.timeout.ms", 6000}
            : new Object[] {"group.id", name, "group.protocol", "consumer"};
        KafkaConsumer<String, String> one = consumer(given);
        KafkaConsumer<String, String> two = consumer(given);
        one.subscribe(List.of(name));
        two.subscribe(List.of(name));
        Set<String> seen = new TreeSet<>();
        long end = System.currentTimeMillis() + 40_000;
        while (System.currentTimeMillis() < end
            && !(one.assignment().size() == 2 && two.assignment().size() == 2 && seen.size() == 40)) {
            one.poll(WAIT).forEach(r -> seen.add(r.value()));
            two.poll(WAIT).forEach(r -> seen.add(r.value()));
        }
        say("divided " + one.assignment().size() + " " + two.assignment().size());
        say("seen " + seen.size());
        Set<TopicPartition> both = new HashSet<>(one.assignment());
        both.retainAll(two.assignment());
        say("shared " + both.size());
        one.commitSync();
        two.commitSync();
        try (Admin admin = client()) {
            var described = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
            say(described.groupState() + " " + described.type() + " " + described.members().size() + " "
                + described.isSimpleConsumerGroup());
            String refused = "deleted";
            try {
                admin.deleteConsumerGroups(List.of(name)).all().get();
            } catch (ExecutionException error) {
                refused = error.getCause().getClass().getSimpleName();
            }
            say(refused);
        }
        two.close();
        end = System.currentTimeMillis() + 40_000;
        while (System.currentTimeMillis() < end && one.assignment().size() < 4) {
            one.poll(WAIT);
        }
        say("after leaving " + one.assignment().size());
        for (int i = 0; i < 5; i++) {
            one.poll(WAIT);
        }
        one.commitSync();
        one.close();
        try (Admin admin = client()) {
            var offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
            new TreeMap<>(offsets.entrySet().stream().collect(Collectors.toMap(e -> e.getKey().toString(),
                e -> e.getValue().offset()))).forEach((tp, offset) -> say(tp + " " + offset));
            var described = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
            say(described.groupState() + " " + described.members().size());
            admin.alterConsumerGroupOffsets(name, Map.of(new TopicPartition(name, 0), new OffsetAndMetadata(3)))
                .all().get();
            admin.deleteConsumerGroupOffsets(name, Set.of(new TopicPartition(name, 1))).all().get();
            say("offsets " + new TreeMap<>(admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get()
                .entrySet().stream().collect(Collectors.toMap(e -> e.getKey().toString(),
                    e -> e.getValue().offset()))));
            admin.deleteConsumerGroups(List.of(name)).all().get();
            say("groups " + admin.listGroups().all().get().stream().map(GroupListing::groupId)
                .filter(name::equals).toList());
        }
        return null;
    }

    // --- share groups ------------------------------------------------------------------------------

    static Void share() throws Exception {
        topic("mail", 1);
        try (Admin admin = client()) {
            var group = new ConfigResource(ConfigResource.Type.GROUP, "mailers");
            admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(
                new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
        }
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>("mail", 0, "k" + i, "m" + i)).get();
            }
        }
        Map<String, Integer> deliveries = new TreeMap<>();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
            settings("group.id", "mailers", "share.acknowledgement.mode", "explicit"),
            new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("mail"));
            long end = System.currentTimeMillis() + 40_000;
            int done = 0;
            while (done < 10 && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> r : consumer.poll(WAIT)) {
                    int count = r.deliveryCount().get();
                    deliveries.put(r.value(), count);
                    boolean again = r.value().equals("m3") && count < 3;
                    consumer.acknowledge(r, again ? AcknowledgeType.RELEASE
                        : r.value().equals("m5") ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
                    done += again ? 0 : 1;
                }
                consumer.commitSync();
            }
        }
        say("deliveries " + deliveries);
        try (Admin admin = client()) {
            var described = admin.describeShareGroups(List.of("mailers")).all().get().get("mailers");
            say(described.groupState() + " " + described.members().size());
            var offsets = admin.listShareGroupOffsets(Map.of("mailers", new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo("mailers").get();
            offsets.forEach((tp, offset) -> say(tp + " " + offset.startOffset()));
            admin.alterShareGroupOffsets("mailers", Map.of(new TopicPartition("mail", 0), 4L)).all().get();
            admin.listShareGroupOffsets(Map.of("mailers", new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo("mailers").get().forEach((tp, o) -> say(tp + " " + o.startOffset()));
            admin.deleteShareGroupOffsets("mailers", Set.of("mail")).all().get();
            admin.deleteShareGroups(List.of("mailers")).all().get();
            say("groups " + admin.listGroups().all().get().stream().map(GroupListing::groupId)
                .filter("mailers"::equals).toList());
        }
        return null;
    }

    // --- admin -------------------------------------------------------------------------------------

    static Void admin() throws Exception {
        try (Admin admin = client()) {
            var cluster = admin.describeCluster();
            say("nodes " + cluster.nodes().get().size() + " controller " + cluster.controller().get().id());
            var made = admin.createTopics(List.of(new NewTopic("things", 2, (short) 1)
                .configs(Map.of("cleanup.policy", "compact", "retention.ms", "60000"))));
            say("made " + made.numPartitions("things").get() + " " + made.replicationFactor("things").get() + " "
                + made.config("things").get().get("retention.ms").value());
            var described = admin.describeTopics(List.of("things")).allTopicNames().get().get("things");
            described.partitions().forEach(p -> say(p.partition() + " leader " + p.leader().id() + " replicas "
                + p.replicas().size() + " isr " + p.isr().size()));
            var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(described.topicId()))).allTopicIds().get();
            say("by id " + byId.values().iterator().next().name());
            var topic = new ConfigResource(ConfigResource.Type.TOPIC, "things");
            for (ConfigEntry e : new TreeMap<>(admin.describeConfigs(List.of(topic)).all().get().get(topic).entries()
                .stream().collect(Collectors.toMap(ConfigEntry::name, e -> e))).values()) {
                say(e.name() + "=" + e.value() + " " + e.source() + " " + e.type() + " " + e.isReadOnly());
            }
            admin.incrementalAlterConfigs(Map.of(topic, List.of(
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.APPEND),
                new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            Thread.sleep(500);
            var config = admin.describeConfigs(List.of(topic)).all().get().get(topic);
            say(config.get("cleanup.policy").value() + " " + config.get("retention.ms").source());
            var broker = new ConfigResource(ConfigResource.Type.BROKER, "");
            admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(
                new ConfigEntry("log.retention.ms", "70000"), AlterConfigOp.OpType.SET)))).all().get();
            Thread.sleep(500);  // a broker applies its settings when it has read them from the controller
            say("default " + admin.describeConfigs(List.of(broker)).all().get().get(broker).get("log.retention.ms").value());
            admin.incrementalAlterConfigs(Map.of(broker, List.of(new AlterConfigOp(
                new ConfigEntry("log.retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            admin.createPartitions(Map.of("things", NewPartitions.increaseTo(3))).all().get();
            Thread.sleep(500);
            say("grown " + admin.describeTopics(List.of("things")).allTopicNames().get().get("things").partitions().size());
            topic("cut", 1);
            try (KafkaProducer<String, String> producer = producer()) {
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>("cut", 0, 1_700_000_000_000L + i, "k", "v" + i)).get();
                }
            }
            var cut = new TopicPartition("cut", 0);
            say("low " + admin.deleteRecords(Map.of(cut, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(cut).get().lowWatermark());
            for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(),
                OffsetSpec.forTimestamp(1_700_000_000_006L), OffsetSpec.earliestLocal())) {
                var found = admin.listOffsets(Map.of(cut, spec)).partitionResult(cut).get();
                say(spec.getClass().getSimpleName() + " " + found.offset() + " " + found.leaderEpoch().orElse(-1));
            }
            var dirs = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
            say("dirs " + dirs.size() + " " + dirs.values().iterator().next().replicaInfos().get(cut).isFuture());
            quotas(admin);
            credentials(admin);
            acls(admin);
            var features = new TreeMap<>(admin.describeFeatures().featureMetadata().get().finalizedFeatures());
            features.remove("streams.version"); // kafkalog does not serve the protocol of Streams' groups
            say("features " + features);
            admin.deleteTopics(List.of("things", "cut")).all().get();
            say("topics " + admin.listTopics().names().get().stream().filter(List.of("things", "cut")::contains).toList());
        }
        return null;
    }

    static void quotas(Admin admin) throws Exception {
        var entity = new ClientQuotaEntity(Map.of("user", "alice", "client-id", "app"));
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(
            new ClientQuotaAlteration.Op("producer_byte_rate", 1024.0))))).all().get();
        var filter = ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity("user", "alice"),
            ClientQuotaFilterComponent.ofEntity("client-id", "app")));
        Thread.sleep(500);
        say("quotas " + admin.describeClientQuotas(filter).entities().get().values());
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(
            new ClientQuotaAlteration.Op("producer_byte_rate", null))))).all().get();
        Thread.sleep(500);
        say("quotas " + admin.describeClientQuotas(filter).entities().get().size());
    }

    static void credentials(Admin admin) throws Exception {
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice",
            new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), "secret"))).all().get();
        Thread.sleep(500);
        say("scram " + admin.describeUserScramCredentials(List.of("alice")).description("alice").get());
        admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("alice",
            ScramMechanism.SCRAM_SHA_256))).all().get();
        Thread.sleep(500);
        say("scram " + admin.describeUserScramCredentials().users().get());
    }

    static void acls(Admin admin) {
        try {
            say("acls " + admin.describeAcls(AclBindingFilter.ANY).values().get().size());
        } catch (Exception error) {
            say("acls " + error.getCause().getClass().getSimpleName());
        }
    }

    // --- errors that clients make ------------------------------------------------------------------

    static void tried(String what, Callable<Object> run) {
        try {
            run.call();
            say(what + " ok");
        } catch (ExecutionException error) {
            say(what + " " + error.getCause().getClass().getSimpleName());
        } catch (Exception error) {
            say(what + " " + error.getClass().getSimpleName());
        }
    }

    static Void errors() throws Exception {
        topic("small", 1);
        try (Admin admin = client()) {
            tried("again", () -> admin.createTopics(List.of(new NewTopic("small", 1, (short) 1))).all().get());
            tried("bad name", () -> admin.createTopics(List.of(new NewTopic("a/b", 1, (short) 1))).all().get());
            tried("three replicas", () -> admin.createTopics(List.of(new NewTopic("r3", 1, (short) 3))).all().get());
            tried("bad config", () -> admin.createTopics(List.of(new NewTopic("c", 1, (short) 1)
                .configs(Map.of("no.such", "1")))).all().get());
            tried("no topic", () -> admin.describeTopics(List.of("nowhere")).allTopicNames().get());
            tried("delete none", () -> admin.deleteTopics(List.of("nowhere")).all().get());
            tried("fewer partitions", () -> admin.createPartitions(Map.of("small", NewPartitions.increaseTo(1))).all().get());
            tried("no group", () -> admin.deleteConsumerGroups(List.of("nobody")).all().get());
            tried("describe none", () -> admin.describeConsumerGroups(List.of("nobody")).all().get());
            tried("no offsets", () -> admin.listConsumerGroupOffsets("nobody").partitionsToOffsetAndMetadata().get());
            tried("no partition", () -> admin.listOffsets(Map.of(new TopicPartition("small", 7), OffsetSpec.latest())).all().get());
            tried("cut beyond", () -> admin.deleteRecords(Map.of(new TopicPartition("small", 0),
                RecordsToDelete.beforeOffset(99))).all().get());
            tried("no transaction", () -> admin.describeTransactions(List.of("nothing")).all().get());
        }
        try (KafkaProducer<String, String> producer = producer("max.request.size", 5_000_000, "retries", 0)) {
            tried("too large", () -> producer.send(new ProducerRecord<>("small", "x".repeat(2_000_000))).get());
            tried("internal", () -> producer.send(new ProducerRecord<>("__consumer_offsets", 0, "k", "v")).get());
        }
        try (KafkaConsumer<String, String> consumer = consumer("auto.offset.reset", "none")) {
            consumer.assign(List.of(new TopicPartition("small", 0)));
            consumer.seek(new TopicPartition("small", 0), 1000);
            tried("out of range", () -> consumer.poll(Duration.ofSeconds(5)));
        }
        try (KafkaConsumer<String, String> consumer = consumer("group.id", "lonely")) {
            consumer.assign(List.of(new TopicPartition("small", 0)));
            consumer.commitSync(Map.of(new TopicPartition("small", 0), new OffsetAndMetadata(0, "note")));
            say("committed " + consumer.committed(Set.of(new TopicPartition("small", 0))).values());
        }
        return null;
    }

    // --- streams: words counted exactly once -------------------------------------------------------

    static Void streams() throws Exception {
        topic("lines", 2);
        topic("counts", 2);
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 200; i++) {
                producer.send(new ProducerRecord<>("lines", i % 2, "k", "word-" + i % 7 + " word-" + i % 3));
            }
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count().toStream().to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        Properties given = new Properties();
        given.putAll(settings("application.id", "counter", "processing.guarantee", "exactly_once_v2",
            "commit.interval.ms", 200, "state.dir", argument, "replication.factor", 1));
        Map<String, Long> last = new TreeMap<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), given);
             KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(
                 settings("isolation.level", "read_committed", "auto.offset.reset", "earliest"),
                 new StringDeserializer(), new LongDeserializer())) {
            streams.start();
            consumer.assign(partitions("counts", 2));
            consumer.seekToBeginning(List.of());
            long end = System.currentTimeMillis() + 60_000;
            while (System.currentTimeMillis() < end
                && last.values().stream().mapToLong(Long::longValue).sum() < 400) {
                consumer.poll(WAIT).forEach(r -> last.put(r.key(), r.value()));
            }
        }
        say(last.toString());
        return null;
    }
}
