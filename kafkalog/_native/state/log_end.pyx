"""The end of a log: the offset of the next record, how far readers can read, and the one step that moves both.

`Watermarks.commit` is a whole append, from its first byte in the file to the moved end of the log: files, index
entries, producers, transactions, high watermark. It either happens completely or not at all, whatever the disk does and
whenever Ctrl-C comes. Everything that can fail fails before a number changes, and no Python code runs inside (except
the file objects of tests). It is called under the partition's lock. Readers read single fields without the lock. On
free-threaded Python every write here is inside its object's critical section, as Cython's getters are.

`append_ordinary` is a client's whole append in one call, if every part of it is ordinary; it takes the lock itself.
`append_ordinary_row` does the same for a record that is not in a batch yet.
"""

from threading import RLock

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t

from kafkalog._native.codec.batches cimport BatchHeader
from kafkalog._native.codec.encode cimport EncodedBatch
from kafkalog._native.codec.layout cimport CODEC_MASK
from kafkalog._native.codec.named cimport made, set_item
from kafkalog._native.state.producers cimport ProducerEntry, ProducerTable
from kafkalog._native.state.tail cimport W_WRITTEN, SegmentTail
from kafkalog._native.codec.validation cimport OrdinaryRules, OrdinaryBatch

cdef enum:
    C_OPEN = 0

# The states of a log's lifetime.
OPEN, CLOSING, CLOSED, FORKED = C_OPEN, 1, 2, 3


@cython.auto_pickle(False)
@cython.final
cdef class PartitionLock:
    """A re-entrant lock whose holder can mark that it is in the middle of a change: `busy`.

    A signal handler, and a finalizer run by the garbage collector, run in the thread that they interrupt, so the lock
    lets them in. The last release resets `busy`, so that no interrupt leaves it set.
    """

    cdef object inner
    cdef int holds
    cdef public bint busy

    def __cinit__(self):
        self.inner = RLock()

    cdef int take(self) except -1:
        self.inner.acquire()
        self.holds += 1
        return 0

    cdef int give_back(self) except -1:
        self.holds -= 1
        if self.holds == 0 and self.busy:
            self.set_busy(False)
        self.inner.release()
        return 0

    cdef int set_busy(self, bint busy) except -1:
        with cython.critical_section(self):
            self.busy = busy
        return 0

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, *exc):
        self.give_back()

    def is_mine(self):
        """Returns whether this thread holds the lock."""
        return self.inner._is_owned()


@cython.auto_pickle(False)
cdef class LogEnd:
    """The end of a log. The base of LocalLog.

    `next_offset_metadata`: the offset that the next record gets, its segment's base offset and position.
    `recovery_point`: everything below it is on the disk. `life`: OPEN, CLOSING, CLOSED or FORKED, which only increases.
    `ordinary_rules`: the conditions for appending a batch unchanged, None until the log knows its settings.
    """

    cdef public object next_offset_metadata
    cdef public int64_t recovery_point
    cdef public int life
    cdef public OrdinaryRules ordinary_rules
    cdef public object segments, clock, log_dir_failure_channel


@cython.auto_pickle(False)
@cython.final
cdef class ProducerChange:
    """The changes of an append to the table of producers, except for a batch that just continues its producer
    (`commit`'s `continued`).

    `entries`: (the entry after the append, the transactions that it began); `completed`: CompletedTxn of its markers;
    `aborted`: records for the transaction index, the last of which ends at offset `last_aborted`.
    """

    cdef list entries, completed
    cdef readonly bytes aborted
    cdef object last_aborted

    def __init__(self, entries, completed, bytes aborted=None, last_aborted=None):
        self.entries = list(entries)
        self.completed = list(completed)
        self.aborted = aborted
        self.last_aborted = last_aborted


