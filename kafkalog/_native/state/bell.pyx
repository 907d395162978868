"""Wakes a thread that waits for one of many events: each of them rings the bell, and no ring is lost.

A `Bell` is in the lists of the objects that ring it (`Watermarks.waiters`). It may be rung in the middle of an append,
by any thread, any number of times: ringing runs no Python code, so no signal handler, and cannot fail. A waiting thread
checks its condition, adds the bell to the lists, checks again, and waits: a ring before that ends the wait at once. One
thread waits at a time.
"""

from threading import Lock

cimport cython

cdef double LONGEST_S = 1e6  # no system's locks wait longer


@cython.auto_pickle(False)
@cython.final
cdef class Bell:
    """Rung by `release`, as a waiter of the high watermark is."""

    # Held while the bell is silent: the waiting thread acquires it again.
    cdef object inner
    cdef bint is_rung
    cdef object __weakref__

    def __cinit__(self):
        self.inner = Lock()
        self.inner.acquire()

    def release(self):
        with cython.critical_section(self):
            if not self.is_rung:
                self.is_rung = True
                self.inner.release()

    def wait(self, double timeout_s):
        """Waits until it rings, eleven days at most, and returns whether it did. It is silent again afterwards."""
        if not self.inner.acquire(True, min(max(timeout_s, 0.0), LONGEST_S)):
            return False
        with cython.critical_section(self):
            self.is_rung = False
        return True
