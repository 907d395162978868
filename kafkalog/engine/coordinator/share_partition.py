"""One partition shared out to the members of a group: which records are acquired, and which are done.

    shared = SharePartition("mail", TopicIdPartition(topic_id, 0, "outbox"), context)
    shared.maybe_initialize()
    acquired = shared.acquire(request, shared.next_fetch_offset(), log_read)
    shared.acknowledge("worker-1", [ShareAcknowledgementBatch(0, 9, (ACCEPT,))])

Offsets below `start_offset` are done. The next ones, up to `end_offset`, are in flight: `cached` has their states.
Above, nothing was delivered yet. A delivery changes memory only. Its end (accept, release, reject, a lock that ends) is
written to the persister before it counts. While a write runs the records are in transition, and nobody else may change
them; a failed write is taken back. Writes that wait for another are written together, as one.

A change that an exception or an interrupt tore apart fences the partition: its manager reads it again from the
persister, and records that were acquired are delivered again. Thread-safe. `lock` guards everything; a write holds
`_writing`, which is acquired first. Acquiring is in `share_acquire`. Source: SharePartition (4.4.0).

The file is longer than others, because each method changes the same few numbers under one lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.state.bell import Bell
from kafkalog._native.state.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    BATCH_NOT_ACQUIRED,
    BATCH_NOT_OWNED,
    ENDED,
    FIRST_IS_PAST,
    IN_TRANSITION,
    LAST_IS_PAST,
    NO_DEADLINE,
    NO_MEMBER,
    NOT_ACQUIRED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_OWNER,
    NOT_RENEWED,
    RENEWED,
    SUBSET_NOT_ACQUIRED,
    TERMINAL,
    CachedState,
    InFlightBatch,
    InFlightState,
    Transition,
)
from kafkalog.engine.coordinator.share_config import (
    BY_DURATION,
    EARLIEST,
    LATEST,
    GroupLimits,
    ShareGroupConfigProvider,
)
from kafkalog.engine.coordinator.share_interfaces import (
    CLIENT_REJECT,
    DELIVERY_COUNT_EXCEEDED,
    DeadLetter,
    DeadLetters,
    PartitionWrite,
    Persister,
    SharedLogs,
    TopicIdPartition,
)
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import PersisterStateBatch, SharePartitionKey
from kafkalog.errors import (
    CoordinatorNotAvailableException,
    GroupIdNotFoundException,
    IllegalStateException,
    InvalidRecordStateException,
    InvalidRequestException,
    KafkalogError,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetNotAvailableException,
    UnknownServerException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_metrics import ShareMetrics

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)  # acknowledge types
NEW_STATES = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED, RENEW: RENEWED}
REFUSALS = {
    NOT_ACQUIRED: "The offset cannot be acknowledged. The offset is not acquired.",
    IN_TRANSITION: "The record state is invalid. The acknowledgement of delivery could not be completed.",
    NOT_OWNER: "Member is not the owner of offset",
    NOT_ALLOWED: "Unable to acknowledge records for the batch",
    NOT_RENEWED: "Renewing acquisition locks is not enabled for the group.",
    NOT_FOUND: "Batch record not found. The request batch offsets are not found in the cache.",
    FIRST_IS_PAST: "Batch record not found. The first offset in request is past acquired records.",
    LAST_IS_PAST: "Batch record not found. The last offset in request is past acquired records.",
    BATCH_NOT_ACQUIRED: "The batch cannot be acknowledged. The batch is not in the acquired state.",
    BATCH_NOT_OWNED: "Member is not the owner of batch record",
    SUBSET_NOT_ACQUIRED: "The batch cannot be acknowledged. The subset batch is not in the acquired state.",
}
NO_OFFSET = -1
GROUP_MAX = 64  # writes that become one
WAIT_MAX_S = 0.1  # an interrupted thread wakes nobody
THREADS_ALONE = 4  # the main thread, the timers', the scheduler's, and one worker

# The states of a partition.
EMPTY, INITIALIZING, ACTIVE, FAILED, FENCED = "EMPTY", "INITIALIZING", "ACTIVE", "FAILED", "FENCED"

UNKNOWN_TOPIC, COORDINATOR_ERRORS, GROUP_NOT_FOUND, FENCED_EPOCHS = 3, (14, 15, 16), 69, (74, 124)
HIDDEN_ERRORS = (35, 58)  # UNSUPPORTED_VERSION, SASL_AUTHENTICATION_FAILED


class ShareAcknowledgementBatch(NamedTuple):
    """An acknowledgement of offsets: one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


