"""Bytes in a block of exactly their size, so that AddressSanitizer sees the first byte read after them.

`bytes` and `bytearray` have space after their contents and a map ends at a page, where an over-read goes unnoticed.
"""

from __future__ import annotations

import ctypes
import weakref

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def exact(data: bytes | bytearray) -> memoryview:
    """A writable view of a malloc'd copy; the block is freed with the last view of it."""
    address = _libc.malloc(len(data))
    if not address and data:
        raise MemoryError
    block = (ctypes.c_uint8 * len(data)).from_address(address)
    ctypes.memmove(address, bytes(data), len(data))
    weakref.finalize(block, _libc.free, address)
    return memoryview(block).cast("B")
