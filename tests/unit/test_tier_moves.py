"""A tiered partition whose log object is replaced: by a move to another directory, a close, a failed disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import moves
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED, TopicIdPartition
from kafkalog.errors import IllegalArgumentException, KafkaStorageException, OffsetOutOfRangeException
from tests.crash.tiered import check_objects
from tests.unit.tier_kit import SETTINGS, values

ORDERS = TopicPartition("orders", 0)
COMMITTED = "read_committed"


class House:
    """A store of two directories, with one tiered partition."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.dirs = [str(root / "one"), str(root / "two")]
        self.options = options
        self.store = self.open()

    def open(self) -> kafkalog.Store:
        options = {"maintenance": False, **self.options}
        self.store = kafkalog.open(self.dirs, remote=self.root / "tier", **options)
        return self.store

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def make(self, records: int = 90, **settings: str) -> None:
        made = {**SETTINGS, "local.retention.bytes": "3000", "retention.ms": "-1", **settings}
        self.store.create_topic("orders", 1, config=made)
        self.append(records)

    @property
    def partition(self) -> kafkalog.Partition:
        return self.store.topic("orders").partition(0)

    @property
    def log(self) -> UnifiedLog:
        log = self.store.manager.get_log(ORDERS)
        assert log is not None
        return log

    def append(self, count: int) -> None:
        partition = self.partition
        for number in range(partition.end_offset, partition.end_offset + count):
            partition.append(values(number), timestamp=1000 + number)

    def copy(self) -> int:
        return self.store.remote_log_manager.run_once()

    def other_dir(self) -> str:
        return next(each for each in self.dirs if each != self.log.parent_dir)

    def move(self, progress: Callable[[], object] | None = None) -> UnifiedLog:
        told = None if progress is None else lambda _: progress()
        return self.store.manager.move(ORDERS, self.other_dir(), told)

    def segments(self) -> list[tuple[int, int]]:
        manager = self.store.remote_log_manager
        assert self.log.topic_id is not None
        found = manager.metadata.list_remote_log_segments(TopicIdPartition(self.log.topic_id, ORDERS))
        assert all(each.state is COPY_SEGMENT_FINISHED for each in found)
        return sorted((each.start_offset, each.end_offset) for each in found)

    def check(self, start: int = 0) -> None:
        """Everything is read, by each way, and the tier has each offset once."""
        partition, end = self.partition, self.partition.end_offset
        expected = [values(number) for number in range(start, end)]
        assert partition.log_start_offset == start
        assert [each.value for each in partition] == expected
        assert partition.read_arrow().column("value").to_pylist() == expected
        local = self.log.first_local_offset
        for offset in {start, max(start, local - 1), local, end - 1}:
            assert next(iter(partition.records(offset))).offset == offset
            assert partition.offset_for_time(1000 + offset) == offset
        found = self.segments()
        assert [begin for begin, _ in found[1:]] == [last + 1 for _, last in found[:-1]]
        assert self.log.highest_offset_in_remote_storage == (found[-1][1] if found else -1)
        manager = self.store.remote_log_manager
        check_objects(manager.storage, manager.metadata)

    def check_copied_is_kept(self) -> None:
        highest = self.log.highest_offset_in_remote_storage
        with pytest.raises(IllegalArgumentException, match=f"expected one above {highest}"):
            self.partition.truncate(highest)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    with made.store:
        yield made
    made.store.close()


