"""The pictures of the documentation: the committed files are those that the script draws, and their words fit."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_documents import LAYOUTS

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "pictures"


def _script() -> Any:
    path = ROOT / "docs" / "_site" / "pictures.py"
    spec = importlib.util.spec_from_file_location("pictures_of_the_documentation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


SCRIPT = _script()
DRAWN = {name: draw().svg() for name, draw in SCRIPT.PICTURES.items()}
PICTURE_OF = {
    "kafkalog.engine.format.batch.HEADER": "batch",
    "kafkalog.engine.format.index_entries.OFFSET_ENTRY": "index-entries",
    "kafkalog.engine.format.index_entries.TIME_ENTRY": "index-entries",
    "kafkalog.engine.format.index_entries.TXN_ENTRY": "index-entries",
    "kafkalog.engine.format.snapshots.HEADER": "snapshot",
    "kafkalog.engine.format.snapshots.ENTRY": "snapshot",
}
TEXT = re.compile(r'<text(?: class="([^"]*)")? x="([^"]*)" y="([^"]*)" text-anchor="(\w+)">([^<]*)</text>')
RECT = re.compile(r'<rect class="[^"]*" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"')
HEIGHTS = {"": 14, "title": 14, "small": 12, "mono": 12, "cell": 11, "cell strong": 11}


@pytest.mark.parametrize("name", DRAWN)
def test_the_committed_file_is_what_the_script_draws(name: str) -> None:
    assert (PLACE / f"{name}.svg").read_text(encoding="utf-8") == DRAWN[name], "run: python docs/_site/pictures.py"


def test_no_other_file_is_there() -> None:
    """Pictures of benchmarks have a script and a test of their own."""
    assert {path.stem for path in PLACE.iterdir() if not path.name.startswith("bench-")} == set(DRAWN)


def words_of(svg: str) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Each text and the rectangle that it takes, at about 0.6 of a letter's height a letter."""
    found = []
    for kind, x, y, anchor, text in TEXT.findall(svg):
        words, height = unescape(text), HEIGHTS[kind]
        width = len(words) * height * (0.61 if "cell" in kind or kind == "mono" else 0.52)
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        found.append((words, (left, float(y) - height * 0.8, left + width, float(y) + height * 0.2)))
    return found


@pytest.mark.parametrize("name", DRAWN)
def test_no_words_overlap_or_leave_their_box(name: str) -> None:
    size = re.search(r'viewBox="0 0 (\d+) (\d+)"', DRAWN[name])
    assert size is not None
    boxes = [tuple(map(float, found)) for found in RECT.findall(DRAWN[name])]
    words = words_of(DRAWN[name])
    for text, (left, top, right, bottom) in words:
        assert 0 <= left < right <= int(size[1]), text
        assert 0 <= top < bottom <= int(size[2]), text
        middle = (left + right) / 2
        for x, y, w, h in boxes:
            if x < middle < x + w and y < (top + bottom) / 2 < y + h:
                assert x <= left, text
                assert right <= x + w, text
    for x, y, w, h in boxes:
        assert 0 <= x <= x + w <= int(size[1])
        assert 0 <= y <= y + h <= int(size[2])
    for (one, a), (other, b) in itertools.combinations(words, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, f"{one!r} and {other!r} overlap"


@pytest.mark.parametrize(("dotted", "rows"), LAYOUTS, ids=[dotted for dotted, _ in LAYOUTS])
def test_each_field_of_a_layout_is_in_its_picture(dotted: str, rows: str) -> None:
    """Its table on the page, the picture's fields and the words of the picture say the same."""
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    fields = [(name.removesuffix(" (unsigned)"), int(size)) for _, size, name, *_ in cells]
    assert fields == list(SCRIPT.explained.LAYOUTS[dotted])
    written = " ".join(words for words, _ in words_of(DRAWN[PICTURE_OF[dotted]]))
    for name, _ in fields:
        assert name in written


def test_the_bars_are_six_rows_of_the_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    found = SCRIPT.explained.speed_rows()
    assert len(found) == 6
    for name, ratio in found:
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert f"| {ratio:.2f}x |" in line or f"| {ratio:g}x |" in line
