"""Sequences over TLS and over SASL: who may connect, how, and what is answered before and after.

A story is told over one listener.  The server's part of SCRAM has a random nonce, so that it is checked here, and its
outcome is noted instead.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import ssl
import struct
from collections.abc import Callable
from typing import NamedTuple

from kafkalog.engine.format.messages import Values
from tests.wire.client import BY_NAME, Client
from tests.wire.stories_data import batch, fetch_values, to_produce
from tests.wire.talk import CLOSED, Heard, Talk, fitting

USERS = {"alice": "secret", "bob": "other"}
SALT, ITERATIONS = b"a salt of sixteen", 4096
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NONCE = "fyko+d2lbbFgONRv9qkxdawL"
SEEN = "seen"  # the topic that alice may read


class SecureTalk(Talk):
    """A client over TLS, or over plain text without a context."""

    def __init__(self, bootstrap: str, context: ssl.SSLContext | None) -> None:
        super().__init__(bootstrap, client_id="secure")
        self._context = context

    def connected(self) -> Client:
        found = super().connected()
        if self._context is not None:
            found.sock = self._context.wrap_socket(found.sock, server_hostname="localhost")
        return found

    def send(self, data: bytes) -> bytes | str:
        try:
            return super().send(data)
        except ssl.SSLError:  # an alert, or an end without one
            self.hang_up()
            return CLOSED

    def raw(self, data: bytes) -> None:
        """Sends bytes that are no frame of Kafka's."""
        answer = self.send(data)
        self.heard.append(Heard("raw", 0, answer if isinstance(answer, str) else repr(answer)))

    def bare(self, token: bytes) -> None:
        """Sends a token without a header, as SaslHandshake 0 wants."""
        self.raw(struct.pack(">i", len(token)) + token)

    def token(self, token: bytes, version: int = 2) -> bytes:
        """Authenticates with a token; the server's."""
        return bytes(self.ask("SaslAuthenticate", version, {"authBytes": token}).get("authBytes") or b"")

    def shake(self, mechanism: str, version: int = 1) -> None:
        found = self.ask("SaslHandshake", version, {"mechanism": mechanism})
        found.get("mechanisms", []).sort()  # Kafka's order is a matter of hashing

    def note(self, text: str) -> None:
        """Replaces the token that was heard last."""
        outcome = self.heard[-1].outcome
        assert isinstance(outcome, dict)
        outcome["authBytes"] = text


def salted(mechanism: str, password: str) -> bytes:
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), SALT, ITERATIONS)


def plain(user: str, password: str, identity: str = "") -> bytes:
    return f"{identity}\0{user}\0{password}".encode()


