"""One partition of `__transaction_state`: the transactional ids that it holds, and the state of each.

The log is the truth. A change is first appended, then applied in memory. If an interrupt comes between the two, the
next caller reads the end of the log again (`settle`). The module does not know what a state means:
`transaction_metadata` says which state may follow, and `transaction_coordinator` in which order things become durable.

`lock` guards the table and the appends, while they run, but never a sync. The `lock` of an entry belongs to the
coordinator, which takes it first and holds it over a whole change of that id. `known` is replaced as a whole. Source:
TransactionStateManager (4.4.0).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from kafkalog.engine.coordinator.state_log import (
    StateBatch,
    StateLog,
    append_in_batches,
    append_whole,
    at_record,
    refuse_reentry,
)
from kafkalog.engine.coordinator.transaction_metadata import Known, TransactionVersion
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    encode_transaction,
)
from kafkalog.errors import SchemaException, UnknownRecordTypeException, UnknownRecordVersionException

NEVER_WRITTEN = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


class TransactionEntry:
    """A transactional id. `known` is None if it was never written or is forgotten; `lock`: see the module."""

    __slots__ = ("known", "lock", "transactional_id")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.known: Known | None = None
        self.lock = threading.RLock()


class TransactionStatePartition:
    """The state in one partition's log, which the constructor reads.

    Raises SchemaException for a record that cannot be understood. `version` is the cluster's transaction version. Kafka
    stops silently at such a record and continues with what came before. Here the partition is refused, because a
    decision may come after it.
    """

    def __init__(self, log: StateLog, clock: Clock, version: TransactionVersion) -> None:
        self.log = log
        self.lock = threading.RLock()
        self._clock = clock
        self._version = version
        self._lines = Lines("kafkalog.coordinator", log.place)
        self._entries: dict[str, TransactionEntry] = {}
        self._unsure: int | None = None  # from this offset on, the log may have records that are not applied
        self._read_to: int | None = None  # the end of what was read; our appends are applied without reading
        self._replay(None)

    def catch_up(self) -> None:
        """Reads what another process has appended, for a partition that is read while its broker is running."""
        refuse_reentry(self.lock, "the transaction coordinator")
        with self.lock:
            self._settle()
            self._replay(self._read_to)

    # --- what is known ------------------------------------------------------------------------------

    def entry(self, transactional_id: str, *, create: bool = False) -> TransactionEntry | None:
        """Returns the id's entry; it stays the same one until the id is forgotten."""
        refuse_reentry(self.lock, "the transaction coordinator")
        with self.lock:
            self._settle()
            found = self._entries.get(transactional_id)
            if found is None and create:
                found = self._entries[transactional_id] = TransactionEntry(transactional_id)
            return found

    def is_current(self, entry: TransactionEntry) -> bool:
        """Returns whether this is still the id's entry. Reads what an interrupted call left unread."""
        return self.entry(entry.transactional_id) is entry

    def entries(self) -> list[TransactionEntry]:
        """Returns the entries of all known ids."""
        refuse_reentry(self.lock, "the transaction coordinator")
        with self.lock:
            self._settle()
            found = list(self._entries.values())
        return [each for each in found if each.known is not None]

    # --- changes ------------------------------------------------------------------------------------

    def put(self, entry: TransactionEntry, known: Known) -> None:
        """Writes an id's next state to the log; the known state stays if that fails."""
        row = encode_transaction(entry.transactional_id, known.metadata, version=self._version.value_version)
        now_ms = self._clock.milliseconds()
        with self.lock:
            self._settle()
            self._unsure = self.log.end
            append_whole(self.log, [row], now_ms, NO_PRODUCER)
            entry.known = known
            self._unsure = None

    def forget(self, entries: Sequence[TransactionEntry]) -> None:
        """Deletes ids. The caller holds their locks."""
        now_ms = self._clock.milliseconds()
        rows = [encode_transaction(each.transactional_id, None) for each in entries]
        with self.lock:
            self._settle()
            self._unsure = self.log.end
            append_in_batches(self.log, rows, now_ms)
            self._drop(entries)
            self._unsure = None

    def _drop(self, entries: Sequence[TransactionEntry]) -> None:
        for each in entries:
            each.known = None
            self._entries.pop(each.transactional_id, None)

    # --- the log ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        if self._unsure is not None:
            self._replay(self._unsure)
            self._unsure = None

    def _replay(self, start: int | None) -> None:
        for batch in self.log.read(start):
            self._replay_batch(batch)
            self._read_to = batch.next_offset

    def _replay_batch(self, batch: StateBatch) -> None:
        for record in batch.records:
            try:
                name, metadata = decode_transaction(record.key, record.value)
                if metadata is not None:
                    _check(metadata)
            except (UnknownRecordTypeException, UnknownRecordVersionException) as error:
                self._lines.log(
                    logging.WARNING, "the record at offset %d is skipped, as in Kafka: %s", record.offset, error
                )
                continue
            except SchemaException as error:
                raise at_record(self.log, record.offset, error) from error
            self._replay_record(name, metadata)

    def _replay_record(self, name: str, metadata: TransactionMetadata | None) -> None:
        entry = self._entries.get(name)
        if metadata is None:
            if entry is not None:
                self._drop([entry])
            return
        if entry is None:
            entry = self._entries[name] = TransactionEntry(name)
        if entry.known is None or entry.known.metadata != metadata:
            entry.known = Known(metadata)


def _check(metadata: TransactionMetadata) -> None:
    """Raises SchemaException for a record that no coordinator could continue with."""
    if metadata.state in NEVER_WRITTEN:
        raise SchemaException(f"found the state {metadata.state.name}, which is never written")
    if metadata.partitions is None and metadata.state is not TransactionState.EMPTY:
        raise SchemaException(f"found no list of partitions in the state {metadata.state.name}")
    try:
        TransactionVersion(metadata.client_transaction_version)
    except ValueError:
        raise SchemaException(
            f"found transaction version {metadata.client_transaction_version}, expected 0 to 2"
        ) from None
    if metadata.producer_id < 0 or metadata.producer_epoch < 0:
        raise SchemaException(f"found producer id {metadata.producer_id} with epoch {metadata.producer_epoch}")
