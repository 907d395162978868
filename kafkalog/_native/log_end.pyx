"""The end of a log: where the next record goes, how far readers see, and the one step that moves both.

`Watermarks.commit` is the whole of an append from its first byte in the file to the moved end of the log: files, index
entries, producers, transactions, high watermark.  It either has happened or not, whatever the disk does and whenever
Ctrl-C comes: everything that can fail fails before a number changes, and no Python runs inside (but for files of a
test's own).  Called under the partition's lock; readers read single fields without it.
"""

cimport cython
from libc.stdint cimport int64_t

from kafkalog._native.batches cimport BatchHeader
from kafkalog._native.producers cimport ProducerEntry, ProducerTable
from kafkalog._native.tail cimport W_WRITTEN, SegmentTail

# The life of a log.
OPEN, CLOSING, CLOSED, FORKED = 0, 1, 2, 3


@cython.auto_pickle(False)
cdef class LogEnd:
    """Where a log ends.  The base of LocalLog.

    `next_offset_metadata`: the offset that the next record gets, its segment's base and the bytes in that;
    `recovery_point`: everything below it is on the disk; `life`: OPEN, CLOSING, CLOSED or FORKED, and it only grows.
    """

    cdef public object next_offset_metadata
    cdef public int64_t recovery_point
    cdef public int life


@cython.auto_pickle(False)
@cython.final
cdef class ProducerChange:
    """What an append changes in the table of producers, apart from one batch that just goes on (`commit`'s `continued`).

    `entries`: (the entry as the append leaves it, the transactions that it began); `completed`: CompletedTxn of its
    markers; `aborted`: records for the transaction index, the last of which ends at offset `last_aborted`.
    """

    cdef list entries, completed
    cdef bytes aborted
    cdef object last_aborted

    def __init__(self, entries, completed, bytes aborted=None, last_aborted=None):
        self.entries = list(entries)
        self.completed = list(completed)
        self.aborted = aborted
        self.last_aborted = last_aborted


@cython.auto_pickle(False)
cdef class Watermarks:
    """The offsets that have a meaning beyond the files.  The base of PartitionOffsets.

    Metadata are LogOffsetMetadata, replaced whole.  `high_watermark_follows`: a log of one replica, of which readers
    see everything at once.  `first_unstable_is_rough`: `maybe_increment_first_unstable_offset` is due.  `waiters`:
    locks that are released when the high watermark moves.
    """

    cdef public LogEnd local_log
    cdef public ProducerTable producer_state_manager
    cdef public object high_watermark_metadata
    cdef public object first_unstable_offset_metadata
    cdef readonly bint first_unstable_is_rough
    cdef public int64_t log_start_offset
    cdef public bint high_watermark_follows
    cdef public list waiters

    def __cinit__(self, *args, **kwargs):
        self.waiters = []

    def commit(
        self, SegmentTail tail not None, tuple buffers not None, list headers not None, int64_t last_offset,
        ProducerEntry continued, ProducerChange change,
    ):
        """Writes the batches of `headers`, which `buffers` hold one behind the other, and moves all that they move.

        0 when it is done, else one of the segment's reasons why nothing was.  An error of the disk: nothing was done
        either.
        """
        cdef LogEnd local = self.local_log
        cdef ProducerTable producers = self.producer_state_manager
        cdef BatchHeader last
        cdef bytes aborted = None
        last_aborted = None
        if change is not None:
            aborted, last_aborted = change.aborted, change.last_aborted
        cdef int done = tail.write(buffers, headers, aborted, last_aborted)
        if done != W_WRITTEN:
            return done
        end = place(type(local.next_offset_metadata), last_offset + 1, tail.base_offset, tail.log.size)
        local.next_offset_metadata = end
        if local.recovery_point > last_offset + 1:
            local.recovery_point = last_offset + 1
        if self.high_watermark_metadata[0] >= last_offset + 1:
            self.move_high_watermark(end)
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
        producers.map_end_offset = last_offset + 1
        if self.high_watermark_follows:
            self.move_high_watermark(end)
        self.move_first_unstable()
        return done

    cdef int move_high_watermark(self, metadata) except -1:
        self.high_watermark_metadata = metadata
        self.producer_state_manager.drop_replicated(metadata[0])
        self.wake()
        return 0

    cdef int move_first_unstable(self) except -1:
        """As the producers have it, not below the log start.

        Rough where its place in the file is to be looked for: the batch that is found there may begin before it.
        """
        unstable = self.producer_state_manager.first_unstable()
        self.first_unstable_is_rough = False
        if unstable is not None and (unstable[1] < 0 or unstable[0] < self.log_start_offset):
            self.first_unstable_is_rough = True
            unstable = place(type(unstable), max(<int64_t>unstable[0], self.log_start_offset), -1, -1)
        self.first_unstable_offset_metadata = unstable
        return 0

    cdef int wake(self) except -1:
        if self.waiters:
            waiting, self.waiters = self.waiters, []
            for waiter in waiting:
                waiter.release()
        return 0

    def set_high_watermark(self, metadata):
        """Moves the high watermark and what hangs on it: replicated transactions, the last stable offset, waiters."""
        self.move_high_watermark(metadata)
        self.move_first_unstable()

    def wake_waiters(self):
        """Lets everybody who waits for the high watermark look again."""
        self.wake()


cdef inline object place(kind, int64_t offset, int64_t segment_base, int64_t position):
    return tuple.__new__(kind, (offset, segment_base, position))
