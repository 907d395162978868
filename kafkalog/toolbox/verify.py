"""Checks a log directory: every batch with its CRC, every index entry, every small file; lists what is damaged.

Only reads, takes no lock, works while a broker is running (then the end of the active segment moves).  Also checks what
no CRC covers: base offsets against their neighbours, magic, and the order of leader epochs.  Continues after damage at
the next batch that can be proved.  Memory is limited to one slice of the file or one batch.  `deep` decodes every
record, and also checks producers' sequences, transactions and epochs against the log (`kafkalog.toolbox.deep`).  A file
or directory that cannot be read (a failing disk, a permission) is a finding too, and the others are still read.

Another process may append, roll, truncate or delete meanwhile.  So if something is wrong with a file that changed or
was deleted during the check, the file is checked again; a deleted file counts as not there.  For a file that keeps
changing, a finding counts if two attempts in a row saw it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from kafkalog.engine.files import OS_FILES, Files, local_path
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import (
    NO_ENTRIES,
    CleanShutdownFile,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    emptied_checkpoints,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import read_partition_metadata
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.topic_configs import known_in
from kafkalog.engine.remote.read_only import ReadOnlyFiles
from kafkalog.errors import (
    KafkalogError,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.folders import another_name, folders_of
from kafkalog.toolbox.gaps import (
    WITHOUT_LOG,
    Gaps,
    began_below,
    index_names_alone,
    indexes_alone,
    may_be_compacted,
    may_begin_later,
)
from kafkalog.toolbox.losses import LostRange
from kafkalog.toolbox.lost_end import RecoveryPoints
from kafkalog.toolbox.report import SECOND_LOOK_S, Report, told
from kafkalog.toolbox.segment_check import SegmentCheck
from kafkalog.toolbox.unread import unread

if TYPE_CHECKING:
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.tiered_files import TieredFiles

__all__ = ["verify", "verify_directory"]


def verify(
    log_dir: str | os.PathLike[str],
    partitions: Iterable[TopicPartition | str] | None = None,
    *,
    deep: bool = False,
    gaps: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Checks a log directory, or some of its partitions.

    With `files=RemoteStorage.tiered_files(...)` it also checks the copies in the remote tier.

    Offsets that are missing between two segments are a finding if an index shows that they existed, or if the directory
    knows that the topic is not compacted.

    Args:
        log_dir: The log directory.
        partitions: The partitions to check, as names ("orders-0") or TopicPartition; None checks everything.
        deep: Also decodes every record, and checks producers and transactions.
        gaps: Reports missing offsets between segments of any topic; for a directory that was never compacted.
        files: The file system, or a remote tier's files.
        progress: Called with the number of bytes just checked.

    Returns:
        A `Report`; its `ok` is True if nothing is wrong, and `findings` lists the damage.

    Raises:
        UnknownTopicOrPartitionException: A named partition does not exist.
        KafkaStorageException: The directory cannot be listed, or there are no free descriptors.

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> report = kafkalog.verify("shop")
        >>> report.ok, report.partitions, report.records
        (True, 1, 2)
    """
    values.function(progress, "progress", "a function of the bytes just checked")
    deep = values.flag(deep, "deep")
    root = local_path(log_dir, what="log_dir", files=files)
    there = list_partitions(root, files=files)
    report = Report()
    if partitions is None:
        chosen = dict(there)
        try:
            verify_directory(root, files, report)
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot verify the log directory") from error
    else:
        by_name = {str(tp): tp for tp in there}
        chosen = {}
        for wanted in partitions:
            found = by_name.get(str(wanted))
            if found is None:
                raise UnknownTopicOrPartitionException(f"no partition {wanted} in {root}")
            chosen[found] = there[found]
    # The checkpoint says where logs begin; problems with it are reported elsewhere.
    checkpoint = os.path.join(root, names.LOG_START_OFFSET_CHECKPOINT_FILE)
    starts = OffsetCheckpointFile(checkpoint, files, create=False).read_or_empty()
    points = RecoveryPoints(root, files)
    tier = mounted(root) if files is OS_FILES else files
    is_tier = isinstance(tier, ReadOnlyFiles)
    compacted = may_be_compacted(root, chosen, files, if_unknown=True)
    begins_later = set(chosen) if is_tier else may_begin_later(root, chosen, files)
    for partition, path in chosen.items():
        report.partitions += 1
        try:
            log_start = starts.get(partition, 0)
            tells = gaps or not (is_tier or partition in compacted)
            walked = verify_partition(
                path,
                files,
                report,
                deep=deep,
                gaps=tells,
                log_start=log_start,
                progress=progress,
                gaps_of=None if is_tier else partial(_gaps, path, files, log_start, partition not in begins_later),
            )
            end = None if walked is None else points.lost_end(partition, path, *walked, log_start)
            if end is not None:
                report.findings.append(end.finding)
                report.lost.append(end.range_of(partition))
        except OSError as error:
            wrong = unread(error, path)
            if wrong is not None:  # the directory, or a file in it that is no segment's
                report.findings.append(wrong)
                report.lost.append(LostRange(partition, wrong.path, 0, -1, None, -1, -1))
                continue
            raise KafkaStorageException.because_of(error, f"cannot verify {partition}") from error
    if is_tier:
        from kafkalog.toolbox.tier_check import check_tier

        check_tier(root, chosen, cast("RemoteFiles | TieredFiles", tier), report)
    return report


