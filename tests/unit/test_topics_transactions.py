"""`log.transaction(...)` of `open_log`: all or nothing, whatever happens between begin and end.

Also the batches that it leaves in the log, and several partitions of a directory, which share their coordinators.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import kafkalog
from kafkalog._face import directory_coordinators
from kafkalog._face.transactional_ids import STORE_PRODUCER_IDS
from kafkalog.config import LogConfig
from kafkalog.engine.coordinator.partition_logs import LogMarkers
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.files import OS_FILES, ManualClock, ManualScheduler
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, parse_control_key
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import records as decode_records
from kafkalog.errors import (
    CorruptCheckpointException,
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidTxnStateException,
    InvalidTxnTimeoutException,
    KafkaStorageException,
    ProducerFencedException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.verify import verify
from kafkalog.transaction import Transaction
from tests.file_doubles import Fault, FaultyFiles

NOW_MS = 1_700_000_000_000
PACKAGE = os.path.dirname(os.path.abspath(kafkalog.__file__)) + os.sep


def values(log: kafkalog.Partition, isolation: str = "read_committed") -> list[bytes | None]:
    return [record.value for record in log.records(isolation=isolation)]


def settled(log: kafkalog.Partition) -> bool:
    return log.last_stable_offset == log.end_offset


def test_all_or_nothing(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("job") as txn:
            txn.append_many([b"a", b"b"])
            assert values(log) == []
            assert not settled(log)
        assert not txn.active
        assert values(log) == [b"a", b"b"]
        with log.transaction("job"):
            pass  # no record, no marker
        assert log.end_offset == 3
        with log.transaction("job") as txn:
            txn.append(b"c")
        assert values(log) == [b"a", b"b", b"c"]
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_whatever_the_block_raises_aborts(tmp_path: Path, error: type[BaseException]) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:

        def fail() -> None:
            with log.transaction("job") as txn:
                txn.append(b"never")
                raise error

        with pytest.raises(error):
            fail()
        assert values(log) == []
        assert settled(log)
        with log.transaction("job") as txn:
            txn.append(b"next")
        assert values(log) == [b"next"]
        assert values(log, "read_uncommitted") == [b"never", b"next"]


def test_a_rejected_record_aborts_all_of_it(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"max.message.bytes": "200"}) as log:

        def fail() -> None:
            with log.transaction("job") as txn:
                txn.append(b"small")
                txn.append(b"x" * 300)

        with pytest.raises(kafkalog.errors.RecordTooLargeException):
            fail()
        assert values(log) == []
        assert settled(log)


def test_within_another(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("outer") as outer:
            outer.append(b"o1")
            with log.transaction("inner") as inner:
                inner.append(b"i")
            assert values(log) == []  # the inner one is committed, but is after the outer's first record
            log.append(b"plain")
            outer.append(b"o2")
        assert values(log) == [b"o1", b"i", b"plain", b"o2"]

        def same() -> None:
            with log.transaction("outer") as outer:
                outer.append(b"o3")
                with log.transaction("outer"):
                    pass
                outer.append(b"o4")

        with pytest.raises(ProducerFencedException, match=r"'outer' was aborted: another transaction of this id"):
            same()
        assert values(log) == [b"o1", b"i", b"plain", b"o2"]
        assert settled(log)


def test_by_hand(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        txn = log.transaction("job")
        for act in (lambda: txn.append(b"early"), txn.commit, txn.abort):
            with pytest.raises(IllegalStateException, match=r"no transaction of 'job' is open.*\.transaction\("):
                act()
        with txn:
            txn.append(b"1")
            txn.commit()  # the block's end has nothing left to do
        with txn:
            txn.append(b"2")
            txn.abort()
            txn.begin()
            txn.append(b"3")
        with pytest.raises(IllegalStateException):
            txn.append(b"late")
        assert values(log) == [b"1", b"3"]


def test_closing_the_log_aborts(tmp_path: Path) -> None:
    log = kafkalog.open_log(tmp_path, "t-0")

    def block() -> None:
        with log.transaction("job") as txn:
            txn.append(b"1")
            log.close()

    with pytest.raises(IllegalStateException, match=r"t-0 of .* is closed"):
        block()  # it must not seem to have committed
    with pytest.raises(IllegalStateException, match="closed"):
        log.transaction("job")
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        assert values(view) == []
        assert view.end_offset == 2
        assert settled(view)


def test_what_a_brokers_producer_left_open_stays(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        builder = MemoryRecordsBuilder(producer_id=7, producer_epoch=3, base_sequence=0, is_transactional=True)
        builder.append(NOW_MS, None, b"pending")
        log.append_batches(builder.build())
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert (log.last_stable_offset, log.end_offset) == (0, 1)


def test_every_end_that_fails_leaves_it_to_the_next_open(tmp_path: Path) -> None:
    """A disk that fails while the marker is written: neither committed nor aborted, and aborted by the next open."""
    for kind in ("commit", "abort"):
        root = tmp_path / kind
        files = FaultyFiles(OS_FILES)
        log = kafkalog.open_log(root, "t-0", files=files, durability="fsync")
        txn = log.transaction("job")
        txn.begin()
        txn.append(b"1")
        files.fault = Fault(files.count, kinds={"write"}, paths=lambda path: path.endswith(".log"))
        with pytest.raises(KafkaStorageException):
            getattr(txn, kind)()
        files.fault = None
        with pytest.raises(KafkaStorageException):
            log.close()
        shutil.copytree(root, tmp_path / f"{kind}-later")
        with kafkalog.open_log(tmp_path / f"{kind}-later", "t-0") as again:
            assert values(again) == []
            assert settled(again)


def test_what_stands_in_the_log(tmp_path: Path) -> None:
    """Producer id, epoch, sequences and markers as a broker takes them from a producer and its coordinator."""
    clock = ManualClock(NOW_MS)
    with kafkalog.open_log(tmp_path, "t-0", clock=clock) as log:
        with log.transaction("job") as txn:
            txn.append_many([b"a", b"b"])
            txn.append(b"c")
        with log.transaction("job") as txn:
            txn.append(b"d")
            txn.abort()
        assert log.engine is not None
        (entry,) = log.engine.producer_state_manager.active_producers.values()
        assert (entry.producer_epoch, entry.last_seq, entry.coordinator_epoch) == (2, -1, 0)
        with log.reader() as reader:
            chunk = reader.read_chunk()
    assert chunk is not None
    assert entry.producer_id in STORE_PRODUCER_IDS
    seen = []
    for header in chunk.headers:
        assert header.producer_id == entry.producer_id
        assert header.is_transactional
        what: object = None
        if header.is_control:
            (record,) = decode_records(chunk.data, header)
            kind = parse_control_key(record.key)
            assert EndTransactionMarker.deserialize(record.key, record.value) == EndTransactionMarker(kind, 0)
            what = kind
        seen.append((header.base_offset, header.producer_epoch, header.base_sequence, header.last_sequence, what))
    assert seen == [  # each end is of the next epoch, with which the next transaction writes (KIP-890)
        (0, 0, 0, 1, None),
        (2, 0, 2, 2, None),
        (3, 1, -1, -1, ControlRecordType.COMMIT),
        (4, 1, 0, 0, None),
        (5, 2, -1, -1, ControlRecordType.ABORT),
    ]


# --- interrupts at a function's first bytecode ----------------------------------------------------------


class Interrupted(KeyboardInterrupt):
    """Ours: no other one is expected."""


@contextlib.contextmanager
def interrupting(*numbers: int) -> Iterator[list[str]]:
    """KeyboardInterrupt at the first bytecode of the calls of these numbers; the functions that were called."""
    called: list[str] = []

    def enter(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_qualname)
            if len(called) - 1 in numbers:
                raise Interrupted(called[-1])

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield called
    finally:
        sys.settrace(before)


def end_of_a_block(
    log: kafkalog.Partition, *numbers: int, error: type[Exception] | None = None
) -> tuple[object, list[str]]:
    """One whole block whose end is interrupted; its transaction stays open."""
    txn = log.transaction("job")
    called: list[str] = []
    with contextlib.suppress(Interrupted, ZeroDivisionError), contextlib.ExitStack() as stack, txn:
        txn.append_many([b"a", b"b"])
        called = stack.enter_context(interrupting(*numbers))
        if error is not None:
            raise error
    return txn, called


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_an_interrupt_anywhere_in_a_blocks_end(tmp_path: Path, error: type[Exception] | None) -> None:
    """The transaction is over, and its id free, even if the caller keeps the object."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        _, called = end_of_a_block(log, error=error)
        assert called
        for first in range(len(called)):
            for second in (first, first + 1):  # the next Ctrl-C, while the first one is dealt with
                before = log.end_offset
                txn, _ = end_of_a_block(log, first, second, error=error)
                assert isinstance(txn, Transaction)
                assert not txn.active
                with pytest.raises(IllegalStateException, match="no transaction of 'job' is open"):
                    txn.append(b"late")
                with log.transaction("job") as another:
                    another.append(b"c")
                ours = [record.value for record in log.records(before, isolation="read_committed")]
                assert ours == [b"c"] or (ours == [b"a", b"b", b"c"] and error is None)
                assert settled(log)
                with txn:
                    txn.append(b"d")
                assert settled(log)
    assert verify(tmp_path, deep=True).ok


