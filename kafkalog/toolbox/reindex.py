"""Rebuilds indexes (offset, time, aborted transactions) that are missing or do not match their log.

The entries are those that a recovery makes: one for each `index.interval.bytes`, the largest timestamp at the end, and
each aborted transaction whose begin is known.  First every old entry is compared with the log, also after damage; an
entry that names a damaged batch is not judged.  The log is only read.  A segment with a damaged log is left alone,
unless only its end is incomplete.  So is a segment whose log ends before what its index names, because a rebuilt index
would no longer show that records are lost.  The caller holds the directory's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, File, Files, parent_dir
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.segment.loss import all_zero
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.resync import next_batch
from kafkalog.engine.segment.scan import LogScan
from kafkalog.toolbox.index_check import IndexCheck
from kafkalog.toolbox.report import Finding, Report
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests
from kafkalog.toolbox.transactions import TransactionCheck
from kafkalog.toolbox.unread import no_file, unread

__all__ = ["SegmentIndexes", "check_indexes", "find_wrong_indexes", "rewrite"]

INDEX_INTERVAL_BYTES = 4096
TAIL_BYTES = 17  # Kafka's file framing does not see a shorter rest


class SegmentIndexes(NamedTuple):
    """One segment: what is wrong with its indexes, and what they should hold (None: the log is damaged)."""

    base_offset: int
    log_path: str
    findings: list[Finding]
    right: dict[str, bytes] | None  # path -> entries
    is_cut_short: bool = False  # the log ends before batches that its index names


def check_indexes(
    directory: str,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
    tells_unread: bool = False,
    forget_lost: bool = False,
) -> Iterator[SegmentIndexes]:
    """Checks the indexes of a partition's segments.

    Args:
        directory: The partition's directory.
        index_interval_bytes: The topic's `index.interval.bytes`.
        files: The file system; for tests.
        progress: Called with the number of log bytes just read.
        tells_unread: Reports a segment with an unreadable file as a finding, and continues with the others.
        forget_lost: Also returns entries for a log that ends before what its indexes name; these no longer show the
            loss.

    Yields:
        The `SegmentIndexes` of each segment, in order.

    Raises:
        OSError: A file cannot be read.

    Example:
        >>> from kafkalog.toolbox.reindex import check_indexes
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> [(segment.base_offset, segment.findings) for segment in check_indexes("shop/orders-0")]
        [(0, [])]
    """
    bases = names.offsets_in(files.list_dir(directory))
    transactions = TransactionCheck(directory, files)
    for base, following in zip_longest(bases, bases[1:]):
        path = names.log_file(directory, base)
        wrong = no_file(path, files) if tells_unread else None
        try:
            if wrong is None:
                yield _check(
                    directory, base, following, index_interval_bytes, files, progress, transactions, forget_lost
                )
                continue
        except OSError as error:
            wrong = unread(error, directory) if tells_unread else None
            if wrong is None:
                raise
        transactions.lose_track()
        yield SegmentIndexes(base, path, [wrong], None)


def _check(
    directory: str,
    base: int,
    following: int | None,
    index_interval_bytes: int,
    files: Files,
    progress: Callable[[int], None] | None,
    transactions: TransactionCheck,
    forget_lost: bool,
) -> SegmentIndexes:
    last_segment = following is None
    report = Report()
    check = IndexCheck(directory, base, files, report, last_segment=last_segment)
    plan = native.IndexPlan(base, index_interval_bytes)
    next_offset, fits = base, True
    limit = highest_offset(base, following)
    transactions.begin(base)
    is_cut_off = False  # there are good batches after damage
    log_path = names.log_file(directory, base)
    with files.open(log_path, writable=False) as log:
        size = min(log.size(), SEGMENT_FILE_BYTES_MAX)
        scan = LogScan(log, 0, size)
        for piece in scan:
            check.feed(piece.table)
            fits = fits and not misfits(piece.table, next_offset, limit) and plan.add_table(piece.table)
            next_offset = int(piece.table["last_offset"][-1]) + 1
            transactions.feed(piece)
            if progress is not None:
                progress(int(piece.table["size"].sum()))
        if scan.position < size and not all_zero(log, scan.position, size):
            is_cut_off = _check_behind_damage(log, scan.position, size, check, base, next_offset, following)
    check.finish()
    fits = plan.add_last_time_entry() and fits
    offset_path, time_path = names.offset_index_file(directory, base), names.time_index_file(directory, base)
    txn_path = names.transaction_index_file(directory, base)
    for path, what in check.remarks:
        report.add(path, 0, 0, what)
    if last_segment:
        for path in (offset_path, time_path):
            if not files.exists(path):
                report.add(path, 0, 0, "the file is missing")
    whole = scan.end - scan.position <= TAIL_BYTES or (last_segment and not is_cut_off)
    is_cut_short = check.is_cut_short(following)
    if not (whole and fits) or (is_cut_short and not forget_lost):
        transactions.lose_track()
        return SegmentIndexes(base, log_path, report.findings, None, is_cut_short)
    wrong, aborted = transactions.finish(next_offset - 1 if last_segment else limit)
    for what in wrong:
        report.add(txn_path, 0, 0, what)
    right = {offset_path: plan.offset_entries, time_path: plan.time_entries}
    if aborted or files.exists(txn_path):
        right[txn_path] = aborted
    return SegmentIndexes(base, log_path, report.findings, right)


def _check_behind_damage(
    log: File, position: int, size: int, check: IndexCheck, base: int, next_offset: int, following: int | None
) -> bool:
    """Compares index entries with the good batches after damage at `position`, as `verify` does.  Returns whether such
    batches exist."""
    is_cut_off = False
    while position < size:
        found = next_batch(log, position + 1, size, min_offset=next_offset, base_offset=base)
        is_cut_off = is_cut_off or found is not None
        end = size if found is None else found.position
        end_offset = following if found is None else found.base_offset
        if end_offset is not None:  # otherwise an open truncates here, and entries of what it removes are wrong
            check.pass_over(position, end, next_offset, end_offset)
        scan = LogScan(log, end, size)
        for piece in scan:
            check.feed(piece.table)
            next_offset = int(piece.table["last_offset"][-1]) + 1
        position = scan.position
    return is_cut_off


def find_wrong_indexes(
    log_dir: str,
    partition: TopicPartition,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> list[SegmentIndexes]:
    """Like `check_indexes`, without the entries (`right` is empty), and without the directory's lock.

    Args:
        log_dir: The log directory.
        partition: The partition.
        index_interval_bytes: The topic's `index.interval.bytes`.
        files: The file system; for tests.
        progress: Called with the number of log bytes just read.

    Returns:
        The `SegmentIndexes` of each segment, in order.

    Raises:
        BeingWrittenException: The files changed during each attempt.
        UnknownTopicOrPartitionException: The partition was deleted.
        OSError: The directory cannot be listed.

    Example:
        >>> from kafkalog.toolbox.reindex import find_wrong_indexes
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> find_wrong_indexes("shop", kafkalog.TopicPartition("orders", 0))[0].findings
        []
    """

    def look() -> list[SegmentIndexes]:
        found = check_indexes(
            os.path.join(log_dir, str(partition)),
            index_interval_bytes=index_interval_bytes,
            files=files,
            progress=progress,
            tells_unread=True,
        )
        return [each if each.right is None else each._replace(right={}) for each in found]

    return look_while_it_rests(log_dir, partition, look, _wrong, files=files)


def _wrong(found: list[SegmentIndexes]) -> Iterator[Wrong]:
    for segment in found:
        if segment.right is None:
            yield Wrong(segment.log_path, None, "damaged")
        for finding in segment.findings:
            yield Wrong(finding.path, finding.position, finding.what)


def rewrite(segment: SegmentIndexes, *, files: Files = OS_FILES) -> None:
    """Replaces the indexes of a segment by the right ones, each in one step; none if there is no space for all.

    Args:
        segment: The segment, from `check_indexes`; its `right` must not be None.
        files: The file system; for tests.

    Raises:
        OSError: A file cannot be written.

    Example:
        >>> from kafkalog.toolbox.reindex import check_indexes, rewrite
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> for segment in check_indexes("shop/orders-0"):
        ...     rewrite(segment)
    """
    assert segment.right is not None
    files.write_all_atomic(parent_dir(segment.log_path), segment.right)


def __dir__() -> list[str]:
    return __all__
