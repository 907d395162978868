"""Verify next to a writer: files that change or vanish during the check are no damage; damage stays damage."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files.os_files import OsFiles
from kafkalog.toolbox.verify import verify
from tests.client_transaction import client_transaction


class _Writing(OsFiles):
    """Calls `before` with what is done and the path."""

    def __init__(self, before: Callable[[str, str], object]) -> None:
        super().__init__()
        self.before = before

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> Any:
        self.before("open", path)
        return super().open(path, writable=writable, create=create, exclusive=exclusive)

    def read_bytes(self, path: str) -> bytes:
        self.before("read", path)
        return super().read_bytes(path)

    def list_dir(self, path: str) -> list[str]:
        self.before("list", path)
        return super().list_dir(path)


def segments(root: Path) -> list[Path]:
    """The .log files of a log with several, and with transactions."""
    config = {"internal.segment.bytes": "600", "index.interval.bytes": "0"}
    with kafkalog.open_log(root, "t-0", config=config) as log:
        for number in range(8):
            log.append_many([b"x" * 50] * 2)
            with client_transaction(log, "job") as txn:
                txn.append(b"y")
                if number % 2:
                    txn.abort()
    return sorted((root / "t-0").glob("*.log"))


def once(step: Callable[[], object]) -> Callable[[], object]:
    left = [step]
    return lambda: left.pop()() if left else None


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("at", ["open .log", "open .index", "open .timeindex"])
def test_a_segment_that_goes_while_verify_looks_is_no_damage(tmp_path: Path, at: str, deep: bool) -> None:
    paths = segments(tmp_path)
    word, _, suffix = at.partition(" ")

    def before(doing: str, path: str) -> None:
        for segment in paths[:2]:
            if doing == word and path == str(segment.with_suffix(suffix)):
                for each in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
                    segment.with_suffix(each).unlink(missing_ok=True)

    report = verify(tmp_path, deep=deep, files=_Writing(before))
    assert report.findings == []
    assert report.segments == len(paths) - 2
    assert verify(tmp_path, deep=True).ok


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", ".txnindex"])
def test_a_file_that_is_being_written_while_verify_looks_is_no_damage(tmp_path: Path, suffix: str) -> None:
    path = next(path.with_suffix(suffix) for path in segments(tmp_path)[1:] if path.with_suffix(suffix).exists())
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    mend = once(lambda: path.write_bytes(whole))
    looks: list[str] = []

    def before(doing: str, at: str) -> None:
        if at == str(path):
            looks.append(doing)
            if len(looks) > 1:
                mend()
        elif looks and doing == "open" and at == str(path.with_suffix(".log")):
            os.utime(path, (0, path.stat().st_mtime + 1))  # another process is writing

    assert verify(tmp_path, deep=True, files=_Writing(before)).findings == []
    assert len(looks) > 1


def test_a_roll_while_verify_lists_the_folder_is_no_damage(tmp_path: Path) -> None:
    last = segments(tmp_path)[-1]
    hidden = last.with_suffix(".hidden")
    last.rename(hidden)
    looks: list[str] = []

    def before(doing: str, path: str) -> None:
        if doing == "list" and path.endswith("t-0"):
            looks.append(path)
            if len(looks) == 2:
                hidden.rename(last)

    assert verify(tmp_path, deep=True, files=_Writing(before)).findings == []


@pytest.mark.parametrize("rests", [True, False])
def test_damage_is_found_once_in_a_file_that_never_rests(tmp_path: Path, rests: bool) -> None:
    path = segments(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    size = sum(each.stat().st_size for each in (tmp_path / "t-0").glob("*.log"))
    clock = [1000]

    def before(doing: str, at: str) -> None:
        if at == str(path) and not rests:
            clock[0] += 1
            os.utime(path, (clock[0], clock[0]))

    told: list[int] = []
    report = verify(tmp_path, files=_Writing(before), progress=told.append)
    assert [(finding.path, finding.position) for finding in report.findings if "CRC" in finding.what] == [
        (str(path), 0)
    ]
    assert report.findings == verify(tmp_path).findings
    assert sum(told) == report.bytes == size


@pytest.mark.slow
def test_verify_beside_a_writer(tmp_path: Path) -> None:
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "50", "file.delete.delay.ms": "0"}
    stop = threading.Event()
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:

        def write() -> None:
            while not stop.is_set():
                for _ in range(50):
                    log.append(b"v" * 30)
                with client_transaction(log, "job") as txn:
                    txn.append(b"w")
                    txn.abort()
                log.delete_records(max(0, log.end_offset - 300))
                log.delete_old_segments()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            found = [finding for _ in range(20) for finding in verify(tmp_path, deep=True).findings]
        finally:
            stop.set()
            thread.join()
        assert found == []


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_checkpoint_without_lines_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """A start creates two empty checkpoints, and one gets its first line a moment before the other."""
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    other = tmp_path / "recovery-point-offset-checkpoint"
    other.touch()
    monkeypatch.setattr("time.sleep", lambda seconds: other.write_text("0\n1\nt 0 9\n") if goes_on else None)
    found = verify(tmp_path).findings
    assert [finding.path for finding in found] == ([] if goes_on else [str(other)])
