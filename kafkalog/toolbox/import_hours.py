"""Imports what `export_hours` wrote into a partition: every record at its offset, in new batches.

A batch has one type of timestamp, and records with log append time have that of their batch; so another batch begins
if it changes.  The batches are appended as a follower appends its leader's: they keep their offsets.

A new batch gets a new checksum, which is right whatever the batch holds.  So no byte of a file is used before the whole
file matches the checksum of its note; Parquet's own checksums of pages do not cover footers and headers of pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog._face.opening import open_log
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import codecs
from kafkalog.engine.format.arrow import write_batches
from kafkalog.engine.format.batch import CREATE_TIME, LOG_APPEND_TIME
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkalogError, NoSuchFileException
from kafkalog.toolbox.export_hours import HourFile, layout_of

__all__ = ["Imported", "has_records", "import_partition"]

BATCH_BYTES = 256 << 10
READ_ROWS = 16_384
READ_BYTES = 4 << 20  # read at once from a row group, estimated by the average row
CHECK_BYTES = 1 << 20
EPOCH = 0


@dataclass
class Imported:
    """The result for one partition: what was appended now, and where its log starts and ends."""

    partition: TopicPartition
    records: int = 0
    log_start_offset: int = -1
    end_offset: int = -1
    bytes: int = 0
    error: KafkalogError | None = None


def import_partition(
    source: str,
    written: Sequence[HourFile],
    log_dir: str,
    partition: TopicPartition,
    config: Mapping[str, str],
    compression: str | None,
    *,
    resume: bool = False,
) -> Imported:
    """Appends the records of an export's files that come after a partition's end.

    The partition is created if it does not exist.

    Args:
        source: The directory of the export.
        written: The files of the partition, from `export_hours.exported_files`.
        log_dir: The log directory.
        partition: The partition.
        config: Settings of the topic.
        compression: The codec of the new batches; None uses the topic's setting.
        resume: Continues in a partition that has records.

    Returns:
        An `Imported`.

    Raises:
        IllegalArgumentException: The partition has records, and `resume` is False; or an offset occurs twice.
        CorruptRecordException: A file is not what was exported.
        NoSuchFileException: A file of the export no longer exists.
        KafkalogError: The log cannot be opened.

    Example:
        >>> from kafkalog.toolbox.export_hours import Layout, exported_files, settle_layout
        >>> from kafkalog.toolbox.import_hours import import_partition
        >>> orders = kafkalog.TopicPartition("orders", 0)
        >>> settle_layout("exported", Layout())  # an export without records
        >>> import_partition("exported", exported_files("exported", orders), "shop", orders, {}, None).records
        0
    """
    result = Imported(partition)
    columns = layout_of(source).columns
    settings = TopicSettings(log_dir, config).of(partition.topic)
    with open_log(log_dir, partition, config=settings, abort_left_open=False, on_damage="raise", take_over=True) as log:
        engine = log.engine
        assert engine is not None
        if log.end_offset > log.log_start_offset and not resume:
            raise has_records(partition, log.end_offset)
        codec = codecs.codec_id(compression or _stored(settings.compression_type))
        for batch in merged(source, list(written), log.end_offset, columns):
            first = batch.column("offset")[0].as_py()
            if log.end_offset == log.log_start_offset == 0 < first:
                engine.truncate_fully_and_start_at(first)
            for made in encoded(batch, codec):
                engine.append_as_follower(made, EPOCH)
                result.bytes += len(made)
            result.records += batch.num_rows
        log.flush()
        result.log_start_offset, result.end_offset = log.log_start_offset, log.end_offset
    return result


def has_records(partition: TopicPartition, end_offset: int) -> IllegalArgumentException:
    """Returns the error for importing into a partition that is not empty.

    Args:
        partition: The partition.
        end_offset: Its log end offset.

    Returns:
        An IllegalArgumentException.

    Example:
        >>> from kafkalog.toolbox.import_hours import has_records
        >>> print(has_records(kafkalog.TopicPartition("orders", 0), 5).message)
        orders-0 already has records up to offset 4
    """
    return IllegalArgumentException(
        f"{partition} already has records up to offset {end_offset - 1}",
        hint="use resume to append the records after them",
    )


def _stored(compression_type: str) -> str:
    return "none" if compression_type in ("producer", "uncompressed") else compression_type


def encoded(batch: Any, codec: int) -> Iterator[bytes]:
    """Yields Kafka's batches for a record batch with an export's columns."""
    types = batch.column("timestampType").to_numpy()
    times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64())
    stamps = times.to_numpy()
    breaks = (types[1:] != types[:-1]) | ((types[1:] == 1) & (stamps[1:] != stamps[:-1]))
    bounds = [0, *(np.flatnonzero(breaks) + 1), len(types)]
    names = [name for name in ("key", "value", "headers", "offset") if name in batch.schema.names]
    given = pa.RecordBatch.from_arrays([times, *map(batch.column, names)], names=["timestamp", *names])
    for start, end in pairwise(bounds):
        appended = int(types[start]) == 1
        for made in write_batches(
            given.slice(start, end - start),
            batch_bytes_max=BATCH_BYTES,
            codec=codec,
            timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
            log_append_time=int(stamps[start]) if appended else -1,
            partition_leader_epoch=EPOCH,
        ):
            yield made.data


# --- the files -------------------------------------------------------------------------------------------


def check_file(path: str, written: HourFile, files: Files = OS_FILES) -> None:
    """Checks the bytes of a file.  Raises CorruptRecordException if they changed, and NoSuchFileException."""
    hint = "remove the note in _kafkalog that names it and export again; or restore the file"
    try:
        with files.open(path, writable=False) as file:
            position = digest = 0
            while data := file.pread(CHECK_BYTES, position):
                digest = crc32c(data, digest)
                position += len(data)
    except FileNotFoundError:
        raise NoSuchFileException("a file of the export no longer exists", path=path, hint=hint) from None
    if (position, digest) != (written.bytes, written.crc32c):
        raise CorruptRecordException(
            f"the file has {position} bytes with the checksum {digest:#010x}; expected {written.bytes} bytes with "
            f"{written.crc32c:#010x}: the file was damaged or changed after the export",
            path=path,
            hint=hint,
        )


def merged(target: str, written: list[HourFile], start: int, columns: tuple[str, ...]) -> Iterator[Any]:
    """Yields the records of a partition's files from an offset on, in the order of offsets, as record batches.

    Only files that may have the next offset are open: few, if records are about in the order of time.
    Raises IllegalArgumentException if an offset occurs twice, CorruptRecordException for a file that changed, and
    NoSuchFileException for a missing one."""
    waiting = [file for file in written if file.last_offset >= start]
    parts: list[_Part] = []
    done = start
    while waiting or parts:
        bound = min((part.last for part in parts), default=None)
        while waiting and (bound is None or waiting[0].first_offset <= bound):
            part = _Part(target, waiting.pop(0), columns, start)
            if part.batch is not None:
                parts.append(part)
                bound = min(part.last, part.last if bound is None else bound)
        if bound is None:
            return
        pieces = [part.take(bound) for part in parts]
        parts = [part for part in parts if part.batch is not None]
        table = pa.Table.from_batches([piece for piece in pieces if piece is not None])
        if len([piece for piece in pieces if piece is not None]) > 1:
            table = table.take(pc.sort_indices(table, sort_keys=[("offset", "ascending")]))
        offsets = table.column("offset").to_numpy()
        if len(offsets) and (offsets[0] < done or (np.diff(offsets) <= 0).any()):
            raise IllegalArgumentException(
                f"an offset occurs twice near {int(offsets[0])}", path=target, hint="export into an empty target"
            )
        done = int(offsets[-1]) + 1
        yield from table.combine_chunks().to_batches()


def _batches(file: Any, columns: list[str]) -> Iterator[Any]:
    """Yields a Parquet file's rows in pieces that fit into memory, however large its records are."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
        rows = min(max(READ_BYTES // row_bytes, 1), READ_ROWS)
        yield from file.iter_batches(batch_size=rows, row_groups=[number], columns=columns)


class _Part:
    """A file that is being read."""

    def __init__(self, target: str, written: HourFile, columns: tuple[str, ...], start: int) -> None:
        import pyarrow.parquet as parquet

        path = os.path.join(target, written.path)
        check_file(path, written)
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        self._batches = _batches(file, list(columns))
        self._start = start
        self.batch: Any = None
        self.last = -1
        self._next()

    def _next(self) -> None:
        for batch in self._batches:
            rows = batch.filter(pc.greater_equal(batch.column("offset"), self._start))
            if rows.num_rows:
                self.batch, self.last = rows, rows.column("offset")[-1].as_py()
                return
        self.batch = None

    def take(self, bound: int) -> Any:
        """Returns the rows up to an offset, which must not be after this batch; None if there are none."""
        offsets = self.batch.column("offset").to_numpy()
        count = int(np.searchsorted(offsets, bound, side="right"))
        taken = self.batch.slice(0, count)
        if count == len(offsets):
            self._next()
        else:
            self.batch = self.batch.slice(count)
        return taken if count else None


def __dir__() -> list[str]:
    return __all__
