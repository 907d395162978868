"""A partition that this process holds for writing: its engine, its lease, and what appends, markers and its close do.

A Log, its writers and its transactions all stand on one of these, and it lives as long as any of them: when the last
one is dropped without a close, it closes itself.  Knows nothing of reading, or of what a caller may give as a record.

Which transactions are open is kept here, for a close and a read must end those that nobody else will end.  Of a
transaction it knows what `OpenTransaction` says.  `ending_transactions` is held while one is committed or aborted, and
is taken before the engine's lock.  Thread-safe.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kafkalog._native.batches import header_at
from kafkalog._native.blocks import Single
from kafkalog._native.log_end import OPEN
from kafkalog.errors import IllegalStateException, KafkalogError, KafkaStorageException, RecordTooLargeException
from kafkalog.files import Clock
from kafkalog.files.lines import Lines
from kafkalog.format.batch import ProducerFields
from kafkalog.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.format.names import TopicPartition
from kafkalog.log.types import AppendOrigin
from kafkalog.log.unified_log import UnifiedLog
from kafkalog.manager import directory as directories
from kafkalog.topics.batch_maker import BatchMaker
from kafkalog.topics.compaction import PartitionCleaning
from kafkalog.topics.rows import RecordInput, check_records

COORDINATOR_EPOCH = 0
TRANSACTION_VERSION = 0


class OpenTransaction(Protocol):
    """What a partition asks of its transactions (`kafkalog.topics.writer.Transaction`)."""

    producer_id: int

    @property
    def active(self) -> bool:
        """Whether somebody will still end it."""

    def let_go(self) -> None:
        """Have it neither committed nor aborted."""

    def cut_short(self) -> None:
        """It was aborted behind its back."""


class OpenPartition(Single):
    """Made by `open_log`, which gives it the lease; left by `close`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_dir: str,
        engine: UnifiedLog,
        lease: directories.Lease,
        batch_maker: BatchMaker,
        clock: Clock,
        *,
        sync_appends: bool,
    ) -> None:
        self.lease = lease
        lease.has_owner = True  # from here on `__del__` leaves it
        self.life = lease.life
        self.topic_partition = topic_partition
        self.log_dir = log_dir
        self.engine = engine
        self.batch_maker = batch_maker
        self.clock = clock
        self.cleaning = PartitionCleaning(engine, lease, clock)
        self._sync_appends = sync_appends
        # By transactional id, kept by Transaction; a block that an interrupt came out of is nobody's to end.
        self.live_transactions: weakref.WeakValueDictionary[str, OpenTransaction] = weakref.WeakValueDictionary()
        self.held_transactions: set[OpenTransaction] = set()  # those begun by hand
        self.begun_transactions: set[int] = set()  # producer ids; kept by Transaction
        self.ending_transactions = threading.RLock()
        self.writer_guards: dict[int, threading.RLock] = {}  # by producer id; of Writer

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Log.close` says."""
        if self.life.live:  # else closed, or of the process that forked us
            if self.engine.lock.is_mine():
                raise self.engine.is_inside()  # and the scheduler's thread may be waiting for it
            with self.cleaning.pause() as pause:
                pause.begin()
                with self.lease.closing:
                    self._close()

    def _close(self) -> None:
        if not self.life.live:
            return
        engine = self.engine
        try:
            if not engine.local_log.is_closed:
                self.abort_begun()
            if not engine.shut_down():
                self.lease.give_up()
                return
            self.checkpoint()
            self.lease.leave(clean=True)
        except BaseException:
            self.lease.give_up()  # what cannot be closed in order must not keep the directory
            raise

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        lease: directories.Lease | None = getattr(self, "lease", None)
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
        try:
            if hasattr(self, "writer_guards"):  # else it was never made whole
                self.close()
        except Exception:
            Lines("kafkalog.topics", self.lease.directory.path, self.topic_partition).exception(
                "%r, which was dropped, did not close in order: it is recovered when opened", self
            )
        finally:
            self.lease.give_up()

    def __repr__(self) -> str:
        """As the Log that its user knows."""
        return f"<Log {self.topic_partition} of {self.log_dir!r}, {'open' if self.life.live else 'closed'}>"

    def check_open(self) -> None:
        """IllegalStateException where it is closed, or was opened by another process."""
        if not self.life.live:
            raise self._is_closed()

    def usable(self) -> UnifiedLog:
        """The engine of a partition that is open; a change that was cut short is made whole first."""
        if not self.life.live:
            raise self._is_closed()
        engine = self.engine
        try:
            engine.settle()
        except KafkaStorageException:  # closed meanwhile?
            if engine.local_log.life == OPEN:
                raise
            raise self._is_closed() from None
        return engine

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """What the engine says of a log that another thread closed meanwhile, said as everywhere else here."""
        try:
            yield
        except KafkaStorageException:
            if self.engine.local_log.life == OPEN:
                raise
            raise self._is_closed() from None

    def _is_closed(self) -> IllegalStateException:
        return self.life.refusal(f"{self.topic_partition} of {self.log_dir}")

    def checkpoint(self) -> None:
        """The recovery point and the start go to disk: what shrank stays so after a crash."""
        engine = self.engine
        self.lease.checkpoint(lambda: engine.recovery_point, lambda: engine.log_start_offset_to_checkpoint)

    # --- appending ---------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the log's latest, or 0."""
        return self.engine.latest_epoch or 0

    def append_as(self, producer: ProducerFields, records: Iterable[RecordInput], *, sync: bool = True) -> range:
        """Append records in a producer's name, as `Log.append_many` says."""
        engine = self.engine
        if not self.life.live or engine.unfinished is not None or engine.lock.busy:
            engine = self.usable()  # says why not, or makes it whole first
        now_ms = self.clock.milliseconds()
        built = self.batch_maker.at_once(records, now_ms, producer)
        if built is not None:
            return (
                self._append_one(engine, built[0], sync)
                if len(built) == 1
                else self._append_groups(engine, (built,), sync)
            )
        check_records(records)
        return self._append_groups(engine, self.batch_maker.batches(records, now_ms, producer), sync)

    def append_groups(self, groups: Iterable[Sequence[bytes]], *, sync: bool = True) -> range:
        """Appends the batches of each group together, or none of them where one is refused."""
        return self._append_groups(self.usable(), groups, sync)

    def _append_one(self, engine: UnifiedLog, batch: bytes, sync: bool) -> range:
        first = last = -1
        try:
            info = engine.append_as_leader(batch, engine.leader_epoch_cache.latest_epoch or 0)
            first, last = info.first_offset, info.last_offset
            if sync and self._sync_appends:
                engine.flush_appended(last + 1)
        except Exception as error:
            raised = self._told(error, first, last, sync)
            if raised is error:
                raise
            raise raised from None
        return range(first, last + 1)

    def _append_groups(self, engine: UnifiedLog, groups: Iterable[Sequence[bytes]], sync: bool) -> range:
        first = last = -1
        record = 0  # its number, of those that were given
        try:
            for group in groups:
                if len(group) > 1:
                    self._check_each(group, record)
                with engine.lock:  # in one piece
                    for batch in group:
                        info = engine.append_as_leader(batch, self.leader_epoch)
                        first = info.first_offset if first < 0 else first
                        last = info.last_offset
                        record += last + 1 - info.first_offset
            self.after_append(last + 1, sync=sync)
        except Exception as error:  # what went through the records may have raised its own
            raised = self._told(error, first, last, sync)
            if raised is error:
                raise
            raise raised from None
        return range(first, last + 1) if first >= 0 else range(engine.log_end_offset, engine.log_end_offset)

    def _told(self, error: Exception, first: int, last: int, sync: bool) -> Exception:
        """What an append raises that `error` ended, when offsets from `first` to `last` were there already."""
        appended = range(max(first, 0), last + 1)
        if isinstance(error, KafkaStorageException):
            raised = error if self.engine.local_log.life == OPEN else self._is_closed()
            raised.appended = appended
            return raised
        if isinstance(error, KafkalogError):
            error.appended = appended
        if isinstance(error, RecordTooLargeException):
            error.hint = error.hint or "config={'max.message.bytes': ...} of open_log raises the limit"
        if first >= 0:  # what is there is as durable as it should be
            self.after_append(last + 1, sync=sync)
        return error

    def _check_each(self, group: Sequence[bytes], record: int) -> None:
        for batch in group:
            count = header_at(batch).count
            try:
                self.engine.check_batch(batch, self.leader_epoch)
            except KafkalogError as error:
                which = f"record {record}" if count == 1 else f"in records {record} to {record + count - 1}"
                error.message = f"{which}: {error.message}"
                raise
            record += count

    def after_append(self, offset: int, *, sync: bool = True) -> None:
        """With durability "fsync", wait until what was appended, up to `offset`, is on the disk."""
        if sync and self._sync_appends:
            self.engine.flush_appended(offset)

    # --- transactions ------------------------------------------------------------------------------

    def write_marker(
        self, producer_id: int, epoch: int, kind: ControlRecordType, check: Callable[[], None] | None = None
    ) -> None:
        """Ends a transaction; `check` may still refuse, and nothing comes between the two."""
        engine, leader_epoch = self.engine, self.leader_epoch
        end = EndTransactionMarker(kind, COORDINATOR_EPOCH)
        marker = end_txn_marker_batch(0, self.clock.milliseconds(), leader_epoch, producer_id, epoch, end)
        with self.while_open():
            with engine.lock:
                if check is not None:
                    check()
                info = engine.append_as_leader(
                    marker, self.leader_epoch, AppendOrigin.COORDINATOR, transaction_version=TRANSACTION_VERSION
                )
            self.after_append(info.last_offset + 1)

    def abort_begun(self, *, but: Iterable[OpenTransaction] = ()) -> None:
        """Abort what was begun here and nobody ended or will end, whatever interrupted that; of `but` somebody will."""
        if self.begun_transactions:
            with self.ending_transactions:
                self._abort_begun(but)

    def _abort_begun(self, but: Iterable[OpenTransaction]) -> None:
        alive = {transaction.producer_id for transaction in list(but) if transaction.active}
        for producer_id in self.begun_transactions - alive:
            entry = self.engine.producer_state_manager.last_entry(producer_id)
            if entry is not None and entry.current_txn_first_offset is not None:
                self.write_marker(producer_id, max(entry.producer_epoch, 0), ControlRecordType.ABORT)
            self.begun_transactions.discard(producer_id)
        for transaction in list(self.live_transactions.values()):
            if transaction.producer_id not in alive:
                transaction.cut_short()
