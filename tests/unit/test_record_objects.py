"""`Record` compared with a named tuple of its fields, and the walk that creates records on demand."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.chunk_reader import ChunkReader, walk_records
from kafkalog._native.codec.batches import compute_crc
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format import codecs
from kafkalog.engine.format.builder import empty_batch_header
from kafkalog.errors import BadBytesError, InvalidRecordException
from kafkalog.records import Record
from tests.reference.legacy import build_batch

NOW_MS = 1_700_000_000_000
FIELDS = ("t", 3, 1, 42, 77, 0, b"k", b"v", (("h", b"x"), ("n", None)))
Twin = namedtuple("Twin", Record._fields)  # type: ignore[misc]
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def read_one(place: Path) -> kafkalog.Record:
    """One that was read, and has made nothing yet."""
    with kafkalog.open_log(place, "t-3", clock=ManualClock(NOW_MS)) as log:
        log.append_batches(build_batch([(77, b"k", b"v", [("h", b"x"), ("n", None)])], partition_leader_epoch=0))
        return next(iter(log))


@pytest.fixture(params=["made", "read", "detached"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> kafkalog.Record:
    if request.param == "made":
        return Record(*FIELDS)._replace(leader_epoch=0, offset=0)
    if request.param == "read":
        return read_one(tmp_path)
    with kafkalog.open_log(tmp_path, "t-3") as log:
        log.append_batches(build_batch([(77, b"k", b"v", [("h", b"x"), ("n", None)])]))
        log.append_many([b"behind"] * 3)
        first, *_ = log
        return first


def test_it_is_what_a_named_tuple_is(record: kafkalog.Record) -> None:
    fields = ("t", 3, 0, 0, 77, 0, b"k", b"v", (("h", b"x"), ("n", None)))
    twin = Twin(*fields)
    assert record == fields
    assert fields == record
    assert record == twin
    assert not record.__ne__(Record(*fields))
    assert record != twin._replace(value=b"w")
    assert record != 5
    assert hash(record) == hash(twin) == hash(fields)
    assert repr(record) == "<Record t-3@0 1970-01-01T00:00:00.077Z, key 'k', value 'v', 2 headers>"
    assert tuple(record) == fields
    assert (len(record), record[0], record[-1], record[6:8]) == (9, "t", fields[-1], (b"k", b"v"))
    topic, partition, _, offset, *_ = record
    assert (topic, partition, offset) == ("t", 3, 0)
    assert record._asdict() == twin._asdict()
    assert list(record._asdict()) == list(Record._fields)
    assert record._replace(value=b"w", offset=9) == twin._replace(value=b"w", offset=9)
    assert Record._make(fields) == record
    assert record < twin._replace(offset=1) <= Record(*twin._replace(offset=1))
    assert sorted([record._replace(offset=2), record])[0] is record
    assert record.__add__((1,)) == (*fields, 1)
    assert record.__radd__((1,)) == (1, *fields)
    assert (record.index(b"k"), record.count(0)) == (fields.index(b"k"), fields.count(0))
    assert b"v" in record
    assert list(reversed(record)) == list(reversed(fields))
    assert isinstance(record, Sequence)
    assert {name: getattr(record, name) for name in Record._fields} == twin._asdict()
    for again in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):
        assert type(again) is Record
        assert again == record
    match record:
        case Record(topic="t", value=value):
            assert value == b"v"
        case _:
            raise AssertionError(record)


def test_it_cannot_be_changed(record: kafkalog.Record) -> None:
    for name in (*Record._fields, "checksum", "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, 1)
    with pytest.raises(TypeError):
        record._replace(other=1)
    with pytest.raises(RuntimeError):
        record.__init__(*FIELDS)  # type: ignore[misc, arg-type]
    with pytest.raises(TypeError):
        Record("t")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _ = record < 5  # type: ignore[operator]
    with pytest.raises(IndexError):
        record[9]


def test_what_is_asked_for_twice_is_one_object(record: kafkalog.Record) -> None:
    assert record.value is record.value
    assert record.key is record.key
    assert record.headers is record.headers
    assert (record.serialized_key_size, record.serialized_value_size, record.serialized_header_size) == (1, 1, 3)
    assert record.checksum is None


def test_a_subclass_is_one() -> None:
    class Mine(Record):
        pass

    mine = Mine(*FIELDS)  # type: ignore[arg-type]
    assert type(mine._replace(offset=1)) is Mine
    assert repr(mine).startswith("<Mine t-")
    assert mine == Record(*FIELDS)  # type: ignore[arg-type]


def of_value(number: int) -> bytes:
    return b"value %d" % number


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("keep", [1, 2, 3, 50])
def test_kept_records_stay_what_they_were(tmp_path: Path, keep: int, codec: str) -> None:
    """A record that nobody kept is reused; kept ones never are."""
    with kafkalog.open_log(tmp_path, "t-0", compression=codec, config={"max.message.bytes": "2000"}) as log:
        log.append_many([(of_value(n), b"k%d" % n, [("h", b"%d" % n)], n) for n in range(1000)])
        kept: list[tuple[int, kafkalog.Record]] = []
        for number, record in enumerate(log):
            assert record.offset == number
            if number % keep == 0:
                kept.append((number, record))
            if number % 7 == 0:
                assert record.value == of_value(number)
        assert len({id(record) for _, record in kept}) == len(kept)
        for number, record in kept:
            assert record == ("t", 0, 0, number, number, 0, b"k%d" % number, of_value(number), (("h", b"%d" % number),))
        window: list[kafkalog.Record] = []
        for record in log:
            window = [*window[-3:], record]
            assert [it.value for it in window] == [of_value(it.offset) for it in window]


@pytest.mark.skipif(FREE_THREADED, reason="counts memory by tracemalloc's exact numbers")
def test_kept_records_keep_no_chunk(tmp_path: Path) -> None:
    import tracemalloc

    with kafkalog.open_log(tmp_path, "t-0") as log:
        for _ in range(40):
            log.append_many([bytes(1000)] * 500)  # 20 MB in chunks of 1 MiB
        gc.collect()
        tracemalloc.start()
        try:
            kept = [record for record in log if record.offset % 500 == 0]
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            # An unfinished walk keeps one chunk; once the walk is collected, the chunk is too.
            walk = iter(log)
            found = next(walk)
            del walk
            gc.collect()
            more, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(kept) == 40
        assert held < 200_000
        assert more - held < 200_000
        assert found.value == bytes(1000)


def with_crc(batch: bytearray) -> bytes:
    batch[17:21] = compute_crc(batch).to_bytes(4, "big")
    return bytes(batch)


def plain(reader: ChunkReader) -> Iterator[Any]:
    """The records by the way that knows every batch."""
    for chunk, header in reader.data_batches():
        yield from reader.plain_records(chunk, header)


def drained(records: Iterator[Any]) -> tuple[list[Any], str]:
    """The records before the error, and the error's words."""
    found = []
    try:
        for record in records:
            found.append(record)
    except (BadBytesError, InvalidRecordException) as error:
        return found, f"{type(error).__name__}: {error} {error.path} {error.position}"
    return found, ""


