"""A filter by key: a set of keys, a prefix, or both.

A `KeyFilter` is created once for each read and never changes. The loops that decode records test it (`is_wanted_key` of
`keys.pxd`) before they copy anything of a record.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from kafkalog._native.codec.murmur2 cimport hash_of


@cython.auto_pickle(False)
@cython.final
cdef class KeyFilter:
    """Accepts records whose key is one of `keys` (None among them: records without a key) and begins with `prefix`.

    `keys` None accepts every key. Thread-safe.
    """

    def __cinit__(self, keys=None, bytes prefix=None):
        cdef int64_t size = 8
        cdef bytes key
        cdef list wanted = []
        self.keys.takes_all = keys is None
        self.keys.takes_none = prefix is None and (keys is None or None in keys)
        if keys is not None:
            wanted = [key for key in dict.fromkeys(keys) if key is not None]
        self.held = (*wanted, prefix)
        if prefix is not None:
            self.keys.prefix = <const uint8_t*>PyBytes_AS_STRING(prefix)
            self.keys.prefix_size = PyBytes_GET_SIZE(prefix)
        while size < 2 * len(wanted):
            size *= 2
        self.keys.table = <Wanted*>calloc(size, sizeof(Wanted))
        if self.keys.table == NULL:
            raise MemoryError
        self.keys.mask = size - 1
        for key in wanted:
            self.put(key)

    cdef int put(self, bytes key) except -1:
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(key)
        cdef int64_t size = PyBytes_GET_SIZE(key)
        cdef int64_t place
        hash = hash_of(at, size)
        place = hash & self.keys.mask
        while self.keys.table[place].at != NULL:
            place = (place + 1) & self.keys.mask
        self.keys.table[place] = Wanted(at, size, hash)
        self.keys.only = NULL if self.keys.sizes else &self.keys.table[place]
        self.keys.sizes |= bit_of_size(size)
        return 0

    def __dealloc__(self):
        free(self.keys.table)

    def __contains__(self, bytes key):
        """Returns whether a record with this key (None: without one) is wanted."""
        if key is None:
            return is_wanted_key(&self.keys, NULL, 0)
        return is_wanted_key(&self.keys, <const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
