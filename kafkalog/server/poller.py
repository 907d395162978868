"""Waits for sockets: epoll on Linux, `selectors` elsewhere, behind one small interface.

    poller.register(fd, READ | WRITE, data); for data, events in poller.poll(timeout_s): ...

An error or a hang-up of a socket is told as both READ and WRITE.  On Linux this is the half of what `selectors` costs
for each event, which counts when a request takes 20 us.  Not thread-safe.
"""

from __future__ import annotations

import select
import selectors
from typing import Any, Protocol

READ, WRITE = 1, 4


class Poller(Protocol):
    """The interface that the transport needs."""

    def register(self, fd: int, events: int, data: object) -> None: ...

    def modify(self, fd: int, events: int) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def poll(self, timeout_s: float | None) -> list[tuple[Any, int]]: ...

    def close(self) -> None: ...


class EpollPoller:
    """Linux."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._data: dict[int, object] = {}

    def register(self, fd: int, events: int, data: object) -> None:
        """Waits for events of a descriptor from now on."""
        self._epoll.register(fd, events)
        self._data[fd] = data

    def modify(self, fd: int, events: int) -> None:
        """Waits for other events."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Waits for nothing of a descriptor any more."""
        self._data.pop(fd, None)
        self._epoll.unregister(fd)

    def poll(self, timeout_s: float | None) -> list[tuple[Any, int]]:
        """Returns what is ready: the data and the events."""
        data = self._data
        # A descriptor may be closed by an event before its own.
        return [(data.get(fd), events if events < 8 else READ | WRITE) for fd, events in self._epoll.poll(timeout_s)]

    def close(self) -> None:
        """Closes it."""
        self._epoll.close()


class SelectorPoller:
    """Any other system."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, events: int, data: object) -> None:
        """Waits for events of a descriptor from now on."""
        self._selector.register(fd, _told(events), data)

    def modify(self, fd: int, events: int) -> None:
        """Waits for other events."""
        self._selector.modify(fd, _told(events), self._selector.get_key(fd).data)

    def unregister(self, fd: int) -> None:
        """Waits for nothing of a descriptor any more."""
        self._selector.unregister(fd)

    def poll(self, timeout_s: float | None) -> list[tuple[Any, int]]:
        """Returns what is ready: the data and the events."""
        return [
            (
                key.data,
                (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in self._selector.select(timeout_s)
        ]

    def close(self) -> None:
        """Closes it."""
        self._selector.close()


def _told(events: int) -> int:
    return (selectors.EVENT_READ if events & READ else 0) | (selectors.EVENT_WRITE if events & WRITE else 0)


def new_poller() -> Poller:
    """Returns the best one of this system."""
    return EpollPoller() if hasattr(select, "epoll") else SelectorPoller()
