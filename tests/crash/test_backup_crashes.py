"""Crash states, failing and full disks, and kills of a backup and of a restore.

A directory with the requested name is a whole backup (or log directory), or does not exist.  A repeated call completes
it, and earlier backups stay unchanged.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.api import Files
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.backup_manifest import is_backup, newest_backup
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.verify import verify
from tests.crash import harness
from tests.crash.harness import CrashState
from tests.file_doubles import FaultyFiles, RecordingFiles, UnsyncedFiles
from tests.sampling import LONG, draw
from tests.unit.store_kit import NOW_MS

SMALL = {
    "internal.segment.bytes": "700",
    "index.interval.bytes": "150",
    "message.timestamp.before.max.ms": str(1 << 60),
}
RECORDS = 12 + 4


def fill(root: str) -> None:
    """Some segments; a cursor; a transaction over two topics."""
    with kafkalog.open(root, files=UnsyncedFiles(), maintenance=False) as store:
        orders = store.create_topic("orders", config=SMALL)
        store.create_topic("out", config=SMALL)
        for number in range(12):
            orders.append(b"%d" % number * 60, timestamp=NOW_MS + number)
        with store.reader("biller", topics=["orders"]) as reader, store.transaction("biller") as txn:
            for record in reader.poll(4):
                txn.append("out", record.value, timestamp=NOW_MS)
            txn.commit_offsets(reader)


def check_backup(path: str) -> None:
    """It is whole: every byte of it, and what it restores to."""
    assert restore(path, path + "-nowhere", act=False).records >= RECORDS
    assert verify(os.path.join(path, "log-dir-1"), deep=True).ok
    check_store(os.path.join(path, "log-dir-1"))


def check_store(path: str) -> None:
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=["orders", "out"]) as reader:
        assert sum(1 for _ in reader) == RECORDS
        assert store.cursors()[0].name == "biller"


def marked(recording: RecordingFiles, state: CrashState, label: str) -> bool:
    return any(op.kind == "mark" and op.path == label for op in recording.ops[: state.op_count])


def test_crash_states_of_a_backup(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        fill(str(root / "shop"))
        backup(root / "shop", root / "backups" / "1", files=UnsyncedFiles())
        recording = RecordingFiles(str(root), UnsyncedFiles())
        backup(root / "shop", root / "backups" / "2", base=root / "backups", files=recording)
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        first, second = (os.path.join(place, "backups", name) for name in "12")
        check_backup(first)
        assert os.path.exists(second) or not marked(recording, state, "done")
        if os.path.exists(second):
            check_backup(second)
            return
        assert not is_backup(second)
        found = newest_backup(os.path.join(place, "backups"))
        assert found is not None
        assert found[0] == first
        backup(os.path.join(place, "shop"), second, base=first, files=UnsyncedFiles())
        check_backup(second)
        assert sorted(os.listdir(os.path.join(place, "backups"))) == ["1", "2"]

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 60, keep=tmp_path / "state", torn_step=1 << 20
    )
    print(f"backup: {states} states")


def test_crash_states_of_a_restore(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        fill(str(root / "shop"))
        backup(root / "shop", root / "saved", files=UnsyncedFiles())
        recording = RecordingFiles(str(root), UnsyncedFiles())
        restore(root / "saved", root / "again", files=recording)
        recording.mark("done")

    def check(place: str, state: CrashState) -> None:
        saved, again = os.path.join(place, "saved"), os.path.join(place, "again")
        assert os.path.exists(again) or not marked(recording, state, "done")
        if not os.path.exists(again):
            restore(saved, again, files=UnsyncedFiles())
        check_store(again)
        assert verify(again, deep=True).ok
        assert not os.path.exists(again + ".kafkalog-partial")

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 60, keep=tmp_path / "state", torn_step=1 << 20
    )
    print(f"restore: {states} states")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_disks_that_refuse(error: int) -> None:
    """The call fails, says where, and leaves nothing of the name; nor anything at all where the disk is only full."""

    def workload(files: Files, place: str) -> None:
        backup(f"{place}/shop", f"{place}/saved", files=files)
        restore(f"{place}/saved", f"{place}/again", files=files)

    def check(place: str, files: FaultyFiles, raised: BaseException | None) -> None:
        assert raised is None or isinstance(raised, OSError)
        if os.path.exists(f"{place}/saved"):
            check_backup(f"{place}/saved")
        if os.path.exists(f"{place}/again"):
            check_store(f"{place}/again")
        assert raised is not None or os.path.exists(f"{place}/again")
        if error == errno.ENOSPC:
            assert not any(name.endswith(".kafkalog-partial") for name in os.listdir(place)), (files.failed, raised)
        assert verify(f"{place}/shop").ok

    inner = UnsyncedFiles()
    runs = harness.each_fault(
        workload, check, error=error, prepare=lambda place: fill(f"{place}/shop"), inner=inner, step=1 if LONG else 12
    )
    print(f"backup and restore: {runs} faults")


PROGRAM = """
import sys
from kafkalog.toolbox.backup import backup
print("begin", flush=True)
backup(sys.argv[1], sys.argv[2], base=sys.argv[3], link=sys.argv[4] == "link")
print("done", flush=True)
"""


@pytest.mark.parametrize("way", ["copy", "link"])
def test_kills(way: str, tmp_path: Path) -> None:
    """kill -9 at any time; the next one to the same place goes through, and the earlier ones are whole."""
    rng = draw(f"kills of backups {way}")
    kills = 40 if LONG else 6
    with harness.fast_dir() as root:
        fill(str(root / "shop"))
        with kafkalog.open(root / "shop", files=UnsyncedFiles()) as store:
            more = store.create_topic("more", partitions=8, config={"internal.segment.bytes": "20000"})
            for _ in range(40):
                more.append_many([os.urandom(200) for _ in range(100)])
        backup(root / "shop", root / "backups" / "0", files=OS_FILES)
        done = 0
        for number in range(kills):
            target = root / "backups" / str(done + 1)
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(root / "shop"), str(target), str(root / "backups"), way],
                stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == b"begin\n"
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            said = process.stdout.read()
            process.stdout.close()
            assert said != b"done\n" or target.exists()
            if target.exists():
                check_backup(str(target))
                done += 1
            if number % 5 == 4:
                check_backup(str(root / "backups" / "0"))
        last = root / "backups" / "last"
        backup(root / "shop", root / "backups" / str(done + 1), base=root / "backups")
        backup(root / "shop", last, base=root / "backups")
        for each in root.glob("backups/*"):
            if not each.name.endswith(".lock"):
                check_backup(str(each))
        assert not list(root.glob("backups/*.kafkalog-partial"))
        shutil.rmtree(root / "shop")
        check_backup(str(last))
