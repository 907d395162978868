"""Columns that decode values: the wire format of schema registries, and Debezium's messages.

All of them are expressions of Spark, such as `from_avro`, `from_protobuf` and `from_json`: no row goes through Python.
A CASE on the schema id chooses among the schemas that were given when the column was built, and Spark evaluates only
the branch that it needs.  All branches of Avro read into one reader schema.  `functions` is the public API for these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType

from kafkalog._face.avro_schemas import whole_schema
from kafkalog._face.proto_schemas import Proto, prefixes, proto_of
from kafkalog._face.schemas import FORMATS, TOKEN, USER_INFO, Schema, listed, load_schemas
from kafkalog.decoding import EXPECTED_FORMAT
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.json_types import spark_type

MODES = ("FAILFAST", "PERMISSIVE")
HEADER_BYTES = 5
# Added fields that distinguish a record of nulls from a value that could not be read.
READ, BROKEN = "_kafkalog_read", "_kafkalog_broken"
ENVELOPE = ("op", "before", "after", "source", "ts_ms")


# More than eight parameters: the place of the schemas, their choice and the way of reading are one call.
def from_registry(
    value: Column | str,
    schemas: object = None,
    format: str = "avro",
    *,
    ids: Iterable[int] | None = None,
    subject: str | Iterable[str] | None = None,
    reader: object = None,
    message: str | None = None,
    mode: str = "FAILFAST",
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decodes values in the wire format of schema registries: a zero byte, the schema id in four bytes, the payload.

    Null stays null.  A registry is read once, when the column is built: a schema that is registered later is an
    unknown id.

    Args:
        value: The column, or its name.
        schemas: A map of ids to schemas (text, or the bytes of a Protobuf descriptor set); or a directory with
            {id}.avsc, {id}.json, {id}.proto or {id}.desc; or the address of a Schema Registry, several with commas.
            Credentials may be in the address (http://user:password@host:8081).
        format: "avro" decodes with `from_avro` of spark-avro, "protobuf" with `from_protobuf` of spark-protobuf,
            "json" with `from_json`.
        ids: The ids of the schemas to load.
        subject: The subject, or several, whose schemas to load from a registry: all versions, also deleted ones.
        reader: The schema that all values are read into: an Avro schema, a JSON Schema, a Spark type for JSON, or an
            id.  Default: the newest schema (the last version of `subject`, or the highest id).
        message: The message of a Protobuf schema.  Default: the first message of the newest schema.  A value that is
            another message is an error.
        mode: "FAILFAST" fails the query for a value that is not in this format, has an unknown id or cannot be
            decoded.  "PERMISSIVE" returns null for it.
        options: Options of Spark's function.  "basic.auth.user.info" and "bearer.auth.token" are credentials for the
            registry.

    Returns:
        A column with the decoded values.  If Spark lacks the module for the format, selecting it fails.

    Raises:
        IllegalArgumentException: An argument is not valid, or a map or directory lacks a wanted id.
        NoSuchFileException: The directory of the schemas does not exist.
        KafkaStorageException: The directory cannot be read.
        RemoteResourceNotFoundException: The registry does not have an id or a subject.
        RemoteStorageException: The registry does not answer, or refuses access.

    Example:
        Decode the topic `orders` with all versions of its schema:

            orders.select(K.from_registry("value", "http://registry:8081", subject="orders-value").alias("order"))
    """
    if format not in FORMATS:
        raise IllegalArgumentException(f"format is {format!r}", hint=f"expected one of {', '.join(FORMATS)}")
    _check_mode(mode)
    given = dict(options or {})
    if any(name.lower() == "mode" for name in given):
        raise IllegalArgumentException("options has mode, which is an argument", hint='write mode="PERMISSIVE"')
    if message is not None and format != "protobuf":
        raise IllegalArgumentException(
            f"message is {message!r}, but format is {format}", hint="only format='protobuf' has messages"
        )
    of_registry = {name: given.pop(name) for name in (USER_INFO, TOKEN) if name in given}
    wire = _Wire(_column(value).cast("binary"), _name(value), mode)
    more = {"mode": mode, **given}
    if format == "json":
        return _json(wire, _loaded_json(schemas, ids, subject, reader, of_registry), reader, more)
    loaded = load_schemas(schemas, format, ids=ids, subject=subject, options=of_registry)
    return _avro(wire, loaded, reader, more) if format == "avro" else _protobuf(wire, loaded, reader, message, more)


