"""Crash states of a store's transactions: after any step, every partition and the cursor say the same.

Three topics and a cursor, in a store as a service opens it, all recorded on one disk: transactions that are committed,
aborted, fenced by another one of their id, and timed out.  With durability "fsync" a power loss comes at every step,
and acknowledged transactions survive; with "os" the process dies at every step.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.store import Store
from kafkalog.transaction import StoreTransaction
from tests.crash import harness
from tests.crash.harness import ACKNOWLEDGED, APPENDED, CrashState
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG
from tests.unit.store_kit import NOW_MS, committed, home_of, open_store, position, settled, state_of

ID, CURSOR = "biller", "c"
TOPICS = ("a", "b", "c")
PARTITIONS = tuple(f"{topic}-0" for topic in TOPICS)
SMALL = {"segment.index.bytes": "480", "internal.segment.bytes": "900"}
# A write may lose its first sector with only a batch's base offset. This leaves a batch at offset 0 whose CRC is right.
# Recovery sees the damage if the segment begins above 0; in a segment that begins with 0 it cannot (Kafka neither).
FIRST_OFFSET = 1000
SAMPLE = None if LONG else 60


def make(root: Path) -> None:
    """A store with its topics, before anything is recorded."""
    with open_store(root, files=UnsyncedFiles()) as store:
        for topic in TOPICS:
            store.create_topic(topic, config=SMALL)
        catalog = home_of(store).catalog
        logs = [store.manager.get_log(each) for each in PARTITIONS]
        for topic, name in (("__transaction_state", ID), ("__consumer_offsets", CURSOR)):
            logs.append(catalog.internal_partition(topic, partition_for(name, 50), create=True))
        for log in logs:
            assert log is not None
            log.truncate_fully_and_start_at(FIRST_OFFSET)
        with store.transaction(ID) as txn:
            fill(txn, 0)


def fill(txn: StoreTransaction, number: int) -> None:
    value = b"%d" % number + b"." * 100
    txn.append("a", value)
    txn.append("b", value)
    txn.commit_offsets({"a-0": number}, cursor=CURSOR)
    txn.append("c", value)


class Workload:
    """Transactions, told to the recording: `number` is attempted, and acknowledged when it was committed."""

    def __init__(self, store: Store, files: RecordingFiles, clock: ManualClock) -> None:
        self.store = store
        self.files = files
        self.clock = clock

    def commit(self, number: int) -> None:
        self.files.mark(APPENDED, number)
        with self.store.transaction(ID) as txn:
            fill(txn, number)
        self.files.mark(ACKNOWLEDGED, number)

    def abort(self, number: int) -> None:
        with contextlib.suppress(ZeroDivisionError), self.store.transaction(ID) as txn:
            fill(txn, number)
            raise ZeroDivisionError

    def take_over(self, number: int) -> None:
        first = self.store.transaction(ID)
        first.begin()
        fill(first, number)
        self.commit(number + 1)

    def time_out(self, number: int) -> None:
        txn = self.store.transaction(ID)
        txn.begin()
        fill(txn, number)
        self.clock.advance(60_001)
        home_of(self.store).end_overdue()

    def leave_open(self, number: int) -> None:
        txn = self.store.transaction("another")  # its own states, the same partitions
        txn.begin()
        fill(txn, number)
        home_of(self.store).coordinators.ids.leave("another", txn, None)

    def close(self, number: int) -> None:
        self.leave_open(number)
        self.store.close()


STEPS: dict[str, list[Callable[[Workload, int], None]]] = {
    "commit": [Workload.commit, Workload.commit],
    "abort": [Workload.abort, Workload.commit],
    "take over": [Workload.take_over, Workload.commit],
    "time out": [Workload.time_out, Workload.commit],
    "close": [Workload.commit, Workload.close],
}


def numbers_of(store: Store, partition: str) -> list[int]:
    return [int(value.split(b".")[0]) for value in committed(store, partition)]


def check(place: str, recording: RecordingFiles, state: CrashState) -> None:
    with open_store(Path(place) / "disk", files=UnsyncedFiles()) as store:
        seen = [numbers_of(store, each) for each in PARTITIONS]
        assert seen[0] == seen[1] == seen[2], seen
        assert position(store, CURSOR, "a-0") == seen[0][-1], (cursor_of(store), seen)
        assert settled(store, *PARTITIONS)
        assert state_of(store, ID) in ("Empty", "CompleteCommit", "CompleteAbort")
        made = harness.promises(recording, state.op_count)
        assert {0, *made.acknowledged} <= set(seen[0]) <= {0, *made.appended}, (made, seen)
        assert seen[0] == sorted(set(seen[0]))
        with store.transaction(ID) as txn:
            fill(txn, 99)
        assert [numbers_of(store, each)[-1] for each in PARTITIONS] == [99, 99, 99]
        assert position(store, CURSOR, "a-0") == 99


def cursor_of(store: Store) -> int | None:
    return position(store, CURSOR, "a-0")


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("steps", STEPS)
def test_crashes(tmp_path: Path, steps: str, durability: str) -> None:
    with harness.fast_dir() as root:
        make(root / "disk")
        recording = RecordingFiles(str(root), UnsyncedFiles())
        clock = ManualClock(NOW_MS)
        store = open_store(root / "disk", files=recording, durability=durability, clock=clock)
        work = Workload(store, recording, clock)
        for number, step in enumerate(STEPS[steps]):
            step(work, 10 * number + 10)
        store.close()
    count = harness.check_crashes(
        recording,
        lambda place, state: check(place, recording, state),
        sample=SAMPLE,
        kinds=harness.KINDS if durability == "fsync" else ("kill", "torn"),
        torn_step=4096,
        keep=tmp_path / "failed",
    )
    shutil.rmtree(tmp_path / "failed", ignore_errors=True)
    assert count > 50