def test_readers_go_on_after_an_interrupted_end(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        txn, called = end_of_a_block(log, 0, 1)
        assert called[0].startswith("Transaction.")
        assert log.appends is not None
        log.appends.lease.directory.tenant.end_overdue()  # type: ignore[attr-defined]  # as each ten seconds
        assert values(log) == []
        assert settled(log)
        assert isinstance(txn, Transaction)


def test_a_block_within_its_own_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("job") as txn:
            txn.append(b"a")
            with pytest.raises(InvalidTxnStateException), txn:
                pass
            txn.append(b"b")
        assert values(log) == [b"a", b"b"]


def test_an_interrupt_at_the_first_step_of_a_close(tmp_path: Path) -> None:
    """A Partition, a view and a reader are closed at a block's end."""
    log = kafkalog.open_log(tmp_path, "t-0")
    with contextlib.suppress(Interrupted), contextlib.ExitStack() as stack, log:
        log.append(b"a")
        called = stack.enter_context(interrupting(0))
    assert called[0] == "Partition.close"
    assert log.closed
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / ".lock").exists()
    view = kafkalog.open_log(tmp_path, "t-0", read_only=True)
    with contextlib.suppress(Interrupted), contextlib.ExitStack() as stack, view:
        stack.enter_context(interrupting(0))
    assert view.closed


