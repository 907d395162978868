"""The stores that this process has open for writing. A second open of a store returns a second handle of it.

    first = kafkalog.open("data")
    second = kafkalog.open("data")                            # the same directories, the same arguments
    first.close()                                             # `second` stays open; its close closes the store

A `StoreHandle` is a store's home with its own lifetime, producers and partitions. It shares everything else with the
home that was opened first, which is closed with the last handle. A handle that is dropped without a close no longer
counts. Only the handles hold the home: if the last one is dropped, the home releases its files as any dropped store
does.

A store is identified by the real paths of its directories and by the Files that it was opened with, because other Files
see another disk. `LOCK` guards the table and the handles of each home; nothing is opened or closed with it held. A
`_Place` lets one thread open it at a time. A forked child has none of this.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from kafkalog._face.store_home import HANDLES_LOCK as LOCK
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.files import Files
from kafkalog.engine.files.left_open import opened_at
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import values
from kafkalog.errors import LogDirLockedException

UNSHOWN = frozenset({"broker_config"})  # may contain passwords


class StoreHandle(StoreHome):
    """The result of one `kafkalog.open` for a store that may be open more than once."""

    def __init__(self, shared: StoreHome) -> None:
        vars(self).update(vars(shared))  # manager, topics, coordinators ... are the same
        self.shared: StoreHome = shared
        self.life = Life("kafkalog.open")
        self.producers = set()
        self._partitions = {}
        self._is_closed = False
        self.where = opened_at()
        self._left: weakref.ref[StoreHome] | None = None  # after the close: the store, if others have it open
        with LOCK:
            shared.handles.add(self)

    def close(self) -> None:
        """Ends everything that was created through this handle. The last close closes the store. A second call does
        nothing."""
        if self.life.forked or self._is_closed:
            return
        self.check_outside()
        self._close_producers()
        with self.shared.closing:  # an open waits for this, from before the moment when no handle can join
            was_last = self._ended()
            self._close_producers()  # producers that were created meanwhile
            self.bells.ring()
            if was_last:
                self.shared.close()
        if not was_last:
            self.coordinators.end_left()  # transactions that began through this handle
            self._left = weakref.ref(self.shared)
            self.shared = self  # a closed handle must not keep the store alive
        self._is_closed = True

    def _ended(self) -> bool:
        """Ends the handle's lifetime. Returns whether it was the last one."""
        with self.catalog.changing, LOCK:  # waits for a running change of topics
            self.life.end()
            self.shared.is_closing = not any(each.life.live for each in self.shared.handles)
            return self.shared.is_closing

    def others(self) -> list[str]:
        """Returns where other handles were opened, without waiting for a lock."""
        left = None if self._left is None or self.life.forked else self._left()
        return [] if left is None else [each.where for each in list(left.handles) if each.life.live]

    def abandon(self) -> None:
        """Releases the store as a crash does, for all its handles."""
        self.life.end()
        if self.shared is not self:
            self.shared.abandon()

    def __del__(self) -> None:  # type: ignore[override]
        """Does nothing: the shared home warns if it was dropped."""


class _Place:
    """Directories that are open, or are being opened."""

    def __init__(self) -> None:
        self.opening = threading.RLock()
        self.home: weakref.ref[StoreHome] | None = None
        self.given: Mapping[str, object] = {}
        self.files: Files | None = None
        self.where = ""
        self.log_dirs: Sequence[str] = ()

    def store(self) -> StoreHome | None:
        """Returns the open store that a handle may join, or None."""
        found = None if self.home is None else self.home()
        if found is None or found.is_closing or not found.life.live:
            return None
        with LOCK:
            return found if any(each.life.live for each in found.handles) else None

    def joined(self) -> StoreHandle | None:
        """Returns a handle of the open store; None if nobody has it open any more."""
        home = None if self.home is None else self.home()
        if home is None:
            return None
        with LOCK:
            if self.store() is home:
                return StoreHandle(home)
            users = list(home.handles) if home.is_closing else []
        for each in users:
            for producer in list(each.producers):
                producer.check_outside()  # in a callback: the close waits for it
        if home.is_closing and not home.closing._is_owned():  # type: ignore[attr-defined]
            with home.closing:  # waits until it is closed and its locks are released
                pass
        return None


_PLACES: dict[frozenset[str], _Place] = {}  # guarded by LOCK
os.register_at_fork(after_in_child=_PLACES.clear)


def open_or_join(
    paths: Sequence[str], given: Mapping[str, object], files: Files, make: Callable[[], StoreHome]
) -> StoreHandle:
    """Returns a handle of the store of `paths`: of the one that this process has open, or of the one that `make` opens.

    LogDirLockedException if it is open with other arguments than `given` (by name), or with other directories."""
    key = frozenset(map(os.path.realpath, paths))
    while True:
        place = _place(key)
        if place.opening._is_owned():  # type: ignore[attr-defined]
            return StoreHandle(make())  # a signal handler inside the same open: the directories' locks decide
        with place.opening:
            if _PLACES.get(key) is not place:
                continue
            try:
                return _open_at(place, key, paths, given, files, make)
            finally:
                with LOCK:
                    if place.store() is None and _PLACES.get(key) is place:
                        del _PLACES[key]


def _place(key: frozenset[str]) -> _Place:
    with LOCK:
        for other, place in list(_PLACES.items()):
            if place.home is not None and place.store() is None and other != key:
                del _PLACES[other]
        return _PLACES.setdefault(key, _Place())


def _open_at(
    place: _Place,
    key: frozenset[str],
    paths: Sequence[str],
    given: Mapping[str, object],
    files: Files,
    make: Callable[[], StoreHome],
) -> StoreHandle:
    if place.files is files:
        if place.store() is not None:
            _check_same(place, given)
        found = place.joined()
        if found is not None:
            return found
    beside = _overlapping(key, files)
    if beside is not None:
        _refuse(beside, "log_dirs", ", ".join(paths), "other log_dirs")
    before = place.store()  # with other Files, or being dropped
    try:
        home = make()
    except LogDirLockedException as error:
        if before is not None and place.files is not files:
            _refuse(place, "files", values.shown(files), f"files {values.shown(place.files)}", error)
        raise
    try:
        place.given, place.files, place.where, place.log_dirs = given, files, opened_at(), paths
        place.home = weakref.ref(home)
        home.where = place.where
        return StoreHandle(home)
    except BaseException:  # the code that handles an interrupt may open the directories again
        home.abandon()
        raise


def _overlapping(key: frozenset[str], files: Files) -> _Place | None:
    """Returns the place of other open directories that share some of these, or None."""
    with LOCK:
        for other, place in _PLACES.items():
            if other != key and other & key and place.files is files and place.store() is not None:
                return place
    return None


def _check_same(place: _Place, given: Mapping[str, object]) -> None:
    for name, value in given.items():
        before = place.given[name]
        if value is not before and value != before:
            shown = [values.shown(each) for each in (value, before)]
            if name in UNSHOWN or shown[0] == shown[1]:
                _refuse(place, name, "another value", "the value of the first open")
            _refuse(place, name, shown[0], f"{name} {shown[1].removeprefix('str ')}")


def _refuse(place: _Place, name: str, found: str, opened_with: str, cause: BaseException | None = None) -> NoReturn:
    raise LogDirLockedException(
        f"{name}: found {found}, but the store of {', '.join(place.log_dirs)} is open in this process already "
        f"({place.where}) with {opened_with}",
        hint="close it first, pass the same arguments for a second handle of it, or open it with read_only=True",
    ) from cause
