"""Members of a classic group come, go, fall silent and are slow, in any order; appends fail, and the store restarts.

At every step:
- A generation has one division: each partition belongs to at most one member, and a member that asks twice gets the
  same.
- Generations grow, over restarts too.
- Only members of the current generation commit, and what was committed is read back.
- A member that sends heartbeats in time stays, unless it misses a rebalance.
- Memory and log agree: another coordinator that reads the log knows the same generation, members and assignments of a
  stable group.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalog.engine.coordinator.classic_group import ClassicGroup, ClassicGroupState
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.messages import Values
from kafkalog.errors import KafkaStorageException
from tests.sampling import LONG
from tests.unit.group_kit import GroupKit, subscription

GROUP, PARTITIONS = "g", 6
SLOTS = st.integers(0, 4)


class Client:
    """A client: what it knows, and the answer that it waits for. A static one keeps its instance id."""

    def __init__(self, number: int) -> None:
        self.instance_id = f"i{number}" if number == 4 else None
        self.member_id = ""
        self.generation = -1
        self.joining: Future[Values] | None = None
        self.syncing: Future[Values] | None = None
        self.joined: Values | None = None
        self.is_synced = False

    def forget(self) -> None:
        self.__init__(4 if self.instance_id else 0)  # type: ignore[misc]


class GroupMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.kit = GroupKit(GroupSettings(group_initial_rebalance_delay_ms=100))
        self.clients = [Client(each) for each in range(5)]
        self.owners: dict[int, dict[int, str]] = {}  # by generation and partition
        self.shares: dict[tuple[int, str], bytes] = {}
        self.generation = 0
        self.committed: int | None = None
        self.failures = 0
        self._watch()

    def _watch(self) -> None:
        self.kit.log.disk.before_append = self._before_append
        self.kit.groups.load([0])

    def _before_append(self, name: str) -> None:
        if self.failures:
            self.failures -= 1
            raise KafkaStorageException("the disk failed")

    # --- what clients do ------------------------------------------------------------------------------

    @rule(slots=st.lists(SLOTS, min_size=1, max_size=5, unique=True), ms=st.sampled_from([0, 150]))
    def go_on(self, slots: list[int], ms: int) -> None:
        """Clients do what they have to do next, twice."""
        for slot in [*slots, *slots]:
            client = self.clients[slot]
            self.answers_are_taken()
            if client.generation < 0:
                self.join(slot, "t", 9)
            elif client.syncing is None and client.is_synced:
                self.beat(slot)
            else:
                self.sync(slot)
            self.wait(ms)

    @rule(slot=SLOTS, topics=st.sampled_from(["t", "tu"]), version=st.sampled_from([3, 9]))
    def join(self, slot: int, topics: str, version: int) -> None:
        client = self.clients[slot]
        if client.joining is None:
            client.syncing = None
            client.joining = self.kit.join(
                GROUP,
                client.member_id,
                version=9 if client.instance_id else version,
                groupInstanceId=client.instance_id,
                sessionTimeoutMs=6_000,
                rebalanceTimeoutMs=4_000,
                protocols={"range": subscription(*topics)},
            )

    @rule(slot=SLOTS)
    def sync(self, slot: int) -> None:
        client = self.clients[slot]
        if client.joined is not None and client.joining is None and client.syncing is None:
            members = [each["memberId"] for each in client.joined["members"]]
            shares: dict[str, list[int]] = {each: [] for each in members}
            for partition in range(PARTITIONS if members else 0):
                shares[members[partition % len(members)]].append(partition)
            told = {each: bytes(numbers) for each, numbers in shares.items()}
            client.syncing = self.kit.sync(GROUP, client.joined, told, groupInstanceId=client.instance_id)

    @rule(slot=SLOTS)
    def beat(self, slot: int) -> None:
        client = self.clients[slot]
        if client.generation >= 0 and client.joining is None:
            told = {"groupInstanceId": client.instance_id}
            self._took(client, self.kit.heartbeat(GROUP, client.member_id, client.generation, **told))

    def _took(self, client: Client, code: int) -> None:
        if code in (Errors.REBALANCE_IN_PROGRESS, Errors.ILLEGAL_GENERATION):
            client.generation, client.joined = -1, None
        elif code in (Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID, Errors.NOT_COORDINATOR):
            client.forget()

    @rule(slot=SLOTS, offset=st.integers(0, 99), is_stranger=st.booleans())
    def commit(self, slot: int, offset: int, is_stranger: bool) -> None:
        client = self.clients[slot]
        group = self.group
        told: dict[str, Any] = {}
        if not is_stranger:
            told = {"memberId": client.member_id, "generationIdOrMemberEpoch": client.generation}
            told["groupInstanceId"] = client.instance_id
        [code] = self.kit.commit(GROUP, {("t", 0): offset}, **told)
        if code == Errors.NONE:
            self.committed = offset
            if group is not None and not group.is_empty:
                assert client.member_id in group.members
                assert client.generation == group.generation

    @rule(slot=SLOTS)
    def leave(self, slot: int) -> None:
        client = self.clients[slot]
        if client.member_id:
            self.kit.leave(GROUP, (client.member_id, client.instance_id))
            client.forget()

    @rule(slot=SLOTS)
    def crash(self, slot: int) -> None:
        """The client falls silent, and starts anew later."""
        self.clients[slot].forget()

    # --- what happens to them -------------------------------------------------------------------------

    @rule(ms=st.sampled_from([50, 300, 1_000, 4_500, 7_000]))
    def wait(self, ms: int) -> None:
        self.kit.pass_ms(ms, step_ms=250)

    @rule()
    def fail(self) -> None:
        self.failures = 1

    @rule()
    def restart(self) -> None:
        """A kill: nobody gets an answer any more, and connections end."""
        self.failures = 0
        self.kit = self.kit.restarted()
        self._watch()
        self.generation = 0  # one that was not written is used again; nobody had it as a stable one
        for client in self.clients:
            if client.joining is not None:
                client.forget()
            client.syncing = None

    # --- what must hold -------------------------------------------------------------------------------

    @property
    def group(self) -> ClassicGroup | None:
        found = self.kit.partition.groups.by_name.get(GROUP)
        assert found is None or isinstance(found, ClassicGroup)
        return found

    @invariant()
    def answers_are_taken(self) -> None:
        for client in self.clients:
            if client.joining is not None and client.joining.done():
                answer, client.joining = client.joining.result(0), None
                if answer["errorCode"] == Errors.NONE:
                    client.member_id, client.generation = answer["memberId"], answer["generationId"]
                    client.joined, client.is_synced = answer, False
                else:
                    client.forget()
            if client.syncing is not None and client.syncing.done():
                answer, client.syncing = client.syncing.result(0), None
                if answer["errorCode"] == Errors.NONE:
                    client.is_synced = True
                    self._owns(client, answer["assignment"])
                else:
                    self._took(client, answer["errorCode"])

    def _owns(self, client: Client, share: bytes) -> None:
        key = (client.generation, client.member_id)
        if client.instance_id is None:  # a static member's successor has its share
            assert self.shares.setdefault(key, share) == share
            owners = self.owners.setdefault(client.generation, {})
            for partition in share:
                assert owners.setdefault(partition, client.member_id) == client.member_id

    @invariant()
    def generations_grow(self) -> None:
        group = self.group
        if group is not None and group.protocol_type:
            written = [each.generation for each in self.kit.metadata(GROUP) if each is not None]
            assert written == sorted(written)
            assert group.generation >= max(self.generation, *written, 0)
            self.generation = group.generation

    @invariant()
    def counts_agree(self) -> None:
        group = self.group
        if group is not None:
            waiting = [each for each in group.members.values() if each.awaiting_join is not None]
            assert group.awaiting_join_count == len(waiting)
            assert not group.pending_join & set(group.members)
            assert group.leader_id is None or group.leader_id in group.members
            assert (group.leader_id is None) is (not group.members)
            if group.status is not ClassicGroupState.PREPARING_REBALANCE:
                assert not waiting

    @precondition(lambda self: self.group is not None and self.group.status is ClassicGroupState.STABLE)
    @invariant()
    def the_log_knows_a_stable_group(self) -> None:
        ours = self.group
        theirs = self.kit.restarted().partition.groups.by_name[GROUP]
        assert ours is not None
        assert isinstance(theirs, ClassicGroup)
        assert (theirs.generation, theirs.assignments()) == (ours.generation, ours.assignments())

    @invariant()
    def what_was_committed_is_read(self) -> None:
        wanted = (-1 if self.committed is None else self.committed, 0)
        assert self.kit.fetch(GROUP, [("t", 0)]) == {("t", 0): wanted}


TestGroups = GroupMachine.TestCase
TestGroups.settings = settings(
    max_examples=2_000 if LONG else 40, stateful_step_count=60 if LONG else 40, deadline=None
)
