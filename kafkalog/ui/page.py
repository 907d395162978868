"""The files of the live page: the report's script and style, with those that only the live page has.

The texts are put together once, at the start.  Knows no requests and no directories.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence

from kafkalog.report.page import page_data, page_script, page_style, vega_script
from kafkalog.report.survey import survey
from kafkalog.report.tables import Survey

SCRIPTS = ("live.js", "values.js", "records.js", "place.js")  # between the report's own and its start


def files() -> dict[str, tuple[str, bytes]]:
    """Returns the page's files by name, each with its media type."""
    script, style = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
    return {
        "page.html": ("text/html; charset=utf-8", _asset("live.html").encode()),
        "page.js": (script, page_script([_asset(name) for name in SCRIPTS]).encode()),
        "page.css": (style, (page_style() + _asset("live.css")).encode()),
        "vega.js": (script, vega_script().encode()),
    }


def empty(log_dirs: Sequence[str], now_ms: int) -> Mapping[str, object]:
    """Returns what the page shows before there is a survey."""
    return page_data(Survey(list(log_dirs), now_ms))


def making(log_dirs: Sequence[str], partitions: Sequence[str] = ()) -> Callable[[], bytes]:
    """Returns a function that makes the survey as JSON for the page."""

    def make() -> bytes:
        found = page_data(survey(list(log_dirs), tuple(partitions)))
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode("ascii")

    return make


def _asset(name: str) -> str:
    return importlib.resources.files("kafkalog.ui").joinpath("assets", name).read_text("utf-8")
