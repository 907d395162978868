"""Several threads work on one tiered partition at once: it leaves the tier, comes back, moves; the store closes."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.coordinators import StoreStateLog
from kafkalog._face.remote_tier import StoreTier
from kafkalog.engine.log import retention
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.remote import copying
from kafkalog.engine.remote.remote_log_manager import RemoteLogManager
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    DELETE_SEGMENT_STARTED,
    RemoteLogSegmentMetadataUpdate,
)
from kafkalog.errors import IllegalStateException, RetriableRemoteStorageException
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import SETTINGS, die, values

__all__ = ["run"]

OFF, ON = {"remote.storage.enable": "false"}, {"remote.storage.enable": "true"}


class World:
    """A store of two directories, a tiered partition, and what copies of it wait for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = self.open()
        self.pool = ThreadPoolExecutor(8)
        self.uploads, self.may_upload = threading.Event(), threading.Event()
        settings = {**SETTINGS, "remote.log.delete.on.disable": "true", "local.retention.bytes": "3000"}
        self.store.create_topic("orders", 1, config=settings)
        self.append(60)

    def open(self, **options: Any) -> kafkalog.Store:
        dirs = [str(self.root / "one"), str(self.root / "two")]
        self.store = kafkalog.open(dirs, remote=self.root / "tier", maintenance=False, **options)
        return self.store

    @property
    def partition(self) -> kafkalog.Partition:
        return self.store.topic("orders").partition(0)

    @property
    def log(self) -> UnifiedLog:
        log = self.store.manager.get_log("orders-0")
        assert log is not None
        return log

    def append(self, count: int) -> None:
        for number in range(self.partition.end_offset, self.partition.end_offset + count):
            self.partition.append(values(number))

    def copy(self) -> int:
        return self.store.remote_log_manager.run_once()

    def alter(self, config: dict[str, str]) -> None:
        self.store.alter_topic("orders", config)

    def move(self) -> UnifiedLog:
        here = self.log.parent_dir
        return self.store.manager.move("orders-0", str(self.root / ("two" if here.endswith("one") else "one")))

    def begin(self, do: Callable[..., object], *given: object) -> Future[object]:
        return self.pool.submit(do, *given)

    def slow_upload(self, monkeypatch: pytest.MonkeyPatch) -> Future[object]:
        """Begins an upload, which ends when it is allowed to."""
        storage = self.store.remote_log_manager.storage
        real = storage.copy_log_segment_data

        def copy(*given: Any) -> bytes | None:
            self.uploads.set()
            assert self.may_upload.wait(20)
            return real(*given)

        monkeypatch.setattr(storage, "copy_log_segment_data", copy)
        found = self.begin(self.copy)
        assert self.uploads.wait(20)
        return found

    def leaving(self, monkeypatch: pytest.MonkeyPatch) -> list[Future[object]]:
        """The topic is about to leave the tier, for which an upload is to end."""
        begun = [self.slow_upload(monkeypatch), self.begin(self.alter, OFF)]
        self.wait_for_note()
        return begun

    def wait_for_note(self) -> None:
        """Waits for the note of the deletion."""
        metadata = self.store.remote_log_manager.metadata
        (partition,), until = metadata.partitions(), time.monotonic() + 20
        while metadata.deletion_of(partition) is None:
            assert time.monotonic() < until
            time.sleep(0.001)

    def check(self, start: int = 0) -> None:
        expected = [values(number) for number in range(start, self.partition.end_offset)]
        assert self.partition.log_start_offset == start
        assert [each.value for each in self.partition] == expected

    def objects(self) -> list[Path]:
        return list((self.root / "tier").rglob("*.log"))


def refuse(*given: object) -> None:
    raise RetriableRemoteStorageException("503")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.pool, made.store:
        yield made
        made.may_upload.set()
    made.store.close()


