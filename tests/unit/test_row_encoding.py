"""Lists of usual records are encoded natively, with the bytes and the errors of the plain Python way.

Other records go the plain way.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import batch_maker
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog.engine.files import ManualClock
from kafkalog.errors import KafkalogError
from tests.client_transaction import client_transaction
from tests.file_doubles import UnsyncedFiles

NOW_MS = 1_700_000_000_000
FILES = UnsyncedFiles()
Record = kafkalog.Record


class Text(str):
    """No str of the usual kind."""


class Pair(tuple[Any, ...]):
    """No tuple of the usual kind."""


def as_read(value: Any, timestamp: Any = 7, headers: Any = (("h", b"1"),)) -> kafkalog.Record:
    return Record("elsewhere", 3, 5, 99, timestamp, 0, b"key", value, headers)


ROWS: dict[str, list[Any]] = {
    "bytes": [b"a", b"", b"b" * 300],
    "nulls": [None, b"x", None, (None, None)],
    "tuples": [(b"v",), (b"v", b"k"), (b"v", None, ()), (None, b"", (), 5), (b"v", b"k", None, None)],
    "times": [(b"v", None, (), time) for time in (-1, 0, NOW_MS, (1 << 63) - 1, 3, None)],
    "headers": [(b"v", b"k", [("h", b"1"), ("", None)]), b"x", (b"v", None, (("h", b""),) * 3), b"y"],
    "headers at the end": [b"x"] * 9 + [(b"v", None, [("trace", b"1")])],
    "headers that are not ASCII": [(b"v", None, [("größe", b"1")])] * 7,
    "records": [as_read(b"v"), as_read(None, -1), as_read(b"w", 0, [("h", None)]), as_read(b"x", 8, ())] * 2,
    "many": [(random.Random(n).randbytes(n % 400), b"k%d" % n, (), n) for n in range(2000)],
    "other buffers": [bytearray(b"v"), memoryview(b"w"), (bytearray(b"v"), memoryview(b"k")), b"x", b"y"],
    "a str of its own": [(b"v", None, [(Text("h"), b"1")])] * 6,
    "a pair that is a list": [(b"v", None, [["h", b"1"]])] * 6,
    "one": [b"v"],
    "four large": [b"x" * 400] * 4,
    "more than a batch": [b"x" * 90] * 40,
    "one that fills a batch": [b"y" * 900] * 3,
    "none": [],
}
REFUSED: dict[str, list[Any]] = {
    "text": [b"v", "text"],
    "text as key": [b"v"] * 5 + [(b"v", "k")],
    "a list": [[b"v", b"k"]],
    "an empty tuple": [b"a", ()],
    "five fields": [(b"v", b"k", (), 1, 2)],
    "a named pair": [Pair((b"v", b"k"))],
    "a time below": [(b"v", None, (), -2)],
    "a time above": [b"v"] * 6 + [(b"v", None, (), 1 << 63)],
    "a time of two": [(b"v", None, (), 1.5)],
    "true as time": [(b"v", None, (), "1")] * 6,
    "a header that is none": [(b"v", None, [("h",)])],
    "a header of a number": [(b"v", None, [(1, b"x")])] * 6,
    "a header's value": [(b"v", None, [("h", "x")])],
    "headers of bytes": [(b"v", None, b"headers")],
    "a lone surrogate": [(b"v", None, [("\ud800", b"1")])] * 6,
    "a record of text": [as_read("v")] * 6,
    "a record at a time": [as_read(b"v", -5)] * 6,
    "too large": [b"v", b"x" * 5000],
    "a number": [b"v", 5],
}
SETTINGS: dict[str, dict[str, str]] = {
    "plain": {},
    "small batches": {"max.message.bytes": "1000"},
    "lz4": {"compression.type": "lz4"},
    "zstd, small": {"compression.type": "zstd", "max.message.bytes": "1000"},
    "the log's codec": {"compression.type": "gzip", "max.message.bytes": "1200"},
    "compacted": {"cleanup.policy": "compact"},
}


def outcome(place: Path, rows: Any, config: dict[str, str], way: str, native: bool) -> tuple[Any, bytes]:
    """The answer, or the error's words, and the log's bytes."""
    before = batch_maker.NATIVE_ROWS
    batch_maker.NATIVE_ROWS = native
    codec = "lz4" if config.get("compression.type") == "gzip" else None  # the log's codec differs from the producer's
    try:
        with kafkalog.open_log(
            place, "t-0", config=config, compression=codec, clock=ManualClock(NOW_MS), files=FILES
        ) as log:
            log.append(b"before", key=b"k")
            answer: Any
            try:
                if way == "writer":
                    answer = log.writer("w").append_many(rows)
                elif way == "transaction":
                    with client_transaction(log, "job") as transaction:
                        answer = transaction.append_many(rows)
                else:
                    answer = log.append_many(rows)
            except KafkalogError as error:
                answer = type(error), str(error), error.appended
        return answer, b"".join(path.read_bytes() for path in sorted((place / "t-0").glob("*.log")))
    finally:
        batch_maker.NATIVE_ROWS = before


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "many" else kind for kind in (*ROWS, *REFUSED)]
)
def test_both_ways_write_the_same(tmp_path: Path, kind: str, settings: str) -> None:
    rows = ROWS.get(kind, REFUSED.get(kind))
    assert rows is not None
    config = SETTINGS[settings]
    for number, way in enumerate(("append_many", "writer", "transaction")):
        for shape in (list, tuple, iter):
            plain = outcome(tmp_path / f"plain{number}{shape.__name__}", shape(rows), config, way, False)
            native = outcome(tmp_path / f"native{number}{shape.__name__}", shape(rows), config, way, True)
            assert native == plain, (way, shape)


def test_what_is_usual(tmp_path: Path) -> None:
    """Else the other tests would compare the plain way with itself."""
    for kind in ("bytes", "nulls", "tuples", "times", "headers", "headers at the end", "records", "many", "one"):
        assert ColumnEncoder.from_rows(ROWS[kind], NOW_MS) is not None, kind
    for kind in ("other buffers", "a str of its own", "a pair that is a list", "headers that are not ASCII", "none"):
        assert ColumnEncoder.from_rows(ROWS[kind], NOW_MS) is None, kind
    for kind, rows in REFUSED.items():
        if kind != "too large":
            assert ColumnEncoder.from_rows(rows, NOW_MS) is None, kind
    assert ColumnEncoder.from_rows(iter([b"v"]), NOW_MS) is None  # type: ignore[arg-type]
    assert ColumnEncoder.from_rows(b"bytes", NOW_MS) is None


def test_what_was_read_is_appended(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "a", "t-0", clock=ManualClock(NOW_MS)) as log:
        log.append_many([(b"v%d" % n, b"k" if n % 2 else None, [("n", b"%d" % n)], n) for n in range(50)])
        with kafkalog.open_log(tmp_path / "b", "t-0", clock=ManualClock(NOW_MS)) as other:
            other.append_many(list(log))
            other.append_many([*log])
            found = list(other)
        assert [record[6:] for record in found] == [record[6:] for record in log] * 2


def test_a_list_that_changes_meanwhile(tmp_path: Path) -> None:
    rows: list[Any] = [(b"x" * 50, b"k", [("h", b"v")])] * 500
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            rows.clear()
            rows.extend([(bytes(50), b"k", [("h", b"v")])] * 500)

    with kafkalog.open_log(tmp_path, "t-0") as log:
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(200):
                log.append_many(rows)
        finally:
            over.set()
            thread.join()
        log.append_many(rows)  # whole again: the others may all have come when it was empty
        assert {len(record.value or b"") for record in log} == {50}
