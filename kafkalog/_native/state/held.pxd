# An object with an open file that a budget may close, for the ends of a segment's files.
from libc.stdint cimport int64_t


cdef class Held:
    cdef public object channel
    cdef public bint used
    cdef public bint closed
    cdef bint counted  # whether it is in a HeldFiles
    cdef int pins
    cdef object __weakref__

    cdef bint has_none(self) noexcept
    cdef bint is_busy(self) noexcept
    cdef object give_up(self)
    cdef bint is_stale(self)
    cdef bint let_go_if_idle(self, bint spare_used)
    cdef bint is_away(self)
    cdef int pin(self) except -1
    cdef int unpin(self) except -1


cdef class HeldFiles:
    cdef object entries  # weak references, the next to be checked first; each Held is in it once
    cdef int64_t entered  # since all were checked

    cdef bint count(self, Held held, channel) except -1
    cdef int step(self, bint spare_used) except -1
    cdef int sweep(self) except -1
