"""Which log an export is of: what its notes remember, beside the log that is there now.

An export goes on by offsets, and offsets say nothing of whose they are.  A topic that was deleted and made again, a log
that was cut and grew again, another directory's partition of the same name: each has offsets that the target "has
already".  So the target keeps the topic's id, where a log has one, and of each range the last record (`Witness`).  A
log goes on the one that was exported where no id contradicts, its end is not below what was exported, and the newest
of these records that it still has is the same; compaction and retention may have taken some, and change none.

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

WITNESSES_MAX = 16  # that are looked for: compaction takes one now and then, not all


@dataclass(frozen=True)
class LogId:
    """What is kept of a log; `topic_id`: of partition.metadata, None where there is none."""

    log_dir: str
    topic_id: str | None


@dataclass(frozen=True)
class LogNow:
    """A log as it is now."""

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
    """Writes down which log the target's files of a partition are of; IllegalArgumentException where it is another one.

    `record_at`: the record batch of the record at an offset, of at least key, value, offset and timestamp; None where
    there is none, or it cannot be read.
    """
    path = os.path.join(target, NOTES, str(partition), "log.json")
    kept = LogId(**read_note(path, files)) if files.exists(path) else None
    why = _difference(kept, now, notes, record_at) if notes else None
    if why is not None:
        topic = partition.topic
        raise IllegalArgumentException(
            f"{partition} of {now.id.log_dir} is not the log that was exported before: {why}; nothing of it is written",
            path=target,
            hint=f"choose another target; or remove topic={topic} and {NOTES}/{topic}-<number> of all its partitions "
            "from this one, then the topic is exported anew",
        )
    if kept != now.id:
        write_note(path, asdict(now.id), files)


def _difference(kept: LogId | None, now: LogNow, notes: Sequence[Note], record_at: Callable[[int], Any]) -> str | None:
    """Why it is another log; None where it is the same."""
    ids = (None if kept is None else kept.topic_id, now.id.topic_id)
    if None not in ids and ids[0] != ids[1]:
        return f"found the topic id {ids[1]}, expected {ids[0]} (was the topic deleted and made again?)"
    end = max(note.range.end for note in notes)
    if now.log_end_offset < end:
        return f"found its end at offset {now.log_end_offset}, expected {end} or more (was it cut, or made again?)"
    witnesses = [note.last for note in notes if note.last is not None and note.last.offset >= now.log_start_offset]
    for witness in witnesses[: -WITNESSES_MAX - 1 : -1]:
        found = record_at(witness.offset)
        if found is not None:
            if witness_of(found) == witness:
                return None
            return f"found another record at offset {witness.offset} than was exported (was it cut, or made again?)"
    if kept is not None and kept.log_dir != now.id.log_dir and (None in ids or ids[0] != ids[1]):
        return f"found the directory {now.id.log_dir}, expected {kept.log_dir}, and no record that both have"
    return None


def __dir__() -> list[str]:
    return __all__
