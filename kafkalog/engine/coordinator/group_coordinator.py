"""The door for all requests of groups: it finds the partition of a group, and the manager of its protocol there.

    groups = GroupCoordinator(partition_of, 50, consumer_groups=ConsumerGroups, share_groups=ShareGroups)
    groups.join_group(context, request).add_done_callback(answer)

Requests and answers are values by Kafka's field names; a request has every field of its message. Only JoinGroup and
SyncGroup wait for other members: they return futures, which are completed when no lock is held. Errors are codes in the
answers, as in Kafka. Only methods that say so raise.

The server checks a client's rights before it calls. Thread-safe. Source: GroupCoordinatorService (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial

from kafkalog._native.codec.java_hash import JavaHashMap, hash_map_order, string_hash, topic_partition_hash
from kafkalog.engine.coordinator.classic_answers import complete, join_answer, leave_answer, sync_answer
from kafkalog.engine.coordinator.group_managers import Answer, ConsumerManagerFactory, ShareManagerFactory
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_shard import GroupShard
from kafkalog.engine.coordinator.offset_requests import no_offset
from kafkalog.engine.coordinator.operation_errors import operation_code
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import StateLog
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.errors import GroupIdNotFoundException, KafkalogError, UnknownMemberIdException

PartitionOf = Callable[[int, bool], "GroupOffsets | None"]
DESCRIBE_KNOWS_GROUP_ERRORS = 6  # the version of DescribeGroups that knows GROUP_ID_NOT_FOUND
TOP_LEVEL_FETCH_ERROR = 2  # the version of OffsetFetch from which an error stands for the whole answer


class GroupCoordinator:
    """See the module. `partition_of(number, create)` returns a partition of `__consumer_offsets`, None if it does not
    exist. `numbers` returns the partitions that exist."""

    def __init__(
        self,
        partition_of: PartitionOf,
        partition_count: int,
        *,
        numbers: Callable[[], Collection[int]] | None = None,
        consumer_groups: ConsumerManagerFactory | None = None,
        share_groups: ShareManagerFactory | None = None,
    ) -> None:
        self._partition_of = partition_of
        self._numbers = numbers or (lambda: range(partition_count))
        self.partition_count = partition_count
        self._consumer_groups = consumer_groups
        self._share_groups = share_groups
        self._lock = threading.Lock()  # guards which shards exist
        self._shards: dict[int, GroupShard] = {}
        self._is_closed = False
        self._lines = Lines("kafkalog.coordinator")

    # --- partitions -----------------------------------------------------------------------------------

    def shard(self, group: str) -> GroupShard:
        """Returns the partition of a group with its managers; the partition is created if it does not exist.

        Raises what opening the partition raises.
        """
        number = partition_for(group, self.partition_count)
        found = self._shards.get(number) or self._load(number, create=True)
        assert found is not None, number
        return found

    def _existing(self, group: str) -> GroupShard | None:
        number = partition_for(group, self.partition_count)
        return self._shards.get(number) or self._load(number, create=False)

    def _shard_of_members(self, group: str) -> GroupShard:
        found = self._existing(group)
        if found is None:
            raise UnknownMemberIdException(f"group {group!r} does not exist")
        return found

    def _load(self, number: int, *, create: bool) -> GroupShard | None:
        with self._lock:
            found = self._shards.get(number)
            if found is None:
                partition = self._partition_of(number, create)
                if partition is None:
                    return None
                found = self._shards[number] = GroupShard(partition, self._consumer_groups, self._share_groups)
            return found

    def load(self, numbers: Iterable[int] | None = None) -> None:
        """Starts the groups of these partitions (None: of all that exist): their members must send heartbeats now.

        A partition that cannot be read is left out with a warning; its groups' requests fail.
        """
        for number in sorted(self._numbers() if numbers is None else numbers):
            try:
                self._load(number, create=False)
            except KafkalogError as error:
                self._lines.warning("partition %d of __consumer_offsets cannot be served: %s", number, error)

    def close(self) -> None:
        """Answers members that wait with NOT_COORDINATOR, and stops all timers. May be called again."""
        with self._lock:
            shards, self._shards = self._shards, {}
            self._is_closed = True
        for each in shards.values():
            each.close()

    # --- the classic protocol -------------------------------------------------------------------------

    def join_group(self, context: RequestContext, request: Values) -> Future[Values]:
        """Answers JoinGroup once the group's members have joined."""
        answer: Answer = Future()
        name, member_id = request["groupId"], request["memberId"]
        if self._is_closed:
            complete(answer, join_answer(member_id, Errors.COORDINATOR_NOT_AVAILABLE))
        elif not name:
            complete(answer, join_answer(member_id, Errors.INVALID_GROUP_ID))
        else:
            self._run(answer, partial(join_answer, ""), partial(self._join, context, request, answer))
        return answer

    def _join(self, context: RequestContext, request: Values, answer: Answer) -> None:
        shard = self.shard(request["groupId"])
        settings, timeout_ms = shard.partition.settings, request["sessionTimeoutMs"]
        if not settings.group_min_session_timeout_ms <= timeout_ms <= settings.group_max_session_timeout_ms:
            complete(answer, join_answer(request["memberId"], Errors.INVALID_SESSION_TIMEOUT))
            return
        with shard.partition.entered():
            name: str = request["groupId"]
            if shard.is_consumer(name) and not shard.partition.groups.by_name[name].is_empty:
                shard.consumer.classic_join(context, request, answer)
            else:
                shard.classic.join(context, request, answer)

    def sync_group(self, context: RequestContext, request: Values) -> Future[Values]:
        """Answers SyncGroup once the leader has divided the partitions."""
        answer: Answer = Future()
        if self._is_closed:
            complete(answer, sync_answer(Errors.COORDINATOR_NOT_AVAILABLE))
        elif not request["groupId"]:
            complete(answer, sync_answer(Errors.INVALID_GROUP_ID))
        else:
            self._run(answer, sync_answer, partial(self._sync, context, request, answer))
        return answer

    def _sync(self, context: RequestContext, request: Values, answer: Answer) -> None:
        shard = self._shard_of_members(request["groupId"])
        with shard.partition.entered():
            name: str = request["groupId"]
            if shard.is_consumer(name) and not shard.partition.groups.by_name[name].is_empty:
                shard.consumer.classic_sync(context, request, answer)
            else:
                shard.classic.sync(context, request, answer)

    def _run(self, answer: Answer, failed: Callable[[Errors], Values], run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            complete(answer, failed(self._error(error)))

    def _error(self, error: Exception) -> Errors:
        code = operation_code(error)
        if not isinstance(error, KafkalogError) or code is Errors.UNKNOWN_SERVER_ERROR:
            self._lines.error("Error in a request of a group", exc_info=error)
        return code

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers Heartbeat."""
        name: str = request["groupId"]
        error = self._refusal(name)
        if error is not Errors.NONE:
            return {"throttleTimeMs": 0, "errorCode": int(error)}
        try:
            shard = self._shard_of_members(name)
            with shard.partition.entered():
                if shard.is_consumer(name):
                    return shard.consumer.classic_heartbeat(context, request)
                return shard.classic.heartbeat(context, request)
        except Exception as raised:
            error = self._error(raised)
            if error is Errors.COORDINATOR_LOAD_IN_PROGRESS:  # the member is not to join again because of that
                error = Errors.NONE
            return {"throttleTimeMs": 0, "errorCode": int(error)}

    def leave_group(self, context: RequestContext, request: Values) -> Values:
        """Answers LeaveGroup. The members that leave are in `members`, in every version."""
        name: str = request["groupId"]
        error = self._refusal(name)
        if error is not Errors.NONE:
            return leave_answer(error, [])
        try:
            shard = self._shard_of_members(name)
            with shard.partition.entered():
                if shard.is_consumer(name):
                    return shard.consumer.classic_leave(context, request)
                return shard.classic.leave(context, request)
        except Exception as raised:
            error = self._error(raised)
            if error is not Errors.UNKNOWN_MEMBER_ID:
                return leave_answer(error, [])
            members = [
                {
                    "memberId": each["memberId"],
                    "groupInstanceId": each["groupInstanceId"],
                    "errorCode": int(error),
                }
                for each in request["members"]
            ]
            return leave_answer(Errors.NONE, members)

    def _refusal(self, group: str | None) -> Errors:
        if self._is_closed:
            return Errors.COORDINATOR_NOT_AVAILABLE
        return Errors.NONE if group else Errors.INVALID_GROUP_ID

    # --- newer protocols ------------------------------------------------------------------------------

    def consumer_group_heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ConsumerGroupHeartbeat. Raises an error of kafkalog.errors, which is the whole answer's."""
        shard = self.shard(request["groupId"])
        with shard.partition.entered():
            return shard.consumer.heartbeat(context, request)

    def consumer_group_describe(self, context: RequestContext, names: Collection[str]) -> list[Values]:
        """Returns the groups of ConsumerGroupDescribe."""
        return [self._described(name, lambda shard, name: shard.consumer.describe(name)) for name in names]

    def share_group_heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ShareGroupHeartbeat. Raises an error of kafkalog.errors, which is the whole answer's."""
        shard = self.shard(request["groupId"])
        with shard.partition.entered():
            return shard.share.heartbeat(context, request)

    def share_group_describe(self, context: RequestContext, names: Collection[str]) -> list[Values]:
        """Returns the groups of ShareGroupDescribe."""
        return [self._described(name, lambda shard, name: shard.share.describe(name)) for name in names]

    def _described(self, name: str, describe: Callable[[GroupShard, str], Values]) -> Values:
        if not name:
            return {"groupId": name or "", "errorCode": int(Errors.INVALID_GROUP_ID)}
        return self._described_any(name, describe)

    def _described_any(self, name: str, describe: Callable[[GroupShard, str], Values]) -> Values:
        """As `_described`, for the group with the empty name too: DescribeGroups looks it up as any other."""
        try:
            shard = self._existing(name)
            if shard is None:
                raise GroupIdNotFoundException(f"Group {name} not found.")
            with shard.partition.entered():
                return describe(shard, name)
        except Exception as error:
            message = error.message if isinstance(error, KafkalogError) else None
            return {"groupId": name, "errorCode": int(self._error(error)), "errorMessage": message}

    def describe_share_group_offsets(self, context: RequestContext, group: Values) -> Values:
        """Answers one group of DescribeShareGroupOffsets. Raises errors of kafkalog.errors."""
        return self.shard(group["groupId"]).share.describe_offsets(context, group)

    def alter_share_group_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers AlterShareGroupOffsets. Raises errors of kafkalog.errors."""
        return self.shard(request["groupId"]).share.alter_offsets(context, request)

    def delete_share_group_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers DeleteShareGroupOffsets. Raises errors of kafkalog.errors."""
        return self.shard(request["groupId"]).share.delete_offsets(context, request)

    # --- all groups -----------------------------------------------------------------------------------

    def list_groups(self, context: RequestContext, request: Values) -> Values:
        """Answers ListGroups. Unknown states and types match no group."""
        states = {each.strip().lower() for each in request["statesFilter"]}
        types = {each.lower() for each in request["typesFilter"]}
        if self._is_closed:
            return {"throttleTimeMs": 0, "errorCode": int(Errors.COORDINATOR_NOT_AVAILABLE), "groups": []}
        self.load()
        groups: list[Values] = []
        for shard in self._sorted_shards():
            with shard.partition.entered():
                groups += shard.list_groups(states, types)
        return {"throttleTimeMs": 0, "errorCode": 0, "groups": groups}

    def describe_groups(self, context: RequestContext, names: Collection[str]) -> list[Values]:
        """Returns the groups of DescribeGroups, which knows only classic groups."""
        found = []
        for name in (name for some in self._by_partition(names).values() for name in some):
            values = self._described_any(name, lambda shard, name: shard.classic.describe(name))
            if values["errorCode"] == Errors.GROUP_ID_NOT_FOUND:
                values["groupState"] = "Dead"
                if context.api_version < DESCRIBE_KNOWS_GROUP_ERRORS:
                    values |= {"errorCode": 0, "errorMessage": None}
            found.append({"protocolType": "", "protocolData": "", "members": [], "groupState": ""} | values)
        return found

    def delete_groups(self, context: RequestContext, names: Collection[str]) -> list[Values]:
        """Returns the results of DeleteGroups."""
        if self._is_closed:
            return [{"groupId": name, "errorCode": int(Errors.COORDINATOR_NOT_AVAILABLE)} for name in names]
        results: list[Values] = []
        for (_, number), some in self._by_partition(names).items():
            capacity = max(int(len(some) / 0.75) + 1, 16)
            results += self._delete_some(number, hash_map_order(some, string_hash, initial_capacity=capacity))
        return results

    def _by_partition(self, names: Collection[str]) -> Mapping[TopicPartition, list[str]]:
        """Returns the groups of each partition, in the order in which Kafka answers."""
        found: JavaHashMap[TopicPartition, list[str]] = JavaHashMap(topic_partition_hash)
        for name in names:
            number = partition_for(name, self.partition_count)
            found.setdefault(TopicPartition(GROUP_METADATA_TOPIC, number), []).append(name)
        return found

    def _delete_some(self, number: int, names: list[str]) -> list[Values]:
        error = Errors.GROUP_ID_NOT_FOUND
        try:
            shard = self._shards.get(number) or self._load(number, create=False)
            if shard is not None:
                refused = {} if self._share_groups is None else shard.share.delete_states(names)
                with shard.partition.entered():
                    found = shard.delete_groups([name for name in names if name not in refused])
                return [*({"groupId": name, "errorCode": int(code)} for name, code in refused.items()), *found]
        except Exception as raised:
            error = self._error(raised)
        return [{"groupId": name, "errorCode": int(error)} for name in names]

    def _sorted_shards(self) -> list[GroupShard]:
        with self._lock:
            return [self._shards[number] for number in sorted(self._shards)]

    # --- offsets --------------------------------------------------------------------------------------

    def commit_offsets(self, context: RequestContext, request: Values, *, flushes: bool = True) -> Values:
        """Answers OffsetCommit. Topics have names; their ids are written too, if they have them.

        Without `flushes` the caller makes the commit durable (`log_of`).
        """
        if request["groupId"] is None:
            return commit_failed(request, Errors.INVALID_GROUP_ID)
        if self._is_closed:
            return commit_failed(request, Errors.COORDINATOR_NOT_AVAILABLE)
        try:
            shard = self.shard(request["groupId"])
            with shard.partition.entered():
                answer = shard.offsets.commit(context, request)
            if flushes:
                shard.partition.flush()
        except Exception as raised:
            return commit_failed(request, self._error(raised))
        return answer

    def log_of(self, group: str) -> StateLog:
        """Returns the log that a group's commits go to."""
        return self.shard(group).partition.log

    def commit_transactional_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers TxnOffsetCommit. The partition is in the transaction already."""
        error = self._refusal(request["groupId"])
        if error is not Errors.NONE:
            return commit_failed(request, error)
        try:
            shard = self.shard(request["groupId"])
            with shard.partition.entered():
                return shard.offsets.commit_transactional(context, request)
        except Exception as raised:
            return commit_failed(request, self._error(raised))

    def fetch_offsets(self, context: RequestContext, group: Values, *, require_stable: bool) -> Values:
        """Answers one group of OffsetFetch; all its offsets if `topics` is None. Topics have names."""
        name: str | None = group["groupId"]
        if name is None:
            return fetch_failed(group, Errors.INVALID_GROUP_ID, context.api_version)
        if self._is_closed:
            return fetch_failed(group, Errors.COORDINATOR_NOT_AVAILABLE, context.api_version)
        try:
            shard = self._existing(name)
            if shard is None:
                return no_offsets(group)
            with shard.partition.entered():
                return shard.offsets.fetch(group, require_stable=require_stable)
        except Exception as raised:
            return fetch_failed(group, self._error(raised), context.api_version)

    def delete_offsets(self, context: RequestContext, request: Values) -> Values:
        """Answers OffsetDelete."""
        error = self._refusal(request["groupId"])
        if error is Errors.NONE:
            try:
                shard = self._existing(request["groupId"])
                if shard is None:
                    raise GroupIdNotFoundException(f"Group {request['groupId']} not found.")
                with shard.partition.entered():
                    return shard.offsets.delete(request)
            except Exception as raised:
                error = self._error(raised)
        return {"errorCode": int(error), "throttleTimeMs": 0, "topics": []}

    # --- topics ---------------------------------------------------------------------------------------

    def on_topics_deleted(self, topic_ids: Collection[str]) -> None:
        """Lets share groups forget deleted topics. `GroupOffsets.delete_topic` forgets the offsets of other groups."""
        if self._share_groups is not None:
            self.load()
            for shard in self._sorted_shards():
                with shard.partition.entered():
                    shard.share.on_topics_deleted(topic_ids)


# --- answers ----------------------------------------------------------------------------------------


def commit_failed(request: Values, error: Errors) -> Values:
    """Returns the answer of OffsetCommit or TxnOffsetCommit in which every partition has the error."""
    topics = [
        {
            "name": topic["name"],
            "topicId": topic["topicId"],
            "partitions": [
                {"partitionIndex": each["partitionIndex"], "errorCode": int(error)} for each in topic["partitions"]
            ],
        }
        for topic in request["topics"]
    ]
    return {"throttleTimeMs": 0, "topics": topics}


def fetch_failed(group: Values, error: Errors, api_version: int) -> Values:
    """Returns the answer of a group of OffsetFetch that failed. Old versions have no place for it but partitions."""
    if api_version < TOP_LEVEL_FETCH_ERROR:
        return {"groupId": group["groupId"], "topics": _without_offsets(group, error), "errorCode": int(error)}
    return {"groupId": group["groupId"], "topics": [], "errorCode": int(error)}


def no_offsets(group: Values) -> Values:
    """Returns the answer of a group of OffsetFetch that has no offsets."""
    return {"groupId": group["groupId"], "topics": _without_offsets(group, Errors.NONE), "errorCode": 0}


def _without_offsets(group: Values, error: Errors) -> list[Values]:
    return [
        {
            "name": topic["name"],
            "topicId": topic["topicId"],
            "partitions": [no_offset(number, error) for number in topic["partitionIndexes"]],
        }
        for topic in group["topics"] or ()
    ]
