"""`kafkalog history`: every value of a key that still exists, and the one that counts; compared with a walk."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.selection import Selection
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.cli.app import CLEAN, FINDINGS, USAGE
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import CorruptRecordException
from kafkalog.toolbox import history as module
from kafkalog.toolbox.history import ABORTED, LATEST, PENDING, SUPERSEDED, Entry, history
from tests.unit.cli_kit import Run, run
from tests.unit.test_cleaner_contract import Story
from tests.unit.test_latest import damage

__all__ = ["run"]

START_MS = 1_700_000_000_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Committed, aborted and plain values, tombstones, several segments; at the end a transaction that stays open."""
    root = tmp_path / "logs"
    rng = random.Random(3)
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
    with kafkalog.open_log(root, "t-0", config=config, compression="zstd") as log:
        for n in range(120):
            value = rng.choice([None, b"value %d" % n])
            if n % 5:
                log.append(value, key=b"k%d" % (n % 3), timestamp=START_MS + n)
                continue
            with log.transaction("x") as txn:
                txn.append(value, key=b"k%d" % (n % 3), timestamp=START_MS + n)
                if n % 10:
                    txn.abort()
    return root


def walked(root: Path, key: bytes, end: int = 1 << 40) -> list[Entry]:
    with kafkalog.open_log(root, "t-0", read_only=True) as log:
        records = [record for record in log if record.key == key and record.offset < end]
        committed = {record.offset for record in log.records(isolation="read_committed")}
        stable = log.last_stable_offset
    counting = [record.offset for record in records if record.offset in committed and record.offset < stable]
    return [
        Entry(
            record,
            PENDING
            if record.offset >= stable
            else ABORTED
            if record.offset not in committed
            else LATEST
            if record.offset == counting[-1]
            else SUPERSEDED,
        )
        for record in records
    ]


