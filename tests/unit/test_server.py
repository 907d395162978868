"""The life of a server: where it listens, what it refuses, which cluster it is, and how it ends with its store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.java_text import parse_uuid
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import (
    ConfigException,
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaException,
    LogReadOnlyException,
)
from kafkalog.server import Server, ServerSettings
from kafkalog.server.api import MODULES, Apis
from kafkalog.server.listener import is_loopback, parse_overrides
from kafkalog.server.server import listeners_of, named_settings, refuse_open_listeners
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles
from tests.wire.client import Client

VERSIONS, METADATA = ApiKeys.API_VERSIONS, ApiKeys.METADATA
FAST = UnsyncedFiles()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path / "store", files=FAST) as opened:
        yield opened


def served(store: Store, listen: Any = "127.0.0.1:0", **settings: Any) -> Server:
    server = store.serve(listen, **settings)
    assert isinstance(server, Server)
    return server


# --- where it listens ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "listeners"),
    [
        ("127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092"),
        (0, "PLAINTEXT://127.0.0.1:0"),
        ("SSL://host:1, 127.0.0.1:2", "SSL://host:1,PLAINTEXT://127.0.0.1:2"),
        (["[::1]:1", "A://:2"], "PLAINTEXT://[::1]:1,A://:2"),
    ],
)
def test_addresses(listen: Any, listeners: str) -> None:
    assert listeners_of(listen) == listeners


@pytest.mark.parametrize("listen", ["localhost", "", None, 1.5, True, "A://host", [5], [], b"127.0.0.1:0"])
def test_what_is_no_address(listen: Any) -> None:
    with pytest.raises(IllegalArgumentException, match=r"HOST:PORT|127\.0\.0\.1:0"):
        listeners_of(listen)


def test_several_listeners(store: Store) -> None:
    settings = {"listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT"}
    with served(store, "IN://127.0.0.1:0,OUT://127.0.0.1:0", **settings) as server:
        for address in server.addresses:
            with Client(address) as client:
                assert client.ask(METADATA, 12, {"topics": []})["brokers"][0]["port"] == address[1]
        assert server.bootstrap_servers == ",".join(f"{host}:{port}" for host, port in server.addresses)


def test_advertised_listeners(store: Store) -> None:
    with served(store, advertised_listeners="PLAINTEXT://kafka.example:19092") as server:
        with Client(server.addresses[0]) as client:
            (node,) = client.ask(METADATA, 12, {"topics": []})["brokers"]
        assert (node["host"], node["port"]) == ("kafka.example", 19092)


def test_a_listener_on_every_interface_tells_the_address_that_was_reached(store: Store) -> None:
    with served(store, "0.0.0.0:0", allow_anonymous=True) as server, Client(server.addresses[0]) as client:
        assert client.ask(METADATA, 12, {"topics": []})["brokers"][0]["host"] == "127.0.0.1"


def test_a_port_in_use(store: Store) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(KafkaException, match=r"failed to bind.*port 0 takes a free one"):
            served(store, f"127.0.0.1:{other.getsockname()[1]}")
    with served(store):  # the failure left nothing behind
        pass


@pytest.mark.parametrize(
    ("listener", "settings"),
    [
        ("PLAINTEXT://0.0.0.0:1", {}),
        ("PLAINTEXT://:1", {}),
        ("PLAINTEXT://192.0.2.1:1", {}),
        ("SSL://0.0.0.0:1", {}),
        ("SSL://0.0.0.0:1", {"ssl.client.auth": "requested"}),
        ("PLAINTEXT://host.invalid:1", {}),
    ],
)
def test_open_listeners_are_refused(listener: str, settings: dict[str, str]) -> None:
    given = ServerSettings.from_props({"listeners": listener, **settings})
    with pytest.raises(IllegalArgumentException, match=r"other machines.*--allow-anonymous"):
        refuse_open_listeners(given.endpoints, given, allow_anonymous=False)
    refuse_open_listeners(given.endpoints, given, allow_anonymous=True)


@pytest.mark.parametrize(
    ("listener", "settings"),
    [
        ("PLAINTEXT://localhost:1", {}),
        ("PLAINTEXT://127.1.2.3:1", {}),
        ("PLAINTEXT://[::1]:1", {}),
        ("SASL_PLAINTEXT://0.0.0.0:1", {}),
        ("SSL://0.0.0.0:1", {"ssl.client.auth": "required"}),
        ("SSL://0.0.0.0:1", {"listener.name.ssl.ssl.client.auth": "required"}),
    ],
)
def test_closed_listeners(listener: str, settings: dict[str, str]) -> None:
    given = ServerSettings.from_props({"listeners": listener, **settings})
    refuse_open_listeners(given.endpoints, given, allow_anonymous=False)


@pytest.mark.parametrize(
    ("settings", "instead"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "SASL_PLAINTEXT"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}, "SASL_SSL"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "requested"}, "SASL_SSL"),
    ],
)
def test_a_listener_without_a_login_beside_users(store: Store, settings: dict[str, str], instead: str) -> None:
    for users in ({"users": {"alice": "secret"}}, {"users.file": "users"}):
        with pytest.raises(IllegalArgumentException, match=f"lets everybody in.*use {instead} .*--allow-anonymous"):
            served(store, None, **settings, **users)
        given = ServerSettings.from_props({**settings, **users})
        refuse_open_listeners(given.endpoints, given, allow_anonymous=True)
        ask = ServerSettings.from_props({**settings, **users, "ssl.client.auth": "required"})
        refuse_open_listeners([each for each in ask.endpoints if "SSL" in each.listener], ask, allow_anonymous=False)


def test_words_of_the_command(tmp_path: Path) -> None:
    users, key = tmp_path / "users", tmp_path / "server.pem"
    assert named_settings(
        {"users_file": users, "tls": key, "advertise": "kafka.example:1", "num_partitions": 3}, "127.0.0.1:0"
    ) == {
        "users.file": str(users),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key),
        "listeners": "SASL_SSL://127.0.0.1:0",
        "advertised.listeners": "SASL_SSL://kafka.example:1",
        "num.partitions": 3,
    }
    assert named_settings({"users": {}}) == {"users": {}, "listeners": "SASL_PLAINTEXT://127.0.0.1:9092"}
    assert named_settings({"advertise": "A://b:1", "listeners": "A://:1"})["advertised.listeners"] == "A://b:1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"tls": "a", "ssl_keystore_location": "b"}, r"tls and the setting `ssl\.keystore\.location`"),
        ({"tls": "a", "ssl.keystore.type": "PEM"}, r"tls and the setting `ssl\.keystore\.type`"),
        ({"advertise": "a:1", "advertised_listeners": "b"}, "advertise and the setting"),
        ({"advertise": "nonsense"}, "advertise: found 'nonsense'"),
        ({"metrics": "127.0.0.1:1"}, r"Unknown setting metrics .*--metrics.*kafkalog\.open"),
        ({"durability": "fsync"}, r"Unknown setting durability .*--durability.*kafkalog\.open"),
        ({"user": "alice:secret"}, "did you mean users"),
        ({"listeners": "A://b:1"}, "listen and the setting `listeners`"),
    ],
)
def test_words_that_contradict_each_other(store: Store, words: dict[str, Any], says: str) -> None:
    with pytest.raises((IllegalArgumentException, ConfigException), match=says):
        store.serve("127.0.0.1:0", **words)
    assert served(store).port  # nothing was left behind


def test_advertise(store: Store) -> None:
    with served(store, advertise="kafka.example:19092") as server, Client(server.addresses[0]) as client:
        (node,) = client.ask(METADATA, 12, {"topics": []})["brokers"]
    assert (node["host"], node["port"]) == ("kafka.example", 19092)


def test_listeners_of_controllers_are_left_out() -> None:
    settings = {
        "listeners": "PLAINTEXT://:1,CTL://:2",
        "controller.listener.names": "Other, ctl",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CTL:PLAINTEXT",
    }
    assert [each.port for each in ServerSettings.from_props(settings).endpoints] == [1]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention_ms", "this is a topic's key; the broker's key is log.retention.ms"),
        ("segment.bytes", "the broker's key is log.segment.bytes"),
        ("remote.storage.enable", r"\(this is a topic's key\)"),
    ],
)
def test_topics_keys_are_refused(store: Store, name: str, hint: str) -> None:
    with pytest.raises(ConfigException, match=hint):
        served(store, **{name: "3"})


def test_loopback() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("")
    assert not is_loopback("192.0.2.1")


# --- settings --------------------------------------------------------------------------------------------


def test_settings_by_both_names() -> None:
    settings = ServerSettings.from_props({"num_partitions": "3", "max.connections": 7})
    assert (settings.num_partitions, settings["max.connections"]) == (3, 7)
    assert settings["group.max.session.timeout.ms"] == 1_800_000
    assert settings.of_listener("OWN", "max.connections") == 7
    own = ServerSettings.from_props({"listener.name.own.max.connections": "2"})
    assert own.of_listener("OWN", "max.connections") == 2
    with pytest.raises(AttributeError):
        settings.no_such_setting  # noqa: B018


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num.partition": 3}, "num.partitions"),
        ({"num.partitions": 0}, "at least 1"),
        ({"num.partitions": "x"}, "Not a number"),
        ({"max.connections": -1}, "at least 0"),
    ],
)
def test_wrong_settings(store: Store, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigException, match=says):
        served(store, **given)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listeners": "nonsense"}, "Unable to parse nonsense"),
        ({"listeners": "PLAINTEXT://host:99999"}, "found port 99999, expected 0 to 65535"),
        ({"listeners": "PLAINTEXT://host:-1"}, "found port -1"),
        ({"listeners": "OWN://host:1"}, "No security protocol defined for listener OWN"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "different name"),
        ({"listeners": "A://a:1", "listener.security.protocol.map": "A:B"}, "SecurityProtocol.B"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0", "advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "nonroutable"),
    ],
)
def test_wrong_listeners(store: Store, settings: dict[str, str], says: str) -> None:
    with pytest.raises(IllegalArgumentException, match=says):
        served(store, None, **settings)
    assert getattr(store._home, "server", None) is None


def test_overrides_of_connection_limits() -> None:
    assert parse_overrides("127.0.0.1:5, localhost:6")["127.0.0.1"] == 6
    assert parse_overrides("") == {}
    for text in ("127.0.0.1", "host:x", ":5"):
        with pytest.raises(ConfigException):
            parse_overrides(text)


def test_passwords_are_not_shown() -> None:
    assert "hidden" not in repr(ServerSettings.from_props({"ssl.key.password": "hidden"}))


# --- which cluster it is ---------------------------------------------------------------------------------


def test_the_cluster_id_stays(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with kafkalog.open(tmp_path, files=FAST) as store, served(store) as server:
            found.append(server.cluster_id)
            with Client(server.addresses[0]) as client:
                assert client.ask(METADATA, 12, {"topics": []})["clusterId"] == server.cluster_id
    assert found[0] == found[1] == parse_uuid(found[0])
    (tmp_path / ".kafkalog_cluster").write_text("damage")
    with (
        kafkalog.open(tmp_path, files=FAST) as store,
        pytest.raises(CorruptCheckpointException, match="delete the file"),
    ):
        served(store)


def test_the_cluster_id_of_a_broker(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, files=FAST):
        pass
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=kafkalog-tests-00000AA\nnode.id=4\n")
    with kafkalog.open(tmp_path, files=FAST, take_over=True) as store, served(store) as server:
        assert server.cluster_id == "kafkalog-tests-00000AA"
    assert not (tmp_path / ".kafkalog_cluster").exists()


# --- the end ---------------------------------------------------------------------------------------------


def test_a_store_closes_its_server(tmp_path: Path) -> None:
    store = kafkalog.open(tmp_path, files=FAST)
    server = served(store)
    with Client(server.addresses[0]) as client:
        client.ask(VERSIONS, 0)
        store.close()
        assert server.closed
        assert client.is_closed()
    with pytest.raises(IllegalStateException):
        served(store)


def test_one_server_at_a_time(store: Store) -> None:
    with served(store) as server, pytest.raises(IllegalStateException, match=f"already served at .*{server.port}"):
        served(store)
    with served(store) as second:
        assert not second.closed


def test_a_second_handle_and_its_server(store: Store, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "store", files=FAST) as other, served(other) as server:
        with pytest.raises(IllegalStateException, match="already served"):
            served(store)
        other.close()
        assert server.closed
    with served(store):
        pass


def test_a_read_only_store_is_not_served(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, files=FAST):
        pass
    with kafkalog.open(tmp_path, read_only=True) as store, pytest.raises(LogReadOnlyException):
        store.serve("127.0.0.1:0")


def test_topics_of_the_store_and_of_the_server_are_the_same(store: Store) -> None:
    with served(store) as server, Client(server.addresses[0]) as client:
        store.create_topic("mine", partitions=2)
        (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "mine"}]})["topics"]
        assert (topic["errorCode"], len(topic["partitions"])) == (0, 2)
        client.ask(METADATA, 12, {"topics": [{"name": "theirs"}]})
        assert "theirs" in store


def test_no_descriptor_is_left(store: Store) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    with served(store):
        pass
    before = count()
    for _ in range(3):
        with served(store) as server, Client(server.addresses[0]) as client:
            client.ask(VERSIONS, 0)
    assert count() == before


# --- the table of requests -------------------------------------------------------------------------------


def test_every_promised_request_has_a_handler() -> None:
    known = Apis()
    for entry in known.entries.values():
        entry.load()
        assert callable(entry.handler), entry.name
    assert sum(map(len, MODULES.values())) == len(known.entries)
