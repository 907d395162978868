"""A store's remote tier: the RemoteLogManager over the logs of its manager, and the effects of topic changes on it.

The events of remote segments are in the topic `__remote_log_metadata` of the store's own directories. It is created
partition by partition, like the coordinators' topics. Each event is synced, whatever durability the store promises for
records, because a local segment is deleted as a consequence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.coordinators import StoreStateLog
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.meta_properties import read_meta_properties
from kafkalog.engine.host.moves import leaving_error
from kafkalog.engine.host.topic_configs import StoredTopicConfigs
from kafkalog.engine.remote.chunks import Chunks
from kafkalog.engine.remote.copying import (
    find_highest_remote_offset,
    find_log_start_offset,
    lost_end,
    restore_leader_epochs,
)
from kafkalog.engine.remote.metadata_manager import TopicBasedRemoteLogMetadataManager
from kafkalog.engine.remote.opening import check_layout, check_to_write
from kafkalog.engine.remote.remote_log_manager import RemoteLogManager, RemoteLogManagerConfig
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, TopicIdPartition
from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    RetriableRemoteStorageException,
    SchemaException,
)
from kafkalog.remote import RemoteStorage, is_address

if TYPE_CHECKING:
    from kafkalog._face.catalog import Catalog
    from kafkalog.config import LogConfig
    from kafkalog.engine.files import Clock, Files
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.remote.storage import RemoteStorageManager

_log = Lines("kafkalog.remote")


class RemoteTier(NamedTuple):
    """A store's tier: its address and settings, the object that reads and writes it, and its manager's settings."""

    place: RemoteStorage
    storage: RemoteStorageManager
    config: RemoteLogManagerConfig
    answers: bool = True


def remote_tier(
    remote: str | os.PathLike[str] | RemoteStorage | None,
    config: RemoteLogManagerConfig | None,
    log_dirs: Sequence[str],
    files: Files,
) -> RemoteTier | None:
    """Returns the tier for the arguments of `kafkalog.open`. The storage is asked what is there before anything is
    opened. A storage that does not answer is refused, unless the directories have tiered before: they are written to
    meanwhile.

    IllegalArgumentException, TypeError, MissingPackageException, RemoteStorageException.
    """
    if config is not None:
        RemoteLogManagerConfig.checked(config)
    if remote is None:
        if config is not None:
            raise IllegalArgumentException("tiering: found settings of a remote tier without remote=", hint="pass both")
        return None
    place = RemoteStorage.of(remote)
    for log_dir in log_dirs:
        refuse_nested(place.url, log_dir)
    has_tiered = _has_tiered(log_dirs, files)
    try:
        storage = place.manager(may_have_others=has_tiered)
    except RetriableRemoteStorageException as error:
        if has_tiered:
            error.hint = "a store that has tiered opens without an answer if RemoteStorage(..., layout=) is given"
        raise
    answers = True
    try:
        check_to_write(storage)
        if not has_tiered:
            check_layout(storage)
    except RetriableRemoteStorageException as error:
        if not has_tiered:
            raise
        answers = False
        _log.warning("nothing is copied to the remote tier or deleted there for now: %s", error)
    return RemoteTier(place, storage, config or RemoteLogManagerConfig(), answers)


def refuse_nested(url: str, log_dir: str) -> None:
    """Raises IllegalArgumentException if a tier in a directory is inside a log directory, or around it. Each would
    delete the other's files, or take them for its own."""
    if is_address(url):
        return
    tier, directory = os.path.realpath(url), os.path.realpath(log_dir)
    if os.path.commonpath([tier, directory]) in (tier, directory):
        raise IllegalArgumentException(
            f"the remote tier {tier} and the log directory {directory} are one inside the other",
            hint="use two separate directories",
        )


def _has_tiered(log_dirs: Sequence[str], files: Files) -> bool:
    """Returns whether there is metadata of remote segments."""
    return any(names.has_remote_metadata(files.list_dir(each)) for each in log_dirs if files.is_dir(each))


