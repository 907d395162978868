"""Shows what an unclean open would do to partitions, by doing it on an overlay of the directory; or does it.

Both ways run the same code, UnifiedLog's loader, so the preview is what happens.  At the first damage after the
recovery point a log is truncated and everything after it dropped, as in Kafka; `toolbox.salvage` keeps more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalog._face.opening import open_log
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, File, Files, ManualScheduler
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.files.overlay import OverlayFiles, Watch, watched_files
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory as directories
from kafkalog.engine.host.backups import refuse_in_backup
from kafkalog.engine.host.loading import log_folders
from kafkalog.engine.host.log_dirs import list_partitions, refuse_foreign
from kafkalog.engine.log.damage import Damage
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import (
    BadBytesError,
    BeingWrittenException,
    KafkalogError,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.partition import Partition
from kafkalog.toolbox.gaps import began_below, may_be_compacted, may_begin_later, missing_segments
from kafkalog.toolbox.losses import LostRange, indexed_time
from kafkalog.toolbox.lost_end import lost_end
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests, may_pass
from kafkalog.toolbox.unread import no_file, unread, unread_file, unread_settings

__all__ = ["Cut", "Recovered", "hold_directory", "not_recovered", "open_undamaged", "recover", "unlink_what_waits"]

READ_BYTES = 1 << 20
HOLDER = TopicPartition("", -1)  # no partition has this name


class Cut(NamedTuple):
    """A truncation of a segment's log: `length` bytes from `position` to its end."""

    path: str
    position: int
    length: int
    why: str


@dataclass
class Recovered:
    """The result for one partition.

    It says what is removed, where the log ends now, and which files of its directory differ, by name.
    """

    partition: TopicPartition
    recovery_point: int
    cuts: list[Cut] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)  # whole logs after damage: path -> bytes
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    log_start_offset: int = -1
    end_offset: int = -1
    old_end_offset: int = -1  # as far as is known: after the last batch that could be found
    lost_records: int = 0  # at most: a damaged batch counts by its header, or by the gap in the offsets
    error: KafkalogError | None = None  # the partition does not open
    unread: Finding | None = None  # the file that cannot be read, if that is the cause
    lost: list[LostRange] = field(default_factory=list)  # the records that each truncation removes, with their times
    # offsets that were flushed and are missing; a recovery forgets that they were flushed
    lost_end: Finding | None = None
    missing: list[Finding] = field(default_factory=list)  # segments that were missing before
    missing_records: int = 0  # the part of `lost_records` in such segments, as far as is known
    beside: list[Finding] = field(default_factory=list)  # files of the directory that cannot be read and count as empty
    # whole segments before it were not checked, because they are before the recovery point
    unread_below: int | None = None

    @property
    def lost_bytes(self) -> int:
        """Bytes of logs that are, or would be, removed."""
        return sum(cut.length for cut in self.cuts) + sum(self.dropped.values())


class _CutWatch(Watch):
    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.cuts: list[Cut] = []
        self.damages: list[Damage] = []
        self.lost: list[LostRange] = []
        self.missing: list[LostRange] = []  # already missing before
        self._progress = progress
        self._looking = False

    def add(self, damage: Damage, files: Files) -> None:
        """Notes a truncation that is about to happen."""
        self.damages.append(damage)
        if damage.blank:
            return
        last = damage.last_timestamp
        if last < 0:  # now, because the time indexes are removed with the logs, or truncated next
            logs = [damage.path, *damage.dropped]
            bases = [(log, names.segment_base(os.path.basename(log))) for log in logs]
            last = max(
                [indexed_time(files, log, base, damage.new_end, None) for log, base in bases if base is not None],
                default=-1,
            )
        length = damage.cut_bytes + sum(damage.dropped.values())
        records = damage.records if damage.records or damage.old_end > damage.new_end else None
        self.lost.append(LostRange(HOLDER, damage.path, damage.position, length, records, damage.first_timestamp, last))

    def has_read(self, path: str, size_bytes: int) -> None:
        if self._progress is not None and not self._looking and path.endswith(names.LOG_FILE_SUFFIX):
            self._progress(size_bytes)

    def before_cut(self, file: File, size: int) -> None:
        if not file.path.endswith(names.LOG_FILE_SUFFIX):
            return
        self._looking = True
        before = file.size()
        scan = LogScan(file, size, before)
        whole = any(True for _ in scan)
        self._looking = False
        why = "batches that do not belong here" if whole else reason(scan.stopped)
        self.cuts.append(Cut(file.path, size, before - size, why))


