"""Text of others (names, keys, errors) made harmless for a terminal: what would move the cursor, colour, turn the
direction of writing or hide itself is shown as an escape, such as \\x1b or \\u202e.

Knows text only; imports nothing of the package.
"""

from __future__ import annotations

import json
import re

# Control characters (C0 but for the tab, DEL, C1), marks and overrides of direction, separators of lines, what has no
# width, tags; and halves of surrogate pairs but those that stand for bytes of file names (they are escaped on output).
_CLASS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
_HARMFUL = re.compile(f"[{_CLASS}\ud800-\udbff]")
_IN_CELL = re.compile(f"[\t{_CLASS}\ud800-\udbff]")


def harmless(text: str) -> str:
    """`text` without anything that a terminal obeys; tabs stay."""
    return _HARMFUL.sub(_escape, text)


def harmless_cell(text: str) -> str:
    """The same in a cell of a table, where a tab has no place either."""
    return _IN_CELL.sub(_escape, text)


def harmless_json(line: str) -> str:
    """A line of JSON without them, which says the same: they can only stand within strings."""
    return _HARMFUL.sub(lambda found: json.dumps(found[0])[1:-1], line)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
