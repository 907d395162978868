"""Transactions over partitions and offsets under everything at once: random holders, ends, timeouts, interrupts before
and after any append, kills and power losses, for every transaction version.

The following must always hold.  A transaction ends one way in all partitions and in its offsets.  An acknowledged step
stays.  The record of completion never comes before every marker is durable.  A fenced producer writes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalog.engine.coordinator.state_log import parsed_batch
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion, listed_partitions
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset, OffsetKey, decode_group_record
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, TransactionState, decode_transaction
from kafkalog.errors import RequestError
from tests.unit.coordinator_kit import COMMIT, Disk, Store

IDS = ("one", "two")
PLACES = [TopicPartition(topic, number) for topic in "ab" for number in range(2)]
GROUP, READ = "g", TopicPartition("in", 0)
OFFSETS = TopicPartition("__consumer_offsets", partition_for(GROUP, 2))
TIMEOUT_MS = 1_000

Operation = tuple[str, int, int]
# (operation, its worker, its weight).  A turn is a whole transaction; single steps come between those of others.  A
# turn is a whole transaction; single steps come between those of others.
WEIGHTS = {
    "turn": 8, "take": 3, "add": 3, "write": 5, "offsets": 3, "commit": 4, "abort": 2, "late": 1, "tick": 2,
    "interrupt before": 5, "interrupt behind": 5, "kill": 2, "lose power": 4,
}  # fmt: skip
CRASHES = ("kill", "lose power")
STEPS = 60


def operations(seed: int) -> list[Operation]:
    draw = random.Random(seed)
    names = draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    return [(name, draw.randrange(12), draw.randrange(16)) for name in names]


@dataclass
class Handle:
    """A client: holds an id, and does as clients should."""

    name: str
    holder: ProducerIdAndEpoch
    number: int
    listed: set[TopicPartition] = field(default_factory=set)
    ending: bool = False  # an end of this holder was interrupted: it may only end


class World:
    """A store, its clients, and what they were told."""

    def __init__(self, version: TransactionVersion) -> None:
        self.version = version
        self.handles: list[Handle] = []
        self.numbers = 0
        self.written: dict[int, set[str]] = {}  # by transaction: the acknowledged records
        self.told: dict[int, bool] = {}  # by transaction: committed or aborted, as acknowledged
        self.countdown: tuple[str, int] | None = None
        self.open(Disk())

    def open(self, disk: Disk) -> None:
        self.disk = disk
        self.last: dict[str, TransactionMetadata] = {}
        self.store = Store(disk, version=self.version)
        self.store.clock.now_ms += self.numbers * 10
        self.handles = []
        self.countdown = None
        disk.before_append = lambda name: self.maybe_interrupt("before")
        disk.after_append = self.after_append
        self.store.reopen()
        self.check()

    def maybe_interrupt(self, when: str) -> None:
        if self.countdown is not None and self.countdown[0] == when:
            left = self.countdown[1]
            self.countdown = (when, left - 1) if left else None
            if not left:
                raise KeyboardInterrupt

    def after_append(self, name: str) -> None:
        if name.startswith("__transaction_state"):
            self.check_record(name)
        self.maybe_interrupt("behind")

    def check_record(self, name: str) -> None:
        """A transaction is complete only after every marker."""
        for record in parsed_batch(self.disk.log(name).batches[-1]).records:
            transactional_id, metadata = decode_transaction(record.key, record.value)
            assert metadata is not None
            if metadata.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
                self.check_markers(self.prepared(name, transactional_id), metadata)

    def prepared(self, name: str, transactional_id: str) -> TransactionMetadata:
        rows = [
            decode_transaction(record.key, record.value)
            for batch in self.disk.log(name).batches[:-1]
            for record in parsed_batch(batch).records
        ]
        found = next(metadata for each, metadata in reversed(rows) if each == transactional_id)
        assert found is not None
        return found

    def check_markers(self, prepared: TransactionMetadata, complete: TransactionMetadata) -> None:
        kind = "COMMIT" if complete.state is TransactionState.COMPLETE_COMMIT else "ABORT"
        assert prepared.state.name == f"PREPARE_{kind}"
        for each in listed_partitions(prepared):
            log = self.disk.log(str(each))
            assert log.flushed == len(log.batches), each
            if each != OFFSETS:
                mine = [row for row in self.disk.partition(each).rows if row[1] == prepared.producer_id]
                assert mine[-1][:3] == (kind, prepared.producer_id, prepared.producer_epoch), (each, mine)

    # --- what clients do -------------------------------------------------------------------------------

    def do(self, operation: Operation) -> None:
        what, which, more = operation
        if what.startswith("interrupt"):
            self.countdown = (what.removeprefix("interrupt "), more)
            return
        try:
            self.act(what, which, more)
        except RequestError:
            pass
        except KeyboardInterrupt:
            self.check_settled()

    def act(self, what: str, which: int, more: int) -> None:
        coordinator, clock = self.store.coordinator, self.store.clock
        if what == "take":
            name = IDS[which % len(IDS)]
            holder = coordinator.init_producer_id(name, TIMEOUT_MS)
            self.numbers += 1
            self.handles.append(Handle(name, holder, self.numbers))
        elif what == "late":
            clock.advance(TIMEOUT_MS + 1)
            coordinator.abort_timed_out()
        elif what == "tick":
            clock.advance(TIMEOUT_MS // 3)
        elif what == "kill":
            self.open(self.disk.crashed(len(self.disk.journal)))
        elif what == "lose power":
            self.lose_power(random.Random(which * 16 + more))
        elif not self.handles:
            self.act("take", which, more)
        elif what == "turn":
            self.turn(self.handles[-1 - which % min(3, len(self.handles))], more)
        else:
            self.act_as(self.handles[-1 - which % min(4, len(self.handles))], what, more)

    def turn(self, handle: Handle, more: int) -> None:
        """A whole transaction."""
        if not handle.ending:
            self.act_as(handle, "add", more)
            self.act_as(handle, "add", 3 * more % 16)
            if more % 2:
                self.act_as(handle, "offsets", 0)
            for number in range(4):
                self.act_as(handle, "write", number)
        self.act_as(handle, "abort" if more == 3 else "commit", more)

    def lose_power(self, draw: random.Random) -> None:
        kept = {
            name: draw.choice((log.flushed, len(log.batches), draw.randint(log.flushed, len(log.batches))))
            for name, log in self.disk.logs.items()
        }
        self.open(self.disk.lost(kept))

    def act_as(self, handle: Handle, what: str, more: int) -> None:
        coordinator = self.store.coordinator
        if what in ("commit", "abort"):
            handle.ending = True
            commit = what == "commit"
            handle.holder = coordinator.end_transaction(handle.name, handle.holder, commit=commit)
            if handle.listed:
                assert self.told.setdefault(handle.number, commit) is commit
            self.numbers += 1
            handle.listed, handle.number, handle.ending = set(), self.numbers, False
        elif handle.ending:
            return
        elif what == "add":
            places = {PLACES[more % 4], PLACES[more // 4]}
            coordinator.add_partitions(handle.name, handle.holder, sorted(places))
            handle.listed |= places
        elif what == "offsets":
            place = coordinator.add_offsets(handle.name, handle.holder, GROUP)
            handle.listed.add(place)
            self.store.offsets(place).commit(GROUP, {READ: CommittedOffset(handle.number)}, handle.holder)
            self.written.setdefault(handle.number, set()).add("offset")
        elif PLACES[more % 4] in handle.listed:
            self.numbers += 1
            value = f"{handle.number}/{self.numbers}"
            self.disk.partition(PLACES[more % 4]).append(handle.holder, value)
            self.written.setdefault(handle.number, set()).add(value)

    # --- what must hold --------------------------------------------------------------------------------

    def outcomes(self) -> dict[str, str]:
        """The outcome of every row and of every offset (`number/offset`, with its place in the log)."""
        found = {value: kind for data in self.disk.data.values() for value, kind in data.outcomes().items()}
        pending: dict[int, list[str]] = {}
        for batch in self.disk.log(str(OFFSETS)).batches:
            one = parsed_batch(batch)
            for record in one.records:
                key, committed = decode_group_record(record.key, record.value)
                assert isinstance(key, OffsetKey)
                assert isinstance(committed, CommittedOffset)
                pending.setdefault(one.producer_id, []).append(f"{committed.offset}/offset {record.offset}")
                found[pending[one.producer_id][-1]] = "open"
            if one.marker is not None:
                found.update(dict.fromkeys(pending.pop(one.producer_id, ()), one.marker.name))
        return found

    def check_settled(self) -> None:
        """After an interrupt: the next caller finds the state that the log implies."""
        read = Store(self.disk, version=self.version)
        read.coordinator.load(range(3))
        known = {each.transactional_id: each for each in self.store.coordinator.list_transactions()}
        assert known == {each.transactional_id: each for each in read.coordinator.list_transactions()}

    def check(self) -> None:
        """After a start nothing is open, and each transaction ended one way."""
        found = self.outcomes()
        assert "open" not in found.values(), found
        kinds: dict[int, set[str]] = {}
        for value, kind in found.items():
            kinds.setdefault(int(value.split("/")[0]), set()).add(kind)
        for number, each in kinds.items():
            assert len(each) == 1, (number, found)
        for number, committed in self.told.items():
            if not committed:
                assert kinds.get(number, {"ABORT"}) == {"ABORT"}, number
            elif self.written.get(number):
                assert kinds[number] == {"COMMIT"}, number
        for number, values in self.written.items():  # a transaction that is committed has all that was acknowledged
            if kinds.get(number) == {"COMMIT"}:
                there = {value for value in found if int(value.split("/")[0]) == number}
                assert {value for value in values if value != "offset"} <= there, number
                assert ("offset" not in values) or any("offset" in value for value in there), number
        self.check_offsets(found)

    def check_offsets(self, found: dict[str, str]) -> None:
        committed = [value for value, kind in found.items() if "offset" in value and kind == COMMIT.name]
        last = max(committed, key=lambda value: int(value.rsplit(" ")[-1]), default=None)
        stored = self.store.offsets(OFFSETS).fetch(GROUP, READ)
        assert (None if stored is None else stored.offset) == (None if last is None else int(last.split("/")[0]))


@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.sampled_from(list(TransactionVersion)))
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_transaction_ends_one_way(seed: int, version: TransactionVersion) -> None:
    world = World(version)
    for step in operations(seed):
        world.do(step)
    world.open(world.disk.crashed(len(world.disk.journal)))
    world.open(world.disk)  # and stays so


@given(st.integers(0, 1 << 32), st.sampled_from(list(TransactionVersion)))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_crash_behind_any_append(seed: int, version: TransactionVersion) -> None:
    """Every prefix of all that was appended: all or nothing, whatever was acknowledged by then."""
    world = World(version)
    for step in operations(seed)[:30]:
        if step[0] not in CRASHES:
            world.do(step)
    for appends in range(len(world.disk.journal) + 1):
        World(version).open(world.disk.crashed(appends))
