"""`kafkalog verify`: is this log directory whole, and if not, what is wrong where."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.choosing import check_missing
from kafkalog.cli.console import Progress, emit, emit_json, fields, locate, log_bytes, note, paint, size_words
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.toolbox.report import Report
from kafkalog.toolbox.verify import verify


@click.command("verify", short_help="Check every batch and every index entry.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option("--deep", is_flag=True, help="Decode every record; check sequences, transactions and epochs too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a finding, and a summary.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
@both_tiers
def command(log_dir: str, partitions: tuple[str, ...], deep: bool, as_json: bool, progress: bool) -> int:
    """Check LOG_DIR, or only the named PARTITIONS (topic-0, a topic, or a glob): every batch, index entry, small file.

    Each line of the damage map has file, first byte, end, and what is wrong.  Works beside a running broker, whose
    last batches may then be half written.  With --remote the tier's copies are checked, too, of segments that the disk
    has as well (these are counted once).  Exit 0 when all is well, 1 with findings.
    """
    root, chosen = locate(log_dir, partitions)
    some = list(chosen) if partitions or root != log_dir else None
    check_missing(log_dir, root, partitions, None)
    with Progress(log_bytes(chosen.values()), "verified", force=progress) as bar:
        report = verify(root, some, deep=deep, progress=bar.advance)
    return print_report(report, as_json)


def print_report(report: Report, as_json: bool) -> int:
    """Findings, notes and a summary; the exit code."""
    for finding in report.findings:
        if as_json:
            emit_json({"kind": "finding", **fields(finding)})
        else:
            emit(paint(str(finding), "red"))
    for text in report.notes:
        note(f"note: {text}")
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
            f"{report.records} records, {size_words(report.bytes)}"
        )
    return CLEAN if report.ok else FINDINGS
