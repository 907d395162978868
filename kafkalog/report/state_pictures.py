"""The specifications of pictures of states: transactions, the lag of groups, and damage."""

from __future__ import annotations

from kafkalog.report import vega
from kafkalog.report.vega import Spec

LINES_MAX = 8
# In the order of the colours: blue, orange, green, vermilion, purple, sky.
_STATES = ["committed", "open", "aborted", "hanging"]
_FATES = ["saved", "cut", "good", "damaged", "lost", "kept"]
_FATES_TOLD = ["good", "damaged", "kept", "cut", "saved", "lost"]
_OF_GROUP = {"calculate": "datum.group + '  ' + datum.topic + '-' + datum.partition", "as": "label"}


def transactions(over: str) -> Spec:
    """Returns one bar for each transaction, at most 30; `over` is "offsets" or "times".

    A thin bar follows that of an open transaction: what it holds back, or the time until now.
    """
    words, tips = vega.tips(
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
    x = vega.of_offsets(first) if over == "offsets" else vega.of_times(first)
    label = "(isValid(datum.transactionalId) ? datum.transactionalId : 'producer ' + datum.producerId)"
    return vega.spec(
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
                "encoding": {"shape": vega.colored("state", "State", scale={"domain": _STATES})},
            },
        ],
        encoding={
            "y": vega.ranked("label", axis={"labelLimit": 165}),
            "x": x,
            "color": vega.colored("state", "State", scale={"domain": _STATES}),
            "tooltip": tips,
        },
    )


def lag() -> Spec:
    words, tips = vega.tips(
        "groups", ("group", "topic", "partition", "offset", "end", "lag", "state", "commitTimestamp")
    )
    return vega.spec(
        "groups",
        height={"step": 18},
        transform=[
            {"filter": "isValid(datum.lag)"},
            {"window": [{"op": "row_number", "as": "place"}], "sort": [{"field": "lag", "order": "descending"}]},
            {"filter": "datum.place <= 40"},
            _OF_GROUP,
            *words,
        ],
        mark={"type": "bar", "height": 11},
        encoding={
            "y": vega.ranked("label", axis={"labelLimit": 165}),
            "x": vega.of_numbers("lag", "Lag in records"),
            "tooltip": tips,
        },
    )


def lag_over_time() -> Spec:
    words, tips = vega.tips("lags", ("group", "topic", "partition", "time", "offset", "end", "lag"))
    return vega.spec(
        "lags",
        height=240,
        transform=[
            {"filter": "isValid(datum.lag) && datum.time >= 0"},
            _OF_GROUP,
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
            "x": vega.of_times("time"),
            "y": vega.of_numbers("lag", "Lag in records"),
            "color": vega.colored("label", None),
            "strokeDash": vega.colored("label", None),
            "tooltip": tips,
        },
    )


def damage() -> Spec:
    words, tips = vega.tips("damage", ("way", "state", "fromByte", "toByte", "bytes", "records"))
    y = {"field": "way", "type": "nominal", "title": None, "sort": ["now", "recovery", "salvage"]}
    return vega.spec(
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
                    "x": {**vega.of_bytes("fromByte", "Position in the file", "x"), "stack": None},
                    "x2": {"field": "toByte"},
                    "color": vega.colored("state", None, _FATES_TOLD, scale={"domain": _FATES}),
                    "stroke": vega.colored("state", None, _FATES_TOLD, scale={"domain": _FATES}),
                    "tooltip": tips,
                },
            },
            {
                "mark": {"type": "text", "aria": False, "fontWeight": 600},
                "encoding": {"y": y, "x": {"field": "middle", "type": "quantitative"}, "text": {"field": "label"}},
            },
        ],
    )
