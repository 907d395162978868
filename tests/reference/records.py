"""Magic-2 records in plain Python: the specification of the records that `_native` reads and writes.

Reads and writes one payload, byte by byte, as DefaultRecord (4.4.0) does.  Slow on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[int, int, "bytes | None", "bytes | None", tuple[tuple[bytes, "bytes | None"], ...]]


class Bad(Exception):
    """The payload is not made of `count` records."""


@dataclass
class Walk:
    data: bytes
    at: int = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise Bad("underflow")
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self, longest: int, bits: int) -> int:
        value = 0
        for i in range(longest):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value & ((1 << bits) - 1)
        raise Bad("varint too long")

    def varint(self) -> int:
        raw = self.unsigned(5, 32)
        return (raw >> 1) ^ -(raw & 1)

    def varlong(self) -> int:
        raw = self.unsigned(10, 64)
        return (raw >> 1) ^ -(raw & 1)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Bad("underflow")
        self.at += size
        return self.data[self.at - size : self.at]

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def read(payload: bytes, count: int) -> list[Row]:
    """(timestamp delta, offset delta, key, value, headers) of each record; Bad for anything else."""
    if count < 0:
        raise Bad("count")
    walk = Walk(payload)
    found = []
    for _ in range(count):
        size = walk.varint()
        if size < 0:
            raise Bad("negative size")
        found.append(read_body(walk.take(size)))
    if count and walk.at != len(payload):
        raise Bad("left over")
    return found


def read_body(body: bytes) -> Row:
    walk = Walk(body)
    walk.byte()
    timestamp_delta, offset_delta = walk.varlong(), walk.varint()
    key, value = walk.nullable(), walk.nullable()
    count = walk.varint()
    if count < 0 or count > len(body) - walk.at:
        raise Bad("header count")
    headers = []
    for _ in range(count):
        size = walk.varint()
        if size < 0:
            raise Bad("header key")
        name = walk.take(size)
        headers.append((name, walk.nullable()))
    if walk.at != len(body):
        raise Bad("body size")
    return timestamp_delta, offset_delta, key, value, tuple(headers)


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    return unsigned(2 * value if value >= 0 else -2 * value - 1)


def nullable(part: bytes | None) -> bytes:
    return signed(-1) if part is None else signed(len(part)) + part


def write(rows: list[Row]) -> bytes:
    out = b""
    for timestamp_delta, offset_delta, key, value, headers in rows:
        body = b"\0" + signed(timestamp_delta) + signed(offset_delta) + nullable(key) + nullable(value)
        body += signed(len(headers)) + b"".join(nullable(name) + nullable(part) for name, part in headers)
        out += signed(len(body)) + body
    return out