# --- truncations beside a transaction -----------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("step", ["append", "commit", "both"])
def test_a_truncation_that_cuts_a_transaction_lets_it_only_be_aborted(tmp_path: Path, cut: int, step: str) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"p")
        txn = log.transaction("job")

        def block() -> None:
            with txn:
                txn.append(b"a")
                txn.append_many([b"b", b"c"])
                assert log.engine is not None
                log.engine.truncate_to(cut)  # at 3 inside a batch, which the Partition would refuse
                if step != "commit":
                    with pytest.raises(InvalidTxnStateException, match="removed records of the transaction of 'job'"):
                        txn.append(b"d")
                if step == "append":
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError if step == "append" else InvalidTxnStateException):
            block()
        assert values(log) == [b"p"][:cut]
        assert settled(log)
        with txn:
            txn.append(b"e")
        assert values(log) == [*[b"p"][:cut], b"e"]
    assert verify(tmp_path, deep=True).ok


def test_by_hand_a_cut_transaction_is_refused_until_it_is_aborted(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        txn = log.transaction("job")
        txn.begin()
        txn.append_many([b"a", b"b"])
        log.truncate(0)
        for step in (txn.commit, txn.commit, lambda: txn.append(b"c")):
            with pytest.raises(InvalidTxnStateException, match="abort it"):
                step()
        assert txn.active
        txn.abort()
        txn.begin()
        txn.append(b"d")
        txn.commit()
        assert values(log) == [b"d"]


def test_a_truncation_behind_a_transaction_does_not_matter(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("job") as txn:
            txn.append(b"a")
            log.append(b"x")
            log.append(b"y")
            log.truncate(2)
            txn.append(b"b")
            log.delete_records(1)
        assert values(log) == [b"x", b"b"]
        log.append(b"z")
        with log.transaction("empty"):
            log.truncate(4)
        assert settled(log)


# --- what partitions of a directory share -------------------------------------------------------------------


def killed(root: Path, name: str = "killed") -> Path:
    """The directory as a kill of its process would leave it."""
    copy = root.parent / name
    shutil.copytree(root, copy)
    (copy / ".lock").unlink(missing_ok=True)
    return copy


def test_an_id_is_one_in_all_partitions(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as a, kafkalog.open_log(tmp_path, "u-3") as b:
        first, second = a.transaction("job"), b.transaction("job")
        first.begin()
        first.append(b"1")
        second.begin()
        second.append(b"2")
        with pytest.raises(ProducerFencedException):
            first.append(b"3")
        second.commit()
        assert (values(a), values(b)) == ([], [b"2"])
        assert settled(a)
        assert settled(b)
    assert verify(tmp_path, deep=True).ok


def test_a_close_ends_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as a:
        b = kafkalog.open_log(tmp_path, "t-1")
        mine, others = a.transaction("a"), b.transaction("b")
        for txn in (mine, others):
            txn.begin()
            txn.append(b"1")
        b.close()
        assert not others.active
        mine.append(b"2")
        mine.commit()
        assert values(a) == [b"1", b"2"]
        with kafkalog.open_log(tmp_path, "t-1") as b:
            assert values(b) == []
            assert settled(b)
            with b.transaction("b") as again:
                again.append(b"3")
            assert values(b) == [b"3"]
    with kafkalog.open(tmp_path) as store:
        assert {each.state for each in store.transactions()} == {"CompleteCommit"}


def test_a_timeout_ends_it(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with kafkalog.open_log(tmp_path, "t-0", clock=clock, scheduler=ManualScheduler(clock)) as log:
        txn = log.transaction("job", timeout_ms=5_000)
        txn.begin()
        txn.append(b"1")
        assert log.appends is not None
        scheduler = log.appends.lease.directory.scheduler  # type: ignore[attr-defined]
        clock.advance(10_000)
        scheduler.tick()
        assert settled(log)
        with pytest.raises(ProducerFencedException, match="longer than its timeout of 5000 ms"):
            txn.commit()
        assert values(log) == []
        for timeout in (0, 900_001):
            with pytest.raises(InvalidTxnTimeoutException):
                log.transaction("job", timeout_ms=timeout)


@pytest.mark.parametrize("opens", ["the same", "another", "a store"])
def test_what_a_kill_left_is_ended_wherever_it_is(tmp_path: Path, opens: str) -> None:
    """By the next open of any partition that it is in, and by a store's."""
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as a, kafkalog.open_log(root, "t-1") as b:
        txn = a.transaction("job")
        txn.begin()
        txn.append(b"never")
        with b.transaction("other") as done:
            done.append(b"kept")
        hanging = b.transaction("hanging")
        hanging.begin()
        hanging.append(b"never, either")
        copy = killed(root)
    if opens == "a store":
        kafkalog.open(copy).close()
    else:
        with kafkalog.open_log(copy, "t-0" if opens == "the same" else "t-1") as log:
            assert settled(log)
    for name, expected in (("t-0", []), ("t-1", [b"kept"])):
        with kafkalog.open_log(copy, name, read_only=True) as view:
            assert values(view) == expected
            assert settled(view)
    assert verify(copy, deep=True).ok


def test_a_decision_that_stands_is_carried_out_by_the_next_open(tmp_path: Path) -> None:
    root = tmp_path / "live"
    files = FaultyFiles(OS_FILES)
    log = kafkalog.open_log(root, "t-0", files=files)
    txn = log.transaction("job")
    txn.begin()
    txn.append(b"1")
    files.fault = Fault(files.count, kinds={"write"}, paths=lambda path: path.endswith(".log") and "/t-0/" in path)
    with pytest.raises(KafkaStorageException):
        txn.commit()  # it is decided, and its marker is not written
    files.fault = None
    copy = killed(root)
    with pytest.raises(KafkaStorageException):
        log.close()
    with kafkalog.open_log(copy, "t-0") as again:
        assert values(again) == [b"1"]
        assert settled(again)


def test_one_of_a_store_is_ended_as_was_decided(tmp_path: Path) -> None:
    root = tmp_path / "live"
    with kafkalog.open(root) as store:
        store.create_topic("t", partitions=2)
        txn = store.transaction("job")
        txn.begin()
        txn.append("t", b"1", partition=0)
        txn.append("t", b"2", partition=1)
        copy = killed(root)
    with kafkalog.open_log(copy, "t-1") as log:
        assert (values(log), settled(log)) == ([], True)
    with kafkalog.open_log(copy, "t-0", read_only=True) as view:
        assert (values(view), settled(view)) == ([], True)


def test_it_may_be_left_open(tmp_path: Path) -> None:
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as log:
        txn = log.transaction("job")
        txn.begin()
        txn.append(b"1")
        copy = killed(root)
    with kafkalog.open_log(copy, "t-0", abort_left_open=False) as log:
        assert not settled(log)


def test_one_of_an_earlier_release_is_aborted(tmp_path: Path) -> None:
    """No coordinator knew of it: its producer id came from a name."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        builder = MemoryRecordsBuilder(
            producer_id=1 << 62 | 7, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        builder.append(NOW_MS, None, b"pending")
        log.append_batches(builder.build())
        assert not settled(log)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert (values(log), settled(log), log.end_offset) == ([], True, 2)
    assert verify(tmp_path, deep=True).ok


def test_it_commits_a_cursor(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log, log.transaction("job") as txn:
        txn.append(b"1")
        txn.commit_offsets({"t-0": 1}, cursor="c")
        with pytest.raises(UnknownTopicOrPartitionException, match="no partition t-7"):
            txn.commit_offsets({"t-7": 1}, cursor="c")
    with kafkalog.open(tmp_path) as store:
        assert store.reader("c", topics=["t"]).position("t-0") == 1


def test_settings_that_cannot_be_read_refuse_a_transaction_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".kafkalog_topics").write_text("{ torn")
    with kafkalog.open_log(tmp_path, "t-0", config=LogConfig.from_props()) as log:
        log.append(b"1")
        with pytest.raises(CorruptCheckpointException, match="kafkalog_topics"):
            log.transaction("job")
        log.append(b"2")
        assert values(log) == [b"1", b"2"]


def test_a_truncation_does_not_part_a_transaction_from_its_end(tmp_path: Path) -> None:
    """A committed transaction would be undecided again, and an aborted one part of the id's next transaction."""
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "300"}) as log:
        log.append(b"before")
        with log.transaction("a") as txn:
            first = txn.append(b"committed")
        with contextlib.suppress(ZeroDivisionError), log.transaction("a") as txn:
            txn.append(b"aborted")
            raise ZeroDivisionError
        log.append(b"x" * 200)
        log.append(b"behind")
        for offset, hint in ((first + 1, "truncate to 3, .*, or to 1"), (first + 3, "truncate to 5, .*, or to 3")):
            with pytest.raises(IllegalArgumentException, match=f"between a transaction's first record.*{hint}"):
                log.truncate(offset)
        assert values(log)[:2] == [b"before", b"committed"]
        log.truncate(5)
        assert (values(log), settled(log)) == ([b"before", b"committed"], True)
        log.truncate(first)
        assert (values(log), settled(log), log.end_offset) == ([b"before"], True, 1)
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("kept", range(14))
def test_a_coordinator_that_lost_the_end_of_its_log_goes_on(tmp_path: Path, kept: int) -> None:
    """As a power loss may leave it, with durability "os": the partition knows more than `__transaction_state`."""
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as log:
        for number in range(4):
            with log.transaction("a") as txn:
                txn.append(b"%d" % number)
        txn = log.transaction("a")
        txn.begin()
        txn.append(b"left")
        copy = killed(root)
    [state] = copy.glob("__transaction_state-*/*.log")
    data, ends = state.read_bytes(), [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 12 + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"))
    assert len(ends) > 13
    os.truncate(state, ends[kept])
    expected: list[bytes | None] = [b"%d" % number for number in range(4)]
    told: list[str] = []

    def again(log: kafkalog.Partition) -> None:
        with log.transaction("a") as txn:
            txn.append(b"again")

    for _ in range(3):
        with kafkalog.open_log(copy, "t-0") as log:
            assert settled(log)
            try:
                again(log)
            except ProducerFencedException as error:
                told.append(error.message)
                again(log)
            with log.transaction("b") as txn:
                txn.append(b"b")
            expected += [b"again", b"b"]
            assert values(log) == expected
            assert settled(log)
    assert len(told) <= 1
    assert all("has lost its end" in each for each in told)
    assert verify(copy, deep=True).ok


def test_a_folder_without_a_snapshot_in_a_clean_directory(tmp_path: Path) -> None:
    """It came from elsewhere: its producers are read from the log, whatever the marker says."""
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as log:
        log.append(b"before")
        txn = log.transaction("a")
        txn.begin()
        txn.append(b"undecided")
        kafkalog.open_log(tmp_path / "here", "u-0").close()
        shutil.copytree(root / "t-0", tmp_path / "here" / "t-0")
    with kafkalog.open_log(tmp_path / "here", "t-0") as log:
        assert (values(log), settled(log)) == ([b"before"], True)


def test_who_has_nothing_cut_has_no_coordinators_log_cut(tmp_path: Path) -> None:
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as log:
        with log.transaction("a") as txn:
            txn.append(b"1")
        copy = killed(root)
    [state] = copy.glob("__transaction_state-*/*.log")
    data = bytearray(state.read_bytes())
    data[75] ^= 0xFF
    state.write_bytes(data)
    with pytest.raises(CorruptRecordException, match=r"__transaction_state-\d+/.* found a bad CRC"):
        kafkalog.open_log(copy, "t-0", on_damage="raise")
    assert state.read_bytes() == data
    with kafkalog.open_log(copy, "t-0") as log:
        assert values(log) == [b"1"]


def test_one_of_several_directories_makes_no_coordinator(tmp_path: Path) -> None:
    """Each would have its own truth of an id, and the store of both could not be opened."""
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kafkalog.open(dirs) as store:
        store.create_topic("t", partitions=2)
    for each in dirs:
        [partition] = kafkalog.list_partitions(each)
        with kafkalog.open_log(each, partition) as log:
            log.append(b"1")
            with (
                pytest.raises(IllegalStateException, match="one of several directories of a store"),
                log.transaction("a") as txn,
            ):
                txn.append(b"2")
    with kafkalog.open(dirs) as store, store.transaction("a") as txn:
        txn.append("t", b"3", partition=0)


def test_a_decision_waits_for_a_partition_of_another_directory(tmp_path: Path) -> None:
    """The topic's partition there was created by `open_log` alone; its marker comes once, when it can."""
    dirs = [tmp_path / "a", tmp_path / "b"]
    kafkalog.open_log(dirs[0], "t-0").close()
    kafkalog.open_log(dirs[1], "u-0").close()
    write = LogMarkers.write
    killed_at: list[Path] = []

    def kill(self: LogMarkers, partition: TopicPartition, marker: TransactionMarker) -> None:
        if not killed_at:
            killed_at.extend(killed(each, f"killed-{each.name}") for each in dirs)
        write(self, partition, marker)

    with kafkalog.open(dirs) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogMarkers, "write", kill)
        with store.transaction("x") as txn:
            txn.append("t", b"1")
            txn.append("u", b"2")
    for _ in range(2):
        with kafkalog.open_log(killed_at[0], "t-0") as log:
            assert (values(log), log.end_offset) == ([b"1"], 2)
    with kafkalog.open(killed_at) as store:
        for name, value in (("t", b"1"), ("u", b"2")):
            assert values(store.topic(name).partition(0)) == [value]
            assert settled(store.topic(name).partition(0))


def test_a_crash_of_a_transaction_that_only_moved_a_cursor_is_settled(tmp_path: Path) -> None:
    root = tmp_path / "live"
    with kafkalog.open_log(root, "t-0") as log:
        log.append_many([b"1", b"2"])
        txn = log.transaction("a")
        txn.begin()
        txn.commit_offsets({"t-0": 2}, cursor="c")
        copy = killed(root)
    kafkalog.open_log(copy, "t-0").close()
    with kafkalog.open(copy, read_only=True) as store:
        assert store.reader("c", topics=["t"], isolation="read_committed").position("t-0") == 0


def test_two_commits_of_offsets_in_one_transaction_are_no_finding(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"1", b"2"])
        with log.transaction("a") as txn:
            txn.commit_offsets({"t-0": 1}, cursor="c")
            txn.commit_offsets({"t-0": 2}, cursor="c")
    assert verify(tmp_path, deep=True).ok


def test_a_coordinators_log_that_has_grown_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_coordinators, "COMPACTED_BYTES", 2_000)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for _ in range(20):
            with log.transaction("a") as txn:
                txn.append(b"1")
    assert sum(path.stat().st_size for path in tmp_path.glob("__transaction_state-*/*.log")) < 1_000
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("a") as txn:
            txn.append(b"2")
        assert len(values(log)) == 21
    assert verify(tmp_path, deep=True).ok
