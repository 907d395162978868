"""TLS from Kafka's settings: `ssl.SSLContext` of `ssl.keystore.*`, `ssl.truststore.*` and their companions.

Keys and certificates are PEM, in a file or in the setting itself, or PKCS12 (which Java's keytool writes under the
name JKS too; it needs the package `cryptography`).  Java's old JKS format is refused, with the command that converts
it.  Source: DefaultSslEngineFactory, SslFactory, SaslChannelBuilder (4.4.0).
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
    kind = str(get("ssl.keystore.type") or "JKS").upper()
    path, password = get("ssl.keystore.location"), get("ssl.keystore.password")
    key, chain, key_password = (
        get("ssl.keystore.key"),
        get("ssl.keystore.certificate.chain"),
        get("ssl.key.password"),
    )
    _check_keystore(kind, path, password, key, chain)
    if key is not None:
        _load_chain(context, key + "\n" + chain, key_password, "ssl.keystore.key")
    elif path is None:
        raise ConfigException(
            "A listener with TLS needs a certificate and its key",
            hint="set ssl.keystore.type=PEM and ssl.keystore.location to a file with both",
        )
    elif kind == "PEM":
        try:
            context.load_cert_chain(path, password=key_password or "")
        except (OSError, ValueError) as error:
            raise InvalidConfigurationException(f"Failed to load PEM SSL keystore {path}: {error}") from error
    else:
        key_pem, certificates = _read_pkcs12(path, password)
        if key_pem is None or not certificates:
            raise ConfigException(f"Failed to load SSL keystore {path}: it has no private key with a certificate")
        _load_chain(context, key_pem + "".join(certificates), None, path)


def _check_keystore(kind: str, path: object, password: object, key: object, chain: object) -> None:
    """Raises what Kafka raises for settings that contradict each other."""
    wrong = None
    if key is not None and kind != "PEM":
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
    if wrong is not None:
        raise InvalidConfigurationException(wrong)


def _load_chain(context: ssl.SSLContext, pem: str, password: str | None, where: str) -> None:
    # The ssl module reads a key only from a file: one of this user alone, which is gone at once.
    file, path = tempfile.mkstemp(prefix="kafkalog-", suffix=".pem")
    try:
        with os.fdopen(file, "w") as out:
            out.write(pem)
        context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfigurationException(f"Invalid PEM keystore configs in {where}: {error}") from error
    finally:
        OS_FILES.unlink_if_exists(path)


def _load_truststore(context: ssl.SSLContext, get: Get) -> None:
    kind = str(get("ssl.truststore.type") or "JKS").upper()
    path, password = get("ssl.truststore.location"), get("ssl.truststore.password")
    pem = get("ssl.truststore.certificates")
    wrong = None
    if pem is not None and kind != "PEM":
        wrong = f"SSL trust store certs can be specified only for PEM, but trust store type is {kind}."
    elif pem is not None and path is not None:
        wrong = "Both SSL trust store location and separate trust certificates are specified."
    elif kind == "PEM" and password is not None:
        wrong = "SSL trust store password cannot be specified for PEM format."
    elif path is None and password is not None:
        wrong = "SSL trust store is not specified, but trust store password is specified."
    if wrong is not None:
        raise InvalidConfigurationException(wrong)
    if pem is None and path is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if pem is None:
        pem = _text(path) if kind == "PEM" else "".join(_read_pkcs12(path, password)[1])
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfigurationException(
            f"Invalid truststore {path or 'ssl.truststore.certificates'}: {error}"
        ) from error


def _bytes(path: str) -> bytes:
    try:
        return OS_FILES.read_bytes(path)
    except OSError as error:
        raise ConfigException(f"Failed to load SSL keystore {path}: {error.strerror or error}") from error


def _text(path: str) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _read_pkcs12(path: str, password: str | None) -> tuple[str | None, list[str]]:
    """Returns the key and the certificates of a file as PEM."""
    data = _bytes(path)
    if data.startswith(_JKS):
        raise ConfigException(
            f"Failed to load SSL keystore {path}: the old JKS format is not supported",
            hint=_CONVERT.format(path=path) + "; then set the type to PKCS12",
        )
    if data.lstrip().startswith(b"-----BEGIN"):
        raise ConfigException(f"Failed to load SSL keystore {path}: it is PEM", hint="set the type to PEM")
    need_cryptography()
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise ConfigException(f"Failed to load SSL keystore {path} of type PKCS12: {error}") from error
    certificates = [each for each in (store.cert, *store.additional_certs) if each is not None]
    key = (
        None
        if store.key is None
        else store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    )
    return key, [each.certificate.public_bytes(Encoding.PEM).decode() for each in certificates]
