"""Makes each task 60 ms shorter in Spark's Python process, which runs one task after the other.

Spark's JVM sends a task in several small pieces through a TCP socket.  Each piece waits until the one before was
acknowledged (Nagle's algorithm), and the system delays that by 40 ms, in the hope of sending it with an answer.  With
Spark's setting `spark.python.unix.domain.socket.enabled` there is no such socket.  In addition, after each task the
process collects garbage among everything that it has ever imported.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
from typing import Any

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # only Linux has it
_LIBC = ctypes.CDLL(None) if _QUICKACK is not None else None
_is_settled = False


class AnswersAtOnce:
    """Base of what Spark sends to its workers; unpickling acknowledges a piece, so the next piece comes at once."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


def acknowledge() -> bool:
    """Acknowledges what Spark's JVM has sent; returns False if there is no such socket."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        infile = frame.f_locals.get("infile")  # a local variable of pyspark.worker.main
        if infile is not None:
            return _acknowledge(infile)
        frame = frame.f_back
    return False


def _acknowledge(infile: Any) -> bool:
    """Acknowledges with a system call.

    A `socket` object around the descriptor would make it non-blocking for all users if a default timeout is set.
    """
    if _QUICKACK is None or _LIBC is None:
        return False
    try:
        descriptor = ctypes.c_int(infile.fileno())
    except (AttributeError, OSError, TypeError, ValueError):  # it is not a socket
        return False
    on = ctypes.c_int(1)
    failed = _LIBC.setsockopt(descriptor, socket.IPPROTO_TCP, _QUICKACK, ctypes.byref(on), ctypes.sizeof(on))
    return not failed  # a Unix socket has no such option


def settle() -> None:
    """Excludes the current objects from garbage collection, which saves 40 ms after each task."""
    global _is_settled
    if not _is_settled:
        gc.freeze()
        _is_settled = True
