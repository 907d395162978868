"""The text checkpoints and the clean-shutdown marker of a log directory.

A checkpoint is `0`, the number of entries, one entry a line; it is replaced whole (temporary file, fsync, rename, fsync
of the directory).  Offset checkpoints are written in the order of Kafka's HashMap.  Mirrors CheckpointFile,
OffsetCheckpointFile, LeaderEpochCheckpointFile and CleanShutdownFileHandler.  Files that do not parse raise
CorruptCheckpointException (or the Java exception that Kafka lets through, which is one as well); I/O errors stay
OSErrors.  Who takes the log directory offline for them sits above.
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
    number: int  # from 1
    position: int  # bytes from the file's start
    text: str


class CheckpointFile(Generic[T]):
    """One checkpoint.  `create` makes an empty file where there is none, as Kafka's constructor does; an empty file
    (or one with the version alone) has no entries.  Thread-safe.
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
        """The file's bytes."""
        lines = [str(CURRENT_VERSION), str(len(entries)), *map(self._to_line, entries)]
        return ("\n".join(lines) + "\n").encode("utf-8")

    def write_entries(self, entries: Collection[T]) -> None:
        """Replace the file.  OSError."""
        with self._lock:
            self._files.write_atomic(self.path, self.encode(entries))

    def read_entries(self) -> list[T]:
        """The entries in the file's order.  CorruptCheckpointException, OSError."""
        with self._lock:
            data = self._read()
        return self.decode(data)

    def is_blank(self) -> bool:
        """Whether the file is empty or breaks off behind its version: no written checkpoint is, but one that was only
        made (Kafka reads it as one without entries).  OSError."""
        try:
            with self._lock:
                return self._read().split() in ([], [b"%d" % CURRENT_VERSION])
        except CorruptCheckpointException:  # by its size
            return False

    def holds(self, entries: Collection[T]) -> bool:
        """Whether the file is these entries, byte for byte; False for one that cannot be read."""
        try:
            with self._lock:
                return self._read() == self.encode(entries)
        except (CorruptCheckpointException, OSError):
            return False

    def _read(self) -> bytes:
        return read_small(self.path, self._files, hint=_WHAT_TO_DO)

    def decode(self, data: bytes) -> list[T]:
        """The entries that these bytes of the file hold."""
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


_WHAT_TO_DO = "mend the line, or remove the file: what it says is then worked out anew or starts from 0"


class OffsetCheckpointFile(CheckpointFile[tuple[TopicPartition, int]]):
    """An offset for each partition: recovery points, log starts, high watermarks, the cleaner's progress."""

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
        """Replace the file, in the order of Kafka's HashMap: `offsets`' own where it is such a map (or Scala's), else
        that of a fresh map filled in the given order.  OSError; IllegalArgumentException for what is no offset, or a
        name that no line can hold, and the file stays as it is: one bad line would take all partitions' offsets with
        it."""
        for partition, offset in offsets.items():
            values.offset(offset, str(partition))
            if not self.can_hold(partition):
                raise errors.IllegalArgumentException(
                    f"a checkpoint cannot hold the name {str(partition)!r}: white space parts its words and lines",
                    path=self.path,
                    hint="nobody could read the file, and all partitions would lose their offsets",
                )
        if isinstance(offsets, JavaHashMap | AnyRefMap):
            order = list(offsets)
        else:
            order = hash_map_order(offsets, topic_partition_hash)
        self.write_entries([(key, offsets[key]) for key in order])

    def decode(self, data: bytes) -> list[tuple[TopicPartition, int]]:
        """As of every checkpoint; a file of plain lines, as they nearly all are, is taken apart at once."""
        head = _PLAIN_HEAD.match(data)
        if head is not None and head[1] == b"%d" % (data.count(b"\n") - 2) and data.isascii():
            found = _PLAIN_LINE.findall(data.decode("ascii"), head.end())
            if len(found) == int(head[1]):
                return [(TopicPartition(topic, int(number)), int(offset)) for topic, number, offset in found]
        return super().decode(data)

    @staticmethod
    def can_hold(partition: TopicPartition) -> bool:
        """Whether a line with this name can be read again.  Kafka does not ask: its topics have no such names, but
        folders may."""
        topic, number = partition
        return not _BREAKS_A_LINE.search(topic) and INT_MIN <= number <= INT_MAX

    def read(self) -> dict[TopicPartition, int]:
        """The offsets, in the file's order; of two lines for one partition the last counts.

        CorruptCheckpointException, OSError.
        """
        return dict(self.read_entries())

    def read_or_empty(self) -> dict[TopicPartition, int]:
        """As `read`, but one that is absent or cannot be read counts for nothing, as for Kafka at start."""
        try:
            return self.read()
        except (KafkalogError, OSError):
            return {}


