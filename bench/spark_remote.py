"""`python -m bench.spark_remote`: the cost of planning over a growing bucket, and of counting tiered segments, compared
with local segments and with Spark's Kafka connector and a live broker.

First, one partition of N segments, in each layout, in a file system that computes listings instead of s3fs (so that
kafkalog is measured, not the network). A plan needs only names and sizes, and the segments that it cuts. Seconds are
CPU time and elapsed time, MiB are the peak of the whole process.

Then a broker (Apache Kafka 4.3.1 with LocalTieredStorage) has a topic, which is copied and tiered. Spark counts its
records in the copy, in the broker's directory together with the tier's, in the tier alone, and with its connector
through the broker: in one session, alternately. The best run counts, by elapsed time and by CPU time (of all processes
that a side needs, including the broker). Spark does not tell a Python source the columns of a count, so it costs the
columns that are read: all, or one with the option `columns`. This needs the PySpark version that has a connector: `make
bench-spark-remote` uses a separate environment.
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
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import fsspec
import fsspec.asyn

import kafkalog
from bench import kept
from bench.kept import KAFKALOG
from bench.spark import BATCH_BYTES, CODECS, PARTITIONS, RECORDS, TURNS, Broker, clock_of, place_of, produce, timed
from kafkalog.engine.remote.local_tiered import ROOT
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from tests.broker.test_tiering import POM, tiering, until
from tests.spark import connector

SEGMENTS = (1_000, 10_000, 100_000)
LAYOUTS = ("local-tiered", "aiven")
BATCHES, BATCH_RECORDS = 4, 10
TOPIC = "orders"
SEGMENT_BYTES = 16 << 20
LOCAL, BOTH, TIER, CONNECTOR = ("local segments", "both tiers", "the tier alone", "connector")
PRUNED = "both tiers, columns=offset"
WAYS = (LOCAL, BOTH, PRUNED, TIER, CONNECTOR)
LOCAL_AIM, CONNECTOR_AIM = 0.8, 5
TOPIC_ID = "AWrCeLx2TDOJMreDImAzTA"
START_MS = 1_700_000_000_000
FILES = {
    "local-tiered": (".log", ".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"),
    "aiven": (".log", ".indexes", ".rsm-manifest"),
}


class Formula(fsspec.asyn.AsyncFileSystem):  # type: ignore[misc]
    """A bucket of `segments` copies of one segment with increasing base offsets. It replaces s3fs, and lists as s3fs
    does."""

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
                struct.pack_into(">q", data, batch * (len(data) // BATCHES), base + batch * BATCH_RECORDS)
            return bytes(data[start:end])
        return manifest(base, len(self.log)) if name.endswith("manifest") else b""


def base_of(number: int) -> int:
    return number * BATCHES * BATCH_RECORDS


def id_of(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).rstrip(b"=").decode()


def manifest(base: int, size: int) -> bytes:
    chunks = {"type": "fixed", "originalChunkSize": 4 << 20, "originalFileSize": size}
    chunks |= {"transformedChunkSize": 4 << 20, "finalTransformedChunkSize": size}
    said = {"startOffset": base, "endOffset": base + BATCHES * BATCH_RECORDS - 1, "maxTimestampMs": START_MS}
    said |= {"brokerId": 0, "eventTimestampMs": 0, "segmentLeaderEpochs": {"0": base}}
    nothing = {"position": 0, "size": 0}
    kinds = ("offset", "timestamp", "producerSnapshot", "leaderEpoch")
    indexes = {**dict.fromkeys(kinds, nothing), "transaction": None}
    return json.dumps(
        {"version": "1", "chunkIndex": chunks, "segmentIndexes": indexes, "compression": False}
        | {"remoteLogSegmentMetadata": said}
    ).encode()


def plan_once(layout: str, segments: int) -> None:
    """Plans once, in a separate process, and prints a line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    try:
        with kafkalog.open_log(folder, "orders-0") as log:
            for number in range(BATCHES):
                log.append_many([(b"v" * 100, b"key", [], START_MS + number)] * BATCH_RECORDS)
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


class Sides:
    """The ways to read the topic."""

    def __init__(self, spark: Any, broker: Broker, place: Path) -> None:
        self.spark, self.broker, self._place = spark, broker, place
        both = {"path": str(broker.log_dir), "remote": f"file://{place}/tier"}
        self._ways = {
            LOCAL: {"path": str(place / "full")},
            BOTH: both,
            PRUNED: both | {"columns": "offset"},
            TIER: {"path": both["remote"]},
        }

    def count(self, way: str) -> int:
        if way == CONNECTOR:
            reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        else:
            reader = self.spark.read.format("kafkalog").options(**self._ways[way])
        found: int = reader.option("subscribe", TOPIC).load().count()
        return found


