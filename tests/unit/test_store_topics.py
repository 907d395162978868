"""A store's topics: creation, changes and deletion, topics of other programs, and the errors for wrong requests."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.catalog import INTERNAL_OVERRIDES, PARTITIONS_MAX, Catalog
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.store_partition import StorePartition
from kafkalog._native.codec.partitioner import STICKY_BYTES, StickyPartition, partition_for_key
from kafkalog.config import LogConfig
from kafkalog.engine.files import Files, ManualClock, ThreadScheduler
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import new_uuid as new_topic_id
from kafkalog.engine.format.names import TOPIC_CONFIGS_FILE, TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host import log_dirs
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.topic_configs import KnownTopic
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    ConfigException,
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidPartitionsException,
    InvalidTopicException,
    KafkaStorageException,
    LogDirLockedException,
    LogReadOnlyException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
    UnsupportedCompressionTypeException,
)
from kafkalog.store import Store
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.cluster_kit import formatted, metadata_log, topic

FAST = UnsyncedFiles()
NOW_MS = 1_700_000_000_000
ID = "Tyghd1S1RuGzFnfHRq7zzg"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def dirs_below(root: Path, count: int = 2) -> list[str]:
    return [str(root / f"disk{number}") for number in range(count)]


def open_at(where: str | list[str] | Path, **options: Any) -> Store:
    return kafkalog.open(where, files=options.pop("files", FAST), **options)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_at(dirs_below(tmp_path)) as store:
        yield store


def folders(*roots: str) -> dict[str, str]:
    """The partitions' directories, and their places."""
    found = {}
    for root in roots:
        for name in os.listdir(root):
            if os.path.isdir(os.path.join(root, name)) and re.fullmatch(r"[^/]+-\d+", name):
                assert name not in found, f"{name} is there twice"
                found[name] = os.path.join(root, name)
    return found


def written(root: str) -> dict[str, Any]:
    with open(os.path.join(root, TOPIC_CONFIGS_FILE), "rb") as file:
        content: dict[str, Any] = json.load(file)
        return content


def values_in(where: str, partition: str) -> list[bytes | None]:
    with kafkalog.open_log(where, partition, read_only=True, files=FAST) as log:
        return [record.value for record in log]


# --- making --------------------------------------------------------------------------------------------


def test_a_topic_has_all_its_partitions_and_one_id_everywhere(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("orders", 5, config={"retention.ms": "604800000"})
        info = store.describe_topic("orders")
        assert topic.name == "orders"
        assert topic.partitions == info.partitions == 5
        assert info.overrides == {"retention.ms": "604800000"}
        assert not info.is_internal
        assert store.topics() == ["orders"]
        assert "orders" in store
        assert "other" not in store
        assert 5 not in store
    with open_at(dirs) as store:
        assert store.describe_topic("orders") == info
    found = folders(*dirs)
    assert sorted(found) == [f"orders-{number}" for number in range(5)]
    assert {topic_id_of(path) for path in found.values()} == {info.topic_id}
    assert {os.path.dirname(path) for path in found.values()} == set(dirs)
    assert written(dirs[0]) == written(dirs[1])
    assert written(dirs[0])["known"] == {"orders": {"partitions": 5, "id": info.topic_id}}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\0", *INTERNAL_OVERRIDES, "__cluster_metadata"]
)
def test_names_that_kafka_refuses(store: Store, name: str) -> None:
    with pytest.raises(InvalidTopicException):
        store.create_topic(name)
    assert store.topics() == []
    assert not folders(*store.manager.live_log_dirs)


def test_names_that_collide(store: Store) -> None:
    store.create_topic("a.b")
    for name in ("a_b", "a_b"):
        with pytest.raises(InvalidTopicException, match=re.escape("Topic 'a_b' collides with existing topic: a.b")):
            store.create_topic(name)
    store.delete_topic("a.b")
    store.create_topic("a_b")


def test_a_topic_is_made_once(store: Store) -> None:
    first = store.create_topic("t", 2, config={"retention.ms": "5"})
    with pytest.raises(TopicExistsException, match="Topic 't' already exists"):
        store.create_topic("t")
    again = store.create_topic("t", 7, config={"retention.ms": "6"}, exist_ok=True)
    assert again is first
    assert again.partitions == 2
    assert again.info.overrides == {"retention.ms": "5"}


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_topic_is_not_copied(store: Store, how: Any) -> None:
    with pytest.raises(TypeError, match=r"^a Topic cannot be copied or pickled: share it, or open the log again"):
        how(store.create_topic("t"))


def test_a_topic_that_is_there_is_not_what_was_asked_for(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.create_topic("t", 2, config={"retention.ms": "5"})
    for same in ({}, {"retention.ms": " 5 "}, {"segment.bytes": "1073741824"}):
        store.create_topic("t", config=same, exist_ok=True)
        store.create_topic("t", 2, config=same, exist_ok=True)
    assert caplog.records == []
    store.create_topic("t", 3, config={"retention.ms": "6", "cleanup.policy": "compact"}, exist_ok=True)
    store.create_topic("t", 2, config={"retention.ms": "7"}, exist_ok=True)
    took = "create_topic('t', exist_ok=True) returns the topic that exists, which has "
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "kafkalog.topics",
            "WARNING",
            f"{took}2 partitions, not 3; retention.ms 5, not 6; cleanup.policy delete, not compact "
            "(alter_topic() and add_partitions() of the store can change that)",
        ),
        ("kafkalog.topics", "WARNING", f"{took}retention.ms 5, not 7 (alter_topic() of the store can change that)"),
    ]


@pytest.mark.parametrize("setting", ["retention.ms=7d", "retention.bytes=1 GiB", "segment.ms=1h"])
def test_settings_with_a_unit(store: Store, setting: str) -> None:
    key, _, value = setting.partition("=")
    number = {"7d": 604_800_000, "1 GiB": 1 << 30, "1h": 3_600_000}[value]
    what = key.rpartition(".")[2].replace("ms", "milliseconds")
    with pytest.raises(ConfigException, match=f'Not a number .*{value} is "{number}" in {what}; Kafka accepts only'):
        store.create_topic("t", config={key: value})
    store.create_topic("t")
    with pytest.raises(ConfigException, match=f'{value} is "{number}" in {what}'):
        store.alter_topic("t", {key: value})


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1, 1 << 40])
def test_numbers_of_partitions(store: Store, partitions: int) -> None:
    with pytest.raises(InvalidPartitionsException, match="expected 1 to 10000"):
        store.create_topic("t", partitions)
    with pytest.raises(InvalidPartitionsException, match="expected 1 to 10000"):
        store.create_topic("t", partitions, exist_ok=True)
    assert store.topics() == []


def test_ids(store: Store) -> None:
    store.create_topic("t", topic_id=ID)
    assert store.describe_topic("t").topic_id == ID
    with pytest.raises(IllegalArgumentException, match=f"topic_id: {ID} is the id of topic 't'"):
        store.create_topic("u", topic_id=ID)
    for wrong in ("", "x", "A" * 22, "!" * 22, 5, b"A" * 22):
        with pytest.raises(IllegalArgumentException, match="topic_id"):
            store.create_topic("u", topic_id=wrong)  # type: ignore[arg-type]
    assert store.topics() == ["t"]


