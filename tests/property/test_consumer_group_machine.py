"""A state machine of a consumer group: any members in any order, with lost answers, silence and changing topics.

A partition is never in two members' hands. Epochs grow. Once the members only send heartbeats, every member reaches its
target, and every partition of every topic that is read has a member.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.errors import KafkalogError
from tests.sampling import LONG
from tests.unit.consumer_kit import GROUP, Kit, Topics

TOPICS = ("orders", "mail", "log")


class Client:
    """A member as its own code sees it: what it owns counts until it has said that it gave it up."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.instance = instance
        self.epoch = 0
        self.owned: dict[str, set[int]] = {}

    def take(self, answer: dict[str, Any]) -> None:
        self.epoch = answer["memberEpoch"]
        if answer["assignment"] is not None:
            self.owned = {each["topicId"]: set(each["partitions"]) for each in answer["assignment"]["topicPartitions"]}

    def lose(self) -> None:
        self.epoch, self.owned = 0, {}


class ConsumerGroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(uniform=st.booleans(), interval=st.sampled_from((0, 1_000)))
    def begin(self, uniform: bool, interval: int) -> None:
        assignors = ("uniform", "range") if uniform else ("range", "uniform")
        self.kit = Kit(
            Topics(orders=3, mail=2),
            GroupSettings(group_consumer_assignment_interval_ms=interval, group_consumer_assignors=assignors),
        )
        self.known: list[Client] = []
        self.epoch = 0

    @rule(target=clients, is_static=st.booleans())
    def start(self, is_static: bool) -> Client:
        number = len(self.known)
        client = Client(f"m{number}", f"i{number}" if is_static else None)
        self.known.append(client)
        return client

    @rule(client=clients, topics=st.sets(st.sampled_from(TOPICS), min_size=1), regex=st.booleans())
    def join(self, client: Client, topics: set[str], regex: bool) -> None:
        told: dict[str, Any] = (
            {"subscribedTopicRegex": "|".join(sorted(topics))} if regex else {"topics": sorted(topics)}
        )
        self.send(client, 0, told)

    @rule(client=clients, says=st.booleans(), loses_answer=st.booleans())
    def beat(self, client: Client, says: bool, loses_answer: bool) -> None:
        if client.epoch > 0:
            told = {"owned": client.owned} if says else {}
            self.send(client, client.epoch, told, loses_answer=loses_answer)

    @rule(client=clients, for_a_while=st.booleans())
    def leave(self, client: Client, for_a_while: bool) -> None:
        if client.epoch > 0:
            self.send(client, -2 if for_a_while and client.instance else -1, {})
            client.lose()

    @rule(ms=st.sampled_from((0, 1_000, 5_000, 20_000, 45_000)))
    def wait(self, ms: int) -> None:
        self.kit.wait(ms)
        for each in self.known:  # a client notices that its session is over, and stops in time
            if each.epoch > 0 and not self.is_member(each):
                each.lose()

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(0, 4))
    def change_topic(self, topic: str, partitions: int) -> None:
        before = self.kit.topics.partitions(topic)
        if not partitions and before:
            self.kit.topics.delete(topic)
        elif partitions > before:
            self.kit.topics.create(topic, partitions, self.kit.topics.topic_id(topic))

    @rule()
    def restart(self) -> None:
        self.kit.open()

    def send(self, client: Client, epoch: int, told: dict[str, Any], *, loses_answer: bool = False) -> None:
        try:
            answer = self.kit.heartbeat(client.name, epoch, instanceId=client.instance, **told)
        except KafkalogError:
            client.lose()
            return
        if not loses_answer:
            client.take(answer)

    def is_member(self, client: Client) -> bool:
        found = self.kit.partition.groups.by_name.get(GROUP)
        return isinstance(found, ConsumerGroup) and client.name in found.members

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        if not hasattr(self, "kit"):
            return
        owners: dict[tuple[str, int], str] = {}
        for each in self.known:
            for topic, partitions in each.owned.items():
                for partition in partitions:
                    assert owners.setdefault((topic, partition), each.name) == each.name, (topic, partition)

    @invariant()
    def epochs_grow(self) -> None:
        found = self.kit.partition.groups.by_name.get(GROUP) if hasattr(self, "kit") else None
        if isinstance(found, ConsumerGroup):
            assert found.group_epoch >= self.epoch
            assert found.assignment_epoch <= found.group_epoch
            assert all(each.member_epoch <= found.group_epoch for each in found.members.values())
            self.epoch = found.group_epoch

    def teardown(self) -> None:
        """Everybody sends heartbeats, and the group comes to rest."""
        if not hasattr(self, "kit"):
            return
        found = self.kit.partition.groups.by_name.get(GROUP)
        if not isinstance(found, ConsumerGroup):
            return
        for turn in range(80):
            for each in self.known:
                if each.epoch > 0:
                    self.send(each, each.epoch, {"owned": each.owned})
                    self.a_partition_has_one_owner()
            self.kit.wait(1_100 if turn < 60 else 0)
        alive = [each for each in self.known if each.epoch > 0]
        assert {each.name for each in alive} == set(found.members)
        if not alive:
            return
        assert found.state == "Stable"
        for each in alive:
            assert {t: set(p) for t, p in found.target_of(each.name).items()} == each.owned, each.name
        owned = sum(len(partitions) for each in alive for partitions in each.owned.values())
        assert owned == sum(self.kit.topics.partitions(topic) for topic in found.subscriptions)


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=1_000 if LONG else 25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestConsumerGroup = ConsumerGroupMachine.TestCase
