"""TLS from Kafka's settings: `ssl.SSLContext` of `ssl.keystore.*`, `ssl.truststore.*` and their companions.

Keys and certificates are PEM, in a file or in the setting itself, or PKCS12 (which Java's keytool writes under the
name JKS too; it needs the package `cryptography`).  A PEM file is also taken if no type was given, where Kafka fails.
Java's old JKS format is refused, with the command that converts it.
Source: DefaultSslEngineFactory, SslFactory, SaslChannelBuilder (4.4.0).
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Callable
from typing import Any

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.needs import need_cryptography
from kafkalog.errors import ConfigException, InvalidConfigurationException

Get = Callable[[str], Any]  # a setting by Kafka's name; None if it has no value
_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JKS = b"\xfe\xed\xfe\xed"
_PEM = re.compile(rb"^-----BEGIN [A-Z ]+-----", re.MULTILINE)
_CONVERT = "keytool -importkeystore -srckeystore {path} -destkeystore new.p12 -deststoretype PKCS12"


def server_context(get: Get) -> ssl.SSLContext:
    """Returns the context of a listener.

    Args:
        get: Returns a setting of the listener by Kafka's name, such as "ssl.client.auth".

    Raises:
        ConfigException: The settings contradict each other, or a file cannot be read.
        MissingPackageException: A PKCS12 file, and the package `cryptography` is not installed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.minimum_version, context.maximum_version = _versions(get)
    _load_keystore(context, get)
    _load_truststore(context, get)
    auth = str(get("ssl.client.auth") or "none").lower()
    if auth not in _CLIENT_AUTH:
        raise ConfigException(
            f"Invalid value {auth} for configuration ssl.client.auth: String must be one of: required, requested, none"
        )
    context.verify_mode = _CLIENT_AUTH[auth]
    suites = get("ssl.cipher.suites")
    if suites:
        _set_suites(context, suites)
    return context


def _versions(get: Get) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    names = get("ssl.enabled.protocols") or list(_VERSIONS)[2:]
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown:
        raise ConfigException(
            f"Invalid value {','.join(names)} for configuration ssl.enabled.protocols: {unknown[0]} is no protocol",
            hint=f"use some of {', '.join(_VERSIONS)}",
        )
    enabled = sorted(_VERSIONS[name] for name in names)
    if get("ssl.protocol") == "TLSv1.2":
        enabled = [each for each in enabled if each <= ssl.TLSVersion.TLSv1_2] or enabled
    return enabled[0], enabled[-1]


def _set_suites(context: ssl.SSLContext, suites: list[str]) -> None:
    """Takes the names of Java (IANA) and of OpenSSL.  OpenSSL always offers the suites of TLS 1.3."""
    named = [openssl_suite(name) for name in suites if not re.match(r"TLS_(AES|CHACHA20)_", name)]
    if named:
        try:
            context.set_ciphers(":".join(named))
        except ssl.SSLError as error:
            raise ConfigException(
                f"Invalid value {','.join(suites)} for configuration ssl.cipher.suites: {error}"
            ) from error


def openssl_suite(name: str) -> str:
    """Returns OpenSSL's name of a cipher suite of TLS 1.2.

    Example:
        >>> from kafkalog.server.security.tls import openssl_suite
        >>> openssl_suite("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
        'ECDHE-RSA-AES128-GCM-SHA256'
    """
    found = re.fullmatch(r"TLS_(?:(?P<exchange>\w+?)_)?WITH_(?P<cipher>\w+)", name)
    if found is None:
        return name
    cipher = re.sub(r"AES_(\d+)", r"AES\1", found["cipher"]).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    exchange = "" if found["exchange"] in (None, "RSA") else found["exchange"] + "_"
    return (exchange + cipher).replace("_", "-")


# --- keys ------------------------------------------------------------------------------------------------


def _load_keystore(context: ssl.SSLContext, get: Get) -> None:
    kind = _kind(get, "keystore")
    path, password = get("ssl.keystore.location"), get("ssl.keystore.password")
    key, chain, key_password = (
        get("ssl.keystore.key"),
        get("ssl.keystore.certificate.chain"),
        get("ssl.key.password"),
    )
    _check_keystore(kind, path, password, key, chain)
    if key is not None:
        pem = key + "\n" + chain
        _load_chain(context, pem, key_password, "Invalid PEM keystore configs in ssl.keystore.key")
    elif path is None:
        raise ConfigException(
            "A listener with TLS needs a certificate and its key",
            hint="set ssl.keystore.location to a file with both, as PEM",
        )
    elif kind == "PEM":
        pem = _text(path, "PEM SSL keystore")
        _load_file(context, path, pem, key_password, f"Failed to load PEM SSL keystore {path}")
    else:
        key_pem, certificates = _read_pkcs12(path, password, "SSL keystore")
        if key_pem is None or not certificates:
            raise ConfigException(f"Failed to load SSL keystore {path}: it has no private key with a certificate")
        _load_chain(context, key_pem + "".join(certificates), None, f"Failed to load SSL keystore {path}")


def _kind(get: Get, store: str) -> str:
    """Returns the type of a "keystore" or a "truststore": PEM for a PEM file for which only a location was given."""
    kind = str(get(f"ssl.{store}.type") or "JKS").upper()
    path = get(f"ssl.{store}.location")
    if kind != "JKS" or path is None or get(f"ssl.{store}.password") is not None:
        return kind
    return "PEM" if _is_pem(_bytes(path, f"SSL {store}")) else kind


def _is_pem(data: bytes) -> bool:
    return _PEM.search(data) is not None


