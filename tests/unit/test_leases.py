"""Leases of partitions without an open log: others work on their files, and the directory stays whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import IllegalStateException, KafkaStorageException
from kafkalog.toolbox.verify import verify

T0 = TopicPartition("t", 0)
RECOVERY_POINTS, LOG_STARTS = "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"


def lease(root: Path, partition: TopicPartition = T0) -> directory.Lease:
    return directory.enter(str(root), partition, OS_FILES, SYSTEM_CLOCK, None, create=True)


def test_what_others_made_is_left_clean(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "elsewhere", "t-0") as log:
        log.append(b"1")
    held = lease(tmp_path / "here")
    shutil.copytree(tmp_path / "elsewhere" / "t-0", tmp_path / "here" / "t-0")
    held.set_line(RECOVERY_POINTS, 1)
    held.leave(clean=True)
    assert (tmp_path / "here" / RECOVERY_POINTS).read_text() == "0\n1\nt 0 1\n"
    assert (tmp_path / "here" / LOG_STARTS).read_text() == "0\n0\n"
    assert (tmp_path / "here" / ".kafka_cleanshutdown").exists()
    assert verify(tmp_path / "here", deep=True).ok


def test_one_that_did_not_go_well_leaves_no_marker(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"1")
    held = lease(tmp_path)
    other = lease(tmp_path, TopicPartition("u", 0))
    held.leave(clean=False)
    other.leave(clean=True)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / RECOVERY_POINTS).read_text() == "0\n1\nt 0 1\n"


def test_the_coordinators_logs_are_recovered_with_the_last_partition(tmp_path: Path) -> None:
    """Nobody opens them by name, and without them the directory would stay unclean."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    with kafkalog.open_log(live, "t-0") as log:
        with log.transaction("job") as txn:
            txn.append(b"1")
        shutil.copytree(live, copy)
        (copy / ".lock").unlink()
    kafkalog.open_log(copy, "t-0").close()
    assert (copy / ".kafka_cleanshutdown").exists()
    assert verify(copy, deep=True).ok


def test_a_lease_is_of_files_that_no_log_has_open(tmp_path: Path) -> None:
    """A log that was loaded to end a transaction counts, too; and no end comes to a log that is lent."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    with kafkalog.open_log(live, "t-0") as a, kafkalog.open_log(live, "t-1") as b:
        for log in (a, b):
            txn = log.transaction(str(log.partition))
            txn.begin()
            txn.append(b"never")
        shutil.copytree(live, copy)
        (copy / ".lock").unlink()
    with kafkalog.open_log(copy, "t-0") as log:  # it ends the one of t-1 as well
        manager = log.appends.lease.directory.manager  # type: ignore[union-attr]
        other = TopicPartition("t", 1)
        assert manager.registry.get(other) is not None
        held = lease(copy, other)
        assert manager.registry.get(other) is None
        with pytest.raises(KafkaStorageException, match="is lent"):
            manager.get_log(other)
        held.leave(clean=True)
        assert manager.get_log(other).last_stable_offset == 2


def test_an_open_that_fails_leaves_the_others_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of a signal handler, say, in the middle of a change of logs."""
    with kafkalog.open_log(tmp_path, "t-0") as log, kafkalog.open_log(tmp_path, "t-1") as other:
        close_log = LogManager.close_log

        def refuse(*_: object, **__: object) -> None:
            raise IllegalStateException("this thread is making a log just now")

        with monkeypatch.context() as patch:
            patch.setattr(LogManager, "close_log", refuse)
            patch.setattr(LogManager, "open_log", refuse)
            with pytest.raises(IllegalStateException):
                kafkalog.open_log(tmp_path, "t-2")
        assert LogManager.close_log is close_log
        assert [each.append(b"1") for each in (log, other)] == [0, 0]
    kafkalog.open_log(tmp_path, "t-2").close()
