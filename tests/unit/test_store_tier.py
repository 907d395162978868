"""A store with a remote tier: its copies, reads and refusals, and how it continues."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import OsFiles, parent_dir
from kafkalog.engine.log import snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote import copying, partition_tier
from kafkalog.engine.remote.lineage import history
from kafkalog.errors import (
    ConfigException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidConfigurationException,
    KafkaStorageException,
    LogReadOnlyException,
)
from kafkalog.toolbox.tiering import known_segments, orphans
from tests.unit.tier_kit import RECORDS, SETTINGS, tiered, values


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(a store's directory, its tier), with what `tiered` makes."""
    tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "3000"})
    return tmp_path / "store", tmp_path / "tier"


def opened(places: tuple[Path, Path], **options: Any) -> kafkalog.Store:
    return kafkalog.open(places[0], remote=places[1], maintenance=False, **options)


def objects(tier: Path) -> list[str]:
    return sorted(path.name for path in tier.rglob("*") if path.is_file())


def everything(partition: kafkalog.Partition) -> list[bytes | None]:
    return [record.value for record in partition]


def test_readers_do_not_notice_where_a_record_lies(places: tuple[Path, Path]) -> None:
    with opened(places) as store:
        partition = store.topic("orders").partition(0)
        before = everything(partition)
        assert partition.delete_old_segments() > 0
        first = int(min(path.name for path in places[0].glob("orders-0/*.log"))[:20])
        assert first > 0
        assert (partition.log_start_offset, everything(partition)) == (0, before)
        for offset in (0, first - 1, first, first + 1):
            assert next(iter(partition.records(offset))).offset == offset
        assert partition.offset_for_time(1000) == 0
        assert partition.offset_for_time(1000 + first - 1) == first - 1
        table = partition.read_arrow()
        assert table.column("value").to_pylist() == before
        with store.reader("r", topics=["orders"]) as reader:
            assert [record.value for record in reader.poll(1000)] == before
    with kafkalog.open(places[0], remote=places[1], read_only=True) as view:
        assert everything(view.topic("orders").partition(0)) == before
    with kafkalog.open(kafkalog.RemoteStorage(places[1]), read_only=True) as bucket:
        found = everything(bucket.topic("orders").partition(0))
        assert found == before[: len(found)]
        assert len(found) >= first


def test_a_time_below_the_logs_start(places: tuple[Path, Path]) -> None:
    """The start may be within a remote segment whose first records are deleted."""
    with opened(places) as store:
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() > 0
        partition.delete_records(20)
        for timestamp in (1000, 1018, 1019, 1020, 1021, 1030):
            assert partition.offset_for_time(timestamp) == max(20, timestamp - 1000)


