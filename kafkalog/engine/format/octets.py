"""Bytes from outside: whoever hands a buffer in may have one of any items and shape, and may still be writing to it.

Called at the door, so that behind it `len(data)` and slices count bytes.  The contents are not copied and may change:
no count from an earlier look at them is trusted behind the door either.
"""

from __future__ import annotations

from kafkalog._native.codec.encode import EncodedBatch
from kafkalog._native.codec.octets import bytes_of
from kafkalog.errors import IllegalArgumentException


def octets(data: object, what: str) -> bytes | memoryview:
    """`data` as it is where it is bytes or a memoryview of bytes, else a read-only view of its bytes.

    Any C-contiguous buffer will do: bytearray, mmap, array.array, numpy arrays, memoryviews cast to any item.
    IllegalArgumentException, naming `what`, for anything else.
    """
    if type(data) is bytes:
        return data
    try:
        return bytes_of(data)  # type: ignore[arg-type]  # anything that is no buffer raises
    except TypeError as error:
        raise _refusal(data, what, error) from error


def frozen(data: object, what: str) -> bytes | memoryview:
    """`octets` of bytes that stay as they are: copied, unless they are those of a bytes object."""
    if type(data) is EncodedBatch:
        return data.data
    view = octets(data, what)
    if isinstance(view, bytes) or (isinstance(data, memoryview) and isinstance(data.obj, bytes)):
        return view
    return bytes(view)


def _refusal(data: object, what: str, error: TypeError) -> IllegalArgumentException:
    kind = type(data).__name__
    if error.__cause__ is not None:
        return IllegalArgumentException(
            f"{what}: found a {kind} whose bytes cannot be had in one piece ({error.__cause__}), "
            "expected a C-contiguous buffer",
            hint="bytes(...) of a slice or a transposed array copies it into one piece",
        )
    return IllegalArgumentException(
        f"{what}: found {kind}, expected bytes or another C-contiguous buffer",
        hint="text wants .encode()" if isinstance(data, str) else None,
    )
