"""Requests of clients with few rights, on a real broker and on our server: which names and error codes they get."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.server.api import Apis
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
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="x"' for name in USERS)
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
        for user, rights in USERS.items()
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
    if REQUESTS[name][0] not in Apis().entries:
        pytest.skip("the server does not have this request")
    wanted = {user: told(theirs, user, name) for user in USERS}
    assert {user: told(ours, user, name) for user in USERS} == wanted
