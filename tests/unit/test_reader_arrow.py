"""Readers as Arrow streams and tables, decoded values, and reading after damage: a returned record counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog._face import arrow
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    RecordDeserializationException,
)
from kafkalog.reader import StoreReader

COUNT = 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        store.create_topic("empty", 1)
        for number in range(COUNT):
            topic.append(b'{"id":%d}' % number, key=b"k%d" % (number % 3), partition=number % 2)
        yield store


def hurt(store: kafkalog.Store, text: bytes, partition: int = 0) -> Path:
    """Flips a bit of the value."""
    part = store.topic("t").partition(partition)
    part.flush()
    path = Path(part.log_dir) / f"t-{partition}" / ("0" * 20 + ".log")
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)
    return path


def streamed(reader: Any) -> pa.Table:
    return pa.RecordBatchReader.from_stream(reader).read_all()


# --- as Arrow ----------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_the_reader_stands(store: kafkalog.Store) -> None:
    with store.reader("c", topics=["t"]) as reader:
        first = next(iter(reader))
        table = streamed(reader)
        assert table.schema == arrow.schema(None) == store.topic("t").read_arrow().schema
        assert table.num_rows == COUNT - 1
        assert (first.partition, first.offset) not in zip(
            table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True
        )
        assert set(reader.positions().values()) == {COUNT // 2} == set(reader.commit().values())
        assert streamed(reader).num_rows == 0
        store.topic("t").append(b"more", partition=1)
        assert reader.read_arrow(["value"]).to_pylist() == [{"value": b"more"}]


def test_what_a_stream_did_not_give_comes_later(store: kafkalog.Store) -> None:
    with store.reader(topics=["t"]) as reader:
        stream = reader.arrow_reader(["offset"], batch_rows=4)
        taken = stream.read_next_batch().num_rows
        assert sum(reader.positions().values()) == taken
        assert reader.read_arrow().num_rows == COUNT - taken
        with pytest.raises(IllegalStateException, match="another iteration"):
            stream.read_next_batch()


@pytest.mark.parametrize("topics", [["empty"], ["empty", "t"]])
def test_filters_and_empty_topics(store: kafkalog.Store, topics: list[str]) -> None:
    with store.reader(topics=topics, key="k1", end=0) as reader:
        assert streamed(reader).schema == arrow.schema(None)
    with store.reader(topics=topics, key="k1", grep="[05]}") as reader:
        rows = reader.read_arrow(["value"])["value"].to_pylist()
        wanted = [n for n in range(COUNT) if n % 3 == 1 and n % 5 == 0] if "t" in topics else []
        assert sorted(rows) == sorted(b'{"id":%d}' % n for n in wanted)


def test_the_reader_of_a_partition(store: kafkalog.Store) -> None:
    reader = store.topic("t").partition(0).reader(5)
    table = streamed(reader)
    assert (table.schema, table["offset"].to_pylist()) == (arrow.schema(None), list(range(5, 15)))
    assert streamed(reader).num_rows == 0
    assert streamed(store.topic("empty").partition(0).reader()).schema == arrow.schema(None)
    with pytest.raises(IllegalArgumentException, match="unknown column"):
        reader.arrow_reader(["foo"])


def test_data_frames(store: kafkalog.Store) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    with store.reader(topics=["t"]) as reader:
        assert polars.DataFrame(reader).columns == arrow.schema(None).names
    with store.reader(topics=["empty"]) as reader:
        assert polars.DataFrame(reader).columns == arrow.schema(None).names
        assert duckdb.sql("select count(*) from reader").fetchall() == [(0,)]


# --- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, {"id": "int64"}])
def test_values_of_json(store: kafkalog.Store, schema: Any) -> None:
    with store.reader(topics=["t"]) as reader:
        table = reader.read_arrow(["key", "value"], values="json", schema=schema, keys="text")
        assert table.schema.names == ["key", "id"]
        assert sorted(table["id"].to_pylist()) == list(range(COUNT))
        reader.seek("t-0", 0)
        batches = list(reader.batches(["value"], values="text", batch_rows=4))
        assert batches[0].schema.field("value").type == pa.string()
        reader.seek("t-1", 0)

        async def read() -> list[int]:
            return [
                row async for batch in reader.batches(["value"], values="json") for row in batch.column(0).to_pylist()
            ]

        assert asyncio.run(read()) == list(range(1, COUNT, 2))


def test_a_value_that_is_none_leaves_the_reader_before_it(store: kafkalog.Store) -> None:
    store.topic("t").append(b"no JSON", partition=0)
    with store.reader(partitions=["t-0"]) as reader:
        for _ in range(2):
            with pytest.raises(RecordDeserializationException, match="offset 15"):
                reader.read_arrow(values="json")
            assert reader.position("t-0") == 0
        assert reader.read_arrow(values="json", errors="null")["id"].null_count == 1
    with (
        store.reader(partitions=["t-0"], on_damage="skip") as reader,
        pytest.raises(RecordDeserializationException, match="offset 15"),
    ):
        reader.read_arrow(values="json", schema={"id": "int64"})  # it is no damage


def test_json_that_nobody_has_seen(store: kafkalog.Store) -> None:
    with store.reader(topics=["empty"]) as reader:
        with pytest.raises(IllegalArgumentException, match="no JSON yet"):
            reader.batches(values="json", timeout_ms=1)
        assert list(reader.batches(values="json", schema={"id": "int64"}, timeout_ms=1)) == []
        assert reader.read_arrow(["offset", "value"], values="json").schema.names == ["offset"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [({"values": "x"}, "values: found"), ({"columns": "offset"}, "columns: found"), ({"keys": 1}, "keys: found")],
)
def test_questions_that_make_no_sense(store: kafkalog.Store, asked: dict[str, Any], text: str) -> None:
    with store.reader(topics=["t"]) as reader:
        for ask in (reader.batches, reader.read_arrow, reader.arrow_reader):
            with pytest.raises(IllegalArgumentException, match=text):
                ask(**asked)
        with pytest.raises(TypeError, match="start"):
            reader.batches(start=3)  # type: ignore[call-arg]
        assert reader.read_arrow().num_rows == COUNT


# --- damage ------------------------------------------------------------------------------------------------


def polled(reader: StoreReader) -> list[int]:
    found = []
    while records := reader.poll(4):
        found += [record.offset for record in records]
    return found


async def asynchronously(reader: StoreReader) -> list[int]:
    return [record.offset async for record in reader]


async def as_batches(reader: StoreReader) -> list[int]:
    return [row async for batch in reader.batches(["offset"], batch_rows=3) for row in batch.column(0).to_pylist()]


WAYS: dict[str, Callable[[StoreReader], list[int]]] = {
    "records": lambda reader: [record.offset for record in reader],
    "follow": lambda reader: [record.offset for record in reader.follow(0)],
    "poll": polled,
    "batches": lambda reader: [row for batch in reader.batches(["offset"]) for row in batch.column(0).to_pylist()],
    "read_arrow": lambda reader: reader.read_arrow()["offset"].to_pylist(),
    "stream": lambda reader: streamed(reader)["offset"].to_pylist(),
    "async records": lambda reader: asyncio.run(asynchronously(reader)),
    "async batches": lambda reader: asyncio.run(as_batches(reader)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_damage_is_passed_over_and_told(store: kafkalog.Store, way: str, chunk_bytes: int | None) -> None:
    path = hurt(store, b'"id":20}')
    with store.reader(partitions=["t-0"], chunk_bytes=chunk_bytes) as plain, pytest.raises(CorruptRecordException):
        WAYS["records"](plain)
    lost: list[Any] = []
    with store.reader("c", partitions=["t-0"], chunk_bytes=chunk_bytes, on_damage=lost.append) as reader:
        assert WAYS[way](reader) == [n for n in range(15) if n != 10]
        [one] = lost
        assert (one.path, one.first_offset, one.last_offset) == (str(path), 10, 10)
        assert list(reader.commit().values()) == [15]
        store.topic("t").append(b"more", partition=0)
        assert WAYS[way](reader) == [15]
        reader.seek("t-0", 8)
        assert WAYS[way](reader) == [8, 9, 11, 12, 13, 14, 15]
        assert len(lost) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_who_is_told_may_commit(store: kafkalog.Store, way: str, chunk_bytes: int | None) -> None:
    hurt(store, b'"id":20}')
    told: list[int] = []

    def tell(lost: Any) -> None:
        (position,) = reader.commit().values()
        assert position == reader.position("t-0") == next(iter(reader.positions().values()))
        told.append(position)

    with store.reader("c", partitions=["t-0"], chunk_bytes=chunk_bytes, on_damage=tell) as reader:
        if way in ("poll", "read_arrow"):  # their records are not returned yet
            with pytest.raises(IllegalStateException, match="on_damage cannot use it now"):
                WAYS[way](reader)
            assert reader.position("t-0") in (0, 10)
            return
        assert WAYS[way](reader) == [n for n in range(15) if n != 10]
        assert told == [11]
        assert list(reader.positions().values()) == [15]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_damage_at_the_end_and_what_comes_behind_it(store: kafkalog.Store, isolation: Any) -> None:
    lost: list[Any] = []
    with store.reader(partitions=["t-0"], on_damage=lost.append, isolation=isolation) as reader:
        assert len(list(reader)) == 15
        store.topic("t").append(b"the last", partition=0)
        hurt(store, b"the last")
        for _ in range(2):
            assert list(reader) == []
        assert [(one.first_offset, one.last_offset) for one in lost] == [(15, 15)]
        for text in (b"one", b"two"):
            store.topic("t").append(text, partition=0)
            assert [record.value for record in reader] == [text]
        assert (len(lost), reader.position("t-0")) == (1, 18)


def test_a_store_that_only_reads(store: kafkalog.Store, tmp_path: Path) -> None:
    hurt(store, b'"id":20}')
    hurt(store, b'"id":7}', 1)
    with kafkalog.open(tmp_path, read_only=True) as view:
        lost: list[Any] = []
        with view.reader(topics=["t"], on_damage=lost.append) as reader:
            assert reader.read_arrow().num_rows == COUNT - 2
            assert {(Path(one.path).parent.name, one.first_offset) for one in lost} == {("t-0", 10), ("t-1", 3)}
            store.topic("t").append(b"more", partition=0)
            assert [record.value for record in reader.follow(timeout_ms=500)] == [b"more"]


def test_who_raises_when_told_is_told_again(store: kafkalog.Store) -> None:
    hurt(store, b'"id":20}')
    told: list[Any] = []

    def tell(lost: Any) -> None:
        told.append(lost)
        if len(told) < 3:
            raise ValueError("not now")

    found: list[int] = []
    with store.reader(partitions=["t-0"], on_damage=tell) as reader:
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                found.extend(record.offset for record in reader)
        found += [record.offset for record in reader]
        assert found == [n for n in range(15) if n != 10]
        assert len(told) == 3


def test_records_of_a_batch_that_are_wrong(tmp_path: Path) -> None:
    """The checksum agrees: records before it in its batch were returned, and come once."""
    from kafkalog._native.codec import batches as native

    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", 1)
        for first in (0, 5, 10):
            topic.append_many([b"value %d" % n for n in range(first, first + 5)])
        topic.partition(0).flush()
        path = tmp_path / "t-0" / ("0" * 20 + ".log")
        data = bytearray(path.read_bytes())
        header = native.headers(bytes(data))[0][1]
        at = data.index(b"value 8") - 1
        data[at] = 0x7E  # a value of 63 bytes
        batch = data[header.position : header.position + header.size]
        data[header.position + 17 : header.position + 21] = native.compute_crc(bytes(batch)).to_bytes(4, "big")
        path.write_bytes(data)
        for way in WAYS:
            lost: list[Any] = []
            with store.reader(topics=["t"], on_damage=lost.append) as reader:
                found = WAYS[way](reader)
                assert found == sorted(set(found)), way
                assert [n for n in found if not 5 <= n < 10] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14], way
                assert (len(lost), reader.position("t-0")) == (1, 15), way
