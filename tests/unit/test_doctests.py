"""The examples of public docstrings run as doctests, each in an empty directory and with `kafkalog` imported."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import KafkalogError
from tests.unit.public_api import MODULES, Documented, documented, module_of

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Packages that an example needs if its source contains the word.
NEEDS = {
    "arrow": "pyarrow", "pandas": "pandas", "polars": "polars", "duckdb": "duckdb", "batches": "pyarrow",
    "plot": "altair",
}  # fmt: skip
# Classes whose methods all have examples.  The example of another class may cover its methods.
METHODS_OF = {"Store", "Topic", "Partition", "StoreReader", "Producer", "Queue", "StoreTransaction", "Transaction"}
METHODS_OF |= {"Writer", "Readable"}


def documents() -> Iterator[Documented]:
    """Everything with a docstring in MODULES, public or not."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield Documented(name, module)
        for thing in vars(module).values():
            if not (inspect.isclass(thing) or inspect.isfunction(thing)) or module_of(thing) != name:
                continue
            yield Documented(f"{name}.{thing.__qualname__}", thing)
            if inspect.isclass(thing):
                members = ((key, value) for key, value in vars(thing).items() if key != "__doc__")
                yield from (Documented(f"{name}.{thing.__qualname__}.{key}", value) for key, value in members)


def example_of(each: Documented) -> doctest.DocTest | None:
    finder = doctest.DocTestFinder(recurse=False)
    found = finder.find(each.thing, each.name, module=False, globs={"kafkalog": kafkalog})  # type: ignore[arg-type]
    return next((test for test in found if test.examples), None)


EXAMPLES = {each.name: test for each in documents() if (test := example_of(each)) is not None}


@pytest.mark.parametrize("test", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_runs(test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "".join(each.source for each in test.examples)
    for word, package in NEEDS.items():
        if word in source:
            pytest.importorskip(package)
    told: list[str] = []
    globs: dict[str, Any] = {"kafkalog": kafkalog}
    test.globs = globs  # a run clears its names
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=told.append)
    assert (outcome.failed, "".join(told)) == (0, "")


def is_required(each: Documented) -> bool:
    """Whether it must have an example: each class and function, and the methods of METHODS_OF.

    The page "Errors, and what to do" has examples of errors.  Examples of the functions of the toolbox
    and of reports show their classes.
    """
    if inspect.isclass(each.thing):
        shown = ("kafkalog.report.", "kafkalog.toolbox.")
        return not issubclass(each.thing, KafkalogError) and not each.name.startswith(shown)
    owner = each.name.split(".")[-2]
    return each.function is not None and (owner in METHODS_OF or not owner[0].isupper())


@pytest.mark.parametrize("each", [each for each in documented() if is_required(each)], ids=str)
def test_it_has_an_example(each: Documented) -> None:
    assert each.name in EXAMPLES, f"{each.name} has no doctest under Example:"
