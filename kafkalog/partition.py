"""The public class `Partition`, returned by `kafkalog.open_log` and by `Topic.partition` of a store.

A Partition acts as a single replica: each append is below the high watermark at once.  It is open in one of two ways. A
writable Partition uses a `StorePartition`, which appends, and a `Source`, which reads.  A read-only Partition uses a
Source alone and changes no file.  Threads may share a Partition; each iterator belongs to one thread.
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
from kafkalog._face.plotting import plotted
from kafkalog._face.readable import Readable
from kafkalog._face.rows import RecordInput
from kafkalog._face.store_partition import StorePartition, TransactionOfPartition
from kafkalog._face.times import Moment, milliseconds_of
from kafkalog._face.waiting import Bells, Waiting
from kafkalog._face.writer import Writer
from kafkalog._native.state.blocks import Closing
from kafkalog.config import CleanerConfig
from kafkalog.engine.files import OS_FILES, Files
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
DEDUPE_BUFFER_BYTES_MIN = 72  # room for two keys
TRANSACTION_TIMEOUT_MS = 60_000  # transaction.timeout.ms


class _Awaited(NamedTuple):
    """An offset that a thread waits for until the source shows it."""

    source: Source
    offset: int
    isolation: str

    def may_have_more(self) -> bool:
        return self.source.visible_end(self.isolation) > self.offset


class Partition(Closing, ClosingAsync, Readable):
    """One partition of a topic, returned by `kafkalog.open_log` and `Topic.partition`.

    A Partition is a context manager and is thread-safe.  It belongs to the process that opened it.

    Attributes:
        topic_partition: The topic's name and the partition's number, as a `TopicPartition`.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offset = log.append(b"value", key=b"key")
        ...     print(log.topic, log.partition, log.read_only, log.closed)
        ...     print(log.log_start_offset, log.end_offset, log.high_watermark, log.last_stable_offset)
        orders 0 False False
        0 1 1 1
        >>> log.closed
        True
    """

    _inner = frozenset({"appends", "is_forked_copy", "ready_to_read"})

    def __init__(
        self,
        source: Source,
        appends: StorePartition | None,
        life: Life,
        bells: Bells,
        *,
        close: Callable[[], object] | None = None,
        how_to_write: str = "write in the process that writes it; if there is none, open it with read_only=False",
        files: Files = OS_FILES,
    ) -> None:
        """Creates a Partition for `open_log` and `Store`.

        Args:
            source: Reads the partition.
            appends: Writes to the partition; None for a read-only Partition.
            life: Tells whether the log or store that opened it is still open.
            bells: Wakes threads that wait for an offset.
            close: Closes a read-only Partition.
            how_to_write: The hint of the error for a write to a read-only Partition.
            files: The file system of the log directory.
        """
        self.topic_partition = source.topic_partition
        self.appends = appends
        self._source = source
        self._life = life
        self._bells = bells
        self._close = close
        self._how_to_write = how_to_write
        self._files = files

    # --- open and close ----------------------------------------------------------------------------

    def __enter__(self) -> Partition:
        return self

    @property
    def closed(self) -> bool:
        """True if the Partition was closed, or if another process opened it."""
        return not self._life.live

    @property
    def is_forked_copy(self) -> bool:
        """True if this process was forked from the one that opened the Partition: it cannot be used here."""
        return self._life.forked

    @property
    def read_only(self) -> bool:
        """True if the Partition was opened with `read_only=True`."""
        return self.appends is None

    @property
    def engine(self) -> UnifiedLog | None:
        """The UnifiedLog, which has all methods of Kafka's class of that name; None for a read-only Partition."""
        return None if self.appends is None else self.appends.engine

    @property
    def log_dir(self) -> str:
        """The path of the log directory that holds the partition now."""
        return self._source.log_dir if self.appends is None else self.appends.log_dir

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """The partition's number in its topic, counted from 0."""
        return self.topic_partition.partition

    def close(self) -> None:
        """Closes the partition as a broker's clean shutdown does.

        It trims the files, flushes them, and writes the producer snapshot and the checkpoints.  Open transactions are
        aborted.  The last log of a directory that is closed also writes the clean-shutdown marker and releases the
        lock. A second call does nothing.  A Partition of a store is closed with its store, so this call does nothing
        for it.

        Raises:
            KafkaStorageException: A flush failed.  Neither checkpoints nor the marker are written, so the next open
                recovers the log.

        Example:
            >>> log = kafkalog.open_log("logs", "orders-0")
            >>> log.close()
            >>> log.closed
            True
        """
        if self.appends is not None:
            self.appends.close()
        elif self._close is not None and not self._life.forked:
            self._life.end()
            self._close()
            self._bells.ring()

    def refresh(self) -> None:
        """Reads the directory again, to find what another process has written since.

        A writable Partition is always up to date, so the call does nothing for it.

        Raises:
            KafkaStorageException: The directory cannot be read.
            IllegalStateException: The Partition was opened by another process.

        Example:
            >>> writer = kafkalog.open_log("logs", "orders-0")
            >>> view = kafkalog.open_log("logs", "orders-0", read_only=True)
            >>> offset = writer.append(b"value")
            >>> view.refresh()
            >>> view.end_offset
            1
            >>> view.close()
            >>> writer.close()
        """
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

    # --- offsets -----------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._readable().log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        if self._life.forked:
            raise self._life.refusal(f"{self.topic_partition} of {self.log_dir}")
        return self._source.log_end_offset

    @property
    def high_watermark(self) -> int:
        """The end (exclusive) of what read_uncommitted readers see; in kafkalog it is always the log's end."""
        return self._readable().visible_end()

    @property
    def last_stable_offset(self) -> int:
        """The end (exclusive) of what read_committed readers see, before the oldest open transaction."""
        return self._readable().visible_end("read_committed")

    def offset_for_time(self, timestamp_ms: Moment) -> int | None:
        """Returns the first offset whose record has a timestamp at or after `timestamp_ms`.

        A negative time is before all records: the result is the log's start, or None if the log is empty.  Kafka's
        special timestamps (-1, -2 ...) are accepted by `engine.fetch_offset_by_timestamp` alone.

        Args:
            timestamp_ms: Milliseconds since 1970, a datetime with a time zone, or ISO 8601 text.

        Returns:
            The offset, or None if no record has such a timestamp.

        Raises:
            IllegalArgumentException: `timestamp_ms` is not a time.
            CorruptRecordException: The log is damaged where it is searched.
            KafkaStorageException: The log cannot be read.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([(b"a", None, (), 1000), (b"b", None, (), 2000)])
            ...     print(log.offset_for_time(1500), log.offset_for_time(9000))
            1 None
        """
        timestamp_ms = milliseconds_of(timestamp_ms, "timestamp_ms")
        source = self.ready_to_read()
        if timestamp_ms < 0:
            start = source.log_start_offset
            return start if start < source.visible_end() else None
        return source.offset_for_time(timestamp_ms)

    def await_offset(self, offset: int, *, isolation: str = "read_uncommitted", timeout_ms: int | None = None) -> bool:
        """Waits until readers can see `offset`.

        A reader that follows the log calls `log.await_offset(reader.offset)`, then continues to read.  An append or the
        end of a transaction wakes the waiting thread at once.  So does a write by another process to a read-only log,
        if the operating system reports changed files; otherwise the directory is checked ten times a second.  An offset
        below the log's start counts as visible, and so does the offset of a control record or of an aborted record.
        After a truncation the call waits until the offset is assigned again.

        Args:
            offset: The offset to wait for.
            isolation: "read_uncommitted" or "read_committed": which readers must see it.
            timeout_ms: The longest wait in milliseconds; by default there is no limit.

        Returns:
            True if the offset is visible, False if `timeout_ms` passed first.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The log was closed during the wait.
            KafkaStorageException: The directory went offline.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"value")
            ...     print(log.await_offset(offset), log.await_offset(offset + 1, timeout_ms=10))
            True False
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
                if self.appends is not None:  # a directory that goes offline does not change the end
                    self.appends.on_log(lambda log: log.local_log.check_appendable())
                if awaited.may_have_more():
                    return True
                left_s = math.inf if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    return False
                waiting.wait([awaited], left_s, lambda: not self._life.live)

    def describe(self, *, sample_rows: int = SAMPLE_ROWS, exact: bool = False) -> PartitionDescription:
        """Returns what the partition holds, without reading all of it.

        The count of records is exact for a small log.  For a large log it is the number of offsets, which compaction
        and transactions make larger than the number of records; `is_exact` tells which.

        Args:
            sample_rows: How many sample records to return, from positions that are spread over all offsets.
            exact: Read every batch header, so that the count is exact however large the log is.

        Returns:
            A PartitionDescription: records, oldest and newest timestamp (ms), bytes, segments and the sample.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The Partition is closed.
            KafkaStorageException: The log cannot be read.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     found = log.describe(sample_rows=1)
            >>> found.records, found.is_exact, len(found.sample)
            (2, True, 1)
        """
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        budget = Budget(exact=values.flag(exact, "exact"))
        self._readable()
        self.refresh()
        return describe_partition(self._readable(), budget, sample_rows)

    @takes()
    def plot(self, name: str | None = None, *, deep: bool = False) -> Any:
        """Returns pictures of the partition for a notebook (`pip install 'kafkalog[report]'`).

        The pictures show its segments over time, sizes of batches and what compression they reach, records and bytes an
        hour, transactions, and damage.  The call reads the directory as `kafkalog report` does: sizes, indexes and a
        sample of batch headers, so it is fast for a large log too.  It takes no lock, and other threads may append
        meanwhile.  The chart contains its numbers, at most 5,000 rows of a table, and no longer needs the log.

        Args:
            name: The one picture to return.  By default all of the partition's pictures that have something to show,
                one below the other.
            deep: Read every batch instead of a sample.

        Returns:
            An altair chart, which a notebook displays without a network; `chart.save("chart.svg")` writes it to a file.

        Raises:
            IllegalArgumentException: An argument has a wrong type, or no picture has that name; the error lists the
                names.
            IllegalStateException: The Partition is closed.
            UnknownTopicOrPartitionException: The topic was deleted.
            KafkaStorageException: The directory cannot be read.
            MissingPackageException: altair or vl-convert is not installed.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"tea", b"milk"])
            ...     chart = log.plot("segments")
            >>> chart.to_dict()["datasets"]["segments"][0]["records"]
            2
        """
        return plotted(self._place_to_plot, name, deep=deep, topic=self.topic, partition=self.partition)

    def _place_to_plot(self) -> tuple[Sequence[str], Files]:
        self._readable()
        self.refresh()
        self._readable()
        return [self.log_dir], self._files

    # --- reading -----------------------------------------------------------------------------------

    def _parts(self, partitions: object) -> Sequence[Partition]:
        if partitions is not None:
            raise IllegalArgumentException(
                f"partitions: found {values.shown(partitions)} for a single partition", hint="leave it out"
            )
        return (self,)

    def ready_to_read(self) -> Source:
        """Returns the Source, up to date with the directory."""
        self._readable()
        self.refresh()
        return self._readable()

    def _start_at(self, start: int | None, start_time: Moment | None) -> int | None:
        """Returns the offset to begin at, from an offset or a time; reads the directory again."""
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
        """Returns a ChunkReader, which reads the log in chunks of whole batches.

        It reads every record from its start on, also records with older timestamps than `start_time`.

        Args:
            offset: The first offset to read; by default the log's start.
            start_time: Begin at the first record with a timestamp at or after this time (milliseconds since 1970, a
                datetime with a time zone, or ISO 8601 text) instead of at an offset.
            **options: The keyword arguments of `ChunkReader`.

        Returns:
            A ChunkReader at that offset.

        Raises:
            IllegalArgumentException: Both `offset` and `start_time` are given, or an argument has a wrong type or
                value.
            IllegalStateException: The Partition is closed.
            KafkaStorageException: The log cannot be read.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     with log.reader(1) as reader:
            ...         print([record.value for record in reader.records()])
            [b'two']
        """
        offset = None if offset is None else values.offset(offset, low=0)
        offset = self._start_at(offset, start_time)
        return ChunkReader(self._readable(), offset, **options)

    def send_to(
        self, sock: socket.socket, offset: int, max_bytes: int = CHUNK_BYTES, *, isolation: str = "read_uncommitted"
    ) -> int:
        """Sends batches to a blocking socket with os.sendfile, framed as a MessageSetSend.

        Args:
            sock: A connected blocking socket.
            offset: The offset to send from.
            max_bytes: How many bytes of batches to send at most; at least one whole batch is sent if there is one.
            isolation: "read_uncommitted" or "read_committed".

        Returns:
            The number of bytes written to the socket, including the frame.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The Partition is closed.
            OSError: The socket failed.

        Example:
            >>> import socket
            >>> from kafkalog.reader import receive_message_set
            >>> sender, receiver = socket.socketpair()
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"value")
            ...     sent = log.send_to(sender, 0)
            >>> error_code, data = receive_message_set(receiver)
            >>> error_code, sent - len(data)
            (0, 6)
            >>> sender.close()
            >>> receiver.close()
        """
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
        """Appends one record.

        Args:
            value: Bytes, or any C-contiguous buffer (bytearray, memoryview, a numpy array); None is a tombstone.
            key: Bytes or such a buffer; None for a record without a key.
            headers: Pairs of a str and bytes (or None).
            timestamp: Milliseconds since 1970 as an int; by default the current time, -1 for none.

        Returns:
            The offset of the record.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value; nothing is appended.
            RecordTooLargeException: The record is larger than `max.message.bytes`.
            RecordValidationException: The topic's settings do not allow the record, for example a record without a key
                on a compacted topic.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     log.append(b"value", key=b"key", headers=[("trace", b"7")], timestamp=1_700_000_000_000)
            0
        """
        own = self.appends
        if own is None:
            own = self._must_own()
        return own.append_row((value, key, headers, timestamp))

    @takes()
    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Appends records in as few batches as `max.message.bytes` allows.

        Nothing of a list or tuple is appended if one of its records is refused (a wrong type, too large, without a key
        on a compacted topic).  Other iterables are appended 50,000 records at a time.  Records of another thread may
        come between these parts, and the error's `appended` has the offsets of the parts before it.  A full disk, a
        close or a crash may also come between two batches of one call; use `transaction` if that matters.

        Args:
            records: Each record is a value (bytes or None), a tuple `(value, key[, headers[, timestamp]])`, or an
                object with these attributes, such as a Record (whose timestamp of -1 means now).  Types are those of
                `append`.

        Returns:
            The offsets of the records.

        Raises:
            IllegalArgumentException: A record has a wrong type or value.
            RecordTooLargeException: A record is larger than `max.message.bytes`.
            RecordValidationException: The topic's settings do not allow a record.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     log.append_many([b"one", (b"two", b"key")])
            range(0, 2)
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
        """Appends columns of equal length, several times as fast as `append_many`.

        A column is a list of what `append` accepts, a numpy array, or an object with Arrow's interface (pyarrow,
        polars). Nothing is appended if an entry or a record is refused.

        Args:
            values: The values: bytes or None; Arrow columns are binary or text.
            keys: The keys, as `values`; by default the records have no keys.
            timestamps: Milliseconds since 1970 as integers, numpy's datetime64[ms], or Arrow's timestamp (of another
                unit only if no digit is lost).  An entry that is null, or not given, is the current time.
            headers: The headers of each record; in Arrow a list of structs of key and value.

        Returns:
            The offsets of the records.

        Raises:
            IllegalArgumentException: A column is not one of these; the error names the first wrong entry.
            RecordTooLargeException: A record is larger than `max.message.bytes`.
            RecordValidationException: The topic's settings do not allow a record.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     log.append_columns([b"one", b"two"], keys=[b"a", b"b"], timestamps=[1000, 2000])
            range(0, 2)
        """
        return self._must_own().append_columns(values, keys, headers, timestamps)

    def append_batches(self, data: bytes | bytearray | memoryview) -> range:
        """Appends one batch in Kafka's format, as a producer would send it.

        Args:
            data: The bytes of the batch: any C-contiguous buffer.

        Returns:
            The offsets of its records.

        Raises:
            IllegalArgumentException: `data` is not a buffer.
            CorruptRecordException: The batch is damaged.
            InvalidRecordException: A record of the batch is invalid.
            RecordBatchTooLargeException: The batch is too large for the topic's settings.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"value")
            ...     with log.reader() as reader:
            ...         batch = bytes(reader.read_chunk().data)
            ...     log.append_batches(batch)
            range(1, 2)
        """
        return self._must_own().append_batches(data)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the latest one of the log, or 0."""
        return self._writable().leader_epoch

    def flush(self) -> None:
        """Calls fsync for everything appended so far, so that it survives a power loss.

        Raises:
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"value")
            ...     log.flush()
        """
        self._must_own().flush()

    def writer(self, name: str) -> Writer:
        """Returns an idempotent writer: a record appended twice under one sequence number is stored once.

        See `Writer` for how its state survives a restart.

        Args:
            name: The writer's name; the same name continues its sequence in a later process.

        Returns:
            The Writer of that name.

        Raises:
            IllegalArgumentException: `name` is empty or not text.
            LogReadOnlyException: The Partition is read-only.
            IllegalStateException: The Partition is closed.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     writer = log.writer("import")
            ...     print(writer.append(b"one", sequence=0), writer.append(b"one", sequence=0))
            0 None
        """
        own = self._writable()
        own.check_appendable()
        return Writer(own, name)

    def transaction(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionOfPartition:
        """Returns a transaction of this partition: read_committed readers see all of its records or none.

        Use it as a context manager: it commits at the end of the block and aborts if the block raises.  It works as the
        transaction of `Store.transaction`, but all its records go to this partition.  The directory's transaction
        coordinator decides; its topic `__transaction_state` is created for the first transaction.  Another transaction
        of the same id in the directory aborts and fences this one (ProducerFencedException).  So does the timeout,
        which is checked every ten seconds.  A transaction that a crash left open is ended by the next open of the
        partition, as was decided.

        Args:
            transactional_id: A name that is not empty; one transaction at a time may use it.
            timeout_ms: Milliseconds until an open transaction is aborted, from 1 to 900000.

        Returns:
            A Transaction.

        Raises:
            IllegalArgumentException: The id is empty.
            InvalidTxnTimeoutException: The timeout is out of range.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     with log.transaction("job-7") as txn:
            ...         offset = txn.append(b"value")
            ...     print([record.value for record in log.records(isolation="read_committed")])
            [b'value']
        """
        return self._must_own().transaction(transactional_id, timeout_ms)

    # --- shrinking ---------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Makes all records below `before_offset` unreadable forever, as Kafka's DeleteRecords does.

        The new log start is written to its checkpoint at once, and the next retention pass deletes the files.  On a
        full disk the checkpoint is written later, and a warning says so.  A crash before that makes the records
        readable again whose files still exist.

        Args:
            before_offset: The first offset to keep; -1 stands for the high watermark.

        Returns:
            The new log start offset.

        Raises:
            OffsetOutOfRangeException: `before_offset` is beyond the end.
            PolicyViolationException: The topic is compacted, and does not delete.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     print(log.delete_records(1), log.log_start_offset)
            1 1
        """
        return self._must_own().delete_records(before_offset)

    def delete_old_segments(self) -> int:
        """Applies `retention.ms`, `retention.bytes` and the log start offset now.

        The files of a deleted segment are removed after `file.delete.delay.ms`.  The call also works on a full disk: a
        warning says that the checkpoint is written later.

        Returns:
            The number of segments deleted.

        Raises:
            DiskFull: The disk has no room to rename a file; `kafkalog retain` needs none.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     log.delete_old_segments()
            0
        """
        return self._must_own().delete_old_segments()

    def compact(
        self, *, passes: int | None = None, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES, roll: bool = False
    ) -> CompactionStats:
        """Compacts the log now, in this thread: keeps the last record of each key, as Kafka's cleaner does.

        Three things are not compacted: the active segment, records from the start of the oldest open transaction on,
        and records that are younger than `min.compaction.lag.ms`.  `min.cleanable.dirty.ratio` is ignored.  A tombstone
        is kept for `delete.retention.ms` after the first pass that kept it.  Records without a key are removed.
        Offsets do not change.

        Appends and reads continue in the meantime.  If another thread calls `truncate`, `delete_old_segments` or
        `close`, compaction stops; after the first two it continues.  The directory's `cleaner-offset-checkpoint`
        records how far it came, and a broker continues there.  An interrupt leaves each group of segments either as it
        was or compacted.

        Args:
            passes: The most passes to make; by default as many as are needed.
            dedupe_buffer_bytes: Memory for the keys of one pass in bytes, 24 bytes a key, filled to 90 %.
            roll: Close the active segment first and begin another, so that it is compacted too.

        Returns:
            A CompactionStats: records removed by reason, bytes before and after, passes and seconds.

        Raises:
            PolicyViolationException: `cleanup.policy` does not include compact.
            CorruptRecordException: The log is damaged; the error names file and position, and nothing is lost.
            KafkaStorageException: The disk failed.
            IllegalStateException: The log was closed in the meantime, or a signal handler called it during the same
                call.
            LogCleaningAbortedException: Others truncate the log so often that no pass comes to its end.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "prices-0", config={"cleanup.policy": "compact"}) as log:
            ...     offsets = log.append_many([(b"1", b"tea"), (b"2", b"tea")])
            ...     stats = log.compact(roll=True)
            ...     print(stats.records, [record.value for record in log.records()])
            1 [b'2']
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
        """Removes all records from `offset` on.

        A log is truncated between batches.  One `append_many` makes one batch, or a few.  An `offset` inside a batch is
        refused, because records below it would be lost with the batch; `engine.truncate_to` truncates there, as Kafka
        does. An `offset` between the records of a transaction and its end marker is refused too, because the
        transaction would be undecided again.  An open transaction that loses records by a truncation can only be
        aborted.

        Args:
            offset: The first offset to remove.  Below the log's start the whole log is removed, and the next record
                gets this offset.

        Raises:
            IllegalArgumentException: `offset` is negative, inside a batch or inside a transaction.  The error names the
                nearest offsets that are allowed.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The Partition is read-only.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     first, second = log.append(b"one"), log.append(b"two")
            ...     log.truncate(second)
            ...     print(log.end_offset)
            1
        """
        self._must_own().truncate(offset)

    def __repr__(self) -> str:
        log = self._source if self.appends is None else self.appends.engine  # neither waits nor reads the disk
        ends = _shown.or_none(lambda: f" [{log.log_start_offset}, {log.log_end_offset})")
        place = _shown.or_none(lambda: f" of {self.log_dir!r}")
        return f"<Partition {self.topic_partition}{ends or ''}{place or ''}, {self._state()}>"

    def _state(self) -> str:
        if self.is_forked_copy:
            return "closed: of another process"
        return "closed" if self.closed else "read-only" if self.read_only else "open"

    def _repr_html_(self) -> str | None:
        """Returns the description as HTML for notebooks."""
        return _shown.or_none(lambda: self.describe(sample_rows=0)._repr_html_())


def __dir__() -> list[str]:
    return __all__
