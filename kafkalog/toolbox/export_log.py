"""Checks which log an export is from: compares what its notes say with the log that is there now.

An export continues by offsets, and offsets do not say which log they are from.  A topic that was deleted and recreated,
a log that was truncated and grew again, or another directory's partition of the same name: each has offsets that the
target "has already".  So the target keeps the topic's id, if the log has one, and the last record of each range
(`Witness`).  A log continues the exported one if no id contradicts, its end is not before what was exported, and the
newest of these records that it still has is the same.  Compaction and retention may have removed some, but change none.

Knows no logs: a record comes from the caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.export_hours import NOTES, Note, read_note, witness_of, write_note

__all__ = ["LogId", "LogNow", "settle_log"]

WITNESSES_MAX = 16  # how many are tried: compaction removes some, but not all


@dataclass(frozen=True)
class LogId:
    """The identity of a log: its directory, and the `topic_id` of partition.metadata (None if there is none)."""

    log_dir: str
    topic_id: str | None


@dataclass(frozen=True)
class LogNow:
    """A log as it is now: its identity, its log start offset and its log end offset."""

    id: LogId
    log_start_offset: int
    log_end_offset: int


def settle_log(
    target: str,
    partition: TopicPartition,
    now: LogNow,
    notes: Sequence[Note],
    record_at: Callable[[int], Any],
    files: Files = OS_FILES,
) -> None:
    """Checks that a log is the one that a target's files are from, and stores which one it is.

    Args:
        target: The directory of the export.
        partition: The partition.
        now: The log as it is now.
        notes: The notes of the ranges exported so far.
        record_at: Returns the record batch of the record at an offset, with at least key, value, offset and timestamp;
            None if there is none, or it cannot be read.
        files: The file system; for tests.

    Raises:
        IllegalArgumentException: The files are from another log.

    Example:
        >>> import os
        >>> from kafkalog.toolbox.export_log import LogId, LogNow, settle_log
        >>> now = LogNow(LogId("shop", None), 0, 2)
        >>> settle_log("exported", kafkalog.TopicPartition("orders", 0), now, [], lambda offset: None)
        >>> os.listdir("exported/_kafkalog/orders-0")
        ['log.json']
    """
    path = os.path.join(target, NOTES, str(partition), "log.json")
    kept = LogId(**read_note(path, files)) if files.exists(path) else None
    why = _difference(kept, now, notes, record_at) if notes else None
    if why is not None:
        topic = partition.topic
        raise IllegalArgumentException(
            f"{partition} of {now.id.log_dir} is not the log that was exported before: {why}; nothing was written",
            path=target,
            hint=f"choose another target; or remove topic={topic} and {NOTES}/{topic}-<number> of all its partitions "
            "from this one to export the topic again",
        )
    if kept != now.id:
        write_note(path, asdict(now.id), files)


def _difference(kept: LogId | None, now: LogNow, notes: Sequence[Note], record_at: Callable[[int], Any]) -> str | None:
    """Returns why it is another log; None if it is the same."""
    ids = (None if kept is None else kept.topic_id, now.id.topic_id)
    if None not in ids and ids[0] != ids[1]:
        return f"its topic id is {ids[1]}; expected {ids[0]} (was the topic deleted and recreated?)"
    end = max(note.range.end for note in notes)
    if now.log_end_offset < end:
        return f"its log end offset is {now.log_end_offset}; expected {end} or more (was it truncated or recreated?)"
    witnesses = [note.last for note in notes if note.last is not None and note.last.offset >= now.log_start_offset]
    for witness in witnesses[: -WITNESSES_MAX - 1 : -1]:
        found = record_at(witness.offset)
        if found is not None:
            if witness_of(found) == witness:
                return None
            return f"its record at offset {witness.offset} is not the exported one (was it truncated or recreated?)"
    if kept is not None and kept.log_dir != now.id.log_dir and (None in ids or ids[0] != ids[1]):
        return f"its directory is {now.id.log_dir}; expected {kept.log_dir}, and no exported record is left to compare"
    return None


def __dir__() -> list[str]:
    return __all__
