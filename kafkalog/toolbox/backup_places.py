"""What a caller of `backup` and `restore` names: the folder that is to be made, and the partitions."""

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
    """The absolute path of a folder that is to be made.  IllegalArgumentException where a symbolic link is in its
    place, or a mount point, which a folder cannot replace, and for the name of what is half made."""
    path = os.path.abspath(local_path(given, what=what, files=files))
    if path.endswith(PARTIAL_SUFFIX):
        raise IllegalArgumentException(
            f"{what}: found a name that ends in {PARTIAL_SUFFIX}, expected another: what is half made is named so, and "
            "is removed by the next one",
            path=path,
            hint=f"name {path.removesuffix(PARTIAL_SUFFIX)}",
        )
    if os.path.ismount(path) and files.exists(path):
        raise IllegalArgumentException(
            f"{what}: found a mount point, expected a folder that is new: the copy is made beside it, and renamed",
            path=path,
            hint=f"name a folder on it, such as {os.path.join(path, 'kafka-logs')}",
        )
    if files.is_link(path):
        raise IllegalArgumentException(
            f"{what}: found a symbolic link, expected a folder that is new or empty",
            path=path,
            hint=f"name the folder that is meant, such as {os.path.realpath(path)}, or remove the link",
        )
    return path


def refuse_one_in_other(source: str, target: str) -> None:
    """The source is only read; a copy inside it would be a part of it."""
    places = [os.path.realpath(path) for path in (source, target)]
    above = os.path.commonpath(places)
    if above in places:
        where = "a folder inside" if above == places[0] else "a folder above"
        where = "the folder of" if places[0] == places[1] else where
        raise IllegalArgumentException(f"found {where} the source {source}, expected one beside it", path=target)


def partial_path(target: str, sources: Iterable[str], files: Files) -> str:
    """The folder in which a copy is made before it gets the name `target`, and which is removed first: what an earlier
    one left.  IllegalArgumentException if it is, or lies in or around, one of the folders that are read, or somebody
    has it open."""
    path = target + PARTIAL_SUFFIX
    for source in sources:
        refuse_one_in_other(source, path)
    if files.exists(os.path.join(path, names.LOCK_FILE)):
        raise IllegalArgumentException(
            "found a log directory that somebody has open, or had, expected nothing, or what an earlier copy left",
            path=path,
            hint=f"a copy to {target} is made there first: move it away, or name another folder",
        )
    return path


@contextmanager
def made_whole(target: str, partial: str, check: Callable[[], None], files: Files) -> Iterator[None]:
    """What is made in `partial` meanwhile gets the name `target` in one step; of what fails nothing is left.

    `check` refuses the target; it is asked again once nobody else makes a copy there.  LogDirLockedException where
    somebody does.  What a killed one left is removed first."""
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
    """IllegalArgumentException if `path` is inside of a log directory, or of a partition's folder, open or not."""
    above = os.path.realpath(files.nearest_dir(parent_dir(path)))
    for each in (above, parent_dir(above)):
        sign = sign_of_log_dir(each, files)
        if sign is not None:
            instead = os.path.join(os.path.dirname(each), "backups", os.path.basename(path))
            raise IllegalArgumentException(
                f"found {sign} in {each}, which makes that a log directory, expected a place outside of one",
                path=path,
                hint=f"nothing was made; name a folder elsewhere, such as {instead}; if {each} is no log directory, "
                f"move {sign} out of it",
            )


def named(partitions: Collection[TopicPartition | str] | None) -> set[str] | None:
    """The names of the partitions that a caller wants; None for all.  One name by itself is that one.
    IllegalArgumentException for none, and for what names no partition."""
    if partitions is None:
        return None
    try:
        listed = [partitions] if isinstance(partitions, str | TopicPartition) else list(partitions)
        found = {each if isinstance(each, str) else str(names.partition_of(each)) for each in listed}
    except (TypeError, InvalidTopicException):
        raise IllegalArgumentException(
            f"partitions: found {partitions!r}, expected partitions' names, or pairs of a topic and a number",
            hint=_HINT,
        ) from None
    if not found:
        raise IllegalArgumentException("partitions: found none, expected one or more; None takes all", hint=_HINT)
    return found


def is_wanted(partition: TopicPartition, wanted: Collection[str] | None) -> bool:
    """Whether a partition is copied where these are named.  Those of `__transaction_state` always are: without them
    nobody would end the transactions that are open in the copy."""
    return wanted is None or str(partition) in wanted or partition.topic == names.TRANSACTION_STATE_TOPIC


def __dir__() -> list[str]:
    return __all__
