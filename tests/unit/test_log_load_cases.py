"""The table of a load's decisions about transient files: complete, unambiguous, and the same as Kafka's."""

from __future__ import annotations

import itertools

import pytest

from kafkalog.engine.log.load_cases import CASES, CHECKPOINT_DELETED_SUFFIX, Action, decide, suffix_of

SUFFIXES = ("", ".deleted", CHECKPOINT_DELETED_SUFFIX, ".cleaned", ".swap")
COMBINATIONS = list(itertools.product(SUFFIXES, (False, True), (False, True), (False, True)))


@pytest.mark.parametrize(("suffix", "numbered", "above_cleaned", "in_range"), COMBINATIONS)
def test_every_combination_has_exactly_one_row(
    suffix: str, numbered: bool, above_cleaned: bool, in_range: bool
) -> None:
    fitting = [
        case
        for case in CASES
        if case.suffix == suffix
        and case.numbered in (None, numbered)
        and case.at_or_above_min_cleaned in (None, above_cleaned)
        and case.in_swap_range in (None, in_range)
    ]
    assert len(fitting) == 1
    assert decide(suffix, numbered, above_cleaned, in_range) is fitting[0]


@pytest.mark.parametrize(("suffix", "numbered", "above_cleaned", "in_range"), COMBINATIONS)
def test_the_rows_say_what_kafka_does(suffix: str, numbered: bool, above_cleaned: bool, in_range: bool) -> None:
    """The passes of Kafka's loader, written as it runs them, are the table's second opinion."""
    if suffix == ".deleted":
        expected = Action.DELETE  # pass 1, before any name is parsed
    elif suffix in (".cleaned", ".swap") and not numbered:
        expected = Action.REFUSE
    elif suffix == ".cleaned" or (suffix == ".swap" and above_cleaned):
        expected = Action.DELETE
    elif suffix == ".swap":
        expected = Action.RENAME
    else:
        expected = Action.DELETE if numbered and in_range else Action.KEEP
    assert decide(suffix, numbered, above_cleaned, in_range).then is expected


def test_rows_are_named_in_order_and_reasoned() -> None:
    names = [case.name for case in CASES]
    assert names == sorted(set(names))
    assert all(case.why for case in CASES)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("00000000000000000000.log", ""),
        ("00000000000000000000.log.deleted", ".deleted"),
        ("00000000000000000007-0000000003.checkpoint.deleted", CHECKPOINT_DELETED_SUFFIX),
        ("00000000000000000000.snapshot.deleted", ".deleted"),
        ("00000000000000000000.timeindex.cleaned", ".cleaned"),
        ("00000000000000000000.log.swap", ".swap"),
        ("leader-epoch-checkpoint", ""),
    ],
)
def test_suffix_of(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix
