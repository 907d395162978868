"""Recognizes log directories from outside: which entries are partitions, and what is no log directory at all.

Knows names and listings.  Knows nothing of locks, or of what is inside the files.  A path is refused before anything is
created there.
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
EXPECTED_DIR = "expected the directory that holds topic-0, topic-1 ..."
_SHOW_LOG_DIR = (names.LOG_DIR_FILES - {names.LOCK_FILE}) | {names.REMOTE_LOG_INDEX_CACHE_DIR}
_NOT_FOREIGN = frozenset({"lost+found"})  # a file system's root has it from the start


def partition_of_folder(root: str, name: str, files: Files) -> TopicPartition | None:
    """Returns the partition that a directory's name spells exactly; None for a file, or another name."""
    partition = _parsed(name)
    return partition if _is_named(partition, name) and files.is_dir(os.path.join(root, name)) else None


def _is_named(partition: TopicPartition | None, name: str) -> bool:
    return partition is not None and f"{partition[0]}-{partition[1]}" == name


def other_names(root: str, listed: Iterable[str], files: Files) -> dict[str, TopicPartition]:
    """Returns the paths, and partitions, of directories that a broker reads as a partition's under another spelling.

    Kafka parses the number with Integer.parseInt, so that it reads `t-00` as t-0.  A broker serves such a directory if
    it is the only one, and does not start if the partition's own directory exists too.
    """
    found = {
        name: partition
        for name in listed
        if (partition := _parsed(name)) is not None and not _is_named(partition, name)
    }
    paths = {os.path.join(root, name): partition for name, partition in sorted(found.items())}
    return {path: partition for path, partition in paths.items() if files.is_dir(path)}


def _parsed(name: str) -> TopicPartition | None:
    """Returns the partition of a name; None also for `-delete`, `-future` and `-stray` directories."""
    if name.endswith(_ON_THE_WAY):
        return None
    try:
        return names.parse_topic_partition_name(name)
    except KafkaException:
        return None


def partitions_in(root: str, listed: Iterable[str], files: Files) -> dict[TopicPartition, str]:
    """Returns the partitions that have a directory in a log directory, and these directories' paths.

    `listed` are the names in the log directory.
    """
    found = ((partition_of_folder(root, name, files), name) for name in listed)
    return {partition: os.path.join(root, name) for partition, name in found if partition is not None}


class FoldersIn(NamedTuple):
    """The directories in a log directory that are named like partitions.

    `partitions` maps the partitions to their paths, sorted.  `foreign` are the paths for which `is_foreign_partition`
    holds, in the same order.  `other_names` is the result of the function of that name.
    """

    partitions: dict[TopicPartition, str]
    foreign: list[str]
    other_names: dict[str, TopicPartition]


def folders_in(root: str, listed: Iterable[str], files: Files) -> FoldersIn:
    """Returns the directories of a log directory.  `listed` are the names in it."""
    parsed = [(name, partition) for name in listed if (partition := _parsed(name)) is not None]
    named = sorted([(partition, name) for name, partition in parsed if _is_named(partition, name)])
    others = [name for name, partition in parsed if not _is_named(partition, name)] if len(named) < len(parsed) else ()
    found = FoldersIn({}, [], other_names(root, others, files))
    above = os.path.join(root, "")
    for partition, name in named:
        path = above + name
        # Nearly every partition has this file, which also proves that the path is a directory, and a partition's.
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
        Lines(LOGGER, root).warning("skipped %s, which a broker reads as %s", path, partition)
    return found.partitions


def listing(path: str, files: Files) -> list[str]:
    """Returns the names in a log directory.

    Raises UnknownTopicOrPartitionException if it does not exist, IllegalArgumentException if it is a file or a
    partition's directory, and KafkaStorageException if it cannot be read.
    """
    refuse_file(path, files)
    if not files.is_dir(path):
        raise UnknownTopicOrPartitionException(
            "no such log directory",
            path=path,
            hint=f"{EXPECTED_DIR}; if another process creates it, start that process first",
        )
    found = _listed(path, files)
    refuse_partition_folder(found, path)
    return found


def _listed(path: str, files: Files) -> list[str]:
    try:
        return files.list_dir(path)
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot list the log directory") from error


def prepare(path: str, files: Files, *, create: bool) -> None:
    """Refuses a path that is no log directory; creates the directory if it is missing."""
    found: list[str] = []
    if create and not files.is_dir(path):
        refuse_file(path, files)
        refuse_inside(path, files)
    else:
        found = listing(path, files)
        refuse_foreign(path, files)
    if not found:
        above = files.nearest_dir(path)
        # An earlier call may have created the directory and died before it synced the parent.
        with contextlib.suppress(PermissionError):
            files.sync_dir(parent_dir(above))
        files.mkdirs_synced(path)


def refuse_file(path: str, files: Files) -> None:
    """Raises IllegalArgumentException if `path` exists and is not a directory."""
    if files.exists(path) and not files.is_dir(path):
        raise IllegalArgumentException("found a file, expected a log directory", path=path, hint=EXPECTED_DIR)


def refuse_partition_folder(entries: Iterable[str], path: str) -> None:
    """Raises IllegalArgumentException if `path` itself holds segments."""
    for name in entries:
        if name.endswith(names.LOG_FILE_SUFFIX) and name[: -len(names.LOG_FILE_SUFFIX)].isdigit():
            raise IllegalArgumentException(
                f"found a partition's own files ({name}), expected the directory above it",
                path=path,
                hint=f"use {os.path.dirname(os.path.abspath(path))}",
            )


