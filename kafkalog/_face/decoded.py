"""What columns a reading asks of the log, and what it makes of them: values and keys as bytes, or decoded.

A schema that nobody gave is inferred from a sample before the first batch, so that all batches have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog._face.value_columns import ValueDecoding

SAMPLE_ROWS = 2_000  # from which the fields of JSON are told


class Decoding(TypedDict, total=False):
    """How values and keys become columns.

    values: "bytes", "text" (a value that is no UTF-8 is an error), "json", or a function of a batch's values, such as
    `kafkalog.decoding.wire_format(...)`.  The fields of JSON objects become columns in the place of `value`; one that
    has the name of a record's column is `value_<name>`.
    schema: of JSON, names and types, as a pyarrow.Schema or a mapping such as {"id": "int64", "tags": "list<string>"}:
    pyarrow's types, what `str` makes of them, Python's (int, float, str, bool, datetime), a mapping for an object, a
    list of one for an array, "json" for the text of whatever is there.  Without it up to 2,000 of the first and last
    values tell, but those that are no JSON objects; a field whose values have different types is the text of its JSON,
    with any `errors`, and fields that none of them has are left out.  Of a function: what it returns.
    errors: "raise" (RecordDeserializationException names the record), or "null" in the place of what is no text, no
    JSON, or of another type.
    keys: "bytes" or "text".
    """

    values: Literal["bytes", "text", "json"] | Callable[[Any], Any]
    schema: Any
    errors: Literal["raise", "null"]
    keys: Literal["bytes", "text"]


def decoding_of(values: Any = "bytes", schema: Any = None, errors: str = "raise", keys: str = "bytes") -> ValueDecoding:
    """How to decode, as `Decoding` says."""
    from kafkalog._face.value_columns import decoding

    return decoding(values, schema, errors, keys=keys)


def taken_from(asked: Any) -> ValueDecoding:
    """Takes what says how to decode out of what was asked."""
    return decoding_of(**{name: asked.pop(name) for name in Decoding.__annotations__ if name in asked})


class DecodedColumns:
    """Batches with the columns `read` become, by `of`, those of `wanted`, decoded.

    `schema` is what that gives; None where only the batches tell it.  `sample` gives a few batches with the
    column value, from which the schema of JSON is inferred.
    """

    def __init__(
        self, decode: ValueDecoding, wanted: pa.Schema, sample: Callable[[], Iterator[pa.RecordBatch]]
    ) -> None:
        self.schema: pa.Schema | None = wanted
        self.read: list[str] = wanted.names
        self._extra: list[str] = []  # which errors name
        self._decode: ValueDecoding | None = None
        self.is_blind = False  # no value has told a field of JSON
        if (decode.values, decode.keys) == ("bytes", "bytes") or not {"value", "key"} & set(wanted.names):
            return
        if decode.schema is None and "value" in wanted.names:
            decode = _inferred(decode, sample)
        self.read = list(dict.fromkeys([*wanted.names, "topic", "partition", "offset"]))
        self._extra = [name for name in self.read if name not in wanted.names]
        self._decode = decode
        self.is_blind = decode.values == "json" and decode.schema is not None and not decode.schema.names
        self.schema = None if decode.schema is None else decode.schema_for(wanted)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch decoded.  RecordDeserializationException names the record."""
        if self._decode is None:
            return batch
        made = self._decode.apply(batch)
        return made if not self._extra else made.select([name for name in made.schema.names if name not in self._extra])


def _inferred(decode: ValueDecoding, sample: Callable[[], Iterator[pa.RecordBatch]]) -> ValueDecoding:
    pyarrow = need_pyarrow()
    from kafkalog._face.value_columns import decoding

    taken = [batch.column("value") for batch in sample()]
    found = pyarrow.chunked_array(taken, pyarrow.binary()).combine_chunks()
    if decode.values == "json":  # what is no JSON is told where it is read, with its place
        fields = decoding("json", None, "null").infer(found[:SAMPLE_ROWS]).schema
        return decoding("json", fields, decode.errors, keys=decode.keys)
    return decode.infer(found[:SAMPLE_ROWS]) if len(found) else decode


def known_schema(schema: pa.Schema | None) -> pa.Schema:
    """IllegalArgumentException for one that nothing tells."""
    if schema is None:
        raise IllegalArgumentException(
            "values: nothing tells what the function returns, for there are no values to try it with",
            hint="give schema=, what it returns",
        )
    return schema
