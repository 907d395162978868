"""Files that are open for a while: who holds one, and which of many is closed when there are too many.

A Held is the end of a file (RecordsEnd, TransactionsEnd, IndexEnd) that can do without its open `channel` between two
uses.  A HeldFiles counts those that have something open, and `trim` takes it from the ones that were not used since it
last came by (the clock's hand: nearly the least recently used one, for a flag set at each use).  What it takes is the
Held's own reference alone: a file lives as long as a reader has it.  Who must find a channel where he left it (the
write that nothing may split) has a Pin meanwhile, or counts in `pins` himself.

Knows no paths and opens nothing: `kafkalog.engine.files.pool` does.  Each method is one step: no Python runs in it but
the closing of a test's own file, so that no signal handler does, and nothing is open that is not counted.
"""
from collections import deque

cimport cython
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport int64_t


@cython.auto_pickle(False)
cdef class Held:
    """`channel`: the open file, or None; `used` since the last look of a budget; `closed`: nothing is opened again."""

    cdef bint has_none(self) noexcept:
        """Whether nothing is open.  Inside the critical section, as the next two."""
        return self.channel is None

    cdef bint is_busy(self) noexcept:
        return self.pins != 0

    cdef object give_up(self):
        """Takes away what is open; whoever gets it forgets it outside of the critical section."""
        channel = self.channel
        self.channel = None
        return channel

    cdef bint is_stale(self):
        """Whether nothing is open, and it counts no longer."""
        with cython.critical_section(self):
            if not self.closed and not self.has_none():
                return False
            self.counted = False
        return True

    cdef bint let_go_if_idle(self, bint spare_used):
        """`is_stale`, after what was open is taken away; not where it is in use, or (`spare_used`) was of late."""
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
        """Lets go for good, in one step; `channel` refuses whatever it is asked for."""
        with cython.critical_section(self):
            self.closed = True
            self.channel = channel


@cython.auto_pickle(False)
@cython.no_gc_clear
@cython.final
cdef class Pin:
    """As long as it lives, `held` keeps what it has open."""

    cdef Held held

    def __cinit__(self, Held held not None):
        held.pin()
        self.held = held

    def __dealloc__(self):
        if self.held is not None:
            self.held.unpin()


@cython.auto_pickle(False)
cdef class HeldFiles:
    """Those that have something open, as many as `len()` says: closed and forgotten ones count until they are met."""

    def __cinit__(self, *args, **kwargs):
        self.entries = deque()

    def __len__(self):
        return len(self.entries)

    def enter(self, Held held not None, channel=None):
        """Counts `held`, which has something open from now on: `channel`, where one is given.

        False, and nothing done, where it has a channel already, or is closed.
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
        """Until at most `limit` have something open, takes it from the least used; how many lost it."""
        cdef int64_t count = len(self.entries), looks = 2 * count, gone = 0
        cdef bint due
        if count <= limit:
            return 0
        with cython.critical_section(self):
            due = self.entered >= limit // 4
            self.entered = 0 if due else self.entered
        if due:
            self.sweep()  # what was closed by others must not push out what is open
        while looks > 0 and len(self.entries) > limit:
            # In the second round what was used is as good as any: nobody uses it faster than we look.
            gone += self.step(looks > count)
            looks -= 1
        return gone

    cdef int step(self, bint spare_used) except -1:
        """Looks at the next; 1 where it is one less."""
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
