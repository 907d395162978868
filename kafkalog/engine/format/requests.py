"""The requests and responses of Kafka's protocol: the APIs by key, and the headers of their frames.

    frame     int32 size, header, body
    header    of a request: API key, version, correlation id, client id; of a response: correlation id

It turns bytes into `messages.Values` and back.  It knows nothing of sockets, and nothing of what an API does.  The
tables are parsed when a message is first used.  A request's header has version 2 in an API's flexible versions,
otherwise 1.  A response's has version 1 or 0, and always 0 for ApiVersions, whose caller does not know yet what the
server speaks.

Source: ApiKeys, ApiMessageType and RequestHeader of Kafka 4.4.0.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format import (
    request_tables_cluster,
    request_tables_data,
    request_tables_groups,
    request_tables_security,
    request_tables_share,
    request_tables_streams,
    request_tables_topics,
    request_tables_transactions,
)
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.message_tables import Head, parse_table
from kafkalog.engine.format.messages import Message, Values
from kafkalog.errors import InvalidRequestException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_TABLES = (
    request_tables_cluster.TABLE,
    request_tables_data.TABLE,
    request_tables_groups.TABLE,
    request_tables_security.TABLE,
    request_tables_share.TABLE,
    request_tables_streams.TABLE,
    request_tables_topics.TABLE,
    request_tables_transactions.TABLE,
)
_KEY_AND_VERSION = struct.Struct(">hh")
_CORRELATION_ID = struct.Struct(">i")


class ApiKeys:
    """The keys of the APIs that a broker serves, by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class RequestHeader(NamedTuple):
    """The header of a request; its body begins at the position `body_at`.  A client id that is null is empty."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int


class Api:
    """An API: its key, Kafka's name ("Produce"), its versions, and its two messages.

    `highest` is the highest version that Kafka offers by default; the messages may have a later one that is unstable.
    """

    def __init__(self, request: Head, response: Head) -> None:
        self.key = request.number
        self.name = request.name.removesuffix("Request")
        self.lowest = request.lowest
        self.highest = request.stable
        self.flexible_from = request.flexible_from
        self.request = Message(request)
        self.response = Message(response)

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        return 1 if version >= self.flexible_from and self.key != ApiKeys.API_VERSIONS else 0


@functools.cache
def apis() -> dict[int, Api]:
    """Returns every API by its key."""
    heads = {head.name: head for head in _heads() if head.number >= 0}
    requests = sorted((head for head in heads.values() if head.name.endswith("Request")), key=lambda head: head.number)
    return {head.number: Api(head, heads[f"{head.name.removesuffix('Request')}Response"]) for head in requests}


def _heads() -> Iterator[Head]:
    for table in _TABLES:
        yield from parse_table(table)


def api(key: int) -> Api:
    """Returns an API; raises KeyError for a key that brokers do not serve."""
    return apis()[key]


@functools.cache
def header_messages() -> tuple[Message, Message]:
    """Returns the headers of requests and of responses."""
    request, response = (Message(head) for head in parse_table(request_tables_cluster.TABLE) if head.number < 0)
    return request, response


def decode_request_header(data: Buffer) -> RequestHeader:
    """Parses the header at the start of a frame (without the frame's size).

    Raises InvalidRequestException with Kafka's text for bytes that are not a header, and for a key that is not served.
    """
    view = memoryview(data)
    if len(view) < _KEY_AND_VERSION.size:
        raise InvalidRequestException("Error parsing request header. Our best guess of the apiKeyId is: -1")
    key, version = _KEY_AND_VERSION.unpack_from(view)
    known = apis().get(key)
    if known is None:
        raise InvalidRequestException(f"Error parsing request header. Our best guess of the apiKeyId is: {key}")
    try:
        found, end = header_messages()[0].decode(view, known.request_header_version(version))
    except MessageException as error:
        raise InvalidRequestException(
            f"Error parsing request header. Our best guess of the apiKeyId is: {key}"
        ) from error
    return RequestHeader(key, version, found["correlationId"], found["clientId"] or "", end)


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Returns the header of a response; raises KeyError for a key that brokers do not serve."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\0" if api(api_key).response_header_version(api_version) else header


def default_values(message: Message) -> Values:
    """Returns an empty message: every field has its default."""
    return message.default_values()
