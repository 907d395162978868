"""The share coordinator: how far share groups have come in their partitions, kept in `__share_group_state`.

`ShareCoordinator` routes each partition of a request to the partition of the topic that it hashes to
(`ShareCoordinatorShard`), and joins the results. It is also the `Persister` of this process: Kafka's
DefaultStatePersister sends the same five requests to the brokers that coordinate, and here this is the only one. A
request and its response are those of Kafka's protocol, as dictionaries with all fields.

A call returns when its change is as durable as the store promises. A failure is an error code in the result, and its
message names the cause. Thread-safe. Source: ShareCoordinatorService, CoordinatorOperationExceptionHelper (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.coordinator.operation_errors import operation_code
from kafkalog.engine.coordinator.share_coordinator_shard import (
    PrunedLog,
    ShareCoordinatorShard,
)
from kafkalog.engine.coordinator.share_interfaces import PartitionWrite
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.coordinator.topics_view import TopicsView
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.coordinator_records import share_partition_for
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import NO_COUNT, SharePartitionKey
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_metrics import WriteTimes

NUMBERS_MAX = 1 << 14
WRITING = "write share group state"
Ask = Callable[[ShareCoordinatorShard, SharePartitionKey, Values], Values]


class ShareCoordinator:
    """See the module. `state_log` returns the log of a partition of the topic; None if it does not exist and shall not
    be created."""

    def __init__(
        self,
        state_log: Callable[[int, bool], PrunedLog | None],
        partition_count: int,
        clock: Clock,
        topics: TopicsView,
        settings: ShareSettings = ShareSettings(),  # noqa: B008 (it does not change)
        timers: Timers | None = None,
        writes: WriteTimes | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """`timers` run the upkeep, from the first partition on; without them the caller does. `waits`: the store
        promises that a write is on the disk."""
        self.waits = waits
        self.settings = settings
        self._writes = writes
        self._timers = timers
        self._is_kept_up = False
        self.partition_count = partition_count
        self._state_log = state_log
        self._clock = clock
        self._topics = topics
        self._lock = threading.RLock()  # guards which partitions are loaded
        self._shards: dict[int, ShareCoordinatorShard] = {}
        self._by_key: dict[SharePartitionKey, ShareCoordinatorShard] = {}  # as they were asked for
        self._numbers: dict[SharePartitionKey, int] = {}  # partitions of the topic that were computed

    # --- requests -------------------------------------------------------------------------------------

    def initialize_state(self, request: Values) -> Values:
        """Answers an InitializeShareGroupStateRequest: partitions get their first state, or a new one."""
        return self._answered(request, ShareCoordinatorShard.initialize_state, "initialize share group state", {})

    def read_state(self, request: Values) -> Values:
        """Answers a ReadShareGroupStateRequest. The leader epoch of the reader fences earlier leaders."""
        none = {"stateEpoch": 0, "startOffset": 0, "stateBatches": []}
        return self._answered(request, ShareCoordinatorShard.read_state, "read share group state", none)

    def write_state(self, request: Values) -> Values:
        """Answers a WriteShareGroupStateRequest: start offsets and the states of batches."""
        begun_ns = self._clock.nanoseconds()
        answer = self._answered(request, ShareCoordinatorShard.write_state, WRITING, {})
        if self._writes is not None:
            count = sum(len(topic["partitions"]) for topic in request["topics"])
            self._writes.add(count, (self._clock.nanoseconds() - begun_ns) / 1e6)
        return answer

    def write_partition(self, key: SharePartitionKey, write: PartitionWrite) -> tuple[int, str | None]:
        """Does what a WriteShareGroupStateRequest of one partition does. Returns the error code and its message."""
        begun_ns = 0 if self._writes is None else self._clock.nanoseconds()
        try:
            shard = self._by_key.get(key)
            if shard is None:
                shard = self.shard(key)
            answer = shard.write(key, write)
            shard.flush()
        except KafkalogError as error:
            failed = _failure(error, WRITING)
            answer = failed["errorCode"], failed["errorMessage"]
        if self._writes is not None:
            self._writes.add(1, (self._clock.nanoseconds() - begun_ns) / 1e6)
        return answer

    def delete_state(self, request: Values) -> Values:
        """Answers a DeleteShareGroupStateRequest."""
        return self._answered(request, ShareCoordinatorShard.delete_state, "delete share group state", {})

    def read_state_summary(self, request: Values) -> Values:
        """Answers a ReadShareGroupStateSummaryRequest: start offsets and epochs, without batches."""
        none = {"stateEpoch": 0, "leaderEpoch": 0, "startOffset": 0, "deliveryCompleteCount": NO_COUNT}
        return self._answered(request, ShareCoordinatorShard.read_state_summary, "read share group state summary", none)

    def leader_epoch_at_start(self, key: SharePartitionKey) -> int:
        """Returns the leader epoch that fences this process's share partition unless it has it, too; 0 without any.

        A broker counts an epoch for each of its starts.  The log of a partition may not have it: an epoch in which
        nothing was appended is not in the log.  A leader epoch that somebody writes later fences this process.
        """
        return self.shard(key).leader_epoch_at_start(key)

    def _answered(self, request: Values, ask: Ask, what: str, none: Values) -> Values:
        """Returns the response. `none`: the fields of a result besides its error."""
        group: str = request["groupId"]
        topics: list[Values] = request["topics"]
        if not group or not all(topic["partitions"] for topic in topics):
            return {"results": []}
        results: dict[str, dict[int, Values]] = {}
        changed: dict[int, tuple[ShareCoordinatorShard, list[Values]]] = {}
        for topic in topics:
            topic_id = topic["topicId"]
            of_topic = results.setdefault(topic_id, {})
            for each in topic["partitions"]:
                key = SharePartitionKey(group, topic_id, each["partition"])
                try:
                    number = self.partition_for(key)
                    shard = self._shard(number)
                    found = ask(shard, key, each)
                    changed.setdefault(number, (shard, []))[1].append(found)
                except KafkalogError as error:
                    found = {"partition": key.partition, **_failure(error, what), **none}
                of_topic[key.partition] = found
        for shard, found_there in changed.values():
            try:
                shard.flush()
            except KafkalogError as error:
                for each in found_there:
                    each.update(_failure(error, what) if not each["errorCode"] else {})
        return {
            "results": [
                {"topicId": topic_id, "partitions": [of_topic[each] for each in sorted(of_topic)]}
                for topic_id, of_topic in results.items()
            ]
        }

    # --- partitions of the topic ----------------------------------------------------------------------

    def partition_for(self, key: SharePartitionKey) -> int:
        """Returns the partition of `__share_group_state` that keeps a share partition's state."""
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= NUMBERS_MAX:
                self._numbers.clear()
            found = self._numbers[key] = share_partition_for(*key, self.partition_count)
        return found

    def shard(self, key: SharePartitionKey) -> ShareCoordinatorShard:
        """Returns the keeper of a share partition's state. Raises SchemaException if its log cannot be understood."""
        found = self._shard(self.partition_for(key))
        if len(self._by_key) >= NUMBERS_MAX:
            self._by_key.clear()
        self._by_key[key] = found
        return found

    def _shard(self, number: int) -> ShareCoordinatorShard:
        found = self._shards.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._shards.get(number)
            if found is None:
                log = self._state_log(number, False)
                make = partial(self._made, number)
                if log is not None:
                    self._keep_up()
                found = ShareCoordinatorShard(log, make, self._clock, self._topics, self.settings)
                self._shards[number] = found
            return found

    def _made(self, number: int) -> PrunedLog:
        log = self._state_log(number, True)
        assert log is not None, number
        self._keep_up()
        return log

    def load(self, numbers: Collection[int]) -> None:
        """Reads partitions of the topic. Errors as `shard`."""
        for each in numbers:
            self._shard(each)

    # --- upkeep ---------------------------------------------------------------------------------------

    def use(self, settings: ShareSettings) -> None:
        """Works with these settings from now on."""
        with self._lock:
            self.settings = settings
            for each in self._shards.values():
                each.settings = settings

    def _keep_up(self) -> None:
        """Starts the upkeep, if it was not started."""
        if self._timers is not None and not self._is_kept_up:
            self._is_kept_up = True
            self._later("prune", self.settings.state_topic_prune_interval_ms, self.prune)
            self._later("snapshot", self.settings.cold_partition_snapshot_interval_ms, self.snapshot_cold_partitions)

    def _later(self, what: str, interval_ms: int, run: Callable[[], None]) -> None:
        assert self._timers is not None

        def run_and_repeat() -> None:
            run()
            self._later(what, interval_ms, run)

        self._timers.schedule(("share coordinator", what), interval_ms, run_and_repeat)

    def prune(self) -> None:
        """Deletes records that are not needed any more, every share.coordinator.state.topic.prune.interval.ms."""
        self._in_each(ShareCoordinatorShard.prune, "pruning records")

    def snapshot_cold_partitions(self) -> None:
        """Writes snapshots of what did not change for share.coordinator.cold.partition.snapshot.interval.ms."""
        self._in_each(ShareCoordinatorShard.snapshot_cold_partitions, "writing snapshots")

    def on_topics_deleted(self, topic_ids: Collection[str]) -> None:
        """Forgets the states of deleted topics, in the partitions that are loaded."""
        self._in_each(lambda shard: shard.maybe_cleanup_share_state(topic_ids), "forgetting deleted topics")

    def _in_each(self, do: Callable[[ShareCoordinatorShard], None], doing: str) -> None:
        """Does something in each loaded partition; a failure is logged, and the next time tries again."""
        for shard in list(self._shards.values()):
            try:
                do(shard)
            except KafkalogError as error:
                Lines("kafkalog.coordinator").warning("%s of share groups failed: %s", doing, error)
            except Exception:
                Lines("kafkalog.coordinator").exception("Error while %s of share groups", doing)


def _failure(error: KafkalogError, what: str) -> Values:
    return {"errorCode": operation_code(error), "errorMessage": f"Unable to {what}: {error}"}
