"""A producer's work for each record, and the parts of it that no signal may split.

For a signal handler each call is one step; the handler may itself call any of them in the same thread. `Sends.send` and
`Intake.put` store a record and create its future in one step. `Awaited` does what `concurrent.futures` needs of a
threading.Condition, whose methods are Python code and keep the lock if an interrupt comes inside. This module knows the
size of a record; batches, futures, topics and clocks belong to the caller.
"""
from collections import deque
from collections.abc import Sequence
from threading import Lock, RLock
from time import monotonic

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkalog._native.state.blocks cimport Closing
from kafkalog._native.codec.collected cimport Collected
from kafkalog._native.codec.partitioner cimport StickyPartition, counted, of_key

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* (*tp_alloc)(PyTypeObject* kind, Py_ssize_t items) except NULL
    void PyObject_GC_UnTrack(void* thing)
    void PyObject_GC_Track(void* thing)
    int PyObject_GC_IsTracked(object thing)

cdef object LAST = -1  # the last item of a deque; native indexes do not wrap around


@cython.auto_pickle(False)
cdef class Answered:
    """The state that the futures of one batch share: its records until they are sent, and `outcomes` afterwards.

    An outcome is a record's offset, or an error. A future's result is of class `kind`: a class of tuples (topic,
    partition, offset).
    """

    cdef public Collected collected
    cdef public object outcomes
    cdef readonly object topic_partition
    cdef object kind

    def __init__(self, topic_partition, kind):
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise TypeError(f"kind: found {kind!r}, expected a class of tuples")
        if not isinstance(topic_partition, tuple):
            raise TypeError("topic_partition: expected a pair of topic and partition")
        tuple.__new__(kind, (*topic_partition, 0))  # raises TypeError if the class requires more than its items
        self.topic_partition, self.kind = topic_partition, kind
        self.collected = Collected()

    def found(self, Py_ssize_t number):
        """Returns the result for a record; None if it is not known yet, or is an error."""
        return self._found(number)

    @cython.boundscheck(True)
    cdef _found(self, Py_ssize_t number):
        cdef PyTypeObject* kind = <PyTypeObject*>self.kind
        outcomes = self.outcomes
        offset = None if outcomes is None else outcomes[number]
        if not isinstance(offset, int):
            return None
        if self.kind is None:
            raise TypeError("the batch was not initialized completely")
        # Same as tuple.__new__(kind, (*topic_partition, offset)), at a quarter of the cost.
        topic, partition = <tuple>self.topic_partition
        made = <object>kind.tp_alloc(kind, 3)
        Py_DECREF(made)  # the cast has added a reference
        set_item(made, 0, topic)
        set_item(made, 1, partition)
        set_item(made, 2, offset)
        return made


cdef inline void set_item(made, Py_ssize_t place, item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, place, item)


@cython.auto_pickle(False)
cdef class Numbered:
    """The base of a record's future: its batch, and the record's number there.

    A process that sends keeps many futures, and the garbage collector would visit them again and again, which costs
    more than sending. As long as a future refers to its batch alone it can be in no cycle, and is hidden from the
    collector. Code that makes it refer to something else calls `_show` before (RecordFuture does for attributes).
    """

    cdef readonly Answered _batch
    cdef readonly Py_ssize_t _number

    @cython.nonecheck(True)  # a future that no Intake has created
    @cython.embedsignature(False)
    def result(self, timeout=None):
        """Returns the record's position, and waits for it if the record is not written yet.

        Args:
            timeout: The longest time to wait, in seconds; None waits without a limit.

        Returns:
            The record's RecordMetadata: topic, partition and offset.

        Raises:
            TimeoutError: The record was not written within `timeout`.
            KafkalogError: The record was not written; the same errors as of `Topic.append`.
        """
        found = self._batch._found(self._number)
        return self._awaited(timeout) if found is None else found

    def _awaited(self, timeout):
        raise NotImplementedError

    def _show(self):
        """Makes the garbage collector track it."""
        with cython.critical_section(self):
            if not PyObject_GC_IsTracked(self):
                PyObject_GC_Track(<void*>self)


