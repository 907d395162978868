"""Which records are wanted by their timestamps: the one meaning of a time window, for every door that takes one.

A record is in the window if its timestamp is at or after the start and before the end, whatever the order of timestamps
in the log.  What is passed over unread (`Source.offset_for_time`, a batch's largest timestamp) holds nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format import values
from kafkalog.errors import IllegalArgumentException


class Times(NamedTuple):
    """Timestamps in ms from `first` to `last`, both of them wanted too; by default all that there are."""

    first: int = LONG_MIN
    last: int = LONG_MAX

    @property
    def limits(self) -> Mapping[str, int]:
        """As `RecordWalk` and `ColumnBuilder` take them."""
        return {"timestamp_min": self.first, "timestamp_max": self.last}


ALL_TIMES = Times()


def times_of(start_time: int | None, end_time: int | None) -> Times:
    """Of a caller's window [start_time, end_time) in ms; IllegalArgumentException if it is none."""
    first = LONG_MIN if start_time is None else values.milliseconds(start_time, "start_time")
    if end_time is None:
        return Times(first)
    end = values.milliseconds(end_time, "end_time")
    if first > end:
        raise IllegalArgumentException(
            f"start_time {start_time} lies behind end_time {end_time}", hint="expected it at or before end_time"
        )
    return Times(first, max(end - 1, LONG_MIN))
