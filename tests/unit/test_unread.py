"""A disk that fails under one file, or a missing permission: the other files are checked, copied and reported."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import invoke
from kafkalog.engine.files import OS_FILES, File, Files
from kafkalog.engine.files.failure import UnsyncedError
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.files.overlay import OverlayFiles
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptRecordException, DiskFull, KafkaStorageException, TooManyOpenFilesException
from kafkalog.toolbox import recovery
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.backup_manifest import read_manifest
from kafkalog.toolbox.recovery import recover
from kafkalog.toolbox.reindex import SegmentIndexes, check_indexes
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.salvage import SalvageReport, salvage
from kafkalog.toolbox.unread import BLOCK_BYTES, FileAroundBadBlocks, unread
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.store_kit import NOW_MS, fill_three_segments, open_store

FAST = UnsyncedFiles()
SECOND = "00000000000000000020.log"


def disk_with_bad_blocks(suffix: str, *blocks: int) -> Files:
    """The real disk, with unreadable blocks in the files that end so."""

    class BadFile(OsFile):
        __slots__ = ()

        def _refuse(self, n: int, position: int) -> None:
            if self.path.endswith(suffix):
                for block in blocks:
                    if position < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < position + n:
                        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

        def pread(self, n: int, position: int) -> bytes:
            self._refuse(n, position)
            return super().pread(n, position)

        def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
            self._refuse(len(buffer), position)
            return super().pread_into(buffer, position)

        def copy_from(self, source: File, size: int) -> int:
            return 0  # the system would read what this disk cannot

    class BadDisk(UnsyncedFiles):
        __slots__ = ()
        file_class = BadFile

    return BadDisk()


def refusing(path: str, number: int = errno.EIO, *kinds: str) -> FaultyFiles:
    """The real disk, which cannot open, or list, what has `path` in its own."""
    return FaultyFiles(
        FAST, Fault(0, number, kinds=kinds or ("open", "list_dir", "read_bytes"), paths=lambda each: path in each)
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three partitions, each of three segments of twenty records of 1 KiB."""
    root = tmp_path / "shop"
    fill_three_segments(root)
    assert sorted(os.listdir(root / "orders-1"))[5].startswith(SECOND[:-4]), os.listdir(root / "orders-1")
    return root


def nested() -> KafkaStorageException:
    """As an engine that got an error from another part of it."""
    inner = OSError(errno.EIO, "Input/output error", "/logs/t-0/x")
    told = KafkaStorageException.because_of(KafkaStorageException.because_of(inner, "cannot read"), "cannot open")
    told.path, told.__cause__ = None, inner
    return told


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (nested(), True),
        (OSError(errno.EIO, "Input/output error", "/logs/t-0/x"), True),
        (PermissionError(errno.EACCES, "Permission denied", "/logs/t-0"), True),
        (KafkaStorageException.because_of(OSError(errno.EIO, "Input/output error", b"/logs/t-0/x"), "cannot"), False),
        (KafkaStorageException.because_of(OSError(errno.EIO, "Input/output error", "/logs/t-0/x"), "cannot"), True),
        (OSError(errno.EIO, "Input/output error", "/logs/t-00/x"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (FileNotFoundError(errno.ENOENT, "No such file", "/logs/t-0/x"), False),
        (UnsyncedError(errno.EIO, "Input/output error", "/logs/t-0/x"), False),
        (OSError(errno.ENOSPC, "No space left", "/logs/t-0/x"), False),
        (OSError(errno.EMFILE, "Too many open files", "/logs/t-0/x"), False),
        (DiskFull("full", path="/logs/t-0/x"), False),
        (TooManyOpenFilesException("many", path="/logs/t-0/x"), False),
        (CorruptRecordException("bad", path="/logs/t-0/x"), False),
        (KafkaStorageException("files disappeared during each attempt", path="/logs/t-0"), False),
        (ValueError("/logs/t-0"), False),
    ],
)
def test_what_counts_as_a_file_that_cannot_be_read(error: Exception, counts: bool) -> None:
    finding = unread(error, "/logs/t-0")
    assert (finding is not None) == counts
    if finding is not None:
        assert finding.path.startswith("/logs/t-0")
        assert "cannot be read: " in finding.what


