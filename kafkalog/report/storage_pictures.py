"""The specifications of pictures of what is stored: bytes, times, codecs, segments, batches, keys, retention."""

from __future__ import annotations

from typing import Any

from kafkalog.report import vega
from kafkalog.report.tables import BYTES, COUNT, RATIO, SHARE
from kafkalog.report.vega import Spec

SERIES_MAX = 6  # a stacked picture shows the others as one series, in grey
_USED = ["#2f8ac4", "#8a8f98", "#8a8f9840"]  # seen on light and on dark


def treemap() -> Spec:
    words, tips = vega.tips("topics", ("topic", "size", "partitions", "segments", "records", "cleanupPolicy"))
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

    return vega.spec(
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
                    "fill": vega.colored("cleanupPolicy", "cleanup.policy"),
                    "tooltip": tips,
                },
            },
            label("topic", 5, 18, fontWeight=600),
            label("size_words", 20, 34, style="soft-text"),
        ],
    )


def disks() -> Spec:
    parts = {"logs": "These logs", "others": "Other files", "freeBytes": "Free"}
    words, tips = vega.tips("disks", ("logDir", "bytes"), bytes=("Bytes", BYTES))
    return vega.spec(
        "disks",
        height={"step": 34},
        transform=[
            {"calculate": "min(datum.allocated, datum.diskBytes - datum.freeBytes)", "as": "logs"},
            {"calculate": "max(0, datum.diskBytes - datum.freeBytes - datum.logs)", "as": "others"},
            *vega.folded(parts),
            *words,
        ],
        mark={"type": "bar", "height": 20},
        encoding={
            "y": {"field": "logDir", "type": "nominal", "title": None},
            "x": vega.of_bytes("bytes", None, "x", stack="zero"),
            "order": {"field": "order"},
            "color": vega.colored("partName", scale={"domain": list(parts.values()), "range": _USED}),
            "tooltip": [{"field": "partName", "type": "nominal", "title": "Part"}, *tips],
        },
    )


def rates(value: str, series: str) -> Spec:
    """Returns stacked rectangles from `fromTime` to `toTime`, one colour for each of the largest series."""
    kind = BYTES if value == "bytesPerHour" else RATIO
    title = "Bytes an hour" if kind == BYTES else "Records an hour"
    by = series or "topic"
    label = {"topic": "Topic", "partition": "Partition", "": ""}[series]
    words, tips = vega.tips(
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
    axis = vega.of_bytes("y0", title, "y") if kind == BYTES else vega.of_numbers("y0", title)
    encoding: Spec = {
        "x": vega.of_times("fromTime"),
        "x2": {"field": "seenTo"},
        "y": axis,
        "y2": {"field": "y1"},
        "tooltip": tips,
    }
    if series:
        encoding["color"] = vega.colored("series", None, sort={"field": "place", "op": "min"})
        encoding["tooltip"] = [{"field": "series", "type": "nominal", "title": label}, *tips]
    return vega.spec("rates", height=200, transform=transform, mark={"type": "rect"}, encoding=encoding)


def codecs() -> Spec:
    words, tips = vega.tips(
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
    return vega.spec(
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
                    "x": vega.of_bytes("raw", "Bytes: stored in front, uncompressed behind", "x"),
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "bar", "height": 12},
                "encoding": {"y": y, "x": {"field": "stored", "type": "quantitative"}, "tooltip": tips},
            },
        ],
    )


def ages() -> Spec:
    words, tips = vega.tips("topics", ("topic", "firstTime", "lastTime", "retentionMs"))
    return vega.spec(
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
                "encoding": {"x": vega.of_times("firstTime"), "x2": {"field": "lastTime"}},
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


def kinds() -> Spec:
    words, tips = vega.tips("kinds", ("kind", "files", "size", "allocated"))
    return vega.spec(
        "kinds",
        height={"step": 20},
        transform=words,
        mark={"type": "bar", "height": 12},
        encoding={
            "y": {"field": "kind", "type": "nominal", "title": None, "sort": {"field": "size", "order": "descending"}},
            "x": vega.of_bytes("size", "Size", "x"),
            "tooltip": tips,
        },
    )


def skew(value: str, title: str) -> Spec:
    kind = {"size": BYTES}.get(value, COUNT)
    words, tips = vega.tips("partitions", ("partition", value, "share"), share=("Share of the topic", SHARE))
    y = vega.of_bytes(value, title, "y") if kind == BYTES else vega.of_numbers(value, title)
    return vega.spec(
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


def keys() -> Spec:
    words, tips = vega.tips("keys", ("key", "records", "bytes"))
    sums = [{"op": "sum", "field": name, "as": name} for name in ("records", "bytes")]
    return vega.spec(
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
            "y": vega.ranked("key"),
            "x": vega.of_numbers("records", "Records"),
            "tooltip": tips,
        },
    )


def segments() -> Spec:
    words, tips = vega.tips(
        "segments",
        ("baseOffset", "endOffset", "size", "records", "batches", "codec", "minTimestamp", "maxTimestamp"),
    )
    first = "isValid(datum.minTimestamp) && datum.minTimestamp >= 0 ? datum.minTimestamp : datum.maxTimestamp"
    y = vega.of_offsets("baseOffset")
    return vega.spec(
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
                    "x": vega.of_times("begin"),
                    "x2": {"field": "maxTimestamp"},
                    "y": y,
                    "y2": {"field": "endOffset"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.75},
                "encoding": {
                    "x": vega.of_times("middle"),
                    "y": {"field": "centre", "type": "quantitative"},
                    "size": {
                        "field": "size",
                        "type": "quantitative",
                        "scale": {"range": [16, 500], "zero": True},
                        "legend": {
                            "title": "Size",
                            "labelExpr": vega.size_words("datum.value"),
                            "tickCount": 3,
                            "symbolFillColor": "transparent",
                        },
                    },
                    "color": vega.colored("codec", "Codec"),
                    "shape": vega.colored("codec", "Codec"),
                    "tooltip": tips,
                },
            },
        ],
    )


