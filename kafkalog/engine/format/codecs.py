"""The five codecs, with the framing and the bytes of Kafka's streams (org.apache.kafka.common.compress, 4.4.0).

This module knows whole buffers only: it compresses the records of a batch into the bytes that follow a batch header,
and decompresses them.  Compressing gives Kafka's bytes for gzip, lz4 (except for levels 1 and 2, see `_lz4_level`) and
zstd.  Snappy blocks come from another implementation of the same format.  Decompressing is limited by `max_bytes`;
memory grows with the actual output, never with what a header claims.

Kafka raises a plain KafkaException for a payload that does not decode, and bare Java exceptions for some other damage.
Subclasses keep these names here.  They also derive from CorruptRecordException, so a caller needs to catch only that.

A new codec needs:
- an id and a name at the end of `NAMES`, and its levels in the three tables below;
- a branch of `compress`, and a row of `_DECODERS` (and of `check_opening`, if Kafka's stream checks the bytes when it
  is created);
- LAST_CODEC in `_native/codec/layout.pxd`; without it, appends take the slow path (a test compares the two);
- its id, its `compression.*` keys and `compression_level` in `kafkalog.config`;
- a refusal like that of zstd in `format.legacy`, if messages of magic 0 and 1 cannot carry it.
For speed only, it may also get a bound in `_native/codec/frames.pxd`, a call in `frame_decoders` and a slot in
`_native/codec/decode.pyx`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

import cramjam
import lz4.block
import lz4.frame
import zstandard
from isal import igzip_lib

from kafkalog import errors
from kafkalog._limits import ARRAY_BYTES_MAX
from kafkalog.engine.format.octets import frozen, octets
from kafkalog.errors import CorruptRecordException, UnsupportedOperationException

if TYPE_CHECKING:
    from typing_extensions import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_LEVELS: dict[int, int] = {GZIP: -1, LZ4: 9, ZSTD: 3}
MIN_LEVELS: dict[int, int] = {GZIP: 1, LZ4: 1, ZSTD: -131072}
MAX_LEVELS: dict[int, int] = {GZIP: 9, LZ4: 17, ZSTD: 22}

_STEP_BYTES = 1 << 20  # step of a stream whose decompressed size is not known


class KafkaException(errors.KafkaException, CorruptRecordException):
    """A compressed payload that does not decode; it has Kafka's name and is also a CorruptRecordException."""


class ContentTooLargeException(KafkaException):
    """A compressed payload that decodes to more bytes than its caller allows."""


class IllegalArgumentException(errors.IllegalArgumentException, CorruptRecordException):
    """Damage that makes Kafka raise a bare IllegalArgumentException; it is also a CorruptRecordException."""


class IndexOutOfBoundsException(CorruptRecordException, IndexError):
    """Damage that makes Kafka raise a bare IndexOutOfBoundsException."""

    def __str__(self) -> str:
        return errors.KafkalogError.__str__(self)


class SnappyError(CorruptRecordException):
    """A snappy block with an impossible length; snappy-java throws an Error of that name."""


def codec_id(name: str) -> int:
    """Returns the id of a codec (CompressionType.forName); raises IllegalArgumentException for an unknown name."""
    try:
        return NAMES.index(name)
    except ValueError:
        raise errors.IllegalArgumentException(f"Unknown compression name: {name}") from None


def codec_name(codec: int) -> str:
    """Returns the name of a codec's id (CompressionType.forId)."""
    check_codec(codec)
    return NAMES[codec]


def shown_name(codec: int) -> str:
    """Returns the name of a codec's id for people, also for an id that Kafka does not know."""
    return NAMES[codec] if 0 <= codec < len(NAMES) else f"unknown({codec})"


def check_codec(codec: int) -> None:
    """Raises IllegalArgumentException unless `codec` is one of the five."""
    if not 0 <= codec < len(NAMES):
        raise IllegalArgumentException(f"Unknown compression type id: {codec}")


def check_level(codec: int, level: int) -> None:
    """Raises IllegalArgumentException unless the codec has that level (Compression.Builder.level)."""
    if codec not in DEFAULT_LEVELS:
        raise UnsupportedOperationException(
            f"Compression levels are not defined for this compression type: {codec_name(codec)}"
        )
    if not MIN_LEVELS[codec] <= level <= MAX_LEVELS[codec] and level != DEFAULT_LEVELS[codec]:
        raise errors.IllegalArgumentException(f"{NAMES[codec]} doesn't support given compression level: {level}")


