"""The functions for any DataFrame, in a real local Spark, against the engine's own answers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog._native.codec.crc32c import crc32c
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.format.arrow import write_batches
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.builder import SimpleRecord
from kafkalog.engine.format.records import iterate
from kafkalog.errors import CorruptRecordException, IllegalArgumentException
from tests.reference.legacy import build_batch

pytest.importorskip("pyspark")

from kafkalog.spark import functions as K  # noqa: N812

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t-0: a batch of each codec and an aborted transaction, in segments."""
    root = tmp_path_factory.mktemp("functions")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with kafkalog.open_log(root, "t-0", compression=codec, config={"internal.segment.bytes": "900"}) as log:
            log.append_many(
                [
                    (b"v%d" % n if n % 3 else None, b"k%d" % n, [("h", b"%d" % n)] * (n % 3), START_MS + n)
                    for n in range(9)
                ]
            )
    with kafkalog.open_log(root, "t-0") as log, log.transaction("a") as txn:
        txn.append(b"in a transaction", timestamp=START_MS)
    return root / "t-0"


def test_decode_batches_is_what_a_reader_reads(spark: Any, folder: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.log").load(str(folder))
    rows = files.select("path", F.inline(K.decode_batches("content"))).orderBy("offset").collect()
    with kafkalog.open_log(folder.parent, "t-0", read_only=True) as log:
        expected = list(log)
    assert len({row.path for row in rows}) > 1
    assert len(rows) == len(expected) == 46
    for row, record in zip(rows, expected, strict=True):
        assert (row.offset, row.timestampType) == (record.offset, record.timestamp_type)
        assert (row.key and bytes(row.key), row.value and bytes(row.value)) == (record.key, record.value)
        assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(record.timestamp / 1000, UTC)
        assert [(each.key, bytes(each.value)) for each in row.headers or []] == list(record.headers)


def test_decode_batches_of_what_is_no_batch(spark: Any, folder: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    whole = sorted(folder.glob("*.log"))[0].read_bytes()
    broken = bytearray(whole + whole)
    broken[len(whole) + 80] ^= 1
    given = [("null", None), ("empty", b""), ("cut", whole[:-3]), ("whole", whole), ("damaged", bytes(broken))]
    frame = spark.createDataFrame(
        [(name, data and bytearray(data)) for name, data in given], "name string, data binary"
    )
    count = F.size(K.decode_batches("data", damage="truncate"))
    found = {row.name: row.records for row in frame.select("name", count.alias("records")).collect()}
    assert found["null"] in (None, -1)
    assert found["empty"] == 0
    assert 0 < found["cut"] < found["whole"] <= found["damaged"] < 2 * found["whole"]
    with pytest.raises(Exception, match=rf"at byte {len(whole)}: found a bad CRC.*truncate"):
        frame.select(F.explode(K.decode_batches("data"))).count()
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="expected one of fail, truncate"):
        K.decode_batches("data", damage="ignore")


def batches_of(count: int, **given: Any) -> list[bytes]:
    """As many batches of one record, offsets from 0 on."""
    rows = [pa.RecordBatch.from_pydict({"value": [b"v%d" % n], "timestamp": [START_MS]}) for n in range(count)]
    return [next(iter(write_batches(row, base_offset=n, **given))).data for n, row in enumerate(rows)]


def with_size(batch: bytes, size: int) -> bytes:
    return batch[:8] + (size - 12).to_bytes(4, "big", signed=True) + batch[12:]


def test_a_damaged_size_hides_no_batches(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    whole = batches_of(100)
    position = sum(map(len, whole[:50]))
    bad = b"".join([*whole[:50], with_size(whole[50], 1 << 24), *whole[51:]])
    frame = spark.createDataFrame([(bytearray(bad),)], "data binary")
    cut = frame.select(F.size(K.decode_batches("data", damage="truncate")).alias("records")).first()
    assert cut.records == 50
    follows = position + len(whole[50])
    with pytest.raises(Exception, match=rf"at byte {position}: found a batch that claims .* begins at byte {follows}"):
        frame.select(K.decode_batches("data")).collect()


@pytest.mark.parametrize(("magic", "codec"), [(2, 0), (2, 4), (1, 0), (1, 1), (0, 0), (0, 1)])
def test_each_bit_of_a_size_is_told(magic: int, codec: int) -> None:
    row = [SimpleRecord(START_MS, b"k", b"v" * 20)]
    whole = [build_batch(row * 3, magic=magic, codec=codec, base_offset=5 * n) for n in range(6)]
    data = b"".join(whole)
    for place in range(len(whole)):
        position = sum(map(len, whole[:place]))
        for bit in range(32):
            bad = bytearray(data)
            bad[position + 8 + bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptRecordException) as caught:
                K._Decode(False)(pa.array([bytes(bad)]))
            assert caught.value.position == position, (place, bit)


HEADERLESS = b'{"id": 1, "customer": "an ordinary JSON value, no batch"}'


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (HEADERLESS, "an unknown magic"),
        (HEADERLESS[:17], "an unknown magic"),
        (b"hello " * 100, "an unknown magic"),
        (bytes(200), "an impossible batch size"),
        (b"\x80" + bytes(10), "a negative offset"),
        *[(HEADERLESS[:length], "an impossible batch size") for length in range(9, 17)],
        (b"a\tb\n\r\n\r\n\t\t\t\t", "an impossible batch size"),
        (bytes(12), "an impossible batch size"),
        (bytes(8) + b"\x80", "an impossible batch size"),
        (bytes(8) + (25 - 12).to_bytes(4, "big"), "an impossible batch size"),
        (bytes(8) + ((128 << 20) - 12 + 1).to_bytes(4, "big"), "an impossible batch size"),
        (with_size(batches_of(1)[0], -1), "an impossible batch size"),
        (with_size(batches_of(1)[0], 60), "an impossible batch size"),
        (with_size(batches_of(1)[0], (1 << 31) + 11), "an impossible batch size"),
        (with_size(batches_of(1)[0], 1 << 20), "a batch that claims 1048576 bytes.* is right for these"),
        (with_size(batches_of(1, codec=4)[0], 1 << 20), "a batch that claims .* is right for these"),
    ],
)
def test_what_begins_as_no_batch_is_no_batch_that_is_cut_off(data: bytes, text: str) -> None:
    good = batches_of(3)
    for before in ([], good):
        row = pa.array([b"".join([*before, data])])
        assert len(K._Decode(True)(row)[0]) == len(before)
        with pytest.raises(CorruptRecordException, match=f"at byte {sum(map(len, before))}: found {text}") as caught:
            K._Decode(False)(row)
        assert caught.value.position == sum(map(len, before))


