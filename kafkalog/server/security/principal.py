"""The texts of principals and of hosts, as Kafka prints and parses them.

Knows no sockets and no settings.  Source: KafkaPrincipal, SecurityUtils, java.net.InetAddress (4.4.0).
"""

from __future__ import annotations

import ipaddress

from kafkalog.errors import IllegalArgumentException
from kafkalog.server.request import KafkaPrincipal

USER_TYPE = "User"


def parse_kafka_principal(text: str) -> KafkaPrincipal:
    """Returns the principal of `User:alice`.  Raises IllegalArgumentException for a text without a type."""
    kind, colon, name = text.partition(":")
    if not colon:
        raise IllegalArgumentException(
            f"expected a string in format principalType:principalName but got {text}", hint="such as User:alice"
        )
    return KafkaPrincipal(kind, name)


def host_address(host: str) -> str:
    """Returns an address as Java's getHostAddress prints it, which is how an ACL names a host.

    An IPv6 address has eight groups without leading zeros: `0:0:0:0:0:0:0:1`.  An IPv4 address in IPv6 form is IPv4.

    Example:
        >>> from kafkalog.server.security.principal import host_address
        >>> host_address("::1"), host_address("::ffff:10.0.0.1"), host_address("127.0.0.1")
        ('0:0:0:0:0:0:0:1', '10.0.0.1', '127.0.0.1')
    """
    if ":" not in host:
        return host
    address, percent, scope = host.partition("%")
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":")) + percent + scope
