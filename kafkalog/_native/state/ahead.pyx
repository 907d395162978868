"""Reads ahead: successive slices of a part of a file, some of which a second thread reads meanwhile.

A long scan waits for the kernel's copy out of the page cache, and two threads copy almost twice as much. The slices are
at fixed positions of the file, in a ring of buffers. A thread with nothing to do (the helper, or the caller waiting for
a slice that the helper is reading) reads the next unclaimed slice; so neither waits for long.

Knows no batches. If a slice cannot be read completely (the file is shorter now, the disk fails, a signal came, the
process is a child), `advance` returns None, and the caller reads there itself.

The helper is a thread of the operating system, not of Python: it never needs the GIL, runs no Python code, gets no
signals, and so delays neither a finalizer nor the interpreter's exit. It writes to the ring only, and has ended when
`close`, or the object's deallocation, returns; the memory is freed when nobody uses it any more. `mutex` guards the
fields that both threads use. One caller at a time.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalog._native.state.descriptor cimport Descriptor, is_plain
from kafkalog._native.codec.guard cimport claim, kl_leave

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    /* The number of reading threads in this process; deallocating a Busy decreases it. */
    static int kl_threads;
    static int threads_add(int n) { return __atomic_add_fetch(&kl_threads, n, __ATOMIC_RELAXED); }
    /* The number differs in a child process, which has none of the threads. */
    static int kl_forks;
    static int forks(void) { return __atomic_load_n(&kl_forks, __ATOMIC_RELAXED); }
    static void in_child(void) { kl_forks++; __atomic_store_n(&kl_threads, 0, __ATOMIC_RELAXED); }
    static int note_forks(void) { return pthread_atfork(NULL, NULL, in_child); }
    /* Signals go to Python's threads. */
    static int start_quietly(pthread_t *thread, void *(*run)(void *), void *with) {
        sigset_t all, before;
        int code;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        code = pthread_create(thread, NULL, run, with);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return code;
    }
    """
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int threads_add(int n) noexcept nogil
    int forks() noexcept nogil
    int note_forks() noexcept nogil
    int start_quietly(pthread_t* thread, void* (*run)(void*) noexcept nogil, void* with_) noexcept nogil
    int pthread_join(pthread_t thread, void** answer) noexcept nogil
    int pthread_mutex_init(pthread_mutex_t* mutex, void* how) noexcept nogil
    int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept nogil
    int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept nogil
    int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept nogil
    int pthread_cond_init(pthread_cond_t* cond, void* how) noexcept nogil
    int pthread_cond_destroy(pthread_cond_t* cond) noexcept nogil
    int pthread_cond_wait(pthread_cond_t* cond, pthread_mutex_t* mutex) noexcept nogil
    int pthread_cond_signal(pthread_cond_t* cond) noexcept nogil

cdef enum:
    SLOTS = 4
    PENDING = -2  # a thread is reading it; -1: it could not be read

if note_forks():
    raise MemoryError


@cython.auto_pickle(False)
@cython.final
cdef class Busy:
    """Counts one thread that reads, while this object exists."""

    cdef int born

    def __cinit__(self):
        self.born = forks()
        threads_add(1)

    def __dealloc__(self):
        if self.born == forks():
            threads_add(-1)


def busy_threads():
    """Returns the number of active scans and helpers in this process."""
    return threads_add(0)


def can_read_ahead(file):
    """Returns whether native code may read the file: no subclass would miss a read."""
    return is_plain(file) and type(file).pread_into is Descriptor.pread_into


