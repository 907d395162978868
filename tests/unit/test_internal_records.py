"""The records of internal topics: Kafka 4.4.0's bytes through the public API with names and types, and refused ones."""

from __future__ import annotations

import pytest

from kafkalog import errors
from kafkalog.engine.format import control, metadata_records
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.coordinator_records import (
    CoordinatorRecord,
    by_topic,
    group_record_set,
    partition_for,
    share_partition_for,
    share_record_set,
)
from kafkalog.engine.format.group_records import (
    Assignment,
    CommittedOffset,
    GroupKey,
    GroupMember,
    GroupMetadata,
    OffsetKey,
    Subscription,
    decode_assignment,
    decode_group_record,
    decode_subscription,
    encode_assignment,
    encode_group_metadata,
    encode_offset_commit,
    encode_subscription,
)
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
)

MS = 1_700_000_000_000
UUID = "AAECAwQFBgcICQoLDA0ODw"
KEY = OffsetKey("g", "t", 0)


@pytest.mark.parametrize(
    ("committed", "version", "value"),
    [
        (CommittedOffset(42, 5, "", MS), None, "0004 000000000000002a 00000005 01 0000018bcfe56800 00"),
        (
            CommittedOffset(42, 5, "", MS, topic_id=UUID),
            None,
            "0004 000000000000002a 00000005 01 0000018bcfe56800 010010 000102030405060708090a0b0c0d0e0f",
        ),
        (
            CommittedOffset(42, -1, "", MS, MS + 604_800_000),
            None,
            "0001 000000000000002a 0000 0000018bcfe56800 0000018bf3f1ec00",
        ),
        (CommittedOffset(42, 5, "", MS), 3, "0003 000000000000002a 00000005 0000 0000018bcfe56800"),
        (CommittedOffset(42, -1, "é", MS), 0, "0000 000000000000002a 0002c3a9 0000018bcfe56800"),
    ],
)
def test_offsets(committed: CommittedOffset, version: int | None, value: str) -> None:
    encoded = encode_offset_commit(KEY, committed, version=version)
    assert encoded == (bytes.fromhex("0001 000167 000174 00000000"), bytes.fromhex(value))
    assert decode_group_record(*encoded) == (KEY, committed)


def test_what_is_deleted() -> None:
    key, value = encode_offset_commit(KEY, None)
    assert value is None
    assert decode_group_record(key, None) == (KEY, None)
    assert decode_group_record(b"\0\0" + key[2:], None) == (KEY, None)  # the legacy type
    assert decode_group_record(encode_group_metadata(GroupKey("g"), None)[0], None) == (GroupKey("g"), None)
    assert decode_transaction(encode_transaction("t", None)[0], None) == ("t", None)


def test_older_versions_drop_what_they_cannot_hold() -> None:
    full = CommittedOffset(1, 2, "m", MS, topic_id=UUID)
    assert decode_group_record(*encode_offset_commit(KEY, full, version=2)) == (KEY, CommittedOffset(1, -1, "m", MS))
    member = GroupMember("m", "static", "c", "/h", 7, 9, b"", b"")
    group = GroupMetadata("consumer", 1, "range", "m", MS, (member,))
    for version, kept in ((3, member), (2, member._replace(group_instance_id=None))):
        found = decode_group_record(*encode_group_metadata(GroupKey("g"), group, version=version))
        assert found == (GroupKey("g"), group._replace(members=(kept,)))
    _, oldest = decode_group_record(*encode_group_metadata(GroupKey("g"), group, version=0))
    assert isinstance(oldest, GroupMetadata)
    assert oldest.current_state_timestamp == -1
    assert oldest.members[0].rebalance_timeout_ms == 9  # version 0 has one timeout


def test_an_empty_group() -> None:
    key, value = encode_group_metadata(GroupKey("g"), GroupMetadata("", 0, None, None, MS))
    assert (key.hex(), value and value.hex()) == (
        "0002000167",
        "0003" + "0000" + "00000000" + "ffff" + "ffff" + "0000018bcfe56800" + "00000000",
    )


def test_what_members_say() -> None:
    subscription = Subscription(("a", "b"), b"\xff", {"a": (0, 1)}, 3, "rack")
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_subscription(encode_subscription(subscription, version=0)) == Subscription(("a", "b"), b"\xff")
    assignment = Assignment({"a": (0,), "b": ()}, None)
    assert decode_assignment(encode_assignment(assignment)) == assignment
    with pytest.raises(MessageException, match="expected a version of 2 bytes, found 1"):
        decode_subscription(b"\0")
    with pytest.raises(MessageException):
        decode_assignment(b"\0\0\0\0\0\7")


def test_a_topic_that_is_named_again_and_again() -> None:
    """Its numbers are gathered once: a megabyte of such an assignment copied gigabytes, this would copy terabytes."""
    struct = (1).to_bytes(2, "big") + b"t" + (1).to_bytes(4, "big") + (7).to_bytes(4, "big")
    data = bytes(2) + (1000).to_bytes(4, "big") + struct * 1000 + b"\xff" * 4
    assert decode_assignment(data) == Assignment({"t": (7,) * 1000}, None)
    many = 1_000_000
    structs = [{"topic": "t", "partitions": [7]}] * many
    assert by_topic([*structs, {"topic": "u", "partitions": []}], "partitions") == {"t": (7,) * many, "u": ()}


