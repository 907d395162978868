"""A directory's names, the content of a small file, and the attributes of many files, each in one call that releases
the GIL.

For `kafkalog.engine.files.OsFiles`, which falls back to Python code if None is returned. This happens after every
error, so that it is reported in the usual words, and for everything unusual (a directory or a file that grows
meanwhile, a pipe).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset, strlen

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object text)
    object PyUnicode_DecodeFSDefaultAndSize(const char* text, Py_ssize_t size)

cdef extern from *:
    """
    #include <dirent.h>
    #include <errno.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <unistd.h>
    #if defined(__APPLE__)
    #define KL_MTIM(s) ((s)->st_mtimespec)
    #define KL_CTIM(s) ((s)->st_ctimespec)
    #else
    #define KL_MTIM(s) ((s)->st_mtim)
    #define KL_CTIM(s) ((s)->st_ctim)
    #endif
    typedef struct {
        int64_t size, blocks, mtime_ns, ctime_ns, inode, device, links, mode;
    } kl_found;
    static void kl_take(const struct stat *from, kl_found *into) {
        into->size = from->st_size;
        into->blocks = from->st_blocks;
        into->mtime_ns = (int64_t)KL_MTIM(from).tv_sec * 1000000000 + KL_MTIM(from).tv_nsec;
        into->ctime_ns = (int64_t)KL_CTIM(from).tv_sec * 1000000000 + KL_CTIM(from).tv_nsec;
        into->inode = (int64_t)from->st_ino;
        into->device = (int64_t)from->st_dev;
        into->links = (int64_t)from->st_nlink;
        into->mode = from->st_mode;
    }
    static DIR *kl_open_folder(const char *path, kl_found *found) {
        struct stat seen;
        DIR *folder;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
        if (fd < 0)
            return NULL;
        if (fstat(fd, &seen) < 0 || (folder = fdopendir(fd)) == NULL) {
            close(fd);
            return NULL;
        }
        kl_take(&seen, found);
        return folder;
    }
    /* The next name except "." and "..": NULL at the end or on an error, which errno tells apart. */
    static const char *kl_next_name(DIR *folder) {
        struct dirent *entry;
        for (;;) {
            errno = 0;
            entry = readdir(folder);
            if (entry == NULL)
                return NULL;
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                return entry->d_name;
        }
    }
    static int kl_stat_in(DIR *folder, const char *name, int follow, kl_found *found) {
        struct stat seen;
        if (fstatat(dirfd(folder), name, &seen, follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
            return -1;
        kl_take(&seen, found);
        return 0;
    }
    static int kl_open_place(const char *path) {
        return open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    }
    static int kl_stat_at(int fd, const char *name, kl_found *found) {
        struct stat seen;
        if (fstatat(fd, name, &seen, 0) < 0)
            return -1;
        kl_take(&seen, found);
        return 0;
    }
    static int kl_ends_with(const char *name, size_t size, const char *end, size_t end_size) {
        return size >= end_size && memcmp(name + size - end_size, end, end_size) == 0;
    }
    /* A regular file's descriptor; -1 for anything else. */
    static int kl_open_file(const char *path, int64_t *size) {
        struct stat seen;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            return -1;
        if (fstat(fd, &seen) < 0 || !S_ISREG(seen.st_mode)) {
            close(fd);
            return -1;
        }
        *size = seen.st_size;
        return fd;
    }
    static int64_t kl_pread(int fd, void *data, size_t size, int64_t position) {
        return pread(fd, data, size, position);
    }
    """
    ctypedef struct DIR:
        pass
    ctypedef struct kl_found:
        int64_t size, blocks, mtime_ns, ctime_ns, inode, device, links, mode
    DIR* kl_open_folder(const char* path, kl_found* found) noexcept nogil
    const char* kl_next_name(DIR* folder) noexcept nogil
    int kl_stat_in(DIR* folder, const char* name, int follow, kl_found* found) noexcept nogil
    int kl_open_place(const char* path) noexcept nogil
    int kl_stat_at(int fd, const char* name, kl_found* found) noexcept nogil
    int kl_ends_with(const char* name, size_t size, const char* end, size_t end_size) noexcept nogil
    int kl_open_file(const char* path, int64_t* size) noexcept nogil
    int64_t kl_pread(int fd, void* data, size_t size, int64_t position) noexcept nogil
    int closedir(DIR* folder) noexcept nogil
    int c_close "close"(int fd) noexcept nogil


cdef enum:
    GLANCE = 6  # numbers for each file
    LITTLE = 4096  # bytes read into the stack first: most small files are smaller


# A name's bytes in the heap of names, and its attributes; `known` is 0 if they could not be read.
cdef struct Entry:
    size_t at, size
    int known
    kl_found found


cdef struct Names:
    char* text
    size_t filled, capacity
    Entry* entries
    size_t count, room


cdef bint put(Names* names, const char* name, size_t size) noexcept nogil:
    """Adds a name; returns False if memory runs out."""
    cdef void* more
    if names.filled + size > names.capacity:
        more = realloc(names.text, 2 * (names.filled + size) + 1024)
        if more == NULL:
            return False
        names.text = <char*>more
        names.capacity = 2 * (names.filled + size) + 1024
    if names.count == names.room:
        more = realloc(names.entries, (2 * names.room + 16) * sizeof(Entry))
        if more == NULL:
            return False
        names.entries = <Entry*>more
        names.room = 2 * names.room + 16
    memcpy(names.text + names.filled, name, size)
    names.entries[names.count].at = names.filled
    names.entries[names.count].size = size
    names.entries[names.count].known = 0
    names.filled += size
    names.count += 1
    return True


cdef bint listed(const char* path, kl_found* folder, Names* names, const char* end, size_t end_size, int follow) \
        noexcept nogil:
    """Returns whether all names were found; reads the attributes of those that end with `end`."""
    cdef DIR* directory = kl_open_folder(path, folder)
    cdef const char* name
    cdef size_t size
    cdef bint is_whole = True
    cdef Entry* entry
    if directory == NULL:
        return False
    while True:
        name = kl_next_name(directory)
        if name == NULL:
            is_whole = errno == 0
            break
        size = strlen(name)
        if not put(names, name, size):
            is_whole = False
            break
        if kl_ends_with(name, size, end, end_size):
            entry = &names.entries[names.count - 1]
            entry.known = kl_stat_in(directory, name, follow, &entry.found) == 0
    closedir(directory)
    return is_whole


def listing(str path not None, str end not None, bint follow):
    """Lists the directory at `path` -> (its mtime in ns, its names in the order of the file system, {name:
    attributes}).

    The attributes are those of the names that end with `end`: (size, mtime in ns, mode, inode, blocks of 512 bytes,
    links, device), of a link's target if `follow`. A name whose attributes cannot be read is omitted.
    """
    cdef kl_found folder
    cdef Names names = Names(NULL, 0, 0, NULL, 0, 0)
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path), encoded_end = PyUnicode_EncodeFSDefault(end)
    cdef const char* at = PyBytes_AS_STRING(encoded)
    cdef const char* suffix = PyBytes_AS_STRING(encoded_end)
    cdef size_t suffix_size = <size_t>len(encoded_end), place
    cdef bint is_whole
    cdef Entry* entry
    cdef list found = []
    cdef dict known = {}
    if b"\0" in encoded:
        return None
    try:
        with nogil:
            is_whole = listed(at, &folder, &names, suffix, suffix_size, follow)
        if not is_whole:
            return None
        for place in range(names.count):
            entry = &names.entries[place]
            name = PyUnicode_DecodeFSDefaultAndSize(names.text + entry.at, <Py_ssize_t>entry.size)
            found.append(name)
            if entry.known:
                known[name] = (
                    entry.found.size, entry.found.mtime_ns, entry.found.mode, entry.found.inode, entry.found.blocks,
                    entry.found.links, entry.found.device,
                )
        return folder.mtime_ns, found, known
    finally:
        free(names.text)
        free(names.entries)


def glances(str place not None, bytes names not None):
    """Returns the attributes of many files below `place`. `names` (such as `t-0/leader-epoch-checkpoint`) each end with
    a NUL.

    For each name the result has six native int64 (mtime and ctime in ns, size, inode, device, mode), of a link's
    target; zeros if there is no such file."""
    cdef bytes encoded = PyUnicode_EncodeFSDefault(place)
    cdef const char* path = PyBytes_AS_STRING(encoded)
    cdef const char* at = PyBytes_AS_STRING(names)
    cdef const char* end = at + len(names)
    cdef Py_ssize_t count = names.count(b"\0")
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * GLANCE * <Py_ssize_t>sizeof(int64_t))
    cdef int64_t* into = <int64_t*>PyBytes_AS_STRING(made)
    cdef kl_found found
    cdef int fd
    if b"\0" in encoded or (at < end and (end - 1)[0]):
        return None
    with nogil:
        fd = kl_open_place(path)  # names below a descriptor are found faster than whole paths
        if fd >= 0:
            while at < end:
                memset(into, 0, GLANCE * sizeof(int64_t))
                if kl_stat_at(fd, at, &found) == 0:
                    into[0] = found.mtime_ns
                    into[1] = found.ctime_ns
                    into[2] = found.size
                    into[3] = found.inode
                    into[4] = found.device
                    into[5] = found.mode
                into += GLANCE
                at += strlen(at) + 1
            c_close(fd)
    return made if fd >= 0 else None


def content(str path not None, int64_t most):
    """Returns the content of a regular file of at most `most` bytes."""
    cdef uint8_t little[LITTLE]
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef const char* at = PyBytes_AS_STRING(encoded)
    cdef int64_t size = -1, got = -1
    cdef int fd
    cdef bytes data
    if b"\0" in encoded:
        return None
    with nogil:
        fd = kl_open_file(at, &size)
        if fd >= 0 and size < LITTLE and size <= most:
            got = kl_pread(fd, little, LITTLE, 0)
            c_close(fd)
    if fd < 0:
        return None
    if size < LITTLE and size <= most:
        return PyBytes_FromStringAndSize(<const char*>little, size) if got == size else None
    try:
        if size > most:
            return None
        data = PyBytes_FromStringAndSize(NULL, size + 1)
        at = PyBytes_AS_STRING(data)
        with nogil:
            got = kl_pread(fd, <void*>at, <size_t>(size + 1), 0)
        return data[:size] if got == size else None
    finally:
        with nogil:
            c_close(fd)
