"""The end of a manager in order: its logs are closed, then each directory gets its checkpoints, and the marker last.

The marker says that all of that went well.  A directory in which a log did not close, or was never loaded, or whose
disk failed, gets none, and the next start recovers it.  Mirrors the middle of LogManager.shutdown (4.4.0).

Who calls holds `Changes.lock`, and has stopped the cleaner and the tasks before.  The threads that close logs take the
logs' own locks only: they are waited for under that one.
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
    """Of one manager, whose `start` knows what was loaded."""

    def __init__(
        self,
        start: Start,
        directories: LogDirectories,
        registry: LogRegistry,
        jobs: Jobs,
        settings: ManagerSettings,
        *,
        bare: bool,
    ) -> None:
        self._start = start
        self._directories = directories
        self._registry = registry
        self._jobs = jobs
        self._settings = settings
        self._bare = bare
        self._distrusted: set[str] = set()

    def distrust(self, log_dir: str) -> None:
        """Somebody could not say that all went well there: no marker is written."""
        self._distrusted.add(log_dir)

    def close_all(self, broker_epoch: int) -> BaseException | None:
        """All directories; the first error, when all is done."""
        jobs = {
            log_dir: [functools.partial(_close, log, self._bare) for log in self._to_close(log_dir)]
            for log_dir in self._directories.live
        }
        outcomes = self._jobs.run("log-closing", jobs, dict.fromkeys(jobs, self._settings.syncing_threads))
        first: BaseException | None = None
        for log_dir, of in outcomes.items():
            errors = [outcome.error for outcome in of if outcome.error is not None]
            for error in errors:
                Lines(LOGGER, log_dir).warning("There was an error while closing a log", exc_info=error)
            if (
                errors
                and not self._bare
                and isinstance(errors[0], OSError)
                and not isinstance(errors[0], KafkalogError)
            ):
                errors[0] = _because_of(errors[0], f"a log in {log_dir} was not closed in order")
            first = first or (errors[0] if errors else None)
            if not errors and all(outcome.done for outcome in of):
                # Where nothing is open any more the checkpoints are as the last close wrote them, if there was one.
                is_written = self._start.on_demand and not of and log_dir in self._directories.checkpointed
                first = self._finish_dir(log_dir, broker_epoch, is_written=is_written) or first
        return first

    def _to_close(self, log_dir: str) -> list[UnifiedLog]:
        """All of a directory; as Kafka, one of each partition where both its logs are there, when `bare`."""
        return self._registry.in_dir(log_dir).values() if self._bare else self._registry.all_of(log_dir)

    def _finish_dir(self, log_dir: str, broker_epoch: int, *, is_written: bool) -> BaseException | None:
        """Checkpoints, then the marker: it says that they are right.  Lines of logs that were never loaded would go."""
        had_clean, all_loaded = self._start.had_clean.get(log_dir), self._start.all_loaded.get(log_dir)
        if not all_loaded and not self._bare:
            return None
        directories, registry = self._directories, self._registry
        written = is_written or directories.checkpoint(log_dir, registry)
        if self._settings.keeps_house and not self._bare:
            written = directories.checkpoint_high_watermarks(log_dir, registry) and written
        if not (had_clean or all_loaded) or (not written and not self._bare):
            return None
        if directories.failure_channel.has_offline_log_dir(log_dir) and not self._bare:
            return None
        if not self._is_clean_elsewhere(log_dir, bool(had_clean)):
            return None
        try:
            directories.live[log_dir].marker.write(broker_epoch)
        except OSError as error:
            message = "the clean-shutdown marker was not written"
            Lines(LOGGER, log_dir).warning("%s", message, exc_info=True)
            if self._bare:
                return error
            return refused(log_dir, message, error) if is_shortage(error) else _because_of(error, message)
        return None

    def _is_clean_elsewhere(self, log_dir: str, had_clean: bool) -> bool:
        """Whether what was not open at the end was closed cleanly before: the marker speaks for the whole directory."""
        waiting = self._registry.waiting_in(log_dir)
        if log_dir in self._distrusted or not all(each.clean for each in waiting.values()):
            return False
        if had_clean or not self._start.on_demand:
            return True
        known = {each.folder for each in waiting.values()} | {log.dir for log in self._registry.all_of(log_dir)}
        return known.issuperset(log_folders(log_dir, self._directories.files)[0])


def _because_of(error: OSError, message: str) -> KafkaStorageException:
    told = KafkaStorageException.because_of(error, message)
    told.__cause__ = error
    return told


def _close(log: UnifiedLog, bare: bool, thread: int) -> None:
    if not log.shut_down():
        active = log.active_segment
        if bare and active.max_timestamp_so_far <= active.time_index.last_entry.timestamp:
            # Kafka goes on to trim the closed file, and takes the refusal for the disk's.
            log.context.log_dir_failure_channel.maybe_add_offline_log_dir(
                log.parent_dir, f"Error while preparing active segment for close for {log.topic_partition}"
            )
        raise KafkaStorageException(f"{log.topic_partition} of {log.parent_dir} was let go before, not in order")
