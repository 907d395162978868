"""Two processes and one directory: the second is refused, waits, reads meanwhile, or finds the files of the first."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import notify
from kafkalog.errors import (
    IllegalArgumentException,
    LogDirLockedException,
)
from kafkalog.toolbox.verify import verify
from tests.unit.test_log_directories import HEX, Run, fill, root, run, snapshot
from tests.unit.test_topics_transactions import settled, values

__all__ = ["root", "run"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with pytest.raises(IllegalArgumentException, match="open already"):
            kafkalog.open_log(tmp_path, "t-0")
        code = f"import kafkalog; kafkalog.open_log({str(tmp_path)!r}, 't-1')"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "LogDirLockedException" in other.stderr
        log.append(b"still mine")
    assert issubclass(LogDirLockedException, kafkalog.KafkalogError)


def test_a_crash_in_the_middle_is_aborted_by_the_next_open(tmp_path: Path) -> None:
    code = (
        f"import kafkalog, os; log = kafkalog.open_log({str(tmp_path)!r}, 't-0'); log.append(b'1')\n"
        "done = log.transaction('done')\n"
        "with done: done.append(b'2')\n"
        "for name in ('a', 'b'): txn = log.transaction(name); txn.begin(); txn.append(b'lost')\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as view:
        assert (view.last_stable_offset, view.end_offset) == (3, 5)
        assert values(view) == [b"1", b"2"]
    with kafkalog.open_log(tmp_path, "t-0", abort_left_open=False) as log:
        assert not settled(log)
    for _ in range(2):
        with kafkalog.open_log(tmp_path, "t-0") as log:
            assert settled(log)
            assert log.end_offset == 7
            assert values(log) == [b"1", b"2"]
    with kafkalog.open_log(tmp_path, "t-0") as log:
        with log.transaction("a") as txn:
            txn.append(b"3")
        assert values(log) == [b"1", b"2", b"3"]
    assert verify(tmp_path, deep=True).ok


WRITER = """
import sys, time, kafkalog
with kafkalog.open(sys.argv[1], config={"internal.segment.bytes": "2000"}) as store:
    topic = store.create_topic("t", 2, exist_ok=True)
    print("open", flush=True)
    for number in range(int(sys.argv[2])):
        topic.append(b"%d" % number, partition=number % 2)
        if number % 10 == 0:
            time.sleep(0.002)
    store.add_partitions("t", 3)
    topic.append(b"last", partition=2)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("told", [True, False])
def test_another_process_writes(tmp_path: Path, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:

        def none(self: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(notify.DirectoryWatch, "__init__", none)
        monkeypatch.setattr(notify.DirectoryWatch, "__del__", lambda self: None)
    kafkalog.open(tmp_path).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "500"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    assert writer.stdin is not None
    assert writer.stdout.readline() == "open\n"
    found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with kafkalog.open(tmp_path, read_only=True) as store, store.reader(topics=["t"]) as reader:
        for record in reader.follow(timeout_ms=20_000):
            found[record.partition].append(record.value or b"")
            if record.value == b"last":
                break
        for record in reader:
            found[record.partition].append(record.value or b"")
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.wait() == 0
    writer.stdin.close()
    writer.stdout.close()
    assert found == {0: [b"%d" % n for n in range(0, 500, 2)], 1: [b"%d" % n for n in range(1, 500, 2)], 2: [b"last"]}


def test_du_sums_up_as_the_systems(root: Path, tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other"
    fill(other, "v-0", 4)
    shutil.copytree(root / "u-0", root / f"u-0.{HEX}-delete")
    (root / "t-0" / "00000000000000000000.log.deleted").write_bytes(b"x" * 10_000)
    (root / "t-0" / "00000000000000000000.log.swap").write_bytes(b"x" * 100)
    (root / "t-0" / "odd").mkdir()
    os.link(root / "t-0" / "00000000000000000000.log", root / "again.log")
    os.symlink("/", root / "link")
    with kafkalog.open_log(other, "v-1") as log:
        log.append(b"preallocated")
        code, found = run.json("du", root, other)
        assert code == 0
        *rows, summary = found
        kinds = {row["name"]: row for row in rows if row["kind"] == "fileKind"}
        for kind in ("topic", "fileKind"):
            for column in ("files", "size", "allocated"):
                assert sum(row[column] for row in rows if row["kind"] == kind) == summary[column], (kind, column)
        for flag, column in (("-sbc", "size"), ("-scB1", "allocated")):
            told = subprocess.run(["du", flag, root, other], capture_output=True, text=True, check=True).stdout
            assert int(told.splitlines()[-1].split()[0]) == summary[column]
        assert summary["preallocated"]["size"] > 19 << 20
        assert summary["preallocated"]["allocated"] < 1 << 20
        assert kinds[".deleted"]["size"] == 10_000
        assert kinds[".swap"]["size"] == 100
        assert kinds["-delete"]["files"] == len(list((root / f"u-0.{HEX}-delete").iterdir())) + 1
        assert sum(row["size"] for row in rows if row["kind"] == "age") == kinds["logs"]["size"]
    code, out, _ = run("du", root)
    assert "in all: " in out


def test_retain_beside_another(root: Path, run: Run) -> None:
    with kafkalog.open_log(root, "t-0"):
        assert run("retain", root / "t-0", "-X", "retention.bytes=0")[0] == 0
        code, _, err = run("retain", root / "t-0", "-X", "retention.bytes=0", "--yes")
        assert code == 2
        assert "open already in this process" in err
    lock = subprocess.Popen(
        [shutil.which("python3") or "python3", "-c",
         "import fcntl,sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()",
         str(root / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert lock.stdout is not None
    lock.stdout.readline()
    before = snapshot(root / "t-0")
    for argv in (
        ["retain", root, "-X", "retention.bytes=0", "--yes"],
        ["delete-records", root / "t-0", "--before", "9", "--yes"],
        ["move", root / "t-0", root.parent, "--yes"],
        ["checkpoint", "set", root / "recovery-point-offset-checkpoint", "t-0", "1", "--yes"],
    ):
        code, _, err = run(*argv)
        assert code == 3 or argv[0] == "move", (argv, err)
    assert snapshot(root / "t-0") == before
    lock.communicate(b"\n")
