"""Which records are wanted by their timestamps: the one meaning of a time window, for every door that takes one.

A record is in the window if its timestamp is at or after the start and before the end, whatever the order of timestamps
in the log.  What is passed over unread (`Source.offset_for_time`, a batch's largest timestamp) holds nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format import values
from kafkalog.errors import IllegalArgumentException

Moment: TypeAlias = "datetime | str | int"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS = range(10**9, 10**10)  # 2001 to 2286; as milliseconds they would be early in 1970


def milliseconds_of(moment: Any, what: str) -> int:
    """A time as a caller gives it, in ms since 1970: a datetime with a time zone, ISO 8601 text (UTC unless it says
    otherwise), `@` and milliseconds as text, or milliseconds.  A part of a millisecond counts as a whole one, so that
    what is before the time stays before it.  IllegalArgumentException."""
    is_text = isinstance(moment, str)
    if isinstance(moment, str):
        moment = _read(moment, what)
    if isinstance(moment, datetime):
        if moment != moment:  # pandas' NaT
            raise IllegalArgumentException(f"{what}: found {moment!r}, which is no time", hint="leave it out for all")
        if moment.utcoffset() is None:
            raise IllegalArgumentException(
                f"{what}: found {moment!r}, which has no time zone, expected one that has: each machine would take it "
                "for another moment",
                hint="datetime(..., tzinfo=timezone.utc), or moment.astimezone() for this machine's zone",
            )
        return -((EPOCH - moment) // timedelta(milliseconds=1))
    if is_moment(moment):
        raise IllegalArgumentException(
            f"{what}: found {moment!r}, expected a datetime with a time zone",
            hint=f"write {what}={_written(moment)}" if moment == moment else None,  # NaT is not
        )
    found = values.milliseconds(moment, what)
    if not is_text and found in SECONDS:
        raise IllegalArgumentException(
            f"{what}: found {found}, which looks like seconds, expected milliseconds since 1970",
            hint=f"{what}={found}000, or a datetime with a time zone",
        )
    return found


def is_moment(moment: Any) -> bool:
    """Whether it is a time that says nothing of its zone: a day, or numpy's."""
    return isinstance(moment, date | np.datetime64)


def _written(moment: date | np.datetime64) -> str:
    """As it is said in UTC."""
    text = str(moment)
    return f"{text!r} for the day in UTC" if len(text) == len("2026-11-10") else f"'{text}Z', if that is UTC"


def _read(text: str, what: str) -> datetime | int:
    if re.fullmatch(r"@[0-9]{1,19}", text) and int(text[1:]) <= LONG_MAX:
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise IllegalArgumentException(
            f"{what}: {text!r} is no time, expected such as 2026-11-21T09:00:00Z, or @1700000000000 in milliseconds"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Times(NamedTuple):
    """Timestamps in ms from `first` to `last`, both of them wanted too; by default all that there are."""

    first: int = LONG_MIN
    last: int = LONG_MAX

    @property
    def limits(self) -> Mapping[str, int]:
        """As `RecordWalk` and `ColumnBuilder` take them."""
        return {"timestamp_min": self.first, "timestamp_max": self.last}


ALL_TIMES = Times()


def times_of(start_time: Moment | None, end_time: Moment | None) -> Times:
    """Of a caller's window [start_time, end_time); IllegalArgumentException if it is none."""
    first = LONG_MIN if start_time is None else milliseconds_of(start_time, "start_time")
    if end_time is None:
        return Times(first)
    end = milliseconds_of(end_time, "end_time")
    if first > end:
        raise IllegalArgumentException(
            f"start_time {start_time} lies behind end_time {end_time}", hint="expected it at or before end_time"
        )
    return Times(first, max(end - 1, LONG_MIN))
