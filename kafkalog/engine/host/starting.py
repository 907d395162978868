"""The start of a manager, as far as logs go: all are loaded (`loading`), put in their place, and what crashes and moves
that were cut short left is settled.

`load` has threads do it, side by side; `finish` is the caller's thread alone, and judges: an error of the disk's took
the directory offline, any other one fails the start.  What it found out of each directory (`had_clean`, `all_loaded`)
is what the end asks before it writes there.  Mirrors LogManager.loadLogs (4.4.0).

On demand nothing is loaded but what a start alone can settle: a partition with two folders, and `-delete` ones where
there is maintenance.  The others wait in the registry, and `load_waiting` loads one as the start would have.

Takes no lock: before the manager runs nobody else changes its logs.  The loading threads meet in LogContexts, the
LogRegistry, DoomedLogs and Duplicates, which bear that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import is_io_exception
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import move_notes
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.duplicates import Duplicates
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.jobs import Jobs, Outcome
from kafkalog.engine.host.loading import Found, LoadProgress, Remaining, load, look
from kafkalog.engine.host.log_contexts import AS_ALL, LogContexts, Opening
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.manager_metrics import gauges_of_start
from kafkalog.engine.host.registry import LogRegistry, WaitingLog
from kafkalog.engine.log.damage import lost_end, lost_end_error, refuse
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.index_reader import check_whole_entries
from kafkalog.errors import DiskFull, KafkalogError, KafkaStorageException

LOGGER = "kafkalog.manager"

IsStray = Callable[[UnifiedLog], bool]
Progress = Callable[[LoadProgress], object]


def _nobody_is(log: UnifiedLog) -> bool:
    return False


def _waiting(of: Found, folder: str, partition: TopicPartition) -> WaitingLog:
    return WaitingLog(
        of.held.path,
        folder,
        of.recovery_points.get(partition),
        of.log_starts.get(partition),
        None,
        of.had_clean_shutdown,
    )


def _is_aside(folder: str) -> bool:
    """Whether it is no partition's any more."""
    return names.is_delete_dir(folder) or names.is_stray_dir(folder)


def _refuse_lost(log: UnifiedLog, flushed: int) -> None:
    """Closes a log that has less than was flushed, or an index of aborted transactions that was cut, and raises."""
    try:
        if flushed > max(log.log_end_offset, log.log_start_offset):
            raise lost_end_error(flushed, log.log_end_offset, log.dir)
        for segment in log.log_segments():
            check_whole_entries(segment.txn_index.path, segment.txn_index.end)
    except BaseException:
        log.close_quietly()
        raise


class Loaded(NamedTuple):
    """How the jobs ended, of each directory."""

    found: list[Found]
    outcomes: dict[str, list[Outcome]]


