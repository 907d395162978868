from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from kafkalog._native.codec.arrow import RecordColumns

IS_NULL: Final[int]
NO_MAGIC: Final[int]
BAD_INDEXES: Final[int]

def split(
    data: Buffer,
    offsets: Buffer,
    validity: Buffer | None = None,
    first_row: int = 0,
    *,
    message_indexes: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]: ...
def gather(
    data: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> RecordColumns: ...
