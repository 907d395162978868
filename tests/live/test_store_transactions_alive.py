"""Transactions of a store among threads, signal handlers, forks and a concurrent close.

Every transaction carries a number. It is committed in all partitions and in its worker's cursor, or nowhere, and
acknowledged ones exist.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkalog.errors import IllegalStateException, ProducerFencedException
from kafkalog.store import Store
from tests.live.crew import HANG_SECONDS, SECONDS, Crew
from tests.live.oracle import FAST
from tests.unit.store_kit import as_killed, committed, home_of, open_store, position, settled

Count = Callable[[str, int], None]
PARTITIONS = ("a-0", "a-1", "b-0", "c-0")
SMALL = {"segment.index.bytes": "4800", "internal.segment.bytes": "40000"}

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def store(base: Path) -> Iterator[Store]:
    with open_store(base / "data", files=FAST) as opened:
        for topic, partitions in (("a", 2), ("b", 1), ("c", 1), ("in", 1)):
            opened.create_topic(topic, partitions, config=SMALL)
        yield opened


class Worker:
    """Whole transactions under one id; `who` tells its records from those of others under the same id."""

    def __init__(self, store: Store, name: str, who: int) -> None:
        self.store = store
        self.name = name
        self.who = who
        self.number = 0
        self.acknowledged: list[int] = []
        self.attempted: list[int] = []  # their outcome may be unknown
        self.fenced = 0

    @property
    def cursor(self) -> str:
        return f"cursor{self.who}"

    def value(self, number: int) -> bytes:
        return b"%d/%d" % (self.who, number)

    def turn(self) -> None:
        self.number += 1
        number, value = self.number, self.value(self.number)
        try:
            with contextlib.suppress(ZeroDivisionError), self.store.transaction(self.name) as txn:
                txn.append("a", value, partition=0)
                txn.append_many("b", [value])
                txn.append("a", value, partition=1)
                txn.commit_offsets({"in-0": number}, cursor=self.cursor)
                txn.append("c", value)
                if number % 5 == 0:
                    raise ZeroDivisionError
                self.attempted.append(number)
        except ProducerFencedException:
            self.fenced += 1
            if self.attempted and self.attempted[-1] == number:
                self.attempted.pop()  # it was aborted, and we were told
            return
        if number % 5:
            self.acknowledged.append(number)


def judge(store: Store, workers: list[Worker]) -> None:
    assert settled(store, *PARTITIONS)
    found = {each: committed(store, each) for each in PARTITIONS}
    for worker in workers:
        mine = [
            [int(value.split(b"/")[1]) for value in found[each] if value.startswith(b"%d/" % worker.who)]
            for each in PARTITIONS
        ]
        assert all(each == mine[0] for each in mine), (worker.who, [each[-5:] for each in mine])
        assert mine[0] == sorted(set(mine[0]))
        assert set(worker.acknowledged) <= set(mine[0]) <= set(worker.attempted)
        assert (position(store, worker.cursor, "in-0") or 0) == (mine[0][-1] if mine[0] else 0)


def reopened(store: Store, path: Path, workers: list[Worker]) -> None:
    store.close()
    with open_store(path, files=FAST) as again:
        judge(again, workers)
        with again.transaction(workers[0].name) as txn:
            txn.append("a", b"0/0", partition=0)


def test_eight_workers_of_their_own_ids(store: Store, base: Path, count: Count) -> None:
    workers = [Worker(store, f"worker{who}", who) for who in range(1, 9)]
    crew = Crew()
    for worker in workers:
        crew.add("transact", worker.turn)
    crew.add("look", lambda: look_after(store))
    crew.run(SECONDS)
    assert not sum(worker.fenced for worker in workers)
    assert min(len(worker.acknowledged) for worker in workers) > 2
    judge(store, workers)
    reopened(store, base / "data", workers)
    count("store transactions", sum(len(worker.acknowledged) for worker in workers))


def look_after(store: Store) -> None:
    """Does the work of the background thread."""
    home_of(store).end_overdue()
    home_of(store).forget_expired()
    store.transactions()
    time.sleep(0.005)


def test_two_workers_of_one_id_fence_each_other(store: Store, base: Path, count: Count) -> None:
    workers = [Worker(store, "one", who) for who in (1, 2)] + [Worker(store, "other", 3)]
    crew = Crew()
    for worker in workers:
        crew.add("transact", worker.turn)
    crew.add("look", lambda: look_after(store))
    crew.run(SECONDS)
    home_of(store).end_overdue()
    assert workers[0].fenced + workers[1].fenced > 0
    assert not workers[2].fenced
    judge(store, workers)
    reopened(store, base / "data", workers)
    count("store transactions that were fenced", workers[0].fenced + workers[1].fenced)


def test_partitions_move_meanwhile(base: Path, count: Count) -> None:
    disks = [base / "one", base / "two"]
    with open_store(disks, files=FAST) as store:
        for topic, partitions in (("a", 2), ("b", 1), ("c", 1), ("in", 1)):
            store.create_topic(topic, partitions, config=SMALL)
        workers = [Worker(store, f"worker{who}", who) for who in (1, 2)]
        for worker in workers:
            worker.turn()
        rng = random.Random(4)
        moved = 0

        def move() -> None:
            nonlocal moved
            logs = [log for log in store.manager.all_logs() if not log.is_future]
            log = rng.choice(logs)
            store.manager.move(log.topic_partition, str(rng.choice(disks)))
            moved += 1

        crew = Crew()
        for worker in workers:
            crew.add("transact", worker.turn)
        crew.add("move", move)
        crew.run(SECONDS)
        judge(store, workers)
        assert min(len(worker.acknowledged) for worker in workers) > 2
        assert moved > 2
    with open_store(disks, files=FAST) as again:
        judge(again, workers)
    count("moves beside store transactions", moved)


def test_topics_come_and_go_meanwhile(store: Store, base: Path) -> None:
    """Transactions are also in topics that are deleted under them, and created again."""
    workers = [Worker(store, f"worker{who}", who) for who in (1, 2, 3)]
    store.create_topic("gone", 2)

    class Wandering(Worker):
        def turn(self) -> None:
            with self.store.transaction(self.name) as txn:
                txn.append("a", b"9/1", partition=0)
                with contextlib.suppress(LookupError, IllegalStateException):
                    txn.append_many("gone", [(b"v", b"%d" % number) for number in range(20)])
                txn.abort()

    crew = Crew()
    for worker in [*workers, Wandering(store, "wandering", 9)]:
        crew.add("transact", worker.turn)

    def change() -> None:
        store.delete_topic("gone")
        store.create_topic("gone", 2)

    crew.add("change", change)
    crew.run(SECONDS)
    judge(store, workers)
    assert settled(store, "gone-0", "gone-1")
    reopened(store, base / "data", workers)


@pytest.mark.parametrize("seed", range(4))
def test_a_close_beside_them(store: Store, base: Path, seed: int) -> None:
    workers = [Worker(store, f"worker{who}", who) for who in range(1, 5)]
    open_one = store.transaction("open")
    open_one.begin()
    open_one.append("a", b"99/1", partition=0)
    crew = Crew(beside="close")
    for worker in workers:
        crew.add("transact", worker.turn)
    crew.run(0.02 + 0.03 * seed, store.close)
    with open_store(base / "data", files=FAST) as again:
        judge(again, workers)
        assert {each.state for each in again.transactions()} <= {"Empty", "CompleteCommit", "CompleteAbort"}


# --- signal handlers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def signals(handler: Callable[[], None], every_s: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_transacts(store: Store, base: Path, count: Count) -> None:
    """A handler that has another transaction, or one of the id that it interrupts, does it whole or is refused."""
    outer, inner, rival = Worker(store, "outer", 1), Worker(store, "inner", 2), Worker(store, "outer", 3)
    refused = 0
    is_handling = False
    rng = random.Random(2)

    def handle() -> None:
        nonlocal refused, is_handling
        if is_handling:
            return
        is_handling = True
        try:
            rng.choice([inner, inner, rival]).turn()
        except IllegalStateException:
            refused += 1
        finally:
            is_handling = False

    with signals(handle, 0.002):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            outer.turn()
    home_of(store).end_overdue()
    judge(store, [outer, inner, rival])
    reopened(store, base / "data", [outer, inner, rival])
    assert len(inner.acknowledged) > 2
    count("transactions in signal handlers", len(inner.acknowledged) + len(rival.acknowledged) + refused)


def test_a_signal_handler_uses_what_it_interrupts(store: Store, base: Path) -> None:
    worker = Worker(store, "worker", 1)
    number = refused = 0
    txn = store.transaction("mine")

    def handle() -> None:
        nonlocal refused
        for use in (lambda: txn.append("b", b"8/0"), txn.commit, txn.abort):
            if not txn.is_inside():
                return  # else it would be done
            with pytest.raises(IllegalStateException):
                use()
            refused += 1

    with signals(handle, 0.0005):
        until = time.monotonic() + SECONDS / 2
        while time.monotonic() < until:
            number += 1
            txn.begin()
            for each in PARTITIONS:
                txn.append(each[0], b"1/%d" % number, partition=int(each[-1]))
            txn.commit_offsets({"in-0": number}, cursor=worker.cursor)
            txn.commit()
            worker.acknowledged.append(number)
    worker.attempted = worker.acknowledged
    judge(store, [worker])
    assert refused > 0
    reopened(store, base / "data", [worker])


def test_a_signal_handler_closes(base: Path, count: Count) -> None:
    """It is refused in the middle of a change, or all is closed, and what was open is aborted."""
    rng = random.Random(9)
    until, number, refused = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < until:
        number += 1
        path = base / f"data{number}"
        with open_store(path, files=FAST) as store:
            for topic, partitions in (("a", 2), ("b", 1), ("c", 1), ("in", 1)):
                store.create_topic(topic, partitions)
            worker = Worker(store, "worker", 1)

            def handle(store: Store = store) -> None:
                nonlocal refused
                try:
                    store.close()
                except IllegalStateException:
                    refused += 1
                    signal.setitimer(signal.ITIMER_REAL, 0.0002)

            before = signal.signal(signal.SIGALRM, lambda *_, handle=handle: handle())
            signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.02 + 0.0001)
            try:
                with contextlib.suppress(IllegalStateException):
                    while True:
                        worker.turn()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            assert store.closed
        with open_store(path, files=FAST) as again:
            judge(again, [worker])
    count("closes in signal handlers", number + refused)


# --- forks -------------------------------------------------------------------------------------------------


def in_a_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child; what it raises fails the test."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 0
        try:
            work()
        except BaseException:
            traceback.print_exc()
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def test_a_child_is_refused(store: Store, base: Path) -> None:
    txn = store.transaction("mine")
    txn.begin()
    txn.append("a", b"1/1", partition=0)

    def child() -> None:
        for use in (
            lambda: txn.append("a", b"x"), lambda: txn.append_many("b", [b"x"]), txn.commit, txn.abort, txn.begin,
            lambda: txn.commit_offsets({"a-0": 1}, cursor="c"), lambda: store.transaction("mine"),
            store.transactions, lambda: store.abort_transaction("mine"), lambda: txn.__exit__(None, None, None),
        ):  # fmt: skip
            with pytest.raises(IllegalStateException, match="opened by process"):
                use()
        store.close()

    before = as_killed(base / "data", base / "before")
    in_a_child(child)
    after = as_killed(base / "data", base / "after")
    files = sorted(path.relative_to(before) for path in before.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(after) for path in after.rglob("*") if path.is_file())
    assert all((before / each).read_bytes() == (after / each).read_bytes() for each in files)
    for each in PARTITIONS[1:]:
        txn.append(each[0], b"1/1", partition=int(each[-1]))
    txn.commit_offsets({"in-0": 1}, cursor="cursor1")
    txn.commit()
    worker = Worker(store, "mine", 1)
    worker.acknowledged = worker.attempted = [1]
    judge(store, [worker])


def test_a_child_of_a_block(store: Store) -> None:
    """It leaves the block by an exception; the transaction is its parent's."""

    with store.transaction("mine") as txn:
        txn.append("a", b"1/1", partition=0)

        def leave() -> None:
            txn.__exit__(ZeroDivisionError, ZeroDivisionError(), None)

        in_a_child(leave)
        txn.append("b", b"1/1")
    assert committed(store, "a-0") == committed(store, "b-0") == [b"1/1"]


