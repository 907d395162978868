"""PartitionContext: what every part of one partition's log uses: its directory, its settings, and its I/O failures.

There is one PartitionContext per partition; the opener creates it and passes it down. It knows names, settings and
whether the disk can still be trusted; nothing of segments, offsets, producers or locks. Only `rename_dir` and
`LocalLog.update_config` replace `dir` and `config`, as a whole, under the partition's lock. A reader without the lock
sees the old or the new value.

An OSError inside `guard` takes the log directory offline, unless it is a shortage that the failure channel tolerates.
From then on every operation on a partition of that directory raises KafkaStorageException. Mirrors
LocalLog.maybeHandleIOException (4.4.0).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kafkalog.engine.files import OS_FILES, Clock, Files, LogDirFailureChannel, Scheduler, is_shortage
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import is_io_exception
from kafkalog.engine.log.tier import Copies
from kafkalog.engine.log.topic_metrics import TopicMetrics
from kafkalog.engine.log.types import TopicRules
from kafkalog.errors import ClosedChannelException, CorruptCheckpointException, KafkaStorageException
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from kafkalog.config import LogConfig, ProducerStateManagerConfig


LOG_FLUSH = MetricName("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs")

ALREADY_OFFLINE = "is already offline due to a previous IO exception"


class ProducerSettings(NamedTuple):
    """The broker's settings for the producers of its partitions; the defaults are Kafka's."""

    config: ProducerStateManagerConfig
    max_transaction_timeout_ms: int = 900_000
    expiration_check_interval_ms: int = 600_000


class PartitionContext:
    """The directory, settings and services of a partition.

    `dir` is the partition's directory, `parent_dir` the log directory that contains it. `rules` are the settings of
    `config` that validate appends. `metrics` has the measurements, and `topic_metrics` counts refusals. `logger` adds
    the partition and the log directory to each line.

    `has_one_replica`: no other replica exists; set by the opener before a load. The high watermark then follows the
    end, and recovery keeps what Kafka would fetch again. `has_remote_tier`: the opener has a remote tier
    (remote.log.storage.system.enable); the topic says whether it is used. `is_tier_open`: False if a log is opened
    without the tier that it continues in. `known_copies`: returns what is known of copied segments in that case, if
    anything.
    """

    __slots__ = (
        "clock",
        "config",
        "dir",
        "files",
        "flush_timer",
        "has_one_replica",
        "has_remote_tier",
        "is_tier_open",
        "known_copies",
        "log_dir_failure_channel",
        "logger",
        "metrics",
        "parent_dir",
        "producers",
        "renaming_lock",
        "rules",
        "scheduler",
        "topic_metrics",
        "topic_partition",
    )

    def __init__(
        self,
        dir: str | os.PathLike[str],
        config: LogConfig,
        producers: ProducerSettings,
        scheduler: Scheduler,
        clock: Clock,
        log_dir_failure_channel: LogDirFailureChannel,
        *,
        files: Files = OS_FILES,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        """Raises KafkaException if the directory's name is not that of a partition.

        `metrics` may be shared with other partitions; None creates a new registry.
        """
        self.dir = os.path.abspath(os.fspath(dir))
        self.parent_dir = os.path.dirname(self.dir)
        self.renaming_lock = threading.RLock()  # held while the directory is renamed, and its files' paths change
        self.topic_partition = names.parse_topic_partition_name(self.dir)
        self.update_config(config)
        self.producers = producers
        self.scheduler = scheduler
        self.clock = clock
        self.log_dir_failure_channel = log_dir_failure_channel
        self.files = files
        self.has_one_replica = False
        self.has_remote_tier = False
        self.is_tier_open = True
        self.known_copies: Callable[[], Copies] | None = None
        self.logger = Lines("kafkalog.log", self.parent_dir, self.topic_partition)
        self.metrics = MetricsRegistry(clock) if metrics is None else metrics
        self.topic_metrics = TopicMetrics(self.metrics, self.topic_partition.topic)
        self.flush_timer = self.metrics.timer(LOG_FLUSH)  # around the flush of each segment, as in Kafka

    @property
    def uses_remote_tier(self) -> bool:
        """UnifiedLog.isRemoteLogEnabled: False for a compacted topic and for Kafka's internal topics."""
        if not self.has_remote_tier:
            return False
        config, topic = self.config, self.topic_partition.topic
        return bool(config.remote_storage_enable) and not config.compact and topic not in names.INTERNAL_TOPICS

    def update_config(self, new_config: LogConfig) -> None:
        """Sets new settings. An open log must use LocalLog's method of this name."""
        self.config = new_config
        self.rules = TopicRules.of(new_config)

    def rename_dir(self, name: str) -> bool:
        """Renames the directory (atomically, parent synced). Returns False if it has that name. May be called twice."""
        before, renamed = self.dir, os.path.join(self.parent_dir, name)
        self.files.rename_or_was(before, renamed)
        try:
            self.files.sync_dir(self.parent_dir)
        except OSError as error:
            if is_shortage(error):  # no descriptor for the sync: undo the rename
                cut_back(error, lambda: self.files.rename(renamed, before))
            raise
        self.dir = renamed
        return renamed != before

    def delete(self, task: str, unlink: Callable[[], None], *, later: bool) -> None:
        """Deletes files that were renamed to `.deleted`: now, or in a task of that name after file.delete.delay.ms."""
        if later:
            self.scheduler.schedule_once(task, unlink, self.config.file_delete_delay_ms)
        else:
            unlink()

    # --- the disk --------------------------------------------------------------------------------------

    def guard(self, doing: str, *, refuses: bool = True) -> IoGuard:
        """Returns the I/O guard of an operation; `doing` completes `Error while ...`.

        Unless it `refuses`, the operation starts even if the directory is offline, like Kafka's operations without such
        a guard.
        """
        return IoGuard(self, doing, refuses)

    @property
    def is_offline(self) -> bool:
        """Whether the log directory has failed."""
        return self.log_dir_failure_channel.has_offline_log_dir(self.parent_dir)

    def check_online(self) -> None:
        """Raises KafkaStorageException if an earlier I/O error, which is its cause, took the log directory offline."""
        if self.is_offline:
            log_dir = self.parent_dir
            first = self.log_dir_failure_channel.cause(log_dir)
            raise KafkaStorageException(
                f"The log dir {log_dir} {ALREADY_OFFLINE}.",
                hint=None if first is None else f"the first error was {type(first).__name__}: {first}",
            ) from first

    def check_place(self, error: OSError) -> None:
        """Raises ClosedChannelException if a file was not found because the directory was renamed meanwhile.

        Readers and flushes take no lock; after this error they try again. Waits for a running rename.
        """
        if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
            with self.renaming_lock:
                now = self.dir
            inside = error.filename.startswith(self.parent_dir + os.sep)
            if inside and now not in (error.filename, os.path.dirname(error.filename)):
                raise ClosedChannelException("its directory was renamed meanwhile", path=error.filename) from error

    def raise_offline(self, message: str, error: OSError | CorruptCheckpointException) -> NoReturn:
        """Takes the log directory offline because of `error` and raises KafkaStorageException from it.

        A shortage that the channel tolerates only refuses the call (`LogDirFailureChannel.failed`). A
        KafkaStorageException (an OSError in Python, not in Kafka) was handled where it arose, and is raised again. So
        are the kinds of CorruptCheckpointException that are no IOException in Kafka.
        """
        if isinstance(error, KafkaStorageException):
            raise error
        if not is_io_exception(error):
            raise error
        channel = self.log_dir_failure_channel
        if isinstance(error, OSError):
            raise channel.failed(self.parent_dir, message, error, topic_partition=self.topic_partition) from error
        channel.maybe_add_offline_log_dir(self.parent_dir, message, error, topic_partition=self.topic_partition)
        raise KafkaStorageException.because_of(error, message) from error


def cut_back(error: Exception, undo: Callable[[], object]) -> None:
    """Undoes what a shortage left half done. If the disk refuses that too, it has failed: raises OSError (EIO)."""
    try:
        undo()
    except OSError as another:
        text = (
            f"{os.strerror(errno.EIO)}: an incomplete change could not be undone ({another.strerror}), after: {error}"
        )
        raise OSError(errno.EIO, text, another.filename) from error


class IoGuard:
    """LocalLog.maybeHandleIOException as a `with` block; `PartitionContext.guard` creates it.

    Raises at the start if the directory is offline. Turns an OSError of the body into an offline directory and a
    KafkaStorageException that chains it, or a shortage into the error that refuses the call. A nested guard passes the
    inner guard's exception on unchanged.
    """

    __slots__ = ("context", "doing", "refuses")

    def __init__(self, context: PartitionContext, doing: str, refuses: bool) -> None:
        self.context = context
        self.doing = doing
        self.refuses = refuses

    def __enter__(self) -> None:
        if self.refuses:
            self.context.check_online()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            context = self.context
            context.check_place(error)
            message = f"Error while {self.doing} for {context.topic_partition} in dir {context.parent_dir}"
            context.raise_offline(message, error)
