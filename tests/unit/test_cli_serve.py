"""`kafkalog serve` without a process of its own: its settings, and what it refuses before it opens anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli import serve
from kafkalog.cli.app import Usage
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.server.settings import ServerSettings
from tests.file_doubles import UnsyncedFiles
from tests.unit import cluster_kit
from tests.unit.cli_kit import Run, run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def _logger() -> Iterator[None]:
    logger = logging.getLogger("kafkalog")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_options_prevail_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlisteners=PLAINTEXT://:1\nnot.a.setting=5\nlog.retention.hours=1\n")
    given = serve._settings(("127.0.0.1:0",), "kafka.example:9092", ("num.partitions=5",), str(file))
    assert given == {
        "num.partitions": "5",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://kafka.example:9092",
        "log.retention.hours": "1",
    }
    assert "not.a.setting is no setting of a broker" in capsys.readouterr().err
    assert serve._log_settings(given, (), str(file)).default_config.retention_ms == 3_600_000
    file.write_text("ssl.keystore.location=store.p12\nssl.keystore.password=hush\nssl.keystore.type=PKCS12\n")
    assert serve._settings((), None, (), str(file), ("alice:secret",), None, "server.pem") == {
        "users": ("alice:secret",),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "server.pem",
        "listeners": "SASL_SSL://127.0.0.1:9092",
    }


def test_a_file_of_a_real_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nlisteners=PLAINTEXT://:9092,CONTROLLER://:9093\nlog.dirs=/elsewhere\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\nnum.partition=3\n"
        "controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    )
    given = serve._settings((), None, (), str(file))
    assert [each.listener for each in ServerSettings.from_props(given).endpoints] == ["PLAINTEXT"]
    assert "log.dirs" not in given
    told = capsys.readouterr().err
    assert "num.partition is no setting of a broker, and is ignored (did you mean num.partitions?)" in told
    assert "log.dirs is ignored: the directories are arguments" in told
    elsewhere = serve._settings(("127.0.0.1:1",), None, (), str(file))
    assert "advertised.listeners" not in elsewhere  # clients would be led to another address
    only = serve._settings(("CONTROLLER://127.0.0.1:1",), None, (), str(file))
    with pytest.raises(IllegalArgumentException, match="none for clients"):
        ServerSettings.from_props(only).endpoints  # noqa: B018 - raises
    file.write_bytes(bytes(range(256)))
    with pytest.raises(Usage, match=r"expected a server\.properties"):
        serve._settings((), None, (), str(file))


def retention_ms(root: Path, *, config: str | None = None, **given: str) -> int:
    settings = {key.replace("_", "."): value for key, value in given.items()}
    made = serve._log_settings(settings, (str(root),), config)
    with kafkalog.open(root, settings=made, take_over=True, files=UnsyncedFiles()) as store:
        home: Any = store._own()
        home.create_topic("orders", 1, {}, None, exist_ok=True, adds_retention=False)
        return int(home.manager.get_log(TopicPartition("orders", 0)).config.retention_ms)


def test_the_retention_of_topics_that_clients_create(tmp_path: Path) -> None:
    assert retention_ms(tmp_path) == 604_800_000
    assert retention_ms(tmp_path, log_retention_ms="-1") == -1
    assert retention_ms(tmp_path, log_retention_hours="1") == 3_600_000
    assert retention_ms(tmp_path, log_retention_minutes="1") == 60_000


def test_the_retention_of_a_brokers_topics_is_no_guess(tmp_path: Path) -> None:
    cluster_kit.metadata_log(cluster_kit.formatted(tmp_path), cluster_kit.topic("orders"))
    (tmp_path / "orders-0").mkdir()
    assert retention_ms(tmp_path) == -1  # server.properties may have kept them
    assert retention_ms(tmp_path, log_retention_hours="1") == 3_600_000
    assert retention_ms(tmp_path, config="server.properties") == 604_800_000


@pytest.mark.parametrize("text", ["num.partitions", "=3", "log.dirs=/tmp"])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(Usage):
        serve._parsed((text,))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0:0"), "--allow-anonymous"),
        (("--listen", "nonsense"), "HOST:PORT"),
        (("--listen", "PLAINTEXT://127.0.0.1:0", "--user", "alice:secret"), "--allow-anonymous"),
        (("--tls", "server.pem", "-X", "ssl.keystore.location=b"), "expected one of them"),
        (("-X", "metrics=127.0.0.1:0"), "--metrics"),
        (("-X", "num.partition=3"), "num.partitions"),
        (("-X", "num.partitions=0"), "at least 1"),
        (("-X", "retention.ms=3"), "this is a topic's key; the broker's key is log.retention.ms"),
        (("--listen", "127.0.0.1:0", "--metrics", "9100"), "HOST:PORT"),
    ],
)
def test_refusals(run: Run, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    found = run("serve", tmp_path / "store", *options)
    assert (found.code, says in found.err) == (2, True), found.err
    assert not (tmp_path / "store").exists()
