"""Small values that are passed between the parts of a partition's log: the parameters and results of an append.

Field names are those of Kafka's classes of the same names, in snake_case (`org.apache.kafka.storage.internals.log`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec.validation import AppendInfo
from kafkalog.engine.format.batch import LOG_APPEND_TIME
from kafkalog.engine.format.records import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from kafkalog.config import LogConfig

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
UNKNOWN_OFFSET = -1

CURRENT_MAGIC = 2

# Transaction versions (KIP-890): -1 if the caller does not say.
TV_UNKNOWN = -1


class AppendOrigin(enum.Enum):
    """Who appends; this decides which checks apply."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft_leader"


class OffsetAndEpoch(NamedTuple):
    """An offset and the leader epoch that it belongs to."""

    offset: int
    epoch: int


class LastRecord(NamedTuple):
    """The last data record of a producer (None if unknown), and the producer's epoch."""

    last_data_offset: int | None
    producer_epoch: int


class LeaderHwChange(enum.Enum):
    """The effect of an append on the high watermark."""

    INCREASED = "INCREASED"
    SAME = "SAME"
    NONE = "NONE"


class FetchIsolation(enum.Enum):
    """The end up to which a read may see."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


class LogStartOffsetIncrementReason(enum.Enum):
    LEADER_OFFSET_INCREMENTED = "leader offset increment"
    SEGMENT_DELETION = "segment deletion"
    CLIENT_RECORD_DELETION = "client delete records request"
    SNAPSHOT_GENERATED = "snapshot generated"


@dataclass(slots=True)
class RecordValidationStats:
    """The cost of validation: scratch memory in bytes, records converted, nanoseconds."""

    temporary_memory_bytes: int = 0
    num_records_converted: int = 0
    conversion_time_nanos: int = 0


@dataclass(slots=True, frozen=True)
class RecordError:
    """One refused record: its index in the batch, and the reason."""

    batch_index: int
    message: str | None = None


class TopicRules(NamedTuple):
    """The topic settings that apply to appended batches; times in milliseconds.

    If `target_codec` (an id, see kafkalog.engine.format.codecs) is None, each batch keeps its codec. If `level` is
    None, the codec's default is used. `max_record_body_bytes` limits each record of a compressed batch;
    `max_message_bytes` limits what is written, and so what an uncompressed topic needs to decompress.
    """

    target_codec: int | None
    level: int | None
    compacted: bool
    create_time: bool
    before_max_ms: int
    after_max_ms: int
    max_record_body_bytes: int = MAX_RECORD_BYTES
    max_message_bytes: int = 0

    @classmethod
    def of(cls, config: LogConfig) -> TopicRules:
        codec = config.compression_codec
        return cls(
            codec,
            None if codec is None else config.compression_level,
            config.compact,
            config.message_timestamp_type != LOG_APPEND_TIME,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.max_decompressed_message_bytes,
            config.max_message_bytes,
        )


APPEND_INFO_FIELDS = (
    "first_offset",
    "last_offset",
    "last_leader_epoch",
    "max_timestamp",
    "log_append_time",
    "log_start_offset",
    "source_compression",
    "valid_bytes",
    "last_offset_of_first_batch",
    "record_validation_stats",
    "record_errors",
)


class LogAppendInfo(AppendInfo):
    """The result of an append. `first_offset` and `last_offset` are -1 if nothing was appended.

    `source_compression`: codec id, see kafkalog.engine.format.codecs. Times are in ms; `log_append_time` is -1 if the
    producer's timestamps stay. `valid_bytes`: the bytes of the batches. `record_errors`: one RecordError for each
    refused record.
    """

    __slots__ = ()

    leader_hw_change = LeaderHwChange.NONE

    @property
    def first_or_last_offset_of_first_batch(self) -> int:
        return self.first_offset if self.first_offset >= 0 else self.last_offset_of_first_batch

    @property
    def num_messages(self) -> int:
        if self.first_offset >= 0 and self.last_offset >= 0:
            return self.last_offset - self.first_offset + 1
        return 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogAppendInfo):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in APPEND_INFO_FIELDS)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return (
            f"LogAppendInfo(firstOffset={self.first_offset}, lastOffset={self.last_offset}, "
            f"maxTimestamp={self.max_timestamp}, logAppendTime={self.log_append_time}, "
            f"logStartOffset={self.log_start_offset}, validBytes={self.valid_bytes}, "
            f"recordErrors={self.record_errors})"
        )
