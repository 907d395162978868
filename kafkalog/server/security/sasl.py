"""The server's side of SASL mechanisms, and PLAIN, the simplest one.

A mechanism evaluates the client's tokens one after the other until it is complete.  It raises
`SaslAuthenticationException` with a text that the client may read, or `SaslException`, whose text stays in the log:
the client then learns only that its credentials are invalid.  Any other error is a bug of the client or of ours, and
ends the connection without an answer.

Source: PlainSaslServer, PlainServerCallbackHandler, SaslServerAuthenticator (4.4.0).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Protocol

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class SaslException(Exception):
    """The exchange failed.  The text is not for the client."""


class SaslAuthenticationException(SaslException):
    """The exchange failed.  The client gets the text."""


class IllegalSaslStateException(Exception):
    """A request came that is not allowed where the exchange is.  The client gets the text."""


class SaslServer(Protocol):
    """One exchange of a mechanism.

    Attributes:
        is_complete: Whether the client is known.
        authorization_id: The user, once it is.
        credential_expires_ms: Until when the credential is valid, in milliseconds since 1970; None for no end.
    """

    is_complete: bool
    authorization_id: str
    credential_expires_ms: int | None

    def evaluate_response(self, response: bytes) -> bytes:
        """Takes a token of the client and returns the server's next token.  Raises SaslException."""


SaslServerFactory = Callable[[], SaslServer]


class PlainSaslServer:
    """PLAIN: the client sends its name and its password.

    Args:
        users: The password of each user.
    """

    credential_expires_ms: int | None = None

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.is_complete = False
        self.authorization_id = ""

    def evaluate_response(self, response: bytes) -> bytes:
        """See `SaslServer.evaluate_response`."""
        tokens = response.decode("utf-8", "replace").split("\0", 4)
        if len(tokens) != 3:
            raise SaslAuthenticationException(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(tokens), 4)}"
            )
        authorization_id, username, password = tokens
        if not username:
            raise SaslAuthenticationException("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationException("Authentication failed: password not specified")
        if not is_password(self._users.get(username), password):
            raise SaslAuthenticationException("Authentication failed: Invalid username or password")
        if authorization_id not in ("", username):
            raise SaslAuthenticationException(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.authorization_id = username
        self.is_complete = True
        return b""


def is_password(expected: str | None, given: str) -> bool:
    """Compares a password in a time that does not depend on where it differs; None for a user that does not exist."""
    same = hmac.compare_digest((expected or "").encode(), given.encode("utf-8", "surrogatepass"))
    return same and expected is not None
