"""`kafkalog restore`: checks a backup and restores it."""

from __future__ import annotations

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import (
    Progress,
    counted,
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


@click.command("restore", short_help="Check a backup, and restore it.")
@click.argument("backup_dir", metavar="BACKUP", type=LocalPath())
@click.argument("target", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
def command(
    backup_dir: str,
    target: str,
    partitions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Check BACKUP and restore its PARTITIONS (orders-0, orders, 'ord*'; default: all) as the log directory TARGET.

    Without --yes the command checks the backup and writes nothing. With --yes it creates TARGET, which must be new or
    empty. TARGET appears when it is complete and on disk. A backup of several log directories is restored to
    TARGET/log-dir-1, TARGET/log-dir-2 and so on.

    The manifest, and the size and checksum of every file, are checked. If a file differs, nothing is restored (exit 1).
    Damage that the source already had at the time of the backup is reported again (exit 1).
    """
    if OS_FILES.is_dir(backup_dir) and not is_backup(backup_dir):
        newest = newest_backup(backup_dir)
        if newest is not None:
            raise Usage(f"{backup_dir}: found a directory of backups, expected one of them; the newest is {newest[0]}")
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
            emit(f"{partition}: {done}: the log starts at {start} and ends at {end}")
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
        count = counted(len(report.findings), "finding")
        lost = f"lost since the backup: none; earlier damage ({count} above) is unchanged"
    emit(
        f"in all: {counted(report.partitions, 'partition')}, {counted(report.segments, 'segment')}, "
        f"{counted(report.records, 'record')}, {_shown.size(report.bytes)} of {time_words(report.finished_ms)}, "
        f"all checksums correct: {done}, {lost}"
    )
    for source, path in report.directories.items():
        note(f"note: the log directory {source} {'is' if report.done else 'would be'} restored as {path}")
    return FINDINGS if report.findings else CLEAN
