"""Where a path's files are: the one place of the Spark source that knows which `Files` a log directory is read through.

Driver and executors both ask here, each for itself: what is sent between them is the path.  Today every path is a
mounted directory, the same on each host.
"""

from __future__ import annotations

from kafkalog.errors import IllegalArgumentException
from kafkalog.files import OS_FILES, Files


def files_of(log_dir: str) -> Files:
    """The files of a log directory; IllegalArgumentException for a store that is not mounted."""
    if "://" in log_dir:
        raise IllegalArgumentException(
            f"option path: found {log_dir}, expected a mounted directory, the same on each host",
            hint="mount the store, or copy the log directory (ARCHITECTURE.md says what an object store would need)",
        )
    return OS_FILES
