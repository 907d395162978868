"""A note in the destination of a move: while a partition has a folder in both directories, it says which one counts.

`topic-0.kafkalog_move` holds the path of the directory that the partition leaves.  It is there from before the future
folder takes the plain name until the old one is renamed `-delete`.  Kafka has no such note, and refuses to start on
what a crash between its two renames leaves (a broker passes over the file).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from kafkalog.errors import KafkaStorageException
from kafkalog.files import Files, LogDirFailureChannel
from kafkalog.files.lines import Lines
from kafkalog.format import names
from kafkalog.log.unified_log import UnifiedLog

LOGGER = "kafkalog.manager"

_STAYS = b"\nstays\n"


def _path(destination: UnifiedLog) -> str:
    return os.path.join(destination.parent_dir, f"{destination.topic_partition}{names.MOVE_FILE_SUFFIX}")


def write(source: UnifiedLog, destination: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """KafkaStorageException, and the destination's directory is offline, where the disk refuses."""
    note = os.fsencode(source.parent_dir) + b"\n"
    _change(destination, failed, lambda path: files.write_atomic(path, note))


def write_stay(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition stays in `log`, whatever a note beside `other`, whose disk failed, says.  Raises as `write`."""
    note = os.fsencode(other.parent_dir) + _STAYS
    _change(log, failed, lambda path: files.write_atomic(path, note))


def remove(destination: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The move is over.  Raises as `write` does."""

    def unlink(path: str) -> None:
        if files.unlink_if_exists(path):
            files.sync_dir(destination.parent_dir)  # a note that comes back would speak of another move

    _change(destination, failed, unlink)


def _change(destination: UnifiedLog, failed: LogDirFailureChannel, change: Callable[[str], object]) -> None:
    destination.context.check_online()
    path = _path(destination)
    try:
        change(path)
    except OSError as error:
        failed.maybe_add_offline_log_dir(destination.parent_dir, f"Error while writing a move's note {path}", error)
        raise KafkaStorageException.because_of(error, f"Error while writing a move's note {path}") from error


def destination_of(one: UnifiedLog, other: UnifiedLog, files: Files) -> UnifiedLog | None:
    """Of two logs of one partition the one that counts; None where no note says it.  OSError.

    A note in both: the disk of the one that the partition was moving to failed, and a second one said so.
    """
    noted = [log for log, left in ((one, other), (other, one)) if _left(log, files) == _real(left.parent_dir)]
    if len(noted) < 2:
        return noted[0] if noted else None
    first, second = (files.read_bytes(_path(log)).endswith(_STAYS) for log in (one, other))
    return None if first == second else one if first else other


def _left(log: UnifiedLog, files: Files) -> str | None:
    try:
        return _directory_in(_path(log), files)
    except FileNotFoundError:
        return None


def _directory_in(path: str, files: Files) -> str | None:
    """The directory that a note names; None, and told, where it names none: it may be torn."""
    first = files.read_bytes(path).partition(b"\n")[0]
    log_dir = os.fsdecode(first)
    if b"\0" not in first and os.path.isabs(log_dir):
        return _real(log_dir)
    Lines(LOGGER, os.path.dirname(path)).warning(
        "passed over %s: found %r, expected the path of a log directory; remove it once the partition's log is known "
        "to be the right one",
        path,
        first[:60],
    )
    return None


def _real(log_dir: str) -> str:
    return os.path.realpath(log_dir)


def clear(log_dirs: Collection[str], files: Files, failed: LogDirFailureChannel) -> None:
    """Removes the notes of moves that are over, one way or the other: those whose other directory is there, too."""
    there = {_real(each) for each in log_dirs}
    for log_dir in log_dirs:
        try:
            _clear(log_dir, there, files)
        except OSError as error:
            failed.maybe_add_offline_log_dir(log_dir, f"Error while removing moves' notes in {log_dir}", error)


def _clear(log_dir: str, there: Collection[str], files: Files) -> None:
    over = []
    for name in files.list_dir(log_dir):
        path = os.path.join(log_dir, name)
        is_note = name.endswith(names.MOVE_FILE_SUFFIX)
        if name.endswith(names.MOVE_FILE_SUFFIX + ".tmp") or (is_note and _names_one_of(there, path, files)):
            over.append(path)
    for path in over:
        files.unlink_if_exists(path)
    if over:
        files.sync_dir(log_dir)


def _names_one_of(there: Collection[str], path: str, files: Files) -> bool:
    return _directory_in(path, files) in there
