"""Files that stay open for a while: who holds them, and which one is closed when there are too many.

A Held is the end of a file (RecordsEnd, TransactionsEnd, IndexEnd) that does not need its open `channel` between two
uses. A HeldFiles counts those that have something open. Its `trim` closes those that were not used since its last visit
(the clock algorithm: nearly least recently used, for the cost of a flag at each use). It drops the Held's reference
only: a file stays open as long as a reader has it. Code that needs its channel to stay open (the write that nothing may
split) holds a Pin meanwhile, or counts itself in `pins`.

Knows no paths and opens nothing; `kafkalog.engine.files.pool` does. Each method is one step: no Python code runs in it
except the closing of a test's file object, so no signal handler does, and nothing is open that is not counted.
"""
from collections import deque

cimport cython
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport int64_t


@cython.auto_pickle(False)
cdef class Held:
    """`channel`: the open file, or None; `used` since a budget's last check; `closed`: nothing is opened again."""

    cdef bint has_none(self) noexcept:
        """Returns whether nothing is open. Called inside the critical section, as the next two are."""
        return self.channel is None

    cdef bint is_busy(self) noexcept:
        return self.pins != 0

    cdef object give_up(self):
        """Returns what is open and forgets it; the caller drops it outside the critical section."""
        channel = self.channel
        self.channel = None
        return channel

    cdef bint is_stale(self):
        """Returns whether nothing is open, and no longer counts it."""
        with cython.critical_section(self):
            if not self.closed and not self.has_none():
                return False
            self.counted = False
        return True

    cdef bint let_go_if_idle(self, bint spare_used):
        """Closes what is open and returns as `is_stale` does; does nothing if it is in use, or (`spare_used`) was used
        recently."""
        taken = None
        with cython.critical_section(self):
            if not self.closed and not self.has_none():
                if self.is_busy():
                    return False
                if spare_used and self.used:
                    self.used = False
                    return False
                taken = self.give_up()
            self.counted = False
        return True

    cdef bint is_away(self):
        with cython.critical_section(self):
            return self.channel is None

    cdef int pin(self) except -1:
        with cython.critical_section(self):
            self.pins += 1
        return 0

    cdef int unpin(self) except -1:
        with cython.critical_section(self):
            self.pins -= 1
            self.used = True
        return 0

    def shut(self, channel=None):
        """Closes for good, in one step; `channel` is an object that refuses all calls."""
        with cython.critical_section(self):
            self.closed = True
            self.channel = channel


@cython.auto_pickle(False)
@cython.no_gc_clear
@cython.final
cdef class Pin:
    """While a Pin exists, `held` keeps its file open."""

    cdef Held held

    def __cinit__(self, Held held not None):
        held.pin()
        self.held = held

    def __dealloc__(self):
        if self.held is not None:
            self.held.unpin()


@cython.auto_pickle(False)
cdef class HeldFiles:
    """The objects that have something open, with `len()` their number; closed and deleted ones count until they are
    visited."""

    def __cinit__(self, *args, **kwargs):
        self.entries = deque()

    def __len__(self):
        return len(self.entries)

    def enter(self, Held held not None, channel=None):
        """Counts `held`, which has something open from now on: `channel`, if it is given.

        Returns False, and does nothing, if it has a channel already, or is closed.
        """
        return self.count(held, channel)

    cdef bint count(self, Held held, channel) except -1:
        cdef bint fresh
        entry = PyWeakref_NewRef(held, None)
        with cython.critical_section(held):
            if channel is not None:
                if held.closed or held.channel is not None:
                    return False
                held.channel = channel
            held.used = True
            fresh = not held.counted
            held.counted = True
        if fresh:
            with cython.critical_section(self):
                self.entries.append(entry)
                self.entered += 1
        return True

    def trim(self, int64_t limit):
        """Closes the least used files until at most `limit` are open; returns how many were closed."""
        cdef int64_t count = len(self.entries), looks = 2 * count, gone = 0
        cdef bint due
        if count <= limit:
            return 0
        with cython.critical_section(self):
            due = self.entered >= limit // 4
            self.entered = 0 if due else self.entered
        if due:
            self.sweep()  # otherwise closed entries could push out open ones
        while looks > 0 and len(self.entries) > limit:
            # In the second round used ones are closed, too: the loop must end even if they are used again meanwhile.
            gone += self.step(looks > count)
            looks -= 1
        return gone

    cdef int step(self, bint spare_used) except -1:
        """Visits the next one; returns 1 if it was closed."""
        cdef Held held
        try:
            entry = self.entries.popleft()
        except IndexError:
            return 0
        held = entry()
        if held is None or held.let_go_if_idle(spare_used):
            return 1
        self.entries.append(entry)
        return 0

    cdef int sweep(self) except -1:
        cdef int64_t looks = len(self.entries)
        cdef Held held
        while looks > 0:
            looks -= 1
            try:
                entry = self.entries.popleft()
            except IndexError:
                break
            held = entry()
            if held is not None and not held.is_stale():
                self.entries.append(entry)
        return 0
