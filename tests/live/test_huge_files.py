"""A file whose size is damaged (a hole of 300 GB, a log of 5 TB) is named, in little memory and before long."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog

STEM = "t-0/" + "0" * 20
HOLE_BYTES, LOG_BYTES = 300 << 30, 5 << 40
COUNT = 50
# An address space of 4 GiB still suffices for these: an index is at most 2 GiB, and mapped once.
LOOK = """
import json, resource, sys
import kafkalog
from kafkalog.errors import KafkalogError

root = sys.argv[1]
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

def verified():
    return [finding.path for finding in kafkalog.verify(root).findings]

def read(read_only):
    with kafkalog.open(root, read_only=read_only, take_over=True) as store:
        with store.reader(topics=["t"], start="earliest", isolation="read_committed") as reader:
            return len(reader.poll(max_records=1000))

found = {}
for name, look in {"verify": verified, "view": lambda: read(True), "store": lambda: read(False)}.items():
    try:
        found[name] = look()
    except KafkalogError as error:
        found[name] = f"{error}; {error.__cause__}"
print(json.dumps(found))
"""
SMALL = {
    "recovery-point-offset-checkpoint": True,  # whether verify reads it
    "log-start-offset-checkpoint": True,
    "replication-offset-checkpoint": True,
    "cleaner-offset-checkpoint": True,
    ".kafkalog_topics": True,
    "meta.properties": False,
    ".kafka_cleanshutdown": False,
    "t-0.kafkalog_move": False,
    "t-0/leader-epoch-checkpoint": True,
    "t-0/partition.metadata": True,
    f"t-0/{COUNT:020d}.snapshot": True,
}


def look(root: Path, name: str, size: int) -> dict[str, Any]:
    with open(root / name, "ab") as file:
        file.truncate(size)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(root)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    with kafkalog.open(root) as store:
        topic = store.create_topic("t", config={"segment.index.bytes": "4096"})
        for number in range(COUNT):
            topic.append(b"value %d" % number)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.mark.parametrize("name", SMALL)
def test_a_small_file(root: Path, name: str) -> None:
    found = look(root, name, HOLE_BYTES)
    path = str(root / name)
    assert (path in found["verify"]) == SMALL[name], found
    for door in ("view", "store"):
        assert found[door] == COUNT or path in found[door], found


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_an_index(root: Path, suffix: str) -> None:
    found = look(root, STEM + suffix, HOLE_BYTES)
    path = str(root / (STEM + suffix))
    assert path in found["verify"]
    for door in ("view", "store"):
        assert found[door] == COUNT or path in found[door], found


def test_a_log(root: Path) -> None:
    found = look(root, STEM + ".log", LOG_BYTES)
    path = str(root / (STEM + ".log"))
    assert path in found["verify"]
    assert found["view"] == COUNT
    assert path in found["store"]  # with Kafka's words: it is larger than a segment may be
