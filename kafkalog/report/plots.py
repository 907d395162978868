"""The report's pictures as altair charts, for notebooks: `plot()` of a store, a topic and a partition.

A chart contains the rows that it shows, of the columns that it uses, so it outlives the log.  A table of more than
`ROWS_MAX` rows is thinned out evenly, and the title says so: a notebook file keeps the rows of each chart in it.  No
text of a record can end the script that has the rows.  Needs altair.  Knows the pictures by their pages and tables, and
no number of its own.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.report.pictures import PICTURES, Picture
from kafkalog.report.survey import survey
from kafkalog.report.tables import Table
from kafkalog.report.vega import config

ROWS_MAX = 5_000  # so many rows of a table are in a chart; altair refuses more
WIDTH = 600  # pixels of a picture that fills its page in a report
MORE_PAGES = ("transactions", "groups", "damage")  # their pictures are of whatever has rows in them
# Each picture of a chart has its own scales and legends.
CHANNELS = ("color", "fill", "stroke", "opacity", "shape", "size", "strokeDash", "strokeWidth")
# Readable on white and on black: a chart does not know the background of its notebook.
GREY = "#7a7a7a"
WORDS = {"labelColor": GREY, "titleColor": GREY}
COLORS: Mapping[str, Any] = {
    "axis": {**WORDS, "gridColor": f"{GREY}33", "domainColor": f"{GREY}88", "tickColor": f"{GREY}88"},
    "legend": WORDS,
    "title": {"color": GREY, "subtitleColor": GREY},
    "rule": {"color": GREY},
    "tick": {"color": GREY},
    "text": {"color": GREY},
    "rect": {"stroke": None},
    "bar": {"stroke": None},
    "style": {"soft-text": {"fill": GREY}},
}
NOTHING: Mapping[str, Any] = {  # instead of axes without a domain
    "data": {"sequence": {"start": 0, "stop": 1}},
    "mark": {"type": "text", "text": "nothing to show", "color": GREY},
}
EXPRESSIONS = frozenset({"calculate", "expr", "filter", "labelExpr", "signal", "test", "update"})


def plot(
    log_dirs: Sequence[str],
    name: str | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
    deep: bool = False,
    files: Files = OS_FILES,
) -> Any:
    """Returns an altair chart of log directories, or of one topic or partition in them.

    Args:
        log_dirs: The log directories.
        name: The name of one picture; by default all of the page that have rows.
        topic: The topic to show; by default all.
        partition: The partition of that topic to show; by default all.
        deep: Read every batch.
        files: The file system of the directories.

    Returns:
        An altair chart.

    Raises:
        IllegalArgumentException: No picture has that name.
        KafkaStorageException: A directory cannot be read.
    """
    page = "overview" if topic is None else "topic" if partition is None else "partition"
    known = {each.name: each for each in PICTURES.values() if each.page in (page, *MORE_PAGES)}
    if name is not None and name not in known:
        raise IllegalArgumentException(
            f"name: found {values.shown(name)}, expected one of {', '.join(known)}",
            hint="leave it out for all pictures",
        )
    wanted = () if topic is None else (topic,) if partition is None else (str(TopicPartition(topic, partition)),)
    found = survey(log_dirs, wanted, deep=deep, files=files)
    tables = {each: _Rows(found.tables[each], topic, partition) for each in found.tables}
    if name is None:
        pictures = [each for each in known.values() if tables[each.table].has(each.needs)]
        pictures = pictures or [each for each in known.values() if each.page == page]
    else:
        pictures = [known[name]]
    return _chart(pictures, tables)


class _Rows:
    """The rows of one table that belong to a topic or a partition."""

    def __init__(self, table: Table, topic: str | None, partition: int | None) -> None:
        self._columns = table.columns
        self._places: Sequence[int] = range(len(table))
        for column, wanted in (("topic", topic), ("partition", partition)):
            if wanted is not None and column in table.columns:
                held = table.columns[column]
                self._places = [place for place in self._places if held[place] == wanted]
        self.count = len(self._places)

    def has(self, needs: Sequence[str]) -> bool:
        """Returns whether a row has a value in each of these columns."""
        held = [self._columns[each] for each in needs]
        return any(all(column[place] is not None for column in held) for place in self._places)

    @property
    def is_thinned(self) -> bool:
        return self.count > ROWS_MAX

    def rows(self, used: str) -> list[dict[str, Any]]:
        """Returns at most ROWS_MAX rows, of the columns whose names are in the text `used`."""
        columns = {each: held for each, held in self._columns.items() if each in used}
        places = self._places
        if self.is_thinned:
            places = [places[number * self.count // ROWS_MAX] for number in range(ROWS_MAX)]
        return [{each: _harmless(held[place]) for each, held in columns.items()} for place in places]


def _harmless(value: Any) -> Any:
    """Returns a value of a row as a chart may have it.

    altair writes the rows into a script of the notebook's page, and does not escape a `</script>` in a key.
    """
    return value.replace("<", "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}") if isinstance(value, str) else value


def _chart(pictures: Sequence[Picture], tables: Mapping[str, _Rows]) -> Any:
    """Returns the pictures one below the other, as one chart with its rows."""
    views = [_view(each, tables) for each in pictures]
    names = sorted({name for view in views for name in _tables_of(view)})
    used = json.dumps(views)
    if len(views) == 1:
        spec = {**views[0], "config": _colors()}
    else:
        parts = [_part(view, f"picture{number}") for number, view in enumerate(views)]
        own = {"scale": dict.fromkeys(CHANNELS, "independent")}
        spec = {"vconcat": parts, "resolve": own, "config": _colors()}
    from kafkalog.report.charts import chart_of  # imports altair

    return chart_of({**spec, "datasets": {name: tables[name].rows(used) for name in names}})


def _colors() -> dict[str, Any]:
    """Returns the pictures' configuration with colours for any background."""
    found = config("light")
    for name, colors in COLORS.items():
        found[name] = {**found.get(name, {}), **colors}
    return found


