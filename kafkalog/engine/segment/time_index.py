"""TimeIndex: finds the offset from which a segment's records reach a timestamp.

An entry has 12 bytes: an int64 timestamp in ms, and an int32 offset relative to the base offset. It says that no batch
up to that offset has a larger maximum timestamp. One slot is kept free for the entry that closing the segment adds.
Mirrors org.apache.kafka.storage.internals.log.TimeIndex (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog._limits import to_int64
from kafkalog._native.state import search
from kafkalog.engine.format.index_entries import TIME_ENTRY
from kafkalog.engine.segment.index import INDEX_FULL_HINT, AbstractIndex
from kafkalog.engine.segment.types import TimestampOffset
from kafkalog.errors import (
    CorruptIndexException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidOffsetException,
)


class BufferOverflowException(IllegalStateException):
    """java.nio.BufferOverflowException: an index that counts its zeros as entries has no room for the last entry."""


class TimeIndex(AbstractIndex):
    """Timestamps of entries grow; `last_entry` is (-1, base offset) while there are no entries."""

    layout = TIME_ENTRY
    kind = TimestampOffset
    key_column, offset_column = search.TIME, search.TIME_OFFSET

    def _entries_changed(self) -> None:
        timestamp, offset = self._parse(self.entries - 1) if self.entries else (-1, self.base_offset)
        self.last = (timestamp, to_int64(offset))

    def _parse(self, slot: int) -> TimestampOffset:
        timestamp, relative = TIME_ENTRY.unpack(self._entry_bytes(slot))
        return TimestampOffset(timestamp, self.base_offset + relative)

    @property
    def last_entry(self) -> TimestampOffset:
        return TimestampOffset(*self.last)

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries - 1

    def maybe_append(self, timestamp: int, offset: int, skip_full_check: bool = False) -> None:
        """Adds an entry unless `timestamp` is that of the last entry.

        Raises IllegalArgumentException if the index is full, InvalidOffsetException if the offset decreases, and
        IllegalStateException if the timestamp decreases.
        """
        entries = self.entries
        self.check_append(timestamp, offset, entries, self.last_entry, skip_full_check=skip_full_check)
        if timestamp > self.last_timestamp:
            data = TIME_ENTRY.pack(timestamp, self.relative_offset(offset))
            if (entries + 1) * TIME_ENTRY.size - self.behind > self.length:
                raise BufferOverflowException(f"No room for a last entry in time index {self.path} (size = {entries}).")
            self._write_entries(data, 1, offset, timestamp)

    def check_append(
        self, timestamp: int, offset: int, entries: int, last_entry: TimestampOffset, *, skip_full_check: bool = False
    ) -> None:
        """Raises what `maybe_append` would raise with this number of entries and this last entry."""
        if not skip_full_check and entries >= self.max_entries - 1:
            raise IllegalArgumentException(
                f"Attempt to append to a full time index (size = {entries}).", path=self.path, hint=INDEX_FULL_HINT
            )
        last_timestamp, last_offset = last_entry
        if entries:
            if offset < last_offset:
                raise InvalidOffsetException(
                    f"Attempt to append an offset ({offset}) to slot {entries} no larger than the last offset "
                    f"appended ({last_offset}) to {self.path}"
                )
            if timestamp < last_timestamp:
                raise IllegalStateException(
                    f"Attempt to append a timestamp ({timestamp}) to slot {entries} no larger than the last timestamp "
                    f"appended ({last_timestamp}) to {self.path}"
                )
        if timestamp > last_timestamp:
            self.relative_offset(offset)

    def append_packed(self, data: bytes | memoryview) -> None:
        """Adds entries, in one write. A native plan has laid them out and checked them."""
        count = len(data) // TIME_ENTRY.size
        if count:
            assert self.entries + count < self.max_entries, self
            first, _ = TIME_ENTRY.unpack_from(data)
            timestamp, relative = TIME_ENTRY.unpack_from(data, len(data) - TIME_ENTRY.size)
            assert self.last_timestamp < first <= timestamp, self  # invariant: timestamps grow
            self._write_entries(data, count, to_int64(self.base_offset + relative), timestamp)

    if TYPE_CHECKING:

        def lookup(self, target: int) -> TimestampOffset:
            """Returns the last entry at or below the timestamp `target`, or (-1, base offset)."""

    def entry(self, n: int) -> TimestampOffset:
        """Returns the n-th entry. Raises IllegalArgumentException beyond the last."""
        if not 0 <= n < self.entries:
            raise IllegalArgumentException(
                f"Attempt to fetch the {n}th entry from time index {self.path} which has size {self.entries}"
            )
        return self._parse(n)

    def resize(self, new_size: int) -> bool:
        changed = super().resize(new_size)
        if changed and self.behind:
            self._entries_changed()  # the file's last entry is not the one that was written last
        return changed

    def sanity_check(self) -> None:
        if self.entries:
            timestamp, offset = self.last_entry
            first_timestamp = self._parse(0).timestamp
            if timestamp < first_timestamp:
                raise CorruptIndexException(
                    f"Corrupt time index found, time index file ({self.path}) has non-zero size but the last timestamp "
                    f"is {timestamp} which is less than the first timestamp {first_timestamp}"
                )
            if offset < self.base_offset:
                raise CorruptIndexException(
                    f"Corrupt time index found, time index file ({self.path}) has non-zero size but the last offset is "
                    f"{offset} which is less than the first offset {self.base_offset}"
                )
        if self.length % TIME_ENTRY.size:
            raise CorruptIndexException(
                f"Time index file {self.path} is corrupt, found {self.length} bytes which is neither positive nor a "
                f"multiple of {TIME_ENTRY.size}"
            )
