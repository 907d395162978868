"""Real clients of a server with security: librdkafka logs in each way, and gets what its ACLs and quotas allow."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.server.security.authenticator import SaslServerAuthenticator
from tests.broker.test_server_security import CLOSED, Talk, quota
from tests.certificates import Authority
from tests.conformance import kafka_jars
from tests.conftest import leave_out

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from joserfc import jws
from joserfc.jwk import KeySet, RSAKey

pytestmark = pytest.mark.broker
SECONDS = 20
LISTENERS = ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
KEY = RSAKey.generate_key(2048, {"kid": "one"})


class Site:
    """A server with all listeners, and the settings of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        (folder / "ca.pem").write_text(self.authority.pem)
        server = self.authority.sign(CN="localhost")
        (folder / "server.pem").write_text(server.key_pem() + server.pem)
        (folder / "jwks.json").write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
        self.addresses: dict[str, str] = {}

    def settings(self) -> dict[str, Any]:
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "users": {"alice": "secret", "admin": "boss"},
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L, DEFAULT",
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": (self.folder / "jwks.json").as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "https://issuer",
            "connection.failed.authentication.delay.ms": "10",
        }

    def client(
        self, listener: str, mechanism: str | None = None, user: str = "alice:secret", **more: Any
    ) -> dict[str, Any]:
        name, _, password = user.partition(":")
        found: dict[str, Any] = {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": listener,
            "ssl.ca.location": str(self.folder / "ca.pem"),
            "log_level": 0,
            "socket.timeout.ms": SECONDS * 1000,
            "error_cb": lambda error: None,
        }
        if mechanism is not None:
            found |= {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": password}
        return {**found, **more}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    with kafkalog.open(made.folder / "data") as store, store.serve(allow_anonymous=True, **made.settings()) as server:
        store.create_topic("orders", partitions=1)
        store.create_topic("secrets", partitions=1)
        made.addresses = {
            name: f"127.0.0.1:{port}" for name, (_, port) in zip(LISTENERS, server.addresses, strict=True)
        }
        yield made


def topics_of(settings: dict[str, Any]) -> set[str]:
    return set(AdminClient(settings).list_topics(timeout=SECONDS).topics)


def refusal(settings: dict[str, Any]) -> str:
    """Returns why a client cannot connect, as its error callback is told."""
    told: list[str] = []
    client = Producer({**settings, "error_cb": lambda error: told.append(f"{error.name()} {error.str()}")})
    until = time.monotonic() + SECONDS
    while not told and time.monotonic() < until:
        client.poll(0.1)
    return told[0] if told else ""


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(("listener", "mechanism"), list(itertools.product(("SASL_SSL", "SASL_PLAINTEXT"), MECHANISMS)))
def test_passwords(site: Site, listener: str, mechanism: str) -> None:
    assert topics_of(site.client(listener, mechanism, "admin:boss")) >= {"orders", "secrets"}
    assert topics_of(site.client(listener, mechanism)) == set()  # alice has no ACLs yet
    assert "_AUTHENTICATION" in refusal(site.client(listener, mechanism, "alice:wrong"))
    assert "_AUTHENTICATION" in refusal(site.client(listener, mechanism, "nobody:secret"))


def test_certificates(site: Site) -> None:
    certificate, key = site.authority.sign(CN="Orders", O="Shop").write(site.folder, "orders")
    mine = {"ssl.certificate.location": certificate, "ssl.key.location": key}
    assert topics_of(site.client("SSL", **mine)) == set()
    assert "SSL" in refusal(site.client("SSL"))
    certificate, key = Authority().sign(CN="Orders").write(site.folder, "stranger")
    assert "SSL" in refusal(site.client("SSL", **{"ssl.certificate.location": certificate, "ssl.key.location": key}))


def token(**changed: Any) -> str:
    now = int(time.time())
    claims = {"sub": "admin", "aud": "kafka", "iss": "https://issuer", "iat": now, "exp": now + 300, **changed}
    return jws.serialize_compact({"alg": "RS256", "kid": "one"}, json.dumps(claims).encode(), KEY, algorithms=["RS256"])


def test_tokens(site: Site) -> None:
    def client(**changed: Any) -> dict[str, Any]:
        made = token(**changed)
        return site.client(
            "SASL_SSL", None, **{"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda config: (made, time.time() + 300)}
        )

    def topics(settings: dict[str, Any]) -> set[str]:
        admin = AdminClient(settings)
        admin.poll(0.5)  # the client asks for a token in a callback
        return set(admin.list_topics(timeout=SECONDS).topics)

    assert topics(client()) >= {"orders", "secrets"}
    assert topics(client(sub="alice")) == set()
    assert "_AUTHENTICATION" in refusal(client(aud="else"))


def allow(site: Site, principal: str, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    admin = AdminClient(site.client("SASL_SSL", "PLAIN", "admin:boss"))
    rows = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, principal, "*", each, AclPermissionType.ALLOW)
        for each in operations
    ]
    for future in admin.create_acls(rows).values():
        future.result()


def produce(settings: dict[str, Any], topic: str, value: bytes) -> KafkaError | None:
    told: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": SECONDS * 1000})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, message: told.append(error))
    producer.flush(SECONDS)
    return told[0]


def consume(settings: dict[str, Any], topic: str) -> bytes | str:
    """Returns the first record of a topic's partition 0, or the error of reading it."""
    consumer = Consumer({**settings, "group.id": "mine", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message.value() or b""
            if error.name() != "GROUP_AUTHORIZATION_FAILED":  # it also looks for the coordinator of its group
                return error.name()
        return "nothing"
    finally:
        consumer.close()


def test_acls(site: Site) -> None:
    alice = site.client("SASL_SSL", "SCRAM-SHA-256")
    error = produce(alice, "orders", b"x")
    assert error is not None
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    allow(site, "User:alice", ResourceType.TOPIC, "orders", AclOperation.WRITE)
    assert produce(alice, "orders", b"hello") is None
    assert topics_of(alice) == {"orders"}
    assert consume(alice, "orders") == "TOPIC_AUTHORIZATION_FAILED"
    allow(site, "User:alice", ResourceType.TOPIC, "orders", AclOperation.READ)
    allow(site, "User:alice", ResourceType.GROUP, "mine", AclOperation.READ)
    assert consume(alice, "orders") == b"hello"
    error = produce(alice, "secrets", b"x")
    assert error is not None
    assert error.name() == "TOPIC_AUTHORIZATION_FAILED"
    admin = AdminClient(site.client("PLAINTEXT"))
    found = admin.describe_acls(
        AclBindingFilter(
            *(ResourceType.ANY, None, ResourcePatternType.ANY, "User:alice", None),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
    )
    assert len(found.result()) == 3


def test_a_user_that_a_client_creates(site: Site) -> None:
    admin = AdminClient(site.client("PLAINTEXT"))
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        made = UserScramCredentialUpsertion("carol", ScramCredentialInfo(mechanism, 8192), b"pass")
        for future in admin.alter_user_scram_credentials([made]).values():
            future.result()
    for mechanism in MECHANISMS[1:]:
        assert topics_of(site.client("SASL_SSL", mechanism, "carol:pass")) == set()
    assert "_AUTHENTICATION" in refusal(site.client("SASL_SSL", "PLAIN", "carol:pass"))
    kept = json.loads((site.folder / "data" / ".kafkalog_server").read_bytes())
    assert {row["name"] for row in kept["scramCredentials"]} == {"carol"}


def test_a_client_over_its_quota_is_told_to_wait(site: Site) -> None:
    port = int(site.addresses["PLAINTEXT"].rpartition(":")[2])
    limits = {"producer_byte_rate": 10_000.0, "consumer_byte_rate": 10_000.0}
    talk = Talk(port)
    try:
        answer = talk.ask(ApiKeys.ALTER_CLIENT_QUOTAS, 1, {"entries": [quota({"client-id": "slow"}, **limits)]})
        assert [each["errorCode"] for each in answer["entries"]] == [0]
    finally:
        talk.close()
    told: list[float] = []
    slow = {
        **site.client("PLAINTEXT"),
        "client.id": "slow",
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    assert produce(slow, "orders", bytes(110_000)) is None
    assert produce(site.client("PLAINTEXT"), "orders", bytes(500_000)) is None
    assert told
    assert 0 < told[0] < 10
    told.clear()
    consumer = Consumer({**slow, "group.id": "slow", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        until = time.monotonic() + SECONDS
        while not told and time.monotonic() < until:
            consumer.poll(0.1)
        assert told
    finally:
        consumer.close()


def test_an_address_that_connects_too_often(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store, store.serve("127.0.0.1:0") as server:
        first = Talk(server.port)
        limit = quota({"ip": "127.0.0.1"}, connection_creation_rate=1.0)
        first.ask(ApiKeys.ALTER_CLIENT_QUOTAS, 1, {"entries": [limit]})
        answers = []
        for _ in range(14):
            talk = Talk(server.port)
            answers.append(talk.ask(ApiKeys.API_VERSIONS, 2) != CLOSED)
            talk.close()
        # The ten windows before count as empty, so ten are admitted at once; a refused one waits and is closed.
        assert answers[:10] == [True] * 10
        assert not answers[10]
        first.is_open()
        assert first.answers[-1] != CLOSED
        first.close()


def test_java_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's own console clients over TLS: with SCRAM, authenticating anew each second, and with a certificate."""
    try:
        tools = kafka_jars.tools()
    except kafka_jars.KafkaMissingError as error:
        leave_out(error)
    again: list[bool] = []
    wants = SaslServerAuthenticator.wants

    def counting(self: SaslServerAuthenticator, api_key: int) -> bool:
        if api_key == ApiKeys.SASL_HANDSHAKE:
            again.append(self.is_complete)
        return wants(self, api_key)

    monkeypatch.setattr(SaslServerAuthenticator, "wants", counting)
    authority = Authority()
    server_key, own = authority.sign(CN="localhost"), authority.sign(CN="Orders", O="Shop, Inc")
    (tmp_path / "ca.pem").write_text(authority.pem)
    for name, signed in (("server", server_key), ("client", own)):
        (tmp_path / f"{name}.pem").write_text(signed.key_pem() + signed.pem)
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={tmp_path}/ca.pem\n"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required username=alice password=secret;"
    clients = {
        "SASL_SSL": f"sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login}\n",
        "SSL": f"ssl.keystore.type=PEM\nssl.keystore.location={tmp_path}/client.pem\n",
    }
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "users": "alice:secret",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:alice;User:O=Shop\\, Inc,CN=Orders",
        "connections.max.reauth.ms": "2000",
    }
    with kafkalog.open(tmp_path / "data") as store, store.serve(**settings) as server:
        store.create_topic("orders", partitions=1)
        for (protocol, more), (_, port) in zip(clients.items(), server.addresses, strict=True):
            (tmp_path / protocol).write_text(f"security.protocol={protocol}\n{trust}{more}")
            common = ["--bootstrap-server", f"127.0.0.1:{port}", "--topic", "orders", "--command-config"]
            common += [str(tmp_path / protocol)]
            console = "org.apache.kafka.tools"
            done = subprocess.run(
                tools.command(*common, main=f"{console}.ConsoleProducer"),
                input=f"from {protocol}\n", capture_output=True, text=True, timeout=90,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-2000:]
            wait = ["--from-beginning", "--timeout-ms", "6000"]
            done = subprocess.run(
                tools.command(*common, *wait, main=f"{console}.consumer.ConsoleConsumer"),
                capture_output=True, text=True, timeout=90,
            )  # fmt: skip
            assert f"from {protocol}" in done.stdout.splitlines(), done.stderr[-2000:]
    assert any(again)
