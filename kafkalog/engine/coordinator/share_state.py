"""The in-flight states of a share partition's records: batches, and runs of equal states in them.

    batch = InFlightBatch(0, 99, ACQUIRED, 1, "worker-1", deadline_ms=30_000)
    batch.track_offsets()
    run = batch.runs[batch.split(10)]        # now [0..9] and [10..99]

Kafka has one state for a batch until a part of it differs, and from then on one object for each offset. Here a batch is
a list of runs: neighbouring offsets with the same state, count, member and lock. A batch that Kafka would follow offset
by offset has `tracked` set, because some rules ask for it. A change of a part splits runs at its ends.

A change that must be written first is a `Transition`: its runs have the new state, and keep the transition until the
write succeeded (`commit`) or failed (`roll_back`). Not thread-safe: SharePartition holds its lock.
Source: InFlightBatch, InFlightState, RecordState (4.4.0).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
STATE_NAMES = ("AVAILABLE", "ACQUIRED", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED")
TERMINAL = frozenset((ACKNOWLEDGED, ARCHIVED))
NO_MEMBER = ""
NO_DEADLINE = -1

_first_of_run = attrgetter("first")


class InFlightState:
    """A run of offsets with the same state.

    `deadline_ms` is the monotonic time at which its lock ends, NO_DEADLINE without a lock. `expired`: the lock ended
    while a transition was being written.
    """

    __slots__ = ("count", "deadline_ms", "expired", "first", "is_terminal", "last", "member", "state", "transition")

    def __init__(
        self, first: int, last: int, state: int, count: int, member: str = NO_MEMBER, deadline_ms: int = NO_DEADLINE
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.member = member
        self.deadline_ms = deadline_ms
        self.expired = False
        self.is_terminal = False  # it was archived, whatever becomes of its transition
        self.transition: Transition | None = None

    @property
    def is_available(self) -> bool:
        """True if it can be acquired."""
        return self.state == AVAILABLE and self.transition is None

    def try_update(self, new: int, max_count: int, member: str, *, dead_letters: bool, adds: int = 0) -> bool:
        """Changes state, count and member. Returns False, and changes nothing, if the rules do not allow it.

        A record that would be available again, but was delivered `max_count` times, is archived instead: at once, or
        after its dead letter is written.
        """
        if self.transition is not None:
            return False
        if new == AVAILABLE and self.count >= max_count:
            new = ARCHIVING if dead_letters else ARCHIVED
        now = self.state
        if now == new or now in TERMINAL or (now == AVAILABLE and new != ACQUIRED):
            return False
        self.state = new
        if new != ARCHIVED:
            self.count += adds
        self.member = member
        return True

    def archive(self) -> None:
        """Ends its life, also if a transition is being written."""
        self.is_terminal = True
        self.state = ARCHIVED
        self.member = NO_MEMBER
        self.unlock()

    def unlock(self) -> None:
        """Ends its lock without a consequence."""
        self.deadline_ms = NO_DEADLINE
        self.expired = False

    def cut(self, at: int) -> InFlightState:
        """Shortens it to end before offset `at`, and returns the rest."""
        rest = InFlightState(at, self.last, self.state, self.count, self.member, self.deadline_ms)
        rest.expired = self.expired
        rest.is_terminal = self.is_terminal
        rest.transition = self.transition
        if rest.transition is not None:
            rest.transition.runs.append(rest)
        self.last = at - 1
        return rest

    def joins(self, after: InFlightState) -> bool:
        """Returns whether the run that follows can become a part of it."""
        return (
            self.state == after.state
            and self.state != ARCHIVING
            and self.transition is None
            and after.transition is None
            and self.count == after.count
            and self.member == after.member
            and self.deadline_ms == after.deadline_ms
        )

    def __repr__(self) -> str:
        moving = "" if self.transition is None else ", in transition"
        member = f" of {self.member!r}" if self.member else ""
        return f"<{self.first}-{self.last} {STATE_NAMES[self.state]} {self.count}x{member}{moving}>"


class Transition:
    """A change of a run that is being written: what is written, and what a failed write restores.

    `first`, `last`, `state` and `count` are written; `cause` says why the records become dead letters, if they do.
    """

    __slots__ = ("cause", "count", "first", "is_over", "last", "max_count", "old_member", "old_state", "runs", "state")

    def __init__(self, run: InFlightState, old_state: int, old_member: str, max_count: int) -> None:
        self.runs = [run]
        self.first = run.first
        self.last = run.last
        self.state = run.state
        self.count = run.count
        self.old_state = old_state
        self.old_member = old_member
        self.max_count = max_count
        self.cause: str | None = None
        self.is_over = False

    @classmethod
    def start(
        cls, run: InFlightState, new: int, max_count: int, *, dead_letters: bool, member: str = NO_MEMBER
    ) -> Transition | None:
        """Begins the change of a run to a state. Returns None, and changes nothing, if the rules do not allow it."""
        old_state, old_member = run.state, run.member
        if not run.try_update(new, max_count, member, dead_letters=dead_letters):
            return None
        made = run.transition = cls(run, old_state, old_member, max_count)
        return made

    def commit(self) -> None:
        """Ends it after its write. A second call does nothing."""
        if not self.is_over:
            for run in self.runs:
                run.unlock()
                run.transition = None
            self.is_over = True

    def roll_back(self) -> None:
        """Takes it back. A lock that ended meanwhile makes the records available or, after the last delivery, archives
        them. A second call does nothing."""
        if self.is_over:
            return
        for run in self.runs:
            run.transition = None
            if run.is_terminal:
                run.unlock()
            elif run.expired:
                run.state = ARCHIVED if run.count >= self.max_count else AVAILABLE
                run.member = NO_MEMBER
                run.unlock()
            else:
                run.state = self.old_state
                run.member = self.old_member
        self.is_over = True


class InFlightBatch:
    """Offsets `first` to `last` that were acquired together, or read together from the persister."""

    __slots__ = ("first", "last", "runs", "tracked")

    # More than eight parameters: those of its first run.
    def __init__(
        self, first: int, last: int, state: int, count: int, member: str = NO_MEMBER, deadline_ms: int = NO_DEADLINE
    ) -> None:
        self.first = first
        self.last = last
        self.tracked = False
        self.runs = [InFlightState(first, last, state, count, member, deadline_ms)]

    @property
    def whole(self) -> InFlightState:
        """The state of all its offsets, while they are not tracked."""
        assert not self.tracked, self
        return self.runs[0]

    def track_offsets(self) -> None:
        """From now on its offsets may differ."""
        self.tracked = True

    def split(self, at: int) -> int:
        """Lets a run begin at offset `at`, which is in the batch. Returns the run's index."""
        runs = self.runs
        index = bisect_right(runs, at, key=_first_of_run) - 1
        if runs[index].first == at:
            return index
        runs.insert(index + 1, runs[index].cut(at))
        return index + 1

    def run_at(self, offset: int) -> InFlightState:
        """Returns the run of an offset, which is in the batch."""
        return self.runs[bisect_right(self.runs, offset, key=_first_of_run) - 1]

    def between(self, first: int, last: int) -> Iterator[InFlightState]:
        """Yields the runs in a range of offsets, split at its ends. The caller may change the runs, and stop."""
        if first > last or first > self.last or last < self.first:
            return
        index = self.split(first) if first > self.first else 0
        if last < self.last:
            self.split(last + 1)
        while index < len(self.runs):
            run = self.runs[index]
            if run.first > last:
                return
            yield run
            # The caller may have split it: go on behind the part that the caller got.
            index = bisect_right(self.runs, run.last, key=_first_of_run)

    def join(self) -> None:
        """Makes one run of neighbours that have become equal."""
        runs = self.runs
        if len(runs) == 1:
            return
        kept = [runs[0]]
        for run in runs[1:]:
            if kept[-1].joins(run):
                kept[-1].last = run.last
                kept[-1].is_terminal |= run.is_terminal
            else:
                kept.append(run)
        self.runs = kept

    def __repr__(self) -> str:
        return f"<batch {self.first}-{self.last}{' tracked' if self.tracked else ''} {self.runs}>"


