from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

from kafkalog._native.records import Record

OK: Final[int]
NEEDS_PAYLOAD: Final[int]
FULL: Final[int]
BAD_TABLE: Final[int]
BAD_TIMESTAMP: Final[int]
BAD_OFFSET: Final[int]
BAD_COLUMN: Final[int]
TOO_LONG: Final[int]

@disjoint_base
class ColumnBuilder:
    def __init__(
        self,
        keys: bool = True,
        values: bool = True,
        headers: bool = True,
        *,
        timestamp_types: bool = False,
        null_empty_headers: bool = False,
        offset_min: int | None = None,
        offset_max: int | None = None,
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    def append_payload(
        self,
        payload: Buffer,
        count: int,
        base_offset: int,
        base_timestamp: int,
        log_append_time: int | None = None,
        *,
        streaming: bool = True,
        max_body: int = 2147483639,
    ) -> tuple[int, int, int, int]: ...
    def append_table(
        self,
        data: Buffer,
        table: NDArray[np.void],
        start_row: int = 0,
        *,
        base_position: int = 0,
        skip: Buffer | None = None,
        skip_control: bool = False,
        decoders: tuple[Callable[..., bytes], Callable[..., bytes]] | None = None,
        max_body: int = 2147483639,
        max_payload: int = 2147483639,
    ) -> tuple[int, int, int, int, int]: ...
    def append_records(self, records: list[Record]) -> int: ...
    def finish(self) -> RecordColumns: ...

@disjoint_base
class Memory: ...

@disjoint_base
class Column:
    def __init__(
        self,
        name: str,
        format: str,
        length: int,
        null_count: int,
        buffers: list[Memory | None],
        children: list[Column],
        nullable: bool,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def null_count(self) -> int: ...
    @property
    def nullable(self) -> bool: ...
    @property
    def validity(self) -> NDArray[np.uint8] | None: ...
    @property
    def offsets(self) -> NDArray[np.int32]: ...
    @property
    def data(self) -> NDArray[Any]: ...
    def child(self, i: int) -> Column: ...
    def to_list(self) -> list[bytes | None]: ...

@disjoint_base
class RecordColumns:
    def __init__(self, root: Column) -> None: ...
    def __len__(self) -> int: ...
    def column(self, name: str) -> Column | None: ...
    @property
    def column_names(self) -> list[str]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def timestamps(self) -> NDArray[np.int64]: ...
    @property
    def timestamp_types(self) -> NDArray[np.int32] | None: ...
    @property
    def keys(self) -> Column | None: ...
    @property
    def values(self) -> Column | None: ...
    @property
    def headers(self) -> Column | None: ...
    @property
    def nbytes(self) -> int: ...
    def header_lists(self) -> list[list[tuple[str, bytes | None]]]: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

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
    def offset_at(self, row: int) -> int | None: ...
    @staticmethod
    def from_arrow(batch: Any) -> ColumnEncoder: ...
    def encode(
        self,
        start: int = 0,
        stop: int = -1,
        max_bytes: int = 0x7FFFFFFF,
        *,
        base_timestamp: int | None = None,
        base_offset: int | None = None,
    ) -> tuple[bytes, int, int, int, int]: ...
    def encode_batch(
        self,
        start: int = 0,
        stop: int = -1,
        max_bytes: int = 0x7FFFFFFF,
        *,
        base_offset: int = 0,
        attributes: int = 0,
        log_append_time: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
    ) -> tuple[bytes, int, int]: ...
