"""Runs blocking work for asyncio in a thread that ends before its task does.

Each piece of work has its own daemon thread. So work that waits forever does not block a place in a pool, or the end of
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")


class ClosingAsync:
    """Adds `async with`. The object is closed in a thread, because closing may wait for disks. If the task is cancelled
    meanwhile, the cancellation follows after the close."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self.close)


async def in_thread(work: Callable[[], T], stop: Callable[[bool], None] = lambda is_stopped: None) -> T:
    """Returns the result of `work()`. If the task is cancelled, `stop(True)` makes the work return early. The
    cancellation continues when it has returned; its result is dropped after `stop(False)`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(answer: T | None, error: BaseException | None) -> None:
        if error is None:
            done.set_result(answer)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        answer, error = None, None
        try:
            answer = work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the result
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=run, name="kafkalog-asyncio", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop(True)
        while not done.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        stop(False)
        done.exception()  # marks the exception as retrieved
        raise
