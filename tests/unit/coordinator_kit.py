"""Coordinators without a disk: logs and partitions in memory, which a crash truncates where the test says.

`Disk` notes every append and every flush of all logs in one journal.  `crashed(n)` is the state that a kill -9 after
the n-th append leaves.  `lost(cuts)` is the state after a power loss: each log has all flushed records and some of the
others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kafkalog._native.codec.batches import header_at
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.state_log import StateBatch, StateLog, TransactionMarker, parsed_batch
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format import codecs
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.errors import InvalidProducerEpochException

NOW_MS = 1_700_000_000_000
COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


@dataclass
class MemoryLog:
    """A StateLog; `batches` as they would lie on the disk."""

    name: str
    disk: Disk
    batches: list[bytes] = field(default_factory=list)
    flushed: int = 0
    epoch: int = 0
    batch_bytes_max: int = 1_048_588
    codec: int = codecs.NONE

    @property
    def place(self) -> str:
        return f"/memory/{self.name}"

    @property
    def end(self) -> int:
        return header_at(self.batches[-1]).next_offset if self.batches else 0

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        for batch in list(self.batches):
            if start is None or header_at(batch).last_offset >= start:
                yield parsed_batch(batch)

    def append(self, batch: bytes) -> int:
        at = self.end
        self.disk.before_append(self.name)
        self.batches.append(struct.pack(">q", at) + batch[8:])  # outside of what the CRC covers
        self.disk.journal.append((self.name, len(self.batches)))
        self.disk.after_append(self.name)
        return at

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> int:
        return self.append(marker.batch(now_ms))

    def flush(self) -> None:
        self.flushed = len(self.batches)


@dataclass
class DataPartition:
    """A partition of a topic: rows are (kind, producer id, epoch, value); the producers' epochs follow from them."""

    log: MemoryLog
    rows: list[tuple[str, int, int, str]] = field(default_factory=list)

    def _epoch(self, producer_id: int) -> int:
        return max((epoch for _, pid, epoch, _ in self.rows if pid == producer_id), default=-1)

    def is_open(self, producer_id: int) -> bool:
        mine = [kind for kind, pid, _, _ in self.rows if pid == producer_id]
        return bool(mine) and mine[-1] == "data"

    def append(self, holder: ProducerIdAndEpoch, value: str) -> None:
        if holder.epoch < self._epoch(holder.producer_id):
            raise InvalidProducerEpochException(f"{holder} is fenced")
        self.log.disk.before_append(self.log.name)
        self.rows.append(("data", *holder, value))
        self._noted()

    def end(self, marker: TransactionMarker) -> None:
        known, open_ = self._epoch(marker.producer_id), self.is_open(marker.producer_id)
        late = marker.producer_epoch < known
        if marker.transaction_version >= 2 and open_ and marker.producer_epoch <= known:
            late = True
        if late:
            raise InvalidProducerEpochException(f"{marker} after {known}")
        self.log.disk.before_append(self.log.name)
        self.rows.append((marker.kind.name, marker.producer_id, marker.producer_epoch, ""))
        self._noted()

    def _noted(self) -> None:
        self.log.batches.append(b"")
        self.log.disk.journal.append((self.log.name, len(self.log.batches)))
        self.log.disk.after_append(self.log.name)

    def outcomes(self) -> dict[str, str]:
        """The outcome of each value: COMMIT, ABORT or "open"."""
        found: dict[str, str] = {}
        open_values: dict[int, list[str]] = {}
        for kind, pid, _, value in self.rows:
            if kind == "data":
                open_values.setdefault(pid, []).append(value)
                found[value] = "open"
            else:
                found.update(dict.fromkeys(open_values.pop(pid, ()), kind))
        return found


class Disk:
    """All logs of a store, by name."""

    def __init__(self) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.data: dict[TopicPartition, DataPartition] = {}
        self.journal: list[tuple[str, int]] = []
        self.kept: dict[str, int] = {}  # rows from before the journal's first entry
        self.before_append: Callable[[str], object] = lambda name: None
        self.after_append: Callable[[str], object] = lambda name: None

    def log(self, name: str) -> MemoryLog:
        return self.logs.setdefault(name, MemoryLog(name, self))

    def partition(self, partition: TopicPartition) -> DataPartition:
        if partition not in self.data:
            self.data[partition] = DataPartition(self.log(str(partition)))
        return self.data[partition]

    def lost(self, kept: Mapping[str, int]) -> Disk:
        """A disk with the first batches of each log alone."""
        left = Disk()
        left.kept = dict(kept)
        for name, log in self.logs.items():
            count = kept.get(name, 0)
            left.logs[name] = MemoryLog(name, left, log.batches[:count], count, log.epoch, log.batch_bytes_max)
        for partition, data in self.data.items():
            name = str(partition)
            left.data[partition] = DataPartition(left.logs[name], data.rows[: kept.get(name, 0)])
        return left

    def crashed(self, appends: int) -> Disk:
        """The disk that a process leaves if it dies after so many appends."""
        kept = dict(self.kept)
        for name, count in self.journal[:appends]:
            kept[name] = count
        return self.lost(kept)


def producer_id_for(name: str, previous: int) -> int:
    """Producer ids of a transactional id, far from those of others."""
    return 1000 * int.from_bytes(name.encode()[:5], "big") if previous < 0 else previous + 1


class Store:
    """Both coordinators over a disk, as a store puts them together."""

    def __init__(
        self,
        disk: Disk,
        clock: ManualClock | None = None,
        *,
        version: TransactionVersion = TransactionVersion.TV_2,
        partition_count: int = 3,
        offsets_partition_count: int = 2,
        syncs: bool = True,
    ) -> None:
        self.disk = disk
        self.clock = clock or ManualClock(NOW_MS)
        self.syncs = syncs
        self.gone: set[TopicPartition] = set()
        self._offsets: dict[TopicPartition, GroupOffsets] = {}
        self.coordinator = TransactionCoordinator(
            self.state_log,
            partition_count,
            self,
            producer_id_for,
            self.clock,
            offsets_partition_count=offsets_partition_count,
            settings=TransactionSettings(transaction_version=version),
        )

    def state_log(self, number: int, create: bool) -> StateLog | None:
        name = f"{TRANSACTION_STATE_TOPIC}-{number}"
        return self.disk.log(name) if create or name in self.disk.logs else None

    def offsets(self, partition: TopicPartition) -> GroupOffsets:
        if partition not in self._offsets:
            self._offsets[partition] = GroupOffsets(self.disk.log(str(partition)), self.clock)
        return self._offsets[partition]

    # Markers
    def write(self, partition: TopicPartition, marker: TransactionMarker) -> None:
        if partition in self.gone:
            return
        if partition.topic == GROUP_METADATA_TOPIC:
            self.offsets(partition).end_transaction(marker)
        else:
            self.disk.partition(partition).end(marker)

    def flush(self, partitions: Collection[TopicPartition]) -> None:
        for each in partitions:
            if str(each) in self.disk.logs:
                self.disk.log(str(each)).flush()

    def reopen(self) -> None:
        """Does the same as opening a store: loads, finishes decided transactions, aborts transactions that nobody
        continues."""
        self.coordinator.load(range(self.coordinator.partition_count))
        self.coordinator.finish_prepared()
        for each in self.coordinator.list_transactions(states={"Ongoing"}):
            self.coordinator.abort(each.transactional_id)
