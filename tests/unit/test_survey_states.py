"""Transactions and producers of a survey: equal to the commands, and to what a load computes."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.opening import open_log
from kafkalog.engine.files import ManualClock
from kafkalog.engine.log.view import PartitionView
from kafkalog.report import states
from kafkalog.report.states import add_producers, add_transactional_ids, add_transactions
from kafkalog.report.tables import Survey
from kafkalog.toolbox.producers import find_producers
from tests.client_transaction import client_transaction
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

KAFKA_LOGS = Path(__file__).parents[1] / "pages" / "kafka-logs"
SAME = ("producerId", "producerEpoch", "firstOffset", "lastOffset", "records", "heldRecords", "transactionalId")


def surveyed(log_dir: Path, *, deep: bool = False, now_ms: int | None = None) -> Survey:
    made = Survey([str(log_dir)], now_ms or time.time_ns() // 1_000_000, deep)
    for partition in kafkalog.list_partitions(log_dir):
        with PartitionView(log_dir, partition) as view:
            add_transactions(made, str(log_dir), view)
            add_producers(made, str(log_dir), view)
    add_transactional_ids(made)
    return made


def rows(made: Survey, table: str, **of: object) -> list[dict[str, Any]]:
    return [row for row in made.tables[table].rows() if all(row[name] == value for name, value in of.items())]


def as_the_command_tells(run: Run, log_dir: Path, made: Survey) -> None:
    """Open transactions are those of the command, number by number."""
    told = [json.loads(line) for line in run("transactions", log_dir, "--json").lines]
    begun = {(each["topic"], each["partition"]): each["open"] for each in told}
    found: dict[tuple[str, int], list[dict[str, Any]]] = {place: [] for place in begun}
    for row in made.tables["transactions"].rows():
        if row["state"] in ("open", "hanging"):
            found[row["topic"], row["partition"]].append(row)
    assert any(begun.values())
    for place, theirs in begun.items():
        ours = sorted(found[place], key=lambda row: row["firstOffset"])
        assert [[row[name] for name in SAME] for row in ours] == [[each[name] for name in SAME] for each in theirs]
        for row, each in zip(ours, theirs, strict=True):
            assert row["state"] == ("hanging" if each["hanging"] else "open")
            for name in ("startTimestamp", "lastTimestamp"):
                assert (-1 if row[name] is None else row[name]) == each[name]
            assert abs(row["ageMs"] - each["ageMs"]) < 60_000
    ended = sum(each["committed"] + each["aborted"] for each in told)
    shown = len(rows(made, "transactions", state="committed")) + len(rows(made, "transactions", state="aborted"))
    assert shown == ended


@pytest.mark.parametrize("deep", [False, True])
def test_a_brokers_directory(run: Run, deep: bool) -> None:
    made = surveyed(KAFKA_LOGS, deep=deep)
    as_the_command_tells(run, KAFKA_LOGS, made)
    (hanging,) = rows(made, "transactions", state="hanging")
    assert (hanging["transactionalId"], hanging["heldRecords"]) == ("refunds", 9)
    assert {row["transactionalId"] for row in rows(made, "producers")} == {"checkout", "refunds"}
    assert made.facts["hangingTransactions"] == 1


def written(log: kafkalog.Partition, seed: int, count: int) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
    """Interleaved transactions of several producers.  Returns those that ended, and where the open ones began."""
    dice = random.Random(seed)
    producers = [client_transaction(log, f"p{number}") for number in range(5)]
    begun: dict[int, tuple[int, int]] = {}  # first offset, records
    ended: list[tuple[Any, ...]] = []
    for _ in range(count):
        txn = dice.choice(producers)
        number = txn.producer_id
        what = dice.random()
        if what < 0.2:
            log.append(b"of nobody")
        elif not txn.active:
            txn.begin()
            begun[number] = (txn.append(b"first", timestamp=1000), 1)
        elif what < 0.7:
            some = dice.randrange(1, 4)
            txn.append_many([b"more"] * some)
            begun[number] = (begun[number][0], begun[number][1] + some)
        else:
            first, records = begun.pop(number)
            txn.commit() if what < 0.85 else txn.abort()
            state = "committed" if what < 0.85 else "aborted"
            ended.append((state, number, first, log.end_offset - 1, records, 1000))
    return ended, {number: first for number, (first, _) in begun.items()}


COLUMNS = ("state", "producerId", "firstOffset", "lastOffset", "records", "startTimestamp")


@pytest.mark.parametrize("seed", range(4))
def test_interleaved_transactions(run: Run, tmp_path: Path, seed: int) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "5000"}) as log:
        ended, begun = written(log, seed, 300)
        log.flush()
        made = surveyed(tmp_path)
        found = [row for row in rows(made, "transactions") if row["state"] in ("committed", "aborted")]
        assert [tuple(row[name] for name in COLUMNS) for row in found] == ended
        still = [row for row in rows(made, "transactions") if row["state"] not in ("committed", "aborted")]
        assert {row["producerId"]: row["firstOffset"] for row in still} == begun
        as_the_command_tells(run, tmp_path, made)
        assert rows(surveyed(tmp_path, deep=True), "transactions", state="aborted") == rows(
            made, "transactions", state="aborted"
        )


def test_only_the_newest_part_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions that began before it have no numbers, and indexed aborts are still there."""
    monkeypatch.setattr(states, "PARTITION_BYTES_MAX", 2000)
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "1000"}) as log:
        long_ago = client_transaction(log, "long ago")
        long_ago.begin()
        long_ago.append(b"1", timestamp=1000)
        ended = [_ended(log, number, aborts=number % 2 == 0) for number in range(60)]
        log.flush()
        made = surveyed(tmp_path)
        (hanging,) = rows(made, "transactions", state="hanging")
        assert (hanging["firstOffset"], hanging["records"], hanging["heldRecords"]) == (0, None, None)
        aborted = {row["lastOffset"]: row["firstOffset"] for row in rows(made, "transactions", state="aborted")}
        assert aborted == {last: first for first, last, is_abort in ended if is_abort}
        committed = rows(made, "transactions", state="committed")
        assert 0 < len(committed) < 30
        known = {(first, last) for first, last, is_abort in ended if not is_abort}
        assert all(row["firstOffset"] is None or (row["firstOffset"], row["lastOffset"]) in known for row in committed)
        assert made.facts["transactionsReadInPart"] == 1
        assert 0 < made.facts["transactionBytesRead"] <= 2000
        (deep,) = rows(surveyed(tmp_path, deep=True), "transactions", state="hanging")
        assert (deep["records"], deep["heldRecords"]) == (1, 61)


