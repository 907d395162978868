from typing import Any, final

from typing_extensions import Buffer, disjoint_base

from kafkalog._native.validation import ClientBatch

@disjoint_base
class RecordsEnd:
    size: int
    channel: Any

@disjoint_base
class IndexEnd:
    entries: int
    max_entries: int
    last_offset: int
    last_timestamp: int
    behind: int
    dirty: bool
    channel: Any

@final
class SegmentTail:
    bytes_since_last_index_entry: int
    offset_of_max_timestamp: int
    max_timestamp: int | None
    first_timestamp: int | None
    log: RecordsEnd
    offset_index: IndexEnd | None
    time_index: IndexEnd | None
    def __init__(self, base_offset: int, index_interval_bytes: int, roll_jitter_ms: int, log: RecordsEnd) -> None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def roll_jitter_ms(self) -> int: ...
    def append(
        self,
        batch: ClientBatch,
        data: Buffer,
        next_offset: int,
        leader_epoch: int,
        segment_ms: int,
        segment_bytes: int,
    ) -> int: ...
