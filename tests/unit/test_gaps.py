"""Offsets that no segment has: `verify` counts the lost records as `salvage` does.

It never recommends a command that would forget the loss.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import File
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.recovery import recover
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, run
from tests.unit.store_kit import fill_three_segments, open_store

__all__ = ["run"]

FAST = UnsyncedFiles()
STEM = f"{20:020}"
ORDERS_1 = TopicPartition("orders", 1)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three partitions, each of three segments of twenty records of 1 KiB."""
    root = tmp_path / "shop"
    fill_three_segments(root)
    return root


def alter(root: Path, policy: str) -> None:
    with open_store(root, files=FAST) as store:
        store.alter_topic("orders", {"cleanup.policy": policy})


def empty(folder: Path) -> None:
    os.truncate(folder / f"{STEM}.log", 0)


def halve(folder: Path) -> None:
    size = (folder / f"{STEM}.log").stat().st_size
    os.truncate(folder / f"{STEM}.log", size // 20 * 10)


def remove_log(folder: Path) -> None:
    (folder / f"{STEM}.log").unlink()


def remove_all(folder: Path) -> None:
    for path in folder.glob(f"{STEM}.*"):
        path.unlink()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize(("damage", "records"), [(empty, 20), (halve, 10), (remove_log, 20), (remove_all, 20)])
def test_verify_counts_what_salvage_counts(
    shop: Path, tmp_path: Path, run: Run, damage: object, records: int, policy: str
) -> None:
    assert callable(damage)
    if policy == "compact":
        alter(shop, "compact")
    damage(shop / "orders-1")
    report = verify(shop)
    copied = salvage(shop, tmp_path / "new", {ORDERS_1: str(shop / "orders-1")}, files=FAST)
    is_compaction = policy == "compact" and damage is remove_all  # nothing tells it from a cleaner's gap
    assert report.lost == copied.ranges
    assert [each.records for each in report.lost] == ([] if is_compaction else [records])
    assert report.ok is is_compaction
    told = run("verify", shop)
    assert ("LOST OF TOPIC" in told.out) is not is_compaction
    assert "reindex" not in told.err
    can_copy = damage is not remove_all  # nothing else is left of the offsets
    assert (f"next: kafkalog salvage {shop} NEW_DIR orders-1" in told.err) is can_copy
    assert ("a replica may have them" in told.err) is not (is_compaction or can_copy)


def test_a_gap_is_no_finding_where_the_settings_are_not_known(shop: Path) -> None:
    remove_all(shop / "orders-1")
    assert [(each.path, each.what[:36]) for each in verify(shop).findings] == [
        (str(shop / "orders-1" / f"{40:020}.log"), "offsets 20 to 39 are in no segment, ")
    ]
    for name in os.listdir(shop):
        if not name.startswith("orders-") and (shop / name).is_file():
            (shop / name).unlink()
    assert verify(shop).ok


def test_a_cleaner_that_was_there_explains_a_gap(shop: Path) -> None:
    remove_all(shop / "orders-1")
    (shop / "cleaner-offset-checkpoint").write_text("0\n1\norders 1 40\n")
    assert verify(shop).ok
    (shop / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    assert not verify(shop).ok


def lose_first(shop: Path) -> None:
    for path in (shop / "orders-1").glob(f"{0:020}.*"):
        path.unlink()


def trim_epochs(shop: Path, start: int) -> None:
    (shop / "orders-1" / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {start}\n")


def test_what_retention_took_is_no_gap(shop: Path, run: Run) -> None:
    assert run("retain", shop, "--yes", "-X", "retention.bytes=30000").code == 0
    assert not (shop / "orders-1" / f"{0:020}.log").exists()
    for path in shop.glob("orders-1/*.deleted"):
        path.unlink()
    (shop / "log-start-offset-checkpoint").write_text("0\n0\n")
    assert verify(shop).ok


def test_a_first_segment_that_is_gone_is_told_by_the_epochs(shop: Path, tmp_path: Path) -> None:
    lose_first(shop)
    report = verify(shop)
    (finding,) = report.findings
    assert finding.what.startswith("offsets 0 to 19 are in no segment: leader epochs begin at offset 0, and retention")
    assert [each.records for each in report.lost] == [20]
    assert salvage(shop, tmp_path / "new", {ORDERS_1: str(shop / "orders-1")}, files=FAST).ranges == report.lost
    assert list(map(str, backup(shop, tmp_path / "copy", files=FAST).findings)) == [str(finding)]
    (found,) = recover(shop, [ORDERS_1], act=False)
    assert (found.missing, found.lost_records) == ([finding], 20)
    remove_all(shop / "orders-1")
    assert [each.records for each in verify(shop).lost] == [40]


@pytest.mark.parametrize("why", ["epochs", "deleted", "start", "compacted", "tiered", "unknown", "damaged"])
def test_what_explains_that_a_log_begins_later(shop: Path, why: str) -> None:
    if why == "compacted":
        alter(shop, "compact,delete")
    lose_first(shop)
    if why == "epochs":
        trim_epochs(shop, 20)
    elif why == "deleted":
        (shop / "orders-1" / f"{0:020}.log.deleted").write_bytes(b"")
    elif why == "start":
        (shop / "log-start-offset-checkpoint").write_text("0\n1\norders 1 20\n")
    elif why == "tiered":
        path = shop / ".kafkalog_topics"
        path.write_text(
            path.read_text().replace('"index.interval.bytes"', '"remote.storage.enable":"true","index.interval.bytes"')
        )
        assert "remote.storage.enable" in path.read_text()
    elif why == "unknown":
        (shop / ".kafkalog_topics").unlink()
    elif why == "damaged":
        (shop / "orders-1" / "leader-epoch-checkpoint").write_text("0\n1\nx y\n")
    assert [each for each in verify(shop).findings if "in no segment" in each.what] == []


def test_a_gap_below_the_log_start_is_nothing_lost(shop: Path) -> None:
    remove_all(shop / "orders-1")
    (shop / "log-start-offset-checkpoint").write_text("0\n1\norders 1 40\n")
    assert verify(shop).ok
    (shop / "log-start-offset-checkpoint").write_text("0\n1\norders 1 30\n")
    assert [each.records for each in verify(shop).lost] == [10]


def test_damage_at_the_end_of_a_segment_is_counted_once(shop: Path) -> None:
    path = shop / "orders-1" / f"{STEM}.log"
    os.truncate(path, path.stat().st_size - 300)
    assert [each.records for each in verify(shop).lost] == [1]


def test_a_lying_last_entry_is_no_loss(shop: Path, run: Run) -> None:
    index = shop / "orders-1" / f"{STEM}.index"
    data = bytearray(index.read_bytes())
    data[-4] ^= 0x40  # its position is after the log
    index.write_bytes(data)
    report = verify(shop)
    assert (len(report.findings), report.lost) == (1, [])
    assert f"next: kafkalog reindex {shop} --yes orders-1" in run("verify", shop).err
    assert run("reindex", shop, "--yes").code == 0
    assert verify(shop).ok


def test_reindex_leaves_the_index_that_tells_a_loss(shop: Path, run: Run) -> None:
    halve(shop / "orders-1")
    before = (shop / "orders-1" / f"{STEM}.index").read_bytes()
    for words in ([], ["--yes"]):
        result = run("reindex", shop, *words)
        assert result.code == 1
        assert f"{STEM}.log: ends before batches that its index names, so records are lost" in result.out
    assert (shop / "orders-1" / f"{STEM}.index").read_bytes() == before
    assert [each.records for each in verify(shop).lost] == [10]
    assert run("reindex", shop, "--yes", "--forget-lost").code == 0
    assert (shop / "orders-1" / f"{STEM}.index").read_bytes() != before


def test_entries_of_a_lost_stretch_are_one_finding(shop: Path) -> None:
    empty(shop / "orders-1")
    entries = (shop / "orders-1" / f"{STEM}.index").stat().st_size // 8
    assert entries > 2
    found = [each for each in verify(shop).findings if each.path.endswith("index")]
    assert [Path(each.path).suffix for each in found] == [".index", ".timeindex"]
    assert found[0].what.startswith(
        f"{entries} index entries for bytes after the end of the log, which is at byte 0 (offset "
    )
    assert (found[0].position, found[0].length) == (0, entries * 8)


def test_wrong_entries_in_a_row_are_one_finding(shop: Path) -> None:
    index = shop / "orders-1" / f"{STEM}.index"
    data = bytearray(index.read_bytes())
    for slot in (0, 1):
        data[slot * 8 + 7] ^= 1
    index.write_bytes(data)
    (finding,) = verify(shop).findings
    assert (finding.position, finding.length) == (0, 16)
    assert finding.what.startswith("entries 0 to 1 (offset ")
    assert finding.what.endswith(") name no batches of the log")


def test_a_backup_tells_a_segment_that_is_missing(shop: Path, tmp_path: Path, run: Run) -> None:
    assert run("backup", shop, "--to", tmp_path / "one").code == 0
    remove_all(shop / "orders-1")
    (found,) = verify(shop).findings
    for number, more in enumerate(([], ["--base", str(tmp_path / "one")])):
        done = run("backup", shop, "--to", tmp_path / f"next-{number}", *more)
        assert done.code == 1
        assert str(found) in done.out
        assert "kafkalog salvage" not in done.err
        had = f"orders-1: {tmp_path / 'one'} has the offsets 20 to 39, which are missing in the source"
        assert (had in done.err + done.out) is bool(more)
        strict = run("backup", shop, "--to", tmp_path / "strict", "--strict", *more)
        assert (strict.code, (tmp_path / "strict").exists()) == (1, False)
        assert "offsets 20 to 39 are in no segment" in strict.err
    alter(shop, "compact")
    assert run("backup", shop, "--to", tmp_path / "compacted").code == 0


def test_a_backup_tells_an_index_without_its_log(shop: Path, tmp_path: Path) -> None:
    alter(shop, "compact")
    remove_log(shop / "orders-1")
    report = backup(shop, tmp_path / "copy", files=FAST)
    assert sorted(map(str, report.findings)) == sorted(map(str, verify(shop).findings))
    assert report.missing == len(report.findings) == 3
    assert verify(tmp_path / "copy" / "log-dir-1").ok


@pytest.mark.parametrize("damage", [remove_log, remove_all, empty, halve])
def test_recover_tells_what_is_gone_before_the_sign_of_it_goes(shop: Path, run: Run, damage: object) -> None:
    assert callable(damage)
    damage(shop / "orders-1")
    records = 10 if damage is halve else 20
    told = []
    for words in ([], ["--yes"]):
        done = run("recover", shop, *words)
        assert done.code == 1
        assert f"offsets {40 - records} to 39 are in no segment" in done.out
        assert ("with it the evidence of the loss" in done.out) is (damage is remove_log)
        assert f"{records} of these records were missing before" in done.out.splitlines()[-1]
        table = next(line for line in done.out.splitlines() if line.startswith("orders "))
        told.append(table)
        assert f"up to {records}" in table
        can_copy = not words and damage is not remove_all
        assert (f"next: kafkalog salvage {shop} NEW_DIR orders-1" in done.err) is can_copy
    assert told[0] == told[1]


def test_recover_tells_an_index_behind_the_end(shop: Path) -> None:
    alter(shop, "compact")
    (shop / "orders-1" / f"{40:020}.log").unlink()
    (found,) = recover(shop, [ORDERS_1], act=False)
    assert [Path(each.path).name for each in found.missing] == [f"{40:020}.log"]
    assert found.lost


def test_recover_of_a_compacted_topic_takes_a_gap_as_it_is(shop: Path) -> None:
    alter(shop, "compact")
    remove_all(shop / "orders-1")
    (found,) = recover(shop, [ORDERS_1], act=True)
    assert (found.missing, found.lost_records) == ([], 0)


@pytest.mark.parametrize("damage", [remove_log, remove_all, empty])
def test_the_bytes_of_a_segment_that_is_gone_are_unknown(shop: Path, run: Run, damage: object) -> None:
    assert callable(damage)
    damage(shop / "orders-1")
    done = run("verify", shop)
    row = next(line for line in done.out.splitlines() if line.startswith("orders "))
    assert row.split()[1:6] == ["1", "1", "up", "to", "20"]
    assert row.split()[6] == "unknown"
    (loss,) = [json.loads(line) for line in run("verify", shop, "--json").out.splitlines() if "topicLoss" in line]
    assert (loss["bytes"], loss["bytesKnown"]) == (0, False)


def test_the_bytes_of_a_segment_that_cannot_be_read_are_those_of_its_file(shop: Path) -> None:
    path = str(shop / "orders-1" / f"{STEM}.log")
    files = FailingFiles(path)
    report = verify(shop, files=files)
    assert [each.length for each in report.lost] == [os.stat(path).st_size]


class FailingFiles(UnsyncedFiles):
    """One file cannot be opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def open(self, path: str, **options: Any) -> File:
        if path == self._path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().open(path, **options)


def test_what_salvage_left_is_not_sent_to_salvage_again(shop: Path, tmp_path: Path, run: Run) -> None:
    remove_log(shop / "orders-1")
    assert f"next: kafkalog salvage {shop}" in run("verify", shop).err
    assert run("salvage", shop, tmp_path / "new").code == 1
    told = run("verify", tmp_path / "new")
    assert told.code == 1
    assert "offsets 20 to 39 are in no segment" in told.out
    assert "kafkalog salvage" not in told.err
    halve(tmp_path / "new" / "orders-2")
    told = run("verify", tmp_path / "new")
    assert f"next: kafkalog salvage {tmp_path / 'new'} NEW_DIR orders-2" in told.err
