"""Hostile directories: bombs, huge counts, links to the outside, directories in place of files, cyclic links.

Each case changes a copy of the good directory on the disk; `probes.probe_folder` must have no complaint, and must use
little memory and little time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from kafkalog._native.codec.crc32c import crc32, crc32c
from kafkalog.engine.format import codecs

Case = Callable[[Path], None]
CASES: dict[str, Case] = {}
SMALLEST_RECORD = bytes((12, 0, 0, 0, 1, 1, 0))  # seven bytes: no key, no value, no headers
BOMB_BYTES = 136 << 20  # a little more than readers take
LAST = {"codecs-0": 61, "txns-0": 45, "old-0": 42}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def log_of(root: Path, name: str = "codecs-0", base: int | None = None) -> Path:
    return root / name / f"{LAST[name] if base is None else base:020d}.log"


def v2(base: int, payload: bytes, count: int, attributes: int = 0, *, delta: int | None = None) -> bytes:
    """A batch with a right CRC around anything."""
    producer = (7, 0, 0 if not attributes & 0x20 else -1) if attributes & 0x30 else (-1, -1, -1)
    fields = (attributes, count - 1 if delta is None else delta, 1_700_000_000_000, 1_700_000_000_000, *producer, count)
    covered = struct.pack(">hiqqqhii", *fields) + payload
    return struct.pack(">qiibI", base, 9 + len(covered), 0, 2, crc32c(covered)) + covered


def prepend(path: Path, data: bytes) -> None:
    path.write_bytes(data + path.read_bytes())


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def bomb(codec: int, pattern: bytes, length: int) -> bytes:
    """`length` bytes of a pattern, compressed; snappy and lz4 need no library's help to be small."""
    return codecs.compress(codec, pattern * (length // len(pattern)))


@case
def zstd_bomb_of_records(root: Path) -> None:
    count = BOMB_BYTES // 7
    append(log_of(root), v2(90, bomb(codecs.ZSTD, SMALLEST_RECORD, BOMB_BYTES), count, codecs.ZSTD, delta=count - 1))


@case
def gzip_bomb_that_says_one_record(root: Path) -> None:
    append(log_of(root), v2(90, bomb(codecs.GZIP, bytes(4096), BOMB_BYTES), 1, codecs.GZIP))


@case
def lz4_bomb_in_a_marker(root: Path) -> None:
    append(log_of(root, "txns-0"), v2(49, bomb(codecs.LZ4, bytes(4096), BOMB_BYTES), 1, codecs.LZ4 | 0x30))


@case
def zstd_bomb_below_the_limit(root: Path) -> None:
    count = (10 << 20) // 7
    append(log_of(root), v2(90, bomb(codecs.ZSTD, SMALLEST_RECORD, count * 7), count, codecs.ZSTD, delta=count - 1))


@case
def zstd_declares_an_exabyte(root: Path) -> None:
    frame = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 2**60) + b"\x01\x00\x00"
    append(log_of(root), v2(90, frame, 1, codecs.ZSTD))


@case
def snappy_declares_four_gigabytes(root: Path) -> None:
    block = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    stream = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    append(log_of(root), v2(90, stream, 1, codecs.SNAPPY))
    append(log_of(root), v2(91, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1), 1, codecs.SNAPPY))


@case
def gzip_in_gzip_in_old_messages(root: Path) -> None:
    inner = b""
    for depth in range(30):
        packed = codecs.compress(codecs.GZIP, inner or b"x")
        covered = struct.pack(">bbqii", 1, 1, depth, -1, len(packed)) + packed
        inner = struct.pack(">qiI", 54, 4 + len(covered), crc32(covered)) + covered
    append(log_of(root, "old-0"), inner)


@case
def counts_of_two_billion(root: Path) -> None:
    append(log_of(root), v2(90, SMALLEST_RECORD, 2**31 - 1, delta=0))
    many_headers = bytes((22, 0, 0, 0, 1, 1)) + b"\xfe\xff\xff\xff\x0f" + b"\x00"
    append(log_of(root), v2(91, many_headers, 1))
    long_key = bytes((22, 0, 0, 0)) + b"\xfe\xff\xff\xff\x0f" + b"\x01\x00"
    append(log_of(root), v2(92, long_key, 1))


@case
def a_batch_of_a_gigabyte_in_a_middle_segment(root: Path) -> None:
    path = log_of(root, base=31)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack(">i", 1 << 30)
    path.write_bytes(data)


@case
def a_sparse_segment(root: Path) -> None:
    os.truncate(log_of(root), 64 << 20)


@case
def a_sparse_segment_in_the_middle(root: Path) -> None:
    os.truncate(log_of(root, base=31), 32 << 20)


