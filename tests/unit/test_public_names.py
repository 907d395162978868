"""What is public: there at run time, for type checkers, for completion and for help(), and nothing else is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.log.view import PartitionView
from kafkalog.partition import Partition

MODULES = [
    "config", "decoding", "engine", "errors", "metrics", "partition", "producer", "reader", "records", "remote",
    "spark", "store", "toolbox", "topic", "transaction",
]  # fmt: skip
PUBLIC = [name for name in dir(kafkalog) if not name.startswith("_")]
WRONG = ["oepn", "Stoer", "open_store", "Any", "error", "importlib"]
# The other folders are there once something has imported them, as for any package; mypy sees them likewise.
INNER = sorted({each.name for each in pkgutil.iter_modules(kafkalog.__path__)} - {*MODULES, "__main__"})


def test_all_public_names_are_listed() -> None:
    assert set(MODULES) | {*kafkalog.__all__} <= set(PUBLIC)
    assert not {"annotations", "TYPE_CHECKING", "Any", *WRONG, *INNER} & set(dir(kafkalog))


@pytest.mark.parametrize(
    ("old", "new", "instead"),
    [
        ("Log", Partition, "write kafkalog.Partition"),
        ("PartitionView", PartitionView, r"write kafkalog.open_log\(\.\.\., read_only=True\)"),
    ],
)
def test_a_name_of_the_release_before(old: str, new: type, instead: str) -> None:
    for _ in range(2):  # it is told each time
        with pytest.warns(DeprecationWarning, match=f"kafkalog.{old} goes with the next release: {instead}") as told:
            assert getattr(kafkalog, old) is new
        assert told[0].filename == __file__
    assert old not in {*dir(kafkalog), *kafkalog.__all__, *vars(kafkalog)}
    with pytest.warns(DeprecationWarning, match=instead):
        exec(f"from kafkalog import {old}", {})


def test_help_is_short_and_begins_with_open() -> None:
    text = pydoc.plain(pydoc.render_doc(kafkalog))
    lines = text.splitlines()
    assert len(lines) <= 152
    assert "kafkalog.open_log(" in "".join(lines[:12])
    assert text.index("open(dirs)") < text.index("ChunkReader")
    assert "CLASSES\n" not in text
    for name in PUBLIC:
        assert name in (kafkalog.__doc__ or ""), name


def test_import_star_brings_the_doors() -> None:
    space: dict[str, object] = {}
    exec("from kafkalog import *", space)
    assert set(kafkalog.__all__) == set(space) - {"__builtins__"}


def test_docstrings_are_for_users() -> None:
    """Notes for linters and readers of the code are comments."""
    for name in PUBLIC:
        thing = getattr(kafkalog, name)
        things = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
        for each in things:
            assert not re.search(r"noqa|fmt: |More than eight", inspect.getdoc(each) or ""), (name, each)


# --- completion ------------------------------------------------------------------------------------------


def objects(place: Path) -> Iterator[object]:
    """One of each kind of object that a program gets from kafkalog's doors."""
    with kafkalog.open(place / "store") as store, store.producer(linger_ms=0) as producer:
        topic = store.create_topic("orders")
        future = producer.send("orders", b"value")
        yield from (store, producer, topic, topic.info, future, future.result(), topic.writer("w"))
        with store.reader("billing", topics=["orders"]) as reader:
            yield from (reader, reader.poll()[0])
            reader.commit()
        (cursor,) = store.cursors()
        yield from (store.transaction("t"), cursor, cursor.partitions[0], cursor.partitions[0].committed)
    with kafkalog.open_log(place / "logs", "orders-0") as log, log.reader() as chunks:
        yield from (log, log.writer("w"), log.transaction("t"), chunks, kafkalog.TopicPartition("orders", 0))


def test_completion_shows_what_users_call(tmp_path: Path) -> None:
    seen = 0
    for each in objects(tmp_path):
        shown, inner = {*dir(each)}, getattr(each, "_inner", frozenset())
        assert inner <= {*object.__dir__(each)}, f"{each!r} has no such names to hide"
        assert not shown & {"is_of", "checked", "present", "TYPE_CHECKING", "Any", *inner}, each
        for name in shown:
            method = inspect.getattr_static(each, name, None)
            if not name.startswith("_") and inspect.isfunction(method):
                assert inspect.getdoc(method), f"{type(each).__name__}.{name} is shown without a word of what it does"
        seen += 1
    assert seen == 18


PACKAGES = ["engine", "spark", "toolbox"]  # what they hold are modules


@pytest.mark.parametrize("module", [*sorted({*MODULES}.difference(PACKAGES)), "engine.files", "spark.jobs"])
def test_completion_of_a_module_shows_its_own_names(module: str) -> None:
    found = importlib.import_module(f"kafkalog.{module}")
    shown = [name for name in dir(found) if not name.startswith("_")]
    assert shown
    for name in shown:
        value = getattr(found, name)
        assert not inspect.ismodule(value), name
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith("kafkalog"), name


@pytest.mark.parametrize("package", PACKAGES)
def test_completion_of_a_package_shows_its_public_modules(package: str) -> None:
    found = importlib.import_module(f"kafkalog.{package}")
    assert dir(found) == sorted(found.__all__)
    for name in found.__all__:
        assert importlib.import_module(f"kafkalog.{package}.{name}").__doc__ or package == "engine", name
