"""partition.metadata of one partition: the topic id, kept in memory until a task or the next append writes it.

Mirrors org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile. An I/O error, or a file that does not
parse, takes the log directory offline. `maybe_flush` may be called without the partition's lock.
"""

from __future__ import annotations

import os
import threading

from kafkalog.engine.format.partition_metadata import (
    PARTITION_METADATA_FILE_NAME,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from kafkalog.engine.log.context import PartitionContext
from kafkalog.errors import CorruptCheckpointException, InconsistentTopicIdException


class PartitionMetadataFile:
    """One partition's file. `dirty_topic_id` is an id that is recorded, but not on disk yet."""

    def __init__(self, context: PartitionContext) -> None:
        self.path = os.path.join(context.dir, PARTITION_METADATA_FILE_NAME)
        self.dirty_topic_id: str | None = None  # written under _lock, read without it
        self._context = context
        self._lock = threading.RLock()

    @property
    def exists(self) -> bool:
        return self._context.files.exists(self.path)

    def record(self, topic_id: str) -> None:
        """Remembers the id for the next flush. Raises InconsistentTopicIdException if another one is waiting."""
        dirty = self.dirty_topic_id
        if dirty is not None and dirty != topic_id:
            raise InconsistentTopicIdException(
                f"Tried to record topic ID {topic_id} to file but had already recorded {dirty}"
            )
        self.dirty_topic_id = topic_id

    def maybe_flush(self) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return  # called by a signal handler or finalizer during the write, which continues afterwards
        with self._lock:
            topic_id = self.dirty_topic_id
            if topic_id is None:
                return
            try:
                write_partition_metadata(self.path, topic_id, self._context.files)
            except OSError as error:
                self._context.raise_offline(f"Error while writing partition metadata file {self.path}", error)
            self.dirty_topic_id = None

    def read(self) -> PartitionMetadata:
        with self._lock:
            try:
                return read_partition_metadata(self.path, self._context.files)
            except (CorruptCheckpointException, OSError) as error:
                self._context.raise_offline(f"Error while reading partition metadata file {self.path}", error)
