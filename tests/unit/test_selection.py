"""One question for every way to read: a window, keys, headers, patterns, conditions, damage."""

from __future__ import annotations

import datetime as dt
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kafkalog
import kafkalog.toolbox.export
from kafkalog._face.match import conditions
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    OffsetOutOfRangeException,
    RecordDeserializationException,
)
from kafkalog.records import Record
from kafkalog.store import Store

START_MS = 1_700_000_000_000
START = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC)
COUNT = 240
NAMES = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with kafkalog.open(tmp_path_factory.mktemp("logs")) as store:
        orders = store.create_topic("orders", 3, config={"internal.segment.bytes": "4000"})
        for number in range(COUNT):
            part = orders.partition(number % 3)
            key = None if number % 11 == 0 else b"customer-%d" % (number % 7)
            headers = [("trace", b"%d" % (number % 3)), ("none", None)][: number % 3]
            value = None if number % 13 == 0 else b'{"id": %d, "name": "n%d"}' % (number, number % 5)
            part.append(value, key=key, headers=headers, timestamp=START_MS + number * 1000)
        store.create_topic("empty", 2)
        store.create_topic("text", 1).append("grün".encode(), key=b"\xff")
        yield store


def everything(store: Store) -> list[Record]:
    topic = store.topic("orders")
    return [record for number in range(3) for record in topic.partition(number)]


QUESTIONS: list[tuple[dict[str, Any], Callable[[Record], bool]]] = [
    ({}, lambda _: True),
    ({"key": b"customer-3"}, lambda it: it.key == b"customer-3"),
    ({"key": "customer-3"}, lambda it: it.key == b"customer-3"),
    ({"key": ["customer-1", b"customer-2", None]}, lambda it: it.key in (b"customer-1", b"customer-2", None)),
    ({"key": [None]}, lambda it: it.key is None),
    ({"key_prefix": "customer-"}, lambda it: it.key is not None),
    ({"key": "customer-1", "key_prefix": "customer-2"}, lambda _: False),
    ({"headers": {"trace": "1"}}, lambda it: ("trace", b"1") in it.headers),
    ({"headers": ["none"]}, lambda it: any(name == "none" for name, _ in it.headers)),
    ({"headers": {"trace": None, "none": None}}, lambda it: len(it.headers) == 2),
    ({"grep": "n[12]"}, lambda it: it.value is not None and re.search(b"n[12]", it.value) is not None),
    ({"grep": ["n1", '"id": 1']}, lambda it: it.value is not None and b"n1" in it.value and b'"id": 1' in it.value),
    ({"where": "offset >= 10 and offset < 20"}, lambda it: 10 <= it.offset < 20),
    ({"where": "partition = 1, value is null"}, lambda it: it.partition == 1 and it.value is None),
    ({"where": "key is not null and key != 'customer-1'"}, lambda it: it.key not in (None, b"customer-1")),
    ({"where": f"time >= @{START_MS + 100_000}"}, lambda it: it.timestamp >= START_MS + 100_000),
    ({"where": pc.field("offset") == 7}, lambda it: it.offset == 7),
    ({"start": START + dt.timedelta(seconds=100)}, lambda it: it.timestamp >= START_MS + 100_000),
    ({"end": (START + dt.timedelta(seconds=9)).isoformat()}, lambda it: it.timestamp < START_MS + 9_000),
    (
        {"start_time": START_MS + 5_000, "end_time": START_MS + 9_000},
        lambda it: 5_000 <= it.timestamp - START_MS < 9_000,
    ),
    ({"start": 70, "end": 75}, lambda it: 70 <= it.offset < 75),
]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_every_door_has_the_same_answer(store: Store, number: int) -> None:
    asked, holds = QUESTIONS[number]
    topic = store.topic("orders")
    wanted = [(it.partition, it.offset) for it in everything(store) if holds(it)]
    assert [(it.partition, it.offset) for it in topic.records(**asked)] == wanted
    table = topic.read_arrow(**asked)
    assert list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == wanted
    assert store.read_arrow(partitions="orders", **asked) == table
    for part in range(3):
        of_part = [offset for partition, offset in wanted if partition == part]
        assert [it.offset for it in topic.partition(part).records(**asked)] == of_part
        assert [it.offset for it in topic.records(partitions=part, **asked)] == of_part
        assert topic.partition(part).read_arrow(columns=["offset"], **asked)["offset"].to_pylist() == of_part
        assert [it.offset for it in topic.partition(part).records(last=3, **asked)] == of_part[-3:]
        assert topic.partition(part).read_arrow(last=2, **asked)["offset"].to_pylist() == of_part[-2:]
    with store.reader(topics=["orders"], **asked) as reader:
        assert sorted((it.partition, it.offset) for it in reader) == sorted(wanted)
    with store.reader(topics=["orders"], **asked) as reader:
        found = [row for batch in reader.batches(["partition", "offset"]) for row in batch.to_pylist()]
        assert sorted((row["partition"], row["offset"]) for row in found) == sorted(wanted)


