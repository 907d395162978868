"""What columns a reading asks of the log, and what it makes of them: values and keys as bytes, or decoded.

A schema that nobody gave is inferred from a sample before the first batch, so that all batches have the same one.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog._face.value_columns import ValueDecoding

Sample = Callable[[], "Iterator[pa.RecordBatch]"]

SAMPLE_ROWS = 2_000  # from which the fields of JSON are told
SAMPLED = ("topic", "partition", "offset", "value")
NEAR = 0.75  # how like another a name is that may be a slip of it, as difflib counts
NAMES_TOLD = 30  # of fields, in an error


class Decoding(TypedDict, total=False):
    """How values and keys become columns.

    values: "bytes", "text" (a value that is no UTF-8 is an error), "json", or a function of a batch's values, such as
    `kafkalog.decoding.wire_format(...)`.  The fields of JSON objects become columns in the place of `value`; one that
    has the name of a record's column is `value_<name>`.
    schema: of JSON, names and types, as a pyarrow.Schema or a mapping such as {"id": "int64", "tags": "list<string>"}:
    pyarrow's bool, int32, int64, float64, string, timestamp, decimal128, list and struct, what `str` makes of them,
    Python's (int, float, str, bool, datetime, list[...]), a mapping for an object, a list of one for an array, "json"
    for the text of whatever is there.  Without it up to 2,000 of the first and last
    values tell, but those that are no JSON objects; a field whose values have different types is the text of its JSON,
    with any `errors`, and fields that none of them has are left out.  Of a function: what it returns.
    errors: "raise" (RecordDeserializationException names the record), or "null" in the place of what is no text, no
    JSON, or of another type.
    keys: "bytes" or "text".

    Where values become columns, `columns` may name these too, such as ["offset", "id"]; other fields of JSON are not
    looked at then.  "value" stands for all of them.
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
    """Batches with the columns `read` become, by `of`, those that `columns` names, decoded: columns of records, fields
    of values by the names of their columns, and `value` for all of these.  IllegalArgumentException for another name.

    `schema` is what that gives; None where only the batches tell it.  `sample` gives a few batches with the
    columns SAMPLED and values that are not null, from which the schema of JSON is inferred, and by which errors name a
    record.  `anywhere` gives some of all that there is: of fields that are named, and that the sample does not have.
    """

    def __init__(self, decode: ValueDecoding, columns: Sequence[str] | None, sample: Sample, anywhere: Sample) -> None:
        named = _fields_named(decode, columns)
        self.names_fields = bool(named)
        wanted = _of_records(columns, named)
        self.schema: pa.Schema | None = wanted
        self._wanted = wanted
        self.read: list[str] = wanted.names
        self._extra: list[str] = []  # which errors name
        is_given = decode.schema is not None
        self._is_doubtful = False  # whether any field of the schema that was given is there
        self._given: list[str] = [] if decode.schema is None else decode.schema.names
        self._decode: ValueDecoding | None = None
        self._chosen: _Chosen | None = None
        self.is_blind = False  # no value has told a field of JSON
        if "value" not in wanted.names:  # no value is looked at, whatever it would become
            decode = decoding_of(keys=decode.keys, errors=decode.errors if decode.keys == "text" else "raise")
        if (decode.values, decode.keys) == ("bytes", "bytes") or not {"value", "key"} & set(wanted.names):
            return
        if named:
            self._chosen = _Chosen(tuple(columns or ()), wanted, is_inferred=decode.schema is None)
        if decode.schema is None and "value" in wanted.names:
            looked_at = _taken(sample)
            decode = _inferred(decode, looked_at)
            if self._chosen is not None and decode.values == "json":
                decode = self._chosen.completed(decode, looked_at, anywhere)
        if self._chosen is not None:
            decode = self._chosen.narrowed(decode)
        self.read = list(dict.fromkeys([*wanted.names, "topic", "partition", "offset"]))
        self._extra = [name for name in self.read if name not in wanted.names]
        self._decode = decode
        self._is_doubtful = decode.values == "json" and is_given
        self.is_blind = decode.values == "json" and decode.schema is not None and not decode.schema.names
        if self.is_blind and not is_given and looked_at is not None:
            self._tell_if_no_object(looked_at.column("value"), "none has a field that becomes a column")
        self.learn()

    def learn(self, sample: Sample | None = None) -> pa.Schema | None:
        """The schema, also where a batch told what a function returns, or where this sample tells it."""
        if self._decode is None:
            return self.schema
        if self._decode.schema is None and sample is not None:
            self._decode = _inferred(self._decode, _taken(sample))
        self.schema = None if self._decode.schema is None else self._decode.schema_for(self._wanted)
        if self._chosen is not None and self.schema is not None:
            self.schema = self._chosen.of_schema(self.schema)
        return self.schema

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch decoded.  RecordDeserializationException names the record."""
        if self._decode is None:
            return batch
        made = self._decode.apply(batch)
        if self._is_doubtful:
            self._is_doubtful = self._tell_strangers(batch, made)
        if self._chosen is not None:
            return made.select(self._chosen.names(made.schema.names, len(made.schema) - len(batch.schema) + 1))
        return made if not self._extra else made.select([name for name in made.schema.names if name not in self._extra])

    def _tell_strangers(self, batch: pa.RecordBatch, made: pa.RecordBatch) -> bool:
        """A UserWarning if the values have none of the fields of the schema, or another in the place of one; whether
        the next batch must be asked."""
        assert self._decode is not None
        assert self._decode.schema is not None
        at, names = batch.schema.get_field_index("value"), self._decode.schema.names
        values = batch.column(at).drop_null()[:SAMPLE_ROWS]
        columns = made.columns[at : at + len(names)]
        absent = [name for name, column in zip(names, columns, strict=True) if column.null_count == len(column)]
        if not absent or not len(values):
            return bool(absent)
        found = decoding_of("json", None, "null").infer(values).schema
        assert found is not None
        absent = [name for name in absent if name not in found.names]
        if not found.names:
            self._tell_if_no_object(values, "all fields are null")
        elif len(absent) == len(names):
            _warn(
                f"schema: none of the {len(values):,} values looked at has any of its fields {_listed(names)}, so "
                f"these are null; there are {_listed(found.names)}"
            )
        else:
            strangers = [name for name in found.names if name not in self._given]
            near = {name: _nearest(name, strangers) for name in absent}
            told = [f"{name} (did you mean {other}?)" for name, other in near.items() if other is not None]
            if told:
                _warn(f"schema: none of the {len(values):,} values looked at has {_listed(told)}, so it is null")
        return False

    def _tell_if_no_object(self, values: pa.Array, so: str) -> None:
        from kafkalog._face.json_schema import objects

        assert self._decode is not None
        if len(values) and self._decode.errors == "null" and next(objects(values.to_pylist()), None) is None:
            _warn(f"values: none of the {len(values):,} values looked at is a JSON object, so {so}")


def _nearest(name: str, others: Sequence[str]) -> str | None:
    """The other name that somebody who wrote `name` may have meant."""
    by_text = {other.casefold(): other for other in others}
    near = difflib.get_close_matches(name.casefold(), list(by_text), 1, NEAR)
    return by_text[near[0]] if near else None


def _warn(text: str) -> None:
    """A UserWarning at the line that called the package."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kafkalog":
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMES_TOLD], *(["..."] if len(names) > NAMES_TOLD else [])])


