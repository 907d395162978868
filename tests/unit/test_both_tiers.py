"""Reads a directory and its tier while others write to them.

The directory's metadata counts, the tier is listed again if it ends too early, and a read of offsets that nobody has is
an error.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote import metadata_manager
from kafkalog.engine.remote.directory_segments import DirectoryMetadata, DirectorySegments
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.records import deserialize
from kafkalog.engine.remote.remote_files import RemoteFiles
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    COPY_SEGMENT_STARTED,
    DELETE_SEGMENT_STARTED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataUpdate,
    random_uuid,
)
from kafkalog.engine.remote.tiered_files import TieredFiles
from kafkalog.errors import RemoteResourceNotFoundException, SchemaException
from tests.object_doubles import FaultyObjects
from tests.unit.tier_kit import RECORDS, SETTINGS, values

ORDERS = TopicPartition("orders", 0)
LOCAL = {"local.retention.bytes": "1"}


class Writer:
    """A store with a tier, and what it does step by step."""

    def __init__(self, place: Path) -> None:
        self.directory, self.tier = place / "store", place / "tier"
        self.store = kafkalog.open(self.directory, remote=self.tier, maintenance=False)
        self.topic = self.store.create_topic("orders", 1, config={**SETTINGS, **LOCAL})
        self.end = 0

    def append(self, count: int = RECORDS) -> None:
        for _ in range(count):
            self.topic.append(values(self.end), timestamp=1000 + self.end)
            self.end += 1

    def copy(self) -> int:
        """Copies segments, and deletes the copied ones locally."""
        copied = self.store.remote_log_manager.run_once()
        self.topic.partition(0).delete_old_segments()
        return copied

    def local_start(self) -> int:
        return int(min(path.name for path in self.directory.glob("orders-0/*.log"))[:20])

    def reader(self, *, has_metadata: bool = True) -> kafkalog.Store:
        """Without metadata: as a directory of a broker whose metadata another broker has."""
        seen = self.directory
        if not has_metadata:
            seen = self.directory.with_name("seen")
            seen.mkdir()
            (seen / "orders-0").symlink_to(self.directory / "orders-0")
        return kafkalog.open(seen, remote=self.tier, read_only=True)

    def objects(self, suffix: str = ".log") -> list[Path]:
        return sorted(self.tier.rglob(f"*{suffix}"))

    def tell(self, number: int, *states: object) -> RemoteLogSegmentId:
        """Writes events of the segment with that number, or of a new one like it; its id."""
        manager = self.store.remote_log_manager.metadata
        (partition,) = manager.partitions()
        metadata = manager.list_remote_log_segments(partition)[number]
        segment_id = metadata.remote_log_segment_id
        if COPY_SEGMENT_STARTED in states:
            segment_id = segment_id._replace(id=random_uuid())
            metadata = metadata._replace(remote_log_segment_id=segment_id, state=COPY_SEGMENT_STARTED)
            manager.add_remote_log_segment_metadata(metadata)
        for state in states:
            if state is not COPY_SEGMENT_STARTED:
                update = RemoteLogSegmentMetadataUpdate(segment_id, 1, None, state, 0)  # type: ignore[arg-type]
                manager.update_remote_log_segment_metadata(update)
        return segment_id


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.store.close()


def everything(store: kafkalog.Store) -> list[bytes | None]:
    return [record.value for record in store.topic("orders").partition(0)]


# --- beside a writer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_metadata", [True, False])
def test_the_tier_is_listed_anew_where_the_disk_goes_on_later(writer: Writer, has_metadata: bool) -> None:
    writer.append()
    assert writer.copy()
    with writer.reader(has_metadata=has_metadata) as store:
        partition = store.topic("orders").partition(0)
        records = iter(partition.records(0))
        assert next(records).value == values(0)
        for _ in range(3):  # each right after the last listing
            writer.append()
            before = writer.local_start()
            assert writer.copy()
            assert writer.local_start() > before
            assert [record.value for record in partition] == [values(number) for number in range(writer.end)]
        assert [next(records).offset for _ in range(RECORDS - 1)] == [*range(1, RECORDS)]


def test_a_tier_that_begins_under_a_reader(writer: Writer) -> None:
    writer.append(5)
    writer.tier.mkdir()
    (writer.tier / "kafka-tiered-storage").mkdir()
    tier = kafkalog.RemoteStorage(writer.tier, layout="local-tiered")
    with kafkalog.open(writer.directory, remote=tier, read_only=True) as store:
        assert len(everything(store)) == 5
        writer.append()
        assert writer.copy()
        assert everything(store) == [values(number) for number in range(writer.end)]


def test_topics_that_come_and_leave_the_disk_under_a_reader(writer: Writer) -> None:
    """None of them was read before; the second one has the first one's name."""
    writer.append(5)
    writer.tier.mkdir()
    tier = kafkalog.RemoteStorage(writer.tier, layout="local-tiered")
    with kafkalog.open(writer.directory, remote=tier, read_only=True) as store:
        assert store.topic("orders").partition(0).end_offset == 5
        for turn in range(2):
            dates = writer.store.create_topic("dates", 1, config={**SETTINGS, **LOCAL})
            for number in range(RECORDS):
                dates.append(values(1000 * turn + number))
            writer.store.remote_log_manager.run_once()
            dates.partition(0).delete_old_segments()
            partition = store.topic("dates").partition(0)
            assert partition.log_start_offset == 0
            assert [each.value for each in partition] == [values(1000 * turn + number) for number in range(RECORDS)]
            writer.store.delete_topic("dates")


