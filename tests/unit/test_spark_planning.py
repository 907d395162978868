"""The files that planning and reading use: they are opened through one module, and only those that a plan needs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import OsFiles
from kafkalog.engine.files.mounts import unmount
from kafkalog.engine.format.builder import SimpleRecord
from kafkalog.errors import IllegalArgumentException, IllegalStateException
from kafkalog.spark import planning
from kafkalog.spark.filters import ALL, Wanted
from kafkalog.spark.options import parse_options
from kafkalog.spark.places import files_of
from tests.reference.legacy import build_batch
from tests.unit.tier_kit import Leader, leaders

pytest.importorskip("pyarrow")
START_MS = 1_700_000_000_000
SEGMENTS = 60


class Counting(OsFiles):
    """The machine's files, and which were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, *given: Any, **options: Any) -> Any:
        self.opened.append(os.path.basename(path))
        return super().open(path, *given, **options)


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "2000"}) as log:
        while len(list((tmp_path / "t-0").glob("*.log"))) < SEGMENTS:
            log.append(b"x" * 500, key=b"k", timestamp=START_MS + log.end_offset)
    return str(tmp_path)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(planning, "files_of", lambda path: made)
    return made


def options(log_dir: str, **more: str) -> Any:
    return parse_options({"path": log_dir, "subscribe": "t", **more})


def test_a_plan_opens_no_segment_that_it_takes_whole(log_dir: str, counting: Counting) -> None:
    (work,) = planning.plan(options(log_dir))
    assert len(work.pieces) == SEGMENTS
    assert len(set(counting.opened)) <= 6, counting.opened


def test_bounds_leave_out_segments(log_dir: str, counting: Counting) -> None:
    (everything,) = planning.plan(options(log_dir))
    middle = everything.end_offset // 2
    (work,) = planning.plan(options(log_dir), Wanted(offset_min=middle, offset_max=middle))
    assert (work.start_offset, work.end_offset, len(work.pieces)) == (middle, middle + 1, 1)
    (late,) = planning.plan(options(log_dir), Wanted(timestamp_min=START_MS + middle))
    assert late.start_offset == middle
    assert planning.plan(options(log_dir), Wanted(timestamp_min=START_MS * 2)) == []


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (
            {"startingOffsets": '{"t":{"0":50}}', "endingOffsets": '{"t":{"0":10}}'},
            "The specified start offset 50 is greater than the end offset 10 for topic t partition 0.",
        ),
        (
            {"startingOffsets": '{"t":{"0":50}}', "endingOffsets": '{"t":10}'},
            "The specified start offset 50 is greater than the end offset 10 for topic t partition 0.",
        ),
        (
            {"startingTimestamp": str(START_MS + 50), "endingTimestamp": str(START_MS + 10)},
            f"The specified start timestamp {START_MS + 50} is greater than the end timestamp {START_MS + 10}.",
        ),
        (
            {"startingTimestamp": str(START_MS + 50), "endingOffsetsByTimestamp": f'{{"t":{{"0":{START_MS + 10}}}}}'},
            f"is greater than the end timestamp {START_MS + 10} for topic t partition 0.",
        ),
        (
            {"startingTimestamp": str(START_MS + 50), "endingOffsets": '{"t":{"0":10}}'},
            "The resolved start offset 50 is greater than the resolved end offset 10 for topic t partition 0.",
        ),
        (
            {"startingOffsets": '{"t":{"0":50}}', "endingTimestamp": str(START_MS + 10)},
            "The resolved start offset 50 is greater than the resolved end offset 10 for topic t partition 0.",
        ),
    ],
)
def test_a_start_behind_the_end_is_refused(log_dir: str, bounds: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException) as raised:
        planning.plan(options(log_dir, failOnDataLoss="false", **bounds))
    assert text in str(raised.value)


def test_a_start_at_the_end_reads_nothing(log_dir: str) -> None:
    for side in ("Offsets", "Timestamp"):
        at = '{"t":{"0":50}}' if side == "Offsets" else str(START_MS + 50)
        assert planning.plan(options(log_dir, **{f"starting{side}": at, f"ending{side}": at})) == []
    assert planning.plan(options(log_dir, startingOffsets='{"t":50}', endingOffsets='{"t":-1}')) != []


