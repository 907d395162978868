"""What is open belongs to the process that opened it: a forked child is told at once, and touches nothing.

A child of `os.fork` gets copies of every object, but shares the files below them, and has none of the threads.  What
it must not use registers itself with `belongs_here`; in the child `disown()` is called on each: it forgets (closes
copies of descriptors, makes locks anew that another thread may have held) and refuses from then on.  `Life` is the
quick question that every call of an open log asks first.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kafkalog.engine.files.lines import Lines
from kafkalog.errors import IllegalStateException

_log = Lines("kafkalog.files")  # about no partition


class ForkAware(Protocol):
    """What holds something that a child of a fork must not touch."""

    def disown(self) -> None:
        """In the child, alone: let go without touching the disk, and refuse every use from now on."""


class ForkLock(Protocol):
    """A re-entrant lock, such as threading.RLock."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


_T = TypeVar("_T", bound=ForkAware)
_generation = 0
_OBJECTS: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def belongs_here(thing: _T) -> _T:
    """Have `thing.disown()` called in every child that is forked from now on, as long as it lives."""
    _OBJECTS.add(thing)
    return thing


def generation() -> int:
    """Another number in a child than in its parent: one quick question instead of many."""
    return _generation


_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")


class made_once(Generic[_Owner, _Value]):  # noqa: N801 - a decorator
    """A property that is made when it is first asked for, as functools.cached_property, but without a lock: before
    Python 3.12 that one has one, which stays locked in a child that is forked beside a thread inside of it.  Two
    threads may both make the value, and one stays."""

    def __init__(self, make: Callable[[_Owner], _Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self._name = make.__name__

    def __get__(self, owner: _Owner, of: type[_Owner] | None = None) -> _Value:
        value = self._make(owner)
        owner.__dict__[self._name] = value
        return value


def processors() -> int:
    """How many processors this process may use (a quota of time on them is not asked for)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def held_over_forks(lock: ForkLock) -> None:
    """Fork only while no other thread is inside: for a module's re-entrant lock whose sections are short."""
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _disown_all() -> None:
    global _generation
    _generation += 1
    things = list(_OBJECTS)
    _OBJECTS.clear()
    for thing in things:
        try:
            thing.disown()
        except Exception:
            _log.exception("%r was not let go in the child of a fork", thing)


os.register_at_fork(after_in_child=_disown_all)


class Life:
    """Whether something may be used: `live` from its making until `end()`, or until this is a forked child."""

    __slots__ = ("__weakref__", "_opens", "forked", "live", "pid")

    def __init__(self, opens: str = "kafkalog.open_log") -> None:
        self._opens = opens
        self.live = True
        self.forked = False
        self.pid = os.getpid()
        belongs_here(self)

    def end(self) -> None:
        self.live = False

    def disown(self) -> None:
        self.live = False
        self.forked = True

    def elsewhere(self, what: str) -> IllegalStateException:
        """The error for a use in a forked child."""
        return opened_elsewhere(what, self.pid)

    def refusal(self, what: str) -> IllegalStateException:
        """The error for a use of what is closed, or of another process."""
        if self.forked:
            return self.elsewhere(what)
        return IllegalStateException(f"{what} is closed", hint=f"{self._opens} opens it again")


def opened_elsewhere(what: str, pid: int) -> IllegalStateException:
    """The error for a use in a forked child of something that process `pid` opened."""
    return IllegalStateException(
        f"{what} was opened by process {pid}, and this is process {os.getpid()}, forked from it",
        hint="open it in this process, after the other has closed it, or with read_only=True to look beside it",
    )
