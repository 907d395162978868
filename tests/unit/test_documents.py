"""The documents compared with the code: symbols that they name exist, and their tables match the layouts in it."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kafkalog.engine.files import lines

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "kafkalog"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SYMBOL = re.compile(r"`(kafkalog(?:\.\w+)+)(?:\(\))?`")
PATH = re.compile(r"`((?:kafkalog|tests|bench|docs)/[\w./-]*)`")
LOGGERS = {f"kafkalog.{name}" for name in lines.NAMES}
# A symbol alone on its line, and the table of fields below it.
LAYOUT = re.compile(r"^`(kafkalog\.[\w.]+)`\n\n\| at \| bytes \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)


def resolved(dotted: str) -> Any:
    """The object that a dotted name stands for: a module, or an attribute of one (of a class in it)."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"no module {dotted}")


def named(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """The names in the documents, without placeholders and without the old names in the changelog."""
    documents = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    found = {(path.name, name) for path in documents for name in pattern.findall(path.read_text())}
    assert found
    return sorted((path, name) for path, name in found if "NAME" not in name)


@pytest.mark.parametrize(("document", "dotted"), named(SYMBOL))
def test_symbols_exist(document: str, dotted: str) -> None:
    if dotted not in LOGGERS:
        resolved(dotted)


@pytest.mark.parametrize(("document", "path"), named(PATH))
def test_paths_exist(document: str, path: str) -> None:
    assert (ROOT / path).exists(), f"{document} names {path}"


SHORT_PATH = re.compile(r"`((?:_native|_face|engine|toolbox|cli|spark|metrics)/[\w./-]*)`")


@pytest.mark.parametrize(("document", "path"), named(SHORT_PATH))
def test_paths_below_the_package_exist(document: str, path: str) -> None:
    assert (PACKAGE / path).exists(), f"{document} names {path}"


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


LINKING = [*DOCUMENTS, ROOT / "CHANGELOG.md"]  # it names deprecated and removed things, too


@pytest.mark.parametrize("document", LINKING, ids=[path.name for path in LINKING])
def test_links_lead_somewhere(document: Path) -> None:
    for name, anchor in LINK.findall(document.read_text()):
        there = document.parent / name if name else document
        assert there.exists(), f"{document.name} links to {name}"
        if anchor:
            text = there.read_text()
            titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles]
            assert anchor[1:] in anchors + re.findall(r"^::: (\S+)$", text, re.MULTILINE), anchor


def test_a_noun_is_one_class() -> None:
    """No second class has the name of a noun in ARCHITECTURE's list."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    nouns = re.findall(r"^\| \w+ \| `(\w+)` \|", text, re.MULTILINE)
    assert len(nouns) > 15
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]
    a_class = re.compile(r"^(?:cdef )?class (\w+)", re.MULTILINE)
    classes = [name for path in sources for name in a_class.findall(path.read_text())]
    assert {name: classes.count(name) for name in nouns if classes.count(name) != 1} == {}


def test_contributing_knows_every_test_suite() -> None:
    """A row for each directory of tests, with a command that exists."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The tests")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| `make ([a-z-]+)` \|$", text, re.MULTILINE)
    suites = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {name for name, _ in rows} == suites
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {target for _, target in rows} <= targets
    for directory in (ROOT / "tests").iterdir():
        if directory.is_dir() and not directory.name.startswith(("_", ".")):
            assert directory.name in suites or f"`tests/{directory.name}/`" in text, directory.name


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.strip().splitlines()[0] for example in EXAMPLES])
def test_an_example_brings_the_names_that_it_uses(example: str) -> None:
    """Except for the session, `spark`, which Spark's shell brings."""
    known, used = {*dir(builtins), "spark"}, set()
    for node in ast.walk(ast.parse(example)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known.add(node.name)
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
    assert used <= known


def fields_of(layout: struct.Struct | np.dtype[Any]) -> list[tuple[int, int]]:
    """(position, bytes) of each field."""
    if isinstance(layout, np.dtype):
        assert layout.fields is not None
        assert layout.names is not None
        return [(layout.fields[name][1], layout.fields[name][0].itemsize) for name in layout.names]
    assert layout.format[0] == ">"
    sizes = [struct.calcsize(">" + kind) for kind in layout.format[1:]]
    return [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]


LAYOUTS = LAYOUT.findall((ROOT / "docs" / "explanation" / "format.md").read_text())


def test_no_layout_is_passed_over() -> None:
    assert len(LAYOUTS) == (ROOT / "docs" / "explanation" / "format.md").read_text().count("| at | bytes |") > 0


@pytest.mark.parametrize(("dotted", "rows"), LAYOUTS, ids=[dotted for dotted, _ in LAYOUTS])
def test_tables_are_the_layouts(dotted: str, rows: str) -> None:
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    assert [(int(at), int(size)) for at, size, *_ in cells] == fields_of(resolved(dotted))


def test_names_of_files_are_those_of_the_tables() -> None:
    """The first column of the directory's tables, if it is one whole name."""
    names = resolved("kafkalog.engine.format.names")
    known = {value for name, value in vars(names).items() if name.endswith(("_FILE", "_SUFFIX")) and name.isupper()}
    text = (ROOT / "docs" / "explanation" / "format.md").read_text().partition("## A remote tier")[0]
    first_column = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    for name in first_column:
        if not name.startswith(("topic-", "0000", "…")):
            assert name in known, name
    for suffix in re.findall(r"^\| `….*?(\.[a-z]+)`", text, re.MULTILINE):
        assert suffix in known, suffix


def test_names_of_objects_are_those_of_the_layouts() -> None:
    local, aiven = resolved("kafkalog.engine.remote.local_tiered"), resolved("kafkalog.engine.remote.aiven")
    text = (ROOT / "docs" / "explanation" / "format.md").read_text().partition("## A remote tier")[2]
    first, _, second = text.partition("### Aiven")
    suffixes = re.compile(r"[>`…](\.[a-z_-]+)(?=`)")
    assert set(suffixes.findall(first)) == {local.LOG, *local.SUFFIXES.values()}
    assert f"`{local.ROOT}/" in first
    table = second.partition("A chunk is")[0]
    assert set(suffixes.findall(table)) == {f".{name}" for name in (aiven.LOG, aiven.INDEXES, aiven.MANIFEST)}
    manifest = next((ROOT / "tests" / "golden" / "tiered" / "aiven" / "both").rglob("*.rsm-manifest"))
    rows = re.findall(r"^\| `(\w+)` \|", second.partition("name in the manifest")[2], re.MULTILINE)
    assert set(rows) == set(json.loads(manifest.read_text()))