def test_any_combination(store: Store) -> None:
    rng = random.Random(28)
    records = everything(store)
    for _ in range(60):
        chosen = rng.sample(QUESTIONS, 2)
        if chosen[0][0].keys() & chosen[1][0].keys():
            continue
        if any({"start", "start_time"} <= {*chosen[0][0], *chosen[1][0]} for _ in (1,)):
            continue
        asked = chosen[0][0] | chosen[1][0]
        if {"end", "end_time"} <= asked.keys():
            continue
        wanted = [(it.partition, it.offset) for it in records if all(holds(it) for _, holds in chosen)]
        if "end" in asked and isinstance(asked.get("start"), dt.datetime):  # this one ends before it begins
            with pytest.raises(IllegalArgumentException, match="is after"):
                store.topic("orders").records(**asked)
            continue
        found = [(it.partition, it.offset) for it in store.topic("orders").records(**asked)]
        assert found == wanted, asked


@pytest.mark.parametrize("what", ["store", "topic", "partition", "empty"])
def test_arrow_streams_have_one_schema(store: Store, what: str) -> None:
    readable: Any = {
        "store": store,
        "topic": store.topic("orders"),
        "partition": store.topic("orders").partition(1),
        "empty": store.topic("empty"),
    }[what]
    table = pa.table(readable)
    assert table.schema.names == NAMES
    assert table.schema == readable.read_arrow().schema
    assert table.num_rows == {"store": COUNT + 1, "topic": COUNT, "partition": COUNT // 3, "empty": 0}[what]


def test_last_values_of_keys(store: Store) -> None:
    topic = store.topic("orders")
    state: dict[tuple[int, bytes], bytes | None] = {}
    for record in everything(store):
        if record.key is not None:
            state[record.partition, record.key] = record.value
    wanted = {place: value for place, value in state.items() if value is not None}

    def found(**asked: Any) -> dict[tuple[int, bytes], bytes]:
        rows = topic.latest(**asked).read_all().to_pylist()
        return {(row["partition"], row["key"]): row["value"] for row in rows}

    assert found() == wanted
    assert found(key="customer-1") == {place: value for place, value in wanted.items() if place[1] == b"customer-1"}
    assert found(grep="n3") == {place: value for place, value in wanted.items() if b"n3" in value}
    before = START + dt.timedelta(seconds=30)
    early = {
        (it.partition, it.key): it.value for it in everything(store) if it.key and it.timestamp < START_MS + 30_000
    }
    assert found(end=before) == {place: value for place, value in early.items() if value is not None}


def test_values_are_decoded(store: Store) -> None:
    topic = store.topic("orders")
    table = topic.read_arrow(columns=["offset", "value"], values="json", where="value is not null", partitions=[0])
    assert table.schema.names == ["offset", "id", "name"]
    assert table["id"].to_pylist()[:2] == [3, 6]
    typed = topic.read_arrow(columns=["value"], values="json", schema={"id": "float64"})
    assert typed.schema == pa.schema([("id", pa.float64())])
    text = store.topic("text").read_arrow(columns=["value"], values="text")
    assert text["value"].to_pylist() == ["grün"]
    assert (
        topic.read_arrow(values="json", partitions=0, columns=["key"], keys="text").schema.field("key").type
        == pa.string()
    )
    with pytest.raises(RecordDeserializationException, match="topic text, partition 0, offset 0"):
        store.topic("text").read_arrow(keys="text")
    with pytest.raises(RecordDeserializationException, match="topic text, partition 0, offset 0"):
        store.topic("text").read_arrow(values="json")
    rows = topic.latest(values="json", columns=["key", "value"]).read_all()
    assert rows.schema.names == ["key", "id", "name"]
    upper = topic.read_arrow(columns=["value"], values=lambda column: pc.binary_length(column), partitions=1)
    assert upper.schema == pa.schema([("value", pa.int32())])


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"start": dt.datetime(2026, 1, 1)}, "has no time zone"),
        ({"start": "yesterday"}, "'yesterday' is not a time"),
        ({"start": 5, "end": 3}, "start 5 is after end 3"),
        ({"start": 5, "start_time": 3}, "found both start"),
        ({"key": 3}, "key: found int 3"),
        ({"key": []}, "key: found none"),
        ({"key_prefix": 3}, "key_prefix: found int 3"),
        ({"headers": 3}, "headers: found int 3"),
        ({"grep": "(("}, "is not a regular expression"),
        ({"grep": 3}, "grep: found int 3"),
        ({"grep": b"x"}, "grep: found bytes b'x', expected a pattern (text)"),
        ({"where": "foo = 1"}, "unknown column 'foo'"),
        ({"where": "offset = x"}, "is not a valid offset"),
        ({"where": 3}, "where: found int 3"),
        ({"where": pc.field("foo") == 1}, "where: No match for FieldRef"),
        ({"isolation": "x"}, "unknown isolation"),
        ({"on_damage": "x"}, "on_damage: found"),
        ({"last": -1}, "last: found -1"),
        ({"columns": ["foo"]}, "unknown column 'foo'"),
        ({"values": "x"}, "values: found"),
        ({"values": "json", "schema": {"id": "x"}}, "x"),
        ({"partitions": 7}, "7"),
    ],
)  # fmt: skip
def test_questions_that_make_no_sense(store: Store, asked: dict[str, Any], text: str) -> None:
    with pytest.raises(kafkalog.KafkalogError) as caught:
        store.topic("orders").read_arrow(**asked)
    assert text in str(caught.value)


