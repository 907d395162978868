"""A producer's result for a record: a `concurrent.futures.Future` that costs little, because a batch answers for all.

A `ProducerBatch` collects records of one partition until the sender takes it. From then on it has their outcomes, which
are set at once. A future is a batch and a number. The state, result and condition that `concurrent.futures` (`wait`,
`as_completed`) and `asyncio.wrap_future` use are the batch's. It cannot be cancelled: a record that was passed is sent.
Knows nothing of logs or senders. Thread-safe.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from kafkalog import _shown
from kafkalog._face.shown import Shown
from kafkalog._native.state.batching import Answered, Awaited, Numbered
from kafkalog.engine.files.lines import Lines
from kafkalog.topic import RecordMetadata

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition

RUNNING, FINISHED = "RUNNING", "FINISHED"  # concurrent.futures._base's
HELD_S_MAX = 5.0  # for a condition held by `concurrent.futures.wait`; an interrupt may leave it held forever
LOOK_EVERY_S = 1.0  # waiters check again: a sender that could not get the condition notifies nobody

Outcome = int | BaseException  # the offset of a record, or the error


class Owner(Protocol):
    """The part of a sender that a batch uses (`kafkalog.producer.RecordAccumulator`)."""

    def check_may_wait(self, what: str) -> None:
        """Raises IllegalStateException if nobody would ever answer a caller that waits for `what`."""


class ProducerBatch(Answered):
    """Records of one partition on their way to its log. The lock of its accumulator guards `collected`."""

    __slots__ = ("condition", "created_s", "is_over", "is_urgent", "owner", "watched")
    outcomes: Sequence[Outcome] | None  # one for each record, once they are known

    def __init__(self, topic_partition: TopicPartition, owner: Owner, created_s: float) -> None:
        super().__init__(topic_partition, RecordMetadata)
        self.owner = owner
        self.created_s = created_s  # by time.monotonic
        self.is_urgent = False  # a caller waits for it
        self.is_over = False  # callbacks have returned
        self.condition = Awaited()
        self.watched: list[RecordFuture] = []  # futures with their own waiters or callbacks

    def answer(self, outcomes: Sequence[Outcome]) -> None:
        """Sets the outcomes of its records, and wakes and calls all waiters. A second answer changes nothing."""
        if self.outcomes is not None:
            return
        held = self.condition.acquire(timeout=HELD_S_MAX)
        try:
            self.outcomes = outcomes
            for future in self.watched:
                future.tell_waiters()
            self.is_over = not self.watched
            self.condition.notify_all()
        finally:
            if held:
                self.condition.release()
        for future in sorted(self.watched, key=RecordFuture.number_of):
            future._invoke_callbacks()
        self.is_over = True
        if self.watched:
            self.condition.notify_all()
            self.watched = []  # breaks the reference cycle with the futures

    def wait(self, seconds: float | None, *, to_the_end: bool = False) -> bool:
        """Returns whether it was answered in time; with `to_the_end`, whether callbacks have returned as well."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while self.outcomes is None or (to_the_end and not self.is_over):
            self.owner.check_may_wait("the result of a record")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._wait_once(min(left_s, LOOK_EVERY_S), to_the_end)
        return True

    def _wait_once(self, seconds: float, to_the_end: bool) -> None:
        with self.condition:
            if self.outcomes is None or (to_the_end and not self.is_over):
                self.condition.wait(seconds)


