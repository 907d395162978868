"""Fetch: batches leave as slices of their files, and a fetch that finds too little waits.

    context     the session's partitions, or those of the request       sessions
    read        one slice for each partition, in the session's order    here
    wait        until an append, or the time is over                    waiting_fetches

A request that finds enough, or an error, is answered at once.  Otherwise the logs' bells are armed and the ends of the
logs are looked at again, so that no append is missed.  A session whose logs have not rung since its last answer has
nothing to read: its next request waits at once, and ends with an empty answer that needs no read either.

The handler and the end of a waiting fetch run on the I/O thread.  With many partitions they are generators that go on
after others have had their turn.  Records that only the remote tier has are read in the pool.  A slice keeps its file
open until it is sent.

Source: KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages and readFromLog, DelayedFetch, Partition.readRecords,
DelayedRemoteFetch (4.4.0).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.log.far_read import is_far, read_far
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.errors import KafkalogError, KafkaStorageException, OffsetOutOfRangeException
from kafkalog.server.data_plane import data_of
from kafkalog.server.error_answers import error_response
from kafkalog.server.hosted import leader_epoch_of
from kafkalog.server.request import Encoded, Pending, Request, Values
from kafkalog.server.sessions import (
    FIRST_VERSION_WITH_IDS,
    NOTHING,
    TURN_PARTITIONS,
    FetchContext,
    FetchPartition,
    FetchSession,
    IncrementalContext,
    Key,
    next_epoch,
    size_of,
)
from kafkalog.server.waiting_fetches import Watch

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.segment.types import LogOffsetMetadata
    from kafkalog.server.broker import Broker
    from kafkalog.server.data_plane import DataPlane
    from kafkalog.server.hosted import HostedTopic

CONSUMER = -1  # the replica id of consumers
VERSION_WITH_STORAGE_ERROR, FIRST_FLEXIBLE_VERSION, VERSION_WITH_LEADER = 6, 12, 16
LEVELS = READ_UNCOMMITTED, READ_COMMITTED = 0, 1
COMMITTED, REPLICATED, LOG_END = FetchIsolation.TXN_COMMITTED, FetchIsolation.HIGH_WATERMARK, FetchIsolation.LOG_END
OFFSET_OUT_OF_RANGE = int(Errors.OFFSET_OUT_OF_RANGE)
_LINES = Lines("kafkalog.server")

Entry = tuple[FetchPartition, "UnifiedLog", "LogOffsetMetadata"]  # and the place of the fetch offset
Result = tuple[FetchPartition, Values]
Steps = Generator[None, None, "Values | Pending"]  # yields whenever others should have their turn


def _failed(number: int, error: int) -> Values:
    return {
        "partitionIndex": number,
        "errorCode": int(error),
        "highWatermark": -1,
        "lastStableOffset": -1,
        "logStartOffset": -1,
        "abortedTransactions": None,
        "preferredReadReplica": -1,
        "records": b"",
    }


class Fetch:
    """One request, until it is answered."""

    __slots__ = (
        "_entries",
        "_errors",
        "_far",
        "_has_unmade",
        "_makes_logs",
        "_unknown",
        "broker",
        "context",
        "data",
        "due_ms",
        "has_error",
        "is_committed",
        "is_follower",
        "is_over",
        "isolation",
        "max_bytes",
        "min_bytes",
        "pending",
        "request",
        "size",
        "version",
        "watch",
    )

    def __init__(self, broker: Broker, data: DataPlane, request: Request, context: FetchContext) -> None:
        body = request.body
        self.broker = broker
        self.data = data
        self.request = request
        self.context = context
        self.version = request.api_version
        replica = replica_of(body, self.version)
        self.is_follower = replica >= 0
        self.is_committed = body["isolationLevel"] == READ_COMMITTED and replica == CONSUMER
        self.isolation = COMMITTED if self.is_committed else REPLICATED if replica == CONSUMER else LOG_END
        self.max_bytes = min(body["maxBytes"], data.fetch_max_bytes)
        if not self.is_follower:
            self.max_bytes = min(self.max_bytes, broker.quotas.fetch_bytes_max(request))
        self.min_bytes = min(body["minBytes"], self.max_bytes)
        self.pending: Pending | None = None
        self.watch: Watch | None = None
        self.due_ms = 0
        self.is_over = False
        self.has_error = False
        self.size = 0  # bytes that were read
        self._entries: list[Entry] = []
        self._has_unmade = False  # a partition of an internal topic has no log yet
        self._makes_logs = False  # whether it gets one
        self._unknown: list[Result] = []  # a consumer's partitions of unknown ids: they are told before other errors
        self._errors: list[Result] = []
        self._far: list[tuple[FetchPartition, UnifiedLog, int, bool]] = []  # only their remote tier has these

    # --- reading ---------------------------------------------------------------------------------------

    def read(self) -> list[Result]:
        """Reads all partitions.  Returns a result for each, those that were refused before a read at the end."""
        results = self._begin_read()
        self._read_some(self.context.partitions(), results)
        self._errors[:0] = self._unknown
        return results

    def read_in_turns(self) -> Generator[None, None, list[Result]]:
        """Reads like `read`, and lets others have their turn."""
        results = self._begin_read()
        partitions = iter(list(self.context.partitions()))  # the session may change meanwhile
        while some := list(itertools.islice(partitions, TURN_PARTITIONS)):
            self._read_some(some, results)
            yield
        self._errors[:0] = self._unknown
        return results

    def _is_long(self) -> bool:
        """Returns whether others should have their turn during a read."""
        return len(self.context.partitions()) > TURN_PARTITIONS

    def _begin_read(self) -> list[Result]:
        self.size, self.has_error, self._entries, self._far = 0, False, [], []
        self._unknown, self._errors, self._has_unmade = [], [], False
        return []

    def _read_some(self, partitions: Iterable[FetchPartition], results: list[Result]) -> None:
        limit = max(0, self.max_bytes - self.size)
        at_least_one = not self.size
        may_read = self._may_read()
        for partition in partitions:
            topic = self._topic_of(partition, may_read)
            if topic is None:
                continue
            told = self._read_one(partition, topic, limit, at_least_one)
            records = told["records"]
            size = records.size if type(records) is not bytes else len(records)
            if size:
                at_least_one = False
                self.size += size
            limit = max(0, limit - size)
            results.append((partition, told))

    def has_readable(self) -> bool:
        """Returns whether there is a partition to read: one that exists, and that the client may read."""
        may_read = self._may_read()
        return any(self._topic_of(partition, may_read) is not None for partition in self.context.partitions())

    def _may_read(self) -> dict[str, bool] | None:
        """Returns a memory of which topics the client may read; None if it may read all."""
        return {} if self.broker.authorizer.is_on else None

    def _topic_of(self, partition: FetchPartition, may_read: dict[str, bool] | None) -> HostedTopic | None:
        """Returns a partition's topic.  None if the partition is refused, which is noted."""
        if self.is_follower and may_read is not None:
            allowed = may_read.get("")
            if allowed is None:
                allowed = may_read[""] = self.broker.authorizer.authorize(
                    self.request, "CLUSTER_ACTION", "CLUSTER", "kafka-cluster"
                )
            if not allowed:
                self._refuse(partition, Errors.TOPIC_AUTHORIZATION_FAILED)
                return None
        name = partition.topic
        if name is None:
            self._refuse(partition, Errors.UNKNOWN_TOPIC_ID, None if self.is_follower else self._unknown)
            return None
        if may_read is not None and not self.is_follower:
            allowed = may_read.get(name)
            if allowed is None:
                allowed = may_read[name] = self.broker.authorizer.authorize(self.request, "READ", "TOPIC", name)
            if not allowed:
                self._refuse(partition, Errors.TOPIC_AUTHORIZATION_FAILED)
                return None
        hosted = self.data.hosted
        topic: HostedTopic | None = partition.seen
        if topic is None or topic.version != hosted.version:
            topic = partition.seen = hosted.named(name)
        if topic is None or not 0 <= partition.number < topic.partitions:
            self._refuse(partition, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            return None
        return topic

    def _refuse(self, partition: FetchPartition, error: Errors, among: list[Result] | None = None) -> None:
        told = _failed(partition.number, error) | {"abortedTransactions": []}
        (self._errors if among is None else among).append((partition, told))

    def _read_one(self, partition: FetchPartition, topic: HostedTopic, limit: int, at_least_one: bool) -> Values:
        number, offset = partition.number, partition.fetch_offset
        try:
            if partition.topic_id not in (topic.id, ZERO_UUID):
                return self._fail(partition, Errors.INCONSISTENT_TOPIC_ID)
            log = topic.made_log(number) if self._makes_logs else topic.log(number)
            if log is None:  # nobody has written to this partition of an internal topic
                self._has_unmade = True
                if offset != 0:
                    return self._fail(partition, Errors.OFFSET_OUT_OF_RANGE)
                return self._read_nothing(number, 0, 0, 0)
            if partition.leader_epoch != NOTHING or self.is_follower:
                error = self._wrong_epoch(partition, log)
                if error is not None:
                    return self._fail(partition, error, log)
            high = log.high_watermark_metadata
            unstable = log.first_unstable_offset_metadata
            stable = unstable[0] if unstable is not None and unstable[0] < high[0] else high[0]
            start = log.log_start_offset
            if (
                offset == (stable if self.is_committed else high[0])
                and offset >= start
                and high[1] >= 0
                and self.isolation is not LOG_END
                and partition.last_fetched_epoch == NOTHING
                and not log.local_log.is_closed
            ):
                place = unstable if unstable is not None and offset < high[0] else high
                self._entries.append((partition, log, place))
                return self._read_nothing(number, high[0], stable, start)
            return self._read_log(
                partition, log, (high[0], stable, start), min(partition.max_bytes, limit), at_least_one
            )
        except Exception as problem:
            if not isinstance(problem, KafkalogError):
                _LINES.exception("Error processing fetch of %s-%d from offset %d", topic.name, number, offset)
            return self._fail(partition, code_of(problem))

    def _read_nothing(self, number: int, high_watermark: int, stable: int, start: int) -> Values:
        return {
            "partitionIndex": number,
            "errorCode": 0,
            "highWatermark": high_watermark,
            "lastStableOffset": stable,
            "logStartOffset": start,
            "abortedTransactions": [] if self.is_committed else None,
            "preferredReadReplica": -1,
            "records": b"",
        }

    def _read_log(
        self, partition: FetchPartition, log: UnifiedLog, ends: tuple[int, int, int], max_bytes: int, at_least_one: bool
    ) -> Values:
        told = self._read_nothing(partition.number, *ends)
        offset = partition.fetch_offset
        if partition.last_fetched_epoch != NOTHING:
            diverging = self._diverging(partition, log, ends[2])
            if diverging is not None:
                self.has_error = True
                told["divergingEpoch"] = diverging
                told["abortedTransactions"] = None
                return told
        try:
            found = log.read(offset, max_bytes, self.isolation, at_least_one)
        except KafkaStorageException:
            moved = self.data.hosted.log_now(log.topic_partition)
            if moved is None or moved is log:
                raise
            log = moved
            found = log.read(offset, max_bytes, self.isolation, at_least_one)
        except OffsetOutOfRangeException:
            if is_far(log, offset):
                self._far.append((partition, log, max_bytes, at_least_one))
                return told
            raise
        self._entries.append((partition, log, found.fetch_offset_metadata))
        if not found.first_entry_incomplete:
            told["records"] = found.records if found.records.size else b""
        if found.aborted_transactions is not None:
            told["abortedTransactions"] = [
                {"producerId": each.producer_id, "firstOffset": each.first_offset}
                for each in found.aborted_transactions
            ]
        return told

    def _wrong_epoch(self, partition: FetchPartition, log: UnifiedLog) -> Errors | None:
        current, asked = leader_epoch_of(log), partition.leader_epoch
        if asked != NOTHING and current != asked:
            return Errors.FENCED_LEADER_EPOCH if current > asked else Errors.UNKNOWN_LEADER_EPOCH
        if self.is_follower:  # no partition has a second replica
            return Errors.NOT_LEADER_OR_FOLLOWER if asked == NOTHING else Errors.UNKNOWN_LEADER_EPOCH
        return None

    def _diverging(self, partition: FetchPartition, log: UnifiedLog, start: int) -> Values | None:
        """Returns where the client's log leaves this one; None if it does not.  OffsetOutOfRangeException."""
        epoch, offset = partition.last_fetched_epoch, partition.fetch_offset
        end = log.end_offset_for_epoch(epoch)
        if end is None or offset < start:
            raise OffsetOutOfRangeException(f"offset {offset} of epoch {epoch} is not in {log.topic_partition}")
        if end.epoch < epoch or end.offset < offset:
            return {"epoch": end.epoch, "endOffset": end.offset}
        return None

    def _fail(self, partition: FetchPartition, error: Errors, log: UnifiedLog | None = None) -> Values:
        self.has_error = True
        if error is Errors.KAFKA_STORAGE_ERROR and self.version < VERSION_WITH_STORAGE_ERROR:
            error = Errors.NOT_LEADER_OR_FOLLOWER
        told = _failed(partition.number, error)
        if self.version >= VERSION_WITH_LEADER and error in (Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH):
            told["currentLeader"] = {"leaderId": self.broker.node_id, "leaderEpoch": leader_epoch_of(log)}
        return told

    # --- answering -------------------------------------------------------------------------------------

    def respond(self, results: Sequence[Result]) -> Values:
        """Returns the answer for results of `read`."""
        if self._has_nameless_before_others() and not self.context.is_overtaken():
            return error_response(self.request, Errors.UNKNOWN_SERVER_ERROR) or {}
        quotas = self.broker.quotas
        throttle_ms = quotas.fetch(self.request, self.size)
        if throttle_ms:
            quotas.unrecord_fetch(self.request, self.size)
            return self.context.throttled() | {"throttleTimeMs": throttle_ms}
        if self.data.traffic is not None:
            self._count(results)
        answer = self.context.answer([*results, *self._errors] if self._errors else results)
        if (
            self.version >= VERSION_WITH_LEADER
            and not self.is_follower
            and any("currentLeader" in told for _, told in results)
        ):
            place = self.broker.advertised_to(self.request.connection)
            if place is not None:
                answer["nodeEndpoints"] = [
                    {"nodeId": self.broker.node_id, "host": place.host, "port": place.port, "rack": self.broker.rack}
                ]
        return answer

    def _has_nameless_before_others(self) -> bool:
        """Returns whether a partition without an id and a name is followed by another.  Kafka fails at such an answer.

        A version without ids has names.
        """
        return any(each.topic is None and each.topic_id == ZERO_UUID for each, _ in self._errors[:-1])

    def _count(self, results: Sequence[Result]) -> None:
        """Marks the meters of the topics."""
        traffic = self.data.traffic
        assert traffic is not None
        sums: dict[str, list[int]] = {}
        for partition, told in results:
            assert partition.topic is not None
            of = sums.setdefault(partition.topic, [0, 0, 0])
            of[0] += size_of(told["records"])
            of[1] += 1
            of[2] += told["errorCode"] == -1
        for topic, (size, requests, failed) in sums.items():
            traffic.of(topic).fetched(size, requests, failed)

    def answer(self) -> Steps:
        """Answers, now or later."""
        body = self.request.body
        max_wait_ms = body["maxWaitMs"]
        if body["isolationLevel"] not in LEVELS and self.has_readable():  # Kafka looks at the level only then
            return error_response(self.request, Errors.UNKNOWN_SERVER_ERROR) or {}
        is_long = self._is_long()
        results = (yield from self.read_in_turns()) if is_long else self.read()
        if self._has_unmade and self._may_wait(results):  # only a log has waiters
            self._makes_logs = True
            results = (yield from self.read_in_turns()) if is_long else self.read()
        if self._may_wait(results):
            watch = self._watch(results)
            if not self.check():
                return self._wait(watch, max_wait_ms)
            # One more read, whatever it finds: the request's limits may let less be read than is there.
            watch.is_quiet = False
            try:
                results = (yield from self.read_in_turns()) if is_long else self.read()
            except GeneratorExit:
                self._leave()
                raise
        if self._far:
            return self._read_far(results)
        answer = self.respond(results)
        self._leave()
        return answer

    def _may_wait(self, results: Sequence[Result]) -> bool:
        if self.request.body["maxWaitMs"] <= 0 or not results or self._far or self.has_error:
            return False
        return bool(self.size < self.min_bytes) and not self._is_overtaken()

    def _is_overtaken(self) -> bool:
        """Returns whether a later request of the session came, or the session ended, while others had their turn."""
        session = self.context.session
        return session is not None and (
            self.context.is_overtaken() or self.data.fetches.cache.get(session.id) is not session
        )

    # --- waiting ---------------------------------------------------------------------------------------

    def _watch(self, results: Sequence[Result]) -> Watch:
        """Arms the bells of the partitions' logs."""
        session = self.context.session
        watch = self.watch or (session.watch if session is not None else None) or Watch(self.data.waiting)
        self.watch = watch
        watch.seen = self._entries
        watch.version = (self.data.hosted.version, self.isolation)
        watch.is_quiet = (
            session is not None
            and not self._errors
            and not self.size
            and not any(partition.has_news(told) for partition, told in results)
        )
        watch.over(log for _, log, _ in self._entries)
        if watch.is_quiet:  # unless a log has changed between its read and this
            known = {partition: told["highWatermark"] for partition, told in results}
            watch.is_quiet = all(log.high_watermark_metadata[0] == known[each] for each, log, _ in self._entries)
        if session is not None:
            session.watch = watch
        return watch

    def _wait(self, watch: Watch, max_wait_ms: int) -> Pending:
        self.watch = watch
        pending = self.pending = Pending(is_waiting=True)
        pending.on_close(self._abandon)
        self.data.waiting.wait(watch, self, max_wait_ms)
        return pending

    def check(self) -> bool:
        """Returns whether the fetch may be finished (DelayedFetch.tryComplete)."""
        watch = self.watch
        assert watch is not None
        is_committed, available = self.is_committed, 0
        hosted = self.data.hosted
        if watch.version != (hosted.version, self.isolation):
            if not all(hosted.is_current(log) for _, log, _ in watch.seen):
                return True  # a topic was deleted, or a log has moved
            watch.version = (hosted.version, self.isolation)
        for partition, log, place in watch.seen:
            if log.local_log.is_closed:
                return True
            end: Any = log.high_watermark_metadata if self.isolation is not LOG_END else log.log_end_offset_metadata
            if is_committed:
                unstable = log.first_unstable_offset_metadata
                if unstable is not None and unstable[0] < end[0]:
                    end = unstable
            if place[0] == end[0]:
                continue
            if place[0] > end[0] or place[1] != end[1] or place[1] < 0:
                return True  # it was truncated, or there is at least the rest of a segment
            available += min(end[2] - place[2], partition.max_bytes)
        return available > 0 and available >= self.min_bytes

    def finish(self) -> None:
        """Reads and answers: there is enough, or the time is over."""
        assert self.pending is not None
        _go_on(self.broker, self._finished(), self.pending)

    def _finished(self) -> Steps:
        is_far = False
        try:
            if self._is_unchanged():
                assert isinstance(self.context, IncrementalContext)
                return self.context.unchanged()
            results = (yield from self.read_in_turns()) if self._is_long() else self.read()
            if self.watch is not None:
                self.watch.is_quiet = False
            is_far = bool(self._far)
            return self._read_far(results) if is_far else self.respond(results)
        finally:
            if not is_far:
                self._leave()

    def _is_unchanged(self) -> bool:
        watch = self.watch
        if watch is None or not watch.is_quiet or not isinstance(self.context, IncrementalContext):
            return False
        if watch.version != (self.data.hosted.version, self.isolation):
            return False
        return all(log.log_start_offset == partition.log_start_offset for partition, log, _ in watch.seen)

    def _leave(self) -> None:
        """Drops the watch of a fetch without a session."""
        watch, session = self.watch, self.context.session
        if watch is not None and (session is None or session.watch is not watch):
            watch.drop()

    def _abandon(self) -> None:
        """Its connection has ended."""
        if self.watch is not None and self.watch.fetch is self:
            self.data.waiting.end(self.watch)
        self._leave()

    # --- the remote tier -------------------------------------------------------------------------------

    def _read_far(self, results: list[Result]) -> Pending:
        pending = self.pending = self.pending or Pending(is_waiting=True)
        far = self._far

        def read() -> None:
            for partition, log, max_bytes, at_least_one in far:
                told = next(told for each, told in results if each is partition)
                try:
                    told["records"], aborted = read_far(log, partition.fetch_offset, max_bytes, at_least_one)
                    if self.is_committed:
                        told["abortedTransactions"] = [
                            {"producerId": each.producer_id, "firstOffset": each.first_offset} for each in aborted
                        ]
                except Exception as error:
                    if not isinstance(error, KafkalogError):
                        _LINES.exception("Error while reading %s from its remote tier", log.topic_partition)
                    told |= self._fail(partition, code_of(error))
            self.broker.call_soon(answer)

        def answer() -> None:
            try:
                pending.complete(self.respond(results))
            except Exception as error:
                pending.fail(error)
            self._leave()

        self.broker.submit(read)
        return pending


def replica_of(body: Values, version: int) -> int:
    """Returns the id of the follower that fetches; -1 for a consumer."""
    return int(body["replicaState"]["replicaId"] if version >= 15 else body["replicaId"])


class QuietFetch:
    """A request of a session that has nothing to read: it names no partition, and none of its logs has rung since the
    last answer.  It becomes a Fetch if that changes."""

    __slots__ = ("_broker", "_data", "_request", "_session", "_watch", "due_ms", "pending")

    def __init__(self, broker: Broker, data: DataPlane, request: Request, session: FetchSession) -> None:
        self._broker = broker
        self._data = data
        self._request = request
        self._session = session
        self._watch: Watch = session.watch
        self.due_ms = 0
        self.pending = Pending(is_waiting=True)
        self.pending.on_close(self._abandon)

    def _loud(self) -> Fetch:
        context = IncrementalContext(self._session, self._request.body["sessionEpoch"])
        fetch = Fetch(self._broker, self._data, self._request, context)
        fetch.watch, fetch.pending = self._watch, self.pending
        return fetch

    def check(self) -> bool:
        """Returns whether it may be finished."""
        return self._loud().check()

    def finish(self) -> None:
        """Answers: there is enough, or the time is over."""
        session, watch, request = self._session, self._watch, self._request
        if (
            watch.is_quiet
            and session.epoch == next_epoch(request.body["sessionEpoch"])
            and watch.version[0] == self._data.hosted.version
            and all(log.log_start_offset == partition.log_start_offset for partition, log, _ in watch.seen)
        ):
            self.pending.complete(Encoded([_nothing_new(session.id, request.api_version)]))
            if session.watch is not watch:
                watch.drop()
        else:
            self._loud().finish()

    def _abandon(self) -> None:
        if self._watch.fetch is self:
            self._data.waiting.end(self._watch)
        if self._session.watch is not self._watch:
            self._watch.drop()


def _nothing_new(session_id: int, version: int) -> bytes:
    """Returns an answer of a session without partitions: no throttle time, no error."""
    end = b"\1\0" if version >= FIRST_FLEXIBLE_VERSION else b"\0\0\0\0"
    return b"\0\0\0\0\0\0" + session_id.to_bytes(4, "big") + end


def _quiet(broker: Broker, data: DataPlane, request: Request) -> Pending | None:
    """Lets a request of a quiet session wait; None if the request may have something to read."""
    body = request.body
    if body["topics"] or body["forgottenTopicsData"] or broker.authorizer.is_on:
        return None
    session = data.fetches.cache.get(body["sessionId"])
    if session is None or session.watch is None or not session.watch.is_quiet:
        return None
    epoch, isolation = body["sessionEpoch"], COMMITTED if body["isolationLevel"] == READ_COMMITTED else REPLICATED
    if (
        epoch != session.epoch
        or session.uses_ids is not (request.api_version >= FIRST_VERSION_WITH_IDS)
        or body["maxWaitMs"] <= 0
        or body["minBytes"] <= 0
        or body["maxBytes"] <= 0
        or session.watch.version != (data.hosted.version, isolation)
        or replica_of(body, request.api_version) != CONSUMER
    ):
        return None
    data.fetches.go_on(session)
    fetch = QuietFetch(broker, data, request, session)
    data.waiting.wait(session.watch, fetch, body["maxWaitMs"])
    return fetch.pending


def handle_fetch(broker: Broker, request: Request) -> Values | Pending:
    """Reads the partitions of a request or of its session."""
    data, body, version = data_of(broker), request.body, request.api_version
    pending = _quiet(broker, data, request) if body["isolationLevel"] in LEVELS else None
    if pending is not None:
        return pending
    if request.is_large:
        steps = _fetched(broker, data, request)
    else:
        context = data.fetches.context(body, version, is_follower=replica_of(body, version) >= 0)
        steps = Fetch(broker, data, request, context).answer()
    try:
        next(steps)
    except StopIteration as done:
        found: Values | Pending = done.value
        return found
    pending = Pending(is_waiting=True)
    broker.call_soon(partial(_go_on, broker, steps, pending))
    return pending


def _fetched(broker: Broker, data: DataPlane, request: Request) -> Steps:
    body, version = request.body, request.api_version
    asked: dict[Key, FetchPartition] = {}
    yield from data.fetches.asked_in_turns(body, version, asked)
    context = data.fetches.context(body, version, is_follower=replica_of(body, version) >= 0, asked=asked)
    return (yield from Fetch(broker, data, request, context).answer())


def _go_on(broker: Broker, steps: Steps, pending: Pending) -> None:
    """Runs the steps, with turns of others between them, and completes `pending` with the result."""
    if pending.is_ended:
        steps.close()
        return
    try:
        next(steps)
    except StopIteration as done:
        result: Values | Pending = done.value
        if not isinstance(result, Pending):
            pending.complete(result)
        elif result is not pending:
            pending.on_close(partial(_abandon, result))
            result.deliver_to(partial(_hand_on, pending))
    except Exception as error:
        pending.fail(error)
    else:
        broker.call_soon(partial(_go_on, broker, steps, pending))


def _hand_on(pending: Pending, told: Values | Encoded | BaseException | None) -> None:
    if isinstance(told, BaseException):
        pending.fail(told)
    else:
        pending.complete(told)


def _abandon(waits: Pending) -> None:
    for run in waits.abandon():
        run()


HANDLERS = {ApiKeys.FETCH: handle_fetch}
