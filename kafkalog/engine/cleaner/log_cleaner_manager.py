"""LogCleanerManager: which log is cleaned next, by whom, and how far each has been cleaned.

How far is in `cleaner-offset-checkpoint`, one file a log directory, with the first dirty offset of each partition;
who cleans what, and who may not, is in `states`; which partitions failed, and why, in `uncleanable`.  Of the logs it
knows those that are current (`Logs`), of directories only how to read and write that file (`CleanerDirectories`):
both are a manager's, which stands above.

The checkpoint of a log is the one of the directory that it lies in.  One that lies beside its log (below the start,
beyond the end) is mended when the log is looked at; a file that cannot be read counts for nothing, and the logs are
cleaned from their start.  Lines of partitions that are no current log's go at the next write.  A folder whose name no
line can hold has its offset here, until the process ends.

Locks: `states.lock` for checkpoints and marks, too.  Logs are looked at without it: a grab looks at all, claims the
filthiest, and looks at that again, since from then on nobody cuts or moves it.  Kafka looks at all under its lock.
Mirrors org.apache.kafka.storage.internals.log.LogCleanerManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kafkalog._native.codec.java_hash import JavaHashMap, topic_partition_hash
from kafkalog.engine.cleaner.states import ABORTED, Claim, CleaningState, CleaningStates, Pause
from kafkalog.engine.cleaner.to_clean import (
    LogToClean,
    calculate_cleanable_bytes,
    cleanable_offsets,
    max_compaction_delay,
)
from kafkalog.engine.cleaner.uncleanable import Uncleanable, UncleanablePartitions
from kafkalog.engine.files import Clock, LogDirFailureChannel
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    ClosedChannelException,
    IllegalStateException,
    KafkaStorageException,
    LogCleaningException,
    TooManyOpenFilesException,
)

LOGGER = "kafkalog.cleaner"

Offsets = JavaHashMap[TopicPartition, int]


class Logs(Protocol):
    """The logs that there are; future ones are nobody's here."""

    def current_logs(self) -> list[UnifiedLog]:
        """In the order of Kafka's map."""

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None: ...

    def is_there(self, partition: TopicPartition) -> bool:
        """Whether it has a current log, be it one that nobody has asked for yet."""


