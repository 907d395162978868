"""A transaction as a broker's client leaves it in one partition: the directory holds nothing else of it.

    with client_transaction(log, "job") as txn:
        txn.append(b"value")

For tests of a log's content: `Partition.transaction` would create a coordinator's topic next to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import next_sequence
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.partition import Partition


class ClientTransaction:
    """Begins with its first record; commits at the end of the block, aborts when that raises."""

    def __init__(self, log: Partition, name: str) -> None:
        assert log.appends is not None
        self.appends = log.appends
        self.producer_id = 1_000 + zlib.crc32(name.encode()) % 1_000_000
        self.active = False

    def __enter__(self) -> ClientTransaction:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.active:
            self.commit() if kind is None else self.abort()

    def begin(self) -> None:
        self.active = True

    def append(self, value: bytes | None, **fields: Any) -> int:
        row = (value, fields.get("key"), fields.get("headers", ()), fields.get("timestamp"))
        return self.append_many([row])[0]

    def append_many(self, records: Iterable[Any]) -> range:
        entry = self.appends.engine.producer_state_manager.last_entry(self.producer_id)
        sequence = 0 if entry is None or entry.last_seq < 0 else next_sequence(entry.last_seq, 1)
        return self.appends.append_as(ProducerFields(self.producer_id, 0, sequence, True), records)

    def commit(self) -> None:
        self._end(ControlRecordType.COMMIT)

    def abort(self) -> None:
        self._end(ControlRecordType.ABORT)

    def _end(self, kind: ControlRecordType) -> None:
        engine, self.active = self.appends.engine, False
        entry = engine.producer_state_manager.last_entry(self.producer_id)
        if entry is None or entry.current_txn_first_offset is None:
            return  # nothing is in it
        write_marker(self.appends, self.producer_id, kind)


def write_marker(appends: PartitionAppends, producer_id: int, kind: ControlRecordType) -> None:
    """Ends the transaction of a producer of epoch 0."""
    now_ms, epoch = appends.clock.milliseconds(), appends.leader_epoch
    marker = end_txn_marker_batch(0, now_ms, epoch, producer_id, 0, EndTransactionMarker(kind, 0))
    appends.engine.append_as_leader(marker, epoch, AppendOrigin.COORDINATOR, transaction_version=0)


def client_transaction(log: Partition, name: str) -> ClientTransaction:
    return ClientTransaction(log, name)
