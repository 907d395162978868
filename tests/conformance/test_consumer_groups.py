"""Consumer groups against Kafka 4.4.0's own classes: assignors, hashes, regular expressions, and whole scripts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from kafkalog.engine.coordinator.assignors import GroupSpec, MemberSpec, SubscriptionType
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.java_order import Assignment, name_map, name_set, partition_set, topic_map
from kafkalog.engine.coordinator.topic_hash import compute_group_hash, compute_topic_hash
from kafkalog.engine.coordinator.topic_regex import compile_for, letters_of
from kafkalog.engine.coordinator.uniform_heterogeneous import ASSIGNORS
from kafkalog.errors import InvalidRegularExpression
from tests.conformance import group_scripts, kafka_jars, messages
from tests.sampling import LONG
from tests.unit.consumer_kit import topic_id

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with group_scripts.kafkas(kafka_driver) as started:
        yield started


# --- assignors --------------------------------------------------------------------------------------------------------


def random_target(rng: random.Random, topics: dict[str, int], members: list[str]) -> dict[str, dict[str, list[int]]]:
    """A former target: some partitions have a member, some of topics that are gone."""
    found: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    for topic, count in [*topics.items(), ("gone", 3)]:
        for partition in range(count):
            if rng.random() < 0.7:
                found[rng.choice(members)].setdefault(topic, []).append(partition)
    return found


@pytest.mark.parametrize("kind", list(SubscriptionType))
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_assignors(kafka: messages.Kafka, assignor: str, kind: SubscriptionType) -> None:
    for seed in range(2_000 if LONG else 150):
        rng = random.Random(seed)
        topics = {f"t{each}": rng.choice((1, 2, 3, 7, 12, 40)) for each in range(rng.randrange(1, 20))}
        members = [f"{rng.getrandbits(64):x}" for _ in range(rng.randrange(1, 30))]
        same = rng.sample(list(topics), rng.randrange(len(topics) + 1)) + rng.choice(([], ["missing"]))
        target = random_target(rng, topics, members)
        if kind is SubscriptionType.HOMOGENEOUS:
            reads = dict.fromkeys(members, same)
        else:
            reads = {each: rng.sample([*topics, "missing"], rng.randrange(len(topics) + 1)) for each in members}
        instances = {each: f"i{rng.randrange(1000)}-{each}" if rng.random() < 0.2 else None for each in members}
        kafka.ask([{"op": "topics", "topics": {t: [topic_id(t), n] for t, n in topics.items()}, "version": 1}])
        asked = {
            "op": "assign",
            "assignor": assignor,
            "type": kind.name,
            "members": [
                {
                    "id": each,
                    "instance": instances[each],
                    "topics": reads[each],
                    "target": [[topic_id(t), partitions] for t, partitions in target[each].items()],
                }
                for each in members
            ],
        }
        theirs = kafka.ask([asked])[0]["response"]
        assert ours(assignor, kind, topics, members, reads, instances, target) == theirs, seed


def ours(
    assignor: str,
    kind: SubscriptionType,
    topics: dict[str, int],
    members: list[str],
    reads: dict[str, list[str]],
    instances: dict[str, str | None],
    target: dict[str, dict[str, list[int]]],
) -> list[list[object]]:
    specs: dict[str, MemberSpec] = name_map()
    owners: dict[str, dict[int, str]] = {}
    for each in members:
        names = name_set(reads[each])
        assignment: Assignment = topic_map()
        for topic, partitions in target[each].items():
            assignment[topic_id(topic)] = partition_set(partitions)  # type: ignore[index]
            owners.setdefault(topic_id(topic), {}).update(dict.fromkeys(partitions, each))
        ids = dict.fromkeys(topic_id(topic) for topic in names if topic in topics)
        specs[each] = MemberSpec(instances[each], ids, len(names), assignment)
    counts = {topic_id(topic): count for topic, count in topics.items()}
    found = ASSIGNORS[assignor](GroupSpec(specs, kind, owners), counts.__getitem__)
    return [[each, [[t, list(partitions)] for t, partitions in found.get(each, {}).items()]] for each in specs]


# --- hashes -----------------------------------------------------------------------------------------------------------


def test_hashes(kafka: messages.Kafka) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        topics = {
            "t" * rng.randrange(1, 120) + str(each): rng.choice((1, 2, 3, 20, 60, 300, 1000)) for each in range(5)
        }
        kafka.ask([{"op": "topics", "topics": {t: [topic_id(t), n] for t, n in topics.items()}, "version": 1}])
        theirs = kafka.ask([{"op": "hash"}])[0]
        hashes = {t: compute_topic_hash(t, topic_id(t), n) for t, n in topics.items()}
        assert hashes == theirs["response"]
        assert compute_group_hash(hashes) == theirs["group"]


# --- regular expressions ----------------------------------------------------------------------------------------------

PIECES = [
    *"ab019._-kKsS.*+?|()[]^$-{},\\", "{2}", "{1,3}", "{0}", "{,2}", "{1001}", "(?:", "(?i)", "(?i:", "(?-i)", "(?P<n>",
    "(?<m>", "(?P=n)", "(?=a)", "(?s)", "(?m)", "(?U)", "(?x)", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\b", r"\B",
    r"\A", r"\z", r"\Z", r"\Q", r"\E", r"\C", r"\pL", r"\PL", r"\p{Lu}", r"\p{^Ll}", r"\p{Greek}", r"\p{Latin}",
    r"\p{Foo}", r"\x41", r"\x{61}", r"\x4", r"\101", r"\1", r"\07", r"\.", r"\-", r"\_", r"\n", r"\e", "[[:alpha:]]",
    "[[:^digit:]]", "[[:foo:]]", "[[:space:]]", "[[:punct:]]", "[[:cntrl:]]", r"\p{Han}", r"\p{Cyrillic}",
    r"\p{Common}", r"\P{Greek}", " ", "!", "\n", "(?m)^", "(?m)$", "(?is)", "[^a-c]", "[a-z0-9]",
    "[z-a]", r"[\d-]", "[]a]", "\u017f", "\u212a", "\u00e9",
]  # fmt: skip
NAMES = ["a", "b", "ab", "aab", "orders", "orders-eu", "k", "K", "s", "S", "0", "01", "a.b", "_", "-", "A1", "abc", "."]


IDS = [
    *NAMES, "", "\u00e9", "a b", "a\nb", "\n", "\n\n", "\u017f", "\u212a", "\u03c9", "\u03a91", "!x", "\t",
    "\u65e5\u672c", "\u0416", "\x7f", "a\r", "+", "a!", "\u20ac", "\u00c9",
]  # fmt: skip


@pytest.mark.parametrize("names", [NAMES, IDS], ids=["topics", "ids"])
def test_regular_expressions(kafka: messages.Kafka, names: list[str]) -> None:
    rng = random.Random(7)
    letters = letters_of(names)
    for _ in range(60_000 if LONG else 3_000):
        pattern = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 7)))
        theirs = kafka.ask([{"op": "regex", "pattern": pattern, "names": names}])[0]
        if "error" in theirs:
            with pytest.raises(InvalidRegularExpression, match=re.escape(f"expression: {theirs['error']}.")):
                compile_for(letters, pattern)
        else:
            compiled = compile_for(letters, pattern)
            assert [compiled.matches(each) for each in names] == theirs["response"], pattern


# --- scripts ----------------------------------------------------------------------------------------------------------

SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0)


@pytest.mark.parametrize("seed", range(200 if LONG else 12))
def test_scripts(kafka: messages.Kafka, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    both = group_scripts.Both(kafka, monkeypatch, SETTINGS, **{"group.initial.rebalance.delay.ms": "0"})
    group_scripts.Play(both, seed).run(120)


@pytest.mark.parametrize("seed", range(200 if LONG else 12))
def test_scripts_of_both_protocols(kafka: messages.Kafka, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    both = group_scripts.Both(kafka, monkeypatch, SETTINGS, **{"group.initial.rebalance.delay.ms": "0"})
    group_scripts.Play(both, seed, classic=True).run(120)
