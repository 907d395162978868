"""No reader ends silently at damage: it returns the records before, then raises an error with file and position.

Other tests show what is no damage.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import chunk_reader as wire
from kafkalog._native.codec import batches as native
from kafkalog.cli.app import FINDINGS, invoke
from kafkalog.engine.files.os_files import OsFiles
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.loss import Lost
from kafkalog.errors import (
    CorruptIndexException,
    CorruptRecordException,
    IllegalStateException,
    OffsetOutOfRangeException,
)
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan

START_MS = 1_700_000_000_000
COUNT = 10
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
MARKER, POINTS = ".kafka_cleanshutdown", "recovery-point-offset-checkpoint"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def value(n: int) -> bytes:
    return b"value %03d " % n + b"x" * 80


def fill(root: Path, count: int = COUNT, *, codec: str = "none", config: dict[str, str] | None = None) -> Path:
    """One record a batch; the path of the first segment."""
    with kafkalog.open_log(root, "t-0", compression=codec, config=config) as log:
        for n in range(count):
            log.append(value(n), key=b"%03d" % n, timestamp=START_MS + n)
    return root / "t-0" / ("0" * 20 + ".log")


def unclean(root: Path) -> None:
    """As a directory looks that is in use, or was when its process died."""
    (root / MARKER).unlink(missing_ok=True)
    (root / POINTS).unlink(missing_ok=True)


def headers(path: Path) -> list[Any]:
    return native.headers(path.read_bytes())[0]


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def taken(records: Iterator[Any]) -> tuple[list[bytes], CorruptRecordException]:
    """The records before the error, and the error."""
    got: list[bytes] = []
    with pytest.raises(CorruptRecordException) as caught:
        got.extend(record.value for record in records)
    return got, caught.value


def all_or_error(records: Iterator[Any]) -> tuple[list[bytes], CorruptRecordException | None]:
    got: list[bytes] = []
    try:
        got.extend(record.value for record in records)
    except CorruptRecordException as error:
        return got, error
    return got, None


def by_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        for entry in batch.column("value").to_pylist():
            yield _Record(entry)


class _Record:
    def __init__(self, entry: bytes) -> None:
        self.value = entry


def ways(log: kafkalog.Partition) -> dict[str, Callable[[], Iterator[Any]]]:
    return {
        "list": lambda: iter(log),
        "records": lambda: log.records(0),
        "committed": lambda: log.records(isolation="read_committed"),
        "to the end": lambda: log.records(0, 1000),
        "reader": lambda: log.reader().records(),
        "small chunks": lambda: log.reader(chunk_bytes=50).records(),
        "data_batches": lambda: (
            _Record(value(header.base_offset)) for _, header in log.reader(0).data_batches() for _ in range(1)
        ),
        "arrow": lambda: by_arrow(log.arrow_batches()),
        "arrow, few rows": lambda: by_arrow(log.arrow_batches(batch_rows=2, isolation="read_committed")),
        "latest": lambda: by_arrow(log.latest()),
        "latest, few rows": lambda: by_arrow(log.latest(batch_rows=2, isolation="read_uncommitted")),
    }


Hurt = Callable[[], None]


def opened(root: Path, read_only: bool, hurt: Hurt, config: dict[str, str] | None = None) -> kafkalog.Partition:
    """A view of a directory in use that is damaged, or a writable log that is damaged while it is open."""
    if read_only:
        unclean(root)
        hurt()
        return kafkalog.open_log(root, "t-0", read_only=True)
    log = kafkalog.open_log(root, "t-0", config=config)
    hurt()
    return log


def check_all_ways(root: Path, good: int, path: Path, position: int, hurt: Hurt, *, read_only: bool) -> None:
    with opened(root, read_only, hurt, SMALL) as log:
        for name, way in ways(log).items():
            got, error = taken(way())
            assert got == [value(n) for n in range(good)], name
            assert (error.path, error.position) == (str(path), position), name
            assert "kafkalog salvage" in str(error), name
        with pytest.raises(CorruptRecordException):
            log.read_arrow()


# --- a flipped bit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_flipped_bit_in_the_middle(tmp_path: Path, codec: str, read_only: bool) -> None:
    path = fill(tmp_path, codec=codec)
    header = headers(path)[4]
    check_all_ways(
        tmp_path,
        4,
        path,
        header.position,
        lambda: flip(path, header.position + header.size - 3),
        read_only=read_only,
    )


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_flipped_bit_in_any_segment(tmp_path: Path, which: int, read_only: bool) -> None:
    fill(tmp_path, 60, config=SMALL)
    path = sorted((tmp_path / "t-0").glob("*.log"))[which]
    header = headers(path)[1]
    hurt = partial(flip, path, header.position + 70)
    check_all_ways(tmp_path, header.base_offset, path, header.position, hurt, read_only=read_only)


# (byte of the header, bits to flip): covered by the CRC or not
FIELDS = {
    "base offset falls": (7, 4),
    "base offset jumps": (5, 1),
    "size beyond the file": (9, 0x10),
    "size of a gigabyte": (8, 0x40),
    "negative size": (8, 0x80),
    "size of another batch's": (11, 0x02),
    "size below any batch": (11, 0xFF),
    "magic 6": (16, 4),
    "magic 0": (16, 2),
    "negative magic": (16, 0x80),
    "crc": (18, 1),
    "last offset delta": (26, 1),
    "negative last offset delta": (23, 0x80),
    "count": (60, 3),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read_only", [True, False])
def test_each_field_of_a_header(tmp_path: Path, field: str, read_only: bool) -> None:
    path = fill(tmp_path)
    header = headers(path)[4]
    byte, mask = FIELDS[field]
    hurt = partial(flip, path, header.position + byte, mask)
    check_all_ways(tmp_path, 4, path, header.position, hurt, read_only=read_only)


@pytest.mark.parametrize("down", [1, 5, 9])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_base_offset_that_falls_within_reach(tmp_path: Path, down: int, read_only: bool) -> None:
    """The batch claims offsets of the one before it, and its own: a search for these finds it."""
    with kafkalog.open_log(tmp_path, "t-0", config={"index.interval.bytes": "500"}) as log:
        for first in range(0, 100, 10):
            log.append_many([value(first + n) for n in range(10)])
    path = tmp_path / "t-0" / f"{0:020}.log"
    header = headers(path)[4]

    def hurt() -> None:
        with path.open("r+b") as file:
            file.seek(header.position)
            file.write(struct.pack(">q", header.base_offset - down))

    with opened(tmp_path, read_only, hurt, SMALL) as log:
        for name, way in ways(log).items():
            got, error = taken(way())
            whole = [value(n) for n in range(40)]
            assert got == (whole[::10] if name == "data_batches" else [] if name.startswith("latest") else whole), name
            assert (error.path, error.position) == (str(path), header.position), name
        for start in range(40, 50):
            with pytest.raises(CorruptRecordException, match=r"does not fit between|or a lower one|should be"):
                next(iter(log.records(start)))
    with kafkalog.open(tmp_path, read_only=True) as store:
        topic, lost = store.topic("t"), list[Lost]()
        for start in range(40, 50):
            with pytest.raises(CorruptRecordException, match="does not fit between its neighbours"):
                next(iter(topic.records(start)))
        assert topic.read_arrow(50).num_rows == 50
        assert topic.read_arrow(on_damage=lost.append).num_rows == 90
        assert [each.position for each in lost] == [header.position]


def test_a_magic_that_nobody_knows(tmp_path: Path) -> None:
    """Readers name it.

    The engine's read returns a part of a file and lists it as Kafka's FileRecords do: in Kafka only
    MemoryRecords, which a client creates from the bytes, refuses it."""
    path = fill(tmp_path)
    header = headers(path)[4]
    with kafkalog.open_log(tmp_path, "t-0") as log:
        flip(path, header.position + 16, 4)
        with pytest.raises(CorruptRecordException, match="Invalid magic found in record: 6 where offset 4 should be"):
            list(log)
        assert log.engine is not None
        answer: Any = log.engine.read(0, 1 << 20).records
        assert [batch.magic for batch in answer.batches()] == [2] * 4 + [6] + [2] * 5
        assert len(list(answer.records())) == COUNT
        assert native.headers(answer.to_bytes())[1] == native.BAD_MAGIC


@pytest.mark.parametrize("field", FIELDS)
def test_a_clean_open_over_damage(tmp_path: Path, field: str) -> None:
    """The engine believes what was closed cleanly, and finds its end before the damage or not at all."""
    path = fill(tmp_path)
    header = headers(path)[4]
    byte, mask = FIELDS[field]
    flip(path, header.position + byte, mask)
    if field == "negative size":  # Kafka refuses the log as well
        with pytest.raises(CorruptRecordException) as caught:
            kafkalog.open_log(tmp_path, "t-0")
        assert (caught.value.path, caught.value.position) == (str(path), header.position)
        return
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for name, way in ways(log).items():
            got, error = taken(way())
            assert got == [value(n) for n in range(4)], name
            assert (error.path, error.position) == (str(path), header.position), name


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read_only", [True, False])
def test_no_seek_passes_over_damage(tmp_path: Path, field: str, read_only: bool) -> None:
    path = fill(tmp_path, 14, config={"index.interval.bytes": "500"})
    header = headers(path)[6]
    byte, mask = FIELDS[field]
    with opened(tmp_path, read_only, partial(flip, path, header.position + byte, mask)) as log:
        for start in range(14):
            got, error = all_or_error(log.records(start))
            if error is None:
                assert start > 6
                assert got == [value(n) for n in range(start, 14)]
            else:
                assert error.position is not None
        got, _ = taken(log.reader(6).records())
        assert got == []


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [True, False])
def test_damage_that_a_chunk_cuts_off_from_its_neighbours(tmp_path: Path, read_only: bool) -> None:
    path = fill(tmp_path)
    header = headers(path)[4]
    hurt = partial(flip, path, header.position + 5)  # this base offset jumps; only the batch after it shows it
    with opened(tmp_path, read_only, hurt) as log:
        for chunk_bytes in range(61, 3 * header.size):
            got, error = taken(log.reader(chunk_bytes=chunk_bytes).records())
            assert (got, error.position) == ([value(n) for n in range(4)], header.position), chunk_bytes


def test_a_page_of_zeros(tmp_path: Path) -> None:
    path = fill(tmp_path, 200)
    unclean(tmp_path)
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    hurt = max(header.position for header in native.headers(fill(tmp_path / "b", 200).read_bytes())[0]
               if header.position < 4096)  # fmt: skip
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        got, error = taken(iter(log))
        assert len(got) == hurt // headers(path)[0].size
        assert error.position == hurt
        assert log.end_offset == 200


@pytest.mark.parametrize("read_only", [True, False])
def test_a_segment_that_somebody_cut(tmp_path: Path, read_only: bool) -> None:
    fill(tmp_path / "whole", 60, config=SMALL)
    name = sorted((tmp_path / "whole" / "t-0").glob("*.log"))[1].name
    listed = headers(tmp_path / "whole" / "t-0" / name)
    for cut in (1, 8, 16, 17, 18, 100, listed[-1].size, listed[-1].size + 5):
        root = tmp_path / f"cut{cut}"
        shutil.copytree(tmp_path / "whole", root)
        path = root / "t-0" / name
        os.truncate(path, path.stat().st_size - cut)
        last = [header for header in listed if header.position + header.size <= path.stat().st_size][-1]
        with kafkalog.open_log(root, "t-0", read_only=read_only, config=None if read_only else SMALL) as log:
            if cut == listed[-1].size and not read_only:
                continue  # ends with a whole batch: offsets may have gaps
            if cut == listed[-1].size:
                assert len(list(log)) == 59  # no index entry names the last batch
                continue
            got, error = taken(iter(log))
            assert len(got) == last.last_offset + 1
            assert (error.path, error.position) == (str(path), last.position + last.size)


def test_a_cut_at_a_batch_is_told_by_the_index(tmp_path: Path) -> None:
    fill(tmp_path, 60, config=SMALL)
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    os.truncate(path, headers(path)[2].position)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        got, error = taken(iter(log))
        assert (error.path, error.position) == (str(path), path.stat().st_size)
        assert len(got) == headers(path)[-1].last_offset + 1
        assert "the file ends" in str(error)


def test_a_log_that_was_cut_under_its_writer(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for n in range(COUNT):
            log.append(value(n), timestamp=START_MS)
        path = tmp_path / "t-0" / ("0" * 20 + ".log")
        for cut in (10, headers(path)[-1].size - 10):
            os.truncate(path, path.stat().st_size - cut)
            got, error = taken(iter(log))
            assert got == [value(n) for n in range(9)]
            assert error.path == str(path)


# --- what is not written yet, and what is ------------------------------------------------------------------


def test_the_tail_is_judged_by_what_is_known_to_be_written(tmp_path: Path) -> None:
    path = fill(tmp_path / "clean")
    last = headers(path)[-1]
    data = path.read_bytes()
    points = (tmp_path / "clean" / POINTS).read_text()
    tails = {
        "torn": data[: last.position + 30],
        "short": data[: last.position + 11],
        "gone": data[: last.position],
        "zero": data[: last.position] + bytes(500),
        "bad": data[:-1] + bytes([data[-1] ^ 1]),
        "garbage": data[: last.position] + b"\xa5" * 500,
    }
    for tail, marker, pointed in itertools.product(tails, (True, False), ("there", "absent", "below")):
        path.write_bytes(tails[tail])
        (tmp_path / "clean" / MARKER).write_text("{}") if marker else (tmp_path / "clean" / MARKER).unlink(True)
        (tmp_path / "clean" / POINTS).unlink(missing_ok=True)
        if pointed != "absent":
            (tmp_path / "clean" / POINTS).write_text(points if pointed == "there" else points.replace("10", "4"))
        damage = pointed == "there" or (marker and not (tail == "gone" or (tail == "zero" and pointed == "below")))
        with kafkalog.open_log(tmp_path / "clean", "t-0", read_only=True) as log:
            if damage:
                got, error = taken(iter(log))
                assert (error.path, error.position) == (str(path), last.position), (tail, marker, pointed)
            else:
                got = [record.value for record in log]
            assert got == [value(n) for n in range(9)], (tail, marker, pointed)
            assert [record.value for record in log.records(0, 9)] == got  # that range is whole


def test_garbage_behind_a_whole_log(tmp_path: Path) -> None:
    path = fill(tmp_path)
    with path.open("ab") as file:
        file.write(b"\xa5" * 40)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        got, error = taken(iter(log))
        assert len(got) == COUNT
        assert "closed cleanly" in str(error)
    unclean(tmp_path)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert len(list(log)) == COUNT


@pytest.mark.parametrize("preallocated", [0, 3 << 20])
def test_a_broker_that_is_writing(tmp_path: Path, preallocated: int) -> None:
    """The file grows byte by byte, or bytes come into zeros: never damage, and what is whole is read after a look."""
    source = fill(tmp_path / "source", 6)
    data = source.read_bytes()
    size = len(data) // 6
    target = tmp_path / "live" / "t-0" / source.name
    target.parent.mkdir(parents=True)
    target.write_bytes(bytes(preallocated))
    with kafkalog.open_log(tmp_path / "live", "t-0", read_only=True) as log, target.open("r+b") as file:
        reader = log.reader(0)
        seen: list[bytes | None] = []
        for end in range(0, len(data), 7):
            os.pwrite(file.fileno(), data[end : end + 7], end)
            log.refresh()
            seen += [record.value for record in reader.records()]
            assert len(seen) == log.end_offset
            assert min(end + 7, len(data)) // size <= len(seen) <= (end + 8) // size  # a batch's last byte is zero
    assert seen == [value(n) for n in range(6)]


def test_a_writer_that_finishes_its_batch_while_we_judge_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fill(tmp_path)
    unclean(tmp_path)
    data = path.read_bytes()
    cut = headers(path)[4].position + 20
    path.write_bytes(data[:cut])
    from kafkalog.engine.log import view as module

    search = module.next_batch

    def late(file: Any, start: int, end: int, **limits: int) -> Any:
        path.write_bytes(data)
        return search(file, start, len(data), **limits)

    monkeypatch.setattr(module, "next_batch", late)
    with PartitionView(tmp_path, "t-0") as view:
        assert view.log_end_offset in (4, 5)
        view.refresh()
        assert view.log_end_offset == COUNT


# --- other ways ----------------------------------------------------------------------------------------------


def test_cat(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = fill(tmp_path)
    header = headers(path)[4]
    flip(path, header.position + 80)
    assert invoke(["cat", str(tmp_path), "t-0"]) == FINDINGS
    out, err = capfdbinary.readouterr()
    assert out == b"".join(value(n) + b"\n" for n in range(4))
    assert f"{path} at byte {header.position}: a bad CRC".encode() in err
    assert b"kafkalog salvage" in err


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("field", ["crc", "size of a gigabyte", "negative size", "last offset delta"])
def test_a_fetch_answers_with_the_code_for_damage(tmp_path: Path, field: str, read_only: bool) -> None:
    path = fill(tmp_path)
    header = headers(path)[4]
    byte, mask = FIELDS[field]
    with opened(tmp_path, read_only, partial(flip, path, header.position + byte, mask)) as log:
        left, right = socket.socketpair()
        with left, right:
            log.send_to(left, 4)
            code, data = wire.receive_message_set(right)
        assert (code, data) == (wire.CORRUPT_MESSAGE, b"")


def test_a_fetch_at_an_end_that_is_none(tmp_path: Path) -> None:
    path = fill(tmp_path)
    os.truncate(path, headers(path)[-1].position)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        left, right = socket.socketpair()
        with left, right:
            log.send_to(left, 9)
            assert right.recv(100) == struct.pack(">ih", 2, wire.CORRUPT_MESSAGE)


def test_times_over_damage(tmp_path: Path) -> None:
    path = fill(tmp_path)
    header = headers(path)[4]
    flip(path, header.position + 80)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert log.offset_for_time(START_MS + 2) == 2
        with pytest.raises(CorruptRecordException) as caught:
            log.offset_for_time(START_MS + 6)
        assert (caught.value.path, caught.value.position) == (str(path), header.position)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("lie", [4, 129])
def test_times_over_an_offset_that_lies(tmp_path: Path, lie: int, read_only: bool) -> None:
    path = fill(tmp_path, 6)
    header = headers(path)[2]
    with kafkalog.open_log(tmp_path, "t-0", read_only=read_only) as log:
        log.offset_for_time(START_MS)
        with path.open("r+b") as file:  # no CRC covers it
            file.seek(header.position)
            file.write(lie.to_bytes(8, "big"))
        for time_ms in (START_MS + 2, START_MS + 3):
            for ask in (log.offset_for_time, lambda time: list(log.records(start_time=time))):
                with pytest.raises(CorruptRecordException) as caught:
                    ask(time_ms)
                assert (caught.value.path, caught.value.position) == (str(path), header.position)
        assert log.offset_for_time(START_MS + 1) == 1  # it is before the wrong time
        lost: list[kafkalog.Lost] = []
        got = [record.offset for record in log.records(start_time=START_MS + 2, on_damage=lost.append)]
        assert (got, [(each.position, each.first_offset) for each in lost]) == ([3, 4, 5], [(header.position, 2)])


def test_behind_an_offset_that_lies_a_batch_begins_before_what_is_asked_for(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for number in range(3):
            log.append_many([b"%d" % number] * 5)
    path = tmp_path / "t-0" / ("0" * 20 + ".log")
    data = bytearray(path.read_bytes())
    at = headers(path)[1].position
    data[at : at + 8] = (11).to_bytes(8, "big")  # was 5, and 10 follows
    path.write_bytes(data)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        for start in range(10, 15):
            found = [record.offset for record in log.records(start, on_damage=lambda lost: None)]
            assert found == [*range(start, 15)]
        assert [record.offset for record in log.records(last=1, on_damage=lambda lost: None)] == [14]


@pytest.mark.parametrize("read_only", [True, False])
def test_an_index_that_points_into_nowhere(tmp_path: Path, read_only: bool) -> None:
    path = fill(tmp_path, 60, config={"index.interval.bytes": "300"})
    index = path.with_suffix(".index")
    whole = index.read_bytes()
    assert len(whole) > 80
    for entry in (2, 5):
        for at, mask in ((3, 8), (7, 1), (6, 1), (4, 0x40)):
            data = bytearray(whole)
            data[entry * 8 + at] ^= mask
            index.write_bytes(data)
            with kafkalog.open_log(tmp_path, "t-0", read_only=read_only) as log:
                for start in range(0, 60, 3):
                    assert [r.value for r in log.records(start)] == [value(n) for n in range(start, 60)], (entry, at)
            index.write_bytes(whole)


def test_a_damaged_marker_hides_nothing_from_read_committed(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(value(0))
        for number in range(3):
            with log.transaction("x") as txn:
                txn.append(b"txn %d" % number)
        log.append(b"last")
    unclean(tmp_path)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    path = tmp_path / "t-0" / ("0" * 20 + ".log")
    marker = next(header for header in headers(path) if header.is_control)
    flip(path, marker.position + 22, 0x10)  # no marker any more: the transaction looks open
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        _, error = taken(log.records(isolation="read_committed"))
        assert error.position == marker.position


def test_a_damaged_transaction_index_is_named(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        txn = log.transaction("x")
        txn.begin()
        txn.append(b"gone")
        txn.abort()
    index = tmp_path / "t-0" / ("0" * 20 + ".txnindex")
    flip(index, 1)
    with (
        kafkalog.open_log(tmp_path, "t-0", read_only=True) as log,
        pytest.raises(CorruptIndexException, match="impossible entry") as caught,
    ):
        list(log.records(isolation="read_committed"))
    assert caught.value.path == str(index)


@pytest.mark.parametrize(
    "left", [0, 1]
)  # the segment of the two; the last one's index may be written to if the log was not closed
def test_a_cut_transaction_index_is_named(tmp_path: Path, left: int) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for _ in range(2):
            txn = log.transaction("x")
            txn.begin()
            txn.append(b"gone")
            txn.abort()
            if not log.engine.number_of_segments > 1:  # type: ignore[union-attr]
                log.engine.roll()  # type: ignore[union-attr]
    index = sorted((tmp_path / "t-0").glob("*.txnindex"))[left]
    with index.open("r+b") as file:
        file.truncate(20)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert len(list(log)) == 2
        with pytest.raises(CorruptIndexException, match=r"20 bytes of an entry.*reindex") as caught:
            list(log.records(isolation="read_committed"))
    assert (caught.value.path, caught.value.position) == (str(index), 0)
    for opens in range(2):  # refusing changes nothing
        if opens == 0 or left == 0:  # recovery rebuilds the last segment's
            with pytest.raises(CorruptIndexException, match="20 bytes of an entry"):
                kafkalog.open_log(tmp_path, "t-0", on_damage="raise")
    invoke(["reindex", "--yes", str(tmp_path)])
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert list(log.records(isolation="read_committed")) == []
    with kafkalog.open_log(tmp_path, "t-0", on_damage="raise") as log:
        assert list(log.records(isolation="read_committed")) == []


def test_an_entry_that_is_being_written_is_none_yet(tmp_path: Path) -> None:
    writing = kafkalog.open_log(tmp_path, "t-0")
    txn = writing.transaction("x")
    txn.begin()
    txn.append(b"gone")
    txn.abort()
    index = tmp_path / "t-0" / ("0" * 20 + ".txnindex")
    with index.open("ab") as file:
        file.write(bytes(7) + b"1")
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert list(log.records(isolation="read_committed")) == []
    writing.close()


# --- a log that changes under its readers -------------------------------------------------------------------


def test_retention_under_a_read_only_reader(tmp_path: Path) -> None:
    fill(tmp_path, 100, config=SMALL)
    paths = sorted((tmp_path / "t-0").glob("*.log"))
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        running = log.reader(0, chunk_bytes=300).records()
        resetting = log.reader(0, chunk_bytes=300, out_of_range="earliest").records()
        assert next(running).offset == next(resetting).offset == 0
        for path in paths[:3]:
            path.rename(path.with_suffix(".log.deleted"))
        paths[3].unlink()
        base = int(paths[4].stem)
        first = headers(path=paths[0].with_suffix(".log.deleted"))
        held: list[int] = [0]
        with pytest.raises(OffsetOutOfRangeException, match="the log start moved"):
            held.extend(record.offset for record in running)
        assert held == list(range(first[-1].last_offset + 1))  # a segment that is held is read on
        assert [r.offset for r in resetting][-1] == 99
        assert log.log_start_offset == base
        with pytest.raises(OffsetOutOfRangeException):
            log.reader(3).read_chunk()


def test_threads_share_a_read_only_log_beside_its_writer(tmp_path: Path) -> None:
    config = {"internal.segment.bytes": "5000", "retention.bytes": "12000", "file.delete.delay.ms": "0"}
    errors: list[BaseException] = []
    stop = threading.Event()
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        log.append_many([value(n) for n in range(20)])
        with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:

            def read(isolation: str) -> None:
                while not stop.is_set():
                    try:
                        offset = -1
                        for record in view.records(isolation=isolation):
                            assert record.offset > offset
                            assert record.value == value(record.offset)
                            offset = record.offset
                        view.offset_for_time(START_MS)
                    except OffsetOutOfRangeException:
                        pass
                    except BaseException as error:
                        errors.append(error)
                        return

            threads = [threading.Thread(target=read, args=(f"read_{kind}committed",)) for kind in ("un", "", "un")]
            for thread in threads:
                thread.start()
            for n in range(20, 600):
                log.append(value(n))
                if n % 20 == 0:
                    log.delete_old_segments()
            stop.set()
            for thread in threads:
                thread.join()
    assert errors == []


def test_a_closed_view_says_so(tmp_path: Path) -> None:
    fill(tmp_path, 60, config=SMALL)
    log = kafkalog.open_log(tmp_path, "t-0", read_only=True)
    records = log.records()
    assert next(records).offset == 0
    log.close()
    with pytest.raises(IllegalStateException, match="closed"):
        list(records)


def test_truncation_under_a_reader_gives_each_offset_once(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "6000"}) as log:
        log.append_many([value(n) for n in range(50)])
        for n in range(50, 60):
            log.append(value(n))
        reader = log.reader(0, chunk_bytes=200)
        seen = [record.offset for record in itertools.islice(reader.records(), 56)]
        log.truncate(52)
        with pytest.raises(OffsetOutOfRangeException):
            reader.read_chunk()
        log.append_many([b"new"] * 20)  # one batch from 52 to 71, across the reader's position
        more = [record.offset for record in reader.records()]
        assert seen + more == sorted(set(seen + more))
        assert more[-1] == 71
        reader = log.reader(54)
        log.truncate(50)
        log.append(value(50))
        with pytest.raises(OffsetOutOfRangeException):
            list(reader.records())


# --- a rolled segment that somebody cut short -----------------------------------------------------------------


def rolled(root: Path, interval: str) -> Path:
    """Segments with offsets 0-3, 4-7 and 8-11; the one in the middle."""
    with kafkalog.open_log(
        root, "t-0", config={"internal.segment.bytes": "310", "index.interval.bytes": interval}
    ) as log:
        for n in range(12):
            log.append(b"v%02d" % n * 3, timestamp=1000 + n)
    return root / "t-0" / f"{4:020d}.log"


@pytest.mark.parametrize("interval", ["0", "4096"])
@pytest.mark.parametrize("left", range(5))
def test_a_search_by_time_goes_on_behind_a_segment_that_was_cut_short(tmp_path: Path, left: int, interval: str) -> None:
    path = rolled(tmp_path, interval)
    os.truncate(path, headers(path)[left].position if left < 4 else path.stat().st_size)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        there = {record.timestamp: record.offset for record in log}
        for time_ms in range(1000, 1012):
            first = min(offset for timestamp, offset in there.items() if timestamp >= time_ms)
            assert log.offset_for_time(time_ms) == first
            assert next(log.records(start_time=time_ms)).offset == first
        assert log.offset_for_time(1012) is None


def test_a_search_by_time_goes_on_behind_a_segment_that_lies_below_the_log_start(tmp_path: Path) -> None:
    """Kafka's answer, which the engine keeps, searches one segment only."""
    rolled(tmp_path, "0")
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert log.engine is not None
        log.truncate(8)
        log.append(b"late", timestamp=5000)
        log.append(b"later", timestamp=1)
        log.engine.roll()
        log.append(b"latest", timestamp=6000)
        log.delete_records(9)
        assert log.offset_for_time(4000) == log.offset_for_time(5001) == 10
        assert log.engine.fetch_offset_by_timestamp(4000) is None