def test_conditions_that_meet_no_window(store: Store) -> None:
    topic = store.topic("orders")
    for asked in ({"end_time": 100, "where": "time > @200"}, {"end": "2001-01-01", "where": f"time = @{START_MS}"},
                  {"end": 3, "where": "offset > 5"}, {"start": 5, "where": "offset < 2"}):  # fmt: skip
        assert list(topic.records(**asked)) == []
        assert topic.read_arrow(**asked).num_rows == topic.latest(**asked).read_all().num_rows == 0
    at = {"end_time": START_MS + 1, "where": f"time >= @{START_MS}"}
    assert [record.timestamp for record in topic.records(**at)] == [START_MS]


def test_a_start_that_one_partition_has_not(store: Store) -> None:
    topic = store.topic("orders")
    with pytest.raises(OffsetOutOfRangeException, match="is out of range"):
        topic.partition(0).records(1000)
    with pytest.raises(OffsetOutOfRangeException, match="partitions end at or before offset 80"):
        topic.read_arrow(1000)
    for place in ("start", "end"):  # milliseconds in the place of an offset
        for call in ("records", "read_arrow", "latest"):
            with pytest.raises(OffsetOutOfRangeException, match=f"{place}_time= accepts a time in ms"):
                list(getattr(topic, call)(**{place: START_MS}))
    for read in (topic.partition(0).records, topic.read_arrow):  # the digits of a day; as text they are the day
        with pytest.raises(OffsetOutOfRangeException, match="write start='2026-11-20' for the day"):
            read(20261120)
    assert topic.read_arrow("20261120").num_rows == 0
    assert topic.read_arrow(end=20261120).num_rows == COUNT
    assert topic.read_arrow(end=2**62).num_rows == COUNT
    assert topic.read_arrow(where=f"offset >= {START_MS}").num_rows == 0
    assert topic.read_arrow(79).num_rows == 3


