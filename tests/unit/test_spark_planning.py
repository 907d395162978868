"""Options and plans of the Spark source, without Spark: names, JSON, errors, and ranges that cover each record once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException, IllegalStateException, UnknownTopicOrPartitionException
from kafkalog.format.names import TopicPartition
from kafkalog.log.snapshot import Snapshot
from kafkalog.log.view import PartitionView
from kafkalog.spark.options import EARLIEST, LATEST, MAX_BYTES_PER_PARTITION, SourceOptions, parse_options
from kafkalog.spark.planning import OffsetRange, plan

START_MS = 1_700_000_000_000


def options(root: Path | str = "/logs", **given: Any) -> SourceOptions:
    return parse_options({"path": str(root), **{name.replace("__", "."): str(value) for name, value in given.items()}})


def test_defaults() -> None:
    parsed = options(subscribe="a, b")
    assert parsed.subscribe == ("a", "b")
    assert (parsed.start.word, parsed.end.word) == (EARLIEST, LATEST)
    assert parsed.max_bytes_per_partition == MAX_BYTES_PER_PARTITION
    assert (parsed.fail_on_data_loss, parsed.include_headers, parsed.isolation) == (True, False, "read_uncommitted")


def test_names_are_case_insensitive_and_broker_options_are_ignored() -> None:
    parsed = parse_options(
        {
            "PATH": "/a,/b",
            "SubscribePattern": "t.*",
            "STARTINGOFFSETS": '{"t":{"0":23,"1":-2}}',
            "endingoffsets": '{"t":"latest"}',
            "IncludeHeaders": "True",
            "kafka.bootstrap.servers": "host:9092",
            "kafka.isolation.level": "read_committed",
            "kafkaConsumer.pollTimeoutMs": "5",
            "maxRecordsPerPartition": "7",
        }
    )
    assert parsed.paths == ("/a", "/b")
    assert parsed.pattern == "t.*"
    assert parsed.start.offsets == {("t", 0): 23, ("t", 1): EARLIEST}
    assert parsed.end.offsets == {("t", None): LATEST}
    assert (parsed.include_headers, parsed.isolation, parsed.max_records_per_partition) == (True, "read_committed", 7)


def test_times_win_over_offsets() -> None:
    parsed = options(
        assign='{"t":[0,2]}',
        startingOffsets="latest",
        startingOffsetsByTimestamp='{"t":{"0":5}}',
        startingTimestamp="2023-11-14T22:13:20Z",
        endingOffsetsByTimestamp='{"t":{"0":"1700000000001","2":2}}',
    )
    assert parsed.assign == (TopicPartition("t", 0), TopicPartition("t", 2))
    assert parsed.start.timestamp_ms == START_MS
    assert parsed.end.timestamps_ms == {("t", 0): START_MS + 1, ("t", 2): 2}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "One of the following options must be specified"),
        ({"subscribe": "a", "assign": "{}"}, "Only one of the following options"),
        ({"subscribe": " , "}, "No topics to subscribe to"),
        ({"subscribePattern": ""}, "Pattern to subscribe is empty"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": "[1]"}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}'),
        ({"assign": '{"t":["x"]}'}, "Expected e.g."),
        ({"assign": '{"t":[true]}'}, "Expected e.g."),
        ({"subscribe": "a", "startingOffsets": "latest"}, "starting offset can't be latest"),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "ending offset can't be earliest"),
        ({"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest"),
        ({"subscribe": "a", "startingOffsets": "soon"}, 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "Expected e.g."),
        ({"subscribe": "a", "startingOffsets": '{"a":{"x":3}}'}, "Expected e.g."),
        ({"subscribe": "a", "startingTimestamp": "soon"}, "Expected a timestamp"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "maxRecordsPerPartition": "x"}, "maxRecordsPerPartition"),
        ({"subscribe": "a", "kafka__isolation__level": "dirty"}, "kafka.isolation.level"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
    ],
)
def test_errors(given: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException) as caught:
        options(**given)
    assert text in str(caught.value)


def test_a_missing_path_is_named() -> None:
    with pytest.raises(IllegalArgumentException, match="path is missing"):
        parse_options({"subscribe": "a"})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs")
    config = {"internal.segment.bytes": "8000", "index.interval.bytes": "500"}
    with kafkalog.open_log(path, "t-0", config=config) as log:
        for first in range(0, 300, 3):
            log.append_many([(b"%d" % n + b"x" * 50, None, (), START_MS + n) for n in range(first, first + 3)])
        log.delete_records(10)
    with kafkalog.open_log(path, "t-1") as log:
        log.append(b"one", timestamp=START_MS)
        txn = log.transaction("x")
        txn.begin()
        txn.append(b"gone")
        txn.abort()
    with kafkalog.open_log(path, "empty-0"):
        pass
    return path


def rows(planned: list[OffsetRange], parsed: SourceOptions) -> list[tuple[int, int]]:
    """(partition, offset) of every row, as the tasks would read them."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("pyspark")
    from kafkalog.spark.source import read_range

    return [
        (partition, offset)
        for work in planned
        for batch in read_range(work, parsed, ["partition", "offset"])
        for partition, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"maxBytesPerPartition": 1},
        {"maxBytesPerPartition": 700},
        {"maxBytesPerPartition": 3000},
        {"maxBytesPerPartition": 100_000},
        {"maxRecordsPerPartition": 7},
        {"maxRecordsPerPartition": 1},
        {"minPartitions": 5},
        {"minPartitions": 400},
        {"maxBytesPerPartition": 2000, "maxRecordsPerPartition": 10, "minPartitions": 3},
    ],
)
def test_ranges_cover_each_record_once(root: Path, given: dict[str, int]) -> None:
    parsed = options(root, subscribe="t", **given)
    planned = plan(parsed)
    assert rows(planned, parsed) == [(0, n) for n in range(10, 300)] + [(1, 0), (1, 1)]
    most = given.get("maxRecordsPerPartition")
    assert most is None or all(work.end_offset - work.start_offset <= most for work in planned)
    assert len(planned) >= min(given.get("minPartitions", 1), 292)
    if given == {"maxBytesPerPartition": 700}:
        assert max(work.size for work in planned) < 2000


