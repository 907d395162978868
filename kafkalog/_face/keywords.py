"""Errors for unknown keyword arguments: they name the nearest known keyword, and the function by its public name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
# Other words for arguments of a call: the first that the call has.
MEANT = {
    "after": ("start",), "since": ("start",), "from_": ("start",), "before": ("end",), "until": ("end",),
    "to": ("end",), "as_of": ("end",), "topic": ("topics", "partitions"), "partition": ("partitions",),
    "limit": ("last",), "tail": ("last",),
    "mode": ("read_only",), "fsync": ("durability",), "flush": ("durability",), "sync": ("durability",),
}  # fmt: skip


GROUP = frozenset({"group", "group_id", "groupId", "consumer_group"})  # Kafka's names of a cursor


def unexpected(name: str, known: Iterable[str], meant: Mapping[str, str] | None = None, *, of: str = "") -> TypeError:
    """Returns the error for a keyword. `meant` maps other words to known keywords; `of` is the name of the call."""
    from difflib import get_close_matches

    near = get_close_matches((meant or {}).get(name, name), sorted(set(known) - {name}), 1)
    who = f"{of}() got an " if of else ""
    return TypeError(f"{who}unexpected keyword argument {name!r}" + "".join(f"; did you mean {it!r}?" for it in near))


def _meant(known: Collection[str]) -> dict[str, str]:
    return {word: near for word, nears in MEANT.items() for near in nears[::-1] if near in known}


def takes(*typed: type) -> Callable[[F], F]:
    """Decorates a method so that an unknown keyword raises an error with the method's public name. `typed` are the
    TypedDicts of its `**` parameter."""

    def decorate(method: F) -> F:
        own = list(inspect.signature(method).parameters.values())[1:]
        known = {each.name for each in own if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
        known.update(*(each.__annotations__ for each in typed))

        @functools.wraps(method)
        def with_known(self: Any, /, *args: Any, **named: Any) -> Any:
            if not named.keys() <= known:
                wrong = next(each for each in named if each not in known)
                if wrong in GROUP and "cursor" in known:
                    raise TypeError(
                        f"{type(self).__name__}.{method.__name__}() got an unexpected keyword argument {wrong!r}; the "
                        "first argument, the cursor, is Kafka's group.id"
                    )
                raise unexpected(wrong, known, _meant(known), of=f"{type(self).__name__}.{method.__name__}")
            return method(self, *args, **named)

        return with_known  # type: ignore[return-value]

    return decorate


def called(name: str) -> Callable[[F], F]:
    """Gives a function its public name in `kafkalog`, for errors, help and pickles."""

    def decorate(function: F) -> F:
        known = frozenset(inspect.signature(function).parameters)
        function.__qualname__ = f"kafkalog.{name}"  # Python's own errors about arguments use it

        @functools.wraps(function)
        def with_known(*args: Any, **named: Any) -> Any:
            for each in named:
                if each not in known:
                    raise unexpected(each, known, _meant(known), of=f"kafkalog.{name}")
            return function(*args, **named)

        with_known.__module__, with_known.__name__, with_known.__qualname__ = "kafkalog", name, name
        return with_known  # type: ignore[return-value]

    return decorate