@pytest.fixture
def slow_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move tells of its progress after each segment."""
    monkeypatch.setattr(moves, "SWITCH_BYTES", 0)


# --- moves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", ["all", "the end"])
def test_the_tier_follows_a_move(house: House, local: str) -> None:
    house.make()
    copied = house.copy()
    if local == "the end":
        assert house.partition.delete_old_segments() > 0
    before, held = house.log, house.partition
    bases = [segment.base_offset for segment in before.log_segments()]
    after = house.move()
    assert after is house.log is not before
    assert after.tier is not before.tier
    assert (after.local_log_start_offset, after.highest_offset_in_remote_storage) == (bases[0], before.copied_offset)
    assert [segment.base_offset for segment in after.log_segments()] == bases
    assert house.store.remote_log_manager.tasks_of(before) is None
    house.check()
    house.check_copied_is_kept()
    house.append(60)
    assert len([*held]) == 150
    assert house.copy() > 0
    assert len(house.segments()) > copied
    house.check()
    assert house.partition.delete_old_segments() > 0
    house.check()
    house.move()
    house.check()
    house.reopen()
    house.check()
    assert house.copy() == 0
    house.check_copied_is_kept()


def test_readers_across_a_move(house: House, slow_moves: None) -> None:
    """Readers that were open before or during a move continue in the old place and the new one."""
    house.make()
    house.copy()
    house.partition.delete_old_segments()
    began = {"before, in the tier": iter(house.partition), "before, on the disk": iter(house.partition.records(80))}
    first = {name: [next(reader).offset for _ in range(3)] for name, reader in began.items()}
    view = kafkalog.open(house.dirs, remote=house.root / "tier", read_only=True)
    with view, house.store.reader("r", topics=["orders"]) as reader:
        seen = [record.offset for record in reader.poll(40)]

        def progress() -> None:
            name = f"during, {len(began)}"
            began[name], first[name] = iter(house.partition), []
            assert [each.offset for each in view.topic("orders").partition(0)] == list(range(90))

        house.move(progress)
        assert len(began) > 3
        house.append(10)
        assert next(iter(view.topic("orders").partition(0))).offset == 0
        for name, iterator in began.items():
            found = first[name] + [record.offset for record in iterator]
            assert found == list(range(found[0], found[-1] + 1)), name
            assert found[-1] >= 89, name
        while got := reader.poll(40):
            seen += [record.offset for record in got]
        assert seen == list(range(100))
    house.check()


def test_producers_and_transactions_from_below_the_local_start(house: House) -> None:
    """A transaction that began in the tier's part is aborted on the disk: the copy knows of it, and of the producer
    that has been silent since."""
    house.make(0)
    writer = house.partition.writer("w")
    writer.append(values(0))
    with contextlib.suppress(ZeroDivisionError), house.store.transaction("tx") as txn:
        txn.append("orders", b"never")
        house.append(50)
        raise ZeroDivisionError
    house.append(40)
    house.copy()
    before = [each.value for each in house.partition.records(isolation=COMMITTED)]
    assert len(before) == 91
    house.store.alter_topic("orders", {"local.retention.bytes": "8000"})
    assert house.partition.delete_old_segments() > 0
    known = house.log.active_producers
    after = house.move()
    assert 1 < after.first_local_offset < 50
    found = {key: (each.producer_epoch, each.last_seq) for key, each in after.active_producers.items()}
    assert found == {key: (each.producer_epoch, each.last_seq) for key, each in known.items()}
    assert writer.append(b"last") == house.partition.end_offset - 1
    before.append(b"last")
    for _ in range(2):
        assert [each.value for each in house.partition.records(isolation=COMMITTED)] == before
        house.copy()
        house.reopen()


def test_an_open_transaction_moves_along(house: House) -> None:
    house.make(0)
    with contextlib.suppress(ZeroDivisionError), house.store.transaction("tx") as txn:
        house.append(40)
        house.copy()
        house.partition.delete_old_segments()
        txn.append("orders", b"never")
        house.append(40)
        stable = house.log.last_stable_offset
        assert stable == 40
        assert house.move().last_stable_offset == stable
        assert house.copy() >= 0
        raise ZeroDivisionError
    expected = [values(number) for number in [*range(40), *range(41, 81)]]
    house.copy()
    house.partition.delete_old_segments()
    assert [each.value for each in house.partition.records(isolation=COMMITTED)] == expected


def test_leader_epochs_move_along(house: House) -> None:
    """Also those below the local start: the tier's segments with epochs unknown to a log are deleted."""
    house.make(30)
    for epoch, start in ((3, 30), (4, 60), (7, 90)):
        house.log.assign_epoch_start_offset(epoch, start)
        house.append(30)
    house.log.assign_epoch_start_offset(9, 120)
    epochs = house.log.epoch_entries
    assert len(epochs) == 5
    house.copy()
    house.partition.delete_old_segments()
    assert house.log.first_local_offset > 90
    for _ in range(2):
        house.move()
        assert house.log.epoch_entries == epochs
        house.copy()
        house.check()
        house.reopen()
        epochs = epochs[:4]  # an open forgets one that has written nothing


