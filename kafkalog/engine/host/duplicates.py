"""Several folders of one partition, as a start finds them where moves were cut short: which one counts, what of the
others.

Whole logs: moves' notes say which one counts (`move_notes`), and the others are deleted if nothing came to them since;
without a note, ones that were never written to give way; else the start is refused with Kafka's error, or, for a
partition of a coordinator, with one that says how both are kept.  Copies in the making: the one that has most stays in
sight, the others are deleted once it is known that the partition itself is there.  What may be all that is left of
something is never deleted.
The loading threads, several at a time, only say whom they found in their place (`set_aside`); which one counts is seen
when all are there, for of three folders two may say nothing of each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.host import move_notes
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkaStorageException


class Duplicates:
    """Of one start."""

    def __init__(self, registry: LogRegistry, doomed: DoomedLogs, files: Files) -> None:
        self._registry = registry
        self._doomed = doomed
        self._files = files
        self._aside: list[UnifiedLog] = []

    def set_aside(self, log: UnifiedLog) -> None:
        """Another folder of the partition took its place in the registry."""
        self._aside.append(log)

    def finish(self) -> None:
        """When everything is loaded: leaves the ones in the registry that count.  IllegalStateException."""
        for is_future in (False, True):  # a copy is given up only where the partition is there
            for partition in dict.fromkeys([log.topic_partition for log in self._aside if log.is_future == is_future]):
                aside = [log for log in self._aside if (log.topic_partition, log.is_future) == (partition, is_future)]
                current = self._registry.get(partition, is_future=is_future)
                found = aside if current is None else [current, *aside]
                if current is not None:
                    self._aside.append(current)  # it may give way, and then the registry has it no more
                if is_future:
                    self._settle_futures(found)
                else:
                    self._settle(found)
        self._aside = []

    def close_quietly(self) -> None:
        """Where the start ends otherwise."""
        for aside in self._aside:
            aside.close_quietly()

    # --- whole logs ----------------------------------------------------------------------------------

    def _settle(self, found: Sequence[UnifiedLog]) -> None:
        kept = self._that_counts(found)
        self._registry.put(kept)
        others = [log for log in found if log is not kept]
        for given_up in others:
            if kept.context.is_offline or given_up.context.is_offline:
                given_up.close_quietly()  # the handler of failures takes it away; the folder stays as it is
            elif not self._is_left_behind(given_up, kept):
                raise duplicate(
                    found[0],
                    found[1],
                    hint=f"a move went to {kept.dir}, which ends at offset {kept.log_end_offset}, but {given_up.dir} "
                    f"was written to since and ends at {given_up.log_end_offset}",
                )
        for given_up in others:
            if not (kept.context.is_offline or given_up.context.is_offline):
                kept.context.logger.warning("finishing the move to here from %s", given_up.parent_dir)
                self._give_up(given_up)

    def _that_counts(self, found: Sequence[UnifiedLog]) -> UnifiedLog:
        """The one that counts beside each other one; where a disk fails that would have to say it, one of that disk:
        the partition is offline, as it may be the one that counts."""
        for log in found:
            try:
                if all(
                    move_notes.destination_of(other, log, self._files) is log for other in found if other is not log
                ):
                    return log
            except OSError as error:
                return self._failed(found, error)
        used = [log for log in found if log.log_end_offset > 0]
        are_ours = all(os.path.basename(log.dir) == str(log.topic_partition) for log in found)
        if len(used) > 1 and found[0].topic_partition.topic in _COPIES_SHOWN_BY:
            raise _two_of_a_coordinator(used)
        if len(used) > 1 or not are_ours:
            raise duplicate(found[0], found[1], hint=None)
        # A folder was made on a disk that failed at it, and then elsewhere: what was never written to holds nothing.
        return used[0] if used else max(found, key=lambda log: log.topic_id is not None)

    def _is_left_behind(self, log: UnifiedLog, kept: UnifiedLog) -> bool:
        """Also where a disk fails meanwhile, which keeps the folder as it is."""
        try:
            return move_notes.is_left_behind(log, kept, self._files)
        except OSError as error:
            self._failed((log, kept), error)
            return True

    @staticmethod
    def _failed(found: Sequence[UnifiedLog], error: OSError) -> UnifiedLog:
        """The log whose directory failed, which is offline from now on."""
        path = str(error.filename or "")
        failed = next((log for log in found if path.startswith(log.parent_dir) or log.context.is_offline), found[0])
        message = f"Error while reading notes of moves in {failed.parent_dir}"
        failed.context.log_dir_failure_channel.give_up(failed.parent_dir, message, error)
        return failed

    # --- copies in the making ------------------------------------------------------------------------

    def _settle_futures(self, found: Sequence[UnifiedLog]) -> None:
        kept = max(found, key=lambda log: log.log_end_offset)
        self._registry.put(kept, is_future=True)
        for aside in found:
            if aside is kept:
                continue
            if self._registry.get(aside.topic_partition) is None:
                aside.context.logger.warning("a second copy of a partition that is not here: passed over, not deleted")
                aside.close_quietly()
            else:
                self._give_up(aside)

    def _give_up(self, log: UnifiedLog) -> None:
        try:
            log.rename_dir(names.log_delete_dir_name(log.topic_partition), True)
        except KafkaStorageException:  # its disk fails just now
            log.context.logger.warning("the folder that a move left is not given up", exc_info=True)
            log.close_quietly()
        else:
            self._doomed.add(log)


# How to see what a folder of a coordinator's partition holds.
_COPIES_SHOWN_BY = {
    names.GROUP_METADATA_TOPIC: "`kafkalog cursors DIR` shows its cursors, and `kafkalog cursors --to-offset` with all "
    "directories of the store sets those that should count",
    names.TRANSACTION_STATE_TOPIC: "`kafkalog dump --transaction-log-decoder` shows its transactions",
}


def _two_of_a_coordinator(found: Sequence[UnifiedLog]) -> IllegalStateException:
    """One was perhaps made while the directory of the other was away.  Neither is all: nothing is to be deleted."""
    partition = found[0].topic_partition
    folders = " and ".join(f"{log.dir}, which ends at offset {log.log_end_offset}" for log in found)
    return IllegalStateException(
        f"Duplicate log directories for {partition}: found {folders}. One was made while the other was away",
        hint="nothing was changed; delete neither. Move the one with fewer cursors or transactions to an empty "
        f"directory DIR (mv {found[-1].dir} DIR/), and open the store. For what you moved, "
        + _COPIES_SHOWN_BY[partition.topic],
    )


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
