"""The coordinator's confirmation that partitions are in a transaction (KIP-890), with a broker's errors.

A broker asks the coordinator by AddPartitionsToTxn; here both are in one process.  A client of transaction version 2
adds its partitions by writing to them.  Others have added them before, and are asked for them.
Source: AddPartitionsToTxnManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.errors import KafkalogError, KafkaStorageException

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator
    from kafkalog.engine.format.names import TopicPartition


def confirm(
    transactions: TransactionCoordinator,
    transactional_id: str | None,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    adds: bool,
    knows_abortable: bool,
) -> dict[TopicPartition, Errors]:
    """Returns the errors of the partitions that are not in the producer's transaction.  `adds`: they are added to it.
    `knows_abortable`: the client knows TRANSACTION_ABORTABLE."""
    if not transactional_id:
        return dict.fromkeys(partitions, Errors.INVALID_REQUEST)
    try:
        if adds:
            transactions.add_partitions(transactional_id, producer, partitions, TransactionVersion.TV_2)
            return {}
        missing = transactions.partitions_outside(transactional_id, producer, partitions)
    except KafkaStorageException:
        return dict.fromkeys(partitions, Errors.COORDINATOR_NOT_AVAILABLE)
    except KafkalogError as error:
        code = code_of(error)
        return dict.fromkeys(partitions, Errors.INVALID_PRODUCER_EPOCH if code is Errors.PRODUCER_FENCED else code)
    return dict.fromkeys(missing, Errors.TRANSACTION_ABORTABLE if knows_abortable else Errors.INVALID_TXN_STATE)
