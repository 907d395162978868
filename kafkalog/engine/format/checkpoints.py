"""The text checkpoints and the clean-shutdown marker of a log directory.

A checkpoint consists of `0`, the number of entries, and one entry a line.  A write replaces the whole file (temporary
file, fsync, rename, fsync of the directory).  Offset checkpoints are written in the order of Kafka's HashMap.  Mirrors
CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile and CleanShutdownFileHandler.

A file that does not parse raises CorruptCheckpointException, or the Java exception that Kafka lets through, which is a
subclass of it here.  I/O errors stay OSErrors.  The layers above decide whether an error takes the log directory
offline.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kafkalog import errors
from kafkalog._limits import INT_MAX, INT_MIN
from kafkalog._native.codec.java_hash import AnyRefMap, JavaHashMap, hash_map_order, topic_partition_hash
from kafkalog.engine.files import OS_FILES, Files, parent_dir
from kafkalog.engine.format import values
from kafkalog.engine.format.java_text import (
    IllegalArgumentException,
    NumberFormatException,
    parse_int,
    parse_long,
    read_lines,
    shown,
    split_spaces,
    text_of_file,
)
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_CHECKPOINT_FILE,
    LOG_START_OFFSET_CHECKPOINT_FILE,
    RECOVERY_POINT_CHECKPOINT_FILE,
    TopicPartition,
)
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.errors import CorruptCheckpointException, KafkalogError

CURRENT_VERSION = 0
NO_ENTRIES = "an empty file, expected entries and their number"
T = TypeVar("T")


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int

    def __str__(self) -> str:
        return f"EpochEntry[epoch={self.epoch}, startOffset={self.start_offset}]"


class _Line(NamedTuple):
    number: int  # counts from 1
    position: int  # bytes from the file's start
    text: str


class CheckpointFile(Generic[T]):
    """One checkpoint file.  Thread-safe.

    `create` creates an empty file if none exists, as Kafka's constructor does.  An empty file, or one with only the
    version, has no entries.
    """

    def __init__(
        self,
        path: str,
        files: Files,
        *,
        to_line: Callable[[T], str],
        from_words: Callable[[list[str]], T | None],
        expected: str,
        create: bool,
    ) -> None:
        self.path = os.path.abspath(path)
        self._files = files
        self._to_line = to_line
        self._from_words = from_words
        self._expected = expected
        self._lock = threading.RLock()
        if create and not files.exists(self.path):
            files.create(self.path)

    def encode(self, entries: Collection[T]) -> bytes:
        """Returns the file's content for `entries`."""
        lines = [str(CURRENT_VERSION), str(len(entries)), *map(self._to_line, entries)]
        return ("\n".join(lines) + "\n").encode("utf-8")

    def write_entries(self, entries: Collection[T]) -> None:
        """Replaces the file.  Raises OSError."""
        with self._lock:
            self._files.write_atomic(self.path, self.encode(entries))

    def read_entries(self) -> list[T]:
        """Returns the entries in the file's order.  Raises CorruptCheckpointException and OSError."""
        with self._lock:
            data = self._read()
        return self.decode(data)

    def is_blank(self) -> bool:
        """Returns whether the file is empty or ends after its version.

        A complete write never leaves such a file; creating one does, and Kafka reads it as a checkpoint without
        entries.  Raises OSError.
        """
        try:
            with self._lock:
                return self._read().split() in ([], [b"%d" % CURRENT_VERSION])
        except CorruptCheckpointException:  # the file is too large
            return False

    def holds(self, entries: Collection[T]) -> bool:
        """Returns whether the file's content equals `entries`, byte for byte; False if the file cannot be read."""
        try:
            with self._lock:
                return self._read() == self.encode(entries)
        except (CorruptCheckpointException, OSError):
            return False

    def _read(self) -> bytes:
        return read_small(self.path, self._files, hint=_WHAT_TO_DO)

    def decode(self, data: bytes) -> list[T]:
        """Returns the entries that `data`, the content of the file, holds."""
        lines = self._lines(data)
        if not lines:
            return []
        version = self._number(lines[0], "the version, 0")
        if version != CURRENT_VERSION:
            raise CorruptCheckpointException(
                f"Unrecognised version:{version}, expected version: {CURRENT_VERSION} "
                f"in checkpoint file at: {self.path}",
                path=self.path,
                hint=f"line 1; {_WHAT_TO_DO}",
            )
        if len(lines) == 1:
            return []
        expected_count = self._number(lines[1], "the number of entries")
        if expected_count < 0:
            raise IllegalArgumentException(
                f"Illegal Capacity: {expected_count}", path=self.path, hint=self._place(lines[1], "a number from 0")
            )
        entries: list[T] = []
        for line in lines[2:]:
            try:
                entry = self._from_words(split_spaces(line.text))
            except NumberFormatException as error:
                raise NumberFormatException(error.message, path=self.path, hint=self._place(line)) from None
            if entry is None:
                raise self._malformed(line)
            entries.append(entry)
        if len(entries) != expected_count:
            raise CorruptCheckpointException(
                f"Expected [{expected_count}] entries in checkpoint file [{self.path}], "
                f"but found only [{len(entries)}]",
                path=self.path,
                hint=f"line 2 holds the number; {_WHAT_TO_DO}",
            )
        return entries

    def _lines(self, data: bytes) -> list[_Line]:
        text = text_of_file(data, path=self.path, hint=f"expected lines of {self._expected}; {_WHAT_TO_DO}")
        lines = []
        position = 0
        for number, line in enumerate(read_lines(text), 1):
            lines.append(_Line(number, position, line))
            position += len(line.encode("utf-8")) + 1
        return lines

    def _number(self, line: _Line, what: str) -> int:
        try:
            return parse_int(line.text)
        except NumberFormatException:
            raise self._malformed(line, what) from None

    def _malformed(self, line: _Line, expected: str | None = None) -> CorruptCheckpointException:
        return CorruptCheckpointException(
            f"Malformed line in checkpoint file [{self.path}]: {shown(line.text)}",
            path=self.path,
            hint=self._place(line, expected),
        )

    def _place(self, line: _Line, expected: str | None = None) -> str:
        return f"line {line.number}, byte {line.position}; expected {expected or self._expected}; {_WHAT_TO_DO}"


