"""Shows the producers that a partition knows: the newest producer snapshot, and what the log has after it.

The rules are those of a load (`log.replay`): the same entries, and the same batches that change them.  A load also
forgets producers that were silent for producer.id.expiration.ms; here they are shown.  Only reads, takes no lock.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.log.producer_append import ProducerAppendInfo, ProducerStateEntry
from kafkalog.engine.log.producers import entry_from_snapshot
from kafkalog.engine.log.replay import rows_to_replay
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import CorruptRecordException, KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.engine.segment.scan import ScanSlice

__all__ = ["KnownProducers", "find_producers"]


@dataclass
class KnownProducers:
    """The producers of one partition, by id, as the log had them at offset `known_to`.  That is before the log's end if
    damage follows, or if more than `bytes_max` bytes come after the newest snapshot."""

    entries: dict[int, ProducerStateEntry] = field(default_factory=dict)
    known_to: int = 0
    bytes_read: int = 0


def find_producers(view: PartitionView, *, bytes_max: int | None = None, files: Files = OS_FILES) -> KnownProducers:
    """Returns the producers of a view.  With `bytes_max`, only the snapshot counts if more of the log comes after it,
    and the log is read without CRCs."""

    def look(seen: Snapshot) -> KnownProducers:
        found = KnownProducers({}, seen.log_start_offset)
        for offset in sorted(names.offsets_in(seen.listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX), reverse=True):
            if seen.log_start_offset < offset <= seen.log_end_offset:
                with contextlib.suppress(KafkalogError, OSError):
                    entries = read_snapshot(names.producer_snapshot_file(seen.directory, offset), files)
                    found.entries = {entry.producer_id: entry_from_snapshot(entry) for entry in entries}
                    found.known_to = offset
                    break
        with contextlib.suppress(CorruptRecordException):  # reported elsewhere; nothing after it is known
            _replay(seen, found, bytes_max)
        return found

    return view.over(look)


def _replay(seen: Snapshot, found: KnownProducers, bytes_max: int | None) -> None:
    if found.known_to >= seen.log_end_offset:
        return
    place, position = seen.position_of(found.known_to)
    segments = seen.segments[place:]
    if bytes_max is not None and sum(seen.readable_bytes(each) for each in segments) - position > bytes_max:
        return
    logger = Lines("kafkalog.log", os.path.dirname(seen.directory), seen.topic_partition)
    for segment in segments:
        end = seen.readable_bytes(segment)
        scan = LogScan(seen.file(segment), position, end, check_crc=bytes_max is None)
        position = 0
        for piece in scan:
            _follow(seen, found.entries, piece, logger)
            found.known_to = int(piece.table["last_offset"][-1]) + 1
            found.bytes_read += int(piece.table["size"].sum())
        if scan.position < end:
            return
    found.known_to = seen.log_end_offset


def _follow(seen: Snapshot, entries: dict[int, ProducerStateEntry], piece: ScanSlice, logger: Lines) -> None:
    table = piece.table[rows_to_replay(piece.table, INT_MAX)]
    for header in native.headers_from_table(table[table["producer_id"] >= 0]):
        producer_id = header.producer_id
        entry = entries.get(producer_id) or ProducerStateEntry.empty(producer_id)
        change = ProducerAppendInfo(
            seen.topic_partition, producer_id, entry, AppendOrigin.REPLICATION, None, logger=logger
        )
        with contextlib.suppress(KafkalogError):  # a load would stop here; `verify --deep` reports it
            change.append(header, records=piece.data, at=header.position - piece.position)
            entry.update(change.to_entry())
            entries[producer_id] = entry


def __dir__() -> list[str]:
    return __all__
