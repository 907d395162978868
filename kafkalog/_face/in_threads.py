"""Work for asyncio in a thread, which comes back before its task is gone.

Each piece of work has a thread of its own, which keeps no process from ending: one that waits for ever must not hold a
pool's place, or the interpreter's end.
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
    """`async with`: is closed in a thread, for that may wait for disks.  A task that is cancelled meanwhile is
    cancelled when it is closed."""

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
    """What `work()` answers.  When the task is cancelled, `stop(True)` has it come back early; the cancellation goes on
    when it has, and what it answered is dropped, after `stop(False)`."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
        done.exception()  # it was asked for
        raise