_WHAT_TO_DO = "repair the line, or remove the file: its values are then computed again or start from 0"


class OffsetCheckpointFile(CheckpointFile[tuple[TopicPartition, int]]):
    """An offset for each partition: recovery points, log start offsets, high watermarks, the cleaner's progress."""

    def __init__(self, path: str, files: Files = OS_FILES, *, create: bool = True) -> None:
        super().__init__(
            path,
            files,
            to_line=_offset_line,
            from_words=_offset_entry,
            expected="`topic partition offset`",
            create=create,
        )

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replaces the file, in the order of Kafka's HashMap.

        If `offsets` is such a map (or Scala's), its order is used; otherwise that of a new map filled in the given
        order.  Raises OSError.  Raises IllegalArgumentException for an invalid offset, or a name that no line can hold,
        and leaves the file unchanged: one bad line would make all partitions' offsets unreadable.
        """
        for partition, offset in offsets.items():
            values.offset(offset, str(partition))
            if not self.can_hold(partition):
                raise errors.IllegalArgumentException(
                    f"a checkpoint cannot hold the name {str(partition)!r}: white space separates its words and lines",
                    path=self.path,
                    hint="with it the file would be unreadable, and all partitions would lose their offsets",
                )
        if isinstance(offsets, JavaHashMap | AnyRefMap):
            order = list(offsets)
        else:
            order = hash_map_order(offsets, topic_partition_hash)
        self.write_entries([(key, offsets[key]) for key in order])

    def decode(self, data: bytes) -> list[tuple[TopicPartition, int]]:
        """Parses like `CheckpointFile.decode`, but with one regular expression if all lines are plain, as they almost
        always are."""
        head = _PLAIN_HEAD.match(data)
        ends_well = data.endswith(b"\n")  # else a torn line follows the last break
        if head is not None and ends_well and head[1] == b"%d" % (data.count(b"\n") - 2) and data.isascii():
            found = _PLAIN_LINE.findall(data.decode("ascii"), head.end())
            if len(found) == int(head[1]):
                return [(TopicPartition(topic, int(number)), int(offset)) for topic, number, offset in found]
        return super().decode(data)

    @staticmethod
    def can_hold(partition: TopicPartition) -> bool:
        """Returns whether a line with this name can be read again.

        Kafka does not check this: its topics have no such names, but directories on disk may.
        """
        topic, number = partition
        return not _BREAKS_A_LINE.search(topic) and INT_MIN <= number <= INT_MAX

    def read(self) -> dict[TopicPartition, int]:
        """Returns the offsets in the file's order; the last of several lines for one partition counts.

        Raises CorruptCheckpointException and OSError.
        """
        return dict(self.read_entries())

    def read_or_empty(self) -> dict[TopicPartition, int]:
        """Reads like `read`, but returns an empty dictionary if the file is absent or unreadable, as Kafka does at
        start."""
        try:
            return self.read()
        except (KafkalogError, OSError):
            return {}


_PLAIN_HEAD = re.compile(rb"0\n(0|[1-9][0-9]{0,8})\n")
_PLAIN_LINE = re.compile(r"^([!-~]+) (0|[1-9][0-9]{0,8}) (0|[1-9][0-9]{0,17})\n", re.MULTILINE)
_BREAKS_A_LINE = re.compile("[ \t\n\v\f\r\ud800-\udfff]")  # Java's \s, and lone surrogates, which UTF-8 cannot encode


def _offset_line(entry: tuple[TopicPartition, int]) -> str:
    (topic, partition), offset = entry
    return f"{topic} {partition} {offset}"


def _offset_entry(words: list[str]) -> tuple[TopicPartition, int] | None:
    if len(words) != 3:
        return None
    return TopicPartition(words[0], parse_int(words[1])), parse_long(words[2])


class LeaderEpochCheckpointFile(CheckpointFile[EpochEntry]):
    """The file `leader-epoch-checkpoint` of one partition."""

    def __init__(self, path: str, files: Files = OS_FILES, *, create: bool = True) -> None:
        super().__init__(
            path, files, to_line=_epoch_line, from_words=_epoch_entry, expected="`epoch start-offset`", create=create
        )

    @staticmethod
    def new_file(directory: str) -> str:
        """Returns the file's path in a partition's directory."""
        return os.path.join(directory, LEADER_EPOCH_CHECKPOINT_FILE)

    def write(self, entries: Iterable[EpochEntry]) -> None:
        """Replaces the file.  Raises OSError.  Raises IllegalArgumentException for a value out of range and leaves the
        file unchanged."""
        listed = list(entries)
        for entry in listed:
            epoch = values.whole(entry.epoch, "epoch", low=INT_MIN, high=INT_MAX)
            values.offset(entry.start_offset, f"epoch {epoch}")
        self.write_entries(listed)

    def write_if_dir_exists(self, entries: Iterable[EpochEntry]) -> None:
        """Replaces the file, or does nothing if its directory no longer exists (the partition is being deleted)."""
        try:
            self.write(entries)
        except FileNotFoundError:
            lines_of_folder("kafkalog.format", os.path.dirname(self.path)).warning(
                "%s was not written: its directory no longer exists, as happens when a partition is deleted", self.path
            )

    def read(self) -> list[EpochEntry]:
        """Returns the entries in the file's order.  Raises CorruptCheckpointException and OSError."""
        return self.read_entries()


def _epoch_line(entry: EpochEntry) -> str:
    return f"{entry.epoch} {entry.start_offset}"


def emptied_checkpoints(log_dir: str, files: Files = OS_FILES, *, closed_cleanly: bool) -> list[str]:
    """Returns the paths of blank checkpoints that have lost their content.

    A start creates the recovery-point and the log-start checkpoint empty.  They are written together, within a minute
    and at a clean shutdown.  So a blank file has lost its content if the shutdown was clean or the other one is
    not blank.  Raises OSError.
    """
    pair = (RECOVERY_POINT_CHECKPOINT_FILE, LOG_START_OFFSET_CHECKPOINT_FILE)
    checkpoints = [OffsetCheckpointFile(os.path.join(log_dir, name), files, create=False) for name in pair]
    there = [checkpoint for checkpoint in checkpoints if files.exists(checkpoint.path)]
    blank = [checkpoint.path for checkpoint in there if checkpoint.is_blank()]
    return blank if closed_cleanly or len(blank) < len(there) else []


def _epoch_entry(words: list[str]) -> EpochEntry | None:
    return EpochEntry(parse_int(words[0]), parse_long(words[1])) if len(words) == 2 else None


class CleanShutdownFile:
    """The marker `.kafka_cleanshutdown`: it exists only if every log of the directory was closed and flushed."""

    def __init__(self, log_dir: str, files: Files = OS_FILES) -> None:
        self.path = os.path.join(log_dir, CLEAN_SHUTDOWN_FILE)
        self._files = files

    def exists(self) -> bool:
        return self._files.exists(self.path)

    def write(self, broker_epoch: int = -1) -> None:
        """Writes the file in place and syncs it.  Raises OSError."""
        data = json.dumps({"version": CURRENT_VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._files.write_file(self.path, data.encode(), sync=True)

    def read(self) -> int | None:
        """Returns the broker epoch, or None if the file does not exist or does not parse."""
        try:
            data = read_small(self.path, self._files, bytes_max=NOTE_BYTES_MAX)
            text = data.decode("utf-8", "replace").lstrip(" \t\r\n")
            content, _ = _JSON.raw_decode(text)  # Jackson ignores what follows, too
            _json_number(content.get("version"), parse_int)
            return _json_number(content.get("brokerEpoch"), parse_long)
        except (CorruptCheckpointException, OSError, RecursionError):
            return None
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def delete(self) -> bool:
        """Deletes the file and syncs the directory; returns False if there was no file.  Raises OSError.

        Without the sync (which Kafka omits), a power loss could bring the marker back, and it would hide a crash.
        """
        if not self._files.unlink_if_exists(self.path):
            return False
        self._files.sync_dir(parent_dir(self.path))
        return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _json_number(value: object, parse: Callable[[str], int]) -> int | None:
    """Converts a number as Jackson binds it to an integer: truncated, checked against the range, also from a string."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return parse(str(int(value)))
