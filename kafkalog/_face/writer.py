"""Writers that a crash or a retry cannot make write twice.

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

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import BatchMaker, Records, next_sequence
from kafkalog._face.rows import RecordInput, check_records
from kafkalog._face.shown import Shown
from kafkalog._limits import INT_MAX
from kafkalog._native.state.blocks import Single
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.values import text, whole
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    OutOfOrderSequenceException,
)
from kafkalog.records import Header

FIRST_PRODUCER_ID = 1 << 62  # a broker's ids are far below
SEQUENCE_MASK = INT_MAX


def producer_id_of(name: str) -> int:
    """The producer id of a named writer."""
    if not text(name, "the name of a writer"):
        raise IllegalArgumentException("a writer needs a name")
    digest = hashlib.sha256(f"kafkalog/writer/{name}".encode()).digest()
    return FIRST_PRODUCER_ID | (int.from_bytes(digest[:8], "big") >> 2)


class _Producer:
    """A producer id and what the log knows of it."""

    def __init__(self, partition: PartitionAppends, name: str) -> None:
        self.partition = partition
        self.producer_id = producer_id_of(name)

    def state(self) -> tuple[int, int]:
        """(epoch, next sequence) as the log has it now."""
        entry = self.partition.usable().producer_state_manager.last_entry(self.producer_id)
        if entry is None:
            return 0, 0
        sequence = next_sequence(entry.last_seq, 1) if entry.last_seq >= 0 else 0
        return max(entry.producer_epoch, 0), sequence

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
        self._producer = _Producer(partition, name)
        self.name = name
        self.producer_id = self._producer.producer_id
        # One for all writers of this name: two that took the same number would lose one record of the two.
        self._guard = partition.writer_guards.setdefault(self.producer_id, threading.RLock())

    def __repr__(self) -> str:
        of = self._producer.partition
        return f"<Writer {self.name!r} of {of.topic_partition}, {'open' if of.life.live else 'closed'}>"

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
            epoch, expected = self._producer.state()
            if sequence is not None:
                records = self._fresh(records, sequence, expected)
            fields = ProducerFields(self.producer_id, epoch, expected)
            return self._producer.partition.append_as(fields, records)

    def append_as(self, records: Records, *, sync: bool, maker: BatchMaker | None) -> range:
        """`append_many` for a producer's thread: the options are those of the partition's `append_as`."""
        with self._guard:
            epoch, expected = self._producer.state()
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
