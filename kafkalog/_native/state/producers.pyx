"""The producer state of a partition, and every change that an append makes to it.

The fields of ProducerStateEntry (Apache Kafka 4.4.0): epochs, time, transaction, and the last five batches in a ring;
the table of these entries; and the transactions that are open, or ended and not yet replicated. It validates and raises
nothing: the caller checks every batch that is not simply the next one. Compiled, so that what an append changes here
changes together with the end of the log, and no signal handler sees half of it.

Changed under the partition's lock. Entries and the maps of transactions may be read without it: all their methods hold
their critical section, which has an effect on free-threaded Python only.
"""

from bisect import bisect_left, insort

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kafkalog._native.codec.batches cimport Row
from kafkalog._native.codec.layout cimport TRANSACTIONAL_FLAG
from kafkalog._native.codec.validation cimport OrdinaryBatch

NUM_BATCHES_TO_RETAIN = REMEMBERED  # ProducerStateEntry.NUM_BATCHES_TO_RETAIN


@cython.auto_pickle(False)
cdef class ProducerEntry:
    """At most five batches, oldest first. `current_txn_first_offset` is None outside a transaction."""

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
        with cython.critical_section(self):
            return self.count == 0

    def batches(self):
        """Returns (last sequence, last offset, offset delta, max timestamp) of each remembered batch."""
        cdef int i
        cdef list found = []
        with cython.critical_section(self):
            for i in range(self.count):
                found.append(as_tuple(&self.ring[(self.oldest + i) % REMEMBERED]))
        return found

    def last_batch(self):
        """Returns the newest of `batches`, or None."""
        with cython.critical_section(self):
            return None if self.count == 0 else as_tuple(self.newest())

    @cython.critical_section
    def remember(self, int32_t last_seq, int64_t last_offset, int32_t offset_delta, int64_t timestamp):
        """Adds a batch; the sixth removes the oldest."""
        self.add(Remembered(last_offset, timestamp, last_seq, offset_delta))

    @cython.critical_section
    def forget(self):
        """Removes all batches."""
        self.oldest = self.count = 0

    cdef Remembered* newest(self) noexcept:
        return &self.ring[(self.oldest + self.count - 1) % REMEMBERED]

    cdef const Remembered* known(self, int32_t first_seq, int32_t last_seq) noexcept:
        cdef int i
        for i in range(self.count):
            if self.ring[i].last_seq == last_seq and first_seq_of(&self.ring[i]) == first_seq:
                return &self.ring[i]
        return NULL

    @cython.critical_section
    def find(self, int32_t first_seq, int32_t last_seq):
        """Returns the remembered batch with these sequences, as in `batches`, or None."""
        cdef const Remembered* found = self.known(first_seq, last_seq)
        return None if found == NULL else as_tuple(found)

    cdef void add(self, Remembered batch) noexcept:
        if self.count == REMEMBERED:
            self.oldest = (self.oldest + 1) % REMEMBERED
        else:
            self.count += 1
        self.newest()[0] = batch

    cdef void enter_epoch(self, int32_t producer_epoch) noexcept:
        """Sets the epoch; a new one removes the batches of the old one."""
        if self.producer_epoch != producer_epoch:
            self.oldest = self.count = 0  # so the next ones are the first items of the ring
            self.producer_epoch = producer_epoch

    @cython.critical_section
    def add_batch(
        self, int32_t producer_epoch, int32_t last_seq, int64_t last_offset, int32_t offset_delta, int64_t timestamp
    ):
        self.enter_epoch(producer_epoch)
        self.add(Remembered(last_offset, timestamp, last_seq, offset_delta))
        self.last_timestamp = timestamp

    def update(self, ProducerEntry next_entry not None):
        """Applies what an append left in `next_entry`, whose batches move here."""
        cdef int i
        with cython.critical_section(self, next_entry):
            self.enter_epoch(next_entry.producer_epoch)
            for i in range(next_entry.count):
                self.add(next_entry.ring[(next_entry.oldest + i) % REMEMBERED])
            next_entry.oldest = next_entry.count = 0
            self.coordinator_epoch = next_entry.coordinator_epoch
            self.current_txn_first_offset = next_entry.current_txn_first_offset
            self.last_timestamp = next_entry.last_timestamp

    @cython.critical_section
    def end_transaction(self, int32_t producer_epoch, int32_t coordinator_epoch, int64_t last_timestamp):
        """Applies a marker: ends the transaction; a changed epoch removes the batches."""
        self.enter_epoch(producer_epoch)
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_first_offset = None
        self.last_timestamp = last_timestamp

    def is_continued_by(self, OrdinaryBatch batch not None):
        """Returns whether a client's batch simply continues this producer: next sequence, same epoch, in the open
        transaction or in none if none is open, and not remembered. ProducerAppendInfo would accept such a batch."""
        return self.goes_on(&batch.row)

    @cython.critical_section
    cdef bint goes_on(self, const Row* row) noexcept:
        return (
            self.count > 0
            and <int64_t>self.newest().last_seq + 1 == row.base_sequence
            and self.producer_epoch == row.producer_epoch
            and (self.current_txn_first_offset is not None) == (row.attributes & TRANSACTIONAL_FLAG != 0)
            # A leader accepts increasing sequences only; a follower accepts any, and the next batch may be a repeated
            # one.
            and self.known(row.base_sequence, row.last_sequence) == NULL
        )

    @cython.critical_section
    cdef void go_on(self, const Row* row) noexcept:
        """Applies such a batch, which is in the log now."""
        self.last_timestamp = row.max_timestamp
        self.add(Remembered(row.last_offset, row.max_timestamp, row.last_sequence, row.record_count - 1))

    def continue_with(self, OrdinaryBatch batch not None):
        """Does `go_on` with a batch that has its offsets."""
        self.go_on(&batch.row)


