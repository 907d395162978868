from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

from kafkalog._native.codec.arrow import RecordColumns
from kafkalog._native.codec.keys import KeyFilter
from kafkalog._native.codec.records import Record

NEEDS_PAYLOAD: Final[int]
FULL: Final[int]

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
        timestamp_min: int | None = None,
        timestamp_max: int | None = None,
        wanted_keys: KeyFilter | None = None,
        rows_max: int | None = None,
        bytes_max: int | None = None,
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
        max_body: int = ...,
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
        max_body: int = ...,
        max_payload: int = ...,
    ) -> tuple[int, int, int, int, int]: ...
    def append_records(self, records: list[Record]) -> int: ...
    def finish(self) -> RecordColumns: ...
