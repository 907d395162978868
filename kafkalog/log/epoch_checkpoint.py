"""`leader-epoch-checkpoint` as a partition uses it: an I/O error or bad content takes the log directory offline.

Mirrors CheckpointFileWithFailureHandler around LeaderEpochCheckpointFile.  Where Kafka lets a plain Java exception of a
malformed number through, so does this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NoReturn

from kafkalog.errors import CorruptCheckpointException, KafkaStorageException
from kafkalog.files import Files, LogDirFailureChannel
from kafkalog.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.log.local_log import raise_offline


class PartitionEpochCheckpoint(LeaderEpochCheckpointFile):
    """The checkpoint of the partition in `dir`; made, empty, where missing."""

    def __init__(self, dir: str, log_dir_failure_channel: LogDirFailureChannel, *, files: Files) -> None:
        super().__init__(self.new_file(dir), files)
        self._channel = log_dir_failure_channel
        self._log_dir = os.path.dirname(dir)

    def write(self, entries: Iterable[EpochEntry]) -> None:
        try:
            super().write(entries)
        except OSError as error:
            self._fail("writing to", error)

    def write_if_dir_exists(self, entries: Iterable[EpochEntry]) -> None:
        if self._files.is_dir(os.path.dirname(self.path)):
            self.write(entries)

    def read(self) -> list[EpochEntry]:
        try:
            return super().read()
        except CorruptCheckpointException as error:
            raise_as_io_error(self._channel, self._log_dir, f"Error while reading checkpoint file {self.path}", error)
        except OSError as error:
            self._fail("reading", error)

    def _fail(self, doing: str, error: OSError) -> NoReturn:
        message = f"Error while {doing} checkpoint file {self.path}"
        raise_offline(self._channel, self._log_dir, message, error)


def raise_as_io_error(
    channel: LogDirFailureChannel, log_dir: str, message: str, error: CorruptCheckpointException
) -> NoReturn:
    """What Kafka does with the IOException of a file that does not parse; its other exceptions pass."""
    if type(error) is not CorruptCheckpointException:
        raise error
    channel.maybe_add_offline_log_dir(log_dir, message, error)
    raise KafkaStorageException.because_of(error, message) from error
