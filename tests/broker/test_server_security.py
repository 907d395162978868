"""Security on a real broker and on our server: the same frames, the same answers.

Frames are sent as they are, so that wrong ones are sent too.  An answer is compared without its correlation id; a
connection that ends without one is `CLOSED`.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.requests import ApiKeys, api
from tests.broker import kraft
from tests.conftest import leave_out
from tests.wire.client import Client, decoded, frame

pytestmark = pytest.mark.broker
CLOSED = "closed"
MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
MODULE = "org.apache.kafka.common.security"
BOTH = {
    "sasl.enabled.mechanisms": MECHANISMS,
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{MODULE}.plain.PlainLoginModule required user_alice="secret" user_bob="other";'
    ),
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
        f'{MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="kafka" '
        'unsecuredValidatorRequiredScope="read";'
    ),
    "listener.name.reauth.plain.sasl.jaas.config": (
        f'{MODULE}.plain.PlainLoginModule required user_alice="secret" user_bob="other";'
    ),
    "listener.name.reauth.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.reauth.connections.max.reauth.ms": "60000",
    "listener.name.sasl_plaintext.sasl.server.max.receive.size": "10000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,REAUTH:SASL_PLAINTEXT"
    ),
}
SCRAM_LOGIN = f"{MODULE}.scram.ScramLoginModule required;"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "REAUTH")
Ports = dict[str, int]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    controller, *ports = kraft.free_ports(1 + len(LISTENERS))
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)]
    scram = {
        f"listener.name.{listener}.scram-sha-{size}.sasl.jaas.config": SCRAM_LOGIN
        for listener in ("sasl_plaintext", "reauth")
        for size in (256, 512)
    }
    settings = {
        **BOTH,
        **scram,
        "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
        "advertised.listeners": ",".join(listeners),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    try:
        with kraft.broker(tmp_path_factory.mktemp("broker"), settings=settings) as node:
            node.start()
            yield dict(zip(LISTENERS, ports, strict=True))
    except kraft.kafka_jars.KafkaMissingError as error:
        leave_out(error)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    unsecured = "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    settings = {
        **BOTH,
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
            f"{unsecured}.OAuthBearerUnsecuredValidatorCallbackHandler"
        ),
    }
    with kafkalog.open(tmp_path_factory.mktemp("data")) as store, store.serve(**settings) as server:
        yield dict(zip(LISTENERS, (port for _, port in server.addresses), strict=True))


# --- frames ----------------------------------------------------------------------------------------------


class Talk:
    """A connection, and what was answered so far."""

    def __init__(self, port: int, client_id: str = "c") -> None:
        self._client_id = client_id
        self._client = Client(("127.0.0.1", port), timeout_s=20)
        self.answers: list[Any] = []

    def exchange(self, data: bytes) -> bytes | None:
        """Sends a frame, with its size, and returns the answer's; None if the connection ends."""
        try:
            self._client.sock.sendall(data)
            return self._client.next_frame()
        except ConnectionError:
            return None

    def raw(self, data: bytes) -> bytes | None:
        """Sends a frame whose answer is no response."""
        answer = self.exchange(struct.pack(">i", len(data)) + data)
        self.answers.append(CLOSED if answer is None else answer)
        return answer

    def ask(self, key: int, version: int, body: dict[str, Any] | None = None) -> Any:
        """Sends a request."""
        known = api(key)
        encodes = min(version, known.highest)
        answer = self.exchange(
            frame(key, version, body=known.request.encode(body or {}, encodes), client_id=self._client_id)
        )
        if answer is None:
            self.answers.append(CLOSED)
            return CLOSED
        reads = 0 if version > known.highest else version
        values = plain(decoded(key, reads, answer)[1])
        values.pop("apiKeys", None)
        for name in [each for each in values if "eature" in each]:
            values.pop(name)
        values.pop("mechanisms", None) if not values.get("mechanisms") else values["mechanisms"].sort()
        self.answers.append(values)
        return values

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return self.ask(ApiKeys.SASL_HANDSHAKE, version, {"mechanism": mechanism})

    def token(self, token: bytes, version: int = 2) -> Any:
        return self.ask(ApiKeys.SASL_AUTHENTICATE, version, {"authBytes": token})

    def is_open(self) -> None:
        """Notes whether a request is answered."""
        self.ask(ApiKeys.API_VERSIONS, 2)

    def close(self) -> None:
        self._client.close()


