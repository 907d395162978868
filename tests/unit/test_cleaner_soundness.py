"""A pass that meets a damaged record stops and names the place: it drops nothing because of it, nor makes it valid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format.batch import LENGTH_AT, MAGIC_AT, RECORD_BATCH_OVERHEAD
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import CorruptRecordException
from tests.conformance.kafkas_manager import KafkasManager
from tests.unit.cleaner_kit import COMPACT, CleanerKit, keyed, rows
from tests.unit.cleaning_kit import COMPACTED, fill
from tests.unit.log_kit import NOW_MS

CHECKED = CleanerSettings(check_crcs=True)
Damage = Callable[[bytearray, int, int], None]


def flip(at: int, bit: int = 1) -> Damage:
    def damage(data: bytearray, position: int, _: int) -> None:
        data[position + at] ^= bit

    return damage


def cut(behind: int) -> Damage:
    """In a batch, or where it begins."""

    def damage(data: bytearray, position: int, _: int) -> None:
        del data[position + behind :]

    return damage


DAMAGE: dict[str, Damage] = {
    "a value": lambda data, position, size: flip(size - 2)(data, position, size),
    "a key": flip(RECORD_BATCH_OVERHEAD + 6),
    "its count": flip(RECORD_BATCH_OVERHEAD - 1),
    "its length": flip(LENGTH_AT + 3),
    "its magic": flip(MAGIC_AT, 0x40),
    "its base offset, ahead": flip(5),
    "cut in it": cut(30),
    "cut in its length": cut(10),
    "cut before it": cut(0),
}


def damaged(log: UnifiedLog, damage: Damage) -> tuple[str, int, bytes]:
    """Damages the third batch of the second segment; returns the file, the position, and the file's new bytes."""
    segment = log.log_segments()[1]
    batch = list(segment.log.batches())[2]
    path = Path(segment.log.path)
    data = bytearray(path.read_bytes())
    damage(data, batch.position, batch.size)
    path.write_bytes(data)
    return str(path), batch.position, bytes(data)


def opened(kit: CleanerKit) -> UnifiedLog:
    log = kit.open(COMPACT, recovery_point=1_000)
    log.update_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("io_buffer", [64, 1 << 18])
def test_damage_stops_a_pass_and_is_named(tmp_path: Path, damage: Damage, codec: int, io_buffer: int) -> None:
    kit = CleanerKit(tmp_path)
    batches = [[keyed((f"k{n % 7}", f"value {n} of {s}"), codec=codec) for n in range(5)] for s in range(3)]
    log = kit.log_of(*batches[0], None, *batches[1], None, *batches[2])
    path, position, data = damaged(log, damage)
    kit.crash(log)
    log = opened(kit)
    before = [Path(segment.log.path).read_bytes() for segment in log.log_segments()]
    cleaner = Cleaner(SkimpyOffsetMap(2400), CHECKED._replace(io_buffer_bytes=io_buffer), kit.clock)
    with pytest.raises(CorruptRecordException) as raised:
        cleaner.clean(next_to_clean(log, None, NOW_MS))
    assert raised.value.path == path
    assert raised.value.position in (position, len(data))  # the file's end, if an index names the bytes after it
    assert [Path(segment.log.path).read_bytes() for segment in log.log_segments()] == before
    assert Path(path).read_bytes() == data


def test_a_segment_that_was_emptied_is_damage(tmp_path: Path) -> None:
    kit = CleanerKit(tmp_path)
    log = kit.log_of(keyed(("a", "1")), None, keyed(("a", "2")))
    kit.crash(log)
    path = Path(log.log_segments()[0].log.path)
    path.write_bytes(b"")
    log = opened(kit)
    with pytest.raises(CorruptRecordException, match="its time index names") as raised:
        Cleaner(SkimpyOffsetMap(2400), CHECKED, kit.clock).clean(next_to_clean(log, None, NOW_MS))
    assert (raised.value.path, raised.value.position) == (str(path), 0)


def test_the_plain_way_and_the_checked_one_leave_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for name, settings in (("plain", CleanerSettings(io_buffer_bytes=100)), ("checked", CHECKED)):
        kit = CleanerKit(tmp_path / name)
        batches = [keyed((f"k{n % 7}", "v"), (f"k{n % 3}", None), codec=n % 5) for n in range(40)]
        log = kit.log_of(*batches[:20], None, *batches[20:])
        kit.clean(log, settings=settings)
        kit.clean(log, settings=settings)
        found.append(([Path(segment.log.path).read_bytes() for segment in log.log_segments()], rows(log)))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LogManager, KafkasManager])
def test_a_managers_pool_looks_and_kafkas_class_does_not(tmp_path: Path, kind: type[LogManager]) -> None:
    config = CleanerConfig.for_tests()
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=config)
    clock = ManualClock(NOW_MS)
    manager = kind(tmp_path / "a", settings, scheduler=ManualScheduler(clock), clock=clock)
    with manager:
        cleaner = manager.cleaner
        assert cleaner is not None
        log = manager.get_or_create_log("t-0", is_new=True)
        with cleaner.manager.pause(log.topic_partition) as pause:
            pause.begin()
            fill(log, 60)
            log.roll()
            log.update_high_watermark(log.log_end_offset)
            path, position, _ = damaged(log, DAMAGE["a value"])
        if kind is KafkasManager:
            assert cleaner.await_cleaned(log.topic_partition, 60)
            return
        for _ in range(600):
            if cleaner.manager.uncleanable_partitions():
                break
            cleaner.await_cleaned(log.topic_partition, 60, 100)
        why = cleaner.manager.uncleanable_partitions()[0]
        assert (why.path, why.position) == (path, position)
