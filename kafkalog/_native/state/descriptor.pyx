"""Reads, writes and maps a file descriptor, syncs, and reads the clock: one C call for one system call.

The base of `kafkalog.engine.files.OsFile`, which all other code uses. Every call transfers all bytes, continues after
signals and short transfers, and releases the GIL while the kernel works. Errors are OSErrors that name the file. A
write runs no signal handler before it is complete: an append must know what is in the file.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrnoWithFilenameObject
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kafkalog._native.codec.guard cimport claim, kl_leave

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    int c_truncate "ftruncate"(int fd, off_t size)
    int c_unmap "munmap"(void* at, size_t size)
    Py_ssize_t c_pread "pread"(int fd, void* data, size_t count, off_t position)
    Py_ssize_t c_pwrite "pwrite"(int fd, const void* data, size_t count, off_t position)

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static void set_errno(int code) { errno = code; }
    /* Only one of many closing threads gets the descriptor; a concurrent reader sees the old one, or -1. */
    static int taken(int *fd) { return __atomic_exchange_n(fd, -1, __ATOMIC_ACQ_REL); }
    static int count_by(int *count, int by) { return __atomic_add_fetch(count, by, __ATOMIC_ACQ_REL); }
    static int loaded(const int *fd) { return __atomic_load_n(fd, __ATOMIC_RELAXED); }
    static Py_ssize_t write_two(int fd, const void *a, size_t a_size, const void *b, size_t b_size, off_t position) {
    #if defined(__linux__)
        struct iovec parts[2] = {{(void *)a, a_size}, {(void *)b, b_size}};
        return pwritev(fd, parts, 2, position);
    #else
        return pwrite(fd, a, a_size, position);  /* the rest follows, as after any short write */
    #endif
    }
    /* An fsync that reaches the medium: that of macOS stops at the drive's cache. */
    static int full_sync(int fd) {
    #if defined(__APPLE__)
        if (fcntl(fd, F_FULLFSYNC) == 0)
            return 0;
        if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY)
            return -1;  /* otherwise the file system does not support it */
    #endif
        return fsync(fd);
    }
    static int data_sync(int fd) {
    #if defined(__linux__)
        return fdatasync(fd);
    #else
        return full_sync(fd);
    #endif
    }
    /* NULL with errno on an error. */
    static void *map_to_read(int fd, size_t size) {
        void *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    """
    void set_errno(int code) noexcept
    int taken(int* fd) noexcept nogil
    int count_by(int* count, int by) noexcept nogil
    int loaded(const int* fd) noexcept nogil
    Py_ssize_t write_two(
        int fd, const void* a, size_t a_size, const void* b, size_t b_size, off_t position
    ) noexcept nogil
    int full_sync(int fd) noexcept nogil
    int data_sync(int fd) noexcept nogil
    void* map_to_read(int fd, size_t size) noexcept nogil


cdef enum:
    KEPT_BYTES = 8 << 20  # the largest idle buffer that is kept

cdef enum:
    SHORT_WRITE = 4096  # a page of the system's cache


