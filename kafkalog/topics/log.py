"""The face for services: `open_log` and the `Log` that it gives.

A Log acts as a one-replica partition: every append is at once below the high watermark.  Two ways to be open:
writable, which holds the directory's lock and stands on UnifiedLog, and read-only, which touches nothing and stands
on a PartitionView.  Safe to use from several threads; each iterator belongs to one thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kafkalog._native.blocks import Closing
from kafkalog._native.log_end import OPEN
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    LogReadOnlyException,
    OffsetOutOfRangeException,
    RecordTooLargeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, Scheduler
from kafkalog.files.processes import Life
from kafkalog.format import names, values
from kafkalog.format.batch import NO_PRODUCER, ProducerFields
from kafkalog.format.java_text import parse_uuid
from kafkalog.format.names import TopicPartition
from kafkalog.format.needs import need_pyarrow
from kafkalog.limits import LONG_MAX
from kafkalog.log import damage
from kafkalog.log.damage import Damage
from kafkalog.log.unified_log import UnifiedLog
from kafkalog.topics import directory as directories
from kafkalog.topics import index_files
from kafkalog.topics.appending import Appender, encode_columns
from kafkalog.topics.directory import EXPECTED_DIR
from kafkalog.topics.engine_source import EngineSource
from kafkalog.topics.reader import CHUNK_BYTES, ChunkReader, MessageSetSend, Source
from kafkalog.topics.records import Header, Record
from kafkalog.topics.rows import RecordInput, check_records
from kafkalog.topics.snapshot import check_isolation
from kafkalog.topics.view import PartitionView

if TYPE_CHECKING:
    import socket

    import pyarrow as pa

    from kafkalog.topics.writer import Transaction, Writer

_logger = logging.getLogger(__name__)

Durability = Literal["os", "fsync"]
OnDamage = Literal["truncate", "raise"] | Callable[[Damage], None]
NEVER_MS = LONG_MAX
MAX_TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
EXPIRATION_CHECK_MS = 10 * 60 * 1000
SCAN_CHUNK_BYTES = 4 << 20
LOOK_EVERY_S = 0.1  # of who waits for an offset of another's log
WAIT_AT_ONCE_S = 1.0  # of our own: a directory that goes offline wakes nobody
RECORD_COUNT = slice(57, 61)  # in a batch's header


def open_log(
    log_dir: str | os.PathLike[str],
    topic_partition: str | TopicPartition,
    *,
    config: Mapping[str, str] | LogConfig | None = None,
    read_only: bool = False,
    durability: Durability = "os",
    create: bool = True,
    compression: str | None = None,
    topic_id: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    files: Files = OS_FILES,
    scheduler: Scheduler | None = None,
    producer_id_expiration_ms: int = NEVER_MS,
    abort_left_open: bool = True,
    on_damage: OnDamage = "truncate",
) -> Log:
    """Open one partition of a log directory, `log_dir/topic-0`; a context manager.

    `config` has Kafka's topic keys as text (`{"segment.bytes": "1048576"}`; for tests `internal.segment.bytes`, which
    may be smaller).  `read_only=True` takes no lock and writes nothing: it works beside a running broker and sees up to
    the last whole valid batch.  `durability`: "os" leaves flushing to the operating system, as Kafka does (what was
    appended survives a crash of this process, not a power loss, unless `flush()` was called); "fsync" flushes every
    append before it returns (survives power loss too).  `create=False` refuses a partition that does not exist.
    `compression` (none gzip snappy lz4 zstd) is how this writer packs its batches; by default what the topic's
    `compression.type` says (which calls none "uncompressed"), or none.  `topic_id` is a Kafka Uuid as 22 characters.
    Producer ids of `writer()` and `transaction()` are kept for `producer_id_expiration_ms`.

    A writable open takes the directory's `.lock`, shared by all logs of that directory in this process, and removes
    `.kafka_cleanshutdown`; a partition that was not closed cleanly is recovered as Kafka's broker does.  What
    `transaction()` of a crashed process left open is aborted, unless `abort_left_open` is off.  `on_damage` says what
    happens where that recovery finds damage: "truncate" cuts the log there and drops all behind it, with a warning in
    the log "kafkalog.log", as Kafka does; "raise" refuses with CorruptRecordException before anything is cut (indexes
    may have been rebuilt by then), and with CorruptIndexException where an index of aborted transactions was cut, which
    Kafka does not look at; a function is called with each `kafkalog.log.damage.Damage` before its cut.

    Errors: LogDirLockedException (a broker or another process has the directory), UnknownTopicOrPartitionException,
    InvalidTopicException, ConfigException, KafkaStorageException; IllegalArgumentException when the log is open in this
    process already or `log_dir` is no log directory: a missing or empty folder becomes one, a folder of other things
    does not.

    The Log belongs to this process: in a forked child every use raises IllegalStateException.  One that is dropped
    without `close()` closes itself with a ResourceWarning.
    """
    try:
        root = os.fsdecode(log_dir)
    except TypeError:
        raise IllegalArgumentException(
            f"log_dir: found {type(log_dir).__name__}, expected a path", hint=EXPECTED_DIR
        ) from None
    partition = _partition_of(topic_partition)
    create = values.flag(create, "create")
    abort_left_open = values.flag(abort_left_open, "abort_left_open")
    if not (callable(getattr(clock, "milliseconds", None)) and callable(getattr(clock, "nanoseconds", None))):
        raise IllegalArgumentException(
            f"clock: found {values.shown(clock)}, expected one with milliseconds() and nanoseconds()",
            hint="leave it out for the machine's; kafkalog.files.ManualClock for tests",
        )
    if values.flag(read_only, "read_only"):
        if not files.is_dir(root):
            directories.refuse_file(root, files)
            raise UnknownTopicOrPartitionException("no such log directory", path=root, hint=EXPECTED_DIR)
        directories.refuse_partition_folder(files.list_dir(root), root)
        return Log(partition, root, view=PartitionView(root, partition, files=files))
    if not isinstance(durability, str) or durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"durability {durability!r} is neither 'os' nor 'fsync'")
    names.validate_topic_name(partition.topic)
    if topic_id is not None:
        parse_uuid(values.text(topic_id, "topic_id", hint="a Kafka Uuid, 22 characters"))
    producer_id_expiration_ms = values.whole(
        producer_id_expiration_ms, "producer_id_expiration_ms", low=1, expected="milliseconds"
    )
    tell = _damage_handler(on_damage)
    settings = config if isinstance(config, LogConfig) else _checked(config)
    appender = Appender(settings, compression)
    path = os.path.join(root, str(partition))
    if not create and not files.is_dir(path):
        raise UnknownTopicOrPartitionException(
            f"no partition {partition} in {root}", hint="create=True makes it; `kafkalog describe` lists what is there"
        )
    lease = directories.enter(root, partition, files, clock, scheduler, create=create)
    try:
        engine = UnifiedLog.create(
            os.path.join(lease.directory.path, str(partition)),
            settings,
            lease.log_start_offset,
            lease.recovery_point,
            lease.directory.scheduler,
            clock,
            MAX_TRANSACTION_TIMEOUT_MS,
            ProducerStateManagerConfig(producer_id_expiration_ms, False),
            EXPIRATION_CHECK_MS,
            lease.directory.failure_channel,
            lease.clean,
            topic_id,
            files=files,
            on_damage=tell,
        )
        lease.holds_files(engine.close_quietly)
        # A transaction or a batch of many that a roll divides would else survive a power loss without its beginning.
        engine.flushes_rolls = durability == "fsync"
        engine.follow_log_end()
        if engine.recovery_point < lease.recovery_point:
            # The checkpoint says that more was flushed than there is; what comes to these offsets now is not.
            if on_damage == "raise":
                raise _lost_end(engine, lease.recovery_point)
            lease.checkpoint(lambda: engine.recovery_point)
        if on_damage == "raise":
            for segment in engine.log_segments():
                index_files.check_whole_entries(segment.txn_index.path, segment.txn_index.end)
        log = Log(
            partition,
            root,
            engine=engine,
            lease=lease,
            appender=appender,
            clock=clock,
            sync_appends=durability == "fsync",
        )
        if abort_left_open and engine.producer_state_manager.first_undecided_offset is not None:
            from kafkalog.topics import writer

            writer.abort_left_open(log)
        return log
    except BaseException:
        lease.give_up()
        raise


def _lost_end(engine: UnifiedLog, flushed: int) -> CorruptRecordException:
    return CorruptRecordException(
        f"{names.RECOVERY_POINT_CHECKPOINT_FILE} says that offsets up to {flushed - 1} were flushed, but the log ends "
        f"at {engine.log_end_offset}: files are missing, or were cut",
        path=engine.dir,
        hint='put back what is missing; on_damage="truncate" goes on from there, as Kafka does',
    )


def _record_count(batch: bytes | bytearray) -> int:
    return int.from_bytes(batch[RECORD_COUNT], "big")


def _damage_handler(on_damage: OnDamage) -> Callable[[Damage], None] | None:
    if callable(on_damage):
        return on_damage
    if not isinstance(on_damage, str) or on_damage not in ("truncate", "raise"):
        raise IllegalArgumentException(f"on_damage {on_damage!r} is neither 'truncate' nor 'raise' nor a function")
    return damage.refuse if on_damage == "raise" else None


def _checked(overrides: Mapping[str, str] | None) -> LogConfig:
    """Settings of which every name is known and every value in range."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise IllegalArgumentException(
            f"config: found {type(overrides).__name__}, expected Kafka's topic keys and their values",
            hint='such as {"segment.bytes": "1048576"}',
        )
    for name in overrides or ():
        values.text(name, "config: a key", hint='such as {"segment.bytes": "1048576"}')
    LogConfig.validate(overrides or {})
    return LogConfig.from_props(None, dict(overrides or {}))