def test_random_ids_are_kafkas() -> None:
    made = {new_topic_id() for _ in range(500)}
    assert len(made) == 500
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in made)


def test_settings_are_checked_before_anything_is_made(store: Store) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"retention": "5"}, ConfigException, "Unknown topic config name: retention"),
        ({"retention.ms": "soon"}, ConfigException, "retention.ms"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, ConfigException, "conflict"),
        ({"retention.ms": 5}, IllegalArgumentException, "config: retention.ms: found int 5, expected text"),
        ({"retention.ms": None}, IllegalArgumentException, "config: retention.ms: found NoneType, expected text"),
        ({5: "5"}, IllegalArgumentException, "config: a key: found int 5, expected text"),
        ([("retention.ms", "5")], IllegalArgumentException, "config: found list"),
        ("retention.ms", IllegalArgumentException, "config: found str"),
    ]
    for config, error, said in wrong:
        with pytest.raises(error, match=said):
            store.create_topic("t", config=config)
    assert store.topics() == []
    assert not folders(*store.manager.live_log_dirs)
    assert not os.path.exists(os.path.join(store.manager.live_log_dirs[0], TOPIC_CONFIGS_FILE))


# --- altering ------------------------------------------------------------------------------------------


def test_alter_merges_and_none_takes_away(store: Store) -> None:
    store.create_topic("t", config={"retention.ms": "5", "segment.bytes": "1048576"})
    assert store.alter_topic("t", {"retention.ms": "6"}).overrides == {"retention.ms": "6", "segment.bytes": "1048576"}
    assert store.alter_topic("t", {"segment.bytes": None, "flush.ms": "9"}).overrides == {
        "retention.ms": "6", "flush.ms": "9",
    }  # fmt: skip
    assert store.alter_topic("t", {"segment.bytes": None}).overrides == {"retention.ms": "6", "flush.ms": "9"}
    for wrong in ({"retention.ms": "soon"}, {"nothing": "5"}, {"nothing": None}, {"flush.ms": "1", "retention.ms": ""}):
        with pytest.raises(ConfigException):
            store.alter_topic("t", wrong)
    assert store.describe_topic("t").overrides == {"retention.ms": "6", "flush.ms": "9"}
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic 'u'"):
        store.alter_topic("u", {})


DAY = {"retention.ms": "86400000"}


@pytest.mark.parametrize(
    ("defaults", "config", "overrides"),
    [
        ({}, None, {"retention.ms": "-1"}),
        ({}, {"flush.ms": "9"}, {"flush.ms": "9", "retention.ms": "-1"}),
        ({}, {"retention.bytes": "1000"}, {"retention.bytes": "1000", "retention.ms": "-1"}),
        ({}, {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "compact,delete", "retention.ms": "-1"}),
        ({}, DAY, DAY),
        ({"retention.bytes": "1000"}, None, {"retention.ms": "-1"}),
        (DAY, None, {}),
        (DAY, {"retention.ms": "5"}, {"retention.ms": "5"}),
    ],
)
def test_a_topic_keeps_its_records_unless_a_retention_is_set(
    tmp_path: Path, defaults: dict[str, str], config: dict[str, str] | None, overrides: dict[str, str]
) -> None:
    with open_at(tmp_path / "data", config=defaults) as store:
        store.create_topic("t", config=config)
        assert store.describe_topic("t").overrides == overrides
        store.alter_topic("t", {"retention.ms": "7"})
        altered = store.alter_topic("t", {"retention.ms": None}).overrides
        assert altered.get("retention.ms") == (None if defaults == DAY else "-1")


def test_what_lies_in_a_store_for_years_is_there(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with open_at(tmp_path / "data", clock=clock) as store:
        store.create_topic("t").append(b"x")
        store.create_topic("by_size", config={"retention.bytes": "1000"}).append(b"x")
        store.create_topic("short", config=DAY).append(b"x")
    with kafkalog.open_log(tmp_path / "data", "kafkas-0", clock=clock, files=FAST) as log:
        log.append(b"x")
    clock.advance_to(NOW_MS + 1000 * 86_400_000)
    with LogManager(tmp_path / "data", clock=clock, files=FAST) as manager:
        assert manager.cleanup_logs() == 2
        starts = {str(log.topic_partition): log.log_start_offset for log in manager.all_logs()}
        assert starts == {"t-0": 0, "by_size-0": 0, "short-0": 1, "kafkas-0": 1}  # Kafka's rule is the manager's


def test_what_is_altered_reaches_the_running_logs(tmp_path: Path) -> None:
    with open_at(tmp_path / "data") as store:
        topic = store.create_topic("t", 2)
        topic.append(b"x" * 2000, partition=1)
        for partition in range(2):
            log = store.manager.get_log(TopicPartition("t", partition))
            assert log is not None
            assert log.config.retention_ms == -1
        store.alter_topic(
            "t",
            {"retention.ms": "7", "max.message.bytes": "1000", "compression.type": "zstd", "cleanup.policy": "compact"},
        )
        for partition in range(2):
            log = store.manager.get_log(TopicPartition("t", partition))
            assert log is not None
            assert log.config.retention_ms == 7
            assert log.config.compact
        with pytest.raises(kafkalog.KafkalogError, match="max"):
            topic.append(os.urandom(2000), key=b"k", partition=1)
        topic.append(b"y" * 5000, key=b"k", partition=1)  # packed, as the settings say now
        store.alter_topic("t", {"max.message.bytes": None, "compression.type": None, "cleanup.policy": None})
        topic.append(os.urandom(2000), partition=1)
    assert [len(value or b"") for value in values_in(str(tmp_path / "data"), "t-1")] == [2000, 5000, 2000]


def test_partitions_are_added(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 2)
        assert topic.append(b"1", key=b"customer-7").partition == partition_for_key(b"customer-7", 2)
        for fewer in (1, 2):
            with pytest.raises(InvalidPartitionsException, match=r"currently has 2 partition\(s\)"):
                store.add_partitions("t", fewer)
        info = store.add_partitions("t", 7)
        assert info.partitions == topic.partitions == 7
        assert topic.append(b"2", key=b"customer-7").partition == partition_for_key(b"customer-7", 7)
        assert topic.append(b"3", partition=6) == ("t", 6, topic.append(b"4", partition=6).offset - 1)
        with pytest.raises(UnknownTopicOrPartitionException, match="has no partition 7: it has 7"):
            topic.append(b"5", partition=7)
        with pytest.raises(UnknownTopicOrPartitionException):
            store.add_partitions("u", 5)
    found = folders(*dirs)
    assert len(found) == 7
    assert {topic_id_of(path) for path in found.values()} == {info.topic_id}
    with open_at(dirs) as store:
        assert store.describe_topic("t") == info


@pytest.mark.parametrize("change", ["create", "add"])
def test_what_others_can_see_is_not_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """An interrupt comes when the last partition is visible to all: somebody may write to it already."""
    if change == "add":
        store.create_topic("t", 1)
    told = type(store.manager).update_topic_config
    calls = []

    def cut(manager: LogManager, topic: str, overrides: Mapping[str, str]) -> None:
        told(manager, topic, overrides)
        calls.append(topic)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(store.manager), "update_topic_config", cut)
    make = store.add_partitions if change == "add" else store.create_topic
    with pytest.raises(KeyboardInterrupt):
        make("t", 3)
    assert store.topic("t").append(b"x", partition=2).offset == 0
    assert store.describe_topic("t").partitions == 3


