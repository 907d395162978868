"""Conditions on records beyond Spark's Kafka options: keys, headers, a pattern, conditions, times.

The options have the meaning of `kafkalog.Filters`, with its names in camel case.  Tasks apply them with the same
`Selection`: keys and times in the native loop, the rest over columns.  Options are plain values, so they can be
pickled.
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
    """Checked conditions; None means no condition."""

    key: tuple[str | None, ...] | None = None
    key_prefix: str | None = None
    headers: tuple[tuple[str, str | None], ...] | None = None
    grep: tuple[str, ...] | None = None
    where: str | None = None
    start_time: int | None = None
    end_time: int | None = None

    def selection(self) -> Selection:
        """Returns the Selection.  Raises IllegalArgumentException for an invalid pattern or condition."""
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
        """Narrows `wanted`; `rows`: whether conditions on offsets, which exclude single records, count too."""
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
    """Parses options whose names are in lower case; `time_ms` parses a time.  Raises IllegalArgumentException."""
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
        found.selection()  # checks the conditions
    return found


def _several(given: Mapping[str, str], name: str) -> tuple[str | None, ...] | None:
    """Returns a text as one value, or the texts of a JSON array."""
    text = given.get(name.lower())
    if text is None:
        return None
    listed = _parsed(text, list)
    if listed is None:
        return (text,)
    if not listed or not all(each is None or isinstance(each, str) for each in listed):
        raise IllegalArgumentException(
            f"option {name} is {text!r}", hint='expected one text, or several as a JSON array: ["a","b"]'
        )
    return tuple(listed)


def _texts(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    """Like `_several`, but an array of other things is one text, since a pattern may look like an array."""
    text = given.get(name.lower())
    listed = None if text is None else _parsed(text, list)
    if text is None or not listed or not all(isinstance(each, str) for each in listed):
        return None if text is None else (text,)
    return tuple(listed)


def _headers(text: str | None) -> tuple[tuple[str, str | None], ...] | None:
    if text is None:
        return None
    fields = _parsed(text, dict)
    if fields is None and not text.lstrip().startswith("{"):  # it is JSON, perhaps broken
        name, sign, value = text.partition("=")
        fields = {name: value if sign else None}
    if not fields or not all(name and (value is None or isinstance(value, str)) for name, value in fields.items()):
        raise IllegalArgumentException(
            f"option headers is {text!r}",
            hint='expected name=value, name for any value, or several as JSON: {"name":"value","other":null}',
        )
    return tuple(fields.items())


def _parsed(text: str, kind: type) -> Any:
    """Returns the parsed JSON; None if the text is not JSON or not of this kind."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, kind) else None
