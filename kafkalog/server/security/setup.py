"""Gives a server its security: TLS and SASL for each listener, the authorizer and the quotas.

    secure(broker, listeners, at_close)

Settings may be of a listener and of a mechanism (`listener.name.sasl_ssl.plain.sasl.jaas.config`).  Two settings are
kafkalog's own: `users`, a mapping of names to passwords or text as `alice:secret,bob:other`, and `users.file`; both are
for PLAIN and SCRAM on every listener.  Source: ChannelBuilders, SaslChannelBuilder, SslChannelBuilder (4.4.0).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalog._face.cluster_metadata import ClusterMetadata, read_cluster_metadata
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import ConfigException
from kafkalog.server.listener import is_loopback
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, ProtocolError, Request, Values
from kafkalog.server.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType, StandardAcl
from kafkalog.server.security.authenticator import Mechanism, SaslServerAuthenticator
from kafkalog.server.security.authorizer import StandardAuthorizer
from kafkalog.server.security.distinguished_name import subject_of
from kafkalog.server.security.jaas import parse_jaas
from kafkalog.server.security.jwt_validator import BrokerJwtValidator, JwtSettings, keys_of
from kafkalog.server.security.keys import SCOPED, SECURITY_KEYS, STANDARD_AUTHORIZER
from kafkalog.server.security.oauthbearer import UNSECURED_HANDLER, OAuthBearerSaslServer, UnsecuredValidator, Validator
from kafkalog.server.security.principal import USER_TYPE
from kafkalog.server.security.principal_mapper import SslPrincipalMapper
from kafkalog.server.security.quotas import Quotas, QuotaSettings
from kafkalog.server.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN, PlainSaslServer, SaslServerFactory
from kafkalog.server.security.scram import ScramCredential, ScramMechanism, ScramSaslServer, credential_of
from kafkalog.server.security.tls import server_context
from kafkalog.server.server_state import ServerState, StateFile, entity_of

if TYPE_CHECKING:
    from kafkalog._face.store_home import StoreHome
    from kafkalog.server.broker import Broker
    from kafkalog.server.listener import Listener
    from kafkalog.server.resource_configs import ConfigsByResource
    from kafkalog.server.settings import ServerSettings

_STATE_FILE = "kept"  # in Broker.state
_KEYS = {key.name: key for key in SECURITY_KEYS}
_LINES = Lines("kafkalog.server")


def secure(broker: Broker, listeners: list[Listener], at_close: list[Callable[[], object]]) -> None:
    """Sets what the broker and its listeners need.

    Args:
        broker: The broker; gets its authorizer and its quotas.
        listeners: The listeners; each gets its TLS and its authenticators.
        at_close: Gets what the server calls when it closes.

    Raises:
        ConfigException: Settings contradict each other, or a file cannot be read.
        MissingPackageException: OAUTHBEARER or PKCS12, without the extra `kafkalog[oauth]`.
    """
    settings = broker.settings
    broker.quotas = Quotas(QuotaSettings(*(settings[name] for name in _QUOTA_NAMES)), broker.clock)
    authorizer = _authorizer(settings)
    if authorizer is not None:
        broker.authorizer = authorizer
    state_file = state_file_of(broker)
    users = users_of(settings, broker.home)
    for listener in listeners:
        security = ListenerSecurity(listener, broker, state_file, users)
        security.apply()
        at_close.extend(security.at_close)


_QUOTA_NAMES = (
    "quota.window.num",
    "quota.window.size.seconds",
    "controller.quota.window.num",
    "controller.quota.window.size.seconds",
)


def state_file_of(broker: Broker) -> StateFile:
    """Returns the kept state of a broker, which is opened at the first call.  Raises what `StateFile` raises."""
    known: StateFile | None = broker.state.get(_STATE_FILE)
    if known is not None:
        return known
    home = broker.home
    state_file = StateFile(home.log_dirs, home.files, imported=partial(_imported, home))
    broker.state[_STATE_FILE] = state_file

    def apply(state: ServerState) -> None:
        broker.quotas.replace(state.quotas)
        if isinstance(broker.authorizer, StandardAuthorizer):
            broker.authorizer.replace(state.acls)
        broker.configs.take(state.configs)

    state_file.watch(apply)
    return state_file


def save_configs(broker: Broker, configs: ConfigsByResource) -> None:
    """Stores the settings that clients gave to brokers and groups.  KafkaStorageException."""
    state_file_of(broker).change(lambda state: state._replace(configs=configs))


def _imported(home: StoreHome) -> ServerState:
    """Returns what a broker's metadata log in these directories has."""
    found = read_cluster_metadata(home.log_dirs, home.files)
    if found is None:
        return ServerState()
    if found.problem is not None:
        _LINES.warning("users, ACLs and quotas of the cluster in %s are not taken over: %s", home.place, found.problem)
        return ServerState()
    return state_of(found)


