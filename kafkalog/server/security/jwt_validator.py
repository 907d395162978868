"""Signed tokens of OAUTHBEARER: their signature, issuer, audience and times, checked with the provider's keys.

The keys (a JWKS) come from a file, which is read again after it has changed, or from a URL.  A thread reads the URL
again from time to time, and soon after a token names a key that is not there.  No connection waits for it.  A key
decides which algorithms it may check, so that a token cannot choose a weaker one; `none` is never accepted.

Needs the extra `kafkalog[oauth]`.
Source: BrokerJwtValidator, JwksFileVerificationKeyResolver, RefreshingHttpsJwks (4.4.0); jose4j's JwtConsumer.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.engine.files import OS_FILES, Clock, Files
from kafkalog.engine.format.needs import need_joserfc
from kafkalog.errors import ConfigException, KafkalogError
from kafkalog.server.security.oauthbearer import InvalidToken, OAuthBearerToken

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

LOG = logging.getLogger("kafkalog.server")
JWKS_BYTES_MAX = 1 << 20
TIMEOUT_S = 20
REST_S = 1
# The algorithms that a type of key may check.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA", "Ed25519"),
    "oct": ("HS256", "HS384", "HS512"),
}
_EVERY = tuple(name for names in ALGORITHMS.values() for name in names)


class JwtSettings(NamedTuple):
    """The settings of `sasl.oauthbearer.*` for a server."""

    audiences: Collection[str]
    issuer: str | None
    clock_skew_seconds: int = 30
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


def _key_set(data: bytes) -> KeySet:
    """Returns the keys of a JWKS.  Raises ValueError, KeyError and TypeError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        return KeySet.import_key_set(json.loads(data))
    except (JoseError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


class FileKeys:
    """The keys of a file."""

    def __init__(self, path: str, files: Files = OS_FILES) -> None:
        self._path = path
        self._files = files
        self._seen: object = None
        self._keys: KeySet | None = None
        self.get()

    def get(self) -> KeySet:
        """Returns the keys.  Raises ConfigException if the file has none."""
        try:
            stat = self._files.stat(self._path)
            seen = stat.mtime_ms, stat.size, stat.inode
            if self._keys is None or seen != self._seen:
                if stat.size > JWKS_BYTES_MAX:
                    raise ValueError(f"{stat.size} bytes are too many")
                self._keys = _key_set(self._files.read_bytes(self._path))
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigException(f"cannot read the JWKS in {self._path}: {error}") from error
        return self._keys

    def miss(self, kid: str | None) -> None:
        """Says that a key is missing: the file is looked at each time anyway."""

    def close(self) -> None:
        """Does nothing."""


class UrlKeys:
    """The keys of a URL.  A thread reads it at the start, after each `refresh_ms`, and when a key is missing."""

    def __init__(self, url: str, settings: JwtSettings, fetch: Callable[[str], bytes] | None = None) -> None:
        self._url = url
        self._settings = settings
        self._fetch = fetch or fetch_url
        self._keys: KeySet | None = None
        self._wanted = threading.Event()
        self._is_closed = threading.Event()
        self._try()
        self._thread = threading.Thread(target=self._run, name="kafkalog-jwks", daemon=True)
        self._thread.start()

    def get(self) -> KeySet:
        """Returns the keys.  Raises InvalidToken if they could not be read yet."""
        if self._keys is None:
            raise InvalidToken(f"the keys of {self._url} could not be read yet")
        return self._keys

    def miss(self, kid: str | None) -> None:
        """Says that a key is missing, so that the URL is read soon."""
        self._wanted.set()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed.set()
        self._wanted.set()

    def _try(self) -> bool:
        try:
            self._keys = _key_set(self._fetch(self._url))
        except Exception as error:
            LOG.warning("cannot read the JWKS of %s: %s", self._url, error)
            return False
        return True

    def _run(self) -> None:
        wait_ms = self._settings.refresh_ms if self._keys is not None else self._settings.retry_backoff_ms
        while not self._is_closed.is_set():
            self._wanted.wait(wait_ms / 1000)
            self._wanted.clear()
            if self._is_closed.is_set():
                return
            if self._try():
                wait_ms = self._settings.refresh_ms
                # Tokens with unknown keys must not make this thread read again and again.
                self._is_closed.wait(REST_S)
            else:
                longer = min(max(2 * wait_ms, self._settings.retry_backoff_ms), self._settings.retry_backoff_max_ms)
                wait_ms = min(longer, self._settings.refresh_ms)


def fetch_url(url: str) -> bytes:
    """Returns what is at a URL, up to JWKS_BYTES_MAX bytes.  Raises OSError and ValueError."""
    with urllib.request.urlopen(urllib.request.Request(url), timeout=TIMEOUT_S) as answer:
        data = answer.read(JWKS_BYTES_MAX + 1)
    if len(data) > JWKS_BYTES_MAX:
        raise ValueError("the answer is too long")
    return bytes(data)


Keys = FileKeys | UrlKeys


def keys_of(url: str, settings: JwtSettings) -> Keys:
    """Returns the keys of `sasl.oauthbearer.jwks.endpoint.url`.  Raises ConfigException."""
    parsed = urllib.parse.urlsplit(url)
    if parsed.scheme.lower() == "file":
        return FileKeys(urllib.request.url2pathname(parsed.path))
    if parsed.scheme.lower() not in ("http", "https"):
        raise ConfigException(
            f"The OAuth configuration option sasl.oauthbearer.jwks.endpoint.url contains an invalid protocol: {url}",
            hint="use https://... or file:///...",
        )
    return UrlKeys(url, settings)


class BrokerJwtValidator:
    """Checks signed tokens.  Thread-safe.

    Args:
        settings: The claims that a token must have.
        keys: The provider's keys.
        clock: The time.

    Raises:
        MissingPackageException: `joserfc` is not installed.
    """

    def __init__(self, settings: JwtSettings, keys: Keys, clock: Clock) -> None:
        need_joserfc()
        self._settings = settings
        self._keys = keys
        self._clock = clock

    def close(self) -> None:
        """Ends the reading of keys."""
        self._keys.close()

    def __call__(self, token: str) -> OAuthBearerToken:
        """Returns what a token says.  Raises InvalidToken."""
        if len([part for part in token.strip().split(".") if part]) != 3 or token.strip().count(".") != 2:
            raise InvalidToken("Malformed JWT provided; expected three sections (header, payload, and signature)")
        claims = self._verified(token.strip())
        now = self._clock.milliseconds() / 1000
        expires = self._check_times(claims, now)
        self._check_parties(claims)
        scopes = claims.get(self._settings.scope_claim_name)
        for scope in scopes if isinstance(scopes, list) else [scopes] if isinstance(scopes, str) else []:
            if not isinstance(scope, str) or not scope.strip():
                raise InvalidToken(f"{self._settings.scope_claim_name} value must be non-empty")
        subject = claims.get(self._settings.sub_claim_name)
        if not isinstance(subject, str) or not subject.strip():
            raise InvalidToken(f"{self._settings.sub_claim_name} value must be non-empty")
        return OAuthBearerToken(subject.strip(), int(expires * 1000))

    def _verified(self, token: str) -> dict[str, Any]:
        """Returns the claims of a token whose signature one of the keys confirms."""
        from joserfc import jws
        from joserfc.errors import JoseError

        try:
            header = jws.extract_compact(token.encode()).headers()
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in _EVERY:
                raise InvalidToken(f"the algorithm {algorithm!r} is not accepted")
            candidates = [
                key
                for key in self._keys.get().keys
                if algorithm in ALGORITHMS.get(key.key_type, ())
                and (kid is None or key.kid == kid)
                and key.get("alg", algorithm) == algorithm
                and key.get("use", "sig") == "sig"
            ]
            if not candidates:
                self._keys.miss(kid)
                raise InvalidToken(f"no key for a token with kid {kid!r} and algorithm {algorithm}")
            for key in candidates:
                try:
                    checked = jws.deserialize_compact(token.encode(), key, algorithms=[algorithm])
                except JoseError:
                    continue
                claims = json.loads(checked.payload)
                if not isinstance(claims, dict):
                    raise InvalidToken("the claims are no JSON object")
                return claims
        except InvalidToken:
            raise
        except (JoseError, KafkalogError, ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
            raise InvalidToken(f"Could not validate the access token: {type(error).__name__}: {error}") from error
        raise InvalidToken("JWS signature is invalid")

    def _check_times(self, claims: dict[str, Any], now: float) -> float:
        skew = self._settings.clock_skew_seconds
        expires, issued = _time(claims, "exp"), _time(claims, "iat")
        not_before = _time(claims, "nbf")
        if expires is None:
            raise InvalidToken("No Expiration Time (exp) claim present.")
        if issued is None:
            raise InvalidToken("No Issued At (iat) claim present.")
        if now - skew >= expires:
            raise InvalidToken("The JWT is no longer valid")
        if expires < issued or (not_before is not None and expires < not_before):
            raise InvalidToken("The Expiration Time (exp) claim value cannot be before iat or nbf")
        if not_before is not None and now + skew < not_before:
            raise InvalidToken("The JWT is not yet valid")
        if expires < 0 or issued < 0:
            raise InvalidToken("exp and iat must be non-negative")
        return expires

    def _check_parties(self, claims: dict[str, Any]) -> None:
        audiences = self._settings.audiences
        if audiences:
            found = claims.get("aud")
            given = found if isinstance(found, list) else [found]
            if not set(audiences) & {each for each in given if isinstance(each, str)}:
                raise InvalidToken("Audience (aud) claim doesn't contain an acceptable identifier")
        if self._settings.issuer is not None and claims.get("iss") != self._settings.issuer:
            raise InvalidToken("Issuer (iss) claim value doesn't match the expected value")


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise InvalidToken(f"Could not extract the '{name}' claim from the access token")
    return float(int(value))
