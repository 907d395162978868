"""Leases of partitions that have no log open: others work on their files, and the directory is left whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import kafkalog
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory
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
