"""What a bucket alone says of its segments: which count, where they end, and which topic is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.object_segments import ObjectSegments
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.remote_files import RemoteFiles
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from kafkalog.errors import IllegalArgumentException, RemoteStorageException
from tests.object_doubles import PARTITION, FaultyObjects, segment_id
from tests.unit.remote_kit import copied, write_segment

LAYOUTS = ("local-tiered", "aiven", "aiven zstd")
Storage = LocalTieredStorage | AivenTieredStorage


@pytest.fixture
def fs() -> FaultyObjects:
    return FaultyObjects()


def at(layout: str, fs: FaultyObjects) -> Storage:
    if layout == "local-tiered":
        return LocalTieredStorage(fs.objects())
    return AivenTieredStorage(fs.objects(), chunk_bytes=100, compression=layout.endswith("zstd"))


def in_a_place(layout: str, url: str) -> Storage:
    objects = Objects.at(url)
    return LocalTieredStorage(objects) if layout == "local-tiered" else AivenTieredStorage(objects, chunk_bytes=100)


def copy(
    storage: Storage,
    folder: Path,
    *segments: tuple[int, int, int],
    size: int = 500,
    epoch: int = 0,
    partition: TopicIdPartition = PARTITION,
) -> list[RemoteLogSegmentMetadata]:
    """Copies segments of (number, first offset, last offset)."""
    made = []
    data = write_segment(folder, size)._replace(leader_epoch_index=b"0\n1\n%d 0\n" % epoch)
    for number, start, end in segments:
        metadata = copied(size, number=number, start=start, end=end, epochs=((epoch, start),))
        metadata = metadata._replace(remote_log_segment_id=RemoteLogSegmentId(partition, segment_id(number)))
        storage.copy_log_segment_data(metadata, data)
        made.append(metadata)
    return made


def ranges(storage: Storage) -> list[tuple[str, int, int]]:
    found = ObjectSegments(storage).segments(PARTITION)
    return [(each.remote_log_segment_id.id, each.start_offset, each.end_offset) for each in found]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_go_up_to_the_next_one(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    copy(storage, tmp_path, (3, 50, 99), (1, 0, 49), (2, 100, 120))
    last = -1 if layout == "local-tiered" else 120  # names alone do not say where the last one ends
    assert ranges(storage) == [(segment_id(1), 0, 49), (segment_id(3), 50, 99), (segment_id(2), 100, last)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_known_of_a_segment(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    (metadata,) = copy(storage, tmp_path, (1, 5, 49))
    (found,) = ObjectSegments(storage).segments(PARTITION)
    expected = metadata._replace(state=COPY_SEGMENT_FINISHED)
    if layout == "local-tiered":
        expected = expected._replace(
            end_offset=-1, max_timestamp_ms=-1, broker_id=-1, event_timestamp_ms=-1, segment_leader_epochs=()
        )
    assert found == expected
    assert storage.fetch_log_segment(found, 0, 1000) == (tmp_path / "log").read_bytes()


@pytest.mark.parametrize("layout", ["aiven", "aiven zstd"])
def test_manifests_without_metadata_are_completed_by_names(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """The plugin writes it, and can do without."""
    storage = at(layout, fs)
    metadata = copy(storage, tmp_path, (1, 0, 49), (2, 50, 99), (3, 100, 120))
    for number in (0, 2):
        prefix = f"orders-{PARTITION.topic_id}/0/{metadata[number].start_offset:020}-{segment_id(number + 1)}"
        manifest = json.loads(storage.objects.get(f"{prefix}.rsm-manifest"))
        manifest["remoteLogSegmentMetadata"] = None
        text = json.dumps(manifest).encode()
        storage.objects.put(f"{prefix}.rsm-manifest", lambda text=text: [text])
    again = at(layout, fs)
    assert ranges(again) == [(segment_id(1), 0, 49), (segment_id(2), 50, 99), (segment_id(3), 100, -1)]
    for found in ObjectSegments(again).segments(PARTITION):
        assert again.log_size(found) == found.segment_size_in_bytes == 500
        assert again.fetch_log_segment(found, 0, 500) == (tmp_path / "log").read_bytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_whole_is_passed_over(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 49), (2, 50, 99), (3, 100, 149))
    second = storage.segments_of(PARTITION)[1]
    storage.delete_objects([second.objects[0]])
    kept = [start for _, start, _ in ranges(storage)]
    assert kept == [0, 100]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("late_first", [False, True])
def test_of_two_that_begin_alike_the_later_leaders_counts(
    layout: str, late_first: bool, fs: FaultyObjects, tmp_path: Path
) -> None:
    storage = at(layout, fs)
    late, early = (1, 2) if late_first else (2, 1)
    copy(storage, tmp_path, (early, 0, 80), size=900, epoch=3)
    copy(storage, tmp_path, (late, 0, 40), size=100, epoch=4)
    copy(storage, tmp_path, (9, 41, 50), epoch=4)
    assert [found for found, *_ in ranges(storage)] == [segment_id(late), segment_id(9)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("long_first", [False, True])
def test_of_two_of_one_leader_the_longer_counts(
    layout: str, long_first: bool, fs: FaultyObjects, tmp_path: Path
) -> None:
    storage = at(layout, fs)
    long, short = (1, 2) if long_first else (2, 1)
    copy(storage, tmp_path, (short, 0, 40), size=300)
    copy(storage, tmp_path, (long, 0, 80), size=900)
    assert [found for found, *_ in ranges(storage)] == [segment_id(long)]


def test_of_two_one_of_which_says_nothing_the_other_counts(fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at("local-tiered", fs)
    copy(storage, tmp_path, (1, 0, 40), size=300)
    copy(storage, tmp_path, (2, 0, 80), size=900, epoch=7)
    storage.objects.put(
        next(key for key in storage.segments_of(PARTITION)[1].objects if key.endswith("checkpoint")), lambda: [b"?"]
    )
    assert ranges(storage) == [(segment_id(1), 0, -1)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_of_a_history_that_was_given_up(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """Two leaders uploaded at once: the later one's segments begin within the earlier one's, and only manifests tell
    that what the earlier one has behind it does not count."""
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 99), (2, 100, 199))
    copy(storage, tmp_path, (3, 60, 149), (4, 150, 170), epoch=1)
    by_name = [(0, 59), (60, 99), (100, 149), (150, -1)]
    expected = by_name if layout == "local-tiered" else [(0, 99), (60, 149), (150, 170)]
    assert [(start, end) for _, start, end in ranges(storage)] == expected


@pytest.mark.parametrize("layout", ["aiven", "aiven zstd"])
def test_a_segment_that_a_later_leaders_has_whole(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """A new leader copies the segment that has the first offset which is missing, however early that begins."""
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 35), (2, 36, 53), (3, 30, 70), (4, 71, 80))
    assert [(start, end) for _, start, end in ranges(storage)] == [(0, 35), (30, 70), (71, 80)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_segments_are_told_in_order(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    copy(storage, tmp_path, *((number, number * 10, number * 10 + 9) for number in range(40)), size=50)
    assert [each[:2] for each in ranges(storage)] == [(segment_id(number), number * 10) for number in range(40)]


def test_a_damaged_manifest_is_named(fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at("aiven", fs)
    copy(storage, tmp_path, (1, 0, 49), (2, 50, 99))
    key = f"orders-{PARTITION.topic_id}/0/{50:020}-{segment_id(2)}.rsm-manifest"
    storage.objects.put(key, lambda: [b"{}"])
    with pytest.raises(RemoteStorageException) as caught:
        ObjectSegments(at("aiven", fs)).segments(PARTITION)
    assert caught.value.path == f"faulty://tier/{key}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leader_epochs_lie_beside_a_segment(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 49), epoch=6)
    (entry,) = ObjectSegments(storage).epochs_of(storage.segments_of(PARTITION)[0])
    assert (entry.epoch, entry.start_offset) == (6, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_topics_of_one_name_want_to_be_told_apart(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    other = TopicIdPartition("B" * 22, TopicPartition("orders", 1))
    fine = TopicIdPartition("C" * 22, TopicPartition("fine", 0))
    for number, partition in enumerate((PARTITION, other, fine)):
        copy(storage, tmp_path, (number, 0, 9), partition=partition)
    with pytest.raises(IllegalArgumentException, match="two topics 'orders'") as caught:
        ObjectSegments(storage).partitions()
    assert PARTITION.topic_id in str(caught.value)
    assert other.topic_id in str(caught.value)
    for wanted in (PARTITION, other):
        found = ObjectSegments(storage, {"orders": wanted.topic_id}).partitions()
        assert found == {wanted.topic_partition: wanted, fine.topic_partition: fine}
    assert ObjectSegments(storage, {"orders": "D" * 22}).partitions() == {fine.topic_partition: fine}


@pytest.mark.parametrize("layout", ["aiven", "aiven zstd"])
def test_one_manifest_is_enough_where_names_are(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    copy(at(layout, fs), tmp_path, *((number, 10 * number, 10 * number + 9) for number in range(40)))
    fs.asked.clear()
    storage = at(layout, fs)
    found = ObjectSegments(storage, only_listed=True).segments(PARTITION)
    assert fs.asked.count("cat_file") == 1
    bounds = [(10 * number, 10 * number + 9) for number in range(39)]
    assert [(each.start_offset, each.end_offset) for each in found] == [*bounds, (390, -1)]
    assert {each.segment_size_in_bytes for each in found} == {500}  # about, as in the first one
    assert not any(each.is_txn_idx_empty for each in found[1:])  # nobody knows
    assert [storage.knows_log_size(each) for each in found] == [True] + [False] * 39
    files = RemoteFiles("faulty://tier", storage, ObjectSegments(storage, only_listed=True))
    path = "faulty://tier/orders-0/00000000000000000020.log"
    fs.asked.clear()
    assert files.glance(path)[::5] == (500, True)
    assert "cat_file" not in fs.asked
    assert files.stat(path)[::5] == (500, False)
    assert fs.asked.count("cat_file") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_topic_without_segments_is_not_in_the_way(layout: str, tmp_path: Path) -> None:
    """Kafka's LocalTieredStorage leaves the folders of a topic that was deleted."""
    storage = in_a_place(layout, str(tmp_path / "tier"))
    gone = TopicIdPartition("B" * 22, PARTITION.topic_partition)
    copy(storage, tmp_path / "segment", (1, 0, 9))
    copy(storage, tmp_path / "segment", (2, 0, 9), partition=gone)
    storage.objects.delete([key for found in storage.segments_of(gone) for key in found.objects])
    assert gone in storage.partitions()
    assert ObjectSegments(storage).partitions() == {PARTITION.topic_partition: PARTITION}