def verify_directory(root: str, files: Files, report: Report) -> None:
    """Checks the files of a log directory that belong to no partition.

    These are the checkpoints, the topics' settings and the names of directories.

    Args:
        root: The log directory.
        files: The file system.
        report: The report that gets the findings.

    Raises:
        OSError: The directory cannot be listed.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.report import Report
        >>> from kafkalog.toolbox.verify import verify_directory
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> report = Report()
        >>> verify_directory("shop", OS_FILES, report)
        >>> report.ok
        True
    """
    reads: dict[str, Callable[[], object]] = {}
    for name in names.OFFSET_CHECKPOINT_FILES:
        path = os.path.join(root, name)
        if files.exists(path):
            reads[path] = OffsetCheckpointFile(path, files, create=False).read
    path = os.path.join(root, names.TOPIC_CONFIGS_FILE)
    if files.exists(path):
        reads[path] = lambda: known_in(read_small(path, files), path)
    _check_small_files(reads, report)
    _check_blank(root, files, report)
    for path, partition in folders_of(root, files).other_names.items():
        report.add(path, 0, 0, another_name(path, partition).removeprefix(f"{path}: "))


def _check_blank(root: str, files: Files, report: Report) -> None:
    def look() -> list[str]:
        return emptied_checkpoints(root, files, closed_cleanly=CleanShutdownFile(root, files).exists())

    def blank() -> list[str]:
        try:
            return look()
        except OSError as error:
            if unread(error) is None:
                raise
            return []  # reported with the small files

    found = blank()
    if found:  # a writer of the first lines writes both files one after the other
        time.sleep(SECOND_LOOK_S)
        still = blank()
        for path in found:
            if path in still:
                report.add(path, 0, 0, f"found {NO_ENTRIES}")


def _check_small_files(reads: dict[str, Callable[[], object]], report: Report) -> None:
    """Reports small files whose content cannot be read; `reads` maps paths to functions that read them."""
    doubted = [path for path, read in reads.items() if _problem(read) is not None]
    if doubted:
        time.sleep(SECOND_LOOK_S)
    for path in doubted:
        problem = _problem(reads[path])
        if problem is not None:
            report.add(path, *problem)


def _problem(read: Callable[[], object]) -> tuple[int, int, str] | None:
    """Returns (position, 0, what) of a small file that cannot be read, or has invalid content; else None."""
    try:
        read()
    except RemoteResourceNotFoundException as error:
        return error.position or 0, 0, told(error)
    except FileNotFoundError:  # deleted since it was listed
        return None
    except (KafkalogError, OSError) as error:
        wrong = unread(error)
        if wrong is not None:
            return wrong.position, wrong.length, wrong.what
        if not isinstance(error, KafkalogError):
            raise
        return error.position or 0, 0, told(error)
    return None


