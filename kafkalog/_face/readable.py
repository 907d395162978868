"""What can be asked of a partition, a topic and a store alike: their records, as objects, as Arrow and as data frames.

A `Readable` says which partitions it has; each of them reads itself (`Partition`).  What is asked is a `Selection`, and
means the same for one partition and for many.  Of many, partitions come one after the other, each as it is when its
turn comes; an offset that one of them has not is the nearest that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kafkalog._face.arrow_stream import stream_of
from kafkalog._face.chunk_reader import UNREADABLE
from kafkalog._face.damage_hint import helping
from kafkalog._face.decoded import (
    SAMPLE_ROWS,
    SAMPLED,
    DecodedColumns,
    Decoding,
    known_schema,
    taken_from,
    with_values,
)
from kafkalog._face.keywords import takes
from kafkalog._face.lazy import Lazy
from kafkalog._face.selected import batches_in, latest_in, records_in, selected_range
from kafkalog._face.selection import Filters, Place, Selection, selection_of
from kafkalog._face.shown import Shown
from kafkalog._face.window import hint_beyond
from kafkalog.engine.format import values
from kafkalog.engine.format.needs import need_duckdb, need_pandas, need_polars, need_pyarrow
from kafkalog.errors import IllegalArgumentException, OffsetOutOfRangeException

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from kafkalog._face.value_columns import ValueDecoding
    from kafkalog.engine.log.source import Source
    from kafkalog.records import Record

T = TypeVar("T")

BATCH_ROWS = 65_536
SAMPLE_PARTS = 20  # partitions that are asked for the fields of JSON


class Reading(Filters, Decoding, total=False):
    """`Filters`, `Decoding`, and what is read as Arrow.

    columns: of topic, partition, offset, timestamp, timestamp_type, key, value, headers (all of these by default), and
    leader_epoch; where `values` decodes to columns, of these, too.
    last: only the last so many records that pass, of each partition.
    partitions: which of a topic (numbers), or of a store (topics, or partitions such as "orders-0").
    """

    columns: Sequence[str] | None
    last: int | None
    partitions: Any


class Part(Protocol):
    """A partition (`kafkalog.Partition`)."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    def ready_to_read(self) -> Source:
        """What reads it; raises where nobody may."""


