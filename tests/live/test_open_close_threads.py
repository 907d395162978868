"""Threads that open and close logs of one directory; logs and leases that are dropped; directories without logs."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.writer import Writer
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, ManualClock, ManualScheduler
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory as directories
from kafkalog.errors import IllegalArgumentException, LogDirLockedException
from kafkalog.toolbox.verify import verify
from kafkalog.transaction import Transaction
from tests.crash.harness import fast_dir
from tests.file_doubles import UnsyncedFiles
from tests.live.test_open_close_interrupts import occupied
from tests.sampling import LONG

FILES = UnsyncedFiles()
ROUNDS = 2000 if LONG else 150


def run_together(*work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in work]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    if failures:
        raise failures[0]


def test_threads_open_and_close_their_own_partitions() -> None:
    """No spurious error, no log without the directory's lock, and the marker at the end."""
    with fast_dir() as place:
        root = place / "logs"

        def work(number: int) -> Callable[[], None]:
            def run() -> None:
                rng = random.Random(number)
                for turn in range(ROUNDS):
                    with kafkalog.open_log(root, f"t-{number}", files=FILES) as log:
                        assert log.end_offset == turn
                        log.append(b"%d" % turn)
                        assert os.path.exists(root / ".lock")
                        assert log.appends is not None
                        lock = log.appends.lease.directory.held._lock
                        assert lock is not None
                        assert lock.held  # type: ignore[attr-defined]
                    if rng.random() < 0.3:
                        os.sched_yield()

            return run

        run_together(*(work(number) for number in range(4)))
        assert (root / ".kafka_cleanshutdown").exists()
        assert not (root / ".lock").exists()
        assert not occupied(root)
        for number in range(4):
            with kafkalog.open_log(root, f"t-{number}", files=FILES) as log:
                assert [record.value for record in log] == [b"%d" % turn for turn in range(ROUNDS)]
        assert verify(root, deep=True).ok


def test_threads_that_want_one_partition() -> None:
    """One has it, the others hear that it is open already; it is never open twice."""
    with fast_dir() as place:
        root, inside = place / "logs", threading.Lock()
        turns = [0, 0]

        def run() -> None:
            while turns[0] < ROUNDS:
                try:
                    log = kafkalog.open_log(root, "t-0", files=FILES)
                except IllegalArgumentException:  # it is open already
                    turns[1] += 1
                    continue
                assert inside.acquire(blocking=False)
                log.append(b"x")
                turns[0] += 1
                inside.release()
                log.close()

        run_together(*[run] * 3)
        assert turns[1]
        with kafkalog.open_log(root, "t-0", files=FILES) as log:
            assert log.end_offset == turns[0]


def test_many_threads_close_one_log() -> None:
    with fast_dir() as place:
        for _ in range(ROUNDS // 10):
            log = kafkalog.open_log(place / "logs", "t-0", files=FILES)
            log.append(b"x")
            run_together(*[log.close] * 4)
            assert log.closed
            assert (place / "logs" / ".kafka_cleanshutdown").exists()


# --- dropped ---------------------------------------------------------------------------------------------


def drop(log_dir: Path, **options: object) -> None:
    log = kafkalog.open_log(log_dir, "t-0", **options)  # type: ignore[arg-type]
    log.append(b"acknowledged")


def test_a_dropped_log_lets_go(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match=r"<Partition t-0 of .*, open> was dropped without being closed; use it"):
        drop(tmp_path)
    wait_for_dropped()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / ".lock").exists()
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert [record.value for record in log] == [b"acknowledged"]


def test_whoever_writes_keeps_it_open(tmp_path: Path) -> None:
    """A writer or a transaction may outlive the Partition that made it; the last one to go closes what is open."""

    def made() -> tuple[Writer, Transaction]:
        log = kafkalog.open_log(tmp_path, "t-0")
        return log.writer("w"), log.transaction("job")

    writer, job = made()
    assert writer.append(b"1") == 0
    with job:
        job.append(b"2")
    del writer
    with pytest.raises(IllegalArgumentException, match="is open already"):
        kafkalog.open_log(tmp_path, "t-0")
    with pytest.warns(ResourceWarning, match=r"<Partition t-0 of .*, open> was dropped"):
        del job
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert [record.value for record in log.records(isolation="read_committed")] == [b"1", b"2"]


