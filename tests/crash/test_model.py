"""The crash model itself: a toy log that keeps its promises passes, and each way of not keeping them is found."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
import zlib
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, Files, parent_dir
from tests import sampling
from tests.crash import harness
from tests.crash.harness import ACKNOWLEDGED, APPENDED, FLUSHED, KINDS, CrashState
from tests.disk_model import Disk, Op
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles, UnsyncedFiles


class ToyLog:
    """Frames of length, CRC and payload; `commit` is a file replaced whole."""

    def __init__(self, files: Files, directory: str, *, sync_dir: bool = True, sync_file: bool = True) -> None:
        self.files = files
        self.path = os.path.join(directory, "log")
        self.sync_file = sync_file
        files.mkdirs(directory)
        self.file = files.open(self.path, create=True)
        self.end = 0
        if sync_dir:
            files.sync_dir(directory)
            files.sync_dir(parent_dir(directory))

    def append(self, payload: bytes) -> None:
        frame = struct.pack(">II", len(payload), zlib.crc32(payload)) + payload
        self.file.pwrite(frame, self.end)
        self.end += len(frame)

    def flush(self) -> None:
        if self.sync_file:
            self.file.sync()


def recover(directory: str, *, check_crc: bool = True) -> list[bytes]:
    path = os.path.join(directory, "toy", "log")
    if not os.path.exists(path):
        return []
    data = Path(path).read_bytes()
    found, position = [], 0
    while position + 8 <= len(data):
        size, crc = struct.unpack_from(">II", data, position)
        payload = data[position + 8 : position + 8 + size]
        if size == 0 or (check_crc and (len(payload) < size or zlib.crc32(payload) != crc)):
            break
        found.append(payload)
        position += 8 + size
    return found


def run_toy(tmp_path: Path, *, count: int = 12, size: int = 700, **options: bool) -> RecordingFiles:
    files = RecordingFiles(str(tmp_path))
    log = ToyLog(files, str(tmp_path / "toy"), **options)
    rng = random.Random(1)
    for number in range(count):
        payload = rng.randbytes(rng.randint(1, size))
        files.mark(APPENDED, payload)
        log.append(payload)
        files.mark(ACKNOWLEDGED, payload)
        if number % 3 == 2:
            log.flush()
            files.mark(FLUSHED, payload)
    log.file.close()
    return files


def check_with(recording: RecordingFiles, *, check_crc: bool = True) -> harness.Check:
    def check(directory: str, state: CrashState) -> None:
        harness.oracle(recording, state, recover(directory, check_crc=check_crc))

    return check


def test_a_log_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    recording = run_toy(tmp_path)
    states = harness.check_crashes(recording, check_with(recording), torn_step=64, shuffles=20)
    assert states > 300


@pytest.mark.parametrize(
    ("options", "kind"), [({"sync_file": False}, "power"), ({"sync_dir": False}, "power")], ids=["fsync", "directory"]
)
def test_a_missing_sync_is_found(tmp_path: Path, options: dict[str, bool], kind: str) -> None:
    recording = run_toy(tmp_path, **options)
    assert harness.check_crashes(recording, check_with(recording), kinds=("kill", "torn"))
    with pytest.raises(AssertionError, match="lost") as failure:
        harness.check_crashes(recording, check_with(recording), kinds=(kind,), keep=tmp_path / "kept")
    assert "crash state" in failure.value.__notes__[0]
    assert (tmp_path / "kept").is_dir()


def test_a_directory_entry_can_follow_its_file(tmp_path: Path) -> None:
    """On ext4 the fsync of a new file makes its name durable; a directory's name needs its own fsync."""
    recording = run_toy(tmp_path, sync_dir=False)
    disk = recording.replay(names_follow_sync=True)
    disk.materialise_durable(str(tmp_path / "image"))
    assert not (tmp_path / "image" / "toy").exists()
    disk.apply(Op("sync_dir", ""))
    disk.materialise_durable(str(tmp_path / "later"))
    assert (tmp_path / "later" / "toy" / "log").exists()


@pytest.mark.parametrize("kind", ["torn", "shuffled"])
def test_a_reader_that_trusts_lengths_is_found(tmp_path: Path, kind: str) -> None:
    recording = run_toy(tmp_path)
    with pytest.raises(AssertionError, match="no prefix"):
        harness.check_crashes(recording, check_with(recording, check_crc=False), kinds=(kind,), shuffles=20)


