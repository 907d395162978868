"""LogLoader: the result of each kind of leftover and damage, after a clean and an unclean shutdown."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, Listing, OsFile, OsFiles
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.errors import IllegalArgumentException, KafkaStorageException, NumberFormatException
from tests.unit.log_kit import Kit, bases, batch, name


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def crashed(kit: Kit, batches: int = 10) -> None:
    kit.crash(kit.filled(batches))


def closed(kit: Kit, batches: int = 10) -> None:
    log = kit.filled(batches)
    log.prepare_active_segment_for_close()
    log.flush(True)
    log.close()
    kit.scheduler.clear()


def offsets(log: UnifiedLog) -> list[int]:
    return [record.offset for segment in log.log_segments() for record in segment.log.slice(0, segment.size).records()]


def test_an_unclean_open_keeps_what_is_whole(kit: Kit) -> None:
    crashed(kit)
    log = kit.open(clean=False)
    assert offsets(log) == list(range(20))
    assert (log.log_end_offset, log.recovery_point, log.high_watermark) == (20, 0, 0)
    # The active segment's indexes have their full size again, the older ones are trimmed.
    assert kit.path(name(16, ".index")).stat().st_size == 240
    assert kit.path(name(0, ".index")).stat().st_size < 240
    assert kit.open(clean=False, recovery_point=5).recovery_point == 5


def test_a_load_looks_for_the_end_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(kit)
    looks = []
    real = LogSegment.read_next_offset
    monkeypatch.setattr(LogSegment, "read_next_offset", lambda segment: looks.append(segment) or real(segment))
    assert kit.open(recovery_point=20).log_end_offset == 20
    assert [segment.base_offset for segment in looks] == [16]


@pytest.mark.parametrize("drop_bytes", [1, 60, 100])
def test_a_torn_tail_goes(kit: Kit, drop_bytes: int) -> None:
    crashed(kit)
    last = kit.path(name(16, ".log"))
    os.truncate(last, last.stat().st_size - drop_bytes)
    log = kit.open(clean=False)
    assert log.log_end_offset == 18
    log.append_as_leader(batch(), 0)
    assert offsets(log) == list(range(20))


def test_damage_in_the_middle_takes_later_segments_along(kit: Kit) -> None:
    crashed(kit)
    path = kit.path(name(8, ".log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    log = kit.open(clean=False)
    assert (bases(log), log.log_end_offset) == ([0, 8], 10)
    assert name(16, ".log.deleted") in kit.names
    # Snapshots above vanish at once; one is left at the new end.
    assert [entry for entry in kit.names if ".snapshot" in entry] == [name(8, ".snapshot"), name(10, ".snapshot")]
    kit.clock.now_ms += 60_000
    kit.scheduler.tick()
    assert name(16, ".log.deleted") not in kit.names


def test_a_clean_open_trusts_what_lies_there(kit: Kit) -> None:
    closed(kit)
    path = kit.path(name(0, ".log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    log = kit.open(clean=True, recovery_point=20)
    assert (log.log_end_offset, log.recovery_point) == (20, 20)


def test_recovery_is_idempotent(kit: Kit) -> None:
    crashed(kit)
    kit.crash(kit.open(clean=False))
    first = {entry: kit.path(entry).read_bytes() for entry in kit.names}
    kit.crash(kit.open(clean=False))
    assert {entry: kit.path(entry).read_bytes() for entry in kit.names} == first


def test_a_missing_offset_index_is_rebuilt_a_time_index_is_not(kit: Kit) -> None:
    closed(kit)
    kept = kit.path(name(0, ".index")).read_bytes()
    kit.path(name(0, ".index")).unlink()
    kit.path(name(8, ".timeindex")).unlink()
    kit.open()
    assert kit.path(name(0, ".index")).read_bytes() == kept
    assert kit.path(name(8, ".timeindex")).read_bytes() == b""


def truncated_and_closed_alone(kit: Kit, end: int) -> dict[str, str]:
    """A log whose offset index was full, up to `end`; its settings."""
    settings = {"internal.segment.bytes": "10000", "index.interval.bytes": "1", "segment.index.bytes": "48"}
    log = kit.open(settings)
    for _ in range(7):
        log.append_as_leader(batch(), 0)
    assert log.log_segments()[0].offset_index.is_full
    log.truncate_to(end)
    log.close()
    kit.scheduler.clear()
    return settings


@pytest.mark.parametrize("end", [2, 6, 12])
def test_entries_that_a_truncation_took_do_not_come_back(kit: Kit, end: int) -> None:
    """They stay in the file until the index is trimmed, and a close of the log alone does not do that."""
    settings = truncated_and_closed_alone(kit, end)
    log = kit.open(settings)
    assert log.log_end_offset == end
    log.append_as_leader(batch(), 0)
    assert offsets(log) == list(range(end + 2))


def test_the_index_without_them_does_not_fit(kit: Kit) -> None:
    """Each open says so, and nothing is lost."""
    settings = truncated_and_closed_alone(kit, 12)
    for _ in range(2):
        with pytest.raises(IllegalArgumentException, match=r"to a full time index .*segment\.index\.bytes"):
            kit.open({**settings, "segment.index.bytes": "24"})
    log = kit.open(settings)
    assert offsets(log) == list(range(12))


def test_orphaned_indexes_go(kit: Kit) -> None:
    closed(kit)
    for suffix in (".index", ".timeindex", ".txnindex"):
        kit.path(name(5, suffix)).write_bytes(b"")
    kit.open()
    assert not [entry for entry in kit.names if entry.startswith(name(5, ""))]


def test_an_index_whose_name_has_no_number_ends_the_load_in_its_turn(kit: Kit) -> None:
    closed(kit)
    missing = kit.path(name(0, ".timeindex"))
    missing.unlink()
    kit.path("number.timeindex").write_bytes(b"")  # sorts behind every segment
    with pytest.raises(NumberFormatException):
        kit.open()
    assert missing.read_bytes() == b""  # as in Kafka, the segments before it were loaded


def test_a_clean_open_asks_little_of_the_system(kit: Kit) -> None:
    closed(kit, 40)
    asked: list[str] = []
    sized: list[str] = []

    class CountingFiles(OsFiles):
        def open_sized(self, path: str, *, writable: bool = True, create: bool = False) -> tuple[OsFile, int]:
            asked.append(path)
            return super().open_sized(path, writable=writable, create=create)

        def size_of(self, path: str) -> int:
            sized.append(os.path.basename(path))
            return super().size_of(path)

        def exists(self, path: str) -> bool:
            asked.append(path)
            return super().exists(path)

        def listing(self, path: str) -> Listing:
            asked.append(path)
            return super().listing(path)

    kit.files = CountingFiles()
    log = kit.open()
    assert log.number_of_segments == 10
    assert asked.count(kit.dir) == 1
    inner = [os.path.basename(path) for path in asked if os.path.basename(path) in kit.names]
    assert sized == [name(base, ".log") for base in bases(log)]
    assert sorted(inner) == sorted(
        [name(log.active_segment.base_offset, suffix) for suffix in (".index", ".timeindex")]
        + ["leader-epoch-checkpoint", "partition.metadata"]
    )


def test_an_offset_that_is_not_written_as_kafka_writes_it(kit: Kit) -> None:
    closed(kit)
    kit.path(name(8, ".log")).rename(kit.path("8.log"))
    log = kit.open()
    # Kafka opens the name that it would have given, which makes that file; the other indexes went as orphans.
    assert bases(log) == [0, 8, 16]
    assert kit.path(name(8, ".log")).stat().st_size == 0
    assert "8.log" in kit.names
    assert name(8, ".timeindex") in kit.names


@pytest.mark.parametrize("suffix", [".txnindex", ".index"])
def test_a_folder_in_the_place_of_an_index(kit: Kit, suffix: str) -> None:
    closed(kit)
    path = kit.path(name(8, suffix))
    path.unlink(missing_ok=True)
    path.mkdir()
    if suffix == ".txnindex":  # opened with its segment
        with pytest.raises(KafkaStorageException):
            kit.open()
    else:  # there, and not looked into
        assert bases(kit.open()) == [0, 8, 16]


def test_a_log_start_beyond_the_end_empties_the_log(kit: Kit) -> None:
    closed(kit)
    log = kit.open(log_start=50)
    assert (bases(log), log.log_start_offset, log.log_end_offset, log.high_watermark) == ([50], 50, 50, 50)
    assert name(0, ".log.deleted") in kit.names
    assert kit.path("leader-epoch-checkpoint").read_text() == "0\n0\n"
    assert kit.path(name(50, ".snapshot")).stat().st_size == 10


def test_missing_snapshots_after_a_clean_close_become_empty_ones(kit: Kit) -> None:
    closed(kit)
    for entry in kit.names:
        if entry.endswith(".snapshot"):
            kit.path(entry).unlink()
    kit.open()
    assert [entry for entry in kit.names if entry.endswith(".snapshot")] == [
        name(8, ".snapshot"), name(16, ".snapshot"), name(20, ".snapshot"),
    ]  # fmt: skip


def test_a_finished_swap_supersedes_what_it_covers(kit: Kit) -> None:
    closed(kit)
    merged = kit.path(name(0, ".log")).read_bytes() + kit.path(name(8, ".log")).read_bytes()
    kit.path(name(0, ".log.swap")).write_bytes(merged)
    log = kit.open()
    assert bases(log) == [0, 16]
    assert offsets(log) == list(range(20))
    assert name(8, ".snapshot") not in kit.names  # numbered files in the range go, whatever they are
    assert not [entry for entry in kit.names if entry.endswith(".swap")]


def test_an_unfinished_replacement_is_undone(kit: Kit) -> None:
    closed(kit)
    shutil.copy(kit.path(name(0, ".log")), kit.path(name(0, ".log.cleaned")))
    shutil.copy(kit.path(name(8, ".log")), kit.path(name(8, ".log.swap")))
    kit.path(name(3, ".log.deleted")).write_bytes(b"x")
    log = kit.open()
    assert bases(log) == [0, 8, 16]
    assert offsets(log) == list(range(20))
    assert not [entry for entry in kit.names if entry.endswith((".swap", ".cleaned", ".deleted"))]


def test_a_swap_file_without_an_offset_is_refused(kit: Kit) -> None:
    closed(kit)
    kit.path("what.swap").write_bytes(b"")
    with pytest.raises(NumberFormatException):
        kit.open()


def test_an_overflowing_segment_is_split(kit: Kit) -> None:
    """Two batches farther apart than 31 bits, as old brokers could write them."""
    kit.crash(kit.open())
    far = 1 << 31
    pair = batch(offset=0, epoch=0) + batch(offset=far + 5, epoch=0)
    kit.path(name(0, ".log")).write_bytes(pair)
    log = kit.open(clean=False)
    assert bases(log) == [0, far + 5]
    assert offsets(log) == [0, 1, far + 5, far + 6]
    assert log.log_end_offset == far + 7
    assert not [entry for entry in kit.names if entry.endswith((".swap", ".cleaned"))]


def test_a_deleted_partition_is_not_recovered(kit: Kit, tmp_path: Path) -> None:
    crashed(kit)
    doomed = "t-0.0123456789abcdef0123456789abcdef-delete"
    (tmp_path / "t-0").rename(tmp_path / doomed)
    kit.dir = str(tmp_path / doomed)
    log = kit.open(clean=False)
    assert (log.log_end_offset, log.number_of_segments) == (0, 3)


def test_a_bad_epoch_checkpoint_takes_the_directory_offline(kit: Kit) -> None:
    closed(kit)
    kit.path("leader-epoch-checkpoint").write_text("0\n1\nx\n")
    with pytest.raises(KafkaStorageException):
        kit.open()
    assert kit.channel.has_offline_log_dir(str(kit.root))


def test_read_only_touches_nothing(kit: Kit) -> None:
    crashed(kit)
    last = kit.path(name(16, ".log"))
    os.truncate(last, last.stat().st_size - 1)
    kit.path(name(8, ".index")).unlink()
    before = {entry: (kit.path(entry).stat().st_mtime_ns, kit.path(entry).read_bytes()) for entry in kit.names}
    with PartitionView(kit.root, os.path.basename(kit.dir)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 18)
        assert log.snapshot.position_of(9) == (1, 0)
        assert log.extent(18) is None
        assert log.offset_for_time(0) == 0
        with last.open("ab") as file:
            file.truncate(last.stat().st_size // 2)
        log.refresh()
        assert log.log_end_offset in (16, 18)
    after = {entry: (kit.path(entry).stat().st_mtime_ns, kit.path(entry).read_bytes()) for entry in kit.names}
    assert {k: v for k, v in after.items() if k != last.name} == {k: v for k, v in before.items() if k != last.name}


def test_recovery_syncs_what_it_serves(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(kit)
    synced: list[str] = []
    flush = type(LogSegment.open(kit.dir, 0, kit.open().config, kit.clock, OS_FILES).log).flush

    def recording(self: object) -> None:
        synced.append(os.path.basename(getattr(self, "path", "")))
        flush(self)  # type: ignore[arg-type]

    monkeypatch.setattr("kafkalog.engine.segment.file_records.FileRecords.flush", recording)
    kit.open(clean=False, recovery_point=9)
    assert synced == [name(8, ".log"), name(16, ".log")]


def test_a_temporary_file_that_is_gone_since_it_was_listed_is_not_missed(kit: Kit) -> None:
    """A task of the former log, which writes its epochs through a `.tmp` file, may still be running."""
    closed(kit)

    class RacingFiles(OsFiles):
        def listing(self, path: str) -> Listing:
            found = super().listing(path)
            return found._replace(files=sorted([*found.files, "leader-epoch-checkpoint.tmp"]))

        def is_readable(self, path: str) -> bool:
            return super().is_readable(path) and os.path.basename(path) != name(0, ".log")

    kit.files = RacingFiles()
    with pytest.raises(KafkaStorageException) as caught:
        kit.open()
    assert name(0, ".log") in str(caught.value.__cause__)
