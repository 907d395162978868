package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.PropertiesUtils;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** Looking at the files, and damaging them. */
final class FileOps {
    private final Session session;

    FileOps(Session session) {
        this.session = session;
    }

    void run(Op op, ObjectNode result) throws Exception {
        switch (op.name()) {
            case "dump" -> dump(op, result);
            case "fs_read" -> read(op, result);
            case "fs_truncate" -> truncate(op, result);
            case "fs_corrupt" -> corrupt(op);
            case "fs_write" -> Files.write(withParent(op, "file"), content(op));
            case "fs_append" -> Files.write(file(op), Json.unhex(op.text("hex")), StandardOpenOption.APPEND);
            case "fs_delete" -> Files.delete(file(op));
            case "fs_copy" ->
                Files.copy(session.path(op.text("from")), withParent(op, "to"), StandardCopyOption.REPLACE_EXISTING);
            case "fs_rename" ->
                Files.move(session.path(op.text("from")), withParent(op, "to"), StandardCopyOption.REPLACE_EXISTING);
            case "fs_mtime" -> Files.setLastModifiedTime(file(op), FileTime.fromMillis(op.number("ms")));
            default -> throw new ScriptError("unknown operation " + op.name());
        }
    }

    private Path file(Op op) {
        return session.path(op.text("file"));
    }

    private Path withParent(Op op, String field) throws IOException {
        Path path = session.path(op.text(field));
        Files.createDirectories(path.getParent());
        return path;
    }

    private static byte[] content(Op op) {
        return op.has("hex") ? Json.unhex(op.text("hex")) : op.text("text").getBytes(StandardCharsets.UTF_8);
    }

    private void truncate(Op op, ObjectNode result) throws IOException {
        try (FileChannel channel = FileChannel.open(file(op), StandardOpenOption.WRITE)) {
            long size = op.has("size") ? op.number("size") : Math.max(0, channel.size() - op.number("drop_bytes"));
            channel.truncate(size);
            result.put("size", channel.size());
        }
    }

    private void corrupt(Op op) throws IOException {
        byte[] mask = Json.unhex(op.text("xor_hex"));
        try (FileChannel channel = FileChannel.open(file(op), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            long offset = op.number("offset");
            long position = offset < 0 ? channel.size() + offset : offset;
            ByteBuffer bytes = ByteBuffer.allocate(mask.length);
            channel.read(bytes, position);
            for (int i = 0; i < bytes.position(); i++) {
                bytes.put(i, (byte) (bytes.get(i) ^ mask[i]));
            }
            bytes.flip();
            channel.write(bytes, position);
        }
    }

    /** What Kafka's own readers find in a file of a log directory. */
    private void read(Op op, ObjectNode result) throws Exception {
        Path path = file(op);
        switch (op.text("kind")) {
            case "offsets" -> {
                try {
                    var found = new OffsetCheckpointFile(path.toFile(), new LogDirFailureChannel(1)).read();
                    ObjectNode offsets = result.putObject("result");
                    found.forEach((at, offset) -> offsets.put(at.topic() + " " + at.partition(), offset));
                } catch (KafkaStorageException e) {
                    throw e.getCause() instanceof IOException io ? new IOException(io.getMessage()) : e;
                }
            }
            case "clean" -> {
                OptionalLong epoch = new CleanShutdownFileHandler(path.getParent().toString()).read();
                result.put("result", epoch.isPresent() ? (Long) epoch.getAsLong() : null);
            }
            case "meta" -> {
                var found = new MetaProperties.Builder(PropertiesUtils.readPropertiesFile(path.toString())).build();
                result.putArray("result").add(found.version().number()).add(found.clusterId().orElse(null))
                    .add(found.nodeId().isPresent() ? (Integer) found.nodeId().getAsInt() : null)
                    .add(found.directoryId().map(Object::toString).orElse(null));
            }
            default -> throw new ScriptError("unknown kind " + op.text("kind"));
        }
    }

    private void dump(Op op, ObjectNode result) throws IOException {
        Path root = op.has("path") ? session.path(op.text("path")) : session.handle(op).log().dir().toPath();
        ObjectNode files = result.putObject("files");
        TreeMap<String, Path> found = new TreeMap<>();
        try (Stream<Path> walk = Files.walk(root)) {
            walk.filter(Files::isRegularFile).filter(path -> !path.getFileName().toString().equals(".lock"))
                .forEach(path -> found.put(root.relativize(path).toString().replace('\\', '/'), path));
        }
        for (var entry : found.entrySet()) {
            ObjectNode file = files.putObject(entry.getKey());
            file.put("size", Files.size(entry.getValue()));
            file.put("sha256", Json.sha256(entry.getValue()));
        }
    }
}
