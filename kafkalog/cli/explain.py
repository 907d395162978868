"""`kafkalog explain`: explains why each segment of partitions is kept."""

from __future__ import annotations

import re

import click

from kafkalog import _shown
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.cli.app import CLEAN, FINDINGS, worse
from kafkalog.cli.console import (
    Progress,
    counted,
    emit,
    emit_json,
    fields,
    log_bytes,
    note,
    paint,
    some,
    tell_unsettled,
    time_words,
)
from kafkalog.cli.places import CONFIG, SETTINGS, SHOWN, partitions_at, setting_fields, setting_words, topic_settings
from kafkalog.cli.remote_places import ReadPath, both_tiers
from kafkalog.cli.retention_table import DETAILED_MOST, SEGMENTS, explained_json, note_left_out, print_explained
from kafkalog.cli.tables import utc_option
from kafkalog.config import LogConfig
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.retention_rule import Rule
from kafkalog.errors import BeingWrittenException, UnknownTopicOrPartitionException
from kafkalog.toolbox.compaction_state import CompactionState
from kafkalog.toolbox.explain import Explained, Explanation, explain
from kafkalog.toolbox.retention_sums import RetentionSums
from kafkalog.toolbox.segment_facts import PartitionFacts, was_compacted

SHOWN_TIERED = ("remote.storage.enable", "local.retention.ms", "local.retention.bytes")
SHOWN_COMPACTED = ("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms")
_TIMESTAMP = re.compile(
    r"(?<=timestamp )[0-9]+|(?<=modification time )[0-9]+|(?<=timestamps up to )[0-9]+|(?<=\()[0-9]{12,}(?=\))"
)
UNCOMPACTED = "uncompacted"  # the name of a reason
GOES = {
    Rule.LOG_START: "it is before the log start",
    Rule.SIZE: "the rest is more than retention.bytes",
    Rule.TIME: "older than retention.ms",
}


@click.command("explain", short_help="Explain why each segment is kept, and when it will be deleted.")
@click.argument("place", metavar="DIR|TOPIC|PARTITION", type=ReadPath())
@click.argument("partitions", nargs=-1)
@SETTINGS
@CONFIG
@click.option("--exact", is_flag=True, help="Read all batch headers instead of relying on time indexes.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: segments, a summary of each partition, topics."
)
@SEGMENTS
@utc_option
@click.option("--progress", is_flag=True, help="Show progress even if stderr is not a terminal.")
@both_tiers
def command(
    place: str,
    partitions: tuple[str, ...],
    settings: tuple[str, ...],
    broker_file: str | None,
    exact: bool,
    as_json: bool,
    detailed: bool,
    progress: bool,
) -> int:
    """Explain why each segment of a log directory (DIR), a topic (DIR/orders) or a partition (DIR/orders-0) is kept.

    For each segment the command shows which retention rule or bound keeps it, what would have to change, and when it
    will be deleted. For a compacted topic it shows whether the segment has been compacted, or what that waits for.
    Kafka's internal topics are shown only if they are named.

    Segments are deleted from the oldest on, and never above the high watermark: a segment that is kept also keeps all
    segments after it.

    For several partitions a table of topics follows. The columns that begin with DUE are about the segments that the
    next retention pass deletes: how many, their size, their offsets and their largest timestamp. NEXT DUE is when the
    next segment after them is deleted. For more than 20 partitions only this table and the findings are shown, unless
    --segments is given.

    Each setting is shown with its source: given (-X), set by the topic (next to the data, or in the cluster's
    metadata), dynamic, server.properties (--config), or default. A guessed default means that the cluster's
    metadata or the server.properties is not known. If a topic's own settings are not known, the values of --config are
    used.

    The command changes nothing, takes no lock, and works while a broker is running. Exit 1 if timestamps are in the
    future, if a time index has lost entries, or if the high watermark checkpoint cannot be read.
    """
    log_dir, found, named = partitions_at(place, partitions)
    known = topic_settings(log_dir, settings, broker_file)
    chosen = {each: path for each, path in found.items() if named or each.topic not in INTERNAL_TOPICS} or found
    now_ms = SYSTEM_CLOCK.milliseconds()
    is_detailed = as_json or detailed or len(chosen) <= DETAILED_MOST
    code, sums, findings = CLEAN, RetentionSums(), 0
    guesses: dict[str, dict[str, None]] = {}  # guess -> topics with this guess
    compacted: list[TopicPartition] = []
    checkpoints = CheckpointLines(log_dir)
    with Progress(log_bytes(chosen.values()), "read", force=progress) as bar:
        for wanted in chosen:
            config = known.of(wanted.topic)
            try:
                told = explain(log_dir, wanted, config, now_ms, exact=exact, progress=bar.advance)
            except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
                if len(chosen) == 1:
                    raise
                code = worse(code, tell_unsettled(error))
                continue
            sums.add(told)
            if is_detailed:
                _tell(log_dir, known, told, now_ms, as_json)
            else:
                for text in told.findings[: max(0, DETAILED_MOST - findings)]:
                    emit(f"{wanted}: {paint(_with_times(text), 'red')}")
                findings += len(told.findings)
            if guess := _guess(known, wanted.topic, _keys(config), broker_file):
                guesses.setdefault(guess, {})[wanted.topic] = None
            if config.delete and was_compacted(wanted, checkpoints):
                compacted.append(wanted)
            code = worse(code, FINDINGS if told.findings else CLEAN)
    if findings > DETAILED_MOST:
        emit(paint(f"and {findings - DETAILED_MOST} more findings: --segments shows them", "red"))
    if not is_detailed:
        note_left_out(len(chosen))
    for guess, topics in guesses.items():
        note(
            f"note: {guess}" + (f"; this applies to {some(topics)}" if len({each.topic for each in chosen}) > 1 else "")
        )
    if compacted:
        note(
            f"note: a cleaner has compacted {some(map(str, compacted))}, so its cleanup.policy is or includes compact: "
            "give it with -X cleanup.policy=..."
        )
    _sum_up(sums, len(chosen), as_json)
    return code


