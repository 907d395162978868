"""Column `replica` of a read of all copies: the node id of the broker that the record's copy is on.

Executors import this module, but not the code that chooses copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.options import ALL_COPIES, SourceOptions
from kafkalog.spark.places import files_of

REPLICA_COLUMN = "replica"
CARRIER = "offset"  # is read if only the copy is wanted


def check_columns(options: SourceOptions, columns: Sequence[str]) -> None:
    """Raises IllegalArgumentException for the column `replica` of one copy, and for several copies without it.

    Without the column, a record could not be distinguished from its copies.
    """
    is_there = REPLICA_COLUMN in columns
    if is_there and options.replicas != ALL_COPIES:
        raise IllegalArgumentException(
            f"column {REPLICA_COLUMN} needs option replicas=all, but replicas is {options.replicas}",
            hint="leave the column out, or set replicas=all",
        )
    if options.replicas == ALL_COPIES and not is_there:
        raise IllegalArgumentException(
            f"option replicas=all: found the columns {', '.join(columns)}, expected {REPLICA_COLUMN} among them",
            hint="add the column: without it a record cannot be distinguished from its copies",
        )


def with_replica(batches: Iterator[Any], columns: Sequence[str], log_dir: str) -> Iterator[Any]:
    """Yields record batches with the column `replica`, if it is one of `columns`: the node id of the copy's broker."""
    if REPLICA_COLUMN not in columns:
        yield from batches
        return
    import pyarrow as pa

    from kafkalog._face.replicas import Brokers  # imported late: it reads a cluster's metadata

    node_id = Brokers((log_dir,), files_of).look().node_of(log_dir)
    at = columns.index(REPLICA_COLUMN)
    for batch in batches:
        column = pa.repeat(pa.scalar(node_id, pa.int32()), batch.num_rows)
        arrays, fields = list(batch.columns), list(batch.schema)
        if len(columns) == 1:  # drop the carrier
            arrays, fields = [], []
        arrays.insert(at, column)
        fields.insert(at, pa.field(REPLICA_COLUMN, pa.int32()))
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def without_replica(columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns to read for `with_replica`."""
    if REPLICA_COLUMN not in columns:
        return tuple(columns)
    return tuple(name for name in columns if name != REPLICA_COLUMN) or (CARRIER,)
