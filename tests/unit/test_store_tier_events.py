"""The events of remote segments in a store: unreadable ones, ones that did not become durable, and their locks."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import OsFiles
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.names import REMOTE_LOG_METADATA_TOPIC
from kafkalog.engine.remote import metadata_manager, records
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    COPY_SEGMENT_STARTED,
    DELETE_SEGMENT_STARTED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from kafkalog.errors import IllegalArgumentException, SchemaException
from kafkalog.toolbox import tiering
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.tier_kit import SETTINGS, die, tiered

Place = tuple[Path, Path]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "1000"})
    return tmp_path / "store", tmp_path / "tier"


def opened(place: Place, **options: Any) -> kafkalog.Store:
    return kafkalog.open(place[0], remote=place[1], maintenance=False, **options)


def objects(place: Place) -> list[str]:
    return sorted(path.name for path in place[1].rglob("*.log"))


def segments(store: kafkalog.Store) -> list[RemoteLogSegmentMetadata]:
    return store.remote_log_manager.metadata.list_remote_log_segments(partition_of(store))


def partition_of(store: kafkalog.Store, topic: str = "orders") -> TopicIdPartition:
    log = store.topic(topic).partition(0).engine
    assert log.topic_id is not None
    return TopicIdPartition(log.topic_id, log.topic_partition)


def strange_events() -> Iterator[tuple[str, Callable[[RemoteLogSegmentMetadata], list[bytes]]]]:
    """The events to write, given a segment that exists: the last one of these cannot be read."""

    def renamed(known: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadata:
        return known._replace(
            remote_log_segment_id=RemoteLogSegmentId.generate_new(known.topic_id_partition), state=state
        )

    def began_twice(known: RemoteLogSegmentMetadata) -> list[bytes]:
        began = renamed(known, COPY_SEGMENT_STARTED)
        update = RemoteLogSegmentMetadataUpdate(began.remote_log_segment_id, 1, None, COPY_SEGMENT_STARTED, 0)
        return [records.serialize(began), records.serialize(update)]

    for state in list(RemoteLogSegmentState)[1:]:
        yield f"begins as {state.name}", lambda known, state=state: [records.serialize(renamed(known, state))]
    yield "an update that it began", began_twice
    yield "a later version", lambda known: [records.serialize(known)[:2] + b"\x07" + records.serialize(known)[3:]]
    yield "no event", lambda known: [b"\x00"]


STRANGE = dict(strange_events())


@pytest.mark.parametrize("load", ["all", "on demand"])
@pytest.mark.parametrize("event", STRANGE)
def test_an_event_that_cannot_be_read_stops_its_partition(
    place: Place, event: str, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(place) as store:
        store.topic("orders").partition(0).delete_old_segments()
        (log,) = store.manager.logs_by_topic(REMOTE_LOG_METADATA_TOPIC)
        for value in STRANGE[event](segments(store)[0]):
            builder = MemoryRecordsBuilder()
            builder.append(1, None, value)
            log.append_as_leader(builder.build(), 0)
        offset = log.log_end_offset - 1
    before = objects(place)
    said = f"{log.topic_partition}: the event at offset {offset} of {log.topic_partition} cannot be read: "
    with opened(place, load=load) as store:
        partition = store.topic("orders").partition(0)
        assert caplog.text.count(said) >= 1
        caplog.clear()
        local, end = partition.engine.local_log_start_offset, partition.end_offset
        assert 0 == partition.log_start_offset < local
        store.alter_topic("orders", {"retention.bytes": "1000"})
        for _ in range(20):
            partition.append(b"." * 500)
        assert store.remote_log_manager.run_once() == 0
        assert f"copying {partition_of(store)} failed: " in caplog.text
        assert caplog.text.count(said) == 2
        assert partition.delete_old_segments() == 0
        assert (partition.log_start_offset, objects(place)) == (0, before)
        assert [each.offset for each in partition.records(local)] == list(range(local, end + 20))
        for ask in (lambda: next(partition.records(0)), lambda: partition.truncate(end)):
            with pytest.raises(SchemaException, match=said):
                ask()
        other = store.create_topic("others", 1, config=SETTINGS, topic_id="AAECAwQFBgcICQoLDA0ODw")
        for _ in range(40):
            other.append(b"." * 100)
        is_of_another = metadata_manager.metadata_partition(partition_of(store, "others"), 50) != int(
            log.dir.rpartition("-")[2]
        )
        assert (store.remote_log_manager.run_once() > 0) == is_of_another
        assert len(list(other.partition(0))) == 40
        with pytest.raises(SchemaException, match=said):
            tiering.orphans(store.remote_log_manager.storage, tiering.known_segments([str(place[0])]))
        store.delete_topic("orders")
    assert set(before) <= set(objects(place))


def test_both_tiers_are_not_read_past_an_event_that_cannot_be_read(place: Place) -> None:
    with opened(place) as store:
        orders = store.topic("orders").partition(0)
        orders.delete_old_segments()
        local, end = orders.engine.local_log_start_offset, orders.end_offset
        (log,) = store.manager.logs_by_topic(REMOTE_LOG_METADATA_TOPIC)
        builder = MemoryRecordsBuilder()
        builder.append(1, None, b"?")
        log.append_as_leader(builder.build(), 0)
        store.create_topic("others", 1).append(b"read")
    with kafkalog.open(place[0], remote=place[1], read_only=True) as view:
        partition = view.topic("orders").partition(0)
        for offset in (0, 1, local - 1):
            with pytest.raises(SchemaException, match="the event at offset"):
                next(partition.records(offset))
        assert [each.offset for each in partition.records(local)] == list(range(local, end))
        assert [each.value for each in view.topic("others").partition(0)] == [b"read"]
    with kafkalog.open(place[0], read_only=True) as view:
        assert [each.offset for each in view.topic("orders").partition(0)] == list(range(local, end))


def test_states_that_no_reader_takes_are_not_written(place: Place) -> None:
    with opened(place) as store:
        known, metadata = segments(store)[0], store.remote_log_manager.metadata
        for state in (COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED):
            with pytest.raises(IllegalArgumentException, match="should have state as COPY_SEGMENT_STARTED"):
                metadata.add_remote_log_segment_metadata(known._replace(state=state))
        with pytest.raises(IllegalArgumentException, match="should not have the state as: COPY_SEGMENT_STARTED"):
            metadata.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(known.remote_log_segment_id, 1, None, COPY_SEGMENT_STARTED, 0)
            )
        assert known in segments(store)


def test_an_event_whose_flush_failed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload is over, and that is not durable: the segment stays on the disk, and is not copied once more."""
    disks, tier, files = [tmp_path / "disk0", tmp_path / "disk1"], tmp_path / "tier", FaultyFiles(OsFiles())
    store = kafkalog.open(disks, remote=tier, maintenance=False, files=files)
    orders = store.create_topic("orders", 1, config={**SETTINGS, "local.retention.bytes": "3000"})
    for number in range(60):
        orders.append(b"value %d " % number + b"." * 100)
    manager, partition = store.remote_log_manager, orders.partition(0)
    copy = manager.storage.copy_log_segment_data

    def copied(metadata: RemoteLogSegmentMetadata, data: Any) -> bytes | None:
        if metadata.start_offset > 0:
            files.fault = Fault(files.count, errno.EIO, kinds=("sync",), paths=lambda path: "__remote_log" in path)
        return copy(metadata, data)

    monkeypatch.setattr(manager.storage, "copy_log_segment_data", copied)
    for _ in range(3):
        manager.run_once()
    assert files.failed
    first, second = segments(store)
    assert (first.state, second.state) == (COPY_SEGMENT_FINISHED, COPY_SEGMENT_STARTED)
    assert partition.engine.highest_offset_in_remote_storage == first.end_offset
    assert len(list(tier.rglob("*.log"))) == 2
    partition.delete_old_segments()
    assert partition.engine.local_log_start_offset == second.start_offset
    assert len(list(partition)) == 60
    die(store)
    monkeypatch.undo()
    with kafkalog.open(disks, remote=tier, maintenance=False) as store:
        store.remote_log_manager.run_once()
        known = segments(store)
        assert {each.state for each in known} == {COPY_SEGMENT_FINISHED}
        assert len(list(tier.rglob("*.log"))) == len(known) > 2
        assert len(list(store.topic("orders").partition(0))) == 60


