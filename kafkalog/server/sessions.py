"""Fetch sessions (KIP-227): the partitions that a client fetches, so that its next requests name only what has changed.

    context = sessions.context(request, topics)          what this request reads
    for partition in context.partitions(): ...
    answer = context.answer(results)                     which partitions the client is told of

There are four contexts, as in Kafka: a request without a session, a full one that may begin a session, an incremental
one, and one that is refused.  A session answers with the partitions that have records or whose offsets have changed;
those that had records go to the end, so that each gets its turn (KIP-74).

A session that was not used for two minutes makes room for a new one, and one that is older than that for one with
more partitions.  Kafka divides the slots among eight shards; here they are one cache with as many slots.

Not thread-safe: the I/O thread owns it.  Knows no log.  Source: FetchManager, FetchContext, FetchSession,
FetchSessionCacheShard (4.4.0).
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, Protocol

from kafkalog._limits import INT_MAX
from kafkalog.engine.files import Clock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.server.request import Values

INVALID_SESSION_ID, INITIAL_EPOCH, FINAL_EPOCH = 0, 0, -1
FIRST_VERSION_WITH_IDS = 13
SHARDS = 8
EVICTION_MS = 120_000
NOTHING = -1
TURN_PARTITIONS = 500  # that one request may look at before others have their turn

Key = tuple[str, int]  # the topic's id, or its name in a version without ids; the partition


class NamesTopics(Protocol):
    """The names of topics by their ids."""

    def name_of(self, topic_id: str) -> str | None: ...


class FetchPartition:
    """One partition that is fetched: what the client asked for, and in a session what it was told last.

    `topic` is None while no topic has the id.  `leader_epoch` and `last_fetched_epoch` are -1 if the client names none.
    `seen` is the reader's.
    """

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "number",
        "seen",
        "topic",
        "topic_id",
    )

    def __init__(self, key: Key, topic: str | None, topic_id: str, number: int) -> None:
        self.key = key
        self.topic = topic
        self.topic_id = topic_id
        self.number = number
        self.max_bytes = NOTHING
        self.fetch_offset = NOTHING
        self.leader_epoch = NOTHING
        self.last_fetched_epoch = NOTHING
        self.high_watermark = NOTHING
        self.log_start_offset = NOTHING
        self.seen: Any = None

    def ask(self, asked: Values) -> None:
        """Takes what a request asks for."""
        self.max_bytes = asked["partitionMaxBytes"]
        self.fetch_offset = asked["fetchOffset"]
        self.leader_epoch = asked["currentLeaderEpoch"]
        self.last_fetched_epoch = asked["lastFetchedEpoch"]

    def ask_as(self, other: FetchPartition) -> None:
        """Takes what another one was asked for."""
        self.max_bytes, self.fetch_offset = other.max_bytes, other.fetch_offset
        self.leader_epoch, self.last_fetched_epoch = other.leader_epoch, other.last_fetched_epoch

    def has_news(self, told: Values) -> bool:
        """Returns whether the client does not know the offsets of a result yet."""
        known = (self.high_watermark, self.log_start_offset)
        return known != (told["highWatermark"], told["logStartOffset"])

    def tell(self, told: Values) -> bool:
        """Returns whether the client must be told of a result, and remembers what it is told."""
        records = told["records"]
        must = records is not None and size_of(records) > 0
        if self.high_watermark != told["highWatermark"]:
            must = True
            self.high_watermark = told["highWatermark"]
        if self.log_start_offset != told["logStartOffset"]:
            must = True
            self.log_start_offset = told["logStartOffset"]
        if told["errorCode"]:
            self.high_watermark = NOTHING
            return True
        return must or "divergingEpoch" in told or bool(told["preferredReadReplica"] != NOTHING)


def size_of(records: Any) -> int:
    """Returns the bytes of a result's records: a slice of a file, or bytes."""
    size = getattr(records, "size", None)
    return len(records) if size is None else int(size)


class FetchSession:
    """A session: its partitions in the order in which they are read, and when it was used."""

    __slots__ = (
        "cached_size",
        "created_ms",
        "epoch",
        "evictable",
        "id",
        "is_privileged",
        "partitions",
        "used_ms",
        "uses_ids",
        "watch",
    )

    def __init__(self, session_id: int, partitions: dict[Key, FetchPartition], now_ms: int) -> None:
        self.id = session_id
        self.partitions = partitions
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.is_privileged = False  # a follower's
        self.uses_ids = False
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.cached_size = 0
        self.evictable = (False, False)  # by every new session, by a follower's
        self.watch: Any = None  # the session's Watch, between its requests too

    def is_changed(self) -> None:
        """Says that its partitions, or what is asked of them, have changed."""
        if self.watch is not None:
            self.watch.is_quiet = False

    def rank(self) -> tuple[bool, int, int]:
        """Returns its rank among the sessions that may be evicted; the lowest goes first."""
        return (self.is_privileged, self.cached_size, self.id)


