"""A server for tests and the pytest plugin: fresh topics, faults to order, restarts, a full disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import DiskFull, IllegalArgumentException, KafkaStorageException
from kafkalog.server.trial import TrialServer
from kafkalog.server.trial_files import Disk
from tests.unit.server_kit import Client, frame

VERSIONS, METADATA = ApiKeys.API_VERSIONS, ApiKeys.METADATA
pytest_plugins = ["pytester"]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[TrialServer]:
    with TrialServer(str(tmp_path / "kafka"), {"num.partitions": 2}) as server:
        yield server


def code_of(client: Client, topic: str) -> Errors:
    (found,) = client.ask(METADATA, 12, {"topics": [{"name": topic}], "allowAutoTopicCreation": False})["topics"]
    return Errors(found["errorCode"])


def test_topics(kafka: TrialServer) -> None:
    first = kafka.create_topic()
    assert kafka.create_topic() != first
    assert kafka.fresh_topic("test_it[a b/c]", partitions=3).startswith("test_it-a-b-c")
    with Client(kafka.server.addresses[0]) as client:
        assert code_of(client, first) == Errors.NONE
        kafka.delete_topic(first)
        assert code_of(client, first) == Errors.UNKNOWN_TOPIC_OR_PARTITION
    kafka.delete_topic(first)


def test_errors_are_ordered_and_counted(kafka: TrialServer) -> None:
    topic = kafka.create_topic()
    with Client(kafka.server.addresses[0]) as client:
        kafka.fail("Metadata", "LEADER_NOT_AVAILABLE", times=2)
        found = [code_of(client, topic) for _ in range(3)]
        assert found == [Errors.LEADER_NOT_AVAILABLE, Errors.LEADER_NOT_AVAILABLE, Errors.NONE]
        assert client.ask(VERSIONS, 0)["errorCode"] == 0


def test_a_fault_of_one_topic(kafka: TrialServer) -> None:
    mine, other = kafka.create_topic(), kafka.create_topic()
    kafka.fail("*", 5, times=None, topic=mine)
    with Client(kafka.server.addresses[0]) as client:
        assert code_of(client, other) == Errors.NONE
        assert code_of(client, mine) == code_of(client, mine) == Errors.LEADER_NOT_AVAILABLE
        kafka.clear_faults()
        assert code_of(client, mine) == Errors.NONE


def test_disconnects_and_delays(kafka: TrialServer) -> None:
    topic = kafka.create_topic()
    kafka.disconnect("Metadata")
    with Client(kafka.server.addresses[0]) as client:
        client.sock.sendall(frame(METADATA, 0, {"topics": []}))
        assert client.is_closed()
    kafka.delay("Metadata", 1)
    with Client(kafka.server.addresses[0]) as client:
        assert code_of(client, topic) == Errors.NONE


def test_unknown_names(kafka: TrialServer) -> None:
    with pytest.raises(IllegalArgumentException, match="'Produce'"):
        kafka.fail("Produces", "NONE")
    with pytest.raises(IllegalArgumentException, match="NOT_LEADER_OR_FOLLOWER"):
        kafka.fail("Produce", "NO_SUCH_ERROR")


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_keeps_address_and_records(kafka: TrialServer, kill: bool) -> None:
    topic, address = kafka.create_topic(), kafka.bootstrap_servers
    kafka.store.topic(topic).append(b"value")
    with Client(kafka.server.addresses[0]) as client:
        client.ask(VERSIONS, 0)
        seen = []
        kafka.restart(kill=kill, meanwhile=lambda: seen.append(client.is_closed()))
        assert seen == [True]
    assert kafka.bootstrap_servers == address
    assert [record.value for record in kafka.store.topic(topic)] == [b"value"]
    with Client(kafka.server.addresses[0]) as client:
        assert code_of(client, topic) == Errors.NONE


def test_a_full_disk(kafka: TrialServer) -> None:
    topic = kafka.store.topic(kafka.create_topic())
    topic.append(b"before")
    with kafka.full_disk():
        with pytest.raises(DiskFull):
            topic.append(b"lost")
        with pytest.raises(KafkaStorageException):
            kafka.create_topic("another")
    topic.append(b"after")
    assert [record.value for record in topic] == [b"before", b"after"]
    assert not Disk.is_full


TESTS = """
    import socket

    def test_a_topic(kafka_server, kafka_bootstrap, kafka_topic):
        assert kafka_topic in kafka_server.store
        assert kafka_topic.startswith("test_a_topic")
        host, port = kafka_bootstrap.split(":")
        socket.create_connection((host, int(port))).close()
        kafka_server.fail("*", "REQUEST_TIMED_OUT", times=None)

    import pytest

    @pytest.mark.kafka_topic(partitions=3, config={"cleanup.policy": "compact"})
    def test_another(kafka_server, kafka_topic):
        assert kafka_server.store.topic(kafka_topic).partitions == 3
        assert kafka_server.server.broker.fault_for is None
        assert kafka_server.server.settings["num.partitions"] == 7
        assert len(kafka_server.store.topics()) == 1
"""


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nkafka_settings =\n    num.partitions = 7\n")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest("-p", "no:kafkalog", "-p", "kafkalog.server.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_the_plugin_imports_nothing_before_a_fixture_is_used() -> None:
    script = (
        "import sys, kafkalog.server.pytest_plugin; "
        "print(sorted(m for m in sys.modules if m.startswith('kafkalog') or m == 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['kafkalog', 'kafkalog.server', 'kafkalog.server.pytest_plugin']"
