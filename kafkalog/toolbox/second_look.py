"""Reads files that another process may be changing: what seems wrong is read again, and counts only if it stays.

A command that takes no lock may see half of a write, or a file that was deleted since it was listed.  That is no
damage.  Something wrong counts if nothing changed during the attempt, or if two attempts in a row find the same in
files that did not change.  If this cannot be decided in a few attempts, BeingWrittenException is raised.
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
REST_S = 0.05  # the pause before each attempt grows by this

T = TypeVar("T")
Stats = Mapping[str, FileStat]


class Wrong(NamedTuple):
    """Something wrong that an attempt found: in which file (empty: unknown), where, and what."""

    path: str
    position: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.path}{'' if self.position is None else f' at byte {self.position}'}: {self.what}"

    @classmethod
    def of(cls, error: BaseException) -> Wrong:
        """Returns what an error says."""
        path = getattr(error, "path", None) or getattr(error, "filename", None) or ""
        return cls(os.fsdecode(path), getattr(error, "position", None), type(error).__name__)


def may_pass(error: BaseException) -> bool:
    """Returns whether a writing process may have caused an error; not so for a full disk or a missing permission."""
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
    """Calls `look` on a partition until its answer is certain, and returns it.

    `wrong` returns what seems wrong in an answer.  An answer without anything wrong is accepted if `is_settled(before,
    after)` is true for the files before and after the attempt.  With `costs_little`, an attempt costs less than
    checking the partition's files.  So there is one more at first, and if it finds nothing wrong, its answer is
    accepted.

    Raises BeingWrittenException if each of LOOKS_MAX attempts found something else, UnknownTopicOrPartitionException if
    the partition was deleted meanwhile, and the errors of `look` that count."""
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
                f"{partition} was deleted or moved while it was read", path=folder
            ) from error
        steady = frozenset(each for each in found if _is_steady(each.path, before, after))
        if before == after or (found and found == steady == last):
            if error is not None:
                raise error
            return result
        last = found
    stays = f"; {'; '.join(map(str, sorted(steady & last, key=str)))}" if steady else ""
    raise BeingWrittenException(
        f"{partition} is being written: it changed during each of {LOOKS_MAX} attempts{stays}",
        path=folder,
        hint="a broker or another program has it open: try again, or stop that program first",
    )


def _seen(log_dir: str, partition: TopicPartition, files: Files) -> dict[str, FileStat]:
    """Returns the files that matter for an attempt: the partition's, and those of the log directory about all
    partitions."""
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
    """Returns whether a file, and the other files of the same segment, exist and did not change."""
    stem = os.path.splitext(path)[0] + "."

    def of_it(seen: Stats) -> dict[str, FileStat]:
        return {each: stat for each, stat in seen.items() if each == path or each.startswith(stem)}

    return bool(of_it(before)) and of_it(before) == of_it(after)
