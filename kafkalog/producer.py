"""A producer: records from any thread, collected in batches that one thread of its own appends.

    with store.producer(linger_ms=20) as producer:
        future = producer.send("orders", b'{"id": 1}', key=b"customer-7")
        future.result()                                   # RecordMetadata(topic, partition, offset)

`send` puts a record behind those of its partition and returns a future.  The sender takes what is ready: a partition of
which `batch_bytes` have come, or whose oldest record waits for `linger_ms`; all of them where someone waits for a flush
or for room.  While it is at work batches grow, up to GROWN_BYTES: the slower the disk, the larger the batches.  It
encodes and appends them, syncs once for all of a round where the store is durable so, and answers.

Promised.  Order: records of one partition that one thread sends stay in order.  Memory: at most `buffer_bytes` of
records are held, counted as the log has them (each takes some 50 bytes more here); who finds no room waits, as long as
`max_block_ms`.  Errors: each future has its own record's.  Where the log refuses records (too large, without a key on a
compacted topic, ...) their batch is divided until they are alone, and the others are appended.  Interrupts: `send`,
`flush` and `close` may be cut anywhere; every record whose future was returned is answered, one whose `send` was cut is
there once or not at all.

`_lock` guards what is collected and the counts; it is re-entrant, and each step under it leaves things whole, for a
signal's handler may send, too.  No append, no callback and no wait happens with it held.
Source: RecordAccumulator, Sender, KafkaProducer (kafka-clients 4.4.0).
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
GROWN_BYTES = BATCH_BYTES_MAX  # of a batch that waits for the sender: what makes one v2 batch
ROOM_CHECK_S = 0.002  # of a coroutine that waits for room
IDLE_S = 1.0  # a sender without work looks so often whether its store is there
# What a log says of records; whatever else it says is of the whole batch.
REFUSALS = (
    IllegalArgumentException,
    InvalidRecordException,
    InvalidTimestampException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    RecordValidationException,
)


class BatchingSettings(NamedTuple):
    """As `Store.producer` takes them, under Kafka's names."""

    linger_ms: int = LINGER_MS
    batch_bytes: int = BATCH_BYTES
    buffer_bytes: int = BUFFER_BYTES
    max_block_ms: int = MAX_BLOCK_MS
    compression: str | None = None
    name: str | None = None

    def checked(self) -> BatchingSettings:
        """With exact types and in range; IllegalArgumentException, UnsupportedCompressionTypeException."""
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
    """A record on its way in."""

    partition: TopicPartition
    row: Row
    size: int


