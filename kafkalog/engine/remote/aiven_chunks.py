"""The chunk index in a manifest of Aiven's plugin: the position of each chunk of a log in its object.

Either all chunks but the last have one size ("fixed"), or the index holds all sizes, packed ("variable":
`encode_sizes`).  The content is not trusted: no number in it causes a large allocation.
"""

from __future__ import annotations

import base64
import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import zstandard

from kafkalog._limits import INT_MAX

SIZES_BYTES_MAX = 10 << 20  # limit of a packed chunk index, as in the plugin


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """Packs sizes: their number, the least of all but the last, bytes a value, each minus the least, the last."""
    if not sizes:
        return struct.pack(">i", 0)
    if len(sizes) == 1:
        return struct.pack(">ii", 1, sizes[0])
    least, most = min(sizes[:-1]), max(sizes[:-1])
    width = max(1, ((most - least).bit_length() + 7) // 8)
    packed = b"".join((size - least).to_bytes(width, "big") for size in sizes[:-1])
    return struct.pack(">iib", len(sizes), least, width) + packed + struct.pack(">i", sizes[-1])


def decode_sizes(data: bytes) -> list[int]:
    """Returns the sizes that `encode_sizes` packed; raises ValueError for bytes that do not parse."""
    try:
        (count,) = struct.unpack_from(">i", data)
        if count <= 0:
            if count:
                raise ValueError(f"the number of sizes is {count}; expected at least 0")
            return []
        if count == 1:
            return [struct.unpack_from(">i", data, 4)[0]]
        least, width = struct.unpack_from(">ib", data, 4)
        if not 1 <= width <= 4 or len(data) < 9 + (count - 1) * width + 4:
            raise ValueError(f"{count} sizes of {width} bytes do not fit into {len(data)} bytes")
        sizes = [
            least + int.from_bytes(data[at : at + width], "big") for at in range(9, 9 + (count - 1) * width, width)
        ]
        return [*sizes, struct.unpack_from(">i", data, 9 + (count - 1) * width)[0]]
    except struct.error as error:
        raise ValueError(str(error)) from error


class ChunkIndex(NamedTuple):
    """The positions of the chunks of a log in its object."""

    chunk_bytes: int  # bytes of the log in each chunk but the last
    log_bytes: int
    starts: Sequence[int]
    object_bytes: int

    @classmethod
    def of(cls, index: dict[str, Any]) -> ChunkIndex:
        """Parses the chunk index of a manifest.

        Raises ValueError, KeyError or TypeError for an invalid one.  No allocation grows with a number in it.
        """
        chunk, log = number_in(index, "originalChunkSize"), number_in(index, "originalFileSize")
        if not chunk:
            raise ValueError("originalChunkSize is 0; expected at least 1")
        count = -(-log // chunk)
        if index["type"] == "fixed":
            size, last = number_in(index, "transformedChunkSize"), number_in(index, "finalTransformedChunkSize")
            if last > _most(chunk, log) or (count > 1 and not 0 < size <= _most(chunk, log)):
                raise ValueError(
                    f"chunks of {size} bytes, and {last} at the end, are not possible for {chunk} bytes of the log"
                )
            starts: Sequence[int] = range(0, count * size, size) if size else range(count)
            return cls(chunk, log, starts, max(0, count - 1) * size + last)
        if index["type"] != "variable":
            raise ValueError(f"the chunk index has type {index['type']!r}; expected 'fixed' or 'variable'")
        packed = base64.b64decode(index["transformedChunks"], validate=True)
        content = zstandard.frame_content_size(packed)
        if not 0 <= content <= SIZES_BYTES_MAX:
            raise ValueError(f"the chunk index has {content} bytes; expected at most {SIZES_BYTES_MAX}")
        data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=content)
        found = int.from_bytes(data[:4], "big")
        if found != count:
            raise ValueError(f"the chunk index has {found} chunks; expected {count}")
        sizes = decode_sizes(data)
        if min(sizes, default=0) < 0 or max(sizes, default=0) > _most(chunk, log):
            raise ValueError(
                f"chunks of {min(sizes)} to {max(sizes)} bytes are not possible for {chunk} bytes of the log"
            )
        ends = array("q", accumulate(sizes, initial=0))
        return cls(chunk, log, ends[:-1], ends[-1])

    def end(self, number: int) -> int:
        """Returns the end of a chunk in the object."""
        return self.starts[number + 1] if number + 1 < len(self.starts) else self.object_bytes

    def chunk_size(self, number: int) -> int:
        """Returns the number of bytes of the log in a chunk."""
        return min(self.chunk_bytes, self.log_bytes - number * self.chunk_bytes)

    def log_bytes_in(self, object_bytes: int) -> int:
        """Returns how many bytes of the log the whole chunks of a truncated object hold."""
        if object_bytes >= self.object_bytes:
            return self.log_bytes
        return max(0, bisect_right(self.starts, object_bytes) - 1) * self.chunk_bytes


def _most(chunk_bytes: int, log_bytes: int) -> int:
    """Returns the largest possible size of a chunk: ZSTD_COMPRESSBOUND plus the overhead of encryption."""
    size = min(chunk_bytes, log_bytes)
    return size + (size >> 8) + 128


def number_in(values: dict[str, Any], name: str, least: int = 0, most: int = INT_MAX) -> int:
    value = values[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}: found {value!r:.40}, expected a number from {least} to {most}")
    return value
