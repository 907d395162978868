"""Certificates for tests of TLS, made with `cryptography`: an authority, and names that it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_OIDS = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "C": NameOID.COUNTRY_NAME}


@dataclass
class Signed:
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """The key, PKCS#8."""
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, password: str) -> bytes:
        """Both as a PKCS12 file."""
        encryption = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"kafka", self.key, self.certificate, None, encryption)

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Writes the certificate and the key; returns their paths."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_text(self.pem)
        key.write_text(self.key_pem())
        return str(certificate), str(key)


class Authority:
    """Signs certificates for two days."""

    def __init__(self) -> None:
        self.signed = self._sign({"CN": "Authority"}, None)

    @cached_property
    def pem(self) -> str:
        """The authority's own certificate."""
        return self.signed.pem

    def sign(self, **name: str) -> Signed:
        """Returns a new key with a certificate for localhost, such as `sign(CN="orders", O="Shop")`."""
        return self._sign(name, self.signed)

    @staticmethod
    def _sign(name: dict[str, str], issuer: Signed | None) -> Signed:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(_OIDS[part], value) for part, value in name.items()])
        now = datetime.datetime.now(datetime.UTC)
        alternatives = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        )
        return Signed(key, built.sign(key if issuer is None else issuer.key, hashes.SHA256()))