class RecordAccumulator(Intake):
    """What a producer and its sender share: records that wait, and how they are answered.

    Lives until the sender has ended; a Producer that is dropped has it send what it holds.
    """

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        self.home = home
        self.life = home.life
        self.settings = settings
        self.ended = False
        self.is_hidden = False  # whether users know of the store alone
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
        self._taken: list[ProducerBatch] = []  # by the sender, and not answered yet
        self._without_room: list[threading.Lock] = []  # who waits for some
        self._appenders: dict[TopicPartition, _Appender] = {}  # the sender's
        label = f"kafkalog-producer{'' if settings.name is None else ' ' + settings.name}"
        self.thread = threading.Thread(target=self._run, name=label, daemon=True)

    def start(self) -> None:
        """Begins to send; the store's close waits for it from now on."""
        self.home.producers.add(self)
        try:
            self.thread.start()
        except BaseException:
            if not self.thread.is_alive():
                self.home.producers.discard(self)
            self.closing = True
            raise

    # --- taking records --------------------------------------------------------------------------------

    def refusal(self) -> KafkalogError:
        """Why it takes no records."""
        if self.is_hidden or not self.life.live:
            return self.life.refusal(f"the store of {self.home.place}")
        return IllegalStateException("the producer is closed", hint="store.producer() makes another one")

    def check_may_wait(self, what: str) -> None:
        """IllegalStateException where nobody would ever answer who waits for `what`: in a forked child, in a callback,
        in a signal's handler that came out of a send."""
        if self.life.forked:
            raise self.refusal()
        if threading.current_thread() is self.thread:
            raise IllegalStateException(
                f"a future's callback waits for {what}, and the sender for the callback",
                hint="have the callback tell another thread, which waits",
            )
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise IllegalStateException(
                f"in the middle of a send something waits for {what}, and the sender for the end of that send",
                hint="have a signal's handler set a flag",
            )

    def check_outside(self) -> None:
        """IllegalStateException where a close of the store would wait for what called it; asked before any of it."""
        self.check_may_wait("a close of the store")

    def look(self, topic: str) -> Topic:
        """A topic, with a sticky partition of this producer's own.  UnknownTopicOrPartitionException."""
        topic = values.text(topic, "topic")
        self.home.info(topic)
        found: Topic = self.topics.setdefault(topic, Topic(self.home, topic))
        return found

    def check_size(self, size: int) -> None:
        """RecordTooLargeException for a record for which there is never room."""
        limit = self.settings.buffer_bytes
        if size > limit:
            raise RecordTooLargeException(
                f"The message is {size} bytes when serialized which is larger than the total memory buffer you have "
                "configured with the buffer.memory configuration.",
                hint=f"buffer_bytes={limit}",
            )

    def exhausted(self, offer: _Offer) -> BufferExhaustedException:
        """What who found no room in time is told."""
        limit = self.settings.buffer_bytes
        return BufferExhaustedException(
            f"Failed to allocate {offer.size} bytes within the configured max blocking time "
            f"{self.settings.max_block_ms} ms. Total memory: {limit} bytes. Available memory: "
            f"{max(limit - self.buffered_bytes, 0)} bytes.",
            hint="send less, or give it more of buffer_bytes or max_block_ms",
        )

    def put_waiting(self, partition: TopicPartition, row: Row, size: int) -> RecordFuture:
        """`put` when there was no room: waits for some.  BufferExhaustedException."""
        deadline = time.monotonic() + self.settings.max_block_ms / 1000
        while True:
            room = threading.Lock()
            room.acquire()
            with self._lock:
                self._without_room.append(room)  # before the look: what makes room afterwards wakes us
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
        """Has everything sent now that is there: the batches, of which none may be answered yet."""
        with self._lock:
            found = [*self._taken, *itertools.chain.from_iterable(self._waiting.values())]
        for batch in found:
            batch.is_urgent = True
        self._wake.put(None)
        return found

    def flush_until(self, deadline_s: float) -> bool:
        """Has everything sent that is there, and waits until `time.monotonic()` is `deadline_s`; whether all of it is
        answered, and is in the log or was refused."""
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
        """One round: sends what is ready, or sleeps until something may be.  Whether another one is to follow."""
        with self._lock:
            is_over = self.closing or not self.life.live  # asked once: a close comes at any moment, and takes no lock
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
        """Has the batches that are ready taken; in how many seconds the next one is, by its age, IDLE_S at most."""
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
        # Counted anew, as a send that was cut short may have counted a record that is not there.
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
        """Has what was appended on the disk; why it may not be."""
        last = max((each for listed in outcomes for each in listed if isinstance(each, int)), default=-1)
        try:
            if last >= 0:
                self.home.partition(partition).on_log(lambda log: log.flush_appended(last + 1))
        except Exception as error:
            return error
        return None

    def _answer(self, batch: ProducerBatch, outcomes: Sequence[Outcome]) -> None:
        size = batch.collected.bytes
        batch.collected = Collected()  # futures that are kept keep no records, nor does a callback that takes its time
        with self._lock:
            self.buffered_bytes = max(self.buffered_bytes - size, 0)
            waiting, self._without_room = self._without_room, []
        for room in waiting:
            room.release()
        batch.answer(outcomes)

    def _end(self, error: BaseException | None) -> None:
        """The thread ends: what it leaves is answered."""
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
        """Sends what is there, and ends; called by the sender's own callbacks, it does not wait for that."""
        if self.life.forked:
            return
        is_callback = threading.current_thread() is self.thread
        if not is_callback:
            self.check_may_wait("a close")
        self.closing = True
        self._wake.put(None)
        if is_callback:
            return
        if self.thread.ident is not None:  # else its start was interrupted
            self.thread.join()
        self.home.producers.discard(self)


class _Appender:
    """How one producer appends to one partition."""

    def __init__(self, partition: StorePartition, settings: BatchingSettings) -> None:
        self._partition = partition
        self._theirs = partition.batch_maker  # another one once the topic's settings were changed
        ours = settings.compression is not None
        self._maker = BatchMaker(partition.engine.config, settings.compression) if ours else None
        self._writer = None if settings.name is None else Writer(partition, settings.name)

    def is_of(self, partition: StorePartition) -> bool:
        return self._partition is partition and self._theirs is partition.batch_maker

    def append(self, rows: ColumnEncoder) -> range:
        """Not on the disk yet."""
        if self._writer is None:
            return self._partition.append_as(NO_PRODUCER, rows, sync=False, maker=self._maker)
        return self._writer.append_as(rows, sync=False, maker=self._maker)


