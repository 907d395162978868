package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Kafka's generated messages, by name: JSON lines in, JSON lines out.
 *
 * <pre>
 *   {"name", "version", "frame", "data"}   the message of these JSON values: {"bytes" (hex), "json" (text)}
 *   {"name", "version", "bytes"}           the struct of these bytes: {"json" (text), "end"} or {"error" (text or null)}
 *   {"errors"}                             every error code: {"errors": [{"name", "code", "exception", ...}]}
 * </pre>
 *
 * With "from", the values or bytes have that version, and "version" is the one of the answer, which may be an error.
 *
 * A frame is what stands before the struct: "none", "type" (a coordinator's key), "version" (a coordinator's value,
 * what a member says) or "metadata".
 */
public final class MessageCodec {
    private static final List<String> PACKAGES = List.of(
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
        "org.apache.kafka.common.message.");

    private MessageCodec() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(Json.MAPPER.readTree(line)));
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
        System.exit(0);
    }

    private static ObjectNode answer(JsonNode asked) throws ReflectiveOperationException {
        if (asked.has("errors")) {
            return errors();
        }
        Class<?> type = find(asked.get("name").asText());
        Class<?> converter = Class.forName(type.getName() + "JsonConverter");
        short version = (short) asked.get("version").asInt();
        short from = asked.has("from") ? (short) asked.get("from").asInt() : version;
        Method write = converter.getMethod("write", type, short.class);
        ObjectNode answer = Json.object();
        if (asked.has("data")) {
            Object message = converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, asked.get("data"), from);
            try {
                answer.put("bytes", Json.hex(framed(asked.get("frame").asText(), (Message) message, version)));
            } catch (UnsupportedVersionException | NullPointerException e) {
                answer.put("error", e.getMessage());
                return answer;
            }
            answer.put("json", write.invoke(null, message, version).toString());
            return answer;
        }
        ByteBuffer bytes = ByteBuffer.wrap(Json.unhex(asked.get("bytes").asText()));
        try {
            Object message = type.getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(bytes), from);
            answer.put("end", bytes.position());
            answer.put("json", write.invoke(null, message, version).toString());
        } catch (InvocationTargetException e) {
            answer.put("error", e.getCause().getMessage());
        }
        return answer;
    }

    private static Class<?> find(String name) throws ClassNotFoundException {
        for (String suffix : List.of("", "Data")) {
            for (String prefix : PACKAGES) {
                try {
                    return Class.forName(prefix + name + suffix);
                } catch (ClassNotFoundException e) {
                    continue;
                }
            }
        }
        throw new ClassNotFoundException(name);
    }

    private static ObjectNode errors() {
        ObjectNode answer = Json.object();
        ArrayNode found = answer.putArray("errors");
        for (Errors error : Errors.values()) {
            ApiException exception = error.exception();
            ObjectNode row = found.addObject().put("name", error.name()).put("code", error.code());
            row.put("exception", exception == null ? "" : exception.getClass().getSimpleName());
            row.put("retriable", exception instanceof RetriableException).put("message", error.message());
        }
        return answer;
    }

    private static byte[] framed(String frame, Message message, short version) {
        return switch (frame) {
            case "type" -> MessageUtil.toCoordinatorTypePrefixedBytes((ApiMessage) message);
            case "version" -> MessageUtil.toVersionPrefixedBytes(version, message);
            case "metadata" -> metadata(new ApiMessageAndVersion((ApiMessage) message, version));
            default -> MessageUtil.byteBufferToArray(MessageUtil.toByteBufferAccessor(message, version).buffer());
        };
    }

    private static byte[] metadata(ApiMessageAndVersion message) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(message, cache));
        MetadataRecordSerde.INSTANCE.write(message, cache, new ByteBufferAccessor(out));
        return out.array();
    }
}
