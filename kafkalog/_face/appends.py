"""What a partition that this process may write to has of appending, whoever holds it.

`StorePartition` is one of a store's, `OpenPartition` one that was opened alone.  Records become batches before the
engine's lock is taken; what was looked at together is appended together, or not at all; what an append raises says
which offsets were there already (`appended`).  Where the partition has moved to another directory, the append goes
there: a move refuses an append whole, between two.  With durability "fsync" an append that returned is on the disk, and
those who wait at the same time share a sync.  Knows nothing of reading, of topics, or of what a caller may give as a
record.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from kafkalog._face.batch_maker import Batch, BatchMaker, Records, encode_columns
from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._face.rows import RecordInput, check_records
from kafkalog._native.codec.batches import header_at
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.state.blocks import Single
from kafkalog._native.state.log_end import OPEN
from kafkalog.engine.files import Buffer, Clock
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import NO_PRODUCER, ProducerFields
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.octets import frozen
from kafkalog.engine.log.types import LogAppendInfo
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    RecordTooLargeException,
)

T = TypeVar("T")


def _is_refusal(error: KafkalogError) -> bool:
    return isinstance(error, KafkaStorageException) and error.is_of_closed_log


class PartitionAppends(Single):
    """What a Partition that may be written to stands on.

    `engine` is the partition's log as it was last seen; `writer_guards` are `Writer`'s, by producer id.
    """

    topic_partition: TopicPartition
    engine: UnifiedLog
    batch_maker: BatchMaker
    clock: Clock
    life: Life
    sync_appends: bool
    writer_guards: dict[int, threading.RLock]
    size_hint = "config={'max.message.bytes': ...} of open_log raises the limit"

    # --- who may -----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """IllegalStateException where it is closed, or was opened by another process."""
        if not self.life.live:
            raise self.refusal()

    def usable(self, *, to_read: bool = False) -> UnifiedLog:
        """The engine of a partition that is open; a change that was cut short is made whole first, `to_read` unless it
        waits for space."""
        if not self.life.live:
            raise self.refusal()
        engine = self.engine
        while True:
            try:
                if to_read:
                    engine.settle_to_read()
                else:
                    engine.settle()
                return engine
            except KafkaStorageException as error:  # closed meanwhile?
                engine = self._following(engine, error)

    def _following(self, engine: UnifiedLog, error: KafkalogError) -> UnifiedLog:
        """The log that took the place of one that refuses; what is to be raised where none did."""
        if engine.local_log.life == OPEN and not _is_refusal(error):
            raise error
        following = self.moved_from(engine)
        if following is None:
            raise self.refusal() from None
        return following

    def on_log(self, do: Callable[[UnifiedLog], T]) -> T:
        """What `do` says of the log, wherever it is now."""
        engine = self.usable()
        while True:
            try:
                return do(engine)
            except KafkaStorageException as error:
                engine = self._following(engine, error)

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """What the engine says of a log that another thread closed meanwhile, said as everywhere else here."""
        try:
            yield
        except KafkaStorageException:
            if self.engine.local_log.life == OPEN:
                raise
            raise self.refusal() from None

    def refusal(self) -> KafkalogError:
        """The error for a use of what is closed, is not there any more, or is of another process."""
        raise NotImplementedError

    def moved_from(self, engine: UnifiedLog) -> UnifiedLog | None:
        """The log that took the place of one that refuses, or the same, where that came to nothing and it is open;
        None where none did."""
        return None

    # --- appending ---------------------------------------------------------------------------------

    def check_appendable(self) -> None:
        """Raises where nobody but Kafka's coordinators may append."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the log's latest, or 0."""
        return self.engine.latest_epoch or 0

    def append_row(self, row: RecordInput) -> int:
        """Append one record, as `Partition.append` says; its offset."""
        engine, maker = self.engine, self.batch_maker
        if self.life.live and maker.is_plain and type(row) is tuple:
            try:
                offset = engine.append_row(row, maker.batch_bytes)
            except KafkaStorageException as error:
                following = self.moved_from(engine)
                if following is None or (following is engine and not _is_refusal(error)):
                    self._raise_told(error, -1, -1, True)
            else:
                if offset >= 0:
                    if self.sync_appends:
                        self._sync_row(engine, offset)
                    return offset
        return self.append_as(NO_PRODUCER, (row,)).start

    def _sync_row(self, engine: UnifiedLog, offset: int) -> None:
        try:
            engine.flush_appended(offset + 1)
        except Exception as error:
            self._raise_told(error, offset, offset, True)

    def append_as(
        self, producer: ProducerFields, records: Records, *, sync: bool = True, maker: BatchMaker | None = None
    ) -> range:
        """Append records in a producer's name, as `Partition.append_many` says; `maker` makes the batches, not ours."""
        engine = self.engine
        if not self.life.live or engine.unfinished is not None or engine.lock.busy:
            engine = self.usable()  # says why not, or makes it whole first
        now_ms = self.clock.milliseconds()
        maker = maker or self.batch_maker
        built = maker.at_once(records, now_ms, producer)
        if built is not None:
            if len(built) == 1:
                return self._append_one(engine, built[0], sync)
            return self._append_groups(engine, (built,), sync, looks=type(records) is not ReadyBatches)
        check_records(records)
        assert not isinstance(records, (ColumnEncoder, ReadyBatches))
        return self._append_groups(engine, maker.batches(records, now_ms, producer), sync)

    def checked_batches(self, records: Records) -> Sequence[Sequence[Batch]]:
        """The batches of records, in groups that are appended in one piece, each judged as an append would judge it.
        Nothing is appended.  Errors as `append_as`."""
        engine = self.usable()
        record, groups = 0, []
        try:
            for group in self.batch_maker.groups(records, self.clock.milliseconds()):
                record = self._check_each(engine, group, record)
                groups.append(group)
        except Exception as error:
            self._raise_told(error, -1, -1, False)
        return groups

    def append_checked(self, groups: Sequence[Sequence[Batch]]) -> range:
        """Append what `checked_batches` gave."""
        return self._append_groups(self.usable(), groups, True, looks=False)

    def append_columns(self, columns: Any, keys: Any, headers: Any, timestamps: Any) -> range:
        """As `Partition.append_columns` says."""
        self.usable()
        encoder = encode_columns(columns, keys, headers, timestamps, self.clock.milliseconds())
        return self.append_as(NO_PRODUCER, encoder)

    def append_batches(self, data: Any) -> range:
        """As `Partition.append_batches` says."""
        engine = self.usable()
        data = values.buffer(data, "data")
        offsets = self._append_one(engine, data, True)
        if offsets.start < 0:
            raise IllegalArgumentException(f"data: found no whole batch in {len(data)} bytes, expected one")
        return offsets

    def _append_one(self, engine: UnifiedLog, batch: Buffer | Batch, sync: bool) -> range:
        first = last = -1
        try:
            try:
                info = engine.append_as_leader(batch, engine.leader_epoch_cache.latest_epoch or 0)
            except KafkaStorageException as error:
                done: list[LogAppendInfo] = []
                engine = self._append_elsewhere(engine, (batch,), done, error)
                info = done[0]
            first, last = info.first_offset, info.last_offset
            if sync and self.sync_appends:
                engine.flush_appended(last + 1)
        except Exception as error:
            self._raise_told(error, first, last, sync)
        return range(first, last + 1)

    def _append_groups(
        self, engine: UnifiedLog, groups: Iterable[Sequence[Batch]], sync: bool, *, looks: bool = True
    ) -> range:
        """`looks`: each of a group's batches is judged before any of them is appended."""
        first = last = -1
        record = 0  # its number, of those that were given
        try:
            for group in groups:
                if not group:
                    continue
                if looks and len(group) > 1:
                    self._check_each(engine, group, record)
                done: list[LogAppendInfo] = []
                try:
                    try:
                        self._append_group(engine, group, done)
                    except KafkaStorageException as error:
                        engine = self._append_elsewhere(engine, group, done, error)
                finally:
                    if done:
                        first = done[0].first_offset if first < 0 else first
                        last = done[-1].last_offset
                record += last + 1 - done[0].first_offset
            self.after_append(last + 1, sync=sync)
        except Exception as error:  # what went through the records may have raised its own
            self._raise_told(error, first, last, sync)
        return range(first, last + 1) if first >= 0 else range(engine.log_end_offset, engine.log_end_offset)

    @staticmethod
    def _append_group(engine: UnifiedLog, group: Sequence[Buffer | Batch], done: list[LogAppendInfo]) -> None:
        with engine.lock:  # in one piece
            for batch in group:
                done.append(engine.append_as_leader(batch, engine.latest_epoch or 0))

    def _append_elsewhere(
        self,
        engine: UnifiedLog,
        group: Sequence[Buffer | Batch],
        done: list[LogAppendInfo],
        error: KafkaStorageException,
    ) -> UnifiedLog:
        """After a log refused a group: the log that took its place took it.  A move does not come between two batches
        of one: where some are done, the disk has failed."""
        while not done:
            following = self.moved_from(engine)
            if following is None or (following is engine and not _is_refusal(error)):
                break
            engine = following
            try:
                self._append_group(engine, group, done)
                return engine
            except KafkaStorageException as another:
                error = another
        raise error

    def _raise_told(self, error: Exception, first: int, last: int, sync: bool) -> NoReturn:
        """Raises what `_told` says."""
        raised = self._told(error, first, last, sync)
        if raised is error:
            raise error
        raise raised from None

    def _told(self, error: Exception, first: int, last: int, sync: bool) -> Exception:
        """What an append raises that `error` ended, when offsets from `first` to `last` were there already."""
        appended = range(max(first, 0), last + 1)
        if isinstance(error, KafkaStorageException):
            raised: KafkalogError = error if self.engine.local_log.life == OPEN else self.refusal()
            raised.appended = appended
            return raised
        if isinstance(error, KafkalogError):
            error.appended = appended
        if isinstance(error, RecordTooLargeException):
            error.hint = error.hint or self.size_hint
        if first >= 0:  # what is there is as durable as it should be
            self.after_append(last + 1, sync=sync)
        return error

    def _check_each(self, engine: UnifiedLog, group: Sequence[Batch], record: int) -> int:
        """Raises what the log would refuse one of the batches for; the first has record number `record`.  The number
        behind the last."""
        for batch in group:
            count = header_at(frozen(batch, "batch")).count
            try:
                engine.check_batch(batch, engine.latest_epoch or 0)
            except KafkalogError as error:
                refused = getattr(error, "record_errors", ())
                if refused:
                    which = f"record {record + refused[0].batch_index}"
                elif count == 1:
                    which = f"record {record}"
                else:
                    which = f"in records {record} to {record + count - 1}"
                error.message = f"{which}: {error.message}"
                raise
            record += count
        return record

    def after_append(self, offset: int, *, sync: bool = True) -> None:
        """With durability "fsync", wait until what was appended, up to `offset`, is on the disk."""
        if sync and self.sync_appends:
            self.engine.flush_appended(offset)

    # --- what is there ----------------------------------------------------------------------------

    def flush(self) -> None:
        """fsync everything appended so far: it survives power loss afterwards."""
        self.on_log(lambda engine: engine.flush(False))
