"""TransactionIndex: the aborted transactions that end in a segment, for read_committed readers.

The file holds entries (`kafkalog.engine.format.index_entries.TXN_ENTRY`, version 0) in the order of the markers. The
first aborted transaction creates it; most segments have none. Mirrors
org.apache.kafka.storage.internals.log.TransactionIndex (4.4.0). Writers hold the partition's lock; readers need none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kafkalog._native.state.held import Pin
from kafkalog._native.state.tail import TransactionsEnd
from kafkalog.engine.files import File, Files, is_shortage
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.index_entries import TXN_ENTRY
from kafkalog.errors import (
    ClosedChannelException,
    CorruptIndexException,
    IllegalArgumentException,
    KafkaException,
)

VERSION = 0
REBUILD_HINT = "`kafkalog reindex` rebuilds it from the log"
_CHUNK_RECORDS = 1024
READ_LEAST_BYTES = 16 << 20  # an index may have this many bytes, however small its log is


class AbortedTxn(NamedTuple):
    """AbortedTxn: an aborted transaction and the last stable offset when its marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def __str__(self) -> str:
        return (
            f"AbortedTxn(producerId={self.producer_id}, firstOffset={self.first_offset}, "
            f"lastOffset={self.last_offset}, lastStableOffset={self.last_stable_offset})"
        )


