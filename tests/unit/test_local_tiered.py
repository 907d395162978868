"""The layout of Kafka's LocalTieredStorage, below a directory and below a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.local_tiered import CHUNK_BYTES, LocalTieredStorage, folder_of, key_of
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.opening import storage_at
from kafkalog.engine.remote.segment import TopicIdPartition
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    CorruptIndexException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
)
from tests.file_doubles import RecordingFiles
from tests.object_doubles import AT_ONCE, PARTITION, FaultyObjects, segment_id
from tests.unit.remote_kit import LOCAL_NAMES, copied, write_segment

FOLDER = "kafka-tiered-storage/orders-0-MWJ6FHTfRYy67jzwZdeqSQ"
STEM = f"{FOLDER}/{'0' * 20}-{segment_id(1)}"
SUFFIXES = [".log", ".index", ".timeindex", ".txnindex", ".leader_epoch_checkpoint", ".snapshot"]


@pytest.fixture(params=["file", "bucket"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> LocalTieredStorage:
    local = request.param == "file"
    objects = Objects.at(str(tmp_path / "tier"), retries=AT_ONCE) if local else FaultyObjects().objects()
    return LocalTieredStorage(objects)


def test_names_are_kafkas() -> None:
    assert folder_of(PARTITION) == FOLDER
    assert key_of(copied(10), ".log") == f"{STEM}.log"
    assert key_of(copied(10, start=123), ".index") == f"{FOLDER}/00000000000000000123-{segment_id(1)}.index"


def test_the_files_are_those_of_the_log_directory(at: LocalTieredStorage, tmp_path: Path) -> None:
    assert at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment")) is None
    assert [each.key for each in at.objects.within(FOLDER)] == sorted(STEM + suffix for suffix in SUFFIXES)
    names = ["log", "index", "timeindex", "txnindex", "epochs", "snapshot"]
    for suffix, name in zip(SUFFIXES, names, strict=True):
        assert at.objects.get(STEM + suffix) == (tmp_path / "segment" / name).read_bytes()


def test_what_is_copied_is_read(at: LocalTieredStorage, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment")
    at.copy_log_segment_data(copied(1000), data)
    log = Path(data.log_segment).read_bytes()
    for metadata in (copied(1000), copied(-1)):  # its size is unknown
        for start, end in [(0, 1000), (0, 1), (999, 1000), (500, 700), (990, 5000), (0, 1 << 40)]:
            assert at.fetch_log_segment(metadata, start, end) == log[start:end]
        for start, end in [(0, 0), (7, 3), (1000, 1001), (2000, 3000)]:
            assert at.fetch_log_segment(metadata, start, end) == b""
        assert at.log_size(metadata) == 1000
    for index_type, name in LOCAL_NAMES.items():
        assert at.fetch_index(copied(1000), index_type) == (tmp_path / "segment" / name).read_bytes()
    assert at.chunk_bytes(copied(1000)) == CHUNK_BYTES


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_a_folder_is_synced_before_what_makes_a_segment_whole_and_after(layout: str, tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    storage = storage_at(Objects.at(str(tmp_path / "tier"), files=files), layout)
    storage.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    steps = [op for op in files.ops if op.kind in ("sync", "rename", "sync_dir")]
    whole = next(i for i, op in enumerate(steps) if op.target.endswith((".snapshot", ".rsm-manifest")))
    assert [op.kind for op in steps[whole - 2 :]] == ["sync_dir", "sync", "rename", "sync_dir"]
    names = {op.target for op in steps if op.kind == "rename"}
    assert [op.kind for op in steps].count("sync") == len(names)
    folder = next(iter(names)).rpartition("/")[0]
    assert [op.path for op in steps if op.kind == "sync_dir"].count(folder) == 2


def test_an_index_may_be_empty(at: LocalTieredStorage, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment")
    Path(data.offset_index).write_bytes(b"")
    at.copy_log_segment_data(copied(1000), data)
    assert at.fetch_index(copied(1000), IndexType.OFFSET) == b""


def test_a_segment_without_aborted_transactions(at: LocalTieredStorage, tmp_path: Path) -> None:
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment", txn_index=False))
    with pytest.raises(RemoteResourceNotFoundException) as caught:
        at.fetch_index(copied(1000), IndexType.TRANSACTION)
    assert str(caught.value.path).endswith(f"{STEM}.txnindex")
    (found,) = at.segments_of(PARTITION)
    assert found.is_whole
    assert found.has_txn_index is False


def test_an_empty_transaction_index_is_refused(at: LocalTieredStorage, tmp_path: Path) -> None:
    """A segment without aborted transactions has none."""
    data = write_segment(tmp_path / "segment")
    (tmp_path / "segment" / "txnindex").write_bytes(b"")
    at.copy_log_segment_data(copied(1000), data)
    with pytest.raises(CorruptIndexException, match=f"{STEM}.txnindex"):
        at.fetch_index(copied(1000), IndexType.TRANSACTION)


@pytest.mark.parametrize("index_type", IndexType)
def test_a_missing_object_is_named(at: LocalTieredStorage, index_type: IndexType) -> None:
    with pytest.raises(RemoteResourceNotFoundException, match=STEM):
        at.fetch_index(copied(1000), index_type)


def test_a_missing_log_is_named(at: LocalTieredStorage) -> None:
    for metadata in (copied(1000), copied(-1)):
        with pytest.raises(RemoteResourceNotFoundException, match=f"{STEM}.log"):
            at.fetch_log_segment(metadata, 0, 10)


def test_a_log_that_is_shorter_than_its_metadata(at: LocalTieredStorage, tmp_path: Path) -> None:
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    with pytest.raises(RemoteStorageException, match=r"the object has 1000 bytes, expected at least 1200"):
        at.fetch_log_segment(copied(1200), 500, 2000)


def test_only_the_segment_that_was_meant_is_copied(at: LocalTieredStorage, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment")
    for size in (999, 1001):
        with pytest.raises(KafkaStorageException, match=f"the file has 1000 bytes, expected {size}"):
            at.copy_log_segment_data(copied(size), data)
    assert at.segments_of(PARTITION) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_copy_that_breaks_off_is_not_whole(suffix: str, tmp_path: Path) -> None:
    fs = FaultyObjects()
    at = LocalTieredStorage(fs.objects())
    for step in ("put_file", "commit"):
        fs.fail(step, ConnectionResetError(), times=4, of=suffix)
    with pytest.raises(RemoteStorageException, match=suffix):
        at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    assert not any(found.is_whole for found in at.segments_of(PARTITION))
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    assert [found.is_whole for found in at.segments_of(PARTITION)] == [True]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_segment_is_whole_with_its_log_and_what_comes_last(
    at: LocalTieredStorage, suffix: str, tmp_path: Path
) -> None:
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    at.delete_objects([STEM + suffix])
    (found,) = at.segments_of(PARTITION)
    assert found.is_whole == (suffix not in (".log", ".snapshot"))
    assert found.lacks == (() if suffix == ".txnindex" else (suffix,))
    assert found.has_txn_index == (suffix != ".txnindex")
    assert len(found.objects) == 5


def test_deleting_begins_with_what_made_it_whole(tmp_path: Path) -> None:
    fs = FaultyObjects()
    at = LocalTieredStorage(fs.objects())
    at.copy_log_segment_data(copied(1000), write_segment(tmp_path / "segment"))
    fs.fail("rm_file", PermissionError("no right"), of=".log")
    with pytest.raises(RemoteStorageException, match=f"{STEM}.log"):
        at.delete_log_segment_data(copied(1000))
    assert [found.is_whole for found in at.segments_of(PARTITION)] == [False]
    for _ in range(2):
        at.delete_log_segment_data(copied(1000))
    assert at.segments_of(PARTITION) == []


def test_a_log_opens_as_a_file_where_it_is_one(at: LocalTieredStorage, tmp_path: Path) -> None:
    data = write_segment(tmp_path / "segment")
    at.copy_log_segment_data(copied(1000), data)
    file = at.open_local(copied(1000))
    assert (file is not None) == at.objects.is_local
    if file is not None:
        with file:
            assert file.pread(1000, 0) == Path(data.log_segment).read_bytes()


def test_a_listing_is_in_order(at: LocalTieredStorage) -> None:
    for number, start in ((3, 50), (1, 0), (2, 100), (9, 50)):
        at.objects.put(key_of(copied(1, number=number, start=start, end=start), ".log"), lambda: [b"log"])
    found = at.segments_of(PARTITION)
    expected = [(0, 1), (50, 3), (50, 9), (100, 2)]
    assert [(each.base_offset, each.id) for each in found] == [(base, segment_id(number)) for base, number in expected]
    assert {each.object_bytes for each in found} == {3}
    assert not any(each.is_whole for each in found)


def test_what_is_none_of_the_layout_is_passed_over(at: LocalTieredStorage) -> None:
    topic_id = PARTITION.topic_id
    for key in (
        f"{STEM}.log.tmp", f"{FOLDER}/notes.txt", f"{FOLDER}/5-{segment_id(1)}.log", f"{FOLDER}/{'0' * 20}-short.log",
        f"{FOLDER}/{'9' * 20}-{segment_id(1)}.log", f"{FOLDER}/{'٣' * 20}-{segment_id(1)}.log", f"{FOLDER}/deep/x.log",
        f"kafka-tiered-storage/orders-x-{topic_id}/a", f"kafka-tiered-storage/orders-{topic_id}/a",
        f"kafka-tiered-storage/orders-²-{topic_id}/a", f"kafka-tiered-storage/orders-{'1' * 11}-{topic_id}/a",
        "kafka-tiered-storage/file", f"elsewhere/orders-0-{topic_id}/a",
    ):  # fmt: skip
        at.objects.put(key, lambda: [b"x"])
    assert at.partitions() == [PARTITION]
    assert at.segments_of(PARTITION) == []


def test_partitions_are_in_order(at: LocalTieredStorage) -> None:
    expected = [
        TopicIdPartition(topic_id * 22, TopicPartition(topic, number))
        for topic, number, topic_id in [("a-1", 2, "x"), ("a-1", 10, "x"), ("orders", 0, "B"), ("orders", 0, "C")]
    ]
    for each in reversed(expected):
        at.objects.put(f"{folder_of(each)}/x", lambda: [b"x"])
    assert at.partitions() == expected
    assert LocalTieredStorage(FaultyObjects().objects()).partitions() == []