# --- deleting ------------------------------------------------------------------------------------------


def test_a_deleted_topic_does_not_come_back(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 3, config={"retention.ms": "5"})
        old = store.describe_topic("t")
        topic.append_many([b"old"] * 10)
        partition = topic.appends(0)
        store.delete_topic("t")
        assert store.topics() == []
        for call in (
            lambda: topic.append(b"x"), lambda: topic.append(b"x", partition=0), lambda: topic.append_many([b"x"]),
            lambda: topic.partitions, lambda: store.topic("t"), lambda: store.describe_topic("t"),
            lambda: store.delete_topic("t"), lambda: store.alter_topic("t", {}), lambda: store.add_partitions("t", 9),
        ):  # fmt: skip
            with pytest.raises(UnknownTopicOrPartitionException, match="no topic 't'"):
                call()
        with pytest.raises(UnknownTopicOrPartitionException, match="t-0 was deleted"):
            partition.append_as(NO_PRODUCER, [b"x"])
        assert written(dirs[0]).get("known") is None
        assert written(dirs[0])["topics"] == {}
    with open_at(dirs) as store:
        assert store.topics() == []
        again = store.create_topic("t", 2)
        assert again.info.topic_id != old.topic_id
        assert again.info.overrides == {"retention.ms": "-1"}
        assert again.append(b"new", partition=0).offset == 0
        new = again.info
    with open_at(dirs) as store:
        assert store.describe_topic("t") == new
        log = store.manager.get_log("t-0")
        assert log is not None
        assert log.log_end_offset == 1


def test_a_topic_that_was_made_again_is_written_by_old_handles(store: Store) -> None:
    topic = store.create_topic("t", 2)
    topic.append(b"old", partition=1)
    store.delete_topic("t")
    store.create_topic("t", 2)
    assert topic.append(b"new", partition=1).offset == 0


def test_a_topic_whose_deletion_was_cut_short_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t", 1).append(b"old")
    deleted = Catalog.delete

    def cut(catalog: Catalog, topic: str) -> None:
        deleted(catalog, topic)
        raise KeyboardInterrupt

    monkeypatch.setattr(Catalog, "delete", cut)
    with pytest.raises(KeyboardInterrupt):
        store.delete_topic("t")
    monkeypatch.undo()
    store.create_topic("t", 1)
    with store.reader(topics=["t"]) as reader:
        assert store.topic("t").append(b"new").offset == 0
        assert [record.value for record in reader] == [b"new"]


