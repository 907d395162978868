"""Checks the directory and the partitions that a caller of `backup` or `restore` names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from kafkalog.engine.files import Files, local_path, parent_dir
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import sign_of_log_dir
from kafkalog.errors import IllegalArgumentException, InvalidTopicException
from kafkalog.toolbox.backup_manifest import PARTIAL_SUFFIX

__all__ = [
    "is_wanted",
    "made_whole",
    "named",
    "partial_path",
    "refuse_in_log_dir",
    "refuse_one_in_other",
    "target_path",
]

_HINT = 'such as ["orders-0"], or [("orders", 0)]'


def target_path(given: str | os.PathLike[str], what: str, files: Files) -> str:
    """Returns the absolute path of a directory that is to be created.
    Raises IllegalArgumentException for a symbolic link, for a mount point (a directory cannot replace it), and for a
    name with the suffix of unfinished copies."""
    path = os.path.abspath(local_path(given, what=what, files=files))
    if path.endswith(PARTIAL_SUFFIX):
        raise IllegalArgumentException(
            f"{what} ends in {PARTIAL_SUFFIX}; expected another name: unfinished copies have this suffix, and "
            "the next copy removes them",
            path=path,
            hint=f"name {path.removesuffix(PARTIAL_SUFFIX)}",
        )
    if os.path.ismount(path) and files.exists(path):
        raise IllegalArgumentException(
            f"{what} is a mount point; expected a new directory: the copy is made next to it and then renamed",
            path=path,
            hint=f"name a directory on it, such as {os.path.join(path, 'kafka-logs')}",
        )
    if files.is_link(path):
        raise IllegalArgumentException(
            f"{what} is a symbolic link; expected a directory that is new or empty",
            path=path,
            hint=f"name the directory itself, such as {os.path.realpath(path)}, or remove the link",
        )
    return path


def refuse_one_in_other(source: str, target: str) -> None:
    """Raises IllegalArgumentException if one path is inside the other: the copy would be a part of the source."""
    places = [os.path.realpath(path) for path in (source, target)]
    above = os.path.commonpath(places)
    if above in places:
        where = "inside" if above == places[0] else "above"
        where = "the same directory as" if places[0] == places[1] else where
        raise IllegalArgumentException(
            f"the target is {where} the source {source}; expected a directory outside of it", path=target
        )


def partial_path(target: str, sources: Iterable[str], files: Files) -> str:
    """Returns the directory in which a copy is made before it is renamed to `target`.  Anything that an earlier copy
    left there is removed first.
    Raises IllegalArgumentException if it is, is in, or contains one of the directories that are read, or if a process
    has or had it open as a log directory."""
    path = target + PARTIAL_SUFFIX
    for source in sources:
        refuse_one_in_other(source, path)
    if files.exists(os.path.join(path, names.LOCK_FILE)):
        raise IllegalArgumentException(
            "a log directory with a lock file is there; expected nothing, or an unfinished copy",
            path=path,
            hint=f"a copy to {target} is first made there: move the log directory away, or name another target",
        )
    return path


@contextmanager
def made_whole(target: str, partial: str, check: Callable[[], None], files: Files) -> Iterator[None]:
    """Renames what is made in `partial` meanwhile to `target` in one step; removes it all if that fails.

    `check` refuses the target; it is called again under the lock.  Raises LogDirLockedException if another process
    makes a copy there.  Leftovers of a killed process are removed first."""
    files.mkdirs_synced(parent_dir(target))
    with files.lock(f"{partial}.lock"):
        check()
        files.remove_tree(partial)
        try:
            yield
            if files.exists(target):
                files.rmdir(target)  # it was empty
            files.rename(partial, target)
        except BaseException:
            with suppress(OSError):
                files.remove_tree(partial)
            raise
        files.sync_dir(parent_dir(target))


def refuse_in_log_dir(path: str, files: Files) -> None:
    """Raises IllegalArgumentException if `path` is inside a log directory or a partition's directory, open or not."""
    above = os.path.realpath(files.nearest_dir(parent_dir(path)))
    for each in (above, parent_dir(above)):
        sign = sign_of_log_dir(each, files)
        if sign is not None:
            instead = os.path.join(os.path.dirname(each), "backups", os.path.basename(path))
            raise IllegalArgumentException(
                f"{each} has {sign}, so it is a log directory; expected a path outside of log directories",
                path=path,
                hint=f"nothing was created; name another directory, such as {instead}; if it is not a log directory, "
                f"move {sign} out of it",
            )


def named(partitions: Collection[TopicPartition | str] | None) -> set[str] | None:
    """Returns the names of the partitions that a caller wants; None for all.
    A single name is accepted as such.  Raises IllegalArgumentException for an empty collection, and for other values.
    """
    if partitions is None:
        return None
    try:
        listed = [partitions] if isinstance(partitions, str | TopicPartition) else list(partitions)
        found = {each if isinstance(each, str) else str(names.partition_of(each)) for each in listed}
    except (TypeError, InvalidTopicException):
        raise IllegalArgumentException(
            f"partitions is {partitions!r}; expected names of partitions, or pairs of a topic and a number",
            hint=_HINT,
        ) from None
    if not found:
        raise IllegalArgumentException("partitions is empty; expected one or more, or None for all", hint=_HINT)
    return found


def is_wanted(partition: TopicPartition, wanted: Collection[str] | None) -> bool:
    """Returns whether a partition is copied if these are named.  Partitions of `__transaction_state` always are:
    without them nothing would end the transactions that are open in the copy."""
    return wanted is None or str(partition) in wanted or partition.topic == names.TRANSACTION_STATE_TOPIC


def __dir__() -> list[str]:
    return __all__
