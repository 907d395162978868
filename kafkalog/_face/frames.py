"""Records as data frames: an Arrow table in pandas, polars and DuckDB, without a copy wherever the library allows it.

Native code decodes the log into Arrow's buffers.  Frames of polars, views of DuckDB and pandas' `ArrowDtype` use these
buffers as they are.  The usual types of pandas need a copy, because it holds text, bytes and lists as Python objects
and numbers in blocks.  DuckDB's tables are a copy too.  Knows no log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog._face.decoded import known_schema
from kafkalog.engine.format import values
from kafkalog.engine.format.needs import need_pandas, need_polars, need_pyarrow
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
BACKENDS = ("numpy", "pyarrow")


def table_of(schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """Returns all record batches as one table; the schema is None if only the batches determine it."""
    found = list(batches)
    table: pa.Table = need_pyarrow().Table.from_batches(found, schema if found else known_schema(schema))
    return table


def pandas_of(dtype_backend: object) -> Callable[[pa.Table], Any]:
    """Returns the function that makes a DataFrame of a table. IllegalArgumentException, MissingPackageException."""
    if not isinstance(dtype_backend, str) or dtype_backend not in BACKENDS:
        raise IllegalArgumentException(
            f"dtype_backend: found {values.shown(dtype_backend)}, expected {' or '.join(map(repr, BACKENDS))}"
        )
    pandas = need_pandas()
    if dtype_backend == "pyarrow":
        return lambda table: table.to_pandas(types_mapper=pandas.ArrowDtype)
    return _in_pandas


def _in_pandas(table: pa.Table) -> Any:
    """Returns a table as a DataFrame with exact integers and booleans, also in columns with nulls."""
    pandas, pyarrow = need_pandas(), need_pyarrow()
    kinds = pyarrow.types
    with_nulls = [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if column.null_count and (kinds.is_integer(field.type) or kinds.is_boolean(field.type))
    ]
    if not with_nulls:
        return table.to_pandas()

    def nullable(kind: pa.DataType) -> Any:
        if kinds.is_boolean(kind):
            return pandas.BooleanDtype()
        return pandas.api.types.pandas_dtype(str(kind).replace("int", "Int").replace("u", "U"))

    exact = table.select(with_nulls).to_pandas(types_mapper=nullable)
    if len(with_nulls) == table.num_columns:
        return exact
    return pandas.concat([table.drop_columns(with_nulls).to_pandas(), exact], axis=1)[table.column_names]


def polars_of() -> Callable[[pa.Table], Any]:
    """Returns the function that makes a polars DataFrame of a table. MissingPackageException."""
    polars = need_polars()
    return lambda table: polars.from_arrow(table, rechunk=False)  # one chunk for each column would be a copy


class DuckTable:
    """A table, or a view, of a DuckDB connection that is to be filled with records.

    IllegalArgumentException for something that is no connection, and for a name that no table can have.
    """

    def __init__(self, connection: Any, name: object, *, copy: object) -> None:
        if not hasattr(connection, "register"):
            raise IllegalArgumentException(
                f"connection: found {values.shown(connection)}, expected one of duckdb.connect()"
            )
        self._connection = connection
        self._copy = values.flag(copy, "copy")
        self.name = values.text(name, "name")
        if not self.name:
            raise IllegalArgumentException("name: found an empty text, expected the name of a table")
        self._parts = self.name.split(".")
        if len(self._parts) > 3 or not all(self._parts):
            raise IllegalArgumentException(
                f"name: found {values.shown(name)}, expected a table, schema.table or database.schema.table"
            )
        if len(self._parts) > 1 and not self._copy:
            raise IllegalArgumentException(
                f"name: found {values.shown(name)}, expected a name without a dot: a view without a copy has no schema",
                hint="use copy=True for a table of a schema",
            )

    def filled(self, schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]) -> Any:
        """Fills it with these rows, and returns it as a DuckDB relation."""
        connection = self._connection
        if not self._copy:
            connection.register(self.name, table_of(schema, batches))
            return connection.table(self._quoted())
        failures: list[BaseException] = []
        rows = need_pyarrow().RecordBatchReader.from_batches(known_schema(schema), _watched(batches, failures))
        stream = f"kafkalog_rows_{id(rows):x}"
        connection.register(stream, rows)
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {self._quoted()} AS SELECT * FROM {stream}")
        except Exception as error:  # an error of DuckDB, which contains ours as text
            if failures:
                raise failures[0] from None
            if type(error).__name__ == "CatalogException":
                schema = ".".join(self._parts[:-1])
                raise IllegalArgumentException(
                    f"name: found {values.shown(self.name)}, which DuckDB cannot create: {error}",
                    hint=f"create the schema {schema} first, or leave out the dot" if schema else "use another name",
                ) from error
            raise
        finally:
            connection.unregister(stream)
        if len(self._parts) == 1:
            connection.unregister(self.name)  # a view of an earlier call would hide the table
        return connection.table(self._quoted())

    def _quoted(self) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in self._parts)


def _watched(batches: Iterator[T], failures: list[BaseException]) -> Iterator[T]:
    """Yields the same items; keeps the error that ends them, because a consumer may raise another one."""
    try:
        yield from batches
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)
        raise
