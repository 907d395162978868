"""Log directories for the tests of jobs."""

from __future__ import annotations

import os
from pathlib import Path

import kafkalog
from kafkalog.format import names

START_MS = 1_700_000_000_000
SEGMENTS = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}


def fill(
    root: Path | str, partition: str, records: int, *, keys: int = 7, compression: str = "none", **config: str
) -> None:
    settings = {**SEGMENTS, **{name.replace("_", "."): value for name, value in config.items()}}
    with kafkalog.open_log(root, partition, config=settings, compression=compression) as log:
        for first in range(log.end_offset, log.end_offset + records, 10):
            log.append_many(
                [
                    (
                        b"value-%d-" % n + b"x" * 40,
                        b"key-%d" % (n * 7919 % keys),
                        [("n", b"%d" % n)],
                        START_MS + n * 60_000,
                    )
                    for n in range(first, first + 10)
                ]
            )


def files_of(folder: Path | str) -> dict[str, bytes]:
    """Every file of a folder."""
    return {name: (Path(folder) / name).read_bytes() for name in sorted(os.listdir(folder))}


def damage_tail(folder: Path) -> None:
    path = sorted(folder.glob("*.log"))[-1]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def is_clean(root: Path) -> bool:
    return (root / names.CLEAN_SHUTDOWN_FILE).exists()
