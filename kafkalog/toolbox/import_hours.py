"""What `export_hours` wrote, back into a partition: every record at its offset, in batches that are made anew.

A batch has one type of timestamp; records of log append time have that of their batch, so where it changes another
batch begins.  The batches are appended as a follower appends its leader's: offsets are theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.format import codecs
from kafkalog.format.arrow import write_batches
from kafkalog.format.batch import CREATE_TIME, LOG_APPEND_TIME
from kafkalog.format.names import TopicPartition
from kafkalog.toolbox.export_hours import HourFile, layout_of, merged
from kafkalog.toolbox.topic_settings import TopicSettings
from kafkalog.topics.opening import open_log

BATCH_BYTES = 256 << 10
EPOCH = 0


@dataclass
class Imported:
    """One partition: what was appended now, and where its log starts and ends."""

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
    """Appends what the files of an export have behind the end of a partition, which is made where it is missing.

    IllegalArgumentException where it has records, unless `resume`; the errors of an open.
    """
    result = Imported(partition)
    columns = layout_of(source).columns
    settings = TopicSettings(log_dir, config).of(partition.topic)
    with open_log(log_dir, partition, config=settings, abort_left_open=False, on_damage="raise") as log:
        engine = log.engine
        assert engine is not None
        if log.end_offset > log.log_start_offset and not resume:
            raise IllegalArgumentException(
                f"{partition} has records already, up to offset {log.end_offset - 1}",
                hint="resume appends what lies behind them",
            )
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


def _stored(compression_type: str) -> str:
    return "none" if compression_type in ("producer", "uncompressed") else compression_type


def encoded(batch: Any, codec: int) -> Iterator[bytes]:
    """Kafka's batches of a record batch of an export's columns."""
    types = batch.column("timestampType").to_numpy()
    times = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64())
    stamps = times.to_numpy()
    breaks = (types[1:] != types[:-1]) | ((types[1:] == 1) & (stamps[1:] != stamps[:-1]))
    bounds = [0, *(np.flatnonzero(breaks) + 1), len(types)]
    names = [name for name in ("key", "value", "headers", "offset") if name in batch.schema.names]
    given = pa.RecordBatch.from_arrays([times, *map(batch.column, names)], names=["timestamp", *names])
    for start, end in pairwise(bounds):
        appended = int(types[start]) == 1
        yield from write_batches(
            given.slice(start, end - start),
            batch_bytes_max=BATCH_BYTES,
            codec=codec,
            timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
            log_append_time=int(stamps[start]) if appended else -1,
            partition_leader_epoch=EPOCH,
        )
