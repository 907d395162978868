"""Writes record batches to a file (`WholeFile`) or to another sink: Parquet, Arrow, CSV or JSON lines.

Parquet and Arrow hold bytes as they are.  CSV and JSON lines are text.  JSON has bytes that are not UTF-8 in base64,
under a name that says so (`value_base64`).  CSV has no such name, so these bytes are refused there, unless all keys and
values are written in base64.  Imported only if pyarrow is installed.  Not thread-safe.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from kafkalog._native.codec.json_text import json_fields
from kafkalog.errors import KafkaException

if TYPE_CHECKING:
    from typing_extensions import Buffer

BYTES = ("key", "value")
REPEATING = ("topic", "partition", "timestamp_type", "timestampType")
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999, which ISO 8601 writes with four digits


class Sink(Protocol):
    """The target of a writer: a `WholeFile`, or a pipe to somebody who reads."""

    closed: bool

    def write(self, data: Buffer) -> int: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class RowWriter(Protocol):
    """Writes a file of some format: first batches, then the end."""

    def write(self, batch: Any) -> None: ...
    def close(self) -> None: ...


def writer(kind: str, sink: Sink, schema: Any, codec: str, *, in_base64: bool) -> RowWriter:
    """Returns the writer of a format (of `export.FORMATS`) for batches of a schema."""
    makers: dict[str, Callable[[], RowWriter]] = {
        "parquet": lambda: ParquetGroups(sink, schema, codec),
        "arrow": lambda: _Arrow(sink, schema, codec),
        "csv": lambda: _Csv(sink, schema, in_base64=in_base64),
        "jsonl": lambda: _JsonLines(sink, in_base64=in_base64),
    }
    return makers[kind]()


class ParquetGroups:
    """Writes one row group for one or a few batches, so that one group is in memory.  Keys and values get no
    dictionary: few of them repeat, and finding these takes longer than all the rest."""

    def __init__(self, sink: Sink, schema: Any, codec: str) -> None:
        import pyarrow.parquet as parquet

        self._writer = parquet.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            schema,
            compression=codec,
            use_dictionary=[name for name in REPEATING if name in schema.names],
            write_statistics=[name for name in schema.names if name not in BYTES],
            write_page_checksum=True,
        )

    def write(self, batch: Any) -> None:
        self.write_group([batch])

    def write_group(self, batches: list[Any]) -> None:
        """Writes batches as one row group."""
        table = pa.Table.from_batches(batches)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        self._writer.close()


class _Arrow:
    def __init__(self, sink: Sink, schema: Any, codec: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, options=options)

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    """Writes CSV as Spark does, except that null is an empty field and empty text a quoted one; headers are JSON."""

    def __init__(self, sink: Sink, schema: Any, *, in_base64: bool) -> None:
        import pyarrow.csv as csv

        self._base64 = in_base64
        self._names = schema.names
        kinds = {"partition": pa.int32(), "offset": pa.int64(), "timestamp_type": pa.int8()}
        self._schema = pa.schema([(name, kinds.get(name, pa.string())) for name in schema.names])
        self._writer = csv.CSVWriter(pa.PythonFile(sink, mode="w"), self._schema)

    def write(self, batch: Any) -> None:
        columns = []
        for name in self._names:
            column = batch.column(name)
            if name in BYTES:
                column = pa.array(_in_base64(column), pa.string()) if self._base64 else _as_text(batch, name)
            elif name == "timestamp":
                column = iso_times(column)
            elif name == "headers":
                column = pa.array([_headers_json(row) for row in column.to_pylist()], pa.string())
            columns.append(column)
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    """Writes one object a record, with the columns' names; built column by column, each row's field natively."""

    def __init__(self, sink: Sink, *, in_base64: bool) -> None:
        self._sink = sink
        self._base64 = in_base64

    def write(self, batch: Any) -> None:
        import pyarrow.compute as compute

        pieces = []
        for place, name in enumerate(batch.schema.names):
            before = "," if place else "{"
            column = batch.column(name)
            if name in BYTES or name == "topic":
                pieces.append(_fields(column, before, name, in_base64=self._base64 and name in BYTES))
                continue
            if name == "timestamp":
                texts = iso_times(column)
                pieces += [_text(f'{before}"{name}":"'), texts.cast(pa.large_string()), _text('"')]
                continue
            texts = pa.array(map(_headers_json, column.to_pylist())) if name == "headers" else column
            pieces += [_text(f'{before}"{name}":'), compute.fill_null(texts.cast(pa.large_string()), "null")]
        lines = compute.binary_join_element_wise(*pieces, _text("}\n"), _text(""))
        ends = memoryview(lines.buffers()[1]).cast("q")
        self._sink.write(memoryview(lines.buffers()[2])[: ends[len(lines)]])

    def close(self) -> None:
        """Does nothing: lines need no end."""


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _fields(column: Any, before: str, name: str, *, in_base64: bool) -> Any:
    """Returns a column of bytes as fields of JSON objects: a column of text."""
    validity, offsets, data = column.buffers()
    count = len(column)
    places = memoryview(offsets)[4 * column.offset : 4 * (column.offset + count + 1)]
    texts, ends = json_fields(
        before.encode(), name.encode(), b"" if data is None else data, places, validity, column.offset,
        in_base64=in_base64,
    )  # fmt: skip
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(texts))


def _headers(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Returns headers in JSON's form, in order, with duplicates."""
    if rows is None:
        return None
    listed = []
    for row in rows:
        out: dict[str, Any] = {"key": row["key"]}
        value = row["value"]
        try:
            out["value"] = None if value is None else value.decode()
        except UnicodeDecodeError:
            out["value_base64"] = base64.b64encode(value).decode()
        listed.append(out)
    return listed


def _headers_json(rows: list[dict[str, Any]] | None) -> str | None:
    return None if rows is None else json.dumps(_headers(rows), ensure_ascii=False, separators=(",", ":"))


def _in_base64(column: Any) -> list[str | None]:
    return [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]


def _text_of(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _as_text(batch: Any, name: str) -> Any:
    column = batch.column(name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        row = next(row for row, value in enumerate(column.to_pylist()) if isinstance(_text_of(value), bytes))
        where = f"the record at offset {batch.column('offset')[row]} of {batch.column('topic')[row]}"
        raise KafkaException(
            f"the {name} of {where}-{batch.column('partition')[row]} is not UTF-8, so CSV cannot hold it",
            hint="--base64 writes keys and values in base64; parquet, arrow and jsonl hold any bytes",
        ) from None


def iso_times(column: Any) -> Any:
    """Returns timestamps as 2026-11-21T09:00:00.000Z, or `@` and milliseconds if the year does not have four digits."""
    import pyarrow.compute as compute

    numbers = column.cast(pa.timestamp("ms", "UTC"), safe=False).view(pa.int64())
    odd = compute.or_(compute.less(numbers, FIRST_MS), compute.greater(numbers, LAST_MS))
    usual = compute.if_else(odd, pa.scalar(0, pa.int64()), numbers).view(pa.timestamp("ms", "UTC"))
    texts = compute.strftime(usual, "%Y-%m-%dT%H:%M:%SZ")
    if not compute.any(odd).as_py():
        return texts
    plain = compute.binary_join_element_wise(pa.scalar("@"), numbers.cast(pa.string()), "")
    return compute.if_else(odd, plain, texts)
