"""PartitionOffsets: the log start offset, high watermark and last stable offset of a partition.

It is the lowest part of UnifiedLog: it decides who may see and delete what. All offsets are written under `lock` and
read without it; the metadata objects are replaced as a whole. Only the native commit of an append (`Watermarks.put`)
and this file move them. The high watermark moves through `_set_high_watermark`. The first unstable offset follows the
transactions of `producers`, with it (`Watermarks.move_marks`) or alone. Mirrors that part of Kafka's UnifiedLog
(4.4.0).

Invariant: log start <= high watermark <= log end, and last stable offset <= high watermark. In a log of one replica,
recovery point <= log end. The invariant does not hold during a change, nor after one that a failed disk stopped. A
loaded log may break it too, as in Kafka: a directory that is to be deleted ends at 0 wherever it begins. A log that
was damaged after a clean close ends where its last bytes say.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kafkalog._native.state.log_end import PartitionLock, Watermarks
from kafkalog.engine.format import names, values
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.engine.log.local_log import LocalLog
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.types import UNKNOWN_OFFSET, LogStartOffsetIncrementReason
from kafkalog.engine.segment.types import LogOffsetMetadata
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    OffsetOutOfRangeException,
    PolicyViolationException,
    TooManyOpenFilesException,
)

if TYPE_CHECKING:
    from kafkalog.config import LogConfig
    from kafkalog.engine.format.names import TopicPartition

T = TypeVar("T")


def _metadata(high_watermark: int | LogOffsetMetadata) -> LogOffsetMetadata:
    if isinstance(high_watermark, LogOffsetMetadata):
        return high_watermark
    return LogOffsetMetadata(values.offset(high_watermark, "high_watermark"))


class PartitionOffsets(Watermarks):
    """Log start offset, high watermark and first unstable offset over a LocalLog.

    `high_watermark_follows`: a log of one replica, whose high watermark is its end after every append.
    """

    local_log: LocalLog
    producer_state_manager: ProducerStateManager
    high_watermark_metadata: LogOffsetMetadata
    first_unstable_offset_metadata: LogOffsetMetadata | None
    leader_epoch_cache: LeaderEpochFileCache
    topic_id: str | None = None
    unfinished: Callable[[], object] | None  # guarded by lock; the change that `settle` must repeat

    def __init__(
        self,
        log_start_offset: int,
        local_log: LocalLog,
        leader_epoch_cache: LeaderEpochFileCache,
        producer_state_manager: ProducerStateManager,
    ) -> None:
        self.lock = PartitionLock()
        self.local_log = local_log
        self.context: PartitionContext = local_log.context
        self.topic_partition: TopicPartition = self.context.topic_partition
        self.leader_epoch_cache = leader_epoch_cache
        self.producer_state_manager = producer_state_manager
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = log_start_offset
        self.highest_offset_in_remote_storage = UNKNOWN_OFFSET
        self.offset_being_copied = UNKNOWN_OFFSET  # end of the segment being copied to the tier
        self.high_watermark_metadata = LogOffsetMetadata(log_start_offset)
        self.first_unstable_offset_metadata = None
        self.unfinished = None
        self.is_again = False  # `settle` is repeating a change
        self.is_short = False  # the unfinished change failed for lack of space or descriptors the last time

    def _settle_offsets(self, log_start_offset: int) -> None:
        """After a load: raises the offsets that are below the log start.

        Only a log that continues in a remote tier may start below its first segment.
        """
        self._update_log_start_offset(log_start_offset)
        first_base = self.local_log.segments.first_segment_base_offset
        self.local_log_start_offset = max(log_start_offset, 0 if first_base is None else first_base)
        if not self.remote_log_enabled:
            self._update_log_start_offset(self.local_log_start_offset)
        elif self.high_watermark < self.local_log_start_offset <= self.log_end_offset:
            # All copied offsets were below it. (The end of a log that is to be deleted is 0.)
            self.update_high_watermark(self.local_log_start_offset)
        self.maybe_increment_first_unstable_offset()

    # --- changes of several steps ------------------------------------------------------------------------

    def whole(self, change: Callable[[], T], *, is_undone: Callable[[], bool] | None = None) -> T:
        """Runs a change of several steps, under the lock, so that it happens as a whole.

        If an interruption (KeyboardInterrupt or MemoryError, between any two lines) stops it, the change is repeated
        from its beginning before anything else happens to the log. Each change can therefore run twice. The same holds
        if it failed for lack of space or descriptors, unless `is_undone` says that the log is as it was before: a
        deletion that makes space must not wait for it.
        """
        outer = self.unfinished  # if this is part of another change, the whole of that one is repeated
        self.unfinished = outer or change
        return self._make(change, outer, is_undone)

    def settle_to_read(self) -> None:
        """Settles like `settle`, for a caller that changes nothing.

        A change that waits for space or a descriptor does not stop readers, and is left to the next change. (Each try
        replaces segments: a reader that tried it would read again forever.)
        """
        if (self.unfinished is not None and not self.is_short) or self.lock.busy:
            try:
                self.settle()
            except (DiskFull, TooManyOpenFilesException):
                pass

    def settle(self) -> None:
        """Repeats an interrupted change; every change of the log begins here.

        Raises IllegalStateException if called during a change, by a signal handler or a finalizer. Raises DiskFull or
        TooManyOpenFilesException if the change fails again.
        """
        if self.unfinished is not None or self.lock.busy:
            with self.lock:
                if self.lock.busy:
                    raise self.is_inside()
                change = self.unfinished
                if change is not None:
                    self.context.logger.info("finishing an interrupted change")
                    self.is_again = True
                    try:
                        with self.local_log.guard("finishing an interrupted change", refuses=False):
                            self._make(change, None)
                    finally:
                        self.is_again = False

    def _make(
        self,
        change: Callable[[], T],
        outer: Callable[[], object] | None,
        is_undone: Callable[[], bool] | None = None,
    ) -> T:
        """Runs a change that `unfinished` holds. Afterwards `outer` is what remains to be repeated."""
        lock = self.lock
        inside = lock.busy
        try:
            lock.busy = True
            self.is_short = False
            result = change()
        except (KafkalogError, OSError) as error:
            self.is_short = self.local_log.log_dir_failure_channel.passes(error)
            if not self.is_short or (is_undone is not None and is_undone()):
                self.unfinished = outer
            raise
        finally:
            lock.busy = inside
        self.unfinished = outer
        return result

    def is_inside(self) -> IllegalStateException:
        return IllegalStateException(
            f"this thread is in the middle of another operation on {self.topic_partition}",
            hint="a signal handler or a finalizer runs in the middle of the code that it interrupts: only set a flag "
            "there, or raise SystemExit or KeyboardInterrupt, and do the work outside",
        )

    @property
    def config(self) -> LogConfig:
        return self.context.config

    # --- the remote tier -----------------------------------------------------------------------------------

    @property
    def remote_log_enabled(self) -> bool:
        """Whether the log continues in a remote tier."""
        return self.context.uses_remote_tier

    @property
    def lacks_remote_tier(self) -> bool:
        """Whether the log continues in a remote tier that is not open: by its settings, or by its copies."""
        context = self.context
        if context.is_tier_open or context.uses_remote_tier:
            return not context.is_tier_open
        return context.known_copies is not None and context.known_copies().has(self.topic_partition, self.topic_id)

    def refuse_without_tier(self, what: str) -> None:
        """Raises IllegalArgumentException if the log continues in a remote tier that is not open.

        A log that is being copied for a move is not checked.
        """
        if self.lacks_remote_tier and not names.is_future_dir(self.context.dir):
            raise IllegalArgumentException(
                f"{what}: {self.topic_partition} continues in a remote tier, which is not open; "
                "a deletion or truncation here would also delete records there",
                hint='kafkalog.open(..., remote="s3://bucket/prefix") opens both',
            )

    def refuse_lost_end(self) -> None:
        """Raises IllegalStateException if the log was opened without its remote tier and ends below the tier's end.

        New records would hide those of the tier. Once this is excluded, appends may use the fast path.
        """
        context = self.context
        if names.is_future_dir(context.dir):
            return
        copied = None if context.known_copies is None else context.known_copies().lost_end(self)
        if copied is not None:
            raise IllegalStateException(
                f"the log ends at offset {self.log_end_offset}, but its remote tier, which is not open, "
                f"has records up to {copied}: the disk has lost the end of the log, "
                "and new records would hide the copies",
                path=context.dir,
                hint="`kafkalog tier restore` restores the partition to a new directory; "
                "replace this directory by the restored one",
            )
        self.local_log.begin_appends()

    @property
    def is_leaving_remote_tier(self) -> bool:
        """Whether the settings say that the log leaves the tier, but `leave_remote_tier` has not run yet."""
        return not self.context.uses_remote_tier and self.highest_offset_in_remote_storage != UNKNOWN_OFFSET

    @property
    def copies_to_remote(self) -> bool:
        """Whether closed segments are copied to the tier, so that local retention applies to the disk."""
        return self.context.uses_remote_tier and not self.config.remote_log_copy_disable

    @property
    def first_local_offset(self) -> int:
        """The first offset on the disk: the log start, unless the remote tier has the beginning."""
        start = self.log_start_offset
        goes_on = self.remote_log_enabled or self.is_leaving_remote_tier
        return max(start, self.local_log_start_offset) if goes_on else start

    @property
    def copied_offset(self) -> int:
        """The last offset that the remote tier has, or is receiving; -1 if none."""
        return max(self.highest_offset_in_remote_storage, self.offset_being_copied)

    def update_highest_offset_in_remote_storage(self, offset: int) -> None:
        """Records that the remote tier has everything up to and including `offset`.

        The value only grows, until the log leaves the tier.
        """
        with self.lock:
            if self.remote_log_enabled and offset > self.highest_offset_in_remote_storage:
                self.highest_offset_in_remote_storage = offset

    def end_copy(self, offset: int) -> None:
        """Ends an upload: the remote tier has everything up to `offset`.

        Ignored if the log has left the tier meanwhile.
        """
        with self.lock:
            if self.offset_being_copied != UNKNOWN_OFFSET:
                self.update_highest_offset_in_remote_storage(offset)
                self.offset_being_copied = UNKNOWN_OFFSET

    def update_log_start_offset_from_remote_tier(self, remote_log_start_offset: int) -> None:
        """Moves the log start, after retention in the remote tier."""
        if self.remote_log_enabled:
            self.maybe_increment_log_start_offset(
                remote_log_start_offset, LogStartOffsetIncrementReason.SEGMENT_DELETION
            )

    def leave_remote_tier(self) -> None:
        """Starts the log with what is on the disk.

        From now on the contents of the remote tier, and running copies, do not count.
        """
        with self.lock:
            self.maybe_increment_log_start_offset(
                self.local_log_start_offset, LogStartOffsetIncrementReason.SEGMENT_DELETION
            )
            self.highest_offset_in_remote_storage = self.offset_being_copied = UNKNOWN_OFFSET

    def raise_local_log_start_offset(self, offset: int) -> None:
        """Records that offsets below are only in the remote tier. The caller holds the lock and has settled."""
        if offset > self.local_log_start_offset:
            self.local_log_start_offset = offset
            self.context.logger.info("local log start offset %d", offset)

    @property
    def recovery_point(self) -> int:
        return self.local_log.recovery_point

    @property
    def log_end_offset(self) -> int:
        return self.local_log.next_offset_metadata[0]

    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata:
        return self.local_log.next_offset_metadata

    # --- high watermark and last stable offset -----------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        return self.high_watermark_metadata[0]

    @property
    def first_unstable_offset(self) -> int | None:
        metadata = self.first_unstable_offset_metadata
        return None if metadata is None else metadata[0]

    @property
    def last_stable_offset(self) -> int:
        """The end for a read_committed reader: below it every transaction is decided and replicated."""
        # In this order: a transaction that begins between the two reads begins at or above the high watermark.
        high_watermark, unstable = self.high_watermark_metadata[0], self.first_unstable_offset_metadata
        return unstable[0] if unstable is not None and unstable[0] < high_watermark else high_watermark

    def update_high_watermark(self, high_watermark: int | LogOffsetMetadata) -> int:
        """Sets the high watermark, limited to log start and log end. Returns the new value."""
        wanted = _metadata(high_watermark)
        with self.lock:
            end = self.local_log.next_offset_metadata
            if wanted[0] < self.log_start_offset:
                wanted = LogOffsetMetadata(self.log_start_offset)
            elif wanted[0] >= end[0]:
                wanted = end
            self._set_high_watermark(wanted)
            return wanted[0]

    def maybe_increment_high_watermark(self, new_high_watermark: int | LogOffsetMetadata) -> LogOffsetMetadata | None:
        """Raises the high watermark (or moves it to a newer segment). Returns the old one, None if it stayed."""
        new = _metadata(new_high_watermark)
        with self.lock:  # the end is read too: no truncation may come between
            if new[0] > self.log_end_offset:
                raise IllegalArgumentException(
                    f"High watermark {new} update exceeds current log end offset {self.log_end_offset_metadata}"
                )
            old = self._fetch_high_watermark_metadata()
            if old[0] < new[0] or (old[0] == new[0] and old.on_older_segment(new)):
                self._set_high_watermark(new)
                return old
            return None

    def maybe_update_high_watermark(self, high_watermark: int) -> int | None:
        """Updates like update_high_watermark. Returns None if nothing changed."""
        with self.lock:
            old = self.high_watermark
            new = self.update_high_watermark(high_watermark)
            return None if new == old else new

    def update_high_watermark_with_log_end_offset(self) -> None:
        """Adapts the high watermark to a new end: it is never above the end, and equals it if it follows it."""
        end = self.local_log.next_offset_metadata
        if self.high_watermark_follows or self.high_watermark_metadata[0] >= end[0]:
            self._set_high_watermark(end)

    def follow_log_end(self) -> None:
        """Makes this a log of one replica: from now on an append is below the high watermark at once."""
        with self.lock:
            self.high_watermark_follows = True
            self.update_high_watermark_with_log_end_offset()

    def await_high_watermark(self, above: int, timeout_s: float | None = None) -> int:
        """Waits until the high watermark is above an offset, the log closes, or the time is over.

        Returns its value then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.high_watermark_metadata[0] <= above and not self.local_log.is_closed:
            waiter = threading.Lock()
            waiter.acquire()
            waiters = self.waiters
            waiters.append(waiter)
            # Check again now that we are in the list: a move before that did not wake us.
            if waiters is not self.waiters:
                continue
            if self.high_watermark_metadata[0] > above or self.local_log.is_closed:
                break
            left = -1.0 if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            woken = False
            try:
                woken = (deadline is None or left > 0) and waiter.acquire(timeout=left)
            finally:
                if not woken:  # timed out, or interrupted
                    with contextlib.suppress(ValueError):
                        self.waiters.remove(waiter)
            if not woken:
                break
        return self.high_watermark_metadata[0]

    def _set_high_watermark(self, new: LogOffsetMetadata) -> None:
        if new[0] < 0:
            raise IllegalArgumentException("High watermark offset should be non-negative")
        with self.lock:
            if new[0] < self.high_watermark_metadata[0]:
                # If it follows the end, it goes back with the end, which is normal.
                level = logging.INFO if self.high_watermark_follows else logging.WARNING
                self.context.logger.log(
                    level, "%s: high watermark goes back from %s to %s", self, self.high_watermark_metadata, new
                )
            self.local_log.check_owner()
            self.set_high_watermark(new)
            self.local_log.check_if_closed()  # as late as in Kafka
            if self.first_unstable_is_rough:
                self.maybe_increment_first_unstable_offset()

    def _fetch_high_watermark_metadata(self) -> LogOffsetMetadata:
        self.local_log.check_if_closed()
        metadata = self.high_watermark_metadata
        if metadata.message_offset_only:
            with self.lock:
                metadata = self.maybe_convert_to_offset_metadata(self.high_watermark)
                self._set_high_watermark(metadata)
        return metadata

    def _fetch_last_stable_offset_metadata(self) -> LogOffsetMetadata:
        self.local_log.check_if_closed()
        high_watermark = self._fetch_high_watermark_metadata()
        unstable = self.first_unstable_offset_metadata
        if unstable is None or unstable[0] >= high_watermark[0]:
            return high_watermark
        if unstable.message_offset_only:
            with self.lock:
                if self.first_unstable_offset_metadata is not unstable:  # decided or truncated meanwhile
                    return self._fetch_last_stable_offset_metadata()
                unstable = self.maybe_convert_to_offset_metadata(unstable[0])
                self.first_unstable_offset_metadata = unstable
        assert unstable[0] <= high_watermark[0], (unstable, high_watermark)
        return unstable

    def maybe_convert_to_offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """Returns `offset` with its place in the log, or without a place if the log does not hold it."""
        try:
            return self.local_log.convert_to_offset_metadata_or_throw(offset)
        except OffsetOutOfRangeException:
            return LogOffsetMetadata(offset)

    def maybe_increment_first_unstable_offset(self) -> None:
        """Takes over the first unstable offset of the producers, but not below the log start."""
        with self.lock:
            self.local_log.check_if_closed()
            unstable = self.producer_state_manager.first_unstable_offset
            if unstable is not None and (unstable.message_offset_only or unstable[0] < self.log_start_offset):
                unstable = self.maybe_convert_to_offset_metadata(max(unstable[0], self.log_start_offset))
            self.first_unstable_offset_metadata = unstable

    # --- log start offset --------------------------------------------------------------------------------

    def _update_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.update_high_watermark(offset)
        if self.recovery_point < offset:
            self.local_log.recovery_point = offset

    def maybe_increment_log_start_offset(
        self,
        new_log_start_offset: int,
        reason: LogStartOffsetIncrementReason = LogStartOffsetIncrementReason.LEADER_OFFSET_INCREMENTED,
    ) -> bool:
        """Raises the log start.

        Returns False if it is there already. Raises OffsetOutOfRangeException above the high watermark.

        No file changes at once: a task updates the epochs' file, and retention deletes segments.
        """
        new_log_start_offset = values.offset(new_log_start_offset, "new_log_start_offset")
        with self.local_log.guard(f"increasing log start offset to {new_log_start_offset}"), self.lock:
            self.settle()
            if new_log_start_offset > self.log_start_offset:
                self.refuse_without_tier(f"log start offset {new_log_start_offset}")
            return self.raise_log_start_offset(new_log_start_offset, reason)

    def raise_log_start_offset(self, new_log_start_offset: int, reason: LogStartOffsetIncrementReason) -> bool:
        """Runs `maybe_increment_log_start_offset`. The caller holds the lock and has settled."""
        if new_log_start_offset > self.high_watermark:
            raise OffsetOutOfRangeException(
                f"Cannot increment the log start offset to {new_log_start_offset} of partition "
                f"{self.topic_partition} since it is larger than the high watermark {self.high_watermark}"
            )
        if self.remote_log_enabled:
            self.local_log_start_offset = max(new_log_start_offset, self.local_log_start_offset)
        self.local_log.check_changeable()
        if new_log_start_offset <= self.log_start_offset:
            return False
        self.context.logger.info("log start offset %d (%s)", new_log_start_offset, reason.value)
        self.whole(lambda: self._raise_log_start_offset(new_log_start_offset))
        return True

    def _raise_log_start_offset(self, offset: int) -> None:
        self._update_log_start_offset(offset)
        self.leader_epoch_cache.truncate_from_start_async_flush(offset)
        self.producer_state_manager.on_log_start_offset_incremented(offset)
        self.maybe_increment_first_unstable_offset()
        assert self.log_start_offset <= self.high_watermark, self  # checked by `raise_log_start_offset`

    def delete_records(self, offset: int) -> int:
        """DeleteRecords as in a leader (-1: up to the high watermark). Returns the log start offset.

        Raises PolicyViolationException for a topic that is only compacted.
        """
        offset = values.offset(offset)
        config = self.config
        if not config.delete and config.compact:
            raise PolicyViolationException(
                f"Records of partition {self.topic_partition} can not be deleted due to the configured policy"
            )
        target = self.high_watermark if offset == -1 else offset
        if target < 0:
            raise OffsetOutOfRangeException(f"The offset {target} for partition {self.topic_partition} is not valid")
        self.refuse_without_tier(
            f"delete_records({offset})"
        )  # the next open with the tier would delete the records below
        self.maybe_increment_log_start_offset(target, LogStartOffsetIncrementReason.CLIENT_RECORD_DELETION)
        return self.log_start_offset
