"""The table of topics at the end of `explain` and `retain`: the same sums as their partitions, and the same times."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.retention_table import DETAILED_MOST
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.retain import Plan
from kafkalog.toolbox.retention_sums import planned_by_topic
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

DAY_MS = 86_400_000
DELETE = ("-X", "cleanup.policy=delete")
BY_TIME = ("-X", f"retention.ms={5 * DAY_MS}", *DELETE)


@pytest.fixture
def now_ms(monkeypatch: pytest.MonkeyPatch) -> int:
    """A clock that does not advance."""
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(type(SYSTEM_CLOCK), "milliseconds", lambda clock: now_ms)
    return now_ms


def fill(root: Path, name: str, ages_ms: list[int], now_ms: int) -> None:
    """A partition with a segment for each two records."""
    with kafkalog.open_log(root, name, config={"internal.segment.bytes": "300"}) as log:
        for age_ms in ages_ms:
            log.append(b"x" * 60, timestamp=now_ms - age_ms)


@pytest.fixture
def root(tmp_path: Path, now_ms: int) -> Path:
    """In orders-0 all closed segments are old, in orders-1 one is; in bills-0 none is yet."""
    root = tmp_path / "logs"
    fill(root, "orders-0", [9 * DAY_MS, 8 * DAY_MS, 7 * DAY_MS, 6 * DAY_MS, DAY_MS], now_ms)
    fill(root, "orders-1", [9 * DAY_MS, 8 * DAY_MS, 4 * DAY_MS, 3 * DAY_MS, DAY_MS], now_ms)
    fill(root, "bills-0", [4 * DAY_MS, 2 * DAY_MS, DAY_MS], now_ms)
    assert [len(list((root / name).glob("*.log"))) for name in ("orders-0", "orders-1", "bills-0")] == [3, 3, 2]
    return root


def told(run: Run, *argv: object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(objects of kind topic, all others)"""
    lines = [json.loads(line) for line in run(*argv, "--json").lines]
    return [each for each in lines if each["kind"] == "topic"], [each for each in lines if each["kind"] != "topic"]


def test_explain_sums_its_segments(run: Run, root: Path, now_ms: int) -> None:
    topics, others = told(run, "explain", root, *BY_TIME)
    assert [each["topic"] for each in topics] == ["orders", "bills"]  # the topic that loses most comes first
    for topic in topics:
        mine = [each for each in others if each["topic"] == topic["topic"]]
        segments = [each for each in mine if each["kind"] == "segment"]
        going = [each for each in segments if each["goes"] is not None]
        assert topic["segments"] == len(segments)
        assert topic["size"] == sum(each["size"] for each in mine if each["kind"] == "summary")
        assert topic["goes"] == len(going)
        assert topic["goingSize"] == sum(each["size"] for each in going)
        assert topic["goingTimestamp"] == max((each["largestTimestamp"] for each in going), default=-1)
        assert topic["untilMs"] == min(each["untilMs"] for each in segments if each["untilMs"] is not None)
    orders, bills = topics
    assert (orders["partitions"], orders["goes"], orders["goingOffsets"]) == ([0, 1], 3, 6)
    assert (bills["partitions"], bills["goes"], bills["goingOffsets"]) == ([0], 0, 0)
    assert orders["untilMs"] == now_ms - 3 * DAY_MS + 5 * DAY_MS + 1
    assert bills["untilMs"] == now_ms - 2 * DAY_MS + 5 * DAY_MS + 1


def test_explain_ends_with_the_table(run: Run, root: Path) -> None:
    result = run("explain", root, *BY_TIME)
    head, orders, bills, total = result.lines[-4:]
    assert head.split()[0] == "TOPIC"
    assert orders.split()[:3] == ["orders", "2", "6"]
    assert bills.split()[:3] == ["bills", "1", "2"]
    assert total.startswith("in all: 3 of 8 segments of 3 partitions will be deleted by the next pass, ")
    assert "TOPIC" not in run("explain", root / "bills-0", *BY_TIME).out


