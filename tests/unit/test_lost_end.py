"""A log that ends before its recovery point: each command that reads it reports the loss, before it is forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kafkalog.cli.app import invoke
from kafkalog.engine.format.names import TopicPartition
from kafkalog.toolbox import lost_end as module
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.lost_end import RecoveryPoints, lost_end
from kafkalog.toolbox.salvage import salvage
from kafkalog.toolbox.verify import verify
from tests.file_doubles import UnsyncedFiles
from tests.unit.store_kit import NOW_MS, open_store

FAST = UnsyncedFiles()
A = TopicPartition("a", 0)
TOLD = "says that offsets up to 59 were flushed, but the log ends at {}: files are missing or were truncated"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two partitions, each of three segments of twenty records."""
    root = tmp_path / "shop"
    with open_store(root, files=FAST) as store:
        topics = [store.create_topic(name, config={"internal.segment.bytes": "22000"}) for name in "ab"]
        for number in range(60):
            for topic in topics:
                topic.append(b"%04d" % number * 256, timestamp=NOW_MS + number)
    assert "a 0 60\n" in (root / "recovery-point-offset-checkpoint").read_text()
    return root


def lose(folder: Path, what: str) -> int:
    """The log's end then."""
    if what == "folder":
        for path in folder.iterdir():
            path.unlink()
        return 0
    if what == "segment":
        for path in folder.glob("00000000000000000040.*"):
            path.unlink()
        return 40
    path = folder / "00000000000000000040.log"
    data = path.read_bytes()
    batch = len(data) // 20
    path.write_bytes(data[: 5 * batch] + (bytes(15 * batch) if what == "zeros" else b""))
    return 45


LOSSES = pytest.mark.parametrize("what", ["folder", "segment", "cut", "zeros"])


@LOSSES
@pytest.mark.parametrize("deep", [False, True])
def test_verify_tells(shop: Path, what: str, deep: bool) -> None:
    end = lose(shop / "a-0", what)
    report = verify(shop, deep=deep)
    (found,) = [each for each in report.findings if TOLD.format(end) in each.what]
    assert found.path.startswith(str(shop / "a-0"))
    assert [(each.partition, each.records) for each in report.lost] == [(A, 60 - end)]
    assert not verify(shop, ["a-0"]).ok
    assert verify(shop, ["b-0"]).ok


@LOSSES
def test_backup_and_salvage_tell(shop: Path, tmp_path: Path, what: str) -> None:
    end = lose(shop / "a-0", what)
    report = backup(shop, tmp_path / "new", files=FAST)
    assert [each.path for each in report.findings if "offsets up to 59 were flushed" in each.what]
    assert all(each.path.startswith(str(shop / "a-0")) for each in report.findings)
    (lost,) = salvage(shop, tmp_path / "saved", {A: str(shop / "a-0")}, files=FAST).lost
    assert (lost.first_offset, lost.last_offset) == (end, 59)
    assert TOLD.format(end) in lost.what


@LOSSES
@pytest.mark.parametrize("options", [[], ["--from-start"]])
def test_recover_tells_before_it_forgets(
    shop: Path, what: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    end = lose(shop / "a-0", what)
    for act in ([], ["--yes"]):
        assert invoke(["recover", str(shop), "--json", *options, *act]) == 1
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (a, b) = [each for each in told if each["kind"] == "partition"]
        if what == "zeros" and not options:  # the truncation is reported with the records after it
            assert a["lostEnd"] is None
        else:
            assert TOLD.format(end) in a["lostEnd"]
        assert (a["endOffset"], a["oldEndOffset"], a["lostRecords"]) == (end, 60, 60 - end)
        assert b["lostEnd"] is None
    assert invoke(["recover", str(shop), "--json"]) == 0


def test_recover_says_it_in_words(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = lose(shop / "a-0", "segment")
    assert invoke(["recover", str(shop)]) == 1
    assert TOLD.format(end) in capsys.readouterr().out


def test_a_cut_is_told_once(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shop / "a-0" / "00000000000000000040.log"
    data = path.read_bytes()
    path.write_bytes(data[:-300])
    assert not [each for each in verify(shop).findings if "were flushed" in each.what]
    assert invoke(["recover", str(shop), "--json", "--from-start"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["lostEnd"], told["lostRecords"]) == (None, 1)


def test_a_truncation_that_is_checkpointed_a_moment_later_is_no_loss(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(shop / "a-0", "segment")
    checkpoint = shop / "recovery-point-offset-checkpoint"

    def rest(seconds: float) -> None:
        checkpoint.write_text(checkpoint.read_text().replace("a 0 60", "a 0 40"))

    monkeypatch.setattr(module.time, "sleep", rest)
    assert verify(shop, ["a-0"]).ok


@pytest.mark.parametrize("change", ["segment", "append", "gone"])
def test_a_log_that_somebody_changes_meanwhile_is_not_called_short(
    shop: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shop / "a-0"
    points = RecoveryPoints(str(shop), FAST)
    found = points.lost_end(A, str(folder), [0, 20, 40], 45)
    assert found == lost_end(str(folder), [0, 20, 40], 60, 45)
    assert points.lost_end(A, str(folder), [0, 20], 40) is None  # not the existing segments
    assert points.lost_end(A, str(folder), [0, 20, 40], 45, 60) is None  # below the log start

    def rest(seconds: float) -> None:
        if change == "gone":
            shutil.rmtree(folder)
        else:
            name = "00000000000000000045.log" if change == "segment" else "00000000000000000040.log"
            with (folder / name).open("ab") as file:
                file.write(b"x")

    monkeypatch.setattr(module.time, "sleep", rest)
    assert points.lost_end(A, str(folder), [0, 20, 40], 45) is None


def test_salvage_judges_a_tail_by_all_of_its_bytes(shop: Path, tmp_path: Path) -> None:
    """A page of zeros before the last appended records is damage, and no preallocated end."""
    path = shop / "a-0" / "00000000000000000040.log"
    data = bytearray(path.read_bytes())
    batch = len(data) // 20
    data[15 * batch : 15 * batch + 4096] = bytes(4096)
    data[15 * batch + 4096 :] = b"x" * (len(data) - 15 * batch - 4096)
    path.write_bytes(data)
    (shop / "recovery-point-offset-checkpoint").unlink()
    (lost,) = salvage(shop, tmp_path / "saved", {A: str(shop / "a-0")}, files=FAST).lost
    assert (lost.path, lost.position, lost.length) == (str(path), 15 * batch, len(data) - 15 * batch)
