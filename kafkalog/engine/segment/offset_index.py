"""OffsetIndex: where in the .log file to look for an offset.

8-byte entries: int32 offset less the base offset, int32 position of a batch that ends at that offset.  Sparse: one
entry about every index.interval.bytes.  Mirrors org.apache.kafka.storage.internals.log.OffsetIndex (4.4.0).
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
    """Entries grow in both offset and position; `last_offset` is the base offset while there are none."""

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
            """The last entry at or below the offset `target`, or (base offset, 0)."""

    def append(self, offset: int, position: int) -> None:
        """Adds an entry.

        IllegalArgumentException when the index is full, InvalidOffsetException unless `offset` grows.
        """
        self.check_append(offset, self.entries, self.last_offset)
        self._write_entries(OFFSET_ENTRY.pack(self.relative_offset(offset), position), 1, offset)

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
        """The n-th entry; IllegalArgumentException beyond the last."""
        if not 0 <= n < self.entries:
            raise IllegalArgumentException(
                f"Attempt to fetch the {n}th entry from index {self.path}, which has size {self.entries}"
            )
        return self._parse(n)

    def fetch_upper_bound_offset(self, fetch_offset: OffsetPosition, fetch_size: int) -> OffsetPosition | None:
        """The first entry behind the `fetch_size` bytes from `fetch_offset.position`; None when there is none.

        An entry exactly at that position is the answer, as in Kafka's search.
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
