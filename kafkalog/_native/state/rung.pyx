"""Collects which of many logs have changed, for one thread that serves all who wait for them.

A `LogBell` is in the list of waiters of one log (`Watermarks.waiters`). Ringing it adds it to the `RungBells` that it
belongs to, and wakes their thread through a file descriptor (an eventfd, or the writing end of a pipe), which the
thread's selector watches. It may be rung in the middle of an append, by any thread: ringing runs no Python code, so no
signal handler, and cannot fail. A thread that is about to append many batches itself turns the descriptor off
(`hush`): it looks at the rung bells afterwards in any case.

The thread takes the rung bells, and looks at their logs. A ring after that is a new one.
"""

cimport cython

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef _WIN32
    #include <io.h>
    static int kafkalog_wake(int fd) { uint64_t one = 1; return _write(fd, &one, sizeof one); }
    #else
    #include <errno.h>
    #include <unistd.h>
    static int kafkalog_wake(int fd) {
        uint64_t one = 1;
        int kept = errno;
        ssize_t done = write(fd, &one, sizeof one);  /* a full pipe wakes its reader as well */
        errno = kept;
        return done > 0;
    }
    #endif
    """
    int kafkalog_wake(int fd) noexcept nogil


@cython.auto_pickle(False)
@cython.final
cdef class RungBells:
    """The bells that have rung since `take`. `fd` is written to at the first of them; -1 for none."""

    cdef list rung
    cdef readonly int fd
    cdef bint is_hushed, is_awake
    cdef object __weakref__

    def __cinit__(self, int fd=-1):
        self.rung = []
        self.fd = fd

    def bell(self, key):
        """Returns a bell for a log; `take` returns its `key`."""
        cdef LogBell made = LogBell.__new__(LogBell)
        made.shared = self
        made.key = key
        return made

    @property
    def has_rung(self):
        """Whether `take` has something to return."""
        return len(self.rung) > 0

    def hush(self):
        """Rings do not write to the descriptor until the next `take` or `speak`."""
        with cython.critical_section(self):
            self.is_hushed = True

    def silence(self):
        """Nothing is written to the descriptor from now on."""
        with cython.critical_section(self):
            self.fd = -1

    def speak(self):
        """Ends `hush`. If a bell has rung since, it is told now."""
        with cython.critical_section(self):
            self.is_hushed = False
            if self.rung:
                self.tell()

    def take(self):
        """Returns the keys of the bells that have rung, in this order, and forgets them."""
        cdef list found
        with cython.critical_section(self):
            self.is_hushed = False
            self.is_awake = False
            found = self.rung
            self.rung = []
        return found

    cdef int ring(self, LogBell bell) except -1:
        with cython.critical_section(self):
            self.rung.append(bell.key)
            self.tell()
        return 0

    cdef void tell(self) noexcept:
        if self.fd >= 0 and not self.is_hushed and not self.is_awake:
            self.is_awake = True
            kafkalog_wake(self.fd)


@cython.auto_pickle(False)
@cython.final
cdef class LogBell:
    """Rung by `release`, as a waiter of the high watermark is. A log forgets its waiters when it rings them."""

    cdef RungBells shared
    cdef readonly object key
    cdef object __weakref__

    def release(self):
        self.shared.ring(self)
