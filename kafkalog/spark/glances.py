"""Tells which partitions of a stream may have changed since its last look, with one native call a directory.

`remember` keeps the times, size and inode of each partition's directory and of its last segment's file.  If these are
the same at the next look, the partition is unchanged.  An append makes the file longer, or newer if it was
preallocated.  A new segment, retention, compaction and a recreated topic change the directory.  Files that are copied
back with their times still have another ctime.

A row counts only if its times were `RESTS_MS` old when the last look began, since a file system's clock is coarse; for
whole-second times the age is longer.  A partition is checked again if its view cannot vouch for the row: if there is
room after the last batch, or if files changed during the look.

A look as a whole depends on three more things, which are kept too.  They are the names in the log directory that may be
partitions, the files that say which topics exist, and the checkpoint of log start offsets.  If one of the first two
changes, everything is checked; in the checkpoint, only changed lines count.  Object stores, tiers and mounts have no
such call.  Does not depend on pyspark; not thread-safe.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkalog.engine.files import Files
from kafkalog.engine.files.api import GLANCE_FIELDS
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import folders_in
from kafkalog.engine.log.checkpoint_lines import COARSE_RESTS_MS, RESTS_MS, CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.spark.places import files_of

Rows = NDArray[np.int64]  # one row a path, with the columns GLANCE_FIELDS
MTIME_NS, SIZE, INODE, MODE = (GLANCE_FIELDS.index(name) for name in ("mtime_ns", "size", "inode", "mode"))
TIMES = [MTIME_NS, GLANCE_FIELDS.index("ctime_ns")]
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
KEEPS_MS = 10_000  # for the log start offsets, which are read once for all partitions
ROOT, LOG_STARTS = ".", names.LOG_START_OFFSET_CHECKPOINT_FILE
# Files that say which topics exist, and whether a broker has the directory.
SETTINGS = (names.TOPIC_CONFIGS_FILE, names.META_PROPERTIES_FILE)
_LIKE_A_PARTITION = re.compile(r"-[+-]?\d+$")


class Watched(NamedTuple):
    """Names in a directory, their rows, and which of the rows do not count."""

    names: tuple[str, ...]
    joined: bytes
    rows: Rows
    doubtful: NDArray[np.bool_]


class Directory(NamedTuple):
    """A log directory at one look.

    `listed` are the names in it that may be partitions.  `around` is watched in addition to its partitions: the
    directory and its log start offsets come first.  `inside` has two rows for each of `partitions`: its directory and
    its last segment.
    """

    path: str
    listed: frozenset[str]
    around: Watched
    partitions: tuple[TopicPartition, ...] = ()
    inside: Watched | None = None


class Glances:
    """Keeps the rows for `FollowedPartitions`, which calls `changed` first.

    If `changed` returns None, it calls `begin`, looks at everything and calls `remember`.  Otherwise it calls
    `remember_again` for the partitions that it checked.  Without that call, as after an error, everything is checked.
    """

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._begun: list[Directory] | None = None
        self._begun_ns = 0
        self._kept: list[Directory] | None = None

    # --- finding changes -----------------------------------------------------------------------------

    def changed(self, views: Mapping[TopicPartition, PartitionView]) -> dict[TopicPartition, bool] | None:
        """Returns the partitions that may have changed since they were remembered, and whether their directories may
        have.

        Returns None if partitions may have been added or deleted, or if the rows cannot tell.
        """
        kept, self._kept = self._kept, None
        self._begun = None
        self._begun_ns = time.time_ns()
        if kept is None:
            return None
        found: dict[TopicPartition, bool] = {}
        now = []
        for directory in kept:
            assert directory.inside is not None
            rows = _rows(files_of(directory.path), directory.path, directory.around.joined + directory.inside.joined)
            if rows is None:
                return None
            around, inside = np.split(rows, [len(directory.around.names)])
            same = self._same_around(directory, around)
            if same is None:
                return None
            now.append(same)
            if _may_differ(directory.around, around)[1]:
                found |= dict.fromkeys(_other_starts(directory.path, directory.partitions, views), False)
            differ = _may_differ(directory.inside, inside).reshape(-1, 2)
            for place in np.flatnonzero(differ.any(axis=1)).tolist():
                partition = directory.partitions[place]
                is_folder = bool(differ[place, 0])
                if is_folder and not _is_partition(directory.path, partition):
                    return None
                found[partition] = is_folder
        self._begun = now
        return found

    def _same_around(self, directory: Directory, rows: Rows) -> Directory | None:
        """Returns the directory with new rows around its partitions; None if they have changed."""
        differ = _may_differ(directory.around, rows)
        if differ[2:].any():
            return None
        if differ[0] and _listed(files_of(directory.path), directory.path) != directory.listed:
            return None
        return directory._replace(around=self._watched(directory.around, rows))

    def remember_again(
        self, partitions: Iterable[TopicPartition], views: Mapping[TopicPartition, PartitionView]
    ) -> None:
        """Keeps the result of `changed`, and new rows for the partitions that were checked since."""
        chosen = set(partitions)
        kept = []
        for directory in self._begun or ():
            places = [place for place, each in enumerate(directory.partitions) if each in chosen] if chosen else []
            now = self._looked_at(directory, places, views) if places else directory
            if now is None:
                return
            kept.append(now)
        self._kept = kept

    def _looked_at(
        self, directory: Directory, places: Sequence[int], views: Mapping[TopicPartition, PartitionView]
    ) -> Directory | None:
        before = directory.inside
        assert before is not None
        some = self._inside(directory.path, [views[directory.partitions[place]] for place in places])
        if some is None:
            return None
        at = np.array(places)
        rows, doubtful = before.rows.copy(), before.doubtful.copy()
        rows.reshape(-1, 2, len(GLANCE_FIELDS))[at] = some.rows.reshape(-1, 2, len(GLANCE_FIELDS))
        doubtful.reshape(-1, 2)[at] = some.doubtful.reshape(-1, 2)
        inside = before._replace(rows=rows, doubtful=doubtful)
        if any(some.names[2 * n + 1] != before.names[2 * place + 1] for n, place in enumerate(places)):
            listed = list(before.names)
            for n, place in enumerate(places):
                listed[2 * place + 1] = some.names[2 * n + 1]
            inside = inside._replace(names=tuple(listed), joined=_joined(listed))
        return directory._replace(inside=inside)

    # --- checking everything -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a look at everything: reads the rows that it depends on before it starts."""
        self._begun, self._begun_ns = None, time.time_ns()
        found = []
        for path in self._log_dirs:
            files = files_of(path)
            try:
                listed = _listed(files, path)
                watched = [ROOT, LOG_STARTS, *SETTINGS, *_metadata_files(files, path, listed)]
            except OSError:
                return  # the look itself reports the error
            rows = _rows(files, path, _joined(watched))
            if rows is None:
                return
            blank = Watched(tuple(watched), _joined(watched), rows, np.zeros(len(watched), np.bool_))
            found.append(Directory(path, listed, self._watched(blank, rows)))
        self._begun = found

    def remember(self, views: Mapping[TopicPartition, PartitionView]) -> None:
        """Keeps new rows after everything was checked since `begin`."""
        if self._begun is None or any(type(view) is not PartitionView for view in views.values()):
            return
        kept = []
        for directory in self._begun:
            files = files_of(directory.path)
            partitions = tuple(each for each, view in views.items() if view.log_dir == directory.path)
            inside = self._inside(directory.path, [views[each] for each in partitions])
            others = _others(files, directory, partitions)
            watched = _rows(files, directory.path, _joined(others))
            if inside is None or watched is None:
                return
            around = directory.around
            listed = (*around.names, *others)
            rows = np.concatenate([around.rows, watched])
            # A file that is watched from now on must have been like this before the look began.
            is_new = self._is_new(watched) | (watched[:, MODE] == 0)
            around = Watched(listed, _joined(listed), rows, np.concatenate([around.doubtful, is_new]))
            kept.append(directory._replace(around=around, partitions=partitions, inside=inside))
        self._kept = kept

    # --- rows ------------------------------------------------------------------------------------------

    def _watched(self, watched: Watched, rows: Rows) -> Watched:
        """Returns a copy with other rows, read when the look began."""
        return watched._replace(rows=rows, doubtful=self._is_new(rows))

    def _is_new(self, rows: Rows) -> NDArray[np.bool_]:
        rests_ms = np.where(rows[:, MTIME_NS] % NS_PER_S, RESTS_MS, COARSE_RESTS_MS)
        found: NDArray[np.bool_] = rows[:, TIMES].max(axis=1, initial=0) > self._begun_ns - rests_ms * NS_PER_MS
        return found

    def _inside(self, log_dir: str, views: Sequence[PartitionView]) -> Watched | None:
        """Returns the rows of directories and last segments of views that were refreshed since the look began.

        A row is doubtful if it differs from what its view has seen.
        """
        listed: list[str] = []
        seen = []
        for view in views:
            folder, last = str(view.topic_partition), view.segments[-1] if view.segments else None
            if last is None:
                listed += [folder, folder]
                seen.append((view.snapshot.mtime_ms, view.snapshot.mtime_ms, -1, -1, 0))
            else:
                listed += [folder, f"{folder}/{os.path.basename(last.path)}"]
                has_room = int(view.snapshot.end_position < last.size)
                seen.append((view.snapshot.mtime_ms, last.mtime_ms, last.size, last.inode, has_room))
        joined = _joined(listed)
        rows = _rows(files_of(log_dir), log_dir, joined)
        if rows is None:
            return None
        doubtful = self._is_new(rows)
        folder_ms, last_ms, size, inode, room = np.array(seen, np.int64).reshape(-1, 5).T
        folders, lasts = rows[::2], rows[1::2]
        doubtful[::2] |= (folders[:, MTIME_NS] // NS_PER_MS != folder_ms) | ~_is_kind(folders, stat.S_IFDIR)
        doubtful[1::2] |= (room != 0) | (lasts[:, MTIME_NS] // NS_PER_MS != last_ms)
        doubtful[1::2] |= (size >= 0) & ((lasts[:, SIZE] != size) | (lasts[:, INODE] != inode))
        return Watched(tuple(listed), joined, rows, doubtful)


def _joined(listed: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in listed)


def _rows(files: Files, place: str, joined: bytes) -> Rows | None:
    found = files.glances(place, joined)
    return None if found is None else np.frombuffer(found, np.int64).reshape(-1, len(GLANCE_FIELDS))


def _may_differ(watched: Watched, rows: Rows) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows != watched.rows).any(axis=1) | watched.doubtful
    return found


def _is_kind(rows: Rows, kind: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = rows[:, MODE] & 0o170000 == kind
    return found


def _is_partition(log_dir: str, partition: TopicPartition) -> bool:
    return partition in folders_in(log_dir, [str(partition)], files_of(log_dir)).partitions


def _others(files: Files, directory: Directory, partitions: Iterable[TopicPartition]) -> list[str]:
    """Returns names like a partition's that are not partitions yet, or no longer are."""
    known = set(map(str, partitions))
    named = [name for name in directory.listed if name not in known]
    theirs = set(map(str, folders_in(directory.path, named, files).partitions)) if named else set()
    return [name for name in named if name not in theirs]


def _metadata_files(files: Files, log_dir: str, listed: frozenset[str]) -> list[str]:
    """Returns the files that the cluster's metadata is read from."""
    if names.CLUSTER_METADATA_DIR not in listed:
        return []
    inside = files.names_in(os.path.join(log_dir, names.CLUSTER_METADATA_DIR))
    return [names.CLUSTER_METADATA_DIR, *(f"{names.CLUSTER_METADATA_DIR}/{name}" for name in inside)]


def _listed(files: Files, log_dir: str) -> frozenset[str]:
    return frozenset(filter(_LIKE_A_PARTITION.search, files.names_in(log_dir)))


def _other_starts(
    log_dir: str, partitions: Iterable[TopicPartition], views: Mapping[TopicPartition, PartitionView]
) -> list[TopicPartition]:
    lines = lines_at_once(log_dir)
    return [each for each in partitions if starts_elsewhere(views[each], lines)]


def lines_at_once(log_dir: str) -> CheckpointLines:
    """Returns the current checkpoint lines for one look at many partitions: the file is read once."""
    return CheckpointLines(log_dir, files_of(log_dir), keeps_ms=KEEPS_MS)


def starts_elsewhere(view: PartitionView, lines: CheckpointLines) -> bool:
    """Whether the checkpoint has another log start offset than the view: records were deleted."""
    line, bases = lines.line(LOG_STARTS, view.topic_partition) or 0, view.snapshot.bases
    return view.log_start_offset != (min(max(line, bases[0]), view.log_end_offset) if bases else line)
