"""What a producer's batch has that no signal may split: records with their numbers, and who waits for its end.

Knows nothing of records.  Each call is one step for a signal handler, which may come out of any other of the same
thread: `Collected.add` gives a record its number as it takes it, and `Awaited` is what `concurrent.futures` asks of a
threading.Condition, whose methods are Python and keep their lock where an interrupt comes inside.
"""
from threading import Lock, RLock

cimport cython


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
