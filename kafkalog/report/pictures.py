"""The pictures of a report, as Vega-Lite specifications over the tables of a survey.

A specification names its table as `data: {"name": ...}`; the page, a notebook and the tests give it the rows.  The same
picture is used everywhere: the page draws it with vegaEmbed, a notebook with `altair.Chart.from_dict`, and `vl_convert`
makes an SVG of it without a browser.  Knows no files and no HTML.

Sizes, times and durations are put into words by expressions of Vega (`calculate`), because a format that a page would
register is unknown to notebooks.  A colour is never alone: order, a label or a shape says the same.

Vega-Lite was chosen out of four libraries.  Its script, with Vega, has 0.9 MB (0.3 MB gzip) and comes in a wheel
(vl-convert).  Its charts are data, so one description serves the page, notebooks and SVGs.  Its expressions can be
interpreted without `eval`, and its SVG has roles and labels for screen readers.  Plotly's script has 4.8 MB.  ECharts
(1.1 MB) has no wheel from its authors, and no objects for notebooks.  uPlot (50 KB) draws lines and bars over numbers,
but no treemap and no map of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkalog.report.tables import BYTES, COUNT, DURATION, KINDS, OFFSET, RATIO, SHARE, TIME

Spec = dict[str, Any]


class Picture(NamedTuple):
    """One picture: the page that shows it, its title, what it shows in words, and its table.

    `page` is "overview", "topic", "partition", "transactions", "groups" or "damage".  `table` names the table that it
    is drawn from, which is shown next to it.  `spec` is a Vega-Lite specification without data.  If no row has a value
    in each column of `needs`, there is nothing to draw.
    """

    name: str
    page: str
    title: str
    about: str
    table: str
    spec: dict[str, Any]
    needs: tuple[str, ...] = ()


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
SERIES_MAX = 6  # a stacked picture shows the others as one series, in grey
LINES_MAX = 8


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


def _size(value: str, form: str = ".1f") -> str:
    """Returns the expression that puts bytes into words: "1.5 KiB"."""
    found = f"format({value}/{1 << 50}, '{form}') + ' PiB'"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        found = f"abs({value}) < {1 << power + 10} ? format({value}/{1 << power}, '{form}') + ' {unit}' : {found}"
    return f"(abs({value}) < 1024 ? format({value}, ',d') + ' B' : {found})"


def _span(value: str) -> str:
    found = f"format({value}, ',d') + ' ms'"
    for unit, unit_ms in (("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
        found = f"abs({value}) >= {unit_ms} ? format({value}/{unit_ms}, '.1f') + ' {unit}' : {found}"
    return f"({found})"


def _moment(value: str) -> str:
    return f"({value} < 0 ? '' : utcFormat({value}, '%Y-%m-%d %H:%M:%S'))"


_WORDS: Mapping[str, Callable[[str], str]] = {
    BYTES: _size,
    TIME: _moment,
    DURATION: _span,
    SHARE: lambda value: f"format({value}, '.1%')",
    RATIO: lambda value: f"format({value}, ',.2f')",
    COUNT: lambda value: f"format({value}, ',d')",
    OFFSET: lambda value: f"format({value}, ',d')",
}


def _tips(table: str, names: Sequence[str], **others: tuple[str, str]) -> tuple[list[Spec], list[Spec]]:
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


def _spec(table: str, *, height: Any = 220, transform: Sequence[Spec] = (), **rest: Any) -> Spec:
    spec: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"name": table},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }
    if transform:
        spec["transform"] = list(transform)
    return spec | rest


def _when(field: str, title: str | None = "Time (UTC)", **rest: Any) -> Spec:
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


def _bytes(field: str, title: str | None, channel: str, **rest: Any) -> Spec:
    """Returns a channel of bytes, whose ticks are at powers of two."""
    most = f"max(1, domain('{channel}')[1])"
    ticks = f"sequence(0, {most} * 1.0001, max(1, pow(2, round(log({most} / 4) / LN2))))"
    axis = {"title": title, "labelExpr": _size("datum.value", ".4~g"), "values": {"expr": ticks}, "labelOverlap": True}
    return {"field": field, "type": "quantitative", "scale": {"nice": False, "zero": True}, "axis": axis, **rest}


def _number(field: str, title: str | None, *, zero: bool = True, form: str = "", **rest: Any) -> Spec:
    axis = {"title": title, "labelOverlap": True, "tickCount": 5}
    short = "abs(datum.value) >= 1000 ? format(datum.value, '~s') : format(datum.value, '.4~g')"
    axis |= {"format": form} if form else {"labelExpr": short}
    return {"field": field, "type": "quantitative", "scale": {"zero": zero, "nice": zero}, "axis": axis, **rest}


def _offset(field: str, title: str | None = "Offset", **rest: Any) -> Spec:
    return _number(field, title, zero=False, form=",d", **rest)


def _color(field: str, title: str | None = None, told: Sequence[str] | None = None, **rest: Any) -> Spec:
    legend: Spec = {
        "title": title,
        "columns": {"expr": "max(2, floor(width / 130))"},
        "labelLimit": 105,
        "symbolOpacity": 1,
    }
    if told is not None:
        legend["values"] = list(told)  # in the order of the legend
    return {"field": field, "type": "nominal", "legend": legend, **rest}


# In the order of the colours: blue, orange, green, vermilion, purple, sky.
_STATES = ["committed", "open", "aborted", "hanging"]
_USED = ["#2f8ac4", "#8a8f98", "#8a8f9840"]  # seen on light and on dark
_FATES = ["saved", "cut", "good", "damaged", "lost", "kept"]
_FATES_TOLD = ["good", "damaged", "kept", "cut", "saved", "lost"]


def _treemap() -> Spec:
    words, tips = _tips("topics", ("topic", "size", "partitions", "segments", "records", "cleanupPolicy"))
    wide, high = "(datum.x2 - datum.x) / 2 * width", "(datum.y2 - datum.y) * height"
    place = {
        "x": {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [0, 2], "nice": False}},
        "y": {"field": "y", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1], "reverse": True}},
    }
    area = "(datum.x2 - datum.x) * (datum.y2 - datum.y)"

    def label(field: str, down: int, high_min: int, **mark: Any) -> Spec:
        return {
            "transform": [{"filter": f"{area} > 0.004"}],
            "mark": {
                "type": "text",
                "align": "left",
                "baseline": "top",
                "dx": 5,
                "dy": down,
                "aria": False,
                "limit": {"expr": f"{wide} - 10"},
                "opacity": {"expr": f"{wide} > 44 && {high} > {high_min} ? 1 : 0"},
                **mark,
            },
            "encoding": {**place, "text": {"field": field, "type": "nominal"}},
        }

    return _spec(
        "topics",
        height=320,
        transform=[{"filter": f"isValid(datum.x) && {area} > 0.00002"}, *words],
        layer=[
            {
                "mark": {"type": "rect", "fillOpacity": 0.32, "strokeWidth": 1.5},
                "encoding": {
                    **place,
                    "x2": {"field": "x2"},
                    "y2": {"field": "y2"},
                    "fill": _color("cleanupPolicy", "cleanup.policy"),
                    "tooltip": tips,
                },
            },
            label("topic", 5, 18, fontWeight=600),
            label("size_words", 20, 34, style="soft-text"),
        ],
    )


def _disks() -> Spec:
    parts = {"logs": "These logs", "others": "Other files", "freeBytes": "Free"}
    words, tips = _tips("disks", ("logDir", "bytes"), bytes=("Bytes", BYTES))
    return _spec(
        "disks",
        height={"step": 34},
        transform=[
            {"calculate": "min(datum.allocated, datum.diskBytes - datum.freeBytes)", "as": "logs"},
            {"calculate": "max(0, datum.diskBytes - datum.freeBytes - datum.logs)", "as": "others"},
            {"fold": list(parts), "as": ["part", "bytes"]},
            {
                "calculate": " : ".join(f"datum.part == '{key}' ? '{name}'" for key, name in parts.items()) + " : ''",
                "as": "partName",
            },
            {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
            *words,
        ],
        mark={"type": "bar", "height": 20},
        encoding={
            "y": {"field": "logDir", "type": "nominal", "title": None},
            "x": _bytes("bytes", None, "x", stack="zero"),
            "order": {"field": "order"},
            "color": _color("partName", scale={"domain": list(parts.values()), "range": _USED}),
            "tooltip": [{"field": "partName", "type": "nominal", "title": "Part"}, *tips],
        },
    )


def _rates(value: str, series: str) -> Spec:
    """Returns stacked rectangles from `fromTime` to `toTime`, one colour for each of the largest series."""
    kind = BYTES if value == "bytesPerHour" else RATIO
    title = "Bytes an hour" if kind == BYTES else "Records an hour"
    by = series or "topic"
    label = {"topic": "Topic", "partition": "Partition", "": ""}[series]
    words, tips = _tips(
        "rates",
        ("fromTime", "toTime", "rate"),
        rate=(title, kind),
    )
    transform: list[Spec] = [
        {"filter": f"datum.fromTime >= 0 && isValid(datum['{value}'])"},
        {"calculate": f"isValid(datum['{by}']) ? '' + datum['{by}'] : 'all'", "as": "name"},
        # By bytes in both pictures, so that a topic has one colour.
        {"joinaggregate": [{"op": "sum", "field": "bytesPerHour", "as": "total"}], "groupby": ["name"]},
        {
            "window": [{"op": "dense_rank", "as": "rank"}],
            "sort": [{"field": "total", "order": "descending"}, {"field": "name", "order": "ascending"}],
        },
        {"calculate": f"datum.rank <= {SERIES_MAX} ? datum.name : 'others'", "as": "series"},
        {"calculate": f"min(datum.rank, {SERIES_MAX + 1})", "as": "place"},
        {
            "aggregate": [{"op": "sum", "field": value, "as": "rate"}],
            "groupby": ["fromTime", "toTime", "series", "place"],
        },
        {
            "joinaggregate": [
                {"op": "min", "field": "fromTime", "as": "begin"},
                {"op": "max", "field": "toTime", "as": "end"},
            ]
        },
        {"calculate": "max(datum.toTime, datum.fromTime + (datum.end - datum.begin) / 300)", "as": "seenTo"},
        {
            "stack": "rate",
            "groupby": ["fromTime"],
            "sort": [{"field": "place", "order": "ascending"}],
            "as": ["y0", "y1"],
        },
        *words,
    ]
    axis = _bytes("y0", title, "y") if kind == BYTES else _number("y0", title)
    encoding: Spec = {
        "x": _when("fromTime"),
        "x2": {"field": "seenTo"},
        "y": axis,
        "y2": {"field": "y1"},
        "tooltip": tips,
    }
    if series:
        encoding["color"] = _color("series", None, sort={"field": "place", "op": "min"})
        encoding["tooltip"] = [{"field": "series", "type": "nominal", "title": label}, *tips]
    return _spec("rates", height=200, transform=transform, mark={"type": "rect"}, encoding=encoding)


def _codecs() -> Spec:
    words, tips = _tips(
        "codecs",
        ("codec", "stored", "raw", "batches", "saved"),
        stored=("Stored", BYTES),
        raw=("Uncompressed", BYTES),
        saved=("Saved", SHARE),
    )
    y = {
        "field": "label",
        "type": "nominal",
        "title": None,
        "sort": {"field": "raw", "op": "max", "order": "descending"},
    }
    return _spec(
        "codecs",
        height={"step": 34},
        transform=[
            {"calculate": "isValid(datum.rawBytes) ? datum.rawBytes : datum.bytes", "as": "known"},
            {
                "aggregate": [
                    {"op": "sum", "field": "bytes", "as": "stored"},
                    {"op": "sum", "field": "known", "as": "raw"},
                    {"op": "sum", "field": "batches", "as": "batches"},
                ],
                "groupby": ["codec"],
            },
            {"calculate": "datum.raw > 0 ? 1 - datum.stored / datum.raw : 0", "as": "saved"},
            *words,
            {"calculate": "datum.codec + (datum.saved > 0 ? ': saves ' + datum.saved_words : '')", "as": "label"},
        ],
        layer=[
            {
                "mark": {"type": "bar", "height": 22, "style": "quiet"},
                "encoding": {
                    "y": y,
                    "x": _bytes("raw", "Bytes: stored in front, uncompressed behind", "x"),
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "bar", "height": 12},
                "encoding": {"y": y, "x": {"field": "stored", "type": "quantitative"}, "tooltip": tips},
            },
        ],
    )


def _ages() -> Spec:
    words, tips = _tips("topics", ("topic", "firstTime", "lastTime", "retentionMs"))
    return _spec(
        "topics",
        height={"step": 18},
        transform=[
            {"filter": "datum.firstTime >= 0 && datum.lastTime >= 0"},
            {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "firstTime"}]},
            {"filter": "datum.place <= 25"},
            *words,
        ],
        layer=[
            {
                "mark": {"type": "bar", "height": 6, "opacity": 0.5},
                "encoding": {"x": _when("firstTime"), "x2": {"field": "lastTime"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 36, "opacity": 1},
                "encoding": {"x": {"field": "lastTime", "type": "temporal", "scale": {"type": "utc"}}},
            },
        ],
        encoding={
            "y": {"field": "topic", "type": "nominal", "title": None, "sort": {"field": "firstTime", "op": "min"}},
            "tooltip": tips,
        },
    )


def _kinds() -> Spec:
    words, tips = _tips("kinds", ("kind", "files", "size", "allocated"))
    return _spec(
        "kinds",
        height={"step": 20},
        transform=words,
        mark={"type": "bar", "height": 12},
        encoding={
            "y": {"field": "kind", "type": "nominal", "title": None, "sort": {"field": "size", "order": "descending"}},
            "x": _bytes("size", "Size", "x"),
            "tooltip": tips,
        },
    )


def _skew(value: str, title: str) -> Spec:
    kind = {"size": BYTES}.get(value, COUNT)
    words, tips = _tips("partitions", ("partition", value, "share"), share=("Share of the topic", SHARE))
    y = _bytes(value, title, "y") if kind == BYTES else _number(value, title)
    return _spec(
        "partitions",
        height=150,
        transform=[
            {"joinaggregate": [{"op": "sum", "field": value, "as": "total"}]},
            {"calculate": f"datum.total > 0 ? datum['{value}'] / datum.total : 0", "as": "share"},
            *words,
        ],
        layer=[
            {
                "mark": {"type": "bar", "width": {"band": 0.85}},
                "encoding": {
                    "x": {
                        "field": "partition",
                        "type": "ordinal",
                        "title": "Partition",
                        "axis": {"labelAngle": 0, "labelOverlap": True, "ticks": False},
                    },
                    "y": y,
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "aria": False},
                "encoding": {"y": {"aggregate": "mean", "field": value, "type": "quantitative"}},
            },
        ],
    )


def _keys() -> Spec:
    words, tips = _tips("keys", ("key", "records", "bytes"))
    sums = [{"op": "sum", "field": name, "as": name} for name in ("records", "bytes")]
    return _spec(
        "keys",
        height={"step": 18},
        transform=[
            {"aggregate": sums, "groupby": ["key"]},
            {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "records", "order": "descending"}]},
            {"filter": "datum.place <= 25"},
            *words,
        ],
        mark={"type": "bar", "height": 11},
        encoding={
            "y": {"field": "key", "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}},
            "x": _number("records", "Records"),
            "tooltip": tips,
        },
    )


def _segments() -> Spec:
    words, tips = _tips(
        "segments",
        ("baseOffset", "endOffset", "size", "records", "batches", "codec", "minTimestamp", "maxTimestamp"),
    )
    first = "isValid(datum.minTimestamp) && datum.minTimestamp >= 0 ? datum.minTimestamp : datum.maxTimestamp"
    y = _offset("baseOffset")
    return _spec(
        "segments",
        height=260,
        transform=[
            {"filter": "datum.maxTimestamp >= 0"},
            {"calculate": first, "as": "begin"},
            {"calculate": "(datum.begin + datum.maxTimestamp) / 2", "as": "middle"},
            {"calculate": "(datum.baseOffset + datum.endOffset) / 2", "as": "centre"},
            *words,
        ],
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "aria": False},
                "encoding": {
                    "x": _when("begin"),
                    "x2": {"field": "maxTimestamp"},
                    "y": y,
                    "y2": {"field": "endOffset"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.75},
                "encoding": {
                    "x": _when("middle"),
                    "y": {"field": "centre", "type": "quantitative"},
                    "size": {
                        "field": "size",
                        "type": "quantitative",
                        "scale": {"range": [16, 500], "zero": True},
                        "legend": {
                            "title": "Size",
                            "labelExpr": _size("datum.value"),
                            "tickCount": 3,
                            "symbolFillColor": "transparent",
                        },
                    },
                    "color": _color("codec", "Codec"),
                    "shape": _color("codec", "Codec"),
                    "tooltip": tips,
                },
            },
        ],
    )


def _batch_sizes() -> Spec:
    words, tips = _tips("batches", ("codec", "fromBytes", "toBytes", "batches", "records", "bytes"))
    return _spec(
        "batches",
        height=180,
        transform=words,
        mark={"type": "bar", "width": {"band": 0.9}},
        encoding={
            "x": {
                "field": "fromBytes",
                "type": "ordinal",
                "title": "Size of a batch, from",
                "axis": {"labelExpr": _size("datum.value", ".4~g"), "labelAngle": 0, "labelOverlap": True},
            },
            "y": _number("batches", "Batches", stack="zero"),
            "color": _color("codec", "Codec"),
            "tooltip": tips,
        },
    )


def _batch_ratios() -> Spec:
    words, tips = _tips("batches", ("codec", "recordsPerBatch", "ratio", "fromBytes", "toBytes", "batches", "bytes"))
    return _spec(
        "batches",
        height=200,
        transform=[{"filter": "isValid(datum.ratio) && datum.recordsPerBatch > 0"}, *words],
        mark={"type": "point", "filled": True, "opacity": 0.8},
        encoding={
            "x": {
                "field": "recordsPerBatch",
                "type": "quantitative",
                "title": "Records a batch",
                "scale": {"type": "log", "nice": False, "padding": 12},
                "axis": {"format": "~s", "labelOverlap": True, "grid": False},
            },
            "y": _number("ratio", "Compression ratio"),
            "size": {"field": "bytes", "type": "quantitative", "legend": None, "scale": {"range": [40, 500]}},
            "color": _color("codec", "Codec"),
            "shape": _color("codec", "Codec"),
            "tooltip": tips,
        },
    )


def _gaps() -> Spec:
    words, tips = _tips("gaps", ("firstOffset", "lastOffset", "offsets", "why"))
    return _spec(
        "gaps",
        height={"step": 26},
        transform=[{"calculate": "datum.lastOffset + 1", "as": "end"}, *words],
        mark={"type": "bar", "height": 14, "minBandSize": 1, "strokeWidth": 0},
        encoding={
            "y": {"field": "why", "type": "nominal", "title": None},
            "x": _offset("firstOffset"),
            "x2": {"field": "end"},
            "color": {"field": "why", "type": "nominal", "legend": None},
            "tooltip": tips,
        },
    )


def _retention() -> Spec:
    words, tips = _tips(
        "segments",
        ("goesAtMs", "size", "sum", "baseOffset"),
        sum=("Deleted by then", BYTES),
    )
    y = _bytes("sum", "Bytes deleted", "y")
    return _spec(
        "segments",
        height=180,
        transform=[
            {"filter": "isValid(datum.goesAtMs) && datum.goesAtMs >= 0"},
            {
                "window": [{"op": "sum", "field": "size", "as": "sum"}],
                "sort": [{"field": "goesAtMs"}],
                "frame": [None, 0],
            },
            *words,
        ],
        layer=[
            {
                "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.3, "aria": False},
                "encoding": {"x": _when("goesAtMs"), "y": y},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 30},
                "encoding": {"x": _when("goesAtMs"), "y": y, "tooltip": tips},
            },
        ],
    )


def _compaction() -> Spec:
    parts = {
        "cleanBytes": "Compacted",
        "dirtyBytes": "Not yet compacted",
        "left": "Left after compaction",
        "gainBytes": "Gain",
    }
    words, tips = _tips("partitions", ("bytes",), bytes=("Bytes", BYTES))
    log = "datum.part == 'cleanBytes' || datum.part == 'dirtyBytes'"
    return _spec(
        "partitions",
        height={"step": 34},
        transform=[
            {
                "calculate": "isValid(datum.gainBytes) ? datum.cleanBytes + datum.dirtyBytes - datum.gainBytes : null",
                "as": "left",
            },
            {"fold": list(parts), "as": ["part", "bytes"]},
            {"filter": "isValid(datum.bytes)"},
            {"calculate": f"{log} ? 'The log now' : 'After compaction'", "as": "bar"},
            {
                "calculate": " : ".join(f"datum.part == '{key}' ? '{name}'" for key, name in parts.items()) + " : ''",
                "as": "partName",
            },
            {"calculate": f"indexof({list(parts)}, datum.part)", "as": "order"},
            *words,
        ],
        mark={"type": "bar", "height": 20},
        encoding={
            "y": {"field": "bar", "type": "nominal", "title": None, "sort": ["The log now", "After compaction"]},
            "x": _bytes("bytes", None, "x", stack="zero"),
            "order": {"field": "order"},
            "color": _color("partName", scale={"domain": list(parts.values())}),
            "tooltip": [{"field": "partName", "type": "nominal", "title": "Part"}, *tips],
        },
    )


def _transactions(over: str) -> Spec:
    """Returns one bar for each transaction, at most 30; `over` is "offsets" or "times".

    A thin bar follows that of an open transaction: what it holds back, or the time until now.
    """
    words, tips = _tips(
        "transactions",
        (
            "topic",
            "partition",
            "state",
            "transactionalId",
            "producerId",
            "producerEpoch",
            "firstOffset",
            "lastOffset",
            "startTimestamp",
            "lastTimestamp",
            "records",
            "ageMs",
            "heldRecords",
        ),
    )
    first, last = ("firstOffset", "lastOffset") if over == "offsets" else ("startTimestamp", "lastTimestamp")
    more = "heldRecords" if over == "offsets" else "ageMs"
    x = _offset(first) if over == "offsets" else _when(first)
    label = "(isValid(datum.transactionalId) ? datum.transactionalId : 'producer ' + datum.producerId)"
    return _spec(
        "transactions",
        height={"step": 18},
        transform=[
            {"filter": f"datum['{first}'] >= 0"},
            {"calculate": f"max(datum['{first}'], isValid(datum['{last}']) ? datum['{last}'] : -1)", "as": "until"},
            {
                "calculate": f"max(datum.until, isValid(datum.{more}) ? datum.{first} + datum.{more} : -1)",
                "as": "holds",
            },
            {"calculate": "datum.state == 'hanging' ? 0 : datum.state == 'open' ? 1 : 2", "as": "rank"},
            {
                "window": [{"op": "row_number", "as": "place"}],
                "sort": [
                    {"field": "rank"},
                    {"field": "startTimestamp", "order": "descending"},
                    {"field": "firstOffset"},
                ],
            },
            {"filter": "datum.place <= 30"},
            {
                "calculate": f"{label} + '  ' + datum.topic + '-' + datum.partition + '@' + datum.firstOffset",
                "as": "label",
            },
            *words,
        ],
        layer=[
            {"mark": {"type": "bar", "height": 3, "opacity": 0.55}, "encoding": {"x2": {"field": "holds"}}},
            {"mark": {"type": "bar", "height": 9}, "encoding": {"x2": {"field": "until"}}},
            {
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 1},
                "encoding": {"shape": _color("state", "State", scale={"domain": _STATES})},
            },
        ],
        encoding={
            "y": {
                "field": "label",
                "type": "nominal",
                "title": None,
                "sort": {"field": "place", "op": "min"},
                "axis": {"labelLimit": 165},
            },
            "x": x,
            "color": _color("state", "State", scale={"domain": _STATES}),
            "tooltip": tips,
        },
    )


def _lag() -> Spec:
    words, tips = _tips("groups", ("group", "topic", "partition", "offset", "end", "lag", "state", "commitTimestamp"))
    return _spec(
        "groups",
        height={"step": 18},
        transform=[
            {"filter": "isValid(datum.lag)"},
            {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "lag", "order": "descending"}]},
            {"filter": "datum.place <= 40"},
            {"calculate": "datum.group + '  ' + datum.topic + '-' + datum.partition", "as": "label"},
            *words,
        ],
        mark={"type": "bar", "height": 11},
        encoding={
            "y": {
                "field": "label",
                "type": "nominal",
                "title": None,
                "sort": {"field": "place", "op": "min"},
                "axis": {"labelLimit": 165},
            },
            "x": _number("lag", "Lag in records"),
            "tooltip": tips,
        },
    )


def _lag_over_time() -> Spec:
    words, tips = _tips("lags", ("group", "topic", "partition", "time", "offset", "end", "lag"))
    return _spec(
        "lags",
        height=240,
        transform=[
            {"filter": "isValid(datum.lag) && datum.time >= 0"},
            {"calculate": "datum.group + '  ' + datum.topic + '-' + datum.partition", "as": "label"},
            {"joinaggregate": [{"op": "max", "field": "lag", "as": "most"}], "groupby": ["label"]},
            {
                "window": [{"op": "dense_rank", "as": "place"}],
                "sort": [{"field": "most", "order": "descending"}, {"field": "label"}],
            },
            {"filter": f"datum.place <= {LINES_MAX}"},
            *words,
        ],
        mark={"type": "line", "point": {"size": 26}, "interpolate": "step-after"},
        encoding={
            "x": _when("time"),
            "y": _number("lag", "Lag in records"),
            "color": _color("label", None),
            "strokeDash": _color("label", None),
            "tooltip": tips,
        },
    )


def _damage() -> Spec:
    words, tips = _tips("damage", ("way", "state", "fromByte", "toByte", "bytes", "records"))
    y = {"field": "way", "type": "nominal", "title": None, "sort": ["now", "recovery", "salvage"]}
    return _spec(
        "damage",
        height={"step": 36},
        transform=[
            {"calculate": "(datum.fromByte + datum.toByte) / 2", "as": "middle"},
            {"calculate": "datum.bytes / max(1, datum.size) > 0.08 ? datum.state : ''", "as": "label"},
            *words,
        ],
        layer=[
            {
                "mark": {"type": "bar", "height": 24, "strokeWidth": 1, "fillOpacity": 0.45},
                "encoding": {
                    "y": y,
                    "x": {**_bytes("fromByte", "Position in the file", "x"), "stack": None},
                    "x2": {"field": "toByte"},
                    "color": _color("state", None, _FATES_TOLD, scale={"domain": _FATES}),
                    "stroke": _color("state", None, _FATES_TOLD, scale={"domain": _FATES}),
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "text", "aria": False, "fontWeight": 600},
                "encoding": {"y": y, "x": {"field": "middle", "type": "quantitative"}, "text": {"field": "label"}},
            },
        ],
    )


_ALL = (
    Picture(
        "topics",
        "overview",
        "Bytes by topic",
        "The area of a topic is the size of its logs. A click opens it. Topics too small to see are not drawn.",
        "topics",
        _treemap(),
        ("x",),
    ),
    Picture(
        "disks",
        "overview",
        "Disks",
        "What these logs use, what other files use, and what is free.",
        "disks",
        _disks(),
        ("diskBytes",),
    ),
    Picture("kinds", "overview", "Kinds of files", "The size of all files of a kind.", "kinds", _kinds()),
    Picture(
        "rateBytes",
        "overview",
        "Bytes an hour",
        "What was written when, by the largest topics.",
        "rates",
        _rates("bytesPerHour", "topic"),
        ("bytesPerHour",),
    ),
    Picture(
        "rateRecords",
        "overview",
        "Records an hour",
        "What was written when, by the largest topics.",
        "rates",
        _rates("recordsPerHour", "topic"),
        ("recordsPerHour",),
    ),
    Picture(
        "codecs",
        "overview",
        "What codecs save",
        "Bytes as they are stored, in front of their uncompressed size.",
        "codecs",
        _codecs(),
        ("bytes",),
    ),
    Picture(
        "ages",
        "overview",
        "From the oldest to the newest record",
        "The 25 topics whose records are oldest. A dot is the newest record.",
        "topics",
        _ages(),
        ("firstTime",),
    ),
    Picture(
        "skewBytes",
        "topic",
        "Bytes by partition",
        "The dashed line is the mean. A click opens a partition.",
        "partitions",
        _skew("size", "Size"),
    ),
    Picture(
        "skewRecords",
        "topic",
        "Offsets by partition",
        "The dashed line is the mean.",
        "partitions",
        _skew("records", "Offsets"),
        ("records",),
    ),
    Picture(
        "topicRateBytes",
        "topic",
        "Bytes an hour",
        "What was written when, by the largest partitions.",
        "rates",
        _rates("bytesPerHour", "partition"),
        ("bytesPerHour",),
    ),
    Picture(
        "topicRateRecords",
        "topic",
        "Records an hour",
        "What was written when, by the largest partitions.",
        "rates",
        _rates("recordsPerHour", "partition"),
        ("recordsPerHour",),
    ),
    Picture(
        "keys",
        "topic",
        "Keys with the most records",
        "The 25 keys with the most records, over all partitions.",
        "keys",
        _keys(),
    ),
    Picture(
        "segments",
        "partition",
        "Segments",
        "A segment lies between its first and last time and offset. The area of a mark is the segment's size, its "
        "shape and colour are the codec.",
        "segments",
        _segments(),
        ("maxTimestamp",),
    ),
    Picture(
        "partitionRateBytes",
        "partition",
        "Bytes an hour",
        "What was written when.",
        "rates",
        _rates("bytesPerHour", ""),
        ("bytesPerHour",),
    ),
    Picture(
        "partitionRateRecords",
        "partition",
        "Records an hour",
        "What was written when.",
        "rates",
        _rates("recordsPerHour", ""),
        ("recordsPerHour",),
    ),
    Picture(
        "batchSizes",
        "partition",
        "Sizes of batches",
        "How many batches have about this size.",
        "batches",
        _batch_sizes(),
        ("batches",),
    ),
    Picture(
        "batchRatios",
        "partition",
        "Compression by records a batch",
        "Larger batches mostly compress better. The area of a mark is the bytes of its batches.",
        "batches",
        _batch_ratios(),
        ("ratio", "recordsPerBatch"),
    ),
    Picture("gaps", "partition", "Gaps", "Ranges of offsets that the log no longer has.", "gaps", _gaps()),
    Picture(
        "retention",
        "partition",
        "What retention will delete",
        "The bytes that are deleted by a time, summed up.",
        "segments",
        _retention(),
        ("goesAtMs",),
    ),
    Picture(
        "compaction",
        "partition",
        "What compaction would gain",
        "The log's compacted and new part, and what a compaction would leave.",
        "partitions",
        _compaction(),
        ("cleanBytes",),
    ),
    Picture(
        "transactions",
        "transactions",
        "Transactions over offsets",
        "At most 30 transactions, open and hanging ones first. A thin bar is what such a one holds back.",
        "transactions",
        _transactions("offsets"),
    ),
    Picture(
        "transactionTimes",
        "transactions",
        "Transactions over time",
        "At most 30 transactions, open and hanging ones first. A thin bar is how long such a one is open.",
        "transactions",
        _transactions("times"),
        ("startTimestamp",),
    ),
    Picture("lag", "groups", "Lag by partition", "The 40 partitions with the largest lag.", "groups", _lag(), ("lag",)),
    Picture(
        "lagOverTime",
        "groups",
        "Lag over time",
        "The lag that each commit left, for the eight largest.",
        "lags",
        _lag_over_time(),
        ("lag",),
    ),
    Picture(
        "damage",
        "damage",
        "Map of the file",
        "The file's bytes: as they are now, after a recovery, and what a salvage saves.",
        "damage",
        _damage(),
    ),
)

PICTURES: Mapping[str, Picture] = {picture.name: picture for picture in _ALL}
