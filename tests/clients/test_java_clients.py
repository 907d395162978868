"""Java's clients and Kafka's command line tools: the same lines from Apache Kafka 4.4.0 and from `kafkalog serve`."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.broker.servers import Servers
from tests.clients.java_programs import FLAGS, connect, run_java, story

pytestmark = pytest.mark.broker
TOOLS = "org.apache.kafka.tools."


@pytest.mark.parametrize(
    "program", ["records", "transactions", "group classic", "group consumer", "share", "admin", "errors"]
)
def test_a_story_is_the_same(servers: Servers, program: str) -> None:
    lines = servers.same(story(*program.split()))
    assert len(lines) > 4, lines


def test_streams_count_words_exactly_once(servers: Servers, tmp_path: Path) -> None:
    def count(bootstrap: str) -> Sequence[str]:
        return story("streams", str(tmp_path / bootstrap.partition(":")[2]))(bootstrap)

    (line,) = servers.same(count)
    assert sum(map(int, re.findall(r"=(\d+)", line))) == 400


# --- tools -----------------------------------------------------------------------------------------------

Ask = Callable[..., list[str]]


def asked(bootstrap: str) -> Ask:
    def ask(tool: str, *args: str, stdin: str | None = None, codes: Sequence[int] = (0,)) -> list[str]:
        return run_java(f"{TOOLS}{tool}", "--bootstrap-server", bootstrap, *args, stdin=stdin, codes=codes)

    return ask


def test_topics_and_console(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        ask = asked(bootstrap)
        lines = ask(
            "TopicCommand", "--create", "--topic", "chat", "--partitions", "2", "--config", "retention.ms=70000"
        )
        ask(
            "ConsoleProducer",
            "--topic",
            "chat",
            "--property",
            "parse.key=true",
            stdin="".join(f"k{i}\tline {i}\n" for i in range(20)),
        )
        read = ask(
            "consumer.ConsoleConsumer", "--topic", "chat", "--from-beginning", "--max-messages", "20",
            "--property", "print.key=true", "--property", "print.partition=true", "--group", "console",
        )  # fmt: skip
        described = ask("TopicCommand", "--describe", "--topic", "chat")
        offsets = ask("GetOffsetShell", "--topic", "chat")
        groups = ask("consumer.group.ConsumerGroupCommand", "--describe", "--group", "console", codes=(0, 1))
        told = [re.sub(r"TopicId: \S+", "", each) for each in described]
        return [*lines, *sorted(read), *told, *offsets, *sorted(re.sub(r"\s+", " ", each) for each in groups)]

    assert len(servers.same(program)) > 25


def test_configs_groups_and_deletions(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        ask = asked(bootstrap)
        ask("TopicCommand", "--create", "--topic", "tools", "--partitions", "1")
        lines = ask(
            "ConfigCommand",
            "--alter",
            "--entity-type",
            "topics",
            "--entity-name",
            "tools",
            "--add-config",
            "segment.ms=9000",
        )
        lines += ask("ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", "tools")
        lines += ask("GroupsCommand", "--list")[:1]
        lines += ask("TransactionsCommand", "list")[:1]
        lines += ask("TopicCommand", "--alter", "--topic", "tools", "--partitions", "3")
        lines += ask("TopicCommand", "--delete", "--topic", "tools")
        return lines

    servers.same(program)


def test_performance_and_verifiable_tools(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        ask = asked(bootstrap)
        ask("TopicCommand", "--create", "--topic", "perf", "--partitions", "4")
        told = run_java(
            f"{TOOLS}ProducerPerformance", "--topic", "perf", "--num-records", "20000", "--record-size", "100",
            "--throughput", "-1", "--bootstrap-server", bootstrap,
        )  # fmt: skip
        sent = [line.split(",")[0] for line in told[-1:]]
        read = ask("ConsumerPerformance", "--topic", "perf", "--num-records", "20000", "--timeout", "20000")
        sent += [row.split(",")[4].strip() for row in read[-1:]]
        acked = ask("VerifiableProducer", "--topic", "perf", "--max-messages", "500", "--acks", "-1")
        sent += [f"acked {sum('producer_send_success' in each for each in acked)}"]
        seen = ask(
            "VerifiableConsumer", "--topic", "perf", "--group-id", "verified", "--max-messages", "20500",
            "--reset-policy", "earliest",
        )  # fmt: skip
        counts = [int(found[1]) for each in seen if (found := re.search(r'records_consumed.*?"count":(\d+)', each))]
        return [*sent, f"consumed {sum(counts)}"]

    assert servers.same(program)[-1] == "consumed 20500"


# --- Connect ---------------------------------------------------------------------------------------------


def test_connect_copies_a_file(servers: Servers, tmp_path: Path) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        place = tmp_path / bootstrap.partition(":")[2]
        place.mkdir()
        (place / "in.txt").write_text("".join(f"row {number}\n" for number in range(300)))
        return _copied(bootstrap, place)

    lines = servers.same(program)
    assert lines == [f"row {number}" for number in range(300)]


def _copied(bootstrap: str, place: Path) -> list[str]:
    worker = {
        "bootstrap.servers": bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.storage.file.filename": str(place / "offsets"),
        "offset.flush.interval.ms": "500",
        "listeners": "http://127.0.0.1:0",
    }
    source = {
        "name": "in", "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(place / "in.txt"),
        "topic": "copied",
    }  # fmt: skip
    sink = {
        "name": "out", "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(place / "out.txt"),
        "topics": "copied",
    }  # fmt: skip
    files = []
    for name, values in (("worker", worker), ("source", source), ("sink", sink)):
        files.append(str(place / f"{name}.properties"))
        Path(files[-1]).write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    driver = connect()
    command = [driver.java, *FLAGS, "-cp", driver.classpath, "org.apache.kafka.connect.cli.ConnectStandalone", *files]
    found = place / "out.txt"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place) as process:
        until = time.monotonic() + 90
        while time.monotonic() < until and process.poll() is None:
            if found.exists() and len(found.read_text().splitlines()) >= 300:
                break
            time.sleep(0.3)
        process.terminate()
    return found.read_text().splitlines()
