"""The arguments that choose records, with one meaning for every method and command: windows, keys, headers, patterns.

A `Selection` is created from the caller's arguments and checked before anything is read.  It has two parts.  The loops
that decode records check the window, the keys and the timestamps before they copy anything of a record.  Everything
else is a `Match`, which filters columns of decoded records and needs pyarrow.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from kafkalog import _shown
from kafkalog._face.chunk_reader import walk_records
from kafkalog._face.keywords import unexpected
from kafkalog._face.times import Moment, Times, is_moment, milliseconds_of, times_of
from kafkalog._face.window import Bound, Near, Time, Window
from kafkalog._native.codec.keys import KeyFilter
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import values
from kafkalog.engine.log.source import check_isolation
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk, ChunkReader
    from kafkalog._face.match import Match
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog._native.codec.reading import RecordWalk
    from kafkalog.engine.segment.loss import Lost
    from kafkalog.records import Record

Octets: TypeAlias = "bytes | bytearray | memoryview | str"
Tell: TypeAlias = "Callable[[Lost], object]"
Place: TypeAlias = "int | datetime | str"  # an offset, or a time

# The other keywords of reading methods.
_ELSEWHERE = ("columns", "last", "partitions", "values", "schema", "errors", "keys", "start", "end")

_log = Lines("kafkalog.log")


class Filters(TypedDict, total=False):
    """The keyword arguments that choose records; a record must pass all that are given.

    A time is a `datetime` with a time zone, ISO 8601 text (UTC unless it has a zone), or an int of milliseconds since
    1970. Text in place of bytes stands for its UTF-8 encoding.

    Attributes:
        start_time: Only records with a timestamp at or after this time, in whatever order the log has them.  It means
            the same as a time in `start`, and also accepts milliseconds.
        end_time: Only records with a timestamp before this time.
        key: Only records with this key, or with one of several keys; None among several means records without a key.
        key_prefix: Only records whose key begins with these bytes.
        headers: Only records that have all of these headers: a mapping of names to values, in which None means any
            value. Text, or a list of texts, is "name=value" or "name"; a name that contains "=" needs the mapping.
        grep: An RE2 pattern that the value matches, or several patterns that it must all match.
        where: Conditions as text, such as "partition = 3 and offset >= 100 and value is not null", or a pyarrow
            Expression over the columns (`pyarrow.compute.field("offset") > 100`).
        isolation: "read_uncommitted", or "read_committed", which omits aborted records and stops before the oldest open
            transaction.
        on_damage: "raise" raises an error that names file and position.  "skip" continues after the damage and logs a
            WARNING.  A function is called with each `Lost` range instead.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders")
        ...     place = orders.append(b"refused", key=b"customer-7")
        ...     place = orders.append(b"paid", key=b"customer-7")
        ...     print([record.offset for record in orders.records(key="customer-7")])
        ...     print([record.offset for record in orders.records(key_prefix="customer-", grep="refused|failed")])
        [0, 1]
        [0]
    """

    start_time: Moment | None
    end_time: Moment | None
    key: Octets | Collection[Octets | None] | None
    key_prefix: Octets | None
    headers: Mapping[str, Octets | None] | Collection[str] | None
    grep: str | Collection[str] | None
    where: Any
    isolation: Literal["read_uncommitted", "read_committed"]
    on_damage: Literal["raise", "skip"] | Tell


class Selection:
    """The checked form of `Filters` with a window of offsets or times.

    Raises:
        IllegalArgumentException: An argument is invalid.
        MissingPackageException: A filter needs pyarrow, which is not installed.

    Example:
        >>> from kafkalog.toolbox.export import Selection
        >>> Selection(10, 20, key=b"c-7").isolation
        'read_uncommitted'
    """

    # More than eight parameters: they are the keys of Filters.
    def __init__(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        start_time: Moment | None = None,
        end_time: Moment | None = None,
        key: Any = None,
        key_prefix: Any = None,
        headers: Any = None,
        grep: Any = None,
        where: Any = None,
        isolation: str = "read_uncommitted",
        on_damage: Any = "raise",
    ) -> None:
        check_isolation(isolation)
        self.isolation = isolation
        self.tell = _tell_of(on_damage)
        self._given = {
            "key": key, "key_prefix": key_prefix, "headers": headers, "grep": grep, "where": where,
            "isolation": None if isolation == "read_uncommitted" else isolation,
            "on_damage": None if on_damage == "raise" else on_damage,
        }  # fmt: skip
        self.is_call = False  # True for keywords of a Python call, which errors may name
        self.window = self._asked_window = _window(start, end, start_time, end_time)
        wanted, prefix = _keys_of(key), _octets(key_prefix, "key_prefix")
        self.wanted_keys = wanted
        self.keys = None if wanted is None and prefix is None else KeyFilter(wanted, prefix)
        self.match: Match | None = None
        patterns, named = _patterns_of(grep), _headers_of(headers)
        if patterns or named or where is not None:
            from kafkalog._face.match import Match

            self.match = Match(patterns, named, where)
            self.window = self.match.pruned(self.window)

    def __repr__(self) -> str:
        places = zip(("start", "end"), self._asked_window, strict=True)
        parts = [f"{name}={_shown_bound(bound)}" for name, bound in places if bound is not None]
        given = self._given.items()
        parts += [f"{name}={_shown.cut(value)}" for name, value in given if value is not None]
        return f"Selection({', '.join(parts)})"

    def within(self, window: Window) -> Selection:
        """Returns a copy with another window.

        Args:
            window: The new window.

        Returns:
            The copy.
        """
        made = copy.copy(self)
        made.window = made._asked_window = window
        return made

    def unpruned(self) -> Selection:
        """Returns a copy with the window as given, without the limits that its conditions imply.

        Returns:
            The copy.
        """
        made = copy.copy(self)
        made.window = self._asked_window
        return made

    def untold(self) -> Selection:
        """Returns a copy for reading ahead, which does not report damage; the reader itself reports it.

        Returns:
            The copy.
        """
        if self.tell is None:
            return self
        made = copy.copy(self)
        made.tell = lambda lost: None
        return made

    @property
    def times(self) -> Times:
        """The range of timestamps of the window."""
        first, behind = self.window
        return times_of(
            first.timestamp_ms if isinstance(first, Time) else None,
            behind.timestamp_ms if isinstance(behind, Time) else None,
        )

    @property
    def offsets(self) -> tuple[int | None, int | None]:
        """The first offset of the window and the offset after the last one; None for a limit that is not an offset."""
        first, behind = (each.offset if isinstance(each, Near) else each for each in self.window)
        return first if isinstance(first, int) else None, behind if isinstance(behind, int) else None

    def limits(self, times: Times) -> Mapping[str, Any]:
        """Returns the limits as keyword arguments of `RecordWalk` and `ColumnBuilder`.

        Args:
            times: The times of the log's segments.

        Returns:
            The keyword arguments.
        """
        return {**times.limits, "wanted_keys": self.keys}

    def columns_for(self, columns: Sequence[str]) -> list[str]:
        """Returns the columns to decode: these, and those that the filters need.

        Args:
            columns: The columns that the caller wants.

        Returns:
            The names. `columns` come first.
        """
        return list(dict.fromkeys([*columns, *(self.match.columns if self.match is not None else ())]))

    def filtered(self, batch: Any, columns: Sequence[str]) -> Any:
        """Returns the matching rows of a record batch, with these columns.

        Args:
            batch: A pyarrow.RecordBatch.
            columns: The columns of the result.

        Returns:
            A pyarrow.RecordBatch.
        """
        if self.match is not None:
            batch = self.match.filtered(batch)
        return batch if len(columns) == batch.num_columns else batch.select(list(columns))


def selection_of(start: Place | None, end: Place | None, filters: Mapping[str, Any]) -> Selection:
    """Returns the Selection for keyword arguments; raises TypeError, with the nearest name, for an unknown one."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise unexpected(name, {*Filters.__annotations__, *_ELSEWHERE}, {"until": "end", "from": "start"})
    made = Selection(start, end, **filters)
    made.is_call = True
    return made


