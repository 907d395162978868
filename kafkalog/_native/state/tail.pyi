from typing import Final, final

from typing_extensions import Buffer, disjoint_base

from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.state.held import Held
from kafkalog._native.state.search import IndexEnd

WRITTEN: Final[int]
INDEX_REFUSES: Final[int]
FILE_AWAY: Final[int]

@disjoint_base
class RecordsEnd(Held):
    size: int
    def cut(self, size: int) -> None: ...

@disjoint_base
class TransactionsEnd(Held):
    end: int
    last_offset: int | None
    def cut(self, end: int) -> None: ...

@final
class SegmentTail:
    created_ms: int
    bytes_since_last_index_entry: int
    largest_timestamp: tuple[int, int] | None
    def learn_largest_timestamp(self, found: tuple[int, int]) -> tuple[int, int]: ...
    first_timestamp: int | None
    offset_index: IndexEnd | None
    time_index: IndexEnd | None
    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int,
        roll_jitter_ms: int,
        created_ms: int,
        log: RecordsEnd,
        transactions: TransactionsEnd,
    ) -> None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def roll_jitter_ms(self) -> int: ...
    @property
    def log(self) -> RecordsEnd: ...
    @property
    def transactions(self) -> TransactionsEnd: ...
    @property
    def max_timestamp(self) -> int | None: ...
    @property
    def offset_of_max_timestamp(self) -> int: ...
    @property
    def is_known(self) -> bool: ...
    def time_waited_for_roll(self, now: int, timestamp: int) -> int: ...
    def must_roll(
        self,
        max_segment_ms: int,
        max_segment_bytes: int,
        max_timestamp: int,
        max_offset: int,
        messages_bytes: int,
        now: int,
    ) -> bool: ...
    def append(self, buffers: tuple[Buffer, ...], headers: list[BatchHeader]) -> int: ...
