"""Two folders of one partition, as a start finds them where a move was cut short: which one counts, what of the other.

Two whole logs: a move's note says which (`move_notes`), and the other one is deleted if nothing came to it since; else
the start is refused with Kafka's error.  Two copies in the making: the one that has more stays in sight, the other one
is deleted once it is known that the partition itself is there.  What may be all that is left of something is never
deleted.
Called by the loading threads, several at a time; of one partition the registry decides who comes second.
"""

from __future__ import annotations

from kafkalog.errors import IllegalStateException, KafkaStorageException
from kafkalog.files import Files
from kafkalog.format import names
from kafkalog.log.unified_log import UnifiedLog
from kafkalog.manager import move_notes
from kafkalog.manager.doomed import DoomedLogs
from kafkalog.manager.registry import LogRegistry


class Duplicates:
    """Of one start."""

    def __init__(self, registry: LogRegistry, doomed: DoomedLogs, files: Files) -> None:
        self._registry = registry
        self._doomed = doomed
        self._files = files
        self._second_futures: list[UnifiedLog] = []

    def settle(self, log: UnifiedLog, previous: UnifiedLog) -> None:
        """`log` took the place of `previous` in the registry: leaves the one there that counts.  IllegalStateException,
        and KafkaStorageException where a disk fails that it would need to know."""
        if log.is_future:
            kept, aside = (log, previous) if log.log_end_offset > previous.log_end_offset else (previous, log)
            self._registry.put(kept, is_future=True)
            self._second_futures.append(aside)
        else:
            self._finish_move(log, previous)

    def _finish_move(self, log: UnifiedLog, previous: UnifiedLog) -> None:
        kept = move_notes.destination_of(previous, log, self._files)
        if kept is None:
            raise duplicate(log, previous, hint=None)
        given_up = previous if kept is log else log
        for one in (kept, given_up):
            if _is_offline(one):  # the handler of failures takes it away; the other folder stays as it is
                self._registry.put(kept)
                given_up.close_quietly()
                return
        if not move_notes.is_left_behind(given_up, kept, self._files):
            raise duplicate(
                log,
                previous,
                hint=f"a move went to {kept.dir}, which ends at offset {kept.log_end_offset}, but {given_up.dir} was "
                f"written to since and ends at {given_up.log_end_offset}",
            )
        kept.context.logger.warning("finishing the move to here from %s", given_up.parent_dir)
        self._registry.put(kept)
        self._give_up(given_up)

    def finish(self) -> None:
        """When everything is loaded."""
        for aside in self._second_futures:
            if self._registry.get(aside.topic_partition) is None:
                aside.context.logger.warning("a second copy of a partition that is not here: passed over, not deleted")
                aside.close_quietly()
            else:
                self._give_up(aside)
        self._second_futures = []

    def close_quietly(self) -> None:
        """Where the start ends otherwise."""
        for aside in self._second_futures:
            aside.close_quietly()

    def _give_up(self, log: UnifiedLog) -> None:
        try:
            log.rename_dir(names.log_delete_dir_name(log.topic_partition), True)
        except KafkaStorageException:  # its disk fails just now
            log.context.logger.warning("the folder that a move left is not given up", exc_info=True)
            log.close_quietly()
        else:
            self._doomed.add(log)


def _is_offline(log: UnifiedLog) -> bool:
    return log.context.log_dir_failure_channel.has_offline_log_dir(log.parent_dir)


def duplicate(log: UnifiedLog, previous: UnifiedLog, hint: str | None) -> IllegalStateException:
    """Kafka's error for two folders of one partition."""
    if log.is_future:
        return IllegalStateException(f"Duplicate log directories found: {log.dir}, {previous.dir}", hint=hint)
    return IllegalStateException(
        f"Duplicate log directories for {log.topic_partition} are found in both {log.dir} and {previous.dir}. It is "
        "likely because log directory failure happened while broker was replacing current replica with future replica. "
        "Recover broker from this failure by manually deleting one of the two directories for this partition. It is "
        "recommended to delete the partition in the log directory that is known to have failed recently.",
        hint=hint,
    )