def test_forks_in_the_middle_of_transactions(store: Store, base: Path, count: Count) -> None:
    workers = [Worker(store, f"worker{who}", who) for who in (1, 2, 3)]
    forks = 0

    def fork() -> None:
        nonlocal forks
        txn = store.transaction("child")

        def child() -> None:
            for use in (txn.begin, store.transactions, lambda: store.transaction("worker1").begin()):
                with pytest.raises(IllegalStateException, match="opened by process"):
                    use()
            store.close()

        in_a_child(child)
        forks += 1
        time.sleep(0.01)

    crew = Crew()
    for worker in workers:
        crew.add("transact", worker.turn)
    crew.add("fork", fork)
    crew.run(SECONDS)
    judge(store, workers)
    reopened(store, base / "data", workers)
    assert forks > 1
    count("forks beside store transactions", forks)


# --- the end of a store ------------------------------------------------------------------------------------


def test_closes_of_several_threads(store: Store, base: Path) -> None:
    txn = store.transaction("mine")
    txn.begin()
    txn.append("a", b"1/1", partition=0)
    start = threading.Event()
    failures: list[BaseException] = []

    def close() -> None:
        start.wait()
        try:
            store.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=close, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.set()
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
    assert not failures
    with open_store(base / "data", files=FAST) as again:
        assert settled(again, "a-0")
        assert committed(again, "a-0") == []