def test_a_creation_that_another_thread_finishes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next thread that changes logs finishes an interrupted creation, perhaps just while it is being undone."""
    put, take_back = LogRegistry.put, Catalog._take_back
    puts = iter(range(9))
    within = threading.Event()
    threads = []

    def cut(registry: LogRegistry, log: UnifiedLog, *, is_future: bool = False) -> UnifiedLog | None:
        number = next(puts)
        if number == 0:
            raise KeyboardInterrupt
        if number == 1:
            within.set()
            time.sleep(0.2)
        return put(registry, log, is_future=is_future)

    def late(catalog: Catalog, topic: str, known: KnownTopic) -> None:
        threads.append(threading.Thread(target=store.manager.changes.settle))
        threads[0].start()
        assert within.wait(10)
        take_back(catalog, topic, known)

    monkeypatch.setattr(LogRegistry, "put", cut)
    monkeypatch.setattr(Catalog, "_take_back", late)
    with pytest.raises(KeyboardInterrupt):
        store.create_topic("t", 1)
    threads[0].join()
    assert store.topics() == []
    assert store.create_topic("t", 1).append(b"x").offset == 0


def test_kafkas_own_topics(store: Store) -> None:
    offsets = store._home.offsets("group", create=True)
    assert offsets is not None
    info = store.describe_topic(GROUPS)
    assert info.partitions == 50
    assert info.is_internal
    assert info.overrides == INTERNAL_OVERRIDES[GROUPS]
    assert len(folders(*store.manager.live_log_dirs)) == 1  # made one by one
    assert store.topics() == []
    assert store.topics(internal=True) == [GROUPS]
    assert GROUPS in store
    for call in (
        lambda: store.delete_topic(GROUPS), lambda: store.create_topic(TRANSACTIONS, 3),
        lambda: store.add_partitions(GROUPS, 60),
    ):  # fmt: skip
        with pytest.raises(InvalidTopicException, match="Kafka's internal topic"):
            call()
    with pytest.raises(TopicExistsException):
        store.create_topic(GROUPS)
    assert store.create_topic(GROUPS, exist_ok=True).partitions == 50


def test_cursors_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    with open_at(tmp_path / "data") as store:
        store.create_topic("t")
        store.create_topic("u")
        offsets = store._home.offsets("group", create=True)
        assert offsets is not None
        both = {TopicPartition(name, 0): CommittedOffset(5) for name in "tu"}
        offsets.commit("group", both)
        store.delete_topic("t")
        assert list(offsets.fetch_all("group")) == [TopicPartition("u", 0)]
    with open_at(tmp_path / "data") as store:
        offsets = store._home.offsets("group", create=False)
        assert offsets is not None
        assert list(offsets.fetch_all("group")) == [TopicPartition("u", 0)]


# --- what others made ----------------------------------------------------------------------------------


def write_by_hand(where: str, partition: str, *values: bytes, **options: Any) -> None:
    with kafkalog.open_log(where, partition, files=FAST, **options) as log:
        log.append_many(list(values))


def test_topics_of_open_log(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    write_by_hand(dirs[0], "t-0", b"0", topic_id=ID)
    write_by_hand(dirs[1], "t-3", b"3", topic_id=ID)  # gaps: 1 and 2 are nowhere
    write_by_hand(dirs[1], "n-1", b"1")  # it never got an id
    with open_at(dirs) as store:
        assert store.topics() == ["n", "t"]
        assert store.describe_topic("t") == ("t", 4, ID, {}, False)
        assert store.describe_topic("n") == ("n", 2, None, {}, False)
        topic = store.topic("t")
        assert topic.append(b"more", partition=3).offset == 1
        with pytest.raises(KafkaStorageException, match=r"t-1 has no directory .*open the store with all directories"):
            topic.append(b"x", partition=1)
        assert {topic.append(b"x" * STICKY_BYTES).partition for _ in range(40)} == {0, 3}  # existing partitions
        store.alter_topic("n", {"retention.ms": "-1"})
        known = store.describe_topic("n")
        assert known.topic_id is not None
        store.add_partitions("t", 6)
    found = folders(*dirs)
    assert sorted(found) == ["n-1", "t-0", "t-3", "t-4", "t-5"]
    assert topic_id_of(found["n-1"]) == known.topic_id
    assert topic_id_of(found["t-5"]) == ID
    with open_at(dirs) as store:
        assert store.describe_topic("n") == known
        assert store.describe_topic("t").partitions == 6


def test_a_partition_that_open_log_added(tmp_path: Path) -> None:
    where = str(tmp_path / "data")
    with open_at(where) as store:
        store.create_topic("t", 2, config={"retention.ms": "-1"})
    write_by_hand(where, "t-4", b"x")
    with open_at(where) as store:
        info = store.describe_topic("t")
        assert info.partitions == 5
        assert info.overrides == {"retention.ms": "-1"}
    assert topic_id_of(folders(where)["t-4"]) == info.topic_id


def test_a_topic_that_others_deleted_and_made_again(tmp_path: Path) -> None:
    """As a broker does: the knowledge about the old one no longer counts, and the new one is left alone."""
    where = str(tmp_path / "data")
    with open_at(where) as store:
        store.create_topic("t", 4, topic_id=ID).append_many([b"old"] * 4)
    for path in folders(where).values():
        shutil.rmtree(path)
    formatted(Path(where))
    with open_at(where, take_over=True) as store:
        assert store.topics() == []
        with pytest.raises(UnknownTopicOrPartitionException):
            store.topic("t")
        assert not folders(where)
    write_by_hand(where, "t-1", b"new", topic_id=OTHER_ID, take_over=True)
    for read_only in (True, False):
        with open_at(where, read_only=read_only, take_over=True) as store:
            assert store.describe_topic("t")[:3] == ("t", 2, OTHER_ID)
    assert values_in(where, "t-1") == [b"new"]
    assert sorted(folders(where)) == ["t-1"]


@pytest.mark.parametrize("topic_id", [OTHER_ID, None])
def test_what_others_made_of_a_deleted_name_is_theirs(tmp_path: Path, topic_id: str | None) -> None:
    """An interrupted deletion continues, and deletes only its own topic."""
    where = str(tmp_path / "data")
    with open_at(where) as store:
        store.create_topic("t", 2, topic_id=ID)
    content = written(where)
    content["known"]["t"]["deleted"] = True
    content["revision"] += 1
    Path(where, TOPIC_CONFIGS_FILE).write_text(json.dumps(content))
    shutil.rmtree(folders(where)["t-1"])
    write_by_hand(where, "t-1", b"theirs", **({} if topic_id is None else {"topic_id": topic_id}))
    with open_at(where) as store:
        assert store.topics() == ["t"]
        info = store.describe_topic("t")
        assert info.topic_id != ID
        assert topic_id in (None, info.topic_id)
        assert sorted(folders(where)) == ["t-1"]
    assert values_in(where, "t-1") == [b"theirs"]


@pytest.mark.parametrize(("numbers", "count"), [(range(10), 10), ((0, 7, 12), 50), ((3, 77), 78)])
def test_how_many_partitions_a_brokers_offsets_have(tmp_path: Path, numbers: Any, count: int) -> None:
    """All of them here: as many as there are.  With gaps: the others are elsewhere, and Kafka makes 50."""
    where = str(tmp_path / "data")
    for number in numbers:
        write_by_hand(where, f"{GROUPS}-{number}", topic_id=ID)
    with open_at(where) as store:
        home = store._home
        home.offsets("group", create=True)
        assert home.coordinators.offsets_partitions == count  # type: ignore[union-attr]
        assert store.describe_topic(GROUPS).topic_id == ID
    with open_at(where) as store:
        assert store.describe_topic(GROUPS).partitions == count


def test_a_clusters_metadata_is_no_topic(tmp_path: Path) -> None:
    where = str(tmp_path / "data")
    metadata_log(Path(where), topic("orders"))
    for read_only in (False, True):
        with open_at(where, read_only=read_only, take_over=not read_only) as store:
            assert store.topics() == []


# --- directories ---------------------------------------------------------------------------------------


def test_without_one_of_its_directories_nothing_empty_takes_its_place(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 4)
        topic.append_many([b"%d" % number for number in range(50)])
        assert len(topic.append_many([b"x"] * 4, partition=1)) == 1
        info = topic.info
    before = folders(*dirs)
    with open_at(dirs[0]) as store:
        assert store.describe_topic("t") == info
        missing = next(number for number in range(4) if not before[f"t-{number}"].startswith(dirs[0]))
        with pytest.raises(KafkaStorageException, match=f"t-{missing} has no directory"):
            store.topic("t").append(b"x", partition=missing)
        assert store.topic("t").append(b"x").partition != missing
    assert folders(*dirs) == before
    with open_at(dirs) as store:
        assert store.describe_topic("t") == info
        assert store.topic("t").append(b"x", partition=missing).offset >= 0


def test_a_name_that_was_made_again_without_one_of_its_directories(tmp_path: Path) -> None:
    """Folders of the old topic are set aside, and not taken for the new one's."""
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        store.create_topic("t", 4).append_many([b"old"] * 400)
    with open_at(dirs[0]) as store:
        store.delete_topic("t")
        assert store.topics() == []
        new = store.create_topic("t", 4).info
        store.topic("t").append(b"new", partition=0)
    with open_at(dirs) as store:
        assert store.describe_topic("t") == new
        for number in range(4):
            log = store.manager.get_log(TopicPartition("t", number))
            assert log is not None
            assert log.parent_dir == dirs[0]
    assert [name for name in os.listdir(dirs[1]) if name.endswith("-stray")]
    with open_at(dirs) as store:
        assert store.describe_topic("t") == new


