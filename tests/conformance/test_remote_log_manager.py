"""RemoteLogManager compared with Kafka 4.4.0's: the same segments in the tier and on the disk after every step.

A script runs on Kafka's classes (RemoteLogManagerMain of the driver: a real log, its copy, expiration and follower
tasks) and on ours, both over a storage in memory.  Compared after every step: offsets and local segments, what is known
of each remote segment, digests of the files that were copied, counters; and the answers to ListOffsets, fetches and
aborted transactions.

The comparison leaves out kafkalog's improvements: `replay_remote.Kafkas...` work without them.  Three more things
differ.  Kafka counts a deletion once for each epoch of a segment.  After a truncation it still uses transaction indexes
of the abandoned history.  If the truncation went below the local log, Kafka refuses an offset inside a segment of that
history, or finds nothing there.  It still returns these records to a reader that comes from the ones before.

`KAFKALOG_FUZZ_COUNT` says how many random scripts are tried.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import kafka_jars, messages, replay_remote
from tests.conformance.fuzz_remote import RemoteScriptWriter
from tests.conformance.remote_scripts import RULES, Rule
from tests.sampling import FIRST, LONG

MAIN = "io.kafkalog.conformance.RemoteLogManagerMain"
COUNT = int(os.environ.get("KAFKALOG_FUZZ_COUNT", "2000" if LONG else "25"))
SETTINGS = {"remote.log.metadata.custom.metadata.max.bytes": "16"}
Line = dict[str, Any]
# Kafka deletes a segment once for each epoch that it has there, and takes its bytes off again each time.
NOT_COMPARED = ("delete_requests", "failed_delete_requests", "delete_lag_bytes", "delete_lag_segments")
MAX_TIMESTAMP = 5  # position of the maximum timestamp in a segment's row
LATEST = 1 << 40  # no script's clock comes so far


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with messages.kafka(kafka_driver, MAIN) as jvm:
        yield jvm


def difference(kafka: messages.Kafka, script: Line, folder: Path) -> str | None:
    """The first step after which the two differ, and in what."""
    for name in ("kafka", "kafkalog"):
        (folder / name / "logs").mkdir(parents=True)
    theirs = kafka.ask([{**script, "dir": str(folder / "kafka")}])[0]["answers"]
    ours = replay_remote.run(script, folder / "kafkalog")
    was_cut = False
    for number, (op, their, our) in enumerate(zip(script["ops"], theirs, ours, strict=True)):
        was_cut = was_cut or op["op"] == "truncate_to"
        if was_cut and op["op"] == "aborted":
            continue  # Kafka still uses transaction indexes of the truncated history
        if was_cut and op["op"] == "fetch" and "read" not in their:
            continue  # records of that history, to which both read on, or a gap where its batch was truncated
        for answer in (their, our):
            settle(answer)
        if their != our:
            return f"step {number}, {json.dumps(op)}:\n" + "\n".join(differing("", their, our))
    return None


def settle(answer: Line) -> None:
    """Leaves out what is not compared, and orders what has no order: segments have random ids."""
    if "state" in answer:
        state = answer["state"]
        for name in NOT_COMPARED:
            del state["metrics"][name]
        for row in state["remote"]:
            if row[MAX_TIMESTAMP] > LATEST:
                row[MAX_TIMESTAMP] = "when the empty file was modified"
        for name in ("remote", "stored"):
            state[name].sort(key=str)


def differing(name: str, their: Any, our: Any) -> Iterator[str]:
    if isinstance(their, dict) and isinstance(our, dict):
        for key in sorted({*their, *our}):
            yield from differing(f"{name}.{key}" if name else key, their.get(key, "nothing"), our.get(key, "nothing"))
    elif their != our:
        yield f"  {name}: Kafka {json.dumps(their)}\n  {' ' * len(name)}  ours  {json.dumps(our)}"


@pytest.mark.jvm
def test_random_scripts(kafka: messages.Kafka, tmp_path: Path) -> None:
    for seed in range(FIRST, FIRST + COUNT):
        script = RemoteScriptWriter.of_seed(seed).write()
        found = difference(kafka, script, tmp_path)
        assert found is None, f"seed {seed}: {found}"
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


@pytest.mark.jvm
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule(rule: Rule, kafka: messages.Kafka, tmp_path: Path) -> None:
    found = difference(kafka, {"settings": SETTINGS, "ops": rule.ops}, tmp_path)
    assert found is None, found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_met(rule: Rule, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    answers = replay_remote.run({"settings": SETTINGS, "ops": rule.ops}, tmp_path)
    state = next(answer["state"] for answer in reversed(answers) if "state" in answer)
    rows = sorted(f"{first}-{last} {state}" for first, last, state, *_ in state["remote"])
    assert [row.removesuffix(" COPY_SEGMENT_FINISHED") for row in rows] == sorted(rule.remote)
    assert (state["log_start"], state["local_log_start"]) == rule.starts
