"""The stores that this process has open for writing: who opens one again gets a second handle of the same store.

    first = kafkalog.open("data")
    second = kafkalog.open("data")                            # the same directories, the same arguments
    first.close()                                             # `second` goes on; its close closes the store

A `StoreHandle` is a store's home with a life, producers and partitions of its own; all else it shares with the home
that was opened first, which is closed with the last handle.  A handle that is dropped without a close counts no more.
The home is held by its handles alone: if the last one is dropped, it lets go as any dropped store does.

A store is known by the real paths of its directories and by the Files that it was opened with: another Files sees
another disk.  `LOCK` guards the table and which handles a home has; nothing is opened or closed with it held.  A
`_Place` has one thread open it at a time.  A forked child has none of this.
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

UNSHOWN = frozenset({"broker_config"})  # it may have passwords


class StoreHandle(StoreHome):
    """What one `kafkalog.open` gives of a store that may be open more than once."""

    def __init__(self, shared: StoreHome) -> None:
        vars(self).update(vars(shared))  # manager, topics, coordinators ... are the same
        self.shared: StoreHome = shared
        self.life = Life("kafkalog.open")
        self.producers = set()
        self._partitions = {}
        self._is_closed = False
        self.where = opened_at()
        self._left: weakref.ref[StoreHome] | None = None  # the store that others have open, once this one is closed
        with LOCK:
            shared.handles.add(self)

    def close(self) -> None:
        """Ends what was made through this handle; the last one closes the store.  A second call does nothing."""
        if self.life.forked or self._is_closed:
            return
        self.check_outside()
        self._close_producers()
        with self.shared.closing:  # who opens the store waits for this, from before nobody may join it any more
            was_last = self._ended()
            self._close_producers()  # those that were made meanwhile
            self.bells.ring()
            if was_last:
                self.shared.close()
        if not was_last:
            self.coordinators.end_left()  # transactions that were begun through this handle
            self._left = weakref.ref(self.shared)
            self.shared = self  # who keeps a closed handle keeps no store from being dropped
        self._is_closed = True

    def _ended(self) -> bool:
        """Ends the handle's life; whether it was the last one."""
        with self.catalog.changing, LOCK:  # a change of topics that is under way is finished
            self.life.end()
            self.shared.is_closing = not any(each.life.live for each in self.shared.handles)
            return self.shared.is_closing

    def others(self) -> list[str]:
        """As Home; waits for nobody."""
        left = None if self._left is None or self.life.forked else self._left()
        return [] if left is None else [each.where for each in list(left.handles) if each.life.live]

    def abandon(self) -> None:
        """Lets go of the store as a crash does, under all its handles."""
        self.life.end()
        if self.shared is not self:
            self.shared.abandon()

    def __del__(self) -> None:  # type: ignore[override]
        """Nothing: what it shares says so if it was dropped."""


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
        """The store that is open there, which a handle may join; None where none is."""
        found = None if self.home is None else self.home()
        if found is None or found.is_closing or not found.life.live:
            return None
        with LOCK:
            return found if any(each.life.live for each in found.handles) else None

    def joined(self) -> StoreHandle | None:
        """A handle of the store that is open there; None where nobody has it open any more."""
        home = None if self.home is None else self.home()
        if home is None:
            return None
        with LOCK:
            if self.store() is home:
                return StoreHandle(home)
            users = list(home.handles) if home.is_closing else []
        for each in users:
            for producer in list(each.producers):
                producer.check_outside()  # a callback, for which the close waits
        if home.is_closing and not home.closing._is_owned():  # type: ignore[attr-defined]
            with home.closing:  # until it is closed, which gives the locks back
                pass
        return None


_PLACES: dict[frozenset[str], _Place] = {}  # guarded by LOCK
os.register_at_fork(after_in_child=_PLACES.clear)


def open_or_join(
    paths: Sequence[str], given: Mapping[str, object], files: Files, make: Callable[[], StoreHome]
) -> StoreHandle:
    """A handle of the store of `paths`: of the one that this process has open, or of what `make` opens.

    LogDirLockedException where it is open with others than `given`, by name, or with other directories."""
    key = frozenset(map(os.path.realpath, paths))
    while True:
        place = _place(key)
        if place.opening._is_owned():  # type: ignore[attr-defined]
            return StoreHandle(make())  # a signal's handler, inside of the same open: the directories' locks decide
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
        _refuse(beside, "log_dirs", ", ".join(paths), ", ".join(beside.log_dirs))
    before = place.store()  # of other Files, or one that is being dropped
    try:
        home = make()
    except LogDirLockedException as error:
        if before is not None and place.files is not files:
            _refuse(place, "files", values.shown(files), values.shown(place.files), error)
        raise
    try:
        place.given, place.files, place.where, place.log_dirs = given, files, opened_at(), paths
        place.home = weakref.ref(home)
        home.where = place.where
        return StoreHandle(home)
    except BaseException:  # whoever handles an interrupt may open the directories again
        home.abandon()
        raise


def _overlapping(key: frozenset[str], files: Files) -> _Place | None:
    """Other directories that are open, and have some of these among them."""
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
                shown = ["another one", "that of the first open"]
            _refuse(place, name, shown[0], shown[1])


def _refuse(place: _Place, name: str, found: str, expected: str, cause: BaseException | None = None) -> NoReturn:
    raise LogDirLockedException(
        f"{name}: found {found}, expected {expected}: the store of {', '.join(place.log_dirs)} is open in this process "
        f"already ({place.where})",
        hint="give the same arguments for a second handle of it, close it first, or open it with read_only=True",
    ) from cause
