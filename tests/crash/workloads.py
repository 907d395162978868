"""A partition's work before a crash: each workload covers one part of the engine.

A workload gets an empty directory and returns the Driver with its recording.  Segments are small (900 bytes), so that
a handful of batches rolls.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from kafkalog.engine.format.names import log_file
from tests.crash.partition import Driver, parse
from tests.file_doubles import UnsyncedFiles

Workload = Callable[[str], Driver]


def appends(root: str) -> Driver:
    """Leader appends in all codecs over several segments, flushed now and then."""
    driver = Driver(root)
    for number in range(18):
        driver.host.clock.advance(1000)
        driver.lead(driver.batch(1 + number % 4, size=20 + 37 * (number % 3), codec=number % 5), number // 7)
        if number % 4 == 3:
            driver.tick()
        if number % 6 == 5:
            driver.flush()
    return driver


def lazy(root: str) -> Driver:
    """Only the task after a roll flushes, and it comes late."""
    driver = Driver(root)
    for number in range(16):
        driver.lead(driver.batch(3, size=60))
        if number == 10:
            driver.tick()
            driver.checkpoint()
    return driver


def every_append_flushed(root: str) -> Driver:
    """`flush.messages=1`, and the recovery point goes to disk after each."""
    driver = Driver(root, {"flush.messages": "1"})
    for number in range(12):
        driver.lead(driver.batch(2, size=50 + number))
        driver.flush()
        driver.checkpoint()
        if number % 5 == 4:
            driver.tick()
    return driver


def follower(root: str) -> Driver:
    """Several batches in an append, gaps, growing epochs, truncations to where epochs diverged."""
    driver = Driver(root)
    offset = 0
    for number in range(9):
        epoch = number // 3
        data = b""
        for _ in range(1 + number % 3):
            data += driver.batch(2, offset=offset, epoch=epoch, codec=(0, 3, 4)[number % 3])
            offset += 2
        driver.follow(data, epoch)
        if number in (2, 5):
            driver.flush()
        if number == 4:
            driver.tick()
            driver.truncate_to(offset - 3)
            offset = driver.log.log_end_offset
    return driver


def transactions(root: str) -> Driver:
    """Idempotent and transactional producers, committed and aborted, over rolls."""
    driver = Driver(root)
    plain, one, two = (7, 0), (100, 0), (200, 3)
    for number in range(6):
        driver.lead(driver.batch(2, producer=plain))
        driver.lead(driver.batch(1, producer=one, transactional=True))
        driver.lead(driver.batch(2, producer=two, transactional=True))
        driver.end_txn(one, commit=number % 2 == 0)
        if number % 3 == 1:
            driver.flush()
        driver.end_txn(two, commit=number % 3 == 0)
        if number % 2:
            driver.tick()
        if number == 3:
            driver.snapshot()
            driver.checkpoint()
    driver.lead(driver.batch(2, producer=one, transactional=True))
    return driver


def truncation(root: str) -> Driver:
    """Cuts within the active segment, across segments, below the recovery point; new epochs take the offsets."""
    driver = Driver(root)
    for target in (25, 12, 3, 30):
        epoch = driver.number
        for _ in range(9):
            driver.lead(driver.batch(2, size=50), epoch)
        driver.flush()
        driver.checkpoint()
        driver.tick()
        driver.lead(driver.batch(2, size=50), epoch)
        driver.truncate_to(driver.log.log_start_offset + target)
        driver.lead(driver.batch(2, size=50), epoch + 1)
        driver.lead(driver.batch(2, size=50), epoch + 1)
        driver.flush()
    driver.tick(60_000)
    return driver


def truncation_of_producers(root: str) -> Driver:
    driver = Driver(root)
    one = (100, 0)
    for _ in range(4):
        driver.lead(driver.batch(2, producer=one, transactional=True))
        driver.lead(driver.batch(3, size=80))
        driver.end_txn(one, commit=False)
    driver.tick()
    driver.flush()
    driver.checkpoint()
    driver.truncate_to(9)
    driver.sequences[100] = driver.log.active_producers[100].last_seq + 1
    driver.lead(driver.batch(2, producer=one, transactional=True), 1)
    driver.end_txn(one, commit=False, epoch=1)
    driver.lead(driver.batch(3, size=200), 1)
    driver.tick(60_000)
    return driver


def restart(root: str) -> Driver:
    """The whole log is dropped and continues elsewhere: ahead, at the same base, before."""
    driver = Driver(root)
    for number, target in enumerate((40, 40, 10)):
        for _ in range(8):
            driver.lead(driver.batch(2, size=60, producer=(5, number)), number)
        if number != 1:
            driver.flush()
            driver.tick()
        driver.truncate_fully(target)
        driver.sequences.clear()
        driver.lead(driver.batch(2), number)
        if number == 2:
            driver.flush()
        if number < 2:
            driver.truncate_fully(target)
    return driver


def retention(root: str) -> Driver:
    """By size and by time, also of the whole log; the files go after the delay."""
    driver = Driver(root, {"retention.bytes": "2000", "retention.ms": "500000"})
    for number in range(16):
        driver.host.clock.advance(10_000)
        driver.lead(driver.batch(2, size=70, producer=(9, 0)), number // 6)
        if number % 4 == 3:
            driver.tick()
            driver.retain()
        if number == 9:
            driver.flush()
            driver.checkpoint()
    driver.tick(60_000)
    driver.tick(600_000)
    driver.retain()
    driver.lead(driver.batch(2), 5)
    driver.checkpoint()
    driver.tick(60_000)
    return driver


def log_start(root: str) -> Driver:
    """DeleteRecords lifts the recovery point over what was never flushed."""
    driver = Driver(root, {"retention.ms": "-1"})
    for number in range(14):
        driver.lead(driver.batch(2, size=60), number // 5)
        if number in (5, 9, 12):
            driver.raise_log_start(driver.log.log_end_offset - 3)
            driver.flush()
        if number == 10:
            driver.retain()
            driver.tick()
    driver.raise_log_start(driver.log.log_end_offset)
    driver.retain()
    driver.tick(60_000)
    return driver


def rolls(root: str) -> Driver:
    """By hand, of empty segments too, with a roll right after everything was flushed."""
    driver = Driver(root)
    for number in range(5):
        driver.lead(driver.batch(3))
        driver.flush()
        driver.checkpoint()
        driver.roll()
        driver.roll()
        if number % 2:
            driver.tick()
        driver.lead(driver.batch(2))
        driver.flush()
        driver.checkpoint()
    driver.tick(60_000)
    return driver


def preallocated(root: str) -> Driver:
    driver = Driver(root, {"preallocate": "true"})
    for number in range(12):
        driver.lead(driver.batch(2, size=60))
        if number % 3 == 2:
            driver.flush()
            driver.checkpoint()
        if number == 6:
            driver.tick()
    driver.close()
    driver.reopen()
    driver.lead(driver.batch(2))
    return driver


def closes(root: str) -> Driver:
    """Clean closes and opens, which trust the files found; one without background work."""
    driver = Driver(root)
    producer = (11, 0)
    for number in range(3):
        for _ in range(5):
            driver.lead(driver.batch(2, size=50, producer=producer))
        if number != 1:
            driver.tick()
        driver.close()
        driver.reopen()
        driver.lead(driver.batch(2, size=50, producer=producer))
        driver.flush()
        driver.checkpoint()
        driver.roll()
    return driver


def crashes(root: str) -> Driver:
    """The process dies and comes back while the machine runs: records that were served once must stay."""
    driver = Driver(root)
    producer = (12, 0)
    for number in range(4):
        for _ in range(4):
            driver.lead(driver.batch(2, size=70, producer=producer), number)
        if number == 1:
            driver.flush()
            driver.checkpoint()
        driver.reopen(die=True)
    driver.lead(driver.batch(2, size=50, producer=producer), 4)
    return driver


def overflow(root: str) -> Driver:
    """A segment with offsets beyond 31 bits, as old Kafka wrote them: the load splits it, in three."""
    kit = Driver(os.path.join(root, "unused"), prepare=True)
    folder = os.path.join(root, "disk", "t-0")
    os.makedirs(folder)
    data = b""
    for offset in (0, 5, 1 << 31, (1 << 31) + 9, 1 << 33):
        data += kit.batch(3, offset=offset, epoch=0, size=30)
    with open(log_file(folder, 0), "wb") as file:
        file.write(data)
    driver = Driver(os.path.join(root, "disk"), {"internal.segment.bytes": "4000"}, prepare=True)
    driver.content = parse(data)
    with driver.step("start", "append") as step:  # the content found is durable
        step.before = []
        step.after = driver.content
        step.flushed = (1 << 33) + 3
    driver.start = len(driver.recording.ops)
    driver.reopen()
    driver.lead(driver.batch(2))
    driver.tick(60_000)
    driver.flush()
    return driver


def missing_indexes(root: str) -> Driver:
    """Someone removed indexes below the recovery point: the load rebuilds them, and may be interrupted."""
    kit = Driver(os.path.join(root, "disk"))
    kit.host.files = UnsyncedFiles()
    for number in range(12):
        kit.host.clock.advance(1000)
        kit.lead(kit.batch(2, size=60, producer=(3, 0)))
        if number % 4 == 1:
            kit.lead(kit.batch(1, producer=(100, 0), transactional=True))
            kit.end_txn((100, 0), commit=False)
    kit.tick()
    kit.flush()
    kit.checkpoint()
    kit.host.die()
    folder = kit.host.dir
    bases = [segment.base_offset for segment in kit.log.log_segments()]
    os.unlink(os.path.join(folder, f"{bases[0]:020d}.index"))
    os.unlink(os.path.join(folder, f"{bases[1]:020d}.index"))
    driver = Driver(os.path.join(root, "disk"), prepare=True)
    driver.content = kit.content
    with driver.step("start", "append") as step:
        step.before = []
        step.after = kit.content
        step.flushed = kit.content[-1].last + 1
    driver.start = len(driver.recording.ops)
    driver.sequences = kit.sequences
    driver.reopen()
    driver.lead(driver.batch(2))
    driver.flush()
    return driver


def mixed(seed: int) -> Workload:
    """A random walk over all of it."""

    def run(root: str) -> Driver:
        rng = random.Random(seed)
        driver = Driver(root, {"retention.bytes": "3000", "preallocate": rng.choice(["true", "false"])})
        epoch = 0
        open_txns: set[tuple[int, int]] = set()
        for _ in range(45):
            driver.host.clock.advance(rng.randint(0, 3000))
            match rng.choices(
                ("lead", "producer", "txn", "flush", "tick", "roll", "checkpoint", "truncate", "restart", "retain",
                 "start", "close", "die"),
                (12, 5, 5, 4, 5, 2, 2, 1.5, 0.4, 2, 1, 1, 1.2),
            )[0]:  # fmt: skip
                case "lead":
                    driver.lead(
                        driver.batch(rng.randint(1, 4), size=rng.randint(1, 150), codec=rng.randrange(5)), epoch
                    )
                case "producer":
                    driver.lead(driver.batch(rng.randint(1, 3), producer=(rng.randint(1, 2), 0)), epoch)
                case "txn":
                    producer = (rng.choice([100, 200]), 0)
                    if producer in open_txns and rng.random() < 0.5:
                        driver.end_txn(producer, commit=rng.random() < 0.4, epoch=epoch)
                        open_txns.discard(producer)
                    else:
                        driver.lead(driver.batch(1, producer=producer, transactional=True), epoch)
                        open_txns.add(producer)
                case "flush":
                    driver.flush(rng.random() < 0.3)
                case "tick":
                    driver.tick(rng.choice([0, 0, 60_000]))
                case "roll":
                    driver.roll()
                case "checkpoint":
                    driver.checkpoint()
                case "truncate":
                    end, start = driver.log.log_end_offset, driver.log.log_start_offset
                    driver.truncate_to(rng.randint(max(start, end - 12), end))
                    epoch += 1
                case "restart":
                    driver.truncate_fully(driver.log.log_end_offset + rng.choice([-1, 0, 7]))
                    epoch += 1
                case "retain":
                    driver.retain()
                case "start":
                    driver.raise_log_start(rng.randint(driver.log.log_start_offset, driver.log.log_end_offset))
                case "close":
                    driver.close()
                    driver.reopen()
                case "die":
                    driver.reopen(die=True)
            # Producers as the log knows them: truncation may have taken their last batches back.
            driver.sequences = {
                producer_id: entry.last_seq + 1 for producer_id, entry in driver.log.active_producers.items()
            }
            open_txns = {
                (producer_id, entry.producer_epoch)
                for producer_id, entry in driver.log.active_producers.items()
                if entry.current_txn_first_offset is not None
            }
        return driver

    run.__name__ = f"mixed_{seed}"
    return run


WORKLOADS: tuple[Workload, ...] = (
    appends, lazy, every_append_flushed, follower, transactions, truncation, truncation_of_producers, restart,
    retention, log_start, rolls, preallocated, closes, crashes, overflow, missing_indexes,
)  # fmt: skip
