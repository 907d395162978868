"""CleanerThread: cleans the dirtiest log, then deletes old segments of the compacted logs, repeatedly.

If there is nothing to clean, the thread rests for log.cleaner.backoff.ms.  If a pass meets damage, or another error
that the next pass would meet again, the thread marks the partition uncleanable and continues with others.  A disk that
fails takes its directory offline.  A pass that is aborted is no error.  Any other error (a bug, no memory) ends the
thread, which then counts as dead, and its claim is released.

A thread that is told to stop does so at its next check: before each chunk, and in the middle of a rest, also of the
throttle's.  It allocates its memory, the offset map and the buffers, with the first pass, and frees it at its end.
A helper thread starts the thread, and a lock is used to wait for it, because Thread.start and join must not be
interrupted.
It knows its LogCleanerManager, the throttler and the failure channel, and no LogManager.
Mirrors LogCleaner.CleanerThread and ShutdownableThread (4.4.0).
"""

from __future__ import annotations

import _thread
import threading

from kafkalog._limits import INT_MAX
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.log_cleaner_manager import LOGGER, Grabbed, LogCleanerManager, PreCleanStats
from kafkalog.engine.cleaner.states import Claim
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.throttler import Throttler
from kafkalog.engine.files import LogDirFailureChannel
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.nested import wait_for
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    ClosedChannelException,
    DiskFull,
    KafkalogError,
    KafkaStorageException,
    LogCleaningAbortedException,
    LogCleaningException,
    TooManyOpenFilesException,
)

READ_BYTES = 1 << 20  # read at once, however many threads share `log.cleaner.io.buffer.size`
_LOOK_MS = 100  # interval at which a rest checks whether it should end
_REST_MAX_MS = 86_400_000
_MB = 1 << 20


class ThreadShutdownException(BaseException):
    """The thread was told to stop.  A BaseException, so that no pass treats it as an error of the log or the disk."""


