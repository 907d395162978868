"""TLS of a server from Kafka's settings, and the names in certificates."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from kafkalog.errors import ConfigException, IllegalArgumentException, InvalidConfigurationException
from kafkalog.server.security.distinguished_name import subject_of
from kafkalog.server.security.principal_mapper import SslPrincipalMapper
from kafkalog.server.security.tls import openssl_suite, server_context
from tests.certificates import Authority


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    return server_context(settings.get)


def shake(server: ssl.SSLContext, authority: Authority, **client: Any) -> tuple[str | None, bytes | None, str]:
    """Shakes hands in memory; returns the version, the client's certificate, and the error of the server."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    there.load_verify_locations(cadata=authority.pem)
    if "certificate" in client:
        there.load_cert_chain(*client["certificate"])
    if "version" in client:
        there.maximum_version = there.minimum_version = client["version"]
    ends = [ssl.MemoryBIO() for _ in range(2)]
    ours = server.wrap_bio(ends[0], ends[1], server_side=True)
    theirs = there.wrap_bio(ends[1], ends[0], server_hostname="localhost")
    done = set()
    for _ in range(6):
        for name, side in (("client", theirs), ("server", ours)):
            try:
                side.do_handshake()
                done.add(name)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return None, None, f"{name}: {error.reason}"
    assert done == {"client", "server"}
    return ours.version(), ours.getpeercert(binary_form=True), ""


def pem_settings(authority: Authority, **more: Any) -> dict[str, Any]:
    server = authority.sign(CN="localhost")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": server.key_pem(),
        "ssl.keystore.certificate.chain": server.pem,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem,
        **more,
    }


def test_keys_in_the_settings(authority: Authority) -> None:
    assert shake(context(pem_settings(authority)), authority) == ("TLSv1.3", None, "")
    secret = pem_settings(authority)
    server = authority.sign(CN="localhost")
    secret |= {
        "ssl.keystore.key": server.key_pem("hush"),
        "ssl.keystore.certificate.chain": server.pem,
        "ssl.key.password": "hush",
    }
    assert shake(context(secret), authority)[0] == "TLSv1.3"
    with pytest.raises(InvalidConfigurationException, match=r"Invalid PEM keystore configs"):
        context({**secret, "ssl.key.password": "wrong"})
    with pytest.raises(InvalidConfigurationException):
        context({**secret, "ssl.key.password": None})


def test_no_key_is_left_in_a_file(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context(pem_settings(authority))
    with pytest.raises(InvalidConfigurationException):
        context(pem_settings(authority, **{"ssl.keystore.key": "nonsense"}))
    assert os.listdir(tmp_path) == []


def test_keys_in_files(authority: Authority, tmp_path: Path) -> None:
    server = authority.sign(CN="localhost")
    both, trusted, store = tmp_path / "both.pem", tmp_path / "ca.pem", tmp_path / "store.p12"
    both.write_text(server.key_pem() + server.pem)
    trusted.write_text(authority.pem)
    store.write_bytes(server.pkcs12("hush"))
    pem = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
    assert shake(context({**pem, **trust}), authority)[0] == "TLSv1.3"
    for kind in ("PKCS12", "JKS"):
        settings = {
            "ssl.keystore.type": kind, "ssl.keystore.location": str(store), "ssl.keystore.password": "hush", **trust,
        }  # fmt: skip
        assert shake(context(settings), authority)[0] == "TLSv1.3"
    default = {"ssl.keystore.location": str(both), "ssl.truststore.location": str(trusted)}
    assert shake(context({**default, "ssl.client.auth": "required"}), authority)[2].endswith("RETURN_A_CERTIFICATE")
    with pytest.raises(InvalidConfigurationException, match="password is not specified"):
        context({**default, "ssl.keystore.location": str(store)})
    with pytest.raises(ConfigException, match="of type PKCS12"):
        context({**settings, "ssl.keystore.password": "wrong"})
    with pytest.raises(ConfigException, match="set the type to PEM"):
        context({**settings, "ssl.keystore.location": str(both)})
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(ConfigException, match="keytool -importkeystore"):
        context(settings)
    with pytest.raises(ConfigException, match="Failed to load SSL keystore"):
        context({**settings, "ssl.keystore.location": str(tmp_path / "missing")})
    with pytest.raises(InvalidConfigurationException, match="Failed to load PEM SSL keystore"):
        context({**pem, "ssl.keystore.location": str(tmp_path / "missing"), **trust})


def test_what_is_wrong_with_a_pem_file(authority: Authority, tmp_path: Path) -> None:
    server, other = authority.sign(CN="localhost"), authority.sign(CN="other")
    file = tmp_path / "server.pem"
    nonsense = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----\n"
    for text, password, why in (
        ("", None, "no private key"),
        (server.pem, None, "no private key"),
        (server.key_pem(), None, "no certificate"),
        (other.key_pem() + server.pem, None, "does not belong to its first certificate"),
        (server.key_pem("hush") + server.pem, None, r"is encrypted \(ssl.key.password"),
        (server.key_pem("hush") + server.pem, "wrong", "ssl.key.password does not open"),
        (nonsense.format("PRIVATE KEY") + server.pem, None, "private key cannot be read"),
        (server.key_pem() + nonsense.format("CERTIFICATE"), None, "a certificate in it cannot be read"),
    ):
        file.write_text(text)
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file), "ssl.key.password": password}
        with pytest.raises(InvalidConfigurationException, match=why) as error:
            context(settings)
        assert str(error.value).startswith(f"Failed to load PEM SSL keystore {file}: ")
    with pytest.raises(InvalidConfigurationException, match=r"SSL truststore .*missing: No such file"):
        context(pem_settings(authority) | {"ssl.truststore.certificates": None, "ssl.truststore.location": "missing"})
    file.write_text(server.key_pem())
    with pytest.raises(InvalidConfigurationException, match="no certificate"):
        context(pem_settings(authority) | {"ssl.truststore.certificates": None, "ssl.truststore.location": str(file)})


