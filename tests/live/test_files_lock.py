"""A lock file between processes: one holder, and guests that share what a holder has."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, lock
from kafkalog.errors import LogDirLockedException
from tests.unit.test_files_lock import kind, path

__all__ = ["kind", "path"]

PYTHON_HOLDER = """
import sys
from kafkalog.errors import LogDirLockedException
from kafkalog.engine.files import OS_FILES
try:
    held = OS_FILES.lock(sys.argv[1])
    print("held", flush=True)
except LogDirLockedException:
    print("refused", flush=True)
sys.stdin.read(1)
"""


def hold(program: list[str], path: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    return subprocess.Popen([*program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)


@pytest.mark.usefixtures("kind")
def test_another_process_is_kept_out(path: str) -> None:
    program = [sys.executable, "-c", PYTHON_HOLDER]
    held = OS_FILES.lock(path)
    # Opening and closing the file must not give the lock away, whatever kind it is, as long as it is not ours to open.
    refused = hold(program, path)
    assert said(refused) == "refused"
    finish(refused)
    held.release()
    other = hold(program, path)
    assert said(other) == "held"
    with pytest.raises(LogDirLockedException, match=r"stop .* or open with read_only=True"):
        OS_FILES.lock(path)
    other.kill()
    finish(other)
    OS_FILES.lock(path).release()


def test_other_descriptors_do_not_matter(path: str) -> None:
    if lock._F_OFD_SETLK is None:
        pytest.skip("open-file-description locks are Linux's")
    with OS_FILES.lock(path):
        Path(path).read_bytes()  # with a POSIX lock, this close would drop it
        other = hold([sys.executable, "-c", PYTHON_HOLDER], path)
        assert said(other) == "refused"
        finish(other)


# --- a lock that its holder shares ---------------------------------------------------------------------------

GUEST = """
import sys
from kafkalog.errors import LogDirLockedException
from kafkalog.engine.files.lock import OsGuest
try:
    with OsGuest(sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])):
        print("in", flush=True)
        sys.stdin.read(1)
except LogDirLockedException as error:
    print(error, flush=True)
"""


class Guest:
    """A process that requests a place."""

    def __init__(self, path: str, token: str, slot: int) -> None:
        argv = [sys.executable, "-c", GUEST, path, token, str(slot)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.answer = self.process.stdout.readline().strip()

    def leave(self) -> None:
        if self.process.returncode is None:
            self.process.communicate("x", timeout=30)


def test_guests_of_a_shared_lock(path: str) -> None:
    held = OS_FILES.lock(path)
    alone = Guest(path, "a", 0)
    held.share(b"a")
    first, again, second, stranger = (
        Guest(path, token, slot) for token, slot in (("a", 0), ("a", 0), ("a", 1), ("b", 2))
    )
    try:
        assert "is using this directory" in alone.answer
        assert (first.answer, second.answer) == ("in", "in")
        assert "another guest is active in slot 0" in again.answer
        assert "not shared any more" in stranger.answer
        assert not held.take_back()
        first.leave()
        assert not held.take_back()
        second.leave()
        assert held.take_back()
        late = Guest(path, "a", 0)
        late.leave()
        assert "is using this directory" in late.answer
        held.release()
        assert not os.path.exists(path)
    finally:
        for guest in (alone, first, again, second, stranger):
            guest.leave()
        held.release()


def test_a_guest_keeps_others_out_when_the_holder_is_gone(path: str) -> None:
    held = OS_FILES.lock(path)
    held.share(b"a")
    guest = Guest(path, "a", 7)
    held.release()  # as the end of its process does
    assert os.path.exists(path)
    with pytest.raises(LogDirLockedException):
        OS_FILES.lock(path)
    orphan = Guest(path, "a", 8)
    assert "not shared any more" in orphan.answer
    orphan.leave()
    guest.leave()
    OS_FILES.lock(path).release()
    assert not os.path.exists(path)
    late = Guest(path, "a", 1)
    late.leave()
    assert "not shared any more" in late.answer


def test_a_jvm_is_kept_out_by_a_guest(path: str) -> None:
    """A broker locks all bytes of the file."""
    held = OS_FILES.lock(path)
    held.share(b"a")
    with open(path, "r+b") as file, pytest.raises(OSError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    guest = Guest(path, "a", 0)
    held.release()
    code = "import fcntl,sys\nfile = open(sys.argv[1], 'r+b')\nfcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    refused = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "BlockingIOError" in refused.stderr
    guest.leave()
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0
