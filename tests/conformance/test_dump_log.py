"""`kafkalog dump` against Apache Kafka's own kafka-dump-log: the same lines for the same files, also damaged ones."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.app import invoke
from tests.conformance import kafka_jars
from tests.conftest import leave_out

pytestmark = pytest.mark.jvm

START_MS = 1_700_000_000_000
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def tool() -> kafka_jars.Driver:
    try:
        return kafka_jars.tools()
    except kafka_jars.KafkaMissingError as error:
        leave_out(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with all codecs, headers, nulls, transactions and several segments."""
    root = tmp_path_factory.mktemp("logs")
    config = {"internal.segment.bytes": "3000", "index.interval.bytes": "200"}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with kafkalog.open_log(root, "t-0", config=config, compression=codec) as log:
            for n in range(8):
                log.append_many(
                    [
                        (b"value %d" % n, b"key", [("h", b"1"), ("i", None)], START_MS + log.end_offset),
                        (None, b"tombstone", (), START_MS + log.end_offset),
                        (b"", None, (), START_MS + log.end_offset),
                    ]
                )
            txn = log.transaction(codec)
            txn.begin()
            txn.append(b"aborted", timestamp=START_MS + 1000)
            txn.abort()
            txn.begin()
            txn.append(b"committed", timestamp=START_MS + 1000)
            txn.commit()
    return root / "t-0"


def ours(*args: str) -> tuple[list[str], list[str]]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        invoke(["dump", *args])
    return lines_of(out.getvalue()), lines_of(err.getvalue())


def lines_of(text: str) -> list[str]:
    """Lines as a terminal shows them: a record may hold the other ends that `splitlines` knows."""
    return text.removesuffix("\n").split("\n") if text else []


def theirs(tool: kafka_jars.Driver, *args: str) -> tuple[list[str], list[str]]:
    import subprocess

    done = subprocess.run(
        tool.command(*args, main="org.apache.kafka.tools.DumpLogSegments"),
        capture_output=True,
        text=True,
        timeout=120,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    noise = ("SLF4J", "WARN", "ERROR Status")
    return lines_of(done.stdout), [line for line in lines_of(done.stderr) if not line.startswith(noise)]


def files_of(folder: Path) -> str:
    return ",".join(sorted(str(path) for path in folder.iterdir() if path.suffix in SUFFIXES))


@pytest.mark.parametrize(
    "flags",
    [
        ["--print-data-log"],
        ["--deep-iteration"],
        ["--print-data-log", "--skip-record-metadata"],
        ["--verify-index-only"],
        ["--index-sanity-check"],
        ["--max-bytes", "500"],
    ],
    ids=" ".join,
)
def test_the_same_lines(tool: kafka_jars.Driver, folder: Path, flags: list[str]) -> None:
    args = [*flags, "--files", files_of(folder)]
    (our_out, our_err), (their_out, their_err) = ours(*args), theirs(tool, *args)
    assert our_out == their_out
    assert sorted(our_err) == sorted(their_err)  # Kafka's order of files is that of a HashMap


def test_the_same_lines_for_damage(tool: kafka_jars.Driver, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "t-0"
    shutil.copytree(folder, copy)
    index = min(copy.glob("*.index"))
    entries = bytearray(index.read_bytes())
    entries[3] ^= 1
    index.write_bytes(entries)
    assert ours("--files", str(index)) == theirs(tool, "--files", str(index))
    # Kafka's tool ends with a stack trace at an index entry beyond a truncated log, so the log is damaged afterwards.
    path = min(copy.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data[:-7])
    assert ours("--files", str(path)) == theirs(tool, "--files", str(path))