def test_a_file_is_read_around_its_bad_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    data = os.urandom(5 * BLOCK_BYTES + 100)
    path.write_bytes(data)
    expected = bytearray(data)
    for begin, end in ((BLOCK_BYTES, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, len(data))):
        expected[begin:end] = bytes(end - begin)
    inner = disk_with_bad_blocks("a.log", 1, 2, 5).open(str(path), writable=False)
    with FileAroundBadBlocks(inner) as file:
        assert file.pread(1 << 20, 0) == expected
        assert file.pread(10, BLOCK_BYTES - 5) == expected[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
        assert file.pread(10, len(data)) == b""
        buffer = bytearray(300)
        assert file.pread_into(buffer, len(data) - 200) == 200
        assert file.bad_ranges() == [(BLOCK_BYTES, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, len(data))]
        assert file.why_not(0, BLOCK_BYTES) is None
        assert "Input/output error" in (file.why_not(0, BLOCK_BYTES + 1) or "")
    assert inner.closed


def test_a_disk_that_gives_nothing_is_not_asked_for_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.unread.BAD_BLOCKS_MAX", 2)
    (tmp_path / "a.log").write_bytes(bytes(5 * BLOCK_BYTES))
    inner = disk_with_bad_blocks("a.log", *range(5)).open(str(tmp_path / "a.log"), writable=False)
    with FileAroundBadBlocks(inner) as file:
        assert file.pread(1 << 20, 0) == bytes(5 * BLOCK_BYTES)
        assert file.bad_ranges() == [(0, 5 * BLOCK_BYTES)]


def test_what_is_readable_behind_many_bad_blocks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.unread.BAD_BLOCKS_MAX", 4)
    monkeypatch.setattr("kafkalog.toolbox.unread.STRETCH_BYTES", 2 * BLOCK_BYTES)
    data = os.urandom(64 * BLOCK_BYTES)
    (tmp_path / "a.log").write_bytes(data)
    inner = disk_with_bad_blocks("a.log", *range(16), 40).open(str(tmp_path / "a.log"), writable=False)
    with FileAroundBadBlocks(inner) as file:
        found = file.pread(len(data), 0)
        # Stretches of two, four, eight and sixteen blocks, and of two again after the readable part.
        behind = 18 * BLOCK_BYTES
        assert file.bad_ranges() == [(0, behind), (40 * BLOCK_BYTES, 42 * BLOCK_BYTES)]
        assert found[behind : 40 * BLOCK_BYTES] == data[behind : 40 * BLOCK_BYTES]
        assert found[42 * BLOCK_BYTES :] == data[42 * BLOCK_BYTES :]


# --- verify -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "path", ["orders-1", f"orders-1/{SECOND}", "orders-1/leader-epoch", f"orders-1/{SECOND[:-4]}.index", "-checkpoint"]
)
def test_verify_goes_on_behind_what_cannot_be_read(shop: Path, path: str, number: int, deep: bool) -> None:
    whole = verify(shop, deep=deep)
    assert whole.ok
    report = verify(shop, deep=deep, files=refusing(path, number))
    assert report.partitions == 3
    assert report.records >= 120
    assert report.findings
    assert all(path in each.path for each in report.findings)
    assert all(f"cannot be read: {os.strerror(number)} (" in each.what for each in report.findings)


