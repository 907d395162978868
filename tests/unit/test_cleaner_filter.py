"""The records of a batch that a pass keeps, and the bytes that it writes: a table of batches and records by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.codec import batches as native
from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.filter import FilterResult, filter_to
from kafkalog.engine.cleaner.io_buffers import Chunk
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.survival import Survival, Terms
from kafkalog.engine.cleaner.transactions import CleanedTransactionMetadata
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.batch import HEADER, MemoryRecords, ensure_valid
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.codecs import GZIP, LZ4, NONE, ZSTD
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.records import Record, records
from kafkalog.engine.log.types import LastRecord
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordException,
    KafkalogError,
)
from tests.reference.legacy import builder_of

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
TS = NOW_MS - 500_000


class Filter:
    """One segment's filtering: a map that knows some keys, and terms that a test may replace."""

    def __init__(
        self, tmp_path: Path, known: dict[str, int] | None = None, *, latest: int = 1000, **terms: Any
    ) -> None:
        self.records = FileRecords.open(str(tmp_path / "source.log"), OS_FILES)
        self.offset_map = SkimpyOffsetMap(24 * 100)
        for key, offset in (known or {}).items():
            self.offset_map.put(key.encode(), offset)
        self.offset_map.latest_offset = latest
        self.transactions = CleanedTransactionMetadata()
        self.stats = CleanerStats(0)
        self.terms = Terms(NOW_MS, DAY_MS, False, 1 << 20, -1, {})._replace(**terms)

    def run(self, *batches: bytes, output_bytes_max: int = 1 << 20) -> FilterResult:
        data = b"".join(batches)
        table, why, valid = native.scan(data, framing=native.FRAMING_BUFFER, check_crc=False)
        chunk = Chunk(self.records, 5000, memoryview(data), table, why, valid)
        result = FilterResult()
        survival = Survival(self.offset_map, self.transactions, self.terms, self.stats)
        self.rows = filter_to(chunk, 0, survival, result, output_bytes_max)
        return result


def batch(*pairs: tuple[str | None, str | None], base: int = 10, ts: int = TS, magic: int = 2, **options: Any) -> bytes:
    """(key, value) at offsets from `base` on and times from `ts` on."""
    builder = builder_of(magic, base_offset=base, **options)
    for number, (key, value) in enumerate(pairs):
        builder.append(ts + number, None if key is None else key.encode(), None if value is None else value.encode())
    return builder.build()


def only(result: FilterResult) -> tuple[BatchHeader, list[Record]]:
    """The one batch that was written, and its records; its checksum is right."""
    (header,) = MemoryRecords(result.output).batches()
    ensure_valid(result.output, header)
    return header, records(bytes(result.output), header)


def offsets(found: list[Record]) -> list[int]:
    return [record.offset for record in found]


def marker(producer_id: int, offset: int, kind: ControlRecordType, *, horizon: int = -1, epoch: int = 0) -> bytes:
    plain = end_txn_marker_batch(offset, TS, 3, producer_id, epoch, EndTransactionMarker(kind, 7))
    if horizon == -1:
        return plain
    builder = MemoryRecordsBuilder(
        base_offset=offset, producer_id=producer_id, producer_epoch=epoch, is_transactional=True, is_control_batch=True,
        partition_leader_epoch=3, delete_horizon_ms=horizon,
    )  # fmt: skip
    builder.append_record(records(plain, native.header_at(plain))[0])
    return builder.build()


# --- records ---------------------------------------------------------------------------------------------


def test_the_last_of_a_key_stays_and_what_the_map_does_not_know(tmp_path: Path) -> None:
    run = Filter(tmp_path, {"old": 99, "here": 11, "before": 5})
    result = run.run(batch(("old", "1"), ("here", "1"), ("before", "1"), ("unknown", "1")))
    assert offsets(only(result)[1]) == [11, 12, 13]
    assert (result.messages_read, result.messages_retained) == (4, 3)


def test_behind_the_end_of_the_map_everything_stays(tmp_path: Path) -> None:
    run = Filter(tmp_path, {"a": 99}, latest=10)
    result = run.run(batch(("a", "1"), ("a", "2"), (None, "3"), ("a", None)))
    header, found = only(result)
    assert offsets(found) == [11, 12, 13]
    assert found[1].key is None
    assert run.stats.invalid_messages_read == 0
    assert header.delete_horizon_ms == NOW_MS + DAY_MS  # the tombstone after it counts as well


