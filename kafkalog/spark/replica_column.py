"""The column `replica` of a read of all copies: the node id of the broker whose copy a record is of.

Executors import this, and none of what chooses copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.options import ALL_COPIES, SourceOptions
from kafkalog.spark.places import files_of

REPLICA_COLUMN = "replica"
CARRIER = "offset"  # is read for rows of which only the copy is asked for


def check_columns(options: SourceOptions, columns: Sequence[str]) -> None:
    """IllegalArgumentException for the column `replica` of one copy, and for several copies without it: nobody could
    tell a record from its copy."""
    is_there = REPLICA_COLUMN in columns
    if is_there and options.replicas != ALL_COPIES:
        raise IllegalArgumentException(
            f"column {REPLICA_COLUMN} is there with the option replicas=all alone, replicas is {options.replicas}",
            hint="leave the column out, or read all copies",
        )
    if options.replicas == ALL_COPIES and not is_there:
        raise IllegalArgumentException(
            f"option replicas=all: found the columns {', '.join(columns)}, expected {REPLICA_COLUMN} among them",
            hint="without it nobody can tell a record from its copies",
        )


def with_replica(batches: Iterator[Any], columns: Sequence[str], log_dir: str) -> Iterator[Any]:
    """Record batches with the column `replica`, the node id of the broker whose copy it is, if it is one of
    `columns`."""
    if REPLICA_COLUMN not in columns:
        yield from batches
        return
    import pyarrow as pa

    from kafkalog._face.replicas import Brokers  # with what reads a cluster's metadata

    node_id = Brokers((log_dir,), files_of).look().node_of(log_dir)
    at = columns.index(REPLICA_COLUMN)
    for batch in batches:
        column = pa.repeat(pa.scalar(node_id, pa.int32()), batch.num_rows)
        arrays, fields = list(batch.columns), list(batch.schema)
        if len(columns) == 1:  # the carrier goes
            arrays, fields = [], []
        arrays.insert(at, column)
        fields.insert(at, pa.field(REPLICA_COLUMN, pa.int32()))
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def without_replica(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns to read for `with_replica`."""
    if REPLICA_COLUMN not in columns:
        return tuple(columns)
    return tuple(name for name in columns if name != REPLICA_COLUMN) or (CARRIER,)
