package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/** One line of a script: typed access to its fields, with the defaults of the format. */
record Op(String name, JsonNode node) {
    boolean has(String field) {
        return node.hasNonNull(field);
    }

    long number(String field, long otherwise) {
        return has(field) ? node.get(field).asLong() : otherwise;
    }

    long number(String field) {
        return required(field).asLong();
    }

    int integer(String field, int otherwise) {
        return Math.toIntExact(number(field, otherwise));
    }

    boolean flag(String field, boolean otherwise) {
        return has(field) ? node.get(field).asBoolean() : otherwise;
    }

    double real(String field, double otherwise) {
        return has(field) ? node.get(field).asDouble() : otherwise;
    }

    String text(String field) {
        return required(field).asText();
    }

    String text(String field, String otherwise) {
        return has(field) ? node.get(field).asText() : otherwise;
    }

    Optional<Long> maybeNumber(String field) {
        return has(field) ? Optional.of(node.get(field).asLong()) : Optional.empty();
    }

    /** The name of the handle that the operation works on. */
    String handle() {
        return text("log", "main");
    }

    /** Kafka's configuration keys and values, all as text. */
    static Map<String, String> config(JsonNode config) {
        Map<String, String> values = new TreeMap<>();
        if (config != null) {
            config.properties().forEach(entry -> values.put(entry.getKey(), entry.getValue().asText()));
        }
        return values;
    }

    private JsonNode required(String field) {
        if (!has(field)) {
            throw new ScriptError("operation " + name + " needs the field " + field);
        }
        return node.get(field);
    }
}
