"""OffsetIndex: finds the file position near an offset in the .log file.

An entry has 8 bytes: an int32 offset relative to the base offset, and the int32 position of a batch that ends at that
offset. The index is sparse: it has about one entry per index.interval.bytes. Mirrors
org.apache.kafka.storage.internals.log.OffsetIndex (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog._limits import to_int32, to_int64
from kafkalog._native.state import search
from kafkalog.engine.format.index_entries import OFFSET_ENTRY
from kafkalog.engine.segment.index import INDEX_FULL_HINT, AbstractIndex
from kafkalog.engine.segment.types import OffsetPosition
from kafkalog.errors import CorruptIndexException, IllegalArgumentException, InvalidOffsetException


class OffsetIndex(AbstractIndex):
    """Entries grow in both offset and position; `last_offset` is the base offset while there are no entries."""

    layout = OFFSET_ENTRY
    kind = OffsetPosition
    key_column = offset_column = search.OFFSET

    def _entries_changed(self) -> None:
        self.last_offset = to_int64(self._parse(self.entries - 1).offset) if self.entries else self.base_offset

    def _parse(self, slot: int) -> OffsetPosition:
        relative, position = OFFSET_ENTRY.unpack(self._entry_bytes(slot))
        return OffsetPosition(self.base_offset + relative, position)

    if TYPE_CHECKING:

        def lookup(self, target: int) -> OffsetPosition:
            """Returns the last entry at or below the offset `target`, or (base offset, 0)."""

    def append(self, offset: int, position: int) -> None:
        """Adds an entry.

        Raises IllegalArgumentException if the index is full, InvalidOffsetException unless `offset` is above the last
        one.
        """
        self.check_append(offset, self.entries, self.last_offset)
        self._write_entries(OFFSET_ENTRY.pack(self.relative_offset(offset), position), 1, offset)

    def check_append(self, offset: int, entries: int, last_offset: int) -> None:
        """Raises what `append` would raise with this number of entries and this last offset."""
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
        """Adds entries, in one write. A native plan has laid them out and checked them."""
        count = len(data) // OFFSET_ENTRY.size
        if count:
            assert self.entries + count <= self.max_entries, self
            first, _ = OFFSET_ENTRY.unpack_from(data)
            relative, _ = OFFSET_ENTRY.unpack_from(data, len(data) - OFFSET_ENTRY.size)
            # Invariant: entries grow.
            assert first <= relative, self
            assert not self.entries or self.base_offset + first > self.last_offset, self
            self._write_entries(data, count, to_int64(self.base_offset + relative))

    def entry(self, n: int) -> OffsetPosition:
        """Returns the n-th entry. Raises IllegalArgumentException beyond the last."""
        if not 0 <= n < self.entries:
            raise IllegalArgumentException(
                f"Attempt to fetch the {n}th entry from index {self.path}, which has size {self.entries}"
            )
        return self._parse(n)

    def fetch_upper_bound_offset(self, fetch_offset: OffsetPosition, fetch_size: int) -> OffsetPosition | None:
        """Returns the first entry after the `fetch_size` bytes from `fetch_offset.position`, or None.

        An entry exactly at the end of these bytes counts, as in Kafka's search.
        """
        if self.entries == 0:
            return None
        slot = self._find(search.BYTE_POSITION, to_int32(fetch_offset.position + fetch_size), True)
        return None if slot < 0 else self._parse(slot)

    def sanity_check(self) -> None:
        if self.entries and self.last_offset < self.base_offset:
            raise CorruptIndexException(
                f"Corrupt index found, index file {self.path} has non-zero size but the last offset is "
                f"{self.last_offset} which is less than the base offset {self.base_offset}"
            )
        if self.length % OFFSET_ENTRY.size:
            raise CorruptIndexException(
                f"Index file {self.path} is corrupt, found {self.length} bytes which is neither positive nor a "
                f"multiple of {OFFSET_ENTRY.size}"
            )
