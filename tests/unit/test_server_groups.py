"""Groups and offsets through the server's handlers, over a store and without a socket: permissions, versions, settings.

The answers of whole lives of groups are compared with a broker's in tests/broker/test_server_groups.py.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.format import codecs
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import Api, ApiKeys, api, default_values
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.errors import ConfigException, UnknownMemberIdException
from kafkalog.server.broker import Broker
from kafkalog.server.group_setup import group_settings, internal_topics, start_groups
from kafkalog.server.handlers import consumer_groups, groups, offsets
from kafkalog.server.request import Pending, Request
from kafkalog.server.resource_configs import ConfigType
from kafkalog.server.security.acls import AclOperation, ResourceType
from kafkalog.server.security.authorizer import AllowAll
from kafkalog.server.settings import ServerSettings
from tests.unit.group_kit import subscription
from tests.unit.store_kit import home_of

HANDLERS = {**groups.HANDLERS, **consumer_groups.HANDLERS, **offsets.HANDLERS}
GROUP_REFUSED, TOPIC_REFUSED = Errors.GROUP_AUTHORIZATION_FAILED, Errors.TOPIC_AUTHORIZATION_FAILED
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


class Refusing(AllowAll):
    """Refuses these operations, given as "READ GROUP g"."""

    is_on = True

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def authorize(self, request: Request, operation: Any, resource_type: Any, name: str, *, log: bool = True) -> bool:
        return f"{AclOperation(operation).name} {ResourceType(resource_type).name} {name}" not in self.refused

    def filter_by_authorized(
        self, request: Request, operation: Any, resource_type: Any, names: Iterable[str], *, log: bool = True
    ) -> set[str]:
        return {each for each in names if self.authorize(request, operation, resource_type, each)}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("secret")
        found = Broker(home_of(store), ServerSettings.from_props(SETTINGS))
        start_groups(found)
        yield found


def asked(broker: Broker, key: int, version: int | None = None, **body: Any) -> tuple[Any, Api, int]:
    known = api(key)
    version = known.highest if version is None else version
    values, _ = known.request.decode(known.request.encode(default_values(known.request) | body, version), version)
    return HANDLERS[key](broker, Request(key, version, client_id="c", body=values)), known, version


def ask(broker: Broker, key: int, version: int | None = None, **body: Any) -> Any:
    """The answer to a request, which goes through its bytes both ways; waits for it."""
    answer, known, version = asked(broker, key, version, **body)
    if isinstance(answer, Pending):
        found: queue.Queue[Any] = queue.Queue()
        answer.deliver_to(found.put)
        answer = found.get(timeout=20)
    return known.response.decode(known.response.encode(answer, version), version)[0]


def joining(group: str = "g", member_id: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "groupId": group,
        "sessionTimeoutMs": 6_000,
        "rebalanceTimeoutMs": 6_000,
        "memberId": member_id,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
    } | fields


def stable(broker: Broker, group: str = "g") -> dict[str, Any]:
    joined = ask(broker, ApiKeys.JOIN_GROUP, 3, **joining(group))
    share = [{"memberId": joined["memberId"], "assignment": b"all"}]
    told = {"groupId": group, "generationId": joined["generationId"], "memberId": joined["memberId"]}
    found = ask(broker, ApiKeys.SYNC_GROUP, 3, **told, assignments=share)
    assert found["assignment"] == b"all"
    return told


def commits(topic: str = "orders", partition: int = 0, offset: int = 5, **fields: Any) -> dict[str, Any]:
    row = {"partitionIndex": partition, "committedOffset": offset, "committedMetadata": ""}
    return {"groupId": "g", "topics": [{"name": topic, "topicId": ZERO_UUID, "partitions": [row]}]} | fields


def codes(answer: Any) -> dict[tuple[str, int], Errors]:
    return {
        (topic["name"], each["partitionIndex"]): Errors(each["errorCode"])
        for topic in answer["topics"]
        for each in topic["partitions"]
    }


# --- members --------------------------------------------------------------------------------------------------------


def test_a_member_waits_and_stays(broker: Broker) -> None:
    told = stable(broker)
    pending, _, _ = asked(broker, ApiKeys.JOIN_GROUP, 3, **joining())
    assert isinstance(pending, Pending)
    assert ask(broker, ApiKeys.HEARTBEAT, **told)["errorCode"] == Errors.REBALANCE_IN_PROGRESS
    assert ask(broker, ApiKeys.JOIN_GROUP, 3, **joining(member_id=told["memberId"]))["generationId"] == 2
    assert pending.is_ended


def test_the_oldest_client_names_one_timeout(broker: Broker) -> None:
    joined = ask(broker, ApiKeys.JOIN_GROUP, 0, **joining())
    found = broker.groups.shard("g").partition.groups.by_name["g"]
    assert found.members[joined["memberId"]].rebalance_timeout_ms == 6_000
    assert joined["protocolName"] == "range"


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_an_answer_without_a_protocol(broker: Broker, version: int, name: str | None) -> None:
    answer = ask(broker, ApiKeys.JOIN_GROUP, version, **joining(sessionTimeoutMs=1))
    assert (answer["errorCode"], answer["protocolName"]) == (Errors.INVALID_SESSION_TIMEOUT, name)


def test_a_sync_must_name_the_protocol(broker: Broker) -> None:
    told = stable(broker)
    assert ask(broker, ApiKeys.SYNC_GROUP, 5, **told)["errorCode"] == Errors.INCONSISTENT_GROUP_PROTOCOL
    assert ask(broker, ApiKeys.SYNC_GROUP, 4, **told)["errorCode"] == 0


@pytest.mark.parametrize("version", range(6))
def test_leaving(broker: Broker, version: int) -> None:
    told = stable(broker)
    one = {"memberId": told["memberId"], "groupInstanceId": None, "reason": None}
    body = {"memberId": told["memberId"]} if version < 3 else {"members": [one]}
    assert ask(broker, ApiKeys.LEAVE_GROUP, version, groupId="g", **body)["errorCode"] == 0
    again = ask(broker, ApiKeys.LEAVE_GROUP, version, groupId="g", **body)
    code = again["errorCode"] if version < 3 else again["members"][0]["errorCode"]
    assert code == Errors.UNKNOWN_MEMBER_ID


def test_who_may_not_be_a_member(broker: Broker) -> None:
    told = stable(broker)
    broker.authorizer = Refusing("READ GROUP g")
    named: dict[str, Any] = {"protocolType": "consumer", "protocolName": "range"}
    assert ask(broker, ApiKeys.JOIN_GROUP, **joining())["errorCode"] == GROUP_REFUSED
    assert ask(broker, ApiKeys.SYNC_GROUP, **told, **named)["errorCode"] == GROUP_REFUSED
    assert ask(broker, ApiKeys.HEARTBEAT, **told)["errorCode"] == GROUP_REFUSED
    assert ask(broker, ApiKeys.LEAVE_GROUP, groupId="g", members=[])["errorCode"] == GROUP_REFUSED
    assert codes(ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits())) == {("orders", 0): GROUP_REFUSED}


# --- administration -------------------------------------------------------------------------------------------------


def test_who_sees_groups(broker: Broker) -> None:
    stable(broker)
    stable(broker, "h")
    assert {each["groupId"] for each in ask(broker, ApiKeys.LIST_GROUPS)["groups"]} == {"g", "h"}
    broker.authorizer = Refusing("DESCRIBE CLUSTER kafka-cluster", "DESCRIBE GROUP h", "DELETE GROUP h")
    assert {each["groupId"] for each in ask(broker, ApiKeys.LIST_GROUPS)["groups"]} == {"g"}
    found = ask(broker, ApiKeys.DESCRIBE_GROUPS, groups=["g", "h"], includeAuthorizedOperations=True)["groups"]
    by_name = {each["groupId"]: each for each in found}
    assert (by_name["h"]["errorCode"], by_name["g"]["groupState"]) == (GROUP_REFUSED, "Stable")
    assert by_name["g"]["authorizedOperations"] != by_name["h"]["authorizedOperations"] == -(1 << 31)
    results = ask(broker, ApiKeys.DELETE_GROUPS, groupsNames=["g", "h", "g", "i"])["results"]
    assert {each["groupId"]: Errors(each["errorCode"]) for each in results} == {
        "g": Errors.NON_EMPTY_GROUP, "h": GROUP_REFUSED, "i": Errors.GROUP_ID_NOT_FOUND,
    }  # fmt: skip


def test_the_group_without_a_name_is_unknown(broker: Broker) -> None:
    for version in (0, 5, 6):
        (found,) = ask(broker, ApiKeys.DESCRIBE_GROUPS, version, groups=[""])["groups"]
        assert (found["groupState"], found["errorCode"]) == ("Dead", Errors.GROUP_ID_NOT_FOUND if version > 5 else 0)
        assert found["errorMessage"] == ("Group  not found." if version > 5 else None)


def test_a_members_refusal_has_a_text(broker: Broker) -> None:
    found = ask(broker, ApiKeys.CONSUMER_GROUP_HEARTBEAT, groupId="g", memberId="m", memberEpoch=-3)
    assert (found["errorCode"], found["errorMessage"]) == (Errors.INVALID_REQUEST, "MemberEpoch is invalid.")
    for epoch, text in ((-1, "Group g not found."), (1, "Consumer group g not found.")):
        found = ask(broker, ApiKeys.CONSUMER_GROUP_HEARTBEAT, groupId="g", memberId="m", memberEpoch=epoch)
        assert (found["errorCode"], found["errorMessage"]) == (Errors.GROUP_ID_NOT_FOUND, text)


# --- offsets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_in_every_version(broker: Broker, version: int) -> None:
    topic_id = broker.topics.topic_id("orders")
    body = commits("" if version >= 10 else "orders")
    body["topics"][0]["topicId"] = topic_id if version >= 10 else ZERO_UUID
    answer = ask(broker, ApiKeys.OFFSET_COMMIT, version, **body)
    assert list(codes(answer).values()) == [Errors.NONE]
    for each in range(1, 11):
        rows: dict[str, Any] = {"name": "" if each >= 10 else "orders", "partitionIndexes": [0, 1]}
        rows |= {"topicId": topic_id if each >= 10 else ZERO_UUID} if each >= 8 else {}
        one = {"groupId": "g", "memberId": None, "memberEpoch": -1, "topics": [rows]}
        asks = {"groups": [one]} if each >= 8 else {"groupId": "g", "topics": [rows]}
        found = ask(broker, ApiKeys.OFFSET_FETCH, each, **asks)
        found = found["groups"][0] if each >= 8 else found
        assert [row["committedOffset"] for row in found["topics"][0]["partitions"]] == [5, -1]


def test_what_cannot_be_committed(broker: Broker) -> None:
    broker.authorizer = Refusing("READ TOPIC secret")
    rows = [commits(*each)["topics"][0] for each in (("orders", 0), ("orders", 7), ("none", 0), ("secret", 0))]
    assert codes(ask(broker, ApiKeys.OFFSET_COMMIT, 9, groupId="g", topics=rows)) == {
        ("orders", 0): Errors.NONE,
        ("orders", 7): Errors.UNKNOWN_TOPIC_OR_PARTITION,
        ("none", 0): Errors.UNKNOWN_TOPIC_OR_PARTITION,
        ("secret", 0): TOPIC_REFUSED,
    }
    unknown = commits("")
    unknown["topics"][0]["topicId"] = "B" * 21 + "A"
    assert list(codes(ask(broker, ApiKeys.OFFSET_COMMIT, 10, **unknown)).values()) == [Errors.UNKNOWN_TOPIC_ID]


def test_what_cannot_be_read(broker: Broker) -> None:
    for topic in ("orders", "secret"):
        ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits(topic))
    broker.authorizer = Refusing("DESCRIBE TOPIC secret", "DESCRIBE GROUP h")
    rows = [{"name": each, "topicId": ZERO_UUID, "partitionIndexes": [0]} for each in ("orders", "secret")]
    one = {"groupId": "g", "memberId": None, "memberEpoch": -1, "topics": rows}
    every = one | {"topics": None}
    first, second, third = ask(broker, ApiKeys.OFFSET_FETCH, 9, groups=[one, every, one | {"groupId": "h"}])["groups"]
    assert codes(first) == {("orders", 0): Errors.NONE, ("secret", 0): TOPIC_REFUSED}
    assert codes(second) == {("orders", 0): Errors.NONE}
    assert (third["errorCode"], third["topics"]) == (GROUP_REFUSED, [])
    old_rows = [{"name": each, "partitionIndexes": [0]} for each in ("orders", "secret")]
    old = ask(broker, ApiKeys.OFFSET_FETCH, 1, groupId="h", topics=old_rows)
    assert codes(old) == {("orders", 0): GROUP_REFUSED, ("secret", 0): GROUP_REFUSED}


def test_offsets_are_deleted(broker: Broker) -> None:
    ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits())
    broker.authorizer = Refusing("READ TOPIC secret", "DELETE GROUP h")
    rows = [{"name": each, "partitions": [{"partitionIndex": 0}]} for each in ("orders", "secret", "none")]
    rows.append({"name": "orders", "partitions": [{"partitionIndex": 9}]})
    answer = ask(broker, ApiKeys.OFFSET_DELETE, groupId="g", topics=rows[:3])
    assert codes(answer) == {
        ("orders", 0): Errors.NONE, ("secret", 0): TOPIC_REFUSED, ("none", 0): Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert ask(broker, ApiKeys.OFFSET_DELETE, groupId="h", topics=rows[:1])["errorCode"] == GROUP_REFUSED
    assert ask(broker, ApiKeys.OFFSET_DELETE, groupId="none", topics=[])["errorCode"] == Errors.GROUP_ID_NOT_FOUND


def test_a_durable_commit_is_synced_before_its_answer(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, durability="fsync") as store:
        store.create_topic("orders")
        broker = Broker(home_of(store), ServerSettings.from_props(SETTINGS))
        start_groups(broker)
        answer, _, _ = asked(broker, ApiKeys.OFFSET_COMMIT, 9, **commits())
        assert isinstance(answer, Pending)
        assert codes(ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits())) == {("orders", 0): Errors.NONE}
        log = broker.groups.log_of("g").log
        assert log.recovery_point == log.log_end_offset
        for close in broker.at_close:
            close()


# --- beside the store's own cursors ---------------------------------------------------------------------------------


def test_a_cursor_keeps_out_of_a_live_group(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders", partitions=2)
        store.topic("orders").append(b"v")
        broker = Broker(home_of(store), ServerSettings.from_props(SETTINGS))
        start_groups(broker)
        with store.reader("own", topics=["orders"], start="earliest") as reader:
            assert reader.poll(1) is not None
            reader.commit()
        told = stable(broker, "live")
        states = {
            each.group: each.state for each in home_of(store).coordinators.groups.shard("live").partition.list_groups()
        }
        assert states["live"] == "Stable"
        with store.reader("live", topics=["orders"], start="earliest") as reader:
            reader.poll(1)
            with pytest.raises(UnknownMemberIdException):
                reader.commit()
        leaving = [{"memberId": told["memberId"], "groupInstanceId": None, "reason": None}]
        ask(broker, ApiKeys.LEAVE_GROUP, groupId="live", members=leaving)
        with store.reader("live", topics=["orders"], start="earliest") as reader:
            reader.poll(1)
            reader.commit()
    with kafkalog.open(tmp_path) as store:
        assert {each.name for each in store.cursors()} == {"own", "live"}


def test_a_store_with_members_closes_at_once(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders")
        broker = Broker(home_of(store), ServerSettings.from_props(SETTINGS))
        start_groups(broker)
        stable(broker)
        pending, _, _ = asked(broker, ApiKeys.JOIN_GROUP, 3, **joining())
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert pending.is_ended


# --- internal topics ------------------------------------------------------------------------------------------------


def test_new_internal_topics_have_the_partitions_of_the_settings(tmp_path: Path) -> None:
    counts = {
        "__consumer_offsets": ("offsets.topic.num.partitions", 3),
        "__transaction_state": ("transaction.state.log.num.partitions", 5),
        "__share_group_state": ("share.coordinator.state.topic.num.partitions", 7),
    }
    for more in (0, 1):  # the second server has topics, which keep their counts
        with kafkalog.open(tmp_path) as store:
            store.create_topic("orders", exist_ok=True)
            settings = SETTINGS | {name: count + more for name, count in counts.values()}
            broker = Broker(home_of(store), ServerSettings.from_props(settings))
            start_groups(broker)
            for number in range(9):
                ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits(groupId=f"g{number}"))
            coordinators = broker.home.coordinators
            catalog = broker.home.catalog
            catalog.internal_partition("__transaction_state", 4, create=True)
            catalog.internal_partition("__share_group_state", 6, create=True)
            assert {name: catalog.partition_count(name) for name in counts} == {
                name: count for name, (_, count) in counts.items()
            }
            assert set(catalog.numbers("__consumer_offsets")) == {0, 1, 2}
            assert coordinators.offsets_partitions == broker.groups.partition_count == 3
            assert coordinators.transactions.partition_count == 5
            for close in broker.at_close:
                close()


def test_new_internal_topics_have_the_settings_of_the_server(tmp_path: Path) -> None:
    own = {
        "__consumer_offsets": ("offsets.topic.", {"segment.bytes": "2000000"}),
        "__transaction_state": ("transaction.state.log.", {"segment.bytes": "3000000", "min.isr": "4"}),
        "__share_group_state": ("share.coordinator.state.topic.", {"segment.bytes": "5000000", "min.isr": "6"}),
    }
    settings = {prefix + name: value for prefix, given in own.values() for name, value in given.items()}
    settings |= {"offsets.topic.compression.codec": "1", "share.coordinator.state.topic.compression.codec": "4"}
    with kafkalog.open(tmp_path) as store:
        broker = Broker(home_of(store), ServerSettings.from_props(SETTINGS | settings))
        start_groups(broker)
        store.create_topic("orders")
        ask(broker, ApiKeys.OFFSET_COMMIT, 9, **commits(groupId="g"))
        place = {
            "topicId": store.describe_topic("orders").topic_id,
            "partitions": [{"partition": 0, "stateEpoch": 1, "startOffset": 0}],
        }
        broker.home.coordinators.share_coordinator.initialize_state({"groupId": "g", "topics": [place]})
        catalog = broker.home.catalog
        catalog.internal_partition("__transaction_state", 0, create=True)
        for name, (_, given) in own.items():
            overrides = store.describe_topic(name).overrides
            assert overrides["segment.bytes"] == given["segment.bytes"]
            assert overrides.get("min.insync.replicas") == given.get("min.isr")
        for name, codec in (("__consumer_offsets", codecs.GZIP), ("__share_group_state", codecs.ZSTD)):
            log = catalog.internal_partition(name, catalog.numbers(name)[0], create=False)
            assert log is not None
            assert {batch.codec for batch in log.read(0, 1 << 20, FetchIsolation.LOG_END, True).records.batches()} == {
                codec
            }
        for close in broker.at_close:
            close()


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ConfigException, match=r"compression\.codec"):
        internal_topics(ServerSettings.from_props({"offsets.topic.compression.codec": "9"}))


@pytest.mark.parametrize("value", ["0", "x"])
def test_counts_of_partitions_are_checked(value: str) -> None:
    with pytest.raises(ConfigException):
        internal_topics(ServerSettings.from_props({"offsets.topic.num.partitions": value}))


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_of_groups(broker: Broker) -> None:
    found = group_settings(
        ServerSettings.from_props(
            {
                "group.max.size": "7",
                "offsets.retention.minutes": 2,
                "offset.metadata.max.bytes": "10",
                "group.consumer.assignors": "range, uniform",
                "group.consumer.migration.policy": "disabled",
            }
        )
    )
    assert (found.group_max_size, found.offsets_retention_ms, found.offset_metadata_max) == (7, 120_000, 10)
    assert (found.group_consumer_assignors, found.group_consumer_migration_policy) == (("range", "uniform"), "disabled")
    assert group_settings(ServerSettings.from_props()) == GroupSettings(simple_offsets_expire=False)
    with pytest.raises(ConfigException):
        group_settings(ServerSettings.from_props({"group.max.size": "many"}))
    broker.configs.set((ConfigType.GROUP, "g"), {"consumer.session.timeout.ms": "50000"}, validates_only=False)
    stable(broker)
    configs = broker.groups.shard("g").partition.configs
    assert configs.of("g") == {"consumer.session.timeout.ms": "50000"}
    assert configs.of("h") == {}
