"""`kafkalog tier`: lists, checks, uploads and restores the segments of a remote tier, and finds orphans."""

from __future__ import annotations

import os
from typing import Any

import click

import kafkalog
from kafkalog import _shown
from kafkalog._face.remote_tier import refuse_nested
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    locate,
    log_bytes,
    named_partitions,
    note,
    paint,
    tell_findings,
)
from kafkalog.cli.groups import NamingGroup
from kafkalog.cli.places import TAKE_OVER, log_dirs_at
from kafkalog.cli.remote_places import ReadPath, both_tiers, is_folder_of_tier, remote_options, storage
from kafkalog.cli.tables import Cell, Column, print_table
from kafkalog.engine.files import OS_FILES, OsFiles, local_path
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition, parse_topic_partition_name
from kafkalog.engine.remote.remote_files import RemoteFiles
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED
from kafkalog.remote import RemoteStorage, is_address
from kafkalog.toolbox import tiering
from kafkalog.toolbox.report import Finding

COLUMNS = (
    Column("PARTITION"),
    Column("FIRST", right=True),
    Column("LAST", right=True, drop=1),
    Column("SIZE", right=True, drop=2),
    Column("WHERE", right=True),
    Column("STATE", right=True, drop=3),
    Column("ID", right=True, drop=4),
)


@click.group(
    "tier", cls=NamingGroup, short_help="Work with a remote tier: list, verify, upload, restore, find orphans."
)
def command() -> None:
    """Work with a remote tier: the older part of topics' logs, in object storage.

    A tier is named by its address, such as s3://bucket/prefix, or by its directory. `list` and `verify` change nothing;
    `copy`, `restore` and `orphans` change nothing without --yes.
    """


def _remote(ctx: click.Context, place: str, url: str | None) -> tuple[RemoteStorage, list[str]]:
    """Returns (tier, log directories) for a command line that names a bucket, or a directory and --remote."""
    if is_address(place):
        if url is not None:
            raise Usage(f"--remote: found {url} and {place}, a remote tier, expected a log directory with it")
        return storage(ctx, place).checked(), []
    place = local_path(place)
    if url is not None:
        log_dirs_at([place])
        return storage(ctx, url).with_layout([place]), [place]
    if not OS_FILES.exists(place):
        raise Usage(f"{place}: not found, expected a remote tier, or a directory and --remote")
    if not is_folder_of_tier(ctx, place):
        raise _no_tier(place)
    return storage(ctx, place).checked(), []


def _no_tier(place: str) -> Usage:
    expected = "expected one (--prefix, if its keys have one), or a log directory and --remote"
    return Usage(f"{place}: found no remote tier, {expected}")


REMOTE = click.option(
    "--remote",
    "url",
    metavar="URL",
    help="The remote tier of the directory: an address such as s3://bucket/prefix, or a directory.",
)


