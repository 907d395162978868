"""Requests of clients with few rights, on a real broker and on our server: which names and error codes they get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.requests import ApiKeys, api
from tests.broker import kraft
from tests.broker.test_server_security import CLOSED, Talk, acl
from tests.conftest import leave_out

pytestmark = pytest.mark.broker
TOPIC, GROUP, CLUSTER, TXN = 2, 3, 4, 5
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(2, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12
# Users, and what they may do: (resource type, name, operation).
USERS: dict[str, list[tuple[int, str, int]]] = {
    "nobody": [],
    "describer": [(TOPIC, "orders", DESCRIBE), (GROUP, "g", DESCRIBE), (TXN, "t", DESCRIBE)],
    "reader": [(TOPIC, "orders", READ), (GROUP, "g", READ)],
    "writer": [(TOPIC, "orders", WRITE), (TXN, "t", WRITE)],
    "owner": [(TOPIC, "orders", ALL), (GROUP, "g", ALL), (TXN, "t", ALL)],
    "creator": [(TOPIC, "new", CREATE), (TOPIC, "orders", DESCRIBE_CONFIGS), (GROUP, "g", DELETE)],
    "cluster": [
        (CLUSTER, "kafka-cluster", operation)
        for operation in (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE)
    ],
}
# Users of live groups: `c` is a consumer group, `s` and `f` are share groups, `o` has only offsets, and nobody is in
# the others.  The groups' members read `orders` and `hidden`.
GROUPS = ("c", "s", "f", "o", "r", "e")
MEMBERS: dict[str, list[tuple[int, str, int]]] = {
    "stranger": [],
    "groups": [(GROUP, each, ALL) for each in GROUPS],
    "watcher": [(TOPIC, "orders", DESCRIBE), *((GROUP, each, DESCRIBE) for each in GROUPS)],
    "member": [(TOPIC, "orders", READ), *((GROUP, each, READ) for each in GROUPS)],
    "admin": [
        *((TOPIC, each, READ) for each in ("orders", "hidden")),
        *((GROUP, each, operation) for each in GROUPS for operation in (READ, DELETE, ALTER_CONFIGS)),
    ],
}
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="x"' for name in (*USERS, *MEMBERS))
    + ";"
)
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
LOADING = (14, 15)  # a real broker asks its controller for a block of producer ids
Ports = tuple[int, int]


def _prepare(ports: Ports) -> Ports:
    """Creates the topic and the ACLs, and waits for the coordinators."""
    talk = Talk(ports[0])
    topic = {"name": "orders", "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": []}
    talk.ask(ApiKeys.CREATE_TOPICS, 7, {"topics": [topic], "timeoutMs": 10_000, "validateOnly": False})
    rows = [
        acl(principal=f"User:{user}", resourceType=kind, resourceName=name, operation=operation)
        for user, rights in (USERS | MEMBERS).items()
        for kind, name, operation in rights
    ]
    talk.ask(ApiKeys.CREATE_ACLS, 3, {"creations": rows})
    until = time.monotonic() + 60
    for kind, key in ((0, "g"), (1, "t")):
        while time.monotonic() < until:
            answer = talk.ask(ApiKeys.FIND_COORDINATOR, 4, {"keyType": kind, "coordinatorKeys": [key]})
            if answer["coordinators"][0]["errorCode"] == 0:
                break
            time.sleep(0.3)
    time.sleep(2)
    talk.close()
    return ports


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    controller, plain, sasl = kraft.free_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}"
    settings = {
        **SETTINGS,
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    try:
        with kraft.broker(tmp_path_factory.mktemp("broker"), settings=settings) as node:
            node.start()
            yield _prepare((plain, sasl))
    except kraft.kafka_jars.KafkaMissingError as error:
        leave_out(error)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    settings = {**SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
    with kafkalog.open(tmp_path_factory.mktemp("data")) as store, store.serve(**settings) as server:
        (_, plain), (_, sasl) = server.addresses
        yield _prepare((plain, sasl))


def _parts(**partition: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "topic": name,
            "topicName": name,
            "partitions": [{"partition": 0, "partitionIndex": 0, **partition}],
        }
        for name in ("orders", "hidden")
    ]


def _named(*fields: str) -> list[dict[str, Any]]:
    return [
        {**dict.fromkeys(fields, name), "partitions": [0], "partitionIndexes": [0]} for name in ("orders", "hidden")
    ]


def _batch() -> bytes:
    builder = MemoryRecordsBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    return bytes(builder.build())


BATCH = _batch()
MEMBER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
_MEMBER = {"groupId": "g", "memberId": "m", "generationId": 1, "generationIdOrMemberEpoch": 1, "memberEpoch": 1}
_TXN = {"transactionalId": "t", "producerId": 1, "producerEpoch": 0}
_CONFIGS = [
    {"resourceType": kind, "resourceName": name, "configurationKeys": ["retention.ms"]}
    for kind, name in ((2, "orders"), (2, "hidden"), (4, "1"), (32, "g"))
]
_CHANGES = [
    {**each, "configs": [{"name": "retention.ms", "configOperation": 0, "value": "1000"}]} for each in _CONFIGS[:2]
]
_NEW = [
    {"name": name, "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": []}
    for name in ("new", "other")
]
REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "metadata": (
        *(ApiKeys.METADATA, 12),
        {
            "topics": [{"name": "orders"}, {"name": "hidden"}, {"name": "new"}],
            "includeTopicAuthorizedOperations": True,
            "allowAutoTopicCreation": False,
        },
    ),
    "metadata of all": (ApiKeys.METADATA, 12, {"topics": None, "includeTopicAuthorizedOperations": True}),
    "metadata that creates": (ApiKeys.METADATA, 12, {"topics": [{"name": "other"}], "allowAutoTopicCreation": True}),
    "describe topic partitions": (
        ApiKeys.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "orders"}, {"name": "hidden"}]}
    ),
    "describe cluster": (ApiKeys.DESCRIBE_CLUSTER, 2, {"includeClusterAuthorizedOperations": True}),
    "produce": (ApiKeys.PRODUCE, 12, {"acks": 1, "timeoutMs": 1000, "topicData": [
        {"name": name, "partitionData": [{"index": 0, "records": BATCH}]} for name in ("orders", "hidden")]}),
    "produce in a transaction": (ApiKeys.PRODUCE, 12, {"transactionalId": "t", "acks": -1, "timeoutMs": 1000,
        "topicData": [{"name": "orders", "partitionData": [{"index": 0, "records": BATCH}]}]}),
    "fetch": (ApiKeys.FETCH, 12, {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 1000, "sessionEpoch": -1,
        "topics": _parts(partitionMaxBytes=9)}),
    "list offsets": (ApiKeys.LIST_OFFSETS, 10, {"replicaId": -1, "topics": _parts(timestamp=-1)}),
    "offset for leader epoch": (ApiKeys.OFFSET_FOR_LEADER_EPOCH, 4, {"topics": _parts(leaderEpoch=0)}),
    "delete records": (ApiKeys.DELETE_RECORDS, 2, {"topics": _parts(offset=0), "timeoutMs": 1000}),
    "create topics": (ApiKeys.CREATE_TOPICS, 7, {"topics": _NEW, "validateOnly": True, "timeoutMs": 1000}),
    "delete topics": (ApiKeys.DELETE_TOPICS, 6, {"topics": [{"name": "hidden"}, {"name": "elsewhere"}],
        "timeoutMs": 1000}),
    "create partitions": (ApiKeys.CREATE_PARTITIONS, 3, {"topics": [
        {"name": name, "count": 2, "assignments": None} for name in ("orders", "hidden")], "validateOnly": True,
        "timeoutMs": 1000}),
    "describe configs": (ApiKeys.DESCRIBE_CONFIGS, 4, {"resources": _CONFIGS}),
    "alter configs": (ApiKeys.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": _CHANGES, "validateOnly": True}),
    "replace configs": (ApiKeys.ALTER_CONFIGS, 2, {"resources": _CHANGES, "validateOnly": True}),
    "describe log dirs": (ApiKeys.DESCRIBE_LOG_DIRS, 4, {"topics": _named("topic")}),
    "alter replica log dirs": (ApiKeys.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [
        {"path": "/nowhere", "topics": _named("name")}]}),
    "find groups": (ApiKeys.FIND_COORDINATOR, 4, {"keyType": 0, "coordinatorKeys": ["g", "h"]}),
    "find transactions": (ApiKeys.FIND_COORDINATOR, 4, {"keyType": 1, "coordinatorKeys": ["t", "u"]}),
    "join group": (ApiKeys.JOIN_GROUP, 9, {**_MEMBER, "sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 1000,
        "protocolType": "consumer", "protocols": [{"name": "range", "metadata": b""}]}),
    "sync group": (ApiKeys.SYNC_GROUP, 5, _MEMBER),
    "heartbeat": (ApiKeys.HEARTBEAT, 4, _MEMBER),
    "leave group": (ApiKeys.LEAVE_GROUP, 5, {"groupId": "g", "members": [{"memberId": "m"}]}),
    "offset commit": (ApiKeys.OFFSET_COMMIT, 9, {**_MEMBER, "memberId": "", "generationIdOrMemberEpoch": -1,
        "topics": _parts(committedOffset=1, committedMetadata="")}),
    "offset fetch": (ApiKeys.OFFSET_FETCH, 9, {"groups": [
        {"groupId": each, "topics": _named("name")} for each in ("g", "h")]}),
    "offset fetch of all": (ApiKeys.OFFSET_FETCH, 9, {"groups": [{"groupId": "g", "topics": None}]}),
    "offset delete": (ApiKeys.OFFSET_DELETE, 0, {"groupId": "g", "topics": _parts()}),
    "describe groups": (ApiKeys.DESCRIBE_GROUPS, 5, {"groups": ["g", "h"], "includeAuthorizedOperations": True}),
    "delete groups": (ApiKeys.DELETE_GROUPS, 2, {"groupsNames": ["h"]}),
    "consumer group heartbeat": (ApiKeys.CONSUMER_GROUP_HEARTBEAT, 0, {**_MEMBER, "subscribedTopicNames": ["orders"]}),
    "consumer group describe": (ApiKeys.CONSUMER_GROUP_DESCRIBE, 1, {"groupIds": ["g", "h"],
        "includeAuthorizedOperations": True}),
    "share group heartbeat": (ApiKeys.SHARE_GROUP_HEARTBEAT, 1, {**_MEMBER, "subscribedTopicNames": ["orders"]}),
    "share group describe": (ApiKeys.SHARE_GROUP_DESCRIBE, 1, {"groupIds": ["g", "h"],
        "includeAuthorizedOperations": True}),
    "share offsets": (
        *(ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS, 0),
        {
            "groups": [
                {"groupId": each, "topics": [{"topicName": name, "partitions": [0]} for name in ("orders", "hidden")]}
                for each in ("g", "h")
            ]
        },
    ),
    "all share offsets": (ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS, 0, {"groups": [{"groupId": "g", "topics": None}]}),
    "alter share offsets": (ApiKeys.ALTER_SHARE_GROUP_OFFSETS, 0, {"groupId": "g", "topics": _parts(startOffset=0)}),
    "delete share offsets": (ApiKeys.DELETE_SHARE_GROUP_OFFSETS, 0, {"groupId": "g", "topics": _named("topicName")}),
    "share fetch": (
        *(ApiKeys.SHARE_FETCH, 1),
        {"groupId": "g", "memberId": MEMBER_ID, "shareSessionEpoch": 0, "maxWaitMs": 0, "maxBytes": 9, "topics": []},
    ),
    "share acknowledge": (
        *(ApiKeys.SHARE_ACKNOWLEDGE, 1),
        {"groupId": "g", "memberId": MEMBER_ID, "shareSessionEpoch": 1, "topics": []},
    ),
    "list config resources": (ApiKeys.LIST_CONFIG_RESOURCES, 1, {"resourceTypes": [16, 32]}),
    "init producer id": (ApiKeys.INIT_PRODUCER_ID, 5, {"transactionalId": None, "transactionTimeoutMs": 1000}),
    "init transactional id": (ApiKeys.INIT_PRODUCER_ID, 5, {"transactionalId": "u", "transactionTimeoutMs": 1000}),
    "add partitions": (ApiKeys.ADD_PARTITIONS_TO_TXN, 3, {"v3AndBelowTransactionalId": "t", "v3AndBelowProducerId": 1,
        "v3AndBelowProducerEpoch": 0, "v3AndBelowTopics": _named("name")}),
    "add partitions for a broker": (ApiKeys.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [
        {**_TXN, "verifyOnly": True, "topics": _named("name")}]}),
    "add offsets": (ApiKeys.ADD_OFFSETS_TO_TXN, 4, {**_TXN, "groupId": "g"}),
    "end transaction": (ApiKeys.END_TXN, 4, {**_TXN, "committed": True}),
    "commit offsets in a transaction": (ApiKeys.TXN_OFFSET_COMMIT, 4, {**_TXN, **_MEMBER, "generationId": -1,
        "memberId": "", "topics": _parts(committedOffset=1, committedMetadata="")}),
    "write markers": (ApiKeys.WRITE_TXN_MARKERS, 1, {"markers": []}),
    "describe transactions": (ApiKeys.DESCRIBE_TRANSACTIONS, 0, {"transactionalIds": ["t", "u"]}),
    "list transactions": (ApiKeys.LIST_TRANSACTIONS, 1, {}),
    "list groups": (ApiKeys.LIST_GROUPS, 4, {}),
    "describe producers": (ApiKeys.DESCRIBE_PRODUCERS, 0, {"topics": _named("name")}),
}  # fmt: skip
KEPT = {
    "errorCode", "name", "topicName", "resourceName", "resourceType", "groupId", "key", "transactionalId",
    "topicAuthorizedOperations", "clusterAuthorizedOperations", "authorizedOperations", "partitionIndex", "index",
    "partitionErrorCode", "groupState", "transactionState",
}  # fmt: skip


def outline(value: Any) -> Any:
    """The names and the error codes of an answer, without what differs from server to server."""
    if isinstance(value, dict):
        found = {}
        for key, each in value.items():
            if key in ("configs", "brokers", "synonyms", "logDirs"):
                continue
            if isinstance(each, list | dict):
                found[key] = outline(each)
            elif key in KEPT:
                found[key] = each
        return found
    if isinstance(value, list):
        return sorted((outline(each) for each in value), key=repr)
    return value if isinstance(value, str) else "..."


def fitted(body: Any, of: Type, version: int) -> Any:
    """The fields of a body that its message has in a version."""
    if isinstance(body, list):
        return [fitted(each, of.element or of, version) for each in body]
    if isinstance(body, dict):
        known = {each.name: each.type for each in of.fields if each.first <= version <= each.last}
        return {key: fitted(each, known[key], version) for key, each in body.items() if key in known}
    return body


def told(ports: Ports, user: str, name: str) -> Any:
    key, version, body = REQUESTS[name]
    talk = Talk(ports[1])
    try:
        talk.handshake()
        talk.token(f"\0{user}\0x".encode())
        while True:
            answer = talk.ask(key, version, fitted(body, api(key).request.type, version))
            if answer == CLOSED or answer.get("errorCode") not in LOADING:
                return outline(answer)
            time.sleep(0.1)
    finally:
        talk.close()


@pytest.mark.parametrize("name", REQUESTS)
def test_what_users_are_told(theirs: Ports, ours: Ports, name: str) -> None:
    wanted = {user: told(theirs, user, name) for user in USERS}
    assert {user: told(ours, user, name) for user in USERS} == wanted


# --- live groups -----------------------------------------------------------------------------------------

NEVER_READY = (7, 14, 15, 16, 41)  # a real broker loads its coordinators, and makes their topics
LIVE_KEPT = KEPT | {"topicId", "committedOffset", "startOffset", "subscribedTopicNames", "firstOffset", "lastOffset"}
SHARE_TYPE = 2


class Server:
    """One of the servers, with the topic `hidden` and live groups."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.root = Talk(ports[0])
        new = {"name": "hidden", "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": []}
        self.root.ask(ApiKeys.CREATE_TOPICS, 7, {"topics": [new], "timeoutMs": 10_000, "validateOnly": False})
        self.ids = self._ids()
        self.member = new_uuid()
        self.beats: dict[str, dict[str, Any]] = {}
        self._join("c", ApiKeys.CONSUMER_GROUP_HEARTBEAT, {"rebalanceTimeoutMs": 60_000, "topicPartitions": []})
        self._join("s", ApiKeys.SHARE_GROUP_HEARTBEAT, {})
        self._join("f", ApiKeys.SHARE_GROUP_HEARTBEAT, {})
        earliest = {"name": "share.auto.offset.reset", "configOperation": 0, "value": "earliest"}
        resource = {"resourceType": 32, "resourceName": "f", "configs": [earliest]}
        self.ask(self.root, ApiKeys.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        records = [{"name": name, "partitionData": [{"index": 0, "records": BATCH}]} for name in ("orders", "hidden")]
        self.ask(self.root, ApiKeys.PRODUCE, 12, {"acks": 1, "timeoutMs": 1000, "topicData": records})
        keys = [f"{group}:{topic_id}:0" for group in ("s", "f") for topic_id in self.ids.values()]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            answer = self.root.ask(ApiKeys.FIND_COORDINATOR, 6, {"keyType": SHARE_TYPE, "coordinatorKeys": keys})
            if not any(each["errorCode"] for each in answer["coordinators"]):
                return
            time.sleep(0.3)

    def _ids(self) -> dict[str, str]:
        until = time.monotonic() + 30
        while True:
            found = self.root.ask(ApiKeys.METADATA, 12, {"topics": [{"name": "orders"}, {"name": "hidden"}]})["topics"]
            if not any(each["errorCode"] for each in found) or time.monotonic() > until:
                return {each["name"]: each["topicId"] for each in found}
            time.sleep(0.1)

    def _join(self, group: str, key: int, more: dict[str, Any]) -> None:
        """Lets a member join that reads both topics, and waits for its partitions."""
        body = {"groupId": group, "memberId": self.member, "memberEpoch": 0, **more}
        body["subscribedTopicNames"] = ["orders", "hidden"]
        until = time.monotonic() + 30
        while time.monotonic() < until:
            answer = self.ask(self.root, key, 1, body)
            body = {"groupId": group, "memberId": self.member, "memberEpoch": answer["memberEpoch"]}
            if len((answer["assignment"] or {"topicPartitions": []})["topicPartitions"]) == 2:
                break
            time.sleep(0.1)
        if key == ApiKeys.CONSUMER_GROUP_HEARTBEAT:
            owned = [{"topicId": each, "partitions": [0]} for each in self.ids.values()]
            answer = self.ask(self.root, key, 1, {**body, "topicPartitions": owned})
        self.beats[group] = {"epoch": answer["memberEpoch"]}

    def talk(self, user: str) -> Talk:
        talk = Talk(self.ports[1])
        talk.handshake()
        talk.token(f"\0{user}\0x".encode())
        return talk

    def ask(self, talk: Talk, key: int, version: int, body: dict[str, Any]) -> Any:
        """Sends a request until it finds a coordinator."""
        until = time.monotonic() + 30
        while True:
            answer = talk.ask(key, version, fitted(body, api(key).request.type, version))
            codes = set() if answer == CLOSED else set(_codes(answer))
            if not codes.intersection(NEVER_READY) or time.monotonic() > until:
                return answer
            time.sleep(0.2)

    def outline(self, value: Any) -> Any:
        """As `outline`, with more fields, and with names instead of ids of topics and of the member."""
        names = {topic_id: name for name, topic_id in self.ids.items()}
        if isinstance(value, dict):
            return {
                key: names.get(each, each) if key == "topicId" else self.outline(each)
                for key, each in value.items()
                if isinstance(each, list | dict) or key in LIVE_KEPT
            }
        if isinstance(value, list):
            return sorted(map(self.outline, value), key=repr)
        return value


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key in ("errorCode", "partitionErrorCode"):
                yield each
            yield from _codes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _codes(each)


@pytest.fixture(scope="module")
def live(theirs: Ports, ours: Ports) -> Iterator[tuple[Server, Server]]:
    servers = Server(theirs), Server(ours)
    yield servers
    for each in servers:
        each.root.close()


Story = Callable[[Server, Talk], Iterator[Any]]


def _both(server: Server, **partition: Any) -> list[dict[str, Any]]:
    """Both topics, by id and by name, with partition 0."""
    return [
        {
            "topicId": topic_id,
            "name": name,
            "topicName": name,
            "partitions": [{"partitionIndex": 0, **partition}],
            "partitionIndexes": [0],
        }
        for name, topic_id in server.ids.items()
    ]


def describe_live(server: Server, talk: Talk) -> Iterator[Any]:
    """A group is described only to who may describe all topics of its members."""
    body = {"groupIds": ["c", "s"], "includeAuthorizedOperations": True}
    for version in (0, 1):
        yield server.ask(talk, ApiKeys.CONSUMER_GROUP_DESCRIBE, version, body)
    yield server.ask(talk, ApiKeys.SHARE_GROUP_DESCRIBE, 1, body)
    yield server.ask(talk, ApiKeys.DESCRIBE_GROUPS, 6, {"groups": ["c", "s"], "includeAuthorizedOperations": True})
    yield server.ask(talk, ApiKeys.LIST_GROUPS, 5, {"statesFilter": [], "typesFilter": ["consumer", "share"]})


def subscribe(server: Server, talk: Talk) -> Iterator[Any]:
    """Names of topics that a consumer may not describe are refused, also in a share group."""
    for names in (["orders"], ["orders", "hidden"], ["hidden"], ["no-such"]):
        for group, key in (("r", ApiKeys.CONSUMER_GROUP_HEARTBEAT), ("e", ApiKeys.SHARE_GROUP_HEARTBEAT)):
            body: dict[str, Any] = {"groupId": group, "memberId": new_uuid(), "memberEpoch": 0}
            body |= {"subscribedTopicNames": names}
            if group == "r":
                body |= {"rebalanceTimeoutMs": 60_000, "topicPartitions": []}
            answer = server.ask(talk, key, 1, body)
            yield {"errorCode": answer["errorCode"], "assignment": answer["assignment"]}
            server.ask(talk, key, 1, {"groupId": group, "memberId": body["memberId"], "memberEpoch": -1})


def subscribe_to_pattern(server: Server, talk: Talk) -> Iterator[Any]:
    """A pattern gives the topics that the consumer may describe; others are left out without an error."""
    for pattern in ("orders|hidden", "hid.*", ".*"):
        body: dict[str, Any] = {"groupId": "r", "memberId": new_uuid(), "memberEpoch": 0}
        first = {"rebalanceTimeoutMs": 60_000, "topicPartitions": [], "subscribedTopicRegex": pattern}
        answer = server.ask(talk, ApiKeys.CONSUMER_GROUP_HEARTBEAT, 1, body | first)
        last = answer["assignment"]
        until = time.monotonic() + 2
        while (
            not answer["errorCode"]
            and time.monotonic() < until
            and not (last or {"topicPartitions": []})["topicPartitions"]
        ):
            time.sleep(0.1)
            body["memberEpoch"] = answer["memberEpoch"]
            answer = server.ask(talk, ApiKeys.CONSUMER_GROUP_HEARTBEAT, 1, body)
            last = answer["assignment"] or last
        found = (last or {"topicPartitions": []})["topicPartitions"]
        yield {"errorCode": answer["errorCode"], "topics": [{"topicId": each["topicId"]} for each in found]}
        server.ask(talk, ApiKeys.CONSUMER_GROUP_HEARTBEAT, 1, body | {"memberEpoch": -1})


def beat_for_another(server: Server, talk: Talk) -> Iterator[Any]:
    """A heartbeat without topics needs the right to read the group only."""
    for group, key in (("c", ApiKeys.CONSUMER_GROUP_HEARTBEAT), ("s", ApiKeys.SHARE_GROUP_HEARTBEAT)):
        body = {"groupId": group, "memberId": server.member, "memberEpoch": server.beats[group]["epoch"]}
        yield server.ask(talk, key, 1, body)


def offsets(server: Server, talk: Talk) -> Iterator[Any]:
    """Commits, reads and deletes offsets, by name and by id, of a group without members and of a live one."""
    commit = {"committedOffset": 1, "committedMetadata": ""}
    for group, member, epoch in (("o", "", -1), ("c", server.member, server.beats["c"]["epoch"]), ("s", "", -1)):
        who = {"groupId": group, "memberId": member, "generationIdOrMemberEpoch": epoch}
        for version in (9, 10):
            yield server.ask(talk, ApiKeys.OFFSET_COMMIT, version, who | {"topics": _both(server, **commit)})
    for group, member, epoch in (("o", None, -1), ("c", server.member, server.beats["c"]["epoch"])):
        of_group = {"groupId": group, "memberId": member, "memberEpoch": epoch}
        for version in (9, 10):
            for topics in (_both(server), None):
                yield server.ask(talk, ApiKeys.OFFSET_FETCH, version, {"groups": [of_group | {"topics": topics}]})
    for group in ("o", "c"):
        yield server.ask(talk, ApiKeys.OFFSET_DELETE, 0, {"groupId": group, "topics": _both(server)})


def share_records(server: Server, talk: Talk) -> Iterator[Any]:
    """Fetches and acknowledges records of both topics, in one share session."""
    who = {"groupId": "f", "memberId": server.member}
    limits = {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 10_000, "maxRecords": 10, "batchSize": 10}
    fetch = {**who, **limits, "shareSessionEpoch": 0, "topics": _both(server)}
    answer = server.ask(talk, ApiKeys.SHARE_FETCH, 1, fetch)
    found: dict[str, Any] = {}
    epoch = 1
    until = time.monotonic() + 10
    while True:  # a share partition may not be ready yet at the first fetch
        for topic in answer["responses"]:
            for each in topic["partitions"]:
                if each["errorCode"] or each["acquiredRecords"]:
                    found.setdefault(topic["topicId"], each["errorCode"])
        if answer["errorCode"] or len(found) == 2 or time.monotonic() > until:
            break
        time.sleep(0.1)
        answer = server.ask(talk, ApiKeys.SHARE_FETCH, 1, fetch | {"shareSessionEpoch": epoch, "topics": []})
        epoch += 1
    yield {"errorCode": answer["errorCode"], "topics": [{"topicId": each, "errorCode": found[each]} for each in found]}
    batch = {"firstOffset": 0, "lastOffset": 0, "acknowledgeTypes": [2]}  # released again
    topics = _both(server, acknowledgementBatches=[batch])
    yield server.ask(talk, ApiKeys.SHARE_ACKNOWLEDGE, 1, {**who, "shareSessionEpoch": epoch, "topics": topics})
    yield server.ask(talk, ApiKeys.SHARE_ACKNOWLEDGE, 1, {**who, "shareSessionEpoch": -1, "topics": []})


def share_offsets(server: Server, talk: Talk) -> Iterator[Any]:
    """Describes, alters and deletes the start offsets of share groups; `s` has a member, `e` does not exist."""
    for version in (0, 1):
        for group in ("s", "e"):
            for topics in ([{"topicName": name, "partitions": [0]} for name in server.ids], None):
                body = {"groups": [{"groupId": group, "topics": topics}]}
                yield server.ask(talk, ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS, version, body)
    for group in ("s", "e"):
        topics = _both(server, startOffset=0)
        yield server.ask(talk, ApiKeys.ALTER_SHARE_GROUP_OFFSETS, 0, {"groupId": group, "topics": topics})
        yield server.ask(talk, ApiKeys.DELETE_SHARE_GROUP_OFFSETS, 0, {"groupId": group, "topics": topics})


def administer(server: Server, talk: Talk) -> Iterator[Any]:
    """Deletes groups, and reads and changes their settings."""
    yield server.ask(talk, ApiKeys.DELETE_GROUPS, 2, {"groupsNames": ["c", "s", "e"]})
    resources = [{"resourceType": 32, "resourceName": each, "configurationKeys": None} for each in ("c", "s")]
    yield server.ask(talk, ApiKeys.DESCRIBE_CONFIGS, 4, {"resources": resources})
    change = {"name": "share.session.timeout.ms", "configOperation": 0, "value": "45000"}
    for each in resources:
        each["configs"] = [change]
    yield server.ask(talk, ApiKeys.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validateOnly": True})


STORIES: list[Story] = [
    describe_live, subscribe, subscribe_to_pattern, beat_for_another, offsets, share_records, share_offsets, administer,
]  # fmt: skip


@pytest.mark.parametrize("user", MEMBERS)
@pytest.mark.parametrize("story", STORIES, ids=lambda each: each.__name__)
def test_what_members_are_told(live: tuple[Server, Server], story: Story, user: str) -> None:
    wanted, found = ([], [])  # type: ignore[var-annotated]
    for server, answers in zip(live, (wanted, found), strict=True):
        talk = server.talk(user)
        try:
            answers += [server.outline(each) for each in story(server, talk)]
        finally:
            talk.close()
    assert found == wanted
