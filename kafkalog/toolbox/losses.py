"""Counts what damage takes, in records and times, using only the batches and indexes around it.

A damaged batch counts as its header says, if that agrees with its neighbours.  Otherwise the gap in the offsets is the
most that can have been there, and the times are those of the batches before and after it.  If nothing comes after it,
the time index may still name a later record.  A number that none of these tells is None, and a time is -1.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.segment.index_reader import time_entries
from kafkalog.engine.segment.loss import first_time, told_by_header
from kafkalog.engine.segment.reader import header_at
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    import numpy as np

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File, Files


class LostRange(NamedTuple):
    """Bytes of a log that cannot be read, and what was there.

    There were at most `records`, with times in [`first_timestamp`, `last_timestamp`] if records are in the order of
    time.  `length` is -1 if unknown."""

    partition: TopicPartition
    path: str
    position: int
    length: int
    records: int | None
    first_timestamp: int
    last_timestamp: int


@dataclass
class TopicLoss:
    """All lost ranges of one topic.  `unsure`: the records of some range are unknown; `unsure_times`: some time is
    unknown; `unsure_bytes`: some length is unknown."""

    topic: str
    partitions: set[int] = field(default_factory=set)
    ranges: int = 0
    records: int = 0
    bytes: int = 0
    first_timestamp: int = -1
    last_timestamp: int = -1
    unsure: bool = False
    unsure_times: bool = False
    unsure_bytes: bool = False

    def add(self, lost: LostRange) -> None:
        """Adds one range of the topic."""
        self.partitions.add(lost.partition.partition)
        self.ranges += 1
        self.records += lost.records or 0
        self.bytes += max(lost.length, 0)
        self.unsure_bytes |= lost.length < 0
        self.unsure |= lost.records is None
        first, last = lost.first_timestamp, lost.last_timestamp
        self.unsure_times |= min(first, last) < 0
        is_first = self.ranges == 1
        self.first_timestamp = first if is_first else min(self.first_timestamp, first)  # -1 (unknown) stays
        self.last_timestamp = last if is_first else _later(self.last_timestamp, last)


def _later(one: int, other: int) -> int:
    """Returns the later time; -1 if one of them is unknown."""
    return -1 if min(one, other) < 0 else max(one, other)


def by_topic(ranges: Iterable[LostRange]) -> list[TopicLoss]:
    """Sums up the ranges of each topic, sorted by name."""
    found: dict[str, TopicLoss] = {}
    for lost in ranges:
        found.setdefault(lost.partition.topic, TopicLoss(lost.partition.topic)).add(lost)
    return [found[topic] for topic in sorted(found)]


class Losses:
    """The lost ranges that are found while reading one partition's segments.  Call `passed` for good batches."""

    def __init__(self, directory: str, files: Files) -> None:
        self._partition = names.parse_topic_partition_name(directory)
        self._directory = directory
        self._files = files
        self.last_timestamp = -1  # the last good batch's

    def passed(self, table: np.ndarray) -> None:
        """Notes good batches, in order."""
        self.last_timestamp = int(table["max_timestamp"][-1])

    def damage(
        self,
        file: File,
        base: int,
        position: int,
        end: int,
        next_offset: int,
        found: BatchHeader | None,
        following: int | None,
    ) -> LostRange:
        """Returns what was in [position, end) of a segment.  `found` is the good batch after it, `following` the next
        segment's base offset, and `next_offset` follows the last good batch before it."""
        told = told_by_header(file, position, base, next_offset)
        end_offset = found.base_offset if found is not None else following
        first, last = self.last_timestamp, -1
        if found is not None:
            last = first_time(found)
        elif following is not None:
            last = self._first_time_of(following)
        if last < 0:
            last = self._indexed_time(base, next_offset, end_offset)
        is_all = told is not None and (end_offset is None or told.next_offset == end_offset)
        if told is not None and max(first, 0) <= told.first_timestamp <= told.last_timestamp <= (
            last if last >= 0 else LONG_MAX
        ):
            first = told.first_timestamp
            last = told.last_timestamp if is_all else last
        records = None
        if told is not None and is_all:
            records = told.records
        elif end_offset is not None:
            records = max(0, end_offset - next_offset)
        return LostRange(self._partition, file.path, position, end - position, records, first, last)

    def misfit(self, path: str, row: np.void) -> LostRange:
        """Returns the loss of a whole batch at offsets where it does not belong."""
        count = int(row["record_count"]) if int(row["magic"]) >= 2 else 1
        first, last = int(row["base_timestamp"]), int(row["max_timestamp"])
        return LostRange(
            self._partition, path, int(row["position"]), int(row["size"]), max(count, 0), min(first, last), last
        )

    def segment(self, path: str, base: int, following: int | None) -> LostRange:
        """Returns the loss of a whole segment."""
        last = -1 if following is None else self._first_time_of(following)
        records = None if following is None else following - base
        return LostRange(self._partition, path, 0, self._length(path, base), records, self.last_timestamp, last)

    def _length(self, path: str, base: int) -> int:
        """Returns the bytes of the lost segment's log; -1 if it is missing, because `path` may be the next
        segment's."""
        own = names.segment_base(os.path.basename(path))
        if own is not None and own <= base:
            with suppress(KafkalogError, OSError):
                stat = self._files.stat(path)
                return stat.size if stat.is_file else -1
        return -1

    def _first_time_of(self, base: int) -> int:
        with suppress(KafkalogError, OSError), self._files.open(self._log(base), writable=False) as file:
            header = header_at(file, 0)
            if header is not None and base <= header.base_offset:
                return first_time(header)
        return -1

    def _log(self, base: int) -> str:
        return names.log_file(self._directory, base)

    def _indexed_time(self, base: int, next_offset: int, end_offset: int | None) -> int:
        return indexed_time(self._files, self._log(base), base, next_offset, end_offset)


def indexed_time(files: Files, log: str, base: int, next_offset: int, end_offset: int | None) -> int:
    """Returns the largest timestamp that the time index of a segment has for an offset in [`next_offset`,
    `end_offset`); -1 if it has none."""
    path = os.path.splitext(log)[0] + names.TIME_INDEX_FILE_SUFFIX
    with suppress(KafkalogError, OSError):
        entries = time_entries(files, path, base)
        for n in reversed(range(len(entries))):
            timestamp, offset = entries.entry(n)
            if offset < next_offset:
                break
            if end_offset is None or offset < end_offset:
                return timestamp
    return -1
