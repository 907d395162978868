"""Counts what a truncation loses, from the batches and headers that can still be read after its position.

Recovery truncates a log at the first damage, as Kafka does, and good batches after it are lost too. This module finds
them (`resync`), so that the caller can report the loss before it truncates. A damaged batch counts as many records as
its header says, if the header agrees with its neighbours. Otherwise the gap in the offsets counts, which is the upper
limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD, declared_size, magic_byte
from kafkalog.engine.segment.resync import next_batch, sensible
from kafkalog.engine.segment.scan import LogScan

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File

MISFIT = -1  # not a verdict of a scan: the batch is whole, but its offsets do not fit there (see `order`)
VERDICT_TEXT = {
    MISFIT: "a batch whose offsets are not above those before it",
    native.TORN: "a batch that ends after the end of the file",
    native.BAD_SIZE: "an impossible batch size",
    native.BAD_MAGIC: "an unknown magic",
    native.BAD_CRC: "a bad CRC",
}
ZEROS_AT_ONCE = 1 << 20


def reason(verdict: int) -> str:
    """Describes the bytes at which a scan stopped with that verdict."""
    return VERDICT_TEXT.get(verdict, "bytes at the end that are too few for a batch")


class Lost(NamedTuple):
    """A range of a log that was skipped, as `on_damage` and `salvage` report it.

    `path`, `position` and `length`: the file, the first byte of the range, and its number of bytes. `first_offset` to
    `last_offset`, both included, are the missing offsets as far as known. If last < first, no missing offset is known.
    In a compacted log some of them may not have existed before. `what`: why the range cannot be read.
    """

    path: str
    position: int
    length: int
    first_offset: int
    last_offset: int
    what: str

    def __str__(self) -> str:
        parts = [f"bytes {self.position} to {self.position + self.length}"] if self.length else []
        if self.last_offset >= self.first_offset:
            parts.append(f"offsets {self.first_offset} to {self.last_offset}")
        where = f": {', '.join(parts)}" if parts else ""
        return f"{self.path}{where}: {self.what}"


class Loss(NamedTuple):
    """The loss of a truncation: at most `records` records; `next_offset` is the offset after the last of them.

    `blank`: there are only zeros. `open_end`: the contents of the last stretch are unknown. The timestamps of the
    records are between `first_timestamp` and `last_timestamp`; -1 means unknown.
    """

    records: int
    next_offset: int
    why: str
    blank: bool
    open_end: bool
    first_timestamp: int = -1
    last_timestamp: int = -1


class Told(NamedTuple):
    """The contents of a damaged batch according to its header, if the header can be right."""

    records: int
    next_offset: int
    first_timestamp: int
    last_timestamp: int


def behind(file: File, position: int, end: int, base_offset: int) -> Loss:
    """Returns what is in [position, end) of a segment's log whose offsets begin at `base_offset`."""
    next_offset, newest = _before(file, position, base_offset)
    if all_zero(file, position, end):
        return Loss(0, next_offset, "zeros", True, False)
    records, why, open_end = 0, "", False
    times: list[int] = []  # the first and the last timestamp of each batch
    while position < end:
        scan = LogScan(file, position, end)
        whole = 0
        for piece in scan:
            table = piece.table
            whole += len(table)
            times += [int(table["base_timestamp"].min()), int(table["max_timestamp"].max())]
            records += int(np.where(table["magic"] >= 2, np.maximum(table["record_count"], 0), 1).sum())
            fitting = table["last_offset"][table["last_offset"] <= base_offset + INT_MAX]
            next_offset = max(next_offset, int(fitting.max(initial=-1)) + 1)
        why = why or ("batches that do not belong here" if whole else reason(scan.stopped))
        position = scan.position
        if position >= end:
            break
        found = next_batch(file, position + 1, end, min_offset=next_offset, base_offset=base_offset)
        told = told_by_header(file, position, base_offset, next_offset)
        if told is not None and (found is None or told.next_offset <= found.base_offset):
            records += told.records
            next_offset = told.next_offset
            is_sensible = max(newest, 0) <= told.first_timestamp <= told.last_timestamp
            if is_sensible and (found is None or told.last_timestamp <= max(found.max_timestamp, 0)):
                times += [told.first_timestamp, told.last_timestamp]
            else:
                times.append(newest)
        elif found is not None:
            times.append(newest)
            records += max(0, found.base_offset - next_offset)
        if found is None:
            open_end = told is None
            break
        position = found.position
    known = [time for time in times if time >= 0]
    first = min(known, default=newest)
    return Loss(records, next_offset, why, False, open_end, first, -1 if open_end else max(known, default=-1))


def end_before(file: File, position: int, base_offset: int) -> int:
    """Returns the offset after the last batch before `position`."""
    return _before(file, position, base_offset)[0]


def _before(file: File, position: int, base_offset: int) -> tuple[int, int]:
    """Returns that offset, and the largest timestamp of the batch (-1 if there is none)."""
    end, newest = base_offset, -1
    for piece in LogScan(file, 0, position, check_crc=False):
        end = max(end, int(piece.table["last_offset"][-1]) + 1)
        newest = int(piece.table["max_timestamp"][-1])
    return end, newest


def first_time(header: BatchHeader) -> int:
    """Returns the timestamp of the first record of a batch if its header has it, else the batch's max timestamp."""
    is_told = header.delete_horizon_ms is None and not header.log_append
    return header.base_timestamp if is_told else header.max_timestamp


def told_by_header(file: File, position: int, base_offset: int, next_offset: int) -> Told | None:
    """Returns the contents of a damaged v2 batch according to its header; None if that cannot be right."""
    head = file.pread(RECORD_BATCH_OVERHEAD, position)
    if len(head) < RECORD_BATCH_OVERHEAD or magic_byte(head) != 2:
        return None
    header = native.header_at(head)
    span = header.last_offset - header.base_offset + 1
    right = next_offset <= header.base_offset and 0 < header.count <= span and sensible(header, base_offset)
    return Told(header.count, header.last_offset + 1, first_time(header), header.max_timestamp) if right else None


def told_end(file: File, position: int, end: int, base_offset: int, next_offset: int) -> int:
    """Returns the offset after the last record that the headers of damaged batches in [position, end) describe.

    Follows the headers one after the other, while each continues where the last one ended and has one record per
    offset. Returns `next_offset` if none does.
    """
    while position < end:
        told = told_by_header(file, position, base_offset, next_offset)
        if told is None or told.next_offset - next_offset != told.records:
            break
        next_offset = told.next_offset
        position += max(declared_size(file.pread(RECORD_BATCH_OVERHEAD, position)), RECORD_BATCH_OVERHEAD)
    return next_offset


def all_zero(file: File, position: int, end: int) -> bool:
    """Returns whether a stretch of a file has only zeros: preallocated, or not written before a power loss."""
    while position < end:
        data = file.pread(min(ZEROS_AT_ONCE, end - position), position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True
