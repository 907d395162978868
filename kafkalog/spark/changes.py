"""Option `changes`: its columns, the options that it excludes, and what a log still knows before the start of a range.

A cleaner removes a record once its key has a newer record below the offset that the cleaner has reached, which is in
`cleaner-offset-checkpoint`.  Retention and deleteRecords remove the records before the log start offset.  If one of
them has removed records, a key without a value before the start may have had one, so its change is `upsert`, not
`insert`. `planning` plans a partition from its log start offset, and `tasks` reads it with `_face.changes`.
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

# In addition to the columns of every read.
COLUMN_TYPES = {"changeType": "string", "valueBefore": "binary", "offsetBefore": "bigint"}


class Known(NamedTuple):
    """Says what a log still has before the start of a range.

    `is_whole`: the last record of each key before the start still exists.  `cleaned`: the offset that a cleaner has
    reached.
    """

    is_whole: bool
    cleaned: int


def known_below(seen: Snapshot, start: int) -> Known:
    """Reads from the directory's files how much the log still has of the records before `start`."""
    log_dir = os.path.dirname(seen.directory)
    lines = CheckpointLines(log_dir, files_of(log_dir))
    told = lines.told(names.CLEANER_OFFSET_CHECKPOINT_FILE, seen.topic_partition)
    cleaned = 0 if told.offset is None else told.offset
    is_sound = told.problem is None and cleaned <= start and seen.log_start_offset == 0
    return Known(start == 0 or is_sound, cleaned)


def check_options(given: Mapping[str, str], *, latest: bool, streaming: bool) -> None:
    """Raises IllegalArgumentException if an option cannot be combined with `changes`; names are in lower case."""
    if streaming:
        raise IllegalArgumentException(
            "option changes is not valid in streaming queries: the change of a key is known only at the end of a range",
            hint="read the stream without changes, which returns every record; or run batches, each from where the "
            "last one ended",
        )
    if latest:
        raise IllegalArgumentException(
            "options latest and changes are both given", hint="leave one out: latest keeps the last record of each key"
        )
    for name in ("startTime", "endTime"):
        if name.lower() in given:
            raise IllegalArgumentException(
                f"option {name} is not valid with changes, which compares two offsets",
                hint="use startingTimestamp and endingTimestamp, which find the offsets by time",
            )


def check_columns(columns: Sequence[str], *, changes: bool) -> None:
    """Raises IllegalArgumentException for a column that only `changes` has."""
    odd = [name for name in columns if name in COLUMN_TYPES and not changes]
    if odd:
        raise IllegalArgumentException(f"there is no column {odd[0]!r}", hint="set option changes=true to have it")
