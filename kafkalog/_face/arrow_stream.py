"""The records after a reader's position as an Arrow stream, which polars, DuckDB and pandas accept, and as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kafkalog import errors
from kafkalog._face.frames import DuckTable, pandas_of, polars_of, table_of
from kafkalog.engine.format.needs import need_duckdb

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def stream_of(reader: pa.RecordBatchReader, requested_schema: object | None) -> object:
    """Returns a reader's capsule. kafkalog's errors have a text of one line in it, without a traceback."""
    from kafkalog._native.codec.arrow import told_stream

    return told_stream(reader.__arrow_c_stream__(requested_schema), f"{errors.__name__}.".encode())


class ArrowStream:
    """Base class of readers that have an `arrow_reader`."""

    if TYPE_CHECKING:

        def arrow_reader(self, *given: Any, **reading: Any) -> pa.RecordBatchReader: ...

    def _whole(
        self, use: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T], columns: Sequence[str] | None, options: Any
    ) -> T:
        """Returns `use(schema, batches)` of the records up to the current end; if it raises, the position stays."""
        raise NotImplementedError

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns the records from the reader's position to the current end as an Arrow stream.

        polars, DuckDB and pandas accept it. The columns are those of `Partition.read_arrow`. The reader then continues
        after these records.
        """
        return stream_of(self.arrow_reader(), requested_schema)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        dtype_backend: Literal["numpy", "pyarrow"] = "numpy",
        **decoding: Any,
    ) -> Any:
        """Returns the records that are available now as a pandas DataFrame (`pip install 'kafkalog[pandas]'`).

        The reader then continues after these records.  If the call raises an error, the position does not change.

        Args:
            columns: The columns, as for `Partition.read_arrow`.
            dtype_backend: As for `Partition.to_pandas`: with "pyarrow" nothing is copied.
            **decoding: For a StoreReader: `values`, `schema`, `errors` and `keys`; see `kafkalog.Decoding`.

        Returns:
            A pandas.DataFrame.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            KafkalogError: Any error of `arrow_reader`, also while reading.
            MissingPackageException: pandas is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print(reader.to_pandas(["offset", "value"]))
               offset   value
            0       0  b'one'
            1       1  b'two'
        """
        in_pandas = pandas_of(dtype_backend)
        return self._whole(lambda schema, batches: in_pandas(table_of(schema, batches)), columns, decoding)

    def to_polars(self, columns: Sequence[str] | None = None, **decoding: Any) -> Any:
        """Returns the records that are available now as a polars DataFrame (`pip install 'kafkalog[polars]'`).

        Its columns use the memory of the Arrow table: they are not copied.  The reader then continues after these
        records.  If the call raises an error, the position does not change.

        Args:
            columns: The columns, as for `Partition.read_arrow`.
            **decoding: For a StoreReader: `values`, `schema`, `errors` and `keys`; see `kafkalog.Decoding`.

        Returns:
            A polars.DataFrame.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            KafkalogError: Any error of `arrow_reader`, also while reading.
            MissingPackageException: polars is not installed.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     with log.reader() as reader:
            ...         print(reader.to_polars(["offset", "value"]).rows())
            [(0, b'one'), (1, b'two')]
        """
        in_polars = polars_of()
        return self._whole(lambda schema, batches: in_polars(table_of(schema, batches)), columns, decoding)

    def to_duckdb(
        self, connection: Any, name: str, columns: Sequence[str] | None = None, *, copy: bool = True, **decoding: Any
    ) -> Any:
        """Creates or replaces a table of a DuckDB connection with the records that are available now.

        It needs `pip install 'kafkalog[duckdb]'`.  The reader then continues after these records.  If the call raises
        an error, the position does not change, and there is no new table.

        Args:
            connection: A connection of `duckdb.connect()`.
            name: The table's name; `schema.table` is a table of that schema.
            columns: The columns, as for `Partition.read_arrow`.
            copy: As for `Partition.to_duckdb`: with False it is a view of the Arrow memory.
            **decoding: For a StoreReader: `values`, `schema`, `errors` and `keys`; see `kafkalog.Decoding`.

        Returns:
            The table as a DuckDB relation.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            KafkalogError: Any error of `arrow_reader`, also while reading.
            MissingPackageException: duckdb is not installed.

        Example:
            >>> import duckdb
            >>> connection = duckdb.connect()
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print(reader.to_duckdb(connection, "orders").count("*").fetchall())
            [(2,)]
        """
        need_duckdb()
        target = DuckTable(connection, name, copy=copy)
        return self._whole(target.filled, columns, decoding)
