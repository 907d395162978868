"""Bytes and places as people type them: keys as text, `hex:00ff` or `base64:AP8=`, and places as offsets or times.

Shared by the options of commands and by the fields of pages.  It raises ValueError; the caller knows what was asked.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

EXPECTED = {"hex": "pairs of hex digits, such as hex:00ff", "base64": "base64, such as base64:AP8="}


def octets_of(text: str) -> bytes:
    """Returns the bytes of typed text.  `text:` escapes text that begins with a prefix.

    Raises ValueError, whose text is the way of writing that was not kept: "hex" or "base64".
    """
    way, colon, rest = text.partition(":")
    try:
        if colon and way == "hex":
            return bytes.fromhex(rest)
        if colon and way == "base64":
            return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(way) from None
    return (rest if colon and way == "text" else text).encode("utf-8", "surrogateescape")


def place_of(text: str) -> Any:
    """Returns the offset that a text of digits is, or the text itself, which `Selection` reads as a time."""
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else text
