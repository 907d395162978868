"""ProducerStateManager: the producer state of one partition, and the `.snapshot` files that restore it after a restart.

It holds three things:
- an entry per producer id (duplicates, sequences, epochs);
- the transactions in progress, and those that have ended but are not below the high watermark yet, which hold back the
  last stable offset;
- the snapshot files of the partition's directory, by offset.

ProducerAppendInfo checks batches, and the caller replays the log. Not thread-safe: UnifiedLog holds its lock around
every call. Raises plain OSError if the disk fails.
Source classes: ProducerStateManager, SnapshotFile (4.4.0).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from kafkalog._limits import to_int64
from kafkalog._native.codec.java_hash import JavaHashMap, long_hash
from kafkalog._native.state.producers import OffsetMap, ProducerEntry, ProducerTable
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import (
    DELETED_FILE_SUFFIX,
    PRODUCER_SNAPSHOT_FILE_SUFFIX,
    offset_from_filename,
    producer_snapshot_file,
)
from kafkalog.engine.format.snapshots import ProducerSnapshotEntry, read_snapshot, write_snapshot
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.producer_append import CompletedTxn, ProducerAppendInfo, ProducerStateEntry, TxnMetadata
from kafkalog.engine.log.types import NO_PRODUCER_ID, AppendOrigin
from kafkalog.engine.log.verification import VerificationStateEntry
from kafkalog.engine.segment.transactions import open_in_snapshot
from kafkalog.errors import CorruptSnapshotException, IllegalArgumentException

# A coordinator aborts a transaction after its timeout. A transaction that is open this much longer is hanging.
LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000


class SnapshotFile:
    """SnapshotFile: a `.snapshot` file and the offset in its name. `path` follows renames."""

    __slots__ = ("_files", "offset", "path")

    def __init__(self, path: str, offset: int | None = None, *, files: Files = OS_FILES) -> None:
        self.path = path
        self.offset = offset_from_filename(os.path.basename(path)) if offset is None else offset
        self._files = files

    def delete_if_exists(self) -> bool:
        return self._files.unlink_if_exists(self.path)

    def update_parent_dir(self, parent_dir: str) -> None:
        self.path = os.path.join(parent_dir, os.path.basename(self.path))

    @property
    def is_marked(self) -> bool:
        return self.path.endswith(DELETED_FILE_SUFFIX)

    def rename_to_delete(self) -> None:
        """Adds `.deleted` to the name. The directory is not synced: a snapshot that comes back does no harm."""
        if not self.is_marked:
            self._files.rename_or_was(self.path, self.path + DELETED_FILE_SUFFIX)
            self.path += DELETED_FILE_SUFFIX

    def __repr__(self) -> str:
        return f"SnapshotFile(offset={self.offset}, file={self.path})"


def list_snapshot_files(
    directory: str, files: Files = OS_FILES, present: Iterable[str] | None = None
) -> list[SnapshotFile]:
    """Returns the `.snapshot` files of a partition's directory, by name; none if there is no directory.

    `present`: the names of the files in it, if the caller has just listed them.
    """
    if present is None:
        present = files.list_files(directory) if files.is_dir(directory) else ()
    folder = os.path.join(directory, "")
    return [
        SnapshotFile(folder + name, offset_from_filename(name), files=files)
        for name in present
        if name.endswith(PRODUCER_SNAPSHOT_FILE_SUFFIX)
    ]


class ProducerStateManager(ProducerTable):
    """ProducerStateManager: producer entries, open transactions and snapshots of one partition.

    Offsets are logical, times in milliseconds. The entries cover the log up to `map_end_offset`. A snapshot is taken
    there, and only if that is above the last snapshot.
    """

    def __init__(self, context: PartitionContext, *, present: Iterable[str] | None = None) -> None:
        """`present`: the names of the files in the partition's directory, if the caller has just listed them."""
        self.context = context
        self.topic_partition = context.topic_partition
        self.producer_state_manager_config = context.producers.config
        # Snapshots list the entries in the order of a Java HashMap, which depends on how large the map once was.
        self._producers: JavaHashMap[int, ProducerStateEntry] = JavaHashMap(long_hash)
        self.map_end_offset = 0
        self._last_snap_offset = 0
        self._snapshots = self._load_snapshots(present)
        self._doomed: list[SnapshotFile] = []  # renamed to `.deleted`, but not yet passed to a deleting task

    # --- producers ------------------------------------------------------------------------------

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """The entries by producer id, read-only."""
        return MappingProxyType(self._producers)

    @property
    def producer_id_count(self) -> int:
        return len(self._producers)

    @property
    def is_empty(self) -> bool:
        """Whether there are neither producers nor unreplicated transactions."""
        return not self._producers and not self._unreplicated_txns

    def last_entry(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """Returns the checker of an append's batches for one producer; `update` applies its result."""
        entry = self._producers.get(producer_id) or ProducerStateEntry.empty(producer_id)
        verification = self._verification_states.get(producer_id)
        return ProducerAppendInfo(
            self.topic_partition, producer_id, entry, origin, verification, logger=self.context.logger
        )

    def update(self, append_info: ProducerAppendInfo) -> None:
        """Applies the result of an append, whose batches are in the log by now."""
        self.take_entry(*self.change_of(append_info))

    def change_of(self, append_info: ProducerAppendInfo) -> tuple[ProducerEntry, list[TxnMetadata]]:
        """Returns what `update` would apply: for an append, which applies it together with its write."""
        producer_id = append_info.producer_id
        if producer_id == NO_PRODUCER_ID:
            raise IllegalArgumentException(
                f"Invalid producer id {producer_id} passed to update for partition{self.topic_partition}"
            )
        return append_info.to_entry(), append_info.started_transactions

    def load_producer_entry(self, entry: ProducerStateEntry) -> None:
        """Applies an entry of a snapshot, with the transaction that it is in."""
        self._add_producer(entry)
        first_offset = entry.current_txn_first_offset
        if first_offset is not None:
            self._ongoing_txns.put(first_offset, TxnMetadata(entry.producer_id, first_offset))

    def remove_expired_producers(self, current_time_ms: int) -> None:
        """Forgets producers that were silent for producer.id.expiration.ms and are in no transaction."""
        for producer_id, entry in list(self._producers.items()):
            if self._is_producer_expired(current_time_ms, entry):
                del self._producers[producer_id]
        expiration_ms = self.producer_state_manager_config.producer_id_expiration_ms
        for producer_id, verification in list(self._verification_states.items()):
            if to_int64(current_time_ms - verification.timestamp) >= expiration_ms:
                del self._verification_states[producer_id]

    def _is_producer_expired(self, current_time_ms: int, entry: ProducerStateEntry) -> bool:
        # A timestamp is any value that the producer wrote: far in the past, Java's subtraction wraps, and it never
        # expires.
        silent_ms = to_int64(current_time_ms - entry.last_timestamp)
        expiration_ms = self.producer_state_manager_config.producer_id_expiration_ms
        return entry.current_txn_first_offset is None and silent_ms >= expiration_ms

    def _add_producer(self, entry: ProducerStateEntry) -> None:
        self._producers[entry.producer_id] = entry

    def _clear_producers(self) -> None:
        self._producers.clear()

    # --- verification (KIP-890) -----------------------------------------------------------------

    def maybe_create_verification_state_entry(
        self, producer_id: int, sequence: int, epoch: int, supports_epoch_bump: bool
    ) -> VerificationStateEntry:
        """Returns the running verification of a producer; starts one if there is none."""
        entry = self._verification_states.get(producer_id)
        if entry is None:
            entry = VerificationStateEntry(self.context.clock.milliseconds(), sequence, epoch, supports_epoch_bump)
            self._verification_states[producer_id] = entry
        entry.maybe_update_lowest_sequence_and_epoch(sequence, epoch)
        return entry

    def verification_state_entry(self, producer_id: int) -> VerificationStateEntry | None:
        return self._verification_states.get(producer_id)

    def clear_verification_state_entry(self, producer_id: int) -> None:
        self._verification_states.pop(producer_id, None)

    # --- transactions ---------------------------------------------------------------------------

    @property
    def first_undecided_offset(self) -> int | None:
        """The offset at which the oldest open transaction begins."""
        undecided = self._ongoing_txns.first
        return None if undecided is None else undecided.first_offset.message_offset

    def last_stable_offsets(self, completed: Sequence[CompletedTxn], started: Iterable[TxnMetadata] = ()) -> list[int]:
        """Returns the last stable offset after each of the transactions has ended and is replicated, in their order.

        The values go into the transaction index. `started`: transactions that the same append begins.
        """
        open_txns = sorted(
            {txn.first_offset.message_offset: txn.producer_id for txn in (*self._ongoing_txns, *started)}.items()
        )
        stable = []
        for done in completed:
            others = (offset for offset, producer_id in open_txns if producer_id != done.producer_id)
            stable.append(next(others, done.last_offset + 1))
            open_txns = [txn for txn in open_txns if txn[0] != done.first_offset]
        return stable

    def last_stable_offset(self, completed_txn: CompletedTxn) -> int:
        """Returns the last stable offset as it will be once `completed_txn` is replicated."""
        return self.last_stable_offsets([completed_txn])[0]

    def check_open(self, completed: Iterable[CompletedTxn], started: Iterable[TxnMetadata] = ()) -> None:
        """Raises IllegalArgumentException for a completed transaction that is not open."""
        begun = {txn.first_offset.message_offset for txn in started}
        for txn in completed:
            if self._ongoing_txns.get(txn.first_offset) is None and txn.first_offset not in begun:
                raise IllegalArgumentException(
                    f"Attempted to complete transaction {txn} on partition {self.topic_partition} which was not started"
                )

    def complete_txn(self, completed_txn: CompletedTxn) -> None:
        """Moves a transaction from the open ones to those that wait for the high watermark."""
        self.check_open([completed_txn])
        self.end_txn(completed_txn)

    def has_late_transaction(self, current_time_ms: int) -> bool:
        """Returns whether the oldest open transaction is open for five minutes more than the longest timeout."""
        last_timestamp = self._oldest_txn_last_timestamp
        late_ms = self.context.producers.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return last_timestamp > 0 and current_time_ms - last_timestamp > late_ms

    # --- the map's end and truncation -----------------------------------------------------------

    def update_map_end_offset(self, last_offset: int) -> None:
        self.map_end_offset = last_offset

    def on_log_start_offset_incremented(self, log_start_offset: int) -> None:
        """Advances the state to a new log start.

        Producers stay, even if their batches are deleted: their sequences count.
        """
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        latest = self._snapshots.last
        self._last_snap_offset = log_start_offset if latest is None else latest.offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, current_time_ms: int) -> None:
        """Deletes snapshots outside (start, end].

        Unless the map ends at `log_end_offset`, loads the latest one left.
        """
        for snapshot in self._snapshots:
            if not log_start_offset < snapshot.offset <= log_end_offset:
                self._remove_and_delete_snapshot(snapshot.offset)
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset_incremented(log_start_offset)
            return
        # First: if a rebuild is interrupted and repeated, it must not find an empty map that seems complete.
        self.map_end_offset = log_start_offset
        self._clear_producers()
        self._ongoing_txns.clear()
        self.update_oldest_txn_timestamp()
        self._unreplicated_txns.clear()
        self._load_from_snapshot(log_start_offset, current_time_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forgets everything and deletes every snapshot."""
        self._clear_producers()
        self._ongoing_txns.clear()
        self._unreplicated_txns.clear()
        for snapshot in self._snapshots:
            self._remove_and_delete_snapshot(snapshot.offset)
        self._last_snap_offset = 0
        self.map_end_offset = offset
        self.update_oldest_txn_timestamp()

    # --- snapshots ------------------------------------------------------------------------------

    @property
    def latest_snapshot_offset(self) -> int | None:
        latest = self._snapshots.last
        return None if latest is None else latest.offset

    def open_in_snapshot_up_to(self, offset: int) -> tuple[int, dict[int, int]] | None:
        """Returns the offset of the last readable snapshot at or below `offset`, and its open transactions.

        They map producer id -> first offset. Returns None if there is no such snapshot.
        """
        below = [each for each in self._snapshots if each.offset <= offset]
        for snapshot in reversed(below):
            with contextlib.suppress(CorruptSnapshotException):
                return snapshot.offset, open_in_snapshot(read_snapshot(snapshot.path, self.context.files))
        return None

    def entries_in_snapshot(self, offset: int) -> list[ProducerSnapshotEntry]:
        """Returns the entries of the snapshot at an offset; none if it is missing or damaged."""
        snapshot = self._snapshots.get(offset)
        if snapshot is not None:
            with contextlib.suppress(CorruptSnapshotException, FileNotFoundError):
                return read_snapshot(snapshot.path, self.context.files)
        return []

    def load_entries(self, entries: Iterable[ProducerSnapshotEntry], current_time_ms: int) -> None:
        """Applies entries of a snapshot, except those that have expired."""
        for entry in map(entry_from_snapshot, entries):
            if not self._is_producer_expired(current_time_ms, entry):
                self.load_producer_entry(entry)
        self.update_oldest_txn_timestamp()

    def take_snapshot(self, sync: bool = True) -> str | None:
        """Writes `<map end>.snapshot` if the map moved past the last one.

        Returns its path, or None if nothing was written.
        """
        offset = self.map_end_offset
        if offset <= self._last_snap_offset:
            return None
        path = producer_snapshot_file(self.context.dir, offset)
        entries = [_to_snapshot(entry) for entry in self._producers.values()]
        write_snapshot(path, entries, self.context.files, sync=sync, ordered=True)
        self._snapshots.put(offset, SnapshotFile(path, offset, files=self.context.files))
        self._last_snap_offset = offset
        return path

    def update_parent_dir(self) -> None:
        """Records that the partition's directory was renamed."""
        for snapshot in self._snapshots:
            snapshot.update_parent_dir(self.context.dir)

    def remove_stray_snapshots(self, segment_base_offsets: Collection[int], *, list_anew: bool = True) -> None:
        """Deletes snapshots that are not at a segment's base. Keeps the latest of them if it is above all segments.

        A clean close took that one, at the log's end. The directory is listed again, unless the caller knows that only
        this manager has changed its snapshots.
        """
        bases = set(segment_base_offsets)
        snapshots = self._load_snapshots() if list_anew else self._snapshots
        strays = [snapshot for snapshot in snapshots if snapshot.offset not in bases]
        if strays and (not bases or strays[-1].offset > max(bases)):
            strays.pop()
        for snapshot in strays:
            snapshot.delete_if_exists()
            snapshots.pop(snapshot.offset)
        self._snapshots = snapshots

    def delete_snapshots_at(self, offsets: Iterable[int], async_delete: bool) -> None:
        """Renames the snapshots at these offsets to `.deleted` and deletes them, later if `async_delete`.

        The task is scheduled even if there is nothing to delete, as in Kafka (UnifiedLog.deleteProducerSnapshots).
        """
        context = self.context
        for offset in offsets:
            snapshot = self._snapshots.get(offset)
            if snapshot is not None:
                self._doomed.append(snapshot)  # first: if this is interrupted, the next call deletes it
                self.remove_and_mark_snapshot_for_deletion(offset)
        doomed = self._doomed

        def delete() -> None:
            with context.guard("deleting producer state snapshots"):
                for snapshot in doomed:
                    if snapshot.is_marked:
                        snapshot.delete_if_exists()

        context.delete("delete-producer-snapshot", delete, later=async_delete)
        self._doomed = []

    def remove_and_mark_snapshot_for_deletion(self, snapshot_offset: int) -> SnapshotFile | None:
        """Renames the snapshot at an offset to `.deleted`. Returns None if there is none, or if it vanished."""
        snapshot = self._snapshots.get(snapshot_offset)
        if snapshot is None:
            return None
        try:
            snapshot.rename_to_delete()
        except FileNotFoundError:
            self.context.logger.info("Producer snapshot %s was already deleted", snapshot.path)
            self._snapshots.pop(snapshot_offset)
            return None
        self._snapshots.pop(snapshot_offset)
        return snapshot

    def _load_snapshots(self, present: Iterable[str] | None = None) -> OffsetMap[SnapshotFile]:
        snapshots: OffsetMap[SnapshotFile] = OffsetMap()
        for snapshot in list_snapshot_files(self.context.dir, self.context.files, present):
            snapshots.put(snapshot.offset, snapshot)
        return snapshots

    def _remove_and_delete_snapshot(self, snapshot_offset: int) -> None:
        snapshot = self._snapshots.get(snapshot_offset)
        if snapshot is not None:
            snapshot.delete_if_exists()
            self._snapshots.pop(snapshot_offset)

    def _load_from_snapshot(self, log_start_offset: int, current_time_ms: int) -> None:
        while (snapshot := self._snapshots.last) is not None:
            try:
                entries = read_snapshot(snapshot.path, self.context.files)
            except CorruptSnapshotException as error:
                self.context.logger.warning("Deleting producer snapshot %s: %s", snapshot.path, error)
                self._remove_and_delete_snapshot(snapshot.offset)
                continue
            self.load_entries(entries, current_time_ms)
            self.map_end_offset = self._last_snap_offset = snapshot.offset
            return
        self.map_end_offset = self._last_snap_offset = log_start_offset


def _to_snapshot(entry: ProducerStateEntry) -> ProducerSnapshotEntry:
    # Only the last batch survives a restart.
    first_offset = entry.current_txn_first_offset
    return ProducerSnapshotEntry(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_seq,
        last_offset=entry.last_data_offset,
        offset_delta=entry.last_offset_delta,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_first_offset=-1 if first_offset is None else first_offset,
    )


def entry_from_snapshot(snapshot: ProducerSnapshotEntry) -> ProducerStateEntry:
    """Returns the state of a producer as a snapshot has it."""
    first_offset = snapshot.current_txn_first_offset
    entry = ProducerStateEntry(
        snapshot.producer_id,
        snapshot.producer_epoch,
        snapshot.coordinator_epoch,
        snapshot.timestamp,
        first_offset if first_offset >= 0 else None,
    )
    if snapshot.last_offset >= 0:
        entry.add_batch(
            snapshot.producer_epoch,
            snapshot.last_sequence,
            snapshot.last_offset,
            snapshot.offset_delta,
            snapshot.timestamp,
        )
    return entry
