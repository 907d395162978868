"""LogCleaner: the pool of threads that compact logs, and the only API to them.

`startup` starts log.cleaner.threads threads.  `shutdown` ends them and waits, so that their logs may be closed.
`reconfigure` does both, with other settings.  `manager` (LogCleanerManager) decides which log is cleaned, and pauses
cleanings; CleanerThread does the work.  All threads share one throttle, and each has its part of the memory.

The threads hold no reference to a LogManager, so that a dropped manager is collected and shuts its cleaner down.
Thread-safe.  `_lock` is held to start threads, and no thread waits under it.  `_settings_lock` is held during a change
of settings, and is acquired first.  A call that is interrupted may be repeated.
Mirrors org.apache.kafka.storage.internals.log.LogCleaner (4.4.0).
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Sequence

from kafkalog._limits import INT_MAX
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.cleaner_metrics import THROTTLER, gauges_of_manager, gauges_of_pool
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.cleaner.log_cleaner_manager import LOGGER, CleanerDirectories, LogCleanerManager, Logs
from kafkalog.engine.cleaner.throttler import Throttler
from kafkalog.engine.files import Clock, LogDirFailureChannel
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.nested import wait_for
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import ConfigException, IllegalStateException
from kafkalog.metrics.registry import MetricsRegistry

_POLL_SECS = 0.1


class LogCleaner:
    thread_class = CleanerThread

    def __init__(
        self,
        config: CleanerConfig,
        directories: CleanerDirectories,
        logs: Logs,
        failure_channel: LogDirFailureChannel,
        clock: Clock,
        metrics: MetricsRegistry,
    ) -> None:
        """Shows the metrics from now on.  Nothing is cleaned before `startup`."""
        self.config = config
        self.manager = LogCleanerManager(directories, logs, failure_channel, clock)
        self.throttler = Throttler(config.max_io_bytes_per_second, metrics.meter(THROTTLER, "bytes"), clock)
        self._failure_channel = failure_channel
        self._metrics = metrics
        self._lock = threading.RLock()
        self._settings_lock = threading.Lock()  # one reconfiguration at a time
        self._threads: tuple[CleanerThread, ...] = ()  # guarded by _lock; replaced whole
        self._closed = False  # final once it is True
        self._leaving: tuple[CleanerThread, ...] = ()  # told to stop, and not waited for yet
        metrics.show(self, gauges_of_pool)
        metrics.show(self.manager, gauges_of_manager)
        belongs_here(self)

    def disown(self) -> None:
        """Resets the object in a forked child, which has no threads."""
        self._lock = threading.RLock()
        self._settings_lock = threading.Lock()
        self._threads = self._leaving = ()
        self.manager.disown()
        self.throttler.disown()

    # --- lifetime --------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Starts the threads.  IllegalStateException if they are running, or were shut down."""
        self.manager.states.check_process()
        with self._lock:
            if self._threads or self._closed:
                raise IllegalStateException(
                    "The log cleaner was shut down." if self._closed else "The log cleaner has already been started."
                )
            self._start(self.config)

    def _start(self, config: CleanerConfig) -> None:
        if config.num_threads < 1:
            Lines(LOGGER).warning("log.cleaner.threads is %d: compacted logs are not cleaned", config.num_threads)
        elif config.dedupe_buffer_size // config.num_threads > INT_MAX:
            Lines(LOGGER).warning(
                "Cannot use more than 2G of cleaner buffer space per cleaner thread, ignoring excess buffer space..."
            )
        self._threads = tuple(
            self.thread_class(number, config, self.manager, self.throttler, self._failure_channel)
            for number in range(config.num_threads)
        )
        for thread in self._threads:
            thread.start()

    def shutdown(self) -> None:
        """Ends the threads, waits for them, and hides the metrics.  A second call does nothing."""
        self._closed = True
        try:
            self._stop_threads()
        finally:
            self._metrics.hide(self)
            self._metrics.hide(self.manager)

    def _stop_threads(self) -> None:
        with self._lock:
            self._leaving = (*self._leaving, *self._threads)
            self._threads = ()
            leaving = self._leaving
        for thread in leaving:
            thread.stop()
        for thread in leaving:
            thread.wait()
        with self._lock:
            self._leaving = tuple([each for each in self._leaving if each not in leaving])

    # --- settings ----------------------------------------------------------------------------------------

    def validate_reconfiguration(self, new: CleanerConfig) -> None:
        """Raises ConfigException for no thread, less than half, or more than twice the current number of threads."""
        threads, current = new.num_threads, self.config.num_threads
        if threads < 1:
            raise ConfigException("Log cleaner threads should be at least 1")
        if threads < current // 2:
            raise ConfigException(
                f"Log cleaner threads cannot be reduced to less than half the current value {current}"
            )
        if threads > current * 2:
            raise ConfigException(
                f"Log cleaner threads cannot be increased to more than double the current value {current}"
            )

    def reconfigure(self, new: CleanerConfig) -> None:
        """Ends the threads and starts others with new settings, which also replaces dead threads.

        A pass in progress begins again.  Raises ConfigException as `validate_reconfiguration`.
        A helper thread does the work, which no signal reaches: a call that is interrupted, or refused as
        `nested.Patience` refuses, is either completed all the same, or has not begun.
        """
        self.manager.states.check_process()
        self.validate_reconfiguration(new)
        done = _thread.allocate_lock()
        done.acquire()
        errors: list[BaseException] = []
        _thread.start_new_thread(self._reconfigure, (new, done, errors))
        wait_for(done, "the cleaner's threads; they start again with these settings once they have ended")
        if errors:
            raise errors[0]

    def _reconfigure(self, new: CleanerConfig, done: _thread.LockType, errors: list[BaseException]) -> None:
        try:
            with self._settings_lock:
                self._stop_threads()
                self._take(new)
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    def _take(self, new: CleanerConfig) -> None:
        if new.max_io_bytes_per_second != self.throttler.desired_rate_per_sec:
            Lines(LOGGER).info("log.cleaner.io.max.bytes.per.second is now %s", new.max_io_bytes_per_second)
            self.throttler.desired_rate_per_sec = new.max_io_bytes_per_second
        with self._lock:
            self.config = new
            if not self._closed:
                self._start(new)

    # --- queries -----------------------------------------------------------------------------------------

    @property
    def threads(self) -> Sequence[CleanerThread]:
        return self._threads

    @property
    def dead_thread_count(self) -> int:
        """The number of threads that died.  The others clean alone until the next `reconfigure`."""
        return sum([thread.failed for thread in self._threads])

    def await_cleaned(self, partition: TopicPartition, offset: int, max_wait_ms: int = 60_000) -> bool:
        """Waits until the partition has been cleaned up to `offset`.  Returns whether it was."""
        until = time.monotonic() + max_wait_ms / 1000.0
        while not (cleaned := self.manager.all_cleaner_checkpoints().get(partition, -1) >= offset):
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _POLL_SECS))
        return cleaned
