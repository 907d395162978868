"""Compacts partitions offline, as a broker's cleaner would, or previews it on an overlay of the directory.

Both ways run the same passes (`LogManager.compact`), so the preview is what happens.  (A few bytes may differ if a
compressed batch keeps a tombstone: its delete horizon is the time of the pass.)  On the overlay the last pass of a log
writes only lengths.  If the map is too small for one pass, what earlier passes write is in a temporary directory until
the partition is done.

A log directory does not know for sure which topics are compacted.  Only topics are compacted whose cleanup.policy is
known: stored next to the data, or given for this run.  The high watermark is the checkpoint's, if it has a line.  A
record stays if not all replicas have its later version, and nothing is compacted if the checkpoint cannot be read.
Producers do not expire here, so the headers of their last batches stay.  The controller's log is left alone, because it
uses its own snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kafkalog._face.store_partition import StorePartition, policy_of
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._native.codec.offset_map import LastOffsets
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.cleaner.passes import Callbacks, CompactionStats
from kafkalog.engine.cleaner.to_clean import LogToClean, calculate_cleanable_bytes, first_uncleaned
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.engine.files.overlay import OverlayFiles, Watch
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import BadBytesError, BeingWrittenException, DiskError, KafkalogError
from kafkalog.toolbox.compaction_state import Reason, tell
from kafkalog.toolbox.folders import copies_known
from kafkalog.toolbox.recovery import hold_directory, open_undamaged, unlink_what_waits
from kafkalog.toolbox.second_look import Stats, Wrong, look_while_it_rests, may_pass
from kafkalog.toolbox.segment_facts import was_compacted

__all__ = [
    "Cleanable", "Compacted", "PassOptions", "TopicSettings", "cleanable", "compact", "left_alone",
    "watermarks_are_blank",
]  # fmt: skip

RATIO = "min.cleanable.dirty.ratio"


class PassOptions(NamedTuple):
    """Options of a compaction.

    `cleaner` sets the memory. With `rolls`, active segments with records are closed first, so that they are
    compacted too. `lasts` has the last offset of each key of one partition, if the caller has found it already.
    """

    cleaner: CleanerConfig = CleanerConfig(num_threads=1)
    rolls: bool = False
    clock: Clock = SYSTEM_CLOCK
    lasts: LastOffsets | None = None


@dataclass
class Compacted:
    """The result for one partition.

    `held` is what keeps the rest, or all of it, from being compacted. `error` is what is wrong with the partition,
    which then is unchanged except for completed passes.
    """

    partition: TopicPartition
    stats: CompactionStats | None = None
    held: Reason | None = None
    error: KafkalogError | None = None

    @property
    def expected_s(self) -> float:
        """The expected time of the compaction, in seconds.

        It assumes that writing takes as long as the reading just before.
        """
        if self.stats is None or not self.stats.bytes_read:
            return 0.0
        return self.stats.elapsed_s * (self.stats.bytes_read + self.stats.bytes_written) / self.stats.bytes_read


def left_alone(
    log_dir: str,
    partitions: Iterable[TopicPartition],
    settings: TopicSettings,
    *,
    policy_is_said: bool = False,
    files: Files = OS_FILES,
) -> dict[TopicPartition, Reason]:
    """Returns the partitions that must not be compacted, each with the reason.

    Args:
        log_dir: The log directory.
        partitions: The partitions to check.
        settings: The topics' settings.
        policy_is_said: Topics without a known policy have the policy of the defaults.
        files: The file system; for tests.

    Returns:
        A `Reason` for each partition that is left alone.

    Example:
        >>> from kafkalog.toolbox.compact import TopicSettings
        >>> from kafkalog.toolbox.compact import left_alone
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> orders = kafkalog.TopicPartition("orders", 0)
        >>> left_alone("shop", [orders], TopicSettings("shop"))[orders].what
        'policy'
    """
    found = {}
    checkpoints, is_copied = CheckpointLines(log_dir, files), copies_known(log_dir, files)
    for partition in partitions:
        config = settings.of(partition.topic)
        if partition.topic == names.CLUSTER_METADATA_TOPIC:
            found[partition] = Reason(
                "metadata", "it is the log of the cluster's controllers, which write snapshots instead"
            )
        elif is_copied(partition):
            found[partition] = Reason(
                "tiered", "a part of it was copied to a remote tier, and a tiered topic cannot be compacted"
            )
        elif not (policy_is_said or settings.says(partition.topic, "cleanup.policy")):
            trace = ", but a cleaner has compacted it before" if was_compacted(partition, checkpoints) else ""
            found[partition] = Reason(
                "unknownPolicy",
                f"the cleanup.policy is unknown ({settings.why_unknown(partition.topic)}){trace}: name the topic and "
                "give -X cleanup.policy=compact to set it",
            )
        elif not config.compact:
            found[partition] = Reason("policy", f"its cleanup.policy is {policy_of(config)}")
    return found


def compact(
    log_dir: str,
    partitions: Mapping[TopicPartition, str],
    settings: TopicSettings,
    how: PassOptions | None = None,
    *,
    act: bool,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Compacted]:
    """Compacts partitions of a log directory, or previews it.

    A preview (`act=False`) writes nothing and takes no lock.  If another process changes the directory meanwhile, the
    preview reads again, and gives up after a while.

    Args:
        log_dir: The log directory.
        partitions: The partitions to compact; only the keys are used.
        settings: The topics' settings.
        how: Options of the passes.
        act: Compacts; False only previews.
        files: The file system; for tests.
        progress: Called with the number of log bytes just read or written.

    Yields:
        A `Compacted` for each partition.  Its `error` is what is wrong with this partition (BeingWrittenException if it
        never stopped changing); the others continue.

    Raises:
        LogDirLockedException: Another process has the directory, with `act`.

    Example:
        >>> from kafkalog.toolbox.compact import TopicSettings
        >>> from kafkalog.toolbox.compact import PassOptions, compact
        >>> with kafkalog.open("shop") as store:
        ...     topic = store.create_topic("prices", config={"cleanup.policy": "compact"})
        ...     _ = topic.append_many([(b"1", b"apple"), (b"2", b"apple")])
        >>> prices = kafkalog.TopicPartition("prices", 0)
        >>> where, how = {prices: "shop/prices-0"}, PassOptions(rolls=True)
        >>> (result,) = compact("shop", where, TopicSettings("shop"), how, act=False)
        >>> result.stats.bytes_read > result.stats.bytes_written
        True
    """
    how = how or PassOptions()
    if act:
        yield from _compact(log_dir, partitions, settings, how, files, _LastPass(), progress)
        return

    def look(partition: TopicPartition) -> Compacted:
        watch = _LastPass()
        with OverlayFiles(files, watch) as overlay:
            (found,) = _compact(log_dir, [partition], settings, how, overlay, watch, progress)
        return found

    for partition in partitions:
        try:
            yield look_while_it_rests(
                log_dir, partition, partial(look, partition), _wrong, is_settled=_closed_logs_rest, files=files
            )
        except BeingWrittenException as error:
            yield Compacted(partition, error=error)


def _wrong(result: Compacted) -> list[Wrong]:
    return [Wrong.of(result.error)] if result.error is not None and may_pass(result.error) else []


def _closed_logs_rest(before: Stats, after: Stats) -> bool:
    """Returns whether no segment before the active one was exchanged; others may append to the active one."""
    active = max((path for path in before if path.endswith(names.LOG_FILE_SUFFIX)), default="")
    closed, now = (
        {path: stat for path, stat in seen.items() if path.endswith(names.LOG_FILE_SUFFIX) and path < active}
        for seen in (before, after)
    )
    return closed == now


class _LastPass(Watch):
    """Decides whether what a pass writes will be read again.  It will not be if the pass is the last one, which comes
    as far as any pass may."""

    def __init__(self) -> None:
        self._is_last = False

    def mapped(self, to_clean: LogToClean, end_offset: int) -> None:
        self._is_last = end_offset >= to_clean.first_uncleanable_offset

    def is_hollow(self, path: str) -> bool:
        return self._is_last and path.endswith(names.LOG_FILE_SUFFIX + names.CLEANED_FILE_SUFFIX)


def _compact(
    root: str,
    partitions: Iterable[TopicPartition],
    settings: TopicSettings,
    how: PassOptions,
    files: Files,
    watch: _LastPass,
    progress: Callable[[int], None] | None,
) -> Iterator[Compacted]:
    callbacks = Callbacks(progress=progress or (lambda size_bytes: None), mapped=watch.mapped)
    hold = hold_directory(root, files, how.clock)
    clean = False
    try:
        for partition in partitions:
            result = Compacted(partition)
            try:
                _compact_one(root, result, settings, how, files, callbacks)
                unlink_what_waits(hold)
            except KafkalogError as error:
                result.error = _what_is_wrong(error)
                if isinstance(error, DiskError):
                    hold.leave(clean=False)  # the directory counts as offline now: open it again for the next partition
                    hold = hold_directory(root, files, how.clock)
            yield result
        clean = True
    finally:
        hold.leave(clean=clean)


def _what_is_wrong(error: KafkalogError) -> KafkalogError:
    """Returns the cause if a small file did not parse: this takes the directory offline, as in Kafka, but its bytes are
    wrong, not the disk."""
    cause = error.__cause__
    return cause if isinstance(error, DiskError) and isinstance(cause, BadBytesError) else error


def _compact_one(
    root: str, result: Compacted, settings: TopicSettings, how: PassOptions, files: Files, callbacks: Callbacks
) -> None:
    by_ratio = RATIO in settings.given
    with _ready(root, result.partition, settings, how, files) as own:
        result.stats = own.compact(how.cleaner, by_ratio=by_ratio, callbacks=callbacks, lasts=how.lasts)
        result.held = _held(own.engine, result.stats.end_offset, how.clock.milliseconds())


@contextmanager
def _ready(
    root: str, partition: TopicPartition, settings: TopicSettings, how: PassOptions, files: Files
) -> Iterator[StorePartition]:
    """Opens a log that may be compacted now, as far as its replicas have it."""
    config = LogConfig.from_props(settings.of(partition.topic), {"file.delete.delay.ms": "0"})
    told = CheckpointLines(root, files).told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
    watermark = told.sure_watermark("nothing is compacted")
    with open_undamaged(root, partition, config, files, how.clock) as log:
        own = log.appends
        assert isinstance(own, StorePartition), log
        engine = own.engine
        if how.rolls and engine.active_segment.size > 0:
            engine.roll()
        if watermark is not None:
            engine.update_high_watermark(watermark)
        yield own


class Cleanable(NamedTuple):
    """Offsets of a log: where it starts, where the next pass would begin, and where it must stop."""

    log_start_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int


def cleanable(
    log_dir: str, partition: TopicPartition, settings: TopicSettings, how: PassOptions, files: Files = OS_FILES
) -> Cleanable:
    """Returns what a pass over a partition would clean now; opens the log as a pass does.

    Args:
        log_dir: The log directory.
        partition: The partition.
        settings: The topics' settings.
        how: Options of the pass.
        files: The file system; for tests.

    Returns:
        A `Cleanable`.

    Raises:
        LogDirLockedException: Another process has the directory.
        KafkalogError: The log cannot be opened.

    Example:
        >>> from kafkalog.toolbox.compact import TopicSettings
        >>> from kafkalog.toolbox.compact import PassOptions, cleanable
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("prices", config={"cleanup.policy": "compact"}).append(b"1", key=b"apple")
        >>> prices = kafkalog.TopicPartition("prices", 0)
        >>> cleanable("shop", prices, TopicSettings("shop"), PassOptions(rolls=True))
        Cleanable(log_start_offset=0, first_dirty_offset=0, first_uncleanable_offset=1)
    """
    hold = hold_directory(log_dir, files, how.clock)
    clean = False
    try:
        with _ready(log_dir, partition, settings, how, files) as own:
            engine = own.engine
            dirty = own.compact(how.cleaner, passes_max=0).end_offset
            uncleaned = first_uncleaned(engine, dirty, how.clock.milliseconds())
            limit, _ = calculate_cleanable_bytes(engine, dirty, max(dirty, uncleaned.offset))
            found = Cleanable(engine.log_start_offset, dirty, limit)
        clean = True
    finally:
        hold.leave(clean=clean)
    return found


def watermarks_are_blank(log_dir: str, partition: TopicPartition, files: Files = OS_FILES) -> bool:
    """Returns whether the checkpoint of high watermarks exists but has no lines.

    Such a file may have been emptied, or a broker has only created it so far.

    Args:
        log_dir: The log directory.
        partition: Any partition of it.
        files: The file system; for tests.

    Returns:
        True if the checkpoint is empty.

    Example:
        >>> from kafkalog.toolbox.compact import watermarks_are_blank
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> watermarks_are_blank("shop", kafkalog.TopicPartition("orders", 0))
        False
    """
    return CheckpointLines(log_dir, files).told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition).is_blank


def _held(log: UnifiedLog, first_dirty_offset: int, now_ms: int) -> Reason:
    """Returns what keeps a log from being compacted any further."""
    uncleaned = first_uncleaned(log, first_dirty_offset, now_ms)
    _, dirty_bytes = calculate_cleanable_bytes(log, first_dirty_offset, max(first_dirty_offset, uncleaned.offset))
    if dirty_bytes:
        ratio = log.config.min_cleanable_dirty_ratio
        return Reason("ratio", f"the dirty share of the log is not above {RATIO}={ratio}", first_dirty_offset)
    return tell(uncleaned, log.config, now_ms)


def __dir__() -> list[str]:
    return __all__
