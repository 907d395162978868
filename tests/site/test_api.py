"""Every public name is on a page of the API reference, and no name that only kafkalog's modules call."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog import _shown
from tests.site.test_site import parsed
from tests.unit.public_api import module_of


@pytest.fixture(scope="session")
def anchors(site: Path) -> set[str]:
    return set().union(*(parsed(path).anchors for path in (site / "reference").rglob("*.html")))


def public_names() -> Iterator[str]:
    """The full names of the public classes and functions."""
    yield from (f"kafkalog.{name}" for name in dir(kafkalog) if not inspect.ismodule(getattr(kafkalog, name)))
    packages = {"report": kafkalog.report.__all__, "toolbox": kafkalog.toolbox.__all__, "spark": ["functions", "jobs"]}
    for package, names in ((f"kafkalog.{package}", names) for package, names in packages.items()):
        for each in names:
            module = importlib.import_module(f"{package}.{each}")
            yield from (f"{package}.{each}.{name}" for name in module.__all__)


def thing_of(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_every_public_name_is_on_a_page(anchors: set[str]) -> None:
    pytest.importorskip("pyspark")
    names = [name for name in public_names() if "__" not in name]
    assert len(names) > 150
    missing = []
    for name in names:
        thing = thing_of(name)
        defined = f"{module_of(thing)}.{getattr(thing, '__qualname__', '')}"
        # An error has its row in a table, by its class name.
        if not {name, defined, defined.removeprefix("kafkalog.errors.")} & anchors:
            missing.append(name)
    assert missing == []


def test_every_module_is_in_the_list(site: Path) -> None:
    text = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    modules = [name for name in dir(kafkalog) if inspect.ismodule(getattr(kafkalog, name))]
    assert len(modules) > 10
    assert [name for name in modules if f"<code>kafkalog.{name}</code>" not in text] == []


def test_every_error_has_an_anchor(anchors: set[str]) -> None:
    assert [name for name in kafkalog.errors.__all__ if name not in anchors] == ["KafkalogError"]
    assert "kafkalog.errors.KafkalogError" in anchors


def test_inner_names_are_not_shown(anchors: set[str]) -> None:
    kinds = [each for name in dir(kafkalog) if inspect.isclass(each := getattr(kafkalog, name))]
    shown = [each for each in kinds if issubclass(each, _shown.Shown) and each._inner]
    assert len(shown) > 4
    inner = {f"{prefix}.{name}" for each in shown for name in each._inner
             for prefix in (f"kafkalog.{each.__name__}", f"{each.__module__}.{each.__name__}")}  # fmt: skip
    assert sorted(inner & anchors) == []


def test_examples_are_code(site: Path) -> None:
    """An example under `Example:` is a block of code, not running text."""
    for path in (site / "reference" / "api").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "<p>&gt;&gt;&gt;" not in text, path
        assert 'class="example"' not in text, path
