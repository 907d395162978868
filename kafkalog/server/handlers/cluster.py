"""ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster and FindCoordinator: what clients ask first.

The cluster is one node, which leads every partition, is the controller and every coordinator.  A partition whose
directory is offline has no leader.  A topic that a client may create by naming it is created before the answer, which
still says that it is unknown, as Kafka's does: the client asks again.  The topic of a coordinator is created when a
client first looks for the coordinator.

Source: KafkaApis, KRaftMetadataCache, DescribeTopicPartitionsRequestHandler, DefaultAutoTopicCreationManager,
ApiVersionsRequest, AuthHelper (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkalog._limits import INT_MIN
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.error_codes import Errors, message_of
from kafkalog.engine.format.java_text import ZERO_UUID, parse_int, parse_uuid
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import InvalidRequestException, InvalidTopicException, KafkalogError, KafkaStorageException
from kafkalog.server.error_answers import error_response
from kafkalog.server.hosted import HostedTopic, hosted_by, leader_epoch_of
from kafkalog.server.request import LARGE, Pending
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request, Values

NO_OPERATIONS = INT_MIN  # authorized operations that were not asked for
PARTITIONS = "partitions in metadata"  # in Broker.state
PARTITIONS_MS = 1000
PARTITIONS_TOPICS_MAX = 10_000
_LINES = Lines("kafkalog.server")

# --- ApiVersions -----------------------------------------------------------------------------------------

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FEATURES_EPOCH = 1


class Feature:
    """A feature of the cluster: its lowest and highest version here, and the request without which it is off."""

    __slots__ = ("highest", "is_finalized", "lowest", "name", "needs")

    def __init__(self, name: str, lowest: int, highest: int, needs: int | None = None, *, is_on: bool = True) -> None:
        self.name = name
        self.lowest = lowest
        self.highest = highest
        self.needs = needs
        self.is_finalized = is_on


# As a cluster that 4.4.0 formats.  kraft.version is 0 there.
FEATURES = (
    Feature("group.version", 0, 1, ApiKeys.CONSUMER_GROUP_HEARTBEAT),
    Feature("kraft.version", 0, 1, is_on=False),
    Feature("metadata.version", 7, 33),
    Feature("share.version", 0, 2, ApiKeys.SHARE_GROUP_HEARTBEAT),
    Feature("streams.version", 0, 1, ApiKeys.STREAMS_GROUP_HEARTBEAT),
    Feature("transaction.version", 0, 2, ApiKeys.END_TXN),
    Feature("eligible.leader.replicas.version", 0, 1),
)


def handle_api_versions(broker: Broker, request: Request) -> Values | None:
    if request.unsupported_version is not None:
        return error_response(request, Errors.UNSUPPORTED_VERSION)
    body, version = request.body, request.api_version
    cluster_id, node_id = body["clusterId"], body["nodeId"]
    if version >= 5 and (cluster_id is None) != (node_id == -1):
        return error_response(request, Errors.INVALID_REQUEST)
    if version >= 3:
        software = body["clientSoftwareName"], body["clientSoftwareVersion"]
        if not all(map(_SOFTWARE.fullmatch, software)):
            return error_response(request, Errors.INVALID_REQUEST)
        request.connection.client_software_name, request.connection.client_software_version = software
    if version >= 5 and cluster_id is not None and (cluster_id, node_id) != (broker.cluster_id, broker.node_id):
        return error_response(request, Errors.REBOOTSTRAP_REQUIRED)
    assert broker.apis is not None
    keys = broker.apis.api_versions()
    known = {each["apiKey"] for each in keys}
    features = [each for each in FEATURES if each.needs is None or each.needs in known]
    return {
        "apiKeys": keys,
        "supportedFeatures": [
            {"name": each.name, "minVersion": each.lowest, "maxVersion": each.highest}
            for each in features
            if version >= 4 or each.lowest  # a client of version 3 cannot read a lowest version of 0
        ],
        "finalizedFeaturesEpoch": FEATURES_EPOCH,
        "finalizedFeatures": [
            {"name": each.name, "minVersionLevel": each.highest, "maxVersionLevel": each.highest}
            for each in features
            if each.is_finalized
        ],
    }


# --- Metadata --------------------------------------------------------------------------------------------


def handle_metadata(broker: Broker, request: Request) -> Values | Pending | None:
    body, version = request.body, request.api_version
    asked: list[Values] | None = body["topics"]
    is_all = asked is None or (not asked and version == 0)
    ids = _checked_ids(asked or (), version)
    if ids is None:
        return error_response(request, Errors.UNKNOWN_SERVER_ERROR)
    results: list[Values] = []
    if is_all:
        topics = broker.home.catalog.names()
    elif ids:
        topics, results = _named(broker, ids)
    else:
        topics = list(dict.fromkeys(each["name"] for each in asked or ()))
    hosted, authorizer = hosted_by(broker), broker.authorizer
    visible = authorizer.filter_by_authorized(
        request, AclOperation.DESCRIBE, ResourceType.TOPIC, topics, log=not is_all
    )
    found = {each: hosted.named(each) for each in topics if each in visible}
    missing = [name for name, topic in found.items() if topic is None]
    may_create = body["allowAutoTopicCreation"] and broker.settings["auto.create.topics.enable"] and not is_all
    refused: list[str] = []
    if may_create and missing:
        refused = _not_creatable(broker, request, missing)
        missing = [name for name in missing if name not in refused]
    rows = [_described(broker, topic) for topic in found.values() if topic is not None]
    rows += [_unknown(name) for name in missing]
    if version >= 8 and body["includeTopicAuthorizedOperations"]:
        for row in rows:
            operations = authorizer.authorized_operations(request, ResourceType.TOPIC, row["name"])
            row["topicAuthorizedOperations"] = operations
    results += rows
    results += [_topic(Errors.TOPIC_AUTHORIZATION_FAILED, name, is_internal=_is_internal(name)) for name in refused]
    for name in () if is_all else (each for each in topics if each not in visible):
        hidden = hosted.named(name) if ids else None
        topic_id = ZERO_UUID if hidden is None else hidden.id
        results.append(_topic(Errors.TOPIC_AUTHORIZATION_FAILED, None if ids else name, topic_id=topic_id))
    answer = _cluster(broker, request, results)
    if may_create and missing:
        quota = broker.quotas.mutation(request, strict=False)
        return _after_creation(broker, missing, answer, quota.record)
    return answer


def _checked_ids(asked: Sequence[Values], version: int) -> list[str] | None:
    """Returns the ids of topics that are asked for by id.

    None if a topic has neither a name nor an id: Kafka fails on it.  Raises InvalidRequestException.
    """
    for each in asked:
        if each["name"] is None and version < 12:
            raise InvalidRequestException(f"Topic name can not be null for version {version}")
        if each["topicId"] != ZERO_UUID and version < 12:
            raise InvalidRequestException(f"Topic IDs are not supported in requests for version {version}")
    if any(each["name"] is None and each["topicId"] == ZERO_UUID for each in asked):
        return None
    return list(dict.fromkeys(each["topicId"] for each in asked if each["topicId"] != ZERO_UUID))


def _named(broker: Broker, ids: list[str]) -> tuple[list[str], list[Values]]:
    """Returns the names of topics that exist, and the answers for the others."""
    hosted, names, unknown = hosted_by(broker), [], []
    for each in ids:
        topic = hosted.with_id(each)
        if topic is None:
            unknown.append(_topic(Errors.UNKNOWN_TOPIC_ID, None, topic_id=each))
        else:
            names.append(topic.name)
    return names, unknown


def _cluster(broker: Broker, request: Request, topics: list[Values]) -> Values:
    here = broker.advertised_to(request.connection)
    answer: Values = {
        "brokers": []
        if here is None
        else [{"nodeId": broker.node_id, "host": here.host, "port": here.port, "rack": broker.rack}],
        "clusterId": broker.cluster_id,
        "controllerId": broker.node_id,
        "topics": topics,
        "clusterAuthorizedOperations": NO_OPERATIONS,
    }
    if 8 <= request.api_version <= 10 and request.body["includeClusterAuthorizedOperations"]:
        answer["clusterAuthorizedOperations"] = _cluster_operations(broker, request)
    return answer


def _cluster_operations(broker: Broker, request: Request) -> int:
    authorizer = broker.authorizer
    if not authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return authorizer.authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)


def _topic(error: Errors, name: str | None, *, topic_id: str = ZERO_UUID, is_internal: bool = False) -> Values:
    return {
        "errorCode": int(error), "name": name, "topicId": topic_id, "isInternal": is_internal, "partitions": [],
        "topicAuthorizedOperations": NO_OPERATIONS,
    }  # fmt: skip


def _unknown(name: str) -> Values:
    error = Errors.UNKNOWN_TOPIC_OR_PARTITION
    try:
        names.validate_topic_name(name)
    except InvalidTopicException:
        error = Errors.INVALID_TOPIC_EXCEPTION
    return _topic(error, name, is_internal=_is_internal(name))


def _described(broker: Broker, topic: HostedTopic) -> Values:
    return {
        "errorCode": 0, "name": topic.name, "topicId": topic.id, "isInternal": _is_internal(topic.name),
        "partitions": _partitions(broker, topic), "topicAuthorizedOperations": NO_OPERATIONS,
    }  # fmt: skip


def _partitions(broker: Broker, topic: HostedTopic) -> list[Values]:
    """Returns the partitions of a topic, as they were at most a second ago.  Nobody changes the list.

    A HostedTopic is replaced at each change of topics and of logs; only a leader epoch may change without one."""
    known: dict[str, tuple[HostedTopic, int, list[Values]]] = broker.state.setdefault(PARTITIONS, {})
    now_ms = broker.clock.milliseconds()
    found = known.get(topic.name)
    if found is not None and found[0] is topic and 0 <= now_ms - found[1] < PARTITIONS_MS:
        return found[2]
    if len(known) > PARTITIONS_TOPICS_MAX:
        known.clear()
    made = [_partition(topic, number, broker.node_id) for number in range(topic.partitions)]
    known[topic.name] = topic, now_ms, made
    return made


def _partition(topic: HostedTopic, number: int, node: int) -> Values:
    try:
        epoch = leader_epoch_of(topic.log(number))
    except KafkaStorageException:
        return {
            "errorCode": int(Errors.LEADER_NOT_AVAILABLE), "partitionIndex": number, "leaderId": -1, "leaderEpoch": 0,
            "replicaNodes": [node], "isrNodes": [node], "offlineReplicas": [node],
        }  # fmt: skip
    return {
        "errorCode": 0, "partitionIndex": number, "leaderId": node, "leaderEpoch": epoch,
        "replicaNodes": [node], "isrNodes": [node], "offlineReplicas": [],
    }  # fmt: skip


# --- topics that come into being -------------------------------------------------------------------------


def _not_creatable(broker: Broker, request: Request, missing: Sequence[str]) -> list[str]:
    """Returns the topics that the client may not create."""
    authorizer = broker.authorizer
    if authorizer.authorize(request, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, log=False):
        return []
    allowed = authorizer.filter_by_authorized(request, AclOperation.CREATE, ResourceType.TOPIC, missing)
    return [each for each in missing if each not in allowed]


def _after_creation(broker: Broker, missing: Iterable[str], answer: Values, count: Callable[[float], None]) -> Pending:
    """Creates topics in the pool, and answers then."""
    pending = Pending()

    def create() -> None:
        try:
            for name in missing:
                create_by_use(broker, name, count)
        finally:
            pending.complete(answer)

    broker.submit(create)
    return pending


def create_by_use(broker: Broker, name: str, count: Callable[[float], None] = lambda partitions: None) -> None:
    """Creates a topic that a client has named.  A failure is logged, because the client only learns that there is
    no topic."""
    try:
        names.validate_topic_name(name)
        if name in _COORDINATORS_TOPICS:
            make_coordinators_topic(broker, name, 0)
        elif not _is_internal(name):
            partitions: int = broker.settings["num.partitions"]
            count(partitions)
            broker.home.create_topic(name, partitions, {}, None, exist_ok=True, adds_retention=False)
    except InvalidTopicException as error:
        _LINES.debug("topic %s is not created: %s", name, error)
    except KafkalogError as error:
        _LINES.warning("topic %s, which a client asked for, cannot be created: %s", name, error)


_COORDINATORS_TOPICS = (names.GROUP_METADATA_TOPIC, names.TRANSACTION_STATE_TOPIC, names.SHARE_GROUP_STATE_TOPIC)


def _is_internal(topic: str) -> bool:
    return topic in _COORDINATORS_TOPICS


def make_coordinators_topic(broker: Broker, topic: str, partition: int) -> None:
    """Creates a coordinator's topic with one partition of it; the others are created at their first write."""
    broker.home.catalog.internal_partition(topic, partition, create=True)


