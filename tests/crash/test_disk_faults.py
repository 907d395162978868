"""Failing disks: every operation of every workload fails with EIO or ENOSPC, once or forever.

The caller gets KafkaStorageException with the cause. The directory goes offline and stays so, and other directories
continue. After a restart the disk holds what memory held: an append that was refused for lack of space does not exist.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, Files, UnsyncedError
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.errors import KafkalogError, KafkaStorageException
from tests.crash import harness
from tests.crash.partition import SMALL, Driver, Oracle, Reopened, content_of
from tests.crash.workloads import WORKLOADS, Workload
from tests.file_doubles import Fault, FaultyFiles
from tests.sampling import LONG, sampled
from tests.unit.log_kit import Kit, batch

RUNS = None if LONG else 6  # faults of each kind and workload
WITHOUT_SPACE = errno.ENOSPC


def run(workload: Workload, root: Path, fault: Fault | None) -> tuple[Driver, FaultyFiles, Exception | None]:
    made: list[FaultyFiles] = []

    def wrap(files: Files) -> Files:
        made.append(FaultyFiles(files, fault))
        return made[-1]

    Driver.wrap = staticmethod(wrap)
    raised = None
    try:
        driver = workload(str(root))
    except Exception as error:
        if fault is None:
            raise
        raised = error
        assert Driver.latest is not None
        driver = Driver.latest
    finally:
        Driver.wrap = staticmethod(lambda files: files)
    return driver, made[-1], raised


def check_fault(driver: Driver, files: FaultyFiles, raised: Exception | None, error: int) -> None:
    host = driver.host
    if raised is None:
        # ENOSPC concerns only what needs space; a task's fault shows with the next operation.
        assert not files.failed or host.scheduler.errors or error == WITHOUT_SPACE, files.failed
    elif not isinstance(raised, KafkaStorageException):
        # A checkpoint or the marker: the file is next to the partition, and a manager writes it.
        assert type(raised) in (OSError, UnsyncedError), repr(raised)
        assert host.root in (files.failed[0].path, os.path.dirname(files.failed[0].path)), files.failed
    else:
        causes = [raised, raised.__cause__, *(failed for _, failed in host.scheduler.errors)]
        assert any(isinstance(cause.__cause__, OSError) for cause in causes if cause is not None), repr(raised)
        assert host.channel.has_offline_log_dir(host.root)
        if host.log is not None and not host.log.local_log.is_closed:
            calls = (lambda: driver.log.append_as_leader(batch(), 0), lambda: driver.log.flush(True),
                     lambda: driver.log.read(driver.log.log_start_offset, 10), lambda: driver.log.roll())  # fmt: skip
            for call in calls:
                with pytest.raises(KafkaStorageException):  # an append may meet its topic id's file first
                    call()
    host.die()
    state = harness.CrashState("kill", len(driver.recording.ops) + 1, 0, None, False, driver.recording.replay(0))
    oracle = Oracle(driver)
    allowed = oracle.allowed(state)
    running = driver.steps[-1] if driver.steps and driver.steps[-1].end < 0 else None
    refused = raised is not None and running is not None and running.kind == "append"
    if refused and error == WITHOUT_SPACE and len(files.failed) >= 1 and "write" in {f.kind for f in files.failed}:
        assert running is not None
        allowed.span = allowed.span[: len(running.before)]  # rolled back: the record does not exist
    again = Reopened(host.root, driver.overrides)
    allowed.check(again.content, again.bases)
    again.check()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_operation_may_fail(workload: Workload, error: int) -> None:
    with harness.fast_dir() as root:
        driver, files, _ = run(workload, root, None)
        driver.host.die()
        total = files.count
    runs = failures = 0
    for sticky in (True, False):
        for at in sampled(range(total), RUNS):
            with harness.fast_dir() as root:
                fault = Fault(at, error, sticky)
                driver, files, raised = run(workload, root, fault)
                try:
                    check_fault(driver, files, raised, error)
                except BaseException as failure:
                    failure.add_note(f"{fault}, refused {files.failed[:2]}, raised {raised!r}")
                    raise
                runs += 1
                failures += raised is not None
    assert failures
    print(f"{workload.__name__}: {runs} faults of {total} operations, {failures} seen by the caller")


def test_reads_that_fail_take_the_directory_offline(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    kit = Kit(tmp_path, files)
    log = kit.filled(10)
    files.fault = Fault(files.count, kinds={"pread"})
    with pytest.raises(KafkaStorageException) as caught:
        log.read(3, 1000)
    assert isinstance(caught.value.__cause__, OSError)
    files.fault = None
    with pytest.raises(KafkaStorageException, match="offline"):
        log.append_as_leader(batch(), 0)


@pytest.mark.parametrize("kind", ["open", "pread", "list_dir", "read_bytes"])
def test_an_open_that_cannot_read_says_so(tmp_path: Path, kind: str) -> None:
    Kit(tmp_path).crash(Kit(tmp_path).filled(10))
    files = FaultyFiles(OS_FILES)
    kit = Kit(tmp_path, files)
    kit.crash(kit.open(clean=False))
    for at in range(12):
        kit = Kit(tmp_path, FaultyFiles(OS_FILES, Fault(at, kinds={kind})))
        refused: KafkaStorageException | None = None
        try:
            kit.crash(kit.open(clean=False))
        except KafkaStorageException as error:
            refused = error
        assert (refused is not None) == kit.channel.has_offline_log_dir(str(tmp_path))
        assert refused is None or isinstance(refused.__cause__, OSError)
    assert Kit(tmp_path).open(clean=False).log_end_offset == 20


# --- a disk that is really full ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("left out: a full disk needs root for its mount")
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("left out: this machine does not allow mounting a small tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=True)


def test_a_full_disk(small_disk: Path) -> None:
    overrides = {
        **SMALL,
        "internal.segment.bytes": "20000",
        "max.message.bytes": "20000",
        "segment.index.bytes": "4096",
    }
    kit = Kit(small_disk)
    log = kit.open(overrides)
    acknowledged = []
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(1 << 14))

    def fill() -> None:
        while True:
            acknowledged.append(log.append_as_leader(batch(value=b"v" * 700), 0).last_offset)

    with pytest.raises(KafkaStorageException) as caught:
        fill()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert len(acknowledged) > 20
    assert log.log_end_offset == acknowledged[-1] + 1
    with pytest.raises(KafkaStorageException, match="offline"):
        log.append_as_leader(batch(), 0)
    kit.crash(log)

    # Recovery writes indexes and snapshots, as Kafka's does.  Where there is no room for them the error names the
    # file, nothing is lost, and a little space is enough.
    for _ in range(2):
        kit = Kit(small_disk)
        with pytest.raises(KafkaStorageException) as caught:
            kit.open(overrides, clean=False)
        cause = caught.value.__cause__
        assert isinstance(cause, OSError)
        assert cause.errno == errno.ENOSPC
        assert cause.filename.startswith(kit.dir)
        assert kit.channel.has_offline_log_dir(str(small_disk))
    reserve.unlink()
    kit = Kit(small_disk)
    log = kit.open(overrides, clean=False)
    assert [one.last for one in content_of(log.log_segments())] == acknowledged
    kit.crash(log)


def test_a_marker_without_space_for_its_index_entry_is_taken_back(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    driver_files = files
    kit = Kit(tmp_path, driver_files)
    log = kit.open()
    log.append_as_leader(batch(producer_id=1, producer_epoch=0, sequence=0, transactional=True), 0)
    from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch

    marker = end_txn_marker_batch(0, 1, -1, 1, 0, EndTransactionMarker(ControlRecordType.ABORT, 0))
    files.fault = Fault(files.count, errno.ENOSPC, paths=lambda path: path.endswith(".txnindex"))
    with pytest.raises(KafkaStorageException):
        log.append_as_leader(marker, 0, AppendOrigin.COORDINATOR, transaction_version=0)
    assert log.log_end_offset == 2
    kit.crash(log)
    kit = Kit(tmp_path)
    log = kit.open(clean=False)
    assert log.log_end_offset == 2
    assert log.has_ongoing_transaction(1, 0)
    kit.crash(log)


def test_errors_of_ours_are_no_disk_errors(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.open()
    with pytest.raises(KafkalogError):
        log.append_as_leader(batch()[:-1] + b"x", 0)
    assert not kit.channel.has_offline_log_dir(str(tmp_path))
    kit.crash(log)