@pytest.mark.parametrize("size", [26, 61, 127, 128, 255, 256, 1 << 24, 128 << 20])
def test_what_may_be_a_header_is_one_that_is_cut_off(size: int) -> None:
    head = (b"\x7f" + b"\xff" * 6 + b"\xfe") + (size - 12).to_bytes(4, "big") + b"\xff" * 4
    rows = K._Decode(False)(pa.array([head[:end] for end in range(len(head) + 1)]))
    assert rows.to_pylist() == [[]] * 17
    assert K._Decode(False)(pa.array([b"text"])).to_pylist() == [[]]


def test_a_response_may_end_in_a_batch_that_is_cut_off_anywhere(folder: Path) -> None:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    ends = [header.position + header.size for header in MemoryRecords(data).batches()]
    rows = K._Decode(False)(pa.array([data[:end] for end in range(len(data) + 1)]))
    counts = [len(row) for row in rows]
    assert counts == sorted(counts)
    assert counts[-1] == 46
    assert [end for end in range(1, len(data) + 1) if counts[end] > counts[end - 1]] == ends[:-1]


def test_batches_in_the_values_of_a_batch_that_is_cut_off() -> None:
    inner = b"".join(batches_of(20))
    [outer] = write_batches(
        pa.RecordBatch.from_pydict({"value": [inner, inner], "timestamp": [START_MS] * 2}), base_offset=100
    )
    assert K._Decode(False)(pa.array([outer.data[:-100]])).to_pylist() == [[]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_encode_batch_is_the_inverse(spark: Any, codec: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = [(n % 2, b"k%d" % n, b"v" * n if n else None, [("h", b"x")] * (n % 2), START_MS + n) for n in range(20)]
    frame = spark.createDataFrame(
        rows, "side int, key binary, value binary, headers array<struct<key:string,value:binary>>, ms bigint"
    )
    record = F.struct("value", "key", "headers", F.timestamp_millis("ms").alias("timestamp"))
    arrays = frame.groupBy("side").agg(
        F.sort_array(F.collect_list(F.struct("ms", record.alias("record")))).alias("all")
    )
    made = arrays.select(
        "side", K.encode_batch(F.col("all.record"), F.col("side") * 100, codec).alias("batch")
    ).collect()
    for side, batch in made:
        data = bytes(batch)
        [header] = MemoryRecords(data).batches()
        read = [(each.key, each.value, list(each.headers), each.timestamp) for each in iterate(data, header)]
        assert read == [row[1:] for row in rows if row[0] == side]
    back = spark.createDataFrame(made).select(F.inline(K.decode_batches("batch")))
    assert sorted(row.offset for row in back.collect()) == [*range(10), *range(100, 110)]
    none = frame.select(K.encode_batch(F.array().cast("array<struct<value:binary>>"), 0).alias("b")).first()
    assert none.b is None


def test_encode_batch_keeps_offsets_and_refuses_what_it_does_not_know(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.range(3).select((F.col("id") * 7 + 5).alias("offset"), F.lit(b"v").alias("value"))
    array = rows.agg(F.sort_array(F.collect_list(F.struct("offset", "value"))).alias("r"))
    back = array.select(F.inline(K.decode_batches(K.encode_batch("r"))))
    assert [row.offset for row in back.collect()] == [5, 12, 19]
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="compression is 'brotli'"):
        K.encode_batch("r", compression="brotli")
    with pytest.raises(Exception, match="records are structs of id"):
        spark.range(1).select(K.encode_batch(F.array(F.struct("id")))).collect()


LAST = (1 << 63) - 2
VALUE = pa.struct([("value", pa.binary())])
PLACED = pa.struct([("value", pa.binary()), ("offset", pa.int64())])


def encoded(records: Any, kind: pa.DataType, base: int | None = 0) -> list[dict[str, Any]]:
    made = K._Encode(0, "r")(pa.array([records], pa.list_(kind)), pa.array([base], pa.int64()))
    found: list[dict[str, Any]] = K._Decode(False)(made).to_pylist()[0]
    return found


def test_encode_batch_of_the_highest_offsets() -> None:
    assert [row["offset"] for row in encoded([{"value": b"x"}] * 3, VALUE, LAST - 2)] == [LAST - 2, LAST - 1, LAST]
    assert [row["offset"] for row in encoded([{"value": b"x", "offset": LAST}], PLACED)] == [LAST]


@pytest.mark.parametrize(
    ("records", "kind", "base", "text"),
    [
        ([{"value": b"x"}] * 3, VALUE, LAST - 1, "base_offset: found 3 records with offsets .*expected 0 to"),
        ([{"value": b"x"}] * 3, VALUE, -5, "base_offset: found 3 records with offsets -5 to -3"),
        ([{"value": b"x"}], VALUE, None, "base_offset: found null"),
        (
            [{"value": b"x", "offset": n} for n in (-3, -2)],
            PLACED,
            0,
            r"r\.offset: found 2 records with .* -3 to -2",
        ),
        ([{"value": b"x", "offset": LAST + 1}], PLACED, 0, r"r\.offset: found 1 records"),
        ([{"value": b"x", "offset": n} for n in (5, 5)], PLACED, 0, "Illegal offset in row 1"),
        ([{"value": b"x", "offset": n} for n in (1, None)], PLACED, 0, r"r\.offset: found null at position 1"),
        ([{"value": b"x"}, None], VALUE, 0, "r: found null at position 1 of the array, expected records"),
        ([{"value": 1}], pa.struct([("value", pa.int32())]), 0, r"r\.value: found int32, expected binary or string"),
        ([{"value": b"x", "key": 1.5}], pa.struct([*VALUE, ("key", pa.float64())]), 0, r"r\.key: found double"),
        ([{"value": b"x", "timestamp": "now"}], pa.struct([*VALUE, ("timestamp", pa.string())]), 0, r"r\.timestamp: f"),
        ([{"value": b"x", "offset": "1"}], pa.struct([*VALUE, ("offset", pa.string())]), 0, r"r\.offset: found string"),
        (
            [{"value": b"x", "headers": ["h"]}],
            pa.struct([*VALUE, ("headers", pa.list_(pa.string()))]),
            0,
            r"r\.headers",
        ),
    ],
)
def test_encode_batch_makes_no_batch_that_may_not_be(records: Any, kind: Any, base: int | None, text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        encoded(records, kind, base)


def test_fields_that_are_null_alone(spark: Any) -> None:
    frame = spark.sql(
        "select array(struct('v' as value, null as key, null as timestamp, null as headers)) r, null base, "
        "cast(null as array<struct<value:binary>>) none"
    )
    back = frame.select(K.encode_batch("none", "base").alias("none"), K.decode_batches(K.encode_batch("r")).alias("r"))
    row = back.first()
    assert row.none is None
    assert [(each.key, bytes(each.value), each.headers) for each in row.r] == [(None, b"v", None)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: K.encode_batch("text"), "text: found string, expected an array of structs"),
        (lambda: K.encode_batch("ints"), "ints: found list<.*int32.*>, expected an array of structs"),
        (lambda: K.crc32c("number"), "number: found int32, expected binary or string"),
        (lambda: K.murmur2_partition("number", 4), "number: found int32, expected binary or string"),
        (lambda: K.decode_batches("text"), "text: found string, expected binary"),
    ],
)
def test_columns_of_other_types(spark: Any, make: Any, text: str) -> None:
    frame = spark.sql("select 'x' text, 1 number, array(1, 2) ints")
    with pytest.raises(Exception, match=text):
        frame.select(make()).collect()


def test_checksums_and_partitions(spark: Any) -> None:
    keys = [None, b"", *(b"key-%d" % n * (n % 40) for n in range(500))]
    frame = spark.createDataFrame([(key and bytearray(key) if key else key,) for key in keys], "key binary")
    rows = frame.repartition(2).select("key", K.crc32c("key").alias("crc"), K.murmur2_partition("key", 17).alias("p"))
    assert rows.dtypes[1:] == [("crc", "bigint"), ("p", "int")]
    text = spark.sql("select '123456789' text, null none").select(
        K.crc32c("text").alias("a"), K.crc32c("none").alias("b")
    )
    assert tuple(text.first()) == (0xE3069283, None)
    for key, crc, partition in rows.collect():
        assert crc == (None if key is None else crc32c(bytes(key)))
        assert partition == (None if key is None else partition_for_key(bytes(key), 17))
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="expected a number from 1 to 2147483647"):
        K.murmur2_partition("key", 0)


def test_headers(spark: Any) -> None:
    rows = [(None,), ([],), ([("a", b"1"), ("b", b"2"), ("a", b"3")],), ([("a", None)],)]
    frame = spark.createDataFrame(rows, "headers array<struct<key:string,value:binary>>")
    found = frame.select(K.header("headers", "a").alias("last"), K.header_values("headers", "a").alias("all")).collect()
    assert [row.last and bytes(row.last) for row in found] == [None, None, b"3", None]
    assert [row.all for row in found][:2] == [None, []]
    assert [bytes(value) for value in found[2].all] == [b"1", b"3"]
