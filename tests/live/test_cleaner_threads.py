"""Cleaner passes next to appends, reads and rolls in threads: nobody sees a wrong offset, a lost value, or an error.

The writer gives each key growing numbers.  A reader who goes through the log sees offsets grow and, of each key,
numbers that grow; at the end it has seen at least what was acknowledged when it began.  Old segments are unlinked at
once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.log.unified_log import UnifiedLog
from tests.sampling import LONG
from tests.unit.cleaner_kit import CleanerKit, keyed, latest, rows

KEYS = 17
PASSES = 400 if LONG else 12
APPENDS_MAX = 400_000
CONFIG = {"cleanup.policy": "compact", "internal.segment.bytes": "4000", "file.delete.delay.ms": "0"}


class Crew:
    """Threads over one log, and what they found wrong."""

    def __init__(self, kit: CleanerKit, log: UnifiedLog) -> None:
        self.kit = kit
        self.log = log
        self.done = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.wrong: list[BaseException] = []
        self.passes = self.reads = 0

    def run(self, *jobs: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert not any(thread.is_alive() for thread in threads)
        if self.wrong:
            raise self.wrong[0]

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.wrong.append(error)
        finally:
            if self.wrong:
                self.done.set()

    def write(self) -> None:
        for number in range(APPENDS_MAX):
            if self.done.wait(0.0002) or self.passes >= PASSES:
                break
            key = f"k{number % KEYS}"
            codec = (0, 0, 3, 4)[number % 4]
            self.log.append_as_leader(keyed((key, str(number)), ("x", "y" * (number % 50)), codec=codec), 0)
            self.acknowledged[key] = number
        self.done.set()

    def clean(self) -> None:
        last_clean_offset = None
        while not self.done.is_set() or self.passes == 0:
            cleanable = next_to_clean(self.log, last_clean_offset, self.kit.clock.milliseconds())
            if cleanable.cleanable_bytes == 0:
                continue
            cleaner = Cleaner(SkimpyOffsetMap(24 * 64), CleanerSettings(1000, 10_000), self.kit.clock)
            last_clean_offset = cleaner.clean(cleanable).end_offset
            self.kit.scheduler.tick()
            self.passes += 1

    def read(self) -> None:
        while not self.done.is_set() or self.reads == 0:
            least = dict(self.acknowledged)
            seen: dict[str, int] = {}
            at, before = self.log.log_start_offset, -1
            while at < self.log.log_end_offset:
                found = self.log.read(at, 3000).records
                batches = found.batches() if found.size else []
                if not batches:
                    break
                for record in found.records():
                    if record.offset < at:
                        continue
                    assert record.offset > before, (record.offset, before)
                    before = record.offset
                    key, value = (record.key or b"").decode(), (record.value or b"").decode()
                    if key != "x":
                        assert int(value) > seen.get(key, -1), (key, value, seen)
                        seen[key] = int(value)
                at = batches[-1].next_offset
            assert all(seen.get(key, -1) >= number for key, number in least.items()), (least, seen)
            self.reads += 1


def test_passes_beside_appends_and_readers(base: Path, count: Callable[[str, int], None]) -> None:
    kit = CleanerKit(base / "log")
    log = kit.open(CONFIG)
    log.follow_log_end()
    crew = Crew(kit, log)
    crew.run(crew.write, crew.clean, crew.read, crew.read)
    count("cleaner passes beside appends", crew.passes)
    count("reads beside passes", crew.reads)
    assert crew.passes >= PASSES
    assert crew.reads > 0
    expected = {key: str(number) for key, number in crew.acknowledged.items()}
    state = latest(rows(log))
    assert {key: value for key, value in state.items() if key != "x"} == expected
    kit.scheduler.tick()
    assert kit.scheduler.errors == []
    log.close()
    again = kit.open(CONFIG)
    assert latest(rows(again)) == state
    again.close()