def test_a_topic_alone_is_named_as_everywhere(run: Run, root: Path) -> None:
    for argv in ((root, "orders"), (root / "orders",), (root, "ord*")):
        topics, _ = told(run, "explain", *argv, *BY_TIME)
        assert [each["topic"] for each in topics] == ["orders"]


@pytest.mark.parametrize("act", [[], ["--yes"]])
def test_retain_sums_its_partitions(run: Run, root: Path, now_ms: int, act: list[str]) -> None:
    topics, (*partitions, summary) = told(run, "retain", root, *BY_TIME, *act)
    orders, bills = topics
    assert {each["topic"] for each in partitions} == {"orders"}
    assert orders["done"] == bool(act)
    assert orders["partitions"] == [each["partition"] for each in partitions]
    assert orders["segments"] == summary["segments"] == 3
    assert orders["bytes"] == summary["bytes"]
    assert orders["size"] == sum(segment["size"] for each in partitions for segment in each["segments"])
    assert orders["offsets"] == sum(each["newLogStartOffset"] - each["logStartOffset"] for each in partitions) == 6
    assert orders["largestTimestamp"] == now_ms - 6 * DAY_MS
    assert orders["untilMs"] == now_ms + 2 * DAY_MS + 1  # orders-1: of orders-0 the active segment alone stays
    assert (bills["partitions"], bills["segments"], bills["untilMs"]) == ([], 0, now_ms + 3 * DAY_MS + 1)


