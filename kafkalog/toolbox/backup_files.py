"""How files get into a backup and what is reported about them: linked, cloned, copied, synced, with their checksums.

Knows nothing of segments or partitions; see `kafkalog.toolbox.backup` for the order of the steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import File, Files, FileStat
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions, sign_of_log_dir
from kafkalog.engine.remote.objects import parts_of
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.backup_manifest import BackedFile, BackedPartition, Manifest, newest_backup
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.space import on_disk

__all__ = ["BackupReport", "Base", "Changed", "LogDigest", "Placing", "Syncs", "Taken", "digest_of"]

DIGEST_BYTES = 1 << 19
SYNC_THREADS = 8  # threads that wait for the disk, which commits several syncs at once
COPIED, CLONED, LINKED, KEPT = "copied", "cloned", "linked", "kept"
NO_STAMP = (0, 0, 0)

Progress = Callable[[int], None]


@dataclass
class BackupReport:
    """The result of a backup.

    `copied`, `cloned` (reflinks), `linked` (to the source's files) and `kept` (linked from the base) are bytes of all
    files.  `findings` says what is wrong with the source, which was copied as it is.  `left_out` are partitions that
    could not be read, and are therefore not in the backup; each is also a finding.  `missing` counts the findings about
    segments that the source no longer has."""

    path: str
    base: str | None = None
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    copied: int = 0
    cloned: int = 0
    linked: int = 0
    kept: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[TopicPartition] = field(default_factory=list)
    missing: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of all files of the backup."""
        return self.copied + self.cloned + self.linked + self.kept

    def add(self, how: str, size_bytes: int) -> None:
        """Counts a file that got there in that way."""
        setattr(self, how, getattr(self, how) + size_bytes)


class Changed(Exception):
    """Raised if the source is no longer what the view saw: refresh the view and try again."""


class Base:
    """An earlier backup, and what it has of a partition."""

    def __init__(self, path: str, manifest: Manifest) -> None:
        self.path = path
        self._partitions = manifest.partitions()

    @classmethod
    def open(
        cls, path: str, sources: Collection[str], files: Files, wanted: Callable[[TopicPartition], bool]
    ) -> Base | None:
        """Opens the backup at `path`, or the best one in a directory of backups.

        The best one is a backup of these sources that has most of the existing `wanted` partitions; among equals, the
        newest.  Returns None if the directory has no backup yet.  Raises IllegalArgumentException for a log directory.
        """
        sign = sign_of_log_dir(path, files)
        if sign is not None:
            raise IllegalArgumentException(
                f"it has {sign}, so it is a log directory; expected a backup, or a directory of backups",
                path=path,
                hint="name the directory of an earlier `kafkalog backup --to`, or the directory above it",
            )
        there = {each for source in sources for each in list_partitions(source, files=files) if wanted(each)}
        found = newest_backup(
            path, files, sources=sources, holds=lambda manifest: len(there & manifest.partitions().keys())
        )
        return None if found is None else cls(*found)

    def closed_bytes(self, partitions: Collection[TopicPartition]) -> int:
        """Returns the bytes of closed segments' files of some partitions: about what can be linked from here."""
        total = 0
        for _, held in (self._partitions[each] for each in partitions if each in self._partitions):
            closed = {names.filename_prefix_from_offset(each.base_offset) for each in held.segments if each.is_closed}
            total += sum(on_disk(each.size) for name, each in held.files.items() if name.partition(".")[0] in closed)
        return total

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions in this backup."""
        return self._partitions.keys()

    def of(self, partition: TopicPartition, topic_id: str | None) -> tuple[str, BackedPartition] | None:
        """Returns a partition's directory and entry; None if it is missing, or of another topic of that name."""
        found = self._partitions.get(partition)
        if found is None or found[1].topic_id != topic_id:
            return None
        return os.path.join(self.path, found[0].folder, str(partition)), found[1]


class Syncs:
    """Threads that sync files.  As a context manager it returns when all files are synced, or raises the error."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pool = ThreadPoolExecutor(SYNC_THREADS, "kafkalog-backup-sync")
        self._waiting: list[Future[None]] = []

    def add(self, path: str) -> None:
        """Syncs a file that is completely written."""
        self._submit(self._files.sync_file, path)

    def add_dir(self, path: str) -> None:
        """Syncs a directory whose entries are all there."""
        self._submit(self._files.sync_dir, path)

    def _submit(self, sync: Callable[[str], None], path: str) -> None:
        self._waiting.append(self._pool.submit(sync, path))
        if len(self._waiting) >= 4 * SYNC_THREADS:
            self.wait()

    def wait(self) -> None:
        """Waits until all files are synced."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.result()

    def __enter__(self) -> Syncs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)


