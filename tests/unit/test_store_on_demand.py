"""A store and a manager that load each log at its first use: logs not yet loaded exist, and stay as they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import LogManager, ManagerSettings, TopicPartition
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
)
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles

MARKER = ".kafka_cleanshutdown"
POINTS, WATERMARKS = "recovery-point-offset-checkpoint", "replication-offset-checkpoint"
TOPICS = ["a", "b", "c"]


def fill(root: Path) -> None:
    """Three topics of two partitions, each with records."""
    with kafkalog.open(root) as store:
        for number, name in enumerate(TOPICS, 1):
            topic = store.create_topic(name, 2)
            for partition in range(2):
                topic.append_many([b"%d" % each for each in range(number)], partition=partition)


def opened(root: Path) -> kafkalog.Store:
    return kafkalog.open(root, load="on demand")


def loaded(store: kafkalog.Store) -> list[str]:
    return sorted(str(log.topic_partition) for log in store.manager.all_logs())


def lines(root: Path, name: str) -> dict[TopicPartition, int]:
    return OffsetCheckpointFile(str(root / name)).read()


def crash(root: Path, to: Path) -> Path:
    """The directory as a crash of a store that has it open leaves it."""
    return Path(shutil.copytree(root, to, ignore=shutil.ignore_patterns(".lock")))


def test_what_is_asked_for_is_loaded(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        assert loaded(store) == []
        assert store.topics() == TOPICS
        assert [store.describe_topic(name).partitions for name in TOPICS] == [2, 2, 2]
        assert loaded(store) == []
        assert store.topic("b").append(b"more", partition=1).offset == 2
        assert loaded(store) == ["b-1"]
        with store.reader(topics=["a"]) as reader:
            assert [record.value for record in reader.poll()] == [b"0", b"0"]
        assert loaded(store) == ["a-0", "a-1", "b-1"]
    with kafkalog.open(tmp_path) as store:
        assert len(loaded(store)) == 6


@pytest.mark.parametrize("name", [POINTS, WATERMARKS])
def test_the_lines_of_what_waits_stay(tmp_path: Path, name: str) -> None:
    fill(tmp_path)
    before = lines(tmp_path, name)
    assert len(before) == 6
    with opened(tmp_path) as store:
        store.topic("c").append(b"more", partition=0)
        store.manager.checkpoint_recovery_points()
        store.manager.checkpoint_high_watermarks()
        assert set(lines(tmp_path, name)) == set(before)
    assert lines(tmp_path, name) == {**before, TopicPartition("c", 0): 4}


def test_the_marker_speaks_for_what_waits_too(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        store.topic("a").append(b"x", partition=0)
        assert not (tmp_path / MARKER).exists()
        killed = crash(tmp_path, tmp_path.with_suffix(".killed"))
    assert (tmp_path / MARKER).exists()
    with opened(killed) as store:
        assert store.topic("a").append(b"y", partition=0).offset == 2
    assert not (killed / MARKER).exists()  # the others were not opened
    with opened(killed) as store:
        for name in TOPICS:
            for partition in range(2):
                assert store.topic(name).partition(partition).end_offset > 0
    assert (killed / MARKER).exists()
    assert verify(killed, deep=True).ok


def test_a_damaged_log_is_its_own_matter(tmp_path: Path) -> None:
    fill(tmp_path)
    os.unlink(tmp_path / MARKER)
    segment = tmp_path / "b-0" / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-3])
    with opened(tmp_path) as store:
        assert [record.value for record in store.topic("c").partition(0)] == [b"0", b"1", b"2"]
        assert store.topic("b").partition(0).end_offset == 0  # recovered at its first use


def test_a_disk_that_refuses_one_log(tmp_path: Path) -> None:
    """The directory fails at the log's first use, and not before."""
    fill(tmp_path)
    faulty = FaultyFiles(OS_FILES)
    with contextlib.suppress(KafkaStorageException), kafkalog.open(tmp_path, load="on demand", files=faulty) as store:
        faulty.fault = Fault(at=0, kinds=["list_dir"], paths=lambda path: path.endswith("b-0"))
        assert store.topic("a").partition(0).end_offset == 1
        with pytest.raises(KafkaStorageException):
            store.topic("b").append(b"x", partition=0)
        faulty.fault = None
    assert not (tmp_path / MARKER).exists()


