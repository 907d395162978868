"""`append_many` and related functions: if one record of a list is refused, nothing of the list is appended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    RecordTooLargeException,
    RecordValidationException,
)
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.doors import DOORS, open_door

NOW_MS = 1_700_000_000_000
SMALL = {"max.message.bytes": "1000"}
HOUR_MS = 3_600_000
Way = Callable[[kafkalog.Partition, list[Any]], object]


def in_transaction(log: kafkalog.Partition, rows: list[Any]) -> None:
    with log.transaction("job") as transaction:
        transaction.append_many(rows)


WAYS: dict[str, Way] = {
    "append_many": lambda log, rows: log.append_many(rows),
    "of a tuple": lambda log, rows: log.append_many(tuple(rows)),
    "writer": lambda log, rows: log.writer("w").append_many(rows),
    "writer, numbered": lambda log, rows: log.writer("w").append_many(rows, sequence=0),
    "transaction": in_transaction,
    "append_columns": lambda log, rows: log.append_columns(
        [row[0] for row in rows], keys=[row[1] for row in rows], timestamps=[row[3] for row in rows]
    ),
    "append_columns of numpy": lambda log, rows: log.append_columns(
        [row[0] for row in rows], keys=[row[1] for row in rows], timestamps=np.array([row[3] for row in rows])
    ),
}


def rows_with(bad: tuple[Any, ...], place: int, count: int) -> list[Any]:
    rows: list[Any] = [(b"x" * 300, b"k", (), NOW_MS)] * count
    rows[place] = bad
    return rows


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("bad", "config", "error"),
    [
        ((b"x" * 1000, b"k", (), NOW_MS), SMALL, RecordTooLargeException),
        ((b"x" * 9, None, (), NOW_MS), {**SMALL, "cleanup.policy": "compact"}, RecordValidationException),
        ((b"x" * 9, b"k", (), NOW_MS + 2 * HOUR_MS), SMALL, RecordValidationException),
        (
            (b"x" * 9, b"k", (), NOW_MS - 2 * HOUR_MS),
            {**SMALL, "message.timestamp.before.max.ms": str(HOUR_MS)},
            RecordValidationException,
        ),
    ],
    ids=["too-large", "no-key", "too-late", "too-early"],
)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_one_bad_record_refuses_the_list(
    door: str,
    tmp_path: Path,
    way: str,
    bad: Any,
    config: dict[str, str],
    error: type[Exception],
    codec: str,
) -> None:
    if codec != "none" and error is RecordTooLargeException:
        bad = (os.urandom(1100), *bad[1:])
    clock = ManualClock(NOW_MS)
    with open_door(door, tmp_path, "t-0", config=config, clock=clock, compression=codec) as log:
        log.append(b"before", key=b"k")
        for place, count in ((1, 2), (3, 4), (40, 41), (17, 60)):
            named = f"record {place}:" if error is RecordTooLargeException else None
            with pytest.raises(error, match=named) as caught:
                WAYS[way](log, rows_with(bad, place, count))
            assert isinstance(caught.value, KafkalogError)
            assert len(caught.value.appended) == 0
        # The coordinator has heard of the partition before, and ends each transaction with a marker.
        markers = 4 if way == "transaction" else 0
        assert log.end_offset == 1 + markers
        assert [record.value for record in log] == [b"before"]
        assert log.writer("w").next_sequence == 0
        log.append(b"after", key=b"k")
        assert [record.value for record in log.records(isolation="read_committed")] == [b"before", b"after"]


@pytest.mark.parametrize("door", DOORS)
def test_a_list_that_fits_is_appended_in_several_batches(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0", config={**SMALL, "cleanup.policy": "compact"}) as log:
        values = [b"%d" % number * 50 for number in range(100)]
        assert log.append_many([(value, b"k") for value in values]) == range(100)
        assert [record.value for record in log] == values
        with log.reader() as reader:
            assert sum(len(chunk.headers) for chunk in reader) > 10
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("door", DOORS)
def test_an_iterator_says_what_was_appended(door: str, tmp_path: Path) -> None:
    def rows(last: object) -> Iterator[object]:
        yield from [b"x"] * 100_007
        yield last

    with open_door(door, tmp_path, "t-0", config={"max.message.bytes": "100000"}) as log:
        with pytest.raises(RecordTooLargeException, match="record 100007: ") as caught:
            log.append_many(rows(b"x" * 100_000))
        assert caught.value.appended == range(100_000)
        assert log.end_offset == 100_000
        with pytest.raises(IllegalArgumentException, match="record 100007: ") as refused:
            log.append_many(rows("text"))
        assert refused.value.appended == range(100_000, 200_000)
        assert log.end_offset == 200_000

        def failing() -> Iterator[bytes]:
            yield from [b"x"] * 60_000
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            log.append_many(failing())
        assert log.end_offset == 250_000


def test_a_disk_that_fills_up_between_two_batches(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    log = kafkalog.open_log(tmp_path, "t-0", config=SMALL, files=files)
    log.append(b"x")
    files.fault = Fault(files.count + 2, kinds={"write"}, paths=lambda path: path.endswith(".log"))
    with pytest.raises(kafkalog.errors.KafkaStorageException) as caught:
        log.append_many([b"x" * 600] * 10)
    assert caught.value.appended == range(1, log.end_offset)
    assert 1 <= log.end_offset < 11
    with pytest.raises(kafkalog.errors.KafkaStorageException):
        log.close()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("codec", ["snappy", "lz4", "gzip", "zstd"])
@pytest.mark.parametrize("limit", ["1048588", "2000", "700"])
@pytest.mark.parametrize("by", ["writer", "topic"])
def test_what_compression_makes_larger_is_divided(door: str, tmp_path: Path, codec: str, limit: str, by: str) -> None:
    """Noise grows a little under every codec; a producer divides such a batch too."""
    size = max(100, int(limit) // 20)
    values = [os.urandom(size) for _ in range(50)]
    config = {"max.message.bytes": limit}
    if by == "topic":
        config["compression.type"] = codec
    compression = codec if by == "writer" else "none"
    with open_door(door, tmp_path, "t-0", config=config, compression=compression) as log:
        assert log.append_many(values) == range(50)
        assert log.append_many(values[:4]) == range(50, 54)
        assert log.append_columns(values) == range(54, 104)
        assert [record.value for record in log] == values + values[:4] + values
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("door", DOORS)
def test_segments_smaller_than_a_message_may_be(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0", config={"internal.segment.bytes": "1000"}) as log:
        assert log.append_many([b"x" * 100] * 50) == range(50)
        with pytest.raises(kafkalog.errors.RecordBatchTooLargeException, match="record 1: "):
            log.append_many([b"x", b"x" * 1000])
        assert log.end_offset == 50


@pytest.mark.parametrize("door", DOORS)
def test_who_gives_the_records_may_not_use_the_writer(door: str, tmp_path: Path) -> None:
    """The number of the first is taken before they are read: the log dropped them as known ones, and said nothing."""
    with open_door(door, tmp_path, "t-0") as log:
        writer = log.writer("w")
        again = log.writer("w")
        refused = 0

        def page(count: int) -> Iterator[bytes]:
            nonlocal refused
            for number in range(count):
                for other in (writer, again):
                    with pytest.raises(IllegalStateException, match=r"writer 'w' is in use.*list of the records"):
                        other.append(b"index")
                    refused += 1
                assert log.writer("another").append(b"aside") is not None
                log.append(b"free")
                yield b"page %d" % number

        writer.append_many(page(3))
        assert (refused, writer.next_sequence) == (6, 3)
        pages = [record.value for record in log.records() if record.value not in (b"aside", b"free")]
        assert pages == [b"page 0", b"page 1", b"page 2"]
        assert writer.append(b"index") is not None  # a refused append leaves nothing

        def broken() -> Iterator[bytes]:
            yield b"never"
            writer.append(b"never either")

        with pytest.raises(IllegalStateException):
            writer.append_many(broken())
        assert writer.next_sequence == 4
        assert writer.append(b"after") is not None


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("use", ["append", "append_many", "commit", "abort"])
def test_who_gives_the_records_may_not_use_the_transaction(door: str, tmp_path: Path, use: str) -> None:
    with open_door(door, tmp_path, "t-0") as log:
        with log.transaction("t") as txn:

            def page() -> Iterator[bytes]:
                with pytest.raises(IllegalStateException, match="the transaction of 't' is in use"):
                    getattr(txn, use)(*{"append": (b"index",), "append_many": ([b"index"],)}.get(use, ()))
                yield b"page"

            txn.append_many(page())
            txn.append(b"index")
        assert [r.value for r in log.records(isolation="read_committed")] == [b"page", b"index"]
        assert log.last_stable_offset == log.end_offset
    assert verify(tmp_path).ok
