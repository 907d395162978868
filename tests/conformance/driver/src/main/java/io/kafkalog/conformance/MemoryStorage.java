package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * A remote storage that keeps its bytes in memory and fails when it is told to: each copy or deletion takes the next word
 * of its queue ("" or none: it succeeds).
 */
final class MemoryStorage implements RemoteStorageManager {
    private record Kept(long startOffset, byte[] log, Map<IndexType, byte[]> indexes) {
    }

    private final Map<Uuid, Kept> kept = new HashMap<>();
    final Queue<String> copies = new ArrayDeque<>();
    final Queue<String> deletions = new ArrayDeque<>();
    int customBytes = -1;

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
        throws RemoteStorageException {
        fail(copies.poll());
        Map<IndexType, byte[]> indexes = new EnumMap<>(IndexType.class);
        try {
            indexes.put(IndexType.OFFSET, Files.readAllBytes(data.offsetIndex()));
            indexes.put(IndexType.TIMESTAMP, Files.readAllBytes(data.timeIndex()));
            indexes.put(IndexType.PRODUCER_SNAPSHOT, Files.readAllBytes(data.producerSnapshotIndex()));
            indexes.put(IndexType.LEADER_EPOCH, bytesOf(data.leaderEpochIndex()));
            Optional<Path> aborted = data.transactionIndex();
            if (aborted.isPresent() && Files.size(aborted.get()) > 0) {
                indexes.put(IndexType.TRANSACTION, Files.readAllBytes(aborted.get()));
            }
            kept.put(metadata.remoteLogSegmentId().id(),
                new Kept(metadata.startOffset(), Files.readAllBytes(data.logSegment()), indexes));
        } catch (IOException e) {
            throw new RemoteStorageException(e);
        }
        return customBytes < 0 ? Optional.empty() : Optional.of(new CustomMetadata(custom(customBytes)));
    }

    private static byte[] custom(int size) {
        byte[] bytes = new byte[size];
        Arrays.fill(bytes, (byte) 7);
        return bytes;
    }

    private static byte[] bytesOf(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static void fail(String how) throws RemoteStorageException {
        switch (how == null ? "" : how) {
            case "" -> { }
            case "retriable" -> throw new RetriableRemoteStorageException("not now");
            case "permanent" -> throw new RemoteStorageException("refused");
            default -> throw new ScriptError("no such failure: " + how);
        }
    }

    private Kept of(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        Kept found = kept.get(metadata.remoteLogSegmentId().id());
        if (found == null) {
            throw new RemoteResourceNotFoundException("no segment " + metadata.remoteLogSegmentId());
        }
        return found;
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start) throws RemoteStorageException {
        byte[] log = of(metadata).log();
        return new ByteArrayInputStream(log, start, log.length - start);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start, int end)
        throws RemoteStorageException {
        byte[] log = of(metadata).log();
        return new ByteArrayInputStream(log, start, Math.min(end + 1, log.length) - start);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType type) throws RemoteStorageException {
        byte[] found = of(metadata).indexes().get(type);
        if (found == null) {
            throw new RemoteResourceNotFoundException("no " + type + " of " + metadata.remoteLogSegmentId());
        }
        return new ByteArrayInputStream(found);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        fail(deletions.poll());
        kept.remove(metadata.remoteLogSegmentId().id());
    }

    /** What lies there: of each segment its first offset and digests of its files, in any order. */
    ArrayNode shown() {
        ArrayNode all = Json.array();
        kept.values().stream().map(MemoryStorage::row).forEach(all::add);
        return all;
    }

    private static ArrayNode row(Kept segment) {
        ArrayNode row = Json.array().add(segment.startOffset()).add(digest(segment.log()));
        for (IndexType type : new IndexType[] {IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.TRANSACTION,
            IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH}) {
            byte[] bytes = segment.indexes().get(type);
            row.add(bytes == null ? "" : digest(bytes));
        }
        return row;
    }

    private static String digest(byte[] bytes) {
        return bytes.length + " " + Json.sha256(ByteBuffer.wrap(bytes)).substring(0, 12);
    }

    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public void close() {
    }
}
