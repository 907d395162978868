"""A table of cases: the markers that a pass still needs, and the aborted transactions that it keeps in the index."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog._native.codec import batches as native
from kafkalog.engine.cleaner.transactions import CleanedTransactionMetadata
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.builder import MemoryRecordsBuilder, empty_batch_header
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.segment.transaction_index import AbortedTxn, TransactionIndex
from kafkalog.errors import IllegalArgumentException, InvalidRecordException

ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT


class Fed:
    """Feeds a CleanedTransactionMetadata with batches at given offsets."""

    def __init__(self, index: TransactionIndex | None = None) -> None:
        self.metadata = CleanedTransactionMetadata()
        self.metadata.cleaned_index = index

    def data(self, producer_id: int, offset: int, *, transactional: bool = True, count: int = 1) -> bool:
        builder = MemoryRecordsBuilder(
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=transactional,
        )
        for _ in range(count):
            builder.append(0, b"k", b"v")
        return self.metadata.on_batch_read(native.header_at(builder.build()))

    def marker(self, producer_id: int, offset: int, kind: ControlRecordType) -> bool:
        data = end_txn_marker_batch(offset, 0, 0, producer_id, 0, EndTransactionMarker(kind, 0))
        return self.metadata.on_control_batch_read(data, native.header_at(data))


def aborted(producer_id: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(producer_id, first, last, last + 1)


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    return TransactionIndex(0, str(tmp_path / "00000000000000000000.txnindex"), OS_FILES)


def test_a_batch_without_a_transaction_is_kept() -> None:
    fed = Fed()
    fed.metadata.add_aborted_transactions([aborted(1, 0, 9)])
    assert not fed.data(1, 0, transactional=False)


def test_aborted_data_goes_and_its_marker_stays_with_an_index_entry(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 2)])
    assert fed.data(1, 0)
    assert fed.data(1, 1)
    assert not fed.marker(1, 2, ABORT)
    assert index.all_aborted_txns() == [aborted(1, 0, 2)]
    assert fed.marker(1, 2, ABORT)  # the marker ends no transaction
    assert not fed.data(1, 3)  # another transaction of that producer


def test_an_abort_of_which_no_data_is_left_may_go(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 2)])
    assert fed.marker(1, 2, ABORT)
    assert index.is_empty


def test_an_unknown_abort_may_go(index: TransactionIndex) -> None:
    assert Fed(index).marker(1, 2, ABORT)
    assert index.is_empty


def test_a_commit_may_go_once_its_data_has_gone() -> None:
    fed = Fed()
    assert not fed.data(1, 0)
    assert not fed.data(2, 1)
    assert not fed.marker(1, 2, COMMIT)
    assert fed.marker(1, 3, COMMIT)
    assert not fed.marker(2, 4, COMMIT)


def test_a_transaction_begins_with_its_first_offset_and_not_before() -> None:
    fed = Fed()
    fed.metadata.add_aborted_transactions([aborted(1, 5, 8)])
    assert not fed.data(1, 3)  # an earlier transaction's, which was committed
    assert not fed.marker(1, 4, COMMIT)
    assert fed.data(1, 5)


def test_the_last_offset_of_a_batch_begins_a_transaction() -> None:
    fed = Fed()
    fed.metadata.add_aborted_transactions([aborted(1, 5, 8)])
    assert fed.data(1, 3, count=3)  # its last offset is 5


def test_of_a_producer_the_first_open_one_counts(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 4, 6), aborted(1, 0, 2)])
    assert fed.data(1, 0)
    assert fed.data(1, 4)  # no marker in between: the one at 0 is still under way
    assert not fed.marker(1, 6, ABORT)
    assert index.all_aborted_txns() == [aborted(1, 0, 2)]


def test_what_is_told_twice_happens_once(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 4)])
    assert fed.data(1, 0)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 4)])  # the next segment's index has it too
    assert fed.data(1, 2)
    assert not fed.marker(1, 4, ABORT)
    assert index.all_aborted_txns() == [aborted(1, 0, 4)]


def test_a_marker_too_begins_what_lies_before_it(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 2)])
    assert fed.marker(1, 2, ABORT)
    assert not fed.data(1, 3)  # it is over


def test_entries_come_in_the_order_of_the_markers(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 5), aborted(2, 1, 3)])
    assert fed.data(1, 0)
    assert fed.data(2, 1)
    assert not fed.marker(2, 3, ABORT)
    assert not fed.marker(1, 5, ABORT)
    assert index.all_aborted_txns() == [aborted(2, 1, 3), aborted(1, 0, 5)]


def test_without_an_index_nothing_is_written() -> None:
    fed = Fed()  # as the map is built
    fed.metadata.add_aborted_transactions([aborted(1, 0, 2)])
    assert fed.data(1, 0)
    assert not fed.marker(1, 2, ABORT)


def test_the_index_refuses_markers_that_go_back(index: TransactionIndex) -> None:
    fed = Fed(index)
    fed.metadata.add_aborted_transactions([aborted(1, 0, 7), aborted(2, 1, 7)])
    assert fed.data(1, 0)
    assert fed.data(2, 1)
    assert not fed.marker(1, 7, ABORT)
    with pytest.raises(IllegalArgumentException, match="must increase sequentially"):
        fed.marker(2, 7, ABORT)


def test_a_control_batch_without_a_record_may_go() -> None:
    data = empty_batch_header(
        base_offset=3, last_offset=3, timestamp_type="CreateTime", timestamp=0, is_control_batch=True
    )
    assert CleanedTransactionMetadata().on_control_batch_read(data, native.header_at(data))


def test_other_control_records_never_go() -> None:
    builder = MemoryRecordsBuilder(is_control_batch=True, producer_id=1, producer_epoch=0)
    value = bytes.fromhex("000000000001020000000100020000000100 00")
    builder.append_control_record(0, ControlRecordType.LEADER_CHANGE, value)
    data = builder.build()
    assert not CleanedTransactionMetadata().on_control_batch_read(data, native.header_at(data))


def test_a_control_record_without_a_key_is_an_error() -> None:
    builder = MemoryRecordsBuilder(is_control_batch=True)
    builder._append(0, True, 0, None, b"", ())
    data = builder.build()
    with pytest.raises(InvalidRecordException, match="control record key"):
        CleanedTransactionMetadata().on_control_batch_read(data, native.header_at(data))