class CleanerDirectories(Protocol):
    """The log directories' cleaner-offset-checkpoint files."""

    @property
    def paths(self) -> Sequence[str]: ...

    def read_cleaner_offsets(self, log_dir: str) -> dict[TopicPartition, int] | None:
        """In the file's order; None where the directory is offline, or nobody's any more."""

    def write_cleaner_offsets(self, log_dir: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether it was written."""


@dataclass(slots=True)
class PreCleanStats:
    """What a grab found: how many logs are worth a pass, and how many have waited too long, for how long at most."""

    cleanable_partitions: int = 0
    delayed_partitions: int = 0
    max_compaction_delay_ms: int = 0

    def update_max_compaction_delay(self, delay_ms: int) -> None:
        self.max_compaction_delay_ms = max(self.max_compaction_delay_ms, delay_ms)
        self.delayed_partitions += delay_ms > 0


class Grabbed(NamedTuple):
    """A log that is this thread's to clean, until `done_cleaning`."""

    claim: Claim
    to_clean: LogToClean


def _line(offsets: Offsets | None, log: UnifiedLog) -> int | None:
    """The log's in its directory's file."""
    return None if offsets is None else offsets.get(log.topic_partition)


def _if_worth_it(found: LogToClean | None) -> LogToClean | None:
    return found if found is not None and found.is_worth_it else None


class LogCleanerManager:
    """Thread-safe; of one process."""

    def __init__(
        self,
        directories: CleanerDirectories,
        logs: Logs,
        failure_channel: LogDirFailureChannel,
        clock: Clock,
    ) -> None:
        self.states = CleaningStates()
        self.log_dirs = tuple(directories.paths)
        self.dirtiest_log_cleanable_ratio = 0.0
        self.time_of_last_run_ms = clock.milliseconds()
        self.clock = clock
        self._directories = directories
        self._logs = logs
        self._failure_channel = failure_channel
        self._failed: frozenset[str] = frozenset()  # guarded by states.lock, like all below
        self._marks = UncleanablePartitions()
        self._kept: dict[TopicPartition, list[Pause]] = {}
        self._odd: dict[str, dict[TopicPartition, int]] = {}  # of each directory what no line of its file can hold

    def disown(self) -> None:
        """In a forked child."""
        self.states.disown()
        self._kept = {}

    # --- what is cleaned next --------------------------------------------------------------------------

    def grab_filthiest_compacted_log(self, stats: PreCleanStats | None = None) -> Grabbed | None:
        """Claims the log with the largest share of dirty bytes among those that are worth a pass; of equals the one
        that comes first in the map.  A log that cannot be looked at is marked uncleanable, and the others go on."""
        stats = PreCleanStats() if stats is None else stats
        self.time_of_last_run_ms = now_ms = self.clock.milliseconds()
        candidates = self._candidates()
        offsets = {log_dir: self._read(log_dir) for log_dir in {log.parent_dir for log in candidates}}  # once a grab
        looked = [self._look(log, _line(offsets.get(log.parent_dir), log), now_ms, stats) for log in candidates]
        dirty = [found for found in looked if found is not None and found.total_bytes > 0]
        self.dirtiest_log_cleanable_ratio = max([found.cleanable_ratio for found in dirty], default=0.0)
        worth_it = [found for found in dirty if found.is_worth_it]
        stats.cleanable_partitions = len(worth_it)
        for found in sorted(worth_it, key=lambda found: -found.cleanable_ratio):
            grabbed = self._grab(found.log, lambda log: _if_worth_it(self._look_again(log, now_ms, PreCleanStats())))
            if grabbed is not None:
                return grabbed
        return None

    def _candidates(self) -> list[UnifiedLog]:
        return [log for log in self._cleanable_logs() if self.states.state_of(log.topic_partition) is None]

    def _cleanable_logs(self) -> list[UnifiedLog]:
        """The compacted ones that are open, on a disk that works, and not marked."""
        return [
            log
            for log in self._logs.current_logs()
            if log.config.compact
            and not log.refuses_changes
            and not log.lacks_remote_tier
            and not self._failure_channel.has_offline_log_dir(log.parent_dir)
            and not self._marks.has(log)
        ]

    def grab(self, log: UnifiedLog, *, by_ratio: bool = False) -> Grabbed | None:
        """Claims one log for who asked for it: dirty bytes are enough, unless it goes `by_ratio`.  None where there are
        none, or somebody is at it (`cleaning_state`).  What is wrong with the log, or its checkpoint, is raised."""
        now_ms = self.clock.milliseconds()

        def look(log: UnifiedLog) -> LogToClean | None:
            found = self._to_clean(log, self._checkpoint_of(log), now_ms, PreCleanStats())
            return _if_worth_it(found) if by_ratio else found if found.cleanable_bytes > 0 else None

        return self._grab(log, look)

    def _grab(self, log: UnifiedLog, look: Callable[[UnifiedLog], LogToClean | None]) -> Grabbed | None:
        claim = self.states.claim(log.topic_partition)
        if claim is None:
            return None
        try:
            if self.is_current(log):
                to_clean = look(log)
                if to_clean is not None:
                    return Grabbed(claim, to_clean)
        except BaseException:
            self.states.release(claim)
            raise
        self.states.release(claim)
        return None

    def is_current(self, log: UnifiedLog) -> bool:
        """Whether it is the partition's log, and takes changes."""
        return self._logs.get(log.topic_partition) is log and not log.refuses_changes

    def _look(self, log: UnifiedLog, checkpointed: int | None, now_ms: int, stats: PreCleanStats) -> LogToClean | None:
        """What a pass would clean; None where the log is going, or cannot be looked at.  A checkpoint that lies beside
        its log is mended, under a claim: nobody cuts the log meanwhile."""
        if checkpointed is None or log.log_start_offset <= checkpointed <= log.log_end_offset:
            return self._look_at(log, checkpointed, now_ms, stats)
        claim = self.states.claim(log.topic_partition)
        if claim is None:
            return None
        try:
            return self._look_again(log, now_ms, stats) if self.is_current(log) else None
        finally:
            self.states.release(claim)

    def _to_clean(self, log: UnifiedLog, checkpointed: int | None, now_ms: int, stats: PreCleanStats) -> LogToClean:
        first_dirty, uncleanable, force = cleanable_offsets(log, checkpointed, now_ms)
        if force:
            self.update_checkpoints(log.parent_dir, add=(log.topic_partition, first_dirty))
        delay_ms = max_compaction_delay(log, first_dirty, now_ms)
        stats.update_max_compaction_delay(delay_ms)
        return LogToClean.of(log, first_dirty, uncleanable, delay_ms > 0)

    def _look_again(self, log: UnifiedLog, now_ms: int, stats: PreCleanStats) -> LogToClean | None:
        """Under a claim, by the line that the file has now."""
        return self._look_at(log, self._checkpoint_of(log), now_ms, stats)

    def _look_at(
        self, log: UnifiedLog, checkpointed: int | None, now_ms: int, stats: PreCleanStats
    ) -> LogToClean | None:
        partition = log.topic_partition
        try:
            return self._to_clean(log, checkpointed, now_ms, stats)
        except (KafkaStorageException, ClosedChannelException):
            return None  # the directory is offline, or the log was let go
        except TooManyOpenFilesException as error:
            log.context.logger.debug("the log is not looked at: %s", error)
            return None  # nothing is wrong with it
        except MemoryError:
            raise
        except Exception as error:
            failed = LogCleaningException(f"Failed to calculate log cleaning stats for partition {partition}: {error}")
            failed.__cause__ = error
            if self.is_current(log):
                self.mark_partition_uncleanable(log, failed)
            return None

    def done_cleaning(self, claim: Claim, log_dir: str, end_offset: int) -> None:
        """The end of a pass: InProgress -> none, and `end_offset` is checkpointed; Aborted -> Paused(n)."""
        states = self.states
        with states.lock:
            try:
                if states.holds(claim) and not states.is_aborted(claim.partition):
                    self.update_checkpoints(log_dir, add=(claim.partition, end_offset))
            finally:
                states.release(claim)

    # --- who may not be cleaned ------------------------------------------------------------------------

    def cleaning_state(self, partition: TopicPartition) -> CleaningState | None:
        return self.states.state_of(partition)

    def pause(self, partition: TopicPartition) -> Pause:
        """A pause for a `with` block; see `states.Pause`."""
        return self.states.pause(partition)

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Has whoever cleans the partition leave, and waits for that."""
        with self.states.pause(partition) as pause:
            pause.begin()

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """`abort_cleaning`, and nobody begins until `resume_cleaning`.  IllegalStateException where somebody else is
        waiting for the same (a Pause would wait as well).  Interrupted, it has paused nothing."""
        states = self.states
        pause = states.pause(partition)
        try:
            with states.lock:
                state = states.state_of(partition)
                if state == ABORTED:
                    raise IllegalStateException(
                        f"Compaction for partition {partition} cannot be aborted and paused since it is in "
                        f"{state} state."
                    )
                states.add(pause)
            states.wait(partition)
            with states.lock:
                self._kept.setdefault(partition, []).append(pause)
        except BaseException:
            pause.close()
            raise

    def resume_cleaning(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes one `abort_and_pause_cleaning` of each.  IllegalStateException for one that is not paused so."""
        for partition in partitions:
            self._resume(partition)

    def _resume(self, partition: TopicPartition) -> None:
        states = self.states
        with states.lock:
            state = states.state_of(partition)
            pause = self._take_kept(partition)
            if pause is None and state is not None and not state.pauses:
                raise IllegalStateException(
                    f"Compaction for partition {partition} cannot be resumed since it is in {state} state."
                )
            if pause is None:
                raise IllegalStateException(
                    f"Compaction for partition {partition} cannot be resumed since it is not paused."
                )
            pause.close()

    def _take_kept(self, partition: TopicPartition) -> Pause | None:
        kept = [pause for pause in self._kept.pop(partition, []) if self.states.is_paused_by(pause)]
        if len(kept) > 1:
            self._kept[partition] = kept[:-1]
        return kept[-1] if kept else None

    def check_cleaning_aborted(self, partition: TopicPartition) -> None:
        """LogCleaningAbortedException where somebody waits for the partition to be left."""
        self.states.check_cleaning_aborted(partition)

    # --- retention -------------------------------------------------------------------------------------

    def pause_cleaning_for_non_compacted_partitions(self) -> list[tuple[UnifiedLog, Pause]]:
        """The logs that retention may work on, each paused: those that are not compacted and that nobody else is at.
        Who changes a topic from one policy to the other has no two threads at a log.  Each pause is to be closed, or
        let go with the list."""
        logs = [log for log in self._logs.current_logs() if not log.config.compact]
        with self.states.lock:
            return self._paused(logs)

    def _paused(self, logs: Sequence[UnifiedLog]) -> list[tuple[UnifiedLog, Pause]]:
        found: list[tuple[UnifiedLog, Pause]] = []
        try:
            for log in logs:
                if self.states.state_of(log.topic_partition) is None:
                    found.append((log, self.states.pause(log.topic_partition)))
                    self.states.add(found[-1][1])
        except BaseException:
            found.clear()  # else whoever keeps the traceback keeps them paused
            raise
        return found

    def deletable_logs(self) -> list[tuple[UnifiedLog, Claim]]:
        """The compacted logs that nobody is at, claimed, so that their old segments are deleted: where `delete` is a
        policy, too, by age and size; in any case what lies below the log's start."""
        found: list[tuple[UnifiedLog, Claim]] = []
        claim: Claim | None = None
        try:
            for log in self._cleanable_logs():
                claim = self.states.claim(log.topic_partition)
                if claim is not None:
                    found.append((log, claim))
        except BaseException:
            found.clear()  # as above, of claims
            claim = None
            raise
        return found

    def done_deleting(self, claims: Iterable[Claim]) -> None:
        """InProgress -> none, Aborted -> Paused(n), of each; the first IllegalStateException when all are done."""
        first: IllegalStateException | None = None
        for claim in claims:
            try:
                self.states.release(claim)
            except IllegalStateException as error:
                first = first or error
        if first is not None:
            raise first

    # --- checkpoints -----------------------------------------------------------------------------------

    def all_cleaner_checkpoints(self) -> dict[TopicPartition, int]:
        """The first dirty offset of each partition that has been cleaned; of one with lines in two directories, that
        of the directory it lies in."""
        found: dict[TopicPartition, int] = {}
        for log_dir in self.log_dirs:
            for partition, offset in (self._read(log_dir) or {}).items():
                log = self._logs.get(partition)
                if partition not in found or (log is not None and log.parent_dir == log_dir):
                    found[partition] = offset
        return found

    def first_dirty_offset(self, log: UnifiedLog) -> int:
        """Where the next pass over a log would begin."""
        return cleanable_offsets(log, self._checkpoint_of(log), self.clock.milliseconds()).first_dirty_offset

    def _checkpoint_of(self, log: UnifiedLog) -> int | None:
        return _line(self._read(log.parent_dir), log)

    def _read(self, log_dir: str) -> Offsets | None:
        """As Kafka's map of a file, with what no line can hold; None where the directory is offline."""
        with self.states.lock:
            lines = None if log_dir in self._failed else self._directories.read_cleaner_offsets(log_dir)
            odd = self._odd.get(log_dir, {})
        if lines is None:
            return None
        offsets: Offsets = JavaHashMap(topic_partition_hash, len(lines))
        offsets.update(lines)
        offsets.update(odd)
        return offsets

    def update_checkpoints(
        self,
        log_dir: str,
        *,
        add: tuple[TopicPartition, int] | None = None,
        remove: TopicPartition | None = None,
    ) -> None:
        """Writes a directory's file anew: without the lines of partitions that are no current log's, without `remove`,
        with `add` where that log lies in this directory.  A directory that fails goes offline, and is only logged."""

        def change(offsets: Offsets) -> Offsets:
            changed = JavaHashMap.copy_of(self._without_strangers(offsets), topic_partition_hash)  # Kafka copies, too
            if remove is not None:
                changed.pop(remove, None)
            log = None if add is None else self._logs.get(add[0])
            if add is not None and (log is None or log.parent_dir == log_dir):
                changed[add[0]] = add[1]
            return changed

        self._change(log_dir, change)

    def _without_strangers(self, offsets: Offsets) -> Offsets:
        known: Offsets = JavaHashMap(topic_partition_hash)
        for partition, offset in offsets.items():
            if self._logs.is_there(partition):
                known[partition] = offset
        return known

    def _change(self, log_dir: str, change: Callable[[Offsets], Offsets | None]) -> None:
        with self.states.lock:
            self.states.check_process()
            offsets = self._read(log_dir)
            changed = None if offsets is None else change(offsets)
            if changed is not None:
                self._odd[log_dir] = {
                    partition: offset
                    for partition, offset in changed.items()
                    if not OffsetCheckpointFile.can_hold(partition)
                }
                self._directories.write_cleaner_offsets(log_dir, changed)

    def alter_checkpoint_dir(self, partition: TopicPartition, source_dir: str, destination_dir: str) -> None:
        """A partition moved: its line goes along, and its mark.  May be done twice."""
        with self.states.lock:
            offsets = self._read(source_dir)
            offset = None if offsets is None else offsets.get(partition)
            if offset is not None:
                self.update_checkpoints(destination_dir, add=(partition, offset))  # first: better twice than not at all
                self.update_checkpoints(source_dir, remove=partition)
            log = self._logs.get(partition)
            if log is not None:
                self._marks.move(partition, log)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """Lowers the partition's line to `offset` where it lies above it, and the log is compacted."""

        def lower(offsets: Offsets) -> Offsets | None:
            if offsets.get(partition, 0) <= offset:
                return None
            offsets[partition] = offset
            return offsets

        log = self._logs.get(partition)
        if log is not None and log.config.compact:
            self._change(log_dir, lower)

    def mend_checkpoints(self, log_dir: str) -> None:
        """At a start, before anybody appends: forgets the lines of logs that lie elsewhere or nowhere, as a crash in a
        deletion or a move leaves them, and what a power loss left beyond a log's end.  They would count for records
        that come later, which no pass would look at.  Kafka sees to the latter with its first look only."""

        def mend(offsets: Offsets) -> Offsets | None:
            mended = JavaHashMap.copy_of(offsets, topic_partition_hash)
            for partition, offset in offsets.items():
                log = self._logs.get(partition)
                if log is None or log.parent_dir != log_dir:
                    mended.pop(partition, None)
                elif offset > log.log_end_offset:
                    mended[partition] = log.log_start_offset
            return None if mended == offsets else mended

        self._change(log_dir, mend)

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Its checkpoints are not looked at again."""
        Lines(LOGGER, log_dir).warning("Stopping cleaning logs in dir %s", log_dir)
        with self.states.lock:
            self._failed |= {log_dir}

    # --- uncleanable partitions --------------------------------------------------------------------------

    def mark_partition_uncleanable(self, log: UnifiedLog, error: BaseException) -> Uncleanable:
        """From now on the partition is left alone; why is logged and kept."""
        with self.states.lock:
            why = self._marks.mark(log, error, self.clock.milliseconds())
        log.context.logger.warning(
            "the log is not cleaned any more, until the next start: %s: %s", why.error, why.reason, exc_info=error
        )
        return why

    def uncleanable_partitions(self, log_dir: str | None = None) -> list[Uncleanable]:
        """Those of a directory, or all, with the reason of each."""
        with self.states.lock:
            marked = self._marks.listed()
        return [why for why in marked if log_dir is None or why.log_dir == log_dir]

    def uncleanable_bytes(self, log_dir: str) -> int:
        """What could be cleaned in a directory's uncleanable partitions."""
        marked = [self._logs.get(why.partition) for why in self.uncleanable_partitions(log_dir)]
        offsets = self._read(log_dir) if marked else None
        return sum([self._cleanable_bytes(log, _line(offsets, log)) for log in marked if log is not None])

    def _cleanable_bytes(self, log: UnifiedLog, checkpointed: int | None) -> int:
        first_dirty, uncleanable, _ = cleanable_offsets(log, checkpointed, self.clock.milliseconds())
        return calculate_cleanable_bytes(log, first_dirty, uncleanable)[1]

    def maintain_uncleanable_partitions(self) -> None:
        """Forgets the marks of partitions that are no more."""
        with self.states.lock:
            self._marks.keep(lambda log: self._logs.get(log.topic_partition) is log)
