"""The memory of all requests that are being received or handled, and its limit (queued.max.request.bytes).

While more than the limit is in use, frames that came in part are not read on.  One connection, the holder, is the
exception: otherwise none of them would ever become whole.  So at most one large request more than the limit is held,
and the beginnings of requests that the transport still reads, a few KiB of each connection.  A limit below 0 is none,
as in Kafka.  Not thread-safe: the I/O thread owns it.  Source: SimpleMemoryPool.
"""

from __future__ import annotations

from collections.abc import Hashable


class RequestMemory:
    """How many bytes are in use.  `used` may pass `limit` by one read of each connection and by the holder's frame."""

    __slots__ = ("holder", "limit", "peak", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.holder: Hashable | None = None

    @property
    def is_short(self) -> bool:
        """Whether `admits` may refuse somebody: half of it is used."""
        return self.limit >= 0 and 2 * self.used >= self.limit

    def take(self, count: int) -> None:
        """Counts bytes that were allocated."""
        self.used += count
        if self.used > self.peak:
            self.peak = self.used

    def give(self, count: int) -> None:
        """Counts bytes that were released."""
        self.used -= count
        assert self.used >= 0, self.used

    def admits(self, who: Hashable, growth: int, *, has_part: bool) -> bool:
        """Returns whether the socket of `who` may be read now, which allocates about `growth` bytes."""
        if self.limit < 0 or self.used + growth < self.limit or self.holder is who:
            return True
        if self.holder is None and has_part:
            self.holder = who
            return True
        return False

    def leave(self, who: Hashable) -> bool:
        """Says that the frame of `who` is whole, or that its connection ended.  Returns whether it was the holder."""
        if self.holder is who:
            self.holder = None
            return True
        return False