# --- DescribeTopicPartitions -----------------------------------------------------------------------------


def handle_describe_topic_partitions(broker: Broker, request: Request) -> Values:
    body, authorizer = request.body, broker.authorizer
    is_all = not body["topics"]
    cursor: Values | None = body["cursor"]
    first = "" if cursor is None else cursor["topicName"]
    asked = broker.home.catalog.names() if is_all else [each["name"] for each in body["topics"]]
    topics = sorted({each for each in asked if _java_order(each) >= _java_order(first)}, key=_java_order)
    if cursor is None and "" in topics:
        return error_response(request, Errors.UNKNOWN_SERVER_ERROR) or {}
    if cursor is not None:
        if not is_all and first not in topics:
            raise InvalidRequestException(
                f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {first}"
            )
        if cursor["partitionIndex"] < 0:
            shown = f"Cursor(topicName='{first}', partitionIndex={cursor['partitionIndex']})"
            raise InvalidRequestException(f"DescribeTopicPartitionsRequest cursor partition must be valid: {shown}")
    visible = authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, topics)
    hosted = hosted_by(broker)
    left = max(min(broker.settings["max.request.partition.size.limit"], body["responsePartitionLimit"]), 1)
    answer: Values = {"topics": [], "nextCursor": None}
    for name in topics:
        if name not in visible:
            continue
        if left <= 0:
            answer["nextCursor"] = {"topicName": name, "partitionIndex": 0}
            break
        topic = hosted.named(name)
        if topic is None:
            if not is_all:
                answer["topics"].append(_unknown(name))
            continue
        start = cursor["partitionIndex"] if cursor is not None and name == first else 0
        end = min(topic.partitions, start + left)
        one = _topic(Errors.NONE, name, topic_id=topic.id, is_internal=_is_internal(name))
        one["partitions"] = [
            {**_partition(topic, number, broker.node_id), "errorCode": 0, "eligibleLeaderReplicas": [],
             "lastKnownElr": []}
            for number in range(start, end)
        ]  # fmt: skip
        answer["topics"].append(one)
        if end < topic.partitions:
            answer["nextCursor"] = {"topicName": name, "partitionIndex": end}
            break
        left -= len(one["partitions"])
    for one in answer["topics"]:
        one["topicAuthorizedOperations"] = authorizer.authorized_operations(request, ResourceType.TOPIC, one["name"])
    if not is_all:
        answer["topics"] += [_topic(Errors.TOPIC_AUTHORIZATION_FAILED, each) for each in topics if each not in visible]
    return answer


