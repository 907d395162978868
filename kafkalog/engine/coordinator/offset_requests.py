"""Requests for committed offsets, in one partition: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete.

The group decides who may commit (`Group.validate_offset_commit`). An error for the whole request is raised; the door
puts its code on every partition. An error of one partition stands in the answer. Every method needs the partition's
lock. Source: OffsetMetadataManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkalog._limits import to_int64
from kafkalog._native.codec.java_hash import utf_16
from kafkalog.engine.coordinator.classic_groups import ClassicGroups
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.groups import CommittingMember, CommitValidator, Group
from kafkalog.engine.coordinator.offset_table import NOTHING, Stored
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import NO_TIMESTAMP, CommittedOffset, OffsetKey, encode_offset_commit
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import GroupIdNotFoundException, IllegalGenerationException, StaleMemberEpochException

COMMIT_KNOWS_GROUP_ERRORS = 9  # the version of OffsetCommit that knows GROUP_ID_NOT_FOUND
TXN_COMMIT_KNOWS_GROUP_ERRORS = 6  # the version of TxnOffsetCommit that knows GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH
NO_RETENTION = -1


class OffsetRequests:
    """See the module."""

    def __init__(self, partition: GroupOffsets, classic: ClassicGroups) -> None:
        self._partition = partition
        self._classic = classic

    # --- commits --------------------------------------------------------------------------------------

    def commit(self, context: RequestContext, request: Values) -> Values:
        """Answers OffsetCommit. Raises what `Group.validate_offset_commit` raises, and IllegalGenerationException or
        GroupIdNotFoundException for a member of a group that does not exist."""
        name: str = request["groupId"]
        group = self._partition.groups.by_name.get(name)
        member = _member(context, request)
        validator: CommitValidator | None = None
        if group is None:
            _refuse_member(name, member, knows_group_errors=context.api_version >= COMMIT_KNOWS_GROUP_ERRORS)
        else:
            validator = group.validate_offset_commit(member, is_transactional=False)
            self._classic.on_commit(group, member.member_id)
        now_ms = self._partition.clock.milliseconds()
        retention_ms: int = request["retentionTimeMs"]
        expiry_ms = NO_TIMESTAMP if retention_ms == NO_RETENTION else to_int64(now_ms + retention_ms)
        answer, rows = self._checked(request, validator, now_ms, expiry_ms)
        if rows:
            self._partition.write_offsets(rows, now_ms, None)
        self._partition.groups.replay_offset(name)  # a simple group, also if nothing could be written for it
        return answer

    def commit_transactional(self, context: RequestContext, request: Values) -> Values:
        """Answers TxnOffsetCommit: the offsets count once the transaction commits. Errors as `commit`, and
        InvalidProducerEpochException."""
        name: str = request["groupId"]
        group = self._partition.groups.by_name.get(name)
        member = _member(context, request)
        knows = context.api_version >= TXN_COMMIT_KNOWS_GROUP_ERRORS
        now_ms = self._partition.clock.milliseconds()
        validator: CommitValidator | None = None
        try:
            if group is None:
                _refuse_member(name, member, knows_group_errors=knows)
            else:
                validator = group.validate_offset_commit(member, is_transactional=True)
            answer, rows = self._checked(request, validator, now_ms, NO_TIMESTAMP)
        except StaleMemberEpochException as error:
            if knows:
                raise
            raise IllegalGenerationException(error.message) from error
        if rows:
            holder = ProducerIdAndEpoch(request["producerId"], request["producerEpoch"])
            self._partition.write_offsets(rows, now_ms, holder)
        self._partition.groups.replay_offset(name)
        return answer

    def _checked(
        self, request: Values, validator: CommitValidator | None, now_ms: int, expiry_ms: int
    ) -> tuple[Values, list[tuple[OffsetKey, CommittedOffset]]]:
        rows: list[tuple[OffsetKey, CommittedOffset]] = []
        topics = []
        for topic in request["topics"]:
            name, topic_id = topic["name"], topic.get("topicId", ZERO_UUID)
            partitions = []
            for each in topic["partitions"]:
                number: int = each["partitionIndex"]
                metadata: str = each["committedMetadata"] or ""
                error = Errors.NONE
                if len(metadata) * 2 > self._metadata_max and self._is_too_long(metadata):
                    error = Errors.OFFSET_METADATA_TOO_LARGE
                else:
                    if validator is not None:
                        validator(name, topic_id, number)
                    value = CommittedOffset(
                        each["committedOffset"], each["committedLeaderEpoch"], metadata, now_ms, expiry_ms, topic_id
                    )
                    rows.append((OffsetKey(request["groupId"], name, number), value))
                partitions.append({"partitionIndex": number, "errorCode": int(error)})
            topics.append({"name": name, "topicId": topic_id, "partitions": partitions})
        return {"throttleTimeMs": 0, "topics": topics}, rows

    @property
    def _metadata_max(self) -> int:
        return self._partition.settings.offset_metadata_max

    def _is_too_long(self, metadata: str) -> bool:
        return len(utf_16(metadata)) // 2 > self._metadata_max

    # --- reading --------------------------------------------------------------------------------------

    def fetch(self, group: Values, *, require_stable: bool) -> Values:
        """Answers one group of OffsetFetch; all its offsets if it names no topics.

        Raises what `Group.validate_offset_fetch` raises. A group that does not exist has no offsets.
        """
        name: str = group["groupId"]
        found = self._partition.groups.by_name.get(name)
        committed = self._partition.table.committed(name)
        try:
            if found is None:
                committed = NOTHING
            else:
                found.validate_offset_fetch(group["memberId"], group["memberEpoch"])
        except GroupIdNotFoundException:
            committed = NOTHING
        asked = group["topics"]
        if asked is None:
            topics = self._all(name, require_stable=require_stable) if committed else []
        else:
            topics = [self._fetched(name, each, committed, require_stable=require_stable) for each in asked]
        return {"groupId": name, "topics": topics, "errorCode": 0}

    def _fetched(
        self, group: str, topic: Values, committed: Mapping[TopicPartition, Stored], *, require_stable: bool
    ) -> Values:
        name, topic_id = topic["name"], topic.get("topicId", ZERO_UUID)
        partitions = []
        for number in topic["partitionIndexes"]:
            partition = TopicPartition(name, number)
            found = committed.get(partition)
            if require_stable and self._partition.table.is_pending(group, partition):
                partitions.append(no_offset(number, Errors.UNSTABLE_OFFSET_COMMIT))
            elif found is None or _is_of_another(found.committed.topic_id, topic_id):
                partitions.append(no_offset(number, Errors.NONE))
            else:
                partitions.append(_offset(number, found.committed))
        return {"name": name, "topicId": topic_id, "partitions": partitions}

    def _all(self, group: str, *, require_stable: bool) -> list[Values]:
        topics: dict[str, list[Values]] = {}
        for partition, found in self._partition.table.committed_in_order(group):
            is_unstable = require_stable and self._partition.table.is_pending(group, partition)
            number = partition.partition
            topics.setdefault(partition.topic, []).append(
                no_offset(number, Errors.UNSTABLE_OFFSET_COMMIT) if is_unstable else _offset(number, found)
            )
        return [{"name": name, "topicId": ZERO_UUID, "partitions": rows} for name, rows in topics.items()]

    # --- deletions ------------------------------------------------------------------------------------

    def delete(self, request: Values) -> Values:
        """Answers OffsetDelete. Raises GroupIdNotFoundException and GroupNotEmptyException."""
        name: str = request["groupId"]
        group = self._partition.groups.by_name.get(name)
        if group is None:
            raise GroupIdNotFoundException(f"Group {name} not found.")
        group.validate_offset_delete()
        rows: list[KeyValue] = []
        topics = [self._deleted(name, group, topic, rows) for topic in request["topics"]]
        self._partition.write(rows)
        return {"errorCode": 0, "throttleTimeMs": 0, "topics": topics}

    def _deleted(self, name: str, group: Group, topic: Values, rows: list[KeyValue]) -> Values:
        error = Errors.GROUP_SUBSCRIBED_TO_TOPIC if group.reads(topic["name"]) else Errors.NONE
        table = self._partition.table
        partitions = []
        for each in topic["partitions"]:
            partition = TopicPartition(topic["name"], each["partitionIndex"])
            is_there = partition in table.committed(name) or table.is_pending(name, partition)
            if error is Errors.NONE and is_there:
                rows.append(encode_offset_commit(OffsetKey(name, *partition), None))
            partitions.append({"partitionIndex": partition.partition, "errorCode": int(error)})
        return {"name": topic["name"], "partitions": partitions}


def _member(context: RequestContext, request: Values) -> CommittingMember:
    return CommittingMember(
        request["memberId"], request["groupInstanceId"], request["generationIdOrMemberEpoch"], context.api_version
    )


def _refuse_member(group: str, member: CommittingMember, *, knows_group_errors: bool) -> None:
    """A group that does not exist has no members; anybody else may commit, which creates a simple group."""
    if member.generation >= 0:
        if knows_group_errors:
            raise GroupIdNotFoundException(f"Group {group} not found.")
        raise IllegalGenerationException(f"group {group!r} does not exist")


def _is_of_another(actual: str, expected: str) -> bool:
    return ZERO_UUID not in (actual, expected) and actual != expected


def _offset(partition: int, committed: CommittedOffset) -> Values:
    return {
        "partitionIndex": partition,
        "committedOffset": committed.offset,
        "committedLeaderEpoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "errorCode": 0,
    }


def no_offset(partition: int, error: Errors) -> Values:
    """Returns a partition of OffsetFetch without an offset."""
    return {
        "partitionIndex": partition,
        "committedOffset": -1,
        "committedLeaderEpoch": -1,
        "metadata": "",
        "errorCode": int(error),
    }
