"""Shows what takes the space of log directories: each file once, by topic, by kind, and segments by age.

The sums are those of the system's `du`: files in bytes and in blocks, and directories themselves.  Preallocated space
is shown next to them: bytes of the active segment's files after its end.  Only reads, takes no lock; what a broker
deletes meanwhile is skipped.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafkalog.engine.files.usage import Used, walk
from kafkalog.engine.format import names
from kafkalog.engine.format.index_entries import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.folders import Folders, folders_of, named_folders
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.unread import unread

__all__ = ["DiskUsage", "Sum", "disk_usage"]

DIRECTORY = "(directory)"  # for what belongs to no topic
KINDS = (
    "logs",
    "offset indexes",
    "time indexes",
    "transaction indexes",
    "producer snapshots",
    "checkpoints",
    ".deleted",
    ".cleaned",
    ".swap",
    "-delete",
    "-future",
    "-stray",
    "folders",
    "metadata log",
    "foreign",
)
_HOUR_MS = 3_600_000
AGES = (  # upper limits in ms
    ("under 1 hour", _HOUR_MS),
    ("under 1 day", 24 * _HOUR_MS),
    ("under 7 days", 7 * 24 * _HOUR_MS),
    ("under 30 days", 30 * 24 * _HOUR_MS),
    ("older", None),
)
UNKNOWN = "unknown"  # for an object of which only the name is known
_BY_SUFFIX = (
    (names.LOG_FILE_SUFFIX, "logs"),
    (names.INDEX_FILE_SUFFIX, "offset indexes"),
    (names.TIME_INDEX_FILE_SUFFIX, "time indexes"),
    (names.TXN_INDEX_FILE_SUFFIX, "transaction indexes"),
    (names.PRODUCER_SNAPSHOT_FILE_SUFFIX, "producer snapshots"),
)
_BLOCK_BYTES = 4096  # the usual block size: the rest of a file's last block is not preallocated


@dataclass
class Sum:
    """`size` bytes in `files` files (including directories), which take `allocated` bytes of the disk."""

    files: int = 0
    size: int = 0
    allocated: int = 0

    def add(self, used: Used) -> None:
        """Adds one more file.

        Args:
            used: The file.
        """
        self.files += 1
        self.size += used.size
        self.allocated += used.allocated

    def take(self, other: Sum) -> None:
        """Adds another sum.

        Args:
            other: The sum to add.
        """
        self.files += other.files
        self.size += other.size
        self.allocated += other.allocated


@dataclass
class DiskUsage:
    """The result of `disk_usage`.

    `by_topic`, `by_kind` and `by_log_dir` each sum up to `total`. `by_age` sums up to the files of kind "logs".
    """

    total: Sum = field(default_factory=Sum)
    by_topic: dict[str, Sum] = field(default_factory=dict)
    by_kind: dict[str, Sum] = field(default_factory=dict)
    by_age: dict[str, Sum] = field(default_factory=dict)
    by_log_dir: dict[str, Sum] = field(default_factory=dict)
    # directories that could not be read; their content is not in the sums
    unread: list[Finding] = field(default_factory=list)
    preallocated: Sum = field(default_factory=Sum)  # after the ends of active segments and their indexes


def disk_usage(
    log_dirs: Sequence[str],
    now_ms: int,
    asked: Collection[str] = (),
    *,
    progress: Callable[[int], None] | None = None,
    ends: Mapping[str, int] | None = None,
) -> DiskUsage:
    """Sums up the space of several log directories.

    Args:
        log_dirs: The log directories.
        now_ms: The time from which ages are computed, in ms since 1970.
        asked: Topics, partitions or globs to count; empty counts everything.
        progress: Called with 1 for each partition.
        ends: The `active_ends` of all partitions, if the caller has them; by default each partition is looked at.

    Returns:
        A `DiskUsage`.  Its `unread` lists directories inside that cannot be listed.

    Raises:
        OSError: A log directory cannot be listed.

    Example:
        >>> import time
        >>> from kafkalog.toolbox.disk_usage import disk_usage
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> usage = disk_usage(["shop"], time.time_ns() // 1_000_000)
        >>> sorted(usage.by_topic)
        ['(directory)', 'orders']
        >>> usage.by_kind["logs"].size > 0
        True
    """
    usage = DiskUsage()

    def tell(error: OSError) -> None:
        wrong = unread(error)
        if wrong is None:
            raise error
        usage.unread.append(wrong)

    by_place, by_age = defaultdict[tuple[str, str], Sum](Sum), defaultdict[str, Sum](Sum)
    seen: set[tuple[int, int]] = set()
    for log_dir in log_dirs:
        folders = named_folders(folders_of(log_dir), asked)
        homes = _homes(folders)
        allocated = {}
        here = usage.by_log_dir.setdefault(log_dir, Sum())
        above = len(os.path.join(log_dir, ""))
        for used in _walk(log_dir, folders, asked, seen, tell):
            place = _place(used.path[above:], used, homes)
            by_place[place].add(used)
            here.add(used)
            if place[1] == "logs":
                age = now_ms - used.mtime_ms
                name = next(name for name, limit in AGES if limit is None or age < limit) if used.mtime_ms else UNKNOWN
                by_age[name].add(used)
            if not used.is_dir:
                allocated[used.path] = used
        if ends is not None:
            _preallocated(usage.preallocated, ends, allocated)
            continue
        checkpoints = CheckpointLines(log_dir, keeps_ms=KEEPS_MS)
        for partition in folders.partitions:
            if progress is not None:
                progress(1)
            with (
                contextlib.suppress(KafkalogError),  # the end of an unreadable log is unknown
                PartitionView(log_dir, partition, checkpoints=checkpoints) as view,
            ):
                _preallocated(usage.preallocated, active_ends(view.snapshot), allocated)
    by_topic, by_kind = defaultdict[str, Sum](Sum), defaultdict[str, Sum](Sum)
    for (topic, kind), part in by_place.items():
        for whole in (usage.total, by_topic[topic], by_kind[kind]):
            whole.take(part)
    usage.by_topic = dict(sorted(by_topic.items(), key=lambda entry: -entry[1].allocated))
    usage.by_kind = {kind: by_kind[kind] for kind in KINDS if kind in by_kind}
    usage.by_age = {name: by_age[name] for name in (*dict(AGES), UNKNOWN) if name in by_age}
    return usage


def _walk(
    log_dir: str,
    folders: Folders,
    asked: Collection[str],
    seen: set[tuple[int, int]],
    tell: Callable[[OSError], object],
) -> Iterator[Used]:
    if not asked:
        yield from walk(log_dir, seen, tell)
        return
    for path in sorted([*folders.partitions.values(), *folders.moving]):
        try:
            yield from walk(path, seen, tell)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError as error:
            tell(error)


def _homes(found: Folders) -> dict[str, tuple[str, str | None]]:
    """Maps a directory's name to the topic, and to the kind of everything in it (None: by each file)."""
    homes: dict[str, tuple[str, str | None]] = {}

    def put(paths: Iterable[str], kind: str) -> None:
        for path in paths:
            homes[os.path.basename(path)] = (names.parse_topic_partition_name(path).topic, kind)

    for partition, path in found.partitions.items():
        homes[os.path.basename(path)] = (partition.topic, None)
    put(found.deleted, "-delete")
    put(found.future, "-future")
    put(found.strays, "-stray")
    if found.metadata is not None:
        homes[os.path.basename(found.metadata)] = (names.CLUSTER_METADATA_TOPIC, "metadata log")
    for path in found.foreign_folders + found.foreign_files:
        homes[os.path.basename(path)] = (DIRECTORY, "foreign")
    return homes


def _place(relative: str, used: Used, homes: dict[str, tuple[str, str | None]]) -> tuple[str, str]:
    """Returns (topic, kind) of a file or directory."""
    top, _, inside = relative.partition(os.sep)
    if not relative:
        return DIRECTORY, "folders"
    if top not in homes:
        return DIRECTORY, "folders" if used.is_dir else "checkpoints"
    topic, kind = homes[top]
    if kind is not None:
        return topic, kind
    if used.is_dir:
        return topic, "folders" if not inside else "foreign"
    return topic, _kind_of(inside)


@functools.lru_cache(maxsize=4096)  # many partitions have files of the same names
def _kind_of(name: str) -> str:
    for suffix in (names.DELETED_FILE_SUFFIX, names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX):
        if name.endswith(suffix):
            return suffix
    if name in (names.LEADER_EPOCH_CHECKPOINT_FILE, names.PARTITION_METADATA_FILE):
        return "checkpoints"
    for suffix, kind in _BY_SUFFIX:
        if names.segment_base(name, suffix) is not None:
            return kind
    return "foreign"


def active_ends(seen: Snapshot) -> dict[str, int]:
    """Returns where the content of each file of the active segment ends, by path."""
    if not seen.segments:
        return {}
    last = seen.segments[-1]
    return {
        last.path: seen.readable_bytes(last),
        names.offset_index_file(seen.directory, last.base_offset): len(last.offset_entries) * OFFSET_ENTRY.size,
        names.time_index_file(seen.directory, last.base_offset): len(last.time_entries) * TIME_ENTRY.size,
    }


def _preallocated(total: Sum, ends: Mapping[str, int], allocated: Mapping[str, Used]) -> None:
    for path, end in ends.items():
        used = allocated.get(path)
        if used is not None and used.size > end:
            total.files += 1
            total.size += used.size - end
            total.allocated += max(0, used.allocated - -(-end // _BLOCK_BYTES) * _BLOCK_BYTES)


def __dir__() -> list[str]:
    return __all__
