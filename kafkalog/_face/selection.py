"""What somebody asks of a log, as every door takes it: the one meaning of a window, a key, a header, a pattern.

A `Selection` is made of what a caller gave, and checked before anything is read.  It has two parts.  A window, keys and
timestamps are looked at by the loops that decode records, before anything of a record is copied.  Everything else is a
`Match`: it looks at columns of decoded records, and needs pyarrow.
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

# What else reading takes.
_ELSEWHERE = ("columns", "last", "partitions", "values", "schema", "errors", "keys", "start", "end")

_log = Lines("kafkalog.log")


class Filters(TypedDict, total=False):
    """Which records are read; what is left out asks nothing, and all that is given must hold.

        topic.read_arrow(start="2026-03-01T00:00Z", end="2026-04-01T00:00Z", key="customer-7", grep="refused|failed")

    A time is a `datetime` with a time zone, ISO 8601 text (UTC unless it says otherwise), or an int of milliseconds
    since 1970.  Text in the place of bytes stands for its UTF-8.

    start_time, end_time: records with a timestamp in [start_time, end_time), whatever their order in the log; the same
    as a time in `start` and `end`, and the way to give milliseconds.
    key: a key, or several of which any will do; None among several: records without a key.
    key_prefix: what the key begins with.
    headers: names and their values, all of which a record must have; a value None: any value.  Text, or a list of
    texts, is "name=value" or "name"; a name that has a "=" stands in a mapping.
    grep: an RE2 pattern that the value matches, or several that it must all match.
    where: conditions as text, such as "partition = 3 and offset >= 100 and value is not null", or a pyarrow Expression
    over the columns (`pyarrow.compute.field("offset") > 100`).
    isolation: "read_uncommitted", or "read_committed", which leaves out aborted records and stops before the oldest
    open transaction.
    on_damage: "raise" (the error names file and position), "skip" goes on behind it with a WARNING, and a function
    is told of each `Lost` range instead.
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
    """See `Filters`.  IllegalArgumentException for what makes no sense, MissingPackageException without pyarrow where a
    Match is needed."""

    # More than eight parameters: they are those of Filters.
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
        self.is_call = False  # of keywords of a Python call, which errors may name
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
        """The same in another window."""
        made = copy.copy(self)
        made.window = made._asked_window = window
        return made

    def unpruned(self) -> Selection:
        """The same, without what its conditions tell of where to look."""
        made = copy.copy(self)
        made.window = self._asked_window
        return made

    def untold(self) -> Selection:
        """The same for a look ahead: what it passes over is told by whoever reads it."""
        if self.tell is None:
            return self
        made = copy.copy(self)
        made.tell = lambda lost: None
        return made

    @property
    def times(self) -> Times:
        """The timestamps that the window asks for."""
        first, behind = self.window
        return times_of(
            first.timestamp_ms if isinstance(first, Time) else None,
            behind.timestamp_ms if isinstance(behind, Time) else None,
        )

    @property
    def offsets(self) -> tuple[int | None, int | None]:
        """The first offset that the window asks for, and the one behind the last; None where it names none."""
        first, behind = (each.offset if isinstance(each, Near) else each for each in self.window)
        return first if isinstance(first, int) else None, behind if isinstance(behind, int) else None

    def limits(self, times: Times) -> Mapping[str, Any]:
        """As `RecordWalk` and `ColumnBuilder` take them."""
        return {**times.limits, "wanted_keys": self.keys}

    def columns_for(self, columns: Sequence[str]) -> list[str]:
        """Which columns must be decoded for these, and to filter."""
        return list(dict.fromkeys([*columns, *(self.match.columns if self.match is not None else ())]))

    def filtered(self, batch: Any, columns: Sequence[str]) -> Any:
        """Those rows of a record batch that match, with these columns."""
        if self.match is not None:
            batch = self.match.filtered(batch)
        return batch if len(columns) == batch.num_columns else batch.select(list(columns))


