"""Share sessions: the partitions that a member fetches, so that its next requests name only what has changed.

    cache.maybe_create("mail", "worker-1", partitions, connection)    epoch 0: a new session
    session = cache.get(("mail", "worker-1"))                         epoch 1, 2, ...: the same one

A session ends with epoch -1, or with its connection: then its member's records are released, and when a group's last
session is gone its partitions are forgotten. Thread-safe. Source: ShareSession, ShareSessionCache,
CachedSharePartition, ShareSessionContext, ShareRequestMetadata (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Protocol

from kafkalog._limits import INT_MAX
from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.messages import Values

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
SessionKey = tuple[str, str]  # group, member
PartitionKey = tuple[str, int]  # topic id, partition


def next_epoch(epoch: int) -> int:
    """Returns the epoch of the next request."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == INT_MAX else epoch + 1


class ShareGroupListener(Protocol):
    """Listens for members and groups that are gone."""

    def on_member_leave(self, group: str, member: str) -> None: ...

    def on_group_empty(self, group: str) -> None: ...


class CachedSharePartition:
    """A partition of a session. `requires_update`: the next answer mentions it, even without records."""

    __slots__ = ("partition", "requires_update")

    def __init__(self, partition: TopicIdPartition, *, requires_update: bool) -> None:
        self.partition = partition
        self.requires_update = requires_update

    def must_respond(self, answer: Values, records_size: int) -> bool:
        """Returns whether an answer mentions the partition, and notes that it did."""
        found = records_size > 0 or self.requires_update or answer["errorCode"] != 0
        self.requires_update = answer["errorCode"] != 0
        return found


class ShareSession:
    """A member's session: its partitions in the order of their turns, and the epoch that its next request has."""

    __slots__ = ("connection", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, partitions: Iterable[TopicIdPartition], connection: Hashable) -> None:
        self.key = key
        self.connection = connection
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.partitions: dict[PartitionKey, CachedSharePartition] = {
            each[:2]: CachedSharePartition(each, requires_update=False) for each in partitions
        }

    def update(self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]) -> None:
        """Adds and removes partitions."""
        for each in added:
            if each[:2] not in self.partitions:
                self.partitions[each[:2]] = CachedSharePartition(each, requires_update=True)
        for each in forgotten:
            self.partitions.pop(each[:2], None)

    def select(self, answers: dict[TopicIdPartition, Values]) -> dict[TopicIdPartition, Values]:
        """Returns the answers that the client is told. Partitions with records go to the end, for the next turn."""
        told = {}
        for partition, answer in answers.items():
            cached = self.partitions.get(partition[:2])
            if cached is None:
                continue
            size = size_of(answer["records"])
            if cached.must_respond(answer, size):
                told[partition] = answer
                if size:
                    self.partitions[partition[:2]] = self.partitions.pop(partition[:2])
        return told


def size_of(records: object) -> int:
    """Returns the bytes of a `records` field, which may be a slice of a file."""
    size = getattr(records, "size", None)
    return size if size is not None else len(records) if records else 0  # type: ignore[arg-type]


class ShareSessionContext:
    """The partitions that a fetch reads, and its answer: its own partitions at first, then the session's."""

    def __init__(
        self, epoch: int, partitions: Iterable[TopicIdPartition] = (), session: ShareSession | None = None
    ) -> None:
        self._epoch = epoch
        self._partitions = list(partitions)
        self._session = session

    def partitions(self) -> list[TopicIdPartition]:
        """Returns the partitions to read; those without a topic's name are unknown."""
        if self._session is None:
            return self._partitions
        return [each.partition for each in self._session.partitions.values()]

    def answer(self, answers: dict[TopicIdPartition, Values]) -> tuple[int, dict[TopicIdPartition, Values]]:
        """Returns the response's error code, and what it tells of the partitions."""
        if self._session is None:
            return 0, answers
        if self._session.epoch != next_epoch(self._epoch):
            return int(Errors.INVALID_SHARE_SESSION_EPOCH), {}
        return 0, self._session.select(answers)


class FinalContext(ShareSessionContext):
    """The context of a request that ends a session: it reads nothing."""

    def __init__(self) -> None:
        super().__init__(FINAL_EPOCH)


class ShareSessionCache:
    """The share sessions of a broker, at most `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        self.lock = threading.RLock()
        self.listener: ShareGroupListener | None = None
        self._max_entries = max_entries
        self._sessions: dict[SessionKey, ShareSession] = {}  # guarded by lock, like the rest
        self._members: dict[str, int] = {}  # sessions of each group
        self._by_connection: dict[Hashable, tuple[SessionKey, ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        """Returns a member's session."""
        with self.lock:
            return self._sessions.get(key)

    def maybe_create(
        self, key: SessionKey, partitions: Iterable[TopicIdPartition], connection: Hashable
    ) -> ShareSession | None:
        """Makes a session; None if there are too many."""
        with self.lock:
            if len(self._sessions) >= self._max_entries:
                return None
            made = self._sessions[key] = ShareSession(key, partitions, connection)
            self._members[key[0]] = self._members.get(key[0], 0) + 1
            self._by_connection[connection] = key, made
            return made

    def remove(self, key: SessionKey) -> ShareSession | None:
        """Ends a member's session, and returns it."""
        with self.lock:
            found = self._sessions.pop(key, None)
            if found is not None:
                self._members[key[0]] -= 1
            return found

    def members(self, group: str) -> int:
        """Returns the number of a group's sessions."""
        return self._members.get(group, 0)

    def on_disconnect(self, connection: Hashable) -> None:
        """Ends the session of a connection that has ended."""
        with self.lock:
            found = self._by_connection.pop(connection, None)
        if found is None or self.listener is None:
            return
        key, session = found
        if self.get(key) is session:
            self.listener.on_member_leave(*key)
            self.remove(key)
        with self.lock:
            is_empty = not self._members.get(key[0])
            if is_empty:
                self._members.pop(key[0], None)
        if is_empty:
            self.listener.on_group_empty(key[0])
