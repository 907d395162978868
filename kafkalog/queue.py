"""`Queue`, returned by `Store.queue`: workers share the records of topics, and acknowledge each one.

    with kafkalog.open("data") as store, store.queue("mail", topics=["outbox"]) as queue:
        for record in queue.take(max_records=100, timeout_ms=1000):
            send(record.value)
            record.ack()

A record goes to one worker at a time.  It is locked for `lock_ms`; after that, or after `release`, another worker gets
it.  `ack` ends it.  `reject` ends it as well, and so does the last of `max_deliveries` deliveries; with `dead_letters`
it is then copied to that topic, with headers that say where it came from and why.

A queue is a share group of Kafka (KIP-932): its state is in the topic `__share_group_state` and survives kill -9.
Kafka's brokers and tools continue it, and clients of `kafkalog serve` share it with the workers of this process.

A queue that is open counts as a member of the group.  So a server assigns some partitions to it, and clients of the
server do not get their records.  After a minute without a call the queue leaves the group, and the clients get all
partitions.  Its next `take` joins again.

Guarantees.  A record is delivered at least once; after `ack` returned it is not delivered again.  After a crash records
that were not acknowledged come again.  Deliveries of one partition begin in the order of offsets; several workers, and
records that come again, change that order.

The file is long because each public call has its example.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from kafkalog._face.in_threads import ClosingAsync, in_thread
from kafkalog._face.queue_group import QueueGroup, QueueOptions, QueueSource
from kafkalog._limits import INT_MAX
from kafkalog._native.state.bell import Bell
from kafkalog._native.state.blocks import Closing
from kafkalog._shown import Shown
from kafkalog.engine.coordinator.share_config import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kafkalog.engine.coordinator.share_partition import ACCEPT, REJECT, RELEASE, RENEW
from kafkalog.engine.format import values
from kafkalog.engine.format.names import validate_topic_name
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordStateException,
    InvalidTopicException,
    KafkalogError,
    TimeoutException,
)

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog.records import Header, Record

__all__ = ["Queue", "QueueRecord"]

TAKE_RECORDS = 500
SHORT_MAX = 32_767
WAIT_MAX_S = 1.0  # some changes ring no bell
T = TypeVar("T")


class _LoopBell:
    """Wakes one waiting task; rung from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = asyncio.Event()

    def release(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), timeout_s)


class QueueRecord(Shown):
    """A record that a worker has taken from a `Queue`.

    It is a context manager: `with record:` acknowledges the record at the end of the block, and releases it if the
    block raises an exception.  `async with` does the same.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     place = store.create_topic("outbox").append(b"hello", key=b"ann")
        ...     with store.queue("mail", topics=["outbox"]) as queue:
        ...         with queue.take_one() as record:
        ...             print(record.value, record.key, record.delivery_count, record.offset)
        ...         print(queue.take())
        b'hello' b'ann' 1 0
        []
    """

    __slots__ = ("_is_ended", "_queue", "_source", "delivery_count", "record")

    def __init__(self, record: Record, delivery_count: int, queue: Queue, source: QueueSource) -> None:
        self.record = record
        self.delivery_count = delivery_count
        self._queue = queue
        self._source = source
        self._is_ended = False

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        return self.record.offset

    @property
    def key(self) -> bytes | None:
        """The key."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The value."""
        return self.record.value

    @property
    def headers(self) -> Sequence[Header]:
        """The headers: pairs of name and value."""
        return self.record.headers

    @property
    def timestamp(self) -> int:
        """The timestamp, in milliseconds since 1970."""
        return self.record.timestamp

    def ack(self) -> None:
        """Ends the record: it is done.

        Raises:
            KafkalogError: Any error of `Queue.ack`.
        """
        self._queue.ack(self)

    def release(self) -> None:
        """Gives the record back, so that any worker may take it again.

        Raises:
            KafkalogError: Any error of `Queue.release`.
        """
        self._queue.release(self)

    def reject(self) -> None:
        """Ends the record that nobody shall try again.

        Raises:
            KafkalogError: Any error of `Queue.reject`.
        """
        self._queue.reject(self)

    def renew(self) -> None:
        """Locks the record for another `lock_ms` from now.

        Raises:
            KafkalogError: Any error of `Queue.renew`.
        """
        self._queue.renew(self)

    def __enter__(self) -> QueueRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ended:
            return
        if error is None:
            self.ack()
            return
        with contextlib.suppress(KafkalogError):  # the block's exception is what the caller has to see
            self.release()

    async def __aenter__(self) -> QueueRecord:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._queue._unblocked(lambda: self.__exit__(kind, error, trace))

    def __repr__(self) -> str:
        again = "" if self.delivery_count == 1 else f", delivery {self.delivery_count}"
        return f"<QueueRecord {self.topic}-{self.partition}@{self.offset}{again}>"


