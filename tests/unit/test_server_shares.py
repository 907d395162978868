"""Share groups and their states through the server's handlers, over a store and without a socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.server.broker import Broker
from kafkalog.server.error_answers import error_response
from kafkalog.server.group_setup import start_groups
from kafkalog.server.handlers import groups, share_groups, share_state
from kafkalog.server.request import Request
from kafkalog.server.security.authorizer import AllowAll
from kafkalog.server.settings import ServerSettings

SETTINGS = {
    "share.coordinator.snapshot.update.records.per.snapshot": "2",
    "share.coordinator.state.topic.num.partitions": "3",
}
HANDLERS = {**groups.HANDLERS, **share_groups.HANDLERS, **share_state.HANDLERS}


class Refusing(AllowAll):
    """Everything is allowed but these names."""

    is_on = True

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def authorize(self, request: Any, operation: Any, resource_type: Any, name: str, *, log: bool = True) -> bool:
        return name not in self.names

    def filter_by_authorized(
        self, request: Any, operation: Any, resource_type: Any, names: Iterable[str], *, log: bool = True
    ) -> set[str]:
        return set(names) - self.names

    def authorized_operations(self, request: Any, resource_type: Any, name: str) -> int:
        return 7


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with kafkalog.open(tmp_path / "shop") as store:
        outbox = store.create_topic("outbox", partitions=2)
        outbox.append_many([b"record"] * 10, partition=0)
        store.create_topic("other")
        home = store._own()
        assert isinstance(home, StoreHome)
        broker = Broker(home, ServerSettings.from_props(SETTINGS))
        start_groups(broker)
        yield broker


def ask(broker: Broker, key: int, **body: Any) -> Any:
    """The answer to a request, which goes through its bytes both ways."""
    known = api(key)
    values, _ = known.request.decode(known.request.encode(body, known.highest), known.highest)
    request = Request(key, known.highest, body=values)
    answer: Any
    try:
        answer = HANDLERS[key](broker, request)
    except kafkalog.errors.KafkalogError as error:
        answer = error_response(request, error)
    return known.response.decode(known.response.encode(answer, known.highest), known.highest)[0]


def beat(broker: Broker, epoch: int, *topics: str, member: str = "m") -> Any:
    return ask(
        broker, ApiKeys.SHARE_GROUP_HEARTBEAT, groupId="mail", memberId=member, memberEpoch=epoch, rackId=None,
        subscribedTopicNames=list(topics) or None,
    )  # fmt: skip


def alter(broker: Broker, **starts: int) -> Any:
    topics = [
        {"topicName": name, "partitions": [{"partitionIndex": 0, "startOffset": at}]} for name, at in starts.items()
    ]
    return ask(broker, ApiKeys.ALTER_SHARE_GROUP_OFFSETS, groupId="mail", topics=topics)


def offsets(broker: Broker, topics: list[Any] | None = None) -> Any:
    asked = [{"groupId": "mail", "topics": topics}]
    return ask(broker, ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS, groups=asked)["groups"][0]


def starts(found: Any) -> dict[str, list[int]]:
    return {each["topicName"]: [part["startOffset"] for part in each["partitions"]] for each in found["topics"]}


def test_a_member_joins_is_described_and_leaves(broker: Broker) -> None:
    assert beat(broker, 0, "outbox")["memberEpoch"] == 2
    found = ask(broker, ApiKeys.SHARE_GROUP_DESCRIBE, groupIds=["mail", "none"], includeAuthorizedOperations=False)
    mail, none = found["groups"]
    assert (mail["groupState"], mail["assignorName"], mail["members"][0]["memberId"]) == ("Stable", "simple", "m")
    assert (none["errorCode"], none["errorMessage"]) == (Errors.GROUP_ID_NOT_FOUND, "Group none not found.")
    assert beat(broker, -1)["memberEpoch"] == -1


def test_heartbeats_are_refused(broker: Broker) -> None:
    for member in ("", "m" * 37):
        answer = beat(broker, 0, "outbox", member=member)
        assert (answer["errorCode"], answer["errorMessage"]) == (Errors.INVALID_REQUEST, None)
    answer = beat(broker, 4)
    assert (answer["errorCode"], answer["errorMessage"]) == (
        Errors.GROUP_ID_NOT_FOUND, "Share group mail not found.",
    )  # fmt: skip
    broker.authorizer = Refusing("mail")
    assert beat(broker, 0, "outbox")["errorCode"] == Errors.GROUP_AUTHORIZATION_FAILED
    broker.authorizer = Refusing("outbox")
    assert beat(broker, 0, "outbox", "other")["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED


def test_topics_that_a_client_may_not_see_hide_the_group(broker: Broker) -> None:
    alter(broker, outbox=0)
    assert beat(broker, 0, "outbox")["assignment"]["topicPartitions"]
    broker.authorizer = Refusing("outbox", "secret")
    found = ask(broker, ApiKeys.SHARE_GROUP_DESCRIBE, groupIds=["mail", "secret"], includeAuthorizedOperations=True)
    by_name = {each["groupId"]: each for each in found["groups"]}
    assert by_name["secret"]["errorCode"] == Errors.GROUP_AUTHORIZATION_FAILED
    assert by_name["mail"]["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    assert not by_name["mail"]["members"]
    broker.authorizer = Refusing()
    found = ask(broker, ApiKeys.SHARE_GROUP_DESCRIBE, groupIds=["mail"], includeAuthorizedOperations=True)
    assert found["groups"][0]["authorizedOperations"] == 7


def test_start_offsets_are_altered_described_and_deleted(broker: Broker) -> None:
    answer = alter(broker, outbox=3, nothing=0)
    results = {each["topicName"]: each["partitions"][0]["errorCode"] for each in answer["responses"]}
    assert results == {"outbox": Errors.NONE, "nothing": Errors.UNKNOWN_TOPIC_OR_PARTITION}
    found = offsets(broker)
    assert starts(found) == {"outbox": [3]}
    assert found["topics"][0]["partitions"][0]["lag"] == 7
    assert starts(offsets(broker, [{"topicName": "nothing", "partitions": [0]}])) == {"nothing": [-1]}
    assert offsets(broker, [])["topics"] == []
    asked = [{"topicName": each} for each in ("outbox", "nothing")]
    answer = ask(broker, ApiKeys.DELETE_SHARE_GROUP_OFFSETS, groupId="mail", topics=asked)
    results = {each["topicName"]: each["errorCode"] for each in answer["responses"]}
    assert results == {"outbox": Errors.NONE, "nothing": Errors.UNKNOWN_TOPIC_OR_PARTITION}
    assert starts(offsets(broker)) == {}


@pytest.mark.parametrize(("group", "partitions"), [("mail", []), ("mail", [-1]), ("", [0])])
def test_states_of_nothing_are_not_described(broker: Broker, group: str, partitions: list[int]) -> None:
    asked = [{"topicName": "outbox", "partitions": partitions}, {"topicName": "nothing", "partitions": [0]}]
    groups = [{"groupId": group, "topics": asked}]
    (found,) = ask(broker, ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS, groups=groups)["groups"]
    assert (found["errorCode"], found["topics"]) == (Errors.UNKNOWN_SERVER_ERROR, [])


def test_negative_partitions_are_not_altered(broker: Broker) -> None:
    rows = [{"partitionIndex": number, "startOffset": 1} for number in (-2, 0)]
    asked = [{"topicName": "outbox", "partitions": rows}]
    found = ask(broker, ApiKeys.ALTER_SHARE_GROUP_OFFSETS, groupId="mail", topics=asked)
    assert (found["errorCode"], found["responses"]) == (Errors.UNKNOWN_SERVER_ERROR, [])
    assert found["errorMessage"].endswith(" -2")


def test_offsets_are_refused(broker: Broker) -> None:
    alter(broker, outbox=3, other=0)
    broker.authorizer = Refusing("outbox")
    assert starts(offsets(broker)) == {"other": [0]}
    refused = offsets(broker, [{"topicName": "outbox", "partitions": [0]}])["topics"][0]
    assert (refused["topicId"], refused["partitions"][0]["errorCode"]) == (
        ZERO_UUID, Errors.TOPIC_AUTHORIZATION_FAILED,
    )  # fmt: skip
    results = {
        each["topicName"]: each["partitions"][0]["errorCode"] for each in alter(broker, outbox=1, other=0)["responses"]
    }
    assert results == {"outbox": Errors.TOPIC_AUTHORIZATION_FAILED, "other": Errors.NONE}
    asked = [{"topicName": "outbox"}]
    answer = ask(broker, ApiKeys.DELETE_SHARE_GROUP_OFFSETS, groupId="mail", topics=asked)
    assert answer["responses"][0]["errorCode"] == Errors.TOPIC_AUTHORIZATION_FAILED
    broker.authorizer = Refusing("mail")
    assert offsets(broker)["errorCode"] == Errors.GROUP_AUTHORIZATION_FAILED
    assert alter(broker, outbox=1)["errorCode"] == Errors.GROUP_AUTHORIZATION_FAILED
    answer = ask(broker, ApiKeys.DELETE_SHARE_GROUP_OFFSETS, groupId="mail", topics=asked)
    assert answer["errorCode"] == Errors.GROUP_AUTHORIZATION_FAILED


def test_members_refuse_other_offsets_and_deletion(broker: Broker) -> None:
    beat(broker, 0, "outbox")
    assert alter(broker, outbox=1)["errorCode"] == Errors.NON_EMPTY_GROUP
    asked = [{"topicName": "outbox"}]
    answer = ask(broker, ApiKeys.DELETE_SHARE_GROUP_OFFSETS, groupId="mail", topics=asked)
    assert answer["errorCode"] == Errors.NON_EMPTY_GROUP
    (result,) = ask(broker, ApiKeys.DELETE_GROUPS, groupsNames=["mail"])["results"]
    assert result["errorCode"] == Errors.NON_EMPTY_GROUP
    beat(broker, -1)
    (result,) = ask(broker, ApiKeys.DELETE_GROUPS, groupsNames=["mail"])["results"]
    assert result["errorCode"] == Errors.NONE


def test_brokers_ask_for_states(broker: Broker) -> None:
    topic_id = broker.topics.topic_id("outbox")

    def state(key: int, **fields: Any) -> Any:
        topics = [{"topicId": topic_id, "partitions": [{"partition": 0, **fields}]}]
        return ask(broker, key, groupId="mail", topics=topics)["results"][0]["partitions"][0]

    assert state(ApiKeys.INITIALIZE_SHARE_GROUP_STATE, stateEpoch=1, startOffset=2)["errorCode"] == 0
    batch = {"firstOffset": 3, "lastOffset": 4, "deliveryState": 2, "deliveryCount": 1}
    for _ in range(3):
        written = state(
            ApiKeys.WRITE_SHARE_GROUP_STATE, stateEpoch=1, leaderEpoch=0, startOffset=2, deliveryCompleteCount=2,
            stateBatches=[batch],
        )  # fmt: skip
        assert written["errorCode"] == 0
    read = state(ApiKeys.READ_SHARE_GROUP_STATE, leaderEpoch=0)
    assert (read["startOffset"], read["stateBatches"]) == (2, [batch])
    summary = state(ApiKeys.READ_SHARE_GROUP_STATE_SUMMARY, leaderEpoch=0)
    assert (summary["startOffset"], summary["deliveryCompleteCount"]) == (2, 2)
    assert broker.home.catalog.must("__share_group_state").partitions == 3
    (found,) = broker.share_coordinator.shard(("mail", topic_id, 0)).states().values()
    assert found.snapshot_epoch == 1  # the third write is a snapshot: the server's setting
    assert state(ApiKeys.DELETE_SHARE_GROUP_STATE)["errorCode"] == 0
    assert state(ApiKeys.READ_SHARE_GROUP_STATE, leaderEpoch=0)["errorCode"] == Errors.INVALID_REQUEST
    broker.authorizer = Refusing("kafka-cluster")
    assert state(ApiKeys.READ_SHARE_GROUP_STATE, leaderEpoch=0)["errorCode"] == Errors.CLUSTER_AUTHORIZATION_FAILED
