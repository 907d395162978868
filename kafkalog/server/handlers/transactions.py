"""The requests of transactional and idempotent producers, and the questions about transactions.

The coordinator of the store does the work; here are the permissions, the checks of a broker, and the errors as each
version of a request knows them: PRODUCER_FENCED is INVALID_PRODUCER_EPOCH for older clients.

A broker answers EndTxn once the decision is durable, and writes the markers afterwards; here the markers are written
first.  If a marker cannot be written now, the decision stands and the answer is the same; the store tries again.

Source: KafkaApis, TransactionCoordinator (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.coordinator.topic_regex import compile_for, letters_of
from kafkalog.engine.coordinator.transaction_metadata import STATE_NAMES, ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.errors import (
    InvalidRegularExpression,
    InvalidRequestException,
    InvalidTxnTimeoutException,
    KafkalogError,
    TransactionalIdNotFoundException,
)
from kafkalog.server.data_plane import data_of
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import LARGE, Request, Values, merged
from kafkalog.server.verification import confirm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.server.broker import Broker

CLUSTER = "kafka-cluster"
NOTHING = -1
TIMEOUT_MAX = 2**31 - 1
VERSION_OF_BROKERS = 4  # AddPartitionsToTxn from here on comes from brokers
ENDING = {True: "PrepareCommit", False: "PrepareAbort"}
_LINES = Lines("kafkalog.server")


def _may(broker: Broker, request: Request, operation: str, resource_type: str, name: str) -> bool:
    return not broker.authorizer.is_on or broker.authorizer.authorize(request, operation, resource_type, name)


def _may_on_cluster(broker: Broker, request: Request, *operations: str) -> bool:
    return any(_may(broker, request, operation, "CLUSTER", CLUSTER) for operation in operations)


def _for_version(error: Errors, version: int, first_that_knows: int) -> int:
    """Returns the code of an error as a version of a request knows it."""
    if error is Errors.PRODUCER_FENCED and version < first_that_knows:
        return int(Errors.INVALID_PRODUCER_EPOCH)
    return int(error)


def _outcome(doing: str, run: Callable[[], Any]) -> tuple[Errors, Any]:
    """Runs a call of the coordinator.  Returns its error and its result."""
    try:
        return Errors.NONE, run()
    except KafkalogError as error:
        return code_of(error), None
    except Exception:
        _LINES.exception("Error while %s", doing)
        return Errors.UNKNOWN_SERVER_ERROR, None


# --- InitProducerId -------------------------------------------------------------------------------------


def handle_init_producer_id(broker: Broker, request: Request) -> Values:
    """Gives a producer its id and epoch."""
    body = request.body
    transactional_id = body["transactionalId"]
    data_of(broker)  # has taken the settings over
    error = _may_init(broker, request)
    holder = ProducerIdAndEpoch(NOTHING, NOTHING)
    if not error and (body["producerId"] == NOTHING) is not (body["producerEpoch"] == NOTHING):
        error = Errors.INVALID_REQUEST
    if not error:
        coordinators = broker.home.coordinators
        if transactional_id is None:
            error, found = _outcome("allocating a producer id", coordinators.producer_ids.next)
            if not error:
                holder = ProducerIdAndEpoch(found, 0)
        else:
            error, found = _init_transactional(broker, body)
            holder = found or holder
    code = _for_version(error, request.api_version, 4)
    return {
        "throttleTimeMs": 0, "errorCode": code, "producerId": holder.producer_id, "producerEpoch": holder.epoch,
    }  # fmt: skip


def _may_init(broker: Broker, request: Request) -> Errors:
    body = request.body
    transactional_id = body["transactionalId"]
    if transactional_id is not None:
        needs = ["WRITE", "TWO_PHASE_COMMIT"] if body["enable2Pc"] else ["WRITE"]
        if all(_may(broker, request, each, "TRANSACTIONAL_ID", transactional_id) for each in needs):
            return Errors.NONE
        return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if _may_on_cluster(broker, request, "IDEMPOTENT_WRITE"):
        return Errors.NONE
    if broker.authorizer.authorize_by_resource_type(request, "WRITE", "TOPIC"):
        return Errors.NONE
    return Errors.CLUSTER_AUTHORIZATION_FAILED


def _init_transactional(broker: Broker, body: Values) -> tuple[Errors, ProducerIdAndEpoch | None]:
    transactional_id, timeout_ms, is_two_phase = (
        body["transactionalId"],
        body["transactionTimeoutMs"],
        body["enable2Pc"],
    )
    if not transactional_id:
        return Errors.INVALID_REQUEST, None
    if is_two_phase and not data_of(broker).has_two_phases:
        return Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None
    if body["keepPreparedTxn"]:
        return Errors.UNSUPPORTED_VERSION, None
    coordinators = broker.home.coordinators
    if is_two_phase:
        timeout_ms = TIMEOUT_MAX
    else:
        try:
            coordinators.transactions.check_timeout(timeout_ms)
        except InvalidTxnTimeoutException:
            return Errors.INVALID_TRANSACTION_TIMEOUT, None
    expected = None
    if body["producerId"] != NOTHING:
        expected = ProducerIdAndEpoch(body["producerId"], body["producerEpoch"])
    coordinators.ids.hand_over(transactional_id)
    return _outcome(
        f"giving a producer id to {transactional_id!r}",
        lambda: coordinators.transactions.init_client(
            transactional_id, timeout_ms, expected, coordinators.producer_ids
        ),
    )


# --- AddPartitionsToTxn ---------------------------------------------------------------------------------


def handle_add_partitions_to_txn(broker: Broker, request: Request) -> Values | None:
    """Adds partitions to transactions, or says which are in them."""
    body, version = request.body, request.api_version
    if version >= VERSION_OF_BROKERS:
        if not _may_on_cluster(broker, request, "CLUSTER_ACTION"):
            return error_response(request, Errors.CLUSTER_AUTHORIZATION_FAILED)
        topics = {each["transactionalId"]: each["topics"] for each in body["transactions"]}
        first = {each["transactionalId"]: each["topics"] for each in reversed(body["transactions"])}
        results = []
        for each in body["transactions"]:  # an id that comes twice has the partitions of the last
            name = each["transactionalId"]
            told = _added(broker, request, {**each, "topics": topics[name]}, first[name])
            results.append({"transactionalId": name, "topicResults": told})
        return {"throttleTimeMs": 0, "errorCode": 0, "resultsByTransaction": results}
    asked = {
        "transactionalId": body["v3AndBelowTransactionalId"],
        "producerId": body["v3AndBelowProducerId"],
        "producerEpoch": body["v3AndBelowProducerEpoch"],
        "topics": body["v3AndBelowTopics"],
        "verifyOnly": False,
    }
    return {"throttleTimeMs": 0, "resultsByTopicV3AndBelow": _added(broker, request, asked, asked["topics"])}


def _added(broker: Broker, request: Request, asked: Values, told: list[Values]) -> list[Values]:
    """Returns the results of the topics; of those `told` if all have the same."""
    version, transactional_id = request.api_version, asked["transactionalId"]
    if transactional_id is None:
        raise InvalidRequestException("Transactional ID can not be null in request.")
    is_client = version < VERSION_OF_BROKERS
    places = [TopicPartition(topic["name"], number) for topic in asked["topics"] for number in topic["partitions"]]
    places = list(dict.fromkeys(places))
    if is_client and not _may(broker, request, "WRITE", "TRANSACTIONAL_ID", transactional_id):
        return _all_topics(told, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    refused = _not_there(broker, request, places, is_client=is_client)
    if refused:
        return _by_topic({each: int(refused.get(each, Errors.OPERATION_NOT_ATTEMPTED)) for each in places})
    holder = ProducerIdAndEpoch(asked["producerId"], asked["producerEpoch"])
    transactions = broker.home.coordinators.transactions
    if not transactional_id:
        if asked["verifyOnly"]:
            return _by_topic(dict.fromkeys(places, int(Errors.INVALID_REQUEST)))
        error = Errors.INVALID_REQUEST
    elif asked["verifyOnly"]:
        error, missing = _outcome(
            "verifying partitions", lambda: transactions.partitions_outside(transactional_id, holder, places)
        )
        if not error:
            absent = set(missing)
            return _by_topic(
                {each: int(Errors.TRANSACTION_ABORTABLE if each in absent else Errors.NONE) for each in places}
            )
        return _by_topic(dict.fromkeys(places, int(error)))
    else:
        client = TransactionVersion.TV_0 if is_client else TransactionVersion.TV_2
        error, _ = _outcome(
            "adding partitions", lambda: transactions.add_partitions(transactional_id, holder, places, client)
        )
    return _all_topics(told, _for_version(error, version, 2))


def _all_topics(topics: list[Values], code: int) -> list[Values]:
    """Returns all topics of the request, also those without partitions, with one code."""
    return [
        {
            "name": topic["name"],
            "resultsByPartition": [
                {"partitionIndex": number, "partitionErrorCode": int(code)} for number in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def _not_there(
    broker: Broker, request: Request, places: Iterable[TopicPartition], *, is_client: bool
) -> dict[TopicPartition, Errors]:
    """Returns the errors of partitions that the client may not write to, or that do not exist."""
    hosted = data_of(broker).hosted
    refused = {}
    allowed: dict[str, bool] = {}
    for each in places:
        name = each.topic
        if is_client and name not in allowed:
            allowed[name] = name not in INTERNAL_TOPICS and _may(broker, request, "WRITE", "TOPIC", name)
        topic = hosted.named(name)
        if is_client and not allowed[name]:
            refused[each] = Errors.TOPIC_AUTHORIZATION_FAILED
        elif topic is None or not 0 <= each.partition < topic.partitions:
            refused[each] = Errors.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _by_topic(codes: dict[TopicPartition, int]) -> list[Values]:
    topics: dict[str, list[Values]] = {}
    for place, code in codes.items():
        told = {"partitionIndex": place.partition, "partitionErrorCode": code}
        topics.setdefault(place.topic, []).append(told)
    return [{"name": name, "resultsByPartition": results} for name, results in topics.items()]


# --- offsets --------------------------------------------------------------------------------------------


def handle_add_offsets_to_txn(broker: Broker, request: Request) -> Values:
    """Adds the partition of a group's offsets to a transaction."""
    body = request.body
    transactional_id, group = body["transactionalId"], body["groupId"]
    if not _may(broker, request, "WRITE", "TRANSACTIONAL_ID", transactional_id):
        error = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not _may(broker, request, "READ", "GROUP", group):
        error = Errors.GROUP_AUTHORIZATION_FAILED
    elif not transactional_id:
        error = Errors.INVALID_REQUEST
    else:
        holder = ProducerIdAndEpoch(body["producerId"], body["producerEpoch"])
        transactions = broker.home.coordinators.transactions
        error, _ = _outcome(
            "adding offsets",
            lambda: transactions.add_offsets(transactional_id, holder, group, TransactionVersion.TV_0),
        )
    return {"throttleTimeMs": 0, "errorCode": _for_version(error, request.api_version, 2)}


