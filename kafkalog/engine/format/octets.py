"""Bytes from a caller, whose buffer may have items of any type and shape, and may still change.

Entry points call these functions, so that afterwards `len(data)` and slices count bytes.  The contents are not copied
and may change.  Code must not rely on a count from an earlier read of them.
"""

from __future__ import annotations

from kafkalog._native.codec.encode import EncodedBatch
from kafkalog._native.codec.octets import bytes_of
from kafkalog.errors import IllegalArgumentException


def octets(data: object, what: str) -> bytes | memoryview:
    """Returns bytes, or a memoryview of bytes, unchanged, and for other buffers a read-only view of their bytes.

    It accepts any C-contiguous buffer: bytearray, mmap, array.array, numpy arrays, memoryviews cast to any item.
    Anything else raises IllegalArgumentException, which names `what`.
    """
    if type(data) is bytes:
        return data
    try:
        return bytes_of(data)  # type: ignore[arg-type]  # an object that is not a buffer raises TypeError
    except TypeError as error:
        raise _refusal(data, what, error) from error


def frozen(data: object, what: str) -> bytes | memoryview:
    """Returns `octets` of bytes that cannot change: a copy, unless they belong to a bytes object."""
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
            f"{what}: found a {kind} whose bytes are not contiguous ({error.__cause__}), "
            "expected a C-contiguous buffer",
            hint="bytes(...) copies a slice or a transposed array into contiguous memory",
        )
    return IllegalArgumentException(
        f"{what}: found {kind}, expected bytes or another C-contiguous buffer",
        hint="encode text with .encode()" if isinstance(data, str) else None,
    )
