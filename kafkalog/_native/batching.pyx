"""What a producer does for each record, and what of it no signal may split.

Each call is one step for a signal handler, which may come out of any other of the same thread: `Collected.add` gives a
record its number as it takes it, `Intake.put` has it waiting and its future made, and `Awaited` is what
`concurrent.futures` asks of a threading.Condition, whose methods are Python and keep their lock where an interrupt
comes inside.  Of a record it knows its size; batches, futures, topics and clocks are their makers'.
"""
from collections import deque
from threading import Lock, RLock
from time import monotonic

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t

from kafkalog._native.partitioner cimport StickyPartition, counted, of_key

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void* thing)
    void PyObject_GC_Track(void* thing)
    int PyObject_GC_IsTracked(object thing)

cdef object LAST = -1  # of a deque; native indexes are not wrapped around


@cython.auto_pickle(False)
@cython.final
cdef class Collected:
    """Records of one batch and the bytes that they count for.  Added by one thread at a time, by its handlers too."""

    cdef readonly list records
    cdef readonly long long bytes

    def __cinit__(self):
        self.records = []

    def add(self, record, long long size):
        """Takes a record; its number in the batch."""
        with cython.critical_section(self):
            self.records.append(record)
            self.bytes += size
            return len(self.records) - 1


@cython.auto_pickle(False)
cdef class Numbered:
    """The base of a record's future: which batch it is of, and the record's number there.

    Whoever sends keeps many of them, and the garbage collector would go over all again and again, which costs more than
    to send.  As long as a future refers to its batch alone it can be in no cycle, and is out of the collector's sight;
    who has it refer to something else calls `_show` before.
    """

    cdef readonly object _batch
    cdef readonly Py_ssize_t _number

    def __init__(self, batch, Py_ssize_t number):
        self._batch = batch
        self._number = number
        PyObject_GC_UnTrack(<void*>self)

    def _show(self):
        """From now on the garbage collector sees it."""
        with cython.critical_section(self):
            if not PyObject_GC_IsTracked(self):
                PyObject_GC_Track(<void*>self)


@cython.auto_pickle(False)
cdef class Intake:
    """Records that wait for the sender, by partition: what each `send` looks at and changes.

    Its lock is the accumulator's, who extends this.  `topics` has what was looked up already; of a topic it asks
    `present()` (`places`, `available`) and `sticky`, of `life` whether it is live.
    """

    cdef public dict topics
    cdef public bint closing  # no more records are taken; the sender ends when none is left
    cdef public long long buffered_bytes  # guarded by _lock, as all that follows
    # By partition, of which none is forgotten: a finalizer may send at any place.  The last of each takes more.
    cdef public dict _waiting
    cdef public bint _sleeping  # the sender, until somebody wakes it or a batch is old enough
    cdef public bint _is_idle  # there is nothing that could get old
    cdef readonly object _lock, _wake
    cdef object life, clock, make_batch, make_future, acquire, release
    cdef long long buffer_bytes, grown_bytes, batch_bytes, record_overhead

    # More than eight parameters: what an accumulator is made of, once, and all but the parts by name.
    def set_up(self, life, clock, make_batch, make_future, wake, *, long long buffer_bytes, long long grown_bytes,
               long long batch_bytes, long long record_overhead):
        """Before anything else.  `clock()` gives milliseconds, `make_batch(place, self, now_s)` what has `collected`,
        `make_future(batch, number)` what is answered; `wake` is the sender's queue."""
        self.life, self.clock, self.make_batch, self.make_future = life, clock, make_batch, make_future
        self.buffer_bytes, self.grown_bytes = buffer_bytes, grown_bytes
        self.batch_bytes, self.record_overhead = batch_bytes, record_overhead
        self.topics = {}
        self._waiting = {}
        self._lock, self._wake = RLock(), wake
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def put(self, place, tuple row, long long size):
        """Takes a record; its future, or None where there is no room for it now."""
        self.acquire()
        try:
            return self.put_now(place, row, size)
        finally:
            self.release()

    cdef put_now(self, place, tuple row, long long size):
        cdef Collected collected
        if self.buffered_bytes + size > self.buffer_bytes:
            return None
        if self.closing:
            raise self.refusal()
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting.setdefault(place, deque())
        batch = waiting[LAST] if waiting else None
        if batch is None or (<Collected?>batch.collected).bytes + size > self.grown_bytes:
            batch = self.make_batch(place, self, monotonic())
            waiting.append(batch)
        collected = <Collected?>batch.collected
        self.buffered_bytes += size
        # First, as the sender has to wait for the lock: an interrupt may come behind any of these.
        if self._sleeping and (self._is_idle or collected.bytes + size >= self.batch_bytes):
            self._wake.put(None)
            self._sleeping = False
        return self.make_future(batch, collected.add(row, size))

    def try_send(self, topic, value, key, headers, timestamp, partition):
        """The future of a record of the usual kind; None for any other, and where there is no room for it now."""
        cdef long long size = self.record_overhead
        cdef Py_ssize_t value_bytes = 0
        cdef int32_t number = 0
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
        found = self.topics.get(topic) if type(topic) is str else None
        if found is None or self.closing or not self.life.live:
            return None
        present = found.present()
        places = <list?>present.places
        if len(<list>places) == 1:
            pass
        elif key is None:
            number = (<StickyPartition?>found.sticky).next(value_bytes, present.available)
        else:
            number = of_key(
                <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), counted(len(<list>places))
            )
        return self.put((<list>places)[number], (value, key, (), self.clock()), size)

    def refusal(self):
        """Why it takes no records."""
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
