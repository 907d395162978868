"""The last value of each key, compared with a dict: the map that grows and works in shares, `kafkalog latest`."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kafkalog
from kafkalog._face import latest as module
from kafkalog._face.latest import Latest
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.arrow import Column, RecordColumns
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.latest import SHARES, LatestOffsets
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from kafkalog.engine.format.arrow import add_batches
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, OffsetOutOfRangeException
from kafkalog.toolbox.latest import LatestOptions, latest, latest_records
from tests.crash.harness import fast_dir
from tests.sampling import LONG
from tests.unit.cleaner_kit import Producer, keyed, rows
from tests.unit.cli_kit import Run, run
from tests.unit.test_cleaner_contract import PAIRS, STEPS, Story
from tests.unit.test_export import load

__all__ = ["run"]

START_MS = 1_700_000_000_000
LOG = f"{0:020}.log"


# --- the map -------------------------------------------------------------------------------------------------


def columns_of(keys: list[bytes | None], first: int = 0) -> RecordColumns:
    builder = MemoryRecordsBuilder(base_offset=first)
    for key in keys:
        builder.append(1, key, b"")
    data = builder.build()
    columns = ColumnBuilder(values=False, headers=False)
    table, _, _ = native.scan(data)
    add_batches(columns, data, table)
    return columns.finish()


def offsets_of(offsets_map: LatestOffsets) -> list[int]:
    return sorted(np.frombuffer(offsets_map.offsets(), np.int64).tolist())


def share_of(key: bytes) -> int:
    return int.from_bytes(hashlib.md5(key).digest()[-2:], "big")


@pytest.mark.parametrize("count", [1, 3, 255, 256, 257, 5000])
def test_the_map_is_a_dict(count: int) -> None:
    rng = random.Random(count)
    keys = [rng.choice([None, b"", b"k%d" % rng.randrange(count), b"x" * rng.randrange(200)]) for _ in range(count)]
    offsets_map = LatestOffsets(48 * (count + 2))
    assert offsets_map.put_columns(columns_of(keys)) == count
    wanted = {key: row for row, key in enumerate(keys) if key is not None}
    assert offsets_of(offsets_map) == sorted(wanted.values())
    assert offsets_map.keyless == keys.count(None)
    assert len(offsets_map) == len(wanted)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
def test_keys_of_another_map_and_their_pairs(count: int) -> None:
    rng = random.Random(count)
    later: list[bytes | None] = [b"k%d" % rng.randrange(count) for _ in range(count)]
    earlier: list[bytes | None] = [rng.choice([None, b"k%d" % rng.randrange(2 * count)]) for _ in range(3 * count)]
    keys = LatestOffsets(48 * (count + 2))
    assert keys.put_columns(columns_of(later, 20_000)) == count
    before = LatestOffsets(keys.memory)
    assert before.put_columns(columns_of(earlier), 0, keys) == 3 * count
    last = {key: 20_000 + row for row, key in enumerate(later)}
    there = {key: row for row, key in enumerate(earlier) if key in last}
    assert offsets_of(before) == sorted(there.values())
    pairs = np.frombuffer(keys.pairs(before), np.int64).reshape(-1, 2).tolist()
    assert sorted(pairs) == sorted([offset, there.get(key, -1)] for key, offset in last.items())
    assert offsets_of(keys) == sorted(last.values())
    with pytest.raises(ValueError, match="as in the other map"):
        LatestOffsets(48).put_columns(columns_of(later), 0, keys)
    with pytest.raises(RuntimeError, match="another thread is using"):
        keys.put_columns(columns_of(later), 0, keys)
    with pytest.raises(RuntimeError, match="another thread is using"):
        keys.pairs(keys)
    assert keys.put_columns(columns_of(later, 30_000)) == count


def test_a_full_map_grows_and_goes_on() -> None:
    keys: list[bytes | None] = [None if number % 7 == 0 else b"k%d" % (number % 3000) for number in range(10_000)]
    columns = columns_of(keys)
    offsets_map = LatestOffsets(24 * 10)
    row = rounds = 0
    while (row := offsets_map.put_columns(columns, row)) < len(columns):
        assert offsets_map.utilization == 0.9 or offsets_map.slots > 10
        offsets_map.grow(2 * offsets_map.memory)
        rounds += 1
    assert rounds > 5
    assert offsets_of(offsets_map) == sorted({key: n for n, key in enumerate(keys) if key is not None}.values())
    assert offsets_map.keyless == keys.count(None)


def test_a_map_keeps_to_shares() -> None:
    keys: list[bytes | None] = [b"k%d" % number for number in range(5000)]
    columns = columns_of(keys)
    offsets_map = LatestOffsets(24 * 3000)
    found: list[int] = []
    first, end = 0, SHARES
    walks = 0
    while True:
        offsets_map.begin(first, end)
        assert len(offsets_map) == 0
        row = 0
        while (row := offsets_map.put_columns(columns, row)) < len(columns):
            first, end = offsets_map.shares
            offsets_map.narrow((first + end) // 2)
        part = offsets_of(offsets_map)
        first, end = offsets_map.shares
        assert part == [number for number in range(5000) if first <= share_of(b"k%d" % number) < end]
        found += part
        walks += 1
        if end == SHARES:
            break
        first, end = end, SHARES
    assert walks > 1
    assert sorted(found) == list(range(5000))


def test_a_map_that_grows_while_it_is_asked_to_grow() -> None:
    """With the number's own code: the former content of the map is dropped by then."""

    class Number(int):
        def __int__(self) -> int:
            offsets_map.grow(24 * 5000)
            return 24 * 9000

    offsets_map = LatestOffsets(24 * 2000)
    assert offsets_map.put_columns(columns_of([b"k%d" % number for number in range(1500)])) == 1500
    offsets_map.grow(Number(1))
    assert offsets_map.memory == 24 * 9000
    assert offsets_of(offsets_map) == list(range(1500))
    offsets_map.__init__(48)  # type: ignore[misc]
    assert offsets_of(offsets_map) == list(range(1500))


