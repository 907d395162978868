"""The segments of a bucket without other metadata: which count, where they end, and which topic is meant."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.leader_epochs import entries_in_range
from kafkalog.engine.remote import object_segments
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.object_segments import ObjectSegments
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.remote_files import RemoteFiles, check_there
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    epochs_of,
)
from kafkalog.errors import IllegalArgumentException, RemoteResourceNotFoundException
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
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    partition: TopicIdPartition = PARTITION,
) -> list[RemoteLogSegmentMetadata]:
    """Copies segments of (number, first offset, last offset), of a log with these leader epochs: one batch each, of
    about so many bytes."""
    made = []
    checkpoint = b"0\n%d\n%s" % (len(epochs), b"".join(b"%d %d\n" % entry for entry in epochs))
    data = write_segment(folder)._replace(leader_epoch_index=checkpoint)
    for number, start, end in segments:
        builder = MemoryRecordsBuilder(base_offset=start)
        builder.append(1000, None, b"." * size)
        if end > start:
            builder.append(1000, None, b"", offset=end)
        (folder / "log").write_bytes(builder.build())
        (folder / "index").write_bytes(struct.pack(">ii", end - start, 0))
        own = entries_in_range([EpochEntry(*entry) for entry in epochs], start, end + 1)
        log_bytes = (folder / "log").stat().st_size
        metadata = copied(log_bytes, number=number, start=start, end=end, epochs=epochs_of(own))
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
    assert ranges(storage) == [(segment_id(1), 0, 49), (segment_id(3), 50, 99), (segment_id(2), 100, 120)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_known_of_a_segment(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    (metadata,) = copy(storage, tmp_path, (1, 5, 49))
    (found,) = ObjectSegments(storage).segments(PARTITION)
    expected = metadata._replace(state=COPY_SEGMENT_FINISHED)
    if layout == "local-tiered":
        expected = expected._replace(max_timestamp_ms=-1, broker_id=-1, event_timestamp_ms=-1)
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
        assert again.log_size(found) == found.segment_size_in_bytes
        if found.end_offset == -1:
            assert again.fetch_log_segment(found, 0, 1000) == (tmp_path / "log").read_bytes()


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
    copy(storage, tmp_path, (early, 0, 80), size=900, epochs=[(3, 0)])
    copy(storage, tmp_path, (late, 0, 40), size=100, epochs=[(4, 0)])
    copy(storage, tmp_path, (9, 41, 50), epochs=[(4, 0)])
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
    copy(storage, tmp_path, (2, 0, 80), size=900, epochs=[(7, 0)])
    storage.objects.put(
        next(key for key in storage.segments_of(PARTITION)[1].objects if key.endswith("checkpoint")), lambda: [b"?"]
    )
    assert ranges(storage) == [(segment_id(1), 0, 40)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_of_a_history_that_was_given_up(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """Two leaders uploaded at once: the later one's segments begin within the earlier one's.

    Only its leader epochs show that the earlier one's later part does not count."""
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 99), (2, 100, 199))
    copy(storage, tmp_path, (3, 60, 149), (4, 150, 170), epochs=[(0, 0), (1, 100)])
    assert [(start, end) for _, start, end in ranges(storage)] == [(0, 99), (60, 149), (150, 170)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_segment_hides_none_behind_where_it_was_given_up(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """It begins where another one does, and continues with an epoch that the latest leader does not know."""
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 18), (2, 19, 25), (3, 26, 33))
    copy(storage, tmp_path, (4, 19, 27), (5, 28, 40), epochs=[(0, 0), (1, 23)])
    copy(storage, tmp_path, (6, 30, 50), epochs=[(0, 0), (2, 30)])
    assert ranges(storage) == [
        (segment_id(1), 0, 18),
        (segment_id(2), 19, 25),
        (segment_id(3), 26, 33),
        (segment_id(6), 30, 50),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_given_up_does_not_stand_for_what_is_missing(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    """The later leader's segment from offset 20 to 39, which is missing, had offset 30 on."""
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 27), (2, 28, 34))
    copy(storage, tmp_path, (3, 40, 59), epochs=[(0, 0), (1, 30)])
    found = ObjectSegments(storage).segments(PARTITION)
    assert [each.start_offset for each in found] == [0, 28, 30, 40]
    with pytest.raises(RemoteResourceNotFoundException, match="offsets 30 to 39 are missing"):
        check_there(found[2], "")


