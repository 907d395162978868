"""The tables of findings and damage: what is wrong with which file, and what is left of it.

In depth, findings are those of `kafkalog verify --deep`.  Otherwise a glance looks at all partitions without reading
their logs, and those in which it finds something are verified, as far as they are not too large.

Each damaged file has three rows of stretches, which cover it: as it is now, after a recovery, and in the copy that
`kafkalog salvage` would write.  A recovery is an unclean open: it truncates a log at the first damage after the
recovery point.  Nothing is written: the recovery is previewed, and the findings say what salvage would copy.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError, UnknownTopicOrPartitionException
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.glance import KnownEnd, glance
from kafkalog.toolbox.recovery import Recovered, recover
from kafkalog.toolbox.report import Finding, Report
from kafkalog.toolbox.verify import verify

if TYPE_CHECKING:
    from kafkalog.report.tables import Survey

FINDINGS_MAX = 2000  # without depth
STRETCHES_MAX = 2000  # in one row of a file; the others are merged into the last one
VERIFIED_BYTES_MAX = 1 << 30  # without depth: so much of the logs that a glance finds damaged is read


class Stretch(NamedTuple):
    """Bytes of a file from `begin` to `end` (-1: the file's end), and how many records they have, if that is known."""

    begin: int
    end: int
    records: int | None = None


def add_damage(
    survey: Survey,
    log_dir: str,
    partitions: Mapping[TopicPartition, str] | None = None,
    *,
    whole: bool = True,
    ends: Mapping[TopicPartition, KnownEnd] | None = None,
    progress: Callable[[int], None] | None = None,
    files: Files = OS_FILES,
) -> Report:
    """Adds the findings about partitions of a log directory, and the maps of their damaged files.

    `partitions` maps them to their directories; None means all.  `ends` is as for `glance`.  With `whole`, files
    that belong to no partition are checked too.  A finding replaces one that the table already has about the same
    file."""
    if partitions is None:
        partitions = folders_of(log_dir, files).logs
    if survey.deep:
        report = verify(log_dir, None if whole else partitions, deep=True, files=files, progress=progress)
        chosen = _damaged(report, partitions)
    else:
        report = (
            Report() if _is_away(log_dir, files) else glance(log_dir, partitions, whole=whole, ends=ends, files=files)
        )
        chosen = _small_enough(survey, _damaged(report, partitions), partitions, files)
        with suppress(UnknownTopicOrPartitionException):  # deleted meanwhile; the glance stays
            if chosen:
                _look_closer(report, verify(log_dir, chosen, files=files), chosen)
    checked = partitions if survey.deep else chosen
    _add_findings(survey, report.findings, checked, log_dir if survey.deep and whole else None)
    if not _is_away(log_dir, files):
        _Map(survey, report, _previews(survey, log_dir, chosen), files).add()
    return report


def _is_away(log_dir: str, files: Files) -> bool:
    """Returns whether the directory continues in a remote tier: its objects are only checked in depth."""
    return files is not OS_FILES or mounted(log_dir) is not None


def _damaged(report: Report, partitions: Mapping[TopicPartition, str]) -> list[TopicPartition]:
    found = {each.partition for each in report.lost}
    found.update(of for each in report.findings if (of := partition_of(each.path)) is not None)
    return sorted(found & partitions.keys())


def _small_enough(
    survey: Survey, damaged: list[TopicPartition], paths: Mapping[TopicPartition, str], files: Files
) -> list[TopicPartition]:
    """Returns the damaged partitions that are verified without depth."""
    chosen, facts = [], survey.facts
    for partition in damaged:
        size = _log_bytes(paths[partition], files)
        if facts.get("verifiedBytes", 0) + size <= VERIFIED_BYTES_MAX:
            facts["verifiedBytes"] = facts.get("verifiedBytes", 0) + size
            chosen.append(partition)
        else:
            facts["damagedNotVerified"] = facts.get("damagedNotVerified", 0) + 1
    return chosen


def _look_closer(report: Report, closer: Report, chosen: Iterable[TopicPartition]) -> None:
    """Replaces what a report has about some partitions by what a closer look found."""
    looked = set(chosen)
    report.findings = [each for each in report.findings if partition_of(each.path) not in looked] + closer.findings
    report.lost = [each for each in report.lost if each.partition not in looked] + closer.lost


def partition_of(path: str) -> TopicPartition | None:
    """Returns the partition that a file, or a directory, is of; None if it is of none."""
    for each in (path, os.path.dirname(path)):
        with suppress(KafkalogError):
            return names.parse_topic_partition_name(each)
    return None


def _add_findings(
    survey: Survey, findings: Iterable[Finding], checked: Collection[TopicPartition], all_of: str | None
) -> None:
    """Adds findings; rows about the same files, or about partitions that were `checked`, are replaced.

    Everything in the directory `all_of` was checked: a row about something else in it becomes a text of the fact
    `otherFindings`."""
    table, new = survey.tables["findings"], list(findings)
    paths, of = {each.path for each in new}, {tuple(each) for each in checked}
    kept = [row for row in table.rows() if row["path"] not in paths and (row["topic"], row["partition"]) not in of]
    if all_of is not None:
        inside = os.path.join(all_of, "")
        others = [row for row in kept if os.path.join(row["path"], "").startswith(inside)]
        kept = [row for row in kept if row not in others]
        told = {each.what for each in new}
        texts = dict.fromkeys(f"{row['path']}: {row['what']}" for row in others if row["what"] not in told)
        if texts:
            survey.facts["otherFindings"] = [*survey.facts.get("otherFindings", ()), *texts]
    if len(kept) < len(table):
        for values in table.columns.values():
            values.clear()
        for row in kept:
            table.add(**row)
    shown = new if survey.deep else new[:FINDINGS_MAX]
    survey.leave_out("findings", len(new) - len(shown))
    for each in shown:
        partition = partition_of(each.path)
        table.add(
            topic=None if partition is None else partition.topic,
            partition=None if partition is None else partition.partition,
            path=each.path,
            position=each.position,
            length=each.length,
            what=each.what,
        )


def _previews(survey: Survey, log_dir: str, chosen: list[TopicPartition]) -> list[Recovered]:
    """Returns what an unclean open would do to damaged partitions."""
    if not chosen:
        return []
    try:
        return list(recover(log_dir, chosen, act=False))
    except (KafkalogError, OSError) as error:
        survey.facts["recoveriesUnknown"] = " ".join(str(error).split())
        return []


def _log_bytes(path: str, files: Files) -> int:
    total = 0
    with suppress(OSError):
        for name in files.list_dir(path):
            if names.segment_base(name) is not None:
                total += files.stat(os.path.join(path, name)).size
    return total


class _Map:
    """The map of the damaged files of one directory."""

    def __init__(self, survey: Survey, report: Report, recovered: Iterable[Recovered], files: Files) -> None:
        self.table = survey.tables["damage"]
        self.files = files
        self.log_dirs = {os.path.abspath(log_dir): log_dir for log_dir in survey.log_dirs}
        self.damaged: dict[str, list[Stretch]] = defaultdict(list)
        self.lost: dict[str, list[Stretch]] = defaultdict(list)
        self.cut: dict[str, list[Stretch]] = defaultdict(list)
        for each in report.lost:
            if each.length > 0:
                self.lost[each.path].append(Stretch(each.position, each.position + each.length, each.records))
        for path, stretches in self.lost.items():
            self.damaged[path] += stretches
        for finding in report.findings:
            is_log = finding.path.endswith(names.LOG_FILE_SUFFIX)
            if finding.length > 0 or not is_log:  # one about no bytes of a log is about what is missing
                end = finding.position + finding.length if finding.length > 0 else -1
                self.damaged[finding.path].append(Stretch(finding.position if end >= 0 else 0, end))
        self.previewed: set[TopicPartition] = set()
        for preview in recovered:
            if preview.error is None:
                self.previewed.add(preview.partition)
                self._add_recovered(preview)

    def _add_recovered(self, preview: Recovered) -> None:
        """Adds what a recovery cuts.  It names files by absolute paths, and findings by those that were given."""
        records = {(each.path, each.position): each.records for each in preview.lost}
        for cut in preview.cuts:
            # The records of a truncation are those of all logs that it drops.
            told = None if preview.dropped else records.get((cut.path, cut.position))
            self.cut[self._as_given(cut.path)].append(Stretch(cut.position, cut.position + cut.length, told))
        for path in preview.dropped:
            self.cut[self._as_given(path)].append(Stretch(0, -1))

    def _as_given(self, path: str) -> str:
        log_dir = os.path.dirname(os.path.dirname(path))
        given = self.log_dirs.get(log_dir)
        return path if given is None else os.path.join(given, path[len(log_dir) + 1 :])

    def add(self) -> None:
        """Adds the rows: for each file first as it is now, then after a recovery, and in a salvaged copy."""
        for path in sorted({*self.damaged, *self.cut}):
            try:
                stat = self.files.stat(path)
            except (KafkalogError, OSError):
                continue
            if not stat.is_file or stat.size == 0:
                continue
            partition = partition_of(path)
            self._add(path, partition, stat.size, "now", ("good", "damaged"), self.damaged.get(path, ()))
            if not path.endswith(names.LOG_FILE_SUFFIX):
                continue  # a recovery and a salvage write the others anew
            if partition in self.previewed:
                self._add(path, partition, stat.size, "recovery", ("kept", "cut"), self.cut.get(path, ()))
            self._add(path, partition, stat.size, "salvage", ("saved", "lost"), self.lost.get(path, ()))

    def _add(
        self,
        path: str,
        partition: TopicPartition | None,
        size: int,
        way: str,
        states: tuple[str, str],
        bad: Iterable[Stretch],
    ) -> None:
        for is_bad, stretch in covering(bad, size):
            self.table.add(
                topic=None if partition is None else partition.topic,
                partition=None if partition is None else partition.partition,
                path=path,
                size=size,
                way=way,
                state=states[is_bad],
                fromByte=stretch.begin,
                toByte=stretch.end,
                bytes=stretch.end - stretch.begin,
                records=stretch.records,
            )


def covering(bad: Iterable[Stretch], size: int) -> Iterator[tuple[bool, Stretch]]:
    """Yields stretches that cover a file without overlap, and whether each is bad.  Bad ones that overlap are merged,
    and those that touch are not."""
    merged: list[Stretch] = []
    for each in sorted(bad, key=lambda stretch: stretch[:2]):
        begin, end = max(0, each.begin), size if each.end < 0 else min(each.end, size)
        if begin >= end:
            continue
        if merged and (begin < merged[-1].end or len(merged) >= STRETCHES_MAX):
            last = merged[-1]
            told = each.records if last.records is None else last.records
            if None not in (each.records, last.records) and begin >= last.end:
                told = (each.records or 0) + (last.records or 0)
            merged[-1] = Stretch(last.begin, max(last.end, end), told)
        else:
            merged.append(Stretch(begin, end, each.records))
    position = 0
    for each in merged:
        if position < each.begin:
            yield False, Stretch(position, each.begin)
        yield True, each
        position = each.end
    if position < size:
        yield False, Stretch(position, size)
