package io.kafkalog.conformance;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;

/**
 * The order in which real maps give their keys, after histories from standard input: {@code HashMap},
 * {@code ConcurrentHashMap} or {@code AnyRefMap} (of Scala, where that is on the class path) begins a map,
 * {@code put TOPIC PARTITION} and {@code remove TOPIC PARTITION} change it, {@code show} prints its keys.
 */
public final class MapOrder {
    private Map<TopicPartition, Integer> map;
    private Object scala;

    private MapOrder() {
    }

    public static void main(String[] args) throws IOException, ReflectiveOperationException {
        MapOrder order = new MapOrder();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            order.run(line.split(" "));
        }
    }

    private void run(String[] words) throws ReflectiveOperationException {
        switch (words[0]) {
            case "HashMap" -> map = new HashMap<>();
            case "ConcurrentHashMap" -> map = new ConcurrentHashMap<>();
            case "AnyRefMap" -> {
                map = null;
                scala = Class.forName("scala.collection.mutable.AnyRefMap").getConstructor().newInstance();
            }
            case "put" -> put(new TopicPartition(words[1], Integer.parseInt(words[2])));
            case "remove" -> map.remove(new TopicPartition(words[1], Integer.parseInt(words[2])));
            case "show" -> System.out.println(keys().stream().map(Object::toString).collect(Collectors.joining(" ")));
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private void put(TopicPartition key) throws ReflectiveOperationException {
        if (map != null) {
            map.put(key, 0);
        } else {
            scala.getClass().getMethod("put", Object.class, Object.class).invoke(scala, key, 0);
        }
    }

    private List<Object> keys() throws ReflectiveOperationException {
        if (map != null) {
            return new ArrayList<>(map.keySet());
        }
        List<Object> found = new ArrayList<>();
        Object iterator = scala.getClass().getMethod("keysIterator").invoke(scala);
        Class<?> type = Class.forName("scala.collection.Iterator");
        while ((Boolean) type.getMethod("hasNext").invoke(iterator)) {
            found.add(type.getMethod("next").invoke(iterator));
        }
        return found;
    }
}
