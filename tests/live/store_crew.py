"""The threads of the store's soak (`tests.live.store_soak`): writers, followers, transactional workers, and threads
that move, add, create and delete.

Each is a `Worker` with its own thread.  It does one step after the other and writes each result to its journal.
Exceptions are raised into most workers at any moment of a step.  A step whose result is missing from the journal may
have happened or not.  A follower is created again, or put back to its last position.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import random
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kafkalog._face import store_batches  # noqa: F401  # else it is imported where somebody is interrupted
from kafkalog.engine.format.names import partition_of
from kafkalog.errors import ProducerFencedException, UnknownTopicOrPartitionException, UnstableOffsetCommitException
from kafkalog.producer import Producer, RecordFuture
from kafkalog.reader import StoreReader
from kafkalog.store import Store
from tests.live.store_story import (
    COMPACTED,
    NAMED,
    PREFIX,
    TXN_SHIFT,
    Journal,
    Place,
    code_of,
    key_of,
    read_code,
    value_of,
)

INPUT, OUTPUTS = "in", ("out", "audit")
WRITTEN = ("plain", "timed", INPUT)  # by writers, with COMPACTED and the partitions of NAMED
TOPICS = (*WRITTEN, *OUTPUTS, COMPACTED, "named")
PAUSE_S = 0.1  # at most, between the steps of a writer


class Injected(KeyboardInterrupt):
    """Raised into a worker."""


class GivenUpError(Exception):
    """A worker that thinks better of a transaction."""


class Flag:
    """An Event that nobody waits for: it has no lock that an interrupt could leave held."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True


class Worker:
    """A thread that repeats `step` until it is stopped."""

    may_be_interrupted = True

    def __init__(self, store: Store, name: str, folder: Path, process: int, seed: int) -> None:
        self.store, self.name, self.process = store, name, process
        self.rng = random.Random(f"{seed} {process} {name}")
        self.journal = Journal(folder / f"{process:04d}.{name}")
        self.stopping = Flag()
        self.inside = False
        self.unhurt = threading.Lock()  # held while it starts a thread: CPython may raise into that one, which hangs
        self.steps = self.interrupts = 0
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def step(self) -> object:
        raise NotImplementedError

    def finish(self) -> object:
        """When it was stopped, and nobody interrupts."""

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._work()
            except Injected:
                pass
        self.inside = False
        while True:
            try:
                self.finish()
                self.journal.write("counted", f"steps of {self.name.rstrip('0123456789')}", self.steps)
                return
            except Injected:  # one that came late
                pass

    def _work(self) -> None:
        while not self.stopping.is_set():
            try:
                self.inside = True
                self.step()
                self.steps += 1
            except Injected:
                self.interrupts += 1
            finally:
                self.inside = False

    def interrupt(self) -> bool:
        if not (self.inside and self.may_be_interrupted and self.thread.is_alive()):
            return False
        if not self.unhurt.acquire(blocking=False):
            return False
        try:
            ident = ctypes.c_ulong(self.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Injected))
            return True
        finally:
            self.unhurt.release()


# --- writers ---------------------------------------------------------------------------------------------