def _check_keystore(kind: str, path: object, password: object, key: object, chain: object) -> None:
    """Raises what Kafka raises for settings that contradict each other."""
    wrong, hint = None, None
    if key is not None and kind != "PEM":
        hint = "set ssl.keystore.type=PEM"
        wrong = f"SSL private key can be specified only for PEM, but key store type is {kind}."
    elif key is not None and chain is None:
        wrong = "SSL private key is specified, but certificate chain is not specified."
    elif key is not None and path is not None:
        wrong = "Both SSL key store location and separate private key are specified."
    elif kind == "PEM" and password is not None:
        wrong = "SSL key store password cannot be specified with PEM format, only key password may be specified."
    elif key is None and chain is not None:
        wrong = "SSL certificate chain is specified, but private key is not specified"
    elif path is None and password is not None:
        wrong = "SSL key store is not specified, but key store password is specified."
    elif kind != "PEM" and path is not None and password is None:
        wrong = "SSL key store is specified, but key store password is not specified."
        hint = f"{path} is no PEM file, which would need no password"
    if wrong is not None:
        raise InvalidConfigurationException(wrong, hint=hint)


def _load_chain(context: ssl.SSLContext, pem: str, password: str | None, failure: str) -> None:
    # The ssl module reads a key only from a file: one of this user alone, which is gone at once.
    file, path = tempfile.mkstemp(prefix="kafkalog-", suffix=".pem")
    try:
        with os.fdopen(file, "w", encoding="utf-8") as out:
            out.write(pem)
        _load_file(context, path, pem, password, failure)
    finally:
        OS_FILES.unlink_if_exists(path)


def _load_file(context: ssl.SSLContext, path: str, pem: str, password: str | None, failure: str) -> None:
    """Loads a file; `pem` is what it contains, and `failure` begins the error's text."""
    try:
        context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, ValueError) as error:
        why, hint = _fault_of(pem, password, error)
        raise InvalidConfigurationException(f"{failure}: {why}", hint=hint) from None


def _fault_of(pem: str, password: str | None, error: Exception) -> tuple[str, str | None]:
    """Returns what is wrong with a key and its certificates, which OpenSSL calls "PEM lib", and what to do."""
    both = "it needs the server's private key and its certificates, one after the other"
    if "PRIVATE KEY-----" not in pem:
        return "it has no private key (BEGIN PRIVATE KEY)", both
    if "-----BEGIN CERTIFICATE-----" not in pem:
        return "it has no certificate (BEGIN CERTIFICATE)", both
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return "its private key does not belong to its first certificate", "the server's own certificate comes first"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "a certificate in it cannot be read", None
    if "BEGIN ENCRYPTED PRIVATE KEY" not in pem and "Proc-Type: 4,ENCRYPTED" not in pem:
        return "its private key cannot be read", None
    if password is None:
        return "its private key is encrypted", "ssl.key.password opens it"
    return "ssl.key.password does not open its private key", None


def _load_truststore(context: ssl.SSLContext, get: Get) -> None:
    kind = _kind(get, "truststore")
    path, password = get("ssl.truststore.location"), get("ssl.truststore.password")
    pem = get("ssl.truststore.certificates")
    wrong, hint = None, None
    if pem is not None and kind != "PEM":
        hint = "set ssl.truststore.type=PEM"
        wrong = f"SSL trust store certs can be specified only for PEM, but trust store type is {kind}."
    elif pem is not None and path is not None:
        wrong = "Both SSL trust store location and separate trust certificates are specified."
    elif kind == "PEM" and password is not None:
        wrong = "SSL trust store password cannot be specified for PEM format."
    elif path is None and password is not None:
        wrong = "SSL trust store is not specified, but trust store password is specified."
    if wrong is not None:
        raise InvalidConfigurationException(wrong, hint=hint)
    if pem is None and path is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if pem is None:
        what = "SSL truststore"
        pem = _text(path, what) if kind == "PEM" else "".join(_read_pkcs12(path, password, what)[1])
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        why = str(error) if "-----BEGIN CERTIFICATE-----" in pem else "it has no certificate (BEGIN CERTIFICATE)"
        raise InvalidConfigurationException(
            f"Invalid truststore {path or 'ssl.truststore.certificates'}: {why}"
        ) from None


def _bytes(path: str, what: str) -> bytes:
    try:
        return OS_FILES.read_bytes(path)
    except OSError as error:
        raise InvalidConfigurationException(f"Failed to load {what} {path}: {error.strerror or error}") from None


def _text(path: str, what: str) -> str:
    return _bytes(path, what).decode("utf-8", "replace")


def _read_pkcs12(path: str, password: str | None, what: str) -> tuple[str | None, list[str]]:
    """Returns the key and the certificates of a file as PEM."""
    data = _bytes(path, what)
    if data.startswith(_JKS):
        raise ConfigException(
            f"Failed to load {what} {path}: the old JKS format is not supported",
            hint=_CONVERT.format(path=path) + "; then set the type to PKCS12",
        )
    if _is_pem(data):
        raise ConfigException(
            f"Failed to load {what} {path}: it is PEM", hint="set the type to PEM; the password is not for PEM"
        )
    need_cryptography()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigException(f"Failed to load {what} {path} of type PKCS12: {error}") from error
    certificates = [each for each in (store.cert, *store.additional_certs) if each is not None]
    key = (
        None
        if store.key is None
        else store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    )
    return key, [each.certificate.public_bytes(Encoding.PEM).decode() for each in certificates]
