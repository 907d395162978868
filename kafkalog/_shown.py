"""The text and HTML of objects in a REPL and a notebook: bytes as text, times, sizes, small tables.

The content may be hostile: a record may contain markup, a megabyte, or bytes that are not text.  This module shortens
and escapes everything, and no content makes it raise.  It knows nothing of logs; any module may use it.
"""

from __future__ import annotations

import codecs
import html
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

MOST = 60  # characters of a value
ROWS_MAX = 50  # rows of a table
PARTITIONS_MAX = 10_000  # partitions that a repr counts
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
T = TypeVar("T")

# No colours are set, so that a notebook's theme, dark or light, applies.
_TABLE = "background:transparent;color:inherit"
_CELL = "padding:1px 8px;text-align:left"


def octets(data: object, size: int | None = None, most: int = MOST) -> str:
    """Returns a key or a value as text if it is UTF-8, else as bytes; at most `most` characters of it.

    `size` is the number of bytes of the whole, if `data` is only its beginning.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        return cut(data, most)
    size = len(data) if size is None else size
    head = bytes(data[: 4 * most])
    try:
        found: str | bytes = codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == size)
    except UnicodeDecodeError:
        found = head
    kept = min(len(found), most)
    while kept and len(repr(found[:kept])) > most + 3:  # + 3 for quotes and a b; escapes need more characters
        kept -= 1
    shown = repr(found[:kept])
    if kept == len(found) and len(head) == size:
        return shown
    return f"{shown[:-1]}...{shown[-1]} ({size:,} bytes)"


def cut(value: object, most: int = MOST) -> str:
    """Returns the repr of any object in one line of at most `most` characters."""
    try:
        shown = " ".join(repr(value).split())
    except Exception:  # the repr of an unknown object may raise anything
        return f"<{type(value).__name__}>"
    return shown if len(shown) <= most else f"{shown[:most]}..."


def moment(timestamp_ms: Any) -> str:
    """Returns milliseconds since 1970 as ISO 8601 in UTC."""
    if not isinstance(timestamp_ms, int) or timestamp_ms < 0:
        return "no time"
    try:
        found = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return found.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def size(size_bytes: int) -> str:
    """Returns a size with its unit: 1536 -> "1.5 KiB"."""
    value = float(size_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def number(count: int, of: str) -> str:
    """Returns a count with its noun: 1 -> "1 topic"; 1200 -> "1,200 topics"."""
    return f"{count:,} {of}" if count == 1 else f"{count:,} {of}s"


def or_none(ask: Callable[[], T]) -> T | None:
    """Returns the result of `ask`, or None if it raises: a shown object may be closed, deleted or damaged."""
    try:
        return ask()
    except Exception:
        return None


def changed(given: tuple[Any, ...]) -> str:
    """Returns a named tuple of settings as text, with only the settings that differ from their defaults."""
    kind: Any = type(given)
    defaults, fields = kind._field_defaults, kind._fields
    parts = [
        f"{name}={cut(value, 200)}"
        for name, value in zip(fields, given, strict=True)
        if name not in defaults or or_none(lambda a=value, b=defaults[name]: bool(a == b)) is not True  # type: ignore[misc]
    ]
    return f"{kind.__name__}({', '.join(parts)})"


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], more: str = "") -> str:
    """Returns an HTML table with all text escaped, and `more` below it; it has at most ROWS_MAX rows."""
    lines = [f'<table style="{_TABLE}"><caption style="text-align:left">{html.escape(caption)}</caption>']
    lines.append("<thead><tr>" + "".join(f'<th style="{_CELL}">{html.escape(each)}</th>' for each in columns))
    lines.append("</tr></thead><tbody>")
    for place, row in enumerate(rows):
        if place == ROWS_MAX:
            more = f"and more: the first {ROWS_MAX} are shown" + (f"; {more}" if more else "")
            break
        lines.append("<tr>" + "".join(f'<td style="{_CELL}">{html.escape(str(each))}</td>' for each in row) + "</tr>")
    lines.append("</tbody></table>")
    if more:
        lines.append(f"<div>{html.escape(more)}</div>")
    return "".join(lines)


def facts(thing: object, told: Iterable[tuple[str, object]]) -> str:
    """Returns an HTML table with the repr of an object, and below it the name and value of each fact about it.

    A fact whose value is None is not known, and is omitted.
    """
    rows = ((name, cut(value) if isinstance(value, str) else value) for name, value in told if value is not None)
    return table(repr(thing)[1:-1], ("", ""), rows)


RECORD_COLUMNS = ("record", "time", "key", "value", "headers")


def place(record: Any) -> str:
    """Returns the position of a record as text: "topic-0@12"."""
    return f"{record.topic}-{record.partition}@{record.offset}"


def record_row(record: Any, value: str | None = None) -> list[str]:
    """Returns a record's row in a table; `value` is the text of the value if the caller has it."""
    headers = ", ".join(f"{cut(name)}: {octets(held)}" for name, held in list(record.headers or ())[:5])
    if len(headers) > 3 * MOST:
        headers = f"{headers[: 3 * MOST]}..."
    shown = octets(record.value) if value is None else value
    return [place(record), moment(record.timestamp), octets(record.key), shown, headers]


class Shown:
    """Limits `dir()` to the names that users call.

    It omits the names in `_inner`, which kafkalog's modules call, and names with a leading underscore that are not
    Python's.
    """

    __slots__ = ()

    _inner: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> Iterable[str]:
        hidden = self._inner
        return [
            name
            for name in super().__dir__()
            if name not in hidden and (not name.startswith("_") or name.endswith("__"))
        ]


class Shelf(Shown, list[T]):
    """A list that a notebook shows as a table; `show` returns the HTML of its items."""

    _show: Callable[[Sequence[T]], str] | None = None

    def _repr_html_(self) -> str | None:
        show = type(self)._show
        return None if show is None else or_none(lambda: show(self))
