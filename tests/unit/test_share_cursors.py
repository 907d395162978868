"""Share groups in the command line's reading of cursors, and its changes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.errors import IllegalStateException
from kafkalog.toolbox.cursor_changes import Aim, carry_out, plan_deletion, plan_offset_deletion, plan_reset
from kafkalog.toolbox.cursors import CursorLook
from kafkalog.toolbox.share_cursors import _check

CONTEXT = RequestContext("client", "/127.0.0.1", 1)
FIRST = kafkalog.TopicPartition("outbox", 0)


def heartbeat(store: kafkalog.Store, epoch: int, *topics: str) -> None:
    request = {
        "groupId": "mail", "memberId": "m", "memberEpoch": epoch, "rackId": None,
        "subscribedTopicNames": list(topics) or None,
    }  # fmt: skip
    assert store._home.coordinators.groups.share_group_heartbeat(CONTEXT, request)["errorCode"] == 0


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store whose share group `mail` knows two partitions, and has taken nothing."""
    with kafkalog.open(tmp_path / "shop") as store:
        outbox = store.create_topic("outbox", partitions=2)
        for partition in range(2):
            outbox.append_many([b"record"] * 10, partition=partition)
        heartbeat(store, 0, "outbox")
        heartbeat(store, -1)
    return str(tmp_path / "shop")


def positions(look: CursorLook) -> dict[kafkalog.TopicPartition, tuple[int | None, int | None]]:
    cursors = look.must("mail").cursors
    return {each.partition: (each.committed and each.committed.offset, each.lag) for each in cursors}


def test_a_share_group_has_no_position_before_it_takes_records(place: str) -> None:
    look = CursorLook([place])
    group = look.must("mail")
    assert (group.is_share, group.is_a_brokers, group.listed.state) == (True, False, "Empty")
    assert positions(look) == {FIRST: (None, None), FIRST._replace(partition=1): (None, None)}
    assert not look.findings


def test_start_offsets_are_set(place: str) -> None:
    look = CursorLook([place])
    done: list[str] = []
    carry_out(look, plan_reset(look, ["mail"], Aim("to-offset", 4), [FIRST]), done=done.append)
    assert done == ["mail"]
    after = CursorLook([place])
    assert positions(after)[FIRST] == (4, 6)
    carry_out(after, plan_reset(after, ["mail"], Aim("shift-by", 2), None))
    assert positions(CursorLook([place]))[FIRST] == (6, 4)


def test_records_that_are_done_are_not_in_the_lag(place: str) -> None:
    look = CursorLook([place])
    carry_out(look, plan_reset(look, ["mail"], Aim("to-earliest"), [FIRST]))
    with kafkalog.open(place) as store:
        batch = {"firstOffset": 2, "lastOffset": 4, "deliveryState": 2, "deliveryCount": 1}
        partition = {
            "partition": 0, "stateEpoch": 9, "leaderEpoch": 0, "startOffset": 0, "deliveryCompleteCount": 3,
            "stateBatches": [batch],
        }  # fmt: skip
        topic_id = store._home.coordinators.topics.topic_id("outbox")
        request = {"groupId": "mail", "topics": [{"topicId": topic_id, "partitions": [partition]}]}
        store._home.coordinators.share_coordinator.write_state(request)
    assert positions(CursorLook([place]))[FIRST] == (0, 7)


def test_offsets_are_deleted_by_topic(place: str) -> None:
    look = CursorLook([place])
    plan = plan_offset_deletion(look, "mail", [FIRST])
    assert [each.note for each in plan.changes] == [None, "share groups forget all partitions of a topic together"]
    carry_out(look, plan)
    assert positions(CursorLook([place])) == {}


def test_a_share_group_is_deleted(place: str) -> None:
    look = CursorLook([place])
    carry_out(look, plan_deletion(look, ["mail"]))
    assert "mail" not in CursorLook([place]).groups


def test_members_refuse_a_change_unless_they_are_gone(place: str) -> None:
    with kafkalog.open(place) as store:
        heartbeat(store, 0, "outbox")
    look = CursorLook([place])
    assert list(plan_reset(look, ["mail"], Aim("to-latest"), [FIRST]).refused) == ["mail"]
    plan = plan_reset(look, ["mail"], Aim("to-latest"), [FIRST], members_gone=True)
    carry_out(look, plan, members_gone=True)
    after = CursorLook([place])
    assert (after.must("mail").members, positions(after)[FIRST]) == ([], (10, 0))


def test_another_error_of_the_coordinator_is_told() -> None:
    with pytest.raises(IllegalStateException, match="UNKNOWN_TOPIC_OR_PARTITION"):
        _check("mail", {"errorCode": 3, "errorMessage": "why"})


def test_a_store_lists_queues_with_their_start_offsets(tmp_path: Path) -> None:
    """An open store, one that only reads, and the command line say the same."""

    def listed(store: kafkalog.Store) -> list[tuple[str, str, str, list[tuple[int, int, int | None, int | None]]]]:
        return [
            (
                each.name, each.type, each.state,
                [(part.partition.partition, part.committed.offset, part.end, part.lag) for part in each.partitions],
            )
            for each in store.cursors()
        ]  # fmt: skip

    root = tmp_path / "shop"
    with kafkalog.open(root) as store:
        outbox = store.create_topic("outbox", partitions=2)
        outbox.append_many([b"record"] * 10, partition=0)
        with store.reader("billing", topics=["outbox"]) as reader:
            reader.poll(3)
            reader.commit()
        with store.queue("mail", topics=["outbox"], start="earliest") as queue:
            assert listed(store)[1] == ("mail", "Share", "Stable", [])  # nothing was taken yet
            records = queue.take(6)
            queue.ack([records[0], records[1], records[4]])
            in_use = listed(store)[1]
        first, second = listed(store)
        assert first[:3] == ("billing", "Classic", "Empty")
        assert second[:3] == ("mail", "Share", "Empty")
        assert second[3] == [(0, 2, 10, 7)]  # 3 of 10 records are done, and one of them is after the start
        assert in_use == ("mail", "Share", "Stable", [(0, 0, 10, 7)])  # the start moves with the next write
        with kafkalog.open(root, read_only=True) as view:
            assert listed(view) == [first, second]
    cursors = CursorLook([str(root)]).must("mail").cursors
    shown = [
        (each.partition.partition, each.committed.offset, each.end, each.lag) for each in cursors if each.committed
    ]
    assert shown == second[3]
