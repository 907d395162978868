"""`leader-epoch-checkpoint` of a partition: an I/O error or bad content takes the log directory offline.

Mirrors CheckpointFileWithFailureHandler around LeaderEpochCheckpointFile. If Kafka lets the plain Java exception of a
malformed number through, this does too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.log.context import PartitionContext
from kafkalog.errors import CorruptCheckpointException


class PartitionEpochCheckpoint(LeaderEpochCheckpointFile):
    """The checkpoint in a partition's current directory; created empty if missing."""

    def __init__(self, context: PartitionContext) -> None:
        super().__init__(self.new_file(context.dir), context.files)
        self._context = context

    def write(self, entries: Iterable[EpochEntry]) -> None:
        try:
            super().write(entries)
        except OSError as error:
            self._context.raise_offline(f"Error while writing to checkpoint file {self.path}", error)

    def write_if_dir_exists(self, entries: Iterable[EpochEntry]) -> None:
        """Writes the entries from a task, without the partition's lock, if the directory still has the same name.

        The directory may have been renamed, and one with the old name may belong to another log.
        """
        folder = os.path.dirname(self.path)
        with self._context.renaming_lock:
            if self._context.dir == folder and self._files.is_dir(folder):
                self.write(entries)

    def read(self) -> list[EpochEntry]:
        try:
            return super().read()
        except (CorruptCheckpointException, OSError) as error:
            self._context.raise_offline(f"Error while reading checkpoint file {self.path}", error)
