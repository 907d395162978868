from collections.abc import Sequence
from typing import Any, Final, final

from typing_extensions import Buffer

from kafkalog._native.codec.arrow import RecordColumns

OK: Final[int]
NO_MEMORY: Final[int]
NO_OBJECT: Final[int]
ENDS_EARLY: Final[int]
BAD_BYTE: Final[int]
BAD_TEXT: Final[int]
BAD_ESCAPE: Final[int]
TOO_DEEP: Final[int]
BYTES_LEFT: Final[int]
WRONG_TYPE: Final[int]
OUT_OF_RANGE: Final[int]
HAS_FRACTION: Final[int]
BAD_TIME: Final[int]
TOO_FINE: Final[int]
LONE_SURROGATE: Final[int]

@final
class JsonSchema:
    def __init__(self, fields: Sequence[tuple[str, str, tuple[Any, ...]]]) -> None: ...
    def path(self, number: int) -> str: ...
    def columns(
        self,
        data: Buffer,
        offsets: Buffer,
        validity: Buffer | None = None,
        first_row: int = 0,
        *,
        null_errors: bool = False,
        odd_rows: Buffer | None = None,
    ) -> tuple[RecordColumns | None, int, int, int, int, int]: ...
