"""A log directory as this process holds it: one lock, one scheduler, one set of checkpoints for all its open logs.

Several logs of one directory share it through a table by real path.  `enter` is the one way in and `Lease.leave` the
one way out; each is one guarded step.  The first lease locks `.lock`, notes whether the last user closed cleanly and
removes `.kafka_cleanshutdown` before anything is written.  Only when the last log of this process was closed without
an error, and every other folder that a start loads is known to be clean too, is the marker written again: it speaks
for the whole directory, also for the copy of a move that was cut short.  Whoever enters meanwhile waits, and then holds
the directory anew.  Thread-safe.

An interrupt may come between any two steps.  So nothing here is owned by a count: the directory lives by its leases,
a lease by whoever opens the log, the lock file's lock by its descriptor.  A lease that is forgotten is left, not
cleanly; every step out may be done again.  A finalizer may run anywhere, also inside our own locks: there it only says
that there is something to do, and another thread, or the next to enter, does it (`finish_dropped`).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

from kafkalog.engine.files import Clock, Files, LogDirFailureChannel, Scheduler, ThreadScheduler
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life, belongs_here, held_over_forks, opened_elsewhere
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import log_dirs
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.loading import log_folders, look
from kafkalog.engine.host.topic_configs import take_over
from kafkalog.errors import IllegalArgumentException, KafkalogError, KafkaStorageException

LOGGER = "kafkalog.manager"

_TABLE: weakref.WeakValueDictionary[tuple[int, str], LogDirectory] = weakref.WeakValueDictionary()
_TABLE_LOCK = threading.RLock()  # guards _TABLE; nothing that waits or touches the disk is done inside
held_over_forks(_TABLE_LOCK)
_OCCUPIED: set[LogDirectory] = set()  # those with tenants live on: whoever finds a lease lost needs them

# A log directory's life; GIVEN_BACK is for ever, the next to enter makes another object.
_NEW, _HELD, _GIVEN_BACK, _FORKED = "new", "held", "given back", "forked"


class _Tenancy:
    """What a directory remembers of one open partition."""

    __slots__ = ("close_quietly", "closing", "directory", "life", "outcome", "partition")

    def __init__(self, directory: LogDirectory, partition: TopicPartition) -> None:
        self.directory = directory
        self.partition = partition
        self.life = Life()
        self.closing = threading.RLock()  # whoever closes the log, be it its owner or who finds it abandoned
        self.outcome: bool | None = None  # how it was left: clean or not; the first word counts
        self.close_quietly: Callable[[], object] | None = None  # lets go of the engine's files


class _Tenant(weakref.ref["Lease"]):
    """The directory's look at a lease.  When that is gone, C code alone puts it among the lost."""

    tenancy: _Tenancy | None = None  # until it is admitted


_LOST: deque[_Tenant] = deque()
_UNFINISHED: deque[Callable[[], object]] = deque()
_FINISHING = threading.RLock()


