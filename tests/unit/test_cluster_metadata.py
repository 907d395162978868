"""The cluster's metadata about topics, which settings count, and an open that deletes nothing if the metadata is
missing."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.cluster_metadata import ClusterMetadata, read_cluster_metadata
from kafkalog._face.missing import missing_partitions
from kafkalog._face.topic_settings import ConfigSource, TopicSettings, broker_properties
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidConfigurationException,
    InvalidTopicException,
    TopicExistsException,
)
from kafkalog.store import Store
from tests.unit import cluster_kit as kit
from tests.unit.cli_kit import Run, run
from tests.unit.cluster_kit import Row, config, removed, topic

__all__ = ["run"]

OLD_MS = 1_600_000_000_000
COUNT = 60
SMALL = {"internal.segment.bytes": "500", "file.delete.delay.ms": "0"}
DAY_MS = 24 * 3600 * 1000
CENTURY_MS = str(100 * 365 * DAY_MS)


def read(*log_dirs: Path, known: ClusterMetadata | None = None) -> ClusterMetadata:
    found = read_cluster_metadata(list(map(str, log_dirs)), OS_FILES, known=known)
    assert found is not None
    return found


def settings(*log_dirs: Path, **options: Any) -> TopicSettings:
    return TopicSettings(list(map(str, log_dirs)), **options)


def filled(root: Path, *topics: str, topic_ids: dict[str, str] = kit.TOPIC_IDS) -> Path:
    """Old records in partition 0 of each topic, in many segments; then it is a broker's directory."""
    for name in topics:
        with kafkalog.open_log(root, f"{name}-0", config=SMALL, topic_id=topic_ids[name]) as log:
            for number in range(COUNT):
                log.append(b"value %d" % number, key=b"key %d" % number, timestamp=OLD_MS + number)
    return kit.formatted(root)


def left(store: Store, name: str) -> int:
    """How many records a topic has after a pass of retention."""
    store.manager.cleanup_logs()
    return count(store, name)


def count(store: Store, name: str) -> int:
    with store.reader(topics=[name]) as reader:
        return len(reader.poll(10 * COUNT))


# --- what is read --------------------------------------------------------------------------------------


def test_a_log(tmp_path: Path) -> None:
    rows = [
        *topic("orders", 3), config("retention.ms", "5", topic="orders"), config("segment.ms", "6", topic="orders"),
        config("log.retention.ms", "7"), config("log.roll.ms", "8"), config("log.roll.ms", "9", broker="1"),
        config("log.roll.ms", "10", broker="2"), config("segment.ms", None, topic="orders"),
    ]  # fmt: skip
    kit.metadata_log(kit.formatted(tmp_path), rows)
    found = read(tmp_path)
    assert found.is_whole
    assert found.end_offset == len(rows)
    orders = found.topics["orders"]
    assert (orders.topic_id, orders.partitions, orders.overrides) == (kit.TOPIC_IDS["orders"], 3, {"retention.ms": "5"})
    assert found.dynamic == {"log.retention.ms": "7", "log.roll.ms": "9"}
    assert read(tmp_path, known=found) is found  # no file has changed


def test_a_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    kit.formatted(tmp_path)
    kit.metadata_log(tmp_path, [removed("orders"), config("retention.ms", "6", topic="kept")], base_offset=30)
    kit.snapshot(tmp_path, topic("other"), 10)  # an older one counts for nothing
    kit.snapshot(tmp_path, [*topic("orders"), *topic("kept"), config("retention.ms", "5", topic="orders")], 30)
    found = read(tmp_path)
    assert (found.is_whole, found.end_offset, list(found.topics)) == (True, 32, ["kept"])
    assert found.topics["kept"].overrides == {"retention.ms": "6"}


def test_what_the_snapshot_has_is_not_taken_twice(tmp_path: Path) -> None:
    kit.formatted(tmp_path)
    kit.metadata_log(tmp_path, [*topic("orders"), config("retention.ms", "5", topic="orders"), removed("orders")])
    kit.snapshot(tmp_path, topic("kept"), 3)
    assert list(read(tmp_path).topics) == ["kept"]


