package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;

/** The topics that a script names, as a coordinator sees them. */
public record ScriptTopics(Map<String, Topic> topics, long version) implements CoordinatorMetadataImage {
    public record Topic(String name, Uuid id, int partitionCount) implements TopicMetadata {
        @Override
        public List<String> partitionRacks(int partition) {
            return new ArrayList<>();
        }
    }

    public static final ScriptTopics NONE = new ScriptTopics(Map.of(), 0);

    /** The topics of a script: {name: [id, count of partitions]}. */
    public static ScriptTopics of(JsonNode given, long version) {
        Map<String, Topic> topics = new LinkedHashMap<>();
        given.fields().forEachRemaining(entry -> topics.put(entry.getKey(), new Topic(
            entry.getKey(), Uuid.fromString(entry.getValue().get(0).asText()), entry.getValue().get(1).asInt())));
        return new ScriptTopics(topics, version);
    }

    /** How these topics differ from those before. */
    public CoordinatorMetadataDelta since(ScriptTopics before) {
        return new Delta(before, this);
    }

    @Override
    public Set<Uuid> topicIds() {
        Set<Uuid> found = new LinkedHashSet<>();
        topics.values().forEach(each -> found.add(each.id()));
        return found;
    }

    @Override
    public Set<String> topicNames() {
        return topics.keySet();
    }

    @Override
    public Optional<TopicMetadata> topicMetadata(String name) {
        return Optional.ofNullable(topics.get(name));
    }

    @Override
    public Optional<TopicMetadata> topicMetadata(Uuid id) {
        return topics.values().stream().filter(each -> each.id().equals(id)).map(each -> (TopicMetadata) each).findFirst();
    }

    @Override
    public CoordinatorMetadataDelta emptyDelta() {
        return since(this);
    }

    @Override
    public boolean isEmpty() {
        return topics.isEmpty();
    }

    private record Delta(ScriptTopics old, ScriptTopics newer) implements CoordinatorMetadataDelta {
        @Override
        public Collection<Uuid> createdTopicIds() {
            Set<Uuid> found = newer.topicIds();
            found.removeAll(old.topicIds());
            return found;
        }

        @Override
        public Collection<Uuid> changedTopicIds() {
            Set<Uuid> found = new LinkedHashSet<>();
            newer.topics.values().stream().filter(each -> !each.equals(old.topics.get(each.name())))
                .forEach(each -> found.add(each.id()));
            return found;
        }

        @Override
        public Set<Uuid> deletedTopicIds() {
            Set<Uuid> found = old.topicIds();
            found.removeAll(newer.topicIds());
            return found;
        }

        @Override
        public CoordinatorMetadataImage image() {
            return old;
        }
    }
}
