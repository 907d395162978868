"""The pytest plugin: a server for a test run, a fresh topic for each test, and faults to order.

    def test_orders(kafka_bootstrap, kafka_topic):
        producer = Producer({"bootstrap.servers": kafka_bootstrap})
        producer.produce(kafka_topic, b"order 1")

    def test_a_lost_leader(kafka_server, kafka_topic):
        kafka_server.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)

pytest loads this module in every run where kafkalog is installed.  So it imports nothing of kafkalog before a fixture
is used, and keeps pytest from rewriting the asserts of kafkalog's modules, as it does for whatever comes with a plugin.
The server starts with the first test that needs it, and faults end with the test that ordered them.  With pytest-xdist
each worker has a server.  `kafka_settings` in the ini file has settings of the broker, a line each;
`@pytest.mark.kafka_topic(partitions=3, config={...})` says how a test's topic is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

    from kafkalog.server.trial import TrialServer

_MARKER = "kafka_topic(partitions=1, config=None)"
_running: list[TrialServer] = []


class _AsInstalled:
    """Finds kafkalog's modules before pytest's own finder does, which would parse 300 files that nobody tests."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("kafkalog.") else None


sys.meta_path.insert(0, _AsInstalled)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `kafka_settings` to the ini file."""
    parser.addini("kafka_settings", "Settings of the broker behind kafka_server, as key=value.", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and checks `kafka_settings`."""
    config.addinivalue_line("markers", f"{_MARKER}: how the topic of the fixture kafka_topic is made.")
    lines = config.getini("kafka_settings")
    if lines:
        _settings(lines)


def _settings(lines: list[str]) -> dict[str, object]:
    """Returns the settings of these lines.  UsageError with the line that is wrong."""
    from kafkalog.errors import KafkalogError
    from kafkalog.server.trial import check_settings

    settings: dict[str, object] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_settings: found {line!r}, expected key=value")
        try:
            check_settings({key.strip(): value.strip()})
        except KafkalogError as error:
            raise pytest.UsageError(f"kafka_settings: {line}: {error}") from None
        settings[key.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialServer]:
    """A server that speaks Kafka's protocol: one for the whole run, started by the first test that uses it."""
    from kafkalog.errors import KafkalogError
    from kafkalog.server.trial import TrialServer

    settings = _settings(request.config.getini("kafka_settings"))
    try:
        server = TrialServer(str(tmp_path_factory.mktemp("kafka")), settings)
    except KafkalogError as error:  # settings that contradict each other, or a file that they name
        pytest.fail(f"kafka_server does not start: {error}", pytrace=False)
    with server:
        _running.append(server)
        try:
            yield server
        finally:
            _running.clear()


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_server: TrialServer) -> str:
    """The address of the server, for a client's `bootstrap.servers`."""
    return kafka_server.bootstrap_servers


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_server: TrialServer) -> Iterator[str]:
    """The name of a topic that only this test uses; it is deleted afterwards."""
    from kafkalog.errors import RequestError

    marker = request.node.get_closest_marker("kafka_topic")
    partitions, config = (1, None) if marker is None else _marked(*marker.args, **marker.kwargs)
    try:
        name = kafka_server.fresh_topic(request.node.name, partitions, config)
    except RequestError as error:
        pytest.fail(f"kafka_topic: {error}", pytrace=False)
    yield name
    kafka_server.clear_faults()
    kafka_server.delete_topic(name)


def _marked(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Returns the partitions and the config that a marker gives."""

    def kafka_topic(partitions: Any = 1, config: Any = None) -> tuple[Any, Any]:
        return partitions, config

    try:
        return kafka_topic(*args, **kwargs)
    except TypeError as error:
        why = str(error).rpartition("kafka_topic() ")[2]
        pytest.fail(f"@pytest.mark.kafka_topic {why}, expected {_MARKER}", pytrace=False)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends the faults that a test has ordered."""
    for each in _running:
        each.clear_faults()
