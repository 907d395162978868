"""Patterns of java.util.regex without a JVM; tests/spark/test_java_patterns.py compares them with Java itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.java_patterns import JavaPattern
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import find_partitions

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("orders", ["orders", "orders-eu", "my-orders"], ["order"]),
        ("[a-z&&[^b]]", ["a", "bab"], ["b", "B"]),
        (r"^\p{Lower}+$", ["abc"], ["aBc", "a1"]),
        (r"^\Qa.b\E$", ["a.b"], ["a-b"]),
        ("^a++b", ["aab"], ["b"]),
        ("^a*+a", [], ["aaa"]),
        (r"(?<x>ab)-\k<x>", ["ab-ab"], ["ab-ba"]),
        ("(?i)^[k-m]$", ["K", "l"], ["n"]),
        (r"\h|\R", [], ["a-b"]),
    ],
)
def test_found(pattern: str, found: list[str], not_found: list[str]) -> None:
    made = JavaPattern(pattern)
    assert [name for name in found if not made.finds(name)] == []
    assert [name for name in not_found if made.finds(name)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("[a-z", "found a '[' without its ']'"),
        ("a**", "found a '*' with nothing before it to repeat"),
        (r"\p{Foo}", "an unknown property"),
        (r"\y", r"found an unknown escape: \y"),
        ("(?<=a+)b", "which Python's re cannot express"),
        ("(?P<x>a)", "found an unknown flag 'P'"),
        ("(?<x>a)(?<x>b)", "the group x is defined twice"),
    ],
)
def test_refused(pattern: str, why: str) -> None:
    with pytest.raises(IllegalArgumentException) as caught:
        parse_options({"path": "x", "subscribePattern": pattern})
    assert why in str(caught.value)
    assert "option subscribePattern is" in str(caught.value)


def test_a_pattern_that_finds_no_topic_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with kafkalog.open_log(tmp_path, "orders-0") as log:
        log.append(b"x")
    with caplog.at_level(logging.WARNING, "kafkalog.spark"):
        assert find_partitions(parse_options({"path": str(tmp_path), "subscribePattern": " ^order$\n"})) == {}
    assert "'^order$' matches no topic" in caplog.text
    assert f"in {tmp_path}; it has orders" in caplog.text
