"""`kafkalog cursors` compared with kafka-consumer-groups: it shows, exports and sets the same, on the directory of a
broker.

confluent-kafka's consumers commit, and the tool lists. Then the broker is stopped, and kafkalog lists and exports the
same, plans the tool's plan, and sets offsets.  The broker starts again: the tool shows the new offsets, and a consumer
continues from there.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conformance.test_dump_log import tool as tool
from tests.conftest import need_broker
from tests.unit.cli_kit import Run, run

__all__ = ["run", "tool"]

pytestmark = pytest.mark.broker

TOPIC, LONG_TOPIC = "orders", "a-topic-whose-name-is-quoted-in-a-csv"
PLAIN, ODD, MODERN, STAYS = "billing", 'odd, "group"', "modern", "stays"
ROWS = 20
SCOPE = ("--topic", TOPIC, "--topic", f"{LONG_TOPIC}:0")
RESETS: tuple[tuple[str, ...], ...] = (
    ("--to-earliest",),
    ("--to-latest",),
    ("--to-current",),
    ("--to-offset", "7"),
    ("--to-offset", "1000"),
    ("--shift-by", "-2"),
    ("--shift-by", "4"),
    ("--to-datetime", "2023-11-14T22:13:20.500"),
    ("--to-datetime", "2033-01-01T00:00:00.000"),
    ("--by-duration", "P20000D"),
)
Rows = list[list[str]]


class Told(NamedTuple):
    """The tool's output while the broker ran, and the broker, which is stopped by now."""

    node: kraft.Broker
    described: dict[str, Rows]
    exported: dict[tuple[str, ...], list[str]]
    both: list[str]


def asked(tool: kafka_jars.Driver, bootstrap: str, *args: str) -> str:
    main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    done = subprocess.run(
        tool.command("--bootstrap-server", bootstrap, *args, main=main), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def described(tool: kafka_jars.Driver, bootstrap: str, group: str) -> Rows:
    """Topic, partition, offset, end, lag of each line; the group may have spaces in it."""
    lines = asked(tool, bootstrap, "--describe", "--group", group).splitlines()
    rows = [line.removeprefix(group).split() for line in lines if line.startswith(group)]
    return sorted(row[:5] for row in rows)


def consumer(bootstrap: str, group: str, **more: Any) -> Any:
    import confluent_kafka

    config = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **clients.QUIET}
    return confluent_kafka.Consumer(config | {"auto.offset.reset": "error"} | more)


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int], protocol: str = "classic") -> None:
    """By a consumer that was assigned its partitions itself."""
    from confluent_kafka import TopicPartition as Place

    who = consumer(bootstrap, group, **{"group.protocol": protocol})
    who.commit(offsets=[Place(*place, at) for place, at in offsets.items()], asynchronous=False)
    who.close()


def joined(bootstrap: str, group: str, protocol: str) -> Any:
    """A member that has read all of TOPIC, and committed."""
    found = consumer(bootstrap, group, **{"group.protocol": protocol, "auto.offset.reset": "earliest"})
    found.subscribe([TOPIC])
    until = time.monotonic() + 60
    seen = 0
    while seen < 2 * ROWS:
        message = found.poll(0.2)
        seen += message is not None and message.error() is None
        assert time.monotonic() < until, group
    found.commit(asynchronous=False)
    return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, tool: kafka_jars.Driver) -> Iterator[Told]:
    need_broker()
    with kraft.broker(tmp_path_factory.mktemp("cursors")) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {}), LONG_TOPIC: (1, {})})
        producer = clients.ConfluentProducer(node.bootstrap)
        for topic, partition in ((TOPIC, 0), (TOPIC, 1), (LONG_TOPIC, 0)):
            producer.send(topic, partition, clients.rows(partition, ROWS))
        at = node.bootstrap
        commit(at, PLAIN, {(TOPIC, 0): 5, (TOPIC, 1): 11, (LONG_TOPIC, 0): 3})
        commit(at, ODD, {(TOPIC, 0): 4})
        joined(at, MODERN, "consumer").close()
        exported = {
            reset: asked(tool, at, "--group", PLAIN, "--reset-offsets", *SCOPE, *reset, "--export").splitlines()
            for reset in RESETS
        }
        both = asked(
            tool, at, "--group", PLAIN, "--group", ODD, "--reset-offsets", "--topic", TOPIC, "--to-current", "--export"
        ).splitlines()
        stays = joined(at, STAYS, "classic")
        told = {group: described(tool, at, group) for group in (PLAIN, ODD, MODERN, STAYS)}
        node.kill()  # with a member that never left visibly
        stays.close()
        node.start()
        node.stop()
        yield Told(node, told, exported, both)


