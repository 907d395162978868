"""Reports damage before a log is truncated there, and refuses the truncation for callers that must not lose records.

Kafka's broker truncates an unflushed log at the first damage, deletes the segments after it, and continues with a log
line. The loader passes each planned truncation to a callback (`on_damage`). `refuse` raises, so that nothing is
truncated.
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
    """A truncation that is about to happen: `cut_bytes` from `position` of `path`, and the `dropped` logs after it.

    The log will then end at `new_end`; as far as known, it ended at `old_end`. At most `records` records are lost.
    `blank`: only zeros are removed, without records. The timestamps of the records are between `first_timestamp` and
    `last_timestamp`; -1 means unknown.
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
    """Returns the text of an error or a warning: a log ends below its recovery point."""
    return (
        f"{names.RECOVERY_POINT_CHECKPOINT_FILE} says that offsets up to {flushed - 1} were flushed, but the log ends "
        f"at {log_end_offset}: files are missing or were truncated"
    )


def lost_end_error(flushed: int, log_end_offset: int, folder: str) -> CorruptRecordException:
    """Returns the same as an error, for callers that must not continue there."""
    return CorruptRecordException(
        lost_end(flushed, log_end_offset),
        path=folder,
        hint='put the missing files back; on_damage="truncate" continues from there, as Kafka does',
    )


def end_below_start_error(end: int, start: int, folder: str) -> CorruptRecordException:
    """Returns the error for a log that ends below its start: opening it would delete all of it, as in Kafka."""
    return CorruptRecordException(
        f"{names.LOG_START_OFFSET_CHECKPOINT_FILE} says that the log begins at offset {start}, but it ends at {end}: "
        "opening would delete the whole log. Nothing was deleted",
        path=folder,
        hint="put the missing files, or the checkpoint's offset, back; `kafkalog salvage` copies what can be read, "
        'on_damage="truncate" deletes the log, as Kafka does',
    )


def missing_log_error(index: str, log: str) -> CorruptRecordException:
    """Returns the error for an index with entries whose log is missing; only the index shows that it existed."""
    folder = os.path.dirname(index)
    return CorruptRecordException(
        f"found an index without its log {log}: the records of its segment are missing. Nothing was deleted",
        path=index,
        hint=f"put {log} back, or delete the index if the records are not needed; `kafkalog verify {folder}` lists all "
        'damage; on_damage="truncate" deletes the index and continues, as Kafka does',
    )


def damage_at(
    segment: LogSegment, position: int, rest: Sequence[LogSegment], files: Files, promised_end: int = 0
) -> Damage:
    """Returns what a truncation of `segment` at `position` removes, together with the segments in `rest`.

    A power loss leaves zeros to the log's end: preallocated space, or appends that were never flushed. They hold no
    record, unless something says that there were records: the log reached `promised_end` (its recovery point, or its
    start), or the next segment begins after them.
    """
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
    """Raises CorruptRecordException, except for zeros after the end of the log without records: they are no loss."""
    if damage.blank:
        return
    also = f" and delete {len(damage.dropped)} segments after it" if damage.dropped else ""
    lost = f"up to {damage.records} records"
    if damage.old_end > damage.new_end:
        lost += f", offsets {damage.new_end} to {damage.old_end - 1}"
    total_bytes = damage.cut_bytes + sum(damage.dropped.values())
    folder = os.path.dirname(damage.path)
    raise CorruptRecordException(
        f"found {damage.why}; opening would truncate the log here{also}: {total_bytes} bytes, {lost}. "
        "Nothing was truncated",
        path=damage.path,
        position=damage.position,
        hint=f"`kafkalog recover --dry-run {folder}` shows the details, `kafkalog salvage` copies what can be read "
        'past damage, on_damage="truncate" truncates as Kafka does',
    )
