"""The requests and responses about groups: members of both protocols, and offsets.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
8 OffsetCommitRequest 2-10 flexible 8+
  groupId string, generationIdOrMemberEpoch int32 =-1, memberId string
  groupInstanceId string?! 7+ =null, retentionTimeMs int64 2-4 =-1
  topics [OffsetCommitRequestTopic]
    name string 2-9, topicId uuid 10+
    partitions [OffsetCommitRequestPartition]
      partitionIndex int32, committedOffset int64, committedLeaderEpoch int32 6+ =-1
      committedMetadata string?
8 OffsetCommitResponse 2-10 flexible 8+
  throttleTimeMs int32 3+
  topics [OffsetCommitResponseTopic]
    name string 2-9, topicId uuid 10+
    partitions [OffsetCommitResponsePartition]
      partitionIndex int32, errorCode int16
9 OffsetFetchRequest 1-10 flexible 6+
  groupId string! 1-7
  topics [OffsetFetchRequestTopic]?2! 1-7
    name string, partitionIndexes [int32]
  groups [OffsetFetchRequestGroup]! 8+
    groupId string, memberId string? 9+ =null, memberEpoch int32 9+ =-1
    topics [OffsetFetchRequestTopics]?
      name string 8-9, topicId uuid 10+, partitionIndexes [int32]
  requireStable bool! 7+
9 OffsetFetchResponse 1-10 flexible 6+
  throttleTimeMs int32 3+
  topics [OffsetFetchResponseTopic]! 1-7
    name string
    partitions [OffsetFetchResponsePartition]
      partitionIndex int32, committedOffset int64, committedLeaderEpoch int32 5+ =-1, metadata string?
      errorCode int16
  errorCode int16 2-7
  groups [OffsetFetchResponseGroup]! 8+
    groupId string
    topics [OffsetFetchResponseTopics]
      name string 8-9, topicId uuid 10+
      partitions [OffsetFetchResponsePartitions]
        partitionIndex int32, committedOffset int64, committedLeaderEpoch int32 =-1, metadata string?
        errorCode int16
    errorCode int16
11 JoinGroupRequest 0-9 flexible 6+
  groupId string, sessionTimeoutMs int32, rebalanceTimeoutMs int32 1+ =-1, memberId string
  groupInstanceId string?! 5+ =null, protocolType string
  protocols [JoinGroupRequestProtocol]
    name string, metadata bytes
  reason string? 8+ =null
11 JoinGroupResponse 0-9 flexible 6+
  throttleTimeMs int32 2+, errorCode int16, generationId int32 =-1, protocolType string? 7+ =null
  protocolName string?7, leader string, skipAssignment bool! 9+, memberId string
  members [JoinGroupResponseMember]
    memberId string, groupInstanceId string? 5+ =null, metadata bytes
12 HeartbeatRequest 0-4 flexible 4+
  groupId string, generationId int32, memberId string, groupInstanceId string?! 3+ =null
12 HeartbeatResponse 0-4 flexible 4+
  throttleTimeMs int32 1+, errorCode int16
13 LeaveGroupRequest 0-5 flexible 4+
  groupId string, memberId string! 0-2
  members [MemberIdentity]! 3+
    memberId string, groupInstanceId string? =null, reason string? 5+ =null
13 LeaveGroupResponse 0-5 flexible 4+
  throttleTimeMs int32 1+, errorCode int16
  members [MemberResponse]! 3+
    memberId string, groupInstanceId string?, errorCode int16
14 SyncGroupRequest 0-5 flexible 4+
  groupId string, generationId int32, memberId string, groupInstanceId string?! 3+ =null
  protocolType string? 5+ =null, protocolName string? 5+ =null
  assignments [SyncGroupRequestAssignment]
    memberId string, assignment bytes
14 SyncGroupResponse 0-5 flexible 4+
  throttleTimeMs int32 1+, errorCode int16, protocolType string? 5+ =null
  protocolName string? 5+ =null, assignment bytes
15 DescribeGroupsRequest 0-6 flexible 5+
  groups [string], includeAuthorizedOperations bool! 3+
15 DescribeGroupsResponse 0-6 flexible 5+
  throttleTimeMs int32 1+
  groups [DescribedGroup]
    errorCode int16, errorMessage string?! 6+ =null, groupId string, groupState string
    protocolType string, protocolData string
    members [DescribedGroupMember]
      memberId string, groupInstanceId string? 4+ =null, clientId string, clientHost string
      memberMetadata bytes, memberAssignment bytes
    authorizedOperations int32! 3+ =-2147483648
16 ListGroupsRequest 0-5 flexible 3+
  statesFilter [string]! 4+, typesFilter [string]! 5+
16 ListGroupsResponse 0-5 flexible 3+
  throttleTimeMs int32 1+, errorCode int16
  groups [ListedGroup]
    groupId string, protocolType string, groupState string 4+, groupType string 5+
42 DeleteGroupsRequest 0-3 flexible 2+
  groupsNames [string]
42 DeleteGroupsResponse 0-3 flexible 2+
  throttleTimeMs int32
  results [DeletableGroupResult]
    groupId string, errorCode int16, errorMessage string? 3+ =null
47 OffsetDeleteRequest 0
  groupId string
  topics [OffsetDeleteRequestTopic]
    name string
    partitions [OffsetDeleteRequestPartition]
      partitionIndex int32
47 OffsetDeleteResponse 0
  errorCode int16, throttleTimeMs int32
  topics [OffsetDeleteResponseTopic]
    name string
    partitions [OffsetDeleteResponsePartition]
      partitionIndex int32, errorCode int16
68 ConsumerGroupHeartbeatRequest 0-1 flexible 0+
  groupId string, memberId string, memberEpoch int32, instanceId string? =null, rackId string? =null
  rebalanceTimeoutMs int32 =-1, subscribedTopicNames [string]? =null
  subscribedTopicRegex string?! 1+ =null, serverAssignor string? =null
  topicPartitions [TopicPartitions]? =null
    topicId uuid, partitions [int32]
68 ConsumerGroupHeartbeatResponse 0-1 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, memberId string? =null
  memberEpoch int32, heartbeatIntervalMs int32
  assignment Assignment? =null
    topicPartitions [TopicPartitions]
      topicId uuid, partitions [int32]
69 ConsumerGroupDescribeRequest 0-1 flexible 0+
  groupIds [string], includeAuthorizedOperations bool
69 ConsumerGroupDescribeResponse 0-1 flexible 0+
  throttleTimeMs int32
  groups [DescribedGroup]
    errorCode int16, errorMessage string? =null, groupId string, groupState string, groupEpoch int32
    assignmentEpoch int32, assignorName string
    members [Member]
      memberId string, instanceId string? =null, rackId string? =null, memberEpoch int32
      clientId string, clientHost string, subscribedTopicNames [string]
      subscribedTopicRegex string? =null
      assignment Assignment
        topicPartitions [TopicPartitions]
          topicId uuid, topicName string, partitions [int32]
      targetAssignment Assignment, memberType int8 1+ =-1
    authorizedOperations int32 =-2147483648
"""
