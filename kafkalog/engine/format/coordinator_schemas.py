"""The schemas of `__consumer_offsets`, `__transaction_state`, `__share_group_state` and the consumer group protocol.

The tables are for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  A number is the
record's type; each type has a Key and a Value.  Source: the messages of Kafka 4.4.0's group, transaction and share
coordinators.
"""

from __future__ import annotations

GROUP = """
0 LegacyOffsetCommitKey 0
  group string, topic string, partition int32
0 LegacyOffsetCommitValue 0
  offset int64, metadata string, commitTimestamp int64
1 OffsetCommitKey 0
  group string, topic string, partition int32
1 OffsetCommitValue 0-4 flexible 4+
  offset int64, leaderEpoch int32 3+, metadata string, commitTimestamp int64
  expireTimestamp int64 1-1, topicId uuid 4+ #0
2 GroupMetadataKey 0
  group string
2 GroupMetadataValue 0-4 flexible 4+
  protocolType string, generation int32, protocol string?, leader string?
  currentStateTimestamp int64 2+
  members [MemberMetadata]
    memberId string, groupInstanceId string? 3+, clientId string, clientHost string
    rebalanceTimeout int32 1+, sessionTimeout int32, subscription bytes, assignment bytes
3 ConsumerGroupMetadataKey 0
  groupId string
3 ConsumerGroupMetadataValue 0 flexible 0+
  epoch int32, metadataHash int64 #0
4 ConsumerGroupPartitionMetadataKey 0
  groupId string
4 ConsumerGroupPartitionMetadataValue 0 flexible 0+
  topics [TopicMetadata]
    topicId uuid, topicName string, numPartitions int32
    partitionMetadata [PartitionMetadata]
      partition int32, racks [string]
5 ConsumerGroupMemberMetadataKey 0
  groupId string, memberId string
5 ConsumerGroupMemberMetadataValue 0 flexible 0+
  instanceId string?, rackId string?, clientId string, clientHost string
  subscribedTopicNames [string], subscribedTopicRegex string?, rebalanceTimeoutMs int32
  serverAssignor string?
  classicMemberMetadata ClassicMemberMetadata? #0
    sessionTimeoutMs int32
    supportedProtocols [ClassicProtocol]
      name string, metadata bytes
6 ConsumerGroupTargetAssignmentMetadataKey 0
  groupId string
6 ConsumerGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32, assignmentTimestamp int64 #0
7 ConsumerGroupTargetAssignmentMemberKey 0
  groupId string, memberId string
7 ConsumerGroupTargetAssignmentMemberValue 0 flexible 0+
  topicPartitions [TopicPartition]
    topicId uuid, partitions [int32]
8 ConsumerGroupCurrentMemberAssignmentKey 0
  groupId string, memberId string
8 ConsumerGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32, previousMemberEpoch int32, state int8
  assignedPartitions [TopicPartitions]
    topicId uuid, partitions [int32], assignmentEpochs [int32]? #0
  partitionsPendingRevocation [TopicPartitions]
10 ShareGroupMemberMetadataKey 0
  groupId string, memberId string
10 ShareGroupMemberMetadataValue 0 flexible 0+
  rackId string?, clientId string, clientHost string, subscribedTopicNames [string]
11 ShareGroupMetadataKey 0
  groupId string
11 ShareGroupMetadataValue 0 flexible 0+
  epoch int32, metadataHash int64
12 ShareGroupTargetAssignmentMetadataKey 0
  groupId string
12 ShareGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32, assignmentTimestamp int64 #0
13 ShareGroupTargetAssignmentMemberKey 0
  groupId string, memberId string
13 ShareGroupTargetAssignmentMemberValue 0 flexible 0+
  topicPartitions [TopicPartition]
    topicId uuid, partitions [int32]
14 ShareGroupCurrentMemberAssignmentKey 0
  groupId string, memberId string
14 ShareGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32, previousMemberEpoch int32, state int8
  assignedPartitions [TopicPartitions]
    topicId uuid, partitions [int32]
15 ShareGroupStatePartitionMetadataKey 0
  groupId string
15 ShareGroupStatePartitionMetadataValue 0 flexible 0+
  initializingTopics [TopicPartitionsInfo]
    topicId uuid, topicName string, partitions [int32]
  initializedTopics [TopicPartitionsInfo]
  deletingTopics [TopicInfo]
    topicId uuid, topicName string
16 ConsumerGroupRegularExpressionKey 0
  groupId string, regularExpression string
16 ConsumerGroupRegularExpressionValue 0 flexible 0+
  topics [string], version int64, timestamp int64
17 StreamsGroupMetadataKey 0
  groupId string
17 StreamsGroupMetadataValue 0 flexible 0+
  epoch int32, metadataHash int64, validatedTopologyEpoch int32 #0=-1
  lastAssignmentConfigs [LastAssignmentConfig]? #1
    key string, value string
  storedDescriptionTopologyEpoch int32 #2=-1, failedDescriptionTopologyEpoch int32 #3=-1
19 StreamsGroupMemberMetadataKey 0
  groupId string, memberId string
19 StreamsGroupMemberMetadataValue 0 flexible 0+
  instanceId string?, rackId string?, clientId string, clientHost string, rebalanceTimeoutMs int32
  topologyEpoch int32, processId string
  userEndpoint Endpoint?
    host string, port uint16
  clientTags [KeyValue]
    key string, value string
20 StreamsGroupTargetAssignmentMetadataKey 0
  groupId string
20 StreamsGroupTargetAssignmentMetadataValue 0 flexible 0+
  assignmentEpoch int32, assignmentTimestamp int64 #0
21 StreamsGroupTargetAssignmentMemberKey 0
  groupId string, memberId string
21 StreamsGroupTargetAssignmentMemberValue 0 flexible 0+
  activeTasks [TaskIds]
    subtopologyId string, partitions [int32]
  standbyTasks [TaskIds]
  warmupTasks [TaskIds]
22 StreamsGroupCurrentMemberAssignmentKey 0
  groupId string, memberId string
22 StreamsGroupCurrentMemberAssignmentValue 0 flexible 0+
  memberEpoch int32, previousMemberEpoch int32, state int8
  activeTasks [TaskIds]
    subtopologyId string, partitions [int32], assignmentEpochs [int32]? #0
  standbyTasks [TaskIds]
  warmupTasks [TaskIds]
  activeTasksPendingRevocation [TaskIds]
  standbyTasksPendingRevocation [TaskIds]
  warmupTasksPendingRevocation [TaskIds]
23 StreamsGroupTopologyKey 0
  groupId string
23 StreamsGroupTopologyValue 0 flexible 0+
  epoch int32
  subtopologies [Subtopology]
    subtopologyId string, sourceTopics [string], sourceTopicRegex [string]
    stateChangelogTopics [TopicInfo]
      name string, partitions int32, replicationFactor int16
      topicConfigs [TopicConfig]
        key string, value string
    repartitionSinkTopics [string]
    repartitionSourceTopics [TopicInfo]
    copartitionGroups [CopartitionGroup]
      sourceTopics [int16], sourceTopicRegex [int16], repartitionSourceTopics [int16]
"""

