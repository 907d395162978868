"""Producer-state snapshots: the bytes of a `.snapshot` file.

The layout is int16 version 1, uint32 CRC-32C of everything after it, int32 number of entries, and 46 bytes an entry.
Entries are written in the order of Kafka's HashMap of producer ids.  The file is written in place without truncating it
first, as in Kafka.  The tail of an older, longer file then remains, and the CRC reveals it.  Mirrors
ProducerStateManager.readSnapshot and writeSnapshot; the meaning of the values is not known here.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog._native.codec.crc32c import crc32c
from kafkalog._native.codec.java_hash import hash_map_order, long_hash
from kafkalog.engine.files import OS_FILES, Files, is_shortage
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import CorruptSnapshotException

VERSION = 1
HEADER = struct.Struct(">hIi")  # version, crc, count
ENTRY = struct.Struct(">qhiqiqiq")
CRC_COVERS_FROM = 6
_VERSION = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_WHAT_TO_DO = "remove it: producer state is then rebuilt from an older snapshot and the log"

assert HEADER.size == 10
assert ENTRY.size == 46


class ProducerSnapshotEntry(NamedTuple):
    """One producer: its last batch, and the first offset of its open transaction (-1 if it has none)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[ProducerSnapshotEntry], *, ordered: bool = False) -> bytes:
    """Returns the file's content.

    `ordered` keeps the given order (that of a JavaHashMap that knows its history).  Otherwise the order is that of a
    new HashMap filled in the given order.
    """
    listed = list(entries)
    if not ordered:
        by_id = {entry.producer_id: entry for entry in listed}
        listed = [by_id[producer_id] for producer_id in hash_map_order(by_id, long_hash)]
    body = b"".join([_COUNT.pack(len(listed)), *(ENTRY.pack(*entry) for entry in listed)])
    return HEADER.pack(VERSION, crc32c(body), len(listed)) + body[_COUNT.size :]


def decode_snapshot(data: bytes, *, path: str | None = None) -> list[ProducerSnapshotEntry]:
    """Returns the entries in the file's order.  Raises CorruptSnapshotException.

    Each count is checked before it is used.
    """
    if len(data) < _VERSION.size:
        raise _schema(f"{len(data)} bytes are too few for a snapshot", path, 0)
    (version,) = _VERSION.unpack_from(data)
    if version != VERSION:
        raise _schema(f"Snapshot contained an unknown file version {version}", path, 0)
    if len(data) < HEADER.size:
        raise _schema(f"{len(data)} bytes are too few for a snapshot", path, 0)
    _, crc, count = HEADER.unpack_from(data)
    if count < 0:
        raise _schema("non-nullable field producerEntries was serialized as null", path, HEADER.size - _COUNT.size)
    left = len(data) - HEADER.size
    if count > left:
        raise _schema(
            f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining.",
            path,
            HEADER.size - _COUNT.size,
        )
    if count * ENTRY.size > left:
        at = HEADER.size + left // ENTRY.size * ENTRY.size
        raise _schema(f"{count} entries need {count * ENTRY.size} bytes, but {left} remain", path, at)
    computed = crc32c(memoryview(data)[CRC_COVERS_FROM:])
    if computed != crc:
        raise CorruptSnapshotException(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {crc}. Computed crc: {computed}",
            path=path,
            hint=_WHAT_TO_DO,
        )
    end = HEADER.size + count * ENTRY.size
    return [ProducerSnapshotEntry(*values) for values in ENTRY.iter_unpack(memoryview(data)[HEADER.size : end])]


def _schema(why: str, path: str | None, position: int) -> CorruptSnapshotException:
    return CorruptSnapshotException(
        f"Snapshot failed schema validation: {why}", path=path, position=position, hint=_WHAT_TO_DO
    )


def read_snapshot(path: str, files: Files = OS_FILES) -> list[ProducerSnapshotEntry]:
    """Returns the entries of a snapshot file.  Raises CorruptSnapshotException and OSError."""
    data = read_small(path, files, hint=_WHAT_TO_DO, error=CorruptSnapshotException)
    return decode_snapshot(data, path=path)


def write_snapshot(
    path: str,
    entries: Iterable[ProducerSnapshotEntry],
    files: Files = OS_FILES,
    *,
    sync: bool = True,
    ordered: bool = False,
) -> None:
    """Writes a snapshot file, over an existing one if there is one (see above).  `sync` syncs it.  Raises OSError."""
    data = encode_snapshot(entries, ordered=ordered)
    try:
        with files.open(path, create=True) as file:
            file.pwrite(data, 0)
            if sync:
                file.sync()
    except BaseException as error:
        if not isinstance(error, Exception) or is_shortage(error):  # no file is better than half of one
            with contextlib.suppress(OSError):
                files.unlink_if_exists(path)
        raise
