"""A producer among threads, interrupts, signal handlers, finalizers and forks.

An acknowledged record exists once, in order.  An unacknowledged record exists once or not at all.  No call
waits forever.
"""

from __future__ import annotations

import collections
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.record_future import RecordFuture
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException
from kafkalog.store import Store
from tests.live.crew import HANG_SECONDS, SECONDS
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, at_each_place
from tests.live.oracle import FAST, in_a_thread
from tests.live.test_forks import files_of, in_a_child
from tests.sampling import LONG

Count = Callable[[str, int], None]
LIMIT = None if LONG else 15
PARTITIONS = 3
ROLLING = {"internal.segment.bytes": "200000", "segment.index.bytes": "4000", "index.interval.bytes": "1000"}
OURS = ("producer.py", "_face/record_future.py", "topic.py", "store.py", "_face/store_home.py")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def open_store(place: Path) -> Store:
    store = kafkalog.open(place, files=FAST, maintenance=False)
    store.create_topic("t", PARTITIONS, config=ROLLING, exist_ok=True)
    return store


def content(store: Store) -> dict[tuple[str, int, int], bytes]:
    found = {}
    for number in range(PARTITIONS):
        source = store._home.source(TopicPartition("t", number))
        with ChunkReader(source, source.log_start_offset) as reader:
            for record in reader.records():
                assert record.value is not None
                found["t", number, record.offset] = record.value
    return found


def judge(store: Store, answered: dict[tuple[str, int, int], bytes], attempted: set[bytes]) -> None:
    """Each value is "who number": of one sender and partition the numbers grow."""
    found = content(store)
    wrong = {place: value for place, value in answered.items() if found.get(place) != value}
    assert not wrong, (len(wrong), list(wrong.items())[:5])
    twice = [value for value, count in collections.Counter(found.values()).items() if count > 1]
    assert not twice, twice[:5]
    assert set(found.values()) <= attempted | set(answered.values())
    last: dict[tuple[int, bytes], int] = collections.defaultdict(lambda: -1)
    for (_, partition, _), value in sorted(found.items()):
        who, number = value.split()[:2]
        assert int(number) > last[partition, who], (partition, value)
        last[partition, who] = int(number)


# --- threads -------------------------------------------------------------------------------------------


class Sender(threading.Thread):
    """Sends, flushes, waits for results, until the producer is closed; then with the next one."""

    def __init__(self, who: int, producers: list[kafkalog.Producer], over: threading.Event) -> None:
        super().__init__()
        self.who = who
        self.producers = producers
        self.over = over
        self.sent: list[tuple[RecordFuture, bytes]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.over.is_set():
                producer = self.producers[-1]
                number += 1
                value = b"%d %d " % (self.who, number) + bytes(number % 300)
                try:
                    self.sent.append((producer.send("t", value, key=b"%d" % (number % 7)), value))
                    if number % 1000 == 0:
                        assert producer.flush(60_000)
                        assert self.sent[-1][0].done()
                    elif number % 333 == 0:
                        self.sent[-1][0].result(60)
                except IllegalStateException:
                    pass  # closed: its records are answered all the same
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize("options", [{}, {"name": "crew"}, {"linger_ms": 0, "buffer_bytes": 100_000}], ids=str)
def test_eight_threads(options: dict[str, Any], base: Path, count: Count) -> None:
    with open_store(base / "data") as store:
        producers = [store.producer(**options)]
        over = threading.Event()
        senders = [Sender(who, producers, over) for who in range(8)]
        for sender in senders:
            sender.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(SECONDS / 8)
            # Order holds within one producer: the next one begins when the one before is done.
            producers[-1].close()
            producers.append(store.producer(**options))
        over.set()
        for sender in senders:
            sender.join(60)
            assert not sender.is_alive()
            assert sender.failure is None, sender.failure
        assert producers[-1].flush(60_000)
        answered = {future.result(0): value for sender in senders for future, value in sender.sent}
        assert len(answered) == sum(len(sender.sent) for sender in senders)
        judge(store, answered, set())
        count("records sent by threads", len(answered))
    with open_store(base / "data") as again:
        assert len(content(again)) == len(answered)


# --- interrupts ----------------------------------------------------------------------------------------


class World:
    """A store with a producer; what was sent."""

    def __init__(self, place: Path) -> None:
        self.store = open_store(place)
        self.producer = self.store.producer(linger_ms=1, buffer_bytes=20_000, name="w")
        self.sent: list[tuple[RecordFuture, bytes]] = []
        self.attempted: set[bytes] = set()
        self.number = 0

    def send(self, count: int = 1, filler: int = 10, **options: Any) -> None:
        for _ in range(count):
            self.number += 1
            value = b"w %d " % self.number + bytes(filler)
            self.attempted.add(value)
            self.sent.append((self.producer.send("t", value, **options), value))

    def act(self) -> None:
        self.send(2)
        self.send(key=b"k", headers=[("h", b"x")], timestamp=5)
        self.send(partition=2)
        self.send(25, filler=1000)  # more than there is room for
        self.producer.flush()
        self.send()
        self.sent[-1][0].result(30)
        self.send()
        self.sent[-1][0].add_done_callback(lambda future: None)
        self.producer.close()


def once(place: Path, tracer: Tracer) -> list[tuple[str, int, str]]:
    world = World(place)
    try:
        with tracer:
            world.act()
    except Interrupted:
        pass
    except TypeError as error:
        if "'traceback' object is not callable" not in str(error):  # as in `interrupts`
            raise
    in_a_thread(lambda: go_on(world), seconds=30)
    with open_store(place) as again:
        judge(again, {future.result(0): value for future, value in world.sent}, world.attempted)
    return tracer.places


def go_on(world: World) -> None:
    if world.producer.closed:
        world.producer.close()
    else:
        world.send(3)
        assert world.producer.flush(20_000)
        assert world.producer.buffered_bytes == 0
        world.producer.close()
    for future, _ in world.sent:
        future.result(0)
    judge(world.store, {future.result(0): value for future, value in world.sent}, world.attempted)
    world.store.close()


@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_interrupted_sends_flushes_and_closes(kind: str, base: Path, count: Count) -> None:
    once(base / "warm", Tracer(kind))
    places = once(base / "counted", Tracer(kind))
    number = at_each_place(
        base,
        kind,
        places,
        lambda place, tracer: once(place, tracer),
        ours=OURS,
        limit=LIMIT,
        at_least=100,
    )
    count(f"places of a producer, {kind}", number)


@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_a_producer_whose_making_is_interrupted(kind: str, base: Path, count: Count) -> None:
    def make(place: Path, tracer: Tracer) -> list[tuple[str, int, str]]:
        store = open_store(place)
        try:
            with tracer:
                store.producer(name="w").close()
        except Interrupted:
            pass
        except TypeError as error:
            if "'traceback' object is not callable" not in str(error):
                raise
        in_a_thread(store.close, seconds=30)
        assert not store._home.producers
        return tracer.places

    make(base / "warm", Tracer(kind))
    places = make(base / "counted", Tracer(kind))
    count("makings", at_each_place(base, kind, places, make, ours=OURS, limit=LIMIT, at_least=10))


def test_real_signals(base: Path, count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt at random moments of a thread that sends, waits and flushes, next to one that is left alone."""

    class Ctrl(KeyboardInterrupt):
        pass

    over_here = threading.Event()

    def interrupt(*_: object) -> None:
        # An interrupt during the handling of another, or after the last, would leave the test itself.
        if not over_here.is_set() and not isinstance(sys.exc_info()[1], Ctrl):
            raise Ctrl

    # An interrupt in a finalizer is reported there, and pytest's own hook does not survive another one.
    monkeypatch.setattr(sys, "unraisablehook", lambda told: None)
    with open_store(base / "data") as store:
        world = World.__new__(World)
        world.store, world.sent, world.attempted, world.number = store, [], set(), 0
        world.producer = store.producer(linger_ms=1, buffer_bytes=50_000)
        over = threading.Event()
        beside = Sender(1, [world.producer], over)
        beside.start()
        interrupted = 0
        before = signal.signal(signal.SIGALRM, interrupt)
        until = time.monotonic() + SECONDS
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
            # A slow machine needs longer for as many.
            while time.monotonic() < until or (interrupted <= 20 and time.monotonic() < until + HANG_SECONDS):
                try:
                    world.send(20, filler=200)
                    world.sent[-1][0].result(30)
                    world.send(5)
                    world.producer.flush()
                except Ctrl:
                    interrupted += 1
            over_here.set()
        except Ctrl:
            interrupted += 1
            over_here.set()
        finally:
            over_here.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        over.set()
        beside.join(60)
        assert beside.failure is None, beside.failure
        assert world.producer.flush(60_000)
        sent = [*world.sent, *beside.sent]
        judge(store, {future.result(0): value for future, value in sent}, world.attempted)
        assert interrupted > 20
        count("interrupts of a sender", interrupted)


# --- what comes out of the middle of a send ------------------------------------------------------------


def test_a_signal_handler_sends_and_must_not_wait(base: Path, count: Count) -> None:
    with open_store(base / "data") as store, store.producer(linger_ms=1, buffer_bytes=200_000) as producer:
        sent: list[tuple[RecordFuture, bytes]] = []
        refused = [0]
        number = [0]

        def handle(*_: object) -> None:
            number[0] += 1
            value = b"handler%d 0" % number[0]  # another one may come out of this one
            try:
                sent.append((producer.send("t", value, partition=1), value))
                if number[0] % 3 == 0:
                    sent[-1][0].result(30)
                elif number[0] % 3 == 1:
                    producer.flush(30_000)
            except IllegalStateException:
                refused[0] += 1

        before = signal.signal(signal.SIGALRM, handle)
        until = time.monotonic() + SECONDS
        mine: list[tuple[RecordFuture, bytes]] = []
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            while time.monotonic() < until:
                value = b"main %d" % len(mine)
                mine.append((producer.send("t", value, partition=1), value))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert producer.flush(60_000)
        judge(store, {future.result(0): value for future, value in [*mine, *sent]}, set())
        assert number[0] > 20
        count("sends inside others", number[0])


def test_a_finalizer_sends(base: Path) -> None:
    with open_store(base / "data") as store, store.producer(linger_ms=0) as producer:
        sent: list[tuple[RecordFuture, bytes]] = []

        class Garbage:
            def __init__(self, number: int) -> None:
                self.number = number
                self.me = self

            def __del__(self) -> None:
                value = b"garbage%d 0" % self.number
                sent.append((producer.send("t", value), value))

        before = gc.get_threshold()
        try:
            for number in range(3000):
                gc.set_threshold(5 + number % 60)
                Garbage(number)
                value = b"main %d" % number
                sent.append((producer.send("t", value, partition=0), value))
        finally:
            gc.set_threshold(*before)
        until = time.monotonic() + 30
        while len(sent) < 6000 and time.monotonic() < until:
            gc.collect()
        assert producer.flush(60_000)
        assert len(sent) == 6000
        judge(store, {future.result(0): value for future, value in sent}, set())


# --- forks ---------------------------------------------------------------------------------------------


def test_a_child_is_refused_and_touches_nothing(base: Path, count: Count) -> None:
    place = base / "data"
    with open_store(place) as store:
        producer = store.producer(linger_ms=1)
        quiet = store.producer(linger_ms=600_000)
        waiting = quiet.send("t", b"quiet 1")

        def child() -> None:
            uses: list[Callable[[], object]] = [
                lambda: producer.send("t", b"child 1"), lambda: producer.flush(), lambda: waiting.result(5),
                lambda: waiting.exception(5), lambda: quiet.flush(10), lambda: store.producer(),
            ]  # fmt: skip
            for use in uses:
                with pytest.raises(IllegalStateException, match="opened by process"):
                    use()
            assert not waiting.done()
            producer.close()
            quiet.close()
            store.close()

        over = threading.Event()
        senders = [Sender(who, [producer], over) for who in range(3)]
        for sender in senders:
            sender.start()
        for _ in range(40 if LONG else 8):
            told = in_a_child(child)
            assert not told, told
        over.set()
        for sender in senders:
            sender.join(60)
            assert sender.failure is None, sender.failure
        assert producer.flush(60_000)
        assert quiet.flush(60_000)
        before = files_of(place)
        assert not in_a_child(lambda: (producer.close(), quiet.close(), store.close()))
        assert files_of(place) == before
        answered = {future.result(0): value for sender in senders for future, value in sender.sent}
        answered[waiting.result(0)] = b"quiet 1"
        judge(store, answered, set())
        count("records sent beside forks", len(answered))


def test_a_child_drops_without_a_word(base: Path) -> None:
    with open_store(base / "data") as store:
        held = [store.producer()]
        held[0].send("t", b"parent 1").result(30)

        def child() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                held.clear()
                gc.collect()

        assert not in_a_child(child)
        assert held[0].send("t", b"parent 2").result(30)
        held[0].close()


# --- an end without close ------------------------------------------------------------------------------


def test_the_process_ends(base: Path) -> None:
    """Without close: the process does not hang, and acknowledged records exist."""
    script = (
        "import kafkalog, sys\n"
        f"store = kafkalog.open({str(base / 'data')!r}, maintenance=False)\n"
        "store.create_topic('t', 3, exist_ok=True)\n"
        "producer = store.producer(linger_ms=1)\n"
        "print(producer.send('t', b'answered 1', partition=0).result(30).offset)\n"
        "waiting = [producer.send('t', b'late %d' % n, partition=0) for n in range(10000)]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"
    with open_store(base / "data") as store:
        judge(store, {("t", 0, 0): b"answered 1"}, {b"late %d" % number for number in range(10000)})