def verify_partition(
    directory: str,
    files: Files,
    report: Report,
    *,
    deep: bool = False,
    gaps: bool = False,
    log_start: int = 0,
    progress: Callable[[int], None] | None = None,
    gaps_of: Callable[[list[int]], Gaps] | None = None,
) -> tuple[Sequence[int], int] | None:
    """Checks one partition's directory into `report`.

    `log_start` is the checkpointed log start.  With `gaps_of`, losses in gaps between segments are counted, and gaps
    that an index names are findings whatever `gaps` says; it gets the base offsets of segments with an index and no
    log.
    Returns the base offsets of its segments, and the log's end; None if that is unknown, which is reported."""
    names_there = check_names(directory, files, report)
    if names_there is None:
        return None
    listed, bases, lonely = names_there
    checker = SegmentCheck(directory, files, report, progress)
    checker.tells_gaps, checker.tells_unread = gaps, True
    alone = [base for base in indexes_alone(listed, bases) if base in map(_base_of, lonely)]
    if gaps_of is not None:
        checker.gaps = gaps_of(alone)
    deep_check = None
    if deep:
        from kafkalog.toolbox.deep import DeepCheck

        deep_check = DeepCheck(directory, listed, files, report, log_start)
        checker.observe = deep_check.observe
    for base, following in zip_longest(bases, bases[1:]):
        if not checker.check(base, following) and deep_check is not None:
            deep_check.begin_anew()  # everything before it was deleted too
    if deep_check is not None:
        deep_check.finish(checker.next_offset)
    behind = [base for base in alone if base >= max(checker.next_offset, log_start)]
    if behind and checker.gaps is not None and not checker.told_end:
        path = names.log_file(directory, behind[0])
        report.lost.append(checker.losses.segment(path, max(checker.next_offset, log_start), None))
    return None if checker.told_end else (bases, checker.next_offset)


def check_names(directory: str, files: Files, report: Report) -> tuple[list[str], list[int], set[str]] | None:
    """Checks the names in a partition's directory, and its small files.  Returns the names, the segments' base offsets,
    and the names of indexes without a log; None if it was deleted."""
    try:
        listed = files.list_dir(directory)
    except FileNotFoundError:
        report.notes.append(f"{directory}: deleted before it was checked")
        return None
    bases = []
    small: dict[str, Callable[[], object]] = {}
    for name in listed:
        path = os.path.join(directory, name)
        if name.endswith(names.LOG_FILE_SUFFIX):
            base = names.segment_base(name)
            if base is not None:
                bases.append(base)
            else:
                report.add(path, 0, 0, "the name is not a segment's; expected twenty digits and .log")
        elif name.endswith(names.PRODUCER_SNAPSHOT_FILE_SUFFIX):
            small[path] = partial(read_snapshot, path, files)
        elif name == names.LEADER_EPOCH_CHECKPOINT_FILE:
            small[path] = LeaderEpochCheckpointFile(path, files, create=False).read
        elif name == names.PARTITION_METADATA_FILE:
            small[path] = partial(read_partition_metadata, path, files)
        elif name.endswith((names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX)):
            report.notes.append(
                f"{path}: left by an interrupted compaction or split; the next open completes or deletes it"
            )
    _check_small_files(small, report)
    bases.sort()
    lonely = index_names_alone(listed)
    if lonely:
        time.sleep(SECOND_LOOK_S)
        lonely &= index_names_alone(files.list_dir(directory))
    for name in sorted(lonely):
        report.add(os.path.join(directory, name), 0, 0, WITHOUT_LOG)
    return listed, bases, lonely


def _gaps(path: str, files: Files, log_start: int, asks_epochs: bool, alone: list[int]) -> Gaps:
    return Gaps(path, alone, files, log_start, began_below(path, files) if asks_epochs else None)


def _base_of(index: str) -> int | None:
    return names.segment_base(index, os.path.splitext(index)[1])


def __dir__() -> list[str]:
    return __all__
