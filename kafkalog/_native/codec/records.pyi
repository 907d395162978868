from collections.abc import Iterable
from typing import Final

from typing_extensions import Buffer, disjoint_base

OK: Final[int]
NEGATIVE_COUNT: Final[int]
PREMATURE_END: Final[int]
LONG_VARINT: Final[int]
NEGATIVE_SIZE: Final[int]
SIZE_OVER_LIMIT: Final[int]
SHORT_STREAM: Final[int]
SHORT_BUFFER: Final[int]
BAD_STRUCTURE: Final[int]
NEGATIVE_HEADER_COUNT: Final[int]
EXCESS_HEADER_COUNT: Final[int]
NEGATIVE_HEADER_KEY: Final[int]
SIZE_MISMATCH: Final[int]
SHORT_SKIP: Final[int]
BYTES_LEFT: Final[int]
BAD_BOUNDS: Final[int]
BUFFER: Final[int]
STREAM: Final[int]
SKIP: Final[int]

@disjoint_base
class Record:
    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        sequence: int = -1,
        magic: int = 2,
        size: int = 0,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...
    @property
    def sequence(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def read_records(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    base_sequence: int,
    streaming: bool,
    max_body: int,
) -> tuple[list[Record], int, int, int, int]: ...
def record_size(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[bytes, bytes | None], ...],
) -> int: ...
def write_records(
    rows: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]],
) -> bytes: ...
