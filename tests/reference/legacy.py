"""Batches of magic 0 and 1, as Kafka's old producers and brokers wrote them: the package only reads them.

`Builder` does what MemoryRecordsBuilder and LegacyRecord (4.4.0) do for these formats; tests/golden holds it against
Kafka's bytes.  `builder_of` and `build_batch` take any magic; 2 is the package's own.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from kafkalog._limits import INT_MAX
from kafkalog.engine.format import codecs
from kafkalog.engine.format.builder import MemoryRecordsBuilder, RecordsInfo
from kafkalog.errors import IllegalArgumentException

LOG_OVERHEAD = 12
MESSAGE_OVERHEAD = (14, 22)  # by magic


def message(
    magic: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    codec: int = codecs.NONE,
    timestamp_type: str = "CreateTime",
) -> bytes:
    """One message from its CRC on (LegacyRecord.write)."""
    if timestamp < 0 and timestamp != -1:
        raise IllegalArgumentException(f"Invalid message timestamp {timestamp}")
    append_time = 8 if magic == 1 and timestamp_type == "LogAppendTime" else 0
    body = bytes([magic, codec | append_time]) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">I", zlib.crc32(body)) + body


def entry(offset: int, body: bytes) -> bytes:
    """A message with its offset and size in front."""
    return struct.pack(">qi", offset, len(body)) + body


def compress(codec: int, data: bytes, level: int | None = None, *, magic: int) -> bytes:
    """As `codecs.compress`; the header checksum of an lz4 frame in magic 0 hashes the frame's own magic, too."""
    packed = codecs.compress(codec, data, level)
    return packed[:6] + b"\x1a" + packed[7:] if magic == 0 and codec == codecs.LZ4 else packed


class Builder:
    """A run of messages, or one message with the others compressed inside; options as of MemoryRecordsBuilder."""

    def __init__(
        self,
        magic: int,
        *,
        codec: int = codecs.NONE,
        timestamp_type: str = "CreateTime",
        base_offset: int = 0,
        log_append_time: int = -1,
        producer_id: int = -1,
        is_transactional: bool = False,
        is_control_batch: bool = False,
        delete_horizon_ms: int = -1,
        level: int | None = None,
        **of_magic_2: object,
    ) -> None:
        if is_transactional or is_control_batch or codec == codecs.ZSTD or delete_horizon_ms != -1:
            raise IllegalArgumentException(f"Magic v{magic} cannot carry this")
        if level is not None:
            codecs.check_level(codec, level)
        self.magic, self.codec, self.level, self.timestamp_type = magic, codec, level, timestamp_type
        self.base_offset, self.log_append_time, self.producer_id = base_offset, log_append_time, producer_id
        self.num_records = 0
        self._entries: list[bytes] = []
        self._last_offset = base_offset - 1
        self._largest = (-1, -1)  # a timestamp and its offset

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Any] = (),
        offset: int | None = None,
    ) -> None:
        offset = self._last_offset + 1 if offset is None else offset
        if headers or (timestamp < 0 and timestamp != -1) or offset - self.base_offset > INT_MAX:
            raise IllegalArgumentException(f"Magic v{self.magic} cannot carry this")
        if self._entries and offset <= self._last_offset:
            raise IllegalArgumentException(f"Illegal offset {offset} following previous offset {self._last_offset}")
        if self.timestamp_type == "LogAppendTime":
            timestamp = self.log_append_time
        body = message(self.magic, timestamp, key, value, codecs.NONE, self.timestamp_type)
        is_relative = self.magic == 1 and self.codec != codecs.NONE
        self._entries.append(entry(offset - self.base_offset if is_relative else offset, body))
        self.num_records += 1
        self._last_offset = offset
        if self.magic == 1 and timestamp > self._largest[0]:
            self._largest = (timestamp, offset)

    def override_last_offset(self, last_offset: int) -> None:
        self._last_offset = last_offset

    @property
    def uncompressed_bytes_written(self) -> int:
        around = 0 if self.codec == codecs.NONE else LOG_OVERHEAD + MESSAGE_OVERHEAD[self.magic]
        return around + sum(map(len, self._entries))

    def info(self) -> RecordsInfo:
        is_wrapped = self.codec != codecs.NONE
        if self.timestamp_type == "LogAppendTime":
            return RecordsInfo(self.log_append_time, self._last_offset if is_wrapped else self.base_offset)
        timestamp, offset = self._largest
        return RecordsInfo(timestamp, self._last_offset if is_wrapped and timestamp != -1 else offset)

    def build(self) -> bytes:
        if self.producer_id != -1:
            raise IllegalArgumentException(f"Idempotent messages are not supported for magic {self.magic}")
        plain = b"".join(self._entries)
        if self.codec == codecs.NONE or not plain:
            return plain
        timestamp = self.log_append_time if self.timestamp_type == "LogAppendTime" else self._largest[0]
        packed = compress(self.codec, plain, self.level, magic=self.magic)
        return entry(self._last_offset, message(self.magic, timestamp, None, packed, self.codec, self.timestamp_type))


def builder_of(magic: int, **options: Any) -> Builder | MemoryRecordsBuilder:
    return Builder(magic, **options) if magic < 2 else MemoryRecordsBuilder(**options)


def build_batch(
    rows: Iterable[tuple[int, bytes | None, bytes | None, Sequence[Any]]], *, magic: int = 2, **options: Any
) -> bytes:
    """One batch of (timestamp, key, value, headers) at consecutive offsets."""
    builder = builder_of(magic, **options)
    for row in rows:
        builder.append(*row)
    return builder.build()
