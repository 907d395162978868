"""CreateTopics, DeleteTopics and CreatePartitions: what a controller does with topics, on one node.

Every partition has one replica, on this node. A request is checked as a whole, as Kafka's controller checks it, and its
topics are then made one after the other; each has its own result. Source: ControllerApis, ReplicationControlManager
(4.4.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kafkalog.engine.format import names
from kafkalog.engine.format.error_codes import Errors, message_of
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.java_text import new_uuid as new_topic_id
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import (
    ConfigException,
    InvalidTopicException,
    KafkalogError,
    PolicyViolationException,
    TimeoutException,
)
from kafkalog.server.config_entries import topic_entries
from kafkalog.server.refused import ALLOWED, Refusal, Refused, refusal_of
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request
    from kafkalog.server.security.quotas import ControllerMutationQuota

PARTITIONS_OF_A_REQUEST_MAX = 10_000
VALUE_LENGTH_MAX = 32767
DUPLICATE = (Errors.INVALID_REQUEST, "Duplicate topic name.")
NOT_ALLOWED = (Errors.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")

# --- CreateTopics ----------------------------------------------------------------------------------------


def handle_create_topics(broker: Broker, request: Request) -> Values:
    asked: list[Values] = request.body["topics"]
    counts = Counter(each["name"] for each in asked)
    repeated = [name for name, count in counts.items() if count > 1]
    single = [name for name, count in counts.items() if count == 1]
    allowed = set(_creatable(broker, request, [each for each in single if each != names.CLUSTER_METADATA_TOPIC]))
    shown = broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, allowed)
    wanted = [each for each in asked if each["name"] in allowed]
    _check_time(request, wanted)
    _check_total(broker, wanted)
    quota = broker.quotas.mutation(request, strict=request.api_version >= 6)
    is_dry = request.body["validateOnly"]
    results = [_create(broker, each, quota, is_dry, each["name"] in shown) for each in wanted]
    results += [_refused_topic(name, DUPLICATE) for name in repeated]
    for name in single:
        if name == names.CLUSTER_METADATA_TOPIC:
            why = f"Creation of internal topic {name} is prohibited."
            results.append(_refused_topic(name, (Errors.INVALID_REQUEST, why)))
        elif name not in allowed:
            results.append(_refused_topic(name, NOT_ALLOWED))
    return {"throttleTimeMs": quota.throttle_time_ms(), "topics": results}


def _creatable(broker: Broker, request: Request, topics: list[str]) -> Iterable[str]:
    authorizer = broker.authorizer
    if authorizer.authorize(request, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        return topics
    return authorizer.filter_by_authorized(request, AclOperation.CREATE, ResourceType.TOPIC, topics)


def _check_time(request: Request, wanted: Collection[object]) -> None:
    """Refuses the whole request if it leaves no time for what it wants.  Kafka's controller looks before it begins."""
    if wanted and request.body["timeoutMs"] <= 0:
        raise TimeoutException("")


def _check_total(broker: Broker, topics: list[Values]) -> None:
    """Refuses the whole request if it asks for too many partitions."""
    total = 0
    for each in topics:
        count = each["numPartitions"]
        if each["assignments"]:
            total += len(each["assignments"])
        elif count == -1:
            total += broker.settings.num_partitions
        elif count > 0:
            total += count
    if total > PARTITIONS_OF_A_REQUEST_MAX:
        raise PolicyViolationException("Excessively large number of partitions per request.")


def _refused_topic(name: str, refusal: Refusal) -> Values:
    code, message = refusal
    return {
        "name": name,
        "errorCode": code,
        "errorMessage": message,
    } | NOTHING_TO_SHOW


SHOWN = ("name", "value", "readOnly", "configSource", "isSensitive")
NOTHING_TO_SHOW: Values = {"numPartitions": -1, "replicationFactor": -1, "configs": []}


