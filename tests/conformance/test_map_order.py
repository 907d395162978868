"""The order of Java's and Scala's maps: random histories on the real classes and on ours."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.codec.java_hash import AnyRefMap, JavaConcurrentHashMap, JavaHashMap, topic_partition_hash
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from tests.broker import kraft
from tests.conformance import kafka_jars

MAIN = "io.kafkalog.conformance.MapOrder"
HISTORIES = 300
OURS: dict[str, Any] = {
    "HashMap": JavaHashMap,
    "ConcurrentHashMap": JavaConcurrentHashMap,
    "AnyRefMap": AnyRefMap,
}
# Eight names of one hash; partitions of many hashes that share a bucket: a tree of them.
MANY_OF_ONE_HASH = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=7)]
SAME_HASH = [f"{a}{b}{c}" for a in ("Aa", "BB") for b in ("Aa", "BB") for c in ("Aa", "BB")]


def keys_of(rng: random.Random, kind: str) -> list[TopicPartition]:
    if kind == "same hash":
        if rng.random() < 0.3:
            return [TopicPartition(topic, 1) for topic in MANY_OF_ONE_HASH]
        return [TopicPartition(topic, partition) for topic in SAME_HASH for partition in range(rng.choice((1, 4)))]
    if kind == "one bucket":
        step = rng.choice((64, 128, 256))
        return [TopicPartition("foo", step * number) for number in range(30)] + [TopicPartition("bar", 1)]
    count = 20 if kind == "few" else 300
    return [TopicPartition(rng.choice(("foo", "Ab", "Bb", "x.y")), rng.randrange(count)) for _ in range(count)]


def histories(kind: str) -> Iterator[tuple[bool, list[str]]]:
    """Whether the events determine Java's order, and the lines.  Behind a removal from a bucket that is a tree it
    goes by the tree's shape, and no file promises that: then the keys are compared."""
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        spread = rng.choice(("few", "many", "same hash", "one bucket"))
        keys = keys_of(rng, spread)
        removing = 0.0 if kind == "AnyRefMap" else rng.choice((0.0, 0.2, 0.45))
        lines = [kind]
        for _ in range(rng.choice((5, 14, 40, 200))):
            topic, partition = rng.choice(keys)
            lines.append(f"{'remove' if rng.random() < removing else 'put'} {topic} {partition}")
            if rng.random() < 0.2:
                lines.append("show")
        lines.append("show")
        yield not removing or spread in ("few", "many"), lines


def shown(lines: list[str]) -> list[str]:
    found: Any = None
    out = []
    for line in lines:
        words = line.split(" ")
        if words[0] in OURS:
            found = OURS[words[0]](topic_partition_hash)
        elif words[0] == "show":
            out.append(" ".join(map(str, found)))
        elif words[0] == "put":
            found[TopicPartition(words[1], int(words[2]))] = 0
        else:
            found.pop(TopicPartition(words[1], int(words[2])), None)
    return out


def real(driver: kafka_jars.Driver, lines: list[str]) -> list[str]:
    """The output of the real classes; Scala's classes come with a broker's class path."""
    if "AnyRefMap" in lines:
        driver = kafka_jars.Driver(driver.java, os.pathsep.join([driver.classpath, kraft.classpath().classpath]))
    done = subprocess.run(
        driver.command(main=MAIN), input="".join(f"{line}\n" for line in lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.jvm
@pytest.mark.parametrize("kind", ["HashMap", "ConcurrentHashMap", "AnyRefMap"])
def test_order_is_that_of_the_real_class(kind: str, kafka_driver: kafka_jars.Driver) -> None:
    theirs = iter(real(kafka_driver, [line for _, lines in histories(kind) for line in lines]))
    for seed, (is_told, lines) in enumerate(histories(kind)):
        for number, ours in enumerate(shown(lines)):
            wanted = next(theirs)
            same = ours == wanted if is_told else sorted(ours.split()) == sorted(wanted.split())
            assert same, f"history {seed}, show {number}: {lines}"


@pytest.mark.jvm
def test_high_watermarks_are_written_in_the_order_of_the_real_classes(
    kafka_driver: kafka_jars.Driver, tmp_path: Path
) -> None:
    """ReplicaManager goes through a ConcurrentHashMap of its partitions and fills an AnyRefMap a directory."""
    partitions = [TopicPartition(topic, number) for topic in ("foo", "Ab", "Bb", *SAME_HASH) for number in range(6)]
    with LogManager([tmp_path / "d1", tmp_path / "d2"]) as manager:
        places = {str(each): manager.get_or_create_log(each).parent_dir for each in partitions}
        manager.checkpoint_high_watermarks()
    puts = [f"put {topic} {number}" for topic, number in partitions]
    hosted = real(kafka_driver, ["ConcurrentHashMap", *puts, "show"])[0].split(" ")
    for directory in ("d1", "d2"):
        there = [name for name in hosted if places[name] == str(tmp_path / directory)]
        assert len(there) == len(partitions) // 2
        puts = ["put {} {}".format(*name.rsplit("-", 1)) for name in there]
        wanted = real(kafka_driver, ["AnyRefMap", *puts, "show"])[0].split(" ")
        text = (tmp_path / directory / "replication-offset-checkpoint").read_text()
        assert ["-".join(line.split(" ")[:2]) for line in text.splitlines()[2:]] == wanted
