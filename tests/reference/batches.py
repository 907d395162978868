"""The batch scan, re-stamping and index entries in plain Python: the specification of `_native.batches`.

Written for reading, one rule after the other, with the name of Kafka's class next to each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.reference.crc import crc32, crc32c

OK, TORN, BAD_SIZE, BAD_MAGIC, BAD_CRC, MORE = range(6)
BUFFER, FILE = 0, 1

V2 = struct.Struct(">qiibIhiqqqhii")
LEGACY = struct.Struct(">qiIbBq")
INT_MAX = 2**31 - 1


class Row(NamedTuple):
    """One batch; the order is that of BATCH_DTYPE."""

    position: int
    size: int
    verdict: int
    magic: int
    attributes: int
    leader_epoch: int
    crc: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    base_sequence: int
    last_sequence: int
    record_count: int
    producer_epoch: int


# --- making batches -----------------------------------------------------------------------------


def v2_batch(
    base_offset: int = 0,
    payload: bytes = b"payload",
    *,
    count: int = 1,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    magic: int = 2,
) -> bytes:
    """A v2 batch with a right checksum around `payload`, which stands for the records."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    fields = (base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count)
    covered = struct.pack(">hiqqqhii", attributes, delta, *fields) + payload
    size = 9 + len(covered)
    return struct.pack(">qiibI", base_offset, size, leader_epoch, magic, crc32c(covered)) + covered


def legacy_batch(
    offset: int = 0, value: bytes = b"value", *, magic: int = 1, attributes: int = 0, timestamp: int = 1000
) -> bytes:
    """A message of magic 0 or 1 with a null key."""
    time = struct.pack(">q", timestamp) if magic else b""
    covered = struct.pack(">bB", magic, attributes) + time + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(covered), crc32(covered)) + covered


# --- walking ------------------------------------------------------------------------------------


def int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def next_frame(data: bytes, position: int, end: int, framing: int) -> tuple[int, int]:
    """(verdict, size of the batch at `position`); size 0 with OK is the end."""
    left = end - position
    # FileLogInputStream ignores a tail of 17 bytes; ByteBufferLogInputStream needs 12, then 17.
    if left <= 17 if framing == FILE else left < 12:
        return OK, 0
    (length,) = struct.unpack_from(">i", data, position + 8)
    if length < 14:
        return BAD_SIZE, 0
    if left < 17:
        return OK, 0
    (magic,) = struct.unpack_from(">b", data, position + 16)
    torn = length + 12 > left
    if framing == BUFFER and not 0 <= magic <= 2:
        return BAD_MAGIC, 0
    if torn:
        return TORN, 0
    if magic >= 2 and length + 12 < 61:  # DefaultRecordBatch.ensureValid
        return BAD_SIZE, 0
    return OK, length + 12


def increment_sequence(sequence: int, increment: int) -> int:
    """DefaultRecordBatch.incrementSequence in Java's ints."""
    if sequence > int32(INT_MAX - increment):
        return int32(increment - (INT_MAX - sequence) - 1)
    return int32(sequence + increment)


def row_at(data: bytes, position: int, size: int, base_position: int = 0) -> Row:
    (magic,) = struct.unpack_from(">b", data, position + 16)
    place = base_position + position
    if magic < 2:
        offset, _, crc, _, attributes, timestamp = LEGACY.unpack_from(data, position)
        time = -1 if magic == 0 else timestamp
        return Row(place, size, OK, magic, attributes, -1, crc, offset, offset, time, time, -1, -1, -1, -1, -1)
    base, _, epoch, _, crc, attributes, delta, first, last, pid, pid_epoch, sequence, count = V2.unpack_from(
        data, position
    )
    end = -1 if sequence == -1 else increment_sequence(sequence, delta)
    return Row(
        place, size, OK, magic, attributes, epoch, crc, base, int64(base + delta), first, last, pid, sequence, end,
        count, pid_epoch,
    )  # fmt: skip


def right_crc(data: bytes, position: int, size: int) -> int:
    """CRC-32C from byte 21 (magic 2), CRC-32 from byte 16 (magic 0 and 1)."""
    if data[position + 16] >= 2:
        return crc32c(data[position + 21 : position + size])
    return crc32(data[position + 16 : position + size])


