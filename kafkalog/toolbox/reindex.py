"""Rebuild offset and time indexes that are missing or disagree with their log.

Entries are those that a recovery makes: one a `index.interval.bytes`, the largest timestamp at the end.  The log is
only read; a segment whose log is damaged is left alone.  Whoever calls holds the directory's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog._native import batches as native
from kafkalog.files import OS_FILES, Files
from kafkalog.format import names
from kafkalog.segment.file_records import LogScan
from kafkalog.toolbox.index_check import IndexCheck
from kafkalog.toolbox.verify import Report

INDEX_INTERVAL_BYTES = 4096
TAIL_BYTES = 17  # a shorter rest is not seen by Kafka's file framing


class SegmentIndexes(NamedTuple):
    """One segment: what is wrong with its indexes, and the entries that they should have (None: the log is damaged)."""

    base_offset: int
    offset_index_path: str
    time_index_path: str
    findings: list[str]
    offset_entries: bytes | None
    time_entries: bytes | None


def check_indexes(
    directory: str, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES, files: Files = OS_FILES
) -> Iterable[SegmentIndexes]:
    """Each segment of a partition's folder, in order."""
    bases = sorted(
        int(name[: -len(names.LOG_FILE_SUFFIX)])
        for name in files.list_dir(directory)
        if name.endswith(names.LOG_FILE_SUFFIX) and name[: -len(names.LOG_FILE_SUFFIX)].isdigit()
    )
    for base in bases:
        last_segment = base == bases[-1]
        report = Report()
        check = IndexCheck(directory, base, files, report, last_segment=last_segment)
        index_plan = native.IndexPlan(base, index_interval_bytes)
        with files.open(names.log_file(directory, base), writable=False) as log:
            scan = LogScan(log, 0, log.size())
            for piece in scan:
                check.feed(piece.table)
                index_plan.add_table(piece.table)
            whole = scan.end - scan.position <= TAIL_BYTES or last_segment
        check.finish()
        index_plan.add_last_time_entry()
        offset_path, time_path = names.offset_index_file(directory, base), names.time_index_file(directory, base)
        findings = [str(finding) for finding in report.findings if finding.path in (offset_path, time_path)]
        if last_segment:
            findings += [f"{path}: missing" for path in (offset_path, time_path) if not files.exists(path)]
        good = whole and index_plan.error is None
        yield SegmentIndexes(
            base,
            offset_path,
            time_path,
            findings,
            index_plan.offset_entries if good else None,
            index_plan.time_entries if good else None,
        )


def rewrite(segment: SegmentIndexes, *, files: Files = OS_FILES) -> None:
    """Put the right indexes in place, each in one step."""
    assert segment.offset_entries is not None
    assert segment.time_entries is not None
    files.write_atomic(segment.offset_index_path, segment.offset_entries)
    files.write_atomic(segment.time_index_path, segment.time_entries)
    files.sync_dir(os.path.dirname(segment.offset_index_path))
