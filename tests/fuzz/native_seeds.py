"""The first inputs of the fuzzer and their changes: batches with right checksums, record payloads, index entries.

Half of the changes know the structure.  Header fields get edge values and the CRC is corrected, so that the code after
its check is reached.  Varints become long ones, lengths and counts become huge.  The other half is blind.
"""

from __future__ import annotations

import functools
import itertools
import random
import struct
from typing import Any

from kafkalog._native.codec import batches, crc32c, records
from kafkalog.engine.format import codecs, requests
from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.messages import Message

TARGETS = 18
EDGES_32 = (0, 1, 2, 13, 14, 17, 48, 49, 50, 61, 0x7F, 0xFFFF, 2**31 - 1, 2**31 - 12, 2**31 - 13, -1, -2, -12, -(2**31))
EDGES_64 = (0, 1, -1, -2, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63 - 2, -(2**63), 1_700_000_000_000)
VARINTS = (
    b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80\x01", b"\xff\x01", b"\x80\x80\x00", b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\xff", b"\xff" * 9 + b"\x01", b"\xff" * 10,
    b"\x80" * 10,
)  # fmt: skip
FIELDS = {8: 4, 12: 4, 16: 1, 17: 4, 21: 2, 23: 4, 27: 8, 35: 8, 43: 8, 51: 2, 53: 4, 57: 4, 0: 8}
LEGACY_FIELDS = {0: 8, 8: 4, 12: 4, 16: 1, 17: 1, 18: 8, 26: 4, 14 + 12: 4}

JSON_LINES = (
    rb"""{"a": 1, "b": "x", "c": 1.5e-3, "d": true, "t": "2026-03-01T12:30:05.5+02:00", "m": "19.90"}
{"a":-9223372036854775808,"b":"\ud83d\ude00 \"\\ \u00e9","c":12345678901234567890123,"d":false,"t":-1,"m":1e3}
{"o": {"a": 1, "b": [1, {"x": null}], "o": {"x": "2262-04-11"}}, "c": [[], {}, ""], "skipped": {"a": [true]}}
{"o":{"a":2,"b":"raw","o":{}},"c":NaN,"o":{"a":3},"o":null}
{"l": [{"a": 1, "l": ["x", "y", null]}, null, {}], "t": 86400000}
{"l":[],"t":"2026-03-01","\u0061":5,"a":1.0,"b":5}""",
    '{"b": "größe \U0001f600 %s", "c": "é"}\n{"b": "%s"}\n\n{}\nnull\n[1]'.replace("%s", "long " * 30).encode(),
    b"\x00\x00\x00\x00\x07payload\n\x00\x00\x00\x00\x08\x02\x04payload\n\x00\x00\x00\x00\x07\x00\n\x00\x00\x00",
)
JSON_TARGET = 16
MESSAGE_TARGET = 17

Row = tuple[int, int, "bytes | None", "bytes | None", tuple[tuple[bytes, "bytes | None"], ...]]


def payloads() -> list[tuple[int, bytes]]:
    """(records, bytes) of record payloads of several shapes."""
    rows: list[list[Row]] = [
        [(0, 0, b"key", b"value", ())],
        [(i, i, b"k%d" % i, b"v" * (i * 13 % 70), ()) for i in range(9)],
        [(0, 0, None, None, ()), (-5, 1, b"", b"", ()), (2**40, 2, None, b"x" * 300, ())],
        [(i, i, b"k", b"v", tuple((b"h%d" % j, None if j % 2 else b"x" * j) for j in range(i))) for i in range(5)],
        [(0, 0, b"k", b"v", ((b"\xc3\xa9", b"1"), (b"\xff\xfe", b"2"), (b"", None)))],
        [(i, i, None, bytes(24), ()) for i in range(40)],
        [(0, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 7), ())],
    ]
    return [(len(part), records.write_records(part)) for part in rows] + [(0, b"")]


def v2_batch(base_offset: int, payload: bytes, count: int, attributes: int = 0, producer: int = -1) -> bytes:
    sequence = 0 if producer >= 0 and not attributes & 0x20 else -1
    epoch = 0 if producer >= 0 else -1
    fields = (1_700_000_000_000, 1_700_000_000_009, producer, epoch, sequence, count)
    covered = struct.pack(">hiqqqhii", attributes, max(count - 1, 0), *fields) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(covered), 0, 2, crc32c.crc32c(covered)) + covered


def legacy_batch(offset: int, magic: int, value: bytes, attributes: int = 0) -> bytes:
    times = struct.pack(">q", 1_700_000_000_000) if magic else b""
    covered = struct.pack(">bB", magic, attributes) + times + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(covered), crc32c.crc32(covered)) + covered


