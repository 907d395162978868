"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

A resource is a topic, this broker or all brokers, a group, the loggers of this process, or a subscription of client
metrics. Each resource of a request has its own result. Source: ConfigHelper, ConfigAdminManager,
ConfigurationControlManager, RuntimeLoggerManager (4.4.0).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from kafkalog.config import TOPIC_KEYS
from kafkalog.engine.format import names
from kafkalog.engine.format.error_codes import Errors, message_of
from kafkalog.engine.format.java_text import parse_int
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import ConfigException, InvalidConfigurationException, InvalidRequestException, KafkalogError
from kafkalog.server.config_entries import (
    ConfigSource,
    broker_entries,
    chosen,
    client_metrics_entries,
    group_entries,
    topic_entries,
)
from kafkalog.server.config_table import broker_rows, client_metrics_rows, group_rows
from kafkalog.server.refused import ALLOWED, Refusal, Refused, refusal_of
from kafkalog.server.request import LARGE
from kafkalog.server.resource_configs import Configs, ConfigType
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

VALUE_LENGTH_MAX = 32767
TOO_LONG = (
    f"The configuration value cannot be added because it exceeds the maximum value size of {VALUE_LENGTH_MAX} bytes."
)
LOGGER_NAME = "root"
# Log levels by Kafka's names; Python has no TRACE and no FATAL of its own.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


class OpType(IntEnum):
    """AlterConfigOp.OpType: what an incremental change does to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# --- DescribeConfigs -------------------------------------------------------------------------------------


def handle_describe_configs(broker: Broker, request: Request) -> Values:
    results, refused = [], []
    for asked in request.body["resources"]:
        if asked["resourceType"] not in list(ConfigType)[1:]:
            why = f"Unexpected resource type {_named(asked['resourceType'])} for resource {asked['resourceName']}"
            raise InvalidRequestException(why)
    for asked in request.body["resources"]:
        place = {"resourceType": asked["resourceType"], "resourceName": asked["resourceName"], "configs": []}
        code = _not_allowed(broker, request, AclOperation.DESCRIBE_CONFIGS, asked)
        if code is not None:
            refused.append(place | {"errorCode": code, "errorMessage": message_of(code)})
            continue
        try:
            entries = _entries(broker, asked["resourceType"], asked["resourceName"])
            names_asked = asked["configurationKeys"]
            found = chosen(entries, names_asked, with_synonyms=request.body["includeSynonyms"])
            results.append(place | {"errorCode": Errors.NONE, "errorMessage": "", "configs": found})
        except (Refused, KafkalogError) as error:
            code, message = refusal_of(error)
            results.append(place | {"errorCode": code, "errorMessage": message})
    return {"results": results + refused}


def _not_allowed(broker: Broker, request: Request, operation: AclOperation, resource: Values) -> Errors | None:
    """Returns the error of a resource that the client may not see or change; None if it may."""
    kind = resource["resourceType"]
    of = {
        ConfigType.TOPIC: (ResourceType.TOPIC, resource["resourceName"], Errors.TOPIC_AUTHORIZATION_FAILED),
        ConfigType.GROUP: (ResourceType.GROUP, resource["resourceName"], Errors.GROUP_AUTHORIZATION_FAILED),
    }
    cluster = (ResourceType.CLUSTER, CLUSTER_NAME, Errors.CLUSTER_AUTHORIZATION_FAILED)
    if kind not in (*of, ConfigType.BROKER, ConfigType.BROKER_LOGGER, ConfigType.CLIENT_METRICS):
        return None  # refused later, as an unknown type
    resource_type, name, code = of.get(kind, cluster)
    return None if broker.authorizer.authorize(request, operation, resource_type, name) else code


def _entries(broker: Broker, kind: int, name: str) -> list[Values]:
    if kind == ConfigType.TOPIC:
        names.validate_topic_name(name)
        info = broker.home.catalog.info(name)
        if info is None:
            raise Refused(Errors.UNKNOWN_TOPIC_OR_PARTITION, "")
        return topic_entries(broker, info.overrides, broker.home.manager.config_of(name))
    if kind == ConfigType.BROKER:
        if name:
            _check_described_node(broker, name, " or empty string,")
        return broker_entries(broker, of_all=not name)
    if kind == ConfigType.BROKER_LOGGER:
        if not name:
            raise Refused(Errors.INVALID_REQUEST, "Broker id must not be empty")
        _check_described_node(broker, name, "")
        return [_logger_entry(name, level) for name, level in loggers().items()]
    if kind == ConfigType.CLIENT_METRICS:
        if not name:
            raise Refused(Errors.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return client_metrics_entries(broker, name)
    if kind == ConfigType.GROUP:
        if not name:
            raise Refused(Errors.INVALID_REQUEST, "Group name must not be empty")
        return group_entries(broker, name)
    raise AssertionError(kind)


def _named(kind: int) -> str:
    return ConfigType(kind).name if kind in list(ConfigType) else ConfigType.UNKNOWN.name


def _check_described_node(broker: Broker, name: str, also: str) -> None:
    """Refuses the name of another broker.  `also`: what else the name could be, in the text."""
    _check_node(broker, name, "Broker", f"Unexpected broker id, expected {broker.node_id}{also} but received {name}")


def _check_this_node(broker: Broker, name: str) -> None:
    _check_node(broker, name, "Node", f"Unexpected broker id, expected {broker.node_id}, but received {name}")


def _check_logging_node(broker: Broker, name: str) -> None:
    _check_node(broker, name, "Node", f"Unexpected node id. Expected {broker.node_id}, but received {name}")


def _check_node(broker: Broker, name: str, what: str, why: str) -> None:
    """Refuses a name that is no number, as the id of `what`, or, with the text `why`, another node's."""
    try:
        number = parse_int(name)
    except KafkalogError:
        raise Refused(Errors.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}") from None
    if number != broker.node_id:
        raise Refused(Errors.INVALID_REQUEST, why)