def test_a_plan_splits_one_partition_at_index_entries(root: Path) -> None:
    planned = plan(options(root, assign='{"t":[0]}', maxBytesPerPartition="3000"))
    assert len(planned) > 5
    seen: dict[str, int] = {}
    for work in planned:
        for piece in work.pieces:
            assert piece.start == seen.get(piece.path, piece.start)  # no byte is read twice
            seen[piece.path] = piece.end


def test_a_plan_looks_once_at_each_partition(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[str] = Counter()
    look, follow, searched = PartitionView._look, Snapshot._follow, PartitionView._find_end

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *given: Any) -> Any:
            looks[f"{name} {self.topic_partition}"] += 1
            return work(self, *given)

        return call

    monkeypatch.setattr(PartitionView, "_look", counted("look", look))
    monkeypatch.setattr(PartitionView, "_find_end", counted("end", searched))
    monkeypatch.setattr(Snapshot, "_follow", counted("transactions", follow))
    whole = plan(options(root, subscribe="t", kafka__isolation__level="read_committed"))
    once = {f"{what} t-{number}": 1 for what in ("look", "end", "transactions") for number in (0, 1)}
    assert looks == once
    looks.clear()
    halved = plan(options(root, subscribe="t", kafka__isolation__level="read_committed", minPartitions=50))
    assert looks == once
    assert len(halved) >= 50 > len(whole)


def test_a_view_that_rests_opens_its_files_again(root: Path) -> None:
    with PartitionView(root, "t-0") as view:
        before = [(found.path, found.position) for n in range(10, 300) if (found := view.extent(n))]
        entries = [len(segment.offset_entries) for segment in view.segments]
        del found
        view.rest()
        assert not view._open_files._open
        assert [(found.path, found.position) for n in range(10, 300) if (found := view.extent(n))] == before
        assert [len(segment.offset_entries) for segment in view.segments] == entries
        assert any(entries)


def test_bounds(root: Path) -> None:
    def offsets(**given: Any) -> list[int]:
        parsed = options(root, assign='{"t":[0]}', **given)
        return [offset for _, offset in rows(plan(parsed), parsed)]

    assert offsets(startingOffsets='{"t":{"0":15}}', endingOffsets='{"t":{"0":18}}') == [15, 16, 17]
    assert offsets(startingOffsets='{"t":{"0":-2}}', endingOffsets='{"t":12}') == [10, 11]
    assert offsets(startingTimestamp=START_MS + 297) == [297, 298, 299]
    assert offsets(startingOffsetsByTimestamp=json.dumps({"t": {"0": START_MS + 299}})) == [299]
    assert offsets(startingTimestamp=START_MS * 2, startingOffsetsByTimestampStrategy="latest") == []
    assert offsets(endingTimestamp=START_MS * 2)[-1] == 299
    assert offsets(startingOffsets='{"t":{"0":3}}', failOnDataLoss="false")[0] == 10
    with pytest.raises(IllegalStateException, match="Some data may have been lost"):
        offsets(startingOffsets='{"t":{"0":3}}')
    with pytest.raises(IllegalArgumentException, match="No offset matched"):
        offsets(startingTimestamp=START_MS * 2)
    with pytest.raises(IllegalArgumentException, match="missing t-0, not assigned t-5"):
        offsets(startingOffsets='{"t":{"5":3}}')


def test_read_committed_and_empty(root: Path) -> None:
    parsed = options(root, assign='{"t":[1]}', kafka__isolation__level="read_committed")
    assert rows(plan(parsed), parsed) == [(1, 0)]
    assert plan(options(root, subscribe="empty")) == []


def test_what_is_not_there(root: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic zzz"):
        plan(options(root, subscribe="t,zzz"))
    with pytest.raises(UnknownTopicOrPartitionException, match="no partition t-7"):
        plan(options(root, assign='{"t":[0,7]}'))
    with pytest.raises(UnknownTopicOrPartitionException, match="no such log directory"):
        plan(options(root / "none", subscribe="t"))
    with pytest.raises(IllegalArgumentException, match="expected the folder above it"):
        plan(options(root / "t-0", subscribe="t"))
