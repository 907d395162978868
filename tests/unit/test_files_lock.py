"""The directory lock within one process; tests/live and tests/conformance test it between processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkalog.engine.files import OS_FILES, lock
from kafkalog.errors import LogDirLockedException


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


@pytest.mark.usefixtures("kind")
def test_a_file_that_vanishes_meanwhile_is_not_enough(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the open and the lock, the former holder removes the file and another process creates it again."""
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
