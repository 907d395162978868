package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;

/** What an append hands over: `raw_hex`, or what Kafka's own batch builder makes of `batches`. */
final class Batches {
    /** Big enough for most scripts; the builder grows it. */
    private static final int INITIAL_BYTES = 1024;

    private Batches() {
    }

    /** The bytes of an append operation, and whether the driver built them itself. */
    record Input(byte[] bytes, boolean built) {
        MemoryRecords records() {
            // A leader append changes the buffer it is given: hand out a copy.
            return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes.clone()));
        }
    }

    static Input of(Op op) {
        byte[] raw = op.has("raw_hex") ? Json.unhex(op.text("raw_hex")) : null;
        if (!op.has("batches")) {
            if (raw == null) {
                throw new ScriptError(op.name() + " needs batches or raw_hex");
            }
            return new Input(raw, false);
        }
        byte[] built = buildAll(op.node().get("batches"));
        if (raw != null && !Arrays.equals(raw, built)) {
            throw new ScriptError("batches and raw_hex differ; built " + Json.hex(built));
        }
        return new Input(built, raw == null);
    }

    private static byte[] buildAll(JsonNode batches) {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (JsonNode batch : batches) {
            all.writeBytes(batch.has("raw_hex") ? Json.unhex(batch.get("raw_hex").asText()) : build(new Op("batch", batch)));
        }
        return all.toByteArray();
    }

    private static byte[] build(Op batch) {
        TimestampType timestampType = switch (batch.text("timestamp_type", "create")) {
            case "create" -> TimestampType.CREATE_TIME;
            case "log_append" -> TimestampType.LOG_APPEND_TIME;
            default -> throw new ScriptError("unknown timestamp_type " + batch.text("timestamp_type"));
        };
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(INITIAL_BYTES),
            (byte) batch.number("magic", 2),
            compression(batch),
            timestampType,
            batch.number("base_offset", 0),
            batch.number("log_append_time", -1),
            batch.number("producer_id", -1),
            (short) batch.number("producer_epoch", -1),
            (int) batch.number("base_sequence", -1),
            batch.flag("transactional", false),
            false,
            (int) batch.number("leader_epoch", -1));
        if (batch.has("records")) {
            for (JsonNode record : batch.node().get("records")) {
                append(builder, new Op("record", record));
            }
        }
        if (batch.has("last_offset")) {
            builder.overrideLastOffset(batch.number("last_offset"));
        }
        ByteBuffer built = builder.build().buffer();
        byte[] bytes = new byte[built.remaining()];
        built.get(bytes);
        return bytes;
    }

    private static void append(MemoryRecordsBuilder builder, Op record) {
        byte[] key = bytes(record.node().get("key_hex"));
        byte[] value = bytes(record.node().get("value_hex"));
        long timestamp = record.number("ts", -1);
        if (record.has("offset")) {
            builder.appendWithOffset(record.number("offset"), timestamp, key, value, headers(record));
        } else {
            builder.append(timestamp, key, value, headers(record));
        }
    }

    private static Header[] headers(Op record) {
        if (!record.has("headers")) {
            return new Header[0];
        }
        JsonNode list = record.node().get("headers");
        Header[] headers = new Header[list.size()];
        for (int i = 0; i < headers.length; i++) {
            headers[i] = new RecordHeader(list.get(i).get(0).asText(), bytes(list.get(i).get(1)));
        }
        return headers;
    }

    private static byte[] bytes(JsonNode hexOrNull) {
        return hexOrNull == null || hexOrNull.isNull() ? null : Json.unhex(hexOrNull.asText());
    }

    private static Compression compression(Op batch) {
        CompressionType type = CompressionType.forName(batch.text("codec", "none"));
        if (!batch.has("level")) {
            return Compression.of(type).build();
        }
        int level = (int) batch.number("level");
        return switch (type) {
            case GZIP -> Compression.gzip().level(level).build();
            case LZ4 -> Compression.lz4().level(level).build();
            case ZSTD -> Compression.zstd().level(level).build();
            default -> Compression.of(type).build();
        };
    }
}