def listed(run: Run, logs: Path, group: str) -> Rows:
    result = run("cursors", logs, "--group", group, "--json")
    assert result.code == 0, result.err
    entries = [json.loads(line) for line in result.lines]
    names = ("topic", "partition", "offset", "logEndOffset", "lag")
    return sorted([str(each[name]) for name in names] for each in entries if each["kind"] == "cursor")


@pytest.mark.parametrize("group", [PLAIN, ODD, MODERN, STAYS])
def test_the_list_is_what_the_tool_described(story: Told, run: Run, group: str) -> None:
    assert len(story.described[group]) in (1, 2, 3)
    assert listed(run, story.node.log_dir, group) == story.described[group]


@pytest.mark.parametrize("reset", RESETS, ids=" ".join)
def test_an_export_is_what_the_tool_exported(story: Told, run: Run, reset: tuple[str, ...]) -> None:
    result = run("cursors", story.node.log_dir, "--group", PLAIN, "--reset-offsets", *SCOPE, *reset, "--export")
    assert result.code == 0, result.err
    theirs = [line for line in story.exported[reset] if line.count(",") == 2 and not line.startswith("Warn")]
    assert len(theirs) == 3
    assert sorted(result.lines) == sorted(theirs)


def test_an_export_of_groups_is_what_the_tool_exported(story: Told, run: Run) -> None:
    asked_for = ("--group", PLAIN, "--group", ODD, "--topic", TOPIC, "--to-current", "--export")
    result = run("cursors", story.node.log_dir, *asked_for)
    assert sorted(result.lines) == sorted(line for line in story.both if line)
    assert len(result.lines) == 4


def test_the_broker_goes_on_from_what_was_set(story: Told, run: Run, tool: kafka_jars.Driver, tmp_path: Path) -> None:
    """The last: it changes the directory."""
    node, logs = story.node, story.node.log_dir
    ends = {(TOPIC, number): ROWS for number in range(2)}
    assert run("cursors", logs, "--group", PLAIN, "--topic", TOPIC, "--shift-by", 3, "--yes").code == 0
    plan = tmp_path / "plan.csv"
    plan.write_bytes(run("cursors", logs, "--group", PLAIN, "--topic", TOPIC, "--to-current", "--export").octets)
    assert run("cursors", logs, "--group", "made here", "--from-file", plan, "--yes").code == 0
    assert run("cursors", logs, "--group", MODERN, "--topic", f"{TOPIC}:1", "--to-offset", 2, "--yes").code == 0
    assert run("cursors", logs, "--group", ODD, "--delete", "--yes").code == 0
    assert run("cursors", logs, "--group", PLAIN, "--delete-offsets", "--topic", LONG_TOPIC, "--yes").code == 0
    refused = run("cursors", logs, "--group", STAYS, "--topic", TOPIC, "--to-earliest", "--yes")
    assert refused.code == 2
    assert "members" in refused.err
    gone = run("cursors", logs, "--group", STAYS, "--topic", TOPIC, "--to-offset", 6, "--members-gone", "--yes")
    assert gone.code == 0, gone.err
    expected: dict[str, dict[tuple[str, int], int]] = {
        PLAIN: {(TOPIC, 0): 8, (TOPIC, 1): 14},
        "made here": {(TOPIC, 0): 8, (TOPIC, 1): 14},
        MODERN: {(TOPIC, 0): ROWS, (TOPIC, 1): 2},
        STAYS: {(TOPIC, 0): 6, (TOPIC, 1): 6},
    }
    before = {group: listed(run, logs, group) for group in expected}
    node.start()
    assert not node.complaints()
    for group, places in expected.items():
        shown = described(tool, node.bootstrap, group)
        assert shown == before[group]
        assert {(topic, int(number)): int(at) for topic, number, at, _, _ in shown} == places
    groups = asked(tool, node.bootstrap, "--list").splitlines()
    assert set(groups) == set(expected)
    for group, places in expected.items():
        who = consumer(node.bootstrap, group, **{"group.protocol": "consumer" if group == MODERN else "classic"})
        who.subscribe([TOPIC])
        wanted = {place: ends[place] - at for place, at in places.items()}
        seen: dict[tuple[str, int], list[int]] = {}
        until = time.monotonic() + 60
        while sum(map(len, seen.values())) < sum(wanted.values()):
            message = who.poll(0.2)
            assert time.monotonic() < until, (group, seen)
            if message is not None:
                assert message.error() is None, message.error()
                seen.setdefault((message.topic(), message.partition()), []).append(message.offset())
        who.close()
        assert seen == {place: list(range(at, ends[place])) for place, at in places.items() if at < ends[place]}
    beside = run("cursors", logs, "--group", PLAIN)  # while the broker runs
    assert beside.code == 0
    locked = run("cursors", logs, "--group", PLAIN, "--topic", TOPIC, "--to-latest", "--yes")
    assert locked.code == 3
    node.stop()