def scan(
    data: bytes,
    position: int = 0,
    end: int = -1,
    *,
    base_position: int = 0,
    framing: int = FILE,
    check_crc: bool = True,
    stop_at_bad_crc: bool = True,
    max_batches: int = 65536,
) -> tuple[list[Row], int, int]:
    """(rows, why it stopped, next position)."""
    end = len(data) if end < 0 else end
    rows: list[Row] = []
    while True:
        verdict, size = next_frame(data, position, end, framing)
        if verdict != OK or size == 0:
            return rows, verdict, position
        if len(rows) == max_batches:
            return rows, MORE, position
        row = row_at(data, position, size, base_position)
        if check_crc and row.crc != right_crc(data, position, size):
            if stop_at_bad_crc:
                return rows, BAD_CRC, position
            row = row._replace(verdict=BAD_CRC)
        rows.append(row)
        position += size


# --- re-stamping --------------------------------------------------------------------------------


def restamped(
    batch: bytes,
    *,
    last_offset: int | None = None,
    leader_epoch: int | None = None,
    timestamp_type: int | None = None,
    max_timestamp: int | None = None,
) -> bytes:
    """MutableRecordBatch.setLastOffset, setPartitionLeaderEpoch and setMaxTimestamp on one batch."""
    out = bytearray(batch)
    magic = batch[16]
    if last_offset is not None:
        delta = struct.unpack_from(">i", batch, 23)[0] if magic >= 2 else 0
        struct.pack_into(">q", out, 0, int64(last_offset - delta))
    if leader_epoch is not None:
        struct.pack_into(">i", out, 12, leader_epoch)
    attributes_at, timestamp_at, crc_at = (22, 35, 17) if magic >= 2 else (17, 18, 12)
    attributes = batch[attributes_at]
    (timestamp,) = struct.unpack_from(">q", batch, timestamp_at)
    new_type = attributes >> 3 & 1 if timestamp_type is None else timestamp_type
    new_timestamp = timestamp if max_timestamp is None else max_timestamp
    if (new_type, new_timestamp) == (attributes >> 3 & 1, timestamp):
        return bytes(out)
    out[attributes_at] = attributes & (0x77 if magic >= 2 else 0x07) | new_type << 3
    if magic >= 2:
        out[21] = 0
    struct.pack_into(">q", out, timestamp_at, new_timestamp)
    struct.pack_into(">I", out, crc_at, right_crc(bytes(out), 0, len(out)))
    return bytes(out)


# --- index entries ------------------------------------------------------------------------------


@dataclass
class IndexPlan:
    """The loop of LogSegment.append (and, with check_range, of recover) over two lists."""

    base_offset: int
    interval_bytes: int
    max_offset_entries: int = INT_MAX
    max_time_entries: int = INT_MAX
    check_range: bool = False
    bytes_since_last_entry: int = 0
    max_timestamp: int = -1
    offset_of_max_timestamp: int = -1
    offsets: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    def add(self, row: Row) -> int:
        """0, or the kind of error, as the native one numbers them."""
        if self.check_range and not self.representable(row.last_offset):
            return 1
        if row.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = row.max_timestamp, row.last_offset
        if self.bytes_since_last_entry > self.interval_bytes:
            error = self.append_offset(row.last_offset, row.position) or self.maybe_append_time()
            if error:
                return error
            self.bytes_since_last_entry = 0
        self.bytes_since_last_entry += row.size
        return 0

    def append_offset(self, offset: int, position: int) -> int:
        if len(self.offsets) >= self.max_offset_entries:
            return 2
        if self.offsets and offset <= self.offsets[-1][0]:
            return 3
        if not self.representable(offset):
            return 1
        self.offsets.append((offset, position))
        return 0

    def maybe_append_time(self, *, skip_full_check: bool = False) -> int:
        timestamp, offset = self.max_timestamp, self.offset_of_max_timestamp
        if not skip_full_check and len(self.times) >= self.max_time_entries - 1:
            return 4
        if self.times and offset < self.times[-1][1]:
            return 5
        if self.times and timestamp < self.times[-1][0]:
            return 6
        if timestamp > (self.times[-1][0] if self.times else -1):
            if not self.representable(offset):
                return 1
            self.times.append((timestamp, offset))
        return 0

    def representable(self, offset: int) -> bool:
        return 0 <= int64(offset - self.base_offset) <= INT_MAX

    def entries(self) -> tuple[bytes, bytes]:
        return (
            b"".join(struct.pack(">ii", offset - self.base_offset, position) for offset, position in self.offsets),
            b"".join(struct.pack(">qi", timestamp, offset - self.base_offset) for timestamp, offset in self.times),
        )