@pytest.mark.parametrize("interval", ["0", "4096"])
def test_a_rolled_segment_that_was_emptied(tmp_path: Path, interval: str) -> None:
    path = rolled(tmp_path, interval)
    os.truncate(path, 0)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        for way in (lambda: iter(log), lambda: log.records(6), lambda: iter([log.offset_for_time(1005)])):
            with pytest.raises(CorruptRecordException) as caught:
                list(way())
            error = caught.value
            assert (error.path, error.position) == (str(path), 0)
            assert "the file ends before batches that its index names" in str(error)
        got, _ = taken(iter(log))
        assert got == [b"v%02d" % n * 3 for n in range(4)]
    # Empty to its indexes, too, is what compaction makes of a segment of which nothing is left.
    for suffix in (".index", ".timeindex"):
        os.truncate(path.with_suffix(suffix), 0)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert [record.offset for record in log] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_an_empty_last_segment_is_none_that_was_emptied(tmp_path: Path) -> None:
    rolled(tmp_path, "0")
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.engine.roll()
        with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
            assert len(list(view)) == 12
            assert view.offset_for_time(2000) is None


def test_a_log_that_was_cut_at_its_start_inside_of_a_batch_misses_nothing(tmp_path: Path) -> None:
    """The truncation takes the whole batch: the files end below the log start, and below the flushed end."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"v"] * 5)
        log.append_many([b"v"] * 9)
        log.delete_records(7)
        log.truncate(7)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert list(log) == []


class _LookedAt(OsFiles):
    """Calls `before` before a directory is listed."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def list_dir(self, path: str) -> list[str]:
        self.before()
        return super().list_dir(path)


