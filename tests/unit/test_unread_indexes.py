"""An index, a log or a directory that cannot be read: readers walk the log, sums and exports continue and report it."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from kafkalog.cli.recover import print_all
from kafkalog.engine.files.usage import walk
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment import index_reader
from kafkalog.errors import DiskFull, KafkaStorageException, TooManyOpenFilesException
from kafkalog.toolbox import disk_usage as usage_module
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.disk_usage import disk_usage
from kafkalog.toolbox.export import ExportOptions, Selection, export
from kafkalog.toolbox.recovery import Recovered
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.restore import restore
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.store_kit import NOW_MS, fill_three_segments

FAST = UnsyncedFiles()
ORDERS_1 = TopicPartition("orders", 1)
LAST = f"{40:020}"
SECOND = f"{20:020}"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three partitions, each of three segments of twenty records of 1 KiB."""
    root = tmp_path / "shop"
    fill_three_segments(root)
    return root


def refusing(path: str, number: int = errno.EACCES) -> FaultyFiles:
    """The real disk, which cannot open, list or read what has `path` in its own."""
    kinds = ("open", "list_dir", "read_bytes", "content")
    return FaultyFiles(FAST, Fault(0, number, kinds=kinds, paths=lambda each: path in each))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("base", [SECOND, LAST])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_view_reads_on_without_an_index(
    shop: Path, suffix: str, base: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    index_reader._passed_over.clear()
    files = refusing(f"orders-1/{base}{suffix}", number)
    with caplog.at_level(logging.WARNING), PartitionView(shop, ORDERS_1, files=files) as view:
        assert (view.log_start_offset, view.log_end_offset) == (0, 60)
        for offset in range(60):
            extent = view.extent(offset)
            assert extent is not None
            assert extent.segment_base == offset // 20 * 20
            assert view.offset_for_time(NOW_MS + offset * 3 + 1) == offset
        view.over(lambda seen: [(len(each.offset_entries), each.indexed_time()) for each in seen.segments])
        view.over(lambda seen: [each.indexed_position() for each in seen.segments])
    told = [record.getMessage() for record in caplog.records if base + suffix in record.getMessage()]
    assert len(told) == 1, told
    assert f"`kafkalog reindex {shop} --yes orders-1` rebuilds it" in told[0]


def test_a_shortage_is_no_unreadable_index(shop: Path) -> None:
    with (
        PartitionView(shop, ORDERS_1, files=refusing("orders-1/" + SECOND + ".index", errno.EMFILE)) as view,
        pytest.raises((OSError, TooManyOpenFilesException, DiskFull)),
    ):
        view.extent(25)


def test_a_transaction_index_is_no_hint(shop: Path) -> None:
    path = shop / "orders-1" / f"{SECOND}.txnindex"
    path.write_bytes(b"")
    files = refusing(path.name)
    with PartitionView(shop, ORDERS_1, files=files) as view, pytest.raises((OSError, KafkaStorageException)):
        view.aborted  # noqa: B018


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_backup_has_the_partition_and_tells_the_index(shop: Path, tmp_path: Path, suffix: str) -> None:
    name = f"orders-1/{LAST}{suffix}"
    report = backup(shop, tmp_path / "backups", files=refusing("shop/" + name))
    assert [each.path for each in report.findings] == [str(shop / name)]
    assert report.findings[0].what.startswith("cannot be read: Permission denied")
    assert (report.partitions, report.records) == (3, 180)
    restore(tmp_path / "backups", tmp_path / "back", files=FAST)
    with PartitionView(tmp_path / "back", ORDERS_1, files=FAST) as view:
        assert view.log_end_offset == 60


def test_recover_names_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    whole = TopicPartition("orders", 2)
    error = KafkaStorageException("cannot read")
    index, log = f"/logs/orders-1/{LAST}.index", f"/logs/orders-2/{LAST}.log"
    results = [
        Recovered(ORDERS_1, 0, error=error, unread=Finding(index, 0, 0, "cannot be read")),
        Recovered(whole, 0, error=error, unread=Finding(log, 0, 0, "cannot be read")),
    ]
    assert print_all(results, False, False, [], "/logs") == 1
    told = capsys.readouterr().err
    assert "`kafkalog reindex /logs --yes orders-1` creates the index again" in told
    assert "next: kafkalog reindex /logs --yes orders-1\n" in told
    assert "next: kafkalog salvage /logs NEW_DIR orders-2\n" in told


def refuse_listing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`os.listdir` and the native listing cannot enter a directory."""
    listdir, native = os.listdir, usage_module.walk.__globals__["folder"]

    def refused(path: str) -> list[str]:
        if os.path.realpath(path) == str(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listdir(path)

    class Native:
        @staticmethod
        def listing(path: str, end: str, follow: bool) -> object:
            return None if os.path.realpath(path) == str(folder) else native.listing(path, end, follow)

    monkeypatch.setitem(walk.__globals__, "folder", Native)
    monkeypatch.setattr(os, "listdir", refused)


@pytest.mark.parametrize("asked", [(), ("orders",)])
def test_du_goes_on_past_a_folder(shop: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]) -> None:
    whole = disk_usage([str(shop)], NOW_MS, asked)
    refuse_listing(monkeypatch, shop / "orders-1")
    usage = disk_usage([str(shop)], NOW_MS, asked)
    assert [each.path for each in usage.unread] == [str(shop / "orders-1")]
    assert usage.by_kind["logs"].files == whole.by_kind["logs"].files - 3
    assert whole.unread == []


def test_du_of_a_directory_that_cannot_be_listed_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_listing(monkeypatch, shop)
    with pytest.raises(PermissionError):
        list(walk(str(shop), unread=lambda error: None))


@pytest.mark.parametrize(
    ("path", "files_made", "records"),
    [("orders-1", 2, 120), (f"orders-1/{SECOND}.log", 3, 140), (f"orders-1/{0:020}.log", 2, 120)],
)
def test_export_goes_on_past_what_cannot_be_read(
    shop: Path, tmp_path: Path, path: str, files_made: int, records: int
) -> None:
    pytest.importorskip("pyarrow")
    files = refusing("shop/" + path)
    partitions = [TopicPartition("orders", number) for number in range(3)]
    lenient = ExportOptions(format="jsonl", selection=Selection(on_damage=lambda lost: None))
    report = export(shop, partitions, tmp_path / "out", lenient, files=files)
    assert (len(report.files), report.records) == (files_made, records)
    (finding,) = report.unread
    assert finding.path == str(shop / path)
    assert finding.what.endswith(": the records of orders-1 from there on are left out")
    report = export(shop, partitions, tmp_path / "all.jsonl", lenient, files=files)
    assert (len(report.files), report.records, len(report.unread)) == (1, records, 1)
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert {json.loads(line)["partition"] for line in lines} >= {0, 2}
    with pytest.raises(OSError, match=r"cannot|denied|permission"):
        export(shop, partitions, tmp_path / "strict", ExportOptions(format="jsonl"), files=files)