@command.command(
    "list",
    short_help="Show where each segment is.",
    epilog="\b\nFor example:\n  kafkalog tier list /var/kafka-logs orders --remote s3://bucket/prefix",
)
@click.argument("place", metavar="DIR|URL")
@click.argument("topics", metavar="[PARTITIONS]...", nargs=-1)
@REMOTE
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: segments.")
@remote_options
@click.pass_context
def show(ctx: click.Context, place: str, topics: tuple[str, ...], url: str | None, as_json: bool) -> int:
    """Show every segment of a tier, or of a log directory and its tier (--remote).

    The column STATE is the state that the directory's __remote_log_metadata gives the segment. PARTITIONS (topic-0, a
    topic, or a glob) limits the output. The command changes nothing. Exit 1 if objects are missing or damaged.
    """
    tier, dirs = _remote(ctx, place, url)
    manager = tier.manager(must_exist=True)
    rows = tiering.tier_segments(manager, dirs, topics)
    known = {row.partition for row in rows} | {each.topic_partition for each in manager.partitions()}
    named_partitions(sorted(known), topics, place)  # raises for an unknown name
    for row in rows if as_json else ():
        emit_json(
            {
                "kind": "segment",
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "firstOffset": row.base_offset,
                "lastOffset": row.end_offset if row.end_offset >= row.base_offset else None,
                "bytes": row.size,
                "where": row.where,
                "state": None if row.state is None else row.state.name,
                "whole": row.is_whole,
                "lacks": row.lacks,
                "copiedBytes": row.copied_size,
                "damage": row.damage,
                "id": row.segment_id,
            }
        )
    if not as_json:
        print_table(
            COLUMNS,
            [
                (
                    row.partition,
                    row.base_offset,
                    row.end_offset if row.end_offset >= row.base_offset else "-" if row.end_offset < 0 else "empty",
                    _shown.size(row.size),
                    Cell(row.where + _flaw(row), "red" if _flaw(row) else ""),
                    "-" if row.state is None else row.state.name,
                    row.segment_id or "-",
                )
                for row in rows
            ],
        )
    lost = [row for row in rows if row.state is COPY_SEGMENT_FINISHED and not row.is_whole]
    for row in lost:
        where = f"{row.partition} {row.base_offset} {row.segment_id}"
        note(f"{where}: the metadata has the segment, but some of its objects are missing")
    incomplete = [row for row in rows if row.state in (None, COPY_SEGMENT_FINISHED) and row.is_whole and row.lacks]
    for row in incomplete:
        note(f"{row.partition} {row.base_offset} {row.segment_id}: missing objects: {', '.join(row.lacks)}")
    others = [row for row in rows if row.state in (None, COPY_SEGMENT_FINISHED) and row.copied_size is not None]
    for row in others:
        where = f"{row.partition} {row.base_offset} {row.segment_id}"
        note(f"{where}: the object of its log has {counted(row.size, 'byte')}; {row.copied_size} were copied")
    damaged = [row for row in rows if row.damage is not None]
    for row in damaged:
        note(f"{row.partition} {row.base_offset} {row.segment_id}: its manifest is damaged: {row.damage}")
    return FINDINGS if lost or incomplete or others or damaged else CLEAN


def _flaw(row: tiering.TierSegment) -> str:
    if not row.is_whole:
        return ", objects missing"
    if row.damage is not None:
        return ", damaged"
    return ", incomplete" if row.lacks else ", wrong size" if row.copied_size else ""