def test_a_topic_that_was_made_again_has_nothing_of_the_one_before(tmp_path: Path) -> None:
    again = topic("orders", 2, topic_id=kit.TOPIC_IDS["other"])
    rows = [*topic("orders", 4), config("retention.ms", "5", topic="orders"), removed("orders"), *again]
    kit.metadata_log(kit.formatted(tmp_path), rows)
    orders = read(tmp_path).topics["orders"]
    assert (orders.topic_id, orders.partitions, orders.overrides) == (kit.TOPIC_IDS["other"], 2, {})


@pytest.mark.parametrize("ending", ["END", "ABORT", None])
def test_a_transaction_counts_when_it_has_ended(tmp_path: Path, ending: str | None) -> None:
    rows: list[Row] = [("BEGIN_TRANSACTION_RECORD", {"name": "bootstrap"}, 0), *topic("orders")]
    if ending is not None:
        rows.append((f"{ending}_TRANSACTION_RECORD", {"reason": None} if ending == "ABORT" else {}, 0))
    kit.metadata_log(kit.formatted(tmp_path), [*rows, *topic("kept")] if ending else rows)
    wanted = {"END": ["kept", "orders"], "ABORT": ["kept"], None: []}
    assert list(read(tmp_path).topics) == wanted[ending]


def test_replicas_that_move(tmp_path: Path) -> None:
    change = {"partitionId": 1, "topicId": kit.TOPIC_IDS["orders"], "replicas": [2, 3]}
    nothing = {"partitionId": 0, "topicId": kit.TOPIC_IDS["orders"], "leader": 1}
    moved = [("PARTITION_CHANGE_RECORD", _with_defaults(each), 0) for each in (change, nothing)]
    kit.metadata_log(kit.formatted(tmp_path), [*topic("orders", 3), *moved])
    orders = read(tmp_path).topics["orders"]
    assert (orders.partitions, orders.on_node(1), orders.on_node(2), orders.on_node(None)) == (
        3,
        [0, 2],
        [1],
        [0, 1, 2],
    )


def _with_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    none = dict.fromkeys(("isr", "replicas", "removingReplicas", "addingReplicas"))
    return {**none, "leader": -2, "leaderRecoveryState": -1, **fields}


def test_damage_is_told_and_nothing_counts_as_known(tmp_path: Path) -> None:
    rows = [*topic("orders"), config("retention.ms", "5", topic="orders")]
    kit.metadata_log(kit.formatted(tmp_path), [])
    path = kit.snapshot(tmp_path, rows, 3)
    whole = path.read_bytes()
    assert settings(tmp_path).knows("orders")
    for at in (70, len(whole) - 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = settings(tmp_path)
        assert found.cluster is not None
        assert found.cluster.problem is not None
        assert str(path) in str(found.cluster.problem)
        assert not found.knows("orders")
    for cut in (len(whole) - 1, 30):
        path.write_bytes(whole[:cut])
        assert not settings(tmp_path).knows("orders")


@pytest.mark.parametrize("damage", ["torn", "crc", "gap"])
def test_damage_in_the_log_is_told(tmp_path: Path, damage: str) -> None:
    kit.formatted(tmp_path)
    first, second = kit.batch(topic("orders")), kit.batch([config("retention.ms", "9999", topic="orders")], 2)
    third = kit.batch(topic("kept"), 3)
    flipped = second.replace(b"9999", b"0009")
    written = {"torn": first + second + third[:-5], "crc": first + flipped + third, "gap": first + third}
    folder = kit.metadata_log(tmp_path, [])
    (folder / f"{0:020d}.log").write_bytes(first + second + third)
    assert settings(tmp_path).knows("orders")
    (folder / f"{0:020d}.log").write_bytes(written[damage])
    assert read(tmp_path).problem is not None
    assert not settings(tmp_path).knows("orders")


def test_a_snapshot_without_its_end_is_not_whole(tmp_path: Path) -> None:
    path = kit.snapshot(kit.formatted(tmp_path), topic("orders"), 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(kit.batch(topic("orders"))) + len(kit.batch(topic("orders")))])
    assert "found no footer" in str(read(tmp_path).problem)


