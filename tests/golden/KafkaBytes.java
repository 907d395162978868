// Asks Apache Kafka's own classes: one JSON request a line on standard input, one JSON answer a line on standard
// output.  {"compress", "level", "magic", "data"} -> {"bytes"}; {"batch": ...} -> {"bytes"};
// {"read": bytes} -> {"records"}; {"marker": ...} -> {"bytes"}.  What Kafka throws is {"error": simple class name}.
// Run by kafka_bytes.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.ByteBufferOutputStream;
import org.apache.kafka.common.utils.internals.CloseableIterator;

public class KafkaBytes {
    static final HexFormat HEX = HexFormat.of();
    static final ObjectMapper MAPPER = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        String line;
        while ((line = in.readLine()) != null) {
            ObjectNode answer = MAPPER.createObjectNode();
            try {
                JsonNode request = MAPPER.readTree(line);
                if (request.has("compress")) {
                    answer.put("bytes", HEX.formatHex(compress(request)));
                } else if (request.has("batch")) {
                    build(request.get("batch"), answer);
                } else if (request.has("read")) {
                    read(request, answer);
                } else {
                    answer.put("bytes", HEX.formatHex(marker(request.get("marker"))));
                }
            } catch (Throwable e) {
                answer.put("error", e.getClass().getSimpleName());
                answer.put("message", String.valueOf(e.getMessage()));
            }
            out.println(answer);
        }
        out.flush();
    }

    static Compression codec(String name, JsonNode level) {
        if (level == null || level.isNull()) {
            return Compression.of(name).build();
        }
        switch (name) {
            case "gzip": return Compression.gzip().level(level.asInt()).build();
            case "lz4": return Compression.lz4().level(level.asInt()).build();
            case "zstd": return Compression.zstd().level(level.asInt()).build();
            default: return Compression.of(name).build();
        }
    }

    static byte[] compress(JsonNode request) throws Exception {
        byte[] data = HEX.parseHex(request.get("data").asText());
        ByteBufferOutputStream buffer = new ByteBufferOutputStream(512);
        Compression compression = codec(request.get("compress").asText(), request.get("level"));
        try (OutputStream out = compression.wrapForOutput(buffer, (byte) request.get("magic").asInt())) {
            out.write(data);
        }
        return taken(buffer.buffer());
    }

    static byte[] taken(ByteBuffer buffer) {
        ByteBuffer copy = buffer.duplicate();
        copy.flip();
        byte[] bytes = new byte[copy.remaining()];
        copy.get(bytes);
        return bytes;
    }

    static ByteBuffer bytes(JsonNode hex) {
        return hex == null || hex.isNull() ? null : ByteBuffer.wrap(HEX.parseHex(hex.asText()));
    }

    static void build(JsonNode spec, ObjectNode answer) {
        byte magic = (byte) spec.path("magic").asInt(2);
        TimestampType type = spec.path("timestamp_type").asText("create").equals("create")
            ? TimestampType.CREATE_TIME : TimestampType.LOG_APPEND_TIME;
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(1024), magic,
            codec(spec.path("codec").asText("none"), spec.get("level")), type, spec.path("base_offset").asLong(0),
            spec.path("log_append_time").asLong(-1), spec.path("producer_id").asLong(-1),
            (short) spec.path("producer_epoch").asInt(-1), spec.path("base_sequence").asInt(-1),
            spec.path("transactional").asBoolean(false), spec.path("control").asBoolean(false),
            spec.path("leader_epoch").asInt(-1), Integer.MAX_VALUE, spec.path("delete_horizon_ms").asLong(-1));
        long next = spec.path("base_offset").asLong(0);
        for (JsonNode record : spec.path("records")) {
            JsonNode listed = record.path("headers");
            Header[] headers = new Header[listed.size()];
            for (int i = 0; i < headers.length; i++) {
                JsonNode value = listed.get(i).get(1);
                headers[i] = new RecordHeader(listed.get(i).get(0).asText(),
                    value.isNull() ? null : HEX.parseHex(value.asText()));
            }
            long offset = record.hasNonNull("offset") ? record.get("offset").asLong() : next;
            long ts = record.path("ts").asLong(-1);
            if (spec.path("control").asBoolean(false)) {
                builder.appendControlRecordWithOffset(offset, new org.apache.kafka.common.record.internal.SimpleRecord(
                    ts, bytes(record.get("key_hex")), bytes(record.get("value_hex")), headers));
            } else {
                builder.appendWithOffset(offset, ts, bytes(record.get("key_hex")), bytes(record.get("value_hex")),
                    headers);
            }
            next = offset + 1;
        }
        if (spec.hasNonNull("last_offset")) {
            builder.overrideLastOffset(spec.get("last_offset").asLong());
        }
        MemoryRecords records = builder.build();
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        answer.put("bytes", HEX.formatHex(bytes));
        MemoryRecordsBuilder.RecordsInfo info = builder.numRecords() == 0 ? null : builder.info();
        if (info != null) {
            answer.putArray("info").add(info.maxTimestamp).add(info.shallowOffsetOfMaxTimestamp);
            answer.put("uncompressed", builder.uncompressedBytesWritten());
        }
    }

    static void read(JsonNode request, ObjectNode answer) {
        MemoryRecords records = MemoryRecords.readableRecords(bytes(request.get("read")));
        ArrayNode found = answer.putArray("records");
        int limit = request.path("max_record_bytes").asInt(2147483639);
        for (MutableRecordBatch batch : records.batches()) {
            try (CloseableIterator<Record> iterator = batch.streamingIterator(BufferSupplier.create(), limit)) {
                while (iterator.hasNext()) {
                    Record record = iterator.next();
                    ArrayNode row = found.addArray();
                    row.add(record.offset()).add(record.timestamp()).add(record.sequence()).add(record.sizeInBytes());
                    row.add(hex(record.key())).add(hex(record.value()));
                    ArrayNode headers = row.addArray();
                    for (Header header : record.headers()) {
                        headers.addArray().add(header.key()).add(
                            header.value() == null ? null : HEX.formatHex(header.value()));
                    }
                }
            }
        }
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HEX.formatHex(bytes);
    }

    static byte[] marker(JsonNode spec) {
        EndTransactionMarker marker = new EndTransactionMarker(
            spec.get("commit").asBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT,
            spec.get("coordinator_epoch").asInt());
        MemoryRecords records = MemoryRecords.withEndTransactionMarker(spec.get("offset").asLong(),
            spec.get("ts").asLong(), spec.get("leader_epoch").asInt(), spec.get("producer_id").asLong(),
            (short) spec.get("producer_epoch").asInt(), marker);
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
