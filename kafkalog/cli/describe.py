"""`kafkalog describe`: shows the contents of a log directory, partition by partition and segment by segment."""

from __future__ import annotations

import os
from typing import Any

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN
from kafkalog.cli.console import Progress, counted, emit, emit_json, locate, note, note_next, paint, time_words
from kafkalog.cli.places import CONFIG, SHOWN, setting_fields, setting_words, topic_settings
from kafkalog.cli.remote_places import ReadPath, both_tiers, note_tiered
from kafkalog.cli.tables import Cell, Column, When, print_table, utc_option
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.contents import last_timestamp
from kafkalog.engine.log.snapshot import SegmentView
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.toolbox.segment_headers import read_headers

COLUMNS = (
    Column("PARTITION"),
    Column("START", right=True, drop=2),
    Column("END", right=True),
    Column("SEGMENTS", right=True, drop=1),
    Column("SIZE", right=True),
    Column("LAST RECORD", right=True),
)


@click.command("describe", short_help="Show partitions, segments, sizes, offsets, times and codecs.")
@click.argument("log_dir", type=ReadPath())
@click.argument("partitions", nargs=-1)
@click.option("--segments", is_flag=True, help="Also show one line per segment; reads all batch headers.")
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: partitions, each with its segments.")
@utc_option
@both_tiers
def command(log_dir: str, partitions: tuple[str, ...], segments: bool, broker_file: str | None, as_json: bool) -> int:
    """Show the partitions of LOG_DIR, or only the named PARTITIONS (topic-0, a topic, or a glob): offsets, sizes, times
    and codecs.

    The command changes nothing, takes no lock, and works while a broker is running.

    For each topic it shows the retention settings, and where each one comes from (see `kafkalog explain --help`). LAST
    RECORD is the largest timestamp of the last segment that has one. The records of a segment are all in its file,
    including transaction markers and records before the log start.
    """
    log_dir, chosen = locate(log_dir, partitions)
    note_tiered(log_dir, chosen)
    for name in OS_FILES.list_dir(log_dir):
        if name.endswith((names.DELETE_DIR_SUFFIX, names.STRAY_DIR_SUFFIX, names.FUTURE_DIR_SUFFIX)):
            note(f"note: {os.path.join(log_dir, name)} is not shown (deleted, stray or moving)")
    detailed = segments or as_json
    checkpoints = CheckpointLines(log_dir, keeps_ms=KEEPS_MS)
    known = topic_settings(log_dir, (), broker_file)
    rows: list[list[object]] = []
    below: list[list[str]] = []
    damaged: dict[TopicPartition, Unreadable] = {}
    try:
        with Progress(len(chosen), "read", counts="partitions") as bar:
            for partition, path in chosen.items():
                with PartitionView(log_dir, partition, checkpoints=checkpoints) as view:
                    size = sum(segment.size for segment in view.segments)
                    listed = [_segment(view, segment) for segment in view.segments] if detailed else []
                    if as_json:
                        emit_json(
                            {
                                "kind": "partition",
                                "topic": partition.topic,
                                "partition": partition.partition,
                                "path": path,
                                "logStartOffset": view.log_start_offset,
                                "logEndOffset": view.log_end_offset,
                                "lastStableOffset": view.last_stable_offset,
                                "size": size,
                                **setting_fields(known, partition.topic, SHOWN),
                                "segments": listed,
                            }
                        )
                    else:
                        rows.append(_row(view, size))
                        below.append([_segment_line(entry) for entry in listed])
                        if view.snapshot.unreadable_end is not None:
                            damaged[partition] = view.snapshot.unreadable_end
                bar.advance(1)
    finally:  # after an error too: print the partitions before it
        if not as_json:
            print_table(COLUMNS, rows, below=below)
    if not as_json:
        for topic in dict.fromkeys(partition.topic for partition in chosen):
            emit(f"{topic}: {setting_words(known, topic, SHOWN)}")
        for partition, what in damaged.items():
            note(f"note: {partition}: damaged at its end: {what.path} at byte {what.position}: {what.what}")
        if damaged:
            note_next("verify", log_dir, *map(str, damaged))
    return CLEAN


def _row(view: PartitionView, size: int) -> list[object]:
    return [
        Cell(str(view.topic_partition), "" if view.snapshot.unreadable_end is None else "red"),
        view.log_start_offset,
        view.log_end_offset,
        len(view.segments),
        _shown.size(size),
        When(view.over(last_timestamp)),
    ]


def _segment_line(entry: dict[str, Any]) -> str:
    return (
        f"  {entry['baseOffset']:020d}.log  {_shown.size(entry['size']):>10}  "
        f"{counted(entry['batches'], 'batch')}, {counted(entry['records'], 'record')}, "
        f"{time_words(entry['minTimestamp'])} to {time_words(entry['maxTimestamp'])}, "
        f"{' '.join(f'{codec}:{count}' for codec, count in entry['codecs'].items()) or 'empty'}"
        + ("" if entry["damagedAt"] is None else paint(f", damaged at byte {entry['damagedAt']}", "red"))
    )


def _segment(view: PartitionView, segment: SegmentView) -> dict[str, Any]:
    """Summarizes the batch headers of a segment; it does not check CRCs (`verify` does)."""
    with OS_FILES.open(segment.path, writable=False) as file:
        found = read_headers(file, view.readable_bytes(segment))
    return {
        "baseOffset": segment.base_offset,
        "size": segment.size,
        "batches": found.batches,
        "records": found.records,
        "minTimestamp": found.min_timestamp,
        "maxTimestamp": found.max_timestamp,
        "codecs": found.codecs_by_name(),
        "offsetIndexEntries": len(segment.offset_entries),
        "timeIndexEntries": len(segment.time_entries),
        "damagedAt": found.damaged_at,
    }
