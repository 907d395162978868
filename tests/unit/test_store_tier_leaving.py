"""Topics that leave the remote tier, or are deleted there: the deleted objects, their time, topics that come back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.remote_tier import StoreTier
from kafkalog.engine.format.names import REMOTE_LOG_METADATA_TOPIC
from kafkalog.engine.remote import remote_log_manager
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.remote_log_manager import RemoteLogManager
from kafkalog.errors import IllegalArgumentException, RetriableRemoteStorageException
from tests.unit.tier_kit import SETTINGS, die

LEAVES = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
COMES = {"remote.storage.enable": "true"}
Place = tuple[Path, Path]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return tmp_path / "store", tmp_path / "tier"


def opened(place: Place, **options: Any) -> kafkalog.Store:
    return kafkalog.open(place[0], remote=place[1], maintenance=False, **options)


def objects(place: Place) -> list[str]:
    return sorted(path.name for path in place[1].rglob("*.log"))


def write(store: kafkalog.Store, first: int = 0, count: int = 60) -> list[bytes | None]:
    """Appends records, whose closed segments are copied; returns all records of the partition."""
    partition = store.topic("orders").partition(0)
    for number in range(first, first + count):
        partition.append(b"value %d " % number + b"." * 100)
    store.remote_log_manager.run_once()
    return everything(store)


def everything(store: kafkalog.Store) -> list[bytes | None]:
    return [record.value for record in store.topic("orders").partition(0)]


def retain(store: kafkalog.Store) -> int:
    return store.topic("orders").partition(0).delete_old_segments()


def refuse(*args: object) -> None:
    raise RetriableRemoteStorageException("503")


def refuse_deletions(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.remote_log_manager.storage, "delete_log_segment_data", refuse)


def events(store: kafkalog.Store) -> int:
    return sum(log.log_end_offset for log in store.manager.logs_by_topic(REMOTE_LOG_METADATA_TOPIC))


def test_what_only_the_disk_has_stays_until_it_is_copied(place: Place) -> None:
    """The tier had it before, and no more."""
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        before = write(store)
        store.alter_topic("orders", LEAVES)
        assert not objects(place)
        store.alter_topic("orders", {**COMES, "local.retention.bytes": "3000"})
        assert retain(store) == 0
        assert everything(store) == before
        assert store.remote_log_manager.run_once() > 2
        assert retain(store) > 2
        assert everything(store) == before


@pytest.mark.parametrize("reopens", [False, True])
def test_a_deletion_takes_what_there_was_when_it_began(
    place: Place, monkeypatch: pytest.MonkeyPatch, reopens: bool
) -> None:
    store = opened(place)
    try:
        store.create_topic("orders", 1, config=SETTINGS)
        before = write(store)
        with monkeypatch.context() as refused:
            refuse_deletions(store, refused)
            store.alter_topic("orders", LEAVES)
            store.alter_topic("orders", {**COMES, "local.retention.bytes": "3000"})
            left = objects(place)
            before = write(store, 60)
            assert objects(place) == left
            assert retain(store) == 0
            assert store.topic("orders").partition(0).engine.highest_offset_in_remote_storage == -1
        if reopens:
            store.close()
            store = opened(place)
            assert not objects(place)
        store.remote_log_manager.run_once()
        assert objects(place)
        assert retain(store) > 2
        assert everything(store) == before
        store.remote_log_manager.run_once()
        assert everything(store) == before
    finally:
        store.close()


@pytest.mark.parametrize("loaded", [0, 1])
def test_a_topic_is_deleted_whose_partitions_nobody_has_opened(place: Place, loaded: int) -> None:
    with opened(place) as store:
        orders = store.create_topic("orders", 2, config=SETTINGS)
        for number in range(60):
            for partition in range(2):
                orders.append(b"value %d " % number + b"." * 100, partition=partition)
        assert store.remote_log_manager.run_once() > 4
    with opened(place, load="on demand") as store:
        for partition in range(loaded):
            assert store.topic("orders").partition(partition).end_offset == 60
        store.delete_topic("orders")
        assert not objects(place)
        assert not store.remote_log_manager.metadata.partitions()


def test_a_topic_of_the_same_id_tiers_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        write(store)
        topic_id = store.topic("orders").partition(0).engine.topic_id
        with monkeypatch.context() as refused:
            refuse_deletions(store, refused)
            store.delete_topic("orders")
            store.create_topic("orders", 1, config={**SETTINGS, "local.retention.bytes": "3000"}, topic_id=topic_id)
            before = write(store, 100, 90)
            assert retain(store) == 0
        store.remote_log_manager.run_once()
        assert retain(store) > 2
        assert everything(store) == before
    with opened(place) as store:
        assert everything(store) == before


def test_a_topic_of_the_id_of_one_whose_deletion_is_not_noted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        write(store)
        topic_id = store.topic("orders").partition(0).engine.topic_id
        with monkeypatch.context() as refused:
            refused.setattr(RemoteLogManager, "_mark", refuse)
            store.delete_topic("orders")
        with pytest.raises(IllegalArgumentException, match="deleted topic 'orders', and files of it may still exist"):
            store.create_topic("orders", 1, config=SETTINGS, topic_id=topic_id)
        store.create_topic("orders", 1, config=SETTINGS)
        before = write(store, 100)
        assert everything(store) == before
    with opened(place) as store:
        assert everything(store) == before
        metadata = store.remote_log_manager.metadata
        known = [each for partition in metadata.partitions() for each in metadata.list_remote_log_segments(partition)]
        assert len(objects(place)) == len(known) > 2


def test_a_refused_deletion_writes_its_events_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        write(store)
        refuse_deletions(store, monkeypatch)
        store.delete_topic("orders")
        count = events(store)
        for _ in range(3):
            store.remote_log_manager.run_once()
        assert events(store) == count


@pytest.mark.parametrize("forgotten", [{}, {"remote.storage.enable": "true", "cleanup.policy": "compact"}])
def test_an_open_with_other_settings_deletes_nothing(place: Place, forgotten: dict[str, str]) -> None:
    kept = {name: value for name, value in SETTINGS.items() if name != "remote.storage.enable"}
    with opened(place, config=COMES) as store:
        store.create_topic("orders", 1, config={**kept, "remote.log.delete.on.disable": "true"})
        before = write(store)
    left = objects(place)
    with pytest.raises(IllegalArgumentException, match="has segments in the remote tier, but"):
        opened(place, config=forgotten)
    assert objects(place) == left
    with opened(place, config=COMES) as store:
        assert everything(store) == before


# --- cut short ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cut_short(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, behind: bool) -> Iterator[None]:
    """A method is interrupted before it does anything, or after it."""
    real: Callable[..., object] = getattr(owner, name)

    def interrupted(*args: Any, **options: Any) -> None:
        if behind:
            real(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("load", ["all", "on demand"])
@pytest.mark.parametrize("method", ["mark_deleted", "_mark", "leave"])
@pytest.mark.parametrize("behind", [False, True])
def test_a_crash_while_a_topic_leaves_the_tier(
    place: Place, monkeypatch: pytest.MonkeyPatch, load: Any, method: str, behind: bool
) -> None:
    """Once its settings say so it leaves, with any of its events, or with none."""
    store = opened(place)
    store.create_topic("orders", 1, config={**SETTINGS, "local.retention.bytes": "3000"})
    before = write(store)
    assert retain(store) > 2
    local = store.topic("orders").partition(0).engine.local_log_start_offset
    with cut_short(monkeypatch, RemoteLogManager, method, behind=behind):
        store.alter_topic("orders", LEAVES)
    die(store)
    with opened(place, load=load) as store:
        assert not objects(place)
        assert store.topic("orders").partition(0).log_start_offset == local
        assert everything(store) == before[local:]
    with opened(place, load=load) as store:
        store.alter_topic("orders", COMES)
        write(store, 60)
        assert objects(place)
    (place[0] / ".kafkalog_topics").unlink()
    with pytest.raises(IllegalArgumentException, match="has segments in the remote tier"):
        opened(place, config={"remote.log.delete.on.disable": "true"})
    assert objects(place)


def test_a_topic_that_leaves_and_comes_back_before_that_is_noted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        before = write(store)
        with cut_short(monkeypatch, RemoteLogManager, "mark_deleted", behind=False):
            store.alter_topic("orders", LEAVES)
        store.alter_topic("orders", COMES)
        store.remote_log_manager.run_once()
        assert everything(store) == before
    with opened(place) as store:
        assert objects(place)
        assert everything(store) == before


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("owner", "method"), [(StoreTier, "delete"), (RemoteLogManager, "_stop"), (RemoteLogManager, "_mark")]
)
def test_an_interrupted_deletion_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, behind: bool
) -> None:
    with opened(place) as store:
        store.create_topic("orders", 1, config=SETTINGS)
        write(store)
        with cut_short(monkeypatch, owner, method, behind=behind):
            store.delete_topic("orders")
        assert "orders" not in store
        store.remote_log_manager.run_once()
        assert not objects(place)
        assert not store.remote_log_manager.logs()


# --- a storage that does not answer ------------------------------------------------------------------------


class Away:
    """A storage whose deletions fail, while `is_away`: how many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away, self.asked = True, 0
        real = Objects._delete

        def delete(objects: Objects, path: str) -> None:
            if self.is_away:
                self.asked += 1
                raise ConnectionResetError("away")
            real(objects, path)

        monkeypatch.setattr(Objects, "_delete", delete)