def test_index_entries_of_a_view_are_bounded(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier may have 10,000 segments, each with an index of 2 MiB."""
    monkeypatch.setattr(snapshot, "OPEN_FILES", 1)
    files = kafkalog.RemoteStorage(places[1]).read_only_files(OsFiles())

    def entries_after_reads() -> list[int]:
        with PartitionView(places[1], "orders-0", files=files) as view:
            for _ in range(2):
                for offset in range(view.log_start_offset, view.log_end_offset):
                    assert view.extent(offset) is not None
            return [each.entry_bytes() for each in view.segments]

    every = entries_after_reads()
    assert all(each > 0 for each in every)
    assert len(every) > 3
    monkeypatch.setattr(snapshot, "ENTRY_BYTES", every[-2])
    assert entries_after_reads() == [0] * (len(every) - 2) + every[-2:]
    files.close()


@pytest.mark.parametrize("way", ["bucket", "both"])
def test_a_closed_reader_keeps_no_threads(way: str, tmp_path: Path) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="aiven", chunk_bytes=300, compression=True)
    tiered(tmp_path / "store", tier, settings={"local.retention.bytes": "1"})
    with kafkalog.open(tmp_path / "store", remote=tier, maintenance=False) as store:
        assert store.topic("orders").partition(0).delete_old_segments() > 0

    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("kafkalog-remote")}

    before = threads()
    how = {"remote": tier} if way == "both" else {}
    with kafkalog.open(tmp_path / "store" if way == "both" else tier, read_only=True, **how) as reader:  # type: ignore[arg-type]
        assert len(everything(reader.topic("orders").partition(0))) > RECORDS // 2
        begun = threads() - before
        assert begun
    for each in begun:
        each.join(5)
    assert not threads() - before


def test_a_reader_lists_the_tier_once(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each segment: there may be 10,000."""
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return history(*args)

    monkeypatch.setattr(partition_tier, "history", counted)
    with opened(places) as store:
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() > 0
        everything(partition)
        assert len(calls) == 1
        for number in range(60):
            partition.append(values(number))
        store.remote_log_manager.run_once()
        assert partition.delete_old_segments() > 0
        assert len(everything(partition)) == RECORDS + 30 + 60
        assert len(calls) == 2


@pytest.mark.parametrize("load", ["all", "on demand"])
def test_a_store_is_opened_with_its_tier(places: tuple[Path, Path], load: Any) -> None:
    with opened(places) as store:
        store.topic("orders").partition(0).delete_old_segments()
    with pytest.raises(IllegalArgumentException, match="no remote tier was given"):
        kafkalog.open(places[0])
    with kafkalog.open(places[0], read_only=True) as view:
        assert view.topic("orders").partition(0).log_start_offset > 0
    with opened(places, load=load) as store:
        partition = store.topic("orders").partition(0)
        assert partition.log_start_offset == 0
        assert next(iter(partition)).value == values(0)


def test_without_its_tier_a_log_keeps_its_start(places: tuple[Path, Path]) -> None:
    """The next open with the tier would delete there what is below."""
    with opened(places) as store:
        store.topic("orders").partition(0).delete_old_segments()
    with kafkalog.open_log(places[0], "orders-0") as log:
        for offset in (1, RECORDS, -1):
            with pytest.raises(IllegalArgumentException, match="a remote tier, which is not open"):
                log.delete_records(offset)
        assert log.delete_old_segments() == 0
    bare = {"retention.bytes": "1", "local.retention.bytes": "1", "remote.log.copy.disable": "true"}
    with kafkalog.open_log(places[0], "orders-0", config=bare) as log:
        assert log.delete_old_segments() == 0
    with kafkalog.LogManager([places[0]]) as manager:
        found = manager.get_log("orders-0")
        assert found is not None
        for do in (
            lambda: found.delete_records(RECORDS),
            lambda: manager.truncate_to({"orders-0": RECORDS}),
            lambda: manager.truncate_fully_and_start_at("orders-0", RECORDS),
        ):
            with pytest.raises(IllegalArgumentException, match="a remote tier, which is not open"):
                do()
    with opened(places) as store:
        partition = store.topic("orders").partition(0)
        store.remote_log_manager.run_once()
        assert partition.log_start_offset == 0
        assert next(iter(partition)).value == values(0)


@pytest.mark.parametrize("load", ["all", "on demand"])
def test_what_the_tier_has_is_not_truncated(places: tuple[Path, Path], load: Any) -> None:
    with opened(places, load=load) as store:
        partition = store.topic("orders").partition(0)
        copied = partition.engine.highest_offset_in_remote_storage
        assert 0 < copied < partition.end_offset - 1
        for offset in (0, copied):
            with pytest.raises(IllegalArgumentException, match=f"expected one above {copied}") as told:
                partition.truncate(offset)
        assert f"truncate to {copied + 1}" in str(told.value)
        partition.truncate(copied + 1)
        assert partition.end_offset == copied + 1
        assert partition.append(b"new") == copied + 1
        store.remote_log_manager.run_once()
        assert everything(partition)[-1] == b"new"
    names = [path.name for path in places[0].glob("orders-0/*.log")]
    assert f"{copied + 1:020}.log" in names


@pytest.mark.parametrize("left", ["some", "nothing"])
@pytest.mark.parametrize("load", ["all", "on demand"])
def test_a_disk_that_lost_its_end_is_refused(places: tuple[Path, Path], load: Any, left: str) -> None:
    with opened(places) as store:
        copied = store.topic("orders").partition(0).engine.highest_offset_in_remote_storage
    for path in (places[0] / "orders-0").iterdir():
        is_behind = path.name[:20].isdigit() and int(path.name[:20]) > copied // 2
        if is_behind or (left == "nothing" and path.name != "partition.metadata"):
            path.unlink()
    (places[0] / ".kafka_cleanshutdown").unlink()
    said = f"the remote tier has records up to {copied}.*tier restore"
    with pytest.raises(KafkaStorageException, match=said), opened(places, load=load) as store:
        store.topic("orders").append(b"never")
    with kafkalog.open(kafkalog.RemoteStorage(places[1]), read_only=True) as bucket:
        found = everything(bucket.topic("orders").partition(0))
        assert found[:RECORDS] == [values(n) for n in range(len(found))][:RECORDS]
        assert len(found) == copied + 1


def test_a_topic_leaves_the_tier(places: tuple[Path, Path]) -> None:
    with opened(places) as store:
        partition = store.topic("orders").partition(0)
        partition.delete_old_segments()
        local = partition.engine.local_log_start_offset
        with pytest.raises(InvalidConfigurationException, match=r"remote\.log\.delete\.on\.disable"):
            store.alter_topic("orders", {"remote.storage.enable": "false"})
        store.alter_topic("orders", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
        assert partition.log_start_offset == local
        assert not objects(places[1])
    with kafkalog.open(places[0]) as store:
        assert store.topic("orders").partition(0).log_start_offset == local


def test_a_topic_whose_settings_know_nothing_of_the_tier(places: tuple[Path, Path]) -> None:
    (places[0] / ".kafkalog_topics").unlink()
    with pytest.raises(IllegalArgumentException, match=r"remote\.storage\.enable is not among its settings"):
        opened(places)
    with opened(places, config={"remote.storage.enable": "true"}) as store:
        assert len(everything(store.topic("orders").partition(0))) > RECORDS


def test_a_deleted_topic_goes_in_both_tiers(places: tuple[Path, Path]) -> None:
    with opened(places) as store:
        store.delete_topic("orders")
        assert not objects(places[1])
        again = store.create_topic("orders", 1, config=SETTINGS)
        again.append(b"new")
        assert everything(again.partition(0)) == [b"new"]


@pytest.mark.parametrize("way", ["close", "delete"])
def test_nobody_waits_for_an_upload_that_waits_for_its_limit(tmp_path: Path, way: str) -> None:
    place = kafkalog.RemoteStorage(tmp_path / "tier", upload_bytes_per_s=1)
    tiering = kafkalog.RemoteLogManagerConfig(task_interval_ms=1)
    store = kafkalog.open(tmp_path / "store", remote=place, tiering=tiering)
    orders = store.create_topic("orders", 1, config=SETTINGS)
    for number in range(90):
        orders.append(b"value %d" % number + b"." * 100, partition=0)
    while not any(name.endswith(".index.kafkalog_upload") for name in objects(tmp_path / "tier")):
        time.sleep(0.01)
    began = time.monotonic()
    if way == "delete":
        store.delete_topic("orders")
        assert not objects(tmp_path / "tier")
    store.close()
    assert time.monotonic() - began < 5
    if way == "close":
        with opened((tmp_path / "store", tmp_path / "tier")) as store:
            assert store.remote_log_manager.run_once() > 3
            assert len(everything(store.topic("orders").partition(0))) == 90
            assert not orphans(place.manager(), known_segments([str(tmp_path / "store")]))


def test_a_segment_whose_records_are_deleted_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        orders = store.create_topic("orders", 1, config=SETTINGS)
        for number in range(RECORDS):
            orders.append(values(number))
        partition, real = orders.partition(0), copying.candidate_log_segments

        def candidates(*args: Any) -> list[copying.EnrichedLogSegment]:
            found = real(*args)
            partition.delete_records(found[1].next_segment_offset)
            return found

        count = len(partition.engine.log_segments()) - 1
        monkeypatch.setattr(copying, "candidate_log_segments", candidates)
        assert store.remote_log_manager.run_once() == count - 2
        assert everything(partition) == [values(number) for number in range(partition.log_start_offset, RECORDS)]
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


def test_compacted_topics_are_not_tiered(tmp_path: Path) -> None:
    with (
        kafkalog.open(tmp_path / "store", remote=tmp_path / "tier") as store,
        pytest.raises(ConfigException, match="only supports topics with cleanup"),
    ):
        store.create_topic("t", 1, config={"remote.storage.enable": "true", "cleanup.policy": "compact"})
    with kafkalog.open(tmp_path / "store") as store, pytest.raises(ConfigException, match="Tiered Storage"):
        store.create_topic("t", 1, config={"remote.storage.enable": "true"})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"remote": 5}, (TypeError, IllegalArgumentException)),
        ({"remote": ["a"]}, (TypeError, IllegalArgumentException)),
        ({"remote": ""}, IllegalArgumentException),
        ({"remote": "nope://x"}, IllegalArgumentException),
        ({"tiering": kafkalog.RemoteLogManagerConfig()}, IllegalArgumentException),
        ({"remote": "tier", "tiering": {"task_interval_ms": 5}}, IllegalArgumentException),
        ({"remote": "tier", "read_only": True, "tiering": kafkalog.RemoteLogManagerConfig()}, IllegalArgumentException),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    kafkalog.open("store").close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error):
        kafkalog.open("store", **options)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != ".lock") == before
    kafkalog.open("store").close()


