"""Shared by tests of cursors: a store's home, offsets committed there, and groups as brokers leave them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafkalog._face.store_home import StoreHome
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.state_log import records_batch
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMember,
    GroupMetadata,
    Subscription,
    encode_group_metadata,
    encode_subscription,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.store import store_settings

NOW_MS = 1_700_000_000_000


@contextlib.contextmanager
def store_home(*roots: Path, clock: Clock = SYSTEM_CLOCK, files: Files = OS_FILES) -> Iterator[StoreHome]:
    """A writable store without maintenance, as `kafkalog.open` makes it."""
    home = StoreHome(
        [str(root) for root in roots],
        store_settings(None, None, False),
        durability="os",
        compression=None,
        clock=clock,
        files=files,
        metrics=None,
    )
    home.start()
    try:
        yield home
    finally:
        home.close()


def offsets_of(home: StoreHome, group: str) -> GroupOffsets:
    found = home.offsets(group, create=True)
    assert found is not None
    return found


def commit(
    home: StoreHome,
    group: str,
    at: Mapping[TopicPartition, int | CommittedOffset],
    holder: ProducerIdAndEpoch | None = None,
) -> None:
    rows = {each: value if isinstance(value, CommittedOffset) else CommittedOffset(value) for each, value in at.items()}
    offsets_of(home, group).commit(group, rows, holder)


def leave_classic(home: StoreHome, group: str, *members: str) -> None:
    """A classic group with members that read `orders`."""
    subscription = encode_subscription(Subscription(["orders"]))
    rows = tuple(GroupMember(each, None, f"client {each}", "/10.0.0.1", 1, 1, subscription, b"") for each in members)
    about = GroupMetadata("consumer", 1, "range", members[0], NOW_MS, rows)
    row = encode_group_metadata(GroupKey(group), about)
    offsets_of(home, group).log.append(records_batch([row], NOW_MS, NO_PRODUCER))


def leave_modern(home: StoreHome, group: str, member: str, *, share: bool = False) -> None:
    """A consumer group, or a share group, with a member that reads `orders`."""
    fields = {"rackId": None, "clientId": f"client {member}", "clientHost": "/h", "subscribedTopicNames": ["orders"]}
    if not share:
        fields |= {"instanceId": None, "subscribedTopicRegex": None, "rebalanceTimeoutMs": 1, "serverAssignor": None}
        fields |= {"classicMemberMetadata": None}
    record = CoordinatorRecord(10 if share else 5, {"groupId": group, "memberId": member}, 0, fields)
    row = group_record_set().encode(record)
    offsets_of(home, group).log.append(records_batch([row], NOW_MS, NO_PRODUCER))
