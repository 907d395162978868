"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server never sees a password, and proves itself too.

A `ScramCredential` has what the server keeps instead of the password.  Channel binding is not offered, as in Kafka.
Source: ScramSaslServer, ScramMessages, ScramFormatter, ScramControlManager (4.4.0).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from kafkalog.server.security.sasl import SCRAM_SHA_256, SCRAM_SHA_512, SaslAuthenticationException, SaslException

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
SALT_BYTES = 16


class ScramMechanism(IntEnum):
    """The mechanisms by their numbers in requests and records."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """The name in SASL."""
        return SCRAM_SHA_256 if self == ScramMechanism.SCRAM_SHA_256 else SCRAM_SHA_512

    @property
    def digest(self) -> str:
        """The name of the hash for hashlib."""
        return "sha256" if self == ScramMechanism.SCRAM_SHA_256 else "sha512"

    @classmethod
    def named(cls, name: str) -> ScramMechanism:
        """Returns the mechanism of a SASL name.  KeyError."""
        return {each.mechanism_name: each for each in cls}[name]


class ScramCredential(NamedTuple):
    """The values that a server keeps instead of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def credential_of_salted(
    mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """Returns the credential of a salted password, which is what AlterUserScramCredentials sends."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted_password, b"Server Key", mechanism.digest), iterations)


def credential_of(
    mechanism: ScramMechanism, password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """Returns the credential of a password, with a new random salt by default."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return credential_of_salted(mechanism, salt, salted, iterations)


# --- messages --------------------------------------------------------------------------------------------

_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,(?:m={_VALUE},)?"
    rf"n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS})"
)
_FINAL = re.compile(rf"c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS},p=(?P<proof>{_BASE64})")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def user_of(sasl_name: str) -> str:
    """Returns the user of a name in a message, where `=2C` is a comma and `=3D` is an equals sign."""
    return sasl_name.replace("=2C", ",").replace("=3D", "=")


class ScramSaslServer:
    """One exchange of SCRAM.

    Args:
        mechanism: Which hash.
        credential: Returns the credential of a user; None if it has none.
        nonce: Returns the server's part of the nonce.
    """

    credential_expires_ms: int | None = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential: Callable[[str], ScramCredential | None],
        nonce: Callable[[], str] = secrets.token_urlsafe,
    ) -> None:
        self._mechanism = mechanism
        self._credential_of = credential
        self._nonce_of = nonce
        self._credential: ScramCredential | None = None
        self._nonce = ""
        self._so_far = ""  # the messages that both sides sign
        self._is_failed = False
        self.is_complete = False
        self.authorization_id = ""

    def evaluate_response(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate_response`."""
        if self._is_failed or self.is_complete:
            raise SaslAuthenticationException("Unexpected challenge in Sasl server state")
        text = response.decode("utf-8", "replace")
        try:
            return self._first(text) if self._credential is None else self._final(text, self._credential)
        except SaslException:
            self._is_failed = True
            raise

    def _first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise SaslException("Invalid SCRAM client first message format")
        user = user_of(found["name"])
        extensions = dict(each.split("=", 1) for each in found["extensions"].split(",")[1:])
        if extensions.get("tokenauth", "").lower() == "true":
            raise SaslException(f"Token Authentication failed: Invalid tokenId : {user}")
        credential = self._credential_of(user)
        if credential is None:
            raise SaslException("Authentication failed: Invalid user credentials")
        if found["authzid"] not in (None, user):
            raise SaslAuthenticationException(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if credential.iterations < ITERATIONS_MIN:
            raise SaslException(
                f"Iterations {credential.iterations} is less than the minimum {ITERATIONS_MIN} "
                f"for {self._mechanism.name}"
            )
        self._credential = credential
        self.authorization_id = user
        self._nonce = found["nonce"] + self._nonce_of()
        answer = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        told = "".join(f",{key}={value}" for key, value in extensions.items())
        self._so_far = f"n={found['name']},r={found['nonce']}{told},{answer}"
        return answer.encode()

    def _final(self, text: str, credential: ScramCredential) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise SaslException("Invalid SCRAM client final message format")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise SaslException("Invalid client nonce in the final client message.")
        digest = self._mechanism.digest
        channel = _base64(base64.b64decode(found["channel"]))
        signed = f"{self._so_far},c={channel},r={found['nonce']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        proof = base64.b64decode(found["proof"])
        if len(proof) != len(signature):
            raise ValueError("Argument arrays must be of the same length")
        client_key = bytes(one ^ other for one, other in zip(signature, proof, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key):
            raise SaslException("Invalid client credentials")
        self.is_complete = True
        return f"v={_base64(hmac.digest(credential.server_key, signed, digest))}".encode()
