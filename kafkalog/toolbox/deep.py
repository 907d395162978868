"""The deep part of a verification: records, sequences, transactions, snapshots and epochs are checked against the log.

It gets every valid batch of one partition in order.  Compaction and retention leave gaps, so only what neither can
explain is a finding.  Such a finding is a count that is not the number of records, or a sequence that goes back.  So is
an aborted transaction that its index does not name, an open transaction that only a snapshot has, or an epoch that the
checkpoint lacks.  Before the log start nothing is checked about producers: an open forgets producers without later
records, and they start again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.arrow import add_batches
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile
from kafkalog.engine.format.records import READ_BYTES_MAX
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.segment.index_reader import aborted_txns
from kafkalog.engine.segment.transactions import TransactionFollower, open_in_snapshot
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.report import MOST_FINDINGS, SECOND_LOOK_S
from kafkalog.toolbox.words import counted

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.segment.transaction_index import AbortedTxn
    from kafkalog.toolbox.report import Report

SEQUENCE_HALF = 1 << 30
SEQUENCE_MASK = INT_MAX


class DeepCheck:
    """Checks one partition: call `observe` with every table and its bytes, then `finish`."""

    def __init__(
        self, directory: str, listed: Sequence[str], files: Files, findings: Report, log_start: int = 0
    ) -> None:
        self._directory = directory
        self._files = files
        self._findings = findings
        self._log_start = log_start
        # A group coordinator gives each batch of a transaction's offsets the sequence 0.
        self._numbers_batches = names.parse_topic_partition_name(directory).topic != names.GROUP_METADATA_TOPIC
        self._newest = self._newest_segment(listed)
        offsets = names.offsets_in(listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX)
        self._snapshots = [(offset, names.producer_snapshot_file(directory, offset)) for offset in offsets]
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets what was seen so far, because the first segments were deleted: the log begins with what comes now."""
        self._sequences: dict[int, tuple[int, int]] = {}  # producer id -> (epoch, last sequence)
        self._transactions = TransactionFollower()
        self._epochs: dict[int, int] = {}  # leader epoch -> first offset seen
        self._aborted: list[tuple[AbortedTxn, str]] = []
        self._start: int | None = None
        self._next = 0
        self._first_hole = LONG_MAX  # the first offset that compaction removed

    def observe(self, path: str, table: np.ndarray, data: memoryview, position: int) -> None:
        """Checks valid batches; `data` holds the file from `position` on."""
        if self._start is None:
            self._start = max(int(table["base_offset"][0]), self._log_start)
            self._next = int(table["base_offset"][0])
        self._look_for_holes(table)
        self._check_records(path, table, data, position)
        modern = table["magic"] >= 2
        epochs, first = np.unique(table["leader_epoch"], return_index=True)
        for epoch, row in zip(epochs.tolist(), first.tolist(), strict=True):
            if epoch >= 0 and modern[row]:
                self._epochs.setdefault(epoch, int(table["base_offset"][row]))
        for row in np.flatnonzero(modern & (table["producer_id"] >= 0)):
            header = native.header_from_row(table[row])
            while self._snapshots and self._snapshots[0][0] <= header.base_offset:
                self._check_snapshot(*self._snapshots.pop(0))
            if header.last_offset < self._log_start:
                continue
            start = header.position - position
            self._check_producer(path, header, data[start : start + header.size])

    def _look_for_holes(self, table: np.ndarray) -> None:
        ends = np.concatenate(([self._next], table["last_offset"][:-1] + 1))
        holes = np.flatnonzero((table["base_offset"] > ends) & (table["magic"] >= 2))
        if len(holes):
            self._first_hole = min(self._first_hole, int(ends[holes[0]]))
        self._next = int(table["last_offset"][-1]) + 1

    def _check_records(self, path: str, table: np.ndarray, data: memoryview, position: int) -> None:
        """Decodes everything, and checks counts, offsets and timestamps against the headers."""
        row = 0
        while row < len(table):
            begin = row
            builder = ColumnBuilder(keys=False, values=False, headers=False)
            try:
                row = add_batches(builder, data, table, row, base_position=position, max_bytes=READ_BYTES_MAX)
            except KafkalogError as error:
                # The builder may hold a part of the batch that failed: check the batches before it separately.
                row = int(np.searchsorted(table["position"], error.position or 0))
                self._findings.add_row(path, table[row], f"records cannot be decoded: {error.message}")
                if row > begin:
                    self._check_records(path, table[begin:row], data, position)
                row += 1
                continue
            columns = builder.finish()
            if row - begin > 1 and (np.diff(columns.offsets) <= 0).any():  # offsets do not tell whose records are whose
                for each in range(begin, row):
                    self._check_records(path, table[each : each + 1], data, position)
                continue
            self._check_columns(path, table[begin:row], columns.offsets, columns.timestamps)

    def _check_columns(self, path: str, table: np.ndarray, offsets: np.ndarray, timestamps: np.ndarray) -> None:
        ends = np.searchsorted(offsets, table["last_offset"], side="right")
        counts = np.diff(ends, prepend=0)
        modern = table["magic"] >= 2
        disorder = len(offsets) > 1 and bool((np.diff(offsets) <= 0).any())
        wrong = modern & (counts != table["record_count"])
        for row in np.flatnonzero(wrong)[:MOST_FINDINGS]:
            self._findings.add_row(
                path,
                table[row],
                f"{counted(int(counts[row]), 'record')} with offsets up to {int(table['last_offset'][row])}, but the "
                f"header says {int(table['record_count'][row])}",
            )
        if disorder or wrong.any() or not len(offsets):
            if disorder and not wrong.any():
                self._findings.add_row(path, table[0], "record offsets do not increase")
            return
        filled = counts > 0
        starts = (ends - counts)[filled]
        largest = np.maximum.reduceat(timestamps, starts)
        some = table[filled]
        for row in np.flatnonzero((largest > some["max_timestamp"]) & (some["magic"] >= 1))[:MOST_FINDINGS]:
            self._findings.add_row(
                path,
                some[row],
                f"a record has timestamp {int(largest[row])}, but the header's largest is "
                f"{int(some['max_timestamp'][row])}",
            )
        for row in np.flatnonzero((offsets[starts] < some["base_offset"]) & (some["magic"] >= 2))[:MOST_FINDINGS]:
            self._findings.add_row(
                path, some[row], f"a record has offset {int(offsets[starts[row]])}, before its batch's base offset"
            )

    def _check_producer(self, path: str, header: BatchHeader, batch: memoryview) -> None:
        producer_id = header.producer_id
        marker = self._transactions.observe(header, batch)
        if marker is not None:
            try:
                aborted = marker.is_abort()
            except KafkalogError as error:
                self._batch(path, header, f"a control record cannot be parsed: {error.message}")
                return
            if aborted and marker.had_begun:
                self._aborted.append((marker.aborted, path))
            return
        if not header.is_transactional and producer_id in self._transactions.open:
            self._batch(path, header, f"a batch without a transaction, while producer {producer_id} has one open")
        if header.base_sequence < 0 or not self._numbers_batches:
            return
        epoch, last = self._sequences.get(producer_id, (-1, -1))
        if header.producer_epoch < epoch:
            self._batch(path, header, f"producer {producer_id} goes back from epoch {epoch} to {header.producer_epoch}")
        elif header.producer_epoch == epoch and (header.base_sequence - last - 1) & SEQUENCE_MASK > SEQUENCE_HALF:
            self._batch(path, header, f"producer {producer_id} has sequence {header.base_sequence} after {last}")
        self._sequences[producer_id] = (header.producer_epoch, header.last_sequence)

    def _batch(self, path: str, header: BatchHeader, what: str) -> None:
        self._findings.add(path, header.position, header.size, what)

    def _check_snapshot(self, offset: int, path: str) -> None:
        """Checks the snapshot at `offset`, when everything before it has been seen."""
        try:
            entries = read_snapshot(path, self._files)
        except (KafkalogError, FileNotFoundError):
            return  # already a finding of the shallow part, or deleted since
        for producer_id, first in open_in_snapshot(entries).items():
            seen = self._transactions.open.get(producer_id)
            if first >= self._first_hole:
                continue  # its first records may be removed: cleaning a segment does not change its snapshot
            if self._start is not None and first >= self._start and (seen is None or seen > first):
                self._findings.add(
                    path, 0, 0, f"it has an open transaction of producer {producer_id} from offset {first}, "
                    "which the log does not have",
                )  # fmt: skip

    def finish(self, log_end_offset: int) -> None:
        """Checks what is only known at the end."""
        for offset, path in self._snapshots:
            if offset > log_end_offset:
                if self._newest_segment(self._files.list_dir(self._directory)) > self._newest:
                    continue  # rolled meanwhile: the log continues after what we saw
                self._findings.add(
                    path, 0, 0, f"it covers offsets up to {offset}, but the log ends at {log_end_offset}"
                )
            else:
                self._check_snapshot(offset, path)
        lacking = self._lacking(self._aborted)
        problems = self._epoch_problems()
        if lacking or problems:
            time.sleep(SECOND_LOOK_S)  # entries of the last appended batches may be written a moment later
            lacking = self._lacking(lacking)
            again = self._epoch_problems()
            problems = [problem for problem in problems if problem in again]
        for txn, log_path in lacking:
            if self._files.exists(log_path):
                self._findings.add(
                    _index_of(log_path), 0, 0, f"it lacks the aborted transaction of producer {txn.producer_id} at "
                    f"offsets {txn.first_offset} to {txn.last_offset}: its records appear as committed",
                )  # fmt: skip
        path = os.path.join(self._directory, names.LEADER_EPOCH_CHECKPOINT_FILE)
        for problem in problems:
            self._findings.add(path, 0, 0, problem)

    @staticmethod
    def _newest_segment(listed: Sequence[str]) -> int:
        return max(names.offsets_in(listed), default=-1)

    def _lacking(self, aborted: list[tuple[AbortedTxn, str]]) -> list[tuple[AbortedTxn, str]]:
        """Returns the transactions that the index of their segment does not name."""
        indexed: dict[str, set[tuple[int, int]]] = {}  # path of the log -> (producer id, last offset)
        for _, log_path in aborted:
            if log_path not in indexed:
                entries = aborted_txns(self._files, _index_of(log_path))
                indexed[log_path] = {(entry.producer_id, entry.last_offset) for entry in entries}
        return [it for it in aborted if (it[0].producer_id, it[0].last_offset) not in indexed[it[1]]]

    def _epoch_problems(self) -> list[str]:
        """Returns how the checkpoint of leader epochs contradicts the log."""
        path = os.path.join(self._directory, names.LEADER_EPOCH_CHECKPOINT_FILE)
        try:
            listed = LeaderEpochCheckpointFile(path, self._files, create=False).read()
        except (KafkalogError, FileNotFoundError):
            return []
        entries = {entry.epoch: entry.start_offset for entry in listed}
        if not entries:
            return []  # a load fills an empty cache
        problems = []
        for epoch, offset in sorted(self._epochs.items()):
            if epoch >= min(entries) and epoch not in entries:
                problems.append(f"it lacks leader epoch {epoch}, which the log has from offset {offset}")
            elif epoch in entries and entries[epoch] > offset and epoch != min(entries):
                problems.append(
                    f"it has leader epoch {epoch} from offset {entries[epoch]}, but the log has it at {offset}"
                )
        return problems


def _index_of(log_path: str) -> str:
    return log_path.removesuffix(names.LOG_FILE_SUFFIX) + names.TXN_INDEX_FILE_SUFFIX
