"""Arrow streams that kafkalog returns: its errors are one line in any consumer, other errors keep their traceback."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.arrow import told_stream
from kafkalog.store import Store

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path) as made:
        partition = made.create_topic("orders").partition(0)
        for number in range(20):
            partition.append(b"v%02d" % number)
    (path,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 70] ^= 1
    path.write_bytes(data)
    with kafkalog.open(tmp_path, read_only=True) as view:
        yield view


def by_polars(stream: Any) -> object:
    return pytest.importorskip("polars").DataFrame(stream)


def by_duckdb(stream: Any) -> object:
    return pytest.importorskip("duckdb").sql("from stream").fetchall()


def by_pyarrow(stream: Any) -> object:
    return pa.RecordBatchReader.from_stream(stream).read_all()


@pytest.mark.parametrize("read", [by_polars, by_duckdb, by_pyarrow])
@pytest.mark.parametrize("what", ["topic", "reader", "chunks"])
def test_damage_is_one_line(store: Store, read: Callable[[Any], object], what: str) -> None:
    streams: dict[str, Callable[[], Any]] = {
        "topic": lambda: store.topic("orders"),
        "reader": lambda: store.reader(topics=["orders"]),
        "chunks": lambda: store.topic("orders").partition(0).reader(0),
    }
    with pytest.raises(Exception, match="a bad CRC") as caught:
        read(streams[what]())
    text = str(caught.value).strip()
    assert "Traceback" not in text
    assert "Unknown error" not in text
    assert "\n" not in text
    assert text.count("a bad CRC") == 1


class Stream:
    """A stream whose consumer calls this."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self.reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return told_stream(self.reader.__arrow_c_stream__(requested_schema), b"kafkalog.errors.")


def test_a_function_of_the_caller_keeps_its_traceback() -> None:
    def batches() -> Iterator[Any]:
        yield pa.record_batch({"a": [1]})
        raise RuntimeError("a wrong turn")

    with pytest.raises(Exception, match=r"(?s)a wrong turn.*Traceback.*in batches"):
        by_pyarrow(Stream(batches))


@pytest.mark.parametrize("count", [0, 3])
def test_what_is_well_is_as_it_was(count: int) -> None:
    found = by_pyarrow(Stream(lambda: iter([pa.record_batch({"a": [each]}) for each in range(count)])))
    assert found["a"].to_pylist() == list(range(count))  # type: ignore[index]


def test_a_stream_that_nobody_takes_lets_go(tmp_path: Path) -> None:
    gone = []

    def batches() -> Iterator[Any]:
        try:
            yield pa.record_batch({"a": [1]})
        finally:
            gone.append(True)

    stream = Stream(batches)
    capsule = stream.__arrow_c_stream__()
    assert next(pa.RecordBatchReader._import_from_c_capsule(capsule))["a"].to_pylist() == [1]
    with pytest.raises(ValueError, match="taken already"):
        told_stream(capsule, b"")
    del stream, capsule
    gc.collect()
    assert gone == [True]


@pytest.mark.parametrize("given", [7, b"", object()])
def test_what_is_no_capsule(given: Any) -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        told_stream(given, b"")
