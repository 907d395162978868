"""ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster and FindCoordinator, without a socket.

The expected answers were given by a broker of Kafka 4.4.0 to the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.errors import ClusterAuthorizationException, InvalidRequestException
from kafkalog.server.api import MODULES, Apis
from kafkalog.server.broker import Broker
from kafkalog.server.handlers import cluster
from kafkalog.server.request import ConnectionInfo, Pending, Request
from kafkalog.server.security.authorizer import StandardAuthorizer
from kafkalog.server.settings import Endpoint, ServerSettings
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles
from tests.unit.server_kit import SOFTWARE

CLUSTER = "kafkalog-tests-00000AA"
UNKNOWN_ID = "BBBBBBBBBBBBBBBBBBBBBA"
NOT_ASKED = -2147483648
TOPIC_OPERATIONS, CLUSTER_OPERATIONS = 3576, 8096
Ask = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path, files=UnsyncedFiles()) as opened:
        yield opened


def broker_of(store: Store, **settings: object) -> Broker:
    broker = Broker(store._own(), ServerSettings.from_props(settings), cluster_id=CLUSTER)  # type: ignore[arg-type]
    broker.advertised = [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
    broker.apis = Apis()
    return broker


@pytest.fixture
def broker(store: Store) -> Broker:
    return broker_of(store, num_partitions=3)


def ask(broker: Broker, key: int, version: int, values: dict[str, Any] | None = None, **header: Any) -> Any:
    """The answer to a request, which goes through its bytes both ways."""
    known = api(key)
    body, _ = known.request.decode(known.request.encode(values or {}, version), version)
    request = Request(key, version, body=body, **header)
    answer: Any = cluster.HANDLERS[key](broker, request)
    if isinstance(answer, Pending):
        found: list[Any] = []
        answer.deliver_to(found.append)
        (answer,) = found
    return known.response.decode(known.response.encode(answer, version), version)[0]


def codes(topics: Iterable[dict[str, Any]]) -> dict[str, Errors]:
    return {each["name"]: Errors(each["errorCode"]) for each in topics}


# --- ApiVersions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_api_versions(broker: Broker, version: int) -> None:
    found = ask(broker, ApiKeys.API_VERSIONS, version, SOFTWARE if version >= 3 else {})
    assert found["errorCode"] == 0
    keys = {each["apiKey"]: (each["minVersion"], each["maxVersion"]) for each in found["apiKeys"]}
    assert list(keys) == sorted(keys)
    assert len(keys) == sum(map(len, MODULES.values()))
    assert keys[ApiKeys.PRODUCE] == (0, 13)  # librdkafka looks for 0
    assert keys[ApiKeys.METADATA] == (0, 13)
    features = {each["name"]: each["minVersion"] for each in found["supportedFeatures"]}
    assert features.get("metadata.version") == (7 if version >= 3 else None)
    assert ("kraft.version" in features) == (version >= 4)
    finalized = {each["name"]: each["maxVersionLevel"] for each in found["finalizedFeatures"]}
    assert finalized.get("metadata.version") == (33 if version >= 3 else None)
    assert finalized.get("transaction.version") == (2 if version >= 3 else None)
    assert "streams.version" not in finalized


def test_features_need_their_requests(store: Store) -> None:
    broker = broker_of(store)
    broker.apis = Apis({"cluster": ("ApiVersions",)})
    found = ask(broker, ApiKeys.API_VERSIONS, 4, SOFTWARE)
    assert {each["name"] for each in found["finalizedFeatures"]} == {
        "metadata.version", "eligible.leader.replicas.version",
    }  # fmt: skip


def test_an_unknown_version_is_told_the_known_ones(broker: Broker) -> None:
    request = Request(ApiKeys.API_VERSIONS, 0, body=api(18).request.default_values())
    request.unsupported_version = 99
    found = cluster.handle_api_versions(broker, request)
    assert found == {"errorCode": 35, "apiKeys": [{"apiKey": 18, "minVersion": 0, "maxVersion": 5}]}


@pytest.mark.parametrize(
    ("version", "values", "error"),
    [
        (3, {"clientSoftwareName": "-", "clientSoftwareVersion": "1"}, Errors.INVALID_REQUEST),
        (3, {"clientSoftwareName": "a", "clientSoftwareVersion": ""}, Errors.INVALID_REQUEST),
        (5, {**SOFTWARE, "clusterId": CLUSTER}, Errors.INVALID_REQUEST),
        (5, {**SOFTWARE, "nodeId": 1}, Errors.INVALID_REQUEST),
        (5, {**SOFTWARE, "clusterId": "other", "nodeId": 1}, Errors.REBOOTSTRAP_REQUIRED),
        (5, {**SOFTWARE, "clusterId": CLUSTER, "nodeId": 2}, Errors.REBOOTSTRAP_REQUIRED),
        (5, {**SOFTWARE, "clusterId": CLUSTER, "nodeId": 1}, Errors.NONE),
    ],
)
def test_what_a_client_says_of_itself(broker: Broker, version: int, values: dict[str, Any], error: Errors) -> None:
    found = ask(broker, ApiKeys.API_VERSIONS, version, values)
    assert (found["errorCode"], bool(found["apiKeys"])) == (error, error is Errors.NONE)


def test_the_connection_knows_the_client(broker: Broker) -> None:
    info = ConnectionInfo()
    ask(broker, ApiKeys.API_VERSIONS, 3, SOFTWARE, connection=info)
    assert (info.client_software_name, info.client_software_version) == ("test", "1.0")


# --- Metadata --------------------------------------------------------------------------------------------


def metadata(broker: Broker, topics: Any = None, version: int = 12, **fields: Any) -> Any:
    asked = None if topics is None else [{"name": each} for each in topics]
    return ask(broker, ApiKeys.METADATA, version, {"topics": asked, **fields})


def test_the_node(broker: Broker) -> None:
    found = metadata(broker, [])
    assert found["brokers"] == [{"nodeId": 1, "host": "127.0.0.1", "port": 9092, "rack": None}]
    assert (found["clusterId"], found["controllerId"], found["topics"]) == (CLUSTER, 1, [])
    assert found["clusterAuthorizedOperations"] == NOT_ASKED


@pytest.mark.parametrize("version", range(14))
def test_a_topic_in_every_version(store: Store, broker: Broker, version: int) -> None:
    topic = store.create_topic("orders", partitions=2)
    (found,) = metadata(broker, ["orders"], version)["topics"]
    assert (found["errorCode"], found["name"], found["isInternal"]) == (0, "orders", False)
    assert found["topicId"] == (topic.info.topic_id if version >= 10 else ZERO_UUID)
    assert found["partitions"] == [
        {
            "errorCode": 0, "partitionIndex": number, "leaderId": 1, "leaderEpoch": 0 if version >= 7 else -1,
            "replicaNodes": [1], "isrNodes": [1], "offlineReplicas": [],
        }
        for number in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "topics", "is_all"), [(0, [], True), (1, [], False), (1, None, True), (12, None, True)]
)
def test_all_topics(store: Store, broker: Broker, version: int, topics: Any, is_all: bool) -> None:
    store.create_topic("a")
    store.create_topic("b")
    assert [each["name"] for each in metadata(broker, topics, version)["topics"]] == (["a", "b"] if is_all else [])


def test_unknown_topics(store: Store, broker: Broker) -> None:
    asked = ["nope", "bad name!", "__consumer_offsets", "nope"]
    found = metadata(broker, asked, allowAutoTopicCreation=False)["topics"]
    assert codes(found) == {
        "nope": Errors.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name!": Errors.INVALID_TOPIC_EXCEPTION,
        "__consumer_offsets": Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [each["isInternal"] for each in found] == [False, False, True]
    assert "nope" not in store


def test_topics_come_into_being(store: Store, broker: Broker) -> None:
    found = metadata(broker, ["new", "bad name!"])["topics"]
    assert codes(found) == {"new": Errors.UNKNOWN_TOPIC_OR_PARTITION, "bad name!": Errors.INVALID_TOPIC_EXCEPTION}
    (found,) = metadata(broker, ["new"])["topics"]
    assert (found["errorCode"], len(found["partitions"])) == (0, 3)
    assert store.topic("new").info.overrides == {}  # the broker's defaults, as in Kafka


def test_no_topic_comes_into_being(store: Store) -> None:
    metadata(broker_of(store, auto_create_topics_enable=False), ["new"])
    assert "new" not in store


def test_topics_by_id(store: Store, broker: Broker) -> None:
    topic_id = store.create_topic("orders").info.topic_id
    asked = {"topics": [{"topicId": topic_id, "name": None}, {"topicId": UNKNOWN_ID, "name": None}, {"name": "x"}]}
    unknown, known = ask(broker, ApiKeys.METADATA, 12, asked)["topics"]
    assert (unknown["errorCode"], unknown["name"], unknown["topicId"]) == (Errors.UNKNOWN_TOPIC_ID, None, UNKNOWN_ID)
    assert (known["errorCode"], known["name"], known["topicId"]) == (0, "orders", topic_id)


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_without_name_and_id_fails_everything(broker: Broker, version: int) -> None:
    found = ask(broker, ApiKeys.METADATA, version, {"topics": [{"name": None}]})
    assert (found["brokers"], found["clusterId"], found["controllerId"]) == ([], None, -1)
    assert [(each["name"], each["errorCode"]) for each in found["topics"]] == [("", -1)]
    assert found["errorCode"] == (-1 if version == 13 else 0)


@pytest.mark.parametrize("topic", [{"topicId": UNKNOWN_ID, "name": "x"}, {"name": None}])
def test_ids_before_their_version(broker: Broker, topic: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestException):
        ask(broker, ApiKeys.METADATA, 11, {"topics": [topic]})


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_without_name_and_id(store: Store, broker: Broker, version: int) -> None:
    store.create_topic("orders")
    found = ask(broker, ApiKeys.METADATA, version, {"topics": [{"name": "orders"}, {"name": None}]})
    assert [each["errorCode"] for each in found["topics"]] == [-1, -1]
    assert [each["name"] for each in found["topics"]] == ["orders", ""]
    assert found["brokers"] == []


def test_authorized_operations(store: Store, broker: Broker) -> None:
    store.create_topic("orders")
    asked = {"includeTopicAuthorizedOperations": True, "includeClusterAuthorizedOperations": True}
    found = metadata(broker, ["orders"], 9, **asked)
    assert found["topics"][0]["topicAuthorizedOperations"] == TOPIC_OPERATIONS
    assert found["clusterAuthorizedOperations"] == CLUSTER_OPERATIONS
    assert metadata(broker, ["orders"], 9)["topics"][0]["topicAuthorizedOperations"] == NOT_ASKED


def test_hidden_topics(store: Store, broker: Broker) -> None:
    topic_id = store.create_topic("orders").info.topic_id
    broker.authorizer = StandardAuthorizer()
    (found,) = metadata(broker, ["orders"])["topics"]
    assert (found["name"], Errors(found["errorCode"])) == ("orders", Errors.TOPIC_AUTHORIZATION_FAILED)
    (found,) = ask(broker, ApiKeys.METADATA, 12, {"topics": [{"topicId": topic_id, "name": None}]})["topics"]
    assert (found["name"], found["topicId"]) == (None, topic_id)
    assert metadata(broker)["topics"] == []
    metadata(broker, ["new"])
    assert "new" not in store


def test_a_partition_without_its_directory_has_no_leader(tmp_path: Path) -> None:
    files = UnsyncedFiles()
    with kafkalog.open([tmp_path / "a", tmp_path / "b"], files=files) as store:
        store.create_topic("orders", partitions=2)
    with kafkalog.open([tmp_path / "a"], files=files) as store:
        broker = broker_of(store)
        (found,) = metadata(broker, ["orders"])["topics"]
        leaders = {each["leaderId"]: each for each in found["partitions"]}
        assert set(leaders) == {1, -1}
        lost = leaders[-1]
        assert (Errors(lost["errorCode"]), lost["offlineReplicas"]) == (Errors.LEADER_NOT_AVAILABLE, [1])


# --- DescribeTopicPartitions -----------------------------------------------------------------------------


def described(broker: Broker, *topics: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    at = None if cursor is None else {"topicName": cursor[0], "partitionIndex": cursor[1]}
    asked = {"topics": [{"name": each} for each in topics], "responsePartitionLimit": limit, "cursor": at}
    return ask(broker, ApiKeys.DESCRIBE_TOPIC_PARTITIONS, 0, asked)


def pages(broker: Broker, *topics: str, limit: int) -> list[list[tuple[str, int]]]:
    """All partitions, page by page."""
    found, cursor = [], None
    while True:
        page = described(broker, *topics, cursor=cursor, limit=limit)
        found.append([(each["name"], one["partitionIndex"]) for each in page["topics"] for one in each["partitions"]])
        if page["nextCursor"] is None:
            return found
        cursor = (page["nextCursor"]["topicName"], page["nextCursor"]["partitionIndex"])


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 6, 100])
@pytest.mark.parametrize("names", [(), ("c", "a", "b")])
def test_pages(store: Store, broker: Broker, limit: int, names: tuple[str, ...]) -> None:
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        store.create_topic(name, partitions=count)
    found = pages(broker, *names, limit=limit)
    assert [each for page in found for each in page] == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]
    assert max(map(len, found)) <= max(limit, 1)


def test_the_brokers_limit(store: Store) -> None:
    store.create_topic("a", partitions=5)
    broker = broker_of(store, max_request_partition_size_limit=2)
    assert [len(page) for page in pages(broker, limit=100)] == [2, 2, 1]


def test_a_topic_without_a_name_fails_the_description(store: Store, broker: Broker) -> None:
    store.create_topic("known")
    assert codes(described(broker, "known", "")["topics"]) == dict.fromkeys(("known", ""), Errors.UNKNOWN_SERVER_ERROR)


def test_described_unknown_topics(store: Store, broker: Broker) -> None:
    store.create_topic("known")
    found = described(broker, "known", "nope", "b d")["topics"]
    assert codes(found) == {
        "b d": Errors.INVALID_TOPIC_EXCEPTION,
        "known": Errors.NONE,
        "nope": Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [each["name"] for each in found] == ["b d", "known", "nope"]
    assert {each["topicAuthorizedOperations"] for each in found} == {TOPIC_OPERATIONS}


@pytest.mark.parametrize("cursor", [("zz", 0), ("known", -1)])
def test_wrong_cursors(store: Store, broker: Broker, cursor: tuple[str, int]) -> None:
    store.create_topic("known")
    with pytest.raises(InvalidRequestException, match="cursor"):
        described(broker, "known", cursor=cursor)


# --- DescribeCluster -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(broker: Broker, version: int) -> None:
    found = ask(broker, ApiKeys.DESCRIBE_CLUSTER, version, {"includeClusterAuthorizedOperations": True})
    assert (found["clusterId"], found["controllerId"]) == (CLUSTER, 1)
    assert found["clusterAuthorizedOperations"] == CLUSTER_OPERATIONS
    (node,) = found["brokers"]
    assert (node["brokerId"], node["host"], node["port"], node["isFenced"]) == (1, "127.0.0.1", 9092, False)


@pytest.mark.parametrize(
    ("endpoint", "error", "says"),
    [
        (2, Errors.MISMATCHED_ENDPOINT_TYPE, "endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"),
        (9, Errors.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 9"),
    ],
)
def test_other_endpoints(broker: Broker, endpoint: int, error: Errors, says: str) -> None:
    found = ask(broker, ApiKeys.DESCRIBE_CLUSTER, 1, {"endpointType": endpoint})
    assert (found["errorCode"], found["brokers"]) == (error, [])
    assert says in found["errorMessage"]


# --- FindCoordinator -------------------------------------------------------------------------------------


def coordinator(broker: Broker, kind: int, *keys: str, version: int = 6) -> Any:
    asked: dict[str, Any] = {"keyType": kind, "coordinatorKeys": list(keys)} if version >= 4 else {"key": keys[0]}
    if 1 <= version < 4:
        asked["keyType"] = kind
    return ask(broker, ApiKeys.FIND_COORDINATOR, version, asked)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("kind", [0, 1])
def test_this_node_coordinates(store: Store, broker: Broker, version: int, kind: int) -> None:
    if version == 0 and kind:
        return
    found = coordinator(broker, kind, "k", version=version)
    one = found["coordinators"][0] if version >= 4 else found
    assert (one["errorCode"], one["nodeId"], one["host"], one["port"]) == (0, 1, "127.0.0.1", 9092)
    if 1 <= version < 4:
        assert one["errorMessage"] == "NONE"
    topic = ("__consumer_offsets", "__transaction_state")[kind]
    assert topic in store
    (seen,) = metadata(broker, [topic])["topics"]
    assert (seen["errorCode"], seen["isInternal"], len(seen["partitions"])) == (0, True, 50)


def test_share_coordinators(store: Store, broker: Broker) -> None:
    keys = ["g:AAAAAAAAAAAAAAAAAAAAAQ:0", "a:b:AAAAAAAAAAAAAAAAAAAAAQ:7", "g", "", ":AAAAAAAAAAAAAAAAAAAAAQ:0", "g:x:0",
            "g:AAAAAAAAAAAAAAAAAAAAAQ:x"]  # fmt: skip
    found = coordinator(broker, 2, *keys)["coordinators"]
    assert [each["errorCode"] for each in found] == [0, 0] + [Errors.INVALID_REQUEST] * 5
    assert "__share_group_state" in store
    (found,) = coordinator(broker, 2, keys[0], version=5)["coordinators"]
    assert Errors(found["errorCode"]) == Errors.INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 6])
def test_unknown_kinds(broker: Broker, version: int) -> None:
    found = coordinator(broker, 7, "g", version=version)
    one = found["coordinators"][0] if version >= 4 else found
    assert (Errors(one["errorCode"]), one["nodeId"], one["port"]) == (Errors.INVALID_REQUEST, -1, -1)
    assert one["errorMessage"].startswith("This most likely occurs because of a request being malformed")


def test_hidden_coordinators(store: Store, broker: Broker) -> None:
    broker.authorizer = StandardAuthorizer()
    found = [coordinator(broker, kind, "k")["coordinators"][0]["errorCode"] for kind in (0, 1)]
    assert found == [Errors.GROUP_AUTHORIZATION_FAILED, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(ClusterAuthorizationException):
        coordinator(broker, 2, "g:AAAAAAAAAAAAAAAAAAAAAQ:0")
    assert store._home.names() == []