class Writer(Worker):
    """A sender; `slot` says how it sends."""

    def __init__(self, store: Store, slot: int, folder: Path, process: int, seed: int) -> None:
        super().__init__(store, f"writer{slot}", folder, process, seed)
        self.slot = slot
        self.numbers = itertools.count(1)
        self.sent: deque[tuple[RecordFuture, int, Producer]] = deque()
        self.producer: Producer | None = None
        self.closed: list[Producer] = []

    def step(self) -> None:
        time.sleep(self.rng.random() * PAUSE_S)
        how = {1: self.one, 2: self.many, 3: self.many_at, 4: self.columns, 5: self.produce, 6: self.produce}
        how.get(self.slot, self.named)()

    def codes(self, count: int) -> list[int]:
        return [code_of(self.process, self.slot, next(self.numbers)) for _ in range(count)]

    def one(self) -> None:
        for code in self.codes(self.rng.randint(1, 5)):
            where = self.store.topic(self.rng.choice((*WRITTEN, COMPACTED))).append(value_of(code), key=key_of(code))
            self.journal.write("acked", place_of(where), where.offset, 1, code, None)

    def many(self) -> None:
        codes = self.codes(self.rng.randint(1, 40))
        topic = self.store.topic(self.rng.choice(WRITTEN))
        self.acked(topic.name, topic.append_many([(value_of(each), key_of(each)) for each in codes]), codes)

    def many_at(self) -> None:
        """Without keys; some to a fixed partition."""
        codes = self.codes(self.rng.randint(1, 40))
        topic = self.store.topic(self.rng.choice(WRITTEN))
        partition = self.rng.choice((None, self.rng.randrange(topic.partitions)))
        rows = (value_of(each) for each in codes)
        self.acked(topic.name, topic.append_many(rows, partition=partition), codes)

    def columns(self) -> None:
        codes = self.codes(self.rng.randint(1, 60))
        topic = self.store.topic(self.rng.choice(WRITTEN))
        keys = [key_of(each) for each in codes]
        self.acked(topic.name, topic.append_columns([value_of(each) for each in codes], keys=keys), codes)

    def acked(self, topic: str, offsets: dict[int, range], codes: list[int]) -> None:
        assert sum(map(len, offsets.values())) == len(codes), (topic, offsets, codes)
        for number, given in offsets.items():
            high = codes[-1] if len(offsets) > 1 else None
            self.journal.write("acked", f"{topic}-{number}", given.start, len(given), codes[0], high)

    def produce(self) -> None:
        producer = self.producer
        if producer is None or self.rng.random() < 0.01:
            self.producer = None
            if producer is not None:
                producer.close()
                self.check_answered(producer)
            options: dict[str, Any] = {
                "linger_ms": self.rng.choice((0, 5, 30)),
                "batch_bytes": self.rng.choice((500, 4000, 16384)),
                "buffer_bytes": self.rng.choice((20_000, 1 << 20)),
                "compression": self.rng.choice((None, None, "lz4", "zstd")),
                "name": "producer" if self.slot == 6 else None,
            }
            with self.unhurt:
                self.producer = producer = self.store.producer(**options)
            self.closed = [each for each in self.closed if not each.closed] + [producer]
        topics = WRITTEN if self.slot == 6 else (*WRITTEN, COMPACTED)
        for code in self.codes(self.rng.randint(1, 40)):
            future = producer.send(self.rng.choice(topics), value_of(code), key=key_of(code))
            self.sent.append((future, code, producer))
        if self.rng.random() < 0.2:
            assert producer.flush()
            self.check_answered(producer)
        self.take_answers()

    def check_answered(self, producer: Producer) -> None:
        assert all(future.done() for future, _, sent_by in self.sent if sent_by is producer), self.sent

    def take_answers(self) -> None:
        while self.sent and self.sent[0][0].done():
            where = self.sent[0][0].result()
            code = self.sent[0][1]
            self.sent.popleft()  # the entry between is an acknowledgment that was not written down
            self.journal.write("acked", place_of(where), where.offset, 1, code, None)

    def named(self) -> None:
        """A number is sent until it is known to be there, sometimes once too often."""
        place = partition_of(NAMED[self.slot])
        writer = self.store.topic(place.topic).writer(f"name{self.slot}", place.partition)
        expected = writer.next_sequence
        first = max(0, expected - self.rng.choice((0, 0, 3)))
        count = self.rng.randint(1, 30)
        rows = [
            (value_of(code), key_of(code)) for code in (code_of(0, self.slot, first + each) for each in range(count))
        ]
        if count == 1 and self.rng.random() < 0.5:
            value, key = rows[0]
            found = writer.append(value, key=key, sequence=first)
            given = range(0) if found is None else range(found, found + 1)
        else:
            given = writer.append_many(rows, sequence=first)
        if len(given):
            assert len(given) == first + count - expected, (given, first, count, expected)
            self.journal.write("acked", str(place), given.start, len(given), code_of(0, self.slot, expected), None)

    def finish(self) -> None:
        for each in self.closed:
            each.close()
        self.take_answers()
        assert not self.sent


# --- followers -------------------------------------------------------------------------------------------