@cython.auto_pickle(False)
@cython.final
@cython.no_gc_clear  # the helper reads the file until it has ended
cdef class ReadAhead:
    """The part [position, end) of a file in slices.

    Before each slice there is room for as many bytes of the one before it. If more than `most_threads` are busy, it
    gives up. Raises MemoryError, or OSError if no thread can be started.
    """

    cdef Descriptor file
    cdef int64_t position, end, slice_bytes, count
    cdef uint8_t* ring
    cdef pthread_t thread
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t room_made, slice_read
    cdef int64_t claimed, current  # slices that a thread has claimed; the caller's slice
    cdef int64_t got[SLOTS]  # bytes read, by slot; PENDING
    cdef bint running, stop, waits, sleeps
    cdef int born, most_threads, busy
    cdef object counted

    def __cinit__(self, Descriptor file not None, int64_t position, int64_t end, *, int64_t slice_bytes,
                  int most_threads):
        if not 0 <= position < end or not 0 < slice_bytes <= 1 << 30:
            raise ValueError(f"position, end, slice_bytes: found {position}, {end} and {slice_bytes}")
        self.file = file
        self.position = position
        self.end = end
        self.slice_bytes = slice_bytes
        self.count = (end - position - 1) // slice_bytes + 1
        self.current = -1
        self.born = forks()
        self.most_threads = most_threads
        self.ring = <uint8_t*>malloc(<size_t>(SLOTS * 2 * slice_bytes))
        if self.ring == NULL:
            raise MemoryError
        self.counted = Busy()
        pthread_mutex_init(&self.mutex, NULL)
        pthread_cond_init(&self.room_made, NULL)
        pthread_cond_init(&self.slice_read, NULL)
        if start_quietly(&self.thread, <void* (*)(void*) noexcept nogil>help_along, <void*>self):
            raise OSError("the system cannot start a thread to read ahead")
        self.running = True

    def __dealloc__(self):
        self.end_thread()
        free(self.ring)

    def close(self):
        """Ends the helper; the result of the last `advance` stays readable."""
        claim(&self.busy, "read ahead")
        try:
            self.end_thread()
        finally:
            kl_leave(&self.busy)

    cdef int end_thread(self) except -1:
        if self.running:
            self.running = False
            if self.born == forks():
                with nogil:
                    pthread_mutex_lock(&self.mutex)
                    self.stop = True
                    pthread_cond_signal(&self.room_made)
                    pthread_mutex_unlock(&self.mutex)
                    pthread_join(self.thread, NULL)
                    pthread_cond_destroy(&self.slice_read)
                    pthread_cond_destroy(&self.room_made)
                    pthread_mutex_destroy(&self.mutex)
        self.counted = None
        return 0

    @property
    def memory(self):
        """The memory of the slices; a reference to it keeps it."""
        return PyMemoryView_FromObject(self)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.ring, SLOTS * 2 * self.slice_bytes, 0, flags)

    def advance(self, int64_t kept):
        """Returns the next slice, with the last `kept` bytes of the current one before it -> (begin, end) in the
        memory.

        The next call overwrites them. Returns None, and changes nothing, after the last slice and whenever the caller
        must read itself; also if more than a slice is to be kept.
        """
        cdef int64_t slice, begin, got
        if self.born != forks():
            return None
        claim(&self.busy, "read ahead")
        try:
            slice = self.current + 1
            if (
                not self.running or slice >= self.count or threads_add(0) > self.most_threads
                or not 0 <= kept <= (self.slice_bytes if slice else 0)
            ):
                return None
            with nogil:
                got = self.take(slice, kept)
        finally:
            kl_leave(&self.busy)
        if got < 0:
            return None
        begin = self.place(slice) - self.ring
        return begin - kept, begin + got

    cdef uint8_t* place(self, int64_t slice) noexcept nogil:
        return self.ring + ((slice % SLOTS) * 2 + 1) * self.slice_bytes

    cdef int64_t length(self, int64_t slice) noexcept nogil:
        return min(self.slice_bytes, self.end - self.position - slice * self.slice_bytes)

    cdef int64_t take(self, int64_t slice, int64_t kept) noexcept nogil:
        """The caller's side of `advance`: returns bytes, or -1."""
        cdef int64_t got
        cdef uint8_t* before
        pthread_mutex_lock(&self.mutex)
        while self.claimed <= slice or self.got[slice % SLOTS] == PENDING:
            if not self.read_one():
                self.waits = True
                pthread_cond_wait(&self.slice_read, &self.mutex)
                self.waits = False
        got = self.got[slice % SLOTS]
        pthread_mutex_unlock(&self.mutex)
        if got != self.length(slice):
            return -1
        if kept:
            before = self.place(slice - 1) + self.length(slice - 1)
            memcpy(self.place(slice) - kept, before - kept, <size_t>kept)
        pthread_mutex_lock(&self.mutex)
        self.current = slice
        if self.sleeps:
            pthread_cond_signal(&self.room_made)
        pthread_mutex_unlock(&self.mutex)
        return got

    cdef bint read_one(self) noexcept nogil:
        """Reads the next unclaimed slice; returns False if none is left or no slot is free.

        The caller holds the mutex, which is released during the read.
        """
        cdef int64_t slice = self.claimed, got
        if slice >= self.count or slice >= self.current + SLOTS:
            return False
        self.claimed += 1
        self.got[slice % SLOTS] = PENDING
        pthread_mutex_unlock(&self.mutex)
        got = self.file.read_quietly(self.place(slice), self.length(slice), self.position + slice * self.slice_bytes)
        pthread_mutex_lock(&self.mutex)
        self.got[slice % SLOTS] = got
        return True


cdef void* help_along(ReadAhead self) noexcept nogil:
    """The helper's loop. It borrows the object, which ends the helper before it is deallocated."""
    pthread_mutex_lock(&self.mutex)
    while not self.stop:
        if self.read_one():
            if self.waits:
                pthread_cond_signal(&self.slice_read)
        else:
            self.sleeps = True
            pthread_cond_wait(&self.room_made, &self.mutex)
            self.sleeps = False
    pthread_mutex_unlock(&self.mutex)
    return NULL
