"""The pictures of the explanation pages.  `pictures.py` writes them together with the others.

Sizes and names of fields come from the tables of `kafkalog.engine.format`, and the bars of the benchmarks come from
the tables of the benchmarks page.  Pictures are 760 pixels wide, the width of a page's text.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from drawing import Picture

from kafkalog.engine.format import batch, index_entries, names, snapshots

ROOT = Path(__file__).parents[2]
WIDTH = 760
BYTE = 38  # pixels a byte: the names of two-byte fields fit
ROW_BYTES = 18
CELL = 58
LETTER = 6.7  # width of a letter of class "cell"

Fields = Sequence[tuple[str, int]]

# The names of a batch header's fields: the struct has none.  tests/unit/test_pictures.py compares them with the page.
HEADER_NAMES = (
    "base offset", "length", "leader epoch", "magic", "CRC-32C", "attributes", "last offset delta", "base timestamp",
    "max timestamp", "producer id", "producer epoch", "base sequence", "record count",
)  # fmt: skip


def named(layout: struct.Struct, fields: Sequence[str]) -> Fields:
    """The names and sizes of a layout's fields."""
    assert layout.format[0] == ">"
    sizes = [struct.calcsize(">" + kind) for kind in layout.format[1:]]
    return list(zip([each.replace("_", " ") for each in fields], sizes, strict=True))


LAYOUTS: dict[str, Fields] = {
    "kafkalog.engine.format.batch.HEADER": named(batch.HEADER, HEADER_NAMES),
    "kafkalog.engine.format.index_entries.OFFSET_ENTRY": named(
        index_entries.OFFSET_ENTRY, index_entries.OFFSET_ENTRIES.names or ()
    ),
    "kafkalog.engine.format.index_entries.TIME_ENTRY": named(
        index_entries.TIME_ENTRY, index_entries.TIME_ENTRIES.names or ()
    ),
    "kafkalog.engine.format.index_entries.TXN_ENTRY": named(
        index_entries.TXN_ENTRY, index_entries.TXN_ENTRIES.names or ()
    ),
    "kafkalog.engine.format.snapshots.HEADER": named(snapshots.HEADER, ("version", "CRC-32C", "count")),
    "kafkalog.engine.format.snapshots.ENTRY": named(snapshots.ENTRY, snapshots.ProducerSnapshotEntry._fields),
}


def wrapped(name: str, width: float) -> list[str]:
    """The name in lines that are no wider than `width`."""
    lines = [""]
    for word in name.split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * LETTER <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    assert all(len(line) * LETTER <= width for line in lines), name
    return lines


def cell(picture: Picture, x: float, y: float, w: float, name: str, note: str, kind: str) -> None:
    """One field: its name in one or two lines, and its size below."""
    picture.rect(x, y, w, CELL, kind)
    lines = wrapped(name, w - 4)
    assert len(lines) <= 2, name
    for number, line in enumerate(lines):
        picture.text(x + w / 2, y + (24 if len(lines) == 1 else 16) + 14 * number, line, "cell")
    picture.text(x + w / 2, y + CELL - 8, note, "small")


def rows(picture: Picture, y: float, fields: Fields, kind: str = "main") -> float:
    """Rows of fields, drawn to scale, each with the position of its first byte; the y below them."""
    x, at, start = 60.0, 0, 0
    picture.text(50, y + 34, "0", "small", "end")
    for name, size in fields:
        if at + size - start > ROW_BYTES:
            x, y, start = 60.0, y + CELL + 6, at
            picture.text(50, y + 34, str(at), "small", "end")
        cell(picture, x, y, size * BYTE, name, str(size), kind)
        x, at = x + size * BYTE, at + size
    return y + CELL


def heading(picture: Picture, y: float, words: str, note: str = "") -> None:
    picture.text(16, y, words, "title", "start")
    if note:
        picture.text(WIDTH - 16, y, note, "small", "end")


def batch_picture() -> Picture:
    """A batch: its header and its records."""
    picture = Picture(WIDTH, 404, "A batch: a header of 61 bytes, field by field, and its records after it")
    heading(picture, 24, "Batch header", "numbers in the boxes: bytes; at the left: position")
    y = rows(picture, 38, LAYOUTS["kafkalog.engine.format.batch.HEADER"])
    heading(picture, y + 32, "Records", "as many as the record count says; compressed as one block if there is a codec")
    picture.text(50, y + 80, str(batch.HEADER.size), "small", "end")
    for number, name in enumerate(("record", "record", "record", "...")):
        picture.box(60 + number * 171, y + 46, 171, 56, (name,), "disk")
    return picture


