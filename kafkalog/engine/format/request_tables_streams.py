"""The requests and responses about groups of Kafka Streams.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
88 StreamsGroupHeartbeatRequest 0-1 flexible 0+
  groupId string, memberId string, memberEpoch int32, endpointInformationEpoch int32
  instanceId string? =null, rackId string? =null, rebalanceTimeoutMs int32 =-1
  topology Topology? =null
    epoch int32
    subtopologies [Subtopology]
      subtopologyId string, sourceTopics [string], sourceTopicRegex [string]
      stateChangelogTopics [TopicInfo]
        name string, partitions int32, replicationFactor int16
        topicConfigs [KeyValue]
          key string, value string
      repartitionSinkTopics [string], repartitionSourceTopics [TopicInfo]
      copartitionGroups [CopartitionGroup]
        sourceTopics [int16], sourceTopicRegex [int16], repartitionSourceTopics [int16]
  activeTasks [TaskIds]? =null
    subtopologyId string, partitions [int32]
  standbyTasks [TaskIds]? =null, warmupTasks [TaskIds]? =null, processId string? =null
  userEndpoint Endpoint? =null
    host string, port uint16
  clientTags [KeyValue]? =null
  taskOffsets [TaskOffset]? =null
    subtopologyId string, partition int32, offset int64
  taskEndOffsets [TaskOffset]? =null, shutdownApplication bool
88 StreamsGroupHeartbeatResponse 0-1 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, memberId string
  memberEpoch int32, heartbeatIntervalMs int32, acceptableRecoveryLagLegacy int32! 0-0
  taskOffsetIntervalMs int32, acceptableRecoveryLag int64 1+ =-1
  status [Status]?
    statusCode int8, statusDetail string
  activeTasks [TaskIds]? =null
    subtopologyId string, partitions [int32]
  standbyTasks [TaskIds]? =null, warmupTasks [TaskIds]? =null, topologyDescriptionRequired bool! 1+
  endpointInformationEpoch int32
  partitionsByUserEndpoint [EndpointToPartitions]? =null
    userEndpoint Endpoint
      host string, port uint16
    activePartitions [TopicPartition]
      topic string, partitions [int32]
    standbyPartitions [TopicPartition]
89 StreamsGroupDescribeRequest 0-1 flexible 0+
  groupIds [string], includeAuthorizedOperations bool, includeTopologyDescription bool! 1+
89 StreamsGroupDescribeResponse 0-1 flexible 0+
  throttleTimeMs int32
  groups [DescribedGroup]
    errorCode int16, errorMessage string? =null, groupId string, groupState string, groupEpoch int32
    assignmentEpoch int32
    topology Topology? =null
      epoch int32
      subtopologies [Subtopology]? =null
        subtopologyId string, sourceTopics [string], repartitionSinkTopics [string]
        stateChangelogTopics [TopicInfo]
          name string, partitions int32, replicationFactor int16
          topicConfigs [KeyValue]
            key string, value string
        repartitionSourceTopics [TopicInfo]
    members [Member]
      memberId string, memberEpoch int32, instanceId string? =null, rackId string? =null
      clientId string, clientHost string, topologyEpoch int32, processId string
      userEndpoint Endpoint? =null
        host string, port uint16
      clientTags [KeyValue]
      taskOffsets [TaskOffset]
        subtopologyId string, partition int32, offset int64
      taskEndOffsets [TaskOffset]
      assignment Assignment
        activeTasks [TaskIds]
          subtopologyId string, partitions [int32]
        standbyTasks [TaskIds], warmupTasks [TaskIds]
      targetAssignment Assignment, isClassic bool
    authorizedOperations int32 =-2147483648
    topologyDescription TopologyDescription?! 1+ =null
      subtopologies [TopologyDescriptionSubtopology]
        subtopologyId string
        nodes [TopologyDescriptionNode]
          name string, nodeType int8, sourceTopics [string], sinkTopic string? =null, stores [string]
          successors [string]
      globalStores [TopologyDescriptionGlobalStore]
        source TopologyDescriptionNode, processor TopologyDescriptionNode
    topologyDescriptionStatus int8! 1+, assignorName string? 1+ =null
93 StreamsGroupTopologyDescriptionUpdateRequest 0 flexible 0+
  groupId string, memberId string, topologyEpoch int32
  topologyDescription TopologyDescription
    subtopologies [TopologyDescriptionSubtopology]
      subtopologyId string
      nodes [TopologyDescriptionNode]
        name string, nodeType int8, sourceTopics [string], sinkTopic string? =null, stores [string]
        successors [string]
    globalStores [TopologyDescriptionGlobalStore]
      source TopologyDescriptionNode, processor TopologyDescriptionNode
93 StreamsGroupTopologyDescriptionUpdateResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null
"""
