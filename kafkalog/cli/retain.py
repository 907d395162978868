"""`kafkalog retain`: deletes old segments, by the retention settings or until enough disk space is free."""

from __future__ import annotations

import logging
import os

import click

from kafkalog import _shown
from kafkalog._face.topic_settings import ConfigSource, TopicSettings
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import Progress, counted, emit, emit_json, note, some, time_words
from kafkalog.cli.places import (
    CONFIG,
    SETTINGS,
    note_freed,
    note_left_alone,
    note_unread,
    parse_bytes,
    partitions_at,
    setting_fields,
    setting_words,
    topic_settings,
)
from kafkalog.cli.retention_table import DETAILED_MOST, SEGMENTS, note_left_out, planned_json, print_planned
from kafkalog.cli.tables import utc_option
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.files.usage import free_bytes
from kafkalog.engine.format import names
from kafkalog.toolbox.retain import Choice, Plan, carry_out, plan_by_rules, plan_until_free
from kafkalog.toolbox.retention_sums import planned_by_topic

RULES = ("retention.ms", "retention.bytes")
SET = (ConfigSource.GIVEN, ConfigSource.TOPIC, ConfigSource.DYNAMIC, ConfigSource.STATIC)


@click.command("retain", short_help="Delete old segments by the settings, or until enough space is free.")
@click.argument("place", metavar="DIR|TOPIC|PARTITION", type=LocalPath())
@click.argument("partitions", nargs=-1)
@click.option("--target-free", metavar="BYTES", help="Delete the oldest segments until BYTES are free, such as 10GiB.")
@SETTINGS
@CONFIG
@click.option("--dry-run", is_flag=True, help="Only report what would change; the default.")
@click.option("--yes", is_flag=True, help="Make the change.")
@SEGMENTS
@utc_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: partitions that lose segments, topics, a summary."
)
def command(
    place: str,
    partitions: tuple[str, ...],
    target_free: str | None,
    settings: tuple[str, ...],
    broker_file: str | None,
    dry_run: bool,
    yes: bool,
    detailed: bool,
    as_json: bool,
) -> int:
    """Delete old segments of a log directory (DIR), a topic in it (DIR/orders) or a partition (DIR/orders-0), as
    retention does.

    Without --yes the command only reports what it would delete, and a broker may be running. With --yes it deletes,
    which cannot be undone; the directory must not be in use (exit 3).

    By default the retention rules decide: -X, the topic's own settings (next to the data, or in the cluster's
    metadata), the cluster's dynamic ones, or --config. With --target-free the oldest segments of all
    partitions are deleted until so many bytes of the file system are free.

    The active segment, and everything above the high watermark, is never deleted. Kafka's internal topics and compacted
    topics are skipped, unless they are named and -X cleanup.policy=delete is given. A topic whose own policy is
    compact,delete loses what its rules delete, as with a broker. Log start and checkpoints are left as a broker expects
    them.

    A table of topics shows what is deleted, up to which time, and when the rules will delete the next closed segment.
    If more than 20 partitions would lose segments, only --segments lists them. Deleted segments are always listed.

    If --target-free cannot be reached, nothing is deleted, and the exit code is 1. Then give a smaller number.
    """
    asked = yes and not dry_run
    wanted_free = None if target_free is None else parse_bytes(target_free, "--target-free")
    log_dir, chosen, named = partitions_at(place, partitions)
    # Rules that are not given are off: a command that deletes must not follow a guessed default.
    known = topic_settings(log_dir, settings, broker_file, fallback=dict.fromkeys(RULES, "-1"))
    topics = {partition.topic for partition in chosen}
    if target_free is not None and set(RULES) & set(known.given):
        raise Usage("found --target-free and a retention rule, expected one of them: --target-free uses only the age")
    ruled = any(known.source(topic, rule) in SET for topic in topics for rule in RULES)
    if target_free is None and not ruled:
        raise Usage(
            "no rule given, expected -X retention.ms=..., -X retention.bytes=..., --config FILE or --target-free BYTES "
            f"({known.why_unknown(min(topics, default=''))})"
        )
    also_compacted = named and "cleanup.policy" in known.given and all(known.of(topic).delete for topic in topics)
    with Progress(len(chosen), "read", counts="partitions") as bar:
        if wanted_free is None:
            now_ms = SYSTEM_CLOCK.milliseconds()
            plan = plan_by_rules(
                log_dir, chosen, known, now_ms, also_compacted=also_compacted, named=named, progress=bar.advance
            )
        else:
            plan = plan_until_free(
                log_dir, chosen, known, wanted_free, also_compacted=also_compacted, progress=bar.advance
            )
    logging.getLogger("kafkalog").addHandler(logging.NullHandler())  # this command prints what the engine would log
    act = asked and not plan.missing
    note_left_alone(plan.skipped)
    if wanted_free is not None:
        _note_kept_for_ever(plan, known)
    note_unread(log_dir, {choice.partition: choice.new_start for choice in plan.choices})

    told: list[Choice] = []

    def tell(choice: Choice) -> None:
        told.append(choice)
        _tell(plan, choice, known, act, as_json)

    gained = 0
    if act:
        try:
            gained = carry_out(plan, known, done=tell, freed=note_freed)
        except BaseException:
            if told:
                gone = counted(sum(len(choice.going) for choice in told), "segment")
                gone += f" of {counted(len(told), 'partition')}"
                note(f"note: not complete: deleted {gone}; run the same command again to delete the rest")
            raise
    elif as_json or detailed or len(plan.choices) <= DETAILED_MOST:
        for choice in plan.choices:
            tell(choice)
    else:
        note_left_out(len(plan.choices))
    _sum_up(plan, act, gained, as_json)
    if wanted_free is not None and not as_json:
        _tell_free(plan, wanted_free, asked, act)
    return FINDINGS if plan.missing else CLEAN


