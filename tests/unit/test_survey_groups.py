"""Groups and lags of a survey: equal to `kafkalog cursors`, and to what the log had at each commit."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.names import TopicPartition
from kafkalog.report import groups
from kafkalog.report.groups import add_groups, thinned
from kafkalog.report.tables import Survey
from tests.unit.cli_kit import Run, run
from tests.unit.cursor_kit import commit, leave_classic, store_home

__all__ = ["run"]

KAFKA_LOGS = Path(__file__).parents[1] / "pages" / "kafka-logs"
START_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


def surveyed(*log_dirs: Path, deep: bool = False, **options: Any) -> Survey:
    made = Survey([str(each) for each in log_dirs], time.time_ns() // 1_000_000, deep)
    add_groups(made, made.log_dirs, **options)
    return made


def as_the_command_tells(run: Run, made: Survey) -> None:
    told = [json.loads(line) for line in run("cursors", *made.log_dirs, "--json").lines]
    states = {each["group"]: each["state"] for each in told if each["kind"] == "group"}
    cursors = [each for each in told if each["kind"] == "cursor"]
    rows = [row for row in made.tables["groups"].rows() if row["topic"] is not None]
    assert rows or not cursors
    names = ("group", "topic", "partition", "offset", "lag", "commitTimestamp", "gone")
    assert [[row[name] for name in names] for row in rows] == [[each[name] for name in names] for each in cursors]
    assert [row["end"] for row in rows] == [each["logEndOffset"] for each in cursors]
    assert {row["group"]: row["state"] for row in made.tables["groups"].rows()} == states


@pytest.mark.parametrize("deep", [False, True])
def test_a_brokers_directory(run: Run, deep: bool) -> None:
    as_the_command_tells(run, surveyed(KAFKA_LOGS, deep=deep))


def test_groups_of_all_kinds(run: Run, tmp_path: Path) -> None:
    with store_home(tmp_path / "data") as home:
        commit(home, "billing", {ORDERS: 3, TopicPartition("gone", 1): 7})
        leave_classic(home, "readers", "one", "two")
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("orders").append_many([b"x"] * 5)
    made = surveyed(tmp_path / "data")
    as_the_command_tells(run, made)
    rows = list(made.tables["groups"].rows())
    assert [(row["group"], row["topic"], row["lag"], row["gone"] is None) for row in rows] == [
        ("billing", "gone", None, False),
        ("billing", "orders", 2, True),
        ("readers", None, None, True),
    ]
    assert rows[2]["member"] == "client one at /10.0.0.1, client two at /10.0.0.1"
    only = surveyed(tmp_path / "data", takes=lambda partition: partition == ORDERS)
    assert [row["topic"] for row in only.tables["groups"].rows()] == ["orders", None]


def committed(place: Path, times: int, *, every_ms: int = 1000) -> list[tuple[int, int, int, int]]:
    """A log with three records a second, and a group that commits each second after one of them.  Returns what the
    table of lags must have."""
    clock = ManualClock(START_MS)
    expected = []
    with kafkalog.open(place, maintenance=False) as store:
        topic = store.create_topic("orders")
        for number in range(times):
            for _ in range(3):
                topic.append(b"x", timestamp=START_MS + number * every_ms)
    with store_home(place, clock=clock) as home:
        for number in range(times):
            commit(home, "billing", {ORDERS: number + 1})
            expected.append((START_MS + number * every_ms, number + 1, 3 * number + 3, 2 * number + 2))
            clock.advance(every_ms)
    return expected


def lags(made: Survey) -> list[tuple[int, int, int, int]]:
    rows = made.tables["lags"].rows(("time", "offset", "end", "lag"))
    return [(row["time"], row["offset"], row["end"], row["lag"]) for row in rows]


def test_lags_over_time(tmp_path: Path) -> None:
    expected = committed(tmp_path / "data", 20)
    made = surveyed(tmp_path / "data")
    assert lags(made) == expected
    assert {(row["group"], row["topic"], row["partition"]) for row in made.tables["lags"].rows()} == {
        ("billing", "orders", 0)
    }
    assert made.facts["leftOut"] == {}


def test_lags_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = committed(tmp_path / "data", 40)
    monkeypatch.setattr(groups, "LAGS_MAX", 5)
    made = surveyed(tmp_path / "data")
    assert lags(made) == [expected[number] for number in (0, 10, 20, 29, 39)]
    assert made.facts["leftOut"] == {"lags": 35}


def test_only_the_newest_commits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one is there, even if nothing is read."""
    expected = committed(tmp_path / "data", 10)
    monkeypatch.setattr(groups, "PARTITION_BYTES_MAX", 0)
    made = surveyed(tmp_path / "data")
    assert lags(made) == expected[-1:]
    assert made.facts["lagsReadInPart"]
    assert lags(surveyed(tmp_path / "data", deep=True)) == expected


def test_commits_of_transactions(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data", maintenance=False) as store:
        store.create_topic("orders").append_many([b"x"] * 9)
        with store.reader("billing", topics=["orders"]) as reader:
            for is_kept in (True, False, True):
                reader.poll(2)
                with contextlib.suppress(KeyError), store.transaction("job") as txn:
                    txn.commit_offsets(reader)
                    if not is_kept:
                        raise KeyError
    found = lags(surveyed(tmp_path / "data"))
    assert [(offset, end, lag) for _, offset, end, lag in found] == [(2, 9, 7), (6, 9, 3)]


def test_a_record_of_a_later_time(tmp_path: Path) -> None:
    """Records whose times are after the commit were there all the same."""
    with kafkalog.open(tmp_path / "data", maintenance=False) as store:
        topic = store.create_topic("orders")
        for _ in range(4):
            topic.append(b"x", timestamp=START_MS + 9_000_000)
    with store_home(tmp_path / "data", clock=ManualClock(START_MS)) as home:
        commit(home, "billing", {ORDERS: 4})
    assert lags(surveyed(tmp_path / "data")) == [(START_MS, 4, 4, 0)]


def test_damage_is_told(tmp_path: Path) -> None:
    committed(tmp_path / "data", 5)
    (log,) = [each for each in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if each.stat().st_size]
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    made = surveyed(tmp_path / "data")
    assert any(str(log.parent) in text for text in made.facts["groupFindings"])


@pytest.mark.parametrize("rows_max", [2, 3, 7, 300])
def test_thinned_keeps_the_ends(rows_max: int) -> None:
    commits = [(number, number) for number in range(101)]
    kept = list(thinned(commits, rows_max))
    assert len(kept) == min(rows_max, 101) == len(set(kept))
    assert (kept[0], kept[-1]) == (commits[0], commits[-1])
    assert kept == sorted(kept)


def test_rows_of_very_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions with the largest lags are shown, and the missing ones."""
    with kafkalog.open(tmp_path / "data", maintenance=False) as store:
        store.create_topic("orders").append_many([b"%d" % number for number in range(50)])
    with store_home(tmp_path / "data") as home:
        for number in range(12):
            commit(home, f"g{number:02}", {ORDERS: 3 * number})
        commit(home, "lost", {TopicPartition("nowhere", 0): 1})
    monkeypatch.setattr(groups, "GROUPS_MAX", 4)
    monkeypatch.setattr(groups, "LAGS_OF_SURVEY_MAX", 10)
    made = surveyed(tmp_path / "data")
    assert sorted(made.tables["groups"].columns["group"]) == ["g00", "g01", "g02", "lost"]
    assert len(set(made.tables["lags"].columns["group"])) == 5
    assert made.facts["leftOut"] == {"groups": 9, "lags": 7}
    assert made.facts["groups"] == 13
