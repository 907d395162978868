"""Lists a log directory by names: partitions, directories that are being moved or deleted, and what is not Kafka's.

A broker refuses to start if a directory has any other name, or if a partition is in two of its log directories.  Uses
names and listings only; opens no log, except for `copies_known`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from kafkalog._face.named import names_of_partition
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import folders_in
from kafkalog.errors import KafkalogError

_OWN_FILES = names.LOG_DIR_FILES | {"bootstrap.checkpoint", f"{names.META_PROPERTIES_FILE}.tmp"}


@dataclass
class Folders:
    """One log directory.  All values are paths."""

    log_dir: str
    partitions: dict[TopicPartition, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)  # `-delete`
    future: dict[str, TopicPartition] = field(default_factory=dict)  # `-future`
    strays: list[str] = field(default_factory=list)  # `-stray`
    metadata: str | None = None  # the controller's log, which belongs to no topic
    foreign_folders: list[str] = field(default_factory=list)
    # foreign directories that a broker takes for a partition
    other_names: dict[str, TopicPartition] = field(default_factory=dict)
    foreign_files: list[str] = field(default_factory=list)

    @property
    def logs(self) -> dict[TopicPartition, str]:
        """The partitions with the controller's log, which is read like one of them."""
        if self.metadata is None:
            return self.partitions
        controllers = names.parse_topic_partition_name(self.metadata)
        return dict(sorted([*self.partitions.items(), (controllers, self.metadata)]))

    @property
    def moving(self) -> list[str]:
        """Directories that were or will be partitions, but are not now."""
        return sorted([*self.deleted, *self.future, *self.strays])


def folders_of(log_dir: str, files: Files = OS_FILES) -> Folders:
    """Lists a log directory.  Raises OSError if it cannot be listed."""
    listed = files.list_dir(log_dir)
    named = folders_in(log_dir, listed, files)
    found = Folders(log_dir, named.partitions, foreign_folders=named.foreign, other_names=named.other_names)
    own = {os.path.basename(path) for path in (*found.partitions.values(), *found.foreign_folders)}
    for partition, path in list(found.partitions.items()):
        if partition.topic == names.CLUSTER_METADATA_TOPIC:
            found.metadata = path
            del found.partitions[partition]
    for name in listed:
        if name in own or name == names.REMOTE_LOG_INDEX_CACHE_DIR:
            continue
        path = os.path.join(log_dir, name)
        if not files.is_dir(path):
            if name not in _OWN_FILES and not _is_leftover(name):
                found.foreign_files.append(path)
        elif names.is_delete_dir(name) and _partition_of(name):
            found.deleted.append(path)
        elif names.is_stray_dir(name) and _partition_of(name):
            found.strays.append(path)
        elif names.is_future_dir(name) and (partition_or_none := _partition_of(name)) is not None:
            found.future[path] = partition_or_none
        else:
            found.foreign_folders.append(path)
    return found


def named_folders(found: Folders, asked: Collection[str]) -> Folders:
    """Returns what belongs to the named topics, partitions or globs; everything if none is named."""
    if not asked:
        return found

    def takes(path: str) -> bool:
        partition = _partition_of(os.path.basename(path))
        return partition is not None and bool(names_of_partition(asked, partition))

    return Folders(
        found.log_dir,
        {partition: path for partition, path in found.partitions.items() if names_of_partition(asked, partition)},
        deleted=[*filter(takes, found.deleted)],
        future={path: partition for path, partition in found.future.items() if names_of_partition(asked, partition)},
        strays=[*filter(takes, found.strays)],
        metadata=found.metadata if found.metadata is not None and takes(found.metadata) else None,
    )


def another_name(path: str, partition: TopicPartition) -> str:
    """Returns the finding about one of `other_names`."""
    return (
        f"{path}: a broker takes it for {partition}, and does not start if {partition} exists too; "
        f"kafkalog does not read it: rename it to {partition}, or move it elsewhere"
    )


def _is_leftover(name: str) -> bool:
    """Returns whether it is a checkpoint that was being written, or a copy that `checkpoint set` kept."""
    return any(name == f"{own}.tmp" or name.startswith(f"{own}.bak") for own in names.OFFSET_CHECKPOINT_FILES)


def _partition_of(name: str) -> TopicPartition | None:
    try:
        return names.parse_topic_partition_name(name)
    except KafkalogError:
        return None


def copies_known(log_dir: str, files: Files = OS_FILES) -> Callable[[TopicPartition], bool]:
    """Returns a function that says whether some of a partition was copied to a remote tier.
    It reads `__remote_log_metadata` of the directory, and raises CorruptCheckpointException and KafkaStorageException.
    """
    if not (files.is_dir(log_dir) and names.has_remote_metadata(files.list_dir(log_dir))):
        return lambda partition: False
    from kafkalog.engine.remote.known_copies import KnownCopies  # not needed for a directory without a tier

    return partial(KnownCopies([log_dir], files).has_of, log_dir)
