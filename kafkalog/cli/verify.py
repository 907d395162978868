"""`kafkalog verify`: is this log directory whole, and if not, what is wrong where."""

from __future__ import annotations

import os

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.choosing import check_missing
from kafkalog.cli.console import (
    Progress,
    emit,
    emit_json,
    locate,
    log_bytes,
    note,
    paint,
    tell_findings,
)
from kafkalog.cli.loss_table import note_next_of, print_losses
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.cli.tables import utc_option
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.gaps import is_of_gap_alone
from kafkalog.toolbox.report import Report
from kafkalog.toolbox.verify import verify


@click.command("verify", short_help="Check every batch and every index entry.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option("--deep", is_flag=True, help="Decode every record; check sequences, transactions and epochs too.")
@click.option("--json", "as_json", is_flag=True, help="JSON: findings, topics that lost records, a summary.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
@utc_option
@both_tiers
def command(log_dir: str, partitions: tuple[str, ...], deep: bool, as_json: bool, progress: bool) -> int:
    """Check LOG_DIR, or only the named PARTITIONS (topic-0, a topic, or a glob): every batch, index entry, small file.

    Each line of the damage map has file, first byte, end, and what is wrong.  Works beside a running broker, whose
    last batches may then be half written.  With --remote the tier's copies are checked, too, of segments that the disk
    has as well (these are counted once).  It ends with a table of what is lost of each topic: records at most, ranges
    of offsets, and between which times, by the batches and time indexes around the damage.  Exit 0 when all is well,
    1 with findings.
    """
    root, chosen = locate(log_dir, partitions)
    some = list(chosen) if partitions or root != log_dir else None
    check_missing(log_dir, root, partitions, None)
    with Progress(log_bytes(chosen.values()), "verified", force=progress) as bar:
        report = verify(root, some, deep=deep, progress=bar.advance)
    return print_report(report, as_json, None if mounted(root) is not None else root)


def print_report(report: Report, as_json: bool, log_dir: str | None = None) -> int:
    """Findings, notes, what is lost of each topic, and a summary; the exit code.  `log_dir`: the one directory of this
    machine that was looked at; then the command that helps next is named, too."""
    tell_findings(report.findings, report.notes, as_json=as_json)
    print_losses(report.lost, as_json=as_json)
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "ok": report.ok,
                "findings": len(report.findings),
                "partitions": report.partitions,
                "segments": report.segments,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.bytes,
            }
        )
    else:
        verdict = paint("clean", "green") if report.ok else paint(f"{len(report.findings)} findings", "red")
        emit(
            f"{verdict}: {report.partitions} partitions, {report.segments} segments, {report.batches} batches, "
            f"{report.records} records, {_shown.size(report.bytes)}"
        )
        if log_dir is not None:
            _note_next(report, log_dir)
    return CLEAN if report.ok else FINDINGS


def _note_next(report: Report, log_dir: str) -> None:
    gaps = {finding.path for finding in report.findings if is_of_gap_alone(finding)}
    others = [finding.path for finding in report.findings if not is_of_gap_alone(finding)]
    logs = [path for path in others if path.endswith(names.LOG_FILE_SUFFIX)]
    damaged = {lost.partition for lost in report.lost if lost.path not in gaps} | set(map(_partition, logs))
    if damaged:  # a rebuilt index no longer tells what the log has lost
        note_next_of("salvage", log_dir, damaged, "NEW_DIR")
        return
    if gaps:
        note(
            f"note: nothing in {log_dir} has the offsets that are in no segment: a backup (`kafkalog restore`) or a "
            "replica may have them"
        )
    indexes = [finding.path for finding in report.findings if names.is_index_file(finding.path)]
    indexes = [path for path in indexes if OS_FILES.exists(os.path.splitext(path)[0] + names.LOG_FILE_SUFFIX)]
    if indexes:
        note_next_of("reindex", log_dir, set(map(_partition, indexes)), "--yes")


def _partition(path: str) -> TopicPartition:
    return names.parse_topic_partition_name(os.path.dirname(path))