def next_epoch(epoch: int) -> int:
    """Returns the epoch of the request after one with `epoch`."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == INT_MAX else epoch + 1


class FetchSessionCache:
    """The sessions of a server, at most `slots`; a number that is no multiple of eight is rounded down."""

    def __init__(self, slots: int, eviction_ms: int = EVICTION_MS) -> None:
        self.slots = slots // SHARDS * SHARDS
        self._eviction_ms = eviction_ms
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # the least recently used first
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        """Returns a session, or None."""
        return self._sessions.get(session_id)

    def remove(self, session: FetchSession) -> None:
        """Forgets a session."""
        if self._sessions.pop(session.id, None) is not None:
            self.partition_count -= session.cached_size
        watch, session.watch = session.watch, None
        if watch is not None and watch.fetch is None:
            watch.drop()

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Notes that a session is used, and how many partitions it has now."""
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        self.partition_count += len(session.partitions) - session.cached_size
        session.cached_size = len(session.partitions)
        is_old = now_ms - session.created_ms > self._eviction_ms
        session.evictable = (is_old, is_old or not session.is_privileged)

    def create(
        self, partitions: dict[Key, FetchPartition], now_ms: int, *, is_privileged: bool, uses_ids: bool
    ) -> FetchSession | None:
        """Begins a session; None if there is no room."""
        if len(self._sessions) >= self.slots and not self._evict(is_privileged, len(partitions), now_ms):
            return None
        session = FetchSession(self._new_id(), partitions, now_ms)
        session.is_privileged, session.uses_ids = is_privileged, uses_ids
        self._sessions[session.id] = session
        self.touch(session, now_ms)
        return session

    def _new_id(self) -> int:
        while True:
            found = secrets.randbelow(INT_MAX - 1) + 1
            if found not in self._sessions:
                return found

    def _evict(self, is_privileged: bool, size: int, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms <= self._eviction_ms:
            lowest = min(
                (each for each in self._sessions.values() if each.evictable[is_privileged]),
                key=FetchSession.rank,
                default=None,
            )
            if lowest is None or (is_privileged, size, 0) < lowest.rank():
                return False
            oldest = lowest
        self.remove(oldest)
        self.evictions += 1
        return True


# --- contexts -------------------------------------------------------------------------------------------


class FetchContext:
    """Says which partitions one request reads, and how it is answered.  This one has no session."""

    session: FetchSession | None = None

    def __init__(self, partitions: dict[Key, FetchPartition]) -> None:
        self._partitions = partitions

    def partitions(self) -> Collection[FetchPartition]:
        """Returns the partitions in the order in which they are read."""
        return self._partitions.values()

    def answer(self, results: Sequence[tuple[FetchPartition, Values]]) -> Values:
        """Returns the answer for the results of all partitions."""
        return response(Errors.NONE, INVALID_SESSION_ID, results)

    def throttled(self) -> Values:
        """Returns an answer without partitions, for a client that must wait."""
        return response(Errors.NONE, INVALID_SESSION_ID, ())

    def is_overtaken(self) -> bool:
        """Returns whether a later request of the session has come meanwhile."""
        return False


class RefusedContext(FetchContext):
    """A request of an unknown session, or out of order."""

    def __init__(self, error: Errors) -> None:
        super().__init__({})
        self._error = error

    def answer(self, results: Sequence[tuple[FetchPartition, Values]]) -> Values:
        return response(self._error, INVALID_SESSION_ID, ())


class FullContext(FetchContext):
    """A request that names all its partitions, and wants a session."""

    def __init__(
        self,
        partitions: dict[Key, FetchPartition],
        cache: FetchSessionCache,
        clock: Clock,
        *,
        is_follower: bool,
        uses_ids: bool,
    ) -> None:
        super().__init__(partitions)
        self._cache = cache
        self._clock = clock
        self._is_follower = is_follower
        self._uses_ids = uses_ids

    def answer(self, results: Sequence[tuple[FetchPartition, Values]]) -> Values:
        kept: dict[Key, FetchPartition] = {}
        for partition, told in results:
            partition.high_watermark = told["highWatermark"]
            partition.log_start_offset = told["logStartOffset"]
            kept[partition.key] = partition
        session = self._cache.create(
            kept, self._clock.milliseconds(), is_privileged=self._is_follower, uses_ids=self._uses_ids
        )
        self.session = session
        return response(Errors.NONE, INVALID_SESSION_ID if session is None else session.id, results)


class IncrementalContext(FetchContext):
    """A request of a session."""

    session: FetchSession

    def __init__(self, session: FetchSession, epoch: int) -> None:
        super().__init__(session.partitions)
        self.session = session
        self._expected_epoch = next_epoch(epoch)

    def is_overtaken(self) -> bool:
        return self.session.epoch != self._expected_epoch

    def answer(self, results: Sequence[tuple[FetchPartition, Values]]) -> Values:
        session = self.session
        if self.is_overtaken():
            return response(Errors.INVALID_FETCH_SESSION_EPOCH, session.id, ())
        chosen = []
        partitions = session.partitions
        for each in results:
            partition = partitions.get(each[0].key)
            if partition is not None and partition.tell(each[1]):
                chosen.append(each)
                if size_of(each[1]["records"]) > 0:
                    del partitions[partition.key]
                    partitions[partition.key] = partition  # to the end
        return response(Errors.NONE, session.id, chosen)

    def unchanged(self) -> Values:
        """Returns the answer if no result differs from what the client knows."""
        error = Errors.INVALID_FETCH_SESSION_EPOCH if self.is_overtaken() else Errors.NONE
        return response(error, self.session.id, ())

    throttled = unchanged


def response(error: Errors, session_id: int, results: Iterable[tuple[FetchPartition, Values]]) -> Values:
    """Returns a FetchResponse.  Partitions of a topic that follow one another are listed together."""
    topics: list[Values] = []
    key = None
    told: list[Values] = []
    for partition, values in results:
        if partition.key[0] != key:
            key, told = partition.key[0], []
            topics.append({"topic": partition.topic or "", "topicId": partition.topic_id, "partitions": told})
        told.append(values)
    return {"throttleTimeMs": 0, "errorCode": int(error), "sessionId": session_id, "responses": topics}


# --- requests -------------------------------------------------------------------------------------------


class FetchManager:
    """Makes the context of each request."""

    def __init__(self, cache: FetchSessionCache, clock: Clock, topics: NamesTopics) -> None:
        self.cache = cache
        self._clock = clock
        self._topics = topics

    def context(
        self, body: Values, version: int, *, is_follower: bool, asked: dict[Key, FetchPartition] | None = None
    ) -> FetchContext:
        """Returns the context of a request.  A session's partitions are changed at once.

        `asked` has the partitions that the request names, if `asked_in_turns` has made them.
        """
        session_id, epoch = body["sessionId"], body["sessionEpoch"]
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != INVALID_SESSION_ID:
                ended = self.cache.get(session_id)
                if ended is not None:
                    self.cache.remove(ended)
            partitions = self._asked(body, version) if asked is None else asked
            if epoch == FINAL_EPOCH:
                return FetchContext(partitions)
            return FullContext(
                partitions, self.cache, self._clock, is_follower=is_follower, uses_ids=version >= FIRST_VERSION_WITH_IDS
            )
        session = self.cache.get(session_id)
        if session is None:
            return RefusedContext(Errors.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return RefusedContext(Errors.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_ids is not (version >= FIRST_VERSION_WITH_IDS):
            return RefusedContext(Errors.FETCH_SESSION_TOPIC_ID_ERROR)
        topics, forgotten = body["topics"], body["forgottenTopicsData"]
        if topics or forgotten:
            session.is_changed()
            for key, partition in (self._asked(body, version) if asked is None else asked).items():
                found = session.partitions.setdefault(key, partition)
                if found is not partition:
                    found.ask_as(partition)
            for each in forgotten:
                topic = each["topicId"] if session.uses_ids else each["topic"]
                for number in each["partitions"]:
                    session.partitions.pop((topic, number), None)
            if not session.partitions:
                self.cache.remove(session)
                return FetchContext(self._asked(body, version) if asked is None else asked)
        self.go_on(session)
        if session.uses_ids:
            for partition in session.partitions.values():
                if partition.topic is None:
                    partition.topic = self._topics.name_of(partition.topic_id)
        return IncrementalContext(session, epoch)

    def go_on(self, session: FetchSession) -> None:
        """Notes a request of a session."""
        self.cache.touch(session, self._clock.milliseconds())
        session.epoch = next_epoch(session.epoch)

    def _asked(self, body: Values, version: int) -> dict[Key, FetchPartition]:
        into: dict[Key, FetchPartition] = {}
        for _ in self.asked_in_turns(body, version, into):
            pass
        return into

    def asked_in_turns(
        self, body: Values, version: int, into: dict[Key, FetchPartition]
    ) -> Generator[None, None, None]:
        """Adds the partitions that a request names.  Yields whenever others should have their turn."""
        has_ids = version >= FIRST_VERSION_WITH_IDS
        count = 0
        for topic in body["topics"]:
            topic_id = topic["topicId"] if has_ids else ZERO_UUID
            name = topic["topic"] if not has_ids else self._topics.name_of(topic_id)
            for asked in topic["partitions"]:
                count += 1
                if not count % TURN_PARTITIONS:
                    yield
                number = asked["partition"]
                key = (topic_id if has_ids else topic["topic"], number)
                found = into.get(key)
                if found is None:
                    found = into[key] = FetchPartition(key, name, topic_id, number)
                found.ask(asked)
