"""The start of a manager as far as logs are concerned: loads all logs (`loading`), and puts them in their place.

It also settles what crashes and interrupted moves left.

`load` uses several threads.  `finish` runs in the caller's thread alone, and decides: an error of the disk took the
directory offline, any other error fails the start.  The end of the manager reads what the start found out about each
directory (`had_clean`, `all_loaded`) before it writes there.  Mirrors LogManager.loadLogs (4.4.0).

With load="on demand" a start loads only logs that it alone can settle: a partition with two directories, and `-delete`
directories if there is maintenance.  The others wait in the registry, and `load_waiting` loads one as the start would.

Acquires no lock: before the manager runs, no other code changes its logs.  The loading threads share LogContexts, the
LogRegistry, DoomedLogs and Duplicates, which are thread-safe.
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
    """Returns whether a directory is no partition's any more."""
    return names.is_delete_dir(folder) or names.is_stray_dir(folder)


def _refuse_lost(log: UnifiedLog, flushed: int) -> None:
    """Raises, and closes the log, if it lost flushed records or its index of aborted transactions was truncated."""
    try:
        if flushed > max(log.log_end_offset, log.log_start_offset):
            raise lost_end_error(flushed, log.log_end_offset, log.dir)
        for segment in log.log_segments():
            check_whole_entries(segment.txn_index.path, segment.txn_index.end)
    except BaseException:
        log.close_quietly()
        raise


class Loaded(NamedTuple):
    """How the jobs of each directory ended."""

    found: list[Found]
    outcomes: dict[str, list[Outcome]]


class Start:
    """The start of one manager, used once."""

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
        self.opening = AS_ALL  # for logs that a start loads
        self._remaining: Remaining | None = None  # set while it loads
        self._is_stray: IsStray = _nobody_is
        self.had_clean: dict[str, bool] = {}
        self.all_loaded: dict[str, bool] = {}

    @property
    def progress(self) -> LoadProgress | None:
        remaining = self._remaining
        return None if remaining is None else remaining.progress()

    def load(self, is_stray: IsStray, progress: Progress | None) -> Loaded:
        """Loads all logs.  After an interrupt or a stop, the rest is not loaded."""
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
        """Returns what a directory has to load; other directories are skipped.  OSError."""
        return look(held)

    def finish(self, loaded: Loaded) -> None:
        """Raises an error that fails the start; otherwise puts the logs that count in the registry."""
        try:
            for of in loaded.found:
                self._judge_load(of, loaded.outcomes[of.held.path])
        except BaseException:
            for outcomes in loaded.outcomes.values():
                outcomes.clear()  # the error's traceback references the outcomes, and thus the logs' open files
            raise
        self._duplicates.finish()
        if not self.on_demand:
            self._forget_what_is_gone(loaded.found)

    def _forget_what_is_gone(self, found: Sequence[Found]) -> None:
        """Drops the notes of moves that have ended, and the checkpoint lines of partitions that do not exist."""
        failed = self._failure_channel
        whole = [path for path in self._directories.live if self.all_loaded.get(path)]
        whole = [path for path in whole if not failed.has_offline_log_dir(path)]
        move_notes.clear(whole, self._directories.files, failed)
        for of in found:
            self._forget_lines_of_nobody(of)

    def _forget_lines_of_nobody(self, of: Found) -> None:
        """Drops lines that a crash left after their partition was removed.

        Such a line would apply to the next partition of that name.
        """
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
                lines_of_folder(LOGGER, folder).error("the directory is offline, because this load failed: %s", error)
            elif isinstance(error, OSError) and not isinstance(error, KafkalogError):
                self._failure_channel.give_up(path, f"Error while loading log dir {path}", error)
            elif error is not None:
                try:
                    raise error
                finally:
                    del error, outcome  # for the same reason as in `finish`
        self.all_loaded[path] = all(outcome.done for outcome in outcomes)

    def _is_of_the_disk(self, error: KafkaStorageException) -> bool:
        """Returns whether the cause is an IOException in Kafka: a checkpoint that does not parse is one."""
        return is_io_exception(error.__cause__)

    def _let_wait(self, found: Sequence[Found]) -> list[Found]:
        """Registers the logs that can wait, and returns those to load now."""
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
                now.append(folder)  # only a start can settle it
            else:
                is_future = os.path.basename(folder) != str(partition)
                waiting = _waiting(of, folder, partition)._replace(high_watermark=watermarks.get(partition))
                self._registry.let_wait(partition, waiting, is_future=is_future)
        return of._replace(folders=now)

    def _load_folder(self, folder: str, of: Found, remaining_segments: Callable[[int], object]) -> None:
        partition = names.parse_topic_partition_name(folder)
        opening = AS_ALL if names.is_delete_dir(folder) else self.opening  # damage in a deleted log is not reported
        self._load_log(partition, _waiting(of, folder, partition), opening, remaining_segments=remaining_segments)

    def load_waiting(self, partition: TopicPartition, opening: Opening = AS_ALL, *, is_future: bool) -> None:
        """Loads a waiting log.  Raises as UnifiedLog.load; then the log still waits, and is recovered next time."""
        found = self._registry.waiting(partition, is_future=is_future)
        assert found is not None, partition
        self._registry.let_wait(partition, found._replace(clean=False), is_future=is_future)
        self._load_log(partition, found, opening)
        self._registry.forget_waiting(partition, is_future=is_future)

    def finish_loading(self, partition: TopicPartition, *, is_future: bool) -> None:
        """Finishes a `load_waiting` that was interrupted: if the log is in its place, it no longer waits."""
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
            # As in Kafka, it continues.  Later records get offsets that others had, which readers may remember.
            log.context.logger.warning(
                "%s.  Offsets from there on are assigned again; to keep the old records, close the store and put the "
                "missing files back",
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
        """Closes a log that belongs to no topic.  Its directory stays."""
        log.close_quietly()

    def _register(self, log: UnifiedLog) -> None:
        """Puts a log that was just loaded in its place."""
        previous = self._registry.put(log, is_future=log.is_future)
        if previous is not None:
            self._duplicates.set_aside(previous)
