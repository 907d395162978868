"""Snappy in plain Python, under cramjam's names: for the live tests on 3.13t, which cramjam's PyO3 no longer supports.

Only `tests/live/free_threaded.sh` puts this on the path, and only there.  Compresses to literals.
"""

from __future__ import annotations


class DecompressionError(Exception):
    pass


class snappy:  # noqa: N801  # cramjam's name
    @staticmethod
    def compress_raw(data: bytes | memoryview) -> bytes:
        left, out = len(data), bytearray()
        while left >= 0x80:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
        for start in range(0, len(data), 60):
            part = bytes(data[start : start + 60])
            out.append(len(part) - 1 << 2)
            out += part
        return bytes(out)

    @staticmethod
    def decompress_raw(data: bytes | memoryview) -> bytes:
        try:
            return _decompressed(bytes(data))
        except IndexError:
            raise DecompressionError("the block ends early") from None


def _decompressed(data: bytes) -> bytes:
    at = size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                more = length - 60
                length = int.from_bytes(data[at : at + more], "little") + 1
                at += more
            if length > len(data) - at:
                raise DecompressionError("a literal ends early")
            out += data[at : at + length]
            at += length
            continue
        if tag & 3 == 1:
            length, distance = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at]
            at += 1
        else:
            wide = 2 if tag & 3 == 2 else 4
            length, distance = (tag >> 2) + 1, int.from_bytes(data[at : at + wide], "little")
            at += wide
        if not 0 < distance <= len(out):
            raise DecompressionError("a copy from in front of the block")
        for _ in range(length):
            out.append(out[-distance])
    if len(out) != size:
        raise DecompressionError("another size than declared")
    return bytes(out)
