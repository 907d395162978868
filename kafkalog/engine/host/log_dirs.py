"""What a log directory looks like from outside: which folders are partitions, and what is no log directory at all.

Knows names and listings; nothing of locks, or of what is inside the files.  Refusals come before anything is made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog.engine.files import OS_FILES, Files, local_path, parent_dir
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.backups import MANIFEST_FILE
from kafkalog.errors import (
    IllegalArgumentException,
    KafkaException,
    KafkaStorageException,
    NoSuchFileException,
    UnknownTopicOrPartitionException,
)

LOGGER = "kafkalog.manager"

_ON_THE_WAY = (names.DELETE_DIR_SUFFIX, names.FUTURE_DIR_SUFFIX, names.STRAY_DIR_SUFFIX)
EXPECTED_DIR = "expected the folder that holds topic-0, topic-1 ..."
_SHOW_LOG_DIR = (names.LOG_DIR_FILES - {names.LOCK_FILE}) | {names.REMOTE_LOG_INDEX_CACHE_DIR}
_NOT_FOREIGN = frozenset({"lost+found"})  # a file system's root has it from the start


def partition_of_folder(root: str, name: str, files: Files) -> TopicPartition | None:
    """The partition that a folder's name says, as it is written; None for a file, or a folder of another name."""
    partition = _parsed(name)
    return partition if _is_named(partition, name) and files.is_dir(os.path.join(root, name)) else None


def _is_named(partition: TopicPartition | None, name: str) -> bool:
    return partition is not None and f"{partition[0]}-{partition[1]}" == name


def other_names(root: str, listed: Iterable[str], files: Files) -> dict[str, TopicPartition]:
    """Folders that a broker takes for a partition's, though they are not named as one (`t-00`, by Integer.parseInt, for
    t-0): alone it serves them, beside the partition's own folder it does not start.  Their paths, and the partition."""
    found = {
        name: partition
        for name in listed
        if (partition := _parsed(name)) is not None and not _is_named(partition, name)
    }
    paths = {os.path.join(root, name): partition for name, partition in sorted(found.items())}
    return {path: partition for path, partition in paths.items() if files.is_dir(path)}


def _parsed(name: str) -> TopicPartition | None:
    """None for the names of folders on their way in or out, too."""
    if name.endswith(_ON_THE_WAY):
        return None
    try:
        return names.parse_topic_partition_name(name)
    except KafkaException:
        return None


def partitions_in(root: str, listed: Iterable[str], files: Files) -> dict[TopicPartition, str]:
    """Those that have a folder in a log directory, of which `listed` are the names; and these folders."""
    found = ((partition_of_folder(root, name, files), name) for name in listed)
    return {partition: os.path.join(root, name) for partition, name in found if partition is not None}


class FoldersIn(NamedTuple):
    """A log directory's folders that are named like partitions, all by their paths: partitions, sorted; those with
    `is_foreign_partition`, in the same order; and `other_names`."""

    partitions: dict[TopicPartition, str]
    foreign: list[str]
    other_names: dict[str, TopicPartition]


def folders_in(root: str, listed: Iterable[str], files: Files) -> FoldersIn:
    """Those of a log directory, of which `listed` are the names."""
    parsed = [(name, partition) for name in listed if (partition := _parsed(name)) is not None]
    named = sorted([(partition, name) for name, partition in parsed if _is_named(partition, name)])
    others = [name for name, partition in parsed if not _is_named(partition, name)] if len(named) < len(parsed) else ()
    found = FoldersIn({}, [], other_names(root, others, files))
    above = os.path.join(root, "")
    for partition, name in named:
        path = above + name
        # Nearly every partition has that file, so that it is a folder, and nobody else's, too.
        if not files.has_inside(path, names.LEADER_EPOCH_CHECKPOINT_FILE):
            if not files.is_dir(path):
                continue
            if is_foreign_partition(path, files):
                found.foreign.append(path)
                continue
        found.partitions[partition] = path
    return found


def list_partitions(log_dir: str | os.PathLike[str], *, files: Files = OS_FILES) -> dict[TopicPartition, str]:
    """Returns the partitions of a log directory and the paths of their directories, sorted.

    Strays and directories that end in `-delete` or `-future` are omitted.  A directory that a broker takes for a
    partition, but whose name is spelled otherwise (`t-00` for t-0), is skipped with a warning.  A directory without any
    file of a partition is skipped silently.

    Args:
        log_dir: The path of the log directory.
        files: The file system; for tests.

    Returns:
        The path of each partition's directory, by TopicPartition.

    Raises:
        NoSuchFileException: The directory does not exist (it is also a FileNotFoundError).
        IllegalArgumentException: The path is a file, or the directory of a partition.
        KafkaStorageException: The directory cannot be read.

    Example:
        >>> kafkalog.open_log("logs", "orders-0").close()
        >>> [str(partition) for partition in kafkalog.list_partitions("logs")]
        ['orders-0']
    """
    root = local_path(log_dir, what="log_dir", files=files)
    refuse_file(root, files)
    if not files.is_dir(root):
        raise NoSuchFileException("no such log directory", path=root, hint=EXPECTED_DIR)
    listed = _listed(root, files)
    refuse_partition_folder(listed, root)
    found = folders_in(root, listed, files)
    for path, partition in found.other_names.items():
        Lines(LOGGER, root).warning("passed over %s, which a broker takes for %s", path, partition)
    return found.partitions


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
        refuse_inside(path, files)
    else:
        found = listing(path, files)
        refuse_foreign(path, files)
    if not found:
        above = files.nearest_dir(path)
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


BACKED_UP_DIR = "log-dir-"  # and a number: a log directory in a backup
_NOTHING_MADE = "nothing was made here; name a new folder, or the one that has the log"


