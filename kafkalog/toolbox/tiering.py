"""Works on remote tiers from outside: lists segments, restores them to a directory, and finds unknown objects.

A tier is read through its layout (`kafkalog.engine.remote`).  A directory's `__remote_log_metadata` is read
if the directory has it.  Only `remove` deletes, and only what `orphans` found.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.named import names_of_partition
from kafkalog._face.remote_tier import refuse_nested
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host.log_dirs import partitions_in, refuse_file
from kafkalog.engine.remote.chunks import RemoteFile
from kafkalog.engine.remote.directory_segments import DirectoryMetadata, known_segments
from kafkalog.engine.remote.object_segments import ASKED_MOST
from kafkalog.engine.remote.object_segments import THREADS as MANIFESTS_AT_ONCE
from kafkalog.engine.remote.objects import parts_of
from kafkalog.engine.remote.remote_files import check_there
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, RemoteLogSegmentState, TopicIdPartition
from kafkalog.errors import (
    CorruptIndexException,
    CorruptManifestException,
    IllegalArgumentException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
    SchemaException,
)
from kafkalog.toolbox.report import Finding, Report, told
from kafkalog.toolbox.segment_check import is_of_object
from kafkalog.toolbox.tier_check import can_be_read, damaged_in, damaged_manifests, object_of
from kafkalog.toolbox.verify import verify_partition

if TYPE_CHECKING:
    from kafkalog.engine.files import File
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import FoundSegment, RemoteStorageManager

__all__ = [
    "Orphan", "RestoreReport", "TierSegment", "Waiting", "begun", "check_restorable", "known_segments", "log_bytes_of",
    "orphans", "remove", "restore", "tier_segments", "waiting",
]  # fmt: skip

COPY_BYTES = 32 << 20  # by one request; in memory part by part
THREADS = 4  # for restoring
Progress = Callable[[int], object]
_log = Lines("kafkalog.remote")


class TierSegment(NamedTuple):
    """A segment of a partition: in the remote tier, on the disk, or in both.

    `size` is that of the object with its log, if it is in the remote tier.  `end_offset` is -1 if unknown, and before
    `base_offset` if the segment is empty.  `state` is None without metadata; `segment_id` is None if only the disk has
    it.  `copied_size` is the number of bytes that were copied, if the object has more or fewer.  `lacks` are suffixes
    of missing objects; a complete segment lost them.  `damage` is what is wrong with its manifest, which is named."""

    partition: TopicPartition
    base_offset: int
    end_offset: int
    size: int
    where: str  # "remote", "local", "both", or "missing" if the metadata has it and the tier does not
    segment_id: str | None
    state: RemoteLogSegmentState | None
    is_whole: bool
    copied_size: int | None = None
    lacks: tuple[str, ...] = ()
    damage: str | None = None


class _OnDisk(NamedTuple):
    """A partition's segments on the disk: bytes by base offset.  `topic_id` is None if the directory does not
    have it."""

    topic_id: str | None
    sizes: dict[int, int]


def _ends(bases: Iterable[int]) -> dict[int, int]:
    """Returns last offsets of segments by base offset; -1 for the last segment.  Two may begin at one offset, because
    an upload that was tried twice exists twice."""
    ordered = sorted({*bases})
    return dict(zip(ordered, [*(base - 1 for base in ordered[1:]), -1], strict=False))


def tier_segments(
    storage: RemoteStorageManager, log_dirs: Sequence[str] = (), topics: Collection[str] = (), files: Files = OS_FILES
) -> list[TierSegment]:
    """Lists every segment of both tiers, and those that the directories' metadata have and the tier does not.

    If the layout has manifests, they are read to check them, and to compare the sizes of packed objects.  With more
    than ASKED_MOST segments only those manifests are read for which nothing else gives the size; with more than
    ASKED_MOST of these, none are, and the log `kafkalog.remote` says so.

    Args:
        storage: The remote tier.
        log_dirs: The log directories to compare with.
        topics: Topics, partitions or globs to list; empty lists everything.
        files: The file system; for tests.

    Returns:
        The segments, by partition and base offset.

    Raises:
        RemoteStorageException: The storage does not answer.

    Example:
        >>> from kafkalog.toolbox.tiering import tier_segments
        >>> tier = kafkalog.RemoteStorage("tier")
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> [(segment.base_offset, segment.where) for segment in tier_segments(tier.manager(), ["shop"])]
        [(0, 'local')]
    """
    rows, there = _segments(storage, log_dirs, topics, files)
    return _with_copied_sizes(storage, rows, there) if storage.has_manifests else rows


def _segments(
    storage: RemoteStorageManager, log_dirs: Sequence[str], topics: Collection[str], files: Files
) -> tuple[list[TierSegment], dict[str, FoundSegment]]:
    """Returns the same, with `copied_size` of the log, and the segments of the tier by id."""

    def is_meant(partition: TopicPartition) -> bool:
        return not topics or bool(names_of_partition(topics, partition))

    local: dict[TopicPartition, _OnDisk] = {}
    for log_dir in log_dirs:
        for partition, path in partitions_in(log_dir, files.list_dir(log_dir), files).items():
            bases = local.setdefault(partition, _OnDisk(topic_id_of(path, files), {})).sizes
            for name in files.list_dir(path):
                base = names.segment_base(name)
                if base is not None:
                    bases[base] = files.size_of(os.path.join(path, name))
    metadata = known_segments(log_dirs, files)
    partitions = {*storage.partitions(), *(() if metadata is None else metadata.partitions())}
    rows: list[TierSegment] = []
    there: dict[str, FoundSegment] = {}
    for full in sorted(partitions, key=lambda each: (each.topic_partition, each.topic_id)):
        if is_meant(full.topic_partition):
            on_disk = local.get(full.topic_partition, _OnDisk(None, {}))
            found = storage.segments_of(full)
            rows += _of_partition(full, found, on_disk, metadata)
            there |= {each.id: each for each in found}
    known = {(row.partition, row.base_offset) for row in rows if row.where == "both"}
    for partition, on_disk in local.items():
        if partition.topic in names.INTERNAL_TOPICS or not is_meant(partition):
            continue
        for base, end in _ends(on_disk.sizes).items():
            if (partition, base) not in known:
                rows.append(TierSegment(partition, base, end, on_disk.sizes[base], "local", None, None, True))
    return sorted(rows, key=lambda row: (row.partition, row.base_offset, row.segment_id or "")), there


def _with_copied_sizes(
    storage: RemoteStorageManager, rows: list[TierSegment], there: Mapping[str, FoundSegment]
) -> list[TierSegment]:
    """Corrects `copied_size` by the manifests.  An object that is as long as its log is plain and complete."""
    whole = {
        found.id: (found, row.state is None or row.copied_size is not None)
        for row in rows
        if (found := there.get(row.segment_id or "")) is not None and found.is_whole
    }
    damaged: Mapping[str, CorruptManifestException] = {}
    if len(whole) <= ASKED_MOST:
        damaged = damaged_manifests(storage, [found for found, _ in whole.values()])
    doubted = {found.id: found for found, is_doubted in whole.values() if is_doubted and found.id not in damaged}
    if len(doubted) > ASKED_MOST:
        _log.warning(
            "the sizes of %d objects are not compared with their manifests, because these are more than %d: "
            "`kafkalog tier verify` compares them, and so does a list of fewer topics or "
            "partitions", len(doubted), ASKED_MOST,
        )  # fmt: skip
        doubted.clear()
    with ThreadPoolExecutor(MANIFESTS_AT_ONCE, "kafkalog-remote-manifests") as pool:
        said = dict(zip(doubted, pool.map(partial(_copied_size, storage), doubted.values()), strict=True))
    made = [row._replace(copied_size=said.get(row.segment_id or "")) for row in rows]
    return [
        row if (error := damaged.get(row.segment_id or "")) is None else row._replace(damage=str(error)) for row in made
    ]


def _copied_size(storage: RemoteStorageManager, found: FoundSegment) -> int | None:
    """Returns the number of bytes that were copied, if the object has more or fewer; else None."""
    try:
        copied = storage.object_bytes(found, None)
    except RetriableRemoteStorageException:
        raise
    except RemoteStorageException as error:
        if not isinstance(error, RemoteResourceNotFoundException):  # otherwise it was deleted meanwhile
            _log.warning("it is unknown how many bytes of segment %s were copied: %s", found.id, error)
        return None
    return None if copied == found.object_bytes else copied


def _of_partition(
    full: TopicIdPartition,
    found: Sequence[FoundSegment],
    on_disk: _OnDisk,
    metadata: DirectoryMetadata | None,
) -> list[TierSegment]:
    partition = full.topic_partition
    cache = None if metadata is None else metadata.cache_of(full)
    said = {each.remote_log_segment_id.id: each for each in cache or ()}
    has_word = metadata is not None and metadata.speaks_of(full)
    is_of_disk = on_disk.topic_id in (None, full.topic_id)
    local_ends = _ends(on_disk.sizes) if is_of_disk else {}
    ends = _ends(each.base_offset for each in found if each.is_whole)
    rows = []
    for each in found:
        known = said.pop(each.id, None)
        end = ends.get(each.base_offset, -1) if known is None else known.end_offset
        local_end = local_ends.get(each.base_offset)
        is_copied = known.state is COPY_SEGMENT_FINISHED if known is not None else not has_word
        is_same = local_end is not None and (known is None or local_end in (-1, end))
        where = "both" if is_same and is_copied and each.is_whole else "remote"
        state = None if known is None else known.state
        size = None if known is None or not each.is_whole else known.segment_size_in_bytes
        row = TierSegment(partition, each.base_offset, end, each.object_bytes, where, each.id, state, each.is_whole)
        rows.append(row._replace(copied_size=None if size in (-1, each.object_bytes) else size, lacks=each.lacks))
    for segment_id, known in said.items():
        if known.state is COPY_SEGMENT_FINISHED:
            begin, size = known.start_offset, known.segment_size_in_bytes
            rows.append(
                TierSegment(partition, begin, known.end_offset, size, "missing", segment_id, known.state, False)
            )
    return rows


class Waiting(NamedTuple):
    """Closed segments of a partition that only the disk has."""

    partition: TopicPartition
    segments: int
    size: int


def waiting(storage: RemoteStorageManager, log_dir: str, files: Files = OS_FILES) -> list[Waiting]:
    """Lists what an upload would copy: closed segments of topics with `remote.storage.enable`.

    Args:
        storage: The remote tier.
        log_dir: The log directory, whose settings, or its cluster's, count.
        files: The file system; for tests.

    Returns:
        A `Waiting` for each partition with such segments.

    Raises:
        IllegalArgumentException: The tier has nothing of what the metadata says was copied.

    Example:
        >>> from kafkalog.toolbox.tiering import waiting
        >>> tier = kafkalog.RemoteStorage("tier")
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> waiting(tier.manager(), "shop")
        []
    """
    rows, _ = _segments(storage, [log_dir], (), files)
    on_disk = {row.partition for row in rows if row.where in ("local", "both")}  # others may be in deletion
    copied = [row for row in rows if row.state is COPY_SEGMENT_FINISHED and row.partition in on_disk]
    if copied and all(row.where == "missing" for row in copied):
        row = copied[0]
        raise IllegalArgumentException(
            f"{log_dir}: the remote tier has nothing of what the metadata says was copied there, such as segment "
            f"{row.segment_id} of {row.partition} from offset {row.base_offset}",
            hint="check the address, its prefix and the layout",
        )
    settings = TopicSettings([log_dir], files=files)
    found: dict[TopicPartition, list[TierSegment]] = {}
    last: dict[TopicPartition, int] = {}
    for row in rows:
        last[row.partition] = max(row.base_offset, last.get(row.partition, 0))
        if row.where == "local" and settings.of(row.partition.topic).remote_storage_enable:
            found.setdefault(row.partition, []).append(row)
    counts = []
    for partition, segments in found.items():
        closed = [each for each in segments if each.base_offset < last[partition]]
        if closed:
            counts.append(Waiting(partition, len(closed), sum(each.size for each in closed)))
    return counts


# --- back to a directory ------------------------------------------------------------------------------------


@dataclass
class RestoreReport:
    """The result of `restore`; `findings` says what is wrong with it, and which objects it came from."""

    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    paths: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def log_bytes_of(source: RemoteFiles, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the bytes of the logs of some partitions of a tier, without their indexes.

    Args:
        source: The tier.
        partitions: The partitions.

    Returns:
        The bytes by partition.

    Example:
        >>> from kafkalog.toolbox.tiering import log_bytes_of
        >>> config = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
        >>> with kafkalog.open("shop", remote="tier") as store:
        ...     orders = store.create_topic("orders", config=config)
        ...     for _ in range(2):
        ...         _ = orders.append(bytes(700_000))
        ...     copied = store.remote_log_manager.run_once()
        >>> source = kafkalog.RemoteStorage("tier").read_only_files()
        >>> list(log_bytes_of(source, [kafkalog.TopicPartition("orders", 0)]).values())
        [700072]
    """
    sizes = {}
    for each in partitions:
        place = f"{source.root}/{each}"
        names_of_logs = [name for name in source.list_dir(place) if name.endswith(names.LOG_FILE_SUFFIX)]
        sizes[each] = sum(source.stat(f"{place}/{name}").size for name in names_of_logs)
    return sizes


