"""Operations that free space work on a full disk: deleting the oldest segments makes room for the log's opening."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import LogConfig
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptRecordException, DiskFull, KafkaStorageException
from kafkalog.toolbox import delete_records, retain
from kafkalog.toolbox.segment_facts import SegmentFacts, look
from kafkalog.toolbox.verify import verify
from kafkalog.toolbox.words import counted
from tests.file_doubles import Fault, UnsyncedFiles
from tests.unit.cli_kit import Run, run
from tests.unit.full_kit import FullFiles

__all__ = ["run"]

T0 = TopicPartition("t", 0)
SMALL = {"internal.segment.bytes": "700"}
CONFIG = LogConfig.from_props(None, SMALL)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """t-0 with several segments, not closed cleanly."""
    place = str(tmp_path / "logs")
    with kafkalog.open_log(place, T0, config=SMALL, files=UnsyncedFiles()) as log:
        for number in range(24):
            log.append(b"%d" % number * 60)
    os.unlink(os.path.join(place, names.CLEAN_SHUTDOWN_FILE))
    OffsetCheckpointFile(os.path.join(place, names.RECOVERY_POINT_CHECKPOINT_FILE)).write({})
    return place


def bases(root: str) -> list[int]:
    return names.offsets_in(os.listdir(os.path.join(root, "t-0")))


def plan_of(root: str, count: int) -> tuple[retain.Plan, TopicSettings]:
    """A plan by which the first `count` segments go."""
    settings = TopicSettings(root, SMALL | {"retention.ms": "-1"})
    facts = look(root, T0)
    going = [retain.Going(segment, None, segment.file_bytes) for segment in facts.segments[:count]]
    return retain.Plan(root, [retain.Choice(T0, 0, going[-1].segment.end_offset, going)]), settings


@pytest.mark.parametrize("after", [1, 2])
def test_retain_frees_room_on_a_full_disk(root: str, after: int) -> None:
    before, freed = bases(root), list[int]()
    plan, settings = plan_of(root, 3)
    files = FullFiles(after)
    told: list[retain.Choice] = []
    gained = retain.carry_out(
        plan, settings, files=files, done=told.append, freed=lambda _, segment: freed.append(segment.base_offset)
    )
    assert files.failed
    assert freed == before[:after]
    assert gained == plan.allocated
    assert told == plan.choices
    assert bases(root) == before[3:]
    assert verify(root, deep=True).ok
    with kafkalog.open_log(root, T0, config=SMALL, create=False) as log:
        assert log.log_start_offset == before[3]
        assert [record.offset for record in log] == list(range(before[3], 24))


def test_a_rename_that_needs_room(root: str) -> None:
    """The log opens, but a directory has no space for longer names."""
    before, freed = bases(root), list[int]()
    plan, settings = plan_of(root, 3)
    fault = Fault(1, errno.ENOSPC, kinds=["rename"], paths=lambda path: path.endswith(names.LOG_FILE_SUFFIX))
    files = FullFiles(1, fault=fault)
    retain.carry_out(plan, settings, files=files, freed=lambda _, segment: freed.append(segment.base_offset))
    assert files.failed
    assert freed in ([], [before[1]])  # the first one, which was renamed, may be enough
    assert bases(root) == before[3:]
    assert verify(root, deep=True).ok


def test_delete_records_frees_room_on_a_full_disk(root: str) -> None:
    before, freed = bases(root), list[SegmentFacts]()
    plan = delete_records.plan_deletion(root, T0, CONFIG, offset=before[2] + 1)
    start = delete_records.delete_records(
        root, plan, CONFIG, files=FullFiles(1), freed=lambda _, segment: freed.append(segment)
    )
    assert start == before[2] + 1
    assert freed == plan.segments[:1]
    assert bases(root) == before[1:]
    with kafkalog.open_log(root, T0, config=SMALL, create=False) as log:
        assert [record.offset for record in log] == list(range(start, 24))


def test_no_segment_goes_that_is_not_to_go(root: str) -> None:
    before = bases(root)
    plan = delete_records.plan_deletion(root, T0, CONFIG, offset=1)
    with pytest.raises(DiskFull, match=r"no whole segment of it is to be deleted; kafkalog retain .* --target-free"):
        delete_records.delete_records(root, plan, CONFIG, files=FullFiles(1))
    retain_plan, settings = plan_of(root, 2)
    with pytest.raises(DiskFull, match="no other whole segment of it is to be deleted"):
        retain.carry_out(retain_plan, settings, files=FullFiles(9))
    assert bases(root) == before[2:]


def test_nothing_goes_of_a_damaged_log(root: str) -> None:
    before = bases(root)
    path = names.log_file(os.path.join(root, "t-0"), before[1])
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 20)
    plan, settings = plan_of(root, 1)
    with pytest.raises(CorruptRecordException):
        retain.carry_out(plan, settings, files=FullFiles(1, lambda path: path.startswith(root)))
    assert bases(root) == before


def test_nothing_goes_that_was_changed_since_it_was_planned(root: str) -> None:
    plan, settings = plan_of(root, 1)
    gone = plan.choices[0].going[0].segment
    for path in names.segment_files(os.path.dirname(gone.path), gone.base_offset)[:3]:
        os.unlink(path)
    before = bases(root)
    with pytest.raises(DiskFull):
        retain.carry_out(plan, settings, files=FullFiles(1))
    assert bases(root) == before


def test_a_late_flush_without_room_is_done_at_the_close(root: str) -> None:
    """The log opens, because that writes nothing; its epochs cannot be written until the segments are deleted."""
    with kafkalog.open_log(root, T0, config=SMALL) as log:
        log.append(b"closed cleanly")
    plan, settings = plan_of(root, 2)
    files = FullFiles(1, lambda path: names.LEADER_EPOCH_CHECKPOINT_FILE in path)
    before = bases(root)
    assert retain.carry_out(plan, settings, files=files) == plan.allocated
    assert [os.path.basename(each.path).removesuffix(".tmp") for each in files.failed] == ["leader-epoch-checkpoint"]
    assert bases(root) == before[2:]
    assert verify(root, deep=True).ok


def test_what_went_is_told_when_the_end_fails(root: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise KafkaStorageException("cannot unlink")

    monkeypatch.setattr(retain, "unlink_what_waits", fails)
    before = bases(root)
    result = run("retain", root, "-X", "retention.bytes=700", "-X", "internal.segment.bytes=700", "--yes")
    assert result.code == 3
    gone = [base for base in before if base not in bases(root)]
    assert gone
    for base in gone:
        assert f"{base:020}.log" in result.out
    assert f"t-0: {len(gone)} segments" in result.out
    assert f"not complete: deleted {counted(len(gone), 'segment')} of 1 partition" in result.err