def record_picture() -> Picture:
    """A record in a batch of magic 2."""
    picture = Picture(WIDTH, 282, "A record: its fields in order, most of them numbers of variable length")
    heading(picture, 24, "Record", "varint: 1 to 5 bytes; timestamp delta: 1 to 10 bytes")
    fields = (
        ("length", "varint"), ("attributes", "1 byte"), ("timestamp delta", "varint"), ("offset delta", "varint"),
        ("key length", "varint"), ("key", "bytes"), ("value length", "varint"), ("value", "bytes"),
        ("number of headers", "varint"),
    )  # fmt: skip
    x, y = 20.0, 38.0
    for name, note in fields:
        kind = "disk" if note == "bytes" else "main"
        w = 80
        cell(picture, x, y, w, name, note, kind)
        x += w
    heading(picture, 136, "Header of a record", "as many as the number says")
    for number, (name, note) in enumerate(
        (("key length", "varint"), ("key", "UTF-8"), ("value length", "varint"), ("value", "bytes"))
    ):
        cell(picture, 20 + number * 80, 150, 80, name, note, "disk" if number % 2 else "main")
    picture.text(16, 240, "offset = base offset of the batch + offset delta", "small", "start")
    picture.text(16, 260, "timestamp = base timestamp of the batch + timestamp delta", "small", "start")
    picture.text(400, 240, "a length of -1 means null: no key, or no value", "small", "start")
    picture.text(400, 260, "varints are zigzag: 0, -1, 1, -2 ... are 0, 1, 2, 3 ...", "small", "start")
    return picture


def index_picture() -> Picture:
    """One entry of each of the three indexes."""
    picture = Picture(WIDTH, 418, "One entry of the offset index, of the time index and of the transaction index")
    y = 24.0
    for title, note, name in (
        ("Offset index", f"{names.INDEX_FILE_SUFFIX}: 8 bytes an entry", "OFFSET_ENTRY"),
        ("Time index", f"{names.TIME_INDEX_FILE_SUFFIX}: 12 bytes an entry", "TIME_ENTRY"),
        ("Transaction index", f"{names.TXN_INDEX_FILE_SUFFIX}: 34 bytes an entry", "TXN_ENTRY"),
    ):
        heading(picture, y, title, note)
        y = rows(picture, y + 14, LAYOUTS[f"kafkalog.engine.format.index_entries.{name}"]) + 38
    return picture


def snapshot_picture() -> Picture:
    """A producer snapshot."""
    picture = Picture(WIDTH, 412, "A producer snapshot: a header of 10 bytes, and 46 bytes for each producer")
    heading(picture, 24, "Header", "10 bytes, once")
    y = rows(picture, 38, LAYOUTS["kafkalog.engine.format.snapshots.HEADER"])
    heading(picture, y + 32, "Entry", "46 bytes for each producer")
    rows(picture, y + 46, LAYOUTS["kafkalog.engine.format.snapshots.ENTRY"], "disk")
    return picture


