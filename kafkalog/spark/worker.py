"""The Python process of Spark's that does one task after the other, and what makes each of them 60 ms shorter.

Spark's JVM sends what a task is in several small pieces through a TCP socket, each of which waits until the one before
it was acknowledged (Nagle's algorithm); the system, which hopes to send that along with an answer, keeps it back for
40 ms.  Spark's own setting `spark.python.unix.domain.socket.enabled` has no such socket.  And behind each task the
process walks all that it has ever imported for garbage.
"""

from __future__ import annotations

import gc
import socket
import sys
from typing import Any

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
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
        infile = frame.f_locals.get("infile")  # of pyspark.worker.main, and of those that plan on the driver
        if hasattr(infile, "fileno"):
            return _acknowledge(infile.fileno())
        frame = frame.f_back
    return False


def _acknowledge(descriptor: int) -> bool:
    if _QUICKACK is None:
        return False
    try:
        with socket.socket(fileno=descriptor) as spark:
            try:
                spark.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            finally:
                spark.detach()  # it stays open
    except OSError:  # it is none, or not of TCP
        return False
    return True


def settle() -> None:
    """What is there now will stay: garbage is looked for elsewhere, which takes 40 ms less behind each task."""
    global _is_settled
    if not _is_settled:
        gc.freeze()
        _is_settled = True
