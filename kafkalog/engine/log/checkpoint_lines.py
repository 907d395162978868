"""What a log directory's offset checkpoints and its clean-shutdown marker say, for those who look at it from outside:
read again, parsed only if new.

One that is absent or cannot be read has no lines, as for a broker at start; `told` says which it is.  One object may
serve the views of a whole directory (each would parse the lines of all partitions else), or keep the lines of one
partition alone.  Needs no lock: an entry is replaced whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Files, FileStat
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import BadBytesError, CorruptCheckpointException, KafkalogError, KafkaStorageException

KEEPS_MS = 10  # for who looks at many partitions
RESTS_MS = 50  # a file system's times may be some milliseconds coarse
COARSE_RESTS_MS = 2050  # whole seconds are those of one that has no finer times, or but each other second
RECENT_MOST = len(names.OFFSET_CHECKPOINT_FILES)


def had_rested(mtime_ms: int, seen_ms: int) -> bool:
    """Whether what has this time, and was looked at then, gets another one if it changes again."""
    return seen_ms - mtime_ms > (RESTS_MS if mtime_ms % 1000 else COARSE_RESTS_MS)


class Told(NamedTuple):
    """A partition's offset in a checkpoint; None without one.  `problem`: why the file cannot be read; `is_blank`: it
    has no entries at all, as one that was emptied, or that a broker only made so far."""

    offset: int | None = None
    problem: KafkalogError | None = None
    is_blank: bool = False

    def sure_watermark(self, left: str) -> int | None:
        """The high watermark, for who takes something away below it; None without a line, as in a log of one replica.

        CorruptCheckpointException, KafkaStorageException where the file is there and cannot be read; `left` says in
        their hint what is not done.
        """
        problem = self.problem
        if isinstance(problem, BadBytesError):
            raise CorruptCheckpointException(
                f"found {problem.message}, expected high watermarks",
                path=problem.path,
                position=problem.position,
                hint=f"which records all replicas have is not known, so {left}; {problem.hint}",
            )
        if problem is not None:
            raise problem
        return self.offset


class _Parsed(NamedTuple):
    """A checkpoint as it was read.  `had_rested`: nobody wrote to it just before, so that another content has another
    `stat`."""

    stat: FileStat
    data: bytes
    is_blank: bool
    entries: Mapping[TopicPartition, int]
    had_rested: bool

    def is_still(self, stat: FileStat) -> bool:
        """Whether a file of that `stat` says the same."""
        return self.had_rested and stat.inode != 0 and self.stat == stat


# The last few that were parsed, by whom they belong to: who opens one partition after the other, each with lines of its
# own, parses those of all partitions once.  Replaced whole.
_recent: tuple[tuple[Files, str, _Parsed], ...] = ()


def _parsed(path: str, files: Files, stat: FileStat, before: _Parsed | None) -> _Parsed:
    """The checkpoint that has this `stat`, and had `before`."""
    global _recent
    known = next((each for whose, at, each in _recent if whose is files and at == path), None)
    if known is not None and known.is_still(stat):
        return known
    rested = had_rested(stat.mtime_ms, SYSTEM_CLOCK.milliseconds())
    data = read_small(path, files)
    if before is not None and before.data == data:
        return before._replace(stat=stat, had_rested=rested)
    if known is not None and known.data == data:
        found = known._replace(stat=stat, had_rested=rested)
    else:
        entries = OffsetCheckpointFile(path, files, create=False).decode(data)
        found = _Parsed(stat, data, len(data.split(None, 2)) < 2, dict(entries), rested)
    others = [each for each in _recent if each[0] is not files or each[1] != path]
    _recent = ((files, path, found), *others[: RECENT_MOST - 1])
    return found


_NEVER: tuple[float, Told | _Parsed] = (0.0, Told())


class CheckpointLines:
    """The checkpoints of `log_dir`; `only` keeps that partition's lines and forgets the others'.

    `keeps_ms`: for so long what was read is not asked for again, for who looks at one partition after the other: to
    look before a partition is looked at is what counts, not how long before.  A view that finds damage by it forgets it
    and looks again."""

    def __init__(
        self, log_dir: str, files: Files = OS_FILES, *, only: TopicPartition | None = None, keeps_ms: int = 0
    ) -> None:
        self.keeps_ms = keeps_ms
        self._kept: dict[str, tuple[float, Told | _Parsed]] = {}  # by name, and until when
        self._clean_shutdown = CleanShutdownFile(log_dir, files)
        self._kept_clean: tuple[float, bool] = (0.0, False)
        self._paths = {name: os.path.join(log_dir, name) for name in names.OFFSET_CHECKPOINT_FILES}
        self._files = files
        self._only = only
        self._parsed: dict[str, _Parsed] = {}  # by name

    def line(self, name: str, partition: TopicPartition) -> int | None:
        """The partition's offset in the checkpoint of that name, now; None without one."""
        return self.told(name, partition).offset

    def told(self, name: str, partition: TopicPartition) -> Told:
        """As `line`, and what is wrong with a checkpoint that is there."""
        path = self._paths[name]
        if self.keeps_ms:
            until, kept = self._kept.get(name, _NEVER)
            if time.monotonic() < until:
                return kept if isinstance(kept, Told) else Told(kept.entries.get(partition), is_blank=kept.is_blank)
        try:
            stat = self._files.stat(path)  # before it is read: what is written meanwhile is read again
            found = self._parsed.get(name)
            if found is None or not found.is_still(stat):
                found = _parsed(path, self._files, stat, found)
                if self._only is not None:
                    mine = {key: offset for key in (self._only,) if (offset := found.entries.get(key)) is not None}
                    found = found._replace(entries=mine)
                self._parsed[name] = found
        except FileNotFoundError:
            self._keep(name, Told())
            return Told()
        except BadBytesError as error:
            error.path = error.path or path
            return Told(problem=error)
        except ValueError as error:
            return Told(problem=CorruptCheckpointException(str(error), path=path))
        except OSError as error:
            return Told(problem=KafkaStorageException.because_of(error, "cannot read the checkpoint"))
        self._keep(name, found)
        return Told(found.entries.get(partition), is_blank=found.is_blank)

    def _keep(self, name: str, found: Told | _Parsed) -> None:
        if self.keeps_ms:
            self._kept[name] = (time.monotonic() + self.keeps_ms / 1000, found)

    def was_closed_cleanly(self) -> bool:
        """Whether the directory has the marker of a clean shutdown, or had it when it was last asked for."""
        until, was_clean = self._kept_clean
        return was_clean if self.keeps_ms and time.monotonic() < until else self.is_closed_cleanly()

    def is_closed_cleanly(self) -> bool:
        """Whether it has the marker now."""
        is_clean = self._clean_shutdown.exists()
        if self.keeps_ms:
            self._kept_clean = (time.monotonic() + self.keeps_ms / 1000, is_clean)
        return is_clean

    def forget(self) -> bool:
        """Asks for all of it anew; whether something may have been kept."""
        self._kept, self._kept_clean = {}, (0.0, False)
        return self.keeps_ms > 0
