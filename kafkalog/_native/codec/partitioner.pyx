"""Chooses the partition of a topic that a record goes to, as Kafka's producer does.

With a key: by its murmur2 hash, so that all records of a key are in one partition, the same one that any Kafka client
chooses; another number of partitions gives other choices. Without a key: the sticky partition, which stays the same for
STICKY_BYTES of records and is then chosen again at random, so that batches are full (there are no queues that
`partitioner.adaptive` could adapt to). Knows partitions by their number alone. Source: BuiltInPartitioner,
Utils.toPositive (kafka-clients 4.4.0).
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from random import choice

from kafkalog._native.codec.octets cimport open_octets

cdef enum:
    STICKY_BYTES_ = 16384  # batch.size
    EMPTY_RECORD_BYTES = 7  # the bytes of an empty record

STICKY_BYTES = STICKY_BYTES_


def partition_for_key(key, partitions):
    """Returns the partition of a record with that key (any C-contiguous buffer) in a topic with `partitions`
    partitions."""
    cdef Py_buffer view
    cdef int32_t count = counted(partitions), found
    if type(key) is bytes:
        return of_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), count)
    open_octets(key, &view)
    found = of_key(<const uint8_t*>view.buf, view.len, count)
    PyBuffer_Release(&view)
    return found


@cython.auto_pickle(False)
@cython.final
cdef class StickyPartition:
    """The sticky partition of one topic, for records without a key; thread-safe. `choose` picks one item of a
    sequence."""

    def __init__(self, choose=choice):
        self.choose = choose
        self.present = -1

    def take(self, int64_t value_bytes, partitions):
        """Returns the partition of a record with a value of `value_bytes`: one of `partitions`, those that are
        available."""
        return self.next(value_bytes, partitions)

    cdef int32_t next(self, int64_t value_bytes, partitions) except -1:
        cdef int32_t found
        with cython.critical_section(self):
            if self.filled >= STICKY_BYTES_ or (
                partitions is not self.partitions and self.present not in partitions
            ):
                found = self.choose(partitions)
                if found not in partitions:
                    raise IndexError(f"`choose` returned {found}, which is not one of the available partitions")
                self.present = found
                self.filled = 0
            self.partitions = partitions
            self.filled += value_bytes + EMPTY_RECORD_BYTES
            return self.present
