"""`kafkalog dump` of internal topics beside Apache Kafka's own kafka-dump-log: the same lines, also for damage.

Kafka's newest released tool is 4.3.1, over its own messages: `test_messages` alone covers the additions of 4.4.0.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import kafkalog
from kafkalog._native.codec import records as native
from kafkalog.engine.format import control, group_records, metadata_records
from kafkalog.engine.format.batch import CREATE_TIME, compute_attributes, write_header
from kafkalog.engine.format.codecs import NONE
from kafkalog.engine.format.coordinator_records import (
    PREFIX,
    RecordSet,
    group_record_set,
    share_record_set,
    transaction_record_set,
)
from kafkalog.engine.format.messages import Schema, Values
from kafkalog.engine.format.metadata_records import encode_framed
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote import records as remote_records
from kafkalog.engine.remote.segment import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from tests.conformance import kafka_jars, messages
from tests.conformance.test_dump_log import START_MS, ours, theirs
from tests.conformance.test_dump_log import tool as tool

pytestmark = pytest.mark.jvm

Pair = tuple[bytes | None, bytes | None]
EXAMPLES = 8  # for each version of each record
NEWER_THAN_THE_TOOL = ("UnregisterControllerRecord",)
NEWER_FIELDS = {"StreamsGroupMetadataValue": ("storedDescriptionTopologyEpoch", "failedDescriptionTopologyEpoch")}


def drawn(schema: Schema, version: int, count: int = EXAMPLES) -> list[Values]:
    """Random values, the same in each run."""
    found: list[Values] = []

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(messages.values_of(schema.type, version))
    def collect(values: Values) -> None:
        found.append({name: each for name, each in values.items() if name not in NEWER_FIELDS.get(schema.name, ())})

    collect()
    return found


def coordinator_pairs(records: RecordSet) -> list[Pair]:
    pairs: list[Pair] = []
    for number, schema in records.values.items():
        key_schema = records.keys[number]
        keys = [records.encode_key(number, key) for key in drawn(key_schema, 0)]
        pairs += [(key, None) for key in keys]
        for version in range(schema.lowest, schema.highest + 1):
            for at, value in enumerate(drawn(schema, version)):
                pairs.append((keys[at % len(keys)], records.encode_value(number, value, version)))
    return pairs


def consumer_groups() -> list[Pair]:
    """Classic groups whose members' bytes are opened, where they can be."""
    subscription, assignment = group_records.subscription_schema(), group_records.assignment_schema()
    pairs: list[Pair] = []
    for version in range(6):  # two too new
        known = min(version, 3)
        said = [PREFIX.pack(version) + subscription.encode(each, known) for each in drawn(subscription, known)]
        given_to = [PREFIX.pack(version) + assignment.encode(each, known) for each in drawn(assignment, known)]
        odd = [b"", b"\0", b"\xff\xff\0\0\0\0\xff\xff\xff\xff", b"\0\1\0\0\0\5", b"\0\0\0\0\0\0\0\0\0\0more"]
        members = tuple(
            group_records.GroupMember(f"m{at}", None, "c", "/h", 1, 2, first, second)
            for at, (first, second) in enumerate(zip(said + odd, given_to + odd, strict=False))
        )
        for protocol_type in ("consumer", "connect"):
            group = group_records.GroupMetadata(protocol_type, 7, "range", "m0", START_MS, members)
            pairs.append(group_records.encode_group_metadata(group_records.GroupKey("g"), group))
    return pairs


def metadata_pairs() -> list[Pair]:
    pairs: list[Pair] = []
    for schema in metadata_records.schemas().values():
        if schema.name in NEWER_THAN_THE_TOOL:
            continue
        for version in range(schema.lowest, schema.highest + 1):
            name = metadata_records.type_name(schema)
            values = [metadata_records.encode_metadata_record(name, each, version) for each in drawn(schema, version)]
            pairs += [(None, each) for each in values]
            pairs += [(None, each[:2] + b"\x09" + each[3:]) for each in values]  # a version that is too new
    return pairs


