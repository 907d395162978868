"""The columns that reading needs from the log, and the columns that it returns: values and keys as bytes, or decoded.

If the caller gives no schema, it is inferred from a sample before the first batch, so that all batches have the same
one.
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

SAMPLE_ROWS = 2_000  # values from which the fields of JSON are inferred
SAMPLED = ("topic", "partition", "offset", "value")
NEAR = 0.75  # difflib's similarity of two names from which one may be a typing error
NAMES_TOLD = 30  # names of fields in an error


class Decoding(TypedDict, total=False):
    """The keyword arguments that decode values and keys into columns.

    If values become several columns, `columns` may name these too, such as ["offset", "id"].  Other fields of JSON are
    not decoded then.  "value" stands for all of them.

    Attributes:
        values: "bytes" (the default), "text", "json", or a function of a batch's values, such as
            `kafkalog.decoding.wire_format(...)`.  With "text", a value that is not UTF-8 is an error.  With "json", the
            fields of JSON objects become columns in place of `value`; a field with the name of a record's column
            becomes `value_<name>`.
        schema: With "json", the names and types of the fields: a pyarrow.Schema, or a mapping such as {"id": "int64",
            "tags": "list<string>"}.  Types are pyarrow's bool, int32, int64, float64, string, timestamp, decimal128,
            list and struct, or their text, or Python's int, float, str, bool, datetime and list[...].  A mapping stands
            for an object, a list of one type for an array, and "json" for the JSON text of any value. Without a schema
            it is inferred from up to 2,000 of the first and last values; values that are not JSON objects do not count.
            A field whose values have different types is then the text of its JSON, and a field that none of these
            values has is omitted.  With a function, the schema is what the function returns.
        errors: "raise" raises a RecordDeserializationException that names the record; "null" makes a value null that is
            not text, not JSON, or of another type.
        keys: "bytes" (the default) or "text".

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders")
        ...     offsets = orders.append_many([(b'{"id": 7}', b"customer-7"), (b"not JSON", b"customer-8")])
        ...     table = orders.read_arrow(columns=["key", "id"], values="json", schema={"id": "int64"},
        ...                               errors="null", keys="text")
        >>> table.to_pylist()
        [{'key': 'customer-7', 'id': 7}, {'key': 'customer-8', 'id': None}]
    """

    values: Literal["bytes", "text", "json"] | Callable[[Any], Any]
    schema: Any
    errors: Literal["raise", "null"]
    keys: Literal["bytes", "text"]


def decoding_of(values: Any = "bytes", schema: Any = None, errors: str = "raise", keys: str = "bytes") -> ValueDecoding:
    """Returns the ValueDecoding for the arguments of `Decoding`."""
    from kafkalog._face.value_columns import decoding

    return decoding(values, schema, errors, keys=keys)


def taken_from(asked: Any) -> ValueDecoding:
    """Removes the arguments of `Decoding` from `asked`, and returns their ValueDecoding."""
    return decoding_of(**{name: asked.pop(name) for name in Decoding.__annotations__ if name in asked})


class DecodedColumns:
    """Turns batches with the columns `read` into batches with the requested, decoded columns (`of`).

    `columns` may name columns of records, columns of the values' fields, and `value` for all of these fields.  Another
    name raises IllegalArgumentException.

    `schema` is the schema of the result, or None if only the batches determine it.  `sample` returns a few batches with
    the columns SAMPLED and without null values: the schema of JSON is inferred from them, and errors name their
    records. `anywhere` returns a sample of everything, for fields that are named but that the first sample does not
    have.
    """

    def __init__(self, decode: ValueDecoding, columns: Sequence[str] | None, sample: Sample, anywhere: Sample) -> None:
        named = _fields_named(decode, columns)
        self.names_fields = bool(named)
        wanted = _of_records(columns, named)
        self.schema: pa.Schema | None = wanted
        self._wanted = wanted
        self.read: list[str] = wanted.names
        self._extra: list[str] = []  # columns that are read for errors alone
        is_given = decode.schema is not None
        self._is_doubtful = False  # True until values were seen that have a field of the given schema
        self._given: list[str] = [] if decode.schema is None else decode.schema.names
        self._decode: ValueDecoding | None = None
        self._chosen: _Chosen | None = None
        self.is_blind = False  # True if no value has a field of JSON
        if "value" not in wanted.names:  # values are not read, so they are not decoded
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
        """Returns the schema, after a batch or this sample has determined the result of a function."""
        if self._decode is None:
            return self.schema
        if self._decode.schema is None and sample is not None:
            self._decode = _inferred(self._decode, _taken(sample))
        self.schema = None if self._decode.schema is None else self._decode.schema_for(self._wanted)
        if self._chosen is not None and self.schema is not None:
            self.schema = self._chosen.of_schema(self.schema)
        return self.schema

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the decoded batch; raises RecordDeserializationException, which names the record."""
        if self._decode is None:
            return batch
        made = self._decode.apply(batch)
        if self._is_doubtful:
            self._is_doubtful = self._tell_strangers(batch, made)
        if self._chosen is not None:
            return made.select(self._chosen.names(made.schema.names, len(made.schema) - len(batch.schema) + 1))
        return made if not self._extra else made.select([name for name in made.schema.names if name not in self._extra])

    def _tell_strangers(self, batch: pa.RecordBatch, made: pa.RecordBatch) -> bool:
        """Warns if the values have no field of the schema, or have a field with a similar name instead.

        Returns whether the next batch must be checked too.
        """
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
                f"schema: none of the {len(values):,} sampled values has any of its fields {_listed(names)}, so "
                f"these are null; the values have {_listed(found.names)}"
            )
        else:
            strangers = [name for name in found.names if name not in self._given]
            near = {name: _nearest(name, strangers) for name in absent}
            told = [f"{name} (did you mean {other}?)" for name, other in near.items() if other is not None]
            if told:
                _warn(f"schema: none of the {len(values):,} sampled values has {_listed(told)}, so it is null")
        return False

    def _tell_if_no_object(self, values: pa.Array, so: str) -> None:
        from kafkalog._face.json_schema import objects

        assert self._decode is not None
        if len(values) and self._decode.errors == "null" and next(objects(values.to_pylist()), None) is None:
            _warn(f"values: none of the {len(values):,} sampled values is a JSON object, so {so}")


