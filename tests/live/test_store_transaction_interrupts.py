"""An interrupt at each place of a store's transactions: each ends one way in all partitions and in the cursor.

Each place gets a fresh directory, and the operation is interrupted there.  The state that a kill -9 at this moment
leaves is checked.  Then another thread continues: the background check ends the open transaction, everything is
checked in the open store, and another transaction of the same id is committed.  The store is closed, opened and checked
once more.  By default the test takes a share of the places; KAFKALOG_LONG=1 takes all of them.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.coordinator import partition_logs
from kafkalog.engine.files import ManualClock
from kafkalog.errors import InvalidTxnStateException, KafkalogError
from kafkalog.store import Store
from kafkalog.transaction import StoreTransaction
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, at_each_place
from tests.live.oracle import FAST, in_a_thread
from tests.sampling import LONG
from tests.unit.store_kit import NOW_MS, as_killed, committed, home_of, open_store, position, settled

LIMIT = None if LONG else 10
ID, CURSOR = "biller", "c"
PARTITIONS = ("a-0", "b-0", "b-1")
OURS = (
    "transaction.py", "_face/transactional_ids.py", "_face/coordinators.py", "_face/store_home.py",
    "_face/appends.py", "engine/coordinator/", "engine/log/append.py",
)  # fmt: skip
SMALL = {"segment.index.bytes": "480"}


@pytest.fixture(autouse=True)
def _some_sync_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_logs, "FEW_SYNCS", 4)  # the partitions of `fill`


class GivenUpError(Exception):
    """Leaves a block, which aborts."""


class World:
    """A store with a committed transaction, number 0, and one that is open, by hand, number 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(NOW_MS)
        self.store = open_store(root, files=FAST, clock=self.clock, durability="fsync")
        self.store.create_topic("a", config=SMALL)
        self.store.create_topic("b", 2, config=SMALL)
        with self.store.transaction(ID) as txn:
            fill(txn, 0)
        self.open = self.store.transaction(ID)
        self.open.begin()

    def judged(self, store: Store) -> list[int]:
        """The numbers of what was committed, everywhere."""
        seen = [[int(value) for value in committed(store, each)] for each in PARTITIONS]
        assert seen[0] == seen[1] == seen[2], seen
        assert position(store, CURSOR, "a-0") == seen[0][-1], seen
        assert settled(store, *PARTITIONS)
        return seen[0]


def fill(txn: StoreTransaction, number: int) -> None:
    txn.append("a", b"%d" % number)
    txn.commit_offsets({"a-0": number}, cursor=CURSOR)
    txn.append_many("b", [b"%d" % number], partition=0)
    txn.append("b", b"%d" % number, partition=1)


def block(world: World) -> None:
    """Fences what is open."""
    with world.store.transaction(ID) as txn:
        fill(txn, 2)


def given_up(world: World) -> None:
    with contextlib.suppress(GivenUpError), world.store.transaction(ID) as txn:
        fill(txn, 2)
        raise GivenUpError


def commit(world: World) -> None:
    world.open.commit()


def abort(world: World) -> None:
    world.open.abort()


def time_out(world: World) -> None:
    world.clock.advance(60_001)
    home_of(world.store).end_overdue()


def abort_by_name(world: World) -> None:
    world.store.abort_transaction(ID)


def close(world: World) -> None:
    world.store.close()


# The transactions that may be committed after an interrupt, apart from number 0.
OPERATIONS: list[tuple[Callable[[World], None], set[int]]] = [
    (block, {2}), (given_up, set()), (commit, {1}), (abort, set()), (time_out, set()), (abort_by_name, set()),
    (close, set()),
]  # fmt: skip
BY_HAND = (commit, abort)


def made(root: Path, operation: Callable[[World], None]) -> World:
    world = World(root)
    if operation not in (block, given_up):
        fill(world.open, 1)
    return world


