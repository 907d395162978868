"""`open_log`: from a directory and a partition's name to a `Partition`.

Everything that a caller gives is checked before anything is made or changed; what fails behind that closes what was
opened and leaves the directory, not cleanly.
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
    """Open one partition of a log directory, `log_dir/topic-0`; a context manager.

    `config` has Kafka's topic keys as text (`{"segment.bytes": "1048576"}`; for tests `internal.segment.bytes`, which
    may be smaller), which lie over what is kept for the topic beside the data, over what the metadata of the
    directory's cluster says, over `broker_config`, a broker's `server.properties` (a path, or its settings).
    `read_only=True` takes no lock and writes nothing: it works beside a running broker and sees up to the last whole
    valid batch; of a tiered partition what is on the disk alone.  `durability`: "os" leaves flushing to the operating
    system, as Kafka does (what was appended survives a crash of this process, not a power loss, unless `flush()` was
    called); "fsync" flushes every append before it returns (survives power loss too).  `create=False` refuses a
    partition that does not exist.  `compression` (none gzip snappy lz4 zstd) is how this writer packs its batches; by
    default what the topic's `compression.type` says (which calls none "uncompressed"), or none.  `topic_id` is a Kafka
    Uuid as 22 characters.  Producer ids of `writer()` and `transaction()` are kept for `producer_id_expiration_ms`.

    A writable open takes the directory's `.lock`, shared by all logs of that directory in this process, and removes
    `.kafka_cleanshutdown`; a partition that was not closed cleanly is recovered as Kafka's broker does.  Transactions
    that a crash left open in it, a store's too, are ended as was decided, in all partitions of the directory, unless
    `abort_left_open` is off, and then by the first transaction that begins in the directory; those of a broker's
    producers stay open.  `on_damage` says what happens where that recovery finds damage: "truncate" cuts the log there
    and drops all behind it, with a warning in the log "kafkalog.log", as Kafka does; "raise" refuses with
    CorruptRecordException before a record's bytes are cut, of the coordinators' logs too, also for an index whose log
    is missing and for a log that ends below its start, and with CorruptIndexException where an index of aborted
    transactions was cut, which Kafka does not look at (indexes may have been rebuilt by then, and zeros been cut that a
    power loss leaves: `kafkalog.open` says which); a function is called with each
    `kafkalog.engine.log.damage.Damage` before its cut.

    A directory of a Kafka broker (it has `meta.properties`) is opened for writing only with `take_over=True`, in the
    broker's place.  If the topic's settings are not known then, `delete_old_segments` deletes nothing by them.

    `metrics` is a `kafkalog.metrics.MetricsRegistry`, shared by as many logs as you like: while a writable log is open
    it is shown there under Kafka's names, and what it refuses and flushes is counted.

    Errors: LogDirLockedException (a broker or another process has the directory), UnknownTopicOrPartitionException,
    InvalidTopicException, ConfigException, KafkaStorageException; IllegalArgumentException when the log is open in this
    process already or `log_dir` is no log directory: a missing or empty folder becomes one, a folder of other things
    does not.

    The Partition belongs to this process: in a forked child every use raises IllegalStateException.  One that is
    dropped without `close()` lets go of its files with a ResourceWarning, and the next open recovers.
    """
    # More than eight parameters: each is a choice of its own that most callers leave out, and is given by its name.
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
            hint="leave it out for the machine's; kafkalog.engine.files.ManualClock for tests",
        )
    if metrics is not None and not isinstance(metrics, MetricsRegistry):
        raise IllegalArgumentException(
            f"metrics: found {values.shown(metrics)}, expected a kafkalog.metrics.MetricsRegistry"
        )
    if values.flag(read_only, "read_only"):
        log_dirs.listing(root, files)
        view = PartitionView(root, partition, files=files)
        view.life = Life()
        return Partition(view, None, view.life, Bells(), close=view.close)
    if not isinstance(durability, str) or durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"durability {durability!r} is neither 'os' nor 'fsync'")
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
            f"{partition} is the log of a cluster's controllers: only they write to it", hint="read_only=True reads it"
        )
    if isinstance(config, LogConfig):
        settings = config
    else:
        given = checked_overrides({} if config is None else config, "config")
        settings = _settings_there(root, partition.topic, broker, given, files)
    BatchMaker(settings, compression)  # says what is wrong with it before anything is opened
    path = os.path.join(root, str(partition))
    if not create and not files.is_dir(path):
        raise UnknownTopicOrPartitionException(
            f"no partition {partition} in {root}", hint="create=True makes it; `kafkalog describe` lists what is there"
        )
    with full_at_open(f"{partition} of {root}"):
        lease = directories.enter(root, partition, files, clock, scheduler, create=create)
        try:
            producers = ProducerSettings(ProducerStateManagerConfig(producer_id_expiration_ms, False))
            engine = lease.load(Opening(settings, producers, clock, metrics, tell, topic_id))
            if engine.recovery_point < lease.recovery_point:
                # The checkpoint says that more was flushed than there is; what comes to these offsets now is not.
                if on_damage == "raise":
                    raise damage.lost_end_error(lease.recovery_point, engine.log_end_offset, engine.dir)
                lease.checkpoint()
            if on_damage == "raise":
                for segment in engine.log_segments():
                    check_whole_entries(segment.txn_index.path, segment.txn_index.end)
            own = OpenPartition(engine, lease, clock, compression=compression, sync_appends=durability == "fsync")
            if on_damage == "raise":
                lease.directory.manager.cut_nothing()  # nor the coordinators' logs
            is_undecided = engine.producer_state_manager.first_undecided_offset is not None
            if abort_left_open and (is_undecided or lease.directory.has_unclean(TRANSACTION_STATE_TOPIC)):
                own.end_left(cuts_nothing=on_damage == "raise")
            return Partition(own.source(), own, own.life, Bells())
        except BaseException:
            lease.give_up()
            raise


def _settings_there(
    root: str, topic: str, broker: Mapping[str, object] | None, given: Mapping[str, str], files: Files
) -> LogConfig:
    """The settings of a topic.  Those that the caller gives lie over those that are kept for it."""
    known = TopicSettings(root, files=files, broker=broker)
    overrides = {**known.stored(topic), **given}
    if not known.is_of_cluster:
        return LogConfig.from_props(known.broker_defaults, overrides)
    return LogConfig.from_props(known.base(topic, {}, is_stored=False), overrides)