def milliseconds():
    """Returns the milliseconds since the epoch, by the machine's clock."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


@cython.auto_pickle(False)
cdef class Descriptor:
    """An open file: `path` for messages, and its descriptor, -1 once closed. Closed when it is garbage-collected.

    `call_bytes`: the most bytes of one system call; some kernels refuse more than 2^31 - 1.
    """

    def __init__(self, str path not None, int fd):
        self.path = path
        self.fd = fd

    def __cinit__(self, *args, **kwargs):
        self.fd = -1
        self.call_bytes = 1 << 30
        self.plain = (
            type(self).pread is Descriptor.pread and type(self).pwrite is Descriptor.pwrite
            and type(self).pwritev is Descriptor.pwritev and type(self).truncate is Descriptor.truncate
        )

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    @property
    def closed(self):
        return loaded(&self.fd) < 0

    def fileno(self):
        return loaded(&self.fd)

    def close(self):
        cdef int fd = taken(&self.fd), code
        if fd >= 0:
            with nogil:
                code = errno if c_close(fd) < 0 else 0
            if code and code != EINTR:  # the descriptor is closed all the same
                self.fail(code)

    cdef int fail(self, int code) except -1:
        with cython.critical_section(self):
            path = self.path
        set_errno(code)
        PyErr_SetFromErrnoWithFilenameObject(OSError, path)
        return -1

    cdef Py_ssize_t read_all(self, void* data, Py_ssize_t count, off_t position) except -1:
        """Returns the bytes read: fewer than `count` only at the file's end."""
        cdef Py_ssize_t done = 0, got
        cdef int code
        while done < count:
            with nogil:
                got = c_pread(
                    loaded(&self.fd), <uint8_t*>data + done, min(count - done, self.call_bytes), position + done
                )
                code = errno
            if got == 0:
                break
            if got > 0:
                done += got
            elif code == EINTR:
                PyErr_CheckSignals()
            else:
                self.fail(code)
        return done

    cdef Py_ssize_t read_quietly(self, void* data, Py_ssize_t count, off_t position) noexcept nogil:
        """`read_all` for a caller without the GIL; -1 for anything that needs it: an error, a signal."""
        cdef Py_ssize_t done = 0, got = 1
        while done < count and got != 0:
            got = c_pread(loaded(&self.fd), <uint8_t*>data + done, min(count - done, self.call_bytes), position + done)
            if got < 0:
                return -1
            done += got
        return done

    cdef int write_all(self, const void* data, Py_ssize_t count, off_t position, bint keeps_gil=False) except -1:
        """Writes all bytes. `keeps_gil`: other threads wait for the write, so none of them gets the GIL during it, if
        it is short."""
        cdef Py_ssize_t done = 0, got
        cdef int code
        keeps_gil = keeps_gil and count <= SHORT_WRITE
        while done < count:
            if keeps_gil:
                got = c_pwrite(loaded(&self.fd), <const uint8_t*>data + done, count - done, position + done)
                code = errno
            else:
                with nogil:
                    got = c_pwrite(
                        loaded(&self.fd), <const uint8_t*>data + done, min(count - done, self.call_bytes),
                        position + done
                    )
                    code = errno
            if got > 0:
                done += got
            elif got == 0:
                self.fail(EIO)
            elif code != EINTR:
                self.fail(code)
        return 0

    def sync(self):
        """fsync: content and length survive a power loss afterwards."""
        cdef int code = EINTR
        while code == EINTR:
            with nogil:
                code = errno if full_sync(loaded(&self.fd)) < 0 else 0
            if code == EINTR:
                PyErr_CheckSignals()
        if code:
            self.fail(code)

    def sync_data(self):
        """fdatasync: content and length survive a power loss afterwards, the file's times may not."""
        cdef int code = EINTR
        while code == EINTR:
            with nogil:
                code = errno if data_sync(loaded(&self.fd)) < 0 else 0
            if code == EINTR:
                PyErr_CheckSignals()
        if code:
            self.fail(code)

    cdef int set_size(self, off_t size) except -1:
        cdef int code = EINTR
        while code == EINTR:
            with nogil:
                code = errno if c_truncate(loaded(&self.fd), size) < 0 else 0
        if code:
            self.fail(code)
        return 0

    def truncate(self, off_t size):
        """Truncates the file to `size` bytes, or extends it with zeros."""
        self.set_size(size)

    def pread(self, Py_ssize_t n, off_t position):
        """Returns at most `n` bytes from `position`, fewer only at the end."""
        return self.read_bytes(n, position)

    cdef bytes read_bytes(self, Py_ssize_t n, off_t position):
        cdef bytes data
        cdef Py_ssize_t got
        if n < 0:
            raise ValueError(f"n: found {n}, expected 0 or more")
        data = PyBytes_FromStringAndSize(NULL, n)
        got = self.read_all(PyBytes_AS_STRING(data), n, position)
        return data if got == n else data[:got]

    def pread_into(self, buffer, off_t position):
        """Fills the buffer from `position` and returns the bytes read, fewer only at the end."""
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            return self.read_all(view.buf, view.len, position)
        finally:
            PyBuffer_Release(&view)

    def pwrite(self, data, off_t position):
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.write_all(view.buf, view.len, position)
        finally:
            PyBuffer_Release(&view)

    def pwritev(self, buffers, off_t position):
        """Writes the buffers one after the other, two of them in one system call; returns the number of bytes."""
        cdef Py_buffer head, body
        cdef Py_ssize_t total = 0
        if len(buffers) != 2:
            for buffer in buffers:
                PyObject_GetBuffer(buffer, &head, PyBUF_SIMPLE)
                try:
                    self.write_all(head.buf, head.len, position + total)
                    total += head.len
                finally:
                    PyBuffer_Release(&head)
            return total
        PyObject_GetBuffer(buffers[0], &head, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(buffers[1], &body, PyBUF_SIMPLE)
            try:
                self.write_pair(&head, &body, position)
                return head.len + body.len
            finally:
                PyBuffer_Release(&body)
        finally:
            PyBuffer_Release(&head)

    cdef int write_pair(self, const Py_buffer* head, const Py_buffer* body, off_t position) except -1:
        cdef Py_ssize_t got = 0
        cdef int code = 0
        if head.len + body.len <= self.call_bytes:
            with nogil:
                got = write_two(loaded(&self.fd), head.buf, head.len, body.buf, body.len, position)
                code = errno
            if got < 0 and code != EINTR:
                self.fail(code)
        if got < head.len:  # a short write, or a signal before anything was written
            got = max(got, 0)
            self.write_all(<const uint8_t*>head.buf + got, head.len - got, position + got)
            got = head.len
        if got < head.len + body.len:
            self.write_all(<const uint8_t*>body.buf + (got - head.len), head.len + body.len - got, position + got)
        return 0


@cython.auto_pickle(False)
@cython.final
cdef class _ReadBuffer:
    """Memory for reads: `filled` bytes, used by `exports` views."""

    cdef uint8_t* at
    cdef Py_ssize_t capacity, filled
    cdef int exports

    def __dealloc__(self):
        free(self.at)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.at, self.filled, 1, flags)
        count_by(&self.exports, 1)

    def __releasebuffer__(self, Py_buffer* buffer):
        count_by(&self.exports, -1)