def test_the_tier_is_listed_once_for_what_left_the_disk_long_ago(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "remote.storage.enable": "false", "retention.bytes": "1"}
    others = writer.store.create_topic("others", 3, config=settings)
    for number in range(3):
        for _ in range(RECORDS):
            others.append(values(0), partition=number)
        others.partition(number).delete_old_segments()
    writer.append()
    assert writer.copy()
    writer.store.close()
    for number in range(3):
        os.utime(writer.directory / f"others-{number}", (1, 1))
    listed = []
    ask = DirectorySegments.partitions
    monkeypatch.setattr(DirectorySegments, "partitions", lambda self: listed.append(1) or ask(self))
    with writer.reader() as store:
        assert all(store.topic("others").partition(number).log_start_offset > 0 for number in range(3))
    assert len(listed) == 1


@pytest.mark.parametrize("has_metadata", [True, False])
def test_offsets_that_nobody_has_are_an_error(writer: Writer, has_metadata: bool) -> None:
    """The disk lost a segment that was not copied."""
    writer.append()
    writer.copy()
    writer.append()
    lost = writer.local_start()
    for path in writer.directory.glob(f"orders-0/{lost:020}.*"):
        path.unlink()
    begins = writer.local_start()
    with writer.reader(has_metadata=has_metadata) as store:
        partition = store.topic("orders").partition(0)
        found = []
        said = f"orders-0: offsets {lost} to {begins - 1} are missing"
        with pytest.raises(RemoteResourceNotFoundException, match=said) as told:
            found.extend(record.offset for record in partition)
        assert found == [*range(lost)]
        assert str(begins) in str(told.value.hint)
        with pytest.raises(RemoteResourceNotFoundException, match=said):
            next(iter(partition.records(lost)))
        assert [record.offset for record in partition.records(begins)] == [*range(begins, writer.end)]


# --- what the metadata say ---------------------------------------------------------------------------------


def test_what_was_never_finished_does_not_count(writer: Writer) -> None:
    """An object that is whole, later and longer than the others of its offset, of an upload that was not finished."""
    writer.append()
    writer.copy()
    begun = writer.tell(0, COPY_SEGMENT_STARTED)
    first, second = writer.objects()[:2]
    for path in first.parent.glob(f"{first.stem}.*"):
        source = second.with_suffix(path.suffix) if path.suffix == ".log" else path
        shutil.copy(source, path.with_name(path.name.replace(first.stem[21:], begun.id)))
    with (first.parent / f"{first.stem[:20]}-{begun.id}.log").open("ab") as file:
        file.write(bytes(5000))
    with writer.reader() as store:
        assert everything(store) == [values(number) for number in range(writer.end)]
    writer.tell(1, DELETE_SEGMENT_STARTED)
    with writer.reader() as store, pytest.raises(RemoteResourceNotFoundException, match=r"offsets .* are missing"):
        everything(store)
    writer.tell(0, DELETE_SEGMENT_STARTED)
    with writer.reader() as store:
        start = store.topic("orders").partition(0).log_start_offset
        assert start == int(writer.objects()[3].name[:20])
        assert everything(store) == [values(number) for number in range(start, writer.end)]


def test_a_finished_segment_without_its_object_is_named(writer: Writer) -> None:
    writer.append()
    writer.copy()
    gone = writer.objects()[1]
    gone.unlink()
    with writer.reader() as store, pytest.raises(RemoteResourceNotFoundException, match=gone.stem):
        everything(store)


def test_a_partition_whose_folder_is_gone(writer: Writer) -> None:
    """The metadata's own leader epochs lead to the segments."""
    writer.append()
    writer.copy()
    end = writer.local_start()
    writer.store.close()
    shutil.rmtree(writer.directory / "orders-0")
    (writer.directory / "recovery-point-offset-checkpoint").unlink()  # it knows that the disk had more
    with writer.reader() as store:
        assert everything(store) == [values(number) for number in range(end)]


