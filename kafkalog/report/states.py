"""The tables of transactions and producers: the state that a partition has beside its records.

Open transactions, and the numbers about them, are those of `kafkalog transactions`.  Transactions that ended come from
their markers, and aborted ones also from the index of aborted ones.  Without depth, only the newest part of each log is
read, by the headers of its batches.  `survey.facts` says how many bytes that were, and what was left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.report.tables import if_known
from kafkalog.toolbox.known_transactions import KnownTransactions
from kafkalog.toolbox.open_transactions import HANGING_AFTER_MS, find_transactions
from kafkalog.toolbox.producers import find_producers

if TYPE_CHECKING:
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.report.tables import Survey
    from kafkalog.toolbox.open_transactions import PartitionTransactions

PARTITION_BYTES_MAX = 64 << 20  # without depth: the newest part of a log that is read
SURVEY_BYTES_MAX = 256 << 20  # the same, of all logs together
ENDED_MAX = 500  # rows of transactions that ended, of a partition
ENDED_OF_SURVEY_MAX = 20_000
PRODUCERS_MAX = 500  # rows of producers, of a partition
PRODUCERS_OF_SURVEY_MAX = 20_000


def _count(survey: Survey, fact: str, number: int) -> None:
    survey.facts[fact] = survey.facts.get(fact, 0) + number


def _bytes_left(survey: Survey, fact: str) -> int | None:
    """Returns how much of the next log may be read; None if all of it."""
    if survey.deep:
        return None
    read_bytes: int = survey.facts.get(fact, 0)
    return max(0, min(PARTITION_BYTES_MAX, SURVEY_BYTES_MAX - read_bytes))


def add_transactions(
    survey: Survey,
    log_dir: str,
    view: PartitionView,
    *,
    hanging_after_ms: int = HANGING_AFTER_MS,
    files: Files = OS_FILES,
) -> PartitionTransactions:
    """Adds the rows of a partition's transactions: open ones first, then the newest that ended.  Raises the errors of
    `find_transactions`."""
    fact = "transactionBytesRead"
    found = find_transactions(
        view,
        survey.now_ms,
        hanging_after_ms=hanging_after_ms,
        files=files,
        progress=lambda size_bytes: _count(survey, fact, size_bytes),
        bytes_max=_bytes_left(survey, fact),
        ended_max=ENDED_MAX,
    )
    table = survey.tables["transactions"]
    topic, partition = view.topic_partition
    _count(survey, "openTransactions", len(found.open))
    _count(survey, "hangingTransactions", found.hanging)
    if found.read_from > found.log_start_offset:
        _count(survey, "transactionsReadInPart", 1)
    for txn in sorted(found.open, key=lambda each: (not each.hanging, each.first_offset)):
        table.add(
            topic=topic,
            partition=partition,
            state="hanging" if txn.hanging else "open",
            producerId=txn.producer_id,
            producerEpoch=if_known(txn.producer_epoch),
            firstOffset=txn.first_offset,
            lastOffset=if_known(txn.last_offset),
            startTimestamp=if_known(txn.start_timestamp),
            lastTimestamp=if_known(txn.last_timestamp),
            records=if_known(txn.records),
            ageMs=txn.age_ms,
            heldRecords=if_known(txn.held_records),
        )
    rows = _ended(found, view)
    told = min(len(rows), ENDED_MAX, max(0, ENDED_OF_SURVEY_MAX - len(table)))
    survey.leave_out("transactions", max(found.ended_count, len(rows)) - told)
    for row in rows[len(rows) - told :]:
        table.add(topic=topic, partition=partition, **row)
    return found


def _ended(found: PartitionTransactions, view: PartitionView) -> list[dict[str, Any]]:
    """Returns the transactions that ended, in the order of their markers."""
    indexed = {(txn.producer_id, txn.last_offset): txn.first_offset for txn in view.aborted}
    rows = {}
    for txn in found.ended:
        first = txn.first_offset
        if txn.aborted:
            aborted_at = indexed.pop((txn.producer_id, txn.last_offset), -1)
            first = aborted_at if first < 0 else first
        rows[txn.last_offset] = {
            "state": "aborted" if txn.aborted else "committed",
            "producerId": txn.producer_id,
            "producerEpoch": txn.producer_epoch,
            "firstOffset": if_known(first),
            "lastOffset": txn.last_offset,
            "startTimestamp": if_known(txn.start_timestamp),
            "lastTimestamp": if_known(txn.last_timestamp),
            "records": if_known(txn.records),
        }
    for (producer_id, last), first in indexed.items():
        if last < found.log_start_offset:
            continue
        rows.setdefault(
            last, {"state": "aborted", "producerId": producer_id, "firstOffset": if_known(first), "lastOffset": last}
        )
    return [rows[last] for last in sorted(rows)]


def add_producers(survey: Survey, log_dir: str, view: PartitionView, *, files: Files = OS_FILES) -> None:
    """Adds the rows of the producers that a partition knows, those that wrote last first."""
    fact = "producerBytesRead"
    bytes_max = _bytes_left(survey, fact)
    found = find_producers(view, bytes_max=bytes_max, files=files)
    if found.known_to < view.log_end_offset:
        _count(survey, "producersKnownInPart", 1)
    _count(survey, fact, found.bytes_read)
    table = survey.tables["producers"]
    topic, partition = view.topic_partition
    entries = sorted(found.entries.values(), key=lambda entry: (-entry.last_timestamp, entry.producer_id))
    told = min(PRODUCERS_MAX, max(0, PRODUCERS_OF_SURVEY_MAX - len(table)))
    _count(survey, "producers", len(entries))
    survey.leave_out("producers", len(entries) - told)
    for entry in entries[:told]:
        table.add(
            topic=topic,
            partition=partition,
            producerId=entry.producer_id,
            producerEpoch=if_known(entry.producer_epoch),
            lastSequence=if_known(entry.last_seq),
            lastOffset=if_known(entry.last_data_offset),
            lastTimestamp=if_known(entry.last_timestamp),
            coordinatorEpoch=if_known(entry.coordinator_epoch),
            currentTxnFirstOffset=entry.current_txn_first_offset,
        )


def add_transactional_ids(survey: Survey, *, files: Files = OS_FILES) -> None:
    """Fills the columns `transactionalId` from `__transaction_state` of the log directories.  Call it last."""
    tables = [survey.tables[name] for name in ("transactions", "producers")]
    if not any(len(table) for table in tables):
        return
    for log_dir in survey.log_dirs:
        known = KnownTransactions(log_dir, files=files)
        for table in tables:
            ids = table.columns["transactionalId"]
            for row, producer_id in enumerate(table.columns["producerId"]):
                holder = known.of_producer(producer_id)
                if holder is not None:
                    ids[row] = holder.transactional_id
