"""LogValidator: the answers of Apache Kafka's own to the same batches, and the cases that only kafkalog has."""

from __future__ import annotations

import mmap
import pathlib
from collections.abc import Iterator

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import records as records_of
from kafkalog.engine.log.types import AppendOrigin, RecordError
from kafkalog.engine.log.validator import LogValidator, TopicRules, ValidationResult
from kafkalog.errors import (
    InvalidRecordException,
    InvalidTimestampException,
    KafkalogError,
    RecordValidationException,
    UnsupportedOperationException,
)
from tests.reference.legacy import builder_of

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "validator" / "cases.txt"
NOW = 1_000_000
LONG_MAX = 2**63 - 1


class Counters:
    """MetricsRecorder in the order of the golden file."""

    def __init__(self) -> None:
        self.counts = [0] * 5

    def record_invalid_magic(self) -> None:
        self.counts[0] += 1

    def record_invalid_offset(self) -> None:
        self.counts[1] += 1

    def record_invalid_sequence(self) -> None:
        self.counts[2] += 1

    def record_invalid_checksums(self) -> None:
        self.counts[3] += 1

    def record_no_key_compacted_topic(self, records: int = 1) -> None:
        self.counts[4] += records


def golden() -> Iterator[tuple[str, str]]:
    lines = GOLDEN.read_text().splitlines()
    return zip(lines[::2], lines[1::2], strict=True)


def answer(case: str) -> str:
    fields = case.split("|")
    data = bytearray.fromhex(fields[0])
    counters = Counters()
    rules = TopicRules(
        int(fields[2]),
        int(fields[3]) if fields[3] else None,
        fields[4] == "1",
        fields[6] != "LogAppendTime",
        int(fields[7]),
        int(fields[8]),
        int(fields[13]),
    )
    validator = LogValidator(
        data,
        MemoryRecords(data).batches(),
        TopicPartition("t", 3),
        ManualClock(int(fields[11])),
        rules,
        int(fields[1]),
        AppendOrigin[fields[10]],
        int(fields[9]),
    )
    try:
        result = validator.validate_messages_and_assign_offsets(int(fields[12]), counters)
    except RecordValidationException as error:
        invalid = error.invalid_exception
        told = [f"{refused.batch_index}:{refused.message}" for refused in error.record_errors]  # type: ignore[attr-defined]
        said = "|".join(["REC", type(invalid).__name__, invalid.message, *told])
    except KafkalogError as error:
        said = f"ERR|{type(error).__name__}|{error.message}"
    else:
        written = b"".join(result.buffers)
        assert MemoryRecords(written).batches() == result.headers
        stats = result.record_validation_stats
        said = (
            f"OK|{written.hex()}|{result.max_timestamp}|{str(result.message_size_maybe_changed).lower()}|"
            f"{stats.temporary_memory_bytes}|{stats.num_records_converted}|{result.next_offset}|{result.log_append_time}"
        )
    assert data.hex() == fields[0], "the input is never changed"
    return f"{said}|{counters.counts}"


@pytest.mark.parametrize("index", range(16))
def test_as_kafka_answered(index: int) -> None:
    for case, expected in list(golden())[index::16]:
        got = answer(case)
        if expected.startswith("ERR|"):
            # Words about structure are ours; the class, and that nothing came out, are Kafka's.
            assert got.split("|")[:2] == expected.split("|")[:2], case
        else:
            assert got == expected, case


# --- our side ------------------------------------------------------------------------------------


def validate(
    data: bytes | bytearray | memoryview | mmap.mmap,
    source: int = codecs.NONE,
    target: int = codecs.NONE,
    *,
    compacted: bool = False,
    timestamp_type: str = "CreateTime",
    limits: tuple[int, int] = (LONG_MAX, LONG_MAX),
    origin: AppendOrigin = AppendOrigin.CLIENT,
    level: int | None = None,
) -> ValidationResult:
    rules = TopicRules(target, level, compacted, timestamp_type != "LogAppendTime", *limits)
    return LogValidator(
        data, MemoryRecords(data).batches(), TopicPartition("t", 0), ManualClock(NOW), rules, source, origin, 3
    ).validate_messages_and_assign_offsets(100, Counters())


