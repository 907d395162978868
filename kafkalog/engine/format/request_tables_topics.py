"""The requests and responses about topics, settings, quotas and log directories.

The table is for `kafkalog.engine.format.message_tables.parse_table`, which explains the lines.  The number is the API's
key.  Source: the message definitions of Kafka 4.4.0's clients; `tests/conformance/message_definitions.py` writes them.
"""

from __future__ import annotations

TABLE = """
19 CreateTopicsRequest 2-7 flexible 5+
  topics [CreatableTopic]
    name string, numPartitions int32, replicationFactor int16
    assignments [CreatableReplicaAssignment]
      partitionIndex int32, brokerIds [int32]
    configs [CreatableTopicConfig]
      name string, value string?
  timeoutMs int32 =60000, validateOnly bool
19 CreateTopicsResponse 2-7 flexible 5+
  throttleTimeMs int32
  topics [CreatableTopicResult]
    name string, topicId uuid 7+, errorCode int16, errorMessage string?
    topicConfigErrorCode int16 5+ #0, numPartitions int32 5+ =-1, replicationFactor int16 5+ =-1
    configs [CreatableTopicConfigs]? 5+
      name string, value string?, readOnly bool, configSource int8 =-1, isSensitive bool
20 DeleteTopicsRequest 1-6 flexible 4+
  topics [DeleteTopicState]! 6+
    name string? =null, topicId uuid
  topicNames [string] 1-5, timeoutMs int32
20 DeleteTopicsResponse 1-6 flexible 4+
  throttleTimeMs int32
  responses [DeletableTopicResult]
    name string?6, topicId uuid 6+, errorCode int16, errorMessage string? 5+ =null
32 DescribeConfigsRequest 1-4 flexible 4+
  resources [DescribeConfigsResource]
    resourceType int8, resourceName string, configurationKeys [string]?
  includeSynonyms bool, includeDocumentation bool! 3+
32 DescribeConfigsResponse 1-4 flexible 4+
  throttleTimeMs int32
  results [DescribeConfigsResult]
    errorCode int16, errorMessage string?, resourceType int8, resourceName string
    configs [DescribeConfigsResourceResult]
      name string, value string?, readOnly bool, configSource int8 =-1, isSensitive bool
      synonyms [DescribeConfigsSynonym]
        name string, value string?, source int8
      configType int8 3+, documentation string? 3+
33 AlterConfigsRequest 0-2 flexible 2+
  resources [AlterConfigsResource]
    resourceType int8, resourceName string
    configs [AlterableConfig]
      name string, value string?
  validateOnly bool
33 AlterConfigsResponse 0-2 flexible 2+
  throttleTimeMs int32
  responses [AlterConfigsResourceResponse]
    errorCode int16, errorMessage string?, resourceType int8, resourceName string
34 AlterReplicaLogDirsRequest 1-2 flexible 2+
  dirs [AlterReplicaLogDir]
    path string
    topics [AlterReplicaLogDirTopic]
      name string, partitions [int32]
34 AlterReplicaLogDirsResponse 1-2 flexible 2+
  throttleTimeMs int32
  results [AlterReplicaLogDirTopicResult]
    topicName string
    partitions [AlterReplicaLogDirPartitionResult]
      partitionIndex int32, errorCode int16
35 DescribeLogDirsRequest 1-5 flexible 2+
  topics [DescribableLogDirTopic]?
    topic string, partitions [int32]
35 DescribeLogDirsResponse 1-5 flexible 2+
  throttleTimeMs int32, errorCode int16 3+
  results [DescribeLogDirsResult]
    errorCode int16, logDir string
    topics [DescribeLogDirsTopic]
      name string
      partitions [DescribeLogDirsPartition]
        partitionIndex int32, partitionSize int64, offsetLag int64, isFutureKey bool
    totalBytes int64 4+ =-1, usableBytes int64 4+ =-1, isCordoned bool 5+
37 CreatePartitionsRequest 0-3 flexible 2+
  topics [CreatePartitionsTopic]
    name string, count int32
    assignments [CreatePartitionsAssignment]?
      brokerIds [int32]
  timeoutMs int32, validateOnly bool
37 CreatePartitionsResponse 0-3 flexible 2+
  throttleTimeMs int32
  results [CreatePartitionsTopicResult]
    name string, errorCode int16, errorMessage string? =null
44 IncrementalAlterConfigsRequest 0-1 flexible 1+
  resources [AlterConfigsResource]
    resourceType int8, resourceName string
    configs [AlterableConfig]
      name string, configOperation int8, value string?
  validateOnly bool
44 IncrementalAlterConfigsResponse 0-1 flexible 1+
  throttleTimeMs int32
  responses [AlterConfigsResourceResponse]
    errorCode int16, errorMessage string?, resourceType int8, resourceName string
48 DescribeClientQuotasRequest 0-1 flexible 1+
  components [ComponentData]
    entityType string, matchType int8, match string?
  strict bool
48 DescribeClientQuotasResponse 0-1 flexible 1+
  throttleTimeMs int32, errorCode int16, errorMessage string?
  entries [EntryData]?
    entity [EntityData]
      entityType string, entityName string?
    values [ValueData]
      key string, value float64
49 AlterClientQuotasRequest 0-1 flexible 1+
  entries [EntryData]
    entity [EntityData]
      entityType string, entityName string?
    ops [OpData]
      key string, value float64, remove bool
  validateOnly bool
49 AlterClientQuotasResponse 0-1 flexible 1+
  throttleTimeMs int32
  entries [EntryData]
    errorCode int16, errorMessage string?
    entity [EntityData]
      entityType string, entityName string?
74 ListConfigResourcesRequest 0-1 flexible 0+
  resourceTypes [int8]! 1+
74 ListConfigResourcesResponse 0-1 flexible 0+
  throttleTimeMs int32, errorCode int16
  configResources [ConfigResource]
    resourceName string, resourceType int8 1+ =16
"""
