"""Idempotent writers: a crash or a retry cannot make them write a record twice.

Their state is in the log itself, where Kafka keeps it.  Each batch carries a producer id, an epoch and a sequence
number, and the partition remembers them in its producer snapshots and by replay.  The producer id is computed from the
writer's name (2^62 + the first 62 bits of its SHA-256, above the ids that brokers assign).  So the same name finds its
state again in a later process, and nothing else is stored.  The epoch is always 0, because the directory's lock already
excludes a second writing process.

To import each record exactly once from a source that can be read again, pass the number of each record as `sequence`.
After a restart, continue from `next_sequence`:

    writer = log.writer("orders-import")
    for number, line in source.lines_from(writer.next_sequence):
        writer.append(line, sequence=number)

Records whose numbers are in the log already are skipped; a gap raises OutOfOrderSequenceException.  Numbers count
modulo 2^31, as Kafka's sequence numbers do: 0 follows 2147483647.  The records of a name are numbered from 0 on without
a gap, so the log has had every number below `next_sequence`.  A number at or above it is new.  Once the numbers have
begun again at 0, it may also belong to the previous round.  The log knows numbers of the previous round only as long as
it remembers them: the last five batches of the name.  A number that the log does not know counts as a gap and is never
skipped.

A log without records has no memory.  If it was emptied (by `delete_records` up to the end, or by retention) and opened
again, it has forgotten its writers, as in Kafka, and `next_sequence` is 0.  To avoid this, keep the last record, or
store the number elsewhere too.

A broker that serves the directory in the meantime keeps this memory too.  However, it forgets a name once the
timestamp of its newest record is older than the broker's `producer.id.expiration.ms` (a day by default); then
`next_sequence` is 0.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterable, Sequence

from kafkalog import _shown
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

FIRST_PRODUCER_ID = 1 << 62  # far above the ids of brokers
SEQUENCE_MASK = INT_MAX


def producer_id_of(name: str) -> int:
    """Returns the producer id of a named writer."""
    if not text(name, "the name of a writer"):
        raise IllegalArgumentException("the name of a writer is empty; expected a name")
    digest = hashlib.sha256(f"kafkalog/writer/{name}".encode()).digest()
    return FIRST_PRODUCER_ID | (int.from_bytes(digest[:8], "big") >> 2)


class _Producer:
    """A producer id, and the log's state of it."""

    def __init__(self, partition: PartitionAppends, name: str) -> None:
        self.partition = partition
        self.producer_id = producer_id_of(name)

    def state(self) -> tuple[int, int]:
        """Returns (epoch, next sequence) from the current log."""
        entry = self.partition.usable().producer_state_manager.last_entry(self.producer_id)
        if entry is None:
            return 0, 0
        sequence = next_sequence(entry.last_seq, 1) if entry.last_seq >= 0 else 0
        return max(entry.producer_epoch, 0), sequence

    def remembered(self, expected: int) -> int:
        """Returns how many records before the number `expected` the log remembers."""
        entry = self.partition.engine.producer_state_manager.last_entry(self.producer_id)
        return 0 if entry is None or entry.last_seq < 0 else (expected - entry.first_seq) & SEQUENCE_MASK


def refuse_nested(guard: threading.RLock, what: str) -> None:
    """Raises IllegalStateException if this thread holds `guard`: it is in an append that is reading its records.

    That append has its sequence number.  Another append with this number would make the log drop records as duplicates.
    The lock itself is asked, so that an interrupt cannot leave a stale flag.
    """
    if guard._is_owned():  # type: ignore[attr-defined]
        raise IllegalStateException(
            f"{what} is in use: the iterable of its append_many (or a signal handler) uses it too",
            hint="make a list of the records first, or append the others with another name",
        )


