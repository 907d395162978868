"""Wrong types, words and ranges: every public method refuses them with their names, and changes nothing on the disk."""

from __future__ import annotations

import array
import decimal
import mmap
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidTopicException,
    KafkalogError,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
)
from tests.unit.doors import open_door

pa = pytest.importorskip("pyarrow")
NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Odd:
    """Something that is none of anything."""

    def __repr__(self) -> str:
        raise RuntimeError("not even shown")


RELEASED = memoryview(b"released")
RELEASED.release()
ODD_VIEWS = [memoryview(b"abcdef")[::2], memoryview(bytes(1)).cast("B", ()), RELEASED, np.array(3), np.zeros((2, 3)).T]

NO_NUMBER = [1.5, 1.0, "1", b"1", None, [1], Odd(), decimal.Decimal(1), np.float64(1), 1j]
NO_BYTES = ["text", 1, 1.5, [b"x"], {"a": 1}, Odd(), np.int64(5), np.array([object()]), np.zeros((4, 4), "u1")[:, 1]]
NO_BYTES += ODD_VIEWS
NO_HEADERS = [
    {"a": b"1"}, "ab", 5, b"ab", [("a",)], [("a", b"1", b"2")], [(b"a", b"1")], [("a", "1")], [("a", 1)], ["ab"],
    [("\ud800", b"1")], iter([("a", b"1")]), [None], Odd(), bytearray(b"ab"), memoryview(bytes(6)).cast("B", (2, 3)),
    *ODD_VIEWS, *([odd] for odd in ODD_VIEWS),
]  # fmt: skip
NO_HEADERS += [pair for odd in ODD_VIEWS for pair in ([("a", odd)], [(odd, b"")])]
NO_TIME = [1.5, "now", b"1", [1], -2, -(1 << 70), 1 << 63, np.uint64(1 << 63), Odd(), np.datetime64("2026-01-01")]
NO_RECORDS = [b"one", "one", None, 5, {b"a": b"b"}, [5], ["text"], [()], [(1,)], [(b"v", b"k", (), 0, 0)], [Odd()]]
NO_RECORDS += ODD_VIEWS
NO_COLUMN = [5, b"abc", "abc", {b"a": 1}, {b"a"}, *ODD_VIEWS]

Call = Callable[[kafkalog.Partition, Any], Any]


def drained(found: Iterator[Any]) -> None:
    for _ in found:
        pass


def sent(log: kafkalog.Partition, *args: Any, **options: Any) -> int:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return log.send_to(ours, *args, **options)


def in_transaction(log: kafkalog.Partition, **given: Any) -> None:
    txn = log.transaction("door")
    txn.begin()
    try:
        txn.append(**given)
    finally:
        txn.abort()


def appends(field: str) -> dict[str, Call]:
    """Every way in, with one field of one record."""
    place = ("value", "key", "headers", "timestamp").index(field)

    def row(value: Any) -> tuple[Any, ...]:
        whole: list[Any] = [b"v", b"k", (), 1]
        whole[place] = value
        return tuple(whole)

    def named(value: Any) -> dict[str, Any]:
        return {"value": b"v", field: value}

    def record(value: Any) -> kafkalog.Record:
        whole = kafkalog.Record("t", 0, 0, 0, 1, 0, b"k", b"v", ())
        return whole._replace(**{field: value})

    def columns(log: kafkalog.Partition, value: Any) -> Any:
        given: dict[str, Any] = {"values": [b"a", b"b"]}
        listed: list[Any] = [None, value]
        if field == "value":
            given["values"] = listed
        else:
            given[field if field == "headers" else field + "s"] = listed
        return log.append_columns(**given)

    return {
        "append": lambda log, value: log.append(**named(value)),
        "append_many of one": lambda log, value: log.append_many([row(value)]),
        "append_many of two": lambda log, value: log.append_many([b"good", row(value)]),
        "append_many of nine": lambda log, value: log.append_many([b"good"] * 8 + [row(value)]),
        "append_many of many": lambda log, value: log.append_many([b"good"] * 60_000 + [row(value)]),
        "append_many of records": lambda log, value: log.append_many([record(value)]),
        "append_columns": columns,
        "writer": lambda log, value: log.writer("door").append(**named(value)),
        "writer of many": lambda log, value: log.writer("door").append_many([b"good"] * 9 + [row(value)]),
    }


