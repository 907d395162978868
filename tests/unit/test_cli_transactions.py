"""`kafkalog transactions`: open transactions, their age, hanging ones, and those that hold the last stable offset."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from kafkalog.engine.log.view import PartitionView
from kafkalog.toolbox.open_transactions import HANGING_AFTER_MS, find_transactions
from tests.client_transaction import client_transaction
from tests.unit.cli_kit import Run, of_kafka, run

__all__ = ["run"]

START_MS = 1_700_000_000_000


def told(run: Run, *argv: object, code: int = CLEAN) -> list[dict[str, Any]]:
    result = run("transactions", *argv, "--json")
    assert result.code == code, result.err
    return [json.loads(line) for line in result.lines]


def test_open_committed_aborted(run: Run, tmp_path: Path) -> None:
    """Beside the process that has them open."""
    now_ms = time.time_ns() // 1_000_000
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "400"}) as log:
        for n in range(3):
            with client_transaction(log, "done") as txn:
                txn.append(b"%d" % n)
        for _ in range(2):
            txn.begin()
            txn.append(b"aborted")
            txn.abort()
        (idle,) = told(run, tmp_path)
        assert (idle["committed"], idle["aborted"], idle["open"], idle["heldBackBy"]) == (3, 2, [], None)
        assert idle["lastStableOffset"] == idle["logEndOffset"] == log.end_offset
        old, young = client_transaction(log, "old"), client_transaction(log, "young")
        old.begin()
        first = old.append(b"1", timestamp=now_ms - 3_600_000)
        log.append(b"not transactional")
        young.begin()
        young.append(b"2", timestamp=now_ms - 60_000)
        old.append(b"3", timestamp=now_ms - 30_000)
        log.flush()
        (busy,) = told(run, tmp_path, "t-0", code=FINDINGS)
        assert (busy["kind"], busy["topic"], busy["partition"]) == ("partition", "t", 0)
        assert (busy["committed"], busy["aborted"], busy["hanging"]) == (3, 2, 1)
        assert busy["lastStableOffset"] == first
        hanging, fresh = busy["open"]
        assert busy["heldBackBy"] == hanging["producerId"] == old.producer_id
        assert (hanging["firstOffset"], hanging["lastOffset"], hanging["records"]) == (first, first + 3, 2)
        assert (hanging["startTimestamp"], hanging["lastTimestamp"]) == (now_ms - 3_600_000, now_ms - 30_000)
        assert hanging["hanging"]
        assert (hanging["heldRecords"], fresh["heldRecords"]) == (4, 2)
        assert (hanging["transactionalId"], hanging["coordinatorState"], hanging["coordinated"]) == (None, None, False)
        assert 3_600_000 <= hanging["ageMs"] < 3_700_000
        assert (fresh["producerId"], fresh["hanging"], fresh["producerEpoch"]) == (young.producer_id, False, 0)
        text = run("transactions", tmp_path)
        assert text.code == FINDINGS
        whose = (
            rf"t-0: hanging for 1\.0 h: producer {old.producer_id} epoch 0, 2 records from offset {first} on, since "
        )
        assert re.match(whose, text.lines[0])
        assert text.lines[1:3] == [
            "  read_committed readers do not get its 2 records and 2 records of others, for 1.0 h",
            f"  to end it: kafkalog transactions abort {tmp_path} t-0 --start-offset {first}",
        ]
        assert text.lines[3].startswith("t-0: open for 1.0 min: producer")
        others = "its 1 record and 1 record of others"
        held = f"  read_committed readers would not get {others}, if the earlier transactions ended"
        assert text.lines[4] == held
        assert text.lines[5:] == [
            f"t-0: 3 committed, 2 aborted, 2 open, 1 hanging; last stable offset {first}, 4 offsets before the end"
        ]
        assert told(run, tmp_path, "--hanging-after", "2h")[0]["hanging"] == 0
        assert told(run, tmp_path, "--hanging-after", "30s", code=FINDINGS)[0]["hanging"] == 2
        old.commit()
        young.abort()
    assert told(run, tmp_path)[0]["open"] == []


def test_kafkas_default_is_fifteen_minutes() -> None:
    assert HANGING_AFTER_MS == 15 * 60 * 1000


def test_a_transaction_of_which_the_log_lost_the_begin(tmp_path: Path) -> None:
    config = {"internal.segment.bytes": "300", "retention.ms": "-1"}
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        txn = client_transaction(log, "x")
        txn.begin()
        txn.append(b"first" * 30, timestamp=START_MS)
        for _ in range(5):
            log.append(b"x" * 200)
        log.delete_records(4)
        log.delete_old_segments()
        with PartitionView(tmp_path, "t-0") as view:
            found = find_transactions(view, START_MS + 5_000_000)
            (it,) = found.open
            assert (it.producer_id, it.producer_epoch, it.first_offset) == (txn.producer_id, 0, 0)
            assert (it.start_timestamp, it.last_timestamp, it.records) == (-1, START_MS, 0)
            assert (it.age_ms, it.hanging) == (5_000_000, True)
            assert found.last_stable_offset == view.log_start_offset == 4
        txn.abort()


def test_damage_is_told(run: Run, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for n in range(4):
            with client_transaction(log, "x") as txn:
                txn.append(b"%d" % n)
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    result = run("transactions", tmp_path)
    assert result.code == FINDINGS
    assert f"{path}: a bad CRC at byte" in result.err
    assert "may have ended after it" in result.err


def test_directories_of_real_kafkas(run: Run, tmp_path: Path) -> None:
    (ended,) = told(run, of_kafka("txn_interleaved_roll", tmp_path / "a"))
    assert (ended["committed"], ended["aborted"], ended["open"]) == (2, 3, [])
    (left,) = told(run, of_kafka("recover_torn_tail", tmp_path / "b"), "foo-0", code=FINDINGS)
    (it,) = left["open"]
    assert (left["lastStableOffset"], left["logEndOffset"], left["heldBackBy"]) == (38, 40, 9)
    assert (it["firstOffset"], it["records"], it["startTimestamp"]) == (38, 1, 1_700_000_002_200)


@pytest.mark.parametrize("text", ["", "15", "m", "1w", "-5m", "1e3s", "9" * 20 + "d"])
def test_a_bad_duration(run: Run, tmp_path: Path, text: str) -> None:
    result = run("transactions", tmp_path, "--hanging-after", text)
    assert result.code == USAGE
    assert "expected such as 900000ms, 90s, 15m, 1h or 2d" in result.err


def test_what_is_open_in_many_partitions_is_ended_by_one_command(run: Run, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t", 3)
        with store.transaction("biller 1") as txn:
            for number in range(3):
                txn.append("t", b"open", partition=number)
            shown = run("transactions", tmp_path, "--hanging-after", "0ms")
            assert sum(": hanging for " in line for line in shown.lines) == 3
            ends = [line for line in shown.lines if "to end it" in line]
            assert ends == [f"  to end it: kafkalog transactions abort {tmp_path} --transactional-id 'biller 1'"]
            words = shlex.split(ends[0].split(": kafkalog ")[1])
            assert run(*words).out.count("would be aborted") == 3


def test_reading_committed_records_tells_where_a_transaction_is_open(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    with kafkalog.open(root, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        topic.append(b"before", partition=0)
        topic.append(b"all", partition=1)
        with store.transaction("biller") as txn:
            txn.append("t", b"open", partition=0)
            topic.append(b"behind", partition=0)
            told = "note: t-0: read up to 1, where a transaction is open; 2 offsets after it were not read"
            for argv in (["cat", root, "t"], ["export", root, "t", "--to", tmp_path / "t.jsonl", "--force"]):
                result = run(*argv, "--committed")
                assert (result.code, result.err.count("transaction is open")) == (CLEAN, 1)
                assert told in result.err
                for other in ([], ["--committed", "--until", "1"]):
                    assert "is open" not in run(*argv, *other).err
            assert "is open" not in run("cat", root, "t", "--committed", "--limit", "1").err
        assert "is open" not in run("cat", root, "t", "--committed").err