Given = QueueRecord | Iterable[QueueRecord] | None


class Queue(Closing, ClosingAsync, Shown):
    """The records of some topics, shared out to workers; returned by `Store.queue`.

    A Queue is a context manager and is thread-safe.  Workers may share one object, or have one each: several objects of
    the same name are one queue.  The records that an object has taken, and not ended, are free again when it is closed.

    Iterating takes one record at a time and waits for the next one without an end.  The loop acknowledges a record when
    it asks for the next one, unless the record was acknowledged, released or rejected before.  `async for` does the
    same.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     offsets = store.create_topic("outbox").append_many([b"one", b"two", b"three"])
        ...     with store.queue("mail", topics=["outbox"], dead_letters="mail-dead") as queue:
        ...         one, two, three = queue.take()
        ...         one.ack()
        ...         two.release()
        ...         three.reject()
        ...         print([(record.value, record.delivery_count) for record in queue.take()])
        ...         queue.ack()
        ...     print([record.value for record in store.topic("mail-dead")])
        [(b'two', 2)]
        [b'three']
    """

    def __init__(self, home: Home, name: str, topics: Iterable[str], options: QueueOptions) -> None:
        self._home = home
        self._name = name
        self._topics = topics = _names(topics)
        self._options = options
        self._closed = False
        self._turn = 0
        self._counting = threading.Lock()
        self._given = 0  # records that were taken and not ended; guarded by _counting
        self._version: object = None
        self._found: list[QueueSource] = []
        self._member = f"{name[:20]}-{secrets.token_hex(8)}"
        _check_dead_letters(options.dead_letters, topics)
        for topic in topics:
            home.info(topic)
        self._group = QueueGroup.opened(home, name, options)
        try:
            for source in self._sources():
                source.check()
        except BaseException:
            self._group.close_one()
            raise

    # --- open and close ------------------------------------------------------------------------------

    def __enter__(self) -> Queue:
        return self

    @property
    def name(self) -> str:
        """The queue's name, Kafka's group.id."""
        return self._name

    @property
    def topics(self) -> list[str]:
        """The names of its topics, in the order in which they were given."""
        return list(self._topics)

    @property
    def closed(self) -> bool:
        """True if the queue or its store was closed."""
        return self._closed or not self._home.life.live

    def close(self) -> None:
        """Closes the object, and frees the records that it has taken.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     queue = store.queue("mail", topics=["outbox"])
            ...     print([record.value for record in queue.take()])
            ...     queue.close()
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         print([(record.value, record.delivery_count) for record in queue.take()])
            [b'one']
            [(b'one', 2)]
        """
        if self._closed:
            return
        self._closed = True
        if not self._home.life.live:
            return
        try:
            self._over_sources(lambda source: source.release_all(self._member), self._found)
        finally:
            self._group.ring()
            self._group.close_one()

    def _check(self) -> None:
        self._group.is_used = True
        self._home.check_open()
        if self._closed:
            raise IllegalStateException(f"{self!r} is closed")

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Queue {self._name!r} of {', '.join(self._topics)}, {state}>"

    def _repr_html_(self) -> str | None:
        return None

    # --- taking --------------------------------------------------------------------------------------

    def take(self, max_records: int = TAKE_RECORDS, timeout_ms: int | None = 0) -> list[QueueRecord]:
        """Returns records that nobody else has, as soon as there is at least one, and locks them for this object.

        Args:
            max_records: The most records to return.
            timeout_ms: How long to wait for a record, in milliseconds; 0 does not wait, None waits without a limit.

        Returns:
            The records; an empty list if none came in time.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The queue or the store is closed, or was opened by another process.
            CorruptRecordException: A log is damaged.
            KafkaStorageException: A log cannot be read or written.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("outbox").append_many([b"one", b"two"])
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         print([record.value for record in queue.take(max_records=1)])
            ...         print([record.value for record in queue.take(timeout_ms=100)])
            [b'one']
            [b'two']
        """
        count = values.whole(max_records, "max_records", low=1, expected="records at most")
        timeout_s = _timeout_s(timeout_ms)
        found = self._take(count)
        if found or timeout_s == 0:
            return found
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            bell = Bell()
            self._home.bells.add(bell)
            with self._group.listening(bell, self._sources()):
                found = self._take(count)
                if found:
                    return found
                left_s = WAIT_MAX_S if deadline is None else min(deadline - time.monotonic(), WAIT_MAX_S)
                if left_s > 0:
                    bell.wait(left_s)
            found = self._take(count)
            if found or (deadline is not None and time.monotonic() >= deadline):
                return found

    def take_one(self, timeout_ms: int | None = None) -> QueueRecord:
        """Returns one record, and waits for it.

        `with` acknowledges the record at the end of the block, and releases it if the block raises an exception.

        Args:
            timeout_ms: How long to wait, in milliseconds; None waits without a limit.

        Returns:
            The record.

        Raises:
            TimeoutException: No record came in time.
            KafkalogError: Any error of `take`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         try:
            ...             with queue.take_one() as record:
            ...                 raise ValueError(record.delivery_count)
            ...         except ValueError as error:
            ...             print(error)
            ...         with queue.take_one(timeout_ms=100) as record:
            ...             print(record.value, record.delivery_count)
            1
            b'one' 2
        """
        found = self.take(1, timeout_ms)
        if not found:
            raise TimeoutException(f"no record came to {self!r} within {timeout_ms} ms")
        return found[0]

    async def take_async(self, max_records: int = TAKE_RECORDS, timeout_ms: int | None = None) -> list[QueueRecord]:
        """Returns records as `take`, without blocking the event loop while it waits.

        Args:
            max_records: The most records to return.
            timeout_ms: How long to wait for a record, in milliseconds; 0 does not wait, None waits without a limit.

        Returns:
            The records; an empty list if none came in time.

        Raises:
            KafkalogError: Any error of `take`.

        Example:
            >>> import asyncio
            >>> async def work(queue):
            ...     for record in await queue.take_async(timeout_ms=100):
            ...         print(record.value)
            ...         await queue.ack_async(record)
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         asyncio.run(work(queue))
            b'one'
        """
        count = values.whole(max_records, "max_records", low=1, expected="records at most")
        timeout_s = _timeout_s(timeout_ms)
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            found = await self._unblocked(lambda: self._take(count))
            if found or (deadline is not None and loop.time() >= deadline):
                return found
            bell = _LoopBell(loop)
            self._home.bells.add(bell)
            with self._group.listening(bell, self._sources()):
                found = await self._unblocked(lambda: self._take(count))
                if found:
                    return found
                left_s = WAIT_MAX_S if deadline is None else min(deadline - loop.time(), WAIT_MAX_S)
                if left_s > 0:
                    await bell.wait(left_s)

    async def _unblocked(self, work: Callable[[], T]) -> T:
        """Does work that may wait for the disk: here if it only writes to memory, else in a thread."""
        return await in_thread(work) if self._home.syncs else work()

    def _sources(self) -> list[QueueSource]:
        version = self._home.topic_changes
        if version != self._version or self._group.is_away:
            self._found = self._group.sources(self._topics)
            self._version = version
        return self._found

    def _take(self, count: int) -> list[QueueRecord]:
        found = self._taken(count)
        if found:
            with self._counting:
                self._given += len(found)
        return found

    def _taken(self, count: int) -> list[QueueRecord]:
        self._check()
        sources = self._sources()
        found: list[QueueRecord] = []
        turn = self._turn
        for at in range(len(sources)):
            source = sources[(turn + at) % len(sources)]
            try:
                taken = source.take(self._member, count - len(found))
            except KafkalogError:
                if found:  # the next call raises it again
                    return found
                raise
            if taken:
                found += [QueueRecord(record, times, self, source) for record, times in taken]
                self._turn = turn + at + 1
                if len(found) >= count:
                    break
        return found

    def __iter__(self) -> Iterator[QueueRecord]:
        while True:
            record = self.take_one()
            yield record
            if not record._is_ended:
                self.ack(record)

    async def __aiter__(self) -> AsyncIterator[QueueRecord]:
        while True:
            for record in await self.take_async(1):
                yield record
                if not record._is_ended:
                    await self.ack_async(record)

    # --- ending --------------------------------------------------------------------------------------

    def ack(self, records: Given = None) -> None:
        """Acknowledges records: they are done and are not delivered again.

        The call returns when this is written; writes of several workers at the same time become one.

        Args:
            records: A record, several, or None for everything that this object has taken and not ended.

        Raises:
            InvalidRecordStateException: The queue does not have some of the records any more, because their lock has
                ended or they were ended before.  The others are acknowledged.
            IllegalArgumentException: `records` are not records of this queue.
            IllegalStateException: The queue or the store is closed.
            UnknownServerException: The state could not be written; the records stay locked.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("outbox").append_many([b"one", b"two", b"three"])
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         one, two, three = queue.take()
            ...         queue.ack(one)
            ...         queue.ack([two, three])
        """
        self._end(records, ACCEPT)

    async def ack_async(self, records: Given = None) -> None:
        """Acknowledges records as `ack`, without blocking the event loop for the disk.

        Args:
            records: A record, several, or None for everything that this object has taken and not ended.

        Raises:
            KafkalogError: Any error of `ack`.

        Example:
            >>> import asyncio
            >>> async def work(queue):
            ...     await queue.ack_async(queue.take())
            ...     print(queue.take())
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         asyncio.run(work(queue))
            []
        """
        await self._unblocked(lambda: self._end(records, ACCEPT))

    def release(self, records: Given = None) -> None:
        """Gives records back, so that any worker may take them again.

        A record that was delivered `max_deliveries` times is ended instead.

        Args:
            records: A record, several, or None for everything that this object has taken and not ended.

        Raises:
            KafkalogError: Any error of `ack`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         queue.release(queue.take())
            ...         print([record.delivery_count for record in queue.take()])
            [2]
        """
        self._end(records, RELEASE)

    def reject(self, records: Given = None) -> None:
        """Ends records that nobody shall try again; with `dead_letters` they are copied to that topic.

        Args:
            records: A record, several, or None for everything that this object has taken and not ended.

        Raises:
            KafkalogError: Any error of `ack`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"], dead_letters="mail-dead") as queue:
            ...         queue.reject(queue.take())
            ...     letter = next(iter(store.topic("mail-dead")))
            ...     print(letter.value, dict(letter.headers)["__dlq.errors.message"])
            b'one' b'Offset rejected by client.'
        """
        self._end(records, REJECT)

    def renew(self, records: Given = None) -> None:
        """Locks records for another `lock_ms` from now, for work that takes longer.

        Args:
            records: A record, several, or None for everything that this object has taken and not ended.

        Raises:
            KafkalogError: Any error of `ack`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("outbox").append(b"one")
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         record = queue.take_one()
            ...         record.renew()
            ...         record.ack()
        """
        self._end(records, RENEW)

    def _end(self, records: Given, kind: int) -> None:
        self._check()
        if records is None:
            self._end_all(kind)
            return
        given = [records] if isinstance(records, QueueRecord) else _list(records)
        error: KafkalogError | None = None
        by_source: dict[QueueSource, list[int]] = {}
        for each in given:
            if not isinstance(each, QueueRecord) or each._queue is not self:
                raise IllegalArgumentException(
                    f"records: found {values.shown(each)}; expected records that this queue object has returned",
                    hint="a record is ended through the object that took it: record.ack()",
                )
            if each._is_ended:
                error = InvalidRecordStateException(f"{each!r} was acknowledged, released or rejected before")
                continue
            by_source.setdefault(each._source, []).append(each.record.offset)
        for source, offsets in by_source.items():
            try:
                source.end(self._member, sorted(set(offsets)), kind)
            except KafkalogError as failed:
                error = error or failed
                if not isinstance(failed, InvalidRecordStateException):
                    continue
            if kind != RENEW:  # also those that the queue does not have any more: the caller is told once
                with self._counting:
                    self._given -= len(offsets)
        if error is not None:
            raise error
        if kind != RENEW:
            for each in given:
                each._is_ended = True

    def _end_all(self, kind: int) -> None:
        with self._counting:
            given, ended = self._given, 0
            self._given = 0 if kind != RENEW else given

        def end(source: QueueSource) -> None:
            nonlocal ended
            ended += source.end_all(self._member, kind)

        self._over_sources(end, self._sources())
        if ended < given:
            raise InvalidRecordStateException(
                f"this queue does not have {given - ended} of the {given} records any more that it has taken",
                hint="their lock has ended, and another worker may get them; the others are done",
            )

    def _over_sources(self, work: Callable[[QueueSource], None], sources: Iterable[QueueSource]) -> None:
        error: KafkalogError | None = None
        for source in list(sources):
            try:
                work(source)
            except KafkalogError as failed:
                error = error or failed
        if error is not None:
            raise error


