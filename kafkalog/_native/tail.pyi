from collections.abc import Sequence
from typing import Protocol, final, type_check_only

from typing_extensions import Buffer

from kafkalog._native.validation import ClientBatch

@type_check_only
class Channel(Protocol):
    def pwritev(self, buffers: Sequence[bytes | memoryview], position: int, /) -> int: ...

@type_check_only
class RecordsFile(Protocol):
    """What of a .log file is needed: its logical size, the file to write to, and a way back from a failed write."""

    size: int
    @property
    def channel(self) -> Channel: ...
    def undo_write(self, size: int, /) -> None: ...

@type_check_only
class IndexFile(Protocol):
    def pwrite(self, data: bytes, position: int, /) -> None: ...

@type_check_only
class OffsetEntries(Protocol):
    """An offset index.  Entries go straight to `channel` while it is open and `behind` is 0."""

    entries: int
    last_offset: int
    dirty: bool
    @property
    def channel(self) -> IndexFile | None: ...
    @property
    def behind(self) -> int: ...
    @property
    def max_entries(self) -> int: ...
    def append(self, offset: int, position: int, /) -> None: ...

@type_check_only
class TimeEntries(Protocol):
    @property
    def entries(self) -> int: ...
    @property
    def max_entries(self) -> int: ...
    @property
    def last_entry(self) -> tuple[int, int]: ...
    def maybe_append(self, timestamp: int, offset: int, /) -> None: ...

@final
class SegmentTail:
    bytes_since_last_index_entry: int
    offset_of_max_timestamp: int
    max_timestamp: int | None
    first_timestamp: int | None
    log: RecordsFile
    offset_index: OffsetEntries | None
    time_index: TimeEntries | None
    def __init__(self, base_offset: int, index_interval_bytes: int, roll_jitter_ms: int, log: RecordsFile) -> None: ...
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
