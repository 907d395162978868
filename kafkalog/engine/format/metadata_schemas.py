"""The schemas of `__cluster_metadata` (KRaft's log and its snapshots), and of its control batches.

The tables are for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  A number is the
record's type, in CONTROL the control record's type.  Source: the messages of Kafka 4.4.0's metadata module and of its
clients.
"""

from __future__ import annotations

METADATA = """
0 RegisterBrokerRecord 0-4 flexible 0+
  brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64
  endPoints [BrokerEndpoint]
    name string, host string, port uint16, securityProtocol int16
  features [BrokerFeature]
    name string, minSupportedVersion int16, maxSupportedVersion int16
  rack string?, fenced bool, inControlledShutdown bool 1+, logDirs [uuid] 3+ #0
  cordonedLogDirs [uuid]? 4+ #1=null
1 UnregisterBrokerRecord 0 flexible 0+
  brokerId int32, brokerEpoch int64
2 TopicRecord 0 flexible 0+
  name string, topicId uuid
3 PartitionRecord 0-2 flexible 0+
  partitionId int32, topicId uuid, replicas [int32], isr [int32], removingReplicas [int32]
  addingReplicas [int32], leader int32, leaderRecoveryState int8 #0, leaderEpoch int32
  partitionEpoch int32, directories [uuid] 1+, eligibleLeaderReplicas [int32]? 2+ #1=null
  lastKnownElr [int32]? 2+ #2=null
4 ConfigRecord 0 flexible 0+
  resourceType int8, resourceName string, name string, value string?
5 PartitionChangeRecord 0-2 flexible 0+
  partitionId int32, topicId uuid, isr [int32]? #0=null, leader int32 #1=-2
  replicas [int32]? #2=null, removingReplicas [int32]? #3=null, addingReplicas [int32]? #4=null
  leaderRecoveryState int8 #5=-1, directories [uuid]? 1+ #8=null
  eligibleLeaderReplicas [int32]? 2+ #6=null, lastKnownElr [int32]? 2+ #7=null
7 FenceBrokerRecord 0 flexible 0+
  id int32, epoch int64
8 UnfenceBrokerRecord 0 flexible 0+
  id int32, epoch int64
9 RemoveTopicRecord 0 flexible 0+
  topicId uuid
10 DelegationTokenRecord 0 flexible 0+
  owner string, requester string, renewers [string], issueTimestamp int64, maxTimestamp int64
  expirationTimestamp int64, tokenId string
11 UserScramCredentialRecord 0 flexible 0+
  name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes, iterations int32
12 FeatureLevelRecord 0 flexible 0+
  name string, featureLevel int16
14 ClientQuotaRecord 0 flexible 0+
  entity [EntityData]
    entityType string, entityName string?
  key string, value float64, remove bool
15 ProducerIdsRecord 0 flexible 0+
  brokerId int32, brokerEpoch int64, nextProducerId int64
17 BrokerRegistrationChangeRecord 0-3 flexible 0+
  brokerId int32, brokerEpoch int64, fenced int8 #0, inControlledShutdown int8 1+ #1
  logDirs [uuid] 2+ #2, cordonedLogDirs [uuid]? 3+ #3=null
18 AccessControlEntryRecord 0 flexible 0+
  id uuid, resourceType int8, resourceName string, patternType int8, principal string, host string
  operation int8, permissionType int8
19 RemoveAccessControlEntryRecord 0 flexible 0+
  id uuid
20 NoOpRecord 0 flexible 0+
21 ZkMigrationStateRecord 0 flexible 0+
  zkMigrationState int8
22 RemoveUserScramCredentialRecord 0 flexible 0+
  name string, mechanism int8
23 BeginTransactionRecord 0 flexible 0+
  name string? #0=null
24 EndTransactionRecord 0 flexible 0+
25 AbortTransactionRecord 0 flexible 0+
  reason string? #0=null
26 RemoveDelegationTokenRecord 0 flexible 0+
  tokenId string
27 RegisterControllerRecord 0 flexible 0+
  controllerId int32, incarnationId uuid, zkMigrationReady bool
  endPoints [ControllerEndpoint]
    name string, host string, port uint16, securityProtocol int16
  features [ControllerFeature]
    name string, minSupportedVersion int16, maxSupportedVersion int16
28 ClearElrRecord 0 flexible 0+
  topicName string
29 UnregisterControllerRecord 0 flexible 0+
  controllerId int32
"""

CONTROL = """
2 LeaderChangeMessage 0-1 flexible 0+
  version int16, leaderId int32
  voters [Voter]
    voterId int32, voterDirectoryId uuid 1+
  grantingVoters [Voter]
3 SnapshotHeaderRecord 0 flexible 0+
  version int16, lastContainedLogTimestamp int64
4 SnapshotFooterRecord 0 flexible 0+
  version int16
5 KRaftVersionRecord 0 flexible 0+
  version int16, kRaftVersion int16
6 VotersRecord 0 flexible 0+
  version int16
  voters [Voter]
    voterId int32, voterDirectoryId uuid
    endpoints [Endpoint]
      name string, host string, port uint16
    kRaftVersionFeature KRaftVersionFeature
      minSupportedVersion int16, maxSupportedVersion int16
"""