def _nearest(name: str, others: Sequence[str]) -> str | None:
    """Returns the most similar name among `others`, or None if none is similar."""
    by_text = {other.casefold(): other for other in others}
    near = difflib.get_close_matches(name.casefold(), list(by_text), 1, NEAR)
    return by_text[near[0]] if near else None


def _warn(text: str) -> None:
    """Issues a UserWarning at the line that called the package."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kafkalog":
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth)


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMES_TOLD], *(["..."] if len(names) > NAMES_TOLD else [])])


def _fields_named(decode: ValueDecoding, columns: Sequence[str] | None) -> list[str]:
    """Returns the names in `columns` that are not columns of records, and so may be fields of the values."""
    from kafkalog._face.arrow import PYTHON_COLUMNS

    if not isinstance(columns, Collection) or isinstance(columns, str | bytes | bytearray | memoryview):
        return []
    others = [name for name in columns if isinstance(name, str) and name not in PYTHON_COLUMNS]
    if others and decode.values in ("bytes", "text"):
        raise IllegalArgumentException(
            f"unknown column {others[0]!r}",
            hint=f'the columns are {", ".join(PYTHON_COLUMNS)}; values="json" makes a column of each field of JSON '
            "values",
        )
    return others


def _of_records(columns: Sequence[str] | None, named: list[str]) -> pa.Schema:
    """Returns the requested columns of records, with `value` if fields of it are named."""
    from kafkalog._face import arrow

    if not named or columns is None:
        return arrow.schema(columns)
    if len(set(named)) < len(named):
        twice = next(name for number, name in enumerate(named) if name in named[:number])
        raise IllegalArgumentException(f"columns: found {twice!r} twice, expected each once")
    others = [name for name in columns if name not in named]
    return arrow.schema(others if "value" in others else [*others, "value"])


class _Chosen:
    """The requested columns, if fields of values are among them."""

    def __init__(self, columns: tuple[str, ...], wanted: pa.Schema, *, is_inferred: bool) -> None:
        self._columns = columns
        self._wanted = wanted
        self._at = wanted.get_field_index("value")
        self._is_inferred = is_inferred
        self._looked_at = 0  # how many values were sampled

    def names(self, found: list[str], count: int) -> list[str]:
        """Returns the requested names in `found`, in the requested order; `count` names in `found` are fields."""
        from kafkalog._face.arrow import PYTHON_COLUMNS

        fields = found[self._at : self._at + count]
        chosen: list[str] = []
        for name in self._columns:
            if name == "value":
                chosen += fields
            elif name in found:
                chosen.append(name)
            else:
                more = "; schema= can name fields that no sampled value has" if self._is_inferred else ""
                told = _listed(fields)
                among = f", which none of the {self._looked_at:,} sampled values has" if self._looked_at else ""
                raise IllegalArgumentException(
                    f"unknown column {name!r}{among}",
                    hint=f"the columns are {', '.join(PYTHON_COLUMNS)}; the values' fields are {told or 'none'}{more}",
                )
        return list(dict.fromkeys(chosen))

    def of_schema(self, schema: pa.Schema) -> pa.Schema:
        """Returns the schema of the requested columns."""
        pyarrow = need_pyarrow()
        names = self.names(schema.names, len(schema) - len(self._wanted) + 1)
        return pyarrow.schema([schema.field(name) for name in names], schema.metadata)

    def completed(self, decode: ValueDecoding, looked_at: pa.RecordBatch | None, anywhere: Sample) -> ValueDecoding:
        """Returns the decoding of JSON with the named fields that only values outside of the sample have."""
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
        """Returns the decoding without the fields of JSON that were not requested."""
        if decode.values != "json" or decode.schema is None or "value" in self._columns:
            return decode
        pyarrow = need_pyarrow()
        from kafkalog._face.value_columns import decoding

        full = self._fields(decode)
        chosen = set(self.of_schema(decode.schema_for(self._wanted)).names)
        kept = [(name, field) for name, field in zip(full, decode.schema, strict=True) if name in chosen]
        made = decoding("json", pyarrow.schema([field for _, field in kept]), decode.errors, keys=decode.keys)
        # A field with the name of a record's column may get another name if some fields are omitted.
        return made if self._fields(made) == [name for name, _ in kept] else decode

    def _fields(self, decode: ValueDecoding) -> list[str]:
        """Returns the names of the columns that values become."""
        names: list[str] = decode.schema_for(self._wanted).names
        return names[self._at : len(names) - (len(self._wanted) - self._at - 1)]


def with_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows whose value is not null, because null determines no schema; no batch is empty."""
    for batch in batches:
        column = batch.column(batch.schema.get_field_index("value"))
        found = batch if not column.null_count else batch.filter(column.is_valid())
        if found.num_rows:
            yield found


