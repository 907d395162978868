"""Control records: keys, markers, KRaft values."""

from __future__ import annotations

import base64

import pytest

from kafkalog import errors
from kafkalog.engine.format import control
from kafkalog.engine.format.batch import MemoryRecords, ensure_valid
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker
from kafkalog.engine.format.records import records


def test_keys() -> None:
    for kind in ControlRecordType:
        if kind is not ControlRecordType.UNKNOWN:
            assert control.parse_control_key(control.record_key(kind)) is kind
    assert control.parse_control_key(bytes.fromhex("00050001")) is ControlRecordType.COMMIT
    assert control.parse_control_key(bytes.fromhex("00000063ff")) is ControlRecordType.UNKNOWN
    with pytest.raises(errors.IllegalArgumentException):
        control.record_key(ControlRecordType.UNKNOWN)
    for key in (None, b"", bytes(3), bytes.fromhex("ffff0001")):
        with pytest.raises(errors.InvalidRecordException):
            control.parse_control_key(key)


def test_marker_batch() -> None:
    marker = EndTransactionMarker(ControlRecordType.ABORT, 12)
    data = control.end_txn_marker_batch(5, 1000, 3, 7, 1, marker)
    assert len(data) == control.END_TXN_MARKER_BATCH_SIZE
    (header,) = MemoryRecords(data).batches()
    ensure_valid(data, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_sequence, header.leader_epoch, header.producer_id) == (-1, 3, 7)
    (record,) = records(data, header)
    assert EndTransactionMarker.deserialize(record.key, record.value) == marker
    with pytest.raises(errors.IllegalArgumentException):
        control.end_txn_marker_batch(5, 1000, 3, -1, 1, marker)


def test_bad_markers() -> None:
    commit = control.record_key(ControlRecordType.COMMIT)
    for value in (None, b"", b"\0", bytes.fromhex("ffff00000001"), bytes(5)):
        with pytest.raises(errors.InvalidRecordException):
            EndTransactionMarker.deserialize(commit, value)
    assert EndTransactionMarker.deserialize(commit, bytes.fromhex("000700000009ff")).coordinator_epoch == 9
    with pytest.raises(errors.IllegalArgumentException):
        EndTransactionMarker.deserialize(control.record_key(ControlRecordType.LEADER_CHANGE), bytes(6))


def test_kraft_values() -> None:
    parse = control.parse_kraft_value
    assert parse(ControlRecordType.LEADER_CHANGE, bytes.fromhex("000000000001020000000100020000000100 00")) == {
        "version": 0,
        "leaderId": 1,
        "voters": [{"voterId": 1}],
        "grantingVoters": [{"voterId": 1}],
    }
    assert parse(ControlRecordType.SNAPSHOT_HEADER, bytes(9) + b"\x07\0") == {
        "version": 0,
        "lastContainedLogTimestamp": 7,
    }
    assert parse(ControlRecordType.SNAPSHOT_FOOTER, bytes(3)) == {"version": 0}
    assert parse(ControlRecordType.KRAFT_VERSION, bytes.fromhex("0000000100")) == {"version": 0, "kRaftVersion": 1}
    directory = bytes(range(16))
    voters = bytes.fromhex("0000 02 00000003") + directory + b"\x02\x02P\x05host\x23\x84\0\0\0\0\x01\0\0\0"
    assert parse(ControlRecordType.KRAFT_VOTERS, voters) == {
        "version": 0,
        "voters": [
            {
                "voterId": 3,
                "voterDirectoryId": base64.urlsafe_b64encode(directory).decode().rstrip("="),
                "endpoints": [{"name": "P", "host": "host", "port": 9092}],
                "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
            }
        ],
    }
    for size in range(len(voters)):
        with pytest.raises(errors.SchemaException):
            parse(ControlRecordType.KRAFT_VOTERS, voters[:size])
    with pytest.raises(errors.IllegalArgumentException):
        parse(ControlRecordType.COMMIT, b"")
