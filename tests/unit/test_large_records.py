"""An accepted record can be read by every function, however large; a record that none could read is refused.

The readers' limits against hostile bytes stay: a damaged size field allocates no memory, and a bomb is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format import records
from kafkalog.engine.format.builder import SimpleRecord, build_batch
from kafkalog.engine.format.records import READ_BYTES_MAX
from kafkalog.engine.segment.reader import Extent
from kafkalog.errors import CorruptRecordException, KafkaException, RecordTooLargeException
from kafkalog.store import Store
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

SIZE = (128 << 20) + 1000
TAKES = {"max.message.bytes": str(SIZE + 1000)}
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large") / "data"
    with kafkalog.open(place) as store:
        topic = store.create_topic("t", config=TAKES)
        for value in (b"before", bytes(SIZE), b"after"):
            topic.append(value, key=b"%d" % len(value), timestamp=NOW_MS)
    return place


def sizes(values: Iterator[Any]) -> list[int]:
    return [len(each.value) for each in values]


DOORS: dict[str, Callable[[Path], list[int]]] = {
    "records": lambda place: sizes(kafkalog.open_log(place, "t-0", read_only=True).records()),
    "read_arrow": lambda place: arrow_sizes(kafkalog.open_log(place, "t-0", read_only=True).read_arrow()),
    "latest": lambda place: arrow_sizes(kafkalog.open_log(place, "t-0", read_only=True).latest()),
    "chunks": lambda place: sizes(kafkalog.open_log(place, "t-0", read_only=True).reader(chunk_bytes=100).records()),
    "a store": lambda place: sizes(store_of(place).reader(topics=["t"])),
    "poll": lambda place: sizes(polled(store_of(place))),
    "small chunks of a store": lambda place: sizes(store_of(place).reader(topics=["t"], chunk_bytes=1)),
    "Spark": lambda place: spark_sizes(place),
}


def arrow_sizes(table: Any) -> list[int]:
    batches = table.to_batches() if hasattr(table, "to_batches") else table
    return [len(value) for batch in batches for value in batch.column("value").to_pylist()]


def store_of(place: Path) -> Store:
    return kafkalog.open(place, read_only=True)


def polled(store: Store) -> Iterator[Any]:
    reader = store.reader(topics=["t"])
    while found := reader.poll():
        yield from found if isinstance(found, list) else [found]


def spark_sizes(place: Path) -> list[int]:
    from kafkalog.spark import planning, tasks
    from kafkalog.spark.filters import ALL
    from kafkalog.spark.options import parse_options

    options = parse_options({"path": str(place), "subscribe": "t"})
    works = planning.plan(options)
    return [
        size for work in works for b in tasks.read_range(work, options, ("value",), ALL) for size in arrow_sizes([b])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_a_large_record_is_read_through_every_door(large: Path, door: str) -> None:
    assert DOORS[door](large) == [6, SIZE, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("cat", "{dir}/t-0"),
        ("cat", "{dir}/t-0", "--key", str(SIZE)),
        ("latest", "{dir}", "t"),
        ("history", str(SIZE), "{dir}", "t"),
        ("export", "{dir}", "t", "--to", "{out}.jsonl"),
        ("export", "{dir}", "t", "--to", "{out}.parquet"),
        ("verify", "--deep", "{dir}"),
    ],
)
def test_a_large_record_is_read_by_every_command(
    large: Path, tmp_path: Path, run: Run, command: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    found = run(*[word.format(dir=large, out=out) for word in command])
    assert found.code == 0, found.err[-500:]
    if command[0] in ("cat", "latest", "history"):
        assert len(found.octets) > SIZE
    elif command[0] == "export":
        assert b'"records": 3' in found.octets or "3 records" in found.out


@pytest.mark.slow
def test_a_large_record_is_salvaged(large: Path, tmp_path: Path, run: Run) -> None:
    assert run("salvage", large / "t-0", tmp_path / "out").code == 0
    assert DOORS["records"](tmp_path / "out") == [6, SIZE, 5]


@pytest.mark.parametrize("good", [True, False])
def test_a_size_field_is_believed_once_the_checksum_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    size = 40 << 20
    (tmp_path / "t-0").mkdir()
    batch = bytearray(build_batch([SimpleRecord(NOW_MS, b"k", bytes(size))], codec=0))
    if not good:
        batch[-1] ^= 1
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(batch)
    (tmp_path / "t-0" / f"{1:020}.log").write_bytes(build_batch([SimpleRecord(NOW_MS, b"k", b"v")], base_offset=1))
    read_into, most = Extent.read_into, 0

    def counting(extent: Extent, buffers: Any, behind: Any, position: int, count: int) -> memoryview:
        nonlocal most
        most = max(most, len(behind) + count)
        return read_into(extent, buffers, behind, position, count)

    monkeypatch.setattr(Extent, "read_into", counting)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        if good:
            assert sizes(log.records()) == [size, 1]
            assert most == len(batch)
        else:
            with pytest.raises(CorruptRecordException, match="a bad CRC"):
                list(log.records())
            assert most <= 16 << 20


# --- what no door reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch_that_readers_would_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """Small as it is on the disk."""
    monkeypatch.setattr(records, "READ_BYTES_MAX", 100_000)
    monkeypatch.setattr("kafkalog.engine.log.ordinary.READ_BYTES_MAX", 100_000)
    with kafkalog.open(tmp_path) as store:
        for compression in (codec, "producer", "uncompressed"):
            store.create_topic(compression, config={"compression.type": compression})
        for append in (
            lambda: store.topic(codec).append(bytes(100_000)),
            lambda: store.topic(codec).append_many([b"small", bytes(100_000), b"small"]),
            lambda: store.topic(codec).append_columns([b"small", bytes(100_000), b"small"] * 10),
        ):
            with pytest.raises(RecordTooLargeException, match="of records, readers accept at most 100000"):
                append()
        assert store.reader(topics=[codec]).lag() == {(codec, 0): 0}
        foreign = build_batch([SimpleRecord(NOW_MS, b"k", bytes(60_000))] * 2, codec=records.codecs.codec_id(codec))
        with (
            pytest.raises(RecordTooLargeException, match="of records, readers accept at most 100000"),
            store.transaction("foreign") as txn,
        ):
            txn.append_batches("producer", foreign, 0)
        with store.transaction("foreign") as txn:  # the log keeps it unpacked
            txn.append_batches("uncompressed", foreign, 0)
        store.topic("producer").append(bytes(200_000))
        store.topic(codec).append(bytes(99_000))
        assert sizes(store.reader(topics=["uncompressed", "producer", codec])) == [60_000, 60_000, 200_000, 99_000]


def test_a_bomb_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    batch = build_batch([SimpleRecord(NOW_MS, b"k", bytes(READ_BYTES_MAX))], codec=records.codecs.ZSTD)
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(batch)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        with pytest.raises(KafkaException, match="decompresses to more than the 134217728 bytes that are allowed"):
            list(log.records())
        with log.reader(max_decompressed_bytes=2 * READ_BYTES_MAX) as reader:
            assert sizes(reader.records()) == [READ_BYTES_MAX]
