"""A partition that this process holds for writing: its engine, its lease, and what appends, markers and its close do.

A Partition, its writers and its transactions all stand on one of these, and it lives as long as any of them: when the
last one is dropped without a close, its files are let go, and it is recovered at the next open.  Knows nothing of
reading, or of what a caller may give as a record.

Which transactions are open is kept here, for a close and a read must end those that nobody else will end.  Of a
transaction it knows what `LiveTransaction` says.  `ending_transactions` is held while one is committed or
aborted, and is taken before the engine's lock.  Thread-safe.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from kafkalog._face.appends import PartitionAppends, TransactionOfPartition
from kafkalog._face.batch_maker import BatchMaker
from kafkalog._face.compaction import PartitionCleaning
from kafkalog.engine.files import Clock
from kafkalog.engine.files.dropped import let_go_later
from kafkalog.engine.format import values
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory as directories
from kafkalog.engine.host.truncating import refuse_inside_batch
from kafkalog.engine.log.engine_source import EngineSource
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, IllegalStateException

if TYPE_CHECKING:
    from kafkalog.config import CleanerConfig
    from kafkalog.engine.cleaner.passes import CompactionStats


class LiveTransaction(Protocol):
    """What a partition asks of its transactions (`kafkalog._face.writer.Transaction`)."""

    producer_id: int

    @property
    def active(self) -> bool:
        """Whether somebody will still end it."""

    def let_go(self) -> None:
        """Have it neither committed nor aborted."""

    def cut_short(self) -> None:
        """It was aborted behind its back."""


class OpenPartition(PartitionAppends):
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
        transactions: Callable[[OpenPartition, str], TransactionOfPartition],
    ) -> None:
        self._transactions = transactions
        self.lease = lease
        self.life = lease.life
        self.topic_partition = topic_partition
        self._log_dir = log_dir
        self.engine = engine
        self.batch_maker = batch_maker
        self.clock = clock
        self.cleaning = PartitionCleaning(engine, lease, clock)
        self.sync_appends = sync_appends
        # By transactional id, kept by Transaction; a block that an interrupt came out of is nobody's to end.
        self.live_transactions: weakref.WeakValueDictionary[str, LiveTransaction] = weakref.WeakValueDictionary()
        self.held_transactions: set[LiveTransaction] = set()  # those begun by hand
        self.begun_transactions: set[int] = set()  # producer ids; kept by Transaction
        self.ending_transactions = threading.RLock()
        self.writer_guards = {}

    @property
    def log_dir(self) -> str:
        return self._log_dir

    # --- reading -----------------------------------------------------------------------------------

    def source(self) -> EngineSource:
        return EngineSource(self.topic_partition, self.engine, self.life)

    def settle_to_read(self) -> None:
        self.usable(to_read=True)
        if self.begun_transactions:
            with contextlib.suppress(DiskFull):  # they stay open, and the next who writes or reads ends them
                self.abort_begun(but=self.live_transactions.values())

    # --- shrinking ---------------------------------------------------------------------------------

    def compact(
        self,
        config: CleanerConfig,
        *,
        passes_max: int | None = None,
        rolls: bool = False,
    ) -> CompactionStats:
        self.usable()
        with self.while_open():
            return self.cleaning.compact(config, passes_max=passes_max, rolls=rolls)

    def truncate(self, offset: int) -> None:
        engine = self.usable()
        offset = values.offset(offset, low=0)
        with self.while_open(), self.cleaning.pause() as pause:
            refuse_inside_batch(engine, offset)
            pause.begin()
            self.cleaning.cut(offset)
            if offset < engine.recovery_point:
                # Before the cut, too: other records may take these offsets, and they are not on the disk.
                engine.local_log.recovery_point = min(offset, engine.recovery_point)
                self.lease.checkpoint()
            with engine.lock:
                refuse_inside_batch(engine, offset)  # another may have cut, and appended, meanwhile
                engine.truncate_to(offset)
            self._checkpoint_usable()

    def delete_old_segments(self) -> int:
        engine = self.usable()
        with self.while_open(), self.cleaning.pause() as pause:
            pause.begin()
            count = engine.delete_old_segments()
            self._checkpoint_usable()
        return count

    def _checkpoint_usable(self) -> None:
        """What shrank must stay so after a crash: the recovery point and the start go to disk at once."""
        self.usable()
        self.checkpoint()

    # --- life --------------------------------------------------------------------------------------

    def close(self) -> None:
        """As `Partition.close` says."""
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
            let_go_later(lease.give_up)

    def __repr__(self) -> str:
        """As the Partition that its user knows."""
        return f"<Partition {self.topic_partition} of {self.log_dir!r}, {'open' if self.life.live else 'closed'}>"

    def refusal(self) -> IllegalStateException:
        return self.life.refusal(f"{self.topic_partition} of {self.log_dir}")

    def checkpoint(self) -> None:
        """The recovery point and the start go to disk: what shrank stays so after a crash."""
        self.lease.checkpoint()

    # --- transactions ------------------------------------------------------------------------------

    def transaction(self, transactional_id: str) -> TransactionOfPartition:
        self.usable()
        return self._transactions(self, transactional_id)

    def abort_begun(self, *, but: Iterable[LiveTransaction] = ()) -> None:
        """Abort what was begun here and nobody ended or will end, whatever interrupted that; of `but` somebody will."""
        if self.begun_transactions:
            with self.ending_transactions:
                self._abort_begun(but)

    def _abort_begun(self, but: Iterable[LiveTransaction]) -> None:
        alive = {transaction.producer_id for transaction in list(but) if transaction.active}
        for producer_id in self.begun_transactions - alive:
            entry = self.engine.producer_state_manager.last_entry(producer_id)
            if entry is not None and entry.current_txn_first_offset is not None:
                self.write_marker(producer_id, max(entry.producer_epoch, 0), ControlRecordType.ABORT)
            self.begun_transactions.discard(producer_id)
        for transaction in list(self.live_transactions.values()):
            if transaction.producer_id not in alive:
                transaction.cut_short()