@pytest.mark.parametrize("is_open", [False, True])
def test_damage_is_passed_over_and_told(tmp_path: Path, is_open: bool) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t", 1)
        for number in range(30):
            topic.append(b"value %d" % number, key=b"k%d" % (number % 4))
        topic.flush()
        path = tmp_path / "t-0" / "00000000000000000000.log"
        data = bytearray(path.read_bytes())
        at = data.index(b"value 12")
        data[at] ^= 1
        if is_open:
            path.write_bytes(data)
            check(store.topic("t"))
    if not is_open:
        path.write_bytes(data)
        with kafkalog.open(tmp_path, read_only=True) as view:
            check(view.topic("t"))


def check(topic: Any) -> None:
    wanted = [number for number in range(30) if number != 12]
    with pytest.raises(CorruptRecordException):
        list(topic.records())
    with pytest.raises(CorruptRecordException):
        topic.read_arrow()
    assert [it.offset for it in topic.records(on_damage="skip")] == wanted
    for read in (
        lambda tell: [it.offset for it in topic.records(on_damage=tell)],
        lambda tell: topic.read_arrow(on_damage=tell)["offset"].to_pylist(),
    ):
        lost: list[Any] = []
        assert read(lost.append) == wanted
        [one] = lost
        assert (one.first_offset, one.last_offset) == (12, 12)
    lost = []
    rows = topic.latest(on_damage=lost.append).read_all()["offset"].to_pylist()
    assert rows == [26, 27, 28, 29]
    assert len(lost) == 1