def _guess(known: TopicSettings, topic: str, keys: tuple[str, ...], broker_file: str | None) -> str | None:
    """Returns which settings of a topic are guessed, and why."""
    guessed = [key for key in keys if not known.is_known(topic, key)]
    if not guessed:
        return None
    gives = "" if broker_file else "give the broker's server.properties with --config, or "
    what = "the topic may have other values" if broker_file else "guessed"
    gives += "a setting with -X" if gives else "give a setting with -X"
    return f"{what}: {', '.join(guessed)}: {known.why_unknown(topic)} ({gives})"


def _sum_up(sums: RetentionSums, partitions: int, as_json: bool) -> None:
    topics = sums.rows()
    if partitions == 1 or not topics:
        return
    if as_json:
        for each in topics:
            emit_json(explained_json(each))
    else:
        print_explained(topics)
        emit(
            f"in all: {sum(each.going_segments for each in topics)} of "
            f"{counted(sum(each.segments for each in topics), 'segment')} of "
            f"{counted(sum(len(each.partitions) for each in topics), 'partition')} will be deleted by the next pass, "
            f"{_shown.size(sum(each.going_bytes for each in topics))}"
        )


def _keys(config: LogConfig) -> tuple[str, ...]:
    """Returns the settings that decide what a topic keeps."""
    return SHOWN + SHOWN_COMPACTED * config.compact + SHOWN_TIERED * config.remote_storage_enable