def test_sampling_is_seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run_toy(tmp_path)
    seen: list[list[str]] = []
    for seed in (1, 1, 2):
        monkeypatch.setattr(sampling, "SEED", seed)
        states: list[str] = []
        harness.check_crashes(recording, lambda _, state: states.append(str(state)), sample=40)  # noqa: B023
        seen.append(states)
    assert seen[0] == seen[1] != seen[2]
    assert [len(states) for states in seen] == [40] * 3


def test_the_live_image_is_the_real_directory(tmp_path: Path) -> None:
    """After any sequence of changes the model holds the same as the disk."""
    for seed in range(30):
        root = tmp_path / str(seed)
        root.mkdir()
        (root / "before").write_bytes(b"was here")
        files = RecordingFiles(str(root))
        rng = random.Random(seed)
        for _ in range(60):
            _random_change(files, str(root), rng)
        disk = files.replay()
        assert disk.live_files() == _tree(root)
        disk.materialise_live(str(tmp_path / f"{seed}-live"))
        assert _tree(tmp_path / f"{seed}-live") == _tree(root)
        # With everything synced, power loss takes nothing.
        for folder, _, names in os.walk(root):
            files.sync_dir(folder)
            for name in names:
                files.sync_file(os.path.join(folder, name))
        for kind in range(3):
            into = tmp_path / f"{seed}-{kind}"
            if kind == 0:
                files.replay().materialise_durable(str(into))
            else:
                files.replay().materialise_shuffled(str(into), random.Random(kind))
            assert _tree(into) == _tree(root)


def _random_change(files: RecordingFiles, root: str, rng: random.Random) -> None:
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in sorted(names)]
    dirs = [folder for folder, _, _ in os.walk(root)]
    match rng.randrange(8):
        case 0:
            files.create(os.path.join(rng.choice(dirs), f"f{rng.randrange(100)}"))
        case 1:
            files.mkdirs(os.path.join(rng.choice(dirs), f"d{rng.randrange(3)}"))
        case 2 if paths:
            files.unlink(rng.choice(paths))
        case 3 if paths:
            files.rename(rng.choice(paths), os.path.join(rng.choice(dirs), f"r{rng.randrange(100)}"))
        case 4 if len(dirs) > 1:
            folder = rng.choice(dirs[1:])
            files.rename(folder, os.path.join(parent_dir(folder), f"moved{rng.randrange(10**9)}"))
        case 5 if paths:
            files.sync_file(rng.choice(paths))
        case 6:
            files.sync_dir(rng.choice(dirs))
        case _ if paths:
            with files.open(rng.choice(paths)) as file:
                file.pwritev([rng.randbytes(rng.randrange(900)), b"tail"], rng.randrange(2000))
                if rng.random() < 0.3:
                    file.truncate(rng.randrange(3000))


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_handles_outlive_renames(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    file = files.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"one", 0)
    files.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    file.pwrite(b"two", 3)
    file.close()
    assert files.replay().live_files() == {"b": b"onetwo"}


def test_rename_is_one_step_on_the_disk() -> None:
    """Between two directories, after one fsync of either, the file has one name."""
    disk = Disk()
    for op in (
        Op("mkdir", "a"),
        Op("mkdir", "b"),
        Op("create", "a/f", 0),
        Op("write", "a/f", 0, 0, b"x"),
        Op("sync", "a/f", 0),
        Op("sync_dir", ""),
        Op("rename", "a/f", target="b/f"),
        Op("sync_dir", "b"),
    ):
        disk.apply(op)
    assert list(disk.root.durable["a"].durable) == []  # type: ignore[union-attr]
    assert list(disk.root.durable["b"].durable) == ["f"]  # type: ignore[union-attr]
    assert not disk.pending_names