def test_certificates_of_clients(authority: Authority, tmp_path: Path) -> None:
    known = authority.sign(C="DE", O="Shop, Inc", CN="Orders").write(tmp_path, "known")
    other = Authority().sign(CN="stranger").write(tmp_path, "stranger")
    for auth, outcomes in {
        "none": ("", "", ""),
        "requested": ("", "CN=Orders,O=Shop\\, Inc,C=DE", "server: CERTIFICATE_VERIFY_FAILED"),
        "required": (
            "server: PEER_DID_NOT_RETURN_A_CERTIFICATE",
            "CN=Orders,O=Shop\\, Inc,C=DE",
            "server: CERTIFICATE_VERIFY_FAILED",
        ),
    }.items():
        server = context(pem_settings(authority, **{"ssl.client.auth": auth}))
        for client, wanted in zip(({}, {"certificate": known}, {"certificate": other}), outcomes, strict=True):
            version, certificate, failure = shake(server, authority, **client)
            assert (failure or (subject_of(certificate) if certificate else "")) == wanted, (auth, client)
            assert (version is None) == bool(failure)


def test_versions(authority: Authority) -> None:
    new = context(pem_settings(authority, **{"ssl.enabled.protocols": ("TLSv1.3",)}))
    assert shake(new, authority, version=ssl.TLSVersion.TLSv1_2)[0] is None
    old = context(pem_settings(authority, **{"ssl.protocol": "TLSv1.2"}))
    assert shake(old, authority)[0] == "TLSv1.2"
    with pytest.raises(ConfigException, match="TLSv9 is no protocol"):
        context(pem_settings(authority, **{"ssl.enabled.protocols": ("TLSv9",)}))


def test_suites(authority: Authority) -> None:
    names = ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]
    found = context(pem_settings(authority, **{"ssl.cipher.suites": names}))
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in [each["name"] for each in found.get_ciphers()]
    assert openssl_suite("TLS_RSA_WITH_AES_128_CBC_SHA") == "AES128-SHA"
    assert openssl_suite("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256") == "ECDHE-RSA-CHACHA20-POLY1305"
    assert openssl_suite("ECDHE-RSA-AES128-SHA") == "ECDHE-RSA-AES128-SHA"
    with pytest.raises(ConfigException, match=r"ssl\.cipher\.suites"):
        context(pem_settings(authority, **{"ssl.cipher.suites": ["NONSENSE"]}))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ssl.keystore.type": "JKS", "ssl.keystore.key": "x"}, "can be specified only for PEM"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.key": "x"}, "certificate chain is not specified"),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "x"}, "private key is not specified"),
        (
            {"ssl.keystore.type": "PEM", "ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "x",
             "ssl.keystore.location": "x"},
            "Both SSL key store location",
        ),
        ({"ssl.keystore.type": "PEM", "ssl.keystore.location": "x", "ssl.keystore.password": "x"}, "PEM format"),
        ({"ssl.keystore.password": "x"}, "key store is not specified"),
        ({"ssl.keystore.location": os.__file__}, "password is not specified"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(settings: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfigurationException, match=text):
        context(settings)


def test_a_listener_needs_a_key(authority: Authority) -> None:
    with pytest.raises(ConfigException, match="needs a certificate and its key"):
        context({})
    for wrong in (
        {"ssl.truststore.type": "JKS"},
        {"ssl.truststore.location": "x"},
        {"ssl.truststore.password": "x"},
        {"ssl.truststore.certificates": "x"},
        {"ssl.truststore.certificates": None, "ssl.truststore.type": "JKS", "ssl.truststore.password": "x"},
    ):
        with pytest.raises(InvalidConfigurationException):
            context(pem_settings(authority, **wrong))
    with pytest.raises(ConfigException, match="String must be one of"):
        context(pem_settings(authority, **{"ssl.client.auth": "maybe"}))


def test_bytes_that_are_no_certificate(authority: Authority) -> None:
    whole = authority.sign(CN="x").certificate.public_bytes(Encoding.DER)
    assert subject_of(whole) == "CN=x"
    for size in range(0, len(whole) - 1, 7):
        with pytest.raises(ValueError, match="not a certificate"):
            subject_of(whole[:size])
    read: list[Callable[[bytes], str]] = [subject_of]
    for at in range(40, 160):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        try:
            assert isinstance(read[0](bytes(damaged)), str)
        except ValueError as error:
            assert str(error) == "not a certificate"  # noqa: PT017


def test_rules() -> None:
    mapper = SslPrincipalMapper("RULE:^CN=(.*?),O=(.*?)$/$1@$2/L")
    assert mapper.get_name("CN=Orders,O=Shop") == "orders@shop"
    assert mapper.get_name("CN=Orders") is None
    for wrong in ("NONSENSE", "RULE:(/x/", "RULE:a/b/LX"):
        with pytest.raises(IllegalArgumentException, match="Invalid rule"):
            SslPrincipalMapper(wrong)
