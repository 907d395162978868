"""The face for services: the `Partition` that `kafkalog.open_log` gives, and a store's `topic.partition(0)`.

It acts as one replica: every append is at once below the high watermark.  Two ways to be open: writable, which stands
on what appends (`StorePartition`) and on a `Source`, and read-only, which touches nothing and stands on a Source
alone.  Safe to use from several threads; each iterator belongs to one thread.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog import _shown
from kafkalog._face.chunk_reader import CHUNK_BYTES, ChunkReader, MessageSetSend
from kafkalog._face.describing import SAMPLE_ROWS, Budget, PartitionDescription, describe_partition
from kafkalog._face.in_threads import ClosingAsync
from kafkalog._face.keywords import takes
from kafkalog._face.readable import Readable
from kafkalog._face.rows import RecordInput
from kafkalog._face.store_partition import StorePartition, TransactionOfPartition
from kafkalog._face.times import Moment, milliseconds_of
from kafkalog._face.waiting import Bells, Waiting
from kafkalog._face.writer import Writer
from kafkalog._native.state.blocks import Closing
from kafkalog.config import CleanerConfig
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.log.source import Source, check_isolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException, LogReadOnlyException
from kafkalog.records import Header

if TYPE_CHECKING:
    import socket

    from kafkalog.engine.cleaner.passes import CompactionStats

__all__ = ["Partition", "PartitionDescription", "Writer"]

DEDUPE_BUFFER_BYTES = 128 << 20  # log.cleaner.dedupe.buffer.size
DEDUPE_BUFFER_BYTES_MIN = 72  # of two keys
TRANSACTION_TIMEOUT_MS = 60_000  # transaction.timeout.ms


class _Awaited(NamedTuple):
    """An offset that somebody waits for, until a source shows it."""

    source: Source
    offset: int
    isolation: str

    def may_have_more(self) -> bool:
        return self.source.visible_end(self.isolation) > self.offset


class Partition(Closing, ClosingAsync, Readable):
    """One partition.  Made by `open_log`, and by `Topic.partition` for one of a store."""

    _inner = frozenset({"appends", "is_forked_copy", "ready_to_read"})

    def __init__(
        self,
        source: Source,
        appends: StorePartition | None,
        life: Life,
        bells: Bells,
        *,
        close: Callable[[], object] | None = None,
        how_to_write: str = "open it with read_only=False",
    ) -> None:
        """`life` and `bells` (of those who wait) are those of what it was opened with; `close` ends one that is
        read-only, `how_to_write` is its hint."""
        self.topic_partition = source.topic_partition
        self.appends = appends
        self._source = source
        self._life = life
        self._bells = bells
        self._close = close
        self._how_to_write = how_to_write

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Partition:
        return self

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return not self._life.live

    @property
    def is_forked_copy(self) -> bool:
        """Whether another process opened it, from which this one was forked: nothing can be done with it here."""
        return self._life.forked

    @property
    def read_only(self) -> bool:
        """Whether it was opened to be read alone."""
        return self.appends is None

    @property
    def engine(self) -> UnifiedLog | None:
        """The UnifiedLog below, with everything that Kafka's class of that name has; None when read-only."""
        return None if self.appends is None else self.appends.engine

    @property
    def log_dir(self) -> str:
        """The directory that has it now."""
        return self._source.log_dir if self.appends is None else self.appends.log_dir

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """Its number in the topic, from 0 on."""
        return self.topic_partition.partition

    def close(self) -> None:
        """Close as a broker's clean shutdown does: trim, flush, snapshot, checkpoints; a second call does nothing.

        One of a store is closed with its store, and this does nothing.  Of one that `open_log` gave, transactions that
        are still open are aborted.  With the last log of the directory the clean-shutdown marker is
        written and the lock given back.  When flushing fails (KafkaStorageException) no checkpoint and no marker are
        written: the next open recovers.
        """
        if self.appends is not None:
            self.appends.close()
        elif self._close is not None and not self._life.forked:
            self._life.end()
            self._close()
            self._bells.ring()

    def refresh(self) -> None:
        """Read-only: look at the directory again for what a broker has written since.  Writable: nothing to do."""
        if self._life.forked:
            raise self._life.elsewhere(f"{self.topic_partition} of {self.log_dir}")
        if self._life.live:
            self._source.recheck()

    def _must_own(self) -> StorePartition:
        if self.appends is None:
            raise LogReadOnlyException(
                f"{self.topic_partition} of {self.log_dir} is open read-only", hint=self._how_to_write
            )
        return self.appends

    def _writable(self) -> StorePartition:
        own = self._must_own()
        own.usable()
        return own

    def _readable(self) -> Source:
        if self.appends is not None:
            self.appends.settle_to_read()
        elif not self._life.live:
            raise self._life.refusal(f"{self.topic_partition} of {self.log_dir}")
        return self._source

    # --- where it stands ---------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._readable().log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        if self._life.forked:
            raise self._life.refusal(f"{self.topic_partition} of {self.log_dir}")
        return self._source.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Up to where (exclusive) readers see; here always the log's end."""
        return self._readable().visible_end()

    @property
    def last_stable_offset(self) -> int:
        """Up to where (exclusive) read_committed readers see: before the oldest open transaction."""
        return self._readable().visible_end("read_committed")

    def offset_for_time(self, timestamp_ms: Moment) -> int | None:
        """The first offset with a timestamp at or after a time (ms since 1970, an aware datetime, or ISO text); None
        where there is none.

        A negative time lies before all records: the log's start, None when the log is empty.  (What Kafka asks for by
        -1, -2 ... is at `engine.fetch_offset_by_timestamp`.)
        """
        timestamp_ms = milliseconds_of(timestamp_ms, "timestamp_ms")
        source = self.ready_to_read()
        if timestamp_ms < 0:
            start = source.log_start_offset
            return start if start < source.visible_end() else None
        return source.offset_for_time(timestamp_ms)

    def await_offset(self, offset: int, *, isolation: str = "read_uncommitted", timeout_ms: int | None = None) -> bool:
        """Wait until readers of `isolation` are shown `offset`; False where `timeout_ms` (by default none) went first.

        For readers that follow the log: `log.await_offset(reader.offset)`, then read on.  An offset below the log's
        start, or of a control or an aborted record, counts as shown.  An append or the end of a transaction wakes the
        waiting thread at once, and so does what another process writes to a read-only log, where the system tells of
        changed files (else it is looked at ten times a second).  After a truncation it waits for the offset to be given
        anew.  IllegalStateException when the log is closed meanwhile, KafkaStorageException when its directory goes
        offline.
        """
        check_isolation(isolation)
        offset = values.offset(offset, low=0)
        deadline = None
        if timeout_ms is not None:
            timeout_ms = values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds")
            deadline = time.monotonic() + timeout_ms / 1000
        with contextlib.closing(Waiting()) as waiting:
            self._bells.add(waiting)
            while True:
                awaited = _Awaited(self._readable(), offset, isolation)
                self.refresh()
                if self.appends is not None:  # a directory that goes offline moves no end
                    self.appends.on_log(lambda log: log.local_log.check_appendable())
                if awaited.may_have_more():
                    return True
                left_s = math.inf if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    return False
                waiting.wait([awaited], left_s, lambda: not self._life.live)

    def describe(self, *, sample_rows: int = SAMPLE_ROWS, exact: bool = False) -> PartitionDescription:
        """What it holds, without reading it: records, from when to when, bytes, segments, and `sample_rows` records
        from places that are spread over all offsets.

            print(log.describe().records)

        Records are counted exactly in a small log; else they are the span of offsets, which compaction and
        transactions make too many (`is_exact` says which).  `exact` has every batch header read.  Errors as a read.
        """
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        budget = Budget(exact=values.flag(exact, "exact"))
        self._readable()
        self.refresh()
        return describe_partition(self._readable(), budget, sample_rows)

    # --- reading -----------------------------------------------------------------------------------

    def _parts(self, partitions: object) -> Sequence[Partition]:
        if partitions is not None:
            raise IllegalArgumentException(
                f"partitions: found {values.shown(partitions)} for one partition", hint="leave it out"
            )
        return (self,)

    def ready_to_read(self) -> Source:
        """Its Source, as the directory is now."""
        self._readable()
        self.refresh()
        return self._readable()

    def _start_at(self, start: int | None, start_time: Moment | None) -> int | None:
        """Where to begin, of an offset or a time; looks at the directory again."""
        if start_time is None:
            self._readable()
            self.refresh()
            return start
        if start is not None:
            raise IllegalArgumentException(
                f"found both start {start} and start_time {start_time}, expected one of them", hint="leave one out"
            )
        found = self.offset_for_time(milliseconds_of(start_time, "start_time"))
        return self._readable().visible_end() if found is None else found

    def reader(self, offset: int | None = None, *, start_time: Moment | None = None, **options: Any) -> ChunkReader:
        """A ChunkReader from `offset`, or the first record at or after `start_time`, on; by default from the
        log's start.  It reads all that lies behind, older records too.  Its options are documented there."""
        offset = None if offset is None else values.offset(offset, low=0)
        offset = self._start_at(offset, start_time)
        return ChunkReader(self._readable(), offset, **options)

    def send_to(
        self, sock: socket.socket, offset: int, max_bytes: int = CHUNK_BYTES, *, isolation: str = "read_uncommitted"
    ) -> int:
        """Answer a fetch on a blocking socket with a MessageSetSend (os.sendfile); returns the bytes written."""
        check_isolation(isolation)
        offset = values.offset(offset, low=0)
        max_bytes = values.whole(max_bytes, "max_bytes", low=0, expected="bytes")
        if not hasattr(sock, "sendall") or not hasattr(sock, "fileno"):
            raise IllegalArgumentException(f"sock: found {values.shown(sock)}, expected a socket")
        self._readable()
        self.refresh()
        return MessageSetSend(self._readable(), offset, max_bytes, isolation=isolation).send_to(sock)

    # --- appending ---------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Append one record; returns its offset.

        `value` and `key` are bytes (bytearray, memoryview, a numpy array: any C-contiguous buffer) or None; `headers`
        pairs of str and such bytes; `timestamp` ms since 1970 as a whole number, by default now, -1 for none.
        IllegalArgumentException for anything else, and nothing is appended.

        Kafka's errors: RecordTooLargeException, RecordValidationException, KafkaStorageException ...
        """
        own = self.appends
        if own is None:
            own = self._must_own()
        return own.append_row((value, key, headers, timestamp))

    @takes()
    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Append records in as few batches as `max.message.bytes` allows; returns their offsets.

        A record is a value (bytes or None), a tuple `(value, key[, headers[, timestamp]])`, or anything with these
        attributes (a Record; its timestamp of -1 stands for now).  Types and errors are those of `append`.

        Nothing of a list is appended where one of its records is refused (of a wrong type, too large, without a key on
        a compacted topic, ...).  Of anything else 50,000 records at a time are taken so: what another thread appends
        may come between, and the error's `appended` has the offsets of those before.  A full disk, a close or a crash
        may come between two batches of one call: use `transaction` where that matters.
        """
        return self._must_own().append_as(NO_PRODUCER, records)

    @takes()
    def append_columns(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
    ) -> range:
        """Append columns of equal length; returns the offsets.  Several times as fast as `append_many`.

        Lists of what `append` takes; numpy arrays (timestamps integers or datetime64[ms]); or what speaks Arrow's
        interface (pyarrow, polars): values and keys binary or text, timestamps integers or timestamp (of another unit
        than ms only where no digit is lost), headers a list of structs of key and value.  Timestamps are now where they
        are null or not given.  IllegalArgumentException names the first entry that is none of these; then, and where a
        record is refused as `append_many` refuses it, nothing is appended.
        """
        return self._must_own().append_columns(values, keys, headers, timestamps)

    def append_batches(self, data: bytes | bytearray | memoryview) -> range:
        """Append one batch in Kafka's format (any C-contiguous buffer), as a producer would send it; returns the
        offsets."""
        return self._must_own().append_batches(data)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the log's latest, or 0."""
        return self._writable().leader_epoch

    def flush(self) -> None:
        """fsync everything appended so far: it survives power loss afterwards."""
        self._must_own().flush()

    def writer(self, name: str) -> Writer:
        """An idempotent writer: a record that is appended twice under one sequence number is in the log once.

        See `Writer` for how its state survives restarts.
        """
        own = self._writable()
        own.check_appendable()
        return Writer(own, name)

    def transaction(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionOfPartition:
        """`with log.transaction("job-7") as txn: txn.append(...)`: read_committed readers see all of it or nothing.

        Commits at the end of the block, aborts when it raises.  It is a transaction as `Store.transaction` gives it,
        whose records all go to this partition: the directory's coordinator (its topic `__transaction_state`, which is
        made for the first transaction) has the last word.  Another one of the id that begins meanwhile, also on another
        partition of the directory, aborts and fences this one (ProducerFencedException), and so does its being open for
        longer than `timeout_ms`, which is looked at every ten seconds.  One that a crash left is ended as was decided,
        by the next open of the partition.
        IllegalArgumentException for an empty id; InvalidTxnTimeoutException for a timeout outside 1 to 900000.
        """
        return self._must_own().transaction(transactional_id, timeout_ms)

    # --- shrinking ---------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Make everything below `before_offset` (-1: the high watermark) unreadable for ever; returns the new start.

        Kafka's DeleteRecords: files go with the next retention pass, the start is checkpointed at once; on a full disk
        later, which a warning tells, and a crash before that brings back what files there still are.
        OffsetOutOfRangeException beyond the end, PolicyViolationException on a topic that is only compacted.
        """
        return self._must_own().delete_records(before_offset)

    def delete_old_segments(self) -> int:
        """Apply `retention.ms`, `retention.bytes` and the log start now; returns how many segments went.

        Their files go after `file.delete.delay.ms`.  It works on a full disk, too: a warning says that the checkpoint
        is written later.  DiskFull where there is no room for renaming a file; `kafkalog retain` needs none.
        """
        return self._must_own().delete_old_segments()

    def compact(
        self, *, passes: int | None = None, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES, roll: bool = False
    ) -> CompactionStats:
        """Compact now, in this thread: of each key the last record stays, as far as Kafka's cleaner may go.

            with kafkalog.open_log("/data/logs", "prices-0", config={"cleanup.policy": "compact"}) as log:
                stats = log.compact()
                print(stats.records, "records went,", stats.bytes_gained, "bytes")

        Left alone are the active segment (`roll=True` closes it first, and begins another), what no transaction has
        decided, and what is younger than `min.compaction.lag.ms`; `min.cleanable.dirty.ratio` does not matter to who
        asks.  A tombstone stays for `delete.retention.ms` after the first pass that kept it; records without a key
        go.  Offsets do not change.  One pass takes as many keys as `dedupe_buffer_bytes` of memory hold, 24 bytes each
        and 90 % full; there are as many as it takes, or at most `passes`.

        Appends and reads go on meanwhile; `truncate`, `delete_old_segments` and `close` of other threads have it stop,
        and after the first two it goes on.  How far it came is in the directory's `cleaner-offset-checkpoint`, where a
        broker goes on.  What an interrupt leaves is the log as it was before a group of segments, or behind it.

        Returns a CompactionStats.  PolicyViolationException where `cleanup.policy` has no compact;
        CorruptRecordException with file and position at damage, and nothing is lost; KafkaStorageException;
        IllegalStateException where the log is closed meanwhile, or a signal handler comes out of the same call;
        LogCleaningAbortedException where others truncate the log so often that no pass comes to its end.
        """
        own = self._writable()
        passes = None if passes is None else values.whole(passes, "passes", low=1, expected="how many at most")
        dedupe_buffer_bytes = values.whole(
            dedupe_buffer_bytes, "dedupe_buffer_bytes", low=DEDUPE_BUFFER_BYTES_MIN, expected="bytes"
        )
        roll = values.flag(roll, "roll")
        config = CleanerConfig(dedupe_buffer_size=dedupe_buffer_bytes)
        return own.compact(config, passes_max=passes, rolls=roll)

    def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on; below the log's start: all of it, and the log goes on at `offset`.

        A log is cut between batches.  Where `offset` lies inside one it is refused, for records below it would go with
        the batch (Kafka's way, which `engine.truncate_to` has): IllegalArgumentException names the offsets before and
        behind the batch.  What one `append_many` took is one batch, or a few.  So is an offset between the records of
        a transaction and its end, with which what was committed or aborted would be undecided again.
        IllegalArgumentException also when `offset` is negative.  A transaction that is open and loses records by it can
        only be aborted.
        """
        self._must_own().truncate(offset)

    def __repr__(self) -> str:
        log = self._source if self.appends is None else self.appends.engine  # neither waits, nor looks at the disk
        ends = _shown.or_none(lambda: f" [{log.log_start_offset}, {log.log_end_offset})")
        place = _shown.or_none(lambda: f" of {self.log_dir!r}")
        return f"<Partition {self.topic_partition}{ends or ''}{place or ''}, {self._state()}>"

    def _state(self) -> str:
        if self.is_forked_copy:
            return "closed: of another process"
        return "closed" if self.closed else "read-only" if self.read_only else "open"

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        return _shown.or_none(lambda: self.describe(sample_rows=0)._repr_html_())


def __dir__() -> list[str]:
    return __all__
