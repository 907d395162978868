"""Finds records by their content: a regular expression over the value, a header, conditions over the columns.

Batches are decoded natively to Arrow columns and matched column by column (pyarrow.compute). Callers that want columns
get the matching rows (`Match.filtered`). Callers that want records iterate over the batches with `Matching`, which
decodes each chunk once to find its matching records, so that no other record becomes a Python object. Keys and
timestamps are not matched here: the native loops do that. Needs pyarrow, which is imported when a Match is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkalog._face.times import milliseconds_of
from kafkalog._face.window import Near, Time, Window
from kafkalog._limits import LONG_MAX
from kafkalog.engine.format import values
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.records import Record

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk, ChunkReader
    from kafkalog._native.codec.batches import BatchHeader

__all__ = ["COLUMNS", "Condition", "Match", "Matching", "conditions", "records_of"]

COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch")
EXAMPLE = "'offset >= 100 and time < 2026-11-01T09:05 and value is not null'"

_COMPARISONS = {
    "=": "equal", "==": "equal", "!=": "not_equal", "<>": "not_equal",
    ">": "greater", ">=": "greater_equal", "<": "less", "<=": "less_equal",
}  # fmt: skip
_NUMBERS = ("offset", "partition", "leader_epoch")
_NAMES = {"time": "timestamp", "ts": "timestamp"}
_CONDITION = re.compile(
    r"""\s*(?P<column>offset|timestamp|time|ts|partition|leader_epoch|topic|key|value)
        (?:\s*(?P<sign>==|!=|<>|>=|<=|=|>|<)
           \s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s'",].*?)(?=\s+and\s|\s*,|\s*$))
        |\s+is\s+(?P<negated>not\s+)?null\b)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_JOINT = re.compile(r"\s+and\s+|\s*,\s*|\s*$", re.IGNORECASE)
_UNCLOSED = re.compile(r"\s*\w+\s*(?:[=<>!]+)\s*(['\"])")
_STRANGE = re.compile(r"['\"]|\s+(?=\S)")  # not allowed in a text without quotes


_TEXT_COLUMNS = ("offset", "timestamp", "time", "partition", "leader_epoch", "topic", "key", "value")
_BEGINNING = re.compile(r"\s*(\w+)\s*(?:[=<>!]|is\s)", re.IGNORECASE)
_JOINED = re.compile(r"\s(or|not|in|like|between)\s|&&|\|\|", re.IGNORECASE)


class Condition(NamedTuple):
    """A condition on a column of a record. `comparison` is a function of pyarrow.compute, with a `value` unless it is
    "is_null" or "is_valid". Timestamps are in milliseconds."""

    column: str
    comparison: str
    value: int | bytes | str | None = None


def conditions(text: str) -> list[Condition]:
    """Returns the conditions of a text such as `offset >= 100 and time < 2026-11-01T09:05 and key = 'a'`. All of them
    must hold.

    IllegalArgumentException if a condition does not parse.
    """
    found: list[Condition] = []
    at = 0
    while True:
        read = _CONDITION.match(text, at)
        if read is None:
            raise _no_condition(text, at)
        _check_bare(text, read)
        joint = _JOINT.match(text, read.end())
        if joint is None:
            raise _unjoined(text, read.end())
        found.append(_condition(read))
        if joint.end() == len(text) and not joint[0].strip():
            return found
        at = joint.end()


def _no_condition(text: str, at: int) -> IllegalArgumentException:
    """Returns the error for a text in which no condition follows."""
    _check_column(text[at:])
    if (opened := _UNCLOSED.match(text, at)) is not None:
        return IllegalArgumentException(
            f"where: the quote {opened[1]} at {_place(text, opened.start(1))} is not closed",
            hint="put a text that contains one kind of quotes in the other kind",
        )
    rest = text[at:].strip()
    place = f" at {_place(text, at)}" if at and rest else " at the end" if at else ""
    return IllegalArgumentException(
        f"where: {rest!r}{place} is not a condition; expected one such as {EXAMPLE}",
        hint="conditions are joined by `and`; there is no `or`, `not` or `in`",
    )


def _check_bare(text: str, read: re.Match[str]) -> None:
    """Raises IllegalArgumentException for an unquoted text with a blank or a quote: it may be a mistyped `and`."""
    bare = read["bare"]
    if bare is None:
        return
    if joined := _JOINED.search(bare):
        raise IllegalArgumentException(
            f"where: found {joined[0].strip()!r} in {bare[:60]!r}",
            hint="conditions are joined by `and`; put a text with such a word in quotes",
        )
    strange = _STRANGE.search(bare)
    if strange is not None and (read["column"].lower() not in ("timestamp", "time", "ts") or strange[0].strip()):
        raise _unjoined(text, read.start("bare") + strange.start())


def _unjoined(text: str, at: int) -> IllegalArgumentException:
    """Returns the error for text after a condition that does not join it to another one."""
    return IllegalArgumentException(
        f"where: found {text[at:].strip()[:60]!r} at {_place(text, at)}, expected `and` and a condition, or the end",
        hint="put a text with blanks or quotes in quotes, such as key = 'customer 7'",
    )


