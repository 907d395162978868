"""`store.queue`: taking, ending, waiting, options, errors; over a store with a manual clock."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.queue_group import IDLE_MS
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
from kafkalog.engine.coordinator.share_partition import SharePartition
from kafkalog.engine.files import ManualClock
from kafkalog.errors import (
    GroupIdNotFoundException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordStateException,
    LogReadOnlyException,
    TimeoutException,
    UnknownTopicOrPartitionException,
)
from kafkalog.queue import Queue, QueueRecord

LOCK_MS = 30_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        store.create_topic("outbox")
        yield store


def fill(store: kafkalog.Store, count: int, topic: str = "outbox", partition: int = 0) -> None:
    store.topic(topic).append_many([b"%d" % each for each in range(count)], partition=partition)


def values(records: list[QueueRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def counts(records: list[QueueRecord]) -> list[tuple[int, int]]:
    return [(record.offset, record.delivery_count) for record in records]


def run_timers(store: kafkalog.Store) -> None:
    store._home.coordinators.timers.run_due()


def test_takes_exactly_what_was_asked_for(store: kafkalog.Store) -> None:
    fill(store, 10)
    with store.queue("mail", topics=["outbox"]) as queue:
        assert [len(queue.take(4)) for _ in range(4)] == [4, 4, 2, 0]


def test_acknowledged_records_do_not_come_again(store: kafkalog.Store) -> None:
    fill(store, 10)
    with store.queue("mail", topics=["outbox"]) as queue:
        taken = queue.take()
        queue.ack(taken[0])
        queue.ack(taken[3:6])
    with store.queue("mail", topics=["outbox"]) as queue:
        assert counts(queue.take()) == [(1, 2), (2, 2), (6, 2), (7, 2), (8, 2), (9, 2)]


def test_without_records_everything_is_ended(store: kafkalog.Store) -> None:
    fill(store, 5)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        queue.take(2)
        theirs = other.take(1)
        queue.take(1)
        queue.ack()
        other.ack(theirs)  # was not ended by the other object
        assert counts(queue.take()) == [(4, 1)]


def test_the_position_survives(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("outbox")
        fill(store, 3)
        with store.queue("mail", topics=["outbox"]) as queue:
            queue.take_one().ack()
    with kafkalog.open(tmp_path) as store, store.queue("mail", topics=["outbox"]) as queue:
        assert counts(queue.take()) == [(1, 1), (2, 1)]


def test_a_lock_ends(store: kafkalog.Store, clock: ManualClock) -> None:
    fill(store, 2)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        kept, lost = queue.take()
        clock.advance(LOCK_MS - 1)
        kept.renew()
        run_timers(store)
        assert other.take() == []
        clock.advance(1)
        run_timers(store)
        assert counts(other.take()) == [(1, 2)]
        with pytest.raises(
            InvalidRecordStateException, match="outbox-0: this queue does not have the records at 1 any"
        ):
            queue.ack([kept, lost])  # the other one is acknowledged
        other.release()
        assert counts(queue.take()) == [(1, 3)]


def test_everything_is_ended_only_if_it_is_still_here(store: kafkalog.Store, clock: ManualClock) -> None:
    fill(store, 5)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        one, two, three = queue.take(3)
        queue.ack(one)
        clock.advance(LOCK_MS)
        run_timers(store)
        assert counts(other.take(1)) == [(1, 2)]
        with pytest.raises(InvalidRecordStateException, match="2 of the 2 records"):
            queue.ack()
        with pytest.raises(InvalidRecordStateException):
            queue.ack([two, three])
        queue.ack()  # it was told
        assert counts(queue.take(2)) == [(2, 2), (3, 1)]
        queue.renew()
        queue.ack()
        other.ack()
        assert counts(queue.take()) == [(4, 1)]


@pytest.mark.parametrize("topic", ["", "a/b", "__own", "outbox", "x" * 250])
def test_dead_letters_that_nobody_could_write(store: kafkalog.Store, topic: str) -> None:
    with pytest.raises(IllegalArgumentException, match="dead_letters: "):
        store.queue("mail", topics=["outbox"], dead_letters=topic)


def test_an_internal_topic_that_is_not_there(store: kafkalog.Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionException, match="__consumer_offsets"):
        store.queue("mail", topics=["outbox", "__consumer_offsets"])
    with store.queue("mail", topics=["outbox"]) as queue:
        assert queue.take() == []


def test_dead_letters(store: kafkalog.Store) -> None:
    fill(store, 3)
    with store.queue("mail", topics=["outbox"], dead_letters="dead", max_deliveries=2) as queue:
        first, *rest = queue.take()
        first.reject()
        queue.release(rest)
        again = queue.take()
        assert counts(again) == [(1, 2), (2, 2)]
        queue.release(again)
        assert queue.take() == []
    letters = list(store.topic("dead"))
    assert [(each.value, dict(each.headers)) for each in letters] == [
        (
            b"%d" % offset,
            {
                "__dlq.errors.topic": b"outbox",
                "__dlq.errors.partition": b"0",
                "__dlq.errors.offset": b"%d" % offset,
                "__dlq.errors.group": b"mail",
                "__dlq.errors.delivery.count": b"%d" % times,
                "__dlq.errors.message": cause,
            },
        )
        for offset, times, cause in (
            (0, 1, b"Offset rejected by client."),
            (1, 2, b"Offset delivery count exceeded the threshold."),
            (2, 2, b"Offset delivery count exceeded the threshold."),
        )
    ]


def test_without_dead_letters_rejected_records_are_dropped(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue:
        queue.take_one().reject()
        assert queue.take() == []
    assert store.topics() == ["outbox"]


def test_a_record_is_a_context(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue:
        with pytest.raises(ZeroDivisionError), queue.take_one():
            raise ZeroDivisionError
        with queue.take_one() as record:
            assert record.delivery_count == 2
        with pytest.raises(TimeoutException, match="no record came to <Queue 'mail' of outbox, open> within 0 ms"):
            queue.take_one(timeout_ms=0)


def test_iteration_acknowledges_the_record_before(store: kafkalog.Store) -> None:
    fill(store, 4)
    with store.queue("mail", topics=["outbox"]) as queue:
        for record in queue:
            if record.offset == 1:
                record.release()
            if record.offset == 3:
                break
    with store.queue("mail", topics=["outbox"]) as queue:
        # Offset 1 came again before 2; 3 was not ended.
        assert [record.offset for record in queue.take()] == [3]


def test_waiting_ends_with_an_append(store: kafkalog.Store) -> None:
    with store.queue("mail", topics=["outbox"]) as queue:
        worker = threading.Timer(0.05, lambda: fill(store, 1))
        worker.start()
        assert values(queue.take(timeout_ms=20_000)) == [b"0"]
        worker.join()


def test_waiting_ends_with_a_release(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        record = other.take_one()
        worker = threading.Timer(0.05, record.release)
        worker.start()
        assert counts(queue.take(timeout_ms=20_000)) == [(0, 2)]
        worker.join()


def test_async_workers_share(store: kafkalog.Store) -> None:
    seen: list[int] = []

    async def work(queue: Queue) -> None:
        while len(seen) < 40:
            for record in await queue.take_async(3, timeout_ms=50):
                async with record:
                    seen.append(record.offset)
                    await asyncio.sleep(0)

    async def main() -> None:
        with store.queue("mail", topics=["outbox"]) as queue:
            workers = [asyncio.create_task(work(queue)) for _ in range(4)]
            await asyncio.sleep(0.01)
            fill(store, 40)
            await asyncio.gather(*workers)

    asyncio.run(main())
    assert sorted(seen) == list(range(40))


def test_async_iteration(store: kafkalog.Store) -> None:
    async def main() -> list[int]:
        fill(store, 3)
        found = []
        with store.queue("mail", topics=["outbox"]) as queue:
            async for record in queue:
                found.append(record.offset)
                if len(found) == 3:
                    await queue.ack_async(record)
                    break
        return found

    assert asyncio.run(main()) == [0, 1, 2]
    with store.queue("mail", topics=["outbox"]) as queue:
        assert queue.take() == []


def test_many_topics_and_partitions(store: kafkalog.Store) -> None:
    store.create_topic("more", partitions=3)
    fill(store, 2)
    for number in range(3):
        fill(store, 2, "more", number)
    with store.queue("mail", topics=["outbox", "more"]) as queue:
        taken = queue.take()
        assert sorted((record.topic, record.partition, record.offset) for record in taken) == [
            *(("more", number, offset) for number in range(3) for offset in range(2)),
            *(("outbox", 0, offset) for offset in range(2)),
        ]
        queue.ack(taken)
        store.add_partitions("more", 4)
        fill(store, 1, "more", 3)
        assert values(queue.take()) == [b"0"]


def test_start_at_the_latest(store: kafkalog.Store) -> None:
    fill(store, 3)
    with store.queue("mail", topics=["outbox"], start="latest") as queue:
        assert queue.take() == []
        fill(store, 1)
        assert counts(queue.take()) == [(3, 1)]


def test_transactions(store: kafkalog.Store) -> None:
    with store.transaction("t") as transaction:
        transaction.append("outbox", b"committed")
    transaction = store.transaction("t")
    transaction.begin()
    transaction.append("outbox", b"aborted")
    transaction.abort()
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue:
        assert values(queue.take()) == [b"committed", b"0"]
        queue.ack()
        assert queue.take() == []
    with store.queue("all", topics=["outbox"], isolation="read_uncommitted") as queue:
        assert values(queue.take()) == [b"committed", b"aborted", b"0"]


def test_deleted_records_are_skipped(store: kafkalog.Store) -> None:
    fill(store, 5)
    with store.queue("mail", topics=["outbox"]) as queue:
        held = queue.take(2)
        store.topic("outbox").partition(0).delete_records(4)
        assert counts(queue.take()) == [(4, 1)]
        queue.release(held)
        assert queue.take() == []


def test_the_group_is_listed(store: kafkalog.Store) -> None:
    def groups() -> list[tuple[str, str, str]]:
        found = store._home.coordinators.groups.list_groups(RequestContext(), {"statesFilter": [], "typesFilter": []})
        return [(each["groupId"], each["groupType"], each["groupState"]) for each in found["groups"]]

    with store.queue("mail", topics=["outbox"]), store.queue("mail", topics=["outbox"]):
        assert groups() == [("mail", "share", "Stable")]
    assert groups() == [("mail", "share", "Empty")]


def test_a_queue_that_nobody_uses_leaves_the_group(store: kafkalog.Store, clock: ManualClock) -> None:
    def members() -> int:
        (group,) = store._home.coordinators.groups.share_group_describe(RequestContext(), ["mail"])
        return len(group["members"])

    def later(ms: int) -> None:
        for _ in range(ms // 5_000):
            clock.advance(5_000)
            run_timers(store)

    fill(store, 3)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        later(IDLE_MS)
        assert members() == 1
        later(10_000)
        assert members() == 0
        (one,) = queue.take(1)
        assert members() == 1
        for _ in range(8):
            later(IDLE_MS - 40_000)
            one.renew()  # any call of any of the objects is use
        assert members() == 1
        later(IDLE_MS + 10_000)
        assert members() == 0
        assert counts(other.take()) == [(0, 2), (1, 1), (2, 1)]
        other.ack()
        assert members() == 1
        later(IDLE_MS + 10_000)
        assert members() == 0
    assert members() == 0


def test_a_record_is_acknowledged_after_the_queue_has_left(tmp_path: Path, clock: ManualClock) -> None:
    with kafkalog.open(tmp_path / "data", clock=clock) as store:
        store.create_topic("outbox")
        fill(store, 2)
        with store.queue("mail", topics=["outbox"], lock_ms=300_000) as queue:
            one, two = queue.take()
            for _ in range(20):
                clock.advance(5_000)
                run_timers(store)
            assert store._home.coordinators.served.queues["mail"].is_away
            one.ack()
            two.release()
            assert counts(queue.take()) == [(1, 2)]


def test_a_member_that_was_killed_is_removed(tmp_path: Path) -> None:
    code = (
        "import kafkalog, os, sys\n"
        "store = kafkalog.open(sys.argv[1])\n"
        "store.create_topic('outbox').append_many([b'one', b'two'])\n"
        "queue = store.queue('mail', topics=['outbox'])\n"
        "one, two = queue.take()\n"
        "one.ack()\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")]).returncode == 9
    with kafkalog.open(tmp_path / "data") as store, store.queue("mail", topics=["outbox"]) as queue:
        assert counts(queue.take()) == [(1, 1)]
        group = store._home.coordinators.served.queues["mail"]
        described = store._home.coordinators.groups.share_group_describe(RequestContext(), ["mail"])
        assert [each["memberId"] for each in described[0]["members"]] == [group._member]


def test_wrong_arguments(store: kafkalog.Store) -> None:
    wrong: Any
    for wrong in ({"topics": "outbox"}, {"topics": []}, {"topics": [b"outbox"]}, {"topics": 5}):
        with pytest.raises(IllegalArgumentException):
            store.queue("mail", **wrong)
    more: Any
    for more in ({"lock_ms": 0}, {"lock_ms": 1.5}, {"max_deliveries": 0}, {"max_deliveries": 40_000}, {"start": 5}):
        with pytest.raises(IllegalArgumentException):
            store.queue("mail", topics=["outbox"], **more)
    with pytest.raises(IllegalArgumentException):
        store.queue("mail", topics=["outbox"], isolation="none")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionException):
        store.queue("mail", topics=["nothing"])
    with pytest.raises(TypeError, match="topic"):
        store.queue("mail", topic="outbox")  # type: ignore[call-arg]
    with store.queue("mail", topics=["outbox"]) as queue:
        for count in (0, -1, 1.0, "1"):
            with pytest.raises(IllegalArgumentException):
                queue.take(count)  # type: ignore[arg-type]
        for records in (5, [5], "ab"):
            with pytest.raises(IllegalArgumentException):
                queue.ack(records)  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException, match="max_deliveries"):
            store.queue("mail", topics=["outbox"], max_deliveries=3)


def test_records_of_another_object_are_refused(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue, store.queue("mail", topics=["outbox"]) as other:
        record = queue.take_one()
        with pytest.raises(IllegalArgumentException, match="this queue object has returned"):
            other.ack(record)
        record.ack()
        with pytest.raises(InvalidRecordStateException):
            record.ack()


def test_closed(store: kafkalog.Store) -> None:
    queue = store.queue("mail", topics=["outbox"])
    queue.close()
    queue.close()
    assert queue.closed
    assert repr(queue) == "<Queue 'mail' of outbox, closed>"
    with pytest.raises(IllegalStateException, match="closed"):
        queue.take()
    with pytest.raises(IllegalStateException, match="closed"):
        queue.ack()


def test_a_closed_store_ends_the_wait(tmp_path: Path) -> None:
    store = kafkalog.open(tmp_path)
    store.create_topic("outbox")
    queue = store.queue("mail", topics=["outbox"])
    closer = threading.Timer(0.1, store.close)
    closer.start()
    with pytest.raises(IllegalStateException, match="closed"):
        queue.take(timeout_ms=None)
    closer.join()
    queue.close()


def test_a_cursor_has_the_name(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.reader("mail", topics=["outbox"]) as reader:
        reader.poll()
        reader.commit()
    with pytest.raises(GroupIdNotFoundException):
        store.queue("mail", topics=["outbox"])


@pytest.mark.parametrize("group", [False, True])
def test_a_queue_has_the_name(store: kafkalog.Store, group: bool) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]):
        pass
    with pytest.raises(GroupIdNotFoundException, match="'mail' is the name of a queue"):
        store.reader("mail", topics=["outbox"], group=group)
    with store.reader("other", topics=["outbox"], group=group):
        pass


def test_read_only(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("outbox")
    with kafkalog.open(tmp_path, read_only=True) as store, pytest.raises(LogReadOnlyException):
        store.queue("mail", topics=["outbox"])


def test_shown(store: kafkalog.Store) -> None:
    fill(store, 1)
    with store.queue("mail", topics=["outbox"]) as queue:
        record = queue.take_one()
        assert repr(record) == "<QueueRecord outbox-0@0>"
        assert (record.key, record.headers, record.timestamp) == (None, (), record.record.timestamp)
        record.release()
        assert repr(queue.take_one()) == "<QueueRecord outbox-0@0, delivery 2>"
        assert (queue.name, queue.topics) == ("mail", ["outbox"])


def test_an_interrupted_take_is_forgotten(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    with store.queue("mail", topics=["outbox"]) as queue:
        queue.ack(queue.take(1))
        with monkeypatch.context() as patched:
            patched.setattr(SharePartition, "new_deadline_ms", interrupt)
            with pytest.raises(KeyboardInterrupt):
                queue.take(1)
        # The partition was read again from what was written.
        assert counts(queue.take()) == [(1, 1), (2, 1)]


def test_an_interrupted_acknowledgement_is_finished(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 3)
    with store.queue("mail", topics=["outbox"]) as queue:
        first, second, third = queue.take()
        with monkeypatch.context() as patched:
            patched.setattr(ShareCoordinator, "write_partition", interrupt)
            with pytest.raises(KeyboardInterrupt):
                first.ack()
        second.ack()  # writes both
        third.release()
        assert counts(queue.take()) == [(2, 2)]
    with store.queue("mail", topics=["outbox"]) as queue:
        assert counts(queue.take()) == [(2, 3)]


def interrupt(*args: object, **named: object) -> None:
    raise KeyboardInterrupt
