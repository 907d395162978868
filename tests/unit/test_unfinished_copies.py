"""A copy that does not finish: a full disk's error says how much space is missing, and no source is removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.files import Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import DiskFull, IllegalArgumentException
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.export import ExportOptions, export
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.store_kit import NOW_MS, open_store

FAST = UnsyncedFiles()
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
Copy = Callable[[Path, Path, Files], object]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three partitions of 60 KiB; and a backup of them."""
    with open_store(tmp_path / "shop", files=FAST) as store:
        orders = store.create_topic("orders", 3, config={"internal.segment.bytes": "22000"})
        for number in range(180):
            orders.append(b"%04d" % number * 256, partition=number % 3, timestamp=NOW_MS + number)
    backup(tmp_path / "shop", tmp_path / "saved", files=FAST)
    return tmp_path / "shop"


def salvaged(shop: Path, target: Path, files: Files) -> object:
    return salvage(shop, target, {each: str(shop / str(each)) for each in PARTITIONS}, files=files)


COPIES: dict[str, Copy] = {
    "backup": lambda shop, target, files: backup(shop, target, files=files),
    "restore": lambda shop, target, files: restore(shop.parent / "saved", target, files=files),
    "salvage": salvaged,
    "export": lambda shop, target, files: export(
        shop, PARTITIONS, target / "all.jsonl", ExportOptions(format="jsonl", in_base64=True), files=files
    ),
}


