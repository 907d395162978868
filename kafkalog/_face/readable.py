"""The reading methods that a partition, a topic and a store share: records as objects, as Arrow and as data frames.

A `Readable` returns its partitions, and each of them reads its own records (`Partition`).  The arguments become a
`Selection`, which means the same for one partition and for several.  Several partitions are read one after the other,
each with its state at that time.  If one of several does not have an offset, it uses the nearest offset that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

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
from kafkalog._face.frames import DuckTable, pandas_of, polars_of, table_of
from kafkalog._face.keywords import takes
from kafkalog._face.lazy import Lazy
from kafkalog._face.selected import batches_in, latest_in, records_in, selected_range
from kafkalog._face.selection import Filters, Place, Selection, selection_of
from kafkalog._face.shown import Shown
from kafkalog._face.window import hint_beyond
from kafkalog.engine.format import values
from kafkalog.engine.format.needs import need_duckdb, need_pyarrow
from kafkalog.errors import IllegalArgumentException, OffsetOutOfRangeException

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from kafkalog._face.value_columns import ValueDecoding
    from kafkalog.engine.log.source import Source
    from kafkalog.records import Record

T = TypeVar("T")

BATCH_ROWS = 65_536
SAMPLE_PARTS = 20  # partitions whose values determine the fields of JSON


class Reading(Filters, Decoding, total=False):
    """The keyword arguments of methods that read records as Arrow: those of `Filters` and `Decoding`, and three more.

    Attributes:
        columns: The columns to read: topic, partition, offset, timestamp, timestamp_type, key, value, headers (by
            default all of these), and leader_epoch.  If `values` decodes to columns, their names are valid too.
        last: Read only the last so many matching records of each partition.
        partitions: The partitions to read: numbers for a topic; topics or partitions ("orders-0") for a store.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders")
        ...     offsets = orders.append_many([b"one", b"two", b"three"])
        ...     print(orders.read_arrow(columns=["value"], last=2, partitions=[0]).to_pylist())
        [{'value': b'two'}, {'value': b'three'}]
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
        """Returns the Source that reads the partition; raises if it cannot be read."""