@cython.auto_pickle(False)
@cython.final
cdef class Known:
    """A topic's partitions at one moment (`kafkalog.topic.Present`)."""

    cdef object changes, live, available
    cdef list places
    cdef int32_t count
    cdef StickyPartition sticky

    def __init__(self, present, StickyPartition sticky not None):
        self.changes, self.live, self.available = present.changes, present.live, present.available
        self.places = present.places
        self.count = counted(len(self.places))
        self.sticky = sticky


@cython.auto_pickle(False)
cdef class Intake:
    """Records that wait for the sender, by partition: the state that each `send` reads and changes.

    Its lock is that of the accumulator, which extends this class. It reads from `home` whether its `life` is live, and
    two objects that are replaced whenever partitions change: `changes` of its `catalog`, `live` of its `directories`.
    `topics` has the topics that were looked up already; of a topic it calls `present()` and `sticky`.
    """

    cdef public dict topics
    cdef public bint closing  # no more records are accepted; the sender ends when none is left
    cdef public long long buffered_bytes  # guarded by _lock, as all fields below
    # By partition; none is ever removed, because a finalizer may send at any point. Records are added to each one's
    # last batch.
    cdef public dict _waiting
    cdef public bint _sleeping  # the sender sleeps until it is woken or a batch is old enough
    cdef public bint _is_idle  # no batch is waiting that could become old enough
    cdef readonly object _lock, _wake
    cdef object life, catalog, directories, clock, make_batch, future_kind, acquire, release
    cdef dict known
    cdef long long buffer_bytes, grown_bytes, batch_bytes, record_overhead

    # More than eight parameters: the parts of an accumulator, set once; options by name.
    def set_up(self, home, make_batch, future_kind, wake, *, long long buffer_bytes, long long grown_bytes,
               long long batch_bytes, long long record_overhead):
        """Sets the parts; must be called before anything else.

        `make_batch(place, self, now_s)` returns an Answered, `future_kind` extends Numbered; `wake` is the sender's
        queue."""
        if not (isinstance(future_kind, type) and issubclass(future_kind, Numbered)):
            raise TypeError(f"future_kind: found {future_kind!r}, expected a class that extends Numbered")
        self.life, self.catalog, self.directories = home.life, home.catalog, home.manager.directories
        self.clock, self.make_batch, self.future_kind = home.clock.milliseconds, make_batch, future_kind
        self.buffer_bytes, self.grown_bytes = buffer_bytes, grown_bytes
        self.batch_bytes, self.record_overhead = batch_bytes, record_overhead
        self.topics = {}
        self.known = {}
        self._waiting = {}
        self._lock, self._wake = RLock(), wake
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def put(self, place, tuple row not None, long long size):
        """Adds a record, (value, key, headers, timestamp) of exact types, and returns its future, or None if there is
        no room now."""
        value, key, headers, timestamp = row
        return self.put_alone(place, value, key, headers, timestamp, size)

    cdef put_alone(self, place, value, key, tuple headers, int64_t timestamp, int64_t size):
        self.acquire()
        try:
            return self.put_now(place, value, key, headers, timestamp, size)
        finally:
            self.release()

    @cython.nonecheck(True)  # a batch that `make_batch` did not return
    cdef put_now(self, place, value, key, tuple headers, int64_t timestamp, int64_t size):
        cdef Collected collected
        cdef Answered batch
        cdef Numbered future
        if self.buffered_bytes + size > self.buffer_bytes:
            return None
        if self.closing:
            raise self.refusal()
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting.setdefault(place, deque())
        batch = <Answered?>waiting[LAST] if waiting else None
        if batch is None or batch.collected.bytes + size > self.grown_bytes:
            batch = <Answered?>self.make_batch(place, self, monotonic())
            waiting.append(batch)
        collected = batch.collected
        self.buffered_bytes += size
        # First, because the sender has to wait for the lock: an interrupt may come after any of these lines.
        if self._sleeping and (self._is_idle or collected.bytes + size >= self.batch_bytes):
            self._wake.put(None)
            self._sleeping = False
        future = <Numbered>Numbered.__new__(self.future_kind)
        future._batch = batch
        future._number = collected.add(value, key, headers, timestamp, size)
        PyObject_GC_UnTrack(<void*>future)
        return future

    cdef try_send(self, topic, value, key, headers, timestamp, partition):
        """Returns the future of a record of the usual kind; None for any other record, or if there is no room now."""
        cdef long long size = self.record_overhead
        cdef Py_ssize_t value_bytes = 0
        cdef int32_t number = 0
        cdef Known known
        if timestamp is not None or partition is not None or type(headers) is not tuple or len(<tuple>headers):
            return None
        if value is not None:
            if type(value) is not bytes:
                return None
            value_bytes = PyBytes_GET_SIZE(value)
            size += value_bytes
        if key is not None:
            if type(key) is not bytes:
                return None
            size += PyBytes_GET_SIZE(key)
        if type(topic) is not str or self.closing or not self.life.live:
            return None
        known = self.known_of(topic)
        if known is None:
            return None
        if known.count == 1:
            pass
        elif key is None:
            number = known.sticky.next(value_bytes, known.available)
        else:
            number = of_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), known.count)
        return self.put_alone(known.places[number], value, key, (), self.clock(), size)

    cdef Known known_of(self, topic):
        """Returns a topic's current partitions; None if the topic was not looked up yet."""
        cdef Known known = self.known.get(topic)
        if known is not None and known.changes is self.catalog.changes and known.live is self.directories.live:
            return known
        found = self.topics.get(topic)
        if found is None:
            return None
        known = self.known[topic] = Known(found.present(), found.sticky)
        return known

    def refusal(self):
        """Returns the error why it accepts no records."""
        raise NotImplementedError


