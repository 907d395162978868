"""The interface of the manager of a protocol's groups, in one partition.

Every method is called with the partition's lock held, and its state settled (`GroupPartition.entered`). Requests and
answers are values by Kafka's field names. A group of another type raises GroupIdNotFoundException, as in Kafka, unless
the method says otherwise. An error of `kafkalog.errors` becomes the answer's error code at the door.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.messages import Values

Answer = Future[Values]


class Manager(Protocol):
    """The groups of one protocol in one partition."""

    def on_loaded(self) -> None:
        """Starts the timers of the groups that the log has. Called once, before the first request."""
        ...

    def describe(self, group: str) -> Values:
        """Returns the described group, as the response of the protocol's own Describe request has it."""
        ...

    def delete_group(self, group: str) -> list[KeyValue]:
        """Returns the records that delete the group, without those of its offsets.

        Raises GroupNotEmptyException and GroupIdNotFoundException.
        """
        ...


class ConsumerManager(Manager, Protocol):
    """Groups of the protocol of KIP-848. The `classic_` methods serve members of the classic protocol in them."""

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ConsumerGroupHeartbeat. A group of the classic protocol may be upgraded by it."""
        ...

    def classic_join(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers JoinGroup for a group that is a consumer group now. It may also complete `answer` later."""
        ...

    def classic_sync(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers SyncGroup for such a group."""
        ...

    def classic_heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers Heartbeat for such a group."""
        ...

    def classic_leave(self, context: RequestContext, request: Values) -> Values:
        """Answers LeaveGroup for such a group."""
        ...


class ShareManager(Manager, Protocol):
    """Groups of the protocol of KIP-932.

    The methods about offsets and states take the lock themselves, and release it while the share coordinator works.
    """

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ShareGroupHeartbeat."""
        ...

    def describe_offsets(self, context: RequestContext, group: Values) -> Values:
        """Answers one group of DescribeShareGroupOffsets."""
        ...

    def alter_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers AlterShareGroupOffsets."""
        ...

    def delete_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers DeleteShareGroupOffsets."""
        ...

    def delete_states(self, groups: Sequence[str]) -> Mapping[str, Errors]:
        """Deletes what the share coordinator keeps of these groups, before `delete_group`. Groups of other types are
        passed over. Returns the errors of groups that may not be deleted now."""
        ...

    def on_topics_deleted(self, topic_ids: Collection[str]) -> None:
        """Forgets topics that were deleted."""
        ...


class ConsumerManagerFactory(Protocol):
    """Makes the manager of consumer groups. `classic` is the partition's `ClassicGroups`, for up- and downgrades."""

    def __call__(self, partition: GroupPartition, classic: Manager, /) -> ConsumerManager: ...


class ShareManagerFactory(Protocol):
    """Makes the manager of share groups."""

    def __call__(self, partition: GroupPartition, /) -> ShareManager: ...
