"""Explains for each segment why it is still there: what deletes it now, or what holds it, and until when.

For a compacted log it also says whether compaction has processed the segment, or when it will.  The decision is
`log.retention_rule`'s, the same that deletes.  Here it is only shown, from files, and the directory may be another
process's.  Segments are deleted oldest first, so what holds one holds all later ones: a record with a timestamp in the
future keeps its segment and everything after it (KAFKA-20609).  Only reads, takes no lock.

For a tiered partition that is read without its tier, only the disk is explained, where local.retention.* decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalog._face.opening import open_log
from kafkalog.config import LogConfig
from kafkalog.engine.cleaner.to_clean import Bound
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.retention_rule import Rule, due_ms, rules_of, runs_of
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import BadBytesError
from kafkalog.toolbox.compaction_state import CompactionState, look_at_compaction
from kafkalog.toolbox.segment_facts import PartitionFacts, SegmentFacts, look
from kafkalog.toolbox.words import command, counted, span

__all__ = ["Explained", "Explanation", "FutureRecord", "Reason", "explain"]


class FutureRecord(NamedTuple):
    """The first record whose timestamp is in the future."""

    offset: int
    timestamp: int


class Reason(NamedTuple):
    """Why one rule, or any rule, does not delete a segment.

    `what` is a word for programs, `text` a sentence.  `blocked_by` is the base offset of an older segment that must be
    deleted first.  `until_ms` is when the rule would delete the segment as things are now.  `after_bytes` is how many
    more bytes the log must have."""

    what: str
    text: str
    blocked_by: int | None = None
    until_ms: int | None = None
    after_bytes: int | None = None


@dataclass
class Explained:
    """One segment: `goes` is the rule that deletes it at the next pass; otherwise `reasons` say why it stays."""

    segment: SegmentFacts
    goes: Rule | None = None
    reasons: list[Reason] = field(default_factory=list)
    future: FutureRecord | None = None

    @property
    def until_ms(self) -> int | None:
        """The earliest time at which it is deleted, as far as time decides."""
        times = [reason.until_ms for reason in self.reasons if reason.until_ms is not None]
        return min(times, default=None)


@dataclass
class Explanation:
    """The segments of a partition in order, and irregularities (`findings`).

    `compaction` is set for a compacted log. With `is_local`, only what stays on the disk is explained, of a log
    that continues in a remote tier.
    """

    facts: PartitionFacts
    segments: list[Explained]
    findings: list[str] = field(default_factory=list)
    compaction: CompactionState | None = None
    is_local: bool = False


def explain(
    log_dir: str,
    partition: TopicPartition,
    config: LogConfig,
    now_ms: int,
    *,
    exact: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
    facts: PartitionFacts | None = None,
) -> Explanation:
    """Explains what retention does to a partition, segment by segment.

    Args:
        log_dir: The log directory.
        partition: The partition.
        config: The topic's settings.
        now_ms: The time of the retention, in ms since 1970.
        exact: Also reads the batches for the largest timestamps, not only the time indexes.
        files: The file system; for tests.
        progress: Called with the number of bytes just read.
        facts: The facts of the partition, if the caller has them; `exact` is then not used, and `tell_compaction` is
            the caller's to call.

    Returns:
        An `Explanation`.

    Raises:
        UnknownTopicOrPartitionException: The partition does not exist.

    Example:
        >>> import time
        >>> from kafkalog.toolbox.explain import explain
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> config = kafkalog.LogConfig.from_props({"retention.ms": "-1"})
        >>> found = explain("shop", kafkalog.TopicPartition("orders", 0), config, time.time_ns() // 1_000_000)
        >>> [reason.text for reason in found.segments[0].reasons if reason.what == "time"]
        ['retention.ms is off (-1)']
    """
    tells_compaction = config.compact and facts is None
    facts = facts or look(log_dir, partition, exact=exact, files=files, progress=progress)
    told = [Explained(segment) for segment in facts.segments]
    is_local = config.remote_storage_enable and not config.remote_log_copy_disable
    if is_local := is_local and not any(files.may_overlap(segment.path) for segment in facts.segments):
        config = _local(config)
    lead = "local." if is_local else ""
    gone = 0
    for rule, count in runs_of(facts.segments, facts.bounds, config, now_ms):
        for entry in told[gone : gone + count]:
            entry.goes = rule
        gone += count
    left = facts._replace(segments=facts.segments[gone:])
    explanation = Explanation(facts, told, is_local=is_local)
    if facts.watermark_told.problem is not None:
        explanation.findings.append(f"the high watermark is unknown: {facts.watermark_told.problem}")
    for entry, upto in zip(told[gone:], _run_up(left), strict=True):
        entry.reasons = _reasons(left, upto, config, now_ms, lead, os.path.join(log_dir, str(partition)))
    if tells_compaction:
        tell_compaction(explanation, log_dir, config, now_ms, files=files)
    _find_future(explanation, log_dir, config, now_ms, files)
    for entry in told:
        if entry.segment.lost_times:
            explanation.findings.append(
                f"{entry.segment.path}: its time index is empty although its records have timestamps: retention uses "
                f"the file's modification time instead ({command('reindex', log_dir, partition, '--yes')} repairs it)"
            )
    return explanation


def _local(config: LogConfig) -> LogConfig:
    """Returns settings that keep of a whole log what these keep of a tiered log on the disk."""
    size, age_ms = config.effective_local_retention_bytes, config.effective_local_retention_ms
    limits = {"retention.bytes": str(size), "retention.ms": str(age_ms)}
    return LogConfig.from_props(config, {**limits, **{f"local.{name}": "-2" for name in limits}})


def tell_compaction(
    explanation: Explanation,
    log_dir: str,
    config: LogConfig,
    now_ms: int,
    *,
    seen: Snapshot | None = None,
    files: Files = OS_FILES,
) -> None:
    """Adds how far a compacted partition is compacted, and what that means for each segment."""
    try:
        state = look_at_compaction(log_dir, explanation.facts, config, now_ms, seen=seen, files=files)
    except BadBytesError as error:
        explanation.findings.append(f"it is unknown how far it is compacted: {error}")
        return
    explanation.compaction = state
    for entry in explanation.segments:
        if state is not None and entry.goes is None:
            partition = explanation.facts.partition
            entry.reasons.insert(0, _compaction_reason(entry.segment, state, config, log_dir, partition))


def _compaction_reason(
    segment: SegmentFacts, state: CompactionState, config: LogConfig, log_dir: str, partition: TopicPartition
) -> Reason:
    if segment.active or segment.base_offset >= state.first_uncleanable_offset:
        text = f"compaction changes nothing yet: {state.held.text}"
        if state.held.what == Bound.TRANSACTION.value:
            text += f" ({command('transactions', log_dir, partition)} shows it)"
        return Reason("uncompacted", text)
    if segment.end_offset <= state.first_dirty_offset:
        return Reason(
            "compacted",
            f"compaction has processed it (clean up to offset {state.first_dirty_offset}): records with a later record "
            "of the same key were removed",
        )
    compact = command("compact", os.path.join(log_dir, str(partition)))
    if state.is_due:
        why = (
            f"one of its records is {span(state.overdue_ms)} over max.compaction.lag.ms"
            if state.overdue_ms
            else f"{_percent(state.dirty_ratio)} of the log is dirty, more than min.cleanable.dirty.ratio"
        )
        text = (
            f"to be compacted by the next pass: {why}.  If a running cleaner does not do it, it failed before and has "
            f"marked the partition as uncleanable: {compact} shows why"
        )
    else:
        text = (
            f"to be compacted, but not yet: {_percent(state.dirty_ratio)} of the log is dirty, and a cleaner starts "
            f"above min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio}; {compact} shows what a pass "
            "would do now"
        )
    return Reason("dirty", text)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class _Upto(NamedTuple):
    """A segment that stays, with the older ones that stay.  `bytes_without` is the log's size without them, `latest`
    the one with the largest timestamp, `unreplicated` the first that the high watermark holds."""

    segment: SegmentFacts
    bytes_without: int
    latest: SegmentFacts
    unreplicated: SegmentFacts | None


def _run_up(left: PartitionFacts) -> Iterator[_Upto]:
    size = left.size
    latest = unreplicated = None
    for segment in left.segments:
        size -= segment.size
        if latest is None or segment.largest_timestamp > latest.largest_timestamp:
            latest = segment
        if unreplicated is None and left.high_watermark < segment.end_offset:
            unreplicated = segment
        yield _Upto(segment, size, latest, unreplicated)


def _reasons(left: PartitionFacts, upto: _Upto, config: LogConfig, now_ms: int, lead: str, folder: str) -> list[Reason]:
    """Returns why a segment stays after the others are deleted."""
    segment, held = upto.segment, upto.unreplicated
    if segment.active and segment.size == 0:
        return [Reason("active", "it is the active segment, and it is empty: a log always has one")]
    if held is not None:
        behind = None if held is segment else held.base_offset
        whose = "the segment's" if behind is None else f"segment {behind}'s"
        return [
            Reason(
                "highWatermark",
                f"the high watermark {left.high_watermark} is before {whose} end offset {held.end_offset}: no segment "
                "is deleted before all replicas have it",
                behind,
            )
        ]
    reasons = [_reason(rule, left, upto, config, now_ms, lead, folder) for rule in rules_of(config)]
    if not config.delete:
        policy = "compact" if config.compact else "none"
        reasons.append(
            Reason(
                "policy",
                f"cleanup.policy={policy} does not include delete: neither retention.ms nor retention.bytes applies",
            )
        )
    return reasons


# The parameters are those of _reasons, and one rule.
def _reason(
    rule: Rule, left: PartitionFacts, upto: _Upto, config: LogConfig, now_ms: int, lead: str, folder: str
) -> Reason:
    """Returns why one rule keeps a segment.  `lead` is a prefix of the settings' names, `folder` the partition's
    path."""
    segment = upto.segment
    match rule:
        case Rule.LOG_START:
            if segment.active:
                return Reason("logStart", "it is the active segment: the log start offset is never after it")
            text = (
                f"the log start offset {left.log_start_offset} is before the segment's end offset {segment.end_offset}"
            )
            if config.delete and not config.remote_storage_enable:  # because `delete-records` accepts it only then
                text += (
                    f"; {command('delete-records', folder, '--before', segment.end_offset)} shows what raising it does"
                )
            return Reason("logStart", text)
        case Rule.SIZE:
            if config.retention_bytes < 0:
                return Reason("size", f"{lead}retention.bytes is off (-1)")
            missing = config.retention_bytes - upto.bytes_without
            return Reason(
                "size",
                f"without it and older segments the log would have {counted(upto.bytes_without, 'byte')}, and "
                f"{lead}retention.bytes keeps {config.retention_bytes}: it is deleted after "
                f"{counted(missing, 'more byte')}, or "
                f"with {lead}retention.bytes={config.retention_bytes - missing}",
                after_bytes=missing,
            )
        case Rule.TIME:
            return _time_reason(upto, config, now_ms, lead)


def _time_reason(upto: _Upto, config: LogConfig, now_ms: int, lead: str) -> Reason:
    if config.retention_ms < 0:
        return Reason("time", f"{lead}retention.ms is off (-1)")
    segment, holds = upto.segment, upto.latest
    until = due_ms(holds.largest_timestamp, config.retention_ms)
    blocked = holds.largest_timestamp > segment.largest_timestamp
    of = f"segment {holds.base_offset} must be deleted first: its" if blocked else "its"
    whose = "file's modification time" if holds.record_timestamp < 0 else "largest timestamp"
    text = f"{of} {whose} {holds.largest_timestamp} is {span(now_ms - holds.largest_timestamp)} old"
    if holds.largest_timestamp > now_ms:
        text = f"{of} {whose} {holds.largest_timestamp} is {span(holds.largest_timestamp - now_ms)} in the future"
    text += f", and {lead}retention.ms keeps {span(config.retention_ms)}: it is deleted in {span(until - now_ms)}"
    return Reason(
        "futureTimestamp" if holds.largest_timestamp > now_ms else "time",
        text,
        holds.base_offset if blocked else None,
        until_ms=until,
    )


def _find_future(explanation: Explanation, log_dir: str, config: LogConfig, now_ms: int, files: Files) -> None:
    """Reports records with timestamps in the future, and what they hold."""
    told = explanation.segments
    late = [(place, entry) for place, entry in enumerate(told) if entry.segment.record_timestamp > now_ms]
    if not late:
        return
    with PartitionView(log_dir, explanation.facts.partition, files=files) as view:
        for place, entry in late:
            entry.future = _first_after(view, entry.segment.base_offset, now_ms)
            where = (
                "" if entry.future is None else f", first at offset {entry.future.offset} ({entry.future.timestamp})"
            )
            held = len(told) - 1 - place
            counts = config.delete and config.retention_ms >= 0
            explanation.findings.append(
                f"{entry.segment.path}: it has timestamps up to {entry.segment.record_timestamp}, "
                f"{span(entry.segment.record_timestamp - now_ms)} in the future{where}"
                + (
                    f"; until then retention.ms deletes neither it nor the {counted(held, 'segment')} after it"
                    if counts
                    else ""
                )
            )


def _first_after(view: PartitionView, base_offset: int, now_ms: int) -> FutureRecord | None:
    """Returns the first record of a segment that is in the future; None if the segment was deleted."""

    def offset_in(seen: Snapshot) -> int | None:
        if base_offset not in seen.bases:
            return None
        return seen.reader(seen.bases.index(base_offset)).find_time(now_ms + 1, 0, seen.log_start_offset)

    offset = view.over(offset_in)
    if offset is not None:
        with open_log(view.log_dir, view.topic_partition, read_only=True) as log:
            for record in log.records(max(offset, log.log_start_offset), offset + 1):
                return FutureRecord(record.offset, record.timestamp)
    return None


def __dir__() -> list[str]:
    return __all__