def scram(
    talk: SecureTalk, mechanism: str, user: str, password: str, *, version: int = 2, proof: bytes | None = None
) -> None:
    """A whole login.  `proof` replaces the client's."""
    talk.shake(mechanism)
    bare = f"n={user},r={NONCE}"
    first = talk.token(f"n,,{bare}".encode(), version).decode()
    found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", first)
    if found is None:
        return
    is_ours = found[1].startswith(NONCE) and len(found[1]) > len(NONCE)
    talk.note(f"its nonce: {is_ours}, salt {found[2]}, {found[3]} iterations")
    without_proof = f"c=biws,r={found[1]}"
    signed = f"{bare},{first},{without_proof}".encode()
    digest, key = DIGESTS[mechanism], salted(mechanism, password)
    client_key = hmac.digest(key, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    own = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    sent = base64.b64encode(own if proof is None else proof).decode()
    last = talk.token(f"{without_proof},p={sent}".encode(), version)
    expected = base64.b64encode(hmac.digest(hmac.digest(key, b"Server Key", digest), signed, digest))
    if last.startswith(b"v="):
        talk.note(f"its signature: {last == b'v=' + expected}")


def look(talk: SecureTalk) -> None:
    """The answers that a client gets once it is let in."""
    talk.ask("Metadata", 12, {"topics": [{"name": SEEN}, {"name": "hidden"}]})
    talk.ask("Metadata", 12, {"topics": None})
    talk.ask("Produce", 9, to_produce(SEEN, "", {0: batch()}))
    talk.ask("Fetch", 12, fetch_values(SEEN, "", {0: 0}))
    talk.ask("FindCoordinator", 4, {"keyType": 0, "coordinatorKeys": ["mine"]})
    talk.ask("DescribeCluster", 1, {})


def versions_first(talk: SecureTalk) -> None:
    """ApiVersions before and between the steps of a login."""
    named: Values = {"clientSoftwareName": "story", "clientSoftwareVersion": "1"}
    api = BY_NAME["ApiVersions"]
    for version in range(api.lowest, api.highest + 1):
        talk.hang_up()
        talk.ask("ApiVersions", version, fitting(api.request.type, named, version))
        talk.shake("PLAIN")
        talk.token(plain("alice", "secret"))
        talk.ask("ApiVersions", version, fitting(api.request.type, named, version))
    for first in ("handshake", "token"):
        talk.hang_up()
        talk.ask("ApiVersions", 4, named)
        if first == "token":
            talk.shake("PLAIN")
        talk.ask("ApiVersions", 4, named)
    talk.hang_up()
    talk.ask("ApiVersions", 4, {"clientSoftwareName": "", "clientSoftwareVersion": "1"})
    talk.shake("PLAIN")


def before_a_login(talk: SecureTalk) -> None:
    """Each ends the connection."""
    for after_handshake in (False, True):
        for name, version in (
            ("Metadata", 12),
            ("Produce", 9),
            ("Fetch", 12),
            ("FindCoordinator", 4),
            ("Heartbeat", 4),
        ):
            talk.hang_up()
            if after_handshake:
                talk.shake("PLAIN")
            talk.ask(name, version, {})
    talk.hang_up()
    talk.token(plain("alice", "secret"))
    talk.hang_up()
    talk.raw(b"GET / HTTP/1.1\r\n\r\n")


def plain_logins(talk: SecureTalk) -> None:
    for version in (0, 1, 2):
        talk.hang_up()
        talk.shake("PLAIN")
        talk.token(plain("alice", "secret"), version)
        look(talk)
        for token in (plain("alice", "wrong"), plain("nobody", "x"), plain("alice", ""), plain("", ""), b"", b"alice"):
            talk.hang_up()
            talk.shake("PLAIN")
            talk.token(token, version)
            talk.ask("Metadata", 12, {"topics": None})
    for identity in ("alice", "bob"):
        talk.hang_up()
        talk.shake("PLAIN")
        talk.token(plain("alice", "secret", identity))
    for token in (plain("alice", "secret"), plain("alice", "wrong")):
        talk.hang_up()
        talk.shake("PLAIN", 0)
        talk.bare(token)
        talk.ask("Metadata", 12, {"topics": [{"name": SEEN}]})


def mechanisms(talk: SecureTalk) -> None:
    for version in (0, 1):
        for mechanism in ("GSSAPI", "plain", "", "OAUTHBEARER", "SCRAM-SHA-1"):
            talk.hang_up()
            talk.shake(mechanism, version)
            talk.shake("PLAIN", version)
    talk.hang_up()
    talk.shake("PLAIN")
    talk.shake("SCRAM-SHA-256")


def scram_logins(talk: SecureTalk) -> None:
    for mechanism in DIGESTS:
        for version in (0, 1, 2):
            talk.hang_up()
            scram(talk, mechanism, "alice", "secret", version=version)
            look(talk)
        for user, password in (("alice", "wrong"), ("nobody", "secret"), ("bob", "other"), ("", "x")):
            talk.hang_up()
            scram(talk, mechanism, user, password)
            talk.ask("Metadata", 12, {"topics": None})
        for proof in (b"", b"short", bytes(32), bytes(64)):
            talk.hang_up()
            scram(talk, mechanism, "alice", "secret", proof=proof)
        for first in (b"", b"n,,", b"y,,n=alice,r=abc", b"p=tls-unique,,n=alice,r=abc", b"n,a=bob,n=alice,r=abc"):
            talk.hang_up()
            talk.shake(mechanism)
            if b"r=" in talk.token(first):
                talk.note("a challenge")
        talk.hang_up()
        talk.shake(mechanism)
        talk.token(f"n,,n=alice,r={NONCE}".encode())
        talk.note("a challenge")
        talk.token(b"c=biws,r=another,p=AAAA")


def logins_again(talk: SecureTalk) -> None:
    """KIP-368: a client authenticates anew, as the same user and in the same way."""
    for token in (plain("alice", "secret"), plain("alice", "wrong"), plain("bob", "other"), b"garbage"):
        talk.hang_up()
        for each in (plain("alice", "secret"), token):
            talk.shake("PLAIN")
            talk.token(each)
        look(talk)
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "GSSAPI"):
        talk.hang_up()
        scram(talk, "SCRAM-SHA-256", "alice", "secret")
        talk.ask("Metadata", 12, {"topics": [{"name": SEEN}]})
        talk.shake(mechanism)
        talk.ask("Metadata", 12, {"topics": [{"name": SEEN}]})
    talk.hang_up()
    for _ in range(2):
        scram(talk, "SCRAM-SHA-256", "alice", "secret")
        look(talk)
    talk.hang_up()
    talk.shake("PLAIN")
    talk.token(plain("alice", "secret"))
    talk.token(plain("alice", "secret"))  # without a handshake
    talk.ask("Metadata", 12, {"topics": [{"name": SEEN}]})


def tls(talk: SecureTalk) -> None:
    look(talk)
    talk.shake("PLAIN")  # the listener has no SASL
    talk.token(plain("alice", "secret"))
    talk.ask("Metadata", 12, {"topics": [{"name": SEEN}]})
    talk.hang_up()
    talk.raw(b"GET / HTTP/1.1\r\n\r\n")


def knocking(talk: SecureTalk) -> None:
    """A client that does not get through TLS, or speaks none."""
    talk.ask("Metadata", 12, {"topics": None})
    talk.raw(b"\x16\x03\x01\x00\x05hello")


class Told(NamedTuple):
    """Over which listener a story is told.  `certificate`: which one the client shows; "none" is no TLS at all."""

    listener: str
    story: Callable[[SecureTalk], None]
    certificate: str = ""


_LOGINS = (versions_first, before_a_login, plain_logins, mechanisms, scram_logins, logins_again)
STORIES: dict[str, Told] = {
    **{f"sasl {story.__name__}": Told("SASL_PLAINTEXT", story, "none") for story in _LOGINS},
    **{f"sasl over tls {story.__name__}": Told("SASL_SSL", story) for story in (plain_logins, scram_logins)},
    "tls": Told("SSL", tls),
    "plain text to tls": Told("SSL", knocking, "none"),
    "a certificate": Told("MTLS", tls, "alice"),
    "no certificate": Told("MTLS", knocking),
    "a certificate of another authority": Told("MTLS", knocking, "stranger"),
    "plain text to sasl over tls": Told("SASL_SSL", knocking, "none"),
}
