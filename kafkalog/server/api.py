"""The supported requests: which handler answers a key, and how requests are read and answers written.

`MODULES` says which module of `kafkalog.server.handlers` answers which requests.  A module is imported at the first
request of one of its keys, so that a start loads few of them; the answer to ApiVersions comes from this table alone.

A key that is not in the table is refused as Kafka refuses one that its listener does not serve: the connection ends,
with a line in the log.  The same happens for a version that the key does not have, and for bytes that are no such
request.  ApiVersions is the exception: a version that is too new is answered with version 0.

Knows no socket and no state of a connection.  Source: ApiVersionManager, RequestHeader, RequestContext (4.4.0).
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.requests import ApiKeys, api, apis, decode_request_header
from kafkalog.errors import InvalidRequestException
from kafkalog.server.request import ConnectionInfo, Encoded, Pending, ProtocolError, Request, Values

if TYPE_CHECKING:
    from kafkalog.engine.format.requests import Api
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Part

Handler = Callable[["Broker", Request], "Values | Encoded | Pending | None"]
Decoder = Callable[[memoryview, int, int], Any]  # the frame, the version, where the body begins
Encoder = Callable[[Any, int], "list[Part]"]

# The requests of each module of handlers, by Kafka's names.  Each module's HANDLERS has a key for each of its names.
MODULES: dict[str, tuple[str, ...]] = {
    "cluster": ("ApiVersions", "Metadata", "DescribeTopicPartitions", "DescribeCluster", "FindCoordinator"),
    "consumer_groups": ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
    "fetch": ("Fetch",),
    "partitions": ("ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords", "DescribeProducers"),
    "produce": ("Produce",),
    "transactions": (
        "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "WriteTxnMarkers",
        "DescribeTransactions", "ListTransactions",
    ),
    "configs": ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "ListConfigResources"),
    "groups": (
        "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ListGroups", "DescribeGroups", "DeleteGroups",
    ),
    "log_dirs": ("DescribeLogDirs", "AlterReplicaLogDirs"),
    "offsets": ("OffsetCommit", "OffsetFetch", "OffsetDelete"),
    "security": (
        *("SaslHandshake", "SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls"),
        *("DescribeUserScramCredentials", "AlterUserScramCredentials", "DescribeClientQuotas", "AlterClientQuotas"),
    ),
    "share": ("ShareFetch", "ShareAcknowledge"),
    "share_groups": (
        "ShareGroupHeartbeat", "ShareGroupDescribe", "DescribeShareGroupOffsets", "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
    ),
    "share_state": (
        "InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState",
        "ReadShareGroupStateSummary",
    ),
    "topics": ("CreateTopics", "DeleteTopics", "CreatePartitions"),
}  # fmt: skip

_HEAD = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")


class Entry:
    """One supported request.

    `decode` takes the frame, the version and the position of the body; `encode` takes values and the version.  They and
    `handler` are imported with their module at the first use of one.  `is_blocking` is right from then on, and a body
    is decoded before it is handled.
    """

    __slots__ = (
        "_has_throttle",
        "api",
        "blocks_for",
        "decode",
        "encode",
        "flexible_from",
        "handler",
        "highest",
        "is_blocking",
        "lowest",
        "module",
        "name",
    )

    def __init__(self, known: Api, module: str) -> None:
        self.api = known
        self.name, self.lowest, self.highest = known.name, known.lowest, known.highest
        self.module = module
        self.flexible_from = known.flexible_from
        self.is_blocking = False
        self.blocks_for: Callable[[Request], bool] | None = None  # if the key is not blocking: for which requests
        self._has_throttle: bool | None = None
        self.handler: Handler = self._first_call
        self.decode: Decoder = self._first_decode
        self.encode: Encoder = known.response.encode_parts

    def load(self) -> None:
        """Imports the handler's module."""
        module = importlib.import_module(f"kafkalog.server.handlers.{self.module}")
        key = self.api.key
        self.is_blocking = key in getattr(module, "BLOCKING", ())
        self.blocks_for = getattr(module, "BLOCKING_IF", {}).get(key)
        self.decode = getattr(module, "DECODERS", {}).get(key, self._read_by_table)
        self.encode = getattr(module, "ENCODERS", {}).get(key, self.encode)
        self.handler = module.HANDLERS[key]

    def blocks(self, request: Request) -> bool:
        """Returns whether the request is handled in the pool."""
        return self.is_blocking or (self.blocks_for is not None and self.blocks_for(request))

    def _first_call(self, broker: Broker, request: Request) -> Values | Encoded | Pending | None:
        self.load()
        return self.handler(broker, request)

    def _first_decode(self, frame: memoryview, version: int, at: int) -> Any:
        self.load()
        return self.decode(frame, version, at)

    def _read_by_table(self, frame: memoryview, version: int, at: int) -> Any:
        return self.api.request.decode(frame, version, at=at)[0]

    @property
    def has_throttle(self) -> bool:
        """Whether the answer says how long the client was throttled."""
        if self._has_throttle is None:
            self._has_throttle = any(field.name == "throttleTimeMs" for field in self.api.response.type.fields)
        return self._has_throttle