def _partition_of(name: str | TopicPartition) -> TopicPartition:
    if isinstance(name, tuple) and len(name) == 2 and isinstance(name[0], str) and isinstance(name[1], int):
        name = f"{name[0]}-{name[1]}"
    if not isinstance(name, str):
        raise _no_partition_name(name)
    try:
        partition = names.parse_topic_partition_name(name)
    except KafkaException:
        raise _no_partition_name(name) from None
    if str(partition) != name or partition.partition < 0:
        raise _no_partition_name(name)
    return partition


def _no_partition_name(name: object) -> InvalidTopicException:
    return InvalidTopicException(f"{name!r} names no partition", hint="expected topic-0: topic, dash, number")


class Log(Closing):
    """One open partition.  Made by `open_log`.

    `engine` is the UnifiedLog below (None when read-only), with everything that Kafka's class of that name has.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_dir: str,
        *,
        engine: UnifiedLog | None = None,
        lease: directories.Lease | None = None,
        appender: Appender | None = None,
        view: PartitionView | None = None,
        clock: Clock = SYSTEM_CLOCK,
        sync_appends: bool = False,
    ) -> None:
        self._lease = lease
        if lease is not None:
            lease.has_owner = True  # from here on `__del__` leaves it
        self._life = Life() if lease is None else lease.life
        self.topic_partition = topic_partition
        self.log_dir = log_dir
        self.engine = engine
        self.clock = clock
        self._appender = appender
        self._view = view
        if view is not None:
            view.life = self._life
        self._sync_appends = sync_appends
        # By transactional id, kept by Transaction; a block that an interrupt came out of is nobody's to end.
        self.live_transactions: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        self.held_transactions: set[Transaction] = set()  # those begun by hand
        self.writer_guards: dict[int, threading.RLock] = {}  # by producer id; of Writer
        self.begun_transactions: set[int] = set()  # producer ids; kept by Transaction
        self.ending_transactions = threading.RLock()  # held while one is committed or aborted
        self._source: Source | None = view if engine is None else EngineSource(topic_partition, engine, self._life)

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Log:
        return self

    @property
    def closed(self) -> bool:
        return not self._life.live

    @property
    def is_forked_copy(self) -> bool:
        """Whether another process opened it, from which this one was forked: nothing can be done with it here."""
        return self._life.forked

    @property
    def read_only(self) -> bool:
        return self.engine is None

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    def close(self) -> None:
        """Close as a broker's clean shutdown does: trim, flush, snapshot, checkpoints; a second call does nothing.

        Transactions that are still open are aborted.  With the last log of the directory the clean-shutdown marker is
        written and the lock given back.  When flushing fails (KafkaStorageException) no checkpoint and no marker are
        written: the next open recovers.
        """
        if self._view is not None:
            if not self._life.forked:
                self._life.end()
                self._view.close()
        elif self._life.live and self._lease is not None:  # else closed, or the log of the process that forked us
            if self.engine is not None and self.engine.lock.is_mine():
                raise self.engine.is_inside()  # and the scheduler's thread may be waiting for it
            with self._lease.closing:
                self._close_engine(self._lease)

    def _close_engine(self, lease: directories.Lease) -> None:
        if not self._life.live:
            return
        engine = self._must_engine()
        try:
            if self.begun_transactions and not engine.local_log.is_closed:
                from kafkalog.topics import writer

                writer.abort_begun(self)
            if not engine.shut_down():
                lease.give_up()
                return
            lease.checkpoint(lambda: engine.recovery_point, lambda: self._log_start_to_checkpoint(engine))
            lease.leave(clean=True)
        except BaseException:
            lease.give_up()  # what cannot be closed in order must not keep the directory
            raise

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        lease: directories.Lease | None = getattr(self, "_lease", None)
        if lease is None or not lease.life.live or is_finalizing():
            return
        try:
            warnings.warn(
                f"{self!r} was dropped without being closed; use it as `with kafkalog.open_log(...) as log:`, or call "
                "its close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            if directories.may_finish_here():
                self._close_dropped()
            else:
                directories.finish_later(self._close_dropped)

    def _close_dropped(self) -> None:
        lease = self._lease
        assert lease is not None
        try:
            if self._view is None and hasattr(self, "_source"):
                self.close()
        except Exception:
            _logger.exception("%r, which was dropped, did not close in order: it is recovered when opened", self)
        finally:
            lease.give_up()

    @staticmethod
    def _log_start_to_checkpoint(engine: UnifiedLog) -> int | None:
        """Kafka writes a line only where the start lies inside the first segment."""
        first_base = engine.log_segments()[0].base_offset
        return engine.log_start_offset if engine.log_start_offset > first_base else None

    def refresh(self) -> None:
        """Read-only: look at the directory again for what a broker has written since.  Writable: nothing to do."""
        if self._view is not None and self._life.live:
            self._view.refresh()

    def _must_engine(self) -> UnifiedLog:
        if self.engine is None:
            raise LogReadOnlyException(
                f"{self.topic_partition} of {self.log_dir} is open read-only", hint="open it with read_only=False"
            )
        return self.engine

    def _writable(self) -> UnifiedLog:
        engine = self._must_engine()
        if not self._life.live:
            raise self._is_closed()
        self._settle(engine)
        return engine

    def _settle(self, engine: UnifiedLog) -> None:
        try:
            engine.settle()
        except KafkaStorageException:  # closed meanwhile?
            if engine.local_log.life == OPEN:
                raise
            raise self._is_closed() from None

    def check_open(self) -> None:
        """IllegalStateException where the log is closed, or was opened by another process."""
        if not self._life.live:
            raise self._is_closed()

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """What the engine says of a log that another thread closed meanwhile, said as everywhere else here."""
        try:
            yield
        except KafkaStorageException:
            if self.engine is None or self.engine.local_log.life == OPEN:
                raise
            raise self._is_closed() from None

    def _is_closed(self) -> IllegalStateException:
        if self._life.forked:
            return self._life.elsewhere(f"{self.topic_partition} of {self.log_dir}")
        return IllegalStateException(
            f"{self.topic_partition} of {self.log_dir} is closed", hint="kafkalog.open_log opens it again"
        )

    def _readable(self) -> Source:
        if not self._life.live:
            raise self._is_closed()
        assert self._source is not None
        if self.engine is not None:
            self._settle(self.engine)
            if self.begun_transactions:
                from kafkalog.topics import writer

                writer.abort_begun(self, but=self.live_transactions.values())
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
            raise self._is_closed()
        return self._view.log_end_offset if self._view is not None else self._must_engine().log_end_offset

    @property
    def high_watermark(self) -> int:
        """Up to where (exclusive) readers see; here always the log's end."""
        return self._readable().visible_end()

    @property
    def last_stable_offset(self) -> int:
        """Up to where (exclusive) read_committed readers see: before the oldest open transaction."""
        return self._readable().visible_end("read_committed")

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp >= `timestamp_ms` (ms since 1970); None where there is none.

        A negative time lies before all records: the log's start, None when the log is empty.  (What Kafka asks for by
        -1, -2 ... is at `engine.fetch_offset_by_timestamp`.)
        """
        timestamp_ms = values.milliseconds(timestamp_ms, "timestamp_ms")
        self._readable()
        self.refresh()
        source = self._readable()
        if timestamp_ms < 0:
            start = source.log_start_offset
            return start if start < source.visible_end() else None
        return source.offset_for_time(timestamp_ms)

    def await_offset(self, offset: int, *, isolation: str = "read_uncommitted", timeout_ms: int | None = None) -> bool:
        """Wait until readers of `isolation` are shown `offset`; False where `timeout_ms` (by default none) went first.

        For readers that follow the log: `log.await_offset(reader.offset)`, then read on.  An offset below the log's
        start, or of a control or an aborted record, counts as shown.  An append or the end of a transaction wakes the
        waiting thread at once; a read-only log is looked at ten times a second.  After a truncation it waits for the
        offset to be given anew.  IllegalStateException when the log is closed meanwhile, KafkaStorageException when its
        directory goes offline.
        """
        check_isolation(isolation)
        offset = values.offset(offset, low=0)
        deadline = None
        if timeout_ms is not None:
            timeout_ms = values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds")
            deadline = time.monotonic() + timeout_ms / 1000
        while True:
            source = self._readable()
            self.refresh()
            engine = self.engine
            with self.while_open():
                if engine is not None:
                    engine.local_log.check_appendable()
                    high_watermark = engine.high_watermark  # before the look: what moves it afterwards wakes us
                if source.visible_end(isolation) > offset:
                    return True
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return False
            if engine is None:
                time.sleep(min(left_s, LOOK_EVERY_S))
            else:
                engine.await_high_watermark(high_watermark, min(left_s, WAIT_AT_ONCE_S))

    # --- reading -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> Iterator[Record]:
        """Records of offsets [start, end), by default all that are there now, in order.

        `start_time` (ms since 1970, instead of `start`): from the first record at or after it on; nothing where there
        is none.  "read_committed" leaves out aborted records and stops before the oldest open transaction; control
        records are never seen.  OffsetOutOfRangeException when `start` lies outside the log, CorruptRecordException
        with file and position at damage.
        """
        start, end = self._range(start, end, start_time, isolation)
        return self._records(start, end, isolation)

    def _records(self, start: int | None, end: int | None, isolation: str) -> Iterator[Record]:
        source = self._readable()
        limit = source.visible_end(isolation)
        with self.reader(
            start, end_offset=limit if end is None else min(end, limit), isolation=isolation, chunk_bytes=CHUNK_BYTES
        ) as reader:
            yield from reader.records()
            if end is None or end > limit:
                reader.source.check_end(isolation)

    def _range(
        self, start: int | None, end: int | None, start_time: int | None, isolation: str
    ) -> tuple[int | None, int | None]:
        """What a reading method was asked for, checked: its first offset and its end."""
        check_isolation(isolation)
        hint = "offset_for_time() finds the one of a time; start_time= takes a time"
        start = None if start is None else values.offset(start, "start", hint=hint)
        end = None if end is None else values.offset(end, "end", hint=hint)
        start = self._start_at(start, start_time)
        low, high = self.log_start_offset, self.end_offset
        if start is not None and not low <= start <= high:
            raise OffsetOutOfRangeException(
                f"offset {start} of {self.topic_partition} is out of range: the log has [{low}, {high})",
                hint="start_time= takes a time in ms" if start > high else None,
            )
        return start, end

    def _start_at(self, start: int | None, start_time: int | None) -> int | None:
        """Where to begin, of an offset or a time; looks at the directory again."""
        if start_time is None:
            self._readable()
            self.refresh()
            return start
        if start is not None:
            raise IllegalArgumentException(
                f"found both start {start} and start_time {start_time}, expected one of them", hint="leave one out"
            )
        found = self.offset_for_time(values.milliseconds(start_time, "start_time"))
        return self._readable().visible_end() if found is None else found

    def reader(self, offset: int | None = None, *, start_time: int | None = None, **options: Any) -> ChunkReader:
        """A ChunkReader from `offset`, or the first record at or after `start_time` (ms), on; by default from the
        log's start.  Its options are documented there."""
        offset = None if offset is None else values.offset(offset)
        offset = self._start_at(offset, start_time)
        return ChunkReader(self._readable(), offset, **options)

    def arrow_batches(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        columns: Sequence[str] | None = None,
        isolation: str = "read_uncommitted",
        batch_rows: int = 65536,
    ) -> Iterator[pa.RecordBatch]:
        """Records of offsets [start, end) as pyarrow record batches of about `batch_rows` rows (see `read_arrow`)."""
        need_pyarrow()
        from kafkalog.topics import arrow

        arrow.schema(columns)
        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        start, end = self._range(start, end, start_time, isolation)
        return self._arrow_batches(start, end, columns, isolation, batch_rows)

    def _arrow_batches(
        self, start: int | None, end: int | None, columns: Sequence[str] | None, isolation: str, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        from kafkalog.topics import arrow

        source = self._readable()
        limit = source.visible_end(isolation)
        with ChunkReader(
            source,
            start,
            end_offset=limit if end is None else min(end, limit),
            isolation=isolation,
            chunk_bytes=SCAN_CHUNK_BYTES,
        ) as reader:
            for batch in arrow.record_batches(reader, columns, batch_rows):
                source.check_usable()  # a forked child has what was read before, too
                yield batch
            if end is None or end > limit:
                source.check_end(isolation)

    def read_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: int | None = None,
        columns: Sequence[str] | None = None,
        isolation: str = "read_uncommitted",
    ) -> pa.Table:
        """Records of offsets [start, end) as a pyarrow Table (needs pyarrow: `pip install kafkalog[arrow]`).

        `start_time` (ms since 1970, instead of `start`): from the first record at or after it on; no rows where there
        is none.  Columns: offset int64, timestamp timestamp[ms, UTC] (-1 ms where there is none), timestamp_type int8
        (-1, 0, 1), key and value binary, headers list<struct<key: string, value: binary>> (null where there are none),
        topic, partition int32, leader_epoch int32; by default offset, timestamp, timestamp_type, key, value, headers.
        MissingPackageException without pyarrow.
        """
        need_pyarrow()
        from kafkalog.topics import arrow

        batches = list(self.arrow_batches(start, end, start_time=start_time, columns=columns, isolation=isolation))
        return arrow.table(batches, columns)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All records to any Arrow consumer (polars, duckdb, pandas), streamed."""
        pa = need_pyarrow()
        from kafkalog.topics import arrow

        reader = pa.RecordBatchReader.from_batches(arrow.schema(None), self.arrow_batches())
        stream: object = reader.__arrow_c_stream__(requested_schema)
        return stream

    def send_to(
        self, sock: socket.socket, offset: int, max_bytes: int = CHUNK_BYTES, *, isolation: str = "read_uncommitted"
    ) -> int:
        """Answer a fetch on a blocking socket with a MessageSetSend (os.sendfile); returns the bytes written."""
        check_isolation(isolation)
        offset = values.offset(offset)
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
        return self.append_many(((value, key, headers, timestamp),))[0]

    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Append records in as few batches as `max.message.bytes` allows; returns their offsets.

        A record is a value (bytes or None), a tuple `(value, key[, headers[, timestamp]])`, or anything with these
        attributes (a Record; its timestamp of -1 stands for now).  Types and errors are those of `append`.

        Nothing of a list is appended where one of its records is refused (of a wrong type, too large, without a key on
        a compacted topic, ...).  Of anything else 50,000 records at a time are taken so, and the error's `appended` has
        the offsets of those before.  A full disk, a close or a crash may come between two batches of one call: use
        `transaction` where that matters.
        """
        return self.append_as(NO_PRODUCER, records)

    def append_as(self, producer: ProducerFields, records: Iterable[RecordInput], *, sync: bool = True) -> range:
        """`append_many` in a producer's name; for `Writer` and `Transaction`."""
        self._writable()
        assert self._appender is not None
        check_records(records)
        return self._append_each(self._appender.batches(records, self.clock.milliseconds(), producer), sync=sync)

    def _append_each(self, groups: Iterable[Sequence[bytes | bytearray]], *, sync: bool) -> range:
        """Appends the batches of each group together, or none of them where one is refused."""
        engine = self._writable()
        first = last = -1
        record = 0  # its number, of those that were given
        try:
            for group in groups:
                if len(group) > 1:
                    self._check_each(engine, group, record)
                with engine.lock:  # in one piece
                    for batch in group:
                        info = engine.append_as_leader(batch, self.leader_epoch)
                        first = info.first_offset if first < 0 else first
                        last = info.last_offset
                        record += last + 1 - info.first_offset
            self.after_append(sync=sync)
        except KafkaStorageException as error:
            closed = engine.local_log.life != OPEN
            raised = self._is_closed() if closed else error
            raised.appended = range(max(first, 0), last + 1)
            if not closed:
                raise
            raise raised from None
        except Exception as error:  # what went through the records may have raised its own
            if isinstance(error, KafkalogError):
                error.appended = range(max(first, 0), last + 1)
            if isinstance(error, RecordTooLargeException):
                error.hint = error.hint or "config={'max.message.bytes': ...} of open_log raises the limit"
            self._after_some(first, sync=sync)
            raise
        return range(first, last + 1) if first >= 0 else range(engine.log_end_offset, engine.log_end_offset)

    def _check_each(self, engine: UnifiedLog, group: Sequence[bytes | bytearray], record: int) -> None:
        for batch in group:
            count = _record_count(batch)
            try:
                engine.check_batch(batch, self.leader_epoch)
            except KafkalogError as error:
                which = f"record {record}" if count == 1 else f"in records {record} to {record + count - 1}"
                error.message = f"{which}: {error.message}"
                raise
            record += count

    def _after_some(self, first_offset: int, *, sync: bool) -> None:
        """Some batches are in the log though a later one was refused: what is there is as durable as it should be."""
        if first_offset >= 0:
            self.after_append(sync=sync)

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
        self._writable()
        assert self._appender is not None
        now_ms = self.clock.milliseconds()
        encoder = encode_columns(values, keys, headers, timestamps, now_ms)
        return self._append_each([list(self._appender.column_batches(encoder))], sync=True)

    def append_batches(self, data: bytes | bytearray | memoryview) -> range:
        """Append one batch in Kafka's format (any C-contiguous buffer), as a producer would send it; returns the
        offsets."""
        engine = self._writable()
        data = values.buffer(data, "data")
        with self.while_open():
            info = engine.append_as_leader(data, self.leader_epoch)
            if info.first_offset < 0:
                raise IllegalArgumentException(f"data: found no whole batch in {len(data)} bytes, expected one")
            self.after_append()
        return range(info.first_offset, info.last_offset + 1)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the log's latest, or 0."""
        return self._must_engine().latest_epoch or 0

    def after_append(self, *, sync: bool = True) -> None:
        """With durability "fsync", flush what was appended."""
        if sync and self._sync_appends:
            self._must_engine().flush(False)

    def flush(self) -> None:
        """fsync everything appended so far: it survives power loss afterwards."""
        engine = self._writable()
        with self.while_open():
            engine.flush(False)

    def writer(self, name: str) -> Writer:
        """An idempotent writer: a record that is appended twice under one sequence number is in the log once.

        See `kafkalog.topics.writer` for how its state survives restarts.
        """
        from kafkalog.topics.writer import Writer

        self._writable()
        return Writer(self, name)

    def transaction(self, transactional_id: str) -> Transaction:
        """`with log.transaction("job-7") as txn: txn.append(...)`: read_committed readers see all of it or nothing.

        Commits at the end of the block, aborts when it raises.  One that a crashed process left open is aborted by the
        next `open_log`.  See `kafkalog.topics.writer`.
        """
        from kafkalog.topics.writer import Transaction

        self._writable()
        return Transaction(self, transactional_id)

    # --- shrinking ---------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Make everything below `before_offset` (-1: the high watermark) unreadable for ever; returns the new start.

        Kafka's DeleteRecords: files go with the next retention pass, the start is checkpointed at once.
        OffsetOutOfRangeException beyond the end, PolicyViolationException on a topic that is only compacted.
        """
        engine = self._writable()
        before_offset = values.offset(before_offset, "before_offset")
        with self.while_open():
            start = engine.delete_records(before_offset)
            self._checkpoint()
        return start

    def delete_old_segments(self) -> int:
        """Apply `retention.ms`, `retention.bytes` and the log start now; returns how many segments went."""
        engine = self._writable()
        with self.while_open():
            count = engine.delete_old_segments()
            self._checkpoint()
        return count

    def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on; below the log's start: all of it, and the log goes on at `offset`.

        A log is cut between batches.  Where `offset` lies inside one it is refused, for records below it would go with
        the batch (Kafka's way, which `engine.truncate_to` has): IllegalArgumentException names the offsets before and
        behind the batch.  What one `append_many` took is one batch, or a few.  IllegalArgumentException also when
        `offset` is negative.  A transaction that is open and loses records by it can only be aborted.
        """
        engine = self._writable()
        offset = values.offset(offset, low=0)
        assert self._lease is not None
        with self.while_open():
            self._refuse_cut_inside_batch(engine, offset)
            if offset < engine.recovery_point:
                # Before the cut, too: other records may take these offsets, and they are not on the disk.
                self._lease.checkpoint(lambda: min(offset, engine.recovery_point))
            with engine.lock:
                self._refuse_cut_inside_batch(engine, offset)  # another may have cut, and appended, meanwhile
                engine.truncate_to(offset)
            self._checkpoint()

    def _refuse_cut_inside_batch(self, engine: UnifiedLog, offset: int) -> None:
        if not engine.log_start_offset < offset < engine.log_end_offset:
            return
        batch = engine.batch_around(offset)
        if batch is not None:
            first, last = batch
            raise IllegalArgumentException(
                f"offset: found {offset}, inside the batch of offsets {first} to {last}, which is cut off whole or not",
                hint=f"truncate to {max(first, engine.log_start_offset)}, which drops all of it, or to {last + 1}, "
                "which keeps it",
            )

    def _checkpoint(self) -> None:
        """What shrank must stay so after a crash: the recovery point and the start go to disk at once."""
        engine = self._writable()
        assert self._lease is not None
        self._lease.checkpoint(lambda: engine.recovery_point, lambda: self._log_start_to_checkpoint(engine))

    def __repr__(self) -> str:
        state = "closed" if self.closed else "read-only" if self.read_only else "open"
        return f"<Log {self.topic_partition} of {self.log_dir!r}, {state}>"