def test_a_topic_that_was_deleted_without_one_of_its_directories(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        store.create_topic("t", 4).append_many([b"old"] * 400)
    with open_at(dirs[0]) as store:
        store.delete_topic("t")
    with open_at(dirs, read_only=True) as store:
        assert store.topics() == []
    with open_at(dirs) as store:
        assert store.topics() == []
        assert not folders(*dirs)


def failing(dirs: list[str], bad: int) -> tuple[FaultyFiles, Callable[[], None]]:
    files = FaultyFiles(FAST)

    def fail() -> None:
        files.fault = Fault(0, errno.EIO, True, None, lambda path: (path + os.sep).startswith(dirs[bad] + os.sep))

    return files, fail


def test_a_directory_fails(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    files, fail = failing(dirs, 1)
    with open_at(dirs, files=files) as store:
        topic = store.create_topic("t", 4)
        lost = [n for n in range(4) if folders(*dirs)[f"t-{n}"].startswith(dirs[1])]
        fail()
        with pytest.raises(KafkaStorageException):
            topic.append(b"x", partition=lost[0])
        store.manager.handle_log_dir_failure(dirs[1])
        assert store.topics() == ["t"]
        assert topic.partitions == 4
        for number in lost:
            with pytest.raises(KafkaStorageException, match=rf"t-{number} is offline, with .*disk1"):
                topic.append(b"x", partition=number)
        assert {topic.append(b"x" * STICKY_BYTES).partition for _ in range(40)}.isdisjoint(lost)
        new = store.create_topic("u", 3)  # all there, in the directory that is left
        new.append_many([b"x"], partition=2)
        store.add_partitions("t", 6)
        store.alter_topic("t", {"retention.ms": "5"})
        store.create_topic("v", 2)
        store.delete_topic("v")
        known = store.describe_topic("t")
    with open_at(dirs) as store:
        assert store.describe_topic("t") == known
        assert store.topics() == ["t", "u"]
        for number in range(6):
            store.topic("t").append(b"x", partition=number)
    assert {topic_id_of(path) for name, path in folders(*dirs).items() if name.startswith("t-")} == {known.topic_id}


def test_a_deletion_reaches_a_directory_that_comes_back(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    files, fail = failing(dirs, 1)
    with open_at(dirs, files=files) as store:
        store.create_topic("t", 4).append_many([b"old"] * 100)
        store.create_topic("again", 4, topic_id=ID)
        fail()
        store.manager.failure_channel.maybe_add_offline_log_dir(dirs[1], "test", OSError())
        store.manager.handle_log_dir_failure(dirs[1])
        store.delete_topic("t")
        store.delete_topic("again")
        assert store.topics() == []
        again = store.create_topic("again", 4).info
    assert any(name.startswith("t-") for name in folders(dirs[1]))
    with open_at(dirs) as store:
        assert store.topics() == ["again"]
        assert store.describe_topic("again") == again
        assert len(folders(*dirs)) == 4
    assert {topic_id_of(path) for path in folders(*dirs).values()} == {again.topic_id}


def test_offsets_that_may_be_offline_are_not_made_anew(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    files, fail = failing(dirs, 1)
    with open_at(dirs, files=files) as store:
        store.create_topic("t", 2)
        fail()
        store.manager.failure_channel.maybe_add_offline_log_dir(dirs[1], "test", OSError())
        store.manager.handle_log_dir_failure(dirs[1])
        with pytest.raises(KafkaStorageException, match="offline"):
            store._home.offsets("group", create=True)


def test_cordoned_directories_take_nothing_new(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs, settings=ManagerSettings(cordoned_log_dirs=(dirs[0],))) as store:
        store.create_topic("t", 3)
        store.add_partitions("t", 5)
    assert len(folders(dirs[1])) == 5


def test_appends_follow_a_moved_partition(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 1)
        given = 0
        for turn in range(6):
            given += len(topic.append_many([b"%d" % (given + number) for number in range(20)])[0])
            log = store.manager.get_log("t-0")
            assert log is not None
            there = dirs[1] if log.parent_dir == dirs[0] else dirs[0]
            store.manager.move("t-0", there)
            assert topic.append(b"%d" % given).offset == given, turn
            given += 1
    [path] = folders(*dirs).values()
    assert values_in(os.path.dirname(path), "t-0") == [b"%d" % number for number in range(given)]


def test_an_append_beside_a_move_that_an_interrupt_came_out_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 1)
        topic.append(b"1")
        log = store.manager.get_log("t-0")
        assert log is not None
        refuse = type(log).refuse_changes

        def cut(log: UnifiedLog) -> None:
            refuse(log)
            raise KeyboardInterrupt

        monkeypatch.setattr(type(log), "refuse_changes", cut)
        with pytest.raises(KeyboardInterrupt):
            store.manager.move("t-0", dirs[1] if log.parent_dir == dirs[0] else dirs[0])
        monkeypatch.undo()
        assert topic.append(b"2").offset == 1
        assert store.manager.get_log("t-0") is not log


def test_a_moved_partition_knows_its_aborted_records(tmp_path: Path) -> None:
    """Transactions of one producer, one after the other below an open one, which a move copies together."""
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        topic = store.create_topic("t", 1)
        for _ in range(3):
            with contextlib.suppress(ZeroDivisionError), store.transaction("a") as txn:
                txn.append("t", b"aborted")
                raise ZeroDivisionError
        opened = store.transaction("b")
        opened.begin()
        opened.append("t", b"open")
        topic.append(b"behind")
        log = store.manager.get_log("t-0")
        assert log is not None
        store.manager.move("t-0", dirs[1] if log.parent_dir == dirs[0] else dirs[0])
        for offset in range(6):
            with store.reader(
                partitions=["t-0"], start_offsets={"t-0": offset}, isolation="read_committed", chunk_bytes=1
            ) as reader:
                assert not list(reader), offset
        opened.commit()
    for path in dirs:
        report = verify(path, deep=True)
        assert report.ok, report.findings


def test_the_start_of_a_log_moves_on_while_a_reader_goes_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t", 1)
    topic.append_many([b"%d" % number for number in range(10)])
    reset = ChunkReader._reset_offset

    def late(reader: ChunkReader) -> int:
        found = reset(reader)
        if found < 8:
            topic.delete_records(found + 3, 0)
        return found

    with store.reader(topics=["t"]) as reader:
        topic.delete_records(2, 0)
        monkeypatch.setattr(ChunkReader, "_reset_offset", late)
        assert [record.offset for record in reader] == [8, 9]


# --- the settings' file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"{", b"[]", b"null", b'{"version": 0}', b'{"version": 1, "revision": 1, "topics": {}}',
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {}}}',
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {"partitions": 0, "id": "%s"}}}' % ID.encode(),
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {"partitions": 1, "id": "x"}}}',
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"/": {"partitions": 1, "id": "%s"}}}' % ID.encode(),
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {"partitions": 2, "made": 2, "id": "%s"}}}'
        % ID.encode(),
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {"partitions": 2, "gone": "x", "id": "%s"}}}'
        % ID.encode(),
        b'{"version": 0, "revision": 1, "topics": {}, "known": {"t": {"partitions": 2, "gone": [1], "id": "%s"}}}'
        % ID.encode(),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as store:
        store.create_topic("t", 2, config={"retention.ms": "-1"})
        info = store.describe_topic("t")
    for path in dirs:
        Path(path, TOPIC_CONFIGS_FILE).write_bytes(damaged)
    for read_only in (False, True):
        with pytest.raises(CorruptCheckpointException, match=re.escape(TOPIC_CONFIGS_FILE)):
            open_at(dirs, read_only=read_only).describe_topic("t")
    config = LogConfig.from_props(None, {})
    with kafkalog.open_log(dirs[0], "z-0", config=config, files=FAST):  # the locks were given back
        pass
    Path(dirs[1], TOPIC_CONFIGS_FILE).write_text(
        json.dumps({
            "version": 0, "revision": 9, "topics": {"t": {"retention.ms": "-1"}},
            "known": {"t": {"partitions": 2, "id": info.topic_id}},
        })
    )  # fmt: skip
    for read_only in (True, False):
        with open_at(dirs, read_only=read_only) as store:  # one is enough
            assert store.describe_topic("t") == info


# --- beside a writer -----------------------------------------------------------------------------------