def test_topics_are_made_while_the_first_events_are_written(place: Place) -> None:
    """An event creates its partition of the topic, which needs the catalog's lock; a topic's creation requests events
    while holding it."""
    with opened(place) as store:
        metadata = store.remote_log_manager.metadata
        is_in, may_go_on = threading.Event(), threading.Event()
        real = metadata._log_of

        def log_of(number: int, create: bool) -> Any:
            if create:
                is_in.set()
                assert may_go_on.wait(20)
            return real(number, create)

        metadata._log_of = log_of
        ids = iter(f"{number:02d}ECAwQFBgcICQoLDA0ODw" for number in range(10, 100))
        taken = metadata_manager.metadata_partition(partition_of(store))
        topic_id = next(each for each in ids if _number_of(each, "first") != taken)
        same = next(each for each in ids if _number_of(each, "other") == _number_of(topic_id, "first"))
        first = store.create_topic("first", 1, config=SETTINGS, topic_id=topic_id)
        for _ in range(30):
            first.append(b"." * 100)
        copier = threading.Thread(target=store.remote_log_manager.run_once, daemon=True)
        maker = threading.Thread(
            target=store.create_topic, args=("other", 1), kwargs={"config": SETTINGS, "topic_id": same}, daemon=True
        )
        copier.start()
        assert is_in.wait(20)
        maker.start()
        maker.join(20)
        may_go_on.set()
        copier.join(20)
        assert not maker.is_alive()
        assert not copier.is_alive()
        assert "other" in store


def _number_of(topic_id: str, topic: str) -> int:
    return metadata_manager.metadata_partition(TopicIdPartition(topic_id, kafkalog.TopicPartition(topic, 0)))
