"""The schemas of `__remote_log_metadata`: the segments of partitions in a remote tier, and their states.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the
record's type.  Source: the messages of Kafka 4.4.0's storage module.
"""

from __future__ import annotations

REMOTE_LOG_METADATA = """
0 RemoteLogSegmentMetadataRecord 0 flexible 0+
  remoteLogSegmentId RemoteLogSegmentIdEntry
    topicIdPartition TopicIdPartitionEntry
      name string, id uuid, partition int32
    id uuid
  startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64, eventTimestampMs int64
  segmentLeaderEpochs [SegmentLeaderEpochEntry]
    leaderEpoch int32, offset int64
  segmentSizeInBytes int32, customMetadata bytes?, remoteLogSegmentState int8, txnIndexEmpty bool #0
1 RemoteLogSegmentMetadataUpdateRecord 0 flexible 0+
  remoteLogSegmentId RemoteLogSegmentIdEntry
    topicIdPartition TopicIdPartitionEntry
      name string, id uuid, partition int32
    id uuid
  brokerId int32, eventTimestampMs int64, customMetadata bytes?, remoteLogSegmentState int8
2 RemotePartitionDeleteMetadataRecord 0 flexible 0+
  topicIdPartition TopicIdPartitionEntry
    name string, id uuid, partition int32
  brokerId int32, eventTimestampMs int64, remotePartitionDeleteState int8
3 RemoteLogSegmentMetadataSnapshotRecord 0 flexible 0+
  segmentId uuid, startOffset int64, endOffset int64, brokerId int32, maxTimestampMs int64, eventTimestampMs int64
  segmentLeaderEpochs [SegmentLeaderEpochEntry]
    leaderEpoch int32, offset int64
  segmentSizeInBytes int32, customMetadata bytes?, remoteLogSegmentState int8, txnIndexEmpty bool #0
"""
