"""The ends of `with` blocks: the code that must run is called from here, where no signal handler can interrupt.

CPython checks for signals at the first bytecode of a function, so an `__exit__` written in Python may be interrupted
before any of its code is protected. These classes catch an interrupt of the code that they call, and still finish. None
of them can be copied. `Turn` is a lock that is never waited for; it wakes those who found it taken.
"""
from threading import Lock, RLock

cimport cython


@cython.auto_pickle(False)
cdef class Single:
    """An object that holds open resources: a copy would release them a second time. copy and pickle call this
    method."""

    def __reduce_ex__(self, protocol):
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: share it, or open the log again where it is needed"
        )


@cython.auto_pickle(False)
cdef class Block(Single):
    """`_leave` ends the block for its subject; `_abandon` is called if that raises, including for an interrupt.

    `_is_over`: the block has ended, in whatever way; beginning another block resets it.
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
    """Closed at the end of the block, and again if an interrupt came first. `close` may be called twice."""

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except BaseException:
            try:
                self.close()
            except Exception:
                pass  # the first error is raised
            raise

    def close(self):
        raise NotImplementedError


@cython.auto_pickle(False)
@cython.final
cdef class Held:
    """Holds a lock during a block. `settle` is called behind the lock; what `afterwards` then has is called, by `run`,
    when the lock is released. No interrupt leaves the lock held."""

    cdef object lock, settle, run
    cdef list afterwards

    def __cinit__(self, lock, settle, list afterwards, run):
        self.lock = lock
        self.settle = settle
        self.afterwards = afterwards
        self.run = run

    def __enter__(self):
        self.lock.acquire()
        try:
            self.settle()
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *exc):
        cdef list calls = self.afterwards[:]
        self.afterwards.clear()
        self.lock.release()
        if calls:
            self.run(calls)


@cython.auto_pickle(False)
@cython.final
cdef class Turn:
    """A turn to do something for all who wait: `with turn as mine`, which never waits.

    A thread that finds the turn taken waits for the lock that `joined` returned to it before: it is released when the
    other thread's turn ends.
    """

    cdef object inner
    cdef list waiting

    def __cinit__(self):
        self.inner = RLock()
        self.waiting = []

    def joined(self):
        """Returns a held lock, which is released at the end of the current turn, or of the next one."""
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
