"""Any single byte of a log, changed at random: every way to read gives all records, or good ones and then an error.

Bytes that no CRC covers (base offset, leader epoch, magic) are compared with `verify --deep`: if it reports nothing,
the records cannot be told from good ones.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.cli.app import CLEAN, FINDINGS, invoke
from kafkalog.errors import BadBytesError, InvalidRecordException, KafkalogError
from kafkalog.toolbox.verify import verify

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
CONFIG = {"internal.segment.bytes": "3000", "index.interval.bytes": "400"}
START_MS = 1_700_000_000_000
FLIPS = 120


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments, every codec, batches of one and of five records, transactions."""
    root = tmp_path_factory.mktemp("whole")
    n = 0
    for codec in CODECS:
        with kafkalog.open_log(root, "t-0", config=CONFIG, compression=codec) as log:
            for many in (1, 5, 1, 5, 5):
                log.append_many([(b"value %04d " % (n + i) + b"y" * 60, None, (), START_MS + n + i)
                                 for i in range(many)])  # fmt: skip
                n += many
            with log.transaction("x") as txn:
                txn.append_many([b"txn %d" % n, b"txn"])
            n = log.end_offset
    return root


def of_batch(batch: Any) -> list[tuple[int, bytes | None]]:
    return list(zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True))


def pairs(records: Iterator[Any]) -> Iterator[tuple[int, bytes | None]]:
    return ((record.offset, record.value) for record in records)


def ways(log: kafkalog.Partition, at: int) -> dict[str, Iterator[tuple[int, bytes | None]]]:
    return {
        "list": pairs(iter(log)),
        "from": pairs(log.records(at)),
        "committed": pairs(log.records(isolation="read_committed")),
        "small chunks": pairs(log.reader(chunk_bytes=100).records()),
        "arrow": (pair for batch in log.arrow_batches() for pair in of_batch(batch)),
    }


def outcome(records: Iterator[tuple[int, bytes | None]]) -> tuple[list[tuple[int, bytes | None]], KafkalogError | None]:
    got = []
    try:
        for record in records:
            got.append(record)
    except (BadBytesError, InvalidRecordException) as error:
        return got, error
    return got, None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("how", ["closed cleanly", "in use", "writable"])
def test_one_changed_byte(
    whole: Path, tmp_path: Path, how: str, seed: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    random_ = random.Random(f"{how} {seed}")
    with kafkalog.open_log(whole, "t-0", read_only=True) as log:
        every = [(record.offset, record.value) for record in log]
        assert log.end_offset == every[-1][0] + 2  # a marker
    root = tmp_path / "copy"
    shutil.copytree(whole, root)
    if how == "in use":
        (root / ".kafka_cleanshutdown").unlink()
    paths = sorted((root / "t-0").glob("*.log"))
    assert len(paths) > 2
    plain = loud = 0
    for _ in range(FLIPS // 2):
        path = random_.choice(paths)
        good = path.read_bytes()
        data = bytearray(good)
        place = random_.randrange(len(data))
        data[place] ^= random_.randrange(1, 256)
        at = random_.choice(every)[0]
        log = None
        if how == "writable":  # opened before: a clean open trusts more
            log = kafkalog.open_log(root, "t-0", config=CONFIG)
        path.write_bytes(data)
        if log is None:
            log = kafkalog.open_log(root, "t-0", read_only=True)
        findings = [finding for finding in verify(root, deep=True).findings if finding.path == str(path)]
        for name, records in ways(log, at).items():
            wanted = [pair for pair in every if name != "from" or pair[0] >= at]
            got, error = outcome(records)
            where = (how, seed, path.name, place, name, str(error), findings)
            if error is not None:
                loud += 1
                assert error.path == str(path), where
                assert error.position is not None, where
                assert got == wanted[: len(got)] or not findings, where
            elif got != wanted:
                plain += 1
                assert not findings, where
        if how == "closed cleanly":
            code = invoke(["cat", "-f", "%o,", str(root), "t-0"])
            out, err = capfdbinary.readouterr()
            shown = [int(word) for word in out.decode().split(",") if word]
            assert code == (FINDINGS if err else CLEAN)
            assert err or shown == [offset for offset, _ in every] or not findings
        path.write_bytes(good)
        log.close()
        if how == "writable":
            shutil.rmtree(root)
            shutil.copytree(whole, root)
    assert loud > FLIPS
    assert plain < FLIPS // 10
