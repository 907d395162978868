"""The in-flight states of a share partition's records: batches, and runs of equal states in them.

    batch = InFlightBatch(0, 99, ACQUIRED, 1, "worker-1", 30_000)
    batch.track_offsets()
    run = batch.runs[batch.split(10)]        # now [0..9] and [10..99]

Kafka has one state for a batch until a part of it differs, and from then on one object for each offset. Here a batch is
a list of runs: neighbouring offsets with the same state, count, member and lock. A batch that Kafka would follow offset
by offset has `tracked` set, because some rules ask for it. A change of a part splits runs at its ends.

A change that must be written first is a `Transition`: its runs have the new state, and keep the transition until the
write succeeded (`commit`) or failed (`roll_back`). Not thread-safe: SharePartition holds its lock.
Source: InFlightBatch, InFlightState, RecordState (4.4.0).
"""

cimport cython
from libc.stdint cimport int64_t

cdef enum:
    C_AVAILABLE = 0
    C_ACQUIRED = 1
    C_ACKNOWLEDGED = 2
    C_ARCHIVING = 3
    C_ARCHIVED = 4
    C_NO_DEADLINE = -1
    C_NO_OFFSET = -1
    C_ENDED = 0
    C_NOT_ACQUIRED = 1
    C_IN_TRANSITION = 2
    C_NOT_OWNER = 3
    C_NOT_ALLOWED = 4
    C_NOT_RENEWED = 5
    C_NOT_FOUND = 6
    C_FIRST_IS_PAST = 7
    C_LAST_IS_PAST = 8
    C_BATCH_NOT_ACQUIRED = 9
    C_BATCH_NOT_OWNED = 10
    C_SUBSET_NOT_ACQUIRED = 11
    C_RENEWED = -1
    C_THROTTLE_MIN = 2

