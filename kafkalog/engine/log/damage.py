"""Told before it is cut: damage that an open would end the log at, and the way of those who want no record to go.

Kafka's broker cuts an unflushed log at the first damage, drops the segments behind it and goes on with a log line.
The loader hands what it is about to cut to whoever asked (`on_damage`); `refuse` raises, so that nothing is cut.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format import names
from kafkalog.engine.segment.loss import behind, end_before
from kafkalog.errors import CorruptRecordException

if TYPE_CHECKING:
    from kafkalog.engine.files import Files
    from kafkalog.engine.segment.log_segment import LogSegment


class Damage(NamedTuple):
    """A cut that is about to be made: `cut_bytes` from `position` of `path`, and the logs `dropped` behind it.

    The log ends at `new_end` then, and did at `old_end` as far as can be told; `records` is the most that goes.
    `blank`: only zeros go, where no record was.  The records' times lie from `first_timestamp` to `last_timestamp`;
    -1 is not known.
    """

    path: str
    position: int
    cut_bytes: int
    why: str
    records: int
    new_end: int
    old_end: int
    dropped: dict[str, int]  # path -> bytes
    blank: bool
    first_timestamp: int = -1
    last_timestamp: int = -1


def lost_end(flushed: int, log_end_offset: int) -> str:
    """The text of an error or a warning: a log ends below its recovery point."""
    return (
        f"{names.RECOVERY_POINT_CHECKPOINT_FILE} says that offsets up to {flushed - 1} were flushed, but the log ends "
        f"at {log_end_offset}: files are missing, or were cut"
    )


def lost_end_error(flushed: int, log_end_offset: int, folder: str) -> CorruptRecordException:
    """The same as an error, for those who want nothing to go on there."""
    return CorruptRecordException(
        lost_end(flushed, log_end_offset),
        path=folder,
        hint='put back what is missing; on_damage="truncate" goes on from there, as Kafka does',
    )


def end_below_start_error(end: int, start: int, folder: str) -> CorruptRecordException:
    """A log ends below its start: an open deletes all of it, as Kafka does."""
    return CorruptRecordException(
        f"{names.LOG_START_OFFSET_CHECKPOINT_FILE} says that the log begins at offset {start}, but it ends at {end}: "
        "opening would delete all of it.  Nothing was deleted",
        path=folder,
        hint="put back what is missing, or the checkpoint's offset; `kafkalog salvage` copies what can be read, "
        'on_damage="truncate" deletes it, as Kafka does',
    )


def missing_log_error(index: str, log: str) -> CorruptRecordException:
    """An index has entries, and its segment has no log: a file is missing, and nothing else tells."""
    folder = os.path.dirname(index)
    return CorruptRecordException(
        f"found an index without its log {log}: the records of its segment are missing.  Nothing was deleted",
        path=index,
        hint=f"put {log} back, or remove the index if nobody misses them; `kafkalog verify {folder}` tells all that is "
        'wrong, on_damage="truncate" deletes the index and goes on, as Kafka does',
    )


def damage_at(
    segment: LogSegment, position: int, rest: Sequence[LogSegment], files: Files, promised_end: int = 0
) -> Damage:
    """What a cut of `segment` at `position` takes, when the segments in `rest` go with it.

    Zeros to the log's end are what a power loss leaves of room that was set aside or of appends that were never
    flushed.  They hold no record unless something says that records were there: the log reached to `promised_end` (its
    recovery point, or its start), or the next segment begins behind them."""
    path = segment.log.path
    with files.open(path, writable=False) as file:
        size = file.size()
        here = behind(file, position, size, segment.base_offset)
        kept = end_before(file, position, segment.base_offset)
    records, old_end, blank, dropped = here.records, here.next_offset, here.blank, {}
    first, last = here.first_timestamp, here.last_timestamp
    if rest and (here.open_end or blank):
        records += max(0, rest[0].base_offset - here.next_offset)
        old_end = max(old_end, rest[0].base_offset)
    for other in rest:
        with files.open(other.log.path, writable=False) as file:
            dropped[other.log.path] = file.size()
            there = behind(file, 0, file.size(), other.base_offset)
        records += there.records
        if there.records:
            old_end = max(old_end, there.next_offset)
            first = there.first_timestamp if first < 0 else first
            last = there.last_timestamp if there.last_timestamp < 0 else max(last, there.last_timestamp)
        blank = blank and there.blank
    if blank and promised_end > old_end:
        records, old_end = records + promised_end - old_end, promised_end
    why = "zeros where records were" if blank and records else here.why
    blank = blank and records == 0
    return Damage(path, position, size - position, why, records, kept, old_end, dropped, blank, first, last)


def refuse(damage: Damage) -> None:
    """CorruptRecordException, but for zeros behind the end of the log where no record was: they are no loss."""
    if damage.blank:
        return
    also = f" and drop {len(damage.dropped)} segments behind it" if damage.dropped else ""
    lost = f"up to {damage.records} records"
    if damage.old_end > damage.new_end:
        lost += f", offsets {damage.new_end} to {damage.old_end - 1}"
    total_bytes = damage.cut_bytes + sum(damage.dropped.values())
    folder = os.path.dirname(damage.path)
    raise CorruptRecordException(
        f"found {damage.why}; opening would cut here{also}: {total_bytes} bytes, {lost}.  Nothing was cut",
        path=damage.path,
        position=damage.position,
        hint=f"`kafkalog recover --dry-run {folder}` tells all of it, `kafkalog salvage` copies what can be read past "
        'damage, on_damage="truncate" cuts as Kafka does',
    )
