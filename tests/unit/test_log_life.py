"""One log in a running process: the effects of an append, of a flush next to a truncation, and of a close."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OsFile, OsFiles
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    ClosedChannelException,
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
)
from tests.unit.log_kit import Kit, batch


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_a_log_of_one_replica_shows_its_end_in_the_append(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(3), 0)
    assert log.high_watermark == 0  # a leader with followers waits for them
    log.follow_log_end()
    assert log.high_watermark == 3
    log.append_as_leader(batch(2), 0)
    log.append_as_follower(batch(1, offset=9, epoch=0), 0)
    assert (log.high_watermark, log.log_end_offset) == (10, 10)
    log.truncate_to(4)
    assert log.high_watermark == log.log_end_offset == 4
    log.close()


def test_who_waits_for_the_high_watermark_is_woken_by_the_append(kit: Kit) -> None:
    log = kit.open()
    log.follow_log_end()
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(log.await_high_watermark(0, timeout_s=30)))
    waiting.start()
    while not log.waiters and waiting.is_alive():
        pass
    log.append_as_leader(batch(3), 0)
    waiting.join(30)
    assert seen == [3]
    assert log.await_high_watermark(3, timeout_s=0.01) == 3  # in vain
    assert log.waiters == []
    log.close()
    assert log.await_high_watermark(3) == 3  # a closed log moves no more


def test_a_log_that_is_shut_down_takes_no_more_and_says_so(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(3), 0)
    held = log.read(0, 1000).records
    assert log.shut_down()
    assert log.shut_down()  # nothing is left to do
    for use in (lambda: log.append_as_leader(batch(1), 0), lambda: log.read(0, 100), lambda: log.truncate_to(0)):
        with pytest.raises(KafkaStorageException, match="already closed"):
            use()
    assert [record.offset for record in held.records()] == [0, 1, 2]  # its file lives as long as it
    assert not log.context.log_dir_failure_channel.any_offline


def test_a_log_that_was_let_go_was_not_shut_down(kit: Kit) -> None:
    log = kit.open()
    log.close_quietly()
    assert not log.shut_down()


def test_a_segment_that_is_closed_is_no_disk_error(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(3), 0)
    segment = log.active_segment
    segment.close()
    with pytest.raises(ClosedChannelException):
        segment.read(0, 100)
    assert not log.context.log_dir_failure_channel.any_offline
    log.close_quietly()


def test_a_child_of_a_fork_is_refused_everything(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(3), 0)
    log.disown()
    for use in (
        lambda: log.append_as_leader(batch(1), 0),
        lambda: log.append_as_follower(batch(1, offset=3, epoch=0), 0),
        lambda: log.read(0, 100, FetchIsolation.LOG_END),
        lambda: log.truncate_to(0),
        lambda: log.roll(),
        lambda: log.flush(True),
        lambda: log.delete_old_segments(),
        lambda: log.take_producer_snapshot(),
    ):
        with pytest.raises(IllegalStateException, match="was opened by process"):
            use()
    assert not log.shut_down()
    log.close_quietly()


class SlowSync(OsFile):
    """Its next sync lets another thread in first."""

    __slots__ = ()

    def sync(self) -> None:
        meanwhile = list(MEANWHILE)
        MEANWHILE.clear()
        for work in meanwhile:
            work()
        super().sync()


class SlowFiles(OsFiles):
    __slots__ = ()
    file_class = SlowSync


MEANWHILE: list[Callable[[], None]] = []


def test_what_was_cut_during_a_flush_is_not_flushed(tmp_path: Path) -> None:
    """Records that reuse the offsets of truncated ones are on the disk when their own append says so."""
    with kafkalog.open_log(tmp_path / "logs", "t-0", files=SlowFiles()) as log:
        engine = log.engine
        assert isinstance(engine, UnifiedLog)
        log.append_many([b"old"] * 10)

        def cut() -> None:
            thread = threading.Thread(target=engine.truncate_to, args=(4,))
            thread.start()
            thread.join()

        MEANWHILE.append(cut)
        log.flush()
        assert log.end_offset == 4
        assert engine.recovery_point == 4
        log.append_many([b"new"] * 10)
        assert engine.recovery_point == 4
        log.flush()
        assert engine.recovery_point == log.end_offset == 14


def test_retention_passes_side_by_side_delete_once(tmp_path: Path) -> None:
    config = {"internal.segment.bytes": "1000", "retention.bytes": "5000", "retention.ms": "-1"}
    with kafkalog.open_log(tmp_path / "logs", "t-0", config=config) as log:
        for _ in range(100):
            log.append(b"v" * 100)
        passes = [threading.Thread(target=log.delete_old_segments) for _ in range(8)]
        for each in passes:
            each.start()
        for each in passes:
            each.join()
        assert log.engine is not None
        assert log.engine.size >= 5000


def test_two_writers_of_one_name_lose_nothing(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        offsets: list[int | None] = []

        def write() -> None:
            writer = log.writer("one")
            offsets.extend(writer.append(b"v") for _ in range(200))

        writing = [threading.Thread(target=write) for _ in range(2)]
        for each in writing:
            each.start()
        for each in writing:
            each.join()
        assert sorted(offset for offset in offsets if offset is not None) == list(range(400))


def test_a_closed_log_hands_out_no_aborted_records(tmp_path: Path) -> None:
    log = kafkalog.open_log(tmp_path / "logs", "t-0")
    job = log.transaction("job")
    job.begin()
    job.append_many([b"aborted"] * 20)
    job.abort()
    log.append(b"good")
    reading = log.records(isolation="read_committed")
    with log.reader(isolation="read_committed", chunk_bytes=100) as reader:
        engine = log.engine
        assert engine is not None
        log.close()
        with pytest.raises(IllegalStateException, match="closed"):
            list(reader.records())
        with pytest.raises(KafkaStorageException, match="already closed"):
            engine.collect_aborted_transactions(0, 21)
    with pytest.raises(IllegalStateException, match="closed"):
        list(reading)


def test_a_cut_beyond_what_was_promised_is_refused_on_request(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    config = {"internal.segment.bytes": "1000"}
    with kafkalog.open_log(root, "t-0", config=config) as log:
        for _ in range(20):
            log.append(b"v" * 100)
        assert log.engine is not None
        last = log.engine.active_segment.base_offset
    for path in (root / "t-0").glob(f"{last:020d}.*"):
        path.unlink()
    with pytest.raises(CorruptRecordException, match="offsets up to 19 were flushed, but the log ends at"):
        kafkalog.open_log(root, "t-0", config=config, on_damage="raise")
    with kafkalog.open_log(root, "t-0", config=config) as log:  # Kafka's way
        assert log.end_offset == last


def test_a_partition_that_was_not_closed_in_order_is_recovered_though_its_neighbours_stay_open(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0") as log:
        log.append(b"0")
    with kafkalog.open_log(root, "t-1") as neighbour, kafkalog.open_log(root, "t-0") as log:
        neighbour.append(b"n")
        log.append(b"1")
        assert log.appends is not None
        log.appends.lease.give_up()  # as an interrupted close does
        with kafkalog.open_log(root, "t-0") as again:
            assert again.appends is not None
            assert not again.appends.lease.clean
            assert [record.value for record in again] == [b"0", b"1"]
        assert not (root / ".kafka_cleanshutdown").exists()
    assert (root / ".kafka_cleanshutdown").exists()  # it was recovered since, and all were closed in order


def test_a_log_is_not_cut_inside_a_batch_by_accident(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka drops whole batches; records below the offset would go with their batch."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"a", b"b"])
        log.append_many([b"c", b"d", b"e"])
        log.append(b"f")
        for offset in (3, 4):
            with pytest.raises(
                IllegalArgumentException,
                match=f"found {offset}, inside the batch of offsets 2 to 4.*to 2, which drops all of it, or to 5,",
            ):
                log.truncate(offset)
        assert [record.value for record in log] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        caplog.set_level("INFO", "kafkalog")
        log.truncate(9)
        log.truncate(5)
        assert log.delete_records(1) == 1
        with pytest.raises(IllegalArgumentException, match="to 2, which drops all of it, or to 5,"):
            log.truncate(3)
        log.truncate(2)
        assert [record.value for record in log] == [b"b"]
        log.truncate(1)  # all that is left: the records below were deleted
        assert (log.log_start_offset, log.end_offset) == (1, 1)
        log.append_many([b"g", b"h"])
        with pytest.raises(IllegalArgumentException, match="to 1, which drops all of it, or to 3,"):
            log.truncate(2)
        log.truncate(0)
        assert {record.levelname for record in caplog.records} == {"INFO"}  # it was requested
        assert log.engine is not None
        log.append_many([b"g", b"h"])
        log.engine.truncate_to(1)  # Kafka's way
        assert ([record.value for record in log], log.end_offset) == ([], 1)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_is_open_has_one_owner(tmp_path: Path, way: Callable[[object], object]) -> None:
    """A copy that was dropped closed the log."""
    with kafkalog.open_log(tmp_path, "t-0") as log, kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        log.append(b"x")
        for thing in (log, view, log.reader(), view.reader(), view._source, log.writer("w"), log.transaction("t")):
            with pytest.raises(TypeError, match=f"a {type(thing).__name__} cannot be copied or pickled"):
                way(thing)
        assert log.append(b"y") == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("read", ["records", "committed", "since", "arrow", "arrow since", "latest", "reader", "time"])
def test_a_read_beside_a_close_is_refused_as_of_a_closed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, read: str
) -> None:
    """The engine is closed first, and the Partition only when its checkpoints are written; readers come between."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([(b"a", b"key"), b"b"])
        with log.transaction("job") as txn:
            txn.append(b"c")
        with log.transaction("job") as txn:
            txn.append(b"d")
            txn.abort()
        engine, source = log.engine, log._source
        assert engine is not None
        assert source is not None
        reads: dict[str, Callable[[], object]] = {
            "records": lambda: list(log.records()),
            "committed": lambda: list(log.records(isolation="read_committed")),
            "since": lambda: list(log.records(start_time=1)),
            "arrow": log.read_arrow,
            "arrow since": lambda: log.read_arrow(start_time=1),
            "latest": lambda: log.latest().read_all(),
            "reader": lambda: list(log.reader()),
            "time": lambda: log.offset_for_time(1),
        }
        if when == "before":
            engine.shut_down()
        else:
            for name in ("_damage_at_end", "_extent", "offset_for_time"):
                used = getattr(source, name)

                def closed_under(*args: object, used: Callable[..., object] = used) -> object:
                    engine.shut_down()
                    return used(*args)

                monkeypatch.setattr(source, name, closed_under)
        with pytest.raises(IllegalStateException, match="is closed") as failure:
            reads[read]()
        assert type(failure.value) is IllegalStateException
