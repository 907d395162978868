"""Finding records by what is in them: their key, a regular expression over the value, a header.

Batches are decoded to Arrow columns natively and matched column by column (pyarrow.compute), so that only a record that
matches becomes a Python object.  Needs pyarrow, which is imported where a Match is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kafkalog._face.times import ALL_TIMES, Times
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.errors import IllegalArgumentException
from kafkalog.records import Record

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import ChunkReader

__all__ = ["Condition", "Match", "matching", "records_of"]

COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch")
BATCH_ROWS = 65_536
BATCH_BYTES = 32 << 20


class Condition(NamedTuple):
    """What a record's offset, or its timestamp in milliseconds, must be; of pyarrow.compute's functions."""

    column: Literal["offset", "timestamp"]
    comparison: Literal["equal", "greater", "greater_equal", "less", "less_equal"]
    value: int


class Match:
    """What a record must be: its offset and timestamp within all `conditions`, its key one of `keys` (None in it: a
    record without a key), its value a match of each of `patterns`, and for each of `headers` one of that name and value
    (None: of any value).  What is empty asks nothing.

    `patterns` are RE2's regular expressions, over bytes: no look-around, `.` is a byte, and UTF-8 text stands for its
    bytes.  A record without a value matches no pattern.  IllegalArgumentException for a bad pattern,
    MissingPackageException without pyarrow.
    """

    def __init__(
        self,
        keys: Sequence[bytes | None] = (),
        patterns: Sequence[str] = (),
        headers: Sequence[tuple[str, bytes | None]] = (),
        conditions: Sequence[Condition] = (),
    ) -> None:
        self._pa = pa = need_pyarrow()
        import pyarrow.compute as compute

        self._compute = compute
        self._keys = pa.array(keys, pa.binary()) if keys else None
        self._headers = tuple(headers)
        self._conditions = tuple(conditions)
        self._patterns = tuple(patterns)
        for pattern in patterns:
            try:
                compute.match_substring_regex(pa.array([b""], pa.binary()), pattern)
            except pa.ArrowInvalid as error:
                what = str(error).removeprefix("Invalid regular expression: ")
                raise IllegalArgumentException(
                    f"{pattern!r} is no regular expression: {what}",
                    hint="RE2's syntax, without look-around; \\Q...\\E takes text as it is",
                ) from None

    def rows(self, batch: Any) -> Any:
        """Which rows of a record batch (of COLUMNS) match: a boolean array."""
        compute = self._compute
        mask: Any = None
        parts = []
        for column, comparison, value in self._conditions:
            numbers = batch.column(column)
            numbers = numbers.view("int64") if column == "timestamp" else numbers
            parts.append(getattr(compute, comparison)(numbers, self._pa.scalar(value, self._pa.int64())))
        if self._keys is not None:
            parts.append(compute.is_in(batch.column("key"), value_set=self._keys))
        for pattern in self._patterns:
            parts.append(compute.match_substring_regex(batch.column("value"), pattern))
        for name, wanted in self._headers:
            parts.append(self._having(batch.column("headers"), name, wanted))
        for part in parts:
            part = compute.fill_null(part, False)
            mask = part if mask is None else compute.and_(mask, part)
        return self._pa.array(np.ones(batch.num_rows, bool)) if mask is None else mask

    def _having(self, column: Any, name: str, value: bytes | None) -> Any:
        pa, compute = self._pa, self._compute
        entries = column.flatten()
        hit = compute.equal(entries.field(0), pa.scalar(name, pa.string()))
        if value is not None:
            hit = compute.and_(hit, compute.fill_null(compute.equal(entries.field(1), pa.scalar(value)), False))
        rows = compute.list_parent_indices(column).filter(hit)
        having = np.zeros(len(column), bool)
        having[rows.to_numpy(zero_copy_only=False)] = True
        return pa.array(having)


def matching(reader: ChunkReader, match: Match, times: Times = ALL_TIMES) -> Iterator[Record]:
    """The records that match, with one of these timestamps, from the reader's offset to its end; at damage those before
    it, then the error."""
    from kafkalog._face import arrow

    topic, partition = reader.source.topic_partition
    for batch in arrow.record_batches(reader, COLUMNS, BATCH_ROWS, batch_bytes=BATCH_BYTES, limits=times.limits):
        found = batch.filter(match.rows(batch))
        if not found.num_rows:
            continue
        yield from records_of(found, topic, partition)


def records_of(batch: Any, topic: str, partition: int) -> Iterator[Record]:
    """The rows of a record batch (of COLUMNS) as Records."""
    columns = [batch.column(name) for name in COLUMNS]
    columns[1] = columns[1].view("int64")  # Arrow has a type of its own for times, a Record a number
    lists = [column.to_pylist() for column in columns]
    for offset, timestamp, kind, key, value, headers, epoch in zip(*lists, strict=True):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield Record(topic, partition, epoch, offset, timestamp, kind, key, value, pairs)


def __dir__() -> list[str]:
    return __all__
