"""The orderly end of a manager: closes its logs, then writes each directory's checkpoints, and last the marker.

The clean-shutdown marker says that all of this went well.  A directory gets none if a log in it did not close or was
never loaded, or if its disk failed; the next start recovers it.  Mirrors the middle of LogManager.shutdown (4.4.0).

The caller holds `Changes.lock`, and has stopped the cleaner and the tasks before.  The threads that close logs acquire
only the logs' locks, so waiting for them under `Changes.lock` cannot deadlock.
"""

from __future__ import annotations

import functools

from kafkalog.engine.files.failure import is_shortage, refused
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.host.jobs import Jobs
from kafkalog.engine.host.loading import log_folders
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.starting import Start
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkalogError, KafkaStorageException

LOGGER = "kafkalog.manager"


class End:
    """The end of one manager.  `start` knows what was loaded."""

    def __init__(
        self,
        start: Start,
        directories: LogDirectories,
        registry: LogRegistry,
        jobs: Jobs,
        settings: ManagerSettings,
    ) -> None:
        self._start = start
        self._directories = directories
        self._registry = registry
        self._jobs = jobs
        self._settings = settings
        self._distrusted: set[str] = set()

    def distrust(self, log_dir: str) -> None:
        """Reports that something in a directory may not have gone well: it gets no marker."""
        self._distrusted.add(log_dir)

    def close_all(self, broker_epoch: int) -> BaseException | None:
        """Closes the logs of all directories.  Returns the first error when everything is done."""
        jobs = {
            log_dir: [functools.partial(self._close, log) for log in self._logs_of(log_dir)]
            for log_dir in self._directories.live
        }
        outcomes = self._jobs.run("log-closing", jobs, dict.fromkeys(jobs, self._settings.syncing_threads))
        first: BaseException | None = None
        for log_dir, of in outcomes.items():
            errors = [outcome.error for outcome in of if outcome.error is not None]
            for error in errors:
                Lines(LOGGER, log_dir).warning("There was an error while closing a log", exc_info=error)
            if errors and isinstance(errors[0], OSError) and not isinstance(errors[0], KafkalogError):
                errors[0] = _because_of(errors[0], f"a log in {log_dir} was not closed in order")
            first = first or (errors[0] if errors else None)
            if not errors and all(outcome.done for outcome in of):
                # If no log is open any more, the checkpoints are as the last close wrote them, if there was one.
                is_written = self._start.on_demand and not of and log_dir in self._directories.checkpointed
                first = self._finish_dir(log_dir, broker_epoch, is_written=is_written) or first
        return first

    def _logs_of(self, log_dir: str) -> list[UnifiedLog]:
        """Returns the logs of a directory to close, future ones too."""
        return self._registry.all_of(log_dir)

    def _close(self, log: UnifiedLog, thread: int) -> None:
        """Closes one log, as a job.

        Raises KafkaStorageException if the log was released before, not in order: the next start recovers it.
        """
        if not log.shut_down():
            raise KafkaStorageException(f"{log.topic_partition} of {log.parent_dir} was released before, not in order")

    def _finish_dir(self, log_dir: str, broker_epoch: int, *, is_written: bool) -> BaseException | None:
        """Writes the checkpoints, then the marker, which says that they are right.

        Writes nothing if some logs were never loaded, because their lines would be lost.
        """
        if not self._start.all_loaded.get(log_dir):
            return None
        directories, registry = self._directories, self._registry
        written = is_written or directories.checkpoint(log_dir, registry)
        if self._settings.keeps_house:
            written = directories.checkpoint_high_watermarks(log_dir, registry) and written
        if not written or directories.failure_channel.has_offline_log_dir(log_dir):
            return None
        if not self._is_clean_elsewhere(log_dir):
            return None
        try:
            directories.live[log_dir].marker.write(broker_epoch)
        except OSError as error:
            message = "the clean-shutdown marker was not written"
            Lines(LOGGER, log_dir).warning("%s", message, exc_info=True)
            return refused(log_dir, message, error) if is_shortage(error) else _because_of(error, message)
        return None

    def _is_clean_elsewhere(self, log_dir: str) -> bool:
        """Returns whether all logs that were not open at the end were closed cleanly before.

        The marker speaks for the whole directory.
        """
        waiting = self._registry.waiting_in(log_dir)
        if log_dir in self._distrusted or not all(each.clean for each in waiting.values()):
            return False
        if self._start.had_clean.get(log_dir) or not self._start.on_demand:
            return True
        known = {each.folder for each in waiting.values()} | {log.dir for log in self._registry.all_of(log_dir)}
        return known.issuperset(log_folders(log_dir, self._directories.files)[0])


def _because_of(error: OSError, message: str) -> KafkaStorageException:
    told = KafkaStorageException.because_of(error, message)
    told.__cause__ = error
    return told
