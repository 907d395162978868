"""The coordinator of groups over a log in memory, with a clock that the test moves.

    kit = GroupKit()
    joined = kit.join("g", "a")            # as a client does: it gets an id, and joins again
    kit.pass_ms(3_000)
    joined.result(0)["generationId"]

Requests and answers are values; what a request does not name has its default.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
from kafkalog.engine.coordinator.group_managers import ConsumerManagerFactory, ShareManagerFactory
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.group_records import (
    GroupKey,
    GroupMetadata,
    OffsetKey,
    Subscription,
    decode_group_record,
    encode_subscription,
)
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import ApiKeys, api, default_values
from tests.unit.coordinator_kit import NOW_MS, Disk, MemoryLog

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
JOINING = {"sessionTimeoutMs": SESSION_MS, "rebalanceTimeoutMs": REBALANCE_MS, "protocolType": "consumer"}


def filled(key: int, **fields: Any) -> Values:
    """A request with these fields, and defaults."""
    return default_values(api(key).request) | fields


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))


class Topics:
    """A TopicsView: partitions by topic; ids are made of the names."""

    def __init__(self, **partitions: int) -> None:
        self.partitions_by_name = partitions
        self.version = 0

    def topic_id(self, name: str) -> str | None:
        return name.ljust(22, "A") if name in self.partitions_by_name else None

    def name(self, topic_id: str) -> str | None:
        return next((each for each in self.partitions_by_name if self.topic_id(each) == topic_id), None)

    def partitions(self, name: str) -> int:
        return self.partitions_by_name.get(name, 0)

    def names(self) -> list[str]:
        return list(self.partitions_by_name)


class GroupKit:
    """One partition of `__consumer_offsets`, and its coordinator."""

    def __init__(
        self,
        settings: GroupSettings = GroupSettings(),  # noqa: B008 (it does not change)
        *,
        log: MemoryLog | None = None,
        clock: ManualClock | None = None,
        topics: Topics | None = None,
        consumer_groups: ConsumerManagerFactory | None = None,
        share_groups: ShareManagerFactory | None = None,
    ) -> None:
        self.log = log or Disk().log("__consumer_offsets-0")
        self.clock = clock or ManualClock(NOW_MS)
        self.timers = Timers(self.clock)
        self.topics = topics or Topics()
        self.partition = GroupOffsets(self.log, self.clock, settings, timers=self.timers, topics=self.topics)
        self.groups = GroupCoordinator(
            lambda number, create: self.partition, 1, consumer_groups=consumer_groups, share_groups=share_groups
        )
        self.version = 9  # the version of JoinGroup

    def restarted(self, settings: GroupSettings | None = None) -> GroupKit:
        """Another coordinator over the same log, after this one has died."""
        found = GroupKit(settings or self.partition.settings, log=self.log, clock=self.clock, topics=self.topics)
        found.groups.load()
        return found

    def pass_ms(self, by_ms: int, *, step_ms: int = 500) -> None:
        """Moves the clock, and runs the timers on the way."""
        until = self.clock.milliseconds() + by_ms
        while self.clock.milliseconds() < until:
            self.clock.advance(min(step_ms, until - self.clock.milliseconds()))
            self.timers.run_due()

    # --- requests -------------------------------------------------------------------------------------

    def context(self, client_id: str = "client", version: int = 9) -> RequestContext:
        return RequestContext(client_id, "/127.0.0.1", version)

    def ask_join(self, group: str, member_id: str = "", *, version: int | None = None, **fields: Any) -> Future[Values]:
        protocols = fields.pop("protocols", {"range": subscription("t")})
        request = filled(
            ApiKeys.JOIN_GROUP,
            groupId=group,
            memberId=member_id,
            protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols.items()],
            **(
                {"sessionTimeoutMs": SESSION_MS, "rebalanceTimeoutMs": REBALANCE_MS, "protocolType": "consumer"}
                | fields
            ),
        )
        return self.groups.join_group(self.context(version=self.version if version is None else version), request)

    def join(self, group: str, member_id: str = "", **fields: Any) -> Future[Values]:
        """As a client does: it joins again with the id that it gets."""
        answer = self.ask_join(group, member_id, **fields)
        if answer.done() and answer.result(0)["errorCode"] == 79:
            return self.ask_join(group, answer.result(0)["memberId"], **fields)
        return answer

    def sync(
        self, group: str, joined: Values, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Future[Values]:
        request = filled(
            ApiKeys.SYNC_GROUP,
            groupId=group,
            **(
                {
                    "generationId": joined["generationId"],
                    "memberId": joined["memberId"],
                    "protocolType": joined["protocolType"],
                    "protocolName": joined["protocolName"],
                    "assignments": [
                        {"memberId": name, "assignment": each} for name, each in (assignments or {}).items()
                    ],
                }
                | fields
            ),
        )
        return self.groups.sync_group(self.context(), request)

    def heartbeat(self, group: str, member_id: str, generation: int, **fields: Any) -> int:
        request = filled(ApiKeys.HEARTBEAT, groupId=group, memberId=member_id, generationId=generation, **fields)
        return int(self.groups.heartbeat(self.context(), request)["errorCode"])

    def leave(self, group: str, *members: tuple[str, str | None]) -> Values:
        told = [{"memberId": one, "groupInstanceId": other, "reason": None} for one, other in members]
        return self.groups.leave_group(self.context(), filled(ApiKeys.LEAVE_GROUP, groupId=group, members=told))

    def stable(self, group: str, count: int = 1, **fields: Any) -> list[Values]:
        """Brings a new group to its first stable generation. Returns the answers of JoinGroup, the leader's first."""
        waiting = [self.join(group, **fields) for _ in range(count)]
        self.pass_ms(2 * DELAY_MS + 1 if count > 1 else DELAY_MS)
        joined = sorted((each.result(0) for each in waiting), key=lambda each: each["memberId"] != each["leader"])
        shares = {each["memberId"]: f"of {each['memberId']}".encode() for each in joined}
        answers = [self.sync(group, each, shares if each is joined[0] else None) for each in joined]
        assert {each.result(0)["errorCode"] for each in answers} == {0}
        return joined

    def commit(self, group: str, offsets: dict[tuple[str, int], int], *, version: int = 9, **fields: Any) -> list[int]:
        """The error codes, partition by partition."""
        topics: dict[str, list[Values]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                {
                    "partitionIndex": partition,
                    "committedOffset": offset,
                    "committedLeaderEpoch": -1,
                    "committedMetadata": fields.pop("metadata", ""),
                }
            )
        request = filled(
            ApiKeys.OFFSET_COMMIT,
            groupId=group,
            topics=[
                {"name": name, "topicId": self.topics.topic_id(name) or "A" * 22, "partitions": each}
                for name, each in topics.items()
            ],
            **fields,
        )
        answer = self.groups.commit_offsets(self.context(version=version), request)
        return [each["errorCode"] for topic in answer["topics"] for each in topic["partitions"]]

    def fetch(
        self, group: str, partitions: Iterable[tuple[str, int]] | None, *, require_stable: bool = False, **fields: Any
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Offsets and error codes by partition; the group's own error is under ("", -1)."""
        asked = None
        if partitions is not None:
            asked = [{"name": topic, "topicId": "A" * 22, "partitionIndexes": [each]} for topic, each in partitions]
        told = {"groupId": group, "memberId": None, "memberEpoch": -1, "topics": asked} | fields
        answer = self.groups.fetch_offsets(self.context(version=10), told, require_stable=require_stable)
        found = {
            (topic["name"], each["partitionIndex"]): (each["committedOffset"], each["errorCode"])
            for topic in answer["topics"]
            for each in topic["partitions"]
        }
        return {("", -1): (0, answer["errorCode"])} if answer["errorCode"] else found

    # --- the log --------------------------------------------------------------------------------------

    def state(self, group: str) -> str:
        found = self.partition.groups.by_name.get(group)
        return "none" if found is None else found.state

    def records(self) -> list[tuple[Any, Any]]:
        """Every record of the log, decoded."""
        return [decode_group_record(each.key, each.value) for batch in self.log.read() for each in batch.records]

    def metadata(self, group: str) -> list[GroupMetadata | None]:
        """The records of a classic group."""
        return [value for key, value in self.records() if key == GroupKey(group)]

    def offsets(self, group: str) -> list[tuple[OffsetKey, int | None]]:
        return [
            (key, None if value is None else value.offset)
            for key, value in self.records()
            if isinstance(key, OffsetKey) and key.group == group
        ]
