"""Checks that the disks have room for the staged files, before anything is appended.

The committer appends run after run, and deletes each staged file once it has read it.  A file system with both the
staged files and the partitions therefore needs little more room than one staged file.  A file system with only the
partitions needs room for everything that goes there.  Indexes grow with the logs, and the coordinators need a little.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kafkalog.engine.files.usage import FileSystem, file_system
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkaStorageException

if TYPE_CHECKING:
    from kafkalog.spark.staging import StagedFile

SPARE_BYTES = 1 << 20  # for a file system: partitions of the coordinators, checkpoints
PARTITION_BYTES = 16 << 10  # for a partition: markers, a snapshot, the first index entries
INDEX_SHARE = 128  # a log's indexes take 1/128 of its bytes, with the default index.interval.bytes
RETAIN_HINT = "free some room and run the write again; `kafkalog retain --target-free` deletes the oldest segments"


class _Filled:
    """A file system during a commit: the bytes that it has more than before, now and at most."""

    def __init__(self, path: str, about: FileSystem) -> None:
        self.path = path
        self.about = about
        self.taken = 0
        self.peak = 0

    def take(self, size_bytes: int) -> None:
        self.taken += size_bytes
        self.peak = max(self.peak, self.taken)


def check_room(files: Sequence[StagedFile], staging: str, log_dir_of: Callable[[TopicPartition], str]) -> None:
    """Raises KafkaStorageException, with errno ENOSPC, if a file system has less room than the staged runs need.

    A file system that does not report its size is not checked.
    """
    filled: dict[int, _Filled] = {}

    def file_system_of(path: str) -> _Filled:
        about = file_system(path)
        return filled.setdefault(about.device, _Filled(path, about))

    try:
        staged_on = file_system_of(staging)
        places: dict[TopicPartition, _Filled] = {}
        for staged in files:
            for number, run in enumerate(staged.runs, 1):
                place = TopicPartition(run.topic, run.partition)
                if place not in places:
                    places[place] = file_system_of(log_dir_of(place))
                    places[place].take(PARTITION_BYTES)
                if number == len(staged.runs):  # the file is read now, and deleted
                    staged_on.taken -= sum(each.size_bytes for each in staged.runs)
                places[place].take(run.size_bytes + run.size_bytes // INDEX_SHARE)
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the free room") from error
    for each in filled.values():
        if each.peak and each.about.free is not None and each.about.free < each.peak + SPARE_BYTES:
            full = KafkaStorageException(
                f"found {each.about.free} bytes free, expected room for {each.peak + SPARE_BYTES}: no row of the "
                "write was appended",
                path=each.path,
                hint=RETAIN_HINT,
            )
            full.errno, full.strerror = errno.ENOSPC, os.strerror(errno.ENOSPC)
            raise full
