"""A note in the destination of a move: while a partition has a folder in both directories, it says which one counts.

`topic-0.kafkalog_move` holds the path of the directory that the partition leaves.  It is there from before the future
folder takes the plain name until the old one is renamed `-delete`.  Kafka has no such note, and refuses to start on
what a crash between its two renames leaves (a broker passes over the file).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from kafkalog.files import Files
from kafkalog.files.lines import Lines
from kafkalog.format import names
from kafkalog.log.unified_log import UnifiedLog


def _path(destination: UnifiedLog) -> str:
    return os.path.join(destination.parent_dir, f"{destination.topic_partition}{names.MOVE_FILE_SUFFIX}")


def write(source: UnifiedLog, destination: UnifiedLog, files: Files) -> str:
    """The note's path.  OSError."""
    path = _path(destination)
    files.write_atomic(path, os.fsencode(source.parent_dir) + b"\n")
    return path


def destination_of(one: UnifiedLog, other: UnifiedLog, files: Files) -> UnifiedLog | None:
    """Of two logs of one partition, the one that a move was about to leave; None where no note says it.  OSError."""
    for destination, source in ((one, other), (other, one)):
        try:
            left = files.read_bytes(_path(destination)).rstrip(b"\n")
        except FileNotFoundError:
            continue
        if os.path.realpath(os.fsdecode(left)) == os.path.realpath(source.parent_dir):
            return destination
    return None


def clear(log_dirs: Iterable[str], files: Files) -> None:
    """Removes the notes of moves that are over, one way or the other."""
    for log_dir in log_dirs:
        try:
            for name in files.list_dir(log_dir):
                if name.endswith(names.MOVE_FILE_SUFFIX):
                    files.unlink_if_exists(os.path.join(log_dir, name))
        except OSError:
            Lines("kafkalog.manager", log_dir).warning("a move's note was not removed", exc_info=True)
