"""Verification of transactional appends (KIP-890): a guard proves that the coordinator has confirmed a producer.

A partition creates a guard before it asks the transaction coordinator, and accepts the append only with the same guard.
Guards are compared by an identity number; `VerificationGuard.SENTINEL` never verifies anything. Source classes:
VerificationGuard, VerificationStateEntry. Guarded by the lock of the UnifiedLog that has the entry.
"""

from __future__ import annotations

import itertools
import threading
from typing import ClassVar

from kafkalog.engine.files.processes import held_over_forks

_next_value = itertools.count(1)  # guarded by _next_value_lock, because partitions have separate locks
_next_value_lock = threading.RLock()
held_over_forks(_next_value_lock)


class VerificationGuard:
    """VerificationGuard: a token that differs from every other token of this process."""

    __slots__ = ("_value",)
    SENTINEL: ClassVar[VerificationGuard]

    def __init__(self) -> None:
        with _next_value_lock:
            self._value = next(_next_value)

    def verify(self, verifying_guard: VerificationGuard) -> bool:
        """Returns whether `verifying_guard` is this guard, and not the sentinel."""
        return verifying_guard is not VerificationGuard.SENTINEL and verifying_guard == self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerificationGuard) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"VerificationGuard(value={self._value})"


def _sentinel() -> VerificationGuard:
    guard = VerificationGuard.__new__(VerificationGuard)
    guard._value = 0
    return guard


VerificationGuard.SENTINEL = _sentinel()


class VerificationStateEntry:
    """VerificationStateEntry: a running verification of one producer id.

    `timestamp` (its start, in milliseconds) and `supports_epoch_bump` (transaction version 2) are those of the first
    request. `lowest_sequence` and `epoch` follow the later ones.
    """

    __slots__ = ("epoch", "lowest_sequence", "supports_epoch_bump", "timestamp", "verification_guard")

    def __init__(self, timestamp: int, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        self.timestamp = timestamp
        self.verification_guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump

    def maybe_update_lowest_sequence_and_epoch(self, incoming_sequence: int, incoming_epoch: int) -> None:
        """Keeps the lowest sequence of an epoch; a newer epoch starts over."""
        if incoming_epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, incoming_sequence)
        elif incoming_epoch > self.epoch:
            self.epoch = incoming_epoch
            self.lowest_sequence = incoming_sequence
