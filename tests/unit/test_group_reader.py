"""Readers that are members of a group: how they divide partitions, hand them over, and what they refuse."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import GroupReader, Store
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    GroupNotEmptyException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRegularExpression,
    StaleMemberEpochException,
    UnknownMemberIdException,
    UnknownTopicOrPartitionException,
    UnreleasedInstanceIdException,
)
from tests.unit.cli_kit import Run, run
from tests.unit.store_kit import as_killed, home_of

__all__ = ["run"]

LOOKS = 2_000  # polls until something must have happened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path / "data") as made:
        made.create_topic("orders", partitions=4)
        yield made


def join(store: Store, name: str = "billing", **options: Any) -> GroupReader:
    reader = store.reader(name, **{"topics": ["orders"], "group": True, **options})
    assert isinstance(reader, GroupReader)
    return reader


def settle(*readers: GroupReader, counts: list[int]) -> list[kafkalog.Record]:
    """Uses the readers until each has its number of partitions; returns what they have read."""
    found: list[kafkalog.Record] = []
    for _ in range(LOOKS):
        if [len(each.assignment) for each in readers] == counts:
            return found
        for each in readers:
            found += each.poll(10, timeout_ms=1)
    raise AssertionError([each.assignment for each in readers])


def append(store: Store, count: int) -> None:
    store.topic("orders").append_many([(b"%d" % each, b"key %d" % each) for each in range(count)])


def state(store: Store, name: str = "billing") -> str:
    return next(each.state for each in store.cursors() if each.name == name)


def test_one_reader_has_all_partitions(store: Store) -> None:
    append(store, 20)
    with join(store) as reader:
        assert reader.assignment == [TopicPartition("orders", each) for each in range(4)]
        assert len(reader.poll(timeout_ms=1000)) == 20
        assert sum(reader.commit().values()) == 20
        assert state(store) == "Stable"
    assert state(store) == "Empty"


def test_readers_divide_the_partitions_and_each_record_comes_once(store: Store) -> None:
    append(store, 200)
    with join(store) as one:
        records = one.poll(20)
        with join(store) as two:
            records += settle(one, two, counts=[2, 2])
            assert not set(one.assignment) & set(two.assignment)
            for _ in range(100):
                records += one.poll(10) + two.poll(10)
            assert len({(each.partition, each.offset) for each in records}) == len(records) == 200


def test_a_reader_that_is_closed_hands_over_at_once(store: Store) -> None:
    append(store, 8)
    with ExitStack() as stack:
        one = stack.enter_context(join(store))
        two = join(store)
        settle(one, two, counts=[2, 2])
        two.close()
        settle(one, counts=[4])
        with pytest.raises(IllegalStateException, match="closed"):
            two.poll()


def test_a_dropped_reader_leaves(store: Store) -> None:
    with join(store) as one:
        two = join(store)
        settle(one, two, counts=[2, 2])
        member = two._member
        assert member is not None
        del two
        gc.collect()
        member.run()  # the next heartbeat
        settle(one, counts=[4])


def test_more_readers_than_partitions(store: Store) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(join(store)) for _ in range(6)]
        for _ in range(LOOKS):
            counts = sorted(len(each.assignment) for each in readers)
            if counts == [0, 0, 1, 1, 1, 1]:
                break
            for each in readers:
                assert each.poll(timeout_ms=1) == []
        assert counts == [0, 0, 1, 1, 1, 1]


def test_what_was_read_is_committed_when_a_partition_goes(store: Store) -> None:
    append(store, 40)
    with join(store) as one:
        read = one.poll(1000, timeout_ms=1000)
        assert len(read) == 40
        assert one.committed() == {}
        with join(store) as two:
            assert settle(one, two, counts=[2, 2]) == []
            assert set(two.committed()) == set(two.assignment)
            assert sum(two.committed().values()) == sum(each.partition in (2, 3) for each in read)


def test_hooks(store: Store) -> None:
    told: list[tuple[str, int, list[int]]] = []

    def note(what: str) -> Any:
        return lambda reader, partitions: told.append(
            (what, len(reader.assignment), [each.partition for each in partitions])
        )

    append(store, 8)
    with join(store, on_assign=note("assign"), on_revoke=note("revoke")) as one:
        assert told == [("assign", 4, [0, 1, 2, 3])]
        one.poll(timeout_ms=100)
        with join(store) as two:
            settle(one, two, counts=[2, 2])
            assert told[1:] == [("revoke", 4, [2, 3])]
            assert two.committed() == {}  # the hook committed nothing
        settle(one, counts=[4])
        assert told[2:] == [("assign", 4, [2, 3])]


def test_a_hook_that_fails_is_called_again(store: Store) -> None:
    calls: list[int] = []

    def fail_once(reader: GroupReader, partitions: list[TopicPartition]) -> None:
        calls.append(len(partitions))
        if len(calls) == 1:
            raise ValueError("once")

    with join(store, on_revoke=fail_once) as one, join(store) as two:
        with pytest.raises(ValueError, match="once"):
            settle(one, two, counts=[2, 2])
        settle(one, two, counts=[2, 2])
        assert calls == [2, 2]


def test_range_gives_neighbouring_partitions(store: Store) -> None:
    store.create_topic("mail", partitions=2)
    options: dict[str, Any] = {"topics": ["orders", "mail"], "assignor": "range"}
    with join(store, **options) as one, join(store, **options) as two:
        settle(one, two, counts=[3, 3])
        for each in (one, two):
            orders = sorted(part.partition for part in each.assignment if part.topic == "orders")
            assert orders in ([0, 1], [2, 3])


def test_a_commit_of_a_lost_partition_is_refused(store: Store) -> None:
    append(store, 8)
    with join(store) as one:
        one.poll(timeout_ms=100)
        member = one._member
        assert member is not None
        rows = one.offsets_to_commit()
        stale = member.committing()
        with join(store) as two:
            settle(one, two, counts=[2, 2])
            offsets = home_of(store).offsets("billing", create=False)
            assert offsets is not None
            with pytest.raises(StaleMemberEpochException):
                offsets.commit("billing", rows, member=stale)
    with pytest.raises(UnknownMemberIdException):
        offsets.commit("billing", rows, member=stale._replace(generation=7))


def test_transactions_commit_as_the_member(store: Store) -> None:
    append(store, 8)
    store.create_topic("bills")
    with join(store) as reader:
        with store.transaction("biller") as txn:
            for record in reader.poll(timeout_ms=100):
                txn.append("bills", record.value)
            txn.commit_offsets(reader)
        assert sum(reader.committed().values()) == 8
        member = reader._member
        assert member is not None
        member._epoch = 99
        with pytest.raises(StaleMemberEpochException), store.transaction("biller") as txn:
            txn.commit_offsets(reader)


def test_a_cursor_with_members_is_not_changed_by_others(store: Store) -> None:
    append(store, 4)
    with store.reader("billing", topics=["orders"]) as plain:
        plain.poll()
        with join(store):
            with pytest.raises(UnknownMemberIdException):
                plain.commit()
            with pytest.raises(GroupNotEmptyException):
                store.delete_cursor("billing")
        plain.commit()
    store.delete_cursor("billing")


def test_a_group_goes_on_where_a_cursor_stopped(store: Store) -> None:
    append(store, 10)
    with store.reader("billing", topics=["orders"]) as plain:
        plain.poll(6)
        plain.commit()
    with join(store) as reader:
        assert len(reader.poll(timeout_ms=100)) == 4
        reader.commit()
    with store.reader("billing", topics=["orders"]) as plain:
        assert plain.poll() == []


def test_members_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as before:
        before.create_topic("orders", partitions=4)
        append(before, 4)
        with join(before):
            killed = as_killed(tmp_path / "data", tmp_path / "killed")
    with kafkalog.open(killed) as store:
        assert state(store) == "Stable"  # the killed reader is still a member
        with join(store) as reader:
            assert len(reader.assignment) == 4
            assert len(reader.poll(timeout_ms=100)) == 4


def test_new_partitions_and_deleted_topics(store: Store) -> None:
    with join(store) as reader:
        store.add_partitions("orders", 6)
        member = reader._member
        assert member is not None
        member.run()
        settle(reader, counts=[6])
        store.delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionException):
            _ = [reader.poll() for _ in range(LOOKS)]
        member.run()
        settle(reader, counts=[0])
        store.create_topic("orders", partitions=1)
        append(store, 3)
        member.run()
        assert len(settle(reader, counts=[1]) + reader.poll(timeout_ms=100)) == 3


def test_a_reader_that_is_not_used_leaves_and_comes_back(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        store.create_topic("orders", partitions=2)
        append(store, 6)
        with join(store, max_poll_interval_ms=1_000) as reader:
            assert len(reader.poll(3)) == 3
            member = reader._member
            assert member is not None
            clock.advance(900)
            member.run()
            assert state(store) == "Stable"
            clock.advance(1_100)
            member.run()
            assert state(store) == "Empty"
            with pytest.raises(UnknownMemberIdException):
                reader.commit()  # it is no member, but the group may have others
            assert len(reader.poll()) == 6  # it begins again where the group's last commit is
            assert state(store) == "Stable"


def test_a_loop_that_moves_is_use(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        store.create_topic("orders", partitions=1)
        append(store, 4)
        with join(store, max_poll_interval_ms=1_000) as reader:
            member = reader._member
            assert member is not None
            for _ in reader:  # all of one batch
                clock.advance(900)
                member.run()
                assert state(store) == "Stable"


def test_a_follower_is_told_of_partitions_while_it_waits(store: Store) -> None:
    with join(store) as one:
        walk = one.follow(timeout_ms=1)
        assert list(walk) == []
        with join(store) as two:
            settle(one, two, counts=[2, 2])
            assert list(two.follow(timeout_ms=1)) == []
        append(store, 8)
        assert len(list(one.follow(timeout_ms=50))) == 8


LOOPS: dict[str, Callable[[GroupReader], Iterator[kafkalog.Record]]] = {
    "for": iter,
    "records": lambda reader: reader.records(),
    "follow": lambda reader: reader.follow(timeout_ms=20),
    "poll": lambda reader: (record for _ in range(20) for record in reader.poll(10)),
    "batches": lambda reader: (
        row for batch in reader.batches(batch_rows=1, timeout_ms=20) for row in batch.to_pylist()
    ),
}
CALLS: dict[str, Callable[[GroupReader, list[TopicPartition]], object]] = {
    "commit": lambda reader, partitions: reader.commit(),
    "position": lambda reader, partitions: [reader.position(each) for each in partitions],
    "positions": lambda reader, partitions: (reader.positions(), repr(reader), reader.lag(), reader.committed()),
    "seek": lambda reader, partitions: reader.seek(partitions[0], 0),
    "rewind": lambda reader, partitions: reader.rewind(*partitions),
}


@pytest.mark.parametrize("call", [None, *CALLS])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_goes_on_while_partitions_move(store: Store, loop: str, call: str | None) -> None:
    append(store, 100)
    hooks = {} if call is None else {"on_revoke": CALLS[call], "on_assign": CALLS[call]}
    with ExitStack() as stack:
        one = stack.enter_context(join(store, **hooks))
        two: GroupReader | None = None
        read: list[Any] = []
        for count, record in enumerate(LOOPS[loop](one)):
            read.append(record)
            if count == 10:
                two = stack.enter_context(join(store))
            if two is not None:
                read += two.poll(1)
            if count == 300:  # a seek reads records again
                break
        assert two is not None
        read += settle(one, two, counts=[2, 2])
        for _ in range(LOOKS if call in (None, "commit") else 0):
            read += one.poll() + two.poll()
            if len(read) >= 100:
                break
        if call in (None, "commit"):  # the positions are committed before a partition goes
            places = [
                (each["partition"], each["offset"]) if isinstance(each, dict) else (each.partition, each.offset)
                for each in read
            ]
            assert len(places) == len(set(places)) == 100


@pytest.mark.parametrize("hook", ["on_assign", "on_revoke"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_hook_cannot_read(store: Store, loop: str, hook: str) -> None:
    append(store, 100)
    refused: list[str] = []

    def read(reader: GroupReader, partitions: list[TopicPartition]) -> None:
        with pytest.raises(IllegalStateException) as caught:
            reader.poll()
        refused.append(str(caught.value))

    with ExitStack() as stack:
        one = stack.enter_context(join(store, **{hook: read}))
        two: GroupReader | None = None
        for count, _ in enumerate(LOOPS[loop](one)):
            if count == 10:
                two = stack.enter_context(join(store))
            if two is not None:
                two.poll(1)
        assert two is not None
        settle(one, two, counts=[2, 2])
        assert refused
        assert all("cannot read from it" in each for each in refused)


def test_threads_that_join_one_after_the_other(store: Store) -> None:
    """As the help of kafkalog.group_reader shows it."""
    append(store, 400)
    found: list[tuple[int, int]] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with store.reader("billing", topics=["orders"], group=True) as reader:
                for record in reader.follow(timeout_ms=200):
                    found.append((record.partition, record.offset))
                    reader.commit()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        while len(found) < 60 * number and thread.is_alive():
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(found) == len(set(found)) == 400


def test_tasks_follow(store: Store) -> None:
    append(store, 400)
    found: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        while len(found) < 60 * number:
            await asyncio.sleep(0)
        async with join(store) as reader:
            async for record in reader.follow(timeout_ms=200):
                found.append((record.partition, record.offset))
                await reader.commit_async()

    async def main() -> None:
        await asyncio.gather(*(work(each) for each in range(4)))

    asyncio.run(main())
    assert len(found) == len(set(found)) == 400


def test_tasks(store: Store) -> None:
    async def work(reader: GroupReader, found: list[tuple[int, int]]) -> None:
        async for record in reader:
            found.append((record.partition, record.offset))
            await reader.commit_async()

    async def main() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        with join(store) as one, join(store) as two:
            settle(one, two, counts=[2, 2])
            append(store, 40)
            await asyncio.gather(work(one, found), work(two, found))
        return found

    found = asyncio.run(main())
    assert len(found) == len(set(found)) == 40
    with store.reader("billing", topics=["orders"]) as plain:
        assert plain.lag() == dict.fromkeys(plain.assignment, 0)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"cursor": None}, "cursor"),
        ({"topics": None}, "topics"),
        ({"topics": None, "partitions": ["orders-0"]}, "topics"),
        ({"assignor": "sticky"}, "assignor"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms"),
        ({"on_revoke": 7}, "on_revoke"),
        ({"group": False, "assignor": "range"}, "assignor"),
        ({"group": "yes"}, "group"),
        ({"start_offsets": {"orders-0": 1}}, "start_offsets: each partition begins at the group's committed"),
    ],
)
def test_wrong_arguments(store: Store, options: dict[str, Any], name: str) -> None:
    given: dict[str, Any] = {"cursor": "billing", "topics": ["orders"], "group": True, **options}
    with pytest.raises(IllegalArgumentException, match=name):
        store.reader(**given)
    assert store.cursors() == []


def test_a_topic_that_does_not_exist(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with join(store, topics=["orders", "later"]) as reader:
        assert "no topic 'later'" in caplog.text
        assert len(reader.assignment) == 4
        store.create_topic("later")
        member = reader._member
        assert member is not None
        member.run()
        settle(reader, counts=[5])


def test_settings_for_groups_in_a_process_wait_for_nobody(store: Store) -> None:
    settings = home_of(store).coordinators._settings
    assert settings == GroupSettings(
        offsets_retention_ms=settings.offsets_retention_ms, group_consumer_assignment_interval_ms=0
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_leaves_the_member_alone(store: Store) -> None:
    append(store, 4)
    with join(store) as reader:
        child = os.fork()
        if not child:
            try:
                with pytest.raises(IllegalStateException):
                    reader.poll()
                reader.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert state(store) == "Stable"
        assert len(reader.poll(timeout_ms=100)) == 4


def test_the_command_line_shows_members_and_refuses_a_reset(store: Store, tmp_path: Path, run: Run) -> None:
    append(store, 4)
    with join(store) as reader:
        reader.poll(timeout_ms=100)
        reader.commit()
        killed = as_killed(tmp_path / "data", tmp_path / "killed")
    shown = run("cursors", str(killed))
    assert f"member {reader.member_id} of kafkalog at /in-process: orders-0, orders-1, orders-2, orders-3" in shown.err
    told = [json.loads(line) for line in run("cursors", str(killed), "--json").out.splitlines()]
    members = next(each for each in told if each["kind"] == "group")["members"]
    assert [each["assignment"] for each in members] == [[f"orders-{each}" for each in range(4)]]
    refused = run("cursors", str(killed), "--group", "billing", "--topic", "orders", "--to-earliest", "--execute")
    assert "its member uses" in refused.err
    assert refused.code != 0


# --- patterns and static members --------------------------------------------------------------------------


def names(reader: GroupReader) -> set[str]:
    return {each.topic for each in reader.assignment}


def test_a_pattern_gives_all_topics_that_match_now_and_later(store: Store) -> None:
    for topic in ("audit-eu", "audit-us", "my-audit-eu"):
        store.create_topic(topic).append(topic.encode())
    with join(store, topics=None, pattern="audit-.*") as reader:
        found = reader.poll(timeout_ms=30_000)  # the coordinator looks for the topics after the member has joined
        assert names(reader) == {"audit-eu", "audit-us"}
        store.create_topic("audit-asia").append(b"audit-asia")
        while len(found) < 3:
            found += reader.poll(timeout_ms=10_000)
        assert {each.value for each in found} == {b"audit-eu", b"audit-us", b"audit-asia"}
        assert sum(reader.commit().values()) == 3


def test_patterns_that_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRegularExpression):
        join(store, topics=None, pattern="audit-(")
    for options, text in (
        ({"pattern": "a.*"}, "both topics and pattern"),
        ({"topics": None, "pattern": ""}, "empty"),
        ({"topics": None}, "or pass pattern="),
        ({"topics": None, "pattern": 5}, "pattern"),
        ({"group_instance_id": ""}, "empty"),
        ({"group": False, "group_instance_id": "a"}, "no member"),
        ({"group": False, "topics": None, "pattern": "a.*"}, "no member"),
    ):
        with pytest.raises(IllegalArgumentException, match=text):
            join(store, **options)


def test_a_static_member_gets_its_partitions_back(store: Store) -> None:
    append(store, 40)
    with join(store, group_instance_id="a") as other:
        mine = join(store, group_instance_id="b")
        settle(other, mine, counts=[2, 2])
        had = mine.assignment
        mine.commit()
        epoch = other._member.epoch  # type: ignore[union-attr]
        mine.close()
        other.poll()
        assert len(other.assignment) == 2  # nothing moves
        with join(store, group_instance_id="b") as again:
            settle(other, again, counts=[2, 2])
            assert again.assignment == had
            assert other._member.epoch == epoch  # type: ignore[union-attr]  # no rebalance
            with pytest.raises(UnreleasedInstanceIdException):
                join(store, group_instance_id="b")
            again.commit()
    kept = home_of(store).coordinators.offsets("billing", create=True)
    assert kept is not None
    assert len(kept.members("billing")) == 2  # until the session times out


def test_a_static_member_that_stays_away_loses_its_partitions(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        store.create_topic("orders", partitions=4)
        with join(store) as other:
            away = join(store, group_instance_id="b")
            settle(other, away, counts=[2, 2])
            away.close()
            settle(other, counts=[2])
            for _ in range(10):
                clock.advance(5_000)
                home_of(store).coordinators.timers.run_due()
                other.poll()
            settle(other, counts=[4])


def test_a_static_member_of_a_process_that_was_killed_is_replaced(store: Store, tmp_path: Path) -> None:
    with join(store, group_instance_id="b") as reader:
        killed = as_killed(tmp_path / "data", tmp_path / "killed")
        with kafkalog.open(killed) as other, join(other, group_instance_id="b") as again:
            assert again.assignment == reader.assignment
            assert len(again.assignment) == 4