class RecordFuture(Numbered, Future[RecordMetadata], Shown):
    """The result of one record that was sent.

    `Producer.send` returns it. It is a `concurrent.futures.Future`, and a coroutine can await it. Waiting raises
    IllegalStateException if nobody would ever answer: in a forked child, or in a callback of another future.

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     orders = store.create_topic("orders")
        ...     with store.producer() as producer:
        ...         future = producer.send("orders", b"tea", key=b"c-7")
        ...         print(future.result(timeout=10), future.exception())
        RecordMetadata(topic='orders', partition=0, offset=0) None
    """

    _inner = frozenset({"number_of", "set_exception", "set_result", "set_running_or_notify_cancel", "tell_waiters"})

    _batch: ProducerBatch

    def __setattr__(self, name: str, value: object) -> None:
        self._show()  # it may be part of a cycle from now on
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        batch = self._batch
        outcomes = batch.outcomes
        if outcomes is None:
            return f"<RecordFuture of {batch.topic_partition}, on its way>"
        told = outcomes[self._number]
        what = f"offset {told}" if isinstance(told, int) else _shown.cut(told)
        return f"<RecordFuture of {batch.topic_partition}, {what}>"

    def number_of(self) -> int:
        """Returns the number of the record in its batch."""
        return self._number

    # --- used by concurrent.futures ------------------------------------------------------------------

    @property
    def _condition(self) -> Any:  # type: ignore[override]
        return self._batch.condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return RUNNING if self._batch.outcomes is None else FINISHED

    @property
    def _result(self) -> RecordMetadata | None:  # type: ignore[override]
        found: RecordMetadata | None = self._batch.found(self._number)
        return found

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        """A copy of the error: one exception raised by several threads would collect their tracebacks."""
        told: BaseException | None = self.__dict__.get("_told")
        if told is None and self._batch.outcomes is not None:
            error = self._batch.outcomes[self._number]
            if isinstance(error, BaseException):
                self._show()
                told = self.__dict__.setdefault("_told", _copied(error))
        return told

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._list("_own_waiters")

    @property
    def _done_callbacks(self) -> list[Callable[[Future[RecordMetadata]], object]]:
        return self._list("_own_callbacks")

    def _list(self, name: str) -> list[Any]:
        """Returns a list that is created at the first call, with the condition held."""
        found: list[Any] | None = self.__dict__.get(name)
        if found is None:
            self._show()
            if self.__dict__.keys().isdisjoint(("_own_waiters", "_own_callbacks")):
                self._batch.watched.append(self)
            found = self.__dict__[name] = []
        return found

    def tell_waiters(self) -> None:
        """Notifies the waiters of `concurrent.futures.wait` and `as_completed`, with the condition held."""
        for waiter in self.__dict__.get("_own_waiters", ()):
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)

    def _invoke_callbacks(self) -> None:
        if "_own_callbacks" in self.__dict__:
            try:
                super()._invoke_callbacks()  # type: ignore[misc]
            except BaseException:  # SystemExit of a callback must not end the sender
                Lines("kafkalog.topics").exception("A callback of %r raised an error", self)

    # --- for asyncio -----------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Waits for the result, in any event loop. A cancelled task stops waiting; the record is still sent."""
        if self._batch.outcomes is None:
            import asyncio

            self._batch.owner.check_may_wait("the result of a record")
            loop = asyncio.get_running_loop()
            answered = loop.create_future()

            def settle() -> None:
                if not answered.done():  # else the task was cancelled
                    answered.set_result(None)

            def tell(_: Future[RecordMetadata]) -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits for the result
                    loop.call_soon_threadsafe(settle)

            self.add_done_callback(tell)
            yield from answered
        return self.result()

    # --- public --------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def result(self, timeout: float | None = None) -> RecordMetadata:
            """Waits for the record and returns its position.

            Args:
                timeout: The longest time to wait, in seconds. Default: forever.

            Returns:
                The topic, partition and offset of the record.

            Raises:
                TimeoutError: The result is not known in time.
                KafkalogError: The reason if the record is not in the log.
            """

    def _awaited(self, timeout: float | None) -> RecordMetadata:
        if not self._batch.wait(timeout):
            raise FutureTimeoutError
        error, found = self._exception, self._result
        if found is None:
            assert error is not None
            raise error
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns why the record is not in the log, or None if it is.

        Args:
            timeout: The longest time to wait, in seconds. Default: forever.

        Returns:
            The error, or None.

        Raises:
            TimeoutError: The result is not known in time.
        """
        if not self._batch.wait(timeout):
            raise FutureTimeoutError
        return self._exception

    def done(self) -> bool:
        """Returns whether the record's outcome is known.

        Returns:
            True if the record is in the log, or was refused.
        """
        return self._batch.outcomes is not None

    def set_running_or_notify_cancel(self) -> bool:
        raise InvalidStateError("only the producer sets the result of a record")

    def set_result(self, result: RecordMetadata) -> None:
        raise InvalidStateError("only the producer sets the result of a record")

    def set_exception(self, exception: BaseException | None) -> None:
        raise InvalidStateError("only the producer sets the result of a record")

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a record's future cannot be copied or pickled: use its result()")


def _copied(error: BaseException) -> BaseException:
    try:
        found = copy.copy(error)
    except Exception:  # a class whose constructor has other arguments
        return error
    found.__cause__ = error.__cause__
    return found