def test_what_no_map_takes_is_refused() -> None:
    for memory in (0, 47, -1, 1 << 31):
        with pytest.raises(ValueError, match="memory"):
            LatestOffsets(memory)
    offsets_map = LatestOffsets(480)
    for memory in (0, 480, 1 << 31):
        with pytest.raises(ValueError, match="expected more than 480"):
            offsets_map.grow(memory)
    for first, end in ((0, 0), (-1, 5), (5, 4), (0, SHARES + 1)):
        with pytest.raises(ValueError, match="shares"):
            offsets_map.begin(first, end)
    for end in (0, SHARES + 1):
        with pytest.raises(ValueError, match="expected a share"):
            offsets_map.narrow(end)
    columns = columns_of([b"a"])
    for row in (-1, 2):
        with pytest.raises(IndexError):
            offsets_map.put_columns(columns, row)
    without = ColumnBuilder(keys=False).finish()
    with pytest.raises(ValueError, match="no 'offset' and 'key'"):
        offsets_map.put_columns(without)
    good = columns.column("key")
    assert good is not None
    few = Column("offset", "l", 5, 0, [None, None], [], False)
    with pytest.raises(ValueError, match="different lengths"):
        offsets_map.put_columns(RecordColumns(Column("", "+s", 5, 0, [None], [few, good], False)))
    with pytest.raises(TypeError):
        offsets_map.put_columns(None)  # type: ignore[arg-type]


# --- the walks, beside a dict --------------------------------------------------------------------------------


def expected(
    found: list[tuple[int, str | None, str | None]], end: int, *, tombstones: bool
) -> list[tuple[int, str, str | None]]:
    state: dict[str, tuple[int, str | None]] = {}
    for offset, key, value in found:
        if key is not None and offset < end:
            state[key] = offset, value
    return sorted((at, key, value) for key, (at, value) in state.items() if tombstones or value is not None)


def answer(found: Latest, **options: Any) -> list[tuple[int, str, str | None]]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode()

    return [
        (row["offset"], row["key"].decode(), text(row["value"]))
        for batch in found.batches(("value", "offset", "key"), **options)
        for row in batch.to_pylist()
    ]


