"""LogCleanerManager: chooses the log that is cleaned next, and records how far each log has been cleaned.

`cleaner-offset-checkpoint`, one file a log directory, has the first dirty offset of each partition.  `states` records
which partitions are being cleaned or must not be; `uncleanable` records which ones failed, and why.  The manager knows
only current logs (`Logs`), and only how to read and write that file (`CleanerDirectories`).  A LogManager above
implements both.

A log's line is in the file of the log's directory.  A line outside its log (below the log start, beyond the end) is
corrected when the log is checked.  A file that cannot be read counts as empty, and the logs are cleaned from their
start.  Lines of partitions without a current log are removed at the next write.  If no line can hold the name of a
partition, its offset is kept here until the process ends.

Locks: `states.lock`, also for checkpoints and marks.  Logs are checked without it: a selection checks all logs, claims
the dirtiest, and checks that one again, because from then on no other code truncates or moves it.  Kafka checks all
logs under its lock.
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
    """The current logs.  Future logs are never cleaned."""

    def current_logs(self) -> list[UnifiedLog]:
        """Returns the current logs in the order of Kafka's map."""

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None: ...

    def is_there(self, partition: TopicPartition) -> bool:
        """Returns whether a partition has a current log, loaded or not."""


class CleanerDirectories(Protocol):
    """The log directories' cleaner-offset-checkpoint files."""

    @property
    def paths(self) -> Sequence[str]: ...

    def read_cleaner_offsets(self, log_dir: str) -> dict[TopicPartition, int] | None:
        """Returns the lines in the file's order; None if the directory is offline, or no longer held."""

    def write_cleaner_offsets(self, log_dir: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Returns whether the file was written."""


@dataclass(slots=True)
class PreCleanStats:
    """The result of a selection: how many logs are worth a pass, how many are overdue, and the longest delay."""

    cleanable_partitions: int = 0
    delayed_partitions: int = 0
    max_compaction_delay_ms: int = 0

    def update_max_compaction_delay(self, delay_ms: int) -> None:
        self.max_compaction_delay_ms = max(self.max_compaction_delay_ms, delay_ms)
        self.delayed_partitions += delay_ms > 0


class Grabbed(NamedTuple):
    """A log that this thread has claimed for cleaning, until `done_cleaning`."""

    claim: Claim
    to_clean: LogToClean


def _line(offsets: Offsets | None, log: UnifiedLog) -> int | None:
    """Returns the log's line in its directory's file."""
    return None if offsets is None else offsets.get(log.topic_partition)


def _if_worth_it(found: LogToClean | None) -> LogToClean | None:
    return found if found is not None and found.is_worth_it else None


class LogCleanerManager:
    """Thread-safe.  Belongs to one process."""

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
        self._odd: dict[str, dict[TopicPartition, int]] = {}  # by directory: the offsets that no line can hold

    def disown(self) -> None:
        """Resets the object in a forked child."""
        self.states.disown()
        self._kept = {}

    # --- the log to clean next -------------------------------------------------------------------------

    def grab_filthiest_compacted_log(self, stats: PreCleanStats | None = None) -> Grabbed | None:
        """Claims the dirtiest log among those that are worth a pass.

        The dirtiest log has the largest share of dirty bytes; of equal ones, the first in the map.  A log that cannot
        be checked is marked uncleanable, and the selection continues with the others.
        """
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
        """Returns the compacted logs that are open, on a disk that works, and not marked."""
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
        """Claims one log on request.  Any dirty bytes suffice, unless `by_ratio` requires the topic's dirty ratio.

        Returns None if there are none, or if the log is being cleaned or paused (`cleaning_state`).  Raises the error
        if the log or its checkpoint is damaged.
        """
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
        """Returns whether `log` is the partition's current log, and accepts changes."""
        return self._logs.get(log.topic_partition) is log and not log.refuses_changes

    def _look(self, log: UnifiedLog, checkpointed: int | None, now_ms: int, stats: PreCleanStats) -> LogToClean | None:
        """Returns what a pass would clean; None if the log is being removed, or cannot be checked.

        A line outside its log is corrected under a claim, so that no other code truncates the log meanwhile.
        """
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
        """Checks a claimed log by the line that the file has now."""
        return self._look_at(log, self._checkpoint_of(log), now_ms, stats)

    def _look_at(
        self, log: UnifiedLog, checkpointed: int | None, now_ms: int, stats: PreCleanStats
    ) -> LogToClean | None:
        partition = log.topic_partition
        try:
            return self._to_clean(log, checkpointed, now_ms, stats)
        except (KafkaStorageException, ClosedChannelException):
            return None  # the directory is offline, or the log was closed
        except TooManyOpenFilesException as error:
            log.context.logger.debug("the log is not checked: %s", error)
            return None  # the log itself is all right
        except MemoryError:
            raise
        except Exception as error:
            failed = LogCleaningException(f"Failed to calculate log cleaning stats for partition {partition}: {error}")
            failed.__cause__ = error
            if self.is_current(log):
                self.mark_partition_uncleanable(log, failed)
            return None

    def done_cleaning(self, claim: Claim, log_dir: str, end_offset: int) -> None:
        """Ends a pass: InProgress -> none, and writes `end_offset` to the checkpoint; Aborted -> Paused(n)."""
        states = self.states
        with states.lock:
            try:
                if states.holds(claim) and not states.is_aborted(claim.partition):
                    self.update_checkpoints(log_dir, add=(claim.partition, end_offset))
            finally:
                states.release(claim)

    # --- pauses ----------------------------------------------------------------------------------------

    def cleaning_state(self, partition: TopicPartition) -> CleaningState | None:
        return self.states.state_of(partition)

    def pause(self, partition: TopicPartition) -> Pause:
        """Returns a pause for a `with` block; see `states.Pause`."""
        return self.states.pause(partition)

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Makes the thread that cleans the partition leave it, and waits for that."""
        with self.states.pause(partition) as pause:
            pause.begin()

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Aborts the cleaning as `abort_cleaning`; no other begins until `resume_cleaning`.

        Raises IllegalStateException if another caller is waiting for the same (a Pause would wait too).  If the call is
        interrupted, nothing is paused.
        """
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
        """Raises LogCleaningAbortedException if a pause of the partition waits for its cleaning to end."""
        self.states.check_cleaning_aborted(partition)

    # --- retention -------------------------------------------------------------------------------------

    def pause_cleaning_for_non_compacted_partitions(self) -> list[tuple[UnifiedLog, Pause]]:
        """Pauses and returns the logs that retention may work on: not compacted, and neither cleaned nor paused.

        So two threads never work on a log whose policy is being changed.  The caller closes each pause, or drops it
        with the list.
        """
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
            found.clear()  # otherwise the traceback would keep the logs paused
            raise
        return found

    def deletable_logs(self) -> list[tuple[UnifiedLog, Claim]]:
        """Claims and returns the compacted logs that are neither cleaned nor paused, to delete their old segments.

        If `delete` is also a policy, age and size decide; segments below the log start are deleted in any case.
        """
        found: list[tuple[UnifiedLog, Claim]] = []
        claim: Claim | None = None
        try:
            for log in self._cleanable_logs():
                claim = self.states.claim(log.topic_partition)
                if claim is not None:
                    found.append((log, claim))
        except BaseException:
            found.clear()  # otherwise the traceback would keep the claims
            claim = None
            raise
        return found

    def done_deleting(self, claims: Iterable[Claim]) -> None:
        """Ends each claim: InProgress -> none, Aborted -> Paused(n).  Raises the first error at the end."""
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
        """Returns the first dirty offset of each partition that has been cleaned.

        If a partition has lines in two directories, the line of the log's directory counts.
        """
        found: dict[TopicPartition, int] = {}
        for log_dir in self.log_dirs:
            for partition, offset in (self._read(log_dir) or {}).items():
                log = self._logs.get(partition)
                if partition not in found or (log is not None and log.parent_dir == log_dir):
                    found[partition] = offset
        return found

    def first_dirty_offset(self, log: UnifiedLog) -> int:
        """Returns the offset at which the next pass over a log would begin."""
        return cleanable_offsets(log, self._checkpoint_of(log), self.clock.milliseconds()).first_dirty_offset

    def _checkpoint_of(self, log: UnifiedLog) -> int | None:
        return _line(self._read(log.parent_dir), log)

    def _read(self, log_dir: str) -> Offsets | None:
        """Returns a file's lines in the order of Kafka's map, with the offsets that no line can hold.

        Returns None if the directory is offline.
        """
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
        """Rewrites a directory's file without lines of partitions that have no current log.

        Also removes `remove`, and sets `add` if that log is in this directory.  If the disk fails, the directory goes
        offline, and the error is only logged.
        """

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
        """Moves a partition's line to another directory, and its mark.  May run twice."""
        with self.states.lock:
            offsets = self._read(source_dir)
            offset = None if offsets is None else offsets.get(partition)
            if offset is not None:
                self.update_checkpoints(destination_dir, add=(partition, offset))  # first: a duplicate beats a loss
                self.update_checkpoints(source_dir, remove=partition)
            log = self._logs.get(partition)
            if log is not None:
                self._marks.move(partition, log)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """Lowers the partition's line to `offset` if it is above it, and the log is compacted."""

        def lower(offsets: Offsets) -> Offsets | None:
            if offsets.get(partition, 0) <= offset:
                return None
            offsets[partition] = offset
            return offsets

        log = self._logs.get(partition)
        if log is not None and log.config.compact:
            self._change(log_dir, lower)

    def mend_checkpoints(self, log_dir: str) -> None:
        """Corrects the lines at a start, before any append.

        Removes the lines of logs that are elsewhere or do not exist, as a crash during a deletion or a move leaves
        them.  Resets lines beyond a log's end, as a power loss leaves them: they would cover later records, which no
        pass would read.  Kafka corrects the latter only at its first check.
        """

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
        """Reports a failed directory.  Its checkpoints are not read again."""
        Lines(LOGGER, log_dir).warning("Stopping cleaning logs in dir %s", log_dir)
        with self.states.lock:
            self._failed |= {log_dir}

    # --- uncleanable partitions --------------------------------------------------------------------------

    def mark_partition_uncleanable(self, log: UnifiedLog, error: BaseException) -> Uncleanable:
        """Excludes a partition from cleaning, and logs and stores the reason."""
        with self.states.lock:
            why = self._marks.mark(log, error, self.clock.milliseconds())
        log.context.logger.warning(
            "the log is not cleaned any more, until the next start: %s: %s", why.error, why.reason, exc_info=error
        )
        return why

    def uncleanable_partitions(self, log_dir: str | None = None) -> list[Uncleanable]:
        """Returns the uncleanable partitions of a directory, or all, each with the reason."""
        with self.states.lock:
            marked = self._marks.listed()
        return [why for why in marked if log_dir is None or why.log_dir == log_dir]

    def uncleanable_bytes(self, log_dir: str) -> int:
        """Returns how many bytes could be cleaned in a directory's uncleanable partitions."""
        marked = [self._logs.get(why.partition) for why in self.uncleanable_partitions(log_dir)]
        offsets = self._read(log_dir) if marked else None
        return sum([self._cleanable_bytes(log, _line(offsets, log)) for log in marked if log is not None])

    def _cleanable_bytes(self, log: UnifiedLog, checkpointed: int | None) -> int:
        first_dirty, uncleanable, _ = cleanable_offsets(log, checkpointed, self.clock.milliseconds())
        return calculate_cleanable_bytes(log, first_dirty, uncleanable)[1]

    def maintain_uncleanable_partitions(self) -> None:
        """Drops the marks of partitions that no longer exist."""
        with self.states.lock:
            self._marks.keep(lambda log: self._logs.get(log.topic_partition) is log)