def test_retention_deletions_and_copies_during_a_move(house: House, slow_moves: None) -> None:
    house.make(120)
    house.copy()

    def append_and_copy() -> None:
        house.append(30)
        assert house.copy() > 0
        assert house.partition.delete_old_segments() > 0

    def delete() -> None:
        house.store.manager.cleanup_logs()
        house.partition.delete_records(20)
        house.append(30)

    def delete_on_the_disk() -> None:
        assert house.copy() > 0
        house.partition.delete_records(house.log.first_local_offset + 5)

    steps = [append_and_copy, delete, delete_on_the_disk]
    house.move(lambda: steps and steps.pop(0)())
    assert not steps
    start = house.partition.log_start_offset
    assert start > 20
    assert house.log.first_local_offset == start
    house.copy()
    house.check_copied_is_kept()
    for _ in range(2):
        assert [each.offset for each in house.partition] == list(range(start, 180))
        house.reopen()


def test_the_tier_expires_during_a_move(house: House, slow_moves: None) -> None:
    house.make()
    house.copy()
    house.partition.delete_old_segments()

    def progress() -> None:
        house.store.alter_topic("orders", {"retention.bytes": "6000"})
        house.copy()

    house.move(progress)
    start = house.partition.log_start_offset
    assert 0 < start < house.log.first_local_offset
    house.check(start)
    with pytest.raises(OffsetOutOfRangeException):
        next(iter(house.partition.records(start - 1)))


