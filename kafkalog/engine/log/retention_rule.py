"""The retention rule as pure functions: which of the oldest segments may be deleted, and why the next one stays.

There are three rules, in Kafka's order: segments below the log start, more bytes than retention.bytes, and older than
retention.ms. Segments are deleted oldest first, as one run, and never above the high watermark. `log.retention` deletes
by this rule; `toolbox.explain` and `toolbox.retain` report and choose by it. It works on numbers; it opens nothing and
takes no lock. Mirrors the conditions of UnifiedLog.deleteOldSegments (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from kafkalog._limits import to_int64
from kafkalog.config import LogConfig


class Piece(Protocol):
    """A segment as the rule sees it (`segment.log_segment.LogSegment` implements it).

    The timestamp is read only if the rule needs it.
    """

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int:
        """The bytes of its .log file."""

    @property
    def largest_timestamp(self) -> int:
        """Milliseconds: the largest of its records, or the time of its file if it has none."""


class Bounds(NamedTuple):
    """A log's offsets at one moment.

    `highest_remote_offset`: the last offset that was copied to a remote tier; None if segments need not be copied
    before they are deleted.
    """

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    highest_remote_offset: int | None = None


class Limits(NamedTuple):
    """The limits of retention; a value below 0 keeps everything."""

    retention_bytes: int
    retention_ms: int

    @classmethod
    def of(cls, config: LogConfig, *, local: bool = False) -> Limits:
        """Returns the limits of a log, or `local`: of the part on disk of a log that is copied to a remote tier."""
        if local:
            return cls(config.effective_local_retention_bytes, config.effective_local_retention_ms)
        return cls(config.retention_bytes, config.retention_ms)


class Rule(Enum):
    """A reason to delete; the values are Kafka's words."""

    LOG_START = "log start offset"
    SIZE = "retention size"
    TIME = "retention time"


class Held(Enum):
    """The reason why a run of deletable segments ends."""

    HIGH_WATERMARK = "high watermark"
    RULE = "rule"
    LAST_AND_EMPTY = "last and empty"  # a log is never without a segment
    NOT_COPIED = "not copied"  # the remote tier does not have it yet


class Run(NamedTuple):
    """The first `length` segments may be deleted; `held` is why the next one stays (None: there is none)."""

    length: int
    held: Held | None


Condition: TypeAlias = Callable[[Piece, Piece | None], bool]


def rules_of(config: LogConfig, *, copied: bool = False) -> tuple[Rule, ...]:
    """Returns the rules of cleanup.policy, in order.

    A log that is only compacted, or has no policy, still deletes segments below its start. If the segments of a log
    without a policy are `copied` to a remote tier, its local segments are deleted by all rules.
    """
    if config.delete or (copied and not config.compact):
        return (Rule.LOG_START, Rule.SIZE, Rule.TIME)
    return (Rule.LOG_START,)


def condition_of(
    rule: Rule, pieces: Sequence[Piece], log_start_offset: int, limits: Limits, now_ms: int
) -> Condition | None:
    """Returns a function that says whether a segment breaks a rule, given the next segment.

    It must be called once per segment, oldest first. Returns None if the settings disable the rule, or if the log is
    small enough.
    """
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
    """Returns the first moment at which Rule.TIME deletes a segment; only valid if retention.ms is on."""
    return largest_timestamp + retention_ms + 1


def _size_breached(excess_bytes: int) -> Condition:
    """Returns the condition for segments that can be deleted while at least the retained size stays."""

    def breached(piece: Piece, following: Piece | None) -> bool:
        nonlocal excess_bytes
        if excess_bytes - piece.size < 0:
            return False
        excess_bytes -= piece.size
        return True

    return breached


def oldest_run(pieces: Sequence[Piece], bounds: Bounds, condition: Condition) -> Run:
    """Returns the longest run of oldest segments that are below the high watermark and fulfil `condition`."""
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
    """Returns the result of a whole pass: each rule, and how many of the remaining segments it deletes."""
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
