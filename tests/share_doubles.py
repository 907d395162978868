"""Doubles of what a share partition uses: a log that is a list of batches, and a persister in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalog.engine.coordinator.share_acquire import Acquired, AcquireRequest, acquire
from kafkalog.engine.coordinator.share_config import ShareGroupConfigProvider, ShareGroupSettings
from kafkalog.engine.coordinator.share_interfaces import (
    Aborted,
    DeadLetter,
    EndOffset,
    LogRead,
    PartitionWrite,
    TopicIdPartition,
)
from kafkalog.engine.coordinator.share_partition import ShareAcknowledgementBatch, ShareContext, SharePartition
from kafkalog.engine.coordinator.state_batches import combine_state_batches
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import PersisterStateBatch, SharePartitionKey
from kafkalog.errors import OffsetOutOfRangeException, UnknownServerException

GROUP = "mail"
PARTITION = TopicIdPartition("AAAAAAAAAAAAAAAAAAAAAQ", 0, "outbox")


class MadeBatch(NamedTuple):
    """A batch of the log, without records."""

    base_offset: int
    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    is_control: bool = False
    size: int = 100

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0


class MadeLogs:
    """A log of one partition, as a list of batches. `end` is where the high watermark is."""

    def __init__(self) -> None:
        self.batches: list[MadeBatch] = []
        self.start = 0
        self.end = 0
        self.aborted: list[Aborted] = []
        self.abort_markers: set[int] = set()
        self.bells: list[Any] = []

    def append(self, count: int, producer_id: int = -1, *, is_control: bool = False) -> MadeBatch:
        made = MadeBatch(self.end, self.end + count - 1, producer_id, producer_id >= 0, is_control)
        self.batches.append(made)
        self.end += count
        bells, self.bells = self.bells, []
        for each in bells:
            each.release()
        return made

    def read(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, *, committed: bool, whole: bool = True
    ) -> LogRead:
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeException(f"offset {offset} is not between {self.start} and {self.end}")
        found = [each for each in self.batches if each.last_offset >= offset][: max(1, max_bytes // 100)]
        aborted = tuple(self.aborted) if committed else ()
        return LogRead(found, found, aborted, frozenset(self.abort_markers))

    def place_of(self, partition: TopicIdPartition, offset: int, *, committed: bool) -> EndOffset:
        return EndOffset(offset, 0, 100 * sum(each.last_offset < offset for each in self.batches))

    def end_offset(self, partition: TopicIdPartition, *, committed: bool) -> EndOffset:
        return EndOffset(self.end, 0, 100 * len(self.batches))

    def earliest_offset(self, partition: TopicIdPartition) -> int:
        return self.start

    def latest_offset(self, partition: TopicIdPartition) -> int:
        return self.end

    def offset_for_timestamp(self, partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        return timestamp_ms if timestamp_ms >= 0 else None

    def leader_epoch(self, partition: TopicIdPartition) -> int:
        return 0

    def is_far(self, partition: TopicIdPartition, offset: int) -> bool:
        return False

    def part(self, read: LogRead, position: int, size: int) -> object:
        return list(read.records)[position // 100 : (position + size) // 100]

    def ring_at_change(self, partition: TopicIdPartition, bell: object) -> None:
        self.bells.append(bell)


class MadePersister:
    """Keeps the state of one share partition as the share coordinator does. `failing`: the error code of writes."""

    waits = False

    def __init__(self) -> None:
        self.start_offset = -1
        self.state_epoch = 0
        self.delivery_complete_count = 0
        self.batches: tuple[PersisterStateBatch, ...] = ()
        self.writes: list[PartitionWrite] = []
        self.failing = 0

    def read_state(self, request: Values) -> Values:
        batches = [
            {"firstOffset": a, "lastOffset": b, "deliveryState": state, "deliveryCount": count}
            for a, b, state, count in self.batches
        ]
        state = {"stateEpoch": self.state_epoch, "startOffset": self.start_offset, "stateBatches": batches}
        return self._answer(request, **state)

    def write_partition(self, key: SharePartitionKey, write: PartitionWrite) -> tuple[int, str | None]:
        if self.failing:
            return self.failing, "it fails"
        self.writes.append(write)
        self.start_offset = max(self.start_offset, write.start_offset)
        self.delivery_complete_count = write.delivery_complete_count
        self.batches = combine_state_batches(self.batches, write.state_batches, self.start_offset)
        return 0, None

    def _answer(self, request: Values, **state: object) -> Values:
        topic = request["topics"][0]
        number = topic["partitions"][0]["partition"]
        partition = {"partition": number, "errorCode": 0, "errorMessage": None, **state}
        return {"results": [{"topicId": topic["topicId"], "partitions": [partition]}]}

    def delete_state(self, request: Values) -> Values:
        raise NotImplementedError

    initialize_state = read_state_summary = delete_state


class MadeLetters:
    """A topic of dead letters, as a list."""

    def __init__(self, *, is_enabled: bool = False) -> None:
        self.enabled = is_enabled
        self.letters: list[DeadLetter] = []
        self.fails = False

    def is_enabled(self, group: str) -> bool:
        return self.enabled

    def write(self, letter: DeadLetter) -> None:
        if self.fails:
            raise UnknownServerException("no letters today")
        self.letters.append(letter)


class Shared:
    """A share partition over doubles. `take` reads and acquires as a fetch does."""

    def __init__(self, *, letters: bool = False, settings: ShareGroupSettings | None = None, **config: str) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.timers = Timers(self.clock)
        self.logs = MadeLogs()
        self.persister = MadePersister()
        self.letters = MadeLetters(is_enabled=letters)
        self.config = {"share.auto.offset.reset": "earliest"}
        self.config.update({name.replace("_", "."): value for name, value in config.items()})
        self.told: list[TopicIdPartition] = []
        self.configs = ShareGroupConfigProvider(settings or ShareGroupSettings(), lambda group: self.config)
        self.start()

    def start(self) -> SharePartition:
        """Makes the share partition again, from what the persister has."""
        context = ShareContext(
            self.logs,
            self.persister,
            self.timers,
            self.clock,
            self.configs,
            self.letters,
            lambda group, partition: self.told.append(partition),
        )
        self.partition = SharePartition(GROUP, PARTITION, context)
        self.partition.maybe_initialize()
        return self.partition

    def advance(self, ms: int) -> None:
        """Lets time pass, and the timers run."""
        self.clock.advance(ms)
        self.timers.run_due()

    # More than eight parameters: those of a fetch, all but one by name.
    def take(
        self,
        member: str = "m1",
        *,
        count: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        max_bytes: int = 1 << 20,
        committed: bool = False,
    ) -> Acquired:
        partition = self.partition
        if not partition.can_acquire_records():
            return []
        offset = partition.next_fetch_offset()
        try:
            read = self.logs.read(PARTITION, offset, max_bytes, committed=committed)
        except OffsetOutOfRangeException:
            partition.update_cache_and_offsets(self.logs.start)
            return []
        request = AcquireRequest(member, count, batch_size, mode, committed)
        return acquire(partition, request, offset, read)

    def ack(self, first: int, last: int, *types: int, member: str = "m1") -> None:
        self.partition.acknowledge(member, [ShareAcknowledgementBatch(first, last, types or (1,))])

    def states(self) -> list[tuple[int, int, int, int, str]]:
        """Returns the in-flight states as (first, last, state, count, member), neighbours joined."""
        found: list[tuple[int, int, int, int, str]] = []
        for batch in self.partition.cached:
            for run in batch.runs:
                here = (run.first, run.last, run.state, run.count, run.member)
                if found and found[-1][1] + 1 == here[0] and found[-1][2:] == here[2:]:
                    here = (found.pop()[0], *here[1:])
                found.append(here)
        return found

    def written(self) -> list[tuple[int, int, int, int]]:
        """Returns the batches of the last write."""
        return [tuple(each) for each in self.persister.writes[-1].state_batches]
