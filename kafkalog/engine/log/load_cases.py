"""The table of what a load does with each file that an interrupted replacement or deletion may have left.

`kafkalog.engine.log.replacement` has the protocol that makes these rows right. Two numbers are collected before the
table is used: the lowest offset of any `.cleaned` file, and the range [lowest base, highest next offset) of the valid
`.swap` logs. Kafka's LogLoader walks the directory once per column; the result is the same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.names import (
    CLEANED_FILE_SUFFIX,
    DELETED_FILE_SUFFIX,
    LOG_FILE_SUFFIX,
    SWAP_FILE_SUFFIX,
    offset_from_filename,
    segment_base,
)
from kafkalog.errors import IllegalStateException, NumberFormatException

# Deleted checkpoints of a KRaft metadata log: another part of Kafka handles them.
CHECKPOINT_DELETED_SUFFIX = ".checkpoint.deleted"
PLAIN = ""


class Action(enum.Enum):
    DELETE = "delete"
    RENAME = "rename"  # removes `.swap`
    KEEP = "keep"
    REFUSE = "refuse"  # NumberFormatException: the name should have an offset and has none


class Case(NamedTuple):
    """One row. None means that the column does not matter."""

    name: str
    suffix: str
    numbered: bool | None
    at_or_above_min_cleaned: bool | None
    in_swap_range: bool | None
    then: Action
    why: str


CASES = (
    Case("A", DELETED_FILE_SUFFIX, None, None, None, Action.DELETE, "retired already; only its deletion was pending"),
    Case("B", CHECKPOINT_DELETED_SUFFIX, True, None, True, Action.DELETE, "its number is in the range of the swap"),
    Case("C", CHECKPOINT_DELETED_SUFFIX, True, None, False, Action.KEEP, "belongs to another part of Kafka"),
    Case("D", CHECKPOINT_DELETED_SUFFIX, False, None, None, Action.KEEP, "belongs to another part of Kafka"),
    Case("E", CLEANED_FILE_SUFFIX, False, None, None, Action.REFUSE, "it is unknown which segment it would replace"),
    Case("F", CLEANED_FILE_SUFFIX, True, None, None, Action.DELETE, "incomplete replacement; the old files exist"),
    Case("G", SWAP_FILE_SUFFIX, False, None, None, Action.REFUSE, "it is unknown which segment it would replace"),
    Case(
        "H", SWAP_FILE_SUFFIX, True, True, None, Action.DELETE,
        "a .cleaned file is left below: nothing was replaced yet, all old files exist (KAFKA-6264)",
    ),
    Case("I", SWAP_FILE_SUFFIX, True, False, None, Action.RENAME, "the replacement was complete; finish it"),
    Case("J", PLAIN, True, None, True, Action.DELETE, "superseded by a complete replacement, but not renamed yet"),
    Case("K", PLAIN, True, None, False, Action.KEEP, "no replacement concerns it"),
    Case("L", PLAIN, False, None, None, Action.KEEP, "not a file of a segment"),
)  # fmt: skip


_TRANSIENT = (DELETED_FILE_SUFFIX, CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX)


def transient(file_names: Iterable[str]) -> list[str]:
    """Returns the names that this table concerns; ignores other files in the directory."""
    return [name for name in file_names if name.endswith(_TRANSIENT)]


def log_files(listed: Iterable[str], next_offset: Callable[[str], int]) -> dict[int, str]:
    """Returns the names of the .log files that a load would keep of a listing, by base offset.

    This is for a reader during a replacement, or after a crash in one. `next_offset` returns the offset after the last
    record of a `.swap` file.
    """
    listed = list(listed)
    found = {base: name for name in listed if (base := segment_base(name)) is not None}
    swaps = {
        base: name for name in listed if (base := segment_base(name, LOG_FILE_SUFFIX + SWAP_FILE_SUFFIX)) is not None
    }
    if not swaps:
        return found
    min_cleaned = min([_number(name) for name in listed if name.endswith(CLEANED_FILE_SUFFIX)], default=LONG_MAX)
    whole = {base: name for base, name in swaps.items() if base < min_cleaned}
    if whole:
        low, high = min(whole), max([next_offset(name) for name in whole.values()])
        found = {base: name for base, name in found.items() if not low <= base < high} | whole
    return found


def _number(name: str) -> int:
    """Returns the offset in a name; LONG_MAX if there is none (a load refuses such a file, a reader skips it)."""
    try:
        return offset_from_filename(name)
    except NumberFormatException:
        return LONG_MAX


def suffix_of(name: str) -> str:
    """Returns the transient suffix that decides what happens to a file."""
    if not name.endswith(_TRANSIENT):
        return PLAIN
    if name.endswith(CHECKPOINT_DELETED_SUFFIX):
        return CHECKPOINT_DELETED_SUFFIX
    for suffix in _TRANSIENT:
        if name.endswith(suffix):
            return suffix
    return PLAIN


def decide(suffix: str, numbered: bool, at_or_above_min_cleaned: bool, in_swap_range: bool) -> Case:
    """Returns the one matching row."""
    for case in CASES:
        if (
            case.suffix == suffix
            and case.numbered in (None, numbered)
            and case.at_or_above_min_cleaned in (None, at_or_above_min_cleaned)
            and case.in_swap_range in (None, in_swap_range)
        ):
            return case
    raise IllegalStateException(f"No case for a file with suffix {suffix!r}")  # a test walks every combination