# --- compress -------------------------------------------------------------------------------------

_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")  # no time, no extra flags, "unknown" system: JDK 16 and later
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = _SNAPPY_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_SNAPPY_BLOCK_BYTES = 32768
_SNAPPY_CHUNK_BYTES_MAX = 512 << 20
_SNAPPY_EXPANSION = 64  # more than a byte of a block gives: three bytes give at most 64 (a copy), one gives 1
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_CHECK = 0x82  # check byte of the usual frame header: FLG 60, BD 40

_ZSTD_EMPTY = bytes.fromhex("28b52ffd2000010000")  # a stream closed without a flush: single segment, size 0

_local = threading.local()  # holds zstd contexts: costly to create, not safe to share between threads


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Returns `data` as Kafka's output stream of that codec writes it.

    `level` None means the codec's default.  A level for snappy or none raises UnsupportedOperationException.
    """
    check_codec(codec)
    if level is not None:
        check_level(codec, level)
    else:
        level = DEFAULT_LEVELS.get(codec, 0)
    data = octets(data, "records")
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _gzip(data, level)
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        return _lz4(data, level)
    return _zstd(data, level)


def _gzip(data: bytes | memoryview, level: int) -> bytes:
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
    trailer = zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")
    return b"".join((_GZIP_HEADER, deflate.compress(data), deflate.flush(), trailer))


def _snappy(data: bytes | memoryview) -> bytes:
    view = memoryview(data)
    parts = [_SNAPPY_HEADER]
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _lz4_level(level: int) -> int:
    """Returns LZ4F's number for Kafka's level: 9 is the fast compressor, all other levels the high compressor.

    LZ4F uses the fast compressor for levels 1 and 2 too, and liblz4 has changed their output since.  The result is a
    valid frame whose bytes differ from Kafka's.
    """
    return 0 if level == DEFAULT_LEVELS[LZ4] else level


def _lz4(data: bytes | memoryview, level: int) -> bytes:
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=_lz4_level(level),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def _zstd(data: bytes | memoryview, level: int) -> bytes:
    if not len(data):
        return _ZSTD_EMPTY
    compressors: dict[int, zstandard.ZstdCompressor] | None = getattr(_local, "compressors", None)
    if compressors is None:
        compressors = _local.compressors = {}
    compressor = compressors.get(level)
    if compressor is None:
        compressor = compressors[level] = zstandard.ZstdCompressor(level=level)
    stream = compressor.compressobj()
    # Java's BufferedOutputStream flushes before it closes, so the frame ends with a separate empty block.
    parts = stream.compress(memoryview(data)), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), stream.flush()
    return b"".join(parts)


# --- decompress -----------------------------------------------------------------------------------


def decompress(codec: int, data: Buffer, *, magic: int = 2, max_bytes: int = ARRAY_BYTES_MAX) -> bytes:
    """Returns the bytes that Kafka's input stream of that codec reads from `data`, to its end.

    Raises KafkaException (also a CorruptRecordException) if the data does not decode, or its subclass
    ContentTooLargeException if it decodes to more than `max_bytes`.
    """
    payload, error = decompress_partial(codec, data, magic=magic, max_bytes=max_bytes)
    if error is not None:
        raise error
    return payload


def decompress_partial(
    codec: int, data: Buffer, *, magic: int = 2, max_bytes: int = ARRAY_BYTES_MAX
) -> tuple[bytes, CorruptRecordException | None]:
    """Decompresses like `decompress`, but returns the bytes that decoded before the damage together with the error.

    Kafka reads records from a stream, so it finds a bad record that precedes the damage first.
    """
    check_codec(codec)
    if codec == NONE:
        return bytes(octets(data, "records")), None
    # The libraries' decoders read some bytes twice and expect them not to change.
    view = memoryview(frozen(data, "compressed records"))
    if magic > 0 and (whole := _whole_frame(codec, view, max_bytes)) is not None:
        return whole, None
    out = _Output(max_bytes)
    try:
        _DECODERS[codec](view, magic, out)
    except _FAILURES as error:
        kind = _KINDS.get(type(error), KafkaException)
        failure = kind(f"Failed to decompress record stream: {error}")
        failure.__cause__ = error.with_traceback(None)  # the traceback's frames would keep all output alive
        return out.joined(), failure
    return out.joined(), None


_USUAL_BYTES = 16 << 10  # up to this size the headers of blocks are not worth a look
_LZ4_USUAL = _LZ4_MAGIC + bytes((0x60, 0x40, _LZ4_HEADER_CHECK))  # independent blocks of 64 KiB, no checksums
_ZSTD_USUAL = bytes.fromhex("28b52ffd00")  # no dictionary, no checksum, size not declared


def _whole_frame(codec: int, view: memoryview, max_bytes: int) -> bytes | None:
    """Decompresses a single frame as Kafka's streams write it, in one library call; None for any other input.

    Neither library allocates more than the limit given here, or than the frame can decode to.
    """
    try:
        # A byte of an lz4 block gives at most 255 bytes, so the limit holds regardless of the library's estimate.
        if codec == LZ4 and view[:7] == _LZ4_USUAL and 255 * len(view) <= max_bytes:
            frame: bytes = lz4.frame.decompress(view)
            return frame
        if codec == ZSTD and view[:5] == _ZSTD_USUAL:
            end, bound, whole = _zstd_frame(view, 0)
            if whole and end == len(view) and 0 < bound <= min(max_bytes, max(_STEP_BYTES, 16 * end)):
                return _zstd_decompressor().decompress(view, max_output_size=bound)
    except (RuntimeError, zstandard.ZstdError, _Undecodable):
        pass
    return None


def check_opening(codec: int, data: Buffer) -> None:
    """Raises KafkaException if Kafka fails to create its input stream for a magic-2 batch, before it reads any record.

    Creating the stream checks a gzip or lz4 header, and decodes all of the data if it does not begin with snappy's
    stream header.  zstd checks nothing at this point.
    """
    view = memoryview(data).cast("B")
    try:
        if codec == GZIP:
            _check_gzip_header(view)
        elif codec == LZ4:
            _lz4_header(view, 2)
        elif codec == SNAPPY and (len(view) < 16 or view[:8] != _SNAPPY_MAGIC):
            _unsnappy(view, 2, _Output(ARRAY_BYTES_MAX))
    except _FAILURES as error:
        raise KafkaException(f"Failed to open record stream: {error}") from error


def likely_bytes(codec: int, data: Buffer) -> int:
    """Returns at most how many bytes compressed records of magic 2 give, from the headers of their blocks.

    gzip has no such headers, only a size at the end that may be a lie.  Its result is at least 64 times the size of
    `data`, which gives 16 times as much at most.
    """
    view = memoryview(data).cast("B")
    if codec == GZIP:
        return max(int.from_bytes(view[-4:], "little"), 64 * len(view))
    if codec == SNAPPY:
        return 22 * len(view)  # three bytes give at most 64
    try:
        if codec == LZ4:
            return 255 * len(view) if len(view) <= _USUAL_BYTES else _lz4_bytes_max(view)
        if codec == ZSTD:
            end, bound, _ = _zstd_frame(view, 0)
            return bound if end == len(view) else ARRAY_BYTES_MAX  # another frame follows
    except _Undecodable:  # it is refused where the error is
        return 255 * len(view)
    return len(view)


def _lz4_bytes_max(view: memoryview) -> int:
    at, flags, descriptor = _lz4_header(view, 2)
    block_bytes_max, bytes_max = 1 << (2 * (descriptor >> 4) + 8), 0
    while (size := int.from_bytes(view[at : at + 4], "little") & 0x7FFFFFFF) and at < len(view):
        bytes_max += min(block_bytes_max, 255 * size)
        at += 4 + size + (4 if flags & 0x10 else 0)
    return bytes_max


class _Undecodable(Exception):
    pass


class _BadChunkSize(_Undecodable):
    pass


class _TooLarge(_Undecodable):
    pass


_KINDS: dict[type[Exception], type[CorruptRecordException]] = {
    _BadChunkSize: SnappyError,
    _TooLarge: ContentTooLargeException,
}
_IsalError = cast("type[Exception]", igzip_lib.IsalError)  # its type stubs declare it an instance
_FAILURES: tuple[type[Exception], ...] = (
    _Undecodable,
    _IsalError,
    zstandard.ZstdError,
    cramjam.DecompressionError,
    lz4.block.LZ4BlockError,
)


class _Output:
    """Decoded pieces, up to a limit.  They are put together as they come, so that no byte is there twice at the end."""

    __slots__ = ("_first", "_whole", "max_bytes", "room_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.room_bytes = max_bytes
        self._first = b""  # the only piece, while there is no second one
        self._whole: BytesIO | None = None

    def add(self, part: bytes) -> None:
        if len(part) > self.room_bytes:
            raise _TooLarge(f"the data decompresses to more than the {self.max_bytes} bytes that are allowed")
        self.room_bytes -= len(part)
        if self._whole is not None:
            self._whole.write(part)
        elif not self._first:
            self._first = part
        else:
            self._whole = BytesIO()
            self._whole.write(self._first)
            self._whole.write(part)
            self._first = b""

    def back_to(self, room_bytes: int) -> None:
        """Drops what was added since there was so much room."""
        self.room_bytes = room_bytes
        size = self.max_bytes - room_bytes
        if self._whole is not None:
            self._whole.truncate(size)
            self._whole.seek(size)
        else:
            self._first = self._first[:size]

    def joined(self) -> bytes:
        return self._first if self._whole is None else self._whole.getvalue()


def _gunzip(view: memoryview, magic: int, out: _Output) -> None:
    while True:
        room = out.room_bytes
        stream: Any = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        data: Buffer = view
        try:
            while not stream.eof:
                # One byte more than allowed is enough to detect that the output is too large.
                part = stream.decompress(data, min(out.room_bytes + 1, _STEP_BYTES))
                out.add(part)
                data = b""
                if not part and not stream.eof and stream.needs_input:
                    raise _Undecodable("Unexpected end of ZLIB input stream")
        except _IsalError:
            # isal loses the output before the damage, so decode once more, in small steps.
            out.back_to(room)
            _gunzip_prefix(view, out)
            raise
        view = memoryview(stream.unused_data)
        # java.util.zip.GZIPInputStream continues with the next member and ignores anything else.
        if len(view) <= 18 or not _is_gzip_header(view):
            return


def _gunzip_prefix(view: memoryview, out: _Output) -> None:
    """Adds the output before the first error, for a member without optional header fields (Kafka writes none)."""
    if not _is_gzip_header(view) or view[3]:
        return
    inflate = zlib.decompressobj(-15)
    for at in range(10, len(view), 64):
        try:
            out.add(inflate.decompress(view[at : at + 64], out.room_bytes + 1))
        except zlib.error:
            return
        if inflate.eof:
            return


def _check_gzip_header(view: memoryview) -> None:
    """java.util.zip.GZIPInputStream.readHeader."""
    if not _is_gzip_header(view):
        raise _Undecodable("Not in GZIP format")
    flags, at = view[3], 10
    if flags & 0x04:
        at += 2 + int.from_bytes(view[at : at + 2], "little")
    for flag in (0x08, 0x10):  # a file name, a comment
        if flags & flag:
            at = bytes(view).find(0, at) + 1 or len(view) + 1
    if flags & 0x02:
        if int.from_bytes(view[at : at + 2], "little") != zlib.crc32(view[:at]) & 0xFFFF:
            raise _Undecodable("Corrupt GZIP header")
        at += 2
    if at > len(view):
        raise _Undecodable("Unexpected end of ZLIB input stream")


def _is_gzip_header(view: memoryview) -> bool:
    return len(view) >= 10 and bytes(view[:3]) == b"\x1f\x8b\x08"


def _unsnappy(view: memoryview, magic: int, out: _Output) -> None:
    if not len(view):
        raise _Undecodable("Cannot decompress empty stream")
    if len(view) < 16 or view[:8] != _SNAPPY_MAGIC:
        out.add(_raw_snappy(view, out.room_bytes))
        return
    at = 16
    while at + 4 <= len(view):  # snappy-java takes a tail shorter than a block's length field for the end
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        if view[at : at + 4] == _SNAPPY_MAGIC[:4]:  # another stream follows this one
            if view[at : at + 8] != _SNAPPY_MAGIC or at + 16 > len(view):
                raise _Undecodable("Invalid snappy header")
            at += 16
            continue
        at += 4
        if not 0 <= size <= _SNAPPY_CHUNK_BYTES_MAX:
            raise _BadChunkSize(f"chunkSize is too big or negative : {size}")
        if size > len(view) - at:
            raise _Undecodable("failed to read chunk")
        out.add(_raw_snappy(view[at : at + size], out.room_bytes))
        at += size


def _raw_snappy(block: memoryview, room_bytes: int) -> bytes:
    # The declared size is a varint at the start.
    size = shift = used = 0
    while True:
        if used >= len(block) or shift > 28:
            raise _Undecodable("the declared length of a snappy block is not valid")
        size |= (block[used] & 0x7F) << shift
        used += 1
        if block[used - 1] < 0x80:
            break
        shift += 7
    if size > _SNAPPY_EXPANSION * len(block):
        raise _Undecodable("a snappy block declares more bytes than it can hold")
    if size > room_bytes:
        raise _TooLarge(f"a snappy block declares {size} bytes, and {room_bytes} are allowed")
    part = bytes(cramjam.snappy.decompress_raw(block))
    if len(part) != size:
        raise _Undecodable("invalid data")
    return part


def _lz4_header(view: memoryview, magic: int) -> tuple[int, int, int]:
    """Returns the position of a frame's first block, its flags and its block descriptor."""
    if len(view) < 7:
        raise _Undecodable("Stream ended prematurely")
    if view[:4] != _LZ4_MAGIC:
        raise _Undecodable("Stream unsupported (invalid magic bytes)")
    flags, descriptor = view[4], view[5]
    if flags & 0x03 or not flags & 0x20 or flags >> 6 != 1:
        raise _Undecodable("Stream unsupported (frame flags)")
    if descriptor & 0x8F or not 4 <= descriptor >> 4 <= 7:
        raise _Undecodable("Stream unsupported (block descriptor)")
    at = 14 if flags & 0x08 else 6
    if at >= len(view):
        raise _Undecodable("Stream ended prematurely")
    if magic > 0:
        expected = _LZ4_HEADER_CHECK if flags == 0x60 and descriptor == 0x40 else (_xxh32(view[4:at]) >> 8) & 0xFF
        if view[at] != expected:
            raise _Undecodable("Stream frame descriptor corrupted")
    return at + 1, flags, descriptor


