"""An abort that was written offline against the one that Kafka's own classes append: the same files; Kafka reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.abort_transactions import Aimed, abort, plan_abort
from tests.conformance import kafka_jars
from tests.conformance.compare import load_results

pytestmark = pytest.mark.jvm

NOW_MS = 1_700_000_000_000
HELD = ("log", "index", "timeindex", "txnindex")


def batch(value: bytes, **fields: Any) -> dict[str, Any]:
    records = [{"ts": NOW_MS, "key_hex": None, "value_hex": value.hex()}]
    return {"op": "append_leader", "leader_epoch": 0, "batches": [{"codec": "none", "records": records, **fields}]}


def transactional(value: bytes, producer_id: int, sequence: int) -> dict[str, Any]:
    return batch(value, producer_id=producer_id, producer_epoch=3, base_sequence=sequence, transactional=True)


def marker(kind: str, producer_id: int, **fields: Any) -> dict[str, Any]:
    return {"op": "append_end_txn_marker", "producer_id": producer_id, "epoch": 3, "type": kind, **fields}


OPEN = {"op": "open", "dir": "logs", "topic_partition": "t-0", "config": {}, "now_ms": NOW_MS}
# One that its coordinator of epoch 5 ended before, and that is open again; another one, open; a record after them.
BEFORE = [
    OPEN,
    transactional(b"ended", 9, 0),
    marker("commit", 9, coordinator_epoch=5, leader_epoch=0),
    transactional(b"left", 9, 1),
    transactional(b"open", 8, 0),
    batch(b"behind"),
]
MARKERS = [marker("abort", 9, coordinator_epoch=5), marker("abort", 8, coordinator_epoch=0)]
READ = {"op": "read", "offset": 0, "max_bytes": 1 << 20, "isolation": "txn_committed", "min_one_message": True}
CLOSE = {"op": "close"}


def written(rows: list[dict[str, Any]], work: Path, name: str, driver: kafka_jars.Driver) -> list[dict[str, Any]]:
    script, out = work / f"{name}.jsonl", work / f"{name}.out"
    script.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / name).mkdir(exist_ok=True)
    listfile = work / f"{name}.list"
    listfile.write_text(f"{script}\t{work / name}\t{out}\n")
    driver.run_many(listfile)
    found = load_results(out)
    assert not [row for row in found if "error" in row], found
    return found


def test_the_files_are_kafkas(kafka_driver: kafka_jars.Driver, tmp_path: Path) -> None:
    written([*BEFORE, CLOSE], tmp_path, "left", kafka_driver)
    theirs = written([*BEFORE, *MARKERS, READ, CLOSE], tmp_path, "theirs", kafka_driver)
    shutil.copytree(tmp_path / "left", tmp_path / "ours")
    clock = ManualClock(NOW_MS)
    partition = TopicPartition("t", 0)
    logs = str(tmp_path / "ours" / "logs")
    abort(plan_abort(logs, [partition], Aimed(start_offset=2), clock=clock), clock=clock)
    stable = abort(plan_abort(logs, [partition], Aimed(producer_id=8), clock=clock), clock=clock)
    assert stable == {partition: 7}
    for suffix in HELD:
        name = f"logs/t-0/{0:020}.{suffix}"
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), suffix
    read = written([OPEN, READ, CLOSE], tmp_path, "ours", kafka_driver)
    assert {**read[1], "line": 0} == {**theirs[-2], "line": 0}