def schema_id(value: Column | str) -> Column:
    """Returns the schema id of a value in the wire format of schema registries.

    Args:
        value: The column, or its name.

    Returns:
        A bigint column; null for a value that is not in this format.

    Example:
        List the ids that the values of a DataFrame have:

            frame.select(K.schema_id("value").alias("id")).distinct()
    """
    wire = _Wire(_column(value).cast("binary"), _name(value), "PERMISSIVE")
    return F.when(wire.is_framed, wire.id)


def debezium(
    value: Column | str,
    schema: str | DataType | None = None,
    *,
    decoded: bool = False,
    mode: str = "FAILFAST",
) -> Column:
    """Parses a change event of Debezium: struct<op, before, after, source, ts_ms, message>.

    `op` is c (created), u (updated), d (deleted), r (read by a snapshot), t (truncated) or m (a message of the
    database, which is in `message`).  `before` and `after` are rows, or null if the event has none.  `source` is a map
    of strings, `ts_ms` a bigint and `message` JSON.  A tombstone, which is a null value, stays null.

    Args:
        value: The column, or its name: Debezium's JSON, with or without its schema part.
        schema: The type of `before` and `after`: DDL, or a Spark type.  Default: the JSON text of the row, in which
            numbers keep at most 17 digits; a schema with decimals keeps all.
        decoded: The value is a struct already, as `from_registry` returns it.  Then `before`, `after` and `source`
            keep their types, and there is no `message`.
        mode: "FAILFAST" fails the query for a value that is not an event (a JSON object with `op`) or does not fit
            `schema`.  "PERMISSIVE" returns null for the value, or for the fields of a row that do not fit.

    Returns:
        A column with the struct.

    Raises:
        IllegalArgumentException: `mode` or `schema` is not valid, or `schema` is given together with `decoded`.

    Example:
        Read the changes of a table:

            topic.select("offset", K.debezium("value", "id bigint, email string").alias("change"))
    """
    _check_mode(mode)
    column = _column(value)
    if decoded:
        if schema is not None:
            raise IllegalArgumentException(
                "schema is given together with decoded=True", hint="leave schema out: a struct has its types"
            )
        return _once(
            column, lambda each: F.when(each.isNotNull(), F.struct(*[each[name].alias(name) for name in ENVELOPE]))
        )
    rows, text = _row_type(schema), column.cast("string")
    kinds = (StringType(), rows, rows, MapType(StringType(), StringType()), LongType(), StringType())
    fields = [StructField(name, kind) for name, kind in zip((*ENVELOPE, "message"), kinds, strict=True)]
    parsed = F.from_json(text, StructType([*fields, StructField("payload", StructType(fields))]), {"mode": mode})
    why = F.concat(
        F.lit(f"{_name(value)}: found "),
        F.when(F.length(text) > 60, F.concat(F.substring(text, 1, 60), F.lit("..."))).otherwise(text),
        F.lit(", expected a change event of Debezium: a JSON object with op, before and after"),
    )
    bad = F.raise_error(why) if mode == "FAILFAST" else F.lit(None)

    def event_of(whole: Column) -> Column:
        bare = F.struct(*[whole[name].alias(name) for name in (*ENVELOPE, "message")])
        event = F.when(whole["payload"].isNotNull(), whole["payload"]).otherwise(bare)
        return F.when(event["op"].isNotNull(), event).otherwise(bad)

    return F.when(column.isNotNull(), _once(parsed, event_of))


def _row_type(schema: str | DataType | None) -> DataType:
    if schema is None:
        return StringType()
    if isinstance(schema, DataType):
        return schema
    if not isinstance(schema, str) or not schema.strip():
        raise IllegalArgumentException(
            f"schema: found {shown(schema)}, expected DDL such as 'id bigint, email string', or a Spark type"
        )
    return DataType.fromDDL(schema)