class Writer(Single, Shown):
    """An idempotent writer with a name, returned by `Partition.writer` and `Topic.writer`.

    A Writer is thread-safe, but a name should have one user.  The iterable that is passed to `append_many` must not use
    a writer of the same name.

    Attributes:
        name: The writer's name.
        producer_id: The producer id of its batches, which is computed from the name.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     writer = log.writer("orders-import")
        ...     for number, line in enumerate([b"one", b"two"]):
        ...         print(writer.append(line, sequence=number), writer.next_sequence)
        ...     print(writer.append(b"two", sequence=1))
        0 1
        1 2
        None
    """

    _inner = frozenset({"append_as"})

    def __init__(self, partition: PartitionAppends, name: str) -> None:
        self._producer = _Producer(partition, name)
        self.name = name
        self.producer_id = self._producer.producer_id
        # One lock for all writers of this name: if two used the same number, one of the records would be lost.
        self._guard = partition.writer_guards.setdefault(self.producer_id, threading.RLock())

    def __repr__(self) -> str:
        of = self._producer.partition
        return f"<Writer {self.name!r} of {of.topic_partition}, {'open' if of.life.live else 'closed'}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _shown.facts(self, [("producer id", self.producer_id)]))

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next record: how many records this name has appended, modulo 2^31.

        It is 0 again if the log was emptied and opened again.
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
        """Appends one record, unless the log has its sequence number already.

        Args:
            value: As for `Partition.append`.
            key: As for `Partition.append`.
            headers: As for `Partition.append`.
            timestamp: Milliseconds since 1970; by default the current time.
            sequence: The number of the record; by default `next_sequence`.

        Returns:
            The offset of the record, or None if the log had that `sequence` already.

        Raises:
            OutOfOrderSequenceException: `sequence` leaves a gap, or is not from 0 to 2147483647.
            KafkalogError: Any error of `Partition.append`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     writer = log.writer("orders-import")
            ...     print(writer.append(b"one", sequence=0), writer.append(b"one", sequence=0))
            0 None
        """
        offsets = self.append_many(((value, key, headers, timestamp),), sequence=sequence)
        return offsets[0] if offsets else None

    def append_many(self, records: Iterable[RecordInput], *, sequence: int | None = None) -> range:
        """Appends records, and skips those whose sequence numbers the log has already.

        Args:
            records: Records in the forms that `Partition.append_many` accepts.
            sequence: The number of the first record; by default `next_sequence`.

        Returns:
            The offsets of the new records.

        Raises:
            OutOfOrderSequenceException: `sequence` leaves a gap, or is not from 0 to 2147483647.
            IllegalArgumentException: `sequence` is not a whole number, or a record has a wrong type or value.
            IllegalStateException: The iterable uses a writer of the same name.
            KafkalogError: Any other error of `Partition.append_many`.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     writer = log.writer("orders-import")
            ...     print(writer.append_many([b"one", b"two"], sequence=0))
            ...     print(writer.append_many([b"two", b"three"], sequence=1))
            range(0, 2)
            range(2, 3)
        """
        check_records(records)
        if sequence is not None:
            sequence = whole(sequence, "sequence", hint="pass the record's number, as next_sequence counts")
        self._producer.partition.usable()  # first, for in a forked child the guard may never be released
        refuse_nested(self._guard, f"writer {self.name!r}")
        with self._guard:
            epoch, expected = self._producer.state()
            if sequence is not None:
                records = self._fresh(records, sequence, expected)
            fields = ProducerFields(self.producer_id, epoch, expected)
            return self._producer.partition.append_as(fields, records)

    def append_as(self, records: Records, *, sync: bool, maker: BatchMaker | None) -> range:
        """Appends records for a producer's thread, with the options of the partition's `append_as`."""
        with self._guard:
            epoch, expected = self._producer.state()
            fields = ProducerFields(self.producer_id, epoch, expected)
            return self._producer.partition.append_as(fields, records, sync=sync, maker=maker)

    def _fresh(self, records: Iterable[RecordInput], sequence: int, expected: int) -> Iterable[RecordInput]:
        """Returns the new records; `sequence` is the number of the first record, `expected` the next new number."""
        if not 0 <= sequence <= SEQUENCE_MASK:
            raise OutOfOrderSequenceException(
                f"writer {self.name!r}: found sequence {sequence}, expected 0 to {SEQUENCE_MASK}; the next one is "
                f"{expected}",
                hint="sequence numbers count modulo 2^31; pass number % 2**31",
            )
        behind = (expected - sequence) & SEQUENCE_MASK
        if sequence > expected and behind > self._producer.remembered(expected):
            raise OutOfOrderSequenceException(
                f"writer {self.name!r}: sequence {sequence} leaves a gap; the next one is {expected}",
                hint="continue from next_sequence",
            )
        if not behind:
            return records
        if isinstance(records, (list, tuple)):
            return records[behind:]
        return itertools.islice(records, behind, None)