@pytest.mark.parametrize("deep", [False, True])
def test_verify_reads_a_log_around_its_bad_blocks(shop: Path, deep: bool) -> None:
    report = verify(shop, deep=deep, files=disk_with_bad_blocks(f"orders-1/{SECOND}", 2))
    bad = [each for each in report.findings if "Input/output error" in each.what]
    assert [(each.position, each.length) for each in bad] == [(2 * BLOCK_BYTES, BLOCK_BYTES)]
    assert {os.path.basename(each.path) for each in report.findings} == {SECOND}
    (lost,) = report.lost
    assert 4 <= (lost.records or 0) <= 6
    assert report.records == 180 - (lost.records or 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_verify_stops_where_no_more_files_can_be_opened(shop: Path, number: int) -> None:
    with pytest.raises((KafkaStorageException, TooManyOpenFilesException)):
        verify(shop, files=refusing(SECOND, number))


# --- salvage ----------------------------------------------------------------------------------------------


def folders(root: Path) -> dict[TopicPartition, str]:
    return {TopicPartition("orders", n): str(root / f"orders-{n}") for n in range(3)}


def values(root: Path) -> dict[int, list[int]]:
    """The readable offsets of each existing partition."""
    found = {}
    for path in sorted(root.glob("orders-*")):
        with kafkalog.open_log(root, path.name, read_only=True) as log:
            found[int(path.name[-1])] = [record.offset for record in log]
    return found


def lost_offsets(report: SalvageReport) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in report.lost]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_salvage_copies_what_can_be_read(shop: Path, tmp_path: Path, number: int) -> None:
    files = refusing(f"shop/orders-1/{SECOND}", number)
    report = salvage(shop, tmp_path / "new", folders(shop), files=files)
    (lost,) = report.lost
    assert (lost.path, lost.first_offset, lost.last_offset) == (str(shop / "orders-1" / SECOND), 20, 39)
    assert str(lost).startswith(f"{lost.path}: offsets 20 to 39: cannot be read: {os.strerror(number)} (")
    assert [each.records for each in report.ranges] == [20]
    assert (report.partitions, report.records) == (3, 160)
    assert values(tmp_path / "new") == {0: [*range(60)], 1: [*range(20), *range(40, 60)], 2: [*range(60)]}
    (gap,) = verify(tmp_path / "new", deep=True).findings
    assert gap.what.startswith("offsets 20 to 39 are in no segment, and the topic is not compacted: ")
    assert "a salvage left the gap" in gap.what


def test_salvage_leaves_out_a_partition_that_cannot_be_listed(shop: Path, tmp_path: Path) -> None:
    report = salvage(shop, tmp_path / "new", folders(shop), files=refusing("shop/orders-1"))
    (lost,) = report.lost
    assert lost.path == str(shop / "orders-1")
    assert "Input/output error" in lost.what
    assert (report.partitions, report.records) == (2, 120)
    assert values(tmp_path / "new").keys() == {0, 2}  # an empty one would be taken for the whole


def test_salvage_keeps_the_end_of_a_log_whose_last_segment_cannot_be_read(shop: Path, tmp_path: Path) -> None:
    report = salvage(shop, tmp_path / "new", folders(shop), files=refusing("shop/orders-1/00000000000000000040.log"))
    assert lost_offsets(report) == [(40, 39)]
    with kafkalog.open_log(tmp_path / "new", "orders-1") as log:
        assert log.end_offset == 40


@pytest.mark.parametrize("name", ["partition.metadata", ".kafkalog_topics", "log-start-offset-checkpoint"])
def test_salvage_tells_a_small_file_that_cannot_be_read(shop: Path, tmp_path: Path, name: str) -> None:
    files = refusing(name)
    files.fault.paths = lambda path: path.endswith(name) and "/shop/" in path  # type: ignore[union-attr]
    report = salvage(shop, tmp_path / "new", folders(shop), files=files)
    assert report.records == 180
    assert {os.path.basename(lost.path) for lost in report.lost} == {name}
    assert all("Input/output error" in lost.what for lost in report.lost)


def test_salvage_goes_around_bad_blocks(shop: Path, tmp_path: Path) -> None:
    disk = disk_with_bad_blocks(f"shop/orders-1/{SECOND}", 2)
    report = salvage(shop, tmp_path / "new", folders(shop), files=disk)
    (lost,) = report.lost
    assert "cannot be read: Input/output error (the disk fails" in lost.what
    gone = range(lost.first_offset, lost.last_offset + 1)
    assert 4 <= len(gone) <= 6
    assert set(gone) < set(range(20, 40))
    assert report.ranges[0].records == len(gone)
    assert values(tmp_path / "new")[1] == [offset for offset in range(60) if offset not in gone]
    assert verify(tmp_path / "new", deep=True).ok


def test_salvage_stops_where_the_target_fails(shop: Path, tmp_path: Path) -> None:
    """A write error of the new disk is no loss of the old one."""
    files = FaultyFiles(
        FAST, Fault(0, kinds=("write",), paths=lambda path: f"new.kafkalog-partial/orders-1/{SECOND}" in path)
    )
    with pytest.raises(OSError, match="Input/output error"):
        salvage(shop, tmp_path / "new", folders(shop), files=files)