@pytest.mark.parametrize("timestamp_ms", [1005, 1007, 1010, 1012])
def test_a_view_searches_by_time_beside_a_truncation(tmp_path: Path, timestamp_ms: int) -> None:
    """A tail that is torn at the first read, and whole or deleted at the second, is no damage."""
    path = rolled(tmp_path, "0")
    data = path.read_bytes()
    files = _LookedAt()
    with PartitionView(tmp_path, "t-0", files=files) as view:
        os.truncate(path, 40)
        files.before = lambda: path.write_bytes(data)
        first = max(timestamp_ms - 1000, 0)
        assert view.offset_for_time(timestamp_ms) == (first if first < 12 else None)
        files.before = lambda: None
        os.truncate(path, 40)
        with pytest.raises(CorruptRecordException):
            view.offset_for_time(1012)


@pytest.mark.parametrize("how", ["cut", "garbled"])
def test_an_index_of_aborted_transactions_that_is_damaged_under_an_open_log(tmp_path: Path, how: str) -> None:
    path = tmp_path / "t-0" / ("0" * 20 + ".txnindex")
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for _ in range(3):
            with log.transaction("job") as txn:
                txn.append(b"v")
                txn.abort()
        whole = path.read_bytes()
        path.write_bytes(whole[:50] if how == "cut" else b"\x73" + whole[1:])
        with pytest.raises(CorruptIndexException) as caught:
            list(log.records(isolation="read_committed"))
        assert (caught.value.path, caught.value.position) == (str(path), 50 if how == "cut" else 0)
        assert "kafkalog reindex" in str(caught.value)
    assert invoke(["reindex", str(tmp_path), "--yes"]) == 0
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert list(log.records(isolation="read_committed")) == []