@pytest.mark.parametrize("left_open", [False, True])
@pytest.mark.parametrize("chunk_bytes", [300, 1 << 20])
def test_every_value_and_what_it_counts_for(
    log_dir: Path, left_open: bool, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = module._Marking.__init__

    def small(self: module._Marking, source: PartitionView, start: int, end: int) -> None:
        whole(self, source, start, end)
        self.chunk_bytes = chunk_bytes

    monkeypatch.setattr(module._Marking, "__init__", small)
    with kafkalog.open_log(log_dir, "t-0") as log:
        txn = log.transaction("y")
        if left_open:
            txn.begin()
            txn.append(b"open", key=b"k1")
            log.append(b"behind", key=b"k2")
        for key in (b"k0", b"k1", b"k2"):
            with PartitionView(log_dir, "t-0") as view:
                for end in (None, 40, 41, 42, 43, 44, 1000):
                    found = list(history(view, key, Selection(None, end)))
                    assert found == walked(log_dir, key, 1 << 40 if end is None else end)
                    states = {entry.state for entry in found}
                    assert (PENDING in states) == (left_open and key != b"k0" and end not in (40, 41, 42, 43, 44))
                assert {entry.state for entry in history(view, key)} >= {LATEST, SUPERSEDED, ABORTED}
                assert list(history(view, b"absent")) == []
        if left_open:
            txn.abort()


def test_after_a_clean_what_was_superseded_has_gone(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for number in range(5):
        story.append([("a", f"{number}"), ("b", "x")], 0)
    story.roll()
    story.clean(1000, 65536)
    story.append([("a", "last")], 0)
    with PartitionView(tmp_path, "t-0") as view:
        found = [(entry.record.offset, entry.record.value, entry.state) for entry in history(view, b"a")]
    assert found == [(8, b"4", SUPERSEDED), (10, b"last", LATEST)]
    story.log.close()


def test_lines_and_json(run: Run, log_dir: Path) -> None:
    wanted = walked(log_dir, b"k1")
    result = run("history", "k1", log_dir)
    assert result.code == CLEAN
    for line, entry in zip(result.lines, wanted, strict=True):
        partition, offset, time, state, value = line.split("\t")
        assert (partition, int(offset)) == ("t-0", entry.record.offset)
        assert time.startswith("2023-11-14T22:13:20.")
        assert state == (f"{entry.state} tombstone" if entry.record.value is None else entry.state)
        assert value.encode() == (entry.record.value or b"")
    entries = [json.loads(line) for line in run("history", "k1", log_dir / "t-0", "--json").lines]
    assert [(it["offset"], it["state"], it["tombstone"]) for it in entries] == [
        (entry.record.offset, entry.state, entry.tombstone) for entry in wanted
    ]
    cat = map(json.loads, run("cat", log_dir, "--key", "k1", "--json").lines)
    assert [{k: v for k, v in it.items() if k not in ("state", "tombstone")} for it in entries] == list(cat)
    committed = run("history", "hex:6b31", log_dir, "t", "--committed", "--json", "--from", 30, "--until", 90)
    assert [json.loads(line)["offset"] for line in committed.lines] == [
        entry.record.offset for entry in wanted if entry.state != ABORTED and 30 <= entry.record.offset < 90
    ]


def test_a_key_tells_its_partition(run: Run, tmp_path: Path) -> None:
    for partition in range(3):
        with kafkalog.open_log(tmp_path, f"t-{partition}") as log:
            log.append(b"here", key=b"customer-7")
    home = partition_for_key(b"customer-7", 3)
    assert len(run("history", "customer-7", tmp_path).lines) == 3
    result = run("history", "customer-7", tmp_path, "--partitions", 3)
    assert [line.split("\t")[0] for line in result.lines] == [f"t-{home}"]
    assert f"read only t-{home}" in result.err
    result = run("history", "absent", tmp_path, "t", "--partitions", 3)
    assert (result.code, result.out) == (CLEAN, "")
    assert "another partitioner" in result.err
    assert run("history", "customer-7", tmp_path, "--partitions", 2).code == USAGE


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["hex:0", "{root}"], "pairs of hex digits"),
        (["k", "{root}", "u"], "no topic or partition"),
        (["k", "{root}", "--from", "9", "--until", "3"], "expected it before"),
        (["k", "{root}", "--until", "soon"], "neither an offset nor a time"),
        (["k", "{root}", "--from", "5000"], "out of range"),
        (["k", "{root}/nowhere"], "not found"),
        (["k"], "LOG_DIR"),
    ],
)
def test_wrong_command_lines(run: Run, log_dir: Path, argv: list[str], hint: str) -> None:
    result = run("history", *(part.format(root=log_dir) for part in argv))
    assert (result.code, result.out) == (USAGE, "")
    assert hint in result.err


def test_damage(run: Run, log_dir: Path) -> None:
    before = walked(log_dir, b"k1")
    stop = damage(log_dir, 2)
    result = run("history", "k1", log_dir)
    assert result.code == FINDINGS
    assert f"{stop:020}.log" in result.err
    offsets = [int(line.split("\t")[1]) for line in result.lines]
    assert offsets == [entry.record.offset for entry in before if entry.record.offset < stop]
    with PartitionView(log_dir, "t-0") as view:
        found = history(view, b"k1")
        assert [next(found) for _ in offsets][:3] == before[:3]
        with pytest.raises(CorruptRecordException):
            next(found)


def test_conditions_choose_among_values_whose_state_is_that_of_all(tmp_path: Path, run: Run) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append_many([(b"v%d" % n, b"k", (), START_MS + n) for n in range(6)])
    for asked, states in (
        (["--where", "offset < 3"], [SUPERSEDED] * 3),
        (["--where", f"time >= @{START_MS + 4}"], [SUPERSEDED, LATEST]),
        (["--where", "offset < 3", "--until", "3"], [SUPERSEDED, SUPERSEDED, LATEST]),
    ):
        result = run("history", "k", tmp_path, "t-0", "--json", *asked)
        assert [json.loads(line)["state"] for line in result.lines] == states, asked