def test_a_look_beside_a_writer(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as writer, open_at(dirs, read_only=True) as look:
        assert look.read_only
        assert not writer.read_only
        assert look.topics() == []
        writer.create_topic("t", 3, config={"retention.ms": "-1"})
        assert look.topics() == ["t"]
        assert look.describe_topic("t") == writer.describe_topic("t")
        assert look.topic("t").partitions == 3
        writer.add_partitions("t", 5)
        writer.alter_topic("t", {"retention.ms": None})
        assert look.describe_topic("t") == writer.describe_topic("t")
        assert look.topic("t").partitions == 5
        writer.delete_topic("t")
        assert look.topics() == []
        with pytest.raises(UnknownTopicOrPartitionException, match="no topic 't'"):
            look.topic("t")
        writer.create_topic("t", 1)
        assert look.describe_topic("t") == writer.describe_topic("t")


def test_a_look_finds_a_partition_that_moved(tmp_path: Path) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as writer, open_at(dirs, read_only=True) as look:
        topic = writer.create_topic("t", 1)
        topic.append(b"x")
        assert look._home.source(TopicPartition("t", 0)).log_end_offset == 1
        log = writer.manager.get_log("t-0")
        assert log is not None
        writer.manager.move("t-0", dirs[1] if log.parent_dir == dirs[0] else dirs[0])
        topic.append(b"y")
        assert look._home.source(TopicPartition("t", 0)).log_end_offset == 2
        with look.reader(topics=["t"]) as reader:
            assert [record.value for record in reader] == [b"x", b"y"]
            writer.manager.move("t-0", log.parent_dir)
            topic.append(b"z")
            assert [record.value for record in reader.poll(timeout_ms=5000)] == [b"z"]
            assert reader.lag() == {TopicPartition("t", 0): 0}
        writer.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionException):
            look._home.source(TopicPartition("t", 0))


@pytest.mark.parametrize("there", [0, 1])
def test_a_look_while_a_partition_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    dirs = dirs_below(tmp_path)
    with open_at(dirs) as writer, open_at(dirs, read_only=True) as look:
        writer.create_topic("t", 1)
        writer.manager.move("t-0", dirs[1 - there])
        listed = log_dirs.list_partitions
        looks = []

        def list_partitions(directory: str, *, files: Files) -> list[TopicPartition]:
            found = listed(directory, files=files)
            looks.append(directory)
            if len(looks) == 1:
                writer.manager.move("t-0", dirs[there])
            return found

        monkeypatch.setattr(log_dirs, "list_partitions", list_partitions)
        assert look.describe_topic("t").partitions == 1
        assert looks


def test_settings_that_change_while_a_partition_is_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch maker has the new ones, although nobody could find it to tell it."""
    store.create_topic("t")
    made = StorePartition.__init__

    def late(self: StorePartition, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        monkeypatch.undo()
        store.alter_topic("t", {"max.message.bytes": "5000"})

    monkeypatch.setattr(StorePartition, "__init__", late)
    partition = store.topic("t").appends(0)
    assert partition.batch_maker.written_bytes_max == 5000


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "data"
    with open_at(where) as store:
        store.create_topic("t")
    before = {path: path.read_bytes() for path in sorted(where.rglob("*")) if path.is_file()}
    with open_at(where, read_only=True) as look:
        topic = look.topic("t")
        for call in (
            lambda: topic.append(b"x"), lambda: topic.append_many([b"x"]), lambda: look.create_topic("u"),
            lambda: look.delete_topic("t"), lambda: look.alter_topic("t", {}), lambda: look.add_partitions("t", 2),
            lambda: look.manager, lambda: look.create_topic("t", exist_ok=True),
        ):  # fmt: skip
            with pytest.raises(LogReadOnlyException, match="read_only=False"):
                call()
        assert repr(look) == f"<Store of {where}, read-only: 1 topic>"
    assert look.closed
    with pytest.raises(IllegalStateException, match=r"is closed \(kafkalog.open opens it again\)"):
        look.topics()
    assert {path: path.read_bytes() for path in sorted(where.rglob("*")) if path.is_file()} == before


def test_what_is_no_log_directory_is_not_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionException, match="no such log directory"):
        open_at(tmp_path / "nothing", read_only=True)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IllegalArgumentException, match="found a file"):
        open_at(tmp_path / "file", read_only=True)
    with pytest.raises(IllegalArgumentException, match="found a file"):
        open_at(tmp_path / "file")


# --- life ----------------------------------------------------------------------------------------------


def test_two_stores_of_one_directory(tmp_path: Path) -> None:
    where = tmp_path / "data"
    with open_at(where) as store:
        for _ in range(2):
            with pytest.raises(LogDirLockedException, match="is open in this process already"):
                open_at(where, durability="fsync")
            with pytest.raises(LogDirLockedException):
                kafkalog.open_log(where, "t-0", files=FAST)
        store.create_topic("t").append(b"x")
    with kafkalog.open_log(where, "t-0", files=FAST), pytest.raises(LogDirLockedException):
        open_at(where)
    with open_at(where) as store:
        assert store.topic("t").append(b"y").offset == 1


def test_after_the_close(tmp_path: Path) -> None:
    store = open_at(tmp_path / "data")
    topic = store.create_topic("t")
    topic.append(b"x")
    assert repr(store) == f"<Store of {tmp_path / 'data'}, open: 1 topic>"
    manager = store.manager
    store.close()
    store.close()
    assert store.closed
    for call in (
        lambda: store.topics(), lambda: store.topic("t"), lambda: "t" in store, lambda: store.describe_topic("t"),
        lambda: store.create_topic("u"), lambda: store.alter_topic("t", {}), lambda: store.add_partitions("t", 2),
        lambda: store.delete_topic("t"), lambda: store.manager, lambda: topic.append(b"x"), lambda: topic.info,
        lambda: topic.append_many([b"x"]), lambda: topic.partitions, lambda: topic.append(b"x", partition=0),
        # A call that began before the close may reach the manager.  It gets the store's error there.
        lambda: manager.get_or_create_log("u-0", is_new=True), lambda: manager.set_topic_config("t", {}),
    ):  # fmt: skip
        with pytest.raises(IllegalStateException, match=r"store of .*data is closed \(kafkalog.open opens it again\)"):
            call()
    assert repr(store) == f"<Store of {tmp_path / 'data'}, closed>"


def test_open_log_and_a_store_one_after_the_other(tmp_path: Path) -> None:
    where = str(tmp_path / "data")
    with open_at(where) as store:
        store.create_topic("t", 2, config={"segment.bytes": "1048576", "max.message.bytes": "2000"}).append_many(
            [b"a", b"b"], partition=1
        )
        info = store.describe_topic("t")
    with kafkalog.open_log(where, "t-1", files=FAST) as log:
        assert log.engine is not None
        assert log.engine.topic_id == info.topic_id
        assert log.engine.config.segment_size == 1048576
        assert log.high_watermark == log.end_offset == 2
        log.writer("w").append(b"c")
        with pytest.raises(kafkalog.KafkalogError):
            log.append(os.urandom(3000))
    with open_at(where) as store:
        assert store.describe_topic("t") == info
        engine = store.manager.get_log("t-1")
        assert engine is not None
        assert engine.high_watermark == engine.log_end_offset == 3
        assert len(engine.producer_state_manager.active_producers) == 1
        assert store.topic("t").append(b"d", partition=1).offset == 3
    with kafkalog.open_log(where, "t-1", files=FAST) as log:
        assert log.high_watermark == 4
        assert [record.value for record in log] == [b"a", b"b", b"c", b"d"]
        assert log.writer("w").append(b"e") == 4


# --- opening -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"durability": "soon"}, IllegalArgumentException),
        ({"durability": None}, IllegalArgumentException),
        ({"read_only": "yes"}, IllegalArgumentException),
        ({"maintenance": "yes"}, IllegalArgumentException),
        ({"maintenance": None, "read_only": True}, IllegalArgumentException),
        ({"config": {"retention.ms": "soon"}}, ConfigException),
        ({"config": {"nothing": "5"}}, ConfigException),
        ({"config": {"retention.ms": 5}}, IllegalArgumentException),
        ({"config": ["x"]}, IllegalArgumentException),
        ({"compression": "brotli"}, UnsupportedCompressionTypeException),
        ({"compression": 5}, UnsupportedCompressionTypeException),
        ({"settings": {"retention_check_ms": 5}}, IllegalArgumentException),
        ({"settings": ManagerSettings(retention_check_ms=0)}, IllegalArgumentException),
        ({"metrics": "x"}, IllegalArgumentException),
        ({"clock": 5}, IllegalArgumentException),
        ({"cursors": "somewhere"}, IllegalArgumentException),
        ({"read_only": True, "config": {}}, IllegalArgumentException),
        ({"read_only": True, "settings": ManagerSettings()}, IllegalArgumentException),
        ({"read_only": True, "compression": "zstd"}, IllegalArgumentException),
        ({"read_only": True, "cursors": 5}, IllegalArgumentException),
    ],
)
def test_wrong_options_make_nothing(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    where = tmp_path / "data"
    if options.get("read_only") is True:
        where.mkdir()
    with pytest.raises(error):
        open_at(where, **options)
    assert not where.exists() or not os.listdir(where)


@pytest.mark.parametrize("wrong", [5, None, [5], [], "", [""], b""])
@pytest.mark.parametrize("read_only", [True, False])
def test_wrong_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any, read_only: bool) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kafkalog.KafkalogError):
        kafkalog.open(wrong, read_only=read_only)
    assert os.listdir(tmp_path) == []


def test_defaults_of_all_topics(tmp_path: Path) -> None:
    settings = ManagerSettings(LogConfig.from_props(None, {"retention.ms": "5", "segment.bytes": "1048576"}))
    with open_at(tmp_path / "data", settings=settings, config={"retention.ms": "6"}) as store:
        store.create_topic("t", config={"flush.ms": "7"})
        log = store.manager.get_log("t-0")
        assert log is not None
        assert (log.config.retention_ms, log.config.segment_size, log.config.flush_ms) == (6, 1048576, 7)
        assert store.describe_topic("t").overrides == {"flush.ms": "7"}


def test_without_maintenance(tmp_path: Path) -> None:
    with open_at(tmp_path / "data", maintenance=False) as store:
        assert store.manager.cleaner is None
        store.create_topic("t").append(b"x")
    with open_at(tmp_path / "data") as store:
        assert store.manager.cleaner is not None


def test_without_maintenance_nothing_old_goes(tmp_path: Path) -> None:
    root, clock = tmp_path / "data", ManualClock(NOW_MS)
    week_ms = 7 * 86_400_000

    def run_tasks(store: Store) -> None:
        """Runs the scheduler's tasks by hand: the first ones and all that these schedule."""
        scheduler = store.manager.scheduler
        assert isinstance(scheduler, ThreadScheduler)
        for task in scheduler.pending:
            task.fn()

    def count_of_old(store: Store) -> int:
        with store.reader(topics=["old"]) as reader:
            return len(list(reader))

    def of_deleted() -> list[str]:
        return sorted(name.partition(".")[0] for name in os.listdir(root) if name.endswith("-delete"))

    with open_at(root, clock=clock, maintenance=False) as store:
        old = store.create_topic("old", config={"retention.ms": "1000"})
        old.append_many([b"%d" % number for number in range(100)])
        store.create_topic("theirs").append(b"x")
        with store.reader("c", topics=["old"]) as reader:
            reader.poll(5)
            reader.commit()
        store.delete_topic("theirs")
    clock.advance_to(NOW_MS + 2 * week_ms)
    with open_at(root, clock=clock, maintenance=False) as store:
        store.create_topic("ours").append(b"x")
        store.delete_topic("ours")
        assert of_deleted() == ["ours-0", "theirs-0"]
        clock.advance_to(clock.milliseconds() + week_ms)
        run_tasks(store)
        assert of_deleted() == ["theirs-0"]
        assert count_of_old(store) == 100
        assert [each.offset for each in store.committed("c").values()] == [5]
    with open_at(root, clock=clock) as store:
        run_tasks(store)
        clock.advance_to(clock.milliseconds() + week_ms)
        run_tasks(store)
        assert of_deleted() == []
        assert count_of_old(store) == 0


