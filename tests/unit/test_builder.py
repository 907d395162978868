"""The builder's states and rules; its bytes are in tests/golden."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog import errors
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import MemoryRecords, ProducerFields, ensure_valid
from kafkalog.engine.format.builder import MemoryRecordsBuilder, SimpleRecord, build_batch, empty_batch_header
from kafkalog.engine.format.records import records


def test_nothing_appended_is_nothing_built() -> None:
    builder = MemoryRecordsBuilder(codec=codecs.GZIP)
    assert builder.build() == b""
    assert builder.is_closed


def test_closed_and_aborted_builders_refuse() -> None:
    builder = MemoryRecordsBuilder()
    builder.append(1, None, b"v")
    first = builder.build()
    assert builder.build() is first
    with pytest.raises(errors.IllegalStateException):
        builder.append(1, None, b"v")
    with pytest.raises(errors.IllegalStateException):
        builder.override_last_offset(5)
    aborted = MemoryRecordsBuilder()
    aborted.abort()
    for act in (aborted.build, aborted.close):
        with pytest.raises(errors.IllegalStateException):
            act()


@pytest.mark.parametrize("append", [{"timestamp": -2}, {"offset": 9}, {"offset": 1 << 40}, {"headers": [(None, b"")]}])
def test_records_that_are_refused(append: dict[str, Any]) -> None:
    builder = MemoryRecordsBuilder(base_offset=9)
    builder.append(1, None, b"v")
    with pytest.raises((errors.IllegalArgumentException, errors.NullPointerException)):
        builder.append(**({"timestamp": 1, "key": None, "value": None} | append))
    assert builder.num_records == 1
    assert builder.last_offset == 9


def test_records_as_they_were_read_and_empty_batches() -> None:
    data = build_batch([SimpleRecord(5, b"k", b"v", (("h", b"x"),)), SimpleRecord(6)], base_offset=100)
    (header,) = MemoryRecords(data).batches()
    builder = MemoryRecordsBuilder(base_offset=100)
    for record in records(data, header)[1:]:
        builder.append_record(record)
    builder.override_last_offset(header.last_offset)
    (kept,) = MemoryRecords(builder.build()).batches()
    assert (kept.base_offset, kept.last_offset, kept.count, kept.base_timestamp) == (100, 101, 1, 6)
    empty = empty_batch_header(
        base_offset=100, last_offset=101, timestamp_type="CreateTime", timestamp=6, producer=ProducerFields(4, 0)
    )
    (header,) = MemoryRecords(empty).batches()
    ensure_valid(empty, header)
    assert (header.size, header.count, header.last_offset, header.max_timestamp) == (61, 0, 101, 6)
    assert records(empty, header) == []
