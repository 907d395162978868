"""A producer: any thread sends records, and the producer's own thread appends them in batches.

    with store.producer(linger_ms=20) as producer:
        future = producer.send("orders", b'{"id": 1}', key=b"customer-7")
        future.result()                                   # RecordMetadata(topic, partition, offset)

`send` adds a record to the batch of its partition and returns a future.  The sender thread takes a partition's batch
once it has `batch_bytes`, or once its first record has waited for `linger_ms`.  It takes all batches if a thread waits
for a flush or for room.  While the sender is busy, batches grow up to GROWN_BYTES, so a slower disk gets larger
batches. The sender encodes and appends the batches, syncs once for a whole round if the store has durability "fsync",
and sets the futures' results.

Guarantees.  Order: records that one thread sends to one partition keep their order.  Memory: at most `buffer_bytes` of
records are held, counted as stored in the log (each needs about 50 bytes more here).  A send that finds no room waits
up to `max_block_ms`.  Errors: each future has the error of its own record.  If the log refuses records (too large,
without a key on a compacted topic), their batch is divided until they are alone, and the other records are appended.
Interrupts: `send`, `flush` and `close` may be interrupted anywhere.  Every record whose future was returned gets a
result, and a record whose `send` was interrupted is stored once or not at all.

`_lock` guards the collected records and the counts.  It is re-entrant, and each step under it leaves a consistent
state, because a signal handler may send too.  No append, no callback and no wait happens while it is held. Source:
RecordAccumulator, Sender, KafkaProducer (kafka-clients 4.4.0).
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog import _shown
from kafkalog._face.batch_maker import (
    BATCH_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    BatchMaker,
    checked_codec,
    size_bound,
)
from kafkalog._face.in_threads import ClosingAsync
from kafkalog._face.record_future import Outcome, ProducerBatch, RecordFuture
from kafkalog._face.rows import Row, as_row
from kafkalog._face.shown import Shown
from kafkalog._face.topic_info import check_appendable
from kafkalog._face.writer import Writer, producer_id_of
from kafkalog._limits import INT_MAX
from kafkalog._native.codec.collected import Collected
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog._native.state.batching import Intake, Sends
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    BufferExhaustedException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordException,
    InvalidTimestampException,
    KafkalogError,
    KafkaStorageException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    RecordValidationException,
)
from kafkalog.topic import RecordMetadata, Topic

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog._face.store_partition import StorePartition
    from kafkalog.records import Header

__all__ = ["Producer", "RecordFuture"]

LINGER_MS = 5  # linger.ms
BATCH_BYTES = 16_384  # batch.size
BUFFER_BYTES = 32 << 20  # buffer.memory
MAX_BLOCK_MS = 60_000  # max.block.ms
GROWN_BYTES = BATCH_BYTES_MAX  # the most that a waiting batch grows to: one v2 batch
ROOM_CHECK_S = 0.002  # how often a coroutine that waits for room checks
IDLE_S = 1.0  # how often an idle sender checks whether its store is still open
# Errors of single records.  Any other error of a log concerns the whole batch.
REFUSALS = (
    IllegalArgumentException,
    InvalidRecordException,
    InvalidTimestampException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    RecordValidationException,
)


class BatchingSettings(NamedTuple):
    """The arguments of `Store.producer`, with Kafka's meaning."""

    linger_ms: int = LINGER_MS
    batch_bytes: int = BATCH_BYTES
    buffer_bytes: int = BUFFER_BYTES
    max_block_ms: int = MAX_BLOCK_MS
    compression: str | None = None
    name: str | None = None

    def checked(self) -> BatchingSettings:
        """Returns the settings with exact types, in range.

        Raises IllegalArgumentException or UnsupportedCompressionTypeException.
        """
        if self.name is not None:
            producer_id_of(self.name)
        if self.compression is not None:
            checked_codec(self.compression)
        return BatchingSettings(
            values.whole(self.linger_ms, "linger_ms", low=0, expected="milliseconds"),
            values.whole(self.batch_bytes, "batch_bytes", low=0, high=INT_MAX, expected="bytes"),
            values.whole(self.buffer_bytes, "buffer_bytes", low=1, expected="bytes"),
            values.whole(self.max_block_ms, "max_block_ms", low=0, expected="milliseconds"),
            self.compression,
            self.name,
        )


