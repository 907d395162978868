"""The share coordinator over logs in memory: states, epochs, snapshots, what a reload knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
from kafkalog.engine.coordinator.share_coordinator_shard import NO_TRANSACTION, OffsetsManager, ShareCoordinatorShard
from kafkalog.engine.coordinator.state_batches import combine_state_batches
from kafkalog.engine.coordinator.state_log import records_batch
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.batch import NO_PRODUCER, ProducerFields
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.coordinator_records import share_record_set
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import (
    SNAPSHOT,
    UPDATE,
    PersisterStateBatch,
    ShareGroupOffset,
    SharePartitionKey,
    ShareRecord,
    decode_share_record,
    encode_share_record,
)
from kafkalog.errors import IllegalArgumentException, KafkaStorageException, SchemaException
from tests.unit.coordinator_kit import NOW_MS, Disk, MemoryLog

TOPIC_ID = "uxyIgbWPTi2YN1lvRUNl9w"
KEY = SharePartitionKey("mail", TOPIC_ID, 0)
AVAILABLE, ACKED, ARCHIVED = 0, 2, 4


class Topics:
    """One topic of four partitions."""

    version = 0

    def __init__(self) -> None:
        self.names_by_id = {TOPIC_ID: "outbox"}

    def name(self, topic_id: str) -> str | None:
        return self.names_by_id.get(topic_id)

    def partitions(self, name: str) -> int:
        return 4 if name == "outbox" else 0

    def topic_id(self, name: str) -> str | None:
        return next((topic_id for topic_id, each in self.names_by_id.items() if each == name), None)

    def names(self) -> list[str]:
        return list(self.names_by_id.values())


class ShareLog(MemoryLog):
    """A log in memory whose beginning can be deleted."""

    start = 0

    def delete_records(self, before: int) -> None:
        self.start = before
        self.batches = [batch for batch in self.batches if int.from_bytes(batch[:8], "big") >= before]


class Kit:
    """A coordinator; `again` is what another process makes of its logs."""

    def __init__(self, settings: ShareSettings = ShareSettings(), logs: dict[int, ShareLog] | None = None) -> None:  # noqa: B008
        self.clock = ManualClock(NOW_MS)
        self.topics = Topics()
        self.logs: dict[int, ShareLog] = {} if logs is None else logs
        self.disk = Disk()
        self.shares = ShareCoordinator(self._log, 50, self.clock, self.topics, settings)

    def _log(self, number: int, create: bool) -> ShareLog | None:
        if create:
            self.logs.setdefault(number, ShareLog(f"__share_group_state-{number}", self.disk))
        return self.logs.get(number)

    def again(self) -> Kit:
        return Kit(self.shares.settings, self.logs)

    def initialize(self, start: int = 0, state_epoch: int = 0, partition: int = 0, topic_id: str = TOPIC_ID) -> Values:
        return self._one("initialize_state", partition, topic_id, stateEpoch=state_epoch, startOffset=start)

    def write(
        self, *batches: tuple[int, int, int, int], start: int = -1, leader_epoch: int = 0, state_epoch: int = 0,
        count: int = -1, partition: int = 0,
    ) -> Values:  # fmt: skip
        structs = [
            {"firstOffset": first, "lastOffset": last, "deliveryState": state, "deliveryCount": deliveries}
            for first, last, state, deliveries in batches
        ]
        return self._one(
            "write_state", partition, TOPIC_ID, stateEpoch=state_epoch, leaderEpoch=leader_epoch, startOffset=start,
            deliveryCompleteCount=count, stateBatches=structs,
        )  # fmt: skip

    def read(self, leader_epoch: int = 0, partition: int = 0) -> Values:
        return self._one("read_state", partition, TOPIC_ID, leaderEpoch=leader_epoch)

    def summary(self, partition: int = 0) -> Values:
        return self._one("read_state_summary", partition, TOPIC_ID, leaderEpoch=0)

    def delete(self, partition: int = 0) -> Values:
        return self._one("delete_state", partition, TOPIC_ID)

    def _one(self, call: str, partition: int, topic_id: str, **fields: object) -> Values:
        topics = [{"topicId": topic_id, "partitions": [{"partition": partition, **fields}]}]
        answer = getattr(self.shares, call)({"groupId": "mail", "topics": topics})
        (topic,) = answer["results"]
        assert topic["topicId"] == topic_id
        (found,) = topic["partitions"]
        assert found["partition"] == partition
        assert isinstance(found, dict)
        return found

    def records(self) -> Iterator[tuple[int, object]]:
        for log in self.logs.values():
            for batch in log.read():
                for record in batch.records:
                    found = decode_share_record(record.key, record.value)
                    yield found.type, found.value


def batches_of(found: Values) -> list[tuple[int, int, int, int]]:
    assert found["errorCode"] == 0, found
    return [(b["firstOffset"], b["lastOffset"], b["deliveryState"], b["deliveryCount"]) for b in found["stateBatches"]]


def test_a_state_is_initialized_written_and_read() -> None:
    kit = Kit()
    assert kit.initialize(10) == {"partition": 0, "errorCode": 0, "errorMessage": None}
    assert kit.write((10, 12, ACKED, 1), (13, 13, AVAILABLE, 2), start=10, count=3)["errorCode"] == 0
    for each in (kit, kit.again()):
        found = each.read()
        assert batches_of(found) == [(10, 12, ACKED, 1), (13, 13, AVAILABLE, 2)]
        assert (found["startOffset"], found["stateEpoch"]) == (10, 0)
        assert each.summary()["deliveryCompleteCount"] == 3


def test_a_start_offset_only_grows_and_cuts_batches() -> None:
    kit = Kit()
    kit.initialize(0)
    kit.write((0, 9, AVAILABLE, 1), start=0)
    kit.write(start=5, count=0)
    kit.write(start=2, count=7)
    found = kit.read()
    assert (found["startOffset"], batches_of(found)) == (5, [(5, 9, AVAILABLE, 1)])
    assert kit.summary()["deliveryCompleteCount"] == 0


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"partition": -1}, 42, "The partition id cannot be a negative number."),
        ({"leader_epoch": -1}, 42, "The leader epoch cannot be a negative number."),
        ({"state_epoch": -1}, 42, "The state epoch cannot be a negative number."),
        ({"partition": 1}, 42, "Write operation on uninitialized share partition not allowed."),
        ({"leader_epoch": 4}, 74, "The leader epoch in the request is older than the epoch on the broker."),
        ({"state_epoch": 1}, 124, "The coordinator rejected the request because the state epoch did not match."),
    ],
)
def test_a_write_is_refused(fields: dict[str, int], code: int, message: str) -> None:
    kit = Kit()
    kit.initialize(0, state_epoch=2)
    kit.read(leader_epoch=5)
    got = kit.write(**{"leader_epoch": 5, "state_epoch": 2, **fields})
    assert (got["errorCode"], got["errorMessage"]) == (code, message)


def test_an_earlier_reader_is_fenced_also_after_a_reload() -> None:
    kit = Kit()
    kit.initialize(0)
    assert kit.read(leader_epoch=3)["errorCode"] == 0
    for each in (kit, kit.again()):
        assert each.read(leader_epoch=2)["errorCode"] == 74
        assert each.read(leader_epoch=-1)["errorCode"] == 42
        assert each.read(partition=1)["errorMessage"] == "Read operation on uninitialized share partition not allowed."
        assert each.summary()["leaderEpoch"] == 3


def test_an_earlier_life_of_a_group_is_fenced() -> None:
    kit = Kit()
    kit.initialize(0, state_epoch=3)
    assert kit.initialize(0, state_epoch=2)["errorCode"] == 124
    assert kit.initialize(7, state_epoch=3)["errorCode"] == 0
    assert [value.snapshot_epoch for _, value in kit.records()] == [0, 1]  # type: ignore[attr-defined]
    assert kit.initialize(7, state_epoch=-1)["errorMessage"] == "The state epoch cannot be a negative number."


def test_unknown_topics_and_partitions() -> None:
    kit = Kit()
    other = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert kit.initialize(topic_id=other)["errorCode"] == 3
    assert kit.initialize(partition=4)["errorCode"] == 3
    assert kit.initialize(partition=-1)["errorCode"] == 42
    assert kit.summary(4)["errorCode"] == kit.delete(4)["errorCode"] == 3
    assert kit.summary(-1)["errorCode"] == kit.delete(-1)["errorCode"] == kit.read(partition=-1)["errorCode"] == 42
    kit.initialize()
    kit.topics.names_by_id.clear()
    kit.topics.version += 1
    assert kit.write()["errorCode"] == kit.read()["errorCode"] == 3
    assert not kit.logs or all(len(log.batches) == 1 for log in kit.logs.values())


def test_a_summary_of_nothing_creates_nothing() -> None:
    kit = Kit()
    assert kit.summary() == {
        "partition": 0, "errorCode": 0, "errorMessage": None, "stateEpoch": 0, "leaderEpoch": 0, "startOffset": -1,
        "deliveryCompleteCount": -1,
    }  # fmt: skip
    assert kit.delete()["errorCode"] == 0
    assert not kit.logs


def test_a_deleted_state_may_begin_again_at_a_lower_epoch() -> None:
    kit = Kit()
    kit.initialize(0, state_epoch=5)
    kit.delete()
    for each in (kit, kit.again()):
        assert each.read()["errorCode"] == 42
    assert kit.initialize(0, state_epoch=1)["errorCode"] == 0


def test_a_snapshot_follows_enough_updates() -> None:
    kit = Kit(ShareSettings(snapshot_update_records_per_snapshot=3))
    kit.initialize(0)
    for offset in range(8):
        kit.write((offset, offset, ACKED, 1))
    assert [type for type, _ in kit.records()] == [SNAPSHOT, *[UPDATE] * 3, SNAPSHOT, *[UPDATE] * 3, SNAPSHOT]
    last = list(kit.records())[-1][1]
    assert last.state_batches == ((0, 7, ACKED, 1),)  # type: ignore[attr-defined]
    assert batches_of(kit.again().read()) == [(0, 7, ACKED, 1)]


def test_records_below_the_oldest_snapshot_are_pruned() -> None:
    kit = Kit(ShareSettings(snapshot_update_records_per_snapshot=0))
    kit.initialize(0)
    kit.shares.prune()
    (log,) = kit.logs.values()
    assert log.start == 0
    kit.write((0, 0, ACKED, 1))
    kit.write((1, 1, ACKED, 1))
    kit.shares.prune()
    assert log.start == 2
    assert len(log.batches) == 1
    assert batches_of(kit.again().read()) == [(0, 1, ACKED, 1)]


def test_a_cold_partition_gets_one_snapshot() -> None:
    kit = Kit()
    kit.initialize(0)
    kit.write((0, 3, ACKED, 1), start=0)
    kit.shares.snapshot_cold_partitions()
    assert len(list(kit.records())) == 2
    kit.clock.advance(300_000)
    kit.shares.snapshot_cold_partitions()
    kit.clock.advance(300_000)
    kit.shares.snapshot_cold_partitions()
    *_, (type, value) = kit.records()
    assert len(list(kit.records())) == 3
    assert type == SNAPSHOT
    assert value.snapshot_epoch == 1  # type: ignore[attr-defined]
    assert value.write_timestamp - value.create_timestamp == 300_000  # type: ignore[attr-defined]


def test_deleted_topics_are_forgotten() -> None:
    kit = Kit()
    kit.initialize(0)
    kit.shares.on_topics_deleted({"AAAAAAAAAAAAAAAAAAAAAQ"})
    assert kit.summary()["startOffset"] == 0
    kit.shares.on_topics_deleted({TOPIC_ID})
    assert kit.summary()["startOffset"] == kit.again().summary()["startOffset"] == -1


def test_a_request_of_nothing_has_no_results() -> None:
    kit = Kit()
    assert kit.shares.write_state({"groupId": "", "topics": [{}]}) == {"results": []}
    assert kit.shares.write_state({"groupId": "g", "topics": []}) == {"results": []}
    assert kit.shares.write_state({"groupId": "g", "topics": [{"topicId": TOPIC_ID, "partitions": []}]}) == {
        "results": []
    }


def test_several_partitions_in_one_request() -> None:
    kit = Kit()
    wanted = [{"partition": each, "stateEpoch": 1, "startOffset": each} for each in (3, 0, 9)]
    answer = kit.shares.initialize_state({"groupId": "mail", "topics": [{"topicId": TOPIC_ID, "partitions": wanted}]})
    (topic,) = answer["results"]
    assert [(each["partition"], each["errorCode"]) for each in topic["partitions"]] == [(0, 0), (3, 0), (9, 3)]
    assert kit.summary(3)["startOffset"] == 3


def test_a_batch_that_ends_before_it_begins_is_not_written() -> None:
    kit = Kit()
    kit.initialize(0)
    assert kit.write((4, 3, ACKED, 1))["errorCode"] == -1
    assert len(list(kit.records())) == 1


def test_a_failing_disk_is_an_error_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    kit.initialize(0)
    (log,) = kit.logs.values()

    def failing(batch: bytes) -> int:
        raise KafkaStorageException("the disk failed")

    monkeypatch.setattr(log, "append", failing)
    got = kit.write((0, 0, ACKED, 1))
    assert got["errorCode"] == 16
    assert got["errorMessage"].startswith("Unable to write share group state: the disk failed")
    monkeypatch.undo()
    assert batches_of(kit.read()) == []


@pytest.mark.parametrize("is_applied", [False, True])
def test_an_interrupt_after_the_append_loses_nothing(monkeypatch: pytest.MonkeyPatch, is_applied: bool) -> None:
    kit = Kit()
    kit.initialize(0)
    shard = kit.shares.shard(KEY)
    apply = shard._apply

    def interrupted(offset: int, record: ShareRecord) -> None:
        if is_applied:
            apply(offset, record)
        raise KeyboardInterrupt

    monkeypatch.setattr(shard, "_apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kit.write((0, 0, ACKED, 1), start=0, count=1)
    monkeypatch.undo()
    assert batches_of(kit.read()) == batches_of(kit.again().read()) == [(0, 0, ACKED, 1)]
    kit.write((1, 1, ACKED, 1), start=0, count=2)
    assert batches_of(kit.read()) == [(0, 1, ACKED, 1)]


def test_an_unknown_record_is_skipped_and_a_broken_one_refuses_the_partition() -> None:
    from kafkalog.engine.coordinator.state_log import records_batch
    from kafkalog.engine.format.batch import NO_PRODUCER

    kit = Kit()
    log = ShareLog("__share_group_state-0", kit.disk)
    log.append(records_batch([(b"\x00\x09rest", b"\x00\x00")], NOW_MS, NO_PRODUCER))

    def shard() -> ShareCoordinatorShard:
        return ShareCoordinatorShard(log, lambda: log, kit.clock, kit.topics)

    assert shard().states() == {}
    log.append(records_batch([(b"\x00\x00\x00\x01g", b"\x00\x00")], NOW_MS, NO_PRODUCER))
    with pytest.raises(SchemaException, match="the record at offset 1"):
        shard()


# --- records ----------------------------------------------------------------------------------------------

rows = st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=300)), max_size=20)
producers = st.sampled_from([NO_PRODUCER, NO_TRANSACTION, ProducerFields(7, 2, 0), ProducerFields(7, 2, 0, True)])


@given(rows, producers)
def test_a_coordinators_batch_is_what_the_builder_makes(
    given_rows: list[tuple[bytes, bytes | None]], producer: ProducerFields
) -> None:
    builder = MemoryRecordsBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        is_transactional=producer.transactional,
    )
    for key, value in given_rows:
        builder.append(NOW_MS, key, value)
    assert records_batch(given_rows, NOW_MS, producer) == builder.build()


ints, longs = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
any_batches = st.lists(
    st.builds(PersisterStateBatch, longs, longs, st.integers(-128, 127), st.integers(-32768, 32767)), max_size=200
).map(tuple)
any_state = st.builds(ShareGroupOffset, ints, ints, ints, longs, ints, any_batches, longs, longs)


@given(st.sampled_from([SNAPSHOT, UPDATE]), any_state)
def test_records_are_written_as_their_tables_say(type: int, state: ShareGroupOffset) -> None:
    from kafkalog.engine.format.share_records import _fields

    key, value = encode_share_record(ShareRecord(type, KEY, state))
    assert value == share_record_set().encode_value(type, _fields(type, state), 0)
    found = decode_share_record(key, value)
    assert found.key == KEY
    assert found.value is not None
    assert found.value.state_batches == state.state_batches
    if type == SNAPSHOT:
        assert found.value == state


def test_a_number_out_of_range_is_refused() -> None:
    state = ShareGroupOffset(0, 0, 0, 0, 0, (PersisterStateBatch(0, 0, 0, 40_000),))
    with pytest.raises(IllegalArgumentException, match="deliveryCount"):
        encode_share_record(ShareRecord(UPDATE, KEY, state))


# --- batches and offsets against plain models -------------------------------------------------------------


def plain(batches: list[PersisterStateBatch], start: int) -> dict[int, tuple[int, int]]:
    """Each offset's (delivery count, state)."""
    found: dict[int, tuple[int, int]] = {}
    for first, last, state, count in batches:
        for offset in range(max(first, start), last + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (count, state))
    return found


some_batches = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from([0, 2, 4]), st.integers(1, 3)).map(
        lambda each: PersisterStateBatch(each[0], each[0] + each[1], each[2], each[3])
    ),
    max_size=8,
)


@given(some_batches, some_batches, st.integers(-1, 30))
def test_batches_combine_as_a_plain_model(
    so_far: list[PersisterStateBatch], new: list[PersisterStateBatch], start: int
) -> None:
    found = combine_state_batches(so_far, new, start)
    assert plain(list(found), -1) == plain(so_far + new, start)
    for one, after in itertools.pairwise(found):
        assert one.last_offset < after.first_offset
        assert one.last_offset + 1 < after.first_offset or one[2:] != after[2:]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_the_redundant_offset_is_the_lowest_last_snapshot(steps: list[tuple[int, bool]]) -> None:
    manager = OffsetsManager()
    known: dict[int, int] = {}
    expected = None
    for offset, (number, is_delete) in enumerate(steps):
        known[number] = offset
        expected = min(known.values())
        if is_delete:
            del known[number]
        manager.update_state(KEY._replace(partition=number), offset, is_delete=is_delete)
        assert manager.last_redundant_offset == (expected or None)
