"""A log directory of which this process opens single partitions, all by one LogManager, which loads on demand.

Whoever opens a partition has a `Lease` of it; the leases of a directory share its manager through a table by real path.
`enter` is the one way in and `Lease.leave` the one way out.  The first lease makes the manager, which takes the lock;
the last one shuts it down, which writes checkpoints and the marker where everything went well.  Whoever enters
meanwhile waits, and then holds the directory anew.  A lease may be of a partition without a log, for who works on its
files himself, or has others do that.  Thread-safe.

An interrupt may come between any two steps.  So nothing here is owned by a count: the directory lives by its leases,
and a lease by whoever holds it.  One that is forgotten is left as a crash leaves it; every step out may be done again.
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
_TABLE_LOCK = threading.RLock()  # guards _TABLE; nothing that waits or touches the disk is done inside
held_over_forks(_TABLE_LOCK)

# A log directory's life; GIVEN_BACK is for ever, the next to enter makes another object.
_NEW, _HELD, _GIVEN_BACK, _FORKED = "new", "held", "given back", "forked"
SETTINGS = ManagerSettings(
    producers=ProducerSettings(ProducerStateManagerConfig(LONG_MAX, False)),
    maintenance=False,
    load="on demand",
    keeps_house=False,
)


def _nobody() -> None:
    """As the weak reference of a lease that was forgotten."""


class Lease:
    """The right to one partition of a directory, until `leave`; made by `enter`.

    `recovery_point`: from where the log is not trusted; `log_start_offset`: where it starts; `clean`: whether its last
    close was.  `closing` is held by whoever closes the log; `life` says whether it is open.
    """

    def __init__(self, directory: LogDirectory, partition: TopicPartition) -> None:
        self.directory = directory
        self.partition = partition
        self.life = Life()
        self.where = opened_at()
        self.closing = threading.RLock()
        self._is_clean: bool | None = None  # how it was left; the first word counts
        self.log_is_closed = False  # when it was left: others may have opened it since
        waiting = directory.manager.registry.waiting(partition)
        self.recovery_point = (waiting and waiting.recovery_point) or 0
        self.log_start_offset = (waiting and waiting.log_start_offset) or 0
        self.clean = directory.had_clean if waiting is None else waiting.clean

    def load(self, opening: Opening) -> UnifiedLog:
        """Opens the partition's log, made where it is missing.  Errors as `LogManager.get_or_create_log`."""
        with self.directory.guard:
            self.check()
            self.directory.manager.lent.discard(self.partition)
            return self.directory.manager.open_log(self.partition, opening)

    def check(self) -> None:
        """Under the directory's guard.  IllegalStateException once the lease is over: the files are another's then."""
        if not self.life.live:
            raise self.life.refusal(f"{self.partition} of {self.directory.path}")

    def checkpoint(self) -> None:
        """The log's recovery point and start go to the disk.  KafkaStorageException where it refuses them."""
        with self.directory.guard:
            self.check()
            self.directory.manager.checkpoint_now(self.directory.path)

    def set_line(self, name: str, offset: int | None) -> None:
        """Write the partition's line of the checkpoint of that name, others kept; None takes it away.  For who holds a
        partition that has no log open; a line of the cleaner's may be set of one that has.

        CorruptCheckpointException where the file cannot be read: writing it anew would take the others' lines;
        IllegalStateException once the lease is over.
        """
        with self.directory.guard:
            self.check()
            self.directory.manager.set_line(self.directory.path, name, self.partition, offset)

    def line(self, name: str) -> int | None:
        """The partition's line of the checkpoint of that name; None without one.  CorruptCheckpointException;
        KafkaStorageException, and the directory is offline, where the disk refuses."""
        with self.directory.guard:
            self.check()
            return self.directory.held.line(name, self.partition)

    def take_topic_config(self, log_dir: str) -> bool:
        """Take the settings of the partition's topic over from another directory, where this one has none; whether it
        was.  As `topic_configs.take_over`; IllegalStateException once the lease is over."""
        directory = self.directory
        with directory.guard:
            self.check()
            return take_over(log_dir, directory.path, self.partition.topic, directory.files)

    def leave(self, *, clean: bool) -> None:
        """Whoever held the partition is done, with a log that is closed, and says whether all went well; the last one
        out gives the directory back.

        May be called again: it does nothing, or the rest of what was interrupted.  KafkaStorageException where the
        disk refuses checkpoints, or the marker; OSError.
        """
        if not self.life.live:  # also in a forked child, where it ends by itself
            return
        with self.directory.guard:
            if self._is_clean is None:
                self._is_clean = clean
            self.directory.leave(self, clean=self._is_clean)

    def give_up(self) -> None:
        """Leave, not cleanly; what fails on the way is only logged."""
        try:
            self.leave(clean=False)
        except (KafkalogError, OSError):
            self.directory.forget(self)


