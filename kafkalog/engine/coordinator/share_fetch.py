"""A fetch of a share group's member, at once or when there is enough to read.

`ShareFetch` is the request. `DelayedShareFetch` takes the partitions that no other fetch has. If they have enough, it
reads and acquires; otherwise it waits. `try_complete` is called again when records arrive or become free, and
`force_complete` when the time is over. Partitions share the bytes evenly. Any thread may call. Source: ShareFetch,
DelayedShareFetch, ShareFetchUtils, PartitionMaxBytesStrategy, PartitionRotateStrategy (4.4.0).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from kafkalog.engine.coordinator.share_acquire import Acquired, AcquireRequest, acquire, acquired_count
from kafkalog.engine.coordinator.share_interfaces import LogRead, SharedLogs, TopicIdPartition
from kafkalog.engine.coordinator.share_partition import SharePartition
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import code_of
from kafkalog.engine.format.messages import Values
from kafkalog.errors import KafkalogError, OffsetOutOfRangeException

Answers = dict[TopicIdPartition, Values]


def partition_answer(
    partition: TopicIdPartition, error: int = 0, message: str | None = None, *, records: object = b""
) -> Values:
    """Returns a partition's part of a ShareFetch response."""
    return {
        "partitionIndex": partition.partition,
        "errorCode": int(error),
        "errorMessage": message,
        "records": records,
        "acquiredRecords": [],
    }


def rotated(partitions: Sequence[TopicIdPartition], epoch: int) -> list[TopicIdPartition]:
    """Returns the partitions from another one on at each epoch, so that each gets its turn."""
    at = epoch % len(partitions) if partitions and epoch >= 1 else 0
    return [*partitions[at:], *partitions[:at]]


def shared_out(max_bytes: int, partitions: Collection[TopicIdPartition], acquired: int) -> dict[TopicIdPartition, int]:
    """Returns how many bytes each partition may read. `acquired`: the number of partitions of the whole fetch."""
    count = len(partitions)
    if max_bytes < count:  # some get one byte, which is one batch
        some = set(random.sample(range(count), max(max_bytes, 0)))
        return {each: int(at in some) for at, each in enumerate(partitions)}
    share, rest = divmod(max_bytes, acquired if max_bytes >= acquired else count)
    found = dict.fromkeys(partitions, share)
    if rest:
        found[random.choice(list(found))] += rest
    return found


class ShareFetch:
    """A member's request. `done` is called once, with an answer for each partition that has one."""

    # More than eight parameters: the fields of the request, by name.
    def __init__(
        self,
        group: str,
        partitions: Sequence[TopicIdPartition],
        request: AcquireRequest,
        done: Callable[[Answers], None],
        *,
        min_bytes: int,
        max_bytes: int,
        max_wait_ms: int,
    ) -> None:
        self.group = group
        self.partitions = partitions
        self.request = request
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_wait_ms = max_wait_ms
        self.erroneous: dict[TopicIdPartition, BaseException] = {}
        self._done = done
        self._lock = threading.Lock()
        self.is_completed = False  # guarded by _lock

    def maybe_complete(self, answers: Answers) -> bool:
        """Answers, if nobody has. Returns whether it did."""
        with self._lock:
            if self.is_completed:
                return False
            self.is_completed = True
        for partition, error in self.erroneous.items():
            answers[partition] = partition_answer(partition, code_of(error), _message(error))
        self._done(answers)
        return True


def _message(error: BaseException) -> str | None:
    return error.message if isinstance(error, KafkalogError) else str(error)


