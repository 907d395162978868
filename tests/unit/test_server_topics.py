"""Topics, settings and log directories through the server's handlers, over a store and without a socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.errors import InvalidRequestException, PolicyViolationException, TimeoutException
from kafkalog.server.broker import Broker
from kafkalog.server.handlers import configs, log_dirs, topics
from kafkalog.server.request import Request
from kafkalog.server.resource_configs import ConfigType
from kafkalog.server.security.setup import save_configs, state_file_of
from kafkalog.server.settings import ServerSettings

HANDLERS = {**topics.HANDLERS, **configs.HANDLERS, **log_dirs.HANDLERS}
TOPIC, ALL_BROKERS = (ConfigType.TOPIC, "orders"), (ConfigType.BROKER, "")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with kafkalog.open([tmp_path / "a", tmp_path / "b"]) as store:
        found = Broker(store._own(), ServerSettings.from_props({"num.partitions": "3"}))
        found.save_configs = partial(save_configs, found)
        yield found


def ask(broker: Broker, key: int, version: int | None = None, **body: Any) -> Any:
    """The answer to a request, which goes through its bytes both ways."""
    known = api(key)
    version = known.highest if version is None else version
    if any(field.name == "timeoutMs" for field in known.request.type.fields):
        body.setdefault("timeoutMs", 30_000)
    values, _ = known.request.decode(known.request.encode(body, version), version)
    answer = HANDLERS[key](broker, Request(key, version, body=values))
    return known.response.decode(known.response.encode(answer, version), version)[0]


def create(broker: Broker, *names: str, version: int | None = None, **fields: Any) -> Any:
    asked = [{"name": each, "numPartitions": -1, "replicationFactor": -1} | fields for each in names]
    return ask(broker, ApiKeys.CREATE_TOPICS, version, topics=asked)["topics"]


def codes(results: list[Any]) -> dict[str, Errors]:
    return {each["name"]: Errors(each["errorCode"]) for each in results}


# --- topics ----------------------------------------------------------------------------------------------


def test_a_topic_is_made_with_the_defaults_of_the_broker(broker: Broker) -> None:
    (made,) = create(broker, "orders")
    info = broker.home.catalog.must("orders")
    assert (made["errorCode"], made["numPartitions"], made["replicationFactor"]) == (Errors.NONE, 3, 1)
    assert (info.partitions, info.topic_id, info.overrides) == (3, made["topicId"], {})
    assert {each["name"] for each in made["configs"]} >= {"retention.ms", "cleanup.policy", "segment.bytes"}


def test_each_topic_of_a_request_has_its_own_result(broker: Broker) -> None:
    create(broker, "there", "a.b")
    found = create(broker, "new", "there", "twice", "twice", "a_b", "bad/name", "__cluster_metadata")
    assert codes(found) == {
        "new": Errors.NONE,
        "there": Errors.TOPIC_ALREADY_EXISTS,
        "twice": Errors.INVALID_REQUEST,
        "a_b": Errors.INVALID_TOPIC_EXCEPTION,
        "bad/name": Errors.INVALID_TOPIC_EXCEPTION,
        "__cluster_metadata": Errors.INVALID_REQUEST,
    }
    assert "new" in broker.home.catalog.names()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"numPartitions": 0}, Errors.INVALID_PARTITIONS),
        ({"replicationFactor": 0}, Errors.INVALID_REPLICATION_FACTOR),
        ({"replicationFactor": 3}, Errors.INVALID_REPLICATION_FACTOR),
        ({"configs": [{"name": "no.such", "value": "1"}]}, Errors.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": "x"}]}, Errors.INVALID_CONFIG),
        ({"configs": [{"name": "retention.ms", "value": None}]}, Errors.INVALID_CONFIG),
        ({"assignments": [{"partitionIndex": 1, "brokerIds": [1]}]}, Errors.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [{"partitionIndex": 0, "brokerIds": [2]}]}, Errors.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": [{"partitionIndex": 0, "brokerIds": [1]}], "numPartitions": 1}, Errors.INVALID_REQUEST),
        ({"assignments": [{"partitionIndex": 0, "brokerIds": [1]}]}, Errors.NONE),
        ({"configs": [{"name": "retention.ms", "value": "1000"}]}, Errors.NONE),
    ],
)
def test_what_a_topic_may_be_made_of(broker: Broker, fields: dict[str, Any], code: Errors) -> None:
    assert codes(create(broker, "orders", **fields)) == {"orders": code}
    assert ("orders" in broker.home.catalog.names()) == (code is Errors.NONE)


def test_a_dry_run_changes_nothing(broker: Broker) -> None:
    asked = [{"name": "orders", "numPartitions": 2, "replicationFactor": 1}]
    answer = ask(broker, ApiKeys.CREATE_TOPICS, topics=asked, validateOnly=True)
    assert codes(answer["topics"]) == {"orders": Errors.NONE}
    assert broker.home.catalog.names() == []


def test_topics_are_deleted_by_name_and_by_id(broker: Broker) -> None:
    made = {each["name"]: each["topicId"] for each in create(broker, "a", "b", "c")}
    asked = [
        {"name": "a"}, {"name": None, "topicId": made["b"]}, {"name": "no"}, {"name": None, "topicId": "A" * 21 + "Q"},
        {"name": "c"}, {"name": "c"}, {"name": None}, {"name": "x", "topicId": made["c"]},
    ]  # fmt: skip
    found = ask(broker, ApiKeys.DELETE_TOPICS, topics=asked)["responses"]
    by_place = {(each["name"], each["topicId"]): Errors(each["errorCode"]) for each in found}
    assert by_place == {
        ("a", made["a"]): Errors.NONE,
        ("b", made["b"]): Errors.NONE,
        ("no", ZERO_UUID): Errors.UNKNOWN_TOPIC_OR_PARTITION,
        (None, "A" * 21 + "Q"): Errors.UNKNOWN_TOPIC_ID,
        ("c", ZERO_UUID): Errors.INVALID_REQUEST,
        (None, ZERO_UUID): Errors.INVALID_REQUEST,
        ("x", made["c"]): Errors.INVALID_REQUEST,
    }
    assert broker.home.catalog.names() == ["c"]
    texts = {each["name"]: each["errorMessage"] for each in found if each["name"] in ("a", "no")}
    assert texts == {"a": None, "no": "This server does not host this topic-partition."}


def test_a_topic_named_twice_in_two_ways_stays(broker: Broker) -> None:
    (made,) = create(broker, "a")
    asked = [{"name": "a"}, {"name": None, "topicId": made["topicId"]}]
    (found,) = ask(broker, ApiKeys.DELETE_TOPICS, topics=asked)["responses"]
    assert (found["name"], found["errorCode"]) == ("a", Errors.INVALID_REQUEST)
    assert broker.home.catalog.names() == ["a"]


def test_a_request_without_time_fails_as_a_whole(broker: Broker) -> None:
    create(broker, "a")
    for key, topics_ in (
        (ApiKeys.CREATE_TOPICS, [{"name": "b", "numPartitions": 1, "replicationFactor": 1}]),
        (ApiKeys.DELETE_TOPICS, [{"name": "a"}]),
        (ApiKeys.CREATE_PARTITIONS, [{"name": "a", "count": 9, "assignments": None}]),
    ):
        for time_ms in (0, -1):
            with pytest.raises(TimeoutException):
                ask(broker, key, topics=topics_, timeoutMs=time_ms)
        ask(broker, key, topics=[], timeoutMs=0)
    assert broker.home.catalog.names() == ["a"]
    assert broker.home.catalog.must("a").partitions == 3


def test_too_many_partitions_refuse_the_whole_request(broker: Broker) -> None:
    create(broker, "a", "b")
    with pytest.raises(PolicyViolationException, match="of partitions per request"):
        create(broker, "c", "d", numPartitions=5001, replicationFactor=1)
    grown = [{"name": each, "count": 5004, "assignments": None} for each in ("a", "b")]
    with pytest.raises(PolicyViolationException, match="of additional partitions per request"):
        ask(broker, ApiKeys.CREATE_PARTITIONS, topics=grown)


def test_partitions_are_only_added(broker: Broker) -> None:
    create(broker, "orders", numPartitions=2)

    def grow(count: int, **fields: Any) -> Errors:
        asked = [{"name": "orders", "count": count, "assignments": None} | fields]
        (found,) = ask(broker, ApiKeys.CREATE_PARTITIONS, topics=asked)["results"]
        return Errors(found["errorCode"])

    assert grow(2) is Errors.INVALID_PARTITIONS
    assert grow(1) is Errors.INVALID_PARTITIONS
    assert grow(4, assignments=[{"brokerIds": [1]}]) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert grow(3, assignments=[{"brokerIds": [9]}]) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert grow(3, name="no") is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(4) is Errors.NONE
    assert broker.home.catalog.must("orders").partitions == 4


# --- settings --------------------------------------------------------------------------------------------


def describe(broker: Broker, resource: tuple[int, str], names: list[str] | None = None) -> dict[str, Any]:
    asked = [{"resourceType": resource[0], "resourceName": resource[1], "configurationKeys": names}]
    (found,) = ask(broker, ApiKeys.DESCRIBE_CONFIGS, resources=asked, includeSynonyms=True)["results"]
    return {each["name"]: each for each in found["configs"]} | {"": Errors(found["errorCode"])}


def alter(broker: Broker, resource: tuple[int, str], *operations: tuple[str, int, str | None]) -> Errors:
    rows = [{"name": name, "configOperation": kind, "value": value} for name, kind, value in operations]
    asked = [{"resourceType": resource[0], "resourceName": resource[1], "configs": rows}]
    (found,) = ask(broker, ApiKeys.INCREMENTAL_ALTER_CONFIGS, resources=asked)["responses"]
    return Errors(found["errorCode"])


SET, DELETE, APPEND, SUBTRACT = range(4)


def test_a_topics_settings_name_their_source(broker: Broker) -> None:
    create(broker, "orders", configs=[{"name": "retention.ms", "value": "5000"}])
    found = describe(broker, TOPIC)
    retention = found["retention.ms"]
    assert (retention["value"], retention["configSource"]) == ("5000", 1)
    assert [each["name"] for each in retention["synonyms"]][:1] == ["retention.ms"]
    assert found["segment.bytes"]["configSource"] == 5
    assert found["segment.bytes"]["value"] == str(1 << 30)
    assert describe(broker, (ConfigType.TOPIC, "no"))[""] is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert set(describe(broker, TOPIC, ["retention.ms"])) == {"retention.ms", ""}


def test_settings_of_a_topic_are_set_deleted_and_listed(broker: Broker) -> None:
    create(broker, "orders")
    overrides = broker.home.catalog
    assert alter(broker, TOPIC, ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")) is Errors.NONE
    assert overrides.must("orders").overrides == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}
    assert alter(broker, TOPIC, ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")) is Errors.NONE
    assert overrides.must("orders").overrides == {"cleanup.policy": "compact"}
    assert alter(broker, TOPIC, ("retention.ms", APPEND, "1")) is Errors.INVALID_CONFIG
    assert alter(broker, TOPIC, ("retention.ms", SET, "x")) is Errors.INVALID_CONFIG
    assert alter(broker, TOPIC, ("retention.ms", SET, None)) is Errors.INVALID_REQUEST
    assert alter(broker, TOPIC, ("retention.ms", 7, "1")) is Errors.UNKNOWN_SERVER_ERROR
    assert alter(broker, ALL_BROKERS, ("log.retention.ms", 7, "1")) is Errors.INVALID_REQUEST
    assert alter(broker, (ConfigType.TOPIC, "no"), ("retention.ms", SET, "1")) is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_operation_fails_all_topics_of_the_request(broker: Broker) -> None:
    create(broker, "orders", "other")
    wrong = [{"name": "retention.ms", "configOperation": 7, "value": "1"}]
    right = [{"name": "retention.ms", "configOperation": SET, "value": "1000"}]
    asked = [{"resourceType": 2, "resourceName": name, "configs": rows}
             for name, rows in (("orders", wrong), ("other", right))]  # fmt: skip
    found = ask(broker, ApiKeys.INCREMENTAL_ALTER_CONFIGS, resources=asked)["responses"]
    assert {each["errorCode"] for each in found} == {Errors.UNKNOWN_SERVER_ERROR}
    assert broker.home.catalog.must("other").overrides == {}


@pytest.mark.parametrize("resource", [(32, "workers"), (2, "orders")], ids=["group", "topic"])
def test_changes_at_the_same_time_are_all_kept(broker: Broker, resource: tuple[int, str]) -> None:
    create(broker, "orders")
    names = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "share.session.timeout.ms")
    if resource[0] == 2:
        names = ("retention.ms", "segment.ms", "max.message.bytes")
    starts = threading.Barrier(len(names), timeout=10)

    def change(name: str, value: int) -> None:
        starts.wait()
        for _ in range(10):
            for operation, text in ((DELETE, None), (SET, str(value))):
                assert alter(broker, resource, (name, operation, text)) is Errors.NONE

    values = {name: 50_000 + 10 * number for number, name in enumerate(names)}
    values["consumer.heartbeat.interval.ms"] = 6000
    threads = [threading.Thread(target=change, args=(name, values[name])) for name in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = describe(broker, resource)
    assert {name: found[name]["value"] for name in names} == {name: str(values[name]) for name in names}


def test_a_client_sets_nothing_that_kafka_does_not_know(broker: Broker) -> None:
    before = broker.settings["users.file"]
    for name in ("users.file", "listener.name.plain.users.file", "users"):
        assert alter(broker, ALL_BROKERS, (name, SET, "/nowhere")) is Errors.NONE  # Kafka keeps unknown names too
    assert alter(broker, ALL_BROKERS, ("log.retention.ms", SET, "7000")) is Errors.NONE
    assert broker.settings["users.file"] == before
    assert broker.settings["log.retention.ms"] == 7000
    assert "users.file" in describe(broker, ALL_BROKERS)


def test_the_texts_of_refused_resources(broker: Broker) -> None:
    create(broker, "orders")

    def text(kind: int, name: str) -> str:
        asked = [{"resourceType": kind, "resourceName": name, "configurationKeys": None}]
        return str(ask(broker, ApiKeys.DESCRIBE_CONFIGS, resources=asked)["results"][0]["errorMessage"])

    assert [text(2, "orders"), text(2, "no")] == ["", ""]
    assert text(4, "2") == "Unexpected broker id, expected 1 or empty string, but received 2"
    assert text(8, "2") == "Unexpected broker id, expected 1 but received 2"
    assert text(4, "x") == text(8, "x") == "Broker id must be an integer, but it is: x"
    with pytest.raises(InvalidRequestException):
        text(77, "orders")


def test_the_older_request_replaces_all_settings_of_a_topic(broker: Broker) -> None:
    create(broker, "orders", configs=[{"name": "retention.ms", "value": "5000"}])
    rows = [{"name": "segment.ms", "value": "7000"}]
    asked = [{"resourceType": TOPIC[0], "resourceName": TOPIC[1], "configs": rows}]
    (found,) = ask(broker, ApiKeys.ALTER_CONFIGS, resources=asked)["responses"]
    assert found["errorCode"] == Errors.NONE
    assert broker.home.catalog.must("orders").overrides == {"segment.ms": "7000"}


def test_a_brokers_settings_have_levels(broker: Broker) -> None:
    node = (ConfigType.BROKER, "1")
    assert describe(broker, node)["num.partitions"]["configSource"] == 4
    assert alter(broker, ALL_BROKERS, ("log.retention.ms", SET, "7000")) is Errors.NONE
    assert alter(broker, node, ("log.retention.ms", SET, "8000")) is Errors.NONE
    found = describe(broker, node)["log.retention.ms"]
    assert (found["value"], found["configSource"], found["readOnly"]) == ("8000", 2, False)
    assert [each["source"] for each in found["synonyms"]] == [2, 3, 5]
    assert set(describe(broker, ALL_BROKERS)) == {"log.retention.ms", "min.insync.replicas", ""}
    assert alter(broker, node, ("node.id", SET, "3")) is Errors.INVALID_REQUEST
    assert alter(broker, ALL_BROKERS, ("listeners", SET, "PLAINTEXT://:1")) is Errors.INVALID_REQUEST
    assert alter(broker, (ConfigType.BROKER, "2"), ("log.retention.ms", SET, "1")) is Errors.INVALID_REQUEST
    assert alter(broker, (ConfigType.BROKER, "x"), ("log.retention.ms", SET, "1")) is Errors.INVALID_REQUEST


def test_settings_of_brokers_take_effect_and_stay(broker: Broker) -> None:
    create(broker, "orders")
    create(broker, "kept", configs=[{"name": "retention.ms", "value": "9000"}])
    manager = broker.home.manager
    before = manager.config_of("orders").retention_ms
    changes = (("log.retention.ms", SET, "7000"), ("num.partitions", SET, "5"))
    assert alter(broker, ALL_BROKERS, *changes) is Errors.INVALID_REQUEST
    assert alter(broker, ALL_BROKERS, ("log.retention.ms", SET, "7000")) is Errors.NONE
    assert [manager.config_of(each).retention_ms for each in ("orders", "kept")] == [7000, 9000]
    again = Broker(broker.home, ServerSettings.from_props({}))
    state_file_of(again)
    assert again.configs.of(ALL_BROKERS)["log.retention.ms"] == "7000"
    assert alter(broker, ALL_BROKERS, ("log.retention.ms", DELETE, None)) is Errors.NONE
    assert manager.config_of("orders").retention_ms == before


def test_a_groups_settings_are_checked(broker: Broker) -> None:
    group = (ConfigType.GROUP, "billing")
    assert alter(broker, group, ("consumer.session.timeout.ms", SET, "50000")) is Errors.NONE
    assert describe(broker, group)["consumer.session.timeout.ms"]["configSource"] == 8
    assert alter(broker, group, ("consumer.session.timeout.ms", SET, "5000000")) is Errors.INVALID_CONFIG
    assert alter(broker, group, ("no.such", SET, "1")) is Errors.INVALID_CONFIG
    assert alter(broker, group, ("errors.deadletterqueue.topic.name", SET, "__x")) is Errors.INVALID_CONFIG
    kinds = [ConfigType.GROUP]
    listed = ask(broker, ApiKeys.LIST_CONFIG_RESOURCES, resourceTypes=kinds)["configResources"]
    assert [each["resourceName"] for each in listed] == ["billing"]


def test_loggers_are_listed_and_set(broker: Broker) -> None:
    loggers = (ConfigType.BROKER_LOGGER, "1")
    before = describe(broker, loggers)["kafkalog.topics"]["value"]
    assert alter(broker, loggers, ("kafkalog.topics", SET, "ERROR")) is Errors.NONE
    assert describe(broker, loggers)["kafkalog.topics"]["value"] == "ERROR"
    assert alter(broker, loggers, ("kafkalog.topics", DELETE, None)) is Errors.NONE
    assert describe(broker, loggers)["kafkalog.topics"]["value"] == before
    assert alter(broker, loggers, ("kafkalog.topics", SET, "LOUD")) is Errors.INVALID_CONFIG
    assert alter(broker, loggers, ("no.such", SET, "INFO")) is Errors.INVALID_CONFIG
    assert alter(broker, loggers, ("root", DELETE, None)) is Errors.INVALID_REQUEST


def test_a_resource_appears_once(broker: Broker) -> None:
    create(broker, "orders")
    asked = [{"resourceType": TOPIC[0], "resourceName": TOPIC[1], "configs": []}] * 2
    found = ask(broker, ApiKeys.INCREMENTAL_ALTER_CONFIGS, resources=asked)["responses"]
    assert [each["errorCode"] for each in found] == [Errors.INVALID_REQUEST] * 2


# --- log directories -------------------------------------------------------------------------------------


def test_partitions_are_shown_in_their_directories_and_moved(broker: Broker) -> None:
    create(broker, "orders", numPartitions=1)

    def places() -> dict[str, list[int]]:
        results = ask(broker, ApiKeys.DESCRIBE_LOG_DIRS, topics=None)["results"]
        assert all(each["totalBytes"] > 0 for each in results)
        return {
            each["logDir"]: [row["partitionIndex"] for topic in each["topics"] for row in topic["partitions"]]
            for each in results
        }

    before = places()
    (source,) = (name for name, found in before.items() if found)
    (target,) = (name for name, found in before.items() if not found)

    def move(path: str, name: str = "orders", number: int = 0) -> Errors:
        asked = [{"path": path, "topics": [{"name": name, "partitions": [number]}]}]
        (topic,) = ask(broker, ApiKeys.ALTER_REPLICA_LOG_DIRS, dirs=asked)["results"]
        return Errors(topic["partitions"][0]["errorCode"])

    assert move("/no/such/place") is Errors.LOG_DIR_NOT_FOUND
    assert move(os.path.basename(target)) is Errors.LOG_DIR_NOT_FOUND
    assert move(target, number=5) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert move(target, name="no") is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert move(source) is Errors.NONE
    threads = threading.active_count()
    for _ in range(50):
        assert move(target) is Errors.NONE
    assert threading.active_count() <= threads + 2  # one for each directory
    log_dirs.moves_of(broker).wait()
    assert places() == {source: [], target: [0]}
