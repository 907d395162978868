"""What a manager is set to: Kafka's broker settings that concern many logs, and the defaults of their topics."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from kafkalog import _shown
from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.config import BrokerLogConfig, CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.format import values
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.errors import IllegalArgumentException

# What Kafka's keys allow; those of which it does not say are any number.
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
    """Times in milliseconds; the defaults are Kafka's.  `from_broker` reads them from a broker's properties.  Made of
    anything; LogManager takes what is `checked`.

        kafkalog.open("shop", settings=kafkalog.ManagerSettings(retention_check_ms=10_000))

    default_config: of topics that do not say otherwise.
    recovery_threads: for each directory, at a start and at a close; 1 has all go one by one.
    retention_check_ms: between two looks for segments that are too old or too many; five minutes.
    flush_check_ms: between two looks for logs whose last flush is `flush.ms` ago; never.
    recovery_checkpoint_ms, start_checkpoint_ms, high_watermark_checkpoint_ms: between two writes of each checkpoint.
    initial_task_delay_ms: from the start to the first of each of these.
    producers: for how long an idle producer is remembered (a day; `kafkalog.open` without `settings`: for ever).
    cordoned_log_dirs: directories that get no new partitions; ("*",) for all.
    cleaner: compaction; its `backoff_ms` (15 seconds) is how long it rests where there is nothing to compact.
    maintenance: False leaves retention, compaction and `-delete` folders to others.
    load: "on demand" loads a log when it is first asked for.
    keeps_house: False does nothing in the background, for who opens single partitions.
    has_remote_tier: topics may go on in a remote tier.
    """

    default_config: LogConfig = LogConfig.from_props()
    recovery_threads: int = 2  # num.recovery.threads.per.data.dir; see `syncing_threads`
    retention_check_ms: int = 300_000  # log.retention.check.interval.ms
    flush_check_ms: int = LONG_MAX  # log.flush.scheduler.interval.ms: never
    recovery_checkpoint_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    start_checkpoint_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_checkpoint_ms: int = 5_000  # replica.high.watermark.checkpoint.interval.ms
    initial_task_delay_ms: int = 30_000  # log.initial.task.delay.ms
    # Nobody here could be asked whether a transaction is known: no verification.
    producers: ProducerSettings = ProducerSettings(ProducerStateManagerConfig(86_400_000, False))
    cordoned_log_dirs: tuple[str, ...] = ()  # cordoned.log.dirs; ("*",) for all
    cleaner: CleanerConfig = CleanerConfig()  # log.cleaner.*; `CleanerConfig(enable_cleaner=False)` compacts nothing
    # False leaves retention, compaction and the `-delete` folders that a start finds to others.  Not Kafka's.
    maintenance: bool = True
    # "on demand" loads each log when it is first asked for, one at a time; until then only what is asked for is looked
    # after: no retention, no compaction, no flush of what waits.  Not Kafka's.
    load: Literal["all", "on demand"] = "all"
    # False, of who opens single partitions: nothing is done in the background, a failed disk stays ours until everybody
    # has left, and replication-offset-checkpoint stays as it is, for whoever speaks for all replicas.  Not Kafka's.
    keeps_house: bool = True
    # remote.log.storage.system.enable: topics may go on in a remote tier, which whoever made the manager looks after.
    has_remote_tier: bool = False

    def __repr__(self) -> str:
        return _shown.changed(self)

    def checked(self) -> ManagerSettings:
        """These, with every number in the range of Kafka's key.  IllegalArgumentException, also for other things."""
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
        return self.load == "on demand"

    @property
    def syncing_threads(self) -> int:
        """Threads a directory for what mostly waits for the disk, recovery and closing: four for each of Kafka's, so
        that several syncs become one commit of the file system.  With one, all goes one by one, in order."""
        return self.recovery_threads if self.recovery_threads == 1 else 4 * self.recovery_threads

    @classmethod
    def from_broker(cls, config: BrokerLogConfig) -> ManagerSettings:
        """Those of a broker's `server.properties`."""
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
    """IllegalArgumentException for anything but "all" and "on demand"."""
    if load == "all" or load == "on demand":
        return load
    raise IllegalArgumentException(f"{what}: found {values.shown(load)}, expected 'all' or 'on demand'")


# Of CleanerConfig, as `_LOWEST`.
_CLEANER_LOWEST = {
    "num_threads": 0,
    "dedupe_buffer_size": 0,
    "io_buffer_size": 0,
    "max_message_size": 0,
    "backoff_ms": 0,
}
_MAP_BYTES_MIN = 1 << 20


def checked_cleaner(cleaner: CleanerConfig) -> CleanerConfig:
    """The same, with every number in the range of Kafka's key, none of them NaN.  IllegalArgumentException, also for
    other things."""
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
