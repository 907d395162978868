"""A topic's appends besides `append` and `append_many`: columns, ready batches, writers, flush, deleted records."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import batch_maker as batch_maker_module
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTimestampException,
    InvalidTopicException,
    LogReadOnlyException,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
    PolicyViolationException,
    RecordTooLargeException,
    RecordValidationException,
    UnknownTopicOrPartitionException,
)
from kafkalog.store import Store
from kafkalog.topic import Topic
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.test_producer import NOW_MS, records, values


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path / "data", maintenance=False, clock=ManualClock(NOW_MS)) as opened:
        opened.create_topic("one")
        opened.create_topic("four", 4)
        yield opened


def contents(store: Store, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    found = {}
    for number in range(store.topic(topic).partitions):
        rows = [(each.value, each.key, each.headers, each.timestamp) for each in records(store, topic, number)]
        if rows:
            found[number] = rows
    return found


# --- columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "arrow", "mixed"])
@pytest.mark.parametrize("topic", ["one", "four"])
def test_columns(store: Store, topic: str, kind: str) -> None:
    keys = [b"k%d" % (number % 11) for number in range(500)]
    content = [b"v%d" % number if number % 7 else None for number in range(500)]
    headers = [[("h", b"%d" % number)] if number % 5 == 0 else None for number in range(500)]
    columns: list[Any] = [content, keys]
    if kind != "list":
        pa = pytest.importorskip("pyarrow")
        columns = [pa.array(content, pa.binary()), pa.array(keys, pa.binary()) if kind == "arrow" else keys]
    offsets = store.topic(topic).append_columns(
        columns[0], keys=columns[1], timestamps=list(range(500)), headers=headers
    )
    count = store.topic(topic).partitions
    wanted = collections.defaultdict(list)
    for number in range(500):
        extra = (("h", b"%d" % number),) if number % 5 == 0 else ()
        wanted[partition_for_key(keys[number], count)].append((content[number], keys[number], extra, number))
    assert contents(store, topic) == wanted
    assert offsets == {number: range(len(rows)) for number, rows in wanted.items()}


def test_columns_without_keys(store: Store) -> None:
    topic = store.topic("four")
    offsets = topic.append_columns([bytes(1000)] * 4000)
    assert sum(map(len, offsets.values())) == 4000
    assert len(offsets) == 4  # 240 times another one, at random
    assert topic.append_columns([b"v"] * 3, partition=2) == {2: range(len(offsets[2]), len(offsets[2]) + 3)}
    assert topic.append_columns([]) == {}
    assert topic.append_columns([], partition=1) == {}
    assert store.topic("one").append_columns([]) == {}


def test_columns_are_looked_at_first(store: Store) -> None:
    topic = store.topic("four")
    wrong: list[Callable[[], object]] = [
        lambda: topic.append_columns([b"v", 5]),
        lambda: topic.append_columns([b"v"], keys=[b"k", b"l"]),
        lambda: topic.append_columns([b"v"], timestamps=["now"]),
        lambda: topic.append_columns([b"v"], headers=[{"a": b"b"}]),
        lambda: topic.append_columns(b"value"),
        lambda: topic.append_columns([b"v"], keys="k"),
        lambda: topic.append_columns([b"v"], partition="1"),  # type: ignore[arg-type]
        lambda: topic.append_columns([b"v"], partition=-1),
    ]
    for each in wrong:
        with pytest.raises(IllegalArgumentException):
            each()
    with pytest.raises(UnknownTopicOrPartitionException):
        topic.append_columns([b"v"], partition=4)
    assert contents(store, "four") == {}


def test_many_and_columns_say_which_partitions_have_theirs(store: Store) -> None:
    store.create_topic("small", 3, config={"max.message.bytes": "1000"})
    topic = store.topic("small")
    by_number: dict[int, bytes] = {}
    number = 0
    while len(by_number) < 3:
        by_number.setdefault(partition_for_key(b"%d" % number, 3), b"%d" % number)
        number += 1
    keys = [by_number[0], by_number[1], by_number[2], by_number[0]]
    content = [b"a", b"b", bytes(2000), b"d"]
    for append in (
        lambda: topic.append_columns(content, keys=keys),
        lambda: topic.append_many(list(zip(content, keys, strict=True))),
        lambda: topic.append_many(iter(list(zip(content, keys, strict=True)))),
    ):
        before = {each: len(values(store, "small", each)) for each in range(3)}
        with pytest.raises(RecordTooLargeException, match="alter_topic") as told:
            append()
        done = told.value.appended_partitions
        for each in range(3):
            assert len(values(store, "small", each)) - before[each] == len(done.get(each, ()))
        assert 2 not in done


@pytest.mark.parametrize("native", [True, False])
def test_rows_of_any_kind(store: Store, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_maker_module, "NATIVE_ROWS", native)
    rows: list[Any] = [
        (b"v", b"a"), (b"w", b"b", [("h", b"x")]), (None, b"c", (), 5), (bytearray(b"x"), memoryview(b"a")),
        kafkalog.Record("t", 0, 0, 0, 7, 0, b"d", b"y", ()), (b"z", b"a", None, None),
    ]  # fmt: skip
    usual = [row for number, row in enumerate(rows) if number != 3]
    topic = store.topic("four")
    for given in (rows, tuple(rows), iter(rows), usual):
        topic.append_many(given)
    wanted = collections.defaultdict(list)
    for given in (rows, rows, rows, usual):
        for row in given:
            value, key, headers, when = (
                (row.value, row.key, row.headers, row.timestamp)
                if isinstance(row, kafkalog.Record)
                else (*row, None, None)[:4]
                if len(row) == 2
                else (*row, None)[:4]
            )
            key = bytes(key)
            when = NOW_MS if when is None else when
            content = None if value is None else bytes(value)
            wanted[partition_for_key(key, 4)].append((content, key, tuple(headers or ()), when))
    assert contents(store, "four") == wanted


def test_a_wrong_record_stops_all(store: Store) -> None:
    topic = store.topic("four")
    for wrong in (5, "text", (b"v", "key"), (b"v", b"k", 5), (b"v", b"k", (), "now"), ()):
        with pytest.raises(IllegalArgumentException):
            topic.append_many([(b"v", b"%d" % number) for number in range(100)] + [wrong])
    assert contents(store, "four") == {}


# --- ready batches -------------------------------------------------------------------------------------


def batch_of(*content: bytes) -> bytes:
    builder = MemoryRecordsBuilder()
    for value in content:
        builder.append(NOW_MS, None, value, ())
    return builder.build()


def test_batches(store: Store) -> None:
    topic = store.topic("four")
    assert topic.append_batches(batch_of(b"a", b"b"), 2) == range(2)
    assert topic.append_batches(memoryview(batch_of(b"c")), 2) == range(2, 3)
    assert values(store, "four", 2) == [b"a", b"b", b"c"]
    with pytest.raises(IllegalArgumentException, match="no whole batch"):
        topic.append_batches(b"", 2)
    with pytest.raises(IllegalArgumentException, match="no whole batch"):
        topic.append_batches(batch_of(b"d")[:-1], 2)
    for wrong in ("text", None, 5, [b"v"]):
        with pytest.raises(IllegalArgumentException):
            topic.append_batches(wrong, 2)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionException):
        topic.append_batches(batch_of(b"d"), 4)
    with pytest.raises(kafkalog.KafkalogError):
        topic.append_batches(batch_of(b"d")[:-1] + b"\xff", 2)
    assert values(store, "four", 2) == [b"a", b"b", b"c"]


# --- writers -------------------------------------------------------------------------------------------


def test_writers(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", 3)
        writer = topic.writer("import", 1)
        assert writer.append_many([b"a", b"b"]) == range(2)
        assert writer.append(b"b", sequence=1) is None
        assert topic.writer("import", 1).append(b"c", sequence=2) == 2
        assert topic.writer("import").append(b"other", sequence=0) == 0
        with pytest.raises(OutOfOrderSequenceException):
            writer.append(b"gap", sequence=9)
        for wrong in ("", 5, None, b"w"):
            with pytest.raises(IllegalArgumentException):
                topic.writer(wrong)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartitionException):
            topic.writer("w", 3)
    with kafkalog.open(tmp_path, maintenance=False) as store:
        writer = store.topic("t").writer("import", 1)
        assert writer.next_sequence == 3
        assert writer.append_many([b"b", b"c", b"d"], sequence=1) == range(3, 4)
        assert values(store, "t", 1) == [b"a", b"b", b"c", b"d"]
    with kafkalog.open_log(tmp_path, "t-1") as log:
        assert log.writer("import").next_sequence == 4
    with pytest.raises(IllegalStateException):
        writer.append(b"v")


def test_a_writer_goes_on_where_its_log_was_moved(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kafkalog.open(dirs, maintenance=False) as store:
        topic = store.create_topic("t")
        writer = topic.writer("w")
        with store.producer(name="p", linger_ms=0) as producer:
            for turn in range(4):
                writer.append(b"w%d" % turn)
                producer.send("t", b"p%d" % turn).result(10)
                log = store.manager.get_log("t-0")
                assert log is not None
                other = next(str(each) for each in dirs if str(each) != log.parent_dir)
                store.manager.move("t-0", other)
                assert topic.append_batches(batch_of(b"b%d" % turn), 0).start == 4 * turn + 2
                topic.flush()
                assert topic.append_columns([b"c%d" % turn]) == {0: range(4 * turn + 3, 4 * turn + 4)}
        assert values(store, "t") == [b"%c%d" % (kind, turn) for turn in range(4) for kind in b"wpbc"]
        assert topic.delete_records(5, 0) == 5


# --- the rest ------------------------------------------------------------------------------------------


def test_flush(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES, Fault(-1, sticky=False, kinds={"sync"}, paths=lambda path: path.endswith(".log")))
    with kafkalog.open(tmp_path, files=files, maintenance=False) as store:
        topic = store.create_topic("t", 3)
        topic.append_many([(b"v", b"%d" % number) for number in range(50)])
        before = files.count
        topic.flush()
        assert files.count - before == 3
        assert [log.recovery_point for log in store.manager.logs_by_topic("t")] == [
            log.log_end_offset for log in store.manager.logs_by_topic("t")
        ]


def test_delete_records(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        topic.append_many([b"%d" % number for number in range(10)], partition=1)
        assert topic.delete_records(4, 1) == 4
        assert values(store, "t", 1) == [b"%d" % number for number in range(4, 10)]
        assert "t 1 4" in (tmp_path / "log-start-offset-checkpoint").read_text()
        assert topic.delete_records(-1, 1) == 10
        assert topic.delete_records(-1, 0) == 0
        with pytest.raises(OffsetOutOfRangeException):
            topic.delete_records(11, 1)
        with pytest.raises(UnknownTopicOrPartitionException):
            topic.delete_records(0, 2)
        for wrong in ("1", 1.0, None):
            with pytest.raises(IllegalArgumentException):
                topic.delete_records(wrong, 1)  # type: ignore[arg-type]
        compacted = store.create_topic("c", config={"cleanup.policy": "compact"})
        with pytest.raises(PolicyViolationException):
            compacted.delete_records(0, 0)


USES: list[Callable[[Topic], object]] = [
    lambda topic: topic.append(b"v"),
    lambda topic: topic.append_many([b"v"]),
    lambda topic: topic.append_columns([b"v"]),
    lambda topic: topic.append_batches(batch_of(b"v"), 0),
    lambda topic: topic.writer("w").append(b"v"),
    lambda topic: topic.flush(),
    lambda topic: topic.delete_records(0, 0),
]


@pytest.mark.parametrize("use", USES, ids=map(str, range(len(USES))))
def test_what_is_closed_deleted_or_only_looked_at(tmp_path: Path, use: Callable[[Topic], object]) -> None:
    store = kafkalog.open(tmp_path, maintenance=False)
    topic = store.create_topic("t")
    gone = store.create_topic("gone")
    use(gone)
    store.delete_topic("gone")
    with pytest.raises(UnknownTopicOrPartitionException):
        use(gone)
    with kafkalog.open(tmp_path, read_only=True) as looking, pytest.raises(LogReadOnlyException):
        use(looking.topic("t"))
    use(topic)
    store.close()
    with pytest.raises(IllegalStateException, match="closed"):
        use(topic)


# --- what is Kafka's own -------------------------------------------------------------------------------


def test_nobody_appends_to_internal_topics(store: Store) -> None:
    """As a broker refuses it: a null under a cursor's key would take the cursor away."""
    store.topic("one").append(b"v")
    with store.reader("billing", topics=["one"]) as reader:
        list(reader)
        reader.commit()
    name = "__consumer_offsets"
    topic = store.topic(name)
    place = next(number for number in range(topic.partitions) if store.manager.get_log(TopicPartition(name, number)))
    (record,) = records(store, name, place)

    def sent() -> None:
        with store.producer() as producer:
            producer.send(name, None, key=record.key, partition=place).result()

    def committed() -> None:
        with store.transaction("junk") as txn:
            txn.append(name, None, key=record.key, partition=place)

    for what in (
        lambda: topic.append(None, key=record.key, partition=place),
        lambda: topic.append_many([(None, record.key)], partition=place),
        lambda: topic.append_columns([None], keys=[record.key], partition=place),
        lambda: topic.append_batches(bytes(61), place),
        lambda: topic.writer("w", place),
        lambda: topic.delete_records(1, place),
        sent,
        committed,
    ):
        with pytest.raises(InvalidTopicException, match="internal topic"):
            what()
    assert store.committed("billing")[TopicPartition("one", 0)].offset == 1
    assert len(records(store, name, place)) == 1


