"""A stream's reader, asked as Spark asks it, without a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog.spark.options import parse_options
from kafkalog.spark.triggers import parse_triggers

SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}
QUICK = {"fetchOffset.retryIntervalMs": "1"}
START_MS = 1_700_000_000_000


def fill(root: Path | str, partition: str, count: int, *, batch: int = 10, **options: Any) -> None:
    with kafkalog.open_log(root, partition, **options) as log:
        for first in range(0, count, batch):
            end = log.end_offset
            log.append_many([value(end + n) for n in range(min(batch, count - first))])


def value(offset: int) -> tuple[bytes, None, list[Any], int]:
    return b"%06d" % offset + b"x" * 50, None, [], START_MS + offset


def reader(root: Path | str, **given: Any) -> Any:
    from kafkalog.spark.streaming import KafkalogStreamReader

    if not {"assign", "subscribePattern"} & set(given):
        given = {"subscribe": "t"} | given
    options = QUICK | {"path": str(root)} | {name.replace("__", "."): str(each) for name, each in given.items()}
    return KafkalogStreamReader(
        parse_options(options, streaming=True), parse_triggers(options), ("partition", "offset", "value")
    )


def records(stream: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    """(partition, offset) of the records of a batch, by one task after the other."""
    found = []
    for task in stream.partitions(through_json(start), through_json(end)):
        for batch in stream.read(task):
            found += list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))
    return found


def through_json(offsets: Any) -> Any:
    return json.loads(json.dumps(offsets))


def begin(stream: Any) -> Any:
    """The initial offsets, after the first batch, which starts and ends there."""
    start = stream.initialOffset()
    assert through_json(stream.latestOffset(through_json(start), stream.getDefaultReadLimit())) == start
    assert stream.partitions(start, start) == []
    return through_json(start)


def next_end(stream: Any, start: Any) -> Any:
    return through_json(stream.latestOffset(start, stream.getDefaultReadLimit()))


def batches(stream: Any, start: Any) -> Iterator[list[tuple[int, int]]]:
    """The records of each batch until there is none."""
    while (end := next_end(stream, start)) != start:
        yield records(stream, start, end)
        start = end


def expected(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, first, end in ranges for offset in range(first, end)]


def delete_oldest(folder: Path, count: int) -> int:
    """Deletes as retention does; returns the new start of the log."""
    for path in sorted(folder.glob("*.log"))[:count]:
        for each in folder.glob(path.stem + ".*"):
            each.unlink()
    return int(min(folder.glob("*.log")).stem)
