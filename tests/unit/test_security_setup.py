"""From settings to a server's security: listeners, mechanisms, users, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.errors import ConfigException, IllegalArgumentException
from kafkalog.server.api import Apis
from kafkalog.server.broker import Broker
from kafkalog.server.request import ConnectionInfo
from kafkalog.server.security.authenticator import SaslServerAuthenticator
from kafkalog.server.security.authorizer import AllowAll, StandardAuthorizer
from kafkalog.server.security.keys import STANDARD_AUTHORIZER
from kafkalog.server.security.setup import secure, users_of
from kafkalog.server.server import protocol_of
from kafkalog.server.server_state import ServerState, is_kept
from kafkalog.server.settings import Endpoint, ServerSettings
from tests.certificates import Authority

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


def secured(
    tmp_path: Path, protocol: str = "SASL_PLAINTEXT", host: str = "127.0.0.1", **settings: Any
) -> tuple[Broker, Any]:
    """Secures a broker with one listener of the protocol's name."""
    home: Any = SimpleNamespace(clock=ManualClock(), log_dirs=[str(tmp_path)], files=OS_FILES, place="p")
    broker = Broker(home, ServerSettings.from_props(settings))
    broker.apis = Apis()
    listener: Any = SimpleNamespace(
        endpoint=Endpoint(protocol, protocol, host, 1), tls=None, tls_done=None, new_authenticator=None
    )
    at_close: list[Callable[[], object]] = []
    secure(broker, [listener], at_close)
    return broker, listener


def mechanisms(tmp_path: Path, **settings: Any) -> dict[str, int]:
    """Returns the mechanisms with their longest sessions."""
    made = secured(tmp_path, **settings)[1].new_authenticator(ConnectionInfo())
    assert isinstance(made, SaslServerAuthenticator)
    return {name: each.max_reauth_ms for name, each in made._mechanisms.items()}


def test_mechanisms(tmp_path: Path) -> None:
    assert mechanisms(tmp_path, users={"alice": "secret"}) == {"PLAIN": 0, "SCRAM-SHA-256": 0, "SCRAM-SHA-512": 0}
    assert mechanisms(tmp_path) == {"SCRAM-SHA-256": 0, "SCRAM-SHA-512": 0}
    assert mechanisms(tmp_path, plain_sasl_jaas_config=JAAS, sasl_enabled_mechanisms="PLAIN") == {"PLAIN": 0}
    with pytest.raises(ConfigException, match="PLAIN is enabled, but there are no users"):
        mechanisms(tmp_path, sasl_jaas_config=JAAS, sasl_enabled_mechanisms="PLAIN")
    with pytest.raises(ConfigException, match=r"GSSAPI \(Kerberos\) is not supported"):
        mechanisms(tmp_path, sasl_enabled_mechanisms="GSSAPI")


