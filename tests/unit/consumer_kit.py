"""A partition of `__consumer_offsets` with consumer groups, a clock that tests move, and topics that they create."""

from __future__ import annotations

import base64
import hashlib
from concurrent.futures import Future
from typing import Any

from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_groups import ConsumerGroups
from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.messages import Values
from tests.unit.coordinator_kit import Disk

GROUP = "billing"


def topic_id(name: str) -> str:
    """A topic's id, the same in every run."""
    return base64.urlsafe_b64encode(hashlib.md5(name.encode()).digest()).decode()[:22]


class Topics:
    """Topics that a test creates and deletes."""

    def __init__(self, **partitions: int) -> None:
        self.version = 1
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int, id: str | None = None) -> None:
        """Creates a topic, or adds partitions."""
        self.version += 1
        self._partitions[name] = partitions
        self._ids[name] = id or topic_id(f"{name}-{self.version}")

    def delete(self, name: str) -> None:
        self.version += 1
        del self._partitions[name], self._ids[name]

    def topic_id(self, name: str) -> str | None:
        return self._ids.get(name)

    def name(self, topic_id: str) -> str | None:
        return next((name for name, each in self._ids.items() if each == topic_id), None)

    def partitions(self, name: str) -> int:
        return self._partitions.get(name, 0)

    def names(self) -> list[str]:
        return list(self._partitions)


class Configs(dict[str, dict[str, str]]):
    """Settings of groups."""

    def of(self, group: str) -> dict[str, str]:
        return self.get(group, {})


class Kit:
    """One coordinator over one partition in memory."""

    def __init__(self, topics: Topics | None = None, settings: GroupSettings | None = None, **log: Any) -> None:
        self.clock = log.pop("clock", None) or ManualClock(1_700_000_000_000)
        self.topics = topics if topics is not None else Topics(orders=4)
        self.configs = Configs()
        self.timers = Timers(self.clock)
        self.log = log.pop("log", None) or Disk().log("__consumer_offsets-0")
        self.settings = settings or GroupSettings()
        self.open()

    def open(self) -> None:
        """Reads the log, as after a restart."""
        self.timers = Timers(self.clock)
        self.partition = GroupOffsets(
            self.log, self.clock, self.settings, timers=self.timers, topics=self.topics, configs=self.configs
        )
        self.groups = GroupCoordinator(lambda number, create: self.partition, 1, consumer_groups=ConsumerGroups)
        self.groups.load([0])

    def heartbeat(self, member: str, epoch: int = 0, *, version: int = 1, **told: Any) -> Values:
        """Sends a heartbeat. A member that joins says what it must; it reads `topics` (orders)."""
        request: Values = {
            "groupId": told.pop("group", GROUP),
            "memberId": member,
            "memberEpoch": epoch,
            "instanceId": None,
            "rackId": None,
            "rebalanceTimeoutMs": 5_000 if epoch == 0 else -1,
            "subscribedTopicNames": ["orders"] if epoch == 0 and "subscribedTopicRegex" not in told else None,
            "subscribedTopicRegex": None,
            "serverAssignor": None,
            "topicPartitions": [] if epoch == 0 else None,
        }
        topics = told.pop("topics", None)
        if topics is not None:
            request["subscribedTopicNames"] = topics
        owned = told.pop("owned", None)
        if owned is not None:
            request["topicPartitions"] = [
                {"topicId": self.topics.topic_id(topic) or topic, "partitions": list(each)}
                for topic, each in owned.items()
            ]
        client = told.pop("client", "client")
        context = RequestContext(client, "/127.0.0.1", version)
        return self.groups.consumer_group_heartbeat(context, request | told)

    def join(self, request: Values, *, version: int = 9, client: str = "client") -> Future[Values]:
        return self.groups.join_group(RequestContext(client, "/127.0.0.1", version), request)

    def wait(self, ms: int) -> None:
        """Lets time pass, and runs what is due."""
        self.clock.advance(ms)
        self.timers.run_due()

    @property
    def group(self) -> ConsumerGroup:
        found = self.partition.groups.by_name[GROUP]
        assert isinstance(found, ConsumerGroup), found
        return found

    def has(self, answer: Values) -> dict[str, list[int]] | None:
        """The assignment of an answer, by topic; None if it says nothing."""
        if answer["assignment"] is None:
            return None
        return {
            self.topics.name(each["topicId"]) or each["topicId"]: sorted(each["partitions"])
            for each in answer["assignment"]["topicPartitions"]
        }

    def records(self, start: int = 0) -> list[CoordinatorRecord]:
        """The records from an offset on."""
        return [
            group_record_set().decode(each.key, each.value) for batch in self.log.read(start) for each in batch.records
        ]
