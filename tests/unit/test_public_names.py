"""Public names: they exist at run time, for type checkers, for completion and for help(), and no others do."""

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
    "config", "decoding", "engine", "errors", "group_reader", "metrics", "partition", "producer", "queue", "reader",
    "records", "remote", "report", "server", "spark", "store", "toolbox", "topic", "transaction",
]  # fmt: skip
PUBLIC = [name for name in dir(kafkalog) if not name.startswith("_")]
WRONG = ["oepn", "Stoer", "open_store", "Any", "error", "importlib"]
# The other packages exist once something has imported them, as for any package; mypy sees them likewise.
INNER = sorted({each.name for each in pkgutil.iter_modules(kafkalog.__path__)} - {*MODULES, "__main__"})


def test_all_public_names_are_listed() -> None:
    assert set(MODULES) | {*kafkalog.__all__} <= set(PUBLIC)
    assert not {"annotations", "TYPE_CHECKING", "Any", *WRONG, *INNER} & set(dir(kafkalog))


@pytest.mark.parametrize(
    ("old", "new", "instead"),
    [
        ("Log", Partition, "use kafkalog.Partition"),
        ("PartitionView", PartitionView, r"use kafkalog.open_log\(\.\.\., read_only=True\)"),
    ],
)
def test_a_name_of_the_release_before(old: str, new: type, instead: str) -> None:
    for _ in range(2):  # it is reported each time
        with pytest.warns(DeprecationWarning, match=f"kafkalog.{old} is deprecated .*{instead}") as told:
            assert getattr(kafkalog, old) is new
        assert told[0].filename == __file__
    assert old not in {*dir(kafkalog), *kafkalog.__all__, *vars(kafkalog)}
    with pytest.warns(DeprecationWarning, match=instead):
        exec(f"from kafkalog import {old}", {})


def test_help_fits_two_screens_and_begins_with_open() -> None:
    text = pydoc.plain(pydoc.render_doc(kafkalog))
    lines = text.rstrip().splitlines()
    assert len(lines) <= 52
    assert max(len(line) for line in lines if not line.strip().startswith("/")) <= 80
    assert text.index("kafkalog.open(") < min(text.index(each) for each in ("open_log", "append", "PACKAGE CONTENTS"))
    for section in ("CLASSES\n", "FUNCTIONS\n", "DATA\n"):
        assert section not in text


def test_what_help_names_is_there() -> None:
    text = kafkalog.__doc__ or ""
    for name in re.findall(r"kafkalog\.(\w+)", text):
        assert name in PUBLIC, name
    for name in re.findall(r"\b[A-Z]\w+[a-z][A-Z]\w+", text):
        assert name in PUBLIC, name
    assert all(inspect.getdoc(getattr(kafkalog, name)) for name in PUBLIC)  # help(kafkalog.X) says something


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
    """One of each kind of object that a program gets from kafkalog's public functions."""
    with kafkalog.open(place / "store") as store, store.producer(linger_ms=0) as producer:
        topic = store.create_topic("orders")
        future = producer.send("orders", b"value")
        yield from (store, producer, topic, topic.info, future, future.result(), topic.writer("w"))
        with store.reader("billing", topics=["orders"]) as reader:
            yield from (reader, reader.poll()[0])
            reader.commit()
        (cursor,) = store.cursors()
        with store.queue("mail", topics=["orders"]) as queue:
            yield from (queue, queue.take_one())
        yield from (store.transaction("t"), cursor, cursor.partitions[0], cursor.partitions[0].committed)
        with store.reader("group", topics=["orders"], group=True) as member:
            yield member
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
    assert seen == 21


PACKAGES = ["engine", "report", "spark", "toolbox"]  # their public members are modules


@pytest.mark.parametrize("module", [*sorted({*MODULES}.difference(PACKAGES)), "engine.files", "spark.jobs"])
def test_completion_of_a_module_shows_its_own_names(module: str) -> None:
    found = importlib.import_module(f"kafkalog.{module}")
    # pytest puts names such as @py_builtins into the modules of its plugins' packages.
    shown = [name for name in dir(found) if not name.startswith(("_", "@"))]
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


OF_NAMED_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}


def others(place: Path) -> Iterator[object]:
    """The other objects that a program holds."""
    with kafkalog.open(place, maintenance=False) as store:
        topic = store.create_topic("orders", 2)
        topic.append(b"x", partition=0)
        log = topic.partition(0)
        with store.reader(topics=["orders"]) as reader:
            yield from (reader.records(), reader.batches(), reader.poll())
        yield from (store.manager, store.cursors(), topic.describe(), log.describe(), store.describe())
        chunk = next(iter(log.reader()))
        yield from (chunk, chunk.headers[0], kafkalog.MessageSetSend(store._home.source(log.topic_partition), 0))
        yield kafkalog.MultiMessageSetSend([])
    record = kafkalog.Record("t", 0, -1, 0, 0, 0, None, None, ())
    yield from (record, kafkalog.to_confluent(record), kafkalog.RemoteStorage("/tier"), kafkalog.KafkalogError("x"))
    yield from (kafkalog.ManagerSettings(), kafkalog.RemoteLogManagerConfig(), kafkalog.LogConfig.from_props({}))
    yield from (kafkalog.metrics.MetricsRegistry(), kafkalog.CompactionStats(*[0] * 15))


def test_completion_shows_public_names_alone(tmp_path: Path) -> None:
    """Checks an object of each public class."""
    seen: set[type] = set()
    for each in (*objects(tmp_path / "a"), *others(tmp_path / "b")):
        own = OF_NAMED_TUPLES if hasattr(each, "_fields") else set()
        shown = {name for name in dir(each) if name.startswith("_") and not name.endswith("__")}
        assert shown - own <= {"_repr_html_"}, type(each).__name__
        seen.update(type(each).__mro__)
    public = {value for name in PUBLIC if inspect.isclass(value := getattr(kafkalog, name))}
    public -= {kafkalog.Decoding, kafkalog.Filters, kafkalog.Reading}  # keyword arguments, for type checkers
    assert public <= seen, public - seen