def directory_picture() -> Picture:
    """A log directory as a tree of files."""
    files = (
        (0, "kafka-logs/", "one log directory: one disk"),
        (1, names.LOCK_FILE, "held by the process that writes"),
        (1, names.META_PROPERTIES_FILE, "ids of cluster, node and directory"),
        (1, names.CLEAN_SHUTDOWN_FILE, "exists only after a clean close"),
        (1, names.RECOVERY_POINT_CHECKPOINT_FILE, "up to which offset each log is on the disk"),
        (1, names.LOG_START_OFFSET_CHECKPOINT_FILE, "where each log starts"),
        (1, names.HIGH_WATERMARK_CHECKPOINT_FILE, "high watermark of each log"),
        (1, names.TOPIC_CONFIGS_FILE, "topics and settings of a store; not Kafka's"),
        (1, "orders-0/", "partition 0 of the topic orders"),
        (2, "00000000000000000000.log", "batches: the truth"),
        (2, "00000000000000000000.index", "offset to position; can be rebuilt"),
        (2, "00000000000000000000.timeindex", "time to offset; can be rebuilt"),
        (2, "00000000000000004800.log", "the next segment: begins at offset 4800"),
        (2, "00000000000000004800.snapshot", "producers at that offset"),
        (2, names.LEADER_EPOCH_CHECKPOINT_FILE, "where each leader epoch begins"),
        (2, names.PARTITION_METADATA_FILE, "id of the topic"),
        (1, "orders-1/", "partition 1"),
    )
    picture = Picture(WIDTH, 30 + 24 * len(files), "A log directory: checkpoints, and a directory for each partition")
    last: dict[int, float] = {}  # where the line of each depth has come to
    for number, (depth, name, note) in enumerate(files):
        x, y = 24 + depth * 32, 28 + 24 * number
        if depth:
            picture.line([(x - 18, last[depth]), (x - 18, y - 4), (x - 4, y - 4)])
            last[depth] = y - 4
        last[depth + 1] = y + 6
        picture.text(x, y, name, "cell strong" if name.endswith("/") else "cell", "start")
        picture.text(400, y, note, "small", "start")
    return picture


def find_picture() -> Picture:
    """How a reader finds the record at an offset."""
    picture = Picture(WIDTH, 408, "How offset 5130 is found: segment, index entry, position, batch")
    heading(picture, 26, "1  The segment: the largest base offset at or below 5130")
    for number, base in enumerate((0, 4800, 9700)):
        kind = "main" if base == 4800 else "box"
        picture.box(16 + number * 246, 38, 236, 42, (), kind)
        picture.text(134 + number * 246, 63, f"{base:020d}{names.LOG_FILE_SUFFIX}", "cell")
    picture.arrow([(380, 80), (380, 106)])
    heading(picture, 124, "2  Its offset index: the last entry at or below 5130 - 4800 = 330", "binary search")
    for number, (offset, position) in enumerate(((95, 4176), (210, 8330), (322, 12501), (437, 16660))):
        kind = "main" if offset == 322 else "box"
        picture.box(16 + number * 184, 138, 174, 48, (f"offset {offset}", f"position {position}"), kind)
    picture.arrow([(471, 186), (471, 212)])
    heading(picture, 230, "3  The log from byte 12501: read batch headers until one holds offset 5130")
    batches = ((5112, 5122), (5123, 5127), (5128, 5136), (5137, 5149))
    for number, (first, last) in enumerate(batches):
        kind = "main" if first <= 5130 <= last else "disk"
        picture.box(16 + number * 184, 244, 174, 48, ("batch", f"offsets {first} to {last}"), kind)
    picture.arrow([(471, 292), (471, 318)])
    heading(picture, 336, "4  The batch: decompress it, and take the record with offset delta 5130 - 5128 = 2")
    for number in range(9):
        picture.box(16 + number * 81.5, 348, 72, 42, (str(5128 + number),), "main" if number == 2 else "disk")
    return picture


def tested_picture() -> Picture:
    """The two engines that are compared, and the tests of kafkalog alone."""
    picture = Picture(WIDTH, 400, "The tests: the same script runs on Apache Kafka and on kafkalog, crashes included")
    picture.box(270, 14, 220, 50, ("A script", "recorded, written or random"), "box")
    picture.arrow([(270, 40), (150, 40), (150, 92)])
    picture.arrow([(490, 40), (610, 40), (610, 92)])
    picture.box(30, 94, 240, 58, ("Apache Kafka 4.4.0", "its own classes, in a JVM"), "box")
    picture.box(490, 94, 240, 58, ("kafkalog", "the same calls"), "main")
    picture.arrow([(150, 152), (150, 190), (268, 190)])
    picture.arrow([(610, 152), (610, 190), (492, 190)])
    picture.box(270, 164, 220, 54, ("Compared", "results, errors, every file"), "disk")
    picture.line([(16, 244), (744, 244)])
    picture.text(16, 268, "Then kafkalog alone, where the answer follows from what it promised:", "", "start")
    for number, (title, one, two) in enumerate(
        (
            ("Crashes", "after each write and sync:", "process or power"),
            ("Broken disks", "each operation refused:", "EIO, ENOSPC"),
            ("Interrupts", "Ctrl-C at each line,", "kill -9, fork"),
            ("Hostile bytes", "fuzzing, sanitizers,", "damaged directories"),
        )
    ):
        picture.box(16 + number * 185, 286, 173, 92, (title, one, two), "warn")
    return picture