def test_a_record_without_a_key_goes_and_is_counted(tmp_path: Path) -> None:
    run = Filter(tmp_path)
    assert offsets(only(run.run(batch((None, "1"), ("a", "2"), (None, None))))[1]) == [11]
    assert run.stats.invalid_messages_read == 2


@pytest.mark.parametrize(("now", "stays"), [(NOW_MS - 1, True), (NOW_MS, False), (NOW_MS + 1, False)])
def test_a_tombstone_stays_until_its_horizon(tmp_path: Path, now: int, stays: bool) -> None:
    run = Filter(tmp_path, now_ms=now)
    result = run.run(batch(("a", None), ("b", "1"), delete_horizon_ms=NOW_MS))
    header, found = only(result)
    assert offsets(found) == ([10, 11] if stays else [11])
    assert header.delete_horizon_ms == NOW_MS


def test_a_tombstone_without_a_horizon_gets_one_and_stays(tmp_path: Path) -> None:
    result = Filter(tmp_path).run(batch(("a", None), ("b", "1")))
    header, found = only(result)
    assert offsets(found) == [10, 11]
    assert header.delete_horizon_ms == header.base_timestamp == NOW_MS + DAY_MS
    assert [record.timestamp for record in found] == [TS, TS + 1]  # the deltas are negative now
    assert header.max_timestamp == TS + 1


def test_a_superseded_tombstone_gives_no_horizon(tmp_path: Path) -> None:
    header, found = only(Filter(tmp_path, {"a": 99}).run(batch(("a", None), ("b", "1"))))
    assert offsets(found) == [11]
    assert header.delete_horizon_ms is None
    assert header.base_timestamp == TS + 1  # the first remaining record's


@pytest.mark.parametrize("retains", [True, False])
def test_a_legacy_tombstone_goes_by_the_age_of_its_segment(tmp_path: Path, retains: bool) -> None:
    run = Filter(tmp_path, retains_legacy_deletes=retains)
    result = run.run(batch(("a", None), magic=1))
    if retains:
        header, found = only(result)
        assert (header.magic, offsets(found)) == (2, [10])
        assert header.delete_horizon_ms == NOW_MS + DAY_MS
    else:
        assert result.output == b""
    assert result.messages_read == 1


# --- bytes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "level"), [(NONE, None), (GZIP, 9), (LZ4, 17), (ZSTD, 19)])
def test_a_batch_that_loses_nothing_is_copied_as_it_is(tmp_path: Path, codec: int, level: int | None) -> None:
    data = batch(("a", "1" * 50), ("b", "2" * 50), codec=codec, level=level, partition_leader_epoch=4)
    broken = data[:17] + b"\0\0\0\0" + data[21:]  # even with a checksum that nobody checks
    result = Filter(tmp_path).run(data, broken)
    assert bytes(result.output) == data + broken
    assert (result.messages_retained, result.bytes_retained, result.max_offset) == (4, len(result.output), 11)


@pytest.mark.parametrize(("codec", "level"), [(NONE, None), (GZIP, 9), (LZ4, 17), (ZSTD, 19)])
def test_a_batch_that_loses_a_record_is_built_anew_at_the_default_level(
    tmp_path: Path, codec: int, level: int | None
) -> None:
    pairs = [(f"k{number}", f"{number}" * 40) for number in range(9)]
    fields = {
        "producer_id": 7, "producer_epoch": 2, "base_sequence": 5, "is_transactional": True, "partition_leader_epoch": 4
    }  # fmt: skip
    result = Filter(tmp_path, {"k0": 99, "k8": 99}).run(batch(*pairs, codec=codec, level=level, **fields))
    builder = MemoryRecordsBuilder(codec=codec, base_offset=10, **fields)
    for number, (key, value) in enumerate(pairs[1:8], 1):
        builder.append(TS + number, key.encode(), value.encode(), offset=10 + number)
    builder.override_last_offset(18)
    assert bytes(result.output) == builder.build()
    header, found = only(result)
    assert (header.base_offset, header.last_offset, header.count) == (10, 18, 7)
    assert (header.last_sequence, header.max_timestamp, header.base_timestamp) == (13, TS + 7, TS + 1)
    assert offsets(found) == list(range(11, 18))
    assert result.max_offset == 17  # the record's, not the batch's
    assert (result.messages_retained, result.bytes_retained) == (7, len(result.output))