def test_what_is_due_goes_then(run: Run, root: Path, now_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run("retain", root, *BY_TIME, "--yes")
    for moved_ms, going in ((2 * DAY_MS, 0), (2 * DAY_MS + 1, 1)):
        monkeypatch.setattr(type(SYSTEM_CLOCK), "milliseconds", lambda clock, moved_ms=moved_ms: now_ms + moved_ms)
        assert told(run, "retain", root, *BY_TIME)[1][-1]["segments"] == going


def test_retain_ends_with_the_table(run: Run, root: Path) -> None:
    result = run("retain", root, *BY_TIME)
    head, orders, bills, total = result.lines[-4:]
    assert head.endswith("NEXT DUE")
    assert orders.split()[:3] == ["orders", "2", "3"]
    assert bills.split()[:4] == ["bills", "-", "-", "-"]
    assert total.startswith("in all: 3 segments of 2 partitions, ")


def test_what_goes_for_space_is_not_due(run: Run, root: Path) -> None:
    result = run("retain", root, "--target-free", "999PiB", *DELETE)
    [head] = [line for line in result.lines if line.startswith("TOPIC")]
    assert head.endswith("UP TO")
    topics, _ = told(run, "retain", root, "--target-free", "999PiB", *DELETE)
    assert {each["topic"]: each["untilMs"] for each in topics} == {"orders": None, "bills": None}


def test_what_the_high_watermark_or_a_rule_holds_is_not_due(run: Run, root: Path) -> None:
    OffsetCheckpointFile(str(root / "replication-offset-checkpoint")).write({TopicPartition("bills", 0): 1})
    topics, _ = told(run, "retain", root, "bills", *BY_TIME)
    assert topics == []
    topics, _ = told(run, "retain", root, "orders", "-X", "retention.bytes=300", *DELETE, "-X", "retention.ms=-1")
    assert topics[0]["segments"] > 0
    assert topics[0]["untilMs"] is None


def test_a_log_start_that_was_raised_counts_what_is_lost(run: Run, root: Path) -> None:
    OffsetCheckpointFile(str(root / "log-start-offset-checkpoint")).write({TopicPartition("orders", 0): 3})
    topics, _ = told(run, "explain", root, "orders", *BY_TIME)
    assert topics[0]["goingOffsets"] == 1 + 2
    topics, _ = told(run, "retain", root, "orders", *BY_TIME)
    assert topics[0]["offsets"] == 1 + 2


def test_nothing_goes(run: Run, tmp_path: Path, now_ms: int) -> None:
    fill(tmp_path, "t-0", [0], now_ms)
    fill(tmp_path, "t-1", [], now_ms)
    result = run("retain", tmp_path, *BY_TIME)
    assert result.lines == ["in all: 0 segments of 0 partitions, 0 B (0 B on disk)"]
    assert planned_by_topic(Plan(str(tmp_path))) == []
    assert run("explain", tmp_path, *BY_TIME).lines[-1] == (
        "in all: 0 of 2 segments of 2 partitions will be deleted by the next pass, 0 B"
    )


@pytest.fixture
def many(tmp_path: Path, now_ms: int) -> Path:
    for number in range(DETAILED_MOST + 1):
        fill(tmp_path / "many", f"t-{number}", [9 * DAY_MS, 9 * DAY_MS, 0], now_ms)
    return tmp_path / "many"


@pytest.mark.parametrize("command", ["explain", "retain"])
def test_many_partitions_are_a_table(run: Run, many: Path, command: str) -> None:
    result = run(command, many, *BY_TIME)
    assert len(result.lines) == 3
    assert "21 partitions are not listed: use --segments" in result.err
    detailed = run(command, many, *BY_TIME, "--segments")
    assert len(detailed.lines) > 3 * DETAILED_MOST
    assert detailed.lines[-3:] == result.lines
    assert "left out" not in detailed.err
    few = run(command, many, "t-1", "t-2", *BY_TIME)
    assert "left out" not in few.err
    assert any(".log" in line for line in few.lines)


def test_many_partitions_that_are_deleted_are_each_told(run: Run, many: Path) -> None:
    result = run("retain", many, *BY_TIME, "--yes")
    assert sum(" deleted; log start 0 -> 2" in line for line in result.lines) == DETAILED_MOST + 1


def test_findings_of_many_partitions_name_them(run: Run, many: Path) -> None:
    (many / "t-4" / f"{0:020}.timeindex").write_bytes(b"")
    result = run("explain", many, *BY_TIME)
    assert result.code == 1
    assert result.lines[0].startswith("t-4: ")
    assert "its time index is empty" in result.lines[0]
    (many / "replication-offset-checkpoint").write_bytes(b"\xff")
    result = run("explain", many, *BY_TIME)
    assert result.code == 1
    assert sum("the high watermark is unknown" in line for line in result.lines) == DETAILED_MOST - 1
    assert "and 2 more findings: --segments shows them" in result.lines


def test_notes_of_many_partitions_are_one_line(run: Run, many: Path) -> None:
    OffsetCheckpointFile(str(many / "cleaner-offset-checkpoint")).write(
        {TopicPartition("t", number): 1 for number in range(DETAILED_MOST + 1)}
    )
    result = run("explain", many)
    assert result.err.count("guessed: ") == 1
    assert result.err.count("a cleaner has compacted ") == 1


@pytest.mark.parametrize("command", ["explain", "retain"])
def test_the_table_fits_a_terminal(
    run: Run, tmp_path: Path, now_ms: int, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for number in range(2):
        fill(tmp_path, f"customer-orders-of-the-north.eu.{number}-0", [9 * DAY_MS, 9 * DAY_MS, 0], now_ms)
    monkeypatch.setattr("kafkalog.cli.tables.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(command, tmp_path, *BY_TIME).lines
    [place] = [number for number, line in enumerate(lines) if line.startswith("TOPIC")]
    assert max(map(len, lines[place:])) <= 80
    assert lines[place].split()[-2:] == ["NEXT", "DUE"]


def test_an_empty_active_segment_has_no_offsets_yet(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0"):
        pass
    told = run("explain", tmp_path)
    assert told.code == 0
    assert "0 B  no offsets yet, file modified " in told.out
    assert "offsets 0 to -1" not in told.out
