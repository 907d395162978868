"""ShareFetch and ShareAcknowledge: records of share groups, their acknowledgements, and share sessions.

    session     the partitions of this request, or of the session       share_sessions
    acks        those that come with a fetch are done before it          here
    fetch       at once, or when there is enough, or the time is over    share_fetch
    answer      the partitions, each with the result of its acks         here

A session ends with its connection: what its member has acquired is released. Records leave as slices of their files, as
in Fetch. Source: KafkaApis.handleShareFetchRequest and handleShareAcknowledgeRequest (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkalog.engine.coordinator.share_acquire import AcquireRequest
from kafkalog.engine.coordinator.share_config import READ_COMMITTED, ShareGroupSettings
from kafkalog.engine.coordinator.share_fetch import Answers, ShareFetch, partition_answer, rotated
from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
from kafkalog.engine.coordinator.share_partition import RENEW, ShareAcknowledgementBatch
from kafkalog.engine.coordinator.share_sessions import FINAL_EPOCH, ShareSessionContext, size_of
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import (
    KafkalogError,
    ShareSessionLimitReachedException,
    ShareSessionNotFoundException,
)
from kafkalog.server.handlers.groups import may_read_group
from kafkalog.server.hosted import hosted_by
from kafkalog.server.request import Pending
from kafkalog.server.security.acls import AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_partition_manager import SharePartitionManager
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

MEMBER_ID_LENGTH_MAX = 36
VERSION_WITH_RENEW = 2
KEY = "share"  # in the state of a connection, and of the broker
# One answer for each partition: an error code and its message.
Ended = dict[TopicIdPartition, tuple[int, "str | None"]]
Acks = dict[TopicIdPartition, list[ShareAcknowledgementBatch]]


def manager_of(broker: Broker) -> SharePartitionManager:
    """Returns the share partitions, with the server's settings."""
    manager: SharePartitionManager = broker.shares
    if KEY not in broker.state:
        broker.state[KEY] = True
        settings = broker.settings
        given = {name: settings.get(f"group.share.{name.replace('_', '.')}") for name in ShareGroupSettings._fields}
        manager.configs.defaults = manager.configs.defaults._replace(
            **{name: int(value) for name, value in given.items() if value is not None}
        )
        letters = broker.home.coordinators.served.dead_letters
        letters.creates_topics = str(settings.get("errors.deadletterqueue.auto.create.topics.enable")).lower() == "true"
        prefix = settings.get("errors.deadletterqueue.topic.name.prefix")
        letters.prefix = "dlq." if prefix is None else str(prefix)
    return manager


def _failed(error: int) -> Values:
    """Returns the answer to a request as a whole; Kafka's has no message."""
    return {"errorCode": int(error)}


def _refusal(broker: Broker, request: Request) -> Values | None:
    """Returns the answer to a client that may not use the group, or whose request names nobody."""
    body = request.body
    if body["groupId"] is None:
        return _failed(Errors.INVALID_REQUEST)
    if not may_read_group(broker, request, body["groupId"]):
        return _failed(Errors.GROUP_AUTHORIZATION_FAILED)
    if not body["memberId"] or len(body["memberId"]) > MEMBER_ID_LENGTH_MAX:
        return _failed(Errors.INVALID_REQUEST)
    return None


# --- ShareFetch ----------------------------------------------------------------------------------------


def handle_share_fetch(broker: Broker, request: Request) -> Values | Pending | None:
    body = request.body
    refusal = _refusal(broker, request)
    if refusal is not None:
        return refusal
    fetches = any(body[name] != 0 for name in ("maxBytes", "minBytes", "maxRecords", "maxWaitMs"))
    if fetches and body["isRenewAck"] and request.api_version >= VERSION_WITH_RENEW:
        return _failed(Errors.INVALID_REQUEST)
    fetch = _Fetch(broker, request)
    if fetch.acknowledges and broker.home.syncs:  # the acknowledgements wait for the disk
        broker.submit(fetch.run)
        return fetch.pending
    return fetch.run()