def test_a_log_that_begins_behind_the_snapshot_is_not_whole(tmp_path: Path) -> None:
    kit.metadata_log(kit.formatted(tmp_path), topic("kept"), base_offset=40)
    kit.snapshot(tmp_path, topic("orders"), 30)
    assert "found a batch at offset 40, expected offset 30" in str(read(tmp_path).problem)


def test_a_record_that_nobody_understands_is_a_problem(tmp_path: Path) -> None:
    folder = kit.metadata_log(kit.formatted(tmp_path), topic("orders"))
    builder = MemoryRecordsBuilder(base_offset=2)
    builder.append(OLD_MS, None, b"\x01\x02\x00\xff")  # a topic's record that is truncated
    with (folder / f"{0:020d}.log").open("ab") as file:
        file.write(builder.build())
    assert read(tmp_path).problem is not None


def test_directories_of_two_nodes(tmp_path: Path) -> None:
    kit.metadata_log(kit.formatted(tmp_path / "a"), topic("orders"))
    kit.formatted(tmp_path / "b", node_id=2)
    assert read(tmp_path / "a").is_whole
    assert "found node 2 of cluster" in str(read(tmp_path / "a", tmp_path / "b").problem)


# --- what counts, and where it comes from -----------------------------------------------------------------


def test_layers(tmp_path: Path) -> None:
    rows = [
        *topic("orders"), *topic("kept"), config("retention.ms", "1", topic="orders"), config("log.roll.ms", "2"),
        config("log.retention.ms", "3"), config("log.flush.interval.ms", "4", broker="1"),
    ]  # fmt: skip
    kit.metadata_log(filled(tmp_path, "orders", "kept"), rows)
    static = {"log.retention.hours": "1", "log.roll.ms": "20", "log.retention.bytes": "500"}
    found = settings(tmp_path, given={"segment.bytes": "1048577"}, broker=static)
    keys = ("segment.bytes", "retention.ms", "segment.ms", "flush.ms", "retention.bytes", "cleanup.policy")
    assert found.described("orders", keys) == {
        "segment.bytes": (1048577, ConfigSource.GIVEN), "retention.ms": (1, ConfigSource.TOPIC),
        "segment.ms": (2, ConfigSource.DYNAMIC),
        "flush.ms": (4, ConfigSource.DYNAMIC), "retention.bytes": (500, ConfigSource.STATIC),
        "cleanup.policy": (("delete",), ConfigSource.DEFAULT),
    }  # fmt: skip
    assert found.described("kept", keys[1:2]) == {"retention.ms": (3, ConfigSource.DYNAMIC)}
    found = settings(tmp_path)
    assert found.source("orders", "cleanup.policy") is ConfigSource.GUESS  # server.properties may say something else
    assert found.source("orders", "segment.ms") is ConfigSource.DYNAMIC
    assert found.source("other", "segment.ms") is ConfigSource.DYNAMIC_UNSURE  # a topic's own is not known
    assert not found.is_known("other", "retention.ms")


def test_settings_of_a_topic_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    rows = [*topic("orders", topic_id=kit.TOPIC_IDS["other"]), config("retention.ms", "1", topic="orders")]
    kit.metadata_log(filled(tmp_path, "orders"), rows)  # the directory has the id of the topic before
    found = settings(tmp_path)
    assert not found.knows("orders")
    assert found.own("orders") == {}


def test_a_directory_of_nobody_knows_whose(tmp_path: Path) -> None:
    kafkalog.open_log(tmp_path, "orders-0").close()
    assert settings(tmp_path).source("orders", "retention.ms") is ConfigSource.GUESS
    with kafkalog.open(tmp_path) as store:
        store.create_topic("mine")
    assert settings(tmp_path).source("mine", "segment.ms") is ConfigSource.DEFAULT


def test_metadata_in_a_directory_of_its_own(tmp_path: Path) -> None:
    data = filled(tmp_path / "data", "orders")
    kit.metadata_log(kit.formatted(tmp_path / "meta"), [*topic("orders"), config("retention.ms", "5", topic="orders")])
    assert not settings(data).knows("orders")
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={data}\nmetadata.log.dir={tmp_path / 'meta'}\n")
    assert settings(data, broker=broker_properties(file)).of("orders").retention_ms == 5
    file.write_text(f"log.dirs={tmp_path / 'meta'},{data}\n")
    assert settings(data, broker=broker_properties(file)).of("orders").retention_ms == 5
    file.write_text(f"log.dirs={tmp_path / 'elsewhere'}\nmetadata.log.dir={tmp_path / 'meta'}\n")  # another broker's
    assert not settings(data, broker=broker_properties(file)).knows("orders")


