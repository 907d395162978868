"""Pictures of kept results as SVG, for `bench.page`: rows as points with their spread, and curves as lines.

Altair describes a picture and vl-convert draws it, without a browser. The text is then made the same on each machine:
numbers are rounded, and names of clip paths are counted from zero. Colours follow the reader's theme by a media query,
as in the other pictures of the documentation. A picture has a title and a description for screen readers, and sides
differ in shape as well as in colour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from statistics import median
from typing import Any

import altair as alt
import vl_convert

from bench.kept import HIGHER, KAFKA, KAFKALOG, LOWER, RECORDS_PER_S, Comparison, Curve, shown

FONT = "Liberation Sans"  # part of vl-convert, so that words have the same width on each machine
SHOWN_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # the first three have the same widths
# Each colour on light pages, and on dark ones.
TEXT, LINES, LIMIT = ("#1f2430", "#e6e9f0"), ("#d8dce5", "#3a4150"), ("#5b6472", "#a7b0c0")
OURS, THEIRS = ("#4c5fc4", "#8c9cf0"), ("#b86e14", "#e0a456")
PEERS = (
    ("#2f8552", "#5fb880"), ("#9a3f8f", "#d58acb"), ("#0f7f8c", "#4fc3d0"), ("#b03a3a", "#ec8a8a"),
    ("#75690f", "#cdbf55"),
)  # fmt: skip
SHAPES = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross", "triangle-right")
VERSIONS = f"altair {version('altair')}, vl-convert {version('vl-convert-python')}"
WIDTH, LABELS, ROW = 420, 290, 20
MACHINE = "limit of the machine"
_SUFFIXES = {RECORDS_PER_S: "/s"}


def sides_of(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Returns the colours of sides in their order: kafkalog, Kafka, and then the others."""
    found: dict[str, tuple[str, str]] = {}
    others = 0
    for name in dict.fromkeys(names):
        if name == KAFKALOG or (name.startswith(KAFKALOG) and KAFKALOG not in names and OURS not in found.values()):
            found[name] = OURS
        elif name == KAFKA:
            found[name] = THEIRS
        else:
            found[name] = PEERS[others % len(PEERS)]
            others += 1
    return found


def rows_picture(title: str, rows: Sequence[Comparison]) -> str:
    """Draws rows relative to the side that they are compared with: its median is 1, and more is faster or smaller."""
    points: list[dict[str, Any]] = []
    for row in rows:
        of = row.reference or row.any
        for side, measured in row.sides.items():
            times = [_times(value, of.middle, measured.better) for value in measured.values]
            points.append({
                "row": row.name, "side": side, "least": min(times), "most": max(times), "middle": median(times),
            })  # fmt: skip
        limit = row.limit()
        if limit is not None:
            at = _times(limit[1], of.middle, of.better)
            points.append({"row": row.name, "side": MACHINE, "least": at, "most": at, "middle": at})
    names = [row.name for row in rows]
    colours = sides_of([point["side"] for point in points if point["side"] != MACHINE])
    with_limit = any(point["side"] == MACHINE for point in points)
    domain, shades, shapes = list(colours), [light for light, _ in colours.values()], list(SHAPES * 3)[: len(colours)]
    if with_limit:
        domain, shades, shapes = [*domain, MACHINE], [*shades, LIMIT[0]], [*shapes, "stroke"]
    title_of_x = "times the side compared with, logarithmic: more is better"
    y = alt.Y("row:N", sort=names, title=None, axis=alt.Axis(labelLimit=LABELS, minExtent=LABELS, maxExtent=LABELS))
    colour = alt.Color("side:N", scale=alt.Scale(domain=domain, range=shades), legend=_legend())
    shape = alt.Shape("side:N", scale=alt.Scale(domain=domain, range=shapes), legend=_legend())
    x_axis = alt.Axis(labelExpr="datum.label ? datum.label + 'x' : ''", tickCount=6)
    x = alt.X("middle:Q", title=title_of_x, scale=alt.Scale(type="log", nice=False, padding=12), axis=x_axis)
    of_sides = "datum.side != '" + MACHINE + "'"
    base = alt.Chart(alt.InlineData(points))
    spread = base.transform_filter(of_sides).mark_rule(strokeWidth=2.5, opacity=0.7)
    dots = base.transform_filter(of_sides).mark_point(filled=True, size=60, opacity=1)
    ticks = base.transform_filter("!(" + of_sides + ")").mark_tick(thickness=2.5, size=ROW - 3, orient="vertical")
    one = (
        alt.Chart(alt.InlineData([{"one": 1}])).mark_rule(strokeDash=[2, 2]).encode(x="one:Q", color=alt.value(TEXT[0]))
    )
    layers = [
        one,
        spread.encode(y=y, x=alt.X("least:Q", title=title_of_x), x2="most:Q", color=colour),
        dots.encode(y=y, x=x, color=colour, shape=shape),
    ]
    if with_limit:
        layers.insert(1, ticks.encode(y=y, x=alt.X("middle:Q", title=title_of_x), color=colour))
    chart = alt.layer(*layers).properties(width=WIDTH, height=ROW * len(names))
    about = f"{len(names)} rows, each with a point and a line from the least to the most of its repeated windows."
    return drawn(chart, title, f"{about} The table below the picture has the figures.", list(colours.values()))