def state_of(found: ClusterMetadata) -> ServerState:
    """Returns the ACLs, credentials and quotas of a cluster."""

    def number(value: object) -> int:
        assert isinstance(value, int)
        return value

    acls = frozenset(
        StandardAcl(
            ResourceType(number(row["resourceType"])),
            str(row["resourceName"]),
            PatternType(number(row["patternType"])),
            str(row["principal"]),
            str(row["host"]),
            AclOperation(number(row["operation"])),
            AclPermissionType(number(row["permissionType"])),
        )
        for row in found.acls.values()
    )

    def octets(value: object) -> bytes:
        assert isinstance(value, bytes | bytearray | memoryview)
        return bytes(value)

    scram = {
        (name, ScramMechanism(mechanism)): ScramCredential(
            octets(row["salt"]), octets(row["storedKey"]), octets(row["serverKey"]), number(row["iterations"])
        )
        for (name, mechanism), row in found.scram.items()
    }
    quotas = {entity_of(entity): dict(values) for entity, values in found.quotas.items()}
    return ServerState(acls, scram, quotas)


def _authorizer(settings: ServerSettings) -> StandardAuthorizer | None:
    name = settings["authorizer.class.name"].strip()
    if not name:
        return None
    if name not in (STANDARD_AUTHORIZER, "StandardAuthorizer"):
        raise ConfigException(
            f"Invalid value {name} for configuration authorizer.class.name: Class {name} could not be found.",
            hint=f"use {STANDARD_AUTHORIZER}",
        )
    users = [each.strip() for each in settings["super.users"].split(";") if each.strip()]
    return StandardAuthorizer(users, allow_everyone_if_no_acl_found=settings["allow.everyone.if.no.acl.found"])


# --- users -----------------------------------------------------------------------------------------------