STRANGE = [("x", "0", "A" * 22), ("x", "00", "B" * 22), ("x", "2147483648", "B" * 22), ("..", "0", "B" * 22)]


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_that_are_no_partitions_are_told_once(
    layout: str, strange: tuple[str, str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could open the bucket otherwise: a topic id of zeros, for one, says that there is none."""
    storage = in_a_place(layout, str(tmp_path / "tier"))
    copy(storage, tmp_path / "segment", (1, 0, 9))
    topic, number, topic_id = strange
    key = (
        f"{topic}-{topic_id}/{number}"
        if layout.startswith("aiven")
        else f"kafka-tiered-storage/{topic}-{number}-{topic_id}"
    )
    (tmp_path / "tier" / key).mkdir(parents=True)
    for _ in range(2):
        assert storage.partitions() == [PARTITION]
    (line,) = caplog.messages
    assert f"/{key} is passed over" in line


@pytest.mark.parametrize("scheme", ["file", "memory"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_deletion_leaves_no_empty_folder(layout: str, scheme: str, tmp_path: Path) -> None:
    where = tmp_path / "tier"
    storage = in_a_place(layout, str(where) if scheme == "file" else f"memory:/{where}")
    first, second = copy(storage, tmp_path / "segment", (1, 0, 49), (2, 50, 99))
    storage.delete_log_segment_data(first)
    assert storage.partitions() == [PARTITION]
    storage.delete_log_segment_data(second)
    assert storage.partitions() == []
    assert storage.objects.folders() == (["kafka-tiered-storage"] if layout == "local-tiered" else [])
    copy(storage, tmp_path / "segment", (3, 0, 9))
    assert ranges(storage)[0][0] == segment_id(3)


def test_a_gap_between_manifests_is_told_once(
    fs: FaultyObjects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = at("aiven", fs)
    copy(storage, tmp_path, (1, 0, 49), (2, 50, 99), (3, 120, 149))
    segments = ObjectSegments(storage)
    found = [segments.segments(PARTITION) for _ in range(2)][1]
    assert [each.end_offset for each in found] == [49, 99, 149]
    (line,) = caplog.messages
    assert "orders-0: no segment of the remote tier has the offsets 100 to 119" in line


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_empty_bucket(layout: str, fs: FaultyObjects) -> None:
    segments = ObjectSegments(at(layout, fs))
    assert segments.partitions() == {}
    assert segments.segments(PARTITION) == []
