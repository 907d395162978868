"""Parses option `path`: one log directory, several with commas between them, or a JSON array of them.

A directory's name may contain a comma.  So a text that is an existing directory names that directory, and an array is
never ambiguous.
"""

from __future__ import annotations

import json

from kafkalog.engine.files import OS_FILES
from kafkalog.errors import IllegalArgumentException

EXAMPLE = '["/disk1/kafka-logs","/disk2/kafka-logs"]'


def listed_paths(text: str) -> list[str]:
    """Returns the paths, without blanks around them; none for a blank text.

    Raises IllegalArgumentException for an invalid array, and for a text that may mean one directory or several.

        listed_paths("/disk1/logs,/disk2/logs")  ->  ["/disk1/logs", "/disk2/logs"]
    """
    text = text.strip()
    if text.startswith("[") and not OS_FILES.is_dir(text):
        return array_of_paths(text, "path")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) < 2 and "," not in text:
        return parts
    if not OS_FILES.is_dir(text):
        return parts
    if parts and all(OS_FILES.is_dir(part) for part in parts):
        raise IllegalArgumentException(
            f"option path is {text!r}: this is a directory, but each part between commas is one too",
            hint=f"write a JSON array: {json.dumps([text])} or {json.dumps(parts)}",
        )
    return [text]


def array_of_paths(text: str, name: str) -> list[str]:
    """Returns the paths in a JSON array; raises IllegalArgumentException for anything else."""
    expected = f"option {name}: Expected e.g. {EXAMPLE}, got {text}"
    try:
        listed = json.loads(text)
    except ValueError:
        raise IllegalArgumentException(expected) from None
    if not isinstance(listed, list) or not all(isinstance(part, str) and part.strip() for part in listed):
        raise IllegalArgumentException(expected)
    return [part.strip() for part in listed]
