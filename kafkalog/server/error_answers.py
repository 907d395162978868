"""The answer to a request that failed as a whole, as each request of Kafka makes it from an exception.

Most answers have an error code at the top.  Others repeat the topics, partitions, groups or resources of the request,
each with the code; `_MIRRORS` says which list of the answer repeats which list of the request, and with which fields.
The text of the error goes into `errorMessage` if Kafka puts it there.  Source: AbstractRequest.getErrorResponse and its
implementations, ApiError (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafkalog.engine.format.error_codes import Errors, code_of, message_of
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.server.request import Request, Values

NONE, OWN, GENERIC = "", "own", "generic"  # which text: none, the exception's, or that of its code


class Mirror(NamedTuple):
    """A list of an answer that repeats a list of the request.

    `fields` are pairs of the answer's field and the request's; the request's is empty if its list has plain values.
    `inner` is the list inside; only the innermost elements get the code.
    """

    answer: str
    request: str
    fields: tuple[tuple[str, str], ...]
    inner: Mirror | None = None
    more: Mapping[str, Any] = {}
    text: str = NONE


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_NO_OFFSET = {"offset": -1, "timestamp": -1}
_PRODUCED = {"baseOffset": -1, "logAppendTimeMs": -1, "logStartOffset": -1}
_NOT_FETCHED = {"highWatermark": -1, "abortedTransactions": [], "records": b""}
_RESOURCE = _same("resourceType", "resourceName")
_STATE = (("partition", "partition"),)


def _share_state(text: str) -> Mirror:
    inner = Mirror("partitions", "partitions", _STATE, text=text)
    return Mirror("results", "topics", _same("topicId"), inner)


_MIRRORS: dict[int, Mirror] = {
    ApiKeys.PRODUCE: Mirror(
        "responses", "topicData", _same("name", "topicId"),
        Mirror("partitionResponses", "partitionData", _same("index"), None, _PRODUCED, OWN),
    ),
    ApiKeys.LIST_OFFSETS: Mirror(
        "topics", "topics", _same("name"), Mirror("partitions", "partitions", _same("partitionIndex"), None, _NO_OFFSET)
    ),
    ApiKeys.METADATA: Mirror("topics", "topics", _same("name", "topicId")),
    ApiKeys.OFFSET_COMMIT: Mirror(
        "topics", "topics", _same("topicId", "name"), Mirror("partitions", "partitions", _same("partitionIndex"))
    ),
    ApiKeys.TXN_OFFSET_COMMIT: Mirror(
        "topics", "topics", _same("topicId", "name"), Mirror("partitions", "partitions", _same("partitionIndex"))
    ),
    ApiKeys.OFFSET_FOR_LEADER_EPOCH: Mirror(
        "topics", "topics", _same("topic"),
        Mirror("partitions", "partitions", _same("partition"), None, {"leaderEpoch": -1, "endOffset": -1}),
    ),
    ApiKeys.DESCRIBE_GROUPS: Mirror("groups", "groups", (("groupId", ""),)),
    ApiKeys.CONSUMER_GROUP_DESCRIBE: Mirror("groups", "groupIds", (("groupId", ""),)),
    ApiKeys.SHARE_GROUP_DESCRIBE: Mirror("groups", "groupIds", (("groupId", ""),)),
    ApiKeys.DELETE_GROUPS: Mirror("results", "groupsNames", (("groupId", ""),)),
    ApiKeys.DESCRIBE_TRANSACTIONS: Mirror("transactionStates", "transactionalIds", (("transactionalId", ""),)),
    ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS: Mirror("groups", "groups", _same("groupId"), None, {}, GENERIC),
    ApiKeys.DESCRIBE_TOPIC_PARTITIONS: Mirror("topics", "topics", _same("name")),
    ApiKeys.DESCRIBE_PRODUCERS: Mirror(
        "topics", "topics", _same("name"), Mirror("partitions", "partitionIndexes", (("partitionIndex", ""),))
    ),
    ApiKeys.CREATE_TOPICS: Mirror("topics", "topics", _same("name"), None, {}, OWN),
    ApiKeys.CREATE_PARTITIONS: Mirror("results", "topics", _same("name"), None, {}, OWN),
    ApiKeys.DELETE_RECORDS: Mirror(
        "topics", "topics", _same("name"),
        Mirror("partitions", "partitions", _same("partitionIndex"), None, {"lowWatermark": -1}),
    ),
    ApiKeys.DESCRIBE_CONFIGS: Mirror("results", "resources", _RESOURCE, None, {}, GENERIC),
    ApiKeys.ALTER_CONFIGS: Mirror("responses", "resources", _RESOURCE, None, {}, OWN),
    ApiKeys.INCREMENTAL_ALTER_CONFIGS: Mirror("responses", "resources", _RESOURCE, None, {}, OWN),
    ApiKeys.CREATE_ACLS: Mirror("results", "creations", (), None, {}, OWN),
    ApiKeys.DELETE_ACLS: Mirror("filterResults", "filters", (), None, {}, OWN),
    ApiKeys.INITIALIZE_SHARE_GROUP_STATE: _share_state(NONE),
    ApiKeys.READ_SHARE_GROUP_STATE: _share_state(GENERIC),
    ApiKeys.WRITE_SHARE_GROUP_STATE: _share_state(GENERIC),
    ApiKeys.DELETE_SHARE_GROUP_STATE: _share_state(NONE),
    ApiKeys.READ_SHARE_GROUP_STATE_SUMMARY: _share_state(GENERIC),
}  # fmt: skip
# Requests whose answer has the text at the top: the exception's, or that of the code.
_TEXT_AT_TOP = {
    ApiKeys.DESCRIBE_ACLS: OWN,
    ApiKeys.DESCRIBE_CLIENT_QUOTAS: OWN,
    ApiKeys.DESCRIBE_CLUSTER: OWN,
    ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS: OWN,
    ApiKeys.SASL_AUTHENTICATE: OWN,
    ApiKeys.ALTER_SHARE_GROUP_OFFSETS: GENERIC,
    ApiKeys.DELETE_SHARE_GROUP_OFFSETS: GENERIC,
}


class _Error(NamedTuple):
    code: Errors
    own: str | None

    def text(self, kind: str) -> str | None:
        return self.own if kind == OWN else message_of(self.code)


def _mirrored(mirror: Mirror, request: Mapping[str, Any], error: _Error) -> list[Values]:
    found = []
    for each in request[mirror.request] or ():
        one: Values = {answer: each[asked] if asked else each for answer, asked in mirror.fields}
        one.update(mirror.more)
        if mirror.inner is not None:
            one[mirror.inner.answer] = _mirrored(mirror.inner, each, error)
        else:
            one["errorCode"] = int(error.code)
            if mirror.text:
                one["errorMessage"] = error.text(mirror.text)
        found.append(one)
    return found


def _fetch(request: Request, error: _Error) -> Values:
    answer = {"errorCode": int(error.code), "sessionId": request.body["sessionId"]}
    if request.api_version < 13:
        inner = Mirror("partitions", "partitions", (("partitionIndex", "partition"),), None, _NOT_FETCHED)
        topics = Mirror("responses", "topics", _same("topic", "topicId"), inner)
        answer["responses"] = _mirrored(topics, request.body, error)
    return answer


def _offset_fetch(request: Request, error: _Error) -> Values:
    if request.api_version >= 8:
        return {"groups": _mirrored(Mirror("groups", "groups", _same("groupId")), request.body, error)}
    if request.api_version >= 2:
        return {"errorCode": int(error.code)}
    nothing = {"committedOffset": -1, "metadata": "", "committedLeaderEpoch": -1}
    inner = Mirror("partitions", "partitionIndexes", (("partitionIndex", ""),), None, nothing)
    return {"topics": _mirrored(Mirror("topics", "topics", _same("name"), inner), request.body, error)}


def _find_coordinator(request: Request, error: _Error) -> Values:
    nobody: Values = {"nodeId": -1, "host": "", "port": -1, "errorCode": int(error.code)}
    nobody["errorMessage"] = message_of(error.code)
    if request.api_version < 4:
        return nobody
    return {"coordinators": [{"key": key, **nobody} for key in request.body["coordinatorKeys"]]}


def _metadata(request: Request, error: _Error) -> Values:
    topics = _mirrored(_MIRRORS[ApiKeys.METADATA], request.body, error)
    for each in topics:
        each["name"] = each["name"] or ""
    return {"topics": topics, "errorCode": int(error.code)}


def _add_partitions(request: Request, error: _Error) -> Values:
    if request.api_version >= 4:
        return {"errorCode": int(error.code)}
    return {
        "resultsByTopicV3AndBelow": [
            {
                "name": topic["name"],
                "resultsByPartition": [
                    {"partitionIndex": number, "partitionErrorCode": int(error.code)} for number in topic["partitions"]
                ],
            }
            for topic in request.body["v3AndBelowTopics"]
        ]
    }


def _write_markers(request: Request, error: _Error) -> Values:
    inner = Mirror("partitions", "partitionIndexes", (("partitionIndex", ""),))
    topics = Mirror("topics", "topics", _same("name"), inner)
    return {"markers": _mirrored(Mirror("markers", "markers", _same("producerId"), topics), request.body, error)}


def _delete_topics(request: Request, error: _Error) -> Values:
    topics = request.body["topics"]
    if request.api_version < 6:
        topics = [{"name": name} for name in request.body["topicNames"]]
    return {"responses": [{**topic, "errorCode": int(error.code)} for topic in topics]}


def _alter_dirs(request: Request, error: _Error) -> Values:
    return {
        "results": [
            {
                "topicName": topic["name"],
                "partitions": [
                    {"partitionIndex": number, "errorCode": int(error.code)} for number in topic["partitions"]
                ],
            }
            for each in request.body["dirs"]
            for topic in each["topics"]
        ]
    }


def _alter_quotas(request: Request, error: _Error) -> Values:
    text = message_of(error.code)
    entries = request.body["entries"]
    return {
        "entries": [{"entity": each["entity"], "errorCode": int(error.code), "errorMessage": text} for each in entries]
    }


def _alter_scram(request: Request, error: _Error) -> Values:
    users = sorted({each["name"] for what in ("deletions", "upsertions") for each in request.body[what]})
    one = {"errorCode": int(error.code), "errorMessage": error.own}
    return {"results": [{"user": user, **one} for user in users]}


def _join_group(request: Request, error: _Error) -> Values:
    name = None if request.api_version >= 7 else ""
    return {"errorCode": int(error.code), "generationId": -1, "protocolName": name, "leader": "", "memberId": ""}


def _api_versions(request: Request, error: _Error) -> Values:
    answer: Values = {"errorCode": int(error.code)}
    if error.code == Errors.UNSUPPORTED_VERSION:
        known = api(ApiKeys.API_VERSIONS)
        answer["apiKeys"] = [{"apiKey": known.key, "minVersion": known.lowest, "maxVersion": known.highest}]
    return answer


def _init_producer(request: Request, error: _Error) -> Values:
    return {"errorCode": int(error.code), "producerId": -1, "producerEpoch": -1}


def _describe_quotas(request: Request, error: _Error) -> Values:
    return {"errorCode": int(error.code), "errorMessage": error.own, "entries": None}


def _describe_scram(request: Request, error: _Error) -> Values:
    one = {"errorCode": int(error.code), "errorMessage": error.own}
    return {**one, "results": [dict(one) for _ in request.body["users"] or ()]}


_MADE: dict[int, Callable[[Request, _Error], Values]] = {
    ApiKeys.FETCH: _fetch,
    ApiKeys.OFFSET_FETCH: _offset_fetch,
    ApiKeys.FIND_COORDINATOR: _find_coordinator,
    ApiKeys.METADATA: _metadata,
    ApiKeys.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKeys.WRITE_TXN_MARKERS: _write_markers,
    ApiKeys.DELETE_TOPICS: _delete_topics,
    ApiKeys.ALTER_REPLICA_LOG_DIRS: _alter_dirs,
    ApiKeys.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKeys.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
    ApiKeys.JOIN_GROUP: _join_group,
    ApiKeys.API_VERSIONS: _api_versions,
    ApiKeys.INIT_PRODUCER_ID: _init_producer,
    ApiKeys.DESCRIBE_CLIENT_QUOTAS: _describe_quotas,
    ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram,
}


def error_response(request: Request, error: BaseException | Errors) -> Values | None:
    """Returns the answer that Kafka gives to a request if `error` leaves its handling.

    None for a produce request that wants no answer.
    """
    if isinstance(error, Errors):
        found = _Error(error, None)
    else:
        code = code_of(error)
        text = getattr(error, "message", None) or str(error)
        has_own = code != Errors.UNKNOWN_SERVER_ERROR and bool(text) and text != message_of(code)
        found = _Error(code, text if has_own else None)
    key = request.api_key
    if key == ApiKeys.PRODUCE and request.body["acks"] == 0:
        return None
    if key in _MADE:
        return _MADE[key](request, found)
    mirror = _MIRRORS.get(key)
    if mirror is not None:
        return {mirror.answer: _mirrored(mirror, request.body, found)}
    answer: Values = {"errorCode": int(found.code)}
    if key in _TEXT_AT_TOP:
        answer["errorMessage"] = found.text(_TEXT_AT_TOP[key])
    return answer