def batch_sizes() -> Spec:
    words, tips = vega.tips("batches", ("codec", "fromBytes", "toBytes", "batches", "records", "bytes"))
    return vega.spec(
        "batches",
        height=180,
        transform=words,
        mark={"type": "bar", "width": {"band": 0.9}},
        encoding={
            "x": {
                "field": "fromBytes",
                "type": "ordinal",
                "title": "Size of a batch, from",
                "axis": {"labelExpr": vega.size_words("datum.value", ".4~g"), "labelAngle": 0, "labelOverlap": True},
            },
            "y": vega.of_numbers("batches", "Batches", stack="zero"),
            "color": vega.colored("codec", "Codec"),
            "tooltip": tips,
        },
    )


def batch_ratios() -> Spec:
    words, tips = vega.tips(
        "batches", ("codec", "recordsPerBatch", "ratio", "fromBytes", "toBytes", "batches", "bytes")
    )
    return vega.spec(
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
            "y": vega.of_numbers("ratio", "Compression ratio"),
            "size": {"field": "bytes", "type": "quantitative", "legend": None, "scale": {"range": [40, 500]}},
            "color": vega.colored("codec", "Codec"),
            "shape": vega.colored("codec", "Codec"),
            "tooltip": tips,
        },
    )


def gaps() -> Spec:
    words, tips = vega.tips("gaps", ("firstOffset", "lastOffset", "offsets", "why"))
    return vega.spec(
        "gaps",
        height={"step": 26},
        transform=[{"calculate": "datum.lastOffset + 1", "as": "end"}, *words],
        mark={"type": "bar", "height": 14, "minBandSize": 1, "strokeWidth": 0},
        encoding={
            "y": {"field": "why", "type": "nominal", "title": None},
            "x": vega.of_offsets("firstOffset"),
            "x2": {"field": "end"},
            "color": {"field": "why", "type": "nominal", "legend": None},
            "tooltip": tips,
        },
    )


def retention() -> Spec:
    words, tips = vega.tips(
        "segments",
        ("goesAtMs", "size", "sum", "baseOffset"),
        sum=("Deleted by then", BYTES),
    )
    y = vega.of_bytes("sum", "Bytes deleted", "y")
    return vega.spec(
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
                "encoding": {"x": vega.of_times("goesAtMs"), "y": y},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 30},
                "encoding": {"x": vega.of_times("goesAtMs"), "y": y, "tooltip": tips},
            },
        ],
    )


def compaction() -> Spec:
    parts = {
        "cleanBytes": "Compacted",
        "dirtyBytes": "Not yet compacted",
        "left": "Left after compaction",
        "gainBytes": "Gain",
    }
    words, tips = vega.tips("partitions", ("bytes",), bytes=("Bytes", BYTES))
    log = "datum.part == 'cleanBytes' || datum.part == 'dirtyBytes'"
    return vega.spec(
        "partitions",
        height={"step": 34},
        transform=[
            {
                "calculate": "isValid(datum.gainBytes) ? datum.cleanBytes + datum.dirtyBytes - datum.gainBytes : null",
                "as": "left",
            },
            *vega.folded(parts),
            {"filter": "isValid(datum.bytes)"},
            {"calculate": f"{log} ? 'The log now' : 'After compaction'", "as": "bar"},
            *words,
        ],
        mark={"type": "bar", "height": 20},
        encoding={
            "y": {"field": "bar", "type": "nominal", "title": None, "sort": ["The log now", "After compaction"]},
            "x": vega.of_bytes("bytes", None, "x", stack="zero"),
            "order": {"field": "order"},
            "color": vega.colored("partName", scale={"domain": list(parts.values())}),
            "tooltip": [{"field": "partName", "type": "nominal", "title": "Part"}, *tips],
        },
    )
