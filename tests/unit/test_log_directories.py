"""The commands for directories of many partitions: topics, log-dirs, du, checkpoint, retain, delete-records, move."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.cli.app import COMMANDS, invoke
from kafkalog.engine.files import OS_FILES, Files, OsFiles
from kafkalog.engine.files.usage import free_bytes, walk
from kafkalog.engine.format import codecs
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import MetaProperties, write_meta_properties
from kafkalog.engine.format.names import OFFSET_CHECKPOINT_FILES, TopicPartition
from kafkalog.errors import CorruptRecordException
from kafkalog.toolbox import move, retain
from kafkalog.toolbox.log_dirs import STORAGE_ERROR
from kafkalog.toolbox.verify import verify
from tests.crash import harness
from tests.file_doubles import FaultyFiles, UnsyncedFiles
from tests.reference.legacy import build_batch
from tests.unit.cli_kit import SCENARIOS

SMALL = {"internal.segment.bytes": "600", "index.interval.bytes": "150"}
NEW = ("checkpoint", "delete-records", "du", "explain", "log-dirs", "move", "retain", "topics")
START_MS = 1_700_000_000_000
HEX = "0" * 32
CLUSTER = "kafkalog-tests-00000AA"
T0 = TopicPartition("t", 0)


def fill(root: Path, name: str, count: int = 20, *, codec: str | None = None, start_ms: int = START_MS) -> None:
    with kafkalog.open_log(root, name, config=SMALL, compression=codec) as log:
        for number in range(count):
            log.append(b"%d" % number * 20, timestamp=start_ms + number * 1000)


def content(root: Path, name: str) -> list[tuple[int, bytes | None]]:
    with kafkalog.open_log(root, name, read_only=True) as log:
        return [(record.offset, record.value) for record in log]


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def line(root: Path, name: str, partition: str) -> int | None:
    lines = OffsetCheckpointFile(str(root / name), create=False).read_or_empty()
    return {str(key): value for key, value in lines.items()}.get(partition)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    fill(root, "t-0")
    fill(root, "t-1", codec="lz4", start_ms=START_MS - 10**9)
    fill(root, "u-0", 3, codec="zstd")
    return root


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        code = invoke([str(arg) for arg in argv])
        out, err = self.capsys.readouterr()
        return code, out, err

    def json(self, *argv: object) -> tuple[int, list[dict[str, Any]]]:
        code, out, _ = self(*argv, "--json")
        return code, [json.loads(text) for text in out.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.mark.parametrize("command", NEW)
def test_every_help_has_an_example(command: str, run: Run) -> None:
    assert command in COMMANDS
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"  kafkalog {command} /" in out.partition("For example:")[2]
    assert run(command)[0] == 2
    code, _, err = run(command, "/no/such-0", *{"move": ["/no"], "delete-records": ["--before", "1"]}.get(command, []))
    assert code == 2
    assert err.count("\n") == 1


# --- topics --------------------------------------------------------------------------------------------------


def test_topics(root: Path, run: Run) -> None:
    code, (t, u, summary) = run.json("topics", root)
    assert code == 0
    assert (t["topic"], t["partitions"], t["offsets"], t["records"]) == ("t", [0, 1], 40, None)
    assert (t["codecs"], u["codecs"]) == (["none", "lz4"], ["zstd"])
    assert (t["firstTimestamp"], t["lastTimestamp"]) == (START_MS - 10**9, START_MS + 19_000)
    assert t["bytes"] == sum(path.stat().st_size for path in root.glob("t-*/*.log"))
    assert t["segments"] == len(list(root.glob("t-*/*.log")))
    assert (summary["kind"], summary["partitions"]) == ("summary", 3)
    code, (exact, *_) = run.json("topics", "--exact", root)
    assert (exact["records"], exact["batches"], exact["codecs"]) == (40, 40, ["none", "lz4"])
    code, out, err = run("topics", root)
    assert out.splitlines()[1].split()[:5] == ["t", "-", "2", str(t["segments"]), f"{t['bytes'] / 1024:.1f}"]
    assert err == ""


def exactly(root: Path, run: Run, topic: str = "t") -> dict[str, Any]:
    """The row of a topic in `topics --exact`, which must agree with a reader's records."""
    row = next(each for each in run.json("topics", "--exact", root)[1] if each.get("topic") == topic)
    times = []
    for number in row["partitions"]:
        with kafkalog.open_log(root, f"{topic}-{number}", read_only=True) as log:
            times += [record.timestamp for record in log]
    known = [time for time in times if time >= 0]
    assert row["records"] == len(times) <= row["offsets"], row
    assert (row["firstTimestamp"], row["lastTimestamp"]) == (min(known, default=-1), max(known, default=-1)), row
    return row


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("start", [0, 50, 55, 59, 60, 99, 100])
def test_topics_counts_from_the_log_start(start: int, codec: str, tmp_path: Path, run: Run) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0", compression=codec) as log:
        for group in range(10):
            times = [START_MS + group * 1000 + number for number in range(10)]
            log.append_columns([b"%d" % number for number in range(10)], timestamps=times)
        log.delete_records(start)
    row = exactly(tmp_path / "logs", run)
    assert (row["records"], row["batches"]) == (100 - start, 10 - start // 10)
    (about, _) = run.json("topics", tmp_path / "logs")[1]
    assert about["firstTimestamp"] == (-1 if start == 100 else START_MS + start // 10 * 1000)


def test_topics_counts_no_markers(tmp_path: Path, run: Run) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0", config=SMALL, compression="gzip") as log:
        for number in range(20):
            with contextlib.suppress(ZeroDivisionError), log.transaction(f"t{number % 3}") as transaction:
                transaction.append_many([b"a", b"b"])
                number // (number % 4)  # every fourth is aborted
    row = exactly(tmp_path / "logs", run)
    assert (row["records"], row["offsets"], row["codecs"]) == (40, 60, ["gzip"])


def test_topics_counts_what_headers_do_not_tell(tmp_path: Path, run: Run) -> None:
    rows: list[Any] = [(START_MS + number, None, b"v", ()) for number in range(3)]
    swept = MemoryRecordsBuilder(base_offset=6, delete_horizon_ms=START_MS - 10**9)
    swept.append(START_MS + 5, b"k", None)
    batches = [
        build_batch(rows, magic=1, codec=codecs.GZIP),
        build_batch(rows[:1], magic=0, base_offset=3),
        build_batch(rows[:2], magic=1, base_offset=4),
        swept.build(),
        build_batch(rows[:1], base_offset=7, timestamp_type="LogAppendTime", log_append_time=START_MS + 9),
    ]
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    log = tmp_path / "logs" / "t-0" / "00000000000000000000.log"
    log.write_bytes(b"".join(batches))
    assert exactly(tmp_path / "logs", run)["records"] == 8
    data = bytearray(log.read_bytes())
    data[40:60] = bytes(20)
    log.write_bytes(data)
    code, found = run.json("topics", "--exact", tmp_path / "logs")
    assert (code, found[0]["records"]) == (1, 5)
    assert "cannot be read as batches" in found[1]["what"]


@pytest.mark.parametrize("logs", sorted(SCENARIOS.glob("*/final/logs")), ids=lambda logs: logs.parts[-3])
def test_topics_counts_what_kafka_left(logs: Path, run: Run) -> None:
    for row in run.json("topics", logs)[1]:
        if row["kind"] == "topic":
            exactly(logs, run, row["topic"])


def test_topics_names_what_is_odd(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    fill(other, "t-1", 2)
    shutil.copytree(root / "u-0", root / f"u-0.{HEX}-delete")
    shutil.copytree(root / "u-0", root / f"u-0.{HEX}-stray")
    shutil.copytree(root / "u-0", root / f"u-1.{HEX}-future")
    (root / "lost+found").mkdir()
    (root / "notes.txt").write_text("mine")
    (root / "__consumer_offsets-3").mkdir()
    code, found = run.json("topics", root, other, other)
    assert code == 1
    findings = [each["what"] for each in found if each["kind"] == "finding"]
    assert len(findings) == 2
    assert any("lost+found: the directory is not a partition's" in text for text in findings)
    assert any("t-1 is also in" in text for text in findings)
    summary = found[-1]
    for part in ("-delete: a deleted", "-stray: a stray", "-future: a copy of u-1", "notes.txt: the file is not"):
        assert any(part in text for text in summary["notes"]), summary
    assert [each["internal"] for each in found if each["kind"] == "topic"] == [True, False, False]
    (root / "t-0" / "00000000000000000000.log").write_bytes(b"\x00\x00\x00\x00" * 40)
    code, found = run.json("topics", "--exact", root)
    assert any("cannot be read as batches" in each.get("what", "") for each in found)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda tmp: tmp / "missing", "not found, expected a Kafka log directory"),
        (lambda tmp: f"{tmp},{tmp}", "if this is the value of log.dirs"),
        (lambda tmp: tmp / "file", "found a file"),
    ],
)
def test_mistakes_of_directories(make: Any, hint: str, root: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("")
    for command in ("topics", "log-dirs", "du", "checkpoint"):
        code, out, err = run(command, make(tmp_path))
        assert (code, out) == (2, "")
        assert hint in err, err


# --- log-dirs ------------------------------------------------------------------------------------------------


def test_log_dirs(root: Path, tmp_path: Path, run: Run) -> None:
    write_meta_properties(str(root / "meta.properties"), MetaProperties(1, CLUSTER, 7))
    other = tmp_path / "other"
    shutil.copytree(root / "t-0", other / f"t-0.{HEX}-future")
    last = max((other / f"t-0.{HEX}-future").glob("*.log"))
    ends = int(last.name[:20])
    last.write_bytes(b"")
    code, out, err = run("log-dirs", root, other)
    assert code == 0
    assert "broker -1" in err
    told = json.loads(out)
    assert [broker["broker"] for broker in told["brokers"]] == [-1, 7]
    assert told["version"] == 1
    future, plain = told["brokers"][0]["logDirs"][0], told["brokers"][1]["logDirs"][0]
    size = sum(path.stat().st_size for path in (other / f"t-0.{HEX}-future").glob("*.log"))
    assert future["partitions"] == [{"partition": "t-0", "size": size, "offsetLag": 20 - ends, "isFuture": True}]
    assert (plain["error"], plain["logDir"]) == (None, str(root))
    assert {each["partition"]: each["offsetLag"] for each in plain["partitions"]} == {"t-0": 0, "t-1": 0, "u-0": 0}
    told = json.loads(run("log-dirs", root, "--topic-list", "u,v")[1])
    assert [each["partition"] for each in told["brokers"][0]["logDirs"][0]["partitions"]] == ["u-0"]
    (other / "meta.properties").write_text("version=9\n")
    code, out, _ = run("log-dirs", root, other)
    assert code == 3
    assert "KafkaStorageException" in json.loads(out)["brokers"][0]["logDirs"][0]["error"]


def test_log_dirs_of_a_failed_disk_beside_a_good_one(
    root: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = json.loads(run("log-dirs", root)[1])["brokers"][0]["logDirs"][0]
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    refused = ("file", "loop", "dangling", "gone")
    for name in refused:
        for paths in ([root, tmp_path / name], [tmp_path / name, root, tmp_path / name]):
            code, out, err = run("log-dirs", *paths)
            assert (code, str(tmp_path / name) in err) == (3, True), name
            (broker,) = json.loads(out)["brokers"]
            bad = {"partitions": [], "error": STORAGE_ERROR, "logDir": str(tmp_path / name)}
            assert broker["logDirs"] == ([good, bad] if len(paths) == 2 else [bad, good])
    assert run("log-dirs", *(tmp_path / name for name in refused))[:2] == (2, "")
    listed = OsFiles.list_dir

    def list_dir(files: OsFiles, path: str) -> list[str]:
        if path.endswith("dead"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return listed(files, path)

    (tmp_path / "dead").mkdir()
    monkeypatch.setattr(OsFiles, "list_dir", list_dir)
    for paths in ([tmp_path / "dead"], [tmp_path / "dead", root]):
        code, out, err = run("log-dirs", *paths)
        assert (code, json.loads(out)["brokers"][0]["logDirs"][0]["error"]) == (3, STORAGE_ERROR)
        assert "Input/output error" in err


# --- du ------------------------------------------------------------------------------------------------------


# --- checkpoint ------------------------------------------------------------------------------------------------


def test_checkpoint_table(root: Path, run: Run) -> None:
    code, out, err = run("checkpoint", root)
    assert (code, err) == (0, "")
    assert "closed cleanly" in out
    assert ["t-0", "20", "-", "-", "-", "0", "20"] in [text.split() for text in out.splitlines()]
    gone = TopicPartition("gone", 3)
    OffsetCheckpointFile(str(root / "recovery-point-offset-checkpoint")).write({T0: 21, gone: 4})
    OffsetCheckpointFile(str(root / "cleaner-offset-checkpoint")).write({T0: 20})
    (root / "replication-offset-checkpoint").write_text("0\n1\nt 0\n")
    code, found = run.json("checkpoint", "show", root)
    assert code == 1
    rows = {f"{row['topic']}-{row['partition']}": row for row in found if row["kind"] == "partition"}
    assert "after the log end offset 20" in rows["t-0"]["findings"][0]
    assert "in the active segment" in rows["t-0"]["findings"][1]
    assert "has no directory, but a line" in rows["gone-3"]["findings"][0]
    assert "has no line" in rows["u-0"]["notes"][0]
    directory = found[-1]
    assert (directory["kind"], directory["cleanShutdown"], directory["brokerEpoch"]) == ("directory", True, -1)
    assert "Malformed" in directory["files"]["replication-offset-checkpoint"]


def test_checkpoint_set(root: Path, run: Run) -> None:
    path = root / "recovery-point-offset-checkpoint"
    before = snapshot(root)
    code, out, err = run("checkpoint", "set", path, "t-0", "3")
    assert (code, snapshot(root)) == (0, before)
    assert "20 -> 3 would be set (--yes does it)" in out
    assert "trusts it" in err
    code, (change,) = run.json("checkpoint", "set", path, "t-0", "3", "--yes")
    assert (code, change["old"], change["new"], change["done"]) == (0, 20, 3, True)
    assert Path(change["copy"]).read_bytes() == before["recovery-point-offset-checkpoint"]
    assert line(root, path.name, "t-0") == 3
    assert line(root, path.name, "t-1") == 20
    assert run("checkpoint", "set", path, "t-0", "none", "--yes")[0] == 0
    assert line(root, path.name, "t-0") is None
    assert (root / f"{path.name}.bak.1").exists()
    assert not (root / ".lock").exists()


def test_checkpoint_set_refuses_nonsense(root: Path, run: Run) -> None:
    with kafkalog.open_log(root, "t-0", config=SMALL) as log:
        log.delete_records(2)
    points, starts, marks, cleaner = (root / name for name in OFFSET_CHECKPOINT_FILES)
    before = snapshot(root)
    for path, partition, offset, hint in (
        (points, "t-0", "21", "after the log end offset 20"),
        (points, "t-9", "1", "no directory t-9"),
        (starts, "t-0", "1", "come back"),
        (starts, "t-0", "none", "come back"),
        (starts, "t-0", "21", "would be deleted"),
        (marks, "t-0", "1", "before the log start offset 2"),
        (cleaner, "t-0", "20", "never compacted"),
        (points, "t-0", "1.5", "whole number"),
        (points, "t-0", "9" * 19, "OFFSET"),
        (points, "t", "1", "such as orders-0"),
        (root / "t-0" / "leader-epoch-checkpoint", "t-0", "1", "expected one of"),
    ):
        code, _, err = run("checkpoint", "set", path, partition, offset, "--yes")
        assert code == 2, (path, partition, offset)
        assert hint in err, err
    assert snapshot(root) == before
    code, _, err = run("checkpoint", "set", starts, "t-0", "0", "--yes", "--force")
    assert code == 0
    assert "forced: " in err
    before = snapshot(root)
    for name in ("a b-0", "a\nb-0", "a\tb-0", "\udcff-0", "\v-0"):
        for argv in ([], ["--yes"]):
            code, _, err = run("checkpoint", "set", starts, name, "0", "--force", *argv)
            assert (code, "cannot hold white space" in err) == (2, True), name
    assert snapshot(root) == before
    assert run("checkpoint", "set", starts, "é-0", "0", "--force", "--yes")[0] == 0
    assert (line(root, starts.name, "é-0"), line(root, starts.name, "t-0")) == (0, 0)
    with kafkalog.open_log(root, "t-0", config=SMALL) as log:
        assert log.log_start_offset == 0
        assert run("checkpoint", "set", points, "t-0", "1", "--yes")[0] == 3
    starts.write_text("0\n5\n")
    assert run("checkpoint", "set", starts, "t-0", "3", "--yes")[0] == 1


# --- retain --------------------------------------------------------------------------------------------------


def partitions_in(told: list[dict[str, Any]]) -> list[str]:
    """The partitions of the objects of kind partition."""
    return [f"{entry['topic']}-{entry['partition']}" for entry in told if entry["kind"] == "partition"]


def test_retain_by_the_rules(root: Path, run: Run) -> None:
    before, whole = snapshot(root), content(root, "t-0")
    assert run("retain", root)[0] == 2
    assert run("retain", root, "-X", "retention.bytes=1", "--target-free", "1")[0] == 2
    code, told = run.json("retain", root, "-X", "retention.bytes=1000")
    assert (code, snapshot(root)) == (0, before)
    assert partitions_in(told) == ["t-0", "t-1"]
    code, done = run.json("retain", root, "-X", "retention.bytes=1000", "--yes")
    assert code == 0
    for entry, was in zip(done[:-1], told[:-1], strict=True):
        assert entry == {**was, "done": True}
    for entry in done[:-2]:
        assert entry["newLogStartOffset"] == entry["segments"][-1]["endOffset"]
        assert not [each for each in entry["segments"] if Path(each["path"]).exists()]
    assert done[-1]["gained"] == done[-1]["bytes"] == told[-1]["bytes"] > 0
    start = done[0]["newLogStartOffset"]
    assert content(root, "t-0") == [(offset, value) for offset, value in whole if offset >= start]
    assert not list(root.rglob("*.deleted"))
    assert (root / ".kafka_cleanshutdown").exists()
    assert verify(root, deep=True).ok
    assert run.json("retain", root, "-X", "retention.bytes=1000", "--yes")[1][-1]["segments"] == 0


def test_retain_never_takes_an_active_segment(root: Path, run: Run) -> None:
    code, done = run.json("retain", root / "t", "-X", "retention.ms=0", "--yes")
    assert (code, done[-1]["partitions"]) == (0, 2)
    for name in ("t-0", "t-1"):
        (left,) = (root / name).glob("*.log")
        assert left.stat().st_size
        assert content(root, name)[-1][0] == 19
    assert len(content(root, "u-0")) == 3


def test_retain_until_enough_is_free_takes_the_oldest_of_all(root: Path) -> None:
    partitions = {TopicPartition("t", 0): str(root / "t-0"), TopicPartition("t", 1): str(root / "t-1")}
    settings = TopicSettings(str(root))
    everything = retain.plan_until_free(str(root), partitions, settings, 1 << 62)
    assert everything.missing
    assert [choice.partition.partition for choice in everything.choices] == [0, 1]
    one = everything.choices[1].going[0].allocated
    before = free_bytes(str(root))
    few = retain.plan_until_free(str(root), partitions, settings, before + one)
    if free_bytes(str(root)) == before:  # another process may write to the disk
        assert [(choice.partition.partition, len(choice.going)) for choice in few.choices] == [(1, 1)]
        assert not few.missing
    (root / f"gone-0.{HEX}-delete").mkdir()
    (root / f"gone-0.{HEX}-delete" / "x").write_bytes(b"x" * 100_000)
    plan = retain.plan_until_free(str(root), partitions, settings, free_bytes(str(root)) + 4096)
    assert list(plan.deleted_folders) == [str(root / f"gone-0.{HEX}-delete")]
    assert not plan.choices
    assert retain.carry_out(plan, settings) >= 100_000
    assert not (root / f"gone-0.{HEX}-delete").exists()


def test_retain_deletes_nothing_for_a_target_that_cannot_be_reached(root: Path, run: Run) -> None:
    before = snapshot(root)
    code, told = run.json("retain", root, "--target-free", "999PiB", "--yes")
    assert (code, snapshot(root)) == (1, before)
    assert (told[-1]["done"], told[-1]["gained"]) == (False, None)
    assert told[-1]["bytes"] > 0
    assert told[-1]["missing"] + told[-1]["bytes"] + told[-1]["free"] == 999 << 50
    code, out, _ = run("retain", root, "--target-free", "999PiB", "--yes")
    assert (code, snapshot(root)) == (1, before)
    assert "could be deleted; log start 0" in out
    assert "are free now\nnothing is deleted: " in out
    assert " free cannot be reached: not enough, " in out
    assert "can be freed: --target-free " in out
    code, out, _ = run("retain", root, "--target-free", "10", "--yes")
    assert (code, snapshot(root)) == (0, before)
    assert " were before" in out
    assert "are free now, which is at least 10 B: nothing" in run("retain", root, "--target-free", "10")[1]


def test_retain_tells_who_has_not_read_what_goes(root: Path, run: Run) -> None:
    stored_topic(root, "kept", {"retention.ms": "-1"})
    with kafkalog.open(root, maintenance=False) as store:
        for name, count in (("billing", 3), ("done", 20)):
            with store.reader(name, topics=["kept"]) as reader:
                assert len(reader.poll(count)) == count
                reader.commit()
    err = run("retain", root, *RETAIN_FREE)[2]
    assert "note: --target-free deletes old segments of kept-0, although retention.ms=-1 keeps them forever" in err
    assert "note: group 'billing' has not read all of what is deleted: kept-0 (at 3)" in err
    assert "'done'" not in err
    err = run("retain", root / "kept-0", "-X", "retention.ms=1000")[2]
    assert "'billing' has not read" in err
    assert "for ever" not in err
    for before, is_behind in ((3, False), (4, True)):
        code, _, err = run("delete-records", root / "kept-0", "--before", before)
        assert code == 0
        assert ("note: group 'billing' has not read all of what is deleted: kept-0 (at 3)" in err) == is_behind
        assert "'done'" not in err


def test_retain_tells_a_target_that_is_nearly_there(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.retain.free_bytes", lambda path: 41 << 30)
    code, out, _ = run("retain", root / "u", "--target-free", (41 << 30) + 5)
    assert code == 1
    assert f"{41 << 30} bytes are free now\n{(41 << 30) + 5} bytes free cannot be reached" in out
    assert "41.0 GiB are free now, which is at least 40.0 GiB" in run("retain", root / "u", "--target-free", "40GiB")[1]


def test_retain_leaves_alone_what_may_not_begin_later(root: Path, run: Run) -> None:
    fill(root, "__consumer_offsets-0")
    fill(root, "c-0")
    OffsetCheckpointFile(str(root / "cleaner-offset-checkpoint")).write({TopicPartition("c", 0): 5})
    OffsetCheckpointFile(str(root / "replication-offset-checkpoint")).write({TopicPartition("t", 0): 1})
    code, told = run.json("retain", root, "--target-free", "999PiB")
    assert code == 1
    assert set(told[-1]["skipped"]) == {"__consumer_offsets-0", "c-0"}
    assert partitions_in(told) == ["t-1"]
    assert told[-1]["missing"] > 0
    for argv, names in (
        (["-X", "cleanup.policy=delete"], ["c-0"]),
        (["-X", "cleanup.policy=compact"], []),
        ([], []),
    ):
        told = run.json("retain", root / "c-0", "-X", "retention.ms=0", *argv)[1]
        assert partitions_in(told) == names, argv


def stored_topic(root: Path, topic: str, overrides: dict[str, str]) -> None:
    """`topic`-0 of two segments and more, with settings kept beside the data."""
    with kafkalog.LogManager([str(root)]) as manager:
        manager.set_topic_config(topic, {**SMALL, **overrides})
    with kafkalog.open_log(root, f"{topic}-0") as log:
        for number in range(20):
            log.append(b"%d" % number * 20, key=b"%d" % number, timestamp=START_MS)


RETAIN_MS, RETAIN_FREE = ("-X", "retention.ms=1000"), ("--target-free", "999PiB")


def test_retain_deletes_of_a_compacted_topic_what_its_rules_delete(root: Path, run: Run) -> None:
    """As a broker does, and a running store: compact,delete deletes, too, also after a cleaner."""
    policy = {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    stored_topic(root, "both", policy)
    stored_topic(root, "run", policy)
    stored_topic(root, "latest", {"cleanup.policy": "compact", "retention.ms": "1000"})
    cleaned = OffsetCheckpointFile(str(root / "cleaner-offset-checkpoint"))
    cleaned.write({TopicPartition("both", 0): 5, TopicPartition("latest", 0): 5})
    explained = run.json("explain", root / "both-0")[1]
    goes = [each["path"] for each in explained if each["kind"] == "segment" and each["goes"] and not each["active"]]
    told = run.json("retain", root)[1]
    (both,) = (each for each in told if each["kind"] == "partition" and each["topic"] == "both")
    assert [each["path"] for each in both["segments"]] == goes
    assert set(told[-1]["skipped"]) == {"latest-0"}
    err = run("retain", root, "--yes")[2]
    assert "latest-0 is skipped: its topic is compacted: the oldest records may be the latest of their keys (`" in err
    assert "if you name it with -X cleanup.policy=compact,delete" in err
    assert goes
    assert not [path for path in goes if os.path.exists(path)]
    assert len(list((root / "both-0").glob("*.log"))) == len(list((root / "run-0").glob("*.log"))) == 1
    way_out = ("-X", "cleanup.policy=compact,delete")
    assert run.json("retain", root, *way_out)[1][-1]["segments"] == 0  # not of a whole directory
    assert run.json("retain", root / "latest-0", *way_out)[1][-1]["segments"] > 0


@pytest.mark.parametrize(
    ("policy", "argv"),
    [
        ("compact", RETAIN_MS),
        ("compact", RETAIN_FREE),
        ("compact", (*RETAIN_MS, "-X", "cleanup.policy=delete")),
        ("compact,delete", RETAIN_FREE),
    ],
)
def test_retain_sees_that_a_stored_topic_is_compacted(policy: str, argv: tuple[str, ...], root: Path, run: Run) -> None:
    stored_topic(root, "comp", {"cleanup.policy": policy})
    whole = content(root, "comp-0")
    told = run.json("retain", root, *argv, "--yes")[1]
    assert content(root, "comp-0") == whole
    assert "compacted" in told[-1]["skipped"]["comp-0"]
    assert "t-0" in partitions_in(told)
    assert "note: comp-0 is skipped: its topic is compacted" in run("retain", root, *argv)[2]
    argv = ("-X", "retention.ms=1000", "-X", "cleanup.policy=delete", "--yes")
    assert run.json("retain", root / "comp-0", *argv)[1][-1]["segments"] > 0


def test_retain_goes_by_stored_rules(root: Path, run: Run) -> None:
    stored_topic(root, "old", {"retention.ms": "1000"})
    stored_topic(root, "kept", {"cleanup.policy": "", "retention.ms": "1000"})
    code, told = run.json("retain", root)
    assert (code, {each["topic"] for each in told[:-1]}) == (0, {"old"})
    told = run.json("retain", root, *RETAIN_FREE)[1]
    assert {each["topic"] for each in told[:-1]} == {"old", "t"}
    assert "all records are kept" in told[-1]["skipped"]["kept-0"]
    told = run.json("retain", root, "-X", "retention.ms=-1", "--yes")[1]
    assert not told[-1]["segments"]
    told = run.json("retain", root, "--yes")[1]
    rules = {rule["rule"] for each in told if each["kind"] == "partition" for rule in each["segments"]}
    assert rules == {"retention time"}
    assert len(list((root / "old-0").glob("*.log"))) == 1


def test_a_broker_that_compacts_is_heard(root: Path, tmp_path: Path, run: Run) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=compact\nlog.retention.ms=1\n")
    told = run.json("retain", root, "--config", properties, *RETAIN_FREE)[1]
    assert (set(told[-1]["skipped"]), told[-1]["segments"]) == ({"t-0", "t-1", "u-0"}, 0)


def test_every_command_sees_stored_settings(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    every = {"index.interval.bytes": "150", "cleanup.policy": "compact", "compression.type": "gzip"}
    stored_topic(root, "comp", every)
    index = {path.name: path.read_bytes() for path in (root / "comp-0").glob("*.index")}
    assert any(index.values())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"no key\n")))
    code, _, err = run("append", root, "comp-0")
    assert (code, "key" in err) == (2, True), err
    assert run("reindex", root / "comp-0", "--all", "--yes")[0] == 0
    assert {path.name: path.read_bytes() for path in (root / "comp-0").glob("*.index")} == index
    assert run("recover", root / "comp-0", "--from-start", "--yes")[0] == 0
    assert {path.name: path.read_bytes() for path in (root / "comp-0").glob("*.index")} == index
    assert "cleanup.policy=compact (set by the topic)" in run("explain", root / "comp-0")[1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"k:v\n")))
    assert run("append", root, "comp-0", "-K", ":")[0] == 0
    assert json.loads(run("topics", root, "--json", "--exact")[1].splitlines()[0])["codecs"] == ["gzip"]
    code, _, err = run("append", root, "comp-0", "-X", "compression.typ=gzip")
    assert (code, "compression.typ" in err) == (2, True)
    (root / ".kafkalog_topics").write_text("{")
    for argv in (["retain", root, *RETAIN_MS], ["delete-records", root / "t-0", "--before", "1"], ["reindex", root]):
        code, out, err = run(*argv)
        assert (code, ".kafkalog_topics" in out + err) == (1, True), (argv, err)


@pytest.mark.parametrize("size", ["", "ten", "10XB", "-1", "1e9"])
def test_retain_wants_a_size(size: str, root: Path, run: Run) -> None:
    code, _, err = run("retain", root, f"--target-free={size}")
    assert code == 2
    assert "such as 10GiB" in err


# --- delete-records --------------------------------------------------------------------------------------------


def test_delete_records(root: Path, run: Run) -> None:
    before = snapshot(root)
    code, _, err = run("delete-records", root / "t-0", "--before", "20261120", "--yes")
    assert (code, "for the day, write 2026-11-20" in err) == (2, True)
    code, out, _ = run("delete-records", root / "t-0", "--before", "7")
    assert (code, snapshot(root)) == (0, before)
    assert "offsets 0 to 6 would be deleted (--yes does it)" in out
    code, (done,) = run.json("delete-records", root / "t-0", "--before", "7", "--yes")
    assert (code, done["newLogStartOffset"], done["offsets"], done["done"]) == (0, 7, 7, True)
    assert content(root, "t-0")[0][0] == 7
    assert line(root, "log-start-offset-checkpoint", "t-0") == 7
    code, (done,) = run.json("delete-records", root / "t-0", "--before", f"@{START_MS + 11_500}", "--yes")
    assert done["newLogStartOffset"] == 12
    code, out, _ = run("delete-records", root / "t-0", "--before", "3", "--yes")
    assert (code, content(root, "t-0")[0][0]) == (0, 12)
    assert "nothing before 3" in out
    code, (done,) = run.json("delete-records", root / "t-0", "--before", "2030-01-01", "--yes")
    assert (done["newLogStartOffset"], content(root, "t-0")) == (20, [])
    assert run.json("retain", root / "t-0", "-X", "retention.ms=-1", "--yes")[1][-1]["segments"] > 0


def test_delete_records_refuses(root: Path, run: Run) -> None:
    OffsetCheckpointFile(str(root / "replication-offset-checkpoint")).write({TopicPartition("t", 1): 5})
    OffsetCheckpointFile(str(root / "cleaner-offset-checkpoint")).write({TopicPartition("u", 0): 1})
    before = snapshot(root)
    for argv, hint in (
        (["t-0", "--before", "21"], "after the log end 20"),
        (["t-1", "--before", "6"], "after the high watermark 5"),
        (["u-0", "--before", "1"], "is compacted"),
        (["t-0", "--before", "5", "-X", "cleanup.policy=compact"], "is compacted"),
        (["t-0", "--before", "yesterday"], "neither an offset nor a time"),
        (["t-0", "--before=-5"], "is not an offset"),
    ):
        code, _, err = run("delete-records", root / argv[0], *argv[1:], "--yes")
        assert code == 2, argv
        assert hint in err, err
    assert snapshot(root) == before
    assert run("delete-records", root / "u-0", "--before", "1", "-X", "cleanup.policy=compact,delete", "--yes")[0] == 0


def test_delete_records_sees_that_a_stored_topic_is_compacted(root: Path, run: Run) -> None:
    stored_topic(root, "comp", {"cleanup.policy": "compact"})
    code, _, err = run("delete-records", root / "comp-0", "--before", "10", "--yes")
    assert (code, "comp-0 is compacted" in err) == (2, True)
    assert len(content(root, "comp-0")) == 20
    stored_topic(root, "both", {"cleanup.policy": "compact,delete"})
    assert run("delete-records", root / "both-0", "--before", "10", "--yes")[0] == 0
    assert content(root, "both-0")[0][0] == 10


@pytest.mark.parametrize("text", ["0\n1\nt 0\n", "garbage"])
def test_nothing_goes_where_high_watermarks_cannot_be_read(root: Path, run: Run, text: str) -> None:
    path = root / "replication-offset-checkpoint"
    path.write_text(text)
    before = snapshot(root)
    for argv in (
        ["delete-records", root / "t-0", "--before", "5"],
        ["retain", root, "-X", "retention.ms=0"],
        ["retain", root, "--target-free", "999PiB"],
    ):
        for options in ([], ["--yes"]):
            code, _, err = run(*argv, *options)
            assert code == 1, (argv, err)
            assert str(path) in err
            assert "nothing is deleted" in err
    assert snapshot(root) == before


# --- move ------------------------------------------------------------------------------------------------------


def test_move(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    fill(other, "w-0", 2)
    OffsetCheckpointFile(str(root / "replication-offset-checkpoint")).write({TopicPartition("t", 0): 20})
    with kafkalog.open_log(root, "t-0", config=SMALL) as log:
        log.delete_records(3)
    OffsetCheckpointFile(str(other / "log-start-offset-checkpoint")).write({TopicPartition("t", 0): 9})  # stale
    files, before = snapshot(root / "t-0"), (snapshot(root), snapshot(other))
    mtimes = {path.name: path.stat().st_mtime_ns // 10**6 for path in (root / "t-0").iterdir()}
    code, (told,) = run.json("move", root / "t-0", other)
    assert (code, told["step"], told["done"]) == (0, "copy", False)
    assert (snapshot(root), snapshot(other)) == before
    assert run("move", root / "t-0", other, "--yes")[0] == 0
    assert snapshot(other / "t-0") == files
    assert {path.name: path.stat().st_mtime_ns // 10**6 for path in (other / "t-0").iterdir()} == mtimes
    assert not [path for path in root.iterdir() if path.name.startswith("t-0")]
    for name, offset in (
        ("log-start-offset-checkpoint", 3),
        ("recovery-point-offset-checkpoint", 20),
        ("replication-offset-checkpoint", 20),
        ("cleaner-offset-checkpoint", None),
    ):
        assert line(root, name, "t-0") is None
        assert line(other, name, "t-0") == offset
    assert (root / ".kafka_cleanshutdown").exists()
    assert (other / ".kafka_cleanshutdown").exists()
    assert verify(other, deep=True).ok
    code, out, _ = run("move", root / "t-0", other, "--yes")
    assert (code, "nothing" in out) == (0, True)


def test_move_needs_no_room_for_what_is_preallocated(
    root: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of a store that crashed have 10 MiB each, and a few entries: the rest is a hole, here and there."""
    (target := tmp_path / "second").mkdir()
    for index in (root / "t-0").glob("*index"):
        os.truncate(index, 10 << 20)
    before, free = content(root, "t-0"), 8 << 20
    monkeypatch.setattr("kafkalog.toolbox.move.free_bytes", lambda path: free)
    planned = move.plan_move(str(root), T0, str(target))
    assert planned.size > 40 << 20
    assert 0 < planned.needed < 200 << 10
    code, out, _ = run("move", root / "t-0", target, "--json")
    assert (code, json.loads(out)["needed"], json.loads(out)["bytes"]) == (0, planned.needed, planned.size)
    assert f"copy {planned.needed / 1024:.1f} KiB to" in run("move", root / "t-0", target)[1]
    assert run("move", root / "t-0", target, "--yes")[0] == 0
    assert sum(used.allocated for used in walk(str(target / "t-0")) if not used.is_dir) <= planned.needed
    assert content(target, "t-0") == before
    free = planned.needed - 1
    back = run("move", target / "t-0", root)
    assert back[0] != 0
    assert f"the copy needs {planned.needed / 1024:.1f} KiB" in back[2]


def test_move_of_an_unclean_log_stays_unclean(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    fill(other, "w-0", 2)
    (root / ".kafka_cleanshutdown").unlink()
    assert run("move", root / "t-0", other, "--yes")[0] == 0
    assert not (other / ".kafka_cleanshutdown").exists()
    assert not (root / ".kafka_cleanshutdown").exists()


def test_move_refuses(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert run("move", root / "t-0", root)[0] == 2
    assert run("move", root / "x-0", other)[0] == 2
    assert run("move", root, other)[0] == 2
    assert run("move", root / "t-0", tmp_path / "none")[0] == 2
    write_meta_properties(str(root / "meta.properties"), MetaProperties(1, CLUSTER, 1))
    write_meta_properties(str(other / "meta.properties"), MetaProperties(1, CLUSTER, 2))
    code, _, err = run("move", root / "t-0", other, "--yes")
    assert code == 2
    assert "node.id=2" in err
    (other / "meta.properties").unlink()
    fill(other, "t-0", 5)
    before = (snapshot(root), snapshot(other))
    code, _, err = run("move", root / "t-0", other, "--yes")
    assert code == 1
    assert "is in both directories, and these files differ" in err
    assert (snapshot(root), snapshot(other)) == before
    with kafkalog.open_log(root, "t-1", take_over=True):
        code, _, err = run("move", root / "t-1", other, "--yes")
        assert code == 2
        assert "open already in this process" in err
    with pytest.raises(CorruptRecordException):
        move.carry_out(move.plan_move(str(root), TopicPartition("t", 0), str(other)))


def test_move_compares_no_half_written_checkpoint(root: Path, tmp_path: Path, run: Run) -> None:
    """A broker that dies as it refuses the two directories may leave one; another file counts."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(root / "t-0", other / "t-0")
    (root / "t-0" / "leader-epoch-checkpoint.tmp").write_text("0\n1\n")
    (other / "t-0" / "notes.tmp").write_text("mine")
    code, _, err = run("move", root / "t-0", other, "--yes")
    assert code == 1
    assert "these files differ: notes.tmp (" in err
    (other / "t-0" / "notes.tmp").unlink()
    assert run("move", root / "t-0", other, "--yes")[0] == 0
    assert not (root / "t-0").exists()
    assert not (other / "t-0" / "leader-epoch-checkpoint.tmp").exists()


def test_move_leaves_a_brokers_own_move_alone(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    (other / f"t-0.{HEX}-future").mkdir(parents=True)
    code, _, err = run("move", root / "t-0", other, "--yes")
    assert code == 2
    assert "let the broker finish" in err


def test_move_wants_checkpoints_that_can_be_read(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    fill(other, "w-0", 2)
    for at in (root, other):
        kept = (at / "log-start-offset-checkpoint").read_bytes()
        (at / "log-start-offset-checkpoint").write_text("0\n1\n\n")
        before = (snapshot(root), snapshot(other))
        code, _, err = run("move", root / "t-0", other, "--yes")
        assert code == 1
        assert "log-start-offset-checkpoint" in err
        assert (snapshot(root), snapshot(other)) == before
        (at / "log-start-offset-checkpoint").write_bytes(kept)
    assert run("move", root / "t-0", other, "--yes")[0] == 0


def test_there_and_back_again(root: Path, tmp_path: Path, run: Run) -> None:
    """The leftover of an interrupted move is in nobody's way."""
    other = tmp_path / "other"
    other.mkdir()
    plan = move.plan_move(str(root), T0, str(other))
    shutil.copytree(root / "t-0", plan.outgoing)
    whole = content(root, "t-0")
    assert run("move", root / "t-0", other, "--yes")[0] == 0
    assert run("move", other / "t-0", root, "--yes")[0] == 0
    assert content(root, "t-0") == whole
    assert [path.name for path in (*root.glob("t-0*"), *other.glob("t-0*"))] == ["t-0"]


def test_a_move_that_was_cut_short_between_the_renames(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(root / "t-0", other / "t-0")
    code, (told,) = run.json("move", root / "t-0", other, "--yes")
    assert (code, told["step"]) == (0, "compare")
    assert not (root / "t-0").exists()
    assert len(content(other, "t-0")) == 20


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_move_on_a_failing_disk_can_be_done_again(error: int) -> None:
    def prepare(place: str) -> None:
        with kafkalog.open_log(f"{place}/here", T0, config=SMALL, files=UnsyncedFiles()) as log:
            for number in range(8):
                log.append(b"%d" % number * 20)
        os.mkdir(f"{place}/there")

    def workload(files: Files, place: str) -> None:
        move.carry_out(move.plan_move(f"{place}/here", T0, f"{place}/there", files=files), files=files)

    def check(place: str, files: FaultyFiles, raised: BaseException | None) -> None:
        assert raised is None or isinstance(raised, OSError), raised
        here, there = Path(place, "here"), Path(place, "there")
        assert (here / "t-0").is_dir() or (there / "t-0").is_dir()
        move.carry_out(move.plan_move(str(here), T0, str(there)), files=UnsyncedFiles())
        assert len(content(there, "t-0")) == 8
        assert not list(here.glob("t-0*"))
        assert [path.name for path in there.glob("t-0*")] == ["t-0"]

    runs = harness.each_fault(workload, check, error=error, sticky=True, prepare=prepare, inner=UnsyncedFiles())
    assert runs > 40


# --- files.usage -----------------------------------------------------------------------------------------------


def test_walk_passes_over_what_goes_away(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    seen = []
    for used in walk(str(tmp_path)):
        seen.append(os.path.relpath(used.path, tmp_path))
        if seen[-1] == "a":
            shutil.rmtree(tmp_path / "b")
            shutil.rmtree(tmp_path / "a")
    assert seen == [".", "a", "b", "c", "c/file"]


@pytest.mark.parametrize("opens", [1, 2, 3, 4, 5, 7, 9, 12])
def test_segments_may_go_while_one_looks(opens: int, root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's retention is running meanwhile: the next read finds the remaining ones."""
    copy = root.parent / "copy"
    opened = OsFiles.open
    left = 0

    def go(self: OsFiles, path: str, **how: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            for first in sorted((copy / "t-0").glob("*.log"))[:2]:
                first.rename(f"{first}.deleted")
        return opened(self, path, **how)

    for command in (["topics"], ["topics", "--exact"], ["log-dirs"], ["du"], ["checkpoint"]):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        left = opens
        with monkeypatch.context() as patched:
            patched.setattr(OsFiles, "open", go)
            assert run(*command, copy)[0] == 0, command


@pytest.mark.parametrize("seed", range(30))
def test_damaged_directories_are_told_or_refused_in_one_line(seed: int, root: Path, run: Run) -> None:
    rng = random.Random(seed)
    victims = [path for path in sorted(root.rglob("*")) if path.is_file()]
    for _ in range(rng.randint(1, 6)):
        path = rng.choice(victims)
        data = bytearray(path.read_bytes())
        if data and rng.random() < 0.8:
            for _ in range(rng.randint(1, 20)):
                data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            path.write_bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
        else:
            path.write_bytes(rng.randbytes(rng.randrange(200)))
    for argv in (
        ["topics", root],
        ["topics", "--exact", root],
        ["log-dirs", root],
        ["du", root],
        ["checkpoint", root],
        ["explain", root / "t-0", "-X", "retention.ms=1"],
        ["explain", root / "t-0", "--exact", "--json"],
        ["retain", root, "-X", "retention.ms=1000"],
        ["retain", root, "-X", "retention.bytes=10", "--yes"],
        ["delete-records", root / "t-0", "--before", "@1700000001000", "--yes"],
        ["checkpoint", "set", root / "recovery-point-offset-checkpoint", "t-0", "1", "--yes"],
        ["move", root / "t-0", root.parent],
    ):
        code, _, err = run(*argv)
        assert code in (0, 1, 2, 3), argv
        assert "Traceback" not in err
        if code > 1:
            assert len([text for text in err.splitlines() if text.startswith("kafkalog: ")]) == 1, err


def test_move_of_a_topic_names_its_partitions(run: Run, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1"):
        kafkalog.open_log(tmp_path / "disk1", name).close()
    (tmp_path / "disk2").mkdir()
    code, _, err = run("move", tmp_path / "disk1" / "orders", tmp_path / "disk2")
    assert (code, "found a topic with orders-0, orders-1, expected one partition" in err) == (2, True), err
    code, _, err = run("move", tmp_path / "disk1" / "order", tmp_path / "disk2")
    assert (code, "did you mean orders?" in err) == (2, True), err


def test_retain_tells_one_reason_once(run: Run, tmp_path: Path) -> None:
    for number in range(7):
        kafkalog.open_log(tmp_path, f"__consumer_offsets-{number}").close()
    kafkalog.open_log(tmp_path, "t-0").close()
    code, _, err = run("retain", tmp_path, "-X", "retention.ms=1")
    assert code == 0
    [line] = [line for line in err.splitlines() if "skipped" in line]
    assert line.startswith("note: __consumer_offsets-0, ")
    assert "and 2 more are skipped: it is an internal topic of Kafka" in line


def test_a_lock_is_told_in_the_commands_words(root: Path, run: Run) -> None:
    with OS_FILES.lock(str(root / ".lock")):
        code, _, err = run("recover", root, "--yes")
        assert code == 3
        assert "takes no lock: those that only read, and all others without --yes" in err
        assert "read_only" not in err
        assert run("recover", root)[0] == 0


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("retention.ms=7d", "retention.ms=604800000"),
        ("retention.ms=90 min", "retention.ms=5400000"),
        ("retention.bytes=10GiB", "retention.bytes=10737418240"),
        ("segment.bytes=64m", "segment.bytes=67108864"),
        ("retention.ms=7x", "Not a number of type LONG"),
    ],
)
def test_a_setting_with_a_unit_is_told_as_kafkas_number(root: Path, run: Run, given: str, instead: str) -> None:
    code, _, err = run("explain", root / "t-0", "-X", given)
    assert (code, instead in err) == (2, True), err