@pytest.mark.parametrize("call", ["records", "read_arrow", "latest"])
def test_a_keyword_that_does_not_exist(store: Store, call: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'kye'; did you mean 'key'"):
        getattr(store, call)(kye="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'until'; did you mean 'end'"):
        getattr(store, call)(until="x")
    with pytest.raises(TypeError, match=r"^Store.reader\(\) got an .* 'tpoics'; did you mean 'topics'\?$"):
        store.reader("billing", topics=["orders"], tpoics=["orders"])  # type: ignore[call-arg]


def test_a_field_of_json_that_came_later_is_a_column(tmp_path: Path) -> None:
    """It is only in the last values of one partition, and far after the first ones."""
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic.partition(0).append_many([b'{"id": 1}'] * 5_000)
        topic.partition(1).append_many([b'{"id": 1}'] * 5_000 + [b'{"id": 2, "coupon": "x"}'] * 10)
        table = topic.read_arrow(columns=["value"], values="json")
        assert table.schema.names == ["id", "coupon"]
        assert table["coupon"].null_count == 10_000
        assert topic.read_arrow(columns=["value"], values="json", last=3).num_rows == 6
        assert topic.read_arrow(0, 100, columns=["value"], values="json").schema.names == ["id"]


# --- behind damage -----------------------------------------------------------------------------------------


def damaged(tmp_path: Path, damage: Callable[[bytearray], None]) -> Store:
    """20 batches of one record and as many bytes, in a store that only reads."""
    with kafkalog.open(tmp_path) as store:
        partition = store.create_topic("orders").partition(0)
        for number in range(20):
            partition.append(b"v%02d" % number, key=b"k%d" % (number % 3))
    (path,) = (tmp_path / "orders-0").glob("*.log")
    data = bytearray(path.read_bytes())
    assert len(data) == 20 * 73
    damage(data)
    path.write_bytes(data)
    return kafkalog.open(tmp_path, read_only=True)


def flip(number: int) -> Callable[[bytearray], None]:
    def damage(data: bytearray) -> None:
        data[73 * number + 70] ^= 1

    return damage


def test_the_last_records_where_damage_is_among_them(tmp_path: Path) -> None:
    with damaged(tmp_path, flip(10)) as store:
        assert [it.offset for it in store.records(last=5)] == [15, 16, 17, 18, 19]
        asked: dict[str, Any]
        for asked in ({"last": 15}, {"last": 5, "key": b"k1"}):
            with pytest.raises(CorruptRecordException, match="a bad CRC"):
                list(store.records(**asked))
            lost: list[Any] = []
            assert len(list(store.records(on_damage=lost.append, **asked))) == asked["last"]
            assert [(it.first_offset, it.last_offset) for it in lost] == [(10, 10)]


@pytest.mark.parametrize("hurt", [(19,), (18, 19), (3, 19), (0, 1, 7, 17, 18, 19)])
@pytest.mark.parametrize("knows", ["checkpoint", "header", "writer"])
def test_what_is_lost_at_the_end_is_told(tmp_path: Path, hurt: tuple[int, ...], knows: str) -> None:
    """By the recovery point, or the damaged batches' headers, or the store that writes: as much as is missing."""

    def damage(data: bytearray) -> None:
        for number in hurt:
            flip(number)(data)

    if knows == "writer":
        store = kafkalog.open(tmp_path)
        topic = store.create_topic("orders")
        for number in range(20):
            topic.append(b"v%02d" % number, key=b"k")
        topic.flush()
        path = tmp_path / "orders-0" / ("0" * 20 + ".log")
        data = bytearray(path.read_bytes())
        for number in hurt:
            data[len(data) // 20 * number + 69] ^= 1
        path.write_bytes(data)
    else:
        store = damaged(tmp_path, damage)
        if knows == "header":
            store.close()
            (tmp_path / "recovery-point-offset-checkpoint").unlink()
            store = kafkalog.open(tmp_path, read_only=True)
    with store:
        for read in (
            lambda tell: [it.offset for it in store.records(on_damage=tell)],
            lambda tell: store.read_arrow(on_damage=tell)["offset"].to_pylist(),
            lambda tell: [it.offset for it in store.reader(topics=["orders"], on_damage=tell)],
        ):
            lost: list[Any] = []
            found = read(lost.append)
            told = [offset for one in lost for offset in range(one.first_offset, one.last_offset + 1)]
            assert (found, told) == ([n for n in range(20) if n not in hurt], list(hurt))


def test_a_reader_that_reads_tells_the_end_once(tmp_path: Path) -> None:
    with damaged(tmp_path, flip(19)) as store, store.reader(topics=["orders"], on_damage=(lost := []).append) as reader:
        for _ in range(3):
            list(reader)
        assert [(it.first_offset, it.last_offset) for it in lost] == [(19, 19)]


def test_a_header_that_lies_tells_nothing(tmp_path: Path) -> None:
    def damage(data: bytearray) -> None:
        data[19 * 73 + 24] ^= 1  # the last offset's delta is 65,536 more

    with damaged(tmp_path, damage) as store:
        store.close()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    with kafkalog.open(tmp_path, read_only=True) as store:
        lost: list[Any] = []
        assert len(list(store.records(on_damage=lost.append))) == 19
        assert [(it.first_offset, it.last_offset) for it in lost] == [(19, 18)]


def test_the_last_values_where_the_last_batch_is_damaged(tmp_path: Path) -> None:
    with damaged(tmp_path, flip(19)) as store:
        lost: list[Any] = []
        for number, isolation in enumerate(("read_committed", "read_uncommitted"), 1):
            found = store.latest(on_damage=lost.append, isolation=isolation).read_all()  # type: ignore[arg-type]
            assert found["offset"].to_pylist() == [16, 17, 18]
            assert len(lost) == number
        with pytest.raises(CorruptRecordException):
            store.latest().read_all()


@pytest.mark.parametrize("claims", [523_841_420, 12, 19, 20])
def test_behind_damage_a_batch_whose_offset_lies(tmp_path: Path, claims: int) -> None:
    def damage(data: bytearray) -> None:
        flip(5)(data)
        data[6 * 73 : 6 * 73 + 8] = claims.to_bytes(8, "big")  # not covered by the CRC

    with damaged(tmp_path, damage) as store:
        lost: list[Any] = []
        assert [it.offset for it in store.records(on_damage=lost.append)] == [*range(5), *range(7, 20)]
        assert [(it.first_offset, it.last_offset) for it in lost] == [(5, 6)]


def test_conditions_choose_among_last_values(tmp_path: Path) -> None:
    """A condition on offsets or times does not make an older record the last one."""
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b"old", key=b"a")
        topic.append(b"new", key=b"a")
        for condition in ("offset < 1", "offset = 0", pc.field("offset") < 1):
            assert topic.latest(where=condition).read_all().num_rows == 0
        assert topic.latest(1).read_all()["value"].to_pylist() == [b"old"]
        assert topic.latest(where="offset >= 1").read_all()["value"].to_pylist() == [b"new"]
        assert topic.latest(start=1).read_all()["value"].to_pylist() == [b"new"]
        assert topic.latest(start=2).read_all().num_rows == 0
        assert topic.latest(1, start=1).read_all().num_rows == 0


# --- what makes no sense -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"columns": ["value", "value"], "values": "text"}, "columns: found 'value' twice"),
        ({"start_time": pd.NaT}, "start_time: found NaT, which is not a time"),
        ({"headers": [("a",)]}, "expected a name and a value"),
        ({"headers": [()]}, "expected a name and a value"),
        ({"key": "\ud800"}, "which UTF-8 cannot encode"),
        ({"key_prefix": "\ud800"}, "which UTF-8 cannot encode"),
        ({"start": True}, "found True, expected an offset or a time"),
        ({"start": dt.date(2026, 11, 10)}, "a datetime with a time zone (write start='2026-11-10' for the day in UTC"),
        ({"end": np.datetime64("2026-11-10T09:00")}, "with a time zone (write end='2026-11-10T09:00Z', if that is UTC"),
        ({"start_time": dt.date(2026, 11, 10)}, "write start_time='2026-11-10' for"),
        ({"start_time": np.datetime64("NaT")}, "expected a datetime with a time zone"),
        ({"last": "5"}, "last: found str '5', expected a whole number from 0 on"),
        ({"last": -1}, "last: found -1, expected a whole number from 0 on"),
        ({"where": pc.field("timestamp") > dt.datetime(2026, 11, 20)}, "without a time zone, expected one with"),
        ({"where": pc.field("timestamp") > 5}, "has no kernel matching"),
        ({"where": "key = k1 or key = k2"}, "found 'or' in 'k1 or key = k2'"),
        ({"where": "offset >= 5 or offset < 2"}, "conditions are joined by `and`"),
        ({"where": "not offset = 5"}, "there is no `or`, `not` or `in`"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(store: Store, asked: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=re.escape(text)):
        store.read_arrow(**asked)


@pytest.mark.parametrize("bound", [-1, -5, np.int64(-5), -(1 << 63)])
def test_no_offset_is_negative(store: Store, bound: int) -> None:
    """Not as an index of Python: of several partitions it gave all, or nothing."""
    found = f"found {bound}, expected an offset from 0 on"
    topic = store.topic("orders")
    for readable in (store, topic, topic.partition(0)):
        for call in ("records", "read_arrow", "arrow_batches", "arrow_reader"):
            for asked in ({"start": bound}, {"end": bound}):
                with pytest.raises(IllegalArgumentException, match=f"{next(iter(asked))}: {found}.*last={-bound} for"):
                    getattr(readable, call)(**asked)
        with pytest.raises(IllegalArgumentException, match=f"end: {found}"):
            readable.latest(bound)
    with pytest.raises(IllegalArgumentException, match=f"start: {found}"):
        store.reader(start=bound)
    with pytest.raises(IllegalArgumentException, match=f"start: {found}"):
        kafkalog.toolbox.export.Selection(bound)
    for asked in ({"offset": bound}, {"end_offset": bound}):
        with pytest.raises(IllegalArgumentException, match=f"offset: {found}"):
            topic.partition(0).reader(**asked)
    with topic.partition(0).reader() as reader, pytest.raises(IllegalArgumentException, match=f"offset: {found}"):
        reader.seek(bound)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("key = 'customer-3' nd offset < 5", "found 'nd offset < 5' at character 20, expected `and`"),
        ("key = customer-3 nd offset < 5", "found 'nd offset < 5' at character 18, expected `and`"),
        ("key = 'customer-3", "the quote ' at character 7 is not closed"),
        ('offset > 1 and value = "a', 'the quote " at character 24 is not closed'),
        ("key = o'brien", 'found "\'brien" at character 8'),
        ("key is null nd offset = 3", "found 'nd offset = 3' at character 13"),
        ("key = 'a'and offset = 1", "found 'and offset = 1' at character 10"),
        ("key = 'a' and", "found 'and' at character 11"),
        ("key = 'a' and ", "at the end is not a condition"),
        ("offset = 5,", "at the end is not a condition"),
        ("key = 'a' or key = 'b'", "found \"or key = 'b'\" at character 11"),
        ("offset > 3 and foo", "'foo' at character 16 is not a condition"),
    ],
)
def test_a_mistyped_condition_is_told_with_its_place(store: Store, where: str, told: str) -> None:
    with pytest.raises(IllegalArgumentException, match=re.escape(told)):
        store.records(where=where)


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("time < 2026-11-01 09:05 and key = 'x and y, z'", [("timestamp", 1793523900000), ("key", b"x and y, z")]),
        ("key='' , topic=a AND\nvalue = \"it's\"", [("key", b""), ("topic", "a"), ("value", b"it's")]),
        ("key = and", [("key", b"and")]),
        (" key = x ", [("key", b"x")]),
    ],
)
def test_conditions_of_a_text(where: str, wanted: list[tuple[str, object]]) -> None:
    assert [(each.column, each.value) for each in conditions(where)] == wanted