class _Offer(NamedTuple):
    """A record that was not yet added to a batch."""

    partition: TopicPartition
    row: Row
    size: int


class RecordAccumulator(Intake):
    """The state that a producer and its sender thread share: waiting records and their results.

    It exists until the sender has ended.  If a Producer is dropped, the accumulator still sends its records.
    """

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        self.home = home
        self.life = home.life
        self.settings = settings
        self.ended = False
        self.is_hidden = False  # True if users see only the store, not this producer
        self.set_up(
            home,
            ProducerBatch,
            RecordFuture,
            queue.SimpleQueue(),
            buffer_bytes=settings.buffer_bytes,
            grown_bytes=max(GROWN_BYTES, settings.batch_bytes),
            batch_bytes=settings.batch_bytes,
            record_overhead=RECORD_OVERHEAD_BYTES,
        )
        self._taken: list[ProducerBatch] = []  # by the sender, still without a result
        self._without_room: list[threading.Lock] = []  # one lock for each thread that waits for room
        self._appenders: dict[TopicPartition, _Appender] = {}  # used by the sender alone
        label = f"kafkalog-producer{'' if settings.name is None else ' ' + settings.name}"
        self.thread = threading.Thread(target=self._run, name=label, daemon=True)

    def start(self) -> None:
        """Starts the sender thread; from then on the store's close waits for it."""
        self.home.producers.add(self)
        try:
            self.thread.start()
        except BaseException:
            if not self.thread.is_alive():
                self.home.producers.discard(self)
            self.closing = True
            raise

    # --- accepting records -----------------------------------------------------------------------------

    def refusal(self) -> KafkalogError:
        """Returns the error that says why no records are accepted."""
        if self.is_hidden or not self.life.live:
            return self.life.refusal(f"the store of {self.home.place}")
        return IllegalStateException("the producer is closed", hint="store.producer() returns a new one")

    def check_may_wait(self, what: str) -> None:
        """Raises IllegalStateException if a wait for `what` would never end.

        This is so in a forked child, in a callback, and in a signal handler that interrupted a send.
        """
        if self.life.forked:
            raise self.refusal()
        if threading.current_thread() is self.thread:
            raise IllegalStateException(
                f"a future's callback waits for {what}, and the sender waits for the callback",
                hint="let another thread wait",
            )
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise IllegalStateException(
                f"a signal handler waits for {what} in the middle of a send, and the sender waits for that send",
                hint="let the signal handler set a flag only",
            )

    def check_outside(self) -> None:
        """Raises IllegalStateException if a close of the store would wait for its own caller."""
        self.check_may_wait("a close of the store")

    def look(self, topic: str) -> Topic:
        """Returns a Topic with a sticky partition of this producer; raises UnknownTopicOrPartitionException."""
        topic = values.text(topic, "topic")
        self.home.info(topic)
        found: Topic = self.topics.setdefault(topic, Topic(self.home, topic))
        return found

    def check_size(self, size: int) -> None:
        """Raises RecordTooLargeException for a record that is larger than the whole buffer."""
        limit = self.settings.buffer_bytes
        if size > limit:
            raise RecordTooLargeException(
                f"The message is {size} bytes when serialized which is larger than the total memory buffer you have "
                "configured with the buffer.memory configuration.",
                hint=f"buffer_bytes={limit}",
            )

    def exhausted(self, offer: _Offer) -> BufferExhaustedException:
        """Returns the error for a send that found no room in time."""
        limit = self.settings.buffer_bytes
        return BufferExhaustedException(
            f"Failed to allocate {offer.size} bytes within the configured max blocking time "
            f"{self.settings.max_block_ms} ms. Total memory: {limit} bytes. Available memory: "
            f"{max(limit - self.buffered_bytes, 0)} bytes.",
            hint="send less, or increase buffer_bytes or max_block_ms",
        )

    def put_waiting(self, partition: TopicPartition, row: Row, size: int) -> RecordFuture:
        """Waits for room, then adds a record as `put` does; raises BufferExhaustedException after `max_block_ms`."""
        deadline = time.monotonic() + self.settings.max_block_ms / 1000
        while True:
            room = threading.Lock()
            room.acquire()
            with self._lock:
                self._without_room.append(room)  # first, so that room made from here on wakes this thread
            future: RecordFuture | None = self.put(partition, row, size)
            if future is not None:
                return future
            if self.closing or not self.life.live:
                raise self.refusal()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self.exhausted(_Offer(partition, row, size))
            self.check_may_wait("room")
            self._wake.put(None)
            room.acquire(timeout=min(left_s, IDLE_S))

    def rush(self) -> list[ProducerBatch]:
        """Makes the sender take all waiting batches now, and returns the batches without a result."""
        with self._lock:
            found = [*self._taken, *itertools.chain.from_iterable(self._waiting.values())]
        for batch in found:
            batch.is_urgent = True
        self._wake.put(None)
        return found

    def flush_until(self, deadline_s: float) -> bool:
        """Sends all waiting records, and waits until `time.monotonic()` reaches `deadline_s`.

        Returns whether every record was appended or refused by then.
        """
        if not self.thread.is_alive():
            return not self.buffered_bytes
        return all(batch.wait(max(deadline_s - time.monotonic(), 0), to_the_end=True) for batch in self.rush())

    # --- the sender ------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._work():
                pass
        except BaseException as raised:
            error = raised
            Lines("kafkalog.topics").exception("%r: its thread has ended", self)
        finally:
            self._end(error)

    def _work(self) -> bool:
        """Sends the batches that are ready, or sleeps until one may be; returns whether to run another round."""
        with self._lock:
            is_over = self.closing or not self.life.live  # read once: a close may come at any moment, and takes no lock
            left_s = self._take(all_of_it=is_over or bool(self._without_room))
            self._sleeping = not self._taken
            self._is_idle = not any(self._waiting.values())
            if is_over:
                self.closing = True
        if self._taken:
            self._send(self._taken)
        elif is_over:
            return not self._is_idle
        else:
            try:
                self._wake.get(timeout=left_s)
                while True:
                    self._wake.get_nowait()
            except queue.Empty:
                pass
        return True

    def _take(self, *, all_of_it: bool) -> float:
        """Takes the batches that are ready, and returns the seconds until the next one is, at most IDLE_S."""
        now_s = time.monotonic()
        linger_s = self.settings.linger_ms / 1000
        next_s = IDLE_S
        taken: list[ProducerBatch] = []
        for waiting in list(self._waiting.values()):
            while waiting:
                batch = waiting[0]
                left_s = batch.created_s + linger_s - now_s
                is_full = len(waiting) > 1 or batch.collected.bytes >= self.settings.batch_bytes
                if not (all_of_it or is_full or batch.is_urgent or left_s <= 0):
                    next_s = min(next_s, left_s)
                    break
                taken.append(waiting.popleft())
        self._taken = taken
        # Counted again, because an interrupted send may have counted a record that was not added.
        self.buffered_bytes = sum(batch.collected.bytes for batch in itertools.chain(taken, *self._waiting.values()))
        return next_s

    def _send(self, batches: Sequence[ProducerBatch]) -> None:
        if not self.home.syncs:
            for batch in batches:
                self._answer(batch, self._append(batch))
            return
        done: dict[TopicPartition, list[tuple[ProducerBatch, Sequence[Outcome]]]] = {}
        for batch in batches:
            done.setdefault(batch.topic_partition, []).append((batch, self._append(batch)))
        for partition, answered in done.items():
            error = self._sync(partition, [outcomes for _, outcomes in answered])
            for batch, outcomes in answered:
                if error is not None:
                    outcomes = [error if isinstance(outcome, int) else outcome for outcome in outcomes]
                self._answer(batch, outcomes)

    def _append(self, batch: ProducerBatch) -> Sequence[Outcome]:
        collected = batch.collected
        try:
            check_appendable(batch.topic_partition.topic)
            partition = self.home.partition(batch.topic_partition)
            appender = self._appenders.get(batch.topic_partition)
            if appender is None or not appender.is_of(partition):
                appender = self._appenders[batch.topic_partition] = _Appender(partition, self.settings)
        except Exception as error:
            return [error] * collected.rows
        return _append_rows(appender.append, collected, 0, collected.rows, syncs=self.home.syncs)

    def _sync(self, partition: TopicPartition, outcomes: Sequence[Sequence[Outcome]]) -> Exception | None:
        """Writes the appended records to the disk; returns the error if this failed."""
        last = max((each for listed in outcomes for each in listed if isinstance(each, int)), default=-1)
        try:
            if last >= 0:
                self.home.partition(partition).on_log(lambda log: log.flush_appended(last + 1))
        except Exception as error:
            return error
        return None

    def _answer(self, batch: ProducerBatch, outcomes: Sequence[Outcome]) -> None:
        size = batch.collected.bytes
        batch.collected = Collected()  # so that futures and slow callbacks keep no records in memory
        with self._lock:
            self.buffered_bytes = max(self.buffered_bytes - size, 0)
            waiting, self._without_room = self._without_room, []
        for room in waiting:
            room.release()
        batch.answer(outcomes)

    def _end(self, error: BaseException | None) -> None:
        """Sets the results of the records that are left when the thread ends."""
        self.closing = True
        with self._lock:
            left = [*self._taken, *itertools.chain(*self._waiting.values())]
            self._waiting.clear()
        why = self.refusal()
        why.__cause__ = error
        for batch in left:
            self._answer(batch, [why] * batch.collected.rows)
        self.ended = True
        self.home.producers.discard(self)

    def close(self) -> None:
        """Sends the waiting records and ends the thread; a call from the sender's callbacks does not wait for this."""
        if self.life.forked:
            return
        is_callback = threading.current_thread() is self.thread
        if not is_callback:
            self.check_may_wait("a close")
        self.closing = True
        self._wake.put(None)
        if is_callback:
            return
        if self.thread.ident is not None:  # None if its start was interrupted
            self.thread.join()
        self.home.producers.discard(self)


