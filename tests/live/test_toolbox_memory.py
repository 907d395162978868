"""A batch whose size field says 1 GiB: told as damage by everything that reads, in little memory.

Each tool runs in a separate process, whose memory beyond the page cache is measured at its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.segment.scan import LARGE_BATCH_BYTES, LogScan, crc_matches_in
from kafkalog.errors import CorruptRecordException
from tests.reference.legacy import builder_of

LOG = "00000000000000000000.log"
GIB = 1 << 30
MOST_BYTES = 200 << 20
PEAK = """
import contextlib, json, os, sys
from kafkalog.cli.app import invoke
with contextlib.redirect_stdout(open(os.devnull, "w")):
    code = invoke(sys.argv[1:])
# Not getrusage's ru_maxrss: that keeps the size of the process that forked this one.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([code, int(peak.split()[1]) * 1024]))
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def make(root: Path) -> None:
    """Ten good batches, one whose length is flipped to 1 GiB, a sparse gigabyte, and at its end one good batch more."""
    with kafkalog.open_log(root, "t-0") as log:
        for n in range(12):
            log.append(b"value %02d" % n)
    path = root / "t-0" / LOG
    size = path.stat().st_size // 12
    with path.open("r+b") as file:
        file.seek(11 * size)
        last = file.read(size)
        file.seek(11 * size)
        file.write(bytes(size))
        file.truncate(GIB + (64 << 20))
        file.seek(0, os.SEEK_END)
        file.write(last)
        file.seek(10 * size + 8)
        file.write((GIB - 12).to_bytes(4, "big"))
    (root / ".kafka_cleanshutdown").unlink()


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("huge")
    make(root)
    return str(root)


def peak(*argv: str) -> tuple[int, int]:
    """(exit code, most bytes resident) of a command line in a separate process."""
    done = subprocess.run([sys.executable, "-c", PEAK, *argv], capture_output=True, text=True, check=True)
    code, peak_bytes = json.loads(done.stdout)
    return code, peak_bytes


@pytest.mark.parametrize(
    "argv",
    [
        ("verify", "{root}"),
        ("verify", "--deep", "{root}"),
        ("describe", "--segments", "{root}"),
        ("cat", "{root}", "t-0"),
        ("cat", "--last", "3", "{root}", "t-0"),
        ("cat", "--grep", "x", "{root}", "t-0"),
        ("latest", "{root}", "--memory", "1MiB"),
        ("history", "k", "{root}"),
        ("export", "--skip-damage", "{root}", "--to", "{target}"),
        ("transactions", "{root}"),
        ("dump", "--deep-iteration", "{root}/t-0/" + LOG),
        ("reindex", "{root}"),
        ("recover", "{root}", "--dry-run"),
        ("salvage", "{root}", "{target}"),
        ("backup", "{root}", "--to", "{target}"),
        ("compare", "{root}", "{root}", "--bytes"),
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_a_flipped_size_takes_no_memory(huge: str, tmp_path: Path, argv: tuple[str, ...]) -> None:
    target = tmp_path / "target"
    code, peak_bytes = peak(*(part.format(root=huge, target=target) for part in argv))
    assert peak_bytes < MOST_BYTES
    assert code in (0, 1)
    if argv[0] == "salvage":
        with kafkalog.open_log(target, "t-0") as log:
            assert [record.offset for record in log] == [*range(10), 11]


def test_recovery_in_little_memory(huge: str, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    make(root)
    (root / "recovery-point-offset-checkpoint").unlink()
    code, peak_bytes = peak("recover", str(root), "--yes")
    assert code == 1
    assert peak_bytes < MOST_BYTES
    with kafkalog.open_log(root, "t-0", read_only=True) as log:
        assert [record.offset for record in log] == [*range(10)]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_checksums_in_slices(tmp_path: Path, magic: int) -> None:
    builder = builder_of(magic)
    builder.append(1, b"key", bytes(3 << 20))
    data = bytearray(builder.build())
    path = tmp_path / LOG
    for place in (None, len(data) - 1, 30):
        if place is not None:
            data[place] ^= 1
        path.write_bytes(b"before" + data)
        with OS_FILES.open(str(path), writable=False) as file:
            assert crc_matches_in(file, 6, len(data)) == native.crc_matches(data) == (place is None)
            assert not crc_matches_in(file, 6, len(data) + 1)
        if place is not None:
            data[place] ^= 1


def test_a_batch_that_is_that_large(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"max.message.bytes": "100000000"}) as log:
        log.append(b"small")
        log.append(bytes(LARGE_BATCH_BYTES + 5))
        log.append(b"small again")
        lengths = [len(record.value or b"") for record in log]
    assert lengths == [5, LARGE_BATCH_BYTES + 5, 11]
    path = tmp_path / "t-0" / LOG
    for check_crc in (True, False):
        with OS_FILES.open(str(path), writable=False) as file:
            scan = LogScan(file, 0, file.size(), check_crc=check_crc)
            tables = [(piece.table["base_offset"].tolist(), len(piece.data)) for piece in scan]
        assert [offset for offsets, _ in tables for offset in offsets] == [0, 1, 2]
        assert tables[-1][1] < LARGE_BATCH_BYTES  # a large batch's memory is released
    with path.open("r+b") as damaged:
        damaged.seek(LARGE_BATCH_BYTES)
        damaged.write(b"\1")
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log, pytest.raises(CorruptRecordException) as caught:
        list(log)
    assert "bad CRC" in str(caught.value)
