"""The records after a reader's position as an Arrow stream, which polars, DuckDB and pandas accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog import errors

if TYPE_CHECKING:
    import pyarrow as pa


def stream_of(reader: pa.RecordBatchReader, requested_schema: object | None) -> object:
    """Returns a reader's capsule. kafkalog's errors have a text of one line in it, without a traceback."""
    from kafkalog._native.codec.arrow import told_stream

    return told_stream(reader.__arrow_c_stream__(requested_schema), f"{errors.__name__}.".encode())


class ArrowStream:
    """Base class of readers that have an `arrow_reader`."""

    def arrow_reader(self, *given: Any, **reading: Any) -> pa.RecordBatchReader:
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns the records from the reader's position to the current end as an Arrow stream.

        polars, DuckDB and pandas accept it. The columns are those of `Partition.read_arrow`. The reader then continues
        after these records.
        """
        return stream_of(self.arrow_reader(), requested_schema)