class ShareContext(NamedTuple):
    """The objects that all share partitions of a broker use. `notify(group, partition)` is told of free records."""

    logs: SharedLogs
    persister: Persister
    timers: Timers
    clock: Clock
    configs: ShareGroupConfigProvider
    dead_letters: DeadLetters
    notify: Callable[[str, TopicIdPartition], None] = lambda group, partition: None
    metrics: ShareMetrics | None = None


class GapWindow:
    """Offsets between the batches that the persister had: they may be acquired as if they were new.

    It holds as long as the partition's end is `end_offset`."""

    __slots__ = ("end_offset", "gap_start_offset")

    def __init__(self, end_offset: int, gap_start_offset: int) -> None:
        self.end_offset = end_offset
        self.gap_start_offset = gap_start_offset


class StateWrite:
    """States on their way to the persister. `transitions` is empty if they hold in any case."""

    __slots__ = ("_bell", "batches", "error", "is_over", "is_written", "letters", "transitions")

    def __init__(
        self,
        batches: list[PersisterStateBatch],
        transitions: Sequence[Transition] = (),
        letters: Sequence[tuple[int, int, int, str]] = (),
    ) -> None:
        self.batches = batches
        self.transitions = transitions
        self.letters = letters  # first, last, delivery count, cause: to write when this is written
        self.error: KafkalogError | None = None
        self.is_written = False
        self.is_over = False
        self._bell: Bell | None = None

    def wait(self) -> None:
        """Waits until it is over, or its thread shall look whether it can write itself. The first call only makes the
        bell, and returns: a ring before that is not heard."""
        if self._bell is None:
            self._bell = Bell()
        else:
            self._bell.wait(WAIT_MAX_S)

    def wake(self) -> None:
        """Ends the wait. May be called again."""
        if self._bell is not None:
            self._bell.release()


def error_of(code: int, message: str | None) -> KafkalogError:
    """Returns the error for a persister's error code."""
    if code in COORDINATOR_ERRORS:
        return CoordinatorNotAvailableException(message or "")
    if code == GROUP_NOT_FOUND:
        return GroupIdNotFoundException(message or "")
    if code == UNKNOWN_TOPIC:
        return UnknownTopicOrPartitionException(message or "")
    if code in FENCED_EPOCHS:
        return NotLeaderOrFollowerException(message or "")
    if code in HIDDEN_ERRORS:
        return UnknownServerException("Unable to complete operation due to server error.")
    return UnknownServerException(message or "")