def test_a_condition_whose_text_stands_in_quotes(store: Store) -> None:
    assert store.read_arrow(where="key = 'k1 or key'").num_rows == 0


def test_an_empty_pattern_matches_what_has_a_value(store: Store) -> None:
    topic = store.topic("orders")
    assert topic.read_arrow(grep="").num_rows == topic.read_arrow(where="value is not null").num_rows < COUNT


@pytest.mark.parametrize("call", ["read_arrow", "to_polars", "arrow_reader"])
def test_a_function_of_values_without_values(store: Store, call: str) -> None:
    topic = store.topic("empty")
    with pytest.raises(IllegalArgumentException, match="the columns of the function's result are not known"):
        getattr(topic, call)(values=lambda column: column)
    assert topic.read_arrow(values=lambda column: column, schema=pa.binary()).num_rows == 0


def test_duckdb_gets_our_errors_and_keeps_its_own_views(store: Store) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    mine = pa.table({"a": [1]})
    connection.register("kafkalog_rows", mine)
    topic = store.topic("orders")
    with pytest.raises(RecordDeserializationException, match="topic orders, partition 0"):
        topic.to_duckdb(connection, "orders", values="json", schema={"name": "int64"})
    assert topic.to_duckdb(connection, "orders").aggregate("count(*)").fetchall() == [(COUNT,)]
    assert connection.sql("from kafkalog_rows").fetchall() == [(1,)]
    with pytest.raises(IllegalArgumentException, match="name: found an empty text"):
        topic.to_duckdb(connection, "")


