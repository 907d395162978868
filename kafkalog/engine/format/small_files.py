"""Reads whole files that should be small: checkpoints, metadata files, snapshots, notes.

A damaged file may have any size (a hole of 300 GB), and reading it takes that much memory.  So each kind of file has a
limit that no intact file reaches.  A larger file is treated as bad bytes, like any other file that does not parse.
"""

from __future__ import annotations

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.errors import BadBytesError, CorruptCheckpointException

TABLE_BYTES_MAX = 256 << 20  # a line or an entry for each partition, epoch or producer of a large machine
NOTE_BYTES_MAX = 1 << 20  # a few lines
_LITTLE_BYTES = 64 << 10  # read in one call; for a larger file, the extra call does not matter


def read_small(
    path: str,
    files: Files = OS_FILES,
    *,
    bytes_max: int = TABLE_BYTES_MAX,
    hint: str | None = None,
    error: type[BadBytesError] = CorruptCheckpointException,
) -> bytes:
    """Returns the file's content.

    Raises `error` with the path and `hint` if the file has more than `bytes_max` bytes.  Raises OSError.
    """
    little = files.content(path, min(bytes_max, _LITTLE_BYTES))
    if little is not None:
        return little
    size = files.stat(path).size
    if size > bytes_max:
        raise error(f"found {size} bytes, expected at most {bytes_max}", path=path, position=bytes_max, hint=hint)
    return files.read_bytes(path)
