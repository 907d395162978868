"""Every SQL block of docs/how-to/spark-sql.md runs, from top to bottom, in a directory with a small topic of orders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.versions import PYSPARK

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-sql.md").read_text()
STATEMENTS = re.findall(r"```sql\n(.*?);\n```", TEXT, re.DOTALL)
START_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
PER_PARTITION = 30


@pytest.fixture
def log_dir(spark: Any, tmp_path: Path) -> Iterator[str]:
    """topic `orders`, two partitions: 30 orders each, one a minute, of three customers."""
    with kafkalog.open(tmp_path) as store:
        orders = store.create_topic("orders", 2)
        for partition in range(2):
            for number in range(PER_PARTITION):
                order = {"id": number, "amount": 2.0, "state": "paid" if number % 2 else "new"}
                orders.append(
                    json.dumps(order).encode(),
                    key=b"customer-%d" % (number % 3),
                    timestamp=START_MS + number * 60_000,
                    partition=partition,
                )
    yield str(tmp_path)
    spark.sql("DROP VIEW IF EXISTS paid_orders")
    spark.sql("DROP VIEW IF EXISTS seen")
    spark.sql("DROP VIEW IF EXISTS parsed_orders")
    for table in ("orders", "orders_of_the_day"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_every_statement_of_the_page(spark: Any, log_dir: str) -> None:
    seen = {}
    for statement in STATEMENTS:
        if statement.startswith("INSERT") and PYSPARK < (4, 2):
            continue  # it has no Arrow writers
        rows = spark.sql(statement.replace("/disk1/kafka-logs", log_dir)).collect()
        seen[statement] = [tuple(row) for row in rows]

    def rows_of(text: str) -> list[Any]:
        (found,) = (rows for statement, rows in seen.items() if text in statement)
        return found

    assert len(STATEMENTS) == len(re.findall(r"```sql", TEXT)) > 10
    assert [row[:3] for row in rows_of("LIMIT 10")] == [("orders", 0, offset) for offset in range(10)]
    assert rows_of("read_committed") == [(2 * PER_PARTITION,)]
    assert sorted(rows_of("GROUP BY partition")) == [(0, 10), (1, 10)]
    assert rows_of("min(offset)") == [(10, 19)]
    assert [row[0] for row in rows_of("latest")][:3] == ["customer-0"] * 2 + ["customer-1"]
    assert sorted(rows_of("grep")) == sorted([(offset,) for offset in range(1, 30, 3) if offset % 2] * 2)
    assert rows_of("sum(amount)") == [(f"customer-{each}", 20.0) for each in range(3)]
    assert rows_of("FROM parsed_orders") == [("new", PER_PARTITION), ("paid", PER_PARTITION)]
    assert sorted(rows_of("FROM seen")) == [("orders", 0, 29), ("orders", 1, 29)]
    assert spark.table("orders_of_the_day").count() == 2 * PER_PARTITION
    if PYSPARK >= (4, 2):
        assert spark.table("orders").count() == 2 * PER_PARTITION + 1
        copied = spark.sql("SELECT count(*) FROM orders WITH (subscribe 'orders-copy')").first()[0]
        assert copied in (PER_PARTITION, PER_PARTITION + 1)
