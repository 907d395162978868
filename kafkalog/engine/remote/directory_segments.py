"""Finds the remote segments of a log directory from its `__remote_log_metadata`, as its store or broker would.

It reads while another process may be writing there.  Only segments whose upload is finished count, along the leader
epochs of the partition's directory.  The topic id in that directory decides between topics of the same name.  None of
this sends a request to the storage.  Offsets between two segments that no segment holds become a placeholder segment
(`segment.missing`), so that readers do not skip them silently.  A broker's directory may have only some partitions of
the topic; for the others, the objects are listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog._limits import LONG_MAX
from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host.log_dirs import partitions_in
from kafkalog.engine.host.topic_configs import stored_content
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote.lineage import epochs_of_all, history
from kafkalog.engine.remote.metadata_manager import PARTITIONS, TopicBasedRemoteLogMetadataManager, metadata_partition
from kafkalog.engine.remote.object_segments import ObjectSegments, one_of_a_name
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, TopicIdPartition, missing
from kafkalog.errors import KafkalogError, SchemaException

if TYPE_CHECKING:
    from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
    from kafkalog.engine.remote.metadata_manager import _MetadataPartition
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import RemoteStorageManager

_log = Lines("kafkalog.remote")


class _GrowingLog(SourceStateLog):
    """A log that another process writes, so its end is checked at each use."""

    @property
    def end(self) -> int:
        self._source.recheck()
        return super().end


class DirectoryMetadata(TopicBasedRemoteLogMetadataManager):
    """The `__remote_log_metadata` in directories of another process; read-only."""

    def __init__(self, log_dirs: Sequence[str], files: Files = OS_FILES) -> None:
        super().__init__(self._log_in, SYSTEM_CLOCK)
        self._dirs, self._files = list(log_dirs), files
        self._here: dict[int, str] = {}  # replaced whole
        self.look()

    def look(self) -> None:
        """Finds the topic's partitions in the directories.

        A partition that was moved is read at its new place, and an event that could not be read is tried again.
        """
        before, self._here = self._here, self._found()
        if not before.keys() <= self._here.keys():  # a partition moved into a directory that had already been listed
            self._here = self._found()
        with self._lock:
            for number, of in list(self._partitions.items()):
                if self._here.get(number) != before.get(number):
                    del self._partitions[number]
                elif of.unreadable_at == of.read_to:
                    of.unreadable = None
        self._is_ours = any(self._files.exists(os.path.join(each, names.TOPIC_CONFIGS_FILE)) for each in self._dirs)
        if self._here and not self._is_ours:  # with gaps, other directories have the rest
            highest = max(self._here) + 1
            self._count = highest if len(self._here) == highest else max(highest, PARTITIONS)

    def _found(self) -> dict[int, str]:
        return {
            partition.partition: os.path.dirname(path)
            for partition, path in _folders_in(self._dirs, self._files).items()
            if partition.topic == names.REMOTE_LOG_METADATA_TOPIC
        }

    def _numbered(self, number: int) -> _MetadataPartition:
        try:
            return super()._numbered(number)
        except KafkalogError:
            before = self._here.get(number)
            self.look()
            if self._here.get(number) == before:
                raise
            return super()._numbered(number)

    @property
    def is_there(self) -> bool:
        return bool(self._here)

    @property
    def is_whole(self) -> bool:
        """Whether a segment that is missing here is also missing in the tier.

        A store creates partitions as it needs them.  A broker's partitions are certainly complete if there are as many
        as Kafka creates.
        """
        return self.is_there and (self._is_ours or len(self._here) == self._count >= PARTITIONS)

    def speaks_of(self, partition: TopicIdPartition) -> bool:
        """Returns whether a partition's events are here, or would be."""
        if not self.is_there:
            return False
        if self.is_whole or self.has_events(partition):
            return True
        return self._count >= PARTITIONS and metadata_partition(partition, self._count) in self._here

    def copied(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Yields the segments whose upload is finished, and which are not deleted."""
        for partition in self.partitions():
            with suppress(SchemaException):  # events that cannot be read
                segments = self.list_remote_log_segments(partition)
                yield from (each for each in segments if each.state is COPY_SEGMENT_FINISHED)

    def _log_in(self, number: int, create: bool) -> SourceStateLog | None:
        log_dir = self._here.get(number)
        if log_dir is None:
            return None
        partition = TopicPartition(names.REMOTE_LOG_METADATA_TOPIC, number)
        view = PartitionView(log_dir, partition, files=self._files)
        return _GrowingLog(view, os.path.join(log_dir, str(partition)))


def _folders_in(log_dirs: Sequence[str], files: Files) -> dict[TopicPartition, str]:
    """Returns the directories of the partitions in `log_dirs`; of two with the same name the first."""
    found: dict[TopicPartition, str] = {}
    for log_dir in log_dirs:
        if files.is_dir(log_dir):
            here = partitions_in(log_dir, files.list_dir(log_dir), files)
            found |= {partition: path for partition, path in here.items() if partition not in found}
    return found


def has_tiered_topics(log_dirs: Sequence[str], files: Files = OS_FILES) -> bool:
    """Returns whether a store's settings of any topic in these directories enable the remote tier."""
    try:
        topics, _ = stored_content(log_dirs, files)
    except KafkalogError:  # `verify` reports it
        return False
    return any(settings.get("remote.storage.enable", "").lower() == "true" for settings in topics.values())


def known_segments(log_dirs: Sequence[str], files: Files = OS_FILES) -> DirectoryMetadata | None:
    """Returns the metadata in these directories; None if they have no partition of `__remote_log_metadata`."""
    found = DirectoryMetadata(log_dirs, files)
    return found if found.is_there else None


class DirectorySegments:
    """A `RemoteSegments` of directories that continue in a tier.  `topic_ids` applies to topics without a directory
    here."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        storage: RemoteStorageManager,
        files: Files = OS_FILES,
        topic_ids: Mapping[str, str] | None = None,
        *,
        only_listed: bool = False,
        metadata: DirectoryMetadata | None = None,
    ) -> None:
        self._dirs, self._files = list(log_dirs), files
        self._given, self._only_listed = dict(topic_ids or {}), only_listed
        self._metadata = metadata or DirectoryMetadata(log_dirs, files)
        self._folders: dict[TopicPartition, str] = {}  # replaced whole
        self._objects = ObjectSegments(storage, only_listed=only_listed)

    @property
    def has_metadata(self) -> bool:
        return self._metadata.is_there

    def partitions(self) -> Mapping[TopicPartition, TopicIdPartition]:
        """Returns the partitions with topic ids, like ObjectSegments.partitions."""
        folders = _folders_in(self._dirs, self._files)
        ids = dict(self._given)
        for partition, path in folders.items():
            try:
                topic_id = topic_id_of(path, self._files)
            except (KafkalogError, OSError) as error:  # `verify` reports it
                _log.warning("cannot read the topic id of %s: %s", partition, error)
                continue
            if topic_id is not None:
                ids[partition.topic] = topic_id
        self._folders = folders
        self._objects.topic_ids = ids
        metadata = self._metadata
        metadata.look()
        known = [each for each in metadata.partitions() if self._is_copied(each)] if metadata.is_there else []
        found = one_of_a_name(known, ids, lambda each: True)
        if not metadata.is_whole:
            others = self._objects.partitions()
            found |= {short: full for short, full in others.items() if not metadata.speaks_of(full)}
        return found

    def _is_copied(self, partition: TopicIdPartition) -> bool:
        try:
            cache = self._metadata.cache_of(partition)
        except SchemaException:  # a reader of it gets the error
            return True
        is_deleted = self._metadata.deletion_of(partition) is not None
        return cache is not None and not is_deleted and any(each.state is COPY_SEGMENT_FINISHED for each in cache)

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        if not self._metadata.speaks_of(partition):
            return self._objects.segments(partition)
        try:
            cache = self._metadata.cache_of(partition)
        except SchemaException as error:  # the local disk and other partitions stay readable
            return [missing(partition, 0, LONG_MAX - 1, str(error))]
        return [] if cache is None else list(_with_gaps(self._referenced(partition.topic_partition, cache)))

    def _referenced(self, partition: TopicPartition, cache: RemoteLogMetadataCache) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments that readers of a store would use."""
        folder = self._folders.get(partition)
        epochs: list[EpochEntry] = []
        start = 0
        if folder is not None:
            path = os.path.join(os.path.dirname(folder), names.LOG_START_OFFSET_CHECKPOINT_FILE)
            start = OffsetCheckpointFile(path, self._files, create=False).read_or_empty().get(partition, 0)
            path = os.path.join(folder, names.LEADER_EPOCH_CHECKPOINT_FILE)
            if self._files.exists(path):
                epochs = LeaderEpochCheckpointFile(path, self._files, create=False).read()
        segments = list(cache)
        return history(segments, epochs or epochs_of_all(segments), start)


def _with_gaps(segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[RemoteLogSegmentMetadata]:
    before: RemoteLogSegmentMetadata | None = None
    for each in segments:
        if before is not None and before.end_offset + 1 < each.start_offset:
            yield missing(each.topic_id_partition, before.end_offset + 1, each.start_offset - 1)
        yield each
        before = each