def test_duckdb_tables_in_schemas(store: Store) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    topic = store.topic("orders")
    for name in ("main.orders", "memory.main.orders"):
        assert topic.to_duckdb(connection, name, last=1).fetchall()
        assert connection.sql("select table_schema, table_name from information_schema.tables").fetchall() == [
            ("main", "orders")
        ]
    with pytest.raises(IllegalArgumentException, match=r"'x\.orders', which DuckDB.*create the schema x first"):
        topic.to_duckdb(connection, "x.orders", last=1)
    connection.execute("create view seen as select 1")
    with pytest.raises(IllegalArgumentException, match=r"'seen', which DuckDB cannot create.*View.*use another name"):
        topic.to_duckdb(connection, "seen", last=1)
    assert connection.sql("select * from seen").fetchall() == [(1,)]
    connection.execute("create schema x")
    count = len(topic.to_duckdb(connection, "x.orders", last=1))
    assert connection.sql("select count(*) from x.orders").fetchall() == [(count,)]
    for name in (".orders", "main.", "a..b", "a.b.c.d"):
        with pytest.raises(IllegalArgumentException, match=r"expected a table, schema\.table"):
            topic.to_duckdb(connection, name)


# --- JSON that was made to mislead -------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [70, 505, 900])
def test_one_deep_value_in_the_sample(tmp_path: Path, levels: int) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append_many([b'{"ok":1}', b'{"ok":2,"a":' + b'{"a":' * levels + b"1" + b"}" * (levels + 1)])
        table = topic.read_arrow(columns=["value"], values="json", errors="null")
        assert table["ok"].to_pylist() == ([1, 2] if levels < 512 else [1, None])


