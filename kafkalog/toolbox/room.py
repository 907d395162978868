"""Changes a log on a full disk by deleting its oldest segments first, if they are to be deleted anyway.

Opening a log for writing needs a little space, and more if it was not closed cleanly; renaming a file may need some
too.  A deletion that needs an open log therefore has no space when it matters most.  A file can be unlinked without
space.  So the oldest segment of those to be deleted is unlinked, and everything is tried again, until it is done or
nothing is left to delete.

Invariant: a crash leaves a log that begins later, or as before, and never a gap.  So one segment is deleted at a time,
and its `.log` after its indexes, which the next open rebuilds.
Called under the directory's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafkalog.config import LogConfig
from kafkalog.engine.files import Files
from kafkalog.engine.files.overlay import OverlayFiles
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import DiskFull, KafkalogError
from kafkalog.partition import Partition
from kafkalog.toolbox.recovery import open_undamaged
from kafkalog.toolbox.segment_facts import SegmentFacts

__all__ = ["Freed", "change_making_room"]

T = TypeVar("T")

Freed = Callable[[TopicPartition, SegmentFacts], object]


def change_making_room(
    log_dir: str,
    partition: TopicPartition,
    config: LogConfig,
    files: Files,
    going: Sequence[SegmentFacts],
    change: Callable[[Partition], T],
    freed: Freed | None = None,
) -> T:
    """Opens a log as `open_undamaged` does, calls `change` with it, and returns the result.

    `going` are the log's oldest segments, oldest first, which the change deletes.  `freed(partition, segment)` is
    called after each segment that was deleted to make space.
    `change` is called again if it, or the close, found no space.  Raises DiskFull if that is not enough, and
    CorruptRecordException before anything is deleted, if there is space for a check in the directory of temporary
    files."""
    waiting = list(going)
    has_looked = False
    while True:
        try:
            with open_undamaged(log_dir, partition, config, files) as log:
                return change(log)
        except DiskFull as error:
            folder = os.path.join(log_dir, str(partition))
            waiting = [segment for segment in waiting if files.exists(segment.path)]
            if not waiting or not _is_as_planned(folder, waiting[0], files):
                error.hint = (
                    f"{partition} needs a little space in {log_dir} to be opened for writing, changed and closed, and "
                    f"{'no' if not going else 'no other'} whole segment of it is to be deleted; kafkalog retain "
                    f"{log_dir} --target-free BYTES --yes deletes the oldest segments of all partitions"
                )
                raise
        if not has_looked:
            _refuse_damage(log_dir, partition, config, files)
            has_looked = True
        segment = waiting.pop(0)
        _unlink(folder, segment, files)
        if freed is not None:
            freed(partition, segment)


def _is_as_planned(folder: str, segment: SegmentFacts, files: Files) -> bool:
    """Returns whether the segment is the oldest and ends where it did.  It was planned before the directory was locked,
    and a broker may have deleted or compacted since."""
    bases = names.offsets_in(files.list_dir(folder))
    return bases[:2] == [segment.base_offset, segment.end_offset]


def _refuse_damage(log_dir: str, partition: TopicPartition, config: LogConfig, files: Files) -> None:
    """Raises CorruptRecordException if the open would find damage once it has space."""
    try:
        with OverlayFiles(files) as overlay, open_undamaged(log_dir, partition, config, overlay):
            pass
    except DiskFull:
        pass  # no space for temporary files either; the segments are to be deleted, damaged or not
    except OSError as error:
        if isinstance(error, KafkalogError):
            raise


def _unlink(folder: str, segment: SegmentFacts, files: Files) -> None:
    log, offset_index, *others = names.segment_files(folder, segment.base_offset)
    snapshot = names.producer_snapshot_file(folder, segment.base_offset)
    # If the offset index of a log is missing, an open rebuilds all its indexes, from that snapshot on; an index without
    # its log would be damage.
    for step in ([offset_index], others, [log], [snapshot]):
        for path in filter(files.exists, step):
            files.unlink(path)
        files.sync_dir(folder)


def __dir__() -> list[str]:
    return __all__