def test_an_atomic_write_is_old_or_new(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    path = str(tmp_path / "checkpoint")
    contents = [b"old" * 400, b"new, and longer" * 300, b"short"]
    files.write_atomic(path, contents[0])
    first = len(files.ops)
    for content in contents[1:]:
        files.write_atomic(path, content)
    seen = set()

    def check(directory: str, state: CrashState) -> None:
        content = (Path(directory) / "checkpoint").read_bytes()
        assert content in contents
        seen.add((state.kind, content))

    harness.check_crashes(files, check, start=first, shuffles=10)
    assert {content for kind, content in seen if kind == "power"} == set(contents)
    assert {kind for kind, _ in seen} == set(KINDS)


def test_preallocated_files_are_cheap(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    with files.open(str(tmp_path / "index"), create=True) as file:
        file.truncate(1 << 30)
        file.pwrite(b"entry", 0)
        file.sync()
    files.sync_dir(str(tmp_path))
    disk = files.replay()
    disk.materialise_durable(str(tmp_path / "image"))
    assert (tmp_path / "image" / "index").stat().st_size == 1 << 30
    assert len(disk.files[0].live.data) == 5


def test_thousands_of_states_take_seconds(tmp_path: Path) -> None:
    recording = run_toy(tmp_path, count=150, size=300)
    started = time.monotonic()
    states = harness.check_crashes(recording, check_with(recording), torn_step=64, shuffles=1)
    assert states > 1500
    assert time.monotonic() - started < 30


# --- faults -------------------------------------------------------------------------------------------


def _fill(files: Files, directory: str) -> None:
    log = ToyLog(files, os.path.join(directory, "toy"))
    try:
        for number in range(10):
            log.append(bytes([number]) * 100)
            log.flush()
    finally:
        log.file.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("sticky", [True, False])
def test_every_change_can_fail(error: int, sticky: bool) -> None:
    outcomes = []

    def check(directory: str, files: FaultyFiles, raised: BaseException | None) -> None:
        found = recover(directory)
        assert found == [bytes([number]) * 100 for number in range(len(found))]
        if raised is not None:
            assert isinstance(raised, OSError)
            assert raised.errno == error
        outcomes.append((len(found), raised is None))

    assert harness.each_fault(_fill, check, error=error, sticky=sticky) == 24
    assert outcomes[0] == (10, True)
    if error == errno.EIO:
        assert all(not fine for _, fine in outcomes[1:])


def test_no_space_writes_half_and_frees_freely(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES, Fault(1, errno.ENOSPC))
    path = str(tmp_path / "f")
    with files.open(path, create=True) as file:
        with pytest.raises(OSError) as failure:
            file.pwrite(b"x" * 100, 0)
        assert failure.value.errno == errno.ENOSPC
        assert file.size() == 50
        file.pwrite(b"y" * 50, 0)  # needs no space
        file.truncate(10)
        with pytest.raises(OSError):
            file.truncate(1000)
    files.unlink(path)
    assert [failed.kind for failed in files.failed] == ["write", "truncate"]


def test_reads_fail_where_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    OS_FILES.write_file(path, b"abc")
    files = FaultyFiles(OS_FILES, Fault(0, errno.EIO, kinds={"pread", "read_bytes"}))
    with files.open(path) as file, pytest.raises(OSError):
        file.pread(3, 0)
    with pytest.raises(OSError):
        files.read_bytes(path)


def test_unsynced_files_do_all_but_wait(tmp_path: Path) -> None:
    files = UnsyncedFiles()
    files.write_atomic(str(tmp_path / "f"), b"abc")
    assert files.read_bytes(str(tmp_path / "f")) == b"abc"


# --- killed processes ---------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from kafkalog.engine.files import OS_FILES
from tests.crash.test_model import ToyLog
log = ToyLog(OS_FILES, sys.argv[1])
number = 0
while True:
    payload = str(number).encode() * 20
    log.append(payload)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("after_lines", [1, 200])
def test_what_a_killed_process_promised_is_there(tmp_path: Path, after_lines: int) -> None:
    lines = harness.run_and_kill(_WRITER, [str(tmp_path / "toy")], after_lines=after_lines)
    found = recover(str(tmp_path))
    assert found == [str(number).encode() * 20 for number in range(len(found))]
    assert len(found) >= len(lines) >= after_lines


def test_a_writer_that_fails_says_why() -> None:
    with pytest.raises(AssertionError, match="no such luck"):
        harness.run_and_kill("raise SystemExit('no such luck')", [], after_lines=1)
