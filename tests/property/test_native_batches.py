"""Any bytes: the native scan and its reference agree, and nothing before the damage is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog._native.codec import batches as native
from tests.reference import batches as reference
from tests.reference.batches import Row, legacy_batch, v2_batch

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)

V2 = st.builds(
    v2_batch,
    INT64,
    st.binary(max_size=40),
    count=INT32,
    last_offset_delta=INT32,
    attributes=INT16,
    base_timestamp=INT64,
    max_timestamp=INT64,
    leader_epoch=INT32,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=INT32,
    magic=st.sampled_from([2, 2, 2, 3, 127, -1]),
)
LEGACY = st.builds(
    legacy_batch,
    INT64,
    st.binary(max_size=30),
    magic=st.integers(0, 1),
    attributes=st.integers(0, 255),
    timestamp=INT64,
)
DATA = st.lists(V2 | LEGACY, max_size=6).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Batches, and the same with a few bytes overwritten, removed or appended."""
    whole = draw(DATA)
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return whole, bytes(data) + draw(st.binary(max_size=70))


@settings(deadline=None, max_examples=300)
@given(
    damaged(),
    st.sampled_from([native.FRAMING_BUFFER, native.FRAMING_FILE]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 8),
)
def test_scan_equals_the_twin(
    data: tuple[bytes, bytes], framing: int, check_crc: bool, stop_at_bad_crc: bool, max_batches: int
) -> None:
    whole, seen = data
    table, why, reached = native.scan(
        seen, framing=framing, check_crc=check_crc, stop_at_bad_crc=stop_at_bad_crc, max_batches=max_batches
    )
    rows = [Row(*row) for row in table.tolist()]
    assert (rows, why, reached) == reference.scan(
        seen, framing=framing, check_crc=check_crc, stop_at_bad_crc=stop_at_bad_crc, max_batches=max_batches
    )
    # Every batch that ends before the first difference exists unchanged.
    same = next((i for i, (a, b) in enumerate(zip(whole, seen, strict=False)) if a != b), min(len(whole), len(seen)))
    before = [row for row in reference.scan(whole, framing=framing)[0] if row.position + row.size <= same]
    assert rows[: len(before)] == before[:max_batches]
    found, verdict, place = native.headers(seen, framing=framing)
    plain = reference.scan(seen, framing=framing, check_crc=False)
    assert ([(h.position, h.size, h.crc) for h in found], verdict, place) == (
        [(row.position, row.size, row.crc) for row in plain[0]],
        *plain[1:],
    )


@settings(deadline=None, max_examples=200)
@given(V2, st.none() | INT64, st.none() | INT32, st.none() | st.integers(0, 1), st.none() | INT64)
def test_restamp_equals_the_twin(
    batch: bytes,
    last_offset: int | None,
    leader_epoch: int | None,
    timestamp_type: int | None,
    max_timestamp: int | None,
) -> None:
    stamp: dict[str, Any] = {
        "last_offset": last_offset,
        "leader_epoch": leader_epoch,
        "timestamp_type": timestamp_type,
        "max_timestamp": max_timestamp,
    }
    want = reference.restamped(batch, **stamp)
    unstamped = reference.restamped(batch, last_offset=last_offset, leader_epoch=leader_epoch)
    # Not of magic 2, or a codec that Kafka does not know, met when the attributes are rebuilt.
    if batch[16] != 2 or (batch[22] & 7 > 4 and want != unstamped):
        with pytest.raises(ValueError, match=r"no whole batch|has magic|Unknown compression type"):
            native.restamped_header(batch, **stamp)
        return
    assert native.restamped_header(batch, **stamp) == want[:61]
    assert batch[61:] == want[61:]