CALLS: dict[str, tuple[Call, list[Any]]] = {}
for _field, _wrong in (("value", NO_BYTES), ("key", NO_BYTES), ("headers", NO_HEADERS), ("timestamp", NO_TIME)):
    for _name, _call in appends(_field).items():
        CALLS[f"{_name}: {_field}"] = (_call, _wrong)
CALLS |= {
    "append_many": (lambda log, value: log.append_many(value), NO_RECORDS),
    "writer.append_many": (lambda log, value: log.writer("door").append_many(value), NO_RECORDS),
    "writer: sequence": (lambda log, value: log.writer("door").append(b"x", sequence=value),
                         [wrong for wrong in NO_NUMBER if wrong is not None] + [-1, 5, 1 << 31, 1 << 80]),
    "writer: name": (lambda log, value: log.writer(value), [None, 5, b"name", "", "\ud800"]),
    "transaction: name": (lambda log, value: log.transaction(value), [None, 5, b"name", "", "\ud800"]),
    "append_columns": (lambda log, value: log.append_columns(value), [None, *NO_COLUMN]),
    "append_columns: keys": (lambda log, value: log.append_columns([b"a"], keys=value), [[], [b"a"] * 2, *NO_COLUMN]),
    "append_columns: timestamps": (
        lambda log, value: log.append_columns([b"a"], timestamps=value),
        [
            [1.9], np.array([1.9]), np.array([1.0]), pa.array([1.5]), pa.array(["1"]), pa.array([[1]]), [b"1"], 5, [],
            np.array([1 << 63], "u8"), np.array([[1]]), np.array(["2026-01-01"], "datetime64[us]"), np.array([True]),
            pa.array([1234], pa.timestamp("us")), pa.array([-7]), np.array([-7]), [-7], range(-7, -6),
            pa.array([1 << 63], pa.uint64()), pa.array([-2], pa.timestamp("s")), np.array(["NaT"], "datetime64[ms]"),
        ],
    ),
    "append_columns: Arrow values": (
        lambda log, value: log.append_columns(value),
        [pa.array([1]), pa.array([[b"a"]]), pa.table({"value": [b"a"]}), pa.array([1.5]), pa.chunked_array([[1], [2]])],
    ),
    "append_columns: Arrow keys": (lambda log, value: log.append_columns(pa.array([b"a"]), keys=value),
                                   [["text"], [1], pa.array([1])]),
    "append_columns: Arrow headers": (
        lambda log, value: log.append_columns([b"a"], headers=value),
        [
            pa.array([b"a"]), pa.array([["a"]]), pa.array([[{"key": "a"}]]), pa.array([[{"key": 1, "value": b"1"}]]),
            pa.array([[{"key": None, "value": b"1"}]], HEADERS), pa.array([[None]], HEADERS),
        ],
    ),
    "append_batches": (lambda log, value: log.append_batches(value), [*NO_BYTES, None, b"", b"short", bytes(100)]),
    "delete_records": (lambda log, value: log.delete_records(value), [*NO_NUMBER, 99, -2, 1 << 70]),
    "truncate": (lambda log, value: log.truncate(value), [*NO_NUMBER, -1, 1 << 70]),
    "compact: passes": (lambda log, value: log.compact(passes=value), [*filter(None, NO_NUMBER), 0, -1]),
    "compact: dedupe_buffer_bytes":
        (lambda log, value: log.compact(dedupe_buffer_bytes=value), [*NO_NUMBER, 0, -1, 71]),
    "compact: roll": (lambda log, value: log.compact(roll=value), [1.5, "yes", None, [1], Odd()]),
    "records: start": (lambda log, value: drained(log.records(value)), [*filter(None, NO_NUMBER), -1, 99, 1 << 70]),
    "records: end": (lambda log, value: drained(log.records(0, value)), [*filter(None, NO_NUMBER), 1 << 70]),
    "records: start_time": (lambda log, value: drained(log.records(start_time=value)), [1.5, "1", Odd(), 1 << 63]),
    "records: end_time": (lambda log, value: drained(log.records(end_time=value)), [1.5, "1", Odd(), 1 << 63]),
    "records: times upside down":
        (lambda log, value: drained(log.records(start_time=value, end_time=0)), [1, NOW_MS]),
    "records: two ends": (lambda log, value: drained(log.records(0, value, end_time=1)), [0, 1]),
    "records: two starts": (lambda log, value: drained(log.records(value, start_time=1)), [0, 1]),
    "records: isolation": (lambda log, value: log.records(isolation=value), ["committed", None, 1, set(), ""]),
    "read_arrow: start": (lambda log, value: log.read_arrow(value), [*filter(None, NO_NUMBER), -1, 99]),
    "read_arrow: columns": (lambda log, value: log.read_arrow(columns=value), ["value", 5, ["nope"], [1], [["value"]]]),
    "read_arrow: isolation": (lambda log, value: log.read_arrow(isolation=value), ["committed", None]),
    "plot: name": (lambda log, value: log.plot(value), [b"segments", 5, 1.5, ["segments"], Odd()]),
    "plot: deep": (lambda log, value: log.plot(deep=value), ["yes", 1.5, None, [], Odd()]),
    "to_pandas: dtype_backend": (
        lambda log, value: log.to_pandas(dtype_backend=value), ["arrow", "", b"pyarrow", None, 5, ["numpy"], Odd()],
    ),
    "reader's to_pandas: dtype_backend": (
        lambda log, value: log.reader().to_pandas(dtype_backend=value), ["arrow", b"pyarrow", None, 5, Odd()],
    ),
    "reader's to_polars: columns": (
        lambda log, value: log.reader().to_polars(value), ["value", 5, ["nope"], [1], [["value"]], Odd()],
    ),
    "reader's to_duckdb: connection": (lambda log, value: log.reader().to_duckdb(value, "t"), [None, "x", 5, Odd()]),
    "arrow_batches: batch_rows": (lambda log, value: log.arrow_batches(batch_rows=value), [*NO_NUMBER, 0, -1]),
    "arrow_batches: two starts": (lambda log, value: log.arrow_batches(value, start_time=1), [0]),
    "latest: end": (lambda log, value: log.latest(value), [*filter(None, NO_NUMBER), 1 << 70]),
    "latest: isolation": (lambda log, value: log.latest(isolation=value), ["committed", None, 1]),
    "latest: tombstones": (lambda log, value: log.latest(tombstones=value), ["yes", None, 2, 1.0, Odd()]),
    "latest: columns": (lambda log, value: log.latest(columns=value), ["value", 5, ["nope"], [1], [["value"]]]),
    "latest: batch_rows": (lambda log, value: log.latest(batch_rows=value), [*NO_NUMBER, 0, -1]),
    "latest: memory_bytes": (lambda log, value: log.latest(memory_bytes=value), [*filter(None, NO_NUMBER), 0, 65535]),
    "reader: offset": (lambda log, value: log.reader(value), [*filter(None, NO_NUMBER), 1 << 70]),
    "reader: start_time": (lambda log, value: log.reader(start_time=value), [1.5, "1"]),
    "reader: two starts": (lambda log, value: log.reader(0, start_time=value), [0]),
    "reader: chunk_bytes": (lambda log, value: log.reader(chunk_bytes=value), [*NO_NUMBER, 0, -1, 1 << 40]),
    "reader: max_chunk_bytes": (
        lambda log, value: log.reader(max_chunk_bytes=value),
        [*filter(None, NO_NUMBER), 0, -1, 5],
    ),
    "reader: max_decompressed_bytes": (lambda log, value: log.reader(max_decompressed_bytes=value), [*NO_NUMBER, 0]),
    "reader: isolation": (lambda log, value: log.reader(isolation=value), ["committed", None]),
    "reader: out_of_range": (lambda log, value: log.reader(out_of_range=value), ["first", None, 1.5, -1, b"error"]),
    "reader: end_offset": (lambda log, value: log.reader(end_offset=value), [1.5, "1", Odd()]),
    "reader.seek": (lambda log, value: log.reader().seek(value), NO_NUMBER),
    "send_to: offset": (lambda log, value: sent(log, value), NO_NUMBER),
    "send_to: sock": (lambda log, value: log.send_to(value, 0), [None, 5, "socket"]),
    "send_to: max_bytes": (lambda log, value: sent(log, 0, value), [*NO_NUMBER, -1]),
    "send_to: isolation": (lambda log, value: sent(log, 0, isolation=value), ["committed", None]),
    "offset_for_time": (lambda log, value: log.offset_for_time(value), [*NO_NUMBER, 1 << 63]),
    "engine.delete_records": (lambda log, value: log.engine.delete_records(value), NO_NUMBER),
    "engine.truncate_to": (lambda log, value: log.engine.truncate_to(value), [*NO_NUMBER, -1]),
    "engine.truncate_fully_and_start_at": (lambda log, value: log.engine.truncate_fully_and_start_at(value), NO_NUMBER),
    "engine.maybe_increment_log_start_offset":
        (lambda log, value: log.engine.maybe_increment_log_start_offset(value), NO_NUMBER),
    "engine.assign_epoch_start_offset":
        (lambda log, value: log.engine.assign_epoch_start_offset(1, value), NO_NUMBER),
    "engine.assign_epoch_start_offset: epoch":
        (lambda log, value: log.engine.assign_epoch_start_offset(value, 5), [*NO_NUMBER, 1 << 31]),
    "engine.flush_upto_offset_exclusive":
        (lambda log, value: log.engine.flush_upto_offset_exclusive(value), NO_NUMBER),
    "engine.update_high_watermark": (lambda log, value: log.engine.update_high_watermark(value), NO_NUMBER),
    "engine.maybe_increment_high_watermark":
        (lambda log, value: log.engine.maybe_increment_high_watermark(value), NO_NUMBER),
}  # fmt: skip