def restore(
    source: RemoteFiles,
    target_dir: str,
    partitions: Iterable[TopicPartition],
    *,
    files: Files = OS_FILES,
    progress: Progress | None = None,
) -> RestoreReport:
    """Copies partitions of a tier, byte for byte, to a directory.

    A broker, or `kafkalog.open`, can continue with them.  Everything is synced, and a partition's directory gets its
    name last.  The result is checked then; damaged segments stay as they are, for `salvage`.

    Args:
        source: The tier.
        target_dir: The log directory, which must not have these partitions.
        partitions: The partitions.
        files: The file system; for tests.
        progress: Called with the number of bytes just copied.

    Returns:
        A `RestoreReport`.

    Raises:
        IllegalArgumentException: As `check_restorable`.
        RemoteResourceNotFoundException: As `check_restorable`.
        RemoteStorageException: The storage does not answer.
        OSError: The directory cannot be written.

    Example:
        >>> from kafkalog.toolbox.tiering import restore
        >>> config = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
        >>> with kafkalog.open("shop", remote="tier") as store:
        ...     orders = store.create_topic("orders", config=config)
        ...     for _ in range(2):
        ...         _ = orders.append(bytes(700_000))
        ...     copied = store.remote_log_manager.run_once()
        >>> source = kafkalog.RemoteStorage("tier").read_only_files()
        >>> restore(source, "restored", [kafkalog.TopicPartition("orders", 0)]).segments
        1
    """
    report = RestoreReport()
    wanted = list(partitions)
    check_restorable(source, target_dir, wanted, files=files)
    files.mkdirs_synced(target_dir)
    for partition in wanted:
        _restore(source, target_dir, partition, files, report, progress)
    return report