def _unlz4(view: memoryview, magic: int, out: _Output) -> None:
    """Lz4BlockInputStream: one frame of independent blocks; content size and content checksum are ignored."""
    at, flags, descriptor = _lz4_header(view, magic)
    block_bytes_max = 1 << (2 * (descriptor >> 4) + 8)
    end = len(view)
    while True:
        if end - at < 4:
            raise _Undecodable("Stream ended prematurely")
        size = int.from_bytes(view[at : at + 4], "little")
        at += 4
        raw = size & 0x80000000
        size &= 0x7FFFFFFF
        if size == 0:
            if flags & 0x04 and end - at < 4:
                raise _Undecodable("Stream ended prematurely")
            return
        if size > block_bytes_max:
            raise _Undecodable(f"Block size {size} exceeded max: {block_bytes_max}")
        if end - at < size:
            raise _Undecodable("Stream ended prematurely")
        block = view[at : at + size]
        # A block decodes to at most 255 times its size.
        room = min(block_bytes_max, 255 * size + 64)
        part = bytes(block) if raw else lz4.block.decompress(block, uncompressed_size=room)
        at += size
        if flags & 0x10:
            if end - at < 4 or int.from_bytes(view[at : at + 4], "little") != _xxh32(block):
                out.add(part)
                raise _Undecodable("Block checksum mismatch")
            at += 4
        out.add(part)