def on_disk(root: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


@pytest.fixture(params=["open_log", "a store"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kafkalog.Partition]:
    with open_door(request.param, tmp_path, "t-0", clock=ManualClock(NOW_MS)) as log:
        log.append_many([(b"%d" % n, b"k", (), NOW_MS + n) for n in range(5)])
        yield log


@pytest.mark.parametrize("name", CALLS)
def test_refused_and_nothing_changed(name: str, log: kafkalog.Partition, tmp_path: Path) -> None:
    call, wrong = CALLS[name]
    before, standing = on_disk(tmp_path), (log.log_start_offset, log.end_offset, log.high_watermark)
    for value in wrong:
        with pytest.raises(KafkalogError) as caught:
            call(log, value)
        assert len(str(caught.value)) > 20, (name, type(value))
        assert (log.log_start_offset, log.end_offset, log.high_watermark) == standing, (name, type(value))
        assert on_disk(tmp_path) == before, (name, type(value))
    assert log.append(b"next") == 5
    assert [record.offset for record in log] == list(range(6))


@pytest.mark.parametrize("field", ["value", "key", "headers", "timestamp"])
def test_a_transaction_refuses_the_same(field: str, log: kafkalog.Partition) -> None:
    wrong = {"value": NO_BYTES, "key": NO_BYTES, "headers": NO_HEADERS, "timestamp": NO_TIME}[field]
    for value in wrong:
        with pytest.raises(IllegalArgumentException):
            in_transaction(log, **{"value": b"v", field: value})
    assert log.end_offset == 5


def test_the_same_input_the_same_record(log: kafkalog.Partition) -> None:
    """Odd but valid input: numpy numbers, subclasses, buffers of other items, in every way in."""

    class Bytes(bytes):
        pass

    class Text(str):
        pass

    with mmap.mmap(-1, 4) as mapped:
        mapped.write(b"mmap")
        octets = [
            None, b"", b"plain", Bytes(b"sub"), bytearray(b"array"), memoryview(b"view"),
            array.array("I", [1, 2]), np.arange(3, dtype=">i4"), np.zeros((2, 3), "f8"), memoryview(b"1234").cast("I"),
            np.bytes_(b"np"), mapped, np.empty(0), pa.py_buffer(b"arrow"),
        ]  # fmt: skip
        good: dict[str, list[Any]] = {
            "value": octets,
            "key": octets,
            "headers": [
                None, (), [], [("a", b"1")], (["a", None],), [(Text("t"), Bytes(b"x")), ("t", bytearray(b"y"))],
                [("v", memoryview(b"12345678").cast("I"))], [("ü", b"")],
            ],
            "timestamp": [None, -1, 0, 5, np.int64(7), np.uint8(9), True, NOW_MS, np.array(11)],
        }  # fmt: skip
        for field, those in good.items():
            for value in those:
                expected: Any = None
                for name, call in appends(field).items():
                    if name == "append_many of many" or (name.endswith("records") and field == "timestamp"):
                        continue  # a Record's -1 is no timestamp
                    call(log, value)
                    found = getattr(next(log.records(log.end_offset - 1)), field)
                    expected = found if expected is None else expected
                    assert found == expected, (field, name, value)
                    assert not isinstance(value, np.ndarray) or field == "timestamp" or found == value.tobytes()


def test_arrow_columns_of_every_kind(log: kafkalog.Partition) -> None:
    def last(count: int) -> list[kafkalog.Record]:
        return list(log.records(log.end_offset - count))

    for values in (
        pa.array([b"a", None, b"c"]),
        pa.array(["a", None, "c"]),
        pa.array(["a", None, "c"], pa.large_string()),
        pa.array(["a", None, "c"]).dictionary_encode(),
        pa.array([b"a", None, b"c"], pa.binary(1)),
        pa.array(["a", None, "c"], pa.string_view()),
        pa.chunked_array([["a"], [None, "c"]]),
        pa.array(["x", "a", None, "c", "y"])[1:4],
    ):
        assert len(log.append_columns(values, keys=[b"k", None, bytearray(b"l")])) == 3
        assert [(record.value, record.key) for record in last(3)] == [(b"a", b"k"), (None, None), (b"c", b"l")]
    for times, expected in (
        (pa.array([1, None, -1], pa.int32()), [1, NOW_MS, -1]),
        (pa.array([1, 2, 3], pa.timestamp("s")), [1000, 2000, 3000]),
        (pa.array([1000, 2000, None], pa.timestamp("us", "UTC")), [1, 2, NOW_MS]),
        (pa.nulls(3), [NOW_MS] * 3),
        (pa.chunked_array([[1, 2], [3]]), [1, 2, 3]),
        ([None, 2, np.int32(3)], [NOW_MS, 2, 3]),
        (np.array([1, 2, 3], "u8"), [1, 2, 3]),
        (np.array([1, 2, 3], "datetime64[ms]"), [1, 2, 3]),
        (range(1, 4), [1, 2, 3]),
    ):
        log.append_columns([b"a", b"b", b"c"], timestamps=times)
        assert [record.timestamp for record in last(3)] == expected
    table = log.read_arrow(log.end_offset - 3)
    log.append_columns(table["value"], keys=table["key"], timestamps=table["timestamp"], headers=table["headers"])
    assert [record[4:] for record in last(3)] == [record[4:] for record in last(6)[:3]]


def test_offset_for_time_is_the_same_read_only(log: kafkalog.Partition, tmp_path: Path) -> None:
    log.append(b"untimed", timestamp=-1)
    log.delete_records(2)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        for time in (-(1 << 63), -5, -4, -3, -2, -1, 0, NOW_MS, NOW_MS + 3, NOW_MS + 4, NOW_MS + 5, (1 << 63) - 1):
            assert log.offset_for_time(time) == view.offset_for_time(time), time
            assert log.offset_for_time(np.int64(time)) == view.offset_for_time(time)
        assert [log.offset_for_time(time) for time in (-3, -1, 0, NOW_MS + 3, NOW_MS + 5)] == [2, 2, 2, 3, None]
    with kafkalog.open_log(tmp_path / "other", "t-1") as empty:
        assert empty.offset_for_time(-1) is None
        with kafkalog.open_log(tmp_path / "other", "t-1", read_only=True) as view:
            assert view.offset_for_time(-1) is None


def test_start_time(log: kafkalog.Partition, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        for source in (log, view):
            for time, expected in ((-1, [0, 1, 2, 3, 4]), (NOW_MS + 3, [3, 4]), (NOW_MS + 5, [])):
                assert [record.offset for record in source.records(start_time=time)] == expected
                assert source.read_arrow(start_time=time)["offset"].to_pylist() == expected
                batches = list(source.arrow_batches(start_time=time, columns=["offset"], batch_rows=1))
                assert [batch["offset"].to_pylist() for batch in batches] == [[offset] for offset in expected]
                with source.reader(start_time=time) as reader:
                    assert [record.offset for record in reader.records()] == expected
    with log.reader(start_time=NOW_MS + 5) as reader:  # waits for what comes
        log.append(b"later")
        assert [record.value for record in reader.records()] == [b"later"]


def test_sequences_wrap_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the wrap only what the log remembers is a duplicate; a number that is far ahead never is."""
    top = 1 << 31
    with kafkalog.open_log(tmp_path, "t-0") as log:
        writer = log.writer("w")
        state = writer._producer.state
        monkeypatch.setattr(writer._producer, "state", lambda: (0, top - 10))
        writer.append_many([b"%d" % n for n in range(8)])  # as if all before had been written and then deleted
        monkeypatch.setattr(writer._producer, "state", state)
        assert writer.next_sequence == top - 2
        assert writer.append_many([b"a", b"b", b"c"], sequence=top - 3) == range(8, 10)
        assert writer.next_sequence == 0
        assert writer.append_many([b"c", b"d"], sequence=top - 1) == range(10, 11)
        assert writer.next_sequence == 1
        assert writer.append(b"again", sequence=0) is None
        assert writer.append(b"again", sequence=top - 1) is None
        assert writer.append(b"again", sequence=top - 10) is None  # the oldest that the log remembers
        for sequence in (top - 11, top // 2, 2, 5, -1, top):
            with pytest.raises(OutOfOrderSequenceException):
                writer.append(b"lost?", sequence=sequence)
        assert writer.append(b"e", sequence=1) == 11
    with kafkalog.open_log(tmp_path, "t-0") as log:
        writer = log.writer("w")
        assert writer.next_sequence == 2
        assert writer.append_many(iter([b"x", b"y", b"f"]), sequence=0) == range(12, 13)
        assert [record.value for record in log.records(8)] == [b"b", b"c", b"d", b"e", b"f"]


def test_far_ahead_of_a_new_name(log: kafkalog.Partition) -> None:
    writer = log.writer("new")
    for sequence in (1, 5, (1 << 30) + 5, (1 << 31) - 1, -1, 1 << 31):
        with pytest.raises(OutOfOrderSequenceException, match="the next one is 0"):
            writer.append(b"x", sequence=sequence)
    assert writer.append(b"x", sequence=np.int32(0)) == 5


def test_a_checkpoint_takes_offsets_only(tmp_path: Path) -> None:
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    checkpoint = OffsetCheckpointFile(path, OS_FILES)
    checkpoint.write({TopicPartition("t", 0): 5})
    for wrong in (1.5, "5", None):
        with pytest.raises(IllegalArgumentException, match="u-0: found"):
            checkpoint.write({TopicPartition("t", 0): 6, TopicPartition("u", 0): wrong})  # type: ignore[dict-item]
        assert checkpoint.read() == {TopicPartition("t", 0): 5}


def test_what_open_log_refuses_by_type(tmp_path: Path) -> None:
    for given in (
        {"compression": 5}, {"compression": ["lz4"]}, {"durability": 1}, {"durability": ["os"]}, {"config": "a=b"},
        {"config": {"segment.bytes": "big"}}, {"config": {5: "1"}}, {"topic_id": 5}, {"topic_id": "x"},
        {"producer_id_expiration_ms": 1.5}, {"producer_id_expiration_ms": "1"}, {"clock": None}, {"clock": 3},
        {"durability": np.array(["os", "fsync"])}, {"read_only": np.array([1, 2])}, {"read_only": "no"},
        {"create": np.array([1, 2])}, {"create": None}, {"create": np.array([])}, {"abort_left_open": []},
    ):  # fmt: skip
        with pytest.raises(KafkalogError) as refused:
            kafkalog.open_log(tmp_path / "logs", "t-0", **given)  # type: ignore[arg-type]
        (name,) = given
        assert name in str(refused.value) or name in ("compression", "config", "topic_id")
    for name in (None, 5, b"t-0", ("t", "0"), ("t", 1.0), ["t", 0], ("t",), (5, 0)):
        with pytest.raises(InvalidTopicException):
            kafkalog.open_log(tmp_path / "logs", name)  # type: ignore[arg-type]
    for folder in (None, 5, ["x"]):
        with pytest.raises(KafkalogError):
            kafkalog.open_log(folder, "t-0")  # type: ignore[arg-type]
    assert not (tmp_path / "logs").exists()


def test_a_reader_of_its_own(log: kafkalog.Partition, tmp_path: Path) -> None:
    with PartitionView(tmp_path, TopicPartition("t", 0)) as view:
        with pytest.raises(IllegalArgumentException):
            ChunkReader(view, 1.5)  # type: ignore[arg-type]
        with pytest.raises(OffsetOutOfRangeException):
            ChunkReader(view, 99).read_chunk()


def test_what_else_is_refused_by_name(log: kafkalog.Partition, tmp_path: Path) -> None:
    for wrong in (np.array([1, 2]), np.array([]), "yes", None, 2, 1.0):
        with pytest.raises(IllegalArgumentException, match=r"check_crcs: .*expected True or False"):
            log.reader(check_crcs=wrong)
        with pytest.raises(IllegalArgumentException, match=r"deep: .*expected True or False"):
            kafkalog.verify(tmp_path, deep=wrong)  # type: ignore[arg-type]
    for right in (True, np.True_, 1, np.int8(1)):
        assert log.reader(check_crcs=right)._check_crcs is True
    for progress in (3, np.array([1, 2]), "x"):
        with pytest.raises(IllegalArgumentException, match=r"progress: .*expected a function"):
            kafkalog.verify(tmp_path, progress=progress)  # type: ignore[arg-type]
    for columns in (memoryview(np.arange(6).reshape(2, 3)), memoryview(b"x"), b"value", bytearray(b"x")):
        with pytest.raises(IllegalArgumentException, match=r"columns: .*expected a list of names"):
            log.read_arrow(columns=columns)  # type: ignore[arg-type]
    for read in (log.read_arrow, log.arrow_batches, log.latest):
        with pytest.raises(IllegalArgumentException, match=r"columns: .*expected a list of names"):
            read(columns=iter(["key"]))  # type: ignore[operator]


class Liar(list):  # type: ignore[type-arg]
    """A list that says another length than it has."""

    def __init__(self, entries: list[Any], said: int) -> None:
        super().__init__(entries)
        self.said = said

    def __len__(self) -> int:
        return self.said


class LyingTuple(tuple):  # type: ignore[type-arg]
    __slots__ = ()

    def __len__(self) -> int:
        return 2


def test_columns_are_what_they_were_at_the_call(log: kafkalog.Partition) -> None:
    """Another thread may change a list; so may a number while its value is read."""
    before = log.end_offset
    columns: dict[str, list[Any]] = {"values": [b"v"] * 3, "keys": [b"k"] * 3, "headers": [[("h", b"")]] * 3}

    class Clearing:
        def __index__(self) -> int:
            for column in columns.values():
                column.clear()
            times.extend([7] * 5)
            return 5

    times: list[Any] = [Clearing(), 6, None]
    assert len(log.append_columns(timestamps=times, **columns)) == 3
    assert [(r.value, r.key, r.headers) for r in log.records(before)] == [(b"v", b"k", (("h", b""),))] * 3
    columns = {"values": [b"v"] * 3}
    times = [Clearing(), 6, 6]
    assert len(log.append_columns(np.array(columns["values"], object), timestamps=times)) == 3
    for said in (0, 1, 9):
        assert len(log.append_columns(Liar([b"a", b"b"], said), keys=[b"k"] * 2)) == 2
        assert len(log.append_columns([b"a", b"b"], keys=Liar([b"k"] * 2, said))) == 2
        assert len(log.append_columns([b"a", b"b"], timestamps=Liar([1, 2], said))) == 2
        assert len(log.append_columns(pa.array([b"a", b"b"]), timestamps=Liar([1, 2], said))) == 2
        assert len(log.append_many(Liar([b"a", b"b"], said))) == 2
    with pytest.raises(IllegalArgumentException, match="values 1"):
        log.append_columns(Liar([b"a"], 2), keys=[b"k"] * 2)
    for header in (LyingTuple(["h"]), LyingTuple(["h", b"", b""])):
        with pytest.raises(IllegalArgumentException, match="expected pairs"):
            log.append(b"x", headers=[header])

    class NoEntries:
        def __len__(self) -> int:
            return 1

    with pytest.raises(IllegalArgumentException, match="expected a column"):
        log.append_columns(NoEntries())  # type: ignore[arg-type]


def test_a_wrong_folder_is_not_an_empty_directory(log: kafkalog.Partition, tmp_path: Path) -> None:
    assert list(kafkalog.list_partitions(tmp_path)) == [("t", 0)]
    (tmp_path / "file").write_bytes(b"")
    for look in (kafkalog.list_partitions, kafkalog.verify):
        with pytest.raises(FileNotFoundError, match=r"no such log directory.*expected the directory that holds"):
            look(tmp_path / "typo")
        with pytest.raises(IllegalArgumentException, match="partition's own files"):
            look(tmp_path / "t-0")
        with pytest.raises(IllegalArgumentException, match="found a file"):
            look(tmp_path / "file")
