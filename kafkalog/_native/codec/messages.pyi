from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, final

from typing_extensions import Buffer

ARRAY_LENGTH_MAX: Final[int]
TAGGED_FIELDS_MAX: Final[int]
KINDS: Final[dict[str, int]]
SHARED: Final[int]
LIST: Final[int]
FIELDS: Final[int]
SHORT_NUMBER: Final[int]
SHORT_BYTES: Final[int]
NEGATIVE_SIZE: Final[int]
SHORT_UVARINT: Final[int]
LONG_UVARINT: Final[int]
IS_NULL: Final[int]
LONG_TEXT: Final[int]
FEW_BYTES: Final[int]
MANY_ELEMENTS: Final[int]
NEGATIVE_TAGS: Final[int]
FEW_BYTES_FOR_TAGS: Final[int]
MANY_TAGS: Final[int]
WRONG_TAG: Final[int]
TOO_NEW: Final[int]
BAD_VALUE: Final[int]
BAD_STRUCT: Final[int]
MISSING: Final[int]
UNKNOWN: Final[int]
NOT_DEFAULT: Final[int]
LONG_VALUE: Final[int]
NULLABLE: Final[int]

class Refusal(Exception):
    verdict: int
    field: str
    position: int
    number: int
    value: Any
    def __init__(self, verdict: int, field: str, position: int = 0, number: int = 0, value: Any = None) -> None: ...

@final
class Program:
    def __new__(
        cls,
        structs: Sequence[tuple[str, list[tuple[Any, ...]]]],
        flexible: bool,
        complete: bool,
        too_new: int,
        uuid_bytes: Callable[[str, str], bytes],
    ) -> Self: ...
    def default_values(self) -> dict[str, Any]: ...
    def decode(self, data: Buffer, at: int = 0) -> tuple[dict[str, Any], int]: ...
    def encode(self, values: Mapping[str, Any]) -> bytes: ...
    def encode_parts(self, values: Mapping[str, Any]) -> list[Any]: ...

def read_uvarint(data: Buffer, at: int = 0, what: str = "number") -> tuple[int, int]: ...
