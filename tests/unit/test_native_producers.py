"""The native producer entry: a ring of five batches, the check of the next batch, and the entry after it."""

from __future__ import annotations

import pytest

from kafkalog._native.codec.validation import OrdinaryBatch, OrdinaryRules
from kafkalog._native.state.producers import ProducerEntry
from kafkalog.engine.format.builder import build_batch

PID = 7
NOW = 1_700_000_000_000
RULES = OrdinaryRules(1 << 20, False, 2**63 - 1, 2**63 - 1)


def batch(sequence: int, *, epoch: int = 2, count: int = 3, transactional: bool = False) -> OrdinaryBatch:
    data = build_batch(
        [(NOW + i, b"k", b"v", ()) for i in range(count)],
        producer_id=PID, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional,
    )  # fmt: skip
    found = RULES.admit(data, NOW)
    assert found is not None
    return found


def entry(last_sequence: int | None, transaction: int | None = None) -> ProducerEntry:
    made = ProducerEntry(PID, 2, -1, -1, transaction)
    if last_sequence is not None:
        made.remember(last_sequence, 99, 0, NOW - 1)
    return made


def test_five_batches_are_remembered_and_the_oldest_goes_first() -> None:
    made = entry(None)
    assert made.is_empty
    assert made.last_batch() is None
    assert made.batches() == []
    for number in range(13):
        made.remember(number, 10 * number, number % 2, NOW + number)
        first = max(0, number - 4)
        assert made.batches() == [(n, 10 * n, n % 2, NOW + n) for n in range(first, number + 1)]
        assert made.last_batch() == made.batches()[-1]
    made.forget()
    assert made.is_empty
    assert made.batches() == []
    made.remember(1, 2, 3, 4)
    assert made.batches() == [(1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("known", "given", "goes_on"),
    [
        (entry(4), batch(5), True),
        (entry(4), batch(4), False),  # perhaps a duplicate
        (entry(4), batch(6), False),  # a gap
        (entry(None), batch(0), False),  # no previous batch
        (entry(4), batch(5, epoch=3), False),
        (entry(2**31 - 1), batch(0), False),  # continues, but the caller says so
        (entry(4), batch(5, transactional=True), False),  # begins a transaction
        (entry(4, transaction=90), batch(5), False),
        (entry(4, transaction=90), batch(5, transactional=True), True),
        (entry(4, transaction=0), batch(5, transactional=True), True),
    ],
)
def test_what_goes_on(known: ProducerEntry, given: OrdinaryBatch, goes_on: bool) -> None:
    assert known.is_continued_by(given) is goes_on


def test_the_next_sequence_may_have_been_here_before() -> None:
    # A follower takes what its leader took, in any order of sequences.
    made = entry(None)
    made.remember(7, 19, 0, NOW)
    made.remember(6, 32, 0, NOW)
    assert not made.is_continued_by(batch(7, count=1))
    assert made.is_continued_by(batch(7, count=2))


def placed(given: OrdinaryBatch, offset: int) -> OrdinaryBatch:
    given.place(offset, 0)
    return given


def test_the_next_batch_is_remembered_with_its_last_offset_and_largest_time() -> None:
    made = entry(4)
    made.continue_with(placed(batch(5), 100))
    assert made.batches() == [(4, 99, 0, NOW - 1), (7, 102, 2, NOW + 2)]
    assert made.last_timestamp == NOW + 2
    assert made.is_continued_by(batch(8))


def test_sequences_wrap_around_in_a_batch() -> None:
    made = entry(2**31 - 2)
    wrapping = batch(2**31 - 1)
    assert made.is_continued_by(wrapping)
    made.continue_with(placed(wrapping, 100))
    assert made.last_batch() == (1, 102, 2, NOW + 2)


def test_a_batch_is_found_by_its_sequences_also_around_the_end() -> None:
    made = entry(None)
    made.remember(7, 19, 2, NOW)
    made.remember(1, 32, 3, NOW + 1)  # from 2^31 - 2 on
    assert made.find(5, 7) == (7, 19, 2, NOW)
    assert made.find(2**31 - 2, 1) == (1, 32, 3, NOW + 1)
    assert made.find(6, 7) is None
    assert made.find(-2, 1) is None