class Follower(Worker):
    """Reads all topics; `kind` says how."""

    def __init__(
        self, store: Store, name: str, kind: str, folder: Path, process: int, seed: int, positions: dict[Place, int]
    ) -> None:
        super().__init__(store, name, folder, process, seed)
        self.kind = kind
        self.is_committed = kind in ("committed", "cursor", "async batches")
        self.has_cursor = kind in ("cursor", "async batches", "far")
        self.may_be_interrupted = not kind.startswith("async")
        self.position = dict(positions)
        self.reader: StoreReader | None = None
        self.is_in_step = False
        self.draining = Flag()
        self.is_drained = False
        self.deadline_s = float("inf")
        self.journal.write("follower", name, self.is_committed, kind == "prefix")

    def make(self) -> StoreReader:
        """Creates the reader, which happens now and then."""
        reader = self.reader
        was_cut, self.is_in_step = self.is_in_step, True
        if reader is not None and not was_cut and self.rng.random() > 0.01:
            return reader
        if reader is not None:
            self.reader = None
            reader.close()
        start: dict[Any, int] = {} if self.has_cursor else {**self.position}
        reader = self.store.reader(
            self.name if self.has_cursor else None,
            topics=TOPICS,
            start_offsets=start or None,
            isolation="read_committed" if self.is_committed else "read_uncommitted",
            key_prefix=PREFIX if self.kind == "prefix" else None,
            chunk_bytes=self.rng.choice((None, 4000, 100_000)),
        )
        for partition, at in reader.positions().items():
            place = str(partition)
            self.jump(self.position.get(place, 0), at, self.log_start(reader, place), place)  # and commits that
            self.journal.write("again", self.name, place, at)
            self.position[place] = at
        self.reader = reader
        return reader

    def step(self) -> None:
        reader = self.make()
        getattr(self, "_" + self.kind.replace(" ", "_"))(reader)
        if self.has_cursor and self.rng.random() < 0.5:
            self.commit(reader)
        if self.draining.is_set() and not any(reader.lag().values()):
            if self.has_cursor:
                self.commit(reader)
            self.is_drained = True
            self.stopping.set()
        assert time.monotonic() < self.deadline_s, f"{self.name} does not come to an end: {reader.lag()}"
        self.is_in_step = False

    def commit(self, reader: StoreReader) -> None:
        done = reader.commit()
        self.journal.write("cursor", self.name, {str(each): offset for each, offset in done.items()})

    def finish(self) -> None:
        if self.reader is not None:
            self.reader.close()

    # --- how they read -----------------------------------------------------------------------------------

    def _plain(self, reader: StoreReader) -> None:
        self.saw(reader, map(row_of, reader.poll(self.rng.choice((1, 100, 500)), timeout_ms=50)))

    _far = _prefix = _plain

    def _committed(self, reader: StoreReader) -> None:
        for records in chunked(reader.follow(timeout_ms=50), self.rng.randint(1, 300)):
            self.saw(reader, map(row_of, records))
            if self.stopping.is_set() or self.draining.is_set():
                return

    def _cursor(self, reader: StoreReader) -> None:
        self.saw(reader, map(row_of, itertools.islice(reader.records(), self.rng.randint(1, 500))))
        time.sleep(0.02)

    def _arrow(self, reader: StoreReader) -> None:
        for batch in reader.batches(batch_rows=self.rng.choice((7, 1000)), timeout_ms=50):
            self.saw(reader, rows_of(batch))
            if self.stopping.is_set() or self.draining.is_set() or self.rng.random() < 0.05:
                return

    def _async(self, reader: StoreReader) -> None:
        asyncio.run(self._until_cancelled(self._read_async(reader)))

    def _async_batches(self, reader: StoreReader) -> None:
        asyncio.run(self._until_cancelled(self._batches_async(reader)))

    async def _until_cancelled(self, work: Any) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(work, self.rng.random() * 0.5)

    async def _read_async(self, reader: StoreReader) -> None:
        rows: list[Any] = []
        try:
            async for record in reader.follow(timeout_ms=50):
                rows.append(row_of(record))
        finally:
            self.saw(reader, rows)

    async def _batches_async(self, reader: StoreReader) -> None:
        async for batch in reader.batches(timeout_ms=50):
            self.saw(reader, rows_of(batch))

    # --- what they write down ----------------------------------------------------------------------------

    def saw(self, reader: StoreReader, rows: Iterable[tuple[Place, int, bytes | None, bytes | None]]) -> None:
        found: dict[Place, tuple[array[int], array[int]]] = {}
        for place, offset, key, value in rows:
            offsets, codes = found.setdefault(place, (array("q"), array("q")))
            offsets.append(offset)
            codes.append(read_code(key, value))
        for place, (offsets, codes) in found.items():
            at = self.position.get(place, 0)
            if offsets[0] != at or offsets[-1] - at + 1 != len(offsets):  # retention comes between any two
                start = self.log_start(reader, place)
                for offset in offsets:
                    self.jump(at, offset, start, place)
                    at = offset + 1
            self.journal.write("saw", self.name, place, offsets.tobytes(), codes.tobytes())
            self.position[place] = offsets[-1] + 1

    def jump(self, at: int, offset: int, start: int, place: Place) -> None:
        """It goes on at `offset` where `at` comes: what lies below the log's start is gone."""
        if at < offset and at < start:
            self.journal.write("jumped", self.name, place, at, min(offset, start))

    def log_start(self, reader: StoreReader, place: Place) -> int:
        return reader._turns.readers[partition_of(place)].source.log_start_offset


def chunked(records: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while found := list(itertools.islice(records, size)):
        yield found


def row_of(record: Any) -> tuple[Place, int, bytes | None, bytes | None]:
    return f"{record.topic}-{record.partition}", record.offset, record.key, record.value


def rows_of(batch: Any) -> Iterator[tuple[Place, int, bytes | None, bytes | None]]:
    columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "key", "value"))
    for topic, partition, offset, key, value in zip(*columns, strict=True):
        yield f"{topic}-{partition}", offset, key, value


def place_of(where: Any) -> Place:
    return f"{where.topic}-{where.partition}"


# --- transactions ----------------------------------------------------------------------------------------


class Transactor(Worker):
    """Reads `in`, transforms, and writes to OUTPUTS, each record exactly once; some transactions are others."""

    def __init__(self, store: Store, slot: int, folder: Path, process: int, seed: int) -> None:
        super().__init__(store, f"worker{slot}", folder, process, seed)
        self.slot = slot
        self.transactions = itertools.count(1)
        self.reader: StoreReader | None = None
        self.position: dict[Place, int] = {}

    def step(self) -> None:
        time.sleep(self.rng.random() * PAUSE_S)
        with contextlib.suppress(GivenUpError):
            (self.transform if self.rng.random() < 0.8 else self.write)()

    def finish(self) -> None:
        if self.reader is not None:
            self.reader.close()

    def begun(self, inputs: list[tuple[Place, int]]) -> tuple[int, Iterator[int]]:
        """A transaction's number, and the codes of its records."""
        first = code_of(self.process, self.slot, next(self.transactions) << TXN_SHIFT)
        self.journal.write("begun", first >> TXN_SHIFT, inputs)
        return first >> TXN_SHIFT, itertools.count(first + 1)

    def transform(self) -> None:
        reader, self.reader = self.reader, None  # after a transaction without a commit, the reader is not at the cursor
        if reader is None or self.rng.random() < 0.02:
            if reader is not None:
                reader.close()  # a cursor has one reader at a time
            try:
                reader = self.store.reader(self.name, topics=[INPUT], isolation="read_committed")
            except UnstableOffsetCommitException:
                return  # an interrupted one, which the background ends
            self.position = {str(each): at for each, at in reader.positions().items()}
        found = reader.poll(self.rng.randint(1, 200), timeout_ms=50)
        if not found:
            self.reader = reader
            return
        inputs = [(f"{record.topic}-{record.partition}", record.offset) for record in found]
        self.look_for_jumps(inputs)
        txn, codes = self.begun(inputs)
        kind = self.rng.random()
        timeout_ms = 50 if kind < 0.02 else 60_000
        with self.ended(txn), self.store.transaction(self.name, timeout_ms=timeout_ms) as transaction:
            for topic in OUTPUTS:
                rows = list(itertools.islice(codes, len(found)))
                if len(rows) < 5:
                    for code in rows:
                        where = transaction.append(topic, value_of(code), key=key_of(code))
                        self.journal.write("acked", place_of(where), where.offset, 1, code, None)
                else:
                    offsets = transaction.append_many(topic, [(value_of(code), key_of(code)) for code in rows])
                    for number, given in offsets.items():
                        self.journal.write("acked", f"{topic}-{number}", given.start, len(given), rows[0], rows[-1])
            transaction.commit_offsets(reader)
            if kind < 0.02:
                time.sleep(0.1)  # the check for overdue ones may come, or not
            elif kind < 0.10:
                raise GivenUpError
            elif kind < 0.14:
                self.fence()
            self.journal.write("txn", txn, "ending")
        self.reader = reader

    def look_for_jumps(self, inputs: list[tuple[Place, int]]) -> None:
        for place, offset in inputs:
            at = self.position.get(place, 0)
            log = self.store.manager.get_log(place)
            if offset > at and log is not None and log.log_start_offset > at:
                self.journal.write("jumped", self.name, place, at, log.log_start_offset)
            self.position[place] = offset + 1

    def write(self) -> None:
        """To what the others read, without a cursor."""
        txn, codes = self.begun([])
        with self.ended(txn), self.store.transaction(self.name) as transaction:
            for code in itertools.islice(codes, self.rng.randint(1, 20)):
                topic = self.rng.choice((*WRITTEN, COMPACTED))
                where = transaction.append(topic, value_of(code), key=key_of(code))
                self.journal.write("acked", place_of(where), where.offset, 1, code, None)
            if self.rng.random() < 0.4:
                raise GivenUpError
            self.journal.write("txn", txn, "ending")

    def fence(self) -> None:
        """A second holder of the same id."""
        txn, codes = self.begun([])
        with self.ended(txn), self.store.transaction(self.name) as twin:
            code = next(codes)
            where = twin.append("plain", value_of(code), key=key_of(code))
            self.journal.write("acked", place_of(where), where.offset, 1, code, None)
            self.journal.write("txn", txn, "ending")

    @contextlib.contextmanager
    def ended(self, txn: int) -> Iterator[None]:
        try:
            yield
        except GivenUpError:
            self.journal.write("txn", txn, "aborted")
            raise
        except ProducerFencedException:
            self.journal.write("txn", txn, "aborted")
            self.journal.write("counted", "transactions that were fenced", 1)
            raise GivenUpError from None
        self.journal.write("txn", txn, "committed")


