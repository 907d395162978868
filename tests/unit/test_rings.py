"""A path alone says what is stable: public modules list their names, and show nothing private.

The rings are: names that users import; Kafka's own classes in `kafkalog.engine`, which follow Kafka's versions; and
private names, with an underscore.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "internals"),
]
PRIVATE = re.compile(r"kafkalog[./]_(?!_version)\w+|\b_(?:face|native|limits)\b")
PACKAGES = ("report", "spark", "toolbox")  # their public names are modules


def stable() -> Iterator[str]:
    """The modules of the first ring."""
    for path in sorted(Path(kafkalog.__file__).parent.glob("*.py")):
        if not path.name.startswith("_"):
            yield f"kafkalog.{path.stem}"
    yield from ("kafkalog", "kafkalog.metrics")
    for package in PACKAGES:
        yield from (f"kafkalog.{package}.{name}" for name in importlib.import_module(f"kafkalog.{package}").__all__)


STABLE = list(stable())


def listed(module: str) -> dict[str, Any]:
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in found.__all__}


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """A class's own methods and properties that are no secret."""
    inner = getattr(thing, "_inner", frozenset())
    for name, member in vars(thing).items():
        if name.startswith("_") or name in inner:
            continue
        if isinstance(member, property):
            yield name, member.fget
        elif inspect.isfunction(member):
            yield name, member
        elif isinstance(member, classmethod | staticmethod):
            yield name, member.__func__


def documented() -> Iterator[tuple[str, Any]]:
    for module in STABLE:
        yield module, importlib.import_module(module)
        for name, thing in listed(module).items():
            if inspect.ismodule(thing) or not callable(thing) or not str(thing.__module__).startswith("kafkalog"):
                continue
            yield f"{module}.{name}", thing
            if inspect.isclass(thing):
                yield from ((f"{module}.{name}.{each}", member) for each, member in members(thing))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_for_users_name_nothing_private(path: Path) -> None:
    text = re.sub(r"^::: .*$", "", path.read_text(), flags=re.MULTILINE)  # mkdocstrings shows a class by its place
    assert PRIVATE.findall(text) == []


def test_public_docstrings_name_nothing_private() -> None:
    found = {name: PRIVATE.findall(inspect.getdoc(thing) or "") for name, thing in documented()}
    assert {name: private for name, private in found.items() if private} == {}


@pytest.mark.parametrize("module", STABLE)
def test_a_public_module_says_what_it_lists(module: str) -> None:
    found = importlib.import_module(module)
    assert len(found.__all__) == len(set(found.__all__)) > 0
    for name in found.__all__:
        assert hasattr(found, name), name
        assert not name.startswith("_"), name
    assert set(found.__all__) <= set(dir(found))


def signatures() -> Iterator[tuple[str, Any]]:
    return ((name, thing) for name, thing in documented() if inspect.isfunction(thing))


def test_public_signatures_have_types_and_words() -> None:
    wrong = []
    for name, function in signatures():
        if not inspect.getdoc(function):
            wrong.append(f"{name} has no docstring")
        signature = inspect.signature(function)
        bare = [
            each.name
            for each in signature.parameters.values()
            if each.annotation is inspect.Parameter.empty and each.name not in ("self", "cls")
        ]
        if bare or signature.return_annotation is inspect.Signature.empty:
            wrong.append(f"{name} has no types of {', '.join(bare) or 'its answer'}")
    assert wrong == []


UNITS = re.compile(
    r"_(?:ms|s|bytes|rows|offset|offsets|count|records)$|^(?:offset|offsets|partition|partitions|start|end)$"
)


def test_public_numbers_have_units() -> None:
    """In the name, or in the docstring."""
    wrong = []
    for name, function in signatures():
        text = inspect.getdoc(function) or ""
        for each in inspect.signature(function).parameters.values():
            if str(each.annotation).split(" | ")[0] not in ("int", "float") or UNITS.search(each.name):
                continue
            has_entry = re.search(rf"^ +{each.name}: ", text, re.MULTILINE)  # in a section Args
            if f"`{each.name}`" not in text and not has_entry:
                wrong.append(f"{name}: {each.name}")
    assert wrong == []
