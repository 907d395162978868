"""Scripts of RemoteLogManagerMain on kafkalog: a log, a storage in memory, and the RemoteLogManager, whose tasks run on
demand.

`run` answers as the Java program does.  `KafkasRemoteLogManager` leaves out kafkalog's improvements on Kafka:

- The next run removes an unfinished upload, and finishes a deletion, whatever precedes it.
- A log never starts with a segment that is being deleted.
- Retention by size does not count segments that are deleted anyway.
- A log that leaves the tier forgets how far it was copied.

kafkalog forgets a deleted partition, and copies it from its start when it comes back.  The Java program reports the
deletion to Kafka's store, because a broker does not, and continues after the copied part.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafkalog._native.codec import batches as native
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.coordinator.state_log import StateBatch
from kafkalog.engine.files import LogDirFailureChannel
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import records
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.engine_source import EngineSource
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.remote.copying import RLMCopyTask, find_highest_remote_offset
from kafkalog.engine.remote.expiring import RLMExpirationTask
from kafkalog.engine.remote.metadata_manager import TopicBasedRemoteLogMetadataManager
from kafkalog.engine.remote.remote_log_manager import RemoteLogManager, RemoteLogManagerConfig
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
from kafkalog.engine.remote.storage import FoundSegment, IndexType, LogSegmentData
from kafkalog.errors import (
    KafkalogError,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.conformance import replay_partition
from tests.conformance.replay_rendering import state
from tests.conformance.replay_session import Op, Session

Answer = dict[str, Any]
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
PARTITION = TopicPartition("t", 0)
ID_PARTITION = TopicIdPartition(TOPIC_ID, PARTITION)
_INDEXES = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.TRANSACTION,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
)


class MemoryStorage:
    """MemoryStorage of the driver: a RemoteStorageManager that fails on demand."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, bytes, dict[IndexType, bytes]]] = {}
        self.copies: deque[str] = deque()
        self.deletions: deque[str] = deque()
        self.custom_bytes = -1

    @staticmethod
    def _fail(words: deque[str]) -> None:
        match words.popleft() if words else "":
            case "retriable":
                raise RetriableRemoteStorageException("not now")
            case "permanent":
                raise RemoteStorageException("refused")

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        self._fail(self.copies)
        indexes = {
            IndexType.OFFSET: Path(data.offset_index).read_bytes(),
            IndexType.TIMESTAMP: Path(data.time_index).read_bytes(),
            IndexType.PRODUCER_SNAPSHOT: Path(data.producer_snapshot_index).read_bytes(),
            IndexType.LEADER_EPOCH: data.leader_epoch_index,
        }
        if data.transaction_index is not None:
            indexes[IndexType.TRANSACTION] = Path(data.transaction_index).read_bytes()
        log = Path(data.log_segment).read_bytes()[: metadata.segment_size_in_bytes]
        self.kept[metadata.remote_log_segment_id.id] = metadata.start_offset, log, indexes
        return None if self.custom_bytes < 0 else b"\7" * self.custom_bytes

    def _of(self, metadata: RemoteLogSegmentMetadata) -> tuple[int, bytes, dict[IndexType, bytes]]:
        found = self.kept.get(metadata.remote_log_segment_id.id)
        if found is None:
            raise RemoteResourceNotFoundException(f"no segment {metadata.remote_log_segment_id}")
        return found

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        return self._of(metadata)[1][start:end]

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        found = self._of(metadata)[2].get(index_type)
        if found is None:
            raise RemoteResourceNotFoundException(f"no {index_type} of {metadata.remote_log_segment_id}")
        return found

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._fail(self.deletions)
        self.kept.pop(metadata.remote_log_segment_id.id, None)

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> None:
        return None

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        return metadata.segment_size_in_bytes

    def knows_log_size(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return True

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        return f"{metadata.remote_log_segment_id.id}, {index_type.value}"

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        return 1 << 20

    def is_there(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return metadata.remote_log_segment_id.id in self.kept

    def partitions(self) -> list[TopicIdPartition]:
        return [ID_PARTITION]

    def segments_of(self, partition: TopicIdPartition) -> list[FoundSegment]:
        raise NotImplementedError

    def metadata_of(self, found: FoundSegment) -> None:
        raise NotImplementedError

    def modified_s(self, key: str) -> float:
        raise NotImplementedError

    def delete_objects(self, keys: object) -> None:
        raise NotImplementedError

    def close(self) -> None: ...

    def shown(self) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for start, log, indexes in self.kept.values():
            files = [indexes.get(index_type) for index_type in _INDEXES]
            rows.append([start, _digest(log), *("" if data is None else _digest(data) for data in files)])
        return sorted(rows)


def _digest(data: bytes) -> str:
    return f"{len(data)} {hashlib.sha256(data).hexdigest()[:12]}"


class MemoryStateLog:
    """A StateLog: one partition of `__remote_log_metadata`."""

    place = "memory"
    epoch = 0
    batch_bytes_max = 1 << 20
    codec = 0

    def __init__(self) -> None:
        self._batches: list[StateBatch] = []

    @property
    def end(self) -> int:
        return len(self._batches)

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        yield from self._batches[start or 0 :]

    def append(self, batch: bytes) -> int:
        header = native.header_at(batch, 0)
        at = len(self._batches)
        self._batches.append(StateBatch(at, at + 1, -1, -1, list(records(batch, header))))
        return at

    def append_marker(self, marker: object, now_ms: int) -> int:
        raise NotImplementedError

    def flush(self) -> None: ...


class SettledMetadataManager(TopicBasedRemoteLogMetadataManager):
    """If segments begin at the same offset, the one that was known first comes first: Kafka's order is that of a hash
    map."""

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        known = super().list_remote_log_segments(partition)
        if leader_epoch is None:
            return known
        order = {each.remote_log_segment_id: number for number, each in enumerate(known)}
        found = super().list_remote_log_segments(partition, leader_epoch)
        return sorted(found, key=lambda each: (each.start_offset, order[each.remote_log_segment_id]))


class KafkasCopyTask(RLMCopyTask):
    """Leaves unfinished copies to retention. The log starts with the first segment of any state; nothing is flushed."""

    def _remove_rests(self) -> None: ...

    def _make_durable(self, log: UnifiedLog) -> None: ...

    def _log_start_of(self, log: UnifiedLog) -> int:
        for entry in log.leader_epoch_cache.entries:
            found = self._tools.metadata.list_remote_log_segments(self.topic_id_partition, entry.epoch)
            if found:
                return found[0].start_offset
        return log.local_log_start_offset


class KafkasExpirationTask(RLMExpirationTask):
    """Leaves half-deleted segments until their turn comes. Segments below the log's start count for the size, too."""

    @staticmethod
    def _counts(each: object, log: object) -> bool:
        return True

    @staticmethod
    def _half_deleted(every: object, doomed: object) -> list[RemoteLogSegmentMetadata]:
        return []


class KafkasRemoteLogManager(RemoteLogManager):
    copy_task_class = KafkasCopyTask
    expiration_task_class = KafkasExpirationTask

    def leave(self, partition: TopicIdPartition, log: UnifiedLog) -> None:
        """Keeps a log's knowledge of its copies after they are deleted."""
        highest = log.highest_offset_in_remote_storage
        super().leave(partition, log)
        log.highest_offset_in_remote_storage = highest


class Replay:
    """One script's world."""

    def __init__(self, script: dict[str, Any], work_dir: Path, manager_class: type[RemoteLogManager]) -> None:
        self.session = Session(work_dir)
        self.storage = MemoryStorage()
        events = MemoryStateLog()
        self.metadata = SettledMetadataManager(lambda _number, _create: events, self.session.clock, 1)
        limit = script.get("settings", {}).get("remote.log.metadata.custom.metadata.max.bytes", 128)
        self.manager = manager_class(
            self.storage,
            self.metadata,
            self.session.clock,
            self.session.metrics,
            log_dir=None,
            place="memory://tier",
            config=RemoteLogManagerConfig(custom_metadata_max_bytes=int(limit)),
        )
        self._start = self._recovery_point = 0

    @property
    def log(self) -> UnifiedLog:
        return self.session.logs["main"].log

    def answer(self, fields: dict[str, Any]) -> Answer:
        op = Op(fields)
        answer: Answer = {}
        try:
            self._run(op, answer)
        except KafkalogError as error:
            answer["error"] = type(error).__name__
        self.session.scheduler.tick()
        if self.session.find("main") is not None and op.name not in ("offset", "aborted", "fetch"):
            shown = state(self.log)
            shown["highest_remote"] = self.log.highest_offset_in_remote_storage
            shown["remote"] = self._remote()
            shown["stored"] = self.storage.shown()
            shown["metrics"] = self._metrics()
            answer["state"] = shown
        return answer

    def _run(self, op: Op, answer: Answer) -> None:
        match op.name:
            case "open":
                self._open(op)
            case "lead":
                self.manager.on_leadership_change(self.log)
            case "follow":
                self.manager.stop_partition(TOPIC_ID, self.log, delete=False)
                found = find_highest_remote_offset(self.metadata, ID_PARTITION, self.log)
                self.log.update_highest_offset_in_remote_storage(found.offset)
            case "begin_epoch":
                self.log.assign_epoch_start_offset(op["epoch"], self.log.log_end_offset)
            case "copy" | "expire":
                copying, expiring = self.manager.tasks_of(self.log) or (None, None)
                task = copying if op.name == "copy" else expiring
                if task is not None:
                    task.run(self.log)
            case "set_config":
                self.log.update_config(LogConfig.from_props(None, op["config"]))
                self.manager.on_leadership_change(self.log)
            case "offset":
                found_at = self.log.fetch_offset_by_timestamp(op["ts"])
                answer["found"] = (
                    None if found_at is None else [found_at.timestamp, found_at.offset, found_at.leader_epoch]
                )
            case "aborted":
                self._aborted(op, answer)
            case "fetch":
                if self._is_in_tier(op["offset"]):
                    self._fetch(op["offset"], answer)
                else:
                    answer["none"] = True
            case "storage":
                self.storage.copies += op.get("copies", [])
                self.storage.deletions += op.get("deletions", [])
                self.storage.custom_bytes = op.get("custom_bytes", self.storage.custom_bytes)
            case "stop":
                with suppress(RemoteStorageException):  # Kafka tells a handler of it
                    self.manager.stop_partition(TOPIC_ID, self.log, delete=op.get("delete", False))
            case "advance_clock":
                self.session.clock.advance(op["by_ms"])
            case _:
                result: dict[str, Any] = {}
                replay_partition.OPERATIONS[op.name](self.session, op, result)
                if "result" in result:
                    answer["result"] = result["result"]

    def _open(self, op: Op) -> None:
        is_clean = op.get("clean", True)
        if self.session.find("main") is not None:
            before = self.log
            self._start = before.log_start_offset
            if is_clean:
                before.prepare_active_segment_for_close()
                before.flush(True)
            self._recovery_point = before.recovery_point
            self.manager.stop_partition(TOPIC_ID, before, delete=False)
            self.session.drop_handles()
        config = LogConfig.from_props(None, op.get("config", {}))
        context = PartitionContext(
            self.session.path("logs") / "t-0",
            config,
            ProducerSettings(ProducerStateManagerConfig()),
            self.session.scheduler,
            self.session.clock,
            LogDirFailureChannel(),
            metrics=self.session.metrics,
        )
        context.has_remote_tier = True
        log = UnifiedLog.create(context, self._start, self._recovery_point, is_clean, TOPIC_ID)
        self.session.put("main", log)

    def _aborted(self, op: Op, answer: Answer) -> None:
        first = op["first"]
        epoch = self.log.leader_epoch_cache.epoch_for_offset(first) if self._is_in_tier(first) else None
        if epoch is None or self.metadata.remote_log_segment_metadata(ID_PARTITION, epoch, first) is None:
            answer["none"] = True
            return
        found = EngineSource(PARTITION, self.log, Life()).aborted_in(first, op["last"])
        answer["aborted"] = sorted([each.producer_id, each.first_offset] for each in {*found})

    def _is_in_tier(self, offset: int) -> bool:
        log = self.log
        return log.remote_log_enabled and log.log_start_offset <= offset < log.local_log_start_offset

    def _fetch(self, offset: int, answer: Answer) -> None:
        tier = self.log.tier
        assert tier is not None
        extent = tier.extent(offset)
        if extent is None:
            answer["empty"] = True
            return
        data = extent.read(extent.position, extent.end - extent.position)
        headers, _, _ = native.headers(data)
        first = next(header for header in headers if header.last_offset >= offset)
        batch = data[first.position : first.position + first.size]
        answer["read"] = [first.base_offset, len(batch), hashlib.sha256(batch).hexdigest()]

    def _remote(self) -> list[list[Any]]:
        return sorted(
            [
                each.start_offset,
                each.end_offset,
                each.state.name,
                [[epoch, start] for epoch, start in each.segment_leader_epochs],
                each.segment_size_in_bytes,
                each.max_timestamp_ms,
                each.event_timestamp_ms,
                -1 if each.custom_metadata is None else len(each.custom_metadata),
                each.is_txn_idx_empty,
            ]
            for each in self.metadata.list_remote_log_segments(ID_PARTITION)
        )

    def _metrics(self) -> dict[str, int]:
        of = self.manager.metrics_of("t")
        meters = ("copy_bytes", "copy_requests", "failed_copy_requests", "delete_requests", "failed_delete_requests")
        gauges = {
            "copy_lag_bytes": "RemoteCopyLagBytes",
            "copy_lag_segments": "RemoteCopyLagSegments",
            "delete_lag_bytes": "RemoteDeleteLagBytes",
            "delete_lag_segments": "RemoteDeleteLagSegments",
            "metadata_count": "RemoteLogMetadataCount",
            "size_bytes": "RemoteLogSizeBytes",
        }
        counted = {name: getattr(of, name)._meters[0].count for name in meters}
        return counted | {name: of.value(gauge) for name, gauge in gauges.items()}

    def close(self) -> None:
        self.session.drop_handles()
        self.manager.close()


def run(
    script: dict[str, Any], work_dir: Path, manager_class: type[RemoteLogManager] = KafkasRemoteLogManager
) -> list[Answer]:
    replay = Replay(script, work_dir, manager_class)
    try:
        return [replay.answer(op) for op in script["ops"]]
    finally:
        replay.close()
