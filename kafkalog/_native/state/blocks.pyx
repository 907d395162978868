"""How a `with` block is left: what ends it is called from here, where no signal comes.

CPython looks for signals at the first bytecode of a function, so an `__exit__` written in Python may be interrupted
before anything in it is guarded.  These see the interrupt of what they call, and still have their own say.  And each
is the only one of what it holds.  `Turn` is a lock that is never waited for, and wakes who came in vain.
"""
from threading import Lock, RLock

cimport cython


@cython.auto_pickle(False)
cdef class Single:
    """Who has it holds what is open; a copy would let go of the same once more.  copy and pickle come by here."""

    def __reduce_ex__(self, protocol):
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: share it, or open the log again where it is needed"
        )


@cython.auto_pickle(False)
cdef class Block(Single):
    """What a block does to its subject is in `_leave`; `_abandon` follows where that raised, an interrupt too.

    `_is_over`: the block was left, however that went; whoever begins another one takes it back.
    """

    cdef public bint _is_over

    def __exit__(self, kind, error, trace):
        try:
            self._leave(kind, error, trace)
        except BaseException:
            self._abandon()
            raise
        finally:
            self._is_over = True

    def _leave(self, kind, error, trace):
        raise NotImplementedError

    def _abandon(self):
        raise NotImplementedError


@cython.auto_pickle(False)
cdef class Closing(Single):
    """Is closed at the block's end; once more where an interrupt came first.  `close` may be called twice."""

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except BaseException:
            try:
                self.close()
            except Exception:
                pass  # the first error is told
            raise

    def close(self):
        raise NotImplementedError


@cython.auto_pickle(False)
@cython.final
cdef class Turn:
    """Whose turn it is to do something for all who wait: `with turn as mine`, which never waits.

    Who finds that it is another's waits for the lock that `joined` gave him before he looked: it is released once that
    turn has ended.
    """

    cdef object inner
    cdef list waiting

    def __cinit__(self):
        self.inner = RLock()
        self.waiting = []

    def joined(self):
        """A lock, held, that is released at the end of the present turn, or of the next."""
        waiter = Lock()
        waiter.acquire()
        with cython.critical_section(self):
            self.waiting.append(waiter)
        return waiter

    def __enter__(self):
        return self.inner.acquire(False)

    def __exit__(self, *exc):
        cdef list waiting, nobody
        if not self.inner._is_owned():
            return
        self.inner.release()
        nobody = []
        with cython.critical_section(self):
            waiting = self.waiting
            self.waiting = nobody
        for waiter in waiting:
            waiter.release()
