"""Notes of moves: if a partition has directories in several log directories, they say which one counts.

The note `topic-0.kafkalog_move` is stored next to the partition's directory that counts.  It names, one a line, the log
directories whose copy does not count.  A move writes the note before the future directory gets the plain name.  It
names the log directory that the partition leaves, until the old copy is renamed `-delete`.  If the new disk fails on
the way, the partition stays, and a note next to it names that disk's log directory, followed by a line `stays`: it
contradicts any note there.  The next move of the partition takes such lines along, until a start finds that log
directory again.  Kafka has no such notes, and refuses to start after a crash between its two renames.  A broker skips
the file.

A disk that is removed for a while does not learn about changes on the other disks.  So each line also says where the
partition's log ended then.  It is believed only if the copy that it gives up got no records since (`is_left_behind`).

A start or a switch calls these functions under the manager's lock of changes.
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
    """An entry of a note.  `stays`: it contradicts any note there.  `end`: where the log ended."""

    stays: bool = False
    end: int | None = None


Others = dict[str, _Said]


def write(source: UnifiedLog, destination: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """Notes that the partition leaves `source` for `destination`, and copies the other lines of the note at `source`.

    If the disk fails, raises KafkaStorageException, and the directory is offline.
    """
    others: Others = {}

    def take(path: str) -> None:
        others.update(_without(_read(path, files), destination.parent_dir))

    _at_note(source, failed, take)
    others[source.parent_dir] = _Said(False, source.log_end_offset)
    _at_note(destination, failed, lambda path: _put(path, others, files))


def write_stay(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """Notes that the partition stays in `log`, which overrules a note next to `other`, whose disk failed.

    Raises as `write`.
    """
    said = _Said(True, log.log_end_offset)
    _at_note(log, failed, lambda path: _put(path, {**_read(path, files), other.parent_dir: said}, files))


def forget(log: UnifiedLog, other: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """Removes the line about the directory of `other` from the note next to `log`.  Raises as `write`."""

    def change(path: str) -> None:
        noted = _read(path, files)
        left = _without(noted, other.parent_dir)
        if left != noted:
            _put(path, left, files)

    _at_note(log, failed, change)


def remove(log: UnifiedLog, files: Files, failed: LogDirFailureChannel) -> None:
    """Removes the note: the partition is not in this directory any more.  Raises as `write`."""
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
    """Returns the entries of a note.  If it names no directory (it may be torn), logs a warning and returns none."""
    try:
        data = read_small(path, files, bytes_max=NOTE_BYTES_MAX)
    except FileNotFoundError:
        return {}
    except CorruptCheckpointException as error:
        Lines(LOGGER, os.path.dirname(path)).warning("skipped %s; %s", error, _REMOVE_IT)
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
            "skipped %s: found %r, expected the path of a log directory; %s", path, data[:60], _REMOVE_IT
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
        files.sync_dir(os.path.dirname(path))  # a note that reappears would apply to another move


def _without(others: Others, *log_dirs: str) -> Others:
    gone = {_real(log_dir) for log_dir in log_dirs}
    return {other: said for other, said in others.items() if _real(other) not in gone}


def _real(log_dir: str) -> str:
    return os.path.realpath(log_dir)


def destination_of(one: UnifiedLog, other: UnifiedLog, files: Files) -> UnifiedLog | None:
    """Returns which of two logs of one partition counts; None if no note says it.  OSError.

    Both may say it of themselves, if the disk of a move's destination failed and the partition stayed at the source.
    """
    first, second = _says(one, other, files), _says(other, one, files)
    if first == second:
        return None
    if first is None or second is None:
        return other if first is None else one
    return None if first.stays == second.stays else one if first.stays else other


def is_left_behind(log: UnifiedLog, other: UnifiedLog, files: Files) -> bool:
    """Returns whether `log` got no records since the note next to `other`, which counts, was written.

    Also requires that `other` still has the last records of `log`, unless all of `log` is below the start of `other`: a
    power loss may have removed records of `other` that were never flushed.  Raises OSError, KafkaStorageException.
    """
    said = _says(other, log, files)
    end = None if said is None else said.end
    if end is not None and (log.log_end_offset > end or log.log_end_offset <= other.first_local_offset):
        return log.log_end_offset <= end
    return end_of_records(log) is None or has_last_of(other, log)


def _says(log: UnifiedLog, other: UnifiedLog, files: Files) -> _Said | None:
    """Returns what the note next to `log` says about the directory of `other`."""
    noted = {_real(each): said for each, said in _read(_path(log), files).items()}
    return noted.get(_real(other.parent_dir))


def clear(log_dirs: Collection[str], files: Files, failed: LogDirFailureChannel) -> None:
    """Removes the lines about `log_dirs` from all notes: these are loaded, and it is settled which copy counts."""
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
