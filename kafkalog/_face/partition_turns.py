"""The partitions of a StoreReader: the list, the order in which they are read, and the wait for more records.

They are read round-robin, a chunk each, so that none waits forever for another that grows as fast as it is read. The
next partition is chosen before it is read, so one that cannot be read does not keep the others from being read.

The caller holds the reader's lock: one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from kafkalog._face import store_cursors
from kafkalog._face.chunk_reader import CHUNK_BYTES, UNREADABLE
from kafkalog._face.damage_hint import helped
from kafkalog._face.partition_reader import PartitionReader
from kafkalog._face.waiting import Waiting
from kafkalog._limits import LONG_MAX
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    NoOffsetForPartitionException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk
    from kafkalog._face.home import Home
    from kafkalog._face.reader_options import ReaderOptions
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.group_records import CommittedOffset
    from kafkalog.engine.log.source import Source

LOOKS_MAX = 4
LOOK_AGAIN_S = 0.03
FILES_HELD = 16  # by the partitions of one reader; with more partitions each closes its file after its turn
ADD_AGAIN_S = 1.0  # until a partition that could not be added is tried again

Batch = tuple[PartitionReader, "Chunk", "BatchHeader"]
Ends = Mapping[PartitionReader, int]


class PartitionTurns:
    """The partitions of one reader. Errors as `Store.reader`."""

    def __init__(self, home: Home, options: ReaderOptions) -> None:
        self._home = home
        self._options = options
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.untold: UnknownTopicOrPartitionException | None = None  # an error about a partition already forgotten
        self._missing: set[TopicPartition] = set()  # followed partitions that were reported as deleted
        self._unread: set[TopicPartition] = set()  # that could not be added; reported once, and tried again
        self._added_at = 0.0
        self._next = 0  # index of the partition to read next
        self._current: PartitionReader | None = None  # the reader whose batches are being returned
        self.waiting = Waiting()
        home.bells.add(self.waiting)
        self._changes = home.topic_changes
        self._topics = self._followed()
        self._ids = {each: home.info(each).topic_id for each in self._topics}  # a later topic of the name is not read
        wanted = options.partitions if options.group is None else []
        if wanted is None:
            wanted = [TopicPartition(each, n) for each in self._topics for n in home.numbers(each)]
        for partition in options.start_offsets:
            if partition not in wanted:
                raise IllegalArgumentException(f"start_offsets: found {partition}, which is not read")
        for partition in wanted:
            self._add(partition, is_new=False)

    def _followed(self) -> list[str]:
        """Returns the topics whose new partitions are read as well."""
        options = self._options
        if options.partitions is not None or options.group is not None:
            return []
        if options.topics is not None:
            return options.topics
        known = () if options.cursor is None else store_cursors.committed(self._home, options.cursor)
        found: list[str] = []
        for topic in dict.fromkeys(each.topic for each in known):
            with suppress(UnknownTopicOrPartitionException):  # deleted: its committed offsets no longer count
                self._home.info(topic)
                found.append(topic)
        if not found:
            raise IllegalArgumentException(
                "found neither topics nor partitions, and no committed cursor", hint="topics=['orders']"
            )
        return found

    def _add(self, partition: TopicPartition, *, is_new: bool) -> None:
        for look in range(LOOKS_MAX):
            try:
                self.readers[partition] = self._reader_of(partition, is_new=is_new)
                return
            except UnknownTopicOrPartitionException:
                if not self._home.read_only or look + 1 == LOOKS_MAX:
                    raise
                time.sleep(LOOK_AGAIN_S)  # another process may be moving it

    def _reader_of(self, partition: TopicPartition, *, is_new: bool) -> PartitionReader:
        options, home = self._options, self._home
        source = home.source(partition)
        source.recheck()
        topic_id = home.info(partition.topic).topic_id or ZERO_UUID
        position = options.start_offsets.get(partition)
        committed = None
        with nullcontext() if position is None else suppress(KafkaStorageException):  # needed only for a rewind
            committed = self._committed(partition, topic_id, stable=options.committed and position is None)
        goes_on = position is None and committed is not None
        if goes_on:
            assert committed is not None
            position = committed.offset
        if position is None:
            if options.start == "error" and not is_new:
                raise NoOffsetForPartitionException(
                    f"{partition}: there is no offset to start from"
                    + ("" if options.cursor is None else f", cursor {options.cursor!r} has no offset of it"),
                    hint="pass start='earliest' or start='latest', or start_offsets=",
                )
            latest = options.start == "latest" and not is_new
            position = source.visible_end(options.isolation) if latest else source.log_start_offset
            if options.start_offset is not None:
                position = min(max(position, options.start_offset), source.visible_end(options.isolation))
        if options.times.first >= 0:
            position = max(position, self._offset_of_time(source, options.times.first))
        reader = PartitionReader(
            source,
            position,
            topic_id=topic_id,
            isolation=options.isolation,
            reset=options.start,
            times=options.times,
            end_offset=options.end_offset,
            tell=options.selection.tell,
        )
        reader.begun_with = committed
        if goes_on:
            assert committed is not None
            reader.leader_epoch = committed.leader_epoch
        return reader

    def _committed(self, partition: TopicPartition, topic_id: str, *, stable: bool) -> CommittedOffset | None:
        """Returns the committed offset of the reader's cursor. UnstableOffsetCommitException, as
        `store_cursors.start_of`."""
        cursor = self._options.cursor
        if cursor is None:
            return None
        return store_cursors.start_of(self._home, cursor, partition, topic_id, stable=stable)

    def to_rewind(self, partitions: tuple[str | TopicPartition, ...]) -> dict[PartitionReader, CommittedOffset | None]:
        """Returns the committed offsets of these partitions, or of all. Deleted topics are left out."""
        stable = self._options.committed
        found: dict[PartitionReader, CommittedOffset | None] = {}
        for reader in self.some(partitions):
            with suppress(UnknownTopicOrPartitionException):  # reported when it is read
                found[reader] = self._committed(reader.topic_partition, self.topic_id(reader), stable=stable)
        return found

    def _offset_of_time(self, source: Source, timestamp_ms: int) -> int:
        """Returns the offset to begin at for a time; the log's start if the search meets damage that is skipped."""
        try:
            at = source.offset_for_time(timestamp_ms)
        except UNREADABLE as error:
            if self._options.selection.tell is None:
                raise helped(error)
            return source.log_start_offset
        return source.visible_end(self._options.isolation) if at is None else at

    # --- the partitions of a member of a group ----------------------------------------------------------

    def give(self, partition: TopicPartition) -> None:
        """Reads a partition that the group has assigned. Errors as `Store.reader`."""
        self._add(partition, is_new=False)

    def take(self, partition: TopicPartition) -> None:
        """Reads a partition no longer. No batch of it is in use."""
        reader = self.readers.pop(partition, None)
        if reader is not None:
            if reader is self._current:
                self._current = None
            reader.let_go()

    def close(self) -> None:
        """Closes the files."""
        for reader in self.readers.values():
            reader.let_go()
        self.waiting.close()

    # --- reading in turn -------------------------------------------------------------------------------

    def begin(self, chunk_bytes: int = CHUNK_BYTES, *, reads_ahead: bool = False) -> None:
        """Begins another iteration, with chunks of this size. No batch is in use."""
        chunk_bytes = self._options.chunk_bytes_of(len(self.readers), chunk_bytes)
        for reader in self.readers.values():
            reader.given = None
            reader.is_checked = False
            reader.chunk_bytes = chunk_bytes
            reader.read_ahead(reads_ahead and self._options.chunk_bytes is None)

    def ends(self) -> Ends:
        """Returns the current ends of the partitions."""
        self._look_for_partitions()
        self.recheck()
        return {each: self._end_of(each) for each in self.readers.values()}

    def _end_of(self, reader: PartitionReader) -> int:
        try:
            return reader.source.visible_end(self._options.isolation)
        except KafkalogError:
            return LONG_MAX  # the error is raised when the partition is read

    def recheck(self) -> None:
        """Checks all partitions again. Deleted ones are forgotten, and then the error is raised."""
        gone: UnknownTopicOrPartitionException | None = None
        for reader in list(self.readers.values()):
            try:
                reader.source.recheck()
            except UnknownTopicOrPartitionException as error:
                self._forget([reader.topic_partition])
                gone = gone or error
            except KafkalogError:
                pass  # the error is raised when the partition is read
        if gone is not None:
            raise gone

    def held(self) -> Batch | None:
        """Returns the next batch of those that were read ahead."""
        current = self._current
        for reader in self.readers.values() if current is None or current.paused else (current,):
            batch = None if reader.paused else reader.current()
            if batch is not None:
                self._current = reader
                return reader, *batch
        return None

    def find(self, ends: Ends | None = None) -> Batch | None:
        """Returns the next batch: of the current chunk, or of the next partition that has one."""
        untold, self.untold = self.untold, None
        if untold is not None:
            raise untold
        reader = self._current
        if reader is not None and not reader.paused:
            batch = reader.current()
            if batch is not None:
                return reader, *batch
        self._current = None
        self._look_for_partitions()
        readers = list(self.readers.values())
        if not readers and not self._topics and self._options.group is None:
            raise UnknownTopicOrPartitionException(
                "nothing is left to read: all topics of this reader were deleted", hint="create another reader"
            )
        for number in range(self._next, self._next + len(readers)):
            reader = readers[number % len(readers)]
            if reader.paused:
                continue
            self._next = number % len(readers) + 1
            batch = reader.current() or self._read(reader, ends)
            if batch is not None:
                self._current = reader
                return reader, *batch
        return None

    def _read(self, reader: PartitionReader, ends: Ends | None) -> tuple[Chunk, BatchHeader] | None:
        while True:
            try:
                return self._read_once(reader, ends)
            except UnknownTopicOrPartitionException:
                self._forget([reader.topic_partition])
                raise
            except UNREADABLE as error:
                reader.pass_over(error)

    def _read_once(self, reader: PartitionReader, ends: Ends | None) -> tuple[Chunk, BatchHeader] | None:
        reader.settle()
        # After the visible end there is nothing to wait for: the log was truncated.
        is_there = ends is None or reader.offset < ends.get(reader, 0) or reader.is_beyond()
        if is_there and reader.may_have_more():
            found = reader.read()
            if len(self.readers) > FILES_HELD:
                reader.rest()
            if found:
                return reader.current()
        if not reader.is_checked:  # once per iteration: raises an error if the log's end is damaged
            reader.source.check_end(self._options.isolation)
            reader.is_checked = True
        return None

    def await_batch(self, timeout_s: float, is_over: Callable[[], bool]) -> Batch | None:
        """Waits for a batch after a first look. Returns None if none came in time, or if `is_over`."""
        until = time.monotonic() + timeout_s

        def is_disturbed() -> bool:
            return is_over() or self._changes != self._home.topic_changes

        left_s = timeout_s
        while not is_over():
            unread: KafkalogError | None = None
            try:
                self.waiting.wait([each for each in self.readers.values() if not each.paused], left_s, is_disturbed)
            except UnknownTopicOrPartitionException:
                self.recheck()
            except KafkalogError as error:
                unread = error  # batches of other partitions come first
            self._home.check_open()
            found = self.find()
            if found is not None:
                return found
            if unread is not None:
                raise unread
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
        return None

    # --- topics ----------------------------------------------------------------------------------------

    def _look_for_partitions(self) -> None:
        """Adds new partitions of the followed topics, which are read from their start. All topics are checked before
        the first error is raised."""
        changes, now = self._home.topic_changes, time.monotonic()
        is_due = self._unread and now - self._added_at >= ADD_AGAIN_S
        if changes == self._changes and self.readers and not is_due:  # without readers, check whether topics remain
            return
        self._added_at = now
        problem: KafkalogError | None = None
        for topic in list(self._topics):
            try:
                numbers = self._numbers_of(topic)
            except UnknownTopicOrPartitionException as error:
                has_more = bool(forgotten := [each for each in self.readers if each.topic == topic])
                is_told = any(each.topic == topic for each in self._missing)
                self._forget(forgotten)
                self._unread = {each for each in self._unread if each.topic != topic}
                self._topics = [each for each in self._topics if each != topic]
                if has_more or not is_told:
                    problem = problem or error
                continue
            for number in numbers:
                partition = TopicPartition(topic, number)
                if partition not in self.readers:
                    problem = self._add_new(partition) or problem
        self._changes = changes
        if problem is not None:
            raise problem

    def _numbers_of(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a followed topic. UnknownTopicOrPartitionException if it was deleted."""
        info, before = self._home.info(topic), self._ids[topic]
        is_another = info.topic_id != before
        if before is None and is_another:  # it got its id meanwhile, or is another topic
            is_another = any(each.topic == topic for each in self._missing)
            self._ids[topic] = info.topic_id
        if is_another:
            raise UnknownTopicOrPartitionException(
                f"topic {topic!r} was deleted, and there is another topic of that name now",
                hint="create another reader",
            )
        return self._home.numbers(topic)

    def _add_new(self, partition: TopicPartition) -> KafkalogError | None:
        """Adds a partition. Returns the error to report, once; a partition that may become readable is tried again."""
        try:
            self._add(partition, is_new=True)
        except UnknownTopicOrPartitionException as error:
            is_told = partition in self._missing
            self._missing.add(partition)
            return None if is_told else error
        except KafkalogError as error:
            is_told = partition in self._unread
            self._unread.add(partition)
            return None if is_told else error
        self._missing.discard(partition)
        self._unread.discard(partition)
        return None

    def _forget(self, partitions: list[TopicPartition]) -> None:
        """Removes deleted partitions. The error is reported once, and the others are read on."""
        self._missing.update(partitions)
        for partition in partitions:
            reader = self.readers.pop(partition, None)
            if reader is not None and reader is self._current:
                self._current = None

    def topic_id(self, reader: PartitionReader) -> str:
        """Returns the topic's current id, for a commit. UnknownTopicOrPartitionException if the topic was deleted or
        replaced. A source that merely cannot be read is no such case."""
        partition = reader.topic_partition
        topic_id = self._home.info(partition.topic).topic_id or ZERO_UUID
        if reader.topic_id == ZERO_UUID != topic_id:
            with suppress(KafkaStorageException):
                reader.source.recheck()  # raises an error for another topic
            reader.topic_id = topic_id
        if topic_id != reader.topic_id:
            raise UnknownTopicOrPartitionException(
                f"{partition} was deleted, and there is another topic of that name now"
            )
        return topic_id

    def one(self, partition: str | TopicPartition) -> PartitionReader:
        """Returns the reader of a partition. IllegalStateException if the partition is not read."""
        wanted = names.partition_of(partition)
        found = self.readers.get(wanted)
        if found is None:
            raise IllegalStateException(
                f"{wanted} is not read by this reader",
                hint=f"it reads {', '.join(map(str, self.readers)) or 'nothing'}",
            )
        return found

    def some(self, partitions: tuple[str | TopicPartition, ...]) -> list[PartitionReader]:
        """Returns the readers of these partitions, or all readers if none is named."""
        return [self.one(each) for each in partitions] if partitions else list(self.readers.values())