# --- changes ---------------------------------------------------------------------------------------------


def handle_alter_configs(broker: Broker, request: Request) -> Values:
    def change(asked: Values, kind: ConfigType, now: Configs) -> Configs:
        return {each["name"]: each["value"] for each in asked["configs"]}

    return _altered(broker, request, change, lambda entry: entry["value"] is None)


def handle_incremental_alter_configs(broker: Broker, request: Request) -> Values:
    def is_empty(entry: Values) -> bool:
        return bool(entry["value"] is None and entry["configOperation"] != OpType.DELETE)

    return _altered(broker, request, _incremented, is_empty)


Change = Callable[["Values", ConfigType, Configs], Configs]


def _altered(broker: Broker, request: Request, change: Change, is_empty: Callable[[Values], bool]) -> Values:
    resources = request.body["resources"]
    counts = Counter((each["resourceType"], each["resourceName"]) for each in resources)
    results, allowed = [], []
    for asked in resources:
        place = _place_of(asked)
        try:
            if counts[place] > 1:
                raise Refused(Errors.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_names(asked, is_empty)
            code = _not_allowed(broker, request, AclOperation.ALTER_CONFIGS, asked)
            if code is not None:
                raise Refused(code)
        except Refused as error:
            results.append(_result(place, error.refusal))
        else:
            allowed.append(asked)
    if change is _incremented and any(map(_has_unknown_operation, allowed)):  # Kafka's controller fails as a whole
        failed = (Errors.UNKNOWN_SERVER_ERROR, None)
        here = (ConfigType.BROKER, ConfigType.BROKER_LOGGER)  # the broker answers these by itself
        results += [_result(_place_of(each), failed) for each in allowed if each["resourceType"] not in here]
        allowed = [each for each in allowed if each["resourceType"] in here]
    validates_only = request.body["validateOnly"]
    results += [_result(_place_of(each), _altered_one(broker, each, change, validates_only)) for each in allowed]
    return {"responses": results}


def _place_of(asked: Values) -> tuple[int, str]:
    return asked["resourceType"], asked["resourceName"]


def _has_unknown_operation(asked: Values) -> bool:
    if asked["resourceType"] not in (ConfigType.TOPIC, ConfigType.GROUP, ConfigType.CLIENT_METRICS):
        return False
    return any(each["configOperation"] not in list(OpType) for each in asked["configs"])


def _altered_one(broker: Broker, asked: Values, change: Change, validates_only: bool) -> Refusal:
    try:
        with broker.configs.altering:
            _alter(broker, asked, change, validates_only=validates_only)
    except (InvalidConfigurationException, ConfigException) as error:
        return Errors.INVALID_CONFIG, error.message
    except (Refused, KafkalogError) as error:
        return refusal_of(error)
    return ALLOWED


def _result(place: tuple[int, str], refusal: Refusal) -> Values:
    code, message = refusal
    return {"resourceType": place[0], "resourceName": place[1], "errorCode": code, "errorMessage": message}


def _check_names(asked: Values, is_empty: Callable[[Values], bool]) -> None:
    given = [each["name"] for each in asked["configs"]]
    if len(set(given)) < len(given):
        raise Refused(Errors.INVALID_REQUEST, "Error due to duplicate config keys")
    empty = [each["name"] for each in asked["configs"] if is_empty(each)]
    if empty:
        raise Refused(Errors.INVALID_REQUEST, f"Null value not supported for : {', '.join(empty)}")


def _alter(broker: Broker, asked: Values, change: Change, *, validates_only: bool) -> None:
    kind, name = asked["resourceType"], asked["resourceName"]
    if kind == ConfigType.TOPIC:
        _alter_topic(broker, asked, change, validates_only=validates_only)
    elif kind in (ConfigType.BROKER, ConfigType.GROUP, ConfigType.CLIENT_METRICS):
        if kind == ConfigType.BROKER and name:
            _check_this_node(broker, name)
        resource = ConfigType(kind), name
        configs = change(asked, resource[0], broker.configs.of(resource))
        _check_lengths(configs)
        broker.configs.set(resource, configs, validates_only=validates_only)
    elif kind == ConfigType.BROKER_LOGGER and change is _incremented:
        _check_logging_node(broker, name)
        _alter_loggers(asked["configs"], validates_only=validates_only)
    else:
        raise Refused(Errors.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_lengths(configs: Configs) -> None:
    if any(len(value) > VALUE_LENGTH_MAX for value in configs.values()):
        raise Refused(Errors.INVALID_CONFIG, TOO_LONG)


def _alter_topic(broker: Broker, asked: Values, change: Change, *, validates_only: bool) -> None:
    name = asked["resourceName"]
    if not name:
        raise Refused(Errors.INVALID_REQUEST, "Default topic resources are not allowed.")
    names.validate_topic_name(name)
    info = broker.home.catalog.info(name)
    now: Configs = {} if info is None else info.overrides
    configs = change(asked, ConfigType.TOPIC, now)
    _check_lengths(configs)
    broker.home.catalog.check_tiering(configs, now)
    if info is None:
        raise Refused(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if not validates_only:
        gone = dict.fromkeys(name for name in now if name not in configs)
        broker.home.alter_topic(name, {**gone, **configs}, adds_retention=False)


def _incremented(asked: Values, kind: ConfigType, now: Configs) -> Configs:
    """Returns the settings `now` after the operations of a request."""
    found = dict(now)
    for each in asked["configs"]:
        name, value = each["name"], each["value"]
        try:
            operation = OpType(each["configOperation"])
        except ValueError:
            why = f"Unknown operations type {each['configOperation']}"
            raise Refused(Errors.INVALID_REQUEST, why) from None
        if operation is OpType.SET:
            found[name] = value
        elif operation is OpType.DELETE:
            found.pop(name, None)
        else:
            found[name] = ",".join(_listed(kind, name, found.get(name), value.split(","), operation))
    return found


def _listed(kind: ConfigType, name: str, now: str | None, values: list[str], operation: OpType) -> list[str]:
    type_of, default = _type_of(kind, name)
    if type_of != "LIST":
        why = f"Can't {operation.name} to key {name} because its type is not LIST."
        raise Refused(Errors.INVALID_CONFIG, why)
    parts = [each for each in (default if now is None else now).split(",") if each]
    if operation is OpType.APPEND:
        return parts + [each for each in dict.fromkeys(values) if each not in parts]
    for each in values:
        if each in parts:
            parts.remove(each)
    return parts


def _type_of(kind: ConfigType, name: str) -> tuple[str, str]:
    """Returns the type of a setting and its default; "" if it is not known."""
    if kind is ConfigType.TOPIC:
        key = TOPIC_KEYS.get(name)
        if key is None:
            return "", ""
        default = key.default
        return key.type, ",".join(default) if isinstance(default, (tuple, list)) else str(default or "")
    tables = {ConfigType.BROKER: broker_rows, ConfigType.GROUP: group_rows}
    row = tables.get(kind, client_metrics_rows)().get(name)
    return ("", "") if row is None else (row.type, row.default or "")


# --- loggers ---------------------------------------------------------------------------------------------


def loggers() -> Mapping[str, str]:
    """Returns the level of each of this package's loggers, and of the root, by Kafka's names."""
    known = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "kafkalog"]
    return {
        name: _level(logging.getLogger(None if name == LOGGER_NAME else name)) for name in [LOGGER_NAME, *sorted(known)]
    }


def _level(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, number in reversed(LEVELS.items()) if level >= number), "TRACE")


def _logger_entry(name: str, level: str) -> Values:
    return {
        "name": name, "value": level, "readOnly": False, "isSensitive": False, "synonyms": [],
        "configSource": ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, "configType": 0, "documentation": None,
    }  # fmt: skip


def _alter_loggers(configs: list[Values], *, validates_only: bool) -> None:
    for each in configs:
        name, operation = each["name"], each["configOperation"]
        if operation not in (OpType.SET, OpType.DELETE):
            is_known = operation in list(OpType)
            word = f"{OpType(operation).name} operation" if is_known else f"Unknown operation type {operation}"
            raise Refused(Errors.INVALID_REQUEST, f"{word} is not allowed for the BROKER_LOGGER resource")
        if name not in loggers():
            raise Refused(Errors.INVALID_CONFIG, f"Logger {name} does not exist!")
        if operation == OpType.SET and each["value"] not in LEVELS:
            why = f"Cannot set the log level of {name} to {each['value']} as it is not a supported log level. "
            raise Refused(Errors.INVALID_CONFIG, why + f"Valid log levels are {', '.join(sorted(LEVELS))}")
        if operation == OpType.DELETE and name == LOGGER_NAME:
            raise Refused(Errors.INVALID_REQUEST, f"Removing the log level of the {LOGGER_NAME} logger is not allowed")
    if not validates_only:
        for each in configs:
            is_set = each["configOperation"] == OpType.SET
            logger = logging.getLogger(None if each["name"] == LOGGER_NAME else each["name"])
            logger.setLevel(LEVELS[each["value"]] if is_set else logging.NOTSET)


# --- ListConfigResources ---------------------------------------------------------------------------------

LISTED = (ConfigType.TOPIC, ConfigType.BROKER, ConfigType.BROKER_LOGGER, ConfigType.CLIENT_METRICS, ConfigType.GROUP)


def handle_list_config_resources(broker: Broker, request: Request) -> Values:
    if not broker.authorizer.authorize(request, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return {"errorCode": Errors.CLUSTER_AUTHORIZATION_FAILED}
    supported = (ConfigType.CLIENT_METRICS,) if request.api_version == 0 else LISTED
    kinds = request.body["resourceTypes"] or supported
    if any(each not in supported for each in kinds):
        return {"errorCode": Errors.UNSUPPORTED_VERSION}
    of: dict[ConfigType, Callable[[], list[str]]] = {
        ConfigType.GROUP: lambda: broker.configs.names(ConfigType.GROUP),
        ConfigType.CLIENT_METRICS: lambda: broker.configs.names(ConfigType.CLIENT_METRICS),
        ConfigType.BROKER_LOGGER: lambda: [str(broker.node_id)],
        ConfigType.BROKER: lambda: [str(broker.node_id)],
        ConfigType.TOPIC: broker.home.catalog.names,
    }
    found = [
        {"resourceName": name, "resourceType": kind}
        for kind, listed in of.items()
        if kind in kinds
        for name in listed()
    ]
    return {"errorCode": Errors.NONE, "configResources": found}


BLOCKING = {ApiKeys.ALTER_CONFIGS, ApiKeys.INCREMENTAL_ALTER_CONFIGS}
HANDLERS: dict[int, Handler] = {
    ApiKeys.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKeys.ALTER_CONFIGS: handle_alter_configs,
    ApiKeys.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKeys.LIST_CONFIG_RESOURCES: handle_list_config_resources,
}
BLOCKING_IF = {
    ApiKeys.DESCRIBE_CONFIGS: LARGE,
}
