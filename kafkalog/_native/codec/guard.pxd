# One thread at a time: for objects whose memory one caller may move while another reads it.
cdef extern from *:
    """
    #if defined(_MSC_VER) && !defined(__clang__)
      #include <intrin.h>
      static __inline int kl_enter(int *busy) { return _InterlockedExchange((volatile long *)busy, 1) == 0; }
      static __inline void kl_leave(int *busy) { _InterlockedExchange((volatile long *)busy, 0); }
    #else
      static inline int kl_enter(int *busy) { return __atomic_exchange_n(busy, 1, __ATOMIC_ACQUIRE) == 0; }
      static inline void kl_leave(int *busy) { __atomic_store_n(busy, 0, __ATOMIC_RELEASE); }
    #endif
    """
    # Returns whether nobody else has entered; the caller that entered must leave.
    bint kl_enter(int* busy) noexcept nogil
    void kl_leave(int* busy) noexcept nogil


cdef inline int claim(int* busy, str what) except -1:
    """Raises RuntimeError if another thread is active; to be followed by `try: ... finally: kl_leave(busy)`."""
    if not kl_enter(busy):
        raise RuntimeError(f"another thread is using this {what}")
    return 0