class DelayedShareFetch:
    """See the module. `failed(partition, error)` is told of errors that may fence a share partition."""

    def __init__(
        self,
        fetch: ShareFetch,
        partitions: dict[TopicIdPartition, SharePartition],
        logs: SharedLogs,
        failed: Callable[[TopicIdPartition, BaseException], None],
    ) -> None:
        self.fetch = fetch
        self.partitions = partitions
        self._logs = logs
        self._failed = failed
        self._lock = threading.Lock()  # held while it tries; others who want it to try leave a note
        self._again = False

    @property
    def is_completed(self) -> bool:
        return self.fetch.is_completed

    def reads_far(self) -> bool:
        """Returns whether a read of it may take long, because only a remote tier has the records."""
        for partition, shared in self.partitions.items():
            with suppress(KafkalogError):
                if shared.is_active and self._logs.is_far(partition, shared.next_fetch_offset()):
                    return True
        return False

    def try_complete(self) -> bool:
        """Completes it if there is enough to read. Returns whether it is completed now, or before."""
        return self._tried(force=False)

    def force_complete(self) -> bool:
        """Completes it with what there is."""
        return self._tried(force=True)

    def _tried(self, *, force: bool) -> bool:
        while not self.fetch.is_completed:
            self._again = True
            if not self._lock.acquire(blocking=force):
                return False  # the thread that tries will see the note
            self._again = self._again or force  # that thread may have taken the note, and tried without force
            try:
                while self._again and not self.fetch.is_completed:
                    self._again = False
                    self._try(force=force)
            finally:
                self._lock.release()
            if not self._again:
                break
        return self.fetch.is_completed

    def _try(self, *, force: bool) -> None:
        offsets = self._acquirable()
        try:
            if not offsets:
                if force:
                    self.fetch.maybe_complete({})
            elif force:
                self._complete(offsets)
            else:
                ordered = self._looked_at(offsets)
                if self._is_min_bytes_satisfied(offsets):
                    self._complete(ordered)
        except Exception as error:
            Lines("kafkalog.coordinator").exception("Error in a share fetch of group %s", self.fetch.group)
            for partition in offsets:
                self.fetch.erroneous[partition] = error
                self._failed(partition, error)
            self.fetch.maybe_complete({})
        finally:
            for partition in offsets:
                self.partitions[partition].release_fetch_lock(self)

    def _acquirable(self) -> dict[TopicIdPartition, int]:
        """Returns the partitions that this fetch has for itself now, and the offsets where it would read."""
        found = {}
        for partition, shared in self.partitions.items():
            if partition in self.fetch.erroneous or not shared.maybe_acquire_fetch_lock(self):
                continue
            if shared.can_acquire_records():
                found[partition] = shared.next_fetch_offset()
            else:
                shared.release_fetch_lock(self)
        return found

    def _looked_at(self, offsets: dict[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        """Returns the partitions in the order in which they are read.

        A partition whose place in the log a fetch has looked up before comes first: Kafka remembers the place."""
        looked_up: dict[TopicIdPartition, int] = {}
        others: dict[TopicIdPartition, int] = {}
        for partition, offset in offsets.items():
            shared = self.partitions[partition]
            (looked_up if shared.looked_up_offset == offset else others)[partition] = offset
            shared.looked_up_offset = offset
        return looked_up | others

    def _is_min_bytes_satisfied(self, offsets: dict[TopicIdPartition, int]) -> bool:
        fetch, committed = self.fetch, self.fetch.request.committed
        limits = shared_out(fetch.max_bytes, offsets, len(offsets))
        size = 0
        for partition, offset in offsets.items():
            try:
                end = self._logs.end_offset(partition, committed=committed)
                place = self._logs.place_of(partition, offset, committed=committed)
            except OffsetOutOfRangeException:
                return True  # the read tells it
            except KafkalogError as error:
                fetch.erroneous[partition] = error
                self._failed(partition, error)
                continue
            if place.offset > end.offset:
                return True
            if place.offset < end.offset:
                if place.segment_base_offset != end.segment_base_offset:
                    return True
                size += min(end.position - place.position, limits[partition])
        return size >= fetch.min_bytes

    def _complete(self, offsets: dict[TopicIdPartition, int]) -> None:
        fetch = self.fetch
        wanted = {each: offset for each, offset in offsets.items() if each not in fetch.erroneous}
        limits = shared_out(fetch.max_bytes, wanted, len(offsets)) if wanted else {}
        answers: Answers = {}
        room, records_left, is_first = fetch.max_bytes, fetch.request.max_records, True
        for partition, offset in wanted.items():
            shared = self.partitions[partition]
            try:
                read = self._logs.read(
                    partition, offset, min(limits[partition], room), committed=fetch.request.committed, whole=is_first
                )
            except OffsetOutOfRangeException:
                self._to_log_start(shared, answers)
                continue
            except KafkalogError as error:
                answers[partition] = partition_answer(partition, code_of(error), error.message)
                continue
            size = sum(each.size for each in read.batches)
            is_first = is_first and not size
            room = max(0, room - size)
            acquired = acquire(shared, fetch.request._replace(max_records=records_left), offset, read)
            answer = answers[partition] = partition_answer(partition)
            if acquired:
                records_left -= acquired_count(acquired)
                answer["records"] = self._logs.part(read, *part_of(read, acquired))
                answer["acquiredRecords"] = [
                    {"firstOffset": first, "lastOffset": last, "deliveryCount": count}
                    for first, last, count in acquired
                ]
        fetch.maybe_complete(answers)

    def _to_log_start(self, shared: SharePartition, answers: Answers) -> None:
        partition = shared.partition
        try:
            shared.update_cache_and_offsets(self._logs.earliest_offset(partition))
        except KafkalogError as error:
            self.fetch.erroneous[partition] = error
            self._failed(partition, error)
        else:
            answers[partition] = partition_answer(partition)


def part_of(read: LogRead, acquired: Acquired) -> tuple[int, int]:
    """Returns position and size of the batches that have the acquired records, in what was read."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    start, end, position = 0, 0, 0
    for at, batch in enumerate(read.batches):
        if at and batch.base_offset > last:
            break
        if batch.base_offset <= first:
            start = position
        position += batch.size
        end = position
    return start, end - start
