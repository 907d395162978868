"""The table of topics of `explain` and `retain`: what is deleted, and when the next segment is due; also as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from kafkalog import _shown
from kafkalog.cli.console import note
from kafkalog.cli.tables import Cell, Column, When, print_table
from kafkalog.toolbox.retention_sums import TopicRetention

DETAILED_MOST = 20  # list segments of at most this many partitions by default
EXPLAINED = (
    Column("TOPIC"),
    Column("PARTITIONS", right=True, drop=6),
    Column("SEGMENTS", right=True, drop=5),
    Column("SIZE", right=True, drop=4),
    Column("DUE", right=True, drop=3),
    Column("DUE SIZE", right=True),
    Column("DUE OFFSETS", right=True, drop=2),
    Column("DUE UP TO", right=True, drop=1),
    Column("NEXT DUE", right=True),
)
PLANNED = (
    Column("TOPIC"),
    Column("PARTITIONS", right=True, drop=4),
    Column("SEGMENTS", right=True, drop=3),
    Column("SIZE", right=True),
    Column("ON DISK", right=True, drop=5),
    Column("OFFSETS", right=True, drop=2),
    Column("UP TO", right=True, drop=1),
    Column("NEXT DUE", right=True),
)
NONE = "-"
SEGMENTS = click.option(
    "--segments", "detailed", is_flag=True, help=f"List segments even for more than {DETAILED_MOST} partitions."
)


def note_left_out(count: int) -> None:
    """Notes that there are too many partitions to list their segments."""
    note(f"note: the segments of {count} partitions are not listed: use --segments, or name a topic or partition")


def print_explained(topics: Iterable[TopicRetention]) -> None:
    """Prints the table of `explain`, one line per topic."""
    print_table(
        EXPLAINED,
        [
            [
                sums.topic,
                len(sums.partitions),
                sums.segments,
                _shown.size(sums.bytes),
                sums.going_segments or NONE,
                _size(sums.going_bytes, sums),
                *_times(sums),
            ]
            for sums in topics
        ],
    )


def print_planned(topics: Sequence[TopicRetention], *, has_due: bool) -> None:
    """Prints the table of `retain`, one line per topic, or nothing if nothing is deleted. `has_due`: the plan follows
    times too."""
    if not topics:
        return
    rows = [
        [
            sums.topic,
            len(sums.going_partitions) or NONE,
            sums.going_segments or NONE,
            _size(sums.going_bytes, sums),
            _shown.size(sums.going_disk_bytes) if sums.going_segments else NONE,
            *_times(sums),
        ]
        for sums in topics
    ]
    if has_due:
        print_table(PLANNED, rows)
    else:
        print_table(PLANNED[:-1], [row[:-1] for row in rows])


def _size(size_bytes: int, sums: TopicRetention) -> object:
    return Cell(_shown.size(size_bytes), "yellow") if sums.going_segments else NONE


def _times(sums: TopicRetention) -> tuple[object, object, object]:
    """Returns the cells for offsets, the last time, and the next due time."""
    return (
        sums.going_offsets if sums.going_segments else NONE,
        When(sums.largest_timestamp),
        NONE if sums.next_due_ms is None else When(sums.next_due_ms),
    )


def explained_json(sums: TopicRetention) -> dict[str, object]:
    """Returns an object of kind topic, with the names of `explain`'s summary of a partition."""
    return {
        "kind": "topic",
        "topic": sums.topic,
        "partitions": sorted(sums.partitions),
        "segments": sums.segments,
        "size": sums.bytes,
        "goes": sums.going_segments,
        "goingSize": sums.going_bytes,
        "goingOffsets": sums.going_offsets,
        "goingTimestamp": sums.largest_timestamp,
        "untilMs": sums.next_due_ms,
    }


def planned_json(sums: TopicRetention, *, done: bool) -> dict[str, object]:
    """Returns an object of kind topic, with the names of `retain`'s partitions and segments."""
    return {
        "kind": "topic",
        "topic": sums.topic,
        "done": done,
        "partitions": sorted(sums.going_partitions),
        "segments": sums.going_segments,
        "size": sums.going_bytes,
        "bytes": sums.going_disk_bytes,
        "offsets": sums.going_offsets,
        "largestTimestamp": sums.largest_timestamp,
        "untilMs": sums.next_due_ms,
    }
