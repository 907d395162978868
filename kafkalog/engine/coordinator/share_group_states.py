"""The requests of share groups to the share coordinator: new states, other start offsets, no states any more.

Two logs are changed one after the other, so each change has steps. A record of the group names the topics as
initializing or deleting; the persister does it; another record says that it is done. If a process ends between the
steps, initializing topics are asked for again by a later heartbeat, and deleting topics by the next deletion.

`write`, `note_time`, `initialize_request` and `on_topics_deleted` need the partition's lock. The others take it
themselves, and release it while the persister works. Source: GroupCoordinatorService, GroupCoordinatorShard,
GroupMetadataManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kafkalog._limits import to_int64
from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.java_order import Partitions, partition_set, topic_map
from kafkalog.engine.coordinator.share_group import (
    NO_TOPICS,
    ShareGroup,
    StatePartitions,
    StateTopics,
    Subscriptions,
    TopicPartitions,
    combined,
    copy_capacity,
    named_topics,
    state_partitions_row,
    without,
)
from kafkalog.engine.coordinator.share_interfaces import Persister
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of, message_of
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import NO_COUNT, NO_OFFSET
from kafkalog.errors import GroupIdNotFoundException, GroupNotEmptyException, KafkalogError, UnknownServerException

V = TypeVar("V")

NO_LAG = -1
UNKNOWN_NAME = "<UNKNOWN>"
NO_STATE = StatePartitions()


class ShareGroupStates:
    """See the module. `latest_offset(topic, partition)` returns the end of a partition, for the lag."""

    def __init__(
        self, partition: GroupPartition, persister: Persister, latest_offset: Callable[[str, int], int]
    ) -> None:
        self._partition = partition
        self._persister = persister
        self._latest_offset = latest_offset
        self._lines = Lines("kafkalog.coordinator")

    # --- records of the group -------------------------------------------------------------------------

    def write(self, group_id: str, rows: Iterable[KeyValue]) -> None:
        """Writes records of a group. With the lock."""
        self._partition.write(rows)
        self.note_time(group_id)

    def note_time(self, group_id: str) -> None:
        """Notes when the record of a group's states was replayed: initializing topics are tried again some time later.
        With the lock."""
        group = self._found(group_id)
        if group is not None and group.state_partitions_ms is None:
            group.state_partitions_ms = self._partition.clock.milliseconds()

    def _found(self, group_id: str) -> ShareGroup | None:
        found = self._partition.groups.by_name.get(group_id)
        return found if isinstance(found, ShareGroup) else None

    def _state(self, group_id: str) -> StatePartitions | None:
        group = self._found(group_id)
        return None if group is None else group.state_partitions

    def _named(self, topic_ids: Iterable[str]) -> Mapping[str, str]:
        names: JavaHashMap[str, str] = topic_map()
        for each in topic_ids:
            names[each] = self._partition.topics.name(each) or UNKNOWN_NAME
        return names

    # --- new partitions -------------------------------------------------------------------------------

    def initialize_request(
        self, group: ShareGroup, epoch: int, subscriptions: Subscriptions, rows: list[KeyValue]
    ) -> Values | None:
        """Returns the request for states of partitions that have none; None if there are none. Adds the record that
        names them as initializing. With the lock.

        A topic that is new to the group has no start offset yet: its first fetch decides. New partitions of a known
        topic are read from their beginning.
        """
        new = self._without_state(group, subscriptions)
        if not new:
            return None
        self._add_initializing(group.group_id, new, rows)
        known = group.state_partitions or NO_STATE
        starts = {
            topic_id: dict.fromkeys(each.partitions, 0 if _knows(known, topic_id) else NO_OFFSET)
            for topic_id, each in new.items()
        }
        return _initialize(group.group_id, epoch, starts)

    def _without_state(self, group: ShareGroup, subscriptions: Subscriptions) -> StateTopics:
        topics, settings = self._partition.topics, self._partition.settings
        known = group.state_partitions or NO_STATE
        wanted = {}
        for name in named_topics(subscriptions):
            topic_id = topics.topic_id(name)
            if topic_id is not None:
                has = known.initialized.get(topic_id)
                count = topics.partitions(name)
                if has is None or len(has.partitions) < count:
                    wanted[name] = topic_id, count
        found: JavaHashMap[str, TopicPartitions] = topic_map()
        if not wanted:  # as at almost every heartbeat
            return found
        initializing = known.initializing
        since_ms = group.state_partitions_ms
        now_ms = self._partition.clock.milliseconds()
        if since_ms is not None and now_ms - since_ms >= settings.group_share_initialize_retry_interval_ms:
            initializing = NO_TOPICS
        there = combined(known.initialized, initializing)
        for name, (topic_id, count) in wanted.items():
            there_already = there[topic_id].partitions if topic_id in there else {}
            if len(there_already) < count:
                left = TopicPartitions(name, _left(count, there_already))
                found.compute_if_absent(topic_id, partial(_same, left))
        return found

    def _add_initializing(self, group_id: str, new: StateTopics, rows: list[KeyValue]) -> None:
        if not new:
            return
        known = self._state(group_id)
        if known is None:
            rows.append(state_partitions_row(group_id, StatePartitions(initializing=new)))
            return
        initializing = combined(known.initializing, new)
        deleting = self._named(each for each in known.deleting if each not in initializing)
        rows.append(state_partitions_row(group_id, StatePartitions(initializing, known.initialized, deleting)))

    def initialize(self, request: Values) -> None:
        """Lets the persister make states, and records that they are there, or that they are not. Without the lock."""
        answer = self._persister.initialize_state(request)
        self._initialized(request["groupId"], answer)

    def _initialized(self, group_id: str, answer: Values) -> None:
        done = {topic["topicId"]: [each["partition"] for each in topic["partitions"]] for topic in answer["results"]}
        failed = next((each for topic in answer["results"] for each in topic["partitions"] if each["errorCode"]), None)
        if failed is not None:
            self._lines.warning("states of share group %s are not initialized: %s", group_id, failed["errorMessage"])
        with self._partition.entered():
            known = self._state(group_id)
            if not done or self._found(group_id) is None:
                return
            if failed is not None:
                if known is not None and known.initializing:
                    left = known._replace(initializing=without(known.initializing, done))
                    self.write(group_id, [self._row(group_id, left)])
                return
            new: JavaHashMap[str, TopicPartitions] = topic_map()
            for topic_id, partitions in done.items():
                name = self._partition.topics.name(topic_id) or UNKNOWN_NAME
                new[topic_id] = TopicPartitions(name, partition_set(partitions))
            if known is None:
                self.write(group_id, [state_partitions_row(group_id, StatePartitions(initialized=new))])
                return
            state = StatePartitions(without(known.initializing, done), combined(known.initialized, new), known.deleting)
            self.write(group_id, [self._row(group_id, state)])

    def _row(self, group_id: str, state: StatePartitions) -> KeyValue:
        return state_partitions_row(group_id, state._replace(deleting=self._named(state.deleting)))

    # --- DescribeShareGroupOffsets --------------------------------------------------------------------

    def describe_offsets(self, group: Values) -> Values:
        """Answers one group of DescribeShareGroupOffsets. Without topics in the request: all that have a state.

        An unknown group, topic or partition has start offset -1.
        """
        group_id: str = group["groupId"]
        unknown: list[Values] = []
        asked: dict[str, Sequence[int]] = {}
        if group["topics"] is None:
            with self._partition.entered():
                for topic_id, each in (self._state(group_id) or NO_STATE).initialized.items():
                    if self._partition.topics.name(topic_id) is not None:
                        asked[topic_id] = list(each.partitions)
        else:
            for topic in group["topics"]:
                found_id = self._partition.topics.topic_id(topic["topicName"])
                if found_id is not None:
                    asked[found_id] = topic["partitions"]
                    continue
                none = [_described(each, start_offset=NO_OFFSET) for each in topic["partitions"]]
                unknown.append({"topicName": topic["topicName"], "topicId": ZERO_UUID, "partitions": none})
        found = []
        if asked:
            if not group_id or any(not each or min(each) < 0 for each in asked.values()):
                raise UnknownServerException("the persister refuses to read states of no group or no partitions")
            topics = [
                {"topicId": topic_id, "partitions": [{"partition": each, "leaderEpoch": 0} for each in partitions]}
                for topic_id, partitions in asked.items()
            ]
            summaries = self._persister.read_state_summary({"groupId": group_id, "topics": topics})
            found = [self._with_lag(each) for each in summaries["results"]]
        return {"groupId": group_id, "topics": [*found, *unknown], "errorCode": Errors.NONE, "errorMessage": None}

    def _with_lag(self, topic: Values) -> Values:
        name = self._partition.topics.name(topic["topicId"]) or ""
        partitions = [self._with_lag_of(name, each) for each in topic["partitions"]]
        return {"topicName": name, "topicId": topic["topicId"], "partitions": partitions}

    def _with_lag_of(self, topic: str, summary: Values) -> Values:
        number: int = summary["partition"]
        if summary["errorCode"]:
            return _described(number, start_offset=NO_OFFSET)
        start, count, epoch = summary["startOffset"], summary["deliveryCompleteCount"], summary["leaderEpoch"]
        if start == NO_OFFSET or count == NO_COUNT:
            return _described(number, start_offset=start, leader_epoch=epoch)
        try:
            end = self._latest_offset(topic, number)
        except KafkalogError as error:
            code = code_of(error)
            return {**_described(number, start_offset=0), "errorCode": code, "errorMessage": message_of(code)}
        return _described(number, start_offset=start, leader_epoch=epoch, lag=to_int64(end - start - count))

    # --- AlterShareGroupOffsets -----------------------------------------------------------------------

    def alter_offsets(self, request: Values) -> Values:
        """Answers AlterShareGroupOffsets: states with these start offsets, for a group without members, or a new one.

        Raises GroupNotEmptyException, and GroupIdNotFoundException for a group of another type.
        """
        group_id: str = request["groupId"]
        if not group_id:
            return _failed(Errors.INVALID_GROUP_ID)
        responses: list[Values] = []
        with self._partition.entered():
            group = self._group_to_alter(group_id)
            if group.members:
                raise GroupNotEmptyException(message_of(Errors.NON_EMPTY_GROUP))
            new: JavaHashMap[str, TopicPartitions] = topic_map()
            starts: JavaHashMap[str, Mapping[int, int]] = topic_map()
            for each in request["topics"]:
                topic_id, partitions = self._altered(each, responses)
                if topic_id is not None:
                    new[topic_id] = TopicPartitions(each["topicName"], partition_set(list(partitions)))
                    if partitions:
                        starts.compute_if_absent(topic_id, partial(_same, partitions))
            rows: list[KeyValue] = []
            self._add_initializing(group_id, new, rows)
            self.write(group_id, rows)
        wrong = ((topic_id, number) for topic_id, each in starts.items() for number in each if number < 0)
        for topic_id, number in wrong:
            text = f"Initialize share group parameters has invalid partitionId - {group_id} {topic_id} {number}"
            return {**_failed(Errors.UNKNOWN_SERVER_ERROR), "errorMessage": text}
        if starts:
            answer = self._persister.initialize_state(_initialize(group_id, group.group_epoch, starts))
            if any(each["errorCode"] for topic in answer["results"] for each in topic["partitions"]):
                _put_errors(responses, answer)
            else:
                self._initialized(group_id, answer)
        return {"throttleTimeMs": 0, "errorCode": Errors.NONE, "errorMessage": None, "responses": responses}

    def _group_to_alter(self, group_id: str) -> ShareGroup:
        if group_id not in self._partition.groups.by_name:
            return ShareGroup(group_id)
        return self.group(group_id)

    def _altered(self, topic: Values, responses: list[Values]) -> tuple[str | None, Mapping[int, int]]:
        """Returns the topic's id and start offsets by partition; adds its part of the response."""
        name: str = topic["topicName"]
        topic_id = self._partition.topics.topic_id(name)
        count = 0 if topic_id is None else self._partition.topics.partitions(name)
        starts: JavaHashMap[int, int] = JavaHashMap(int)
        results = []
        for each in topic["partitions"]:
            number = each["partitionIndex"]
            is_there = number < count
            if is_there:
                starts[number] = each["startOffset"]
            code = Errors.NONE if is_there else Errors.UNKNOWN_TOPIC_OR_PARTITION
            text = None if is_there else message_of(code)
            results.append({"partitionIndex": number, "errorCode": code, "errorMessage": text})
        responses.append({"topicName": name, "topicId": topic_id or ZERO_UUID, "partitions": results})
        return topic_id, starts

    # --- DeleteShareGroupOffsets ----------------------------------------------------------------------

    def delete_offsets(self, request: Values) -> Values:
        """Answers DeleteShareGroupOffsets: the states of whole topics are deleted, for a group without members."""
        group_id: str = request["groupId"]
        if not group_id:
            return _failed(Errors.INVALID_GROUP_ID)
        errors: list[Values] = []
        try:
            with self._partition.entered():
                self.group(group_id).validate_delete_group()
                topics = self._begin_deletion(group_id, request["topics"], errors)
        except (GroupIdNotFoundException, GroupNotEmptyException) as error:
            return {**_failed(code_of(error)), "errorMessage": error.message}
        done: dict[str, str | None] = {}
        if topics:
            answer = self._persister.delete_state({"groupId": group_id, "topics": topics})
            for topic in answer["results"]:
                topic_id = topic["topicId"]
                name = self._partition.topics.name(topic_id)
                failed = next((each["errorCode"] for each in topic["partitions"] if each["errorCode"]), None)
                if failed is None:
                    done[topic_id] = name
                else:
                    errors.append(_deleted(name, topic_id, failed, message_of(failed)))
        responses = [_deleted(name, topic_id, Errors.NONE, None) for topic_id, name in done.items()]
        if done and not self._end_deletion(group_id, done):
            responses = []
        return {
            "throttleTimeMs": 0, "errorCode": Errors.NONE, "errorMessage": None, "responses": [*responses, *errors],
        }  # fmt: skip

    def _begin_deletion(self, group_id: str, wanted: Sequence[Values], errors: list[Values]) -> list[Values]:
        """Records topics as deleting. Returns the partitions whose states are to be deleted, as in a request."""
        known = self._state(group_id)
        if known is None:
            return []
        topics: list[Values] = []
        initialized: JavaHashMap[str, TopicPartitions] = topic_map()
        initialized.update(dict(known.initialized))
        deleting: JavaHashMap[str, None] = topic_map(max(int(len(known.deleting) / 0.75) + 1, 16))
        for topic_id in known.deleting:
            deleting[topic_id] = None
        for each in wanted:
            name: str = each["topicName"]
            found = self._partition.topics.topic_id(name)
            partitions: Iterable[int]
            if found is not None and found in initialized:
                partitions = initialized.pop(found).partitions
                deleting[found] = None
            elif found is not None and found in deleting:
                partitions = range(self._partition.topics.partitions(name))
            else:
                code = Errors.UNKNOWN_TOPIC_OR_PARTITION
                text = message_of(code) if found is None else "There is no offset information to delete."
                errors.append(_deleted(name, ZERO_UUID, code, text))
                continue
            topics.append({"topicId": found, "partitions": [{"partition": number} for number in partitions]})
        state = StatePartitions(known.initializing, initialized, self._named(deleting))
        self.write(group_id, [state_partitions_row(group_id, state)])
        return topics

    def _end_deletion(self, group_id: str, done: Collection[str]) -> bool:
        with self._partition.entered():
            known = self._state(group_id)
            if known is None:
                return False
            left = {each: name for each, name in known.deleting.items() if each not in done}
            self.write(group_id, [self._row(group_id, known._replace(deleting=left))])
            return True

    # --- DeleteGroups ---------------------------------------------------------------------------------

    def delete_states(self, groups: Sequence[str]) -> dict[str, Errors]:
        """Deletes the states of share groups before the groups are deleted. Returns the errors of groups that may not
        be deleted now; groups of other types are passed over."""
        found: dict[str, Errors] = {}
        requests: list[Values] = []
        with self._partition.entered():
            for group_id in groups:
                try:
                    self.group(group_id).validate_delete_group()
                except GroupIdNotFoundException:
                    continue
                except GroupNotEmptyException as error:
                    found[group_id] = code_of(error)
                    continue
                request = self._delete_all(group_id)
                if request is not None:
                    requests.append(request)
        for request in requests:
            answer = self._persister.delete_state(request)
            failed = [each for topic in answer["results"] for each in topic["partitions"] if each["errorCode"]]
            if failed:
                group_id = request["groupId"]
                found[group_id] = Errors(failed[-1]["errorCode"])
                self._lines.warning(
                    "states of share group %s are not deleted: %s", group_id, failed[-1]["errorMessage"]
                )
        return found

    def _delete_all(self, group_id: str) -> Values | None:
        known = self._state(group_id)
        if known is None:
            return None
        topics = self._partition.topics
        candidates = combined(known.initialized, known.initializing)
        again: JavaHashMap[str, TopicPartitions] = topic_map()
        for topic_id in known.deleting:
            name = topics.name(topic_id)
            if name is not None:
                again[topic_id] = TopicPartitions(name, partition_set(range(topics.partitions(name))))
        if again:
            candidates = combined(candidates, again)
        deleting: JavaHashMap[str, str] = topic_map()
        for topic_id, each in candidates.items():
            deleting[topic_id] = each.name
        self.write(group_id, [state_partitions_row(group_id, StatePartitions(deleting=deleting))])
        if not candidates:
            return None
        partitions = {each: [{"partition": number} for number in of.partitions] for each, of in candidates.items()}
        return {
            "groupId": group_id,
            "topics": [{"topicId": topic_id, "partitions": numbers} for topic_id, numbers in partitions.items()],
        }

    def on_topics_deleted(self, topic_ids: Collection[str]) -> None:
        """Forgets deleted topics. With the lock."""
        for group_id, group in list(self._partition.groups.by_name.items()):
            known = group.state_partitions if isinstance(group, ShareGroup) else None
            if known is None or not any(each in of for of in known for each in topic_ids):
                continue
            state = StatePartitions(
                _without_topics(known.initializing, topic_ids),
                _without_topics(known.initialized, topic_ids),
                {each: name for each, name in known.deleting.items() if each not in topic_ids},
            )
            self.write(group_id, [self._row(group_id, state)])

    def group(self, group_id: str) -> ShareGroup:
        """Returns a group. Raises GroupIdNotFoundException. With the lock."""
        found = self._partition.groups.by_name.get(group_id)
        if found is None:
            raise GroupIdNotFoundException(f"Group {group_id} not found.")
        if not isinstance(found, ShareGroup):
            raise GroupIdNotFoundException(f"Group {group_id} is not a share group.")
        return found