def test_headers_survive_being_built_anew(tmp_path: Path) -> None:
    builder = MemoryRecordsBuilder(base_offset=10)
    builder.append(TS, b"gone", b"", ())
    builder.append(TS, b"a", b"", (("h", b"1"), ("\u00e9", None)))
    _, found = only(Filter(tmp_path, {"gone": 99}).run(builder.build()))
    assert found[0].headers == (("h", b"1"), ("\u00e9", None))


def test_the_brokers_time_is_every_records_time(tmp_path: Path) -> None:
    data = batch(("gone", "1"), ("a", "2"), timestamp_type="LogAppendTime", log_append_time=NOW_MS)
    header, found = only(Filter(tmp_path, {"gone": 99}).run(data))
    assert (header.timestamp_type, header.max_timestamp, header.base_timestamp) == ("LogAppendTime", NOW_MS, NOW_MS)
    assert found[0].timestamp == NOW_MS


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_become_magic_2_even_where_nothing_goes(tmp_path: Path, magic: int, codec: int) -> None:
    builder = builder_of(magic, codec=codec, base_offset=0)
    for number, key in enumerate((b"gone", b"a", b"b", b"gone")):
        builder.append(TS + number, key, b"v")
    data = builder.build()
    run = Filter(tmp_path, {"gone": 99})
    result = run.run(data)
    found = [record for h in MemoryRecords(result.output).batches() for record in records(bytes(result.output), h)]
    assert [(record.offset, record.key) for record in found] == [(1, b"a"), (2, b"b")]
    assert [record.timestamp for record in found] == ([-1, -1] if magic == 0 else [TS + 1, TS + 2])
    for header in MemoryRecords(result.output).batches():
        assert (header.magic, header.codec, header.timestamp_type, header.leader_epoch) == (2, codec, "CreateTime", -1)
        assert header.producer_id == -1
    if codec != NONE:  # one batch: it begins and ends with what stayed
        (header,) = MemoryRecords(result.output).batches()
        assert (header.base_offset, header.last_offset) == (1, 2)
    whole = Filter(tmp_path).run(batch(("a", "1"), magic=magic))
    assert only(whole)[0].magic == 2


def test_a_horizon_stays_when_a_record_goes(tmp_path: Path) -> None:
    horizon = NOW_MS + 5
    data = batch(("gone", "1"), ("a", None), delete_horizon_ms=horizon)
    header, found = only(Filter(tmp_path, {"gone": 99}).run(data))
    assert header.delete_horizon_ms == horizon
    assert [record.timestamp for record in found] == [TS + 1]


def test_a_batch_of_which_nothing_stays_goes(tmp_path: Path) -> None:
    result = Filter(tmp_path, {"a": 99}).run(batch(("a", "1")), batch(("b", "2"), base=11))
    assert offsets(only(result)[1]) == [11]
    assert (result.messages_read, result.bytes_read) == (2, 2 * len(batch(("a", "1"))))


# --- batches ---------------------------------------------------------------------------------------------

IDEMPOTENT: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5}


@pytest.mark.parametrize(
    ("last", "stays"),
    [
        (LastRecord(11, 2), True),
        (LastRecord(10, 2), False),  # not the batch's last offset
        (LastRecord(12, 2), False),
        (LastRecord(None, 2), False),  # no control batch
        (None, False),
    ],
)
def test_the_last_batch_of_a_producer_keeps_its_header(tmp_path: Path, last: LastRecord | None, stays: bool) -> None:
    run = Filter(tmp_path, {"a": 99}, last_records={} if last is None else {7: last})
    data = batch(("a", "1"), ("a", "2"), codec=GZIP, partition_leader_epoch=4, **IDEMPOTENT)
    result = run.run(data)
    if not stays:
        assert result.output == b""
        return
    header, found = only(result)
    assert (len(result.output), found) == (61, [])
    assert HEADER.unpack(result.output)[5:] == (0, 1, -1, TS + 1, 7, 2, 5, 0)
    assert (header.base_offset, header.leader_epoch) == (10, 4)
    assert (result.messages_retained, result.bytes_retained, result.max_offset) == (0, 61, 11)
    again = run.run(bytes(result.output))  # and once more
    assert again.output == result.output
    assert run.run(bytes(result.output)).messages_read == 0
    run.terms = run.terms._replace(last_records={})
    assert run.run(bytes(result.output)).output == b""


