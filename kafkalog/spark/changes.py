"""Option `changes`: what became of each key of a partition between two offsets, one task a partition, as `latest`.

The driver plans the partition from its log's start to the end that was asked for, and says where the changes begin and
whether the log below that is whole: a cleaner removes a record once its key has a newer one below the offset that it
has cleaned up to, which `cleaner-offset-checkpoint` tells; retention and deleteRecords remove what lies below the log's
start.  Where one of them went over the log, a key without a value before the start may have had one, and its change is
`upsert`, not `insert`.  Imported by planning and tasks where they need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafkalog.engine.format import names
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.errors import BadBytesError, IllegalArgumentException, InvalidRecordException
from kafkalog.spark.places import files_of
from kafkalog.spark.planning import OffsetRange, Tell, damaged, ranges_of, warn

if TYPE_CHECKING:
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.spark.options import SourceOptions
    from kafkalog.spark.tasks import RangeSource

# Beside the columns that the source has anyway.
COLUMN_TYPES = {"changeType": "string", "valueBefore": "binary", "offsetBefore": "bigint"}


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


def check_columns(options: SourceOptions, columns: Sequence[str]) -> None:
    """IllegalArgumentException for a column that there is with `changes` alone."""
    odd = [name for name in columns if name in COLUMN_TYPES and not options.changes]
    if odd:
        raise IllegalArgumentException(f"there is no column {odd[0]!r}", hint="it is there with option changes=true")


def planned(seen: Snapshot, start: int, end: int, options: SourceOptions) -> list[OffsetRange]:
    """The one range of a partition whose changes in [start, end) are asked for; none if there is nothing."""
    if start >= end:
        return []
    begin = min(seen.log_start_offset, start)
    log_dir = os.path.dirname(seen.directory)
    told = CheckpointLines(log_dir, files_of(log_dir)).told(names.CLEANER_OFFSET_CHECKPOINT_FILE, seen.topic_partition)
    cleaned = 0 if told.offset is None else told.offset
    if cleaned > end:
        warn(
            f"{seen.topic_partition} is compacted up to offset {cleaned}: a key that has a record between the ending "
            f"offset {end} and that one may have lost those before, and is then missing from the changes"
        )
    is_whole = start == 0 or (begin == 0 and cleaned <= start and told.problem is None)
    made = ranges_of(seen, begin, end, options)
    return [replace(each, changes_from=start, is_whole=is_whole) for each in made]


def changes(source: RangeSource, options: SourceOptions, columns: Sequence[str], tell: Tell) -> Iterator[Any]:
    """The record batches of a task's range; damage as `latest` has it, below the start no value is known behind it."""
    from kafkalog._face import arrow
    from kafkalog._face.changes import Changes, scratch_folder
    from kafkalog.spark.tasks import BATCH_BYTES, BATCH_ROWS, LATEST_MEMORY_BYTES, as_sparks, matched_columns

    selection = options.question.selection().unpruned()
    assert source.work.changes_from is not None
    try:
        found = Changes(
            source,
            start=source.work.changes_from,
            is_whole=source.work.is_whole,
            limits=selection.limits(selection.times),
            isolation=options.isolation,
            memory_bytes=LATEST_MEMORY_BYTES,
        )
        if found.failure_before is not None:
            source.explain(found.failure_before)
            damaged(options, found.failure_before, tell)
        ours = [name for name in columns if name not in COLUMN_TYPES]
        match = selection.match
        needed = ours if match is None else list(dict.fromkeys([*ours, "offset", *match.columns]))
        known = arrow.SPARK_COLUMNS if match is None else matched_columns()
        for batch in found.changes(needed, BATCH_ROWS, known, batch_bytes=BATCH_BYTES, scratch=scratch_folder()):
            if match is not None:
                batch = as_sparks(match.filtered(batch), columns)
            if batch.num_rows:
                yield batch.select(list(columns))
    except (BadBytesError, InvalidRecordException) as error:
        source.explain(error)
        damaged(options, error, tell)
