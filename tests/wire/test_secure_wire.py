"""The same sequences over TLS and SASL give the same answers on Apache Kafka 4.4.0 and on kafkalog."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kafkalog
from kafkalog.engine.format.messages import Values
from tests.broker import kraft
from tests.broker.servers import CLUSTER_ID
from tests.certificates import Authority
from tests.conftest import need_broker
from tests.wire.normal import Normal
from tests.wire.stories_groups import ready_groups
from tests.wire.stories_security import DIGESTS, ITERATIONS, SALT, SEEN, STORIES, USERS, SecureTalk, Told, salted
from tests.wire.stories_topics import create
from tests.wire.talk import Talk
from tests.wire.test_wire import compared

pytestmark = pytest.mark.broker
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
MODULE = "org.apache.kafka.common.security"
PATIENCE_SECONDS = 5.0
Addresses = dict[str, str]


class Secured(NamedTuple):
    """The addresses of each listener of both servers, and where the clients' certificates are."""

    kafka: Addresses
    ours: Addresses
    folder: Path

    def context(self, certificate: str) -> ssl.SSLContext | None:
        if certificate == "none":
            return None
        found = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if certificate:
            found.load_cert_chain(self.folder / f"{certificate}.pem", self.folder / f"{certificate}.key")
        return found


def settings_of(folder: Path) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    found = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "keystore.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/L",
        "sasl.enabled.mechanisms": ",".join(["PLAIN", *DIGESTS]),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "connections.max.reauth.ms": "60000",
        "connection.failed.authentication.delay.ms": "5",
        "offsets.topic.num.partitions": "1",
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in ({"CONTROLLER": "PLAINTEXT"} | LISTENERS).items()
        ),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}."
        found[f"{prefix}plain.sasl.jaas.config"] = f"{MODULE}.plain.PlainLoginModule required {users};"
        for mechanism in DIGESTS:
            found[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = f"{MODULE}.scram.ScramLoginModule required;"
    return found


def certificates(folder: Path) -> None:
    authority, other = Authority(), Authority()
    (folder / "ca.pem").write_text(authority.pem)
    server = authority.sign(CN="localhost")
    (folder / "keystore.pem").write_text(server.key_pem() + server.pem)
    authority.sign(CN="alice").write(folder, "alice")
    other.sign(CN="alice").write(folder, "stranger")


def prepare(bootstrap: str) -> None:
    """The topics, what alice may do, and her credentials."""
    with Talk(bootstrap) as talk:
        ready_groups(talk)
        create(talk, SEEN, 1)
        create(talk, "hidden", 1)
        allowed = {"resourceType": 2, "resourceName": SEEN, "resourcePatternType": 3, "principal": "User:alice",
                   "host": "*", "permissionType": 3}  # fmt: skip
        talk.ask("CreateAcls", 3, {"creations": [allowed | {"operation": each} for each in (3, 4, 8)]})
        for number, mechanism in enumerate(DIGESTS, 1):  # a request must not name a user twice
            row = {"name": "alice", "mechanism": number, "iterations": ITERATIONS, "salt": SALT,
                   "saltedPassword": salted(mechanism, USERS["alice"])}  # fmt: skip
            talk.ask("AlterUserScramCredentials", 0, {"deletions": [], "upsertions": [row]})
        wanted = {"users": [{"name": "alice"}]}
        talk.wait(
            "DescribeUserScramCredentials", wanted, lambda found: len(found["results"][0]["credentialInfos"]) == 2
        )
        acls = {"resourceTypeFilter": 2, "resourceNameFilter": SEEN, "patternTypeFilter": 3, "principalFilter": None,
                "hostFilter": None, "operation": 1, "permissionType": 1}  # fmt: skip
        found = talk.wait("DescribeAcls", acls, lambda answer: bool(answer["resources"]))
        assert found["resources"], found


def _has_both(answer: Values) -> bool:
    return len(answer["results"][0]["credentialInfos"]) == len(DIGESTS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    need_broker()
    place = tmp_path_factory.mktemp("secure")
    certificates(place)
    with contextlib.ExitStack() as stack:
        controller, *ports = kraft.free_ports(1 + len(LISTENERS))
        theirs = {name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)}
        listeners = ",".join(f"{name}://{address}" for name, address in theirs.items())
        settings = settings_of(place)
        of_kafka = settings | {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
        node = stack.enter_context(kraft.broker(place / "kafka", cluster_id=CLUSTER_ID, settings=of_kafka))
        node.start()
        store = stack.enter_context(kafkalog.open(place / "ours"))
        own: dict[str, Any] = settings | {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
            "cluster.id": CLUSTER_ID,
        }
        server = stack.enter_context(store.serve(**own))
        ours = {name: f"127.0.0.1:{port}" for name, (_, port) in zip(LISTENERS, server.addresses, strict=True)}
        for addresses in (theirs, ours):
            prepare(addresses["PLAINTEXT"])
        yield Secured(theirs, ours, place)
    shutil.rmtree(place, ignore_errors=True)


def told(bootstrap: str, context: ssl.SSLContext | None, told_over: Told) -> list[tuple[str, Any]]:
    """Tells a story to a server, and returns the answers, normalized."""
    normal = Normal()
    talk = SecureTalk(bootstrap, context)
    with talk:
        talk.patience_seconds = PATIENCE_SECONDS
        told_over.story(talk)
        return [*map(normal.heard, talk.heard)]


@pytest.mark.parametrize("name", STORIES)
def test_the_same_answers(secured: Secured, name: str) -> None:
    story = STORIES[name]
    theirs, ours = (
        told(addresses[story.listener], secured.context(story.certificate), story)
        for addresses in (secured.kafka, secured.ours)
    )
    assert len(theirs) == len(ours) > 0
    found = compared(theirs, ours)
    assert not found, "\n".join(found)