def _create(broker: Broker, asked: Values, quota: ControllerMutationQuota, is_dry: bool, shows_configs: bool) -> Values:
    name = asked["name"]
    try:
        count, config = _checked_topic(broker, asked)
        quota.record(count)
        made_id: str | None = new_topic_id()
        if not is_dry:
            made_id = broker.home.create_topic(name, count, config, None, exist_ok=False, adds_retention=False).topic_id
        result = {"name": name, "topicId": made_id, "errorCode": Errors.NONE, "errorMessage": None}
        if not shows_configs:
            return result | NOTHING_TO_SHOW | {"topicConfigErrorCode": Errors.TOPIC_AUTHORIZATION_FAILED}
        entries = sorted(topic_entries(broker, config), key=lambda entry: str(entry["name"]))
        entries = [{field: entry[field] for field in SHOWN} for entry in entries]
        return result | {"numPartitions": count, "replicationFactor": 1, "configs": entries}
    except (Refused, KafkalogError) as error:
        return _refused_topic(name, refusal_of(error))


def _checked_topic(broker: Broker, asked: Values) -> tuple[int, dict[str, str]]:
    """Returns the number of partitions and the settings of a topic that may be created."""
    name = asked["name"]
    catalog = broker.home.catalog
    names.validate_topic_name(name)
    colliding = catalog.colliding(name)
    if colliding:
        raise InvalidTopicException(f"Topic '{name}' collides with existing topic: {colliding[0]}")
    if catalog.info(name) is not None:
        raise Refused(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    config = _checked_config(broker, asked["configs"])
    if asked["assignments"]:
        return _assigned(broker, asked), config
    factor, count = asked["replicationFactor"], asked["numPartitions"]
    if factor < -1 or factor == 0:
        why = "Replication factor must be larger than 0, or -1 to use the default value."
        raise Refused(Errors.INVALID_REPLICATION_FACTOR, why)
    if count < -1 or count == 0:
        raise Refused(Errors.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    _check_factor(broker.settings.default_replication_factor if factor == -1 else factor)
    return broker.settings.num_partitions if count == -1 else count, config


def _check_factor(factor: int) -> None:
    if factor > 1:
        raise Refused(
            Errors.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be "
            "reached because only 1 broker(s) are registered or some brokers have all their log directories cordoned.",
        )


def _checked_config(broker: Broker, given: list[Values]) -> dict[str, str]:
    empty = [each["name"] for each in given if each["value"] is None]
    if empty:
        raise Refused(Errors.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(empty)}")
    config = {each["name"]: each["value"] for each in given}
    if any(len(value) > VALUE_LENGTH_MAX for value in config.values()):
        raise Refused(Errors.INVALID_CONFIG, f"The configuration value cannot be added because it exceeds the maximum "
                      f"value size of {VALUE_LENGTH_MAX} bytes.")  # fmt: skip
    try:
        broker.home.catalog.check_tiering(config, {})
    except ConfigException as error:
        raise Refused(Errors.INVALID_CONFIG, error.message) from None
    return config


def _assigned(broker: Broker, asked: Values) -> int:
    """Returns the number of partitions of a topic that names its replicas, which can only be this node."""
    unset = {"replicationFactor": "replication factor", "numPartitions": "numPartitions"}
    for field, word in unset.items():
        if asked[field] != -1:
            why = f"A manual partition assignment was specified, but {word} was not set to -1."
            raise Refused(Errors.INVALID_REQUEST, why)
    seen: set[int] = set()
    for each in asked["assignments"]:
        index = each["partitionIndex"]
        if index in seen:
            why = f"Found multiple manual partition assignments for partition {index}"
            raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, why)
        check_replicas(broker, each["brokerIds"])
        seen.add(index)
    if seen != set(range(len(seen))):
        raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence")
    return len(seen)


def check_replicas(broker: Broker, replicas: list[int]) -> None:
    """Refuses a partition's replicas unless they are this node alone."""
    if not replicas:
        raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica "
                      "list.")  # fmt: skip
    if len(set(replicas)) < len(replicas):
        raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes the broker "
                      f"{Counter(replicas).most_common(1)[0][0]} more than once.")  # fmt: skip
    for each in sorted(replicas):
        if each != broker.node_id:
            raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes broker {each}, "
                          "but no such broker is registered.")  # fmt: skip


