"""A partition that this process opened alone: its lease of the directory, and the steps of its close.

A Partition, its writers and its transactions all use one OpenPartition, which exists as long as any of them. If the
last one is dropped without a close, its files are released, and the next open recovers the partition. The part that it
shares with a store's partition is in `StorePartition`. Nothing moves it, and its transactions use the directory's
coordinators. Thread-safe.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog._face.coordinators import Coordinators
from kafkalog._face.directory_coordinators import DirectoryCoordinators, PartitionHome, coordinators_of
from kafkalog._face.store_partition import StorePartition, TransactionOfPartition
from kafkalog._face.transactional_ids import FIRST_STORE_PRODUCER_ID
from kafkalog._face.writer import FIRST_PRODUCER_ID
from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.files import Clock
from kafkalog.engine.files.dropped import let_go_later
from kafkalog.engine.files.failure import full_at_close
from kafkalog.engine.files.left_open import told_at_exit
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import CLEANER_OFFSET_CHECKPOINT_FILE
from kafkalog.engine.host import directory as directories
from kafkalog.engine.log.engine_source import EngineSource
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import CorruptRecordException, IllegalStateException, KafkalogError
from kafkalog.transaction import Transaction

if TYPE_CHECKING:
    from typing import Unpack

    from kafkalog.config import CleanerConfig
    from kafkalog.engine.cleaner.passes import CompactionStats, CompactOptions


class OpenPartition(StorePartition):
    """Created by `open_log`, which passes the lease; ended by `close`."""

    size_hint = "config={'max.message.bytes': ...} of open_log raises the limit"
    policy_hint = "config={'cleanup.policy': 'compact'} of open_log makes each key's last record replace the others"

    def __init__(
        self,
        engine: UnifiedLog,
        lease: directories.Lease,
        clock: Clock,
        *,
        compression: str | None,
        sync_appends: bool,
    ) -> None:
        self.lease = lease
        told_at_exit(self)
        self._is_closing = False  # a thread inside a transaction gets the error of a closed partition
        super().__init__(
            lease.directory.manager, engine, lease.life, clock, compression=compression, sync_appends=sync_appends
        )

    # --- reading -----------------------------------------------------------------------------------

    def source(self) -> EngineSource:
        return EngineSource(self.topic_partition, self.engine, self.life)

    # --- transactions ------------------------------------------------------------------------------

    def transaction(self, transactional_id: str, timeout_ms: int) -> TransactionOfPartition:
        self.usable()
        home = PartitionHome(self, self.coordinators())
        return Transaction(home, self.topic_partition, transactional_id, timeout_ms)

    def coordinators(self) -> DirectoryCoordinators:
        """Returns the coordinators of its directory. Errors as `coordinators_of`."""
        return coordinators_of(self.lease, syncs=self.sync_appends)

    def end_left(self, *, cuts_nothing: bool) -> None:
        """Ends the transactions that a crashed process left undecided, after an open that found some. If one cannot be
        ended, a warning is logged and it stays open for read_committed readers. `cuts_nothing`: CorruptRecordException
        if a coordinator's log is damaged."""
        try:
            shared = self.coordinators()
            shared.coordinators.end_left()
            self._end_those_that_nobody_knows(shared.coordinators)
        except KafkalogError as error:
            if cuts_nothing and isinstance(error, CorruptRecordException):
                raise
            Lines("kafkalog.coordinator", self.log_dir).warning(
                "transactions of %s that a crash left open are still open", self.topic_partition, exc_info=True
            )

    def _end_those_that_nobody_knows(self, coordinators: Coordinators) -> None:
        """Aborts transactions that no coordinator will ever end. These are transactions of earlier releases, whose
        producer ids are made of names, and those of a directory that was copied here alone. Transactions under a
        broker's producer ids are left. If partitions of `__transaction_state` are missing, they may know more."""
        known = coordinators.producers_in(self.topic_partition)
        first = FIRST_PRODUCER_ID if known is None else FIRST_STORE_PRODUCER_ID
        log, now_ms = UnifiedStateLog(self.engine, syncs=self.sync_appends), self.clock.milliseconds()
        for entry in list(self.engine.producer_state_manager.active_producers.values()):
            is_known = known is not None and known.get(entry.producer_id, -1) >= entry.producer_epoch
            if entry.producer_id >= first and entry.current_txn_first_offset is not None and not is_known:
                epoch = max(entry.producer_epoch, 0)
                log.append_marker(TransactionMarker(entry.producer_id, epoch, ControlRecordType.ABORT, 0, 0), now_ms)
        log.flush()

    def flush_coordinators(self) -> None:
        self.check_open()
        tenant = self._tenant()
        if tenant is not None:
            tenant.coordinators.flush_logs()

    # --- shrinking ---------------------------------------------------------------------------------

    def compact(
        self, config: CleanerConfig, *, rolls: bool = False, **options: Unpack[CompactOptions]
    ) -> CompactionStats:
        """Compacts the partition. CorruptCheckpointException if the cleaner's checkpoint cannot be read: a pass would
        write it again without the lines of other partitions."""
        self.usable()
        self.lease.line(CLEANER_OFFSET_CHECKPOINT_FILE)
        return super().compact(config, rolls=rolls, **options)

    # --- lifetime ----------------------------------------------------------------------------------

    def moved_from(self, engine: UnifiedLog) -> UnifiedLog | None:
        """Returns None: nothing moves it."""
        return None

    def check_open(self) -> None:
        if self._is_closing or not self.life.live:
            raise self.refusal()

    def refusal(self) -> IllegalStateException:
        return self.life.refusal(f"{self.topic_partition} of {self.log_dir}")

    def close(self) -> None:
        """Closes it, as `Partition.close` says."""
        if self.life.live:  # else closed, or of the parent process
            if self.engine.lock.is_mine():
                raise self.engine.is_inside()  # and the scheduler's thread may be waiting for it
            tenant = self._tenant()
            if tenant is not None:
                tenant.coordinators.check_outside()
            with self._manager.pause(self.topic_partition) as pause:
                pause.begin()
                with (
                    self.lease.closing,
                    full_at_close(f"{self.topic_partition} of {self.log_dir}", "the next open_log"),
                ):
                    self._close()

    def _tenant(self) -> DirectoryCoordinators | None:
        """Returns the directory's coordinators, if they were created."""
        found = self.lease.directory.tenant
        assert found is None or isinstance(found, DirectoryCoordinators), found
        return found

    def _close(self) -> None:
        if not self.life.live:
            return
        engine, self._is_closing = self.engine, True
        try:
            tenant = self._tenant()
            if tenant is not None and not engine.local_log.is_closed:
                tenant.coordinators.end_of(self.topic_partition)
            if not engine.shut_down():
                self.lease.give_up()
                return
            self.lease.leave(clean=True)
        except BaseException:
            self.lease.give_up()  # a failed close must not keep the directory
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

    def left_open(self, deadline_s: float) -> None:
        """Warns at the end of the process, as `LeftOpen` says. It holds nothing that was not appended."""
        if not self.lease.life.live:
            return
        where = f", {self.lease.where}," if self.lease.where else ""
        warnings.warn(
            f"the partition {self.topic_partition} of {self.log_dir!r}{where} was never closed; use it as `with "
            "kafkalog.open_log(...) as log:`, or call its close(): the next open has to recover it",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        """The repr of the Partition that the user knows."""
        return f"<Partition {self.topic_partition} of {self.log_dir!r}, {'open' if self.life.live else 'closed'}>"