def _fields_named(decode: ValueDecoding, columns: Sequence[str] | None) -> list[str]:
    """The names in `columns` that are no columns of records, and so may be fields of the values."""
    from kafkalog._face.arrow import PYTHON_COLUMNS

    if not isinstance(columns, Collection) or isinstance(columns, str | bytes | bytearray | memoryview):
        return []
    others = [name for name in columns if isinstance(name, str) and name not in PYTHON_COLUMNS]
    if others and decode.values in ("bytes", "text"):
        raise IllegalArgumentException(
            f"unknown column {others[0]!r}",
            hint=f'there are {", ".join(PYTHON_COLUMNS)}; values="json" makes columns of the fields of JSON, which '
            "schema= names",
        )
    return others


def _of_records(columns: Sequence[str] | None, named: list[str]) -> pa.Schema:
    """The columns of records that are asked for, with `value` where fields of it are named."""
    from kafkalog._face import arrow

    if not named or columns is None:
        return arrow.schema(columns)
    if len(set(named)) < len(named):
        twice = next(name for number, name in enumerate(named) if name in named[:number])
        raise IllegalArgumentException(f"columns: found {twice!r} twice, expected each once")
    others = [name for name in columns if name not in named]
    return arrow.schema(others if "value" in others else [*others, "value"])