def check_restorable(
    source: RemoteFiles, target_dir: str, partitions: Iterable[TopicPartition], *, files: Files = OS_FILES
) -> None:
    """Checks that partitions of a tier can be restored to a directory.

    Args:
        source: The tier.
        target_dir: The log directory.
        partitions: The partitions.
        files: The file system; for tests.

    Raises:
        IllegalArgumentException: A partition exists already or is not in the tier, the target is a file, or it is
            inside or around the tier's directory.
        RemoteResourceNotFoundException: Offsets or objects are missing that metadata have.

    Example:
        >>> from kafkalog.toolbox.tiering import check_restorable
        >>> config = {"remote.storage.enable": "true", "segment.bytes": "1048576"}
        >>> with kafkalog.open("shop", remote="tier") as store:
        ...     orders = store.create_topic("orders", config=config)
        ...     for _ in range(2):
        ...         _ = orders.append(bytes(700_000))
        ...     copied = store.remote_log_manager.run_once()
        >>> source = kafkalog.RemoteStorage("tier").read_only_files()
        >>> try:
        ...     check_restorable(source, "restored", [kafkalog.TopicPartition("payments", 0)])
        ... except kafkalog.errors.IllegalArgumentException as error:
        ...     print(error.message)
        the remote tier does not have this partition
    """
    refuse_nested(source.root, target_dir)
    refuse_file(target_dir, files)
    for partition in partitions:
        folder = os.path.join(target_dir, str(partition))
        if files.exists(folder):
            raise IllegalArgumentException("the partition exists already", path=folder)
        place = f"{source.root}/{partition}"
        if not source.exists(place):
            raise IllegalArgumentException("the remote tier does not have this partition", path=place)
        if source.has_metadata:
            _check_all_there(source, place)


