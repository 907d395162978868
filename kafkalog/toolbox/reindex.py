"""Rebuild indexes (offset, time, aborted transactions) that are missing or disagree with their log.

Entries are those that a recovery makes: one a `index.interval.bytes`, the largest timestamp at the end, each aborted
transaction whose begin is known.  First every old entry is held against the log, behind damage too; an entry that
names a damaged batch is not judged.  The log is only read; a segment whose log is damaged is left alone, but for what
is torn at the log's end.  So is one whose log ends before what its index names: a rebuilt index would no longer tell
that records are lost.  Whoever calls holds the directory's lock.
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
TAIL_BYTES = 17  # a shorter rest is not seen by Kafka's file framing


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
    """Each segment of a partition's folder, in order.  `progress` is called with the bytes of logs just read;
    `forget_lost`: the indexes of a log that ends before what they name have right entries, too: those tell the loss no
    more;
    `tells_unread`: a segment of which a file cannot be read has that as its finding, and the others go on."""
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
    is_cut_off = False  # good batches lie behind damage
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
                report.add(path, 0, 0, "missing")
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
    """Holds index entries against the good batches behind damage at `position`, as `verify` does; whether there are
    such batches."""
    is_cut_off = False
    while position < size:
        found = next_batch(log, position + 1, size, min_offset=next_offset, base_offset=base)
        is_cut_off = is_cut_off or found is not None
        end = size if found is None else found.position
        end_offset = following if found is None else found.base_offset
        if end_offset is not None:  # else an open cuts here, and entries of what it cuts are wrong
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
    """As `check_indexes`, without the entries (`right` is empty), and without the directory's lock.

    BeingWrittenException if somebody changes the files at each look; UnknownTopicOrPartitionException if the folder
    went away meanwhile; OSError.
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
    """Puts the right indexes in place, each in one step; none where there is no space for all."""
    assert segment.right is not None
    files.write_all_atomic(parent_dir(segment.log_path), segment.right)


def __dir__() -> list[str]:
    return __all__