# --- wrong types ---------------------------------------------------------------------------------------

WRONG_NAMES = (None, 5, b"t", ["t"], object(), "\udcff")


@pytest.mark.parametrize("wrong", WRONG_NAMES)
def test_wrong_names(store: Store, wrong: Any) -> None:
    store.create_topic("t", config={"retention.ms": "5"})
    before = store.describe_topic("t")
    for call in (
        lambda: store.topic(wrong), lambda: store.describe_topic(wrong), lambda: store.create_topic(wrong),
        lambda: store.create_topic(wrong, exist_ok=True), lambda: store.alter_topic(wrong, {}),
        lambda: store.add_partitions(wrong, 5), lambda: store.delete_topic(wrong),
    ):  # fmt: skip
        with pytest.raises(IllegalArgumentException, match=r"found .*expected text"):
            call()
    assert wrong not in store
    assert store.topics() == ["t"]
    assert store.describe_topic("t") == before


@pytest.mark.parametrize("wrong", [None, "5", 5.0, b"5", [5], object()])
def test_wrong_numbers(store: Store, wrong: Any) -> None:
    topic = store.create_topic("t")
    for call in (lambda: store.create_topic("u", wrong), lambda: store.add_partitions("t", wrong)):
        with pytest.raises(IllegalArgumentException, match="partitions: found"):
            call()
    with pytest.raises(IllegalArgumentException, match="exist_ok"):
        store.create_topic("u", exist_ok=5)  # type: ignore[arg-type]
    if wrong is not None:
        with pytest.raises(IllegalArgumentException, match="partition: found"):
            topic.append(b"x", partition=wrong)
        with pytest.raises(IllegalArgumentException, match="partition: found"):
            topic.append_many([b"x"], partition=wrong)
    with pytest.raises(IllegalArgumentException, match="config"):
        store.alter_topic("t", wrong)
    assert store.topics() == ["t"]
    log = store.manager.get_log("t-0")
    assert log is not None
    assert log.log_end_offset == 0


