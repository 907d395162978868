"""`recover --dry-run` reports exactly what `--yes` does, and changes nothing; also the overlay that it uses."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import invoke
from kafkalog.engine.files import OS_FILES, File, Files
from kafkalog.engine.files.overlay import OverlayFiles, Watch, watched_files
from kafkalog.engine.log.damage import Damage
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkalogError
from tests.client_transaction import client_transaction

SCENARIOS = Path(__file__).parents[1] / "conformance" / "scenarios"
RECOVERIES = sorted(path.name for path in SCENARIOS.glob("recover_*") if (path / "input" / "logs").is_dir())


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[dict[str, Any]]]:
    code = invoke(["recover", "--json", *argv])
    *told, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    partitions = [line for line in told if line["kind"] == "partition"]
    losses = told[len(partitions) :]
    assert {line["kind"] for line in losses} <= {"topicLoss"}
    assert sum(line["bytes"] for line in losses) == total["lostBytes"]
    assert (total["kind"], total["partitions"]) == ("summary", len(partitions))
    for name in ("lostRecords", "lostBytes"):
        assert total[name] == sum(partition[name] for partition in partitions)
    return code, partitions


def told_and_done(capsys: pytest.CaptureFixture[str], root: Path, *argv: str) -> list[dict[str, Any]]:
    before = snapshot(root)
    told = run(capsys, "--dry-run", str(root), *argv)
    assert snapshot(root) == before
    done = run(capsys, "--yes", str(root), *argv)
    assert [entry.pop("done") for entry in told[1]] == [False] * len(told[1])
    assert all(entry.pop("done") for entry in done[1])
    assert told == done
    return done[1]


@pytest.mark.parametrize("name", RECOVERIES)
@pytest.mark.parametrize("options", [(), ("--from-start",), ("-X", "index.interval.bytes=100")])
def test_scenarios(name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    shutil.copytree(SCENARIOS / name / "input" / "logs", root)
    (result,) = told_and_done(capsys, root, *options)
    assert result["error"] is None
    assert bool(result["lostBytes"]) == (name == "recover_torn_tail")
    code, (again,) = run(capsys, str(root), *options)
    assert code == 0
    assert not again["cuts"]
    if options != ("--from-start",):
        assert not again["added"] + again["removed"] + again["changed"]


@pytest.mark.slow
def test_any_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole"
    with kafkalog.open_log(whole, "t-0", config={"internal.segment.bytes": "600"}) as log:
        for n in range(12):
            log.append_many([b"%d-%d" % (n, m) for m in range(3)])
        with client_transaction(log, "x") as txn:
            txn.append(b"committed")
    with kafkalog.open_log(whole, "t-1") as log:
        log.append(b"fine")
    (whole / "recovery-point-offset-checkpoint").unlink()
    rng = random.Random(20)
    lost = 0
    for number in range(40):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        path = rng.choice(sorted((root / "t-0").iterdir()))
        data = bytearray(path.read_bytes())
        if not data:
            path.unlink()
        elif rng.random() < 0.4:
            path.write_bytes(data[: rng.randrange(len(data))])
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        refused = tmp_path / f"{number}-refused"
        shutil.copytree(root, refused)
        logs = {path: path.read_bytes() for path in refused.rglob("*.log")}
        (refused / ".kafka_cleanshutdown").unlink()
        try:
            kafkalog.open_log(refused, "t-0", on_damage="raise").close()
            opens = True
        except KafkalogError:
            opens = False
            assert {path: path.read_bytes() for path in refused.rglob("*.log")} == logs
        damaged, fine = told_and_done(capsys, root)
        assert opens == (damaged["error"] is None and not damaged["lostBytes"])
        if damaged["error"] is None:
            with kafkalog.open_log(refused, "t-0") as log:
                assert log.end_offset == damaged["endOffset"]
            assert damaged["oldEndOffset"] >= damaged["endOffset"] + bool(damaged["lostRecords"])
        assert not fine["lostBytes"]
        lost += bool(damaged["lostBytes"])
        if damaged["error"] is None:
            assert (root / ".kafka_cleanshutdown").exists()
            with kafkalog.open_log(root, "t-0", read_only=True) as log:
                assert log.end_offset == damaged["endOffset"]
    assert lost > 5


def test_any_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that an open creates again is in the overlay, and is then looked up there, not on the disk."""
    whole = tmp_path / "whole"
    with kafkalog.open_log(whole, "t-0", config={"internal.segment.bytes": "300"}) as log:
        for n in range(4):
            log.append(b"%d" % n * 50)
    for name in sorted(path.name for path in (whole / "t-0").iterdir()):
        root = tmp_path / f"without {name}"
        shutil.copytree(whole, root)
        (root / "t-0" / name).unlink()
        (result,) = told_and_done(capsys, root)
        assert result["error"] is None, name
        assert (root / "t-0" / name).exists() == (not name.endswith((".log", ".metadata"))), name