TABLE_ROW = re.compile(r"^\| ([^|]+) \|[^|]*\|[^|]*\| (\d+\.\d+)x \|", re.MULTILINE)


SPEED_ROWS = (
    "scan with CRC, 16 KiB batches", "open 1,000 segments after a crash", "decode, uncompressed",
    "a pass, uncompressed", "leader append, 16 KiB", "leader append, one record",
)  # fmt: skip


def speed_rows() -> list[tuple[str, float]]:
    """The rows of SPEED_ROWS in the tables of the benchmarks page, and their ratios."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    found: dict[str, float] = {}
    for name, ratio in TABLE_ROW.findall(text):
        found.setdefault(name, float(ratio))
    return [(name, found[name]) for name in SPEED_ROWS]


def speed_picture() -> Picture:
    """Throughput relative to Kafka's, as bars on a logarithmic scale."""
    found = speed_rows()
    picture = Picture(WIDTH, 54 + 22 * len(found), "Throughput of kafkalog divided by that of Apache Kafka, as bars")
    left, right = 280, 680
    low, high = math.log(0.5), math.log(40)

    def place(ratio: float) -> float:
        return left + (math.log(ratio) - low) / (high - low) * (right - left)

    for mark in (0.5, 1, 2, 5, 10, 20, 40):
        x = place(mark)
        picture.text(x, 20, f"{mark:g}x", "small")
        picture.line([(x, 28), (x, 40 + 22 * len(found))])
    one = place(1)
    for number, (name, ratio) in enumerate(found):
        y = 36 + 22 * number
        x = place(ratio)
        picture.text(left - 12, y + 12, name, "small", "end")
        picture.rect(min(one, x), y, abs(x - one), 15, "main" if ratio >= 1 else "warn")
        picture.text(WIDTH - 16, y + 12, f"{ratio:.2f}x", "small", "end")
    return picture


def parts_picture() -> Picture:
    """A store, its topics and partitions; a partition's segments, batches and records."""
    picture = Picture(WIDTH, 330, "A store has topics, a topic partitions, a partition segments, a segment batches")
    steps = (
        ("store", ("shop",), "box"),
        ("topics", ("orders", "payments", "prices"), "box"),
        ("partitions", ("orders-0", "orders-1", "orders-2", "orders-3"), "box"),
        ("segments", ("offset 0 ...", "offset 4800 ...", "offset 9700 ..."), "disk"),
        ("batches", ("9700 to 9703", "9704", "9705 to 9711", "9712 ..."), "disk"),
        ("records", ("9705", "9706", "9707", "9708", "9709", "9710", "9711"), "disk"),
    )
    chosen = (0, 0, 0, 2, 2, 2)
    above: float | None = None
    for row, (what, parts, kind) in enumerate(steps):
        y = 14 + row * 53
        picture.text(16, y + 22, what, "title", "start")
        width = 640 / max(len(parts), 3)
        for number, name in enumerate(parts):
            x = 110 + number * width
            picture.box(x, y, width - 8, 34, (name,), "main" if number == chosen[row] else kind)
            if number == chosen[row]:
                if above is not None:
                    middle = x + (width - 8) / 2
                    half = y - 9.5
                    picture.line([(above, y - 19), (above, half), (middle, half), (middle, y)])
                above = x + (width - 8) / 2
    return picture


def positions_picture() -> Picture:
    """The positions of a log."""
    picture = Picture(WIDTH, 196, "The positions of a log: log start offset, cursor, last stable offset, end offset")
    left, step = 20, 36
    for offset in range(20):
        kind = "box" if offset < 4 else "warn" if offset >= 15 else "disk"
        picture.rect(left + offset * step, 74, step, 40, kind)
        picture.text(left + offset * step + step / 2, 99, str(offset), "cell")
    for offset, name, above in (
        (4, "log start offset", True),
        (9, "cursor billing", False),
        (15, "last stable offset", False),
        (20, "end offset", True),
    ):
        x = left + offset * step
        if above:
            picture.text(x if offset < 20 else x + 4, 34, name, "", "middle" if offset < 20 else "end")
            picture.arrow([(x, 42), (x, 72)])
        else:
            picture.text(x, 164, name)
            picture.arrow([(x, 148), (x, 116)])
    picture.text(left, 62, "deleted", "small", "start")
    picture.text(left + 15 * step + 6, 62, "open transaction", "small", "start")
    picture.text(left, 188, "the number in a box is a record's offset", "small", "start")
    return picture


