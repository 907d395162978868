"""`kafkalog serve` without a process of its own: its settings, and what it refuses before it opens anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog.cli import serve
from kafkalog.cli.app import Usage
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
    settings = serve._manager_settings(given)
    assert settings.default_config.retention_ms == 3_600_000


@pytest.mark.parametrize("text", ["num.partitions", "=3", "log.dirs=/tmp"])
def test_wrong_settings(text: str) -> None:
    with pytest.raises(Usage):
        serve._parsed((text,))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0:0"), "--allow-anonymous"),
        (("--listen", "nonsense"), "HOST:PORT"),
        (("-X", "num.partition=3"), "num.partitions"),
        (("-X", "num.partitions=0"), "at least 1"),
        (("--listen", "127.0.0.1:0", "--metrics", "9100"), "HOST:PORT"),
    ],
)
def test_refusals(run: Run, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    found = run("serve", tmp_path / "store", *options)
    assert (found.code, says in found.err) == (2, True), found.err
    assert not (tmp_path / "store").exists()