# --- all or nothing ------------------------------------------------------------------------------------


def with_one(bad: tuple[Any, ...]) -> list[Any]:
    return [*((b"v", b"k%d" % number, (), NOW_MS) for number in range(12)), bad]


@pytest.mark.parametrize(
    ("bad", "config", "error", "told"),
    [
        (
            (b"v", b"k1", (), NOW_MS + 3_600_001),
            {},
            RecordValidationException,
            rf"invalid timestamp .*record \d+ .*timestamp {NOW_MS + 3_600_001}, expected at most {NOW_MS + 3_600_000} "
            r"\(now \+ message\.timestamp\.after\.max\.ms=3600000\)",
        ),
        (
            (b"v", b"k1", (), NOW_MS - 5_000),
            {"message.timestamp.before.max.ms": "1000"},
            RecordValidationException,
            rf"timestamp {NOW_MS - 5_000}, expected at least {NOW_MS - 1000} \(now - message\.timestamp\.before",
        ),
        ((b"v" * 2000, b"k1", (), NOW_MS), {"max.message.bytes": "1000"}, RecordTooLargeException, "max.message.bytes"),
        ((b"v", None, (), NOW_MS), {"cleanup.policy": "compact"}, RecordValidationException, "without key"),
        (("v", b"k1", (), NOW_MS), {}, IllegalArgumentException, "str"),
    ],
)
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("place", [0, 6, 12])
def test_nothing_is_appended_to_any_partition(
    store: Store, bad: tuple[Any, ...], config: dict[str, str], error: type, told: str, kind: Any, place: int
) -> None:
    topic = store.create_topic("three", 3, config=config)
    rows = with_one(bad)
    rows.insert(place, rows.pop())
    with pytest.raises(error, match=told) as caught:
        topic.append_many(kind(rows))
    assert contents(store, "three") == {}
    assert caught.value.appended_partitions == {}
    if "timestamp" in told:
        assert type(caught.value.invalid_exception) is InvalidTimestampException
        [found] = caught.value.record_errors
        assert f"Timestamp {bad[3]} of message" in found.message
        assert f"three-{partition_for_key(b'k1', 3)}" in str(caught.value)
    rows.remove(bad)
    assert sum(map(len, topic.append_many(kind(rows)).values())) == 12


def test_no_column_is_appended_to_any_partition(store: Store) -> None:
    keys = [b"k%d" % number for number in range(12)]
    times = [NOW_MS] * 11 + [NOW_MS + 10_000_000]
    with pytest.raises(RecordValidationException, match=f"timestamp {times[-1]}"):
        store.topic("four").append_columns([b"v"] * 12, keys=keys, timestamps=times)
    assert contents(store, "four") == {}


def test_the_record_that_is_refused_has_its_number(store: Store) -> None:
    log = store.topic("one").partition(0)
    store.alter_topic("one", {"max.message.bytes": "1000"})
    rows = [(b"v" * 300, None, (), NOW_MS) for _ in range(20)]
    rows[13] = (b"v", None, (), NOW_MS + 10_000_000)
    with pytest.raises(RecordValidationException, match=r"^record 13: .*invalid timestamp"):
        log.append_many(rows)
    with pytest.raises(RecordValidationException, match=r"the first refused record is record 1 of its batch"):
        log.append_many([rows[0], rows[13]])
    assert contents(store, "one") == {}
