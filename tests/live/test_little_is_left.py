"""Little memory, few descriptors, a limit on files: each in a separate process with this limit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_files_os import path

__all__ = ["path"]


def test_a_file_size_limit_in_the_middle_of_a_write(path: str) -> None:
    """A short write by the kernel itself, and the error of what follows."""
    code = (
        "import resource, signal, sys\n"
        "from kafkalog.engine.files import OS_FILES\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "with OS_FILES.open(sys.argv[1], create=True) as file:\n"
        "    file.pwritev([b'0123', b'4567'], 0)\n"
        "    try:\n"
        "        file.pwritev([b'89', b'abcd'], 8)\n"
        "    except OSError as error:\n"
        "        print(error.errno, error.filename, file.pread(99, 0).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.EFBIG} {path} 0123456789\n"


@pytest.fixture
def low() -> Callable[[str], str]:
    """Runs a text in a process that may open 64 files."""

    def run(text: str) -> str:
        code = (
            "import os, resource, sys\n"
            "from pathlib import Path\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
            "from tests.unit.log_kit import Kit, batch, name\n"
            "from kafkalog.errors import *\n"
            "from kafkalog.engine.files import OS_FILES, OpenFiles, OsFiles\n"
            "from kafkalog.engine.log.types import FetchIsolation\n"
            "from kafkalog.engine.segment.offset_index import OffsetIndex\n" + textwrap.dedent(text)
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_many_segments_with_few_descriptors(tmp_path: Path, low: Callable[[str], str]) -> None:
    assert (
        low(
            f"""
        logs = []
        for number in range(40):
            Path({str(tmp_path)!r}, str(number)).mkdir()
            logs.append(Kit(Path({str(tmp_path)!r}, str(number))).filled())
        for log in logs:
            for offset in range(0, 40, 2):
                assert log.read(offset, 1, FetchIsolation.LOG_END).records.to_bytes()
            log.append_as_leader(batch(), 0)
        print(len(OS_FILES.pool), OS_FILES.pool.limit, len(os.listdir("/proc/self/fd")) < 64)
        for log in logs:
            log.close()
        """
        )
        == "48 48 True\n"
    )


def test_a_full_table_of_descriptors(tmp_path: Path, low: Callable[[str], str]) -> None:
    """An open closes idle files. If none is idle, the error says so, and no directory goes offline."""
    assert low(
        f"""
        kit = Kit(Path({str(tmp_path)!r}))
        log = kit.filled()
        def fill():
            taken = []
            try:
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                return taken
        def tried(do):
            try:
                do()
            except KafkalogError as error:
                return type(error).__name__, "ulimit -n" in str(error), kit.dir in str(error)
        for offset in range(0, 40, 2):
            log.read(offset, 1, FetchIsolation.LOG_END).records.to_bytes()
        held = fill()
        assert len(OS_FILES.pool) > 4
        OS_FILES.read_bytes(log.active_segment.log.path)
        assert OS_FILES.listing(kit.dir).files and OS_FILES.list_dir(kit.dir)
        OS_FILES.sync_dir(kit.dir)
        while OS_FILES.pool.trim(0):
            pass
        held += fill()
        print(tried(lambda: log.read(0, 1, FetchIsolation.LOG_END)))
        print(tried(lambda: log.append_as_leader(batch(), 0)))
        print(tried(lambda: OffsetIndex(os.path.join(kit.dir, name(0, ".index")), 0, 240, OS_FILES)))
        print(kit.channel.any_offline)
        os.close(held.pop()), os.close(held.pop()), os.close(held.pop()), os.close(held.pop())
        assert log.read(0, 1, FetchIsolation.LOG_END).records.to_bytes()
        print(log.append_as_leader(batch(), 0).first_offset)
        """
    ) == ("('TooManyOpenFilesException', True, True)\n" * 3 + "False\n40\n")


def test_no_memory_is_a_memory_error() -> None:
    """It is not the disk's error, which would take a log directory offline."""
    program = (
        "import resource\n"
        "from kafkalog._native.codec.offset_map import SkimpyOffsetMap\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), -1))\n"
        "try:\n    SkimpyOffsetMap(2**31 - 1)\n"
        "except MemoryError as error:\n    print(error)\n"
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc to see the used descriptors")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2147483640 bytes of memory are not available")
