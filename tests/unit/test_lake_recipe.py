"""Recipes of two pages that write files, join days or search for bad values: they keep their promises over two days."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import kafkalog

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "how-to" / "export.md").read_text() + (DOCS / "reference" / "reading.md").read_text()
DAYS = (date(2026, 11, 20), date(2026, 11, 21))
NOON_MS = 1_795_176_000_000  # noon noon of the first day day
DAY_MS = 86_400_000


def block(marker: str) -> str:
    """The one Python example that has this text."""
    (found,) = (each for each in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if marker in each)
    return str(found)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with kafkalog.open("shop") as store:
        orders = store.create_topic("orders", 2)
        for number in range(6):
            value = b'{"order": %d, "amount": %s}' % (number, b"1.5" if number < 3 else b'"2.5"')
            orders.append(value, key=b"k%d" % number, timestamp=NOON_MS + number // 3 * DAY_MS)
    return tmp_path


def lake() -> dict[str, int]:
    rows = duckdb.sql("select day::text, count(*) from read_parquet('lake/*/*.parquet') group by day").fetchall()
    return dict(rows)


def test_a_lake_grows_by_days_and_the_same_day_again_changes_nothing(shop: Path) -> None:
    code: dict[str, Any] = {"duckdb": duckdb}
    exec(block("def copy_day(").split("with kafkalog.open")[0], code)
    with kafkalog.open("shop") as store:
        code["copy_day"](store, DAYS[0])
        assert lake() == {"2026-11-20": 3}
        for _ in range(2):
            code["copy_day"](store, DAYS[1])
            assert lake() == {"2026-11-20": 3, "2026-11-21": 3}


def test_one_schema_for_days_whose_fields_differ(shop: Path) -> None:
    code: dict[str, Any] = {}
    exec(block("SCHEMA =").split("with kafkalog.open")[0], code)
    days = [str(DAYS[0]), str(DAYS[1]), "2026-11-22"]
    with kafkalog.open("shop", read_only=True) as store:
        options = {"values": "json", "schema": code["SCHEMA"]}
        orders = store.topic("orders")
        table = pa.concat_tables([orders.read_arrow(*days[:2], **options), orders.read_arrow(*days[1:], **options)])
    assert sorted(table["order"].to_pylist()) == list(range(6))
    assert sorted(table["amount"].to_pylist()) == sorted(["1.5"] * 3 + ['"2.5"'] * 3)
    assert table["currency"].null_count == 6


def test_values_that_are_no_json_are_found(shop: Path) -> None:
    with kafkalog.open("shop") as store:
        orders = store.topic("orders")
        orders.append_many([b"{broken", None, b"\xff\xfe", b"[1]"], partition=0)
        bad = {record.offset for record in orders.records(partitions=[0]) if record.value in (b"{broken", b"\xff\xfe")}
    code: dict[str, Any] = {"kafkalog": kafkalog}
    query = block("try(decode(value)::json)")
    exec("import duckdb\n" + query[query.index("connection =") :].replace("print(bad)", "found = bad.fetchall()"), code)
    assert {row[1] for row in code["found"]} == bad