def _check_all_there(source: RemoteFiles, place: str) -> None:
    readable: set[str] | None = None
    for name in source.list_dir(place):
        path = f"{place}/{name}"
        metadata = source.metadata_of(path) if name.endswith(names.LOG_FILE_SUFFIX) else None
        if metadata is None:
            continue
        check_there(metadata, path)
        if readable is None:
            there = source.storage.segments_of(metadata.topic_id_partition)
            readable = {each.id for each in there if can_be_read(source.storage, each)}
        if metadata.remote_log_segment_id.id not in readable:
            gone = "its log or its manifest is missing" if source.storage.has_manifests else "its log is missing"
            raise RemoteResourceNotFoundException(
                f"the metadata have segment {metadata.remote_log_segment_id.id}, but {gone}", path=path,
                hint="`kafkalog tier list` shows where each segment is; without the directory, the other segments are "
                "restored",
            )  # fmt: skip


def _restore(
    source: RemoteFiles,
    target_dir: str,
    partition: TopicPartition,
    files: Files,
    report: RestoreReport,
    progress: Progress | None,
) -> None:
    place = f"{source.root}/{partition}"
    folder = os.path.join(target_dir, str(partition))
    # No broker takes a directory with this name for a partition.
    making = os.path.join(target_dir, f".{partition}.restoring")
    files.remove_tree(making)
    files.mkdirs(making)
    copied = _Copies(source, files, progress)
    paths = ((f"{place}/{name}", os.path.join(making, name)) for name in source.list_dir(place))
    try:
        copied.run(each for each in paths if not _is_missing(source, each[0]))
    except BaseException:
        with suppress(OSError):  # the next attempt removes it too
            files.remove_tree(making)
        raise
    report.bytes += copied.bytes
    report.segments += copied.segments
    files.sync_dir(making)
    files.rename(making, folder)
    files.sync_dir(target_dir)
    report.partitions += 1
    report.paths.append(folder)
    report.findings += damaged_in(source, place, copied.there(source.partition_at(place))).values()
    checked = Report(findings=[each._replace(path=os.path.join(folder, each.path)) for each in copied.findings])
    verify_partition(folder, files, checked, gaps=True)
    for finding in checked.findings:
        key = object_of(f"{place}/{os.path.basename(finding.path)}", source, copied.there)
        told = "" if key is None else f"; its object is {source.root}/{key}"
        report.findings.append(finding._replace(what=finding.what + told))


