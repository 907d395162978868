"""A reader of committed records in the middle of a stretch whose file compaction has replaced.

The new file has neither the records of aborted transactions nor any information about them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.passes import compact
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import UnknownTopicOrPartitionException
from tests.unit.store_kit import log_of

COMPACTED = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"
}  # fmt: skip
BY_HAND = ManagerSettings(cleaner=CleanerConfig(backoff_ms=1 << 40))  # the threads check once, when nothing exists
COUNT = 30


class Scene:
    """Two disks, on which committed records and aborted ones take turns."""

    def __init__(self, root: Path) -> None:
        self.dirs = [root / "disk0", root / "disk1"]
        self.store = kafkalog.open(self.dirs, settings=BY_HAND)
        self.topic = self.store.create_topic("t", config=COMPACTED)
        for number in range(COUNT):
            self.topic.append(b"kept" + b"." * 300, key=b"%d" % number)
            with contextlib.suppress(ZeroDivisionError), self.store.transaction("a") as txn:
                txn.append("t", b"aborted" + b"." * 300, key=b"aborted")
                raise ZeroDivisionError
        self.roll()

    @property
    def log(self) -> UnifiedLog:
        log: UnifiedLog = log_of(self.store, "t-0")
        return log

    def roll(self) -> None:
        """Lets a pass compact all records so far, and remove the markers of the last pass."""
        time.sleep(0.01)
        self.log.roll()
        self.topic.append(b"last", key=b"last")

    def compact(self) -> None:
        """The first pass takes the records of aborted transactions, the second one what is said about them."""
        assert self.store.manager.cleaner is not None
        for _ in range(2):
            compact(self.store.manager.cleaner.manager, self.log, CleanerConfig())
            self.roll()
        assert not [txn for each in self.log.log_segments() for txn in each.txn_index.all_aborted_txns()]

    def move(self) -> None:
        [other] = [str(each) for each in self.dirs if str(each) != self.log.parent_dir]
        self.store.manager.move("t-0", other)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    with found.store:
        yield found


@pytest.mark.parametrize("meanwhile", ["compacted", "compacted and moved"])
@pytest.mark.parametrize("who", ["writer", "looker-on"])
def test_aborted_records_stay_unseen(scene: Scene, who: str, meanwhile: str) -> None:
    with contextlib.ExitStack() as stack:
        store = scene.store
        if who == "looker-on":
            store = stack.enter_context(kafkalog.open(scene.dirs, read_only=True))
        with store.reader(topics=["t"], isolation="read_committed", chunk_bytes=2000) as reader:
            seen = [record.key for record in reader.poll(2)]
            assert len(seen) == 2
            scene.compact()
            if "moved" in meanwhile:
                scene.move()
            with contextlib.suppress(UnknownTopicOrPartitionException):  # the former place; the reader finds the new
                reader._turns.readers[scene.log.topic_partition].source.recheck()
            while found := reader.poll(timeout_ms=10):
                seen += [record.key for record in found]
    assert b"aborted" not in seen
    assert seen[:COUNT] == [b"%d" % number for number in range(COUNT)]
