"""Compact partitions offline, as a broker's cleaner would: told by doing it on an overlay of the directory, or done.

Both ways run the same passes (`LogManager.compact`), so what is told is what happens (to a few bytes, if a compressed
batch keeps a tombstone: its delete horizon is the time of the pass).  On the overlay the last pass of a log
writes nothing but lengths; what an earlier one writes, where the map is too small for one, lies in a temporary folder
until the partition is done.

Which topics are compacted a log directory does not know for sure: only those whose cleanup.policy somebody said, beside
the data or for this run.  The high watermark is the checkpoint's, where it has a line: a record whose later one not all
replicas have stays, and where the checkpoint cannot be read nothing is compacted.  Producers do not expire here, so the
headers of their last batches stay.  The controller's log is left alone: it goes by its own snapshots.
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

__all__ = ["Cleanable", "Compacted", "PassOptions", "cleanable", "compact", "left_alone", "watermarks_are_blank"]

RATIO = "min.cleanable.dirty.ratio"


class PassOptions(NamedTuple):
    """`cleaner`: the memory; `rolls`: active segments with records are closed first, so that they count, too; `lasts`:
    the last offset of each key as somebody else has found it, for one partition."""

    cleaner: CleanerConfig = CleanerConfig(num_threads=1)
    rolls: bool = False
    clock: Clock = SYSTEM_CLOCK
    lasts: LastOffsets | None = None


@dataclass
class Compacted:
    """One partition.  `held`: what keeps the rest, or all, from being compacted; `error`: what is wrong with it, and
    then it is as it was, but for what earlier passes did."""

    partition: TopicPartition
    stats: CompactionStats | None = None
    held: Reason | None = None
    error: KafkalogError | None = None

    @property
    def expected_s(self) -> float:
        """How long it takes, at the rate at which it was read just now: what is written takes as long as reading it."""
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
    """The partitions that are not to be compacted.  `policy_is_said`: the policy of topics without one of their own is
    what the defaults say."""
    found = {}
    checkpoints, is_copied = CheckpointLines(log_dir, files), copies_known(log_dir, files)
    for partition in partitions:
        config = settings.of(partition.topic)
        if partition.topic == names.CLUSTER_METADATA_TOPIC:
            found[partition] = Reason("metadata", "the controller's log, which goes by its own snapshots")
        elif is_copied(partition):
            found[partition] = Reason(
                "tiered", "some of it was copied to a remote tier, and a compacted topic cannot be tiered"
            )
        elif not (policy_is_said or settings.says(partition.topic, "cleanup.policy")):
            trace = ", but a cleaner has been there" if was_compacted(partition, checkpoints) else ""
            found[partition] = Reason(
                "unknownPolicy",
                f"nobody said its cleanup.policy ({settings.why_unknown(partition.topic)}){trace}: with the topic's "
                "name, -X cleanup.policy=compact says it",
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
    """Compacts partitions of `log_dir`, or only tells.

    `act=False` writes nothing and takes no lock; beside somebody who changes the directory it looks again, and gives up
    with BeingWrittenException in its `error`.  `progress` is called with the bytes of logs just read or written.
    LogDirLockedException when another process has the directory; what is wrong with one partition is in its `error`,
    and the others go on.
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
    """Whether nobody exchanged segments below what was the active one, to which anybody may append."""
    active = max((path for path in before if path.endswith(names.LOG_FILE_SUFFIX)), default="")
    closed, now = (
        {path: stat for path, stat in seen.items() if path.endswith(names.LOG_FILE_SUFFIX) and path < active}
        for seen in (before, after)
    )
    return closed == now


class _LastPass(Watch):
    """Whether what a pass writes will be read again: not by itself, and it is the last one if it comes as far as any
    may."""

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
                    hold.leave(clean=False)  # the directory counts as offline now: the next one starts afresh
                    hold = hold_directory(root, files, how.clock)
            yield result
        clean = True
    finally:
        hold.leave(clean=clean)


def _what_is_wrong(error: KafkalogError) -> KafkalogError:
    """A small file that does not parse takes the directory offline, as in Kafka; wrong are its bytes, not the disk."""
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
    """A log that may be compacted now, as far as its replicas have it."""
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
    """Offsets of a log: where it starts, what the next pass would begin with, and what it must leave alone."""

    log_start_offset: int
    first_dirty_offset: int
    first_uncleanable_offset: int


def cleanable(
    log_dir: str, partition: TopicPartition, settings: TopicSettings, how: PassOptions, files: Files = OS_FILES
) -> Cleanable:
    """What a pass over a partition would clean now; it is opened as for one.  LogDirLockedException and the errors of
    an open."""
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
    """Whether the checkpoint of high watermarks is there, but empty: one that was emptied looks like it, and one that a
    broker has only made so far."""
    return CheckpointLines(log_dir, files).told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition).is_blank


def _held(log: UnifiedLog, first_dirty_offset: int, now_ms: int) -> Reason:
    """What keeps a log from being compacted any further."""
    uncleaned = first_uncleaned(log, first_dirty_offset, now_ms)
    _, dirty_bytes = calculate_cleanable_bytes(log, first_dirty_offset, max(first_dirty_offset, uncleaned.offset))
    if dirty_bytes:
        ratio = log.config.min_cleanable_dirty_ratio
        return Reason("ratio", f"no more of it is dirty than {RATIO}={ratio} allows for", first_dirty_offset)
    return tell(uncleaned, log.config, now_ms)


def __dir__() -> list[str]:
    return __all__
