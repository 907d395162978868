"""ACLs, SCRAM credentials and quotas: their requests, their file, and the authorizer."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.names import SERVER_STATE_FILE as FILE
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.errors import (
    ClusterAuthorizationException,
    CorruptCheckpointException,
    IllegalArgumentException,
    InvalidRequestException,
    KafkaStorageException,
    PolicyViolationException,
    SecurityDisabledException,
    UnsupportedVersionException,
)
from kafkalog.server import server_state
from kafkalog.server.broker import Broker
from kafkalog.server.handlers import security as handlers
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, Request
from kafkalog.server.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType, StandardAcl
from kafkalog.server.security.authorizer import AllowAll, StandardAuthorizer
from kafkalog.server.security.principal import host_address, parse_kafka_principal
from kafkalog.server.security.quotas import QuotaEntity
from kafkalog.server.security.scram import ScramMechanism, credential_of
from kafkalog.server.security.setup import state_file_of
from kafkalog.server.server_state import ServerState, StateFile

Values = dict[str, Any]


class Disk(type(OS_FILES)):  # type: ignore[misc]
    """The real disk, which refuses to write on request."""

    fails = False

    def write_atomic(self, path: str, data: Any, **options: Any) -> None:
        if self.fails:
            raise OSError(5, "Input/output error", path)
        super().write_atomic(path, data, **options)


class Node:
    """A broker over directories, without a server."""

    def __init__(self, *log_dirs: Path, authorizer: bool = True, user: str = "admin") -> None:
        for each in log_dirs:
            each.mkdir(exist_ok=True)
        self.files = Disk()
        home: Any = SimpleNamespace(
            clock=ManualClock(1_800_000_000_000), log_dirs=[str(each) for each in log_dirs], files=self.files, place="p"
        )
        self.broker = Broker(home)
        if authorizer:
            self.broker.authorizer = StandardAuthorizer(["User:admin"])
        state_file_of(self.broker)
        self.user = user

    def ask(self, key: int, body: Values, *, user: str | None = None, version: int = 1) -> Values:
        """Sends a request through its encoding and its decoder, and returns the answer, which is encoded too."""
        known = api(key)
        data = memoryview(known.request.encode(body, version))
        decoder = handlers.DECODERS.get(key)
        request = Request(key, version, connection=ConnectionInfo(principal=KafkaPrincipal("User", user or self.user)))
        request.body = decoder(data, version, 0) if decoder else known.request.decode(data, version)[0]
        answer = handlers.HANDLERS[key](self.broker, request)
        assert isinstance(answer, dict)
        encoded = known.response.encode(answer, version)
        found: Values = known.response.decode(encoded, version)[0]
        return found

    def create(self, **changed: Any) -> Values:
        creation = {
            "resourceType": 2, "resourceName": "orders", "resourcePatternType": 3, "principal": "User:alice",
            "host": "*", "operation": 3, "permissionType": 3,
        } | changed  # fmt: skip
        found: Values = self.ask(ApiKeys.CREATE_ACLS, {"creations": [creation]})["results"][0]
        return found

    def acls(self, **changed: Any) -> list[str]:
        found = self.ask(ApiKeys.DESCRIBE_ACLS, ANY_FILTER | changed)["resources"]
        return [f"{each['resourceName']} {acl['principal']}" for each in found for acl in each["acls"]]


ANY_FILTER: Values = {
    "resourceTypeFilter": 1, "resourceNameFilter": None, "patternTypeFilter": 1, "principalFilter": None,
    "hostFilter": None, "operation": 1, "permissionType": 1,
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")


# --- ACLs ------------------------------------------------------------------------------------------------


def test_acls_are_created_described_and_deleted(node: Node) -> None:
    assert node.create() == {"errorCode": 0, "errorMessage": ""}
    assert node.create() == {"errorCode": 0, "errorMessage": ""}  # again
    node.create(resourceName="ord", resourcePatternType=4, principal="User:bob")
    node.create(resourceName="*", principal="User:*")
    assert node.acls() == ["* User:*", "ord User:bob", "orders User:alice"]
    assert node.acls(resourceNameFilter="orders", patternTypeFilter=2) == [
        "* User:*",
        "ord User:bob",
        "orders User:alice",
    ]
    assert node.acls(resourceNameFilter="orders") == ["orders User:alice"]
    assert node.acls(patternTypeFilter=4) == ["ord User:bob"]
    assert node.acls(principalFilter="User:*") == ["* User:*"]
    assert node.acls(operation=4) == []
    assert node.acls(operation=99) == []
    filters = [ANY_FILTER | {"resourceNameFilter": "ord"}, ANY_FILTER | {"operation": 99}, ANY_FILTER]
    results = node.ask(ApiKeys.DELETE_ACLS, {"filters": filters})["filterResults"]
    assert [(each["errorCode"], len(each["matchingAcls"])) for each in results] == [(0, 1), (42, 0), (0, 3)]
    assert results[1]["errorMessage"] == "Unknown entryFilter."
    assert node.acls() == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"resourceType": 99}, "Invalid resourceType UNKNOWN"),
        ({"resourcePatternType": 99}, "Invalid patternType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permissionType": 99}, "Invalid permissionType UNKNOWN"),
        ({"resourceName": ""}, "Invalid empty resource name"),
        ({"resourceType": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"host": ""}, "Host pattern cannot be null or empty"),
        ({"host": "10.0.0.0/33"}, "Invalid CIDR notation '10.0.0.0/33': Value [33] not in range [0,32]"),
        (
            {"principal": "alice"},
            "Could not parse principal from `alice` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)  # fmt: skip
def test_acls_that_are_refused(node: Node, changed: Values, text: str) -> None:
    assert node.create(**changed) == {"errorCode": Errors.INVALID_REQUEST, "errorMessage": text}
    assert node.acls() == []


@pytest.mark.parametrize(
    "changed", [{"resourceType": 1}, {"resourcePatternType": 2}, {"operation": 1}, {"permissionType": 1}]
)
def test_what_is_for_filters_alone(node: Node, changed: Values) -> None:
    with pytest.raises(IllegalArgumentException):
        node.create(**changed)
    assert node.acls() == []


def test_too_many_acls_at_once(node: Node) -> None:
    row = {
        "resourceType": 2, "resourcePatternType": 3, "principal": "User:a", "host": "*", "operation": 3,
        "permissionType": 3,
    }  # fmt: skip
    creations = [{**row, "resourceName": str(number)} for number in range(10_001)]
    results = node.ask(ApiKeys.CREATE_ACLS, {"creations": creations})["results"]
    assert {each["errorCode"] for each in results} == {Errors.POLICY_VIOLATION}
    assert node.acls() == []


@pytest.mark.parametrize("field", ["resourceTypeFilter", "patternTypeFilter", "operation", "permissionType"])
def test_a_filter_with_the_number_0_is_no_request(node: Node, field: str) -> None:
    with pytest.raises(InvalidRequestException):
        node.acls(**{field: 0})
    with pytest.raises(InvalidRequestException):
        node.ask(ApiKeys.DELETE_ACLS, {"filters": [ANY_FILTER | {field: 0}]})


def test_a_creation_with_the_number_0_is_no_request(node: Node) -> None:
    with pytest.raises(InvalidRequestException):
        node.create(operation=0)


def test_without_an_authorizer(tmp_path: Path) -> None:
    node = Node(tmp_path, authorizer=False)
    for call in (node.create, node.acls, lambda: node.ask(ApiKeys.DELETE_ACLS, {"filters": []})):
        with pytest.raises(SecurityDisabledException, match="No Authorizer is configured"):
            call()


def test_who_may_change_what(node: Node) -> None:
    node.user = "bob"
    for key, body in (
        (ApiKeys.CREATE_ACLS, {"creations": []}),
        (ApiKeys.DELETE_ACLS, {"filters": []}),
        (ApiKeys.DESCRIBE_ACLS, ANY_FILTER),
    ):
        with pytest.raises(ClusterAuthorizationException):
            node.ask(key, body)
    for key in (ApiKeys.ALTER_USER_SCRAM_CREDENTIALS, ApiKeys.ALTER_CLIENT_QUOTAS):
        with pytest.raises(ClusterAuthorizationException):
            node.ask(key, {}, version=0)
    refused = node.ask(ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": []}, version=0)
    assert refused["errorCode"] == Errors.CLUSTER_AUTHORIZATION_FAILED
    refused = node.ask(ApiKeys.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    assert refused["errorCode"] == Errors.CLUSTER_AUTHORIZATION_FAILED
    node.user = "admin"
    for operation in (AclOperation.ALTER, AclOperation.DESCRIBE_CONFIGS):
        node.create(resourceType=4, resourceName="kafka-cluster", principal="User:bob", operation=operation)
    node.user = "bob"
    assert len(node.acls()) == 2  # ALTER implies DESCRIBE
    assert node.ask(ApiKeys.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})["errorCode"] == 0
    with pytest.raises(ClusterAuthorizationException):
        node.ask(ApiKeys.ALTER_CLIENT_QUOTAS, {}, version=0)


def test_the_authorizer_follows_the_acls(node: Node) -> None:
    request = Request(1, 1, connection=ConnectionInfo("::ffff:10.0.0.1", principal=KafkaPrincipal("User", "alice")))
    authorizer = node.broker.authorizer
    assert not authorizer.authorize(request, "READ", "TOPIC", "orders")
    node.create(host="10.0.0.1")
    assert authorizer.authorize(request, "READ", "TOPIC", "orders")
    assert authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.TOPIC, "orders")
    assert not authorizer.authorize(request, "WRITE", "TOPIC", "orders")
    assert authorizer.filter_by_authorized(request, "READ", "TOPIC", ["orders", "other"]) == {"orders"}
    assert authorizer.authorized_operations(request, "TOPIC", "orders") == 1 << 3 | 1 << 8
    assert authorizer.authorize_by_resource_type(request, "READ", "TOPIC")
    node.create(permissionType=2, resourceName="o", resourcePatternType=4)
    assert not authorizer.authorize(request, "READ", "TOPIC", "orders")
    assert authorizer.authorize(request, "DESCRIBE", "TOPIC", "orders")
    assert not authorizer.authorize_by_resource_type(request, "READ", "TOPIC")


def test_denials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(1, 1, connection=ConnectionInfo(principal=KafkaPrincipal("User", "alice")))
    with caplog.at_level(logging.INFO, "kafkalog.authorizer"):
        StandardAuthorizer().authorize(request, "READ", "TOPIC", "orders")
        StandardAuthorizer().authorize(request, "READ", "TOPIC", "orders", log=False)
        StandardAuthorizer(["User:alice"]).authorize(request, "READ", "TOPIC", "orders")
    assert [each.getMessage() for each in caplog.records] == [
        "Principal = User:alice is Denied operation = READ from host = 127.0.0.1 on resource = TOPIC:LITERAL:orders "
        "for request = Fetch"
    ]


def test_without_acls_everything_may_be_open() -> None:
    request = Request(1, 1)
    assert StandardAuthorizer(allow_everyone_if_no_acl_found=True).authorize(request, "READ", "TOPIC", "orders")
    everything = AllowAll()
    assert everything.authorize(request, "READ", "TOPIC", "orders")
    assert everything.filter_by_authorized(request, "READ", "TOPIC", ["a"]) == {"a"}
    assert everything.authorize_by_resource_type(request, "READ", "TOPIC")
    assert everything.authorized_operations(request, "CLUSTER", "kafka-cluster") == sum(
        1 << number for number in (5, 7, 8, 9, 10, 11, 12)
    )
    everything.authorize_cluster(request, "ALTER")


def test_principals_and_hosts() -> None:
    assert parse_kafka_principal("User:a:b") == KafkaPrincipal("User", "a:b")
    with pytest.raises(IllegalArgumentException):
        parse_kafka_principal("alice")
    assert host_address("2001:db8::1%eth0") == "2001:db8:0:0:0:0:0:1%eth0"
    assert host_address("nonsense:") == "nonsense:"


# --- SCRAM -----------------------------------------------------------------------------------------------


def upsert(name: str, mechanism: int = 1, iterations: int = 4096) -> Values:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "saltedPassword": b"x" * 32,
    }


def alter_scram(node: Node, deletions: list[Values], upsertions: list[Values]) -> dict[str, tuple[int, str | None]]:
    body = {"deletions": deletions, "upsertions": upsertions}
    results = node.ask(ApiKeys.ALTER_USER_SCRAM_CREDENTIALS, body, version=0)["results"]
    return {each["user"]: (each["errorCode"], each["errorMessage"]) for each in results}


TWICE = (Errors.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def test_scram_credentials(node: Node) -> None:
    assert alter_scram(node, [], [upsert("alice"), upsert("bob", 2, 8192)]) == {"alice": (0, None), "bob": (0, None)}
    assert alter_scram(node, [], [upsert("alice", 2, 16384)]) == {"alice": (0, None)}
    described = node.ask(ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, version=0)["results"]
    assert {each["user"]: [tuple(row.values()) for row in each["credentialInfos"]] for each in described} == {
        "alice": [(1, 4096), (2, 16384)],
        "bob": [(2, 8192)],
    }
    names = [{"name": name} for name in ("bob", "carol", "alice", "alice")]
    described = node.ask(ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": names}, version=0)["results"]
    assert [each["errorCode"] for each in described] == [0, Errors.RESOURCE_NOT_FOUND, Errors.DUPLICATE_RESOURCE]
    assert alter_scram(node, [{"name": "alice", "mechanism": 1}], []) == {"alice": (0, None)}
    assert set(node.broker.state["kept"].state.scram) == {
        ("alice", ScramMechanism.SCRAM_SHA_512),
        ("bob", ScramMechanism.SCRAM_SHA_512),
    }


def test_scram_credentials_that_are_refused(node: Node) -> None:
    wrong = [upsert(""), upsert("few", iterations=4095), upsert("many", iterations=16385), upsert("what", mechanism=3)]
    found = alter_scram(node, [{"name": "nobody", "mechanism": 1}], wrong)
    assert found == {
        "": (Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "few": (Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        "many": (Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "what": (Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "nobody": (Errors.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
    }
    alter_scram(node, [], [upsert("alice"), upsert("bob")])
    assert alter_scram(node, [{"name": "alice", "mechanism": 1}], [upsert("alice"), upsert("bob"), upsert("bob")]) == {
        "alice": TWICE,
        "bob": TWICE,
    }
    twice = [{"name": "alice", "mechanism": 1}] * 2
    assert alter_scram(node, twice, []) == {"alice": TWICE}
    assert len(node.broker.state["kept"].state.scram) == 2


# --- quotas ----------------------------------------------------------------------------------------------


def alter_quota(node: Node, entity: Values, *, only_check: bool = False, **values: float | None) -> str | None:
    parts = [{"entityType": key, "entityName": name} for key, name in entity.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()]
    body = {"entries": [{"entity": parts, "ops": ops}], "validateOnly": only_check}
    (result,) = node.ask(ApiKeys.ALTER_CLIENT_QUOTAS, body)["entries"]
    assert result["entity"] == sorted(parts, key=lambda part: part["entityType"])
    assert (result["errorCode"] == 0) == (result["errorMessage"] is None)
    found: str | None = result["errorMessage"]
    return found


def quotas(node: Node, *components: tuple[str, int, str | None], strict: bool = False) -> list[Values]:
    rows = [{"entityType": kind, "matchType": match_type, "match": match} for kind, match_type, match in components]
    entries = node.ask(ApiKeys.DESCRIBE_CLIENT_QUOTAS, {"components": rows, "strict": strict})["entries"]
    return [{part["entityType"]: part["entityName"] for part in entry["entity"]} for entry in entries]


def test_quotas(node: Node) -> None:
    alice, default = {"user": "alice"}, {"user": None}
    both = {"client-id": "app", "user": "alice"}
    assert alter_quota(node, alice, producer_byte_rate=1000.0, request_percentage=12.5) is None
    assert alter_quota(node, default, consumer_byte_rate=10.0) is None
    assert alter_quota(node, both, controller_mutation_rate=0.5) is None
    assert alter_quota(node, {"ip": "127.0.0.1"}, connection_creation_rate=3.0) is None
    assert alter_quota(node, {"ip": None}, only_check=True, connection_creation_rate=3.0) is None
    assert len(quotas(node)) == 4
    assert quotas(node, strict=True) == []
    assert quotas(node, ("user", 0, "alice")) == [alice, {"user": "alice", "client-id": "app"}]
    assert quotas(node, ("user", 0, "alice"), strict=True) == [alice]
    assert quotas(node, ("user", 1, None)) == [default]
    assert len(quotas(node, ("user", 2, None))) == 3
    assert quotas(node, ("user", 2, None), ("client-id", 0, "app")) == [{"user": "alice", "client-id": "app"}]
    assert quotas(node, ("ip", 2, None)) == [{"ip": "127.0.0.1"}]
    request = Request(0, 9, client_id="app", connection=ConnectionInfo(principal=KafkaPrincipal("User", "alice")))
    assert node.broker.quotas.produce(request, 1_000_000) > 0
    assert alter_quota(node, alice, producer_byte_rate=None, request_percentage=None, nonsense=None) is None
    assert len(quotas(node)) == 3
    assert node.broker.quotas.produce(request, 1_000_000) == 0


@pytest.mark.parametrize(
    ("entity", "values", "text"),
    [
        ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ({"what": "x"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: what"),
        ({"ip": "no such host.invalid"}, {}, "no such host.invalid is not a valid IP or resolvable host."),
        (
            {"ip": "127.0.0.1", "user": "a"},
            {"connection_creation_rate": 1.0},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ({"user": "a"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"ip": None}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"user": "a"}, {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "a"}, {"producer_byte_rate": float("nan")}, "Quota producer_byte_rate must be a finite number"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
        ({"user": "a"}, {"producer_byte_rate": 1e19}, "Proposed value for producer_byte_rate is too large for a LONG."),
        (
            {"ip": None},
            {"connection_creation_rate": 2147483648.0},
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
    ],
)
def test_quotas_that_are_refused(node: Node, entity: Values, values: dict[str, float], text: str) -> None:
    assert alter_quota(node, entity, **values) == text
    assert quotas(node) == []


def test_quotas_that_a_request_names_twice(node: Node) -> None:
    parts = [{"entityType": "user", "entityName": "alice"}]
    op = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
    body = {"entries": [{"entity": parts, "ops": [op]}, {"entity": parts, "ops": [op]}], "validateOnly": False}
    (result,) = node.ask(ApiKeys.ALTER_CLIENT_QUOTAS, body)["entries"]
    assert result["errorMessage"] == "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert quotas(node) == [{"user": "alice"}]  # by the first
    body = {"entries": [{"entity": parts, "ops": [op, op]}], "validateOnly": False}
    (result,) = node.ask(ApiKeys.ALTER_CLIENT_QUOTAS, body)["entries"]
    assert result["errorCode"] == Errors.INVALID_REQUEST


@pytest.mark.parametrize(
    ("components", "kind"),
    [
        ([("", 0, "x")], InvalidRequestException),
        ([("user", 0, "x"), ("user", 2, None)], InvalidRequestException),
        ([("what", 0, "x")], UnsupportedVersionException),
        ([("user", 0, None)], InvalidRequestException),
        ([("user", 1, "x")], InvalidRequestException),
        ([("user", 2, "x")], InvalidRequestException),
        ([("user", 3, None)], InvalidRequestException),
        ([("user", 2, None), ("ip", 2, None)], InvalidRequestException),
    ],
)
def test_filters_of_quotas_that_are_refused(node: Node, components: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        quotas(node, *components)


# --- SASL after the authentication -----------------------------------------------------------------------


def test_sasl_requests_of_a_known_client(node: Node) -> None:
    answer = node.ask(ApiKeys.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    assert answer == {"errorCode": Errors.ILLEGAL_SASL_STATE, "mechanisms": []}
    answer = node.ask(ApiKeys.SASL_AUTHENTICATE, {"authBytes": b"x"})
    assert answer["errorCode"] == Errors.ILLEGAL_SASL_STATE
    assert answer["errorMessage"] == "SaslAuthenticate request received after successful authentication"


# --- the file --------------------------------------------------------------------------------------------


def test_the_state_is_kept(tmp_path: Path) -> None:
    node = Node(tmp_path / "data")
    node.create(resourceName='a"\\\n☃')
    alter_scram(node, [], [upsert("alice")])
    alter_quota(node, {"user": None, "client-id": "x"}, producer_byte_rate=5.0)
    assert Node(tmp_path / "data").broker.state["kept"].state == node.broker.state["kept"].state
    found = json.loads((tmp_path / "data" / FILE).read_bytes())
    assert found["acls"][0]["operation"] == "READ"
    assert found["clientQuotas"] == [
        {"entity": {"user": None, "client-id": "x"}, "values": {"producer_byte_rate": 5.0}}
    ]


def test_every_directory_has_the_newest_state(tmp_path: Path) -> None:
    node = Node(tmp_path / "one", tmp_path / "two")
    node.create()
    old = (tmp_path / "one" / FILE).read_bytes()
    node.create(resourceName="second")
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "two" / FILE).read_bytes()
    (tmp_path / "one" / FILE).write_bytes(old)
    assert len(Node(tmp_path / "one", tmp_path / "two").acls()) == 2
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "two" / FILE).read_bytes()
    (tmp_path / "one" / FILE).write_bytes(b"{")
    os.unlink(tmp_path / "two" / FILE)
    with pytest.raises(CorruptCheckpointException, match="found no table of ACLs"):
        Node(tmp_path / "one", tmp_path / "two")


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / FILE

    def mode() -> int:
        return stat.S_IMODE(path.stat().st_mode)

    before = os.umask(0)
    try:
        node = Node(tmp_path / "data")
        node.create()
        assert mode() == 0o600
        path.chmod(0o644)  # as an earlier version left it
        left = tmp_path / "data" / f"{FILE}.tmp"
        left.touch(0o666)
        node.create(resourceName="second")
        assert mode() == 0o600
        path.chmod(0o644)
        Node(tmp_path / "data")
        assert mode() == 0o600
        os.umask(0o377)
        node.create(resourceName="third")
        assert mode() == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"version": 1}', b"\xff", b'{"version": 0, "revision": 1, "acls": [{}]}', b"[" * 9999]
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(CorruptCheckpointException, match=FILE):
        StateFile([str(tmp_path)], OS_FILES)


def test_a_disk_that_fails_changes_nothing(node: Node) -> None:
    node.create()
    node.files.fails = True
    with pytest.raises(KafkaStorageException):
        node.create(resourceName="second")
    assert node.acls() == ["orders User:alice"]
    assert len(node.broker.authorizer.acls) == 1  # type: ignore[attr-defined]


def test_no_more_is_kept_than_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_state, "BYTES_MAX", 2000)
    state = StateFile([str(tmp_path)], OS_FILES)
    kept = ServerState(quotas={QuotaEntity(user="alice"): {"producer_byte_rate": 1.0}})
    state.change(lambda _: kept)
    large = {QuotaEntity(user=f"user {number}"): {"producer_byte_rate": 1.0} for number in range(100)}
    with pytest.raises(PolicyViolationException, match="can be kept"):
        state.change(lambda _: ServerState(quotas=large))
    assert state.state == kept
    assert StateFile([str(tmp_path)], OS_FILES).state == kept


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask(ApiKeys.DELETE_ACLS, {"filters": [ANY_FILTER]})
    assert not (tmp_path / FILE).exists()


def test_a_brokers_state_is_taken_over_once(tmp_path: Path) -> None:
    acl = StandardAcl(
        *(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*"),
        *(AclOperation.READ, AclPermissionType.ALLOW),
    )
    credential = credential_of(ScramMechanism.SCRAM_SHA_256, "x")
    theirs = ServerState(
        frozenset({acl}), {("a", ScramMechanism.SCRAM_SHA_256): credential}, {QuotaEntity(user=""): {"x": 1.0}}
    )
    assert StateFile([str(tmp_path)], OS_FILES, imported=lambda: theirs).state == theirs
    assert StateFile([str(tmp_path)], OS_FILES, imported=ServerState).state == theirs
