"""The toolbox's commands for whole directories next to a real broker, and after it has stopped: with two log
directories.

`log-dirs` must print the same as kafka-log-dirs. After `move`, `delete-records` and `retain`, a broker must start, log
no complaint and serve the records.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kafkalog.cli.app import invoke
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox import move
from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conftest import leave_out, need_broker

pytestmark = pytest.mark.broker

SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "500"}
T0, T1, C0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("c", 0)
ALL = (T0, T1, C0)


@dataclass
class Story:
    """The observations; `served` has one entry for each run of the broker."""

    served: list[dict[TopicPartition, clients.Seen]] = field(default_factory=list)
    complaints: list[list[str]] = field(default_factory=list)
    told: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)  # (theirs, ours)
    of_t: tuple[str, str] = ("", "")  # as printed
    beside: list[tuple[int, str]] = field(default_factory=list)
    locked: list[tuple[int, str]] = field(default_factory=list)
    home: Path = Path()
    moved_to: Path = Path()
    homes: list[list[str]] = field(default_factory=list)  # the directories of t-0
    done: list[tuple[int, str]] = field(default_factory=list)


def run(*argv: object) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = invoke([str(arg) for arg in argv])
    return code, out.getvalue()


def kafka_log_dirs(tool: kafka_jars.Driver, node: kraft.Broker, *args: str) -> str:
    command = tool.command(
        "--bootstrap-server", node.bootstrap, "--describe", *args, main="org.apache.kafka.tools.LogDirsCommand"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("{"))


def ordered(told: str) -> dict[str, Any]:
    """Without the order of Java's maps."""
    found: dict[str, Any] = json.loads(told)
    for broker in found["brokers"]:
        broker["logDirs"].sort(key=lambda entry: entry["logDir"])
        for entry in broker["logDirs"]:
            entry["partitions"].sort(key=lambda each: each["partition"])
    return found


def folders(node: kraft.Broker) -> list[str]:
    return sorted(str(path) for at in node.log_dirs for path in at.glob("t-0*"))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    need_broker()
    try:
        tool = kafka_jars.tools()
    except kafka_jars.KafkaMissingError as error:
        leave_out(error)
    place = tmp_path_factory.mktemp("toolbox")
    with kraft.broker(place, log_dir_count=2) as node:
        yield tell(node, tool)
    shutil.rmtree(place, ignore_errors=True)


def tell(node: kraft.Broker, tool: kafka_jars.Driver) -> Story:
    seen = Story()
    node.start()
    clients.create_topics(node.bootstrap, {"t": (2, SMALL), "c": (1, {"cleanup.policy": "compact", **SMALL})})
    producer = clients.ConfluentProducer(node.bootstrap, "zstd")
    for number in range(12):
        producer.send("t", 0, clients.rows(number, 20))
        producer.send("t", 1, clients.rows(100 + number, 20))
        producer.send("c", 0, [row._replace(key=b"k%d" % number) for row in clients.rows(200 + number, 5)])
    seen.told.append((ordered(kafka_log_dirs(tool, node)), ordered(run("log-dirs", *node.log_dirs)[1])))
    seen.of_t = kafka_log_dirs(tool, node, "--topic-list", "t"), run("log-dirs", "--topic-list", "t", *node.log_dirs)[1]
    home = next(at for at in node.log_dirs if (at / "t-0").is_dir())
    other = next(at for at in node.log_dirs if at != home)
    seen.home, seen.moved_to = home, other
    for argv in (
        ["topics", *node.log_dirs],
        ["topics", "--exact", *node.log_dirs],
        ["du", *node.log_dirs],
        ["explain", home / "t-0"],
        ["checkpoint", *node.log_dirs],
        ["retain", home / "t-0", "-X", "retention.bytes=1"],
        ["delete-records", home / "t-0", "--before", "100"],
        ["move", home / "t-0", other],
    ):
        seen.beside.append(run(*argv))
    for argv in (
        ["retain", home / "t-0", "-X", "retention.bytes=1", "--yes"],
        ["delete-records", home / "t-0", "--before", "100", "--yes"],
        ["move", home / "t-0", other, "--yes"],
        ["checkpoint", "set", home / "recovery-point-offset-checkpoint", "t-0", "0", "--yes"],
    ):
        seen.locked.append(run(*argv))
    seen.served.append(clients.consume(node.bootstrap, ALL, "read_committed"))
    node.stop()
    seen.complaints.append(node.complaints(("t-0", "t-1")))

    seen.homes.append(folders(node))
    seen.done.append(run("move", home / "t-0", other, "--yes"))
    seen.homes.append(folders(node))
    at = next(at for at in node.log_dirs if (at / "t-1").is_dir())
    seen.done.append(run("delete-records", at / "t-1", "--before", "100", "--yes"))
    seen.done.append(run("verify", "--deep", other))
    node.start()
    seen.served.append(clients.consume(node.bootstrap, ALL, "read_committed"))
    seen.told.append((ordered(kafka_log_dirs(tool, node)), ordered(run("log-dirs", *node.log_dirs)[1])))
    producer = clients.ConfluentProducer(node.bootstrap, "lz4")
    producer.send("t", 0, clients.rows(500, 20))
    node.stop()
    seen.complaints.append(node.complaints(("t-0", "t-1")))
    seen.homes.append(folders(node))

    seen.done.append(run("retain", at / "t-1", "-X", "retention.ms=-1", "--yes"))
    seen.done.append(run("retain", other, "t-0", "-X", "retention.bytes=3000", "--yes"))
    node.start()
    seen.served.append(clients.consume(node.bootstrap, ALL, "read_committed"))
    node.stop()
    seen.complaints.append(node.complaints(("t-0", "t-1")))
    seen.done.append(run("checkpoint", *node.log_dirs))
    return seen