@functools.cache
def buffers() -> tuple[bytes, ...]:
    """Segments, payloads and index files."""
    parts = payloads()
    plain = [v2_batch(10 * i, payload, count) for i, (count, payload) in enumerate(parts)]
    with_producer = [v2_batch(0, parts[1][1], parts[1][0], 0x10, 7), v2_batch(9, parts[6][1], 1, 0x30, 7)]
    old = [legacy_batch(i, i % 2, b"value" * i, attributes=8 * (i % 2)) for i in range(4)]
    compressed = [v2_batch(3, b"not really compressed", 2, codec) for codec in (1, 2, 3, 4, 7)]
    squeezed = [
        v2_batch(0, codecs.compress(codec, payload), count, codec) for codec in (3, 4) for count, payload in parts[:6]
    ]
    pressed = v2_batch(0, codecs.compress(4, parts[1][1] * 50), parts[1][0] * 50, 4)
    index = struct.pack(">ii", 0, 0) + b"".join(struct.pack(">ii", 3 * i, 90 * i) for i in range(1, 300))
    times = b"".join(struct.pack(">qi", 1_700_000_000_000 + i // 2, 3 * i) for i in range(300))
    return (
        *plain, v2_batch(0, parts[1][1], parts[1][0]), *squeezed, b"".join(squeezed), pressed, b"".join(plain), b"".join(with_producer), b"".join(old), b"".join(old + plain[:2] + compressed),
        *(payload for _, payload in parts), index, times, bytes(64), b"", *JSON_LINES,
    )  # fmt: skip


def inputs() -> list[bytes]:
    """For each entry point its arguments with each buffer."""
    rng = random.Random(0)
    return [
        bytes([target]) + rng.randbytes(rng.randrange(12)) + data for target in range(TARGETS) for data in buffers()
    ]


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    """A new input: one of the pool, or an entry point's arguments before a damaged buffer."""
    if rng.random() < 0.06:
        return message_input(rng)
    if rng.random() < 0.15:
        return bytes(blind(rng, bytearray(rng.choice(pool))))
    data = bytearray(rng.choice(buffers()))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        data = structured(rng, data) if rng.random() < 0.6 else blind(rng, data)
    target = JSON_TARGET if bytes(data[:1]) in (b"{", b"[") else rng.randrange(TARGETS)
    return bytes([target]) + arguments(rng, target, data) + bytes(data)


@functools.cache
def protocol_messages() -> tuple[Message, ...]:
    """Every request, response and header."""
    pairs = ((api.request, api.response) for api in requests.apis().values())
    return (*requests.header_messages(), *itertools.chain.from_iterable(pairs))


def message_input(rng: random.Random) -> bytes:
    """A message of random values, whole or damaged, after its number and its version."""
    which = rng.randrange(len(protocol_messages()))
    message = protocol_messages()[which]
    version = rng.randint(message.lowest, message.highest)
    data = bytearray(message.encode(message_values(rng, message.type, version), version))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        data = varint_change(rng, data) if rng.random() < 0.5 else blind(rng, data)
    return bytes([MESSAGE_TARGET, which, version - message.lowest]) + bytes(data)


def message_values(rng: random.Random, of: Type, version: int) -> dict[str, Any]:
    """Random fields of a struct in a version; some are omitted."""
    return {
        field.name: _message_value(rng, field.type, field.nullable_in(version), version)
        for field in of.fields
        if field.in_version(version) and (rng.random() < 0.8 or field.type.kind == "records")
    }


def _message_value(rng: random.Random, of: Type, nullable: bool, version: int) -> Any:
    if nullable and rng.random() < 0.3:
        return None
    if of.element is not None:
        return [_message_value(rng, of.element, False, version) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    if of.kind == "struct":
        return message_values(rng, of, version)
    if of.kind in ("string", "string16"):
        return rng.choice(("", "topic", "größe", "x" * 130))
    if of.kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 9, 200)))
    if of.kind == "uuid":
        return rng.choice(("A" * 22, "AAECAwQFBgcICQoLDA0ODw", "_" * 21 + "w"))
    if of.kind == "bool":
        return rng.random() < 0.5
    bits = {"int8": 8, "uint16": 16, "int16": 16, "int32": 32}.get(of.kind, 64)
    found = rng.choice((0, 1, 5, (1 << bits - 1) - 1, rng.getrandbits(bits - 1)))
    return found if of.kind == "uint16" else float(found) if of.kind == "float64" else rng.choice((found, ~found))


def number(rng: random.Random, value: int | None = None) -> bytes:
    """As Input.number reads it."""
    if value is not None and -3 <= value < 125:
        return bytes([value + 3])
    if value is None and rng.random() < 0.6:
        return bytes([rng.randrange(160)])
    wanted = rng.choice(EDGES_64) if value is None else value
    return b"\xff" + struct.pack(">q", wanted)


