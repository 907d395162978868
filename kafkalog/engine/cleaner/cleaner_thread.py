"""CleanerThread: cleans the filthiest log, then deletes old segments of the compacted ones, over and over.

With nothing to clean it rests for log.cleaner.backoff.ms.  A pass that meets damage, or anything else that a next pass
would meet again, marks the partition uncleanable, and the thread goes on with others; a disk that fails takes its
directory offline; a pass that is aborted is nobody's fault.  What comes from elsewhere (a bug, no memory) ends the
thread, which then counts as dead; what it was at is given back.

Told to stop, it stops at its next look: before each chunk, and in the middle of a rest, be it the throttle's.  Its
memory, the offset map and the buffers, is taken with the first pass and goes with the thread.
The thread is started by another one, and waited for by a lock: Thread.start and join do not bear being interrupted.
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

READ_BYTES = 1 << 20  # at once, however many threads share `log.cleaner.io.buffer.size`
_LOOK_MS = 100  # how often a rest is left to see whether it is still wanted
_REST_MAX_MS = 86_400_000
_MB = 1 << 20


class ThreadShutdownException(BaseException):
    """The thread was told to stop: no error of ours or of the disk's, which a pass would make something of."""


def map_bytes(config: CleanerConfig) -> int:
    """What one thread's offset map may take."""
    return min(config.dedupe_buffer_size // config.num_threads, INT_MAX)


def cleaner_settings(config: CleanerConfig) -> CleanerSettings:
    """The settings of one thread, which looks at each batch.  Its buffer begins as large as Kafka's may grow: with
    small ones threads wait for each other."""
    large = max(min(config.max_message_size, READ_BYTES), 1)  # nothing would never grow
    io_buffer_bytes = max(config.io_buffer_size // config.num_threads // 2, large)
    return CleanerSettings(io_buffer_bytes, config.max_message_size, config.dedupe_buffer_load_factor, True)


class CleanerThread:
    """Used once: `start`, `stop`, `wait`.  The callers of these may be interrupted, and call again."""

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
        self.failed = False  # it ended, and nobody had told it to
        self._config = config
        self._manager = manager
        self._throttler = throttler
        self._failure_channel = failure_channel
        self._cleaner: Cleaner | None = None
        self._cleaning: TopicPartition | None = None
        # `with` takes the lock, which is C; the condition only waits, in this thread, and is notified.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._running = True
        self._ended = _thread.allocate_lock()  # taken until the thread ends
        self._ended.acquire()
        self._begun: list[int] = []

    # --- its life --------------------------------------------------------------------------------------

    def start(self) -> None:
        # One call from bytecode: an interrupt finds the thread begun, or not.
        self._begun.extend(map(_thread.start_new_thread, (self._begin,), ((),)))

    def _begin(self) -> None:
        """In a thread of its own, which no signal reaches."""
        try:
            threading.Thread(target=self._run, name=self.name, daemon=True).start()
        except BaseException:
            self.failed = True
            self._ended.release()
            raise

    def stop(self) -> None:
        """It ends as soon as it can."""
        with self._lock:
            self._running = False
            self._changed.notify_all()

    def wait(self) -> None:
        """Until it has ended; in itself it does not wait.  IllegalStateException as `nested.Patience`."""
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
            lines.exception("%s died; the others go on without it", self.name)
        finally:
            self._cleaner = None
            self._ended.release()

    def _rest(self, ms: int) -> None:
        with self._lock:
            if self._running:
                self._changed.wait(min(ms, _REST_MAX_MS) / 1000.0)

    # --- its work --------------------------------------------------------------------------------------

    def _do_work(self) -> None:
        if not self.clean_filthiest_log():
            self._rest(self._config.backoff_ms)
        self._manager.maintain_uncleanable_partitions()

    def clean_filthiest_log(self) -> bool:
        """One turn, in whatever thread; whether there was a log to clean, and the next one is worth a look at once."""
        stats = PreCleanStats()
        grabbed = self._manager.grab_filthiest_compacted_log(stats)
        cleaned = False
        if grabbed is not None:
            self.last_pre_clean_stats = stats
            try:
                cleaned = self._clean_log(grabbed)
            except LogCleaningException:
                return False  # marked; old segments wait for the next turn, as Kafka's do
        deletable = self._manager.deletable_logs()
        deletable.reverse()  # they leave it at the end
        try:
            while deletable:
                self._delete_old_segments(*deletable[-1])
                deletable.pop()
        finally:
            self._manager.done_deleting([claim for _, claim in deletable if self._manager.states.holds(claim)])
        return cleaned

    def _clean_log(self, grabbed: Grabbed) -> bool:
        """False where it came to nothing, and would at once again; LogCleaningException where that is the log's fault,
        who is marked."""
        claim, to_clean = grabbed
        log, end_offset = to_clean.log, to_clean.first_dirty_offset
        self._cleaning = claim.partition
        try:
            result = self._own_cleaner().clean(to_clean)
            end_offset = result.end_offset
            self._record(log, to_clean.first_dirty_offset, end_offset, result.stats)
            return end_offset > to_clean.first_dirty_offset
        except MemoryError:
            raise  # as Java's OutOfMemoryError: the log is not to blame
        except LogCleaningAbortedException as error:
            log.context.logger.debug("the pass was aborted: %s", error)
            return self._manager.states.is_aborted(claim.partition)
        except (DiskFull, TooManyOpenFilesException) as error:
            log.context.logger.warning("the pass is put off: %s", error)
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
            log.context.logger.debug("old segments are not deleted: %s", error)  # offline, let go, or another time
        except MemoryError:
            raise
        except Exception as error:
            self._failed_on(log, error)
        finally:
            self._manager.done_deleting([claim])

    def _failed_on(self, log: UnifiedLog, error: Exception) -> bool:
        """Whether it was the disk's fault; else the log is marked."""
        if isinstance(error, OSError) and not isinstance(error, KafkalogError):
            message = f"Failed to clean up log for {log.topic_partition} in dir {log.parent_dir} due to IOException"
            self._failure_channel.failed(log.parent_dir, message, error)
            return True
        if self._manager.is_current(log):
            self._manager.mark_partition_uncleanable(log, error)
        return False

    # --- what a pass asks --------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ThreadShutdownException

    def _check_done(self, partition: TopicPartition) -> None:
        self._check_running()
        self._manager.check_cleaning_aborted(partition)

    def _throttle(self, observed: int) -> None:
        self._throttler.maybe_throttle(observed, self._sleep)

    def _sleep(self, ms: int) -> None:
        """A rest that ends where the pass is to."""
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
                "partitions worth a pass: %d, behind max.compaction.lag.ms: %d, by %d ms at most",
                grab.cleanable_partitions, grab.delayed_partitions, grab.max_compaction_delay_ms,
            )  # fmt: skip
        if stats.invalid_messages_read > 0:
            log.context.logger.warning("%d records without a key were dropped", stats.invalid_messages_read)
