"""Faults that the crash, kill and disk fault tests have found, each as a small test."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.errors import KafkaStorageException
from tests.crash.partition import NOW_MS, PARTITION, SMALL, Driver, Reopened, content_of
from tests.crash.workloads import overflow
from tests.disk_model import Op
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles, UnsyncedFiles
from tests.unit.log_kit import Kit, bases, batch, name


def durable(recording: RecordingFiles, into: Path, count: int | None = None) -> str:
    """Writes the state that power loss leaves into a directory."""
    recording.replay(count).materialise_durable(str(into))
    return str(into)


def killed(recording: RecordingFiles, into: Path, count: int) -> str:
    recording.replay(count).materialise_live(str(into))
    return str(into)


def find(recording: RecordingFiles, kind: str, path_end: str, *, start: int = 0) -> int:
    """Number of the first such step."""
    for number, op in enumerate(recording.ops[start:], start):
        if op.kind == kind and op.path.endswith(path_end):
            return number
    raise AssertionError(f"no {kind} of {path_end}")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(str(tmp_path / "disk"))


def ops_of(driver: Driver, step: int = -1) -> list[Op]:
    made = driver.steps[step]
    return [op for op in driver.recording.ops[made.begin : made.end] if op.kind != "mark"]


def test_the_folder_of_a_new_partition_survives_power_loss(driver: Driver, tmp_path: Path) -> None:
    driver.lead(driver.batch())
    driver.flush()
    assert Reopened(durable(driver.recording, tmp_path / "lost")).content == driver.content


def test_a_folder_that_a_killed_process_made_is_synced_by_the_next(tmp_path: Path) -> None:
    first = Driver(str(tmp_path / "disk"))
    at = find(first.recording, "mkdir", "t-0") + 1
    place = Path(killed(first.recording, tmp_path / "again", at))
    second = RecordingFiles(str(place), UnsyncedFiles())
    Kit(place, second).open(clean=False)
    assert any(op.kind == "sync_dir" and op.path == "" for op in second.ops)


def test_a_flush_syncs_names_below_a_recovery_point_that_the_log_start_lifted(driver: Driver, tmp_path: Path) -> None:
    for _ in range(8):
        driver.lead(driver.batch(2, size=60))
    base = driver.log.log_segments()[-1].base_offset
    driver.raise_log_start(base + 1)
    driver.flush()
    found = Reopened(durable(driver.recording, tmp_path / "lost")).content
    assert found[-1] == driver.content[-1]


def test_a_truncation_goes_from_the_end(driver: Driver) -> None:
    for _ in range(16):
        driver.lead(driver.batch(2, size=60))
    driver.truncate_to(3)
    renamed = [op.path for op in ops_of(driver, -2) if op.kind == "rename" and op.path.endswith(".log")]
    assert len(renamed) > 2
    assert renamed == sorted(renamed, reverse=True)


def test_a_truncation_is_durable_before_new_records_come(driver: Driver, tmp_path: Path) -> None:
    for _ in range(12):
        driver.lead(driver.batch(2, size=60))
    driver.flush()
    driver.checkpoint()
    driver.truncate_to(9)
    assert Reopened(durable(driver.recording, tmp_path / "lost")).content == driver.content


def test_a_restart_retires_the_old_segments_before_the_new_one(driver: Driver, tmp_path: Path) -> None:
    for _ in range(3):
        driver.lead(driver.batch(1))
    driver.flush()
    driver.raise_log_start(2)
    begin = len(driver.recording.ops)
    driver.truncate_fully(3)
    created = find(driver.recording, "create", name(3, ".log"), start=begin)
    # After any power loss the old segment does not exist next to the new one.
    disk = driver.recording.replay(created)
    assert not disk.pending_names
    disk.materialise_durable(str(tmp_path / "lost"))
    Reopened(str(tmp_path / "lost")).check()


@pytest.mark.parametrize("preallocate", ["true", "false"])
def test_a_segment_that_rolls_when_all_is_flushed_is_synced_once_more(tmp_path: Path, preallocate: str) -> None:
    driver = Driver(str(tmp_path / "disk"), {"preallocate": preallocate})
    for _ in range(4):
        driver.lead(driver.batch(2, size=50))
    driver.flush()
    driver.checkpoint()
    driver.roll()
    driver.lead(driver.batch())
    driver.flush()
    driver.checkpoint()
    lost = Reopened(durable(driver.recording, tmp_path / "lost"), driver.overrides)
    assert lost.content == driver.content
    lost.check()


def test_a_roll_during_a_flush_keeps_the_recovery_point_back(tmp_path: Path) -> None:
    files = UnsyncedFiles()
    kit = Kit(tmp_path, files)
    log = kit.open({"internal.segment.bytes": "100000"})
    log.append_as_leader(batch(), 0)
    active = log.active_segment
    flush = type(active).flush

    def rolls_meanwhile(segment: object) -> None:
        flush(active)
        if len(log.log_segments()) == 1:
            log.roll()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(active), "flush", rolls_meanwhile)
        log.flush(False)
    assert log.recovery_point == 0
    kit.scheduler.tick()
    assert log.recovery_point == 2
    kit.crash(log)


def test_an_interrupted_rebuild_of_an_index_is_begun_again(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.filled(12)
    log.flush(True)
    recovery_point = log.recovery_point
    kit.crash(log)
    whole = kit.path(name(0, ".index")).read_bytes()
    kit.path(name(0, ".index")).unlink()
    recording = RecordingFiles(str(tmp_path), UnsyncedFiles())
    kit.files = recording
    kit.crash(kit.open(clean=False, recovery_point=recovery_point))
    for count in range(len(recording.ops)):
        place = tmp_path.parent / f"{tmp_path.name}-{count}"
        killed(recording, place, count)
        again = Kit(place, UnsyncedFiles())
        again.crash(again.open(clean=False, recovery_point=recovery_point))
        assert again.path(name(0, ".index")).read_bytes() == whole
        assert not [entry for entry in again.names if ".cleaned" in entry]


def test_zeros_before_a_segment_without_index_do_not_keep_the_log_closed(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.crash(kit.filled(8))
    with kit.path(name(0, ".log")).open("r+b") as file:
        file.truncate(200)
        file.truncate(400)
    kit.path(name(8, ".index")).unlink()
    log = kit.open(clean=False)
    assert (bases(log), log.log_end_offset) == ([0], 2)
    kit.crash(log)


@pytest.mark.parametrize("at", [0, 8])
def test_a_batch_torn_from_its_base_offset_is_cut(tmp_path: Path, at: int) -> None:
    kit = Kit(tmp_path)
    kit.crash(kit.filled(8))
    path = kit.path(name(8, ".log"))
    data = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second : second + 8] = bytes(8)  # the sector with it was lost, the rest of the batch came through
    data += bytes(at)
    path.write_bytes(data)
    log = kit.open(clean=False)
    assert log.log_end_offset == 10
    kit.crash(log)
    assert kit.open(clean=False).log_end_offset == 10


def test_recovery_retires_what_follows_damage_before_it_cuts(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.crash(kit.filled(12))
    path = kit.path(name(8, ".log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    recording = RecordingFiles(str(tmp_path), UnsyncedFiles())
    kit.files = recording
    log = kit.open(clean=False)
    assert (bases(log), log.log_end_offset) == ([0, 8], 10)
    kit.crash(log)
    for count in range(len(recording.ops)):
        again = Kit(tmp_path.parent / f"{tmp_path.name}-{count}", UnsyncedFiles())
        killed(recording, again.root, count)
        log = again.open(clean=False)
        assert (bases(log), log.log_end_offset) == ([0, 8], 10), count
        again.crash(log)


def test_what_recovery_found_is_durable_before_it_is_served(driver: Driver, tmp_path: Path) -> None:
    for _ in range(6):
        driver.lead(driver.batch(2, size=60))
    driver.reopen(die=True)
    syncs = [op for op in ops_of(driver) if op.kind == "sync_dir" and op.path == "t-0"]
    assert len(syncs) == 1
    assert Reopened(durable(driver.recording, tmp_path / "lost")).content == driver.content


def test_the_snapshot_of_a_clean_close_has_its_name(driver: Driver, tmp_path: Path) -> None:
    driver.lead(driver.batch(producer=(7, 0)))
    driver.close()
    place = durable(driver.recording, tmp_path / "lost")
    (Path(place) / ".kafka_cleanshutdown").write_text("{}")
    assert 7 in Reopened(place).producers


@pytest.mark.parametrize("fault_kind", ["rename", "sync_dir"])
def test_a_split_that_fails_half_way_loses_nothing(tmp_path: Path, fault_kind: str) -> None:
    whole = overflow(str(tmp_path / "whole"))
    expected = whole.content[:-1]
    whole.host.die()
    renames = sum(op.kind == fault_kind for op in whole.recording.ops)
    for at in range(renames):
        root = tmp_path / str(at)
        Driver.wrap = staticmethod(
            lambda files, at=at: FaultyFiles(files, Fault(at, errno.EIO, sticky=False, kinds={fault_kind}))
        )
        try:
            overflow(str(root)).host.die()
        except (KafkaStorageException, OSError):
            assert Driver.latest is not None
            Driver.latest.host.die()
        finally:
            Driver.wrap = staticmethod(lambda files: files)
        found = Reopened(str(root / "disk"), {"internal.segment.bytes": "4000"}).content
        assert found[: len(expected)] == expected, at


def test_a_recovery_point_above_the_log_is_corrected_at_once(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, PARTITION, config=SMALL) as log:
        log.append_many([b"v" * 50] * 4)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    segment = tmp_path / "t-0" / name(0, ".log")
    os.truncate(segment, segment.stat().st_size - 1)
    checkpoint = OffsetCheckpointFile(str(tmp_path / "recovery-point-offset-checkpoint"))
    assert checkpoint.read() == {PARTITION: 4}
    with kafkalog.open_log(tmp_path, PARTITION, config=SMALL):
        assert checkpoint.read() == {PARTITION: 0}


def test_a_log_start_is_on_disk_before_the_recovery_point_that_it_lifts(tmp_path: Path) -> None:
    recording = RecordingFiles(str(tmp_path), UnsyncedFiles())
    clock = ManualClock(NOW_MS)
    with kafkalog.open_log(
        tmp_path, PARTITION, config=SMALL, files=recording, clock=clock, scheduler=ManualScheduler(clock)
    ) as log:
        log.append_many([b"v" * 50] * 4)
        begin = len(recording.ops)
        log.delete_records(3)
        start = find(recording, "rename", "log-start-offset-checkpoint.tmp", start=begin)
        assert start < find(recording, "rename", "recovery-point-offset-checkpoint.tmp", start=begin)


def test_the_high_watermark_never_goes_back_between_threads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with kafkalog.open_log(tmp_path, PARTITION) as log:
        threads = [threading.Thread(target=lambda: [log.append(b"v") for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads):
            mark = log.high_watermark
            assert mark >= seen
            seen = mark
        for thread in threads:
            thread.join()
        assert log.high_watermark == log.end_offset == 800
    assert "goes back" not in caplog.text


def test_a_disk_error_names_its_file(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("left out: no /dev/full here")
    # `open` refuses devices: the descriptor is made by hand.
    with OsFile("/dev/full", os.open("/dev/full", os.O_RDWR)) as file:
        for write in (lambda: file.pwrite(b"x", 0), lambda: file.pwritev([b"x", b"y"], 0)):
            with pytest.raises(OSError, match="/dev/full") as caught:
                write()
            assert caught.value.errno == errno.ENOSPC


def test_content_of_is_the_oracles_own(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.filled(3)
    assert [(found.first, found.last) for found in content_of(log.log_segments())] == [(0, 1), (2, 3), (4, 5)]
    kit.crash(log)


def test_a_rolled_segment_is_durable_before_the_next_is_written_to(tmp_path: Path) -> None:
    """A power loss took the end of a transaction's first segment and left the commit in the second one."""
    recording = RecordingFiles(str(tmp_path / "disk"), UnsyncedFiles())
    clock = ManualClock(NOW_MS)
    log = kafkalog.open_log(
        tmp_path / "disk" / "logs", "t-0", durability="fsync", files=recording, config=SMALL, clock=clock,
        scheduler=ManualScheduler(clock),
    )  # fmt: skip
    with log, log.transaction("x") as transaction:
        for number in range(20):
            transaction.append(b"%d" % number * 100)
    written: set[str] = set()
    segments: set[str] = set()
    for op in recording.ops:
        if not op.path.endswith(".log"):
            continue
        if op.kind == "write":
            assert written <= {op.path}, f"{written} were not synced"
            written.add(op.path)
            segments.add(op.path)
        elif op.kind == "sync":
            written.discard(op.path)
    assert len(segments) >= 3
