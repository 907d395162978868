"""The vocabulary of the pictures: colours, numbers in words, and parts of Vega-Lite specifications.

Sizes, times and durations are put into words by expressions of Vega (`calculate`), because a format that a page would
register is unknown to notebooks.  A colour is never alone: order, a label or a shape says the same.  Knows the columns
of tables, and no picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafkalog.report.tables import BYTES, COUNT, DURATION, KINDS, OFFSET, RATIO, SHARE, TIME

Spec = dict[str, Any]

# --- colours -----------------------------------------------------------------------------------------------------

# Okabe and Ito's colours, which are told apart with every kind of colour blindness, in the order of their contrast.
_LIGHT = {
    "c1": "#0072b2",
    "c2": "#e69f00",
    "c3": "#009e73",
    "c4": "#d55e00",
    "c5": "#cc79a7",
    "c6": "#56b4e9",
    "c7": "#8a8f98",
    "c8": "#b8a600",
    "ink": "#1b1f24",
    "soft": "#555d68",
    "line": "#dde1e6",
    "grid": "#e8ebee",
    "paper": "#ffffff",
}
_DARK = {
    "c1": "#4a9fd8",
    "c2": "#e69f00",
    "c3": "#00b383",
    "c4": "#e8702a",
    "c5": "#d68cb5",
    "c6": "#8fd0f5",
    "c7": "#9aa1ab",
    "c8": "#e0d04a",
    "ink": "#e6e9ed",
    "soft": "#a3abb6",
    "line": "#2c323a",
    "grid": "#262b32",
    "paper": "#171a1f",
}
_THEMES = {"light": _LIGHT, "dark": _DARK, "page": {name: f"var(--{name})" for name in _LIGHT}}


def config(theme: str = "light") -> Spec:
    """Returns the configuration of Vega-Lite for a theme: "light", "dark", or "page" for the page's own variables."""
    colors = _THEMES[theme]
    words = {"labelColor": colors["soft"], "titleColor": colors["soft"], "labelFontSize": 11, "titleFontSize": 11}
    return {
        "background": "transparent",
        "font": "system-ui, sans-serif",
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **words,
            "titleFontWeight": 500,
            "gridColor": colors["grid"],
            "domainColor": colors["line"],
            "tickColor": colors["line"],
            "labelLimit": 170,
            "titlePadding": 8,
        },
        "legend": {
            **words,
            "labelColor": colors["ink"],
            "titleFontWeight": 500,
            "orient": "top",
            "labelLimit": 150,
            "columns": 4,
            "symbolStrokeWidth": 1.5,
        },
        "range": {"category": [colors[f"c{number}"] for number in range(1, 9)]},
        "mark": {"color": colors["c1"]},
        "rule": {"color": colors["soft"]},
        "tick": {"color": colors["ink"]},
        "text": {"color": colors["ink"], "fontSize": 11},
        "rect": {"stroke": colors["paper"], "strokeWidth": 0.5},
        "bar": {"stroke": colors["paper"], "strokeWidth": 0.5},
        "style": {"quiet": {"fill": colors["c7"], "fillOpacity": 0.35}, "soft-text": {"fill": colors["soft"]}},
    }


# --- words ---------------------------------------------------------------------------------------------------------


def size_words(value: str, form: str = ".1f") -> str:
    """Returns the expression that puts bytes into words: "1.5 KiB"."""
    found = f"format({value}/{1 << 50}, '{form}') + ' PiB'"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        found = f"abs({value}) < {1 << power + 10} ? format({value}/{1 << power}, '{form}') + ' {unit}' : {found}"
    return f"(abs({value}) < 1024 ? format({value}, ',d') + ' B' : {found})"


