"""Names of the release before: each still works, and tells what to write instead with a DeprecationWarning.

Who renames a public name keeps it here for one release: `moved` for what lies in another module, `takes_old` for a
function's parameters, `without` for those that have no successor, `OldAttribute` for an attribute.  Imports nothing of
kafkalog.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

GONE_WITH = "0.2"  # the release in which what is told here is no more

F = TypeVar("F", bound=Callable[..., Any])


def warn(old: str, instead: str, *, depth: int = 1) -> None:
    """Tells whoever wrote `old`: `depth` frames above the caller's own."""
    warnings.warn(f"{old} goes with kafkalog {GONE_WITH}: write {instead}", DeprecationWarning, depth + 2)


def moved(module: str, homes: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that are elsewhere: where each is, and what to write instead."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, instead = homes[name]
        warn(f"{module}.{name}", instead)
        return getattr(importlib.import_module(home), name)

    return find


def takes_old(translate: Callable[[dict[str, Any], dict[str, Any]], None], **instead: str) -> Callable[[F], F]:
    """Lets a function take keyword parameters that it had: `instead` has each one's name and what to write.

    `translate` is given those that came and the keyword arguments that are left, which it completes.
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
    """Has a function tell of keyword parameters that it had, and that nothing takes the place of: `gone` has each one's
    name and what to do.  `shown`: the name by which users call it, which Python's own errors say, too."""

    def decorate(function: F) -> F:
        function.__qualname__ = shown

        @functools.wraps(function)
        def told(*args: Any, **named: Any) -> Any:
            for name in gone:
                if name in named:
                    raise TypeError(f"{shown}() got {name}={named[name]!r}, which is gone: {gone[name]}")
            return function(*args, **named)

        return told  # type: ignore[return-value]

    return decorate


class OldAttribute:
    """An attribute that objects of a class had; `read` gives its value."""

    def __init__(self, read: Callable[[Any], Any], instead: str) -> None:
        self._read, self._instead = read, instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:  # a class does not have it
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        warn(f"{owner.__name__}.{self._name}", self._instead)
        return self._read(instance)
