"""An interrupt at each place of a cleaner pass: the committed state stays the same, and the log continues.

The places are those of `kafkalog.engine.cleaner` and of the exchange of segments below it.  Each gets a fresh copy of
a prepared log, and the pass is interrupted there.  Then another thread reads, appends, and checks the state that a
kill -9 at this moment leaves.  A whole pass must then end with the same records as an uninterrupted one.  By default
the test takes a share of the visits of each line; KAFKALOG_LONG=1 takes all.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.log.unified_log import UnifiedLog
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, at_each_place
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG
from tests.unit.cleaner_kit import COMPACT, CleanerKit, Producer, keyed, latest, rows

LIMIT = None if LONG else 30
CONFIG = {**COMPACT, "internal.segment.bytes": "400", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "50"}
OURS = (
    "engine/cleaner/", "engine/log/replacement.py", "engine/log/unified_log.py", "engine/log/local_log.py",
    "engine/log/offsets.py", "engine/segment/log_segment.py",
)  # fmt: skip

Row = tuple[int, str | None, str | None]


def prepare(root: Path) -> None:
    """Two groups of segments: superseded keys, a tombstone, a transaction that was aborted and one that was not."""
    kit = CleanerKit(root)
    log = kit.log_of(overrides=CONFIG)
    for number in range(4):
        kit.add(
            log, keyed((f"k{number}", "1" * 20), ("x", f"{number}")), keyed(("k0", f"{number}" * 10), ("gone", None))
        )
    kit.add(log, keyed(("k1", "aborted"), producer=Producer(1, transactional=True)))
    kit.end_txn(log, 1, commit=False)
    kit.add(log, keyed(("k2", "new" * 30), codec=4, producer=Producer(1, 1, transactional=True)))
    kit.end_txn(log, 1, commit=True)
    kit.add(log, keyed(("end", "1")))
    kit.scheduler.tick()
    log.flush(True)
    log.close()


class World:
    """One copy of it, open."""

    def __init__(self, place: Path) -> None:
        self.kit = CleanerKit(place)
        self.log = self.open()

    def open(self, *, clean: bool = True) -> UnifiedLog:
        log = self.kit.open(CONFIG, clean=clean)
        log.update_high_watermark(log.log_end_offset)
        return log

    def clean(self) -> None:
        cleaner = Cleaner(SkimpyOffsetMap(2400), CleanerSettings(150, 4000), self.kit.clock)
        cleaner.clean(next_to_clean(self.log, None, self.kit.clock.milliseconds()))

    def transient(self) -> list[str]:
        return [name for name in self.kit.names if name.endswith((".cleaned", ".swap"))]


def whole_pass(place: Path) -> tuple[dict[str, str], list[Row]]:
    """The state, which a pass must not change, and the records that the pass leaves."""
    world = World(place)
    state = committed(world.log)
    world.clean()
    assert committed(world.log) == state
    found = rows(world.log)
    world.log.close()
    return state, found


def committed(log: UnifiedLog) -> dict[str, str]:
    """The last value of each key, as a reader of committed records sees it."""
    aborted = log.collect_aborted_transactions(0, log.log_end_offset)
    gone = {offset for txn in aborted for offset in range(txn.first_offset, txn.last_offset + 1)}
    return latest([row for row in rows(log) if row[0] not in gone or row[1] not in ("k1",)])


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_interrupted_pass(kind: str, base: Path, count: Callable[[str, int], None]) -> None:
    template = base / "template"
    prepare(template)
    shutil.copytree(template, base / "whole")
    state, expected = whole_pass(base / "whole")
    places = _once(base / "counted", template, Tracer(kind), state, expected)
    number = at_each_place(
        base,
        kind,
        places,
        lambda place, tracer: _once(place, template, tracer, state, expected),
        ours=OURS,
        limit=LIMIT,
        at_least=500,
    )
    count(f"places of a pass, {kind}", number)


def _once(
    place: Path, template: Path, tracer: Tracer, state: dict[str, str], expected: list[Row]
) -> list[tuple[str, int, str]]:
    shutil.copytree(template, place)
    world = World(place)
    try:
        with tracer:
            world.clean()
    except Interrupted:
        pass
    except TypeError as error:
        if "'traceback' object is not callable" not in str(error):  # as in `interrupts`
            raise
    in_a_thread(lambda: _go_on(world, state, expected))
    gc.collect()
    left = no_descriptors_below(place)
    assert not left or tracer.while_handling, f"left open: {left}"
    shutil.rmtree(place)
    return tracer.places


def _go_on(world: World, state: dict[str, str], expected: list[Row]) -> None:
    log, kit = world.log, world.kit
    end = log.log_end_offset
    log.read(log.log_start_offset, 1)  # repeats the interrupted step
    assert committed(log) == state
    offsets = [offset for offset, _, _ in rows(log)]
    assert offsets == sorted(set(offsets))
    killed = Path(f"{kit.root}.killed")
    shutil.copytree(kit.root, killed)
    again = CleanerKit(killed)
    after = again.open(CONFIG, clean=False)
    assert committed(after) == state
    assert after.log_end_offset == end
    after.close()
    shutil.rmtree(killed)
    log.append_as_leader(keyed(("later", "1")), 0)
    assert log.log_end_offset == end + 1
    log.truncate_to(end)
    world.clean()
    assert rows(log) == expected
    assert world.transient() == []
    kit.clock.advance(60_000)
    kit.scheduler.tick()
    assert kit.scheduler.errors == []
    assert [name for name in os.listdir(kit.dir) if name.endswith(".deleted")] == []
    log.close()
    log = world.open()
    assert rows(log) == expected
    log.close()
