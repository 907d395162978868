"""The Python process of Spark's that does one task after the other, and what makes each of them 60 ms shorter.

Spark's JVM sends what a task is in several small pieces through a TCP socket, each of which waits until the one before
it was acknowledged (Nagle's algorithm); the system, which hopes to send that along with an answer, keeps it back for
40 ms.  Spark's own setting `spark.python.unix.domain.socket.enabled` has no such socket.  And behind each task the
process walks all that it has ever imported for garbage.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
from typing import Any

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
_LIBC = ctypes.CDLL(None) if _QUICKACK is not None else None
_is_settled = False


class AnswersAtOnce:
    """What Spark sends to its workers; each acknowledges it as it is unpickled, and has the next piece at once."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


def acknowledge() -> bool:
    """Acknowledges what has come from Spark's JVM; False where there is no such socket."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        infile = frame.f_locals.get("infile")  # of pyspark.worker.main
        if infile is not None:
            return _acknowledge(infile)
        frame = frame.f_back
    return False


def _acknowledge(infile: Any) -> bool:
    """By the system's own call: a `socket` around a descriptor makes it non-blocking where somebody has set a default
    timeout, for all who have it."""
    if _QUICKACK is None or _LIBC is None:
        return False
    try:
        descriptor = ctypes.c_int(infile.fileno())
    except (AttributeError, OSError, TypeError, ValueError):  # it is something else
        return False
    on = ctypes.c_int(1)
    failed = _LIBC.setsockopt(descriptor, socket.IPPROTO_TCP, _QUICKACK, ctypes.byref(on), ctypes.sizeof(on))
    return not failed  # a Unix socket has no such thing


def settle() -> None:
    """What is there now will stay: garbage is looked for elsewhere, which takes 40 ms less behind each task."""
    global _is_settled
    if not _is_settled:
        gc.freeze()
        _is_settled = True
