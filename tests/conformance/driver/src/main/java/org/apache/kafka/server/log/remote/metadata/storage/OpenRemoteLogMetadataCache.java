package org.apache.kafka.server.log.remote.metadata.storage;

import java.util.Iterator;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;

/** Kafka's cache with its package-private methods opened; they do what they do. */
public final class OpenRemoteLogMetadataCache extends RemoteLogMetadataCache {
    @Override
    public void markInitialized() {
        super.markInitialized();
    }

    @Override
    public boolean isInitialized() {
        return super.isInitialized();
    }

    @Override
    public void addCopyInProgressSegment(RemoteLogSegmentMetadata metadata) {
        super.addCopyInProgressSegment(metadata);
    }

    @Override
    public void updateRemoteLogSegmentMetadata(RemoteLogSegmentMetadataUpdate update)
        throws RemoteResourceNotFoundException {
        super.updateRemoteLogSegmentMetadata(update);
    }

    /** A segment in the state that it is in, whatever was known of it: what subclasses of the cache may do. */
    public void take(RemoteLogSegmentMetadata metadata) {
        switch (metadata.state()) {
            case COPY_SEGMENT_STARTED -> addCopyInProgressSegment(metadata);
            case COPY_SEGMENT_FINISHED -> handleSegmentWithCopySegmentFinishedState(metadata);
            case DELETE_SEGMENT_STARTED -> handleSegmentWithDeleteSegmentStartedState(metadata);
            default -> { }
        }
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(int leaderEpoch, long offset) {
        return super.remoteLogSegmentMetadata(leaderEpoch, offset);
    }

    @Override
    public Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(int leaderEpoch, long offset) {
        return super.nextSegmentWithTxnIndex(leaderEpoch, offset);
    }

    @Override
    public Optional<Long> highestOffsetForEpoch(int leaderEpoch) {
        return super.highestOffsetForEpoch(leaderEpoch);
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(int leaderEpoch)
        throws RemoteResourceNotFoundException {
        return super.listRemoteLogSegments(leaderEpoch);
    }

    @Override
    public Iterator<RemoteLogSegmentMetadata> listAllRemoteLogSegments() {
        return super.listAllRemoteLogSegments();
    }
}