def test_a_long_name_is_expected_as_itself(tmp_path: Path) -> None:
    """The placeholder for a name that is too long to be remembered is no byte that a value may begin with."""
    name = b"n" * 60
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append_many([b'{"%b":1}' % name, b'{"%b":2}' % name, b"{\xff3}"])
        with pytest.raises(RecordDeserializationException, match="partition 0, offset 2"):
            topic.read_arrow(values="json", schema={name.decode(): "int64"})


def test_a_name_below_another_with_a_nul(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b'{"x":{"a\\u0000b":1}}')
        assert topic.read_arrow(columns=["value"], values="json").to_pylist() == [{"x": '{"a\\u0000b":1}'}]
        with pytest.raises(IllegalArgumentException, match="found a NUL in the name"):
            topic.read_arrow(values="json", schema={"x": {"a\0b": "int64"}})


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("a wrong turn")], ids=str)
def test_duckdb_gives_back_what_was_raised_while_it_read(store: Store, error: Any) -> None:
    """It reports an interrupt, or an error of the caller's function, as its own."""
    duckdb = pytest.importorskip("duckdb")

    def decode(values: Any) -> Any:
        raise error

    topic, connection = store.topic("orders"), duckdb.connect()
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        topic.to_duckdb(connection, "t", values=decode, schema=pa.binary())
    with pytest.raises(duckdb.CatalogException):
        connection.table("t")


HELD = """
import sys
import kafkalog
from kafkalog._native.codec.spares import spare_bytes

with kafkalog.open_log(sys.argv[1], "t-0", read_only=True) as log:
    kept = log.read_arrow(key="k7")
    assert kept.num_rows == 1
    print(spare_bytes())
"""


def test_a_row_of_a_read_holds_a_row_of_memory(tmp_path: Path) -> None:
    """The memory that a read reserved, for all records of the log, is free for the next one."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for first in range(0, 10_000, 100):
            log.append_many([(bytes(180), b"k%d" % n) for n in range(first, first + 100)])
    done = subprocess.run([sys.executable, "-c", HELD, str(tmp_path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 1 << 20


def test_a_header_as_text_has_its_value(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b"1", headers=[("source", b"web"), ("a=b", b"")])
        topic.append(b"2", headers=[("source", b"app")])
        asked: Any
        for asked, count in (
            ("source=web", 1), ("source", 2), (["source=app"], 1), ("source=", 0), ("a=b", 0), ({"a=b": None}, 1),
        ):  # fmt: skip
            assert topic.read_arrow(headers=asked).num_rows == count, asked
        for asked in ("=web", ["=web"]):
            with pytest.raises(IllegalArgumentException, match="has no name"):
                topic.read_arrow(headers=asked)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("ofset >= 100", "unknown column 'ofset'; did you mean 'offset'"),
        ("offset > 1 and price > 3", "unknown column 'price'.*not to fields of JSON"),
        ("headers is null", "found 'headers', expected one of offset.*pyarrow Expression for it"),
        ("timestamp_type = 0", "found 'timestamp_type', expected one of"),
        (pc.field("id") > 3, "not to fields of JSON"),
    ],
)
def test_a_condition_of_another_column(store: Store, where: Any, told: str) -> None:
    with pytest.raises(IllegalArgumentException, match=told):
        store.read_arrow(where=where)


def test_a_condition_names_the_columns_that_documents_name(store: Store) -> None:
    with pytest.raises(IllegalArgumentException, match="topic, key, value; conditions") as refused:
        store.read_arrow(where="price > 3")
    assert "ts," not in str(refused.value)
    assert store.read_arrow(where="ts < @5").num_rows == 0


def test_seconds_are_no_milliseconds(store: Store) -> None:
    with pytest.raises(IllegalArgumentException, match=r"looks like seconds.*start_time=1700000000000"):
        store.read_arrow(start_time=1_700_000_000)