class Lease:
    """The right to one partition of a directory, until `leave`; made by `enter`.

    `recovery_point`: from where the log is not trusted; `log_start_offset`: where it starts; `clean`: whether its last
    close was.  `closing` is held by whoever closes the log; `life` says whether it is open.
    """

    __slots__ = ("__weakref__", "_tenancy", "clean", "has_owner", "log_start_offset", "recovery_point")

    def __init__(self, tenancy: _Tenancy, recovery_point: int, log_start_offset: int, clean: bool) -> None:
        self.has_owner = False  # set by what leaves it in its own finalizer
        self._tenancy = tenancy
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.clean = clean

    @property
    def directory(self) -> LogDirectory:
        return self._tenancy.directory

    @property
    def life(self) -> Life:
        return self._tenancy.life

    @property
    def closing(self) -> contextlib.AbstractContextManager[object]:
        return self._tenancy.closing

    def holds_files(self, close_quietly: Callable[[], object]) -> None:
        """What to call, should the lease be lost, before somebody else may open the partition."""
        self._tenancy.close_quietly = close_quietly

    def _check(self) -> None:
        """Under the directory's guard.  IllegalStateException once the lease is over: the files are another's then."""
        if not self.life.live:
            raise self.life.refusal(f"{self._tenancy.partition} of {self.directory.path}")

    def checkpoint(self, recovery_point: Callable[[], int], log_start: Callable[[], int | None] | None = None) -> None:
        """Write the partition's checkpoints: the start first, since raising it lifts the recovery point over what was
        never flushed.  IllegalStateException once the lease is over: the files are another's then."""
        directory, partition = self.directory, self._tenancy.partition
        with directory._guard:
            self._check()
            directory.checkpoint(partition, recovery_point, log_start)

    def set_line(self, name: str, offset: int | None) -> None:
        """Write the partition's line of the checkpoint of that name, or take it away: for who holds the partition, but
        has no log open.  As `LogDirectory.set_line`; IllegalStateException once the lease is over."""
        directory, partition = self.directory, self._tenancy.partition
        with directory._guard:
            self._check()
            directory.set_line(name, partition, offset)

    def line(self, name: str) -> int | None:
        """The partition's line of the checkpoint of that name.  As `LogDirectory.line`."""
        with self.directory._guard:
            self._check()
            return self.directory.line(name, self._tenancy.partition)

    def take_topic_config(self, log_dir: str) -> bool:
        """Take the settings of the partition's topic over from another directory, where this one has none; whether it
        was.  As `topic_configs.take_over`; IllegalStateException once the lease is over."""
        directory, partition = self.directory, self._tenancy.partition
        with directory._guard:
            self._check()
            return take_over(log_dir, directory.path, partition.topic, directory.files)

    def leave(self, *, clean: bool) -> None:
        """The log is closed, and whether all of it went well; the last one out gives the directory back.

        May be called again: it does nothing, or the rest of what was interrupted.  OSError of the marker.
        """
        self._tenancy.directory.leave(self._tenancy, clean=clean)

    def give_up(self) -> None:
        """Close what is open and leave, not cleanly; what fails on the way is only logged."""
        _abandon(self._tenancy)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        tenancy: _Tenancy | None = getattr(self, "_tenancy", None)
        if tenancy is None or not tenancy.life.live or self.has_owner or is_finalizing():
            return
        if may_finish_here():
            self.give_up()
        else:
            finish_later(functools.partial(_abandon, tenancy))