def _is_missing(source: RemoteFiles, path: str) -> bool:
    """Returns whether a log stands for missing offsets; the check of the restored partition finds them."""
    metadata = source.metadata_of(path) if path.endswith(names.LOG_FILE_SUFFIX) else None
    return metadata is not None and metadata.is_missing


@dataclass(eq=False)
class _Copy:
    """One log that is being copied.  `parts` yields its bytes, `left` is the number of bytes to come.  `wrong` has the
    positions from which it cannot be read, and why."""

    there: File
    here: File
    size: int
    left: int
    parts: Callable[[int, int], Iterator[bytes]]
    wrong: list[tuple[int, RemoteStorageException]] = field(default_factory=list)

    def piece(self, begin: int, end: int) -> int:
        """Copies [begin, end), up to a damaged chunk; returns how many bytes are done.  A local file is one piece,
        which is synced here."""
        if isinstance(self.there, RemoteFile):
            at = begin
            try:
                for part in self.parts(begin, end):
                    self.here.pwrite(part, at)
                    at += len(part)
            except RemoteStorageException as error:
                if error.position is None or not is_of_object(error):
                    raise
                self.wrong.append((at, error))
            self.here.flush_soon(begin, at - begin)
        else:
            done = self.here.copy_from(self.there, end)
            self.here.write_synced(parts_of(self.there, end, begin=done), done)
        return end - begin

    def close(self) -> None:
        self.there.close()
        self.here.close()


