"""What reads on from where it stands, as an Arrow stream: how polars, DuckDB and pandas take a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog import errors

if TYPE_CHECKING:
    import pyarrow as pa


def stream_of(reader: pa.RecordBatchReader, requested_schema: object | None) -> object:
    """A reader's capsule; the text of an error of ours is its one line, without a traceback."""
    from kafkalog._native.codec.arrow import told_stream

    return told_stream(reader.__arrow_c_stream__(requested_schema), f"{errors.__name__}.".encode())


class ArrowStream:
    """Anything that has an `arrow_reader`."""

    def arrow_reader(self, *given: Any, **reading: Any) -> pa.RecordBatchReader:
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The records from where the reader stands to the end as it is now, to any Arrow consumer (polars, DuckDB,
        pandas), streamed, with the columns of `Partition.read_arrow`; the reader goes on behind them."""
        return stream_of(self.arrow_reader(), requested_schema)
