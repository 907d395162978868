"""PartitionContext: the guard, renaming, and the sink that gets refused records."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import InvalidRecordException, KafkaException, KafkaStorageException, RecordValidationException
from tests.unit.log_kit import Kit, batch


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


class Heard:
    """MetricsRecorder: the names of the events."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


def test_a_guard_takes_the_directory_offline_once(kit: Kit) -> None:
    context = kit.context()
    with context.guard("doing nothing"):
        pass
    with pytest.raises(ValueError), context.guard("something else"):
        raise ValueError
    assert not kit.channel.any_offline
    first = OSError(errno.EIO, "no")
    text = f"Error while doing it for t-0 in dir {kit.root}"
    with (
        pytest.raises(KafkaStorageException, match=text) as raised,
        context.guard("looking"),
        context.guard("doing it"),
    ):
        raise first
    assert raised.value.__cause__ is first
    assert kit.channel.has_offline_log_dir(str(kit.root))
    assert kit.channel.cause(str(kit.root)) is first
    with pytest.raises(KafkaStorageException, match="already offline") as again, context.guard("doing more"):
        raise AssertionError("it is not begun")
    assert again.value.__cause__ is first
    for create in (lambda: UnifiedLog.create(context, 0, 0, True), lambda: context.check_online()):
        with pytest.raises(KafkaStorageException, match="already offline"):
            create()
    assert not Path(kit.dir).exists()


def test_a_folder_that_is_no_partitions(kit: Kit) -> None:
    kit.dir = str(kit.root / "nothing")
    with pytest.raises(KafkaException):
        kit.context()


def test_renaming_may_be_done_twice(kit: Kit) -> None:
    log = kit.open()
    context = log.context
    assert context.rename_dir("t-0.of-delete")
    assert not context.rename_dir("t-0.of-delete")
    assert (log.dir, log.name, log.parent_dir) == (str(kit.root / "t-0.of-delete"), "t-0.of-delete", str(kit.root))
    assert sorted(path.name for path in kit.root.iterdir()) == ["t-0.of-delete"]


def test_what_is_refused_is_told(kit: Kit) -> None:
    context = kit.context({"cleanup.policy": "compact"})
    context.topic_metrics = heard = Heard()  # type: ignore[assignment]
    log = UnifiedLog.create(context, 0, 0, True)
    log.append_as_leader(batch(), 0)
    assert heard.told == []
    builder = MemoryRecordsBuilder()
    builder.append(0, None, b"without a key")
    with pytest.raises(RecordValidationException):
        log.append_as_leader(builder.build(), 0)
    assert heard.told == ["record_no_key_compacted_topic"]
    marker = end_txn_marker_batch(0, 0, 0, 7, 0, EndTransactionMarker(ControlRecordType.ABORT, 0))
    with pytest.raises(InvalidRecordException):
        log.append_as_leader(marker, 0)
    assert heard.told[1:] == ["record_invalid_offset"]


def test_no_batch_is_no_batch(kit: Kit) -> None:
    log = kit.open()
    with pytest.raises(TypeError):
        log.commit_ordinary(None, 0, object, None)  # type: ignore[arg-type]
