"""What a read asks of records beyond Spark's own options: keys, headers, a pattern, conditions, times.

The options have the names of `kafkalog.Filters` in camel case, and their meaning; tasks apply them by the same
`Selection`: keys and times in the native loop, the rest over columns.  Options are plain values, for they travel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.filters import Wanted

if TYPE_CHECKING:
    from kafkalog._face.selection import Selection

NAMES = ("key", "keyPrefix", "headers", "grep", "where", "startTime", "endTime")


@dataclass(frozen=True)
class Question:
    """Checked; what is None asks nothing."""

    key: tuple[str | None, ...] | None = None
    key_prefix: str | None = None
    headers: tuple[tuple[str, str | None], ...] | None = None
    grep: tuple[str, ...] | None = None
    where: str | None = None
    start_time: int | None = None
    end_time: int | None = None

    def selection(self) -> Selection:
        """As the records are chosen by.  IllegalArgumentException for a pattern or a condition that is none."""
        from kafkalog._face.selection import Selection

        return Selection(
            start_time=self.start_time,
            end_time=self.end_time,
            key=None if self.key is None else list(self.key),
            key_prefix=self.key_prefix,
            headers=self.headers,
            grep=self.grep,
            where=self.where,
        )

    def narrowed(self, wanted: Wanted, *, rows: bool) -> Wanted:
        """`wanted` of what may pass; `rows`: conditions on offsets count, too, which leave out single records."""
        if self == NOTHING_ASKED:
            return wanted
        selection = self.selection() if rows else self.selection().unpruned()
        first, end = selection.offsets if rows else (None, None)
        return wanted.within(
            offset_min=LONG_MIN if first is None else first,
            offset_max=LONG_MAX if end is None else end - 1,
            timestamp_min=selection.times.first,
            timestamp_max=selection.times.last,
        )


NOTHING_ASKED = Question()


def parse_question(given: Mapping[str, str], time_ms: Callable[[object, str], int]) -> Question:
    """Of the options, whose names are in lower case; `time_ms` reads a time.  IllegalArgumentException."""
    start, end = (
        None if given.get(name.lower()) is None else time_ms(given[name.lower()].strip(), name)
        for name in ("startTime", "endTime")
    )
    found = Question(
        key=_several(given, "key"),
        key_prefix=given.get("keyprefix"),
        headers=_headers(given.get("headers")),
        grep=_texts(given, "grep"),
        where=given.get("where"),
        start_time=start,
        end_time=end,
    )
    if found != NOTHING_ASKED:
        found.selection()  # which checks it
    return found


def _several(given: Mapping[str, str], name: str) -> tuple[str | None, ...] | None:
    """A text as it stands, or those of a JSON array."""
    text = given.get(name.lower())
    if text is None:
        return None
    listed = _parsed(text, list)
    if listed is None:
        return (text,)
    if not listed or not all(each is None or isinstance(each, str) for each in listed):
        raise IllegalArgumentException(
            f"option {name} is {text!r}", hint='expected a text, or several as a JSON array: ["a","b"]'
        )
    return tuple(listed)


def _texts(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    """As `_several`; but an array of anything else is a text: a pattern may look like one."""
    text = given.get(name.lower())
    listed = None if text is None else _parsed(text, list)
    if text is None or not listed or not all(isinstance(each, str) for each in listed):
        return None if text is None else (text,)
    return tuple(listed)


def _headers(text: str | None) -> tuple[tuple[str, str | None], ...] | None:
    if text is None:
        return None
    fields = _parsed(text, dict)
    if fields is None and not text.lstrip().startswith("{"):  # which begins JSON, be it broken
        name, sign, value = text.partition("=")
        fields = {name: value if sign else None}
    if not fields or not all(name and (value is None or isinstance(value, str)) for name, value in fields.items()):
        raise IllegalArgumentException(
            f"option headers is {text!r}",
            hint='expected name=value, name for any value, or several as JSON: {"name":"value","other":null}',
        )
    return tuple(fields.items())


def _parsed(text: str, kind: type) -> Any:
    """What the JSON says; None where it is none, or something else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, kind) else None