class Start:
    """Of one manager; used once."""

    def __init__(
        self,
        contexts: LogContexts,
        directories: LogDirectories,
        registry: LogRegistry,
        duplicates: Duplicates,
        doomed: DoomedLogs,
        cleaning: Cleaning,
        jobs: Jobs,
    ) -> None:
        self._contexts = contexts
        self._directories = directories
        self._failure_channel = directories.failure_channel
        self._registry = registry
        self._duplicates = duplicates
        self._doomed = doomed
        self._cleaning = cleaning
        self._jobs = jobs
        self.on_demand = contexts.settings.on_demand
        self.opening = AS_ALL  # of logs that a start loads
        self._remaining: Remaining | None = None  # while it loads
        self._is_stray: IsStray = _nobody_is
        self.had_clean: dict[str, bool] = {}
        self.all_loaded: dict[str, bool] = {}

    @property
    def progress(self) -> LoadProgress | None:
        remaining = self._remaining
        return None if remaining is None else remaining.progress()

    def load(self, is_stray: IsStray, progress: Progress | None) -> Loaded:
        """Loads what there is.  Interrupted, or told to stop, it leaves the rest undone."""
        found: list[Found] = []
        self._is_stray = is_stray
        for path, held in self._directories.live.items():
            try:
                of = self._look(held)
            except OSError as error:
                if isinstance(error, DiskFull):
                    raise
                if not isinstance(error, KafkaStorageException):
                    self._failure_channel.give_up(path, f"Error while loading log dir {path}", error)
                continue
            self.had_clean[path] = of.had_clean_shutdown
            self.all_loaded[path] = not of.folders
            found.append(of)
        self._contexts.found({of.held.path: of.folders for of in found})
        if self.on_demand:
            found = self._let_wait(found)
        for of in found:
            if self.on_demand and not of.folders:
                continue
            state = "clean shutdown" if of.had_clean_shutdown else "recovery: no clean shutdown file was found"
            Lines(LOGGER, of.held.path).info("loading %d logs (%s)", len(of.folders), state)
        self._remaining = remaining = Remaining(
            {of.held.path: len(of.folders) for of in found}, self._contexts.settings.syncing_threads, progress
        )
        self._contexts.metrics.show(remaining, gauges_of_start)
        try:
            outcomes = load(found, remaining, self._load_folder, self._contexts.settings, self._jobs)
        finally:
            self._contexts.metrics.hide(remaining)
            self._remaining = None
        return Loaded(found, outcomes)

    def _look(self, held: HeldDirectory) -> Found:
        """What a directory has to load; other folders are passed over.  OSError."""
        return look(held)

    def finish(self, loaded: Loaded) -> None:
        """Raises what fails the start; else the logs are there that count."""
        try:
            for of in loaded.found:
                self._judge_load(of, loaded.outcomes[of.held.path])
        except BaseException:
            for outcomes in loaded.outcomes.values():
                outcomes.clear()  # the error's traceback has the log's open files, and holds these
            raise
        self._duplicates.finish()
        if not self.on_demand:
            self._forget_what_is_gone(loaded.found)

    def _forget_what_is_gone(self, found: Sequence[Found]) -> None:
        """The notes of moves that have ended, and the lines of partitions that are not there."""
        failed = self._failure_channel
        whole = [path for path in self._directories.live if self.all_loaded.get(path)]
        whole = [path for path in whole if not failed.has_offline_log_dir(path)]
        move_notes.clear(whole, self._directories.files, failed)
        for of in found:
            self._forget_lines_of_nobody(of)

    def _forget_lines_of_nobody(self, of: Found) -> None:
        """A line that a crash left behind its partition would speak for the next one of that name."""
        path = of.held.path
        if self.all_loaded[path] and not self._failure_channel.has_offline_log_dir(path):
            known = self._registry.in_dir(path)
            if any(partition not in known for partition in (*of.recovery_points, *of.log_starts)):
                self._directories.checkpoint(path, self._registry)
            self._cleaning.loaded(path)

    def _judge_load(self, of: Found, outcomes: Sequence[Outcome]) -> None:
        path = of.held.path
        for folder, outcome in zip(of.folders, outcomes, strict=True):
            error = outcome.error
            if isinstance(error, DiskFull):
                raise error
            if isinstance(error, KafkaStorageException) and self._is_of_the_disk(error):
                lines_of_folder(LOGGER, folder).error("the directory is offline, for loading this failed: %s", error)
            elif isinstance(error, OSError) and not isinstance(error, KafkalogError):
                self._failure_channel.give_up(path, f"Error while loading log dir {path}", error)
            elif error is not None:
                try:
                    raise error
                finally:
                    del error, outcome  # likewise
        self.all_loaded[path] = all(outcome.done for outcome in outcomes)

    def _is_of_the_disk(self, error: KafkaStorageException) -> bool:
        """Whether it was caused by what Kafka calls an IOException: a checkpoint that does not parse is one."""
        return is_io_exception(error.__cause__)

    def _let_wait(self, found: Sequence[Found]) -> list[Found]:
        """What is loaded now; the rest waits in the registry."""
        folders = [folder for of in found for folder in of.folders if not _is_aside(folder)]
        counts = Counter(map(names.parse_topic_partition_name, folders))
        return [self._loaded_now(of, counts) for of in found]

    def _loaded_now(self, of: Found, counts: Mapping[TopicPartition, int]) -> Found:
        watermarks = of.held.high_watermarks.read_or_empty()
        now = []
        for folder in of.folders:
            partition = names.parse_topic_partition_name(folder)
            if names.is_delete_dir(folder) and self._contexts.settings.maintenance:
                now.append(folder)
            elif _is_aside(folder):
                pass
            elif counts[partition] > 1:
                now.append(folder)  # a start alone can settle it
            else:
                is_future = os.path.basename(folder) != str(partition)
                waiting = _waiting(of, folder, partition)._replace(high_watermark=watermarks.get(partition))
                self._registry.let_wait(partition, waiting, is_future=is_future)
        return of._replace(folders=now)

    def _load_folder(self, folder: str, of: Found, remaining_segments: Callable[[int], object]) -> None:
        partition = names.parse_topic_partition_name(folder)
        opening = AS_ALL if names.is_delete_dir(folder) else self.opening  # what is deleted, nobody is told of
        self._load_log(partition, _waiting(of, folder, partition), opening, remaining_segments=remaining_segments)

    def load_waiting(self, partition: TopicPartition, opening: Opening = AS_ALL, *, is_future: bool) -> None:
        """Loads a log that waits.  Errors as UnifiedLog.load, and it goes on to wait, for a recovery."""
        found = self._registry.waiting(partition, is_future=is_future)
        assert found is not None, partition
        self._registry.let_wait(partition, found._replace(clean=False), is_future=is_future)
        self._load_log(partition, found, opening)
        self._registry.forget_waiting(partition, is_future=is_future)

    def finish_loading(self, partition: TopicPartition, *, is_future: bool) -> None:
        """Finishes a `load_waiting` that an interrupt cut short: where the log came to its place, nothing waits."""
        if self._registry.get(partition, is_future=is_future) is not None:
            self._registry.forget_waiting(partition, is_future=is_future)

    def _load_log(
        self,
        partition: TopicPartition,
        found: WaitingLog,
        opening: Opening = AS_ALL,
        *,
        remaining_segments: Callable[[int], object] | None = None,
    ) -> None:
        folder, flushed = found.folder, found.recovery_point or 0
        self._contexts.begin(partition)
        log = UnifiedLog.load(
            self._contexts.of(folder, partition, opening),
            found.log_start_offset or 0,
            flushed,
            found.clean,
            opening.topic_id,
            remaining_segments,
            on_damage=opening.on_damage,
        )
        is_current = os.path.basename(folder) == str(partition)
        if opening.on_damage is refuse:
            _refuse_lost(log, flushed if is_current else 0)
        if is_current and flushed > max(log.log_end_offset, log.log_start_offset):
            # As Kafka, it goes on; what comes next gets offsets that others had, and readers may know.
            log.context.logger.warning(
                "%s.  Offsets from there on are given anew; close the store and put back what is missing to keep them",
                lost_end(flushed, log.log_end_offset),
            )
        try:
            if names.is_delete_dir(folder):
                if self._contexts.settings.maintenance:
                    self._doomed.add(log)
                else:
                    log.close_quietly()
            elif names.is_stray_dir(folder):
                log.context.logger.warning("Loaded stray log: %s", folder)
                self._leave_stray(log)
            elif self._is_stray(log):
                log.rename_dir(names.log_stray_dir_name(partition), False)
                log.context.logger.warning("Log in %s marked stray and renamed to %s", folder, log.dir)
                self._leave_stray(log)
            else:
                self._contexts.when_ready(log)
                self._register(log)
            self._contexts.finish(partition, log, opening)
        except BaseException:
            self._registry.remove(log)
            log.close_quietly()
            raise

    def _leave_stray(self, log: UnifiedLog) -> None:
        """It is nobody's: its folder stays, and nothing of it is open."""
        log.close_quietly()

    def _register(self, log: UnifiedLog) -> None:
        """Of a log that was just loaded."""
        previous = self._registry.put(log, is_future=log.is_future)
        if previous is not None:
            self._duplicates.set_aside(previous)
