"""Exports with format="delta" and "iceberg": each file is in a table once, after interruptions and repeats."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException, IllegalStateException, KafkaStorageException
from kafkalog.spark.jobs import lake_tables
from tests.spark.kit import fill
from tests.spark.lake import need

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


class Lake:
    """An export of two topics, its tables in one of the formats."""

    def __init__(self, spark: Any, place: Path, format: str) -> None:
        need(*{"delta": ["deltalake"], "iceberg": ["pyiceberg", "sqlalchemy"]}[format])
        self.spark = spark
        self.root, self.target, self.format = place / "logs", place / "lake", format
        self.more: dict[str, Any] = {}
        if format == "iceberg":
            from pyiceberg.catalog import load_catalog

            (place / "catalog").mkdir()
            catalog = load_catalog(
                "lake", type="sql", uri=f"sqlite:///{place}/catalog/it.db", warehouse=f"file://{place}/catalog"
            )
            self.more = {"catalog": catalog, "namespace": "logs"}

    def export(self, *topics: str, **options: Any) -> None:
        from kafkalog.spark import jobs

        rows = jobs.export(
            self.spark, self.root, self.target, list(topics) or None, format=self.format, **self.more, **options
        )
        assert [row for row in rows.collect() if row.error] == []

    def rows(self, topic: str) -> list[tuple[int, int, bytes, int]]:
        """(partition, offset, value, timestamp in ms), in order."""
        table = self.scanned(topic).select(["partition", "offset", "value", "timestamp"])
        found = [tuple(row.values()) for row in table.to_pylist()]
        return sorted((p, o, v, round(t.timestamp() * 1000)) for p, o, v, t in found)

    def scanned(self, topic: str) -> Any:
        if self.format == "iceberg":
            return self.more["catalog"].load_table(("logs", topic)).scan().to_arrow()
        import deltalake

        return deltalake.DeltaTable(self.target).to_pyarrow_table(filters=[("topic", "=", topic)])

    def expected(self, topic: str) -> list[tuple[int, int, bytes, int]]:
        with kafkalog.open(self.root, read_only=True) as store, store.reader(topics=[topic]) as reader:
            return sorted((it.partition, it.offset, it.value, it.timestamp) for it in reader)

    def drop(self, topic: str) -> None:
        if self.format == "iceberg":
            self.more["catalog"].drop_table(("logs", topic))
        else:
            for path in (self.target / "_delta_log").iterdir():
                path.unlink()

    def delete_all(self, topic: str) -> None:
        """By the table's own means, as a compaction or a user does."""
        if self.format == "iceberg":
            self.more["catalog"].load_table(("logs", topic)).delete()
        else:
            import deltalake

            deltalake.DeltaTable(self.target).delete("topic = '" + topic + "'")


