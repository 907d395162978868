"""Durable appends of several threads: one sync for all waiting threads, and no acknowledgment without a sync."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.state.blocks import Turn
from kafkalog.engine.files import OsFiles
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.log.group_sync import GroupSync
from kafkalog.engine.log.local_log import LocalLog
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.toolbox.verify import verify
from tests.crash import harness
from tests.crash.harness import CrashState
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG

THREADS = 8
WAIT_S = 60


class Gate:
    """The actions before the next sync of a .log, and the number of syncs."""

    def __init__(self) -> None:
        self.next: list[Callable[[], None]] = []
        self.syncs = 0
        self.directories = 0


GATE = Gate()


class GatedFile(OsFile):
    __slots__ = ()

    def sync_data(self) -> None:
        GATE.syncs += 1
        if GATE.next:
            GATE.next.pop(0)()
        super().sync_data()


class GatedFiles(OsFiles):
    __slots__ = ()
    file_class = GatedFile


@pytest.fixture(autouse=True)
def gate() -> Gate:
    GATE.__init__()  # type: ignore[misc]
    return GATE


def opened(place: Path, **options: object) -> tuple[kafkalog.Partition, UnifiedLog]:
    """A durable log whose active segment has been synced once, name and all."""
    log = kafkalog.open_log(place / "logs", "t-0", durability="fsync", files=GatedFiles(), **options)  # type: ignore[arg-type]
    assert log.engine is not None
    log.append(b"first")
    GATE.syncs = 0
    return log, log.engine


class Crew:
    """Threads that append one record each."""

    def __init__(self, log: kafkalog.Partition) -> None:
        self.log = log
        self.offsets: list[int] = []
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._append)
            self.threads.append(thread)
            thread.start()

    def _append(self) -> None:
        try:
            self.offsets.append(self.log.append(b"v"))
        except BaseException as error:
            self.errors.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread waits for ever"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_waits_shares_one_sync(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    with log:
        crew = Crew(log)

        def others() -> None:
            crew.start(THREADS)
            until(lambda: engine.log_end_offset == 2 + THREADS)
            assert engine.recovery_point == 1
            assert crew.offsets == []  # nobody got an answer yet

        gate.next.append(others)
        assert log.append(b"leader") == 1
        crew.join()
        assert crew.errors == []
        assert sorted(crew.offsets) == list(range(2, 2 + THREADS))
        assert engine.recovery_point == engine.log_end_offset
        assert gate.syncs == 2  # one that began before the others came, one for all of them


def test_only_the_records_are_synced(tmp_path: Path) -> None:
    """Its name with the first, and what belongs to a rolled segment before the next is written to."""
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "0"}
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        with kafkalog.open_log(root / "logs", "t-0", durability="fsync", files=recording, config=config) as log:
            log.append(b"v" * 100)
            begun = len(recording.ops)
            for _ in range(5):
                log.append(b"v" * 100)
            quiet = [(op.kind, os.path.basename(op.path)) for op in recording.ops[begun:] if op.kind != "write"]
            assert quiet == [("sync", "00000000000000000000.log")] * 5
            begun = len(recording.ops)
            for _ in range(12):
                log.append(b"v" * 100)
            synced = {os.path.basename(op.path) for op in recording.ops[begun:] if op.kind.startswith("sync")}
            assert {"00000000000000000000.index", "00000000000000000000.timeindex", "t-0"} <= synced


def test_a_failed_sync_is_told_to_all_who_wait(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    crew = Crew(log)

    def fails() -> None:
        crew.start(THREADS)
        until(lambda: engine.log_end_offset == 2 + THREADS)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    gate.next.append(fails)
    with pytest.raises(KafkaStorageException, match="flushing"):
        log.append(b"leader")
    crew.join()
    assert crew.offsets == []
    assert len(crew.errors) == THREADS
    assert all(isinstance(error, KafkaStorageException) for error in crew.errors)
    assert engine.recovery_point == 1
    with pytest.raises(KafkaStorageException):
        log.append(b"after")
    with pytest.raises(KafkaStorageException, match="offline"):
        log.close()


def test_an_interrupt_in_the_sync_leaves_it_to_the_next(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    with log:
        crew = Crew(log)

        def interrupted() -> None:
            crew.start(THREADS)
            until(lambda: engine.log_end_offset == 2 + THREADS)
            raise KeyboardInterrupt

        gate.next.append(interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(b"leader")
        crew.join()
        assert crew.errors == []
        assert sorted(crew.offsets) == list(range(2, 2 + THREADS))
        assert log.append(b"after") == 2 + THREADS
        assert engine.recovery_point == engine.log_end_offset


def test_a_close_beside_covers_who_waits(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    crew = Crew(log)

    def closes() -> None:
        crew.start(THREADS)
        until(lambda: engine.log_end_offset == 2 + THREADS)
        thread = threading.Thread(target=log.close)
        thread.start()
        thread.join(WAIT_S)
        assert log.closed

    gate.next.append(closes)
    with pytest.raises(IllegalStateException, match="is closed") as caught:
        log.append(b"leader")
    assert caught.value.appended == range(1, 2)  # the record exists all the same
    crew.join()
    assert not [error for error in crew.errors if not isinstance(error, IllegalStateException)]
    with kafkalog.open_log(tmp_path / "logs", "t-0") as again:
        assert again.end_offset == 2 + THREADS


def test_a_truncation_beside_lets_nobody_wait(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    with log:
        crew = Crew(log)

        def cuts() -> None:
            crew.start(THREADS)
            until(lambda: engine.log_end_offset == 2 + THREADS)
            thread = threading.Thread(target=log.truncate, args=(1,))
            thread.start()
            thread.join(WAIT_S)

        gate.next.append(cuts)
        log.append(b"leader")
        crew.join()
        assert crew.errors == []
        assert engine.recovery_point == engine.log_end_offset == 1
        assert log.append(b"new") == 1
        assert engine.recovery_point == 2


def test_a_roll_beside_covers_who_waits(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    with log:
        crew = Crew(log)

        def rolls() -> None:
            crew.start(THREADS)
            until(lambda: engine.log_end_offset == 2 + THREADS)
            thread = threading.Thread(target=engine.roll)
            thread.start()
            thread.join(WAIT_S)
            crew.start(1)

        gate.next.append(rolls)
        log.append(b"leader")
        crew.join()
        assert crew.errors == []
        assert engine.recovery_point == engine.log_end_offset == 3 + THREADS


def test_who_holds_the_lock_waits_for_nobody(tmp_path: Path, gate: Gate) -> None:
    """The syncing thread takes the lock at the end."""
    log, engine = opened(tmp_path)
    with log:
        other: list[int] = []

        def beside() -> None:
            def append() -> None:
                with engine.lock:
                    other.append(log.append(b"inside"))

            thread = threading.Thread(target=append)
            thread.start()
            thread.join(WAIT_S)
            assert not thread.is_alive()

        gate.next.append(beside)
        assert log.append(b"leader") == 1
        assert other == [2]


def test_a_handler_of_the_one_who_syncs_may_append(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    with log:
        inside: list[int] = []
        gate.next.append(lambda: inside.append(log.append(b"handler's")))
        assert log.append(b"leader") == 1
        assert inside == [2]
        assert engine.recovery_point == 3


def test_a_turn_wakes_who_joined_before(gate: Gate) -> None:
    turn = Turn()
    waiters = [turn.joined() for _ in range(3)]
    with turn as mine:
        assert mine
        refused: list[bool] = []

        def look() -> None:
            with turn as is_mine:
                refused.append(is_mine)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert refused == [False]
        assert not any(waiter.acquire(False) for waiter in waiters)
    assert all(waiter.acquire(False) for waiter in waiters)


def test_many_take_turns(gate: Gate) -> None:
    """No call returns before a sync that began after its work, whatever comes between."""
    group = GroupSync()
    done = [0] * THREADS
    synced = [0] * THREADS
    syncs = 0

    def sync() -> None:
        nonlocal syncs
        seen = list(done)
        time.sleep(0)
        syncs += 1
        synced[:] = seen

    def is_synced(mine: int, number: int) -> bool:
        return synced[mine] >= number

    def work(mine: int) -> None:
        for number in range(1, 300):
            done[mine] = number
            group.until(partial(is_synced, mine, number), sync)
            assert synced[mine] >= number

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert synced == [299] * THREADS
    assert syncs <= 299 * THREADS


@pytest.mark.slow
def test_power_loss_takes_nothing_that_a_thread_was_told(tmp_path: Path) -> None:
    config = {"internal.segment.bytes": "1500", "index.interval.bytes": "200"}
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        log = kafkalog.open_log(root / "logs", "t-0", durability="fsync", files=recording, config=config)

        def work(mine: int) -> None:
            for number in range(12):
                value = b"%d.%d" % (mine, number) * 10
                offset = log.append(value)
                recording.mark("told", (offset, value))

        threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        whole = [record.value for record in log]
        log.close()

    def check(place: str, state: CrashState) -> None:
        told = [op.value for op in recording.ops[: state.op_count] if op.kind == "mark"]
        if not os.path.isdir(os.path.join(place, "logs", "t-0")):
            assert not told
            return
        with kafkalog.open_log(os.path.join(place, "logs"), "t-0", files=UnsyncedFiles(), config=config) as again:
            found = [record.value for record in again]
        assert found == whole[: len(found)]
        for offset, value in told:  # type: ignore[misc]
            assert offset < len(found), (offset, len(found))
            assert found[offset] == value
        assert verify(os.path.join(place, "logs")).ok

    states = harness.check_crashes(recording, check, sample=None if LONG else 150, keep=tmp_path / "state")
    print(f"group sync: {states} states")


# --- a topic that is deleted ------------------------------------------------------------------------------


@pytest.fixture
def deleted_at_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kafkalog.Store]:
    """A durable store with topics `t` and `u`.  The files of `t` go between the next append and its sync."""
    store = kafkalog.open(tmp_path / "store", durability="fsync", maintenance=False)
    store.create_topic("t").append(b"first")
    store.create_topic("u")
    flush_appended = UnifiedLog.flush_appended

    def deleted(log: UnifiedLog, offset: int) -> None:
        if log.topic_partition.topic == "t":
            store.delete_topic("t")
            log.delete()
        flush_appended(log, offset)

    monkeypatch.setattr(UnifiedLog, "flush_appended", deleted)
    with store:
        yield store
        assert "t" not in store.topics()
        monkeypatch.undo()
        store.create_topic("t").append(b"of the next one")


def test_a_future_says_that_the_topic_is_gone(deleted_at_the_sync: kafkalog.Store) -> None:
    with deleted_at_the_sync.producer() as producer:
        future = producer.send("t", b"v")
        other = producer.send("u", b"v")
        with pytest.raises(UnknownTopicOrPartitionException, match="t-0 was deleted"):
            future.result(WAIT_S)
        assert other.result(WAIT_S).offset == 0


@pytest.mark.parametrize("append", ["append", "append_many", "append_batches"])
def test_an_append_says_that_the_topic_is_gone(
    append: str, deleted_at_the_sync: kafkalog.Store, tmp_path: Path
) -> None:
    topic = deleted_at_the_sync.topic("t")
    with kafkalog.open_log(tmp_path / "other", "o-0") as log:
        log.append(b"v")
    batch = (tmp_path / "other" / "o-0" / f"{0:020}.log").read_bytes()
    given: Any = {"append": b"v", "append_many": [b"v", b"w"], "append_batches": batch}[append]
    with pytest.raises(UnknownTopicOrPartitionException, match="t-0 was deleted"):
        getattr(topic, append)(given, partition=0)


def test_a_transaction_ends_where_its_topic_is_gone(deleted_at_the_sync: kafkalog.Store) -> None:
    with deleted_at_the_sync.transaction("x") as txn:
        txn.append("u", b"v")
        txn.append("t", b"v")
    (state,) = deleted_at_the_sync.transactions()
    assert state.state == "CompleteCommit"
    with deleted_at_the_sync.reader(topics=["u"], isolation="read_committed") as reader:
        assert [each.value for each in reader] == [b"v"]


def test_a_sync_in_the_middle_of_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments are deleted, and the log is not closed yet."""
    log, engine = opened(tmp_path)
    remove = LocalLog.remove_and_delete_segments
    raised: list[BaseException] = []

    def sync() -> None:
        for use in (lambda: engine.flush_appended(engine.log_end_offset), lambda: engine.flush(False)):
            try:
                use()
            except BaseException as error:
                raised.append(error)

    def removed(local: LocalLog, *given: Any) -> None:
        remove(local, *given)
        local.recovery_point = 0  # something is to be synced
        thread = threading.Thread(target=sync)
        thread.start()
        thread.join(WAIT_S)

    monkeypatch.setattr(LocalLog, "remove_and_delete_segments", removed)
    engine.delete()
    assert [type(each) for each in raised] == [KafkaStorageException] * 2, raised
    with pytest.raises(IllegalStateException):
        log.append(b"v")
    log.close()
