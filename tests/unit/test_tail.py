"""`kafkalog tail`: the newest records of all topics by time, and what it says of places without any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

LOG = f"{0:020}.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    for topic, first in (("orders", 1_000), ("invoices", 1_001)):
        with kafkalog.open_log(root, f"{topic}-0") as log:
            for number in range(5):
                log.append(b"%s %d" % (topic.encode(), number), key=b"k", timestamp=first + 2 * number)
    return root


def test_the_newest_of_all_topics_by_time(log_dir: Path, run: Run) -> None:
    found = run("tail", log_dir, "--no-follow", "-n", 3)
    assert (found.code, found.err) == (CLEAN, "")
    assert found.lines == [
        "1970-01-01T00:00:01.007Z invoices-0@3 k: invoices 3",
        "1970-01-01T00:00:01.008Z orders-0@4 k: orders 4",
        "1970-01-01T00:00:01.009Z invoices-0@4 k: invoices 4",
    ]


def test_the_same_filters_as_cat(log_dir: Path, run: Run) -> None:
    assert len(run("tail", log_dir, "ord*", "--no-follow").lines) == 5
    assert [line.split(": ")[1] for line in run("tail", log_dir, "--no-follow", "--grep", "3$").lines] == [
        "orders 3",
        "invoices 3",
    ]
    assert run("tail", log_dir, "--no-follow", "-n", 0).out == ""


def test_one_line_a_record(tmp_path: Path, run: Run) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"two\nlines\r\x1b[31m\xff", timestamp=1)
        log.append(None, key=b"gone\n", timestamp=2)
    found = run("tail", tmp_path, "--no-follow")
    assert [line.partition(" ")[2].partition(" ")[0] for line in found.lines] == ["t-0@0", "t-0@1"]
    assert "two\\nlines\\r" in found.lines[0]
    assert "\x1b" not in found.out
    assert found.lines[1].endswith("gone\\n: null")


def test_json_has_the_names_of_cat(log_dir: Path, run: Run) -> None:
    tail = [json.loads(line) for line in run("tail", log_dir, "orders", "--no-follow", "--json").lines]
    assert tail == [json.loads(line) for line in run("cat", log_dir, "orders", "--json").lines]


def test_damage_ends_it_or_is_passed_over(log_dir: Path, run: Run) -> None:
    path = log_dir / "orders-0" / LOG
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused = run("tail", log_dir, "--no-follow")
    assert refused.code == FINDINGS
    assert refused.err.startswith("kafkalog: ")
    assert LOG in refused.err
    passed = run("tail", log_dir, "--no-follow", "--skip-damage")
    assert passed.code == FINDINGS
    assert len(passed.lines) == 9
    assert passed.err.startswith("lost: ")


def test_places_that_have_nothing(tmp_path: Path, log_dir: Path, run: Run) -> None:
    assert run("tail", tmp_path / "nowhere", "--no-follow").code == USAGE
    assert run("tail", log_dir, "payments", "--no-follow").code == USAGE
    (tmp_path / "empty").mkdir()
    empty = run("tail", tmp_path / "empty", "--no-follow")
    assert empty.code == USAGE
    assert empty.out == ""
    assert len(empty.err.splitlines()) == 1
