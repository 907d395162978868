"""OffsetIndex: where in the .log file to look for an offset.

8-byte entries: int32 offset less the base offset, int32 position of a batch that ends at that offset.  Sparse: one
entry about every index.interval.bytes.  Mirrors org.apache.kafka.storage.internals.log.OffsetIndex (4.4.0).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafkalog._native import search
from kafkalog.errors import CorruptIndexException, IllegalArgumentException, InvalidOffsetException
from kafkalog.files import Files
from kafkalog.limits import to_int32, to_int64
from kafkalog.segment.index import INDEX_FULL_HINT, ONE_AT_A_TIME, AbstractIndex, View
from kafkalog.segment.types import OffsetPosition

ENTRY = struct.Struct(">ii")  # offset - base offset, position
new_tuple = tuple.__new__  # a named tuple without the Python call of its own __new__
OFFSET = (struct.Struct(">i"), 0, False)
POSITION_UPPER_BOUND = (struct.Struct(">i"), 4, True)


class OffsetIndex(AbstractIndex):
    """Entries grow in both offset and position; `last_offset` is the base offset while there are none."""

    entry_size = ENTRY.size

    def __init__(
        self, path: str, base_offset: int, max_index_size: int, files: Files, *, read_only: bool = False
    ) -> None:
        super().__init__(path, base_offset, max_index_size, files, read_only=read_only)
        self._entries_changed()

    def _entries_changed(self) -> None:
        self.last_offset = to_int64(self._parse(self.entries - 1).offset) if self.entries else self.base_offset

    def _parse(self, slot: int) -> OffsetPosition:
        relative, position = ENTRY.unpack(self._entry_bytes(slot))
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Adds an entry.

        IllegalArgumentException when the index is full, InvalidOffsetException unless `offset` grows.
        """
        self.check_append(offset, self.entries, self.last_offset)
        self._write_entries(ENTRY.pack(self.relative_offset(offset), position), 1, offset)

    def check_append(self, offset: int, entries: int, last_offset: int) -> None:
        """Raises what `append` raises when there are so many entries, the last of them `last_offset`."""
        if entries >= self.max_entries:
            raise IllegalArgumentException(
                f"Attempt to append to a full index (size = {entries}).", path=self.path, hint=INDEX_FULL_HINT
            )
        if entries and offset <= last_offset:
            raise InvalidOffsetException(
                f"Attempt to append an offset {offset} to position {entries} no larger than the last offset appended "
                f"({last_offset}) to {self.path}"
            )
        self.relative_offset(offset)

    def append_packed(self, data: bytes | memoryview) -> None:
        """Adds entries that a native plan has laid out and checked; one write."""
        count = len(data) // ENTRY.size
        if count:
            assert self.entries + count <= self.max_entries, self
            relative, _ = ENTRY.unpack_from(data, len(data) - ENTRY.size)
            self._write_entries(data, count, to_int64(self.base_offset + relative))

    def lookup(self, target_offset: int) -> OffsetPosition:
        """The last entry at or below `target_offset`, or (base offset, 0)."""
        base = self.base_offset
        view, count = self._view, self.entries
        if count == 0:
            return OffsetPosition(base, 0)
        if view is not None and not ONE_AT_A_TIME:
            # As below, without its calls: nearly every lookup.
            try:
                return new_tuple(OffsetPosition, search.lookup_offset(view, count, base, target_offset))
            except ValueError:
                pass  # the map was closed since we took it, or ends before the entries

        def look(view: View, entries: int) -> OffsetPosition:
            if entries * ENTRY.size <= len(view):
                slot = search.find_offset(view, entries, base, target_offset)
            else:
                slot = self._find_past_end(view, entries, OFFSET, target_offset - base)
            if slot < 0:
                return OffsetPosition(base, 0)
            relative, position = ENTRY.unpack_from(view, slot * ENTRY.size)
            return OffsetPosition(base + relative, position)

        return self._search(look)

    def lookup_position(self, target_offset: int) -> int:
        """`lookup(target_offset).position`."""
        view, count = self._view, self.entries
        if count and view is not None and not ONE_AT_A_TIME:
            try:
                return search.lookup_position(view, count, self.base_offset, target_offset)
            except ValueError:
                pass  # as above
        return self.lookup(target_offset)[1]

    def entry(self, n: int) -> OffsetPosition:
        """The n-th entry; IllegalArgumentException beyond the last."""
        if not 0 <= n < self.entries:
            raise IllegalArgumentException(
                f"Attempt to fetch the {n}th entry from index {self.path}, which has size {self.entries}"
            )
        return self._parse(n)

    def all_entries(self) -> list[OffsetPosition]:
        """Every entry; for dumps and checks."""
        base = self.base_offset
        data = self._search(lambda view, entries: bytes(view[: entries * ENTRY.size]))
        return [OffsetPosition(base + relative, position) for relative, position in ENTRY.iter_unpack(data)]

    def fetch_upper_bound_offset(self, fetch_offset: OffsetPosition, fetch_size: int) -> OffsetPosition | None:
        """The first entry behind the `fetch_size` bytes from `fetch_offset.position`; None when there is none.

        An entry exactly at that position is the answer, as in Kafka's search.
        """
        if self.entries == 0:
            return None
        target = to_int32(fetch_offset.position + fetch_size)

        def look(view: View, entries: int) -> int:
            if entries * ENTRY.size <= len(view):
                return search.find_position_upper_bound(view, entries, target)
            return self._find_past_end(view, entries, POSITION_UPPER_BOUND, target)

        slot = self._search(look)
        return None if slot < 0 else self._parse(slot)

    def truncate_to(self, offset: int) -> None:
        if self.entries == 0:
            self._truncate_to_entries(0)
            return
        base = self.base_offset

        def look(view: View, entries: int) -> int:
            if entries * ENTRY.size <= len(view):
                return search.find_offset(view, entries, base, offset)
            return self._find_past_end(view, entries, OFFSET, offset - base)

        slot = self._search(look)
        if slot < 0:
            self._truncate_to_entries(0)
        else:
            self._truncate_to_entries(slot if self._parse(slot).offset == offset else slot + 1)

    def sanity_check(self) -> None:
        if self.entries and self.last_offset < self.base_offset:
            raise CorruptIndexException(
                f"Corrupt index found, index file {self.path} has non-zero size but the last offset is "
                f"{self.last_offset} which is less than the base offset {self.base_offset}"
            )
        if self.length % ENTRY.size:
            raise CorruptIndexException(
                f"Index file {self.path} is corrupt, found {self.length} bytes which is neither positive nor a "
                f"multiple of {ENTRY.size}"
            )


def pack_entries(entries: Sequence[OffsetPosition], base_offset: int) -> bytes:
    """The bytes of `entries` in an index of `base_offset`."""
    return b"".join(ENTRY.pack(offset - base_offset, position) for offset, position in entries)
