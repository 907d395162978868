"""The settings of a manager: Kafka's broker settings that concern many logs, and the defaults of their topics."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from kafkalog import _shown
from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.config import BrokerLogConfig, CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.format import values
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.errors import IllegalArgumentException

# The lowest values that Kafka's keys allow.  LONG_MIN: Kafka sets no limit.
_LOWEST = {
    "recovery_threads": 1,
    "retention_check_ms": 1,
    "flush_check_ms": LONG_MIN,
    "recovery_checkpoint_ms": 0,
    "start_checkpoint_ms": 0,
    "high_watermark_checkpoint_ms": LONG_MIN,
    "initial_task_delay_ms": 0,
}


class ManagerSettings(NamedTuple):
    """The settings of a LogManager or a store.

    Times are in milliseconds; the defaults are Kafka's.

    The constructor accepts any values; LogManager checks them with `checked`.

    Args:
        default_config: The settings of topics without overrides.
        recovery_threads: Threads for each directory, at a start and at a close.  With 1, logs are processed one by one.
        retention_check_ms: Interval of the search for segments that are too old or too many.  Five minutes.
        flush_check_ms: Interval of the search for logs whose last flush is `flush.ms` ago.  Never.
        recovery_checkpoint_ms: Interval between two writes of the recovery points.  One minute.
        start_checkpoint_ms: Interval between two writes of the log start offsets.  One minute.
        high_watermark_checkpoint_ms: Interval between two writes of the high watermarks.  Five seconds.
        initial_task_delay_ms: Time from the start to the first run of each of these tasks.  30 seconds.
        producers: How long an idle producer id is remembered.  A day; `kafkalog.open` without `settings`: forever.
        cordoned_log_dirs: Directories that get no new partitions; `("*",)` for all.
        cleaner: The settings of compaction.  Its `backoff_ms` (15 seconds) is the pause if there is nothing to compact.
        maintenance: False turns off retention, compaction and the deletion of `-delete` directories.
        load: "all" loads all logs at the start, "on demand" loads a log when it is first requested.
        keeps_house: False turns off all work in the background, for a process that opens single partitions.
        has_remote_tier: Topics may continue in a remote tier.

    Example:
        >>> import kafkalog
        >>> settings = kafkalog.ManagerSettings(retention_check_ms=10_000)
        >>> settings.retention_check_ms, settings.recovery_threads
        (10000, 2)
    """

    default_config: LogConfig = LogConfig.from_props()
    recovery_threads: int = 2  # num.recovery.threads.per.data.dir; see `syncing_threads`
    retention_check_ms: int = 300_000  # log.retention.check.interval.ms
    flush_check_ms: int = LONG_MAX  # log.flush.scheduler.interval.ms: never
    recovery_checkpoint_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    start_checkpoint_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_checkpoint_ms: int = 5_000  # replica.high.watermark.checkpoint.interval.ms
    initial_task_delay_ms: int = 30_000  # log.initial.task.delay.ms
    # No coordinator here could be asked whether a transaction is known, so transactions are not verified.
    producers: ProducerSettings = ProducerSettings(ProducerStateManagerConfig(86_400_000, False))
    cordoned_log_dirs: tuple[str, ...] = ()  # cordoned.log.dirs; ("*",) for all
    cleaner: CleanerConfig = CleanerConfig()  # log.cleaner.*; `CleanerConfig(enable_cleaner=False)` compacts nothing
    # False leaves retention, compaction and the `-delete` directories that a start finds to another process.
    # This setting is not Kafka's.
    maintenance: bool = True
    # "on demand" loads each log when it is first requested, one at a time.  A log that is not loaded is not maintained:
    # no retention, no compaction, no flush.  This setting is not Kafka's.
    load: Literal["all", "on demand"] = "all"
    # False, for a process that opens single partitions: nothing runs in the background.  The lock on a failed disk is
    # held until all partitions are closed.  The high watermarks are not written, because the process does not
    # speak for all replicas.  This setting is not Kafka's.
    keeps_house: bool = True
    # remote.log.storage.system.enable: topics may continue in a remote tier, which the manager's creator provides.
    has_remote_tier: bool = False

    def __repr__(self) -> str:
        return _shown.changed(self)

    def checked(self) -> ManagerSettings:
        """Returns these settings after checking that every number is in the range of Kafka's key.

        Returns:
            The same settings.

        Raises:
            IllegalArgumentException: A value is out of range or has the wrong type.
        """
        if not isinstance(self, ManagerSettings):
            raise IllegalArgumentException(f"settings: found {values.shown(self)}, expected ManagerSettings")
        for name, low in _LOWEST.items():
            values.whole(getattr(self, name), f"ManagerSettings.{name}", low=low)
        kinds = {"default_config": LogConfig, "producers": ProducerSettings, "cleaner": CleanerConfig}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                found = values.shown(getattr(self, name))
                raise IllegalArgumentException(f"ManagerSettings.{name}: found {found}, expected a {kind.__name__}")
        checked_cleaner(self.cleaner)
        values.flag(self.maintenance, "ManagerSettings.maintenance")
        checked_load(self.load, "ManagerSettings.load")
        values.flag(self.keeps_house, "ManagerSettings.keeps_house")
        return self

    @property
    def on_demand(self) -> bool:
        """Whether logs are loaded when they are first requested."""
        return self.load == "on demand"

    @property
    def syncing_threads(self) -> int:
        """The number of threads a directory for recovery and closing, which mostly wait for the disk.

        It is four times `recovery_threads`, so that several syncs become one commit of the file system.  With one
        thread it stays one, and the logs are processed in order.
        """
        return self.recovery_threads if self.recovery_threads == 1 else 4 * self.recovery_threads

    @classmethod
    def from_broker(cls, config: BrokerLogConfig) -> ManagerSettings:
        """Returns the settings of a broker's `server.properties`.

        Args:
            config: The broker's settings.

        Returns:
            The settings.
        """
        return cls(
            config.log_config,
            config.num_recovery_threads_per_data_dir,
            config.log_retention_check_interval_ms,
            config.log_flush_scheduler_interval_ms,
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
            config.log_initial_task_delay_ms,
            ProducerSettings(
                config.producer_state,
                config.transaction_max_timeout_ms,
                config.producer_id_expiration_check_interval_ms,
            ),
            config.cordoned_log_dirs,
            config.cleaner,
        )


def checked_load(load: object, what: str = "load") -> Literal["all", "on demand"]:
    """Returns `load`.  IllegalArgumentException for anything except "all" and "on demand"."""
    if load == "all" or load == "on demand":
        return load
    raise IllegalArgumentException(f"{what}: found {values.shown(load)}, expected 'all' or 'on demand'")


# The lowest values of CleanerConfig, as `_LOWEST`.
_CLEANER_LOWEST = {
    "num_threads": 0,
    "dedupe_buffer_size": 0,
    "io_buffer_size": 0,
    "max_message_size": 0,
    "backoff_ms": 0,
}
_MAP_BYTES_MIN = 1 << 20


def checked_cleaner(cleaner: CleanerConfig) -> CleanerConfig:
    """Returns the settings after checking that every number is in the range of Kafka's key, and none is NaN.

    Raises IllegalArgumentException, also for an object of another type.
    """
    if not isinstance(cleaner, CleanerConfig):
        raise IllegalArgumentException(f"found {values.shown(cleaner)}, expected a CleanerConfig")
    values.flag(cleaner.enable_cleaner, "CleanerConfig.enable_cleaner")
    for name, low in _CLEANER_LOWEST.items():
        values.whole(getattr(cleaner, name), f"CleanerConfig.{name}", low=low)
    rate = values.real(cleaner.max_io_bytes_per_second, "CleanerConfig.max_io_bytes_per_second")
    if math.isnan(rate):
        raise IllegalArgumentException(f"CleanerConfig.max_io_bytes_per_second: found {rate}, expected a number")
    load_factor = values.real(cleaner.dedupe_buffer_load_factor, "CleanerConfig.dedupe_buffer_load_factor")
    if cleaner.enable_cleaner and cleaner.num_threads:
        map_bytes = cleaner.dedupe_buffer_size // cleaner.num_threads
        if map_bytes <= _MAP_BYTES_MIN:
            raise IllegalArgumentException(
                f"CleanerConfig.dedupe_buffer_size: found {map_bytes} bytes a thread, expected more than "
                f"{_MAP_BYTES_MIN}"
            )
    if not 0 < load_factor <= 1:
        raise IllegalArgumentException(
            f"CleanerConfig.dedupe_buffer_load_factor: found {load_factor}, expected above 0, up to 1"
        )
    return cleaner
