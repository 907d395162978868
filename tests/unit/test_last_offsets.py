"""LastOffsets in place of an offset map: the pass has the same result; and a number for each row of a column."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog._native.codec.column_hashes import crc32c_column, partition_column
from kafkalog._native.codec.crc32c import crc32c
from kafkalog._native.codec.offset_map import LastOffsets
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.compact import Cleanable, PassOptions, cleanable, compact

PARTITION = TopicPartition("t", 0)
CONFIG = {"cleanup.policy": "compact", "internal.segment.bytes": "4000"}


def fill(root: Path, codec: str) -> None:
    chosen = random.Random(1)
    sizes = {"internal.segment.bytes": CONFIG["internal.segment.bytes"]}
    with kafkalog.open_log(root, PARTITION, config=sizes, compression=codec) as log:
        for _ in range(60):
            log.append_many([(b"v" * 30, b"k%d" % chosen.randrange(90)) for _ in range(9)] + [(b"no key", None)])
            log.append(None, key=b"k%d" % chosen.randrange(90))


def lasts_of(root: Path, found: Cleanable, end: int) -> LastOffsets:
    last = {}
    with kafkalog.open_log(root, PARTITION, read_only=True) as log:
        for record in log:
            if record.offset < end and record.key is not None:
                last[record.key] = record.offset
    bits = np.zeros(end - found.log_start_offset, np.uint8)
    bits[[*last.values()]] = 1
    lasts = LastOffsets(0)
    lasts.use(np.packbits(bits, bitorder="little"), found.log_start_offset, end)
    return lasts


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_pass_by_bits_is_a_pass_by_keys(tmp_path: Path, codec: str) -> None:
    mine, its = tmp_path / "mine", tmp_path / "its"
    fill(mine, codec)
    shutil.copytree(mine, its)
    settings = TopicSettings(str(mine), CONFIG)
    found = cleanable(str(mine), PARTITION, settings, PassOptions())
    assert found.first_dirty_offset == found.log_start_offset == 0 < found.first_uncleanable_offset
    lasts = lasts_of(mine, found, found.first_uncleanable_offset)
    results = []
    for root, how in ((mine, PassOptions(lasts=lasts)), (its, PassOptions())):
        how = how._replace(clock=ManualClock(1_900_000_000_000))
        results += compact(str(root), {PARTITION: str(root / "t-0")}, settings, how, act=True)
    for result in results:
        assert result.error is None
        assert result.stats is not None
    assert results[0].stats.superseded == results[1].stats.superseded > 100
    assert results[0].stats.without_key == results[1].stats.without_key > 40
    assert results[0].stats.bytes_read < results[1].stats.bytes_read
    for path in (its / "t-0").iterdir():
        assert (mine / "t-0" / path.name).read_bytes() == path.read_bytes(), path.name


def test_bits_beyond_what_may_be_cleaned_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, "none")
    settings = TopicSettings(str(tmp_path), CONFIG)
    found = cleanable(str(tmp_path), PARTITION, settings, PassOptions())
    lasts = lasts_of(tmp_path, found, found.first_uncleanable_offset + 1)
    (result,) = compact(str(tmp_path), {PARTITION: ""}, settings, PassOptions(lasts=lasts), act=True)
    assert isinstance(result.error, IllegalArgumentException)
    assert "last offsets are known up to" in str(result.error)
    with pytest.raises(ValueError, match="bits: found 1 bytes"):
        LastOffsets(0).use(b"x", 0, 9)
    for first, end in ((5, 4), (-1, 4), (0, -(1 << 63))):
        with pytest.raises(ValueError, match=f"offsets: found {first} to {end}"):
            LastOffsets(0).use(b"x", first, end)


@pytest.mark.parametrize("few", range(9))
def test_bits_of_as_many_offsets_as_there_can_be(few: int) -> None:
    lasts = LastOffsets(0)
    for bits in (b"", b"x"):
        with pytest.raises(ValueError, match=f"bits: found {len(bits)} bytes"):
            lasts.use(bits, few, LONG_MAX)
    lasts.use(b"\x01", LONG_MAX - 8, LONG_MAX)
    own = np.array([LONG_MIN, -1, LONG_MAX - 9, LONG_MAX - 8, LONG_MAX - 7, LONG_MAX], np.int64)
    found = np.frombuffer(lasts.get_many(None, None, own=own), np.int64)
    assert (found - own).tolist() == [0, 0, 0, 0, 1, 0]


def test_a_number_for_each_row() -> None:
    rows = [b"", b"a", b"customer-7" * 100, b"\xff\x00"]
    data = b"".join(rows)
    places = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    assert crc32c_column(data, places).tolist() == [crc32c(row) for row in rows]
    assert partition_column(data, places, 9).tolist() == [partition_for_key(row, 9) for row in rows]
    for odd in ([0, 5, 3], [-1, 2], [0, len(data) + 1]):
        with pytest.raises(IndexError):
            crc32c_column(data, np.array(odd, np.int32))
    with pytest.raises(IndexError):
        crc32c_column(data, b"")
    with pytest.raises(IndexError, match="expected at least 1"):
        partition_column(data, places, 0)
