"""A share partition under random members, time, failing writes and restarts, beside a simple model.

The model knows for each offset how often it was delivered, who has it and until when, and whether it is done. One
member has a record at a time. A record that is done is never delivered, also not after a restart. Every other record
comes again, and its delivery count rises by one. A member gets offsets in ascending order.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkalog.engine.coordinator.share_config import ShareGroupSettings
from kafkalog.errors import InvalidRecordStateException, KafkalogError
from tests.share_doubles import Shared

LOCK_MS, MAX_DELIVERIES = 30_000, 4
MEMBERS = st.sampled_from(("m1", "m2", "m3"))
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Held(NamedTuple):
    member: str
    until_ms: int


class SharePartitionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shared = Shared(settings=ShareGroupSettings(delivery_count_limit=MAX_DELIVERIES))
        self.held: dict[int, Held] = {}
        self.times: dict[int, int] = {}
        self.done: set[int] = set()
        self.fails = False

    @initialize()
    def begin(self) -> None:
        self.shared.logs.append(5)

    def _now_ms(self) -> int:
        return self.shared.timers.now_ms()

    def _is_over(self, offset: int) -> bool:
        """A record that comes free after its last delivery is archived."""
        return self.times.get(offset, 0) >= MAX_DELIVERIES

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        self.shared.logs.append(count)

    @rule(
        member=MEMBERS,
        count=st.integers(1, 12),
        mode=st.sampled_from((0, 1)),
        batches=st.sampled_from((1, 3, 100)),
        batch_size=st.sampled_from((1, 4, 500)),
    )
    def take(self, member: str, count: int, mode: int, batches: int, batch_size: int) -> None:
        acquired = self.shared.take(member, count=count, mode=mode, max_bytes=100 * batches, batch_size=batch_size)
        offsets = [at for first, last, _ in acquired for at in range(first, last + 1)]
        assert offsets == sorted(set(offsets))
        if mode == 1:
            assert len(offsets) <= count
        for first, last, times in acquired:
            for offset in range(first, last + 1):
                assert offset not in self.done, f"{offset} is done"
                assert offset not in self.held, f"{offset} belongs to {self.held[offset]}"
                assert times == self.times.get(offset, 0) + 1
                self.times[offset] = times
                self.held[offset] = Held(member, self._now_ms() + LOCK_MS)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), kind=st.sampled_from((ACCEPT, ACCEPT, RELEASE, REJECT, RENEW)))
    def end(self, data: st.DataObject, kind: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        member = self.held[offset].member
        last = offset
        while last + 1 in self.held and self.held[last + 1].member == member and data.draw(st.booleans()):
            last += 1
        try:
            self.shared.ack(offset, last, kind, member=member)
        except KafkalogError:
            assert self.fails
            return
        for each in range(offset, last + 1):
            self._end(each, kind, member)

    def _end(self, offset: int, kind: int, member: str) -> None:
        if kind == RENEW:
            self.held[offset] = Held(member, self._now_ms() + LOCK_MS)
            return
        del self.held[offset]
        if kind != RELEASE or self._is_over(offset):
            self.done.add(offset)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_what_another_has(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        before = self.shared.states()
        try:
            self.shared.ack(offset, offset, ACCEPT, member="nobody")
        except InvalidRecordStateException:
            assert self.shared.states() == before
        else:
            raise AssertionError(f"{offset} was ended by nobody")

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        try:
            self.shared.partition.release_acquired_records(member)
        except KafkalogError:
            assert self.fails
            return
        for offset in [at for at, held in self.held.items() if held.member == member]:
            self._end(offset, RELEASE, member)

    @rule(ms=st.sampled_from((1, 10_000, LOCK_MS)))
    def wait(self, ms: int) -> None:
        self.shared.advance(ms)
        for offset in [at for at, held in self.held.items() if held.until_ms <= self._now_ms()]:
            self._end(offset, RELEASE, self.held[offset].member)

    @rule(fails=st.booleans())
    def writes_fail(self, fails: bool) -> None:
        self.fails = fails
        self.shared.persister.failing = 15 if fails else 0

    @rule()
    def restart(self) -> None:
        """Unwritten changes are forgotten: members lose their records, and counts may be lower."""
        self.shared.partition.mark_fenced()
        self.shared.start()
        self.held.clear()
        kept = {}
        for first, last, state, times, _ in self.shared.states():
            for offset in range(first, last + 1):
                kept[offset] = times
                assert (state in (2, 4)) <= (offset in self.done), f"{offset} was never done"
        start = self.shared.partition.start_offset
        for offset in list(self.times):
            if offset >= start:
                self.times[offset] = kept.get(offset, 0)
        # A lock's end that could not be written is not known any more.
        self.done = {at for at in self.done if at < start or self._state_of(at) in (2, 4)}

    def _state_of(self, offset: int) -> int:
        for first, last, state, _, _ in self.shared.states():
            if first <= offset <= last:
                return state
        return 0

    @invariant()
    def states_agree(self) -> None:
        for first, last, state, times, member in self.shared.states():
            for offset in range(max(first, self.shared.partition.start_offset), last + 1):
                assert (state == 1) == (offset in self.held), offset
                if state == 1:
                    assert self.held[offset].member == member
                assert times == self.times.get(offset, 0)
        assert all(offset in self.done for offset in self.times if offset < self.shared.partition.start_offset)

    @invariant()
    def count_agrees(self) -> None:
        partition = self.shared.partition
        done = sum(
            last - max(first, partition.start_offset) + 1
            for first, last, state, _, _ in self.shared.states()
            if state in (2, 4) and last >= partition.start_offset
        )
        assert partition.delivery_complete_count == done

    def teardown(self) -> None:
        """Everything that is not done can be finished."""
        shared = self.shared
        shared.persister.failing = 0
        self.fails = False
        for _ in range(MAX_DELIVERIES + 2):
            shared.advance(LOCK_MS)
            while acquired := shared.take("last"):
                for first, last, _ in acquired:
                    shared.ack(first, last, ACCEPT, member="last")
        assert shared.partition.start_offset == shared.logs.end
        assert not shared.partition.cached


TestSharePartition = SharePartitionMachine.TestCase
TestSharePartition.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
