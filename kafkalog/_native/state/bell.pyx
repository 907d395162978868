"""What wakes a thread that waits for one of many things: each of them rings, and no ring is lost.

A `Bell` stands in the lists of those who will ring it (`Watermarks.waiters`).  It may be rung in the middle of an
append, by any thread, any number of times: nothing of Python runs in that, so no signal handler does, and it cannot
fail.  Who waits for it looks, puts it where it is rung, looks again, and waits: a ring that came first ends the wait at
once.  One thread waits at a time.
"""

from threading import Lock

cimport cython

cdef double LONGEST_S = 1e6  # no system's locks wait longer


@cython.auto_pickle(False)
@cython.final
cdef class Bell:
    """Rung by `release`, as a waiter of the high watermark is."""

    # Held while it is silent: whoever waits takes it once more.
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
        """Waits until it rings, eleven days at most; whether it did.  Silent again afterwards."""
        if not self.inner.acquire(True, min(max(timeout_s, 0.0), LONGEST_S)):
            return False
        with cython.critical_section(self):
            self.is_rung = False
        return True
