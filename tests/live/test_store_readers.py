"""Readers of a store next to everything else that a store does, and interrupted everywhere: nothing lost, doubled or
out of order.  KAFKALOG_LONG=1 takes longer storms and all places."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.config import CleanerConfig
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.segment.loss import Lost
from kafkalog.errors import (
    IllegalStateException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from kafkalog.reader import StoreReader
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, sampled_of
from tests.live.oracle import FAST, in_a_thread
from tests.sampling import LONG

LIMIT = None if LONG else 15
STORM_S = 60.0 if LONG else 4.0
PARTITIONS = 3
OURS = (
    "_face/partition_", "_face/store_", "reader.py", "transaction.py", "_face/chunk_reader.py", "_face/waiting.py",
    "engine/coordinator/", "engine/log/engine",
)  # fmt: skip
SMALL = {"internal.segment.bytes": "3000", "segment.index.bytes": "480", "index.interval.bytes": "200"}
Found = list[tuple[int, int]]


# --- interrupts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path_factory.mktemp("data"), files=FAST, config=SMALL, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        for partition, first in itertools.product(range(2), range(0, 12, 3)):
            topic.append_many([b"%d" % n for n in range(first, first + 3)], partition=partition)
        yield store


ALL = [(partition, offset) for partition in range(2) for offset in range(12)]


def loop(reader: StoreReader, found: Found) -> None:
    for record in reader:
        found.append((record.partition, record.offset))


def follow(reader: StoreReader, found: Found) -> None:
    for record in reader.follow(timeout_ms=1):
        found.append((record.partition, record.offset))


def poll(reader: StoreReader, found: Found) -> None:
    while records := reader.poll(5, timeout_ms=1):
        found.extend([(record.partition, record.offset) for record in records])


def batches(reader: StoreReader, found: Found) -> None:
    for batch in reader.batches(["partition", "offset"], batch_rows=2):
        found.extend(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))


def stream(reader: StoreReader, found: Found) -> None:
    for batch in reader.arrow_reader(["partition", "offset"], batch_rows=2):
        found.extend(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))


def table(reader: StoreReader, found: Found) -> None:
    rows = reader.read_arrow(["partition", "offset"])
    found.extend(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def broken_loops(reader: StoreReader, found: Found) -> None:
    for _ in range(24):
        for record in reader:
            found.append((record.partition, record.offset))
            break


def pauses(reader: StoreReader, found: Found) -> None:
    for record in reader:
        found.append((record.partition, record.offset))
        reader.pause("t-0")
        reader.resume("t-0")
        reader.seek("t-1", reader.position("t-1"))


# CPython checks for signals at the places of kind "call" alone; a call that returns a list needs one.
OPERATIONS = [
    (loop, CALLS), (loop, LINES), (follow, CALLS), (follow, LINES), (batches, CALLS), (batches, LINES),
    (broken_loops, CALLS), (broken_loops, LINES), (pauses, CALLS), (pauses, LINES), (poll, CALLS),
    (stream, CALLS), (table, CALLS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "kind"), OPERATIONS, ids=[f"{each.__name__}-{kind}" for each, kind in OPERATIONS]
)
@pytest.mark.parametrize("chunk_bytes", [None, 150])
def test_an_interrupt_anywhere(
    store: kafkalog.Store, operation: Callable[[StoreReader, Found], None], kind: str, chunk_bytes: int | None
) -> None:
    def new() -> StoreReader:
        return store.reader(topics=["t"], chunk_bytes=chunk_bytes)

    for _ in range(2):  # lazy initialization is not a place of the operation
        seen: Found = []
        reader = new()
        with Tracer(kind) as tracer:
            operation(reader, seen)
        assert sorted(seen) == ALL
    places = tracer.places
    for number in sampled_of(places, OURS, LIMIT):
        found: Found = []
        reader = new()
        with contextlib.suppress(Interrupted), Tracer(kind, number) as tracer:
            operation(reader, found)
        where = tracer.places[-1]

        def go_on(reader: StoreReader = reader, found: Found = found) -> None:
            for partition in range(2):
                behind = [offset for each, offset in found if each == partition]
                assert reader.position(TopicPartition("t", partition)) == (behind[-1] + 1 if behind else 0)
            reader.resume()
            loop(reader, found)
            assert set(reader.lag().values()) == {0}
            for partition in range(2):
                assert [offset for each, offset in found if each == partition] == list(range(12))

        try:
            in_a_thread(go_on)
        except BaseException as error:
            error.add_note(f"interrupted at {where}, number {number}")
            raise
        reader.close()


@pytest.mark.parametrize("kind", [CALLS, LINES])
def test_an_interrupt_of_a_rewind(store: kafkalog.Store, kind: str) -> None:
    """Each partition is where it was, or where it began; the next rewind brings all back."""
    with store.reader("rewinding", topics=["t"]) as reader:
        for _ in range(2):
            reader.poll(24)
            with Tracer(kind) as tracer:
                reader.rewind()
        places = tracer.places
        for number in sampled_of(places, OURS, LIMIT):
            reader.poll(24)
            with contextlib.suppress(Interrupted), Tracer(kind, number):
                reader.rewind()

            def go_on() -> None:
                assert set(reader.positions().values()) <= {0, 12}
                reader.rewind()
                found: Found = []
                loop(reader, found)
                assert sorted(found) == ALL
                reader.rewind()

            try:
                in_a_thread(go_on)
            except BaseException as error:
                error.add_note(f"interrupted at {places[number]}")
                raise


@pytest.mark.parametrize("kind", [CALLS, LINES])
def test_an_interrupt_of_a_commit(store: kafkalog.Store, kind: str) -> None:
    numbers = itertools.count()

    def work(name: str, done: list[int]) -> None:
        reader = store.reader(name, partitions=["t-0"])
        for record in reader:
            if record.offset in (2, 3):
                done.append(-record.offset - 1)  # under way
                reader.commit()
                done.append(record.offset + 1)

    for _ in range(2):
        with Tracer(kind) as tracer:
            work(f"count-{kind}{next(numbers)}", [])
    places = tracer.places
    for number in sampled_of(places, OURS, LIMIT):
        name, done = f"{kind}{next(numbers)}", [0]
        with contextlib.suppress(Interrupted), Tracer(kind, number):
            work(name, done)

        def judge(name: str = name, done: list[int] = done) -> None:
            row = store.committed(name).get(TopicPartition("t", 0))
            committed = 0 if row is None else row.offset
            assert committed == done[-1] or (done[-1] < 0 and committed in (done[-2], -done[-1]))
            reader = store.reader(name, partitions=["t-0"])
            assert [record.offset for record in reader] == list(range(committed, 12))
            reader.commit()
            assert store.committed(name)[TopicPartition("t", 0)].offset == 12

        try:
            in_a_thread(judge)
        except BaseException as error:
            error.add_note(f"interrupted at {places[number]}")
            raise


# --- storms --------------------------------------------------------------------------------------------


class Storm:
    """Writers of numbered values, followers of every kind, and what changes logs under them."""

    def __init__(self, dirs: list[Path]) -> None:
        self.store = kafkalog.open([str(each) for each in dirs], files=FAST, config=SMALL)
        self.topic = self.store.create_topic("t", PARTITIONS)
        self.dirs = [str(each) for each in dirs]
        self.written = [0] * PARTITIONS
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.found: dict[str, list[list[int]]] = {}
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *given: object) -> None:
        def run() -> None:
            try:
                work(*given)
            except BaseException as error:
                self.errors.append(error)
                self.is_over.set()

        self.threads.append(threading.Thread(target=run, name=f"{work.__name__}{given}"))
        self.threads[-1].start()

    def write(self, partition: int) -> None:
        for number in itertools.count():
            if self.is_over.is_set():
                break
            first = self.written[partition]
            count = 1 + number % 5
            self.topic.append_many([b"%d" % n for n in range(first, first + count)], partition=partition)
            self.written[partition] += count
            if number % 20 == 0:
                time.sleep(0.003)

    def is_complete(self, found: list[list[int]]) -> bool:
        return self.is_over.is_set() and [len(each) for each in found] == self.written

    def kept(self, name: str) -> list[list[int]]:
        return self.found.setdefault(name, [[] for _ in range(PARTITIONS)])

    def follow(self, name: str) -> None:
        """Restarts at its cursor, now and then: records after the last commit are dropped."""
        found = self.kept(name)
        while not self.is_complete(found):
            with self.store.reader(name, topics=["t"]) as reader:
                since: Found = []
                for number, record in enumerate(reader.follow(timeout_ms=200)):
                    since.append((record.partition, int(record.value or b"")))
                    if number % 7 == 0:
                        reader.commit()
                        for partition, value in since:
                            found[partition].append(value)
                        since = []
                    if number == 500:
                        break
                else:
                    reader.commit()
                    for partition, value in since:
                        found[partition].append(value)

    def poll(self, name: str) -> None:
        """Every second list is given up, and comes again."""
        found = self.kept(name)
        with self.store.reader(name, topics=["t"]) as reader:
            while not self.is_complete(found):
                reader.poll(7)
                reader.rewind()
                for record in reader.poll(13, timeout_ms=50):
                    found[record.partition].append(int(record.value or b""))
                reader.commit()

    def arrow(self, name: str) -> None:
        found = self.kept(name)
        with self.store.reader(name, topics=["t"], chunk_bytes=700) as reader:
            while not self.is_complete(found):
                for batch in reader.batches(["partition", "value"], timeout_ms=50):
                    found[batch["partition"][0].as_py()] += [int(value) for value in batch["value"].to_pylist()]
                    reader.commit()

    def table(self, name: str) -> None:
        found = self.kept(name)
        with self.store.reader(name, topics=["t"], on_damage="skip") as reader:
            while not self.is_complete(found):
                rows = reader.read_arrow(["partition", "value"], values="text")
                for partition, value in zip(rows["partition"].to_pylist(), rows["value"].to_pylist(), strict=True):
                    found[partition].append(int(value))
                reader.commit()

    def task(self, name: str) -> None:
        found = self.kept(name)

        async def follow(reader: StoreReader) -> None:
            async for record in reader.follow(timeout_ms=50):
                found[record.partition].append(int(record.value or b""))

        async def main() -> None:
            with self.store.reader(name, topics=["t"]) as reader:
                while not self.is_complete(found):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(follow(reader), 0.02)
                    reader.commit()

        asyncio.run(main())

    def look(self, name: str) -> None:
        """As another process does."""
        found = self.kept(name)
        with (
            kafkalog.open(self.dirs, read_only=True) as view,
            view.reader(topics=["t"], isolation="read_committed") as reader,
        ):
            while not self.is_complete(found):
                for record in reader.follow(timeout_ms=50):
                    found[record.partition].append(int(record.value or b""))

    def change(self) -> None:
        """Rolls, deletes what all cursors are past, makes and deletes topics that are read."""
        for number in itertools.count():
            if self.is_over.is_set():
                break
            partition = number % PARTITIONS
            place = TopicPartition("t", partition)
            engine = self.topic.appends(partition).engine
            engine.roll()
            past = [self.store.committed(name).get(place) for name in ("follow", "poll", "arrow", "table", "task")]
            low = min([0 if each is None else each.offset for each in past])
            low = min(low, len(self.kept("look")[partition]))
            if low > engine.log_start_offset:
                engine.delete_records(low)
                engine.delete_old_segments()
            with contextlib.suppress(TopicExistsException):
                self.store.create_topic(f"x{number % 3}", 2).append(b"x")
            if number % 3 == 2:
                self.store.delete_topic(f"x{number % 2}")
            time.sleep(0.01)

    def read_others(self) -> None:
        while not self.is_over.is_set():
            try:
                with self.store.reader("others", topics=["x0", "x1"], start="latest") as reader:
                    list(reader.follow(timeout_ms=20))
                    reader.commit()
            except UnknownTopicOrPartitionException:
                time.sleep(0.005)

    def end(self) -> None:
        self.is_over.wait(STORM_S)
        self.is_over.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), thread
        if self.errors:
            raise self.errors[0]
        for name, found in self.found.items():
            for partition, numbers in enumerate(found):
                assert numbers == list(range(self.written[partition])), (name, partition)
        assert min(self.written) > 50


def test_a_storm(base: Path) -> None:
    storm = Storm([base / "a", base / "b"])
    with storm.store:
        for name in ("follow", "poll", "arrow", "table", "task", "look"):
            storm.kept(name)
            storm.start(getattr(storm, name), name)
        for partition in range(PARTITIONS):
            storm.start(storm.write, partition)
        storm.start(storm.change)
        storm.start(storm.read_others)
        storm.end()


def test_compaction_under_readers(base: Path) -> None:
    """A reader sees at least the last value of each key, and offsets only grow."""
    config = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    settings = kafkalog.ManagerSettings(cleaner=CleanerConfig(backoff_ms=1, dedupe_buffer_size=4 << 20))
    with kafkalog.open(base, files=FAST, config=config, settings=settings) as store:
        topic = store.create_topic("t", 1)
        cleaner = store.manager.cleaner
        assert cleaner is not None
        last: dict[bytes, int] = {}
        is_over = threading.Event()

        def work() -> None:
            for number in range(3000):
                key = b"k%d" % (number % 11)
                last[key] = topic.append(b"%d" % number, key=key).offset
                if number % 300 == 299:
                    topic.appends(0).engine.roll()
                    assert cleaner.await_cleaned(TopicPartition("t", 0), number - 20)
            is_over.set()

        writer = threading.Thread(target=work)
        writer.start()
        reader = store.reader(topics=["t"], chunk_bytes=500)
        seen: dict[bytes, int] = {}
        before = -1
        while not is_over.is_set() or reader.lag()[TopicPartition("t", 0)]:
            for record in reader.follow(timeout_ms=20):
                assert record.offset > before
                before = record.offset
                seen[record.key or b""] = record.offset
        writer.join()
        assert seen == last


def test_closes_under_waiting_readers(base: Path) -> None:
    for number in range(10 if LONG else 4):
        store = kafkalog.open(base / str(number), files=FAST)
        topic = store.create_topic("t", 4)
        ends: list[BaseException] = []

        def work(store: kafkalog.Store = store, ends: list[BaseException] = ends) -> None:
            try:
                with store.reader("c", topics=["t"]) as reader:
                    for _ in reader.follow():
                        reader.commit()
            except BaseException as raised:
                ends.append(raised)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for value in range(20):
            topic.append(b"%d" % value, partition=value % 4)
        store.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert len(ends) == 4
        assert all(isinstance(error, IllegalStateException) for error in ends), ends


FILTERS: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "all": ({}, lambda number: True),
    "key": ({"key": [b"k1", b"k2"]}, lambda number: number % 4 in (1, 2)),
    "key_prefix": ({"key_prefix": b"k3"}, lambda number: number % 4 == 3),
    "where": ({"where": "offset >= 42 and value is not null"}, lambda number: number >= 42),
    "grep": ({"grep": "[02468]$"}, lambda number: number % 2 == 0),
    "several": (
        {"key": b"k0", "grep": "^value", "where": "offset < 500", "start_time": 0},
        lambda number: number % 4 == 0 and number < 500,
    ),
}


@pytest.mark.parametrize("filters", FILTERS)
def test_damage_under_readers_that_follow(base: Path, filters: str) -> None:
    """Each reader finds every readable record once, and reports the rest, in the writer's process or in another one;
    filters leave out records, but no report."""
    asked, is_wanted = FILTERS[filters]
    with kafkalog.open(base, files=FAST, config=SMALL, maintenance=False) as store:
        topic = store.create_topic("t", 1)
        hurt: list[int] = []

        def damage(offset: int) -> None:
            folder = base / "t-0"
            path = max(each for each in sorted(folder.glob("*.log")) if int(each.stem) <= offset)
            data = path.read_bytes()
            at = data.index(b"value %05d" % offset)
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"?")
            hurt.append(offset)

        for number in range(100):
            topic.append(b"value %05d" % number, key=b"k%d" % (number % 4))
        topic.flush()
        for offset in (0, 41, 42, 80):
            damage(offset)
        is_over = threading.Event()
        found: dict[str, list[int]] = {"own": [], "view": []}
        lost: dict[str, list[int]] = {"own": [], "view": []}

        def follow(name: str) -> None:
            where = store if name == "own" else kafkalog.open(base, read_only=True)

            def tell(each: Lost) -> None:
                lost[name].extend(range(each.first_offset, each.last_offset + 1))

            with where.reader(topics=["t"], on_damage=tell, **asked) as reader:
                while not is_over.is_set() or reader.lag()[TopicPartition("t", 0)]:
                    found[name] += [record.offset for record in reader.follow(timeout_ms=20)]
            if name == "view":
                where.close()

        errors: list[BaseException] = []

        def run(name: str) -> None:
            try:
                follow(name)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(name,)) for name in found]
        for thread in threads:
            thread.start()
        for number in range(100, 600):
            topic.append(b"value %05d" % number, key=b"k%d" % (number % 4))
            if number % 50 == 0:
                time.sleep(0.01)
        is_over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not errors, errors
        for name in found:
            skipped = [offset for offset in hurt if filters != "where" or offset >= 42]
            assert lost[name] == skipped or lost[name] == hurt, name
            assert found[name] == [offset for offset in range(600) if offset not in hurt and is_wanted(offset)], name
        # One that polls once, and one that reads tables.
        wanted = [offset for offset in range(600) if offset not in hurt and is_wanted(offset)]
        assert [record.offset for record in topic.records(on_damage="skip", **asked)] == wanted
        assert topic.read_arrow(on_damage="skip", columns=["offset"], **asked)["offset"].to_pylist() == wanted