def _java_order(name: str) -> bytes:
    """Returns the key of String.compareTo."""
    return name.encode("utf-16-be", "surrogatepass")


# --- DescribeCluster -------------------------------------------------------------------------------------

ENDPOINT_TYPES = {1: "BROKER", 2: "CONTROLLER"}


def handle_describe_cluster(broker: Broker, request: Request) -> Values:
    body = request.body
    endpoint, version = body["endpointType"], request.api_version
    if endpoint not in ENDPOINT_TYPES:
        error = Errors.INVALID_REQUEST if version == 0 else Errors.UNSUPPORTED_ENDPOINT_TYPE
        return {"errorCode": int(error), "errorMessage": f"Unsupported endpoint type {endpoint}"}
    if endpoint != 1:
        error = Errors.INVALID_REQUEST if version == 0 else Errors.MISMATCHED_ENDPOINT_TYPE
        return {
            "errorCode": int(error),
            "errorMessage": "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            f"{ENDPOINT_TYPES[endpoint]}",
        }
    here = broker.advertised_to(request.connection)
    node = {"brokerId": broker.node_id, "rack": broker.rack, "isFenced": False}
    operations = NO_OPERATIONS
    if body["includeClusterAuthorizedOperations"]:
        operations = _cluster_operations(broker, request)
    return {
        "endpointType": 1,
        "clusterId": broker.cluster_id,
        "controllerId": -1 if here is None else broker.node_id,
        "brokers": [] if here is None else [{**node, "host": here.host, "port": here.port}],
        "clusterAuthorizedOperations": operations,
    }