def arguments(rng: random.Random, target: int, data: bytearray) -> bytes:
    """Arguments that mostly fit the buffer, so that the inner loops are reached."""
    flags = rng.randrange(256)
    if target in (0, 8):
        return bytes([flags, rng.choice((0, 1, 3, 255)), rng.randrange(70), rng.randrange(90)])
    if target == 1:
        out = bytes([flags]) + number(rng, 0 if rng.random() < 0.8 else None)
        return out + b"".join(number(rng) for _ in range((flags & 11).bit_count()))
    if target in (2, 9):
        out = bytes([flags]) + number(rng, rng.choice((1, 5, 9, 40, 3)) if rng.random() < 0.8 else None)
        out += number(rng) + number(rng) + (number(rng) if flags & 1 else b"")
        return out + (bytes([rng.randrange(256)]) if flags & 4 else b"") + (number(rng) if flags & 8 else b"")
    if target in (3, 11):
        out = bytes([flags]) + (number(rng) + number(rng) if flags & 1 else b"")
        return out + (bytes([rng.randrange(12)]) if flags & 2 else b"") + number(rng)
    if target in (4, 10):
        out = bytes([flags, rng.randrange(3)]) + (number(rng) if flags & 1 else b"")
        out += b"".join(number(rng) for _ in range(3))
        return out + (bytes([rng.randrange(256)]) if flags & 16 else b"")
    if target == 5:
        return number(rng) + number(rng) + bytes([rng.choice((0, 0, 1, 7))])
    if target == 6:
        return number(rng) + bytes([flags])
    if target == 12:
        out = bytes([flags]) + number(rng) + number(rng) + number(rng, 0 if rng.random() < 0.3 else None)
        return out + number(rng, 2**63 - 1) + number(rng, 2**63 - 1)
    if target in (13, 15):
        out = bytes([flags, rng.choice((0, 1, 5, 40, 255)), rng.choice((0, 1, 5, 40, 255))]) + number(rng) + number(rng)
        ends = rng.randrange(3)
        out += (number(rng, rng.choice((0, 1, 5, 30))) if flags & 1 else b"") + bytes([ends])
        return out + b"".join(number(rng, rng.choice((0, 8, 19))) for _ in range(ends)) + number(rng)
    if target == 14:
        return bytes([flags, rng.choice((0, 1, 9, 255)), rng.choice((0, 1, 9, 255)), rng.choice((0, 1, 3, 40))])
    return rng.randbytes(rng.randrange(60))


def structured(rng: random.Random, data: bytearray) -> bytearray:
    """One change that knows what a batch or a record is; checksums are right afterwards, mostly."""
    starts = _batch_starts(data)
    if not starts:
        return varint_change(rng, data)
    at, size = rng.choice(starts)
    modern = data[at + 16] >= 2
    kind = rng.randrange(5)
    if kind <= 1:
        offset, width = rng.choice(list((FIELDS if modern else LEGACY_FIELDS).items()))
        edge = rng.choice(EDGES_64 if width == 8 else EDGES_32) if rng.random() < 0.7 else rng.getrandbits(63)
        data[at + offset : at + offset + width] = (edge & (1 << 8 * width) - 1).to_bytes(width, "big")
    elif kind == 2 and size > 61:
        body = varint_change(rng, bytearray(data[at + 61 : at + size]))
        data[at + 61 : at + size] = body
        data[at + 8 : at + 12] = struct.pack(">i", 49 + len(body))
    elif kind == 3:
        data[at:at] = data[at : at + size]
    else:
        other = rng.choice(buffers())
        data[at:at] = other[: rng.randrange(len(other) + 1)]
    if rng.random() < 0.9:
        fix_checksums(data)
    return data


def _batch_starts(data: bytearray) -> list[tuple[int, int]]:
    found = batches.headers(data, framing=batches.FRAMING_FILE)[0]
    return [(header.position, header.size) for header in found]


def fix_checksums(data: bytearray) -> None:
    """Right CRCs for every batch that frames."""
    for at, size in _batch_starts(data):
        crc = batches.compute_crc(data, at, size)
        place = at + (17 if data[at + 16] >= 2 else 12)
        data[place : place + 4] = struct.pack(">I", crc)


def varint_change(rng: random.Random, data: bytearray) -> bytearray:
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, 1, 1, 1, 2))] = rng.choice(VARINTS)
    return data


def blind(rng: random.Random, data: bytearray) -> bytearray:
    """Flip, cut, zero, double, transplant."""
    size = len(data)
    at = rng.randrange(size + 1)
    length = min(size - at, rng.choice((1, 1, 2, 4, 8, 16, 61)))
    kind = rng.randrange(6)
    if kind == 0 and at < size:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + length] = bytes(length)
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4:
        del data[at : at + length]
    else:
        data[at : at + length] = rng.randbytes(length)
    return data