def test_no_manager_without_a_tier(tmp_path: Path, places: tuple[Path, Path]) -> None:
    with kafkalog.open(tmp_path / "other") as store, pytest.raises(IllegalStateException, match="no remote tier"):
        store.remote_log_manager  # noqa: B018
    with kafkalog.open(places[0], read_only=True) as view, pytest.raises(LogReadOnlyException):
        view.remote_log_manager  # noqa: B018


def test_in_the_background(tmp_path: Path) -> None:
    """Threads copy, and retention on the disk follows, without a call."""
    import time

    tiering = kafkalog.RemoteLogManagerConfig(task_interval_ms=20, copier_threads=2)
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", tiering=tiering) as store:
        topic = store.create_topic("t", 1, config=SETTINGS)
        for number in range(RECORDS):
            topic.append(values(number))
        until = time.monotonic() + 20
        while topic.partition(0).engine.highest_offset_in_remote_storage < RECORDS // 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert topic.partition(0).engine.highest_offset_in_remote_storage >= RECORDS // 2
        assert everything(topic.partition(0)) == [values(number) for number in range(RECORDS)]


@pytest.mark.parametrize("alone", [False, True])
def test_cursors_of_a_store_that_only_reads(places: tuple[Path, Path], tmp_path: Path, alone: bool) -> None:
    where: Any = kafkalog.RemoteStorage(places[1]) if alone else places[0]
    options: dict[str, Any] = {} if alone else {"remote": places[1]}
    for first in (0, 10):
        with (
            kafkalog.open(where, read_only=True, cursors=tmp_path / "new" / "cursors", **options) as store,
            store.reader("billing", topics=["orders"]) as reader,
        ):
            assert [record.offset for record in reader.poll(10)] == list(range(first, first + 10))
            reader.commit()


