"""How a `with` block is left: what ends it is called from here, where no signal comes.

CPython looks for signals at the first bytecode of a function, so an `__exit__` written in Python may be interrupted
before anything in it is guarded.  These see the interrupt of what they call, and still have their own say.  And each
is the only one of what it holds.
"""
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
