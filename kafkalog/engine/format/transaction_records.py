"""Transactions as `__transaction_state` holds them: a transactional id, and the state of its transaction.

This module knows the content of records.  The coordinator decides which state follows which, and what must be durable
before what.  Source: TransactionLog, TransactionState, TransactionMetadata (4.4.0).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format.coordinator_records import by_topic, listed, transaction_record_set
from kafkalog.engine.format.messages import Values
from kafkalog.errors import SchemaException

if TYPE_CHECKING:
    from typing_extensions import Buffer

TRANSACTION = 0  # the only record type
TRANSACTION_VERSION = 1  # the version that 4.4.0 writes, unless the feature transaction.version is 0
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


class TransactionState(enum.IntEnum):
    """The state of a transaction; DEAD and PREPARE_EPOCH_FENCE are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TransactionMetadata(NamedTuple):
    """The state of a transactional id.

    `partitions` holds partitions by topic, in their order; it is None (not empty) while the state is EMPTY.  Timestamps
    are milliseconds since 1970; the start is -1 before the first transaction.  Only version 1 has the fields after
    `start_timestamp`.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: Mapping[str, Sequence[int]] | None
    last_update_timestamp: int
    start_timestamp: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_PRODUCER_EPOCH


def encode_transaction(
    transactional_id: str, value: TransactionMetadata | None, *, version: int = TRANSACTION_VERSION
) -> tuple[bytes, bytes | None]:
    """Returns a record's key and value; the value None deletes the id.  Version 0 drops fields it cannot hold."""
    records = transaction_record_set()
    key = records.encode_key(TRANSACTION, {"transactionalId": transactional_id})
    if value is None:
        return key, None
    partitions = value.partitions
    fields: Values = {
        "producerId": value.producer_id,
        "producerEpoch": value.producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": int(value.state),
        "transactionPartitions": None if partitions is None else listed(partitions, "partitionIds"),
        "transactionLastUpdateTimestampMs": value.last_update_timestamp,
        "transactionStartTimestampMs": value.start_timestamp,
    }
    if version >= 1:
        fields |= {
            "previousProducerId": value.previous_producer_id,
            "nextProducerId": value.next_producer_id,
            "clientTransactionVersion": value.client_transaction_version,
            "nextProducerEpoch": value.next_producer_epoch,
        }
    return key, records.encode_value(TRANSACTION, fields, version)


def decode_transaction(key: Buffer | None, value: Buffer | None) -> tuple[str, TransactionMetadata | None]:
    """Returns the transactional id and its state; the state None means deleted.

    Raises UnknownRecordTypeException and UnknownRecordVersionException for records that Kafka skips.  Raises
    SchemaException for bytes that are not such a record, and for an unknown state.
    """
    record = transaction_record_set().decode(key, value)
    name: str = record.key["transactionalId"]
    fields = record.value
    if fields is None:
        return name, None
    try:
        state = TransactionState(fields["transactionStatus"])
    except ValueError:
        raise SchemaException(
            f"transactional id {name!r}: found the state {fields['transactionStatus']}, expected 0 to 7"
        ) from None
    partitions = fields["transactionPartitions"]
    return name, TransactionMetadata(
        producer_id=fields["producerId"],
        producer_epoch=fields["producerEpoch"],
        timeout_ms=fields["transactionTimeoutMs"],
        state=state,
        partitions=None if partitions is None else by_topic(partitions, "partitionIds"),
        last_update_timestamp=fields["transactionLastUpdateTimestampMs"],
        start_timestamp=fields["transactionStartTimestampMs"],
        previous_producer_id=fields.get("previousProducerId", NO_PRODUCER_ID),
        next_producer_id=fields.get("nextProducerId", NO_PRODUCER_ID),
        client_transaction_version=fields.get("clientTransactionVersion", 0),
        next_producer_epoch=fields.get("nextProducerEpoch", NO_PRODUCER_EPOCH),
    )