def test_topics_that_change(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        store.delete_topic("a")
        store.add_partitions("b", 3)
        store.create_topic("d", 2)
        store.alter_topic("c", {"retention.ms": "1000"})
        assert store.topics() == ["b", "c", "d"]
        assert loaded(store) == ["b-2", "d-0", "d-1"]
        assert store.topic("c").partition(1).engine.config.retention_ms == 1000  # type: ignore[union-attr]
    with kafkalog.open(tmp_path) as store:
        assert store.topics() == ["b", "c", "d"]
        assert store.describe_topic("b").partitions == 3


def test_transactions_and_cursors(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store, store.reader("cursor", topics=["a", "b"]) as reader:
        assert len(reader.poll()) == 6
        with store.transaction("t") as txn:
            txn.append("c", b"in it", partition=0)
            txn.commit_offsets(reader)
        store.transaction("left").begin()
    with opened(tmp_path) as store:
        assert {name.name for name in store.cursors()} == {"cursor"}
        assert [each.transactional_id for each in store.transactions()] == ["t"]
        values = [record.value for record in store.topic("c").partition(0).records(isolation="read_committed")]
        assert values == [b"0", b"1", b"2", b"in it"]


def test_an_open_transaction_of_a_crash_is_ended(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        txn = store.transaction("t")
        txn.begin()
        txn.append("b", b"never seen", partition=0)
        killed = crash(tmp_path, tmp_path.with_suffix(".killed"))
        txn.abort()
    with opened(killed) as store:
        found = store.topic("b").partition(0)
        assert found.last_stable_offset == found.end_offset == 4
        assert [record.value for record in found.records(isolation="read_committed")] == [b"0", b"1"]


def test_threads_that_ask_for_one_log(tmp_path: Path) -> None:
    fill(tmp_path)
    os.unlink(tmp_path / MARKER)
    found = []
    with LogManager(tmp_path, ManagerSettings(load="on demand")) as manager:
        gate = threading.Barrier(8)

        def ask() -> None:
            gate.wait()
            found.append(manager.get_log("b-0"))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(map(id, found))) == 1
        assert found[0] is not None


@pytest.mark.parametrize("is_asked_again", [True, False])
@pytest.mark.parametrize("method", ["forget_waiting", "put"])
def test_a_load_that_is_interrupted_at_its_end_leaves_nothing_unclean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, is_asked_again: bool
) -> None:
    fill(tmp_path)
    with opened(tmp_path) as store:
        registry = store.manager.registry
        way = getattr(registry, method)

        def interrupted(*args: Any, **more: Any) -> None:
            monkeypatch.undo()
            if method == "put":
                way(*args, **more)
            raise KeyboardInterrupt

        monkeypatch.setattr(registry, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.manager.get_log("b-0")
        if is_asked_again:
            assert store.topic("b").partition(0).end_offset == 2
            assert registry.waiting(TopicPartition("b", 0)) is None
    # A log that did not get its place was closed, and nobody has recovered it.
    assert (tmp_path / MARKER).exists() is (method == "forget_waiting" or is_asked_again)


def test_what_a_manager_does_with_what_waits(tmp_path: Path) -> None:
    fill(tmp_path / "1")
    dirs = [tmp_path / "1", tmp_path / "2"]
    with LogManager(dirs, ManagerSettings(load="on demand")) as manager:
        assert manager.get_log("nothing-0") is None
        assert manager.next_log_dirs() == [str(tmp_path / "2"), str(tmp_path / "1")]
        assert {str(log.topic_partition) for log in manager.logs_by_topic("a")} == {"a-0", "a-1"}
        manager.truncate_to({TopicPartition("c", 0): 0})
        assert manager.move("b-0", tmp_path / "2").parent_dir == str(tmp_path / "2")
        assert manager.async_delete("c-1") is not None
        assert manager.get_or_create_log("b-1").log_end_offset == 2
        assert manager.get_log("c-1") is None
    with LogManager(dirs) as manager:
        ends = {str(log.topic_partition): log.log_end_offset for log in manager.all_logs()}
        assert ends == {"a-0": 1, "a-1": 1, "b-0": 2, "b-1": 2, "c-0": 0}


@pytest.mark.parametrize("load", ["all", "on demand"])
def test_two_folders_of_one_partition_are_settled_at_the_start(tmp_path: Path, load: Any) -> None:
    """Nobody says which one counts: it is refused before anybody writes to either."""
    fill(tmp_path / "1")
    fill(tmp_path / "2")
    for name in ("b-0", "b-1", "c-0", "c-1", "a-1"):
        shutil.rmtree(tmp_path / "2" / name)
    shutil.rmtree(tmp_path / "2" / "a-0")
    shutil.copytree(tmp_path / "1" / "a-0", tmp_path / "2" / "a-0")
    manager = LogManager([tmp_path / "1", tmp_path / "2"], ManagerSettings(load=load))
    with pytest.raises(IllegalStateException, match="Duplicate log directories for a-0 are found"):
        manager.startup()


@pytest.mark.parametrize("wrong", [None, "", "lazy", True, 5, b"all"])
def test_no_other_ways_to_load(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(IllegalArgumentException, match="expected 'all' or 'on demand'"):
        kafkalog.open(tmp_path / "new", load=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_damage_that_is_refused_leaves_the_partition_as_it_is(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "a-0") as log:
        log.append_many([b"1", b"2"])
    os.unlink(tmp_path / MARKER)
    os.unlink(tmp_path / POINTS)
    segment = tmp_path / "a-0" / "00000000000000000000.log"
    damaged = segment.read_bytes()[:-1] + b"\xff"
    segment.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(CorruptRecordException):
            kafkalog.open_log(tmp_path, "a-0", on_damage="raise")
        assert segment.read_bytes() == damaged
        assert not (tmp_path / MARKER).exists()
