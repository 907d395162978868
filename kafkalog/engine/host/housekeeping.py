"""A manager's periodic work on its logs: deletes old segments, and flushes.

A log that fails does not keep the others from their turn.  Mirrors LogManager.cleanupLogs and flushDirtyLogs (4.4.0).
Holds no lock: each log acquires its lock.  Retention pauses the cleaning of its logs until it is done.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from kafkalog.engine.files import Clock
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkalogError


class Housekeeping:
    def __init__(self, registry: LogRegistry, cleaning: Cleaning, clock: Clock) -> None:
        self._registry = registry
        self._cleaning = cleaning
        self._clock = clock

    def cleanup(self) -> int:
        """Applies retention to the logs that are not compacted.  Returns how many segments were deleted."""
        retained = self._cleaning.retained_logs()
        try:
            return self._retain(list(map(operator.itemgetter(0), retained)))
        finally:
            retained.clear()  # in one step, so that the traceback of an interrupt keeps no pause alive

    def _retain(self, retained: Sequence[UnifiedLog]) -> int:
        deleted, first = 0, None
        for log in retained:
            for each in (log, self._registry.get(log.topic_partition, is_future=True)):
                if each is not None:
                    try:
                        deleted += each.delete_old_segments()
                    except KafkalogError as error:
                        if self._registry.get(each.topic_partition, is_future=each.is_future) is each:
                            first = first or error  # otherwise the log was removed or moved meanwhile
        if first is not None:
            raise first
        return deleted

    def flush_dirty(self, logs: Iterable[UnifiedLog]) -> None:
        """Flushes the logs whose last flush is at least flush.ms ago."""
        for log in logs:
            try:
                if self._clock.milliseconds() - log.last_flush_time >= log.config.flush_ms:
                    log.flush(False)
            except Exception:
                log.context.logger.exception("Error flushing topic %s", log.topic_partition.topic)