# --- Spark's plan and its tasks, without Spark ---------------------------------------------------------------


def spark_rows(root: Path, **options: str) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from kafkalog.spark.tasks import read_range

    parsed = parse_options({"path": str(root), "subscribe": "t", **options})
    for work in plan(parsed):
        for batch in read_range(work, parsed, ["value"]):
            for entry in batch.column("value").to_pylist():
                yield _Record(entry)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("where", [0, 1, -1])
def test_spark_over_damage(tmp_path: Path, field: str, where: int, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 60, config=SMALL)
    path = sorted((tmp_path / "t-0").glob("*.log"))[where]
    listed = headers(path)
    header = listed[3]
    byte, mask = FIELDS[field]
    flip(path, header.position + byte, mask)
    good = [value(n) for n in range(header.base_offset)]
    behind = [value(n) for n in range(listed[-1].last_offset + 1, 60)]
    for committed in ("read_uncommitted", "read_committed"):
        options = {"kafka.isolation.level": committed}
        got, error = taken(spark_rows(tmp_path, **options))
        assert (got, error.path, error.position) == (good, str(path), header.position)
        caplog.clear()
        rows = [record.value for record in spark_rows(tmp_path, failOnDataLoss="false", **options)]
        assert rows == good + behind
        assert any(str(path) in message and "at byte" in message for message in caplog.messages)
        split = {"maxBytesPerPartition": "500", **options}
        with pytest.raises(CorruptRecordException):
            list(spark_rows(tmp_path, **split))
        rows = [record.value for record in spark_rows(tmp_path, failOnDataLoss="false", **split)]
        assert set(good + behind) <= set(rows)
        assert len(rows) == len(set(rows))


def test_spark_at_an_end_that_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = fill(tmp_path)
    os.truncate(path, headers(path)[-1].position)
    with pytest.raises(CorruptRecordException, match="were flushed"):
        list(spark_rows(tmp_path))
    assert len(list(spark_rows(tmp_path, failOnDataLoss="false"))) == 9
    assert any("were flushed" in message for message in caplog.messages)
    assert len(list(spark_rows(tmp_path, endingOffsets='{"t":{"0":9}}'))) == 9