@cython.auto_pickle(False)
@cython.final
cdef class ReadBuffers:
    """Successive reads into memory that is reused once no view of it is left: new memory costs as much as the read. One
    thread at a time (RuntimeError for a second one); views may be used in any thread."""

    cdef list idle
    cdef int busy

    def __cinit__(self):
        self.idle = []

    def read(self, file, head, Py_ssize_t n, off_t position):
        """Returns a view of the bytes of `head` followed by at most `n` bytes from `position`, fewer only at the
        end."""
        cdef Py_buffer before
        cdef _ReadBuffer buffer
        cdef Py_ssize_t got
        cdef bytes read
        if n < 0:
            raise ValueError(f"n: found {n}, expected 0 or more")
        claim(&self.busy, "reader")
        PyObject_GetBuffer(head, &before, PyBUF_SIMPLE)
        try:
            buffer = self.room_for(before.len + n)
            memcpy(buffer.at, before.buf, before.len)
            if is_plain(file):
                got = (<Descriptor>file).read_all(buffer.at + before.len, n, position)
            else:
                read = file.pread(n, position)
                got = min(PyBytes_GET_SIZE(read), n)
                memcpy(buffer.at + before.len, PyBytes_AS_STRING(read), got)
            buffer.filled = before.len + got
            return PyMemoryView_FromObject(buffer)
        finally:
            PyBuffer_Release(&before)
            kl_leave(&self.busy)

    cdef _ReadBuffer room_for(self, Py_ssize_t size):
        """Returns a buffer of that size that has no views. Buffers that are too small, or have had views for long, are
        not kept."""
        cdef _ReadBuffer buffer
        for buffer in self.idle:
            if count_by(&buffer.exports, 0) == 0 and size <= buffer.capacity:
                return buffer
        buffer = _ReadBuffer.__new__(_ReadBuffer)
        buffer.at = <uint8_t*>malloc(max(size, 1))
        if buffer.at == NULL:
            raise MemoryError
        buffer.capacity = size
        if size <= KEPT_BYTES:
            self.idle = [buffer, *self.idle[:1]]
        return buffer


@cython.auto_pickle(False)
@cython.final
cdef class FileMap:
    """The first `size` bytes of a file, to be read through the buffer protocol; `size` > 0.

    Unlike mmap.mmap it needs no descriptor. Unmapped when it is garbage-collected. It must not be read if the file may
    be truncated meanwhile (SIGBUS).
    """

    cdef void* at
    cdef Py_ssize_t size

    def __cinit__(self, Descriptor file not None, Py_ssize_t size):
        cdef int code = 0
        if size < 1:
            raise ValueError(f"size: found {size}, expected at least 1")
        with nogil:
            self.at = map_to_read(loaded(&file.fd), <size_t>size)
            if self.at == NULL:
                code = errno
        if code:
            file.fail(code)
        self.size = size

    def __dealloc__(self):
        if self.at != NULL:
            c_unmap(self.at, <size_t>self.size)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.at, self.size, 1, flags)
