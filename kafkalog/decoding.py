"""Functions that decode the values of records; pass them as `values=` to a method that reads records as Arrow.

    from kafkalog.decoding import wire_format

    batches = topic.arrow_batches(values=wire_format(decode))

The module needs pyarrow only when a value is decoded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WireFormat", "wire_format"]

# `kafkalog.spark.functions.from_registry` uses this text too.
EXPECTED_FORMAT = (
    "expected a schema registry's wire format: a zero byte, four bytes with the schema's id, and the payload"
)


def wire_format(decode: Callable[..., Any], *, message_indexes: bool = False, errors: str = "raise") -> WireFormat:
    """Returns a function for `values=` that decodes the wire format of schema registries.

    A value in that format is a zero byte, a schema id in four bytes, and a payload, such as one of Avro.  `decode` is
    called once for each schema id of a batch.  It must return the same type for each schema id; if a schema has
    changed, read all of its versions with one reader schema.  Nulls stay nulls and are not passed to `decode`.

    Without `schema=`, the first batch decides the columns, if it has a value that is not null.  Otherwise `decode` is
    called with later values, or with values of the topic that were not requested.  A reader of a store always calls it
    with a sample first.  An error that `decode` raises is the cause of a RecordDeserializationException, which names
    topic, partition and offsets.

        def decode(schema_id, payloads):
            schema = fastavro.parse_schema(json.loads(registry.get_schema(schema_id).schema_str))
            rows = [fastavro.schemaless_reader(io.BytesIO(each.as_py()), schema, reader) for each in payloads]
            return pa.RecordBatch.from_pylist(rows, schema=columns)

        table = topic.read_arrow(values=wire_format(decode))

    Args:
        decode: A function `decode(schema_id, payloads)`.  `payloads` is a pyarrow.BinaryArray.  The function returns as
            many rows: a pyarrow.Array, or a StructArray or RecordBatch whose fields become columns.
        message_indexes: The values are Protobuf's, whose payload follows the indexes of the message.  Then the function
            is `decode(schema_id, payloads, indexes)`, with a tuple of ints: (0,) for the first message of the schema.
        errors: "raise" raises RecordDeserializationException for a value in another format; "null" makes it null.

    Returns:
        The function, a WireFormat.

    Raises:
        IllegalArgumentException: An argument has a wrong type or value.

    Example:
        >>> import pyarrow as pa
        >>> from kafkalog.decoding import wire_format
        >>> def decode(schema_id, payloads):
        ...     return pa.array([f"{schema_id}: {payload.as_py().decode()}" for payload in payloads])
        >>> with kafkalog.open("data") as store:
        ...     place = store.create_topic("orders").append(bytes([0, 0, 0, 0, 7]) + b"payload")
        ...     table = store.topic("orders").read_arrow(columns=["value"], values=wire_format(decode))
        >>> table.to_pylist()
        [{'value': '7: payload'}]
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
    """Decodes columns of values in a registry's wire format; returned by `wire_format`.

    Several threads may use one object if its `decode` function allows that.

    Example:
        >>> import pyarrow as pa
        >>> from kafkalog.decoding import wire_format
        >>> decoder = wire_format(lambda schema_id, payloads: payloads.cast(pa.string()))
        >>> decoder(pa.array([bytes([0, 0, 0, 0, 7]) + b"payload", None])).to_pylist()
        ['payload', None]
    """

    def __init__(self, decode: Callable[..., Any], message_indexes: bool, errors: str) -> None:
        self._decode = decode
        self._message_indexes = message_indexes
        self._errors = errors

    def __repr__(self) -> str:
        return f"wire_format({getattr(self._decode, '__qualname__', self._decode)})"

    def __call__(self, values: pa.Array) -> pa.Array:
        """Returns the decoded values of a binary column, in the same order.

        Args:
            values: A pyarrow binary column.

        Returns:
            A pyarrow.Array of the same length.

        Raises:
            RecordDeserializationException: A value is in another format, and `errors` is "raise"; or `decode` raised an
                error.
            IllegalArgumentException: `decode` returned another number of rows, or different types for two schemas.
        """
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
        what = "message indexes of Protobuf after the schema id" if ids[row] == BAD_INDEXES else EXPECTED_FORMAT
        text = f"found {found}, {what if what is EXPECTED_FORMAT else f'expected {what}'}"
        error = RecordDeserializationException(
            f"value: {text}", hint='wire_format(decode, errors="null") makes it null'
        )
        error.row = row
        raise error

    def _group(self, payloads: pa.Array, schema_id: int, code: int, row: int, last_row: int) -> pa.Array:
        """Returns the decoded payloads of one schema as an array; `row` and `last_row` bound their rows, for errors."""
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
                f"decode: returned {len(made)} rows for schema {schema_id}, expected {len(payloads)}, one per payload"
            )
        return made


def _other_type(found: pa.DataType, schema_id: int, expected: pa.DataType, expected_of: int) -> Exception:
    from kafkalog.errors import IllegalArgumentException

    return IllegalArgumentException(
        f"decode: returned {found} for schema {schema_id}, expected {expected}, as for schema {expected_of}",
        hint="read all schemas with one reader schema, or cast what decode returns",
    )


def _indexes(code: int) -> tuple[int, ...]:
    """Returns the message indexes from their bytes, first byte lowest: a count, then each index, as zigzag varints."""
    found, number, shift = [], 0, 0
    for byte in code.to_bytes(8, "little"):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number >> 1)
            number = shift = 0
            if len(found) > found[0]:
                break
    return tuple(found[1:]) or (0,)  # a single zero means the first message


def __dir__() -> list[str]:
    return __all__