def test_a_segment_whose_end_is_not_known_goes_up_to_its_leaders_next_one(fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at("local-tiered", fs)
    copy(storage, tmp_path, (1, 0, 27), (2, 28, 34))
    copy(storage, tmp_path, (3, 20, 39), (4, 40, 59), epochs=[(0, 0), (1, 30)])
    log = next(key for found in storage.segments_of(PARTITION) for key in found.objects if "3A.log" in key)
    data = storage.objects.get(log)
    storage.objects.put(log, lambda: [data[:-1] + b"?"])
    assert [start for _, start, _ in ranges(storage)] == [0, 20, 40]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("second", [(160, 249), (0, 950)])
def test_names_are_not_enough_where_the_last_one_is_not_the_end(
    layout: str, second: tuple[int, int], fs: FaultyObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one belongs to an abandoned history, or is within a later leader's."""
    monkeypatch.setattr(object_segments, "ASKED_MOST", 20)
    storage = at(layout, fs)
    copy(storage, tmp_path, *((number, 10 * number, 10 * number + 9) for number in range(40)))
    start, end = second
    copy(storage, tmp_path, (40, start, end), epochs=[(0, 0), (1, 200 if start else 950)])
    found = ObjectSegments(storage, only_listed=True).segments(PARTITION)
    assert (found[-1].start_offset, found[-1].end_offset) == second


@pytest.mark.parametrize("damaged", [(2,), (1, 3)])
def test_a_segment_whose_epochs_cannot_be_read_fills_a_gap(
    damaged: tuple[int, ...], fs: FaultyObjects, tmp_path: Path
) -> None:
    """It counts where no other one has its first offset: the others are read as their leader epochs say."""
    storage = at("local-tiered", fs)
    copy(storage, tmp_path, (1, 0, 49), (2, 50, 99), (3, 100, 149), (4, 130, 199))
    copy(storage, tmp_path, (5, 120, 160), (6, 161, 170), epochs=[(0, 0), (1, 130)])
    for found in storage.segments_of(PARTITION):
        if found.id in map(segment_id, damaged):
            storage.objects.put(next(key for key in found.objects if key.endswith("checkpoint")), lambda: [b"?"])
    assert ranges(storage) == [
        (segment_id(1), 0, 49),
        (segment_id(2), 50, 99),
        (segment_id(3), 100, 149),
        (segment_id(5), 120, 160),
        (segment_id(6), 161, 170),
    ]


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


@pytest.mark.parametrize("most", [1000, 2])
def test_a_damaged_manifest_is_that_of_a_segment_whose_offsets_are_missing(
    fs: FaultyObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """If there are more than `most` segments, their names suffice, for as many as can be read."""
    monkeypatch.setattr(object_segments, "ASKED_MOST", most)
    storage = at("aiven zstd", fs)
    copy(storage, tmp_path, (1, 0, 49), (2, 50, 99), (3, 50, 99), (4, 100, 149), (5, 150, 199))
    for number, base in ((1, 0), (2, 50), (4, 100), (5, 150)):
        key = f"orders-{PARTITION.topic_id}/0/{base:020}-{segment_id(number)}.rsm-manifest"
        storage.objects.put(key, lambda: [b"{}"])
    found = ObjectSegments(at("aiven zstd", fs), only_listed=True).segments(PARTITION)
    told = [(each.remote_log_segment_id.id, each.start_offset, each.end_offset) for each in found]
    ends = zip((1, 3, 4, 5), (0, 50, 100, 150), (49, 99, 149, -1), strict=True)
    assert told == [(segment_id(number), start, end) for number, start, end in ends]
    assert [each.is_missing for each in found] == ([True, False, True, True] if most == 1000 else [False] * 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leader_epochs_lie_beside_a_segment(layout: str, fs: FaultyObjects, tmp_path: Path) -> None:
    storage = at(layout, fs)
    copy(storage, tmp_path, (1, 0, 49), epochs=[(6, 0)])
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
    with pytest.raises(IllegalArgumentException, match=f"found {'D' * 22} for 'orders'.*{other.topic_id}"):
        ObjectSegments(storage, {"orders": "D" * 22}).check_topic_ids()


@pytest.mark.parametrize("layout", ["aiven", "aiven zstd"])
def test_some_manifests_are_enough_where_names_are(
    layout: str, fs: FaultyObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_segments, "ASKED_MOST", 39)
    copy(at(layout, fs), tmp_path, *((number, 10 * number, 10 * number + 9) for number in range(40)))
    fs.asked.clear()
    storage = at(layout, fs)
    segments = ObjectSegments(storage, only_listed=True)
    for _ in range(2):
        found = segments.segments(PARTITION)
        assert fs.asked.count("cat_file") == 20  # the last 16, and two each before them and at the start
    bounds = [(10 * number, 10 * number + 9) for number in range(39)]
    assert [(each.start_offset, each.end_offset) for each in found] == [*bounds, (390, -1)]
    assert {570 < each.segment_size_in_bytes < 600 for each in found} == {True}  # about
    assert not any(each.is_txn_idx_empty for each in found[1:])  # unknown
    assert [storage.knows_log_size(each) for each in found] == [False] * 40
    files = RemoteFiles("faulty://tier", storage, ObjectSegments(storage, only_listed=True))
    path = "faulty://tier/orders-0/00000000000000000020.log"
    fs.asked.clear()
    assert files.glance(path)[::5] == (found[2].segment_size_in_bytes, True)
    assert "cat_file" not in fs.asked
    assert files.stat(path)[::5] == (577, False)
    assert fs.asked.count("cat_file") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_topic_without_segments_is_not_in_the_way(layout: str, tmp_path: Path) -> None:
    """Kafka's LocalTieredStorage leaves the directories of a deleted topic."""
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
    assert f"/{key} is ignored" in line


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
