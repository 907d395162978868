"""Finds what was copied of logs that are opened without their tier, from `__remote_log_metadata` in the same
directories.

The settings may not say that a topic is tiered: they belong to a broker, or were given for one run only.  The copies
do.  Code that deletes, truncates or appends asks `KnownCopies`.  The lower layer `engine.host` creates it by name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.remote.copying import find_highest_remote_offset, lost_end
from kafkalog.engine.remote.directory_segments import DirectoryMetadata
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, TopicIdPartition
from kafkalog.errors import KafkaStorageException, SchemaException

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog


class KnownCopies:
    """The copies of the partitions in some log directories.  Thread-safe."""

    def __init__(self, log_dirs: Sequence[str], files: Files = OS_FILES) -> None:
        self._files = files
        self._metadata = DirectoryMetadata(log_dirs, files)

    def has(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Returns whether any of a partition was copied and still counts.

        Also returns True if events of it cannot be read, since they may say so.  Errors of reading are those of a view.
        """
        if topic_id is None or not self._metadata.is_there:
            return False
        full = TopicIdPartition(topic_id, partition)
        try:
            segments = self._metadata.list_remote_log_segments(full)
        except SchemaException:
            return self._metadata.has_events(full)
        is_deleted = self._metadata.deletion_of(full) is not None
        return not is_deleted and any(each.state is COPY_SEGMENT_FINISHED for each in segments)

    def has_of(self, log_dir: str, partition: TopicPartition) -> bool:
        """Returns `has` for a partition's directory.  Raises CorruptCheckpointException and KafkaStorageException."""
        if not self._metadata.is_there:
            return False
        try:
            return self.has(partition, topic_id_of(os.path.join(log_dir, str(partition)), self._files))
        except OSError as error:
            raise KafkaStorageException.because_of(error, f"cannot read the topic id of {partition}") from error

    def lost_end(self, log: UnifiedLog) -> int | None:
        """Returns `copying.lost_end` of a log; also None if its events cannot be read."""
        if log.topic_id is not None and self.has(log.topic_partition, log.topic_id):
            with suppress(SchemaException):
                full = TopicIdPartition(log.topic_id, log.topic_partition)
                epoch = find_highest_remote_offset(self._metadata, full, log).leader_epoch
                return lost_end(self._metadata, full, log, epoch)
        return None
