"""Reading several partitions of a store round-robin: the StoreReader that `Store.reader` returns.

    with kafkalog.open("data") as store:
        store.create_topic("orders", partitions=4, exist_ok=True)
        with store.reader("billing", topics=["orders"]) as reader:
            for record in reader.follow(timeout_ms=1000):
                print(record.key, record.value)
                reader.commit()

Order: records of a partition come in the order of their offsets.  The reader takes one chunk of each partition in turn.

Commits: the position of a partition is after the last record that was returned.  A record counts as returned once a
loop received it, or once the call returned whose list or record batch contains it.  `commit` commits these positions.
They also pass the records that nobody sees (control records, aborted records, records that filters exclude), and
nothing else.  A reader with `end` leaves the records at and after it to later readers: its positions do not pass the
first of them.  A program that commits after it has processed a record never misses one; after a crash it gets the
records since the last commit again.  A program that commits before it processes records may miss some.  After a crash a
cursor has the offsets of the last commit that returned, or of the commit that was running.  With durability "os" a
power loss may set it further back.

Threads: one thread at a time may use a reader.  A second one gets an IllegalStateException, or a RuntimeError from an
iterator.  `close` may be called by any thread, and ends a wait.  Only the newest iterator of a reader is valid; an
older one raises an error if it is used again.

Errors: an error leaves the position before the data that could not be read, so the next call raises it again.  `seek`
and `pause` pass it.  With `on_damage` the reader continues after damage automatically: the damage is reported, and
counts as returned.  A loop that failed while it processed records can try again after `rewind`, which goes back to the
committed offsets.

A reader is also an Arrow stream of the records from its positions to the current end: `pl.DataFrame(reader)`.  After it
the positions are at that end, as after `batches`.

In asyncio, `async for` uses the same iterators: separate threads read the disk and wait.  If a task is cancelled,
nothing is lost: records that were not returned come next time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog import _shown
from kafkalog._face import store_cursors
from kafkalog._face.arrow_stream import ArrowStream
from kafkalog._face.chunk_reader import (
    CHUNK_BYTES,
    UNREADABLE,
    ChunkReader,
    MessageSetSend,
    MultiMessageSetSend,
    receive_message_set,
)
from kafkalog._face.decoded import Decoding, decoding_of
from kafkalog._face.frames import table_of
from kafkalog._face.in_threads import ClosingAsync, in_thread
from kafkalog._face.partition_turns import PartitionTurns
from kafkalog._face.reader_options import Offsets, ReaderOptions, offsets_of
from kafkalog._face.selection import walk_selected
from kafkalog._face.shown import Records, Shown
from kafkalog._native.codec.reading import Iteration, RecordWalk
from kafkalog._native.state.blocks import Closing, Turn
from kafkalog.engine.coordinator.groups import CommittingMember
from kafkalog.engine.format import values
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.errors import (
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from kafkalog._face.home import Home
    from kafkalog._face.partition_reader import PartitionReader
    from kafkalog._face.partition_turns import Batch, Ends
    from kafkalog._face.store_batches import Columns
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.records import Record

__all__ = ["ChunkReader", "MessageSetSend", "MultiMessageSetSend", "StoreReader", "receive_message_set"]

T = TypeVar("T")
Place = tuple["PartitionReader", int, int]  # a partition's reader, the next offset, its leader epoch
Made = list[tuple[int, int, "pa.RecordBatch"]]

POLL_RECORDS = 500  # max.poll.records
ARROW_CHUNK_BYTES = 4 << 20
BATCH_ROWS = 65_536
PLACES_SHOWN = 4  # partitions in a repr


class StoreReader(ArrowStream, Closing, ClosingAsync, Shown):
    """Reads several partitions of a store round-robin; returned by `Store.reader`.

    A StoreReader is a context manager, and iterating over it reads the records that are available now.  One thread at a
    time may use it.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         print([record.value for record in reader])
        ...         positions = reader.commit()
        ...         print(reader.cursor, reader.assignment, reader.paused, reader.closed)
        [b'one', b'two']
        billing [TopicPartition(topic='orders', partition=0)] [] False
    """

    _inner = frozenset({"committing_member", "is_of", "offsets_to_commit"})

    def __init__(self, home: Home, options: ReaderOptions) -> None:
        self._home = home
        self._options = options
        self._turn = Turn()  # held by the thread that uses the reader
        self._closed = False
        self._is_stopped = False  # True while the thread of a cancelled task is to stop waiting
        self._walk: RecordWalk | Iteration[pa.RecordBatch] | None = None  # the current iteration
        self._iterations = 0  # how many were begun
        self._polling: RecordWalk | None = None  # the current iteration if poll began it
        self._undo: list[Place] | None = None  # the positions before a poll that has not returned
        self._is_collecting = False  # True while a poll or read_arrow is running
        if options.cursor is not None:
            store_cursors.check_name(home, options.cursor)
            home.cursor_readers.add(options.cursor, self, shared=options.shared)
        try:
            self._turns = PartitionTurns(home, options)
        except BaseException:
            self._free_cursor()  # the error's traceback may keep this reader alive
            raise

    # --- open and close ------------------------------------------------------------------------------

    def __enter__(self) -> StoreReader:
        return self

    @property
    def closed(self) -> bool:
        """True if the reader or its store was closed."""
        return self._closed or not self._home.life.live

    def close(self) -> None:
        """Closes the files without a commit; a thread that waits in the reader gets an IllegalStateException.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     reader = store.reader(topics=["orders"])
            ...     reader.close()
            ...     print(reader.closed)
            True
        """
        self._closed = True
        if self._home.life.forked:
            return
        self._free_cursor()
        self._turns.waiting.release()
        with self._turn as mine:
            if mine:  # else the thread that uses the reader closes them when it is done
                self._turns.close()

    def _free_cursor(self) -> None:
        if self._options.cursor is not None:
            self._home.cursor_readers.remove(self._options.cursor, self)

    def _check(self, mine: bool) -> None:
        """Raises an error if this thread may not use the reader now."""
        self._home.check_open()
        if self._closed:
            raise IllegalStateException(f"{self._called} is closed")
        if not mine:
            raise IllegalStateException(
                f"another thread is using {self._called}",
                hint="one thread at a time may use a reader; open one for each thread",
            )

    def _begin(self, mine: bool) -> dict[TopicPartition, PartitionReader]:
        """Begins a call: undoes an interrupted poll, updates the positions, and returns the partition readers."""
        self._check(mine)
        if self._is_collecting:
            raise IllegalStateException(
                f"{self._called} is collecting records: on_damage cannot use it now",
                hint="they count as returned when the call returns; in a loop over the reader on_damage can commit",
            )
        if self._undo is not None:
            self._walk = self._polling = None
            for reader, position, leader_epoch in self._undo:
                if reader.position != position:
                    reader.seek(position)
                    reader.leader_epoch = leader_epoch
            self._undo = None
        elif self._walk is not None:
            told: Place | None = self._walk.told()
            if told is not None:
                told[0].told(*told[1:])
        return self._turns.readers

    @property
    def _called(self) -> str:
        """The reader's name in errors."""
        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        turns = getattr(self, "_turns", None)  # None if __init__ failed
        of = _shown.number(0 if turns is None else len(turns.readers), "partition")
        return f"<StoreReader{name} of {of}, {'closed' if self.closed else 'open'}>"

    def __repr__(self) -> str:
        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        at = self._at()
        places = [f"{partition}@{offset}" for partition, offset in list(at.items())[:PLACES_SHOWN]]
        more = f" and {len(at) - PLACES_SHOWN:,} more" if len(at) > PLACES_SHOWN else ""
        state = "closed" if self.closed else "open"
        return f"<StoreReader{name} of {self._home.place}, {state}, at {', '.join(places) or 'no partition'}{more}>"

    def _at(self) -> dict[TopicPartition, int]:
        """Returns the positions as they are shown, without waiting for a thread that uses the reader."""
        turns = getattr(self, "_turns", None)
        at = {} if turns is None else {each: found.to_commit() for each, found in list(turns.readers.items())}
        walk = self._walk
        told = None if walk is None else _shown.or_none(walk.told)  # None while another thread is in it
        if told is not None and told[0].topic_partition in at:
            at[told[0].topic_partition] = told[0].to_commit(max(told[1], told[0].position))
        return at

    def _repr_html_(self) -> str | None:
        """Returns a table of the positions for notebooks."""
        return _shown.or_none(self._html)

    def _html(self) -> str:
        def row(place: TopicPartition, offset: int) -> tuple[object, ...]:
            span = _shown.or_none(lambda: self._home.glance(place))  # it does not look at the disk
            if span is None:
                return place, f"{offset:,}", "-", "-"
            return place, f"{offset:,}", f"{span[1]:,}", f"{max(0, span[1] - offset):,}"

        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        caption = f"StoreReader{name} of {self._home.place}, {'closed' if self.closed else 'open'}"
        return _shown.table(caption, ("partition", "position", "end", "lag"), starmap(row, self._at().items()))

    # --- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records_async(True, 0.0)

    def records(self) -> RecordWalk:
        """Returns an iterator over the records that are available now, one chunk of each partition in turn.

        Returns:
            An iterator of Records, which ends at the current end of each partition.

        Raises:
            KafkalogError: Any error of `follow`, also while iterating.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print([record.value for record in reader.records()])
            [b'one', b'two']
        """
        return self._records(True, 0.0)

    def follow(self, timeout_ms: int | None = None) -> RecordWalk:
        """Returns an iterator over the records that are available and over records that are appended later.

        Args:
            timeout_ms: The iterator ends when no record came for so many milliseconds; None never ends it.

        Returns:
            An iterator of Records.

        Raises:
            OffsetOutOfRangeException: The log no longer has a position, and `start` is "error".
            UnknownTopicOrPartitionException: A topic was deleted; its partitions are not read any more.
            CorruptRecordException: The log is damaged.
            KafkaStorageException: A log cannot be read.
            IllegalStateException: The store or the reader is closed, or another thread uses the reader.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         for record in reader.follow(timeout_ms=10):
            ...             print(record.value)
            ...             positions = reader.commit()
            b'one'
            b'two'
        """
        return self._records(False, _timeout_s(timeout_ms))

    def _records(self, is_bounded: bool, timeout_s: float) -> RecordWalk:
        with self._turn as mine:
            self._begin(mine)
            return self._walk_over(
                self._batches(is_bounded, timeout_s), lambda: self._records_async(is_bounded, timeout_s)
            )

    def _walk_over(
        self, batches: Iterator[Batch], asynchronously: Callable[[], AsyncIterator[Record]] | None = None
    ) -> RecordWalk:
        """Makes an iteration over these batches the current one."""
        options = self._options
        self._take_over(CHUNK_BYTES)
        self._walk = walk = walk_selected(batches, options.selection, options.times, asynchronously)
        return walk

    def _take_over(self, chunk_bytes: int, *, reads_ahead: bool = False) -> None:
        if isinstance(self._walk, RecordWalk):
            self._check_no_callback(self._walk.is_inside())
            self._walk.refuse(self._taken_over())
        self._turns.begin(chunk_bytes, reads_ahead=reads_ahead)
        self._iterations += 1

    def _check_no_callback(self, is_called_back: bool) -> None:
        """Raises an error if a function that the reader has called reads from it."""
        if is_called_back:
            raise IllegalStateException(
                f"{self._called} is reading: the function that it has called cannot read from it",
                hint="it can commit, seek and ask for positions",
            )

    def _taken_over(self) -> IllegalStateException:
        return IllegalStateException(f"another iteration of {self._called} has begun")

    def _batches(self, is_bounded: bool, timeout_s: float) -> Iterator[Batch]:
        """Yields the batches of an iteration."""
        turns, ends = self._turns, None
        while True:
            with self._turn as mine:
                self._check(mine)
                if is_bounded and ends is None:
                    ends = turns.ends()
                found = self._next_batch(ends, timeout_s)
            if found is None:
                return
            reader, _, header = found
            reader.given = header
            yield found
            reader.passed(header)

    def _next_batch(self, ends: Ends | None, timeout_s: float) -> Batch | None:
        found = self._turns.find(ends)
        # A read-only store must read its directories again; the logs of a writable one are always up to date.
        if found is None and ends is None and (timeout_s > 0 or self._home.read_only):
            found = self._turns.await_batch(timeout_s, self._is_over)
            if self._closed:
                self._check(True)
        return found

    def _is_over(self) -> bool:
        return self._closed or self._is_stopped or not self._home.life.live

    def poll(self, max_records: int = POLL_RECORDS, timeout_ms: int | None = 0) -> list[Record]:
        """Returns a list of records, as soon as there is at least one.

        The records count as returned when the call returns.  An error comes after the records before it: the next call
        raises it.  A KeyboardInterrupt may come after the call returned, but before the caller has the list.  A program
        that continues after such an interrupt must seek to a position that it knows, or commit explicit offsets.  A
        `for` loop over the reader has no such gap.

        Args:
            max_records: The most records to return.
            timeout_ms: How long to wait for a record, in milliseconds; 0 does not wait, None waits without a limit.

        Returns:
            The Records; an empty list if none came in time.

        Raises:
            KafkalogError: Any error of `follow`.
            IllegalArgumentException: An argument has a wrong type or value.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         print([record.value for record in reader.poll(max_records=1)])
            ...         print([record.value for record in reader.poll(timeout_ms=100)])
            [b'one']
            [b'two']
        """
        max_records = values.whole(max_records, "max_records", low=1, expected="records at most")
        timeout_s = _timeout_s(timeout_ms)
        with self._turn as mine:
            readers = self._begin(mine)
            self._undo = self._places(readers)
            found: list[Record] = Records()
            try:
                self._is_collecting = True
                self._poll(found, max_records)
                while not found and self._next_batch(None, timeout_s) is not None:
                    self._poll(found, max_records)
            except KafkalogError as error:  # the next call raises it again, after the records before it
                if not found:
                    self._undo = None
                    raise
                if isinstance(error, UnknownTopicOrPartitionException):
                    self._turns.untold = error  # a deleted topic is reported once
            finally:
                self._is_collecting = False
        self._undo = None  # no signal handler runs between this and the return
        return found

    def _poll(self, found: list[Record], max_records: int) -> None:
        walk = self._polling
        if walk is None or walk is not self._walk:
            walk = self._walk_over(self._batches(False, 0.0))
        self._polling = None
        found.extend(islice(walk, max_records))
        if len(found) == max_records:  # else the iteration has ended
            self._polling = walk

    # --- as Arrow ------------------------------------------------------------------------------------

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_rows: int = BATCH_ROWS,
        timeout_ms: int | None = 0,
        **decoding: Unpack[Decoding],
    ) -> Iteration[pa.RecordBatch]:
        """Returns an iterator over records as pyarrow record batches, each of one partition.

        A batch counts as returned as a whole.

        Args:
            columns: The columns, as for `Partition.read_arrow`; by default topic, partition, offset, timestamp,
                timestamp_type, key, value and headers.
            batch_rows: The most rows of a batch.
            timeout_ms: By default, 0, the iterator ends at the current end of each partition.  Otherwise it also waits
                for new records, and ends when none came for so many milliseconds; None never ends it.
            **decoding: `values`, `schema`, `errors` and `keys` decode values and keys; see `kafkalog.Decoding`.  JSON
                without a `schema` gets the schema of the next values.  Give a schema if later calls must have the same
                one.

        Returns:
            An iterator of pyarrow.RecordBatch.

        Raises:
            KafkalogError: Any error of `follow`, also while iterating.
            RecordDeserializationException: A value cannot be decoded; the position stays before its batch.
            MissingPackageException: pyarrow is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         for batch in reader.batches(["offset", "value"]):
            ...             print(batch.to_pylist())
            [{'offset': 0, 'value': b'one'}, {'offset': 1, 'value': b'two'}]
        """
        return self._batches_of(columns, batch_rows, timeout_ms, decoding)[1]

    def _batches_of(
        self, columns: Sequence[str] | None, batch_rows: int, timeout_ms: int | None, decoding: Decoding
    ) -> tuple[Columns, Iteration[pa.RecordBatch]]:
        need_pyarrow()
        from kafkalog._face.store_batches import Columns, sample_anywhere, sample_of

        options = self._options
        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        timeout_s = _timeout_s(timeout_ms)
        decode = decoding_of(**decoding)
        with self._turn as mine:
            readers = self._begin(mine).values()
            samples = (lambda: sample_of(readers, options)), (lambda: sample_anywhere(readers, options))
            wanted = Columns(columns, batch_rows, options, decode, *samples)
            if timeout_s:
                wanted.check_follows()
            return wanted, self._iterate(
                self._made(wanted, timeout_s, self._iterations + 1), lambda: self._made_async(wanted, timeout_s)
            )

    def arrow_reader(
        self, columns: Sequence[str] | None = None, *, batch_rows: int = BATCH_ROWS, **decoding: Unpack[Decoding]
    ) -> pa.RecordBatchReader:
        """Returns the records that are available now as a pyarrow RecordBatchReader, which reads them lazily.

        Args:
            columns: As for `batches`.
            batch_rows: The most rows of a batch.
            **decoding: As for `batches`.

        Returns:
            A pyarrow.RecordBatchReader.

        Raises:
            KafkalogError: Any error of `batches`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print(reader.arrow_reader(["value"]).read_all().num_rows)
            2
        """
        wanted, batches = self._batches_of(columns, batch_rows, 0, decoding)
        found: pa.RecordBatchReader = need_pyarrow().RecordBatchReader.from_batches(wanted.schema, batches)
        return found

    def read_arrow(self, columns: Sequence[str] | None = None, **decoding: Unpack[Decoding]) -> pa.Table:
        """Returns the records that are available now as one pyarrow Table.

        The records count as returned when the call returns.  If it raises an error, the positions do not change.

        Args:
            columns: As for `batches`.
            **decoding: As for `batches`.

        Returns:
            A pyarrow.Table; without records it has the columns and no rows.

        Raises:
            KafkalogError: Any error of `batches`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b'{"id": 7}')
            ...     with store.reader("nightly", topics=["orders"]) as reader:
            ...         table = reader.read_arrow(["offset", "value"], values="json", schema={"id": "int64"})
            ...         positions = reader.commit()
            >>> table.to_pylist()
            [{'offset': 0, 'id': 7}]
        """
        return self._whole(table_of, columns, decoding)

    def _whole(
        self, use: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T], columns: Sequence[str] | None, options: Any
    ) -> T:
        wanted, batches = self._batches_of(columns, BATCH_ROWS, 0, options)
        with self._turn as mine:
            self._undo = self._places(self._begin(mine))
        try:
            self._is_collecting = True
            found = use(wanted.schema, batches)
        finally:
            self._is_collecting = False
        self._undo = None  # no signal handler runs between this and the return
        return found

    @staticmethod
    def _places(readers: dict[TopicPartition, PartitionReader]) -> list[Place]:
        return [(each, each.position, each.leader_epoch) for each in readers.values()]

    def _iterate(
        self,
        placed: Generator[tuple[Place, pa.RecordBatch], None, None],
        asynchronously: Callable[[], AsyncIterator[pa.RecordBatch]] | None = None,
    ) -> Iteration[pa.RecordBatch]:
        self._take_over(ARROW_CHUNK_BYTES, reads_ahead=True)  # reading ahead is safe: the batches are copies
        self._walk = iteration = Iteration(placed, asynchronously)
        return iteration

    def _made(
        self, columns: Columns, timeout_s: float, number: int
    ) -> Generator[tuple[Place, pa.RecordBatch], None, None]:
        turns, ends = self._turns, None
        while True:
            with self._turn as mine:
                self._check(mine)
                self._check_present(number)
                if not timeout_s and ends is None:
                    ends = turns.ends()
                found = self._next_batch(ends, timeout_s)
            if found is None:
                return
            reader, chunk, header = found
            reader.given = header
            try:
                for offset, leader_epoch, batch in columns.of(reader, chunk):
                    if batch.num_rows:
                        reader.source.check_usable()
                        yield (reader, offset, leader_epoch), batch
                        self._check_present(number)
                    reader.told(offset, leader_epoch)
                    if reader.given is not header:
                        break
                else:
                    reader.chunk_passed(chunk)
            except UNREADABLE as error:
                reader.pass_over(error)

    def _check_present(self, number: int) -> None:
        """Raises an error unless that iteration is the newest one."""
        if self._iterations != number:
            raise self._taken_over()

    # --- for asyncio ---------------------------------------------------------------------------------

    async def _records_async(self, is_bounded: bool, timeout_s: float) -> AsyncIterator[Record]:
        ends = await self._in_thread(self._ends) if is_bounded else None
        while True:
            with self._turn as mine:
                self._begin(mine)
                walk = self._walk_over(self._held())
                number = self._iterations
            for record in walk:
                yield record
            if not await self._in_thread(partial(self._is_ready, ends, timeout_s, number)):
                return

    def _ends(self) -> Ends:
        with self._turn as mine:
            self._check(mine)
            return self._turns.ends()

    def _held(self) -> Iterator[Batch]:
        """Yields batches as `_batches` does, but only those that are in memory already."""
        while True:
            with self._turn as mine:
                self._check(mine)
                found = self._turns.held()
            if found is None:
                return
            reader, _, header = found
            reader.given = header
            yield found
            reader.passed(header)

    def _is_ready(self, ends: Ends | None, timeout_s: float, number: int) -> bool:
        """Reads ahead, in a thread; returns whether it found a batch."""
        with self._turn as mine:
            self._check(mine)
            self._check_present(number)
            return self._next_batch(ends, timeout_s) is not None

    async def _made_async(self, columns: Columns, timeout_s: float) -> AsyncIterator[pa.RecordBatch]:
        with self._turn as mine:
            self._begin(mine)
            self._take_over(ARROW_CHUNK_BYTES, reads_ahead=True)  # reading ahead is safe: the batches are copies
            self._walk, number = None, self._iterations
        ends = None if timeout_s else await self._in_thread(self._ends)
        while True:
            found, made, damage = await self._in_thread(partial(self._make, columns, ends, timeout_s, number))
            if found is None:
                return
            with self._turn as mine:
                self._begin(mine)
                self._check_present(number)
                walk = self._iterate(self._hand_out(found, made, is_whole=damage is None))
                number = self._iterations
            for batch in walk:
                yield batch
            if damage is not None:
                await self._in_thread(partial(self._pass_over, found[0], damage))

    def _make(
        self, columns: Columns, ends: Ends | None, timeout_s: float, number: int
    ) -> tuple[Batch | None, Made, KafkalogError | None]:
        """Returns a chunk's record batches and the error after them; runs in a thread, and moves no position."""
        made: Made = []
        with self._turn as mine:
            self._check(mine)
            self._check_present(number)
            found = self._next_batch(ends, timeout_s)
            if found is not None:
                try:
                    made.extend(columns.of(found[0], found[1]))
                except KafkalogError as error:
                    return found, made, error
            return found, made, None

    def _pass_over(self, reader: PartitionReader, error: KafkalogError) -> None:
        with self._turn as mine:
            self._begin(mine)
            if not isinstance(error, UNREADABLE):
                raise error
            reader.pass_over(error)

    def _hand_out(
        self, found: Batch, made: Made, *, is_whole: bool
    ) -> Generator[tuple[Place, pa.RecordBatch], None, None]:
        reader, chunk, header = found
        reader.given = header
        for offset, leader_epoch, batch in made:
            if batch.num_rows:
                reader.source.check_usable()
                yield (reader, offset, leader_epoch), batch
            reader.told(offset, leader_epoch)
            if reader.given is not header:
                return
        if is_whole:
            reader.chunk_passed(chunk)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await in_thread(work, self._stop)

    def _stop(self, is_stopped: bool) -> None:
        """Ends the wait of a cancelled task's thread; afterwards waits are possible again."""
        self._is_stopped = is_stopped
        if is_stopped:
            self._turns.waiting.release()

    # --- positions -----------------------------------------------------------------------------------

    @property
    def cursor(self) -> str | None:
        """The cursor's name; None for a reader without a cursor."""
        return self._options.cursor

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the reader reads."""
        return list(self._turns.readers)

    def position(self, partition: str | TopicPartition) -> int:
        """Returns the offset of the next record to read from a partition.

        Args:
            partition: The partition, such as "orders-0" or a TopicPartition.

        Returns:
            The offset after the last record that was returned.

        Raises:
            IllegalStateException: The reader does not read that partition, or is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         records = reader.poll()
            ...         print(reader.position("orders-0"))
            2
        """
        with self._turn as mine:
            self._begin(mine)
            return self._turns.one(partition).to_commit()

    def positions(self) -> dict[TopicPartition, int]:
        """Returns the `position` of every partition.

        Returns:
            The offset of the next record to read, by partition.

        Raises:
            IllegalStateException: The reader is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print(reader.positions())
            {TopicPartition(topic='orders', partition=0): 0}
        """
        with self._turn as mine:
            return {partition: reader.to_commit() for partition, reader in self._begin(mine).items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Returns how many offsets are between each position and the end that this reader's isolation level sees.

        Returns:
            The number of offsets by partition, without partitions that cannot be read now.

        Raises:
            UnknownTopicOrPartitionException: A topic was deleted; it is raised once.
            IllegalStateException: The reader is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         print(reader.lag())
            {TopicPartition(topic='orders', partition=0): 2}
        """
        with self._turn as mine:
            readers = self._begin(mine)
            self._turns.recheck()
            found: dict[TopicPartition, int] = {}
            for partition, reader in readers.items():
                with suppress(KafkaStorageException):
                    found[partition] = reader.lag()
            return found

    def seek(self, partition: str | TopicPartition, offset: int) -> None:
        """Sets the position of a partition, also during an iteration.

        If the log does not have that offset, the next read does as `start` says.

        Args:
            partition: The partition, such as "orders-0" or a TopicPartition.
            offset: The offset of the next record to read.

        Raises:
            IllegalArgumentException: `offset` is not an offset.
            IllegalStateException: The reader does not read that partition, or is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         reader.seek("orders-0", 1)
            ...         print([record.value for record in reader])
            [b'two']
        """
        offset = values.offset(offset, low=0)
        with self._turn as mine:
            self._begin(mine)
            reader = self._turns.one(partition)
            self._leave(reader)
            reader.move(offset)

    def seek_to_time(self, timestamp_ms: int, *partitions: str | TopicPartition) -> None:
        """Sets positions to the first record at or after a time, or to the end if there is no such record.

        Args:
            timestamp_ms: Milliseconds since 1970.
            *partitions: The partitions to move; by default all.

        Raises:
            IllegalArgumentException: `timestamp_ms` is not a time.
            IllegalStateException: The reader does not read a partition, or is closed.
            KafkaStorageException: A log cannot be read.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([(b"one", None, (), 1000), (b"two", None, (), 2000)])
            ...     with store.reader(topics=["orders"]) as reader:
            ...         reader.seek_to_time(1500)
            ...         print([record.value for record in reader])
            [b'two']
        """
        timestamp_ms = values.milliseconds(timestamp_ms, "timestamp_ms", low=0)
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                source = reader.source
                source.recheck()
                found = source.offset_for_time(timestamp_ms)
                self._leave(reader)
                reader.move(source.visible_end(self._options.isolation) if found is None else found)

    def rewind(self, *partitions: str | TopicPartition) -> None:
        """Sets positions back to the committed offsets, also during an iteration.

        Records that were returned since the last commit come again, as after a restart.  A partition without a commit
        since the reader was opened goes back to where the reader began, and so does every partition of a reader without
        a cursor.  Paused partitions stay paused.

        A loop that tries again needs this call: an aborted transaction does not move the reader back.

            with store.reader("biller", topics=["orders"], isolation="read_committed") as reader:
                while True:
                    try:
                        with store.transaction("biller-1") as txn:
                            for record in reader.poll(500):
                                txn.append("payments", record.value, key=record.key)
                            txn.commit_offsets(reader)
                        break
                    except kafkalog.KafkalogError:
                        reader.rewind()

        Args:
            *partitions: The partitions to move; by default all.

        Raises:
            UnstableOffsetCommitException: `isolation` is "read_committed", and an open transaction has offsets of the
                cursor; no position changes.
            IllegalStateException: The reader does not read a partition, or is closed; no position changes.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"one")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         print([record.value for record in reader.poll()])
            ...         reader.rewind()
            ...         print([record.value for record in reader.poll()])
            [b'one']
            [b'one']
        """
        with self._turn as mine:
            self._begin(mine)
            for reader, committed in self._turns.to_rewind(partitions).items():
                self._leave(reader)
                reader.rewind(committed)

    def pause(self, *partitions: str | TopicPartition) -> None:
        """Stops reading partitions until `resume`, also during an iteration.

        Args:
            *partitions: The partitions to pause; by default all.

        Raises:
            IllegalStateException: The reader does not read a partition, or is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"one")
            ...     with store.reader(topics=["orders"]) as reader:
            ...         reader.pause("orders-0")
            ...         print(reader.poll(), [str(partition) for partition in reader.paused])
            [] ['orders-0']
        """
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                self._leave(reader)
                reader.paused = True

    def resume(self, *partitions: str | TopicPartition) -> None:
        """Reads paused partitions again.

        Args:
            *partitions: The partitions to resume; by default all.

        Raises:
            IllegalStateException: The reader does not read a partition, or is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"one")
            ...     with store.reader(topics=["orders"]) as reader:
            ...         reader.pause()
            ...         reader.resume()
            ...         print(reader.paused, len(reader.poll()))
            [] 1
        """
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                reader.paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused until `resume`."""
        return [partition for partition, reader in self._turns.readers.items() if reader.paused]

    def _leave(self, reader: PartitionReader) -> None:
        """Ends the batch that is being returned, if it is this partition's; it may be read again."""
        if reader.given is not None:
            if isinstance(self._walk, RecordWalk):
                self._walk.leave_batch()
            reader.given = None

    # --- cursors -------------------------------------------------------------------------------------

    def _named(self) -> str:
        if self._options.cursor is None:
            raise IllegalStateException(f"{self._called} has no cursor", hint="open it as store.reader('name', ...)")
        return self._options.cursor

    def is_of(self, home: object) -> bool:
        """Returns whether the reader reads the store of `home`."""
        return getattr(home, "shared", home) is getattr(self._home, "shared", self._home)

    def committing_member(self) -> CommittingMember:
        """Returns who commits; a reader that is no member of a group is none."""
        return CommittingMember()

    def offsets_to_commit(self, metadata: str = "") -> dict[TopicPartition, CommittedOffset]:
        """Returns the offsets that `commit` commits: the position of each partition whose topic still exists."""
        metadata = values.text(metadata, "metadata")
        with self._turn as mine:
            found: dict[TopicPartition, CommittedOffset] = {}
            for partition, reader in self._begin(mine).items():
                with suppress(UnknownTopicOrPartitionException):  # a read reports it
                    topic_id = self._turns.topic_id(reader)
                    found[partition] = CommittedOffset(
                        reader.to_commit(), reader.epoch_to_commit(), metadata, topic_id=topic_id
                    )
            return found

    def commit(self, offsets: Offsets | None = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commits the position of every partition, or the given offsets, for the reader's cursor.

        Either all offsets are committed or none, also after an interrupt.  A commit is as durable as the store's
        appends.  A partition whose topic was deleted, or deleted and created again, is skipped.  If the cursor is a
        consumer group of a broker, its members are removed.

        Args:
            offsets: The offset of the next record to read, by partition; by default all positions.
            metadata: A text to store with the offsets.

        Returns:
            The committed offset of each partition.

        Raises:
            IllegalStateException: The reader has no cursor, or is closed.
            UnknownTopicOrPartitionException: `offsets` names a partition whose topic was deleted; nothing is committed.
            LogReadOnlyException: The store is read-only and has no `cursors` directory.
            OffsetMetadataTooLarge: `metadata` is too long.
            KafkaStorageException: The disk failed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("orders").append_many([b"one", b"two"])
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         records = reader.poll()
            ...         print(reader.commit())
            ...         print(reader.commit({"orders-0": 1}))
            {TopicPartition(topic='orders', partition=0): 2}
            {TopicPartition(topic='orders', partition=0): 1}
        """
        cursor = self._named()
        if offsets is None:
            rows = self.offsets_to_commit(metadata)
        else:
            metadata, given = values.text(metadata, "metadata"), offsets_of(offsets, "offsets")
            with self._turn as mine:
                self._begin(mine)
                rows = {
                    each: CommittedOffset(
                        offset, metadata=metadata, topic_id=self._turns.topic_id(self._turns.one(each))
                    )
                    for each, offset in given.items()
                }
        store_cursors.commit(self._home, cursor, rows, self.committing_member())
        return {partition: row.offset for partition, row in rows.items()}

    async def commit_async(self, offsets: Offsets | None = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commits from a coroutine, in a separate thread.

        A task that is cancelled ends when the commit has ended.

        Args:
            offsets: As for `commit`.
            metadata: As for `commit`.

        Returns:
            The committed offset of each partition.

        Raises:
            KafkalogError: Any error of `commit`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     with kafkalog.open("data") as store:
            ...         place = store.create_topic("orders").append(b"one")
            ...         with store.reader("billing", topics=["orders"]) as reader:
            ...             async for record in reader:
            ...                 print(record.value, await reader.commit_async())
            >>> asyncio.run(main())
            b'one' {TopicPartition(topic='orders', partition=0): 1}
        """
        return await self._in_thread(partial(self.commit, offsets, metadata))

    def committed(self) -> dict[TopicPartition, int]:
        """Returns the cursor's committed offsets in the partitions that this reader reads.

        Returns:
            The committed offset by partition, without partitions that have none.

        Raises:
            IllegalStateException: The reader has no cursor, or the store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"one")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         before, records, positions = reader.committed(), reader.poll(), reader.commit()
            ...         print(before, reader.committed())
            {} {TopicPartition(topic='orders', partition=0): 1}
        """
        found = store_cursors.committed(self._home, self._named())
        return {partition: row.offset for partition, row in found.items() if partition in self._turns.readers}


def _timeout_s(timeout_ms: int | None) -> float:
    if timeout_ms is None:
        return math.inf
    return values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds") / 1000


def __dir__() -> list[str]:
    return __all__
