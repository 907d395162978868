package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.nio.file.Files;
import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Optional;
import java.util.OptionalLong;

/** Small helpers around JSON nodes, hex and digests. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    private Json() {
    }

    static ObjectNode object() {
        return JsonNodeFactory.instance.objectNode();
    }

    static ArrayNode array() {
        return JsonNodeFactory.instance.arrayNode();
    }

    /** A JSON array of whole numbers. */
    static ArrayNode numbers(long... values) {
        ArrayNode array = array();
        for (long value : values) {
            array.add(value);
        }
        return array;
    }

    static void put(ObjectNode node, String field, OptionalLong value) {
        if (value.isPresent()) {
            node.put(field, value.getAsLong());
        } else {
            node.putNull(field);
        }
    }

    static void put(ObjectNode node, String field, Optional<? extends Number> value) {
        if (value.isPresent()) {
            node.put(field, value.get().longValue());
        } else {
            node.putNull(field);
        }
    }

    static byte[] unhex(String text) {
        return HEX.parseHex(text);
    }

    static String hex(byte[] bytes) {
        return HEX.formatHex(bytes);
    }

    static String sha256(ByteBuffer bytes) {
        MessageDigest digest = newDigest();
        digest.update(bytes.duplicate());
        return hex(digest.digest());
    }

    static String sha256(Path file) throws IOException {
        MessageDigest digest = newDigest();
        byte[] chunk = new byte[1 << 16];
        try (InputStream in = Files.newInputStream(file)) {
            for (int n = in.read(chunk); n >= 0; n = in.read(chunk)) {
                digest.update(chunk, 0, n);
            }
        }
        return hex(digest.digest());
    }

    private static MessageDigest newDigest() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every JDK has SHA-256", e);
        }
    }
}
