"""A server for tests and the pytest plugin: fresh topics, faults to order, restarts, a full disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import (
    ConfigException,
    DiskFull,
    IllegalArgumentException,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.server.trial import TrialServer
from kafkalog.server.trial_files import Disk
from tests.wire.client import Client, frame

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
        kafka.fail("Produces", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(IllegalArgumentException, match="NOT_LEADER_OR_FOLLOWER"):
        kafka.fail("Produce", "NO_SUCH_ERROR")


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (lambda kafka: kafka.fail("Produce", "NONE"), "error: found 'NONE'"),
        (lambda kafka: kafka.fail("Produce", 0), "error: found 0"),
        (lambda kafka: kafka.fail("Produce", True), "error: found True"),
        (lambda kafka: kafka.fail("Produce", 5, times=0), "times: found 0"),
        (lambda kafka: kafka.fail("Produce", 5, times="2"), "times: found str '2'"),
        (lambda kafka: kafka.disconnect("Produce", times=-1), "times: found -1"),
        (lambda kafka: kafka.delay("Produce", -5), "delay_ms: found -5"),
        (lambda kafka: kafka.delay("Produce", "5"), "delay_ms: found str '5'"),
        (lambda kafka: kafka.delay("Produce", 1 << 31), "delay_ms: found 2147483648"),
        (lambda kafka: kafka.delay(["Produce"], 5), "request: found list"),
    ],
)
def test_faults_that_make_no_sense(kafka: TrialServer, order: Callable[[TrialServer], None], says: str) -> None:
    with pytest.raises(IllegalArgumentException, match=says):
        order(kafka)
    assert kafka.server.broker.fault_for is None


def test_a_fault_of_a_topic_that_does_not_exist(kafka: TrialServer) -> None:
    for request in ("Produce", "*"):
        with pytest.raises(UnknownTopicOrPartitionException, match="nope"):
            kafka.fail(request, 5, topic="nope")
    assert kafka.server.broker.fault_for is None
    kafka.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="nope")
    with Client(kafka.server.addresses[0]) as client:
        assert code_of(client, "nope") == Errors.LEADER_NOT_AVAILABLE
        assert code_of(client, "nope") == Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_restart_goes_on_after_an_error(kafka: TrialServer) -> None:
    topic, address = kafka.create_topic(), kafka.bootstrap_servers
    for kill in (False, True):
        with pytest.raises(ZeroDivisionError):
            kafka.restart(kill=kill, meanwhile=lambda: 1 // 0)
        assert kafka.bootstrap_servers == address
        with Client(kafka.server.addresses[0]) as client:
            assert code_of(client, topic) == Errors.NONE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "chooses its address itself"),
        ({"log_dirs": "/tmp"}, "chooses its directory itself"),
        ({"num.partition": 1}, "did you mean num.partitions"),
    ],
)
def test_settings_that_a_trial_server_cannot_have(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigException, match=says):
        TrialServer(str(tmp_path / "kafka"), settings)
    assert not (tmp_path / "kafka").exists()


def test_settings_of_the_logs(tmp_path: Path) -> None:
    with TrialServer(str(tmp_path / "kafka"), {"log.retention.ms": "12345"}) as kafka:
        kafka.create_topic("orders")
        home: Any = kafka.store._own()
        assert home.manager.get_log(TopicPartition("orders", 0)).config.retention_ms == 12345


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


def run(pytester: pytest.Pytester, tests: str, settings: str) -> pytest.RunResult:
    pytester.makeini(f"[pytest]\nkafka_settings =\n    {settings}\n")
    pytester.makepyfile(tests)
    return pytester.runpytest("-p", "no:kafkalog", "-p", "kafkalog.server.pytest_plugin", "-p", "no:cacheprovider")


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    run(pytester, TESTS, "num.partitions = 7").assert_outcomes(passed=2)


MARKED = """
    import pytest

    @pytest.mark.kafka_topic(3, {"retention.ms": "1000"})
    def test_positional(kafka_server, kafka_topic):
        assert kafka_server.store.topic(kafka_topic).partitions == 3

    @pytest.mark.kafka_topic
    def test_bare(kafka_server, kafka_topic):
        assert kafka_server.store.topic(kafka_topic).partitions == 1

    @pytest.mark.kafka_topic(partition=3)
    def test_misspelt(kafka_topic): pass

    @pytest.mark.kafka_topic(1, {}, 3)
    def test_too_many(kafka_topic): pass

    @pytest.mark.kafka_topic(partitions=0)
    def test_none(kafka_topic): pass

    @pytest.mark.kafka_topic(config={"retention": "1"})
    def test_setting(kafka_topic): pass
"""


def test_markers(pytester: pytest.Pytester) -> None:
    result = run(pytester, MARKED, "num.partitions=7")
    result.assert_outcomes(passed=2, errors=4)
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.kafka_topic got an unexpected keyword argument 'partition', expected "
            "kafka_topic(partitions=1, config=None)",
            "@pytest.mark.kafka_topic takes * expected kafka_topic(partitions=1, config=None)",
            "kafka_topic: *partitions*",
            "kafka_topic: *retention*",
        ]
    )
    assert "trial.py" not in result.stdout.str()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("num.partition=3", "num.partition=3: Unknown setting num.partition (did you mean num.partitions?)"),
        ("num.partitions=x", "num.partitions=x: Invalid value x *"),
        ("num.partitions", "found 'num.partitions', expected key=value"),
        ("log.dirs=/tmp/x", "log.dirs=/tmp/x: log.dirs: the server of a test chooses its directory itself *"),
        ("listeners=A://:1", "listeners=A://:1: listeners: the server of a test chooses its address itself *"),
    ],
)
def test_wrong_settings_end_the_run_at_once(pytester: pytest.Pytester, line: str, says: str) -> None:
    result = run(pytester, "def test_a(kafka_server): pass", line)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: kafka_settings: {says}"])
    assert result.stdout.str().strip() == ""


def test_a_server_that_does_not_start(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_a(kafka_server): pass", "tls = missing.pem")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["kafka_server does not start: Failed to load *missing.pem: No such file or directory"])
    assert "Traceback" not in result.stdout.str()


def test_the_plugin_leaves_the_modules_as_they_are(pytester: pytest.Pytester) -> None:
    """pytest would rewrite all modules of a distribution with a plugin: that takes a second."""
    pytester.makepyfile("""
        import kafkalog.server.trial

        def test_the_loader(kafka_server):
            assert type(kafkalog.server.trial.__loader__).__module__ == "_frozen_importlib_external"
    """)
    pytester.makeconftest("""
        import pytest

        pytest.register_assert_rewrite("kafkalog")  # as pytest does for what is installed
    """)
    result = pytester.runpytest_subprocess(
        "-p", "no:kafkalog", "-p", "kafkalog.server.pytest_plugin", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1)


def test_the_plugin_imports_nothing_before_a_fixture_is_used() -> None:
    script = (
        "import sys, kafkalog.server.pytest_plugin; "
        "print(sorted(m for m in sys.modules if m.startswith('kafkalog') or m == 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['kafkalog', 'kafkalog.server', 'kafkalog.server.pytest_plugin']"
