"""The cursors of a store that have an open reader. A second reader of a cursor is refused unless it is shared.

A cursor is a position, not a group: two readers of one cursor each get every record, and each moves the other's
position. A reader counts until it is closed or dropped. Thread-safe.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Protocol

from kafkalog.errors import IllegalStateException


class CursorReader(Protocol):
    """The part of a reader that is needed here (`kafkalog.reader.StoreReader`)."""

    @property
    def closed(self) -> bool: ...


class CursorReaders:
    """The open readers of one store."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may close a reader
        self._readers: dict[str, weakref.WeakSet[CursorReader]] = {}  # guarded by _lock

    def add(self, cursor: str, reader: CursorReader, *, shared: bool) -> None:
        """Raises IllegalStateException if another reader of the cursor is open, and this one is not `shared`."""
        if self._is_added(cursor, reader, shared):
            return
        gc.collect()  # a dropped reader and its iteration may refer to each other
        if not self._is_added(cursor, reader, shared):
            raise IllegalStateException(
                f"cursor {cursor!r} has a reader in this store already: a second one would also get every record, and "
                "each commit would move the other's position",
                hint="close() the first reader (if a notebook cell runs again: use `with store.reader(...)`, or call "
                "reader.close() at its start), choose another cursor, or pass shared=True if both are meant",
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
        """Removes a reader that was closed, or whose creation failed."""
        with self._lock:
            readers = self._readers.get(cursor)
            if readers is not None:
                readers.discard(reader)
                if not readers:
                    del self._readers[cursor]
