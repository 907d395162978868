"""Writers that a crash or a retry cannot make write twice: `Writer` (idempotent) and `Transaction`.

What they need to remember stands in the log itself, where Kafka keeps it: each batch carries a producer id, an epoch
and a sequence number, and the partition remembers them in its producer snapshots and by replay.  The producer id is
made of the writer's name (2^62 + the first 62 bits of its SHA-256: above the ids that brokers give out), so the same
name finds its state again in any later process and nothing else has to be stored.  The epoch is 0 and stays: the
directory's lock already keeps a second writing process out.

Exactly once from a source that can be read again: number its records, pass each one's number as `sequence`, and after
a restart go on from `next_sequence`:

    writer = log.writer("orders-import")
    for number, line in source.lines_from(writer.next_sequence):
        writer.append(line, sequence=number)

Records of which the log already has the numbers are skipped, a gap raises OutOfOrderSequenceException.  Numbers count
modulo 2^31, as Kafka's sequences do: 2147483647 is followed by 0.  A name's records are numbered from 0 on without a
gap, so below `next_sequence` the log has had every number.  At or above it lie numbers to come and, once they have
begun again at 0, numbers of the round before; the latter are known only as far as the log remembers them, which are
the last five batches of the name.  What is not known to be there is a gap, never skipped.

A log without records has no memory: one that was emptied (`delete_records` up to the end, retention) and opened again
has forgotten its writers, as Kafka has, and `next_sequence` is 0.  Keep the last record, or the number elsewhere too.

A broker that serves the directory meanwhile keeps this memory too, but forgets a name once the timestamp of its newest
record is older than the broker's `producer.id.expiration.ms` (a day by default): `next_sequence` is 0 again then.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import BatchMaker, Records, next_sequence
from kafkalog._face.open_partition import OpenPartition
from kafkalog._face.rows import RecordInput, check_records
from kafkalog._face.shown import Shown
from kafkalog._limits import INT_MAX
from kafkalog._native.state.blocks import Block, Single
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.values import text, whole
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTxnStateException,
    KafkalogError,
    OutOfOrderSequenceException,
)
from kafkalog.records import Header

FIRST_PRODUCER_ID = 1 << 62  # a broker's ids are far below
SEQUENCE_MASK = INT_MAX


def producer_id_of(kind: str, name: str) -> int:
    """The producer id of a named writer ("writer") or transactional id ("transaction")."""
    if not text(name, f"the name of a {kind}"):
        raise IllegalArgumentException(f"a {kind} needs a name")
    digest = hashlib.sha256(f"kafkalog/{kind}/{name}".encode()).digest()
    return FIRST_PRODUCER_ID | (int.from_bytes(digest[:8], "big") >> 2)


class _Producer:
    """A producer id and what the log knows of it."""

    def __init__(self, partition: PartitionAppends, kind: str, name: str) -> None:
        self.partition = partition
        self.producer_id = producer_id_of(kind, name)

    def state(self) -> tuple[int, int, int | None]:
        """(epoch, next sequence, first offset of an open transaction) as the log has it now."""
        entry = self.partition.usable().producer_state_manager.last_entry(self.producer_id)
        if entry is None:
            return 0, 0, None
        epoch = max(entry.producer_epoch, 0)
        sequence = next_sequence(entry.last_seq, 1) if entry.last_seq >= 0 else 0
        return epoch, sequence, entry.current_txn_first_offset

    def sequence_now(self) -> int:
        """The number of the next record, of a log that may be closed too."""
        entry = self.partition.engine.producer_state_manager.last_entry(self.producer_id)
        return 0 if entry is None or entry.last_seq < 0 else next_sequence(entry.last_seq, 1)

    def remembered(self, expected: int) -> int:
        """How many records before the one numbered `expected` the log knows by their numbers."""
        entry = self.partition.engine.producer_state_manager.last_entry(self.producer_id)
        return 0 if entry is None or entry.last_seq < 0 else (expected - entry.first_seq) & SEQUENCE_MASK


def refuse_nested(guard: threading.RLock, what: str) -> None:
    """IllegalStateException where this thread is inside `guard` already: in an append that is reading its records.

    That append has its number; whatever took it meanwhile would make the log drop its records as known ones.  Asked of
    the lock itself, so that no interrupt can leave a mark behind.
    """
    if guard._is_owned():  # type: ignore[attr-defined]
        raise IllegalStateException(
            f"{what} is in use: what gives the records of its append_many (or a signal's handler) uses it too",
            hint="make a list of the records first, or append the others in another name",
        )


class Writer(Single, Shown):
    """An idempotent writer of a name; made by `Partition.writer` and `Topic.writer`.  Thread-safe; a name should have
    one user.

    What gives records to its `append_many` must not use a writer of the same name: IllegalStateException.
    """

    _inner = frozenset({"append_as"})

    def __init__(self, partition: PartitionAppends, name: str) -> None:
        self._producer = _Producer(partition, "writer", name)
        self.name = name
        self.producer_id = self._producer.producer_id
        # One for all writers of this name: two that took the same number would lose one record of the two.
        self._guard = partition.writer_guards.setdefault(self.producer_id, threading.RLock())

    @property
    def next_sequence(self) -> int:
        """How many records this name has appended so far, modulo 2^31: the number of the next one.

        0 again where the log was emptied and opened again (see the module).
        """
        return self._producer.state()[1]

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        sequence: int | None = None,
    ) -> int | None:
        """Append one record, with a `timestamp` in ms since 1970; returns its offset, or None when the log had
        that `sequence` already."""
        offsets = self.append_many(((value, key, headers, timestamp),), sequence=sequence)
        return offsets[0] if offsets else None

    def append_many(self, records: Iterable[RecordInput], *, sequence: int | None = None) -> range:
        """Append records numbered from `sequence` on (default: next_sequence); returns the offsets of the new ones.

        Those that the log has already are skipped.  OutOfOrderSequenceException when `sequence` leaves a gap, or is
        none (below 0 or above 2^31 - 1); IllegalArgumentException when it is no whole number.
        """
        check_records(records)
        if sequence is not None:
            sequence = whole(sequence, "sequence", hint="the record's number, as next_sequence counts them")
        self._producer.partition.usable()  # in a forked child nobody would ever give the guard back
        refuse_nested(self._guard, f"writer {self.name!r}")
        with self._guard:
            epoch, expected, _ = self._producer.state()
            if sequence is not None:
                records = self._fresh(records, sequence, expected)
            fields = ProducerFields(self.producer_id, epoch, expected)
            return self._producer.partition.append_as(fields, records)

    def append_as(self, records: Records, *, sync: bool, maker: BatchMaker | None) -> range:
        """`append_many` for a producer's thread: the options are those of the partition's `append_as`."""
        with self._guard:
            epoch, expected, _ = self._producer.state()
            fields = ProducerFields(self.producer_id, epoch, expected)
            return self._producer.partition.append_as(fields, records, sync=sync, maker=maker)

    def _fresh(self, records: Iterable[RecordInput], sequence: int, expected: int) -> Iterable[RecordInput]:
        """Those of `records` that the log does not have: `sequence` numbers the first, `expected` comes next."""
        if not 0 <= sequence <= SEQUENCE_MASK:
            raise OutOfOrderSequenceException(
                f"writer {self.name!r}: found sequence {sequence}, expected 0 to {SEQUENCE_MASK}; the next one is "
                f"{expected}",
                hint="numbers count modulo 2^31: number % 2**31",
            )
        behind = (expected - sequence) & SEQUENCE_MASK
        if sequence > expected and behind > self._producer.remembered(expected):
            raise OutOfOrderSequenceException(
                f"writer {self.name!r}: sequence {sequence} leaves a gap, the next one is {expected}",
                hint="go on from next_sequence",
            )
        if not behind:
            return records
        if isinstance(records, (list, tuple)):
            return records[behind:]
        return itertools.islice(records, behind, None)


class Transaction(Block, Shown):
    """One transaction after another under a transactional id; made by `Partition.transaction`.  For one thread.

    As a context manager it begins at the block's start, commits at its end and aborts when the block raises.
    """

    _inner = frozenset({"cut_short", "let_go"})

    def __init__(self, partition: OpenPartition, transactional_id: str) -> None:
        self._producer = _Producer(partition, "transaction", transactional_id)
        self._partition = partition
        self.transactional_id = transactional_id
        self.producer_id = self._producer.producer_id
        self._active = False
        self._was_aborted = False  # by the log's close, behind our back
        self._next_sequence: int | None = None  # behind our last record, as the log had it then
        self._was_cut = False  # the log, beside an append of ours
        self._appending = threading.RLock()  # held while records are read and appended, taken before all others

    def __enter__(self) -> Transaction:
        try:
            self._begin()
            return self
        except InvalidTxnStateException:
            raise  # it is open, and goes on
        except BaseException:
            self._is_over = True  # no block follows that would end it
            raise

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_aborted and kind is None:
            raise self._not_open()
        if not self._active:
            return  # committed or aborted by hand
        if kind is not None and self._partition.life.forked:
            return  # the transaction goes on in the process that began it
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _abandon(self) -> None:
        """The block is over, but its end failed or was interrupted: what it left open holds every reader back."""
        try:
            if self._active:
                self._finish(ControlRecordType.ABORT)
        except KafkalogError:
            pass  # the first error is told
        finally:
            self.let_go()

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended; one whose block an interrupt came out of is over, and will be aborted."""
        return self._active and not self._is_over

    def begin(self) -> None:
        """Begin; what an end that failed left open under this id is aborted first."""
        self._begin()
        self._partition.held_transactions.add(self)  # a block is held by whoever stands in it

    def _begin(self) -> None:
        self._partition.check_open()  # in a forked child nobody would ever give the lock back
        with self._partition.ending_transactions:
            live = self._partition.live_transactions.get(self.transactional_id)
            if self.active or (live is not None and live.active):
                raise InvalidTxnStateException(
                    f"a transaction of {self.transactional_id!r} is open already",
                    hint="commit or abort it first, or take another transactional id",
                )
            self._partition.abort_begun(but=self._partition.live_transactions.values())
            if self._producer.state()[2] is not None:
                self._partition.write_marker(self.producer_id, self._producer.state()[0], ControlRecordType.ABORT)
            self._partition.begun_transactions.add(self.producer_id)
            self._partition.live_transactions[self.transactional_id] = self
            self._was_aborted = self._was_cut = self._is_over = False
            self._next_sequence = None
            self._active = True

    def let_go(self) -> None:
        """Have it neither committed nor aborted: another may begin under its id."""
        self._active = False
        self._partition.held_transactions.discard(self)
        if self._partition.live_transactions.get(self.transactional_id) is self:
            del self._partition.live_transactions[self.transactional_id]

    def cut_short(self) -> None:
        """It was aborted behind its back: by the log's close, or as nobody's to end."""
        self._was_aborted = self.active
        self.let_go()

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Append one record to the transaction; returns its offset."""
        return self.append_many(((value, key, headers, timestamp),))[0]

    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Append records to the transaction; returns their offsets.  InvalidTxnStateException as in `commit`.

        What gives the records must neither append to the transaction nor end it: IllegalStateException.
        """
        self._partition.check_open()  # in a forked child nobody would ever give the lock back
        self._refuse_nested()
        with self._appending:
            if not self.active:
                raise self._not_open()
            cuts = self._truncations()
            self._check_whole()
            epoch, sequence, _ = self._producer.state()
            fields = ProducerFields(self.producer_id, epoch, sequence, transactional=True)
            try:
                return self._partition.append_as(fields, records, sync=False)
            finally:
                self._was_cut = self._was_cut or self._truncations() != cuts
                self._next_sequence = self._producer.sequence_now()

    def _refuse_nested(self) -> None:
        refuse_nested(self._appending, f"the transaction of {self.transactional_id!r}")

    def _truncations(self) -> int:
        return self._partition.engine.local_log.truncations

    def _check_whole(self) -> None:
        """InvalidTxnStateException where a truncation has cut records of the transaction off."""
        expected = self._next_sequence
        if expected is None:
            return  # it has none yet
        missing = (expected - self._producer.sequence_now()) & SEQUENCE_MASK
        if self._was_cut or 0 < missing <= SEQUENCE_MASK // 2:
            raise InvalidTxnStateException(
                f"a truncation has cut off records of the transaction of {self.transactional_id!r}",
                hint="abort it, which ends what is left of it, and do it again",
            )

    def commit(self) -> None:
        """Make all of it visible to read_committed readers; with durability "fsync", durable too.

        With durability "os" a power loss may take records of a segment that was rolled and not flushed yet, and leave
        the commit in the next, as with Kafka.  InvalidTxnStateException when a truncation has cut records of it off:
        it can only be aborted then (a `with` block does), where Kafka would commit what is left.
        """
        self._finish(ControlRecordType.COMMIT)

    def abort(self) -> None:
        """End it; read_committed readers never see its records."""
        self._finish(ControlRecordType.ABORT)

    def _not_open(self) -> IllegalStateException:
        return IllegalStateException(
            f"no transaction of {self.transactional_id!r} is open",
            hint="use it as `with log.transaction(...) as txn:`, or call begin() first",
        )

    def _finish(self, kind: ControlRecordType) -> None:
        self._partition.check_open()  # in a forked child nobody would ever give the lock back
        self._refuse_nested()
        with self._partition.ending_transactions:  # a close that aborts it comes before or after
            if not self.active:
                raise self._not_open()
            check = self._check_whole if kind is ControlRecordType.COMMIT else None
            if check is not None:
                check()
            if self._producer.state()[2] is not None:  # a transaction without records needs no marker
                self._partition.write_marker(self.producer_id, self._producer.state()[0], kind, check)
            self._partition.begun_transactions.discard(self.producer_id)
            self.let_go()


def abort_left_open(partition: OpenPartition) -> None:
    """Abort every transaction of ours that a crashed process left open.

    Nobody else can go on with one: its process held the directory's lock.  Those of a broker's producers and of a store
    (`kafkalog.open`), which have smaller ids, are left to their coordinator, which alone knows what was decided.
    """
    left = [
        (entry.producer_id, max(entry.producer_epoch, 0))
        for entry in partition.engine.producer_state_manager.active_producers.values()
        if entry.producer_id >= FIRST_PRODUCER_ID and entry.current_txn_first_offset is not None
    ]
    for producer_id, epoch in left:
        partition.write_marker(producer_id, epoch, ControlRecordType.ABORT)
