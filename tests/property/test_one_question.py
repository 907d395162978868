"""Each way to read answers one question the same: with the answer that plain Python gives over all records.

Stores and questions are random: windows, keys, headers, patterns, conditions, isolation, the last records.  Some stores
are damaged.  A function that skips damage then returns the undamaged records; another one raises, or misses nothing.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.engine.log import view
from kafkalog.errors import BadBytesError
from kafkalog.records import Record
from kafkalog.store import Store
from kafkalog.topic import Topic
from tests.sampling import LONG, draw
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

START_MS = 1_700_000_000_000
EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
KEYS = [None, b"", b"a", b"ab", b"b", b"\xff"]
VALUES = [None, b"", b"foo\nbar", b"\xff\xfe", "grün".encode(), *(b"x%d" % n for n in range(9))]
QUESTIONS = 12 if LONG else 5  # for each store

Row = tuple[Any, ...]
Holds = Callable[[Record], bool]
COLUMNS = ["partition", "offset", "timestamp", "key", "value", "headers"]


# --- stores -----------------------------------------------------------------------------------------------


def fill(root: Path, rng: random.Random) -> int:
    """A topic `t`; how many partitions it has."""
    count, is_compact = rng.choice([1, 1, 2, 3]), rng.random() < 0.3
    config = {"internal.segment.bytes": str(rng.choice([600, 2000, 100_000])), "index.interval.bytes": "200"}
    codec = rng.choice(["none", "none", "gzip", "snappy", "lz4", "zstd"])
    with kafkalog.open(root, compression=codec, maintenance=False, config=config) as store:
        topic = store.create_topic("t", count, config={"cleanup.policy": "compact"} if is_compact else {})

        def record() -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]:
            key = rng.choice(KEYS)
            names = [rng.choice(["h", "g", "é"]) for _ in range(rng.choice([0, 0, 1, 2]))]
            headers = [(name, rng.choice([None, b"", b"1", b"2"])) for name in names]
            return (
                rng.choice(VALUES),
                b"n" if key is None and is_compact else key,
                headers,
                START_MS + rng.randrange(60),
            )

        for _ in range(rng.randrange(2, 16)):
            partition, records = rng.randrange(count), [record() for _ in range(rng.choice([1, 1, 2, 5]))]
            if rng.random() < 0.2:
                with suppress(ZeroDivisionError), store.transaction("x") as txn:
                    for value, key, headers, timestamp in records:
                        txn.append("t", value, key=key, headers=headers, timestamp=timestamp, partition=partition)
                    if rng.random() < 0.4:
                        raise ZeroDivisionError
            else:
                topic.append_many(records, partition=partition)
            if is_compact and rng.random() < 0.3:
                topic.partition(partition).compact(roll=True)
    return count


def damage(root: Path, rng: random.Random) -> None:
    """Damages one batch that another follows in its file: a byte of its records, or its base offset.

    No CRC covers the base offset, but the next batch contradicts it."""
    paths = [path for path in sorted(root.glob("t-*/*.log")) if len(native.headers(path.read_bytes())[0]) > 1]
    if not paths:
        return
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    headers = native.headers(bytes(data))[0]
    number = rng.randrange(len(headers) - 1)
    at = headers[number].position
    if rng.random() < 0.5:
        data[at + headers[number].size - 1] ^= 1 << rng.randrange(8)
    else:
        lie = headers[number + 1].base_offset + rng.choice([0, 1, 125])
        data[at : at + 8] = lie.to_bytes(8, "big")
    path.write_bytes(data)


# --- questions --------------------------------------------------------------------------------------------


@dataclass
class Question:
    """By keywords, and as a command's words (None: it cannot ask so).  `counts` choose the records that count as last
    values, `chooses` among these."""

    asked: dict[str, Any] = field(default_factory=dict)
    words: list[str] | None = field(default_factory=list)
    counts: list[Holds] = field(default_factory=list)
    chooses: list[Holds] = field(default_factory=list)
    last: int | None = None
    isolation: str = "read_uncommitted"

    def add(self, asked: dict[str, Any], words: Collection[str] | None, holds: Holds, *, chooses: bool = False) -> None:
        self.asked |= asked
        self.words = None if words is None or self.words is None else [*self.words, *words]
        (self.chooses if chooses else self.counts).append(holds)

    def answer(self, records: Collection[Record]) -> list[Row]:
        found = [it for it in records if all(holds(it) for holds in (*self.counts, *self.chooses))]
        if self.last is not None:
            behind = [[other.partition for other in found[n + 1 :]].count(it.partition) for n, it in enumerate(found)]
            found = [it for it, more in zip(found, behind, strict=True) if more < self.last]
        return [row(it) for it in found]

    def latest(self, records: Collection[Record]) -> list[Row]:
        state = {(it.partition, it.key): it for it in records if it.key is not None and all(h(it) for h in self.counts)}
        found = [it for it in state.values() if it.value is not None and all(holds(it) for holds in self.chooses)]
        return sorted(map(row, found), key=place)


def row(record: Record) -> Row:
    return (record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


def place(found: Row) -> tuple[int, int]:
    return found[0], found[1]


def question(rng: random.Random, parts: int, highest_start: int) -> Question:
    made = Question()
    if rng.random() < 0.3:
        made.isolation = "read_committed"
    if rng.random() < 0.25:
        made.last = rng.choice([0, 1, 2, 5, 30])
    for ask, share in ((window, 0.6), (keys, 0.3), (headers, 0.15), (patterns, 0.2)):
        if rng.random() < share:
            ask(made, rng, highest_start)
    if rng.random() < 0.4:
        where(made, rng, parts)
    return made


def window(made: Question, rng: random.Random, highest_start: int) -> None:
    first, behind = sorted(rng.choices(range(highest_start + 1), k=2))
    since, until = sorted(rng.choices(range(START_MS - 5, START_MS + 66), k=2))
    if rng.random() < 0.3:
        made.add({"start": first}, ["--from", str(first)], lambda it: it.offset >= first)
    elif rng.random() < 0.7:
        name, given = rng.choice(
            [("start_time", since), ("start", moment(since)), ("start", moment(since).isoformat())]
        )
        made.add({name: given}, ["--from", f"@{since}"], lambda it: it.timestamp >= since)
    if rng.random() < 0.3:
        made.add({"end": behind}, ["--until", str(behind)], lambda it: it.offset < behind)
    elif rng.random() < 0.7:
        name, given = rng.choice([("end_time", until), ("end", moment(until)), ("end", moment(until).isoformat())])
        made.add({name: given}, ["--until", f"@{until}"], lambda it: it.timestamp < until)


def moment(time_ms: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=time_ms)


def keys(made: Question, rng: random.Random, _: int) -> None:
    key = rng.choice([b"a", b"ab", b"\xff"])
    words = ["--key", f"hex:{key.hex()}"]
    match rng.randrange(4):
        case 0:
            made.add({"key": key}, words, lambda it: it.key == key)
        case 1:
            made.add({"key": [key, b"b"]}, [*words, "--key", "b"], lambda it: it.key in (key, b"b"))
        case 2:
            made.add({"key": [None, key]}, None, lambda it: it.key in (None, key))
        case 3:
            made.add({"key_prefix": key}, ["--key-prefix", *words[1:]], lambda it: (it.key or b"").startswith(key))


def headers(made: Question, rng: random.Random, _: int) -> None:
    name, value = rng.choice(["h", "g", "é"]), rng.choice([None, b"1", b"2"])

    def holds(record: Record) -> bool:
        return any(each == name and value in (None, its) for each, its in record.headers)

    word = name if value is None else f"{name}={value.decode()}"
    made.add({"headers": {name: value}}, ["--header", word], holds, chooses=True)


def patterns(made: Question, rng: random.Random, _: int) -> None:
    pattern = rng.choice(["x[1-4]", "foo.bar", "(?s)foo.bar", "gr..?n", "^$", ""])

    def holds(record: Record) -> bool:
        return record.value is not None and re.search(pattern.encode(), record.value) is not None

    made.add({"grep": pattern}, ["--grep", pattern], holds, chooses=True)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other, "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other, "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other, ">=": lambda one, other: one >= other,
}  # fmt: skip


def where(made: Question, rng: random.Random, parts: int) -> None:
    if rng.random() < 0.2:
        offset = rng.randrange(30)
        made.add({"where": pc.field("offset") > offset}, None, lambda it: it.offset > offset, chooses=True)
        return
    tested: list[Holds] = []
    texts: list[str] = []
    for _ in range(rng.choice([1, 1, 2])):
        text, holds = condition(rng, parts)
        texts.append(text)
        tested.append(holds)
    joined = " and ".join(texts)
    made.add({"where": joined}, ["--where", joined], lambda it: all(holds(it) for holds in tested), chooses=True)


def condition(rng: random.Random, parts: int) -> tuple[str, Holds]:
    sign = rng.choice([*COMPARISONS])
    compare = COMPARISONS[sign]
    offset, time_ms = rng.randrange(30), START_MS + rng.randrange(60)
    number, key = rng.randrange(parts), rng.choice(["a", "ab", "b"])
    return rng.choice([
        (f"offset {sign} {offset}", lambda it: compare(it.offset, offset)),
        (f"time {sign} @{time_ms}", lambda it: compare(it.timestamp, time_ms)),
        (f"partition {sign} {number}", lambda it: compare(it.partition, number)),
        (f"key {sign} '{key}'", lambda it: it.key is not None and compare(it.key, key.encode())),
        ("key is null", lambda it: it.key is None),
        ("value is not null", lambda it: it.value is not None),
    ])  # fmt: skip


# --- doors ------------------------------------------------------------------------------------------------


def rows(table: Any) -> list[Row]:
    """The rows of an Arrow table or batch with all columns."""
    columns = [table[name].to_pylist() for name in COLUMNS]
    columns[2] = pa.table({"at": table["timestamp"]})["at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    columns[5] = [tuple((each["key"], each["value"]) for each in them or ()) for them in columns[5]]
    return list(zip(*columns, strict=True))


def of_json(lines: list[str]) -> list[Row]:
    found = []
    for line in lines:
        it = json.loads(line)
        pairs = tuple((each["key"], octets(each, "value")) for each in it.get("headers", ()))
        time_ms = it["timestamp"]
        found.append((it["partition"], it["offset"], time_ms, octets(it, "key"), octets(it, "value"), pairs))
    return found


def octets(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"])
    return None if found[name] is None else found[name].encode()


class Doors:
    def __init__(self, root: Path, store: Store, run: Run, *, passes_over: bool) -> None:
        self.root, self.store, self.run = root, store, run
        self.topic: Topic = store.topic("t")
        self.damaged = {"on_damage": lambda lost: None} if passes_over else {}
        self.damaged_words = ["--skip-damage"] if passes_over else []

    def answers(self, made: Question) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        topic = self.topic
        asked = made.asked | self.damaged | {"isolation": made.isolation}
        of_reader = dict(asked)
        if made.last is not None:
            asked["last"] = made.last
        else:
            yield "reader", lambda: self.read(of_reader)
            yield "reader's batches", lambda: self.read_batches(of_reader)
        yield "records", lambda: [row(it) for it in topic.records(**asked)]
        yield "records of the store", lambda: [row(it) for it in self.store.records(**asked)]
        yield "read_arrow", lambda: rows(topic.read_arrow(**asked))
        yield "arrow_batches", lambda: [it for part in topic.arrow_batches(batch_rows=3, **asked) for it in rows(part)]
        yield "arrow_reader", lambda: rows(topic.arrow_reader(**asked).read_all())
        yield (
            "records of partitions",
            lambda: [row(it) for number in range(topic.partitions) for it in topic.records(partitions=number, **asked)],
        )
        yield "to_pandas", lambda: self.in_pandas(asked)
        yield "to_polars", lambda: self.in_polars(asked)
        yield "to_duckdb", lambda: self.in_duckdb(asked)
        if made.words is not None:
            words = [*made.words, *self.damaged_words, *(["--committed"] * (made.isolation == "read_committed"))]
            words += [] if made.last is None else ["--last", str(made.last)]
            yield "cat", lambda: of_json(self.said("cat", self.root, "t", "--json", *words))
            yield "export", lambda: self.exported("export", words)

    def latest(self, made: Question) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        asked = made.asked | self.damaged | {"isolation": made.isolation}
        yield "latest", lambda: rows(self.topic.latest(**asked).read_all())
        yield "latest of the store", lambda: rows(self.store.latest(batch_rows=2, **asked).read_all())
        if made.words is not None:
            words = [*made.words, *self.damaged_words, *(["--uncommitted"] * (made.isolation == "read_uncommitted"))]
            yield "latest --to", lambda: self.exported("latest", words)

    def read(self, asked: dict[str, Any]) -> list[Row]:
        with self.store.reader(topics=["t"], **asked) as reader:
            return sorted(map(row, reader), key=place)

    def read_batches(self, asked: dict[str, Any]) -> list[Row]:
        with self.store.reader(topics=["t"], **asked) as reader:
            return sorted((it for batch in reader.batches(batch_rows=2) for it in rows(batch)), key=place)

    def in_pandas(self, asked: dict[str, Any]) -> list[Row]:
        pytest.importorskip("pandas")
        return rows(pa.Table.from_pandas(self.topic.to_pandas(**asked), self.topic.read_arrow(0, 0).schema))

    def in_polars(self, asked: dict[str, Any]) -> list[Row]:
        pytest.importorskip("polars")
        return rows(self.topic.to_polars(**asked).to_arrow())

    def in_duckdb(self, asked: dict[str, Any]) -> list[Row]:
        duckdb = pytest.importorskip("duckdb")
        found = self.topic.to_duckdb(duckdb.connect(), "found", **asked).arrow()
        return sorted(rows(found.read_all() if hasattr(found, "read_all") else found), key=place)

    def said(self, *argv: object) -> list[str]:
        result = self.run(*argv)
        if result.code and ": " in result.err and not (self.damaged and result.code == 1):
            raise BadBytesError(result.err) if self.root.name == "damaged" else AssertionError(result.err)
        return result.lines

    def exported(self, command: str, words: list[str]) -> list[Row]:
        target = self.root.parent / "out"
        shutil.rmtree(target, ignore_errors=True)
        self.said(command, self.root, "t", "--to", target, "--headers", *words)
        found = [it for path in target.rglob("*.parquet") for it in rows(pq.ParquetFile(path).read())]
        return sorted(found, key=place)


# --- the tests --------------------------------------------------------------------------------------------


def check(root: Path, run: Run, rng: random.Random, parts: int, *, passes_over: bool, before: dict[str, Any]) -> None:
    """`before`: the records by isolation where a door that meets damage raises, or has them all."""
    with kafkalog.open(root, read_only=True) as store:
        doors = Doors(root, store, run, passes_over=passes_over)
        topic = doors.topic
        records = before or everything(topic, on_damage=lambda lost: None)
        ends = [topic.partition(number).end_offset for number in range(parts)]
        for _ in range(QUESTIONS):
            made = question(rng, parts, min(ends))
            for answers, wanted in (
                (doors.answers(made), made.answer(records[made.isolation])),
                (doors.latest(made), made.latest(records[made.isolation])),
            ):
                for door, ask in answers:
                    if not LONG and rng.random() < 0.4:
                        continue
                    try:
                        found = ask()
                    except BadBytesError:
                        assert before, (door, made)
                        continue
                    assert found == wanted, (door, made)


def everything(topic: Topic, **asked: Any) -> dict[str, list[Record]]:
    return {each: list(topic.records(isolation=each, **asked)) for each in ("read_uncommitted", "read_committed")}  # type: ignore[arg-type]


@pytest.mark.parametrize("lane", range(300 if LONG else 4))
def test_every_door_has_the_answer_of_plain_python(tmp_path: Path, run: Run, lane: int) -> None:
    rng = draw(("one question", lane))
    parts = fill(tmp_path / "whole", rng)
    check(tmp_path / "whole", run, rng, parts, passes_over=False, before={})


@pytest.mark.parametrize("passes_over", [True, False])
@pytest.mark.parametrize("lane", range(300 if LONG else 3))
def test_no_door_loses_what_damage_has_not_taken(
    tmp_path: Path, run: Run, lane: int, passes_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "SECOND_LOOK_S", 0)  # nobody writes here
    rng = draw(("one question over damage", lane))
    parts = fill(tmp_path / "damaged", rng)
    with kafkalog.open(tmp_path / "damaged", read_only=True) as store:
        before = everything(store.topic("t"))
    damage(tmp_path / "damaged", rng)
    check(tmp_path / "damaged", run, rng, parts, passes_over=passes_over, before={} if passes_over else before)