def transaction_picture() -> Picture:
    """A transaction over two partitions and a cursor, as two kinds of readers see it."""
    picture = Picture(WIDTH, 250, "A transaction writes to several partitions and a cursor; its end decides for all")
    for number, (name, boxes) in enumerate(
        (
            ("payments-0", ("12", "txn A: 13", "txn A: 14", "15", "commit A")),
            ("payments-1", ("7", "txn A: 8", "commit A", "txn B: 10", "abort B")),
            ("cursor billing", ("offset 40", "", "offset 42", "", "")),
        )
    ):
        y = 16 + number * 54
        picture.text(16, y + 24, name, "title", "start")
        for place, words in enumerate(boxes):
            if words:
                kind = "warn" if " B" in words else "main" if " A" in words or words == "offset 42" else "disk"
                picture.box(140 + place * 121, y, 113, 38, (words,), kind)
    picture.text(16, 200, "read_committed", "cell strong", "start")
    picture.text(160, 200, "12, 13, 14, 15 and 7, 8: records of A appear together, those of B never", "small", "start")
    picture.text(16, 226, "read_uncommitted", "cell strong", "start")
    picture.text(160, 226, "all records, in the order of their offsets, as soon as they are appended", "small", "start")
    return picture


def compaction_picture() -> Picture:
    """A compacted topic before and after a pass."""
    picture = Picture(WIDTH, 208, "Compaction keeps the last record of each key, at its offset")
    before = (("tea", "4.50"), ("milk", "1.20"), ("tea", "4.80"), ("jam", "3.10"), ("milk", "null"), ("tea", "5.00"))
    for row, (title, offsets) in enumerate((("before", range(6)), ("after", (3, 4, 5)))):
        y = 34 + row * 84
        picture.text(16, y + 28, title, "title", "start")
        for offset in range(6):
            x = 90 + offset * 110
            key, value = before[offset]
            if offset in offsets:
                kind = "warn" if value == "null" else "main" if offset >= 3 else "box"
                picture.box(x, y, 102, 48, (f"{key} {value}", f"offset {offset}"), kind)
    picture.text(90, 20, "topic prices: key and value", "small", "start")
    picture.text(90, 194, "the tombstone (null) of milk is removed later, after delete.retention.ms", "small", "start")
    return picture


def retention_picture() -> Picture:
    """Which segments retention deletes, and which ones move to the remote tier."""
    picture = Picture(WIDTH, 210, "Retention deletes the oldest segments; a tier keeps them in object storage")
    for number, (base, age) in enumerate(
        ((0, "40 days"), (4800, "31 days"), (9700, "20 days"), (14600, "8 days"), (19500, "now"))
    ):
        x = 16 + number * 147
        kind = "warn" if number < 2 else "disk" if number < 4 else "main"
        title = f"from {base}"
        picture.box(x, 44, 139, 48, (title, f"newest: {age}"), kind)
    picture.text(16, 28, "deleted: retention.ms = 30 days", "small", "start")
    picture.text(310, 28, "closed segments", "small", "start")
    picture.text(604, 28, "active segment", "small", "start")
    picture.box(310, 138, 286, 56, ("remote tier", "copies of closed segments: s3://bucket"), "box")
    picture.arrow([(379, 92), (379, 136)])
    picture.arrow([(526, 92), (526, 136)])
    picture.text(16, 160, "with tiered storage", "small", "start")
    picture.text(16, 178, "closed segments are copied first", "small", "start")
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "batch": batch_picture,
    "record": record_picture,
    "index-entries": index_picture,
    "snapshot": snapshot_picture,
    "log-directory": directory_picture,
    "find-offset": find_picture,
    "how-tested": tested_picture,
    "speed": speed_picture,
    "parts": parts_picture,
    "positions": positions_picture,
    "transaction": transaction_picture,
    "compaction": compaction_picture,
    "retention": retention_picture,
}
