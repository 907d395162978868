"""Change a log on a full disk, if its oldest segments are to be deleted anyway: they go first, and make the room.

To be opened for writing a log needs a little room, and more if it was not closed cleanly; a file that is renamed may
need some, too.  Who opens it to delete has none when it matters most.  A file can be unlinked without room, so the
oldest segment of those that are to go is unlinked, and all is tried again, until it is done or nothing is left that
may go.

Invariant: a crash leaves a log that begins later, or as before, and never a gap.  So one segment goes at a time, and
of its files the `.log` goes after the indexes, which the next open builds anew.
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
    """What `change` answers, of the log as `open_undamaged` opens it; `going` are its oldest segments, which the change
    deletes, oldest first.  `freed(partition, segment)` is called after each that had to go before there was room.

    `change` is called again where it, or the close, found no room.  DiskFull where that is not enough;
    CorruptRecordException before anything is deleted, if there is room for a look in the folder for temporary files."""
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
                    f"{partition} needs a little room in {log_dir} to be opened for writing, changed and closed, and "
                    f"{'no' if not going else 'no other'} whole segment of it is to go; kafkalog retain {log_dir} "
                    "--target-free BYTES --yes deletes the oldest segments of all partitions"
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
    """Whether it is the oldest, and ends where it did: it was planned before the directory was locked, and a broker
    may have deleted or compacted since."""
    bases = names.offsets_in(files.list_dir(folder))
    return bases[:2] == [segment.base_offset, segment.end_offset]


def _refuse_damage(log_dir: str, partition: TopicPartition, config: LogConfig, files: Files) -> None:
    """CorruptRecordException where the open would find damage, could it go on."""
    try:
        with OverlayFiles(files) as overlay, open_undamaged(log_dir, partition, config, overlay):
            pass
    except DiskFull:
        pass  # temporary files have no room either; what goes was to go, damaged or not
    except OSError as error:
        if isinstance(error, KafkalogError):
            raise


def _unlink(folder: str, segment: SegmentFacts, files: Files) -> None:
    log, offset_index, *others = names.segment_files(folder, segment.base_offset)
    snapshot = names.producer_snapshot_file(folder, segment.base_offset)
    # A log without its offset index has all its indexes built anew, from that snapshot on; an index without its log
    # is damage.
    for step in ([offset_index], others, [log], [snapshot]):
        for path in filter(files.exists, step):
            files.unlink(path)
        files.sync_dir(folder)


def __dir__() -> list[str]:
    return __all__