@cython.auto_pickle(False)
@cython.final
cdef class OffsetMap:
    """A dictionary by offset, in order: Java's TreeMap as far as it is needed here.

    `first` is the value at the lowest offset, or None; it is read with every batch.
    """

    def __cinit__(self):
        self.offsets = []
        self.by_offset = {}

    @cython.critical_section
    def __len__(self):
        return len(self.offsets)

    @cython.critical_section
    def __iter__(self):
        """Iterates over the values by offset, as they were at the start."""
        return iter([self.by_offset[offset] for offset in self.offsets])

    @property
    def last(self):
        with cython.critical_section(self):
            return self.by_offset[self.offsets[len(self.offsets) - 1]] if self.offsets else None

    @cython.critical_section
    cdef object lowest(self):
        return self.first

    @cython.critical_section
    def get(self, offset):
        return self.by_offset.get(offset)

    @cython.critical_section
    cdef int store(self, offset, value) except -1:
        if offset not in self.by_offset:
            insort(self.offsets, offset)
        self.by_offset[offset] = value
        self.first = self.by_offset[self.offsets[0]]
        return 0

    def put(self, offset, value):
        self.store(offset, value)

    @cython.critical_section
    cdef object take(self, offset):
        value = self.by_offset.pop(offset, None)
        if value is not None:
            del self.offsets[bisect_left(self.offsets, offset)]
            self.first = self.by_offset[self.offsets[0]] if self.offsets else None
        return value

    def pop(self, offset):
        """Removes and returns the value at an offset; None if there is none."""
        return self.take(offset)

    @cython.critical_section
    def clear(self):
        self.offsets.clear()
        self.by_offset.clear()
        self.first = None