class SharePartition:
    """See the module."""

    def __init__(self, group: str, partition: TopicIdPartition, context: ShareContext, leader_epoch: int = 0) -> None:
        self.group = group
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.lock = threading.RLock()
        self.cached = CachedState()  # guarded by lock, like everything below
        self.start_offset = 0
        self.end_offset = 0
        self.state_epoch = 0
        self.delivery_complete_count = 0
        self.find_next_fetch_offset = False
        self.gap_window: GapWindow | None = None
        self.partition_state = EMPTY
        self.looked_up_offset = NO_OFFSET  # a fetch has looked up where it lies in the log
        self._context = context
        self._configs = context.configs
        self._is_torn = False
        self._next_deadline_ms = NO_DEADLINE
        self._fetch_lock = threading.Lock()
        self._fetch_holder: object = None
        self._writing = threading.RLock()
        self._is_shared = False  # several threads write
        self._writes: list[StateWrite] = []  # they wait; the thread that has _writing writes all of them
        self._timer_key = ("share-locks", group, partition.topic_id, partition.partition)
        self._key = SharePartitionKey(group, partition.topic_id, partition.partition)

    def __repr__(self) -> str:
        return f"<share partition {self.group}-{self.partition} {self.partition_state}>"

    # --- life ------------------------------------------------------------------------------------------

    def maybe_initialize(self) -> None:
        """Reads the state from the persister, once. Raises what prevents it; then nothing was changed but the life."""
        with self.lock:
            if self._is_initialized():
                return
            self.partition_state = INITIALIZING
        archiving: list[tuple[int, int, int, str]] = []
        done = False
        try:
            data = self._read_state()
            with self.lock:
                self.begin_change()
                archiving = self._load(data)
                self.partition_state = ACTIVE
                self.end_change()
            done = True
        finally:
            if not done:
                self.partition_state = FAILED
        self._write_letters(archiving)
        self._context.notify(self.group, self.partition)

    def _is_initialized(self) -> bool:
        name = f"{self.group}-{self.partition}"
        if self.partition_state == INITIALIZING:
            raise LeaderNotAvailableException(f"Share partition is already initializing {name}")
        if self.partition_state == FAILED:
            raise IllegalStateException(f"Share partition failed to load {name}")
        if self.partition_state == FENCED:
            raise LeaderNotAvailableException(f"Share partition is fenced {name}")
        return self.partition_state == ACTIVE

    def _read_state(self) -> Values:
        place = {"partition": self.partition.partition, "leaderEpoch": self.leader_epoch}
        topics = [{"topicId": self.partition.topic_id, "partitions": [place]}]
        answer = self._context.persister.read_state({"groupId": self.group, "topics": topics})
        return self._checked(answer, f"Failed to initialize the share partition {self.group}-{self.partition}")

    def _checked(self, answer: Values, failure: str) -> Values:
        """Returns the partition's part of a persister's answer; raises its error, or that the answer is no such."""
        results = answer.get("results") or []
        partitions = results[0]["partitions"] if len(results) == 1 else []
        if len(partitions) != 1 or results[0]["topicId"] != self.partition.topic_id:
            raise IllegalStateException(failure)
        found: Values = partitions[0]
        if found["partition"] != self.partition.partition:
            raise IllegalStateException(failure)
        if found.get("errorCode", 0):
            raise _logged(failure, found["errorCode"], found.get("errorMessage"))
        return found

    def _load(self, data: Values) -> list[tuple[int, int, int, str]]:
        """Takes over the persister's state. Returns what was about to become dead letters."""
        failure = IllegalStateException(f"Failed to initialize the share partition {self.group}-{self.partition}")
        self.start_offset = self._first_start_offset(data["startOffset"])
        self.state_epoch = data["stateEpoch"]
        archiving: list[tuple[int, int, int, str]] = []
        gap_start = NO_OFFSET
        previous_last = self.start_offset - 1
        for each in data["stateBatches"]:
            first, last, state, count = _fields(each)
            if first < self.start_offset or last < first or not AVAILABLE <= state <= ARCHIVED:
                self.cached.clear()
                raise failure
            if gap_start == NO_OFFSET and first > previous_last + 1:
                gap_start = previous_last + 1
            previous_last = last
            self.cached.put(InFlightBatch(first, last, state, count))
            if state in TERMINAL:
                self.delivery_complete_count += last - first + 1
            if state == ARCHIVING:
                exceeded = count >= self.max_delivery_count()
                archiving.append((first, last, count, DELIVERY_COUNT_EXCEEDED if exceeded else CLIENT_REJECT))
        if self.cached:
            self.find_next_fetch_offset = True
            self.end_offset = self.cached.last_offset
            if gap_start != NO_OFFSET:
                self.gap_window = GapWindow(self.end_offset, gap_start)
            self._maybe_update_cached_state_and_offsets()
        else:
            self.end_offset = self.start_offset
        return archiving

    def _first_start_offset(self, known: int) -> int:
        if known != NO_OFFSET:
            return known
        logs, reset = self._context.logs, self._configs.auto_offset_reset(self.group)
        if reset.kind == LATEST:
            return logs.latest_offset(self.partition)
        if reset.kind == EARLIEST:
            return logs.earliest_offset(self.partition)
        assert reset.kind == BY_DURATION, reset
        timestamp_ms = self._context.clock.milliseconds() - reset.duration_ms
        found = logs.offset_for_timestamp(self.partition, timestamp_ms)
        if found is None:
            raise OffsetNotAvailableException(
                f"Offset for timestamp {timestamp_ms} not found for topic partition: {self.partition}"
            )
        return found

    def mark_fenced(self) -> None:
        """Ends its life: nothing can be acquired any more, and its manager makes another."""
        with self.lock:
            self.partition_state = FENCED
        self._context.timers.cancel(self._timer_key)

    @property
    def is_active(self) -> bool:
        """True between its initialization and its end."""
        return self.partition_state == ACTIVE

    @property
    def is_ready(self) -> bool:
        """True if it is active and not over."""
        return self.partition_state == ACTIVE and (not self._is_torn or self._is_changing())

    @property
    def is_over(self) -> bool:
        """True if another object has to take its place."""
        return self.partition_state in (FENCED, FAILED) or (self._is_torn and not self._is_changing())

    def _is_changing(self) -> bool:
        """Returns whether a thread is inside a change now."""
        if not self.lock.acquire(blocking=False):
            return True
        self.lock.release()
        return False

    def begin_change(self) -> None:
        """Begins a change, under the lock. NotLeaderOrFollowerException if an earlier one was torn apart."""
        if self._is_torn:
            self.partition_state = FENCED
            raise NotLeaderOrFollowerException(
                f"A change of share partition {self.group}-{self.partition} was interrupted; it is read again"
            )
        self._is_torn = True

    def end_change(self) -> None:
        """Ends a change. Without this call the partition is torn."""
        self._is_torn = False

    # --- settings --------------------------------------------------------------------------------------

    def limits(self) -> GroupLimits:
        """Returns the group's limits."""
        return self._configs.limits(self.group)

    def max_delivery_count(self) -> int:
        """How often a record is delivered."""
        return self._configs.limits(self.group).delivery_count_limit

    def new_deadline_ms(self) -> int:
        """Returns when a lock that begins now ends. Sets the timer for it; the caller has the lock."""
        duration_ms = self._configs.limits(self.group).record_lock_duration_ms
        deadline_ms = self._context.timers.now_ms() + duration_ms
        if self._next_deadline_ms == NO_DEADLINE or deadline_ms < self._next_deadline_ms:
            self._next_deadline_ms = deadline_ms
            self._context.timers.schedule(self._timer_key, duration_ms, self.release_expired)
        return deadline_ms

    def _has_dead_letters(self) -> bool:
        return self._context.dead_letters.is_enabled(self.group)

    # --- offsets ---------------------------------------------------------------------------------------

    @property
    def is_gap_window_active(self) -> bool:
        return self.gap_window is not None and self.gap_window.end_offset == self.end_offset

    @property
    def _gap_start(self) -> int:
        """Where the gaps begin that may be acquired; NO_OFFSET without any."""
        window = self.gap_window
        return window.gap_start_offset if window is not None and window.end_offset == self.end_offset else NO_OFFSET

    def next_fetch_offset(self) -> int:
        """Returns the first offset that can be acquired: one that is free again, or the next new one."""
        with self.lock:
            cached = self.cached
            if not cached or self.start_offset > cached.last_offset:
                self.find_next_fetch_offset = False
                return self.end_offset
            if not self.find_next_fetch_offset:
                return self.end_offset + 1
            found = cached.first_available(self._gap_start)
            if found == NO_OFFSET:
                self.find_next_fetch_offset = False
                found = self.end_offset + 1
            return found

    def can_acquire_records(self) -> bool:
        """Returns whether a fetch may find something."""
        return self.acquirable_offset() != NO_OFFSET

    def acquirable_offset(self) -> int:
        """Returns the next fetch offset; NO_OFFSET if only new records can be there, and too many are in flight."""
        with self.lock:
            found = self.next_fetch_offset()
            is_new = found == self.end_offset + 1
            if is_new and self.num_in_flight_records() >= self.limits().partition_max_record_locks:
                return NO_OFFSET
            return found

    def num_in_flight_records(self) -> int:
        """Returns the number of offsets in flight."""
        return self.end_offset - self.start_offset + 1 if self.cached else 0

    def moved_gap_window(self, offset: int) -> None:
        """Notes that the gaps below an offset were acquired."""
        window = self.gap_window
        if window is not None:
            if window.end_offset == self.end_offset and offset <= window.end_offset:
                window.gap_start_offset = offset
            else:
                self.gap_window = None

    def update_cache_and_offsets(self, log_start_offset: int) -> None:
        """Archives what lies below the log's new start."""
        with self.lock:
            self.begin_change()
            if log_start_offset > self.start_offset:
                if self.cached:
                    removed = self._count_terminal_up_to(log_start_offset)
                    if self.archive_records(self.start_offset, log_start_offset, self.cached.batches, AVAILABLE):
                        self.find_next_fetch_offset = True
                    self.start_offset = log_start_offset
                    self.delivery_complete_count -= removed
                    self.end_offset = max(self.end_offset, self.start_offset)
                else:
                    self.start_offset = self.end_offset = log_start_offset
                    self.delivery_complete_count = 0
            self.end_change()

    def _count_terminal_up_to(self, log_start_offset: int) -> int:
        first = self.start_offset
        return sum(
            max(0, min(run.last, log_start_offset - 1) - max(run.first, first) + 1)
            for batch in self.cached.between(0, log_start_offset - 1)
            for run in batch.runs
            if run.state in TERMINAL
        )

    def archive_records(
        self, first: int, end: int, batches: Iterable[InFlightBatch], state: int, *, counts: bool = False
    ) -> bool:
        """Archives the offsets from `first` to before `end` that have a state. `counts`: they are completed ones from
        now on. Returns whether there were any."""
        found = False
        for batch in batches:
            if batch.first >= end:
                break
            if batch.first < first or batch.last >= end:
                if not batch.tracked and batch.whole.state != state:
                    continue
                batch.track_offsets()
            for run in batch.between(first, end - 1):
                if run.state == state:
                    run.archive()
                    found = True
                    if counts:
                        self.delivery_complete_count += run.last - run.first + 1
            batch.join()
        return found

    def archive_stale_batches(self, fetch_offset: int, base_offset: int) -> None:
        """Archives free records below the first batch that a read at `fetch_offset` found: the log lacks them."""
        if not self.cached or fetch_offset >= base_offset:
            return
        floor = self.cached.floor(fetch_offset)
        first = floor.first if floor is not None and floor.last >= fetch_offset else fetch_offset
        stale = self.cached.between(first, base_offset - 1)
        if stale and self.archive_records(fetch_offset, base_offset, stale, AVAILABLE, counts=True):
            self.find_next_fetch_offset = True

    def _in_flight_of(self, first: int, last: int) -> int:
        """Returns how many of these offsets are not below the start."""
        return max(0, last - max(self.start_offset, first) + 1)

    def _maybe_update_cached_state_and_offsets(self) -> bool:
        """Moves the start over completed records. Returns whether it moved."""
        cached = self.cached
        if not self._can_move_start_offset():
            return False
        last_done, count = cached.last_done(self.start_offset, self._gap_start)
        if last_done == NO_OFFSET:
            return False
        if last_done == cached.last_offset:
            self.start_offset = self.end_offset = last_done + 1
            cached.clear()
            self.delivery_complete_count = 0
            return True
        if cached.drop_up_to(last_done):
            self.start_offset = max(self.start_offset, cached.batches[0].first)
            gap_start = self._gap_start
            if gap_start != NO_OFFSET:
                self.start_offset = min(gap_start, self.start_offset)
        else:
            self.start_offset = max(self.start_offset, last_done + 1)
        self.delivery_complete_count -= count
        return True

    def _can_move_start_offset(self) -> bool:
        batch = self.cached.floor(self.start_offset)
        if batch is None:
            return False
        if batch.tracked and batch.last < self.start_offset:
            return False
        run = batch.run_at(self.start_offset)
        return run.transition is None and run.state in TERMINAL

    # --- the lock of a fetch ---------------------------------------------------------------------------

    def maybe_acquire_fetch_lock(self, holder: object) -> bool:
        """Lets one fetch at a time read for this partition. Returns whether it is this one."""
        if not self.is_active or not self._fetch_lock.acquire(blocking=False):
            return False
        self._fetch_holder = holder
        return True

    def release_fetch_lock(self, holder: object) -> None:
        """Ends the fetch; does nothing if it is another's."""
        if self._fetch_holder is holder:
            self._fetch_holder = None
            self._fetch_lock.release()

    # --- acknowledgements ------------------------------------------------------------------------------

    def acknowledge(self, member: str, batches: Sequence[ShareAcknowledgementBatch]) -> None:
        """Ends deliveries, all of these or none, and writes that.

        InvalidRecordStateException if an offset is not acquired by the member, InvalidRequestException if it was never
        delivered; the persister's errors.
        """
        transitions: list[Transition] = []
        with self.lock:
            self.begin_change()
            error = self._acknowledged(member, batches, transitions)
            if error is not None:
                self._roll_back(transitions)
            self.end_change()
        if error is not None:
            raise error
        self._write_transitions(transitions)
        if self._context.metrics is not None:
            self._context.metrics.acknowledged(batches)

    def _acknowledged(
        self, member: str, batches: Sequence[ShareAcknowledgementBatch], transitions: list[Transition]
    ) -> KafkalogError | None:
        limits = self.limits()
        for batch in batches:
            first, last, types = batch
            if min(types, default=GAP) < GAP or max(types, default=GAP) > RENEW:
                return InvalidRequestException(f"Invalid acknowledge type: [{', '.join(map(str, types))}]")
            if last < self.start_offset:
                continue
            letters = max(types, default=GAP) >= RELEASE and self._has_dead_letters()
            parts = [(start, end, self._new_state(kind, letters=letters)) for start, end, kind in _same_types(batch)]
            renews = RENEW in types and self._configs.is_renew_acknowledge_enabled(self.group)
            deadline_ms = self.new_deadline_ms() if renews else NO_DEADLINE
            begun = len(transitions)
            refused = self.cached.end(
                first, last, self.start_offset, member, parts, deadline_ms, limits.delivery_count_limit, letters,
                transitions,
            )  # fmt: skip
            for each in transitions[begun:]:
                if each.state == ARCHIVING:
                    each.cause = CLIENT_REJECT if each.asked == ARCHIVING else DELIVERY_COUNT_EXCEEDED
                elif each.state in TERMINAL:
                    self.delivery_complete_count += each.last - each.first + 1
            if refused != ENDED:
                is_past = refused in (FIRST_IS_PAST, LAST_IS_PAST)
                return (InvalidRequestException if is_past else InvalidRecordStateException)(REFUSALS[refused])
        return None

    def _new_state(self, kind: int, *, letters: bool) -> int:
        """Returns the state that an acknowledgement asks for."""
        return ARCHIVING if letters and kind == REJECT else NEW_STATES[kind]

    def _is_start_within(self, first: int, last: int) -> bool:
        return first < self.start_offset <= last

    def release_acquired_records(self, member: str) -> None:
        """Makes everything available again that a member has acquired, because it leaves."""
        self.settle()
        transitions: list[Transition] = []
        error: KafkalogError | None = None
        with self.lock:
            self.begin_change()
            for batch in self.cached:
                if self._is_start_within(batch.first, batch.last):
                    if not batch.tracked and batch.whole.state == ACQUIRED and batch.whole.member == member:
                        batch.track_offsets()
                    if batch.tracked:
                        batch.split(self.start_offset)
                for run in list(batch.runs):
                    if run.state != ACQUIRED or run.member not in (member, NO_MEMBER):
                        continue
                    error = self._release_run(run, transitions)
                    if error is not None:
                        break
                if error is not None:
                    self._roll_back(transitions)
                    break
            self.end_change()
        if error is not None:
            raise error
        self._write_transitions(transitions)

    def _release_run(self, run: InFlightState, transitions: list[Transition]) -> KafkalogError | None:
        new = ARCHIVED if run.last < self.start_offset else AVAILABLE
        made = Transition.start(run, new, self.max_delivery_count(), dead_letters=self._has_dead_letters())
        if made is None:
            return InvalidRecordStateException("Unable to release acquired records for the batch")
        if made.state == ARCHIVING:
            made.cause = DELIVERY_COUNT_EXCEEDED
        transitions.append(made)
        if made.state in TERMINAL:
            self.delivery_complete_count += self._in_flight_of(run.first, run.last)
        return None

    def held_by(self, member: str) -> list[tuple[int, int]]:
        """Returns the ranges of offsets that a member has acquired, ascending, neighbours joined."""
        found: list[tuple[int, int]] = []
        with self.lock:
            for batch in self.cached:
                for run in batch.runs:
                    if run.state == ACQUIRED and run.member == member and run.last >= self.start_offset:
                        first = max(run.first, self.start_offset)
                        if found and found[-1][1] + 1 == first:
                            found[-1] = (found[-1][0], run.last)
                        else:
                            found.append((first, run.last))
        return found

    # --- locks that end --------------------------------------------------------------------------------

    def release_expired(self) -> None:
        """Makes records available again whose lock has ended, or archives them after their last delivery.

        The timer calls it. Called too early, it sets the timer again.
        """
        batches: list[PersisterStateBatch] = []
        letters: list[tuple[int, int, int, str]] = []
        with self.lock:
            if self.partition_state != ACTIVE or self._is_torn:
                return
            self.begin_change()
            now_ms = self._context.timers.now_ms()
            self._next_deadline_ms = NO_DEADLINE
            for batch in self.cached:
                self._release_expired_of(batch, now_ms, batches, letters)
            if self._next_deadline_ms != NO_DEADLINE:
                delay_ms = self._next_deadline_ms - now_ms
                self._context.timers.schedule(self._timer_key, delay_ms, self.release_expired)
            self.end_change()
        if batches:
            if self._context.metrics is not None:
                expired = sum(last - first + 1 for first, last, *_ in batches)
                self._context.metrics.expired(self.group, self.partition, expired)
            # The states hold even if they cannot be written now, as in Kafka: a later write of these offsets has them.
            self._write(StateWrite(batches, letters=letters), raises=False)
            self._context.notify(self.group, self.partition)

    def _release_expired_of(
        self,
        batch: InFlightBatch,
        now_ms: int,
        batches: list[PersisterStateBatch],
        letters: list[tuple[int, int, int, str]],
    ) -> None:
        due = [run for run in batch.runs if run.deadline_ms != NO_DEADLINE and not run.expired]
        if not due:
            return
        if due[0].deadline_ms <= now_ms and self._is_start_within(batch.first, batch.last):
            batch.track_offsets()
            batch.split(self.start_offset)
            due = [run for run in batch.runs if run.deadline_ms != NO_DEADLINE and not run.expired]
        for run in due:
            if run.deadline_ms > now_ms:
                if self._next_deadline_ms == NO_DEADLINE or run.deadline_ms < self._next_deadline_ms:
                    self._next_deadline_ms = run.deadline_ms
                continue
            run.expired = True
            new = ARCHIVED if run.last < self.start_offset else AVAILABLE
            if run.state != ACQUIRED or not run.try_update(
                new, self.max_delivery_count(), NO_MEMBER, dead_letters=self._has_dead_letters()
            ):
                continue
            run.unlock()
            batches.append(PersisterStateBatch(run.first, run.last, run.state, run.count))
            if run.state == ARCHIVING:
                letters.append((run.first, run.last, run.count, DELIVERY_COUNT_EXCEEDED))
            elif run.state == AVAILABLE:
                self.find_next_fetch_offset = True
            elif run.state in TERMINAL:
                self.delivery_complete_count += self._in_flight_of(run.first, run.last)
        batch.join()

    # --- writes ----------------------------------------------------------------------------------------

    def _roll_back(self, transitions: Iterable[Transition]) -> None:
        for each in transitions:
            if each.is_over:
                continue
            each.roll_back()
            for run in each.runs:
                if run.state == AVAILABLE:
                    self.find_next_fetch_offset = True
                if each.state in TERMINAL and run.state not in TERMINAL:
                    self.delivery_complete_count -= self._in_flight_of(run.first, run.last)
            self.cached.join_around(each.first)

    def _write_transitions(self, transitions: list[Transition]) -> None:
        if not transitions:
            return
        batches: list[PersisterStateBatch] = []
        letters: list[tuple[int, int, int, str]] = []
        for each in transitions:
            batches.append(PersisterStateBatch(each.first, each.last, each.state, each.count))
            if each.state == ARCHIVING:
                letters.append((each.first, each.last, each.count, each.cause or CLIENT_REJECT))
        self._write(StateWrite(batches, transitions, letters))

    def _write(self, write: StateWrite, *, raises: bool = True) -> None:
        """Writes states, together with those of other threads that wait, and completes or takes back what they mean.
        Then come the dead letters."""
        self._writes.append(write)
        updated = False
        while not write.is_over:
            if self._writing.acquire(blocking=False):
                try:
                    if not write.is_over:
                        if self._is_shared:
                            self._await_others()
                        updated = self._write_waiting()
                finally:
                    self._writing.release()
                    for each in self._writes[:1]:
                        each.wake()  # it came too late for this one, and writes the next
            else:
                write.wait()
        if write.letters and (write.error is None or not write.transitions):
            self._write_letters(write.letters)
        if updated:
            self._context.notify(self.group, self.partition)
        if write.error is not None and raises:
            raise write.error

    def _await_others(self) -> None:
        """Lets threads run that are about to write, as long as more come, so that their writes become one with this."""
        waiting = 0
        while waiting < len(self._writes) <= GROUP_MAX:
            waiting = len(self._writes)
            time.sleep(0)

    def settle(self) -> None:
        """Completes writes that an interrupt left behind."""
        if self._writes:
            with self._writing:
                self._write_waiting()

    def _write_waiting(self) -> bool:
        writes = self._writes[:]
        if self._context.persister.waits:
            self._is_shared = len(writes) > 1 or threading.active_count() > THREADS_ALONE
        fresh = [each for each in writes if not each.is_written]
        if fresh:
            error: KafkalogError | None = None
            try:
                batches = [batch for each in fresh for batch in each.batches] if len(fresh) > 1 else fresh[0].batches
                self._write_share_group_state(batches)
            except KafkalogError as failed:
                error = failed
            for each in fresh:
                each.error = error
                each.is_written = True
        with self.lock:
            self.begin_change()
            for each in writes:
                self._complete(each)
            moves = any(each.error is None or not each.transitions for each in writes)
            updated = moves and self._maybe_update_cached_state_and_offsets()
            self.end_change()
        del self._writes[: len(writes)]
        return updated

    def _complete(self, write: StateWrite) -> None:
        if write.is_over:
            return
        if write.error is None:
            for each in write.transitions:
                each.commit()
                if each.state == AVAILABLE:
                    self.find_next_fetch_offset = True
                self.cached.join_around(each.first)
        else:
            self._roll_back(write.transitions)
        write.is_over = True
        write.wake()

    def _write_share_group_state(self, batches: list[PersisterStateBatch]) -> None:
        with self.lock:
            start_offset, complete_count = self.start_offset, self.delivery_complete_count
        write = PartitionWrite(self.state_epoch, self.leader_epoch, start_offset, complete_count, batches)
        code, message = self._context.persister.write_partition(self._key, write)
        if code:
            failure = f"Failed to write the share group state for share partition {self.group}-{self.partition}"
            raise _logged(failure, code, message)

    # --- dead letters ----------------------------------------------------------------------------------

    def _write_letters(self, letters: Iterable[tuple[int, int, int, str]]) -> None:
        """Writes dead letters, and then that their records are archived, whether or not the letters were written."""
        archived: list[PersisterStateBatch] = []
        for first, last, count, cause in letters:
            is_written = False
            try:
                self._context.dead_letters.write(DeadLetter(self.group, self.partition, first, last, count, cause))
                is_written = True
            except KafkalogError as error:
                Lines("kafkalog.coordinator").warning(
                    "offsets %d to %d of %s are archived without dead letters: %s", first, last, self.partition, error
                )
            if self._context.metrics is not None:
                self._context.metrics.letters(self.group, last - first + 1, failed=not is_written)
            archived.append(PersisterStateBatch(first, last, ARCHIVED, count))
        if not archived:
            return
        with self.lock:
            self.begin_change()
            for first, last, _, _ in archived:
                self._archive_letter(first, last)
            self.end_change()
        self._write(StateWrite(archived), raises=False)

    def _archive_letter(self, first: int, last: int) -> None:
        floor = self.cached.floor(first)
        for batch in () if floor is None else self.cached.between(floor.first, last):
            for run in batch.between(first, last):
                if run.state == ARCHIVING:
                    run.archive()
            batch.join()
        self.delivery_complete_count += self._in_flight_of(first, last)


def _logged(failure: str, code: int, message: str | None) -> KafkalogError:
    error = error_of(code, message)
    Lines("kafkalog.coordinator").warning("%s: %s", failure, error)
    return error


def _fields(batch: Values) -> tuple[int, int, int, int]:
    return batch["firstOffset"], batch["lastOffset"], batch["deliveryState"], batch["deliveryCount"]


def _same_types(batch: ShareAcknowledgementBatch) -> list[tuple[int, int, int]]:
    """Returns the ranges of offsets with the same acknowledge type."""
    first, last, types = batch
    if len(types) == 1:
        return [(first, last, types[0])]
    found: list[tuple[int, int, int]] = []
    start = 0
    for at in range(1, len(types) + 1):
        if at == len(types) or types[at] != types[start]:
            found.append((first + start, first + at - 1, types[start]))
            start = at
    return found
