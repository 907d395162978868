"""The name of a certificate's owner as Java prints it: `CN=orders,OU=Shop,C=DE` (X500Principal.getName, RFC 2253).

OpenSSL has checked the certificate before; here its bytes are only walked to the subject.  Every length is checked
against the end all the same.  Source: java.security.cert, sun.security.x509 (AVA, RDN, X500Name) of JDK 17.
"""

from __future__ import annotations

from typing import NamedTuple

_SEQUENCE, _VERSION = 0x30, 0xA0
_STRINGS = {0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E, 0x1C}  # UTF8, Printable, T61, IA5, General, BMP, Universal
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SPECIAL = frozenset(',=+<>#;"\\')
_BLANK = frozenset(" \r")


class _Item(NamedTuple):
    tag: int
    body: bytes
    whole: bytes


def _items(data: bytes) -> list[_Item]:
    """Returns the items of a DER structure.  ValueError if a length goes beyond the end."""
    found, at = [], 0
    while at < len(data):
        start, tag = at, data[at]
        if at + 2 > len(data) or tag & 0x1F == 0x1F:
            raise ValueError("not DER")
        size, at = data[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            if not 0 < count <= 4 or at + count > len(data):
                raise ValueError("not DER")
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError("not DER")
        found.append(_Item(tag, data[at : at + size], data[start : at + size]))
        at += size
    return found


def _oid(body: bytes) -> str:
    numbers, value = [], 0
    for byte in body:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escaped(text: str) -> str:
    lead = len(text) - len(text.lstrip(" \r"))
    trail = len(text.rstrip(" \r"))
    out = []
    for index, char in enumerate(text):
        if char == "\0":
            out.append("\\00")
        elif char in _SPECIAL or (char in _BLANK and not lead <= index < trail):
            out.append("\\" + char)
        else:
            out.append(char)
    return "".join(out)


def _attribute(item: _Item) -> str:
    kind, value = _items(item.body)[:2]
    oid = _oid(kind.body)
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or oid}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.body.decode('utf-8', 'replace'))}"


def subject_of(certificate: bytes) -> str:
    """Returns the subject of a certificate in DER.

    Raises:
        ValueError: The bytes are no certificate.
    """
    try:
        (outer,) = _items(certificate)
        fields = _items(_items(outer.body)[0].body)
        # version (optional), serial number, algorithm, issuer, validity, subject
        subject = fields[5 if fields[0].tag == _VERSION else 4]
        if subject.tag != _SEQUENCE:
            raise ValueError("not a certificate")
        names = ["+".join(_attribute(each) for each in _items(name.body)) for name in _items(subject.body)]
    except (IndexError, ValueError) as error:
        raise ValueError("not a certificate") from error
    return ",".join(reversed(names))
