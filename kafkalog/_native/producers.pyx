"""What a partition remembers of one producer, and the one change to it that nearly every batch makes.

The fields of ProducerStateEntry (Apache Kafka 4.4.0): epochs, time, transaction, and the last five batches in a ring.
Judges and raises nothing: a batch that is not just the next one is its caller's to look at.
"""

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kafkalog._native.validation cimport ClientBatch
from kafkalog._native.layout cimport TRANSACTIONAL_FLAG

cdef enum:
    REMEMBERED = 5

cdef struct Remembered:
    int64_t last_offset
    int64_t timestamp
    int32_t last_seq
    int32_t offset_delta


@cython.auto_pickle(False)
cdef class ProducerEntry:
    """At most five batches, oldest first.  `current_txn_first_offset` is None outside a transaction."""

    cdef readonly int64_t producer_id
    cdef public int32_t producer_epoch
    cdef public int32_t coordinator_epoch
    cdef public int64_t last_timestamp
    cdef public object current_txn_first_offset
    cdef Remembered ring[REMEMBERED]
    cdef int oldest, count

    def __init__(
        self, int64_t producer_id, int32_t producer_epoch, int32_t coordinator_epoch, int64_t last_timestamp,
        current_txn_first_offset,
    ):
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset

    @property
    def is_empty(self):
        """Whether no batch is remembered."""
        return self.count == 0

    def batches(self):
        """(last sequence, last offset, offset delta, max timestamp) of each remembered batch."""
        return [as_tuple(&self.ring[(self.oldest + i) % REMEMBERED]) for i in range(self.count)]

    def last_batch(self):
        """The youngest of `batches`, or None."""
        return None if self.count == 0 else as_tuple(self.newest())

    def remember(self, int32_t last_seq, int64_t last_offset, int32_t offset_delta, int64_t timestamp):
        """Adds a batch; the sixth drops the oldest."""
        self.add(Remembered(last_offset, timestamp, last_seq, offset_delta))

    def forget(self):
        """Drops all batches."""
        self.oldest = self.count = 0  # so that those remembered are the ring's first `count`

    cdef inline Remembered* newest(self) noexcept:
        return &self.ring[(self.oldest + self.count - 1) % REMEMBERED]

    cdef const Remembered* known(self, int32_t first_seq, int32_t last_seq) noexcept:
        cdef int i
        for i in range(self.count):
            if self.ring[i].last_seq == last_seq and first_seq_of(&self.ring[i]) == first_seq:
                return &self.ring[i]
        return NULL

    def find(self, int32_t first_seq, int32_t last_seq):
        """The remembered batch of these sequences, as in `batches`, or None."""
        cdef const Remembered* found = self.known(first_seq, last_seq)
        return None if found == NULL else as_tuple(found)

    cdef inline void add(self, Remembered batch) noexcept:
        if self.count == REMEMBERED:
            self.oldest = (self.oldest + 1) % REMEMBERED
        else:
            self.count += 1
        self.newest()[0] = batch

    def is_continued_by(self, ClientBatch batch not None):
        """Whether a client's batch just goes on: next sequence, same epoch, in the transaction that is open or in
        none where none is, and not remembered.  ProducerAppendInfo would take such a batch."""
        return (
            self.count > 0
            and <int64_t>self.newest().last_seq + 1 == batch.row.base_sequence
            and self.producer_epoch == batch.row.producer_epoch
            and (self.current_txn_first_offset is not None) == (batch.row.attributes & TRANSACTIONAL_FLAG != 0)
            # What a leader took has growing sequences; a follower takes any, and the next may have been here before.
            and self.known(batch.row.base_sequence, batch.row.last_sequence) == NULL
        )

    def continue_with(self, ClientBatch batch not None, int64_t last_offset):
        """What such a batch, now in the log, leaves here."""
        self.last_timestamp = batch.row.max_timestamp
        self.add(
            Remembered(last_offset, batch.row.max_timestamp, batch.row.last_sequence, batch.row.record_count - 1)
        )


cdef inline int64_t first_seq_of(const Remembered* batch) noexcept:
    """Sequences count modulo 2^31 (DefaultRecordBatch.decrementSequence)."""
    cdef int64_t first = <int64_t>batch.last_seq - batch.offset_delta
    return first if first >= 0 else first + INT32_MAX + 1


cdef inline tuple as_tuple(const Remembered* batch):
    return batch.last_seq, batch.last_offset, batch.offset_delta, batch.timestamp
