"""`open_log`: opens a `Partition` by its directory and its name.

All arguments are checked before any file is created or changed.  If a later step fails, everything that was opened is
closed, and the directory is left without a clean-shutdown marker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from kafkalog._face.batch_maker import BatchMaker
from kafkalog._face.cutting import OnDamage, told_of_cuts
from kafkalog._face.keywords import called
from kafkalog._face.open_partition import OpenPartition
from kafkalog._face.topic_settings import TopicSettings, broker_properties
from kafkalog._face.waiting import Bells
from kafkalog._limits import LONG_MAX
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, Scheduler, local_path
from kafkalog.engine.files.failure import full_at_open
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import names, values
from kafkalog.engine.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.host import directory as directories
from kafkalog.engine.host import log_dirs
from kafkalog.engine.host.log_contexts import Opening
from kafkalog.engine.host.topic_configs import checked_overrides
from kafkalog.engine.log import damage
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.index_reader import check_whole_entries
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidTopicException,
    UnknownTopicOrPartitionException,
)
from kafkalog.metrics.registry import MetricsRegistry
from kafkalog.partition import Partition

Durability = Literal["os", "fsync"]
NEVER_MS = LONG_MAX


@called("open_log")
def open_log(
    log_dir: str | os.PathLike[str],
    topic_partition: str | TopicPartition,
    *,
    config: Mapping[str, str] | LogConfig | None = None,
    read_only: bool = False,
    durability: Durability = "os",
    create: bool = True,
    compression: str | None = None,
    topic_id: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    files: Files = OS_FILES,
    scheduler: Scheduler | None = None,
    producer_id_expiration_ms: int = NEVER_MS,
    abort_left_open: bool = True,
    on_damage: OnDamage = "truncate",
    metrics: MetricsRegistry | None = None,
    take_over: bool = False,
    broker_config: str | os.PathLike[str] | Mapping[str, object] | None = None,
) -> Partition:
    """Opens one partition of a log directory, `log_dir/topic-0`.

    A writable open takes the directory's `.lock`, which all logs of the directory in this process share, and removes
    `.kafka_cleanshutdown`.  A partition that was not closed cleanly is recovered as Kafka's broker does.

    The Partition is a context manager and belongs to this process: in a forked child every use raises
    IllegalStateException.  If it is dropped without `close()`, its files are closed with a ResourceWarning, and the
    next open recovers the log.

    Args:
        log_dir: The log directory.  A directory that is missing or empty becomes a log directory; one that has other
            files and nothing of a log directory is refused.
        topic_partition: The partition, such as "orders-0" or a TopicPartition.
        config: Kafka's topic settings as text, such as `{"segment.bytes": "1048576"}`; tests may also use
            `internal.segment.bytes`, which may be smaller.  They override the settings stored for the topic.  The
            stored settings override the metadata of the directory's cluster, and that overrides `broker_config`.
        read_only: Take no lock and write nothing.  This works while a broker or another process writes, and sees all
            batches up to the last whole, valid one.  Only the local segments of a tiered partition are read.
        durability: With "os" the operating system decides when to flush, as in Kafka.  Appended records survive a crash
            of this process, but a power loss only if `flush()` was called.  With "fsync" the log flushes each append
            before it returns, so that it survives a power loss.
        create: Create the partition if it does not exist; False refuses one that does not exist.
        compression: How this writer compresses batches: "none", "gzip", "snappy", "lz4" or "zstd".  By default the
            topic's `compression.type` (which calls none "uncompressed") decides, or batches are not compressed.
        topic_id: The topic's id: a Kafka Uuid of 22 characters.
        clock: The source of the time; for tests.
        files: The file system; for tests.
        scheduler: Runs the background work; for tests.
        producer_id_expiration_ms: How long the producer ids of `writer()` and `transaction()` are remembered, in
            milliseconds; by default forever.
        abort_left_open: End transactions that a crash left open (also those of a store) as was decided, in all
            partitions of the directory.  False leaves this to the first transaction that begins in the directory.
            Transactions of a broker's producers always stay open.
        on_damage: The action if recovery finds damage.  With "truncate" recovery removes the damage and all records
            after it, as Kafka does, and logs a warning in "kafkalog.log".  With "raise" it raises an error before any
            record is removed, also from the coordinators' logs.  Indexes may have been rebuilt by then, and zeros
            removed that a power loss left; `kafkalog.open` describes which.  A function is called with each
            `kafkalog.engine.log.damage.Damage` before it is removed.
        metrics: A `kafkalog.metrics.MetricsRegistry`, which any number of logs may share.  While the log is open for
            writing, its gauges appear there under Kafka's names, and its refused and flushed appends are counted.
        take_over: Open the directory of a Kafka broker (with a `meta.properties`) for writing, in the broker's place.
            If the topic's settings are not known then, `delete_old_segments` deletes nothing because of them.
        broker_config: A broker's `server.properties`: a path, or a mapping of its settings.

    Returns:
        The open Partition.

    Raises:
        LogDirLockedException: A broker or another process uses the directory.
        UnknownTopicOrPartitionException: The partition does not exist, and `create` is False or `read_only` is True.
        InvalidTopicException: Kafka does not allow the topic's name, or only a cluster's controllers write to the
            topic.
        ConfigException: A setting is invalid.
        CorruptRecordException: Recovery found damage, and `on_damage` is "raise"; also for an index whose log is
            missing, and for a log that ends below its start.
        CorruptIndexException: An index of aborted transactions was truncated, which Kafka does not check; `on_damage`
            is "raise".
        KafkaStorageException: The disk failed.
        IllegalArgumentException: The log is open in this process already, `log_dir` is not a log directory, or an
            argument is invalid.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0", config={"segment.bytes": "1048576"}) as log:
        ...     log.append(b"value", key=b"key")
        0
        >>> with kafkalog.open_log("logs", "orders-0", read_only=True) as log:
        ...     [record.value for record in log]
        [b'value']
    """
    # More than eight parameters: each is a separate option that most callers omit, and it is passed by name.
    try:
        root = local_path(log_dir, what="log_dir", files=files)
    except TypeError:
        raise IllegalArgumentException(
            f"log_dir: found {type(log_dir).__name__}, expected a path", hint=log_dirs.EXPECTED_DIR
        ) from None
    partition = names.partition_of(topic_partition)
    create = values.flag(create, "create")
    abort_left_open = values.flag(abort_left_open, "abort_left_open")
    take_over = values.flag(take_over, "take_over")
    broker = None if broker_config is None else broker_properties(broker_config)
    if not (callable(getattr(clock, "milliseconds", None)) and callable(getattr(clock, "nanoseconds", None))):
        raise IllegalArgumentException(
            f"clock: found {values.shown(clock)}, expected one with milliseconds() and nanoseconds()",
            hint="leave it out for the system's clock; tests can use kafkalog.engine.files.ManualClock",
        )
    if metrics is not None and not isinstance(metrics, MetricsRegistry):
        raise IllegalArgumentException(
            f"metrics: found {values.shown(metrics)}, expected a kafkalog.metrics.MetricsRegistry"
        )
    if values.flag(read_only, "read_only"):
        log_dirs.listing(root, files)
        view = PartitionView(root, partition, files=files)
        view.life = Life()
        return Partition(view, None, view.life, Bells(), close=view.close, files=files)
    if not isinstance(durability, str) or durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"durability is {durability!r}; expected 'os' or 'fsync'")
    names.validate_topic_name(partition.topic)
    names.validate_dir_name(str(partition))
    if topic_id is not None:
        topic_id = checked_topic_id(topic_id)
    producer_id_expiration_ms = values.whole(
        producer_id_expiration_ms, "producer_id_expiration_ms", low=1, expected="milliseconds"
    )
    tell = told_of_cuts(on_damage)
    log_dirs.check_taken_over([root], files, take_over=take_over)
    if partition.topic == names.CLUSTER_METADATA_TOPIC:
        raise InvalidTopicException(
            f"{partition} is the log of a cluster's controllers, and only they write to it",
            hint="open it with read_only=True",
        )
    if isinstance(config, LogConfig):
        settings = config
    else:
        given = checked_overrides({} if config is None else config, "config")
        settings = _settings_there(root, partition.topic, broker, given, files)
    BatchMaker(settings, compression)  # raises for an unknown codec before anything is opened
    path = os.path.join(root, str(partition))
    if not create and not files.is_dir(path):
        raise UnknownTopicOrPartitionException(
            f"no partition {partition} in {root}",
            hint="create=True creates it; `kafkalog describe` lists the partitions",
        )
    with full_at_open(f"{partition} of {root}"):
        lease = directories.enter(root, partition, files, clock, scheduler, create=create)
        try:
            producers = ProducerSettings(ProducerStateManagerConfig(producer_id_expiration_ms, False))
            engine = lease.load(Opening(settings, producers, clock, metrics, tell, topic_id))
            if engine.recovery_point < lease.recovery_point:
                # The checkpoint says that more was flushed than the log has.  New records at these offsets are not.
                if on_damage == "raise":
                    raise damage.lost_end_error(lease.recovery_point, engine.log_end_offset, engine.dir)
                lease.checkpoint()
            if on_damage == "raise":
                for segment in engine.log_segments():
                    check_whole_entries(segment.txn_index.path, segment.txn_index.end)
            own = OpenPartition(engine, lease, clock, compression=compression, sync_appends=durability == "fsync")
            if on_damage == "raise":
                lease.directory.manager.cut_nothing()  # the coordinators' logs are not truncated either
            is_undecided = engine.producer_state_manager.first_undecided_offset is not None
            if abort_left_open and (is_undecided or lease.directory.has_unclean(TRANSACTION_STATE_TOPIC)):
                own.end_left(cuts_nothing=on_damage == "raise")
            return Partition(own.source(), own, own.life, Bells(), files=files)
        except BaseException:
            lease.give_up()
            raise


def _settings_there(
    root: str, topic: str, broker: Mapping[str, object] | None, given: Mapping[str, str], files: Files
) -> LogConfig:
    """Returns the settings of a topic; the caller's override the stored ones."""
    known = TopicSettings(root, files=files, broker=broker)
    overrides = {**known.stored(topic), **given}
    if not known.is_of_cluster:
        return LogConfig.from_props(known.broker_defaults, overrides)
    return LogConfig.from_props(known.base(topic, {}, is_stored=False), overrides)
