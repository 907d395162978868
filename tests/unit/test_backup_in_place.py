"""Follows docs/how-to/backup.md and damage.md: one topic, or the output of salvage, joins a directory of others."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

BACKUP = "backups/monday"
PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def steps(page: str, heading: str) -> list[list[str]]:
    """Returns the words of each command in the console blocks of a section."""
    found = re.search(rf"^## {heading}\n(.*?)^## ", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.*)$", found[1], re.MULTILINE)]


def follow(page: str, heading: str, run: Run, codes: dict[str, int]) -> None:
    """Runs the commands of a section in the current directory.

    A command's exit code is 0 or, the first time, the one in `codes`.
    """
    for words in steps(page, heading):
        if words[0] == "mkdir":
            Path(words[1]).mkdir()
        elif words[0] == "mv":
            for source in filter(os.path.exists, words[1:-1]):  # a topic that was deleted has no directories
                shutil.move(source, words[-1])
        else:
            assert words[0] == "kafkalog"
            here, target = words, None
            if ">" in words:
                here, target = words[: words.index(">")], Path(words[-1])
            result = run(*here[1:])
            assert result.code == codes.pop(words[1], 0), (words, result.err)
            if target is not None:
                target.write_text(result.out)
    assert not codes


def read_all(store: kafkalog.Store) -> list[int]:
    with store.reader("billing", topics=["orders"], isolation="read_committed") as reader:
        found = [record.offset for record in reader if record.partition == 0]
        reader.commit()
        return found


def fill(store: kafkalog.Store, topic: str, prefix: str, count: int) -> None:
    for number in range(2):
        for each in range(count):
            store.topic(topic).partition(number).append(b"%s%d" % (prefix.encode(), each), key=b"k")


SHIPPING = {("shipping", "clicks", 0), ("shipping", "clicks", 1)}


def cursors_of(run: Run, log_dir: Path) -> set[tuple[str, str, int]]:
    told = [json.loads(line) for line in run("cursors", log_dir, "--json").lines]
    return {(each["group"], each["topic"], each["partition"]) for each in told if each["kind"] == "cursor"}


@pytest.fixture
def root(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that continued after its backup, which has a cursor at offset 5 and an open transaction."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backups").mkdir()
    with kafkalog.open(tmp_path / "kafka-logs", maintenance=False) as store:
        for topic in ("orders", "clicks"):
            store.create_topic(topic, 2, config={"retention.ms": "987654321"})
            fill(store, topic, "v", 5)
        read_all(store)
        with store.reader("shipping", topics=["clicks"]) as reader:  # it never reads orders
            assert len(list(reader)) == 10
            reader.commit()
        transaction = store.transaction("biller")
        transaction.begin()
        transaction.append("orders", b"undecided", partition=0)
        assert run("backup", "kafka-logs", "--to", BACKUP).code == 0
        transaction.commit()
        fill(store, "orders", "later", 3)
        fill(store, "clicks", "later", 3)
        assert read_all(store) == [5, 7, 8, 9]
    return tmp_path


@pytest.mark.parametrize("since", ["changed", "deleted", "created again"])
def test_one_topic_in_place(since: str, root: Path, run: Run) -> None:
    log_dir = root / "kafka-logs"
    if since != "changed":
        with kafkalog.open(log_dir, maintenance=False) as store:
            store.delete_topic("orders")
            if since == "created again":
                store.create_topic("orders", 2, config={"retention.ms": "987654321"})
    follow("backup.md", "Restore one topic in place", run, {})
    assert cursors_of(run, log_dir) == {("billing", "orders", 0), ("billing", "orders", 1), *SHIPPING}
    told = run("transactions", log_dir, "orders").out
    assert "transactional id 'biller'" in told
    abort = ["transactions", "abort", log_dir, "orders", "--transactional-id", "biller", "--yes"]
    assert run(*abort).code == 0
    assert "open for" not in run("transactions", log_dir, "orders").out
    assert run("verify", log_dir).code == 0
    with kafkalog.open(log_dir, on_damage="raise") as store:
        assert [store.topic("orders").partition(number).end_offset for number in range(2)] == [7, 5]
        assert [store.topic("clicks").partition(number).end_offset for number in range(2)] == [8, 8]
        fill(store, "orders", "new", 1)
        assert read_all(store) == [7]  # none twice, none left out
        assert TopicSettings(str(log_dir)).of("orders").retention_ms == 987654321
    with kafkalog.open(log_dir) as store:  # no partition counts as the rest of a deleted topic
        assert len(list(store.topic("orders").partition(1))) == 6


def test_what_salvage_saved_in_place(root: Path, run: Run) -> None:
    log_dir = root / "kafka-logs"
    (log,) = (log_dir / "orders-1").glob("*.log")
    data = bytearray(log.read_bytes())
    data[150] ^= 0xFF
    log.write_bytes(data)
    assert run("verify", log_dir).code == 1
    follow("damage.md", "Salvage", run, {"salvage": 1})
    follow("damage.md", "Put salvaged partitions back", run, {})
    assert (root / "damaged/orders-1" / log.name).read_bytes() == data
    with kafkalog.open(log_dir, on_damage="raise") as store:
        partition = store.topic("orders").partition(1)
        assert [record.offset for record in partition] == [0, 1, 3, 4, 5, 6, 7]
        assert partition.append(b"new") == 8
        assert TopicSettings(str(log_dir)).of("orders").retention_ms == 987654321
        with store.reader("billing", topics=["orders"]) as reader:
            assert [(record.partition, record.offset) for record in reader] == [(1, 8)]