def checked_selection(given: Any, what: str) -> Selection:
    """Returns `given`, or a Selection of all records for None; raises IllegalArgumentException for another type."""
    if given is None:
        return Selection()
    if not isinstance(given, Selection):
        raise IllegalArgumentException(
            f"{what}: found {values.shown(given)}, expected a Selection", hint=f"write {what}=Selection(start, end)"
        )
    return given


def checked_window(given: Any, what: str) -> Window:
    """Returns the Window of the former parameter window=, which `what` replaces; None means all records.

    Raises IllegalArgumentException for anything other than a pair.
    """
    if given is None:
        return Window()
    if not (isinstance(given, tuple) and len(given) == 2):
        raise IllegalArgumentException(
            f"window: found {values.shown(given)}, expected a Window", hint=f"write {what}=Selection(start, end)"
        )
    return Window(*given)


def _tell_of(on_damage: Any) -> Tell | None:
    """Returns the function that damage is reported to, or None if damage is raised."""
    if callable(on_damage):
        return on_damage  # type: ignore[no-any-return]
    if on_damage == "raise":
        return None
    if on_damage == "skip":
        return lambda lost: _log.warning("skipped damage: %s", lost)
    raise IllegalArgumentException(
        f"on_damage: found {values.shown(on_damage)}, expected 'raise', 'skip', or a function that gets each loss"
    )


