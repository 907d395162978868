"""Option changes of Spark's source compared with a dict: planned and read as tasks do, without a JVM."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.changes import Changes
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkaStorageException
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from tests.spark.kit import rows_of

pytest.importorskip("pyspark")

from kafkalog.spark import tasks
from kafkalog.spark.tasks import read_range

START_MS = 1_700_000_000_000
CONFIG = {"internal.segment.bytes": "3000", "index.interval.bytes": "300"}
COMPACTED = {**CONFIG, "cleanup.policy": "compact"}
COLUMNS = ("key", "value", "offset", "changeType", "valueBefore", "offsetBefore")
Records = list[tuple[bytes | None, bytes | None]]


def fill(root: Path | str, records: Records, config: dict[str, str] = CONFIG) -> None:
    with kafkalog.open_log(str(root), "t-0", config=config) as log:
        for key, value in records:
            log.append(value, key=key, headers=[("n", b"%d" % log.end_offset)], timestamp=START_MS + log.end_offset)


def some(count: int, seed: int, keys: int = 40, keyless: float = 0.05) -> Records:
    rng = random.Random(seed)

    def one(n: int) -> tuple[bytes | None, bytes | None]:
        key = None if rng.random() < keyless else b"key-%d" % rng.randrange(keys)
        return key, None if key and rng.random() < 0.2 else b"value-%d-" % n + b"x" * rng.randrange(60)

    return [one(n) for n in range(count)]


def expected(records: Records, start: int, end: int, unknown: str = "insert") -> list[dict[str, Any]]:
    """The rows that the option promises for a log with all of its records."""
    last: dict[bytes, int] = {}
    before: dict[bytes, int] = {}
    for offset, (key, _) in enumerate(records[:end]):
        if key is not None:
            (last if offset >= start else before)[key] = offset
    found = []
    for key, offset in sorted(last.items(), key=lambda pair: pair[1]):
        value, earlier = records[offset][1], before.get(key)
        value_before = None if earlier is None else records[earlier][1]
        kind = "delete" if value is None else unknown if value_before is None else "update"
        found.append(
            dict(
                zip(
                    COLUMNS,
                    (key, value, offset, kind, value_before, None if value_before is None else earlier),
                    strict=True,
                )
            )
        )
    return found


def rows(root: Path | str, columns: Any = COLUMNS, **options: str) -> list[dict[str, Any]]:
    return rows_of(root, columns, changes="true", **options)


def between(start: int, end: int, topic: str = "t") -> dict[str, str]:
    return {
        "startingOffsets": json.dumps({topic: {"0": start}}),
        "endingOffsets": json.dumps({topic: {"0": end}}),
    }


@pytest.fixture(scope="module")
def records() -> Records:
    return some(600, 7)


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Path:
    root = tmp_path_factory.mktemp("logs")
    fill(root, records)
    return root


@pytest.mark.parametrize(
    ("start", "end"), [(0, 600), (300, 600), (1, 2), (599, 600), (120, 400), (400, 400), (333, 350)]
)
def test_changes_are_those_of_a_dict(log_dir: Path, records: Records, start: int, end: int) -> None:
    assert rows(log_dir, **between(start, end)) == expected(records, start, end)


def test_of_many_shares_and_small_batches(
    log_dir: Path, records: Records, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tasks, "LATEST_MEMORY_BYTES", 700)  # a map of nine keys
    monkeypatch.setattr(tasks, "BATCH_BYTES", 300)
    monkeypatch.setattr(tasks, "BATCH_ROWS", 7)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'gone'},{tmp_path}")
    assert rows(log_dir, **between(300, 600)) == expected(records, 300, 600)
    assert not list(tmp_path.iterdir())


def test_of_a_share_a_key_is_in_one(log_dir: Path, records: Records) -> None:
    with PartitionView(str(log_dir), kafkalog.TopicPartition("t", 0)) as view:
        found = Changes(view, 600, start=200, memory_bytes=700)
        assert found.keys == len(expected(records, 200, 600))
        batches = [*found.changes(["key"], batch_bytes=64)]
    assert [key for batch in batches for key in batch.column("key").to_pylist()] == [
        row["key"] for row in expected(records, 200, 600)
    ]


def test_other_columns_and_a_question(log_dir: Path, records: Records) -> None:
    wanted = expected(records, 300, 600)
    found = rows(log_dir, ("changeType",), **between(300, 600))
    assert [row["changeType"] for row in found] == [row["changeType"] for row in wanted]
    one = wanted[3]["key"].decode()
    assert rows(log_dir, key=one, **between(300, 600)) == [wanted[3]]
    columns = (*COLUMNS, "timestamp", "headers", "timestampType", "topic", "partition")
    found = rows(log_dir, columns, where="offset >= 590", **between(300, 600))
    assert [{name: row[name] for name in COLUMNS} for row in found] == [row for row in wanted if row["offset"] >= 590]
    assert [row["timestamp"].timestamp() for row in found] == [(START_MS + row["offset"]) / 1000 for row in found]
    assert all(row["headers"] == [{"key": "n", "value": b"%d" % row["offset"]}] for row in found)
    grep = [row for row in wanted if row["value"] is not None and b"-58" in row["value"]]
    assert grep
    assert rows(log_dir, grep="-58", **between(300, 600)) == grep


def test_what_is_known_of_a_compacted_log(tmp_path: Path) -> None:
    records = some(600, 3, keyless=0)
    fill(tmp_path, records, COMPACTED)
    with kafkalog.open_log(str(tmp_path), "t-0", config=COMPACTED) as log:
        log.compact()
        cleaned = log.end_offset
    fill(tmp_path, some(50, 4, keyless=0), COMPACTED)
    with kafkalog.open_log(str(tmp_path), "t-0", config=COMPACTED) as log:
        there = {record.offset: (record.key, record.value) for record in log.records()}
    assert len(there) < 200
    line = (tmp_path / "cleaner-offset-checkpoint").read_text().split()[-1]
    assert 500 < int(line) <= cleaned
    all_records: Records = [there.get(offset, (None, None)) for offset in range(650)]
    # From where the cleaner came on all is known.
    assert rows(tmp_path, **between(int(line), 650)) == expected(all_records, int(line), 650)
    # Below that a key without a value before may have had one.
    found = rows(tmp_path, **between(300, 650))
    assert found == expected(all_records, 300, 650, unknown="upsert")
    assert "upsert" in {row["changeType"] for row in found}
    # Nothing precedes the whole log.
    assert {row["changeType"] for row in rows(tmp_path)} <= {"insert", "delete"}


def test_a_cleaner_between_the_plan_and_the_task(tmp_path: Path) -> None:
    """The previous value is deleted, and nobody knows that there was none."""
    fill(tmp_path, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1")], COMPACTED)
    start = json.dumps({"t": {"0": 2}})
    parsed = parse_options({"path": str(tmp_path), "subscribe": "t", "changes": "true", "startingOffsets": start})
    (work,) = plan(parsed)

    def kinds() -> list[tuple[bytes, str]]:
        found = [row for batch in read_range(work, parsed, COLUMNS) for row in batch.to_pylist()]
        return [(row["key"], row["changeType"]) for row in found]

    assert kinds() == [(b"a", "update"), (b"c", "insert")]
    with kafkalog.open_log(str(tmp_path), "t-0", config=COMPACTED) as log:
        log.compact(roll=True)
    assert kinds() == [(b"a", "upsert"), (b"c", "upsert")]


def test_an_end_that_a_cleaner_has_passed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, some(600, 3, keyless=0), COMPACTED)
    with kafkalog.open_log(str(tmp_path), "t-0", config=COMPACTED) as log:
        log.compact()
    rows(tmp_path, **between(100, 300))
    assert "is compacted up to offset" in caplog.text
    assert "a key with a record from the ending offset 300 to there" in caplog.text


def test_a_log_that_does_not_begin_at_0(tmp_path: Path) -> None:
    records = some(300, 5)
    fill(tmp_path, records)
    with kafkalog.open_log(str(tmp_path), "t-0", config=CONFIG) as log:
        log.delete_records(100)
    there: Records = [(None, None)] * 100 + records[100:]
    assert rows(tmp_path, **between(200, 300)) == expected(there, 200, 300, unknown="upsert")


def test_aborted_records_are_no_changes(tmp_path: Path) -> None:
    with kafkalog.open_log(str(tmp_path), "t-0", config=CONFIG) as log:
        log.append(b"1", key=b"a")
        for fails in (True, False):
            with contextlib.suppress(ZeroDivisionError), log.transaction("x") as transaction:
                transaction.append(b"aborted" if fails else b"2", key=b"a")
                transaction.append(b"aborted" if fails else b"3", key=b"b")
                _ = 1 / 0 if fails else 0
        end = log.end_offset
    for start in (1, end - 3):
        found = rows(tmp_path, isolation="read_committed", **between(start, end))
        assert [(row["key"], row["value"], row["changeType"], row["valueBefore"]) for row in found] == [
            (b"a", b"2", "update", b"1"),
            (b"b", b"3", "insert", None),
        ]


def damage(root: Path, segment: int) -> None:
    path = sorted((root / "t-0").glob("*.log"))[segment]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_damage_below_the_start(tmp_path: Path, records: Records, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, records)
    damage(tmp_path, 1)
    with pytest.raises(CorruptRecordException, match="CRC"):
        rows(tmp_path, **between(300, 600))
    found = rows(tmp_path, failOnDataLoss="false", **between(300, 600))
    assert [(row["key"], row["value"]) for row in found] == [
        (row["key"], row["value"]) for row in expected(records, 300, 600)
    ]
    assert {row["changeType"] for row in found} == {"upsert", "delete"}
    assert {row["valueBefore"] for row in found} == {None}
    assert "Some data may have been lost" in caplog.text


def test_damage_behind_the_start(tmp_path: Path, records: Records) -> None:
    fill(tmp_path, records)
    damage(tmp_path, 5)
    with pytest.raises(CorruptRecordException, match="CRC"):
        rows(tmp_path, **between(50, 600))
    found = rows(tmp_path, failOnDataLoss="false", **between(50, 600))
    end = max(row["offset"] for row in found) + 1
    assert found == expected(records, 50, end)


def test_a_folder_that_is_not_there_for_values_before(log_dir: Path) -> None:
    with PartitionView(str(log_dir), kafkalog.TopicPartition("t", 0)) as view:
        found = Changes(view, 600, start=300)
        with pytest.raises(KafkaStorageException, match=r"cannot keep 0 bytes of values before .*SPARK_LOCAL_DIRS"):
            next(found.changes(["key"], scratch=str(log_dir / "none")))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"changes": "yes"}, "option changes is 'yes'"),
        ({"latest": "true"}, "options latest and changes are both given"),
        ({"startTime": "5"}, "option startTime is not valid with changes.*startingTimestamp"),
        ({"endTime": "5"}, "option endTime is not valid with changes"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        parse_options({"path": "x", "subscribe": "t", "changes": "true", **options})
    with pytest.raises(IllegalArgumentException, match="did you mean changes"):
        parse_options({"path": "x", "subscribe": "t", "change": "true"})
    with pytest.raises(IllegalArgumentException, match="option changes is not valid in streaming queries"):
        parse_options({"path": "x", "subscribe": "t", "changes": "true"}, streaming=True)
