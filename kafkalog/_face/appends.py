"""Appends to a partition that this process may write to.

`StorePartition` is a partition of an open store, `OpenPartition` one that was opened alone. Records become batches
before the engine's lock is taken. Batches that were checked together are appended together, or not at all. An error of
an append says which offsets were appended before it (`appended`).

If the partition has moved to another directory, the append goes there. A move refuses an append as a whole, never
between two batches. With durability "fsync" an append that has returned is on the disk, and threads that wait at the
same time share one sync.

Knows nothing of reading, of topics, or of the forms in which a caller may pass a record.
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
    """The appending part of a Partition.

    `engine` is the partition's log as it was last seen. `writer_guards` are the locks of `Writer`, by producer id.
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
        """Raises IllegalStateException if the partition is closed, or was opened by another process."""
        if not self.life.live:
            raise self.refusal()

    def usable(self, *, to_read: bool = False) -> UnifiedLog:
        """Returns the engine of an open partition. An interrupted change is completed first; with `to_read` not if
        that needs space on a full disk."""
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
        """Returns the log that replaces a log which refuses, or raises the error if there is none."""
        if engine.local_log.life == OPEN and not _is_refusal(error):
            raise error
        following = self.moved_from(engine)
        if following is None:
            raise self.refusal() from None
        return following

    def on_log(self, do: Callable[[UnifiedLog], T]) -> T:
        """Returns the result of `do` for the log, in the directory where it is now."""
        engine = self.usable()
        while True:
            try:
                return do(engine)
            except KafkaStorageException as error:
                engine = self._following(engine, error)

    @contextlib.contextmanager
    def while_open(self) -> Iterator[None]:
        """Reports a log that another thread has closed meanwhile with the same error as everywhere else here."""
        try:
            yield
        except KafkaStorageException:
            if self.engine.local_log.life == OPEN:
                raise
            raise self.refusal() from None

    def refusal(self) -> KafkalogError:
        """Returns the error for the use of a partition that is closed, deleted, or of another process."""
        raise NotImplementedError

    def moved_from(self, engine: UnifiedLog) -> UnifiedLog | None:
        """Returns the log that replaces a log which refuses, or the same log if the move failed and it is open; None
        if there is none."""
        return None

    # --- appending ---------------------------------------------------------------------------------

    def check_appendable(self) -> None:
        """Raises an error if only Kafka's coordinators may append."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that appends carry: the log's latest, or 0."""
        return self.engine.latest_epoch or 0

    def append_row(self, row: RecordInput) -> int:
        """Appends one record as `Partition.append` does, and returns its offset."""
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
        """Appends records with a producer's fields as `Partition.append_many` does. `maker` replaces `batch_maker`."""
        engine = self.engine
        if not self.life.live or engine.unfinished is not None or engine.lock.busy:
            engine = self.usable()  # raises the reason, or completes an interrupted change
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
        """Returns the batches of records in groups, each group to be appended in one piece. Each batch is checked as an
        append checks it, but nothing is appended. Errors as `append_as`."""
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
        """Appends the groups that `checked_batches` returned."""
        return self._append_groups(self.usable(), groups, True, looks=False)

    def append_columns(self, columns: Any, keys: Any, headers: Any, timestamps: Any) -> range:
        """Appends columns as `Partition.append_columns` does."""
        self.usable()
        encoder = encode_columns(columns, keys, headers, timestamps, self.clock.milliseconds())
        return self.append_as(NO_PRODUCER, encoder)

    def append_batches(self, data: Any) -> range:
        """Appends batches as `Partition.append_batches` does."""
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
        """`looks`: each batch of a group is checked before any batch of it is appended."""
        first = last = -1
        record = 0  # number of the next record among those given
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
        except Exception as error:  # the caller's iterator may have raised it
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
        """Appends a group to the log that replaces a log which refused it. A move does not come between two batches of
        a group: if some are appended, the disk has failed."""
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
        """Raises the error that `_told` returns."""
        raised = self._told(error, first, last, sync)
        if raised is error:
            raise error
        raise raised from None

    def _told(self, error: Exception, first: int, last: int, sync: bool) -> Exception:
        """Returns the error for an append that `error` ended after the offsets from `first` to `last`."""
        appended = range(max(first, 0), last + 1)
        if isinstance(error, KafkaStorageException):
            raised: KafkalogError = error if self.engine.local_log.life == OPEN else self.refusal()
            raised.appended = appended
            return raised
        if isinstance(error, KafkalogError):
            error.appended = appended
        if isinstance(error, RecordTooLargeException):
            error.hint = error.hint or self.size_hint
        if first >= 0:  # the appended records get their durability
            self.after_append(last + 1, sync=sync)
        return error

    def _check_each(self, engine: UnifiedLog, group: Sequence[Batch], record: int) -> int:
        """Raises the error with which the log would refuse one of the batches. The first record has number `record`.
        Returns the number after the last record."""
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
        """With durability "fsync", waits until the log up to `offset` is on the disk."""
        if sync and self.sync_appends:
            self.engine.flush_appended(offset)

    # --- flushing ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Syncs everything appended so far, which then survives a power loss."""
        self.on_log(lambda engine: engine.flush(False))
