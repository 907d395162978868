"""The layouts and limits that C and Python each define once: `_native/codec/layout.pxd` must agree with Python's."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import kafkalog
from kafkalog import _limits as limits
from kafkalog.engine.format import batch, codecs, index_entries

NATIVE = Path(kafkalog.__file__).parent / "_native"
C = {
    name: int(number, 0)
    for name, number in re.findall(
        r"^    ([A-Z]\w*) = (\w+)$", (NATIVE / "codec" / "layout.pxd").read_text(), re.MULTILINE
    )
}
FIELDS = (
    "BASE_OFFSET", "BATCH_LENGTH", "LEADER_EPOCH", "MAGIC", "CRC", "ATTRIBUTES", "LAST_OFFSET_DELTA",
    "BASE_TIMESTAMP", "MAX_TIMESTAMP", "PRODUCER_ID", "PRODUCER_EPOCH", "BASE_SEQUENCE", "RECORD_COUNT",
)  # fmt: skip


def test_the_header_of_a_batch() -> None:
    at = 0
    for name, kind in zip(FIELDS, batch.HEADER.format[1:], strict=True):
        assert C[name] == at, name
        at += struct.calcsize(f">{kind}")
    assert C["RECORDS"] == at == batch.RECORD_BATCH_OVERHEAD
    for name in ("MAGIC", "CRC", "ATTRIBUTES", "LEGACY_CRC"):
        assert C[name] == getattr(batch, f"{name}_AT"), name
    assert C["BATCH_LENGTH"] == batch.LENGTH_AT
    assert C["HEADER_SIZE_UP_TO_MAGIC"] == batch.HEADER_SIZE_UP_TO_MAGIC
    assert C["LOG_OVERHEAD"] == batch.LOG_OVERHEAD
    assert C["MIN_RECORD_OVERHEAD"] == batch.MIN_RECORD_OVERHEAD


def test_the_entries_of_indexes() -> None:
    for kind, names in (("OFFSET", ("OFFSET", "POSITION")), ("TIME", ("TIMESTAMP", "OFFSET"))):
        one, many = getattr(index_entries, f"{kind}_ENTRY"), getattr(index_entries, f"{kind}_ENTRIES")
        assert [C[f"{kind}_ENTRY_{name}"] for name in names] == [many.fields[name.lower()][1] for name in names]
        assert C[f"{kind}_ENTRY"] == one.size == many.itemsize
    assert index_entries.TXN_ENTRY.size == index_entries.TXN_ENTRIES.itemsize == 34


def test_the_flags_and_the_codecs() -> None:
    for name in ("CODEC_MASK", "TIMESTAMP_TYPE_FLAG", "TRANSACTIONAL_FLAG", "CONTROL_FLAG", "DELETE_HORIZON_FLAG"):
        assert C[name] == getattr(batch, name), name
    assert (C["LZ4_CODEC"], C["ZSTD_CODEC"], C["LAST_CODEC"]) == (codecs.LZ4, codecs.ZSTD, len(codecs.NAMES) - 1)


def test_the_limits() -> None:
    assert C["ARRAY_BYTES_MAX"] == limits.ARRAY_BYTES_MAX == limits.INT_MAX - 8
