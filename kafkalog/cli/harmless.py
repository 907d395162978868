"""Makes foreign text (names, keys, errors) harmless for a terminal.

Characters that would move the cursor, set a colour, change the direction of writing or hide text are shown as escapes,
such as \\x1b or \\u202e. The module knows text only, and imports nothing of the package.
"""

from __future__ import annotations

import json
import re

# Control characters (C0 without the tab, DEL, C1), direction marks and overrides, line separators, characters without
# width, and tags.  Also halves of surrogate pairs, except those for bytes of file names: output escapes these anyway.
_CLASS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
_HARMFUL = re.compile(f"[{_CLASS}\ud800-\udbff]")
_IN_CELL = re.compile(f"[\t{_CLASS}\ud800-\udbff]")


def harmless(text: str) -> str:
    """Returns `text` with the characters that a terminal would obey as escapes; tabs are kept."""
    return _HARMFUL.sub(_escape, text)


def harmless_cell(text: str) -> str:
    """Returns the same for a cell of a table, where tabs are escaped too."""
    return _IN_CELL.sub(_escape, text)


def harmless_json(line: str) -> str:
    """Returns an equal line of JSON in which these characters are escaped; they can only occur in strings."""
    return _HARMFUL.sub(lambda found: json.dumps(found[0])[1:-1], line)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
