"""Wrong index files: a flipped bit, a missing entry.

They can all be rebuilt, so they may cause no loss, and no read may skip records without an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import CorruptRecordException
from kafkalog.toolbox.verify import verify

CONFIG = {"internal.segment.bytes": "8000", "index.interval.bytes": "500"}
DENSE = {"index.interval.bytes": "1"}  # an entry for nearly every batch
COUNT = 100
START_MS = 1_700_000_000_000


def value(number: int) -> bytes:
    return b"%03d" % number + b"." * 150


def fill(root: Path, config: dict[str, str] = CONFIG) -> list[Path]:
    """A log that was closed cleanly; its .log files."""
    with kafkalog.open_log(root, "t-0", config=config) as log:
        for number in range(COUNT):
            log.append(value(number), timestamp=START_MS + number * 10)
    return sorted((root / "t-0").glob("*.log"))


def flip(path: Path, byte: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= mask
    path.write_bytes(data)


def check_whole(root: Path) -> None:
    with kafkalog.open_log(root, "t-0", config=CONFIG) as log:
        assert log.end_offset == COUNT
        for start in range(COUNT):
            assert next(log.records(start)).offset == start
        assert [record.value for record in log] == [value(number) for number in range(COUNT)]
        assert log.append(b"new") == COUNT
    with kafkalog.open_log(root, "t-0", config=CONFIG) as log:
        assert log.end_offset == COUNT + 1
        assert [record.offset for record in log] == list(range(COUNT + 1))


# Byte of the entry (4 of the offset, 4 of the position) and what is flipped there.
BITS = [(0, 0x80), (0, 0x01), (1, 0x01), (3, 0x01), (3, 0x40), (4, 0x80), (5, 0x01), (7, 0x01), (7, 0x40)]


@pytest.mark.parametrize(("byte", "mask"), BITS)
@pytest.mark.parametrize("segments", ["one", "many"])
def test_the_last_entry_lies(tmp_path: Path, segments: str, byte: int, mask: int) -> None:
    """By it the end of the log is found: an engine that believes it takes the segment for empty."""
    last = fill(tmp_path, CONFIG if segments == "many" else {"index.interval.bytes": "500"})[-1]
    index = last.with_suffix(".index")
    flip(index, index.stat().st_size - 8 + byte, mask)
    check_whole(tmp_path)
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize(("byte", "mask"), BITS)
def test_an_entry_of_an_older_segment_lies(tmp_path: Path, byte: int, mask: int) -> None:
    for path in fill(tmp_path)[:-1]:
        flip(path.with_suffix(".index"), 16 + byte, mask)
    check_whole(tmp_path)


@pytest.mark.parametrize("byte", [8, 11])
def test_the_last_time_entry_lies_about_its_offset(tmp_path: Path, byte: int) -> None:
    last = fill(tmp_path)[-1]
    index = last.with_suffix(".timeindex")
    flip(index, index.stat().st_size - 12 + byte, 0x40)
    check_whole(tmp_path)


def test_damaged_batches_are_not_cut_because_an_index_lies(tmp_path: Path) -> None:
    (log_file,) = fill(tmp_path, {"index.interval.bytes": "500"})
    index = log_file.with_suffix(".index")
    flip(log_file, 5000, 1)
    flip(index, index.stat().st_size - 5, 1)
    before = log_file.read_bytes()
    with kafkalog.open_log(tmp_path, "t-0"):
        pass
    assert log_file.read_bytes() == before


def send_back(log_file: Path, position: int, offset: int) -> None:
    """Another base offset for the batch at `position`: no checksum covers it."""
    data = bytearray(log_file.read_bytes())
    data[position : position + 8] = offset.to_bytes(8, "big")
    log_file.write_bytes(data)


def test_an_index_that_lies_about_offsets_that_go_back(tmp_path: Path) -> None:
    """No index can be built for them: the log is opened by the existing one, as by Kafka."""
    (log_file,) = fill(tmp_path, DENSE)
    index = log_file.with_suffix(".index")
    batch_bytes = log_file.stat().st_size // COUNT
    send_back(log_file, 50 * batch_bytes, 20)
    lying = index.read_bytes()[:-8] + (COUNT - 3).to_bytes(4, "big") + index.read_bytes()[-4:]
    index.write_bytes(lying)
    before = log_file.read_bytes()
    with kafkalog.open_log(tmp_path, "t-0", config=DENSE) as log:
        assert log.end_offset == COUNT
        assert log.append(b"new") == COUNT
    assert log_file.read_bytes()[: len(before)] == before
    assert index.read_bytes()[: len(lying)] == lying


@pytest.mark.parametrize("damage", ["of the order", "of a batch"])
def test_a_segment_with_batches_is_never_taken_for_empty(tmp_path: Path, damage: str) -> None:
    """Kafka does, and writes over it."""
    (log_file,) = fill(tmp_path, DENSE)
    batch_bytes = log_file.stat().st_size // COUNT
    if damage == "of the order":
        send_back(log_file, (COUNT - 1) * batch_bytes, 20)
    else:
        flip(log_file, 50 * batch_bytes + 100, 1)
        index = log_file.with_suffix(".index")
        index.write_bytes(index.read_bytes()[:-8] + (COUNT + 3).to_bytes(4, "big") + index.read_bytes()[-4:])
    before = {path.name: path.read_bytes() for path in log_file.parent.iterdir()}
    with pytest.raises(CorruptRecordException, match=r"the batches cannot be indexed.*`kafkalog salvage`") as info:
        kafkalog.open_log(tmp_path, "t-0", config=DENSE)
    assert info.value.path == str(log_file)
    assert {path.name: path.read_bytes() for path in log_file.parent.iterdir()} == before


@pytest.mark.parametrize("damage", ["missing", "emptied", "cut"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_time_index_without_entries(tmp_path: Path, damage: str, read_only: bool) -> None:
    index = fill(tmp_path)[1].with_suffix(".timeindex")
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes(b"" if damage == "emptied" else index.read_bytes()[:-4])
    assert {finding.path for finding in verify(tmp_path).findings} == {str(index)}
    with kafkalog.open_log(tmp_path, "t-0", config=CONFIG, read_only=read_only) as log:
        for number in range(COUNT):
            assert log.offset_for_time(START_MS + number * 10) == number
            assert next(log.records(start_time=START_MS + number * 10 - 5)).offset == number
        assert log.offset_for_time(START_MS + COUNT * 10) is None


def test_a_truncation_may_leave_no_time_entry(tmp_path: Path) -> None:
    """As in Kafka, which forgets the largest timestamp of a segment that was opened and truncated; searches still find
    it."""
    fill(tmp_path)
    with kafkalog.open_log(tmp_path, "t-0", config=CONFIG) as log:
        assert log.engine is not None
        base = log.engine.log_segments()[1].base_offset
        log.truncate(base + 2)
        log.engine.roll()
        assert log.engine.log_segments()[1].time_index.entries == 0
        for number in range(base + 2):
            assert log.offset_for_time(START_MS + number * 10) == number
        log.append(b"new", timestamp=START_MS + 5000)
    report = verify(tmp_path, deep=True)
    assert report.ok
    assert any("ends at timestamp -1" in note for note in report.notes)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_search_finds_what_a_truncation_made_the_time_index_forget(tmp_path: Path, read_only: bool) -> None:
    """Entries that come after it say nothing of the records that stayed."""
    config = {"index.interval.bytes": "300"}
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        for number in range(6):
            log.append(b"v" * 40, timestamp=START_MS + number)
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        log.truncate(2)
        for number in range(20):
            log.append(b"v" * 40, timestamp=number)
        assert log.engine is not None
        assert log.engine.log_segments()[0].time_index.entry(0).timestamp < 20
    with kafkalog.open_log(tmp_path, "t-0", config=config, read_only=read_only) as log:
        assert [log.offset_for_time(time_ms) for time_ms in (19, 20, START_MS + 1, START_MS + 2)] == [0, 0, 1, None]
