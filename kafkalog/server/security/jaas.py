"""Kafka's `sasl.jaas.config`: a login module and its options, such as

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob="other";

Knows no mechanism.  Source: JaasConfig, JaasContext (4.4.0); java.io.StreamTokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kafkalog.errors import IllegalArgumentException

_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_TOKEN = re.compile(
    r"""
      (?P<blank>[\s\x00-\x20]+|//[^\r\n]*|/\*.*?(?:\*/|\Z))
    | "(?P<double>(?:\\.|[^"\\\r\n])*)"?
    | '(?P<single>(?:\\.|[^'\\\r\n])*)'?
    | (?P<word>[A-Za-z0-9._$\-\u00a0-\uffff]+)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\x0b"}


class JaasEntry(NamedTuple):
    """A login module: the name of its class, and its options."""

    login_module: str
    options: dict[str, str]


class _Token(NamedTuple):
    text: str | None  # a word or a quoted text
    mark: str  # any other character


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)

    return _ESCAPE.sub(one, text)


def _tokens(text: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        if found["word"] is not None:
            word = found["word"]
            # Java reads a word that begins like a number as a number, which has no text.
            yield _Token(None if re.match(r"[0-9.\-]", word) else word, "")
        elif found["mark"] is not None:
            yield _Token(None, found["mark"])
        elif found["blank"] is None:
            yield _Token(_unescape(found["double"] if found["double"] is not None else found["single"]), "")


def parse_jaas(text: str) -> JaasEntry:
    """Parses a configuration of one login module.

    Raises:
        IllegalArgumentException: It is no such configuration.  The text never has a value of an option.
    """
    entries = []
    tokens = _tokens(text)
    for token in tokens:
        entries.append(_entry(token, tokens))
    if not entries:
        raise IllegalArgumentException("Login module not specified in JAAS config")
    if len(entries) != 1:
        raise IllegalArgumentException(
            f"JAAS config property contains {len(entries)} login modules, should be 1 module"
        )
    return entries[0]


def _entry(first: _Token, tokens: Iterator[_Token]) -> JaasEntry:
    flag = next(tokens, None)
    if flag is None:
        raise IllegalArgumentException("Login module control flag not specified in JAAS config")
    if flag.text is None:
        raise IllegalArgumentException("Login module control flag is not available in the JAAS config")
    if flag.text.upper() not in _FLAGS:
        raise IllegalArgumentException(f"Invalid login module control flag '{flag.text}' in JAAS config")
    options: dict[str, str] = {}
    for key in tokens:
        if key.mark == ";":
            return JaasEntry(first.text or "", options)
        equals, value = next(tokens, None), next(tokens, None)
        if equals is None or equals.mark != "=" or value is None or value.text is None:
            raise IllegalArgumentException(
                f"Value not specified for key '{key.text}' in JAAS config",
                hint='a value needs quotes: user_alice="..."',
            )
        options[key.text or ""] = value.text
    raise IllegalArgumentException("JAAS config entry not terminated by semi-colon")