def _once(column: Column, use: Callable[[Column], Column]) -> Column:
    """Applies `use` to a column that is expensive to compute, so that Spark computes it once.

    Spark computes an expression again for each condition and field that uses it, but the argument of a lambda once.
    """
    return F.transform(F.array(column), use)[0]


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise IllegalArgumentException(f"mode is {mode!r}", hint=f"expected one of {', '.join(MODES)}")


def _name(given: Column | str) -> str:
    """Returns the name for messages; a column shows itself as Column<'name'>."""
    return given if isinstance(given, str) else str(given).removeprefix("Column<'").removesuffix("'>")


def _column(given: Column | str) -> Column:
    return F.col(given) if isinstance(given, str) else given


class _Wire:
    """A column of bytes in the wire format, its parts, and the result for a value that is not in this format."""

    def __init__(self, value: Column, name: str, mode: str) -> None:
        self.value = value
        self.name = name
        self.mode = mode
        self.length = F.length(value)
        magic = F.substring(value, 1, 1) == F.lit(bytearray(1))
        self.is_framed = (self.length >= HEADER_BYTES) & magic
        self.id = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
        self.payload = self.behind(HEADER_BYTES)

    def behind(self, count: int) -> Column:
        """Returns the bytes from position `count`."""
        return F.substring(self.value, count + 1, 0x7FFFFFFF - count)

    def chosen(self, branches: Mapping[int, Column]) -> Column:
        """Returns the branch for each value's schema id."""
        found = F.when(self.value.isNull(), F.lit(None)).when(~self.is_framed, self.refused(self.no_frame()))
        for number, branch in branches.items():
            found = found.when(self.id == number, branch)
        known = f", which is not among the schemas that were given when the query was built: {listed(branches)}"
        return found.otherwise(self.refused(F.concat(F.lit("found schema "), self.id.cast("string"), F.lit(known))))

    def refused_message(self, number: int, expected: str) -> Column:
        """Refuses a Protobuf value that is another message."""
        began = F.hex(F.substring(self.value, HEADER_BYTES + 1, 8))
        what = f" of schema {number}, expected the message indexes of {expected}"
        return self.refused(F.concat(F.lit("found 0x"), began, F.lit(what)))

    def no_frame(self) -> Column:
        size, began = self.length.cast("string"), F.hex(F.substring(self.value, 1, 8))
        found = F.concat(F.lit("found "), size, F.lit(" bytes that begin with 0x"), began)
        found = F.when(self.length == 0, F.lit("found no bytes")).otherwise(found)
        return F.concat(found, F.lit(f", {EXPECTED_FORMAT}"))

    def refused(self, text: Column) -> Column:
        if self.mode == "PERMISSIVE":
            return F.lit(None)
        hint = '; from_registry(..., mode="PERMISSIVE") returns null for it'
        return F.raise_error(F.concat(F.lit(f"{self.name}: "), text, F.lit(hint)))


# --- Avro ------------------------------------------------------------------------------------------------


def _avro(wire: _Wire, loaded: list[Schema], reader: object, options: dict[str, str]) -> Column:
    from pyspark.sql.avro.functions import from_avro

    texts = {each.schema_id: whole_schema(each) for each in loaded}
    wanted = texts[_reader_id(loaded, reader)] if reader is None or isinstance(reader, int) else _given(reader, "Avro")
    parsed = json.loads(wanted)
    is_told_apart = wire.mode == "PERMISSIVE" and isinstance(parsed, dict) and parsed.get("type") == "record"
    if is_told_apart:
        parsed["fields"] = [*parsed["fields"], {"name": READ, "type": "boolean", "default": True}]
    more = {**options, "avroSchema": json.dumps(parsed)}

    def branch(text: str) -> Column:
        made: Column = from_avro(wire.payload, text, more)
        # For a value that it cannot read, Spark returns a struct of nulls, which may also be a valid record.
        return _once(made, lambda each: F.when(each[READ], each.dropFields(READ))) if is_told_apart else made

    return wire.chosen({number: branch(text) for number, text in texts.items()})


def _reader_id(loaded: list[Schema], reader: object) -> int:
    """Returns the id that the caller wants, or the newest one."""
    if reader is None:
        return loaded[-1].schema_id
    there = [each.schema_id for each in loaded]
    if reader not in there or not isinstance(reader, int):
        raise IllegalArgumentException(
            f"reader: found {shown(reader)}, expected one of the ids {listed(there)}, or a schema"
        )
    return reader


