"""Appends, reads, closes, truncations and flushes of many threads at once, checked by the oracle.

Each test runs for LIVE_SECONDS (2; with KAFKALOG_LONG=1 60).  `tests.live.crew.MAY_RAISE` lists the errors that each
operation may raise next to each other one.
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files.lock import OsFileLock
from kafkalog.errors import IllegalArgumentException, LogDirLockedException
from kafkalog.toolbox.verify import verify
from tests.file_doubles import RecordingFiles
from tests.live.crew import (
    DOORS,
    SECONDS,
    Crew,
    Member,
    batch_start,
    filtered_through,
    full,
    latest_through,
    open_door,
    open_live,
    ordinary_choice,
    read_through,
)
from tests.live.interrupts import CONFIG
from tests.live.oracle import (
    FAST,
    Oracle,
    append_one,
    check_killed,
    check_reopened,
    check_verified,
    look,
    name_of,
    no_descriptors_below,
)

Count = Callable[[str, int], None]
LARGE = {"internal.segment.bytes": "20000", "segment.index.bytes": "4800"}


def appenders(crew: Crew, log: kafkalog.Partition, oracle: Oracle, *, transactions: bool = True, seed: int = 0) -> None:
    members = [Member(log, oracle, number, seed=seed) for number in range(5)]
    crew.add("append", members[0].append)
    crew.add("append", members[1].append_many)
    crew.add("append", members[2].append_columns)
    crew.add("write", members[3].write)
    if transactions:
        crew.add("transact", members[4].transact)


def settled(path: Path, partition: str, oracle: Oracle, config: dict[str, str]) -> None:
    """A clean end: marked, unlocked, whole, and it opens again."""
    gc.collect()
    assert not [name for name in no_descriptors_below(path) if not name.endswith(".deleted")]
    assert (path / ".kafka_cleanshutdown").exists()
    assert not (path / ".lock").exists()
    check_verified(path)
    check_reopened(path, partition, oracle, config=config)


def await_next(log: kafkalog.Partition, isolation: str = "read_uncommitted", timeout_ms: int | None = None) -> None:
    offset = log.end_offset
    if log.await_offset(offset, isolation=isolation, timeout_ms=timeout_ms):
        assert log.end_offset > offset or timeout_ms is not None


def rounds() -> Callable[[], bool]:
    end = time.monotonic() + SECONDS
    return lambda: time.monotonic() < end


@pytest.mark.parametrize("door", DOORS)
def test_close_beside_everything(door: str, base: Path, count: Count) -> None:
    rng = random.Random(1)
    go_on, number = rounds(), 0
    while go_on() or number < 10:
        number += 1
        path = base / f"round{number}"
        oracle, crew = Oracle(), Crew("close")
        log, close = open_door(door, path, config=LARGE)
        appenders(crew, log, oracle, seed=number)
        crew.add("read", partial(read_through, log, oracle))
        crew.add("read", partial(latest_through, log, oracle))
        crew.add("read", partial(filtered_through, log, oracle))
        for isolation in ("read_uncommitted", "read_committed"):  # woken by the next append, the last time by the close
            crew.add("read", partial(await_next, log, isolation))
        crew.add("flush", log.flush)
        crew.enough = full(log)
        with ordinary_choice(number % 2 == 0):
            crew.run(rng.random() * 0.03, close)
        assert log.closed
        settled(path, "t-0", oracle, {**CONFIG, **LARGE})
        count("steps beside close", crew.steps)
    count("closes beside threads", number)


@pytest.mark.parametrize("door", DOORS)
def test_closes_of_several_threads(door: str, base: Path) -> None:
    for number in range(20):
        path = base / f"round{number}"
        oracle, crew = Oracle(), Crew("close")
        log, close = open_door(door, path)
        appenders(crew, log, oracle, seed=number)
        for _ in range(3):
            crew.add("close", close, once=True)
        crew.run(0.002, close)
        assert log.closed
        settled(path, "t-0", oracle, CONFIG)


@pytest.mark.parametrize("door", DOORS)
def test_truncate_beside_appends(door: str, base: Path, count: Count) -> None:
    go_on, number = rounds(), 0
    while go_on() or number < 2:
        number += 1
        path = base / f"round{number}"
        rng = random.Random(number)
        oracle, crew = Oracle(gaps=True), Crew("truncate")
        log, close = open_door(door, path)
        appenders(crew, log, oracle, transactions=False, seed=number)
        crew.enough = full(log)

        def truncate(log: kafkalog.Partition = log, oracle: Oracle = oracle, rng: random.Random = rng) -> None:
            time.sleep(rng.random() * 0.01)
            target = batch_start(log, max(0, log.end_offset - rng.randint(-2, 40)))
            with oracle.cutting("truncate", target):
                log.truncate(target)

        crew.add("truncate", truncate)
        crew.add("flush", log.flush)
        crew.add("read", partial(read_through, log, oracle))
        crew.add("read", partial(latest_through, log, oracle))
        crew.add("read", partial(filtered_through, log, oracle))
        crew.add("read", partial(await_next, log, timeout_ms=5))
        with ordinary_choice(number % 2 == 0):
            crew.run(0.4)
        oracle.judge(look(log))
        check_killed(path, str(base / "killed"), "t-0", oracle, config=CONFIG)
        assert log.engine is not None
        assert log.engine.recovery_point <= log.end_offset
        append_one(log, oracle)
        close()
        settled(path, "t-0", oracle, CONFIG)
        count("truncations beside appends", len(oracle.cuts))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("delay_ms", ["0", "500"])
def test_retention_beside_appends_and_readers(delay_ms: str, door: str, base: Path, count: Count) -> None:
    config = {"file.delete.delay.ms": delay_ms, "retention.bytes": "6000"}
    oracle, crew = Oracle(retention=True), Crew("retention")
    path = base / "log"
    log, close = open_door(door, path, config=config)
    appenders(crew, log, oracle)

    def retain() -> None:
        time.sleep(0.002)
        log.delete_old_segments()

    def delete() -> None:
        time.sleep(0.01)
        start = max(log.log_start_offset, log.high_watermark - 100)
        with oracle.cutting("delete", start):
            log.delete_records(start)

    crew.add("retain", retain)
    crew.add("retain", delete)
    for _ in range(2):
        crew.add("read", lambda: read_through(log, oracle))
    with open_live(path, read_only=True) as beside:
        crew.add("read", lambda: read_through(beside, oracle))
        crew.add("read", lambda: read_through(beside, oracle))
        for source in (log, beside):
            crew.add("read", partial(latest_through, source, oracle))
            crew.add("read", partial(filtered_through, source, oracle))
        crew.add("refresh", beside.refresh)
        crew.run(SECONDS)
    oracle.judge(look(log))
    check_killed(path, str(base / "killed"), "t-0", oracle, config={**CONFIG, **config})
    close()
    settled(path, "t-0", oracle, {**CONFIG, **config})
    count("steps beside retention", crew.steps)


@pytest.mark.parametrize("door", DOORS)
def test_readers_of_all_kinds_beside_appends(door: str, base: Path, count: Count) -> None:
    go_on, number = rounds(), 0
    while go_on() or not number:
        number += 1
        readers_beside_appends(door, base / f"round{number}", number, count)


def readers_beside_appends(door: str, path: Path, seed: int, count: Count) -> None:
    oracle, crew = Oracle(), Crew("append")
    log, close = open_door(door, path)
    crew.enough = full(log)
    appenders(crew, log, oracle, seed=seed)

    def chunks(source: kafkalog.Partition) -> None:
        with source.reader(chunk_bytes=700) as reader:
            last = -1
            for record in reader.records():
                assert record.offset > last
                last = record.offset

    def times() -> None:
        found = log.offset_for_time(0)
        assert found in (None, 0)

    def committed(source: kafkalog.Partition) -> None:
        last = -1
        for record in source.records(isolation="read_committed"):
            assert record.offset > last
            last = record.offset

    with open_live(path, read_only=True) as beside:
        for source in (log, beside):
            crew.add("read", partial(chunks, source))
            crew.add("read", partial(committed, source))
            crew.add("read", partial(read_through, source, oracle))
            crew.add("read", partial(latest_through, source, oracle))
            crew.add("read", partial(filtered_through, source, oracle))
            crew.add("read", partial(await_next, source, timeout_ms=50))
        crew.add("read", times)
        crew.add("refresh", beside.refresh)
        crew.run(SECONDS)
        beside.refresh()
        assert [name_of(record.value) for record in beside] == [name_of(record.value) for record in log]
    oracle.judge(look(log))
    close()
    settled(path, "t-0", oracle, CONFIG)
    count("steps of readers and appenders", crew.steps)


def test_partitions_opened_and_closed_by_several_threads(base: Path, count: Count) -> None:
    path = base / "logs"
    oracles = [Oracle() for _ in range(4)]
    crew = Crew("open")

    def live_on(number: int) -> None:
        with open_live(path, f"t-{number}") as log:
            # An open log holds the lock: nobody else gets it.
            with pytest.raises(LogDirLockedException):
                OsFileLock(str(path / ".lock"))
            oracle = oracles[number]
            unit = oracle.attempt(b"%d.%d" % (number, len(oracle.units)))
            oracle.acknowledge(unit, log.append(unit.names[0] + b" ."))
            assert log.end_offset == len(oracle.units)

    shared = Oracle()
    story = threading.Lock()

    def contend() -> None:
        with open_live(path, "s-0") as log, story:
            unit = shared.attempt(b"0.%d" % len(shared.units))
            shared.acknowledge(unit, log.append(unit.names[0] + b" ."))

    for number in range(4):
        crew.add("open", partial(live_on, number))
    for _ in range(2):
        crew.add("open the same", contend)
    crew.run(SECONDS)
    for number, oracle in enumerate(oracles):
        settled(path, f"t-{number}", oracle, CONFIG)
    settled(path, "s-0", shared, CONFIG)
    count("opens and closes", crew.steps)


def test_closing_one_log_leaves_its_neighbours_alone(base: Path, count: Count) -> None:
    path = base / "logs"
    quiet = Oracle(retention=True)
    neighbour = open_live(path, "n-0", config=LARGE)
    outer = Crew("retention")
    appenders(outer, neighbour, quiet)
    outer.add("read", lambda: read_through(neighbour, quiet))
    closes = 0

    def closing() -> None:
        nonlocal closes
        go_on = rounds()
        while (go_on() or closes < 3) and not outer.stop.is_set():
            oracle, crew = Oracle(), Crew("close")
            partition = f"t-{closes}"
            log = open_live(path, partition, config=LARGE)
            for number in range(2):
                crew.add("append", Member(log, oracle, number).append_many)
                crew.add("read", partial(read_through, log, oracle))
            crew.run(0.02, log.close)
            check_reopened(path, partition, oracle, config={**CONFIG, **LARGE}, verified=False)  # others write there
            closes += 1

    outer.add("close beside", closing, once=True)
    outer.add("retain", lambda: (time.sleep(0.02), neighbour.delete_records(max(0, neighbour.end_offset - 20000)))[1])
    outer.add("retain", lambda: (time.sleep(0.1), neighbour.delete_old_segments())[1])
    outer.run(SECONDS + 1)
    assert neighbour.engine is not None
    assert not neighbour.engine.context.log_dir_failure_channel.any_offline
    quiet.judge(look(neighbour))
    neighbour.close()
    settled(path, "n-0", quiet, {**CONFIG, **LARGE})
    count("closes beside neighbours", closes)


def test_what_is_promised_is_synced(base: Path, count: Count) -> None:
    """durability "fsync", next to rolls, flushes and truncations: after a power loss at any moment acknowledged records
    exist, and everything below each recovery point that anybody saw."""
    path = base / "logs"
    path.mkdir()
    files = RecordingFiles(str(path), FAST)
    log = open_live(path, files=files, durability="fsync")
    assert log.engine is not None
    engine = log.engine
    crew = Crew("truncate")
    truncating = threading.RLock()  # promises are made and broken one after the other
    attempted = set()

    def append(number: int, rng: random.Random, at: list[int]) -> None:
        idents = [b"%d.%d" % (number, at[0] + each) for each in range(rng.randint(1, 3))]
        at[0] += len(idents)
        attempted.update(idents)
        if number:
            offsets = log.append_many([ident + b" " + b"." * 90 for ident in idents])
        else:
            # No truncation in between: it would take the transaction's beginning, and its numbers.
            with truncating, log.transaction("job") as transaction:
                offsets = transaction.append_many([ident + b" " + b"." * 90 for ident in idents])
        with truncating:
            if offsets[-1] < engine.log_end_offset:
                files.mark("acknowledged", (offsets[-1] + 1, cuts[0]))

    cuts = [0]

    rng = random.Random(5)

    def truncate() -> None:
        time.sleep(0.02)
        with truncating:
            cuts[0] += 1
            files.mark("cut", cuts[0])
            with contextlib.suppress(IllegalArgumentException):  # a transaction has ended after it meanwhile
                log.truncate(batch_start(log, max(0, engine.log_end_offset - rng.randint(1, 10))))

    def watch() -> None:
        point = engine.recovery_point
        if engine.recovery_point == point:
            with truncating:
                assert engine.recovery_point <= engine.log_end_offset or crew.stop.is_set()
        time.sleep(0.001)

    for number in range(3):
        crew.add("append", partial(append, number, random.Random(number), [0]))
    crew.add("truncate", truncate)
    crew.add("flush", log.flush)
    crew.add("roll", lambda: (time.sleep(0.005), engine.roll())[1])
    crew.add("watch", watch)
    crew.enough = full(log)
    crew.run(min(SECONDS, 1.5))
    log.close()
    count("power losses", check_power_losses(files, base, attempted))


def check_power_losses(files: RecordingFiles, base: Path, attempted: set[bytes]) -> int:
    """Power fails at sampled moments: the log that is found has everything promised since the last truncation."""
    rng = random.Random(9)
    disk = files.replay(0)
    wanted = cut = checked = 0
    share = 60 / max(1, len(files.ops))
    for number, op in enumerate(files.ops):
        disk.apply(op)
        if op.kind == "mark" and op.path == "cut":
            wanted, cut = 0, op.value  # type: ignore[assignment]
        elif op.kind == "mark" and op.value[1] == cut:  # type: ignore[index]
            wanted = max(wanted, op.value[0])  # type: ignore[index]
        if rng.random() >= share:
            continue
        place = base / f"power{number}"
        disk.materialise_durable(str(place))
        with open_live(place) as log:
            found = [record.value for record in log]
            assert log.end_offset >= wanted, f"after {number} steps: ends at {log.end_offset}, promised {wanted}"
        assert {name_of(value) for value in found} <= attempted
        assert verify(place, deep=True).ok
        checked += 1
    return checked


def test_a_read_only_log_is_shared(base: Path, count: Count) -> None:
    """Threads that refresh, walk and query one read-only Partition, next to a writer that rolls and deletes."""
    path = base / "log"
    oracle, crew = Oracle(retention=True), Crew("retention")
    config = {"file.delete.delay.ms": "0", "retention.bytes": "4000"}
    with open_live(path, config=config) as log:
        Member(log, oracle, 50).append_many()
        with open_live(path, read_only=True) as beside:
            crew.add("append", Member(log, oracle, 0).append_many)
            crew.add("retain", lambda: (time.sleep(0.002), log.delete_old_segments())[1])
            crew.add("refresh", beside.refresh)
            for _ in range(3):
                crew.add("read", lambda: read_through(beside, oracle))
            crew.add("ask", lambda: beside.offset_for_time(0))
            crew.add("ask", lambda: (beside.end_offset, beside.high_watermark, beside.last_stable_offset))
            crew.run(SECONDS)
        oracle.judge(look(log))
    count("steps on a shared read-only log", crew.steps)
