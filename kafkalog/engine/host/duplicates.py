"""Decides which directory of a partition counts if a start finds several, because moves were interrupted.

Complete logs: the notes of moves say which one counts (`move_notes`).  The others are deleted if nothing was written
to them since.  Without a note, directories that were never written to give way.  Otherwise the start is refused with
Kafka's error; for a partition of a coordinator's topic, with an error that says how to keep both.
Unfinished copies (`-future`): the longest one is kept.  The others are deleted if the partition itself is loaded.
A directory that may be the last remainder of its records is never deleted.
Several loading threads run at a time.  They only report the log whose place in the registry they took (`set_aside`).
`finish` decides when all logs are loaded, because with three directories two of them may have no note of each other.
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
    """Holds the duplicates of one start."""

    def __init__(self, registry: LogRegistry, doomed: DoomedLogs, files: Files) -> None:
        self._registry = registry
        self._doomed = doomed
        self._files = files
        self._aside: list[UnifiedLog] = []

    def set_aside(self, log: UnifiedLog) -> None:
        """Reports a log whose place in the registry another directory of the partition took."""
        self._aside.append(log)

    def finish(self) -> None:
        """Decides, when everything is loaded, and leaves in the registry the logs that count.

        Raises IllegalStateException if it cannot decide.
        """
        for is_future in (False, True):  # a copy is deleted only if the partition itself is loaded
            for partition in dict.fromkeys([log.topic_partition for log in self._aside if log.is_future == is_future]):
                aside = [log for log in self._aside if (log.topic_partition, log.is_future) == (partition, is_future)]
                current = self._registry.get(partition, is_future=is_future)
                found = aside if current is None else [current, *aside]
                if current is not None:
                    self._aside.append(current)  # if it gives way, the registry no longer has it
                if is_future:
                    self._settle_futures(found)
                else:
                    self._settle(found)
        self._aside = []

    def close_quietly(self) -> None:
        """Closes the logs that were set aside, if the start fails."""
        for aside in self._aside:
            aside.close_quietly()

    # --- complete logs -------------------------------------------------------------------------------

    def _settle(self, found: Sequence[UnifiedLog]) -> None:
        kept = self._that_counts(found)
        self._registry.put(kept)
        others = [log for log in found if log is not kept]
        for given_up in others:
            if kept.context.is_offline or given_up.context.is_offline:
                given_up.close_quietly()  # the failure handler takes the log out; its directory stays
            elif not self._is_left_behind(given_up, kept):
                raise duplicate(
                    found[0],
                    found[1],
                    hint=f"a move went to {kept.dir}, which ends at offset {kept.log_end_offset}, but {given_up.dir} "
                    f"was written to since and ends at offset {given_up.log_end_offset}",
                )
        for given_up in others:
            if not (kept.context.is_offline or given_up.context.is_offline):
                kept.context.logger.warning("finishing the move from %s to here", given_up.parent_dir)
                self._give_up(given_up)

    def _that_counts(self, found: Sequence[UnifiedLog]) -> UnifiedLog:
        """Returns the log that counts against each other one.

        If the disk that would have to say it fails, returns a log of that disk: the partition is offline then, because
        that log may be the one that counts.
        """
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
        # A directory was created on a disk that then failed, and again elsewhere: an empty log holds nothing.
        return used[0] if used else max(found, key=lambda log: log.topic_id is not None)

    def _is_left_behind(self, log: UnifiedLog, kept: UnifiedLog) -> bool:
        """Returns whether a move left `log` behind.  Also True if a disk fails, which keeps the directory as it is."""
        try:
            return move_notes.is_left_behind(log, kept, self._files)
        except OSError as error:
            self._failed((log, kept), error)
            return True

    @staticmethod
    def _failed(found: Sequence[UnifiedLog], error: OSError) -> UnifiedLog:
        """Takes the failed directory offline, and returns its log."""
        path = str(error.filename or "")
        failed = next((log for log in found if path.startswith(log.parent_dir) or log.context.is_offline), found[0])
        message = f"Error while reading notes of moves in {failed.parent_dir}"
        failed.context.log_dir_failure_channel.give_up(failed.parent_dir, message, error)
        return failed

    # --- unfinished copies ---------------------------------------------------------------------------

    def _settle_futures(self, found: Sequence[UnifiedLog]) -> None:
        kept = max(found, key=lambda log: log.log_end_offset)
        self._registry.put(kept, is_future=True)
        for aside in found:
            if aside is kept:
                continue
            if self._registry.get(aside.topic_partition) is None:
                aside.context.logger.warning("skipped a second copy of a partition that is not here; it is not deleted")
                aside.close_quietly()
            else:
                self._give_up(aside)

    def _give_up(self, log: UnifiedLog) -> None:
        try:
            log.rename_dir(names.log_delete_dir_name(log.topic_partition), True)
        except KafkaStorageException:  # its disk has just failed
            log.context.logger.warning("the directory that a move left was not renamed for deletion", exc_info=True)
            log.close_quietly()
        else:
            self._doomed.add(log)


# How to see what a directory of a coordinator's partition holds.
_COPIES_SHOWN_BY = {
    names.GROUP_METADATA_TOPIC: "`kafkalog cursors DIR` shows its cursors, and `kafkalog cursors --to-offset` with all "
    "directories of the store sets those that should count",
    names.TRANSACTION_STATE_TOPIC: "`kafkalog dump --transaction-log-decoder` shows its transactions",
}


def _two_of_a_coordinator(found: Sequence[UnifiedLog]) -> IllegalStateException:
    """Returns the error for two logs of a coordinator's partition.

    One of them was perhaps created while the directory of the other was missing.  Neither is complete, so that the user
    must delete neither.
    """
    partition = found[0].topic_partition
    folders = " and ".join(f"{log.dir}, which ends at offset {log.log_end_offset}" for log in found)
    return IllegalStateException(
        f"Duplicate log directories for {partition}: found {folders}. One was created while the other was missing",
        hint="nothing was changed; delete neither. Move the one with fewer cursors or transactions to an empty "
        f"directory DIR (mv {found[-1].dir} DIR/), and open the store. For the one that you moved, "
        + _COPIES_SHOWN_BY[partition.topic],
    )


def duplicate(log: UnifiedLog, previous: UnifiedLog, hint: str | None) -> IllegalStateException:
    """Returns Kafka's error for two directories of one partition."""
    if log.is_future:
        return IllegalStateException(f"Duplicate log directories found: {log.dir}, {previous.dir}", hint=hint)
    return IllegalStateException(
        f"Duplicate log directories for {log.topic_partition} are found in both {log.dir} and {previous.dir}. It is "
        "likely because log directory failure happened while broker was replacing current replica with future replica. "
        "Recover broker from this failure by manually deleting one of the two directories for this partition. It is "
        "recommended to delete the partition in the log directory that is known to have failed recently.",
        hint=hint,
    )