@pytest.mark.slow
@given(
    steps=st.lists(STEPS, min_size=1, max_size=20),
    left_open=st.none() | PAIRS,
    tail=PAIRS,
    ends=st.lists(st.none() | st.integers(0, 90), min_size=1, max_size=3),
    memory=st.sampled_from((150, 300, 1 << 20)),
    chunk_bytes=st.sampled_from((200, 4 << 20)),
    batch_rows=st.sampled_from((1, 3, 1000)),
    tombstones=st.booleans(),
)
@settings(max_examples=3000 if LONG else 120, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_last_values_are_those_of_a_dict(
    steps: list[Any],
    left_open: list[Any] | None,
    tail: list[Any],
    ends: list[int | None],
    memory: int,
    chunk_bytes: int,
    batch_rows: int,
    tombstones: bool,
) -> None:
    """Logs of every codec and format, with transactions, after real cleans and crashes; small maps, chunks, batches."""
    with fast_dir() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        story = Story(root)
        for step in steps:
            story.take(step)
        stable = None
        if left_open is not None:
            stable = story.log.log_end_offset
            story._add(keyed(*left_open, producer=Producer(7, transactional=True), ts=story.kit.clock.now_ms))
            story.append(tail, 0)
        everything = rows(story.log)
        with PartitionView(root, "t-0") as view:
            high = view.log_end_offset
            for end in ends:
                found = Latest(view, end, memory_bytes=memory)
                limit = high if stable is None else stable
                wanted = [row for row in everything if row[0] not in story.aborted and row[0] < limit]
                limit = limit if end is None else min(end, limit)
                assert found.failure is None
                assert found.open_from == (stable if stable is not None and (end is None or end > stable) else None)
                assert found.keyless == sum(key is None for offset, key, _ in wanted if offset < limit)
                assert found.keys == len(expected(wanted, limit, tombstones=True))
                got = answer(found, batch_rows=batch_rows, tombstones=tombstones)
                assert got == expected(wanted, limit, tombstones=tombstones)
                loud = Latest(view, end, isolation="read_uncommitted", memory_bytes=memory)
                got = answer(loud, batch_rows=batch_rows, tombstones=tombstones)
                assert got == expected(everything, high if end is None else end, tombstones=tombstones)
                assert loud.open_from is None
        story.log.close()


@pytest.mark.slow
def test_a_clean_changes_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    rng = random.Random(5)
    for number in range(300):
        pairs = [(f"k{rng.randrange(40)}", rng.choice([None, f"v{number}"])) for _ in range(rng.randrange(1, 6))]
        story.append(pairs, number % 5)
        if number % 10 == 0:
            story.transaction(pairs, number % 20 == 0)
    story.roll()

    def state(*, tombstones: bool) -> list[tuple[int, str, str | None]]:
        with PartitionView(tmp_path, "t-0") as view:
            return answer(latest(view, LatestOptions()), tombstones=tombstones)

    before, deleted = state(tombstones=False), state(tombstones=True)
    records = len(rows(story.log))
    assert before
    assert len(deleted) > len(before)
    story.clean(1000, 65536)
    assert len(rows(story.log)) < records
    assert (state(tombstones=False), state(tombstones=True)) == (before, deleted)
    story.wait(70_000)
    story.clean(1000, 65536)  # now the tombstones go
    assert state(tombstones=False) == before
    story.log.close()


# --- the face ------------------------------------------------------------------------------------------------


def fill(root: Path, count: int = 400, **options: Any) -> dict[bytes, tuple[int, bytes | None]]:
    """A log of several segments, and what a dict says of it."""
    rng = random.Random(count)
    config = {"internal.segment.bytes": "3000", "index.interval.bytes": "100"}
    with kafkalog.open_log(root, "t-0", config=config, **options) as log:
        for n in range(count):
            key = rng.choice([None, b"", b"\xff", b"k%d" % rng.randrange(50)])
            value = None if n % 9 == 0 else b"value %d \xff" % n
            log.append(value, key=key, timestamp=START_MS + n, headers=[("h", b"1")][: n % 2])
        return {record.key: (record.offset, record.value) for record in log if record.key is not None}


def offsets_in(state: dict[bytes, tuple[int, bytes | None]], *, tombstones: bool = False) -> list[int]:
    return sorted(offset for offset, value in state.values() if tombstones or value is not None)


@pytest.mark.parametrize("read_only", [True, False])
def test_the_face_gives_arrow(tmp_path: Path, read_only: bool) -> None:
    state = fill(tmp_path, compression="zstd")
    with kafkalog.open_log(tmp_path, "t-0", read_only=read_only) as log:
        found = log.latest()
        everything = log.read_arrow()
        assert isinstance(found, pa.RecordBatchReader)
        assert found.schema == everything.schema
        wanted = offsets_in(state)
        assert found.read_all() == everything.filter(pa.compute.is_in(everything["offset"], pa.array(wanted)))
        assert log.latest(tombstones=True).read_all()["offset"].to_pylist() == offsets_in(state, tombstones=True)
        names = ["topic", "leader_epoch", "key", "partition"]
        table = log.latest(columns=names, batch_rows=7).read_all()
        assert table.schema == log.read_arrow(columns=names).schema
        assert table["key"].to_pylist() == [record.key for record in log if record.offset in wanted]
        sizes = [batch.num_rows for batch in log.latest(batch_rows=7)]
        assert max(sizes) == 7
        assert sum(sizes) == len(wanted)
        assert pa.table(log.latest(memory_bytes=1 << 16)).num_rows == len(wanted)
        assert log.latest(0).read_all().num_rows == 0
        early = {record.key: record for record in log.records(0, 100) if record.key is not None}
        table = log.latest(100).read_all()
        assert table["offset"].to_pylist() == sorted(r.offset for r in early.values() if r.value is not None)
        assert log.latest(10_000).read_all()["offset"].to_pylist() == wanted


def test_aborted_and_open_transactions_do_not_count(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"first", key=b"a")
        with log.transaction("x") as txn:
            txn.append(b"second", key=b"a")
        txn.begin()
        txn.append(b"aborted", key=b"a")
        txn.abort()
        txn.begin()
        txn.append(b"open", key=b"a")
        log.append(b"behind", key=b"b")
        assert log.latest().read_all()["value"].to_pylist() == [b"second"]
        loud = log.latest(isolation="read_uncommitted").read_all()
        assert loud["value"].to_pylist() == [b"open", b"behind"]
        txn.commit()
        assert log.latest().read_all()["value"].to_pylist() == [b"open", b"behind"]


def test_what_went_between_the_walks(tmp_path: Path) -> None:
    fill(tmp_path, 100)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        found = log.latest()
        log.delete_records(60)
        log.delete_old_segments()
        assert all(offset >= 55 for offset in found.read_all()["offset"].to_pylist())
        found = log.latest()
        log.truncate(80)
        with pytest.raises(OffsetOutOfRangeException, match="try again"):
            found.read_all()
        found = log.latest()
        log.truncate(79)
        log.append_many([(b"other", b"other")] * 3)
        with pytest.raises(OffsetOutOfRangeException, match="try again"):
            found.read_all()
        assert b"other" in log.latest().read_all()["key"].to_pylist()


def test_a_cleaner_between_the_walks(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.append([("a", "1"), ("b", "2")], 0)
    story.roll()
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        found = log.latest()
        story.append([("a", "3")], 0)
        story.roll()
        story.clean(1000, 65536)
        log.refresh()
        with pytest.raises(OffsetOutOfRangeException, match=r"offset 0 of t-0 was removed .*try again"):
            found.read_all()
        assert log.latest().read_all()["value"].to_pylist() == [b"2", b"3"]
    story.log.close()


def test_memory_that_is_too_little_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 50)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        for wrong in (0, 65535, "1", 1.5, -1):
            with pytest.raises(IllegalArgumentException, match="memory_bytes"):
                log.latest(memory_bytes=wrong)  # type: ignore[arg-type]


# --- damage --------------------------------------------------------------------------------------------------


def damage(root: Path, number: int) -> int:
    """Flips a bit in the body of a segment's first batch; that batch's offset."""
    path = sorted((root / "t-0").glob("*.log"))[number]
    data = bytearray(path.read_bytes())
    data[66] ^= 1
    path.write_bytes(data)
    return int(path.stem)


@pytest.mark.parametrize("memory", [1 << 16, 300])
def test_the_state_before_damage_comes_first(tmp_path: Path, memory: int) -> None:
    fill(tmp_path)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        everything = list(log)
    stop = damage(tmp_path, 3)
    wanted = {record.key: record for record in everything if record.key is not None and record.offset < stop}
    with PartitionView(tmp_path, "t-0") as view:
        found = Latest(view, memory_bytes=memory)
        assert found.end_offset == stop
        got: list[int] = []
        with pytest.raises(CorruptRecordException) as failure:
            got.extend(offset for batch in found.batches(("offset",)) for offset in batch["offset"].to_pylist())
        assert got == sorted(record.offset for record in wanted.values() if record.value is not None)
        assert failure.value.path == str(tmp_path / "t-0" / f"{stop:020}.log")
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        with pytest.raises(CorruptRecordException):  # the reader hands on our own error
            log.latest().read_all()
        assert log.latest(stop).read_all()["offset"].to_pylist() == got


# --- the command line ----------------------------------------------------------------------------------------


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    for partition in range(2):
        with kafkalog.open_log(root, f"t-{partition}", compression="lz4") as log:
            for n in range(60):
                value = None if n % 11 == 0 else "größe %d".encode() % n
                log.append(value, key=None if n % 13 == 0 else b"k%d" % (n % 17), timestamp=START_MS + n)
            with log.transaction("x") as txn:
                txn.append(b"committed", key=b"k1", timestamp=START_MS)
            txn.begin()
            txn.append(b"aborted", key=b"k1", timestamp=START_MS)
            txn.abort()
    return root


def there(
    root: Path, partition: int, end: int = 1 << 40, isolation: str = "read_committed", before_ms: int = 1 << 60
) -> list[Any]:
    """By offset, with tombstones."""
    state = {}
    with kafkalog.open_log(root, f"t-{partition}", read_only=True) as log:
        for record in log.records(isolation=isolation):
            if record.key is not None and record.offset < end and record.timestamp < before_ms:
                state[record.key] = record
    return sorted(state.values(), key=lambda record: record.offset)


def alive(records: list[Any]) -> list[Any]:
    return [record for record in records if record.value is not None]


def test_lines_and_json(run: Run, log_dir: Path) -> None:
    result = run("latest", log_dir)
    assert result.code == CLEAN
    wanted = [record for partition in range(2) for record in alive(there(log_dir, partition))]
    assert result.octets == b"".join(record.key + b"\t" + record.value + b"\n" for record in wanted)
    assert result.err.splitlines() == [
        f"note: t-{partition}: left out 5 records without a key" for partition in range(2)
    ]
    result = run("latest", log_dir / "t-1", "-f", "%t %p %o %k\\n")
    assert result.lines == [f"t 1 {record.offset} {record.key.decode()}" for record in alive(there(log_dir, 1))]
    result = run("latest", log_dir, "t-0", "--json", "--tombstones")
    entries = [json.loads(line) for line in result.lines]
    assert [(entry["offset"], entry["key"], entry["value"]) for entry in entries] == [
        (record.offset, record.key.decode(), None if record.value is None else record.value.decode())
        for record in there(log_dir, 0)
    ]
    assert [entry for entry in entries if entry["value"] is None]
    cat = {entry["offset"]: entry for entry in map(json.loads, run("cat", log_dir, "t-0", "--json").lines)}
    assert all(cat[entry["offset"]] == entry for entry in entries)


def test_as_it_was_then(run: Run, log_dir: Path) -> None:
    """A time counts by the records' timestamps: one that was appended late may be older."""
    late = there(log_dir, 0, before_ms=START_MS + 20)
    assert max(record.offset for record in late) >= 60
    by_time = (f"@{START_MS + 20}", "2023-11-14T22:13:20.020Z")
    for until, wanted in (
        (20, there(log_dir, 0, 20)),
        *((time, late) for time in by_time),
        (10_000, there(log_dir, 0)),
    ):
        result = run("latest", log_dir, "t-0", "--until", until, "-f", "%o\\n")
        assert result.lines == [str(record.offset) for record in alive(wanted)]


def test_uncommitted(run: Run, log_dir: Path) -> None:
    result = run("latest", log_dir, "t-0", "--uncommitted", "-f", "%k %o\\n")
    wanted = alive(there(log_dir, 0, isolation="read_uncommitted"))
    assert result.lines == [f"{record.key.decode()} {record.offset}" for record in wanted]
    with kafkalog.open_log(log_dir, "t-0") as log:
        txn = log.transaction("y")
        txn.begin()
        end = log.end_offset
        txn.append(b"open", key=b"k1")
        result = run("latest", log_dir, "t-0", "-f", "%s\\n")
        assert "committed" in result.lines
        assert f"left out everything from offset {end} on" in result.err
        assert f"left out everything from offset {end}" not in run("latest", log_dir, "t-0", "--until", end).err
        assert "open" in run("latest", log_dir, "t-0", "--uncommitted", "-f", "%s\\n").lines
        txn.abort()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl"])
def test_files_read_back(run: Run, log_dir: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / f"all.{kind}"
    result = run("latest", log_dir, "--to", target, "--headers", "--tombstones")
    assert result.code == CLEAN, result.err
    records = [record for partition in range(2) for record in there(log_dir, partition)]
    assert result.lines[0].startswith(f"{target}: {len(records)} keys, ")
    got = [(row["partition"], row["offset"], row["key"], row["value"], row["timestamp"]) for row in load(target)]
    assert got == [(it.partition, it.offset, it.key, it.value, it.timestamp) for it in records]
    assert run("latest", log_dir, "--to", target).code == USAGE  # it exists
    folder = tmp_path / "folder"
    result = run("latest", log_dir, "t", "--to", folder, "--as", kind, "--headers")
    assert result.code == CLEAN
    for partition in range(2):
        rows_there = load(folder / f"t-{partition}.{kind}")
        assert [row["offset"] for row in rows_there] == [it.offset for it in alive(there(log_dir, partition))]
    if kind != "csv":
        return
    assert run("latest", log_dir, "--to", target, "--force", "--base64").code == CLEAN


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl"])
def test_a_file_of_which_conditions_take_all(tmp_path: Path, run: Run, kind: str) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        log.append(b"v", key=b"k")
    target = tmp_path / f"x.{kind}"
    result = run("latest", tmp_path / "logs", "--to", target, "--where", "offset > 5")
    assert (result.code, target.exists()) == (CLEAN, True), result.err
    assert "0 keys" in result.out


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--to", "x.txt"], "unknown suffix"),
        (["--to", "x.parquet", "--json"], "one of them"),
        (["--to", "x.parquet", "-f", "%s"], "one of them"),
        (["--force"], "expected --to"),
        (["--as", "parquet"], "expected --to"),
        (["--to", "folder", "--as", "xml"], "unknown format"),
        (["--to", "x.parquet", "--codec", "rar"], "does not support the compression"),
        (["-f", "%q"], "unknown %q"),
        (["--until", "yesterday"], "neither an offset nor a time"),
        (["--memory", "much"], "is not a size"),
        (["--memory", "1000"], "memory_bytes"),
        (["u"], "no topic or partition"),
        (["--json", "extra-1"], "no topic or partition"),
    ],
)
def test_wrong_command_lines(
    run: Run, log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("latest", log_dir, *argv)
    assert (result.code, result.out) == (USAGE, "")
    assert hint in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_damage_is_told_behind_what_lies_before_it(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    fill(root)
    stop = damage(root, 2)
    result = run("latest", root, "-f", "%o\\n")
    assert result.code == FINDINGS
    assert result.lines
    assert max(map(int, result.lines)) < stop
    assert f"{stop:020}.log" in result.err
    target = tmp_path / "x.parquet"
    result = run("latest", root, "--to", target)
    assert (result.code, result.out) == (FINDINGS, "")
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert run("latest", root, "--until", stop, "--to", target).code == CLEAN


def test_a_directory_is_only_read(run: Run, log_dir: Path) -> None:
    def seen() -> Iterator[tuple[str, int, bytes]]:
        for path in sorted(log_dir.rglob("*")):
            if path.is_file():
                yield str(path), path.stat().st_mtime_ns, path.read_bytes()

    before = list(seen())
    assert run("latest", log_dir, "--progress").code == CLEAN
    assert run("history", "k1", log_dir).code == CLEAN
    assert list(seen()) == before


def test_records_of_a_view(log_dir: Path) -> None:
    with PartitionView(log_dir, "t-0") as view:
        told: list[int] = []
        found = latest(view, LatestOptions(tombstones=True), progress=told.append)
        assert list(latest_records(found, LatestOptions(tombstones=True))) == there(log_dir, 0)
        size = (log_dir / "t-0" / LOG).stat().st_size
        assert size < sum(told) <= 2 * size


def test_as_of_then_is_as_far_as_cleaners_left_it(tmp_path: Path) -> None:
    day = 86_400_000
    with kafkalog.open(tmp_path, maintenance=False, config={"internal.segment.bytes": "200"}) as store:
        topic = store.create_topic("prices", config={"cleanup.policy": "compact"})
        for number in range(20):
            topic.append(b"%d" % number, key=b"tea", timestamp=1_790_000_000_000 + number * day)
        asked = {"start_time": 0, "end_time": 1_790_000_000_000 + 10 * day}
        assert topic.latest(**asked).read_all()["value"].to_pylist() == [b"9"]  # type: ignore[arg-type]
        topic.partition(0).compact()
        assert topic.latest(**asked).read_all().num_rows == 0  # type: ignore[arg-type]
        assert topic.latest().read_all()["value"].to_pylist() == [b"19"]
