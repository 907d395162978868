"""A log directory of which this process opens single partitions, all through one LogManager that loads on demand.

Each user of a partition holds a `Lease` of it.  The leases of a directory share its manager through a table keyed by
real path.  `enter` is the only way in and `Lease.leave` the only way out.  The first lease creates the manager, which
acquires the lock file.  The last lease shuts the manager down, which writes the checkpoints, and the clean-shutdown
marker if all went well.  A thread that enters meanwhile waits, and then acquires the directory again.  A lease may
also cover a partition that has no log open, for a caller that works on the partition's files, or has another process
work on them.  Thread-safe.

An interrupt may come between any two steps, so nothing here depends on a counter that the code keeps.  A directory
exists as long as its leases, and a lease as long as its holder.  A lease that is dropped without `leave`
leaves its partition as a crash would.  Every step of leaving may be repeated.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from kafkalog._limits import LONG_MAX
from kafkalog.config import ProducerStateManagerConfig
from kafkalog.engine.files import Clock, Files, Scheduler
from kafkalog.engine.files.dropped import let_go_later, wait_for_dropped
from kafkalog.engine.files.left_open import opened_at
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life, belongs_here, held_over_forks, opened_elsewhere
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.host import log_dirs
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.log_contexts import Opening
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.topic_configs import FixedTopicConfigs, take_over
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException, KafkalogError, KafkaStorageException

_TABLE: weakref.WeakValueDictionary[tuple[int, str], LogDirectory] = weakref.WeakValueDictionary()
_TABLE_LOCK = threading.RLock()  # guards _TABLE; code that waits or touches the disk runs outside of it
held_over_forks(_TABLE_LOCK)

# The states of a LogDirectory.  GIVEN_BACK is final: the next `enter` creates another object.
_NEW, _HELD, _GIVEN_BACK, _FORKED = "new", "held", "given back", "forked"
SETTINGS = ManagerSettings(
    producers=ProducerSettings(ProducerStateManagerConfig(LONG_MAX, False)),
    maintenance=False,
    load="on demand",
    keeps_house=False,
)


def _nobody() -> None:
    """Stands in for the weak reference of a lease that was forgotten."""


class Lease:
    """The right to one partition of a directory, from `enter` until `leave`.

    `recovery_point`: the offset from which the log must be recovered.  `log_start_offset`: the offset at which it
    starts.  `clean`: whether its last close was clean.  `closing` is a lock that is held while the log is closed;
    `life` tells whether the lease is still valid.
    """

    def __init__(self, directory: LogDirectory, partition: TopicPartition) -> None:
        self.directory = directory
        self.partition = partition
        self.life = Life()
        self.where = opened_at()
        self.closing = threading.RLock()
        self._is_clean: bool | None = None  # as the first call of `leave` said
        self.log_is_closed = False  # set by `leave`: afterwards another lease may open the log
        waiting = directory.manager.registry.waiting(partition)
        self.recovery_point = (waiting and waiting.recovery_point) or 0
        self.log_start_offset = (waiting and waiting.log_start_offset) or 0
        self.clean = directory.had_clean if waiting is None else waiting.clean

    def load(self, opening: Opening) -> UnifiedLog:
        """Opens the partition's log, or creates it if it is missing.  Raises as `LogManager.get_or_create_log`."""
        with self.directory.guard:
            self.check()
            self.directory.manager.lent.discard(self.partition)
            return self.directory.manager.open_log(self.partition, opening)

    def check(self) -> None:
        """Raises IllegalStateException once the lease is over, because the files may be another holder's then.

        The caller holds the directory's guard.
        """
        if not self.life.live:
            raise self.life.refusal(f"{self.partition} of {self.directory.path}")

    def checkpoint(self) -> None:
        """Writes the log's recovery point and log start offset.  KafkaStorageException if the disk refuses them."""
        with self.directory.guard:
            self.check()
            self.directory.manager.checkpoint_now(self.directory.path)

    def set_line(self, name: str, offset: int | None) -> None:
        """Writes the partition's line of the checkpoint `name` and keeps the other lines; None removes the line.

        The partition must have no log open, except for a line of the cleaner's checkpoint.  Raises
        CorruptCheckpointException if the file cannot be read, because rewriting it would lose the other lines, and
        IllegalStateException once the lease is over.
        """
        with self.directory.guard:
            self.check()
            self.directory.manager.set_line(self.directory.path, name, self.partition, offset)

    def line(self, name: str) -> int | None:
        """Returns the partition's line of the checkpoint `name`; None if there is none.

        Raises CorruptCheckpointException.  If the disk fails, raises KafkaStorageException, and the directory is
        offline.
        """
        with self.directory.guard:
            self.check()
            return self.directory.held.line(name, self.partition)

    def take_topic_config(self, log_dir: str) -> bool:
        """Copies the settings of the partition's topic from another directory if this directory has none.

        Returns whether it copied them.  Raises as `topic_configs.take_over`; IllegalStateException once the lease is
        over.
        """
        directory = self.directory
        with directory.guard:
            self.check()
            return take_over(log_dir, directory.path, self.partition.topic, directory.files)

    def leave(self, *, clean: bool) -> None:
        """Ends the lease after its log was closed.  `clean` tells whether all went well.

        The last lease to leave gives the directory back.  May be called again: it does nothing, or the rest of a call
        that was interrupted.  Raises KafkaStorageException if the disk refuses the checkpoints or the marker, and
        OSError.
        """
        if not self.life.live:  # also in a forked child, where the lease ends automatically
            return
        with self.directory.guard:
            if self._is_clean is None:
                self._is_clean = clean
            self.directory.leave(self, clean=self._is_clean)

    def give_up(self) -> None:
        """Leaves, not cleanly.  Errors are only logged."""
        try:
            self.leave(clean=False)
        except (KafkalogError, OSError):
            self.directory.forget(self)


