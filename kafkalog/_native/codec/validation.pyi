from typing import Any, Final, Never, TypeVar, final

from typing_extensions import Buffer, disjoint_base

from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.encode import EncodedBatch

_Info = TypeVar("_Info", bound=AppendInfo)

NO_KEY: Final[int]
TIMESTAMP_OUT_OF_RANGE: Final[int]
CLAIMS_APPEND_TIME: Final[int]

@final
class RecordWalk:
    @property
    def verdict(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def expected(self) -> int: ...
    @property
    def found(self) -> int: ...
    @property
    def missing_keys(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def first_timestamp(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def sequential(self) -> bool: ...
    @property
    def canonical(self) -> bool: ...
    @property
    def refusals(self) -> list[tuple[int, int, int, int, int, int]] | None: ...
    @property
    def record_count(self) -> int: ...

def walk_records(
    data: Buffer,
    position: int,
    payload: Buffer | None,
    reader: int,
    need_key: bool,
    create_time: bool,
    now: int,
    before_max: int,
    after_max: int,
    max_record_bytes: int = ...,
    canonical: bool = True,
) -> RecordWalk: ...

@disjoint_base
class AppendInfo:
    first_offset: int
    last_offset: int
    last_leader_epoch: int | None
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    source_compression: int
    valid_bytes: int
    last_offset_of_first_batch: int
    record_validation_stats: Any
    record_errors: list[Any]
    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        last_leader_epoch: int | None,
        max_timestamp: int,
        log_append_time: int,
        log_start_offset: int,
        source_compression: int,
        valid_bytes: int,
        last_offset_of_first_batch: int,
        record_validation_stats: Any,
    ) -> None: ...

@final
class OrdinaryBatch(BatchHeader):
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def payload(self) -> memoryview: ...
    @property
    def topic(self) -> OrdinaryRules: ...
    @property
    def record_bytes(self) -> int: ...
    def check_payload(self, payload: Buffer, max_record_bytes: int) -> bool: ...
    def date(self, now: int) -> None: ...
    def place(self, next_offset: int, leader_epoch: int) -> tuple[bytes] | tuple[bytes, memoryview]: ...
    def told(self, kind: type[_Info], log_start_offset: int, record_validation_stats: object) -> _Info: ...

@final
class OrdinaryRules:
    def __init__(
        self,
        size_max: int,
        need_key: bool,
        before_max_ms: int,
        after_max_ms: int,
        codec: int = -1,
        max_segment_ms: int = ...,
        segment_bytes: int = ...,
        flush_messages: int = ...,
        create_time: bool = True,
    ) -> None: ...
    def admit(self, data: Buffer | EncodedBatch, now: int, of_client: bool = True) -> OrdinaryBatch | None: ...
    @property
    def create_time(self) -> bool: ...
    @property
    def codec(self) -> int: ...
    @property
    def max_segment_ms(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def flush_messages(self) -> int: ...
    @property
    def size_max(self) -> int: ...
    @property
    def need_key(self) -> bool: ...
    @property
    def before_max_ms(self) -> int: ...
    @property
    def after_max_ms(self) -> int: ...
