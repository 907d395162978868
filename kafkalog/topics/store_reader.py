"""Reading several partitions of a store in turns: what `Store.reader` gives.

    with kafkalog.open("data") as store:
        store.create_topic("orders", partitions=4, exist_ok=True)
        with store.reader("billing", topics=["orders"]) as reader:
            for record in reader.follow(timeout_ms=1000):
                print(record.key, record.value)
                reader.commit()

Order: records of a partition come in the order of their offsets; partitions take turns, a chunk each.

What is committed: `position` of a partition lies behind the last record that was handed out, which a `for` loop has
been given, or `poll` has returned; `commit` covers those, and what lies between them that nobody is shown (control
records, aborted ones, what filters leave out), and nothing else.  Whoever commits after he has dealt with a record gets
it again where a crash comes between the two, and never misses one; whoever commits before may miss it.  After a crash
the reader goes on at the last commit that returned, or at one that was under way; with "os" a power loss may take it
further back.

One thread at a time (IllegalStateException or RuntimeError for a second one), but for `close`, which may come from any
and ends a wait.  Of iterators the last one that was begun counts: another that goes on is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from kafkalog._native.blocks import Closing, Turn
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    NoOffsetForPartitionException,
    UnknownTopicOrPartitionException,
)
from kafkalog.format import names, values
from kafkalog.format.group_records import CommittedOffset
from kafkalog.format.java_text import ZERO_UUID
from kafkalog.limits import LONG_MAX, LONG_MIN
from kafkalog.log.source import check_isolation
from kafkalog.topics import store_cursors
from kafkalog.topics.partition_reader import PartitionReader
from kafkalog.topics.reader import CHUNK_BYTES, walk_records
from kafkalog.topics.waiting import Waiting, WaitingBeside, WaitingHere

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog._native.reading import RecordWalk
    from kafkalog.format.names import TopicPartition
    from kafkalog.topics.reader import Chunk
    from kafkalog.topics.records import Record
    from kafkalog.topics.store_home import StoreHome
    from kafkalog.topics.store_view import StoreView

T = TypeVar("T")

READ_AHEAD_BYTES = 64 << 20  # of all partitions of a reader, about
CHUNK_BYTES_MIN = 64 << 10
POLL_RECORDS = 500  # max.poll.records
STARTS = ("earliest", "latest", "error")

Batch = tuple[PartitionReader, "Chunk", "BatchHeader"]


class ReaderOptions:
    """What a reader was asked for, checked.  Errors as `Store.reader`."""

    # More than eight parameters: they are those of `Store.reader`.
    def __init__(
        self,
        cursor: str | None,
        topics: Iterable[str] | None,
        partitions: Iterable[str | TopicPartition] | None,
        *,
        start: str,
        start_offsets: Mapping[str | TopicPartition, int] | None,
        start_time: int | None,
        end_time: int | None,
        isolation: str,
        key_prefix: bytes | None,
        chunk_bytes: int | None,
    ) -> None:
        if cursor is not None and not values.text(cursor, "cursor"):
            raise IllegalArgumentException("cursor: found an empty name", hint="None reads without a cursor")
        if topics is not None and partitions is not None:
            raise IllegalArgumentException("found both topics and partitions", hint="leave one out")
        if not isinstance(start, str) or start not in STARTS:
            raise IllegalArgumentException(f"start {start!r} is none of {', '.join(STARTS)}")
        self.cursor = cursor
        self.topics = None if topics is None else _names(topics)
        self.partitions = None if partitions is None else [names.partition_of(each) for each in _listed(partitions)]
        self.start = start
        self.start_offsets = {
            names.partition_of(each): values.offset(offset, "start_offsets", low=0)
            for each, offset in ({} if start_offsets is None else start_offsets).items()
        }
        self.committed = check_isolation(isolation)
        self.isolation = isolation
        self.start_time = LONG_MIN if start_time is None else values.milliseconds(start_time, "start_time")
        self.end_time = LONG_MAX if end_time is None else values.milliseconds(end_time, "end_time")
        self.key_prefix = values.octets(key_prefix, "key_prefix")
        self.chunk_bytes = None if chunk_bytes is None else values.whole(chunk_bytes, "chunk_bytes", low=1)

    def chunk_bytes_of(self, partitions: int) -> int:
        """How much is read at once of each of so many partitions."""
        if self.chunk_bytes is not None:
            return self.chunk_bytes
        return max(CHUNK_BYTES_MIN, min(CHUNK_BYTES, READ_AHEAD_BYTES // max(partitions, 1)))


def _names(topics: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values.text(each, "topics") for each in _listed(topics)))


def _listed(given: Iterable[T]) -> list[T]:
    if isinstance(given, str | bytes):
        raise IllegalArgumentException(f"found {values.shown(given)}, expected a list of names")
    return list(given)


class StoreReader(Closing):
    """Several partitions, read in turns.  Made by `Store.reader`."""

    def __init__(self, home: StoreHome | StoreView, options: ReaderOptions) -> None:
        self._home = home
        self._options = options
        self._turn = Turn()  # of the one thread that uses it
        self._closed = False
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._next = 0  # whose turn it is to be read
        self._current: PartitionReader | None = None  # whose batches are handed out
        self._walk: RecordWalk | None = None
        self._polling: RecordWalk | None = None  # the walk, where it is poll's
        self._undo: list[tuple[PartitionReader, int]] | None = None  # of a poll that has not returned
        self._waiting: Waiting = WaitingBeside() if home.read_only else WaitingHere()
        home.bells.add(self._waiting.bell)
        self._changes = home.topic_changes
        self._topics = self._followed()
        wanted = options.partitions
        if wanted is None:
            wanted = [names.TopicPartition(each, n) for each in self._topics for n in range(home.info(each).partitions)]
        for partition in options.start_offsets:
            if partition not in wanted:
                raise IllegalArgumentException(f"start_offsets: found {partition}, which is not read")
        for partition in dict.fromkeys(wanted):
            self._add(partition, len(wanted), is_new=False)

    def _followed(self) -> list[str]:
        """Topics whose new partitions are read as well."""
        options = self._options
        if options.partitions is not None:
            return []
        if options.topics is not None:
            return options.topics
        known = () if options.cursor is None else store_cursors.committed(self._home, options.cursor)
        if not known:
            raise IllegalArgumentException(
                "found neither topics nor partitions, nor a cursor that has been committed", hint="topics=['orders']"
            )
        return list(dict.fromkeys(each.topic for each in known))

    def _add(self, partition: TopicPartition, count: int, *, is_new: bool) -> None:
        options, home = self._options, self._home
        source = home.source(partition)
        source.recheck()
        topic_id = home.info(partition.topic).topic_id or ZERO_UUID
        epoch = None
        position = options.start_offsets.get(partition)
        if position is None and options.cursor is not None:
            found = store_cursors.start_of(home, options.cursor, partition, topic_id, stable=options.committed)
            if found is not None:
                position, epoch = found.offset, found.leader_epoch
        if position is None:
            if options.start == "error" and not is_new:
                raise NoOffsetForPartitionException(
                    f"{partition}: nothing says where to start"
                    + ("" if options.cursor is None else f", cursor {options.cursor!r} has no offset of it"),
                    hint="start='earliest' or 'latest', or start_offsets=",
                )
            latest = options.start == "latest" and not is_new
            position = source.visible_end(options.isolation) if latest else source.log_start_offset
        if options.start_time != LONG_MIN:
            at = source.offset_for_time(options.start_time) if options.start_time >= 0 else 0
            position = max(position, source.visible_end(options.isolation) if at is None else at)
        reader = PartitionReader(
            source,
            position,
            topic_id=topic_id,
            isolation=options.isolation,
            reset=options.start,
            chunk_bytes=options.chunk_bytes_of(count),
            start_time=options.start_time,
        )
        if epoch is not None:
            reader.leader_epoch = epoch
        self._readers[partition] = reader

    # --- life ----------------------------------------------------------------------------------------

    def __enter__(self) -> StoreReader:
        return self

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Lets go of the files; commits nothing.  A thread that waits in it is told (IllegalStateException)."""
        self._closed = True
        self._waiting.bell.release()
        with self._turn as mine:
            if mine:  # else whoever is at work does it
                self._let_go()

    def _let_go(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._waiting.close()

    def _check(self, mine: bool) -> None:
        """Raises where this thread may not use it now; what an interrupt left is put in order."""
        self._home.check_open()
        if self._closed:
            raise IllegalStateException(f"{self!r} is closed")
        if not mine:
            raise IllegalStateException(
                f"another thread is at work in {self!r}", hint="a reader is one thread's at a time; make one for each"
            )
        undo = self._undo
        if undo is not None:
            for reader, position in undo:
                if reader.position != position:
                    reader.seek(position)
            self._walk = self._undo = None

    def __repr__(self) -> str:
        name = "" if self._options.cursor is None else f" {self._options.cursor!r}"
        return f"<StoreReader{name} of {len(self._readers)} partitions>"

    # --- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(self) -> Iterator[Record]:
        """What is there now, in turns by partition; then it ends.  Errors as `follow`."""
        return self._walk_over(self._batches(self._ends()))

    def follow(self, timeout_ms: int | None = None) -> Iterator[Record]:
        """What is there, and what comes; ends when nothing came for `timeout_ms` (None: never).

        OffsetOutOfRangeException where the log has not got a position any more and `start` is "error";
        UnknownTopicOrPartitionException where a topic was deleted, which is read no more; CorruptRecordException at
        damage; KafkaStorageException; IllegalStateException when the store or the reader is closed meanwhile.
        """
        timeout_s = math.inf if timeout_ms is None else _timeout_s(timeout_ms)
        return self._walk_over(self._batches(None, timeout_s))

    def poll(self, max_records: int = POLL_RECORDS, timeout_ms: int = 0) -> list[Record]:
        """Up to `max_records` records that are there; none only when none came for `timeout_ms`."""
        max_records = values.whole(max_records, "max_records", low=1, expected="records at most")
        timeout_s = _timeout_s(timeout_ms)
        with self._turn as mine:
            self._settled(mine)
            self._undo = [(each, each.position) for each in self._readers.values()]
            found: list[Record] = []
            try:
                self._poll(found, max_records)
                if not found and timeout_s and self._await(timeout_s) is not None:
                    self._poll(found, max_records)
            except KafkalogError:  # it comes again, when what lies before it was taken
                if not found:
                    self._undo = None
                    raise
            self._undo = None
            return found

    def _poll(self, found: list[Record], max_records: int) -> None:
        walk = self._polling
        if walk is None or walk is not self._walk:
            walk = self._walk_over(self._batches(None))
        self._polling = None
        found.extend(islice(walk, max_records))
        if len(found) == max_records:  # else it is over
            self._polling = walk

    def _walk_over(self, batches: Iterator[Batch]) -> RecordWalk:
        with self._turn as mine:
            self._check(mine)
            before = self._walk
            if before is not None:
                self._take_in(before)
                before.refuse(IllegalStateException(f"another iteration of {self!r} has begun"))
            for reader in self._readers.values():
                reader.given = None
            options = self._options
            self._walk = walk = walk_records(
                batches, key_prefix=options.key_prefix, start_time=options.start_time, end_time=options.end_time
            )
            return walk

    def _ends(self) -> dict[PartitionReader, int]:
        with self._turn as mine:
            self._check(mine)
            self._look_for_partitions()
            for reader in self._readers.values():
                reader.source.recheck()
            return {each: each.source.visible_end(self._options.isolation) for each in self._readers.values()}

    def _batches(self, ends: Mapping[PartitionReader, int] | None, timeout_s: float = 0.0) -> Iterator[Batch]:
        """What a walk goes over: up to `ends`, or until nothing came for `timeout_s`."""
        while True:
            with self._turn as mine:
                self._check(mine)
                found = self._find(ends)
                if found is None and ends is None:
                    found = self._await(timeout_s)
            if found is None:
                return
            reader, _, header = found
            reader.given = header
            yield found
            reader.passed(header)

    def _await(self, timeout_s: float) -> Batch | None:
        until = time.monotonic() + timeout_s
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            self._waiting.wait(self._active(), left_s, self._is_over)
            self._check(True)
            found = self._find(None)
            if found is not None:
                return found

    def _is_over(self) -> bool:
        return self._closed or not self._home.life.live or self._changes != self._home.topic_changes

    def _active(self) -> list[PartitionReader]:
        return [each for each in self._readers.values() if not each.paused]

    def _find(self, ends: Mapping[PartitionReader, int] | None) -> Batch | None:
        """The next batch: of the chunk that is being handed out, or of the next partition that has one."""
        reader = self._current
        if reader is not None and not reader.paused:
            batch = reader.current()
            if batch is not None:
                return reader, *batch
        self._current = None
        self._look_for_partitions()
        readers = list(self._readers.values())
        for number in range(self._next, self._next + len(readers)):
            reader = readers[number % len(readers)]
            if reader.paused:
                continue
            self._next = number % len(readers) + 1  # also where it fails: then the others come first
            batch = reader.current() or self._read(reader, ends)
            if batch is not None:
                self._current = reader
                return reader, *batch
        return None

    def _read(
        self, reader: PartitionReader, ends: Mapping[PartitionReader, int] | None
    ) -> tuple[Chunk, BatchHeader] | None:
        try:
            if ends is not None and reader.offset >= ends.get(reader, 0):
                return None
            if reader.may_have_more() and reader.read():
                return reader.current()
            return None
        except UnknownTopicOrPartitionException:
            self._readers.pop(reader.topic_partition, None)
            raise

    def _look_for_partitions(self) -> None:
        """New partitions of the topics that are followed, which are read from their beginning."""
        changes = self._home.topic_changes
        if changes == self._changes:
            return
        for topic in list(self._topics):
            try:
                count = self._home.info(topic).partitions
            except UnknownTopicOrPartitionException:
                self._topics = [each for each in self._topics if each != topic]
                for partition in [each for each in self._readers if each.topic == topic]:
                    self._readers.pop(partition, None)
                raise
            for number in range(count):
                partition = names.TopicPartition(topic, number)
                if partition not in self._readers:
                    self._add(partition, len(self._readers) + 1, is_new=True)
        self._changes = changes

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def cursor(self) -> str | None:
        """Its name; None where it has none."""
        return self._options.cursor

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads."""
        return list(self._readers)

    def _take_in(self, walk: RecordWalk) -> None:
        """How far a walk is in the batch that it goes over."""
        told = walk.told()
        if told is not None:
            reader, offset, leader_epoch = told
            reader.told(offset, leader_epoch)

    def _settled(self, mine: bool) -> dict[TopicPartition, PartitionReader]:
        """All partitions, each with the position where it is now."""
        self._check(mine)
        if self._walk is not None:
            self._take_in(self._walk)
        return self._readers

    def _one(self, partition: str | TopicPartition) -> PartitionReader:
        found = self._readers.get(names.partition_of(partition))
        if found is None:
            raise IllegalStateException(f"{self!r} does not read {names.partition_of(partition)}")
        return found

    def position(self, partition: str | TopicPartition) -> int:
        """The offset behind the last record of the partition that was handed out: where it goes on."""
        with self._turn as mine:
            self._settled(mine)
            return self._one(partition).position

    def positions(self) -> dict[TopicPartition, int]:
        """`position` of all partitions."""
        with self._turn as mine:
            return {partition: reader.position for partition, reader in self._settled(mine).items()}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets there are from each position to the end, as this reader's isolation sees it."""
        with self._turn as mine:
            readers = self._settled(mine)
            for reader in readers.values():
                reader.source.recheck()
            return {partition: reader.lag() for partition, reader in readers.items()}

    def seek(self, partition: str | TopicPartition, offset: int) -> None:
        """Goes on at another offset, also in the middle of an iteration.  One that the log has not got is met when it
        is read, as `start` says."""
        offset = values.offset(offset, low=0)
        with self._turn as mine:
            self._settled(mine)
            reader = self._one(partition)
            self._leave(reader)
            reader.seek(offset)

    def seek_to_time(self, timestamp_ms: int, *partitions: str | TopicPartition) -> None:
        """Goes on at the first record at or after a time (ms since 1970), of these partitions or all; at the end where
        there is none."""
        timestamp_ms = values.milliseconds(timestamp_ms, "timestamp_ms", low=0)
        with self._turn as mine:
            readers = self._settled(mine)
            for reader in [self._one(each) for each in partitions] or list(readers.values()):
                source = reader.source
                source.recheck()
                found = source.offset_for_time(timestamp_ms)
                self._leave(reader)
                reader.seek(source.visible_end(self._options.isolation) if found is None else found)

    def pause(self, *partitions: str | TopicPartition) -> None:
        """Hands out nothing of these partitions until `resume`, also in the middle of an iteration."""
        with self._turn as mine:
            self._settled(mine)
            for reader in [self._one(each) for each in partitions]:
                self._leave(reader)
                reader.paused = True

    def resume(self, *partitions: str | TopicPartition) -> None:
        """Goes on with what was paused: with these partitions, or all."""
        with self._turn as mine:
            readers = self._settled(mine)
            for reader in [self._one(each) for each in partitions] or readers.values():
                reader.paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [partition for partition, reader in self._readers.items() if reader.paused]

    def _leave(self, reader: PartitionReader) -> None:
        """The batch that a walk goes over, where it is this partition's, is left; it may be given again."""
        if reader.given is not None:
            if self._walk is not None:
                self._walk.leave_batch()
            reader.given = None

    # --- cursors -------------------------------------------------------------------------------------

    def _named(self) -> str:
        if self._options.cursor is None:
            raise IllegalStateException(f"{self!r} has no cursor", hint="store.reader('name', ...) gives it one")
        return self._options.cursor

    def offsets_to_commit(self, metadata: str = "") -> dict[TopicPartition, CommittedOffset]:
        """What `commit` commits: the position of each partition."""
        with self._turn as mine:
            return {
                partition: CommittedOffset(
                    reader.position, reader.leader_epoch, values.text(metadata, "metadata"), topic_id=reader.topic_id
                )
                for partition, reader in self._settled(mine).items()
            }

    def commit(
        self, offsets: Mapping[str | TopicPartition, int] | None = None, metadata: str = ""
    ) -> dict[TopicPartition, int]:
        """Commits how far it has come in all partitions, or `offsets` (of the next record to read); answers what.

        All of them or none, whatever interrupts it.  Durable as the store's appends are.  IllegalStateException for a
        reader without a cursor; LogReadOnlyException in a store that only reads and has no `cursors`;
        OffsetMetadataTooLarge; KafkaStorageException.
        """
        cursor = self._named()
        if offsets is None:
            rows = self.offsets_to_commit(metadata)
        else:
            metadata = values.text(metadata, "metadata")
            given = {names.partition_of(each): values.offset(offset, low=0) for each, offset in offsets.items()}
            with self._turn as mine:
                self._settled(mine)
                rows = {
                    each: CommittedOffset(offset, metadata=metadata, topic_id=self._one(each).topic_id)
                    for each, offset in given.items()
                }
        store_cursors.commit(self._home, cursor, rows)
        return {partition: row.offset for partition, row in rows.items()}

    def committed(self) -> dict[TopicPartition, int]:
        """What its cursor has committed for the partitions that it reads."""
        found = store_cursors.committed(self._home, self._named())
        return {partition: row.offset for partition, row in found.items() if partition in self._readers}


def _timeout_s(timeout_ms: int) -> float:
    return values.whole(timeout_ms, "timeout_ms", low=0, expected="milliseconds") / 1000