def _taken(sample: Sample) -> pa.RecordBatch | None:
    """Returns a sample as one batch of at most SAMPLE_ROWS rows; None if it is empty."""
    taken = list(sample())
    if not taken:
        return None
    found: pa.RecordBatch = need_pyarrow().Table.from_batches(taken)[:SAMPLE_ROWS].combine_chunks().to_batches()[0]
    return found


def _places(sample: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(sample.column(name).to_pylist() for name in SAMPLED if name != "value"), strict=True)


def _inferred(decode: ValueDecoding, records: pa.RecordBatch | None) -> ValueDecoding:
    """Returns the decoding with the schema of these records."""
    pyarrow = need_pyarrow()
    from kafkalog._face.value_columns import decoding

    found = pyarrow.array([], pyarrow.binary()) if records is None else records.column("value")
    if decode.values == "json":  # reading reports values that are not JSON, with their positions
        fields = decoding("json", None, "null").infer(found).schema
        return decoding("json", fields, decode.errors, keys=decode.keys)
    return decode if records is None else decode.infer(found, records=records)


def known_schema(schema: pa.Schema | None) -> pa.Schema:
    """Returns the schema, or raises IllegalArgumentException if there is none."""
    if schema is None:
        raise IllegalArgumentException(
            "values: the columns of the function's result are not known, because there are no values to call it with",
            hint="pass its result's schema as schema=; then a range without records has the columns, too",
        )
    return schema