def test_settings_of_a_listener_and_of_a_mechanism(tmp_path: Path) -> None:
    found = secured_by(
        tmp_path,
        {
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": "1",
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "2",
            "scram-sha-512.connections.max.reauth.ms": "3",
            "connections.max.reauth.ms": "4",
        },
    )
    assert found == {"PLAIN": 2, "SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
    found = secured_by(tmp_path, {"scram-sha-512.connections.max.reauth.ms": "3", "connections.max.reauth.ms": "4"})
    assert found == {"SCRAM-SHA-256": 4, "SCRAM-SHA-512": 3}


def secured_by(tmp_path: Path, given: dict[str, Any]) -> dict[str, int]:
    return mechanisms(tmp_path, **given)


def test_oauth_needs_keys_an_issuer_and_an_audience(tmp_path: Path) -> None:
    settings = {"sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(ConfigException, match=r"jwks\.endpoint\.url"):
        secured_by(tmp_path, settings)
    settings["sasl.oauthbearer.jwks.endpoint.url"] = (tmp_path / "jwks.json").as_uri()
    with pytest.raises(ConfigException, match=r"sasl\.oauthbearer\.expected\.audience"):
        secured_by(tmp_path, settings)
    settings["sasl.oauthbearer.expected.audience"] = "kafka"
    with pytest.raises(ConfigException, match=r"sasl\.oauthbearer\.expected\.issuer"):
        secured_by(tmp_path, settings)
    settings["sasl.oauthbearer.allow.unverified.issuer"] = "true"
    with pytest.raises(ConfigException, match="cannot read the JWKS"):
        secured_by(tmp_path, settings)
    (tmp_path / "jwks.json").write_text('{"keys": [{"kty": "oct", "k": "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4"}]}')
    assert secured_by(tmp_path, settings) == {"OAUTHBEARER": 0}


def test_unsecured_tokens_only_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = (
        "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    )
    name = "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class"
    assert secured_by(tmp_path, {"sasl.enabled.mechanisms": "OAUTHBEARER", name: handler}) == {"OAUTHBEARER": 0}
    assert "anybody may be anybody" in caplog.text
    with pytest.raises(ConfigException, match="clock skew"):
        secured_by(
            tmp_path,
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                name: handler,
                "oauthbearer.sasl.jaas.config": 'm required unsecuredValidatorAllowableClockSkewMs="-1";',
            },
        )


def test_nobody_can_log_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secured(tmp_path)
    assert "nobody can log in" in caplog.text


def test_passwords_that_the_network_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secured(tmp_path, users={"alice": "secret"})
    assert "the network can read" not in caplog.text
    secured(tmp_path, host="0.0.0.0", users={"alice": "secret"})
    assert "the network can read what clients log in with (PLAIN)" in caplog.text
    caplog.clear()
    scram = {"sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    secured(tmp_path, host="0.0.0.0", users={"alice": "secret"}, **scram)
    assert "the network can read" not in caplog.text


def users(tmp_path: Path, given: object = None, text: str | None = None) -> dict[str, str]:
    settings: dict[str, Any] = {} if given is None else {"users": given}
    if text is not None:
        (tmp_path / "users").write_text(text)
        settings["users.file"] = str(tmp_path / "users")
    home: Any = SimpleNamespace(files=OS_FILES)
    return users_of(ServerSettings.from_props(settings), home)


def test_users(tmp_path: Path) -> None:
    assert users(tmp_path) == {}
    assert users(tmp_path, {"alice": "a,b:c"}) == {"alice": "a,b:c"}
    assert users(tmp_path, "alice:secret, bob:x:y") == {"alice": "secret", "bob": "x:y"}
    assert users(tmp_path, ("alice:a,b",)) == {"alice": "a,b"}
    assert users(tmp_path, {"bob": "x"}, "# users\n\nalice:secret\n") == {"bob": "x", "alice": "secret"}
    for wrong in ("alice", "alice:", ":x", {"alice": ""}, 7):
        with pytest.raises(ConfigException, match=r"NAME:PASSWORD") as error:
            users(tmp_path, wrong)
        assert "secret" not in str(error.value)
    with pytest.raises(ConfigException, match=r"cannot read missing: No such file or directory\Z"):
        users_of(ServerSettings.from_props({"users.file": "missing"}), SimpleNamespace(files=OS_FILES))  # type: ignore[arg-type]


def test_a_file_of_users(tmp_path: Path) -> None:
    assert users(tmp_path, None, "\ufeff# users\r\n  # more\r\n alice : secret \r\n") == {"alice": "secret"}
    for text, given, why in (
        ("# users\n\nalice:secret\nbob\n", None, "line 4 has no colon"),
        ("# users\nbob:\n", None, "line 2: a name or a password is empty"),
        ("alice:secret\nalice:other\n", None, "line 2: alice is there twice"),
        ("\nalice:secret\n", {"alice": "secret"}, "line 2: alice is there twice"),
    ):
        with pytest.raises(ConfigException) as error:
            users(tmp_path, given, text)
        assert error.value.message == f"users.file: {tmp_path / 'users'}, {why}"
    with pytest.raises(ConfigException, match="users: entry 2: alice is there twice"):
        users(tmp_path, "alice:secret,alice:other")
    (tmp_path / "users").write_bytes(b"alice:\xff\n")
    with pytest.raises(ConfigException, match=r"users is no text in UTF-8\Z"):
        users_of(ServerSettings.from_props({"users.file": str(tmp_path / "users")}), SimpleNamespace(files=OS_FILES))  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    settings = ServerSettings.from_props(
        {"users": {"alice": "hush"}, "plain.sasl.jaas.config": "hush", "ssl.keystore.key": "hush",
         "ssl.key.password": "hush", "num.partitions": 3}
    )  # fmt: skip
    assert "hush" not in repr(settings)
    assert "num.partitions" in repr(settings)


def test_the_authorizer(tmp_path: Path) -> None:
    assert isinstance(secured(tmp_path, "PLAINTEXT")[0].authorizer, AllowAll)
    for name in (STANDARD_AUTHORIZER, "StandardAuthorizer"):
        made = secured(tmp_path, "PLAINTEXT", authorizer_class_name=name, super_users="User:a; User:b;")[0].authorizer
        assert isinstance(made, StandardAuthorizer)
        assert {str(user) for user in made._super_users} == {"User:a", "User:b"}
    with pytest.raises(ConfigException, match="could not be found"):
        secured(tmp_path, "PLAINTEXT", authorizer_class_name="com.example.Mine")
    with pytest.raises(IllegalArgumentException):
        secured(tmp_path, "PLAINTEXT", authorizer_class_name=STANDARD_AUTHORIZER, super_users="alice")


def test_tls_of_a_listener(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match="needs a certificate"):
        secured(tmp_path, "SSL")
    assert secured(tmp_path, "PLAINTEXT")[1].tls is None


def test_certificates_of_public_authorities(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority()
    server = authority.sign(CN="localhost")
    (tmp_path / "server.pem").write_text(server.key_pem() + server.pem)
    (tmp_path / "ca.pem").write_text(authority.pem)
    settings = {"ssl.keystore.location": str(tmp_path / "server.pem"), "ssl.client.auth": "required"}
    secured(tmp_path, "SSL", **{**settings, "ssl.truststore.location": str(tmp_path / "ca.pem")})
    secured(tmp_path, "SSL", **{**settings, "ssl.client.auth": "none"})
    assert "authorities" not in caplog.text
    secured(tmp_path, "SSL", **settings)
    assert "SSL: clients need a certificate of one of this system's authorities" in caplog.text


def test_quotas_have_their_windows(tmp_path: Path) -> None:
    broker, _ = secured(tmp_path, "PLAINTEXT", quota_window_num=3, quota_window_size_seconds=2)
    broker.quotas.replace({})
    assert broker.quotas._windows == 3
    assert broker.quotas._window_ms == 2000


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    home: Any = SimpleNamespace(log_dirs=[str(tmp_path)], files=OS_FILES)
    assert not is_kept(home.log_dirs, home.files)
    broker, _ = secured(tmp_path, "PLAINTEXT")
    assert broker.state["kept"].state == ServerState()
    assert not is_kept(home.log_dirs, home.files)


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"users": {}}, "SASL_PLAINTEXT"),
        ({"ssl.keystore.key": ""}, "SSL"),
        ({"users.file": "", "ssl.keystore.location": ""}, "SASL_SSL"),
    ],
)
def test_the_protocol_of_a_listener_without_a_name(settings: dict[str, Any], protocol: str) -> None:
    assert protocol_of(settings) == protocol
