"""An export continues only with the log that it began with: the errors for another one, in the toolbox and in Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptCheckpointException, IllegalArgumentException
from kafkalog.toolbox.export_hours import (
    FILE_COLUMNS,
    NOTES,
    Layout,
    Range,
    export_range,
    noted,
    settle_layout,
    witness_of,
)
from kafkalog.toolbox.export_log import LogId, LogNow, settle_log
from tests.spark.kit import export_batch

pytestmark = [pytest.mark.filterwarnings("ignore")]

T0 = TopicPartition("t", 0)


def test_columns_are_those_of_a_target() -> None:
    assert set(Layout().columns) == {*FILE_COLUMNS} - {"headers"}


class Record:
    """A log of records `text<offset>`, from `start` to `end`, without those of `gone`."""

    def __init__(self, text: str = "v", gone: tuple[int, ...] = ()) -> None:
        self.text, self.gone = text, gone

    def __call__(self, offset: int) -> Any:
        return None if offset in self.gone else export_batch(offset, 1, self.text)


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Has offsets 0 to 9 and 10 to 19 of a log in /a."""
    place = str(tmp_path / "lake")
    settle_layout(place, Layout())
    settle_log(place, T0, LogNow(LogId("/a", None), 0, 0), [], Record())
    for start in (0, 10):
        export_range(Range(T0, start, start + 10), [export_batch(start, 10)], place, Layout(), "none")
    return place


# Where a log is, its topic's id, its start and end, its records; what is wrong with it, if anything.
CASES = [
    ("the same, longer", "/a", None, 0, 50, Record(), None),
    ("its last record compacted away, or damaged", "/a", None, 0, 50, Record(gone=(19,)), None),
    ("deleted up to its end", "/a", None, 20, 50, Record(), None),
    ("moved to another disk", "/b", None, 0, 50, Record(), None),
    ("ends earlier", "/a", None, 0, 19, Record(), "its log end offset is 19; expected 20 or more"),
    ("empty", "/a", None, 0, 0, Record(), "its log end offset is 0; expected 20 or more"),
    ("cut, and grown again", "/a", None, 0, 50, Record("w"), "its record at offset 19 is not the exported one"),
    ("the same, but its last is gone", "/a", None, 0, 50, Record("w", gone=(19,)), "its record at offset 9 is not"),
    ("elsewhere, with nothing in common", "/b", None, 20, 50, Record(), "its directory is /b; expected /a"),
]


@pytest.mark.parametrize(
    ("directory", "topic_id", "start", "end", "record", "text"), [it[1:] for it in CASES], ids=[it[0] for it in CASES]
)
def test_a_log_is_known_again(
    target: str, directory: str, topic_id: str | None, start: int, end: int, record: Record, text: str | None
) -> None:
    now = LogNow(LogId(directory, topic_id), start, end)
    if text is None:
        settle_log(target, T0, now, noted(target, T0), record)
        return
    with pytest.raises(IllegalArgumentException, match=text) as refused:
        settle_log(target, T0, now, noted(target, T0), record)
    assert "choose another target; or remove topic=t and _kafkalog/t-<number>" in str(refused.value)


def test_topic_ids_are_compared(target: str) -> None:
    ids = ["A" * 21 + "Q", "B" * 21 + "Q"]
    notes = noted(target, T0)
    settle_log(target, T0, LogNow(LogId("/a", ids[0]), 0, 20), notes, Record())  # it has got one
    with pytest.raises(IllegalArgumentException, match=f"its topic id is {ids[1]}; expected {ids[0]}"):
        settle_log(target, T0, LogNow(LogId("/a", ids[1]), 0, 20), notes, Record())
    settle_log(target, T0, LogNow(LogId("/b", ids[0]), 20, 20), notes, Record())  # a replica, all deleted
    settle_log(target, T0, LogNow(LogId("/b", ids[1]), 0, 0), [], Record())  # nothing was exported of the first


def test_a_witness_is_of_offset_time_key_and_value() -> None:
    one = export_batch(5, 1)
    assert witness_of(export_batch(0, 6)) == witness_of(one)
    empty = one.set_column(0, "key", pa.array([b""], pa.binary()))
    others = [export_batch(6, 1), export_batch(5, 1, "w"), export_batch(5, 1, timestamps=[1]), empty]
    assert len({witness_of(each) for each in [one, *others]}) == 5


def test_a_note_is_not_believed_with_a_flipped_bit(target: str) -> None:
    (path,) = Path(target, NOTES, "t-0").glob(f"{0:020d}-*.json")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpointException, match="remove it"):
            noted(target, T0)


# --- in Spark --------------------------------------------------------------------------------------------


def _store(root: Path, text: str, records: int) -> None:
    with kafkalog.open(root) as store:
        store.create_topic("t", partitions=1, exist_ok=True).append_many(
            [f"{text}{number}".encode() for number in range(records)]
        )


def _rows(jobs: Any, spark: Any, root: Path, target: Path) -> dict[str, Any]:
    return {row.topic: row for row in jobs.export(spark, root, target).collect()}


@pytest.mark.spark
@pytest.mark.parametrize("records", [40, 60, 90])
def test_a_topic_made_again_is_told_and_others_go_on(spark: Any, tmp_path: Path, records: int) -> None:
    from kafkalog.spark import jobs

    root, target = tmp_path / "logs", tmp_path / "lake"
    _store(root, "old", 60)
    with kafkalog.open_log(root, "other-0") as log:
        log.append(b"1")
    assert {row.error for row in _rows(jobs, spark, root, target).values()} == {None}
    with kafkalog.open(root) as store:
        store.delete_topic("t")
    _store(root, "new", records)
    with kafkalog.open_log(root, "other-0") as log:
        log.append(b"2")
    rows = _rows(jobs, spark, root, target)
    assert "its topic id is" in rows["t"].error
    assert rows["t"].files == []
    assert (rows["other"].error, rows["other"].records) == (None, 1)
    shutil.rmtree(target / "topic=t")
    shutil.rmtree(target / NOTES / "t-0")
    rows = _rows(jobs, spark, root, target)
    assert (rows["t"].error, rows["t"].records) == (None, records)
    values = {bytes(row.value)[:3] for row in spark.read.parquet(str(target)).where("topic = 't'").collect()}
    assert values == {b"new"}


@pytest.mark.spark
def test_a_log_that_was_cut_and_another_directory_are_told(spark: Any, tmp_path: Path) -> None:
    from kafkalog.spark import jobs

    roots = tmp_path / "a", tmp_path / "b"
    for root in roots:
        with kafkalog.open_log(root, "t-0") as log:
            for number in range(100):
                log.append(b"%s %d" % (root.name.encode(), number))
    jobs.export(spark, roots[0], tmp_path / "lake")
    assert "its record at offset 99 is not" in _rows(jobs, spark, roots[1], tmp_path / "lake")["t"].error
    with kafkalog.open_log(roots[0], "t-0") as log:
        log.truncate(50)
    assert "its log end offset is 50; expected 100" in _rows(jobs, spark, roots[0], tmp_path / "lake")["t"].error
    with kafkalog.open_log(roots[0], "t-0") as log:
        for number in range(80):
            log.append(b"%d" % number)
    assert "its record at offset 99 is not" in _rows(jobs, spark, roots[0], tmp_path / "lake")["t"].error