def test_a_cut_with_segments_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    with kafkalog.open_log(root, "t-0", config={"internal.segment.bytes": "300"}) as log:
        for n in range(9):
            log.append(b"%d" % n * 50)
    (root / "recovery-point-offset-checkpoint").unlink()
    logs = sorted((root / "t-0").glob("*.log"))
    data = bytearray(logs[1].read_bytes())
    data[-1] ^= 1
    logs[1].write_bytes(data)
    assert invoke(["recover", str(root)]) == 1
    text = capsys.readouterr().out
    assert "would be recovered" in text
    assert f"of {logs[1]} on: a bad CRC" in text
    assert f"would delete {logs[2]}" in text
    (result,) = told_and_done(capsys, root)
    assert {entry["path"] for entry in result["dropped"]} == {str(path) for path in logs[2:]}
    assert result["cuts"][0]["why"] == "a bad CRC"
    assert result["endOffset"] == 3
    assert (result["oldEndOffset"], result["lostRecords"]) == (9, 6)
    with kafkalog.open_log(root, "t-0") as log:
        assert log.end_offset == 3


def damaged_log(root: Path, change: str) -> tuple[Path, int]:
    """A log of five segments and an unflushed recovery point, with one kind of damage; its file, and the records that
    an open truncates."""
    with kafkalog.open_log(root, "t-0", config={"internal.segment.bytes": "600"}) as log:
        for n in range(10):
            log.append_many([b"%d-%d" % (n, m) * 30 for m in range(2)])
    (root / "recovery-point-offset-checkpoint").unlink()
    (root / ".kafka_cleanshutdown").unlink()
    logs = sorted((root / "t-0").glob("*.log"))
    assert len(logs) == 5
    data = bytearray(logs[2].read_bytes())
    size, lost = len(data) // 2, 0  # two batches of two records each
    if change == "a flipped bit of a record":
        data[size - 1] ^= 1
        lost = 12  # two damaged ones among them
    elif change == "a flipped bit of a count":
        data[size + 60] ^= 0x40
        lost = 10
    elif change == "a torn tail":
        logs[2], data = logs[4], bytearray(logs[4].read_bytes()[:-5])
        lost = 2
    elif change == "a header alone":
        logs[2], data = logs[4], bytearray(logs[4].read_bytes()[: size + 30])  # and too little of it to tell
    elif change == "a missing index":
        data[-1] ^= 1
        logs[2].with_suffix(".index").unlink()
        lost = 2  # a truncation that rebuilds an index deletes no later segment
    elif change == "another's batch":
        data[size + 7] = 0
        lost = 10
    logs[2].write_bytes(data)
    return logs[2], lost


