"""`kafkalog delete-records`: raise a partition's log start."""

from __future__ import annotations

import logging

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, LocalPath
from kafkalog.cli.console import emit, emit_json, note
from kafkalog.cli.places import SETTINGS, note_freed, note_unread, parse_offset_or_time, partition_at, topic_settings
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.delete_records import delete_records, plan_deletion
from kafkalog.toolbox.segment_facts import SegmentFacts


@click.command("delete-records", short_help="Raise a partition's log start.")
@click.argument("partition", type=LocalPath())
@click.option("--before", required=True, metavar="OFFSET|TIME", help="The first offset, or time, that is to stay.")
@SETTINGS
@click.option("--dry-run", is_flag=True, help="Only tell what would become unreadable; the default.")
@click.option("--yes", is_flag=True, help="Do it.  It cannot be undone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(partition: str, before: str, settings: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> int:
    """Make everything of PARTITION (a folder: DIR/orders-0) below an offset, or older than a time, unreadable for ever,
    as Kafka's DeleteRecords does: the log start is raised and checkpointed.

    Files that lie wholly below go with the next retention: a broker's, or `kafkalog retain`.  On a full disk the first
    of them go at once, if the partition cannot be opened otherwise.  Without --yes it only
    tells, also beside a running broker; with it the directory must be free (exit 3).  A time is ISO 8601 (UTC
    unless it says otherwise) or @milliseconds; what is at or after the first record of that time stays.  Groups that
    have not read all of what goes are named.  A topic that is only compacted is refused: by the settings that a
    LogManager keeps beside the data, by -X, or by a cleaner's traces.  So is a tiered one (remote.storage.enable):
    a store that is opened with its tier does it.
    """
    act = yes and not dry_run
    offset, time_ms = parse_offset_or_time(before)
    log_dir, wanted = partition_at(partition)
    config = topic_settings(log_dir, settings).of(wanted.topic)
    plan = plan_deletion(log_dir, wanted, config, offset=offset, time_ms=time_ms)
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # what the engine would log is told here
    if plan.offsets:
        note_unread(log_dir, {wanted: plan.new_start})
    freed: list[SegmentFacts] = []

    def tell_freed(partition: TopicPartition, segment: SegmentFacts) -> None:
        freed.append(segment)
        note_freed(partition, segment)

    start = plan.new_start
    if act and plan.offsets:
        start = delete_records(log_dir, plan, config, freed=tell_freed)
    below = [segment for segment in plan.segments if segment not in freed]
    size = sum(segment.file_bytes for segment in below)
    if as_json:
        emit_json(
            {
                "kind": "partition",
                "topic": wanted.topic,
                "partition": wanted.partition,
                "done": act,
                "logStartOffset": plan.log_start_offset,
                "newLogStartOffset": start,
                "logEndOffset": plan.log_end_offset,
                "offsets": plan.offsets,
                "segments": len(below),
                "bytes": size,
            }
        )
        return CLEAN
    if not plan.offsets:
        emit(f"{wanted}: nothing below {before} that is not deleted: the log start is {plan.log_start_offset}")
        return CLEAN
    done = "deleted" if act else "would be deleted (--yes does it)"
    emit(
        f"{wanted}: offsets {plan.log_start_offset} to {start - 1} {done}; the log "
        f"{'starts' if act else 'would start'} at {start}, ends at {plan.log_end_offset}"
    )
    if below:
        note(
            f"note: {len(below)} segments ({_shown.size(size)}) lie below; they go with the next retention, a "
            f"broker's or `kafkalog retain {partition} -X retention.ms=-1 --yes`"
        )
    return CLEAN