def go_on(world: World, operation: Callable[[World], None], may: set[int]) -> None:
    if operation is close:
        world.store.close()
    else:
        if operation in BY_HAND:
            with contextlib.suppress(InvalidTxnStateException):  # an abort may have ended already
                if world.open.active:
                    operation(world)
            assert not world.open.active
        elif operation not in (block, given_up):
            operation(world)
        home_of(world.store).end_overdue()
        seen = world.judged(world.store)
        assert set(seen) <= {0, *may}
        assert operation is not commit or 1 in seen
        with world.store.transaction(ID) as txn:
            fill(txn, 7)
        assert world.judged(world.store) == [*seen, 7]
        world.store.close()
    with open_store(world.root, files=FAST) as again:
        assert set(world.judged(again)) <= {0, 7, *may}


def check_killed(world: World, scratch: Path, may: set[int]) -> None:
    """A copy of the directory as it is now: a start ends what is open, one way."""
    with open_store(as_killed(world.root, scratch), files=FAST) as after:
        assert set(world.judged(after)) <= {0, *may}


@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize(("operation", "may"), OPERATIONS, ids=[each.__name__ for each, _ in OPERATIONS])
def test_an_interrupt_anywhere(
    base: Path, operation: Callable[[World], None], may: set[int], kind: str, count: Callable[[str, int], None]
) -> None:
    for number in range(2):  # lazy initialization is not a place of the operation
        world = made(base / f"count{number}", operation)
        with Tracer(kind) as counting:
            operation(world)
        world.store.close()

    def once(root: Path, tracer: Tracer) -> None:
        world = made(root, operation)
        with contextlib.suppress(Interrupted), tracer:
            operation(world)
        assert tracer.fired
        check_killed(world, root.with_suffix(".killed"), may)
        in_a_thread(lambda: go_on(world, operation, may))
        gc.collect(0)

    tried = at_each_place(base, kind, counting.places, once, ours=OURS, limit=LIMIT, at_least=10)
    count("interrupts of store transactions", tried)


@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_an_abort_after_an_interrupted_commit(base: Path, kind: str) -> None:
    """By hand: the abort holds, or the error says that the commit stands."""
    world = made(base / "count", commit)
    with Tracer(kind) as counting:
        commit(world)
    world.store.close()

    def once(root: Path, tracer: Tracer) -> None:
        world = made(root, commit)
        with contextlib.suppress(Interrupted), tracer:
            commit(world)
        stood = False
        if world.open.active:
            try:
                world.open.abort()
            except InvalidTxnStateException:
                stood = True
        else:
            stood = True
        assert (1 in world.judged(world.store)) is stood
        world.store.close()

    at_each_place(base, kind, counting.places, once, ours=OURS, limit=LIMIT, at_least=10)


@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_an_interrupt_that_is_caught_inside(base: Path, kind: str) -> None:
    """A block that continues after an interrupt of one of its calls: it commits everything, or is refused."""

    def interrupted(world: World, tracer: Tracer) -> None:
        with world.store.transaction(ID) as txn:
            with contextlib.suppress(Interrupted), tracer:
                fill(txn, 2)
            done = {str(place) for place, part in txn._parts.items() if part.sequence() > 0}
            for each in sorted(set(PARTITIONS) - done):  # partitions without a record yet
                topic, _, number = each.partition("-")
                txn.append(topic, b"2", partition=int(number))
            txn.commit_offsets({"a-0": 2}, cursor=CURSOR)

    world = made(base / "count", block)
    counting = Tracer(kind)
    interrupted(world, counting)
    world.store.close()

    def once(root: Path, tracer: Tracer) -> None:
        world = made(root, block)
        try:
            interrupted(world, tracer)
        except KafkalogError:
            assert world.judged(world.store) == [0]
        else:
            assert world.judged(world.store) == [0, 2]
        world.store.close()

    at_each_place(base, kind, counting.places, once, ours=OURS, limit=LIMIT, at_least=10)