class _Chosen:
    """The columns that are named where fields of values are among them."""

    def __init__(self, columns: tuple[str, ...], wanted: pa.Schema, *, is_inferred: bool) -> None:
        self._columns = columns
        self._wanted = wanted
        self._at = wanted.get_field_index("value")
        self._is_inferred = is_inferred
        self._looked_at = 0  # values, of which fields are told

    def names(self, found: list[str], count: int) -> list[str]:
        """The names in `found` that are asked for, in the order of the question; `count` of `found` are fields."""
        from kafkalog._face.arrow import PYTHON_COLUMNS

        fields = found[self._at : self._at + count]
        chosen: list[str] = []
        for name in self._columns:
            if name == "value":
                chosen += fields
            elif name in found:
                chosen.append(name)
            else:
                more = "; schema= names fields that no value of the sample has" if self._is_inferred else ""
                told = _listed(fields)
                among = f", which none of the {self._looked_at:,} values looked at has" if self._looked_at else ""
                raise IllegalArgumentException(
                    f"unknown column {name!r}{among}",
                    hint=f"there are {', '.join(PYTHON_COLUMNS)}, and of the values {told or 'none'}{more}",
                )
        return list(dict.fromkeys(chosen))

    def of_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the columns that are asked for."""
        pyarrow = need_pyarrow()
        names = self.names(schema.names, len(schema) - len(self._wanted) + 1)
        return pyarrow.schema([schema.field(name) for name in names], schema.metadata)

    def completed(self, decode: ValueDecoding, looked_at: pa.RecordBatch | None, anywhere: Sample) -> ValueDecoding:
        """The decoding of JSON with fields that are named, and that only values elsewhere have."""
        pyarrow = need_pyarrow()
        from kafkalog._face.value_columns import decoding

        assert decode.schema is not None
        missing = {*self._columns} - {*decode.schema_for(self._wanted).names, "value"}
        self._looked_at = 0 if looked_at is None else len(looked_at)
        if not missing:
            return decode
        others = _taken(anywhere)
        if others is None or others == looked_at:
            return decode
        self._looked_at = len({row for each in (looked_at, others) if each is not None for row in _places(each)})
        told = _inferred(decoding("json", None, "null"), others).schema
        more = [field for field in told or () if field.name not in decode.schema.names]
        every = decoding("json", pyarrow.schema([*decode.schema, *more]), decode.errors, keys=decode.keys)
        names = self._fields(every)[len(decode.schema) :]
        more = [field for name, field in zip(names, more, strict=True) if name in missing]
        return decoding("json", pyarrow.schema([*decode.schema, *more]), decode.errors, keys=decode.keys)

    def narrowed(self, decode: ValueDecoding) -> ValueDecoding:
        """The decoding without the fields of JSON that nobody asked for."""
        if decode.values != "json" or decode.schema is None or "value" in self._columns:
            return decode
        pyarrow = need_pyarrow()
        from kafkalog._face.value_columns import decoding

        full = self._fields(decode)
        chosen = set(self.of_schema(decode.schema_for(self._wanted)).names)
        kept = [(name, field) for name, field in zip(full, decode.schema, strict=True) if name in chosen]
        made = decoding("json", pyarrow.schema([field for _, field in kept]), decode.errors, keys=decode.keys)
        # A field that has the name of a column of records may be called another where some are left out.
        return made if self._fields(made) == [name for name, _ in kept] else decode

    def _fields(self, decode: ValueDecoding) -> list[str]:
        """The names of the columns that values become."""
        names: list[str] = decode.schema_for(self._wanted).names
        return names[self._at : len(names) - (len(self._wanted) - self._at - 1)]


def with_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows whose value is not null, which tells nothing; no batch is empty."""
    for batch in batches:
        column = batch.column(batch.schema.get_field_index("value"))
        found = batch if not column.null_count else batch.filter(column.is_valid())
        if found.num_rows:
            yield found


def _taken(sample: Sample) -> pa.RecordBatch | None:
    """A sample as one batch of at most SAMPLE_ROWS; None if there is nothing in it."""
    taken = list(sample())
    if not taken:
        return None
    found: pa.RecordBatch = need_pyarrow().Table.from_batches(taken)[:SAMPLE_ROWS].combine_chunks().to_batches()[0]
    return found


def _places(sample: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(sample.column(name).to_pylist() for name in SAMPLED if name != "value"), strict=True)


def _inferred(decode: ValueDecoding, records: pa.RecordBatch | None) -> ValueDecoding:
    """The decoding as these records of a sample tell it."""
    pyarrow = need_pyarrow()
    from kafkalog._face.value_columns import decoding

    found = pyarrow.array([], pyarrow.binary()) if records is None else records.column("value")
    if decode.values == "json":  # what is no JSON is told where it is read, with its place
        fields = decoding("json", None, "null").infer(found).schema
        return decoding("json", fields, decode.errors, keys=decode.keys)
    return decode if records is None else decode.infer(found, records=records)


def known_schema(schema: pa.Schema | None) -> pa.Schema:
    """IllegalArgumentException for one that nothing tells."""
    if schema is None:
        raise IllegalArgumentException(
            "values: nothing tells what the function returns, for there are no values to try it with",
            hint="give schema=, what it returns; then days without records have its columns, too",
        )
    return schema