@cython.auto_pickle(False)
cdef class ProducerTable:
    """The entries by producer id and the transactions by first offset. The base of ProducerStateManager.

    `_producers`, a dict of ProducerEntry, iterates as Kafka's HashMap does; `_verification_states` are the
    verifications in progress; `_oldest_txn_last_timestamp` is -1 without an open transaction; the entries cover the log
    up to `map_end_offset`.
    """

    def __cinit__(self, *args, **kwargs):
        self._ongoing_txns = OffsetMap()
        self._unreplicated_txns = OffsetMap()
        self._oldest_txn_last_timestamp = -1
        self._verification_states = {}

    def continued_entry(self, OrdinaryBatch batch not None):
        """Returns the entry that the batch simply continues, if no verification is in progress; None: `prepare_update`
        decides.

        `prepare_update` and `update` would have the same result.
        """
        return self.continued(batch)

    cdef ProducerEntry continued(self, OrdinaryBatch batch):
        found = (<dict>self._producers).get(batch.row.producer_id)
        if found is None or self._verification_states or not (<ProducerEntry>found).goes_on(&batch.row):
            return None
        return <ProducerEntry>found

    cdef object first_unstable(self):
        """As `first_unstable_offset`; the caller holds the lock."""
        return older(self._unreplicated_txns.first, self._ongoing_txns.first)

    @property
    def first_unstable_offset(self):
        """The first offset of the oldest transaction that is open, or whose marker is not below the high watermark."""
        return older(self._unreplicated_txns.lowest(), self._ongoing_txns.lowest())

    cdef int take_over(self, ProducerEntry entry, started) except -1:
        current = self._producers.get(entry.producer_id)
        if current is not None:
            (<ProducerEntry?>current).update(entry)
        else:
            self._producers[entry.producer_id] = entry
        for txn in started:
            self._ongoing_txns.store(txn.first_offset[0], txn)
        return self.note_oldest()

    cdef int close_txn(self, completed) except -1:
        txn = self._ongoing_txns.take(completed.first_offset)
        if txn is None:
            raise LookupError(completed)
        txn.last_offset = completed.last_offset
        self._unreplicated_txns.store(completed.first_offset, txn)
        return self.note_oldest()

    cdef int drop_replicated(self, int64_t offset) except -1:
        """Removes the ended transactions whose markers are below `offset`."""
        if self._unreplicated_txns.first is not None:
            for txn in self._unreplicated_txns:
                if txn.last_offset is not None and txn.last_offset < offset:
                    self._unreplicated_txns.take(txn.first_offset[0])
        return 0

    cdef int note_oldest(self) except -1:
        cdef int64_t last_timestamp = -1
        oldest = self._ongoing_txns.first
        entry = None if oldest is None else self._producers.get(oldest.producer_id)
        if entry is not None:
            last_timestamp = (<ProducerEntry?>entry).last_timestamp
        with cython.critical_section(self):
            self._oldest_txn_last_timestamp = last_timestamp
        return 0

    def take_entry(self, ProducerEntry entry not None, started):
        """Applies what an append left of one producer, and the transactions (TxnMetadata) that it began."""
        self.take_over(entry, started)

    def end_txn(self, completed):
        """Moves a transaction (CompletedTxn) from the open ones to those that wait for the high watermark.

        Raises LookupError if it is not open.
        """
        self.close_txn(completed)

    def on_high_watermark_updated(self, int64_t high_watermark):
        self.drop_replicated(high_watermark)

    def update_oldest_txn_timestamp(self):
        self.note_oldest()


cdef inline object older(unreplicated, undecided):
    """Returns the first offset of the older of two transactions; None without one."""
    if unreplicated is None:
        return None if undecided is None else undecided.first_offset
    if undecided is not None and undecided.first_offset[0] < unreplicated.first_offset[0]:
        return undecided.first_offset
    return unreplicated.first_offset


cdef inline int64_t first_seq_of(const Remembered* batch) noexcept:
    """Returns a batch's first sequence; sequences count modulo 2^31 (DefaultRecordBatch.decrementSequence)."""
    cdef int64_t first = <int64_t>batch.last_seq - batch.offset_delta
    return first if first >= 0 else first + INT32_MAX + 1


cdef inline tuple as_tuple(const Remembered* batch):
    return batch.last_seq, batch.last_offset, batch.offset_delta, batch.timestamp