class Apis:
    """The supported requests.  `names`: those of an own choice, for tests; by default all of `MODULES`."""

    def __init__(self, modules: Mapping[str, tuple[str, ...]] | None = None) -> None:
        by_name = {each.name: each for each in apis().values()}
        self.entries: dict[int, Entry] = {}
        for module, names in (MODULES if modules is None else modules).items():
            for name in names:
                known = by_name[name]
                self.entries[known.key] = Entry(known, module)

    def entry(self, key: int) -> Entry:
        """Returns a supported request.  KeyError."""
        return self.entries[key]

    def api_versions(self) -> list[Values]:
        """Returns what ApiVersions answers: the keys and their versions, in Kafka's order."""
        found = []
        for key in sorted(self.entries):
            known = self.entries[key].api
            # Kafka claims the oldest Produce versions, because librdkafka once needed them to find others.
            lowest = 0 if key == ApiKeys.PRODUCE else known.lowest
            found.append({"apiKey": key, "minVersion": lowest, "maxVersion": known.highest})
        return found

    # --- requests in -----------------------------------------------------------------------------------

    def read(self, frame: memoryview, info: ConnectionInfo) -> Request:
        """Returns the request of a frame.  ProtocolError if it is none, or not supported."""
        key, version, correlation_id, client_id, at = _header(frame)
        entry = self.entries.get(key)
        request = Request(key, version, correlation_id, client_id, connection=info)
        request.data, request.size = frame, len(frame)
        request.body_at = at
        if entry is None or not entry.lowest <= version <= entry.highest:
            return self._unsupported(request)
        try:
            request.body = entry.decode(frame, version, at)
        except (MessageException, InvalidRequestException) as error:
            raise ProtocolError(
                f"Error getting request for apiKey: {entry.name}, apiVersion: {version}{_client(client_id)}: {error}"
            ) from error
        return request

    def _unsupported(self, request: Request) -> Request:
        """Returns a request for ApiVersions whatever its version is.  ProtocolError for any other."""
        key, version, client = request.api_key, request.api_version, _client(request.client_id or "")
        entry = self.entries.get(key)
        if entry is None:
            raise ProtocolError(
                f"Received request for disabled api with key {key} ({api(key).name}) and version {version}{client}"
            )
        if key != ApiKeys.API_VERSIONS:
            raise ProtocolError(
                f"Received request for api with key {key} ({entry.name}) and unsupported version {version}{client}: "
                f"supported are {entry.lowest} to {entry.highest}"
            )
        request.api_version, request.unsupported_version = 0, version
        request.body = entry.api.request.default_values()
        return request

    # --- answers out -----------------------------------------------------------------------------------

    def write(self, request: Request, result: Values | Encoded) -> list[Part]:
        """Returns an answer's parts, the header first."""
        key, version = request.api_key, request.api_version
        entry = self.entries[key]
        header = _CORRELATION_ID.pack(request.correlation_id)
        if version >= entry.flexible_from and key != ApiKeys.API_VERSIONS:
            header += b"\0"
        parts = result.parts if isinstance(result, Encoded) else entry.encode(result, version)
        if parts and isinstance(parts[0], bytes):
            return [header + parts[0], *parts[1:]]
        return [header, *parts]


def _client(client_id: str) -> str:
    return f", clientId: {client_id}" if client_id else ""


def _header(frame: memoryview) -> tuple[int, int, int, str, int]:
    """Returns key, version, correlation id, client id, and where the body begins.  ProtocolError.

    The usual header is read here; anything else by the table."""
    if len(frame) >= _HEAD.size:
        key, version, correlation_id, length = _HEAD.unpack_from(frame)
        end = _HEAD.size + max(length, 0)
        known = apis().get(key)
        if known is not None and length >= -1 and end < len(frame):
            try:
                client_id = str(frame[_HEAD.size : end], "utf-8")
            except UnicodeDecodeError:
                pass
            else:
                if version < known.flexible_from:
                    return key, version, correlation_id, client_id, end
                if frame[end] == 0:
                    return key, version, correlation_id, client_id, end + 1
    try:
        header = decode_request_header(frame)
    except InvalidRequestException as error:
        raise ProtocolError(str(error)) from error
    return header.api_key, header.api_version, header.correlation_id, header.client_id, header.body_at
