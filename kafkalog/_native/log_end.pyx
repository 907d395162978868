"""The end of a log: where the next record goes, how far readers see, and the one step that moves both.

`Watermarks.commit` is the whole of an append from its first byte in the file to the moved end of the log: files, index
entries, producers, transactions, high watermark.  It either has happened or not, whatever the disk does and whenever
Ctrl-C comes: everything that can fail fails before a number changes, and no Python runs inside (but for files of a
test's own).  Called under the partition's lock; readers read single fields without it, and on free-threaded Python
whatever is written here is written inside its object's critical section, as Cython's getters read it.
"""

cimport cython
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t

from kafkalog._native.batches cimport BatchHeader
from kafkalog._native.producers cimport ProducerEntry, ProducerTable
from kafkalog._native.tail cimport W_WRITTEN, SegmentTail
from kafkalog._native.validation cimport BatchRules, ClientBatch

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)

cdef enum:
    C_OPEN = 0

# The life of a log.
OPEN, CLOSING, CLOSED, FORKED = C_OPEN, 1, 2, 3


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
    """What an append changes in the table of producers, apart from a batch that just goes on (`commit`'s `continued`).

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
    see everything at once.  `first_unstable_is_rough`: `maybe_increment_first_unstable_offset` is due;
    `finish_is_due`: that, or a flush, after an ordinary append.  `waiters`: locks that are released when the high
    watermark moves.
    """

    cdef public LogEnd local_log
    cdef public ProducerTable producer_state_manager
    cdef public object high_watermark_metadata
    cdef public object first_unstable_offset_metadata
    cdef readonly bint first_unstable_is_rough
    cdef readonly bint finish_is_due
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
        return self.put(tail, buffers, headers, last_offset, continued, change)

    def commit_ordinary(
        self, ClientBatch batch not None, SegmentTail tail not None, tuple epochs not None, int32_t leader_epoch,
        kind, record_validation_stats,
    ):
        """All steps of an append that are left for a batch that `client_batch` admitted, where none of them has
        anything to do but to look: the epoch is the latest of `epochs`, the segment `tail` has room, the producer just
        goes on.  The `kind` of AppendInfo that tells of it; None where a step has more to do, and nothing was done.
        """
        cdef LogEnd local = self.local_log
        cdef BatchRules topic = batch.topic
        cdef ProducerEntry continued = None
        cdef int64_t first_offset = (<tuple>local.next_offset_metadata)[0]
        cdef int64_t last_offset = <int64_t>(<uint64_t>first_offset + <uint64_t>batch.row.record_count - 1)
        cdef int64_t epoch, epoch_start
        if local.life != C_OPEN or last_offset < first_offset or len(epochs) == 0:
            return None
        epoch, epoch_start = <tuple>epochs[len(epochs) - 1]
        if epoch != leader_epoch or epoch_start > first_offset:
            return None
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
        info = batch.info(kind, self.log_start_offset, record_validation_stats)
        if self.put(tail, buffers, [batch], last_offset, continued, None) != W_WRITTEN:
            return None
        with cython.critical_section(self):
            self.finish_is_due = (
                self.first_unstable_is_rough or last_offset + 1 - local.recovery_point >= topic.flush_messages
            )
        return info

    cdef int put(self, SegmentTail tail, tuple buffers, list headers, int64_t last_offset, ProducerEntry continued,
                 ProducerChange change) except -1:
        cdef LogEnd local = self.local_log
        cdef ProducerTable producers = self.producer_state_manager
        cdef BatchHeader last
        cdef bytes aborted = None
        last_aborted = None
        if change is not None:
            aborted, last_aborted = change.aborted, change.last_aborted
        if last_offset == INT64_MAX:
            raise OverflowError(last_offset)  # no offset follows
        cdef int done = tail.write(buffers, headers, aborted, last_aborted)
        if done != W_WRITTEN:
            return done
        end = place(type(local.next_offset_metadata), last_offset + 1, tail.base_offset, tail.log.size)
        with cython.critical_section(local):
            local.next_offset_metadata = end
            if local.recovery_point > last_offset + 1:  # Kafka's way; nothing but a roll beyond the end leaves it there
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
        """The high watermark, where it moves, and the first unstable offset as the producers have it, not below the log
        start: both at once, or who reads beside us takes a transaction that just began for decided.

        Rough where its place in the file is to be looked for: the batch that is found there may begin before it.
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
        # The high watermark has moved by now: whoever comes into the list after this look sees that.
        cdef list waiting = self.waiters, nobody
        if waiting:
            nobody = []
            with cython.critical_section(self):
                self.waiters = nobody
            # A copy: who waited long enough takes himself out of the list while we walk.
            for waiter in tuple(waiting):
                waiter.release()
        return 0

    def set_high_watermark(self, metadata):
        """Moves the high watermark and what hangs on it: replicated transactions, the last stable offset, waiters."""
        self.producer_state_manager.drop_replicated((<tuple>metadata)[0])
        self.move_marks(metadata)

    def wake_waiters(self):
        """Lets everybody who waits for the high watermark look again."""
        self.wake()


cdef object place(kind, int64_t offset, int64_t segment_base, int64_t position):
    """A LogOffsetMetadata (`kind`), made as its own __new__ would, without the calls."""
    cdef object made = (<PyTypeObject*>kind).tp_alloc(<PyTypeObject*>kind, 3)
    set_item(made, 0, offset)
    set_item(made, 1, segment_base)
    set_item(made, 2, position)
    return made


cdef inline void set_item(object made, Py_ssize_t at, object number):
    Py_INCREF(number)
    PyTuple_SET_ITEM(made, at, number)
