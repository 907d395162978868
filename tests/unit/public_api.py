"""The public API as tests of docstrings see it: classes, functions, methods and properties by their names.

`MODULES` lists the modules whose docstrings have the full form: a summary, Args, Returns, Raises and an Example.
Modules that are not listed are not checked yet.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import kafkalog

MODULES = [
    "kafkalog.config",
    "kafkalog.decoding",
    "kafkalog.errors",
    "kafkalog.group_reader",
    "kafkalog.metrics.kinds",
    "kafkalog.metrics.names",
    "kafkalog.metrics.prometheus",
    "kafkalog.metrics.registry",
    "kafkalog.partition",
    "kafkalog.producer",
    "kafkalog.queue",
    "kafkalog.reader",
    "kafkalog.records",
    "kafkalog.remote",
    "kafkalog.server.server",
    "kafkalog.server.settings",
    "kafkalog.server.trial",
    "kafkalog.store",
    "kafkalog.topic",
    "kafkalog.transaction",
    "kafkalog._face.arrow_stream",
    "kafkalog._face.chunk_reader",
    "kafkalog._face.decoded",
    "kafkalog._face.describing",
    "kafkalog._face.opening",
    "kafkalog._face.readable",
    "kafkalog._face.record_future",
    "kafkalog._face.selection",
    "kafkalog._face.store_cursors",
    "kafkalog._face.topic_info",
    "kafkalog._face.writer",
    "kafkalog._native.codec.reading",
    "kafkalog.engine.cleaner.passes",
    "kafkalog.engine.format.names",
    "kafkalog.engine.host.log_dirs",
    "kafkalog.engine.host.log_manager",
    "kafkalog.engine.host.settings",
    "kafkalog.engine.remote.remote_log_manager",
    *(f"kafkalog.report.{name}" for name in kafkalog.report.__all__),
    *(f"kafkalog.toolbox.{name}" for name in kafkalog.toolbox.__all__),
]


class Documented(NamedTuple):
    """A public class, function, method or property, by the name of the place that defines it."""

    name: str
    thing: Any

    @property
    def doc(self) -> str:
        found = inspect.getdoc(self.thing) or ""
        return re.sub(r"\A\w+\(.*\)\n\n", "", found)  # Cython puts the signature first

    @property
    def function(self) -> Any:
        """The function with the signature; None for a class or a property."""
        found = self.thing.__func__ if isinstance(self.thing, classmethod | staticmethod) else self.thing
        return found if inspect.isfunction(found) else None

    def __str__(self) -> str:
        return self.name


def module_of(thing: Any) -> str | None:
    """The module that defines something, also if it is wrapped."""
    module: str | None = getattr(inspect.unwrap(thing), "__module__", None)
    return module


def _reachable() -> Iterator[Any]:
    """The classes and functions that are public names of kafkalog or of the modules in MODULES."""
    for place in [kafkalog, *map(importlib.import_module, MODULES)]:
        names = dir(place) if place is kafkalog else getattr(place, "__all__", [])
        yield from (getattr(place, name) for name in names if not name.startswith("_"))


def _members(kind: type) -> Iterator[Documented]:
    """The methods and properties of a class that users call, also inherited ones."""
    inner: frozenset[str] = getattr(kind, "_inner", frozenset())
    for base in kind.__mro__:
        if base.__module__ not in MODULES:
            continue
        for name, member in vars(base).items():
            is_member = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if is_member and not name.startswith("_") and name not in inner:
                yield Documented(f"{base.__module__}.{base.__qualname__}.{name}", member)


def documented() -> list[Documented]:
    """Everything public in MODULES, each once."""
    found: dict[str, Documented] = {}
    for thing in _reachable():
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        module = module_of(thing)
        if module not in MODULES:
            continue
        name = f"{module}.{thing.__qualname__}"
        found[name] = Documented(name, thing)
        if inspect.isclass(thing):
            found.update((each.name, each) for each in _members(thing))
    return [found[name] for name in sorted(found)]