class Taken(NamedTuple):
    """A file in the backup: how it got there, its size and checksum, and the stamp of the source's file.
    `crc32c` is -1 while it is unknown."""

    how: str
    size: int
    crc32c: int
    stamp: tuple[int, int, int]  # inode, mtime_ms, size; (0, 0, 0) for a file that the backup wrote itself

    def backed(self) -> BackedFile:
        assert self.crc32c >= 0, self
        return BackedFile(self.size, self.crc32c, *self.stamp)


def stamp_of(stat: FileStat) -> tuple[int, int, int]:
    return stat.inode, stat.mtime_ms, stat.size


class Placing:
    """Puts files into a backup.  `base` is the earlier backup.  With `link`, logs of closed segments become links."""

    def __init__(self, files: Files, base: Base | None, link: bool, report: BackupReport, syncs: Syncs) -> None:
        self.files = files
        self.base = base
        self.report = report
        self.syncs = syncs
        self._link = link
        self._said_no_link = False

    def place(self, source: str, target: str, size: int, *, may_link: bool = False, private: bool = False) -> str:
        """Puts the first `size` bytes of a file into a new file, or links it; returns how.  Only the owner can read a
        `private` one."""
        files = self.files
        with files.open(source, writable=False) as file:
            if private:
                files.make_private(target)
            with files.open(target, create=True, exclusive=not private) as out:
                if out.clone_from(file):
                    if out.size() > size:
                        out.truncate(size)
                    return CLONED
                # a hard link to a symbolic link would be a symbolic link
                if not (may_link and self._link) or files.is_link(source):
                    return self._copied(file, out, size)
            files.unlink(target)
            try:
                files.link(source, target)
                return LINKED
            except FileNotFoundError:
                raise
            except OSError as error:
                self._cannot_link(error)
            with files.open(target, create=True, exclusive=True) as out:
                return self._copied(file, out, size)

    @staticmethod
    def _copied(file: File, out: File, size: int) -> str:
        """Has the system copy as much as it can.  Raises Changed if the file is shorter by now."""
        end = out.copy_from(file, size)
        for part in parts_of(file, min(size, file.size()), begin=end):
            out.pwrite(part, end)
            end += len(part)
        if end != size or out.size() != size:
            raise Changed(file.path)
        out.flush_soon(0, size)
        return COPIED

    def _cannot_link(self, error: OSError) -> None:
        """Notes once that logs are copied although links were requested."""
        if not self._said_no_link:
            self._said_no_link = True
            self.report.notes.append(f"logs are copied: the file system cannot link them ({error.strerror})")

    def digest(self, path: str, size: int) -> int:
        """Returns the CRC-32C of the first bytes of a file."""
        with self.files.open(path, writable=False) as file:
            return digest_of(file, 0, size)


def digest_of(file: File, begin: int, end: int, crc: int = 0) -> int:
    """Continues the CRC-32C `crc` over the bytes [begin, end), as far as the file has them."""
    buffer = memoryview(bytearray(min(DIGEST_BYTES, max(end - begin, 0))))
    while begin < end and (got := file.pread_into(buffer[: min(len(buffer), end - begin)], begin)):
        crc = crc32c(buffer[:got], crc)
        begin += got
    return crc


class LogDigest:
    """The checksum of a segment's log, computed from the bytes that its check reads, and its newest timestamp."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._end = 0
        self.crc32c = 0
        self.newest_time_ms = -1

    def observe(self, path: str, table: np.ndarray, data: memoryview, position: int) -> None:
        """Adds the next batches; see SegmentCheck."""
        begin, end = int(table["position"][0]), int(table["position"][-1]) + int(table["size"][-1])
        self._pass_over(begin)
        self.crc32c = crc32c(data[begin - position : end - position], self.crc32c)
        self._end = end
        self.newest_time_ms = max(self.newest_time_ms, int(table["max_timestamp"].max()))

    def finish(self, size: int) -> None:
        """Adds the rest of a file of so many bytes."""
        self._pass_over(size)

    def _pass_over(self, end: int) -> None:
        """Adds bytes up to `end` that are not in any batch."""
        if self._end < end:
            with self._files.open(self._path, writable=False) as file:
                self.crc32c = digest_of(file, self._end, end, self.crc32c)
            self._end = end


def __dir__() -> list[str]:
    return __all__
