"""Options of a catalog's table: the properties that are kept, and those that a statement's options replace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark import tables


@dataclass
class Field:
    """The attributes of a pyspark StructField that tables use."""

    name: str
    metadata: dict[str, Any] = field(default_factory=dict)


def of_table(**kept: str) -> list[Field]:
    return [Field("key"), Field("value", {tables.KEPT: kept})]


def properties(**options: str) -> dict[str, str]:
    """As Spark gives them to CREATE TABLE."""
    given = {"provider": "kafkalog", "owner": "root"}
    for name, value in options.items():
        given |= {name: value} if name == "path" else {name: value, f"option.{name}": value}
    return given


def test_what_is_a_new_tables() -> None:
    assert tables.is_of_table({"Provider": "KafkaLog", "path": "/x"})
    assert not tables.is_of_table({"path": "/x", "subscribe": "provider"})
    assert not tables.is_of_table({"provider": "other"})


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("file:/disk1/logs", "/disk1/logs"),
        ("/disk1/logs", "/disk1/logs"),
        ("file:/disk1/a b%20c", "/disk1/a b%20c"),
        ("file:/disk1, /disk2,file:/disk3", "/disk1,/disk2,/disk3"),
        ("file:///disk1", "///disk1"),
        ("s3a://bucket/logs", "s3a://bucket/logs"),
    ],
)
def test_a_location_is_a_path(path: str, kept: str) -> None:
    assert tables.options_to_keep(properties(path=path, subscribe="t")) == {"path": kept, "subscribe": "t"}


def test_only_options_are_kept() -> None:
    given = {**properties(path="file:/x", subscribePattern="a.*"), "location": "file:/x", "team": "blue"}
    assert tables.options_to_keep(given) == {"path": "/x", "subscribepattern": "a.*"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (properties(path="logs", subscribe="t"), "the table's path is logs"),
        ({**properties(path="/x"), "subscribe": "t"}, r"write OPTIONS \(subscribe"),
        ({**properties(path="/x", subscribe="t"), "option.remote.option.secret": "s"}, "may be a credential"),
        ({**properties(path="/x", subscribe="t"), "option.FS.S3A.secret.key": "s"}, "may be a credential"),
        ({**properties(path="/x", subscribe="t"), "option.remote.keyPairs": "a:b:c"}, "may be a credential"),
        (properties(path="/x", subscribe="t", numPartitions="3"), "option numpartitions is for writers"),
    ],
)
def test_what_is_not_kept(given: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text) as raised:
        tables.options_to_keep(given)
    assert "'s'" not in str(raised.value)


def test_a_reader_takes_what_the_table_keeps() -> None:
    columns = of_table(path="/x", subscribe="t", startingtimestamp="1", isolation="read_committed")
    assert tables.options_to_read(columns, {}) == {
        "path": "/x", "subscribe": "t", "startingtimestamp": "1", "isolation": "read_committed",
    }  # fmt: skip
    found = tables.options_to_read(
        columns, {"startingOffsets": "earliest", "kafka.isolation.level": "read_uncommitted"}
    )
    assert found == {
        "path": "/x", "subscribe": "t", "startingOffsets": "earliest", "kafka.isolation.level": "read_uncommitted",
    }  # fmt: skip
    found = tables.options_to_read(columns, {"assign": '{"t":[0]}', "endingTimestamp": "5"})
    assert "subscribe" not in found
    assert found["startingtimestamp"] == "1"


@pytest.mark.parametrize("name", ["path", "Paths", "remote"])
def test_a_path_of_the_statement_is_all(name: str) -> None:
    columns = of_table(path="/x", subscribe="t")
    assert tables.options_to_read(columns, {name: "/y"}) == {name: "/y"}


def test_without_a_path() -> None:
    for columns in ([], [Field("key")]):
        with pytest.raises(IllegalArgumentException, match=r"option path is missing .*WITH \(path '/dir'"):
            tables.options_to_read(columns, {"subscribe": "t"})
    # A table that was altered is still read.
    columns = [*of_table(path="/x"), Field("key")]
    assert tables.options_to_read(columns, {"subscribe": "t"}) == {"path": "/x", "subscribe": "t"}
    tables.check_sink({"Path": "/x"})
    with pytest.raises(IllegalArgumentException, match=r"option path is missing .*INSERT INTO t WITH \(path"):
        tables.check_sink({"topic": "t"})


def test_headers_are_of_the_table() -> None:
    columns = of_table(path="/x", subscribe="t")
    with pytest.raises(IllegalArgumentException, match="created without the column headers"):
        tables.options_to_read(columns, {"includeHeaders": " TRUE"})
    assert tables.options_to_read([Field("headers"), *columns], {"includeHeaders": "true"})["path"] == "/x"