def test_transactions() -> None:
    ongoing = TransactionMetadata(7, 0, 1, TransactionState.ONGOING, {"t": (0,)}, 1, 1, 7, client_transaction_version=2)
    key, value = encode_transaction("id", ongoing)
    assert key.hex() == "0000" + "00026964"
    assert value is not None
    assert value.hex() == (
        "0001" + "0000000000000007" + "0000" + "00000001" + "01" + "02" + "0274" + "0200000000" + "00"
        "0000000000000001" + "0000000000000001" + "02" + "0008" + "0000000000000007" + "0202" + "0002"
    )
    assert decode_transaction(key, value) == ("id", ongoing)
    empty = TransactionMetadata(7, 0, 1, TransactionState.EMPTY, None, 1)
    assert decode_transaction(*encode_transaction("id", empty)) == ("id", empty)
    older = encode_transaction("id", ongoing, version=0)
    plain = ongoing._replace(previous_producer_id=-1, client_transaction_version=0)
    assert decode_transaction(*older) == ("id", plain)
    with pytest.raises(errors.SchemaException, match="found the state 9, expected 0 to 7"):
        decode_transaction(key, value[:16] + b"\x09" + value[17:])


def test_other_kinds_are_dictionaries() -> None:
    record = CoordinatorRecord(3, {"groupId": "g"}, 0, {"epoch": 5, "metadataHash": 0})
    encoded = group_record_set().encode(record)
    assert encoded == (bytes.fromhex("0003000167"), bytes.fromhex("00000000000500"))
    assert decode_group_record(*encoded) == (record, None)
    share = CoordinatorRecord(1, {"groupId": "g", "topicId": UUID, "partition": 2}, None, None)
    assert share_record_set().decode(*share_record_set().encode(share)) == share
    with pytest.raises(errors.IllegalArgumentException, match="without its version"):
        group_record_set().encode(record._replace(version=None))
    with pytest.raises(errors.IllegalArgumentException, match="has no record of type 9, expected one of 0, 1, 2"):
        group_record_set().encode(record._replace(type=9))


def test_records_that_are_none() -> None:
    key = encode_offset_commit(KEY, None)[0]
    with pytest.raises(errors.UnknownRecordTypeException) as unknown:
        decode_group_record(b"\0\x09", b"\0\0")
    assert unknown.value.unknown_type == 9
    with pytest.raises(errors.UnknownRecordVersionException, match=r"unknown record version 5 for 1 type .*0 to 4"):
        decode_group_record(key, b"\0\5")
    with pytest.raises(errors.SchemaException, match="a key in __consumer_offsets is missing"):
        decode_group_record(None, b"")
    for bad_key, value, text in (
        (b"\0", None, "Could not read version from key's buffer."),
        (key, b"", "Could not read version from value's buffer."),
        (key, b"\0\4\0", "Could not read record with version 4 from value's buffer due to: null."),
    ):
        with pytest.raises(MessageException) as refused:
            decode_group_record(bad_key, value)
        assert refused.value.kafka_text == text
    assert issubclass(errors.UnknownRecordVersionException, errors.BadBytesError)


def test_which_partition_holds_it() -> None:
    assert partition_for("g", 50) == 3
    assert partition_for("polygenelubricants", 7) == 0  # its hash code is -2^31
    assert partition_for("a😀", 50) == abs((97 * 31 + 0xD83D) * 31 + 0xDE00) % 50
    assert share_partition_for("g", UUID, 3, 50) == partition_for(f"g:{UUID}:3", 50)
    with pytest.raises(errors.IllegalArgumentException, match="expected at least 1"):
        partition_for("g", 0)


def test_metadata() -> None:
    topic = {"name": "t", "topicId": UUID}
    value = metadata_records.encode_metadata_record("TOPIC_RECORD", topic, 0)
    assert value == b"\1\2\0" + b"\2t" + bytes(range(16)) + b"\0"
    record = metadata_records.decode_metadata_record(value)
    assert record == ("TOPIC_RECORD", 0, topic)
    assert metadata_records.metadata_json(record) == {"type": "TOPIC_RECORD", "version": 0, "data": topic}
    with pytest.raises(errors.IllegalArgumentException, match="'NO_RECORD', expected one of REGISTER_BROKER_RECORD"):
        metadata_records.encode_metadata_record("NO_RECORD", {}, 0)
    for bad, text in (
        (None, "Error while reading frame version"),
        (value + b"x", "Found 1 byte(s) of garbage after 2"),
        (value[:-1], "Failed to deserialize record with type 2"),
        (
            b"\2" + value[1:],
            "Could not deserialize metadata record due to unknown frame version 2(only frame version 1 is supported)",
        ),
    ):
        with pytest.raises(MessageException) as refused:
            metadata_records.decode_metadata_record(bad)
        assert refused.value.kafka_text == text


def test_control_records_of_a_metadata_log() -> None:
    header = {"version": 0, "lastContainedLogTimestamp": 7}
    value = control.encode_kraft_value(ControlRecordType.SNAPSHOT_HEADER, header)
    assert value == bytes(9) + b"\7\0"
    assert control.parse_kraft_value(ControlRecordType.SNAPSHOT_HEADER, value) == header
    leader = {"version": 1, "leaderId": 1, "voters": [{"voterId": 1}], "grantingVoters": []}
    shown = control.parse_kraft_value(
        ControlRecordType.LEADER_CHANGE, control.encode_kraft_value(ControlRecordType.LEADER_CHANGE, leader)
    )
    assert shown == leader | {"voters": [{"voterId": 1, "voterDirectoryId": "A" * 22}]}  # as Kafka shows it
    with pytest.raises(errors.IllegalArgumentException):
        control.encode_kraft_value(ControlRecordType.ABORT, {})