KNOWN = dict.fromkeys(COPIES, "it takes at most") | {
    "restore": "it takes about",
    "export": "what it reads takes",
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("at", [0, 1, 8])
@pytest.mark.parametrize("command", COPIES)
def test_a_full_disk_is_told_with_what_is_missing(
    shop: Path, tmp_path: Path, command: str, at: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.toolbox.space.free_bytes", lambda path: 10 << 10)
    at = min(at, 2) if command == "export" else at
    files = FaultyFiles(FAST, Fault(at, number, kinds=("write", "create", "mkdir"), paths=lambda path: "/new" in path))
    with pytest.raises(DiskFull) as full:
        COPIES[command](shop, tmp_path / "new", files)
    text = str(full.value)
    assert full.value.errno == number
    assert full.value.path is not None
    assert full.value.path.startswith(str(tmp_path / "new"))
    assert "no room for " in text
    assert os.strerror(number) in text
    assert f"{KNOWN[command]} {'' if command == 'export' else 3}" in text
    assert "10.0 KiB are free at " in text
    assert " more, or name a place on another disk; the unfinished copy was removed" in text
    assert [each for each in os.listdir(tmp_path) if "partial" in each] == []
    files.fault = None
    COPIES[command](shop, tmp_path / "new", files)
    assert verify(shop).ok


def test_a_backup_with_a_base_takes_less(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.space.free_bytes", lambda path: 10 << 10)
    files = FaultyFiles(FAST, Fault(6, errno.ENOSPC, paths=lambda path: "/new" in path))
    with pytest.raises(DiskFull, match=r"it takes at most 144.0 KiB, and 10.0 KiB are free .*: free 134"):
        backup(shop, tmp_path / "new", base=tmp_path / "saved", files=files)
    assert restore(tmp_path / "saved", tmp_path / "nowhere", act=False).records == 180


@pytest.mark.parametrize("command", ["backup", "salvage", "export"])
def test_what_is_preallocated_takes_no_room(
    shop: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open or crashed store has indexes of 10 MiB, which are holes."""
    monkeypatch.setattr("kafkalog.toolbox.space.free_bytes", lambda path: 10 << 10)
    for index in [*shop.glob("orders-*/*.index"), *shop.glob("orders-*/*.timeindex")]:
        os.truncate(index, 10 << 20)
    at = 0 if command == "export" else 8
    files = FaultyFiles(FAST, Fault(at, errno.ENOSPC, kinds=("write", "create"), paths=lambda path: "/new" in path))
    with pytest.raises(DiskFull, match=rf"{KNOWN[command]} \d+\.\d KiB, and 10.0 KiB are free"):
        COPIES[command](shop, tmp_path / "new", files)


def test_an_export_of_several_files_says_which_are_left(shop: Path, tmp_path: Path) -> None:
    files = FaultyFiles(FAST, Fault(0, errno.ENOSPC, paths=lambda path: ".orders-1." in path))
    options = ExportOptions(format="jsonl", in_base64=True)
    with pytest.raises(DiskFull, match=r"1 of 3 files already complete: export the others \(orders-1, orders-2\)"):
        export(shop, PARTITIONS, tmp_path / "new", options, files=files)
    files.fault = None
    export(shop, PARTITIONS[1:], tmp_path / "new", options, files=files)
    assert sorted(os.listdir(tmp_path / "new")) == ["orders-0.jsonl", "orders-1.jsonl", "orders-2.jsonl"]


def test_other_errors_of_the_disk_stay_what_they_are(shop: Path, tmp_path: Path) -> None:
    files = FaultyFiles(FAST, Fault(5, errno.EIO, paths=lambda path: "/new" in path))
    with pytest.raises(OSError, match="Input/output error") as failed:
        salvaged(shop, tmp_path / "new", files)
    assert not isinstance(failed.value, DiskFull)


@pytest.mark.parametrize("command", ["backup", "restore", "salvage"])
def test_the_name_of_what_is_half_made_is_none_for_a_whole_copy(shop: Path, tmp_path: Path, command: str) -> None:
    """The next copy to `new` would remove it."""
    with pytest.raises(IllegalArgumentException, match=r"ends in \.kafkalog-partial"):
        COPIES[command](shop, tmp_path / "new.kafkalog-partial", FAST)
    assert not (tmp_path / "new.kafkalog-partial").exists()


@pytest.mark.parametrize("command", ["backup", "restore", "salvage"])
def test_a_folder_that_no_copy_made_stays(shop: Path, tmp_path: Path, command: str) -> None:
    theirs = tmp_path / "new.partial" / "notes"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    COPIES[command](shop, tmp_path / "new", FAST)
    assert theirs.read_text() == "mine"


# --- the place where a copy is made -----------------------------------------------------------------------


def files_in(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("what", ["source", "base", "backup", "salvaged"])
def test_a_copy_never_removes_what_it_reads(shop: Path, tmp_path: Path, what: str, inside: bool) -> None:
    """TARGET.kafkalog-partial is removed first: it must not be a directory that is read."""
    there = tmp_path / "new.kafkalog-partial"
    place = there / "it" if inside else there
    place.parent.mkdir(exist_ok=True)
    (shop if what in ("source", "salvaged") else tmp_path / "saved").rename(place)
    before = files_in(there)
    target = tmp_path / "new"
    copies: dict[str, Callable[[], object]] = {
        "source": lambda: backup(place, target, files=FAST),
        "base": lambda: backup(shop, target, base=place, files=FAST),
        "backup": lambda: restore(place, target, files=FAST),
        "salvaged": lambda: salvaged(place, target, FAST),
    }
    with pytest.raises(IllegalArgumentException, match=r"new\.kafkalog-partial"):
        copies[what]()
    assert files_in(there) == before
    assert not target.exists()


@pytest.mark.parametrize("command", ["backup", "restore", "salvage"])
def test_a_copy_never_removes_a_directory_that_is_open(shop: Path, tmp_path: Path, command: str) -> None:
    with open_store(tmp_path / "new.kafkalog-partial", files=FAST) as store:
        store.create_topic("mine").append(b"kept")
        with pytest.raises(IllegalArgumentException, match="a log directory with a lock file is there"):
            COPIES[command](shop, tmp_path / "new", FAST)
    assert (tmp_path / "new.kafkalog-partial" / "mine-0").is_dir()


@pytest.mark.parametrize("command", ["backup", "restore", "salvage"])
def test_a_mount_point_is_refused_before_anything_is_copied(
    shop: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(tmp_path / "new"))
    with pytest.raises(IllegalArgumentException, match=r"is a mount point.*name a directory on it"):
        COPIES[command](shop, tmp_path / "new", FAST)
    assert os.listdir(tmp_path / "new") == []