def _window(start: Any, end: Any, start_time: Any, end_time: Any) -> Window:
    first, behind = _bound(start, start_time, "start"), _bound(end, end_time, "end")
    if first is not None and behind is not None and type(first) is type(behind) and first > behind:  # type: ignore[operator]
        names = [name if given is not None else f"{name}_time" for name, given in (("start", start), ("end", end))]
        given = (start if start is not None else start_time, end if end is not None else end_time)
        raise IllegalArgumentException(
            f"{names[0]} {given[0]} is after {names[1]} {given[1]}", hint=f"expected it at or before {names[1]}"
        )
    return Window(first, behind)


def _bound(place: Any, time: Any, what: str) -> Bound:
    """Returns the limit for an offset or a time in `place`, or for a time in `time`."""
    if place is not None and time is not None:
        raise IllegalArgumentException(
            f"found both {what} {values.shown(place)} and {what}_time {values.shown(time)}, expected one of them",
            hint="leave one out",
        )
    if time is not None:
        return Time(milliseconds_of(time, f"{what}_time"))
    if place is None:
        return None
    if isinstance(place, bool):
        raise IllegalArgumentException(f"{what}: found {place!r}, expected an offset or a time")
    by_key = f"key={place!r} chooses the records of a key" if isinstance(place, str | bytes) else None
    if isinstance(place, datetime | str) or is_moment(place):
        return Time(milliseconds_of(place, what, hint=by_key))
    accepted = f"{what} accepts an offset, a datetime or ISO text; {what}_time= also accepts milliseconds"
    found = values.offset(place, what, hint=f"{accepted}; {by_key}" if by_key else accepted)
    return values.offset(
        found,
        what,
        low=0,
        hint=f"records() and read_arrow() accept last={-found} for the last {-found} of each partition",
    )


def _shown_bound(bound: Bound) -> str:
    return repr(_shown.moment(bound.timestamp_ms)) if isinstance(bound, Time) else _shown.cut(bound)


def _octets(value: Any, what: str) -> bytes | None:
    if not isinstance(value, str):
        return values.octets(value, what)
    try:
        return value.encode("utf-8", "surrogateescape")  # as Python decodes a command's arguments
    except UnicodeEncodeError as error:
        raise IllegalArgumentException(f"{what}: found {value!r}, which UTF-8 cannot encode: {error.reason}") from None


def _keys_of(key: Any) -> list[bytes | None] | None:
    if key is None:
        return None
    if isinstance(key, list | tuple | set | frozenset):
        if not key:
            raise IllegalArgumentException("key: found none, expected at least one", hint="leave it out for all")
        return [_octets(each, "key") for each in key]
    return [_octets(key, "key")]


def _patterns_of(grep: Any) -> list[str]:
    patterns = [grep] if isinstance(grep, str) else [] if grep is None else grep
    if not isinstance(patterns, Collection) or isinstance(patterns, bytes | bytearray):
        raise IllegalArgumentException(f"grep: found {values.shown(grep)}, expected a pattern (text), or several")
    return [values.text(each, "grep") for each in patterns]


def _headers_of(headers: Any) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        return [(values.text(name, "headers"), _octets(value, f"headers[{name!r}]")) for name, value in headers.items()]
    if isinstance(headers, str):
        return [_header_of(headers)]
    if not isinstance(headers, Collection):
        raise IllegalArgumentException(f"headers: found {values.shown(headers)}, expected names and values")
    found: list[tuple[str, bytes | None]] = []
    for each in headers:
        if isinstance(each, str):
            found.append(_header_of(each))
            continue
        if isinstance(each, tuple) and len(each) != 2:
            raise IllegalArgumentException(f"headers: found {values.shown(each)}, expected a name and a value")
        name, value = each if isinstance(each, tuple) else (each, None)
        found.append((values.text(name, "headers"), _octets(value, f"headers[{name!r}]")))
    return found


def _header_of(text: str) -> tuple[str, bytes | None]:
    """Returns the name and value of "name" or "name=value", a form that commands and Spark accept too."""
    name, equals, value = text.partition("=")
    if not name:
        raise IllegalArgumentException(
            f"headers: {values.shown(text)} has no name; expected text such as 'trace-id=7' or 'trace-id'"
        )
    return values.text(name, "headers"), _octets(value, f"headers[{name!r}]") if equals else None


def walk_selected(
    batches: Iterator[tuple[ChunkReader, Chunk, BatchHeader]],
    selection: Selection,
    times: Times,
    asynchronously: Callable[[], AsyncIterator[Record]] | None = None,
) -> RecordWalk:
    """Returns an iterator over the selected records of `batches`."""
    keep = None
    if selection.match is not None:
        from kafkalog._face.match import Matching

        matching = Matching(batches, selection.match, selection.limits(times))
        batches, keep = iter(matching), matching.keep
    return walk_records(batches, wanted_keys=selection.keys, times=times, keep=keep, asynchronously=asynchronously)
