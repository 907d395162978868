"""Notes of moves: where a partition has folders in several directories, they say which one counts.

`topic-0.kafkalog_move` lies beside the folder that counts and names other directories, whose folder does not, a line
each.  Of a move it is there from before the future folder takes the plain name until the old one is renamed `-delete`,
and names the directory that the partition leaves.  Where the new disk fails on the way the partition stays, and a note
beside it names that disk's directory, with a line `stays` behind: it contradicts what may lie there.  Such lines go
along when the partition moves on, until a start finds that directory again.  Kafka has no such notes, and refuses to
start on what a crash between its two renames leaves (a broker passes over the file).

Called under the manager's lock of changes, by a start or a switch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from kafkalog.errors import KafkaStorageException
from kafkalog.files import Files, LogDirFailureChannel
from kafkalog.format import names
from kafkalog.log.unified_log import UnifiedLog

_STAYS = b"stays"

Others = dict[str, bool]  # directories whose folder does not count; True: whatever a note there says


def write(source: UnifiedLog, destination: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition leaves `source` for `destination`, and takes along what a note says of other directories.

    KafkaStorageException, and the directory is offline, where the disk refuses.
    """
    others: Others = {}

    def take(path: str) -> None:
        others.update(_without(_read(path, files), destination.parent_dir))

    _at_note(source, failed, take)
    others[source.parent_dir] = False
    _at_note(destination, failed, lambda path: _put(path, others, files))


def write_stay(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition stays in `log`, whatever a note beside `other`, whose disk failed, says.  Raises as `write`."""
    _at_note(log, failed, lambda path: _put(path, {**_read(path, files), other.parent_dir: True}, files))


def forget(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The note beside `log` says nothing of the directory of `other` any more.  Raises as `write` does."""

    def change(path: str) -> None:
        noted = _read(path, files)
        left = _without(noted, other.parent_dir)
        if left != noted:
            _put(path, left, files)

    _at_note(log, failed, change)


def remove(log: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition is not in this directory any more.  Raises as `write` does."""
    _at_note(log, failed, lambda path: _put(path, {}, files))


def _at_note(log: UnifiedLog, failed: LogDirFailureChannel, use: Callable[[str], object]) -> None:
    log.context.check_online()
    path = _path(log)
    try:
        use(path)
    except OSError as error:
        failed.maybe_add_offline_log_dir(log.parent_dir, f"Error at a move's note {path}", error)
        raise KafkaStorageException.because_of(error, f"Error at a move's note {path}") from error


def _path(log: UnifiedLog) -> str:
    return os.path.join(log.parent_dir, f"{log.topic_partition}{names.MOVE_FILE_SUFFIX}")


def _read(path: str, files: Files) -> Others:
    try:
        lines = files.read_bytes(path).removesuffix(b"\n").split(b"\n")
    except FileNotFoundError:
        return {}
    others: Others = {}
    for line in lines:
        if line == _STAYS and others:
            others[next(reversed(others))] = True
        elif line and line != _STAYS:
            others[os.fsdecode(line)] = False
    return others


def _put(path: str, others: Others, files: Files) -> None:
    if others:
        lines = [os.fsencode(other) + (b"\n" + _STAYS if stays else b"") for other, stays in others.items()]
        files.write_atomic(path, b"\n".join(lines) + b"\n")
    elif files.unlink_if_exists(path):
        files.sync_dir(os.path.dirname(path))  # a note that comes back would speak of another move


def _without(others: Others, *log_dirs: str) -> Others:
    gone = {_real(log_dir) for log_dir in log_dirs}
    return {other: stays for other, stays in others.items() if _real(other) not in gone}


def _real(log_dir: str) -> str:
    return os.path.realpath(log_dir)


def destination_of(one: UnifiedLog, other: UnifiedLog, files: Files) -> UnifiedLog | None:
    """Of two logs of one partition the one that counts; None where no note says it.  OSError.

    Both say it of themselves: the disk of the one that the partition was moving to failed, and the other one stayed.
    """
    first, second = _says(one, other, files), _says(other, one, files)
    if first == second:
        return None
    if first is None or second is None:
        return other if first is None else one
    return one if first else other


def _says(log: UnifiedLog, other: UnifiedLog, files: Files) -> bool | None:
    """What the note beside `log` says of the directory of `other`."""
    noted = {_real(each): stays for each, stays in _read(_path(log), files).items()}
    return noted.get(_real(other.parent_dir))


def clear(log_dirs: Collection[str], files: Files, failed: LogDirFailureChannel) -> None:
    """Notes lose the lines of `log_dirs`, which are loaded: which folder counts is settled there."""
    for log_dir in log_dirs:
        try:
            _clear(log_dir, log_dirs, files)
        except OSError as error:
            failed.maybe_add_offline_log_dir(log_dir, f"Error while removing moves' notes in {log_dir}", error)


def _clear(log_dir: str, there: Collection[str], files: Files) -> None:
    for name in files.list_dir(log_dir):
        path = os.path.join(log_dir, name)
        if name.endswith(names.MOVE_FILE_SUFFIX + ".tmp"):
            files.unlink_if_exists(path)
        elif name.endswith(names.MOVE_FILE_SUFFIX):
            noted = _read(path, files)
            left = _without(noted, *there)
            if left != noted or not noted:
                _put(path, left, files)
