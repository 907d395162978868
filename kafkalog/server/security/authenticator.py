"""The frames of a connection until its client is known: Kafka's SaslServerAuthenticator.

    INITIAL -> [ApiVersions] -> SaslHandshake -> SaslAuthenticate ... -> COMPLETE

Before the handshake only ApiVersions and SaslHandshake are allowed; after it, tokens.  A handshake of version 0 is
followed by bare tokens, one of version 1 by SaslAuthenticate requests.  A refused client gets an answer, if its
version has one, and the connection ends after a delay, which the connection's owner adds.  Bytes that are no such
request end the connection at once, without an answer (`ProtocolError`).

A session may have a lifetime, from `connections.max.reauth.ms` or from the credential itself.  A client that begins
again with SaslHandshake authenticates anew on the same connection, with the same mechanism and as the same principal.
Source: SaslServerAuthenticator, KafkaChannel.maybeBeginServerReauthentication, Processor (4.4.0).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.files import Clock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys, apis
from kafkalog.server.connection import Step
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, ProtocolError, Request, Values
from kafkalog.server.security.principal import USER_TYPE
from kafkalog.server.security.sasl import (
    IllegalSaslStateException,
    SaslAuthenticationException,
    SaslException,
    SaslServer,
    SaslServerFactory,
)

if TYPE_CHECKING:
    from kafkalog.server.api import Apis

REAUTHENTICATION_INTERVAL_MS = 1000


class State(enum.Enum):
    """Where the exchange is."""

    INITIAL_REQUEST = enum.auto()
    HANDSHAKE_OR_VERSIONS_REQUEST = enum.auto()
    HANDSHAKE_REQUEST = enum.auto()
    AUTHENTICATE = enum.auto()
    COMPLETE = enum.auto()
    FAILED = enum.auto()
    REAUTH_PROCESS_HANDSHAKE = enum.auto()
    REAUTH_BAD_MECHANISM = enum.auto()


class Mechanism(NamedTuple):
    """An enabled mechanism: how an exchange begins, and `connections.max.reauth.ms`, 0 for no limit."""

    new_server: SaslServerFactory
    max_reauth_ms: int = 0


class SaslServerAuthenticator:
    """One connection's authentication.

    Args:
        mechanisms: The enabled mechanisms by name, in the order in which clients are told.
        apis: Reads requests and writes answers.
        answer_api_versions: Returns the answer to an ApiVersions request.
        clock: The time.
        receive_bytes_max: The largest frame, `sasl.server.max.receive.size`.

    Attributes:
        is_complete: Whether the client is known now; not while it authenticates anew.
        expires_ms: Until when, in milliseconds since 1970; 0 for no end.
        receive_bytes_max: As given.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, Mechanism],
        apis: Apis,
        answer_api_versions: Callable[[Request], Values],
        *,
        clock: Clock,
        receive_bytes_max: int = 524_288,
    ) -> None:
        self._mechanisms = mechanisms
        self._apis = apis
        self._answer_api_versions = answer_api_versions
        self._clock = clock
        self.receive_bytes_max = receive_bytes_max
        self.state = State.INITIAL_REQUEST
        self.expires_ms = 0
        self._mechanism = ""
        self._server: SaslServer | None = None
        self._has_headers = False
        self._previous: tuple[str, KafkaPrincipal] | None = None  # mechanism and principal, while authenticating anew
        self._begun_again_ms: int | None = None
        self._bad_mechanism = ""

    @property
    def is_complete(self) -> bool:
        """Whether the client is known now."""
        return self.state is State.COMPLETE

    def wants(self, api_key: int) -> bool:
        """Returns whether a request after the authentication begins a new one.  If it does, the request comes next to
        `handle`."""
        if api_key != ApiKeys.SASL_HANDSHAKE or not self.is_complete or not self.expires_ms:
            return False
        now_ms = self._clock.milliseconds()
        begun = self._begun_again_ms
        if begun is not None and now_ms - begun < REAUTHENTICATION_INTERVAL_MS:
            return False
        self._begun_again_ms = now_ms
        self.state = State.REAUTH_PROCESS_HANDSHAKE
        return True

    def handle(self, frame: memoryview, info: ConnectionInfo, now_ms: int) -> Step:
        """Takes a frame.

        Returns:
            The frame to send back, and why the authentication failed.

        Raises:
            ProtocolError: The frame is not allowed here; the connection ends without an answer.
        """
        if self.state is State.REAUTH_PROCESS_HANDSHAKE:
            self._previous = self._mechanism, info.principal
            self._server, self._has_headers = None, False
        try:
            if self.state is State.REAUTH_BAD_MECHANISM:
                raise SaslAuthenticationException(self._bad_mechanism)
            if self.state is State.AUTHENTICATE:
                return self._token(frame, info)
            return self._kafka_request(frame, info)
        except SaslAuthenticationException as error:
            self.state = State.FAILED
            return Step(None, str(error))
        except ProtocolError:
            self.state = State.FAILED
            raise
        except (SaslException, ValueError) as error:
            self.state = State.FAILED
            raise ProtocolError(f"Failed during {self._which}: {error}", is_quiet=True) from error

    @property
    def _which(self) -> str:
        return "authentication" if self._previous is None else "re-authentication"

    # --- before the tokens -----------------------------------------------------------------------------

    def _kafka_request(self, frame: memoryview, info: ConnectionInfo) -> Step:
        key = int.from_bytes(frame[:2], "big", signed=True)
        if key not in (ApiKeys.API_VERSIONS, ApiKeys.SASL_HANDSHAKE):
            known = apis().get(key)
            why = f"Unexpected Kafka request of type {known.name if known else key} during SASL handshake."
            if self.state is State.INITIAL_REQUEST:
                why += (
                    " Potential reasons: kafka client configured with the wrong security protocol, it does not "
                    "support KIP-43 or it is not a kafka client."
                )
            raise ProtocolError(why, is_quiet=True)
        request = self._apis.read(frame, info)
        if self.state is State.INITIAL_REQUEST:
            self.state = State.HANDSHAKE_OR_VERSIONS_REQUEST
        return self._api_versions(request) if key == ApiKeys.API_VERSIONS else self._handshake(request)

    def _api_versions(self, request: Request) -> Step:
        if self.state is not State.HANDSHAKE_OR_VERSIONS_REQUEST:
            raise ProtocolError(
                f"Unexpected ApiVersions request received during SASL authentication state {self.state.name}"
            )
        answer = self._answer_api_versions(request)
        if answer.get("errorCode", Errors.NONE) == Errors.NONE:
            self.state = State.HANDSHAKE_REQUEST
        return Step(self._apis.write(request, answer))

    def _handshake(self, request: Request) -> Step:
        mechanism = request.body["mechanism"]
        if request.api_version >= 1:
            self._has_headers = True
        names = list(self._mechanisms)
        if mechanism not in self._mechanisms:
            if self._previous is not None:  # Kafka closes at once if the first request of a new authentication fails
                raise ProtocolError(f"Unsupported SASL mechanism {mechanism}", is_quiet=True)
            self.state = State.FAILED
            answer: Values = {"errorCode": Errors.UNSUPPORTED_SASL_MECHANISM, "mechanisms": names}
            return Step(self._apis.write(request, answer), f"Unsupported SASL mechanism {mechanism}")
        if self._previous is not None and self._previous[0] != mechanism:
            self._bad_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._previous[0]}'"
            )
            self.state = State.REAUTH_BAD_MECHANISM
        else:
            self._mechanism = mechanism
            self._server = self._mechanisms[mechanism].new_server()
            self.state = State.AUTHENTICATE
        return Step(self._apis.write(request, {"errorCode": Errors.NONE, "mechanisms": names}))

    # --- tokens ----------------------------------------------------------------------------------------

    def _token(self, frame: memoryview, info: ConnectionInfo) -> Step:
        if not self._has_headers:
            return self._bare_token(frame, info)
        request = self._apis.read(frame, info)
        if request.api_key != ApiKeys.SASL_AUTHENTICATE:
            name = apis()[request.api_key].name
            error = IllegalSaslStateException(f"Unexpected Kafka request of type {name} during SASL authentication.")
            self.state = State.FAILED
            refusal = error_response(request, error)
            return Step(None if refusal is None else self._apis.write(request, refusal), str(error))
        server = self._current
        try:
            token = server.evaluate_response(bytes(request.body["authBytes"]))
            lifetime_ms = self._complete(info) if server.is_complete else 0
        except SaslAuthenticationException as error:
            return self._refused(request, str(error), str(error))
        except SaslException as error:
            told = f"Authentication failed during {self._which} due to invalid credentials with SASL mechanism "
            return self._refused(request, told + self._mechanism, str(error))
        answer: Values = {"errorCode": Errors.NONE, "authBytes": token, "sessionLifetimeMs": lifetime_ms}
        return Step(self._apis.write(request, answer))

    def _bare_token(self, frame: memoryview, info: ConnectionInfo) -> Step:
        """A token without a header, after a handshake of version 0."""
        server = self._current
        token = server.evaluate_response(bytes(frame))
        if server.is_complete:
            self._complete(info)
        return Step([token])

    def _refused(self, request: Request, told: str, why: str) -> Step:
        self.state = State.FAILED
        answer: Values = {"errorCode": Errors.SASL_AUTHENTICATION_FAILED, "errorMessage": told}
        return Step(self._apis.write(request, answer), f"{told} ({why})" if why != told else told)

    @property
    def _current(self) -> SaslServer:
        assert self._server is not None, self.state
        return self._server

    def _complete(self, info: ConnectionInfo) -> int:
        """Ends the exchange and returns the lifetime of the session in ms, 0 for no end."""
        server = self._current
        principal = KafkaPrincipal(USER_TYPE, server.authorization_id)
        if self._previous is not None and self._previous[1] != principal:
            before = self._previous[1]
            raise SaslAuthenticationException(
                f"Cannot change principals during re-authentication from {before.principal_type}.{before.name}: "
                f"{principal.principal_type}.{principal.name}"
            )
        now_ms = self._clock.milliseconds()
        limits = [self._mechanisms[self._mechanism].max_reauth_ms or None]
        if server.credential_expires_ms is not None:
            limits.append(server.credential_expires_ms - now_ms)
        found = [limit for limit in limits if limit is not None]
        lifetime_ms = max(min(found), 0) if found else 0
        self.expires_ms = now_ms + lifetime_ms if found else 0
        info.principal = principal
        self.state = State.COMPLETE
        self._previous = None
        self._server = None
        return lifetime_ms