def _ended(log: kafkalog.Partition, number: int, *, aborts: bool) -> tuple[int, int, bool]:
    txn = client_transaction(log, f"p{number % 7}")
    txn.begin()
    first = txn.append(b"value")
    txn.abort() if aborts else txn.commit()
    return first, log.end_offset - 1, aborts


def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "ENDED_MAX", 10)
    monkeypatch.setattr(states, "PRODUCERS_MAX", 3)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        ended = [_ended(log, number, aborts=number % 3 == 0) for number in range(40)]
        log.flush()
        made = surveyed(tmp_path)
    found = rows(made, "transactions")
    assert [(row["firstOffset"], row["lastOffset"], row["state"] == "aborted") for row in found] == ended[-10:]
    assert len(made.tables["producers"]) == 3
    assert made.facts["leftOut"] == {"transactions": 30, "producers": 4}


def loaded(log_dir: Path, name: str, place: Path, now_ms: int) -> dict[int, tuple[Any, ...]]:
    """The producers that a load of a copy knows."""
    copied = Path(shutil.copytree(log_dir, place, dirs_exist_ok=True))
    (copied / ".lock").unlink(missing_ok=True)
    clock = ManualClock(now_ms)
    with open_log(copied, name, create=False, take_over=True, abort_left_open=False, clock=clock) as log:
        entries = log.engine.active_producers
        return {number: _fields(entry) for number, entry in entries.items()}


def _fields(entry: Any) -> tuple[Any, ...]:
    return (
        entry.producer_epoch,
        entry.last_seq,
        entry.last_data_offset,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


@pytest.mark.parametrize("seed", range(3))
def test_producers_as_a_load_knows_them(tmp_path: Path, seed: int) -> None:
    """Beside the writer: the snapshot is old, and the rest is in the log."""
    now_ms = time.time_ns() // 1_000_000
    data = tmp_path / "data"
    with kafkalog.open_log(data, "t-0", config={"internal.segment.bytes": "5000"}) as log:
        written(log, seed, 200)
        log.flush()
        with PartitionView(data, "t-0") as view:
            found = find_producers(view)
            assert found.known_to == view.log_end_offset
            assert found.bytes_read > 0
        theirs = loaded(data, "t-0", tmp_path / "copy", now_ms)
        assert {number: _fields(entry) for number, entry in found.entries.items()} == theirs
        assert len(theirs) == 5
        with PartitionView(data, "t-0") as view:
            of_snapshot = find_producers(view, bytes_max=0)
            assert of_snapshot.known_to < view.log_end_offset
    with PartitionView(data, "t-0") as view:  # closed: the snapshot is at the end
        closed = find_producers(view, bytes_max=0)
        assert (closed.known_to, closed.bytes_read) == (view.log_end_offset, 0)


@pytest.mark.parametrize(
    "scenario",
    [
        "compact_txn",
        "recover_missing_snapshot",
        "recover_torn_tail",
        "recover_swap",
        "txn_interleaved_roll",
    ],
)
def test_producers_of_real_kafkas(tmp_path: Path, scenario: str) -> None:
    logs = of_kafka(scenario, tmp_path)
    for partition in kafkalog.list_partitions(logs):
        with PartitionView(logs, partition) as view:
            found = {number: _fields(entry) for number, entry in find_producers(view).entries.items()}
        newest = max([fields[3] for fields in found.values()], default=0)
        theirs = loaded(logs, str(partition), tmp_path / "copy", newest)
        assert {number: found[number] for number in theirs} == theirs
        assert theirs or not found