def recover(
    log_dir: str | os.PathLike[str],
    partitions: Collection[TopicPartition],
    *,
    act: bool,
    config: Mapping[str, str] | None = None,
    from_start: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Recovered]:
    """Recovers partitions from their recovery points on, or previews it.

    If every partition of the directory was recovered, and nothing is `not_recovered`, the directory is left as after a
    clean shutdown.  A preview (`act=False`) writes nothing and takes no lock.  If another process writes meanwhile,
    what seems wrong is checked again.

    Args:
        log_dir: The log directory.
        partitions: The partitions to recover.
        act: Recovers; False only previews.
        config: Topic settings that override those stored next to the data; `index.interval.bytes` determines the
            rebuilt indexes.
        from_start: Ignores the recovery points, so that everything is checked.
        progress: Called with the number of log bytes just read.

    Yields:
        A `Recovered` for each partition.  In a preview, its `error` is BeingWrittenException if the partition never
        stopped changing, and UnknownTopicOrPartitionException if it was deleted.  Its `beside` has files of settings or
        recovery points that cannot be read and count as empty.

    Raises:
        LogDirLockedException: Another process has the directory.
        IllegalArgumentException: The directory is a backup's, with `act`.
        KafkaStorageException: The recovery points cannot be read, with `act` and without `from_start`.

    Example:
        >>> from kafkalog.toolbox.recovery import recover
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> (found,) = recover("shop", [kafkalog.TopicPartition("orders", 0)], act=False, from_start=True)
        >>> found.end_offset, found.cuts, found.lost_bytes
        (2, [], 0)
    """
    root = os.path.realpath(log_dir)
    settings = TopicSettings(root, config, files=OS_FILES)
    beside = [each for each in [unread_settings(settings)] if each is not None]
    if act:
        refuse_in_backup(root, OS_FILES)
        watch = _CutWatch(progress)
        yield from _recover(
            root, partitions, settings, watched_files(watch), watch, beside, act=True, from_start=from_start
        )
        return

    def look_again(partition: TopicPartition) -> Recovered:
        watch = _CutWatch(progress)
        with OverlayFiles(watch=watch) as overlay:
            (found,) = _recover(root, [partition], settings, overlay, watch, beside, from_start=from_start)
        return found

    watch = _CutWatch(progress)
    with (
        OverlayFiles(watch=watch) as overlay,
        closing(_recover(root, partitions, settings, overlay, watch, beside, from_start=from_start)) as first_looks,
    ):
        for partition in partitions:
            first: Iterator[Recovered] | None = first_looks

            def look(partition: TopicPartition = partition) -> Recovered:
                nonlocal first
                looks, first = first, None
                found = None if looks is None else next(looks, None)  # None after an error
                return found or look_again(partition)

            try:
                yield look_while_it_rests(root, partition, look, _wrong)
            except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
                yield Recovered(partition, 0, error=error)


def _wrong(result: Recovered) -> list[Wrong]:
    """Returns what a clean log would not have."""
    wrong = [Wrong(cut.path, cut.position, cut.why) for cut in result.cuts]
    wrong += [Wrong(path, None, "dropped") for path in result.dropped]
    wrong += [Wrong(each.path, None, each.what) for each in result.missing]
    wrong += [] if result.lost_end is None else [Wrong(result.lost_end.path, None, result.lost_end.what)]
    if result.error is None:
        return wrong
    return [*wrong, Wrong.of(result.error)] if may_pass(result.error) else []


