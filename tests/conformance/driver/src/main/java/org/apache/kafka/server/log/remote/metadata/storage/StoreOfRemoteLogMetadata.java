package org.apache.kafka.server.log.remote.metadata.storage;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/**
 * Kafka's own store of remote metadata, told of each event at once: what TopicBasedRemoteLogMetadataManager is when its
 * consumer has read all that was written. Events go through their bytes. Where Kafka leaves an order to its hash maps,
 * segments come in the order in which they became known.
 */
public final class StoreOfRemoteLogMetadata implements RemoteLogMetadataManager {
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();

    private final RemotePartitionMetadataStore store = new RemotePartitionMetadataStore();
    private final Map<Uuid, Integer> known = new HashMap<>();

    private CompletableFuture<Void> tell(TopicIdPartition partition, RemoteLogMetadata event) {
        load(partition);
        store.handleRemoteLogMetadata(SERDE.deserialize(SERDE.serialize(event)));
        return CompletableFuture.completedFuture(null);
    }

    private void load(TopicIdPartition partition) {
        store.maybeLoadPartition(partition);
        store.markInitialized(partition);
    }

    @Override
    public CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata metadata) {
        known.putIfAbsent(metadata.remoteLogSegmentId().id(), known.size());
        return tell(metadata.remoteLogSegmentId().topicIdPartition(), metadata);
    }

    @Override
    public CompletableFuture<Void> updateRemoteLogSegmentMetadata(RemoteLogSegmentMetadataUpdate update) {
        return tell(update.remoteLogSegmentId().topicIdPartition(), update);
    }

    @Override
    public CompletableFuture<Void> putRemotePartitionDeleteMetadata(RemotePartitionDeleteMetadata metadata) {
        return tell(metadata.topicIdPartition(), metadata);
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(TopicIdPartition partition, int epoch, long offset)
        throws RemoteStorageException {
        return store.remoteLogSegmentMetadata(partition, offset, epoch);
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(TopicIdPartition partition, int epoch, long offset)
        throws RemoteStorageException {
        return store.nextSegmentWithTxnIndex(partition, epoch, offset);
    }

    @Override
    public Optional<Long> highestOffsetForEpoch(TopicIdPartition partition, int epoch) throws RemoteStorageException {
        return store.highestLogOffset(partition, epoch);
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition)
        throws RemoteStorageException {
        return inOrder(store.listRemoteLogSegments(partition), Comparator.comparingInt(this::order));
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition, int epoch)
        throws RemoteStorageException {
        return inOrder(store.listRemoteLogSegments(partition, epoch),
            Comparator.comparingLong(RemoteLogSegmentMetadata::startOffset).thenComparingInt(this::order));
    }

    private int order(RemoteLogSegmentMetadata segment) {
        return known.get(segment.remoteLogSegmentId().id());
    }

    private static Iterator<RemoteLogSegmentMetadata> inOrder(
        Iterator<RemoteLogSegmentMetadata> found, Comparator<RemoteLogSegmentMetadata> order) {
        List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
        found.forEachRemaining(segments::add);
        segments.sort(order);
        return segments.iterator();
    }

    @Override
    public void onPartitionLeadershipChanges(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) {
        leaders.forEach(this::load);
        followers.forEach(this::load);
    }

    @Override
    public void onStopPartitions(Set<TopicIdPartition> partitions) {
    }

    @Override
    public long remoteLogSize(TopicIdPartition partition, int epoch) throws RemoteStorageException {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean isReady(TopicIdPartition partition) {
        return store.isInitialized(partition);
    }

    @Override
    public void configure(Map<String, ?> configs) {
    }

    @Override
    public void close() {
    }
}
