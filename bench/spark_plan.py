"""`python -m bench.spark_plan`: the cost of planning as a log grows, and the bytes that a task reads.

One partition has N segments, each of BATCHES batches (the engine writes the first one, the others are copies with later
offsets). Three reads are planned: all of it, a timestamp after all records (so that every segment is checked), and the
offsets of its last hundredth. Then some tasks of the whole plan are run, and the bytes that this process has read are
compared with those that the plan assigned. This is one process without Spark, which adds one such call for each query.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import tempfile
import time
from pathlib import Path

import kafkalog
from bench.kept import KAFKALOG, LOWER, SECONDS, Results, add_options, keep
from kafkalog.spark.filters import Wanted
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.tasks import read_range

SEGMENTS = (1_000, 10_000, 100_000)
BATCHES = 4
RECORDS = 10  # records in a batch
START_MS = 1_700_000_000_000
TASKS = 20


def fill(folder: Path, segments: int) -> None:
    """Writes copies of one segment with later base offsets, which no CRC covers."""
    with kafkalog.open_log(folder.parent, folder.name) as log:
        for number in range(BATCHES):
            log.append_many([(b"v" * 100, b"key", [], START_MS + number)] * RECORDS)
    (first,) = folder.glob("*.log")
    data = bytearray(first.read_bytes())
    size = len(data) // BATCHES
    for number in range(1, segments):
        base = number * BATCHES * RECORDS
        for batch in range(BATCHES):
            struct.pack_into(">q", data, batch * size, base + batch * RECORDS)
        name = folder / f"{base:020d}"
        name.with_suffix(".log").write_bytes(data)
        name.with_suffix(".index").touch()
        name.with_suffix(".timeindex").touch()
    (folder.parent / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {segments * BATCHES * RECORDS}\n")


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def measured(options: dict[str, str], wanted: Wanted | None = None) -> tuple[float, list[object]]:
    parsed = parse_options(options)
    best, ranges = float("inf"), []
    for _ in range(3):
        begin = time.perf_counter()
        ranges = plan(parsed) if wanted is None else plan(parsed, wanted)
        best = min(best, time.perf_counter() - begin)
    return best, ranges


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_plan")
    parser.add_argument("--segments", type=int, action="append")
    parser.add_argument("--dir")
    add_options(parser)
    given, results = parser.parse_args(), Results()
    print("| segments | plan of all, s | latest time, s | last hundredth, s | ranges | bytes of a task | it read |")
    print("|---|---|---|---|---|---|---|")
    for segments in given.segments or SEGMENTS:
        root = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=given.dir))
        try:
            fill(root / "t-0", segments)
            end = segments * BATCHES * RECORDS
            options = {"path": str(root), "subscribe": "t", "maxBytesPerPartition": str(1 << 20)}
            whole, ranges = measured(options)
            late = {"startingTimestamp": str(START_MS + BATCHES), "startingOffsetsByTimestampStrategy": "latest"}
            timed, _ = measured({**options, **late})
            some = {**options, "startingOffsets": json.dumps({"t": {"0": end - end // 100}})}
            last, _ = measured(some)
            parsed = parse_options(options)
            picked = ranges[:: max(1, len(ranges) // TASKS)]
            before = bytes_read()
            rows = sum(batch.num_rows for work in picked for batch in read_range(work, parsed, ("offset", "value")))
            touched = (bytes_read() - before) / len(picked)
            assert rows == sum(work.end_offset - work.start_offset for work in picked)
            meant = sum(work.size for work in picked) / len(picked)
            for what, taken in (("all", whole), ("the latest time", timed), ("the last hundredth", last)):
                results.point("planning", f"plan of {what}", "segments", SECONDS, KAFKALOG, segments, taken, LOWER)
            seconds = " | ".join(f"{each:.3f}" for each in (whole, timed, last))
            print(f"| {segments:,} | {seconds} | {len(ranges):,} | {meant:,.0f} | {touched:,.0f} |", flush=True)
        finally:
            shutil.rmtree(root)
    keep(given, results)


if __name__ == "__main__":
    main()