def produced(codec: int = codecs.NONE, count: int = 3, *, key: bytes | None = b"k", magic: int = 2) -> bytes:
    builder = builder_of(magic, codec=codec)
    for index in range(count):
        builder.append(NOW + index, key, b"v" * 50)
    return builder.build()


@pytest.mark.parametrize("codec", range(5))
def test_in_place_copies_no_records(codec: int) -> None:
    data = produced(codec)
    result = validate(data, codec, codec)
    assert [memoryview(part).nbytes for part in result.buffers] == [61, len(data) - 61]
    body = result.buffers[1]
    assert isinstance(body, memoryview)
    assert body.obj is data
    (header,) = result.headers
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 102, 3)
    assert (result.next_offset, result.max_timestamp, result.message_size_maybe_changed) == (103, NOW + 2, False)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.ZSTD])
def test_any_buffer_will_do(codec: int) -> None:
    data = produced(codec)
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        for shape in (bytearray(data), memoryview(data), memoryview(b"x" + data)[1:], mapped):
            for target in (codec, codecs.GZIP):
                result = validate(shape, codec, target)
                expected = validate(data, codec, target)
                assert b"".join(result.buffers) == b"".join(expected.buffers)
                del result  # releases the map


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", range(5))
def test_a_rebuild_is_what_the_builder_makes(source: int, target: int) -> None:
    result = validate(produced(source), source, target)
    builder = MemoryRecordsBuilder(codec=target, base_offset=100, partition_leader_epoch=3)
    for index in range(3):
        builder.append(NOW + index, b"k", b"v" * 50)
    assert b"".join(result.buffers) == builder.build()
    if source != target:
        assert result.message_size_maybe_changed
        assert result.record_validation_stats.num_records_converted == 3


def test_the_level_is_the_topics() -> None:
    data = produced(count=400)
    sizes = {level: validate(data, 0, codecs.ZSTD, level=level).headers[0].size for level in (None, 3, 19)}
    assert sizes[None] == sizes[3]
    assert codecs.compress(codecs.ZSTD, data[61:], 19) == bytes(validate(data, 0, codecs.ZSTD, level=19).buffers[1])


def test_append_time() -> None:
    result = validate(produced(), timestamp_type="LogAppendTime")
    (header,) = result.headers
    assert (header.log_append, header.max_timestamp, result.max_timestamp) == (True, NOW, NOW)
    written = b"".join(result.buffers)
    assert {record.timestamp for record in records_of(written, header)} == {NOW}


def test_refused_records_are_listed() -> None:
    with pytest.raises(RecordValidationException) as caught:
        validate(produced(key=None), compacted=True)
    text = "Compacted topic cannot accept message without key in topic partition t-0"
    assert caught.value.record_errors == [RecordError(index, text) for index in range(3)]
    assert isinstance(caught.value.invalid_exception, InvalidRecordException)
    assert "3 record errors in total" in str(caught.value)


def test_time_limits_are_strict() -> None:
    validate(produced(), limits=(0, 2))
    with pytest.raises(RecordValidationException) as caught:
        validate(produced(), limits=(0, 1))
    assert isinstance(caught.value.invalid_exception, InvalidTimestampException)
    assert [error.batch_index for error in caught.value.record_errors] == [2]  # type: ignore[attr-defined]


def test_kept_batches_must_count_their_records_from_zero() -> None:
    builder = MemoryRecordsBuilder(codec=codecs.LZ4)
    builder.append(NOW, b"k", b"v")
    builder.append(NOW, b"k", b"v", offset=2)
    with pytest.raises(UnsupportedOperationException):
        validate(builder.build(), codecs.LZ4, codecs.LZ4, origin=AppendOrigin.COORDINATOR)


def test_nothing_and_too_much() -> None:
    with pytest.raises(InvalidRecordException, match="no batches at all"):
        validate(b"")
    with pytest.raises(InvalidRecordException, match="more than one batch"):
        validate(produced() * 2)


def test_many_old_messages_become_one_batch() -> None:
    result = validate(produced(magic=1))
    (header,) = result.headers
    assert (header.magic, header.count, header.base_offset) == (2, 3, 100)