@pytest.mark.parametrize("left", ["nothing", "indexes"])
@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize(
    ("number", "lost"),
    [
        (0, (0, 19)),
        (1, (20, 39)),
        (2, (40, 59)),
    ],
)
def test_salvage_tells_a_segment_that_is_missing(
    shop: Path, tmp_path: Path, number: int, lost: tuple[int, int], policy: str, left: str
) -> None:
    if policy == "compact":
        with open_store(shop, files=FAST) as store:
            store.alter_topic("orders", {"cleanup.policy": "compact"})
    stem = f"{20 * number:020d}"
    for path in (shop / "orders-1").glob(f"{stem}.*"):
        if path.suffix == ".log" or (left == "nothing" and path.suffix != ".snapshot"):
            path.unlink()
    report = salvage(shop, tmp_path / "new", folders(shop), files=FAST)
    # Epochs tell it, unless the topic may be compacted.
    is_front = number == 0 and left == "nothing" and policy == "compact"
    may_be = policy == "compact" and left == "nothing" and number == 1
    assert lost_offsets(report) == ([] if is_front or may_be else [lost])
    assert [each.records for each in report.ranges] == ([] if is_front or may_be else [20])
    assert len(report.notes) == may_be
    if may_be:
        assert "offsets 20 to 39 are in no segment: compaction leaves such gaps, or" in report.notes[0]
    if number == 1 and not may_be:
        assert f"the file {stem}.log is missing" in report.lost[0].what
    assert values(tmp_path / "new")[1] == [offset for offset in range(60) if not lost[0] <= offset <= lost[1]]


