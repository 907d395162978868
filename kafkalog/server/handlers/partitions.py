"""Questions about partitions: ListOffsets, OffsetForLeaderEpoch, DescribeProducers; and DeleteRecords.

The rules of a log are the engine's.  Here is what a leader of one replica adds: leader epochs that a request names, the
end that a reader may see, and the errors.  A partition of an internal topic that nobody has written to is an empty log.

A look-up by time reads an index and a batch, and so runs in the pool, like a deletion of records.

Source: KafkaApis, ReplicaManager.fetchOffset, lastOffsetForLeaderEpoch and deleteRecords, Partition (4.4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of, message_of
from kafkalog.engine.format.names import TopicPartition, validate_topic_name
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.log import list_offsets
from kafkalog.errors import KafkalogError, KafkaStorageException
from kafkalog.server.data_plane import data_of
from kafkalog.server.error_answers import error_response
from kafkalog.server.hosted import HostedTopics, leader_epoch_of
from kafkalog.server.request import LARGE, Pending, Request, Values

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.server.broker import Broker

NOTHING = -1
CONSUMER = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
VERSION_WITH_EPOCHS = 4
_LINES = Lines("kafkalog.server")
# The lowest version of each special time.
SPECIAL_TIMES: Mapping[int, int] = {
    list_offsets.LATEST_TIMESTAMP: 1,
    list_offsets.EARLIEST_TIMESTAMP: 1,
    list_offsets.MAX_TIMESTAMP: 7,
    list_offsets.EARLIEST_LOCAL_TIMESTAMP: 8,
    list_offsets.LATEST_TIERED_TIMESTAMP: 9,
    list_offsets.EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
EARLIEST = (list_offsets.EARLIEST_TIMESTAMP, list_offsets.EARLIEST_LOCAL_TIMESTAMP)


def wrong_epoch(log: UnifiedLog | None, asked: int) -> Errors:
    """Returns the error for the leader epoch that a request names; NONE if it is right, or -1."""
    current = leader_epoch_of(log)
    if asked in (NOTHING, current):
        return Errors.NONE
    return Errors.FENCED_LEADER_EPOCH if current > asked else Errors.UNKNOWN_LEADER_EPOCH


def error_of(error: Exception, doing: str, *args: object) -> Errors:
    """Returns the code of an error, and logs one that is a bug."""
    if not isinstance(error, KafkalogError):
        _LINES.error(f"Error while {doing}", *args, exc_info=error)
    return code_of(error)


# --- ListOffsets ----------------------------------------------------------------------------------------


def handle_list_offsets(broker: Broker, request: Request) -> Values | Pending:
    """Finds offsets by time.  The ends of logs are known; anything else is read in the pool."""
    if request.body["isolationLevel"] not in (READ_UNCOMMITTED, READ_COMMITTED) and _may_any(broker, request):
        return error_response(request, Errors.UNKNOWN_SERVER_ERROR) or {}
    ends = (list_offsets.LATEST_TIMESTAMP, list_offsets.EARLIEST_TIMESTAMP)
    if all(each["timestamp"] in ends for topic in request.body["topics"] for each in topic["partitions"]):
        return _offsets(broker, request)
    pending = Pending()

    def find() -> None:
        try:
            pending.complete(_offsets(broker, request))
        except Exception as error:
            pending.fail(error)

    broker.submit(find)
    return pending


def _may_any(broker: Broker, request: Request) -> bool:
    """Returns whether the client may see a topic of the request.  Kafka looks at the isolation level only then."""
    names, authorizer = [each["name"] for each in request.body["topics"]], broker.authorizer
    return any(not authorizer.is_on or authorizer.authorize(request, "DESCRIBE", "TOPIC", each) for each in names)


def _offsets(broker: Broker, request: Request) -> Values:
    hosted = data_of(broker).hosted
    body = request.body
    seen: set[tuple[str, int]] = set()
    twice: set[tuple[str, int]] = set()
    for topic in body["topics"]:
        for each in topic["partitions"]:
            place = (topic["name"], each["partitionIndex"])
            (twice if place in seen else seen).add(place)
    answers: dict[str, dict[int, Values]] = {}
    refused: list[Values] = []
    for topic in body["topics"]:
        name = topic["name"]
        if broker.authorizer.is_on and not broker.authorizer.authorize(request, "DESCRIBE", "TOPIC", name):
            told = [
                _no_offset(each["partitionIndex"], Errors.TOPIC_AUTHORIZATION_FAILED) for each in topic["partitions"]
            ]
            refused.append({"name": name, "partitions": told})
            continue
        for each in topic["partitions"]:
            answer = answers.setdefault(name, {})
            number = each["partitionIndex"]
            if (name, number) in twice:
                answer[number] = _no_offset(number, Errors.INVALID_REQUEST)
            else:
                answer[number] = _offset(hosted, name, each, body, request.api_version)
    found = [{"name": name, "partitions": list(each.values())} for name, each in answers.items()]
    return {"throttleTimeMs": 0, "topics": found + refused}


def _no_offset(number: int, error: Errors) -> Values:
    return {"partitionIndex": number, "errorCode": int(error), "timestamp": -1, "offset": -1}


def _offset(hosted: HostedTopics, name: str, asked: Values, body: Values, version: int) -> Values:
    number, timestamp = asked["partitionIndex"], asked["timestamp"]
    if timestamp < 0 and version < SPECIAL_TIMES.get(timestamp, version + 1):
        return _no_offset(number, Errors.UNSUPPORTED_VERSION)
    try:
        log = hosted.topic_with(name, number).log(number)
        error = wrong_epoch(log, asked["currentLeaderEpoch"])
        if error:
            return _no_offset(number, error)
        if body["replicaId"] != CONSUMER:
            end = 0 if log is None else log.log_end_offset
        elif body["isolationLevel"] == READ_COMMITTED:
            end = 0 if log is None else log.last_stable_offset
        else:
            end = 0 if log is None else log.high_watermark
        epoch: int | None
        if timestamp == list_offsets.LATEST_TIMESTAMP:
            time, offset, epoch = -1, end, leader_epoch_of(log)
        else:
            found = None if log is None else log.fetch_offset_by_timestamp(timestamp)
            if log is None and timestamp in EARLIEST:
                time, offset, epoch = -1, 0, 0
            elif found is None or (timestamp not in EARLIEST and found.offset >= end):
                return _no_offset(number, Errors.NONE)
            else:
                time, offset, epoch = found
                if epoch is None and log is not None and log.latest_epoch is None:
                    epoch = 0
    except Exception as error:
        return _no_offset(number, error_of(error, "listing offsets of %s-%d", name, number))
    told = {"partitionIndex": number, "errorCode": 0, "timestamp": time, "offset": offset}
    if epoch is not None and version >= VERSION_WITH_EPOCHS:
        told["leaderEpoch"] = epoch
    return told


# --- OffsetForLeaderEpoch -------------------------------------------------------------------------------


def handle_offset_for_leader_epoch(broker: Broker, request: Request) -> Values:
    """Finds where epochs end."""
    hosted = data_of(broker).hosted
    may_all = not broker.authorizer.is_on or broker.authorizer.authorize(
        request, "CLUSTER_ACTION", "CLUSTER", "kafka-cluster"
    )
    topics, refused = [], []
    for topic in request.body["topics"]:
        name = topic["topic"]
        if may_all or broker.authorizer.authorize(request, "DESCRIBE", "TOPIC", name):
            topics.append(
                {"topic": name, "partitions": [_epoch_end(hosted, name, each) for each in topic["partitions"]]}
            )
        else:
            code = int(Errors.TOPIC_AUTHORIZATION_FAILED)
            told = [{"errorCode": code, "partition": each["partition"]} for each in topic["partitions"]]
            refused.append({"topic": name, "partitions": told})
    return {"throttleTimeMs": 0, "topics": topics + refused}


def _epoch_end(hosted: HostedTopics, name: str, asked: Values) -> Values:
    number, epoch = asked["partition"], asked["leaderEpoch"]
    told: Values = {"partition": number, "errorCode": 0}
    try:
        log = hosted.topic_with(name, number).log(number)
        told["errorCode"] = int(wrong_epoch(log, asked["currentLeaderEpoch"]))
        if told["errorCode"]:
            return told
        if log is None or log.latest_epoch is None:  # a leader begins its epoch before it appends
            if epoch == 0:
                told |= {"leaderEpoch": 0, "endOffset": 0 if log is None else log.log_end_offset}
            return told
        found = log.end_offset_for_epoch(epoch)
        if found is not None:
            told |= {"leaderEpoch": found.epoch, "endOffset": found.offset}
    except Exception as error:
        told["errorCode"] = int(error_of(error, "looking for the end of an epoch in %s-%d", name, number))
    return told


# --- DeleteRecords --------------------------------------------------------------------------------------


def handle_delete_records(broker: Broker, request: Request) -> Values:
    """Moves the starts of logs."""
    hosted = data_of(broker).hosted
    topics: dict[str, dict[int, Values]] = {}
    for topic in request.body["topics"]:
        name = topic["name"]
        is_allowed = not broker.authorizer.is_on or broker.authorizer.authorize(request, "DELETE", "TOPIC", name)
        for each in topic["partitions"]:
            answer = topics.setdefault(name, {})
            number = each["partitionIndex"]
            low, error = -1, Errors.TOPIC_AUTHORIZATION_FAILED
            if is_allowed:
                low, error = _delete(hosted, name, number, each["offset"])
            answer[number] = {"partitionIndex": number, "lowWatermark": low, "errorCode": int(error)}
    found = [{"name": name, "partitions": list(each.values())} for name, each in topics.items()]
    return {"throttleTimeMs": 0, "topics": found}


def _delete(hosted: HostedTopics, name: str, number: int, offset: int) -> tuple[int, Errors]:
    try:
        topic = hosted.topic_with(name, number)
        if topic.is_internal:
            return -1, Errors.INVALID_TOPIC_EXCEPTION
        if offset < -1:
            return -1, Errors.OFFSET_OUT_OF_RANGE
        log = topic.log(number)
        assert log is not None, (name, number)
        try:
            return log.delete_records(offset), Errors.NONE
        except KafkaStorageException:
            moved = hosted.log_now(TopicPartition(name, number))
            if moved is None or moved is log:
                raise
            return moved.delete_records(offset), Errors.NONE
    except Exception as error:
        return -1, error_of(error, "deleting records of %s-%d", name, number)


# --- DescribeProducers ----------------------------------------------------------------------------------


def handle_describe_producers(broker: Broker, request: Request) -> Values:
    """Describes the producers that partitions remember."""
    hosted = data_of(broker).hosted
    topics = []
    for topic in request.body["topics"]:
        name = topic["name"]
        error, text = _topic_error(broker, request, hosted, name)
        told = []
        for number in topic["partitionIndexes"]:
            if error:
                told.append({"partitionIndex": number, "errorCode": int(error), "errorMessage": text})
            else:
                told.append(_producers(hosted, name, number))
        topics.append({"name": name, "partitions": told})
    return {"throttleTimeMs": 0, "topics": topics}


def _topic_error(broker: Broker, request: Request, hosted: HostedTopics, name: str) -> tuple[Errors, str | None]:
    try:
        validate_topic_name(name)
    except KafkalogError as refused:
        return code_of(refused), refused.message
    error = Errors.NONE
    if broker.authorizer.is_on and not broker.authorizer.authorize(request, "READ", "TOPIC", name):
        error = Errors.TOPIC_AUTHORIZATION_FAILED
    elif hosted.named(name) is None:
        error = Errors.UNKNOWN_TOPIC_OR_PARTITION
    return error, message_of(error)


def _producers(hosted: HostedTopics, name: str, number: int) -> Values:
    told: Values = {"partitionIndex": number, "errorCode": 0, "activeProducers": []}
    try:
        log = hosted.topic_with(name, number).log(number)
        for producer_id, entry in log.active_producers.items() if log is not None else ():
            start = entry.current_txn_first_offset
            told["activeProducers"].append(
                {
                    "producerId": producer_id,
                    "producerEpoch": entry.producer_epoch,
                    "lastSequence": entry.last_seq,
                    "lastTimestamp": entry.last_timestamp,
                    "coordinatorEpoch": entry.coordinator_epoch,
                    "currentTxnStartOffset": -1 if start is None else start,
                }
            )
    except Exception as error:
        told["errorCode"] = int(error_of(error, "describing the producers of %s-%d", name, number))
    return told


HANDLERS = {
    ApiKeys.LIST_OFFSETS: handle_list_offsets,
    ApiKeys.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKeys.DELETE_RECORDS: handle_delete_records,
    ApiKeys.DESCRIBE_PRODUCERS: handle_describe_producers,
}
BLOCKING = {ApiKeys.DELETE_RECORDS, ApiKeys.DESCRIBE_PRODUCERS}
BLOCKING_IF = {
    ApiKeys.LIST_OFFSETS: LARGE,
    ApiKeys.OFFSET_FOR_LEADER_EPOCH: LARGE,
}
