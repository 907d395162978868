"""Expressions of clients: what they may cost.  `tests/conformance` compares what they match with Kafka."""

from __future__ import annotations

import pytest

from kafkalog.engine.coordinator.topic_regex import KEPT_MAX, STATES_MAX, compile_for, compile_regex, letters_of
from kafkalog.errors import InvalidRegularExpression

NAME = ("ab" * 125)[:249]


@pytest.mark.parametrize("pattern", ["(((a|b)?){1000}){20}", "((([ab]{0,300}){0,300}))", "(a{0,1000}){0,100}b"])
def test_an_expression_of_too_many_places_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="invalid repeat count"):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", ["((a|b)?){300}", "[ab]*a[ab]{100}c?", "([ab]{0,300}c?){4}"])
def test_what_is_kept_is_bounded(pattern: str) -> None:
    regex = compile_for(letters_of([]), pattern)
    for number in range(2):
        regex.matches(f"{'ab' * number}{NAME}"[:249])
    assert len(regex._states) <= STATES_MAX
    assert 0 < regex._kept <= 2 * KEPT_MAX
    assert regex._kept >= sum(map(len, regex._steps.values()))


def test_a_long_id_takes_a_step_for_each_letter() -> None:
    name = "!" + "x" * 30_000
    regex = compile_for(letters_of([name]), "!x*x*x*x*y")  # a matcher that goes back would need 10^17 steps
    assert not regex.matches(name)
    assert len(regex._steps) < 10
    assert regex.matches(name + "y")


def test_letters_beyond_those_of_topics() -> None:
    names = ["\u00e9t\u00e9 1", "\u03c9", "a\nb"]
    letters = letters_of(names)
    assert compile_for(letters, r"\p{L}+ \d").matches(names[0])
    assert compile_for(letters, r"\p{Greek}").matches(names[1])
    assert [compile_for(letters, each).matches(names[2]) for each in ("a.b", "(?s)a.b", "(?m)a$.^b", "a[^c]b")] == [
        False,
        True,
        False,
        True,
    ]