def test_broker_config_is_checked(tmp_path: Path) -> None:
    for wrong, said in (
        (tmp_path / "none", "no such file"), (tmp_path, "found a directory"), (5, "found int 5"),
    ):  # fmt: skip
        with pytest.raises(IllegalArgumentException, match=said):
            broker_properties(wrong)  # type: ignore[arg-type]


# --- the door ---------------------------------------------------------------------------------------------


def test_a_brokers_directory_is_not_opened_for_writing_unasked(tmp_path: Path) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), topic("orders"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for door in (lambda: kafkalog.open(tmp_path), lambda: kafkalog.open_log(tmp_path, "orders-0")):
        with pytest.raises(IllegalArgumentException, match=r"meta\.properties.*read_only=True.*take_over=True"):
            door()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with kafkalog.open(tmp_path, read_only=True) as store:
        assert count(store, "orders") == COUNT
    with kafkalog.open_log(tmp_path, "orders-0", take_over=True) as log:
        assert log.delete_old_segments() == 0  # the rule is unknown
        assert len(list(log)) == COUNT


@pytest.mark.parametrize("read_only", [False, True])
def test_the_controllers_log_is_not_written(tmp_path: Path, read_only: bool) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), topic("orders"))
    if read_only:
        with kafkalog.open_log(tmp_path, "__cluster_metadata-0", read_only=True) as log:
            assert log.end_offset == 2
    else:
        with pytest.raises(InvalidTopicException, match="read_only=True"):
            kafkalog.open_log(tmp_path, "__cluster_metadata-0", take_over=True)


