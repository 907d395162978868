"""XXH3, the 64-bit hash without a seed, of bytes that are in memory.

Kafka hashes the metadata of a group's topics with it, and stores the hash in the group's record. Inputs are short (four
bytes for each partition), so plain Python is quick enough.

Source: the specification of XXH3 (xxhash_spec.md of the xxHash project).
"""

from __future__ import annotations

import struct

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee0"
    "3590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e0"
    "4bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d1"
    "7ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PMX_1, PMX_2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF

STRIPE, STRIPES_IN_BLOCK = 64, 16
BLOCK = STRIPE * STRIPES_IN_BLOCK
LAST_STRIPE_SECRET = len(SECRET) - STRIPE - 7
LANES = struct.Struct("<8Q")
START = (P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1)


def xxh3_64(data: bytes) -> int:
    """Returns the hash as 64 unsigned bits."""
    size = len(data)
    if size > 240:
        return _long(data)
    if size > 16:
        return _medium(data)
    if size > 8:
        low = _u64(data, 0) ^ _secret(24) ^ _secret(32)
        high = _u64(data, size - 8) ^ _secret(40) ^ _secret(48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((size + swapped + high + _folded(low, high)) & M64)
    if size > 3:
        value = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ _secret(8) ^ _secret(16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * PMX_2 & M64
        value = (value ^ (value >> 35) + size) * PMX_2 & M64
        return value ^ value >> 28
    if size:
        mixed = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _old_avalanche(mixed ^ _u32(SECRET, 0) ^ _u32(SECRET, 4))
    return _old_avalanche(_secret(56) ^ _secret(64))


def _medium(data: bytes) -> int:
    size = len(data)
    value = size * P64_1
    if size > 128:
        for each in range(8):
            value += _mixed(data, 16 * each, 16 * each)
        value = _avalanche(value & M64)
        for each in range(8, size // 16):
            value += _mixed(data, 16 * each, 16 * (each - 8) + 3)
        return _avalanche((value + _mixed(data, size - 16, 136 - 17)) & M64)
    for each in range((size - 1) // 32 + 1):  # from both ends
        value += _mixed(data, 16 * each, 32 * each) + _mixed(data, size - 16 * (each + 1), 32 * each + 16)
    return _avalanche(value & M64)


def _long(data: bytes) -> int:
    lanes = list(START)
    size = len(data)
    last = size - 1
    for start in range(0, last // BLOCK * BLOCK, BLOCK):
        for each in range(STRIPES_IN_BLOCK):
            _accumulate(lanes, data, start + each * STRIPE, each * 8)
        secrets = LANES.unpack_from(SECRET, len(SECRET) - STRIPE)
        lanes = [(lane ^ lane >> 47 ^ key) * P32_1 & M64 for lane, key in zip(lanes, secrets, strict=True)]
    start = last // BLOCK * BLOCK
    for each in range((last - start) // STRIPE):
        _accumulate(lanes, data, start + each * STRIPE, each * 8)
    _accumulate(lanes, data, size - STRIPE, LAST_STRIPE_SECRET)
    value = size * P64_1
    for each in range(4):
        value += _folded(lanes[2 * each] ^ _secret(11 + 16 * each), lanes[2 * each + 1] ^ _secret(19 + 16 * each))
    return _avalanche(value & M64)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    secrets = LANES.unpack_from(SECRET, secret_at)
    for each, value in enumerate(LANES.unpack_from(data, at)):
        key = value ^ secrets[each]
        lanes[each ^ 1] = lanes[each ^ 1] + value & M64
        lanes[each] = lanes[each] + (key & M32) * (key >> 32) & M64


def _mixed(data: bytes, at: int, secret_at: int) -> int:
    return _folded(_u64(data, at) ^ _secret(secret_at), _u64(data, at + 8) ^ _secret(secret_at + 8))


def _folded(one: int, other: int) -> int:
    product = one * other
    return product & M64 ^ product >> 64


def _avalanche(value: int) -> int:
    value = (value ^ value >> 37) * PMX_1 & M64
    return value ^ value >> 32


def _old_avalanche(value: int) -> int:
    value = (value ^ value >> 33) * P64_2 & M64
    value = (value ^ value >> 29) * P64_3 & M64
    return value ^ value >> 32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & M64


def _secret(at: int) -> int:
    return _u64(SECRET, at)


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