@command.command(
    "verify",
    short_help="Check every checksum and index, and find unfinished uploads.",
    epilog="\b\nFor example:\n  kafkalog tier verify s3://bucket/prefix",
)
@click.argument("place", metavar="DIR|URL", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option("--deep", is_flag=True, help="Also decode every record; check sequences, transactions and epochs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: findings and a summary.")
@both_tiers
@click.pass_context
def verify(ctx: click.Context, place: str, partitions: tuple[str, ...], deep: bool, as_json: bool) -> int:
    """Check every batch, index entry and small file of a tier, or of a log directory and its tier (--remote), for
    damage.

    Segments that are in both places are checked in both and counted once. Unfinished uploads are reported too. The
    command changes nothing. Exit 1 with findings.
    """
    from kafkalog.cli.verify import print_report
    from kafkalog.toolbox.verify import verify as check

    root, chosen = locate(place, partitions)
    files: Any = mounted(root)
    if files is None:
        raise _no_tier(place)
    with Progress(log_bytes(chosen.values()), "verified") as bar:
        # With the metadata missing offsets are known; and the topics of a directory may be compacted.
        gaps = isinstance(files, RemoteFiles)
        report = check(root, list(chosen), deep=deep, gaps=gaps, progress=bar.advance)
    remote = getattr(files, "remote", files)
    metadata = None if files is remote else tiering.known_segments([root], OsFiles())
    for orphan in tiering.orphans(remote.storage, metadata):
        partition = orphan.partition.topic_partition
        is_told = orphan.is_damaged and any(orphan.segment_id in each.path + each.what for each in report.findings)
        if not is_told and (partition in chosen or not partitions):
            first, *others = orphan.keys
            beside = f"; next to it are {', '.join(map(os.path.basename, others))}" if others else ""
            what = f"an upload of {partition}: {orphan.why}{beside}"
            report.findings.append(Finding(f"{remote.root}/{first}", 0, 0, what))
    for begun in tiering.begun(metadata) if metadata is not None else ():
        partition = begun.topic_id_partition.topic_partition
        if partition in chosen or not partitions:
            report.notes.append(
                f"the upload of {partition} from offset {begun.start_offset} on began as segment "
                f"{begun.remote_log_segment_id.id} and has not ended: it is running, or the store repeats it at its "
                "next run"
            )
    return print_report(report, as_json)


def _tell_orphan(orphan: tiering.Orphan, as_json: bool) -> None:
    partition = orphan.partition.topic_partition
    if not as_json:
        objects = counted(len(orphan.keys), "object")
        what = f"{partition} {orphan.base_offset} {orphan.segment_id} ({objects}): {orphan.why}"
        emit(paint(what, "red"))
        for key in orphan.keys:
            emit(f"  {key}")
        return
    emit_json(
        {
            "kind": "orphan",
            "topic": partition.topic,
            "partition": partition.partition,
            "firstOffset": orphan.base_offset,
            "id": orphan.segment_id,
            "reason": orphan.why,
            "whole": orphan.is_whole,
            "objects": orphan.keys,
        }
    )


@command.command(
    "copy",
    short_help="Upload closed segments that are not in the tier.",
    epilog="\b\nFor example:\n  kafkalog tier copy /var/kafka-logs --remote s3://bucket/prefix --yes",
)
@click.argument("log_dir", type=LocalPath())
@click.option(
    "--remote",
    "url",
    metavar="URL",
    required=True,
    help="The remote tier of the directory: an address such as s3://bucket/prefix, or a directory.",
)
@TAKE_OVER
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@remote_options
@click.pass_context
def copy(ctx: click.Context, log_dir: str, url: str, take_over: bool, yes: bool, as_json: bool, progress: bool) -> int:
    """Upload the closed segments of LOG_DIR that are not in the tier yet, of topics with remote.storage.enable=true.

    Without --yes nothing is uploaded: the command only reports the segments. Exit 1 if a segment could not be uploaded.
    """
    log_dirs_at([log_dir], is_checked=False)  # a tier gets its own error
    if is_folder_of_tier(ctx, log_dir):
        raise Usage(f"{log_dir}: found a remote tier, expected a log directory with tiered topics")
    tier = storage(ctx, url)
    refuse_nested(tier.url, log_dir)
    waiting = tiering.waiting(tier.manager(), log_dir)
    if yes:
        with (
            kafkalog.open(log_dir, remote=tier, take_over=take_over, maintenance=False) as store,
            Progress(sum(each.size for each in waiting), "copied", force=progress) as bar,
        ):
            manager = store.remote_log_manager
            manager.on_copied = bar.advance
            manager.run_once()
        left = {each.partition: each.segments for each in tiering.waiting(tier.manager(), log_dir)}
    code, total = CLEAN, 0
    for each in waiting:
        copied = each.segments - left.get(each.partition, 0) if yes else 0
        total += copied
        if as_json:
            emit_json({"kind": "copy", **fields(each), **_split(each.partition), "copied": copied, "done": yes})
        elif yes:
            emit(f"{each.partition}: {copied} of {counted(each.segments, 'closed segment')} copied to {tier.url}")
        else:
            emit(f"{each.partition}: {counted(each.segments, 'closed segment')} only on disk, {_shown.size(each.size)}")
        if yes and copied < each.segments:
            code = FINDINGS  # the log has the reason
    if as_json:
        segments = sum(each.segments for each in waiting)
        emit_json({"kind": "summary", "segments": segments, "copied": total, "done": yes})
    if not waiting:
        note("there is nothing to copy")
    elif not yes:
        note("nothing was copied; --yes does it")
    return code


def _split(partition: TopicPartition) -> dict[str, object]:
    return {"topic": partition.topic, "partition": partition.partition}


@command.command(
    "restore",
    short_help="Restore partitions of a tier to a directory.",
    epilog="\b\nFor example:\n  kafkalog tier restore s3://bucket/prefix /mnt/restored orders --yes",
)
@click.argument("place", metavar="URL|DIR")
@click.argument("target", type=LocalPath())
@click.argument("partitions", nargs=-1)
@REMOTE
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and a summary.")
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@remote_options
@click.pass_context
def restore(
    ctx: click.Context,
    place: str,
    target: str,
    partitions: tuple[str, ...],
    url: str | None,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Restore PARTITIONS (topic-0, a topic, or a glob; default: all) of a tier to the directory TARGET, byte for byte.

    Without --yes nothing is written: the command only reports the partitions. With --yes it creates TARGET if it does
    not exist. TARGET must not have these partitions. The result is checked as by `verify` (exit 1 with findings).

    With a directory DIR and --remote, the directory's __remote_log_metadata says which segments exist, and what is
    missing.
    """
    tier, dirs = _remote(ctx, place, url)
    files = tier.tiered_files(dirs).remote if dirs else tier.read_only_files()
    found = [parse_topic_partition_name(name) for name in files.list_dir(files.root)]
    chosen = named_partitions(found, partitions, files.root)
    tiering.check_restorable(files, target, chosen)
    sizes = tiering.log_bytes_of(files, chosen)
    findings: list[Finding] = []
    if yes:
        with Progress(sum(sizes.values()), "restored", force=progress) as bar:
            findings = tiering.restore(files, target, chosen, progress=bar.advance).findings
    for each, size in sizes.items():
        if as_json:
            emit_json({"kind": "restore", **_split(each), "bytes": size, "to": target, "done": yes})
        else:
            emit(f"{each}: {_shown.size(size)} {'restored' if yes else 'would be restored'} to {target}")
    tell_findings(findings, as_json=as_json)
    if as_json:
        summary = {"partitions": len(sizes), "bytes": sum(sizes.values()), "to": target, "done": yes}
        emit_json({"kind": "summary", **summary, "findings": len(findings)})
    if not yes:
        note(f"nothing was restored; --yes writes to {target}")
    if any(
        each.path.endswith(names.LOG_FILE_SUFFIX) and each.length for each in findings
    ):  # otherwise only offsets are missing
        note(
            "the damage was restored unchanged: `kafkalog salvage` copies what is readable, opening truncates the logs"
        )
    return FINDINGS if findings else CLEAN


@command.command(
    "orphans",
    short_help="Find objects without a known segment; delete them.",
    epilog="\b\nFor example:\n  kafkalog tier orphans /var/kafka-logs --remote s3://bucket/prefix",
)
@click.argument("place", metavar="DIR|URL")
@REMOTE
@click.option(
    "--older-than",
    "hours",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="HOURS",
    help="With --yes: keep younger objects, which may belong to a running upload.",
)
@click.option(
    "--whole", is_flag=True, help="With --yes: also delete complete segments, which may belong to another store."
)
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: segments and a summary.")
@remote_options
@click.pass_context
def orphans(
    ctx: click.Context, place: str, url: str | None, hours: float, whole: bool, yes: bool, as_json: bool
) -> int:
    """Find orphans: objects of unfinished uploads, and with --remote objects of segments that the directory's metadata
    does not know.

    Without --yes nothing is deleted. A complete segment that the directory does not know may belong to another store
    that uses the same tier, or to a backup of it, so it is deleted only with --whole. Exit 1 if there are orphans.
    """
    tier, dirs = _remote(ctx, place, url)
    manager = tier.manager(must_exist=True)
    metadata = tiering.known_segments(dirs) if dirs else None
    every = tiering.orphans(manager, metadata)
    found = [orphan for orphan in every if not orphan.is_damaged]
    for orphan in found:
        _tell_orphan(orphan, as_json)
    gone = tiering.remove(manager, found, older_than_s=hours * 3600, whole=whole) if yes else []
    if as_json:
        emit_json({"kind": "summary", "orphans": len(found), "deletedObjects": len(gone), "done": yes})
    broken = [orphan for orphan in every if orphan.is_damaged and orphan.is_whole]
    for orphan in broken:
        note(
            f"{orphan.partition.topic_partition} {orphan.base_offset} {orphan.segment_id}: not an orphan: {orphan.why}"
        )
    lacking = len(every) - len(found) - len(broken)
    if lacking:
        note(f"{counted(lacking, 'segment')} with missing objects: not orphans; `kafkalog tier verify` names them")
    if not found:
        note("there are no orphans")
        return CLEAN
    note(f"deleted: {counted(len(gone), 'object')}" if yes else "nothing was deleted; --yes does it")
    kept = 0 if whole else sum(orphan.is_whole for orphan in found)
    if kept:
        note(f"kept: {counted(kept, 'complete segment')} that another store may use; --whole deletes them too")
    return FINDINGS
