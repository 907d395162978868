"""Decides which filters a read applies itself: turns the filters that Spark pushes down into bounds.

Spark does not check a row again if the source accepted the filter, so a filter is accepted only if it is applied
exactly.  Comparisons of offset and timestamp become bounds that the decoder applies to each record.  Topic and
partition are compared once for each partition.  The lowest and the highest value of an IN list narrow the read, and
Spark applies the list; Spark also applies all other filters.  Filters are recognized by class name, so this module
needs no pyspark.

A lower timestamp bound prunes as Kafka's search by time does: the read starts at the first record of that time, and a
batch whose header has an older maximum is not decoded.  An upper bound prunes batches whose time the log set.  Times
that producers set are in no order, so they are compared record by record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format.names import TopicPartition

NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda it, listed: it in listed,
}
OF_TEXT: Mapping[str, Callable[[Any, Any], bool]] = {
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": lambda it, part: part in it,
}


@dataclass(frozen=True)
class Asked:
    """One comparison of a partition's topic (a string) or number."""

    column: str
    name: str
    value: Any
    negated: bool

    def holds(self, partition: TopicPartition) -> bool:
        compare = COMPARISONS.get(self.name) or OF_TEXT[self.name]
        return compare(getattr(partition, self.column), self.value) != self.negated


@dataclass(frozen=True)
class Wanted:
    """The records that pass.  Bounds are inclusive, timestamps in milliseconds; all conditions must hold."""

    offset_min: int = LONG_MIN
    offset_max: int = LONG_MAX
    timestamp_min: int = LONG_MIN
    timestamp_max: int = LONG_MAX
    asked: tuple[Asked, ...] = ()

    def has(self, partition: TopicPartition) -> bool:
        """Whether records of a partition may pass."""
        return (
            self.offset_min <= self.offset_max
            and self.timestamp_min <= self.timestamp_max
            and all(each.holds(partition) for each in self.asked)
        )

    def within(self, *, offset_min: int, offset_max: int, timestamp_min: int, timestamp_max: int) -> Wanted:
        """Returns a copy that has these bounds as well."""
        return replace(
            self,
            offset_min=max(self.offset_min, offset_min),
            offset_max=min(self.offset_max, offset_max),
            timestamp_min=max(self.timestamp_min, timestamp_min),
            timestamp_max=min(self.timestamp_max, timestamp_max),
        )


ALL = Wanted()


def push(filters: Sequence[Any], *, rows: bool = True) -> tuple[Wanted, list[Any]]:
    """Returns the bounds of pushed filters, and the filters that Spark must apply itself.

    `rows`: whether single records may be left out, not only whole partitions.
    """
    wanted, left = ALL, []
    for each in filters:
        narrowed, exact = _narrowed(wanted, each, rows)
        wanted = narrowed
        if not exact:
            left.append(each)
    return wanted, left


def _narrowed(wanted: Wanted, it: Any, rows: bool) -> tuple[Wanted, bool]:
    """Returns `wanted` with one more filter, and whether it expresses that filter exactly."""
    name, negated = type(it).__name__, False
    if name == "Not":
        it, negated = it.child, True
        name = type(it).__name__
    column = it.attribute[0] if len(it.attribute) == 1 else ""
    if name == "IsNotNull":
        return wanted, not negated and column in NEVER_NULL
    value: Any = getattr(it, "value", None)
    if column in ("topic", "partition"):
        kind = str if column == "topic" else int
        if not _comparable(name, value, kind):
            return wanted, False
        return replace(wanted, asked=(*wanted.asked, Asked(column, name, value, negated))), True
    if negated or not rows or name not in COMPARISONS:
        return wanted, False
    if column == "offset" and _comparable(name, value, int):
        return _bounded(wanted, "offset", name, value, value)
    if column == "timestamp" and _comparable(name, value, datetime):
        listed = value if name == "In" else (value,)
        if any(time.tzinfo is None for time in listed):
            return wanted, False
        micros = [(time - EPOCH) // timedelta(microseconds=1) for time in listed]
        # Whole milliseconds: the first at or after a time, and the last at or before it.
        above, below = [-(-micro // 1000) for micro in micros], [micro // 1000 for micro in micros]
        if name == "In":
            return _bounded(wanted, "timestamp", name, above, below)
        return _bounded(wanted, "timestamp", name, above[0], below[0])
    return wanted, False


def _comparable(name: str, value: Any, kind: type) -> bool:
    if name in OF_TEXT:
        return kind is str and isinstance(value, str)
    if name not in COMPARISONS:
        return False
    listed = value if name == "In" else (value,)
    return len(listed) > 0 and all(isinstance(one, kind) and not isinstance(one, bool) for one in listed)


def _bounded(wanted: Wanted, column: str, name: str, above: Any, below: Any) -> tuple[Wanted, bool]:
    """Bounds a column by a comparison; `above` and `below` are the whole numbers next to its value."""
    low, high = LONG_MIN, LONG_MAX
    if name == "In":
        low, high = min(above), max(below)
    elif name in ("EqualTo", "EqualNullSafe"):
        low, high = above, below
    elif name == "GreaterThan":
        low = below + 1
    elif name == "GreaterThanOrEqual":
        low = above
    elif name == "LessThan":
        high = above - 1
    else:
        high = below
    low, high = max(low, getattr(wanted, f"{column}_min")), min(high, getattr(wanted, f"{column}_max"))
    return replace(wanted, **{f"{column}_min": low, f"{column}_max": high}), name != "In"
