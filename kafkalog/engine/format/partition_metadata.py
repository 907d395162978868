"""`partition.metadata`: the topic id of a partition's directory.

The file has two lines, `version: 0` and `topic_id: <22 characters>`, without a line end after the second.  Mirrors
PartitionMetadata and PartitionMetadataReadBuffer.  The log remembers an id until it may be written.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from kafkalog import errors
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import values
from kafkalog.engine.format.java_text import (
    ZERO_UUID,
    IllegalArgumentException,
    NullPointerException,
    NumberFormatException,
    parse_int,
    parse_uuid,
    read_lines,
    shown,
    split,
    text_of_file,
)
from kafkalog.engine.format.names import PARTITION_METADATA_FILE as PARTITION_METADATA_FILE_NAME
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.errors import CorruptCheckpointException

CURRENT_VERSION = 0
_COLON = re.compile(r":[ \t\n\x0b\f\r]+")
_WHAT_TO_DO = "restore the two lines, or remove the file if the topic id does not matter"

__all__ = [
    "CURRENT_VERSION",
    "PARTITION_METADATA_FILE_NAME",
    "PartitionMetadata",
    "checked_topic_id",
    "decode_partition_metadata",
    "read_partition_metadata",
    "topic_id_of",
    "write_partition_metadata",
]


def checked_topic_id(value: object) -> str:
    """Returns a caller's topic id in the 22 characters that Kafka writes.

    Raises IllegalArgumentException for text that is not an id, and for the zero Uuid.  Kafka uses that for "no id", and
    a log with it in this file cannot be opened again.
    """
    hint = "expected a Kafka Uuid, 22 characters of url-base64"
    text = values.text(value, "topic_id", hint=hint)
    try:
        topic_id = parse_uuid(text)
    except IllegalArgumentException as error:
        raise errors.IllegalArgumentException(f"topic_id: {error.message}", hint=hint) from None
    if topic_id == ZERO_UUID:
        raise errors.IllegalArgumentException(
            f"topic_id: found {topic_id}, which means that there is no topic id", hint=hint
        )
    return topic_id


class PartitionMetadata(NamedTuple):
    """The file's content; the id has 22 characters."""

    version: int
    topic_id: str

    def encode(self) -> bytes:
        return f"version: {self.version}\ntopic_id: {self.topic_id}".encode()


def decode_partition_metadata(data: bytes, *, path: str) -> PartitionMetadata:
    """Parses the content of the file.  Raises CorruptCheckpointException with Kafka's text."""
    location = os.path.abspath(path)
    lines = read_lines(text_of_file(data, path=location, hint=_WHAT_TO_DO))
    version_text = _value(lines, 0, "version", location)
    try:
        version = parse_int(version_text)
    except NumberFormatException:
        raise _malformed(lines[0], 1, location) from None
    if version < 0:
        raise CorruptCheckpointException(
            f"Unrecognized version of partition metadata file ({location}): {version}", hint=_WHAT_TO_DO
        )
    try:
        topic_id = parse_uuid(_value(lines, 1, "topic_id", location))
    except IllegalArgumentException as error:
        raise IllegalArgumentException(error.message, path=location, hint=f"line 2; {_WHAT_TO_DO}") from None
    if topic_id == ZERO_UUID:
        raise CorruptCheckpointException(
            f"Invalid topic ID in partition metadata file ({location})", hint=f"line 2; {_WHAT_TO_DO}"
        )
    return PartitionMetadata(version, topic_id)


def _value(lines: list[str], index: int, name: str, location: str) -> str:
    if index >= len(lines):
        raise NullPointerException(
            f"line {index + 1} is missing; expected `{name}: ...`", path=location, hint=_WHAT_TO_DO
        )
    words = split(_COLON, lines[index])
    if len(words) != 2:
        raise _malformed(lines[index], index + 1, location)
    return words[1]


def _malformed(line: str, number: int, location: str) -> CorruptCheckpointException:
    return CorruptCheckpointException(
        f"Malformed line in partition metadata file [{location}]: {shown(line)}", hint=f"line {number}; {_WHAT_TO_DO}"
    )


def read_partition_metadata(path: str, files: Files = OS_FILES) -> PartitionMetadata:
    """Returns the content of the file.  Raises CorruptCheckpointException and OSError."""
    data = read_small(path, files, bytes_max=NOTE_BYTES_MAX, hint=_WHAT_TO_DO)
    return decode_partition_metadata(data, path=path)


def topic_id_of(folder: str, files: Files = OS_FILES) -> str | None:
    """Returns the topic id in a partition's directory, or None.  Raises CorruptCheckpointException and OSError."""
    try:
        return read_partition_metadata(os.path.join(folder, PARTITION_METADATA_FILE_NAME), files).topic_id
    except FileNotFoundError:
        return None


def write_partition_metadata(path: str, topic_id: str, files: Files = OS_FILES) -> None:
    """Replaces the file in one step and syncs it.  Raises OSError."""
    files.write_atomic(os.path.abspath(path), PartitionMetadata(CURRENT_VERSION, topic_id).encode())