@pytest.mark.parametrize("way", ["delete", "leave"])
def test_nobody_waits_for_another_try_of_a_deletion(place: Place, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The deletion of a topic tries once, for any number of partitions; the background continues with the rest."""
    with opened(place) as store:
        partitions = 3 if way == "delete" else 1
        orders = store.create_topic("orders", partitions, config=SETTINGS)
        for number in range(90):
            for partition in range(partitions):
                orders.append(b"value %d " % number + b"." * 100, partition=partition)
        assert store.remote_log_manager.run_once() > 2
        away = Away(monkeypatch)
        if way == "delete":
            store.delete_topic("orders")
        else:
            store.alter_topic("orders", LEAVES)
        assert away.asked == 1
        assert objects(place)
        metadata = store.remote_log_manager.metadata
        assert sum(metadata.deletion_of(each) is not None for each in metadata.partitions()) == partitions
        away.is_away = False
        store.remote_log_manager.run_once()
        assert not objects(place)


def test_all_tasks_of_a_topic_end_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as store:
        store.create_topic("orders", 3, config=SETTINGS)
        manager = store.remote_log_manager
        tasks = [found[1] for log in manager.logs() if (found := manager.tasks_of(log))]
        real, cancelled = RemoteLogManager._stop, []

        def stop(*args: Any, **how: Any) -> None:
            cancelled.append([each.cancelled.is_set() for each in tasks])
            real(*args, **how)

        monkeypatch.setattr(RemoteLogManager, "_stop", stop)
        store.delete_topic("orders")
    assert cancelled == [[True] * 3] * 3


@pytest.mark.parametrize("task", ["expiration", "deletion"])
def test_nobody_waits_for_a_task_that_tries_again(place: Place, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    monkeypatch.setattr(remote_log_manager, "HASTY_TIMEOUT_S", 0.1)
    tier = kafkalog.RemoteStorage(place[1], attempts=1000)
    with kafkalog.open(place[0], remote=tier, maintenance=False) as store:
        for name in ("orders", "others"):
            store.create_topic(name, 1, config=SETTINGS)
        before = write(store)
        away = Away(monkeypatch)
        if task == "expiration":
            store.topic("orders").partition(0).delete_records(len(before) - 1)
        else:
            store.remote_log_manager.mark_deleted([store.topic("orders").partition(0).engine.topic_id or ""])
        busy = threading.Thread(target=store.remote_log_manager.run_once)
        busy.start()
        while away.asked < 2:
            time.sleep(0.01)
        began = time.monotonic()
        store.delete_topic("orders")
        assert time.monotonic() - began < 3
        away.is_away = False
        busy.join()
        store.remote_log_manager.run_once()
        assert not objects(place)
