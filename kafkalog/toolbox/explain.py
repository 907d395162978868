"""Why is this segment still here?  For each segment: what deletes it now, or what holds it, and until when; and of a
compacted log whether compaction has been over it, or when it comes.

The decision is `log.retention_rule`'s, the same that deletes; here it is only told, from files, of a directory that may
be another's.  Segments go oldest first, so what holds one holds all behind it: a record with a timestamp in the future
keeps its segment, and with it everything behind (KAFKA-20609).  Reads only, takes no lock.

Of a tiered partition that is read without its tier only the disk is told of, where local.retention.* decide.
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
from kafkalog.toolbox.words import command, span

__all__ = ["Explained", "Explanation", "FutureRecord", "Reason", "explain"]


class FutureRecord(NamedTuple):
    """The first record whose timestamp lies in the future."""

    offset: int
    timestamp: int


class Reason(NamedTuple):
    """Why one rule does not delete a segment, or nothing does.

    `what` is a word for programs, `text` a sentence; `blocked_by` the base offset of an older segment that has to go
    first; `until_ms` when the rule deletes it as things stand, `after_bytes` how many bytes more the log must have.
    """

    what: str
    text: str
    blocked_by: int | None = None
    until_ms: int | None = None
    after_bytes: int | None = None


@dataclass
class Explained:
    """One segment: `goes` names the rule that deletes it at the next pass, else `reasons` say why it stays."""

    segment: SegmentFacts
    goes: Rule | None = None
    reasons: list[Reason] = field(default_factory=list)
    future: FutureRecord | None = None

    @property
    def until_ms(self) -> int | None:
        """When it goes at the earliest, as far as time decides."""
        times = [reason.until_ms for reason in self.reasons if reason.until_ms is not None]
        return min(times, default=None)


@dataclass
class Explanation:
    """A partition's segments in order, and what is out of order (`findings`).  `compaction`: of a compacted one.
    `is_local`: told is what stays on the disk, of a log that goes on in a remote tier."""

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
) -> Explanation:
    """What retention with these settings does to `log_dir/partition` at `now_ms`, segment by segment."""
    facts = look(log_dir, partition, exact=exact, files=files, progress=progress)
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
        explanation.findings.append(f"the high watermark is not known: {facts.watermark_told.problem}")
    for entry, upto in zip(told[gone:], _run_up(left), strict=True):
        entry.reasons = _reasons(left, upto, config, now_ms, lead, os.path.join(log_dir, str(partition)))
    if config.compact:
        _tell_compaction(explanation, log_dir, config, now_ms, files)
    _find_future(explanation, log_dir, config, now_ms, files)
    for entry in told:
        if entry.segment.lost_times:
            explanation.findings.append(
                f"{entry.segment.path}: its time index is empty although its records have times: retention goes by the "
                f"file's time instead ({command('reindex', log_dir, partition, '--yes')} mends it)"
            )
    return explanation


def _local(config: LogConfig) -> LogConfig:
    """Settings that keep of a whole log what these keep of a tiered one on the disk."""
    size, age_ms = config.effective_local_retention_bytes, config.effective_local_retention_ms
    limits = {"retention.bytes": str(size), "retention.ms": str(age_ms)}
    return LogConfig.from_props(config, {**limits, **{f"local.{name}": "-2" for name in limits}})


def _tell_compaction(explanation: Explanation, log_dir: str, config: LogConfig, now_ms: int, files: Files) -> None:
    try:
        state = look_at_compaction(log_dir, explanation.facts, config, now_ms, files=files)
    except BadBytesError as error:
        explanation.findings.append(f"how far it is compacted cannot be told: {error}")
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
        text = f"compaction leaves it alone: {state.held.text}"
        if state.held.what == Bound.TRANSACTION.value:
            text += f" ({command('transactions', log_dir, partition)} names it)"
        return Reason("uncompacted", text)
    if segment.end_offset <= state.first_dirty_offset:
        return Reason(
            "compacted",
            f"compaction has been over it (clean up to offset {state.first_dirty_offset}): what a later record of its "
            "key superseded by then is gone",
        )
    compact = command("compact", os.path.join(log_dir, str(partition)))
    if state.is_due:
        why = (
            f"something in it is {span(state.overdue_ms)} over max.compaction.lag.ms"
            if state.overdue_ms
            else f"{_percent(state.dirty_ratio)} of the log is, more than min.cleanable.dirty.ratio"
        )
        text = (
            f"dirty, and due: {why}.  A cleaner that runs takes it next, unless it failed on it before and calls the "
            f"partition uncleanable: {compact} tells what it would meet"
        )
    else:
        text = (
            f"dirty: {_percent(state.dirty_ratio)} of the log is, and a cleaner takes it above "
            f"min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio}; {compact} tells what a pass would do now"
        )
    return Reason("dirty", text)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class _Upto(NamedTuple):
    """A segment that stays, and what is older and stays too: how many bytes the log has without them, which has the
    largest time, which is the first that the high watermark holds."""

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
    """Of a segment that stays when the others are gone."""
    segment, held = upto.segment, upto.unreplicated
    if segment.active and segment.size == 0:
        return [Reason("active", "the active segment, with nothing in it: a log is never without one")]
    if held is not None:
        behind = None if held is segment else held.base_offset
        whose = "its" if behind is None else f"segment {behind}'s"
        return [
            Reason(
                "highWatermark",
                f"the high watermark {left.high_watermark} lies below {whose} end {held.end_offset}: nothing goes "
                "before all replicas have it",
                behind,
            )
        ]
    reasons = [_reason(rule, left, upto, config, now_ms, lead, folder) for rule in rules_of(config)]
    if not config.delete:
        policy = "compact" if config.compact else "none"
        reasons.append(
            Reason(
                "policy",
                f"cleanup.policy={policy} has no delete in it: neither retention.ms nor retention.bytes counts",
            )
        )
    return reasons


# More than six parameters: what _reasons has, and one rule.
def _reason(
    rule: Rule, left: PartitionFacts, upto: _Upto, config: LogConfig, now_ms: int, lead: str, folder: str
) -> Reason:
    """`lead` stands before the names of the settings that count, `folder` is the partition's."""
    segment = upto.segment
    match rule:
        case Rule.LOG_START:
            if segment.active:
                return Reason("logStart", "the active segment, where the log start ends up at the latest")
            text = f"the log start {left.log_start_offset} lies below its end {segment.end_offset}"
            if config.delete and not config.remote_storage_enable:  # as `delete-records` takes it
                text += (
                    f"; {command('delete-records', folder, '--before', segment.end_offset)} tells what raising it does"
                )
            return Reason("logStart", text)
        case Rule.SIZE:
            if config.retention_bytes < 0:
                return Reason("size", f"{lead}retention.bytes is off (-1)")
            missing = config.retention_bytes - upto.bytes_without
            return Reason(
                "size",
                f"without it, and what is older, the log would have {upto.bytes_without} bytes, "
                f"{lead}retention.bytes keeps {config.retention_bytes}: it goes after {missing} bytes more, or with "
                f"{lead}retention.bytes={config.retention_bytes - missing}",
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
    of = f"segment {holds.base_offset} has to go first: its" if blocked else "its"
    whose = "file's time" if holds.record_timestamp < 0 else "largest timestamp"
    text = f"{of} {whose} {holds.largest_timestamp} is {span(now_ms - holds.largest_timestamp)} old"
    if holds.largest_timestamp > now_ms:
        text = f"{of} {whose} {holds.largest_timestamp} lies {span(holds.largest_timestamp - now_ms)} in the future"
    text += f", {lead}retention.ms keeps {span(config.retention_ms)}: it goes in {span(until - now_ms)}"
    return Reason(
        "futureTimestamp" if holds.largest_timestamp > now_ms else "time",
        text,
        holds.base_offset if blocked else None,
        until_ms=until,
    )


def _find_future(explanation: Explanation, log_dir: str, config: LogConfig, now_ms: int, files: Files) -> None:
    """Names the records that lie in the future, and what they hold."""
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
                f"{entry.segment.path}: timestamps up to {entry.segment.record_timestamp}, "
                f"{span(entry.segment.record_timestamp - now_ms)} in the future{where}"
                + (f"; retention.ms deletes neither it nor the {held} segments behind it before" if counts else "")
            )


def _first_after(view: PartitionView, base_offset: int, now_ms: int) -> FutureRecord | None:
    """The first record of a segment that lies in the future; None where the segment has gone."""

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
