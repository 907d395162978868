"""`kafkalog restore`: check a backup, and bring it back."""

from __future__ import annotations

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import (
    Progress,
    emit,
    emit_json,
    named_partitions,
    note,
    tell_findings,
    time_words,
)
from kafkalog.engine.files import OS_FILES
from kafkalog.toolbox.backup_manifest import is_backup, newest_backup, read_manifest
from kafkalog.toolbox.restore import RestoreReport, restore


@click.command("restore", short_help="Check a backup, and bring it back.")
@click.argument("backup_dir", metavar="BACKUP", type=LocalPath())
@click.argument("target", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only check every byte of BACKUP, and tell; the default.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a partition, and a summary.")
@click.option("--progress", is_flag=True, help="Show progress also where stderr is no terminal.")
def command(
    backup_dir: str,
    target: str,
    partitions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Bring the PARTITIONS (orders-0, orders, 'ord*'; default: all) of BACKUP back as the log directory TARGET.

    TARGET must be new or empty.  The manifest, and the size and checksum of every file, are checked; a file that
    differs refuses the restore (exit 1).  TARGET is there once it is whole and on the disk.  A backup of several log
    directories becomes TARGET/log-dir-1, TARGET/log-dir-2 ...  Without --yes the backup is checked, and nothing
    written.  Findings that the source had when it was backed up are told again (exit 1).
    """
    if OS_FILES.is_dir(backup_dir) and not is_backup(backup_dir):
        newest = newest_backup(backup_dir)
        if newest is not None:
            raise Usage(f"{backup_dir}: found a folder of backups, expected one of them; the newest is {newest[0]}")
    manifest = read_manifest(backup_dir)
    chosen = None
    if partitions:
        found = manifest.partitions()
        chosen = named_partitions(found, partitions, backup_dir)
    act = yes and not dry_run
    with Progress(manifest.size, "restored" if act else "checked", force=progress) as bar:
        report = restore(backup_dir, target, partitions=chosen, act=act, progress=bar.advance)
    return _tell(report, as_json)


def _tell(report: RestoreReport, as_json: bool) -> int:
    for partition, (start, end) in report.ends.items():
        if as_json:
            emit_json(
                {
                    "kind": "partition",
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "done": report.done,
                    "logStartOffset": start,
                    "endOffset": end,
                }
            )
        else:
            done = "restored" if report.done else "would be restored"
            emit(f"{partition}: {done}, offsets {start} up to {end}")
    tell_findings(report.findings, as_json=as_json, lead="damaged in the source: ")
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "done": report.done,
                "backup": report.backup,
                "takenMs": report.finished_ms,
                "directories": list(report.directories.values()),
                "partitions": report.partitions,
                "segments": report.segments,
                "records": report.records,
                "lostRecords": 0,
                "bytes": report.bytes,
                "findings": len(report.findings),
            }
        )
        return FINDINGS if report.findings else CLEAN
    done = "restored" if report.done else "would be restored (--yes does it)"
    lost = "lost: none"
    if report.findings:
        count = f"{len(report.findings)} finding{'s' * (len(report.findings) > 1)}"
        lost = f"lost since the backup: none; what was damaged before it ({count} above) is as it was"
    emit(
        f"in all: {report.partitions} partitions, {report.segments} segments, {report.records} records, "
        f"{_shown.size(report.bytes)} of {time_words(report.finished_ms)}, every checksum right: {done}, {lost}"
    )
    for source, path in report.directories.items():
        note(f"note: {source} {'is' if report.done else 'would be'} {path}")
    return FINDINGS if report.findings else CLEAN