class Readable(Shown):
    """Reads the records of one or more partitions."""

    def _parts(self, partitions: Any) -> Sequence[Part]:
        """Returns the partitions to read, in order; `partitions` as in `Reading`."""
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
        """Returns an iterator over records, partition by partition, in the order of their offsets.

        Control records are never returned.

        Args:
            start: The first record: an offset (int) or a time (a datetime with a time zone, or ISO 8601 text).  A time
                selects records by their timestamps, in whatever order the log has them.  By default the log's start.
            end: The end (exclusive): an offset or a time; by default the current end.
            last: Return only the last so many matching records of each partition.
            partitions: The partitions to read: numbers for a topic; topics or partitions ("orders-0") for a store.
            **filters: `key`, `key_prefix`, `start_time`, `end_time`, `headers`, `grep`, `where`, `isolation` and
                `on_damage` choose records; see `kafkalog.Filters`.

        Returns:
            An iterator of Records.

        Raises:
            OffsetOutOfRangeException: `start` is outside of the single partition that is read, or after the end of all
                of several.
            IllegalArgumentException: `start` is after `end`, or an argument has a wrong type or value.
            CorruptRecordException: The log is damaged; the error names file and position.
            KafkaStorageException: The log cannot be read.
            MissingPackageException: `headers`, `grep` or `where` is given, and pyarrow is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([(b"one", b"customer-7"), (b"two", b"customer-8")])
            ...     for record in orders.records("2026-01-01", key="customer-7"):
            ...         print(record.offset, record.value)
            0 b'one'
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

        first = selection.window.start  # only an int is an offset that must exist; a time or a hint need not

        def each() -> Generator[T]:
            ends: list[int] = []
            for part in parts:
                source = part.ready_to_read()  # checks the directory once, because it is read right away

                def ready(source: Source = source) -> Source:
                    return source

                ends.append(source.log_end_offset)
                yield from read(ready, place=selected_range(ready, selection, last, lenient=True))
            if ends and isinstance(first, int) and first > max(ends):
                raise OffsetOutOfRangeException(
                    f"offset {first} is out of range: all of the {len(ends)} partitions end at or before offset "
                    f"{max(ends)}",
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
        """Returns an iterator over records as pyarrow record batches.

        Args:
            start: As for `records`.
            end: As for `records`.
            batch_rows: The approximate number of rows of a batch; a batch of several megabytes has fewer.
            **reading: As for `read_arrow`.

        Returns:
            An iterator of pyarrow.RecordBatch, each of one partition.

        Raises:
            KafkalogError: Any error of `read_arrow`, also while iterating.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two", b"three"])
            ...     for batch in orders.arrow_batches(columns=["offset", "value"]):
            ...         print(batch.num_rows, batch.schema.names)
            3 ['offset', 'value']
        """
        return self._arrow(start, end, batch_rows, reading)[1]

    def _arrow(
        self, start: Place | None, end: Place | None, batch_rows: int, reading: Reading
    ) -> tuple[pa.Schema | None, Iterator[pa.RecordBatch]]:
        """Returns the record batches and their schema; the schema is None if only the batches determine it."""
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
        """Returns records as a pyarrow Table (`pip install 'kafkalog[arrow]'`).

        The columns are:

            topic           string
            partition       int32
            offset          int64
            timestamp       timestamp[ms, UTC], -1 ms for a record without a timestamp
            timestamp_type  int8: -1, 0 or 1
            key             binary
            value           binary
            headers         list<struct<key: string, value: binary>>, null for a record without headers
            leader_epoch    int32, only if `columns` names it

        Without records the table has the columns and no rows.

        Args:
            start: As for `records`.
            end: As for `records`.
            **reading: `columns`, `last` and `partitions`, the filters of `records`, and `values`, `schema`, `errors`
                and `keys`, which decode; see `kafkalog.Reading`.

        Returns:
            A pyarrow.Table.

        Raises:
            KafkalogError: Any error of `records`.
            RecordDeserializationException: A value or key cannot be decoded.
            MissingPackageException: pyarrow is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     place = orders.append(b'{"id": 7, "amount": 2.5}', key=b"customer-7")
            ...     table = orders.read_arrow(columns=["offset", "value"], values="json",
            ...                               schema={"id": "int64", "amount": "float64"})
            >>> table.to_pylist()
            [{'offset': 0, 'id': 7, 'amount': 2.5}]
        """
        return table_of(*self._arrow(start, end, BATCH_ROWS, reading))

    @takes(Reading)
    def arrow_reader(
        self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]
    ) -> pa.RecordBatchReader:
        """Returns records as a pyarrow RecordBatchReader, which reads them while it is consumed.

        Args:
            start: As for `records`.
            end: As for `records`.
            **reading: As for `read_arrow`.

        Returns:
            A pyarrow.RecordBatchReader.

        Raises:
            KafkalogError: Any error of `read_arrow`, also while reading.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     print(orders.arrow_reader(columns=["value"]).read_all().num_rows)
            2
        """
        pa = need_pyarrow()
        schema, batches = self._arrow(start, end, BATCH_ROWS, reading)
        return pa.RecordBatchReader.from_batches(known_schema(schema), batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Streams all records to an Arrow consumer (polars, DuckDB, pandas), with the columns of `read_arrow`.

        Args:
            requested_schema: A schema as an Arrow capsule, which the consumer asks for.

        Returns:
            An Arrow stream capsule.
        """
        return stream_of(self.arrow_reader(), requested_schema)

    @takes(Reading)
    def to_pandas(
        self,
        start: Place | None = None,
        end: Place | None = None,
        *,
        dtype_backend: Literal["numpy", "pyarrow"] = "numpy",
        **reading: Unpack[Reading],
    ) -> Any:
        """Returns records as a pandas DataFrame (`pip install 'kafkalog[pandas]'`).

        Types are those of pyarrow's `to_pandas`, with one exception: columns of integers or booleans with nulls get
        pandas' nullable types (Int64, boolean), because a float64 would change large integers.  Values inside lists and
        objects are Python objects.  Such a frame is a copy: pandas has no other form for text, bytes and headers.  With
        `dtype_backend="pyarrow"` the columns are the Arrow columns themselves, of type `pandas.ArrowDtype`, and nothing
        is copied.

        Args:
            start: As for `records`.
            end: As for `records`.
            dtype_backend: "numpy" for pandas' usual types, "pyarrow" for Arrow's, as in pandas' own `read_parquet`.
            **reading: As for `read_arrow`.

        Returns:
            A pandas.DataFrame.

        Raises:
            KafkalogError: Any error of `read_arrow`.
            MissingPackageException: pandas is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     print(orders.to_pandas(columns=["offset", "value"]))
               offset   value
            0       0  b'one'
            1       1  b'two'
        """
        in_pandas = pandas_of(dtype_backend)
        return in_pandas(self.read_arrow(start, end, **reading))

    @takes(Reading)
    def to_polars(self, start: Place | None = None, end: Place | None = None, **reading: Unpack[Reading]) -> Any:
        """Returns records as a polars DataFrame (`pip install 'kafkalog[polars]'`).

        Its columns use the memory of the Arrow table: they are not copied.

        Args:
            start: As for `records`.
            end: As for `records`.
            **reading: As for `read_arrow`.

        Returns:
            A polars.DataFrame.

        Raises:
            KafkalogError: Any error of `read_arrow`.
            MissingPackageException: polars is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     print(orders.to_polars(columns=["offset", "value"]).rows())
            [(0, b'one'), (1, b'two')]
        """
        in_polars = polars_of()
        return in_polars(self.read_arrow(start, end, **reading))

    @takes(Reading)
    def to_duckdb(
        self,
        connection: Any,
        name: str,
        start: Place | None = None,
        end: Place | None = None,
        *,
        copy: bool = True,
        **reading: Unpack[Reading],
    ) -> Any:
        """Creates or replaces a table of a DuckDB connection with records (`pip install 'kafkalog[duckdb]'`).

        The rows are copied batch by batch.  After an error there is no new table, and an old table of that name stays.
        With `copy=False` nothing is copied: the records are read into Arrow's memory, and DuckDB gets a view of it.

        Args:
            connection: A connection of `duckdb.connect()`.
            name: The table's name; `schema.table` is a table of that schema.
            start: As for `records`.
            end: As for `records`.
            copy: Copy the rows into a table, which DuckDB can keep in a file.  With False it is a view of the
                connection, which scans the Arrow memory.
            **reading: As for `read_arrow`.

        Returns:
            The table as a DuckDB relation.

        Raises:
            IllegalArgumentException: `connection` is not a connection, or DuckDB cannot create a table of that name.
            KafkalogError: Any error of `read_arrow`.
            MissingPackageException: duckdb is not installed.

        Example:
            >>> import duckdb
            >>> connection = duckdb.connect()
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     print(orders.to_duckdb(connection, "orders").count("*").fetchall())
            [(2,)]
        """
        need_duckdb()
        target = DuckTable(connection, name, copy=copy)
        return target.filled(*self._arrow(start, end, BATCH_ROWS, reading))

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
        """Returns the last record of each key by offset: the records that compaction of the whole log would keep.

        A key whose last value is null is deleted, so it has no row, unless `tombstones` is set.  Records without a key
        are omitted.  A key that is in several partitions has a row for each.  Aborted records never count.  By default
        (`isolation` is "read_committed" here) records from the start of the oldest open transaction on do not count
        either.

        The log is read twice: for the keys during this call, for the rows while the reader is consumed.  Memory holds
        the map of the keys (27 bytes a key, three times that while it grows), 8 bytes for each key, and a batch.  If
        the map would exceed `memory_bytes`, the first reading is repeated for each share of the keys.  Keys are
        compared by their MD5, as in Kafka's cleaner.  Records that retention deletes between both readings are omitted.

        Args:
            end: The end (exclusive) of the records that count: an offset, or a time for the state at that time, by the
                records' timestamps.  Compaction and retention limit that state: a key of a compacted topic that has
                changed since may have no row.  By default the current end.
            start: The first record that counts: an offset or a time.
            tombstones: Return a row without a value for each deleted key.
            batch_rows: The most rows of a batch.
            memory_bytes: The most bytes for the map of the keys, by default 512 MiB, which is enough for 12 million
                keys.
            **reading: As for `read_arrow`, without `last`.  `key`, `key_prefix`, `start_time` and `end_time` choose the
                records that count; `headers`, `grep` and `where` choose among the last records.

        Returns:
            A pyarrow.RecordBatchReader with the columns of `read_arrow`; its `read_all()` returns a Table.

        Raises:
            OffsetOutOfRangeException: Compaction or a truncation removed records between both readings; call it again.
            CorruptRecordException: The log is damaged; the error names file and position, and comes after the rows
                before it.
            MissingPackageException: pyarrow is not installed.
            KafkalogError: Any other error of `read_arrow`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     prices = store.create_topic("prices")
            ...     offsets = prices.append_many([(b"1", b"tea"), (b"2", b"tea"), (b"3", b"milk")])
            ...     rows = prices.latest(columns=["key", "value"]).read_all().to_pylist()
            >>> {row["key"]: row["value"] for row in rows}
            {b'tea': b'2', b'milk': b'3'}
        """
        pyarrow = need_pyarrow()
        columns = reading.pop("columns", None)
        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        tombstones = values.flag(tombstones, "tombstones")
        decode = taken_from(reading)
        if reading.pop("last", None) is not None:
            raise IllegalArgumentException("last: latest() does not accept it", hint="leave it out")
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


def _sample(parts: Sequence[Part], selection: Selection, last: int | None) -> Iterator[pa.RecordBatch]:
    """Yields values that are not null, from the beginning and the end of some partitions, for the fields of JSON.

    If these have none, it yields values of the first other partition that has some.  It stops a partition at damage.
    """
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
    """Yields a sample of any records of these partitions, and of the other partitions of their topics."""
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
    """Returns the decoded batches of `read` and their schema; the schema is None if only the batches determine it.

    `everything` returns all partitions, for a sample from the others.  The columns that a function returns are
    determined by the first batch, if it has a value that is not null, so that no value is decoded twice; otherwise by a
    sample.
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
