"""Log directories, and columns of an export, for the tests of jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import kafkalog
from kafkalog._face.arrow import SPARK_COLUMNS, schema
from kafkalog.engine.format import names
from kafkalog.toolbox.export_hours import Layout

START_MS = 1_700_000_000_000
SEGMENTS = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}


def fill(
    root: Path | str, partition: str, records: int, *, keys: int = 7, compression: str = "none", **config: str
) -> None:
    settings = {**SEGMENTS, **{name.replace("_", "."): value for name, value in config.items()}}
    with kafkalog.open_log(root, partition, config=settings, compression=compression) as log:
        for first in range(log.end_offset, log.end_offset + records, 10):
            log.append_many(
                [
                    (
                        b"value-%d-" % n + b"x" * 40,
                        b"key-%d" % (n * 7919 % keys),
                        [("n", b"%d" % n)],
                        START_MS + n * 60_000,
                    )
                    for n in range(first, first + 10)
                ]
            )


def rows_of(root: Path | str, columns: Sequence[str], **options: str) -> list[dict[str, Any]]:
    """The rows of a batch read of topic `t`, without Spark: by its plan and its tasks' reader."""
    from kafkalog.spark.options import parse_options
    from kafkalog.spark.planning import plan
    from kafkalog.spark.tasks import read_range

    parsed = parse_options({"path": str(root), "subscribe": "t", **options})
    found: list[dict[str, Any]] = []
    for work in plan(parsed):
        for batch in read_range(work, parsed, columns):
            assert batch.num_rows
            assert tuple(batch.schema.names) == tuple(columns)
            found += batch.to_pylist()
    return found


def files_of(folder: Path | str) -> dict[str, bytes]:
    """Every file of a directory."""
    return {name: (Path(folder) / name).read_bytes() for name in sorted(os.listdir(folder))}


def damage_tail(folder: Path) -> None:
    path = sorted(folder.glob("*.log"))[-1]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def is_clean(root: Path) -> bool:
    return (root / names.CLEAN_SHUTDOWN_FILE).exists()


def export_batch(first: int, count: int, text: str = "v", timestamps: list[int] | None = None) -> pa.RecordBatch:
    """Records of an export's columns; timestamps in ms."""
    offsets = range(first, first + count)
    times = timestamps or [START_MS + offset for offset in offsets]
    columns = {
        "key": [None] * count,
        "value": [f"{text}{offset}".encode() for offset in offsets],
        "partition": [0] * count,
        "offset": [*offsets],
        "timestamp": [time * 1000 for time in times],
        "timestampType": [0] * count,
    }
    wanted = schema(Layout().columns, SPARK_COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name], wanted.field(name).type) for name in wanted.names], schema=wanted
    )