def _note_kept_for_ever(plan: Plan, known: TopicSettings) -> None:
    """Notes the partitions that have retention.ms=-1, for --target-free ignores it."""
    kept = [
        choice.partition
        for choice in plan.choices
        if known.of(choice.partition.topic).retention_ms < 0 and known.source(choice.partition.topic, RULES[0]) in SET
    ]
    if kept:
        note(
            f"note: --target-free deletes old segments of {some(map(str, kept))}, although retention.ms=-1 keeps them "
            "forever"
        )


def _tell(plan: Plan, choice: Choice, known: TopicSettings, act: bool, as_json: bool) -> None:
    going = choice.going
    if as_json:
        emit_json(
            {
                "kind": "partition",
                "topic": choice.partition.topic,
                "partition": choice.partition.partition,
                "done": act,
                "logStartOffset": choice.log_start_offset,
                "newLogStartOffset": choice.new_start,
                "bytes": choice.allocated,
                **setting_fields(known, choice.partition.topic, RULES),
                "segments": [
                    {
                        "baseOffset": each.segment.base_offset,
                        "endOffset": each.segment.end_offset,
                        "path": each.segment.path,
                        "size": each.segment.size,
                        "allocated": each.allocated,
                        "largestTimestamp": each.segment.largest_timestamp,
                        "rule": None if each.rule is None else each.rule.value,
                    }
                    for each in going
                ],
            }
        )
        return
    emit(
        f"{choice.partition}: {counted(len(going), 'segment')}, {_sizes(choice.size, choice.allocated)} "
        f"{_doing(plan, act)}; log start {choice.log_start_offset} -> "
        f"{choice.new_start}"
    )
    if any(each.rule is not None for each in going):
        emit(f"  {setting_words(known, choice.partition.topic, RULES)}")
    for each in going:
        why = "" if each.rule is None else f", {each.rule.value}"
        segment = each.segment
        emit(
            f"  {names.filename_prefix_from_offset(segment.base_offset)}.log  {_shown.size(segment.size):>10}  "
            f"up to {time_words(segment.largest_timestamp)}{why}"
        )


def _doing(plan: Plan, act: bool) -> str:
    if act:
        return "deleted"
    return "could be deleted" if plan.missing else "would be deleted (--yes deletes them)"


def _sizes(log_bytes: int, allocated: int) -> str:
    """Returns the size of the logs, as for retention.bytes and in `explain`, and the size on disk including indexes."""
    return f"{_shown.size(log_bytes)} ({_shown.size(allocated)} on disk)"


def _sum_up(plan: Plan, act: bool, gained: int, as_json: bool) -> None:
    segments = sum(len(choice.going) for choice in plan.choices)
    topics = planned_by_topic(plan)
    if as_json:
        for sums in topics:
            emit_json(planned_json(sums, done=act))
        emit_json(
            {
                "kind": "summary",
                "done": act,
                "partitions": len(plan.choices),
                "segments": segments,
                "bytes": plan.allocated,
                "gained": gained if act else None,
                "missing": plan.missing,
                "free": plan.free,
                "deletedFolders": list(plan.deleted_folders),
                "skipped": {str(partition): why for partition, why in plan.skipped.items()},
            }
        )
        return
    for folder, size in plan.deleted_folders.items():
        emit(
            f"{os.path.basename(folder)}: {_shown.size(size)} of a deleted partition "
            f"{'removed' if act else 'would be removed'}"
        )
    print_planned(topics, has_due=plan.free is None)
    emit(
        f"in all: {counted(segments, 'segment')} of {counted(len(plan.choices), 'partition')}, "
        + _sizes(sum(choice.size for choice in plan.choices), plan.allocated)
        + (f", {_shown.size(gained)} freed" if act else "")
    )


def _tell_free(plan: Plan, wanted: int, asked: bool, act: bool) -> None:
    """Prints how much of the file system is free and, if the target cannot be reached, how much could be."""
    assert plan.free is not None
    target, free = _shown.size(wanted), _shown.size(plan.free)
    if wanted > plan.free and target == free:
        target, free = counted(wanted, "byte"), counted(plan.free, "byte")
    if act:
        emit(f"{_shown.size(free_bytes(plan.log_dir))} are free now, {_shown.size(plan.free)} were before")
    elif wanted <= plan.free:
        emit(f"{free} are free now, which is at least {target}: nothing is to be deleted")
    else:
        emit(f"{free} are free now")
    if plan.missing:
        emit(
            f"{'nothing is deleted: ' if asked else ''}{target} free cannot be reached: not enough, "
            f"{_shown.size(plan.missing)} more are needed, and the rest may not be deleted.  At most "
            f"{_shown.size(plan.allocated)} can be freed: --target-free {plan.free + plan.allocated} deletes that"
        )
