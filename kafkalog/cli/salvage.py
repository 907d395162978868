"""`kafkalog salvage`: copy what can be read of damaged partitions."""

from __future__ import annotations

import click

from kafkalog.cli.app import CLEAN, FINDINGS
from kafkalog.cli.console import Progress, emit, emit_json, fields, locate, log_bytes, size_words
from kafkalog.toolbox.salvage import salvage


@click.command("salvage", short_help="Copy what can be read of damaged partitions.")
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.argument("partitions", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a lost range, and a summary.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
def command(source: str, target: str, partitions: tuple[str, ...], as_json: bool, progress: bool) -> int:
    """Copy the PARTITIONS (default: all) of SOURCE to the new folder TARGET, past any damage, offsets kept.

    SOURCE is only read.  Each lost range is reported; exit 1 when there is one.  TARGET gets indexes too, so that
    `verify` finds nothing there.
    """
    source, chosen = locate(source, partitions)
    with Progress(log_bytes(chosen.values()), "salvaged", force=progress) as bar:
        report = salvage(source, target, chosen, progress=bar.advance)
    for lost in report.lost:
        if as_json:
            emit_json({"kind": "lost", **fields(lost)})
            continue
        emit(f"lost: {lost}")
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "lost": len(report.lost),
                "partitions": report.partitions,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.bytes,
            }
        )
    else:
        emit(
            f"salvaged: {report.partitions} partitions, {report.batches} batches, {report.records} records, "
            f"{size_words(report.bytes)} to {target}; {len(report.lost)} ranges lost"
        )
    return FINDINGS if report.lost else CLEAN