def _times(value: float, of: float, better: str) -> float:
    """Returns how much better a figure is: 2 for twice the rate or half the time."""
    value, of = max(value, 1e-12), max(of, 1e-12)
    return value / of if better == HIGHER else of / value


def curves_picture(title: str, curves: Sequence[Curve], limits: Mapping[str, tuple[str, float]]) -> str:
    """Draws the curves of a group, a panel for each name; both axes are logarithmic. `limits` has the name and the
    figure of the machine's limit for a panel, which is a dashed line."""
    colours = sides_of([curve.side for curve in curves])
    panels = []
    names = list(dict.fromkeys(curve.name for curve in curves))
    for name in names:
        panels.append(_panel([curve for curve in curves if curve.name == name], limits.get(name), colours))
    about = f"{len(names)} panels, each with a line of points for each side. The table below has the figures."
    return drawn(alt.concat(*panels, columns=2), title, about, list(colours.values()))


def _panel(curves: Sequence[Curve], limit: tuple[str, float] | None, colours: Mapping[str, tuple[str, str]]) -> Any:
    points: list[dict[str, Any]] = [
        {"x": at, "y": middle, "least": min([middle, *spread]), "most": max([middle, *spread]), "side": curve.side}
        for curve in curves
        for at, middle, *spread in curve.points
        if at > 0 and middle > 0
    ]
    first, marks = curves[0], sorted({point["x"] for point in points})
    labels = f"datum.label ? format(datum.value, '~s') + '{_SUFFIXES.get(first.unit, first.unit)}' : ''"
    x_axis = alt.Axis(values=marks, labelExpr="format(datum.value, ',')", labelAngle=0, labelOverlap=True)
    x = alt.X("x:Q", title=first.x, scale=alt.Scale(type="log", nice=False, padding=6), axis=x_axis)
    y_axis = alt.Axis(labelExpr=labels, tickCount=5, minExtent=62, maxExtent=62)
    y_scale = alt.Scale(type="log", nice=False, padding=10)
    shades = alt.Scale(domain=list(colours), range=[light for light, _ in colours.values()])
    shapes = alt.Scale(domain=list(colours), range=list(SHAPES * 3)[: len(colours)])
    of_side = alt.Color("side:N", scale=shades, legend=_legend())
    y = alt.Y("y:Q", title=None, scale=y_scale, axis=y_axis)
    base = alt.Chart(alt.InlineData(points))
    layers = [
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=of_side),
        base.mark_rule(strokeWidth=2.5, opacity=0.6).encode(
            x=x, y=alt.Y("least:Q", title=None, scale=y_scale, axis=y_axis), y2="most:Q", color=of_side
        ),
        base.mark_point(filled=True, size=55, opacity=1).encode(
            x=x, y=y, color=of_side, shape=alt.Shape("side:N", scale=shapes, legend=_legend())
        ),
    ]
    words = "less is better" if first.better == LOWER else "more is better"
    if limit is not None:
        words = f"{words}; dashed: {limit[0]}, {shown(limit[1], first.unit)}"
        line = alt.Chart(alt.InlineData([{"limit": limit[1]}])).mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        layers.append(
            line.encode(y=alt.Y("limit:Q", title=None, scale=y_scale, axis=y_axis), color=alt.value(LIMIT[0]))
        )
    return alt.layer(*layers, title=alt.Title(first.name, subtitle=words)).properties(width=280, height=200)


def _legend() -> alt.Legend:
    return alt.Legend(title=None, orient="top", columns=3, labelLimit=220, columnPadding=24, symbolOpacity=1)


# --- the text of the picture -------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_CLIP = re.compile(r"\bclip\d+\b")
_SPOKEN = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')


def drawn(chart: Any, title: str, about: str, colours: Sequence[tuple[str, str]]) -> str:
    """Returns the text of the SVG file."""
    text, lines = TEXT[0], LINES[0]
    chart = (
        chart.configure(font=FONT, background="transparent", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=text, titleColor=text, gridColor=lines, domainColor=lines, tickColor=lines, labelFontSize=12,
            titleFontSize=12, titleFontWeight="normal",
        )
        .configure_legend(labelColor=text, labelFontSize=12)
        .configure_title(color=text, subtitleColor=text, fontSize=13, subtitleFontSize=12, anchor="start")
    )  # fmt: skip
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), allowed_base_urls=[])
    svg = _SPOKEN.sub("", _NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), svg))
    clips: dict[str, str] = {}
    svg = _CLIP.sub(lambda found: clips.setdefault(found[0], f"clip{len(clips)}"), svg)
    svg = re.sub(r'font-family="[^"]*"', f'font-family="{SHOWN_FONT}"', svg)
    rules = " ".join(
        f'[fill="{light}"] {{ fill: {dark}; }} [stroke="{light}"] {{ stroke: {dark}; }}'
        for light, dark in (TEXT, LINES, LIMIT, *colours)
    )
    head, body = svg.split(">", 1)
    head = head.replace("<svg", '<svg role="img"', 1).replace(' class="marks"', "")
    words = f"<title>{escape(title)}</title>\n<desc>{escape(about)}</desc>\n"
    style = f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>\n"
    drawn_by = f"<!-- {VERSIONS} -->\n"
    return f"{head}>\n{drawn_by}{words}{style}{body}\n".replace("><g", ">\n<g")


def version_of(svg: str) -> str | None:
    """Returns the versions that drew a picture: other ones may place its parts differently."""
    found = re.search(r"<!-- (altair .*) -->", svg)
    return found[1] if found else None
