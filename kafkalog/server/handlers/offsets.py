"""OffsetCommit, OffsetFetch and OffsetDelete. Topics that do not exist, or that the client may not see, are refused.

Topics come by name, and by id in the newest versions. The coordinator gets names and ids, and writes both.
Source: KafkaApis, OffsetFetchResponse.Builder (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.server.data_plane import data_of
from kafkalog.server.error_answers import error_response
from kafkalog.server.handlers.groups import context_of, may_read_group
from kafkalog.server.hosted import hosted_by
from kafkalog.server.request import LARGE, Pending
from kafkalog.server.security.acls import AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

COMMITS_BY_ID = 10
FETCHES_BY_ID = 10
FETCHES_GROUPS = 8  # the version of OffsetFetch from which it asks for several groups


# --- OffsetCommit ----------------------------------------------------------------------------------------


def handle_offset_commit(broker: Broker, request: Request) -> Values | Pending | None:
    body = request.body
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    by_id = request.api_version >= COMMITS_BY_ID
    topics = _named(broker, body["topics"]) if by_id else body["topics"]
    names = [each["name"] for each in topics]
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.READ, ResourceType.TOPIC, names)
    hosted = hosted_by(broker)
    answers = Answers(by_id=by_id)
    wanted: list[Values] = []
    for topic in topics:
        name: str = topic["name"]
        found = hosted.named(name) if name in allowed else None
        if by_id and not name:
            answers.refuse(topic, Errors.UNKNOWN_TOPIC_ID)
        elif name not in allowed:
            answers.refuse(topic, Errors.TOPIC_AUTHORIZATION_FAILED)
        elif found is None:
            answers.refuse(topic | {"topicId": ZERO_UUID}, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            wanted += answers.there(topic | {"topicId": found.id}, found.partitions)
    if not wanted:
        return {"throttleTimeMs": 0, "topics": answers.topics}
    answer = broker.groups.commit_offsets(context_of(request), body | {"topics": wanted}, flushes=False)
    answers.add(answer["topics"])
    return _durable(broker, request, {"throttleTimeMs": 0, "topics": answers.topics})


def _durable(broker: Broker, request: Request, answer: Values) -> Values | Pending:
    """Answers when the commit is as durable as the store promises. Commits of several clients share a sync."""
    syncs = data_of(broker).syncs if broker.home.coordinators.syncs_writes else None
    if syncs is None:
        return answer
    log = broker.groups.log_of(request.body["groupId"])
    assert isinstance(log, UnifiedStateLog), log
    pending = Pending()

    def done(error: BaseException | None) -> None:
        pending.complete(answer if error is None else error_response(request, Errors.NOT_COORDINATOR))

    syncs.when_durable([log.log], done)
    return pending


class Answers:
    """The topics of an answer. A topic that is refused in part stands in it once."""

    def __init__(self, *, by_id: bool) -> None:
        self._key = "topicId" if by_id else "name"
        self._by_key: dict[str, Values] = {}
        self.topics: list[Values] = []

    def refuse(self, topic: Values, error: Errors) -> None:
        """Adds partitions of a request, with an error."""
        found = self._by_key.get(topic[self._key])
        if found is None:
            ids = {"topicId": topic["topicId"]} if "topicId" in topic else {}  # OffsetDelete knows no ids
            found = self._by_key[topic[self._key]] = {"name": topic["name"], **ids, "partitions": []}
            self.topics.append(found)
        found["partitions"] += [
            {"partitionIndex": each["partitionIndex"], "errorCode": int(error)} for each in topic["partitions"]
        ]

    def there(self, topic: Values, count: int) -> list[Values]:
        """Refuses partitions that a topic of `count` partitions does not have.  Returns the topic with the others."""
        there: list[Values] = []
        gone: list[Values] = []
        for each in topic["partitions"]:
            (there if 0 <= each["partitionIndex"] < count else gone).append(each)
        if gone:
            self.refuse(topic | {"partitions": gone}, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        return [topic | {"partitions": there}] if there else []

    def add(self, topics: list[Values]) -> None:
        """Adds what the coordinator has answered."""
        if not self.topics:
            self.topics = topics
            return
        for topic in topics:
            found = self._by_key.get(topic[self._key])
            if found is None:
                self._by_key[topic[self._key]] = topic
                self.topics.append(topic)
            else:
                found["partitions"] += topic["partitions"]


def _named(broker: Broker, topics: list[Values]) -> list[Values]:
    """Returns topics that came by id with their names; unknown ones keep an empty name."""
    hosted = hosted_by(broker)
    found = []
    for topic in topics:
        known = None if topic["topicId"] == ZERO_UUID else hosted.with_id(topic["topicId"])
        found.append(topic if known is None else topic | {"name": known.name})
    return found


# --- OffsetFetch -----------------------------------------------------------------------------------------


def handle_offset_fetch(broker: Broker, request: Request) -> Values:
    body = request.body
    if request.api_version >= FETCHES_GROUPS:
        groups = [_fetched(broker, request, each) for each in body["groups"]]
        return {"throttleTimeMs": 0, "groups": groups}
    topics = body["topics"]
    single = {
        "groupId": body["groupId"],
        "memberId": None,
        "memberEpoch": -1,
        "topics": None if topics is None else [topic | {"topicId": ZERO_UUID} for topic in topics],
    }
    answer = _fetched(broker, request, single)
    found = [{"name": topic["name"], "partitions": topic["partitions"]} for topic in answer["topics"]]
    return {"throttleTimeMs": 0, "errorCode": answer["errorCode"], "topics": found}


def _fetched(broker: Broker, request: Request, group: Values) -> Values:
    if not broker.authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.GROUP, group["groupId"]):
        return _failed(group, Errors.GROUP_AUTHORIZATION_FAILED, request.api_version)
    if group["topics"] is None:
        return _all_of(broker, request, group)
    return _some_of(broker, request, group)


def _failed(group: Values, error: Errors, version: int) -> Values:
    topics = [_refused(topic, error) for topic in group["topics"]] if version < 2 else []
    return {"groupId": group["groupId"], "topics": topics, "errorCode": int(error)}


def _all_of(broker: Broker, request: Request, group: Values) -> Values:
    answer = _ask(broker, request, group)
    if answer["errorCode"]:
        return answer
    names = [topic["name"] for topic in answer["topics"]]
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    topics = [topic for topic in answer["topics"] if topic["name"] in allowed]
    if request.api_version >= FETCHES_BY_ID:
        hosted = hosted_by(broker)
        known = [(topic, hosted.named(topic["name"])) for topic in topics]
        topics = [topic | {"topicId": found.id} for topic, found in known if found is not None]
    return answer | {"topics": topics}


def _some_of(broker: Broker, request: Request, group: Values) -> Values:
    by_id = request.api_version >= FETCHES_BY_ID
    asked = _named(broker, group["topics"]) if by_id else group["topics"]
    names = [topic["name"] for topic in asked]
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    wanted, refused = [], []
    for topic in asked:
        if by_id and not topic["name"]:
            refused.append(_refused(topic, Errors.UNKNOWN_TOPIC_ID))
        elif topic["name"] not in allowed:
            refused.append(_refused(topic, Errors.TOPIC_AUTHORIZATION_FAILED))
        else:
            wanted.append(topic)
    answer = _ask(broker, request, group | {"topics": wanted})
    return answer if answer["errorCode"] else answer | {"topics": answer["topics"] + refused}


def _ask(broker: Broker, request: Request, group: Values) -> Values:
    require_stable: bool = request.body["requireStable"]
    return broker.groups.fetch_offsets(  # type: ignore[no-any-return]
        context_of(request), group, require_stable=require_stable
    )


def _refused(topic: Values, error: Errors) -> Values:
    partitions = [
        {
            "partitionIndex": number,
            "committedOffset": -1,
            "committedLeaderEpoch": -1,
            "metadata": "",
            "errorCode": int(error),
        }
        for number in topic["partitionIndexes"]
    ]
    return {"name": topic["name"], "topicId": topic["topicId"], "partitions": partitions}


# --- OffsetDelete ----------------------------------------------------------------------------------------


def handle_offset_delete(broker: Broker, request: Request) -> Values | None:
    body, authorizer = request.body, broker.authorizer
    if not authorizer.authorize(request, AclOperation.DELETE, ResourceType.GROUP, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    names = [topic["name"] for topic in body["topics"]]
    allowed = authorizer.filter_by_authorized(request, AclOperation.READ, ResourceType.TOPIC, names)
    hosted = hosted_by(broker)
    answers = Answers(by_id=False)
    wanted: list[Values] = []
    for topic in body["topics"]:
        found = hosted.named(topic["name"]) if topic["name"] in allowed else None
        if topic["name"] not in allowed:
            answers.refuse(topic, Errors.TOPIC_AUTHORIZATION_FAILED)
        elif found is None:
            answers.refuse(topic, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            wanted += answers.there(topic, found.partitions)
    answer: Values = broker.groups.delete_offsets(context_of(request), body | {"topics": wanted})
    if answer["errorCode"]:
        return answer
    answers.add(answer["topics"])
    return answer | {"topics": [{"name": each["name"], "partitions": each["partitions"]} for each in answers.topics]}


HANDLERS: dict[int, Handler] = {
    ApiKeys.OFFSET_COMMIT: handle_offset_commit,
    ApiKeys.OFFSET_FETCH: handle_offset_fetch,
    ApiKeys.OFFSET_DELETE: handle_offset_delete,
}
BLOCKING_IF = {
    ApiKeys.OFFSET_FETCH: LARGE,
}
