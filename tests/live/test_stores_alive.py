"""A store in a running process: threads that create, change, delete and write topics at once, and a close next to them.

Also moves under appends, forks, signal handlers, other stores of the directory, and a store that is garbage collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalStateException,
    InvalidPartitionsException,
    LogDirLockedException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from kafkalog.store import Store
from kafkalog.topic import Topic
from tests.crash.stored import FAST, values_in
from tests.live.cases import HAS_ALTAIR, HAS_DUCKDB
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.live.test_forks import FRAMES, files_of, in_a_child, to_duckdb
from tests.live.test_reentry import signals
from tests.sampling import LONG

SECONDS = 20.0 if LONG else 1.5
Count = Callable[[str, int], None]
WHERE = "offset >= 0 and value is not null"


def dirs_of(base: Path, count: int = 2) -> list[str]:
    return [str(base / f"disk{number}") for number in range(count)]


def open_at(base: Path, **options: Any) -> Store:
    return kafkalog.open(dirs_of(base), files=FAST, **options)


@contextlib.contextmanager
def threads(*works: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Each runs until the event is set; an error is raised at the end."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            while not stop.is_set():
                work(stop)
        except BaseException as error:
            failed.append(error)
            stop.set()

    running = [threading.Thread(target=run, args=(work,)) for work in works]
    for each in running:
        each.start()
    try:
        yield stop
    finally:
        stop.set()
        for each in running:
            each.join(60)
    assert not any(each.is_alive() for each in running), "hangs"
    if failed:
        raise failed[0]


def running() -> set[str]:
    """The threads that there are."""
    return set(os.listdir("/proc/self/task"))


def written_up(store: Store) -> None:
    """Nothing is left to the background threads to write in a moment."""
    for log in store.manager.all_logs():
        log.maybe_flush_metadata_file()


class Records:
    """The acknowledged records, by topic id and partition."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
        self._lock = threading.Lock()

    def add(self, topic_id: str, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            of = self.acknowledged.setdefault((topic_id, partition), {})
            assert offset not in of, (partition, offset)
            of[offset] = value

    def judge(self, store: Store) -> int:
        checked = 0
        for topic in store.topics():
            info = store.describe_topic(topic)
            for number in range(info.partitions):
                wanted = self.acknowledged.get((info.topic_id or "", number), {})
                found = values_in(store, TopicPartition(topic, number))
                for offset, value in wanted.items():
                    assert found[offset] == value, (topic, number, offset)
                checked += len(wanted)
        return checked


def test_topics_are_made_changed_deleted_and_written_at_once(base: Path, count: Count) -> None:
    records = Records()
    steps = [0]

    def change(store: Store, seed: int) -> Callable[[threading.Event], None]:
        rng = random.Random(seed)

        def work(stop: threading.Event) -> None:
            name = rng.choice("abc")
            steps[0] += 1
            with contextlib.suppress(
                TopicExistsException, UnknownTopicOrPartitionException, InvalidPartitionsException
            ):
                kind = rng.random()
                if kind < 0.3:
                    assert store.create_topic(name, rng.randint(1, 3)).name == name
                elif kind < 0.5:
                    store.delete_topic(name)
                elif kind < 0.7:
                    store.add_partitions(name, store.describe_topic(name).partitions + 1)
                elif kind < 0.9:
                    store.alter_topic(name, {"flush.ms": str(rng.randint(1, 1 << 40))})
                else:
                    assert set(store.topics()) <= {"a", "b", "c", "kept"}

        return work

    def write(store: Store, seed: int) -> Callable[[threading.Event], None]:
        rng = random.Random(seed)

        def work(stop: threading.Event) -> None:
            value = b"%d.%d" % (seed, rng.getrandbits(60))
            with contextlib.suppress(UnknownTopicOrPartitionException):
                where = store.topic(rng.choice("abc")).append(value, key=rng.choice((None, b"k", b"l")))
                assert where.offset >= 0
            kept = store.topic("kept")
            where = kept.append(value)
            records.add(kept.info.topic_id or "", where.partition, where.offset, value)

        return work

    with open_at(base) as store:
        store.create_topic("kept", 3)
        with threads(*(change(store, n) for n in range(3)), *(write(store, n) for n in range(3))) as stop:
            stop.wait(SECONDS)
        infos = [store.describe_topic(name) for name in store.topics()]
        for info in infos:
            assert [log.topic_id for log in store.manager.logs_by_topic(info.name)] == [info.topic_id] * info.partitions
    with open_at(base) as store:
        assert [store.describe_topic(name) for name in store.topics()] == infos
        assert records.judge(store) > 50
    count("changes of topics at once", steps[0])


@pytest.mark.parametrize("number", range(30 if LONG else 6))
def test_a_close_beside_everything(base: Path, number: int, count: Count) -> None:
    store = open_at(base)
    store.create_topic("kept", 3)
    records = Records()
    told: list[str] = []

    def until_closed(step: Callable[[], object]) -> Callable[[threading.Event], None]:
        def work(stop: threading.Event) -> None:
            try:
                step()
            except (TopicExistsException, UnknownTopicOrPartitionException):
                pass
            except IllegalStateException as error:
                told.append(str(error))
                stop.wait(0.001)

        return work

    def write() -> None:
        value = os.urandom(6).hex().encode()
        where = store.topic("kept").append(value)
        records.add("kept", where.partition, where.offset, value)

    def write_async() -> None:
        value = os.urandom(6).hex().encode()
        where = asyncio.run(store.topic("kept").append_async(value))
        records.add("kept", where.partition, where.offset, value)

    def write_many_async() -> None:
        values = [os.urandom(6).hex().encode() for _ in range(3)]
        offsets = asyncio.run(store.topic("kept").append_many_async(values, partition=1))[1]
        for offset, value in zip(offsets, values, strict=True):
            records.add("kept", 1, offset, value)

    def read() -> None:
        topic = store.topic("kept")
        found = [record.value for record in topic.records(where=WHERE, grep=".")]
        assert topic.read_arrow(grep=".", columns=["value"]).num_rows >= len(found)
        topic.latest(key="k").read_all()

    steps: list[Callable[[], object]] = [
        write, write, write_async, write_many_async, read, lambda: store.topic("kept").arrow_reader().read_all(),
        store.describe, lambda: store.create_topic("a", 3), lambda: store.delete_topic("a"),
        lambda: store.alter_topic("kept", {"flush.ms": str(time.monotonic_ns())}),
        store.topics, lambda: store.topic("a").append_many([b"x"] * 5),
        *((lambda: store.plot().to_dict(), lambda: store.topic("kept").plot().to_dict()) if HAS_ALTAIR else ()),
    ]  # fmt: skip
    with threads(*map(until_closed, steps)) as stop:
        time.sleep(0.03 + number * 0.01)
        in_a_thread(store.close, seconds=30)
        stop.wait(0.05)
    assert told
    assert all(re.search("store of .* is closed", each) for each in told), set(told)
    assert not no_descriptors_below(base)
    with open_at(base) as again:
        topic_id = again.describe_topic("kept").topic_id or ""
        records.acknowledged = {(topic_id, number): of for (_, number), of in records.acknowledged.items()}
        records.judge(again)
        assert len(again.manager.logs_by_topic("a")) == (3 if "a" in again else 0)
    count("closes of stores beside everything", 1)


def test_appends_while_their_partition_moves(base: Path, count: Count) -> None:
    """None is lost, doubled or out of order, and no append hears of the move."""
    with open_at(base) as store:
        topic = store.create_topic("t", 1, config={"segment.bytes": "1048576"})
        appended = [0, 0]
        moves = [0]

        def write(number: int) -> Callable[[threading.Event], None]:
            def work(stop: threading.Event) -> None:
                if number == 0:
                    topic.append(b"0.%d" % appended[0])
                    appended[0] += 1
                else:
                    topic.append_many([b"1.%d" % (appended[1] + each) for each in range(7)])
                    appended[1] += 7

            return work

        def move(stop: threading.Event) -> None:
            log = store.manager.get_log("t-0")
            assert log is not None
            store.manager.move("t-0", next(each for each in dirs_of(base) if each != log.parent_dir))
            moves[0] += 1

        with threads(write(0), write(1), move) as stop:
            stop.wait(SECONDS)
        values = values_in(store, TopicPartition("t", 0))
        for number in (0, 1):
            own = [value for value in values if value.startswith(b"%d." % number)]
            assert own == [b"%d.%d" % (number, each) for each in range(appended[number])]
        assert moves[0] > 1
    with open_at(base) as store:
        assert values_in(store, TopicPartition("t", 0)) == values
    count("moves below appends of a store", moves[0])


# --- forks ---------------------------------------------------------------------------------------------


def uses(store: Store, topic: Topic) -> list[tuple[str, Callable[[], object]]]:
    partition = topic.appends(0)
    return [
        ("topics", store.topics), ("topic", lambda: store.topic("t")), ("in", lambda: "t" in store),
        ("describe_topic", lambda: store.describe_topic("t")), ("create_topic", lambda: store.create_topic("u")),
        ("create_topic exist_ok", lambda: store.create_topic("t", exist_ok=True)),
        ("alter_topic", lambda: store.alter_topic("t", {"flush.ms": "5"})), ("manager", lambda: store.manager),
        ("add_partitions", lambda: store.add_partitions("t", 9)), ("delete_topic", lambda: store.delete_topic("t")),
        ("append", lambda: topic.append(b"x")), ("append to one", lambda: topic.append(b"x", partition=1)),
        ("append by key", lambda: topic.append(b"x", key=b"k")), ("append_many", lambda: topic.append_many([b"x"] * 9)),
        ("describe", store.describe), ("topic's describe", topic.describe),
        *((("plot", store.plot), ("topic's plot", topic.plot)) if HAS_ALTAIR else ()),
        ("records", lambda: list(topic.records(key="k"))),
        ("store's records", lambda: list(store.records(where=WHERE))),
        ("read_arrow", lambda: topic.read_arrow(grep=".")), ("store's read_arrow", lambda: store.read_arrow(last=1)),
        ("latest", lambda: topic.latest(key_prefix="k").read_all()), ("Arrow stream", topic.__arrow_c_stream__),
        *((f"to_{name}", getattr(topic, f"to_{name}")) for name in FRAMES),
        *((f"to_duckdb of {each!r}", partial(to_duckdb, each)) for each in (topic, store) if HAS_DUCKDB),
        ("abort_transaction", lambda: store.abort_transaction("job")),
        ("append_async", lambda: asyncio.run(topic.append_async(b"x"))),
        ("append_many_async", lambda: asyncio.run(topic.append_many_async([b"x"]))),
        ("info", lambda: topic.info), ("partitions", lambda: topic.partitions),
        ("partition's append", lambda: partition.append_batches(b"")),
    ]  # fmt: skip


def test_a_child_is_refused_and_touches_nothing(base: Path) -> None:
    with open_at(base) as store, open_at(base, read_only=True) as look:
        topic = store.create_topic("t", 3)
        topic.append_many([b"x"] * 20)
        seen = look.topic("t")
        calls = uses(store, topic)
        calls += [("look", look.topics), ("look's topic", lambda: seen.info), ("look's in", lambda: "t" in look)]
        written_up(store)
        before = files_of(base)

        def in_child() -> None:
            wrong = []
            for name, use in calls:
                try:
                    wrong.append(f"{name} answered {use()!r}")
                except IllegalStateException as error:
                    if "was opened by process" not in str(error):
                        wrong.append(f"{name} said {error}")
                except BaseException as error:
                    wrong.append(f"{name} raised {error!r}")
            assert not wrong, wrong
            store.close()
            look.close()
            assert store.closed
            assert "closed" in repr(store)
            with pytest.raises(LogDirLockedException):
                open_at(base)

        assert not in_a_child(in_child)
        assert files_of(base) == before
        assert topic.append(b"y", partition=2).offset >= 0
        store.create_topic("u")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_in_the_middle_of_changes(base: Path, count: Count) -> None:
    """Threads hold the locks at the moment of the fork: no child hangs."""
    forks = [0]
    with open_at(base) as store:
        topic = store.create_topic("t", 3)
        calls = uses(store, topic)

        def change(stop: threading.Event) -> None:
            store.create_topic("a", 2)
            store.alter_topic("a", {"flush.ms": "5"})
            store.delete_topic("a")

        def write(stop: threading.Event) -> None:
            topic.append_many([b"x"] * 5)

        def in_child() -> None:
            for name, use in calls:
                with pytest.raises(IllegalStateException, match="was opened by process"):
                    raise AssertionError(f"{name} answered {use()!r}")
            store.close()

        with threads(change, write, write):
            for _ in range(40 if LONG else 8):
                time.sleep(0.01)
                assert not in_a_child(in_child)
                forks[0] += 1
    with open_at(base) as store:
        assert "t" in store
    count("forks beside changes of topics", forks[0])


# --- inside of itself ----------------------------------------------------------------------------------


def test_a_signal_handler_works_on_the_store_that_it_interrupts(base: Path, count: Count) -> None:
    """Each call is refused by name, or happens as a whole."""
    done = {"inside": 0, "refused": 0}
    refused: set[str] = set()
    with open_at(base) as store:
        topic = store.create_topic("t", 2)
        acknowledged: dict[tuple[int, int], bytes] = {}
        rng = random.Random(1)

        def note(value: bytes) -> None:
            where = topic.append(value)
            assert (where.partition, where.offset) not in acknowledged
            acknowledged[where.partition, where.offset] = value

        def inside() -> None:
            done["inside"] += 1
            try:
                kind = rng.random()
                if kind < 0.4:
                    note(b"inside %d" % done["inside"])
                elif kind < 0.6:
                    store.create_topic("in", exist_ok=True)
                elif kind < 0.8:
                    if "in" in store:
                        store.delete_topic("in")
                elif kind < 0.9:
                    store.alter_topic("t", {"flush.ms": str(done["inside"])})
                else:
                    assert store.topics()
            except IllegalStateException as error:
                refused.add(str(error))
                done["refused"] += 1
            except (TopicExistsException, UnknownTopicOrPartitionException):
                pass

        until = time.monotonic() + SECONDS
        number = 0
        with signals(inside, 0.002):
            while time.monotonic() < until:
                number += 1
                note(b"%d" % number)
                with contextlib.suppress(TopicExistsException, UnknownTopicOrPartitionException):
                    if number % 5 == 0:
                        store.create_topic("a", 2)
                        store.alter_topic("a", {"flush.ms": str(number)})
                        store.delete_topic("a")
        for partition in range(2):
            found = values_in(store, TopicPartition("t", partition))
            assert len(found) == sum(1 for each, _ in acknowledged if each == partition)
            for (each, offset), value in acknowledged.items():
                assert each != partition or found[offset] == value
        assert store.describe_topic("t").partitions == 2
    assert done["inside"] > 20
    assert all("this thread is" in each or "inside" in each for each in refused), refused
    count("calls inside a store's", done["inside"])


@pytest.mark.parametrize("what", ["create", "close"])
def test_inside_a_change_of_topics(base: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A call that would wait for itself or see half of the change is refused; the change continues."""
    store = open_at(base)
    told: list[str] = []
    make = store.manager.get_or_create_log

    def inside(*args: Any, **options: Any) -> Any:
        calls = [
            lambda: store.create_topic("u"), lambda: store.create_topic("t", exist_ok=True),
            lambda: store.delete_topic("kept"), lambda: store.add_partitions("kept", 9),
            lambda: store.alter_topic("kept", {}), store.close,
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(IllegalStateException, match="this thread is changing this store's topics just now"):
                call()
            told.append("refused")
        assert store.topics() == ["kept"]
        return make(*args, **options)

    store.create_topic("kept")
    monkeypatch.setattr(store.manager, "get_or_create_log", inside)
    store.create_topic("t", 2)
    assert len(told) == 12
    monkeypatch.undo()
    assert store.topics() == ["kept", "t"]
    assert store.topic("t").append(b"x", partition=1).offset == 0
    store.close()
    assert store.closed


# --- other stores --------------------------------------------------------------------------------------

OTHER = """
import sys
import kafkalog
from kafkalog.errors import LogDirLockedException
for make in (lambda: kafkalog.open(sys.argv[1:]), lambda: kafkalog.open_log(sys.argv[1], "t-0")):
    try:
        make()
    except LogDirLockedException as error:
        assert sys.argv[1] in str(error)
        print("locked")
with kafkalog.open(sys.argv[1:], read_only=True) as store:
    print(store.topics(), store.topic("t").partitions)
"""


def test_another_process_is_locked_out_and_may_look(base: Path) -> None:
    with open_at(base) as store:
        store.create_topic("t", 3).append(b"x")
        written_up(store)
        before = files_of(base)
        done = subprocess.run(
            [sys.executable, "-c", OTHER, *dirs_of(base)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n") == ["locked", "locked", "['t'] 3", ""]
        assert files_of(base) == before


def test_one_directory_of_two_is_taken(base: Path) -> None:
    """Nothing is created, and the other directory's lock is released."""
    first, second = dirs_of(base)
    with kafkalog.open(second, files=FAST) as store:
        with pytest.raises(LogDirLockedException):
            open_at(base)
        store.create_topic("t")
        with kafkalog.open(first, files=FAST) as other:
            other.create_topic("t")


# --- dropped -------------------------------------------------------------------------------------------


def test_a_store_that_is_dropped_lets_go(base: Path) -> None:
    before = running()
    gc.disable()
    try:
        store = open_at(base)
        topic = store.create_topic("t", 2)
        topic.append_many([b"x"] * 9)
        del store
        assert topic.append(b"y").offset >= 0  # an object of a topic keeps its store open
        with pytest.warns(ResourceWarning, match=r"<store of .*disk0.*> was dropped without being closed"):
            del topic
        until = time.monotonic() + 20  # no collector's run was needed: nothing goes in circles
        while running() - before and time.monotonic() < until:
            time.sleep(0.01)
        assert not running() - before
    finally:
        gc.enable()
    wait_for_dropped()
    assert not no_descriptors_below(base)
    for disk in dirs_of(base):
        assert not os.path.exists(os.path.join(disk, ".kafka_cleanshutdown"))  # the next open recovers
    with open_at(base) as again:
        assert sum(len(values_in(again, TopicPartition("t", number))) for number in range(2)) == 10


def test_a_store_that_is_closed_leaves_nothing(base: Path) -> None:
    before = running()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with open_at(base) as store:
                store.create_topic("t", 2, exist_ok=True).append(b"x")
            with open_at(base, read_only=True) as look:
                assert look.topics() == ["t"]
        del store, look
        gc.collect()
    assert not running() - before
    assert not no_descriptors_below(base)
