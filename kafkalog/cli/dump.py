"""`kafkalog dump`: prints the contents of single files as kafka-dump-log does, and text files such as checkpoints."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.cli import dump_decoders as decoders
from kafkalog.cli import dump_lines as lines
from kafkalog.cli.app import CLEAN, FINDINGS, LocalPath, Usage
from kafkalog.cli.console import emit, emit_json, note
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import MIN_RECORD_OVERHEAD, RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.index_entries import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from kafkalog.engine.format.records import READ_BYTES_MAX, in_parts
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.segment.file_records import walk_headers
from kafkalog.engine.segment.scan import LARGE_BATCH_BYTES, crc_matches_in
from kafkalog.errors import (
    BadBytesError,
    CorruptCheckpointException,
    CorruptIndexException,
    CorruptRecordException,
    InvalidRecordException,
    SchemaException,
)

if TYPE_CHECKING:
    import struct

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File
    from kafkalog.engine.format.records import Record

ENTRIES_AT_ONCE = 1 << 17

TEXT_FILES = (
    *names.OFFSET_CHECKPOINT_FILES,
    names.LEADER_EPOCH_CHECKPOINT_FILE,
    names.PARTITION_METADATA_FILE,
    names.META_PROPERTIES_FILE,
    names.CLEAN_SHUTDOWN_FILE,
)


@click.command("dump", short_help="Print the contents of files in the format of kafka-dump-log.")
@click.argument("paths", nargs=-1, type=LocalPath())
@click.option(
    "--files", "file_list", metavar="FILE,FILE...", help="The files, separated by commas, as for kafka-dump-log."
)
@click.option("--print-data-log", is_flag=True, help="Also print keys and payloads; implies --deep-iteration.")
@click.option("--deep-iteration", is_flag=True, help="Print the records of each batch.")
@click.option("--skip-record-metadata", is_flag=True, help="With --print-data-log: print only keys and payloads.")
@click.option("--verify-index-only", is_flag=True, help="Check indexes against the log, but print no entries.")
@click.option("--index-sanity-check", is_flag=True, help="Only do the quick check of an index that a broker does.")
@click.option(
    "--max-message-size", type=int, default=5242880, show_default=True, metavar="BYTES", help="Size limit for a batch."
)
@click.option(
    "--max-bytes",
    type=int,
    default=INT_MAX,
    show_default=True,
    metavar="BYTES",
    help="Read at most BYTES of each .log file.",
)
@click.option("--offsets-decoder", is_flag=True, help="Decode records of __consumer_offsets; implies --print-data-log.")
@click.option(
    "--transaction-log-decoder", is_flag=True, help="Decode records of __transaction_state; implies --print-data-log."
)
@click.option(
    "--cluster-metadata-decoder",
    is_flag=True,
    help="Decode records of __cluster_metadata and its snapshots; implies --print-data-log.",
)
@click.option(
    "--remote-log-metadata-decoder",
    is_flag=True,
    help="Decode records of __remote_log_metadata; implies --print-data-log.",
)
@click.option(
    "--share-group-state-decoder", is_flag=True, help="Decode records of __share_group_state; implies --print-data-log."
)
@click.option(
    "--key-decoder-class",
    is_flag=False,
    flag_value=decoders.STRING_DECODER,
    metavar="CLASS",
    help="Kafka's class for keys, with its package: StringDecoder (the default), IntegerDecoder or LongDecoder.",
)
@click.option(
    "--value-decoder-class",
    is_flag=False,
    flag_value=decoders.STRING_DECODER,
    metavar="CLASS",
    help="The same for values.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: file contents; bytes that are not UTF-8 as base64."
)
def command(paths: tuple[str, ...], file_list: str | None, **options: Any) -> int:
    """Print the contents of .log, .index, .timeindex, .txnindex and .snapshot files, and of checkpoints.

    The lines are those of kafka-dump-log: batches, records and index entries. The command changes nothing. Findings go
    to stderr, and the exit code is then 1. If several decoders are given, the first one in the order below is used.
    """
    wanted = [*paths, *(file_list.split(",") if file_list else ())]
    if not wanted:
        raise Usage("no file given, expected --files a.log,b.index or paths")
    dumper = Dumper(decoders.chosen(options), **options)
    for path in wanted:
        dumper.dump(path)
    dumper.report()
    return FINDINGS if dumper.findings else CLEAN


class Dumper:
    """Prints one file after another, and collects findings for the end."""

    def __init__(
        self,
        decoder: decoders.Decoder | None,
        *,
        deep_iteration: bool,
        skip_record_metadata: bool,
        verify_index_only: bool,
        index_sanity_check: bool,
        max_message_size: int,
        max_bytes: int,
        as_json: bool,
    ) -> None:
        self.decoder = decoder  # None: do not print keys and payloads
        self.deep = deep_iteration or decoder is not None
        self.metadata = not skip_record_metadata
        self.verify_only = verify_index_only
        self.sanity_only = index_sanity_check
        self.max_message_size = max_message_size
        self.max_bytes = max_bytes
        self.as_json = as_json
        self.findings = 0
        self._index_mismatches: dict[str, dict[int, int]] = {}
        self._time_mismatches: dict[str, list[tuple[int, int]]] = {}
        self._time_disorder: dict[str, list[tuple[int, int]]] = {}
        self._not_found: dict[str, list[tuple[int, int]]] = {}
        self._gaps: dict[str, dict[int, int]] = {}

    def _say(self, line: str, value: dict[str, Any]) -> None:
        if self.as_json:
            emit_json(value)
        else:
            emit(line)

    def dump(self, path: str) -> None:
        """Prints one file; the last suffix of its name decides how."""
        name = os.path.basename(path)
        stem, dot, _ = name.rpartition(".")
        suffix = name[len(stem) :] if dot else ""
        if not OS_FILES.exists(path):
            raise Usage(f"{path}: not found, expected a file of a partition or log directory")
        if OS_FILES.is_dir(path):
            raise Usage(f"{path}: found a directory, expected files (`kafkalog describe` shows directories)")
        self._say(f"Dumping {path}", {"kind": "file", "path": path})
        if name in TEXT_FILES:
            self._dump_text(path)
        elif suffix == names.LOG_FILE_SUFFIX or suffix == ".checkpoint":
            self._dump_log(path, name)
        elif suffix == names.INDEX_FILE_SUFFIX:
            self._dump_index(path, _base_offset(name))
        elif suffix == names.TIME_INDEX_FILE_SUFFIX:
            self._dump_time_index(path, _base_offset(name))
        elif suffix == names.TXN_INDEX_FILE_SUFFIX:
            self._dump_txn_index(path)
        elif suffix == names.PRODUCER_SNAPSHOT_FILE_SUFFIX:
            self._dump_snapshot(path)
        else:
            note(f"Ignoring unknown file {path}")

    # --- logs ----------------------------------------------------------------------------------------

    def _dump_log(self, path: str, name: str) -> None:
        if name.endswith(names.LOG_FILE_SUFFIX):
            base = _base_offset(name)
            self._say(f"Log starting offset: {base}", {"kind": "log", "startOffset": base})
        elif name == "bootstrap.checkpoint":
            self._say("KRaft bootstrap snapshot", {"kind": "bootstrap"})
        else:
            end, epoch = _kraft_snapshot_id(name)
            self._say(
                f"Snapshot end offset: {end}, epoch: {epoch}", {"kind": "snapshot", "endOffset": end, "epoch": epoch}
            )
        with OS_FILES.open(path, writable=False) as file:
            size = min(file.size(), self.max_bytes)
            valid_bytes = 0
            last_offset = -1
            try:
                for header in walk_headers(file, 0, size):
                    last_offset = self._dump_batch(file, path, header, last_offset)
                    valid_bytes = header.position + header.size
            except (CorruptRecordException, InvalidRecordException, SchemaException) as error:
                self.findings += 1
                error.path = error.path or path
                note(f"{error}")
            if size > valid_bytes and self.max_bytes == INT_MAX:
                self.findings += 1
                self._say(
                    f"Found {size - valid_bytes} invalid bytes at the end of {name}",
                    {"kind": "invalidBytes", "bytes": size - valid_bytes},
                )

    def _dump_batch(self, file: File, path: str, header: BatchHeader, last_offset: int) -> int:
        if header.size > LARGE_BATCH_BYTES and not crc_matches_in(file, header.position, header.size):
            self.findings += 1
            self._say(lines.batch_line(header, False), lines.batch_json(header, False) if self.as_json else {})
            if self.deep:
                note(
                    f"{path}: bytes {header.position} to {header.position + header.size}: no records, the CRC is wrong"
                )
            return last_offset
        data = file.pread(header.size, header.position)
        if header.magic >= 2 or not header.is_compressed:
            valid = header.size >= (
                RECORD_BATCH_OVERHEAD if header.magic >= 2 else MIN_RECORD_OVERHEAD
            ) and native.crc_matches(data)
        else:
            valid = native.crc_matches(data)
        self.findings += not valid
        self._say(lines.batch_line(header, valid), lines.batch_json(header, valid) if self.as_json else {})
        if self.deep:
            for record in itertools.chain.from_iterable(in_parts(data, header, at=0, max_bytes=READ_BYTES_MAX)):
                if record.offset != last_offset + 1:
                    self._gaps.setdefault(os.path.abspath(path), {})[last_offset] = record.offset
                last_offset = record.offset
                self._dump_record(path, header, record)
        return last_offset

    def _dump_record(self, path: str, header: BatchHeader, record: Record) -> None:
        text, value = decoders.control_contents(record) if header.is_control else ("", None)
        decoded = None
        if self.decoder is not None and not header.is_control:
            decoded = self.decoder.decode(record)
            self.findings += decoded.wrong or bool(decoded.refusal)
        if not self.as_json:
            emit(lines.record_line(header, record, text, decoded, metadata=self.metadata))
        else:
            fields = {} if self.decoder is None or decoded is None else self.decoder.to_json(record, decoded)
            emit_json(lines.record_json(header, record, value) | fields)
        if decoded is not None and decoded.refusal:  # Kafka's tool ends here with a stack trace
            note(f"{path}: {decoded.refusal}")

    # --- indexes -------------------------------------------------------------------------------------

    def _dump_index(self, path: str, base: int) -> None:
        entries = [(base + offset, position) for offset, position in _entries(path, OFFSET_ENTRY)]
        log_path = _sibling(path, names.LOG_FILE_SUFFIX)
        if not entries:
            self._say(f"{path} is empty.", {"kind": "empty"})
            return
        if self.sanity_only:
            self._check_sanity(path, OFFSET_ENTRY.size, entries[-1][0] < base, "index", "Index")
            return
        with OS_FILES.open(log_path, writable=False) as log:
            for number, (offset, position) in enumerate(entries):
                if offset == base and number > 0:
                    return  # unused slots of a preallocated index
                found = _last_offset_at(log, position, self.max_message_size)
                if found != offset:
                    self._index_mismatches.setdefault(os.path.abspath(path), {})[offset] = found
                if not self.verify_only:
                    self._say(
                        lines.offset_entry_line(offset, position),
                        {"kind": "indexEntry", "offset": offset, "position": position},
                    )

    def _dump_time_index(self, path: str, base: int) -> None:
        entries = [(timestamp, base + offset) for timestamp, offset in _entries(path, TIME_ENTRY)]
        if self.sanity_only:
            bad = bool(entries) and (entries[-1][0] < entries[0][0] or entries[-1][1] < base)
            self._check_sanity(path, TIME_ENTRY.size, bad, "time index", "Time index")
            return
        where = os.path.abspath(path)
        index_path = _sibling(path, names.INDEX_FILE_SUFFIX)
        positions: list[tuple[int, int]] = []
        if OS_FILES.exists(index_path):
            for offset, position in _entries(index_path, OFFSET_ENTRY):
                if positions and offset <= positions[-1][0] - base:
                    break
                positions.append((base + offset, position))
        previous = -1
        with OS_FILES.open(_sibling(path, names.LOG_FILE_SUFFIX), writable=False) as log:
            for number, (timestamp, offset) in enumerate(entries):
                if offset == base and number > 0:
                    return
                start = max((position for known, position in positions if known <= offset), default=0)
                header = next((h for h in _headers(log, start) if h.last_offset >= offset), None)
                if header is None:
                    self._not_found.setdefault(where, []).append((offset, -1))
                elif header.last_offset != offset:
                    self._not_found.setdefault(where, []).append((offset, header.last_offset))
                else:
                    batch = log.pread(header.size, header.position)
                    parts = in_parts(batch, header, at=0, max_bytes=READ_BYTES_MAX)
                    largest = max((record.timestamp for part in parts for record in part), default=-1)
                    if largest != timestamp:
                        self._time_mismatches.setdefault(where, []).append((timestamp, largest))
                    if previous >= timestamp:
                        self._time_disorder.setdefault(where, []).append((timestamp, previous))
                if not self.verify_only:
                    self._say(
                        lines.time_entry_line(timestamp, offset),
                        {"kind": "timeIndexEntry", "timestamp": timestamp, "offset": offset},
                    )
                previous = timestamp

    def _check_sanity(self, path: str, entry_bytes: int, bad: bool, what: str, title: str) -> None:
        size = OS_FILES.stat(path).size
        if bad:
            self.findings += 1
            note(str(CorruptIndexException(f"Corrupt {what} found, its last entry does not fit", path=path)))
        elif size % entry_bytes:
            self.findings += 1
            note(
                f"{title} file {path} is corrupt, found {size} bytes which is neither positive nor a multiple of "
                f"{entry_bytes}"
            )
        else:
            self._say(f"{path} passed sanity check.", {"kind": "sane"})

    def _dump_txn_index(self, path: str) -> None:
        for version, producer_id, first, last, stable in _entries(path, TXN_ENTRY):
            self._say(
                lines.aborted_line(version, producer_id, first, last, stable),
                {
                    "kind": "abortedTransaction",
                    "version": version,
                    "producerId": producer_id,
                    "firstOffset": first,
                    "lastOffset": last,
                    "lastStableOffset": stable,
                },
            )

    # --- snapshots and texts -------------------------------------------------------------------------

    def _dump_snapshot(self, path: str) -> None:
        try:
            entries = read_snapshot(path, OS_FILES)
        except BadBytesError as error:
            self.findings += 1
            note(str(error))
            return
        for entry in entries:
            self._say(lines.snapshot_line(entry), {"kind": "producer"} | lines.snapshot_json(entry))

    def _dump_text(self, path: str) -> None:
        try:
            text = read_small(path).decode(errors="replace")
        except CorruptCheckpointException as error:
            self.findings += 1
            note(str(error))
            return
        for line in text.splitlines():
            self._say(line, {"kind": "line", "text": line})

    # --- the end -------------------------------------------------------------------------------------

    def report(self) -> None:
        """Prints all findings to stderr, in the words of kafka-dump-log."""
        for path, mismatches in self._index_mismatches.items():
            note(f"Mismatches in :{path}")
            for offset in sorted(mismatches, reverse=True):
                note(f"  Index offset: {offset}, log offset: {mismatches[offset]}")
        for path, pairs in self._time_mismatches.items():
            note(f"Found timestamp mismatch in :{path}")
            for indexed, found in pairs:
                note(f"  Index timestamp: {indexed}, log timestamp: {found}")
        for path, pairs in self._time_disorder.items():
            note(f"Found out of order timestamp in :{path}")
            for indexed, before in pairs:
                note(f"  Index timestamp: {indexed}, Previously indexed timestamp: {before}")
        for path, pairs in self._not_found.items():
            note(f"The following indexed offsets are not found in :{path}")
            for offset, found in pairs:
                note(f"Indexed offset: {offset}, found log offset: {found}")
        for path, gaps in self._gaps.items():
            note(f"Non-consecutive offsets in {path}")
            for before in sorted(gaps):
                note(f"  {before} is followed by {gaps[before]}")
        # A gap is not a finding: compaction leaves gaps, and every segment but the first begins with one here.
        self.findings += sum(
            len(found)
            for table in (self._index_mismatches, self._time_mismatches, self._time_disorder, self._not_found)
            for found in table.values()
        )


def _base_offset(name: str) -> int:
    try:
        return names.offset_from_filename(name)
    except ValueError:
        raise Usage(
            f"{name}: the name has no base offset, expected such as 00000000000000000042{os.path.splitext(name)[1]}"
        ) from None


def _kraft_snapshot_id(name: str) -> tuple[int, int]:
    offset, dash, epoch = name.removesuffix(".checkpoint").partition("-")
    if not (dash and name.isascii() and offset.isdigit() and epoch.isdigit()):
        raise Usage(f"{name}: no KRaft snapshot, expected a name such as 00000000000000000042-0000000001.checkpoint")
    return int(offset), int(epoch)


def _sibling(path: str, suffix: str) -> str:
    sibling = os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0] + suffix)
    if suffix == names.LOG_FILE_SUFFIX and not OS_FILES.exists(sibling):
        raise Usage(f"{path}: the segment {sibling} is missing, expected it next to its index")
    return sibling


def _entries(path: str, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Yields the entries of an index, up to the first long run of zeros: preallocated space, or a damaged size."""
    position = 0
    with OS_FILES.open(path, writable=False) as file:
        while data := file.pread(ENTRIES_AT_ONCE * layout.size, position):
            yield from layout.iter_unpack(data[: len(data) // layout.size * layout.size])
            if not any(data):
                return
            position += len(data)


def _headers(log: File, start: int) -> Iterator[BatchHeader]:
    try:
        yield from walk_headers(log, start, log.size())
    except CorruptRecordException:
        return


def _last_offset_at(log: File, position: int, max_bytes: int) -> int:
    """Returns the last offset of the batch at a position, or -1 if there is no batch."""
    if not 0 <= position < log.size():
        return -1
    end = min(log.size(), position + max_bytes)
    try:
        header = next(walk_headers(log, position, end, window_bytes=128), None)
    except CorruptRecordException:
        return -1
    return -1 if header is None else header.last_offset