def test_an_end_that_was_deleted_is_lost_data(log_dir: str) -> None:
    with kafkalog.open_log(log_dir, "t-0") as log:
        log.delete_records(20)
    bounds = {"endingOffsets": '{"t":{"0":10}}'}
    with pytest.raises(IllegalStateException, match="ending offset 10 is before the log start offset 20"):
        planning.plan(options(log_dir, **bounds))
    assert planning.plan(options(log_dir, failOnDataLoss="false", **bounds)) == []


def test_cuts_are_where_bytes_are_full(log_dir: str) -> None:
    works = planning.plan(options(log_dir, maxBytesPerPartition="7000"))
    assert [work.start_offset for work in works[1:]] == [work.end_offset for work in works[:-1]]
    assert len(works) > SEGMENTS * 1500 // 9000
    assert max(work.size for work in works) < 7000 + 2000


def test_all_reads_go_through_the_files_of_the_path(log_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    (work,) = planning.plan(options(log_dir))
    made = Counting()
    monkeypatch.setattr(tasks, "files_of", lambda path: made)
    rows = sum(batch.num_rows for batch in tasks.read_range(work, options(log_dir), ("offset",), ALL))
    assert rows == work.end_offset
    kinds = Counter(os.path.splitext(name)[1] for name in made.opened)
    assert kinds == {
        ".log": SEGMENTS,
        ".index": SEGMENTS - 1,
    }  # detects a truncation; not the active one's


def test_a_store_that_is_not_mounted_is_refused() -> None:
    with pytest.raises(IllegalArgumentException, match="s3://bucket/logs, expected a mounted directory"):
        files_of("s3://bucket/logs")


@pytest.mark.parametrize(("magic", "codec"), [(2, 0), (2, 4), (1, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("step", [1, 7, 1000, 123_456_789])
def test_ranges_by_records_are_as_many_as_records_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int, codec: int, step: int
) -> None:
    """Compaction leaves gaps of any length: offsets that no record has are no range, and take no look."""
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    bases = [0, 10, 1_000_000, 2_000_000_000]
    rows = [SimpleRecord(START_MS, b"k", b"v")] * 5
    (tmp_path / "t-0").mkdir()
    batches = [build_batch(rows, magic=magic, codec=codec, base_offset=base) for base in bases]
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(b"".join(batches))
    spans = 0

    def counted(*given: Any) -> Any:
        nonlocal spans
        spans += 1
        assert spans <= 20, "a look at offsets that nothing has"
        return span(*given)

    span = planning.span
    monkeypatch.setattr(planning, "span", counted)
    chosen = options(str(tmp_path), maxRecordsPerPartition=str(step))
    works = planning.plan(chosen)
    found = [
        offset
        for work in works
        for batch in tasks.read_range(work, chosen, ("offset",), ALL)
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == [base + n for base in bases for n in range(5)]
    assert max(work.end_offset - work.start_offset for work in works) <= step
    assert spans == len(works) <= len(found)


def test_ranges_of_a_remote_segment_that_goes_on_behind_the_disks_first(tmp_path: Path) -> None:
    """They end where the local log begins, though its index continues."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    leaders(tmp_path, tier, Leader(40, [(0, 0)], 70), Leader(20, [(0, 0)], 100))
    with kafkalog.open(tmp_path / "b", remote=tier, maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": "14000"})
        assert store.topic("orders").partition(0).delete_old_segments() == 1
    given = {"path": str(tmp_path / "b"), "remote": tier.url, "subscribe": "orders", "maxBytesPerPartition": "900"}
    ranges = planning.plan(parse_options(given))
    unmount(str(tmp_path / "b"))
    assert len(ranges) > 10
    assert [each.start_offset for each in ranges] == [0, *(each.end_offset for each in ranges[:-1])]


def test_offsets_that_no_remote_segment_has_are_told_apart_from_names_that_do_not_say_enough(tmp_path: Path) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    leaders(tmp_path, tier, Leader(19, [(0, 0)], 60, without={38, 39}))
    given = {"path": tier.url, "subscribe": "orders", "startingOffsets": '{"orders":{"0":38}}'}
    with pytest.raises(IllegalStateException, match="has offsets 38 to 39; `kafkalog tier list`"):
        planning.plan(parse_options(given))
    unmount(tier.url)
