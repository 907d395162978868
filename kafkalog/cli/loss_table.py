"""The end of `verify`, `recover` and `salvage`: lost records and times, one line per topic, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Collection

from kafkalog import _shown
from kafkalog.cli.console import emit_json, note_next
from kafkalog.cli.tables import Cell, Column, When, print_table
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.losses import LostRange, TopicLoss, by_topic

COLUMNS = (
    Column("LOST OF TOPIC"),
    Column("PARTITIONS", right=True, drop=2),
    Column("RANGES", right=True, drop=1),
    Column("RECORDS", right=True),
    Column("BYTES", right=True, drop=3),
    Column("FROM", right=True),
    Column("TO", right=True),
)
UNKNOWN = Cell("unknown", "yellow")
NAMED_MOST = 5  # partitions to name in a suggested command; for more it names the directory


def print_losses(ranges: Collection[LostRange], *, as_json: bool = False) -> None:
    """Prints what is lost, or nothing if nothing is lost."""
    if as_json:
        for topic in by_topic(ranges):
            emit_json(_json(topic))
    elif ranges:
        print_table(COLUMNS, [_row(topic) for topic in by_topic(ranges)])


def _row(topic: TopicLoss) -> list[object]:
    about = "~" if topic.unsure_times else ""
    return [
        Cell(topic.topic, "red"),
        len(topic.partitions),
        topic.ranges,
        _records(topic),
        _bytes(topic),
        UNKNOWN if topic.first_timestamp < 0 else When(topic.first_timestamp, about),
        UNKNOWN if topic.last_timestamp < 0 else When(topic.last_timestamp, about),
    ]


def _json(topic: TopicLoss) -> dict[str, object]:
    """Returns the object of a topic. `records` is the sum of upper bounds over the ranges with a known number;
    `recordsKnown` says whether that is all of them. `bytes` likewise. A time is -1 if it is not known, and `timesKnown`
    says whether the times of all ranges are."""
    return {
        "kind": "topicLoss",
        "topic": topic.topic,
        "partitions": sorted(topic.partitions),
        "ranges": topic.ranges,
        "records": topic.records,
        "recordsKnown": not topic.unsure,
        "bytes": topic.bytes,
        "bytesKnown": not topic.unsure_bytes,
        "firstTimestamp": topic.first_timestamp,
        "lastTimestamp": topic.last_timestamp,
        "timesKnown": not topic.unsure_times,
    }


def _records(topic: TopicLoss) -> object:
    if topic.unsure:
        return f"up to {topic.records} and unknown" if topic.records else UNKNOWN
    return f"up to {topic.records}"


def _bytes(topic: TopicLoss) -> object:
    if topic.unsure_bytes:
        return f"{_shown.size(topic.bytes)} and unknown" if topic.bytes else UNKNOWN
    return _shown.size(topic.bytes)


def note_next_of(command: str, log_dir: str, partitions: Collection[TopicPartition], *more: str) -> None:
    """Prints the command that helps next with partitions of a directory; `more` comes before their names."""
    known = sorted(set(partitions))
    note_next(command, log_dir, *more, *(map(str, known) if len(known) <= NAMED_MOST else ()))