def test_a_topic_comes_back_while_it_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log forgets its copied offsets when the copies are deleted."""
    assert world.copy() > 2
    world.append(30)
    begun = world.leaving(monkeypatch)
    world.alter(ON)
    world.may_upload.set()
    for each in begun:
        each.result(20)
    world.append(30)
    world.copy()
    assert world.partition.delete_old_segments() > 2
    world.check()
    world.store.close()
    world.open()
    world.copy()
    world.check()


def test_a_move_while_a_topic_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused until the deletion is noted, and waits for no upload then."""
    assert world.copy() > 2
    assert world.partition.delete_old_segments() > 2
    start = world.log.local_log_start_offset
    world.append(30)
    real, refused = RemoteLogManager.mark_deleted, list[object]()

    def mark(*given: Any) -> bool:
        if given[1] and not refused:
            with pytest.raises(IllegalStateException, match="orders-0 is just leaving the remote tier"):
                world.move()
            refused.append(None)
        return real(*given)

    monkeypatch.setattr(RemoteLogManager, "mark_deleted", mark)
    begun = world.leaving(monkeypatch)
    assert refused
    world.move()
    world.append(1)
    world.may_upload.set()
    for each in begun:
        each.result(20)
    assert not world.store.remote_log_manager.logs()
    world.check(start)
    assert not world.objects()


def test_a_log_that_moves_while_its_topic_leaves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.copy() > 2
    real = StoreTier._note_leaving

    def note(tier: StoreTier, topic: str) -> None:
        real(tier, topic)
        world.move()

    monkeypatch.setattr(StoreTier, "_note_leaving", note)
    world.alter(OFF)
    assert not world.store.remote_log_manager.logs()
    world.check(world.log.local_log_start_offset)


def test_a_log_that_has_moved_takes_no_place(world: World) -> None:
    assert world.copy() > 2
    before = world.log
    after = world.move()
    manager = world.store.remote_log_manager
    manager.on_leadership_change(before)
    assert manager.logs() == [after]
    world.append(30)
    assert world.copy() > 0
    world.check()


def test_a_log_that_was_deleted_takes_no_place(world: World) -> None:
    """Another process had changed its settings; topics that do not say otherwise are tiered."""
    world.store.close()
    world.open(config=ON)
    assert world.copy() > 2
    log, manager = world.log, world.store.remote_log_manager
    world.append(30)
    world.store.delete_topic("orders")
    manager.on_leadership_change(log)
    assert not manager.logs()
    world.copy()
    assert not world.objects()