class Tenant(Protocol):
    """An object, other than a partition, that exists on a directory as long as it has a lease."""

    def end(self) -> None:
        """Ends what the tenant keeps in the logs, while they can still be opened: all leases have left cleanly.

        May be called again.
        """

    def let_go(self) -> None:
        """Releases the directory, which no longer belongs to this process.  Writes nothing; may be called again."""


class LogDirectory:
    """Created by `enter`, never directly.  The code that creates a tenant sets `tenant` with `guard` held."""

    tenant: Tenant | None = None

    def __init__(self, path: str, files: Files, clock: Clock, scheduler: Scheduler | None) -> None:
        self.path = path
        self.files = files
        self.pid = os.getpid()
        self.guard = threading.RLock()
        self.had_clean = False
        self._clock = clock
        self._scheduler = scheduler
        self._state = _NEW  # guarded by guard, like all below
        self._leases: dict[TopicPartition, Callable[[], Lease | None]] = {}
        belongs_here(self)

    manager: LogManager

    @property
    def scheduler(self) -> Scheduler:
        return self.manager.scheduler

    @property
    def held(self) -> HeldDirectory:
        """Raises KafkaStorageException once the directory's disk has failed."""
        return self.manager.directories.must(self.path)

    def disown(self) -> None:
        """Resets the object in a forked child, which must not touch the files.  The lock file stays the parent's."""
        self.guard = threading.RLock()
        self._state = _FORKED
        self._leases.clear()
        self.tenant = None

    def __del__(self) -> None:
        if self._state is _HELD:  # its leases were dropped without `leave`: each owner has warned
            if self.tenant is not None:
                self.tenant.let_go()
            let_go_later(self.manager.abandon)

    def enter(self, partition: TopicPartition) -> Lease | None:
        """Returns a lease; None if the directory was given back meanwhile."""
        with self.guard:
            if self._state is _FORKED:
                raise opened_elsewhere(self.path, self.pid)
            if self._state is _GIVEN_BACK:
                return None
            self._reclaim()
            if partition in self._leases:
                other = self._leases[partition]()
                where = "" if other is None else f" ({other.where})"
                raise IllegalArgumentException(
                    f"{partition} of {self.path} is open already in this process{where}",
                    hint="share that Partition object, or close it",
                )
            try:
                if self._state is _NEW:
                    self._take()
                if self.manager.registry.get(partition) is not None:  # it was opened to end a transaction
                    self.manager.close_log(partition, clean=True)
                self.manager.lent.add(partition)
                lease = Lease(self, partition)
                self._leases[partition] = weakref.ref(lease)
                return lease
            except BaseException:
                if not self._leases:
                    self._abandon()
                raise

    def _take(self) -> None:
        self.manager = LogManager.__new__(LogManager)  # assigned before it holds anything: an interrupt may come next
        LogManager.__init__(
            self.manager, [self.path], SETTINGS, scheduler=self._scheduler, clock=self._clock, files=self.files,
            topic_configs=FixedTopicConfigs({}), take_over=True,  # each caller that opens a log gives its settings
        )  # fmt: skip
        self.manager.startup()
        self.had_clean = self.manager.had_clean_shutdown(self.path)
        self._state = _HELD

    def _reclaim(self) -> None:
        """Closes the partitions whose lease was forgotten, as a crash would leave them."""
        for partition, lease in list(self._leases.items()):
            if lease() is None:
                self.manager.close_log(partition, clean=False)
                self._drop(partition)

    def leave(self, lease: Lease, *, clean: bool) -> None:
        """Does the work of `Lease.leave`."""
        partition = lease.partition
        found = self._leases.get(partition)
        if self._state is not _HELD or found is None or found() is not lease:
            lease.life.end()
            return
        try:
            if not lease.log_is_closed:
                self.manager.close_log(partition, clean=clean)
                lease.log_is_closed = True
            if all(each() in (None, lease) for each in self._leases.values()):
                self._reclaim()
                if clean:
                    if self.tenant is not None:
                        self.tenant.end()
                    self._recover_the_rest()
                self.manager.shutdown()
                self._give_back()
        except (KafkalogError, OSError):
            self.forget(lease)
            raise
        self._drop(partition)
        lease.life.end()

    def _drop(self, partition: TopicPartition) -> None:
        self._leases.pop(partition, None)
        self.manager.lent.discard(partition)

    def forget(self, lease: Lease) -> None:
        """Drops a lease that could not leave.

        The next lease that enters or leaves closes its log.  If there is no other lease, the whole directory is
        released.
        """
        with self.guard:
            found = self._leases.get(lease.partition)
            if found is not None and found() is lease:
                if all(each() in (None, lease) for each in self._leases.values()):
                    self._abandon()
                    self._drop(lease.partition)
                else:
                    self._leases[lease.partition] = _nobody
            lease.life.end()

    def has_unclean(self, topic: str) -> bool:
        """Returns whether a partition of the topic that has not been opened yet was not closed cleanly."""
        waiting = self.manager.registry.waiting_of(topic)
        return not all(each.clean for each in waiting.values())

    def _recover_the_rest(self) -> None:
        """Recovers unclean partitions of Kafka's internal topics, which no caller opens by name.

        Does so only if no other partition is unclean; then the directory is clean again.
        """
        waiting = self.manager.registry.waiting_in(self.path)
        unclean = [partition for partition, each in waiting.items() if not each.clean]
        if all(partition.topic in INTERNAL_TOPICS for partition in unclean):
            for partition in unclean:
                try:
                    self.manager.get_log(partition)
                except KafkalogError as error:  # the directory stays unclean
                    Lines("kafkalog.manager", self.path).warning("%s is not recovered: %s", partition, error)

    def _abandon(self) -> None:
        if hasattr(self, "manager") and hasattr(self.manager, "directories"):
            self.manager.abandon()
        self._give_back()

    def _give_back(self) -> None:
        self._state = _GIVEN_BACK
        if self.tenant is not None:
            self.tenant.let_go()
        with _TABLE_LOCK:
            key = (id(self.files), self.path)
            if _TABLE.get(key) is self:
                del _TABLE[key]

    # --- guests: other processes that work on partitions here --------------------------------------

    def share(self, token: bytes) -> None:
        """Admits guests, which are other processes that know the token, to partitions of the directory.

        All other processes stay locked out.  The caller, which has leases of the partitions, decides which guest works
        on which partition.  Raises OSError.
        """
        with self.guard:
            self.held.share(token)

    def take_back(self) -> bool:
        """Locks the directory for this process alone again, before leases are left.

        Returns False while guests are still active.  Raises OSError.
        """
        with self.guard:
            return self.held.take_back()


