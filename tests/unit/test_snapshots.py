"""Producer snapshots: bytes and refusals as recorded from Apache Kafka 4.4.0."""
# ruff: noqa: E501  (recorded texts stay in one piece)

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.engine.format.snapshots import (
    ENTRY,
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    write_snapshot,
)
from kafkalog.errors import CorruptSnapshotException
from tests.file_doubles import RecordingFiles

ONE = ProducerSnapshotEntry(1, 2, 3, 4, 5, 6, 7, -1)
THREE = [ONE, ONE._replace(producer_id=16), ONE._replace(producer_id=17)]
GOOD = encode_snapshot(THREE)

ENTRIES = st.builds(
    ProducerSnapshotEntry,
    *(
        st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        for bits in (64, 16, 32, 64, 32, 64, 32, 64)
    ),
)  # fmt: skip


def test_bytes() -> None:
    assert encode_snapshot([]).hex() == "000148674bc700000000"
    assert len(GOOD) == 10 + 3 * 46
    assert [entry.producer_id for entry in decode_snapshot(GOOD)] == [16, 1, 17]
    assert [entry.producer_id for entry in decode_snapshot(encode_snapshot(THREE, ordered=True))] == [1, 16, 17]
    assert struct.unpack_from(">I", GOOD, 2)[0] == 3207565030


def with_count(count: int) -> bytes:
    return GOOD[:6] + struct.pack(">i", count) + GOOD[10:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Snapshot failed schema validation: 0 bytes are too few for a snapshot"),
        (GOOD[:9], "Snapshot failed schema validation: 9 bytes are too few for a snapshot"),
        (b"\0\2" + GOOD[2:], "Snapshot failed schema validation: Snapshot contained an unknown file version 2"),
        (GOOD[:-1], "Snapshot failed schema validation: 3 entries need 138 bytes, but 137 remain"),
        (GOOD + b"x", "Snapshot is corrupt (CRC is no longer valid). Stored crc: 3207565030. Computed crc: 1813135343"),
        (GOOD[:-1] + b"z",
         "Snapshot is corrupt (CRC is no longer valid). Stored crc: 3207565030. Computed crc: 136880514"),
        (with_count(2), "Snapshot is corrupt (CRC is no longer valid). Stored crc: 3207565030. Computed crc: 1531851114"),
        (with_count(-1), "Snapshot failed schema validation: non-nullable field producerEntries was serialized as null"),
        (with_count(0x7F7F7F7F), "Snapshot failed schema validation: Tried to allocate a collection of size 2139062143, "
                                 "but there are only 138 bytes remaining."),
        (with_count(100), "Snapshot failed schema validation: 100 entries need 4600 bytes, but 138 remain"),
    ],
)  # fmt: skip
def test_refused(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000007.snapshot"
    path.write_bytes(data)
    with pytest.raises(CorruptSnapshotException) as refused:
        read_snapshot(str(path))
    assert refused.value.message == message
    assert str(path) in str(refused.value)
    assert "remove it" in str(refused.value)


def test_every_cut_and_every_flipped_bit_is_seen() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(CorruptSnapshotException):
            decode_snapshot(GOOD[:size])
    for bit in range(len(GOOD) * 8):
        damaged = bytearray(GOOD)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptSnapshotException):
            decode_snapshot(bytes(damaged))


@given(st.lists(ENTRIES, max_size=30, unique_by=lambda entry: entry.producer_id))
def test_entries_come_back(entries: list[ProducerSnapshotEntry]) -> None:
    data = encode_snapshot(entries)
    assert sorted(decode_snapshot(data)) == sorted(entries)
    assert len(data) == 10 + len(entries) * ENTRY.size
    assert decode_snapshot(encode_snapshot(entries, ordered=True)) == entries


@given(st.binary(max_size=120))
def test_any_bytes(data: bytes) -> None:
    for content in (data, b"\0\1" + data):
        with pytest.raises(CorruptSnapshotException):
            decode_snapshot(content)


def test_an_older_longer_file_keeps_its_tail(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    path = str(tmp_path / "s")
    write_snapshot(path, THREE, files)
    write_snapshot(path, [ONE], files, sync=False)
    assert [op.kind for op in files.ops] == ["create", "write", "sync", "write"]
    assert len(files.read_bytes(path)) == len(GOOD)
    with pytest.raises(CorruptSnapshotException, match="CRC is no longer valid"):
        read_snapshot(path, files)