class LogDirectory:
    """Made by `enter`, never directly."""

    def __init__(self, path: str, files: Files, clock: Clock, scheduler: Scheduler | None) -> None:
        self.path = path
        self.files = files
        self.failure_channel = LogDirFailureChannel(outlives_shortages=True)
        self.pid = os.getpid()
        self._owns_scheduler = scheduler is None
        self.scheduler: Scheduler = ThreadScheduler(clock) if scheduler is None else scheduler
        self._guard = threading.RLock()
        self._state = _NEW  # guarded by _guard, like all below
        self._tenants: dict[TopicPartition, _Tenant] = {}
        # Opened since the directory was taken: what its marker said is over for them.
        self._opened: set[TopicPartition] = set()
        self._closed_clean: set[TopicPartition] = set()
        self._failed = False  # a log did not close cleanly
        self._held = HeldDirectory(path, files, self.failure_channel)
        self._holds = False
        self._marker_decided = False
        belongs_here(self)

    def disown(self) -> None:
        """In a forked child: the lock file's lock lets go by itself; the rest is not ours to touch."""
        self._guard = threading.RLock()
        self._state = _FORKED
        self._tenants.clear()

    def _check_process(self) -> None:
        if self._state is _FORKED:
            raise opened_elsewhere(self.path, self.pid)

    # --- in and out ----------------------------------------------------------------------------------

    def enter(self, partition: TopicPartition) -> Lease | None:
        """A lease; None when the directory was given back meanwhile."""
        with self._guard:
            self._check_process()
            if self._state is _GIVEN_BACK:
                self._let_go()
                return None
            if partition in self._tenants:
                raise IllegalArgumentException(
                    f"{partition} of {self.path} is open already in this process", hint="share that Partition object"
                )
            try:
                if self._state is _NEW:
                    self._take()
                return self._admit(partition)
            except BaseException:
                self._tenants.pop(partition, None)
                if not self._tenants:
                    with contextlib.suppress(KafkalogError, OSError):
                        self._give_back(clean=False)
                raise

    def _take(self) -> None:
        held = self._held
        held.lock()
        self._holds = True
        found = look(held, tolerant=True)
        self._had_clean = found.had_clean_shutdown or not found.folders
        if self._owns_scheduler:
            self.scheduler.startup()
        self._state = _HELD

    def _admit(self, partition: TopicPartition) -> Lease:
        recovery_points = self._held.recovery_points.read_or_empty()
        log_starts = self._held.log_starts.read_or_empty()
        clean = (self._had_clean and partition not in self._opened) or partition in self._closed_clean
        tenancy = _Tenancy(self, partition)
        lease = Lease(tenancy, recovery_points.get(partition, 0), log_starts.get(partition, 0), clean)
        tenant = _Tenant(lease, _LOST.append)
        tenant.tenancy = tenancy
        _OCCUPIED.add(self)
        self._tenants[partition] = tenant
        self._opened.add(partition)
        self._closed_clean.discard(partition)
        return lease

    def leave(self, tenancy: _Tenancy, *, clean: bool) -> None:
        """For `Lease.leave`."""
        if not tenancy.life.live:  # also in a forked child, where it ends by itself
            return
        with self._guard:
            tenant = self._tenants.get(tenancy.partition)
            if tenant is None or tenant.tenancy is not tenancy:
                tenancy.life.end()
                return
            if tenancy.outcome is None:
                tenancy.outcome = clean
            if tenancy.outcome:
                self._closed_clean.add(tenancy.partition)
            else:
                self._failed = True
            try:
                if len(self._tenants) == 1:
                    self._give_back(clean=True)
            finally:
                # Interrupted before the lock was let go, it is still ours to leave.
                if len(self._tenants) > 1 or not self._holds:
                    self._tenants.pop(tenancy.partition, None)
                    tenancy.life.end()

    def _give_back(self, *, clean: bool) -> None:
        """Every step may be done again.  Once the lock is let go the marker is another's."""
        try:
            if self._owns_scheduler:
                self.scheduler.shutdown()
            if clean and not self._marker_decided and self._state is not _GIVEN_BACK:
                self._write_marker()
        except (KafkalogError, OSError):
            self._let_go()
            raise
        self._let_go()

    def _all_clean(self) -> bool:
        """Of every folder that a start loads: `-future`, `-delete` and `-stray` ones nobody has closed here."""
        folders, _ = log_folders(self.path, self.files)
        return {str(partition) for partition in self._closed_clean}.issuperset(map(os.path.basename, folders))

    def _write_marker(self) -> None:
        all_clean = self._had_clean or self._all_clean()
        if all_clean and not self._failed and not self.failure_channel.has_offline_log_dir(self.path):
            self._held.marker.write()
        self._marker_decided = True

    def _let_go(self) -> None:
        self._state = _GIVEN_BACK
        self._held.unlock()
        with _TABLE_LOCK:
            key = (id(self.files), self.path)
            if _TABLE.get(key) is self:
                del _TABLE[key]
            _OCCUPIED.discard(self)
        self._holds = False  # the last step: until then there is something left to do

    # --- others who work for us --------------------------------------------------------------------

    def share(self, token: bytes) -> None:
        """Let guests who know the token work on partitions of the directory, in other processes, while everyone else is
        kept out.  Whose partition a guest works on is for the caller to say, who has a lease of it.  OSError."""
        with self._guard:
            self._check_process()
            self._held.share(token)

    def take_back(self) -> bool:
        """Hold the directory alone again, before leases are left; False while guests are at work.  OSError."""
        with self._guard:
            self._check_process()
            return self._held.take_back()

    # --- checkpoints -------------------------------------------------------------------------------

    def checkpoint(
        self,
        partition: TopicPartition,
        recovery_point: Callable[[], int],
        log_start: Callable[[], int | None] | None = None,
    ) -> None:
        """Write one partition's lines, others kept; a start of None removes its line.  What to write is asked for under
        the guard, so that of two who write the later one is right."""
        with self._guard:
            self._check_process()
            if log_start is not None:
                lines, start = self._held.log_starts.read_or_empty(), log_start()
                if lines.get(partition) != start:
                    if start is None:
                        del lines[partition]
                    else:
                        lines[partition] = start
                    self._held.write(self._held.log_starts, lines)
            lines = self._held.recovery_points.read_or_empty()
            lines[partition] = recovery_point()
            self._held.write(self._held.recovery_points, lines)

    def line(self, name: str, partition: TopicPartition) -> int | None:
        """A partition's line of the checkpoint of that name; None without one.

        CorruptCheckpointException; KafkaStorageException, and the directory is offline, where the disk refuses.
        """
        with self._guard:
            self._check_process()
            try:
                return self._read(name)[1].get(partition)
            except OSError as error:
                message = f"Error while reading checkpoint file {os.path.join(self.path, name)}"
                raise self.failure_channel.failed(self.path, message, error) from error

    def _read(self, name: str) -> tuple[OffsetCheckpointFile, dict[TopicPartition, int]]:
        checkpoint = OffsetCheckpointFile(os.path.join(self.path, name), self.files, create=False)
        return checkpoint, checkpoint.read() if self.files.exists(checkpoint.path) else {}

    def set_line(self, name: str, partition: TopicPartition, offset: int | None) -> None:
        """Write one partition's line of the checkpoint of that name, others kept; None takes it away.

        CorruptCheckpointException where the file cannot be read: writing it anew would take the others' lines.
        """
        with self._guard:
            self._check_process()
            checkpoint, lines = self._read(name)
            if lines.get(partition) == offset:
                return
            if offset is None:
                del lines[partition]
            else:
                lines[partition] = offset
            self._held.write(checkpoint, lines)


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
    finish_dropped()
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
    except OSError as error:
        if isinstance(error, KafkalogError):
            raise
        raise KafkaStorageException.because_of(error, f"cannot open the log directory {path}") from error


