"""Reads whole files that are small by their nature: checkpoints, metadata files, snapshots, notes.

The size of a damaged file says anything (a hole of 300 GB), and reading it takes that much memory.  So each kind of
file has a bound that no good file reaches, and a larger one is bad bytes, like any other that does not parse.
"""

from __future__ import annotations

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.errors import BadBytesError, CorruptCheckpointException

TABLE_BYTES_MAX = 256 << 20  # a line or an entry for each partition, epoch or producer of a large machine
NOTE_BYTES_MAX = 1 << 20  # a few lines
_LITTLE_BYTES = 64 << 10  # read in one call; a larger one takes long enough


def read_small(
    path: str,
    files: Files = OS_FILES,
    *,
    bytes_max: int = TABLE_BYTES_MAX,
    hint: str | None = None,
    error: type[BadBytesError] = CorruptCheckpointException,
) -> bytes:
    """The file's bytes.  `error` with the path and `hint` if there are more than `bytes_max`; OSError."""
    little = files.content(path, min(bytes_max, _LITTLE_BYTES))
    if little is not None:
        return little
    size = files.stat(path).size
    if size > bytes_max:
        raise error(f"found {size} bytes, expected at most {bytes_max}", path=path, position=bytes_max, hint=hint)
    return files.read_bytes(path)
