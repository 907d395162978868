"""A survey as one HTML file, which any browser opens offline and which asks nobody for anything.

The file holds the style, one script, the drawing library and the survey.  Its policy (`Content-Security-Policy`)
permits no request at all, and only the two scripts whose hashes it names.  The library and the survey are gzip in
base64: no content can end such a block, and the file stays small.

The library is put into the page as an inline script when the first picture comes into view, and its hash is in the
policy.  A `blob:` address would work from a disk too, but then the policy would permit any script that is made at run
time.  Vega's expressions are interpreted, so the policy needs no 'unsafe-eval'.  Styles need 'unsafe-inline', because
Vega sets styles on its elements; no style can make a request.

Knows nothing of directories, and writes no file: the caller does.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.resources
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kafkalog.engine.format.needs import need_jinja2, need_vl_convert
from kafkalog.report.pictures import PICTURES
from kafkalog.report.tables import KINDS, Survey
from kafkalog.report.vega import config

__all__ = ["html_page"]

SCRIPTS = ("base.js", "source.js", "tables.js", "pictures.js", "pages.js", "start.js")
"""The files of the page's script, in their order.  `start.js` is last: a live page puts its own files before it."""

_SAFE_INTEGER_MAX = (1 << 53) - 1  # a browser's numbers are doubles
_GZIP_LEVEL = 9
_PLACES_MAX, _PLACE_MAX = 8, 200  # directories that the footer names, and characters of each


def html_page(survey: Survey, *, version: str = "") -> str:
    """Returns the report of a survey as the text of one HTML file.

    Args:
        survey: The survey to show.
        version: The version of kafkalog, for the footer.

    Returns:
        The text of the file, which is to be written as UTF-8.

    Raises:
        MissingPackageException: `jinja2` or `vl_convert` is not installed.

    Example:
        >>> from kafkalog.report.page import html_page
        >>> from kafkalog.report.survey import survey
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> html_page(survey(["shop"]))[:15]
        '<!DOCTYPE html>'
    """
    jinja2 = need_jinja2()
    script, library = page_script(), vega_script()
    template = jinja2.Template(_asset("page.html"), autoescape=True)
    markup = _markup()
    data = _json(page_data(survey))
    text: str = template.render(
        policy=policy(script, library),
        version=version,
        brand="report",
        about=_about(survey, version),
        style=markup(page_style()),
        script=markup(script),
        blocks=[("survey", _packed(data)), ("vega", _packed_library())],
    )
    return text


def policy(*scripts: str) -> str:
    """Returns the policy of a page that may run these inline scripts and may ask for nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def page_data(survey: Survey) -> dict[str, Any]:
    """Returns what the page's script needs as JSON: the survey, what its tables mean, and the pictures.

    A column is a list; or `{"same": value, "count": n}`; or `{"words": [...], "at": [...]}` for repeated text; or
    `{"steps": [...]}`, the differences of whole numbers.  Whole numbers above 2^53 are text.
    """
    data = survey.to_json()
    data["tables"] = {
        name: {column: _encoded(values) for column, values in columns.items()}
        for name, columns in data["tables"].items()
    }
    data["kinds"] = [
        {**kind._asdict(), "columns": [column._asdict() for column in kind.columns]} for kind in KINDS.values()
    ]
    data["pictures"] = {name: picture._asdict() for name, picture in PICTURES.items()}
    data["config"] = config("page")
    data["facts"] = {name: _number(value) for name, value in data["facts"].items()}
    return data


def page_script(more: Sequence[str] = ()) -> str:
    """Returns the page's script; `more` are texts of further scripts that run before the page starts."""
    texts = [_asset(name) for name in SCRIPTS]
    return "\n".join([*texts[:-1], *more, texts[-1]])


def page_style() -> str:
    """Returns the page's style sheet."""
    return _asset("page.css")


@functools.cache
def vega_script() -> str:
    """Returns the drawing library: Vega, Vega-Lite and vegaEmbed, as `vl_convert` contains them."""
    code = need_vl_convert().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # In a function, for its hundreds of short names would be those of the page's script otherwise.
    return f"(() => {{\n{code}\n}})();"


@functools.cache
def _packed_library() -> str:
    return _packed(vega_script())


@functools.cache
def _asset(name: str) -> str:
    return importlib.resources.files("kafkalog.report").joinpath("assets", name).read_text("utf-8")


def _markup() -> Any:
    """Returns the class of text that the template does not escape; it comes with jinja2."""
    import markupsafe

    return markupsafe.Markup


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0)).decode()


def _json(value: Any) -> str:
    """Returns JSON that UTF-8 can hold: half of a surrogate pair, as in a file name that is not UTF-8, is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


def _about(survey: Survey, version: str) -> str:
    from kafkalog import _shown

    shown = [place[:_PLACE_MAX] for place in survey.log_dirs[:_PLACES_MAX]]
    places = ", ".join(shown).encode("utf-8", "backslashreplace").decode()
    by = f"kafkalog {version}" if version else "kafkalog"
    return f"Made by {by} at {_shown.moment(survey.now_ms)} from {places}."


def _encoded(values: Sequence[Any]) -> Any:
    """Returns a column in the smallest of its forms."""
    if len(values) < 4:
        return [_number(value) for value in values]
    first = values[0]
    if all(value is first or (type(value) is type(first) and value == first) for value in values):
        return {"same": _number(first), "count": len(values)}
    if all(type(value) is int for value in values):
        steps = [values[0], *(after - before for before, after in itertools.pairwise(values))]
        if max(map(abs, values)) <= _SAFE_INTEGER_MAX and len(json.dumps(steps)) < len(json.dumps(list(values))):
            return {"steps": steps}
        return [_number(value) for value in values]
    if all(value is None or isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        if len(words) <= len(values) // 2:
            places: Mapping[Any, int] = {word: place for place, word in enumerate(words)}
            return {"words": words, "at": [places[value] for value in values]}
    return [_number(value) for value in values]


def _number(value: Any) -> Any:
    """Returns a value that JSON and a browser keep as it is."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.9g}") if not value.is_integer() else int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER_MAX:
        return str(value)
    return value