def handle_txn_offset_commit(broker: Broker, request: Request) -> Values | None:
    """Commits offsets of a group within a transaction."""
    body, version = request.body, request.api_version
    if not _may(broker, request, "WRITE", "TRANSACTIONAL_ID", body["transactionalId"]):
        return error_response(request, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not _may(broker, request, "READ", "GROUP", body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    hosted = data_of(broker).hosted
    refused: list[Values] = []
    wanted: list[Values] = []
    for asked in body["topics"]:
        topic = hosted.with_id(asked["topicId"]) if version >= 6 else hosted.named(asked["name"])
        name = asked["name"] if topic is None else topic.name
        error = Errors.NONE
        if topic is None and version >= 6:
            error = Errors.UNKNOWN_TOPIC_ID
        elif not _may(broker, request, "READ", "TOPIC", name):
            error = Errors.TOPIC_AUTHORIZATION_FAILED
        elif topic is None:
            error = Errors.UNKNOWN_TOPIC_OR_PARTITION
        told, kept = [], []
        for each in asked["partitions"]:
            if not error and topic is not None and 0 <= each["partitionIndex"] < topic.partitions:
                kept.append(each)
            else:
                code = int(error or Errors.UNKNOWN_TOPIC_OR_PARTITION)
                told.append({"partitionIndex": each["partitionIndex"], "errorCode": code})
        topic_id = asked["topicId"] if topic is None else topic.id
        if told or error:
            refused.append({"name": name, "topicId": topic_id, "partitions": told})
        if kept:
            wanted.append({"name": name, "topicId": topic_id, "partitions": kept})
    refused = merged(refused, _name_or_id, "partitions")
    if not wanted:
        return {"throttleTimeMs": 0, "topics": refused}
    found = _commit_offsets(broker, request, {**body, "topics": wanted})
    topics = merged([*refused, *found["topics"]], _name_or_id, "partitions") if refused else found["topics"]
    if version < 2:
        _without_loading(topics)
    return {"throttleTimeMs": 0, "topics": topics}


def _commit_offsets(broker: Broker, request: Request, body: Values) -> Values:
    version, coordinators = request.api_version, broker.home.coordinators
    holder = ProducerIdAndEpoch(body["producerId"], body["producerEpoch"])
    place = TopicPartition(GROUP_METADATA_TOPIC, partition_for(body["groupId"], coordinators.offsets_partitions))
    errors = {}
    if body["groupId"]:  # another one is refused by the coordinator of groups
        errors = confirm(
            coordinators.transactions,
            body["transactionalId"],
            holder,
            [place],
            adds=version > 4,
            knows_abortable=version > 3,
        )
    error = errors.get(place)
    if error is not None:
        if error in (Errors.NETWORK_EXCEPTION, Errors.REQUEST_TIMED_OUT, Errors.NOT_ENOUGH_REPLICAS):
            error = Errors.COORDINATOR_NOT_AVAILABLE
        return _all_failed(body, error)
    context = RequestContext(
        request.client_id or "", f"/{request.connection.host}", version, str(request.connection.principal)
    )
    try:
        answer: Values = broker.groups.commit_transactional_offsets(context, body)
        return answer
    except KafkalogError as problem:
        return _all_failed(body, code_of(problem))


def _all_failed(body: Values, error: Errors) -> Values:
    return {
        "topics": [
            {
                "name": topic["name"],
                "topicId": topic["topicId"],
                "partitions": [
                    {"partitionIndex": each["partitionIndex"], "errorCode": int(error)} for each in topic["partitions"]
                ],
            }
            for topic in body["topics"]
        ]
    }


def _name_or_id(topic: Values) -> str:
    return str(topic["name"] or topic["topicId"])


def _without_loading(topics: list[Values]) -> None:
    """Old clients do not know that a coordinator may be loading."""
    for topic in topics:
        for each in topic["partitions"]:
            if each["errorCode"] == Errors.COORDINATOR_LOAD_IN_PROGRESS:
                each["errorCode"] = int(Errors.COORDINATOR_NOT_AVAILABLE)


# --- the end --------------------------------------------------------------------------------------------


def handle_end_txn(broker: Broker, request: Request) -> Values:
    """Commits or aborts a transaction."""
    body, version = request.body, request.api_version
    transactional_id = body["transactionalId"]
    next_holder = ProducerIdAndEpoch(NOTHING, NOTHING)
    if not _may(broker, request, "WRITE", "TRANSACTIONAL_ID", transactional_id):
        return {"throttleTimeMs": 0, "errorCode": int(Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    if not transactional_id:
        error = Errors.INVALID_REQUEST
    else:
        error, found = _end(broker, body, TransactionVersion.TV_2 if version > 4 else TransactionVersion.TV_0)
        next_holder = found or next_holder
    return {
        "throttleTimeMs": 0,
        "errorCode": _for_version(error, version, 2),
        "producerId": next_holder.producer_id,
        "producerEpoch": next_holder.epoch,
    }


def _end(broker: Broker, body: Values, client: TransactionVersion) -> tuple[Errors, ProducerIdAndEpoch | None]:
    transactions = broker.home.coordinators.transactions
    transactional_id, commit = body["transactionalId"], body["committed"]
    holder = ProducerIdAndEpoch(body["producerId"], body["producerEpoch"])
    error, found = _outcome(
        f"ending the transaction of {transactional_id!r}",
        lambda: transactions.end_transaction(transactional_id, holder, commit=commit, client_version=client),
    )
    if error in (Errors.NONE, Errors.CONCURRENT_TRANSACTIONS):
        return error, found
    try:
        known = transactions.describe(transactional_id)
    except KafkalogError:
        return error, None
    bumped = holder.epoch + 1 if client is TransactionVersion.TV_2 else holder.epoch
    if known.state == ENDING[commit] and (known.producer_id, known.producer_epoch) == (holder.producer_id, bumped):
        return Errors.NONE, ProducerIdAndEpoch(known.producer_id, known.producer_epoch)  # decided; markers are missing
    return error, None


def handle_write_txn_markers(broker: Broker, request: Request) -> Values | None:
    """Writes the ends of transactions to partitions, for another coordinator or a tool."""
    if not _may_on_cluster(broker, request, "ALTER", "CLUSTER_ACTION"):
        return error_response(request, Errors.CLUSTER_AUTHORIZATION_FAILED)
    found: dict[int, dict[TopicPartition, int]] = {}
    for asked in request.body["markers"]:
        kind = ControlRecordType.COMMIT if asked["transactionResult"] else ControlRecordType.ABORT
        marker = TransactionMarker(
            asked["producerId"], asked["producerEpoch"], kind, asked["coordinatorEpoch"], asked["transactionVersion"]
        )
        for topic in asked["topics"]:
            for number in topic["partitionIndexes"]:
                place = TopicPartition(topic["name"], number)
                found.setdefault(marker.producer_id, {})[place] = int(_mark(broker, place, marker))
    markers = []
    for producer_id, codes in found.items():
        topics: dict[str, list[Values]] = {}
        for place, code in codes.items():
            topics.setdefault(place.topic, []).append({"partitionIndex": place.partition, "errorCode": code})
        told = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
        markers.append({"producerId": producer_id, "topics": told})
    return {"markers": markers}


def _mark(broker: Broker, place: TopicPartition, marker: TransactionMarker) -> Errors:
    hosted = data_of(broker).hosted
    topic = hosted.named(place.topic)
    if topic is None or not 0 <= place.partition < topic.partitions:
        return Errors.UNKNOWN_TOPIC_OR_PARTITION
    coordinators = broker.home.coordinators
    now_ms = broker.clock.milliseconds()

    def write() -> None:
        if place.topic == GROUP_METADATA_TOPIC:
            coordinators.markers.write(place, marker)
        else:
            log = topic.made_log(place.partition)
            log.append_as_leader(
                marker.batch(now_ms),
                log.latest_epoch or 0,
                AppendOrigin.COORDINATOR,
                transaction_version=marker.transaction_version,
            )
        coordinators.markers.flush([place])

    error, _ = _outcome(f"writing a marker to {place}", write)
    return error


# --- questions ------------------------------------------------------------------------------------------


def handle_describe_transactions(broker: Broker, request: Request) -> Values:
    """Describes transactional ids."""
    return {
        "throttleTimeMs": 0,
        "transactionStates": [_described(broker, request, each) for each in request.body["transactionalIds"]],
    }


def _described(broker: Broker, request: Request, transactional_id: str) -> Values:
    told: Values = {"transactionalId": transactional_id, "errorCode": 0}
    if not _may(broker, request, "DESCRIBE", "TRANSACTIONAL_ID", transactional_id):
        return told | {"errorCode": int(Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    if not transactional_id:
        return told | {"errorCode": int(Errors.INVALID_REQUEST)}
    try:
        known = broker.home.coordinators.transactions.describe(transactional_id)
    except TransactionalIdNotFoundException as error:
        return told | {"errorCode": int(code_of(error))}
    topics: dict[str, list[int]] = {}
    for each in known.partitions:
        topics.setdefault(each.topic, []).append(each.partition)
    return told | {
        "producerId": known.producer_id,
        "producerEpoch": known.producer_epoch,
        "transactionState": known.state,
        "transactionTimeoutMs": known.timeout_ms,
        "transactionStartTimeMs": known.start_ms,
        "topics": [
            {"topic": name, "partitions": numbers}
            for name, numbers in topics.items()
            if _may(broker, request, "DESCRIBE", "TOPIC", name)
        ],
    }


def handle_list_transactions(broker: Broker, request: Request) -> Values | None:
    """Lists transactional ids."""
    body = request.body
    states = body["stateFilters"]
    known_states = set(STATE_NAMES.values())
    pattern = body["transactionalIdPattern"]
    found = broker.home.coordinators.transactions.list_transactions(
        states=states,
        producer_ids=set(body["producerIdFilters"]),
        longer_than_ms=body["durationFilter"],
    )
    try:
        if pattern:
            regex = compile_for(letters_of(each.transactional_id for each in found), pattern)
            found = [each for each in found if regex.matches(each.transactional_id)]
    except InvalidRegularExpression:
        return error_response(request, Errors.INVALID_REGULAR_EXPRESSION)
    return {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "unknownStateFilters": [each for each in dict.fromkeys(states) if each not in known_states],
        "transactionStates": [
            {
                "transactionalId": each.transactional_id,
                "producerId": each.producer_id,
                "transactionState": each.state,
            }
            for each in found
            if _may(broker, request, "DESCRIBE", "TRANSACTIONAL_ID", each.transactional_id)
        ],
    }


HANDLERS = {
    ApiKeys.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKeys.ADD_PARTITIONS_TO_TXN: handle_add_partitions_to_txn,
    ApiKeys.ADD_OFFSETS_TO_TXN: handle_add_offsets_to_txn,
    ApiKeys.TXN_OFFSET_COMMIT: handle_txn_offset_commit,
    ApiKeys.END_TXN: handle_end_txn,
    ApiKeys.WRITE_TXN_MARKERS: handle_write_txn_markers,
    ApiKeys.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    ApiKeys.LIST_TRANSACTIONS: handle_list_transactions,
}
BLOCKING = {
    ApiKeys.INIT_PRODUCER_ID,
    ApiKeys.ADD_PARTITIONS_TO_TXN,
    ApiKeys.ADD_OFFSETS_TO_TXN,
    ApiKeys.TXN_OFFSET_COMMIT,
    ApiKeys.END_TXN,
    ApiKeys.WRITE_TXN_MARKERS,
    ApiKeys.LIST_TRANSACTIONS,
}
BLOCKING_IF = {
    ApiKeys.DESCRIBE_TRANSACTIONS: LARGE,
}
