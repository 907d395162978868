import sys
from collections.abc import Sequence
from typing import Any, Final, Never, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from kafkalog._native.codec.collected import Collected
from kafkalog._native.codec.partitioner import StickyPartition

BAD_TIMESTAMP: Final[int]
BAD_OFFSET: Final[int]
BAD_COLUMN: Final[int]
TOO_LONG: Final[int]

@final
class EncodedBatch:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

    @property
    def data(self) -> bytes: ...
    @property
    def min_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def has_keys(self) -> bool: ...

@disjoint_base
class ColumnEncoder:
    def __init__(
        self,
        timestamps: NDArray[np.int64],
        keys: Sequence[Any] | None = None,
        values: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        offsets: NDArray[np.int64] | None = None,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes_bound(self) -> int: ...
    def offset_at(self, row: int) -> int | None: ...
    @staticmethod
    def from_rows(records: Any, now_ms: int) -> ColumnEncoder | None: ...
    @staticmethod
    def from_collected(given: Collected, start: int = 0, stop: int = -1) -> ColumnEncoder: ...
    @staticmethod
    def from_arrow(batch: Any) -> ColumnEncoder: ...
    def by_partition(
        self,
        partitions: int,
        sticky: StickyPartition,
        available: Sequence[int] | None = None,
        wanted: NDArray[np.int32] | None = None,
    ) -> dict[int, ColumnEncoder]: ...
    def encode(
        self,
        start: int = 0,
        stop: int = -1,
        max_bytes: int = ...,
        *,
        base_timestamp: int | None = None,
        base_offset: int | None = None,
    ) -> tuple[bytes, int, int, int, int]: ...
    def packed(self, payload: bytes | None, batch: bytes) -> EncodedBatch: ...
    def encode_batch(
        self,
        start: int = 0,
        stop: int = -1,
        max_bytes: int = ...,
        *,
        base_offset: int = 0,
        attributes: int = 0,
        log_append_time: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
    ) -> tuple[EncodedBatch | None, int, int]: ...
