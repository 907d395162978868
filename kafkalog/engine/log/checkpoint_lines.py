"""CheckpointLines: a log directory's offset checkpoints and clean-shutdown marker, for readers outside the log.

A file is read again, but parsed only if it is new. A checkpoint that is missing or cannot be read has no lines, as for
a broker at start; `told` says which of the two it is. One object may serve the views of a whole directory (otherwise
each would parse the lines of all partitions), or keep the lines of one partition. Needs no lock: an entry is replaced
as a whole.
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

KEEPS_MS = 10  # for a caller that reads many partitions
RESTS_MS = 50  # a file system's timestamps may be some milliseconds coarse
COARSE_RESTS_MS = 2050  # whole seconds suggest a file system with a resolution of one or two seconds
RECENT_MOST = len(names.OFFSET_CHECKPOINT_FILES)


def had_rested(mtime_ms: int, seen_ms: int) -> bool:
    """Returns whether a file with this time, read at `seen_ms`, gets another time if it changes again."""
    return seen_ms - mtime_ms > (RESTS_MS if mtime_ms % 1000 else COARSE_RESTS_MS)


class Told(NamedTuple):
    """A partition's offset in a checkpoint; None if there is none.

    `problem`: why the file cannot be read. `is_blank`: it has no entries at all, because it was emptied or a broker has
    only created it.
    """

    offset: int | None = None
    problem: KafkalogError | None = None
    is_blank: bool = False

    def sure_watermark(self, left: str) -> int | None:
        """Returns the high watermark, for a caller that removes data below it.

        Returns None without a line, as with one replica. Raises CorruptCheckpointException or KafkaStorageException if
        the file exists and cannot be read. `left` says in the hint what is not done.
        """
        problem = self.problem
        if isinstance(problem, BadBytesError):
            raise CorruptCheckpointException(
                f"found {problem.message}, expected high watermarks",
                path=problem.path,
                position=problem.position,
                hint=f"it is unknown which records all replicas have, so {left}; {problem.hint}",
            )
        if problem is not None:
            raise problem
        return self.offset


class _Parsed(NamedTuple):
    """A checkpoint as it was read.

    `had_rested`: it was not written just before, so another content has another `stat`.
    """

    stat: FileStat
    data: bytes
    is_blank: bool
    entries: Mapping[TopicPartition, int]
    had_rested: bool

    def is_still(self, stat: FileStat) -> bool:
        """Returns whether a file of that `stat` has the same content."""
        return self.had_rested and stat.inode != 0 and self.stat == stat


# The last few parsed checkpoints, by owner. A caller that opens many partitions, each with its CheckpointLines, thus
# parses the lines of all partitions once. Replaced whole.
_recent: tuple[tuple[Files, str, _Parsed], ...] = ()


def _parsed(path: str, files: Files, stat: FileStat, before: _Parsed | None) -> _Parsed:
    """Returns the checkpoint that has this `stat`; `before` is what was read last."""
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
    """The checkpoints of `log_dir`. `only` keeps that partition's lines and forgets the others.

    `keeps_ms`: how long a result is used again without checking the file, for a caller that reads one partition after
    the other. It matters that the checkpoint is read before the partition, not how long before. A view that finds
    damage because of it calls `forget` and reads again.
    """

    def __init__(
        self, log_dir: str, files: Files = OS_FILES, *, only: TopicPartition | None = None, keeps_ms: int = 0
    ) -> None:
        self.keeps_ms = keeps_ms
        self._kept: dict[str, tuple[float, Told | _Parsed]] = {}  # by name, with the time until which it is used
        self._clean_shutdown = CleanShutdownFile(log_dir, files)
        self._kept_clean: tuple[float, bool] = (0.0, False)
        self._paths = {name: os.path.join(log_dir, name) for name in names.OFFSET_CHECKPOINT_FILES}
        self._files = files
        self._only = only
        self._parsed: dict[str, _Parsed] = {}  # by name

    def line(self, name: str, partition: TopicPartition) -> int | None:
        """Returns the partition's current offset in the checkpoint of that name; None if there is none."""
        return self.told(name, partition).offset

    def told(self, name: str, partition: TopicPartition) -> Told:
        """Returns the same as `line`, and the problem of a checkpoint that exists but cannot be read."""
        path = self._paths[name]
        if self.keeps_ms:
            until, kept = self._kept.get(name, _NEVER)
            if time.monotonic() < until:
                return kept if isinstance(kept, Told) else Told(kept.entries.get(partition), is_blank=kept.is_blank)
        try:
            stat = self._files.stat(path)  # before reading: a write in between is read again next time
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
        """Returns whether the directory has the marker of a clean shutdown, or had it at the last check."""
        until, was_clean = self._kept_clean
        return was_clean if self.keeps_ms and time.monotonic() < until else self.is_closed_cleanly()

    def is_closed_cleanly(self) -> bool:
        """Returns whether it has the marker now."""
        is_clean = self._clean_shutdown.exists()
        if self.keeps_ms:
            self._kept_clean = (time.monotonic() + self.keeps_ms / 1000, is_clean)
        return is_clean

    def forget(self) -> bool:
        """Forgets all results. Returns whether there may have been any."""
        self._kept, self._kept_clean = {}, (0.0, False)
        return self.keeps_ms > 0
