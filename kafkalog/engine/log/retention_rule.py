"""Retention's rule as pure functions: which of a log's oldest segments may go, and what holds the first that stays.

Three rules, in Kafka's order: what lies below the log start, what is more than retention.bytes, what is older than
retention.ms.  Segments go oldest first, as one run, and never above the high watermark.  `log.retention` deletes by
it, `toolbox.explain` and `toolbox.retain` tell and choose by it.  Knows numbers; opens nothing, takes no lock.
Mirrors the conditions of UnifiedLog.deleteOldSegments (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from kafkalog._limits import to_int64
from kafkalog.config import LogConfig


class Piece(Protocol):
    """What the rule asks of a segment (`segment.log_segment.LogSegment` has it).  The time is asked for only where the
    rule needs it."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes of its log."""

    @property
    def largest_timestamp(self) -> int:
        """Milliseconds: of its records, or its file's where they have none."""


class Bounds(NamedTuple):
    """A log's offsets at one moment.  `highest_remote_offset`: up to where, inclusively, its segments were copied to a
    remote tier; None where they are not to be copied, and go without that."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    highest_remote_offset: int | None = None


class Limits(NamedTuple):
    """What retention keeps; below 0 all."""

    retention_bytes: int
    retention_ms: int

    @classmethod
    def of(cls, config: LogConfig, *, local: bool = False) -> Limits:
        """Of a log, or `local`: of what stays on the disk of one that is copied to a remote tier."""
        if local:
            return cls(config.effective_local_retention_bytes, config.effective_local_retention_ms)
        return cls(config.retention_bytes, config.retention_ms)


class Rule(Enum):
    """A reason to delete; the values are Kafka's words."""

    LOG_START = "log start offset"
    SIZE = "retention size"
    TIME = "retention time"


class Held(Enum):
    """Why a run of segments that may go ends."""

    HIGH_WATERMARK = "high watermark"
    RULE = "rule"
    LAST_AND_EMPTY = "last and empty"  # a log is never without a segment
    NOT_COPIED = "not copied"  # the remote tier has not got it yet


class Run(NamedTuple):
    """The first `length` segments may go; `held` is why the next one stays (None: there is none)."""

    length: int
    held: Held | None


Condition: TypeAlias = Callable[[Piece, Piece | None], bool]


def rules_of(config: LogConfig, *, copied: bool = False) -> tuple[Rule, ...]:
    """Those that cleanup.policy asks for, in order: a log that is only compacted, or has no policy, still drops what
    lies below its start; one without a policy whose segments are `copied` to a remote tier has its local ones go."""
    if config.delete or (copied and not config.compact):
        return (Rule.LOG_START, Rule.SIZE, Rule.TIME)
    return (Rule.LOG_START,)


def condition_of(
    rule: Rule, pieces: Sequence[Piece], log_start_offset: int, limits: Limits, now_ms: int
) -> Condition | None:
    """Whether a segment (and the one behind it) breaks a rule; to be asked once for each segment, oldest first.  None
    where the settings turn the rule off, or the log is small enough."""
    match rule:
        case Rule.LOG_START:
            return lambda piece, following: following is not None and following.base_offset <= log_start_offset
        case Rule.SIZE:
            size = sum(piece.size for piece in pieces)
            if limits.retention_bytes < 0 or size < limits.retention_bytes:
                return None
            return _size_breached(size - limits.retention_bytes)
        case Rule.TIME:
            retention_ms = limits.retention_ms
            if retention_ms < 0:
                return None
            return lambda piece, following: to_int64(now_ms - piece.largest_timestamp) > retention_ms


def due_ms(largest_timestamp: int, retention_ms: int) -> int:
    """The first moment at which Rule.TIME deletes a segment; only where retention.ms is on."""
    return largest_timestamp + retention_ms + 1


def _size_breached(excess_bytes: int) -> Condition:
    """Segments that can go and leave at least the retained size."""

    def breached(piece: Piece, following: Piece | None) -> bool:
        nonlocal excess_bytes
        if excess_bytes - piece.size < 0:
            return False
        excess_bytes -= piece.size
        return True

    return breached


def oldest_run(pieces: Sequence[Piece], bounds: Bounds, condition: Condition) -> Run:
    """The longest run of oldest segments that lie below the high watermark and fulfil `condition`."""
    for index, piece in enumerate(pieces):
        following = pieces[index + 1] if index + 1 < len(pieces) else None
        assert following is None or piece.base_offset < following.base_offset, (piece, following)
        upper_bound = bounds.log_end_offset if following is None else following.base_offset
        if bounds.high_watermark < upper_bound:
            return Run(index, Held.HIGH_WATERMARK)
        if not condition(piece, following):
            return Run(index, Held.RULE)
        if following is None and piece.size == 0:
            return Run(index, Held.LAST_AND_EMPTY)
        if bounds.highest_remote_offset is not None and upper_bound - 1 > bounds.highest_remote_offset:
            below_start = following is not None and following.base_offset <= bounds.log_start_offset
            if not below_start:
                return Run(index, Held.NOT_COPIED)
    return Run(len(pieces), None)


def runs_of(pieces: Sequence[Piece], bounds: Bounds, config: LogConfig, now_ms: int) -> list[tuple[Rule, int]]:
    """A whole pass, told: each rule in order, and how many segments go by it, of those that the ones before leave."""
    runs = []
    left = list(pieces)
    for rule in rules_of(config):
        condition = condition_of(rule, left, bounds.log_start_offset, Limits.of(config), now_ms)
        count = 0 if condition is None else oldest_run(left, bounds, condition).length
        runs.append((rule, count))
        if count:
            left = left[count:]
            start = left[0].base_offset if left else bounds.log_end_offset
            bounds = bounds._replace(log_start_offset=max(start, bounds.log_start_offset))
    return runs