BACKED_UP_DIR = "log-dir-"  # and a number: a log directory in a backup
_NOTHING_MADE = "nothing was created here; name a new directory, or the one that has the log"


def refuse_foreign(path: str, files: Files, hint: str = _NOTHING_MADE) -> None:
    """Raises IllegalArgumentException if `path` has entries, but nothing of a log directory.

    Also raises it if `path` is a partition's directory.  `hint` says what to do.  A missing or unreadable directory
    passes.
    """
    try:
        found = files.list_dir(path) if files.is_dir(path) else []
    except OSError:
        return  # the next operation on it reports the error
    refuse_partition_folder(found, path)
    foreign = [name for name in found if not _is_ours(name)]
    if not foreign or any(_shows_log_dir(path, name, files) for name in found):
        return
    if all(_is_empty_partition(path, name, files) for name in foreign):
        return  # a crash came while the first partition was created
    if MANIFEST_FILE in found:
        inside = next((name for name in sorted(found) if name.startswith(BACKED_UP_DIR)), None)
        if inside is not None:
            raise IllegalArgumentException(
                f"found a backup ({MANIFEST_FILE}), expected a log directory",
                path=path,
                hint=f"its log directory is {os.path.join(path, inside)}: open that with read_only=True; `kafkalog "
                "restore` creates a copy to write to",
            )
    taken = [name for name in foreign if is_foreign_partition(os.path.join(path, name), files)]
    shown = [*taken, *(name for name in foreign if name not in taken)]
    some = ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
    named = f"; {', '.join(taken[:3])} is named like a partition, but holds no file of a partition" if taken else ""
    raise IllegalArgumentException(
        f"found {some}, expected a log directory (topic-0, topic-1 ..., or Kafka's {names.META_PROPERTIES_FILE} or "
        f"checkpoints) or an empty directory{named}",
        path=path,
        hint=hint,
    )


def is_of_cluster(directory: str, files: Files) -> bool:
    """Returns whether the directory is a broker's (it has `meta.properties`), or holds a cluster's metadata."""
    signs = (names.META_PROPERTIES_FILE, names.CLUSTER_METADATA_DIR)
    return any(files.exists(os.path.join(directory, name)) for name in signs)


def check_taken_over(log_dirs: Iterable[str], files: Files, *, take_over: bool) -> None:
    """Raises IllegalArgumentException if one of `log_dirs` is a broker's and `take_over` is False."""
    for directory in log_dirs:
        if not take_over and is_of_cluster(directory, files):
            raise IllegalArgumentException(
                f"found the directory of a Kafka broker ({names.META_PROPERTIES_FILE}), expected that of a store",
                path=directory,
                hint="read_only=True reads it as it is, and so do `kafkalog topics`, `cat`, `export`, "
                "`verify` and `explain`; take_over=True (--take-over; Spark's option takeOver) writes to it in the "
                "broker's place",
            )


def refuse_inside(path: str, files: Files) -> None:
    """Raises IllegalArgumentException if `path` is missing and inside a broker's directory, or a partition of one.

    The broker does not start with another directory in it.
    """
    above = os.path.abspath(path)
    if files.exists(above):
        return
    above = files.nearest_dir(above)
    for each in (above, parent_dir(above)):
        if is_of_cluster(each, files):
            raise IllegalArgumentException(
                f"found that {each} is the directory of a Kafka broker, expected a place outside of it: the broker "
                "does not start with another directory in it",
                path=path,
                hint="nothing was created; name a directory elsewhere",
            )


def sign_of_log_dir(path: str, files: Files) -> str | None:
    """Returns a name in `path` that proves that it is a log directory, a broker's or kafkalog's; None if none does."""
    try:
        return next((name for name in sorted(files.names_in(path)) if _shows_log_dir(path, name, files)), None)
    except OSError:
        return None


def is_foreign_partition(folder: str, files: Files) -> bool:
    """Returns whether a directory is named like a partition's, is not empty, and holds no file of a partition.

    It belongs to another program, and is never touched.
    """
    if not _is_named_like_partition(folder):
        return False
    try:
        inside = files.names_in(folder)
    except OSError:  # not a directory, or an unreadable one
        return False
    return bool(inside) and not any(map(names.is_partitions_file, inside))


def refuse_foreign_partition(folder: str, files: Files) -> None:
    """Raises IllegalArgumentException if `is_foreign_partition` holds."""
    if is_foreign_partition(folder, files):
        some = ", ".join(files.list_dir(folder)[:3])
        raise IllegalArgumentException(
            f"found {some}, expected a partition's files (00000000000000000000.log ...) or an empty directory",
            path=folder,
            hint="it belongs to another program: nothing was changed; name another partition, or another log directory",
        )


def _is_ours(name: str) -> bool:
    """Returns whether a name proves nothing: a file system's entry, `.lock` (not only Kafka's), a staged file."""
    return name in _NOT_FOREIGN or name == names.LOCK_FILE or name.startswith(names.STAGED_FILE_PREFIX)


def _is_named_like_partition(folder: str) -> bool:
    """Decides by path or name alone; also True for `-delete`, `-future` and `-stray` directories."""
    try:
        names.parse_topic_partition_name(folder)
    except KafkaException:
        return False
    return True


def _shows_log_dir(root: str, name: str, files: Files) -> bool:
    """Returns whether only Kafka or this package creates such a file or directory."""
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
