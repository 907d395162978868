"""A partition that this process holds for writing: its engine, its lease, and what appends, markers and its close do.

A Log, its writers and its transactions all stand on one of these, and it lives as long as any of them: when the last
one is dropped without a close, it closes itself.  Knows nothing of reading, or of what a caller may give as a record.

Which transactions are open is kept here, for a close and a read must end those that nobody else will end.  Of a
transaction it knows what `PartitionTransaction` says.  `ending_transactions` is held while one is committed or
aborted, and is taken before the engine's lock.  Thread-safe.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import BatchMaker
from kafkalog._face.compaction import PartitionCleaning
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory as directories
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException


class PartitionTransaction(Protocol):
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
        self.sync_appends = sync_appends
        # By transactional id, kept by Transaction; a block that an interrupt came out of is nobody's to end.
        self.live_transactions: weakref.WeakValueDictionary[str, PartitionTransaction] = weakref.WeakValueDictionary()
        self.held_transactions: set[PartitionTransaction] = set()  # those begun by hand
        self.begun_transactions: set[int] = set()  # producer ids; kept by Transaction
        self.ending_transactions = threading.RLock()
        self.writer_guards = {}

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

    def refusal(self) -> IllegalStateException:
        return self.life.refusal(f"{self.topic_partition} of {self.log_dir}")

    def checkpoint(self) -> None:
        """The recovery point and the start go to disk: what shrank stays so after a crash."""
        engine = self.engine
        self.lease.checkpoint(lambda: engine.recovery_point, lambda: engine.log_start_offset_to_checkpoint)

    # --- transactions ------------------------------------------------------------------------------

    def abort_begun(self, *, but: Iterable[PartitionTransaction] = ()) -> None:
        """Abort what was begun here and nobody ended or will end, whatever interrupted that; of `but` somebody will."""
        if self.begun_transactions:
            with self.ending_transactions:
                self._abort_begun(but)

    def _abort_begun(self, but: Iterable[PartitionTransaction]) -> None:
        alive = {transaction.producer_id for transaction in list(but) if transaction.active}
        for producer_id in self.begun_transactions - alive:
            entry = self.engine.producer_state_manager.last_entry(producer_id)
            if entry is not None and entry.current_txn_first_offset is not None:
                self.write_marker(producer_id, max(entry.producer_epoch, 0), ControlRecordType.ABORT)
            self.begun_transactions.discard(producer_id)
        for transaction in list(self.live_transactions.values()):
            if transaction.producer_id not in alive:
                transaction.cut_short()
