"""`kafkalog salvage`: copies all readable records of damaged partitions."""

from __future__ import annotations

import os
from typing import Any

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    locate,
    log_bytes,
    note,
    note_next,
    tell_unsettled,
)
from kafkalog.cli.loss_table import print_losses
from kafkalog.cli.remote_places import is_folder_of_tier, note_tiered
from kafkalog.cli.tables import utc_option
from kafkalog.remote import is_address
from kafkalog.toolbox.salvage import salvage


class SourcePath(LocalPath):
    """A directory of this machine that is not a remote tier."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not is_address(os.fsdecode(value)):
            value = super().convert(value, param, ctx)
            if ctx is None or not is_folder_of_tier(ctx, value):
                return value
        raise Usage(
            f"found {os.fsdecode(value)}, a remote tier, expected a log directory: first restore partitions of "
            "the tier to one with `kafkalog tier restore`"
        )


@click.command("salvage", short_help="Copy all readable records of damaged partitions.")
@click.argument("source", type=SourcePath())
@click.argument("target", type=LocalPath())
@click.argument("partitions", nargs=-1)
@utc_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: lost ranges, topics that lost records, a summary."
)
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(source: str, target: str, partitions: tuple[str, ...], as_json: bool, progress: bool) -> int:
    """Copy all readable records of PARTITIONS (default: all) of SOURCE to the new directory TARGET, and keep their
    offsets.

    SOURCE is only read. TARGET gets new indexes. Leader epochs that decrease are repaired, so that `verify` finds no
    damage in TARGET.

    Each lost range is reported. A table shows the loss of each topic: an upper bound for the lost records, and their
    times, taken from batches and time indexes around the damage. Exit 1 if something is lost.

    Segments that are missing in SOURCE are missing in TARGET too; only a backup or a replica can fill such a gap.
    `verify` reports it only if it is certain that the topic is not compacted. This command reports it unless the topic
    is compacted.

    If another program is writing to SOURCE, a partition that seems damaged is copied again. If each copy loses
    something else, the partition is being written, and is not copied (exit 4).
    """
    source, chosen = locate(source, partitions)
    with Progress(log_bytes(chosen.values()), "salvaged", force=progress) as bar:
        report = salvage(source, target, chosen, progress=bar.advance)
    note_tiered(source, chosen, "`kafkalog tier restore` restores it to a directory")
    for lost in report.lost:
        if as_json:
            emit_json({"kind": "lost", **fields(lost)})
            continue
        emit(f"lost: {lost}")
    for text in report.notes:
        note(f"note: {text}")
    print_losses(report.ranges, as_json=as_json)
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "lost": len(report.lost),
                "partitions": report.partitions,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.bytes,
                "epochsMended": report.epochs_mended,
            }
        )
    else:
        emit(
            f"salvaged: {counted(report.partitions, 'partition')}, {counted(report.batches, 'batch')}, "
            f"{counted(report.records, 'record')}, {_shown.size(report.bytes)} to {target}; "
            f"{counted(len(report.lost), 'range')} lost"
            + (f", leader epochs of {counted(report.epochs_mended, 'batch')} repaired" if report.epochs_mended else "")
        )
        note_next("verify", target)
    code = FINDINGS if report.lost else CLEAN
    for error in report.unsettled:
        code = worse(code, tell_unsettled(error))
    return code
