"""Deprecated names: each still works, and a DeprecationWarning says which name to use instead.

A renamed public name stays here for one release.  `moved` is for names that are in another module, `takes_old` for
parameters of a function, `without` for parameters that have no successor, `OldAttribute` for an attribute, and MODULES
for a module.  This module imports nothing of kafkalog.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, TypeVar

GONE_WITH = "0.2"  # the release that removes the deprecated names

# Modules of the previous release, and where each of them is now.
MODULES = {
    "kafkalog.cleaner": "kafkalog.engine.cleaner",
    "kafkalog.coordinator": "kafkalog.engine.coordinator",
    "kafkalog.files": "kafkalog.engine.files",
    "kafkalog.format": "kafkalog.engine.format",
    "kafkalog.log": "kafkalog.engine.log",
    "kafkalog.manager": "kafkalog.engine.host",
    "kafkalog.segment": "kafkalog.engine.segment",
    "kafkalog.topics": "kafkalog",
    "kafkalog.topics.batching": "kafkalog.producer",
    "kafkalog.topics.log": "kafkalog.partition",
    "kafkalog.topics.opening": "kafkalog",
    "kafkalog.topics.reader": "kafkalog.reader",
    "kafkalog.topics.record_future": "kafkalog.producer",
    "kafkalog.topics.records": "kafkalog.records",
    "kafkalog.topics.store": "kafkalog.store",
    "kafkalog.topics.store_reader": "kafkalog.reader",
    "kafkalog.topics.store_transaction": "kafkalog.transaction",
    "kafkalog.topics.topic": "kafkalog.topic",
    "kafkalog.topics.writer": "kafkalog",
}
_NAMES_OF_TOPICS = {  # names that are not in `kafkalog` itself, or have another name there
    "Log": ("kafkalog", "Partition"),
    "PartitionView": ("kafkalog.engine.log.view", "PartitionView"),
    "RecordFuture": ("kafkalog.producer", "RecordFuture"),
    "open_store": ("kafkalog", "open"),
    "receive_message_set": ("kafkalog.reader", "receive_message_set"),
}

F = TypeVar("F", bound=Callable[..., Any])


def warn(old: str, instead: str, *, depth: int = 1) -> None:
    """Warns the code that used `old`; it is `depth` frames above the caller."""
    text = f"{old} is deprecated and will be removed in kafkalog {GONE_WITH}: use {instead}"
    warnings.warn(text, DeprecationWarning, depth + 2)


def moved(module: str, homes: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` for names that have moved; `homes` has the module and the new name of each.

    The call in the module's body warns an import of the whole module.  Each name warns the line that uses it.
    """
    if not _takes_names(_importer(), module):
        warn(module, " or ".join(dict.fromkeys(instead for _, instead in homes.values())), depth=2)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, instead = homes[name]
        if not _is_internal(sys._getframe(1)):  # the import system only checks that it exists
            warn(f"{module}.{name}", instead)
        return getattr(importlib.import_module(home), name)

    return find


def takes_old(translate: Callable[[dict[str, Any], dict[str, Any]], None], **instead: str) -> Callable[[F], F]:
    """Makes a function accept its former keyword parameters; `instead` maps each to its replacement.

    `translate` gets the former parameters that were passed, and the other keyword arguments, which it completes.
    """

    def decorate(function: F) -> F:
        shown = function.__qualname__.removesuffix(".__init__")
        places = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def with_old(*args: Any, **named: Any) -> Any:
            old = {name: named.pop(name) for name in instead if name in named}
            for name in old:
                new = instead[name].partition("=")[0]
                if new in named or new in places[: len(args)]:
                    raise TypeError(f"{shown}() got both {name}= and {new}=, expected {new}= alone")
                warn(f"{shown}({name}=)", instead[name])
            if old:
                translate(old, named)
            return function(*args, **named)

        return with_old  # type: ignore[return-value]

    return decorate