def test_an_empty_header_keeps_flags_and_loses_the_horizon(tmp_path: Path) -> None:
    run = Filter(tmp_path, {"a": 99}, last_records={7: LastRecord(10, 2)})
    data = batch(
        ("a", "1"), delete_horizon_ms=NOW_MS + 1, is_transactional=True, timestamp_type="LogAppendTime",
        log_append_time=NOW_MS, codec=ZSTD, **IDEMPOTENT,
    )  # fmt: skip
    header, _ = only(run.run(data))
    assert (header.codec, header.is_transactional, header.timestamp_type) == (NONE, True, "LogAppendTime")
    assert (header.delete_horizon_ms, header.base_timestamp, header.max_timestamp) == (None, -1, NOW_MS)


def test_the_batch_below_the_high_watermark_keeps_its_header(tmp_path: Path) -> None:
    for high_watermark, size in ((12, 61), (11, 0), (13, 0)):
        run = Filter(tmp_path, {"a": 99}, high_watermark=high_watermark)
        assert len(run.run(batch(("a", "1"), ("a", "2"))).output) == size


def test_an_old_format_has_no_empty_batch(tmp_path: Path) -> None:
    run = Filter(tmp_path, {"a": 99}, high_watermark=11)
    with pytest.raises(
        IllegalStateException, match="Empty batches are only supported for magic v2 and above"
    ) as caught:
        run.run(batch(("a", "1"), magic=1))
    assert (caught.value.path, caught.value.position) == (run.records.path, 5000)


def test_aborted_data_goes_unread(tmp_path: Path) -> None:
    run = Filter(tmp_path)
    run.transactions.add_aborted_transactions([AbortedTxn(7, 10, 20, 21)])
    data = batch(("a", "1"), is_transactional=True, codec=GZIP, **IDEMPOTENT)
    result = run.run(data[:61] + b"\xff" * (len(data) - 61))  # it would not decompress
    assert (result.output, result.messages_read, result.bytes_read) == (b"", 0, len(data))


def test_aborted_data_of_a_producers_last_batch_keeps_the_header(tmp_path: Path) -> None:
    run = Filter(tmp_path, last_records={7: LastRecord(10, 2)})
    run.transactions.add_aborted_transactions([AbortedTxn(7, 10, 20, 21)])
    result = run.run(batch(("a", "1"), is_transactional=True, **IDEMPOTENT))
    assert (len(result.output), result.messages_read, result.messages_retained) == (61, 1, 0)


def test_a_marker_of_an_empty_transaction_gets_a_horizon_and_goes_at_it(tmp_path: Path) -> None:
    run = Filter(tmp_path)
    for kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        header, found = only(run.run(marker(7, 20, kind)))
        assert (header.is_control, header.is_transactional, header.leader_epoch) == (True, True, 3)
        assert header.delete_horizon_ms == NOW_MS + DAY_MS
        assert found[0].timestamp == TS
        for horizon, stays in ((NOW_MS + 1, True), (NOW_MS, False), (NOW_MS - 1, False)):
            data = marker(7, 20, kind, horizon=horizon)
            assert bytes(run.run(data).output) == (data if stays else b"")
    assert run.run(marker(7, 20, ControlRecordType.ABORT, horizon=NOW_MS)).messages_read == 0


def test_a_marker_whose_transaction_has_data_stays_as_it_is(tmp_path: Path) -> None:
    data = batch(("a", "1"), is_transactional=True, **IDEMPOTENT)
    commit = marker(7, 20, ControlRecordType.COMMIT)
    assert bytes(Filter(tmp_path).run(data, commit).output) == data + commit
    run = Filter(tmp_path, {"a": 99})  # a record that the map drops was still met in this pass
    assert bytes(run.run(data, commit).output) == commit
    header, _ = only(run.run(commit))  # not in the next one
    assert header.delete_horizon_ms is not None