def _given(reader: object, what: str) -> str:
    if isinstance(reader, str | Mapping | list):
        return whole_schema(Schema(0, reader if isinstance(reader, str) else json.dumps(reader)))
    raise IllegalArgumentException(f"reader: found {shown(reader)}, expected a schema in {what}, or an id")


# --- Protobuf --------------------------------------------------------------------------------------------


def _protobuf(
    wire: _Wire, loaded: list[Schema], reader: object, message: str | None, options: dict[str, str]
) -> Column:
    from pyspark.sql.protobuf.functions import from_protobuf

    protos = {each.schema_id: proto_of(each) for each in loaded}
    if isinstance(reader, str | bytes):
        wanted = proto_of(Schema(0, reader))
    else:
        wanted = protos[_reader_id(loaded, reader)]
    name = wanted.full_name(message)
    payload = proto_payload(wire, protos, name)
    made: Column = from_protobuf(payload, name, options=options, binaryDescriptorSet=wanted.descriptors)
    return made


def proto_payload(wire: _Wire, protos: Mapping[int, Proto], name: str) -> Column:
    """Returns the bytes of the message with this name, after its indexes, which differ between schemas.

    Protobuf fields have numbers, so the descriptors of one reader read the messages of all schemas.
    """
    branches = {}
    for number, proto in protos.items():
        branch: Any = F
        for prefix in prefixes(proto.messages[name]) if name in proto.messages else ():
            starts = F.substring(wire.value, HEADER_BYTES + 1, len(prefix)) == F.lit(bytearray(prefix))
            branch = branch.when(starts, wire.behind(HEADER_BYTES + len(prefix)))
        refused = wire.refused_message(number, name)
        branches[number] = refused if branch is F else branch.otherwise(refused)
    return wire.chosen(branches).cast("binary")


# --- JSON ------------------------------------------------------------------------------------------------


def _loaded_json(
    schemas: object, ids: Iterable[int] | None, subject: Any, reader: object, options: Mapping[str, str]
) -> list[Schema]:
    """Loads the schemas; none are needed if the reader's type is given, since JSON describes itself."""
    if schemas is None and reader is not None and not isinstance(reader, int) and ids is None and subject is None:
        return []
    return load_schemas(schemas, "json", ids=ids, subject=subject, options=options)


def _json(wire: _Wire, loaded: list[Schema], reader: object, options: dict[str, str]) -> Column:
    kind: DataType
    if isinstance(reader, DataType):
        kind = reader
    elif isinstance(reader, str) and not reader.lstrip().startswith(("{", "[")):
        kind = DataType.fromDDL(reader)
    elif reader is None or isinstance(reader, int):
        wanted = _reader_id(loaded, reader)
        kind = DataType.fromDDL(spark_type(next(each for each in loaded if each.schema_id == wanted)))
    elif isinstance(reader, str | Mapping):
        kind = DataType.fromDDL(spark_type(Schema(0, reader if isinstance(reader, str) else json.dumps(reader))))
    else:
        raise IllegalArgumentException(f"reader: found {shown(reader)}, expected a Spark type, a JSON Schema, or an id")
    if not loaded:
        payload = F.when(wire.value.isNull(), F.lit(None)).when(wire.is_framed, wire.payload)
        payload = payload.otherwise(wire.refused(wire.no_frame()))
    else:
        payload = wire.chosen({each.schema_id: wire.payload for each in loaded})
    text = payload.cast("binary").cast("string")
    if wire.mode != "PERMISSIVE" or not isinstance(kind, StructType):
        return F.from_json(text, kind, options)
    # For a value that it cannot read, Spark returns a struct of nulls, which may also be a valid object.
    told = StructType([*kind.fields, StructField(BROKEN, StringType())])
    found = F.from_json(text, told, {**options, "columnNameOfCorruptRecord": BROKEN})
    return _once(found, lambda each: F.when(each[BROKEN].isNull(), each.dropFields(BROKEN)))


__all__ = ["debezium", "from_registry", "schema_id"]


def __dir__() -> list[str]:
    return __all__