def enter(
    path: str,
    partition: TopicPartition,
    files: Files,
    clock: Clock,
    scheduler: Scheduler | None,
    *,
    create: bool,
) -> Lease:
    """Returns the right to open a partition.  The first lease acquires the directory for this process.

    After an error nothing is held.  Raises:

    - LogDirLockedException: another process has the directory.
    - UnknownTopicOrPartitionException: it does not exist and `create` is False.
    - IllegalArgumentException: this process already has the partition open, or `path` is a partition's directory, or
      belongs to another program.
    - KafkaStorageException: the directory cannot be read or written.
    """
    wait_for_dropped()
    try:
        log_dirs.prepare(path, files, create=create)
        log_dirs.refuse_foreign_partition(os.path.join(path, str(partition)), files)
        real = os.path.realpath(path)
        key = (id(files), real)
        while True:
            with _TABLE_LOCK:
                held = _TABLE.get(key)
                if held is None:
                    held = _TABLE[key] = LogDirectory(real, files, clock, scheduler)
            lease = held.enter(partition)
            if lease is not None:
                return lease
            held._give_back()  # an interrupt may have prevented it
    except OSError as error:
        if isinstance(error, KafkalogError):
            raise
        raise KafkaStorageException.because_of(error, f"cannot open the log directory {path}") from error


def _after_fork_in_child() -> None:
    _TABLE.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
