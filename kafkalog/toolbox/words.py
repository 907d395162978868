"""Formats numbers and commands for sentences that several commands print.  Knows nothing else."""

from __future__ import annotations

import shlex


def counted(count: int, noun: str) -> str:
    """Formats a count with its noun: "1 batch", "2 batches", "2 entries"."""
    if count == 1:
        return f"{count} {noun}"
    if noun.endswith(("ry", "ty", "cy")):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith(('ch', 'x')) else 's'}"


def command_line(*words: object) -> str:
    """Returns a command line of kafkalog as it can be typed."""
    return f"kafkalog {shlex.join(map(str, words))}"


def command(*words: object) -> str:
    """Returns a command line of kafkalog for a sentence: in backticks."""
    return f"`{command_line(*words)}`"


def span(duration_ms: int) -> str:
    """Formats a duration: 5400000 -> "1.5 h"."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if abs(duration_ms) >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms} ms"
