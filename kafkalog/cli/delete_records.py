"""`kafkalog delete-records`: raises a partition's log start offset."""

from __future__ import annotations

import logging

import click

from kafkalog import _shown
from kafkalog.cli.app import CLEAN, LocalPath
from kafkalog.cli.console import counted, emit, emit_json, note
from kafkalog.cli.places import SETTINGS, note_freed, note_unread, parse_offset_or_time, partition_at, topic_settings
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.delete_records import delete_records, plan_deletion
from kafkalog.toolbox.segment_facts import SegmentFacts


@click.command("delete-records", short_help="Raise a partition's log start offset.")
@click.argument("partition", type=LocalPath())
@click.option("--before", required=True, metavar="OFFSET|TIME", help="The first offset, or time, that is kept.")
@SETTINGS
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(partition: str, before: str, settings: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> int:
    """Raise the log start offset of PARTITION (a directory: DIR/orders-0), as Kafka's DeleteRecords does.

    All records before an offset or a time become unreadable forever. A time is ISO 8601 (UTC unless it has an offset)
    or @milliseconds; the first record at or after that time and everything after it are kept.

    Without --yes the command only reports the change, and a broker may be running. With --yes it writes the log start
    checkpoint, and the directory must not be in use (exit 3). This cannot be undone. Groups that have not read all of
    the deleted records are named.

    Segments that are wholly before the new log start are deleted by the next retention run: of a broker, or of
    `kafkalog retain`. On a full disk the first of them are deleted at once, if the partition cannot be opened
    otherwise.

    A topic with cleanup.policy=compact alone is refused, if the settings next to the data, -X, or traces of a cleaner
    show it. A tiered topic (remote.storage.enable) is refused too: use a store that is opened with its remote tier.
    """
    act = yes and not dry_run
    offset, time_ms = parse_offset_or_time(before)
    log_dir, wanted = partition_at(partition)
    config = topic_settings(log_dir, settings).of(wanted.topic)
    plan = plan_deletion(log_dir, wanted, config, offset=offset, time_ms=time_ms)
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
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
        emit(f"{wanted}: nothing before {before} is left to delete: the log start is {plan.log_start_offset}")
        return CLEAN
    done = "deleted" if act else "would be deleted (--yes does it)"
    emit(
        f"{wanted}: offsets {plan.log_start_offset} to {start - 1} {done}; the log "
        f"{'starts' if act else 'would start'} at {start} and {'ends' if act else 'end'} at {plan.log_end_offset}"
    )
    if below:
        note(
            f"note: {counted(len(below), 'segment')} ({_shown.size(size)}) before it will be deleted by the next "
            f"retention run, of a broker or of `kafkalog retain {partition} -X retention.ms=-1 --yes`"
        )
    return CLEAN