_PLAIN_HEAD = re.compile(rb"0\n(0|[1-9][0-9]{0,8})\n")
_PLAIN_LINE = re.compile(r"^([!-~]+) (0|[1-9][0-9]{0,8}) (0|[1-9][0-9]{0,17})\n", re.MULTILINE)
_BREAKS_A_LINE = re.compile("[ \t\n\v\f\r\ud800-\udfff]")  # Java's \s, and what UTF-8 cannot hold


def _offset_line(entry: tuple[TopicPartition, int]) -> str:
    (topic, partition), offset = entry
    return f"{topic} {partition} {offset}"


def _offset_entry(words: list[str]) -> tuple[TopicPartition, int] | None:
    if len(words) != 3:
        return None
    return TopicPartition(words[0], parse_int(words[1])), parse_long(words[2])


class LeaderEpochCheckpointFile(CheckpointFile[EpochEntry]):
    """`leader-epoch-checkpoint` of one partition."""

    def __init__(self, path: str, files: Files = OS_FILES, *, create: bool = True) -> None:
        super().__init__(
            path, files, to_line=_epoch_line, from_words=_epoch_entry, expected="`epoch start-offset`", create=create
        )

    @staticmethod
    def new_file(directory: str) -> str:
        """The file's path in a partition's directory."""
        return os.path.join(directory, LEADER_EPOCH_CHECKPOINT_FILE)

    def write(self, entries: Iterable[EpochEntry]) -> None:
        """Replace the file.  OSError; IllegalArgumentException for what is no number, and the file stays as it is."""
        listed = list(entries)
        for entry in listed:
            epoch = values.whole(entry.epoch, "epoch", low=INT_MIN, high=INT_MAX)
            values.offset(entry.start_offset, f"epoch {epoch}")
        self.write_entries(listed)

    def write_if_dir_exists(self, entries: Iterable[EpochEntry]) -> None:
        """Replace the file; where its directory is gone (the partition is being deleted) do nothing."""
        try:
            self.write(entries)
        except FileNotFoundError:
            lines_of_folder("kafkalog.format", os.path.dirname(self.path)).warning(
                "%s was not written; its directory is gone, as it is when a partition is deleted", self.path
            )

    def read(self) -> list[EpochEntry]:
        """The entries in the file's order.  CorruptCheckpointException, OSError."""
        return self.read_entries()


def _epoch_line(entry: EpochEntry) -> str:
    return f"{entry.epoch} {entry.start_offset}"


def emptied_checkpoints(log_dir: str, files: Files = OS_FILES, *, closed_cleanly: bool) -> list[str]:
    """Paths of blank checkpoints that were not left so by whoever wrote them: a start makes both of these empty, and
    they are written together, within a minute and by a clean shutdown.  OSError."""
    pair = (RECOVERY_POINT_CHECKPOINT_FILE, LOG_START_OFFSET_CHECKPOINT_FILE)
    checkpoints = [OffsetCheckpointFile(os.path.join(log_dir, name), files, create=False) for name in pair]
    there = [checkpoint for checkpoint in checkpoints if files.exists(checkpoint.path)]
    blank = [checkpoint.path for checkpoint in there if checkpoint.is_blank()]
    return blank if closed_cleanly or len(blank) < len(there) else []


def _epoch_entry(words: list[str]) -> EpochEntry | None:
    return EpochEntry(parse_int(words[0]), parse_long(words[1])) if len(words) == 2 else None


class CleanShutdownFile:
    """`.kafka_cleanshutdown`: it is there only when every log of the directory was closed and flushed."""

    def __init__(self, log_dir: str, files: Files = OS_FILES) -> None:
        self.path = os.path.join(log_dir, CLEAN_SHUTDOWN_FILE)
        self._files = files

    def exists(self) -> bool:
        return self._files.exists(self.path)

    def write(self, broker_epoch: int = -1) -> None:
        """Write it in place and sync it.  OSError."""
        data = json.dumps({"version": CURRENT_VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        self._files.write_file(self.path, data.encode(), sync=True)

    def read(self) -> int | None:
        """The broker epoch; None where there is no file or it does not parse."""
        try:
            data = read_small(self.path, self._files, bytes_max=NOTE_BYTES_MAX)
            text = data.decode("utf-8", "replace").lstrip(" \t\r\n")
            content, _ = _JSON.raw_decode(text)  # Jackson does not look at what follows either
            _json_number(content.get("version"), parse_int)
            return _json_number(content.get("brokerEpoch"), parse_long)
        except (CorruptCheckpointException, OSError, RecursionError):
            return None
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None

    def delete(self) -> bool:
        """Remove it for good: a marker that power loss brings back would hide a crash, so the directory is synced
        (Kafka leaves that out).  False where there was none.  OSError."""
        if not self._files.unlink_if_exists(self.path):
            return False
        self._files.sync_dir(parent_dir(self.path))
        return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _json_number(value: object, parse: Callable[[str], int]) -> int | None:
    """A number as Jackson binds it to an integer: cut to a whole one, within its range, and also from a string."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return parse(str(int(value)))