@pytest.mark.parametrize("change", ["append", "delete_old_segments", "delete_records", "truncate"])
def test_a_move_that_is_refused_in_its_last_step(world: World, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A concurrent change of the partition continues with it."""
    world.copy()
    partition, begun = world.partition, list[Future[object]]()
    changes = {
        "append": lambda: partition.append(b"more"),
        "delete_old_segments": partition.delete_old_segments,
        "delete_records": lambda: partition.delete_records(1),
        "truncate": lambda: partition.truncate(59),
    }
    real = StoreTier.join

    def join(tier: StoreTier, log: UnifiedLog) -> None:
        real(tier, log)
        if not begun and log.dir.endswith("orders-0"):
            begun.append(world.begin(changes[change]))
            time.sleep(0.05)  # it finds that the log refuses changes
            raise IllegalStateException("refused")

    manager = world.store.manager
    manager.tell_of_logs(lambda log: join(world.store._home.tier, log))  # type: ignore[union-attr, arg-type]
    with pytest.raises(IllegalStateException, match="refused"):
        world.move()
    begun[0].result(20)
    assert world.store.remote_log_manager.logs() == [world.log]


def test_a_log_that_joins_while_a_deletion_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new log has nothing in the tier."""
    assert world.copy() > 2
    manager, log = world.store.remote_log_manager, world.log
    real = manager.metadata.highest_offset_for_epoch

    def highest(*given: Any) -> int | None:
        found = real(*given)
        monkeypatch.undo()
        world.begin(manager.mark_deleted, [log.topic_id]).result(20)
        return found

    monkeypatch.setattr(manager.metadata, "highest_offset_for_epoch", highest)
    world.store._home.tier.join(log)  # type: ignore[union-attr]
    assert log.highest_offset_in_remote_storage == -1
    assert world.partition.delete_old_segments() == 0
    world.copy()
    assert world.partition.delete_old_segments() > 2
    world.check()


@pytest.mark.parametrize("begins", [False, True])
def test_a_deletion_that_ends_while_a_log_joins(world: World, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    """It begins before the log checks for it, or after that."""
    world.copy()
    assert world.partition.delete_old_segments() > 2
    local = world.log.local_log_start_offset
    die(world.store)
    manager = world.open(load="on demand").remote_log_manager
    (partition,), ended = manager.metadata.partitions(), list[object]()

    def deletion_ends(real: Callable[..., Any], *given: Any) -> Any:
        found = real(*given)
        if not ended:
            ended.append(None)
            if begins:
                world.begin(manager.mark_deleted, [partition.topic_id]).result(20)
            world.begin(manager.finish_deletions).result(20)
        return found

    owner: object = manager
    if begins:
        owner, name = manager.metadata, "highest_offset_for_epoch"
    else:
        manager.mark_deleted([partition.topic_id])
        with monkeypatch.context() as patched:
            patched.setattr(manager.storage, "delete_log_segment_data", refuse)
            manager.finish_deletions()
        name = "add"
    monkeypatch.setattr(owner, name, partial(deletion_ends, getattr(owner, name)))
    log = world.log
    assert ended
    assert not world.objects()
    assert (log.log_start_offset, log.highest_offset_in_remote_storage) == (local, -1)
    world.append(30)
    assert world.partition.delete_old_segments() == 0
    assert world.copy() > 2
    assert world.partition.delete_old_segments() > 2
    world.check(local)


def test_a_deletion_is_gone_on_with_by_two(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second deletes nothing that came after the first."""
    world.copy()
    manager = world.store.remote_log_manager
    with monkeypatch.context() as patched:
        patched.setattr(manager.storage, "delete_log_segment_data", refuse)
        world.alter(OFF)
        world.alter(ON)
    real = manager.metadata.deletion_of

    def deletion_of(*given: Any) -> object:
        found = real(*given)
        monkeypatch.undo()
        assert world.begin(world.copy).result(20)
        assert world.partition.delete_old_segments() > 2
        return found

    monkeypatch.setattr(manager.metadata, "deletion_of", deletion_of)
    manager.finish_deletions()
    assert world.objects()
    world.check()


@pytest.mark.parametrize("step", ["mark_deleted", "leave"])
def test_a_topic_comes_back_before_it_has_left(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world.copy()
    real, begun = getattr(RemoteLogManager, step), list[Future[object]]()

    def come_back() -> None:
        world.alter(ON)
        world.append(30)
        world.copy()
        world.partition.delete_old_segments()

    def late(*given: Any) -> Any:
        if not begun:
            begun.append(world.begin(come_back))
            wait(begun, 0.2)
        return real(*given)

    monkeypatch.setattr(RemoteLogManager, step, late)
    world.alter(OFF)
    begun[0].result(20)
    world.check()
    world.copy()
    assert world.partition.delete_old_segments() + len(world.objects()) > 2
    world.check()


def test_an_upload_that_begins_behind_the_note(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was nothing to delete, and a crash comes when there is."""
    manager = world.store.remote_log_manager
    real, begins, may_begin = manager.metadata.add_remote_log_segment_metadata, threading.Event(), threading.Event()

    def add(*given: Any) -> None:
        begins.set()
        assert may_begin.wait(20)
        real(*given)

    def stop(*given: Any) -> None:
        may_begin.set()
        begun.result(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(manager.metadata, "add_remote_log_segment_metadata", add)
    begun = world.begin(world.copy)
    assert begins.wait(20)
    monkeypatch.setattr(manager, "_stop", stop)
    with pytest.raises(KeyboardInterrupt):
        world.alter(OFF)
    assert world.objects()
    die(world.store)
    world.open()
    world.check()
    assert not world.objects()


def test_retention_and_a_topic_that_is_copied_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments chosen for deletion because the tier has them stay in the tier."""
    world.copy()
    real = retention._deletable_segments

    def chosen(*given: Any) -> object:
        found = real(*given)
        if found:
            world.begin(world.alter, {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"}).result(20)
        return found

    monkeypatch.setattr(retention, "_deletable_segments", chosen)
    assert world.partition.delete_old_segments() > 2
    world.check()


@pytest.mark.parametrize("at", ["copy", "look"])
def test_a_topic_comes_back_beside_a_copy(world: World, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """A copy that began before a deletion was noted has the disk let nothing go."""
    assert world.copy() > 2
    world.append(30)
    if at == "copy":
        begun = world.leaving(monkeypatch)
        world.alter(ON)
        assert world.partition.delete_old_segments() == 0
    else:
        world.store.close()
        world.open()
        begun, real_find, looks = [], copying.find_highest_remote_offset, threading.Event()

        def find(*given: Any) -> copying.OffsetAndEpoch:
            found = real_find(*given)
            looks.set()
            assert world.may_upload.wait(20)
            return found

        monkeypatch.setattr(copying, "find_highest_remote_offset", find)
        begun.append(world.begin(world.copy))
        assert looks.wait(20)
        begun.append(world.begin(world.alter, OFF))
        world.wait_for_note()
        world.alter(ON)
    real = RemoteLogManager._end

    def end(*given: Any, **how: Any) -> bool:
        assert world.partition.delete_old_segments() == 0
        return real(*given, **how)

    monkeypatch.setattr(RemoteLogManager, "_end", end)
    world.may_upload.set()
    for each in begun:
        each.result(20)
    world.copy()
    assert world.partition.delete_old_segments() > 2
    world.check()


def test_moves_hold_no_files_of_the_tier(world: World) -> None:
    world.copy()
    world.partition.delete_old_segments()

    def held() -> int:
        there = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return sum(os.readlink(each).startswith(str(world.root / "tier")) for each in there if os.path.islink(each))

    gc.disable()
    try:
        world.check()
        before = held()
        for _ in range(3):
            world.move()
            world.check()
        assert held() <= before
    finally:
        gc.enable()


def test_a_close_does_not_wait_for_a_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.copy()
    manager, asked = world.store.remote_log_manager, 0
    real = type(manager.storage).delete_log_segment_data

    def delete(*given: Any) -> None:
        nonlocal asked
        asked += 1
        manager.close()
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(type(manager.storage), "delete_log_segment_data", delete)
        world.store.delete_topic("orders")
    assert asked == 1
    assert world.objects()
    world.store.close()
    world.open()
    assert not world.objects()


def test_an_event_counts_when_it_is_durable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who asks up to where the events go while one is written."""
    world.copy()
    manager = world.store.remote_log_manager
    metadata, (partition,) = manager.metadata, manager.metadata.partitions()
    flushes, may_flush, end = threading.Event(), threading.Event(), StoreStateLog.end
    real, main, begun = StoreStateLog.flush, threading.current_thread(), list[Future[object]]()
    first = metadata.list_remote_log_segments(partition)[0]
    update = RemoteLogSegmentMetadataUpdate(first.remote_log_segment_id, 1, None, DELETE_SEGMENT_STARTED, 0)

    def flush(log: StoreStateLog) -> None:
        flushes.set()
        assert may_flush.wait(20)
        real(log)

    def asked_end(log: StoreStateLog) -> int:
        if threading.current_thread() is main and not begun:
            begun.append(world.begin(metadata.update_remote_log_segment_metadata, update))
            assert flushes.wait(20)
        return end.__get__(log)  # type: ignore[no-any-return]

    def state() -> object:
        return metadata.list_remote_log_segments(partition)[0].state

    monkeypatch.setattr(StoreStateLog, "flush", flush)
    monkeypatch.setattr(StoreStateLog, "end", property(asked_end))
    assert state() is COPY_SEGMENT_FINISHED
    assert begun
    may_flush.set()
    begun[0].result(20)
    assert state() is DELETE_SEGMENT_STARTED


def test_the_hint_for_a_snapshot_that_is_gone(world: World, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    snapshots = list(Path(world.log.dir).glob("*.snapshot"))
    world.store.close()
    for snapshot in snapshots:
        snapshot.unlink()
    world.open()
    assert world.copy() == 0
    world.store.close()
    name, *line = caplog.text.split("`")[1].split()
    assert name == "kafkalog"
    assert run(*line).code == 0
    world.open()
    assert world.copy() > 2
    world.check()