def _rotl(x: int, n: int) -> int:
    return ((x << n) | (x >> (32 - n))) & 0xFFFFFFFF


def _xxh32(data: memoryview) -> int:
    """xxHash32 with seed 0, for frame headers (a few bytes) and blocks with checksums (which Kafka never writes)."""
    p1, p2, p3, p4, p5, mask = 2654435761, 2246822519, 3266489917, 668265263, 374761393, 0xFFFFFFFF
    size, at = len(data), 0
    if size >= 16:
        lanes = [(p1 + p2) & mask, p2, 0, (-p1) & mask]
        while at + 16 <= size:
            for i in range(4):
                word = int.from_bytes(data[at : at + 4], "little")
                lanes[i] = (_rotl((lanes[i] + word * p2) & mask, 13) * p1) & mask
                at += 4
        value = sum(_rotl(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
    else:
        value = p5
    value = (value + size) & mask
    while at + 4 <= size:
        value = (_rotl((value + int.from_bytes(data[at : at + 4], "little") * p3) & mask, 17) * p4) & mask
        at += 4
    while at < size:
        value = (_rotl((value + data[at] * p5) & mask, 11) * p1) & mask
        at += 1
    value = ((value ^ (value >> 15)) * p2) & mask
    value = ((value ^ (value >> 13)) * p3) & mask
    return value ^ (value >> 16)


_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_WINDOW_BYTES_MAX = 1 << 27  # the library's limit for streams, and zstd-jni's


def _zstd_frame(view: memoryview, at: int) -> tuple[int, int, bool]:
    """Walks one frame's block headers; returns its end, its largest possible output, and whether it is whole."""
    end = len(view)
    descriptor = view[at + 4] if at + 4 < end else 0
    single = bool(descriptor & 0x20)
    next_at = at + 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    next_at += size_bytes
    if next_at > end:
        return end, 0, False
    bound = 0
    while True:
        if end - next_at < 3:
            return end, bound, False
        header = int.from_bytes(view[next_at : next_at + 3], "little")
        next_at += 3
        kind, size = (header >> 1) & 3, header >> 3
        if size > _ZSTD_BLOCK_BYTES:
            raise _Undecodable(f"a zstd block of {size} bytes exceeds the maximum of {_ZSTD_BLOCK_BYTES}")
        bound += size if kind < 2 else _ZSTD_BLOCK_BYTES
        next_at += 1 if kind == 1 else size
        if next_at > end:
            return end, bound, False
        if header & 1:
            break
    next_at += 4 if descriptor & 0x04 else 0
    return min(next_at, end), bound, next_at <= end


def _zstd_decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    return decompressor


def frame_decoders() -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    """Returns the libraries' functions for one whole frame: (lz4(frame), zstd(frame, bytes at most)).

    They are for the calling thread only.  `ColumnBuilder.append_table` uses them after it has checked the frame; they
    raise the libraries' exceptions.
    """
    return lz4.frame.decompress, _zstd_decompressor().decompress


def _unzstd(view: memoryview, magic: int, out: _Output) -> None:
    decompressor = _zstd_decompressor()
    at, end = 0, len(view)
    if not end:
        raise _Undecodable("Truncated source")
    while at < end:
        if end - at < 4:
            raise _Undecodable("Truncated source")
        magic_number = int.from_bytes(view[at : at + 4], "little")
        if magic_number & 0xFFFFFFF0 == 0x184D2A50:  # a skippable frame
            if end - at < 8 or (size := int.from_bytes(view[at + 4 : at + 8], "little")) > end - at - 8:
                raise _Undecodable("Truncated source")
            at += 8 + size
            continue
        if magic_number != 0xFD2FB528:
            raise _Undecodable("Unknown frame descriptor")
        frame_end, bound, whole = _zstd_frame(view, at)
        frame = view[at:frame_end]
        known = zstandard.frame_content_size(frame) if whole else -1
        if known > bound:
            raise _Undecodable("a zstd frame declares more bytes than it can hold")
        if whole and bound <= min(out.room_bytes, max(_STEP_BYTES, 16 * len(frame))):
            out.add(decompressor.decompress(frame, max_output_size=max(bound, 1)))
        else:
            with decompressor.stream_reader(frame) as stream:
                while part := stream.read(min(_STEP_BYTES, out.room_bytes + 1)):
                    out.add(part)
        if not whole:
            raise _Undecodable("Truncated source")
        at = frame_end


_DECODERS: dict[int, Callable[[memoryview, int, _Output], None]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnappy,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}