def damaged(pairs: list[Pair]) -> list[Pair]:
    """Each cut short, changed or lengthened."""
    draw = random.Random(7)
    found: list[Pair] = []
    for key, value in pairs:
        parts = [key, value]
        at = draw.randrange(2)
        data = bytearray(parts[at] or b"")
        how = draw.randrange(4)
        if how == 0:
            data = data[: draw.randrange(len(data) + 1)]
        elif how == 1:
            data += draw.randbytes(3)
        elif data:
            data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        parts[at] = bytes(data)
        found.append((parts[0], parts[1]))
    return found


TEXTS: list[Pair] = [
    (b"", b""),
    (b"\0", b"\0\0"),
    (b"\0\x09", b"\0\0"),
    (b"\xff\xff", None),
    (b"\0\1\0\1g\0\1t\0\0\0\0", b""),
    (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0"),
    (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x09"),
    (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\4\0"),
    (b"\0\1\0\1g\0\1t\0\0\0\0more", None),
    (b"\0\2\0\3\xed\xa0\x80", None),
    (b"\0\2\0\5\xc3(\xf0\x9f\x98", None),
    (b'\0\2\0\4\x1f"\\\x7f', None),
]
FRAMES: list[Pair] = [
    (None, None),
    (b"key", b""),
    (None, b"\0"),
    (None, b"\2"),
    (None, b"\xff\xff\xff\xff\xff"),
    (None, b"\xff\xff\xff\xff\x07"),
    (None, b"\xff\xff\xff\xff\x0f"),
    (None, b"\1"),
    (None, b"\1\x63\0"),
    (None, b"\1\xff\xff\xff\xff\x0f\0"),
    (None, b"\1\x14"),
    (None, b"\1\x14\0\0"),
    (None, b"\1\x14\0\0x"),
    (None, b"\1\x14\xff\xff\3\0"),
    (None, b"\1\x14\xff\xff\xff\xff\x0f\0"),
    *((None, b"\1\x0e\0\1\1\x00" + bytes.fromhex(each) + b"\0\0") for each in ("7ff8000000000000", "fff0000000000000")),
    *((None, b"\1\x0e\0\1\2k" + bytes.fromhex(each) + b"\1\0") for each in ("7ff8000000000000", "7ff0000000000000")),
    *((None, b"\1\x0e\0\1\2k" + bytes.fromhex(each) + b"\1\0") for each in ("4202a05f20000000", "3f50624dd2f1a9fc")),
]


def remote_pairs() -> list[Pair]:
    """Events of segments and partitions, of every state, those that there are not included; and no events."""
    pairs: list[Pair] = [(None, None), (b"key", b"")]
    for schema in remote_records.schemas().values():
        for version in range(schema.lowest, schema.highest + 1):
            values = [encode_framed(schema, each, version) for each in drawn(schema, version, 40)]
            pairs += [(b"key", each) for each in values]
            pairs += [(None, each[:2] + b"\x09" + each[3:]) for each in values[:2]]  # a version that is too new
    segment = RemoteLogSegmentId(TopicIdPartition("A" * 22, TopicPartition("orders", 3)), "B" * 22)
    whole = RemoteLogSegmentMetadata(segment, 5, 9, START_MS, 1, START_MS + 1, 77, ((0, 0), (3, 7)))
    for state in RemoteLogSegmentState:
        for custom in (None, b"", b"custom"):
            update = RemoteLogSegmentMetadataUpdate(segment, START_MS, custom, state, 2)
            changed = whole.create_with_updates(update)
            for each in (update, changed, RemoteLogSegmentMetadataSnapshot.create(changed)):
                pairs.append((None, remote_records.serialize(each)))
    for doomed in RemotePartitionDeleteState:
        deletion = RemotePartitionDeleteMetadata(segment.topic_id_partition, doomed, START_MS, -1)
        pairs.append((None, remote_records.serialize(deletion)))
    return pairs


TOPICS: dict[str, Callable[[], list[Pair]]] = {
    "--offsets-decoder": lambda: coordinator_pairs(group_record_set()) + consumer_groups() + TEXTS,
    "--transaction-log-decoder": lambda: coordinator_pairs(transaction_record_set()) + TEXTS,
    "--share-group-state-decoder": lambda: coordinator_pairs(share_record_set()) + TEXTS,
    "--cluster-metadata-decoder": lambda: metadata_pairs() + FRAMES,
    "--remote-log-metadata-decoder": lambda: remote_pairs() + FRAMES,
}


def log_of(folder: Path, pairs: list[Pair]) -> Path:
    with kafkalog.open_log(folder, "internal-0") as log:
        for at in range(0, len(pairs), 50):
            rows = [(value, key, (), START_MS + at) for key, value in pairs[at : at + 50]]
            log.append_many(rows)
        transaction = log.transaction("markers")  # its control records are in between
        with transaction:
            transaction.append(pairs[0][1], key=pairs[0][0], timestamp=START_MS)
    return folder / "internal-0" / "00000000000000000000.log"


@pytest.mark.parametrize("option", TOPICS)
@pytest.mark.parametrize("more", [[], ["--skip-record-metadata"]], ids=["whole", "contents"])
def test_the_same_lines(tool: kafka_jars.Driver, tmp_path: Path, option: str, more: list[str]) -> None:
    path = log_of(tmp_path, TOPICS[option]())
    args = [option, *more, "--files", str(path)]
    assert ours(*args) == theirs(tool, *args)


@pytest.mark.parametrize("option", TOPICS)
def test_the_same_lines_for_damage(tool: kafka_jars.Driver, tmp_path: Path, option: str) -> None:
    path = log_of(tmp_path, damaged(TOPICS[option]()))
    args = [option, "--files", str(path)]
    (our_out, our_err), (their_out, their_err) = ours(*args), theirs(tool, *args)
    assert len(our_out) == len(their_out)
    for our_line, their_line in zip(our_out, their_out, strict=True):
        if " tagged fields" not in our_line:  # 4.4.0 counts them, and says so
            assert our_line == their_line
    assert our_err == their_err


def test_the_first_of_several_decoders_counts(tool: kafka_jars.Driver, tmp_path: Path) -> None:
    path = log_of(tmp_path, coordinator_pairs(transaction_record_set()))
    for options in (
        ["--share-group-state-decoder", "--transaction-log-decoder"],
        ["--cluster-metadata-decoder", "--offsets-decoder"],
        ["--share-group-state-decoder", "--remote-log-metadata-decoder"],
        ["--remote-log-metadata-decoder", "--transaction-log-decoder"],
        ["--key-decoder-class", "--share-group-state-decoder"],
    ):
        args = [*options, "--files", str(path)]
        assert ours(*args) == theirs(tool, *args)


@pytest.mark.parametrize(
    "options",
    [
        ["--value-decoder-class", "--deep-iteration"],
        ["--key-decoder-class", "org.apache.kafka.tools.api.IntegerDecoder"],
        [
            *("--key-decoder-class", "org.apache.kafka.tools.api.LongDecoder"),
            *("--value-decoder-class", "org.apache.kafka.tools.api.IntegerDecoder"),
        ],
    ],
    ids=["text", "integers", "numbers"],
)
def test_decoder_classes(tool: kafka_jars.Driver, tmp_path: Path, options: list[str]) -> None:
    pairs: list[Pair] = [(b"\0\0\0\0\0\0\0\7", b"\xff\xff\xff\xff"), (None, b"\0\0\0\1more"), (b"12345678", None)]
    path = log_of(tmp_path, pairs)
    args = [*options, "--files", str(path)]
    assert ours(*args) == theirs(tool, *args)


def test_a_missing_key_ends_kafkas_tool_and_is_told_by_ours(tool: kafka_jars.Driver, tmp_path: Path) -> None:
    key = group_record_set().encode_key(2, {"group": "g"})
    path = log_of(tmp_path, [(key, None), (None, b"v"), (key, None)])
    args = ["--offsets-decoder", "--files", str(path)]
    (our_out, our_err), (their_out, their_err) = ours(*args), theirs(tool, *args)
    assert our_out[: len(their_out)] == their_out
    assert len(our_out) > len(their_out)
    words = "Failed to decode message at offset 1 using the specified decoder (message had a missing key)"
    assert any(words in line for line in their_err)
    assert our_err == [f"{path}: {words}"]


def test_json_says_the_same(tmp_path: Path) -> None:
    pairs = coordinator_pairs(group_record_set()) + TEXTS
    path = log_of(tmp_path, pairs)
    lines, _ = ours("--offsets-decoder", "--skip-record-metadata", "--files", str(path))
    values, _ = ours("--offsets-decoder", "--json", "--files", str(path))
    shown = [line for line in lines if line.startswith("| key: ")]
    records = [value for value in map(json.loads, values) if value["kind"] == "record" and "control" not in value]
    assert len(shown) == len(records) == len(pairs) + 1
    for line, record in zip(shown, records, strict=True):
        if "error" in record:
            assert line == f"| key: {record['error']}"
        else:
            key, payload = line.removeprefix("| key: ").split(" payload: ")
            assert json.loads(key) == record["key"]
            assert (None if payload == "<DELETE>" else json.loads(payload)) == record["payload"]


def test_json_of_remote_segments(tmp_path: Path) -> None:
    path = log_of(tmp_path, remote_pairs())
    lines, _ = ours("--remote-log-metadata-decoder", "--skip-record-metadata", "--files", str(path))
    values, _ = ours("--remote-log-metadata-decoder", "--json", "--files", str(path))
    shown = [line.removeprefix("| payload: ") for line in lines if line.startswith("| payload: ")]
    records = [value for value in map(json.loads, values) if value["kind"] == "record" and "control" not in value]
    types = set()
    for line, record in zip(shown, records, strict=True):
        if "error" in record:
            assert record["error"] == line
        else:
            types.add(record["payload"]["type"])
            assert line.startswith(record["payload"]["type"].removesuffix("Record") + "{")
    assert types == {schema.name for schema in remote_records.schemas().values()}


def test_control_records(tool: kafka_jars.Driver, tmp_path: Path) -> None:
    """Every kind, with random values, and one that nobody knows."""
    rows = [(control.record_key(kind), control.encode_kraft_value(kind, each)) for kind, each in kraft_values()]
    rows += [(b"\0\0" + PREFIX.pack(number), b"\0\0\0\0\0\5") for number in (0, 1, 99, -7)]
    path = tmp_path / "00000000000000000000.log"
    with path.open("wb") as out:
        for offset, (key, value) in enumerate(rows):
            payload = native.write_records([(0, 0, key, value, ())])
            attributes = compute_attributes(NONE, CREATE_TIME, is_control=True)
            times = {"base_timestamp": START_MS, "max_timestamp": START_MS}
            out.write(
                write_header(payload, base_offset=offset, last_offset_delta=0, attributes=attributes, count=1, **times)
            )
            out.write(payload)
    args = ["--cluster-metadata-decoder", "--files", str(path)]
    assert ours(*args) == theirs(tool, *args)


def kraft_values() -> Iterator[tuple[control.ControlRecordType, Values]]:
    for kind, schema in control.kraft_schemas().items():
        for values in drawn(schema, control.KRAFT_VALUE_VERSION, 20):
            yield kind, values
            yield kind, values | {"version": 1}