def both_ways(place: Path, batches: list[bytes]) -> tuple[list[Any], str]:
    """The result of both ways on a log with these bytes; they must agree."""
    with kafkalog.open_log(place, "t-0") as log:
        log.append(b"first")
    (path,) = (place / "t-0").glob("*.log")
    data = b"".join(batches)
    path.write_bytes(data)
    with kafkalog.open_log(place, "t-0", read_only=True) as log:
        for options in ({}, {"chunk_bytes": 100}, {"end_offset": 25}, {"isolation": "read_committed"}):
            found = drained(log.reader(5, **options).records())
            assert found == drained(plain(log.reader(5, **options))), options
        found = drained(log.reader().records())
        assert found == drained(plain(log.reader()))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", [codecs.NONE, codecs.LZ4, codecs.GZIP])
def test_damage_is_met_at_the_same_record(tmp_path: Path, codec: int) -> None:
    """No record of a damaged batch is handed out, and all before it are."""
    rng = random.Random(codec)
    refused = 0
    for number in range(60):
        rows = [(NOW_MS + n, b"key", of_value(n), [("h", b"1")] if n % 3 == 0 else ()) for n in range(20)]
        batches = [build_batch(rows, codec=codec, base_offset=base) for base in (0, 20, 40)]
        damaged = bytearray(batches[1])
        damaged[rng.randrange(61, len(damaged))] ^= 1 << rng.randrange(8)
        if number % 10 == 0:
            damaged[57:61] = rng.choice([19, 21, 0, -1]).to_bytes(4, "big", signed=True)  # the count
        batches[1] = with_crc(damaged)
        found, error = both_ways(tmp_path / str(number), batches)
        assert len(found) >= 20
        if error:
            refused += 1
            assert len(found) == 20
            assert f"{len(batches[0])}" in error
    assert refused > 10


@pytest.mark.slow
def test_batches_that_are_not_usual(tmp_path: Path) -> None:
    """Older batches, long ones, empty ones, log append time."""
    of_four = [(NOW_MS, b"k", of_value(n), ()) for n in range(4)]
    batches = [
        build_batch(of_four, magic=0, base_offset=0),
        build_batch(of_four, magic=1, codec=codecs.GZIP, base_offset=4),
        empty_batch_header(base_offset=8, last_offset=9, timestamp_type="CreateTime", timestamp=NOW_MS),
        build_batch(of_four, base_offset=10, timestamp_type="LogAppendTime", log_append_time=5),
        build_batch([(NOW_MS, None, None, ())] * 70_000, base_offset=14),
        build_batch(of_four, codec=codecs.ZSTD, base_offset=80_000, partition_leader_epoch=7),
    ]
    found, error = both_ways(tmp_path, batches)
    assert not error
    assert [record.offset for record in found] == [*range(8), *range(10, 70_014), *range(80_000, 80_004)]
    assert found[8][4:6] == (5, 1)
    assert found[0].timestamp_type == -1
    assert found[-1].leader_epoch == 7


def test_a_walk_ends_as_a_generator_does(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([b"a", b"b"])
        walk = log.records()
        assert next(walk).value == b"a"
        walk.close()  # type: ignore[attr-defined]
        assert list(walk) == []
        walk = log.records()
        assert iter(walk) is walk
        assert [record.value for record in walk] == [b"a", b"b"]
        log.append(b"c")
        assert list(walk) == []  # it was over

        def broken() -> Iterator[Any]:
            raise ValueError("here")
            yield

        walk = walk_records(broken())
        with pytest.raises(ValueError, match="here"):
            next(walk)
        assert list(walk) == []


def test_a_walk_is_one_threads(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([of_value(n) for n in range(20_000)])
        walk = log.records()
        refused: list[BaseException] = []
        found: list[kafkalog.Record] = []

        def work() -> None:
            try:
                for record in walk:
                    found.append(record)
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({record.offset for record in found}) == len(found)
        assert all(record.value == of_value(record.offset) for record in found)
        assert all("another thread" in str(error) for error in refused)

        def inside() -> Iterator[Any]:
            assert again.is_inside()
            assert again.told() is None
            for call in (lambda: next(again), again.close, lambda: again.refuse(ValueError())):
                with pytest.raises(RuntimeError, match="a callback cannot read"):
                    call()
            yield from ()

        again = walk_records(inside())
        assert list(again) == []
