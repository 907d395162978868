"""Reads transactional ids from `__transaction_state` of a log directory, without a lock, also while a broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.coordinator.transaction_metadata import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    STATE_NAMES,
    Known,
    TransactionVersion,
)
from kafkalog.engine.coordinator.transaction_state import TransactionStatePartition
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.engine.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.toolbox.open_transactions import OpenTransaction

__all__ = ["KnownTransactions", "TransactionOf"]

UNDER_WAY = frozenset({ONGOING, PREPARE_ABORT, PREPARE_COMMIT})


class TransactionOf(NamedTuple):
    """A transactional id as partition `number` of `__transaction_state` has it."""

    transactional_id: str
    number: int
    known: Known

    @property
    def state(self) -> str:
        """The state by Kafka's name: Ongoing, CompleteAbort ..."""
        return STATE_NAMES[self.known.metadata.state]

    def is_in(self, partition: TopicPartition, txn: OpenTransaction) -> bool:
        """Returns whether an open transaction of a partition is the one that the coordinator has open.  Once decided,
        the epoch may already be the next one."""
        metadata = self.known.metadata
        epochs = (metadata.producer_epoch, metadata.producer_epoch - 1)
        return (
            metadata.state in UNDER_WAY
            and metadata.producer_id == txn.producer_id
            and txn.producer_epoch in (epochs if metadata.state is not ONGOING else epochs[:1])
            and partition in self.known.partitions
        )


class KnownTransactions:
    """The transactional ids of a log directory, read without a lock.  `problems` has the errors of partitions that
    could not be read."""

    def __init__(self, log_dir: str, *, files: Files = OS_FILES, clock: Clock = SYSTEM_CLOCK) -> None:
        self.by_id: dict[str, TransactionOf] = {}
        self.problems: list[KafkalogError] = []
        for partition in sorted(list_partitions(log_dir, files=files)):
            if partition.topic != TRANSACTION_STATE_TOPIC:
                continue
            try:
                with PartitionView(log_dir, partition, files=files) as view:
                    log = SourceStateLog(view, view.directory)
                    for entry in TransactionStatePartition(log, clock, TransactionVersion.TV_2).entries():
                        assert entry.known is not None, entry
                        name = entry.transactional_id
                        self.by_id[name] = TransactionOf(name, partition.partition, entry.known)
            except KafkalogError as error:
                self.problems.append(error)
        self._by_producer = {each.known.metadata.producer_id: each for each in self.by_id.values()}

    def of_producer(self, producer_id: int) -> TransactionOf | None:
        """Returns the transactional id with a producer id; None if there is none."""
        return self._by_producer.get(producer_id)


def __dir__() -> list[str]:
    return __all__
