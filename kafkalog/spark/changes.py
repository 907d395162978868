"""Option `changes`: its columns, what goes with it, and what a log still knows below the start of a range.

A cleaner removes a record once its key has a newer one below the offset that it has cleaned up to, which
`cleaner-offset-checkpoint` tells; retention and deleteRecords remove what lies below the log's start.  Where one of
them went over the log, a key without a value before the start may have had one, and its change is `upsert`, not
`insert`.  `planning` plans a partition from its log's start on, `tasks` reads it by `_face.changes`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalog.engine.format import names
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.places import files_of

# Beside the columns that the source has anyway.
COLUMN_TYPES = {"changeType": "string", "valueBefore": "binary", "offsetBefore": "bigint"}


class Known(NamedTuple):
    """`is_whole`: nothing below the start that was the last record of its key there has gone; `cleaned`: the offset
    that a cleaner has come to."""

    is_whole: bool
    cleaned: int


def known_below(seen: Snapshot, start: int) -> Known:
    """What the log has of the records below `start`, as its directory's files tell."""
    log_dir = os.path.dirname(seen.directory)
    lines = CheckpointLines(log_dir, files_of(log_dir))
    told = lines.told(names.CLEANER_OFFSET_CHECKPOINT_FILE, seen.topic_partition)
    cleaned = 0 if told.offset is None else told.offset
    is_sound = told.problem is None and cleaned <= start and seen.log_start_offset == 0
    return Known(start == 0 or is_sound, cleaned)


def check_options(given: Mapping[str, str], *, latest: bool, streaming: bool) -> None:
    """IllegalArgumentException for what makes no sense beside `changes`; names are in lower case."""
    if streaming:
        raise IllegalArgumentException(
            "option changes is not valid in streaming queries: what became of a key is known where the query ends",
            hint="a stream hands out every change; or read batches from where the last one ended",
        )
    if latest:
        raise IllegalArgumentException("options latest and changes are given", hint="leave one out")
    for name in ("startTime", "endTime"):
        if name.lower() in given:
            raise IllegalArgumentException(
                f"option {name} is given beside changes, which are those between two offsets",
                hint="startingTimestamp and endingTimestamp name the offsets by times",
            )


def check_columns(columns: Sequence[str], *, changes: bool) -> None:
    """IllegalArgumentException for a column that there is with `changes` alone."""
    odd = [name for name in columns if name in COLUMN_TYPES and not changes]
    if odd:
        raise IllegalArgumentException(f"there is no column {odd[0]!r}", hint="it is there with option changes=true")
