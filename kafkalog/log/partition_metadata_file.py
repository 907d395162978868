"""partition.metadata of one partition: the topic id, kept in memory until a task or the next append writes it.

Mirrors org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile.  An I/O error, and a file that does not
parse, take the log directory offline.  `maybe_flush` may be called without the partition's lock.
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from kafkalog.errors import CorruptCheckpointException, InconsistentTopicIdException
from kafkalog.files import Files, LogDirFailureChannel
from kafkalog.format.partition_metadata import (
    PARTITION_METADATA_FILE_NAME,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from kafkalog.log.epoch_checkpoint import raise_as_io_error
from kafkalog.log.local_log import raise_offline


class PartitionMetadataFile:
    """One partition's file.  `dirty_topic_id` is the id that is recorded and not yet on disk."""

    def __init__(self, path: str, log_dir_failure_channel: LogDirFailureChannel, *, files: Files) -> None:
        self.path = path
        self.dirty_topic_id: str | None = None  # written under _lock, read without
        self._channel = log_dir_failure_channel
        self._files = files
        self._lock = threading.RLock()

    @staticmethod
    def new_file(dir: str) -> str:
        return os.path.join(dir, PARTITION_METADATA_FILE_NAME)

    @property
    def exists(self) -> bool:
        return self._files.exists(self.path)

    def record(self, topic_id: str) -> None:
        """Remembers the id for the next flush; InconsistentTopicIdException if another one is waiting."""
        dirty = self.dirty_topic_id
        if dirty is not None and dirty != topic_id:
            raise InconsistentTopicIdException(
                f"Tried to record topic ID {topic_id} to file but had already recorded {dirty}"
            )
        self.dirty_topic_id = topic_id

    @property
    def is_dirty(self) -> bool:
        return self.dirty_topic_id is not None

    def maybe_flush(self) -> None:
        if not self.is_dirty:
            return
        with self._lock:
            topic_id = self.dirty_topic_id
            if topic_id is None:
                return
            try:
                write_partition_metadata(self.path, topic_id, self._files)
            except OSError as error:
                self._fail("writing", error)
            self.dirty_topic_id = None

    def read(self) -> PartitionMetadata:
        with self._lock:
            try:
                return read_partition_metadata(self.path, self._files)
            except CorruptCheckpointException as error:
                message = f"Error while reading partition metadata file {self.path}"
                raise_as_io_error(self._channel, self._log_dir, message, error)
            except OSError as error:
                self._fail("reading", error)

    @property
    def _log_dir(self) -> str:
        return os.path.dirname(os.path.dirname(self.path))

    def _fail(self, doing: str, error: OSError) -> NoReturn:
        raise_offline(self._channel, self._log_dir, f"Error while {doing} partition metadata file {self.path}", error)
