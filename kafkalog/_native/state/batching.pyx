"""What a producer does for each record, and what of it no signal may split.

Each call is one step for a signal handler, which may come out of any other of the same thread: `Sends.send` and
`Intake.put` have a record waiting and its future made, and `Awaited` is what `concurrent.futures` asks of a
threading.Condition, whose methods are Python and keep their lock where an interrupt comes inside.  Of a record it knows
its size; batches, futures, topics and clocks are their makers'.
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

cdef object LAST = -1  # of a deque; native indexes are not wrapped around


@cython.auto_pickle(False)
cdef class Answered:
    """What the futures of one batch look at: its records until they are sent, and `outcomes` from then on.

    An outcome is a record's offset, or an error.  What a future answers is of `kind`: a class of tuples (topic,
    partition, offset).
    """

    cdef public Collected collected
    cdef public object outcomes
    cdef readonly object topic_partition
    cdef object kind

    def __init__(self, topic_partition, kind):
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise TypeError("a class of tuples is wanted")
        if not isinstance(topic_partition, tuple):
            raise TypeError("a pair is wanted, topic and partition")
        tuple.__new__(kind, (*topic_partition, 0))  # TypeError for one that has more than its items
        self.topic_partition, self.kind = topic_partition, kind
        self.collected = Collected()

    def found(self, Py_ssize_t number):
        """What is answered for a record; None where that is not known yet, or is an error."""
        return self._found(number)

    @cython.boundscheck(True)
    cdef _found(self, Py_ssize_t number):
        cdef PyTypeObject* kind = <PyTypeObject*>self.kind
        outcomes = self.outcomes
        offset = None if outcomes is None else outcomes[number]
        if not isinstance(offset, int):
            return None
        if self.kind is None:
            raise TypeError("a batch that was not made whole")
        # As tuple.__new__(kind, (*topic_partition, offset)), at a quarter of the price.
        topic, partition = <tuple>self.topic_partition
        made = <object>kind.tp_alloc(kind, 3)
        Py_DECREF(made)  # the cast has counted it once more
        set_item(made, 0, topic)
        set_item(made, 1, partition)
        set_item(made, 2, offset)
        return made


cdef inline void set_item(made, Py_ssize_t place, item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, place, item)


@cython.auto_pickle(False)
cdef class Numbered:
    """The base of a record's future: which batch it is of, and the record's number there.

    Whoever sends keeps many of them, and the garbage collector would go over all again and again, which costs more than
    to send.  As long as a future refers to its batch alone it can be in no cycle, and is out of the collector's sight;
    who has it refer to something else calls `_show` before (RecordFuture does for attributes).
    """

    cdef readonly Answered _batch
    cdef readonly Py_ssize_t _number

    @cython.nonecheck(True)  # of one that no Intake has made
    @cython.embedsignature(False)
    def result(self, timeout=None):
        """Where the record is; raises why it is nowhere, or TimeoutError where `timeout` (seconds) went first."""
        found = self._batch._found(self._number)
        return self._awaited(timeout) if found is None else found

    def _awaited(self, timeout):
        raise NotImplementedError

    def _show(self):
        """From now on the garbage collector sees it."""
        with cython.critical_section(self):
            if not PyObject_GC_IsTracked(self):
                PyObject_GC_Track(<void*>self)


@cython.auto_pickle(False)
@cython.final
cdef class Known:
    """A topic's partitions as they were at one moment (`kafkalog.topic.Present`)."""

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
    """Records that wait for the sender, by partition: what each `send` looks at and changes.

    Its lock is the accumulator's, who extends this.  Of a `home` it asks whether its `life` is live, and what says that
    partitions are others than they were: `changes` of its `catalog`, `live` of its `directories`.  `topics` has what
    was looked up already; of a topic it asks `present()` and `sticky`.
    """

    cdef public dict topics
    cdef public bint closing  # no more records are taken; the sender ends when none is left
    cdef public long long buffered_bytes  # guarded by _lock, as all that follows
    # By partition, of which none is forgotten: a finalizer may send at any place.  The last of each takes more.
    cdef public dict _waiting
    cdef public bint _sleeping  # the sender, until somebody wakes it or a batch is old enough
    cdef public bint _is_idle  # there is nothing that could get old
    cdef readonly object _lock, _wake
    cdef object life, catalog, directories, clock, make_batch, future_kind, acquire, release
    cdef dict known
    cdef long long buffer_bytes, grown_bytes, batch_bytes, record_overhead

    # More than eight parameters: what an accumulator is made of, once, and all but the parts by name.
    def set_up(self, home, make_batch, future_kind, wake, *, long long buffer_bytes, long long grown_bytes,
               long long batch_bytes, long long record_overhead):
        """Before anything else.  `make_batch(place, self, now_s)` gives an Answered, `future_kind` extends Numbered;
        `wake` is the sender's queue."""
        if not (isinstance(future_kind, type) and issubclass(future_kind, Numbered)):
            raise TypeError("a kind of Numbered is wanted")
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
        """Takes a record, (value, key, headers, timestamp) of exact types; its future, or None where there is no room
        for it now."""
        value, key, headers, timestamp = row
        return self.put_alone(place, value, key, headers, timestamp, size)

    cdef put_alone(self, place, value, key, tuple headers, int64_t timestamp, int64_t size):
        self.acquire()
        try:
            return self.put_now(place, value, key, headers, timestamp, size)
        finally:
            self.release()

    @cython.nonecheck(True)  # of a batch that its maker has not made
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
        # First, as the sender has to wait for the lock: an interrupt may come behind any of these.
        if self._sleeping and (self._is_idle or collected.bytes + size >= self.batch_bytes):
            self._wake.put(None)
            self._sleeping = False
        future = <Numbered>Numbered.__new__(self.future_kind)
        future._batch = batch
        future._number = collected.add(value, key, headers, timestamp, size)
        PyObject_GC_UnTrack(<void*>future)
        return future

    cdef try_send(self, topic, value, key, headers, timestamp, partition):
        """The future of a record of the usual kind; None for any other, and where there is no room for it now."""
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
        """A topic's partitions as they are now; None for one that was not looked up."""
        cdef Known known = self.known.get(topic)
        if known is not None and known.changes is self.catalog.changes and known.live is self.directories.live:
            return known
        found = self.topics.get(topic)
        if found is None:
            return None
        known = self.known[topic] = Known(found.present(), found.sticky)
        return known

    def refusal(self):
        """Why it takes no records."""
        raise NotImplementedError


@cython.auto_pickle(False)
cdef class Sends(Closing):
    """The base of a producer: what it does for each record."""

    cdef public Intake _it

    @cython.nonecheck(True)  # of one whose making was interrupted
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
    """A threading.Condition over an RLock, as far as futures use one."""

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
        """With the lock held, which is given up meanwhile: whether `notify_all` came in time (in seconds)."""
        cdef bint told = False
        waiter = Lock()
        waiter.acquire()
        self.waiting.append(waiter)  # with the lock held
        held = self.lock._release_save()
        try:
            told = waiter.acquire(True, -1 if timeout is None else max(timeout, 0))
        finally:
            self.lock._acquire_restore(held)
            if not told and waiter in self.waiting:
                self.waiting.remove(waiter)
        return told

    def notify_all(self):
        """With the lock held: wakes all who wait."""
        cdef list waiting = self.waiting
        self.waiting = []
        for waiter in waiting:
            waiter.release()
