package org.apache.kafka.server.log.remote.storage;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.AbortedTxn;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.log.remote.TopicPartitionLog;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Kafka's RemoteLogManager whose tasks run when they are told to, over a storage and metadata that it is given. */
public final class OpenRemoteLogManager extends RemoteLogManager {
    /** Kafka's constructor asks for them before a field of this class can be set. */
    private record Parts(RemoteStorageManager storage, RemoteLogMetadataManager metadata) {
    }

    private static final ThreadLocal<Parts> PARTS = new ThreadLocal<>();

    private final int customMetadataMaxBytes;
    private Optional<RLMCopyTask> copy = Optional.empty();
    private Optional<RLMExpirationTask> expiration = Optional.empty();
    private Optional<RLMFollowerTask> follower = Optional.empty();

    private OpenRemoteLogManager(RemoteLogManagerConfig config, String logDir, Time time, LogOf logOf,
                                 BrokerTopicStats stats) throws IOException {
        super(config, 0, logDir, "cluster", time, partition -> Optional.ofNullable(logOf.log()),
            (partition, offset) -> logOf.log().updateLogStartOffsetFromRemoteTier(offset), stats, new Metrics(),
            Optional.empty());
        customMetadataMaxBytes = config.remoteLogMetadataCustomMetadataMaxBytes();
    }

    /** The one log, or null. */
    public interface LogOf {
        UnifiedLog log();
    }

    public static OpenRemoteLogManager over(RemoteStorageManager storage, RemoteLogMetadataManager metadata,
                                            Map<String, String> settings, String logDir, Time time, LogOf logOf,
                                            BrokerTopicStats stats) throws IOException {
        PARTS.set(new Parts(storage, metadata));
        AbstractConfig config = new AbstractConfig(RemoteLogManagerConfig.configDef(), settings);
        return new OpenRemoteLogManager(new RemoteLogManagerConfig(config), logDir, time, logOf, stats);
    }

    @Override
    RemoteStorageManager createRemoteStorageManager() {
        return PARTS.get().storage();
    }

    @Override
    RemoteLogMetadataManager createRemoteLogMetadataManager() {
        return PARTS.get().metadata();
    }

    /** As a broker that hears who leads the partition. */
    public void lead(UnifiedLog log, Uuid topicId, boolean isLeader) {
        TopicPartitionLog of = new TopicPartitionLog() {
            @Override
            public TopicPartition topicPartition() {
                return log.topicPartition();
            }

            @Override
            public Optional<UnifiedLog> unifiedLog() {
                return Optional.of(log);
            }
        };
        Map<String, Uuid> ids = Map.of(log.topicPartition().topic(), topicId);
        onLeadershipChange(isLeader ? Set.of(of) : Set.of(), isLeader ? Set.of() : Set.of(of), ids);
    }

    @Override
    void doHandleLeaderPartition(TopicIdPartition partition, Boolean copyDisable) {
        follower.ifPresent(RLMTask::cancel);
        follower = Optional.empty();
        if (!copyDisable && copy.isEmpty()) {
            copy = Optional.of(new RLMCopyTask(partition, customMetadataMaxBytes));
        }
        if (expiration.isEmpty()) {
            expiration = Optional.of(new RLMExpirationTask(partition));
        }
    }

    @Override
    void doHandleFollowerPartition(TopicIdPartition partition) {
        copy.ifPresent(RLMTask::cancel);
        copy = Optional.empty();
        expiration.ifPresent(RLMTask::cancel);
        expiration = Optional.empty();
        if (follower.isEmpty()) {
            follower = Optional.of(new RLMFollowerTask(partition));
        }
    }

    /** stopLeaderCopyRLMTasks. */
    public void stopCopying() {
        copy.ifPresent(task -> {
            task.cancel();
            task.resetLagStats();
        });
        copy = Optional.empty();
    }

    public void stopAll() {
        copy.ifPresent(RLMTask::cancel);
        copy = Optional.empty();
        expiration.ifPresent(RLMTask::cancel);
        follower.ifPresent(RLMTask::cancel);
        expiration = Optional.empty();
        follower = Optional.empty();
    }

    public void runCopyTask() {
        copy.ifPresent(RLMTask::run);
    }

    public void runExpirationTask() {
        expiration.ifPresent(RLMTask::run);
    }

    public void runFollowerTask() {
        follower.ifPresent(RLMTask::run);
    }

    /** As a fetch from the remote tier collects them; `upperBound` is none of the range. */
    public void abortedIn(long first, long upperBound, RemoteLogSegmentMetadata segment,
                          Consumer<List<AbortedTxn>> found, UnifiedLog log) throws Throwable {
        Method collect = RemoteLogManager.class.getDeclaredMethod("collectAbortedTransactions", long.class, long.class,
            RemoteLogSegmentMetadata.class, Consumer.class, UnifiedLog.class);
        collect.setAccessible(true);
        try {
            collect.invoke(this, first, upperBound, segment, found, log);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }
}
