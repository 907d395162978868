"""Signed tokens of OAUTHBEARER: what is accepted, and what is not."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from kafkalog.engine.files import ManualClock
from kafkalog.errors import ConfigException
from kafkalog.server.security.jwt_validator import BrokerJwtValidator, FileKeys, JwtSettings, UrlKeys, keys_of
from kafkalog.server.security.oauthbearer import InvalidToken, OAuthBearerToken

NOW = 1_800_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "rsa"})
SETTINGS = JwtSettings(("kafka", "other"), "https://issuer")
CLAIMS = {"sub": "alice", "aud": "kafka", "iss": "https://issuer", "iat": NOW - 10, "exp": NOW + 600}


def jwks(*keys: Any) -> bytes:
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(RSA, EC))
    return FileKeys(str(path))


def token(
    claims: Any = CLAIMS, key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **header: Any
) -> str:
    head = {"alg": algorithm, **({} if kid is None else {"kid": kid}), **header}
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jws.serialize_compact(head, body, key, algorithms=[algorithm])


def check(keys: FileKeys, text: str, settings: JwtSettings = SETTINGS, now: int = NOW) -> OAuthBearerToken:
    return BrokerJwtValidator(settings, keys, ManualClock(now * 1000))(text)


def test_tokens_that_are_accepted(keys: FileKeys) -> None:
    alice = OAuthBearerToken("alice", (NOW + 600) * 1000)
    assert check(keys, token()) == alice
    assert check(keys, f" {token()} ") == alice
    assert check(keys, token(kid=None)) == alice
    assert check(keys, token(algorithm="PS512")) == alice
    assert check(keys, token(key=EC, algorithm="ES256", kid="ec")) == alice
    assert check(keys, token({**CLAIMS, "aud": ["x", "other"], "nbf": NOW, "scope": "a b"})) == alice
    assert check(keys, token({**CLAIMS, "scope": ["a", "b"]})) == alice
    assert check(keys, token(), now=NOW + 600 + 29) == alice
    assert check(keys, token({**CLAIMS, "exp": NOW + 5.9})).lifetime_ms == (NOW + 5) * 1000


def test_names_of_claims(keys: FileKeys) -> None:
    settings = SETTINGS._replace(sub_claim_name="client", scope_claim_name="scp")
    assert check(keys, token({**CLAIMS, "client": " bob "}), settings).principal_name == "bob"
    with pytest.raises(InvalidToken, match="scp value must be non-empty"):
        check(keys, token({**CLAIMS, "client": "bob", "scp": ["a", " "]}), settings)
    with pytest.raises(InvalidToken, match="client value must be non-empty"):
        check(keys, token(), settings)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"exp": NOW - 31}, "no longer valid"),
        ({"exp": None}, "No Expiration Time"),
        ({"exp": "soon"}, "'exp' claim"),
        ({"exp": True}, "'exp' claim"),
        ({"exp": 1e300}, "'exp' claim"),
        ({"iat": None}, "No Issued At"),
        ({"iat": NOW + 700}, "before iat"),
        ({"nbf": NOW + 31}, "not yet valid"),
        ({"aud": "else"}, "Audience"),
        ({"aud": None}, "Audience"),
        ({"aud": [1, {}]}, "Audience"),
        ({"iss": "https://evil"}, "Issuer"),
        ({"iss": None}, "Issuer"),
        ({"sub": ""}, "sub value"),
        ({"sub": 7}, "sub value"),
        ({"sub": ["alice"]}, "sub value"),
        ({"scope": " "}, "scope value"),
    ],
)
def test_claims_that_are_refused(keys: FileKeys, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidToken, match=text):
        check(keys, token({**CLAIMS, **changed}))


def test_any_issuer_and_audience_if_so_set(keys: FileKeys) -> None:
    settings = JwtSettings((), None)
    assert check(keys, token({**CLAIMS, "aud": None, "iss": None}), settings).principal_name == "alice"


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_forgeries(keys: FileKeys) -> None:
    good = token()
    header, claims, signature = good.split(".")
    signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{claims}"
    mac = hmac.digest(RSA.as_pem(private=False), signed.encode(), "sha256")
    forged_with_public_key = f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    forgeries = [
        token(key=OTHER),
        token(kid="unknown"),
        token(kid="ec"),
        f"{part({'alg': 'none'})}.{claims}.",
        f"{part({'alg': 'none'})}.{claims}.{signature}",
        f"{part({'alg': 'NONE', 'kid': 'rsa'})}.{claims}.{signature}",
        f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{claims}.{signature}",
        f"{header}.{part({**CLAIMS, 'sub': 'admin'})}.{signature}",
        f"{header}.{claims}.{signature[:-4]}AAAA",
        f"{part({'alg': 'RS256', 'kid': 'rsa', 'crit': ['x'], 'x': 1})}.{claims}.{signature}",
        f"{part({'alg': 'RS256', 'jwk': OTHER.as_dict(private=False)})}.{claims}.{token(key=OTHER).split('.')[2]}",
        f"{part({'alg': ['RS256']})}.{claims}.{signature}",
        f"{part(7)}.{claims}.{signature}",
        forged_with_public_key,
        "",
        "...",
        "a.b.c",
        "a.b.c.d",
        "é.é.é",
        good + ".x",
        header + "." + claims,
        token(b"not json"),
        token([1]),
        token(b"[" * 5000),
    ]
    for forged in forgeries:
        with pytest.raises(InvalidToken):
            check(keys, forged)


def test_a_key_for_another_use_checks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    for changed in ({"use": "enc"}, {"alg": "RS512"}):
        path.write_bytes(json.dumps({"keys": [{**RSA.as_dict(private=False), **changed}]}).encode())
        with pytest.raises(InvalidToken, match="no key for a token"):
            check(FileKeys(str(path)), token())


def test_a_shared_secret_only_if_the_provider_has_one(tmp_path: Path) -> None:
    secret = OctKey.generate_key(256, {"kid": "oct"})
    path = tmp_path / "jwks.json"
    path.write_bytes(json.dumps({"keys": [secret.as_dict(private=True)]}).encode())
    text = token(key=secret, algorithm="HS256", kid="oct")
    assert check(FileKeys(str(path)), text).principal_name == "alice"


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(OTHER))
    keys = keys_of(path.as_uri(), SETTINGS)
    assert isinstance(keys, FileKeys)
    with pytest.raises(InvalidToken):
        check(keys, token())
    path.write_bytes(jwks(RSA, EC))
    assert check(keys, token()).principal_name == "alice"
    path.write_bytes(b"{")
    with pytest.raises(InvalidToken, match="cannot read the JWKS"):
        check(keys, token())


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"keys": 7}', b'{"keys": [{"kty": "?"}]}', b'{"keys": ["x"]}'])
def test_files_that_have_no_keys(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(data)
    with pytest.raises(ConfigException, match="cannot read the JWKS"):
        FileKeys(str(path))
    with pytest.raises(ConfigException):
        FileKeys(str(tmp_path / "missing"))


def test_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigException, match="invalid protocol"):
        keys_of("ftp://host/keys", SETTINGS)
    found = [jwks(OTHER), jwks(RSA)]
    asked = threading.Event()

    def fetch(url: str) -> bytes:
        if len(found) == 1:
            asked.set()
        return found.pop(0) if len(found) > 1 else found[0]

    keys = UrlKeys("https://host/keys", SETTINGS, fetch)
    validator = BrokerJwtValidator(SETTINGS, keys, ManualClock(NOW * 1000))
    try:
        with pytest.raises(InvalidToken):
            validator(token(kid="new"))
        assert asked.wait(10)  # a missing key is looked for by the thread
        wait_for(lambda: validator(token()).principal_name == "alice")
    finally:
        validator.close()
    keys._thread.join(10)
    assert not keys._thread.is_alive()


def test_a_url_that_does_not_answer_yet() -> None:
    calls: list[str] = []

    def fetch(url: str) -> bytes:
        calls.append(url)
        if len(calls) < 3:
            raise OSError("refused")
        return jwks(RSA)

    keys = UrlKeys("https://host/keys", SETTINGS._replace(retry_backoff_ms=1, retry_backoff_max_ms=2), fetch)
    validator = BrokerJwtValidator(SETTINGS, keys, ManualClock(NOW * 1000))
    try:
        wait_for(lambda: validator(token()).principal_name == "alice")
    finally:
        validator.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            if condition():
                return
        except InvalidToken:
            if time.monotonic() > until:
                raise
        time.sleep(0.005)