def _append_rows(
    append: Callable[[ColumnEncoder], range], collected: Collected, start: int, stop: int, *, syncs: bool
) -> Sequence[Outcome]:
    """Appends rows [start, stop): the offset of each, or why it has none.  Rows that are refused take no others with
    them."""
    if start == stop:
        return []
    try:
        return append(ColumnEncoder.from_collected(collected, start, stop))
    except Exception as error:
        done: list[Outcome] = list(error.appended) if isinstance(error, KafkalogError) else []
        if isinstance(error, KafkaStorageException) and syncs:
            done = []  # there perhaps, but not on the disk
        start += len(done)
        if not isinstance(error, REFUSALS) or stop - start <= 1:
            return done + [error] * (stop - start)
        middle = start + (stop - start) // 2
        for first, last in ((start, middle), (middle, stop)):
            done += _append_rows(append, collected, first, last, syncs=syncs)
        return done


class Producer(Sends, ClosingAsync, Shown):
    """Sends records to a store's topics; made by `Store.producer`.  Thread-safe.

    Is closed at a `with` block's end, or by its store's close; what is in it then is sent first.  One that is dropped
    sends what it holds, too, with a ResourceWarning.  At the end of the process what a store's producers hold is sent,
    if that takes two seconds at most; what is left then is lost, and a ResourceWarning says so.
    """

    _it: RecordAccumulator

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        self._it = RecordAccumulator(home, settings.checked())
        self._it.start()

    def __enter__(self) -> Producer:
        return self

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its store."""
        return self._it.closing or not self._it.life.live

    @property
    def buffered_bytes(self) -> int:
        """Of records that are not answered yet, about."""
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
        ) -> RecordFuture: ...

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
        """As `send`, for a coroutine, which never blocks its loop: waits for room, and until the record is in the log;
        where it is.  `await producer.send(...)` is the same, but for the wait for room.

            async def take(order: bytes) -> None:
                await producer.send_async("orders", order, key=b"customer-7")

        A task that is cancelled while it waits for room has sent nothing; behind that the record goes its way.
        `timestamp` is ms since 1970.  Errors as `send`, and those of its future.
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
            it.rush()  # what is there makes room
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
        """Of a record that is not of the usual kind, or finds no room."""
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
        """The future of a record; what `put_waiting` takes where there is no room for it now."""
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
            present = found.present()  # it may have come meanwhile
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
        """Sends without waiting for more, and waits until everything that was sent before is answered, and callbacks
        have returned; False where `timeout_ms` (by default none) went first.

        IllegalStateException in a callback of a future, where it would wait for itself.
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
        """Sends everything that is there, waits until it is answered, and ends; a second call does nothing.

        Errors are the futures'.  Called by a callback of a future, it does not wait.
        """
        self._it.close()

    def __repr__(self) -> str:
        return self._shown("closed" if self.closed else "open")

    def _shown(self, state: str) -> str:
        name = self._it.settings.name
        waits = "" if self.closed or not self.buffered_bytes else f", {_shown.size(self.buffered_bytes)} on the way"
        return f"<Producer {'' if name is None else name + ' '}of {self._it.home.place}, {state}{waits}>"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        it: RecordAccumulator | None = getattr(self, "_it", None)
        if it is None or it.closing or not it.life.live or is_finalizing():
            return
        # No lock: this may come out of anything that holds one.
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
    """What `Topic.append_async` sends with: its user knows nothing of it, and its store closes it."""

    def __init__(self, home: Home, settings: BatchingSettings) -> None:
        super().__init__(home, settings)
        self._it.is_hidden = True

    def __del__(self) -> None:  # type: ignore[override]
        it: RecordAccumulator | None = getattr(self, "_it", None)
        if it is not None:
            it.closing = True
            it._wake.put(None)


class AsyncAppends:
    """How the topics of one handle append for asyncio: by a sender, which is started when it is first asked for."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.RLock()
        self._sender: AppendingSender | None = None  # guarded by _lock

    def __call__(self) -> AppendingSender:
        """LogReadOnlyException; IllegalStateException where the store is closed."""
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