CHANGES = [
    "a flipped bit of a record", "a flipped bit of a count", "a torn tail", "a header alone", "a missing index",
    "another's batch",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_an_open_that_refuses_to_cut(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, other = tmp_path / "logs", tmp_path / "other"
    path, lost = damaged_log(root, change)
    shutil.copytree(root, other)
    logs = {file: file.read_bytes() for file in (root / "t-0").glob("*.log")}
    for _ in range(2):  # it stays refused
        with pytest.raises(CorruptRecordException) as caught:
            kafkalog.open_log(root, "t-0", on_damage="raise")
        assert (caught.value.path, {file: file.read_bytes() for file in (root / "t-0").glob("*.log")}) == (
            str(path),
            logs,
        )
        assert f"up to {lost} records" in str(caught.value)
        for advice in ("recover --dry-run", "salvage", "truncate"):
            assert advice in str(caught.value)
    code, (told,) = run(capsys, str(root))
    assert (code, told["lostRecords"], told["cuts"][0]["position"]) == (1, lost, caught.value.position)
    end = 20 if change == "a missing index" else 20 - lost - (2 if change == "a header alone" else 0)
    assert (told["endOffset"], told["oldEndOffset"]) == (end, 18 if change == "a header alone" else 20)
    assert f"{told['lostBytes']} bytes" in str(caught.value)
    seen: list[Damage] = []
    with kafkalog.open_log(root, "t-0", on_damage=seen.append) as log, kafkalog.open_log(other, "t-0") as plain:
        assert list(log) == list(plain)
        assert log.end_offset == told["endOffset"]
    assert [(damage.records, damage.position) for damage in seen] == [(lost, caught.value.position)]
    with kafkalog.open_log(root, "t-0", on_damage="raise") as log:
        assert log.end_offset == told["endOffset"]


def test_zeros_behind_the_end_are_no_damage(tmp_path: Path) -> None:
    path, _ = damaged_log(tmp_path, "nothing")
    last = max(path.parent.glob("*.log"))
    whole = last.read_bytes()
    last.write_bytes(whole + bytes(5000))
    with kafkalog.open_log(tmp_path, "t-0", on_damage="raise") as log:
        assert log.end_offset == 20
    assert last.read_bytes() == whole
    for wrong in ("cut", None, 5, ["raise"]):
        with pytest.raises(IllegalArgumentException, match="on_damage"):
            kafkalog.open_log(tmp_path, "t-0", on_damage=wrong)  # type: ignore[arg-type]


def test_what_does_not_open_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "logs"
    for name in ("t-0", "t-1"):
        with kafkalog.open_log(root, name) as log:
            log.append(b"1")
    (root / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\nx\n")
    bad, good = told_and_done(capsys, root)
    assert bad["error"]
    assert good["error"] is None
    assert not (root / ".kafka_cleanshutdown").exists()


def test_the_overlay_does_what_the_disk_does(tmp_path: Path) -> None:
    """Random steps on a copy and on an overlay: the same answers and the same files, and the source as it was."""
    for seed in range(30):
        rng = random.Random(seed)
        source, copy = tmp_path / f"{seed}-source", tmp_path / f"{seed}-copy"
        source.mkdir()
        for name in "abc":
            (source / name).write_bytes(rng.randbytes(rng.randrange(200)))
        shutil.copytree(source, copy)
        before = snapshot(source)
        with OverlayFiles() as overlay:
            handles: list[tuple[File, File]] = []
            for _ in range(60):
                kind = rng.randrange(9)
                name, other = rng.choice("abcd"), rng.choice("abcd")
                step(kind, rng.randrange(1 << 30), overlay, str(source), name, other, handles, str(copy))
            assert tree(overlay, str(source)) == tree(OS_FILES, str(copy))
            for ours, theirs in handles:
                assert ours.pread(1000, 0) == theirs.pread(1000, 0)
                assert ours.map() == theirs.map() or bytes(ours.map() or b"") == bytes(theirs.map() or b"")
                ours.close()
                theirs.close()
        assert snapshot(source) == before


def step(
    kind: int, seed: int, overlay: Files, root: str, name: str, other: str, handles: list[tuple[File, File]], copy: str
) -> None:
    def one(files: Files, folder: str, handle: File | None) -> object:
        rng = random.Random(seed)
        path = os.path.join(folder, name)
        if kind == 0:
            return files.open(path, create=True)
        if kind == 1:
            return files.open(path, writable=False).size()
        if kind == 2:
            files.rename(path, os.path.join(folder, other))
        if kind == 3:
            files.unlink(path)
        if kind == 4:
            files.write_file(path, rng.randbytes(20))
        if handle is None:
            return None
        if kind == 5:
            handle.truncate(rng.randrange(250))
        if kind == 6:
            return handle.pwritev([rng.randbytes(10), b"end"], rng.randrange(200))
        if kind == 7:
            buffer = bytearray(50)
            return handle.pread_into(buffer, rng.randrange(200)), bytes(buffer)
        return handle.size(), files.exists(path), files.list_files(folder)

    pair = handles[seed % len(handles)] if handles else (None, None)
    answers: list[object] = []
    for files, folder, handle in ((overlay, root, pair[0]), (OS_FILES, copy, pair[1])):
        try:
            answers.append(one(files, folder, handle))
        except OSError as error:
            answers.append(type(error))
    if isinstance(answers[0], File):
        assert isinstance(answers[1], File)
        handles.append((answers[0], answers[1]))
    else:
        assert answers[0] == answers[1], (kind, name, other)


def tree(files: Files, root: str) -> dict[str, bytes]:
    return {name: files.read_bytes(os.path.join(root, name)) for name in files.list_files(root)}


def test_overlay_folders(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with OverlayFiles() as overlay:
        root = str(tmp_path)
        overlay.mkdirs(f"{root}/new/deeper")
        overlay.write_atomic(f"{root}/new/deeper/x", b"1")
        assert overlay.list_dir(f"{root}/new") == ["deeper"]
        assert overlay.stat(f"{root}/new/deeper/x").size == 1
        overlay.set_mtime_ms(f"{root}/new/deeper/x", 77)
        assert overlay.stat(f"{root}/new/deeper/x").mtime_ms == 77
        with pytest.raises(OSError, match="not empty"):
            overlay.rmdir(f"{root}/new/deeper")
        overlay.remove_tree(f"{root}/new/deeper")
        overlay.rmdir(f"{root}/old")
        assert overlay.list_dir(root) == ["new"]
        with pytest.raises(FileNotFoundError):
            overlay.open(f"{root}/nowhere/x", create=True)
        with pytest.raises(FileNotFoundError):
            overlay.list_dir(f"{root}/old")
        overlay.lock(f"{root}/.lock").release()
    assert os.listdir(tmp_path) == ["old"]


def test_watching_the_disk(tmp_path: Path) -> None:
    seen: list[object] = []

    class Eyes(Watch):
        def has_read(self, path: str, size_bytes: int) -> None:
            seen.append(size_bytes)

        def before_cut(self, file: File, size: int) -> None:
            seen.append((file.size(), size))

    path = tmp_path / "x"
    path.write_bytes(b"12345")
    with watched_files(Eyes()).open(str(path)) as file:
        file.pread_into(bytearray(3), 1)
        file.truncate(9)
        file.truncate(2)
    assert seen == [3, (9, 2)]