def map_bytes(config: CleanerConfig) -> int:
    """Returns the size limit of one thread's offset map, in bytes."""
    return min(config.dedupe_buffer_size // config.num_threads, INT_MAX)


def cleaner_settings(config: CleanerConfig) -> CleanerSettings:
    """Returns the settings of one thread, which checks each batch.

    Its buffer begins at the size up to which Kafka's may grow: with small buffers, threads wait for each other.
    """
    large = max(min(config.max_message_size, READ_BYTES), 1)  # an empty buffer would never grow
    io_buffer_bytes = max(config.io_buffer_size // config.num_threads // 2, large)
    return CleanerSettings(io_buffer_bytes, config.max_message_size, config.dedupe_buffer_load_factor, True)


class CleanerThread:
    """Used once: `start`, `stop`, `wait`.  A call that is interrupted may be repeated."""

    settings_of = staticmethod(cleaner_settings)

    def __init__(
        self,
        number: int,
        config: CleanerConfig,
        manager: LogCleanerManager,
        throttler: Throttler,
        failure_channel: LogDirFailureChannel,
    ) -> None:
        self.number = number
        self.name = f"kafka-log-cleaner-thread-{number}"
        self.last_stats: CleanerStats | None = None
        self.last_pre_clean_stats = PreCleanStats()
        self.ident = -1
        self.failed = False  # it ended without being told to
        self._config = config
        self._manager = manager
        self._throttler = throttler
        self._failure_channel = failure_channel
        self._cleaner: Cleaner | None = None
        self._cleaning: TopicPartition | None = None
        # `with` acquires the RLock in C; the condition is only waited for in this thread, and notified by others.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._running = True
        self._ended = _thread.allocate_lock()  # held until the thread ends
        self._ended.acquire()
        self._begun: list[int] = []

    # --- lifetime --------------------------------------------------------------------------------------

    def start(self) -> None:
        # One call from bytecode: after an interrupt the thread is counted as begun, or was never started.
        self._begun.extend(map(_thread.start_new_thread, (self._begin,), ((),)))

    def _begin(self) -> None:
        """Starts the real thread from a helper thread, which no signal reaches."""
        try:
            threading.Thread(target=self._run, name=self.name, daemon=True).start()
        except BaseException:
            self.failed = True
            self._ended.release()
            raise

    def stop(self) -> None:
        """Tells the thread to end as soon as it can."""
        with self._lock:
            self._running = False
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until the thread has ended; returns at once in the thread itself.

        Raises IllegalStateException as `nested.Patience`.
        """
        if self._begun and self.ident != _thread.get_ident():
            wait_for(self._ended, f"the end of {self.name}")

    def _run(self) -> None:
        self.ident = _thread.get_ident()
        lines = Lines(LOGGER)
        try:
            lines.debug("%s starts", self.name)
            while self._running:
                self._do_work()
        except ThreadShutdownException:
            pass
        except BaseException:
            self.failed = self._running
            lines.exception("%s died; the others continue without it", self.name)
        finally:
            self._cleaner = None
            self._ended.release()

    def _rest(self, ms: int) -> None:
        with self._lock:
            if self._running:
                self._changed.wait(min(ms, _REST_MAX_MS) / 1000.0)

    # --- work ------------------------------------------------------------------------------------------

    def _do_work(self) -> None:
        if not self.clean_filthiest_log():
            self._rest(self._config.backoff_ms)
        self._manager.maintain_uncleanable_partitions()

    def clean_filthiest_log(self) -> bool:
        """Runs one round, in any thread.  Returns whether it cleaned a log: then the next round may follow at once."""
        stats = PreCleanStats()
        grabbed = self._manager.grab_filthiest_compacted_log(stats)
        cleaned = False
        if grabbed is not None:
            self.last_pre_clean_stats = stats
            try:
                cleaned = self._clean_log(grabbed)
            except LogCleaningException:
                return False  # marked; old segments wait for the next round, as in Kafka
        deletable = self._manager.deletable_logs()
        deletable.reverse()  # they are popped from the end
        try:
            while deletable:
                self._delete_old_segments(*deletable[-1])
                deletable.pop()
        finally:
            self._manager.done_deleting([claim for _, claim in deletable if self._manager.states.holds(claim)])
        return cleaned

    def _clean_log(self, grabbed: Grabbed) -> bool:
        """Runs a pass.  Returns False if it had no effect, and an immediate repetition would have none.

        Raises LogCleaningException if the log is at fault; it is marked then.
        """
        claim, to_clean = grabbed
        log, end_offset = to_clean.log, to_clean.first_dirty_offset
        self._cleaning = claim.partition
        try:
            result = self._own_cleaner().clean(to_clean)
            end_offset = result.end_offset
            self._record(log, to_clean.first_dirty_offset, end_offset, result.stats)
            return end_offset > to_clean.first_dirty_offset
        except MemoryError:
            raise  # like Java's OutOfMemoryError: the log is not to blame
        except LogCleaningAbortedException as error:
            log.context.logger.debug("the pass was aborted: %s", error)
            return self._manager.states.is_aborted(claim.partition)
        except (DiskFull, TooManyOpenFilesException) as error:
            log.context.logger.warning("the pass is postponed: %s", error)
            return False
        except KafkaStorageException:
            return False  # the directory is offline
        except Exception as error:
            if self._failed_on(log, error):
                return False
            raise LogCleaningException(f"{log.topic_partition}: {error}") from error
        finally:
            self._cleaning = None
            self._manager.done_cleaning(claim, log.parent_dir, end_offset)

    def _own_cleaner(self) -> Cleaner:
        if self._cleaner is None:
            self._cleaner = Cleaner(
                SkimpyOffsetMap(map_bytes(self._config)),
                self.settings_of(self._config),
                self._manager.clock,
                check_done=self._check_done,
                throttle=self._throttle,
            )
        return self._cleaner

    def _delete_old_segments(self, log: UnifiedLog, claim: Claim) -> None:
        try:
            self._check_running()
            if not self._manager.states.is_aborted(claim.partition):
                log.delete_old_segments()
        except (KafkaStorageException, ClosedChannelException, TooManyOpenFilesException) as error:
            log.context.logger.debug("old segments are not deleted: %s", error)  # offline, closed, or a shortage
        except MemoryError:
            raise
        except Exception as error:
            self._failed_on(log, error)
        finally:
            self._manager.done_deleting([claim])

    def _failed_on(self, log: UnifiedLog, error: Exception) -> bool:
        """Returns whether the disk was at fault; otherwise marks the log."""
        if isinstance(error, OSError) and not isinstance(error, KafkalogError):
            message = f"Failed to clean up log for {log.topic_partition} in dir {log.parent_dir} due to IOException"
            self._failure_channel.failed(log.parent_dir, message, error)
            return True
        if self._manager.is_current(log):
            self._manager.mark_partition_uncleanable(log, error)
        return False

    # --- callbacks of a pass -----------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ThreadShutdownException

    def _check_done(self, partition: TopicPartition) -> None:
        self._check_running()
        self._manager.check_cleaning_aborted(partition)

    def _throttle(self, observed: int) -> None:
        self._throttler.maybe_throttle(observed, self._sleep)

    def _sleep(self, ms: int) -> None:
        """Rests, and ends early if the pass should stop."""
        while ms > 0:
            if self._cleaning is not None:
                self._check_done(self._cleaning)
            self._rest(min(ms, _LOOK_MS))
            ms -= _LOOK_MS

    def _record(self, log: UnifiedLog, start: int, end: int, stats: CleanerStats) -> None:
        self.last_stats = stats
        read, secs = stats.bytes_read, max(stats.elapsed_secs, 0.001)
        log.context.logger.info(
            "%s cleaned the offsets from %d to %d in %.1f s (%.1f MB/s): %.1f MB became %.1f MB, %d records became %d; "
            "the map took %.1f s and was %.1f%% full",
            self.name, start, end, secs, read / _MB / secs, read / _MB, stats.bytes_written / _MB,
            stats.messages_read, stats.messages_written, stats.elapsed_index_secs, 100 * stats.buffer_utilization,
        )  # fmt: skip
        grab = self.last_pre_clean_stats
        if grab.delayed_partitions > 0:
            log.context.logger.info(
                "partitions worth a pass: %d, later than max.compaction.lag.ms: %d, by %d ms at most",
                grab.cleanable_partitions, grab.delayed_partitions, grab.max_compaction_delay_ms,
            )  # fmt: skip
        if stats.invalid_messages_read > 0:
            log.context.logger.warning("%d records without a key were dropped", stats.invalid_messages_read)
