import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

def json_fields(
    before: bytes,
    name: bytes,
    data: Buffer,
    offsets: Buffer,
    validity: Buffer | None = None,
    first_row: int = 0,
    *,
    in_base64: bool = False,
) -> tuple[bytes, NDArray[np.int64]]: ...