# --- FindCoordinator -------------------------------------------------------------------------------------

GROUP, TRANSACTION, SHARE = 0, 1, 2
_NOBODY = ("", -1, -1)  # host, port, node


def handle_find_coordinator(broker: Broker, request: Request) -> Values | None:
    body, version = request.body, request.api_version
    kind = body["keyType"]
    if kind not in (GROUP, TRANSACTION, SHARE):
        return error_response(request, Errors.INVALID_REQUEST)
    if version < 4:
        error = _coordinator(broker, request, kind, body["key"])
        if error is not Errors.NONE:
            return error_response(request, error)
        host, port, node = _node(broker, request)
        return {
            "errorCode": 0, "errorMessage": message_of(Errors.NONE), "nodeId": node, "host": host, "port": port,
        }  # fmt: skip
    found = []
    for key in body["coordinatorKeys"]:
        error = _coordinator(broker, request, kind, key)
        host, port, node = _node(broker, request) if error is Errors.NONE else _NOBODY
        found.append({"key": key, "errorCode": int(error), "host": host, "port": port, "nodeId": node})
    return {"coordinators": found}


def _node(broker: Broker, request: Request) -> tuple[str, int, int]:
    here = broker.advertised_to(request.connection)
    return _NOBODY if here is None else (here.host, here.port, broker.node_id)