@case
def sparse_indexes(root: Path) -> None:
    for suffix in (".index", ".timeindex"):
        os.truncate(log_of(root).with_suffix(suffix), 4 << 20)


@case
def offsets_at_the_end_of_the_world(root: Path) -> None:
    data = log_of(root).read_bytes()
    for base in (2**63 - 1, 2**63 - 2, 2**63 - 2**31):
        (root / "codecs-0" / f"{base:020d}.log").write_bytes(struct.pack(">q", base) + data[8:123])
    append(log_of(root, "txns-0"), v2(2**63 - 1, SMALLEST_RECORD, 1))


@case
def folders_where_files_should_be(root: Path) -> None:
    for name in (
        "codecs-0/00000000000000000031.index", "codecs-0/leader-epoch-checkpoint", "codecs-0/partition.metadata",
        "txns-0/00000000000000000045.snapshot", "recovery-point-offset-checkpoint", "meta.properties",
    ):  # fmt: skip
        (root / name).unlink(missing_ok=True)
        (root / name).mkdir()
    (root / "old-0" / "00000000000000000099.log").mkdir()
    (root / "old-0" / "00000000000000000099.log" / "inside").write_bytes(b"x")


@case
def a_folder_for_the_last_segment(root: Path) -> None:
    log_of(root).unlink()
    log_of(root).mkdir()


@case
def files_where_folders_should_be(root: Path) -> None:
    (root / "files-0").write_bytes(b"")
    (root / "log-start-offset-checkpoint").unlink(missing_ok=True)
    (root / "log-start-offset-checkpoint").mkdir()


@case
def links_out_and_in_circles(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"keep me")
    (root / "linked-0").symlink_to(outside)
    (root / "circle-0").symlink_to(root / "circle-0")
    (root / "up-0").symlink_to("..")
    (root / "codecs-0" / "self-0").symlink_to(".")
    (root / "codecs-0" / "00000000000000000200.log").symlink_to("/nowhere/at/all")
    (root / "codecs-0" / "00000000000000000300.log").symlink_to("00000000000000000300.log")
    (root / "txns-0" / "00000000000000000045.txnindex").symlink_to(outside / "precious")


@case
def devices_and_pipes(root: Path) -> None:
    os.mkfifo(root / "codecs-0" / "00000000000000000200.log")
    os.mkfifo(root / "txns-0" / "00000000000000000060.snapshot")
    os.mkfifo(root / "old-0" / "00000000000000000042.txnindex")
    (root / "cleaner-offset-checkpoint").symlink_to("/dev/zero")


@case
def names_that_are_no_names(root: Path) -> None:
    source = log_of(root).read_bytes()
    for name in (
        "²" * 20,
        "٣" * 20,
        "99999999999999999999",
        "-1",
        "5",
        "0x10",
        "",
        " ",
        "a" * 200,
        "00000000000000000007\n",
    ):
        (root / "codecs-0" / f"{name}.log").write_bytes(source)
    for raw in (b"\xff\xfe.log", b"\xff.snapshot", b"\xc3\x28.index"):
        (root / "txns-0" / os.fsdecode(raw)).write_bytes(b"x")
    for name in ("-0", "a-", "a--1", "a-99999999999999999999", "b" * 250 + "-0", "x.y-delete", "a b-0", "..-0"):
        (root / name).mkdir()
    (root / os.fsdecode(b"\xff\xfe-0")).mkdir()


@case
def texts_that_break_parsers(root: Path) -> None:
    (root / ".kafka_cleanshutdown").write_bytes(b"[" * 200_000)
    (root / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\ncodecs 0 " + b"9" * 100_000 + b"\n")
    (root / "log-start-offset-checkpoint").write_bytes(b"0\n2147483647\n" + b"codecs 0 1\n" * 10)
    (root / "codecs-0" / "leader-epoch-checkpoint").write_bytes(b"0\n1\n" + b"7" * 50_000 + b" 0\n")
    (root / "codecs-0" / "partition.metadata").write_bytes(b"version: 0\ntopic_id: " + b"A" * 100_000)
    (root / "meta.properties").write_bytes(b"\\" * 100_001)


@case
def many_empty_segments(root: Path) -> None:
    data = log_of(root).read_bytes()
    for base in range(100, 160):
        (root / "codecs-0" / f"{base:020d}.log").write_bytes(b"")
    (root / "codecs-0" / f"{160:020d}.log").write_bytes(data)


@case
def nothing_at_all(root: Path) -> None:
    for name in LAST:
        for path in (root / name).iterdir():
            path.unlink()


@case
def unreadable(root: Path) -> None:
    """Matters when the probes do not run as root."""
    log_of(root, base=31).chmod(0)
    (root / "txns-0").chmod(0)