def plain(value: Any) -> Any:
    """A decoded message without views, and with its lists sorted."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in ("throttleTimeMs",)}
    if isinstance(value, list):
        return sorted(map(plain, value), key=repr)
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def jwt(**claims: Any) -> bytes:
    def part(each: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")

    now = time.time()
    made = {"sub": "alice", "iat": now - 5, "exp": now + 900, "scope": ["read"], **claims}
    return f"n,,\x01auth=Bearer {part({'alg': 'none'})}.{part(made)}.\x01\x01".encode()


GOOD, BAD = b"\0alice\0secret", b"\0alice\0wrong"
Story = Callable[[Talk], object]
SASL: dict[str, Story] = {
    "good": lambda talk: (
        *(talk.ask(ApiKeys.API_VERSIONS, 3, VERSIONS), talk.handshake(), talk.token(GOOD), talk.is_open()),
    ),
    "version 0 of everything": lambda talk: (talk.handshake(), talk.token(GOOD, 0), talk.is_open()),
    "wrong password": lambda talk: (talk.handshake(), talk.token(BAD), talk.is_open()),
    "unknown user": lambda talk: (talk.handshake(), talk.token(b"\0carol\0x")),
    "no user": lambda talk: (talk.handshake(), talk.token(b"\0\0x")),
    "no password": lambda talk: (talk.handshake(), talk.token(b"\0alice\0")),
    "two tokens": lambda talk: (talk.handshake(), talk.token(b"alice\0secret")),
    "many tokens": lambda talk: (talk.handshake(), talk.token(b"\0" * 7)),
    "other identity": lambda talk: (talk.handshake(), talk.token(b"bob\0alice\0secret")),
    "no utf-8": lambda talk: (talk.handshake(), talk.token(b"\xff\0\xfe\0\xfd")),
    "unknown mechanism": lambda talk: (talk.handshake("GSSAPI"), talk.is_open()),
    "unknown mechanism, version 0": lambda talk: (talk.handshake("x", 0), talk.is_open()),
    "bare token": lambda talk: (talk.handshake(version=0), talk.raw(GOOD), talk.is_open()),
    "bare wrong token": lambda talk: (talk.handshake(version=0), talk.raw(BAD)),
    "bare token of OAUTHBEARER": lambda talk: (talk.handshake("OAUTHBEARER", 0), talk.raw(b"x")),
    "token first": lambda talk: talk.token(GOOD),
    "metadata first": lambda talk: talk.ask(ApiKeys.METADATA, 9, {"topics": None}),
    "metadata instead of a token": lambda talk: (talk.handshake(), talk.ask(ApiKeys.METADATA, 9, {"topics": None})),
    "versions instead of a token": lambda talk: (talk.handshake(), talk.ask(ApiKeys.API_VERSIONS, 2)),
    "handshake instead of a token": lambda talk: (talk.handshake(), talk.handshake()),
    "versions twice": lambda talk: (talk.ask(ApiKeys.API_VERSIONS, 2), talk.ask(ApiKeys.API_VERSIONS, 2)),
    "versions too new": lambda talk: (
        *(talk.ask(ApiKeys.API_VERSIONS, 99), talk.ask(ApiKeys.API_VERSIONS, 3, VERSIONS), talk.handshake()),
        talk.token(GOOD),
    ),
    "versions without a name": lambda talk: (
        talk.ask(ApiKeys.API_VERSIONS, 3, {"clientSoftwareName": "", "clientSoftwareVersion": ""}),
        talk.handshake(),
    ),
    "handshake too new": lambda talk: talk.handshake(version=9),
    "token too new": lambda talk: (talk.handshake(), talk.token(GOOD, 9)),
    "handshake again": lambda talk: (talk.handshake(), talk.token(GOOD), talk.handshake(), talk.is_open()),
    "token again": lambda talk: (talk.handshake(), talk.token(GOOD), talk.token(GOOD), talk.is_open()),
    "garbage": lambda talk: talk.raw(b"\xff" * 50),
    "http": lambda talk: talk.raw(b"GET / HTTP/1.1\r\n\r\n"),
    "nothing": lambda talk: talk.raw(b""),
    "garbage instead of a token": lambda talk: (talk.handshake(), talk.raw(b"\xff" * 50)),
    "too large": lambda talk: (talk.handshake(), talk.raw(bytes(10_001))),
    "scram garbage": lambda talk: (talk.handshake("SCRAM-SHA-256"), talk.token(b"garbage")),
    "scram of nobody": lambda talk: (talk.handshake("SCRAM-SHA-256"), talk.token(b"n,,n=nobody,r=abc")),
    "scram token": lambda talk: (talk.handshake("SCRAM-SHA-512"), talk.token(b"n,,n=x,r=abc,tokenauth=true")),
    "oauth": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(jwt())["errorCode"], talk.answers.pop()),
    "oauth garbage": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(b"garbage")),
    "oauth basic": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(b"n,,\x01auth=Basic x\x01\x01")),
    "oauth expired": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(jwt(exp=9)), talk.token(b"\x01")),
    "oauth scope": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(jwt(scope=[])), talk.token(b"\x01")),
    "oauth without end": lambda talk: (talk.handshake("OAUTHBEARER"), talk.token(jwt(exp=None)), talk.token(b"x")),
}  # fmt: skip
VERSIONS = {"clientSoftwareName": "test", "clientSoftwareVersion": "1"}
REAUTH: dict[str, Story] = {
    "again": lambda talk: (talk.handshake(), talk.token(GOOD), talk.handshake(), talk.token(GOOD), talk.is_open()),
    "version 0": lambda talk: (talk.handshake(), talk.token(GOOD, 0), talk.handshake(version=0), talk.raw(GOOD)),
    "twice in a second": lambda talk: (
        *(talk.handshake(), talk.token(GOOD), talk.handshake(), talk.token(GOOD), talk.handshake(), talk.is_open()),
    ),
    "as another": lambda talk: (talk.handshake(), talk.token(GOOD), talk.handshake(), talk.token(b"\0bob\0other")),
    "wrong password": lambda talk: (talk.handshake(), talk.token(GOOD), talk.handshake(), talk.token(BAD)),
    "another mechanism": lambda talk: (
        *(talk.handshake(), talk.token(GOOD), talk.handshake("SCRAM-SHA-256"), talk.token(b"n,,n=alice,r=abc")),
    ),
    "unknown mechanism": lambda talk: (talk.handshake(), talk.token(GOOD), talk.handshake("x"), talk.is_open()),
    "versions between": lambda talk: (
        *(talk.handshake(), talk.token(GOOD), talk.handshake(), talk.ask(ApiKeys.API_VERSIONS, 2)),
    ),
}  # fmt: skip


def tell(port: int, story: Story) -> list[Any]:
    talk = Talk(port)
    try:
        story(talk)
    finally:
        talk.close()
    return talk.answers


@pytest.mark.parametrize("name", SASL)
def test_sasl(theirs: Ports, ours: Ports, name: str) -> None:
    wanted = tell(theirs["SASL_PLAINTEXT"], SASL[name])
    assert tell(ours["SASL_PLAINTEXT"], SASL[name]) == wanted


@pytest.mark.parametrize("name", REAUTH)
def test_authenticating_anew(theirs: Ports, ours: Ports, name: str) -> None:
    wanted = tell(theirs["REAUTH"], REAUTH[name])
    assert tell(ours["REAUTH"], REAUTH[name]) == wanted


# --- ACLs, credentials and quotas ------------------------------------------------------------------------


def acl(**changed: Any) -> dict[str, Any]:
    return {
        "resourceType": 2, "resourceName": "orders", "resourcePatternType": 3, "principal": "User:alice",
        "host": "*", "operation": 3, "permissionType": 3, **changed,
    }  # fmt: skip


def any_of(**changed: Any) -> dict[str, Any]:
    return {
        "resourceTypeFilter": 1, "resourceNameFilter": None, "patternTypeFilter": 1, "principalFilter": None,
        "hostFilter": None, "operation": 1, "permissionType": 1, **changed,
    }  # fmt: skip


def upsert(name: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"s", "saltedPassword": b"p" * 32}


def drop(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def quota(entity: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entityType": kind, "entityName": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
    }


def match(*components: tuple[str, int, str | None], strict: bool = False) -> dict[str, Any]:
    rows = [{"entityType": kind, "matchType": match_type, "match": name} for kind, match_type, name in components]
    return {"components": rows, "strict": strict}


SINGLE = [
    acl(), acl(), acl(resourceName="ord", resourcePatternType=4), acl(resourceName="*"),
    acl(resourceType=4, resourceName="kafka-cluster", operation=7), acl(resourceType=4),
    acl(resourceName=""), acl(resourceType=1), acl(resourceType=99), acl(resourcePatternType=2),
    acl(resourcePatternType=99), acl(operation=1), acl(operation=99), acl(permissionType=1),
    acl(permissionType=9), acl(principal="alice"), acl(principal=""), acl(host=""), acl(host="10.0.0.0/8"),
    acl(host="10.0.0.0/40"), acl(host="fe80::/129"), acl(host="any text"),
    acl(permissionType=2, operation=2), acl(principal=":"), acl(principal="User:"), acl(resourceType=7, operation=13),
]  # fmt: skip
CREATE, DESCRIBE, DELETE = ApiKeys.CREATE_ACLS, ApiKeys.DESCRIBE_ACLS, ApiKeys.DELETE_ACLS
SCRAM, SCRAMS = ApiKeys.ALTER_USER_SCRAM_CREDENTIALS, ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS
QUOTA, QUOTAS = ApiKeys.ALTER_CLIENT_QUOTAS, ApiKeys.DESCRIBE_CLIENT_QUOTAS
ADMIN: list[tuple[int, dict[str, Any]]] = [
    (DESCRIBE, any_of()),
    *((CREATE, {"creations": [each]}) for each in SINGLE),
    (CREATE, {"creations": [acl(), acl(resourceName="new"), acl(operation=1), acl(resourceName="")]}),
    (CREATE, {"creations": []}),
    (CREATE, {"creations": [acl(operation=0)]}),
    (DESCRIBE, any_of()),
    (DESCRIBE, any_of(patternTypeFilter=2, resourceNameFilter="orders")),
    (DESCRIBE, any_of(patternTypeFilter=4)),
    (DESCRIBE, any_of(resourceTypeFilter=4, operation=7)),
    (DESCRIBE, any_of(hostFilter="10.0.0.0/8")),
    (DESCRIBE, any_of(permissionType=2)),
    (DESCRIBE, any_of(operation=99)),
    (DESCRIBE, any_of(resourceTypeFilter=0)),
    (DELETE, {"filters": [any_of(resourceNameFilter="ord"), any_of(operation=99), any_of(patternTypeFilter=99)]}),
    (DELETE, {"filters": [any_of(permissionType=2), any_of(hostFilter="any text"), any_of(hostFilter="any text")]}),
    (DELETE, {"filters": [any_of(), any_of(permissionType=0)]}),
    (DELETE, {"filters": []}),
    (DESCRIBE, any_of()),
    (SCRAM, {"deletions": [], "upsertions": [upsert("alice"), upsert("bob", 2, 8192), upsert("carol", 2, 16384)]}),
    (SCRAM, {"deletions": [], "upsertions": [upsert("alice", 2)]}),
    (
        SCRAM,
        {
            "deletions": [drop("nobody"), drop("bob"), drop("carol", 2), drop(""), drop("x", 9)],
            "upsertions": [upsert("few", 1, 4095), upsert("many", 1, 16385), upsert(""), upsert("what", 0)],
        },
    ),
    (SCRAM, {"deletions": [drop("alice")] * 2, "upsertions": [upsert("alice"), upsert("dan"), upsert("dan")]}),
    (SCRAM, {"deletions": [drop("alice")], "upsertions": [upsert("alice", 2)]}),
    (SCRAMS, {"users": None}),
    (SCRAMS, {"users": []}),
    (SCRAMS, {"users": [{"name": name} for name in ("alice", "bob", "nobody", "bob", "carol")]}),
    (QUOTA, {"entries": [quota({"user": "alice"}, producer_byte_rate=1e9, request_percentage=1e6)]}),
    (QUOTA, {"entries": [quota({"user": None}, consumer_byte_rate=1e9)]}),
    (QUOTA, {"entries": [quota({"client-id": "app"}, producer_byte_rate=1e9)]}),
    (QUOTA, {"entries": [quota({"user": "alice", "client-id": None}, controller_mutation_rate=1e6)]}),
    (QUOTA, {"entries": [quota({"ip": "127.0.0.2"}, connection_creation_rate=100.0)]}),
    (QUOTA, {"entries": [quota({"user": "checked"}, producer_byte_rate=1.0)], "validateOnly": True}),
    (
        QUOTA,
        {
            "entries": [
                quota({}, producer_byte_rate=1.0), quota({"user": ""}, producer_byte_rate=1.0), quota({"x": "y"}),
                quota({"ip": "127.0.0.1", "user": "a"}), quota({"ip": "no.such.host.invalid"}),
                quota({"user": "a"}, nonsense=1.0), quota({"user": "b"}, producer_byte_rate=0.0),
                quota({"user": "c"}, producer_byte_rate=1.5), quota({"user": "d"}, producer_byte_rate=float("inf")),
                quota({"user": "e"}, producer_byte_rate=1e19), quota({"ip": None}, connection_creation_rate=3e9),
                quota({"user": "f"}, nonsense=None), quota({"user": "g"}, request_percentage=0.25),
            ]
        },
    ),
    (QUOTA, {"entries": [quota({"user": "twice"}, producer_byte_rate=1e9)] * 2}),
    (QUOTAS, match()),
    (QUOTAS, match(strict=True)),
    (QUOTAS, match(("user", 0, "alice"))),
    (QUOTAS, match(("user", 0, "alice"), strict=True)),
    (QUOTAS, match(("user", 1, None))),
    (QUOTAS, match(("user", 2, None), ("client-id", 1, None))),
    (QUOTAS, match(("ip", 2, None))),
    (QUOTAS, match(("", 0, "x"))),
    (QUOTAS, match(("x", 0, "x"))),
    (QUOTAS, match(("user", 0, None))),
    (QUOTAS, match(("user", 1, "x"))),
    (QUOTAS, match(("user", 2, "x"))),
    (QUOTAS, match(("user", 7, None))),
    (QUOTAS, match(("user", 2, None), ("user", 2, None))),
    (QUOTAS, match(("user", 2, None), ("ip", 2, None))),
    (QUOTA, {"entries": [quota({"user": "alice"}, producer_byte_rate=None, request_percentage=None)]}),
    (QUOTAS, match()),
]  # fmt: skip


def admin_answers(port: int) -> list[Any]:
    found = []
    for key, body in ADMIN:
        talk = Talk(port)
        try:
            found.append(talk.ask(key, api(key).highest, body))
        finally:
            talk.close()
        time.sleep(0.2)  # a real broker applies what its controller has written a little later
    return found


def test_acls_credentials_and_quotas(theirs: Ports, ours: Ports) -> None:
    wanted = admin_answers(theirs["PLAINTEXT"])
    for (key, body), their_answer, our_answer in zip(ADMIN, wanted, admin_answers(ours["PLAINTEXT"]), strict=True):
        assert our_answer == their_answer, (api(key).name, body)


def test_what_a_client_without_acls_is_told(theirs: Ports, ours: Ports) -> None:
    def story(talk: Talk) -> None:
        talk.handshake()
        talk.token(GOOD)
        for key, body in (
            (CREATE, {"creations": [acl(), acl()]}),
            (DESCRIBE, any_of()),
            (DELETE, {"filters": [any_of()]}),
            (SCRAM, {"deletions": [drop("x")], "upsertions": [upsert("y")]}),
            (SCRAMS, {"users": [{"name": "x"}]}),
            (QUOTA, {"entries": [quota({"user": "alice"}, producer_byte_rate=1.0)]}),
            (QUOTAS, match()),
        ):
            talk.ask(key, api(key).highest, body)

    def told(port: int) -> str:
        # The text of an exception names the whole request.
        return re.sub(r"Request .*? needs", "Request needs", json.dumps(tell(port, story), default=str))

    assert told(ours["SASL_PLAINTEXT"]) == told(theirs["SASL_PLAINTEXT"])


@pytest.mark.parametrize("version", [5, 7])
def test_topics_that_are_created_too_fast(theirs: Ports, ours: Ports, version: int) -> None:
    """Newer clients are refused, older ones are told to wait."""

    client = f"creator {version}"

    def ask(ports: Ports, key: int, asked: int, body: dict[str, Any]) -> Any:
        talk = Talk(ports["PLAINTEXT"], client)  # each time a new connection: one that must wait is not read
        try:
            return talk.ask(key, asked, body)
        finally:
            talk.close()

    def told(ports: Ports) -> list[Any]:
        limit = quota({"client-id": client}, controller_mutation_rate=0.001)
        ask(ports, QUOTA, 1, {"entries": [limit]})
        time.sleep(1)  # a real broker applies it a little later
        codes = []
        for number in range(3):
            topic = {"name": f"t-{version}-{number}", "numPartitions": 2, "replicationFactor": 1}
            body = {"topics": [{**topic, "assignments": [], "configs": []}], "timeoutMs": 10_000}
            answer = ask(ports, ApiKeys.CREATE_TOPICS, version, {**body, "validateOnly": number == 0})
            codes += [each["errorCode"] for each in answer["topics"]]
        return codes

    wanted = told(theirs)
    assert told(ours) == wanted


def test_secrets_of_the_settings_are_not_described(theirs: Ports, ours: Ports) -> None:
    body = {"resources": [{"resourceType": 4, "resourceName": "1", "configurationKeys": None}], "includeSynonyms": True}

    def secrets(ports: Ports) -> dict[str, tuple[bool, str | None]]:
        talk = Talk(ports["PLAINTEXT"])
        try:
            answer = talk.ask(ApiKeys.DESCRIBE_CONFIGS, 4, body)
        finally:
            talk.close()
        assert "user_alice" not in json.dumps(answer["results"][0]["configs"])
        found = {each["name"]: each for each in answer["results"][0]["configs"]}
        return {
            name: (found[name]["isSensitive"], found[name]["value"])
            for name in BOTH
            if "reauth" not in name and name in found and "security.protocol.map" not in name
        }

    wanted = secrets(theirs)
    assert secrets(ours) == wanted
    assert any(is_sensitive for is_sensitive, _ in wanted.values())


def test_a_brokers_users_acls_and_quotas_are_taken_over(tmp_path: Path) -> None:
    """A store that opens a broker's directory knows what its metadata log had."""
    asked = [(DESCRIBE, any_of()), (SCRAMS, {"users": None}), (QUOTAS, match())]
    changes = [
        (CREATE, {"creations": [acl(), acl(resourceName="p", resourcePatternType=4), acl(resourceName="gone")]}),
        (DELETE, {"filters": [any_of(resourceNameFilter="gone")]}),
        (SCRAM, {"deletions": [], "upsertions": [upsert("alice"), upsert("bob", 2, 8192)]}),
        (SCRAM, {"deletions": [drop("bob", 2)], "upsertions": [upsert("carol", 2)]}),
        (QUOTA, {"entries": [quota({"user": None, "client-id": "app"}, producer_byte_rate=5.0)]}),
        (QUOTA, {"entries": [quota({"ip": "127.0.0.2"}, connection_creation_rate=5.0)]}),
        (QUOTA, {"entries": [quota({"user": "x"}, request_percentage=5.0, producer_byte_rate=1.0)]}),
        (QUOTA, {"entries": [quota({"user": "x"}, request_percentage=None)]}),
    ]
    authorizer = {key: BOTH[key] for key in ("authorizer.class.name", "super.users")}

    def answers(port: int, questions: list[tuple[int, dict[str, Any]]]) -> list[Any]:
        talk = Talk(port)
        for key, body in questions:
            talk.ask(key, api(key).highest, body)
        talk.close()
        return talk.answers

    try:
        with kraft.broker(tmp_path / "broker", shares_metadata=True, settings=authorizer) as node:
            node.start()
            answers(node.port, changes)
            time.sleep(1)
            wanted = answers(node.port, asked)
            node.stop()
    except kraft.kafka_jars.KafkaMissingError as error:
        leave_out(error)
    assert [len(each.get("resources", each.get("results", each.get("entries")))) for each in wanted] == [2, 2, 3]
    for _ in range(2):  # the second time from our own file
        with kafkalog.open(node.log_dir, take_over=True) as store, store.serve("127.0.0.1:0", **authorizer) as server:
            assert answers(server.port, asked) == wanted
