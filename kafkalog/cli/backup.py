"""`kafkalog backup`: copies log directories consistently, also while a broker or a store is writing to them."""

from __future__ import annotations

import os

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath
from kafkalog.cli.choosing import check_missing
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
    some,
    tell_findings,
)
from kafkalog.cli.places import log_dirs_at
from kafkalog.cli.remote_places import note_tiered
from kafkalog.cli.salvage import SourcePath
from kafkalog.engine.format import names
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.backup_files import BackupReport


@click.command("backup", short_help="Copy log directories, also while they are written.")
@click.argument("log_dir", type=SourcePath())
@click.argument("partitions", nargs=-1)
@click.option(
    "--to",
    "dest",
    type=LocalPath(),
    required=True,
    metavar="DEST",
    help="Where to write the backup: a new or empty directory.",
)
@click.option(
    "--base",
    type=LocalPath(),
    metavar="PREVIOUS",
    help="An earlier backup, or a directory of backups (then the newest one that shares most partitions).  Files that "
    "did not change are linked from there.",
)
@click.option(
    "--log-dir",
    "others",
    type=SourcePath(),
    multiple=True,
    metavar="DIR",
    help="Another log directory of the same store or broker (log.dirs).  Repeatable.",
)
@click.option(
    "--link",
    is_flag=True,
    help="Make hard links to the logs of closed segments, if the file system has no reflinks.  This is fast and needs "
    "no space, but the backup shares these files with LOG_DIR: a truncation there, or a bad block, damages both.",
)
@click.option("--strict", is_flag=True, help="Make no backup if anything is damaged (exit 1).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: findings and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(
    log_dir: str,
    partitions: tuple[str, ...],
    dest: str,
    base: str | None,
    others: tuple[str, ...],
    link: bool,
    strict: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Copy the PARTITIONS (orders-0, orders, 'ord*'; default: all) of LOG_DIR to a new backup DEST.

    LOG_DIR is only read, and a broker or a store may be writing to it. The copy of each partition is a prefix of its
    log at one moment. Cursors are within the copies, and each transaction has the same outcome in all of them. If
    PARTITIONS are named, those of __transaction_state are copied too.

    Every batch is checked. Damage is reported with its file and position, and copied unchanged. A partition that cannot
    be read is left out. In both cases the exit code is 1.

    DEST appears when the backup is complete and on disk. It holds log directories (DEST/log-dir-1), which all commands
    can read. `kafkalog restore` checks and restores it.
    """
    if others:
        places = log_dirs_at([log_dir, *others])
        folders = {tp: path for place in places for tp, path in list_partitions(place).items()}
        chosen = named_partitions(folders, partitions, ", ".join(places))
        folders, is_all = {tp: folders[tp] for tp in chosen}, not partitions
    else:
        root, folders = locate(log_dir, ())
        if partitions:
            folders = {tp: folders[tp] for tp in named_partitions(folders, partitions, root)}
        places, is_all = [root], not partitions and root == log_dir
    if not others:
        check_missing(log_dir, places[0], partitions, None)
    with Progress(log_bytes(folders.values()), "backed up", force=progress) as bar:
        report = backup(
            places,
            dest,
            partitions=None if is_all else list(folders),
            base=base,
            link=link,
            strict=strict,
            progress=bar.advance,
        )
    for place in places:
        here = {tp: path for tp, path in folders.items() if os.path.dirname(path) == place.rstrip(os.sep)}
        note_tiered(place, here, "the backup holds only what is on disk: keep the bucket separately")
    if not is_all and not any(tp.topic == names.GROUP_METADATA_TOPIC for tp in folders):
        note(f"note: cursors are in {names.GROUP_METADATA_TOPIC}, which was not named: the backup has no cursors")
    return _tell(report, as_json)


def _tell(report: BackupReport, as_json: bool) -> int:
    tell_findings(report.findings, report.notes, as_json=as_json)
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "path": report.path,
                "base": report.base,
                "partitions": report.partitions,
                "segments": report.segments,
                "batches": report.batches,
                "records": report.records,
                "bytes": report.bytes,
                "copied": report.copied,
                "cloned": report.cloned,
                "linked": report.linked,
                "kept": report.kept,
                "findings": len(report.findings),
                "leftOut": [str(each) for each in report.left_out],
            }
        )
    else:
        ways = {
            "copied": report.copied,
            "shared by reflinks": report.cloned,
            "linked to the source": report.linked,
            f"unchanged since {report.base}": report.kept,
        }
        how = ", ".join(f"{_shown.size(size)} {what}" for what, size in ways.items() if size)
        verdict = paint(counted(len(report.findings), "finding"), "red") if report.findings else paint("clean", "green")
        emit(
            f"{verdict}: {counted(report.partitions, 'partition')}, {counted(report.segments, 'segment')}, "
            f"{counted(report.records, 'record')}, {_shown.size(report.bytes)} in {report.path} "
            f"({how or 'nothing to copy'})"
        )
        if report.left_out:
            note(
                f"left out of the backup, because they cannot be read: {some(map(str, report.left_out))}; keep earlier "
                "backups that have them, and copy what is readable with `kafkalog salvage`"
            )
        if report.missing:
            note("segments are missing in the source and in this backup: keep earlier backups that have them")
        if len(report.findings) > len(report.left_out) + report.missing:
            note("the damage was copied unchanged: `kafkalog salvage` copies what is readable")
    return FINDINGS if report.findings else CLEAN
