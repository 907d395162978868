"""Which cursors of a store have a reader that lives: a second one is refused, unless it is meant.

A cursor is a place, and no group: readers of one name each get every record, and move each other's place.  A reader
counts until it is closed or dropped.  Thread-safe.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Protocol

from kafkalog.errors import IllegalStateException


class CursorReader(Protocol):
    """What is asked of a reader (`kafkalog.reader.StoreReader`)."""

    @property
    def closed(self) -> bool: ...


class CursorReaders:
    """Of one store."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may close a reader
        self._readers: dict[str, weakref.WeakSet[CursorReader]] = {}  # guarded by _lock

    def add(self, cursor: str, reader: CursorReader, *, shared: bool) -> None:
        """IllegalStateException if another reader of the name lives, and this one does not say that it is shared."""
        if self._is_added(cursor, reader, shared):
            return
        gc.collect()  # a dropped one and its iteration may hold each other
        if not self._is_added(cursor, reader, shared):
            raise IllegalStateException(
                f"cursor {cursor!r} has a reader in this store already: a second one would get every record too, and "
                "each commit would move the other's place",
                hint="close() that one first (as a notebook's cell that is run again does: `with store.reader(...)`, "
                "or reader.close() at its start), choose another cursor, or give shared=True if both are meant",
            )

    def _is_added(self, cursor: str, reader: CursorReader, shared: bool) -> bool:
        with self._lock:
            if not shared and self._has_live(cursor):
                return False
            self._readers.setdefault(cursor, weakref.WeakSet()).add(reader)
            return True

    def _has_live(self, cursor: str) -> bool:
        return any(not each.closed for each in self._readers.get(cursor, ()))

    def remove(self, cursor: str, reader: CursorReader) -> None:
        """It was closed, or never made whole."""
        with self._lock:
            readers = self._readers.get(cursor)
            if readers is not None:
                readers.discard(reader)
                if not readers:
                    del self._readers[cursor]
