"""An interrupt at each place of the coordinators' work on real logs: a repeated call continues, all or nothing holds.

The places are those of `kafkalog.engine.coordinator` and of the append below it.  Each gets a fresh directory, and the
call is interrupted there.  Then another thread makes the same call again, as an interrupted caller does.  The outcome
is checked in the open store, and in the state that a kill -9 at the moment of the interrupt left.  By default the test
takes a share of the places; KAFKALOG_LONG=1 takes all of them.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import RequestError
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, sampled_of
from tests.live.oracle import FAST, copy_as_killed, in_a_thread
from tests.sampling import LONG, sampled
from tests.unit.coordinator_logs import LogStore

LIMIT = None if LONG else 12
SMALL = {"segment.index.bytes": "480"}
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID, GROUP = "biller", "g"
OURS = ("engine/coordinator/", "engine/log/unified_log.py", "engine/log/append.py", "engine/format/builder.py")
DAY_MS = 24 * 3600 * 1000


class World:
    """A store with a transaction that is open in two partitions and in a group's offsets."""

    def __init__(self, root: Path, *, version: TransactionVersion = TransactionVersion.TV_2) -> None:
        self.root = root
        self.store = LogStore(root, files=FAST, version=version, overrides=SMALL)
        self.holder = self.store.coordinator.init_producer_id(ID, 60_000)
        self.store.coordinator.add_partitions(ID, self.holder, [A, B])
        for each in (A, B):
            self.store.write(each, self.holder, b"v")
        self.place = self.store.coordinator.add_offsets(ID, self.holder, GROUP)
        self.store.offsets(self.place).commit(GROUP, {B: CommittedOffset(1)})
        self.store.offsets(self.place).commit(GROUP, {A: CommittedOffset(5)}, self.holder)

    def judged(self, store: LogStore) -> bool:
        """Whether it was committed, everywhere."""
        kinds = {bool(store.committed(each)) for each in (A, B)}
        kinds.add(store.offsets(self.place).fetch(GROUP, A) is not None)
        assert len(kinds) == 1, kinds
        assert store.offsets(self.place).pending(GROUP) == {}
        for each in (A, B):
            assert store.log(each).last_stable_offset == store.log(each).log_end_offset
        return kinds.pop()


def commit(world: World) -> None:
    world.store.coordinator.end_transaction(ID, world.holder, commit=True)


def abort(world: World) -> None:
    world.store.coordinator.end_transaction(ID, world.holder, commit=False)


def take_over(world: World) -> None:
    world.store.coordinator.init_producer_id(ID, 60_000)


def time_out(world: World) -> None:
    world.store.clock.advance(60_001)
    world.store.coordinator.abort_timed_out()


def grow(world: World) -> None:
    world.store.coordinator.add_partitions(ID, world.holder, [TopicPartition("c", 0)])


def commit_offsets(world: World) -> None:
    world.store.offsets(world.place).commit(GROUP, {A: CommittedOffset(9)}, world.holder)


def delete_group(world: World) -> None:
    with contextlib.suppress(RequestError):  # the second time it no longer exists
        world.store.offsets(world.place).delete_group(GROUP)


def expire(world: World) -> None:
    world.store.clock.advance(8 * DAY_MS)
    world.store.offsets(world.place).expire()


OPERATIONS: list[tuple[Callable[[World], None], bool | None]] = [
    (commit, True), (abort, False), (take_over, False), (time_out, False), (grow, None), (commit_offsets, None),
    (delete_group, None), (expire, None),
]  # fmt: skip


def go_on(world: World, operation: Callable[[World], None], wanted: bool | None) -> None:
    operation(world)
    if wanted is None:
        world.store.coordinator.init_producer_id(ID, 60_000)
    if operation not in (delete_group, expire):
        assert world.judged(world.store) is bool(wanted)
    check_same(world)


def check_same(world: World) -> None:
    """Compares the coordinators in memory with those loaded from the logs."""
    read = LogStore(world.root, files=FAST, overrides=SMALL)
    read.logs = world.store.logs
    read.coordinator.load(range(2))
    assert read.coordinator.list_transactions() == world.store.coordinator.list_transactions()
    ours, theirs = world.store.offsets(world.place), read.offsets(world.place)
    assert ours.fetch_all(GROUP) == theirs.fetch_all(GROUP)
    assert ours.list_groups() == theirs.list_groups()


def check_killed(world: World, scratch: Path, operation: Callable[[World], None]) -> None:
    """A copy of the directory as it is now: a start ends what is open, one way."""
    shutil.rmtree(scratch, ignore_errors=True)
    copy_as_killed(world.root, scratch)
    after = LogStore(scratch, files=FAST, overrides=SMALL)
    after.reopen()
    if operation is not delete_group and operation is not expire:
        committed = world.judged(after)
        assert operation is commit or not committed
    for log in after.logs.values():
        log.close_quietly()


def count(root: Path, operation: Callable[[World], None], kind: str) -> list[tuple[str, int, str]]:
    for number in range(2):  # lazy initialization is not a place of the operation
        world = World(root / str(number))
        with Tracer(kind) as tracer:
            operation(world)
    return tracer.places


@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize(("operation", "wanted"), OPERATIONS, ids=[each.__name__ for each, _ in OPERATIONS])
def test_an_interrupt_anywhere(base: Path, operation: Callable[[World], None], wanted: bool | None, kind: str) -> None:
    places = count(base / "count", operation, kind)
    numbers = sampled_of(places, OURS, LIMIT)
    assert len(numbers) > 10
    for number in numbers:
        root = base / str(number)
        world = World(root)
        with contextlib.suppress(Interrupted), Tracer(kind, number) as tracer:
            operation(world)
        assert tracer.fired, places[number]
        where = places[number]
        try:
            check_killed(world, base / "killed", operation)
            in_a_thread(lambda world=world: go_on(world, operation, wanted))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"interrupted at {where}")
            raise
        for log in world.store.logs.values():
            log.close_quietly()
        shutil.rmtree(root)
        gc.collect(0)


def test_an_abort_after_an_interrupted_commit(base: Path) -> None:
    """As a block whose end was interrupted: the abort holds, or the error says that the commit stood."""
    places = count(base / "count", commit, CALLS)
    for number in sampled(places, LIMIT):
        world = World(base / str(number))
        with contextlib.suppress(Interrupted), Tracer(CALLS, number):
            commit(world)
        try:
            holder: ProducerIdAndEpoch | None = world.store.coordinator.end_transaction(ID, world.holder, commit=False)
        except RequestError:
            holder = None
        assert world.judged(world.store) is (holder is None), places[number]
        for log in world.store.logs.values():
            log.close_quietly()
        shutil.rmtree(world.root)
