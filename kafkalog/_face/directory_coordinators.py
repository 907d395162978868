"""The coordinators of a directory of which this process opens single partitions, for their transactions.

A store has its coordinators from the start. Here they are created for the first transaction, or for an open that finds
an undecided one. Then decided transactions are completed, and those that nobody can continue are aborted, in every
partition of the directory. All open partitions share the coordinators through their directory (`Tenant`); the last one
to close ends them. A background task handles overdue transactions.

Locks: the directory's guard is held while the coordinators are created, and a caller that requests them must not hold a
log's lock. Thread-safe.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafkalog._face.catalog import Catalog
from kafkalog._face.coordinators import EXPIRY_CHECK_MS, OVERDUE_CHECK_MS, Coordinators
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.engine.coordinator.state_log import refuse_reentry
from kafkalog.engine.files.processes import Life
from kafkalog.engine.host.changes import BackgroundTasks
from kafkalog.errors import IllegalStateException, UnknownTopicOrPartitionException

if TYPE_CHECKING:
    from kafkalog._face.store_partition import StorePartition
    from kafkalog._face.topic_info import TopicInfo
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.host.directory import Lease, LogDirectory
    from kafkalog.engine.host.registry import LogRegistry
    from kafkalog.engine.log.unified_log import UnifiedLog


COMPACTED_BYTES = 4 << 20


class DirectoryCoordinators:
    """The `Tenant` of a directory. Created by `coordinators_of`."""

    def __init__(self, directory: LogDirectory, *, syncs: bool) -> None:
        manager = directory.manager
        manager.keep_topics()
        self.life = Life()
        self.is_started = False
        self.catalog = Catalog(manager, self.life, TopicSettings([directory.path], files=directory.files))
        self.coordinators = Coordinators(
            manager,
            self.catalog,
            self.life,
            manager.clock,
            syncs=syncs,
            log_to_end=partial(_log_to_end, manager.registry, self.catalog),
            check_making=partial(_check_alone, self.catalog, directory.path),
        )
        self._tasks = BackgroundTasks(manager.scheduler, self._is_live)

    def start(self) -> None:
        """Settles what was left behind; errors as `Coordinators.start`. May be called again."""
        if not self.is_started:
            self.coordinators.start()
            self._tasks.every("transaction-abort", self.end_overdue, OVERDUE_CHECK_MS, OVERDUE_CHECK_MS)
            self._tasks.every("coordinator-expiry", self.forget_expired, EXPIRY_CHECK_MS, EXPIRY_CHECK_MS)
            self.is_started = True

    def _is_live(self) -> bool:
        return self.life.live

    def end_overdue(self) -> None:
        self.coordinators.end_overdue()

    def forget_expired(self) -> None:
        self.coordinators.forget_expired()

    def end(self) -> None:
        """Ends the coordinators, as `Tenant.end`. No cleaner runs here, so a state log that has grown is compacted
        now."""
        self._tasks.cancel()
        if self.is_started:
            self.coordinators.end()
            self.coordinators.compact_logs(COMPACTED_BYTES)

    def let_go(self) -> None:
        """Releases everything, as `Tenant.let_go`."""
        self.life.end()
        self._tasks.cancel()


def _check_alone(catalog: Catalog, log_dir: str) -> None:
    """Raises IllegalStateException if a directory is one of several of a store. Another one may have the partition of
    `__transaction_state` that is about to be created, and two of them would contradict each other."""
    elsewhere = catalog.partly_elsewhere()
    if elsewhere is not None:
        raise IllegalStateException(
            f"{log_dir} is one of several directories of a store: it lacks partitions of {elsewhere!r}, and "
            "one of the directories keeps the transactions of all",
            hint="use kafkalog.open([...]) with all directories for transactions",
        )


def _log_to_end(registry: LogRegistry, catalog: Catalog, partition: TopicPartition) -> UnifiedLog | None:
    """Returns a partition's log for the end of a transaction. An open log counts, even if its topic is unknown."""
    log = registry.get(partition)
    return catalog.log_to_end(partition) if log is None or log.local_log.is_closed else log


def coordinators_of(lease: Lease, *, syncs: bool) -> DirectoryCoordinators:
    """Returns the coordinators of a leased partition's directory, and creates them at the first call. `syncs`: the
    caller was promised that writes are on the disk.

    IllegalStateException after the lease has ended, or in a thread that is changing the directory. Errors as
    `Coordinators.start`, and as the reading of the directory's topic settings.
    """
    directory = lease.directory
    found = directory.tenant
    if not (isinstance(found, DirectoryCoordinators) and found.is_started):
        refuse_reentry(directory.guard, f"the directory {directory.path}")
        with directory.guard:
            lease.check()
            found = directory.tenant
            if found is None:
                found = directory.tenant = DirectoryCoordinators(directory, syncs=syncs)
            assert isinstance(found, DirectoryCoordinators), found
            found.start()
    if syncs:
        found.coordinators.sync_from_now_on()
    return found


class PartitionHome:
    """The `TransactionHome` of one open partition. It is used as long as any of the partition's transactions."""

    def __init__(self, own: StorePartition, shared: DirectoryCoordinators) -> None:
        self._own = own
        self._catalog = shared.catalog
        self.coordinators = shared.coordinators
        self.life = own.life
        self.clock = own.clock

    def check_open(self) -> None:
        """Raises IllegalStateException if the partition is closed, or of another process."""
        self._own.check_open()

    def partition(self, partition: TopicPartition) -> StorePartition:
        """Returns the partition. KafkaStorageException if its directory has failed."""
        assert partition == self._own.topic_partition, partition
        self._own.engine.context.check_online()
        return self._own

    def joins(self, topic: str) -> None:
        """Does nothing: the partition is here."""

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """As `Home.offsets`."""
        self.check_open()
        return self.coordinators.offsets(group, create=create)

    def info(self, topic: str) -> TopicInfo:
        """Returns the topic's description. UnknownTopicOrPartitionException if it does not exist."""
        self.check_open()
        return self._catalog.must(topic)

    def check_partition(self, partition: TopicPartition) -> None:
        """Raises UnknownTopicOrPartitionException if the partition does not exist."""
        if not 0 <= partition.partition < self.info(partition.topic).partitions:
            raise UnknownTopicOrPartitionException(f"{self._own.log_dir} has no partition {partition}")