@cython.auto_pickle(False)
cdef class Sends(Closing):
    """The base of a producer: its work for each record."""

    cdef public Intake _it

    @cython.nonecheck(True)  # an object whose creation was interrupted
    @cython.annotation_typing(False)
    @cython.embedsignature(False)
    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ):
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
        future = self._it.try_send(topic, value, key, headers, timestamp, partition)
        return self._send(topic, value, key, headers, timestamp, partition) if future is None else future

    def _send(self, topic, value, key, headers, timestamp, partition):
        raise NotImplementedError


@cython.auto_pickle(False)
@cython.final
cdef class Awaited:
    """A threading.Condition over an RLock, with the methods that futures need."""

    cdef object lock
    cdef list waiting

    def __cinit__(self):
        self.lock = RLock()
        self.waiting = []

    def __enter__(self):
        return self.lock.acquire()

    def __exit__(self, *exc):
        self.lock.release()

    def acquire(self, blocking=True, timeout=-1):
        """As threading.RLock.acquire."""
        return self.lock.acquire(blocking, timeout)

    def release(self):
        """As threading.RLock.release."""
        self.lock.release()

    def wait(self, timeout=None):
        """Waits until `notify_all`, and returns whether it came within `timeout` seconds. The caller holds the lock,
        which is released meanwhile."""
        cdef bint told = False
        waiter = Lock()
        waiter.acquire()
        self.waiting.append(waiter)  # the caller holds the lock
        held = self.lock._release_save()
        try:
            told = waiter.acquire(True, -1 if timeout is None else max(timeout, 0))
        finally:
            self.lock._acquire_restore(held)
            if not told and waiter in self.waiting:
                self.waiting.remove(waiter)
        return told

    def notify_all(self):
        """Wakes all waiting threads. The caller holds the lock."""
        cdef list waiting = self.waiting
        self.waiting = []
        for waiter in waiting:
            waiter.release()
