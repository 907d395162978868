"""What a log directory looks like from outside: which folders are partitions, and what is no log directory at all.

Knows names and listings; nothing of locks, or of what is inside the files.  Refusals come before anything is made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from kafkalog.errors import (
    IllegalArgumentException,
    KafkaException,
    KafkaStorageException,
    NoSuchFileException,
    UnknownTopicOrPartitionException,
)
from kafkalog.files import OS_FILES, Files, parent_dir
from kafkalog.files.lines import Lines
from kafkalog.format import names
from kafkalog.format.names import TopicPartition

LOGGER = "kafkalog.manager"

EXPECTED_DIR = "expected the folder that holds topic-0, topic-1 ..."
_NOT_FOREIGN = frozenset({"lost+found"})  # a file system's root has it from the start


def partition_of_folder(root: str, name: str, files: Files) -> TopicPartition | None:
    """The partition that a folder's name says, as it is written; None for a file, or a folder of another name."""
    partition = _parsed(name)
    is_its_name = partition is not None and str(partition) == name
    return partition if is_its_name and files.is_dir(os.path.join(root, name)) else None


def other_names(root: str, listed: Iterable[str], files: Files) -> dict[str, TopicPartition]:
    """Folders that a broker takes for a partition's, though they are not named as one (`t-00`, by Integer.parseInt, for
    t-0): alone it serves them, beside the partition's own folder it does not start.  Their paths, and the partition."""
    found = {name: partition for name in listed if (partition := _parsed(name)) is not None and str(partition) != name}
    paths = {os.path.join(root, name): partition for name, partition in sorted(found.items())}
    return {path: partition for path, partition in paths.items() if files.is_dir(path)}


def _parsed(name: str) -> TopicPartition | None:
    """None for the names of folders on their way in or out, too."""
    if names.is_delete_dir(name) or names.is_future_dir(name) or names.is_stray_dir(name):
        return None
    try:
        return names.parse_topic_partition_name(name)
    except KafkaException:
        return None


def partitions_in(root: str, listed: Iterable[str], files: Files) -> dict[TopicPartition, str]:
    """Those that have a folder in a log directory, of which `listed` are the names; and these folders."""
    found = ((partition_of_folder(root, name, files), name) for name in listed)
    return {partition: os.path.join(root, name) for partition, name in found if partition is not None}


def list_partitions(log_dir: str | os.PathLike[str], *, files: Files = OS_FILES) -> dict[TopicPartition, str]:
    """The partitions of a log directory and their folders, sorted; strays, `-delete` and `-future` ones left out.
    Folders of `other_names` are passed over with a warning.

    NoSuchFileException (a FileNotFoundError) when there is no such folder; IllegalArgumentException when it is a file,
    or a partition's own folder; KafkaStorageException when it cannot be read.
    """
    root = os.fsdecode(log_dir)
    refuse_file(root, files)
    if not files.is_dir(root):
        raise NoSuchFileException("no such log directory", path=root, hint=EXPECTED_DIR)
    listed = _listed(root, files)
    refuse_partition_folder(listed, root)
    for path, partition in other_names(root, listed, files).items():
        Lines(LOGGER, root).warning("passed over %s, which a broker takes for %s", path, partition)
    return dict(sorted(partitions_in(root, listed, files).items()))


def listing(path: str, files: Files) -> list[str]:
    """The names in a log directory.  UnknownTopicOrPartitionException when there is none; IllegalArgumentException when
    it is a file, or a partition's own folder; KafkaStorageException when it cannot be read."""
    refuse_file(path, files)
    if not files.is_dir(path):
        raise UnknownTopicOrPartitionException("no such log directory", path=path, hint=EXPECTED_DIR)
    found = _listed(path, files)
    refuse_partition_folder(found, path)
    return found


def _listed(path: str, files: Files) -> list[str]:
    try:
        return files.list_dir(path)
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot list the log directory") from error


def prepare(path: str, files: Files, *, create: bool) -> None:
    """Refuse what is no log directory; make it where it is missing."""
    found: list[str] = []
    if create and not files.is_dir(path):
        refuse_file(path, files)
    else:
        found = listing(path, files)
        _refuse_foreign_folder(found, path, files)
    if not found:
        above = path
        while not files.is_dir(above):
            above = parent_dir(above)
        # A call before us may have made it and died before it was synced.
        with contextlib.suppress(PermissionError):
            files.sync_dir(parent_dir(above))
        files.mkdirs_synced(path)


def refuse_file(path: str, files: Files) -> None:
    """IllegalArgumentException when there is something at `path` that is no folder."""
    if files.exists(path) and not files.is_dir(path):
        raise IllegalArgumentException("found a file, expected a log directory", path=path, hint=EXPECTED_DIR)


def refuse_partition_folder(entries: Iterable[str], path: str) -> None:
    """IllegalArgumentException when `path` holds segments itself."""
    for name in entries:
        if name.endswith(names.LOG_FILE_SUFFIX) and name[: -len(names.LOG_FILE_SUFFIX)].isdigit():
            raise IllegalArgumentException(
                f"found a partition's own files ({name}), expected the folder above it",
                path=path,
                hint=f"use {os.path.dirname(os.path.abspath(path))}",
            )


def _refuse_foreign_folder(found: list[str], path: str, files: Files) -> None:
    """IllegalArgumentException when a folder has something in it, but nothing of a log directory."""
    foreign = [name for name in found if name not in _NOT_FOREIGN and not name.startswith(names.STAGED_FILE_PREFIX)]
    if not foreign or not names.LOG_DIR_FILES.isdisjoint(name.removesuffix(".tmp") for name in found):
        return
    if any(_looks_like_partition(path, name, files) for name in foreign):
        return
    some = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
    raise IllegalArgumentException(
        f"found {some}, expected a log directory (topic-0, topic-1 ..., or Kafka's {names.META_PROPERTIES_FILE} or "
        "checkpoints) or an empty folder",
        path=path,
        hint="nothing was made here; name a new folder, or create=False where you expect that the log exists",
    )


def _looks_like_partition(root: str, name: str, files: Files) -> bool:
    """Whether it is called topic-0 and is empty, or has a segment or the topic's id in it."""
    if partition_of_folder(root, name, files) is None:
        return False
    inside = files.list_dir(os.path.join(root, name))
    ours = (names.LOG_FILE_SUFFIX, *names.INDEX_FILE_SUFFIXES, names.PARTITION_METADATA_FILE)
    return not inside or any(each.endswith(ours) for each in inside)
