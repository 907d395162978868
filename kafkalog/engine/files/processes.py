"""Open objects belong to the process that opened them: in a forked child they refuse use, and touch nothing.

A child of `os.fork` gets copies of all objects, but shares their files, and has none of the threads.  An object that
the child must not use registers itself with `belongs_here`.  In the child `disown()` is called on each: it closes
copies of descriptors, creates locks again that another thread may have held, and refuses use from then on.  `Life` is
the quick check at the beginning of every call of an open log.
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
    """An object with resources that a child of a fork must not touch."""

    def disown(self) -> None:
        """Releases the resources without touching the disk, and refuses every use from now on.  Called in the child."""


class ForkLock(Protocol):
    """A re-entrant lock, such as threading.RLock."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


_T = TypeVar("_T", bound=ForkAware)
_generation = 0
_OBJECTS: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def belongs_here(thing: _T) -> _T:
    """Calls `thing.disown()` in every child that is forked from now on, if `thing` still exists then."""
    _OBJECTS.add(thing)
    return thing


def generation() -> int:
    """Returns a number that is different in a child and its parent: one quick check instead of many."""
    return _generation


_Owner = TypeVar("_Owner")
_Value = TypeVar("_Value")


class made_once(Generic[_Owner, _Value]):  # noqa: N801 - a decorator
    """A property that is computed at its first use, like functools.cached_property, but without a lock.

    Before Python 3.12, cached_property has a lock, which stays locked in a child that is forked while a thread holds
    it.  Two threads may both compute the value; one value stays.
    """

    def __init__(self, make: Callable[[_Owner], _Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self._name = make.__name__

    def __get__(self, owner: _Owner, of: type[_Owner] | None = None) -> _Value:
        value = self._make(owner)
        owner.__dict__[self._name] = value
        return value


def processors() -> int:
    """Returns how many processors this process may use.  A quota of processor time is not considered."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def held_over_forks(lock: ForkLock) -> None:
    """Lets the process fork only while no other thread holds `lock`.

    For a module's re-entrant lock that is held for short sections.
    """
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
            _log.exception("%r was not released in the child of a fork", thing)


os.register_at_fork(after_in_child=_disown_all)


class Life:
    """Whether an object may be used: `live` from its creation until `end()`, or until this is a forked child."""

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
        """Returns the error for a use in a forked child."""
        return opened_elsewhere(what, self.pid)

    def refusal(self, what: str) -> IllegalStateException:
        """Returns the error for a use of a closed object, or of another process's."""
        if self.forked:
            return self.elsewhere(what)
        return IllegalStateException(f"{what} is closed", hint=f"{self._opens} opens it again")


def opened_elsewhere(what: str, pid: int) -> IllegalStateException:
    """Returns the error for a use in a forked child of an object that process `pid` opened."""
    return IllegalStateException(
        f"{what} was opened by process {pid}, and this is process {os.getpid()}, forked from it",
        hint="open it in this process, after the other has closed it, or with read_only=True to read while it is open",
    )
