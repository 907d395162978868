"""`python -m bench.spark_remote`: what planning over a bucket costs as it grows, and what a read of the tier costs
beside one of local segments.

First: one partition of N segments, in a file system that answers listings from a formula (so what is measured is ours,
and not the disk's), in each layout.  A layout of Kafka's LocalTieredStorage is planned from names and sizes alone;
Aiven's wants each manifest, one request a segment, which are made side by side.  Then: the same records as a local
directory, as both tiers and as the tier alone, each read by this process.  Seconds are of the processor, MiB are the
peak of the whole process.
"""

from __future__ import annotations

import argparse
import base64
import json
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn

import kafkalog
from kafkalog.engine.remote.local_tiered import ROOT
from kafkalog.remote import RemoteStorage
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.tasks import read_range

SEGMENTS = (1_000, 10_000, 100_000)
LAYOUTS = ("local-tiered", "aiven")
BATCHES, RECORDS = 4, 10
TOPIC_ID = "AWrCeLx2TDOJMreDImAzTA"
START_MS = 1_700_000_000_000
FILES = {
    "local-tiered": (".log", ".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"),
    "aiven": (".log", ".indexes", ".rsm-manifest"),
}


class Formula(fsspec.asyn.AsyncFileSystem):  # type: ignore[misc]
    """A bucket of `segments` copies of one segment, whose base offsets move on.  It stands in for s3fs, and lists as
    that does."""

    protocol = "s3"
    cachable = False
    segments = 0
    layout = ""
    log = b""
    requests = 0

    @staticmethod
    def split_path(path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def _folder(self) -> str:
        return f"{ROOT}/orders-0-{TOPIC_ID}" if self.layout == "local-tiered" else f"orders-{TOPIC_ID}/0"

    async def _iterdir(self, bucket: str, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        folder = self._folder()
        if prefix == folder + "/":
            for number in range(self.segments):
                stem = f"{bucket}/{prefix}{base_of(number):020d}-{id_of(number)}"
                for suffix in FILES[self.layout]:
                    size = len(self.log) if suffix == ".log" else 0
                    yield {"name": stem + suffix, "type": "file", "size": size}
        elif folder.startswith(prefix):
            name = folder[len(prefix) :].partition("/")[0]
            yield {"name": f"{bucket}/{prefix}{name}", "type": "directory", "size": 0}

    async def _ls(self, path: str, detail: bool = True, **how: Any) -> list[dict[str, Any]]:
        bucket, key, _ = self.split_path(path.rstrip("/"))
        return [each async for each in self._iterdir(bucket, f"{key}/" if key else "")]

    async def _info(self, path: str, **how: Any) -> dict[str, Any]:
        return {"name": path, "size": 0, "type": "file"}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: Any) -> bytes:
        type(self).requests += 1
        name = path.rpartition("/")[2]
        base = int(name[:20])
        if name.endswith(".log"):
            data = bytearray(self.log)
            for batch in range(BATCHES):
                struct.pack_into(">q", data, batch * (len(data) // BATCHES), base + batch * RECORDS)
            return bytes(data[start:end])
        return manifest(base, len(self.log)) if name.endswith("manifest") else b""


def base_of(number: int) -> int:
    return number * BATCHES * RECORDS


def id_of(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).rstrip(b"=").decode()


def manifest(base: int, size: int) -> bytes:
    chunks = {"type": "fixed", "originalChunkSize": 4 << 20, "originalFileSize": size}
    chunks |= {"transformedChunkSize": 4 << 20, "finalTransformedChunkSize": size}
    said = {"startOffset": base, "endOffset": base + BATCHES * RECORDS - 1, "maxTimestampMs": START_MS}
    said |= {"brokerId": 0, "eventTimestampMs": 0, "segmentLeaderEpochs": {"0": base}}
    nothing = {"position": 0, "size": 0}
    kinds = ("offset", "timestamp", "producerSnapshot", "leaderEpoch")
    indexes = {**dict.fromkeys(kinds, nothing), "transaction": None}
    return json.dumps(
        {"version": "1", "chunkIndex": chunks, "segmentIndexes": indexes, "compression": False}
        | {"remoteLogSegmentMetadata": said}
    ).encode()


def plan_once(layout: str, segments: int) -> None:
    """In a process of its own: a line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    try:
        with kafkalog.open_log(folder, "orders-0") as log:
            for number in range(BATCHES):
                log.append_many([(b"v" * 100, b"key", [], START_MS + number)] * RECORDS)
        (first,) = (folder / "orders-0").glob("*.log")
        Formula.log = first.read_bytes()
    finally:
        shutil.rmtree(folder)
    Formula.layout, Formula.segments = layout, segments
    fsspec.register_implementation("s3", Formula, clobber=True)
    begin, seconds = time.process_time(), time.perf_counter()
    options = {"path": "s3://bucket", "subscribe": "orders", "remote.layout": layout}
    ranges = plan(parse_options(options | {"maxBytesPerPartition": str(1 << 20)}))
    found = {
        "cpu_s": time.process_time() - begin,
        "s": time.perf_counter() - seconds,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ranges": len(ranges),
        "requests": Formula.requests,
    }
    assert sum(len(work.pieces) for work in ranges) == segments
    print(json.dumps(found))


def read_times(place: Path, records: int) -> dict[str, float]:
    """Processor seconds of the best of three reads."""
    config = {"segment.bytes": str(16 << 20)}
    with kafkalog.open(place / "full") as store:
        topic = store.create_topic("orders", 1, config=config)
        for number in range(records):
            topic.append(value=b"v" * 100, key=b"key%d" % number)
    shutil.copytree(place / "full", place / "part")
    url = f"file://{place}/tier"
    with kafkalog.open(place / "part", remote=RemoteStorage(url)) as store:
        tiered = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"}
        store.alter_topic("orders", tiered)
        store.remote_log_manager.run_once()
        store.manager.cleanup_logs()
    ways = {
        "local": {"path": str(place / "full")},
        "both tiers": {"path": str(place / "part"), "remote": url},
        "tier alone": {"remote": url},
    }
    best: dict[str, float] = {}
    for _ in range(3):
        for name, options in ways.items():
            parsed = parse_options({"subscribe": "orders"} | options)
            begin = time.process_time()
            rows = sum(batch.num_rows for work in plan(parsed) for batch in read_range(work, parsed, ("offset",)))
            taken = (time.process_time() - begin) / rows * 1e6
            best[name] = min(best.get(name, taken), taken)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_remote")
    parser.add_argument("--segments", type=int, action="append")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--plan", nargs=2, metavar=("LAYOUT", "SEGMENTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        plan_once(given.plan[0], int(given.plan[1]))
        return
    print("| segments | layout | processor, s | wall, s | peak, MiB | ranges | objects read |")
    print("|---|---|---|---|---|---|---|")
    for segments in given.segments or SEGMENTS:
        for layout in LAYOUTS:
            words = [sys.executable, "-m", "bench.spark_remote", "--plan", layout, str(segments)]
            found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            figures = f"{found['cpu_s']:.2f} | {found['s']:.2f} | {found['mib']:.0f} | {found['ranges']:,}"
            print(f"| {segments:,} | {layout} | {figures} | {found['requests']:,} |", flush=True)
    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    try:
        times = read_times(place, given.records)
    finally:
        shutil.rmtree(place)
    for name, taken in times.items():
        print(f"{name}: {taken:.3f} us a record, {taken / times['local']:.2f} of local segments")


if __name__ == "__main__":
    main()