def selection_of(start: Place | None, end: Place | None, filters: Mapping[str, Any]) -> Selection:
    """What was asked by keywords.  TypeError for one that does not exist, with the nearest that does."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise unexpected(name, {*Filters.__annotations__, *_ELSEWHERE}, {"until": "end", "from": "start"})
    made = Selection(start, end, **filters)
    made.is_call = True
    return made


def checked_selection(given: Any, what: str) -> Selection:
    """`given`, and all for None; IllegalArgumentException for what is no Selection."""
    if given is None:
        return Selection()
    if not isinstance(given, Selection):
        raise IllegalArgumentException(
            f"{what}: found {values.shown(given)}, expected a Selection", hint=f"write {what}=Selection(start, end)"
        )
    return given


def checked_window(given: Any, what: str) -> Window:
    """The old parameter window=, in the place of which is `what`; all for None.  IllegalArgumentException for another
    thing than a pair."""
    if given is None:
        return Window()
    if not (isinstance(given, tuple) and len(given) == 2):
        raise IllegalArgumentException(
            f"window: found {values.shown(given)}, expected a Window", hint=f"write {what}=Selection(start, end)"
        )
    return Window(*given)


def _tell_of(on_damage: Any) -> Tell | None:
    """Whom to tell of damage that is passed over; None where it is raised."""
    if callable(on_damage):
        return on_damage  # type: ignore[no-any-return]
    if on_damage == "raise":
        return None
    if on_damage == "skip":
        return lambda lost: _log.warning("damage was passed over: %s", lost)
    raise IllegalArgumentException(
        f"on_damage: found {values.shown(on_damage)}, expected 'raise', 'skip', or a function that is told of each loss"
    )


def _window(start: Any, end: Any, start_time: Any, end_time: Any) -> Window:
    first, behind = _bound(start, start_time, "start"), _bound(end, end_time, "end")
    if first is not None and behind is not None and type(first) is type(behind) and first > behind:  # type: ignore[operator]
        names = [name if given is not None else f"{name}_time" for name, given in (("start", start), ("end", end))]
        given = (start if start is not None else start_time, end if end is not None else end_time)
        raise IllegalArgumentException(
            f"{names[0]} {given[0]} lies behind {names[1]} {given[1]}", hint=f"expected it at or before {names[1]}"
        )
    return Window(first, behind)


def _bound(place: Any, time: Any, what: str) -> Bound:
    """Of a place that is an offset or a time, or of a time beside it."""
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
    if isinstance(place, datetime | str) or is_moment(place):
        return Time(milliseconds_of(place, what))
    found = values.offset(
        place, what, hint=f"{what} takes an offset, a datetime or ISO text; {what}_time= takes milliseconds, too"
    )
    return values.offset(
        found,
        what,
        low=0,
        hint=f"last={-found} of records() and read_arrow() takes the last {-found} of each partition",
    )


def _shown_bound(bound: Bound) -> str:
    return repr(_shown.moment(bound.timestamp_ms)) if isinstance(bound, Time) else _shown.cut(bound)


def _octets(value: Any, what: str) -> bytes | None:
    if not isinstance(value, str):
        return values.octets(value, what)
    try:
        return value.encode("utf-8", "surrogateescape")  # as the system gives a command's arguments
    except UnicodeEncodeError as error:
        raise IllegalArgumentException(f"{what}: found {value!r}, which no UTF-8 can be: {error.reason}") from None


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
    """Of `name` or `name=value`, as commands and Spark take it too."""
    name, equals, value = text.partition("=")
    if not name:
        raise IllegalArgumentException(
            f"headers: {values.shown(text)} has no name, expected such as 'trace-id=7', or 'trace-id'"
        )
    return values.text(name, "headers"), _octets(value, f"headers[{name!r}]") if equals else None


def walk_selected(
    batches: Iterator[tuple[ChunkReader, Chunk, BatchHeader]],
    selection: Selection,
    times: Times,
    asynchronously: Callable[[], AsyncIterator[Record]] | None = None,
) -> RecordWalk:
    """The records of `batches` that were selected."""
    keep = None
    if selection.match is not None:
        from kafkalog._face.match import Matching

        matching = Matching(batches, selection.match, selection.limits(times))
        batches, keep = iter(matching), matching.keep
    return walk_records(batches, wanted_keys=selection.keys, times=times, keep=keep, asynchronously=asynchronously)
