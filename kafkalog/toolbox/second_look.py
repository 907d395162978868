"""Looks at files that somebody may be changing: what seems wrong is looked at again, and counts only if it stays.

A command that takes no lock may meet half of a write, or a file that has gone since it was listed.  That is no damage.
Something wrong counts if nothing changed during the look, or if two looks in a row find the same in files that stayed
as they were.  Whoever cannot tell in some looks says so: BeingWrittenException.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

from kafkalog.engine.files import OS_FILES, Files, FileStat
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import BeingWrittenException, KafkalogError, UnknownTopicOrPartitionException

LOOKS_MAX = 10
REST_S = 0.05  # longer before each look

T = TypeVar("T")
Stats = Mapping[str, FileStat]


class Wrong(NamedTuple):
    """Something wrong that a look found: in which file (empty: not known), where, and what."""

    path: str
    position: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.path}{'' if self.position is None else f' at byte {self.position}'}: {self.what}"

    @classmethod
    def of(cls, error: BaseException) -> Wrong:
        """What an error says."""
        path = getattr(error, "path", None) or getattr(error, "filename", None) or ""
        return cls(os.fsdecode(path), getattr(error, "position", None), type(error).__name__)


def may_pass(error: BaseException) -> bool:
    """Whether an error may come of somebody who writes: a full disk, or what we may not read, does not."""
    return getattr(error, "errno", None) in (None, errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def look_while_it_rests(
    log_dir: str,
    partition: TopicPartition,
    look: Callable[[], T],
    wrong: Callable[[T], Iterable[Wrong]],
    *,
    is_settled: Callable[[Stats, Stats], bool] = lambda before, after: True,
    costs_little: bool = False,
    files: Files = OS_FILES,
) -> T:
    """What a look at a partition finds, once it is sure.  `wrong` names what seems wrong in an answer; one without is
    taken if `is_settled` (the files before, and behind the look).  `costs_little`: a look costs less than to ask how
    the partition's files are; so there is one more, and if it finds nothing wrong its answer is taken.

    BeingWrittenException if each of LOOKS_MAX looks found something else; UnknownTopicOrPartitionException if the
    folder went away meanwhile; what `look` raises if that counts.
    """
    folder = os.path.join(log_dir, str(partition))
    last: frozenset[Wrong] = frozenset()
    if costs_little:
        with suppress(KafkalogError, OSError):
            result = look()
            if not any(True for _ in wrong(result)):
                return result
    for number in range(LOOKS_MAX):
        if number:
            time.sleep(REST_S * number)
        before = _seen(log_dir, partition, files)
        error: Exception | None = None
        try:
            result = look()
            found = frozenset(wrong(result))
        except (KafkalogError, OSError) as raised:
            if not may_pass(raised):
                raise
            error, found = raised, frozenset((Wrong.of(raised),))
        after = _seen(log_dir, partition, files)
        if not found and is_settled(before, after):
            return result
        if not files.is_dir(folder):
            raise UnknownTopicOrPartitionException(
                f"{partition} was deleted, or moved, while it was looked at", path=folder
            ) from error
        steady = frozenset(each for each in found if _is_steady(each.path, before, after))
        if before == after or (found and found == steady == last):
            if error is not None:
                raise error
            return result
        last = found
    stays = f"; {'; '.join(map(str, sorted(steady & last, key=str)))}" if steady else ""
    raise BeingWrittenException(
        f"{partition} is being written: somebody changed it at each of {LOOKS_MAX} looks{stays}",
        path=folder,
        hint="a broker, or another program, has it open: ask again, or when that has ended",
    )


def _seen(log_dir: str, partition: TopicPartition, files: Files) -> dict[str, FileStat]:
    """The files that a look goes by: the partition's, and those of the log directory that tell of all partitions."""
    folder = os.path.join(log_dir, str(partition))
    paths = [os.path.join(log_dir, name) for name in sorted(names.LOG_DIR_FILES)]
    with suppress(OSError):
        paths += [os.path.join(folder, name) for name in files.list_files(folder)]
    seen = {}
    for path in paths:
        with suppress(OSError):
            seen[path] = files.stat(path)
    return seen


def _is_steady(path: str, before: Stats, after: Stats) -> bool:
    """Whether a file, and what lies beside it of the same segment, is there and stayed as it was."""
    stem = os.path.splitext(path)[0] + "."

    def of_it(seen: Stats) -> dict[str, FileStat]:
        return {each: stat for each, stat in seen.items() if each == path or each.startswith(stem)}

    return bool(of_it(before)) and of_it(before) == of_it(after)
