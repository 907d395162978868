"""The size of a stream's micro-batches: the options, and the shares of the partitions.

`maxOffsetsPerTrigger` is divided among partitions in proportion to their new records, as in Spark's Kafka source.
`maxBytesPerTrigger`, which that source does not have, is divided by bytes of the log (as compressed), in whole batches.
This module does not depend on pyspark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.segment.reader import SEEK_BYTES
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.offsets import Offsets
from kafkalog.spark.options import positive
from kafkalog.spark.planning import bytes_between

Ask = Callable[[TopicPartition, Callable[[Snapshot], Any]], Any]
TIME_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class TriggerOptions:
    """Checked options; None is no limit.  `looks`: how often a partition that became shorter is read before an
    error."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    max_bytes: int | None = None
    looks: int = 3
    look_interval_ms: int = 1000


def parse_triggers(options: Mapping[str, str]) -> TriggerOptions:
    """Parses the options; raises IllegalArgumentException with the messages of Spark's Kafka source."""
    given = {name.lower(): value for name, value in options.items()}
    most, least = positive(given, "maxOffsetsPerTrigger"), positive(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise IllegalArgumentException(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    return TriggerOptions(
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=_milliseconds(given.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
        max_bytes=positive(given, "maxBytesPerTrigger"),
        looks=_looks(given),
        look_interval_ms=_milliseconds(given.get("fetchoffset.retryintervalms", "1000"), "fetchOffset.retryIntervalMs"),
    )


def _looks(given: Mapping[str, str]) -> int:
    """Returns the number of attempts, at least one: Spark's source accepts 0 too."""
    if given.get("fetchoffset.numretries", "").strip() == "0":
        return 1
    return positive(given, "fetchOffset.numRetries") or TriggerOptions.looks


def _milliseconds(text: str, name: str) -> int:
    """Parses a time as Spark writes it (`15m`, `100ms`) to milliseconds; a number alone is milliseconds."""
    matched = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if matched is None or (matched[2] or "ms") not in TIME_UNITS_MS:
        raise IllegalArgumentException(f"option {name} is {text!r}", hint="expected a time such as 100ms, 30s, 15m, 2h")
    return int(matched[1]) * TIME_UNITS_MS[matched[2] or "ms"]


def waiting(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Counts the records for a trigger as Spark's Kafka source does: new partitions from offset 0 on."""
    return sum(offset - start.get(partition, 0) for partition, offset in latest.items())


def shares(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divides a limit in proportion to sizes above 0, rounded down, but each partition gets at least 1."""
    total = float(sum(sizes.values()))
    parts = {partition: limit * (size / total) for partition, size in sizes.items()}
    return {partition: math.ceil(part) if part < 1 else math.floor(part) for partition, part in parts.items()}


def limited_by_offsets(limit: int, start: Mapping[TopicPartition, int], latest: Offsets) -> Offsets:
    """Returns the ends of a trigger with about `limit` records; `start` has every partition of `latest`."""
    sizes = {partition: end - start[partition] for partition, end in latest.items() if end > start[partition]}
    taken = shares(limit, sizes)
    return {
        partition: min(end, start[partition] + taken[partition], LONG_MAX) if partition in sizes else end
        for partition, end in latest.items()
    }


def limited_by_bytes(limit: int, start: Mapping[TopicPartition, int], latest: Offsets, ask: Ask) -> Offsets:
    """Returns the ends of a trigger with at most `limit` bytes of log, but at least one batch of any size.

    `ask` asks a partition's snapshot a question.
    """
    new = {partition: end for partition, end in latest.items() if end > start[partition]}
    sizes = {each: ask(each, partial(bytes_between, start=start[each], end=end)) for each, end in new.items()}
    if sum(sizes.values()) <= limit:
        return latest
    reached = latest | {partition: start[partition] for partition in new}
    left = limit

    def take(partition: TopicPartition, budget: int) -> None:
        nonlocal left
        first, end = start[partition], latest[partition]
        reached[partition], taken = ask(partition, partial(batches_within, start=first, end=end, budget=budget))
        left -= taken

    for partition, share in shares(limit, {each: size for each, size in sizes.items() if size}).items():
        take(partition, min(share, left))
    by_size = sorted(sizes, key=sizes.__getitem__)
    for partition in by_size:  # the rest of the budget, for partitions whose share was less than a batch
        if left > 0 and reached[partition] == start[partition]:
            take(partition, left)
    if left == limit:
        largest = by_size[-1]
        question = partial(first_batch_end, start=start[largest], end=latest[largest])
        reached[largest] = ask(largest, question)
    return reached


# --- bytes of the log --------------------------------------------------------------------------------------


def batches_within(seen: Snapshot, start: int, end: int, budget: int) -> tuple[int, int]:
    """Returns (offset after the last batch of [start, end) within `budget` bytes, bytes); (start, 0) if none fits."""
    place, position = seen.position_of(start)
    reached, taken = start, 0
    for number in range(place, len(seen.segments)):
        size = seen.readable_bytes(seen.segments[number])
        behind, stop = _fitting(seen, number, position, position + budget - taken)
        reached, taken = max(reached, behind), taken + stop - position
        if reached >= end or stop < size:
            break
        position = 0
    return min(reached, end), taken


def _fitting(seen: Snapshot, place: int, start: int, stop: int) -> tuple[int, int]:
    """Returns (offset, position) after the last batch of a segment that ends by `stop`, from position `start` on.

    Returns (0, start) if there is none.
    """
    reader = seen.reader(place)
    entry = seen.segments[place].offset_entries.at_or_before(stop)
    begin = next(reader.starts(entry if entry is not None and entry[1] > start else None)) or start
    behind, end = 0, start
    for piece in LogScan(reader.file, begin, reader.end, check_crc=False, slice_bytes=SEEK_BYTES):
        ends = piece.table["position"] + piece.table["size"]
        count = int(np.searchsorted(ends, stop, side="right"))
        if count:
            behind, end = int(piece.table["last_offset"][count - 1]) + 1, int(ends[count - 1])
        if count < len(ends):
            break
    return behind, end


def first_batch_end(seen: Snapshot, start: int, end: int) -> int:
    """Returns the offset after the first batch of [start, end)."""
    place, position = seen.position_of(start)
    header = seen.reader(place).header_at(position) if place < len(seen.segments) else None
    return end if header is None else min(end, header.last_offset + 1)