def _view(picture: Picture, tables: Mapping[str, _Rows]) -> dict[str, Any]:
    """Returns a picture's specification as a part of a chart: with a title and a width, without settings of a page."""
    view = copy.deepcopy(dict(picture.spec))
    if not tables[picture.table].has(picture.needs):
        view = {"data": {"name": picture.table}, "layer": [NOTHING], "width": WIDTH, "height": 40}
    for setting in ("$schema", "config", "autosize", "background", "padding", "datasets", "usermeta"):
        view.pop(setting, None)
    title = {"text": picture.title, "anchor": "start", "frame": "group"}
    if any(tables[each].is_thinned for each in _tables_of(view)):
        title["subtitle"] = f"{ROWS_MAX:,} of {max(tables[each].count for each in _tables_of(view)):,} rows are shown"
    view.setdefault("title", title)
    for part in _parts(view):
        if part.get("width") == "container":
            part["width"] = WIDTH
        if part.get("height") == "container":
            part["height"] = WIDTH // 2
    return view


def _part(view: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a view as one of several in a chart, where its scales and its size have other names in expressions."""
    sizes = {each: view.get(each) for each in ("width", "height")}

    def told(text: str) -> str:
        text = re.sub(r"\b(domain|scale|range|bandwidth|invert)\('(\w+)'", rf"\1('{name}_\2'", text)
        for side, pixels in sizes.items():
            if isinstance(pixels, int):
                text = re.sub(rf"(?<![.'\w]){side}(?![('\w])", str(pixels), text)
        return text

    def renamed(thing: Any, key: str = "") -> Any:
        if isinstance(thing, dict):
            return {each: renamed(value, each) for each, value in thing.items()}
        if isinstance(thing, list):
            return [renamed(each, key) for each in thing]
        return told(thing) if isinstance(thing, str) and key in EXPRESSIONS else thing

    return {**renamed(view), "name": name}


def _parts(thing: object) -> Iterator[dict[str, Any]]:
    """Yields every mapping in a specification."""
    if isinstance(thing, dict):
        yield thing
    if isinstance(thing, dict | list):
        inner: Iterable[object] = thing.values() if isinstance(thing, dict) else thing
        for each in inner:
            yield from _parts(each)


def _tables_of(view: object) -> set[str]:
    """Returns the tables that a specification names."""
    return {
        part["data"]["name"]
        for part in _parts(view)
        if isinstance(part.get("data"), dict) and isinstance(part["data"].get("name"), str)
    }
