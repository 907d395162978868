"""CleaningStates: records which partitions are being cleaned, which must not be, and waits for cleanings to end.

    none              no thread cleans it, and any may begin
    InProgress        a thread has claimed it: it cleans it, or deletes its old segments
    Aborted           claimed, and a pause wants it left alone: the thread stops at its next check
    Paused(n)         no thread cleans it until n pauses have ended

Code that truncates, moves or deletes a log holds a `Pause`, which waits until the thread that cleans it has left.  A
state is not stored, so it cannot be left behind: it follows from one `Claim` and any number of pauses, and both count
only while an owner holds them.  So an interrupt that passes every handler of a caller, or a thread that dies anywhere,
leaves no partition Aborted, Paused or InProgress: the claims and pauses are freed with their frames.

`lock` (Kafka's LogCleanerManager.lock) is held to change states, and to read or write a checkpoint.  Under it no thread
waits for another, and no operation on a log acquires the log's lock.  A pause waits outside of it, for a C lock that
the claim holds, and checks again each 100 ms, as Kafka's.  Knows no log, file or thread.
Mirrors inProgress and pausedCleaningCond of LogCleanerManager (4.4.0).
"""

from __future__ import annotations

import _thread
import math
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from kafkalog._native.state.blocks import Closing
from kafkalog._native.state.log_end import PartitionLock
from kafkalog.engine.files.nested import Patience
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException, LogCleaningAbortedException

POLL_SECS = 0.1


class CleaningState(NamedTuple):
    """LogCleaningState.  A partition in none of the states has None."""

    name: str
    pauses: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.pauses})" if self.pauses else self.name


IN_PROGRESS = CleaningState("LogCleaningInProgress")
ABORTED = CleaningState("LogCleaningAborted")


class Claim:
    """One thread's right to clean a partition, until it is released or dropped."""

    __slots__ = ("__weakref__", "ended", "partition", "thread")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.thread = _thread.get_ident()
        self.ended = _thread.allocate_lock()  # held until the claim ends
        self.ended.acquire()


class Pause(Closing):
    """Keeps a partition from being cleaned, from `begin` to the end of its block; `close` may be called twice.

        with states.pause(partition) as pause:
            pause.begin()

    It begins inside the block, so that an interrupt finds it either not begun, or closes it.  Without states it does
    nothing.  `check` is called before it waits, and raises in a thread for which the cleaning thread may be waiting.
    """

    def __init__(
        self, states: CleaningStates | None, partition: TopicPartition, check: Callable[[], object] | None = None
    ) -> None:
        self._states = states
        self._check = check
        self.partition = partition

    def __enter__(self) -> Pause:
        return self

    def begin(self, patience_s: float = math.inf) -> None:
        """Returns when no thread cleans the partition, or after `patience_s`; none begins until the pause is closed."""
        if self._states is not None:
            self._states.check_outside()  # otherwise the interrupted change would overwrite this one
            self._states.add(self)
            self._states.wait(self.partition, self._check, patience_s)

    def close(self) -> None:
        if self._states is not None:
            self._states.remove(self)


