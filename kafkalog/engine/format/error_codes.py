"""Kafka's error codes: their numbers, their exceptions, whether a client tries again, and the texts in answers.

An exception has the code of its class, or of the nearest base class that has one; any other is UNKNOWN_SERVER_ERROR.
Classes are found by name, because most of them have no meaning outside a server.  Source: Errors of Kafka 4.4.0.
"""

from __future__ import annotations

import enum
import functools
from typing import NamedTuple


class Errors(enum.IntEnum):
    """Kafka's names and numbers of errors."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136


class _Row(NamedTuple):
    exception: str
    retriable: bool
    message: str


# Name, exception and text of each error.  Kafka sends the text if an exception brings none.
# ruff: noqa: E501
_TABLE = """
UNKNOWN_SERVER_ERROR UnknownServerException: The server experienced an unexpected error when processing the request.
OFFSET_OUT_OF_RANGE OffsetOutOfRangeException: The requested offset is not within the range of offsets maintained by the server.
CORRUPT_MESSAGE CorruptRecordException retriable: This message has failed its CRC checksum, exceeds the valid size, has a null key for a compacted topic, or is otherwise corrupt.
UNKNOWN_TOPIC_OR_PARTITION UnknownTopicOrPartitionException retriable: This server does not host this topic-partition.
INVALID_FETCH_SIZE InvalidFetchSizeException: The requested fetch size is invalid.
LEADER_NOT_AVAILABLE LeaderNotAvailableException retriable: There is no leader for this topic-partition as we are in the middle of a leadership election.
NOT_LEADER_OR_FOLLOWER NotLeaderOrFollowerException retriable: For requests intended only for the leader, this error indicates that the broker is not the current leader. For requests intended for any replica, this error indicates that the broker is not a replica of the topic partition.
REQUEST_TIMED_OUT TimeoutException retriable: The request timed out.
BROKER_NOT_AVAILABLE BrokerNotAvailableException: The broker is not available.
REPLICA_NOT_AVAILABLE ReplicaNotAvailableException retriable: The replica is not available for the requested topic-partition. Produce/Fetch requests and other requests intended only for the leader or follower return NOT_LEADER_OR_FOLLOWER if the broker is not a replica of the topic-partition.
MESSAGE_TOO_LARGE RecordTooLargeException: The request included a message larger than the max message size the server will accept.
STALE_CONTROLLER_EPOCH ControllerMovedException: The controller moved to another broker.
OFFSET_METADATA_TOO_LARGE OffsetMetadataTooLarge: The metadata field of the offset request was too large.
NETWORK_EXCEPTION NetworkException retriable: The server disconnected before a response was received.
COORDINATOR_LOAD_IN_PROGRESS CoordinatorLoadInProgressException retriable: The coordinator is loading and hence can't process requests.
COORDINATOR_NOT_AVAILABLE CoordinatorNotAvailableException retriable: The coordinator is not available.
NOT_COORDINATOR NotCoordinatorException retriable: This is not the correct coordinator.
INVALID_TOPIC_EXCEPTION InvalidTopicException: The request attempted to perform an operation on an invalid topic.
RECORD_LIST_TOO_LARGE RecordBatchTooLargeException: The request included message batch larger than the configured segment size on the server.
NOT_ENOUGH_REPLICAS NotEnoughReplicasException retriable: Messages are rejected since there are fewer in-sync replicas than required.
NOT_ENOUGH_REPLICAS_AFTER_APPEND NotEnoughReplicasAfterAppendException retriable: Messages are written to the log, but to fewer in-sync replicas than required.
INVALID_REQUIRED_ACKS InvalidRequiredAcksException: Produce request specified an invalid value for required acks.
ILLEGAL_GENERATION IllegalGenerationException: Specified group generation id is not valid.
INCONSISTENT_GROUP_PROTOCOL InconsistentGroupProtocolException: The group member's supported protocols are incompatible with those of existing members or first group member tried to join with empty protocol type or empty protocol list.
INVALID_GROUP_ID InvalidGroupIdException: The group id is invalid.
UNKNOWN_MEMBER_ID UnknownMemberIdException: The coordinator is not aware of this member.
INVALID_SESSION_TIMEOUT InvalidSessionTimeoutException: The session timeout is not within the range allowed by the broker (as configured by group.min.session.timeout.ms and group.max.session.timeout.ms).
REBALANCE_IN_PROGRESS RebalanceInProgressException: The group is rebalancing, so a rejoin is needed.
INVALID_COMMIT_OFFSET_SIZE InvalidCommitOffsetSizeException: The committing offset data size is not valid.
TOPIC_AUTHORIZATION_FAILED TopicAuthorizationException: Topic authorization failed.
GROUP_AUTHORIZATION_FAILED GroupAuthorizationException: Group authorization failed.
CLUSTER_AUTHORIZATION_FAILED ClusterAuthorizationException: Cluster authorization failed.
INVALID_TIMESTAMP InvalidTimestampException: The timestamp of the message is out of acceptable range.
UNSUPPORTED_SASL_MECHANISM UnsupportedSaslMechanismException: The broker does not support the requested SASL mechanism.
ILLEGAL_SASL_STATE IllegalSaslStateException: Request is not valid given the current SASL state.
UNSUPPORTED_VERSION UnsupportedVersionException: The version of API is not supported.
TOPIC_ALREADY_EXISTS TopicExistsException: Topic with this name already exists.
INVALID_PARTITIONS InvalidPartitionsException: Number of partitions is below 1.
INVALID_REPLICATION_FACTOR InvalidReplicationFactorException: Replication factor is below 1 or larger than the number of available brokers.
INVALID_REPLICA_ASSIGNMENT InvalidReplicaAssignmentException: Replica assignment is invalid.
INVALID_CONFIG InvalidConfigurationException: Configuration is invalid.
NOT_CONTROLLER NotControllerException retriable: This is not the correct controller for this cluster.
INVALID_REQUEST InvalidRequestException: This most likely occurs because of a request being malformed by the client library or the message was sent to an incompatible broker. See the broker logs for more details.
UNSUPPORTED_FOR_MESSAGE_FORMAT UnsupportedForMessageFormatException: The message format version on the broker does not support the request.
POLICY_VIOLATION PolicyViolationException: Request parameters do not satisfy the configured policy.
OUT_OF_ORDER_SEQUENCE_NUMBER OutOfOrderSequenceException: The broker received an out of order sequence number.
DUPLICATE_SEQUENCE_NUMBER DuplicateSequenceException: The broker received a duplicate sequence number.
INVALID_PRODUCER_EPOCH InvalidProducerEpochException: Producer attempted to produce with an old epoch.
INVALID_TXN_STATE InvalidTxnStateException: The producer attempted a transactional operation in an invalid state.
INVALID_PRODUCER_ID_MAPPING InvalidPidMappingException: The producer attempted to use a producer id which is not currently assigned to its transactional id.
INVALID_TRANSACTION_TIMEOUT InvalidTxnTimeoutException: The transaction timeout is larger than the maximum value allowed by the broker (as configured by transaction.max.timeout.ms).
CONCURRENT_TRANSACTIONS ConcurrentTransactionsException retriable: The producer attempted to update a transaction while another concurrent operation on the same transaction was ongoing.
TRANSACTION_COORDINATOR_FENCED TransactionCoordinatorFencedException: Indicates that the transaction coordinator sending a WriteTxnMarker is no longer the current coordinator for a given producer.
TRANSACTIONAL_ID_AUTHORIZATION_FAILED TransactionalIdAuthorizationException: Transactional Id authorization failed.
SECURITY_DISABLED SecurityDisabledException: Security features are disabled.
OPERATION_NOT_ATTEMPTED OperationNotAttemptedException: The broker did not attempt to execute this operation. This may happen for batched RPCs where some operations in the batch failed, causing the broker to respond without trying the rest.
KAFKA_STORAGE_ERROR KafkaStorageException retriable: Disk error when trying to access log file on the disk.
LOG_DIR_NOT_FOUND LogDirNotFoundException: The user-specified log directory is not found in the broker config.
SASL_AUTHENTICATION_FAILED SaslAuthenticationException: SASL Authentication failed.
UNKNOWN_PRODUCER_ID UnknownProducerIdException: This exception is raised by the broker if it could not locate the producer metadata associated with the producerId in question. This could happen if, for instance, the producer's records were deleted because their retention time had elapsed. Once the last records of the producerId are removed, the producer's metadata is removed from the broker, and future appends by the producer will return this exception.
REASSIGNMENT_IN_PROGRESS ReassignmentInProgressException: A partition reassignment is in progress.
DELEGATION_TOKEN_AUTH_DISABLED DelegationTokenDisabledException: Delegation Token feature is not enabled.
DELEGATION_TOKEN_NOT_FOUND DelegationTokenNotFoundException: Delegation Token is not found on server.
DELEGATION_TOKEN_OWNER_MISMATCH DelegationTokenOwnerMismatchException: Specified Principal is not valid Owner/Renewer.
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED UnsupportedByAuthenticationException: Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on delegation token authenticated channels.
DELEGATION_TOKEN_AUTHORIZATION_FAILED DelegationTokenAuthorizationException: Delegation Token authorization failed.
DELEGATION_TOKEN_EXPIRED DelegationTokenExpiredException: Delegation Token is expired.
INVALID_PRINCIPAL_TYPE InvalidPrincipalTypeException: Supplied principalType is not supported.
NON_EMPTY_GROUP GroupNotEmptyException: The group is not empty.
GROUP_ID_NOT_FOUND GroupIdNotFoundException: The group id does not exist.
FETCH_SESSION_ID_NOT_FOUND FetchSessionIdNotFoundException retriable: The fetch session ID was not found.
INVALID_FETCH_SESSION_EPOCH InvalidFetchSessionEpochException retriable: The fetch session epoch is invalid.
LISTENER_NOT_FOUND ListenerNotFoundException retriable: There is no listener on the leader broker that matches the listener on which metadata request was processed.
TOPIC_DELETION_DISABLED TopicDeletionDisabledException: Topic deletion is disabled.
FENCED_LEADER_EPOCH FencedLeaderEpochException retriable: The leader epoch in the request is older than the epoch on the broker.
UNKNOWN_LEADER_EPOCH UnknownLeaderEpochException retriable: The leader epoch in the request is newer than the epoch on the broker.
UNSUPPORTED_COMPRESSION_TYPE UnsupportedCompressionTypeException: The requesting client does not support the compression type of given partition.
STALE_BROKER_EPOCH StaleBrokerEpochException: Broker epoch has changed.
OFFSET_NOT_AVAILABLE OffsetNotAvailableException retriable: The leader high watermark has not caught up from a recent leader election so the offsets cannot be guaranteed to be monotonically increasing.
MEMBER_ID_REQUIRED MemberIdRequiredException: The group member needs to have a valid member id before actually entering a consumer group.
PREFERRED_LEADER_NOT_AVAILABLE PreferredLeaderNotAvailableException retriable: The preferred leader was not available.
GROUP_MAX_SIZE_REACHED GroupMaxSizeReachedException: The group has reached its maximum size.
FENCED_INSTANCE_ID FencedInstanceIdException: The broker rejected this static consumer since another consumer with the same group.instance.id has registered with a different member.id.
ELIGIBLE_LEADERS_NOT_AVAILABLE EligibleLeadersNotAvailableException retriable: Eligible topic partition leaders are not available.
ELECTION_NOT_NEEDED ElectionNotNeededException retriable: Leader election not needed for topic partition.
NO_REASSIGNMENT_IN_PROGRESS NoReassignmentInProgressException: No partition reassignment is in progress.
GROUP_SUBSCRIBED_TO_TOPIC GroupSubscribedToTopicException: Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it.
INVALID_RECORD InvalidRecordException: This record has failed the validation on broker and hence will be rejected.
UNSTABLE_OFFSET_COMMIT UnstableOffsetCommitException retriable: There are unstable offsets that need to be cleared.
THROTTLING_QUOTA_EXCEEDED ThrottlingQuotaExceededException retriable: The throttling quota has been exceeded.
PRODUCER_FENCED ProducerFencedException: There is a newer producer with the same transactionalId which fences the current one.
RESOURCE_NOT_FOUND ResourceNotFoundException: A request illegally referred to a resource that does not exist.
DUPLICATE_RESOURCE DuplicateResourceException: A request illegally referred to the same resource twice.
UNACCEPTABLE_CREDENTIAL UnacceptableCredentialException: Requested credential would not meet criteria for acceptability.
INCONSISTENT_VOTER_SET InconsistentVoterSetException: Indicates that the either the sender or recipient of a voter-only request is not one of the expected voters.
INVALID_UPDATE_VERSION InvalidUpdateVersionException: The given update version was invalid.
FEATURE_UPDATE_FAILED FeatureUpdateFailedException: Unable to update finalized features due to an unexpected server error.
PRINCIPAL_DESERIALIZATION_FAILURE PrincipalDeserializationException: Request principal deserialization failed during forwarding. This indicates an internal error on the broker cluster security setup.
SNAPSHOT_NOT_FOUND SnapshotNotFoundException: Requested snapshot was not found.
POSITION_OUT_OF_RANGE PositionOutOfRangeException: Requested position is not greater than or equal to zero, and less than the size of the snapshot.
UNKNOWN_TOPIC_ID UnknownTopicIdException retriable: This server does not host this topic ID.
DUPLICATE_BROKER_REGISTRATION DuplicateBrokerRegistrationException: This broker ID is already in use.
BROKER_ID_NOT_REGISTERED BrokerIdNotRegisteredException: The given broker ID was not registered.
INCONSISTENT_TOPIC_ID InconsistentTopicIdException retriable: The log's topic ID did not match the topic ID in the request.
INCONSISTENT_CLUSTER_ID InconsistentClusterIdException: The clusterId in the request does not match that found on the server.
TRANSACTIONAL_ID_NOT_FOUND TransactionalIdNotFoundException: The transactionalId could not be found.
FETCH_SESSION_TOPIC_ID_ERROR FetchSessionTopicIdException retriable: The fetch session encountered inconsistent topic ID usage.
INELIGIBLE_REPLICA IneligibleReplicaException: The new ISR contains at least one ineligible replica.
NEW_LEADER_ELECTED NewLeaderElectedException: The AlterPartition request successfully updated the partition state but the leader has changed.
OFFSET_MOVED_TO_TIERED_STORAGE OffsetMovedToTieredStorageException: The requested offset is moved to tiered storage.
FENCED_MEMBER_EPOCH FencedMemberEpochException: The member epoch is fenced by the group coordinator. The member must abandon all its partitions and rejoin.
UNRELEASED_INSTANCE_ID UnreleasedInstanceIdException: The instance ID is still used by another member in the consumer group. That member must leave first.
UNSUPPORTED_ASSIGNOR UnsupportedAssignorException: The assignor or its version range is not supported by the consumer group.
STALE_MEMBER_EPOCH StaleMemberEpochException: The member epoch is stale. The member must retry after receiving its updated member epoch via the ConsumerGroupHeartbeat API.
MISMATCHED_ENDPOINT_TYPE MismatchedEndpointTypeException: The request was sent to an endpoint of the wrong type.
UNSUPPORTED_ENDPOINT_TYPE UnsupportedEndpointTypeException: This endpoint type is not supported yet.
UNKNOWN_CONTROLLER_ID UnknownControllerIdException: This controller ID is not known.
UNKNOWN_SUBSCRIPTION_ID UnknownSubscriptionIdException: Client sent a push telemetry request with an invalid or outdated subscription ID.
TELEMETRY_TOO_LARGE TelemetryTooLargeException: Client sent a push telemetry request larger than the maximum size the broker will accept.
INVALID_REGISTRATION InvalidRegistrationException: The controller has considered the broker registration to be invalid.
TRANSACTION_ABORTABLE TransactionAbortableException: The server encountered an error with the transaction. The client can abort the transaction to continue using this transactional ID.
INVALID_RECORD_STATE InvalidRecordStateException: The record state is invalid. The acknowledgement of delivery could not be completed.
SHARE_SESSION_NOT_FOUND ShareSessionNotFoundException retriable: The share session was not found.
INVALID_SHARE_SESSION_EPOCH InvalidShareSessionEpochException retriable: The share session epoch is invalid.
FENCED_STATE_EPOCH FencedStateEpochException: The coordinator rejected the request because the state epoch did not match.
INVALID_VOTER_KEY InvalidVoterKeyException: The voter key doesn't match the receiving replica's key.
DUPLICATE_VOTER DuplicateVoterException: The voter is already part of the set of voters.
VOTER_NOT_FOUND VoterNotFoundException: The voter is not part of the set of voters.
INVALID_REGULAR_EXPRESSION InvalidRegularExpression: The regular expression is not valid.
REBOOTSTRAP_REQUIRED RebootstrapRequiredException: Client metadata is stale. The client should rebootstrap to obtain new metadata.
STREAMS_INVALID_TOPOLOGY StreamsInvalidTopologyException: The supplied topology is invalid.
STREAMS_INVALID_TOPOLOGY_EPOCH StreamsInvalidTopologyEpochException: The supplied topology epoch is invalid.
STREAMS_TOPOLOGY_FENCED StreamsTopologyFencedException: The supplied topology epoch is outdated.
SHARE_SESSION_LIMIT_REACHED ShareSessionLimitReachedException retriable: The limit of share sessions has been reached.
GROUP_DELETION_FAILED GroupDeletionFailedException: DeleteGroups could not complete; see the error message on the per-group result for details.
STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED StreamsTopologyDescriptionUpdateFailedException: The broker could not process the topology description update; see the error message for details.
CONTROLLER_ID_NOT_REGISTERED ControllerIdNotRegisteredException: The given controller ID was not registered.
"""


@functools.cache
def _rows() -> dict[Errors, _Row]:
    found = {}
    for line in _TABLE.strip().splitlines():
        head, _, message = line.partition(": ")
        name, exception, *retriable = head.split()
        found[Errors[name]] = _Row(exception, bool(retriable), message)
    return found


@functools.cache
def _codes() -> dict[str, Errors]:
    return {row.exception: code for code, row in _rows().items()}


def code_of(error: BaseException) -> Errors:
    """Returns the code of an exception."""
    codes = _codes()
    for each in type(error).__mro__:
        code = codes.get(each.__name__)
        if code is not None:
            return code
    return Errors.UNKNOWN_SERVER_ERROR


def for_code(code: int) -> Errors:
    """Returns the error of a number, UNKNOWN_SERVER_ERROR for an unknown one."""
    try:
        return Errors(code)
    except ValueError:
        return Errors.UNKNOWN_SERVER_ERROR


def is_retriable(code: int) -> bool:
    """Returns whether a client of Kafka repeats a request that was answered with this code."""
    row = _rows().get(for_code(code))
    return row is not None and row.retriable


def exception_name(code: int) -> str:
    """Returns the name of Kafka's exception, empty for NONE."""
    row = _rows().get(for_code(code))
    return "" if row is None else row.exception


def message_of(code: int) -> str:
    """Returns the text that Kafka sends if an exception brings none; "NONE" for NONE."""
    row = _rows().get(for_code(code))
    return "NONE" if row is None else row.message