def test_nothing_is_deleted_by_a_guess(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, "orders", "kept", "compacted", "other")
    kit.metadata_log(
        tmp_path,
        [
            *topic("orders"), config("retention.ms", "1000", topic="orders"),
            *topic("kept"), config("retention.ms", CENTURY_MS, topic="kept"),
            *topic("compacted"), config("cleanup.policy", "compact", topic="compacted"),
            config("min.compaction.lag.ms", "0", topic="compacted"),
            config("delete.retention.ms", "9", topic="compacted"),
        ],
    )  # fmt: skip
    metadata = (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").read_bytes()
    with caplog.at_level(logging.WARNING, "kafkalog"), kafkalog.open(tmp_path, take_over=True, config=SMALL) as store:
        assert [left(store, name) for name in ("kept", "compacted", "other")] == [COUNT] * 3
        assert left(store, "orders") < COUNT  # its owner requested that
        assert store.manager.get_log("compacted-0").config.compact  # type: ignore[union-attr]
        assert not store.manager.get_log("other-0").config.compact  # type: ignore[union-attr]
        assert store.describe_topic("orders").overrides == {"retention.ms": "1000"}
    told = [record.getMessage() for record in caplog.records if "not known" in record.getMessage()]
    assert len(told) == 1
    assert "other" in told[0]
    assert "orders" not in told[0]
    assert (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").read_bytes() == metadata


def test_nothing_is_compacted_by_a_guess(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The compaction lag may be in server.properties, which sets it for all topics."""
    filled(tmp_path, "compacted", "kept")
    both = config("cleanup.policy", "compact,delete", topic="kept"), config("retention.ms", "1000", topic="kept")
    kit.metadata_log(
        tmp_path, [*topic("compacted"), config("cleanup.policy", "compact", topic="compacted"), *topic("kept"), *both]
    )
    with caplog.at_level(logging.WARNING, "kafkalog"), kafkalog.open(tmp_path, take_over=True, config=SMALL) as store:
        for name in ("compacted", "kept"):
            assert not store.manager.get_log(f"{name}-0").config.compact  # type: ignore[union-attr]
            assert left(store, name) == COUNT
    told = [record.getMessage() for record in caplog.records if "server.properties is not given" in record.getMessage()]
    assert len(told) == 1
    assert "compacted" in told[0]
    assert "kept" in told[0]
    static = {"log.dirs": str(tmp_path), "log.cleaner.min.compaction.lag.ms": CENTURY_MS}
    with kafkalog.open(tmp_path, take_over=True, config=SMALL, broker_config=static) as store:
        found = store.manager.get_log("compacted-0").config  # type: ignore[union-attr]
        assert (found.compact, found.min_compaction_lag_ms) == (True, int(CENTURY_MS))


@pytest.mark.parametrize("key", ["retention.ms", "cleanup.policy"])
def test_what_damaged_metadata_says_counts_for_nothing(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    """The setting was changed back after the damage."""
    filled(tmp_path, "orders")
    before, behind = {"retention.ms": ("1000", "-1"), "cleanup.policy": ("compact", "delete")}[key]
    rows = [*topic("orders"), config(key, before, topic="orders")]
    folder = kit.metadata_log(tmp_path, rows)
    later = bytearray(kit.batch([config(key, behind, topic="orders")], len(rows)))
    later[-3] ^= 1
    with open(folder / f"{0:020d}.log", "ab") as file:
        file.write(later)
    records = {path: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.log")}
    for command in ("retain", "compact"):
        done = run(command, str(tmp_path), "--yes")
        assert "set by the topic" not in done.out + done.err
    assert {path: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.log")} == records
    static = {"log.dirs": str(tmp_path)}
    for options in ({}, {"broker_config": static}):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING),
            kafkalog.open(tmp_path, take_over=True, config=SMALL, **options) as store,
        ):  # type: ignore[arg-type]
            assert left(store, "orders") == COUNT
            assert not store.manager.get_log("orders-0").config.compact  # type: ignore[union-attr]
        assert "cannot be read completely" in caplog.text


def test_config_does_not_count_for_topics_that_may_say_otherwise(tmp_path: Path) -> None:
    filled(tmp_path, "orders")
    rules = SMALL | {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    with kafkalog.open(tmp_path, take_over=True, config=rules) as store:
        assert left(store, "orders") == COUNT
        assert not store.manager.get_log("orders-0").config.compact  # type: ignore[union-attr]
        store.alter_topic("orders", {"retention.ms": "1000"})  # this one is requested
        assert left(store, "orders") < COUNT


@pytest.mark.parametrize("change", ["alter", "partitions", "manager"])
def test_a_change_of_something_else_deletes_nothing(tmp_path: Path, change: str) -> None:
    """Kafka's default retention is no request, also for a topic that the store has just seen."""
    with kafkalog.open_log(tmp_path, "orders-0", config=SMALL) as log:
        for number in range(COUNT):
            log.append(b"value %d" % number, timestamp=OLD_MS)
    with kafkalog.open(tmp_path, config=SMALL) as store:
        if change == "alter":
            store.alter_topic("orders", {"compression.type": "zstd"})
        elif change == "partitions":
            store.add_partitions("orders", 2)
        else:
            store.manager.set_topic_config("orders", {"compression.type": "zstd"})
        assert left(store, "orders") == COUNT
    with kafkalog.open(tmp_path, config=SMALL) as store:
        assert left(store, "orders") == COUNT
        store.alter_topic("orders", {"retention.ms": "1000"})
        assert left(store, "orders") < COUNT


def test_a_topic_that_the_cluster_has_elsewhere_is_not_made_again(tmp_path: Path) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), [*topic("orders"), *topic("kept")])
    with kafkalog.open(tmp_path, take_over=True) as store, pytest.raises(TopicExistsException, match="in the cluster"):
        store.create_topic("kept", exist_ok=True)


def test_broker_config_makes_defaults_known(tmp_path: Path) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), topic("orders"))
    with kafkalog.open(tmp_path, take_over=True, config=SMALL) as store:
        assert left(store, "orders") == COUNT
    with kafkalog.open(tmp_path, take_over=True, config=SMALL, broker_config={"log.retention.hours": "1"}) as store:
        assert left(store, "orders") < COUNT


