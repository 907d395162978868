"""The offsets of a query's checkpoint: the text that Spark's own Kafka source writes and reads."""

from __future__ import annotations

import json

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.offsets import behind_latest, flat, nested

OFFSETS = {TopicPartition("t", 10): 0, TopicPartition("t", 2): 1 << 40, TopicPartition("a.b", 0): 7}


def test_the_text_is_sparks_and_comes_back() -> None:
    text = json.dumps(nested(OFFSETS), separators=(",", ":"))
    assert text == '{"a.b":{"0":7},"t":{"2":1099511627776,"10":0}}'
    assert flat(json.loads(text)) == OFFSETS
    assert nested({}) == flat({}) == {}


@pytest.mark.parametrize("given", [5, [], {"t": 5}, {"t": {"x": 1}}, {"t": {"0": None}}])
def test_what_is_no_such_text_is_refused(given: object) -> None:
    with pytest.raises(IllegalArgumentException, match=r"Expected e\.g\.") as refused:
        flat(given)
    assert json.dumps(given) in str(refused.value)


def test_how_far_behind() -> None:
    progress = {"endOffset": {"t": {"0": 5, "1": 7}}, "latestOffset": '{"t":{"0":5,"1":17,"2":2}}'}
    assert behind_latest(progress) == {
        "minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "10", "avgOffsetsBehindLatest": "4.0",
    }  # fmt: skip
    assert behind_latest({"endOffset": None, "latestOffset": None}) == {}