def _timeout_s(timeout_ms: int | None) -> float | None:
    if timeout_ms is None:
        return None
    return values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds") / 1000


def _names(topics: Iterable[str]) -> list[str]:
    expected = "the names of topics, such as ['outbox']"
    if isinstance(topics, str | bytes) or not isinstance(topics, Iterable):
        raise IllegalArgumentException(f"topics: found {values.shown(topics)}; expected {expected}")
    names = list(dict.fromkeys(values.text(each, "topics") for each in topics))
    if not names:
        raise IllegalArgumentException(f"topics: found no name; expected {expected}")
    return names


def _check_dead_letters(topic: str | None, topics: Sequence[str]) -> None:
    """Refuses a topic that no letter could be written to, or whose letters the queue would take again."""
    if topic is None:
        return
    try:
        validate_topic_name(topic)
    except InvalidTopicException as error:
        raise IllegalArgumentException(f"dead_letters: {error.message}") from None
    if topic.startswith("__"):
        raise IllegalArgumentException(f"dead_letters: found {topic!r}; expected a name that does not start with '__'")
    if topic in topics:
        raise IllegalArgumentException(
            f"dead_letters: found {topic!r}, a topic of the queue itself; expected another topic"
        )


def _list(records: object) -> list[QueueRecord]:
    if isinstance(records, Iterable):
        return list(records)
    raise IllegalArgumentException(f"records: found {values.shown(records)}; expected records that take() returned")


def queue_options(
    lock_ms: int, max_deliveries: int, dead_letters: str | None, start: str, isolation: str
) -> QueueOptions:
    """Returns the options of `Store.queue`, checked."""
    if start not in (EARLIEST, LATEST):
        raise IllegalArgumentException(f"start: found {values.shown(start)}; expected 'earliest' or 'latest'")
    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise IllegalArgumentException(
            f"isolation: found {values.shown(isolation)}; expected 'read_committed' or 'read_uncommitted'"
        )
    return QueueOptions(
        values.whole(lock_ms, "lock_ms", low=1, high=INT_MAX, expected="milliseconds"),
        values.whole(max_deliveries, "max_deliveries", low=1, high=SHORT_MAX, expected="deliveries at most"),
        None if dead_letters is None else values.text(dead_letters, "dead_letters"),
        start,
        isolation,
    )


def __dir__() -> list[str]:
    return __all__
