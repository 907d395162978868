"""A search by time finds the same records as a walk over all records, by every entry point and in every kind of store.

The logs are random: times that decrease, repeat or are missing, the largest possible one, empty segments, compacted,
truncated and shortened logs, written by one process or by several alternately.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._limits import LONG_MAX
from kafkalog.records import Record
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

START_MS = 1_700_000_000_000
CONFIG = {
    "internal.segment.bytes": "700",
    "index.interval.bytes": "150",
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}


def fill(root: Path, rng: random.Random) -> None:
    """Times rise, as a clock does, with those that some other clock gave between them."""
    now_ms = START_MS
    strays = rng.choice([0.0, 0.1, 0.5])
    is_compacted = False

    def time_ms() -> int:
        nonlocal now_ms
        now_ms += rng.choice([0, 0, 1, 7])
        if rng.random() >= strays:
            return now_ms
        return rng.choice([-1, 0, now_ms - rng.randrange(60), now_ms + rng.randrange(60), 1 << 62, LONG_MAX])

    for _ in range(rng.randrange(1, 5)):
        codec = rng.choice(["none", "none", "lz4"])
        with kafkalog.open_log(root, "t-0", config=CONFIG, compression=codec) as log:
            assert log.engine is not None
            for _ in range(rng.randrange(8)):
                size = rng.choice([1, 1, 3, 9])
                log.append_many([(b"v" * rng.randrange(80), b"k%d" % rng.randrange(9), (), time_ms())
                                 for _ in range(size)])  # fmt: skip
                start, end = log.log_start_offset, log.end_offset
                match rng.randrange(24):
                    case 0:
                        log.engine.roll()
                    case 1:
                        is_compacted = bool(log.compact().passes) or is_compacted
                    case 2:
                        log.delete_records(rng.randrange(start, end + 1))
            if rng.random() < 0.3 and not is_compacted and log.end_offset > log.log_start_offset:
                at = rng.randrange(log.log_start_offset, log.end_offset)
                batch = log.engine.batch_around(at)
                log.truncate(at if batch is None else max(batch[0], log.log_start_offset))
            if rng.random() < 0.3:
                is_compacted = bool(log.compact().passes) or is_compacted


def asked_times(records: list[Record], rng: random.Random) -> list[int]:
    """The records' times and the times next to them; a sample if there are many."""
    there = sorted({0, START_MS, LONG_MAX, *(record.timestamp for record in records)})
    times = {time + step for time in there for step in (-1, 0, 1) if 0 <= time + step <= LONG_MAX}
    return rng.sample(sorted(times), min(len(times), 25))


def each_door(root: Path, look: Callable[[str, kafkalog.Partition | None, kafkalog.Store | None], None]) -> None:
    with kafkalog.open(root, maintenance=False) as store:
        look("store", None, store)
        with kafkalog.open(root, read_only=True) as beside:
            look("read-only store beside it", None, beside)
        with kafkalog.open_log(root, "t-0", read_only=True) as view:
            look("read-only log", view, None)
    with kafkalog.open_log(root, "t-0", config=CONFIG) as log:
        look("log", log, None)
        with kafkalog.open_log(root, "t-0", read_only=True) as view:
            look("read-only log beside it", view, None)


@pytest.mark.parametrize("seed", range(40))
def test_the_first_record_at_or_after_a_time(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fill(tmp_path, rng)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        records = list(log)
    times = asked_times(records, rng)

    def look(door: str, log: kafkalog.Partition | None, store: kafkalog.Store | None) -> None:
        for time_ms in times:
            first = next((record.offset for record in records if record.timestamp >= time_ms), None)
            if log is not None:
                assert log.offset_for_time(time_ms) == first, (door, time_ms)
                found = next(log.records(start_time=time_ms), None)
                assert (None if found is None else found.offset) == first, (door, time_ms)
            if store is not None:
                with store.reader(partitions=["t-0"]) as reader:
                    reader.seek_to_time(time_ms)
                    if first is None:  # the end
                        assert (sum(reader.lag().values()), list(reader)) == (0, []), (door, time_ms)
                    else:
                        assert reader.position("t-0") == first, (door, time_ms)

    each_door(tmp_path, look)


def windows(records: list[Record], rng: random.Random) -> list[tuple[int | None, int | None]]:
    times = asked_times(records, rng)
    pairs = [sorted(rng.choices(times, k=2)) for _ in range(6)]
    return [(None, None), (times[0], None), (None, times[-1]), *((low, high) for low, high in pairs)]


def within(records: list[Record], start: int | None, end: int | None) -> list[int]:
    return [it.offset for it in records
            if (start is None or it.timestamp >= start) and (end is None or it.timestamp < end)]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_window_has_the_records_whose_timestamp_is_in_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fill(tmp_path, rng)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        records = list(log)
    asked = windows(records, rng)

    def look(door: str, log: kafkalog.Partition | None, store: kafkalog.Store | None) -> None:
        for start, end in asked:
            wanted = within(records, start, end)
            times = {"start_time": start, "end_time": end}
            if log is not None:
                assert [it.offset for it in log.records(**times)] == wanted, (door, times)
                assert log.read_arrow(**times)["offset"].to_pylist() == wanted, (door, times)
            if store is not None:
                for prefix in (None, b"k"):
                    with store.reader(partitions=["t-0"], key_prefix=prefix, **times) as reader:
                        assert [it.offset for it in reader] == wanted, (door, times)
                    with store.reader(partitions=["t-0"], key_prefix=prefix, **times) as reader:
                        found = [offset for batch in reader.batches() for offset in batch["offset"].to_pylist()]
                        assert found == wanted, (door, times)

    each_door(tmp_path, look)


@pytest.mark.parametrize("seed", range(8))
def test_a_window_of_the_command_line(tmp_path: Path, run: Run, seed: int) -> None:
    rng = random.Random(seed)
    fill(tmp_path / "logs", rng)
    with kafkalog.open_log(tmp_path / "logs", "t-0", read_only=True) as log:
        records = list(log)
    by_offset = {record.offset: record for record in records}
    log_dir, target = tmp_path / "logs", tmp_path / "x.jsonl"

    def offsets_of(*argv: object) -> list[int]:
        result = run(*argv)
        assert result.code == 0, result.err
        return [json.loads(line)["offset"] for line in result.lines]

    for start, end in windows(records, rng):
        wanted = within(records, start, end)
        asked = [f"--from=@{start}"] * (start is not None) + [f"--until=@{end}"] * (end is not None)
        assert offsets_of("cat", log_dir, "t-0", "--json", *asked) == wanted
        assert offsets_of("cat", log_dir, "t-0", "--json", "--grep", "", *asked) == wanted
        assert offsets_of("cat", log_dir, "t-0", "--json", "--last", 3, *asked) == wanted[-3:]
        ours = [offset for offset in wanted if by_offset[offset].key == b"k1"]
        assert offsets_of("history", "k1", log_dir, "t-0", "--json", *asked) == ours
        if all(record.timestamp < 1 << 53 for record in records):  # else more than microseconds can say
            assert run("export", log_dir, "t-0", "--to", target, "--force", *asked).code == 0
            assert [json.loads(line)["offset"] for line in target.read_text().splitlines()] == wanted
        if start is None:
            last = {by_offset[offset].key: offset for offset in wanted}
            assert offsets_of("latest", log_dir, "t-0", "--json", *asked) == sorted(last.values())
