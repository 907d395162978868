"""Time windows over record timestamps, with one meaning in all public functions.

A record is in the window if its timestamp is at or after the start and before the end, whatever the order of timestamps
in the log. Parts of the log that are skipped unread (`Source.offset_for_time`, a batch's largest timestamp) hold no
record of the window.
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
SECONDS = range(10**9, 10**10)  # from 2001 to 2286; as milliseconds they would be early in 1970


def milliseconds_of(moment: Any, what: str, *, hint: str | None = None) -> int:
    """Returns a time in ms since 1970. Accepts a datetime with a time zone, ISO 8601 text (UTC unless it has a zone),
    `@` and milliseconds as text, or milliseconds. A fraction of a millisecond is rounded up, so that records before the
    time stay before it. IllegalArgumentException, with `hint` for text that is no time."""
    is_text = isinstance(moment, str)
    if isinstance(moment, str):
        moment = _read(moment, what, hint)
    if isinstance(moment, datetime):
        if moment != moment:  # pandas' NaT
            raise IllegalArgumentException(f"{what}: found {moment!r}, which is not a time", hint="omit it for all")
        if moment.utcoffset() is None:
            raise IllegalArgumentException(
                f"{what}: found {moment!r}, which has no time zone; expected one with a time zone, because each "
                "machine would read it as a different time",
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
    """Returns whether a value is a time without a zone: a date, or numpy's."""
    return isinstance(moment, date | np.datetime64)


def _written(moment: date | np.datetime64) -> str:
    """Returns the time as it is written in UTC."""
    text = str(moment)
    return f"{text!r} for the day in UTC" if len(text) == len("2026-11-10") else f"'{text}Z', if that is UTC"


def _read(text: str, what: str, hint: str | None) -> datetime | int:
    if re.fullmatch(r"@[0-9]{1,19}", text) and int(text[1:]) <= LONG_MAX:
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise IllegalArgumentException(
            f"{what}: {text!r} is not a time; expected such as 2026-11-21, 2026-11-21T09:00:00Z, or @1700000000000 in "
            "milliseconds",
            hint=hint,
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Times(NamedTuple):
    """Timestamps in ms from `first` to `last`, both included; by default all."""

    first: int = LONG_MIN
    last: int = LONG_MAX

    @property
    def limits(self) -> Mapping[str, int]:
        """The arguments of `RecordWalk` and `ColumnBuilder`."""
        return {"timestamp_min": self.first, "timestamp_max": self.last}


ALL_TIMES = Times()


def times_of(start_time: Moment | None, end_time: Moment | None) -> Times:
    """Returns the window [start_time, end_time). IllegalArgumentException if it is invalid."""
    first = LONG_MIN if start_time is None else milliseconds_of(start_time, "start_time")
    if end_time is None:
        return Times(first)
    end = milliseconds_of(end_time, "end_time")
    if first > end:
        raise IllegalArgumentException(
            f"start_time {start_time} is after end_time {end_time}", hint="expected it at or before end_time"
        )
    return Times(first, max(end - 1, LONG_MIN))