# --- DeleteTopics ----------------------------------------------------------------------------------------


def handle_delete_topics(broker: Broker, request: Request) -> Values:
    if not broker.settings.delete_topic_enable:
        return _all_refused(request)
    results: list[Values] = []
    by_name, by_id = _named_topics(request.body, results)
    _check_time(request, (*by_name, *by_id))
    catalog = broker.home.catalog
    wanted: dict[str, str] = {}  # the name of each topic to delete, by id
    names_of = {each: broker.topics.name(each) for each in by_id}
    for topic_id, name in names_of.items():
        if name is None:
            results.append(_refused_deletion(None, topic_id, Errors.UNKNOWN_TOPIC_ID))
        else:
            wanted[topic_id] = name
    shown, deletable = _deletable(broker, request, {*by_name, *wanted.values()})
    for topic_id, name in list(wanted.items()):
        if name not in deletable:
            told = name if name in shown else None
            results.append(_refused_deletion(told, topic_id, Errors.TOPIC_AUTHORIZATION_FAILED))
            del wanted[topic_id]
    twice: set[str] = set()
    for name in by_name:
        info = catalog.info(name)
        if name not in shown or (info is not None and name not in deletable):
            results.append(_refused_deletion(name, ZERO_UUID, Errors.TOPIC_AUTHORIZATION_FAILED))
        elif info is None:
            results.append(_refused_deletion(name, ZERO_UUID, Errors.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            topic_id = info.topic_id or ZERO_UUID
            if topic_id in twice or topic_id in wanted:
                twice.add(topic_id)
                wanted.pop(topic_id, None)
                why = "The provided topic name maps to an ID that was already supplied."
                results.append(_deleted(name, topic_id, Errors.INVALID_REQUEST, why))
            else:
                wanted[topic_id] = name
    quota = broker.quotas.mutation(request, strict=request.api_version >= 5)
    results += [_delete(broker, quota, name, topic_id) for topic_id, name in wanted.items()]
    return {"throttleTimeMs": quota.throttle_time_ms(), "responses": results}


def _all_refused(request: Request) -> Values:
    code = Errors.INVALID_REQUEST if request.api_version < 3 else Errors.TOPIC_DELETION_DISABLED
    topics = request.body["topics"] or [{"name": name, "topicId": ZERO_UUID} for name in request.body["topicNames"]]
    return {"responses": [_deleted(each["name"], each["topicId"], code) for each in topics]}


def _named_topics(body: Values, results: list[Values]) -> tuple[list[str], list[str]]:
    """Returns the topics that are named once, by name and by id, and adds a result for each other one."""
    named: list[str] = list(body["topicNames"])
    ids: list[str] = []
    for each in body["topics"]:
        name, topic_id = each["name"], each["topicId"]
        if name is None and topic_id == ZERO_UUID:
            why = "Neither topic name nor id were specified."
            results.append(_deleted(None, ZERO_UUID, Errors.INVALID_REQUEST, why))
        elif name is None:
            ids.append(topic_id)
        elif topic_id == ZERO_UUID:
            named.append(name)
        else:
            why = "You may not specify both topic name and topic id."
            results.append(_deleted(name, topic_id, Errors.INVALID_REQUEST, why))
    for name, count in Counter(named).items():
        if count > 1:
            results.append(_deleted(name, ZERO_UUID, Errors.INVALID_REQUEST, "Duplicate topic name."))
    for topic_id, count in Counter(ids).items():
        if count > 1:
            results.append(_deleted(None, topic_id, Errors.INVALID_REQUEST, "Duplicate topic id."))
    return _once(named), _once(ids)


def _once(items: list[str]) -> list[str]:
    return [item for item, count in Counter(items).items() if count == 1]


def _deletable(broker: Broker, request: Request, topics: set[str]) -> tuple[set[str], set[str]]:
    """Returns the topics that the client may know of, and those that it may delete."""
    authorizer = broker.authorizer
    if authorizer.authorize(request, AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
        return topics, topics
    shown = authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, topics)
    return set(shown), set(authorizer.filter_by_authorized(request, AclOperation.DELETE, ResourceType.TOPIC, topics))


def _delete(broker: Broker, quota: ControllerMutationQuota, name: str, topic_id: str) -> Values:
    try:
        quota.record(broker.home.catalog.must(name).partitions)
        broker.home.delete_topic(name)
    except KafkalogError as error:
        return _deleted(name, topic_id, *refusal_of(error))
    return _deleted(name, topic_id, Errors.NONE)


def _deleted(name: str | None, topic_id: str, code: Errors, message: str | None = None) -> Values:
    return {"name": name, "topicId": topic_id, "errorCode": code, "errorMessage": message}


def _refused_deletion(name: str | None, topic_id: str, code: Errors) -> Values:
    return _deleted(name, topic_id, code, message_of(code))


# --- CreatePartitions ------------------------------------------------------------------------------------


def handle_create_partitions(broker: Broker, request: Request) -> Values:
    asked: list[Values] = request.body["topics"]
    counts = Counter(each["name"] for each in asked)
    results = [_grown(name, DUPLICATE) for name, count in counts.items() if count > 1]
    single = [each for each in asked if counts[each["name"]] == 1]
    allowed = set(
        broker.authorizer.filter_by_authorized(
            request, AclOperation.ALTER, ResourceType.TOPIC, [each["name"] for each in single]
        )
    )
    wanted = [each for each in single if each["name"] in allowed]
    _check_time(request, wanted)
    _check_total_added(broker, wanted)
    quota = broker.quotas.mutation(request, strict=request.api_version >= 3)
    for each in single:
        if each["name"] in allowed:
            results.append(_grow(broker, each, quota, request.body["validateOnly"]))
        else:
            results.append(_grown(each["name"], (Errors.TOPIC_AUTHORIZATION_FAILED, None)))
    return {"throttleTimeMs": quota.throttle_time_ms(), "results": results}


def _check_total_added(broker: Broker, topics: list[Values]) -> None:
    """Refuses the whole request if it asks for too many partitions more."""
    found = ((each["count"], broker.home.catalog.info(each["name"])) for each in topics)
    total = sum(max(count - info.partitions, 0) for count, info in found if info is not None)
    if total > PARTITIONS_OF_A_REQUEST_MAX:
        raise PolicyViolationException("Excessively large number of additional partitions per request.")


def _grow(broker: Broker, asked: Values, quota: ControllerMutationQuota, is_dry: bool) -> Values:
    name, count = asked["name"], asked["count"]
    try:
        info = broker.home.catalog.info(name)
        if info is None:
            raise Refused(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        if count == info.partitions:
            raise Refused(Errors.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
        if count < info.partitions:
            why = f"The topic {name} currently has {info.partitions} partition(s); {count} would not be an increase."
            raise Refused(Errors.INVALID_PARTITIONS, why)
        more = count - info.partitions
        given = asked["assignments"]
        if given is not None and len(given) != more:
            why = (
                f"Attempted to add {more} additional partition(s), but only {len(given)} assignment(s) were specified."
            )
            raise Refused(Errors.INVALID_REPLICA_ASSIGNMENT, why)
        for each in given or ():
            check_replicas(broker, each["brokerIds"])
        quota.record(more)
        if not is_dry:
            broker.home.add_partitions(name, count)
    except (Refused, KafkalogError) as error:
        return _grown(name, refusal_of(error))
    return _grown(name, ALLOWED)


def _grown(name: str, refusal: Refusal) -> Values:
    code, message = refusal
    return {"name": name, "errorCode": code, "errorMessage": message}


BLOCKING = {ApiKeys.CREATE_TOPICS, ApiKeys.DELETE_TOPICS, ApiKeys.CREATE_PARTITIONS}
HANDLERS: dict[int, Handler] = {
    ApiKeys.CREATE_TOPICS: handle_create_topics,
    ApiKeys.DELETE_TOPICS: handle_delete_topics,
    ApiKeys.CREATE_PARTITIONS: handle_create_partitions,
}