def without(shown: str, **gone: str) -> Callable[[F], F]:
    """Makes a function raise a clear error for removed keyword parameters; `gone` says what to do instead of each.

    `shown` is the name by which users call the function; Python's own errors use it too.
    """

    def decorate(function: F) -> F:
        function.__qualname__ = shown

        @functools.wraps(function)
        def told(*args: Any, **named: Any) -> Any:
            for name in gone:
                if name in named:
                    raise TypeError(f"{shown}() got {name}={named[name]!r}, which was removed: {gone[name]}")
            return function(*args, **named)

        return told  # type: ignore[return-value]

    return decorate


class OldAttribute:
    """A deprecated attribute of a class; `read` returns its value."""

    def __init__(self, read: Callable[[Any], Any], instead: str) -> None:
        self._read, self._instead = read, instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:  # a class does not have it
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        warn(f"{owner.__name__}.{self._name}", self._instead)
        return self._read(instance)


def spec_of(name: str) -> ModuleSpec | None:
    """Returns the spec that imports a former module under its old name, or None for an unknown name."""
    old, tail = name, ""
    while old not in MODULES:
        old, _, last = old.rpartition(".")
        if not old:
            return None
        tail = f".{last}{tail}"
    if tail and old.startswith("kafkalog.topics"):
        return None
    home = MODULES[old] + tail
    try:
        found = importlib.util.find_spec(home)
    except ModuleNotFoundError:
        return None
    if found is None:
        return None
    # A separate module with an empty path.  With its home's path, Python would load the home's modules a second time.
    is_package = found.submodule_search_locations is not None and (bool(tail) or name.count(".") == 1)
    return ModuleSpec(name, _OldModule(home), is_package=is_package)


class _OldModule(Loader):
    """Loads a module that has the names of another one, `home`."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None, so that Python creates an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        old, home = module.__name__, importlib.import_module(self._home)
        if not _takes_names(_importer(), old):
            warn(old, self._home)

        def find(name: str) -> Any:
            asks = sys._getframe(1)
            place, there = self._home, name
            if name == "__all__" and hasattr(home, name):
                return home.__all__
            if old.startswith("kafkalog.topics") and (name in _NAMES_OF_TOPICS or not hasattr(home, name)):
                place, there = _NAMES_OF_TOPICS.get(name, ("kafkalog", name))
            value = None if name.startswith("__") else getattr(importlib.import_module(place), there, None)
            if value is None:
                message = f"has no {name!r}: kafkalog {GONE_WITH} removes {old}; its names are in {self._home}"
                if _operation(asks) == "IMPORT_FROM":  # Python replaces the text of an AttributeError here
                    raise ImportError(f"{old} {message}", name=old)
                raise AttributeError(f"module {old!r} {message}")
            if not _is_internal(asks):
                warn(f"{old}.{name}", f"{place}.{there}")
            return value

        module.__doc__ = home.__doc__
        module.__dict__.update(__getattr__=find, __dir__=lambda: dir(home))


# --- the caller ----------------------------------------------------------------------------------------


def _is_internal(frame: FrameType) -> bool:
    """Returns whether a frame belongs to Python's import system."""
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _importer() -> FrameType | None:
    """Returns the frame whose import is running, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_internal(frame):
        frame = frame.f_back
    while frame is not None and _is_internal(frame):
        frame = frame.f_back
    return frame


def _operation(frame: FrameType) -> str:
    """Returns the name of the bytecode operation that a frame is executing."""
    from opcode import opname

    return opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""


def _takes_names(frame: FrameType | None, module: str) -> bool:
    """Returns whether a frame runs `from module import names`: then each name gives a more precise warning."""
    if frame is None or _operation(frame) != "IMPORT_NAME":
        return False
    from dis import get_instructions

    before: Any = None  # the argument of the previous operation, which loads the names
    for each in get_instructions(frame.f_code):
        if each.offset == frame.f_lasti:
            return isinstance(before, tuple) and f"{each.argval}.".startswith(f"{module}.")
        if each.opname != "EXTENDED_ARG":
            before = each.argval
    return False
