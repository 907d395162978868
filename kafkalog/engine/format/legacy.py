"""Magic 0 and 1: single messages and compressed wrappers (LegacyRecord, AbstractLegacyRecordBatch, 4.4.0).

An entry consists of an offset, a size and a message: CRC-32, magic, attributes, [magic 1: timestamp], key, value.  A
compressed wrapper is a message whose value holds entries; its offset is that of its last inner message.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from kafkalog import errors
from kafkalog._limits import ARRAY_BYTES_MAX, to_int64
from kafkalog._native.codec.records import Record
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MIN_RECORD_OVERHEAD,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_FLAG,
)
from kafkalog.engine.format.octets import octets
from kafkalog.errors import CorruptRecordException, InvalidRecordException

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader

RECORD_OVERHEAD = (14, 22)  # bytes of a message with empty key and value, by magic

# The fields of an entry before its key, by magic.  The key and the value follow, each after its size in four bytes.
ENTRY_FIELDS = ("offset", "messageSize", "crc", "magic", "attributes", "timestamp")
ENTRY_HEADERS = (struct.Struct(">qiIbb"), struct.Struct(">qiIbbq"))

_ENTRY = struct.Struct(">qi")
_SIZE = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")


def record_overhead(magic: int) -> int:
    """Returns the bytes of a message apart from its key and value; raises IllegalArgumentException unless magic is 0 or
    1."""
    if magic not in (0, 1):
        raise errors.IllegalArgumentException(f"Invalid magic used in LegacyRecord: {magic}")
    return RECORD_OVERHEAD[magic]


class Entry(NamedTuple):
    """One message: its absolute offset, its bytes from the CRC on, and its wrapper's timestamp and type."""

    offset: int
    message: memoryview
    wrapper_timestamp: int | None = None
    wrapper_timestamp_type: str | None = None

    @property
    def magic(self) -> int:
        magic = self.message[4]
        return magic if magic < 0x80 else magic - 0x100

    @property
    def codec(self) -> int:
        return self.message[5] & CODEC_MASK

    @property
    def timestamp_type(self) -> str:
        if self.magic == 0:
            return NO_TIMESTAMP_TYPE
        if self.wrapper_timestamp_type is not None:
            return self.wrapper_timestamp_type
        return LOG_APPEND_TIME if self.message[5] & TIMESTAMP_TYPE_FLAG else CREATE_TIME

    @property
    def timestamp(self) -> int:
        if self.magic == 0:
            return -1
        if self.wrapper_timestamp_type == LOG_APPEND_TIME and self.wrapper_timestamp is not None:
            return self.wrapper_timestamp
        if len(self.message) < 14:
            raise codecs.IndexOutOfBoundsException("A message ends inside its timestamp")
        timestamp: int = _TIMESTAMP.unpack_from(self.message, 6)[0]
        return timestamp

    @property
    def _key_at(self) -> int:
        return 6 if self.magic == 0 else 14

    @property
    def key(self) -> memoryview | None:
        return _sized(self.message, self._key_at)

    @property
    def has_key(self) -> bool:
        """Whether the size field declares a key; the key's bytes may be missing."""
        return _size(self.message, self._key_at) >= 0

    @property
    def has_value(self) -> bool:
        """Whether the size field declares a value; the value's bytes may be missing."""
        return _size(self.message, self._value_at) >= 0

    @property
    def _value_at(self) -> int:
        at = self._key_at
        return at + 4 + max(0, _size(self.message, at))

    def key_and_value(self) -> tuple[memoryview | None, memoryview | None]:
        return self.key, self.value()

    def value(self) -> memoryview | None:
        return _sized(self.message, self._value_at)

    def ensure_valid(self) -> None:
        """LegacyRecord.ensureValid: raises CorruptRecordException if the message's CRC-32 does not match."""
        stored = int.from_bytes(self.message[:4], "big")
        computed = zlib.crc32(self.message[4:])
        if stored != computed:
            raise CorruptRecordException(f"Record is corrupt (stored crc = {stored}, computed crc = {computed})")

    def to_record(self) -> Record:
        key, value = self.key_and_value()
        return Record(
            self.offset,
            self.timestamp,
            self.timestamp_type,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            (),
            -1,
            self.magic,
            len(self.message) + LOG_OVERHEAD,
        )


def _size(message: memoryview, at: int) -> int:
    if len(message) - at < 4:
        raise codecs.IndexOutOfBoundsException("A message ends before or inside a size field")
    size: int = _SIZE.unpack_from(message, at)[0]
    return size


