"""Reading several partitions of a store in turns: what `Store.reader` gives.

    with kafkalog.open("data") as store:
        store.create_topic("orders", partitions=4, exist_ok=True)
        with store.reader("billing", topics=["orders"]) as reader:
            for record in reader.follow(timeout_ms=1000):
                print(record.key, record.value)
                reader.commit()

Order: records of a partition come in the order of their offsets; partitions take turns, a chunk each.

What is committed: the position of a partition lies behind the last record that was handed out: that a loop was given,
or that was in a list or a record batch which a call has returned.  `commit` covers those, what lies between them that
nobody is shown (control records, aborted ones, what filters leave out), and nothing else.  So who commits when he has
dealt with a record never misses one, and gets again those since the last commit where a crash comes first; who commits
before he deals with them may miss one.  After a crash a cursor is where the last commit that returned put it, or the
one that was under way; with durability "os" a power loss may take it further back.

One thread at a time: a second one gets an IllegalStateException, or RuntimeError from an iterator.  `close` may come
from any thread, and ends a wait.  Of iterators the one that was begun last counts; another that goes on is refused.
An error leaves the position before what could not be read, and comes again; `seek` and `pause` lead on.  With
`on_damage` reading goes on behind damage by itself: what is left out is told, and counts as handed out.  A loop that
failed with records that it was given tries again after `rewind`, which goes back to what is committed.

A reader is an Arrow stream, too, of the records from where it stands to the end as it is then: `pl.DataFrame(reader)`.
It stands behind them afterwards, as behind `batches`.

For asyncio the same iterators are gone over by `async for`: disks are read and waits are spent in threads of their own.
Where a task is cancelled nothing is lost: what was not handed out comes next time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

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
from kafkalog._face.in_threads import ClosingAsync, in_thread
from kafkalog._face.partition_turns import PartitionTurns
from kafkalog._face.reader_options import Offsets, ReaderOptions, offsets_of
from kafkalog._face.selection import walk_selected
from kafkalog._face.shown import Records, Shown
from kafkalog._native.codec.reading import Iteration, RecordWalk
from kafkalog._native.state.blocks import Closing, Turn
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
Place = tuple["PartitionReader", int, int]  # whose, the offset behind it, its leader epoch
Made = list[tuple[int, int, "pa.RecordBatch"]]

POLL_RECORDS = 500  # max.poll.records
ARROW_CHUNK_BYTES = 4 << 20
BATCH_ROWS = 65_536
PLACES_SHOWN = 4  # by a repr


class StoreReader(ArrowStream, Closing, ClosingAsync, Shown):
    """Several partitions, read in turns.  Made by `Store.reader`."""

    _inner = frozenset({"is_of", "offsets_to_commit"})

    def __init__(self, home: Home, options: ReaderOptions) -> None:
        self._home = home
        self._options = options
        self._turn = Turn()  # of the one thread that uses it
        self._closed = False
        self._is_stopped = False  # a thread that waits for a task that was cancelled
        self._walk: RecordWalk | Iteration[pa.RecordBatch] | None = None  # the present iteration
        self._iterations = 0  # that were begun
        self._polling: RecordWalk | None = None  # the same, where it is poll's
        self._undo: list[Place] | None = None  # of a poll that has not returned
        if options.cursor is not None:
            home.cursor_readers.add(options.cursor, self, shared=options.shared)
        try:
            self._turns = PartitionTurns(home, options)
        except BaseException:
            self._free_cursor()  # who catches the error may hold this reader by its traceback
            raise

    # --- life ----------------------------------------------------------------------------------------

    def __enter__(self) -> StoreReader:
        return self

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its store."""
        return self._closed or not self._home.life.live

    def close(self) -> None:
        """Lets go of the files; commits nothing.  A thread that waits in it is told (IllegalStateException)."""
        self._closed = True
        if self._home.life.forked:
            return
        self._free_cursor()
        self._turns.waiting.release()
        with self._turn as mine:
            if mine:  # else whoever is at work lets go of them with the reader
                self._turns.close()

    def _free_cursor(self) -> None:
        if self._options.cursor is not None:
            self._home.cursor_readers.remove(self._options.cursor, self)

    def _check(self, mine: bool) -> None:
        """Raises where this thread may not use it now."""
        self._home.check_open()
        if self._closed:
            raise IllegalStateException(f"{self._called} is closed")
        if not mine:
            raise IllegalStateException(
                f"another thread is at work in {self._called}",
                hint="a reader is one thread's at a time; make one for each",
            )

    def _begin(self, mine: bool) -> dict[TopicPartition, PartitionReader]:
        """Where a call begins: what an interrupted poll took is put back, and the positions are as they are now."""
        self._check(mine)
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
        """In errors."""
        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        turns = getattr(self, "_turns", None)  # of one that was never made whole
        of = _shown.number(0 if turns is None else len(turns.readers), "partition")
        return f"<StoreReader{name} of {of}, {'closed' if self.closed else 'open'}>"

    def __repr__(self) -> str:
        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        turns = getattr(self, "_turns", None)
        at = {} if turns is None else {each: found.position for each, found in list(turns.readers.items())}
        walk = self._walk
        told = None if walk is None else _shown.or_none(walk.told)  # None while another thread is in it
        if told is not None and told[0].topic_partition in at:
            at[told[0].topic_partition] = max(told[1], told[0].position)
        places = [f"{partition}@{offset}" for partition, offset in list(at.items())[:PLACES_SHOWN]]
        more = f" and {len(at) - PLACES_SHOWN:,} more" if len(at) > PLACES_SHOWN else ""
        state = "closed" if self.closed else "open"
        return f"<StoreReader{name} of {self._home.place}, {state}, at {', '.join(places) or 'no partition'}{more}>"

    # --- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._records_async(True, 0.0)

    def records(self) -> RecordWalk:
        """What is there when it is begun, in turns by partition; then it ends.  Errors as `follow`."""
        return self._records(True, 0.0)

    def follow(self, timeout_ms: int | None = None) -> RecordWalk:
        """What is there, and what comes; ends when nothing came for `timeout_ms` (None: never).

        OffsetOutOfRangeException where the log has not got a position any more and `start` is "error";
        UnknownTopicOrPartitionException where a topic was deleted, whose partitions are read no more;
        CorruptRecordException at damage; KafkaStorageException; IllegalStateException when the store or the reader is
        closed meanwhile.
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
        """The present iteration from now on, over these."""
        options = self._options
        self._take_over(CHUNK_BYTES)
        self._walk = walk = walk_selected(batches, options.selection, options.times, asynchronously)
        return walk

    def _take_over(self, chunk_bytes: int, *, reads_ahead: bool = False) -> None:
        if isinstance(self._walk, RecordWalk):
            self._walk.refuse(self._taken_over())
        self._turns.begin(chunk_bytes, reads_ahead=reads_ahead)
        self._iterations += 1

    def _taken_over(self) -> IllegalStateException:
        return IllegalStateException(f"another iteration of {self._called} has begun")

    def _batches(self, is_bounded: bool, timeout_s: float) -> Iterator[Batch]:
        """What a walk goes over."""
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
        # In a store that only reads somebody must look; our own logs are always known as they are.
        if found is None and ends is None and (timeout_s > 0 or self._home.read_only):
            found = self._turns.await_batch(timeout_s, self._is_over)
            if self._closed:
                self._check(True)
        return found

    def _is_over(self) -> bool:
        return self._closed or self._is_stopped or not self._home.life.live

    def poll(self, max_records: int = POLL_RECORDS, timeout_ms: int | None = 0) -> list[Record]:
        """Up to `max_records` records that are there now; none only if none came for `timeout_ms`.

        They count as handed out when it returns.  Errors as `follow`, behind the records that lie before them.  A
        KeyboardInterrupt may come between its return and what the caller does with the list: who goes on after one
        seeks to where he knows that he is, or commits by offsets.  (A `for` loop over the reader has no such gap.)
        """
        max_records = values.whole(max_records, "max_records", low=1, expected="records at most")
        timeout_s = _timeout_s(timeout_ms)
        with self._turn as mine:
            readers = self._begin(mine)
            self._undo = self._places(readers)
            found: list[Record] = Records()
            try:
                self._poll(found, max_records)
                while not found and self._next_batch(None, timeout_s) is not None:
                    self._poll(found, max_records)
            except KafkalogError as error:  # it comes again, when what lies before it was taken
                if not found:
                    self._undo = None
                    raise
                if isinstance(error, UnknownTopicOrPartitionException):
                    self._turns.untold = error  # what is gone is told once
        self._undo = None  # no signal comes between this and the end
        return found

    def _poll(self, found: list[Record], max_records: int) -> None:
        walk = self._polling
        if walk is None or walk is not self._walk:
            walk = self._walk_over(self._batches(False, 0.0))
        self._polling = None
        found.extend(islice(walk, max_records))
        if len(found) == max_records:  # else it is over
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
        """Records as pyarrow record batches of up to `batch_rows` rows, each of one partition.

        By default what is there when it is begun; with `timeout_ms` what comes as well, until nothing came for so long
        (None: for ever).  Columns are those of `Partition.read_arrow`, by default topic, partition, offset, timestamp,
        timestamp_type, key, value, headers; `values`, `schema`, `errors` and `keys` decode as there.  JSON without a
        schema has that of the values that come next: give `schema` where later calls are to have the same.

        A batch counts as handed out as a whole.  Errors as `follow`; RecordDeserializationException, before the batch;
        MissingPackageException without pyarrow.
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
        """As `batches` of what is there now, as a pyarrow RecordBatchReader: read while it is taken."""
        wanted, batches = self._batches_of(columns, batch_rows, 0, decoding)
        found: pa.RecordBatchReader = need_pyarrow().RecordBatchReader.from_batches(wanted.schema, batches)
        return found

    def read_arrow(self, columns: Sequence[str] | None = None, **decoding: Unpack[Decoding]) -> pa.Table:
        """As `batches` of what is there now, as one pyarrow Table; without records it has the columns, and no rows.

            with store.reader("nightly", topics=["orders"]) as reader:
                table = reader.read_arrow(["key", "value"], values="json", schema={"id": "int64"})
                ...
                reader.commit()

        The records count as handed out when it returns: where it raises, the reader stands where it stood.
        """
        wanted, batches = self._batches_of(columns, BATCH_ROWS, 0, decoding)
        with self._turn as mine:
            self._undo = self._places(self._begin(mine))
        table: pa.Table = need_pyarrow().Table.from_batches(list(batches), wanted.schema)
        self._undo = None  # no signal comes between this and the end
        return table

    @staticmethod
    def _places(readers: dict[TopicPartition, PartitionReader]) -> list[Place]:
        return [(each, each.position, each.leader_epoch) for each in readers.values()]

    def _iterate(
        self,
        placed: Generator[tuple[Place, pa.RecordBatch], None, None],
        asynchronously: Callable[[], AsyncIterator[pa.RecordBatch]] | None = None,
    ) -> Iteration[pa.RecordBatch]:
        self._take_over(ARROW_CHUNK_BYTES, reads_ahead=True)  # whose batches are copies
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
        """Raises unless that iteration is the last that was begun."""
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
        """As `_batches`, of what was read ahead alone."""
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
        """Reads ahead, in a thread; whether there is something."""
        with self._turn as mine:
            self._check(mine)
            self._check_present(number)
            return self._next_batch(ends, timeout_s) is not None

    async def _made_async(self, columns: Columns, timeout_s: float) -> AsyncIterator[pa.RecordBatch]:
        with self._turn as mine:
            self._begin(mine)
            self._take_over(ARROW_CHUNK_BYTES, reads_ahead=True)  # whose batches are copies
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
        """A chunk's record batches, in a thread; behind them the error that ends them.  Nothing is handed out."""
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
        """A task was cancelled: its thread is to come back, and then waits may begin again."""
        self._is_stopped = is_stopped
        if is_stopped:
            self._turns.waiting.release()

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def cursor(self) -> str | None:
        """Its name; None where it has none."""
        return self._options.cursor

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads."""
        return list(self._turns.readers)

    def position(self, partition: str | TopicPartition) -> int:
        """The offset where the partition goes on: behind the last record that was handed out."""
        with self._turn as mine:
            self._begin(mine)
            return self._turns.one(partition).position

    def positions(self) -> dict[TopicPartition, int]:
        """`position` of all partitions."""
        with self._turn as mine:
            return {partition: reader.position for partition, reader in self._begin(mine).items()}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets there are from each position to the end, as this reader's isolation sees it.  Partitions
        that cannot be read now are left out; UnknownTopicOrPartitionException, once, where a topic was deleted."""
        with self._turn as mine:
            readers = self._begin(mine)
            self._turns.recheck()
            found: dict[TopicPartition, int] = {}
            for partition, reader in readers.items():
                with suppress(KafkaStorageException):
                    found[partition] = reader.lag()
            return found

    def seek(self, partition: str | TopicPartition, offset: int) -> None:
        """Goes on at another offset, also in the middle of an iteration.  One that the log has not got is met when it
        is read, as `start` says."""
        offset = values.offset(offset, low=0)
        with self._turn as mine:
            self._begin(mine)
            reader = self._turns.one(partition)
            self._leave(reader)
            reader.seek(offset)

    def seek_to_time(self, timestamp_ms: int, *partitions: str | TopicPartition) -> None:
        """Goes on at the first record at or after a time (ms since 1970), of these partitions or all; at the end where
        there is none."""
        timestamp_ms = values.milliseconds(timestamp_ms, "timestamp_ms", low=0)
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                source = reader.source
                source.recheck()
                found = source.offset_for_time(timestamp_ms)
                self._leave(reader)
                reader.seek(source.visible_end(self._options.isolation) if found is None else found)

    def rewind(self, *partitions: str | TopicPartition) -> None:
        """Goes back to what its cursor has committed, of these partitions or all; also in the middle of an iteration.

        A partition of which nothing was committed since the reader was made, and every one of a reader without a
        cursor, goes back to where the reader began.  So what was handed out since the last commit comes again, as after
        a restart.  A loop that tries again needs it: a transaction that was aborted leaves the reader behind what it
        read.

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

        Positions alone move: what is paused stays so.  UnstableOffsetCommitException, of "read_committed" while a
        transaction is open that has offsets of the cursor, and IllegalStateException, of a partition that is not read:
        nothing has moved.
        """
        with self._turn as mine:
            self._begin(mine)
            for reader, committed in self._turns.to_rewind(partitions).items():
                self._leave(reader)
                reader.rewind(committed)

    def pause(self, *partitions: str | TopicPartition) -> None:
        """Hands out nothing of these partitions, or of all, until `resume`; also in the middle of an iteration."""
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                self._leave(reader)
                reader.paused = True

    def resume(self, *partitions: str | TopicPartition) -> None:
        """Goes on with what was paused: with these partitions, or all."""
        with self._turn as mine:
            self._begin(mine)
            for reader in self._turns.some(partitions):
                reader.paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are not read until `resume`."""
        return [partition for partition, reader in self._turns.readers.items() if reader.paused]

    def _leave(self, reader: PartitionReader) -> None:
        """What is being handed out, where it is this partition's, ends here; it may be given again."""
        if reader.given is not None:
            if isinstance(self._walk, RecordWalk):
                self._walk.leave_batch()
            reader.given = None

    # --- cursors -------------------------------------------------------------------------------------

    def _named(self) -> str:
        if self._options.cursor is None:
            raise IllegalStateException(f"{self._called} has no cursor", hint="store.reader('name', ...) gives it one")
        return self._options.cursor

    def is_of(self, home: object) -> bool:
        """Whether it reads the store that stands on `home`."""
        return getattr(home, "shared", home) is getattr(self._home, "shared", self._home)

    def offsets_to_commit(self, metadata: str = "") -> dict[TopicPartition, CommittedOffset]:
        """What `commit` commits: the position of each partition, but of those whose topic was deleted."""
        metadata = values.text(metadata, "metadata")
        with self._turn as mine:
            found: dict[TopicPartition, CommittedOffset] = {}
            for partition, reader in self._begin(mine).items():
                with suppress(UnknownTopicOrPartitionException):  # told when it is read
                    topic_id = self._turns.topic_id(reader)
                    found[partition] = CommittedOffset(
                        reader.position, reader.leader_epoch, metadata, topic_id=topic_id
                    )
            return found

    def commit(self, offsets: Offsets | None = None, metadata: str = "") -> dict[TopicPartition, int]:
        """Commits how far it has come in all partitions, or `offsets` (of the next record to read); answers what.

        A partition whose topic was deleted, or made anew, is left out; where `offsets` names one it is
        UnknownTopicOrPartitionException, and nothing is committed.

        All of them or none, whatever interrupts it.  Durable as the store's appends are.  A cursor whose members were a
        broker's consumers loses those.  IllegalStateException for a reader without a cursor; LogReadOnlyException in a
        store that only reads and has no `cursors`; OffsetMetadataTooLarge; KafkaStorageException.
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
        store_cursors.commit(self._home, cursor, rows)
        return {partition: row.offset for partition, row in rows.items()}

    async def commit_async(self, offsets: Offsets | None = None, metadata: str = "") -> dict[TopicPartition, int]:
        """As `commit`, for a coroutine, in a thread.  A task that is cancelled is so when the commit has ended."""
        return await self._in_thread(partial(self.commit, offsets, metadata))

    def committed(self) -> dict[TopicPartition, int]:
        """What its cursor has committed for the partitions that it reads."""
        found = store_cursors.committed(self._home, self._named())
        return {partition: row.offset for partition, row in found.items() if partition in self._turns.readers}


def _timeout_s(timeout_ms: int | None) -> float:
    if timeout_ms is None:
        return math.inf
    return values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds") / 1000


def __dir__() -> list[str]:
    return __all__
