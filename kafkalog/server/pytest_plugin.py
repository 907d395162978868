"""The pytest plugin: a server for a test run, a fresh topic for each test, and faults to order.

    def test_orders(kafka_bootstrap, kafka_topic):
        producer = Producer({"bootstrap.servers": kafka_bootstrap})
        producer.produce(kafka_topic, b"order 1")

    def test_a_lost_leader(kafka_server, kafka_topic):
        kafka_server.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)

pytest loads this module in every run where kafkalog is installed.  So it imports nothing of kafkalog before a fixture
is used; the server starts with the first test that needs it, and faults end with the test that ordered them.  With
pytest-xdist each worker has a server.  `kafka_settings` in the ini file has settings of the broker, a line each;
`@pytest.mark.kafka_topic(partitions=3, config={...})` says how a test's topic is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafkalog.server.trial import TrialServer

_running: list[TrialServer] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `kafka_settings` to the ini file."""
    parser.addini("kafka_settings", "Settings of the broker behind kafka_server, as key=value.", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", "kafka_topic(partitions=1, config=None): how the topic of the fixture kafka_topic is made."
    )


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialServer]:
    """A server that speaks Kafka's protocol: one for the whole run, started by the first test that uses it."""
    from kafkalog.server.trial import TrialServer

    settings: dict[str, object] = {}
    for line in request.config.getini("kafka_settings"):
        key, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kafka_settings: found {line!r}, expected key=value")
        settings[key.strip()] = value.strip()
    with TrialServer(str(tmp_path_factory.mktemp("kafka")), settings) as server:
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
    marker = request.node.get_closest_marker("kafka_topic")
    given = {} if marker is None else marker.kwargs
    name = kafka_server.fresh_topic(request.node.name, **given)
    yield name
    kafka_server.clear_faults()
    kafka_server.delete_topic(name)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends the faults that a test has ordered."""
    for each in _running:
        each.clear_faults()
