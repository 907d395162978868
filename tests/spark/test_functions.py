"""The functions for any DataFrame, in a real local Spark, against the engine's own answers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.crc32c import crc32c
from kafkalog._native.partitioner import partition_for_key
from kafkalog.format.batch import MemoryRecords
from kafkalog.format.records import iterate

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

    from kafkalog.spark import functions as K  # noqa: N812

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

    from kafkalog.spark import functions as K  # noqa: N812

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


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_encode_batch_is_the_inverse(spark: Any, codec: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from kafkalog.spark import functions as K  # noqa: N812

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

    from kafkalog.spark import functions as K  # noqa: N812

    rows = spark.range(3).select((F.col("id") * 7 + 5).alias("offset"), F.lit(b"v").alias("value"))
    array = rows.agg(F.sort_array(F.collect_list(F.struct("offset", "value"))).alias("r"))
    back = array.select(F.inline(K.decode_batches(K.encode_batch("r"))))
    assert [row.offset for row in back.collect()] == [5, 12, 19]
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="compression is 'brotli'"):
        K.encode_batch("r", compression="brotli")
    with pytest.raises(Exception, match="records are structs of id"):
        spark.range(1).select(K.encode_batch(F.array(F.struct("id")))).collect()


def test_checksums_and_partitions(spark: Any) -> None:
    from kafkalog.spark import functions as K  # noqa: N812

    keys = [None, b"", *(b"key-%d" % n * (n % 40) for n in range(500))]
    frame = spark.createDataFrame([(key and bytearray(key) if key else key,) for key in keys], "key binary")
    rows = frame.repartition(2).select("key", K.crc32c("key").alias("crc"), K.murmur2_partition("key", 17).alias("p"))
    assert rows.dtypes[1:] == [("crc", "bigint"), ("p", "int")]
    for key, crc, partition in rows.collect():
        assert crc == (None if key is None else crc32c(bytes(key)))
        assert partition == (None if key is None else partition_for_key(bytes(key), 17))
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="at least one partition"):
        K.murmur2_partition("key", 0)


def test_headers(spark: Any) -> None:
    from kafkalog.spark import functions as K  # noqa: N812

    rows = [(None,), ([],), ([("a", b"1"), ("b", b"2"), ("a", b"3")],), ([("a", None)],)]
    frame = spark.createDataFrame(rows, "headers array<struct<key:string,value:binary>>")
    found = frame.select(K.header("headers", "a").alias("last"), K.header_values("headers", "a").alias("all")).collect()
    assert [row.last and bytes(row.last) for row in found] == [None, None, b"3", None]
    assert [row.all for row in found][:2] == [None, []]
    assert [bytes(value) for value in found[2].all] == [b"1", b"3"]