def refuse_foreign(path: str, files: Files, hint: str = _NOTHING_MADE) -> None:
    """IllegalArgumentException if `path` is a folder that has something in it, but nothing of a log directory, or is a
    partition's own folder, with `hint` for what to do.  A missing folder, or one that cannot be read, passes.
    """
    try:
        found = files.list_dir(path) if files.is_dir(path) else []
    except OSError:
        return  # what is done there next says so
    refuse_partition_folder(found, path)
    foreign = [name for name in found if not _is_ours(name)]
    if not foreign or any(_shows_log_dir(path, name, files) for name in found):
        return
    if all(_is_empty_partition(path, name, files) for name in foreign):
        return  # a crash came while the first one was made
    if MANIFEST_FILE in found:
        inside = next((name for name in sorted(found) if name.startswith(BACKED_UP_DIR)), None)
        if inside is not None:
            raise IllegalArgumentException(
                f"found a backup ({MANIFEST_FILE}), expected a log directory",
                path=path,
                hint=f"its log directory is {os.path.join(path, inside)}: open that with read_only=True; `kafkalog "
                "restore` makes one to write to",
            )
    taken = [name for name in foreign if is_foreign_partition(os.path.join(path, name), files)]
    shown = [*taken, *(name for name in foreign if name not in taken)]
    some = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
    named = f"; {', '.join(taken[:3])} is named like a partition, but no file in it is a partition's" if taken else ""
    raise IllegalArgumentException(
        f"found {some}, expected a log directory (topic-0, topic-1 ..., or Kafka's {names.META_PROPERTIES_FILE} or "
        f"checkpoints) or an empty folder{named}",
        path=path,
        hint=hint,
    )


def is_of_cluster(directory: str, files: Files) -> bool:
    """Whether the directory is a broker's (`meta.properties`), or holds a cluster's metadata."""
    signs = (names.META_PROPERTIES_FILE, names.CLUSTER_METADATA_DIR)
    return any(files.exists(os.path.join(directory, name)) for name in signs)


def check_taken_over(log_dirs: Iterable[str], files: Files, *, take_over: bool) -> None:
    """IllegalArgumentException if one of `log_dirs` is a cluster's and nobody said that it is to be taken over."""
    for directory in log_dirs:
        if not take_over and is_of_cluster(directory, files):
            raise IllegalArgumentException(
                f"found the directory of a Kafka broker ({names.META_PROPERTIES_FILE}), expected another",
                path=directory,
                hint="read_only=True reads it as it is, and so do `kafkalog topics`, `cat`, `export`, `verify` and "
                "`explain`; take_over=True (--take-over; Spark's option takeOver) writes to it in the broker's place",
            )


def refuse_inside(path: str, files: Files) -> None:
    """IllegalArgumentException if `path` is missing, and would be made inside of a broker's directory, or of a
    partition's folder there: the broker does not start with another folder in it."""
    above = os.path.abspath(path)
    if files.exists(above):
        return
    above = files.nearest_dir(above)
    for each in (above, parent_dir(above)):
        if is_of_cluster(each, files):
            raise IllegalArgumentException(
                f"found that {each} is the directory of a Kafka broker, expected a place outside of it: the broker "
                "does not start with another folder in it",
                path=path,
                hint="nothing was made; name a folder elsewhere",
            )


def sign_of_log_dir(path: str, files: Files) -> str | None:
    """What in the folder `path` says that it is a log directory, of a broker or of this package: a name; None if
    nothing does."""
    try:
        return next((name for name in sorted(files.names_in(path)) if _shows_log_dir(path, name, files)), None)
    except OSError:
        return None


def is_foreign_partition(folder: str, files: Files) -> bool:
    """Whether a folder that is named like a partition's has files in it, and none of them is a partition's.  It belongs
    to somebody else, and is never touched."""
    if not _is_named_like_partition(folder):
        return False
    try:
        inside = files.names_in(folder)
    except OSError:  # no folder, or one that nobody can read
        return False
    return bool(inside) and not any(map(names.is_partitions_file, inside))


def refuse_foreign_partition(folder: str, files: Files) -> None:
    """IllegalArgumentException for `is_foreign_partition`."""
    if is_foreign_partition(folder, files):
        some = ", ".join(files.list_dir(folder)[:3])
        raise IllegalArgumentException(
            f"found {some}, expected a partition's files (00000000000000000000.log ...) or an empty folder",
            path=folder,
            hint="it is somebody else's: nothing was changed; name another partition, or another log directory",
        )


def _is_ours(name: str) -> bool:
    """What says nothing of a folder: a file system's own, `.lock` (other programs have one, too), what is staged."""
    return name in _NOT_FOREIGN or name == names.LOCK_FILE or name.startswith(names.STAGED_FILE_PREFIX)


def _is_named_like_partition(folder: str) -> bool:
    """By its path, or its name alone; also a folder on its way in or out."""
    try:
        names.parse_topic_partition_name(folder)
    except KafkaException:
        return False
    return True


def _shows_log_dir(root: str, name: str, files: Files) -> bool:
    """Whether nobody but Kafka, or this package, makes such a file or folder."""
    if name.removesuffix(".tmp") in _SHOW_LOG_DIR:
        return True
    if not _is_named_like_partition(name):
        return False
    try:
        return any(map(names.is_partitions_file, files.names_in(os.path.join(root, name))))
    except OSError:
        return False


def _is_empty_partition(root: str, name: str, files: Files) -> bool:
    folder = os.path.join(root, name)
    try:
        return _is_named_like_partition(name) and files.is_dir(folder) and not files.names_in(folder)
    except OSError:
        return False