class Readable(Shown):
    """Records of one or more partitions."""

    def _parts(self, partitions: Any) -> Sequence[Part]:
        """The partitions that are read, in order; `partitions` as in `Reading`."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    @takes(Filters)
    def records(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        last: int | None = None,
        partitions: Any = None,
        **filters: Unpack[Filters],
    ) -> Iterator[Record]:
        """Records from `start` up to `end` (exclusive), by default all that are there now, partition by partition in
        the order of their offsets.

            for record in topic.records("2026-03-01", "2026-04-01", key="customer-7"):
                print(record.offset, record.value)

        `start` and `end` are offsets (int), or times (an aware datetime, ISO text): a time chooses records by their
        timestamps, whatever their order in the log.  `last`: only the last so many of each partition.  `partitions`:
        which of a topic (numbers), or of a store (topics, "orders-0").  Filters: `start_time`, `end_time`, `key`,
        `key_prefix`, `headers`, `grep`, `where`, `isolation`, `on_damage`; see `kafkalog.Filters`.  Control records are
        never seen.

        OffsetOutOfRangeException when `start` lies outside of the one partition that is read, or behind all of several,
        IllegalArgumentException when it lies behind `end`, CorruptRecordException with file and position at damage;
        MissingPackageException where `headers`, `grep` or `where` are given without pyarrow.
        """
        selection, parts = selection_of(start, end, filters), self._parts(partitions)
        found = self._of_all(parts, selection, last, partial(records_in, selection=selection))
        return Lazy(found, "records") if isinstance(found, Generator) else found

    @staticmethod
    def _of_all(
        parts: Sequence[Part], selection: Selection, last: Any, read: Callable[..., Iterator[T]]
    ) -> Iterator[T]:
        last = None if last is None else values.whole(last, "last", low=0, expected="a whole number from 0 on")
        if len(parts) == 1:
            ready = parts[0].ready_to_read
            return read(ready, place=selected_range(ready, selection, last))

        first = selection.window.start  # a time, or no more than a hint, is no place of a log

        def each() -> Generator[T]:
            ends: list[int] = []
            for part in parts:
                source = part.ready_to_read()  # one look at the directory: it is read at once

                def ready(source: Source = source) -> Source:
                    return source

                ends.append(source.log_end_offset)
                yield from read(ready, place=selected_range(ready, selection, last, lenient=True))
            if ends and isinstance(first, int) and first > max(ends):
                raise OffsetOutOfRangeException(
                    f"offset {first} is out of range: found {len(ends)} partitions, which end at offset {max(ends)} "
                    "at most",
                    hint=hint_beyond(first),
                )

        return each()

    @takes(Reading)
    def arrow_batches(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
        **reading: Unpack[Reading],
    ) -> Iterator[pa.RecordBatch]:
        """As `read_arrow`, as record batches of about `batch_rows` rows, or of fewer that hold some megabytes; each is
        of one partition."""
        return self._arrow(start, end, batch_rows, reading)[1]

    def _arrow(
        self, start: Place | None, end: Place | None, batch_rows: int, reading: Reading
    ) -> tuple[pa.Schema | None, Iterator[pa.RecordBatch]]:
        """What is asked for, as record batches, and their schema; None where only the batches tell it."""
        need_pyarrow()
        columns = reading.pop("columns", None)
        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        last, parts, decode = (
            reading.pop("last", None),
            self._parts(reading.pop("partitions", None)),
            taken_from(reading),
        )
        selection = selection_of(start, end, reading)

        def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            return self._of_all(
                parts, selection, last, partial(batches_in, selection=selection, columns=columns, batch_rows=batch_rows)
            )

        return _decoded(decode, columns, read, parts, selection, last, partial(self._parts, None))

    @takes(Reading)
    def read_arrow(self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]) -> pa.Table:
        """Records from `start` up to `end` as a pyarrow Table (needs pyarrow: `pip install 'kafkalog[arrow]'`).

            table = topic.read_arrow("2026-03-01", columns=["offset", "key", "value"], key_prefix="customer-")

        `start`, `end`, `last`, `partitions` and filters are those of `records`; `values`, `schema`, `errors` and `keys`
        decode (`kafkalog.Reading`):

            store.topic("orders").read_arrow(values="json", schema={"id": "int64", "amount": "float64"})

        Columns: topic string, partition int32, offset int64, timestamp timestamp[ms, UTC] (-1 ms where there is none),
        timestamp_type int8 (-1, 0, 1), key and value binary, headers list<struct<key: string, value: binary>> (null
        where there are none), and leader_epoch int32, which is read where `columns` names it.  Without records the
        table has the columns, and no rows.  Errors as `records`; MissingPackageException without pyarrow.
        """
        pa = need_pyarrow()
        schema, batches = self._arrow(start, end, BATCH_ROWS, reading)
        found = list(batches)
        return pa.Table.from_batches(found, schema if found else known_schema(schema))

    @takes(Reading)
    def arrow_reader(
        self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]
    ) -> pa.RecordBatchReader:
        """As `read_arrow`, as a pyarrow RecordBatchReader: what it gives is read while it is taken."""
        pa = need_pyarrow()
        schema, batches = self._arrow(start, end, BATCH_ROWS, reading)
        return pa.RecordBatchReader.from_batches(known_schema(schema), batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All records to any Arrow consumer (polars, DuckDB, pandas), streamed, with the columns of `read_arrow`."""
        return stream_of(self.arrow_reader(), requested_schema)

    @takes(Reading)
    def to_pandas(self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]) -> Any:
        """As `read_arrow`, as a pandas DataFrame (`pip install 'kafkalog[pandas]'`).

        Types are those of pyarrow's `to_pandas`, but for columns of integers or booleans that have nulls: these have
        pandas' nullable types (Int64, boolean), for a float64 would change large integers.  Inside lists and objects
        values are Python's.
        """
        return _in_pandas(self.read_arrow(start, end, **reading))

    @takes(Reading)
    def to_polars(self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]) -> Any:
        """As `read_arrow`, as a polars DataFrame (`pip install 'kafkalog[polars]'`)."""
        polars = need_polars()
        return polars.DataFrame(self.read_arrow(start, end, **reading))

    @takes(Reading)
    def to_duckdb(
        self,
        connection: Any,
        name: str,
        start: Place | None = None,
        end: Place | None = None,
        **reading: Unpack[Reading],
    ) -> Any:
        """Makes the table `name` of a DuckDB connection, or replaces it, with the rows of `read_arrow`; answers it as
        a relation; `schema.table` is a table of that schema.  Rows go there batch by batch (`pip install
        'kafkalog[duckdb]'`).  Errors are those of `read_arrow`, and then there is no such table, or the one of before.

            import duckdb
            con = duckdb.connect()
            topic.to_duckdb(con, "orders", "2026-03-01").count("*").show()
        """
        need_duckdb()
        if not hasattr(connection, "register"):
            raise IllegalArgumentException(
                f"connection: found {values.shown(connection)}, expected one of duckdb.connect()"
            )
        if not values.text(name, "name"):
            raise IllegalArgumentException("name: found an empty text, expected the name of a table")
        parts = name.split(".")
        if len(parts) > 3 or not all(parts):
            raise IllegalArgumentException(
                f"name: found {values.shown(name)}, expected a table, schema.table or database.schema.table"
            )
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
        failures: list[BaseException] = []
        schema, batches = self._arrow(start, end, BATCH_ROWS, reading)
        rows = need_pyarrow().RecordBatchReader.from_batches(known_schema(schema), _watched(batches, failures))
        stream = f"kafkalog_rows_{id(rows):x}"
        connection.register(stream, rows)
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {quoted} AS SELECT * FROM {stream}")
        except Exception as error:  # DuckDB's, which has ours as text
            if failures:
                raise failures[0] from None
            if len(parts) > 1 and type(error).__name__ == "CatalogException":
                raise IllegalArgumentException(
                    f"name: found {values.shown(name)}, which DuckDB cannot make: {error}",
                    hint=f"create the schema {'.'.join(parts[:-1])} first, or leave out the dot",
                ) from error
            raise
        finally:
            connection.unregister(stream)
        return connection.table(quoted)

    @takes(Reading)
    def latest(
        self,
        end: Place | None = None,
        *,
        start: Place | None = None,
        tombstones: bool = False,
        batch_rows: int = BATCH_ROWS,
        memory_bytes: int | None = None,
        **reading: Unpack[Reading],
    ) -> pa.RecordBatchReader:
        """The last value of each key below `end` (exclusive; by default of all that is there now), by offset: what a
        clean of the whole log would keep.

        A pyarrow RecordBatchReader of batches of up to `batch_rows` rows, with the columns of `read_arrow`; its
        `read_all()` makes a Table.  `end` is an offset, or a time: the state as of then, by the records' timestamps,
        as far as cleaners and retention have left it: a key of a compacted topic that has changed since then may have
        no row.
        `start`, `key`, `key_prefix`, `start_time` and `end_time` choose the records that count; `headers`, `grep` and
        `where` choose among the last values.  Aborted records never count, nor do those from the oldest open
        transaction on, unless `isolation`, here "read_committed" by default, is "read_uncommitted".  A key whose last
        value is null is deleted: no row, or with `tombstones` a row without a value.  Records without a key are left
        out.  A key that is in several partitions has a row for each.

            state = {row["key"]: row["value"] for batch in log.latest() for row in batch.to_pylist()}

        Reads the log twice: for the keys in this call, for the rows while they are taken.  In memory are the map of
        the keys (27 bytes a key, while it grows three times that), at most `memory_bytes` (by default 512 MiB: 12
        million keys), 8 bytes for each key, and a batch; with more keys the first reading is repeated for each share of
        them.  Keys are told apart by their MD5, as Kafka's cleaner does.

        What retention deletes between the two readings is left out; where a cleaner, or a cut, takes records meanwhile
        it is OffsetOutOfRangeException: ask again.  CorruptRecordException with file and position at damage, behind the
        rows before it.  MissingPackageException without pyarrow.
        """
        pyarrow = need_pyarrow()
        columns = reading.pop("columns", None)
        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        tombstones = values.flag(tombstones, "tombstones")
        decode = taken_from(reading)
        if reading.pop("last", None) is not None:
            raise IllegalArgumentException("last: found it for the last values of keys", hint="leave it out")
        parts = self._parts(reading.pop("partitions", None))
        selection = selection_of(start, end, {"isolation": "read_committed", **reading})
        is_one = len(parts) == 1
        found = [
            latest_in(part.ready_to_read, selection, memory_bytes=memory_bytes, lenient=not is_one) for part in parts
        ]

        def read(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
            with helping():
                for each in found:
                    for batch in each.batches(selection.columns_for(columns), batch_rows, tombstones=tombstones):
                        batch = selection.filtered(batch, columns)
                        if batch.num_rows:
                            yield batch

        known, batches = _decoded(decode, columns, read, parts, selection, None, partial(self._parts, None))
        reader: pa.RecordBatchReader = pyarrow.RecordBatchReader.from_batches(known_schema(known), batches)
        return reader


def _watched(batches: Iterator[T], failures: list[BaseException]) -> Iterator[T]:
    """The same; what ends it early is kept, an interrupt as well, for who reads them may tell another."""
    try:
        yield from batches
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)
        raise


