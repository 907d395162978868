"""Bytes that change while they are read: a thread without the interpreter's lock writes into a buffer.

A loop in C, as no loop in Python is often enough between two loads of native code.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Copies parts of `count` variants, of `size` bytes each, over `at` until `*stop`; how often. */
uint64_t churn(uint8_t *at, size_t size, const uint8_t *variants, size_t count, const int *stop)
{
    uint64_t state = 88172645463325252ull, turns = 0;
    for (; !__atomic_load_n(stop, __ATOMIC_RELAXED); turns++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const uint8_t *from = variants + state % count * size;
        size_t start = 0, length = size;
        switch (state >> 32 & 3) {
        case 0: /* all of it */
            break;
        case 1: /* a header, or a part of one */
            start = (state >> 40) % (size < 64 ? size : 64);
            length = 1 + (state >> 50) % 8;
            break;
        default:
            start = (state >> 34) % size;
            length = 1 + (state >> 50) % 64;
        }
        memcpy(at + start, from + start, length < size - start ? length : size - start);
    }
    return turns;
}
"""


@functools.cache
def _churn() -> ctypes._CFuncPointer:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "churn.c"), Path(folder, "churn.so")
        source.write_text(_SOURCE)
        quiet = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True, env=quiet)
        function = ctypes.CDLL(str(library)).churn
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes, function.restype = [pointer, size, ctypes.c_char_p, size, pointer], ctypes.c_uint64
    return function


@contextlib.contextmanager
def churning(view: memoryview, variants: Sequence[bytes]) -> Iterator[None]:
    """While it is entered, `view` (writable) turns into parts of `variants`, which have its size, in no order."""
    assert {len(variant) for variant in variants} == {view.nbytes}
    block = (ctypes.c_uint8 * view.nbytes).from_buffer(view)
    stop, turns = ctypes.c_int(0), [0]
    churn = _churn()

    def run() -> None:
        turns[0] = churn(
            ctypes.addressof(block), view.nbytes, b"".join(variants), len(variants), ctypes.addressof(stop)
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.value = 1
        thread.join()
    assert turns[0] > 0
