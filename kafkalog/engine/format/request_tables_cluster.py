"""The requests and responses about the cluster: metadata, coordinators, replicas, the quorum; and the headers.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
RequestHeader 1-2 flexible 2+
  requestApiKey int16, requestApiVersion int16, correlationId int32, clientId string16?
ResponseHeader 0-1 flexible 1+
  correlationId int32
3 MetadataRequest 0-13 flexible 9+
  topics [MetadataRequestTopic]?1
    topicId uuid 10+, name string?10
  allowAutoTopicCreation bool! 4+ =true, includeClusterAuthorizedOperations bool! 8-10
  includeTopicAuthorizedOperations bool! 8+
3 MetadataResponse 0-13 flexible 9+
  throttleTimeMs int32 3+
  brokers [MetadataResponseBroker]
    nodeId int32, host string, port int32, rack string? 1+ =null
  clusterId string? 2+ =null, controllerId int32 1+ =-1
  topics [MetadataResponseTopic]
    errorCode int16, name string?12, topicId uuid 10+, isInternal bool 1+
    partitions [MetadataResponsePartition]
      errorCode int16, partitionIndex int32, leaderId int32, leaderEpoch int32 7+ =-1
      replicaNodes [int32], isrNodes [int32], offlineReplicas [int32] 5+
    topicAuthorizedOperations int32! 8+ =-2147483648
  clusterAuthorizedOperations int32! 8-10 =-2147483648, errorCode int16 13+
10 FindCoordinatorRequest 0-6 flexible 3+
  key string! 0-3, keyType int8! 1+, coordinatorKeys [string]! 4+
10 FindCoordinatorResponse 0-6 flexible 3+
  throttleTimeMs int32 1+, errorCode int16! 0-3, errorMessage string? 1-3, nodeId int32! 0-3
  host string! 0-3, port int32! 0-3
  coordinators [Coordinator]! 4+
    key string, nodeId int32, host string, port int32, errorCode int16, errorMessage string?
18 ApiVersionsRequest 0-5 flexible 3+
  clientSoftwareName string 3+, clientSoftwareVersion string 3+, clusterId string? 5+ =null
  nodeId int32 5+ =-1
18 ApiVersionsResponse 0-5 flexible 3+
  errorCode int16
  apiKeys [ApiVersion]
    apiKey int16, minVersion int16, maxVersion int16
  throttleTimeMs int32 1+
  supportedFeatures [SupportedFeatureKey] 3+ #0
    name string, minVersion int16, maxVersion int16
  finalizedFeaturesEpoch int64 3+ #1=-1
  finalizedFeatures [FinalizedFeatureKey] 3+ #2
    name string, maxVersionLevel int16, minVersionLevel int16
  zkMigrationReady bool 3+ #3
43 ElectLeadersRequest 0-2 flexible 2+
  electionType int8! 1+
  topicPartitions [TopicPartitions]?
    topic string, partitions [int32]
  timeoutMs int32 =60000
43 ElectLeadersResponse 0-2 flexible 2+
  throttleTimeMs int32, errorCode int16! 1+
  replicaElectionResults [ReplicaElectionResult]
    topic string
    partitionResult [PartitionResult]
      partitionId int32, errorCode int16, errorMessage string?
45 AlterPartitionReassignmentsRequest 0-1 flexible 0+
  timeoutMs int32 =60000, allowReplicationFactorChange bool! 1+ =true
  topics [ReassignableTopic]
    name string
    partitions [ReassignablePartition]
      partitionIndex int32, replicas [int32]? =null
45 AlterPartitionReassignmentsResponse 0-1 flexible 0+
  throttleTimeMs int32, allowReplicationFactorChange bool 1+ =true, errorCode int16
  errorMessage string?
  responses [ReassignableTopicResponse]
    name string
    partitions [ReassignablePartitionResponse]
      partitionIndex int32, errorCode int16, errorMessage string?
46 ListPartitionReassignmentsRequest 0 flexible 0+
  timeoutMs int32 =60000
  topics [ListPartitionReassignmentsTopics]? =null
    name string, partitionIndexes [int32]
46 ListPartitionReassignmentsResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
  topics [OngoingTopicReassignment]
    name string
    partitions [OngoingPartitionReassignment]
      partitionIndex int32, replicas [int32], addingReplicas [int32], removingReplicas [int32]
55 DescribeQuorumRequest 0-2 flexible 0+
  topics [TopicData]
    topicName string
    partitions [PartitionData]
      partitionIndex int32
55 DescribeQuorumResponse 0-2 flexible 0+
  errorCode int16, errorMessage string? 2+
  topics [TopicData]
    topicName string
    partitions [PartitionData]
      partitionIndex int32, errorCode int16, errorMessage string? 2+, leaderId int32
      leaderEpoch int32, highWatermark int64
      currentVoters [ReplicaState]
        replicaId int32, replicaDirectoryId uuid! 2+, logEndOffset int64
        lastFetchTimestamp int64 1+ =-1, lastCaughtUpTimestamp int64 1+ =-1
      observers [ReplicaState]
  nodes [Node]! 2+
    nodeId int32
    listeners [Listener]
      name string, host string, port uint16
57 UpdateFeaturesRequest 0-2 flexible 0+
  timeoutMs int32 =60000
  featureUpdates [FeatureUpdateKey]
    feature string, maxVersionLevel int16, allowDowngrade bool! 0-0, upgradeType int8! 1+ =1
  validateOnly bool! 1+
57 UpdateFeaturesResponse 0-2 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
  results [UpdatableFeatureResult] 0-1
    feature string, errorCode int16, errorMessage string?
60 DescribeClusterRequest 0-2 flexible 0+
  includeClusterAuthorizedOperations bool, endpointType int8! 1+ =1, includeFencedBrokers bool! 2+
60 DescribeClusterResponse 0-2 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string? =null, endpointType int8! 1+ =1
  clusterId string, controllerId int32 =-1
  brokers [DescribeClusterBroker]
    brokerId int32, host string, port int32, rack string? =null, isFenced bool! 2+
  clusterAuthorizedOperations int32 =-2147483648
64 UnregisterBrokerRequest 0 flexible 0+
  brokerId int32
64 UnregisterBrokerResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
71 GetTelemetrySubscriptionsRequest 0 flexible 0+
  clientInstanceId uuid
71 GetTelemetrySubscriptionsResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, clientInstanceId uuid, subscriptionId int32
  acceptedCompressionTypes [int8], pushIntervalMs int32, telemetryMaxBytes int32
  deltaTemporality bool, requestedMetrics [string]
72 PushTelemetryRequest 0 flexible 0+
  clientInstanceId uuid, subscriptionId int32, terminating bool, compressionType int8, metrics bytes
72 PushTelemetryResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16
75 DescribeTopicPartitionsRequest 0 flexible 0+
  topics [TopicRequest]
    name string
  responsePartitionLimit int32 =2000
  cursor Cursor? =null
    topicName string, partitionIndex int32
75 DescribeTopicPartitionsResponse 0 flexible 0+
  throttleTimeMs int32
  topics [DescribeTopicPartitionsResponseTopic]
    errorCode int16, name string?, topicId uuid, isInternal bool
    partitions [DescribeTopicPartitionsResponsePartition]
      errorCode int16, partitionIndex int32, leaderId int32, leaderEpoch int32 =-1
      replicaNodes [int32], isrNodes [int32], eligibleLeaderReplicas [int32]? =null
      lastKnownElr [int32]? =null, offlineReplicas [int32]
    topicAuthorizedOperations int32 =-2147483648
  nextCursor Cursor? =null
    topicName string, partitionIndex int32
80 AddRaftVoterRequest 0-1 flexible 0+
  clusterId string?, timeoutMs int32, voterId int32, voterDirectoryId uuid
  listeners [Listener]
    name string, host string, port uint16
  ackWhenCommitted bool! 1+ =true
80 AddRaftVoterResponse 0-1 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
81 RemoveRaftVoterRequest 0 flexible 0+
  clusterId string?, voterId int32, voterDirectoryId uuid
81 RemoveRaftVoterResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
94 UnregisterControllerRequest 0 flexible 0+
  controllerId int32
94 UnregisterControllerResponse 0 flexible 0+
  throttleTimeMs int32, errorCode int16, errorMessage string?
"""