def _place(text: str, at: int) -> str:
    """Returns the place of the first character from `at` on that is not a blank, counted from 1."""
    return f"character {len(text) - len(text[at:].lstrip()) + 1}"


def _check_column(text: str) -> None:
    """Raises IllegalArgumentException if a condition begins with a name that is no column, or not one for
    conditions."""
    read = _BEGINNING.match(text)
    name = "" if read is None else read[1]
    if not name or name.lower() in (*_TEXT_COLUMNS, *_NAMES):
        return
    if name.lower() in COLUMNS:
        raise IllegalArgumentException(
            f"where: found {name!r}, expected one of {', '.join(_TEXT_COLUMNS)} in a text",
            hint=f"use a pyarrow Expression for it, such as pyarrow.compute.field({name.lower()!r}).is_null()",
        )
    from difflib import get_close_matches

    near = "".join(f"; did you mean {it!r}?" for it in get_close_matches(name.lower(), _TEXT_COLUMNS, 1))
    raise IllegalArgumentException(
        f"where: unknown column {name!r}{near}",
        hint=f"columns are {', '.join(_TEXT_COLUMNS)}; conditions apply to the record's columns, not to fields of "
        "JSON: filter the result by these fields",
    )


def _condition(read: re.Match[str]) -> Condition:
    column = _NAMES.get(read["column"].lower(), read["column"].lower())
    if read["sign"] is None:
        return Condition(column, "is_valid" if read["negated"] else "is_null")
    comparison = _COMPARISONS[read["sign"]]
    given = next(each for each in (read["single"], read["double"], read["bare"]) if each is not None)
    if column == "timestamp":
        return Condition(column, comparison, milliseconds_of(given, "where"))
    if column in _NUMBERS:
        if not re.fullmatch(r"[0-9]{1,19}", given) or int(given) > LONG_MAX:
            raise IllegalArgumentException(
                f"where: {given:.40} is not a valid {column}, expected 0 to {LONG_MAX}",
                hint="conditions are joined by `and`",
            )
        return Condition(column, comparison, int(given))
    return Condition(column, comparison, given if column == "topic" else given.encode("utf-8", "surrogateescape"))


class Match:
    """The conditions that a record must meet.

    The value must match each of `patterns`. For each of `headers` there must be a header of that name and value (None:
    any value). `where` is text (see `conditions`) or a pyarrow Expression over the columns.

    `patterns` are RE2's regular expressions over bytes: they have no look-around, `.` is a byte, and UTF-8 text stands
    for its bytes. A record without a value matches no pattern. `columns` are the columns that a batch must have to be
    filtered. IllegalArgumentException for a wrong pattern, MissingPackageException without pyarrow.
    """

    def __init__(
        self,
        patterns: Sequence[str] = (),
        headers: Sequence[tuple[str, bytes | None]] = (),
        where: Any = None,
    ) -> None:
        self._pa = pa = need_pyarrow()
        import pyarrow.compute as compute

        self._compute = compute
        self._headers = tuple(headers)
        self._patterns = tuple(patterns)
        self._expression = where if isinstance(where, compute.Expression) else None
        if where is not None and self._expression is None and not isinstance(where, str):
            raise IllegalArgumentException(
                f"where: found {values.shown(where)}, expected text such as {EXAMPLE}, or a pyarrow.compute.Expression"
            )
        self._conditions = tuple(conditions(where)) if isinstance(where, str) else ()
        wanted = [each.column for each in self._conditions]
        wanted += ["value"] * bool(patterns) + ["headers"] * bool(headers)
        if self._expression is not None:
            wanted += [*COLUMNS, "topic", "partition"]
            self._try_expression()
        self.columns = tuple(dict.fromkeys(wanted))
        for pattern in patterns:
            try:
                compute.match_substring_regex(pa.array([b""], pa.binary()), pattern)
            except pa.ArrowInvalid as error:
                what = str(error).removeprefix("Invalid regular expression: ")
                raise IllegalArgumentException(
                    f"{pattern!r} is not a regular expression: {what}",
                    hint="use RE2's syntax, without look-around; \\Q...\\E matches text literally",
                ) from None

    def _try_expression(self) -> None:
        from kafkalog._face import arrow

        pa = self._pa
        try:
            pa.RecordBatch.from_pylist([], arrow.schema([*COLUMNS, "topic", "partition"])).filter(self._expression)
        except (pa.ArrowException, TypeError) as error:
            columns = ", ".join(arrow.PYTHON_COLUMNS)
            what = str(error).partition(" in ")[0]
            if "tz=UTC" in str(error) and re.search(r"timestamp\[\w+\]", str(error)):
                raise IllegalArgumentException(
                    "where: timestamp is compared with a time without a time zone, expected one with a time zone",
                    hint="datetime(..., tzinfo=timezone.utc)",
                ) from None
            raise IllegalArgumentException(
                f"where: {what}",
                hint=f"columns are {columns}; conditions apply to these, not to fields of JSON: filter the result by "
                "those fields",
            ) from None

    def pruned(self, asked: Window) -> Window:
        """Returns the window in which the conditions may hold, so that nothing else is read. Unlike in a given window,
        an offset that the log does not have is no error here."""
        start, end = asked
        for column, comparison, value in self._conditions:
            if column not in ("offset", "timestamp") or not isinstance(value, int):
                continue
            if comparison in ("equal", "greater", "greater_equal") and start is None:
                if column == "offset":
                    start = Near(value)
                elif not isinstance(end, Time) or value <= end.timestamp_ms:  # otherwise nothing can match
                    start = Time(value)
            if comparison in ("equal", "less", "less_equal") and end is None and column == "offset":
                end = Near(min(value + (comparison != "less"), LONG_MAX))
        return Window(start, end)

    def filtered(self, batch: Any) -> Any:
        """Returns the rows of a record batch (with `columns`) that match."""
        mask: Any = None
        for part in self._masks(batch):
            part = self._compute.fill_null(part, False)
            mask = part if mask is None else self._compute.and_(mask, part)
        if mask is not None:
            batch = batch.filter(mask)
        return batch if self._expression is None else batch.filter(self._expression)

    def accepts(self, record: Record) -> bool:
        """Returns whether one record matches."""
        from kafkalog._face import arrow

        row: dict[str, Any] = {name: [getattr(record, name)] for name in self.columns if name != "headers"}
        if "headers" in self.columns:
            row["headers"] = [[{"key": name, "value": value} for name, value in record.headers]]
        batch = self._pa.RecordBatch.from_pydict(row, arrow.schema([*row]))
        return bool(self.filtered(batch).num_rows)

    def _masks(self, batch: Any) -> Iterator[Any]:
        compute = self._compute
        for column, comparison, value in self._conditions:
            found = batch.column(column)
            if comparison in ("is_null", "is_valid"):
                yield getattr(compute, comparison)(found)
                continue
            found = found.view("int64") if column == "timestamp" else found
            yield getattr(compute, comparison)(found, self._pa.scalar(value, found.type))
        for pattern in self._patterns:
            yield compute.match_substring_regex(batch.column("value"), pattern)
        for name, wanted in self._headers:
            yield self._having(batch.column("headers"), name, wanted)

    def _having(self, column: Any, name: str, value: bytes | None) -> Any:
        pa, compute = self._pa, self._compute
        entries = column.flatten()
        hit = compute.equal(entries.field(0), pa.scalar(name, pa.string()))
        if value is not None:
            hit = compute.and_(hit, compute.fill_null(compute.equal(entries.field(1), pa.scalar(value)), False))
        rows = compute.list_parent_indices(column).filter(hit)
        having = np.zeros(len(column), bool)
        having[rows.to_numpy(zero_copy_only=False)] = True
        return pa.array(having)


