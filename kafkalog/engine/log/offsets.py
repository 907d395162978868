"""The offsets of a partition that have a meaning beyond its files: log start, high watermark, last stable offset.

The lowest part of UnifiedLog: who may see and drop what.  All are written under `lock` and read without it; the
metadata objects are replaced whole.  Nobody but an append's native commit (`Watermarks.put`) and this file moves them:
the high watermark goes through `_set_high_watermark`, with it (`Watermarks.move_marks`) or alone the first unstable
offset, which follows the transactions of `producers`.  Mirrors that part of Kafka's UnifiedLog (4.4.0).

Invariant: log start <= high watermark <= log end, last stable offset <= high watermark; of a log of one replica the
recovery point <= log end.  It does not hold while a change is under way, nor after one that a failed disk stopped; and
what is loaded may break it, as with Kafka: a folder that is to be deleted ends at 0 wherever it begins, a log that was
closed cleanly and damaged since ends where its last bytes say.
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
    """Log start offset, high watermark, first unstable offset over a LocalLog.

    `high_watermark_follows`: a log of one replica, whose high watermark is its end after every append.
    """

    local_log: LocalLog
    producer_state_manager: ProducerStateManager
    high_watermark_metadata: LogOffsetMetadata
    first_unstable_offset_metadata: LogOffsetMetadata | None
    leader_epoch_cache: LeaderEpochFileCache
    topic_id: str | None = None
    unfinished: Callable[[], object] | None  # guarded by lock; what `settle` has to make again

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
        self.offset_being_copied = UNKNOWN_OFFSET  # the last one of a segment that is on its way to the remote tier
        self.high_watermark_metadata = LogOffsetMetadata(log_start_offset)
        self.first_unstable_offset_metadata = None
        self.unfinished = None
        self.is_again = False  # `settle` is making a change once more
        self.is_short = False  # what is unfinished found no space, or no descriptor, when it was made last

    def _settle_offsets(self, log_start_offset: int) -> None:
        """After a load: raises what lies below the log start.  That is below the first segment only where the log goes
        on in a remote tier."""
        self._update_log_start_offset(log_start_offset)
        first_base = self.local_log.segments.first_segment_base_offset
        self.local_log_start_offset = max(log_start_offset, 0 if first_base is None else first_base)
        if not self.remote_log_enabled:
            self._update_log_start_offset(self.local_log_start_offset)
        elif self.high_watermark < self.local_log_start_offset <= self.log_end_offset:
            # What was copied was below it.  (The end of a log that is to be deleted is 0.)
            self.update_high_watermark(self.local_log_start_offset)
        self.maybe_increment_first_unstable_offset()

    # --- changes of several steps ------------------------------------------------------------------------

    def whole(self, change: Callable[[], T], *, is_undone: Callable[[], bool] | None = None) -> T:
        """Makes a change of several steps, under the lock, so that it happens whole.

        One that is cut short by what is no error of ours or the disk's (KeyboardInterrupt, MemoryError, between any two
        of its lines) is made again, from its beginning, before anything else happens to the log: each may be made
        twice.  So is one that came to no end for want of space or descriptors, unless `is_undone` says after it that
        the log is as it was: who deletes to make space must not wait for it.
        """
        outer = self.unfinished  # a change that this is a part of is made again as a whole
        self.unfinished = outer or change
        return self._make(change, outer, is_undone)

    def settle_to_read(self) -> None:
        """`settle` for who changes nothing: what waits for space, or for a descriptor, does not keep readers, and is
        left to the next change.  (Each try replaces segments: a reader who tried would look again for ever.)"""
        if (self.unfinished is not None and not self.is_short) or self.lock.busy:
            try:
                self.settle()
            except (DiskFull, TooManyOpenFilesException):
                pass

    def settle(self) -> None:
        """Makes what was interrupted again; every change of the log begins here.

        IllegalStateException to who is called in the middle of one, by a signal or a finalizer; DiskFull,
        TooManyOpenFilesException where it still comes to no end.
        """
        if self.unfinished is not None or self.lock.busy:
            with self.lock:
                if self.lock.busy:
                    raise self.is_inside()
                change = self.unfinished
                if change is not None:
                    self.context.logger.info("finishing what was interrupted")
                    self.is_again = True
                    try:
                        with self.local_log.guard("finishing what was interrupted", refuses=False):
                            self._make(change, None)
                    finally:
                        self.is_again = False

    def _make(
        self,
        change: Callable[[], T],
        outer: Callable[[], object] | None,
        is_undone: Callable[[], bool] | None = None,
    ) -> T:
        """Makes a change that `unfinished` holds; it is `outer` that is left to be made then."""
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
            hint="a signal handler or a finalizer runs inside of what it interrupts: only note there what is to be "
            "done, or raise SystemExit or KeyboardInterrupt, and do it outside",
        )

    @property
    def config(self) -> LogConfig:
        return self.context.config

    # --- the remote tier -----------------------------------------------------------------------------------

    @property
    def remote_log_enabled(self) -> bool:
        """Whether the log goes on in a remote tier."""
        return self.context.uses_remote_tier

    @property
    def lacks_remote_tier(self) -> bool:
        """Whether the log goes on in a remote tier that is not open: by its settings, or by what it has."""
        context = self.context
        if context.is_tier_open or context.uses_remote_tier:
            return not context.is_tier_open
        return context.known_copies is not None and context.known_copies().has(self.topic_partition, self.topic_id)

    def refuse_without_tier(self, what: str) -> None:
        """IllegalArgumentException where the remote tier, which the log goes on in, is not open; not of a log that is a
        copy in the making, for a move."""
        if self.lacks_remote_tier and not names.is_future_dir(self.context.dir):
            raise IllegalArgumentException(
                f"{what}: {self.topic_partition} goes on in a remote tier, which is not open: what is deleted or cut "
                "here would be lost there, too",
                hint='kafkalog.open(..., remote="s3://bucket/prefix") opens both',
            )

    def refuse_lost_end(self) -> None:
        """IllegalStateException where the log, opened without its remote tier, ends below what that has: new records
        would hide those.  Once it is known not to, appends may take the short way."""
        context = self.context
        if names.is_future_dir(context.dir):
            return
        copied = None if context.known_copies is None else context.known_copies().lost_end(self)
        if copied is not None:
            raise IllegalStateException(
                f"the log ends at offset {self.log_end_offset}, and its remote tier, which is not open, has it up to "
                f"{copied}: the disk has lost its end, and new records would hide what is there",
                path=context.dir,
                hint="`kafkalog tier restore` brings the partition back to a new directory: its folder takes the place "
                "of this one",
            )
        self.local_log.begin_appends()

    @property
    def is_leaving_remote_tier(self) -> bool:
        """Whether its settings say so, and it has yet to be done (`leave_remote_tier`)."""
        return not self.context.uses_remote_tier and self.highest_offset_in_remote_storage != UNKNOWN_OFFSET

    @property
    def copies_to_remote(self) -> bool:
        """Whether closed segments are copied there, so that local retention counts for those on the disk."""
        return self.context.uses_remote_tier and not self.config.remote_log_copy_disable

    @property
    def first_local_offset(self) -> int:
        """Where what is read from the disk begins: the log start, unless the remote tier has the beginning."""
        start = self.log_start_offset
        goes_on = self.remote_log_enabled or self.is_leaving_remote_tier
        return max(start, self.local_log_start_offset) if goes_on else start

    @property
    def copied_offset(self) -> int:
        """The last one that the remote tier has, or is being given; -1 for none."""
        return max(self.highest_offset_in_remote_storage, self.offset_being_copied)

    def update_highest_offset_in_remote_storage(self, offset: int) -> None:
        """Up to `offset`, inclusively, the remote tier has everything: what is known of that only grows, until
        the log leaves it."""
        with self.lock:
            if self.remote_log_enabled and offset > self.highest_offset_in_remote_storage:
                self.highest_offset_in_remote_storage = offset

    def end_copy(self, offset: int) -> None:
        """An upload has ended: the remote tier has everything up to `offset`.  It counts for nothing where the log has
        left the tier meanwhile."""
        with self.lock:
            if self.offset_being_copied != UNKNOWN_OFFSET:
                self.update_highest_offset_in_remote_storage(offset)
                self.offset_being_copied = UNKNOWN_OFFSET

    def update_log_start_offset_from_remote_tier(self, remote_log_start_offset: int) -> None:
        """Retention in the remote tier moved the log's start."""
        if self.remote_log_enabled:
            self.maybe_increment_log_start_offset(
                remote_log_start_offset, LogStartOffsetIncrementReason.SEGMENT_DELETION
            )

    def leave_remote_tier(self) -> None:
        """The log starts with what is on the disk.  What the remote tier has of it, or is being given, counts for
        nothing from now on."""
        with self.lock:
            self.maybe_increment_log_start_offset(
                self.local_log_start_offset, LogStartOffsetIncrementReason.SEGMENT_DELETION
            )
            self.highest_offset_in_remote_storage = self.offset_being_copied = UNKNOWN_OFFSET

    def raise_local_log_start_offset(self, offset: int) -> None:
        """What lies below is in the remote tier alone.  For who holds the lock and has settled."""
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
        """Up to where a read_committed reader sees: below it every transaction is decided and replicated."""
        # In this order: a transaction that begins between the two looks begins at or above the high watermark.
        high_watermark, unstable = self.high_watermark_metadata[0], self.first_unstable_offset_metadata
        return unstable[0] if unstable is not None and unstable[0] < high_watermark else high_watermark

    def update_high_watermark(self, high_watermark: int | LogOffsetMetadata) -> int:
        """Sets the high watermark, held between log start and log end; answers what it became."""
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
        """Raises the high watermark (or moves it to a newer segment); answers the old one, None if it stayed."""
        new = _metadata(new_high_watermark)
        with self.lock:  # it asks for the end, too: a truncation must not come between
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
        """As update_high_watermark; None when that changed nothing."""
        with self.lock:
            old = self.high_watermark
            new = self.update_high_watermark(high_watermark)
            return None if new == old else new

    def update_high_watermark_with_log_end_offset(self) -> None:
        """After the end moved: the high watermark never lies above it, nor below where it follows."""
        end = self.local_log.next_offset_metadata
        if self.high_watermark_follows or self.high_watermark_metadata[0] >= end[0]:
            self._set_high_watermark(end)

    def follow_log_end(self) -> None:
        """From now on the log has one replica: what is appended is at once below the high watermark."""
        with self.lock:
            self.high_watermark_follows = True
            self.update_high_watermark_with_log_end_offset()

    def await_high_watermark(self, above: int, timeout_s: float | None = None) -> int:
        """Waits until the high watermark lies above an offset, the log closes or the time is over; where it is then."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.high_watermark_metadata[0] <= above and not self.local_log.is_closed:
            waiter = threading.Lock()
            waiter.acquire()
            waiters = self.waiters
            waiters.append(waiter)
            # Looked at again once we are in the list: whoever moved it before did not see us.
            if waiters is not self.waiters:
                continue
            if self.high_watermark_metadata[0] > above or self.local_log.is_closed:
                break
            left = -1.0 if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            woken = False
            try:
                woken = (deadline is None or left > 0) and waiter.acquire(timeout=left)
            finally:
                if not woken:  # in vain, or interrupted
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
                # Where it follows the end, it goes back with that, which is no news.
                level = logging.INFO if self.high_watermark_follows else logging.WARNING
                self.context.logger.log(
                    level, "%s: high watermark goes back from %s to %s", self, self.high_watermark_metadata, new
                )
            self.local_log.check_owner()
            self.set_high_watermark(new)
            self.local_log.check_if_closed()  # as late as Kafka does it
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
                if self.first_unstable_offset_metadata is not unstable:  # decided, or cut, since we looked
                    return self._fetch_last_stable_offset_metadata()
                unstable = self.maybe_convert_to_offset_metadata(unstable[0])
                self.first_unstable_offset_metadata = unstable
        assert unstable[0] <= high_watermark[0], (unstable, high_watermark)
        return unstable

    def maybe_convert_to_offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """`offset` with its place in the log, or alone where the log does not hold it."""
        try:
            return self.local_log.convert_to_offset_metadata_or_throw(offset)
        except OffsetOutOfRangeException:
            return LogOffsetMetadata(offset)

    def maybe_increment_first_unstable_offset(self) -> None:
        """Takes over the first unstable offset of the producers, not below the log start."""
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
        """Raises the log start; False where it is there already.  OffsetOutOfRangeException above the high watermark.

        No file changes at once: the epochs' file follows by a task, segments go by retention.
        """
        new_log_start_offset = values.offset(new_log_start_offset, "new_log_start_offset")
        with self.local_log.guard(f"increasing log start offset to {new_log_start_offset}"), self.lock:
            self.settle()
            if new_log_start_offset > self.log_start_offset:
                self.refuse_without_tier(f"log start offset {new_log_start_offset}")
            return self.raise_log_start_offset(new_log_start_offset, reason)

    def raise_log_start_offset(self, new_log_start_offset: int, reason: LogStartOffsetIncrementReason) -> bool:
        """`maybe_increment_log_start_offset` for who holds the lock and has settled."""
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
        assert self.log_start_offset <= self.high_watermark, self  # what `raise_log_start_offset` let pass

    def delete_records(self, offset: int) -> int:
        """DeleteRecords as a leader does it (-1: up to the high watermark); answers the log start offset.

        PolicyViolationException on a topic that is only compacted.
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
        self.refuse_without_tier(f"delete_records({offset})")  # the next open with it would delete there what is below
        self.maybe_increment_log_start_offset(target, LogStartOffsetIncrementReason.CLIENT_RECORD_DELETION)
        return self.log_start_offset
