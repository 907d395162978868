"""A transaction of a store: records of several topics and the offsets of cursors, all of them or none.

    with store.transaction("biller-1") as txn:
        txn.append("orders", b"...")
        txn.append_many("payments", [b"...", b"..."])
        txn.commit_offsets(reader)

A reader stays behind what it read when the transaction is aborted: who tries again calls `reader.rewind()` first.

The coordinator (`kafkalog.engine.coordinator`) has the last word: what it wrote down as the decision is what becomes of
every partition, also across a crash.  Here is who asks it, and in which order: a partition is added, which is durable,
before its first batch; each batch carries producer id, epoch and sequence, which goes on from what the partition knows;
the end is one call, after which all partitions have their marker.  Nothing is written for a transaction without
anything in it.

A transaction of an id fences the one before it (`transactional_ids`).  One that took longer than its timeout is
aborted, and fenced as well.  Who is fenced hears of it at the next call: ProducerFencedException.

A StoreTransaction is one thread's.  Its lock is held while records are read and appended, and taken before all others.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from kafkalog._face.batch_maker import Records, next_sequence
from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._face.rows import RecordInput, Row, as_row, check_records
from kafkalog._face.shown import Shown
from kafkalog._face.topic_info import check_appendable
from kafkalog._face.writer import refuse_nested
from kafkalog._limits import INT_MAX
from kafkalog._native.state.blocks import Block
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

OffsetsToCommit: TypeAlias = (  # each spelled out: a Mapping's keys are invariant
    "Mapping[str, int | CommittedOffset] | Mapping[TopicPartition, int | CommittedOffset]"
    " | Mapping[str | TopicPartition, int | CommittedOffset]"
)
_FENCED = (ProducerFencedException, InvalidProducerEpochException, InvalidPidMappingException)


def checked_id(transactional_id: object) -> str:
    """IllegalArgumentException for what is no transactional id."""
    name = values.text(transactional_id, "transactional id")
    if not name:
        raise IllegalArgumentException("a transactional id must not be empty")
    return name


def checked_timeout(home: TransactionHome, timeout_ms: object) -> int:
    """IllegalArgumentException, InvalidTxnTimeoutException for what is no timeout of a transaction."""
    checked = values.whole(timeout_ms, "timeout_ms", expected="milliseconds")
    home.coordinators.transactions.check_timeout(checked)
    return checked


class CommitsOffsets(Protocol):
    """What `commit_offsets` asks of a reader (`kafkalog.reader.StoreReader`)."""

    @property
    def cursor(self) -> str | None:
        """The cursor's name; None for a reader without one."""

    def offsets_to_commit(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Behind what it has handed out, by partition."""

    def is_of(self, home: object) -> bool:
        """Whether it reads the store of that home."""


class TopicToWrite(Protocol):
    """What a transaction asks of a topic (`kafkalog.topic.Topic`)."""

    @property
    def name(self) -> str: ...

    def partition_for(self, row: Row, partition: int | None) -> int:
        """The partition of a record, which may be given."""

    def by_partition(self, records: Iterable[RecordInput], partition: int | None) -> Mapping[int, Records]:
        """Records by the partition that each goes to, which may be given."""

    def checked(self, partition: int) -> int:
        """The same; UnknownTopicOrPartitionException."""


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
        self._next_sequence: int | None = None  # behind our last record
        self._was_cut = False  # the log, beside an append of ours
        self.is_torn = False

    def sequence(self) -> int:
        """The number of the holder's next record, as the log has it now."""
        entry = self._entry()
        if entry is None or entry.producer_epoch != self._holder.epoch or entry.last_seq < 0:
            return 0
        return next_sequence(entry.last_seq, 1)

    def _entry(self) -> ProducerStateEntry | None:
        return self.appends.engine.producer_state_manager.last_entry(self._holder.producer_id)

    def append(self, records: Records, transactional_id: str) -> range:
        """Appends records in the holder's name.  `is_torn` says of one that failed whether some of them are there."""
        engine = self.appends.usable()
        cuts = engine.local_log.truncations
        before = self.sequence()
        if self._was_cut or self._next_sequence not in (None, before):
            self.check_whole(transactional_id)
        was_torn, self.is_torn = self.is_torn, True  # until we know better
        try:
            offsets = self.appends.append_as(ProducerFields(*self._holder, before, True), records, sync=False)
        except Exception:
            self._next_sequence = self.sequence()
            self.is_torn = was_torn or self._next_sequence != before
            raise
        finally:
            if engine.local_log.truncations != cuts and self.appends.engine is engine:  # else it moved, with all it has
                self._was_cut = True
        self._next_sequence = self.sequence()  # records of others may lie between those offsets
        self.is_torn = was_torn
        return offsets

    def check_online(self) -> None:
        """KafkaStorageException where its directory has failed: what was appended may be lost."""
        engine = self.appends.engine
        if engine.local_log.is_closed and self.appends.moved_from(engine) is None:
            raise self.appends.refusal()
        self.appends.engine.context.check_online()

    def check_whole(self, transactional_id: str) -> None:
        """InvalidTxnStateException where a truncation has cut records of the transaction off."""
        expected = self._next_sequence
        if expected is None:
            return  # it has none here yet
        missing = (expected - self.sequence()) & INT_MAX
        if self._was_cut or 0 < missing <= INT_MAX // 2:
            entry = self._entry()  # behind the look at the sequence, which an end behind our back changes as well
            if entry is not None and entry.producer_epoch > self._holder.epoch:
                return  # the coordinator tells of it
            raise InvalidTxnStateException(
                f"a truncation of {self.appends.topic_partition} has cut off records of the transaction of "
                f"{transactional_id!r}",
                hint="abort it, which ends what is left of it, and do it again",
            )


class StoreTransaction(Block, Shown):
    """One transaction after another under a transactional id; made by `Store.transaction`.  For one thread.

    As a context manager it begins at the block's start, commits at its end and aborts when the block raises.
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
            "a transaction is one thread's: in a coroutine write `def work(): with store.transaction(...) as txn: ...` "
            "and `await asyncio.to_thread(work)`"
        )

    async def __aexit__(self, *exc: object) -> None:
        """Never: nothing is entered."""

    def _reset(self) -> None:
        self._topics: dict[str, TopicToWrite] = {}
        self._holder: ProducerIdAndEpoch | None = None
        self._began = False  # the coordinator may know of it
        self._start_ms = 0
        # Each as it was when the coordinator heard of it: an end before a topic was made anew has left no mark in that.
        self._added: dict[TopicPartition, StorePartition] = {}
        self._parts: dict[TopicPartition, _Part] = {}
        self._is_torn = False  # something was cut short: some of it is there

    def __repr__(self) -> str:
        return f"<StoreTransaction of {self.transactional_id!r}, {'open' if self.active else 'not open'}>"

    # --- as a block ------------------------------------------------------------------------------------

    def __enter__(self) -> StoreTransaction:
        try:
            self.begin()
            return self
        except InvalidTxnStateException:
            raise  # it is open, and goes on
        except BaseException:
            self._is_over = True  # no block follows that would end it
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return  # committed or aborted by hand
        if kind is None:
            self.commit()
        elif self._home.life.live:  # else the store's close has aborted it, or it goes on in another process
            self.abort()

    def _abandon(self) -> None:
        """The block is over, but its end failed or was interrupted.  A decision that stands is carried out, or else it
        is aborted; where that fails as well, the next transaction of this id, or the background, goes on."""
        try:
            holder = self._holder
            if self._active and self._began and holder is not None and self._home.life.live:
                self._coordinator.end_transaction(self.transactional_id, holder, commit=False)
        except KafkalogError:
            pass  # the first error is told
        finally:
            self._let_go(None)

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended; one whose block an interrupt came out of is over, and will be aborted."""
        return self._active and not self._is_over and self._home.life.live

    def is_inside(self) -> bool:
        """Whether this thread is in the middle of one of its calls."""
        return bool(self._calling._is_owned())  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Begin.  Another transaction of this id that is open in this store is aborted, and fenced.

        InvalidTxnStateException where this one is open already; ConcurrentTransactionsException, KafkaStorageException
        where the one before cannot be ended.
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

    # --- what is in it ---------------------------------------------------------------------------------

    # More than eight parameters: a record's fields and where it goes, which most callers leave out.
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
        """Append one record to the transaction, as `Topic.append` does (`timestamp` in ms since 1970); where it is.

        ProducerFencedException where another transaction of the id has begun since, or this one took longer than its
        timeout: it is aborted.  What else is raised leaves it as it was before the call.
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
        """Append records to the transaction, as `Topic.append_many` does: the offsets in each partition that got some.

        Errors as `append`.  Where one came after some of the records were appended, the transaction can only be
        aborted.  What gives the records must neither append to the transaction nor end it: IllegalStateException.
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
        """Append whole batches in Kafka's format, made elsewhere, as a producer would send them: their records stay as
        they are, packed or not, and the transaction signs their headers.  Returns the offsets.

        They are judged as they go in; errors as `append_many`.  CorruptRecordException where a batch is torn or
        damaged, IllegalArgumentException where one is a producer's already, or of an older format: nothing is appended.
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
            part.is_torn = False  # it is aborted, whatever there is of it: the coordinator says so to a commit
            if isinstance(error, InvalidProducerEpochException) and self._home.coordinators.give_up_if_outrun(
                self.transactional_id, holder
            ):
                raise ProducerFencedException(
                    f"the transaction of {self.transactional_id!r} was aborted: {place} knows a later epoch of its "
                    "producer, so the coordinator's log has lost its end, by a power loss or a repair",
                    hint="do it again, with the producer id that the next one gets",
                ) from error
            self._raise_fenced(error)

    def commit_offsets(
        self,
        offsets: CommitsOffsets | OffsetsToCommit,
        *,
        cursor: str | None = None,
    ) -> None:
        """Commit a cursor's offsets with the transaction: they count once it commits.

        `offsets`: a reader with a cursor, of which everything that it handed out counts as read; or the offset of the
        next record to read by partition, a TopicPartition or "topic-0", with the name of the `cursor`.  A second call
        for the same partition replaces the first.  When the transaction is aborted, the reader stays behind what it
        read: `reader.rewind()` goes back to what is committed, and the next transaction gets the records again.  Errors
        as `append`; IllegalArgumentException, also for a reader of another store, UnknownTopicOrPartitionException, and
        those of `GroupOffsets.commit`.
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
                group.commit(name, rows, holder)
            except _FENCED as error:
                self._is_torn = False
                self._raise_fenced(error)
            except KafkaStorageException as error:
                self._raise_closed(error)
            except KafkalogError:
                self._is_torn = torn  # all of them or none
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
                raise IllegalArgumentException("cursor: expected the name of the cursor that the offsets are of")
            return cursor, dict(self._offset(where, value) for where, value in given.items())
        if not hasattr(given, "offsets_to_commit"):
            raise IllegalArgumentException(
                f"offsets: found {values.shown(given)}, expected a reader, or offsets by partition"
            )
        name = given.cursor if cursor is None else cursor
        if name is None:
            raise IllegalArgumentException("offsets: the reader has no cursor", hint='store.reader("name", ...) has')
        if not given.is_of(self._home):
            raise IllegalArgumentException(
                "offsets: the reader is of another store: its cursor is kept there, and not in this transaction",
                hint="commit it there; exactly once takes both in one store",
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
        """Make all of it visible to read_committed readers, and move its cursors; with durability "fsync", durable too.

        What is raised before the decision is written down leaves it open: a `with` block aborts it.
        InvalidTxnStateException where a truncation has cut records of it off, or an append was cut short: it can only
        be aborted.  ProducerFencedException as `append`.  Once the decision stands it is carried through, whatever is
        raised then (KafkaStorageException where a partition's disk fails): by the same call again, the next
        transaction of this id, the background, or the next open.
        """
        self._end(commit=True)

    def abort(self) -> None:
        """End it; read_committed readers never see its records, and its cursors stay.  One that was fenced is aborted
        already.  InvalidTxnStateException where a commit that was interrupted stands."""
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
                self._let_go(None)  # who fenced us has aborted it
                return
            self._let_go(self._ended(commit=commit) if self._began else self._holder)

    def _ended(self, *, commit: bool) -> ProducerIdAndEpoch | None:
        """With what the next transaction goes on; None where that is not known."""
        holder = self._holder
        if holder is None:  # what was interrupted may have come so far, not further
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
                f"an append of the transaction of {self.transactional_id!r} was cut short: some of its records are "
                "there, others may not be",
                hint="abort it, and do it again",
            )
        for place, part in self._parts.items():
            try:
                if self._home.partition(place) is not part.appends:
                    continue  # deleted, with what we wrote to it, and made anew
            except UnknownTopicOrPartitionException:
                continue  # deleted
            part.check_online()
            part.check_whole(self.transactional_id)

    def _let_go(self, kept: ProducerIdAndEpoch | None) -> None:
        self._active = False
        if not self._home.life.forked:  # there, nobody would ever give the lock back
            self._ids.leave(self.transactional_id, self, kept)

    # --- who may ---------------------------------------------------------------------------------------

    def _enter_call(self) -> None:
        self._home.check_open()  # in a forked child nobody would ever give the lock back
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
        """Says why somebody else has ended it."""
        self._home.check_open()
        what = f"the transaction of {self.transactional_id!r}"
        if not self._ids.is_inside(self.transactional_id, self):
            what = f"{what} was aborted: another transaction of this id has begun since"
            hint = "give each worker a transactional id of its own"
        elif self._home.clock.milliseconds() - self._start_ms >= self.timeout_ms:
            what = f"{what} was aborted: it was open for longer than its timeout of {self.timeout_ms} ms"
            hint = "do it again, with less in it, or a larger timeout_ms"
        else:
            what = f"{what} was ended by somebody else (abort_transaction)"
            hint = "do it again"
        raise ProducerFencedException(what, hint=hint) from error

    def _raise_closed(self, error: KafkaStorageException) -> NoReturn:
        """What the logs say of a store that another thread closed meanwhile, said as everywhere else here."""
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
        """The coordinator hears of partitions before anything is written to them."""
        found = {each: self._home.partition(each) for each in places}  # first: what comes after it is asked for again
        new = [each for each, appends in found.items() if self._added.get(each) is not appends]
        if new:
            for topic in {each.topic for each in new}:
                self._home.joins(topic)
            self._ask(lambda holder: self._coordinator.add_partitions(self.transactional_id, holder, new))
            self._added.update((each, found[each]) for each in new)

    def _ask(self, request: Callable[[ProducerIdAndEpoch], object]) -> ProducerIdAndEpoch:
        """Has the coordinator add something; with what the transaction writes."""
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
                self._holder = None  # nobody had used the id for so long that it was forgotten
                holder = self._taken()
                request(holder)
        except _FENCED as error:
            self._raise_fenced(error)
        except KafkaStorageException as error:
            self._raise_closed(error)
        return holder


class Transaction(Block, Shown):
    """As StoreTransaction, whose records all go to one partition; made by `Partition.transaction`.  For one thread."""

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

    def __enter__(self) -> Transaction:
        self._it.__enter__()
        return self

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._it.__exit__(kind, error, trace)

    def _abandon(self) -> None:
        self._it._is_over = True  # an interrupt may have come before its own end
        self._it._abandon()

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended."""
        return self._it.active

    def begin(self) -> None:
        """As `StoreTransaction.begin`."""
        self._it.begin()

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Append one record to the transaction, with a `timestamp` in ms since 1970; returns its offset.  Errors as
        `StoreTransaction.append`."""
        topic, number = self.topic_partition
        return self._it.append(topic, value, key=key, headers=headers, timestamp=timestamp, partition=number).offset

    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Append records to the transaction; returns their offsets.  Errors as `StoreTransaction.append_many`."""
        topic, number = self.topic_partition
        return self._it.append_many(topic, records, partition=number).get(number, range(0))

    def append_batches(self, data: bytes | bytearray | memoryview | ReadyBatches) -> range:
        """As `StoreTransaction.append_batches`."""
        return self._it.append_batches(self.topic_partition.topic, data, self.topic_partition.partition)

    def commit_offsets(
        self,
        offsets: CommitsOffsets | OffsetsToCommit,
        *,
        cursor: str | None = None,
    ) -> None:
        """As `StoreTransaction.commit_offsets`."""
        self._it.commit_offsets(offsets, cursor=cursor)

    def commit(self) -> None:
        """As `StoreTransaction.commit`."""
        self._it.commit()

    def abort(self) -> None:
        """As `StoreTransaction.abort`."""
        self._it.abort()


def _some(records: Iterable[RecordInput]) -> Iterable[RecordInput] | None:
    """The same records; None where there is not one."""
    if isinstance(records, (list, tuple)):
        return records or None
    rest: Iterator[RecordInput] = iter(records)
    for first in rest:
        return itertools.chain((first,), rest)
    return None


def __dir__() -> list[str]:
    return __all__