@pytest.mark.parametrize("path", ["s3://", "s3://bucket/prefix", "://", "a/b", "/a/b", "//a", ""])
def test_a_walk_to_the_nearest_folder_ends(path: str) -> None:
    class Nothing(OsFiles):
        def is_dir(self, path: str) -> bool:
            return False

    nearest = Nothing().nearest_dir(path)
    assert parent_dir(nearest) == nearest


@pytest.mark.parametrize("left", ["1\n0 40\n", "0\n"])
def test_leader_epochs_that_lack_the_beginning(tmp_path: Path, left: str) -> None:
    """A crash lost the checkpoint of the log's start, but not the leader epochs, or their file was lost.

    The epochs begin after the deleted records; the batches have the missing ones."""
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        orders = store.create_topic("orders", 1, config=SETTINGS)
        for number in range(RECORDS):
            orders.append(values(number))
    epochs = tmp_path / "store" / "orders-0" / "leader-epoch-checkpoint"
    assert epochs.read_text() == "0\n1\n0 0\n"
    epochs.write_text("0\n" + left)
    with opened((tmp_path / "store", tmp_path / "tier")) as store:
        assert epochs.read_text() == "0\n1\n0 0\n"
        assert store.remote_log_manager.run_once() > 0
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() == 0
        store.alter_topic("orders", {"local.retention.bytes": "1"})
        assert partition.delete_old_segments() > 0
        assert everything(partition) == [values(number) for number in range(RECORDS)]
