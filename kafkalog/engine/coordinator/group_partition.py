"""The interface of a partition of `__consumer_offsets`, for the managers of groups, one manager for each protocol.

A partition has one lock, one log and one replay. A request is handled so:

    with partition.entered():                    # the coordinator does this; managers are called inside
        rows, answer = ...                       # from the state of the groups
        partition.write(rows)                    # appended, then replayed into the state; nothing if the append fails
        partition.after(lambda: future.set_result(answer))   # runs when the lock is released

`GroupOffsets` implements it. Source: CoordinatorRuntime, CoordinatorTimerImpl, CoordinatorExecutorImpl (4.4.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.groups import Groups
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.coordinator.topics_view import GroupConfigs, TopicsView
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.errors import IllegalStateException, KafkalogError

if TYPE_CHECKING:
    import threading

RETRY_BACKOFF_MS = 500
Result = TypeVar("Result")


class GroupPartition(Protocol):
    """See the module."""

    number: int
    lock: threading.RLock
    clock: Clock
    settings: GroupSettings
    topics: TopicsView
    configs: GroupConfigs
    groups: Groups
    counts: Counter[str]  # how often things happened, by the names of `group_counts`

    @property
    def timers(self) -> PartitionTimers:
        """The timers of its groups."""
        ...

    @property
    def work(self) -> PartitionWork:
        """The long work for its groups, which holds no lock."""
        ...

    def entered(self) -> AbstractContextManager[None]:
        """Holds the lock, over a settled state. The calls that `after` got run when the lock is released.

        Raises IllegalStateException after a fork, or if this thread holds the lock already.
        """
        ...

    def write(self, rows: Iterable[KeyValue], *, atomic: bool = True, replay: bool = True) -> None:
        """Appends records, then replays them into the state. The lock is held.

        `atomic`: as one batch, or RecordTooLargeException. Without `replay` the caller has changed the state itself;
        it takes the change back if this raises.
        """
        ...

    def after(self, call: Callable[[], object]) -> None:
        """Calls this when the lock is released: futures are completed so."""
        ...


class _Due:
    """A timer's call into a partition. It does nothing if the timer was cancelled or set again meanwhile."""

    __slots__ = ("_timers", "full_key", "key", "operation", "retries")

    def __init__(self, timers: PartitionTimers, key: str, operation: Callable[[], object], retries: bool) -> None:
        self._timers = timers
        self.key = key
        self.full_key = (timers.partition.number, key)
        self.operation = operation
        self.retries = retries

    def __call__(self) -> None:
        self._timers.run(self)


class PartitionTimers:
    """The timers of one partition. An operation runs inside `entered()`. Every method needs the partition's lock.

    If an operation fails because records cannot be appended, it is tried again every 500 ms, unless `retries` is False.
    """

    def __init__(self, partition: GroupPartition, timers: Timers) -> None:
        self.partition = partition
        self._timers = timers
        self._current: dict[str, _Due] = {}
        self._lines = Lines("kafkalog.coordinator")

    def __contains__(self, key: str) -> bool:
        return key in self._current

    def schedule(self, key: str, delay_ms: int, operation: Callable[[], object], *, retries: bool = True) -> None:
        """Calls `operation` after `delay_ms`. Replaces an earlier timer of the same key."""
        due = self._current[key] = _Due(self, key, operation, retries)
        self._timers.schedule(due.full_key, delay_ms, due)

    def schedule_if_absent(self, key: str, delay_ms: int, operation: Callable[[], object]) -> None:
        """Like `schedule`, but leaves an earlier timer of the same key."""
        if key not in self._current:
            self.schedule(key, delay_ms, operation)

    def postpone(self, key: str, delay_ms: int) -> bool:
        """Lets a timer run after `delay_ms` from now, for a heartbeat. Returns whether there is one."""
        due = self._current.get(key)
        if due is None:
            return False
        if not self._timers.postpone(due.full_key, delay_ms):  # it is due, and waits for the lock
            self.schedule(key, delay_ms, due.operation, retries=due.retries)
        return True

    def cancel(self, key: str) -> None:
        """Cancels the timer of a key, if there is one."""
        due = self._current.pop(key, None)
        if due is not None:
            self._timers.cancel(due.full_key)

    def cancel_all(self) -> None:
        """Cancels every timer of the partition."""
        for key in list(self._current):
            self.cancel(key)

    def run(self, due: _Due) -> None:
        """Runs a timer that is due. For `_Due`."""
        try:
            entered = self.partition.entered()
        except IllegalStateException:
            return  # the store is closed, or this is a child of a fork
        with entered:
            if self._current.get(due.key) is not due:
                return
            del self._current[due.key]
            try:
                due.operation()
            except KafkalogError as error:
                self._lines.warning("the timer %s failed: %s", due.key, error)
                if due.retries:
                    self.schedule_if_absent(due.key, RETRY_BACKOFF_MS, due.operation)


class PartitionWork:
    """Long work for the groups of one partition: it runs in a thread of the store without the partition's lock.

    `schedule`, `cancel_all` and `in` need the lock.
    """

    def __init__(self, partition: GroupPartition, thread: Timers) -> None:
        """`thread`: runs what is scheduled at once, one after the other."""
        self._partition = partition
        self._thread = thread
        self._current: dict[str, object] = {}  # the work that is wanted, until its result was taken
        self._lines = Lines("kafkalog.coordinator")

    def __contains__(self, key: str) -> bool:
        return key in self._current

    def schedule(
        self, key: str, work: Callable[[Callable[[], bool]], Result], then: Callable[[Result], object]
    ) -> None:
        """Calls `work` without the lock, then `then` with its result inside `entered()`. Nothing if `key` has work.

        `work` gets a function that says whether it is wanted still; if not, its result is dropped.
        """
        if key not in self._current:
            token = self._current[key] = object()
            self._thread.schedule((self._partition.number, key), 0, partial(self._run, key, token, work, then))

    def cancel_all(self) -> None:
        """Drops all work. A piece that runs is told so, and not waited for."""
        self._current.clear()

    def _run(
        self, key: str, token: object, work: Callable[[Callable[[], bool]], Result], then: Callable[[Result], object]
    ) -> None:
        def is_wanted() -> bool:
            return self._current.get(key) is token

        result, error = None, None
        try:
            if is_wanted():
                result = work(is_wanted)
        except Exception as raised:
            error = raised
        try:
            entered = self._partition.entered()
        except IllegalStateException:
            return  # the store is closed, or this is a child of a fork
        with entered:
            if not is_wanted():
                return
            del self._current[key]
            try:
                if error is not None:
                    raise error
                then(result)  # type: ignore[arg-type]  # work has returned
            except KafkalogError as failure:
                self._lines.warning("the work %s failed: %s", key, failure)
