"""A transaction of a store: records of several topics and offsets of cursors, committed together or not at all.

    with store.transaction("biller-1") as txn:
        txn.append("orders", b"...")
        txn.append_many("payments", [b"...", b"..."])
        txn.commit_offsets(reader)

An aborted transaction does not move the reader back: call `reader.rewind()` before the next try.

The transaction coordinator (`kafkalog.engine.coordinator`) decides.  The decision that it has written applies to every
partition, also after a crash.  This module makes its requests in the right order.  A partition is added, durably,
before its first batch.  Each batch carries producer id, epoch and sequence number, which continue from what the
partition has. One call ends the transaction, and after it all partitions have their marker.  A transaction without any
content writes nothing.

A transaction of an id fences the one before it (`transactional_ids`).  A transaction that takes longer than its timeout
is aborted and fenced as well.  The next call of a fenced transaction raises ProducerFencedException.

One thread uses a StoreTransaction.  Its lock is held while records are read and appended, and is acquired before all
other locks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from kafkalog import _shown
from kafkalog._face.batch_maker import Records, next_sequence
from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._face.rows import RecordInput, Row, as_row, check_records
from kafkalog._face.shown import Shown
from kafkalog._face.topic_info import check_appendable
from kafkalog._face.writer import refuse_nested
from kafkalog._limits import INT_MAX
from kafkalog._native.state.blocks import Block
from kafkalog.engine.coordinator.groups import CommittingMember
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition, partition_of
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidPidMappingException,
    InvalidProducerEpochException,
    InvalidTxnStateException,
    KafkalogError,
    KafkaStorageException,
    ProducerFencedException,
    UnknownTopicOrPartitionException,
)
from kafkalog.records import Header
from kafkalog.topic import RecordMetadata

if TYPE_CHECKING:
    from kafkalog._face.home import TransactionHome
    from kafkalog._face.store_partition import StorePartition
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
    from kafkalog.engine.log.producer_append import ProducerStateEntry

__all__ = ["Transaction", "StoreTransaction"]

OffsetsToCommit: TypeAlias = (  # three types, because the keys of a Mapping are invariant
    "Mapping[str, int | CommittedOffset] | Mapping[TopicPartition, int | CommittedOffset]"
    " | Mapping[str | TopicPartition, int | CommittedOffset]"
)
PARTS_SHOWN = 4  # partitions
_FENCED = (ProducerFencedException, InvalidProducerEpochException, InvalidPidMappingException)


def checked_id(transactional_id: object) -> str:
    """Returns a valid transactional id, or raises IllegalArgumentException."""
    name = values.text(transactional_id, "transactional id")
    if not name:
        raise IllegalArgumentException("a transactional id must not be empty")
    return name


def checked_timeout(home: TransactionHome, timeout_ms: object) -> int:
    """Returns a valid transaction timeout, or raises IllegalArgumentException or InvalidTxnTimeoutException."""
    checked = values.whole(timeout_ms, "timeout_ms", expected="milliseconds")
    home.coordinators.transactions.check_timeout(checked)
    return checked


class CommitsOffsets(Protocol):
    """The methods of a reader that `commit_offsets` uses (`kafkalog.reader.StoreReader`)."""

    @property
    def cursor(self) -> str | None:
        """The cursor's name; None for a reader without one."""

    def offsets_to_commit(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Returns the offset after the last returned record, by partition."""

    def is_of(self, home: object) -> bool:
        """Returns whether the reader reads the store of `home`."""


class TopicToWrite(Protocol):
    """The methods of a topic that a transaction uses (`kafkalog.topic.Topic`)."""

    @property
    def name(self) -> str: ...

    def partition_for(self, row: Row, partition: int | None) -> int:
        """Returns the partition of a record; `partition` if it is given."""

    def by_partition(self, records: Iterable[RecordInput], partition: int | None) -> Mapping[int, Records]:
        """Returns the records by partition; all in `partition` if it is given."""

    def checked(self, partition: int) -> int:
        """Returns the partition, or raises UnknownTopicOrPartitionException."""


class OnePartition(NamedTuple):
    """A `TopicToWrite` whose records all go to one partition."""

    name: str
    number: int

    def partition_for(self, row: Row, partition: int | None) -> int:
        return self.number

    def by_partition(self, records: Iterable[RecordInput], partition: int | None) -> Mapping[int, Records]:
        return {self.number: records}

    def checked(self, partition: int) -> int:
        return self.number


class _Part:
    """A partition that the transaction has written to, and what its log must still have at the end."""

    def __init__(self, appends: StorePartition, holder: ProducerIdAndEpoch) -> None:
        self.appends = appends
        self._holder = holder
        self._next_sequence: int | None = None  # after the last record of the transaction
        self._was_cut = False  # True if the log was truncated during an append
        self.is_torn = False

    def sequence(self) -> int:
        """Returns the sequence number of the holder's next record, from the current log."""
        entry = self._entry()
        if entry is None or entry.producer_epoch != self._holder.epoch or entry.last_seq < 0:
            return 0
        return next_sequence(entry.last_seq, 1)

    def _entry(self) -> ProducerStateEntry | None:
        return self.appends.engine.producer_state_manager.last_entry(self._holder.producer_id)

    def append(self, records: Records, transactional_id: str) -> range:
        """Appends records with the holder's producer id; after an error `is_torn` tells whether some may be stored."""
        engine = self.appends.usable()
        cuts = engine.local_log.truncations
        before = self.sequence()
        if self._was_cut or self._next_sequence not in (None, before):
            self.check_whole(transactional_id)
        was_torn, self.is_torn = self.is_torn, True  # stays so unless the append succeeds
        try:
            offsets = self.appends.append_as(ProducerFields(*self._holder, before, True), records, sync=False)
        except Exception:
            self._next_sequence = self.sequence()
            self.is_torn = was_torn or self._next_sequence != before
            raise
        finally:
            if engine.local_log.truncations != cuts and self.appends.engine is engine:  # else it moved
                self._was_cut = True
        self._next_sequence = self.sequence()  # not from `offsets`, which may include records of others
        self.is_torn = was_torn
        return offsets

    def check_online(self) -> None:
        """Raises KafkaStorageException if the directory has failed, for then appended records may be lost."""
        engine = self.appends.engine
        if engine.local_log.is_closed and self.appends.moved_from(engine) is None:
            raise self.appends.refusal()
        self.appends.engine.context.check_online()

    def check_whole(self, transactional_id: str) -> None:
        """Raises InvalidTxnStateException if a truncation has removed records of the transaction."""
        expected = self._next_sequence
        if expected is None:
            return  # it has none here yet
        missing = (expected - self.sequence()) & INT_MAX
        if self._was_cut or 0 < missing <= INT_MAX // 2:
            entry = self._entry()  # after the sequence was read, for the transaction's end changes it as well
            if entry is not None and entry.producer_epoch > self._holder.epoch:
                return  # the coordinator reports that the transaction was ended
            raise InvalidTxnStateException(
                f"a truncation of {self.appends.topic_partition} has removed records of the transaction of "
                f"{transactional_id!r}",
                hint="abort it, which ends its other records, and run it again",
            )


class StoreTransaction(Block, Shown):
    """Transactions under a transactional id, one after another; returned by `Store.transaction`.

    As a context manager it begins at the start of the block, commits at its end, and aborts if the block raises an
    error. One thread may use it.

    Attributes:
        transactional_id: The id.
        timeout_ms: Milliseconds until an open transaction is aborted.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders, payments = store.create_topic("orders"), store.create_topic("payments")
        ...     with store.transaction("biller-1") as txn:
        ...         place = txn.append("orders", b"order 1")
        ...         place = txn.append("payments", b"payment of order 1")
        ...         print(txn.active)
        ...     print(txn.active)
        True
        False
    """

    _inner = frozenset({"is_inside"})

    def __init__(
        self, home: TransactionHome, topic_of: Callable[[str], TopicToWrite], transactional_id: str, timeout_ms: int
    ) -> None:
        self._home = home
        self._topic_of = topic_of
        self._coordinator = home.coordinators.transactions
        self._ids = home.coordinators.ids
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self._calling = threading.RLock()
        self._active = False
        self._reset()

    async def __aenter__(self) -> NoReturn:
        raise TypeError(
            "a transaction belongs to one thread: in a coroutine, write `def work(): with store.transaction(...) as "
            "txn: ...` and `await asyncio.to_thread(work)`"
        )

    async def __aexit__(self, *exc: object) -> None:
        """Is never called, because `__aenter__` raises."""

    def _reset(self) -> None:
        self._topics: dict[str, TopicToWrite] = {}
        self._holder: ProducerIdAndEpoch | None = None
        self._began = False  # True once the coordinator may know of it
        self._start_ms = 0
        # The partition objects at the time they were added to the transaction.  If a topic was deleted and created
        # again since, its partitions are other objects, so they are added again before the next append.
        self._added: dict[TopicPartition, StorePartition] = {}
        self._parts: dict[TopicPartition, _Part] = {}
        self._is_torn = False  # True if a call was interrupted and may have stored a part

    def __repr__(self) -> str:
        return f"<StoreTransaction of {self.transactional_id!r}, {'open' if self.active else 'not open'}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _shown.facts(self, self._facts()))

    def _facts(self) -> list[tuple[str, object]]:
        parts = list(self._parts)
        written = ", ".join(map(str, parts[:PARTS_SHOWN])) + ", ..." * (len(parts) > PARTS_SHOWN)
        return [
            ("began", _shown.moment(self._start_ms) if self.active and self._start_ms else None),
            ("aborted after", f"{self.timeout_ms:,} ms"),
            ("has written to", written if self.active and parts else None),
        ]

    # --- as a block ------------------------------------------------------------------------------------

    def __enter__(self) -> StoreTransaction:
        try:
            self.begin()
            return self
        except InvalidTxnStateException:
            raise  # the open transaction continues
        except BaseException:
            self._is_over = True  # the block does not run, so nothing else would end it
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return  # the block has committed or aborted it
        if kind is None:
            self.commit()
        elif self._home.life.live:  # else the store's close has aborted it, or another process has it
            self.abort()

    def _abandon(self) -> None:
        """Ends the transaction of a block whose end failed or was interrupted.

        A decision that was written is carried out; without one, the transaction is aborted.  If this fails too, the
        next transaction of this id, or the background, ends it.
        """
        try:
            holder = self._holder
            if self._active and self._began and holder is not None and self._home.life.live:
                self._coordinator.end_transaction(self.transactional_id, holder, commit=False)
        except KafkalogError:
            pass  # the first error is raised
        finally:
            self._let_go(None)

    @property
    def active(self) -> bool:
        """True if the transaction has begun and not ended.

        It is False after an interrupt has left the block; the transaction is aborted then.
        """
        return self._active and not self._is_over and self._home.life.live

    def is_inside(self) -> bool:
        """Returns whether this thread is inside one of the transaction's calls."""
        return bool(self._calling._is_owned())  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Begins a transaction, and aborts and fences an open one of the same id in this store.

        Raises:
            InvalidTxnStateException: This transaction is open already.
            ConcurrentTransactionsException: The previous transaction of the id is still being ended.
            KafkaStorageException: The previous transaction cannot be ended.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     txn = store.transaction("biller-1")
            ...     txn.begin()
            ...     place = txn.append("orders", b"order 1")
            ...     txn.commit()
        """
        self._enter_call()
        with self._calling:
            if self.active:
                raise InvalidTxnStateException(
                    f"this transaction of {self.transactional_id!r} is open already", hint="commit or abort it first"
                )
            self._active = False
            self._reset()
            self._is_over = False
            try:
                self._ids.enter(self.transactional_id, self, self.timeout_ms)
            except KafkaStorageException as error:
                self._raise_closed(error)
            self._active = True

    # --- content ---------------------------------------------------------------------------------------

    # More than eight parameters: a record's fields and its partition, which most callers omit.
    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Appends one record to the transaction.

        Any error other than ProducerFencedException leaves the transaction as it was before the call.

        Args:
            topic: The topic's name.
            value: As for `Topic.append`.
            key: As for `Topic.append`.
            headers: As for `Topic.append`.
            timestamp: Milliseconds since 1970; by default the current time.
            partition: The number of the partition; by default as for `Topic.append`.

        Returns:
            The topic, partition and offset of the record.

        Raises:
            ProducerFencedException: Another transaction of the id has begun, or this one took longer than its timeout;
                it is aborted.
            IllegalStateException: No transaction is open.
            KafkalogError: Any error of `Topic.append`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.transaction("biller-1") as txn:
            ...         print(txn.append("orders", b"order 1", key=b"customer-7"))
            RecordMetadata(topic='orders', partition=0, offset=0)
        """
        self._enter_call()
        with self._calling:
            self._check_mine()
            handle = self._topic(topic)
            row = as_row((value, key, headers, timestamp))
            place = TopicPartition(handle.name, handle.partition_for(row, partition))
            self._add([place])
            [offset] = self._append(place, (row,))
            return RecordMetadata(place.topic, place.partition, offset)

    def append_many(
        self, topic: str, records: Iterable[RecordInput], *, partition: int | None = None
    ) -> dict[int, range]:
        """Appends records to the transaction.

        If an error comes after some of the records were appended, the transaction can only be aborted.  The iterable
        must not append to the transaction or end it.

        Args:
            topic: The topic's name.
            records: Records in the forms that `Partition.append_many` accepts.
            partition: The number of the partition for all records; by default as for `Topic.append`.

        Returns:
            The offsets in each partition that got records.

        Raises:
            ProducerFencedException: As for `append`.
            IllegalStateException: No transaction is open, or the iterable uses the transaction.
            KafkalogError: Any error of `Topic.append_many`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.transaction("biller-1") as txn:
            ...         print(txn.append_many("orders", [b"order 1", b"order 2"]))
            {0: range(0, 2)}
        """
        self._enter_call()
        check_records(records)
        with self._calling:
            self._check_mine()
            handle = self._topic(topic)
            found = _some(records)
            if found is None:
                return {}
            places = {
                TopicPartition(handle.name, number): rows
                for number, rows in handle.by_partition(found, partition).items()
            }
            self._add(list(places))
            return self._append_all(places)

    def append_batches(self, topic: str, data: bytes | bytearray | memoryview | ReadyBatches, partition: int) -> range:
        """Appends whole batches in Kafka's format to the transaction.

        The records keep their bytes, compressed or not; the batch headers get the transaction's producer id, epoch and
        sequence numbers.

        Args:
            topic: The topic's name.
            data: The bytes of one or more batches: any C-contiguous buffer.
            partition: The number of the partition.

        Returns:
            The offsets of the records.

        Raises:
            CorruptRecordException: A batch is incomplete or damaged; nothing is appended.
            IllegalArgumentException: A batch has a producer id already, or an older format; nothing is appended.
            KafkalogError: Any other error of `append_many`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders, archive = store.create_topic("orders"), store.create_topic("archive")
            ...     place = orders.append(b"order 1")
            ...     batch = bytes(orders.partition(0).reader().read_chunk().data)
            ...     with store.transaction("archiver-1") as txn:
            ...         print(txn.append_batches("archive", batch, 0))
            range(0, 1)
        """
        self._enter_call()
        ready = data if isinstance(data, ReadyBatches) else ReadyBatches(values.buffer(data, "data"))
        with self._calling:
            self._check_mine()
            handle = self._topic(topic)
            place = TopicPartition(handle.name, handle.checked(partition))
            self._add([place])
            return self._append(place, ready)

    def _append_all(self, places: Mapping[TopicPartition, Records]) -> dict[int, range]:
        done: dict[int, range] = {}
        for place, rows in places.items():
            try:
                done[place.partition] = self._append(place, rows)
            except BaseException as error:
                if not isinstance(error, ProducerFencedException):
                    self._is_torn = self._is_torn or bool(done)
                if isinstance(error, KafkalogError):
                    error.appended_partitions = done
                raise
        return done

    def _append(self, place: TopicPartition, rows: Records) -> range:
        holder = self._holder
        assert holder is not None, self
        check_appendable(place.topic)
        appends = self._home.partition(place)
        while self._added.get(place) is not appends:
            self._add([place])
            appends = self._home.partition(place)
        part = self._parts.get(place)
        if part is None or part.appends is not appends:
            part = self._parts[place] = _Part(appends, holder)
        try:
            return part.append(rows, self.transactional_id)
        except _FENCED as error:
            part.is_torn = False  # its records are aborted, and a commit gets an error from the coordinator
            if isinstance(error, InvalidProducerEpochException) and self._home.coordinators.give_up_if_outrun(
                self.transactional_id, holder
            ):
                raise ProducerFencedException(
                    f"the transaction of {self.transactional_id!r} was aborted: {place} has a later epoch of its "
                    "producer, so the coordinator's log has lost its end, by a power loss or a repair",
                    hint="run it again; the next transaction gets a new producer id",
                ) from error
            self._raise_fenced(error)

    def commit_offsets(
        self,
        offsets: CommitsOffsets | OffsetsToCommit,
        *,
        cursor: str | None = None,
    ) -> None:
        """Commits offsets of a cursor with the transaction: they apply once it commits.

        A second call for the same partition replaces the offset of the first.  An aborted transaction does not move the
        reader back; `reader.rewind()` does, and the next transaction gets the records again.

        Args:
            offsets: A reader with a cursor, for the position of each of its partitions; or the offset of the next
                record to read, by partition (a TopicPartition or "topic-0").
            cursor: The name of the cursor; by default the reader's.

        Raises:
            IllegalArgumentException: The offsets have no cursor, or the reader reads another store.
            UnknownTopicOrPartitionException: A partition does not exist.
            ProducerFencedException: As for `append`.
            IllegalStateException: No transaction is open.
            KafkaStorageException: The disk failed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"order 1")
            ...     payments = store.create_topic("payments")
            ...     with store.reader("biller", topics=["orders"]) as reader:
            ...         with store.transaction("biller-1") as txn:
            ...             for record in reader.poll():
            ...                 place = txn.append("payments", record.value)
            ...             txn.commit_offsets(reader)
            ...         print(reader.committed())
            {TopicPartition(topic='orders', partition=0): 1}
        """
        self._enter_call()
        with self._calling:
            self._check_mine()
            name, rows = self._offsets(offsets, cursor)
            if not rows:
                return
            group = self._group(name)
            holder = self._ask(lambda holder: self._coordinator.add_offsets(self.transactional_id, holder, name))
            torn, self._is_torn = self._is_torn, True
            try:
                member = getattr(offsets, "committing_member", CommittingMember)()
                group.commit(name, rows, holder, member)
            except _FENCED as error:
                self._is_torn = False
                self._raise_fenced(error)
            except KafkaStorageException as error:
                self._raise_closed(error)
            except KafkalogError:
                self._is_torn = torn  # the group stored all of the offsets or none
                raise
            self._is_torn = torn

    def _group(self, name: str) -> GroupOffsets:
        try:
            found = self._home.offsets(name, create=True)
        except KafkaStorageException as error:
            self._raise_closed(error)
        assert found is not None, name
        return found

    def _offsets(
        self, given: CommitsOffsets | OffsetsToCommit, cursor: str | None
    ) -> tuple[str, dict[TopicPartition, CommittedOffset]]:
        if isinstance(given, Mapping):
            if cursor is None:
                raise IllegalArgumentException("cursor: found None, expected the name of the offsets' cursor")
            return cursor, dict(self._offset(where, value) for where, value in given.items())
        if not hasattr(given, "offsets_to_commit"):
            raise IllegalArgumentException(
                f"offsets: found {values.shown(given)}, expected a reader, or offsets by partition"
            )
        name = given.cursor if cursor is None else cursor
        if name is None:
            raise IllegalArgumentException("offsets: the reader has no cursor", hint='use store.reader("name", ...)')
        if not given.is_of(self._home):
            raise IllegalArgumentException(
                "offsets: the reader reads another store, which keeps its cursor; this transaction cannot move it",
                hint="call reader.commit(); exactly once needs reader and transaction in one store",
            )
        return name, dict(given.offsets_to_commit())

    def _offset(self, where: Any, value: Any) -> tuple[TopicPartition, CommittedOffset]:
        partition = partition_of(where)
        self._home.check_partition(partition)
        info = self._home.info(partition.topic)
        if isinstance(value, CommittedOffset):
            return partition, value
        offset = values.offset(value, f"offset of {partition}", low=0)
        return partition, CommittedOffset(offset)._replace(topic_id=info.topic_id or ZERO_UUID)

    # --- the end ---------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commits the transaction: read_committed readers see its records, and its cursors move.

        With durability "fsync" it is also durable.  An error before the decision is written leaves the transaction
        open, and a `with` block aborts it.  A written decision is always carried out, whatever is raised after it.  The
        same call, the next transaction of this id, the background or the next open does so.

        Raises:
            InvalidTxnStateException: A truncation has removed records of the transaction, or an append was interrupted;
                it can only be aborted.
            ProducerFencedException: As for `append`.
            IllegalStateException: No transaction is open.
            KafkaStorageException: The disk failed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     txn = store.transaction("biller-1")
            ...     txn.begin()
            ...     place = txn.append("orders", b"order 1")
            ...     txn.commit()
            ...     print([record.value for record in store.records(isolation="read_committed")])
            [b'order 1']
        """
        self._end(commit=True)

    def abort(self) -> None:
        """Aborts the transaction: read_committed readers never see its records, and its cursors do not move.

        A fenced transaction is aborted already, so the call only ends it.

        Raises:
            InvalidTxnStateException: A commit was interrupted after its decision was written.
            IllegalStateException: No transaction is open.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     txn = store.transaction("biller-1")
            ...     txn.begin()
            ...     place = txn.append("orders", b"order 1")
            ...     txn.abort()
            ...     print(list(store.records(isolation="read_committed")))
            []
        """
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        self._enter_call()
        with self._calling:
            if not self.active:
                raise self._not_open()
            if commit:
                self._check_mine()
                self._check_whole()
            elif not self._ids.is_inside(self.transactional_id, self):
                self._let_go(None)  # the transaction that fenced this one has aborted it
                return
            self._let_go(self._ended(commit=commit) if self._began else self._holder)

    def _ended(self, *, commit: bool) -> ProducerIdAndEpoch | None:
        """Ends the transaction, and returns the producer id and epoch of the next one; None if they are not known."""
        holder = self._holder
        if holder is None:  # an interrupted call may have come this far, and no further
            return None
        try:
            return self._coordinator.end_transaction(self.transactional_id, holder, commit=commit)
        except _FENCED as error:
            if not commit:
                return None
            self._raise_fenced(error)
        except InvalidTxnStateException as error:
            if not commit:
                self._let_go(None)
                raise
            self._raise_fenced(error)
        except KafkaStorageException as error:
            self._raise_closed(error)

    def _check_whole(self) -> None:
        if self._is_torn or any(part.is_torn for part in self._parts.values()):
            raise InvalidTxnStateException(
                f"an append of the transaction of {self.transactional_id!r} was interrupted: some of its records were "
                "stored, others may not have been",
                hint="abort it, and run it again",
            )
        for place, part in self._parts.items():
            try:
                if self._home.partition(place) is not part.appends:
                    continue  # deleted with our records, and created again
            except UnknownTopicOrPartitionException:
                continue  # deleted
            part.check_online()
            part.check_whole(self.transactional_id)

    def _let_go(self, kept: ProducerIdAndEpoch | None) -> None:
        self._active = False
        if not self._home.life.forked:  # in a forked child the lock may never be released
            self._ids.leave(self.transactional_id, self, kept)

    # --- checks ----------------------------------------------------------------------------------------

    def _enter_call(self) -> None:
        self._home.check_open()  # first, for in a forked child the lock may never be released
        refuse_nested(self._calling, f"the transaction of {self.transactional_id!r}")

    def _check_mine(self) -> None:
        if not self.active:
            raise self._not_open()
        if not self._ids.is_inside(self.transactional_id, self):
            self._raise_fenced(None)

    def _not_open(self) -> IllegalStateException:
        return IllegalStateException(
            f"no transaction of {self.transactional_id!r} is open",
            hint="use it in `with ...transaction(...) as txn:`, or call begin() first",
        )

    def _raise_fenced(self, error: KafkalogError | None) -> NoReturn:
        """Raises ProducerFencedException with the reason."""
        self._home.check_open()
        what = f"the transaction of {self.transactional_id!r}"
        if not self._ids.is_inside(self.transactional_id, self):
            what = f"{what} was aborted: another transaction of this id has begun since"
            hint = "give each worker a separate transactional id"
        elif self._home.clock.milliseconds() - self._start_ms >= self.timeout_ms:
            what = f"{what} was aborted: it was open for longer than its timeout of {self.timeout_ms} ms"
            hint = "run it again with fewer records, or with a larger timeout_ms"
        else:
            what = f"{what} was ended by another caller (abort_transaction)"
            hint = "run it again"
        raise ProducerFencedException(what, hint=hint) from error

    def _raise_closed(self, error: KafkaStorageException) -> NoReturn:
        """Raises the same error as everywhere else if another thread has closed the store, else the log's error."""
        self._home.check_open()
        raise error

    def _topic(self, name: str) -> TopicToWrite:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._topic_of(name)
        return found

    # --- the coordinator -------------------------------------------------------------------------------

    def _taken(self) -> ProducerIdAndEpoch:
        holder = self._holder
        if holder is None:
            holder = self._ids.holder(self.transactional_id, self, self.timeout_ms)
            if holder is None:
                self._raise_fenced(None)
            self._holder = holder
        return holder

    def _add(self, places: Sequence[TopicPartition]) -> None:
        """Adds partitions at the coordinator before anything is written to them."""
        found = {each: self._home.partition(each) for each in places}  # first: a later change is noticed
        new = [each for each, appends in found.items() if self._added.get(each) is not appends]
        if new:
            for topic in {each.topic for each in new}:
                self._home.joins(topic)
            self._ask(lambda holder: self._coordinator.add_partitions(self.transactional_id, holder, new))
            self._added.update((each, found[each]) for each in new)

    def _ask(self, request: Callable[[ProducerIdAndEpoch], object]) -> ProducerIdAndEpoch:
        """Makes a request to the coordinator, and returns the transaction's producer id and epoch."""
        is_first, self._began = not self._began, True
        if is_first:
            self._start_ms = self._home.clock.milliseconds()
        try:
            holder = self._taken()
            try:
                request(holder)
            except InvalidPidMappingException:
                if not is_first:
                    raise
                self._holder = None  # the id was unused for so long that the coordinator removed it
                holder = self._taken()
                request(holder)
        except _FENCED as error:
            self._raise_fenced(error)
        except KafkaStorageException as error:
            self._raise_closed(error)
        return holder


class Transaction(Block, Shown):
    """Transactions of one partition, one after another; returned by `Partition.transaction`.

    As a context manager it begins at the start of the block, commits at its end, and aborts if the block raises an
    error. One thread may use it.

    Attributes:
        topic_partition: The partition.
        transactional_id: The id.
        timeout_ms: Milliseconds until an open transaction is aborted.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     with log.transaction("job-7") as txn:
        ...         offset = txn.append(b"value")
        ...         print(txn.active)
        ...     print(txn.active)
        True
        False
    """

    def __init__(
        self, home: TransactionHome, topic_partition: TopicPartition, transactional_id: str, timeout_ms: int
    ) -> None:
        timeout_ms = checked_timeout(home, timeout_ms)
        only = OnePartition(*topic_partition)
        self._it = StoreTransaction(home, lambda name: only, checked_id(transactional_id), timeout_ms)
        self.topic_partition = topic_partition
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms

    def __repr__(self) -> str:
        state = "open" if self.active else "not open"
        return f"<Transaction of {self.transactional_id!r} in {self.topic_partition}, {state}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _shown.facts(self, self._it._facts()))

    def __enter__(self) -> Transaction:
        self._it.__enter__()
        return self

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._it.__exit__(kind, error, trace)

    def _abandon(self) -> None:
        self._it._is_over = True  # an interrupt may have come before the inner transaction ended
        self._it._abandon()

    @property
    def active(self) -> bool:
        """True if the transaction has begun and not ended."""
        return self._it.active

    def begin(self) -> None:
        """Begins a transaction, and aborts and fences an open one of the same id in this directory.

        Raises:
            KafkalogError: Any error of `StoreTransaction.begin`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     txn = log.transaction("job-7")
            ...     txn.begin()
            ...     offset = txn.append(b"value")
            ...     txn.commit()
        """
        self._it.begin()

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Appends one record to the transaction.

        Args:
            value: As for `Partition.append`.
            key: As for `Partition.append`.
            headers: As for `Partition.append`.
            timestamp: Milliseconds since 1970; by default the current time.

        Returns:
            The offset of the record.

        Raises:
            KafkalogError: Any error of `StoreTransaction.append`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     with log.transaction("job-7") as txn:
            ...         print(txn.append(b"value", key=b"key"))
            0
        """
        topic, number = self.topic_partition
        return self._it.append(topic, value, key=key, headers=headers, timestamp=timestamp, partition=number).offset

    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Appends records to the transaction.

        Args:
            records: Records in the forms that `Partition.append_many` accepts.

        Returns:
            The offsets of the records.

        Raises:
            KafkalogError: Any error of `StoreTransaction.append_many`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     with log.transaction("job-7") as txn:
            ...         print(txn.append_many([b"one", b"two"]))
            range(0, 2)
        """
        topic, number = self.topic_partition
        return self._it.append_many(topic, records, partition=number).get(number, range(0))

    def append_batches(self, data: bytes | bytearray | memoryview | ReadyBatches) -> range:
        """Appends whole batches in Kafka's format to the transaction.

        Args:
            data: The bytes of one or more batches: any C-contiguous buffer.

        Returns:
            The offsets of the records.

        Raises:
            KafkalogError: Any error of `StoreTransaction.append_batches`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"value")
            ...     with log.reader() as reader:
            ...         batch = bytes(reader.read_chunk().data)
            ...     with log.transaction("job-7") as txn:
            ...         print(txn.append_batches(batch))
            range(1, 2)
        """
        return self._it.append_batches(self.topic_partition.topic, data, self.topic_partition.partition)

    def commit_offsets(
        self,
        offsets: CommitsOffsets | OffsetsToCommit,
        *,
        cursor: str | None = None,
    ) -> None:
        """Commits offsets of a cursor with the transaction: they apply once it commits.

        Args:
            offsets: As for `StoreTransaction.commit_offsets`.
            cursor: The name of the cursor.

        Raises:
            KafkalogError: Any error of `StoreTransaction.commit_offsets`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders").partition(0)
            ...     with orders.transaction("job-7") as txn:
            ...         offset = txn.append(b"value")
            ...         txn.commit_offsets({"orders-0": 1}, cursor="job")
            ...     print(store.committed("job")[orders.topic_partition].offset)
            1
        """
        self._it.commit_offsets(offsets, cursor=cursor)

    def commit(self) -> None:
        """Commits the transaction: read_committed readers see its records, and its cursors move.

        Raises:
            KafkalogError: Any error of `StoreTransaction.commit`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     txn = log.transaction("job-7")
            ...     txn.begin()
            ...     offset = txn.append(b"value")
            ...     txn.commit()
            ...     print(len(list(log.records(isolation="read_committed"))))
            1
        """
        self._it.commit()

    def abort(self) -> None:
        """Aborts the transaction: read_committed readers never see its records, and its cursors do not move.

        Raises:
            KafkalogError: Any error of `StoreTransaction.abort`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     txn = log.transaction("job-7")
            ...     txn.begin()
            ...     offset = txn.append(b"value")
            ...     txn.abort()
            ...     print(len(list(log.records(isolation="read_committed"))))
            0
        """
        self._it.abort()


def _some(records: Iterable[RecordInput]) -> Iterable[RecordInput] | None:
    """Returns the same records, or None if there are none."""
    if isinstance(records, (list, tuple)):
        return records or None
    rest: Iterator[RecordInput] = iter(records)
    for first in rest:
        return itertools.chain((first,), rest)
    return None


def __dir__() -> list[str]:
    return __all__
