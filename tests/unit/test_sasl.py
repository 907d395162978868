"""SASL of a server: each mechanism, and each state of a connection's authentication."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.server.api import Apis
from kafkalog.server.connection import Step
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, ProtocolError, Request
from kafkalog.server.security.authenticator import Mechanism, SaslServerAuthenticator, State
from kafkalog.server.security.oauthbearer import InvalidToken, OAuthBearerSaslServer, OAuthBearerToken
from kafkalog.server.security.sasl import (
    OAUTHBEARER,
    PLAIN,
    PlainSaslServer,
    SaslAuthenticationException,
    SaslException,
    is_password,
)
from kafkalog.server.security.scram import ScramCredential, ScramMechanism, ScramSaslServer, credential_of

USERS = {"alice": "secret", "bob": "other", "ü": "pässword"}

# --- PLAIN -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["\0alice\0secret", "alice\0alice\0secret", "\0ü\0pässword"])
def test_plain(token: str) -> None:
    server = PlainSaslServer(USERS)
    assert not server.is_complete
    assert server.evaluate_response(token.encode()) == b""
    assert server.is_complete
    assert server.authorization_id == token.split("\0")[1]


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        ("\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        ("\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        ("\0" * 9, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        ("\0\0secret", "Authentication failed: username not specified"),
        ("\0alice\0", "Authentication failed: password not specified"),
        ("\0alice\0other", "Authentication failed: Invalid username or password"),
        ("\0carol\0secret", "Authentication failed: Invalid username or password"),
        (
            "bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_plain_refusals(token: str, text: str) -> None:
    server = PlainSaslServer(USERS)
    with pytest.raises(SaslAuthenticationException) as error:
        server.evaluate_response(token.encode())
    assert str(error.value) == text
    assert not server.is_complete


def test_a_user_without_password_has_no_password() -> None:
    assert not is_password(None, "")
    assert not is_password(None, "x")
    assert is_password("x", "x")


# --- SCRAM -----------------------------------------------------------------------------------------------

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


def scram(mechanism: ScramMechanism = SHA_256, password: str = "pencil") -> ScramSaslServer:
    credential = credential_of(mechanism, password, salt=SALT)
    return ScramSaslServer(mechanism, {"user": credential}.get, lambda: SERVER_NONCE)


def test_scram_by_rfc_7677() -> None:
    server = scram()
    assert server.evaluate_response(f"n,,n=user,r={NONCE}".encode()) == (
        f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = server.evaluate_response(f"c=biws,r={NONCE}{SERVER_NONCE},p={proof}".encode())
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.is_complete
    assert server.authorization_id == "user"


def scram_client(
    server: ScramSaslServer, mechanism: ScramMechanism, password: str, first: str = "n=user,r=abc"
) -> bytes:
    """A client of its own: the arithmetic of RFC 5802."""
    challenge = server.evaluate_response(f"n,,{first}".encode()).decode()
    parts = dict(each.split("=", 1) for each in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    key = hmac.digest(salted, b"Client Key", mechanism.digest)
    signed = f"{first},{challenge},c=biws,r={parts['r']}"
    signature = hmac.digest(hashlib.new(mechanism.digest, key).digest(), signed.encode(), mechanism.digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return server.evaluate_response(f"c=biws,r={parts['r']},p={proof}".encode())


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_of_each_hash(mechanism: ScramMechanism) -> None:
    assert scram_client(scram(mechanism), mechanism, "pencil").startswith(b"v=")
    assert scram_client(scram(mechanism), mechanism, "pencil", "n=user,r=abc,ext=1").startswith(b"v=")
    with pytest.raises(SaslException, match="Invalid client credentials"):
        scram_client(scram(mechanism), mechanism, "pen")


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (b"", SaslException, "client first message format"),
        (b"y,,n=user,r=abc", SaslException, "client first message format"),
        (b"p=tls-unique,,n=user,r=abc", SaslException, "client first message format"),
        (b"n,,n=user,r=", SaslException, "client first message format"),
        (b"n,,n=us=er,r=abc", SaslException, "client first message format"),
        (b"\xff\xfe", SaslException, "client first message format"),
        (b"n,,n=nobody,r=abc", SaslException, "Invalid user credentials"),
        (b"n,,n=user,r=abc,tokenauth=true", SaslException, "Invalid tokenId"),
        (b"n,a=other,n=user,r=abc", SaslAuthenticationException, "different from username"),
    ],
)
def test_scram_refuses_a_first_message(message: bytes, kind: type[Exception], text: str) -> None:
    server = scram()
    with pytest.raises(SaslException, match=text) as error:
        server.evaluate_response(message)
    assert type(error.value) is kind
    with pytest.raises(SaslAuthenticationException, match="Unexpected challenge"):
        server.evaluate_response(b"n,,n=user,r=abc")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"c=biws,r=abc,p=AAAA", "Invalid client nonce"),
        (b"c=biws,r=abcSERVER", "client final message format"),
        (b"c=!!!,r=abcSERVER,p=AAAA", "client final message format"),
        (b"c=biws,r=abcSERVER,p=" + base64.b64encode(bytes(32)), "Invalid client credentials"),
    ],
)
def test_scram_refuses_a_final_message(message: bytes, text: str) -> None:
    server = ScramSaslServer(SHA_256, {"user": credential_of(SHA_256, "pencil")}.get, lambda: "SERVER")
    server.evaluate_response(b"n,,n=user,r=abc")
    with pytest.raises(SaslException, match=text):
        server.evaluate_response(message)
    assert not server.is_complete


def test_scram_with_a_proof_of_another_length() -> None:
    server = ScramSaslServer(SHA_256, {"user": credential_of(SHA_256, "pencil")}.get, lambda: "SERVER")
    server.evaluate_response(b"n,,n=user,r=abc")
    with pytest.raises(ValueError, match="same length"):
        server.evaluate_response(b"c=biws,r=abcSERVER,p=AAAA")


def test_scram_refuses_few_iterations() -> None:
    weak = credential_of(SHA_512, "pencil", iterations=4095)
    server = ScramSaslServer(SHA_512, {"user": weak}.get)
    with pytest.raises(SaslException, match="Iterations 4095 is less than the minimum 4096 for SCRAM_SHA_512"):
        server.evaluate_response(b"n,,n=user,r=abc")


def test_two_nonces_differ() -> None:
    users: dict[str, ScramCredential] = {"user": credential_of(SHA_256, "pencil")}
    answers = {ScramSaslServer(SHA_256, users.get).evaluate_response(b"n,,n=user,r=abc") for _ in range(5)}
    assert len(answers) == 5


# --- OAUTHBEARER -----------------------------------------------------------------------------------------


def validate(token: str) -> OAuthBearerToken:
    if token == "narrow":
        raise InvalidToken("why", "[a, b]")
    if not token.startswith("good"):
        raise InvalidToken("why")
    return OAuthBearerToken("alice", 90_000)


def oauth(log: list[str] | None = None) -> OAuthBearerSaslServer:
    return OAuthBearerSaslServer(validate, (log if log is not None else []).append)


def initial(token: str, authzid: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {token}\x01\x01".encode()


def test_oauth() -> None:
    server = oauth()
    assert server.evaluate_response(initial("good", "a=alice")) == b""
    assert (server.is_complete, server.authorization_id, server.credential_expires_ms) == (True, "alice", 90_000)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("bad", '{"status":"invalid_token"}'),
        ("narrow", '{"status":"insufficient_scope", "scope":"[a, b]"}'),
    ],
)
def test_oauth_tells_why_and_waits_for_the_client(token: str, told: str) -> None:
    log: list[str] = []
    server = oauth(log)
    assert server.evaluate_response(initial(token)).decode() == told
    assert log == ["why"]
    with pytest.raises(SaslAuthenticationException) as error:
        server.evaluate_response(b"\x01")
    assert str(error.value) == told


def test_oauth_refusals() -> None:
    with pytest.raises(SaslAuthenticationException, match="different from the token's principal name"):
        oauth().evaluate_response(initial("good", "a=bob"))
    with pytest.raises(SaslException, match="Invalid OAUTHBEARER client first message"):
        oauth().evaluate_response(b"\x01")
    with pytest.raises(ValueError, match="Invalid scheme"):
        oauth().evaluate_response(b"n,,\x01auth=Basic good\x01\x01")


# --- the states of a connection --------------------------------------------------------------------------


class Client:
    """Frames of a client for one authenticator."""

    def __init__(self, *, max_reauth_ms: int = 0) -> None:
        self.clock = ManualClock(1_800_000_000_000)
        self.apis = Apis()
        self.expires_ms: int | None = None
        servers: dict[str, Any] = {PLAIN: lambda: PlainSaslServer(USERS), OAUTHBEARER: oauth}
        self.authenticator = SaslServerAuthenticator(
            {name: Mechanism(server, max_reauth_ms) for name, server in servers.items()},
            self.apis,
            self._api_versions,
            clock=self.clock,
        )
        self.info = ConnectionInfo()

    def _api_versions(self, request: Request) -> dict[str, Any]:
        code = Errors.UNSUPPORTED_VERSION if request.unsupported_version is not None else Errors.NONE
        return {"errorCode": code, "apiKeys": []}

    def send(self, key: int, version: int, values: dict[str, Any] | None = None, *, then: bytes = b"") -> Step:
        known = api(key)
        body = known.request.encode(values or {}, min(version, known.highest))
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(3) + b"\x07" + b"\x00\x01c"
        if known.request_header_version(min(version, known.highest)) == 2:
            head += b"\0"
        return self.raw(head + body + then)

    def raw(self, frame: bytes) -> Step:
        return self.authenticator.handle(memoryview(frame), self.info, self.clock.milliseconds())

    def read(self, key: int, version: int, step: Step) -> dict[str, Any]:
        assert step.answer is not None
        data = b"".join(map(bytes, step.answer))  # type: ignore[arg-type]
        known = api(key)
        at = 4 + (known.response_header_version(version) == 1)
        values: dict[str, Any] = known.response.decode(data, version, at=at)[0]
        return values

    def handshake(self, mechanism: str = PLAIN, version: int = 1) -> dict[str, Any]:
        step = self.send(ApiKeys.SASL_HANDSHAKE, version, {"mechanism": mechanism})
        return self.read(ApiKeys.SASL_HANDSHAKE, version, step)

    def authenticate(self, token: bytes, version: int = 2) -> tuple[dict[str, Any], str | None]:
        step = self.send(ApiKeys.SASL_AUTHENTICATE, version, {"authBytes": token})
        return self.read(ApiKeys.SASL_AUTHENTICATE, version, step), step.failure


GOOD = b"\0alice\0secret"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_handshake_then_token(version: int) -> None:
    client = Client()
    client.send(ApiKeys.API_VERSIONS, 3, {"clientSoftwareName": "x", "clientSoftwareVersion": "1"})
    assert client.authenticator.state is State.HANDSHAKE_REQUEST
    assert client.handshake() == {"errorCode": 0, "mechanisms": [PLAIN, OAUTHBEARER]}
    answer, failure = client.authenticate(GOOD, version)
    assert (answer["errorCode"], bytes(answer["authBytes"]), failure) == (0, b"", None)
    assert answer["sessionLifetimeMs"] == 0
    assert client.authenticator.is_complete
    assert client.info.principal == KafkaPrincipal("User", "alice")
    assert client.authenticator.expires_ms == 0
    assert not client.authenticator.wants(ApiKeys.SASL_HANDSHAKE)


def test_bare_tokens_after_a_handshake_of_version_0() -> None:
    client = Client()
    client.handshake(version=0)
    step = client.raw(GOOD)
    assert (step.answer, step.failure) == ([b""], None)
    assert client.authenticator.is_complete


def test_a_refused_bare_token_has_no_answer() -> None:
    client = Client()
    client.handshake(version=0)
    assert client.raw(b"\0alice\0wrong") == (None, "Authentication failed: Invalid username or password")
    client = Client()
    client.handshake(OAUTHBEARER, version=0)
    with pytest.raises(ProtocolError, match="Failed during authentication: Invalid OAUTHBEARER"):
        client.raw(b"x")


def test_a_version_of_api_versions_that_is_too_new_is_answered_and_asked_again() -> None:
    client = Client()
    client.send(ApiKeys.API_VERSIONS, 99)
    assert client.authenticator.state is State.HANDSHAKE_OR_VERSIONS_REQUEST
    client.send(ApiKeys.API_VERSIONS, 2)
    assert client.authenticator.state is State.HANDSHAKE_REQUEST
    with pytest.raises(ProtocolError, match="Unexpected ApiVersions request"):
        client.send(ApiKeys.API_VERSIONS, 2)


def test_an_unknown_mechanism() -> None:
    client = Client()
    step = client.send(ApiKeys.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
    assert client.read(ApiKeys.SASL_HANDSHAKE, 1, step) == {
        "errorCode": Errors.UNSUPPORTED_SASL_MECHANISM,
        "mechanisms": [PLAIN, OAUTHBEARER],
    }
    assert step.failure == "Unsupported SASL mechanism GSSAPI"


def test_wrong_passwords_and_wrong_tokens() -> None:
    client = Client()
    client.handshake()
    answer, failure = client.authenticate(b"\0alice\0wrong")
    assert answer["errorCode"] == Errors.SASL_AUTHENTICATION_FAILED
    assert answer["errorMessage"] == failure == "Authentication failed: Invalid username or password"
    assert client.authenticator.state is State.FAILED
    client = Client()
    client.handshake(OAUTHBEARER)
    answer, failure = client.authenticate(b"x")
    told = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
    assert answer["errorMessage"] == told
    assert failure == f"{told} (Invalid OAUTHBEARER client first message)"


def test_another_request_instead_of_a_token() -> None:
    client = Client()
    client.handshake()
    step = client.send(ApiKeys.METADATA, 9, {"topics": None})
    assert step.failure == "Unexpected Kafka request of type Metadata during SASL authentication."
    assert step.answer is not None


@pytest.mark.parametrize(
    "frame", [b"", b"\0", b"GET / HTTP/1.1\r\n", b"\x00\x03\x00\x09", bytes(100), b"\xff" * 100, b"\x00\x11\x00\x63"]
)
def test_what_is_no_handshake_ends_the_connection(frame: bytes) -> None:
    client = Client()
    with pytest.raises(ProtocolError):
        client.raw(frame)
    client = Client()
    client.handshake()
    with pytest.raises(ProtocolError):
        client.raw(frame)


def test_lifetimes_of_sessions() -> None:
    client = Client(max_reauth_ms=60_000)
    client.handshake()
    assert client.authenticate(GOOD)[0]["sessionLifetimeMs"] == 60_000
    assert client.authenticator.expires_ms == client.clock.milliseconds() + 60_000


@pytest.mark.parametrize(
    ("left_ms", "max_ms", "lifetime_ms"), [(90_000, 0, 90_000), (90_000, 60_000, 60_000), (10, 60_000, 10), (-5, 0, 0)]
)
def test_a_credential_may_end_sooner(left_ms: int, max_ms: int, lifetime_ms: int) -> None:
    client = Client(max_reauth_ms=max_ms)
    now = client.clock.milliseconds()
    servers = {OAUTHBEARER: lambda: OAuthBearerSaslServer(lambda token: OAuthBearerToken("a", now + left_ms), print)}
    client.authenticator = SaslServerAuthenticator(
        {name: Mechanism(server, max_ms) for name, server in servers.items()},
        client.apis,
        client._api_versions,
        clock=client.clock,
    )
    client.handshake(OAUTHBEARER)
    assert client.authenticate(initial("good"))[0]["sessionLifetimeMs"] == lifetime_ms
    assert client.authenticator.expires_ms == now + lifetime_ms


def again(client: Client) -> bool:
    return client.authenticator.wants(ApiKeys.SASL_HANDSHAKE)


def test_authenticating_anew() -> None:
    client = Client(max_reauth_ms=60_000)
    client.handshake()
    client.authenticate(GOOD)
    assert not client.authenticator.wants(ApiKeys.METADATA)
    assert not client.authenticator.wants(ApiKeys.SASL_AUTHENTICATE)
    client.clock.advance(50_000)
    assert again(client)
    assert not client.authenticator.is_complete
    client.handshake()
    assert client.authenticate(GOOD)[0]["sessionLifetimeMs"] == 60_000
    assert client.authenticator.is_complete
    assert not again(client)  # not twice in a second
    client.clock.advance(1000)
    assert again(client)


def test_authenticating_anew_as_somebody_else() -> None:
    client = Client(max_reauth_ms=60_000)
    client.handshake()
    client.authenticate(GOOD)
    assert again(client)
    client.handshake()
    answer, failure = client.authenticate(b"\0bob\0other")
    told = "Cannot change principals during re-authentication from User.alice: User.bob"
    assert answer["errorMessage"] == failure == told


def test_authenticating_anew_with_another_mechanism() -> None:
    client = Client(max_reauth_ms=60_000)
    client.handshake()
    client.authenticate(GOOD)
    assert again(client)
    assert client.handshake(OAUTHBEARER)["errorCode"] == 0
    step = client.send(ApiKeys.SASL_AUTHENTICATE, 2, {"authBytes": initial("good")})
    assert step.answer is None
    assert step.failure is not None
    assert "is not supported for re-authentication of mechanism 'PLAIN'" in step.failure


def test_failing_to_authenticate_anew() -> None:
    client = Client(max_reauth_ms=60_000)
    client.handshake(OAUTHBEARER)
    client.authenticate(initial("good"))
    assert again(client)
    client.handshake(OAUTHBEARER)
    told = client.authenticate(b"x")[0]["errorMessage"]
    assert told == (
        "Authentication failed during re-authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
    )