@cython.auto_pickle(False)
cdef class Watermarks:
    """The offsets that have a meaning beyond the files. The base of PartitionOffsets.

    Metadata are LogOffsetMetadata and are replaced, never modified. `high_watermark_follows`: the log has one replica,
    and its readers see new records at once. `first_unstable_is_rough`: `maybe_increment_first_unstable_offset` is due;
    `finish_is_due`: that, or a flush, is due after an ordinary append. `waiters`: locks that are released when the high
    watermark moves.
    """

    cdef public LogEnd local_log
    cdef public ProducerTable producer_state_manager
    cdef public object high_watermark_metadata
    cdef public object first_unstable_offset_metadata
    cdef readonly bint first_unstable_is_rough
    cdef public int64_t log_start_offset
    cdef public bint high_watermark_follows
    cdef public list waiters
    cdef public PartitionLock lock
    cdef public object unfinished, leader_epoch_cache

    def __cinit__(self, *args, **kwargs):
        self.waiters = []

    def commit(
        self, SegmentTail tail not None, tuple buffers not None, list headers not None, int64_t last_offset,
        ProducerEntry continued, ProducerChange change,
    ):
        """Writes the batches of `headers`, which are in `buffers` one after the other, and moves everything that
        depends on them.

        Returns 0 if it is done, otherwise the segment's reason why nothing was done. After an error of the disk nothing
        was done, either.
        """
        return self.put(tail, buffers, headers, last_offset, continued, change)

    def append_ordinary(self, records, int32_t leader_epoch, kind, record_validation_stats, bint of_client=True):
        """Appends a client's records, if they are one ordinary batch that needs no further steps. `of_client` False: a
        coordinator's records; those of a transaction need further steps.

        Returns an AppendInfo of class `kind`. Otherwise nothing was done, and the result is the OrdinaryBatch that was
        admitted, or None.
        """
        cdef LogEnd local = self.local_log
        cdef OrdinaryBatch batch
        if local.ordinary_rules is None:
            return None
        batch = local.ordinary_rules.admit(records, local.clock.milliseconds(), of_client)
        if batch is None or batch.row.attributes & CODEC_MASK or (not of_client and batch.row.producer_id >= 0):
            return batch
        # Threads wait for each other at a coordinator: it keeps the GIL.
        info = self.locked_ordinary(batch, leader_epoch, kind, record_validation_stats, not of_client)
        return batch if info is None else info

    def commit_ordinary(self, OrdinaryBatch batch not None, int32_t leader_epoch, kind, record_validation_stats):
        """Finishes `append_ordinary`, under the lock, for a batch whose records are known to be good.

        Returns None, and does nothing, if a step needs more work.
        """
        return self.locked_ordinary(batch, leader_epoch, kind, record_validation_stats, False)

    def append_ordinary_row(self, tuple row not None, int64_t batch_bytes):
        """Appends one record of a client, as an uncompressed batch of at most `batch_bytes` with the log's latest
        leader epoch, and returns its offset.

        Returns -1, and does nothing, if the record is not of the usual kind, or a step needs more work.
        """
        cdef LogEnd local = self.local_log
        cdef OrdinaryBatch batch
        cdef EncodedBatch encoded
        cdef tuple epochs = self.leader_epoch_cache.entries
        cdef int64_t now
        if local.ordinary_rules is None or self.unfinished is not None or self.lock.busy or len(epochs) == 0:
            return -1
        now = local.clock.milliseconds()
        encoded = EncodedBatch.of_row(row, now, batch_bytes)
        if encoded is None:
            return -1
        batch = local.ordinary_rules.admit(encoded, now)
        if batch is None:
            return -1
        if self.locked_ordinary(batch, (<tuple>epochs[len(epochs) - 1])[0], None, None, False) is None:
            return -1
        return batch.row.base_offset

    cdef object locked_ordinary(
        self, OrdinaryBatch batch, int32_t leader_epoch, kind, record_validation_stats, bint keeps_gil,
    ):
        cdef PartitionLock lock = self.lock
        lock.take()
        try:
            if lock.busy:
                return None
            lock.set_busy(True)  # the garbage collector may run any finalizer from here on
            try:
                return self.ordinary(batch, leader_epoch, kind, record_validation_stats, keeps_gil)
            finally:
                lock.set_busy(False)
        finally:
            lock.give_back()

    cdef object ordinary(
        self, OrdinaryBatch batch, int32_t leader_epoch, kind, record_validation_stats, bint keeps_gil,
    ):
        """Appends if the epoch is the latest one, the segment has room, and the producer just continues.

        Returns an AppendInfo of class `kind`, or True if `kind` is None; None if nothing was done.
        """
        cdef LogEnd local = self.local_log
        cdef OrdinaryRules topic = batch.topic
        cdef ProducerEntry continued = None
        cdef SegmentTail tail
        cdef tuple epochs, segments
        cdef int64_t first_offset = (<tuple>local.next_offset_metadata)[0]
        cdef int64_t last_offset = <int64_t>(<uint64_t>first_offset + <uint64_t>batch.row.record_count - 1)
        cdef int64_t epoch, epoch_start
        if local.life != C_OPEN or self.unfinished is not None or local.log_dir_failure_channel.any_offline:
            return None
        epochs = self.leader_epoch_cache.entries
        if last_offset < first_offset or len(epochs) == 0:
            return None
        epoch, epoch_start = <tuple>epochs[len(epochs) - 1]
        if epoch != leader_epoch or epoch_start > first_offset:
            return None
        segments = (<tuple>local.segments.view)[1]
        if len(segments) == 0:
            return None
        tail = segments[len(segments) - 1].tail
        if not topic.create_time:
            batch.dated(local.clock.milliseconds())
        if not tail.knows_end() or tail.is_over(
            topic.max_segment_ms, topic.segment_bytes, batch.row.max_timestamp, last_offset, batch.row.size,
            batch.rules.now,
        ):
            return None
        if batch.row.producer_id >= 0:
            continued = self.producer_state_manager.continued(batch)
            if continued is None:
                return None
        buffers = batch.placed(first_offset, leader_epoch)
        info = True if kind is None else batch.info(kind, self.log_start_offset, record_validation_stats)
        if self.put(tail, buffers, [batch], last_offset, continued, None, keeps_gil) != W_WRITTEN:
            return None
        if self.first_unstable_is_rough or last_offset + 1 - local.recovery_point >= topic.flush_messages:
            self.finish_append(last_offset)
        return info

    cdef int put(self, SegmentTail tail, tuple buffers, list headers, int64_t last_offset, ProducerEntry continued,
                 ProducerChange change, bint keeps_gil=False) except -1:
        cdef LogEnd local = self.local_log
        cdef ProducerTable producers = self.producer_state_manager
        cdef BatchHeader last
        cdef bytes aborted = None
        last_aborted = None
        if change is not None:
            aborted, last_aborted = change.aborted, change.last_aborted
        if last_offset == INT64_MAX:
            raise OverflowError(last_offset)  # no offset follows
        cdef int done = tail.write(buffers, headers, aborted, last_aborted, keeps_gil)
        if done != W_WRITTEN:
            return done
        end = place(type(local.next_offset_metadata), last_offset + 1, tail.base_offset, tail.log.size)
        with cython.critical_section(local):
            local.next_offset_metadata = end
            if local.recovery_point > last_offset + 1:  # as in Kafka; only a roll beyond the end leaves it there
                local.recovery_point = last_offset + 1
        cdef bint moves = <int64_t>(<tuple>self.high_watermark_metadata)[0] >= last_offset + 1
        if moves:
            producers.drop_replicated(last_offset + 1)
        if continued is not None:
            last = headers[0]
            continued.go_on(&last.row)
            if continued.current_txn_first_offset is not None:
                producers.note_oldest()
        elif change is not None:
            for entry, started in change.entries:
                producers.take_over(entry, started)
            for completed in change.completed:
                producers.close_txn(completed)
        with cython.critical_section(producers):
            producers.map_end_offset = last_offset + 1
        if self.high_watermark_follows:
            moves = True
            producers.drop_replicated(last_offset + 1)
        self.move_marks(end if moves else None)
        return done

    cdef int move_marks(self, high_watermark) except -1:
        """Sets the high watermark, if it moves, and the first unstable offset from the producers, but not below the log
        start. Both change at once; otherwise a concurrent reader could take a transaction that just began for decided.

        The offset is rough if its position in the file is still to be found: the batch there may begin before it.
        """
        cdef int64_t offset, segment_base
        cdef bint rough = False
        unstable = self.producer_state_manager.first_unstable()
        if unstable is not None:
            offset, segment_base = (<tuple>unstable)[0], (<tuple>unstable)[1]
            if segment_base < 0 or offset < self.log_start_offset:
                rough = True
                unstable = place(type(unstable), max(offset, self.log_start_offset), -1, -1)
        with cython.critical_section(self):
            if high_watermark is not None:
                self.high_watermark_metadata = high_watermark
            self.first_unstable_is_rough = rough
            self.first_unstable_offset_metadata = unstable
        if high_watermark is not None:
            self.wake()
        return 0

    cdef int wake(self) except -1:
        # The high watermark has already moved: a waiter added after this line sees that.
        cdef list waiting = self.waiters, nobody
        if waiting:
            nobody = []
            with cython.critical_section(self):
                self.waiters = nobody
            # A copy: a waiter whose time is over removes itself from the list during the loop.
            for waiter in tuple(waiting):
                waiter.release()
        return 0

    def set_high_watermark(self, metadata):
        """Sets the high watermark and what depends on it: replicated transactions, the last stable offset, waiters."""
        self.producer_state_manager.drop_replicated((<tuple>metadata)[0])
        self.move_marks(metadata)

    def wake_waiters(self):
        """Wakes all who wait for the high watermark, to check again."""
        self.wake()


cdef object place(kind, int64_t offset, int64_t segment_base, int64_t position):
    """Returns a LogOffsetMetadata (`kind`)."""
    metadata = made(kind, 3)
    set_item(metadata, 0, offset)
    set_item(metadata, 1, segment_base)
    set_item(metadata, 2, position)
    return metadata