class Matching:
    """Iterates over `batches` for a `RecordWalk`, which uses `keep`. Each chunk is decoded once, as columns, to find
    its matching records. `limits` are ColumnBuilder's. Records that cannot be decoded match nothing here: the walk
    reaches them and raises the error."""

    end_offset = None

    def __init__(
        self,
        batches: Iterator[tuple[ChunkReader, Chunk, BatchHeader]],
        match: Match,
        limits: Mapping[str, Any],
    ) -> None:
        self._batches = batches
        self._match = match
        self._limits = limits
        self._chunk: Chunk | None = None
        self._offsets: frozenset[int] = frozenset()

    def keep(self, record: Record) -> bool:
        """Returns whether a record of the current chunk matches."""
        return record.offset in self._offsets

    def __iter__(self) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
        try:
            for reader, chunk, header in self._batches:
                if chunk is not self._chunk:
                    self._chunk, self._offsets = chunk, frozenset(self._found(reader, chunk))
                yield reader, chunk, header
        finally:
            close: Callable[[], None] | None = getattr(self._batches, "close", None)
            if close is not None:
                close()

    def _found(self, reader: ChunkReader, chunk: Chunk) -> Iterator[int]:
        from kafkalog._face import arrow

        wanted = list(dict.fromkeys(["offset", *self._match.columns]))
        decoder = arrow.Decoder(reader, {arrow.PYTHON_COLUMNS[name][0] for name in wanted}, self._limits)
        schema, row, is_whole = arrow.schema(wanted), 0, True
        while is_whole and row < len(chunk.table):
            try:
                row = decoder.add(chunk, row)
            except KafkalogError:
                is_whole = False
            if decoder.rows:
                batch = arrow.typed(decoder.finish(), schema, arrow.PYTHON_COLUMNS)
                yield from self._match.filtered(batch).column("offset").to_pylist()


def records_of(batch: Any, topic: str, partition: int) -> Iterator[Record]:
    """Yields the rows of a record batch (of COLUMNS) as Records."""
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].view("int64")  # Arrow has a type for times, a Record has a number
    lists = [column.to_pylist() for column in columns]
    for offset, timestamp, kind, key, value, headers, epoch in zip(*lists, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield Record(topic, partition, epoch, offset, timestamp, kind, key, value, pairs)


def __dir__() -> list[str]:
    return __all__