TRANSACTION = """
0 TransactionLogKey 0
  transactionalId string
0 TransactionLogValue 0-1 flexible 1+
  producerId int64, previousProducerId int64 1+ #0=-1, nextProducerId int64 1+ #1=-1
  producerEpoch int16, nextProducerEpoch int16 1+ #3=-1, transactionTimeoutMs int32
  transactionStatus int8
  transactionPartitions [PartitionsSchema]?
    topic string, partitionIds [int32]
  transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64
  clientTransactionVersion int16 1+ #2
"""

SHARE = """
0 ShareSnapshotKey 0
  groupId string, topicId uuid, partition int32
0 ShareSnapshotValue 0 flexible 0+
  snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64
  deliveryCompleteCount int32 #0=-1, createTimestamp int64, writeTimestamp int64
  stateBatches [StateBatch]
    firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
1 ShareUpdateKey 0
  groupId string, topicId uuid, partition int32
1 ShareUpdateValue 0 flexible 0+
  snapshotEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 #0=-1
  stateBatches [StateBatch]
    firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
"""

# Schemas of `subscription` and `assignment` of a GroupMetadataValue whose protocol type is "consumer".
CONSUMER_PROTOCOL = """
ConsumerProtocolSubscription 0-3
  topics [string], userData bytes?
  ownedPartitions [TopicPartition] 1+
    topic string, partitions [int32]
  generationId int32 2+, rackId string? 3+
ConsumerProtocolAssignment 0-3
  assignedPartitions [TopicPartition]
    topic string, partitions [int32]
  userData bytes?
"""