# --- leases that were dropped ------------------------------------------------------------------------------


def may_finish_here() -> bool:
    """For a finalizer: whether its thread can hold no lock of ours, so that a log may be closed in it right now.

    A lock of ours is held only inside our own code; a collector's run may call a finalizer from there.
    """
    frame = sys._getframe(1).f_back  # of the finalizer's caller
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_OUR_FLOORS):
            return False
        frame = frame.f_back
    return True


_OUR_FLOORS = (
    "kafkalog.engine.",
    "kafkalog.metrics.",
    "kafkalog._face.",
    "kafkalog.partition",
    "kafkalog.producer",
    "kafkalog.reader",
    "kafkalog.records",
    "kafkalog.store",
    "kafkalog.topic",
    "kafkalog.transaction",
)


def finish_later(close: Callable[[], object]) -> None:
    """Have `close`, which raises nothing, called by another thread, or by the next to enter a directory."""
    _UNFINISHED.append(close)
    with contextlib.suppress(RuntimeError):  # no thread to be had
        _thread.start_new_thread(finish_dropped, ())


def finish_dropped() -> None:
    """Close what finalizers left; waits for whoever is at it."""
    with _FINISHING:
        _finish_dropped()


def _finish_dropped() -> None:
    while _UNFINISHED:
        _UNFINISHED[0]()
        _UNFINISHED.popleft()  # only now: interrupted, it is done again
    while _LOST:
        tenancy = _LOST[0].tenancy
        if tenancy is not None:
            _abandon(tenancy)
        _LOST.popleft()


atexit.register(finish_dropped)


def _abandon(tenancy: _Tenancy) -> None:
    if not tenancy.life.live:
        return
    logger = Lines(LOGGER, tenancy.directory.path, tenancy.partition)
    with tenancy.closing:
        if tenancy.close_quietly is not None:
            try:
                tenancy.close_quietly()
            except Exception:
                logger.warning("the log did not close", exc_info=True)
        try:
            tenancy.directory.leave(tenancy, clean=False)
        except Exception:
            logger.warning("the directory was not given back in order", exc_info=True)


def _after_fork_in_child() -> None:
    global _FINISHING
    _FINISHING = threading.RLock()
    _TABLE.clear()
    _OCCUPIED.clear()
    _LOST.clear()
    _UNFINISHED.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
