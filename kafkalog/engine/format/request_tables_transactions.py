"""The requests and responses about transactions: producers, partitions, offsets and markers.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
22 InitProducerIdRequest 0-6 flexible 2+ unstable
  transactionalId string?, transactionTimeoutMs int32, producerId int64! 3+ =-1
  producerEpoch int16! 3+ =-1, enable2Pc bool! 6+, keepPreparedTxn bool! 6+
22 InitProducerIdResponse 0-6 flexible 2+
  throttleTimeMs int32, errorCode int16, producerId int64 =-1, producerEpoch int16
  ongoingTxnProducerId int64! 6+ =-1, ongoingTxnProducerEpoch int16! 6+ =-1
24 AddPartitionsToTxnRequest 0-5 flexible 3+
  transactions [AddPartitionsToTxnTransaction]! 4+
    transactionalId string, producerId int64, producerEpoch int16, verifyOnly bool
    topics [AddPartitionsToTxnTopic]
      name string 0+, partitions [int32] 0+
  v3AndBelowTransactionalId string! 0-3, v3AndBelowProducerId int64! 0-3
  v3AndBelowProducerEpoch int16! 0-3, v3AndBelowTopics [AddPartitionsToTxnTopic]! 0-3
24 AddPartitionsToTxnResponse 0-5 flexible 3+
  throttleTimeMs int32, errorCode int16 4+
  resultsByTransaction [AddPartitionsToTxnResult]! 4+
    transactionalId string
    topicResults [AddPartitionsToTxnTopicResult]
      name string 0+
      resultsByPartition [AddPartitionsToTxnPartitionResult] 0+
        partitionIndex int32, partitionErrorCode int16
  resultsByTopicV3AndBelow [AddPartitionsToTxnTopicResult]! 0-3
25 AddOffsetsToTxnRequest 0-4 flexible 3+
  transactionalId string, producerId int64, producerEpoch int16, groupId string
25 AddOffsetsToTxnResponse 0-4 flexible 3+
  throttleTimeMs int32, errorCode int16
26 EndTxnRequest 0-5 flexible 3+
  transactionalId string, producerId int64, producerEpoch int16, committed bool
26 EndTxnResponse 0-5 flexible 3+
  throttleTimeMs int32, errorCode int16, producerId int64 5+ =-1, producerEpoch int16 5+ =-1
27 WriteTxnMarkersRequest 1-2 flexible 1+
  markers [WritableTxnMarker]
    producerId int64, producerEpoch int16, transactionResult bool
    topics [WritableTxnMarkerTopic]
      name string, partitionIndexes [int32]
    coordinatorEpoch int32, transactionVersion int8 2+
27 WriteTxnMarkersResponse 1-2 flexible 1+
  markers [WritableTxnMarkerResult]
    producerId int64
    topics [WritableTxnMarkerTopicResult]
      name string
      partitions [WritableTxnMarkerPartitionResult]
        partitionIndex int32, errorCode int16
28 TxnOffsetCommitRequest 0-6 flexible 3+
  transactionalId string, groupId string, producerId int64, producerEpoch int16
  generationIdOrMemberEpoch int32! 3+ =-1, memberId string! 3+, groupInstanceId string?! 3+ =null
  topics [TxnOffsetCommitRequestTopic]
    name string 0-5, topicId uuid 6+
    partitions [TxnOffsetCommitRequestPartition]
      partitionIndex int32, committedOffset int64, committedLeaderEpoch int32 2+ =-1
      committedMetadata string?
28 TxnOffsetCommitResponse 0-6 flexible 3+
  throttleTimeMs int32
  topics [TxnOffsetCommitResponseTopic]
    name string 0-5, topicId uuid 6+
    partitions [TxnOffsetCommitResponsePartition]
      partitionIndex int32, errorCode int16
65 DescribeTransactionsRequest 0 flexible 0+
  transactionalIds [string]
65 DescribeTransactionsResponse 0 flexible 0+
  throttleTimeMs int32
  transactionStates [TransactionState]
    errorCode int16, transactionalId string, transactionState string, transactionTimeoutMs int32
    transactionStartTimeMs int64, producerId int64, producerEpoch int16
    topics [TopicData]
      topic string, partitions [int32]
66 ListTransactionsRequest 0-2 flexible 0+
  stateFilters [string], producerIdFilters [int64], durationFilter int64! 1+ =-1
  transactionalIdPattern string?! 2+ =null
66 ListTransactionsResponse 0-2 flexible 0+
  throttleTimeMs int32, errorCode int16, unknownStateFilters [string]
  transactionStates [TransactionState]
    transactionalId string, producerId int64, transactionState string
"""
