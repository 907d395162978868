"""Scripts for a share partition: `play` runs one on kafkalog, `tests/broker/share` runs the same on Kafka's class.

A script is a list of steps, each a dictionary with an "op"; `scripts` writes new ones. After each step the result, the
error, and everything that can be seen of the partition and of its persister are noted.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kafkalog.engine.coordinator.share_config import ShareGroupSettings
from kafkalog.engine.coordinator.share_interfaces import Aborted
from kafkalog.engine.coordinator.share_partition import ShareAcknowledgementBatch
from kafkalog.engine.coordinator.state_batches import combine_state_batches
from kafkalog.engine.format.share_records import PersisterStateBatch
from kafkalog.errors import KafkalogError
from tests.share_doubles import MadeBatch, Shared

Step = dict[str, Any]
MEMBERS = st.sampled_from(("m1", "m2", "m3"))


class Played:
    """One script on kafkalog."""

    def __init__(self) -> None:
        self.shared: Shared | None = None
        self.written: list[PersisterStateBatch] = []

    def step(self, step: Step) -> Step:
        result: Step = {}
        try:
            found = getattr(self, "_" + step["op"])(step)
        except KafkalogError as error:
            result |= {"error": type(error).__name__, "message": error.message}
        else:
            if found is not None:
                result["result"] = found
        if self.shared is not None:
            result["state"] = self._state(self.shared)
        return result

    def _start(self, step: Step) -> None:
        settings = ShareGroupSettings(
            step.get("max_locks", 2000), step.get("max_deliveries", 5), step.get("lock_ms", 30000)
        )
        self.shared = Shared(letters=step.get("letters", False), settings=settings)

    def _restart(self, step: Step) -> None:
        shared = self._on
        shared.partition.mark_fenced()
        shared.start()

    @property
    def _on(self) -> Shared:
        assert self.shared is not None
        return self.shared

    def _append(self, step: Step) -> None:
        logs, producer = self._on.logs, step.get("producer", -1)
        marker = step.get("marker")
        made = logs.append(step["count"], producer, is_control=marker is not None)
        if marker == "ABORT":
            logs.abort_markers.add(made.base_offset)
            if any(each.producer_id == producer and not each.is_control for each in logs.batches):
                logs.aborted.append(Aborted(producer, step["first"]))

    def _take(self, step: Step) -> list[list[int]]:
        acquired = self._on.take(
            step["member"],
            count=step.get("count", 500),
            batch_size=step.get("batch_size", 500),
            mode=step.get("mode", 0),
            max_bytes=100 * step.get("batches", 1000),
            committed=step.get("committed", False),
        )
        return [list(each) for each in acquired]

    def _ack(self, step: Step) -> None:
        batches = [ShareAcknowledgementBatch(*each) for each in step["batches"]]
        self._on.partition.acknowledge(step["member"], batches)

    def _release(self, step: Step) -> None:
        self._on.partition.release_acquired_records(step["member"])

    def _advance(self, step: Step) -> None:
        self._on.advance(step["ms"])

    def _trim(self, step: Step) -> None:
        logs = self._on.logs
        logs.start = min(step["offset"], logs.end)
        logs.batches = [each for each in logs.batches if each.last_offset >= logs.start]

    def _compact(self, step: Step) -> None:
        logs = self._on.logs
        logs.batches = [each for each in logs.batches if each.base_offset != step["first"]]

    def _lso(self, step: Step) -> None:
        self._on.partition.update_cache_and_offsets(self._on.logs.start)

    def _fail(self, step: Step) -> None:
        self._on.persister.failing = step["code"]

    def _state(self, shared: Shared) -> Step:
        partition, persister = shared.partition, shared.persister
        new = [each for write in persister.writes for each in write.state_batches]
        letters = [
            [offset, each.delivery_count, each.cause]
            for each in shared.letters.letters
            for offset in range(each.first_offset, each.last_offset + 1)
        ]
        persister.writes.clear()
        shared.letters.letters.clear()
        return {
            "start": partition.start_offset,
            "end": partition.end_offset,
            "complete": partition.delivery_complete_count,
            "next": partition.next_fetch_offset(),
            "can": partition.can_acquire_records(),
            "states": [list(each) for each in shared.states()],
            "kept_start": persister.start_offset,
            "kept_complete": persister.delivery_complete_count,
            "kept": [list(each) for each in persister.batches],
            "written": [list(each) for each in combine_state_batches((), new, -1)],
            "letters": letters,
        }


def play(script: list[Step]) -> list[Step]:
    """Returns what each step of a script results in."""
    played = Played()
    return [played.step(each) for each in script]


def in_small_writes(found: Step) -> Step:
    """Returns a result of a step whose writes Kafka may cut differently: without what depends on it.

    Kafka writes each lock that ends, and each dead letter, by itself; the start that is written with them differs."""
    state = dict(found.get("state", {}))
    for name in ("kept_start", "kept_complete"):
        state.pop(name, None)
    if state:
        start = state["start"]
        state["kept"] = [[max(a, start), b, *rest] for a, b, *rest in state["kept"] if b >= start]
        state["letters"] = sorted(state["letters"])
    return {**found, "state": state}


@st.composite
def scripts(draw: st.DrawFn, *, most: int = 30) -> list[Step]:
    """Draws a script. It acknowledges what was acquired more often than it does nonsense."""
    start: Step = {
        "op": "start",
        "max_deliveries": draw(st.sampled_from((2, 3, 5, 5, 6))),
        "max_locks": draw(st.sampled_from((8, 30, 2000))),
        "letters": draw(st.booleans()),
    }
    script: list[Step] = [start]
    played = Played()
    played.step(start)
    for _ in range(draw(st.integers(3, most))):
        step = draw(_steps(played))
        played.step(step)
        script.append(step)
    return script


@st.composite
def _steps(draw: st.DrawFn, played: Played) -> Step:
    op = draw(
        st.sampled_from(
            (
                *(*("append",) * 3, *("take",) * 6, *("ack",) * 7),
                *("release", "advance", "trim", "lso", "fail", "restart", "compact", "marker"),
            )
        )
    )
    return _make(draw, op, played)


def _make(draw: st.DrawFn, op: str, played: Played) -> Step:
    shared = played._on
    end = shared.logs.end
    if op == "append":
        producer = draw(st.sampled_from((-1, -1, -1, 7, 8)))
        return {"op": op, "count": draw(st.integers(1, 12)), "producer": producer}
    if op == "marker":
        producer = draw(st.sampled_from((7, 8)))
        first = _first_open(shared.logs.batches, producer)
        if first is None:
            return {"op": "append", "count": 3}
        marker = draw(st.sampled_from(("ABORT", "COMMIT")))
        return {"op": "append", "count": 1, "producer": producer, "marker": marker, "first": first}
    if op == "take":
        return {
            "op": op,
            "member": draw(MEMBERS),
            "count": draw(st.sampled_from((1, 2, 5, 10, 500))),
            "batch_size": draw(st.sampled_from((1, 5, 500))),
            "mode": draw(st.sampled_from((0, 0, 1))),
            "batches": draw(st.sampled_from((1, 2, 1000))),
            "committed": draw(st.booleans()),
        }
    if op == "ack":
        return _acks(draw, shared)
    if op == "release":
        return {"op": op, "member": draw(MEMBERS)}
    if op == "advance":
        return {"op": op, "ms": draw(st.sampled_from((1, 10_000, 15_000, 30_000, 60_000)))}
    if op == "trim":
        low = shared.logs.start
        return {"op": op, "offset": draw(st.integers(low, max(low, min(end, low + 8))))}
    if op == "compact":
        batches = [each.base_offset for each in shared.logs.batches[:-1]]
        return {"op": op, "first": draw(st.sampled_from(batches))} if batches else {"op": "append", "count": 2}
    if op == "fail":
        return {"op": op, "code": draw(st.sampled_from((0, 0, 15, 74)))}
    return {"op": op}


def _first_open(batches: list[MadeBatch], producer: int) -> int | None:
    first = None
    for each in batches:
        if each.producer_id == producer:
            if each.is_control:
                first = None
            elif first is None:
                first = each.base_offset
    return first


def _acks(draw: st.DrawFn, shared: Shared) -> Step:
    held = [each for each in shared.states() if each[2] == 1]
    if not held or draw(st.integers(0, 9)) == 0:
        first = draw(st.integers(0, max(1, shared.logs.end)))
        last = first + draw(st.integers(0, 5))
        batches = [[first, last, [draw(st.integers(0, 4))]]]
        return {"op": "ack", "member": draw(MEMBERS), "batches": batches}
    member = draw(st.sampled_from(sorted({each[4] for each in held})))
    batches = []
    for first, last, _, _, owner in held:
        if owner != member or draw(st.integers(0, 3)) == 0:
            continue
        if draw(st.booleans()):
            first = draw(st.integers(first, last))
            last = draw(st.integers(first, last))
        size = last - first + 1
        kinds = st.sampled_from((0, 1, 1, 1, 2, 2, 3, 4))
        types = draw(st.lists(kinds, min_size=size, max_size=size)) if draw(st.booleans()) else [draw(kinds)]
        batches.append([first, last, types])
    return {"op": "ack", "member": member, "batches": batches}
