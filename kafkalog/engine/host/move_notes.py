"""Notes of moves: where a partition has folders in several directories, they say which one counts.

`topic-0.kafkalog_move` lies beside the folder that counts and names other directories, whose folder does not, a line
each.  Of a move it is there from before the future folder takes the plain name until the old one is renamed `-delete`,
and names the directory that the partition leaves.  Where the new disk fails on the way the partition stays, and a note
beside it names that disk's directory, with a line `stays` behind: it contradicts what may lie there.  Such lines go
along when the partition moves on, until a start finds that directory again.  Kafka has no such notes, and refuses to
start on what a crash between its two renames leaves (a broker passes over the file).

A disk that is out of the house for a while knows nothing of what happens to the others.  So each line says where the
partition's log ended then, and is believed only where the log that it gives up took nothing since (`is_left_behind`).

Called under the manager's lock of changes, by a start or a switch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from kafkalog.engine.files import Files, LogDirFailureChannel
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.host.moves import end_of_records, has_last_of
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import CorruptCheckpointException

LOGGER = "kafkalog.manager"

_REMOVE_IT = "remove it once the partition's log is known to be the right one"
_STAYS, _END = b"stays", b"end "
_ENDS = re.compile(rb"end [0-9]{1,18}")


class _Said(NamedTuple):
    """Of a directory whose folder does not count: `stays`, whatever a note there says; `end`: where the log ended."""

    stays: bool = False
    end: int | None = None


Others = dict[str, _Said]


def write(source: UnifiedLog, destination: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition leaves `source` for `destination`, and takes along what a note says of other directories.

    KafkaStorageException, and the directory is offline, where the disk refuses.
    """
    others: Others = {}

    def take(path: str) -> None:
        others.update(_without(_read(path, files), destination.parent_dir))

    _at_note(source, failed, take)
    others[source.parent_dir] = _Said(False, source.log_end_offset)
    _at_note(destination, failed, lambda path: _put(path, others, files))


def write_stay(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """The partition stays in `log`, whatever a note beside `other`, whose disk failed, says.  Raises as `write`."""
    said = _Said(True, log.log_end_offset)
    _at_note(log, failed, lambda path: _put(path, {**_read(path, files), other.parent_dir: said}, files))


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
        raise failed.failed(log.parent_dir, f"Error at a move's note {path}", error) from error


def _path(log: UnifiedLog) -> str:
    return os.path.join(log.parent_dir, f"{log.topic_partition}{names.MOVE_FILE_SUFFIX}")


def _read(path: str, files: Files) -> Others:
    """What a note says; nothing, and that is told, where it names no directory: it may be torn."""
    try:
        data = read_small(path, files, bytes_max=NOTE_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except CorruptCheckpointException as error:
        Lines(LOGGER, os.path.dirname(path)).warning("passed over %s; %s", error, _REMOVE_IT)
        return {}
    others: Others = {}
    last = ""
    for line in data.removesuffix(b"\n").split(b"\n"):
        if line.startswith(b"/") and b"\0" not in line:
            last = os.fsdecode(line)
            others[last] = _Said()
        elif last and line == _STAYS:
            others[last] = others[last]._replace(stays=True)
        elif last and _ENDS.fullmatch(line):
            others[last] = others[last]._replace(end=int(line[len(_END) :]))
    if not others:
        Lines(LOGGER, os.path.dirname(path)).warning(
            "passed over %s: found %r, expected the path of a log directory; %s", path, data[:60], _REMOVE_IT
        )
    return others


def _put(path: str, others: Others, files: Files) -> None:
    if others:
        lines: list[bytes] = []
        for other, said in others.items():
            lines.append(os.fsencode(other))
            if said.stays:
                lines.append(_STAYS)
            if said.end is not None:
                lines.append(_END + b"%d" % said.end)
        files.write_atomic(path, b"\n".join(lines) + b"\n")
    elif files.unlink_if_exists(path):
        files.sync_dir(os.path.dirname(path))  # a note that comes back would speak of another move


def _without(others: Others, *log_dirs: str) -> Others:
    gone = {_real(log_dir) for log_dir in log_dirs}
    return {other: said for other, said in others.items() if _real(other) not in gone}


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
    return None if first.stays == second.stays else one if first.stays else other


def is_left_behind(log: UnifiedLog, other: UnifiedLog, files: Files) -> bool:
    """Whether all that `log` has was there when the note beside `other`, which counts, was written, as far as `other`
    still has it.  It may have less, for a power loss takes what was never flushed.  OSError, KafkaStorageException."""
    said = _says(other, log, files)
    end = None if said is None else said.end
    if end is not None and (log.log_end_offset > end or log.log_end_offset <= other.first_local_offset):
        return log.log_end_offset <= end
    return end_of_records(log) is None or has_last_of(other, log)


def _says(log: UnifiedLog, other: UnifiedLog, files: Files) -> _Said | None:
    """What the note beside `log` says of the directory of `other`."""
    noted = {_real(each): said for each, said in _read(_path(log), files).items()}
    return noted.get(_real(other.parent_dir))


def clear(log_dirs: Collection[str], files: Files, failed: LogDirFailureChannel) -> None:
    """Notes lose the lines of `log_dirs`, which are loaded: which folder counts is settled there."""
    for log_dir in log_dirs:
        try:
            _clear(log_dir, log_dirs, files)
        except OSError as error:
            failed.give_up(log_dir, f"Error while removing moves' notes in {log_dir}", error)


def _clear(log_dir: str, there: Collection[str], files: Files) -> None:
    for name in files.list_dir(log_dir):
        path = os.path.join(log_dir, name)
        if name.endswith(names.MOVE_FILE_SUFFIX + ".tmp"):
            files.unlink_if_exists(path)
        elif name.endswith(names.MOVE_FILE_SUFFIX):
            noted = _read(path, files)
            left = _without(noted, *there)
            if left != noted:
                _put(path, left, files)
