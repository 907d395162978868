"""`kafkalog checkpoint`: shows the checkpoints of log directories, and sets one line of one of them."""

from __future__ import annotations

import re

import click

from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import emit, emit_json, looked_at, note, paint
from kafkalog.cli.groups import DefaultGroup
from kafkalog.cli.places import LOCAL_PLACES_AND_NAMES, check_names, log_dirs_at, places_and_names
from kafkalog.cli.tables import Cell, Column, print_table
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkaException
from kafkalog.toolbox.checkpoint_table import Change, CheckpointTable, change_line, checkpoint_table, plan_change

COLUMNS = (
    Column("PARTITION"),
    Column("RECOVERY POINT", right=True),
    Column("LOG START", right=True, drop=3),
    Column("HIGH WATERMARK", right=True),
    Column("CLEANER", right=True, drop=2),
    Column("FIRST SEGMENT", right=True, drop=1),
    Column("LOG END", right=True),
)


class _Checkpoint(DefaultGroup):
    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[--json] LOG_DIRS... [PARTITIONS]... | set FILE PARTITION OFFSET")


@click.group("checkpoint", cls=_Checkpoint, short_help="Show checkpoints; set one line.")
def command() -> None:
    """Show the checkpoints of log directories, and compare them with where each log begins and ends.

    The command shows recovery points, log start offsets, high watermarks, the cleaner's progress, the clean-shutdown
    marker and meta.properties. It changes nothing and takes no lock.

    Findings (exit 1) are lines without a partition directory, offsets after a log's end, and files that cannot be read.
    Directories without a line are noted.

    `kafkalog checkpoint set FILE PARTITION OFFSET` sets one line.
    """


@command.command("show", short_help="Show the checkpoints of log directories.")
@LOCAL_PLACES_AND_NAMES
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions and directories.")
def show(log_dirs: tuple[str, ...], as_json: bool) -> int:
    """Show the checkpoints of LOG_DIRS, or only of the named PARTITIONS (topic-0, a topic, or a glob).

    The command changes nothing and takes no lock.
    """
    code = CLEAN
    where, asked = places_and_names(log_dirs)
    places = log_dirs_at(where)
    tables = []
    for log_dir in places:
        with looked_at([log_dir]) as bar:
            tables.append(checkpoint_table(log_dir, asked, progress=bar.advance))
    if not any(table.rows for table in tables):  # a checkpoint may have a line without a directory
        check_names(places, asked)
    for table in tables:
        (_print_json if as_json else _print)(table)
        if table.findings:
            code = FINDINGS
    return code


def _print(table: CheckpointTable) -> None:
    meta = table.meta
    emit(table.log_dir)
    if meta is None:
        emit(f"  no readable {names.META_PROPERTIES_FILE}")
    else:
        emit(f"  cluster {meta.cluster_id}, node {meta.node_id}, directory {meta.directory_id}, version {meta.version}")
    epoch = "" if table.broker_epoch in (None, -1) else f", at broker epoch {table.broker_epoch}"
    emit(
        f"  closed cleanly{epoch}"
        if table.clean_shutdown
        else "  not closed cleanly, or in use: no clean-shutdown marker"
    )
    absent = [name for name, lines in table.files.items() if lines is None]
    if absent:
        emit(f"  missing files: {', '.join(absent)}")
    if table.rows:
        print_table(
            COLUMNS,
            [
                (
                    Cell(str(row.partition), "red" if row.findings else ""),
                    *("-" if row.lines[name] is None else row.lines[name] for name in names.OFFSET_CHECKPOINT_FILES),
                    *(
                        ("no directory", "-")
                        if row.extent is None
                        else (row.extent.first_base, row.extent.log_end_offset)
                    ),
                )
                for row in table.rows
            ],
        )
    for text in table.findings:
        emit(paint(text, "red"))
    for row in table.rows:
        for text in row.notes:
            note(f"note: {row.partition}: {text}")


def _print_json(table: CheckpointTable) -> None:
    recovery, start, watermark, cleaner = names.OFFSET_CHECKPOINT_FILES
    for row in table.rows:
        extent = row.extent
        emit_json(
            {
                "kind": "partition",
                "logDir": table.log_dir,
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "recoveryPoint": row.lines[recovery],
                "logStart": row.lines[start],
                "highWatermark": row.lines[watermark],
                "cleaner": row.lines[cleaner],
                "firstBaseOffset": None if extent is None else extent.first_base,
                "logEndOffset": None if extent is None else extent.log_end_offset,
                "findings": row.findings,
                "notes": row.notes,
            }
        )
    meta = table.meta
    emit_json(
        {
            "kind": "directory",
            "logDir": table.log_dir,
            "cleanShutdown": table.clean_shutdown,
            "brokerEpoch": table.broker_epoch,
            "clusterId": None if meta is None else meta.cluster_id,
            "nodeId": None if meta is None else meta.node_id,
            "directoryId": None if meta is None else meta.directory_id,
            "files": table.files,
            "findings": table.findings,
        }
    )


@command.command(
    "set",
    short_help="Set one line of a checkpoint.",
    epilog="\b\nFor example:\n  kafkalog checkpoint set /var/kafka-logs/recovery-point-offset-checkpoint orders-0 1200",
)
@click.argument("file", type=LocalPath())
@click.argument("partition")
@click.argument("offset", metavar="OFFSET|none")
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--force", is_flag=True, help="Set the line even if the offset makes no sense.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def set_line(file: str, partition: str, offset: str, dry_run: bool, yes: bool, force: bool, as_json: bool) -> int:
    """Set PARTITION's line of the checkpoint FILE to OFFSET, or remove the line with `none`.

    Without --yes the command only reports the change. With --yes it locks the directory, copies the file to FILE.bak,
    and replaces it in one step.

    An offset that makes no sense is refused (exit 2), unless --force is given. Examples are an offset after the log's
    end, a partition that does not exist, or a log start offset that brings deleted records back. A name that the file
    cannot hold (with a space) is always refused.
    """
    if offset != "none" and not re.fullmatch(r"\d{1,19}", offset):
        raise Usage(f"OFFSET: found {offset!r}, expected a whole number from 0, or none to remove the line")
    change = plan_change(file, _partition(partition), None if offset == "none" else int(offset))
    act = yes and not dry_run
    for text in change.notes:
        note(f"note: {text}")
    if change.nonsense and not force:
        raise Usage(f"{file}: {partition} {offset}: {'; '.join(change.nonsense)} (--force sets it anyway)")
    copy = change_line(change) if act and change.old != change.new else ""
    _tell_change(change, act, copy, as_json)
    return CLEAN


def _partition(text: str) -> TopicPartition:
    try:
        found = names.parse_topic_partition_name(text)
    except KafkaException:
        found = None
    if found is None or str(found) != text:
        raise Usage(f"PARTITION: found {text!r}, expected topic, dash and number, such as orders-0")
    return found


def _tell_change(change: Change, act: bool, copy: str, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "kind": "change",
                "path": change.path,
                "topic": change.partition.topic,
                "partition": change.partition.partition,
                "old": change.old,
                "new": change.new,
                "done": act,
                "copy": copy or None,
                "nonsense": change.nonsense,
            }
        )
        return
    for text in change.nonsense:
        note(f"kafkalog: forced: {text}")
    old, new = ("no line" if offset is None else offset for offset in (change.old, change.new))
    if change.old == change.new:
        emit(f"{change.path}: {change.partition}: {old} already")
        return
    done = "set" if act else "would be set (--yes does it)"
    emit(f"{change.path}: {change.partition}: {old} -> {new} {done}{f', the previous file is {copy}' if copy else ''}")