def _recover(
    root: str,
    partitions: Collection[TopicPartition],
    settings: TopicSettings,
    files: Files,
    watch: _CutWatch,
    beside: Sequence[Finding],
    *,
    act: bool = False,
    from_start: bool,
) -> Generator[Recovered]:
    refuse_foreign(root, files)
    with files.lock(os.path.join(root, names.LOCK_FILE)):
        flushed, points, unread_points = _distrust(root, partitions, files, act=act, from_start=from_start)
    beside = [*beside, *([] if unread_points is None else [unread_points])]
    starts = OffsetCheckpointFile(os.path.join(root, names.LOG_START_OFFSET_CHECKPOINT_FILE), files, create=False)
    log_starts = starts.read_or_empty()
    compacted = may_be_compacted(root, partitions, files, if_unknown=True)
    begins_later = may_begin_later(root, partitions, files)
    hold = hold_directory(root, files)
    try:
        for partition in partitions:
            folder = os.path.join(root, str(partition))
            result = Recovered(partition, points.get(partition, 0), beside=beside)
            watch.cuts, watch.damages, watch.lost, watch.missing = [], [], [], []
            before: dict[str, _Seen] | None = None
            odd: Finding | None = None
            try:
                logs = [name for name in files.list_dir(folder) if names.segment_base(name) is not None]
                found = (no_file(os.path.join(folder, name), files) for name in logs)
                odd = next((each for each in found if each is not None), None)
                if odd is not None:  # the engine would continue without it, and delete what belongs to it
                    raise KafkaStorageException(f"cannot read {partition}", path=odd.path)
                before = _look(files, folder)
                trusted = [base for base in names.offsets_in(before) if base <= result.recovery_point]
                result.unread_below = trusted[-1] if len(trusted) > 1 else None
                began = None if partition in begins_later else began_below(folder, files)
                start, tells = log_starts.get(partition, 0), partition not in compacted
                missing = missing_segments(folder, before, files, start, began, tells=tells)
                with open_log(
                    root,
                    partition,
                    config=settings.of(partition.topic),
                    create=False,
                    files=files,
                    abort_left_open=False,
                    on_damage=lambda damage: watch.add(damage, files),
                    take_over=True,
                ) as log:
                    result.log_start_offset, result.end_offset = log.log_start_offset, log.end_offset
                result.old_end_offset = max((damage.old_end for damage in watch.damages), default=-1)
                result.old_end_offset = max(result.old_end_offset, result.end_offset)
                result.lost_records = sum(damage.records for damage in watch.damages)
                for finding, lost, first in missing:
                    # A truncation is reported with everything after it.
                    if first < result.end_offset or not watch.damages:
                        result.missing.append(finding)
                        watch.missing.append(lost)
                        result.missing_records += lost.records or 0
                result.lost_records += result.missing_records
                if not watch.lost:  # a truncation is reported with everything after it
                    bases = names.offsets_in(before)
                    end = lost_end(folder, bases, flushed.get(partition, 0), result.end_offset, result.log_start_offset)
                    if end is not None:
                        result.lost_end = end.finding
                        result.old_end_offset = end.last_offset + 1
                        watch.lost.append(end.range_of(partition))
                        result.lost_records += end.last_offset + 1 - end.first_offset
            except (KafkalogError, OSError) as error:
                result.unread = odd or unread_file(error, folder, files)
                if isinstance(error, KafkalogError):
                    result.error = error
                elif result.unread is not None:
                    result.error = KafkaStorageException.because_of(error, f"cannot read {partition}")
                else:
                    raise
                hold.leave(clean=False)  # the directory counts as offline now: open it again for the next partition
                hold = hold_directory(root, files)
            result.cuts = watch.cuts
            result.lost = [each._replace(partition=partition) for each in [*watch.missing, *watch.lost]]
            if before is not None:
                try:
                    _compare(result, folder, before, _look(files, folder))
                except OSError as error:
                    if result.unread is None or unread(error, folder) is None:
                        raise
            yield result
    finally:
        hold.leave(clean=True)


def not_recovered(log_dir: str | os.PathLike[str], files: Files = OS_FILES) -> list[str]:
    """Returns the directories that the next start loads and `recover` does not: `-future`, `-delete` and `-stray` ones.

    As long as any exist, no clean-shutdown marker is written, and that start recovers them.

    Args:
        log_dir: The log directory.
        files: The file system; for tests.

    Returns:
        Their paths, sorted.

    Raises:
        OSError: The directory cannot be listed.

    Example:
        >>> from kafkalog.toolbox.recovery import not_recovered
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> not_recovered("shop")
        []
    """
    root = os.path.realpath(log_dir)
    return sorted({*log_folders(root, files)[0]}.difference(list_partitions(root, files=files).values()))


def hold_directory(root: str, files: Files, clock: Clock = SYSTEM_CLOCK) -> directories.Lease:
    """Locks a log directory for changes of several partitions.

    Background work only runs at `tick` of the lease's scheduler.

    Args:
        root: The log directory.
        files: The file system.
        clock: The clock; for tests.

    Returns:
        A lease; call `leave(clean=...)` at the end.

    Raises:
        LogDirLockedException: Another process has the directory.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.recovery import hold_directory
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> hold_directory("shop", OS_FILES).leave(clean=True)
    """
    return directories.enter(os.path.realpath(root), HOLDER, files, clock, ManualScheduler(clock), create=False)