def test_salvage_tells_damage_at_the_end_of_a_segment_once(shop: Path, tmp_path: Path) -> None:
    path = shop / "orders-1" / SECOND
    data = path.read_bytes()
    path.write_bytes(data[:-300])
    report = salvage(shop, tmp_path / "new", folders(shop), files=FAST)
    assert lost_offsets(report) == [(39, 39)]
    path.write_bytes(data[: len(data) // 2 - len(data) // 2 % (len(data) // 20)])  # at the end of a batch
    report = salvage(shop, tmp_path / "newer", folders(shop), files=FAST)
    assert lost_offsets(report) == [(30, 39)]
    assert f"in no segment: the file {SECOND} is shorter than its index says" in report.lost[0].what


# --- recover ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("path", ["orders-1", "orders-1/00000000000000000040.log", "orders-1/leader-epoch"])
def test_recover_goes_on_with_other_partitions(
    shop: Path, path: str, act: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = refusing(f"shop/{path}", errno.EIO, "open", "list_dir", "pread", "read_bytes")
    monkeypatch.setattr(recovery, "watched_files", lambda watch: files)
    monkeypatch.setattr(recovery, "OverlayFiles", lambda watch: OverlayFiles(files, watch))
    before = {each: each.read_bytes() for each in (shop / "orders-1").glob("*.log")}
    found = {each.partition: each for each in recover(str(shop), [*folders(shop)], act=act, from_start=True)}
    assert [found[TopicPartition("orders", n)].end_offset for n in (0, 2)] == [60, 60]
    bad = found[TopicPartition("orders", 1)]
    assert bad.error is not None
    assert bad.unread is not None
    assert f"shop/{path}" in bad.unread.path
    assert "cannot be read: Input/output error (" in bad.unread.what
    assert bad.lost_bytes == 0
    assert {each: each.read_bytes() for each in (shop / "orders-1").glob("*.log")} == before
    if act:
        assert not (shop / ".kafka_cleanshutdown").exists()
    files.fault = None
    assert all(each.error is None for each in recover(str(shop), [*folders(shop)], act=act))
    assert verify(shop, deep=True).ok


def test_recover_does_not_call_a_failed_write_unread(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop / "orders-1" / "00000000000000000040.log"
    path.write_bytes(path.read_bytes()[:-5])
    files = FaultyFiles(OS_FILES, Fault(0, errno.EIO, kinds=("truncate",)))
    monkeypatch.setattr(recovery, "watched_files", lambda watch: files)
    (found,) = recover(str(shop), [TopicPartition("orders", 1)], act=True, from_start=True)
    assert found.error is not None
    assert found.unread is None


@pytest.mark.parametrize("act", [[], ["--yes"]])
@pytest.mark.parametrize("damage", ["EIO", "EACCES", "a folder", "garbage"])
@pytest.mark.parametrize("command", ["recover", "reindex"])
def test_topics_settings_that_cannot_be_read_stop_nothing(
    shop: Path,
    command: str,
    damage: str,
    act: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = shop / ".kafkalog_topics"
    logs = {each: each.read_bytes() for each in shop.glob("*/*.log")}
    (shop / "orders-1" / "00000000000000000040.index").unlink()
    if damage == "garbage":
        path.write_text("garbage{")
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        files = refusing("shop/.kafkalog_topics", getattr(errno, damage))
        monkeypatch.setattr(recovery, "OS_FILES", files)
        monkeypatch.setattr("kafkalog.cli.reindex.OS_FILES", files)
    assert invoke([command, str(shop), *act]) == 1
    out, err = capsys.readouterr()
    assert out.count(str(path)) == 1
    assert f"{path}: {'found JSONDecodeError' if damage == 'garbage' else 'cannot be read: '}" in out
    assert not err or "salvage" in err or "recover" in err
    assert {each: each.read_bytes() for each in shop.glob("*/*.log")} == logs
    assert path.exists()
    assert (shop / "orders-1" / "00000000000000000040.index").exists() == bool(act)
    assert verify(shop, [f"orders-{n}" for n in range(3)], deep=True).ok
    assert invoke([command, str(shop), *act, "--json"]) == 1
    assert sum(json.loads(line)["kind"] == "finding" for line in capsys.readouterr().out.splitlines()) == 1


def test_settings_are_not_asked_for_where_none_counts(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kafkalog.cli.reindex.OS_FILES", refusing("shop/.kafkalog_topics"))
    assert invoke(["reindex", str(shop), "--index-interval-bytes", "4000"]) == 0
    files = refusing("shop/.kafkalog_topics", errno.EMFILE)  # a shortage says nothing of the file
    monkeypatch.setattr("kafkalog.cli.reindex.OS_FILES", files)
    assert invoke(["reindex", str(shop)]) == 3
    assert "Too many open files" in capsys.readouterr().err


@pytest.mark.parametrize("act", [[], ["--yes"], ["--yes", "--from-start"]])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, 0])
def test_recover_tells_recovery_points_that_cannot_be_read(
    shop: Path, number: int, act: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shop / "recovery-point-offset-checkpoint"
    old = path.stat().st_ino
    if number:
        files = refusing(str(path), number, "open", "read_bytes")
        assert files.fault is not None
        files.fault.paths = lambda each: each == str(path) and path.stat().st_ino == old
        monkeypatch.setattr(recovery, "watched_files", lambda watch: files)
        monkeypatch.setattr(recovery, "OverlayFiles", lambda watch: OverlayFiles(files, watch))
    else:
        path.write_text("0\n1\nx\n")
    logs = {each: each.read_bytes() for each in shop.glob("*/*.log")}
    beside = {each: each.read_bytes() for each in shop.glob("*") if each.is_file()}
    if number and act == ["--yes"]:
        assert invoke(["recover", str(shop), "orders", *act]) == 3
        assert f"{path}: cannot be read: " in (err := capsys.readouterr().err)
        assert "--from-start" in err
        assert {each: each.read_bytes() for each in shop.glob("*") if each.is_file()} == beside
        return
    assert invoke(["recover", str(shop), "orders", *act, "--json"]) == 1
    finding, *rest, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["kind"], finding["path"]) == ("finding", str(path))
    assert finding["what"].startswith("cannot be read: " if number else "")
    assert [(each["recoveryPoint"], each["endOffset"], each["error"]) for each in rest] == [(0, 60, None)] * 3
    assert summary["lostRecords"] == 0
    assert {each: each.read_bytes() for each in shop.glob("*/*.log")} == logs


# --- backup -----------------------------------------------------------------------------------------------


def copied(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "log-dir-1").glob("*-[0-9]"))


OTHERS = ["orders-0", "orders-2"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("kind", ["open", "pread"])
@pytest.mark.parametrize("name", ["", f"/{SECOND}", "/00000000000000000040.log"])
def test_a_backup_leaves_out_a_partition_that_cannot_be_read(
    shop: Path, tmp_path: Path, name: str, kind: str, number: int
) -> None:
    before = backup(shop, tmp_path / "old", files=FAST)
    with open_store(shop, files=FAST) as store:
        store.topic("orders").append(b"more", partition=1, timestamp=NOW_MS)
    source = shop / "orders-1" / SECOND  # another file than the base has
    source.write_bytes(source.read_bytes())
    kept = {each: each.read_bytes() for each in (tmp_path / "old").rglob("*") if each.is_file()}
    report = backup(shop, tmp_path / "new", base=tmp_path / "old", files=refusing(f"shop/orders-1{name}", number, kind))
    assert report.left_out == [TopicPartition("orders", 1)]
    (finding,) = report.findings
    assert f"shop/orders-1{name}" in finding.path
    assert f"cannot be read: {os.strerror(number)} (" in finding.what
    assert finding.what.endswith("orders-1 is not in the backup")
    assert (report.partitions, copied(tmp_path / "new")) == (2, OTHERS)
    assert not report.notes
    assert read_manifest(str(tmp_path / "new")).findings == [finding]
    assert {each: each.read_bytes() for each in (tmp_path / "old").rglob("*") if each.is_file()} == kept
    assert restore(tmp_path / "old", tmp_path / "again", files=FAST).records == before.records == 180
    # A store that opens it knows what is missing.
    assert restore(tmp_path / "new", tmp_path / "restored", files=FAST).findings == [finding]
    with kafkalog.open(tmp_path / "new" / "log-dir-1", read_only=True) as store:
        assert store.describe_topic("orders").partitions == 3


def test_a_strict_backup_refuses_what_cannot_be_read(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordException, match=r"orders-1.*: cannot be read: Input/output error"):
        backup(shop, tmp_path / "new", strict=True, files=refusing(f"orders-1/{SECOND}"))
    assert os.listdir(tmp_path) == ["shop"]


@pytest.mark.parametrize(
    "name",
    ["leader-epoch-checkpoint", "partition.metadata", "00000000000000000020.index", "00000000000000000040.snapshot"],
)
def test_a_backup_does_without_a_small_file_that_cannot_be_read(shop: Path, tmp_path: Path, name: str) -> None:
    report = backup(shop, tmp_path / "new", files=refusing(f"shop/orders-1/{name}"))
    assert not report.left_out
    assert str(shop / "orders-1" / name) in {each.path for each in report.findings if "cannot be read" in each.what}
    assert {each.path for each in report.findings} == {str(shop / "orders-1" / name)}
    assert (report.partitions, report.records) == (3, 180)
    restore(tmp_path / "new", tmp_path / "restored", files=FAST)
    with open_store(tmp_path / "restored", files=FAST) as store, store.reader(topics=["orders"]) as reader:
        assert len(list(reader)) == 180


@pytest.mark.parametrize("damage", ["unread", "garbage"])
@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_backup_tells_a_checkpoint_that_counts_for_nothing(
    shop: Path, tmp_path: Path, name: str, damage: str
) -> None:
    files: Files = refusing(f"shop/{name}")
    if damage == "garbage":
        (shop / name).write_text("garbage\n")
        files = FAST
    report = backup(shop, tmp_path / "new", files=files)
    assert {each.path for each in report.findings} == {str(shop / name)}
    assert (report.partitions, report.records) == (3, 180)


def test_a_backup_fails_where_its_own_disk_does(shop: Path, tmp_path: Path) -> None:
    for kind in ("create", "write", "pread"):
        files = refusing("new.kafkalog-partial/log-dir-1/orders-1", errno.EIO, kind)
        with pytest.raises(OSError, match="Input/output error"):
            backup(shop, tmp_path / "new", files=files)
        assert os.listdir(tmp_path) == ["shop"]


def test_a_backup_without_a_partition_of_the_transactions_decides_none_in_part(shop: Path, tmp_path: Path) -> None:
    with open_store(shop, files=FAST) as store, store.transaction("biller") as txn:
        for number in range(3):
            txn.append("orders", b"paid", partition=number)
    (state,) = [each for each in shop.glob("__transaction_state-*") if any(map(_has_bytes, each.glob("*.log")))]
    report = backup(shop, tmp_path / "new", files=refusing(f"shop/{state.name}/", errno.EIO, "open", "pread"))
    assert [str(each) for each in report.left_out] == [state.name]
    saved = tmp_path / "new" / "log-dir-1"
    with (
        kafkalog.open(saved, read_only=True) as store,
        store.reader(topics=["orders"], isolation="read_committed") as reader,
    ):
        found = sum(record.value == b"paid" for record in reader)
    assert found in (0, 3)


def _has_bytes(path: Path) -> bool:
    return path.stat().st_size > 0


def test_a_backup_has_from_its_base_what_the_disk_has_lost_since(shop: Path, tmp_path: Path) -> None:
    backup(shop, tmp_path / "old", files=FAST)
    disk = disk_with_bad_blocks(f"shop/orders-1/{SECOND}", 2)
    report = backup(shop, tmp_path / "new", base=tmp_path / "old", files=disk)
    assert (report.left_out, report.findings) == ([], [])
    assert report.kept > 40_000
    report = backup(shop, tmp_path / "alone", files=disk)
    assert report.left_out == [TopicPartition("orders", 1)]


# --- reindex ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [[], ["--yes"]])
def test_reindex_goes_on_with_other_partitions(
    shop: Path, act: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = OSError(errno.EIO, os.strerror(errno.EIO), str(shop / "orders-1"))

    def failing(directory: str, **options: Any) -> Iterator[SegmentIndexes]:
        if directory.endswith("orders-1"):
            raise bad
        yield from check_indexes(directory, **options)

    (shop / "orders-2" / SECOND).with_suffix(".index").unlink()
    for name in ("kafkalog.cli.reindex.check_indexes", "kafkalog.toolbox.reindex.check_indexes"):
        monkeypatch.setattr(name, failing)
    monkeypatch.setattr("kafkalog.toolbox.unread._error_of_reading", lambda path, files: bad)
    assert invoke(["reindex", str(shop), "orders", *act]) == 1
    told = capsys.readouterr().out
    assert f"{shop / 'orders-1'}: cannot be read: Input/output error (" in told
    assert (shop / "orders-2" / SECOND).with_suffix(".index").exists() == bool(act)
    monkeypatch.setattr("kafkalog.toolbox.unread._error_of_reading", lambda path, files: None)  # it was a write's
    assert invoke(["reindex", str(shop), "orders", *act]) == 3


@pytest.mark.parametrize("act", [[], ["--yes"]])
def test_reindex_goes_on_with_other_segments(shop: Path, act: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    odd(shop / "orders-1" / SECOND, "folder")
    third = shop / "orders-1" / "00000000000000000040.index"
    third.unlink()
    assert invoke(["reindex", str(shop), "orders-1", *act]) == 1
    told = capsys.readouterr().out
    assert f"{shop / 'orders-1' / SECOND}: cannot be read: Is a directory (" in told
    assert f"{third}: the file is missing" in told
    assert "damaged, its indexes" not in told
    assert third.exists() == bool(act)


# --- what is no file --------------------------------------------------------------------------------------


def odd(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if kind == "loop" else "/not/mounted/x.log")


@pytest.mark.parametrize("name", [SECOND, "00000000000000000040.log"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "loop"])
def test_a_log_that_is_no_file_is_told_and_the_others_go_on(
    shop: Path, tmp_path: Path, kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shop / "orders-1" / name
    base = int(path.stem)
    odd(path, kind)
    beside = sorted(os.listdir(shop / "orders-1"))
    report = verify(shop, files=FAST)
    assert [each.path for each in report.findings if each.what.startswith("cannot be read: ")] == [str(path)]
    assert report.records == 160
    saved = salvage(shop, tmp_path / "new", folders(shop), files=FAST)
    assert [(each.path, each.first_offset) for each in saved.lost] == [(str(path), base)]
    assert values(tmp_path / "new")[1] == [offset for offset in range(60) if not base <= offset < base + 20]
    backed = backup(shop, tmp_path / "backup", files=FAST)
    assert backed.left_out == [TopicPartition("orders", 1)]
    assert [each.path for each in backed.findings] == [str(path)]
    for command in (["verify"], ["recover"], ["recover", "--yes"], ["reindex"]):
        assert invoke([command[0], str(shop), *command[1:], "orders"]) == 1
        assert f"{path}: cannot be read: " in "".join(capsys.readouterr())
        assert sorted(os.listdir(shop / "orders-1")) == beside


# --- topics' settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["unread", "garbage"])
def test_verify_reads_the_topics_settings(shop: Path, damage: str) -> None:
    path = shop / ".kafkalog_topics"
    files: Files = refusing("shop/.kafkalog_topics")
    if damage == "garbage":
        path.write_text("garbage{")
        files = FAST
    report = verify(shop, files=files)
    assert {each.path for each in report.findings} == {str(path)}
    assert report.records == 180