def _knows(state: StatePartitions, topic_id: str) -> bool:
    return topic_id in state.initialized or topic_id in state.initializing


def _initialize(group_id: str, epoch: int, starts: Mapping[str, Mapping[int, int]]) -> Values:
    """Returns the request for states with these start offsets, by topic id and partition."""
    topics = []
    for topic_id, of_topic in starts.items():
        partitions = [
            {"partition": number, "stateEpoch": epoch, "startOffset": start} for number, start in of_topic.items()
        ]
        topics.append({"topicId": topic_id, "partitions": partitions})
    return {"groupId": group_id, "topics": topics}


def _left(count: int, has: Iterable[int]) -> Partitions:
    partitions = partition_set(range(count))
    assert isinstance(partitions, JavaHashMap)
    for each in has:
        partitions.pop(each, None)
    return partitions


def _same(value: V) -> V:
    return value


def _without_topics(topics: StateTopics, gone: Collection[str]) -> StateTopics:
    found: JavaHashMap[str, TopicPartitions] = topic_map(copy_capacity(len(topics)))
    for topic_id, each in topics.items():
        found[topic_id] = each
    for topic_id in gone:
        found.pop(topic_id, None)
    return found


def _described(partition: int, *, start_offset: int, leader_epoch: int = 0, lag: int = NO_LAG) -> Values:
    return {
        "partitionIndex": partition, "startOffset": start_offset, "leaderEpoch": leader_epoch, "lag": lag,
        "errorCode": Errors.NONE, "errorMessage": None,
    }  # fmt: skip


def _failed(code: Errors) -> Values:
    return {"throttleTimeMs": 0, "errorCode": code, "errorMessage": message_of(code), "responses": []}


def _deleted(name: str | None, topic_id: str, code: int, text: str | None) -> Values:
    return {"topicName": name or "", "topicId": topic_id, "errorCode": code, "errorMessage": text}


def _put_errors(responses: list[Values], answer: Values) -> None:
    """Puts the persister's errors into the response of AlterShareGroupOffsets."""
    errors = {
        (topic["topicId"], each["partition"]): each
        for topic in answer["results"]
        for each in topic["partitions"]
        if each["errorCode"]
    }
    for topic in responses:
        for each in topic["partitions"]:
            error = errors.get((topic["topicId"], each["partitionIndex"]))
            if error is not None and not each["errorCode"]:
                each.update(errorCode=error["errorCode"], errorMessage=error["errorMessage"])