class Tenant(Protocol):
    """What lives on a directory as long as anybody holds a partition of it, and is no partition."""

    def end(self) -> None:
        """Everybody leaves in good order: what it has in the logs is ended now, while they can be opened.  May be
        called again."""

    def let_go(self) -> None:
        """The directory is not ours any more.  Writes nothing; may be called again."""


class LogDirectory:
    """Made by `enter`, never directly.  `tenant` is set with `guard` held, by whoever makes one."""

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
        """KafkaStorageException once its disk has failed."""
        return self.manager.directories.must(self.path)

    def disown(self) -> None:
        """In a forked child: the lock file's lock lets go by itself; the rest is not ours to touch."""
        self.guard = threading.RLock()
        self._state = _FORKED
        self._leases.clear()
        self.tenant = None

    def __del__(self) -> None:
        if self._state is _HELD:  # its leases were forgotten: each owner has warned
            if self.tenant is not None:
                self.tenant.let_go()
            let_go_later(self.manager.abandon)

    def enter(self, partition: TopicPartition) -> Lease | None:
        """A lease; None when the directory was given back meanwhile."""
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
                if self.manager.registry.get(partition) is not None:  # for the end of a transaction
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
        self.manager = LogManager.__new__(LogManager)  # here before it holds anything: an interrupt may come behind
        LogManager.__init__(
            self.manager, [self.path], SETTINGS, scheduler=self._scheduler, clock=self._clock, files=self.files,
            topic_configs=FixedTopicConfigs({}), take_over=True,  # whoever opens a log says its settings
        )  # fmt: skip
        self.manager.startup()
        self.had_clean = self.manager.had_clean_shutdown(self.path)
        self._state = _HELD

    def _reclaim(self) -> None:
        """Partitions whose lease was forgotten are as a crash leaves them."""
        for partition, lease in list(self._leases.items()):
            if lease() is None:
                self.manager.close_log(partition, clean=False)
                self._drop(partition)

    def leave(self, lease: Lease, *, clean: bool) -> None:
        """For `Lease.leave`."""
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
        """What could not leave: its log is let go of by whoever comes or leaves next; with no other one all is."""
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
        """Whether a partition of a topic that nobody has opened yet was not closed cleanly."""
        waiting = self.manager.registry.waiting_of(topic)
        return not all(each.clean for each in waiting.values())

    def _recover_the_rest(self) -> None:
        """Partitions of Kafka's own topics, which nobody opens by name.  Where only these were not closed cleanly they
        are recovered now, and the directory is clean again."""
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

    # --- others who work for us --------------------------------------------------------------------

    def share(self, token: bytes) -> None:
        """Let guests who know the token work on partitions of the directory, in other processes, while everyone else is
        kept out.  Whose partition a guest works on is for the caller to say, who has a lease of it.  OSError."""
        with self.guard:
            self.held.share(token)

    def take_back(self) -> bool:
        """Hold the directory alone again, before leases are left; False while guests are at work.  OSError."""
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
    """The right to open a partition; the first one takes the directory for this process.

    LogDirLockedException when another process has it; UnknownTopicOrPartitionException when it does not exist and
    `create` is off; IllegalArgumentException when this process has the partition open already, when `path` is a
    partition's own folder, or when it is a folder of something else; KafkaStorageException when the directory cannot
    be read or written, and nothing is held then.
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
            held._give_back()  # where an interrupt came before it
    except OSError as error:
        if isinstance(error, KafkalogError):
            raise
        raise KafkaStorageException.because_of(error, f"cannot open the log directory {path}") from error


def _after_fork_in_child() -> None:
    _TABLE.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