class StoreTier:
    """The tier of one store, whose manager is started before `start`."""

    def __init__(
        self,
        remote: RemoteTier,
        manager: LogManager,
        catalog: Catalog,
        clock: Clock,
    ) -> None:
        self._manager = manager
        self._catalog = catalog
        stored = manager.topic_configs
        assert isinstance(stored, StoredTopicConfigs), stored
        self._stored = stored
        log_dir = next(iter(manager.directories.live))
        metadata = TopicBasedRemoteLogMetadataManager(
            self._metadata_log, clock, catalog.partition_count(names.REMOTE_LOG_METADATA_TOPIC)
        )
        self.remote_log_manager = RemoteLogManager(
            remote.storage,
            metadata,
            clock,
            manager.metrics,
            log_dir=log_dir,
            place=remote.place.url,
            broker_id=_node_id(log_dir),
            config=remote.config,
            chunks=Chunks(remote.place.cache_bytes),
        )
        self.remote_log_manager.changing = catalog.changing
        self._answers = remote.answers

    def _metadata_log(self, number: int, create: bool) -> StoreStateLog | None:
        log = self._catalog.internal_partition(names.REMOTE_LOG_METADATA_TOPIC, number, create=create)
        return None if log is None else StoreStateLog(self._manager, log, syncs=True)

    def start(self, *, runs: bool) -> None:
        """Reads and copies every log that uses the tier from now on; with `runs`, in the background."""
        manager = self.remote_log_manager
        manager.metadata.partitions()  # loads its logs now: they cannot be loaded while another log joins
        manager.deleted_topics = lambda: [topic_id for _, topic_id in self._catalog.deleted()]
        for topic in self._stored.known:
            self._note_leaving(topic)
        manager.doubt_place()
        if self._answers:  # otherwise the open would wait twice as long
            with suppress(RetriableRemoteStorageException):  # checked again before anything happens in the tier
                manager.check_place()
        for log in self._manager.all_logs():
            self.join(log)
        self._manager.tell_of_logs(self.join)
        try:
            manager.finish_deletions()
        except KafkalogError as error:
            _log.warning("deletions in the remote tier continue at the next start: %s", error)
        if runs:
            manager.startup()

    def join(self, log: UnifiedLog) -> None:
        """Adds a log that was opened and is not in use yet. It gets the tier's start, because a crash may have lost how
        far retention had moved its start, and continues after the segments in the tier. If an event of its metadata
        cannot be read, it stays as it is on the disk.

        IllegalArgumentException if its settings do not enable the tier; KafkaStorageException if the disk has lost the
        part that follows the tier.
        """
        manager, topic_id = self.remote_log_manager, log.topic_id
        is_current = os.path.basename(log.dir) == str(log.topic_partition)
        if not is_current or topic_id is None or log.topic_partition.topic in names.INTERNAL_TOPICS:
            return
        partition = TopicIdPartition(topic_id, log.topic_partition)
        while True:
            ended = manager.deletions_ended[partition]
            try:
                if manager.metadata.deletion_of(partition) is not None:
                    log.leave_remote_tier()
                    manager.add(log)  # nothing is copied until it is finished
                    return
                self._join(partition, log)
            except SchemaException as error:
                if log.remote_log_enabled:
                    _log.error("%s is not copied to the remote tier and not read there: %s", partition, error)
            if manager.metadata.deletion_of(partition) is None and manager.deletions_ended[partition] == ended:
                return
            log.leave_remote_tier()  # the segments that it found are being deleted, or are deleted

    def _join(self, partition: TopicIdPartition, log: UnifiedLog) -> None:
        manager = self.remote_log_manager
        if not log.remote_log_enabled:
            self._check_untiered(partition, log)
            return
        manager.add(log)
        log.update_log_start_offset_from_remote_tier(find_log_start_offset(manager.metadata, partition, log))
        restore_leader_epochs(log)
        copied, epoch = find_highest_remote_offset(manager.metadata, partition, log)
        log.update_highest_offset_in_remote_storage(copied)
        known = lost_end(manager.metadata, partition, log, epoch)
        if known is not None:
            raise KafkaStorageException(
                f"the log ends at offset {log.log_end_offset}, but the remote tier has records up to {known}: the disk "
                "has lost the end of the log",
                path=log.dir,
                hint="`kafkalog tier restore` restores the partition to a new directory; replace this directory with "
                "that one",
            )
        if log.active_segment.base_offset <= copied:
            log.roll()  # nobody may append to a segment that was copied

    def _check_untiered(self, partition: TopicIdPartition, log: UnifiedLog) -> None:
        """Raises IllegalArgumentException if the tier has segments of a log whose settings do not enable it. Nobody
        would find these segments, and the log would seem to start where the disk's part does."""
        topic, metadata = partition.topic_partition.topic, self.remote_log_manager.metadata
        known = self._stored.known_of(topic)  # first, like the tasks: both are set until a deletion is noted
        is_leaving = known is not None and known.leaves
        is_leaving |= self.remote_log_manager.has(partition)
        if metadata.deletion_of(partition) is not None:
            return
        if any(each.state is COPY_SEGMENT_FINISHED for each in metadata.list_remote_log_segments(partition)):
            if is_leaving:
                raise leaving_error(partition.topic_partition)
            if log.config.remote_storage_enable:
                found = "its cleanup.policy compacts"
                hint = "a compacted topic cannot be tiered: open the store with its previous settings"
            else:
                found = "remote.storage.enable is not among its settings"
                hint = (
                    f"if the metadata of {topic!r}'s cluster is elsewhere, name its server.properties with "
                    f'broker_config=; or pass config={{"remote.storage.enable": "true"}}'
                )
            raise IllegalArgumentException(
                f"{partition.topic_partition} has segments in the remote tier, but {found}", hint=hint
            )

    def take(self, topic: str, logs: Iterable[UnifiedLog]) -> None:
        """Applies changed settings of a topic, or takes over its logs. If the topic leaves the tier, that is noted in
        its events before any segment is deleted. The settings say so until no more segments can come, and `start`
        completes the change after a crash."""
        self._note_leaving(topic)
        for partition in [log.topic_partition for log in logs]:
            log = self._manager.registry.get(partition)  # now, for what is before may take long
            if log is not None:
                self.remote_log_manager.on_leadership_change(log)
        self._note_leaving(topic)  # an upload may have begun after the first note

    def _note_leaving(self, topic: str) -> None:
        manager = self.remote_log_manager
        with self._catalog.changing:  # the topic cannot come back before it is noted
            known = self._stored.known_of(topic)
            if known is None or not known.leaves or self._manager.config_of(topic).remote_storage_enable:
                return
            is_noted = manager.mark_deleted([known.topic_id])
            if is_noted and not any(log.topic_id == known.topic_id for log in manager.logs()):
                with suppress(KafkalogError):  # otherwise the next start notes it once more
                    self._stored.set(topic, self._stored.overrides(topic), known._replace(leaves=False))

    def delete(self, topic_id: str, logs: Iterable[UnifiedLog]) -> bool:
        """Deletes a topic's segments after the topic was deleted; these logs of it are open. Segments that the storage
        refuses to delete are deleted later, and a storage that does not answer is not asked for each partition. Returns
        False if not even the deletion could be noted: the next start must be told of it."""
        manager, is_noted = self.remote_log_manager, False
        manager.cancel(topic_id)
        try:
            for log in logs:
                manager.stop_partition(topic_id, log, delete=False)
            is_noted = manager.mark_deleted([topic_id])
            for partition in manager.metadata.partitions():
                if partition.topic_id == topic_id:
                    manager.delete_remote_log_partition(partition, is_awaited=True)
        except KafkalogError as error:
            _log.warning("segments of topic id %s in the remote tier are deleted later: %s", topic_id, error)
        return is_noted

    def close(self) -> None:
        self.remote_log_manager.close()

    def abandon(self) -> None:
        self.remote_log_manager.abandon()


def _node_id(log_dir: str) -> int:
    """Returns the node id of the broker whose directory it is; 0 for a directory of a store."""
    try:
        found = read_meta_properties(f"{log_dir}/{names.META_PROPERTIES_FILE}").node_id
    except (OSError, KafkalogError):
        return 0
    return found or 0


def refuse_without_tier(topics: Iterable[str], config_of: Callable[[str], LogConfig]) -> None:
    """Raises IllegalArgumentException if a topic is tiered and the store was opened without its remote tier. The topic
    would seem to start where the disk's part does."""
    tiered = [topic for topic in topics if config_of(topic).remote_storage_enable]
    if tiered:
        raise IllegalArgumentException(
            f"{', '.join(tiered[:5])}: tiered (remote.storage.enable), but no remote tier was given",
            hint='open the store with remote="s3://bucket/prefix"; read_only=True reads the part on the disk',
        )
