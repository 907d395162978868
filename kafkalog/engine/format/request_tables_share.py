"""The requests and responses about share groups: members, records, and their states between brokers.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
76 ShareGroupHeartbeatRequest 1 flexible 0+
  groupId string, memberId string, memberEpoch int32, rackId string? =null
  subscribedTopicNames [string]? =null
76 ShareGroupHeartbeatResponse 1 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, memberId string? =null
  memberEpoch int32, heartbeatIntervalMs int32
  assignment Assignment? =null
    topicPartitions [TopicPartitions]
      topicId uuid, partitions [int32]
77 ShareGroupDescribeRequest 1 flexible 0+
  groupIds [string], includeAuthorizedOperations bool
77 ShareGroupDescribeResponse 1 flexible 0+
  throttleTimeMs int32
  groups [DescribedGroup]
    errorCode int16, errorMessage string? =null, groupId string, groupState string, groupEpoch int32
    assignmentEpoch int32, assignorName string
    members [Member]
      memberId string, rackId string? =null, memberEpoch int32, clientId string, clientHost string
      subscribedTopicNames [string]
      assignment Assignment
        topicPartitions [TopicPartitions]
          topicId uuid, topicName string, partitions [int32]
    authorizedOperations int32 =-2147483648
78 ShareFetchRequest 1-2 flexible 0+
  groupId string? =null, memberId string?, shareSessionEpoch int32, maxWaitMs int32, minBytes int32
  maxBytes int32 =0x7fffffff, maxRecords int32, batchSize int32, shareAcquireMode int8 2+
  isRenewAck bool! 2+
  topics [FetchTopic]
    topicId uuid
    partitions [FetchPartition]
      partitionIndex int32
      acknowledgementBatches [AcknowledgementBatch]
        firstOffset int64, lastOffset int64, acknowledgeTypes [int8]
  forgottenTopicsData [ForgottenTopic]
    topicId uuid, partitions [int32]
78 ShareFetchResponse 1-2 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, acquisitionLockTimeoutMs int32
  responses [ShareFetchableTopicResponse]
    topicId uuid
    partitions [PartitionData]
      partitionIndex int32, errorCode int16, errorMessage string? =null, acknowledgeErrorCode int16
      acknowledgeErrorMessage string? =null
      currentLeader LeaderIdAndEpoch
        leaderId int32, leaderEpoch int32
      records records
      acquiredRecords [AcquiredRecords]
        firstOffset int64, lastOffset int64, deliveryCount int16
  nodeEndpoints [NodeEndpoint]
    nodeId int32, host string, port int32, rack string? =null
79 ShareAcknowledgeRequest 1-2 flexible 0+
  groupId string? =null, memberId string?, shareSessionEpoch int32, isRenewAck bool! 2+
  topics [AcknowledgeTopic]
    topicId uuid
    partitions [AcknowledgePartition]
      partitionIndex int32
      acknowledgementBatches [AcknowledgementBatch]
        firstOffset int64, lastOffset int64, acknowledgeTypes [int8]
79 ShareAcknowledgeResponse 1-2 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, acquisitionLockTimeoutMs int32 2+
  responses [ShareAcknowledgeTopicResponse]
    topicId uuid
    partitions [PartitionData]
      partitionIndex int32, errorCode int16, errorMessage string? =null
      currentLeader LeaderIdAndEpoch
        leaderId int32, leaderEpoch int32
  nodeEndpoints [NodeEndpoint]
    nodeId int32, host string, port int32, rack string? =null
83 InitializeShareGroupStateRequest 0 flexible 0+
  groupId string
  topics [InitializeStateData]
    topicId uuid
    partitions [PartitionData]
      partition int32, stateEpoch int32, startOffset int64
83 InitializeShareGroupStateResponse 0 flexible 0+
  results [InitializeStateResult]
    topicId uuid
    partitions [PartitionResult]
      partition int32, errorCode int16, errorMessage string? =null
84 ReadShareGroupStateRequest 0 flexible 0+
  groupId string
  topics [ReadStateData]
    topicId uuid
    partitions [PartitionData]
      partition int32, leaderEpoch int32
84 ReadShareGroupStateResponse 0 flexible 0+
  results [ReadStateResult]
    topicId uuid
    partitions [PartitionResult]
      partition int32, errorCode int16, errorMessage string? =null, stateEpoch int32
      startOffset int64
      stateBatches [StateBatch]
        firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
85 WriteShareGroupStateRequest 0-1 flexible 0+
  groupId string
  topics [WriteStateData]
    topicId uuid
    partitions [PartitionData]
      partition int32, stateEpoch int32, leaderEpoch int32, startOffset int64
      deliveryCompleteCount int32 1+ =-1
      stateBatches [StateBatch]
        firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
85 WriteShareGroupStateResponse 0-1 flexible 0+
  results [WriteStateResult]
    topicId uuid
    partitions [PartitionResult]
      partition int32, errorCode int16, errorMessage string? =null
86 DeleteShareGroupStateRequest 0 flexible 0+
  groupId string
  topics [DeleteStateData]
    topicId uuid
    partitions [PartitionData]
      partition int32
86 DeleteShareGroupStateResponse 0 flexible 0+
  results [DeleteStateResult]
    topicId uuid
    partitions [PartitionResult]
      partition int32, errorCode int16, errorMessage string? =null
87 ReadShareGroupStateSummaryRequest 0-1 flexible 0+
  groupId string
  topics [ReadStateSummaryData]
    topicId uuid
    partitions [PartitionData]
      partition int32, leaderEpoch int32
87 ReadShareGroupStateSummaryResponse 0-1 flexible 0+
  results [ReadStateSummaryResult]
    topicId uuid
    partitions [PartitionResult]
      partition int32, errorCode int16, errorMessage string? =null, stateEpoch int32
      leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 1+ =-1
90 DescribeShareGroupOffsetsRequest 0-1 flexible 0+
  groups [DescribeShareGroupOffsetsRequestGroup]
    groupId string
    topics [DescribeShareGroupOffsetsRequestTopic]?
      topicName string, partitions [int32]
90 DescribeShareGroupOffsetsResponse 0-1 flexible 0+
  throttleTimeMs int32
  groups [DescribeShareGroupOffsetsResponseGroup]
    groupId string
    topics [DescribeShareGroupOffsetsResponseTopic]
      topicName string, topicId uuid
      partitions [DescribeShareGroupOffsetsResponsePartition]
        partitionIndex int32, startOffset int64, leaderEpoch int32, lag int64 1+ =-1, errorCode int16
        errorMessage string? =null
    errorCode int16, errorMessage string? =null
91 AlterShareGroupOffsetsRequest 0 flexible 0+
  groupId string
  topics [AlterShareGroupOffsetsRequestTopic]
    topicName string
    partitions [AlterShareGroupOffsetsRequestPartition]
      partitionIndex int32, startOffset int64
91 AlterShareGroupOffsetsResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null
  responses [AlterShareGroupOffsetsResponseTopic]
    topicName string, topicId uuid
    partitions [AlterShareGroupOffsetsResponsePartition]
      partitionIndex int32, errorCode int16, errorMessage string? =null
92 DeleteShareGroupOffsetsRequest 0 flexible 0+
  groupId string
  topics [DeleteShareGroupOffsetsRequestTopic]
    topicName string
92 DeleteShareGroupOffsetsResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null
  responses [DeleteShareGroupOffsetsResponseTopic]
    topicName string, topicId uuid, errorCode int16, errorMessage string? =null
"""
