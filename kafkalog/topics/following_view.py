"""A partition as another process's directories show it, wherever it is now.

A PartitionView that goes on in the directory that a move has brought the partition to, with the same records.  A topic
of the same name that was made anew is none of it: UnknownTopicOrPartitionException then, as where it was deleted.
Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkalog.errors import CorruptCheckpointException, UnknownTopicOrPartitionException
from kafkalog.files import Files
from kafkalog.files.processes import Life
from kafkalog.format.partition_metadata import topic_id_of
from kafkalog.log.checkpoint_lines import CheckpointLines
from kafkalog.log.view import PartitionView

if TYPE_CHECKING:
    from kafkalog.format.names import TopicPartition
    from kafkalog.log.snapshot import Snapshot


class FollowingView(PartitionView):
    """Made by the store's `source`, in the directory where the partition is; `directories` are all of the store's."""

    def __init__(
        self, log_dir: str, partition: TopicPartition, directories: Sequence[str], files: Files, life: Life
    ) -> None:
        self._directories = directories
        self._topic_id = _topic_id(os.path.join(log_dir, str(partition)), files)
        super().__init__(log_dir, partition, files=files)
        self.life = life

    def _look(self) -> Snapshot:
        try:
            return super()._look()
        except UnknownTopicOrPartitionException:
            if not self._has_moved():
                raise
            return super()._look()

    def _has_moved(self) -> bool:
        """Whether it is in another directory now, where it is read from now on; with _refreshing held."""
        for log_dir in self._directories:
            directory = os.path.join(log_dir, str(self.topic_partition))
            if log_dir == self.log_dir or not self._files.is_dir(directory):
                continue
            topic_id = _topic_id(directory, self._files)
            if topic_id is None or self._topic_id in (None, topic_id):
                self._topic_id = topic_id or self._topic_id
                self._checkpoints = CheckpointLines(log_dir, self._files, only=self.topic_partition)
                self._searched = None
                self.log_dir, self.directory = log_dir, directory
                return True
        return False


def _topic_id(directory: str, files: Files) -> str | None:
    try:
        return topic_id_of(directory, files)
    except (OSError, CorruptCheckpointException):  # whoever reads there says what is wrong
        return None