def _coordinator(broker: Broker, request: Request, kind: int, key: str) -> Errors:
    """Returns why this node cannot coordinate a key; NONE if it can."""
    authorizer, catalog = broker.authorizer, broker.home.catalog
    if kind == GROUP:
        if not authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.GROUP, key):
            return Errors.GROUP_AUTHORIZATION_FAILED
        topic = names.GROUP_METADATA_TOPIC
        partition = partition_for(key, catalog.partition_count(topic))
    elif kind == TRANSACTION:
        if not authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
            return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        topic = names.TRANSACTION_STATE_TOPIC
        partition = partition_for(key, catalog.partition_count(topic))
    else:
        if request.api_version < 6:
            return Errors.INVALID_REQUEST
        authorizer.authorize_cluster(request, AclOperation.CLUSTER_ACTION)
        topic = names.SHARE_GROUP_STATE_TOPIC
        if not _is_share_key(key):
            return Errors.INVALID_REQUEST
        partition = partition_for(key, catalog.partition_count(topic))
    try:
        make_coordinators_topic(broker, topic, partition)
    except KafkalogError as error:
        _LINES.warning("no coordinator for %s: %s", key, error)
        return Errors.COORDINATOR_NOT_AVAILABLE
    return Errors.NONE


def _is_share_key(key: str) -> bool:
    """Returns whether a key is `group:topic id:partition`; the group may have colons."""
    group, _, rest = key.rstrip(":").rpartition(":")
    group, _, topic_id = group.rpartition(":")
    try:
        parse_uuid(topic_id)
        parse_int(rest)
    except KafkalogError:
        return False
    return bool(group.strip())


HANDLERS: dict[int, Handler] = {
    ApiKeys.API_VERSIONS: handle_api_versions,
    ApiKeys.METADATA: handle_metadata,
    ApiKeys.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
    ApiKeys.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKeys.FIND_COORDINATOR: handle_find_coordinator,
}
BLOCKING_IF = {
    ApiKeys.METADATA: LARGE,
    ApiKeys.DESCRIBE_TOPIC_PARTITIONS: LARGE,
    ApiKeys.FIND_COORDINATOR: LARGE,
}