def users_of(settings: ServerSettings, home: StoreHome) -> dict[str, str]:
    """Returns the passwords of `users` and `users.file`.  Raises ConfigException, whose text has no password."""
    given = settings.originals.get("users")
    rows: list[tuple[str, str, str]] = []  # where it is, the name, the password
    if isinstance(given, Mapping):
        rows += [("users", str(name), str(password)) for name, password in given.items()]
    elif given is not None:
        rows += _users_in("users: entry", _entries(given))
    path = settings["users.file"]
    if path is not None:
        try:
            text = home.files.read_bytes(path).decode("utf-8-sig")
        except OSError as error:
            raise ConfigException(f"users.file: cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigException(f"users.file: {path} is no text in UTF-8") from None
        lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
        rows += _users_in(f"users.file: {path}, line", [row for row in lines if row[1] and row[1][0] != "#"])
    found: dict[str, str] = {}
    for where, name, password in rows:
        if not name or not password:
            raise ConfigException(f"{where}: a name or a password is empty", hint=_USER_HINT)
        if name in found:
            raise ConfigException(f"{where}: {name} is there twice", hint="a user has one password")
        found[name] = password
    return found


_USER_HINT = "an entry is NAME:PASSWORD"


def _entries(given: object) -> list[tuple[int, str]]:
    """Returns the entries of `users` with their numbers."""
    if isinstance(given, str):
        given = given.split(",")
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ConfigException(
            f"users: found a value of type {type(given).__name__}, expected names with their passwords",
            hint=f"a mapping of names to passwords; in a list or a text {_USER_HINT}",
        )
    return list(enumerate(given, start=1))


def _users_in(what: str, entries: list[tuple[int, str]]) -> Iterator[tuple[str, str, str]]:
    for number, entry in entries:
        name, colon, password = entry.partition(":")
        if not colon:
            raise ConfigException(f"{what} {number} has no colon", hint=_USER_HINT)
        yield f"{what} {number}", name.strip(), password.strip()


class Passwords:
    """The SCRAM credentials of users: those that are kept, and those of users in the settings, made at first use."""

    def __init__(self, state_file: StateFile, users: Mapping[str, str]) -> None:
        self._state_file = state_file
        self._users = users
        self._made: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Returns the credential of a user; None if there is none."""
        key = user, mechanism
        kept = self._state_file.state.scram.get(key)
        if kept is not None:
            return kept
        password = self._users.get(user)
        if password is None:
            return None
        if key not in self._made:
            self._made[key] = credential_of(mechanism, password)
        return self._made[key]


# --- listeners -------------------------------------------------------------------------------------------


class ListenerSecurity:
    """The security of one listener.

    Attributes:
        at_close: The functions that the server calls when it closes.
    """

    def __init__(self, listener: Listener, broker: Broker, state_file: StateFile, users: Mapping[str, str]) -> None:
        self._listener = listener
        self._broker = broker
        self._users = users
        self._state_file = state_file
        self._passwords = Passwords(state_file, users)
        self._prefix = f"listener.name.{listener.endpoint.listener.lower()}."
        self.at_close: list[Callable[[], object]] = []

    def get(self, name: str, mechanism: str | None = None) -> Any:
        """Returns a setting by Kafka's name, of the mechanism, of the listener, or of the server."""
        originals = self._broker.settings.originals
        scope = "" if mechanism is None else mechanism.lower() + "."
        for candidate in (self._prefix + scope + name, self._prefix + name, scope + name, name):
            # A login module is always that of a mechanism.
            if candidate in originals and not (name in SCOPED[:2] and not candidate.endswith(scope + name)):
                return _KEYS[name].parse(originals[candidate])
        return _KEYS[name].parse(_KEYS[name].default)

    def apply(self) -> None:
        """Sets the listener's TLS and its authenticators."""
        protocol = self._listener.endpoint.security_protocol
        if protocol in ("SSL", "SASL_SSL"):
            # With SASL, a certificate is asked for only if the listener's own setting says so.
            own = self._prefix + "ssl.client.auth" in self._broker.settings.originals
            self._listener.tls = server_context(
                lambda name: (
                    None if name == "ssl.client.auth" and protocol == "SASL_SSL" and not own else self.get(name)
                )
            )
        if protocol == "SSL":
            mapper = SslPrincipalMapper(self.get("ssl.principal.mapping.rules"))
            self._listener.tls_done = partial(_set_principal, mapper)
            self._warn_of_public_authorities()
        if protocol.startswith("SASL_"):
            self._listener.new_authenticator = self._authenticators()

    def _warn_of_public_authorities(self) -> None:
        auth, stores = self.get("ssl.client.auth"), ("location", "certificates")
        if str(auth).lower() == "required" and not any(self.get(f"ssl.truststore.{each}") for each in stores):
            _LINES.warning(
                "%s: clients need a certificate of one of this system's authorities: ssl.truststore.location names "
                "your own",
                self._listener.endpoint.listener,
            )

    def _authenticators(self) -> Callable[[ConnectionInfo], SaslServerAuthenticator]:
        mechanisms = {
            name: Mechanism(factory, self.get("connections.max.reauth.ms", name))
            for name, factory in self._factories().items()
        }
        endpoint = self._listener.endpoint
        if endpoint.security_protocol == "SASL_PLAINTEXT" and not is_loopback(endpoint.host):
            readable = [name for name in (PLAIN, OAUTHBEARER) if name in mechanisms]
            if readable:
                _LINES.warning(
                    "%s: the network can read what clients log in with (%s): use TLS, or SCRAM alone",
                    *(endpoint.listener, ", ".join(readable)),
                )
        broker, size = self._broker, self.get("sasl.server.max.receive.size")
        assert broker.apis is not None
        apis: Any = broker.apis

        def api_versions(request: Request) -> Values:
            answer: Values = apis.entry(ApiKeys.API_VERSIONS).handler(broker, request)
            return answer

        def new(info: ConnectionInfo) -> SaslServerAuthenticator:
            return SaslServerAuthenticator(mechanisms, apis, api_versions, clock=broker.clock, receive_bytes_max=size)

        return new

    def _factories(self) -> dict[str, SaslServerFactory]:
        names = self.get("sasl.enabled.mechanisms")
        given = any(
            prefix + "sasl.enabled.mechanisms" in self._broker.settings.originals for prefix in ("", self._prefix)
        )
        found: dict[str, SaslServerFactory] = {}
        for name in names:
            if name not in MECHANISMS:
                raise ConfigException(
                    f"sasl.enabled.mechanisms: found {name}, expected some of {', '.join(MECHANISMS)}",
                    hint="GSSAPI (Kerberos) is not supported" if name == "GSSAPI" else None,
                )
            if name == PLAIN:
                users = self._plain_users()
                if users:
                    found[name] = partial(PlainSaslServer, users)
                elif given:
                    raise ConfigException(
                        f"{self._listener.endpoint.listener}: PLAIN is enabled, but there are no users",
                        hint='set users="alice:secret", or '
                        f'{self._prefix}plain.sasl.jaas.config="... required user_alice=\\"secret\\";"',
                    )
            elif name == OAUTHBEARER:
                validate = self._validator()
                found[name] = partial(OAuthBearerSaslServer, validate, _token_refused)
            else:
                mechanism = ScramMechanism.named(name)
                found[name] = partial(ScramSaslServer, mechanism, partial(self._passwords.credential, mechanism))
        if OAUTHBEARER not in found and PLAIN not in found and not self._users and not self._state_file.state.scram:
            _LINES.warning(
                "%s: nobody can log in, because there are no users: set users or create SCRAM credentials",
                self._listener.endpoint.listener,
            )
        return found

    def _options(self, mechanism: str) -> dict[str, str]:
        text = self.get("sasl.jaas.config", mechanism)
        return {} if text is None else parse_jaas(text).options

    def _plain_users(self) -> dict[str, str]:
        options = self._options(PLAIN)
        named = {key.removeprefix("user_"): value for key, value in options.items() if key.startswith("user_")}
        return {**self._users, **named}

    def _validator(self) -> Validator:
        handler = str(self.get("sasl.server.callback.handler.class", OAUTHBEARER) or "").rpartition(".")[2]
        if handler == UNSECURED_HANDLER:
            _LINES.warning("%s accepts unsecured tokens: anybody may be anybody", self._listener.endpoint.listener)
            return UnsecuredValidator(self._options(OAUTHBEARER), self._broker.clock)
        get = partial(self.get, mechanism=OAUTHBEARER)
        url = get("sasl.oauthbearer.jwks.endpoint.url")
        if not url:
            raise ConfigException(
                'The OAuth validator for the broker requires "sasl.oauthbearer.jwks.endpoint.url" to be configured so '
                "that JWT signatures can be verified, but it was not set.",
                hint="for tests, unsecured tokens are accepted with oauthbearer.sasl.server.callback.handler.class="
                + UNSECURED_HANDLER,
            )
        for what, value in (
            ("audience", "sasl.oauthbearer.expected.audience"),
            ("issuer", "sasl.oauthbearer.expected.issuer"),
        ):
            if not get(value) and not get(f"sasl.oauthbearer.allow.unverified.{what}"):
                raise ConfigException(
                    f'The OAuth validator for the broker requires "{value}" to be configured so that the token\'s '
                    f"{what} can be verified, but it was not set.",
                    hint=f"sasl.oauthbearer.allow.unverified.{what}=true accepts any {what}",
                )
        settings = JwtSettings(
            get("sasl.oauthbearer.expected.audience"),
            get("sasl.oauthbearer.expected.issuer"),
            get("sasl.oauthbearer.clock.skew.seconds"),
            get("sasl.oauthbearer.scope.claim.name"),
            get("sasl.oauthbearer.sub.claim.name"),
            get("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            get("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            get("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        )
        validator = BrokerJwtValidator(settings, keys_of(url, settings), self._broker.clock)
        self.at_close.append(validator.close)
        return validator


def _token_refused(why: str) -> None:
    _LINES.warning("a token was refused: %s", why)


def _set_principal(mapper: SslPrincipalMapper, info: ConnectionInfo, sock: ssl.SSLSocket) -> None:
    """Names the client by its certificate.  ProtocolError if no rule names it."""
    certificate = sock.getpeercert(binary_form=True)
    if not certificate:
        return
    try:
        subject = subject_of(certificate)
    except ValueError as error:
        raise ProtocolError(f"the client's certificate cannot be read: {error}") from error
    name = mapper.get_name(subject)
    if name is None:
        raise ProtocolError(f"no rule of ssl.principal.mapping.rules applies to {subject}")
    info.principal = KafkaPrincipal(USER_TYPE, name)