AVAILABLE, ACQUIRED, ACKNOWLEDGED = C_AVAILABLE, C_ACQUIRED, C_ACKNOWLEDGED
ARCHIVING, ARCHIVED = C_ARCHIVING, C_ARCHIVED
STATE_NAMES = ("AVAILABLE", "ACQUIRED", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED")
TERMINAL = frozenset((ACKNOWLEDGED, ARCHIVED))
NO_MEMBER = ""
NO_DEADLINE = C_NO_DEADLINE
MIN_THROTTLE_DELIVERIES = C_THROTTLE_MIN  # with fewer, no record is delivered alone
RENEWED = C_RENEWED  # no state: a lock that begins again
# Results of `CachedState.end`.
ENDED, NOT_ACQUIRED, IN_TRANSITION = C_ENDED, C_NOT_ACQUIRED, C_IN_TRANSITION
NOT_OWNER, NOT_ALLOWED, NOT_RENEWED = C_NOT_OWNER, C_NOT_ALLOWED, C_NOT_RENEWED
NOT_FOUND, FIRST_IS_PAST, LAST_IS_PAST = C_NOT_FOUND, C_FIRST_IS_PAST, C_LAST_IS_PAST
BATCH_NOT_ACQUIRED, BATCH_NOT_OWNED = C_BATCH_NOT_ACQUIRED, C_BATCH_NOT_OWNED
SUBSET_NOT_ACQUIRED = C_SUBSET_NOT_ACQUIRED

cdef struct Ending:
    int state
    int max_count
    bint dead_letters
    int64_t deadline_ms


cdef inline bint is_done(int state) noexcept:
    return state == C_ACKNOWLEDGED or state == C_ARCHIVED


@cython.auto_pickle(False)
@cython.final
cdef class InFlightState:
    """A run of offsets with the same state.

    `deadline_ms` is the monotonic time at which its lock ends, NO_DEADLINE without a lock. `expired`: the lock ended
    while a transition was being written. `is_terminal`: it was archived, whatever becomes of its transition.
    """

    cdef public int64_t first, last, deadline_ms
    cdef public int state, count
    cdef public str member
    cdef public bint expired, is_terminal
    cdef public Transition transition

    def __init__(
        self, int64_t first, int64_t last, int state, int count, str member not None=NO_MEMBER,
        int64_t deadline_ms=C_NO_DEADLINE,
    ):
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.member = member
        self.deadline_ms = deadline_ms

    @property
    def is_available(self):
        """True if it can be acquired."""
        return self.is_free()

    cdef bint is_free(self) noexcept:
        return self.state == C_AVAILABLE and self.transition is None

    def try_update(self, int new, int max_count, str member not None, *, bint dead_letters, int adds=0):
        """Changes state, count and member. Returns False, and changes nothing, if the rules do not allow it.

        A record that would be available again, but was delivered `max_count` times, is archived instead: at once, or
        after its dead letter is written.
        """
        return self.updated(new, max_count, member, dead_letters, adds)

    cdef bint updated(self, int new, int max_count, str member, bint dead_letters, int adds):
        cdef int now = self.state
        if self.transition is not None:
            return False
        if new == C_AVAILABLE and self.count >= max_count:
            new = C_ARCHIVING if dead_letters else C_ARCHIVED
        if now == new or is_done(now) or (now == C_AVAILABLE and new != C_ACQUIRED):
            return False
        self.state = new
        if new != C_ARCHIVED:
            self.count += adds
        self.member = member
        return True

    cdef int refused(self, str member) except -1:
        """Returns why a member cannot end the delivery; ENDED if it can."""
        if self.state != C_ACQUIRED:
            return C_NOT_ACQUIRED
        if self.transition is not None:
            return C_IN_TRANSITION
        return C_ENDED if self.member == member else C_NOT_OWNER

    def archive(self):
        """Ends its life, also if a transition is being written."""
        self.is_terminal = True
        self.state = C_ARCHIVED
        self.member = NO_MEMBER
        self.unlock()

    cpdef unlock(self):
        """Ends its lock without a consequence."""
        self.deadline_ms = C_NO_DEADLINE
        self.expired = False

    cdef InFlightState cut(self, int64_t at):
        """Shortens it to end before offset `at`, and returns the rest."""
        cdef InFlightState rest = InFlightState(at, self.last, self.state, self.count, self.member, self.deadline_ms)
        rest.expired = self.expired
        rest.is_terminal = self.is_terminal
        rest.transition = self.transition
        if rest.transition is not None:
            rest.transition.runs.append(rest)
        self.last = at - 1
        return rest

    cdef bint joins(self, InFlightState after):
        """Returns whether the run that follows can become a part of it."""
        return (
            self.state == after.state
            and self.state != C_ARCHIVING
            and self.transition is None
            and after.transition is None
            and self.count == after.count
            and self.deadline_ms == after.deadline_ms
            and self.member == after.member
        )

    def __repr__(self):
        moving = "" if self.transition is None else ", in transition"
        member = f" of {self.member!r}" if self.member else ""
        return f"<{self.first}-{self.last} {STATE_NAMES[self.state]} {self.count}x{member}{moving}>"


@cython.auto_pickle(False)
@cython.final
cdef class Transition:
    """A change of a run that is being written: what is written, and what a failed write restores.

    `first`, `last`, `state` and `count` are written; `cause` says why the records become dead letters, if they do.
    `asked`: the state that was asked for, before the limit of deliveries.
    """

    cdef readonly list runs
    cdef readonly int64_t first, last
    cdef readonly int state, count, asked
    cdef int old_state, max_count
    cdef str old_member
    cdef public str cause
    cdef readonly bint is_over

    def __init__(self):
        raise TypeError("a Transition is created by Transition.start()")

    @staticmethod
    def start(
        InFlightState run not None, int new, int max_count, *, bint dead_letters, str member not None=NO_MEMBER
    ):
        """Begins the change of a run to a state. Returns None, and changes nothing, if the rules do not allow it."""
        return Transition.begun(run, new, max_count, dead_letters, member)

    @staticmethod
    cdef Transition begun(InFlightState run, int new, int max_count, bint dead_letters, str member):
        cdef Transition made
        cdef int old_state = run.state
        cdef str old_member = run.member
        if not run.updated(new, max_count, member, dead_letters, 0):
            return None
        made = Transition.__new__(Transition)
        made.runs = [run]
        made.first = run.first
        made.last = run.last
        made.state = run.state
        made.count = run.count
        made.asked = new
        made.old_state = old_state
        made.old_member = old_member
        made.max_count = max_count
        run.transition = made
        return made

    def commit(self):
        """Ends it after its write. A second call does nothing."""
        cdef InFlightState run
        if not self.is_over:
            for run in self.runs:
                run.unlock()
                run.transition = None
            self.is_over = True

    def roll_back(self):
        """Takes it back. A lock that ended meanwhile makes the records available or, after the last delivery, archives
        them. A second call does nothing."""
        cdef InFlightState run
        if self.is_over:
            return
        for run in self.runs:
            run.transition = None
            if run.is_terminal:
                run.unlock()
            elif run.expired:
                run.state = C_ARCHIVED if run.count >= self.max_count else C_AVAILABLE
                run.member = NO_MEMBER
                run.unlock()
            else:
                run.state = self.old_state
                run.member = self.old_member
        self.is_over = True


@cython.auto_pickle(False)
@cython.final
cdef class InFlightBatch:
    """Offsets `first` to `last` that were acquired together, or read together from the persister."""

    cdef readonly int64_t first, last
    cdef readonly bint tracked
    cdef readonly list runs

    # More than eight parameters: those of its first run.
    def __init__(
        self, int64_t first, int64_t last, int state, int count, str member not None=NO_MEMBER,
        int64_t deadline_ms=C_NO_DEADLINE,
    ):
        self.first = first
        self.last = last
        self.runs = [InFlightState(first, last, state, count, member, deadline_ms)]

    @property
    def whole(self):
        """The state of all its offsets, while they are not tracked."""
        assert not self.tracked, self
        return self.runs[0]

    def track_offsets(self):
        """From now on its offsets may differ."""
        self.tracked = True

    cdef Py_ssize_t index_of(self, int64_t offset):
        """Returns the index of the last run that begins at or below an offset; -1 if none does."""
        cdef Py_ssize_t low = 0, high = len(self.runs), middle
        while low < high:
            middle = (low + high) >> 1
            if (<InFlightState>self.runs[middle]).first <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    cpdef Py_ssize_t split(self, int64_t at) except -1:
        """Lets a run begin at offset `at`, which is in the batch. Returns the run's index."""
        cdef Py_ssize_t index = self.index_of(at)
        cdef InFlightState run
        if index < 0:
            raise IndexError(f"offset {at} is below {self!r}")
        run = self.runs[index]
        if run.first == at:
            return index
        self.runs.insert(index + 1, run.cut(at))
        return index + 1

    def run_at(self, int64_t offset):
        """Returns the run of an offset, which is in the batch."""
        cdef Py_ssize_t index = self.index_of(offset)
        if index < 0:
            raise IndexError(f"offset {offset} is below {self!r}")
        return self.runs[index]

    def between(self, int64_t first, int64_t last):
        """Yields the runs in a range of offsets, split at its ends. The caller may change the runs, and stop."""
        cdef Py_ssize_t index
        cdef InFlightState run
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
            index = self.index_of(run.last) + 1

    def acquire(
        self, int64_t first, int64_t last, str member not None, int64_t deadline_ms, int max_count, int64_t room,
        int limit, list taken not None,
    ):
        """Acquires the free offsets of a range for a member, and adds (first, last, delivery count) to `taken` for each
        run. Returns how many offsets; more than `room` only if that is -1.

        Records delivered `limit` times or more go out in smaller and smaller groups, and alone at their last delivery.
        More than eight parameters: one call acquires.
        """
        cdef int64_t count = 0, size, want, smaller_room = -1
        cdef bint is_cut, is_last_try
        cdef InFlightState run
        for run in self.between(first, last):
            if not run.is_free():
                continue
            is_last_try = max_count > C_THROTTLE_MIN and run.count == max_count - 1
            if is_last_try and count > 0:
                break  # its last delivery is alone, in the next fetch
            if run.count >= limit and smaller_room < 0:
                smaller_room = max(1, (self.last - self.first + 1) >> min(run.count - limit + 1, 62))
            size = want = run.last - run.first + 1
            is_cut = False
            if is_last_try:
                want, is_cut = 1, True
            if room > count:
                want, is_cut = min(want, room - count) if is_cut else room - count, True
            if smaller_room > count:
                want, is_cut = min(want, smaller_room - count) if is_cut else smaller_room - count, True
            if want < size:
                self.split(run.first + want)
            if not run.updated(C_ACQUIRED, max_count, member, False, 1):
                continue
            run.deadline_ms = deadline_ms
            taken.append((run.first, run.last, run.count))
            count += run.last - run.first + 1
            if want <= size and is_cut:
                break
        self.join()
        return count

    cdef int ended(self, int64_t first, int64_t last, const Ending* how, str member, list transitions) except -1:
        """Does `CachedState.end` for a range of offsets of this batch."""
        cdef InFlightState run
        cdef int refused
        for run in self.between(first, last):
            refused = run.refused(member)
            if refused != C_ENDED:
                return refused
            if how.state == C_RENEWED:
                if how.deadline_ms == C_NO_DEADLINE:
                    return C_NOT_RENEWED
                run.deadline_ms = how.deadline_ms
                continue
            made = Transition.begun(run, how.state, how.max_count, how.dead_letters, NO_MEMBER)
            if made is None:
                return C_NOT_ALLOWED
            transitions.append(made)
        return C_ENDED

    cdef int refused(self, str member, bint is_whole) except -1:
        """Returns why a member cannot end the delivery of the whole batch, or of a part of it; ENDED if it can. The
        batch is not tracked."""
        cdef InFlightState run = self.runs[0]
        if run.member == NO_MEMBER:
            return C_BATCH_NOT_ACQUIRED
        if run.member != member:
            return C_BATCH_NOT_OWNED
        if run.transition is not None:
            return C_IN_TRANSITION
        if run.state != C_ACQUIRED:
            return C_BATCH_NOT_ACQUIRED if is_whole else C_SUBSET_NOT_ACQUIRED
        return C_ENDED

    def has_failed(self, int limit, int64_t first, int64_t last):
        """Returns whether it has free records, delivered `limit` times or more: in a range of offsets, or anywhere if
        it is not tracked."""
        cdef InFlightState run
        for run in self.runs:
            if run.count >= limit and run.is_free():
                if not self.tracked or (run.last >= first and run.first <= last):
                    return True
        return False

    cpdef join(self):
        """Makes one run of neighbours that have become equal."""
        cdef list runs = self.runs, kept
        cdef InFlightState run, tail
        cdef Py_ssize_t at
        if len(runs) == 1:
            return
        tail = runs[0]
        kept = [tail]
        for at in range(1, len(runs)):
            run = runs[at]
            if tail.joins(run):
                tail.last = run.last
                tail.is_terminal = tail.is_terminal or run.is_terminal
            else:
                kept.append(run)
                tail = run
        self.runs = kept

    def __repr__(self):
        return f"<batch {self.first}-{self.last}{' tracked' if self.tracked else ''} {self.runs}>"


@cython.auto_pickle(False)
@cython.final
cdef class CachedState:
    """The in-flight batches in the order of their offsets; they do not overlap."""

    cdef readonly list batches

    def __cinit__(self):
        self.batches = []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)

    @property
    def last_offset(self):
        """The last offset of the last batch. IndexError without batches."""
        if not self.batches:
            raise IndexError("no batch is in flight")
        return (<InFlightBatch>self.batches[len(self.batches) - 1]).last

    cdef Py_ssize_t after(self, int64_t offset):
        """Returns the number of batches that begin at or below an offset."""
        cdef Py_ssize_t low = 0, high = len(self.batches), middle
        while low < high:
            middle = (low + high) >> 1
            if (<InFlightBatch>self.batches[middle]).first <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def put(self, InFlightBatch batch not None):
        """Adds a batch, or replaces the one with the same first offset."""
        cdef Py_ssize_t index = self.after(batch.first)
        if index > 0 and (<InFlightBatch>self.batches[index - 1]).first == batch.first:
            self.batches[index - 1] = batch
        else:
            self.batches.insert(index, batch)

    cpdef InFlightBatch floor(self, int64_t offset):
        """Returns the last batch that begins at or below an offset; None if there is none."""
        cdef Py_ssize_t index = self.after(offset) - 1
        return None if index < 0 else <InFlightBatch>self.batches[index]

    def between(self, int64_t first, int64_t last):
        """Returns the batches that begin in a range of offsets."""
        cdef Py_ssize_t end = self.after(last), start = self.after(first)
        if start > 0 and (<InFlightBatch>self.batches[start - 1]).first == first:
            start -= 1
        return self.batches[start:end] if start < end else []

    def end(
        self, int64_t first, int64_t last, int64_t start, str member not None, parts, int64_t deadline_ms,
        int max_count, bint dead_letters, list transitions not None,
    ):
        """Ends what a member has acquired of a range of offsets, from `start` on. `parts` are (first, last, state): the
        states that parts of the range change to, RENEWED for locks that shall end at `deadline_ms` (NO_DEADLINE: none
        may be renewed).

        Returns why the rules do not allow it, otherwise ENDED; the transitions that were begun are in `transitions` in
        any case. More than eight parameters: one call ends them.
        """
        cdef Ending how = Ending(0, max_count, dead_letters, deadline_ms)
        cdef Py_ssize_t index = self.after(first) - 1, end = self.after(last)
        cdef InFlightBatch batch
        cdef int64_t part_first, part_last
        cdef int refused
        cdef bint is_whole
        if index < 0 and first < start <= last:
            index = self.after(start) - 1
        if index < 0 or index >= end:
            return C_NOT_FOUND
        batch = self.batches[end - 1]
        if batch.last < first:
            return C_FIRST_IS_PAST
        if batch.last < last:
            return C_LAST_IS_PAST
        for batch in self.batches[index:end]:
            if batch.last < start:
                continue
            if not batch.tracked:
                is_whole = (
                    first <= batch.first and batch.last <= last and len(parts) == 1
                    and not (batch.first < start <= batch.last)
                )
                refused = batch.refused(member, is_whole)
                if refused != C_ENDED:
                    return refused
                batch.tracked = not is_whole
            for part_first, part_last, how.state in parts:
                refused = batch.ended(
                    max(part_first, max(batch.first, start)), min(part_last, batch.last), &how, member, transitions
                )
                if refused != C_ENDED:
                    return refused
        return C_ENDED

    def first_available(self, int64_t gap_start=C_NO_OFFSET):
        """Returns the first offset that can be acquired, -1 if there is none. `gap_start`: the gaps between batches
        from there on can be acquired, too."""
        cdef InFlightBatch batch
        cdef InFlightState run
        cdef bint gaps = gap_start != C_NO_OFFSET
        for batch in self.batches:
            if gaps:
                if batch.first > gap_start:
                    return gap_start
                gap_start = max(batch.last + 1, gap_start)
            for run in batch.runs:
                if run.is_free():
                    return run.first
        return C_NO_OFFSET

    def last_done(self, int64_t start, int64_t gap_start=C_NO_OFFSET):
        """Returns the last offset up to which everything is completed, -1 if nothing is, and how many from `start` on
        are. `gap_start`: nothing counts from the batch on that ends there or behind it."""
        cdef InFlightBatch batch
        cdef InFlightState run
        cdef int64_t found = C_NO_OFFSET, count = 0
        for batch in self.batches:
            if gap_start != C_NO_OFFSET and batch.last >= gap_start:
                break
            for run in batch.runs:
                if run.transition is not None or not is_done(run.state):
                    return found, count
                found = run.last
                count += max(0, run.last - max(start, run.first) + 1)
        return found, count

    def drop_up_to(self, int64_t offset):
        """Drops the batches that end at or below an offset. Returns whether it dropped the one that ends there."""
        cdef Py_ssize_t index = self.after(offset)
        cdef bint is_end
        if index == 0:
            return False
        is_end = (<InFlightBatch>self.batches[index - 1]).last == offset
        del self.batches[: index if is_end else index - 1]
        return is_end

    def join_around(self, int64_t offset):
        """Joins the runs of the batch of an offset."""
        cdef InFlightBatch batch = self.floor(offset)
        if batch is not None:
            batch.join()

    def clear(self):
        self.batches.clear()
