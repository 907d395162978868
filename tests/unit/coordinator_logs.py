"""Both coordinators over real logs, in one directory, combined as in a store."""

from __future__ import annotations

import bisect
from pathlib import Path

from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import LogMarkers, UnifiedStateLog
from kafkalog.engine.coordinator.state_log import StateLog
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.files import OS_FILES, Files, LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from tests.unit.coordinator_kit import NOW_MS, producer_id_for
from tests.unit.log_kit import batch


class LogStore:
    """`root/topic-n` is a partition; made when it is first used."""

    def __init__(
        self,
        root: Path,
        *,
        version: TransactionVersion = TransactionVersion.TV_2,
        syncs: bool = False,
        verifies: bool = False,
        files: Files = OS_FILES,
        overrides: dict[str, str] | None = None,
        partition_count: int = 2,
    ) -> None:
        self.root = root
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.syncs = syncs
        self._overrides = overrides or {}
        self._verifies = verifies
        self._channel = LogDirFailureChannel()
        self._offsets: dict[TopicPartition, GroupOffsets] = {}
        self.gone: set[TopicPartition] = set()
        self.markers = LogMarkers(self.alive, self.offsets_of, self.clock, syncs=syncs)
        self.coordinator = TransactionCoordinator(
            self.state_log,
            partition_count,
            self.markers,
            producer_id_for,
            self.clock,
            offsets_partition_count=partition_count,
            settings=TransactionSettings(transaction_version=version),
        )

    def log(self, partition: TopicPartition) -> UnifiedLog:
        if partition not in self.logs:
            producers = ProducerSettings(ProducerStateManagerConfig(transaction_verification_enabled=self._verifies))
            context = PartitionContext(
                str(self.root / str(partition)), LogConfig.from_props(None, self._overrides), producers,
                ManualScheduler(self.clock), self.clock, self._channel, files=self.files,
            )  # fmt: skip
            context.has_one_replica = True
            self.logs[partition] = UnifiedLog.create(context, 0, 0, False)
            self.logs[partition].flushes_rolls = self.syncs
        return self.logs[partition]

    def existing(self, partition: TopicPartition) -> UnifiedLog | None:
        there = partition in self.logs or (self.root / str(partition)).exists()
        return self.log(partition) if there else None

    def alive(self, partition: TopicPartition) -> UnifiedLog | None:
        return None if partition in self.gone else self.log(partition)

    def state_log(self, number: int, create: bool) -> StateLog | None:
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, number)
        if not create and self.existing(partition) is None:
            return None
        return UnifiedStateLog(self.log(partition), syncs=self.syncs)

    def offsets(self, partition: TopicPartition) -> GroupOffsets:
        if partition not in self._offsets:
            self._offsets[partition] = GroupOffsets(UnifiedStateLog(self.log(partition), syncs=self.syncs), self.clock)
        return self._offsets[partition]

    def offsets_of(self, partition: TopicPartition) -> GroupOffsets | None:
        return self.offsets(partition) if partition.topic == GROUP_METADATA_TOPIC else None

    def write(self, partition: TopicPartition, holder: ProducerIdAndEpoch, value: bytes) -> None:
        """A record of the holder's transaction."""
        log = self.log(partition)
        entry = log.producer_state_manager.last_entry(holder.producer_id)
        follows = entry is not None and entry.producer_epoch == holder.epoch and entry.last_seq >= 0
        sequence = entry.last_seq + 1 if follows and entry is not None else 0
        log.append_as_leader(
            batch(1, ts=self.clock.milliseconds(), value=value, producer_id=holder.producer_id,
                  producer_epoch=holder.epoch, sequence=sequence, transactional=True),
            log.latest_epoch or 0,
        )  # fmt: skip

    def committed(self, partition: TopicPartition) -> list[bytes]:
        """The records that a reader of committed records sees."""
        log = self.existing(partition)
        if log is None:
            return []
        stable = log.last_stable_offset
        aborted: dict[int, list[tuple[int, int]]] = {}
        for each in log.collect_aborted_transactions(log.log_start_offset, stable):
            aborted.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
        seen = []
        for one in UnifiedStateLog(log, syncs=False).read():
            stretches = aborted.get(one.producer_id, [])
            at = bisect.bisect_right(stretches, (one.base_offset, 1 << 62))  # after the last one that begins before it
            gone = at > 0 and one.base_offset <= stretches[at - 1][1]
            if one.base_offset < stable and not gone:
                seen += [bytes(record.value or b"") for record in one.records]
        return seen

    def reopen(self) -> None:
        """Does the same as opening a store."""
        self.coordinator.load(range(self.coordinator.partition_count))
        self.coordinator.finish_prepared()
        for each in self.coordinator.list_transactions(states={"Ongoing"}):
            self.coordinator.abort(each.transactional_id)

    def close(self) -> None:
        for log in self.logs.values():
            log.shut_down()

    def after_a_kill(self) -> LogStore:
        """Another process's store on the same directory, after this one has died."""
        for log in self.logs.values():
            log.close_quietly()
        return LogStore(
            self.root, version=self.coordinator.settings.transaction_version, syncs=self.syncs, files=self.files,
            verifies=self._verifies, overrides=self._overrides,
        )  # fmt: skip