class _Appender:
    """Appends the batches of one producer to one partition."""

    def __init__(self, partition: StorePartition, settings: BatchingSettings) -> None:
        self._partition = partition
        self._theirs = partition.batch_maker  # replaced when the topic's settings change
        ours = settings.compression is not None
        self._maker = BatchMaker(partition.engine.config, settings.compression) if ours else None
        self._writer = None if settings.name is None else Writer(partition, settings.name)

    def is_of(self, partition: StorePartition) -> bool:
        return self._partition is partition and self._theirs is partition.batch_maker

    def append(self, rows: ColumnEncoder) -> range:
        """Appends rows without syncing them."""
        if self._writer is None:
            return self._partition.append_as(NO_PRODUCER, rows, sync=False, maker=self._maker)
        return self._writer.append_as(rows, sync=False, maker=self._maker)


def _append_rows(
    append: Callable[[ColumnEncoder], range], collected: Collected, start: int, stop: int, *, syncs: bool
) -> Sequence[Outcome]:
    """Appends rows [start, stop); returns the offset or the error of each.

    A row that is refused does not prevent the other rows from being appended.
    """
    if start == stop:
        return []
    try:
        return append(ColumnEncoder.from_collected(collected, start, stop))
    except Exception as error:
        done: list[Outcome] = list(error.appended) if isinstance(error, KafkalogError) else []
        if isinstance(error, KafkaStorageException) and syncs:
            done = []  # perhaps in the log, but not on the disk
        start += len(done)
        if not isinstance(error, REFUSALS) or stop - start <= 1:
            return done + [error] * (stop - start)
        middle = start + (stop - start) // 2
        for first, last in ((start, middle), (middle, stop)):
            done += _append_rows(append, collected, first, last, syncs=syncs)
        return done


