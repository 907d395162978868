"""Records as frames of pandas, polars and DuckDB: of partitions, topics, stores and readers, and which share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.frames import pandas_of, polars_of
from kafkalog.errors import IllegalArgumentException
from tests.file_doubles import UnsyncedFiles

pa = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

LONG_VALUE = b"a value that is too long to be stored inside a view"
COUNT = 150_000  # several record batches


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[kafkalog.Topic]:
    with kafkalog.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        topic = store.create_topic("orders")
        topic.append_many([(LONG_VALUE, b"k")] * COUNT)
        yield topic


def data_of(column: Any, buffer: int) -> list[tuple[int, int]]:
    """The first address of a column's buffer, and the address behind it, of each chunk."""
    held = [chunk.buffers()[buffer] for chunk in column.chunks]
    return [(each.address, each.address + each.size) for each in held]


def all_inside(addresses: list[int], places: list[tuple[int, int]]) -> bool:
    return len(addresses) == len(places) and all(
        first <= each < end for each, (first, end) in zip(addresses, places, strict=True)
    )


def test_polars_uses_the_memory_of_the_table(topic: kafkalog.Topic) -> None:
    table = topic.read_arrow()
    frame = polars_of()(table)
    assert table["offset"].num_chunks > 1
    numbers = [each.to_numpy(allow_copy=False).ctypes.data for each in frame["offset"].get_chunks()]
    assert all_inside(numbers, data_of(table["offset"], 1))
    newest = polars.CompatLevel.newest()
    views = [each.to_arrow(compat_level=newest) for each in frame["value"].get_chunks()]
    assert all_inside([each.buffers()[2].address for each in views], data_of(table["value"], 2))
    assert topic.to_polars()["value"].n_chunks() > 1  # the public call does not join them, which would be a copy
    assert frame["value"].to_list() == [LONG_VALUE] * COUNT


def test_pandas_uses_the_memory_of_the_table_for_arrow_types_alone(topic: kafkalog.Topic) -> None:
    table = topic.read_arrow()
    frame = pandas_of("pyarrow")(table)
    for name, buffer in (("offset", 1), ("timestamp", 1), ("value", 2), ("key", 2)):
        held = pa.chunked_array(frame[name].array.__arrow_array__())
        assert data_of(held, buffer) == data_of(table[name], buffer), name
    public = topic.to_pandas(dtype_backend="pyarrow", columns=["offset", "value"])
    assert all(isinstance(each, pandas.ArrowDtype) for each in public.dtypes)
    usual = topic.to_pandas(columns=["offset", "value"])
    assert [str(each) for each in usual.dtypes] == ["int64", "object"]
    assert usual["value"].tolist() == public["value"].tolist() == [LONG_VALUE] * COUNT


def test_duckdb_has_a_view_or_a_table(topic: kafkalog.Topic) -> None:
    def memory() -> int:
        return int(connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()[0][0])

    with duckdb.connect() as connection:
        assert topic.to_duckdb(connection, "v", copy=False).count("*").fetchall() == [(COUNT,)]
        assert memory() < COUNT  # bytes: none of the rows
        topic.append(b"one more")
        assert topic.to_duckdb(connection, "v").count("*").fetchall() == [(COUNT + 1,)]  # the view does not hide it
        assert memory() > COUNT * len(LONG_VALUE) // 4
        assert connection.execute("SELECT count(*) FROM v").fetchall() == [(COUNT + 1,)]
        assert topic.to_duckdb(connection, "v", columns=["value"], last=1, copy=False).fetchall() == [(b"one more",)]
        with pytest.raises(IllegalArgumentException, match=r"name: found .*main\.v.* without a dot"):
            topic.to_duckdb(connection, "main.v", copy=False)


Call = Callable[..., list[tuple[Any, ...]]]


def in_duckdb(reader: Any, *columns: Any, **options: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return reader.to_duckdb(connection, "t", *columns, **options).fetchall()  # type: ignore[no-any-return]


FRAMES: dict[str, Call] = {
    "pandas": lambda reader, *given, **options: [
        *reader.to_pandas(*given, **options).itertuples(index=False, name=None)
    ],
    "polars": lambda reader, *given, **options: reader.to_polars(*given, **options).rows(),
    "duckdb": in_duckdb,
}


@pytest.mark.parametrize("call", FRAMES.values(), ids=FRAMES)
def test_of_a_reader(tmp_path: Path, call: Call) -> None:
    """It gives the records after its position, and continues after them; after an error it continues before them."""
    with kafkalog.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        topic = store.create_topic("orders")
        topic.append_many([b'{"id": 1}', b'{"id": 2}'])
        with store.reader("billing", topics=["orders"]) as reader:
            assert call(reader, ["offset", "value"]) == [(0, b'{"id": 1}'), (1, b'{"id": 2}')]
            assert call(reader, ["offset"]) == []
            topic.append(b'{"id": 3}')
            assert call(reader, ["offset", "id"], values="json") == [(2, 3)]
            assert reader.commit() == {("orders", 0): 3}
            topic.append(b"no JSON")
            with pytest.raises(kafkalog.KafkalogError, match="JSON"):
                call(reader, values="json", schema={"id": "int64"})
            for wrong in ({"valuez": "json"}, {"columns": [5]}, {"columns": "value"}):
                with pytest.raises((IllegalArgumentException, TypeError), match=r"valuez|column"):
                    call(reader, **wrong)
            assert reader.position("orders-0") == 3
            assert call(reader, ["value"]) == [(b"no JSON",)]
        with pytest.raises(kafkalog.KafkalogError, match="closed"):
            call(reader)
        with topic.partition(0).reader(1) as chunks:
            assert call(chunks, ["offset"]) == [(1,), (2,), (3,)]
            assert chunks.offset == 4
            with pytest.raises(TypeError, match="unexpected keyword argument 'values'"):
                call(chunks, values="json")
            assert call(chunks) == []


def test_an_error_leaves_a_chunk_reader_where_it_was(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "200"}, files=UnsyncedFiles()) as log:
        for number in range(20):
            log.append(b"%d" % number * 10)
        path = sorted((tmp_path / "t-0").glob("*.log"))[4]
        path.write_bytes(bytes(path.stat().st_size))
        for call in FRAMES.values():
            with log.reader(1) as chunks:
                with pytest.raises(kafkalog.KafkalogError):
                    call(chunks)
                assert chunks.offset == 1


def test_wrong_arguments(topic: kafkalog.Topic) -> None:
    with pytest.raises(IllegalArgumentException, match=r"dtype_backend: found .* expected 'numpy' or 'pyarrow'"):
        topic.to_pandas(dtype_backend="arrow")  # type: ignore[arg-type]
    with duckdb.connect() as connection, pytest.raises(IllegalArgumentException, match="copy"):
        topic.to_duckdb(connection, "t", copy="no")  # type: ignore[arg-type]