def test_a_producer_without_data_keeps_its_last_marker(tmp_path: Path) -> None:
    data = marker(7, 20, ControlRecordType.COMMIT, horizon=NOW_MS, epoch=3)
    for epoch, size in ((3, 61), (2, 0)):
        run = Filter(tmp_path, last_records={7: LastRecord(None, epoch)})
        result = run.run(data)
        assert len(result.output) == size
        if size:
            assert only(result)[0].is_control
    known = Filter(
        tmp_path, last_records={7: LastRecord(20, 9)}
    )  # the last data offset is the marker's: whatever epoch
    assert len(known.run(data).output) == 61


# --- the ends --------------------------------------------------------------------------------------------


def test_it_stops_behind_the_batch_that_does_not_fit(tmp_path: Path) -> None:
    one, two, three = (batch((f"k{n}", "v"), base=10 + n) for n in range(3))
    run = Filter(tmp_path)
    result = run.run(one, two, three, output_bytes_max=len(one))
    assert (run.rows, bytes(result.output), result.bytes_read) == (2, one + two, len(one + two))
    result = run.run(one, two, three, output_bytes_max=len(one + two))
    assert run.rows == 3
    result = run.run(one, two, three, output_bytes_max=len(one) + 1)
    assert run.rows == 2


def mended(data: bytearray) -> bytes:
    data[17:21] = native.compute_crc(bytes(data), 0, len(data)).to_bytes(4, "big")
    return bytes(data)


def with_codec(data: bytes, codec: int) -> bytes:
    changed = bytearray(data)
    changed[22] = changed[22] & ~7 | codec
    return mended(changed)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda data: with_codec(data, 6), CorruptRecordException, "Unknown compression type id: 6"),
        (lambda data: with_codec(data, GZIP), CorruptRecordException, "."),
        (lambda data: mended(bytearray(data[:61] + b"\xff" * (len(data) - 61))), KafkalogError, "."),
        (
            lambda data: mended(bytearray(data[:57] + b"\0\0\0\x09" + data[61:])),
            InvalidRecordException,
            "premature EOF",
        ),
    ],
)
def test_a_batch_that_does_not_parse_names_its_place(
    tmp_path: Path, spoil: Any, error: type[KafkalogError], words: str
) -> None:
    run = Filter(tmp_path)
    good = batch(("a", "1"))
    with pytest.raises(error, match=words) as caught:
        run.run(good, spoil(batch(("a", "1"), ("b", "2"))))
    assert (caught.value.path, caught.value.position) == (run.records.path, 5000 + len(good))


def test_of_an_old_message_no_more_is_read_than_is_needed(tmp_path: Path) -> None:
    data = batch(("a", "1"), magic=1)
    broken = data[:-5] + (99).to_bytes(4, "big") + data[-1:]  # a value longer than the message
    assert Filter(tmp_path, {"a": 99}).run(broken).output == b""
    with pytest.raises(IllegalArgumentException, match="cannot hold 99"):
        Filter(tmp_path).run(broken)
    without_key = data[:26] + (77).to_bytes(4, "big") + data[30:]
    with pytest.raises(IllegalArgumentException, match="cannot hold 77"):
        Filter(tmp_path, {"a": 99}).run(without_key)


def test_what_magic_2_cannot_say_is_an_error(tmp_path: Path) -> None:
    data = bytearray(batch(("gone", "1"), ("a", "2"), ts=0))
    data[27:35] = (-5).to_bytes(8, "big", signed=True)  # times below -1
    with pytest.raises(IllegalArgumentException, match="Invalid negative timestamp"):
        Filter(tmp_path, {"gone": 99}).run(mended(data))
    data = bytearray(batch(("gone", "1"), ("a", "2"), is_transactional=True, **IDEMPOTENT))
    data[43:51] = (-1).to_bytes(8, "big", signed=True)  # a marker without a transaction
    with pytest.raises(IllegalArgumentException, match="without a valid producer ID"):
        Filter(tmp_path, {"gone": 99}).run(mended(data))


def test_offsets_below_zero_are_an_error(tmp_path: Path) -> None:
    data = bytearray(batch(("a", "1"), base=0))
    data[:8] = (-9).to_bytes(8, "big", signed=True)
    with pytest.raises(IllegalArgumentException, match="undefined"):
        Filter(tmp_path, latest=-100).run(bytes(data))
