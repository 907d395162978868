"""Functions that decode the values of records, for `values=` of what reads them as Arrow.

    from kafkalog.decoding import wire_format

    batches = topic.arrow_batches(values=wire_format(decode))

Needs pyarrow when a value is decoded; importing it does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WireFormat", "wire_format"]

# Also of `kafkalog.spark.functions.from_registry`.
EXPECTED_FORMAT = (
    "expected a schema registry's wire format: a zero byte, four bytes with the schema's id, and the payload"
)


def wire_format(decode: Callable[..., Any], *, message_indexes: bool = False, errors: str = "raise") -> WireFormat:
    """A function for `values=` that decodes values in the wire format of schema registries: a zero byte, a schema's id
    in four bytes, and a payload, such as one of Avro.

    `decode(schema_id, payloads)` is called once for each schema id of a batch with the payloads as a
    `pyarrow.BinaryArray`, and returns as many: a pyarrow Array, or a StructArray or RecordBatch, whose fields become
    columns.  It must return the same type for each schema id: of a schema that has changed, read all with one reader
    schema.  Nulls stay nulls and are not handed to it.  Without `schema=` the first batch tells the columns, if it has
    a value that is not null; a reader of a store calls `decode` with a sample first, and so does any other question
    whose first batch has none, with later values, or those of the topic that were not asked for.  What `decode` raises
    is the cause of a RecordDeserializationException, which names topic, partition and offsets.

    `message_indexes`: the values are Protobuf's, whose payload has the indexes of the message before it: then it is
    `decode(schema_id, payloads, indexes)`, with a tuple of ints, (0,) for the first message of the schema.

    `errors`: "raise" raises RecordDeserializationException for a value that is not in the format, "null" makes a null
    of it.

        def decode(schema_id, payloads):
            schema = fastavro.parse_schema(json.loads(registry.get_schema(schema_id).schema_str))
            rows = [fastavro.schemaless_reader(io.BytesIO(each.as_py()), schema, reader) for each in payloads]
            return pa.RecordBatch.from_pylist(rows, schema=columns)

        table = topic.read_arrow(values=wire_format(decode))
    """
    from kafkalog.engine.format.values import flag, function, shown
    from kafkalog.errors import IllegalArgumentException

    expected = "a function of a schema id and the payloads"
    if decode is None or function(decode, "decode", expected) is None:
        raise IllegalArgumentException(f"decode: found None, expected {expected}")
    if errors not in ("raise", "null"):
        raise IllegalArgumentException(f'errors: found {shown(errors)}, expected "raise" or "null"')
    return WireFormat(decode, flag(message_indexes, "message_indexes"), errors)


class WireFormat:
    """Made by `wire_format`: called with a column of values, it returns them decoded.  Any number of threads may use
    one, as far as its `decode` allows that."""

    def __init__(self, decode: Callable[..., Any], message_indexes: bool, errors: str) -> None:
        self._decode = decode
        self._message_indexes = message_indexes
        self._errors = errors

    def __repr__(self) -> str:
        return f"wire_format({getattr(self._decode, '__qualname__', self._decode)})"

    def __call__(self, values: pa.Array) -> pa.Array:
        """The decoded values, in the order of `values`, a binary column."""
        import numpy as np

        from kafkalog._face.value_columns import binary, buffers
        from kafkalog._native.codec.wire_format import gather, split
        from kafkalog.engine.format.needs import need_pyarrow

        pyarrow: Any = need_pyarrow()
        column = binary(values, "values")
        data, offsets, validity, first_row = buffers(column)
        ids, starts, ends, codes = split(data, offsets, validity, first_row, message_indexes=self._message_indexes)
        self._check(column, ids)
        rows = np.flatnonzero(ids >= 0)
        rows = rows[np.lexsort((codes[rows], ids[rows]))]
        payloads = pyarrow.record_batch(gather(data, starts, ends, rows)).column(0)
        changes = np.flatnonzero((np.diff(ids[rows]) != 0) | (np.diff(codes[rows]) != 0)) + 1
        bounds = [0, *changes.tolist(), len(rows)] if len(rows) else []
        parts = []
        for begin, end in itertools.pairwise(bounds):
            row = rows[begin]
            part = payloads.slice(begin, end - begin)
            parts.append(self._group(part, int(ids[row]), int(codes[row]), int(row), int(rows[end - 1])))
            if parts[-1].type != parts[0].type:
                raise _other_type(parts[-1].type, int(ids[row]), parts[0].type, int(ids[rows[0]]))
        if not parts:
            return pyarrow.nulls(len(column))
        found = parts[0] if len(parts) == 1 else pyarrow.concat_arrays(parts)
        if len(rows) == len(column) and (len(parts) == 1 or bool(np.all(rows[:-1] < rows[1:]))):
            return found
        places = np.full(len(column), -1, np.int64)
        places[rows] = np.arange(len(rows))
        return found.take(pyarrow.array(places, mask=places < 0))

    def _check(self, column: pa.Array, ids: Any) -> None:
        from kafkalog._native.codec.wire_format import BAD_INDEXES, NO_MAGIC
        from kafkalog.errors import RecordDeserializationException

        bad = (ids <= NO_MAGIC).nonzero()[0]
        if self._errors == "null" or not len(bad):
            return
        row = int(bad[0])
        value = column[row].as_py()
        found = f"{len(value)} bytes that begin with 0x{value[:8].hex()}" if value else "no bytes"
        what = "message indexes of Protobuf behind the schema id" if ids[row] == BAD_INDEXES else EXPECTED_FORMAT
        text = f"found {found}, {what if what is EXPECTED_FORMAT else f'expected {what}'}"
        error = RecordDeserializationException(
            f"value: {text}", hint='wire_format(decode, errors="null") makes a null of it'
        )
        error.row = row
        raise error

    def _group(self, payloads: pa.Array, schema_id: int, code: int, row: int, last_row: int) -> pa.Array:
        """What `decode` makes of one schema's payloads, which lie between two rows, as an array."""
        from kafkalog._face.value_columns import as_array
        from kafkalog.errors import IllegalArgumentException, KafkalogError, RecordDeserializationException

        more = (_indexes(code),) if self._message_indexes else ()
        try:
            found = self._decode(schema_id, payloads, *more)
        except KafkalogError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            count = "the payload" if len(payloads) == 1 else f"{len(payloads)} payloads"
            refused = RecordDeserializationException(f"value: decode raised {what} for {count} of schema {schema_id}")
            refused.row, refused.last_row = row, last_row
            raise refused from error
        made = as_array(found, "decode")
        if len(made) != len(payloads):
            raise IllegalArgumentException(
                f"decode: returned {len(made)} rows for schema {schema_id}, expected {len(payloads)}, one a payload"
            )
        return made


def _other_type(found: pa.DataType, schema_id: int, expected: pa.DataType, expected_of: int) -> Exception:
    from kafkalog.errors import IllegalArgumentException

    return IllegalArgumentException(
        f"decode: returned {found} for schema {schema_id}, expected {expected}, as for schema {expected_of}",
        hint="read all schemas with one reader schema, or cast what decode returns",
    )


def _indexes(code: int) -> tuple[int, ...]:
    """Message indexes by their bytes, the first one lowest: how many, then each, as zigzag varints."""
    found, number, shift = [], 0, 0
    for byte in code.to_bytes(8, "little"):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number >> 1)
            number = shift = 0
            if len(found) > found[0]:
                break
    return tuple(found[1:]) or (0,)  # a zero alone stands for the first message


def __dir__() -> list[str]:
    return __all__