def test_a_change_beside_the_clusters_settings(tmp_path: Path) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), [*topic("orders"), config("retention.ms", CENTURY_MS, topic="orders")])
    for turn in range(2):
        with kafkalog.open(tmp_path, take_over=True, config=SMALL) as store:
            store.alter_topic("orders", {"segment.ms": str(5 + turn)})
            assert store.describe_topic("orders").overrides == {"retention.ms": CENTURY_MS, "segment.ms": str(5 + turn)}
            with pytest.raises(InvalidConfigurationException, match="cluster's metadata"):
                store.alter_topic("orders", {"retention.ms": None})
            store.add_partitions("orders", 2 + turn)
            assert left(store, "orders") == COUNT


def test_a_new_topic_in_a_brokers_directory(tmp_path: Path) -> None:
    filled(tmp_path, "orders")
    with kafkalog.open(tmp_path, take_over=True) as store:
        mine = store.create_topic("mine", config={"internal.segment.bytes": "500"})
        for number in range(COUNT):
            mine.append(b"value %d" % number, timestamp=OLD_MS)
        assert left(store, "mine") == COUNT


def test_partitions_by_the_clusters_count(tmp_path: Path) -> None:
    kit.metadata_log(filled(tmp_path, "orders"), [*topic("orders", 4), *topic("kept", 2, nodes=(2,))])
    with kafkalog.open(tmp_path, read_only=True) as store:
        assert store.topics() == ["orders"]
        assert store.describe_topic("orders").partitions == 4
    (missing,) = missing_partitions([str(tmp_path)], lambda name: True)
    assert (missing.topic, missing.numbers, missing.is_certain) == ("orders", (1, 2, 3), True)


def test_who_reads_sees_what_the_cluster_changes(tmp_path: Path) -> None:
    folder = kit.metadata_log(filled(tmp_path, "orders"), topic("orders"))
    with kafkalog.open(tmp_path, read_only=True) as store:
        assert store.describe_topic("orders").overrides == {}
        with (folder / f"{0:020d}.log").open("ab") as file:
            file.write(kit.batch([config("retention.ms", "5", topic="orders")], 2))
        os.utime(folder / f"{0:020d}.log")
        assert store.describe_topic("orders").overrides == {"retention.ms": "5"}


def test_cursors_stay(tmp_path: Path) -> None:
    """A cursor that has not moved for a week still exists: nobody requested its deletion."""
    clock = ManualClock(OLD_MS)
    with kafkalog.open(tmp_path, clock=clock) as store:
        store.create_topic("t").append_many([b"a", b"b"])
        with store.reader("billing", topics=["t"]) as reader:
            assert len(reader.poll(10)) == 2
            reader.commit()
        clock.advance(60 * DAY_MS)
        store._home.forget_expired()  # type: ignore[union-attr]
        assert store.committed("billing")


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A broker's directory with a topic of each kind; nothing is known of `other`."""
    filled(tmp_path, "orders", "kept", "compacted", "other")
    rows = [
        *topic("orders", 4), config("retention.ms", "1000", topic="orders"), *topic("kept"),
        *topic("compacted"), config("cleanup.policy", "compact", topic="compacted"), config("log.retention.bytes", "9"),
    ]  # fmt: skip
    kit.metadata_log(tmp_path, rows)
    return tmp_path


def test_explain_says_where_each_setting_comes_from(brokers: Path, run: Run) -> None:
    out = run("explain", brokers / "compacted-0").out
    assert "cleanup.policy=compact (set by the topic), retention.ms=604800000 (7.0 d, guessed default)" in out
    assert "retention.bytes=9 (dynamic)" in out
    result = run("explain", brokers / "kept-0", "--json")
    summary = json.loads(result.lines[-1])
    assert summary["config"]["cleanup.policy"] == "delete"
    assert summary["sources"] == {
        "cleanup.policy": "guessed default", "retention.ms": "guessed default", "retention.bytes": "dynamic",
    }  # fmt: skip
    assert "guessed: cleanup.policy, retention.ms: server.properties is not given" in result.err
    properties = brokers / "server.properties"
    properties.write_text("log.retention.hours=2\n")
    result = run("explain", brokers / "kept-0", "--config", properties)
    assert "cleanup.policy=delete (default), retention.ms=7200000 (2.0 h, server.properties)" in result.out
    assert result.err == ""
    assert "retention.ms=604800000 (7.0 d, guessed default)" in run("explain", brokers / "other-0").out