def fill(broker: Broker, place: Path, given: argparse.Namespace) -> None:
    """Writes the topic, copies its directories, and then leaves all but the last segments in the tier only."""
    import confluent_kafka.admin as admin

    produce(broker.bootstrap, TOPIC, given.codec, given.records, BATCH_BYTES, {"segment.bytes": str(SEGMENT_BYTES)})
    folders = [f"{TOPIC}-{number}" for number in range(PARTITIONS)]
    for name in folders:
        shutil.copytree(broker.log_dir / name, place / "full" / name)
    wanted = {"remote.storage.enable": "true", "local.retention.bytes": "1", "retention.ms": "-1"}
    entries = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    asked = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, TOPIC, incremental_configs=entries)
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in client.incremental_alter_configs([asked]).values():
        future.result(60)
    until(
        lambda: all(len(list((broker.log_dir / name).glob("*.log"))) == 1 for name in folders),
        "the topic is not tiered yet",
    )


def counts(given: argparse.Namespace, results: kept.Results) -> None:
    with place_of(None) as place:
        settings = tiering(place) | {"num.network.threads": "3", "num.io.threads": "8"}
        (place / "node").mkdir()
        broker = Broker(place / "node", settings=settings, pom=POM, shares_metadata=True)
        broker.start()
        spark = connector.session(place / "spark", **{"spark.ui.showConsoleProgress": "false"})
        try:
            fill(broker, place, given)
            sides_of, found = Sides(spark, broker, place), dict.fromkeys(WAYS, 0)
            elapsed: dict[str, list[float]] = {way: [] for way in WAYS}
            best = {clock: dict.fromkeys(WAYS, float("inf")) for clock in ("clock", "processor")}
            for _ in range(given.turns):
                for way in WAYS:
                    processor = clock_of("connector" if way == CONNECTOR else "kafkalog", True, broker.pid)
                    seconds, (busy, found[way]) = timed(
                        partial(timed, partial(sides_of.count, way), processor), monotonic
                    )
                    elapsed[way].append(found[way] / seconds)
                    for clock, taken in (("clock", seconds), ("processor", busy)):
                        best[clock][way] = min(best[clock][way], taken)
        finally:
            spark.stop()
            broker.stop()
    assert found[LOCAL] == found[BOTH] == found[PRUNED] == found[CONNECTOR] == given.records >= found[TIER], found
    print(f"\ncount of {given.records:,} records, codec {given.codec}, segments of {SEGMENT_BYTES >> 20} MiB")
    print("| read | seconds of the | records | M records/s | of local segments | of the connector |")
    print("|---|---|---|---|---|---|")
    for clock, times in best.items():
        rates = {way: found[way] / times[way] / 1e6 for way in WAYS}
        for way, rate in rates.items():
            ratios = f"{rate / rates[LOCAL]:.2f} | {rate / rates[CONNECTOR]:.1f}x"
            print(f"| {way} | {clock} | {found[way]:,} | {rate:.2f} | {ratios} |", flush=True)
    sides = {KAFKALOG: elapsed[BOTH], "local segments": elapsed[LOCAL], "Spark's Kafka connector": elapsed[CONNECTOR]}
    results.row("spark-remote", "count(*) of both tiers", kept.RECORDS_PER_S, sides)
    print(f"targets for both tiers: {LOCAL_AIM}x of local segments, {CONNECTOR_AIM}x of the connector")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_remote")
    parser.add_argument("--segments", type=int, action="append")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--codec", default="none", choices=CODECS)
    kept.add_options(parser)
    parser.add_argument("--plan", nargs=2, metavar=("LAYOUT", "SEGMENTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        plan_once(given.plan[0], int(given.plan[1]))
        return
    results = kept.Results()
    print("| segments | layout | processor, s | wall, s | peak, MiB | ranges | objects read |")
    print("|---|---|---|---|---|---|---|")
    for segments in given.segments or SEGMENTS:
        for layout in LAYOUTS:
            words = [sys.executable, "-m", "bench.spark_remote", "--plan", layout, str(segments)]
            found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            figures = f"{found['cpu_s']:.2f} | {found['s']:.2f} | {found['mib']:.0f} | {found['ranges']:,}"
            print(f"| {segments:,} | {layout} | {figures} | {found['requests']:,} |", flush=True)
            side = f"kafkalog, layout {layout}"
            results.point(
                "bucket", "plan over a bucket", "segments", kept.SECONDS, side, segments, found["s"], kept.LOWER
            )
    if connector.missing() is not None:
        print(connector.missing())
    else:
        counts(given, results)
    kept.keep(given, results)


if __name__ == "__main__":
    main()
