"""Backups next to a broker whose clients keep their epoch from one transaction to the next, in every order of events.

A broker's directory is written byte by byte, with a manual clock.  Each case lists the events before the backup's read,
between the read and the moment T, and after T.  The backup is restored and opened: a transaction is in all partitions
or in none, and no cursor is beyond its partition's end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.java_hash import string_hash
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format import group_records
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, encode_transaction
from kafkalog.engine.format.transaction_records import TransactionState as S
from kafkalog.toolbox import backup as backup_module
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.restore import restore
from tests.unit.store_kit import cursor

START_MS = 1_700_000_000_000
PRODUCER, EPOCH, ID = 4000, 5, "app"
P0, P1, CURSORS = "p0-0", "p1-0", "__consumer_offsets-0"
BOTH = (P0, P1)
LOG = "00000000000000000000.log"


class BrokersDirectory:
    """The directory of a broker and of one such client."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = START_MS
        self.began = START_MS
        self.parts: Sequence[str] = ()
        self.ends: dict[str, int] = {}
        self._sequences: dict[str, int] = {}
        self._state = f"__transaction_state-{abs(string_hash(ID)) % 50}"
        for name in (*BOTH, CURSORS, self._state):
            self.make(name)
        (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abcdefghijklmnopqrstuv\n")

    def make(self, name: str) -> None:
        (self.root / name).mkdir(parents=True)
        (self.root / name / LOG).touch()
        self.ends[name] = 0

    def _append(self, name: str, data: bytes) -> None:
        with (self.root / name / LOG).open("ab") as file:
            file.write(data)
        self.ends[name] += 1

    def write(
        self, name: str, value: bytes, key: bytes = b"k", *, time_ms: int | None = None, txn: bool = True
    ) -> None:
        given: dict[str, Any] = {}
        if txn:
            number = self._sequences.get(name, 0)
            self._sequences[name] = number + 1
            given = {
                "producer_id": PRODUCER,
                "producer_epoch": EPOCH,
                "base_sequence": number,
                "is_transactional": True,
            }
        batch = MemoryRecordsBuilder(base_offset=self.ends[name], partition_leader_epoch=0, **given)
        batch.append(self.now if time_ms is None else time_ms, key, value)
        self._append(name, bytes(batch.build()))

    def plain(self, name: str, value: bytes = b"plain") -> None:
        self.write(name, value, txn=False)

    def state(self, state: S) -> None:
        topics = {} if state in (S.EMPTY, S.COMPLETE_COMMIT) else {name[:-2]: (0,) for name in self.parts}
        metadata = TransactionMetadata(PRODUCER, EPOCH, 60_000, state, topics, self.now, self.began)
        key, value = encode_transaction(ID, metadata, version=0)
        batch = MemoryRecordsBuilder(base_offset=self.ends[self._state], partition_leader_epoch=0)
        batch.append(self.now, key, value)
        self._append(self._state, bytes(batch.build()))

    def begin(self, *parts: str) -> None:
        self.now += 10
        self.began, self.parts = self.now, parts
        self.state(S.ONGOING)

    def prepare(self, state: S = S.PREPARE_COMMIT) -> None:
        self.now += 10
        self.state(state)

    def mark(self, name: str, kind: ControlRecordType = ControlRecordType.COMMIT) -> None:
        marker = EndTransactionMarker(kind, 0)
        self._append(name, bytes(end_txn_marker_batch(self.ends[name], self.now, 0, PRODUCER, EPOCH, marker)))

    def end(self) -> None:
        """Markers, and that all are written."""
        self.now += 10
        for name in self.parts:
            self.mark(name)
        self.now += 10
        self.state(S.COMPLETE_COMMIT)

    def whole(self, value: bytes, *parts: str) -> None:
        self.begin(*parts)
        for name in parts:
            self.write(name, value)
        self.prepare()
        self.end()

    def move_cursor(self, name: str, offset: int, *, txn: bool) -> None:
        where = group_records.OffsetKey(ID, name[:-2], 0)
        held = group_records.CommittedOffset(offset, commit_timestamp=self.now)
        key, value = group_records.encode_offset_commit(where, held)
        self.write(CURSORS, value, key, txn=txn)


def nothing(it: BrokersDirectory) -> None:
    """Nothing happens."""


def restored(
    it: BrokersDirectory,
    between: Callable[[BrokersDirectory], None],
    after: Callable[[BrokersDirectory], None],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[dict[str, list[bytes]], dict[TopicPartition, int], dict[str, int]]:
    """The records that a reader of committed records sees, the cursors and the logs' ends."""
    real, looks = backup_module.moment_of, iter(range(100))

    def moment_of(*args: Any) -> Any:
        is_first = next(looks) == 0
        if is_first:
            between(it)
        found = real(*args)
        if is_first:
            after(it)
        return found

    monkeypatch.setattr(backup_module, "moment_of", moment_of)
    saved, copy = it.root.with_name("saved"), it.root.with_name("copy")
    backup(it.root, saved)
    restore(saved, copy)
    seen = {}
    with kafkalog.open(copy, take_over=True, maintenance=False, clock=ManualClock(START_MS + 5000)) as store:
        for name in BOTH:
            with store.reader(partitions=[name], isolation="read_committed") as reader:
                seen[name] = [record.value or b"" for record in reader]
        ends = {name: store.topic(name[:-2]).partition(0).end_offset for name in BOTH}
        return seen, cursor(store, ID), ends


@pytest.fixture
def it(tmp_path: Path) -> BrokersDirectory:
    found = BrokersDirectory(tmp_path / "broker")
    for name in BOTH:
        found.plain(name)
    found.state(S.EMPTY)
    return found


def test_a_completed_one_in_front_of_a_decided_one(it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decided one is not in the partition: the marker there belongs to the one before, and nothing is truncated."""

    def between(it: BrokersDirectory) -> None:
        it.whole(b"one", *BOTH)
        it.plain(P0, b"more")
        it.move_cursor(P0, it.ends[P0], txn=False)
        it.begin(P1, CURSORS)
        it.write(P1, b"two")
        it.move_cursor(P1, 1, txn=True)
        it.prepare()

    seen, cursors, ends = restored(it, between, nothing, monkeypatch)
    assert seen == {P0: [b"plain", b"one", b"more"], P1: [b"plain", b"one", b"two"]}
    assert cursors == {TopicPartition("p0", 0): 4, TopicPartition("p1", 0): 1}
    assert ends[P0] == 4


@pytest.mark.parametrize("how", ["open", "commit", "abort"])
def test_the_next_one_has_old_times(it: BrokersDirectory, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka Streams writes its input's time, which is older than the decision of the previous transaction."""

    def between(it: BrokersDirectory) -> None:
        it.begin(*BOTH)
        for name in BOTH:
            it.write(name, b"one")
        it.prepare()

    def after(it: BrokersDirectory) -> None:
        it.end()
        it.begin(*BOTH)
        it.write(P0, b"two", time_ms=START_MS - 3_600_000)
        if how != "open":
            it.write(P1, b"two")
            it.prepare(S.PREPARE_COMMIT if how == "commit" else S.PREPARE_ABORT)
            for name in BOTH:
                it.mark(name, ControlRecordType.COMMIT if how == "commit" else ControlRecordType.ABORT)

    seen, _, _ = restored(it, between, after, monkeypatch)
    assert seen == {P0: [b"plain", b"one"], P1: [b"plain", b"one"]}


def test_a_decided_one_has_times_ahead(it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def between(it: BrokersDirectory) -> None:
        it.begin(*BOTH)
        it.write(P0, b"one", time_ms=it.now + 1000)
        it.write(P1, b"one")
        it.plain(P0, b"more")
        it.prepare()

    seen, _, _ = restored(it, between, nothing, monkeypatch)
    assert seen == {P0: [b"plain", b"one", b"more"], P1: [b"plain", b"one"]}


def test_one_that_begins_and_ends_in_a_millisecond(it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def between(it: BrokersDirectory) -> None:
        it.begin(*BOTH)
        for name in BOTH:
            it.write(name, b"one")

    def after(it: BrokersDirectory) -> None:
        it.state(S.PREPARE_COMMIT)
        it.mark(P0)
        it.now += 1
        it.mark(P1)

    seen, _, _ = restored(it, between, after, monkeypatch)
    assert seen == {P0: [b"plain"], P1: [b"plain"]}


def test_cursors_behind_an_open_one(it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's next transactions, after T, look like the one that is open at T."""

    def between(it: BrokersDirectory) -> None:
        it.begin(P0, CURSORS)
        it.write(P0, b"one")
        it.move_cursor(P0, 2, txn=True)

    def after(it: BrokersDirectory) -> None:
        it.prepare()
        it.end()
        it.begin(P0, CURSORS)
        it.write(P0, b"two")
        it.move_cursor(P0, 4, txn=True)
        it.prepare()
        it.end()

    seen, cursors, ends = restored(it, between, after, monkeypatch)
    assert seen[P0] == [b"plain"]
    assert cursors.get(TopicPartition("p0", 0), 0) <= ends[P0]


def test_the_marker_of_a_decided_one_is_in_front_of_the_look(
    it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records after the marker belong to the next one, though nothing says that the decided one is complete."""
    it.begin(*BOTH, CURSORS)
    for name in BOTH:
        it.write(name, b"one")
    it.move_cursor(P0, 2, txn=True)
    it.prepare()
    for name in it.parts:
        it.mark(name)

    def after(it: BrokersDirectory) -> None:
        it.now += 1
        it.state(S.COMPLETE_COMMIT)
        it.begin(*BOTH, CURSORS)
        for name in BOTH:
            it.write(name, b"two", time_ms=START_MS)
        it.move_cursor(P0, 4, txn=True)
        it.prepare()
        it.end()

    seen, cursors, _ = restored(it, nothing, after, monkeypatch)
    assert seen == {P0: [b"plain", b"one"], P1: [b"plain", b"one"]}
    assert cursors == {TopicPartition("p0", 0): 2}


def _made_anew(it: BrokersDirectory) -> None:
    (it.root / P0).rename(it.root.with_name("gone"))
    it.make(P0)
    it.plain(P0, b"new")


def _cut(it: BrokersDirectory) -> None:
    path = it.root / P0 / LOG
    os.truncate(path, path.stat().st_size // it.ends[P0])
    it.ends[P0] = 1


@pytest.mark.parametrize("change", [_made_anew, _cut])
def test_a_log_that_became_shorter(
    it: BrokersDirectory, change: Callable[[BrokersDirectory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read does not show it: the log is read again, and T is a later moment."""
    for _ in range(20):
        it.plain(P0)
    seen, _, _ = restored(it, change, lambda it: it.whole(b"one", *BOTH), monkeypatch)
    assert (b"one" in seen[P0]) is (b"one" in seen[P1])


def test_topics_that_come_at_every_look(it: BrokersDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one has no look: all of it may be of later."""
    real, looks = backup_module.moment_of, iter(range(1000))

    def moment_of(*args: Any) -> Any:
        found, number = real(*args), next(looks)
        if number <= backup_module.LOOKS_MAX:
            it.make(f"n{number}-0")
        if number == backup_module.LOOKS_MAX:
            it.whole(b"one", P0, f"n{number}-0")
        return found

    monkeypatch.setattr(backup_module, "moment_of", moment_of)
    saved, copy = it.root.with_name("saved"), it.root.with_name("copy")
    backup(it.root, saved)
    restore(saved, copy)
    seen = []
    with kafkalog.open(copy, take_over=True, maintenance=False, clock=ManualClock(START_MS + 5000)) as store:
        for name in (P0, f"n{backup_module.LOOKS_MAX}-0"):
            with store.reader(partitions=[name], isolation="read_committed") as reader:
                seen.append(b"one" in [record.value for record in reader])
    assert seen[0] is seen[1]


def test_partitions_that_are_named_have_whole_transactions(tmp_path: Path) -> None:
    """Partitions of __transaction_state are included: the opening of the copy aborts open transactions."""
    with kafkalog.open(tmp_path / "shop") as store:
        store.create_topic("orders", partitions=2)
        txn = store.transaction("a")
        txn.begin()
        txn.append("orders", b"half", partition=0)
        report = backup(tmp_path / "shop", tmp_path / "saved", partitions=["orders-0"])
        txn.append("orders", b"half", partition=1)
        txn.commit()
    assert report.partitions == 2
    restore(tmp_path / "saved", tmp_path / "copy", partitions=["orders-0"])
    with kafkalog.open(tmp_path / "copy") as store:
        topic = store.topic("orders")
        topic.append(b"later", partition=0)
        with store.reader(partitions=["orders-0"], isolation="read_committed") as reader:
            assert [record.value for record in reader] == [b"later"]