def unlink_what_waits(hold: directories.Lease) -> None:
    """Deletes files that were renamed for deletion and whose delay is over.

    A task that found no space before these deletions is no error: closing its log does what is due, or is refused.

    Args:
        hold: The lease of `hold_directory`.

    Raises:
        KafkaStorageException: A background task failed.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.recovery import hold_directory, unlink_what_waits
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> hold = hold_directory("shop", OS_FILES)
        >>> unlink_what_waits(hold)
        >>> hold.leave(clean=True)
    """
    scheduler = hold.directory.scheduler
    assert isinstance(scheduler, ManualScheduler)
    scheduler.tick()
    errors = [each for each in scheduler.errors if not is_shortage(each[1])]
    if errors:
        task, error = errors[0]
        path = hold.directory.path
        raise KafkaStorageException(f"{task} failed: {error}", path=path) from error


def open_undamaged(
    log_dir: str, partition: TopicPartition, config: LogConfig, files: Files, clock: Clock = SYSTEM_CLOCK
) -> Partition:
    """Opens an existing log for one requested change: truncates no damage and ends no open transaction.

    Args:
        log_dir: The log directory.
        partition: The partition.
        config: The topic's settings.
        files: The file system.
        clock: The clock; for tests.

    Returns:
        The open partition; close it, or use it as a context manager.

    Raises:
        CorruptRecordException: The log was not closed cleanly and is damaged; `kafkalog recover` truncates it.
        LogDirLockedException: Another process has the directory.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.recovery import open_undamaged
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> orders, config = kafkalog.TopicPartition("orders", 0), kafkalog.LogConfig.from_props({})
        >>> with open_undamaged("shop", orders, config, OS_FILES) as log:
        ...     log.end_offset
        1
    """
    return open_log(
        log_dir,
        partition,
        config=config,
        create=False,
        clock=clock,
        files=files,
        abort_left_open=False,
        on_damage="raise",
        take_over=True,
    )


def _distrust(
    root: str, partitions: Collection[TopicPartition], files: Files, *, act: bool, from_start: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], Finding | None]:
    """Marks the directory as not closed cleanly.

    Returns the recovery points that it has, those that count, and the finding if they cannot be read: then none counts,
    as for a start.  Raises KafkaStorageException, and nothing is changed."""
    path = os.path.join(root, names.RECOVERY_POINT_CHECKPOINT_FILE)
    checkpoint = OffsetCheckpointFile(path, files, create=False)
    flushed: dict[TopicPartition, int] = {}
    wrong = None
    try:
        flushed = checkpoint.read()
    except FileNotFoundError:
        from_start = False  # there is nothing to ignore
    except BadBytesError as error:
        wrong = Finding(path, 0, 0, f"{str(error).removeprefix(f'{path}: ')}; all records count as not flushed")
    except OSError as error:
        found = unread(error, path)
        if found is None:
            raise
        if act and not from_start:  # damage in flushed records would be truncated
            hint = "use --from-start (from_start=True) to recover all records without it"
            raise KafkaStorageException(found.what, path=path, hint=hint) from error
        wrong = found._replace(what=f"{found.what}; all records count as not flushed")
        from_start = True  # a readable file replaces it
    CleanShutdownFile(root, files).delete()
    points = flushed
    if from_start:
        points = {partition: offset for partition, offset in flushed.items() if partition not in partitions}
        checkpoint.write(points)
    return flushed, points, wrong


class _Seen(NamedTuple):
    size: int
    digest: int


def _look(files: Files, folder: str) -> dict[str, _Seen]:
    """Returns for every file of a directory its size and, except for logs, a checksum."""
    seen = {}
    for name in files.list_files(folder):
        path = os.path.join(folder, name)
        if name.endswith((names.LOG_FILE_SUFFIX, names.DELETED_FILE_SUFFIX)):
            seen[name] = _Seen(files.stat(path).size, 0)
            continue
        with files.open(path, writable=False) as file:
            size, position, digest = file.size(), 0, 0
            while position < min(size, SEGMENT_FILE_BYTES_MAX) and (data := file.pread(READ_BYTES, position)):
                digest = crc32c(data, digest)
                position += len(data)
            seen[name] = _Seen(size, digest)
    return seen


def _compare(result: Recovered, folder: str, before: dict[str, _Seen], after: dict[str, _Seen]) -> None:
    deleted = names.DELETED_FILE_SUFFIX  # counts as deleted: the next open removes it
    before = {name: seen for name, seen in before.items() if not name.endswith(deleted)}
    after = {name: seen for name, seen in after.items() if not name.endswith(deleted)}
    result.added = sorted(after.keys() - before.keys())
    result.removed = sorted(before.keys() - after.keys())
    result.changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    for name in result.removed:
        if name.endswith(names.LOG_FILE_SUFFIX):
            result.dropped[os.path.join(folder, name)] = before[name].size
    kept = set(after)
    result.cuts = [cut for cut in result.cuts if os.path.basename(cut.path) in kept]


def __dir__() -> list[str]:
    return __all__