def test_log_dirs_is_kafkas(story: Story) -> None:
    for theirs, ours in story.told:
        assert ours == theirs
    theirs, ours = story.of_t
    assert ordered(theirs) == ordered(ours)


def test_beside_the_broker_all_of_them_tell_and_none_changes(story: Story) -> None:
    assert [code for code, _ in story.beside] == [0] * len(story.beside), story.beside
    assert [code for code, _ in story.locked] == [3] * len(story.locked), story.locked
    assert all("(java) holds it" in text for _, text in story.locked)


def test_each_was_done(story: Story) -> None:
    assert [code for code, _ in story.done] == [0] * len(story.done), story.done


def test_the_broker_serves_what_was_moved_and_writes_on_there(story: Story) -> None:
    before, after, _ = story.served
    assert after[T0] == before[T0]
    assert after[C0] == before[C0]
    assert story.homes == [[str(story.home / "t-0")], [str(story.moved_to / "t-0")], [str(story.moved_to / "t-0")]]


def test_deleted_records_stay_deleted(story: Story) -> None:
    before, after, last = story.served
    for served in (after, last):
        assert served[T1].start == 100
        assert served[T1].records == [record for record in before[T1].records if record.offset >= 100]


def test_what_retention_left_is_served(story: Story) -> None:
    _, after, last = story.served
    start = last[T0].start
    assert start > after[T0].start
    assert last[T0].records[:-20] == [record for record in after[T0].records if record.offset >= start]


def test_the_broker_has_no_complaints(story: Story) -> None:
    assert story.complaints == [[], [], []]


def test_a_move_that_a_crash_cut_short(tmp_path: Path) -> None:
    """With half a copy the broker loses nothing; with two copies it refuses to start, and the same move continues."""
    with kraft.broker(tmp_path / "node", log_dir_count=2) as node:
        node.start()
        clients.create_topics(node.bootstrap, {"t": (1, SMALL)})
        producer = clients.ConfluentProducer(node.bootstrap, "zstd")
        for number in range(8):
            producer.send("t", 0, clients.rows(number, 20))
        before = clients.consume(node.bootstrap, [T0], "read_committed")
        node.stop()
        home = next(at for at in node.log_dirs if (at / "t-0").is_dir())
        other = next(at for at in node.log_dirs if at != home)
        plan = move.plan_move(str(home), T0, str(other))
        shutil.copytree(plan.source, plan.future)
        torn = sorted(Path(plan.future).glob("*.log"))[1]
        torn.write_bytes(torn.read_bytes()[:700] + bytes(300))
        for log_dir in node.log_dirs:
            (log_dir / ".kafka_cleanshutdown").unlink()
        node.start()
        assert clients.consume(node.bootstrap, [T0], "read_committed") == before
        node.stop()
        # It has finished the move itself, or put the copy away as a stray.
        (found,) = [path for path in folders(node) if path.endswith("t-0")]
        home = Path(found).parent
        other = next(at for at in node.log_dirs if at != home)
        for path in other.glob("t-0*"):
            shutil.rmtree(path)

        shutil.copytree(home / "t-0", other / "t-0")
        node.launch()
        assert node.wait(kraft.START_SECONDS_MAX) != 0
        assert "Duplicate log directories for t-0" in node.log_text()
        plan = move.plan_move(str(home), T0, str(other))
        assert plan.step is move.Step.COMPARE
        move.carry_out(plan)
        node.start()
        assert clients.consume(node.bootstrap, [T0], "read_committed") == before
        assert node.complaints(("t-0",)) == []
        node.stop()
        assert [path for path in folders(node) if path.endswith("t-0")] == [str(other / "t-0")]