class _Copies:
    """Copies files of a tier: a few pieces of about COPY_BYTES at a time, of one file or of several, or a few local
    files.  A log is synced once all its pieces are copied."""

    def __init__(self, source: RemoteFiles, files: Files, progress: Progress | None) -> None:
        self._source, self._files, self._progress = source, files, progress
        self._open: set[_Copy] = set()
        self.there = cache(lambda partition: {each.id: each for each in source.storage.segments_of(partition)})
        self.findings: list[Finding] = []  # with the names of files
        self.bytes = self.segments = 0

    def run(self, paths: Iterable[tuple[str, str]]) -> None:
        """Copies each first path to the second one."""
        coming: deque[tuple[_Copy | None, Future[int]]] = deque()
        try:
            with ThreadPoolExecutor(THREADS, "kafkalog-restore") as pool:
                try:
                    for path, target in paths:
                        for copy, piece in self._pieces(path, target):
                            coming.append((copy, pool.submit(piece)))
                            if len(coming) >= THREADS:
                                self._end(*coming.popleft())
                    while coming:
                        self._end(*coming.popleft())
                finally:
                    for _, future in coming:
                        future.cancel()
        finally:
            for copy in self._open:
                copy.close()

    def _pieces(self, path: str, target: str) -> Iterator[tuple[_Copy | None, Callable[[], int]]]:
        if not path.endswith(names.LOG_FILE_SUFFIX):
            yield None, lambda: self._small(path, target)
            return
        try:
            there, own_bytes = self._opened(path)
        except CorruptManifestException:  # it is reported as a finding
            return
        try:
            here = self._files.open(target, create=True)
            copy = _Copy(there, here, own_bytes, own_bytes, partial(self._parts, path))
        except BaseException:
            there.close()
            raise
        self._open.add(copy)
        self.segments += 1
        size = piece_bytes = copy.left
        if isinstance(there, RemoteFile):  # whole chunks
            piece_bytes = max(1, COPY_BYTES // there.chunk_bytes) * there.chunk_bytes
        for at in range(0, max(size, 1), max(piece_bytes, 1)):
            yield copy, partial(copy.piece, at, min(at + piece_bytes, size))

    def _parts(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        metadata = self._source.metadata_of(path)
        assert metadata is not None, path
        return self._source.storage.log_parts(metadata, begin, end)

    def _opened(self, path: str) -> tuple[File, int]:
        """Opens a log; also returns how much of it is copied.  A truncated object is copied as far as it can be
        read, which is a finding."""
        source, storage = self._source, self._source.storage
        metadata = source.metadata_of(path)
        if metadata is not None and (source.has_metadata or storage.has_manifests):
            found = self.there(metadata.topic_id_partition).get(metadata.remote_log_segment_id.id)
            copied = None if found is None else storage.object_bytes(found, metadata)
            if found is not None and copied not in (None, found.object_bytes):
                log_bytes, left = storage.log_size(metadata), storage.log_bytes_in(found, metadata)
                what = f"the object has {found.object_bytes} bytes; {copied} were copied"
                self.findings.append(Finding(os.path.basename(path), left, log_bytes - left, what))
                return source.asked(storage.open_local, metadata) or source.opened(metadata, path), left
        return source.open(path, writable=False), source.own_bytes(path)

    def _small(self, path: str, target: str) -> int:
        try:
            data = self._source.read_bytes(path)
        except (CorruptIndexException, RemoteStorageException) as error:
            if isinstance(error, CorruptManifestException) and not path.endswith(names.LEADER_EPOCH_CHECKPOINT_FILE):
                return 0  # its log is left out, which is reported
            if path.endswith(names.TXN_INDEX_FILE_SUFFIX):
                raise  # without it aborted records would be read
            if isinstance(error, RemoteStorageException) and not is_of_object(error):
                raise
            self.findings.append(Finding(os.path.basename(path), 0, 0, f"{told(error)}; it is left out"))
            return 0
        self._files.write_file(target, data, sync=True)
        return len(data)

    def _end(self, copy: _Copy | None, future: Future[int]) -> None:
        count = future.result()
        self.bytes += count
        if copy is None:
            return
        copy.left -= count
        if not copy.left:
            self._cut(copy)
            if isinstance(copy.there, RemoteFile):
                copy.here.sync()
            copy.close()
            self._open.discard(copy)
        if self._progress is not None:
            self._progress(count)

    def _cut(self, copy: _Copy) -> None:
        """Truncates a log before its first damaged chunk."""
        for at, error in sorted(copy.wrong, key=lambda each: each[0])[:1]:
            copy.here.truncate(at)
            self.bytes -= copy.size - at
            what = f"{error.message} ({error.path}, byte {error.position}); the log before it is restored"
            self.findings.append(Finding(os.path.basename(copy.here.path), at, copy.size - at, what))


# --- what nobody knows --------------------------------------------------------------------------------------


class Orphan(NamedTuple):
    """The objects of one upload that will not be read.

    `is_damaged` marks a segment that lost objects, or has a damaged manifest, which is no orphan.  `is_whole` marks a
    complete segment, which another store's metadata may know."""

    partition: TopicIdPartition
    base_offset: int
    segment_id: str
    keys: tuple[str, ...]
    why: str
    is_damaged: bool = False
    is_whole: bool = False


def orphans(storage: RemoteStorageManager, metadata: DirectoryMetadata | None = None) -> list[Orphan]:
    """Finds objects in a tier that no metadata know, and damaged segments.

    These are unfinished uploads; with `metadata`, also complete segments of its partitions that it does not know; and
    segments that lost objects or have damaged manifests.  (Manifests are only checked if there are at most ASKED_MOST.)
    Without metadata, a running upload looks like an abandoned one: call again later.

    Args:
        storage: The remote tier.
        metadata: The metadata of the directory (`known_segments`).  If another process has the directory open, create
            it again for each call.  It is read after the objects are listed, because an upload is in the metadata
            before its first object exists.

    Returns:
        An `Orphan` for each of these segments.

    Raises:
        RemoteStorageException: The storage does not answer.

    Example:
        >>> from kafkalog.toolbox.tiering import orphans
        >>> orphans(kafkalog.RemoteStorage("tier").manager())
        []
    """
    there = {full: storage.segments_of(full) for full in storage.partitions()}
    whole = [each for segments in there.values() for each in segments if each.is_whole]
    damaged = damaged_manifests(storage, whole) if len(whole) <= ASKED_MOST else {}
    found = [
        Orphan(each.partition, each.base_offset, each.id, each.objects, f"its manifest is damaged: {error}", True, True)
        for each in whole
        if (error := damaged.get(each.id)) is not None
    ]
    for full, segments in there.items():
        known = None
        if metadata is not None:
            listed = metadata.list_remote_log_segments(full)
            known = {each.remote_log_segment_id.id: each.state for each in listed} if listed else None
        doubted = [each for each in segments if each.id not in damaged and _why(each, known) is not None]
        if doubted:  # objects that were listed too early may be complete or deleted by now
            again = {each.id: each for each in storage.segments_of(full)}
            doubted = [again[each.id] for each in doubted if each.id in again]
        for each in doubted:
            why = _why(each, known)
            if why is not None:
                is_damaged = each.is_whole if known is None else each.id in known
                is_whole = each.is_whole and not is_damaged
                found.append(Orphan(full, each.base_offset, each.id, each.objects, why, is_damaged, is_whole))
    return found


def begun(metadata: DirectoryMetadata) -> list[RemoteLogSegmentMetadata]:
    """Lists uploads that have not ended, according to a directory's metadata: they are running, or were interrupted.

    Args:
        metadata: The metadata of the directory (`known_segments`).

    Returns:
        Their segments, by partition.

    Example:
        >>> from kafkalog.toolbox.tiering import begun, known_segments
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> metadata = known_segments(["shop"])  # None: nothing was ever tiered
        >>> [] if metadata is None else begun(metadata)
        []
    """
    found = []
    for full in sorted(metadata.partitions(), key=lambda each: (each.topic_partition, each.topic_id)):
        with suppress(SchemaException):  # events that cannot be read are reported elsewhere
            cache = metadata.cache_of(full)
            found += [each for each in cache or () if each.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED]
    return found


def _why(found: FoundSegment, known: Mapping[str, RemoteLogSegmentState] | None) -> str | None:
    if known is not None and found.id not in known:
        unknown = "the metadata does not know it"
        return f"{unknown}, but it is a complete segment, which may be another store's" if found.is_whole else unknown
    if not found.lacks or (known is not None and known[found.id] is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED):
        return None
    if known is None and not found.is_whole and names.LOG_FILE_SUFFIX not in found.lacks:
        last = found.lacks[-1]
        return (
            f"objects are missing: it is an unfinished upload, or a segment that lost its {last}.  Its log exists: "
            "--remote with the log directory tells which"
        )
    return "objects are missing"


def remove(
    storage: RemoteStorageManager, found: Iterable[Orphan], *, older_than_s: float = 3600.0, whole: bool = False
) -> list[str]:
    """Deletes the objects of orphans.

    Orphans younger than `older_than_s` stay, because they may be running uploads.  Damaged segments stay, because their
    records may be readable.

    Args:
        storage: The remote tier.
        found: The orphans, from `orphans`.
        older_than_s: The least age of all objects of an orphan, in seconds.
        whole: Also deletes complete segments.

    Returns:
        The keys of the deleted objects.

    Raises:
        RemoteStorageException: The storage does not answer.

    Example:
        >>> from kafkalog.toolbox.tiering import orphans, remove
        >>> tier = kafkalog.RemoteStorage("tier")
        >>> remove(tier.manager(), orphans(tier.manager()))
        []
    """
    gone: list[str] = []
    border = time.time() - older_than_s
    for orphan in found:
        stays = orphan.is_damaged or (orphan.is_whole and not whole)
        if not stays and all(_is_older(storage, key, border) for key in orphan.keys):
            keys = sorted(orphan.keys, key=lambda key: not key.endswith(names.LOG_FILE_SUFFIX))
            storage.delete_objects(keys)  # the log first: a running upload notices that it is missing
            gone += keys
    return gone


def _is_older(storage: RemoteStorageManager, key: str, border: float) -> bool:
    try:
        return storage.modified_s(key) < border
    except RemoteResourceNotFoundException:  # another process deleted it
        return True