def _sized(message: memoryview, at: int) -> memoryview | None:
    size = _size(message, at)
    if size < 0:
        return None
    at += 4
    if size > len(message) - at:
        raise codecs.IllegalArgumentException(f"A message of {len(message)} bytes cannot hold {size} at {at}")
    return message[at : at + size]


def entries(
    data: Buffer,
    at: int,
    size: int,
    *,
    max_record_bytes: int = ARRAY_BYTES_MAX,
    max_bytes: int = ARRAY_BYTES_MAX,
) -> list[Entry]:
    """Returns the messages of the batch of `size` bytes at `data[at]`: the message itself, or its wrapper's inner
    messages.

    Raises InvalidRecordException for a wrapper that breaks the format and CorruptRecordException for inner sizes below
    14.  Raises KafkaException (also a CorruptRecordException) if the wrapper does not decompress.  CRCs are not
    checked.
    """
    view = memoryview(octets(data, "records"))[at : at + size]
    if len(view) < LOG_OVERHEAD + MIN_RECORD_OVERHEAD:
        raise InvalidRecordException(f"A batch of {len(view)} bytes is too short for its header")
    outer = Entry(_ENTRY.unpack_from(view)[0], view[LOG_OVERHEAD:])
    codecs.check_codec(outer.codec)
    if outer.codec == codecs.NONE:
        return [outer]
    if not 0 <= outer.magic <= 1:
        raise InvalidRecordException(f"Invalid wrapper magic found in legacy deep record iterator {outer.magic}")
    if outer.codec == codecs.ZSTD:
        raise InvalidRecordException(
            f"Invalid wrapper compressionType found in legacy deep record iterator {outer.magic}"
        )
    value = outer.value()
    if value is None:
        raise InvalidRecordException(f"Found invalid compressed record set with null value (magic = {outer.magic})")
    payload, failure = codecs.decompress_partial(outer.codec, value, magic=outer.magic, max_bytes=max_bytes)
    found = _inner(memoryview(payload), outer, max_record_bytes)
    if failure is not None:
        raise failure
    if not found:
        raise InvalidRecordException("Found invalid compressed record set with no inner records")
    base = 0
    if outer.magic == 1 and outer.offset != 0:
        last = found[-1].offset
        if outer.offset < last:
            raise InvalidRecordException(
                f"Found invalid wrapper offset in compressed v1 message set, wrapper offset '{outer.offset}' is less "
                f"than the last inner message offset '{last}' and it is not zero."
            )
        base = outer.offset - last
    for inner in found:
        if inner.codec != codecs.NONE:
            codecs.check_codec(inner.codec)
            raise InvalidRecordException("Inner messages must not be compressed")
    return [entry._replace(offset=to_int64(base + entry.offset)) for entry in found] if base else found


def _inner(payload: memoryview, outer: Entry, max_record_bytes: int) -> list[Entry]:
    """Returns the inner entries with their stored offsets; ignores a partial one at the end (DataLogInputStream)."""
    found: list[Entry] = []
    timestamp, timestamp_type = outer.timestamp, outer.timestamp_type
    at, end = 0, len(payload)
    while end - at >= LOG_OVERHEAD:
        offset, size = _ENTRY.unpack_from(payload, at)
        at += LOG_OVERHEAD
        if size < MIN_RECORD_OVERHEAD:
            raise CorruptRecordException(
                f"Record size is less than the minimum record overhead ({MIN_RECORD_OVERHEAD})"
            )
        if size > max_record_bytes:
            raise InvalidRecordException(
                f"Invalid record size: {size} exceeds the configured maximum record size of {max_record_bytes}."
            )
        if size > end - at:
            break
        message = payload[at : at + size]
        at += size
        if message[4] == 1:
            found.append(Entry(offset, message, timestamp, timestamp_type))
        else:
            found.append(Entry(offset, message))
    return found


def records(
    data: Buffer,
    at: int,
    size: int,
    *,
    max_record_bytes: int = ARRAY_BYTES_MAX,
    max_bytes: int = ARRAY_BYTES_MAX,
) -> list[Record]:
    """Returns the records of a magic 0 or 1 batch; raises what `entries` raises."""
    found = entries(data, at, size, max_record_bytes=max_record_bytes, max_bytes=max_bytes)
    return [entry.to_record() for entry in found]


def base_offset(data: Buffer, header: BatchHeader, *, at: int | None = None) -> int:
    """AbstractLegacyRecordBatch.baseOffset: returns the first inner message's offset, which requires decompression."""
    return entries(data, header.position if at is None else at, header.size)[0].offset
