"""`kafkalog verify`: checks a log directory for damage, and says what is wrong where."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath
from kafkalog.cli.choosing import tell_missing
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    locate,
    log_bytes,
    named_partitions,
    note,
    paint,
    tell_findings,
)
from kafkalog.cli.loss_table import note_next_of, print_losses
from kafkalog.cli.places import log_dirs_at
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.cli.tables import utc_option
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.toolbox.gaps import is_of_gap_alone
from kafkalog.toolbox.report import Report
from kafkalog.toolbox.verify import verify

if TYPE_CHECKING:
    from kafkalog._face.missing import Missing


@click.command("verify", short_help="Check every batch and index entry for damage.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option(
    "--log-dir",
    "others",
    type=LocalPath(),
    multiple=True,
    metavar="DIR",
    help="Another log directory of the same store or broker (log.dirs).  Repeatable.",
)
@click.option("--deep", is_flag=True, help="Also decode every record; check sequences, transactions and epochs.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: findings, topics that lost records, a summary."
)
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@utc_option
@both_tiers
def command(
    log_dir: str, partitions: tuple[str, ...], others: tuple[str, ...], deep: bool, as_json: bool, progress: bool
) -> int:
    """Check every batch, index entry and small file of LOG_DIR, or only of the named PARTITIONS (topic-0, a topic, or a
    glob).

    The command changes nothing, takes no lock, and works while a broker is running; its last batches may then be half
    written.

    \b
    Output, in this order:
      findings      one line each: file, first byte, end, and what is wrong
      lost records  a table with one row for each topic that lost records
      summary       how many partitions, segments, batches and records
                    were checked

    \b
    Columns of the table of lost records:
      LOST OF TOPIC  the topic
      PARTITIONS     how many of its partitions lost records
      RANGES         how many ranges of offsets were lost
      RECORDS        how many records were lost, at most
      BYTES          the size of the damaged part
      FROM, TO       the times between which they were written, from
                     batches and time indexes around the damage

    With --remote the tier's copies are checked too, also those of segments that are on disk (these are counted once).

    Exit 0 if nothing is wrong, 1 with findings. A partition without a directory is reported as missing, but is not a
    finding (exit 0), because it may be on another disk: name that with --log-dir. A script also tests `missing` in the
    summary of --json.

    A segment without any file is a finding only if it is certain that its topic is not compacted: its cleanup.policy
    is known, and no cleaner has processed the partition.
    """
    if others:
        places = log_dirs_at([log_dir, *others])
        there = {place: list_partitions(place) for place in places}
        folders = {tp: path for found in there.values() for tp, path in found.items()}
        wanted = set(named_partitions(folders, partitions, ", ".join(places)))
        looks = {place: [tp for tp in found if tp in wanted] if partitions else None for place, found in there.items()}
        paths = [path for found in there.values() for tp, path in found.items() if tp in wanted]
        topics: tuple[str, ...] = partitions
    else:
        root, chosen = locate(log_dir, partitions)
        is_part = root != log_dir
        looks, paths = {root: list(chosen) if partitions or is_part else None}, list(chosen.values())
        topics = (os.path.basename(os.path.abspath(log_dir)),) if is_part and not partitions else partitions
    missing = tell_missing(list(looks), topics)
    report = Report()
    by_place: dict[str, Report] = {}
    with Progress(log_bytes(paths), "verified", force=progress) as bar:
        for place, some in looks.items():
            if some is None or some:
                by_place[place] = verify(place, some, deep=deep, progress=bar.advance)
                report.take(by_place[place])
    known = {place: found for place, found in by_place.items() if mounted(place) is None}
    return print_report(report, as_json, known, missing)


def print_report(
    report: Report,
    as_json: bool,
    by_place: Mapping[str, Report] | None = None,
    missing: Sequence[Missing] = (),
) -> int:
    """Prints findings, notes, the loss of each topic, and a summary; returns the exit code. `by_place` has the report
    of each local directory; if given, the command that helps next is suggested. `missing` has the partitions that no
    directory has, which were reported before."""
    tell_findings(report.findings, report.notes, as_json=as_json)
    print_losses(report.lost, as_json=as_json)
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "ok": report.ok,
                "findings": len(report.findings),
                "missing": [str(partition) for each in missing for partition in each.partitions],
                "partitions": report.partitions,
                "segments": report.segments,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.bytes,
            }
        )
    else:
        verdict = paint("clean", "green") if report.ok else paint(counted(len(report.findings), "finding"), "red")
        if missing:
            verdict += ", except for what is missing" if report.ok else ", in addition to what is missing"
        emit(
            f"{verdict}: {counted(report.partitions, 'partition')}, {counted(report.segments, 'segment')}, "
            f"{counted(report.batches, 'batch')}, {counted(report.records, 'record')}, {_shown.size(report.bytes)}"
        )
        for log_dir, found in (by_place or {}).items():
            _note_next(found, log_dir)
    return CLEAN if report.ok else FINDINGS


def _note_next(report: Report, log_dir: str) -> None:
    gaps = {finding.path for finding in report.findings if is_of_gap_alone(finding)}
    others = [finding.path for finding in report.findings if not is_of_gap_alone(finding)]
    logs = [path for path in others if path.endswith(names.LOG_FILE_SUFFIX)]
    damaged = {lost.partition for lost in report.lost if lost.path not in gaps} | set(map(_partition, logs))
    if damaged:  # reindex would delete the trace of the loss
        note_next_of("salvage", log_dir, damaged, "NEW_DIR")
        return
    if gaps:
        note(
            f"note: {log_dir} does not have the offsets between its segments: a backup (`kafkalog restore`) or a "
            "replica may have them"
        )
    indexes = [finding.path for finding in report.findings if names.is_index_file(finding.path)]
    indexes = [path for path in indexes if OS_FILES.exists(os.path.splitext(path)[0] + names.LOG_FILE_SUFFIX)]
    if indexes:
        note_next_of("reindex", log_dir, set(map(_partition, indexes)), "--yes")


def _partition(path: str) -> TopicPartition:
    return names.parse_topic_partition_name(os.path.dirname(path))
