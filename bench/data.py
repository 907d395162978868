"""The files that both sides read: segments of one kind of batch each, single batches to append, an offset index.

Records have about 100 bytes: a 12-byte key and an 80-byte value of half-random text, as services write them.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

from bench import ours
from kafkalog._native.codec import batches
from kafkalog.engine.format import codecs
from kafkalog.engine.format.builder import build_batch

HEADER_BYTES = 61
NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = {"k16": 256 << 20, "one": 64 << 20, "lz4": 48 << 20, "zstd": 48 << 20}
CODEC = {"k16": codecs.NONE, "one": codecs.NONE, "lz4": codecs.LZ4, "zstd": codecs.ZSTD}
MANY_SEGMENTS = 1_000
RECORDS_A_BATCH = {"k16": 156, "one": 1, "lz4": 156, "zstd": 156}
WORDS = [b"order", b"created", b"user", b"berlin", b"paid", b"tokyo", b"EUR", b"status", b"shipped", b"0123456789"]


def value(rng: random.Random) -> bytes:
    """Returns 80 bytes that compress about as well as JSON does."""
    text = b" ".join(rng.choice(WORDS) for _ in range(8)) + b" %016x" % rng.getrandbits(64)
    return text[:80].ljust(80, b".")


def records(rng: random.Random, count: int) -> list[tuple[int, bytes, bytes, tuple[()]]]:
    return [(NOW_MS + i, b"key-%08d" % rng.randrange(100_000_000), value(rng), ()) for i in range(count)]


def batch(rng: random.Random, count: int, codec: int = codecs.NONE, **producer: Any) -> bytes:
    return build_batch(records(rng, count), codec=codec, **producer)


def write_segment(directory: Path, kind: str, size_bytes: int | None = None) -> None:
    """Writes one segment of equal-shaped batches with increasing offsets: 64 different batches, repeated."""
    size_bytes = size_bytes or SEGMENT_BYTES[kind]
    rng = random.Random(kind)
    count = RECORDS_A_BATCH[kind]
    models = [bytearray(batch(rng, count, CODEC[kind])) for _ in range(64)]
    partition = directory / f"{kind}-0"
    partition.mkdir(parents=True)
    offset = written = number = 0
    with (partition / f"{0:020d}.log").open("wb") as file:
        while written < size_bytes:
            model = models[number % len(models)]
            model[:HEADER_BYTES] = batches.restamped_header(model, last_offset=offset + count - 1, leader_epoch=0)
            file.write(model)
            offset += count
            written += len(model)
            number += 1


def write_many_segments(directory: Path, payload: bytes) -> None:
    """Writes a partition of 1,000 segments of four batches each, closed cleanly: logs, indexes, snapshots."""
    extra = {"internal.segment.bytes": str(4 * len(payload))}
    log = ours.unified_log(directory / "many-0", True, **extra)
    while log.number_of_segments < MANY_SEGMENTS or log.active_segment.size < 4 * len(payload):
        log.append_as_leader(payload, 0)
    log.prepare_active_segment_for_close()
    log.close()


def make(directory: Path) -> None:
    """Writes everything that bench/ reads, below `directory`."""
    for kind in SEGMENT_BYTES:
        write_segment(directory, kind)
    rng = random.Random(5)
    idempotent: dict[str, Any] = {"producer_id": 1000, "producer_epoch": 0, "base_sequence": 0}
    for name, data in {
        "one": batch(rng, 1),
        "k16": batch(rng, 156),
        "m1": batch(rng, 10_000),
        "lz4": batch(rng, 156, codecs.LZ4),
        "lz4m1": batch(rng, 10_000, codecs.LZ4),
        "idempotent": batch(rng, 156, **idempotent),
        "txn": batch(rng, 156, is_transactional=True, **idempotent),
    }.items():
        (directory / f"batch-{name}.bin").write_bytes(data)
    write_many_segments(directory, (directory / "batch-k16.bin").read_bytes())
    entries = 1_000_000
    steps = struct.Struct(">ii")
    (directory / "lookup.index").write_bytes(
        b"".join(steps.pack(i * 40, i * 4096 % (1 << 30)) for i in range(1, entries))
    )