def test_retain_goes_by_the_clusters_rules(brokers: Path, run: Run) -> None:
    result = run("retain", brokers / "orders-0")
    assert result.code == 0
    assert "retention.ms=1000 (1.0 s, set by the topic), retention.bytes=9 (dynamic)" in result.out
    result = run("retain", brokers / "other-0")
    assert (result.code, "no rule given" in result.err) == (2, True)
    assert "the cluster's metadata does not have it" in result.err
    before = sorted(path.name for path in brokers.rglob("*.log"))
    for command in ("retain", "compact"):
        assert run(command, brokers, "--yes").code == 0
    left = sorted(path.name for path in (brokers / "other-0").glob("*.log"))
    assert len(left) > 3
    assert len(list(brokers.rglob("*.log"))) < len(before)
    assert (brokers / "__cluster_metadata-0" / f"{0:020d}.log").exists()


def test_compact_takes_the_clusters_policy(brokers: Path, run: Run) -> None:
    result = run("compact", brokers)
    assert "compacted-0" in result.out
    assert "cleanup.policy=compact (set by the topic), min.compaction.lag.ms=0 (guessed default)" in result.out
    for name, why in (("kept", "server.properties is not given"), ("other", "the cluster's metadata does not have it")):
        assert re.search(rf"{name}-0.* skipped: the cleanup.policy is unknown \({why}", result.err)


def test_describe_and_topics(brokers: Path, run: Run) -> None:
    assert (
        "orders: cleanup.policy=delete (guessed default), retention.ms=1000 (1.0 s, set by"
        in run("describe", brokers).out
    )
    entry = json.loads(run("describe", brokers, "orders-0", "--json").lines[0])
    assert (entry["config"]["retention.ms"], entry["sources"]["retention.ms"]) == (1000, "set by the topic")
    assert "1 of 4" in run("topics", brokers).out
    (orders,) = (row for row in map(json.loads, run("topics", brokers, "--json").lines) if row.get("topic") == "orders")
    assert (orders["partitionCount"], orders["sources"]["retention.ms"]) == (4, "set by the topic")


def test_append_takes_a_brokers_directory_over_when_it_is_asked_to(brokers: Path, run: Run) -> None:
    result = run("append", brokers, "orders-0", stdin=b"x\n")
    assert result.code == 2
    assert "--take-over writes to it" in result.err
    assert "=True" not in result.err
    result = run("append", brokers, "orders-0", "--take-over", stdin=b"x\n")
    assert (result.code, "the cluster has no topic" in result.err) == (0, False)
    result = run("append", brokers, "other-0", "--take-over", stdin=b"x\n")
    assert (result.code, "the cluster has no topic other" in result.err) == (0, True)


def test_a_setting_where_a_file_is_expected(brokers: Path, run: Run) -> None:
    result = run("explain", brokers / "orders-0", "--config", "retention.ms=5")
    assert result.code == 2
    assert "expected a server.properties file; to give a topic setting write -X retention.ms=5" in result.err


def test_the_controllers_log_is_left_alone_by_every_command(brokers: Path, run: Run, tmp_path: Path) -> None:
    folder = brokers / "__cluster_metadata-0"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for argv in (["recover", brokers, "--from-start"], ["reindex", brokers]):
        result = run(*argv, "--yes")
        assert result.code in (0, 1), result.err
        assert "__cluster_metadata-0 is skipped" in result.err
    (tmp_path / "target").mkdir()
    result = run("move", folder, tmp_path / "target", "--yes")
    assert (result.code, "controllers" in result.err) == (2, True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_append_cuts_nothing(tmp_path: Path, run: Run) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config=SMALL) as log:
        for number in range(COUNT):
            log.append(b"value %d" % number)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    second = sorted((tmp_path / "t-0").glob("*.log"))[1]
    second.write_bytes(second.read_bytes()[:100] + b"X" + second.read_bytes()[101:])
    before = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")}
    result = run("append", tmp_path, "t-0", stdin=b"x\n")
    assert result.code == 1
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")} == before