def span_words(value: str) -> str:
    found = f"format({value}, ',d') + ' ms'"
    for unit, unit_ms in (("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
        found = f"abs({value}) >= {unit_ms} ? format({value}/{unit_ms}, '.1f') + ' {unit}' : {found}"
    return f"({found})"


def time_words(value: str) -> str:
    return f"({value} < 0 ? '' : utcFormat({value}, '%Y-%m-%d %H:%M:%S'))"


_WORDS: Mapping[str, Callable[[str], str]] = {
    BYTES: size_words,
    TIME: time_words,
    DURATION: span_words,
    SHARE: lambda value: f"format({value}, '.1%')",
    RATIO: lambda value: f"format({value}, ',.2f')",
    COUNT: lambda value: f"format({value}, ',d')",
    OFFSET: lambda value: f"format({value}, ',d')",
}


def tips(table: str, names: Sequence[str], **others: tuple[str, str]) -> tuple[list[Spec], list[Spec]]:
    """Returns the transforms and the tooltip for columns of a table; `others` are (title, kind) of computed fields."""
    columns = {column.name: (column.title, column.kind) for column in KINDS[table].columns} | others
    transforms, tips = [], []
    for name in names:
        title, kind = columns[name]
        words = _WORDS.get(kind)
        if words is None:
            tips.append({"field": name, "type": "nominal", "title": title})
            continue
        of = f"datum['{name}']"
        transforms.append({"calculate": f"isValid({of}) ? {words(of)} : ''", "as": f"{name}_words"})
        tips.append({"field": f"{name}_words", "type": "nominal", "title": title})
    return transforms, tips


# --- parts of specifications -----------------------------------------------------------------------------------------


def spec(table: str, *, height: Any = 220, transform: Sequence[Spec] = (), **rest: Any) -> Spec:
    made: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"name": table},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }
    if transform:
        made["transform"] = list(transform)
    return made | rest


def of_times(field: str, title: str | None = "Time (UTC)", **rest: Any) -> Spec:
    axis = {
        "title": title,
        "labelOverlap": True,
        "grid": False,
        "tickCount": {"expr": "max(2, floor(width / 90))"},
        "format": {
            "minutes": "%H:%M",
            "hours": "%H:%M",
            "date": "%b %d",
            "day": "%b %d",
            "week": "%b %d",
            "month": "%b",
            "year": "%Y",
        },
    }
    return {"field": field, "type": "temporal", "scale": {"type": "utc"}, "axis": axis, **rest}


def of_bytes(field: str, title: str | None, channel: str, **rest: Any) -> Spec:
    """Returns a channel of bytes, whose ticks are at powers of two."""
    most = f"max(1, domain('{channel}')[1])"
    ticks = f"sequence(0, {most} * 1.0001, max(1, pow(2, round(log({most} / 4) / LN2))))"
    axis = {
        "title": title,
        "labelExpr": size_words("datum.value", ".4~g"),
        "values": {"expr": ticks},
        "labelOverlap": True,
    }
    return {"field": field, "type": "quantitative", "scale": {"nice": False, "zero": True}, "axis": axis, **rest}


def of_numbers(field: str, title: str | None, *, zero: bool = True, form: str = "", **rest: Any) -> Spec:
    axis = {"title": title, "labelOverlap": True, "tickCount": 5}
    short = "abs(datum.value) >= 1000 ? format(datum.value, '~s') : format(datum.value, '.4~g')"
    axis |= {"format": form} if form else {"labelExpr": short}
    return {"field": field, "type": "quantitative", "scale": {"zero": zero, "nice": zero}, "axis": axis, **rest}


def of_offsets(field: str, title: str | None = "Offset", **rest: Any) -> Spec:
    return of_numbers(field, title, zero=False, form=",d", **rest)


def colored(field: str, title: str | None = None, told: Sequence[str] | None = None, **rest: Any) -> Spec:
    legend: Spec = {
        "title": title,
        "columns": {"expr": "max(2, floor(width / 130))"},
        "labelLimit": 105,
        "symbolOpacity": 1,
    }
    if told is not None:
        legend["values"] = list(told)  # in the order of the legend
    return {"field": field, "type": "nominal", "legend": legend, **rest}


def ranked(field: str, **rest: Any) -> Spec:
    """Returns a channel of names, in the order of the computed field `place`."""
    return {"field": field, "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}, **rest}


def folded(parts: Mapping[str, str]) -> list[Spec]:
    """Returns the transforms that make a row of `bytes` of each of some columns; `parts` has the columns' titles.

    The row has the title as `partName`, and the place among the parts as `order`."""
    titles = " : ".join(f"datum.part == '{key}' ? '{title}'" for key, title in parts.items())
    return [
        {"fold": list(parts), "as": ["part", "bytes"]},
        {"calculate": f"{titles} : ''", "as": "partName"},
        {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
    ]
