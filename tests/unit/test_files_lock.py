"""The directory lock: against ourselves, other processes, a forked child, and a real JVM."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, lock
from kafkalog.errors import LogDirLockedException

JAVA_HOLDER = """
import java.nio.channels.*;
import java.nio.file.*;
public class Holder {
    public static void main(String[] args) throws Exception {
        FileChannel channel = FileChannel.open(Path.of(args[0]),
            StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
        FileLock held = channel.tryLock();
        System.out.println(held == null ? "refused" : "held");
        System.out.flush();
        System.in.read();
    }
}
"""
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


@pytest.fixture(params=["ofd", "posix"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "posix":
        monkeypatch.setattr(lock, "_F_OFD_SETLK", None)
        monkeypatch.setattr(lock, "_F_OFD_GETLK", None)
    elif lock._F_OFD_SETLK is None:
        pytest.skip("open-file-description locks are Linux's")
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ".lock")


@pytest.mark.usefixtures("kind")
def test_one_holder_in_this_process(path: str) -> None:
    with OS_FILES.lock(path):
        assert os.path.getsize(path) == 0
        with pytest.raises(LogDirLockedException) as refused:
            OS_FILES.lock(path)
        assert refused.value.message == (
            f"Failed to acquire lock on file .lock in {os.path.dirname(path)}. "
            "A Kafka instance in another process or thread is using this directory."
        )
        assert "this process holds it already" in str(refused.value)
    assert not os.path.exists(path)
    OS_FILES.lock(path).release(remove=False)
    assert os.path.exists(path)
    held = OS_FILES.lock(path)
    held.release()
    held.release()


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


def test_a_forked_child_does_not_keep_it(path: str) -> None:
    held = OS_FILES.lock(path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    held.release()
    OS_FILES.lock(path).release()
    os.close(writer)
    os.waitpid(child, 0)


@pytest.mark.usefixtures("kind")
def test_a_file_that_vanishes_meanwhile_is_not_enough(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our opening and locking, the former holder removes the file and someone makes it anew."""
    set_lock = lock._set_lock
    calls = []

    def late(fd: int) -> None:
        if not calls:
            os.unlink(path)
        calls.append(fd)
        set_lock(fd)

    monkeypatch.setattr(lock, "_set_lock", late)
    with OS_FILES.lock(path):
        assert len(calls) == 2
        assert os.path.exists(path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OS_FILES.lock(str(tmp_path / "missing" / ".lock"))


def test_errors_of_the_disk_stay_what_they_are(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock.fcntl, "fcntl", broken)
    monkeypatch.setattr(lock.fcntl, "lockf", broken)
    with pytest.raises(OSError) as failure:
        OS_FILES.lock(path)
    assert failure.value.errno == errno.ENOLCK


@pytest.mark.jvm
@pytest.mark.usefixtures("kind")
def test_a_java_broker_is_kept_out_and_keeps_us_out(tmp_path: Path, path: str) -> None:
    source = tmp_path / "Holder.java"
    source.write_text(JAVA_HOLDER)
    program = ["java", "-XX:TieredStopAtLevel=1", str(source)]
    broker = hold(program, path)
    assert said(broker) == "held"
    with pytest.raises(LogDirLockedException) as refused:
        OS_FILES.lock(path)
    if lock._F_OFD_GETLK is not None:
        assert f"process {broker.pid} (java) holds it" in str(refused.value)
    finish(broker)
    with OS_FILES.lock(path):
        late = hold(program, path)
        assert said(late) == "refused"
        finish(late)


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
    """A process that asks for a place."""

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
        assert "another one is at work in place 0" in again.answer
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
    """A broker asks for all bytes of the file."""
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
