"""A store on a full disk: steps that free space work, and a refused step says what would free space."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import DiskFull, KafkaStorageException
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles
from tests.unit.full_kit import FullFiles

SMALL = {"internal.segment.bytes": "700", "file.delete.delay.ms": "0"}


class Case:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = FullFiles(1)
        self.full, self.files.fault = self.files.fault, None
        self.store: Store = kafkalog.open(root, config=SMALL, files=self.files, maintenance=False)
        self.topic = self.store.create_topic("t", partitions=1)
        for number in range(24):
            self.topic.append(b"%d" % number * 60)
        self.files.fault = self.full


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    case = Case(tmp_path / "store")
    yield case
    case.files.fault = None
    case.store.close()
    with kafkalog.open(tmp_path / "store", files=UnsyncedFiles()) as store:
        assert list(store.topic("t").records())[-1].offset == 23


def test_records_and_segments_go(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    partition = case.topic.partition(0)
    with caplog.at_level(logging.WARNING, "kafkalog"):
        assert case.topic.delete_records(20, 0) == 20
        assert partition.log_start_offset == 20
        assert "log-start-offset-checkpoint" in caplog.text
        assert "will be written later" in caplog.text
        assert partition.delete_old_segments() > 0
    assert [record.offset for record in partition] == list(range(20, 24))
    case.files.fault = None
    case.store.manager.checkpoint_now(str(case.root))
    assert "t 0 20" in (case.root / "log-start-offset-checkpoint").read_text()


def test_what_needs_room_says_what_needs_none(case: Case) -> None:
    before = case.store.describe_topic("t").overrides
    with pytest.raises(
        DiskFull, match=r"settings of 't' are unchanged: .*delete_old_segments\(\) need hardly any"
    ) as info:
        case.store.alter_topic("t", {"retention.bytes": "700"})
    assert f"kafkalog retain {case.root} --target-free BYTES --yes" in str(info.value)
    assert case.store.describe_topic("t").overrides == before
    with pytest.raises(DiskFull, match="'t' is not deleted: a small file is written first"):
        case.store.delete_topic("t")
    assert case.store.topics() == ["t"]
    assert len(list(case.topic.partition(0))) == 24


def test_a_failed_disk_is_still_told(tmp_path: Path) -> None:
    """Only a shortage passes."""
    manager = LogManager([str(tmp_path)])
    manager.startup()
    manager.failure_channel.maybe_add_offline_log_dir(str(tmp_path), "it failed", OSError(5, "EIO"))
    with pytest.raises(KafkaStorageException, match=r"the checkpoints of .* were not written") as info:
        manager.checkpoint_or_later(str(tmp_path))
    assert not isinstance(info.value, DiskFull)
    manager.shutdown()