def _in_pandas(table: pa.Table) -> Any:
    """A table as a DataFrame that has each integer and boolean as it is, beside nulls, too."""
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


def _sample(parts: Sequence[Part], selection: Selection, last: int | None) -> Iterator[pa.RecordBatch]:
    """Values that are not null, from the beginning and the end of some of the partitions, up to damage: fields of JSON
    come and go.  If there are none, those of the first other partition that has some."""
    step = max(1, len(parts) // SAMPLE_PARTS)
    some = parts[::step]
    rows = max(1, SAMPLE_ROWS // (2 * len(some) or 1))
    quiet, found = selection.untold(), False
    for number, part in enumerate((*some, *(part for number, part in enumerate(parts) if number % step))):
        if found and number >= len(some):
            break
        for count in (last, rows if last is None else min(rows, last)):
            left = rows
            with suppress(*UNREADABLE):
                place = selected_range(part.ready_to_read, quiet, count, lenient=True)
                for batch in with_values(batches_in(part.ready_to_read, quiet, place, SAMPLED, rows)):
                    found = True
                    yield batch[:left]
                    left -= batch.num_rows
                    if left <= 0:
                        break
                else:  # all of it was read
                    break


def _sample_anywhere(
    parts: Sequence[Part], selection: Selection, everything: Callable[[], Sequence[Part]]
) -> Iterator[pa.RecordBatch]:
    """The same of whatever there is in these partitions, and in the others of their topics."""
    topics, places = {part.topic for part in parts}, {(part.topic, part.partition) for part in parts}
    others = [part for part in everything() if part.topic in topics and (part.topic, part.partition) not in places]
    yield from _sample([*parts, *others], Selection(isolation=selection.isolation), None)


def _decoded(
    decode: ValueDecoding,
    columns: Sequence[str] | None,
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
    parts: Sequence[Part],
    selection: Selection,
    last: int | None,
    everything: Callable[[], Sequence[Part]],
) -> tuple[pa.Schema | None, Iterator[pa.RecordBatch]]:
    """What `read` gives of these columns, decoded, and its schema; None where only the batches tell it.  `everything`
    gives what is there beside `parts`, for a sample.

    What a function returns is told by the first batch that has a value, if that is the first of all, so that no value
    is decoded twice; else by a sample.
    """
    peeks = callable(decode.values) and decode.schema is None
    sample, anywhere = partial(_sample, parts, selection, last), partial(_sample_anywhere, parts, selection, everything)
    made = DecodedColumns(decode, columns, (lambda: iter(())) if peeks else sample, anywhere)
    if not peeks or made.schema is not None:

        def decoded() -> Iterator[pa.RecordBatch]:
            for batch in read(made.read):
                yield made.of(batch)

        return made.schema, decoded()
    batches = read(made.read)
    raw = next(batches, None)
    first = [made.of(raw)] if raw is not None and any(with_values([raw])) else []
    known = made.learn()
    for values_of in (sample, anywhere):
        known = made.learn(values_of) if known is None else known
    if known is None and made.names_fields:
        known_schema(None)
    if not first or (known is not None and not first[0].schema.equals(known)):
        first = [] if raw is None else [made.of(raw)]

    def behind() -> Iterator[pa.RecordBatch]:
        while first:
            yield first.pop()
        for batch in batches:
            yield made.of(batch)

    return made.schema, behind()
