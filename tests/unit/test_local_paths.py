"""A path with a scheme is not on a local disk: each public function says so, before it creates or reads anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import local_path
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException
from kafkalog.remote import is_address
from kafkalog.spark.options import parse_options
from kafkalog.spark.write_options import parse_sink_options
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.export import ExportOptions, export
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

ELSEWHERE = "s3a://bucket/logs"
NO_ADDRESS = "dbfs:/logs"
SCHEMES = (ELSEWHERE, "dbfs:/logs", "S3://b/l", "hdfs://host:9000/x", "abfss://c@a.net/x", "s3a:new", "file://host/x")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one topic, and another one to work in, which stays empty."""
    place = tmp_path / "a store"
    with kafkalog.open(place) as made:
        made.create_topic("t", 1)
        made.topic("t").append_many([b"one", b"two"])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return place


def sink(**options: str) -> Any:
    return parse_sink_options({"topic": "t", **options})


def source(**options: str) -> Any:
    return parse_options({"subscribe": "t", **options})


DOORS: dict[str, Callable[[str, str], Any]] = {
    "open": lambda path, here: kafkalog.open(path),
    "open several": lambda path, here: kafkalog.open([here, path]),
    "open read-only": lambda path, here: kafkalog.open(path, read_only=True),
    "cursors": lambda path, here: kafkalog.open(here, read_only=True, cursors=path),
    "open_log": lambda path, here: kafkalog.open_log(path, "t-0"),
    "open_log read-only": lambda path, here: kafkalog.open_log(path, "t-0", read_only=True),
    "LogManager": lambda path, here: LogManager(path),
    "list_partitions": lambda path, here: list_partitions(path),
    "view": lambda path, here: PartitionView(path, "t-0"),
    "verify": lambda path, here: verify(path),
    "salvage from": lambda path, here: salvage(path, "new", {}),
    "salvage to": lambda path, here: salvage(here, path, {TopicPartition("t", 0): here}),
    "backup from": lambda path, here: backup(path, "new"),
    "backup to": lambda path, here: backup(here, path),
    "backup base": lambda path, here: backup(here, "new", base=path),
    "restore from": lambda path, here: restore(path, "new"),
    "export from": lambda path, here: export(path, [TopicPartition("t", 0)], "new", ExportOptions()),
    "export to": lambda path, here: export(here, [TopicPartition("t", 0)], path, ExportOptions()),
    "Spark path": lambda path, here: source(path=path),
    "Spark path of several": lambda path, here: source(path=f"{here},{path}"),
    "Spark paths": lambda path, here: source(paths=f'["{here}","{path}"]'),
    "Spark sink": lambda path, here: sink(path=path),
    "Spark staging": lambda path, here: sink(path=here, stagingPath=path),
}


# An address (`s3a://bucket/logs`) is read there, as a bucket: tests of the remote tier have that.
READ_BUCKETS = {"open read-only", "Spark path", "Spark path of several", "Spark paths"}
REFUSED = [(door, path) for door in DOORS for path in SCHEMES if not (door in READ_BUCKETS and is_address(path))]


@pytest.mark.parametrize(("door", "path"), REFUSED)
def test_a_scheme_is_refused_and_nothing_is_made(door: str, path: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentException) as met:
        DOORS[door](path, str(store))
    assert f"found {path}, " in str(met.value)
    assert met.value.hint
    assert not list((tmp_path / "work").iterdir())


COMMANDS = (  # commands that read accept an address as a bucket's
    ("append", ELSEWHERE, "t"),
    ("backup", "HERE", "--to", ELSEWHERE),
    ("backup", ELSEWHERE, "--to", "new"),
    ("cat", NO_ADDRESS),
    ("compact", ELSEWHERE),
    ("delete-records", f"{ELSEWHERE}/t-0", "--before", 1),
    ("describe", NO_ADDRESS),
    ("export", NO_ADDRESS, "--to", "new"),
    ("export", "HERE", "--to", ELSEWHERE),
    ("export", "HERE", "--to", f"{ELSEWHERE}/all.parquet"),
    ("latest", "HERE", "--to", ELSEWHERE),
    ("move", "HERE/t-0", ELSEWHERE),
    ("move", f"{ELSEWHERE}/t-0", "new"),
    ("recover", ELSEWHERE),
    ("restore", ELSEWHERE, "new"),
    ("restore", "HERE", ELSEWHERE),
    ("salvage", "HERE", ELSEWHERE),
    ("salvage", ELSEWHERE, "new"),
    ("topics", NO_ADDRESS),
    ("verify", NO_ADDRESS),
    ("spark", "export", "HERE", "--to", ELSEWHERE),
    ("spark", "import", ELSEWHERE, "HERE"),
    ("spark", "import", "HERE", ELSEWHERE),
    ("spark", "verify", NO_ADDRESS),
)


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(map(str, line)))
def test_so_does_each_command(line: tuple[object, ...], run: Run, store: Path, tmp_path: Path) -> None:
    done = run(*(str(word).replace("HERE", str(store)) for word in line))
    assert done.code == 2, done.err
    assert f"found {NO_ADDRESS if NO_ADDRESS in line else ELSEWHERE}" in done.err, done.err
    assert done.err.count("\n") == 1
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("uri", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_a_file_uri_is_a_local_path(uri: str, store: Path, run: Run) -> None:
    given = uri.format(str(store).replace(" ", "%20"))
    assert local_path(given) == str(store)
    assert source(path=given).paths == (str(store),)
    assert sink(path=given, stagingPath=given).staging == str(store)
    assert list(list_partitions(given)) == [TopicPartition("t", 0)]
    with kafkalog.open(given) as opened:
        assert opened.topics() == ["t"]
    with kafkalog.open_log(given, "t-0", read_only=True) as log:
        assert log.end_offset == 2
    assert len(run("cat", given, "--json").lines) == 2


@pytest.mark.parametrize("name", ["./s3a:x", "a/b:c", "{}/x:y/z", "2026:11", "./dbfs:/logs"])
def test_a_local_name_may_have_a_colon(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = name.format(tmp_path)
    with kafkalog.open(path) as store:
        store.create_topic("t", 1)
    assert (tmp_path / path / "t-0").is_dir()


def test_a_local_folder_that_is_there_is_no_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").mkdir()
    (tmp_path / "dbfs:" / "logs").mkdir(parents=True)
    assert local_path("a:b") == "a:b"
    with pytest.raises(IllegalArgumentException, match=r"write \./dbfs:/logs"):
        local_path("dbfs:/logs")