@pytest.mark.parametrize("is_here", [True, False])
def test_metadata_of_a_broker_whose_others_have_the_rest(writer: Writer, is_here: bool) -> None:
    """It speaks of partitions whose events it would have; of the others the objects do."""
    writer.append()
    writer.copy()
    writer.store.close()
    (writer.directory / ".kafkalog_topics").unlink()
    (folder,) = writer.directory.glob("__remote_log_metadata-*")
    number = int(folder.name.rpartition("-")[2])
    folder.rename(folder.with_name(f"__remote_log_metadata-{number if is_here else (number + 1) % 50}"))
    (folder.with_name(f"__remote_log_metadata-{48 if number == 49 else 49}")).mkdir(exist_ok=True)
    metadata = DirectoryMetadata([str(writer.directory)])
    (partition,) = kafkalog.RemoteStorage(writer.tier).manager().partitions()
    assert (metadata.is_whole, metadata.speaks_of(partition)) == (False, is_here)
    lost = writer.objects()[1]
    lost.unlink()
    with writer.reader() as store:
        if is_here:
            with pytest.raises(RemoteResourceNotFoundException, match=lost.stem):
                everything(store)
        else:
            start = int(lost.name[:20])
            found = [record.offset for record in store.topic("orders").partition(0)]
            assert found[: start + 1] == [*range(start), int(writer.objects()[1].name[:20])]


def test_segments_are_those_of_the_store(writer: Writer) -> None:
    writer.append()
    writer.copy()
    writer.tell(2, COPY_SEGMENT_STARTED, COPY_SEGMENT_FINISHED)  # a leader who did not know copied once more
    writer.store.topic("orders").partition(0).delete_records(20)
    tasks = next(iter(writer.store.remote_log_manager._tasks.values()))
    expected = tasks.tier.segments(tasks.expiring.topic_id_partition)
    segments = DirectorySegments([str(writer.directory)], kafkalog.RemoteStorage(writer.tier).manager())
    (partition,) = segments.partitions().values()
    assert [*segments.segments(partition)][-len(expected) :] == [*expected]


def test_events_are_decoded_once(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.append()
    writer.copy()
    decoded = []

    def counted(data: bytes) -> Any:
        decoded.append(data)
        return deserialize(data)

    monkeypatch.setattr(metadata_manager, "deserialize", counted)
    with writer.reader() as reader:
        assert everything(reader) == [values(number) for number in range(writer.end)]
    assert decoded
    assert len(decoded) == len(set(decoded))


def test_metadata_that_moved_to_another_directory(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "one"), str(tmp_path / "two")]
    at_once = {"file.delete.delay.ms": "0"}
    with kafkalog.open(dirs, remote=tmp_path / "tier", maintenance=False, config=at_once) as store:
        topic = store.create_topic("orders", 1, config={**SETTINGS, **LOCAL})

        def append() -> None:
            for _ in range(RECORDS):
                topic.append(b"." * 100)
            assert store.remote_log_manager.run_once() > 0
            assert topic.partition(0).delete_old_segments() > 0

        append()
        with kafkalog.open(dirs, remote=tmp_path / "tier", read_only=True) as reader:
            assert len(everything(reader)) == RECORDS
            (folder,) = [path for each in dirs for path in Path(each).glob("__remote_log_metadata-*")]
            store.manager.move(folder.name, dirs[1 - dirs.index(str(folder.parent))])
            deadline = time.monotonic() + 10
            while list(folder.parent.glob("__remote_log_metadata-*")):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            append()
            assert len(everything(reader)) == 2 * RECORDS


def test_an_event_that_was_mended_is_read_again(writer: Writer) -> None:
    writer.append()
    writer.copy()
    (log,) = [path for path in writer.directory.glob("__remote_log_metadata-*/*.log") if path.stat().st_size]
    good = log.read_bytes()
    log.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
    metadata = DirectoryMetadata([str(writer.directory)])
    (partition,) = writer.store.remote_log_manager.metadata.partitions()
    for _ in range(2):
        with pytest.raises(SchemaException, match="cannot be read"):
            metadata.cache_of(partition)
        metadata.look()
    log.write_bytes(good)
    metadata.look()
    assert len([*metadata.copied()]) == len(writer.objects())


def test_a_reader_asks_for_no_listing(tmp_path: Path, writer: Writer) -> None:
    """If the directory has the metadata, nothing is listed: neither directories nor objects."""
    fs = FaultyObjects()
    for path in writer.tier.rglob("*"):
        assert not path.is_file()
    writer.append()
    writer.copy()
    objects = fs.objects()
    for path in sorted(writer.tier.rglob("*")):
        if path.is_file():
            objects.put(str(path.relative_to(writer.tier)), lambda path=path: [path.read_bytes()])
    storage = LocalTieredStorage(objects)
    del fs.asked[:]
    directory = str(writer.directory)
    remote = RemoteFiles("faulty://tier", storage, DirectorySegments([directory], storage))
    files = TieredFiles(remote, [directory])
    with PartitionView(directory, ORDERS, files=files) as view:
        assert (view.log_start_offset, view.log_end_offset) == (0, writer.end)
        assert not fs.asked
        assert view.extent(0) is not None
        assert view.offset_for_time(1000) == 0
        view.refresh()
    assert files.list_dir(directory)
    assert "cat_file" in fs.asked
    assert "ls" not in fs.asked