class CompletedTransaction(Protocol):
    """The interface of CompletedTxn (kafkalog.engine.log.producers)."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def is_aborted(self) -> bool: ...


def aborted_txn_of(completed_txn: CompletedTransaction, last_stable_offset: int) -> AbortedTxn:
    """Returns the entry of a transaction that an abort ended."""
    return AbortedTxn(
        completed_txn.producer_id, completed_txn.first_offset, completed_txn.last_offset, last_stable_offset
    )


class TxnIndexSearchResult(NamedTuple):
    """TxnIndexSearchResult: the transactions found. `is_complete` if no later segment can have more."""

    aborted_transactions: list[AbortedTxn]
    is_complete: bool


class TransactionIndex(TransactionsEnd):
    """The .txnindex of the segment that starts at `start_offset`.

    A file that exists is opened at once; the first append creates a missing one. An idle file may be closed at any time
    (`kafkalog.engine.files.pool`), and is opened again by its name. `exists`: pass False if a directory listing shows
    no such file, and the disk is not asked. Later it says whether there is a file. Bytes after the last whole entry are
    not read, yet the next entry is written after them, as in Kafka.
    """

    __slots__ = ("_files", "exists", "path", "start_offset")

    channel: File | None

    def __init__(self, start_offset: int, path: str, files: Files, *, exists: bool = True) -> None:
        self.start_offset = start_offset
        self.path = path
        self._files = files
        self.end = 0  # the bytes that this index knows; the next entry goes here
        self.last_offset = None  # last one that this object appended; a reopened index knows none
        self.exists = exists and files.exists(path)
        if self.exists:
            self._open(create=False)

    @property
    def file(self) -> str:
        """Kafka's name for `path`."""
        return self.path

    def _open(self, *, create: bool) -> File:
        file, end = self._files.open_sized(self.path, create=create)
        self.end = end
        self.closed = False
        self.exists = True  # set first: appends write to an index with a channel, and readers then look for the entries
        self._files.pool.admit(self, file)
        return file

    def open_channel(self) -> File | None:
        """Returns the open file; opens it again if it was closed. None if there is none."""
        file = self.channel
        if file is None:
            if self.closed:
                raise ClosedChannelException("the transaction index is closed", path=self.path)
            if self.exists:
                file = self._files.pool.reopened(self, self, self._files)
        self.used = True
        return file

    def make_writable(self) -> File:
        """Returns the open file; creates it if there is none. Raises OSError."""
        if self.exists and not self.closed:
            file = self.open_channel()
            assert file is not None
            return file
        return self._open(create=True)

    def append(self, aborted_txn: AbortedTxn) -> None:
        """Adds an entry.

        Raises IllegalArgumentException unless its last offset is above that of the previous append.
        """
        data = self.packed([aborted_txn])
        self.make_writable().pwrite(data, self.end)
        self.end += len(data)
        self.last_offset = aborted_txn.last_offset

    def packed(self, aborted_txns: Sequence[AbortedTxn]) -> bytes:
        """Returns the bytes of new entries for a caller that writes them with its batches.

        Raises like `append`; opens nothing.
        """
        last = self.last_offset
        for txn in aborted_txns:
            if last is not None and last >= txn.last_offset:
                raise IllegalArgumentException(
                    "The last offset of appended transactions must increase sequentially, but "
                    f"{txn.last_offset} is not greater than current last offset {last} of index {self.path}"
                )
            last = txn.last_offset
        return b"".join([TXN_ENTRY.pack(VERSION, *txn) for txn in aborted_txns])

    def update(self, completed_txn: CompletedTransaction, last_stable_offset: int) -> None:
        """Adds an entry for an aborted transaction; a committed one adds nothing."""
        if completed_txn.is_aborted:
            self.append(aborted_txn_of(completed_txn, last_stable_offset))

    def _read(self) -> Iterator[tuple[AbortedTxn, int]]:
        """Yields each whole entry and its position. Raises KafkaException at an entry of another version."""
        file = self.open_channel()
        if file is None:
            return
        position, end = 0, self.end
        while end - position >= TXN_ENTRY.size:
            want = min((end - position) // TXN_ENTRY.size, _CHUNK_RECORDS) * TXN_ENTRY.size
            data = file.pread(want, position)
            for start in range(0, len(data) - TXN_ENTRY.size + 1, TXN_ENTRY.size):
                version, *fields = TXN_ENTRY.unpack_from(data, start)
                if version != VERSION:
                    raise KafkaException(
                        f"Unexpected aborted transaction version {version} in transaction index {self.path}, "
                        "supported version range is 0 to 0",
                        path=self.path,
                        position=position + start,
                        hint=REBUILD_HINT,
                    )
                yield AbortedTxn(*fields), position + start
            if len(data) < want:
                raise KafkaException(
                    f"Failed to read from the transaction index {self.path}",
                    path=self.path,
                    position=position + len(data),
                    hint=REBUILD_HINT,
                )
            position += want

    def all_aborted_txns(self) -> list[AbortedTxn]:
        return [txn for txn, _ in self._read()]

    def collect_aborted_txns(self, fetch_offset: int, upper_bound_offset: int) -> TxnIndexSearchResult:
        """Returns the transactions that may have records in [fetch_offset, upper_bound_offset)."""
        if not self.exists and not self.closed:
            return TxnIndexSearchResult([], False)
        found: list[AbortedTxn] = []
        for txn, _ in self._read():
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
                found.append(txn)
            # If a replica appends several batches at once, the last stable offset is that after the last of them.
            if min(txn.last_stable_offset, txn.last_offset + 1) >= upper_bound_offset:
                return TxnIndexSearchResult(found, True)
        return TxnIndexSearchResult(found, False)

    def truncate_to(self, offset: int) -> None:
        """Truncates the file at the first entry whose last offset is at or above `offset`."""
        new_last: int | None = None
        _pin = Pin(self)
        for txn, position in self._read():
            if txn.last_offset >= offset:
                self.make_writable()
                self.last_offset = new_last  # first: if interrupted before the truncation, the caller repeats it
                self.cut(position)
                return
            new_last = txn.last_offset

    def reset(self) -> None:
        """Empties the file, if there is one."""
        self.last_offset = None
        if self.exists and not self.closed:
            _pin = Pin(self)
            self.make_writable()
            self.cut(0)

    def sanity_check(self, log_bytes: int) -> None:
        """Raises CorruptIndexException if an entry ends before the segment starts, or if the index is far too large.

        Too large means many more entries than a log of `log_bytes` has batches. Kafka reads through them.
        """
        if not self.exists or self.closed:
            return
        most = max(log_bytes // RECORD_BATCH_OVERHEAD * TXN_ENTRY.size, READ_LEAST_BYTES)
        if self.end > most:
            raise CorruptIndexException(
                f"found {self.end} bytes, expected at most {most} for a log of {log_bytes} bytes", path=self.path
            )
        for txn, position in self._read():
            if txn.last_offset < self.start_offset:
                raise CorruptIndexException(
                    f"Last offset of aborted transaction {txn} in index {self.path} is less than start offset "
                    f"{self.start_offset}",
                    position=position,
                )

    @property
    def is_empty(self) -> bool:
        return not self.exists or self.closed or self.end < TXN_ENTRY.size

    def flush(self) -> None:
        if self.exists and not self.closed:
            file = self.open_channel()
            if file is not None:
                file.sync()

    def rename_to(self, path: str) -> None:
        """Renames the file if there is one; from now on `path` is the new path."""
        try:
            if self._files.exists(self.path):
                self._files.rename_or_was(self.path, path)
        except OSError as error:
            if not is_shortage(error):
                self.path = path
            raise
        self.path = path

    def update_parent_dir(self, parent_dir: str) -> None:
        """Records that the directory was renamed."""
        self.path = os.path.join(parent_dir, os.path.basename(self.path))

    def delete_if_exists(self) -> bool:
        """Closes and deletes the file. Returns False if there was none."""
        self.close()
        return self._files.unlink_if_exists(self.path)

    def close(self) -> None:
        """Closes the file, as soon as no reader holds it; an append opens it again."""
        self.shut()

    def __repr__(self) -> str:
        return f"TransactionIndex({self.path}, {self.end} bytes)"