def test_a_log_that_is_dropped_with_its_transaction(tmp_path: Path) -> None:
    """No cycle keeps them, and the next open aborts the transaction."""

    def in_transaction() -> None:
        log = kafkalog.open_log(tmp_path, "t-0")
        job = log.transaction("job")
        job.begin()
        job.append(b"never seen")

    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="was dropped"):
            in_transaction()
    finally:
        gc.enable()
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert list(log.records(isolation="read_committed")) == []
        assert log.last_stable_offset == log.end_offset == 2


def test_a_warning_that_is_an_error_does_not_keep_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop(tmp_path)
    assert [type(error) for error in told] == [ResourceWarning]
    wait_for_dropped()
    assert not (tmp_path / ".lock").exists()


def test_a_finalizer_inside_our_own_locks_leaves_the_work_to_others(tmp_path: Path) -> None:
    """The collector may run while this thread holds any lock of ours."""
    logs = [kafkalog.open_log(tmp_path / "dropped", "t-0")]
    manual = ManualScheduler(ManualClock())

    class DropsWhileLooking(ManualClock):
        def milliseconds(self) -> int:  # asked inside `append`
            logs.clear()
            return super().milliseconds()

    with (
        pytest.warns(ResourceWarning, match="was dropped"),
        kafkalog.open_log(tmp_path / "used", "t-0", clock=DropsWhileLooking(1), scheduler=manual),
    ):
        pass
    with kafkalog.open_log(tmp_path / "dropped", "t-0") as log:
        assert log.end_offset == 0
    assert (tmp_path / "dropped" / ".kafka_cleanshutdown").exists()


def test_a_lease_that_is_dropped_is_left(tmp_path: Path) -> None:
    partition = TopicPartition("t", 0)

    def enter() -> directories.Lease:
        return directories.enter(str(tmp_path), partition, OS_FILES, SYSTEM_CLOCK, None, create=True)

    lease = enter()
    with pytest.raises(IllegalArgumentException, match="open already"):
        enter()
    del lease
    wait_for_dropped()
    assert not (tmp_path / ".lock").exists()
    assert not occupied(tmp_path)
    lease = enter()
    lease.leave(clean=True)
    lease.leave(clean=False)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_an_exit_with_an_open_log(tmp_path: Path) -> None:
    """At the interpreter's end a log just closes its files: acknowledged records are recovered."""
    script = (
        "import sys, kafkalog\n"
        "log = kafkalog.open_log(sys.argv[1], 't-0')\n"
        "log.append(b'1')\n"
        "kept = sys.modules['kept'] = [log]\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, str(tmp_path / "logs")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        check=True,
    )
    assert "Traceback" not in done.stderr
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        assert [record.value for record in log] == [b"1"]


# --- who holds it, and what is no log directory --------------------------------------------------------------


def test_the_holder_is_named(tmp_path: Path) -> None:
    script = (
        "import sys, kafkalog\n"
        "with kafkalog.open_log(sys.argv[1], 't-0'):\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(LogDirLockedException, match=rf"process {holder.pid} \(python.*\) holds it; stop it, or open"):
        kafkalog.open_log(tmp_path, "u-0")
    holder.communicate("", timeout=60)
    with kafkalog.open_log(tmp_path, "t-0"), pytest.raises(LogDirLockedException, match="this process holds it"):
        kafkalog.open_log(tmp_path, "u-0", files=UnsyncedFiles())


@pytest.mark.parametrize(
    "there", [["passwd"], ["a", "b", "c", "d", "e"], ["java-17/"], [".config/"], [".lock", "x"], ["b-0/", "x"]]
)
def test_a_foreign_folder_is_refused(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        path = tmp_path / name
        path.mkdir() if name.endswith("/") else path.touch()
    if there == ["java-17/"]:
        (tmp_path / "java-17" / "release").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IllegalArgumentException, match=r"expected a log directory .* name a new directory") as refused:
        kafkalog.open_log(tmp_path, "a-0")
    assert next(each for each in there if each != ".lock").rstrip("/") in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "there",
    [
        [], ["lost+found/"], ["meta.properties"], [".lock", "b-0/"], ["cleaner-offset-checkpoint", "x"],
        ["recovery-point-offset-checkpoint.tmp"], [".kafka_cleanshutdown"],
    ],
)  # fmt: skip
def test_a_log_directory_is_not_foreign(tmp_path: Path, there: list[str]) -> None:
    for name in there:
        path = tmp_path / name
        path.mkdir() if name.endswith("/") else path.touch()
    kafkalog.open_log(tmp_path, "a-0", take_over="meta.properties" in there).close()
    assert (tmp_path / "a-0").is_dir()