@pytest.mark.parametrize("at", ["move", "end"])
def test_a_copy_under_way_at_the_switch(house: House, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The copy that the old log had begun is not truncated from the new one, and is in the tier once."""
    house.make()
    storage = house.store.remote_log_manager.storage
    upload, refused = storage.copy_log_segment_data, list[object]()

    def uploading(metadata: Any, data: Any) -> Any:
        answer = upload(metadata, data) if at == "end" else None
        if not refused:
            house.move()
            with pytest.raises(IllegalArgumentException, match=f"expected one above {metadata.end_offset}") as told:
                house.partition.truncate(metadata.end_offset)
            refused.append(told)
        return upload(metadata, data) if at == "move" else answer

    monkeypatch.setattr(storage, "copy_log_segment_data", uploading)
    house.copy()
    assert refused
    house.copy()
    house.check()
    house.check_copied_is_kept()
    highest = house.log.highest_offset_in_remote_storage
    house.partition.truncate(highest + 1)
    assert house.partition.end_offset == highest + 1


def test_a_move_that_the_tier_refuses(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition stays, with its tier, and moves later."""
    house.make()
    house.copy()
    house.partition.delete_old_segments()
    before, metadata = house.log, house.store.remote_log_manager.metadata
    with monkeypatch.context() as patch:

        def refuse(*given: object) -> int:
            patch.undo()
            raise KafkaStorageException("the metadata's disk fails")

        patch.setattr(metadata, "highest_offset_for_epoch", refuse)
        with pytest.raises(KafkaStorageException, match="metadata's disk"):
            house.move()
    assert house.log is before
    house.append(20)
    assert house.copy() > 0
    house.check()
    assert house.move() is not before
    house.check()
    house.reopen()
    house.check()


def test_a_move_goes_on_where_it_was_left(house: House, slow_moves: None) -> None:
    house.make(120)
    house.copy()
    house.partition.delete_old_segments()
    local = house.log.first_local_offset
    house.append(60)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        house.move(stop)
    for _ in range(2):
        future = house.store.manager.get_log(ORDERS, is_future=True)
        assert future is not None
        assert future.log_end_offset > future.first_local_offset
        house.reopen()
    assert house.store.manager.get_log(ORDERS, is_future=True).log_end_offset > local  # type: ignore[union-attr]
    house.copy()
    house.move()
    assert house.log.local_log_start_offset == local
    house.check()


def test_an_interrupt_as_the_tier_takes_the_new_log(house: House) -> None:
    class Interrupting(dict[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            manager._tasks = dict(self)
            raise KeyboardInterrupt

    house.make()
    house.copy()
    house.partition.delete_old_segments()
    manager = house.store.remote_log_manager
    manager._tasks = Interrupting(manager._tasks)
    with pytest.raises(KeyboardInterrupt):
        house.move()
    house.check()
    house.append(30)
    assert house.copy() > 0
    house.check()


# --- other ways -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", ["all", "on demand"])
def test_the_tier_follows_a_log_that_is_closed_and_opened(tmp_path: Path, load: Any) -> None:
    house = House(tmp_path, load=load)
    with house.store as store:
        house.make()
        house.copy()
        house.partition.delete_old_segments()
        before = house.log
        store.manager.close_log(ORDERS, clean=True)
        assert house.copy() == 0
        assert house.log is not before
        house.check()
        house.check_copied_is_kept()
        house.append(30)
        assert house.copy() > 0
        house.check()


def test_nobody_has_a_log_before_it_has_its_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a created, loaded or moved log: without it a reader would miss records, and a truncation would remove copied
    ones."""
    house, seen = House(tmp_path, load="on demand"), list[bool]()
    with house.store as store:
        manager = store.remote_log_manager
        join = manager.add

        def joining(log: UnifiedLog) -> object:
            if log.tier is None:
                seen.append(store.manager.registry.get(ORDERS) is log)
            return join(log)

        monkeypatch.setattr(manager, "add", joining)
        house.make()
        store.manager.close_log(ORDERS, clean=True)
        house.move()
    assert seen == [False] * 3


def test_a_log_that_goes_with_its_disk_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = House(tmp_path)
    with house.store as store:
        house.make()
        others = store.create_topic("others", 1, config=SETTINGS).partition(0)
        others.append_many([values(number) for number in range(60)])
        others_log = others.engine
        assert others_log is not None
        others_log.roll()
        house.copy()
        for log in store.manager.all_logs():  # also the log of the metadata
            store.manager.move(log.topic_partition, house.dirs[log.topic_partition == ORDERS])
        store.topic("others").append(b"last")
        house.append(30)
        failed = house.log
        failed.context.log_dir_failure_channel.give_up(failed.parent_dir, "its disk", OSError(5, "EIO"))
        store.manager.handle_log_dir_failure(failed.parent_dir)
        assert store.manager.get_log(ORDERS) is None
        store.manager.get_log("others-0").roll()  # type: ignore[union-attr]
        caplog.clear()
        assert house.copy() > 0
        assert not [line for line in caplog.messages if "orders" in line]


def test_a_topic_that_is_made_anew(house: House) -> None:
    house.make()
    house.copy()
    house.partition.delete_old_segments()
    house.move()
    before = house.log
    house.store.delete_topic("orders")
    assert house.store.remote_log_manager.tasks_of(before) is None
    house.make(40)
    assert house.log.topic_id != before.topic_id
    house.copy()
    house.check()
    house.move()
    house.check()


def test_what_a_move_left_to_be_deleted_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = House(tmp_path)
    house.make(**{"file.delete.delay.ms": "3600000"})
    house.copy()
    assert house.partition.delete_old_segments()
    house.move()
    house.partition.delete_records(10)
    house.move()  # the leftovers of the first one wait there
    house.reopen()
    assert list(tmp_path.rglob("orders-0.*-delete"))
    assert "goes back" not in caplog.text
    house.store.close()