class CleaningStates:
    """Thread-safe.  A forked child cleans nothing, and each call there raises an error."""

    def __init__(self) -> None:
        self.lock = PartitionLock()
        self._life = Life()
        # All guarded by lock; the tuples are replaced whole, so that `is_aborted` may read them without it.
        self._claims: dict[TopicPartition, weakref.ref[Claim]] = {}
        self._pauses: dict[TopicPartition, tuple[weakref.ref[Pause], ...]] = {}

    def disown(self) -> None:
        """Resets the object in a forked child: the thread that held the lock may not exist there."""
        self.lock = PartitionLock()
        self._claims = {}
        self._pauses = {}

    def check_process(self) -> None:
        if self._life.forked:
            raise self._life.elsewhere("the log cleaner")

    def check_outside(self) -> None:
        """Raises IllegalStateException in a thread that holds the lock: the threads to wait for may wait for it."""
        if self.lock.is_mine():
            raise IllegalStateException(
                "this thread is in the middle of a change of what is cleaned",
                hint="a signal handler or a finalizer runs in the middle of the code that it interrupts: do this "
                "outside of it",
            )

    # --- queries -------------------------------------------------------------------------------------

    def state_of(self, partition: TopicPartition) -> CleaningState | None:
        with self.lock:
            claim, pauses = self._claim_of(partition), len(self._pauses_of(partition))
        if claim is not None:
            return ABORTED if pauses else IN_PROGRESS
        return CleaningState("LogCleaningPaused", pauses) if pauses else None

    def claimed(self) -> list[TopicPartition]:
        """Returns all partitions that a thread has claimed."""
        with self.lock:
            return [partition for partition in self._claims if self._claim_of(partition) is not None]

    def is_mine(self, partition: TopicPartition) -> bool:
        """Returns whether this thread has claimed it."""
        claim = self._claim_of(partition)
        return claim is not None and claim.thread == _thread.get_ident()

    def is_aborted(self, partition: TopicPartition) -> bool:
        """Returns whether the cleaning of a partition should stop.  The cleaning thread asks often; takes no lock."""
        return partition in self._pauses and bool(self._pauses_of(partition))

    def check_cleaning_aborted(self, partition: TopicPartition) -> None:
        """Raises LogCleaningAbortedException in the state Aborted."""
        if self.is_aborted(partition) and self.state_of(partition) == ABORTED:
            raise LogCleaningAbortedException(f"the cleaning of {partition} was aborted")

    def _claim_of(self, partition: TopicPartition) -> Claim | None:
        found = self._claims.get(partition)
        return None if found is None else found()

    def _pauses_of(self, partition: TopicPartition) -> tuple[weakref.ref[Pause], ...]:
        return tuple(each for each in self._pauses.get(partition, ()) if each() is not None)

    # --- claims --------------------------------------------------------------------------------------

    def claim(self, partition: TopicPartition) -> Claim | None:
        """none -> InProgress.  Returns None in any other state."""
        with self.lock:
            self.check_process()
            if self.state_of(partition) is not None:
                return None
            claim = Claim(partition)
            self._claims[partition] = weakref.ref(claim)
            return claim

    def holds(self, claim: Claim) -> bool:
        return self._claim_of(claim.partition) is claim

    def release(self, claim: Claim) -> CleaningState | None:
        """InProgress -> none, Aborted -> Paused(n).  Returns the state that it ends.

        Raises IllegalStateException if there is no such claim.
        """
        partition = claim.partition
        with self.lock:
            state = self.state_of(partition)
            if not self.holds(claim):
                raise not_in_progress(partition, state)
            del self._claims[partition]
            claim.ended.release()
            return state

    # --- pauses --------------------------------------------------------------------------------------

    def pause(self, partition: TopicPartition) -> Pause:
        """Returns a pause that has not begun."""
        return Pause(self, partition)

    def add(self, pause: Pause) -> None:
        """Begins a pause: none -> Paused(1), Paused(n) -> Paused(n + 1), InProgress -> Aborted."""
        with self.lock:
            self.check_process()
            pauses = self._pauses_of(pause.partition)
            if not _has(pauses, pause):
                self._pauses[pause.partition] = (*pauses, weakref.ref(pause))

    def is_paused_by(self, pause: Pause) -> bool:
        return _has(self._pauses.get(pause.partition, ()), pause)

    def wait(
        self, partition: TopicPartition, check: Callable[[], object] | None = None, patience_s: float = math.inf
    ) -> None:
        """Waits until no thread cleans the partition, or until `patience_s` is over.

        Does not wait if this thread has the claim.  May be called again after an interrupt.  Raises
        IllegalStateException as `nested.Patience`.
        """
        until = time.monotonic() + patience_s
        patience: Patience | None = None
        while True:
            claim = self._claim_of(partition)
            if claim is None or claim.thread == _thread.get_ident() or time.monotonic() > until:
                return
            if check is not None:
                check()
            patience = patience or Patience(f"the cleaner to leave {partition}")
            patience.check()
            if claim.ended.acquire(True, POLL_SECS):
                claim.ended.release()
            del claim  # a claim of a thread that died must not be kept here

    def remove(self, pause: Pause) -> None:
        """Ends a pause: Paused(n) -> Paused(n - 1), Paused(1) -> none, Aborted -> InProgress."""
        partition = pause.partition
        with self.lock:
            left = tuple(each for each in self._pauses_of(partition) if each() is not pause)
            if left:
                self._pauses[partition] = left
            else:
                self._pauses.pop(partition, None)


def _has(pauses: tuple[weakref.ref[Pause], ...], pause: Pause) -> bool:
    return any(each() is pause for each in pauses)


def not_in_progress(partition: TopicPartition, state: CleaningState | None) -> IllegalStateException:
    if state is None:
        return IllegalStateException(f"State for partition {partition} should exist.")
    return IllegalStateException(f"In-progress partition {partition} cannot be in {state} state.")
