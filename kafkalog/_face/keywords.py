"""Keywords of calls: one that does not exist is told with the nearest that does, under the name that users call by."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
# Words of others, for what a call may have: the first that it has.
MEANT = {
    "after": ("start",), "since": ("start",), "from_": ("start",), "before": ("end",), "until": ("end",),
    "to": ("end",), "as_of": ("end",), "topic": ("topics", "partitions"), "partition": ("partitions",),
    "limit": ("last",), "tail": ("last",),
    "mode": ("read_only",), "fsync": ("durability",), "flush": ("durability",), "sync": ("durability",),
}  # fmt: skip


GROUP = frozenset({"group", "group_id", "groupId", "consumer_group"})  # Kafka's words for a cursor


def unexpected(name: str, known: Iterable[str], meant: Mapping[str, str] | None = None, *, of: str = "") -> TypeError:
    """The error for a keyword; `meant` has words of others for what is known here, `of` the call's name."""
    from difflib import get_close_matches

    near = get_close_matches((meant or {}).get(name, name), sorted(set(known) - {name}), 1)
    who = f"{of}() got an " if of else ""
    return TypeError(f"{who}unexpected keyword argument {name!r}" + "".join(f"; did you mean {it!r}?" for it in near))


def _meant(known: Collection[str]) -> dict[str, str]:
    return {word: near for word, nears in MEANT.items() for near in nears[::-1] if near in known}


def takes(*typed: type) -> Callable[[F], F]:
    """Has a method tell of a keyword that does not exist under the name by which users call it.  `typed` are the
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
    """Gives a function the name in `kafkalog` by which users call it, for its errors, help and pickles."""

    def decorate(function: F) -> F:
        known = frozenset(inspect.signature(function).parameters)
        function.__qualname__ = f"kafkalog.{name}"  # which Python's own errors of arguments say

        @functools.wraps(function)
        def with_known(*args: Any, **named: Any) -> Any:
            for each in named:
                if each not in known:
                    raise unexpected(each, known, _meant(known), of=f"kafkalog.{name}")
            return function(*args, **named)

        with_known.__module__, with_known.__name__, with_known.__qualname__ = "kafkalog", name, name
        return with_known  # type: ignore[return-value]

    return decorate