class Producer(Sends, ClosingAsync, Shown):
    """Sends records to a store's topics; returned by `Store.producer`.

    A Producer is a context manager and is thread-safe.  At the end of the block, or when its store is closed, it sends
    the records that it holds.  A producer that is dropped without a close sends them too, with a ResourceWarning.  At
    the end of the process, the producers of a store send their records for at most two seconds.  Records that are left
    then are lost, and a ResourceWarning says so.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders")
        ...     with store.producer(linger_ms=20) as producer:
        ...         future = producer.send("orders", b"value", key=b"customer-7")
        ...         print(future.result().offset, producer.buffered_bytes, producer.closed)
        0 0 False
    """

    _it: RecordAccumulator

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        self._it = RecordAccumulator(home, settings.checked())
        self._it.start()

    def __enter__(self) -> Producer:
        return self

    @property
    def closed(self) -> bool:
        """True if the producer or its store was closed."""
        return self._it.closing or not self._it.life.live

    @property
    def buffered_bytes(self) -> int:
        """The approximate number of bytes of records without a result."""
        return self._it.buffered_bytes

    if TYPE_CHECKING:

        def send(
            self,
            topic: str,
            value: bytes | None,
            *,
            key: bytes | None = None,
            headers: Sequence[Header] = (),
            timestamp: int | None = None,
            partition: int | None = None,
        ) -> RecordFuture:
            """Sends a record and returns a future of its position.

            The record is in the log once the future is done.  A thread waits with `result()`; a coroutine awaits the
            future, or calls `send_async`, which also waits for room without blocking the event loop.  Callbacks of the
            future run in the sender's thread: they may send, but must not flush, wait, or close the store.

            Args:
                topic: The topic's name.
                value: Bytes, or any C-contiguous buffer; None is a tombstone.
                key: Bytes or such a buffer; None for a record without a key.
                headers: Pairs of a str and bytes (or None).
                timestamp: Milliseconds since 1970; by default the current time.
                partition: The number of the partition; by default as for `Topic.append`.

            Returns:
                A future of the record's RecordMetadata.  It raises the errors of `Topic.append`, and
                KafkaStorageException if the disk failed.

            Raises:
                IllegalArgumentException: An argument has a wrong type or value.
                UnknownTopicOrPartitionException: The topic or partition does not exist.
                RecordTooLargeException: The record is larger than the whole buffer.
                BufferExhaustedException: There was no room for `max_block_ms`.
                IllegalStateException: The producer is closed.
            """

    async def send_async(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Sends a record from a coroutine, and waits until it is in the log, without blocking the event loop.

        It also waits for room in the buffer, which `await producer.send(...)` does by blocking.  A task that is
        cancelled while it waits for room has sent nothing; after that its record is still appended.

        Args:
            topic: The topic's name.
            value: Bytes, or any C-contiguous buffer; None is a tombstone.
            key: Bytes or such a buffer; None for a record without a key.
            headers: Pairs of a str and bytes (or None).
            timestamp: Milliseconds since 1970; by default the current time.
            partition: The number of the partition; by default as for `Topic.append`.

        Returns:
            The topic, partition and offset of the record.

        Raises:
            BufferExhaustedException: There was no room for `max_block_ms`.
            RecordTooLargeException: The record is larger than the buffer, or than `max.message.bytes`.
            UnknownTopicOrPartitionException: The topic or partition does not exist.
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The producer is closed.
            KafkaStorageException: The disk failed.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     with kafkalog.open("data") as store:
            ...         orders = store.create_topic("orders")
            ...         with store.producer() as producer:
            ...             print(await producer.send_async("orders", b"value", key=b"customer-7"))
            >>> asyncio.run(main())
            RecordMetadata(topic='orders', partition=0, offset=0)
        """
        it = self._it
        deadline: float | None = None
        while True:
            future = self._offer(topic, value, key, headers, timestamp, partition)
            if isinstance(future, RecordFuture):
                return await future
            now_s = time.monotonic()
            deadline = deadline or now_s + it.settings.max_block_ms / 1000
            if now_s >= deadline:
                raise it.exhausted(future)
            it.rush()  # sending the waiting records makes room
            await asyncio.sleep(ROOM_CHECK_S)

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        timestamp: int | None,
        partition: int | None,
    ) -> RecordFuture:
        """Sends a record that has an unusual type, or that finds no room at once."""
        found = self._offer(topic, value, key, headers, timestamp, partition)
        return found if isinstance(found, RecordFuture) else self._it.put_waiting(*found)

    def _offer(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        timestamp: int | None,
        partition: int | None,
    ) -> RecordFuture | _Offer:
        """Returns the future of a record, or, if there is no room for it now, the arguments of `put_waiting`."""
        it = self._it
        row = as_row((value, key, headers, timestamp))
        if it.closing or not it.life.live:
            raise it.refusal()
        found: Topic = (it.topics.get(topic) if type(topic) is str else None) or it.look(topic)
        value, key, headers, timestamp = row
        if timestamp is None:
            row = (value, key, headers, it.home.clock.milliseconds())
        present = found.present()
        if partition is not None:
            number = found.checked(partition)
            present = found.present()  # the partition may have been added meanwhile
        elif key is None:
            number = found.sticky.take(0 if value is None else len(value), present.available)
        else:
            number = partition_for_key(key, len(present.places))
        place, size = present.places[number], size_bound(row)
        it.check_size(size)
        offer = _Offer(place, row, size)
        future: RecordFuture | None = it.put(*offer)
        return offer if future is None else future

    def flush(self, timeout_ms: int | None = None) -> bool:
        """Sends all records now, and waits until they have results and their callbacks have returned.

        Args:
            timeout_ms: The longest wait in milliseconds; by default there is no limit.

        Returns:
            True if all records sent before have results, False if `timeout_ms` passed first.

        Raises:
            IllegalStateException: The call comes from a callback of a future, so it would wait for itself.
            IllegalArgumentException: `timeout_ms` is not a whole number from 0 on.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.producer(linger_ms=1000) as producer:
            ...         future = producer.send("orders", b"value")
            ...         print(producer.flush(), future.done())
            True True
        """
        it = self._it
        seconds = None
        if timeout_ms is not None:
            seconds = values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds") / 1000
        it.check_may_wait("a flush")
        deadline = None if seconds is None else time.monotonic() + seconds
        return all(
            batch.wait(None if deadline is None else max(deadline - time.monotonic(), 0), to_the_end=True)
            for batch in it.rush()
        )

    def close(self) -> None:
        """Sends all records, waits until they have results, and ends the producer.

        A second call does nothing.  The futures have the errors of their records.  A call from a callback of a future
        does not wait.

        Raises:
            IllegalStateException: A signal handler calls it in the middle of a send, so it would wait for itself.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     producer = store.producer()
            ...     producer.close()
            ...     print(producer.closed)
            True
        """
        self._it.close()

    def __repr__(self) -> str:
        return self._shown("closed" if self.closed else "open")

    def _shown(self, state: str) -> str:
        name = self._it.settings.name
        waits = "" if self.closed or not self.buffered_bytes else f", {_shown.size(self.buffered_bytes)} on the way"
        return f"<Producer {'' if name is None else name + ' '}of {self._it.home.place}, {state}{waits}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _shown.facts(self, self._facts()))

    def _facts(self) -> list[tuple[str, object]]:
        settings = self._it.settings._asdict()
        return [("on the way", _shown.size(self.buffered_bytes)), *((name, settings[name]) for name in settings)]

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be cleared by then
        it: RecordAccumulator | None = getattr(self, "_it", None)
        if it is None or it.closing or not it.life.live or is_finalizing():
            return
        # No lock here: the finalizer may run in code that holds one.
        shown = self._shown("open")
        it.closing = True
        it._wake.put(None)
        warnings.warn(
            f"{shown} was dropped without being closed; use it as `with store.producer() as producer:`, or call its "
            "close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class AppendingSender(Producer):
    """The producer of `Topic.append_async`: users do not see it, and the store closes it."""

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        super().__init__(home, settings)
        self._it.is_hidden = True

    def __del__(self) -> None:  # type: ignore[override]
        it: RecordAccumulator | None = getattr(self, "_it", None)
        if it is not None:
            it.closing = True
            it._wake.put(None)


class AsyncAppends:
    """Sends the asynchronous appends of one handle's topics; its producer starts at the first use."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.RLock()
        self._sender: AppendingSender | None = None  # guarded by _lock

    def __call__(self) -> AppendingSender:
        """Returns the producer; raises LogReadOnlyException, or IllegalStateException if the store is closed."""
        self._home.check_writable()
        found = self._sender
        if found is None or found.closed:
            with self._lock:
                found = self._sender
                if found is None or found.closed:
                    found = self._sender = AppendingSender(self._home, BatchingSettings(linger_ms=0))
        return found


def __dir__() -> list[str]:
    return __all__
