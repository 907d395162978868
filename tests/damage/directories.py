"""Good log directories to be damaged, as {relative path: bytes}, and the records that a reader must find in them.

Three partitions: `codecs-0` (every codec, headers, epochs), `txns-0` (idempotent and transactional producers, aborted
and open transactions), `old-0` (magic 0 and 1, plain and wrapped, then v2).  Each has several segments, full indexes,
snapshots, checkpoints, meta.properties.  `clean` was closed, the other was copied while it was open.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafkalog import open_log
from kafkalog._native.codec import batches as native
from kafkalog.config import LogConfig
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format.builder import SimpleRecord, build_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.partition import Partition
from tests.client_transaction import client_transaction
from tests.reference.legacy import builder_of

Tree = dict[str, bytes]

NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = ("codecs-0", "txns-0", "old-0")
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "150", "segment.index.bytes": "360"}
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
META = b"#\n#Tue Nov 14 22:13:20 UTC 2023\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\nversion=1\ncluster.id=c\n"


class Bench:
    """The parts that all logs of a directory share, driven by hand."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.config = LogConfig.from_props(None, SETTINGS)

    def open(self, name: str) -> Partition:
        return open_log(
            self.root, name, config=self.config, clock=self.clock, scheduler=self.scheduler, topic_id=TOPIC_ID
        )


def engine_of(log: Partition) -> UnifiedLog:
    assert log.engine is not None
    return log.engine


def fill_codecs(log: Partition, clock: ManualClock) -> None:
    engine = engine_of(log)
    for number in range(30):
        records = [
            SimpleRecord(
                clock.milliseconds() + i,
                None if i == 2 else b"key%d" % i,
                None if i == 3 else b"%d:%d " % (number, i) * 12,
                ((("h", b"1"), ("h", None))) if number % 4 == 1 else (),
            )
            for i in range(1 + number % 5)
        ]
        engine.append_as_leader(build_batch(records, codec=number % 5), number // 7)
        clock.advance(1000)


def fill_txns(log: Partition, clock: ManualClock) -> None:
    for number in range(8):
        with client_transaction(log, f"job-{number % 2}") as transaction:
            transaction.append_many([(b"txn %d:%d" % (number, i) * 4, b"k%d" % i) for i in range(1 + number % 3)])
            log.append(b"between %d" % number)
            if number % 3 == 1:
                transaction.abort()
        writer = log.writer("idempotent")
        writer.append_many([b"idem %d:%d" % (number, i) for i in range(2)])
        clock.advance(700)


def fill_old(log: Partition, clock: ManualClock) -> None:
    engine = engine_of(log)
    for number in range(14):
        base = engine.log_end_offset
        magic, codec = number % 2, (0, 1, 3, 2)[number % 4] if number < 12 else 0
        builder = builder_of(magic, codec=codec, base_offset=base)
        for i in range(3):
            builder.append(clock.milliseconds() if magic else -1, b"k%d" % i, b"old %d:%d " % (number, i) * 8)
        engine.append_as_follower(builder.build(), 0)
        clock.advance(500)
    for number in range(4):
        log.append_many([(b"new %d:%d" % (number, i) * 5, b"k") for i in range(3)])


FILL = {"codecs-0": fill_codecs, "txns-0": fill_txns, "old-0": fill_old}


def read_tree(root: str) -> Tree:
    tree = {}
    for folder, _, files in os.walk(root):
        for name in sorted(files):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue  # a pipe, or a link that leads nowhere
            tree[os.path.relpath(path, root)] = Path(path).read_bytes()
    return dict(sorted(tree.items()))


def write_tree(tree: Mapping[str, bytes], root: str) -> None:
    for name, data in tree.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(data)


@functools.cache
def _made() -> tuple[Tree, Tree]:
    with tempfile.TemporaryDirectory(prefix="kafkalog-damage-") as root:
        bench = Bench(root)
        logs = [bench.open(name) for name in PARTITIONS]
        for log in logs:
            FILL[str(log.topic_partition)](log, bench.clock)
            engine_of(log).flush(True)
            log.delete_records(5)
        bench.scheduler.tick()
        # A transaction of a process that died.
        open_one = client_transaction(logs[1], "job-open")
        open_one.begin()
        open_one.append_many([b"never committed"])
        logs[1].append(b"behind an open transaction")
        Path(root, "meta.properties").write_bytes(META)
        crashed = read_tree(root)
        for log in logs:
            log.close()
        clean = read_tree(root)
    for tree in (crashed, clean):
        tree.pop(".lock", None)
    return clean, crashed


def good_tree(*, clean: bool) -> Tree:
    """A copy of the closed directory, or of the one whose process died."""
    return dict(_made()[0 if clean else 1])


Row = tuple[int, int, "bytes | None", "bytes | None", tuple[tuple[str, "bytes | None"], ...]]


@dataclass(frozen=True)
class GoodBatch:
    """A data batch of the undamaged directory: its place in the file and what a reader makes of it."""

    path: str
    position: int
    size: int
    magic: int
    rows: tuple[Row, ...]


@functools.cache
def good_batches(partition: str, *, clean: bool) -> tuple[GoodBatch, ...]:
    """In offset order; control batches have no rows.  Records below the log start are left out."""
    from kafkalog.engine.format.records import records

    found = []
    tree = _made()[0 if clean else 1]
    for path, data in tree.items():
        if path.startswith(f"{partition}/") and path.endswith(".log"):
            for header in native.headers(data)[0]:
                rows: tuple[Row, ...] = ()
                if not header.is_control:
                    rows = tuple(
                        (r.offset, r.timestamp, r.key, r.value, r.headers)
                        for r in records(data, header)
                        if r.offset >= 5
                    )
                found.append(GoodBatch(path, header.position, header.size, header.magic, rows))
    return tuple(found)


def partition_of(path: str) -> str:
    return path.split("/")[0] if "/" in path else ""


TOPIC_PARTITIONS = {name: TopicPartition(name[:-2], 0) for name in PARTITIONS}
