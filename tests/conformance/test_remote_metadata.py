"""Metadata of remote segments compared with Kafka 4.4.0's classes: the same answers, bytes, texts and refusals.

A script is drawn at random: uploads that overlap, begin again or fail, deletions, and events that do not fit.  It runs
on Kafka's RemoteLogMetadataCache (RemoteCacheMain of the driver) and on kafkalog's, then both answer for every epoch at
every offset where an answer can change.  Kafka keeps segments in hash maps: if it promises no order, none is compared.
Kafka has no `take`; its protected methods, which the cache of a snapshot calls, are beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote import records
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    COPY_SEGMENT_STARTED,
    DELETE_SEGMENT_FINISHED,
    DELETE_SEGMENT_STARTED,
    Epochs,
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    epochs_of,
)
from kafkalog.errors import KafkalogError
from tests.conformance import kafka_jars, messages
from tests.sampling import LONG

pytestmark = pytest.mark.jvm

MAIN = "io.kafkalog.conformance.RemoteCacheMain"
RANDOM = settings(
    max_examples=500 if LONG else 25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
Answer = dict[str, Any]

INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
UUIDS = (
    "A" * 22,
    "AAECAwQFBgcICQoLDA0ODw",
    "_____________________w",
    "4L-_0eBlTTSjWlYl9Xr4Sg",
    "BQUFBQUFBQUFBQUFBQUFBQ",
)
PARTITIONS = (TopicIdPartition(UUIDS[1], TopicPartition("t", 0)), TopicIdPartition(UUIDS[3], TopicPartition("t", 0)))
# Few ids, so that events meet; one differs in its topic's id alone.
SEGMENT_IDS = [
    *(RemoteLogSegmentId(PARTITIONS[0], uuid) for uuid in UUIDS),
    RemoteLogSegmentId(PARTITIONS[1], UUIDS[0]),
]


class Op(NamedTuple):
    """One step of a script, under the name that RemoteCacheMain gives it."""

    name: str
    metadata: RemoteLogMetadata | None = None
    epoch: int = 0
    offset: int = 0

    def to_json(self) -> dict[str, Any]:
        asked = {"op": self.name, "epoch": self.epoch, "offset": self.offset}
        return asked if self.metadata is None else {"op": self.name, "metadata": metadata_json(self.metadata)}


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with messages.kafka(kafka_driver, MAIN) as jvm:
        yield jvm


def ask(kafka: messages.Kafka, *ops: dict[str, Any]) -> list[Answer]:
    answers: list[Answer] = kafka.ask([{"ops": ops}])[0]["answers"]
    return answers


# --- the cache ------------------------------------------------------------------------------------


@RANDOM
@given(data=st.data())
def test_the_same_cache(kafka: messages.Kafka, data: st.DataObject) -> None:
    script = data.draw(scripts(segments()))
    script += questions(script, ("find", "next_txn"))
    compare_scripts(kafka, script)


@RANDOM
@given(data=st.data())
def test_the_same_cache_of_odd_segments(kafka: messages.Kafka, data: st.DataObject) -> None:
    """Epochs that begin outside their segment or in no order, and offsets that no segment can have.

    Without next_txn: if an epoch is longer than its segment, Kafka asks the same segment forever.  The lowest int64
    is left out: one less is the highest in Java.
    """
    script = data.draw(scripts(odd_segments()))
    script += questions(script, ("find",))
    compare_scripts(kafka, script)


def compare_scripts(kafka: messages.Kafka, script: list[Op]) -> None:
    cache = RemoteLogMetadataCache()
    theirs = ask(kafka, *(op.to_json() for op in script))
    for number, (op, answer) in enumerate(zip(script, theirs, strict=True)):
        events = [str(op.metadata) for op in script[: number + 1] if op.metadata is not None]
        assert comparable(op, our_answer(cache, op)) == comparable(op, answer), (op, events)


def our_answer(cache: RemoteLogMetadataCache, op: Op) -> Answer:
    try:
        return run(cache, op)
    except KafkalogError as error:
        return {"error": type(error).__name__, "message": str(error)}


def run(cache: RemoteLogMetadataCache, op: Op) -> Answer:
    match op:
        case Op("add", RemoteLogSegmentMetadata() as metadata):
            cache.add_copy_in_progress_segment(metadata.checked())
        case Op("take", RemoteLogSegmentMetadata() as metadata):
            cache.take([metadata.checked()])
        case Op("update", RemoteLogSegmentMetadataUpdate() as update):
            cache.update_remote_log_segment_metadata(update)
        case Op("initialized"):
            cache.mark_initialized()
        case Op("find", _, epoch, offset):
            return shown(cache.remote_log_segment_metadata(epoch, offset))
        case Op("next_txn", _, epoch, offset):
            return shown(cache.next_segment_with_txn_index(epoch, offset))
        case Op("highest", _, epoch):
            return {"offset": cache.highest_offset_for_epoch(epoch)}
        case Op("list", _, epoch):
            return shown(*cache.list_remote_log_segments(epoch))
        case Op("list_all"):
            return shown(*cache.list_all_remote_log_segments())
        case _:
            raise AssertionError(op)
    return {}


def shown(*found: RemoteLogSegmentMetadata | None) -> Answer:
    segments = [metadata for metadata in found if metadata is not None]
    return {
        "segments": [
            {"id": m.remote_log_segment_id.id, "startOffset": m.start_offset, "text": str(m)} for m in segments
        ]
    }


def comparable(op: Op, answer: Answer) -> Answer:
    """An answer without what Kafka leaves to its hash maps."""
    if op.name not in ("list", "list_all"):
        return answer
    if "error" in answer:  # which of the missing segments it names
        return answer | {"message": answer["message"].partition(":")[0]}
    segments = answer["segments"]
    texts = sorted(segment["text"] for segment in segments)
    order = [segment["startOffset"] for segment in segments] if op.name == "list" else None
    return {"texts": texts, "order": order}


# --- random scripts -------------------------------------------------------------------------------


@st.composite
def segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    """A segment as a broker uploads it: its first epoch begins where it does, the others within."""
    # Mostly round numbers and one epoch: segments that begin or end together are what an answer depends on.
    start = draw(st.sampled_from([0, 10, 20]) | st.integers(0, 30))
    end = draw(
        st.sampled_from([end for end in (9, 19, 29) if end > start] or [start + 9]) | st.integers(start, start + 30)
    )
    epochs = sorted(
        draw(st.sets(st.integers(0, 2), min_size=1, max_size=min(draw(st.integers(1, 3)), end - start + 1)))
    )
    count = len(epochs) - 1
    within = st.sets(st.integers(start + 1, end), min_size=count, max_size=count) if count else st.just(set[int]())
    starts = [start, *sorted(draw(within))]
    return draw(segment_of(start, end, tuple(zip(epochs, starts, strict=True))))


@st.composite
def odd_segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    offsets = st.integers(-2, 40) | st.sampled_from([-INT64_MAX, INT64_MAX])
    epochs = st.dictionaries(st.integers(-1, 4) | st.just(INT32_MAX), offsets, max_size=3)
    start = draw(offsets)
    return draw(segment_of(start, draw(offsets | st.integers(start, INT64_MAX)), epochs_of(draw(epochs).items())))


@st.composite
def segment_of(draw: st.DrawFn, start: int, end: int, epochs: Epochs) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        draw(st.sampled_from(SEGMENT_IDS)),
        start,
        end,
        max_timestamp_ms=draw(st.integers(0, 9)),
        broker_id=draw(st.integers(0, 2)),
        event_timestamp_ms=draw(st.integers(0, 9)),
        segment_size_in_bytes=draw(st.integers(0, 9)),
        segment_leader_epochs=epochs,
        custom_metadata=draw(CUSTOM),
        is_txn_idx_empty=draw(st.booleans()),
    )


CUSTOM = st.none() | st.binary(max_size=3)


@st.composite
def updates(draw: st.DrawFn, segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState) -> Op:
    update = RemoteLogSegmentMetadataUpdate(
        segment_id, draw(st.integers(0, 9)), draw(CUSTOM), state, broker_id=draw(st.integers(0, 2))
    )
    return Op("update", update)


@st.composite
def scripts(draw: st.DrawFn, segment: st.SearchStrategy[RemoteLogSegmentMetadata]) -> list[Op]:
    """Whole lives of segments, pieces of them and events that do not fit, in any order."""
    script: list[Op] = []
    begun: list[RemoteLogSegmentId] = []
    kinds = st.sampled_from(
        ["upload", "upload", "upload", "add", "delete", "update", "update", "take", "initialized", "odd"]
    )
    for kind in draw(st.lists(kinds, min_size=5, max_size=25)):
        one = draw(segment)
        segment_id = one.remote_log_segment_id
        if kind in ("delete", "update") and draw(st.integers(0, 7)):  # else one that may be unknown
            segment_id = draw(st.sampled_from(begun or [segment_id]))
        match kind:
            case "add":
                script.append(Op("add", one))
            case "upload":
                script += [Op("add", one), draw(updates(segment_id, COPY_SEGMENT_FINISHED))]
            case "delete":
                script += [
                    draw(updates(segment_id, DELETE_SEGMENT_STARTED)),
                    draw(updates(segment_id, DELETE_SEGMENT_FINISHED)),
                ]
            case "update":
                script.append(draw(updates(segment_id, draw(st.sampled_from(RemoteLogSegmentState)))))
            case "take":
                states = [COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED, DELETE_SEGMENT_FINISHED]
                script.append(Op("take", one._replace(state=draw(st.sampled_from(states)))))
            case "initialized":
                script.append(Op("initialized"))
            case _:  # an upload begins in a state in which none can
                script.append(Op("add", one._replace(state=draw(st.sampled_from(RemoteLogSegmentState)))))
        begun += [segment_id] if kind in ("add", "upload") else []
        script.append(Op("list", epoch=draw(st.integers(0, 2))))
    return script


def questions(script: list[Op], names: tuple[str, ...]) -> list[Op]:
    """Everything that can be asked after a script."""
    known = [op.metadata for op in script if isinstance(op.metadata, RemoteLogSegmentMetadata)]
    edges = {metadata.start_offset for metadata in known} | {metadata.end_offset for metadata in known}
    edges |= {start for metadata in known for _, start in metadata.segment_leader_epochs}
    offsets = sorted({at + by for at in edges for by in (-1, 0, 1) if abs(at + by) <= INT64_MAX})
    epochs = sorted({epoch for metadata in known for epoch, _ in metadata.segment_leader_epochs} | {9})
    asked = [Op("list_all")]
    for epoch in epochs:
        asked += [Op("highest", epoch=epoch), Op("list", epoch=epoch)]
        asked += [Op(name, epoch=epoch, offset=offset) for offset in offsets for name in names]
    return asked


# --- records --------------------------------------------------------------------------------------

INT32 = st.integers(0, 9) | st.integers(-INT32_MAX - 1, INT32_MAX)
INT64 = st.integers(0, 9) | st.integers(-INT64_MAX - 1, INT64_MAX)
TOPICS = st.text(max_size=12) | st.text('\x00\x1f"\\\x7f\u2028é😀', max_size=6) | st.just("x" * 249)
EPOCHS = st.dictionaries(INT32, INT64, min_size=1, max_size=4).map(lambda epochs: epochs_of(epochs.items()))
WORD = st.none() | st.binary(max_size=20)
UUID = st.sampled_from(UUIDS)
TOPIC_ID_PARTITION = st.builds(TopicIdPartition, UUID, st.builds(TopicPartition, TOPICS, INT32))
SEGMENT_ID = st.builds(RemoteLogSegmentId, TOPIC_ID_PARTITION, UUID)
STATE = st.sampled_from(RemoteLogSegmentState)
REST = (INT64, INT32, INT64, INT32, EPOCHS, STATE, WORD, st.booleans())
OFFSETS = st.tuples(st.integers(0, INT64_MAX), st.integers(0, INT64_MAX)).map(sorted)
SEGMENT = st.builds(
    lambda segment_id, offsets, *rest: RemoteLogSegmentMetadata(segment_id, *offsets, *rest), SEGMENT_ID, OFFSETS, *REST
)
METADATA: dict[str, st.SearchStrategy[RemoteLogMetadata]] = {
    "segment": SEGMENT,
    "update": st.builds(RemoteLogSegmentMetadataUpdate, SEGMENT_ID, INT64, WORD, STATE, INT32),
    "partition_delete": st.builds(
        RemotePartitionDeleteMetadata, TOPIC_ID_PARTITION, st.sampled_from(RemotePartitionDeleteState), INT64, INT32
    ),
    "snapshot": st.builds(RemoteLogSegmentMetadataSnapshot, UUID, INT64, INT64, *REST),
}


def metadata_json(metadata: RemoteLogMetadata) -> dict[str, Any]:
    """The fields of a value as RemoteCacheMain reads them."""
    match metadata:
        case RemoteLogSegmentMetadata():
            fields = {"kind": "segment", **segment_id_json(metadata.remote_log_segment_id), **segment_json(metadata)}
        case RemoteLogSegmentMetadataSnapshot():
            fields = {"kind": "snapshot", "id": metadata.segment_id, **segment_json(metadata)}
        case RemoteLogSegmentMetadataUpdate():
            fields = {"kind": "update", **segment_id_json(metadata.remote_log_segment_id)}
            fields |= {"customMetadata": custom_json(metadata.custom_metadata)}
        case RemotePartitionDeleteMetadata():
            fields = {"kind": "partition_delete", **partition_json(metadata.topic_id_partition)}
    fields |= {"state": metadata.state.name, "brokerId": metadata.broker_id}
    return fields | {"eventTimestampMs": metadata.event_timestamp_ms}


def segment_json(metadata: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot) -> dict[str, Any]:
    return {
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "segmentSizeInBytes": metadata.segment_size_in_bytes,
        "segmentLeaderEpochs": metadata.segment_leader_epochs,
        "customMetadata": custom_json(metadata.custom_metadata),
        "txnIdxEmpty": metadata.is_txn_idx_empty,
    }


def segment_id_json(of: RemoteLogSegmentId) -> dict[str, Any]:
    return {**partition_json(of.topic_id_partition), "id": of.id}


def partition_json(of: TopicIdPartition) -> dict[str, Any]:
    return {"topicId": of.topic_id, "topic": of.topic_partition.topic, "partition": of.topic_partition.partition}


def custom_json(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


@pytest.mark.parametrize("kind", METADATA)
@RANDOM
@given(data=st.data())
def test_the_same_bytes(kafka: messages.Kafka, kind: str, data: st.DataObject) -> None:
    metadata = data.draw(METADATA[kind])
    ours = records.serialize(metadata)
    theirs, read = ask(
        kafka,
        {"op": "serialize", "metadata": metadata_json(metadata)},
        {"op": "deserialize", "bytes": ours.hex()},
    )
    assert str(metadata) == theirs["text"]
    assert ours.hex() == theirs["bytes"]
    assert read == {"text": theirs["text"], "bytes": theirs["bytes"]}
    assert records.deserialize(ours) == metadata


@pytest.mark.parametrize("kind", METADATA)
@RANDOM
@given(data=st.data())
def test_the_same_refusals(kafka: messages.Kafka, kind: str, data: st.DataObject) -> None:
    """Kafka's bytes truncated, changed or made up: both read the same, or both report the same."""
    metadata = data.draw(METADATA[kind])
    body = bytearray.fromhex(ask(kafka, {"op": "serialize", "metadata": metadata_json(metadata)})[0]["bytes"])
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, 3) | st.integers(0, len(body) - 1) | st.integers(len(body) - 3, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = data.draw(st.just(len(body)) | st.integers(0, len(body)))
    compare_reading(kafka, bytes(body[:cut]) + data.draw(st.just(b"") | st.binary(max_size=8)))


def compare_reading(kafka: messages.Kafka, value: bytes) -> None:
    theirs = ask(kafka, {"op": "deserialize", "bytes": value.hex()})[0]
    ours = outcome(value)
    if isinstance(ours, records.MessageException):
        assert "error" in theirs, (value.hex(), ours, theirs)
        assert ours.kafka_text == theirs["message"], (value.hex(), ours, theirs)
        assert ours.position is not None
        assert 0 <= ours.position <= len(value)
        return
    assert "error" not in theirs, (value.hex(), ours, theirs)
    assert str(ours) == theirs["text"]
    assert records.serialize(ours).hex() == theirs["bytes"]


def outcome(value: bytes) -> RemoteLogMetadata | records.MessageException:
    try:
        return records.deserialize(value)
    except records.MessageException as error:
        return error


def test_refused_frames(kafka: messages.Kafka) -> None:
    """Refuses any wrong number before or after the struct."""
    partition = PARTITIONS[0]
    deleted = RemotePartitionDeleteMetadata(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 1, 2)
    body = bytes.fromhex(ask(kafka, {"op": "serialize", "metadata": metadata_json(deleted)})[0]["bytes"])[3:]
    numbers = [
        "00",
        "01",
        "02",
        "03",
        "04",
        "7f",
        "ffff01",
        "808002",
        "808004",
        "ffffffff0f",
        "8080feff0f",
        "ff" * 6,
        "",
    ]
    for number in map(bytes.fromhex, numbers):
        for frame in (number + b"\x02\x00", b"\x01" + number + b"\x00", b"\x01\x02" + number):
            compare_reading(kafka, frame + body)
        compare_reading(kafka, b"\x01\x02\x00" + body + number)


@pytest.mark.parametrize("kind", METADATA)
@pytest.mark.parametrize("state", [-128, -1, 3, 4, 127])
def test_unknown_states(kafka: messages.Kafka, kind: str, state: int) -> None:
    """A state that a later Kafka may write."""
    segment_id = SEGMENT_IDS[0]
    fields: dict[str, RemoteLogMetadata] = {
        "segment": RemoteLogSegmentMetadata(segment_id, 0, 0, 0, 0, 0, 0, ((0, 0),)),
        "update": RemoteLogSegmentMetadataUpdate(segment_id, 0, None, COPY_SEGMENT_STARTED, 0),
        "partition_delete": RemotePartitionDeleteMetadata(PARTITIONS[0], RemotePartitionDeleteState(0), 0, 0),
        "snapshot": RemoteLogSegmentMetadataSnapshot(segment_id.id, 0, 0, 0, 0, 0, 0, ((0, 0),), COPY_SEGMENT_STARTED),
    }
    written = bytearray.fromhex(ask(kafka, {"op": "serialize", "metadata": metadata_json(fields[kind])})[0]["bytes"])
    assert written[-2] == 0  # the state; the count of tagged fields follows it
    written[-2] = state & 0xFF
    compare_reading(kafka, bytes(written))


OFFSETS_OR_NOT = st.sampled_from([-1, 0, 5]) | INT64


@RANDOM
@given(start=OFFSETS_OR_NOT, end=OFFSETS_OR_NOT, epochs=st.just(()) | EPOCHS, state=st.sampled_from([0, 3, 4]))
def test_segments_that_are_none(kafka: messages.Kafka, start: int, end: int, epochs: Epochs, state: int) -> None:
    """Offsets, epochs and states of a segment are refused alike, whether values or bytes say them."""
    segment = RemoteLogSegmentMetadata(SEGMENT_IDS[0], start, end, 0, 0, 0, 0, epochs)
    op = Op("add", segment)
    answer = ask(kafka, op.to_json())[0]
    assert our_answer(RemoteLogMetadataCache(), op) == answer
    # Kafka makes no bytes of such a segment: the record's fields are set one by one.
    partition = {"name": "t", "id": UUIDS[0], "partition": 0}
    fields: dict[str, Any] = {"remoteLogSegmentId": {"topicIdPartition": partition, "id": UUIDS[0]}}
    fields |= {"startOffset": start, "endOffset": end, "brokerId": 0, "maxTimestampMs": 0, "eventTimestampMs": 0}
    fields |= {"segmentLeaderEpochs": [{"leaderEpoch": epoch, "offset": offset} for epoch, offset in epochs]}
    fields |= {"segmentSizeInBytes": 0, "customMetadata": None, "remoteLogSegmentState": state}
    compare_reading(kafka, b"\x01\x00\x00" + records.schemas()[records.SEGMENT].encode(fields, 0))
