"""Handling of damage that recovery finds at an open: truncate as Kafka does with a warning, refuse, or call a function.

Kafka's recovery truncates a log at the first damaged batch, and drops everything after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.values import shown
from kafkalog.engine.log import damage
from kafkalog.engine.log.damage import Damage
from kafkalog.errors import IllegalArgumentException

OnDamage = Literal["truncate", "raise"] | Callable[[Damage], None]


def told_of_cuts(on_damage: OnDamage) -> Callable[[Damage], None]:
    """Returns the function that is called before each truncation."""
    if callable(on_damage):
        return on_damage
    if not isinstance(on_damage, str) or on_damage not in ("truncate", "raise"):
        raise IllegalArgumentException(
            f"on_damage: found {shown(on_damage)}, expected 'truncate', 'raise', or a function to call with the damage",
            hint="'skip' is for reading only, such as records(on_damage='skip')",
        )
    return damage.refuse if on_damage == "raise" else _warn


def _warn(cut: Damage) -> None:
    """Logs a warning about the records that are lost."""
    if cut.blank:
        return
    log_dir, folder = os.path.split(os.path.dirname(cut.path))
    records = f"up to {cut.records} records" if cut.records != 1 else "up to 1 record"
    offsets = f", offsets {cut.new_end} to {cut.old_end - 1}" if cut.old_end > cut.new_end else ""
    also = f" and {len(cut.dropped)} segments after it" if cut.dropped else ""
    Lines("kafkalog.log", log_dir, folder).warning(
        "recovery found %s, and truncates the log there, as Kafka does: %s from byte %d on (%d bytes)%s; %s%s are lost",
        cut.why,
        cut.path,
        cut.position,
        cut.cut_bytes + sum(cut.dropped.values()),
        also,
        records,
        offsets,
    )
