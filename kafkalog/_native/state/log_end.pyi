from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar, final

from typing_extensions import Buffer, disjoint_base

from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.encode import EncodedBatch
from kafkalog._native.codec.validation import AppendInfo, OrdinaryBatch, OrdinaryRules
from kafkalog._native.state.producers import ProducerEntry
from kafkalog._native.state.tail import SegmentTail

_Info = TypeVar("_Info", bound=AppendInfo)

OPEN: Final[int]
CLOSING: Final[int]
CLOSED: Final[int]
FORKED: Final[int]

class _Waiter(Protocol):
    def release(self) -> object: ...

@final
class PartitionLock:
    busy: bool
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: object) -> None: ...
    def is_mine(self) -> bool: ...

@disjoint_base
class LogEnd:
    next_offset_metadata: Any
    recovery_point: int
    life: int
    ordinary_rules: OrdinaryRules | None
    segments: Any
    clock: Any
    log_dir_failure_channel: Any

@final
class ProducerChange:
    def __init__(
        self,
        entries: Sequence[tuple[ProducerEntry, Sequence[Any]]],
        completed: Sequence[Any],
        aborted: bytes | None = None,
        last_aborted: int | None = None,
    ) -> None: ...
    @property
    def aborted(self) -> bytes | None: ...

@disjoint_base
class Watermarks:
    local_log: Any
    producer_state_manager: Any
    high_watermark_metadata: Any
    first_unstable_offset_metadata: Any
    @property
    def first_unstable_is_rough(self) -> bool: ...
    log_start_offset: int
    high_watermark_follows: bool
    waiters: list[_Waiter]
    lock: PartitionLock
    unfinished: Any
    leader_epoch_cache: Any
    def commit(
        self,
        tail: SegmentTail,
        buffers: tuple[Buffer, ...],
        headers: list[BatchHeader],
        last_offset: int,
        continued: ProducerEntry | None,
        change: ProducerChange | None,
    ) -> int: ...
    def append_ordinary_row(self, row: tuple[Any, ...], batch_bytes: int) -> int: ...
    def append_ordinary(
        self,
        records: Buffer | EncodedBatch,
        leader_epoch: int,
        kind: type[_Info],
        record_validation_stats: object,
        of_client: bool = True,
    ) -> _Info | OrdinaryBatch | None: ...
    def commit_ordinary(
        self, batch: OrdinaryBatch, leader_epoch: int, kind: type[_Info], record_validation_stats: object
    ) -> _Info | None: ...
    def set_high_watermark(self, metadata: Any) -> None: ...
    def wake_waiters(self) -> None: ...