class CachedState:
    """The in-flight batches in the order of their offsets; they do not overlap."""

    __slots__ = ("batches", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.batches: list[InFlightBatch] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self.batches)

    @property
    def last_offset(self) -> int:
        """The last offset of the last batch."""
        return self.batches[-1].last

    def put(self, batch: InFlightBatch) -> None:
        """Adds a batch, or replaces the one with the same first offset."""
        firsts = self.firsts
        if not firsts or firsts[-1] < batch.first:
            firsts.append(batch.first)
            self.batches.append(batch)
            return
        index = bisect_left(firsts, batch.first)
        if firsts[index] == batch.first:
            self.batches[index] = batch
        else:
            firsts.insert(index, batch.first)
            self.batches.insert(index, batch)

    def floor(self, offset: int) -> InFlightBatch | None:
        """Returns the last batch that begins at or below an offset."""
        index = bisect_right(self.firsts, offset) - 1
        return None if index < 0 else self.batches[index]

    def between(self, first: int, last: int) -> list[InFlightBatch]:
        """Returns the batches that begin in a range of offsets."""
        return self.batches[bisect_left(self.firsts, first) : bisect_right(self.firsts, last)]

    def drop_below(self, index: int) -> None:
        """Drops the first `index` batches."""
        del self.firsts[:index]
        del self.batches[:index]

    def clear(self) -> None:
        self.firsts.clear()
        self.batches.clear()