@pytest.fixture(params=["delta", "iceberg"])
def lake(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    fill(tmp_path / "logs", "t-0", 200)
    fill(tmp_path / "logs", "t-1", 70)
    fill(tmp_path / "logs", "u.v-0", 30)
    with kafkalog.open_log(tmp_path / "logs", "t-1") as log:
        log.append(b"timeless", timestamp=-1)
    return Lake(spark, tmp_path, request.param)


def test_a_table_has_what_the_log_has_and_grows_with_it(lake: Lake) -> None:
    lake.export(headers=True)
    for topic in ("t", "u.v"):
        assert lake.rows(topic) == lake.expected(topic)
    headers = [row for row in lake.scanned("t").sort_by("offset")["headers"].to_pylist() if row]
    assert headers[0] == [{"key": "n", "value": b"0"}]
    fill(lake.root, "t-0", 50)
    for _ in range(2):
        lake.export("t", headers=True)
        assert lake.rows("t") == lake.expected("t")
    lake.delete_all("t")
    fill(lake.root, "t-0", 10)
    lake.export(headers=True)
    assert lake.rows("t") == lake.expected("t")[250:260]  # only newer records; deleted rows do not come back
    assert lake.rows("u.v") == lake.expected("u.v")


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_registration_that_is_cut_short_is_done_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    kind = lake_tables._DeltaTable if lake.format == "delta" else lake_tables._IcebergTable
    add: Callable[..., None] = kind.add

    def cut(*given: Any) -> None:
        if moment == "behind":
            add(*given)
        raise OSError("the driver is gone")

    with monkeypatch.context() as patched:
        patched.setattr(kind, "add", cut)
        with pytest.raises(KafkaStorageException, match="the next export registers"):
            lake.export("t", range_bytes=4000)
    fill(lake.root, "t-0", 20)
    lake.export()
    for topic in ("t", "u.v"):
        assert lake.rows(topic) == lake.expected(topic)


def test_what_was_exported_before_comes_in_and_a_new_table_gets_all(lake: Lake) -> None:
    from kafkalog.spark import jobs

    jobs.export(lake.spark, lake.root, lake.target, ["t"])
    fill(lake.root, "t-0", 20)
    lake.export("t")
    assert lake.rows("t") == lake.expected("t")
    lake.drop("t")
    lake.export("t")
    assert lake.rows("t") == lake.expected("t")

    for each in (lake.target / "_kafkalog" / "tables").glob("*/*.json"):  # for both tables
        each.unlink()
    with pytest.raises(IllegalStateException, match="has registration 0 of this export, its notes end at -1"):
        lake.export("t")
    (lake.target / "_kafkalog" / "tables" / "export-id.json").unlink()
    with pytest.raises(IllegalStateException, match=r"export-id\.json is missing, the id by which tables know"):
        lake.export("t")


def test_a_delta_table_of_something_else_is_left_alone(spark: Any, tmp_path: Path) -> None:
    need("deltalake")
    import deltalake
    import pyarrow as pa

    from kafkalog.spark import jobs

    fill(tmp_path / "logs", "t-0", 10)
    deltalake.write_deltalake(tmp_path / "lake", pa.table({"offset": ["a"], "topic": ["t"]}))
    with pytest.raises(
        IllegalArgumentException, match=r"found a Delta table partitioned by no column; .* key, value, partition"
    ):
        jobs.export(spark, tmp_path / "logs", tmp_path / "lake", format="delta")
    assert deltalake.DeltaTable(tmp_path / "lake").version() == 0


def test_what_makes_no_sense_is_refused(spark: Any, tmp_path: Path) -> None:
    from kafkalog.spark import jobs

    fill(tmp_path / "logs", "t-0", 10)
    for options, message in (
        ({"format": "orc"}, "found format 'orc'"),
        ({"format": "parquet", "namespace": "logs"}, "found a catalog or a namespace with format 'parquet'"),
    ):
        with pytest.raises(IllegalArgumentException, match=message):
            jobs.export(spark, tmp_path / "logs", tmp_path / "lake", **options)
    assert not (tmp_path / "lake").exists()


def test_iceberg_needs_a_catalog(spark: Any, tmp_path: Path) -> None:
    need("pyiceberg")
    from kafkalog.spark import jobs

    fill(tmp_path / "logs", "t-0", 10)
    with pytest.raises(IllegalArgumentException, match="found catalog None and namespace 'logs'"):
        jobs.export(spark, tmp_path / "logs", tmp_path / "lake", format="iceberg", namespace="logs")
    assert not (tmp_path / "lake").exists()


def test_a_note_between_others_is_gone(lake: Lake) -> None:
    """The rows of the lost note may have been deleted since, and must not come back."""
    lake.export("t")
    fill(lake.root, "t-0", 20)
    lake.export("t")
    first, _ = sorted((lake.target / "_kafkalog" / "tables").glob("*/*.json"))
    lake.delete_all("t")
    first.unlink()
    with pytest.raises(IllegalStateException, match="registration 1 of this export, 0 is missing among its notes"):
        lake.export("t")
    assert lake.rows("t") == []


def test_a_run_that_was_killed_before_the_export_had_its_name(lake: Lake) -> None:
    tables = lake.target / "_kafkalog" / "tables"
    tables.mkdir(parents=True)
    (tables / "export-id.json.tmp").write_text("{")
    lake.export("t")
    assert lake.rows("t") == lake.expected("t")


def test_a_target_that_the_format_cannot_name(lake: Lake) -> None:
    """Refused before anything is written: Delta's package would read the table of `a b` for `a%20b`."""
    target, bad = lake.target, {"delta": "%20", "iceberg": "#"}
    lake.target = target / f"a{bad.pop(lake.format)}b"
    with pytest.raises(IllegalArgumentException, match=r"found '(%20|#)' in the target, which has another meaning in"):
        lake.export("t")
    assert not target.exists()
    lake.target = target / f"a {bad.popitem()[1]}b"
    lake.export("t")
    assert lake.rows("t") == lake.expected("t")


def test_the_command(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    need("deltalake")
    import deltalake

    from kafkalog.cli import spark_export

    monkeypatch.setattr(spark_export, "session", lambda master, conf: contextlib.nullcontext(spark))

    def run(*more: str) -> dict[str, Any]:
        argv = [str(tmp_path / "logs"), "--to", str(tmp_path / "lake"), "--json", *more]
        assert spark_export.command.main(argv, standalone_mode=False) == 0
        return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))

    fill(tmp_path / "logs", "t-0", 30)
    assert run()["records"] == 30
    fill(tmp_path / "logs", "t-0", 10)
    assert run("--format", "delta")["records"] == 10
    assert run("--format", "delta")["records"] == 0
    assert deltalake.DeltaTable(tmp_path / "lake").to_pyarrow_table().num_rows == 40
    with pytest.raises(Exception, match="'iceberg' is not one of 'parquet', 'delta'"):  # "iceberg" needs a catalog
        run("--format", "iceberg")