# --- those who change topics -----------------------------------------------------------------------------


class Mover(Worker):
    """Partitions move between the directories."""

    def step(self) -> None:
        time.sleep(self.rng.random() * 0.3)
        log = self.rng.choice([each for each in self.store.manager.all_logs() if each.topic_partition.topic in TOPICS])
        where = self.rng.choice(self.store.manager.live_log_dirs)
        if where != log.parent_dir:
            self.store.manager.move(log.topic_partition, where)
            self.journal.write("counted", "moves", 1)


class Changer(Worker):
    """Adds partitions, changes settings, ends overdue transactions, and reads everything."""

    def step(self) -> None:
        time.sleep(self.rng.random() * 0.3)
        topic, most = self.rng.choice((("plain", 6), ("timed", 3), (INPUT, 4), ("out", 4)))
        count = self.store.topic(topic).partitions
        if count < most and self.rng.random() < 0.05:
            self.store.add_partitions(topic, count + 1)
            self.journal.write("counted", "partitions added", 1)
        if self.rng.random() < 0.3:
            self.store.alter_topic(topic, {"segment.ms": str(self.rng.randint(5_000, 30_000))})
        self.store._own().end_overdue()
        for cursor in self.store.cursors():
            assert all(each.lag is None or each.lag >= 0 for each in cursor.partitions), cursor
        self.store.transactions()
        assert set(TOPICS) <= set(self.store.topics())


class Maker(Worker):
    """Makes topics, writes to them, follows them, and deletes them."""

    def step(self) -> None:
        name = f"brief{self.rng.randrange(3)}"
        if name in self.store:
            self.store.delete_topic(name)  # an interrupt has left it
        topic = self.store.create_topic(name, self.rng.randint(1, 3))
        tag = self.rng.randbytes(6).hex().encode()
        rows = [b"%s %d" % (tag, number) for number in range(self.rng.randint(1, 200))]
        with self.store.reader(topics=[name], start="earliest") as reader:
            topic.append_many(rows)
            found: list[bytes | None] = []
            while more := reader.poll(timeout_ms=0 if len(found) >= len(rows) else 5000):
                found += [record.value for record in more]
            assert sorted(rows) == sorted(each or b"" for each in found), (rows, found)
            self.store.delete_topic(name)
            with contextlib.suppress(UnknownTopicOrPartitionException):
                assert not reader.poll(), "read from a topic that was deleted"
        self.journal.write("counted", "topics made and deleted", 1)
        time.sleep(self.rng.random() * 0.5)


def all_workers(
    store: Store, folder: Path, process: int, seed: int, positions: dict[str, dict[Place, int]]
) -> tuple[list[Worker], list[Follower]]:
    """The workers that change something, and the followers."""
    workers: list[Worker] = [Writer(store, slot, folder, process, seed) for slot in range(1, 9)]
    workers += [Transactor(store, slot, folder, process, seed) for slot in (9, 10)]
    workers += [kind(store, kind.__name__, folder, process, seed) for kind in (Mover, Changer, Maker)]
    kinds = ("plain", "committed", "cursor", "arrow", "async", "async batches", "prefix")
    followers = []
    for kind in kinds:
        name = kind.replace(" ", "-")
        followers.append(Follower(store, name, kind, folder, process, seed, positions.get(name, {})))
    return workers, followers


def interrupt(workers: list[Worker], rng: random.Random, stop: Callable[[], bool]) -> int:
    """Raises into one of them after the other."""
    done = 0
    while not stop():
        time.sleep(rng.random() * 0.04)
        done += rng.choice(workers).interrupt()
    return done
