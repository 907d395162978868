"""subscribePattern compared with java.util.regex itself, in Spark's JVM: the topics found, and the patterns refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.java_patterns import JavaPattern
from tests.reference.java_regex import NAMES, TABLE, random_pattern
from tests.sampling import LONG, SEED

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

RANDOM = 5000 if LONG else 400


class Java:
    """Pattern.compile(...).matcher(name).find() for many names at once."""

    def __init__(self, spark: Any, names: list[str]) -> None:
        self._pattern = spark._jvm.java.util.regex.Pattern
        self._collectors = spark._jvm.java.util.stream.Collectors
        self._names = spark._jvm.java.util.ArrayList()
        for name in names:
            self._names.add(name)

    def found(self, pattern: str) -> set[str] | None:
        """The names in which it is found; None where Java has no such pattern, or fails with it."""
        try:
            holds = self._pattern.compile(pattern).asPredicate()
            return set(self._names.stream().filter(holds).collect(self._collectors.toList()))
        except Exception:
            return None


def ours(pattern: str, names: list[str]) -> set[str] | str:
    try:
        made = JavaPattern(pattern)
    except IllegalArgumentException as error:
        return str(error)
    return {name for name in names if made.finds(name)}


# Patterns of Java's that are refused here, and why.
REFUSED = {
    r"(a)\2": "no group 2 before",
    r"\1(a)": "no group 1 before",
    r"(a\1)": "inside the group 1",
    "(?<=a?)b": "look-behind requires fixed-width pattern",
    "(?<=a{1,2})b": "look-behind requires fixed-width pattern",
    "(?<=a+)b": "look-behind requires fixed-width pattern",
    "[a&&]": "nothing after it",
    "(?x)a{2 }": "without its '}'",
}


def test_the_table(spark: Any) -> None:
    java = Java(spark, NAMES)
    wrong = {}
    for pattern in TABLE:
        expected, found = java.found(pattern), ours(pattern, NAMES)
        if isinstance(found, str):
            if expected is not None and REFUSED.get(pattern, "?") not in found:
                wrong[pattern] = found
        elif found != expected:
            wrong[pattern] = f"{expected} is Java's answer, {found} ours"
    assert wrong == {}
    assert all(isinstance(ours(pattern, NAMES), str) for pattern in REFUSED)


def test_random_patterns(spark: Any) -> None:
    dice = random.Random(SEED)
    names = [name for name in NAMES if len(name) < 13]
    java, same, some = Java(spark, names), 0, 0
    for pattern in (random_pattern(dice) for _ in range(RANDOM)):
        found = ours(pattern, names)
        if isinstance(found, str):
            continue
        expected = java.found(pattern)
        if expected is None:  # Java rejects a look-behind without a maximum length; `re` accepts it
            assert "(?<" in pattern, pattern
            continue
        assert found == expected, pattern
        same += 1
        some += 0 < len(found) < len(names)
    assert same > RANDOM / 3
    assert some > RANDOM / 10


def test_topics_are_chosen_as_by_java(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("orders", "orders-eu", "border", "test-orders"):
        with kafkalog.open_log(tmp_path, f"{topic}-0") as log:
            log.append(b"x")

    def topics(pattern: str) -> list[str]:
        frame = spark.read.format("kafkalog").option("subscribePattern", pattern).load(str(tmp_path))
        return sorted(row.topic for row in frame.select("topic").distinct().collect())

    assert topics("orders") == ["orders", "orders-eu", "test-orders"]
    assert topics("^orders$") == ["orders"]
    assert topics(r"^(?!test-)\p{Lower}++-") == ["orders-eu"]
    with pytest.raises(Exception, match=r"found a '\[' without its '\]'"):
        topics("[a-z")
