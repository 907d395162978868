"""OAUTHBEARER (RFC 7628): the client sends a token that somebody else has signed.

The exchange is here, and the validator of unsecured tokens, which anybody can make: a server uses it only if its
settings name it.  `jwt_validator` has the validator of signed tokens.
Source: OAuthBearerSaslServer, OAuthBearerClientInitialResponse, OAuthBearerUnsecuredJws (4.4.0).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafkalog.engine.files import Clock
from kafkalog.errors import ConfigException
from kafkalog.server.security.rates import java_round
from kafkalog.server.security.sasl import SaslAuthenticationException, SaslException

UNSECURED_HANDLER = "OAuthBearerUnsecuredValidatorCallbackHandler"


class InvalidToken(Exception):
    """The token is not accepted.  The text stays in the log; `scope` is the scope that was missing."""

    def __init__(self, message: str, scope: str | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class OAuthBearerToken(NamedTuple):
    """A token that was accepted: whom it names, and until when, in milliseconds since 1970."""

    principal_name: str
    lifetime_ms: int


Validator = Callable[[str], OAuthBearerToken]

_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_INITIAL = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,\x01(?P<kvpairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+)[ ]+(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


def parse_initial_response(response: bytes) -> tuple[str, str]:
    """Returns the token and the authorization id of the client's message.  Raises SaslException."""
    found = _INITIAL.fullmatch(response.decode("utf-8", "replace"))
    if found is None:
        raise SaslException("Invalid OAUTHBEARER client first message")
    pairs = dict(each.split("=", 1) for each in found["kvpairs"].split("\x01") if each)
    auth = pairs.get("auth")
    if auth is None:
        raise SaslException("Invalid OAUTHBEARER client first message: 'auth' not specified")
    parts = _AUTH.fullmatch(auth)
    if parts is None:
        raise SaslException("Invalid OAUTHBEARER client first message: invalid 'auth' format")
    if parts["scheme"].lower() != "bearer":
        raise ValueError("Invalid scheme in OAUTHBEARER client first message")
    return parts["token"], found["authzid"] or ""


class OAuthBearerSaslServer:
    """One exchange.  A refused token is told to the client as JSON; the client answers with one byte, and only then
    the exchange fails.

    Args:
        validate: Returns what a token says.  Raises InvalidToken.
        log: Takes why a token was refused.
    """

    def __init__(self, validate: Validator, log: Callable[[str], None]) -> None:
        self._validate = validate
        self._log = log
        self._told: str | None = None
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expires_ms: int | None = None

    def evaluate_response(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate_response`."""
        told, self._told = self._told, None
        if response == b"\x01" and told is not None:
            raise SaslAuthenticationException(told)
        value, authorization_id = parse_initial_response(response)
        try:
            token = self._validate(value)
        except InvalidToken as error:
            self._log(str(error))
            if error.scope is None:
                self._told = '{"status":"invalid_token"}'
            else:
                self._told = f'{{"status":"insufficient_scope", "scope":"{error.scope}"}}'
            return self._told.encode()
        if authorization_id not in ("", token.principal_name):
            raise SaslAuthenticationException(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({token.principal_name})"
            )
        self.authorization_id = token.principal_name
        self.credential_expires_ms = token.lifetime_ms
        self.is_complete = True
        return b""


# --- unsecured tokens ------------------------------------------------------------------------------------


def _json_part(split: str) -> dict[str, Any]:
    # Java's decoder takes a text with all of its padding, or with none.
    if re.fullmatch(r"[A-Za-z0-9_\-]*={0,2}", split) is None or ("=" in split and len(split) % 4):
        raise InvalidToken("malformed Base64 URL encoded value")
    try:
        data = base64.urlsafe_b64decode(split + "=" * (-len(split) % 4))
    except (binascii.Error, ValueError):
        raise InvalidToken("malformed Base64 URL encoded value") from None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidToken("malformed JSON") from None
    return found if isinstance(found, dict) else {}


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"The '{name}' claim was not of type Number")
    return float(value)


class UnsecuredValidator:
    """Accepts tokens without a signature.  Anybody can make one: for tests alone.

    Args:
        options: Options of the login module: `unsecuredValidatorPrincipalClaimName`, `...ScopeClaimName`,
            `...RequiredScope`, `...AllowableClockSkewMs`.
        clock: The time.

    Raises:
        ConfigException: An option has a wrong value.
    """

    def __init__(self, options: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._principal = options.get("unsecuredValidatorPrincipalClaimName", "").strip() or "sub"
        self._scope = options.get("unsecuredValidatorScopeClaimName", "").strip() or "scope"
        self._required = options.get("unsecuredValidatorRequiredScope", "").split()
        skew = options.get("unsecuredValidatorAllowableClockSkewMs", "").strip() or "0"
        if re.fullmatch(r"[0-9]{1,10}", skew) is None:
            raise ConfigException(f"Allowable clock skew millis must not be negative: {skew}")
        self._skew_ms = int(skew)

    def __call__(self, token: str) -> OAuthBearerToken:
        """Returns what a token says.  Raises InvalidToken."""
        if ".." in token:
            raise InvalidToken("Malformed compact serialization contains '..'")
        splits = token.split(".")
        if len(splits) != 3:
            raise InvalidToken(
                "Unsecured JWS compact serializations must have 3 dot-separated Base64URL-encoded values"
            )
        header, claims = _json_part(splits[0]), _json_part(splits[1])
        if header.get("alg") != "none":
            raise InvalidToken("Unsecured JWS must have 'none' for an algorithm")
        if splits[2]:
            raise InvalidToken("Unsecured JWS must not contain a digital signature")
        expires, issued, name = self._read(claims)
        now_ms = self._clock.milliseconds()
        if issued is not None and 1000 * issued > now_ms + self._skew_ms:
            raise InvalidToken(f"The Issued At value ({issued} seconds) is after the current time")
        if now_ms - self._skew_ms >= 1000 * expires:
            raise InvalidToken(f"The token has expired ({expires} seconds)")
        if issued is not None and expires <= issued:
            raise InvalidToken(f"The Expiration Time ({expires}) is not after the Issued At value ({issued})")
        self._check_scope(claims.get(self._scope))
        return OAuthBearerToken(name, java_round(expires * 1000))

    def _read(self, claims: Mapping[str, Any]) -> tuple[float, float | None, str]:
        expires = _number(claims, "exp")
        if expires is None:
            raise InvalidToken("No expiration time in JWT")
        if not abs(expires) < 1e15:
            raise InvalidToken("The expiration time is out of range")
        name = claims.get(self._principal)
        if not isinstance(name, str) or not name.strip():
            raise InvalidToken(f"No principal name in JWT claim: {self._principal}")
        return expires, _number(claims, "iat"), name

    def _check_scope(self, value: object) -> None:
        scopes = value if isinstance(value, list) else [] if value is None else [value]
        found = {str(scope).strip() for scope in scopes}
        for required in self._required:
            if required not in found:
                raise InvalidToken(
                    f"The provided scope was missing a required scope ({required})", f"[{', '.join(self._required)}]"
                )
