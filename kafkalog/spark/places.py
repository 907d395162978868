"""Where a path's files are: the one place of the Spark source that knows which `Files` a log directory is read through.

Driver and executors both ask here, each for itself: what is sent between them is the path.  Today every path is a
mounted directory, the same on each host.
"""

from __future__ import annotations

from kafkalog.engine.files import OS_FILES, Files, local_path


def files_of(log_dir: str) -> Files:
    """The files of a log directory; IllegalArgumentException for a store that is not mounted."""
    local_path(log_dir, what="option path")
    return OS_FILES
