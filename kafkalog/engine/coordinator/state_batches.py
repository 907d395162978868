"""Combines the delivery states of a share partition's offsets.

If two batches cover the same offset, the higher delivery count wins, then the higher state. Source:
PersisterStateBatchCombiner (4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalog.engine.format.share_records import NO_OFFSET, PersisterStateBatch
from kafkalog.errors import IllegalArgumentException

Priority = tuple[int, int]  # delivery count, delivery state


def combine_state_batches(
    so_far: Sequence[PersisterStateBatch], new: Sequence[PersisterStateBatch], start_offset: int
) -> tuple[PersisterStateBatch, ...]:
    """Returns the states of all offsets from `start_offset` on (-1: of all), as sorted batches without overlap.

    Neighbours with the same state are joined. A single batch is returned as it is. Raises IllegalArgumentException for
    a batch that ends before it begins, if there are several.
    """
    if not so_far and len(new) == 1 and start_offset <= new[0].first_offset <= new[0].last_offset:
        return (new[0],)  # most writes
    pruned: list[PersisterStateBatch] = []
    for batches in (so_far, new):
        for each in batches:
            first, last, state, count = each
            if start_offset == NO_OFFSET or first >= start_offset <= last:
                pruned.append(each)
            elif last >= start_offset:
                pruned.append(PersisterStateBatch(start_offset, last, state, count))
    return tuple(pruned) if len(pruned) < 2 else tuple(_swept(pruned))


def _swept(batches: list[PersisterStateBatch]) -> list[PersisterStateBatch]:
    events: dict[int, list[tuple[Priority, int]]] = {}
    for each in batches:
        if each.last_offset < each.first_offset:
            raise IllegalArgumentException(f"{each} ends before it begins")
        priority = each.delivery_count, each.delivery_state
        events.setdefault(each.first_offset, []).append((priority, 1))
        events.setdefault(each.last_offset + 1, []).append((priority, -1))
    active: dict[Priority, int] = {}
    out: list[PersisterStateBatch] = []
    winner: Priority | None = None
    since = NO_OFFSET
    for offset in sorted(events):
        if winner is not None:
            _append_joined(out, since, offset - 1, winner)
        for priority, change in events[offset]:
            count = active.get(priority, 0) + change
            if count:
                active[priority] = count
            else:
                active.pop(priority, None)
        winner = max(active) if active else None
        since = offset
    return out


def _append_joined(out: list[PersisterStateBatch], first: int, last: int, priority: Priority) -> None:
    count, state = priority
    if out:
        tail = out[-1]
        if tail.last_offset + 1 == first and (tail.delivery_count, tail.delivery_state) == priority:
            out[-1] = tail._replace(last_offset=last)
            return
    out.append(PersisterStateBatch(first, last, state, count))