class _Fetch:
    """One ShareFetch request, until it is answered."""

    def __init__(self, broker: Broker, request: Request) -> None:
        self.broker = broker
        self.request = request
        self.pending = Pending()
        self._manager = manager_of(broker)
        self._hosted = hosted_by(broker)
        self.acknowledges = any(
            partition["acknowledgementBatches"] for topic in request.body["topics"] for partition in topic["partitions"]
        )
        self._answer: Values | None = None
        self._context = ShareSessionContext(0)
        self._refused: Answers = {}
        self._ended: Ended = {}

    def run(self) -> Values | Pending | None:
        """Acknowledges and fetches. Returns the answer, or what gets it later."""
        try:
            self._run()
        except ShareSessionLimitReachedException as error:
            answer = _failed(code_of(error))
            self.broker.later(self.request.body["maxWaitMs"], lambda: self.pending.complete(answer))
            return self.pending
        except Exception as error:
            if not isinstance(error, KafkalogError):
                Lines("kafkalog.server").exception("Error in a share fetch of %s", self.request.body["groupId"])
            self._answer = _failed(code_of(error))
            self.pending.complete(self._answer)
        return self._answer if self._answer is not None else self.pending

    def _run(self) -> None:
        request, body = self.request, self.request.body
        wanted = [
            self._place(topic["topicId"], partition["partitionIndex"])
            for topic in body["topics"]
            for partition in topic["partitions"]
        ]
        forgotten = [
            self._place(topic["topicId"], number)
            for topic in body["forgottenTopicsData"]
            for number in topic["partitions"]
        ]
        epoch = body["shareSessionEpoch"]
        self._context = self._manager.new_context(
            body["groupId"],
            body["memberId"],
            epoch,
            wanted,
            forgotten=forgotten,
            acknowledges=self.acknowledges,
            connection=request.connection.id,
        )
        _watch_connection(self.broker, request, self._manager)
        partitions = self._context.partitions()
        allowed = _allowed(self.broker, request, [*partitions, *wanted])
        if self.acknowledges:
            self._ended = _acknowledge(self.broker, self._manager, request, allowed)
        if body["isRenewAck"] and request.api_version >= VERSION_WITH_RENEW:
            self._done({})
            return
        readable = []
        for each in partitions:
            error = self._cannot_read(each, allowed)
            if error is None:
                readable.append(each)
            else:
                self._refused[each] = partition_answer(each, error)
        if not readable:
            self._done({})
            return
        limit = min(
            body["maxBytes"], self.broker.settings["fetch.max.bytes"], self.broker.quotas.fetch_bytes_max(request)
        )
        committed = self._manager.configs.isolation_level(body["groupId"]) == READ_COMMITTED
        acquire = AcquireRequest(
            body["memberId"], body["maxRecords"], body["batchSize"], body["shareAcquireMode"], committed
        )
        self._manager.fetch(
            ShareFetch(
                body["groupId"],
                rotated(readable, epoch),
                acquire,
                self._done,
                min_bytes=min(body["minBytes"], limit),
                max_bytes=limit,
                max_wait_ms=body["maxWaitMs"],
            )
        )

    def _place(self, topic_id: str, number: int) -> TopicIdPartition:
        topic = self._hosted.with_id(topic_id)
        return TopicIdPartition(topic_id, number, None if topic is None else topic.name)

    def _cannot_read(self, partition: TopicIdPartition, allowed: Mapping[str, bool]) -> Errors | None:
        if partition.topic is None:
            return Errors.UNKNOWN_TOPIC_ID
        if not allowed[partition.topic]:
            return Errors.TOPIC_AUTHORIZATION_FAILED
        topic = self._hosted.named(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        return None

    def _done(self, answers: Answers) -> None:
        """Answers, with what was read."""
        request, body, quotas = self.request, self.request.body, self.broker.quotas
        answers |= self._refused
        error, told = self._context.answer(answers)
        size = sum(size_of(each["records"]) for each in told.values())
        throttle_ms = quotas.fetch(request, size)
        if throttle_ms:
            quotas.unrecord_fetch(request, size)
            told = {}
        response: Values = {
            "throttleTimeMs": throttle_ms,
            "errorCode": error,
            "acquisitionLockTimeoutMs": self._manager.configs.record_lock_duration_ms(body["groupId"]),
            "responses": _by_topic(told),
            "nodeEndpoints": [],
        }
        _add_ended(response["responses"], self._ended)
        if body["shareSessionEpoch"] == FINAL_EPOCH:
            _release(self._manager, body["groupId"], body["memberId"])
        self._answer = response
        self.pending.complete(response)


def _by_topic(answers: Answers) -> list[Values]:
    topics: dict[str, Values] = {}
    for partition, answer in answers.items():
        topic = topics.setdefault(partition.topic_id, {"topicId": partition.topic_id, "partitions": []})
        topic["partitions"].append({**answer, "errorMessage": None})
    return list(topics.values())


def _add_ended(responses: list[Values], ended: Ended) -> None:
    """Adds the results of acknowledgements to the partitions of a response."""
    topics = {topic["topicId"]: topic for topic in responses}
    for partition, (error, message) in ended.items():
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = {"topicId": partition.topic_id, "partitions": []}
            responses.append(topic)
        found: Values | None = None
        for each in topic["partitions"]:
            if each["partitionIndex"] == partition.partition:
                found = each
        if found is None:
            found = {"partitionIndex": partition.partition, "errorCode": 0, "records": b"", "acquiredRecords": []}
            topic["partitions"].append(found)
        found["acknowledgeErrorCode"] = error
        found["acknowledgeErrorMessage"] = message


# --- ShareAcknowledge ----------------------------------------------------------------------------------


def handle_share_acknowledge(broker: Broker, request: Request) -> Values | None:
    body = request.body
    refusal = _refusal(broker, request)
    if refusal is not None:
        return refusal
    manager = manager_of(broker)
    try:
        manager.acknowledge_session_update(body["groupId"], body["memberId"], body["shareSessionEpoch"])
    except KafkalogError as refused:
        return _failed(code_of(refused))
    hosted = hosted_by(broker)
    places = []
    for topic in body["topics"]:
        found = hosted.with_id(topic["topicId"])
        if found is not None:
            places.append(TopicIdPartition(topic["topicId"], 0, found.name))
    ended = _acknowledge(broker, manager, request, _allowed(broker, request, places))
    if body["shareSessionEpoch"] == FINAL_EPOCH:
        _release(manager, body["groupId"], body["memberId"])
    topics: dict[str, Values] = {}
    for partition, (error, message) in ended.items():
        topic = topics.setdefault(partition.topic_id, {"topicId": partition.topic_id, "partitions": []})
        topic["partitions"].append({"partitionIndex": partition.partition, "errorCode": error, "errorMessage": message})
    return {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "acquisitionLockTimeoutMs": manager.configs.record_lock_duration_ms(body["groupId"]),
        "responses": list(topics.values()),
        "nodeEndpoints": [],
    }


# --- what both share -----------------------------------------------------------------------------------


def _allowed(broker: Broker, request: Request, places: Iterable[TopicIdPartition]) -> dict[str, bool]:
    """Returns for each topic whether the client may read it."""
    names = {each.topic for each in places if each.topic is not None}
    may = broker.authorizer.filter_by_authorized(request, AclOperation.READ, ResourceType.TOPIC, names)
    return {name: name in may for name in names}


def _acknowledge(
    broker: Broker, manager: SharePartitionManager, request: Request, allowed: Mapping[str, bool]
) -> Ended:
    """Ends deliveries as the request says. Returns the result of each partition that it names."""
    body, hosted = request.body, hosted_by(broker)
    ended: Ended = {}
    nothing: Ended = {}
    acks: Acks = {}
    for topic in body["topics"]:
        found = hosted.with_id(topic["topicId"])
        for each in topic["partitions"]:
            place = TopicIdPartition(topic["topicId"], each["partitionIndex"], None if found is None else found.name)
            batches = [
                ShareAcknowledgementBatch(batch["firstOffset"], batch["lastOffset"], batch["acknowledgeTypes"])
                for batch in each["acknowledgementBatches"]
            ]
            error = Errors.NONE
            if found is None:
                error = Errors.UNKNOWN_TOPIC_ID
            elif not _are_valid(batches, request.api_version, renews=body["isRenewAck"]):
                error = Errors.INVALID_REQUEST
            elif not allowed[found.name]:
                error = Errors.TOPIC_AUTHORIZATION_FAILED
            elif not 0 <= place.partition < found.partitions:
                error = Errors.UNKNOWN_TOPIC_OR_PARTITION
            elif batches:
                acks[place] = batches
                continue
            else:
                nothing[place] = (0, None)
                continue
            ended[place] = (int(error), None)
    if acks:  # Kafka mentions a partition without acknowledgements only beside one with some
        ended |= nothing
    for place, failed in manager.acknowledge(body["groupId"], body["memberId"], acks).items():
        ended[place] = (0, None) if failed is None else (int(code_of(failed)), failed.message)
    return ended


def _are_valid(batches: Sequence[ShareAcknowledgementBatch], version: int, *, renews: bool) -> bool:
    """Returns whether the batches ascend, and have types that the version knows."""
    most = RENEW if version >= VERSION_WITH_RENEW else RENEW - 1
    previous = -1
    for first, last, types in batches:
        if first > last or first < previous or not types or (len(types) > 1 and last - first != len(types) - 1):
            return False
        if any(not 0 <= kind <= most for kind in types) or (RENEW in types and not renews):
            return False
        previous = last
    return True


def _release(manager: SharePartitionManager, group: str, member: str) -> None:
    """Ends a session; an error is only logged, because the answer does not have it."""
    try:
        outcome: Mapping[Any, KafkalogError | None] = manager.release_session(group, member)
    except ShareSessionNotFoundException as error:
        outcome = {None: error}
    for failed in filter(None, outcome.values()):
        Lines("kafkalog.server").info("the end of the share session of %s in %s: %s", member, group, failed)


def _watch_connection(broker: Broker, request: Request, manager: SharePartitionManager) -> None:
    """Ends the share sessions of a connection with it."""
    connection = request.connection
    if KEY not in connection.state:
        connection.state[KEY] = True

        def ended() -> None:
            broker.submit(lambda: manager.sessions.on_disconnect(connection.id))

        connection.on_close(ended)


HANDLERS: dict[int, Handler] = {
    ApiKeys.SHARE_FETCH: handle_share_fetch,
    ApiKeys.SHARE_ACKNOWLEDGE: handle_share_acknowledge,
}
BLOCKING = {ApiKeys.SHARE_ACKNOWLEDGE}
