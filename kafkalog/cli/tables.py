"""Tables for terminals and pipes: the only module that lays out columns.

    print_table((Column("TOPIC"), Column("SIZE", right=True), Column("LAST", drop=1)), rows)

In a pipe a table is plain text: every column, as wide as its longest cell, two spaces between columns, times in ISO
8601, no colour, and any width. On a terminal the table fits into its width (`COLUMNS` overrides it). If it is too wide,
times lose their ISO form first; then columns are left out, the highest `drop` first, and a line names them; then the
cells of the widest columns wrap. Cells are shown by `harmless_cell` in both cases.

rich measures and wraps the text, because it knows wide characters. rich's own tables need a millisecond per row, which
is too slow for ten thousand rows.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import click

from kafkalog.cli.console import color_allowed, emit, is_terminal, paint, time_words
from kafkalog.cli.harmless import harmless_cell
from kafkalog.toolbox.words import span

GAP = "  "
WRAPS_TO = 8  # wrapping makes a column narrower than this only as the last resort
_UTC = "kafkalog.utc"
C = TypeVar("C", bound=Callable[..., Any])


class Column(NamedTuple):
    """A column. `right` aligns its cells to the right. `drop` is the order in which columns are left out if there is no
    room (0: never). The cells of a `whole` column wrap last, for they are names to copy."""

    title: str
    right: bool = False
    drop: int = 0
    whole: bool = False


class Cell(NamedTuple):
    """A text with a style of `paint`."""

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text


class When(NamedTuple):
    """A time in milliseconds since 1970 (negative: none). It is shown as ISO 8601, on a terminal as an age; `about`
    comes before it."""

    timestamp_ms: int
    about: str = ""

    def __str__(self) -> str:
        return self.about + time_words(self.timestamp_ms)

    def short(self, now_ms: int) -> str:
        """Returns the age, such as "2.3 d ago"."""
        return self.about + ago_words(self.timestamp_ms, now_ms)

    def long(self, now_ms: int) -> str:
        """Returns the ISO form and the age."""
        iso = str(self)
        return iso if self.timestamp_ms < 0 or "T" not in iso else f"{iso} ({ago_words(self.timestamp_ms, now_ms)})"


def ago_words(timestamp_ms: int, now_ms: int) -> str:
    """Returns a time relative to another: "2.3 d ago", "in 5.0 min", "now"; "-" for none."""
    if timestamp_ms < 0:
        return "-"
    age_ms = now_ms - timestamp_ms
    if abs(age_ms) < 1000:
        return "now"
    return f"{span(age_ms)} ago" if age_ms > 0 else f"in {span(-age_ms)}"


def _note_utc(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        ctx.meta[_UTC] = True
    return value


def utc_option(command: C) -> C:
    """Gives a command that shows times in tables the option --utc."""
    return click.option(
        "--utc", is_flag=True, is_eager=True, expose_value=False, callback=_note_utc,
        help="Show times as ISO 8601 in UTC on a terminal too, not as ages.",
    )(command)  # fmt: skip


def _utc_wanted() -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_UTC))


def print_table(
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[object]],
    *,
    left: int = 1,
    below: Sequence[Sequence[str]] = (),
) -> None:
    """Prints columns under their titles. A plain title is a column that is never left out; the first `left` of these
    are aligned to the left. A cell may be `Cell`, `When` or anything with a text. `below[n]` are lines to print after
    row n."""
    known = [
        column if isinstance(column, Column) else Column(column, right=place >= left)
        for place, column in enumerate(columns)
    ]
    if is_terminal(sys.stdout):
        _fitted(known, rows, below, terminal_width())
    else:
        _plain(known, rows, below)


def terminal_width() -> int:
    """Returns how many columns a line may have (`COLUMNS` overrides it)."""
    return shutil.get_terminal_size().columns


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[object]], below: Sequence[Sequence[str]]) -> None:
    cells = [[column.title for column in columns], *([harmless_cell(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if not color_allowed(sys.stdout):  # without colours one write is enough
        lines: list[str] = []
        for number, row in enumerate(cells):
            lines.append(GAP.join(map(_padded, row, row, map(len, row), widths, columns)).rstrip())
            lines += below[number - 1] if number and below else ()
        emit("\n".join(lines))
        return
    for number, row in enumerate(cells):
        painted = row if not number else map(_painted, row, rows[number - 1])
        padded = map(_padded, painted, row, map(len, row), widths, columns)
        emit(GAP.join(padded).rstrip())
        for line in below[number - 1] if number and below else ():
            emit(line)


def _painted(text: str, cell: object) -> str:
    return paint(text, cell.style) if isinstance(cell, Cell) else text


def _padded(painted: str, text: str, cells: int, width: int, column: Column) -> str:
    room = " " * (width - cells)
    return room + painted if column.right else painted + room


# --- on a terminal ----------------------------------------------------------------------------------------


def _fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], below: Sequence[Sequence[str]], width: int
) -> None:
    now_ms = time.time_ns() // 1_000_000
    as_long = [[_shown(cell, now_ms, is_long=True) for cell in row] for row in rows]
    shown, kept = as_long, list(range(len(columns)))
    widths = _widths(columns, shown)
    if _total(widths, kept) > width and not _utc_wanted():
        shown = [[_shown(cell, now_ms, is_long=False) for cell in row] for row in rows]
        widths = _widths(columns, shown)
    for place in sorted(kept, key=lambda place: -columns[place].drop):
        if columns[place].drop and _total(widths, kept) > width:
            kept.remove(place)
    _narrow(widths, kept, width, [place for place in kept if not columns[place].whole])
    _line([columns[place] for place in kept], [columns[place].title for place in kept], "bold", widths, kept)
    for number, row in enumerate(rows):
        styles = [cell.style if isinstance(cell := row[place], Cell) else "" for place in kept]
        _line([columns[place] for place in kept], [shown[number][place] for place in kept], styles, widths, kept)
        for line in below[number] if below else ():
            emit(line)
    gone = [column.title for place, column in enumerate(columns) if place not in kept]
    if gone and rows:
        for line in _wrapped(
            f"not shown: {', '.join(gone)} (the terminal is too narrow; a pipe shows all columns)", width
        ):
            emit(paint(line, "dim"))


def _shown(cell: object, now_ms: int, *, is_long: bool) -> str:
    if isinstance(cell, When) and not _utc_wanted():
        return cell.long(now_ms) if is_long else cell.short(now_ms)
    return harmless_cell(str(cell))


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[place] for place in kept) + len(GAP) * (len(kept) - 1)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max([_cells(column.title), *(_cells(row[place]) for row in rows)]) for place, column in enumerate(columns)]


def _narrow(widths: list[int], kept: Sequence[int], width: int, others: Sequence[int]) -> None:
    """Reduces the widths of the widest columns in place until the table fits, first those in `others`, which are not
    `whole`."""
    for places, least in ((others, WRAPS_TO), (kept, WRAPS_TO), (kept, 1)):
        while places and _total(widths, kept) > width:
            widest = max(places, key=lambda place: widths[place])
            if widths[widest] <= least:
                break
            widths[widest] -= 1


def _line(
    columns: Sequence[Column], texts: Sequence[str], styles: Sequence[str] | str, widths: list[int], kept: Sequence[int]
) -> None:
    if isinstance(styles, str):
        styles = [styles] * len(texts)
    stacks = [
        [text] if _cells(text) <= widths[place] else _wrapped(text, widths[place])
        for text, place in zip(texts, kept, strict=True)
    ]
    for level in range(max(map(len, stacks))):
        parts = []
        for stack, style, place, column in zip(stacks, styles, kept, columns, strict=True):
            text = stack[level] if level < len(stack) else ""
            parts.append(_padded(paint(text, style if text else ""), text, _cells(text), widths[place], column))
        emit(GAP.join(parts).rstrip())


def _cells(text: str) -> int:
    return len(text) if text.isascii() else _cell_len()(text)


def _wrapped(text: str, width: int) -> list[str]:
    from rich.console import Console
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(Console(width=width), width, overflow="fold")]


def cut(text: str, width: int) -> str:
    """Returns `text`, shortened with an ellipsis to `width` columns of a terminal."""
    if text.isascii():
        return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"
    from rich.cells import set_cell_size

    return text if _cells(text) <= width else f"{set_cell_size(text, max(width - 1, 0))}…"


@lru_cache
def _cell_len() -> Callable[[str], int]:
    from rich.cells import cell_len

    return cell_len
