"""The requests and responses about partitions' data: produce, fetch, offsets, deletion of records and producers.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
0 ProduceRequest 3-13 flexible 9+
  transactionalId string? =null, acks int16, timeoutMs int32
  topicData [TopicProduceData]
    name string 3-12, topicId uuid 13+
    partitionData [PartitionProduceData]
      index int32, records records?
0 ProduceResponse 3-13 flexible 9+
  responses [TopicProduceResponse]
    name string 3-12, topicId uuid 13+
    partitionResponses [PartitionProduceResponse]
      index int32, errorCode int16, baseOffset int64, logAppendTimeMs int64 =-1
      logStartOffset int64 5+ =-1
      recordErrors [BatchIndexAndErrorMessage] 8+
        batchIndex int32, batchIndexErrorMessage string? =null
      errorMessage string? 8+ =null
      currentLeader LeaderIdAndEpoch! 10+ #0
        leaderId int32 =-1, leaderEpoch int32 =-1
  throttleTimeMs int32
  nodeEndpoints [NodeEndpoint]! 10+ #0
    nodeId int32, host string, port int32, rack string? =null
1 FetchRequest 4-18 flexible 12+
  clusterId string? 12+ #0=null, replicaId int32! 4-14 =-1
  replicaState ReplicaState! 15+ #1
    replicaId int32 =-1, replicaEpoch int64 =-1
  maxWaitMs int32, minBytes int32, maxBytes int32 =0x7fffffff, isolationLevel int8, sessionId int32 7+
  sessionEpoch int32 7+ =-1
  topics [FetchTopic]
    topic string 4-12, topicId uuid 13+
    partitions [FetchPartition]
      partition int32, currentLeaderEpoch int32 9+ =-1, fetchOffset int64
      lastFetchedEpoch int32! 12+ =-1, logStartOffset int64 5+ =-1, partitionMaxBytes int32
      replicaDirectoryId uuid 17+ #0, highWatermark int64 18+ #1=9223372036854775807
  forgottenTopicsData [ForgottenTopic]! 7+
    topic string 7-12, topicId uuid 13+, partitions [int32]
  rackId string 11+
1 FetchResponse 4-18 flexible 12+
  throttleTimeMs int32, errorCode int16 7+, sessionId int32! 7+
  responses [FetchableTopicResponse]
    topic string 4-12, topicId uuid 13+
    partitions [PartitionData]
      partitionIndex int32, errorCode int16, highWatermark int64, lastStableOffset int64 =-1
      logStartOffset int64 5+ =-1
      divergingEpoch EpochEndOffset! 12+ #0
        epoch int32 =-1, endOffset int64 =-1
      currentLeader LeaderIdAndEpoch! 12+ #1
        leaderId int32 =-1, leaderEpoch int32 =-1
      snapshotId SnapshotId! 12+ #2
        endOffset int64 =-1, epoch int32 =-1
      abortedTransactions [AbortedTransaction]?
        producerId int64, firstOffset int64
      preferredReadReplica int32! 11+ =-1, records records?
  nodeEndpoints [NodeEndpoint]! 16+ #0
    nodeId int32, host string, port int32, rack string? =null
2 ListOffsetsRequest 1-11 flexible 6+
  replicaId int32, isolationLevel int8! 2+
  topics [ListOffsetsTopic]
    name string
    partitions [ListOffsetsPartition]
      partitionIndex int32, currentLeaderEpoch int32 4+ =-1, timestamp int64
  timeoutMs int32 10+
2 ListOffsetsResponse 1-11 flexible 6+
  throttleTimeMs int32 2+
  topics [ListOffsetsTopicResponse]
    name string
    partitions [ListOffsetsPartitionResponse]
      partitionIndex int32, errorCode int16, timestamp int64 =-1, offset int64 =-1
      leaderEpoch int32! 4+ =-1
21 DeleteRecordsRequest 0-2 flexible 2+
  topics [DeleteRecordsTopic]
    name string
    partitions [DeleteRecordsPartition]
      partitionIndex int32, offset int64
  timeoutMs int32
21 DeleteRecordsResponse 0-2 flexible 2+
  throttleTimeMs int32
  topics [DeleteRecordsTopicResult]
    name string
    partitions [DeleteRecordsPartitionResult]
      partitionIndex int32, lowWatermark int64, errorCode int16
23 OffsetForLeaderEpochRequest 2-4 flexible 4+
  replicaId int32 3+ =-2
  topics [OffsetForLeaderTopic]
    topic string
    partitions [OffsetForLeaderPartition]
      partition int32, currentLeaderEpoch int32 =-1, leaderEpoch int32
23 OffsetForLeaderEpochResponse 2-4 flexible 4+
  throttleTimeMs int32
  topics [OffsetForLeaderTopicResult]
    topic string
    partitions [EpochEndOffset]
      errorCode int16, partition int32, leaderEpoch int32 =-1, endOffset int64 =-1
61 DescribeProducersRequest 0 flexible 0+
  topics [TopicRequest]
    name string, partitionIndexes [int32]
61 DescribeProducersResponse 0 flexible 0+
  throttleTimeMs int32
  topics [TopicResponse]
    name string
    partitions [PartitionResponse]
      partitionIndex int32, errorCode int16, errorMessage string? =null
      activeProducers [ProducerState]
        producerId int64, producerEpoch int32, lastSequence int32 =-1, lastTimestamp int64 =-1
        coordinatorEpoch int32, currentTxnStartOffset int64 =-1
"""
