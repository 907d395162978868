"""`ssl.principal.mapping.rules`: from the name in a client's certificate to the name of its principal.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?)$/$1/, DEFAULT

A rule is a regular expression that must match the whole name, a replacement with `$1`, and `L` or `U` for lower or
upper case.  The first rule that matches decides; DEFAULT keeps the name.  Patterns are Java's; Python's `re` reads
the usual ones alike, and refuses what it does not know when the server starts.
Source: SslPrincipalMapper (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kafkalog.errors import IllegalArgumentException

_BODY = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_BODY})\s*(?:,\s*|$)")
_JAVA_GROUP = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")

Rule = Callable[[str], "str | None"]


class SslPrincipalMapper:
    """Maps names.

    Args:
        rules: As of `ssl.principal.mapping.rules`.

    Raises:
        IllegalArgumentException: A rule cannot be read.

    Example:
        >>> from kafkalog.server.security.principal_mapper import SslPrincipalMapper
        >>> SslPrincipalMapper("RULE:^CN=(.*?),.*$/$1/L, DEFAULT").get_name("CN=Orders,O=Shop")
        'orders'
    """

    def __init__(self, rules: str = "DEFAULT") -> None:
        self.rules = rules.strip()
        self._rules: list[Rule] = []
        for found in _SPLITTER.finditer(self.rules):
            rule = found[1]
            if rule == "DEFAULT":
                self._rules.append(lambda name: name)
                continue
            parsed = re.fullmatch(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", rule)
            if parsed is not None:
                self._rules.append(_rule(*parsed.groups()))
            elif rule:
                raise IllegalArgumentException(
                    f"Invalid rule: {rule}", hint="RULE:pattern/replacement/[LU], or DEFAULT"
                )

    def get_name(self, distinguished_name: str) -> str | None:
        """Returns the name of the principal; None if no rule applies."""
        for rule in self._rules:
            name = rule(distinguished_name)
            if name is not None:
                return name
        return None


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(_JAVA_GROUP.sub(r"(?P<\1>", pattern))
    except re.error as error:
        raise IllegalArgumentException(f"Invalid rule: the pattern {pattern!r}: {error}") from error

    def apply(name: str) -> str | None:
        if compiled.fullmatch(name) is None:
            return None
        # As Java: every match in the name is replaced, not the whole name once.
        mapped = "".join(_replaced(compiled, name, replacement))
        return mapped.lower() if case == "L" else mapped.upper() if case == "U" else mapped

    return apply


def _replaced(compiled: re.Pattern[str], name: str, replacement: str) -> list[str]:
    out, at = [], 0
    for found in compiled.finditer(name):
        out += [name[at : found.start()], _expand(found, replacement)]
        at = found.end()
    return [*out, name[at:]]


def _expand(found: re.Match[str], replacement: str) -> str:
    """Returns a replacement with its groups, as Java's Matcher does: `$12` is group 12 if there is one, else group 1
    and a 2.  A `$` whose group does not exist is an ordinary character."""
    groups = found.re.groups
    out, at = [], 0
    while at < len(replacement):
        char = replacement[at]
        at += 1
        if char == "\\" and at < len(replacement):
            out.append(replacement[at])
            at += 1
        elif char == "$" and (digits := re.match(r"[0-9]+", replacement[at:])):
            number, used = int(digits[0][0]), 1
            while used < len(digits[0]) and number * 10 + int(digits[0][used]) <= groups:
                number, used = number * 10 + int(digits[0][used]), used + 1
            if number > groups:
                out.append(char)
                continue
            out.append(found[number] or "")
            at += used
        else:
            out.append(char)
    return "".join(out)
