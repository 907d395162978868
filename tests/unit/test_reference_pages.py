"""The reference names what the code has: every metric, logger and environment variable, and the tables' settings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import kafkalog
from kafkalog.config import BROKER_KEYS, TOPIC_KEYS
from kafkalog.engine.files.lines import NAMES
from kafkalog.engine.host.loading import Remaining
from kafkalog.engine.host.manager_metrics import gauges_of_start
from kafkalog.engine.remote.remote_metrics import RemoteTopicMetrics
from kafkalog.metrics import MetricName, MetricsRegistry
from kafkalog.metrics.prometheus import prometheus_name
from kafkalog.server.request import Request
from kafkalog.server.request_metrics import RequestMetrics
from tests.pages.page import DOCS, ROOT

METRIC = re.compile(r"^`([\w.]+):type=([\w-]+),name=([\w-]+)`\n`(\w+)`\n:   \S.* Unit: \S", re.M)


def test_every_metric_is_on_its_page(tmp_path: Path) -> None:
    metrics = MetricsRegistry()
    with kafkalog.open(tmp_path / "shop", metrics=metrics) as store:
        store.create_topic("orders").append(b"tea")
        remote = RemoteTopicMetrics(metrics, "orders")
        metrics.show(remaining := Remaining({"shop": 1}, 1), gauges_of_start)
        names = {name._replace(tags=()) for name, _ in metrics.snapshot()}
        used = RequestMetrics(metrics, SimpleNamespace(connection_count=0, memory_used=0, memory_limit=0))
        used.answered("Fetch", Request(1, 17), 5)
        with store.queue("mail", topics=["orders"], dead_letters="dead") as queue:
            shares = store._home.coordinators.served._metrics
            assert shares is not None
            place = queue._sources()[0].partition
            queue.reject(queue.take(1))
            shares.expired("mail", place, 1)
            shares.letters("mail", 1, failed=True)
            names |= {name._replace(tags=()) for name, _ in metrics.snapshot()}
        assert remote is not None
        assert remaining is not None
    found = {MetricName(*each[:3]): each[3] for each in METRIC.findall((DOCS / "reference/metrics.md").read_text())}
    assert found == {name: prometheus_name(name) for name in names}


def test_every_logger_and_variable_is_on_its_page() -> None:
    text = (DOCS / "reference/environment.md").read_text()
    assert [name for name in (*NAMES, "spark") if f"`kafkalog.{name}`" not in text] == []
    code = "\n".join(path.read_text() for path in [*(ROOT / "kafkalog").rglob("*.py"), ROOT / "setup.py"])
    read = re.findall(r"os\.environ(?:\.get\(|\[)\"(\w+)\"", code) + re.findall(r"\"(_?KAFKALOG_\w+)\"", code)
    assert len(read) > 8
    assert [name for name in read if name not in text and name != "USERNAME"] == []


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.syspath_prepend(DOCS / "_site")
    import tables

    sys.modules.pop("tables")
    return {name: make() for name, make in tables.TABLES.items()}


def test_tables_have_every_setting_and_error(tables: dict[str, str]) -> None:
    assert [name for name in TOPIC_KEYS if f"| `{name}`" not in tables["topic-settings"]] == []
    assert [name for name in BROKER_KEYS if f"| `{name}`" not in tables["broker-settings"]] == []
    of_errors = "".join(text for name, text in tables.items() if name.endswith("-errors"))
    names = {*kafkalog.errors.__all__} - {"KafkalogError"}
    assert [name for name in names if f"| `{name}`" not in of_errors] == []
    for name, text in tables.items():
        rows = text.splitlines()
        assert len({row.count("|") for row in rows}) == 1, name
        assert [row for row in rows if row.endswith(("|  |", "<br> |"))] == [], name


def test_every_table_is_on_a_page(tables: dict[str, str]) -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"<!-- table: ([\w-]+) -->", text)) == sorted(tables)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("topic-settings", "| `retention.ms`{#retention.ms}<br>default: `604800000` (7 d) |"),
        ("topic-settings", "| `segment.bytes`{#segment.bytes}<br>default: `1073741824` (1 GiB) |"),
        ("topic-settings", "| `flush.ms`{#flush.ms}<br>default: no limit |"),
        ("topic-settings", "| `preallocate`{#preallocate}<br>default: `false` |"),
        (
            "broker-settings",
            "| `log.cleaner.threads`{#log.cleaner.threads}<br>default: `1` | Number of threads that compact. ",
        ),
        ("open", '| `durability`<br>default: `"os"` |'),
        ("open", "| `log_dirs`<br>required |"),
        ("manager-settings", "| `cleaner`<br>default: a `CleanerConfig` |"),
        ("tiering-settings", "| `copier_threads`<br>default: `10` |"),
        ("disk-errors", "| `DiskFull`{#DiskFull} | The disk or a quota has no space left.<br>Free some space, "),
    ],
)
def test_a_row_of_a_table(tables: dict[str, str], name: str, row: str) -> None:
    assert row in tables[name]