def _tell(log_dir: str, known: TopicSettings, told: Explanation, now_ms: int, as_json: bool) -> None:
    facts, wanted = told.facts, told.facts.partition
    config = known.of(wanted.topic)
    keys = _keys(config)
    if not as_json:
        emit(
            f"{wanted}: log start {facts.log_start_offset}, high watermark {facts.high_watermark}"
            f"{_watermark_source(facts)}, log end {facts.log_end_offset}"
        )
        emit(setting_words(known, wanted.topic, keys))
        if config.remote_storage_enable and mounted(log_dir) is None:
            by = "retention.*, because nothing is copied any more (remote.log.copy.disable)"
            if told.is_local:
                by = "local.retention.* (-2: as retention.*), and nothing is deleted before it is copied"
            emit(
                f"tiered: offsets below {facts.log_start_offset} may be in the remote tier; the lines below are "
                f"about the disk, which follows {by}"
            )
        if told.compaction is not None:
            state = told.compaction
            emit(
                f"clean (compacted) up to offset {state.first_dirty_offset}"
                f"{'' if state.checkpointed is not None else ' (no checkpoint: never compacted)'}, "
                f"{_shown.size(state.clean_bytes)}; dirty (to be compacted) up to {state.first_uncleanable_offset}, "
                f"{_shown.size(state.dirty_bytes)} ({100 * state.dirty_ratio:.0f} %)"
            )
            uncompacted = (each.text for entry in told.segments for each in entry.reasons if each.what == UNCOMPACTED)
            for text in dict.fromkeys(uncompacted):  # once for all segments from there on
                emit(f"from offset {state.first_uncleanable_offset} on, {text}")
    for entry in told.segments:
        if as_json:
            emit_json(_json(entry, wanted))
        else:
            _print(entry, now_ms, told.is_local, facts.log_start_offset)
    for text in told.findings:
        if not as_json:
            emit(paint(_with_times(text), "red"))
    if as_json:
        emit_json(
            {
                "kind": "summary",
                "topic": wanted.topic,
                "partition": wanted.partition,
                "nowMs": now_ms,
                "logStartOffset": facts.log_start_offset,
                "highWatermark": facts.high_watermark,
                "highWatermarkKnown": facts.watermark_known,
                "logEndOffset": facts.log_end_offset,
                "size": facts.size,
                **setting_fields(known, wanted.topic, keys),
                "segments": len(told.segments),
                "goes": sum(entry.goes is not None for entry in told.segments),
                "compaction": None if told.compaction is None else _compaction(told.compaction),
                "findings": told.findings,
            }
        )


def _with_times(text: str) -> str:
    """Returns a sentence in which each timestamp in milliseconds is followed by its time."""
    return _TIMESTAMP.sub(lambda found: f"{found[0]} = {time_words(int(found[0]))}", text)


def _watermark_source(facts: PartitionFacts) -> str:
    if facts.watermark_known:
        return ""
    told = facts.watermark_told
    why = "no checkpoint"
    if told.problem is not None:
        why = "its checkpoint cannot be read"
    elif told.is_blank:
        why = "its checkpoint is an empty file"
    return f" ({why}: this is the log end)"


def _compaction(state: CompactionState) -> dict[str, object]:
    return {**fields(state), "dirtyRatio": round(state.dirty_ratio, 4), "held": fields(state.held)}


def _print(entry: Explained, now_ms: int, is_local: bool, log_start: int) -> None:
    segment = entry.segment
    times = "file modified " if segment.record_timestamp < 0 else "up to "
    has = f"offsets {segment.base_offset} to {segment.end_offset - 1}"
    if segment.end_offset <= segment.base_offset:
        has = "no offsets yet"
    emit(
        f"{segment.base_offset:020d}.log  {_shown.size(segment.size):>10}  {has}, {times}"
        f"{time_words(segment.largest_timestamp)}{', active' if segment.active else ''}"
    )
    if entry.goes is not None:
        roll = ", after a roll" if segment.active else ""
        when = "by the next pass after it was copied" if is_local else "by the next pass"
        why = GOES[entry.goes].replace("retention.", "local.retention.") if is_local else GOES[entry.goes]
        emit(f"  {paint('will be deleted', 'yellow')} {when}: {why}{roll}")
        return
    until = entry.until_ms
    emit(f"  kept{'' if until is None else f' until {time_words(until)}'}")
    for reason in entry.reasons:
        if reason.what == UNCOMPACTED:  # printed once above
            continue
        if reason.what == "logStart" and log_start < segment.base_offset and len(entry.reasons) > 1:
            continue  # the log start is in an older segment, so it says nothing about this one
        emit(f"    {reason.what}: {_with_times(reason.text)}")


def _json(entry: Explained, partition: TopicPartition) -> dict[str, object]:
    segment = entry.segment
    return {
        "kind": "segment",
        "topic": partition.topic,
        "partition": partition.partition,
        "baseOffset": segment.base_offset,
        "endOffset": segment.end_offset,
        "path": segment.path,
        "size": segment.size,
        "active": segment.active,
        "largestTimestamp": segment.record_timestamp,
        "fileTimestamp": segment.mtime_ms,
        "goes": None if entry.goes is None else entry.goes.value,
        "untilMs": entry.until_ms,
        "future": None if entry.future is None else entry.future._asdict(),
        "reasons": [
            {
                "what": reason.what,
                "text": reason.text,
                "blockedBy": reason.blocked_by,
                "untilMs": reason.until_ms,
                "afterBytes": reason.after_bytes,
            }
            for reason in entry.reasons
        ],
    }