def test_wrong_records(store: Store) -> None:
    topic = store.create_topic("t", 3)
    wrong: list[Callable[[], object]] = [
        lambda: topic.append("text"), lambda: topic.append(5), lambda: topic.append(b"x", key="k"),  # type: ignore[arg-type]
        lambda: topic.append(b"x", headers=5), lambda: topic.append(b"x", timestamp="now"),  # type: ignore[arg-type]
        lambda: topic.append(b"x", headers=[("k", "v")]), lambda: topic.append(b"x", partition=-1),  # type: ignore[list-item]
        lambda: topic.append_many(b"abc"), lambda: topic.append_many("abc"), lambda: topic.append_many(5),  # type: ignore[arg-type]
        lambda: topic.append_many([b"good", "bad"]), lambda: topic.append_many([(b"x", "k")]),
        lambda: topic.append_many([b"good", 5], partition=2),
        lambda: topic.append(b"x", key=b"k", headers=5), lambda: topic.append(b"x", timestamp=1 << 70),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call in wrong:
        with pytest.raises(IllegalArgumentException):
            call()
    assert [store.manager.get_log(f"t-{number}").log_end_offset for number in range(3)] == [0, 0, 0]  # type: ignore[union-attr]


# --- the partitioner -----------------------------------------------------------------------------------


def test_where_records_go(store: Store) -> None:
    topic = store.create_topic("t", 7)
    keys = [b"key-%d" % number for number in range(50)]
    offsets = topic.append_many([(b"v", key) for key in keys])
    wanted: dict[int, int] = {}
    for key in keys:
        wanted[partition_for_key(key, 7)] = wanted.get(partition_for_key(key, 7), 0) + 1
    assert {number: len(found) for number, found in offsets.items()} == wanted
    assert topic.append(b"v", key=keys[0], partition=6).partition == 6
    assert topic.append_many([(b"v", key) for key in keys], partition=3) == {
        3: range(wanted.get(3, 0), wanted.get(3, 0) + 50)
    }
    assert topic.append_many([]) == {}
    assert topic.append(None, key=b"gone").partition == partition_for_key(b"gone", 7)


def test_the_sticky_partition() -> None:
    chosen = iter([2, 0, 1])
    sticky = StickyPartition(lambda partitions: next(chosen))
    assert [sticky.take(STICKY_BYTES // 4, range(3)) for _ in range(9)] == [2, 2, 2, 2, 0, 0, 0, 0, 1]
    sticky = StickyPartition(lambda partitions: partitions[-1])
    assert sticky.take(1, range(3)) == 2
    assert sticky.take(1, range(2)) == 1  # its partition no longer exists
    assert sticky.take(1, [0, 5]) == 5


# --- what folders and files say that cannot be ---------------------------------------------------------------


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets", "t"])
def test_a_folder_of_an_absurd_number(tmp_path: Path, topic: str) -> None:
    """It costs no more than any other, and keeps nothing else from being used."""
    folder = tmp_path / f"{topic}-2147483646"
    folder.mkdir()
    (folder / "00000000000000000000.log").touch()
    with kafkalog.open(tmp_path) as store:
        assert store.topics(internal=True) == [topic]
        assert store.cursors() == []
        store.create_topic("well").append(b"1")
        store.delete_topic("well")
        if topic == "t":
            for read in (lambda: store.topic("t").append(b"x", partition=0), lambda: store.reader(topics=["t"])):
                with pytest.raises(InvalidPartitionsException, match="a directory's name says that it has 2147483647"):
                    read()
    if topic == "t":
        with (
            kafkalog.open(tmp_path, read_only=True) as beside,
            pytest.raises(InvalidPartitionsException, match="2147483647"),
        ):
            beside.reader(topics=["t"])


def test_absurd_partitions_in_the_settings_file(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
    file = tmp_path / TOPIC_CONFIGS_FILE
    content = json.loads(file.read_text())
    content["known"]["t"] |= {"partitions": 2147483647, "made": 0}
    file.write_text(json.dumps(content))
    with pytest.raises(CorruptCheckpointException, match="partitions 2147483647"):
        kafkalog.open(tmp_path)
    assert os.listdir(tmp_path / "t-0")


def test_an_append_that_meets_a_deletion_leaves_the_next_topic_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t")
        make, deletions = StorePartition.__init__, iter([None])

        def late(self: StorePartition, *given: Any, **named: Any) -> None:
            make(self, *given, **named)
            for _ in deletions:  # between the look for the log and that it is found to be appended to
                store.delete_topic("t")

        monkeypatch.setattr(StorePartition, "__init__", late)
        with pytest.raises(UnknownTopicOrPartitionException):
            topic.append(b"1")
        topic = store.create_topic("t")
        assert topic.append(b"2").offset == 0
        with store.reader(topics=["t"]) as reader:
            assert [record.value for record in reader] == [b"2"]


def test_a_creation_looks_at_no_other_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation reads no other topic: neither its logs, nor its name if metrics could not tell it from the new one."""
    with kafkalog.open([tmp_path / "a", tmp_path / "b"]) as store:
        for number in range(30):
            store.create_topic(f"topic_{number}")
        walks: list[str] = []
        for owner, name in ((LogRegistry, "all_logs"), (LogRegistry, "in_dir"), (Catalog, "names")):
            found = getattr(owner, name)

            def counted(self: Any, *given: Any, found: Any = found, name: str = name) -> Any:
                walks.append(name)
                return found(self, *given)

            monkeypatch.setattr(owner, name, counted)
        for number in range(30, 60):
            store.create_topic(f"topic_{number}", partitions=2)
            with pytest.raises(InvalidTopicException, match=rf"'topic.{number}' collides with .* topic_{number}$"):
                store.create_topic(f"topic.{number}")
        assert walks == []
        store.delete_topic("topic_40")
        store.create_topic("topic.40")
        with pytest.raises(InvalidTopicException, match=r"collides with existing topic: topic\.40"):
            store.create_topic("topic_40")
        monkeypatch.undo()
        store.manager.get_or_create_log("of.others-0")
        with pytest.raises(InvalidTopicException, match=r"collides with existing topic: of\.others"):
            store.create_topic("of_others")
        counts = [len(folders(str(tmp_path / each))) for each in "ab"]
        assert abs(counts[0] - counts[1]) <= 1, counts
    with kafkalog.open([tmp_path / "a", tmp_path / "b"]) as store:
        assert len(store.topics()) == 61
        with pytest.raises(InvalidTopicException, match="collides with existing topic: topic_3"):
            store.create_topic("topic.3")


def test_what_a_topic_is_follows_what_becomes_of_it(tmp_path: Path) -> None:
    """It is read once while nothing changes: a move, a deletion and a failing disk are changes."""
    dirs = [str(tmp_path / each) for each in "ab"]
    with kafkalog.open(dirs) as store:
        store.create_topic("t", partitions=4).append(b"v", partition=1)
        assert store.describe_topic("t").partitions == 4
        store.add_partitions("t", 6)
        assert store.describe_topic("t").partitions == 6
        log = store.manager.get_log("t-1")
        assert log is not None
        store.manager.move("t-1", dirs[log.parent_dir == dirs[0]])
        assert store.describe_topic("t").partitions == 6
        assert store.topic("t").append(b"v", partition=1).offset == 1
        topic_id = store.describe_topic("t").topic_id
        store.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionException):
            store.describe_topic("t")
        assert store.create_topic("t").info.topic_id != topic_id
        assert store.describe_topic("t").partitions == 1
